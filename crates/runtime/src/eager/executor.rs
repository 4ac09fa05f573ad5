//! [`Executor`]: calls in the order of their submission, on a thread of their own or at once.

use ferroflow_base::{Result, Status, internal};
use std::cell::Cell;
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

/// A call. It gets the error of an earlier one, if any, instead of being allowed to run, and a function that
/// takes its own error, before anything shows that the call has failed.
type Task = Box<dyn FnOnce(Option<&Status>, &dyn Fn(&Status)) -> Result<()> + Send>;

/// Runs calls in order (TensorFlow's `EagerExecutor`). The first error of an asynchronous one stays until
/// [`Executor::clear_error`]: calls after it fail with it.
///
/// ```
/// use ferroflow_runtime::eager::Executor;
/// let executor = Executor::new(true, 0);
/// executor.submit(Box::new(|_, _| Err(ferroflow_base::aborted!("no"))))?;
/// assert!(executor.wait().is_err());
/// assert!(executor.submit(Box::new(|_, _| Ok(()))).is_err());
/// executor.clear_error();
/// assert!(executor.wait().is_ok());
/// # Ok::<(), ferroflow_runtime::Status>(())
/// ```
pub struct Executor {
    is_async: bool,
    limit: usize,
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    queue: VecDeque<Task>,
    error: Option<Status>,
    is_busy: bool,
    thread: Option<JoinHandle<()>>,
    is_closed: bool,
}

impl State {
    /// Keeps the first error, with TensorFlow's remark for the calls that get it instead of running.
    fn fail(&mut self, error: &Status) {
        self.error.get_or_insert_with(|| {
            let text = format!(
                "{}\n\tEncountered when executing an operation using EagerExecutor. This error cancels all future \
                 operations and poisons their output tensors.",
                error.message()
            );
            let of_all = Status::new(error.code(), text);
            match error.node() {
                Some(node) => of_all.at_node(node, node),
                None => of_all,
            }
        });
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait<'a>(&self, state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        self.changed
            .wait(state)
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// The life of the thread.
    fn run(&self) {
        let mut state = self.lock();
        loop {
            let Some(task) = state.queue.pop_front() else {
                if state.is_closed {
                    return;
                }
                state = self.wait(state);
                continue;
            };
            state.is_busy = true;
            let error = state.error.clone();
            drop(state);
            // A client that has seen the call fail may clear the error before the call returns it.
            let has_failed = Cell::new(false);
            let fail = |error: &Status| {
                has_failed.set(true);
                self.lock().fail(error);
            };
            let result = catch_unwind(AssertUnwindSafe(|| task(error.as_ref(), &fail)));
            let result = result.unwrap_or_else(|_| Err(internal!("a call panicked")));
            state = self.lock();
            state.is_busy = false;
            if let (Err(error), false) = (result, has_failed.get()) {
                state.fail(&error);
            }
            self.changed.notify_all();
        }
    }
}

impl Executor {
    /// With a thread of its own if `is_async`, which has at most `limit` calls to run (0: any number).
    pub fn new(is_async: bool, limit: usize) -> Executor {
        Executor {
            is_async,
            limit,
            shared: Arc::default(),
        }
    }

    /// Returns whether calls run on a thread of their own.
    #[inline]
    pub fn is_async(&self) -> bool {
        self.is_async
    }

    /// Queues a call.
    ///
    /// # Errors
    /// The error of an earlier call; INTERNAL if the system has no thread left.
    pub fn submit(&self, task: Task) -> Result<()> {
        if !self.is_async {
            return task(None, &|_| ());
        }
        let mut state = self.shared.lock();
        while self.limit > 0 && state.queue.len() >= self.limit && state.error.is_none() {
            state = self.shared.wait(state);
        }
        if let Some(error) = &state.error {
            return Err(error.clone());
        }
        if state.thread.is_none() {
            let shared = self.shared.clone();
            let thread = std::thread::Builder::new().name("eager".to_string());
            let spawned = thread.spawn(move || shared.run());
            let no_thread = |e| internal!("no thread for an executor: {e}");
            state.thread = Some(spawned.map_err(no_thread)?);
        }
        state.queue.push_back(task);
        drop(state);
        self.shared.changed.notify_all();
        Ok(())
    }

    /// Waits for all calls.
    ///
    /// # Errors
    /// The first error since the last [`Executor::clear_error`].
    pub fn wait(&self) -> Result<()> {
        let mut state = self.shared.lock();
        while state.is_busy || !state.queue.is_empty() {
            state = self.shared.wait(state);
        }
        state.error.clone().map_or(Ok(()), Err)
    }

    /// Returns the error of an earlier call.
    ///
    /// # Errors
    /// As [`Executor::wait`], without waiting.
    pub fn status(&self) -> Result<()> {
        match self.is_async {
            false => Ok(()),
            true => self.shared.lock().error.clone().map_or(Ok(()), Err),
        }
    }

    /// Forgets the error.
    pub fn clear_error(&self) {
        self.shared.lock().error = None;
    }
}

impl Drop for Executor {
    /// Lets the thread end once its queue is empty; waits for it if it is.
    fn drop(&mut self) {
        let mut state = self.shared.lock();
        state.is_closed = true;
        let is_idle = state.queue.is_empty() && !state.is_busy;
        let thread = state.thread.take().filter(|_| is_idle);
        drop(state);
        self.shared.changed.notify_all();
        if let Some(thread) = thread {
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ferroflow_base::aborted;
    use std::sync::mpsc;

    #[test]
    fn an_error_that_was_cleared_does_not_come_back() {
        let executor = Executor::new(true, 0);
        let (failed, has_failed) = mpsc::channel();
        let (clear, is_cleared) = mpsc::channel();
        let task: Task = Box::new(move |_, fail| {
            let error = aborted!("no");
            fail(&error);
            failed.send(()).expect("the test waits");
            is_cleared.recv().expect("the test sends");
            Err(error)
        });
        executor.submit(task).expect("accepted");
        has_failed.recv().expect("the task sends");
        assert!(executor.status().is_err());
        executor.clear_error();
        clear.send(()).expect("the task waits");
        assert!(executor.wait().is_ok());
    }
}
