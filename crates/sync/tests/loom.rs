//! Models of the protocols of values, mailboxes, deques, sleeping threads, cancellation, exchanges and steps, run
//! by loom over every order of their atomic steps.
//!
//! `cargo xtask loom` runs them; without `--cfg loom` this file is empty.
#![cfg(loom)]

use ferroflow_base::{Status, aborted};
use ferroflow_sync::{
    AsyncValue, CancelToken, Deque, Exchange, Inbox, IndirectPromise, Mailbox, Outstanding,
    Promise, Received, RefBatch, Sleepers, Steal, Stealer, Step, StepTable,
};
use loom::sync::atomic::{AtomicUsize, Ordering};
use loom::sync::{Arc, Mutex};
use loom::thread;

fn check(f: impl Fn() + Sync + Send + 'static) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(f);
}

/// Every thread adds its number to the state, or sends it to the thread that holds the state.
fn add(sum: &Mailbox<usize, usize>, n: usize) {
    sum.send(n);
    while let Some(mut total) = sum.try_lock() {
        *total += sum.messages().into_iter().sum::<usize>();
        if !sum.release(total) {
            break;
        }
    }
}

#[test]
fn an_owner_leaves_no_message_behind() {
    check(|| {
        let sum = Arc::new(Mailbox::new(0));
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
fn a_handle_that_waits_for_itself_arrives() {
    check(|| {
        let (promise, value) = Promise::<usize>::new();
        let seen = Arc::new(AtomicUsize::new(0));
        let sink = seen.clone();
        let waiter = thread::spawn(move || {
            let value: AsyncValue = value.into();
            value.when_available(move |value| {
                let n = value.get::<usize>().copied().unwrap_or(0);
                sink.fetch_add(n, Ordering::SeqCst);
            });
        });
        promise.emplace(7);
        waiter.join().expect("no panic");
        assert_eq!(seen.load(Ordering::SeqCst), 7);
    });
}

#[test]
fn a_batch_of_references_is_counted_at_once() {
    check(|| {
        let payload = Arc::new(AtomicUsize::new(7));
        let mut batch = RefBatch::for_readers(3);
        assert!(batch.set(AsyncValue::new(payload.clone())).is_ok());
        let threads: Vec<_> = [batch.take(), batch.take()]
            .map(|value| {
                thread::spawn(move || {
                    let value = value.expect("not the last reader");
                    let payload = value.get::<Arc<AtomicUsize>>().expect("set");
                    assert_eq!(payload.load(Ordering::Relaxed), 7);
                })
            })
            .into();
        drop(batch);
        threads
            .into_iter()
            .for_each(|t| t.join().expect("no panic"));
        assert_eq!(Arc::strong_count(&payload), 1);
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
        // A unique value has no reader any more, so the reader has read the old number.
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

/// An item of a deque. Loom tracks its payload, so lost and duplicated items are found.
struct Ticket(Arc<AtomicUsize>, usize);

impl Ticket {
    fn take(self) -> usize {
        self.0.fetch_add(1, Ordering::Relaxed);
        self.1
    }
}

/// Steals until nothing is left.
fn steal_all(thief: &Stealer<Box<Ticket>>) -> Vec<usize> {
    let mut taken = Vec::new();
    loop {
        match thief.steal() {
            Steal::Item(ticket) => taken.push(ticket.take()),
            Steal::Retry => thread::yield_now(),
            Steal::Empty => return taken,
        }
    }
}

/// The owner pushes `n` tickets into a deque for two, pops one whenever `pops` returns true, and
/// pops the rest at the end, while `n_thieves` threads steal. Every ticket is taken once.
fn check_deque(n: usize, pops: fn(usize) -> bool, n_thieves: usize) {
    check(move || {
        let count = Arc::new(AtomicUsize::new(0));
        let deque = Deque::new(2);
        let thieves: Vec<_> = (0..n_thieves)
            .map(|_| {
                let thief = deque.stealer();
                thread::spawn(move || steal_all(&thief))
            })
            .collect();
        let mut taken = Vec::new();
        for i in 0..n {
            if let Err(ticket) = deque.push(Box::new(Ticket(count.clone(), i))) {
                taken.push(ticket.take());
            }
            if pops(i) {
                taken.extend(deque.pop().map(|t| t.take()));
            }
        }
        taken.extend(std::iter::from_fn(|| deque.pop()).map(|t| t.take()));
        for thief in thieves {
            taken.extend(thief.join().expect("no panic"));
        }
        taken.sort_unstable();
        assert!(taken.into_iter().eq(0..n));
        assert_eq!(count.load(Ordering::Relaxed), n);
    });
}

#[test]
fn owner_and_thief_do_not_both_take_the_last_item() {
    check_deque(1, |_| true, 1);
    check_deque(2, |_| true, 1);
}

#[test]
fn two_thieves_and_the_owner_take_each_item_once() {
    check_deque(2, |_| false, 2);
}

#[test]
fn a_ring_that_goes_round_keeps_its_items() {
    check_deque(4, |i| i == 1, 1);
    check_deque(5, |_| false, 1);
}

/// A minimal pool: a queue, its sleepers, and the count of outstanding tasks.
#[derive(Default)]
struct Small {
    queue: Inbox<usize>,
    sleepers: Sleepers,
    outstanding: Outstanding,
    done: Mutex<Vec<usize>>,
}

impl Small {
    fn push(&self, task: usize) {
        self.outstanding.begin();
        self.queue.push(task);
        self.sleepers.wake(false);
    }

    fn has_work(&self) -> bool {
        !self.queue.is_empty()
    }

    /// Runs tasks until none is outstanding; an even task queues the one after it.
    fn quiesce(&self) {
        while !self.outstanding.is_zero() {
            let task = self.queue.pop();
            match task {
                Some(task) => {
                    if task % 2 == 0 {
                        self.push(task + 1);
                    }
                    self.done.lock().expect("no panic").push(task);
                    if self.outstanding.end() {
                        self.sleepers.wake(true);
                    }
                }
                None => {
                    let something = || self.has_work() || self.outstanding.is_zero();
                    self.sleepers.sleep(something);
                }
            }
        }
    }
}

#[test]
fn a_sleeper_is_woken_by_work_that_comes_as_it_falls_asleep() {
    check(|| {
        let (deque, sleepers) = (Deque::<Box<Ticket>>::new(2), Arc::new(Sleepers::default()));
        let (thief, sleeper) = (deque.stealer(), sleepers.clone());
        let thread = thread::spawn(move || {
            loop {
                match thief.steal() {
                    Steal::Item(ticket) => return ticket.take(),
                    Steal::Retry => thread::yield_now(),
                    Steal::Empty => sleeper.sleep(|| !thief.is_empty()),
                }
            }
        });
        let ticket = Box::new(Ticket(Arc::new(AtomicUsize::new(0)), 7));
        assert!(deque.push(ticket).is_ok());
        sleepers.wake(false);
        assert_eq!(thread.join().expect("no panic"), 7);
    });
}

#[test]
fn two_sleepers_share_what_comes() {
    check(|| {
        let pool = Arc::new(Small::default());
        let threads: Vec<_> = (0..2)
            .map(|_| {
                let pool = pool.clone();
                thread::spawn(move || {
                    loop {
                        let task = pool.queue.pop();
                        if let Some(task) = task {
                            return task;
                        }
                        pool.sleepers.sleep(|| pool.has_work());
                    }
                })
            })
            .collect();
        pool.push(1);
        pool.push(3);
        let sum: usize = threads
            .into_iter()
            .map(|t| t.join().expect("no panic"))
            .sum();
        assert_eq!(sum, 4);
    });
}

#[test]
fn quiesce_waits_for_what_tasks_queue() {
    check(|| {
        let pool = Arc::new(Small::default());
        pool.push(2);
        let helper = pool.clone();
        let thread = thread::spawn(move || helper.quiesce());
        pool.quiesce();
        let mut done = pool.done.lock().expect("no panic").clone();
        done.sort_unstable();
        assert_eq!(done, [2, 3]);
        thread.join().expect("no panic");
    });
}

#[test]
fn a_callback_runs_once_or_was_taken_back() {
    check(|| {
        let runs = Arc::new(AtomicUsize::new(0));
        let token = CancelToken::new();
        let canceller = token.clone();
        let thread = thread::spawn(move || canceller.cancel());
        let count = runs.clone();
        let kept = token.on_cancel(move || {
            count.fetch_add(1, Ordering::SeqCst);
        });
        let count = runs.clone();
        drop(token.on_cancel(move || {
            count.fetch_add(10, Ordering::SeqCst);
        }));
        thread.join().expect("no panic");
        assert!(token.check().is_err());
        // The first always runs; the second only if the cancellation came before it was dropped.
        assert!(matches!(runs.load(Ordering::SeqCst), 1 | 11));
        drop(kept);
    });
}

#[test]
fn two_that_cancel_run_a_callback_once() {
    check(|| {
        let runs = Arc::new(AtomicUsize::new(0));
        let token = CancelToken::new();
        let count = runs.clone();
        let kept = token.on_cancel(move || {
            count.fetch_add(1, Ordering::SeqCst);
        });
        let other = token.clone();
        let thread = thread::spawn(move || other.cancel());
        token.cancel();
        thread.join().expect("no panic");
        assert_eq!(runs.load(Ordering::SeqCst), 1);
        drop(kept);
    });
}

/// What a model counts of the receivers of a key.
#[derive(Clone, Default)]
struct Got {
    values: Arc<AtomicUsize>,
    refused: Arc<AtomicUsize>,
}

impl Got {
    /// A receiver that may be called once.
    fn receiver(&self) -> Received<usize> {
        let got = self.clone();
        Box::new(move |received| match received {
            Ok(value) => drop(got.values.fetch_add(value, Ordering::SeqCst)),
            Err(_) => drop(got.refused.fetch_add(1, Ordering::SeqCst)),
        })
    }

    fn count(&self) -> (usize, usize) {
        let read = |n: &Arc<AtomicUsize>| n.load(Ordering::SeqCst);
        (read(&self.values), read(&self.refused))
    }
}

fn over() -> Status {
    aborted!("over")
}

fn join<T>(threads: impl IntoIterator<Item = thread::JoinHandle<T>>) {
    threads
        .into_iter()
        .for_each(|t| drop(t.join().expect("no panic")));
}

#[test]
fn a_value_meets_its_receiver_in_either_order() {
    check(|| {
        let (exchange, got) = (Arc::new(Exchange::default()), Got::default());
        let (receiving, receiver) = (exchange.clone(), got.receiver());
        let other = thread::spawn(move || receiving.recv("x", receiver));
        exchange.send("x", 7).expect("in progress");
        join([other]);
        assert_eq!((got.count(), exchange.len()), ((7, 0), 0));
    });
}

#[test]
fn values_of_one_key_go_to_one_receiver_each() {
    check(|| {
        let exchange = Arc::new(Exchange::default());
        let gots = [Got::default(), Got::default()];
        let receivers = gots.clone().map(|got| {
            let exchange = exchange.clone();
            thread::spawn(move || exchange.recv("x", got.receiver()))
        });
        for value in [1, 2] {
            exchange.send("x", value).expect("in progress");
        }
        join(receivers);
        let mut values = gots.map(|got| got.count().0);
        values.sort_unstable();
        assert_eq!((values, exchange.len()), ([1, 2], 0));
    });
}

#[test]
fn an_exchange_that_ends_calls_each_receiver_once() {
    check(|| {
        let (exchange, got) = (Arc::new(Exchange::default()), Got::default());
        let (receiving, receiver) = (exchange.clone(), got.receiver());
        let (sending, ending) = (exchange.clone(), exchange.clone());
        let threads = [
            thread::spawn(move || receiving.recv("x", receiver)),
            // A sender learns that it is over, or its value is received or dropped.
            thread::spawn(move || drop(sending.send("x", 7))),
        ];
        ending.abort(over());
        join(threads);
        assert!(matches!(got.count(), (7, 0) | (0, 1)), "{:?}", got.count());
        assert_eq!(exchange.len(), 0, "nothing is left");
    });
}

/// A step of a table.
#[derive(Default)]
struct Part(Exchange<usize>);

impl Step for Part {
    fn abort(&self, reason: Status) {
        self.0.abort(reason);
    }
}

#[test]
fn a_step_ends_whether_its_call_or_its_end_comes_first() {
    check(|| {
        let (table, got) = (Arc::new(StepTable::new(4)), Got::default());
        let (calls, receiver) = (table.clone(), got.receiver());
        // The call waits for a value that is not sent.
        let call = thread::spawn(move || {
            calls.get(1, Part::default).0.recv("x", receiver);
            calls.leave(1, over);
        });
        table.end(1, over);
        join([call]);
        assert_eq!((got.count(), table.len()), ((0, 1), 0));
    });
}

#[test]
fn a_call_that_asks_for_a_value_is_answered_or_refused() {
    check(|| {
        let (table, got) = (Arc::new(StepTable::new(4)), Got::default());
        let (calls, asks) = (table.clone(), table.clone());
        let receiver = got.receiver();
        let threads = [
            thread::spawn(move || {
                // Fails if the step was ended first.
                drop(calls.get(1, Part::default).0.send("x", 7));
                calls.leave(1, over);
            }),
            thread::spawn(move || match asks.begin(1, Part::default) {
                Some(step) => step.0.recv("x", receiver),
                None => receiver(Err(over())),
            }),
        ];
        table.end(1, over);
        join(threads);
        assert!(matches!(got.count(), (7, 0) | (0, 1)), "{:?}", got.count());
        assert_eq!(table.len(), 0, "nothing is left");
    });
}

#[test]
fn a_step_is_ended_once_by_two_that_end_it() {
    check(|| {
        let (table, got) = (Arc::new(StepTable::new(4)), Got::default());
        table.get(1, Part::default).0.recv("x", got.receiver());
        let other = table.clone();
        let thread = thread::spawn(move || other.end(1, over));
        table.end(1, over);
        join([thread]);
        assert_eq!((got.count(), table.len()), ((0, 1), 0));
        assert!(table.begin(1, Part::default).is_none());
    });
}

#[test]
fn a_renewed_step_is_the_only_one_of_its_number() {
    check(|| {
        let (table, got) = (Arc::new(StepTable::new(4)), Got::default());
        table.get(1, Part::default).0.recv("x", got.receiver());
        let asks = table.clone();
        let late = Got::default();
        let receiver = late.receiver();
        let thread = thread::spawn(move || {
            if let Some(step) = asks.begin(1, Part::default) {
                step.0.recv("y", receiver);
            }
        });
        let renewed = table.renew(1, Part::default, over);
        join([thread]);
        // The receiver of the old step was told; the late one waits in the new one or was told with the old.
        assert_eq!(got.count(), (0, 1));
        assert_eq!(late.count().1 + renewed.0.len(), 1);
        table.end(1, over);
        assert_eq!((late.count(), table.len()), ((0, 1), 0));
    });
}

#[test]
fn a_cancelled_call_ends_its_step() {
    check(|| {
        let (table, got) = (Arc::new(StepTable::new(4)), Got::default());
        let token = CancelToken::new();
        let (calls, receiver) = (table.clone(), got.receiver());
        let asked = token.clone();
        let call = thread::spawn(move || {
            let step = calls.get(1, Part::default);
            let ending = step.clone();
            let registration = asked.on_cancel(move || ending.abort(over()));
            step.0.recv("x", receiver);
            drop(registration);
            calls.leave(1, over);
        });
        token.cancel();
        table.end(1, over);
        join([call]);
        assert_eq!((got.count(), table.len()), ((0, 1), 0));
    });
}
