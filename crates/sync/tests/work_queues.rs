//! Both work queues implement the contract of the trait.

use ferroflow_base::internal;
use ferroflow_sync::{
    AsyncValue, BlockSizes, Chain, MultiThreadedWorkQueue, Promise, SingleThreadedWorkQueue,
    WorkQueue, parallel_for_async,
};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};

fn queues() -> Vec<Arc<dyn WorkQueue>> {
    vec![
        Arc::new(SingleThreadedWorkQueue::new()),
        Arc::new(MultiThreadedWorkQueue::new(1, 0)),
        Arc::new(MultiThreadedWorkQueue::new(3, 2)),
    ]
}

#[test]
fn a_queue_with_enough_tasks_is_saturated() {
    let queue = MultiThreadedWorkQueue::new(1, 0);
    let (open, gate) = mpsc::channel::<()>();
    let (started, has_started) = mpsc::channel();
    queue.add_task(Box::new(move || {
        started.send(()).expect("the test waits");
        let _ = gate.recv();
    }));
    has_started.recv().expect("the task runs");
    assert!(!queue.is_saturated());
    (0..8).for_each(|_| queue.add_task(Box::new(|| {})));
    assert!(queue.is_saturated());
    drop(open);
    queue.quiesce();
    assert!(!queue.is_saturated());
}

#[test]
fn quiesce_waits_for_tasks_of_tasks() {
    for queue in queues() {
        let count = Arc::new(AtomicUsize::new(0));
        for _ in 0..100 {
            let (queue2, count) = (queue.clone(), count.clone());
            queue.add_task(Box::new(move || {
                assert!(queue2.is_in_worker_thread());
                let count2 = count.clone();
                queue2.add_task(Box::new(move || {
                    count2.fetch_add(1, Ordering::Relaxed);
                }));
                count.fetch_add(1, Ordering::Relaxed);
            }));
        }
        queue.quiesce();
        assert_eq!(count.load(Ordering::Relaxed), 200, "{}", queue.name());
        assert!(!queue.is_in_worker_thread());
    }
}

#[test]
fn await_returns_when_all_values_are_there() {
    for queue in queues() {
        let (promises, values): (Vec<_>, Vec<_>) = (0..10).map(|_| Promise::<usize>::new()).unzip();
        for (i, promise) in promises.into_iter().enumerate() {
            let task = Box::new(move || {
                (0..i % 3).for_each(|_| std::thread::yield_now());
                promise.emplace(i);
            });
            if i % 2 == 0 {
                queue.add_task(task);
            } else {
                assert!(queue.add_blocking_task(task, true).is_ok());
            }
        }
        let values: Vec<AsyncValue> = values.into_iter().map(Into::into).collect();
        queue.await_values(&values);
        assert!(values.iter().all(AsyncValue::is_concrete));
        queue.quiesce();
    }
}

#[test]
fn blocking_work_without_queuing_starts_or_is_given_back() {
    let single = SingleThreadedWorkQueue::new();
    assert!(single.add_blocking_task(Box::new(|| {}), false).is_err());
    let queue = MultiThreadedWorkQueue::new(1, 2);
    let (release, released) = Promise::<()>::new();
    let (is_blocked, blocked) = mpsc::channel();
    for _ in 0..2 {
        let (released, is_blocked): (AsyncValue, _) = (released.clone().into(), is_blocked.clone());
        let block = Box::new(move || {
            let _ = is_blocked.send(());
            let (sender, receiver) = std::sync::mpsc::channel();
            released.and_then(move || drop::<std::sync::mpsc::Sender<()>>(sender));
            let _ = receiver.recv();
        });
        assert!(queue.add_blocking_task(block, false).is_ok());
    }
    (0..2).for_each(|_| blocked.recv().expect("both threads block"));
    assert!(queue.add_blocking_task(Box::new(|| {}), false).is_err());
    release.emplace(());
    queue.quiesce();
}

#[test]
fn quiesce_waits_for_what_others_run() {
    let queue = Arc::new(SingleThreadedWorkQueue::new());
    let (is_running, running) = std::sync::mpsc::channel();
    let (go_on, may_go_on) = std::sync::mpsc::channel::<()>();
    let done = Arc::new(AtomicUsize::new(0));
    let done2 = done.clone();
    queue.add_task(Box::new(move || {
        let _ = is_running.send(());
        let _ = may_go_on.recv();
        done2.fetch_add(1, Ordering::Relaxed);
    }));
    let other = {
        let queue = queue.clone();
        std::thread::spawn(move || queue.quiesce())
    };
    running.recv().expect("the other thread runs the task");
    let opener = std::thread::spawn(move || {
        (0..100).for_each(|_| std::thread::yield_now());
        let _ = go_on.send(());
    });
    queue.quiesce();
    assert_eq!(done.load(Ordering::Relaxed), 1);
    other.join().expect("it ends");
    opener.join().expect("it ends");
}

#[test]
fn blocks_cover_a_range_once() {
    let all = [
        BlockSizes::Fixed(1),
        BlockSizes::Fixed(7),
        BlockSizes::Fixed(0),
        BlockSizes::Min(10),
        BlockSizes::Cost(500.0),
        BlockSizes::Cost(f64::NAN),
    ];
    for queue in queues() {
        for sizes in all {
            for total in [0, 1, 6, 7, 8, 1000] {
                let counts: Arc<Vec<AtomicUsize>> =
                    Arc::new((0..total).map(|_| AtomicUsize::new(0)).collect());
                let (of_blocks, of_values) = (counts.clone(), queue.clone());
                let done = parallel_for_async(&queue, total, sizes, move |range| {
                    if let BlockSizes::Fixed(n) = sizes {
                        assert!(range.len() == n.max(1) || range.end == total);
                    }
                    for count in &of_blocks[range.clone()] {
                        count.fetch_add(1, Ordering::Relaxed);
                    }
                    // Every other block finishes later.
                    let (promise, late) = Promise::<Chain>::new();
                    match range.start % 2 {
                        0 => promise.emplace(Chain),
                        _ => of_values.add_task(Box::new(move || promise.emplace(Chain))),
                    }
                    late.into()
                });
                queue.await_values(std::slice::from_ref(&done));
                assert!(done.is_concrete());
                let counts = counts.iter().map(|c| c.load(Ordering::Relaxed));
                assert!(counts.eq((0..total).map(|_| 1)), "{sizes:?} of {total}");
            }
        }
        queue.quiesce();
    }
}

#[test]
fn a_block_that_fails_fails_the_loop() {
    for queue in queues() {
        for panics in [false, true] {
            let done = parallel_for_async(&queue, 50, BlockSizes::Fixed(1), move |range| {
                assert!(!panics || range.start != 30, "block 30");
                match range.start {
                    20 if !panics => AsyncValue::new_error(internal!("block 20")),
                    _ => AsyncValue::new(Chain),
                }
            });
            queue.await_values(std::slice::from_ref(&done));
            let error = done.error().expect("an error").status.to_string();
            let wanted = if panics { "panicked" } else { "block 20" };
            assert!(error.contains(wanted), "{error}");
        }
        queue.quiesce();
    }
}

/// Counts itself and adds `fan` tasks to the queue that do the same, one level less deep.
fn grow(queue: &Arc<MultiThreadedWorkQueue>, count: &Arc<AtomicUsize>, depth: usize, fan: usize) {
    count.fetch_add(1, Ordering::Relaxed);
    for i in (0..fan).take_while(|_| depth > 0) {
        let (of_task, count) = (queue.clone(), count.clone());
        queue.add_task(Box::new(move || {
            if i % 4 == 0 {
                of_task.parallelism().run_blocks(5, &|_| {});
            }
            grow(&of_task, &count, depth - 1, fan);
        }));
    }
}

#[test]
fn what_overflows_is_run_too() {
    for n in [1, 2, 3] {
        let queue = Arc::new(MultiThreadedWorkQueue::new(n, 0));
        let count = Arc::new(AtomicUsize::new(0));
        std::thread::scope(|s| {
            s.spawn(|| grow(&queue, &count, 2, 100));
            s.spawn(|| grow(&queue, &count, 1, 9000));
            let (of_task, of_count) = (queue.clone(), count.clone());
            queue.add_task(Box::new(move || grow(&of_task, &of_count, 1, 20_000)));
        });
        queue.quiesce();
        let wanted = (1 + 100 + 100 * 100) + 9001 + 20_001;
        assert_eq!(count.load(Ordering::Relaxed), wanted, "{n} threads");
    }
}

#[test]
fn what_overflows_runs_at_once_and_is_waited_for() {
    let queue = Arc::new(MultiThreadedWorkQueue::new(1, 0));
    let (is_busy, busy) = mpsc::channel();
    let (go_on, may_go_on) = mpsc::channel::<()>();
    queue.add_task(Box::new(move || {
        let _ = is_busy.send(());
        let _ = may_go_on.recv();
    }));
    busy.recv().expect("the worker runs the task");
    for _ in 0..1024 {
        queue.add_task(Box::new(|| {}));
    }
    let done = Arc::new(AtomicBool::new(false));
    let (is_running, running) = mpsc::channel();
    let (of_other, is_done) = (queue.clone(), done.clone());
    let other = std::thread::spawn(move || {
        of_other.add_task(Box::new(move || {
            let _ = is_running.send(());
            (0..100).for_each(|_| std::thread::yield_now());
            is_done.store(true, Ordering::Release);
        }));
    });
    running.recv().expect("it does not wait for the worker");
    let _ = go_on.send(());
    queue.quiesce();
    assert!(done.load(Ordering::Acquire));
    other.join().expect("no panic");
    // A panic does not propagate.
    queue.add_task(Box::new(|| panic!("a task panics")));
    queue.quiesce();
}
