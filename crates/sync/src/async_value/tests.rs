//! Tests of values: states, order of waiters, ownership.

use super::*;
use ferroflow_base::internal;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

#[test]
fn a_value_becomes_available_once() {
    let (promise, value) = Promise::<String>::new();
    let value: AsyncValue = value.into();
    assert_eq!(value.state(), ValueState::Unconstructed);
    let mut constructed = promise.construct("a".to_string());
    assert_eq!(
        (value.state(), value.get::<String>()),
        (ValueState::Constructed, None)
    );
    constructed.get_mut().expect("ours").push('b');
    constructed.set_state_concrete();
    assert_eq!(value.get::<String>().map(String::as_str), Some("ab"));
    assert_eq!(value.get::<i32>(), None);
    assert!(value.expect::<i32>().is_err());
}

#[test]
fn who_gives_up_leaves_an_error() {
    let (promise, value) = Promise::<String>::new();
    drop(promise);
    assert!(value.error().is_some());
    let (promise, value) = Promise::<String>::new();
    drop(promise.construct("x".into()));
    assert!(value.error().is_some());
    let (promise, value) = IndirectPromise::new();
    drop(promise);
    assert!(value.error().is_some() && value.is_error());
}

#[test]
fn indirect_values_stand_for_others_through_any_chain() {
    let (p1, v1) = IndirectPromise::new();
    let (p2, v2) = IndirectPromise::new();
    let (p3, v3) = Promise::<i32>::new();
    p1.forward_to(v2.clone());
    p2.forward_to(v3.into());
    assert!(v1.is_unresolved_indirect());
    p3.emplace(5);
    assert_eq!((v1.get::<i32>(), v2.get::<i32>()), (Some(&5), Some(&5)));
    assert!(v1.direct().is_same(v2.direct()));
}

#[test]
fn only_a_sole_owner_may_change_a_value() {
    let mut a = AsyncValue::new(vec![1]);
    a.get_mut::<Vec<i32>>().expect("unique").push(2);
    let b = a.clone();
    assert!(!a.is_unique() && a.get_mut::<Vec<i32>>().is_none());
    drop(b);
    let (p, mut i) = IndirectPromise::new();
    p.forward_to(a);
    assert_eq!(i.get_mut::<Vec<i32>>().map(|v| v.len()), Some(2));
    let c = i.direct().clone();
    assert!(!i.is_unique());
    drop(c);
    assert!(i.is_unique());
}

#[test]
fn waiters_of_all_sizes_run_once_or_are_dropped() {
    struct Drops(Arc<AtomicUsize>);
    impl Drop for Drops {
        fn drop(&mut self) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }
    let drops = Arc::new(AtomicUsize::new(0));
    let runs = Arc::new(AtomicUsize::new(0));
    let check = |set: bool| {
        let (promise, value) = Promise::<u8>::new();
        for big in [false, true] {
            let (d, r) = (Drops(drops.clone()), runs.clone());
            let ballast = [1usize; 20];
            match big {
                false => value.and_then(move || {
                    let _d = &d;
                    r.fetch_add(1, Ordering::Relaxed);
                }),
                true => value.and_then(move || {
                    let _d = &d;
                    r.fetch_add(ballast[3], Ordering::Relaxed);
                }),
            }
        }
        match set {
            true => promise.emplace(1),
            false => drop(promise),
        }
    };
    check(true);
    assert_eq!(
        (runs.load(Ordering::Relaxed), drops.load(Ordering::Relaxed)),
        (2, 2)
    );
    check(false);
    assert_eq!(
        (runs.load(Ordering::Relaxed), drops.load(Ordering::Relaxed)),
        (4, 4)
    );
}

#[test]
fn a_chain_of_a_million_waiters_needs_no_stack() {
    let thread = std::thread::Builder::new().stack_size(256 << 10);
    let run = thread.spawn(|| {
        let (first, mut last) = Promise::<u64>::new();
        for _ in 0..1_000_000 {
            let (next, value) = Promise::<u64>::new();
            let from = last.clone();
            last.and_then(move || next.emplace(from.get().copied().unwrap_or(0) + 1));
            last = value;
        }
        first.emplace(0);
        last.get().copied()
    });
    assert_eq!(
        run.expect("thread").join().expect("no overflow"),
        Some(1_000_000)
    );
}

#[test]
fn readers_race_with_the_writer() {
    for _ in 0..200 {
        let (promise, value) = Promise::<Arc<usize>>::new();
        let payload = Arc::new(9);
        let sum = Arc::new(AtomicUsize::new(0));
        std::thread::scope(|s| {
            for _ in 0..3 {
                s.spawn(|| {
                    for _ in 0..10 {
                        let (v, sum) = (value.clone(), sum.clone());
                        value.and_then(move || {
                            sum.fetch_add(v.get().map_or(0, |x| **x), Ordering::Relaxed);
                        });
                    }
                });
            }
            s.spawn(|| promise.emplace(payload.clone()));
        });
        assert_eq!(sum.load(Ordering::Relaxed), 270);
        assert_eq!(value.as_value().refs(), 1);
        drop(value);
        assert_eq!(Arc::strong_count(&payload), 1);
    }
}

#[test]
fn payloads_of_any_alignment_can_fail() {
    #[repr(align(64))]
    struct Wide(#[allow(dead_code, reason = "only its place matters")] u8);
    for fail in [false, true] {
        let (promise, value) = Promise::<Wide>::new();
        match fail {
            true => promise.set_error(ferroflow_base::internal!("no")),
            false => promise.emplace(Wide(1)),
        }
        assert_eq!(
            value.error().map(|e| e.status.message().to_string()),
            fail.then(|| "no".into())
        );
        assert_eq!(value.get().is_none(), fail);
    }
}

/// Panics when it is dropped for the first time.
struct Unhappy(Vec<u8>, Arc<AtomicUsize>);

impl Drop for Unhappy {
    fn drop(&mut self) {
        assert_eq!(self.0.len(), 3);
        if self.1.fetch_add(1, Ordering::Relaxed) == 0 {
            panic!("dropped");
        }
    }
}

#[test]
fn a_value_whose_drop_panics_is_dropped_once() {
    let count = Arc::new(AtomicUsize::new(0));
    let (promise, value) = Promise::<Unhappy>::new();
    let constructed = promise.construct(Unhappy(vec![1; 3], count.clone()));
    let failing = std::panic::AssertUnwindSafe(|| constructed.set_error(internal!("no")));
    assert!(std::panic::catch_unwind(failing).is_err());
    assert!(value.error().is_some());
    drop(value);
    assert_eq!(count.load(Ordering::Relaxed), 1);
}

#[test]
fn many_late_lists_take_their_turns() {
    // A longer chain of values than may nest; behind the last one, many that set others.
    let (first, value) = IndirectPromise::new();
    let mut last = value;
    for _ in 0..47 {
        let (promise, value) = IndirectPromise::new();
        promise.forward_to(last);
        last = value;
    }
    let count = Arc::new(AtomicUsize::new(0));
    for _ in 0..1000 {
        let (promise, value) = Promise::<i32>::new();
        let count = count.clone();
        AsyncValue::from(value).and_then(move || {
            count.fetch_add(1, Ordering::Relaxed);
        });
        last.and_then(move || promise.emplace(1));
    }
    first.forward_to(AsyncValue::new(1i32));
    assert_eq!(count.load(Ordering::Relaxed), 1000);
}

#[test]
fn a_future_waits_once_however_often_it_is_polled() {
    use std::future::Future;
    use std::task::{Context, Poll, Wake, Waker};
    #[derive(Default)]
    struct Count(AtomicUsize);
    impl Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }
    let (promise, value) = Promise::<i32>::new();
    let value = AsyncValue::from(value);
    let (old, new) = (Arc::new(Count::default()), Arc::new(Count::default()));
    let mut ready = std::pin::pin!(value.ready());
    for count in [&old, &old, &new, &new] {
        let waker = Waker::from(count.clone());
        let polled = ready.as_mut().poll(&mut Context::from_waker(&waker));
        assert_eq!(polled, Poll::Pending);
    }
    promise.emplace(1);
    let woken = [old, new].map(|c| c.0.load(Ordering::Relaxed));
    assert_eq!(woken, [0, 1]);
    let waker = Waker::noop();
    assert_eq!(
        ready.as_mut().poll(&mut Context::from_waker(waker)),
        Poll::Ready(())
    );
}
