//! Work queues of kernels: [`WorkQueue`] and its two implementations.

use crate::blocking::BlockingPool;
use crate::pool::{SPIN, is_in_task, run_task as run};
use crate::sleep::Outstanding;
use crate::{AsyncValue, DepthGuard, Inline, Parallelism, Pool};
use std::cell::Cell;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

/// A piece of work.
pub type Task = Box<dyn FnOnce() + Send>;

/// Most threads for blocking work.
const MAX_BLOCKING_THREADS: usize = 256;
/// Tasks that wait for each thread when a queue is saturated.
const TASKS_PER_THREAD: usize = 2;
/// Maximal nesting of tasks that run in the caller because the queue is full.
const MAX_OVERFLOW_DEPTH: u32 = 8;

/// Runs tasks, eventually, on some thread.
///
/// ```
/// use ferroflow_sync::{Promise, SingleThreadedWorkQueue, WorkQueue};
/// let queue = SingleThreadedWorkQueue::new();
/// let (promise, value) = Promise::<i32>::new();
/// queue.add_task(Box::new(move || promise.emplace(1)));
/// queue.await_values(&[value.clone().into()]);
/// assert_eq!(value.get(), Some(&1));
/// ```
pub trait WorkQueue: Send + Sync {
    /// Returns the queue's name, for messages.
    fn name(&self) -> String;

    /// Queues work that does not block. A full queue runs it in the caller, unless such calls are
    /// nested too deeply.
    fn add_task(&self, task: Task);

    /// Queues work that may block.
    ///
    /// # Errors
    /// Without `allow_queuing`, returns the task unless it will start even if all other blocking
    /// work blocks forever.
    fn add_blocking_task(&self, task: Task, allow_queuing: bool) -> Result<(), Task>;

    /// Blocks until all values are available. Must not be called by a task.
    fn await_values(&self, values: &[AsyncValue]);

    /// Blocks until no task waits or runs. Must not be called by a task.
    fn quiesce(&self);

    /// Returns the number of tasks that may run at the same time.
    fn parallelism_level(&self) -> usize;

    /// Returns whether enough tasks of the calling thread wait to keep other threads busy: another
    /// task would only cost time.
    fn is_saturated(&self) -> bool {
        false
    }

    /// Returns the threads, for parallel loops inside a task.
    fn parallelism(&self) -> &dyn Parallelism {
        &Inline
    }

    /// Returns whether the calling thread is running a task of some queue.
    fn is_in_worker_thread(&self) -> bool {
        is_in_task()
    }
}

thread_local! {
    static OVERFLOW_DEPTH: Cell<u32> = const { Cell::new(0) };
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A queue without threads: waiting callers run the tasks, in order.
#[derive(Default)]
pub struct SingleThreadedWorkQueue {
    shared: Arc<Single>,
}

#[derive(Default)]
struct Single {
    state: Mutex<SingleState>,
    wake: Condvar,
}

#[derive(Default)]
struct SingleState {
    tasks: VecDeque<Task>,
    /// Tasks that are running.
    n_running: usize,
    /// Threads that sleep: notifying costs a system call even without any.
    n_waiting: usize,
}

impl Single {
    /// Runs a task that was dequeued and counted as running, and takes the lock for the next one.
    fn run(&self, task: Task) -> MutexGuard<'_, SingleState> {
        /// Decrements the count even if the task panics.
        struct Running<'a>(&'a Single);
        impl<'a> Running<'a> {
            fn end(&self) -> MutexGuard<'a, SingleState> {
                let mut state = lock(&self.0.state);
                state.n_running -= 1;
                if state.n_waiting > 0 {
                    self.0.wake.notify_all();
                }
                state
            }
        }
        impl Drop for Running<'_> {
            fn drop(&mut self) {
                drop(self.end());
            }
        }
        let running = Running(self);
        run(task);
        let state = running.end();
        std::mem::forget(running);
        state
    }

    /// Sleeps until notified.
    fn sleep<'a>(&self, mut state: MutexGuard<'a, SingleState>) -> MutexGuard<'a, SingleState> {
        state.n_waiting += 1;
        let woken = self.wake.wait(state);
        state = woken.unwrap_or_else(PoisonError::into_inner);
        state.n_waiting -= 1;
        state
    }

    fn notify(&self) {
        if lock(&self.state).n_waiting > 0 {
            self.wake.notify_all();
        }
    }
}

impl SingleThreadedWorkQueue {
    /// Creates an empty queue.
    pub fn new() -> Self {
        Self::default()
    }

    fn push(&self, task: Task) {
        let mut state = lock(&self.shared.state);
        state.tasks.push_back(task);
        let is_awaited = state.n_waiting > 0;
        drop(state);
        if is_awaited {
            self.shared.wake.notify_all();
        }
    }
}

/// Counts values that become available; `notify` wakes the waiter after the last one.
fn count_down(
    values: &[AsyncValue],
    notify: impl Fn() + Send + Clone + 'static,
) -> Arc<AtomicUsize> {
    let left = Arc::new(AtomicUsize::new(values.len()));
    for value in values {
        let (left, notify) = (left.clone(), notify.clone());
        value.and_then(move || {
            if left.fetch_sub(1, Ordering::AcqRel) == 1 {
                notify();
            }
        });
    }
    left
}

impl WorkQueue for SingleThreadedWorkQueue {
    fn name(&self) -> String {
        "single-threaded".to_string()
    }

    fn add_task(&self, task: Task) {
        self.push(task);
    }

    fn add_blocking_task(&self, task: Task, allow_queuing: bool) -> Result<(), Task> {
        if !allow_queuing {
            return Err(task);
        }
        self.push(task);
        Ok(())
    }

    fn await_values(&self, values: &[AsyncValue]) {
        let shared = self.shared.clone();
        let left = count_down(values, move || {
            // It takes the lock, so it cannot fall between the waiter's check and its sleep.
            shared.notify();
        });
        if left.load(Ordering::Acquire) == 0 {
            return;
        }
        let mut state = lock(&self.shared.state);
        while left.load(Ordering::Acquire) != 0 {
            state = match state.tasks.pop_front() {
                Some(task) => {
                    state.n_running += 1;
                    drop(state);
                    self.shared.run(task)
                }
                None => self.shared.sleep(state),
            };
        }
    }

    fn quiesce(&self) {
        let mut state = lock(&self.shared.state);
        loop {
            if let Some(task) = state.tasks.pop_front() {
                state.n_running += 1;
                drop(state);
                state = self.shared.run(task);
            } else if state.n_running == 0 {
                return;
            } else {
                state = self.shared.sleep(state);
            }
        }
    }

    fn parallelism_level(&self) -> usize {
        1
    }
}

/// A queue over the work-stealing [`Pool`], with threads of its own for blocking work.
pub struct MultiThreadedWorkQueue {
    pool: Arc<Pool>,
    pending: Arc<Outstanding>,
    blocking: BlockingPool,
    n_threads: usize,
    n_blocking: usize,
    has_free_processor: bool,
}

impl MultiThreadedWorkQueue {
    /// Creates a queue with `n_threads` threads for computing and up to `n_blocking` for blocking
    /// work (256 if zero).
    pub fn new(n_threads: usize, n_blocking: usize) -> Self {
        let n_threads = n_threads.max(1);
        // The pool counts the waiting thread as one of its own.
        Self::over(Arc::new(Pool::new(n_threads + 1)), n_threads, n_blocking)
    }

    /// Like [`MultiThreadedWorkQueue::new`], with each thread for computing on one processor.
    pub fn pinned(n_threads: usize, n_blocking: usize) -> Self {
        let n_threads = n_threads.max(1);
        Self::over(Arc::new(Pool::pinned(n_threads + 1)), n_threads, n_blocking)
    }

    /// Creates a queue over the pool of a process.
    pub fn over(pool: Arc<Pool>, n_threads: usize, n_blocking: usize) -> Self {
        let n_blocking = match n_blocking {
            0 => MAX_BLOCKING_THREADS,
            n => n,
        };
        MultiThreadedWorkQueue {
            pool,
            pending: Arc::default(),
            blocking: BlockingPool::new(n_blocking),
            n_threads,
            n_blocking,
            has_free_processor: Pool::available_threads() > n_threads,
        }
    }

    /// Returns the pool, for parallel loops.
    pub fn pool(&self) -> &Arc<Pool> {
        &self.pool
    }
}

impl WorkQueue for MultiThreadedWorkQueue {
    fn name(&self) -> String {
        format!(
            "Multi-threaded work queue ({} threads, {} blocking threads)",
            self.n_threads, self.n_blocking
        )
    }

    fn add_task(&self, task: Task) {
        if self.pool.is_full()
            && let Some(_guard) = DepthGuard::enter(&OVERFLOW_DEPTH, MAX_OVERFLOW_DEPTH)
        {
            return self.pool.run_counted(task, &self.pending);
        }
        self.pool.spawn_counted(task, &self.pending);
    }

    fn add_blocking_task(&self, task: Task, allow_queuing: bool) -> Result<(), Task> {
        self.blocking
            .add(Box::new(move || run(task)), allow_queuing)
    }

    fn await_values(&self, values: &[AsyncValue]) {
        // The waiter does not help: a long task would delay it after its values are available.
        let gate = Arc::new((Mutex::new(()), Condvar::new()));
        let opener = gate.clone();
        let left = count_down(values, move || {
            drop(lock(&opener.0));
            opener.1.notify_all();
        });
        // Waking a sleeper takes longer than most work; a processor without a worker may as well
        // wait.
        let since = Instant::now();
        while self.has_free_processor && left.load(Ordering::Acquire) != 0 {
            if since.elapsed() > SPIN {
                break;
            }
            (0..20).for_each(|_| std::hint::spin_loop());
        }
        let mut guard = lock(&gate.0);
        while left.load(Ordering::Acquire) != 0 {
            guard = gate.1.wait(guard).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn quiesce(&self) {
        loop {
            self.pool.help_until(&|| self.pending.is_zero());
            self.blocking.quiesce();
            if self.pending.is_zero() && self.blocking.is_quiet() {
                return;
            }
        }
    }

    fn parallelism_level(&self) -> usize {
        self.n_threads
    }

    fn is_saturated(&self) -> bool {
        self.pool.n_waiting() >= TASKS_PER_THREAD * self.n_threads
    }

    fn parallelism(&self) -> &dyn Parallelism {
        &*self.pool
    }
}
