//! Task queues: the [`Deque`] of each worker, and the [`Inbox`] for all other threads.
//!
//! The deque is that of Chase and Lev ("Dynamic Circular Work-Stealing Deque", SPAA 2005), with the
//! orderings of Lê, Pop, Cohen and Nardelli ("Correct and Efficient Work-Stealing for Weak Memory
//! Models", PPoPP 2013) and a ring that does not grow. The owner puts and takes at the bottom,
//! thieves take at the top: an item belongs to the thief that moved the top past it.
//!
//! An item is a few words, each read and written atomically, because a thief may read a slot of
//! the ring while the owner puts another item there. The top has moved then, so the thief's own
//! move of it fails, and it discards what it read. A thief whose move succeeds has read the slot
//! before, and the owner sees that move before it reuses the slot.

use crate::atomic::{AtomicPtr, AtomicUsize, Mutex, MutexGuard, Ordering, fence};
use std::cell::Cell;
use std::collections::VecDeque;
use std::marker::PhantomData;
use std::sync::{Arc, PoisonError};

/// Number of words of an item.
pub const WORDS: usize = 3;

/// Words of an item.
pub type Words = [*mut (); WORDS];

/// An item of a deque.
///
/// # Safety
///
/// `from_words` turns the words that `into_words` returned into the same item again, on any thread.
pub unsafe trait Item: Send {
    /// Returns the item as words, which own what it owned.
    fn into_words(self) -> Words;

    /// Returns the item of these words.
    ///
    /// # Safety
    ///
    /// The words are from `into_words` and are converted once.
    unsafe fn from_words(words: Words) -> Self;
}

// SAFETY: the first word is the box, the others nothing.
unsafe impl<T: Send> Item for Box<T> {
    fn into_words(self) -> Words {
        let null = std::ptr::null_mut();
        [Box::into_raw(self).cast(), null, null]
    }

    unsafe fn from_words([item, ..]: Words) -> Self {
        // SAFETY: made above, and used once as the caller promises.
        unsafe { Box::from_raw(item.cast()) }
    }
}

/// Pads to two cache lines, which processors prefetch in pairs, so that what the owner writes and
/// what thieves write do not share one.
#[repr(align(128))]
struct CachePadded<T>(T);

struct Ring<T: Item> {
    /// The position of the oldest item; only grows.
    top: CachePadded<AtomicUsize>,
    /// The position behind the newest item; written by the owner alone.
    bottom: CachePadded<AtomicUsize>,
    /// A power of two of slots; position `i` uses slot `i` modulo their number.
    slots: Box<[[AtomicPtr<()>; WORDS]]>,
    /// Invariant: items put as one type are taken as that type.
    items: PhantomData<Cell<T>>,
}

// SAFETY: all fields are atomics; the items, which are `Send`, are taken once each (module text).
unsafe impl<T: Item> Sync for Ring<T> {}
// SAFETY: as above.
unsafe impl<T: Item> Send for Ring<T> {}

impl<T: Item> Ring<T> {
    fn slot(&self, place: usize) -> &[AtomicPtr<()>; WORDS] {
        &self.slots[place & (self.slots.len() - 1)]
    }

    fn write(&self, place: usize, words: Words) {
        for (slot, word) in self.slot(place).iter().zip(words) {
            slot.store(word, Ordering::Relaxed);
        }
    }

    fn read(&self, place: usize) -> Words {
        let slot = self.slot(place);
        std::array::from_fn(|i| slot[i].load(Ordering::Relaxed))
    }

    /// Returns whether the slot of position `bottom` is still in use.
    fn has_no_room(&self, bottom: usize) -> bool {
        // Acquire: the thief that moved the top has read the slot that is to be reused. Loom does
        // not notice if this is missing, as it runs loads in program order.
        let top = self.top.0.load(Ordering::Acquire);
        distance(top, bottom) >= self.slots.len() as isize
    }

    /// Moves the top past `place`; returns false if another thread did. Release orders the reads
    /// before it, which loom does not check, either.
    fn take(&self, place: usize) -> bool {
        let (seen, next) = (Ordering::Relaxed, place.wrapping_add(1));
        let top = &self.top.0;
        top.compare_exchange(place, next, Ordering::SeqCst, seen)
            .is_ok()
    }
}

impl<T: Item> Drop for Ring<T> {
    fn drop(&mut self) {
        let bottom = self.bottom.0.load(Ordering::Relaxed);
        let mut place = self.top.0.load(Ordering::Relaxed);
        while place != bottom {
            // SAFETY: this is the last owner, and the positions from the top to the bottom hold
            // items.
            drop(unsafe { T::from_words(self.read(place)) });
            place = place.wrapping_add(1);
        }
    }
}

/// Returns the number of items between two positions; negative while the owner inspects an empty
/// deque.
fn distance(top: usize, bottom: usize) -> isize {
    bottom.wrapping_sub(top) as isize
}

/// The owner's end. It may move to another thread, but only one thread at a time uses it.
pub struct Deque<T: Item> {
    ring: Arc<Ring<T>>,
    is_not_sync: PhantomData<Cell<()>>,
}

impl<T: Item> Deque<T> {
    /// Creates a deque for at most `capacity` items, rounded up to a power of two.
    pub fn new(capacity: usize) -> Self {
        let slots = 0..capacity.next_power_of_two();
        let empty = |_| std::array::from_fn(|_| AtomicPtr::new(std::ptr::null_mut()));
        Deque {
            ring: Arc::new(Ring {
                top: CachePadded(AtomicUsize::new(0)),
                bottom: CachePadded(AtomicUsize::new(0)),
                slots: slots.map(empty).collect(),
                items: PhantomData,
            }),
            is_not_sync: PhantomData,
        }
    }

    /// Returns an end for other threads.
    pub fn stealer(&self) -> Stealer<T> {
        Stealer(self.ring.clone())
    }

    /// Pushes `item` at the bottom.
    ///
    /// # Errors
    /// Returns the item if the deque is full.
    pub fn push(&self, item: T) -> Result<(), T> {
        let ring = &*self.ring;
        let bottom = ring.bottom.0.load(Ordering::Relaxed);
        if ring.has_no_room(bottom) {
            return Err(item);
        }
        ring.write(bottom, item.into_words());
        ring.bottom
            .0
            .store(bottom.wrapping_add(1), Ordering::Release);
        Ok(())
    }

    /// Returns the approximate number of items.
    pub fn n_items(&self) -> usize {
        let bottom = self.ring.bottom.0.load(Ordering::Relaxed);
        let top = self.ring.top.0.load(Ordering::Relaxed);
        distance(top, bottom).max(0) as usize
    }

    /// Returns whether a push would return its item.
    pub fn is_full(&self) -> bool {
        let bottom = self.ring.bottom.0.load(Ordering::Relaxed);
        self.ring.has_no_room(bottom)
    }

    /// Takes the newest item.
    pub fn pop(&self) -> Option<T> {
        let ring = &*self.ring;
        let end = ring.bottom.0.load(Ordering::Relaxed);
        if distance(ring.top.0.load(Ordering::Relaxed), end) <= 0 {
            return None;
        }
        // First claim the last position, then look what thieves have taken. Thieves do it in the
        // opposite order, with a fence of theirs between. Release: a thief that sees this bottom
        // instead of that of the push also sees the slots written before it.
        let place = end.wrapping_sub(1);
        ring.bottom.0.store(place, Ordering::Release);
        fence(Ordering::SeqCst);
        let top = ring.top.0.load(Ordering::Relaxed);
        let is_mine = match distance(top, place) {
            // Race with thieves for the last item.
            0 => {
                let is_mine = ring.take(place);
                ring.bottom.0.store(end, Ordering::Release);
                is_mine
            }
            1.. => true,
            _ => {
                ring.bottom.0.store(end, Ordering::Release);
                false
            }
        };
        // SAFETY: the owner put the item there, and no thief has it: either the top was moved past
        // it here, or thieves see the bottom before it.
        is_mine.then(|| unsafe { T::from_words(ring.read(place)) })
    }
}

/// The result of an attempt to steal.
pub enum Steal<T> {
    /// The oldest item.
    Item(T),
    /// The deque is empty.
    Empty,
    /// Another thread was faster.
    Retry,
}

/// The end of a deque for threads that do not own it.
pub struct Stealer<T: Item>(Arc<Ring<T>>);

impl<T: Item> Stealer<T> {
    /// Takes the oldest item.
    pub fn steal(&self) -> Steal<T> {
        let ring = &*self.0;
        let top = ring.top.0.load(Ordering::Acquire);
        fence(Ordering::SeqCst);
        // Acquire: the slot's content was written before the bottom behind it.
        let bottom = ring.bottom.0.load(Ordering::Acquire);
        if distance(top, bottom) <= 0 {
            return Steal::Empty;
        }
        let words = ring.read(top);
        match ring.take(top) {
            // SAFETY: the slot held an item, and this thread moved the top past it.
            true => Steal::Item(unsafe { T::from_words(words) }),
            false => Steal::Retry,
        }
    }

    /// Returns whether the deque seems to be empty.
    pub fn is_empty(&self) -> bool {
        let top = self.0.top.0.load(Ordering::Acquire);
        distance(top, self.0.bottom.0.load(Ordering::Acquire)) <= 0
    }
}

/// An unbounded queue, first in, first out, for threads without a deque.
pub struct Inbox<T> {
    items: Mutex<VecDeque<T>>,
    /// Length of `items`, changed only with its lock, so that an empty inbox is skipped without it.
    n: AtomicUsize,
}

impl<T> Default for Inbox<T> {
    fn default() -> Self {
        Inbox {
            items: Mutex::new(VecDeque::new()),
            n: AtomicUsize::new(0),
        }
    }
}

impl<T> Inbox<T> {
    fn lock(&self) -> MutexGuard<'_, VecDeque<T>> {
        self.items.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Appends `item`.
    pub fn push(&self, item: T) {
        let mut items = self.lock();
        items.push_back(item);
        self.n.store(items.len(), Ordering::Release);
    }

    /// Takes the first item.
    pub fn pop(&self) -> Option<T> {
        if self.is_empty() {
            return None;
        }
        let mut items = self.lock();
        let item = items.pop_front();
        self.n.store(items.len(), Ordering::Release);
        item
    }

    /// Returns the approximate length.
    pub fn len(&self) -> usize {
        self.n.load(Ordering::Acquire)
    }

    /// Returns whether the inbox seems to be empty.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn the_owner_takes_the_newest_and_thieves_the_oldest() {
        let deque = Deque::new(3);
        let thief = deque.stealer();
        // Often enough for the ring to wrap around.
        for _ in 0..5 {
            for i in 0..4 {
                assert!(deque.push(Box::new(i)).is_ok());
            }
            assert_eq!(deque.push(Box::new(4)), Err(Box::new(4)));
            assert_eq!(deque.pop().as_deref(), Some(&3));
            assert!(matches!(thief.steal(), Steal::Item(i) if *i == 0));
            assert!(matches!(thief.steal(), Steal::Item(i) if *i == 1));
            assert!(!thief.is_empty());
            assert_eq!(deque.pop().as_deref(), Some(&2));
            assert_eq!(deque.pop(), None);
            assert!(matches!(thief.steal(), Steal::Empty) && thief.is_empty());
        }
        // The remaining item is dropped with the deque: a leak checker would report it.
        assert!(deque.push(Box::new(7)).is_ok());
    }

    #[test]
    fn what_is_put_is_taken_once() {
        const N: usize = 100_000;
        for n_thieves in 1..4 {
            let deque = Deque::new(64);
            let taken: Vec<AtomicUsize> = (0..N).map(|_| AtomicUsize::new(0)).collect();
            let left = AtomicUsize::new(N);
            let take = |i: Box<usize>| {
                taken[*i].fetch_add(1, Ordering::Relaxed);
                left.fetch_sub(1, Ordering::Relaxed);
            };
            std::thread::scope(|s| {
                for _ in 0..n_thieves {
                    let (thief, take, left) = (deque.stealer(), &take, &left);
                    s.spawn(move || {
                        while left.load(Ordering::Relaxed) > 0 {
                            match thief.steal() {
                                Steal::Item(i) => take(i),
                                Steal::Empty => std::thread::yield_now(),
                                Steal::Retry => {}
                            }
                        }
                    });
                }
                for i in 0..N {
                    if let Err(i) = deque.push(Box::new(i)) {
                        take(i);
                    }
                    if i % 3 == 0 {
                        deque.pop().into_iter().for_each(take);
                    }
                }
                while let Some(i) = deque.pop() {
                    take(i);
                }
            });
            assert!(taken.iter().all(|n| n.load(Ordering::Relaxed) == 1));
        }
    }

    #[test]
    fn an_inbox_keeps_the_order() {
        let inbox = Inbox::default();
        (0..3).for_each(|i| inbox.push(i));
        assert_eq!(inbox.len(), 3);
        assert_eq!(
            std::iter::from_fn(|| inbox.pop()).collect::<Vec<_>>(),
            [0, 1, 2]
        );
        assert!(inbox.is_empty());
    }
}
