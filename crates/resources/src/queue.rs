//! [`Queue`]: its elements and the executions that wait for them (TensorFlow:
//! `core/kernels/queue_base.cc`).
//!
//! Enqueue attempts are served in order, and so are dequeue attempts; only the first of each makes
//! progress. A close without cancelling queues up behind the pending enqueues. Callbacks and
//! registrations neither run nor drop under the lock.

use crate::queue_batch::batch_of;
use crate::{heap, string_handle};
use ferroflow_base::{Code, Result, Status, cancelled, internal, invalid_argument, out_of_range};
use ferroflow_opdef::{AsyncCall, KernelCtx};
use ferroflow_sync::Registration;
use ferroflow_tensor::{DType, PartialShape, ResourceHandle, Tensor};
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The error of an attempt whose step was cancelled, or has ended at its deadline.
fn of_cancelled(reason: &Status, what: &str) -> Status {
    match reason.code() {
        Code::DeadlineExceeded => reason.clone(),
        _ => cancelled!("{what} operation was cancelled"),
    }
}

/// Returns whether `a` leaves a priority queue before `b`.
fn is_before(a: &Tuple, b: &Tuple) -> bool {
    let priority = |tuple: &Tuple| tuple.first()?.slice::<i64>().ok()?.first().copied();
    priority(a) < priority(b)
}

/// One element: a tensor of each component.
pub type Tuple = Vec<Tensor>;

/// Removes the queue that a handle names. Returns whether it existed.
pub fn destroy(ctx: &KernelCtx, h: &ResourceHandle) -> bool {
    let removed = ctx.resources().remove::<Queue>(&h.container, &h.name);
    removed.is_ok()
}

/// The order of dequeued elements.
pub enum QueueKind {
    /// First in, first out.
    Fifo,
    /// First in, first out; batches pad elements of different shapes.
    Padding,
    /// The smallest priority first: the first component, an int64.
    Priority,
    /// At random, while the queue holds more than a minimum.
    Shuffle {
        /// Elements that stay in an open queue.
        min_after_dequeue: usize,
        /// Creates the random stream from two seeds.
        random: fn(u64, u64) -> RandomStream,
        /// Seeds.
        seeds: (u64, u64),
    },
}

/// A source of random 32-bit numbers.
pub type RandomStream = Box<dyn FnMut() -> u32 + Send>;

impl QueueKind {
    /// Returns the name of the op without its version.
    pub fn name(&self) -> &'static str {
        match self {
            QueueKind::Fifo => "FIFOQueue",
            QueueKind::Padding => "PaddingFIFOQueue",
            QueueKind::Priority => "PriorityQueue",
            QueueKind::Shuffle { .. } => "RandomShuffleQueue",
        }
    }
}

/// A queue, shared by all nodes that name it.
pub struct Queue {
    /// Order of the elements.
    pub kind: QueueKind,
    /// Name in messages.
    pub name: String,
    /// Dtypes of the components.
    pub dtypes: Vec<DType>,
    /// Empty when not specified.
    pub shapes: Vec<PartialShape>,
    /// Most elements at a time.
    pub capacity: usize,
    state: Mutex<QueueState>,
}

struct QueueState {
    closed: bool,
    elements: VecDeque<Tuple>,
    random: Option<RandomStream>,
    next_id: u64,
    puts: VecDeque<Attempt<Enqueue>>,
    takes: VecDeque<Attempt<Dequeue>>,
}

struct Attempt<W> {
    id: u64,
    work: W,
    call: AsyncCall,
    /// Set once the attempt has to wait.
    registration: Option<Registration>,
}

enum Enqueue {
    Elements(VecDeque<Tuple>),
    Close,
}

/// The number of elements that a dequeue takes.
pub enum DequeueMode {
    /// One element.
    One,
    /// A batch of exactly `n`.
    Many(usize),
    /// A batch of `n`, or of what is left when the queue is closed.
    UpTo(usize),
}

struct Dequeue {
    want: DequeueMode,
    missing: usize,
    taken: Vec<Tuple>,
}

/// An attempt that ended: its call and the answer.
struct Finished {
    call: AsyncCall,
    answer: Outcome,
    _registration: Option<Registration>,
}

enum Outcome {
    Nothing,
    Elements(DequeueMode, Vec<Tuple>),
    Error(Status),
}

enum Progress {
    /// Nothing to do now.
    None,
    Some,
    Complete(Outcome),
}

impl<W> Attempt<W> {
    fn ended(self, answer: Outcome) -> Finished {
        Finished {
            call: self.call,
            answer,
            _registration: self.registration,
        }
    }
}

impl Queue {
    /// Creates an empty queue.
    pub fn new(
        kind: QueueKind,
        name: String,
        dtypes: Vec<DType>,
        shapes: Vec<PartialShape>,
        capacity: usize,
    ) -> Queue {
        let random = match &kind {
            QueueKind::Shuffle { random, seeds, .. } => Some(random(seeds.0, seeds.1)),
            _ => None,
        };
        Queue {
            kind,
            name,
            dtypes,
            shapes,
            capacity,
            state: Mutex::new(QueueState {
                closed: false,
                elements: VecDeque::new(),
                random,
                next_id: 0,
                puts: VecDeque::new(),
                takes: VecDeque::new(),
            }),
        }
    }

    fn lock(&self) -> MutexGuard<'_, QueueState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the number of elements.
    pub fn len(&self) -> usize {
        self.lock().elements.len()
    }

    /// Returns whether the queue has no elements.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns whether the queue is closed for new elements.
    pub fn is_closed(&self) -> bool {
        self.lock().closed
    }

    /// Enqueues elements: all of them or, if the queue is closed meanwhile, the first ones.
    pub fn put(self: &Arc<Self>, elements: Vec<Tuple>, call: AsyncCall) {
        self.attempt("Enqueue", call, |state, id, call| {
            state.puts.push_back(Attempt {
                id,
                work: Enqueue::Elements(elements.into()),
                call,
                registration: None,
            });
        });
    }

    /// Dequeues elements.
    pub fn take(self: &Arc<Self>, want: DequeueMode, call: AsyncCall) {
        let missing = match want {
            DequeueMode::One => 1,
            DequeueMode::Many(n) | DequeueMode::UpTo(n) => n,
        };
        if missing == 0 {
            call.finish(self.batch(Vec::new()));
            return;
        }
        self.attempt("Dequeue", call, |state, id, call| {
            let work = Dequeue {
                want,
                missing,
                taken: Vec::new(),
            };
            state.takes.push_back(Attempt {
                id,
                work,
                call,
                registration: None,
            });
        });
    }

    /// Closes the queue: behind the pending puts, or instead of them.
    pub fn close(self: &Arc<Self>, cancel_pending: bool, call: AsyncCall) {
        if !cancel_pending {
            self.attempt("Close", call, |state, id, call| {
                state.puts.push_back(Attempt {
                    id,
                    work: Enqueue::Close,
                    call,
                    registration: None,
                });
            });
            return;
        }
        let mut ended = Vec::new();
        let mut state = self.lock();
        let answer = match std::mem::replace(&mut state.closed, true) {
            true => Err(self.already_closed()),
            false => Ok(Vec::new()),
        };
        for pending in std::mem::take(&mut state.puts) {
            let error = cancelled!("Enqueue operation was cancelled");
            ended.push(pending.ended(Outcome::Error(error)));
        }
        state.serve(self, &mut ended);
        drop(state);
        self.finish(ended);
        call.finish(answer);
    }

    /// Adds an attempt and makes what progress is possible; the attempt may have to wait
    /// afterwards.
    fn attempt(
        self: &Arc<Self>,
        what: &str,
        call: AsyncCall,
        enter: impl FnOnce(&mut QueueState, u64, AsyncCall),
    ) {
        if let Err(error) = call.cancel.check() {
            call.finish(Err(of_cancelled(&error, what)));
            return;
        }
        let cancel = call.cancel.clone();
        let mut ended = Vec::new();
        let (id, waits) = {
            let mut state = self.lock();
            let id = state.next_id;
            state.next_id += 1;
            enter(&mut state, id, call);
            state.serve(self, &mut ended);
            (id, state.is_waiting(id))
        };
        self.finish(ended);
        if !waits {
            return;
        }
        let queue = Arc::downgrade(self);
        let check = cancel.clone();
        let registration = cancel.on_cancel(move || {
            if let Some(queue) = queue.upgrade() {
                queue.give_up(id, check.check().err());
            }
        });
        let unused = self.lock().keep(id, registration);
        drop(unused);
    }

    /// Ends a waiting attempt because its step was cancelled.
    fn give_up(self: &Arc<Self>, id: u64, reason: Option<Status>) {
        let mut ended = Vec::new();
        let mut state = self.lock();
        let reason = reason.unwrap_or_else(|| cancelled!(""));
        let error = |what: &str| Outcome::Error(of_cancelled(&reason, what));
        if let Some(at) = state.puts.iter().position(|a| a.id == id)
            && let Some(attempt) = state.puts.remove(at)
        {
            ended.push(attempt.ended(error("Enqueue")));
        } else if let Some(at) = state.takes.iter().position(|a| a.id == id)
            && let Some(mut attempt) = state.takes.remove(at)
        {
            state.restore(self, &mut attempt.work.taken);
            ended.push(attempt.ended(error("Dequeue")));
        }
        state.serve(self, &mut ended);
        drop(state);
        self.finish(ended);
    }

    fn finish(&self, ended: Vec<Finished>) {
        for Finished { call, answer, .. } in ended {
            call.finish(match answer {
                Outcome::Nothing => Ok(Vec::new()),
                Outcome::Error(error) => Err(error),
                Outcome::Elements(DequeueMode::One, mut taken) => {
                    Ok(taken.pop().unwrap_or_default())
                }
                Outcome::Elements(_, taken) => self.batch(taken),
            });
        }
    }

    /// Batches elements to one tensor per component.
    fn batch(&self, taken: Vec<Tuple>) -> Result<Vec<Tensor>> {
        let component = |(c, &dtype): (usize, &DType)| {
            let items: Vec<&Tensor> = taken.iter().filter_map(|tuple| tuple.get(c)).collect();
            let spec = self.shapes.get(c).cloned().unwrap_or_default();
            batch_of(dtype, &spec, &items)
        };
        self.dtypes.iter().enumerate().map(component).collect()
    }

    #[cold]
    fn closed_error(&self) -> Status {
        cancelled!("{} '{}' is closed.", self.kind.name(), self.name)
    }

    #[cold]
    fn already_closed(&self) -> Status {
        cancelled!("{} '{}' is already closed.", self.kind.name(), self.name)
    }

    #[cold]
    fn insufficient(&self, requested: usize, left: usize) -> Status {
        out_of_range!(
            "{} '{}' is closed and has insufficient elements (requested {requested}, current size \
             {left})",
            self.kind.name(),
            self.name
        )
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        // The queue is unreachable now. Pending calls finish with CANCELLED when they drop.
        // Registrations must not drop inside the state's drop.
        let mut state = self.lock();
        let waiting = (
            std::mem::take(&mut state.puts),
            std::mem::take(&mut state.takes),
        );
        drop(state);
        drop(waiting);
    }
}

impl QueueState {
    /// Serves the first attempts while one of them makes progress.
    fn serve(&mut self, queue: &Queue, ended: &mut Vec<Finished>) {
        loop {
            let mut changed = false;
            while let Some(mut attempt) = self.puts.pop_front() {
                match self.try_put(queue, &mut attempt.work) {
                    Progress::Complete(answer) => ended.push(attempt.ended(answer)),
                    progress => {
                        changed |= matches!(progress, Progress::Some);
                        self.puts.push_front(attempt);
                        break;
                    }
                }
            }
            while let Some(mut attempt) = self.takes.pop_front() {
                match self.try_take(queue, &mut attempt.work) {
                    Progress::Complete(answer) => {
                        changed = true;
                        ended.push(attempt.ended(answer));
                    }
                    progress => {
                        changed |= matches!(progress, Progress::Some);
                        self.takes.push_front(attempt);
                        break;
                    }
                }
            }
            if !changed {
                return;
            }
        }
    }

    fn try_put(&mut self, queue: &Queue, put: &mut Enqueue) -> Progress {
        let elements = match put {
            Enqueue::Close if self.closed => {
                return Progress::Complete(Outcome::Error(queue.already_closed()));
            }
            Enqueue::Close => {
                self.closed = true;
                return Progress::Complete(Outcome::Nothing);
            }
            Enqueue::Elements(elements) => elements,
        };
        if self.closed {
            return Progress::Complete(Outcome::Error(queue.closed_error()));
        }
        let room = queue.capacity.saturating_sub(self.elements.len());
        let n = room.min(elements.len());
        match queue.kind {
            QueueKind::Priority => {
                for tuple in elements.drain(..n) {
                    heap::push(&mut self.elements, tuple, is_before);
                }
            }
            _ => self.elements.extend(elements.drain(..n)),
        }
        match (elements.is_empty(), n) {
            (true, _) => Progress::Complete(Outcome::Nothing),
            (false, 0) => Progress::None,
            (false, _) => Progress::Some,
        }
    }

    fn try_take(&mut self, queue: &Queue, take: &mut Dequeue) -> Progress {
        let kept = match queue.kind {
            QueueKind::Shuffle {
                min_after_dequeue, ..
            } if !self.closed => min_after_dequeue,
            _ => 0,
        };
        let available = self.elements.len().saturating_sub(kept);
        if self.closed && available < take.missing {
            let left = self.elements.len();
            if !matches!(take.want, DequeueMode::UpTo(_)) || left + take.taken.len() == 0 {
                let error = queue.insufficient(take.missing, left);
                self.restore(queue, &mut take.taken);
                return Progress::Complete(Outcome::Error(error));
            }
            take.missing = left;
        }
        // A batch of priorities waits for all of its elements, so that it is sorted.
        let is_short = available < take.missing && matches!(queue.kind, QueueKind::Priority);
        let n = if is_short {
            0
        } else {
            available.min(take.missing)
        };
        for _ in 0..n {
            if let Some(tuple) = self.next(queue) {
                take.taken.push(tuple);
            }
        }
        take.missing -= n;
        match (take.missing, n) {
            (0, _) => {
                let want = std::mem::replace(&mut take.want, DequeueMode::One);
                Progress::Complete(Outcome::Elements(want, std::mem::take(&mut take.taken)))
            }
            (_, 0) => Progress::None,
            _ => Progress::Some,
        }
    }

    /// Removes the next element, if any.
    fn next(&mut self, queue: &Queue) -> Option<Tuple> {
        match &mut self.random {
            None if matches!(queue.kind, QueueKind::Priority) => {
                heap::pop(&mut self.elements, is_before)
            }
            None => self.elements.pop_front(),
            Some(random) => {
                let n = self.elements.len().max(1);
                self.elements.swap_remove_back(random() as usize % n)
            }
        }
    }

    /// Puts back the elements that a batch had taken.
    fn restore(&mut self, queue: &Queue, taken: &mut Vec<Tuple>) {
        for tuple in taken.drain(..).rev() {
            match queue.kind {
                QueueKind::Priority => heap::push(&mut self.elements, tuple, is_before),
                _ => self.elements.push_front(tuple),
            }
        }
    }

    fn is_waiting(&self, id: u64) -> bool {
        self.puts.iter().any(|a| a.id == id) || self.takes.iter().any(|a| a.id == id)
    }

    /// Stores the registration of a waiting attempt; returns it if the attempt has ended.
    fn keep(&mut self, id: u64, registration: Registration) -> Option<Registration> {
        let put = self.puts.iter_mut().find(|a| a.id == id);
        let slot = match put {
            Some(a) => &mut a.registration,
            None => match self.takes.iter_mut().find(|a| a.id == id) {
                Some(a) => &mut a.registration,
                None => return Some(registration),
            },
        };
        slot.replace(registration)
    }
}

/// The synchronous entry of kernels that may wait.
///
/// # Errors
/// INTERNAL, always: kernels that may wait run asynchronously.
pub fn only_async(ctx: &KernelCtx) -> Result<()> {
    Err(internal!(
        "node '{}' may wait and has to be started",
        ctx.node()
    ))
}

/// Returns the queue that a handle refers to.
///
/// # Errors
/// INVALID_ARGUMENT if it does not refer to a queue.
pub fn queue_of(handle: &Tensor) -> Result<Arc<Queue>> {
    if handle.dtype() == DType::String {
        return string_handle::named(handle, "queue");
    }
    let handle = handle.resources()?.first();
    handle
        .and_then(|h| h.value.clone())
        .and_then(|value| value.downcast().ok())
        .ok_or_else(|| invalid_argument!("the resource handle does not refer to a queue"))
}
