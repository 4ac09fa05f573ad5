//! [`StepTable`]: the steps in progress, and the numbers of those that ended lately.

use crate::atomic::{Mutex, MutexGuard};
use ferroflow_base::Status;
use rustc_hash::{FxHashMap, FxHashSet};
use std::collections::VecDeque;
use std::sync::{Arc, PoisonError};

/// What a [`StepTable`] keeps.
pub trait Step {
    /// Ends all waits of the step, present and future.
    fn abort(&self, reason: Status);
}

/// Steps by number, begun by the first call that names one: it runs a part, or asks for a value. A step is removed
/// when it is ended, and its number is remembered for a while: a call that asks for a value of it later is refused,
/// since nothing would end the wait. No lock is held while a step is aborted.
///
/// A call that runs a part [gets](Self::get) the step, and [leaves](Self::leave) it at its end: the order to end a
/// step may overtake the call, which then began a step that nothing else removes.
///
/// ```
/// use ferroflow_base::{Status, aborted};
/// use ferroflow_sync::{Exchange, Step, StepTable};
/// struct Part(Exchange<i32>);
/// impl Step for Part {
///     fn abort(&self, reason: Status) {
///         self.0.abort(reason);
///     }
/// }
/// let table = StepTable::new(100);
/// let new = || Part(Exchange::default());
/// let step = table.get(7, new);
/// assert!(table.begin(7, new).is_some());
/// table.end(7, || aborted!("over"));
/// assert!(step.0.send("x", 1).is_err());
/// assert!(table.begin(7, new).is_none());
/// ```
pub struct StepTable<S> {
    state: Mutex<State<S>>,
    /// Most numbers that are remembered.
    remembered: usize,
}

struct State<S> {
    steps: FxHashMap<u64, Arc<S>>,
    ended: FxHashSet<u64>,
    /// The ended ones, the oldest first.
    order: VecDeque<u64>,
}

impl<S: Step> StepTable<S> {
    /// Returns a table without steps that remembers the numbers of `remembered` ended ones.
    pub fn new(remembered: usize) -> Self {
        StepTable {
            state: Mutex::new(State {
                steps: FxHashMap::default(),
                ended: FxHashSet::default(),
                order: VecDeque::new(),
            }),
            remembered,
        }
    }

    fn lock(&self) -> MutexGuard<'_, State<S>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns a step, a new one if it is not in progress.
    pub fn get(&self, number: u64, new: impl FnOnce() -> S) -> Arc<S> {
        let begin = || Arc::new(new());
        let mut state = self.lock();
        state.steps.entry(number).or_insert_with(begin).clone()
    }

    /// Returns a step, a new one if it is not in progress; `None` if it was ended.
    pub fn begin(&self, number: u64, new: impl FnOnce() -> S) -> Option<Arc<S>> {
        let begin = || Arc::new(new());
        let mut state = self.lock();
        match state.ended.contains(&number) {
            true => None,
            false => Some(state.steps.entry(number).or_insert_with(begin).clone()),
        }
    }

    /// Ends a call that [got](Self::get) the step: ends this one, too, if it began after the end of its number.
    pub fn leave(&self, number: u64, reason: impl FnOnce() -> Status) {
        let late = {
            let mut state = self.lock();
            match state.ended.contains(&number) {
                true => state.steps.remove(&number),
                false => None,
            }
        };
        if let Some(late) = late {
            late.abort(reason());
        }
    }

    /// Returns whether a number is remembered as that of an ended step.
    pub fn is_ended(&self, number: u64) -> bool {
        self.lock().ended.contains(&number)
    }

    /// Ends a step: removes it, remembers its number and aborts it.
    pub fn end(&self, number: u64, reason: impl FnOnce() -> Status) {
        let removed = {
            let mut state = self.lock();
            if state.ended.insert(number) {
                state.order.push_back(number);
            }
            if state.order.len() > self.remembered
                && let Some(oldest) = state.order.pop_front()
            {
                state.ended.remove(&oldest);
            }
            state.steps.remove(&number)
        };
        if let Some(removed) = removed {
            removed.abort(reason());
        }
    }

    /// Ends the step of this number, if there is one, and begins another one that has it.
    pub fn renew(
        &self,
        number: u64,
        new: impl FnOnce() -> S,
        reason: impl FnOnce() -> Status,
    ) -> Arc<S> {
        let renewed = Arc::new(new());
        let removed = {
            let mut state = self.lock();
            state.ended.remove(&number);
            state.steps.insert(number, renewed.clone())
        };
        if let Some(removed) = removed {
            removed.abort(reason());
        }
        renewed
    }

    /// Returns the steps in progress that `picked` selects, with their numbers.
    pub fn select(&self, picked: impl Fn(&S) -> bool) -> Vec<(u64, Arc<S>)> {
        let state = self.lock();
        let of = state.steps.iter().filter(|(_, step)| picked(step));
        of.map(|(number, step)| (*number, step.clone())).collect()
    }

    /// Returns the number of steps in progress.
    pub fn len(&self) -> usize {
        self.lock().steps.len()
    }

    /// Returns whether no step is in progress.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Exchange;
    use ferroflow_base::aborted;

    struct Part(Exchange<usize>);

    impl Step for Part {
        fn abort(&self, reason: Status) {
            self.0.abort(reason);
        }
    }

    fn part() -> Part {
        Part(Exchange::default())
    }

    #[test]
    fn ended_numbers_are_remembered_for_a_while() {
        let table = StepTable::new(2);
        for number in 1..=3 {
            let step = table.get(number, part);
            table.end(number, || aborted!("over"));
            assert!(step.0.send("x", 1).is_err());
        }
        let known = [1, 2, 3].map(|number| table.begin(number, part).is_none());
        assert_eq!(known, [false, true, true]);
        assert_eq!(table.len(), 1);
    }

    #[test]
    fn a_step_that_begins_after_its_end_is_removed_by_its_call() {
        let table = StepTable::new(2);
        table.end(1, || aborted!("over"));
        let late = table.get(1, part);
        table.leave(1, || aborted!("late"));
        assert!(late.0.send("x", 1).is_err() && table.is_empty());
        // One that was not ended stays for those that ask for its values.
        drop(table.get(2, part));
        table.leave(2, || aborted!("late"));
        assert_eq!(table.len(), 1);
    }

    #[test]
    fn a_renewed_step_has_nothing_of_the_old_one() {
        let table = StepTable::new(2);
        let old = table.get(1, part);
        old.0.send("x", 1).expect("in progress");
        table.end(1, || aborted!("over"));
        let new = table.renew(1, part, || aborted!("renewed"));
        assert!(new.0.is_empty() && old.0.send("x", 2).is_err());
        let found = table.begin(1, part).expect("in progress");
        assert!(Arc::ptr_eq(&found, &new));
        let newer = table.renew(1, part, || aborted!("renewed"));
        assert!(new.0.send("x", 3).is_err() && newer.0.is_empty());
        let of_newer = table.select(|step| std::ptr::eq(step, &*newer));
        assert_eq!((of_newer.len(), table.len()), (1, 1));
    }
}
