//! Calls of the host that streams have not reached.

use super::driver::Handle;
use super::{Cuda, lock};
use crate::backend::HostCall;
use ferroflow_base::{Result, Status};
use std::collections::HashMap;
use std::ffi::c_void;
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Condvar, Mutex, PoisonError, Weak};
use std::time::Duration;

/// How often a device that calls wait for is asked whether it is lost.
const PERIOD: Duration = Duration::from_millis(250);

/// The driver must not be called in them, so that a thread of our own makes them.
pub(super) struct Calls {
    waiting: Mutex<Waiting>,
    added: Condvar,
    ready: Mutex<Sender<(HostCall, Result<()>)>>,
}

#[derive(Default)]
struct Waiting {
    last: u64,
    /// The calls with their streams, by number.
    calls: HashMap<u64, (Handle, HostCall)>,
}

/// What the driver hands to [`reached`].
pub(super) struct Reached {
    pub(super) calls: Arc<Calls>,
    pub(super) number: u64,
}

impl Calls {
    pub(super) fn new() -> Arc<Calls> {
        let (ready, calls) = channel::<(HostCall, Result<()>)>();
        // Ends with the last sender.
        std::thread::spawn(move || calls.into_iter().for_each(|(call, ran)| call(ran)));
        Arc::new(Calls {
            waiting: Mutex::default(),
            added: Condvar::new(),
            ready: Mutex::new(ready),
        })
    }

    pub(super) fn add(&self, stream: Handle, call: HostCall) -> u64 {
        let mut waiting = lock(&self.waiting);
        waiting.last += 1;
        let number = waiting.last;
        waiting.calls.insert(number, (stream, call));
        self.added.notify_all();
        number
    }

    pub(super) fn take(&self, number: u64) -> Option<HostCall> {
        lock(&self.waiting)
            .calls
            .remove(&number)
            .map(|(_, call)| call)
    }

    fn make(&self, number: u64, ran: Result<()>) {
        if let Some(call) = self.take(number) {
            // The thread lives as long as this sender.
            let _ = lock(&self.ready).send((call, ran));
        }
    }

    /// Makes all calls with an error: a device that failed reaches none of them.
    pub(super) fn fail(&self, error: &Status) {
        let numbers: Vec<u64> = lock(&self.waiting).calls.keys().copied().collect();
        numbers
            .into_iter()
            .for_each(|n| self.make(n, Err(error.clone())));
    }

    /// Waits until calls wait; returns their streams if they still do a while later.
    fn overdue(&self) -> Vec<Handle> {
        let mut waiting = lock(&self.waiting);
        if waiting.calls.is_empty() {
            let woken = self.added.wait_timeout(waiting, PERIOD);
            drop(woken.unwrap_or_else(PoisonError::into_inner));
            return Vec::new();
        }
        let before = waiting.last;
        let woken = self.added.wait_timeout(waiting, PERIOD);
        waiting = woken.unwrap_or_else(PoisonError::into_inner).0;
        let old = waiting.calls.iter().filter(|(n, _)| **n <= before);
        let mut streams: Vec<Handle> = old.map(|(_, (stream, _))| *stream).collect();
        streams.sort_unstable();
        streams.dedup();
        streams
    }
}

/// Called by the driver when a stream reaches a call.
pub(super) unsafe extern "C" fn reached(data: *mut c_void) {
    // SAFETY: `call_host` made the pointer of a box and gave it to the driver, which calls once.
    let reached = unsafe { Box::from_raw(data.cast::<Reached>()) };
    reached.calls.make(reached.number, Ok(()));
}

/// Starts the thread that asks for the states of streams whose calls are overdue: a device that is lost reaches none, and no
/// other call of the driver may follow. Ends with the backend.
pub(super) fn watch(cuda: &Arc<Cuda>) {
    let (calls, cuda) = (cuda.calls.clone(), Arc::downgrade(cuda));
    let run = move |cuda: Weak<Cuda>| {
        while cuda.strong_count() > 0 {
            let streams = calls.overdue();
            if let (false, Some(cuda)) = (streams.is_empty(), cuda.upgrade()) {
                streams.into_iter().for_each(|stream| cuda.query(stream));
            }
        }
    };
    // Without the thread, the next call of the driver tells.
    let _ = std::thread::Builder::new()
        .name("gpu-watch".to_string())
        .spawn(move || run(cuda));
}
