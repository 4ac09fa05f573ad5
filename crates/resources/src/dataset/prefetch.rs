//! [`Prefetch`]: an iterator whose next elements are computed between steps.

use super::background::{Waiter, lock};
use super::{Background, BackgroundServices, Components, DatasetIterator, State};
use ferroflow_base::Result;
use ferroflow_opdef::StepServices;
use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};

/// An iterator with a bounded buffer of elements that come next.
pub struct Prefetch {
    shared: Arc<Shared>,
    background: Background,
    limit: usize,
    /// Whether the limit doubles when the reader finds the buffer empty.
    grows: bool,
}

/// The limit to which a buffer grows.
const MOST: usize = 64;

struct Shared {
    /// `None` once the iterator is dropped, whose tasks may still be queued.
    input: Mutex<Option<Box<dyn DatasetIterator>>>,
    buffer: Mutex<Buffer>,
    changed: Condvar,
}

#[derive(Default)]
struct Buffer {
    ready: VecDeque<Result<Components>>,
    filling: Filling,
    has_ended: bool,
    is_dropped: bool,
}

/// The thread that asks the input for the next element.
#[derive(Default, PartialEq)]
enum Filling {
    #[default]
    Nobody,
    /// A task that has not started.
    Queued,
    Running,
}

impl Prefetch {
    /// Buffers up to `limit` elements of `input`; 0 buffers none.
    pub fn new(input: Box<dyn DatasetIterator>, limit: usize) -> Prefetch {
        Prefetch {
            shared: Arc::new(Shared {
                input: Mutex::new(Some(input)),
                buffer: Mutex::default(),
                changed: Condvar::new(),
            }),
            background: Background::default(),
            limit,
            grows: false,
        }
    }

    /// Buffers elements of `input`, more of them while the buffer runs empty.
    pub fn growing(input: Box<dyn DatasetIterator>) -> Prefetch {
        let mut made = Prefetch::new(input, 1);
        made.grows = true;
        made
    }

    /// Begins to fill the buffer.
    pub fn start(&self, services: &StepServices) {
        self.refill(&mut lock(&self.shared.buffer), services);
    }

    fn refill(&self, buffer: &mut Buffer, services: &StepServices) {
        let has_room = buffer.ready.len() < self.limit && !buffer.has_ended;
        if !has_room || buffer.filling != Filling::Nobody {
            return;
        }
        let Some(services) = self.background.services(services) else {
            return;
        };
        buffer.filling = Filling::Queued;
        let (shared, limit) = (self.shared.clone(), self.limit);
        services.spawn(move |services| shared.fill(limit, services));
    }
}

/// Ends the turn of a thread that asks for an element, even if it panics.
struct Turn<'a>(&'a Shared);

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        lock(&self.0.buffer).filling = Filling::Nobody;
        self.0.changed.notify_all();
    }
}

impl Shared {
    /// Computes one element, and the next ones in further tasks.
    fn fill(self: Arc<Self>, limit: usize, services: BackgroundServices) {
        {
            let mut buffer = lock(&self.buffer);
            if buffer.is_dropped || buffer.filling != Filling::Queued {
                return;
            }
            buffer.filling = Filling::Running;
        }
        {
            let _turn = Turn(&self);
            // The input stays locked until its element is in the buffer: a save sees both.
            let mut input = lock(&self.input);
            let Some(input) = input.as_mut() else {
                return;
            };
            let next = services.with(|services| input.next(services));
            lock(&self.buffer).put(next);
        }
        let mut buffer = lock(&self.buffer);
        let goes_on = buffer.ready.len() < limit && !buffer.has_ended && !buffer.is_dropped;
        if goes_on && buffer.filling == Filling::Nobody {
            buffer.filling = Filling::Queued;
            drop(buffer);
            services.spawn(move |services| self.fill(limit, services));
        }
    }

    fn own_turn<'a>(
        &'a self,
        mut buffer: MutexGuard<'a, Buffer>,
        services: &StepServices,
    ) -> Result<Option<Components>> {
        buffer.filling = Filling::Running;
        drop(buffer);
        let _turn = Turn(self);
        let next = match lock(&self.input).as_mut() {
            Some(input) => input.next(services),
            None => Ok(None),
        };
        if matches!(next, Ok(None)) {
            lock(&self.buffer).has_ended = true;
        }
        next
    }
}

impl Buffer {
    fn put(&mut self, next: Result<Option<Components>>) {
        match next {
            Ok(Some(element)) => self.ready.push_back(Ok(element)),
            Ok(None) => self.has_ended = true,
            Err(error) => self.ready.push_back(Err(error)),
        }
    }
}

impl DatasetIterator for Prefetch {
    fn next(&mut self, services: &StepServices) -> Result<Option<Components>> {
        let shared = self.shared.clone();
        let mut buffer = lock(&shared.buffer);
        if self.grows && buffer.ready.is_empty() {
            self.limit = (self.limit * 2).min(MOST);
        }
        let mut waiter = Waiter::new(services);
        loop {
            if let Some(element) = buffer.ready.pop_front() {
                self.refill(&mut buffer, services);
                return element.map(Some);
            }
            if buffer.has_ended {
                return Ok(None);
            }
            if buffer.filling != Filling::Running {
                let next = shared.own_turn(buffer, services);
                self.refill(&mut lock(&shared.buffer), services);
                return next;
            }
            buffer = waiter.wait(&shared.changed, buffer)?;
        }
    }

    fn state(&mut self, state: &mut State) -> Result<()> {
        let mut input = lock(&self.shared.input);
        let mut buffer = lock(&self.shared.buffer);
        // Errors are not saved: the restored iterator continues after them.
        buffer.ready.retain(|element| element.is_ok());
        let mut ready: VecDeque<Components> = buffer.ready.drain(..).flatten().collect();
        let visited = state.queue(&mut ready);
        buffer.ready = ready.into_iter().map(Ok).collect();
        visited?;
        state.flag(&mut buffer.has_ended)?;
        match input.as_mut() {
            Some(input) => input.state(state),
            None => Ok(()),
        }
    }
}

impl Drop for Prefetch {
    fn drop(&mut self) {
        {
            let mut buffer = lock(&self.shared.buffer);
            buffer.is_dropped = true;
            buffer.ready.clear();
        }
        self.background.cancel();
        // A queued task must not keep the input, whose own tasks may occupy all threads. A running
        // one drops it at its end.
        if let Ok(mut input) = self.shared.input.try_lock() {
            *input = None;
        }
    }
}
