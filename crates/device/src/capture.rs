//! [`Captured`]: operations that are enqueued at once, as often as wanted.
//!
//! While a thread captures, its new tensors are in memory of the capture, and each kernel of the device notes what it does
//! with inputs that are with the host: what is copied gets a fixed place on the device; what is read may decide what is
//! enqueued, so that the value is kept; checks are kept. A replay runs the step again, in which kernels of the host compute as
//! usual, and those of the device only copy, compare and check what they noted; then it enqueues all operations at once.
//!
//! What a kernel noted of its outputs is where they are, not their memory: within a capture memory is reused as in every
//! other step.

use crate::allocator::Allocator;
use crate::backend::RawGraph;
use crate::tensor_memory::StreamMemory;
use ferroflow_base::{Result, Status, failed_precondition, internal};
use ferroflow_tensor::{DType, Shape, Tensor};
use std::cell::RefCell;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// What became of the steps of a device that may be replayed.
#[derive(Debug, Default)]
pub struct CaptureStats {
    replays: AtomicU64,
    refused: Mutex<Option<Status>>,
}

impl CaptureStats {
    /// Returns the number of steps that were replayed.
    pub fn replays(&self) -> u64 {
        self.replays.load(Ordering::Relaxed)
    }

    /// Returns why the last one that could not be captured, or was not as it was captured, had to run otherwise, if any.
    pub fn refused(&self) -> Option<Status> {
        let refused = self.refused.lock().unwrap_or_else(PoisonError::into_inner);
        refused.clone()
    }

    /// Notes that a step was replayed, or why it was not.
    pub fn note(&self, replayed: std::result::Result<(), &Status>) {
        match replayed {
            Ok(()) => drop(self.replays.fetch_add(1, Ordering::Relaxed)),
            Err(why) => {
                let mut refused = self.refused.lock().unwrap_or_else(PoisonError::into_inner);
                *refused = Some(why.clone());
            }
        }
    }
}

/// Checks the value of an input.
pub type InputCheck = Box<dyn Fn(&Tensor) -> Result<()> + Send + Sync>;

/// Computes a tensor of the host from inputs, by number.
pub type FromInputs = Box<dyn Fn(&dyn Fn(usize) -> Result<Tensor>) -> Result<Tensor> + Send + Sync>;

/// Draws the next tensor of a sequence of the host.
pub type Draw = Arc<dyn Fn() -> Result<Tensor> + Send + Sync>;

/// One call of a kernel of the device. Inputs are numbered.
#[derive(Default)]
struct KernelCall {
    outputs: Vec<(usize, Tensor)>,
    /// Inputs with their places on the device.
    copies: Vec<(usize, Tensor)>,
    /// Inputs with the values that were read.
    reads: Vec<(usize, Tensor)>,
    checks: Vec<(usize, InputCheck)>,
    /// Places of what is computed from inputs.
    computed: Vec<(Tensor, FromInputs)>,
    /// Places of what is drawn.
    drawn: Vec<(Tensor, Draw)>,
}

/// Operations of consecutive calls.
struct Segment {
    /// The first call behind them.
    end: usize,
    graph: RawGraph,
}

/// What was captured. The first segments have no effects, so that a replay enqueues them before it has checked the rest: a
/// device does not wait for a whole step of the host.
#[derive(Default)]
struct Parts {
    calls: Vec<KernelCall>,
    segments: Vec<Segment>,
}

enum Mode {
    Capturing(Capturing),
    Replaying(Replaying),
}

struct Capturing {
    allocator: Allocator,
    parts: Parts,
    /// The operations of the stream when the segment began.
    n_ops: u64,
    /// Whether the next operation may change what outlives the step.
    writes: bool,
}

struct Replaying {
    parts: Arc<Parts>,
    next: usize,
    /// Segments that are enqueued.
    n_launched: usize,
    /// What is drawn for the next segment.
    drawn: Vec<(Tensor, Draw)>,
}

/// The least operations of the first segments.
const SEGMENTS: [u64; 3] = [8, 64, 512];

thread_local! {
    static MODE: RefCell<Option<Mode>> = const { RefCell::new(None) };
}

/// Ends a mode, also in a panic.
struct Ends;

impl Drop for Ends {
    fn drop(&mut self) {
        MODE.take();
    }
}

/// Whether this thread captures.
pub fn is_capturing() -> bool {
    MODE.with_borrow(|mode| matches!(mode, Some(Mode::Capturing(_))))
}

/// Whether this thread replays what was captured.
pub(crate) fn is_replaying() -> bool {
    MODE.with_borrow(|mode| matches!(mode, Some(Mode::Replaying(_))))
}

/// The allocator of this thread's new tensors, if it captures.
pub(crate) fn allocator() -> Option<Allocator> {
    MODE.with_borrow(|mode| match mode {
        Some(Mode::Capturing(capturing)) => Some(capturing.allocator.clone()),
        _ => None,
    })
}

/// Calls `f` with the call that this thread captures, if it does.
fn with_call<R>(f: impl FnOnce(&mut KernelCall) -> R) -> Option<R> {
    MODE.with_borrow_mut(|mode| match mode {
        Some(Mode::Capturing(capturing)) => capturing.parts.calls.last_mut().map(f),
        _ => None,
    })
}

/// Begins a call of a kernel of the device. Returns whether it was captured and need not be made: `output` has got its
/// outputs, by number.
///
/// # Errors
/// Those of checks, of `output` and of the device; FAILED_PRECONDITION if an input has another value than the captured
/// operations are for.
pub fn begin_call(
    memory: &StreamMemory,
    input: impl Fn(usize) -> Result<Tensor>,
    mut output: impl FnMut(usize, Tensor) -> Result<()>,
) -> Result<bool> {
    let replayed = MODE.with_borrow_mut(|mode| match mode {
        None => Ok(None),
        Some(Mode::Capturing(capturing)) => {
            capturing.begin_call(memory)?;
            Ok(None)
        }
        Some(Mode::Replaying(replaying)) => Ok(Some(replaying.begin_call())),
    })?;
    let Some(mut replayed) = replayed else {
        return Ok(false);
    };
    for segment in replayed.due {
        launch(memory, &replayed.parts, segment, &mut replayed.drawn)?;
    }
    let call = replayed.parts.calls.get(replayed.call);
    let call = call.ok_or_else(|| internal!("a step calls more kernels than were captured"))?;
    for (i, value) in &call.reads {
        if !input(*i)?.same_value(value) {
            return Err(failed_precondition!("another value decides what runs"));
        }
    }
    for (i, check) in &call.checks {
        check(&input(*i)?)?;
    }
    for (i, to) in &call.copies {
        copy_to_place(memory, to, &input(*i)?)?;
    }
    for (to, compute) in &call.computed {
        copy_to_place(memory, to, &compute(&input)?)?;
    }
    for (i, tensor) in &call.outputs {
        output(*i, tensor.clone())?;
    }
    Ok(true)
}

/// Copies a value to the place of those that it may differ from by its elements alone.
fn copy_to_place(memory: &StreamMemory, to: &Tensor, from: &Tensor) -> Result<()> {
    if to.dtype() != from.dtype() || to.shape() != from.shape() {
        return Err(failed_precondition!(
            "an input of shape {} was captured with {}",
            from.shape(),
            to.shape()
        ));
    }
    memory.upload_to(to, from)
}

/// Notes that the current call, which has enqueued nothing yet, may change what outlives the step.
///
/// # Errors
/// Those of the device.
pub fn note_write(memory: &StreamMemory) -> Result<()> {
    MODE.with_borrow_mut(|mode| match mode {
        Some(Mode::Capturing(capturing)) if !capturing.writes => {
            capturing.writes = true;
            let end = capturing.parts.calls.len().saturating_sub(1);
            capturing.cut(memory, end)
        }
        _ => Ok(()),
    })
}

impl Capturing {
    fn begin_call(&mut self, memory: &StreamMemory) -> Result<()> {
        let n_ops = memory.capturing().n_ops() - self.n_ops;
        let least = SEGMENTS.get(self.parts.segments.len());
        if !self.writes && least.is_some_and(|least| n_ops >= *least) {
            self.cut(memory, self.parts.calls.len())?;
        }
        self.parts.calls.push(KernelCall::default());
        Ok(())
    }

    /// Ends the segment before call `end`, if it has operations, and begins another one.
    fn cut(&mut self, memory: &StreamMemory, end: usize) -> Result<()> {
        let stream = memory.capturing();
        if stream.n_ops() == self.n_ops {
            return Ok(());
        }
        let backend = stream.device().backend();
        let graph = backend.end_capture(stream.raw())?;
        self.parts.segments.push(Segment { end, graph });
        self.n_ops = stream.n_ops();
        backend.begin_capture(stream.raw())
    }
}

/// A call that is replayed, behind segments that are due.
struct Replayed {
    parts: Arc<Parts>,
    call: usize,
    due: Range<usize>,
    drawn: Vec<(Tensor, Draw)>,
}

impl Replaying {
    fn begin_call(&mut self) -> Replayed {
        let (call, first) = (self.next, self.n_launched);
        let segments = &self.parts.segments;
        while self.n_launched + 1 < segments.len() && segments[self.n_launched].end <= call {
            self.n_launched += 1;
        }
        let due = first..self.n_launched;
        let drawn = match due.is_empty() {
            true => Vec::new(),
            false => std::mem::take(&mut self.drawn),
        };
        self.next += 1;
        if let Some(call) = self.parts.calls.get(call) {
            self.drawn.extend(call.drawn.iter().cloned());
        }
        Replayed {
            parts: self.parts.clone(),
            call,
            due,
            drawn,
        }
    }
}

/// Draws what a segment needs, and enqueues its operations.
fn launch(
    memory: &StreamMemory,
    parts: &Parts,
    segment: usize,
    drawn: &mut Vec<(Tensor, Draw)>,
) -> Result<()> {
    for (to, draw) in drawn.drain(..) {
        memory.upload_to(&to, &draw()?)?;
    }
    let Some(segment) = parts.segments.get(segment) else {
        return Ok(());
    };
    let stream = memory.compute();
    // SAFETY: the captured operations use memory of the step's inputs, of its calls, and of an allocator that lives as long
    // as these do and that nothing else allocates from, besides that of constants and workspaces, which are kept, and of
    // variables, which `StreamMemory::capture` keeps: what a segment reads there may be of another step where it is not
    // checked yet, and what writes there is enqueued behind all checks.
    let launched = unsafe {
        stream
            .device()
            .backend()
            .launch_graph(stream.raw(), segment.graph)
    };
    stream.note_op();
    launched
}

/// Notes an output of the current call.
///
/// # Errors
/// INTERNAL if it is not in `memory`, nor with the host.
pub fn note_output(memory: &StreamMemory, i: usize, tensor: &Tensor) -> Result<()> {
    if is_capturing() {
        let place = memory.place_of(tensor)?;
        with_call(|call| call.outputs.push((i, place)));
    }
    Ok(())
}

/// Notes that the current call depends on the value of input `i`, which is with the host.
pub fn note_read(i: usize, tensor: &Tensor) {
    if !tensor.is_on_device() {
        with_call(|call| call.reads.push((i, tensor.clone())));
    }
}

/// Checks input `i` of the current call, now and whenever it is replayed.
///
/// # Errors
/// Those of the check.
pub fn check_input(i: usize, tensor: &Tensor, check: InputCheck) -> Result<()> {
    check(tensor)?;
    with_call(|call| call.checks.push((i, check)));
    Ok(())
}

/// Returns a copy of input `i` of the current call, which is with the host, as [`StreamMemory::upload`].
///
/// # Errors
/// As for [`StreamMemory::upload`].
pub fn upload_input(memory: &StreamMemory, i: usize, tensor: &Tensor) -> Result<Tensor> {
    if tensor.is_on_device() || !is_capturing() {
        return memory.upload(tensor);
    }
    let known = |call: &mut KernelCall| call.copies.iter().find(|(at, _)| *at == i).cloned();
    if let Some(Some((_, copy))) = with_call(known) {
        return Ok(copy);
    }
    let copy = memory.allocate_place(tensor.dtype(), tensor.shape().clone())?;
    with_call(|call| call.copies.push((i, copy.clone())));
    Ok(copy)
}

/// Returns a copy of a tensor of `dtype` and `shape` that is computed from inputs of the current call, now and whenever it is
/// replayed.
///
/// # Errors
/// Those of `compute`; as for [`StreamMemory::upload`].
pub fn upload_computed(
    memory: &StreamMemory,
    (dtype, shape): (DType, Shape),
    input: &dyn Fn(usize) -> Result<Tensor>,
    compute: FromInputs,
) -> Result<Tensor> {
    if !is_capturing() {
        return memory.upload(&compute(input)?);
    }
    let place = memory.allocate_place(dtype, shape)?;
    with_call(|call| call.computed.push((place.clone(), compute)));
    Ok(place)
}

/// Returns a copy of the next tensor of a sequence, of `dtype` and `shape`. A replay draws when its checks are over.
///
/// # Errors
/// Those of `draw`; as for [`StreamMemory::upload`].
pub fn upload_drawn(
    memory: &StreamMemory,
    (dtype, shape): (DType, Shape),
    draw: Draw,
) -> Result<Tensor> {
    if !is_capturing() {
        return memory.upload(&draw()?);
    }
    let place = memory.allocate_place(dtype, shape)?;
    with_call(|call| call.drawn.push((place.clone(), draw)));
    Ok(place)
}

/// Operations of a computing stream, from tensors in fixed memory to others.
///
/// Their memory belongs to them: nothing else uses it between two replays.
pub struct Captured {
    memory: Arc<StreamMemory>,
    /// The places of arguments on the device; `None` for those that are with the host.
    inputs: Vec<Option<Tensor>>,
    parts: Arc<Parts>,
    /// Has the memory of what is between, which nothing else may get.
    _allocator: Allocator,
}

impl Drop for Captured {
    fn drop(&mut self) {
        // What was enqueued may still run, also where that has failed.
        let _ = self.memory.compute().synchronize();
        destroy(&self.memory, &self.parts);
    }
}

fn destroy(memory: &StreamMemory, parts: &Parts) {
    let backend = memory.compute().device().backend();
    parts
        .segments
        .iter()
        .for_each(|s| backend.destroy_graph(s.graph));
}

impl StreamMemory {
    /// Captures what `run` enqueues for tensors like `like`. It must call the same kernels, in the same order, whenever the
    /// shapes and what kernels note to have read are the same. What outlives the step, and is read or written in it, must
    /// stay where it is as long as the result lives.
    ///
    /// # Errors
    /// Those of `run`; UNIMPLEMENTED if the device has no graphs; FAILED_PRECONDITION if a kernel copies from the host what
    /// is not an input.
    pub fn capture(
        self: &Arc<Self>,
        like: &[Tensor],
        run: impl FnOnce(Vec<Tensor>) -> Result<Vec<Tensor>>,
    ) -> Result<Captured> {
        let allocator = self.allocator_of_capture();
        let stream = self.capturing();
        MODE.set(Some(Mode::Capturing(Capturing {
            allocator: allocator.clone(),
            parts: Parts::default(),
            n_ops: stream.n_ops(),
            writes: false,
        })));
        let _ends = Ends;
        let place = |t: &Tensor| match t.is_on_device() {
            true => self.allocate_tensor(t.dtype(), t.shape().clone()).map(Some),
            false => Ok(None),
        };
        let inputs: Vec<Option<Tensor>> = like.iter().map(place).collect::<Result<_>>()?;
        let backend = stream.device().backend();
        backend.begin_capture(stream.raw())?;
        let outputs = catch_unwind(AssertUnwindSafe(|| run(given(&inputs, like))));
        let graph = backend.end_capture(stream.raw());
        let outputs = outputs.unwrap_or_else(|_| Err(internal!("a kernel panicked")));
        stream.note_op();
        let mut parts = match MODE.take() {
            Some(Mode::Capturing(capturing)) => capturing.parts,
            _ => Parts::default(),
        };
        let end = parts.calls.len();
        let last = graph.map(|graph| parts.segments.push(Segment { end, graph }));
        match outputs.and(last) {
            Ok(()) => Ok(Captured {
                memory: self.clone(),
                inputs,
                parts: Arc::new(parts),
                _allocator: allocator,
            }),
            Err(e) => {
                destroy(self, &parts);
                Err(e)
            }
        }
    }
}

/// The arguments of a step: those on the device in their places.
fn given(inputs: &[Option<Tensor>], args: &[Tensor]) -> Vec<Tensor> {
    let each = inputs.iter().zip(args);
    each.map(|(input, arg)| input.as_ref().unwrap_or(arg).clone())
        .collect()
}

impl Captured {
    /// Runs the step for arguments of the shapes that were captured; returns its results, in memory of their own. Calls
    /// `before` when all checks have passed, and keeps what it returns until the operations are enqueued.
    ///
    /// # Errors
    /// FAILED_PRECONDITION if the captured operations are not those of these arguments; those of `run`, of the kernels'
    /// checks, of `before`, and of the device. On the device nothing that outlives the step has changed then; kernels of the
    /// host have run, and numbers may have been drawn. The inner errors are those of the device from then on.
    pub fn replay<G>(
        &self,
        args: &[Tensor],
        run: impl FnOnce(Vec<Tensor>) -> Result<Vec<Tensor>>,
        before: impl FnOnce() -> Result<G>,
    ) -> Result<Result<Vec<Tensor>>> {
        for (to, from) in self.inputs.iter().zip(args) {
            if let Some(to) = to {
                self.memory.copy_tensor(to, from)?;
            }
        }
        MODE.set(Some(Mode::Replaying(Replaying {
            parts: self.parts.clone(),
            next: 0,
            n_launched: 0,
            drawn: Vec::new(),
        })));
        let ends = Ends;
        let outputs = self.memory.as_current(|| run(given(&self.inputs, args)))?;
        let Some(Mode::Replaying(mut done)) = MODE.take() else {
            return Err(internal!("a replay has ended early"));
        };
        drop(ends);
        if done.next != self.parts.calls.len() {
            return Err(internal!("a step calls fewer kernels than were captured"));
        }
        // Whatever may lack memory comes before the effects.
        let place = |t: &Tensor| match t.is_on_device() {
            true => self.memory.allocate_tensor(t.dtype(), t.shape().clone()),
            false => Ok(t.clone()),
        };
        let results: Vec<Tensor> = outputs.iter().map(place).collect::<Result<_>>()?;
        let last = self.parts.segments.len().saturating_sub(1);
        for segment in done.n_launched..last {
            launch(&self.memory, &self.parts, segment, &mut done.drawn)?;
        }
        let guard = before()?;
        let launched = launch(&self.memory, &self.parts, last, &mut done.drawn);
        drop(guard);
        let copy = |(to, from): (&Tensor, &Tensor)| match from.is_on_device() {
            true => self.memory.copy_tensor(to, from),
            false => Ok(()),
        };
        let copied = || results.iter().zip(&outputs).try_for_each(copy);
        Ok(launched.and_then(|()| copied()).map(|()| results))
    }
}
