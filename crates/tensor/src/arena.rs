//! [`Arena`]: one block of memory for the tensors of a step, of which each gets the part that a plan chose.
//!
//! Kernels allocate as always: what they run in says where their blocks come from. An arena knows which of its parts are
//! in use. A block whose part is not free is on the heap instead, so that a wrong plan only costs memory.

use crate::AllocationLog;
use crate::buffer::{ALIGN, Buffer};
use ferroflow_base::Result;
use std::cell::Cell;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The place of one block in arenas.
pub struct BlockPlace {
    /// `HEAP` if it is in none.
    offset: AtomicUsize,
    len: usize,
    id: u32,
}

const HEAP: usize = usize::MAX;

impl BlockPlace {
    /// Arenas align blocks to this many bytes.
    pub const ALIGN: usize = ALIGN;
    /// Smaller blocks are never in arenas: the heap has them in a few nanoseconds less.
    pub const MIN_BYTES: usize = 4096;

    /// The place of a block of `len` bytes, on the heap without `offset`. Its owner calls it `id`.
    pub fn new(id: u32, len: usize, offset: Option<usize>) -> BlockPlace {
        BlockPlace {
            offset: AtomicUsize::new(offset.unwrap_or(HEAP)),
            len,
            id,
        }
    }

    /// Leaves the block to the heap from now on; returns its bytes if it was not before.
    pub fn disable(&self) -> usize {
        match self.offset.swap(HEAP, Ordering::Relaxed) {
            HEAP => 0,
            _ => self.len,
        }
    }
}

/// A range of an arena that a buffer owns.
struct InUse {
    start: usize,
    end: usize,
    place: u32,
}

/// Memory for the blocks of one step.
///
/// ```
/// use ferroflow_tensor::{Arena, DType, Shape, BlockPlace, Tensor};
/// let arena = Arena::new(8192).unwrap();
/// let places = [BlockPlace::new(0, 4096, Some(0)), BlockPlace::new(1, 4096, Some(4096))];
/// let new = || Tensor::for_overwrite(DType::Float, Shape::from(&[1024][..])).unwrap();
/// let both = arena.serve(&places, || [new(), new()]);
/// assert_eq!(arena.in_use(), [0, 1]);
/// drop(both);
/// assert!(arena.in_use().is_empty());
/// ```
pub struct Arena {
    memory: Buffer,
    /// In the order of addresses, without overlap. Only the buffer of a range accesses its bytes.
    in_use: Mutex<Vec<InUse>>,
    misses: AtomicU64,
}

impl Arena {
    /// Allocates an arena of at least `len` bytes.
    ///
    /// # Errors
    /// RESOURCE_EXHAUSTED if there is too little memory.
    pub fn new(len: usize) -> Result<Arc<Arena>> {
        Ok(Arc::new(Arena {
            memory: Buffer::heap_of_at_least(len.max(BlockPlace::MIN_BYTES))?,
            in_use: Mutex::new(Vec::new()),
            misses: AtomicU64::new(0),
        }))
    }

    /// Returns the size that it was made for, in bytes.
    pub fn len(&self) -> usize {
        self.memory.len()
    }

    /// Returns whether it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.memory.is_empty()
    }

    /// Runs `f`; its blocks of [`BlockPlace::MIN_BYTES`] and more that this thread allocates have these places, in order. A block
    /// is on the heap if it has another size than its place, or if a part of its range is in use.
    pub fn serve<R>(self: &Arc<Self>, places: &[BlockPlace], f: impl FnOnce() -> R) -> R {
        let source = Source {
            kind: Kind::Arena {
                arena: self,
                places,
            },
            next: Cell::new(0),
            misses: Cell::new(0),
        };
        let result = source.during(f);
        if source.misses.get() > 0 {
            self.misses
                .fetch_add(source.misses.get().into(), Ordering::Relaxed);
        }
        result
    }

    /// The places of the blocks that are in use.
    pub fn in_use(&self) -> Vec<u32> {
        lock(&self.in_use).iter().map(|part| part.place).collect()
    }

    /// The blocks that had to be on the heap, not being as the places say, since the last call.
    pub fn take_misses(&self) -> u64 {
        match self.misses.load(Ordering::Relaxed) {
            0 => 0,
            _ => self.misses.swap(0, Ordering::Relaxed),
        }
    }

    /// Returns the bytes of a place unless some are in use.
    fn claim(self: &Arc<Self>, place: &BlockPlace, start: usize) -> Option<Buffer> {
        let end = start.checked_add(place.len)?;
        if end > self.memory.len() || !start.is_multiple_of(ALIGN) {
            return None;
        }
        let mut parts = lock(&self.in_use);
        let at = parts.partition_point(|part| part.start < start);
        let is_free = parts.get(at).is_none_or(|next| next.start >= end)
            && parts[..at].last().is_none_or(|before| before.end <= start);
        if !is_free {
            return None;
        }
        let part = InUse {
            start,
            end,
            place: place.id,
        };
        parts.insert(at, part);
        drop(parts);
        let memory = self.memory.ptr();
        Some(Buffer::part(self.clone(), memory, start, place.len))
    }

    /// Ends the use of the range that begins at `start`.
    pub(crate) fn release(&self, start: usize) {
        let mut parts = lock(&self.in_use);
        let at = parts.partition_point(|part| part.start < start);
        if parts.get(at).is_some_and(|part| part.start == start) {
            parts.remove(at);
        }
    }
}

/// Where the blocks of a kernel call come from.
struct Source<'a> {
    kind: Kind<'a>,
    /// The number of blocks so far.
    next: Cell<u32>,
    misses: Cell<u32>,
}

enum Kind<'a> {
    Arena {
        arena: &'a Arc<Arena>,
        places: &'a [BlockPlace],
    },
    Log {
        log: &'a Arc<AllocationLog>,
        owner: u32,
    },
}

thread_local! {
    /// The source of this thread's blocks, if they are not just of the heap.
    static CURRENT: Cell<Option<NonNull<Source<'static>>>> = const { Cell::new(None) };
}

/// Sets back what was current, also in a panic.
struct Restore(Option<NonNull<Source<'static>>>);

impl Drop for Restore {
    fn drop(&mut self) {
        CURRENT.set(self.0);
    }
}

/// Runs `f` with the blocks of `log`.
pub(crate) fn logged<R>(log: &Arc<AllocationLog>, owner: u32, f: impl FnOnce() -> R) -> R {
    let source = Source {
        kind: Kind::Log { log, owner },
        next: Cell::new(0),
        misses: Cell::new(0),
    };
    source.during(f)
}

impl Source<'_> {
    /// Runs `f` with this as the source of the thread's blocks.
    #[inline]
    fn during<R>(&self, f: impl FnOnce() -> R) -> R {
        let _restore = Restore(CURRENT.replace(Some(NonNull::from(self).cast())));
        f()
    }

    fn allocate(&self, len: usize) -> Option<Buffer> {
        let nth = self.next.get();
        self.next.set(nth + 1);
        match self.kind {
            Kind::Arena { arena, places } => {
                let place = places.get(nth as usize);
                let offset = place.map_or(0, |place| place.offset.load(Ordering::Relaxed));
                if offset == HEAP {
                    return None;
                }
                let place = place.filter(|place| place.len == len);
                let buffer = place.and_then(|place| arena.claim(place, offset));
                if buffer.is_none() {
                    self.misses.set(self.misses.get() + 1);
                }
                buffer
            }
            Kind::Log { log, owner } => log.allocate(owner, nth, len),
        }
    }
}

/// Returns a block of the thread's source, if it has any.
#[inline]
pub(crate) fn allocate(len: usize) -> Option<Buffer> {
    if len < BlockPlace::MIN_BYTES {
        return None;
    }
    let source = CURRENT.get()?;
    // SAFETY: `Source::during` set the pointer to what it borrows, on this thread, and sets it back before it returns.
    unsafe { source.as_ref() }.allocate(len)
}

/// Runs `f`, which is not part of the kernel call around it: its blocks are of the heap.
pub fn outside_arenas<R>(f: impl FnOnce() -> R) -> R {
    let _restore = Restore(CURRENT.take());
    f()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{DType, Shape, Tensor};

    fn new(bytes: usize) -> Tensor {
        Tensor::for_overwrite(DType::Uint8, Shape::from(&[bytes][..])).expect("small")
    }

    fn filled(bytes: usize, value: u8) -> Tensor {
        let mut t = new(bytes);
        t.slice_mut::<u8>().expect("bytes").fill(value);
        t
    }

    fn is_filled(t: &Tensor, value: u8) -> bool {
        t.slice::<u8>().expect("bytes").iter().all(|b| *b == value)
    }

    fn address(t: &Tensor) -> usize {
        t.bytes().expect("plain").as_ptr().addr()
    }

    #[test]
    fn blocks_are_where_their_places_say() {
        let arena = Arena::new(40_960).expect("small");
        let places = [
            BlockPlace::new(0, 8192, Some(16_384)),
            BlockPlace::new(1, 12_000, None),
            BlockPlace::new(2, 16_384, Some(0)),
        ];
        let [a, b, small, c] = arena.serve(&places, || [8192, 12_000, 100, 16_384].map(new));
        assert_eq!(address(&a), address(&c) + 16_384);
        assert_eq!((arena.in_use(), arena.take_misses()), (vec![2, 0], 0));
        drop((a, b, small));
        assert_eq!(arena.in_use(), [2]);
    }

    #[test]
    fn what_is_not_as_planned_is_on_the_heap() {
        let arena = Arena::new(32_768).expect("small");
        let places = [
            BlockPlace::new(0, 16_384, Some(0)),
            BlockPlace::new(1, 16_384, Some(8192)),
            BlockPlace::new(2, 8192, Some(16_384)),
            BlockPlace::new(3, 16_384, Some(1 << 20)),
        ];
        // The second overlaps the first, the third has another size, the fourth is outside, the fifth has no place.
        let all = arena.serve(&places, || {
            [
                (16_384, 1),
                (16_384, 2),
                (4096, 3),
                (16_384, 4),
                (20_000, 5),
            ]
            .map(|(n, v)| filled(n, v))
        });
        assert_eq!((arena.in_use(), arena.take_misses()), (vec![0], 4));
        assert!(all.iter().zip(1..).all(|(t, v)| is_filled(t, v)));
        places[0].disable();
        drop(all);
        let t = arena.serve(&places, || new(16_384));
        assert_eq!((arena.in_use(), arena.take_misses()), (vec![], 0));
        drop(t);
    }

    #[test]
    fn blocks_outlive_the_arena_of_their_step() {
        let arena = Arena::new(4096).expect("small");
        let places = [BlockPlace::new(7, 4096, Some(0))];
        let kept = arena.serve(&places, || filled(4096, 9));
        assert_eq!(arena.in_use(), [7]);
        // Another step of the same arena leaves it alone.
        let other = arena.serve(&places, || filled(4096, 1));
        drop(arena);
        for value in 0..20 {
            drop(
                Arena::new(4096)
                    .expect("small")
                    .serve(&places, || filled(4096, value)),
            );
        }
        assert!(is_filled(&kept, 9) && is_filled(&other, 1));
    }

    #[test]
    fn reused_parts_can_be_zeroed_and_written() {
        let arena = Arena::new(4096).expect("small");
        let places = [BlockPlace::new(0, 4096, Some(0))];
        drop(arena.serve(&places, || filled(4096, 7)));
        let zeros = || Tensor::zeros(DType::Uint8, Shape::from(&[4096][..])).expect("small");
        let mut t = arena.serve(&places, zeros);
        assert!(is_filled(&t, 0));
        assert_eq!(arena.in_use(), [0]);
        // A sole owner writes in place.
        let before = address(&t);
        t.slice_mut::<u8>().expect("bytes").fill(3);
        assert_eq!(address(&t), before);
        let view = t.clone();
        t.slice_mut::<u8>().expect("bytes").fill(4);
        assert!(is_filled(&view, 3) && is_filled(&t, 4));
    }

    #[test]
    fn many_threads_never_share_a_range() {
        let arena = Arena::new(16_384).expect("small");
        let places: Vec<BlockPlace> = (0..13)
            .map(|i| BlockPlace::new(i, 4096, Some(i as usize * 1024)))
            .collect();
        std::thread::scope(|scope| {
            for thread in 0..4u8 {
                let (arena, places) = (&arena, &places);
                scope.spawn(move || {
                    for i in 0..500usize {
                        let value = thread * 64 + (i % 64) as u8;
                        let at = (i * 7 + usize::from(thread) * 3) % places.len();
                        let t = arena.serve(&places[at..=at], || filled(4096, value));
                        assert!(is_filled(&t, value));
                    }
                });
            }
        });
        assert!(arena.in_use().is_empty());
    }

    #[test]
    fn a_panic_and_an_inner_step_end_the_source() {
        let arena = Arena::new(4096).expect("small");
        let places = [BlockPlace::new(0, 4096, Some(0))];
        let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            arena.serve(&places, || panic!("a kernel"))
        }));
        assert!(panicked.is_err());
        let outside = new(4096);
        let inner = arena.serve(&places, || outside_arenas(|| new(4096)));
        assert!(arena.in_use().is_empty());
        drop((outside, inner));
    }
}
