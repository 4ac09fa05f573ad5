//! The values and counts of an execution whose order nobody knows.

use ferroflow_host_context::{Operand, Register, Values};
use ferroflow_program::bef::{Body, Kernel};
use ferroflow_sync::{AsyncValue, IndirectPromise, Shares};
use smallvec::SmallVec;

/// Kernels that are ready, by number from 1.
pub(super) type Ready = SmallVec<[u32; 8]>;

/// The other ends of values that somebody asked for before they were there, by register: few, if
/// any.
#[derive(Default)]
pub(super) struct Promises(Vec<(usize, IndirectPromise)>);

impl Promises {
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn has(&self, register: usize) -> bool {
        self.0.iter().any(|(r, _)| *r == register)
    }

    pub(super) fn insert(&mut self, register: usize, promise: IndirectPromise) {
        self.0.push((register, promise));
    }

    /// Keeps the promise of a register that has its value now.
    pub(super) fn keep(&mut self, register: usize, value: &Register) {
        if let (Some(promise), Some(value)) = (self.remove(register), value) {
            promise.forward_to(value.clone());
        }
    }

    fn remove(&mut self, register: usize) -> Option<IndirectPromise> {
        let i = self.0.iter().position(|(r, _)| *r == register)?;
        Some(self.0.swap_remove(i).1)
    }
}

pub(super) struct Registers {
    slots: Vec<Shares>,
    /// Arguments that each kernel still waits for; the first kernel is number 1.
    waits: Vec<u32>,
    promises: Promises,
}

impl Registers {
    /// Empty ones, for an execution that begins.
    pub(super) fn new(body: &Body) -> Self {
        let readers = body.register_uses().iter();
        Registers {
            slots: readers.map(|n| Shares::for_readers(*n)).collect(),
            waits: body.waits().to_vec(),
            promises: Promises::default(),
        }
    }

    /// The state behind the first `n_run` kernels of the serial order, of which the first `n_stored`
    /// have stored their results; which kernels are ready.
    pub(super) fn behind(
        body: &Body,
        n_run: usize,
        n_stored: usize,
        values: &mut [Register],
        promises: Promises,
    ) -> (Self, Ready) {
        let order = body.serial().order();
        let (done, rest) = order.split_at_checked(n_run).unwrap_or((order, &[]));
        let mut left = body.register_uses().to_vec();
        let mut waits = body.waits().to_vec();
        let mut count_down = |users: &[u32]| {
            for user in users {
                if let Some(n) = waits.get_mut(*user as usize) {
                    *n = n.wrapping_sub(1);
                }
            }
        };
        (0..body.n_arguments()).for_each(|i| count_down(body.argument_used_by(i)));
        for (n, id) in done.iter().enumerate() {
            let Some(kernel) = super::engine::kernel(body, *id) else {
                continue;
            };
            let (args, results) = body.operands(kernel);
            for arg in args {
                if let Some(n) = left.get_mut(arg.register()) {
                    *n = n.saturating_sub(1);
                }
            }
            if n < n_stored {
                (0..results.len()).for_each(|i| count_down(body.used_by(kernel, i)));
            }
        }
        // A kernel that is not strict may have got more than it waited for.
        let is_ready = |id: &&u32| waits.get(**id as usize).is_some_and(|n| *n as i32 <= 0);
        let mut ready: Ready = rest.iter().filter(is_ready).copied().collect();
        // It may only be ready because constants come first: others have their turn before it.
        ready.sort_by_key(|id| super::engine::kernel(body, *id).is_some_and(|k| k.non_strict));
        let slot = |(n, value): (u32, &mut Register)| {
            let mut slot = Shares::for_readers(n);
            if let Some(value) = value.take() {
                let _ = slot.set(value);
            }
            slot
        };
        let slots = left.into_iter().zip(values).map(slot).collect();
        let registers = Registers {
            slots,
            waits,
            promises,
        };
        (registers, ready)
    }

    /// The value for one of its readers; the last one moves it out.
    #[inline]
    pub(super) fn take(&mut self, operand: Operand) -> AsyncValue {
        let slot = self.slots.get_mut(operand.register());
        match slot.and_then(Shares::take) {
            Some(value) => value,
            None => self.promise(operand.register()),
        }
    }

    #[cold]
    fn promise(&mut self, register: usize) -> AsyncValue {
        let (promise, value) = IndirectPromise::new();
        if let Some(slot) = self.slots.get_mut(register)
            && slot.set(value).is_ok()
        {
            self.promises.insert(register, promise);
            if let Some(value) = slot.take() {
                return value;
            }
        }
        AsyncValue::new_error(ferroflow_base::internal!(
            "the register has no more readers"
        ))
    }

    pub(super) fn take_all(&mut self, operands: &[Operand]) -> Values {
        operands.iter().map(|o| self.take(*o)).collect()
    }

    /// Stores a value; gives it back if somebody was promised it or nobody reads it.
    #[inline]
    pub(super) fn set(&mut self, register: usize, value: AsyncValue) -> Option<Unstored> {
        if !self.promises.is_empty()
            && let Some(promise) = self.promises.remove(register)
        {
            return Some(Unstored {
                promise: Some(promise),
                value,
            });
        }
        let unread = match self.slots.get_mut(register) {
            Some(slot) => slot.set(value).err(),
            None => Some(value),
        };
        unread.map(|value| Unstored {
            promise: None,
            value,
        })
    }

    /// Stores result `i` of a kernel, which is there, and counts down who reads it.
    #[inline]
    pub(super) fn store(
        &mut self,
        body: &Body,
        kernel: &Kernel,
        i: usize,
        value: AsyncValue,
        ready: &mut Ready,
    ) -> Option<Unstored> {
        let register = body.results(kernel).get(i);
        let unstored = self.set(register.map_or(usize::MAX, |r| r.register()), value);
        self.count_down(body.used_by(kernel, i), ready);
        unstored
    }

    /// One argument less for each of `users`; those that wait for nothing more become `ready`.
    #[inline]
    pub(super) fn count_down(&mut self, users: &[u32], ready: &mut Ready) {
        for user in users {
            if let Some(n) = self.waits.get_mut(*user as usize) {
                *n = n.wrapping_sub(1);
                if *n == 0 {
                    ready.push(*user);
                }
            }
        }
    }
}

/// A value that no register keeps. Forwarding and dropping it may run anything: never under a lock.
pub(super) struct Unstored {
    /// Who was promised the value.
    pub(super) promise: Option<IndirectPromise>,
    pub(super) value: AsyncValue,
}

impl Unstored {
    /// Gives the value to whom it was promised.
    pub(super) fn settle(self) {
        if let Some(promise) = self.promise {
            promise.forward_to(self.value);
        }
    }
}
