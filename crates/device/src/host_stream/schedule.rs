//! [`Shuffled`]: runs the operations of all streams in an order that events allow, and that a seed picks.

use super::memory::Memory;
use super::queue::{Queue, lock};
use ferroflow_base::{Result, internal};
use std::cell::Cell;
use std::sync::{Arc, Condvar, Mutex, PoisonError};

/// Runs operations one at a time, late, in a random order that the streams and events allow.
pub(crate) struct Shuffled {
    state: Mutex<State>,
    /// Signals that an operation ran or came.
    changed: Condvar,
    /// Whether a thread of its own runs what no other thread waits for.
    pub(crate) in_background: bool,
}

struct State {
    queues: Vec<Arc<Queue>>,
    random: u64,
    is_closed: bool,
    /// Counts changes.
    version: u64,
}

thread_local! {
    static N_QUIET: Cell<u32> = const { Cell::new(0) };
}

/// While it lives, this thread runs no operation unless it waits for one: operations call functions,
/// which could need a lock that the thread holds.
pub(crate) struct Quiet(());

pub(crate) fn quiet() -> Quiet {
    N_QUIET.set(N_QUIET.get() + 1);
    Quiet(())
}

impl Drop for Quiet {
    fn drop(&mut self) {
        N_QUIET.set(N_QUIET.get() - 1);
    }
}

/// SplitMix64.
fn next(random: &mut u64) -> u64 {
    *random = random.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut z = *random;
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

impl Shuffled {
    pub(crate) fn new(seed: u64, in_background: bool) -> Shuffled {
        Shuffled {
            state: Mutex::new(State {
                queues: Vec::new(),
                random: seed,
                is_closed: false,
                version: 0,
            }),
            changed: Condvar::new(),
            in_background,
        }
    }

    pub(crate) fn add(&self, queue: Arc<Queue>) {
        lock(&self.state).queues.push(queue);
    }

    pub(crate) fn close(&self) {
        lock(&self.state).is_closed = true;
        self.changed.notify_all();
    }

    /// Called when an operation was enqueued: sometimes runs a few, wherever.
    pub(crate) fn came(&self, memory: &Memory) {
        let mut state = lock(&self.state);
        state.version += 1;
        let dice = next(&mut state.random);
        drop(state);
        self.changed.notify_all();
        if !self.in_background && dice.is_multiple_of(8) && N_QUIET.get() == 0 {
            for _ in 0..(dice >> 8) % 8 {
                self.step(memory);
            }
        }
    }

    /// Called when a thread asks whether an event was reached.
    pub(crate) fn asked(&self, memory: &Memory) {
        if !self.in_background && N_QUIET.get() == 0 {
            self.step(memory);
        }
    }

    /// Runs one operation of some stream; whether there was one.
    pub(crate) fn step(&self, memory: &Memory) -> bool {
        let mut state = lock(&self.state);
        state.queues.retain(|q| !q.is_over());
        let n = state.queues.len();
        if n == 0 {
            return false;
        }
        let first = (next(&mut state.random) % n as u64) as usize;
        let picked = (0..n).find_map(|i| {
            let queue = &state.queues[(first + i) % n];
            Some((queue.clone(), queue.take_ready()?))
        });
        drop(state);
        let Some((queue, op)) = picked else {
            return false;
        };
        queue.run_one(op, memory);
        lock(&self.state).version += 1;
        self.changed.notify_all();
        true
    }

    /// Runs operations until `done`.
    ///
    /// # Errors
    /// INTERNAL if no operation can run.
    pub(crate) fn run_until(&self, memory: &Memory, done: impl Fn() -> bool) -> Result<()> {
        while !done() {
            let version = lock(&self.state).version;
            if self.step(memory) {
                continue;
            }
            let state = lock(&self.state);
            let others_run = state.queues.iter().any(|q| q.is_running());
            if !others_run && !self.in_background && state.version == version && !done() {
                return Err(internal!("no stream can go on"));
            }
            if state.version == version && !done() {
                let waited = self.changed.wait_while(state, |s| s.version == version);
                drop(waited.unwrap_or_else(PoisonError::into_inner));
            }
        }
        Ok(())
    }

    /// Runs what comes until the backend is closed.
    pub(crate) fn run_in_background(&self, memory: &Memory) {
        loop {
            let version = lock(&self.state).version;
            if self.step(memory) {
                continue;
            }
            let state = lock(&self.state);
            if state.is_closed && state.version == version {
                return;
            }
            let waited = self
                .changed
                .wait_while(state, |s| s.version == version && !s.is_closed);
            drop(waited.unwrap_or_else(PoisonError::into_inner));
        }
    }
}
