//! Models of the protocols of `AsyncValue` and `Owned`, run by loom over every order of their atomic steps.
//!
//! `cargo xtask loom` runs them; without `--cfg loom` this file is empty.
#![cfg(loom)]

use ferroflow_sync::{AsyncValue, IndirectPromise, Owned, Promise};
use loom::sync::Arc;
use loom::sync::atomic::{AtomicUsize, Ordering};
use loom::thread;

fn check(f: impl Fn() + Sync + Send + 'static) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(f);
}

/// Every thread adds its number to the state, or leaves that to the owner.
fn add(sum: &Owned<usize, usize>, n: usize) {
    sum.send(n);
    while let Some(mut total) = sum.try_own() {
        *total += sum.messages().into_iter().sum::<usize>();
        if !sum.release(total) {
            break;
        }
    }
}

#[test]
fn an_owner_leaves_no_message_behind() {
    check(|| {
        let sum = Arc::new(Owned::new(0));
        let threads: Vec<_> = [1, 2]
            .map(|n| {
                let sum = sum.clone();
                thread::spawn(move || add(&sum, n))
            })
            .into();
        add(&sum, 4);
        threads
            .into_iter()
            .for_each(|t| t.join().expect("no panic"));
        assert_eq!(*sum.lock(), 7);
    });
}

#[test]
fn every_waiter_runs_once_and_sees_the_value() {
    check(|| {
        let (promise, value) = Promise::<usize>::new();
        let sum = Arc::new(AtomicUsize::new(0));
        let waiters: Vec<_> = (0..2)
            .map(|_| {
                let (value, sum) = (value.clone(), sum.clone());
                thread::spawn(move || {
                    let seen = value.clone();
                    value.and_then(move || {
                        sum.fetch_add(seen.get().copied().unwrap_or(100), Ordering::Relaxed);
                    });
                })
            })
            .collect();
        promise.emplace(1);
        for waiter in waiters {
            waiter.join().expect("no panic");
        }
        assert_eq!(sum.load(Ordering::Relaxed), 2);
    });
}

#[test]
fn the_last_handle_drops_the_payload_once() {
    check(|| {
        struct Payload(Arc<AtomicUsize>);
        impl Drop for Payload {
            fn drop(&mut self) {
                self.0.fetch_add(1, Ordering::Relaxed);
            }
        }
        let drops = Arc::new(AtomicUsize::new(0));
        let value = AsyncValue::new(Payload(drops.clone()));
        let other = value.clone();
        let thread = thread::spawn(move || drop(other));
        drop(value);
        thread.join().expect("no panic");
        assert_eq!(drops.load(Ordering::Relaxed), 1);
    });
}

#[test]
fn a_value_forwarded_through_two_indirect_ones_arrives() {
    check(|| {
        let (first, end) = IndirectPromise::new();
        let (second, middle) = IndirectPromise::new();
        let (promise, start) = Promise::<usize>::new();
        let a = thread::spawn(move || first.forward_to(middle));
        let b = thread::spawn(move || second.forward_to(start.into()));
        promise.emplace(7);
        a.join().expect("no panic");
        b.join().expect("no panic");
        assert_eq!(end.get::<usize>(), Some(&7));
    });
}

#[test]
fn a_unique_owner_is_alone() {
    check(|| {
        let mut value = AsyncValue::new(1usize);
        let other = value.clone();
        let thread = thread::spawn(move || other.get::<usize>().copied());
        // When it is unique the reader is gone, so it has read the old number.
        if let Some(number) = value.get_mut::<usize>() {
            *number = 2;
        }
        assert_eq!(thread.join().expect("no panic"), Some(1));
    });
}

#[test]
fn a_writer_that_gives_up_wakes_its_waiters() {
    check(|| {
        let (promise, value) = Promise::<usize>::new();
        let runs = Arc::new(AtomicUsize::new(0));
        let count = runs.clone();
        let thread = thread::spawn(move || {
            let seen = value.clone();
            value.and_then(move || {
                assert!(seen.error().is_some());
                count.fetch_add(1, Ordering::Relaxed);
            })
        });
        drop(promise);
        thread.join().expect("no panic");
        assert_eq!(runs.load(Ordering::Relaxed), 1);
    });
}
