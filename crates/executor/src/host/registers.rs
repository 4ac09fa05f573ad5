//! Values and counts of an execution whose order is dynamic.

use super::engine::Call;
use ferroflow_host_context::{Operand, Register, Values};
use ferroflow_program::bef::{Body, Kernel};
use ferroflow_sync::{AsyncValue, IndirectPromise, RefBatch};
use smallvec::SmallVec;

/// Kernels that are ready, by number from 1.
pub(super) type Ready = SmallVec<[u32; 8]>;

/// The write ends of values that were read before they were computed, by register: few, if any.
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

    /// Forwards the promise of a register, if any, to its value.
    pub(super) fn fulfill(&mut self, register: usize, value: &Register) {
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
    slots: Vec<RefBatch>,
    /// Arguments that each kernel still waits for; the first kernel is number 1.
    waits: Vec<u32>,
    promises: Promises,
}

impl Registers {
    /// Empty registers, for an execution that starts.
    pub(super) fn new(call: Call<'_>) -> Self {
        let readers = call.body.register_uses().iter();
        Registers {
            slots: readers.map(|n| RefBatch::for_readers(*n)).collect(),
            waits: call.waits(),
            promises: Promises::default(),
        }
    }

    /// The state after the first `n_run` kernels of the static schedule, of which the first `n_stored`
    /// have stored their results, and the kernels that are ready.
    pub(super) fn behind(
        call: Call<'_>,
        n_run: usize,
        n_stored: usize,
        values: &mut [Register],
        promises: Promises,
    ) -> (Self, Ready) {
        let body = &**call.body;
        let order = body.schedule().order();
        let (done, rest) = order.split_at_checked(n_run).unwrap_or((order, &[]));
        let mut left = body.register_uses().to_vec();
        let mut waits = call.waits();
        let mut count_down = |users: &[u32]| {
            for user in users {
                if let Some(n) = waits.get_mut(*user as usize) {
                    *n = n.wrapping_sub(1);
                }
            }
        };
        (0..body.n_arguments()).for_each(|i| count_down(body.argument_used_by(i)));
        for (n, id) in done.iter().enumerate() {
            let Some(kernel) = body.kernel(*id) else {
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
        // A non-strict kernel may have got more arguments than it waited for.
        let is_ready = |id: &&u32| waits.get(**id as usize).is_some_and(|n| *n as i32 <= 0);
        let mut ready: Ready = rest.iter().filter(is_ready).copied().collect();
        // It may be ready only because constants come first, so others have their turn before it.
        ready.sort_by_key(|id| body.kernel(*id).is_some_and(|k| k.non_strict));
        let slot = |(n, value): (u32, &mut Register)| {
            let mut slot = RefBatch::for_readers(n);
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
        match slot.and_then(RefBatch::take) {
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

    /// Stores a value; returns it, with its promise if any, where no register keeps it.
    #[inline]
    pub(super) fn set(&mut self, register: usize, value: AsyncValue) -> Option<Forward> {
        if !self.promises.is_empty()
            && let Some(promise) = self.promises.remove(register)
        {
            return Some(Forward {
                promise: Some(promise),
                value,
            });
        }
        let unread = match self.slots.get_mut(register) {
            Some(slot) => slot.set(value).err(),
            None => Some(value),
        };
        unread.map(|value| Forward {
            promise: None,
            value,
        })
    }

    /// Stores result `i` of a kernel, which is available, and counts down its readers.
    #[inline]
    pub(super) fn store(
        &mut self,
        body: &Body,
        kernel: &Kernel,
        i: usize,
        value: AsyncValue,
        ready: &mut Ready,
    ) -> Option<Forward> {
        let register = body.results(kernel).get(i);
        let forward = self.set(register.map_or(usize::MAX, |r| r.register()), value);
        self.count_down(body.used_by(kernel, i), ready);
        forward
    }

    /// Counts an argument of each of `users`; those that wait for no more become `ready`.
    #[inline]
    pub(super) fn count_down(&mut self, users: &[u32], ready: &mut Ready) {
        self.count_down_if(users, |_| true, ready);
    }

    /// As [`Registers::count_down`], for some of `users`.
    #[inline]
    pub(super) fn count_down_if(
        &mut self,
        users: &[u32],
        is_counted: impl Fn(u32) -> bool,
        ready: &mut Ready,
    ) {
        for user in users.iter().filter(|user| is_counted(**user)) {
            if let Some(n) = self.waits.get_mut(*user as usize) {
                *n = n.wrapping_sub(1);
                if *n == 0 {
                    ready.push(*user);
                }
            }
        }
    }
}

/// A value that no register keeps. Forwarding or dropping it may run any code, so never do it under
/// a lock.
pub(super) struct Forward {
    /// The promise that the value fulfills, if any.
    pub(super) promise: Option<IndirectPromise>,
    pub(super) value: AsyncValue,
}

impl Forward {
    /// Forwards the promise to the value.
    pub(super) fn resolve(self) {
        if let Some(promise) = self.promise {
            promise.forward_to(self.value);
        }
    }
}
