//! The values and counts of one execution of a function.

use ferroflow_opdef::host::Values;
use ferroflow_program::bef::Body;
use ferroflow_sync::{AsyncValue, IndirectPromise, Shares};
use smallvec::SmallVec;
use std::cell::RefCell;
use std::collections::BTreeMap;

/// Kernels that are ready, by number from 1.
pub(super) type Ready = SmallVec<[u32; 8]>;

/// Boxed, and used again: a call of a small function costs no memory.
#[derive(Default)]
pub(super) struct Registers {
    slots: Vec<Shares>,
    /// Arguments that each kernel still waits for; the first kernel is number 1.
    waits: Vec<u32>,
    /// The other ends of values that somebody asked for before they were there.
    promises: BTreeMap<u32, IndirectPromise>,
    /// Kernels that an execution without a lock will come back to, and how far it is.
    queue: Vec<u32>,
    at: usize,
}

/// Registers that a thread keeps for the next calls.
const MAX_SPARE: usize = 16;
/// Of how many slots at most: what a large function needs is given back.
const MAX_SPARE_SLOTS: usize = 1 << 12;

thread_local! {
    #[allow(clippy::vec_box, reason = "an execution takes the box, too")]
    static SPARE: RefCell<Vec<Box<Registers>>> = const { RefCell::new(Vec::new()) };
}

impl Registers {
    #[inline]
    pub(super) fn new(body: &Body) -> Box<Self> {
        let spare = SPARE.try_with(|spare| spare.borrow_mut().pop());
        let mut this = spare.ok().flatten().unwrap_or_default();
        let readers = body.register_uses().iter();
        this.slots.extend(readers.map(|n| Shares::for_readers(*n)));
        this.waits.extend_from_slice(body.waits());
        this
    }

    /// Gives the memory to the next call on this thread.
    #[inline]
    pub(super) fn recycle(mut self: Box<Self>) {
        if self.slots.capacity() > MAX_SPARE_SLOTS || !self.promises.is_empty() {
            return;
        }
        // What values do when they are dropped may be a call, too: not while `SPARE` is borrowed.
        self.slots.clear();
        self.waits.clear();
        self.queue.clear();
        self.at = 0;
        let _ = SPARE.try_with(|spare| {
            let mut spare = spare.borrow_mut();
            if spare.len() < MAX_SPARE {
                spare.push(self);
            }
        });
    }

    /// The value for one of its readers; the last one moves it out.
    #[inline]
    pub(super) fn take(&mut self, number: u32) -> AsyncValue {
        let value = self.slots.get_mut(number as usize).and_then(Shares::take);
        match value {
            Some(value) => value,
            None => self.promise(number),
        }
    }

    #[cold]
    fn promise(&mut self, number: u32) -> AsyncValue {
        let (promise, value) = IndirectPromise::new();
        if let Some(slot) = self.slots.get_mut(number as usize)
            && slot.set(value).is_ok()
        {
            self.promises.insert(number, promise);
            if let Some(value) = slot.take() {
                return value;
            }
        }
        AsyncValue::new_error(ferroflow_base::internal!(
            "the register has no more readers"
        ))
    }

    #[inline]
    pub(super) fn take_all(&mut self, numbers: &[u32]) -> Values {
        let mut values = Values::new();
        for number in numbers {
            values.push(self.take(*number));
        }
        values
    }

    /// Has a kernel wait for its turn.
    #[inline]
    pub(super) fn queue(&mut self, kernel: u32) {
        self.queue.push(kernel);
    }

    /// Whether a kernel waits for its turn.
    #[inline]
    pub(super) fn has_queued(&self) -> bool {
        self.at < self.queue.len()
    }

    /// The kernel whose turn it is.
    #[inline]
    pub(super) fn next_queued(&mut self) -> Option<u32> {
        let kernel = self.queue.get(self.at).copied()?;
        self.at += 1;
        Some(kernel)
    }

    /// `first` and all kernels that wait for their turn, which wait no more.
    pub(super) fn take_queue(&mut self, first: Option<u32>) -> Ready {
        let rest = self.queue.get(self.at..).unwrap_or(&[]);
        let ready = first.into_iter().chain(rest.iter().copied()).collect();
        self.queue.clear();
        self.at = 0;
        ready
    }

    /// Stores a value; gives it back if somebody was promised it or nobody reads it.
    #[inline]
    pub(super) fn set(&mut self, number: u32, value: AsyncValue) -> Option<Unstored> {
        if !self.promises.is_empty()
            && let Some(promise) = self.promises.remove(&number)
        {
            return Some(Unstored {
                promise: Some(promise),
                value,
            });
        }
        let unread = match self.slots.get_mut(number as usize) {
            Some(slot) => slot.set(value).err(),
            None => Some(value),
        };
        unread.map(|value| Unstored {
            promise: None,
            value,
        })
    }

    /// One argument less for each of `users`; `found` gets those that wait for nothing more.
    #[inline]
    pub(super) fn count_down(&mut self, users: &[u32], mut found: impl FnMut(&mut Self, u32)) {
        for user in users {
            if let Some(n) = self.waits.get_mut(*user as usize) {
                *n = n.wrapping_sub(1);
                if *n == 0 {
                    found(self, *user);
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
