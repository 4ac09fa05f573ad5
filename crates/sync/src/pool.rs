//! The one thread pool of a process: work-stealing tasks, and blocks of `parallel_for`.
//!
//! `deque.rs` has the task queues; `sleep.rs` puts threads to sleep without losing a wake-up.
//!
//! Protocol of blocks: [`Blocks::lanes`] hand out indices, each once. The caller of `run_blocks`
//! returns only when `finished` shows that every index has run to its end, so the borrowed closure
//! is not called after that: later tickets find no index left. A thread begins with its own lane, the same part of
//! every loop, and so finds in its cache what it computed in the loop before.

mod spares;

pub use spares::StandIn;

use crate::deque::{Deque, Inbox, Item, Steal, Stealer, Words};
use crate::sleep::{Outstanding, Sleepers};
use crate::{FlushDenormals, Parallelism, Spawner, pin};
use std::cell::{Cell, RefCell};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Time that an idle thread spins before it sleeps. Kernels of one step follow each other
/// within microseconds; waking a sleeper takes tens.
pub(crate) const SPIN: Duration = Duration::from_micros(150);

/// Tasks that may wait in the deque of a thread, and in the inbox per thread; beyond that, callers
/// should run their tasks themselves.
const MAX_WAITING: usize = 1024;

/// Work that runs once.
type Work = Box<dyn FnOnce() + Send>;

enum Task {
    Run(Work),
    Counted(Work, Arc<Outstanding>),
    Blocks(Arc<Blocks>),
}

// SAFETY: work is two non-null words, plus as the third its counter, if any; blocks are one word,
// and the second is null. The order of the halves of a wide pointer does not matter. The contents
// are `Send`.
unsafe impl Item for Task {
    fn into_words(self) -> Words {
        let null = std::ptr::null_mut();
        let halves = |work| {
            // SAFETY: a reference to a trait object is as large as two pointers, and both halves
            // are pointers that keep their provenance.
            unsafe {
                std::mem::transmute::<*mut (dyn FnOnce() + Send), [*mut (); 2]>(Box::into_raw(work))
            }
        };
        match self {
            Task::Run(work) => {
                let [data, table] = halves(work);
                [data, table, null]
            }
            Task::Counted(work, count) => {
                let [data, table] = halves(work);
                [data, table, Arc::into_raw(count).cast_mut().cast()]
            }
            Task::Blocks(blocks) => [Arc::into_raw(blocks).cast_mut().cast(), null, null],
        }
    }

    unsafe fn from_words([data, table, count]: Words) -> Self {
        if table.is_null() {
            // SAFETY: made by `into_words`, and used once as the caller promises.
            return Task::Blocks(unsafe { Arc::from_raw(data.cast()) });
        }
        // SAFETY: as above.
        let work = unsafe {
            let halves = [data, table];
            Box::from_raw(std::mem::transmute::<
                [*mut (); 2],
                *mut (dyn FnOnce() + Send),
            >(halves))
        };
        match count.is_null() {
            true => Task::Run(work),
            // SAFETY: as above.
            false => Task::Counted(work, unsafe { Arc::from_raw(count.cast()) }),
        }
    }
}

struct Blocks {
    /// Valid while an index below `n` is unfinished; see the module text.
    f: *const (dyn Fn(usize) + Sync),
    n: usize,
    lanes: Box<[Lane]>,
    finished: AtomicUsize,
    panic: Mutex<Option<Box<dyn std::any::Any + Send>>>,
}

/// Consecutive indices of blocks, in a cache line of its own.
#[repr(align(64))]
struct Lane {
    next: AtomicUsize,
    end: usize,
}

// SAFETY: `f` is `Sync` and is only called while the caller of `run_blocks` keeps it alive.
unsafe impl Send for Blocks {}
// SAFETY: as above; the other fields are atomics and a mutex.
unsafe impl Sync for Blocks {}

impl Blocks {
    fn new(f: *const (dyn Fn(usize) + Sync), n: usize, lanes: usize) -> Blocks {
        let lane = |i: usize| Lane {
            next: AtomicUsize::new(n * i / lanes),
            end: n * (i + 1) / lanes,
        };
        Blocks {
            f,
            n,
            lanes: (0..lanes).map(lane).collect(),
            finished: AtomicUsize::new(0),
            panic: Mutex::new(None),
        }
    }

    /// Runs blocks until none is left to start: those of the thread's own lane, then those of others.
    fn work(&self) {
        let own = NUMBER.get() % self.lanes.len();
        let (before, from) = self.lanes.split_at(own);
        for lane in from.iter().chain(before) {
            loop {
                let i = lane.next.fetch_add(1, Ordering::Relaxed);
                if i >= lane.end {
                    break;
                }
                self.run(i);
            }
        }
    }

    /// Runs block `i`, which a lane has handed out.
    fn run(&self, i: usize) {
        debug_assert!(self.finished.load(Ordering::Relaxed) < self.n);
        // SAFETY: index `i < n` is ours and unfinished, so `run_blocks` has not returned and
        // the closure is alive.
        let f = unsafe { &*self.f };
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| f(i))) {
            *lock(&self.panic) = Some(panic);
        }
        self.finished.fetch_add(1, Ordering::Release);
    }
}

pub(crate) struct Shared {
    /// Tasks of threads without a deque in this pool, and of those whose deque is full.
    inbox: Inbox<Task>,
    stealers: Vec<Stealer<Task>>,
    sleepers: Sleepers,
    stop: AtomicBool,
    width: usize,
    /// Whether there are fewer processors than threads.
    is_crowded: bool,
    /// Threads that stand in for threads that wait.
    spares: spares::Spares,
}

thread_local! {
    static IN_TASK: Cell<bool> = const { Cell::new(false) };
    /// The number of a thread in its pool; 0 of those that only help.
    static NUMBER: Cell<usize> = const { Cell::new(0) };
    /// The deque of a worker thread, with the address of its pool.
    static LOCAL: RefCell<Option<(usize, Deque<Task>)>> = const { RefCell::new(None) };
}

/// Returns whether the thread runs a task of a work queue.
pub(crate) fn is_in_task() -> bool {
    IN_TASK.get()
}

/// Runs a task of a work queue.
pub(crate) fn run_task(task: Box<dyn FnOnce() + Send>) {
    /// Restores the mark even when the task panics.
    struct Mark(bool);
    impl Drop for Mark {
        fn drop(&mut self) {
            IN_TASK.set(self.0);
        }
    }
    let _mark = Mark(IN_TASK.replace(true));
    task();
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Worker threads with their deques. `Pool::new(n)` computes with `n` threads: the caller of
/// [`Parallelism::run_blocks`] or [`Pool::help_until`] is one of them.
///
/// ```
/// use ferroflow_sync::{Parallelism, Pool};
/// use std::sync::atomic::{AtomicUsize, Ordering};
/// let pool = Pool::new(2);
/// let sum = AtomicUsize::new(0);
/// pool.run_blocks(100, &|i| { sum.fetch_add(i, Ordering::Relaxed); });
/// assert_eq!(sum.into_inner(), 4950);
/// ```
pub struct Pool {
    shared: Arc<Shared>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

impl Pool {
    /// Creates a pool that computes with `width` threads (at least 1), `width - 1` of them its own.
    pub fn new(width: usize) -> Pool {
        Self::with(width, |_| {})
    }

    /// Like [`Pool::new`], with each of its own threads pinned to a processor, as far as the system
    /// has enough of them and supports it: caches stay warm, but other programs compete for that
    /// processor.
    ///
    /// ```
    /// use ferroflow_sync::{Parallelism, Pool};
    /// let pool = Pool::pinned(2);
    /// pool.run_blocks(4, &|_| {});
    /// assert_eq!(pool.width(), 2);
    /// ```
    pub fn pinned(width: usize) -> Pool {
        Self::with(width, pin::to_processor)
    }

    /// Creates a pool whose threads first call `begin` with their number, from 1.
    fn with(width: usize, begin: fn(usize)) -> Pool {
        let width = width.max(1);
        let deques: Vec<Deque<Task>> = (1..width).map(|_| Deque::new(MAX_WAITING)).collect();
        let shared = Arc::new(Shared {
            inbox: Inbox::default(),
            stealers: deques.iter().map(Deque::stealer).collect(),
            sleepers: Sleepers::default(),
            stop: AtomicBool::new(false),
            width,
            is_crowded: width > 1 && width > Pool::available_threads(),
            spares: spares::Spares::default(),
        });
        let spawn = |(i, deque)| {
            let shared = shared.clone();
            std::thread::Builder::new()
                .name(format!("ferroflow-{i}"))
                .spawn(move || {
                    FlushDenormals::on_this_thread();
                    begin(i + 1);
                    NUMBER.set(i + 1);
                    LOCAL.set(Some((Arc::as_ptr(&shared) as usize, deque)));
                    shared.work_until(&|| shared.stop.load(Ordering::Acquire));
                    // Drop the remaining tasks while tasks can still be pushed.
                    drop(LOCAL.take());
                })
                .ok()
        };
        let threads = deques.into_iter().enumerate().filter_map(spawn).collect();
        Pool {
            shared,
            threads: Mutex::new(threads),
        }
    }

    /// Returns the number of processors that this process may use.
    pub fn available_threads() -> usize {
        std::thread::available_parallelism().map_or(1, |n| n.get())
    }

    /// Runs `task` on some thread, soon. With a width of 1 it runs when a thread helps.
    pub fn spawn(&self, task: Work) {
        self.shared.push(Task::Run(task), 1);
    }

    /// Like [`Pool::spawn`], for a task of a work queue. It is outstanding until it has returned or
    /// panicked; the end of the last one wakes sleeping threads.
    pub fn spawn_counted(&self, task: Work, count: &Arc<Outstanding>) {
        count.begin();
        self.shared.push(Task::Counted(task, count.clone()), 1);
    }

    /// Like [`Pool::spawn_counted`], on the calling thread.
    pub fn run_counted(&self, task: Work, count: &Outstanding) {
        count.begin();
        self.shared.run_counted(task, count);
    }

    /// Returns whether the caller should run its next task itself: its deque is full (tickets of
    /// finished loops included) or, if it has none, the inbox holds as many tasks as all deques
    /// together.
    pub fn is_full(&self) -> bool {
        let outside = || self.shared.inbox.len() >= MAX_WAITING * self.shared.stealers.len().max(1);
        self.shared.with_deque(|deque| match deque {
            Some(deque) => deque.is_full(),
            None => outside(),
        })
    }

    /// Returns the approximate number of tasks that wait in the calling thread's queue.
    pub fn n_waiting(&self) -> usize {
        self.shared.with_deque(|deque| match deque {
            Some(deque) => deque.n_items(),
            None => self.shared.inbox.len(),
        })
    }

    /// Runs tasks on the calling thread until `done()` holds; sleeps when there is no task.
    ///
    /// The thread that makes `done` true calls [`Pool::notify`] afterwards.
    pub fn help_until(&self, done: &dyn Fn() -> bool) {
        self.shared.work_until(done);
    }

    /// Makes sleeping threads check for work again.
    pub fn notify(&self) {
        self.shared.sleepers.wake(true);
    }

    /// Asks all threads to end, and waits for those that do so within `limit`: for pools that nothing drops before
    /// the process ends. Tasks that are queued later only run on threads that help.
    ///
    /// ```
    /// use ferroflow_sync::{Parallelism, Pool};
    /// let pool = Pool::new(3);
    /// pool.end_idle(std::time::Duration::from_secs(10));
    /// pool.run_blocks(4, &|_| {});
    /// ```
    pub fn end_idle(&self, limit: Duration) {
        let deadline = Instant::now() + limit;
        let threads = self.stop();
        // A thread of the pool cannot wait for itself.
        let is_own = self.shared.with_deque(|deque| deque.is_some());
        for thread in threads.into_iter().filter(|_| !is_own) {
            while !thread.is_finished() && Instant::now() < deadline {
                std::thread::sleep(Duration::from_micros(50));
            }
            if thread.is_finished() {
                let _ = thread.join();
            }
        }
    }

    /// Asks all threads to end; returns them.
    fn stop(&self) -> Vec<JoinHandle<()>> {
        self.shared.stop.store(true, Ordering::Release);
        self.notify();
        let spares = self.shared.spares.stop();
        let mut threads = std::mem::take(&mut *lock(&self.threads));
        threads.extend(spares);
        threads
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        let me = std::thread::current().id();
        for thread in self.stop() {
            // The last owner may be a task of the pool itself; a thread cannot join itself.
            if thread.thread().id() != me {
                let _ = thread.join();
            }
        }
    }
}

impl Parallelism for Pool {
    fn width(&self) -> usize {
        self.shared.width
    }

    fn run_blocks(&self, n_blocks: usize, f: &(dyn Fn(usize) + Sync)) {
        self.shared.run_blocks(n_blocks, f);
    }

    fn spawner(&self) -> Option<Spawner> {
        (self.shared.width > 1).then(|| Spawner::new(&self.shared))
    }
}

impl Shared {
    pub(crate) fn width(&self) -> usize {
        self.width
    }

    pub(crate) fn run_blocks(&self, n_blocks: usize, f: &(dyn Fn(usize) + Sync)) {
        let n_helpers = (self.width - 1).min(n_blocks.saturating_sub(1));
        if n_helpers == 0 {
            return (0..n_blocks).for_each(f);
        }
        // SAFETY: only the lifetime is erased; this function does not return before every block
        // is finished (see the wait below), and `f` is not called after that.
        let f = unsafe {
            std::mem::transmute::<
                *const (dyn Fn(usize) + Sync + '_),
                *const (dyn Fn(usize) + Sync + 'static),
            >(f)
        };
        let blocks = Arc::new(Blocks::new(f, n_blocks, n_helpers + 1));
        for _ in 0..n_helpers {
            self.push(Task::Blocks(blocks.clone()), n_helpers);
        }
        blocks.work();
        let mut spins = 0u32;
        while blocks.finished.load(Ordering::Acquire) < n_blocks {
            spins += 1;
            if spins < 2000 {
                std::hint::spin_loop();
            } else {
                std::thread::yield_now();
            }
        }
        self.take_back(&blocks);
        let panic = lock(&blocks.panic).take();
        if let Some(panic) = panic {
            resume_unwind(panic);
        }
    }

    /// Queues `task` and wakes up to `n_wanted` sleepers.
    fn push(&self, task: Task, n_wanted: usize) {
        let task = self.with_deque(|deque| match deque {
            Some(deque) => deque.push(task).err(),
            None => Some(task),
        });
        if let Some(task) = task {
            self.inbox.push(task);
        }
        self.sleepers.wake(n_wanted > 1);
    }

    /// Queues a task that nothing waits for; false if the pool is being dropped.
    pub(crate) fn spawn(&self, task: Work) -> bool {
        let runs = !self.stop.load(Ordering::Acquire);
        if runs {
            self.push(Task::Run(task), 1);
        }
        runs
    }

    /// Removes the tickets of `blocks` that were not stolen from the caller's deque.
    fn take_back(&self, blocks: &Arc<Blocks>) {
        while let Some(task) = self.with_deque(|deque| deque.and_then(Deque::pop)) {
            if !matches!(&task, Task::Blocks(b) if Arc::ptr_eq(b, blocks)) {
                // Other threads may have tried to steal meanwhile.
                return self.push(task, 1);
            }
        }
    }

    /// Calls `f` with the deque that the calling thread has in this pool.
    fn with_deque<R>(&self, f: impl FnOnce(Option<&Deque<Task>>) -> R) -> R {
        let me = self as *const Shared as usize;
        // A thread that ends, such as the main one in exit handlers, has no locals any more.
        if LOCAL.try_with(|_| ()).is_err() {
            return f(None);
        }
        LOCAL.with_borrow(|local| match local {
            Some((pool, deque)) if *pool == me => f(Some(deque)),
            _ => f(None),
        })
    }

    fn find(&self) -> Option<Task> {
        let own = self.with_deque(|deque| deque.and_then(Deque::pop));
        if let Some(task) = own.or_else(|| self.inbox.pop()) {
            return Some(task);
        }
        let mut retry = true;
        while std::mem::take(&mut retry) {
            for stealer in &self.stealers {
                match stealer.steal() {
                    Steal::Item(task) => return Some(task),
                    Steal::Retry => retry = true,
                    Steal::Empty => {}
                }
            }
        }
        None
    }

    /// Runs a task that is already counted; it stops counting even if it panics.
    fn run_counted(&self, task: Work, count: &Outstanding) {
        drop(catch_unwind(AssertUnwindSafe(|| run_task(task))));
        if count.end() {
            self.sleepers.wake(true);
        }
    }

    fn has_work(&self) -> bool {
        !self.inbox.is_empty() || self.stealers.iter().any(|s| !s.is_empty())
    }

    fn work_until(&self, done: &dyn Fn() -> bool) {
        let mut idle_since: Option<Instant> = None;
        while !done() {
            if let Some(task) = self.find() {
                match task {
                    // A task that panics must not kill the worker.
                    Task::Run(task) => drop(catch_unwind(AssertUnwindSafe(task))),
                    Task::Counted(task, count) => {
                        self.run_counted(task, &count);
                    }
                    Task::Blocks(blocks) => blocks.work(),
                }
                idle_since = None;
                continue;
            }
            if idle_since.get_or_insert_with(Instant::now).elapsed() < SPIN {
                match self.is_crowded {
                    // Another thread of the pool may need the processor.
                    true => std::thread::yield_now(),
                    false => (0..20).for_each(|_| std::hint::spin_loop()),
                }
                continue;
            }
            self.sleepers.sleep(|| self.has_work() || done());
            idle_since = None;
        }
    }
}

#[cfg(test)]
mod tests;
