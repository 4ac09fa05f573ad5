//! Pools of several widths, used from many threads.

use super::*;

/// Uses a pool when the thread ends.
struct Late(Arc<Pool>, Arc<AtomicUsize>);

impl Drop for Late {
    fn drop(&mut self) {
        let done = &self.1;
        self.0.run_blocks(3, &|_| {
            done.fetch_add(1, Ordering::Relaxed);
        });
        self.0.end_idle(Duration::from_secs(60));
    }
}

#[test]
fn threads_that_end_may_use_a_pool() {
    thread_local! {
        static LATE: RefCell<Option<Late>> = const { RefCell::new(None) };
    }
    let (pool, done) = (Arc::new(Pool::new(2)), Arc::new(AtomicUsize::new(0)));
    let late = Late(pool.clone(), done.clone());
    let thread = std::thread::spawn(move || {
        // Locals are dropped in reverse order of their first uses: that of the pool goes first.
        LATE.set(Some(late));
        pool.run_blocks(3, &|_| {});
    });
    thread.join().expect("no panic");
    assert_eq!(done.load(Ordering::Relaxed), 3);
}

#[test]
fn every_block_runs_once_nested_and_from_many_threads() {
    for width in [1, 2, 4] {
        let pool = Pool::new(width);
        std::thread::scope(|s| {
            for _ in 0..3 {
                s.spawn(|| {
                    for n in [0, 1, 2, 7, 100] {
                        let counts: Vec<AtomicUsize> =
                            (0..n * 5).map(|_| AtomicUsize::new(0)).collect();
                        pool.run_blocks(n, &|i| {
                            pool.run_blocks(5, &|j| {
                                counts[i * 5 + j].fetch_add(1, Ordering::Relaxed);
                            });
                        });
                        assert!(counts.iter().all(|c| c.load(Ordering::Relaxed) == 1));
                    }
                });
            }
        });
    }
}

#[test]
fn tasks_run_even_after_everybody_slept() {
    let pool = Arc::new(Pool::new(3));
    let count = Arc::new(AtomicUsize::new(0));
    for round in 1..=20 {
        if round % 5 == 0 {
            std::thread::sleep(Duration::from_millis(2));
        }
        for _ in 0..50 {
            let (count, pool) = (count.clone(), Arc::downgrade(&pool));
            spawn(&pool, move || {
                count.fetch_add(1, Ordering::Release);
            });
        }
        let target = round * 50;
        pool.help_until(&|| count.load(Ordering::Acquire) == target);
    }

    fn spawn(pool: &std::sync::Weak<Pool>, f: impl FnOnce() + Send + 'static) {
        let Some(strong) = pool.upgrade() else { return };
        let weak = pool.clone();
        strong.spawn(Box::new(move || {
            f();
            if let Some(pool) = weak.upgrade() {
                pool.notify();
            }
        }));
    }
}

#[test]
fn tasks_that_wait_are_dropped_with_the_pool() {
    /// Counts its drop, in a task of another pool.
    struct Counted(Arc<Pool>, Arc<AtomicUsize>);
    impl Drop for Counted {
        fn drop(&mut self) {
            let count = self.1.clone();
            self.0.spawn(Box::new(move || {
                count.fetch_add(1, Ordering::Release);
            }));
        }
    }
    let (other, ends) = (Arc::new(Pool::new(2)), Arc::new(AtomicUsize::new(0)));
    // The last owner of the pool is one of its own tasks.
    let pool = Arc::new(Pool::new(2));
    let (of_task, of_count) = (pool.clone(), Counted(other.clone(), ends.clone()));
    let (go_on, may_go_on) = std::sync::mpsc::channel::<()>();
    pool.spawn(Box::new(move || {
        let _ = may_go_on.recv();
        of_task.spawn(Box::new(move || drop(of_count)));
    }));
    drop(pool);
    let _ = go_on.send(());
    let wait_for = |n| {
        while ends.load(Ordering::Acquire) < n {
            std::thread::yield_now();
        }
    };
    wait_for(1);
    // Once for the deque, once for the inbox.
    let pool = Pool::new(1);
    let of_count = Counted(other.clone(), ends.clone());
    pool.spawn(Box::new(move || drop(of_count)));
    drop(pool);
    wait_for(2);
}

#[test]
fn loops_leave_no_tickets_in_the_deque() {
    let pool = Arc::new(Pool::new(2));
    let (of_task, full) = (pool.clone(), Arc::new(AtomicUsize::new(2)));
    let result = full.clone();
    let (is_done, done) = std::sync::mpsc::channel();
    pool.spawn(Box::new(move || {
        for _ in 0..2000 {
            of_task.run_blocks(4, &|_| of_task.run_blocks(2, &|_| {}));
        }
        result.store(of_task.is_full().into(), Ordering::Release);
        let _ = is_done.send(());
    }));
    done.recv().expect("the task ends");
    assert_eq!(full.load(Ordering::Acquire), 0);
}

#[test]
fn a_panic_in_a_block_reaches_the_caller() {
    let pool = Pool::new(2);
    let result = catch_unwind(AssertUnwindSafe(|| {
        pool.run_blocks(10, &|i| assert!(i != 7, "block seven"));
    }));
    assert!(result.is_err());
    pool.run_blocks(4, &|_| {});
}
