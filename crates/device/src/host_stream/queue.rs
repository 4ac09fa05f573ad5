//! Streams: queues of operations.

use super::memory::{Access, Memory};
use super::races::Clock;
use crate::backend::{Grid, HostCall, LaunchArg};
use crate::host_stream::kernels::{HostKernel, Operand};
use ferroflow_base::{Result, Status, internal};
use smallvec::SmallVec;
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::ThreadId;

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A launch, boxed: it is larger than other operations.
pub(crate) struct Launch {
    pub(crate) kernel: HostKernel,
    pub(crate) grid: Grid,
    /// The memory among the arguments, in order.
    pub(crate) accesses: SmallVec<[Access; 4]>,
    pub(crate) args: SmallVec<[LaunchArg; 6]>,
}

/// An operation.
pub(crate) enum Op {
    Copy([Access; 2]),
    Fill(Access, [u8; 4], usize),
    Launch(Box<Launch>),
    Record(Arc<Record>),
    Wait(Arc<Record>),
    Call(HostCall),
}

/// One record of an event.
#[derive(Default)]
pub(crate) struct Record {
    reached: Mutex<Option<Result<()>>>,
    changed: Condvar,
    /// What ran before, for the race detector.
    pub(crate) clock: Clock,
}

impl Record {
    pub(crate) fn of(clock: Clock) -> Record {
        Record {
            clock,
            ..Record::default()
        }
    }

    /// The outcome of what was before it, once it was reached.
    pub(crate) fn reached(&self) -> Option<Result<()>> {
        lock(&self.reached).clone()
    }

    pub(crate) fn block(&self) -> Result<()> {
        let reached = self
            .changed
            .wait_while(lock(&self.reached), |r| r.is_none());
        let reached = reached.unwrap_or_else(PoisonError::into_inner);
        reached.clone().unwrap_or(Ok(()))
    }

    fn reach(&self, outcome: Result<()>) {
        *lock(&self.reached) = Some(outcome);
        self.changed.notify_all();
    }
}

/// A stream.
pub(crate) struct Queue {
    pub(crate) number: usize,
    state: Mutex<State>,
    /// Signals that an operation came or the queue was closed.
    pub(crate) came: Condvar,
    /// Signals that an operation ran.
    ran: Condvar,
}

#[derive(Default)]
struct State {
    ops: VecDeque<Op>,
    n_enqueued: u64,
    n_run: u64,
    n_waiting: usize,
    /// An operation is running.
    is_running: bool,
    is_parked: bool,
    is_closed: bool,
    error: Option<Status>,
    thread: Option<ThreadId>,
}

impl Queue {
    pub(crate) fn new(number: usize) -> Queue {
        Queue {
            number,
            state: Mutex::default(),
            came: Condvar::new(),
            ran: Condvar::new(),
        }
    }

    pub(crate) fn push(&self, op: Op) {
        let mut state = lock(&self.state);
        state.ops.push_back(op);
        state.n_enqueued += 1;
        let is_parked = std::mem::take(&mut state.is_parked);
        drop(state);
        if is_parked {
            self.came.notify_one();
        }
    }

    pub(crate) fn close(&self) {
        lock(&self.state).is_closed = true;
        self.came.notify_one();
    }

    /// How much was enqueued.
    pub(crate) fn n_enqueued(&self) -> u64 {
        lock(&self.state).n_enqueued
    }

    /// Whether the first `n` operations ran.
    pub(crate) fn has_run(&self, n: u64) -> bool {
        lock(&self.state).n_run >= n
    }

    /// Whether nothing is left of a closed queue.
    pub(crate) fn is_over(&self) -> bool {
        let state = lock(&self.state);
        state.is_closed && state.ops.is_empty() && !state.is_running
    }

    /// The error since the last call.
    pub(crate) fn take_error(&self) -> Result<()> {
        lock(&self.state).error.take().map_or(Ok(()), Err)
    }

    /// Whether this thread runs the queue.
    pub(crate) fn is_own_thread(&self) -> bool {
        lock(&self.state).thread == Some(std::thread::current().id())
    }

    /// Waits until the first `n` operations ran.
    pub(crate) fn block_until(&self, n: u64) {
        let mut state = lock(&self.state);
        state.n_waiting += 1;
        let state = self.ran.wait_while(state, |s| s.n_run < n);
        state.unwrap_or_else(PoisonError::into_inner).n_waiting -= 1;
    }

    /// Runs the queue on this thread until it is closed and empty.
    pub(crate) fn run(&self, memory: &Memory) {
        let mut state = lock(&self.state);
        state.thread = Some(std::thread::current().id());
        loop {
            let Some(op) = state.ops.pop_front() else {
                if state.is_closed {
                    return;
                }
                state.is_parked = true;
                let parked = self.came.wait_while(state, |s| s.is_parked && !s.is_closed);
                state = parked.unwrap_or_else(PoisonError::into_inner);
                state.is_parked = false;
                continue;
            };
            let error = state.error.clone();
            drop(state);
            let outcome = run(op, memory, error);
            state = lock(&self.state);
            self.finish(&mut state, outcome);
        }
    }

    /// Takes the first operation if it can run now, for [`Queue::run_one`].
    pub(crate) fn take_ready(&self) -> Option<Op> {
        let mut state = lock(&self.state);
        let is_ready = match state.ops.front()? {
            Op::Wait(record) => record.reached().is_some(),
            _ => true,
        };
        if !is_ready || state.is_running {
            return None;
        }
        state.is_running = true;
        state.ops.pop_front()
    }

    /// Whether an operation runs on some thread.
    pub(crate) fn is_running(&self) -> bool {
        lock(&self.state).is_running
    }

    pub(crate) fn run_one(&self, op: Op, memory: &Memory) {
        let error = lock(&self.state).error.clone();
        let outcome = run(op, memory, error);
        let mut state = lock(&self.state);
        state.is_running = false;
        self.finish(&mut state, outcome);
    }

    fn finish(&self, state: &mut State, outcome: Result<()>) {
        state.n_run += 1;
        if let Err(error) = outcome {
            state.error.get_or_insert(error);
        }
        if state.n_waiting > 0 {
            self.ran.notify_all();
        }
    }
}

/// Runs an operation. Behind an `error` only events and calls do anything: they pass it on.
fn run(op: Op, memory: &Memory, error: Option<Status>) -> Result<()> {
    let before = error.map_or(Ok(()), Err);
    match op {
        Op::Record(record) => {
            record.reach(before);
            Ok(())
        }
        Op::Wait(record) => record.block(),
        Op::Call(call) => {
            let called = catch_unwind(AssertUnwindSafe(|| call(before)));
            called.map_err(|_| internal!("a function that a stream called panicked"))
        }
        _ if before.is_err() => Ok(()),
        Op::Copy(accesses) => {
            let [to, from] = &accesses;
            memory.locked(&accesses, || {
                // SAFETY: both ranges are in regions that the accesses keep, and are locked; `copy` allows
                // them to overlap.
                unsafe { std::ptr::copy(from.as_ptr(), to.as_ptr(), to.span.len) };
            });
            Ok(())
        }
        Op::Fill(to, word, len) => {
            memory.locked(std::slice::from_ref(&to), || {
                // SAFETY: the range is in a region that the access keeps, and is locked for writing.
                let bytes = unsafe { std::slice::from_raw_parts_mut(to.as_ptr(), to.span.len) };
                for chunk in bytes.chunks_mut(len) {
                    let n = chunk.len();
                    chunk.copy_from_slice(&word[..n]);
                }
            });
            Ok(())
        }
        Op::Launch(launch) => {
            let called = || memory.locked(&launch.accesses, || launch.call());
            catch_unwind(AssertUnwindSafe(called))
                .unwrap_or_else(|_| Err(internal!("a host kernel panicked")))
        }
    }
}

impl Launch {
    /// Calls the kernel; the ranges of its accesses are locked.
    fn call(&self) -> Result<()> {
        let mut memory = self.accesses.iter();
        let mut operands = SmallVec::<[Operand; 6]>::new();
        for arg in &self.args {
            operands.push(match arg {
                LaunchArg::Number { bytes, len } => Operand::Number {
                    bytes: *bytes,
                    len: *len,
                },
                LaunchArg::Memory(_) | LaunchArg::Within { .. } => {
                    let access = memory.next();
                    let access = access.ok_or_else(|| internal!("an argument has no memory"))?;
                    let (at, len) = (access.as_ptr(), access.span.len);
                    match access.writes {
                        // SAFETY: the access keeps its region and is locked for writing; `HostStreams::launch`
                        // checked that no other argument overlaps it.
                        true => Operand::Write(unsafe { std::slice::from_raw_parts_mut(at, len) }),
                        // SAFETY: the access keeps its region and is locked for reading; no argument that is
                        // written overlaps it.
                        false => Operand::Read(unsafe { std::slice::from_raw_parts(at, len) }),
                    }
                }
            });
        }
        (self.kernel.run)(&self.grid, &mut operands)
    }
}
