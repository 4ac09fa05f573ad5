//! Threads for work that blocks: started when needed, ended when idle.

use crate::work_queue::Task;
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Time that an idle thread waits for work before it exits.
const IDLE: Duration = Duration::from_secs(1);

struct PoolState {
    tasks: VecDeque<Task>,
    n_threads: usize,
    n_idle: usize,
    n_running: usize,
}

struct Shared {
    state: Mutex<PoolState>,
    /// Idle threads wait for tasks here.
    wake: Condvar,
    /// Callers of `quiesce` wait here.
    quiet: Condvar,
    max_threads: usize,
}

/// The pool of threads that may block.
pub(crate) struct BlockingPool(Arc<Shared>);

impl BlockingPool {
    pub(crate) fn new(max_threads: usize) -> Self {
        BlockingPool(Arc::new(Shared {
            state: Mutex::new(PoolState {
                tasks: VecDeque::new(),
                n_threads: 0,
                n_idle: 0,
                n_running: 0,
            }),
            wake: Condvar::new(),
            quiet: Condvar::new(),
            max_threads,
        }))
    }

    /// Queues `task`. Without `allow_queuing` the task is returned unless a thread can start it
    /// now.
    pub(crate) fn add(&self, task: Task, allow_queuing: bool) -> Result<(), Task> {
        let mut state = self.0.lock();
        let is_thread_free = state.n_idle > state.tasks.len();
        if !is_thread_free && state.n_threads < self.0.max_threads {
            let shared = self.0.clone();
            let thread = std::thread::Builder::new().name("ferroflow-blocking".into());
            match thread.spawn(move || {
                crate::pin::to_all_processors();
                crate::FlushDenormals::on_this_thread();
                shared.work()
            }) {
                Ok(_) => state.n_threads += 1,
                Err(_) if state.n_threads > 0 && allow_queuing => {}
                Err(_) => return Err(task),
            }
        } else if !is_thread_free && !allow_queuing {
            return Err(task);
        }
        state.tasks.push_back(task);
        drop(state);
        self.0.wake.notify_one();
        Ok(())
    }

    /// Returns whether no task waits or runs.
    pub(crate) fn is_quiet(&self) -> bool {
        self.0.lock().is_quiet()
    }

    /// Waits until no task waits or runs.
    pub(crate) fn quiesce(&self) {
        let mut state = self.0.lock();
        while !state.is_quiet() {
            state = self
                .0
                .quiet
                .wait(state)
                .unwrap_or_else(PoisonError::into_inner);
        }
    }
}

impl PoolState {
    fn is_quiet(&self) -> bool {
        self.tasks.is_empty() && self.n_running == 0
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, PoolState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn work(&self) {
        let mut state = self.lock();
        loop {
            if let Some(task) = state.tasks.pop_front() {
                state.n_running += 1;
                drop(state);
                // A task that panics must not take the thread's bookkeeping with it.
                drop(catch_unwind(AssertUnwindSafe(task)));
                state = self.lock();
                state.n_running -= 1;
                if state.is_quiet() {
                    self.quiet.notify_all();
                }
                continue;
            }
            state.n_idle += 1;
            let (next, timeout) = self
                .wake
                .wait_timeout(state, IDLE)
                .unwrap_or_else(PoisonError::into_inner);
            state = next;
            state.n_idle -= 1;
            if timeout.timed_out() && state.tasks.is_empty() {
                state.n_threads -= 1;
                return;
            }
        }
    }
}
