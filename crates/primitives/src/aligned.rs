//! Cache-line-aligned buffers and the scratch memory each thread keeps.

use bytes::Bytes;
use memmap2::MmapMut;
use std::alloc::{Layout, alloc_zeroed, handle_alloc_error};
use std::cell::{Cell, RefCell};
use std::sync::{Arc, Mutex, PoisonError, Weak};

/// One cache line.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct Line([u8; 64]);

/// Plain numbers: every bit pattern is a value, no padding, alignment at most 64.
///
/// # Safety
/// The type has these properties.
pub(crate) unsafe trait Plain: Copy + Send + Sync + 'static {}
// SAFETY: a plain number.
unsafe impl Plain for f32 {}
// SAFETY: a plain number.
unsafe impl Plain for f64 {}
// SAFETY: a plain number.
unsafe impl Plain for u8 {}
// SAFETY: a plain number.
unsafe impl Plain for u16 {}
// SAFETY: a plain number.
unsafe impl Plain for i16 {}
// SAFETY: a plain number.
unsafe impl Plain for i32 {}
// SAFETY: null bytes are the null pointer; readers have written the pointer before.
unsafe impl<T: Send + 'static> Plain for SendPtr<T> {}

/// Memory that starts on a cache line: owned and zero-initialized, or shared and read-only.
#[derive(Clone)]
pub(crate) struct Aligned(Repr);

#[derive(Clone)]
enum Repr {
    Own(Vec<Line>),
    Shared(Bytes),
    /// Nothing yet.
    Constant,
    Part(Part),
}

/// Lines of a region, which only clones read. Nothing writes them after those of the first one were filled:
/// [`Aligned::alloc`] always takes new ones.
#[derive(Clone)]
struct Part {
    region: Arc<Region>,
    first: usize,
    lines: usize,
}

/// Memory that constants share: they fill its pages, of 2 MB if the system has such, without gaps.
struct Region {
    start: SendPtr<Line>,
    lines: usize,
    used: Mutex<usize>,
    _map: MmapMut,
}

/// Lines of a region: 16 MB, and what constants of whole megabytes leave between them.
const REGION: usize = (16 << 14) + 64;
/// Lines above which a constant has a region of its own: 4 MB.
const LARGE: usize = 4 << 14;

/// Lines from which constants share regions, which small models need not have: 64 KB.
const SHARED: usize = 1 << 10;

thread_local! {
    /// The region that the next constants are stored in, as long as others are. Models that are loaded
    /// at a time share none.
    static LATEST: RefCell<Weak<Region>> = const { RefCell::new(Weak::new()) };
    static IS_CONSTANT: Cell<bool> = const { Cell::new(false) };
}

/// Stores what `f` packs on this thread, if it is not small, next to other constants; it is freed with the
/// last of those that share its region of 16 MB.
///
/// ```
/// use ferroflow_primitives::{as_constants, gemm::PackedB};
/// let packed = as_constants(|| PackedB::from_rows(&ferroflow_sync::Inline, &[1.0; 6], 3, 2, 3));
/// assert_eq!(packed.n(), 3);
/// ```
pub fn as_constants<R>(f: impl FnOnce() -> R) -> R {
    /// Restores the flag, also if `f` panics.
    struct Restore(bool);
    impl Drop for Restore {
        fn drop(&mut self) {
            IS_CONSTANT.set(self.0);
        }
    }
    let _restore = Restore(IS_CONSTANT.replace(true));
    f()
}

impl Region {
    fn new(lines: usize) -> std::io::Result<Region> {
        let mut map = MmapMut::map_anon(lines * size_of::<Line>())?;
        // The system may have no such pages.
        #[cfg(target_os = "linux")]
        let _ = map.advise(memmap2::Advice::HugePage);
        Ok(Region {
            start: SendPtr(map.as_mut_ptr().cast()),
            lines,
            used: Mutex::new(0),
            _map: map,
        })
    }

    /// Takes lines that nothing else has, if as many are left.
    fn take(self: &Arc<Self>, lines: usize) -> Option<Part> {
        let mut used = self.used.lock().unwrap_or_else(PoisonError::into_inner);
        let first = *used;
        if self.lines - first < lines {
            return None;
        }
        // An odd number of lines, so that constants of one size do not map to the same cache set.
        *used = (first + (lines | 1)).min(self.lines);
        let region = self.clone();
        Some(Part {
            region,
            first,
            lines,
        })
    }
}

impl Part {
    /// Takes lines of the latest region, or of a new one.
    fn new(lines: usize) -> Option<Part> {
        if lines > LARGE {
            return Arc::new(Region::new(lines).ok()?).take(lines);
        }
        let latest = LATEST.with_borrow(Weak::upgrade);
        let part = latest.and_then(|region| region.take(lines));
        part.or_else(|| {
            let region = Arc::new(Region::new(REGION).ok()?);
            LATEST.set(Arc::downgrade(&region));
            region.take(lines)
        })
    }

    fn start(&self) -> *mut Line {
        self.region.start.get().wrapping_add(self.first)
    }
}

/// Returns lines of zeros, which fresh memory of the system has without being written.
fn zeroed(lines: usize) -> Vec<Line> {
    let layout = match Layout::array::<Line>(lines) {
        Ok(layout) if lines > 0 => layout,
        _ => return vec![Line([0; 64]); lines],
    };
    // SAFETY: the layout has a non-zero size.
    let start = unsafe { alloc_zeroed(layout) };
    if start.is_null() {
        handle_alloc_error(layout);
    }
    // SAFETY: allocated with the layout of `lines` lines, all of which are zero.
    unsafe { Vec::from_raw_parts(start.cast(), lines, lines) }
}

impl Default for Aligned {
    fn default() -> Self {
        Aligned(Repr::Own(Vec::new()))
    }
}

impl Aligned {
    /// Returns no memory yet; within [`as_constants`], that of constants.
    pub(crate) fn fresh() -> Self {
        match IS_CONSTANT.get() {
            true => Aligned(Repr::Constant),
            false => Aligned::default(),
        }
    }

    /// Wraps these bytes, copying them only if they do not start on a cache line.
    pub(crate) fn shared(bytes: Bytes) -> Self {
        if (bytes.as_ptr() as usize).is_multiple_of(64) {
            return Aligned(Repr::Shared(bytes));
        }
        let lines = bytes.chunks(64).map(|chunk| {
            let mut line = Line([0; 64]);
            line.0.iter_mut().zip(chunk).for_each(|(to, b)| *to = *b);
            line
        });
        Aligned(Repr::Own(lines.collect()))
    }

    /// Returns the memory as at least `n` elements, growing it if needed; its content is
    /// unspecified.
    pub(crate) fn alloc<T: Plain>(&mut self, n: usize) -> &mut [T] {
        let needed = (n * size_of::<T>()).div_ceil(64);
        // A fresh buffer, so that growing copies nothing.
        match &self.0 {
            Repr::Own(lines) if lines.len() >= needed => {}
            Repr::Constant if needed >= SHARED => {
                let part = Part::new(needed).map(Repr::Part);
                self.0 = part.unwrap_or_else(|| Repr::Own(zeroed(needed)));
            }
            _ => self.0 = Repr::Own(zeroed(needed)),
        }
        let start = match &mut self.0 {
            Repr::Own(lines) => lines.as_mut_ptr(),
            Repr::Part(part) => part.start(),
            Repr::Shared(_) | Repr::Constant => unreachable!("just replaced"),
        };
        // SAFETY: the buffer is initialized, aligned to 64, at least `n` elements long and
        // exclusively borrowed, a part being new; any bytes are a valid `T: Plain`.
        unsafe { std::slice::from_raw_parts_mut(start.cast(), n) }
    }

    /// Returns the whole memory.
    #[inline]
    pub(crate) fn get<T: Plain>(&self) -> &[T] {
        let (start, len): (*const u8, usize) = match &self.0 {
            Repr::Own(lines) => (lines.as_ptr().cast(), lines.len() * 64),
            Repr::Shared(bytes) => (bytes.as_ptr(), bytes.len()),
            Repr::Part(part) => (part.start().cast_const().cast(), part.lines * 64),
            Repr::Constant => return &[],
        };
        // SAFETY: as in `alloc`, shared; `shared` has seen that foreign bytes are aligned.
        unsafe { std::slice::from_raw_parts(start.cast(), len / size_of::<T>()) }
    }

    /// Returns the size in bytes.
    pub(crate) fn bytes(&self) -> usize {
        match &self.0 {
            Repr::Own(lines) => lines.len() * 64,
            Repr::Shared(bytes) => bytes.len(),
            Repr::Part(part) => part.lines * 64,
            Repr::Constant => 0,
        }
    }
}

/// The largest scratch memory that a thread keeps between calls, in bytes.
const KEEP: usize = 64 << 20;

thread_local! {
    static SPARE: RefCell<Vec<Aligned>> = const { RefCell::new(Vec::new()) };
}

/// A buffer from this thread's free list, returned on drop.
pub(crate) struct Scratch(Aligned);

impl Scratch {
    /// Takes a buffer; it may be of any size, see [`Aligned::alloc`].
    pub(crate) fn take() -> Self {
        Scratch(SPARE.with_borrow_mut(Vec::pop).unwrap_or_default())
    }

    /// See [`Aligned::alloc`].
    pub(crate) fn alloc<T: Plain>(&mut self, n: usize) -> &mut [T] {
        self.0.alloc(n)
    }

    /// Returns the buffer itself, to be moved out and put back.
    pub(crate) fn inner(&mut self) -> &mut Aligned {
        &mut self.0
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let buf = std::mem::take(&mut self.0);
        if buf.bytes() <= KEEP {
            // A thread that is exiting has no free list any more; then the buffer is freed.
            let _ = SPARE.try_with(|s| s.borrow_mut().push(buf));
        }
    }
}

/// A raw pointer that may cross threads; each use states why the accesses are disjoint.
#[repr(transparent)]
pub(crate) struct SendPtr<T>(pub(crate) *mut T);
impl<T> Clone for SendPtr<T> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<T> Copy for SendPtr<T> {}
// SAFETY: only an address; every dereference has its own justification.
unsafe impl<T: Send> Send for SendPtr<T> {}
// SAFETY: as above.
unsafe impl<T: Send> Sync for SendPtr<T> {}

impl<T> SendPtr<T> {
    /// Returns the pointer (a method, so that closures capture the wrapper).
    #[inline(always)]
    pub(crate) fn get(self) -> *mut T {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn constants_do_not_overlap() {
        let sizes = [
            1,
            1 << 16,
            1 << 17,
            3 << 20,
            5 << 20,
            9 << 20,
            17 << 20,
            100,
        ];
        let mut constants: Vec<Aligned> = as_constants(|| {
            let mut fresh = sizes.map(|_| Aligned::fresh());
            for (i, (aligned, size)) in fresh.iter_mut().zip(sizes).enumerate() {
                aligned.alloc::<u8>(size).fill(i as u8 + 1);
            }
            fresh.into()
        });
        let check = |constants: &[Aligned], first: usize| {
            for (i, (aligned, size)) in constants.iter().zip(&sizes[first..]).enumerate() {
                let values = &aligned.get::<u8>()[..*size];
                let expected = (first + i) as u8 + 1;
                assert!(values.iter().all(|v| *v == expected), "constant {i}");
                assert!((values.as_ptr() as usize).is_multiple_of(64));
            }
        };
        check(&constants, 0);
        // Others stay as they are when some are freed, and when a copy gets new memory.
        let mut copy = constants[3].clone();
        copy.alloc::<u8>(3 << 20).fill(0);
        constants.drain(..2);
        check(&constants, 2);
        assert!(matches!(constants[0].0, Repr::Part(_)));
        assert!(matches!(constants[5].0, Repr::Own(_)), "small");
        assert!(matches!(constants[4].0, Repr::Part(_)), "large");
        assert!(matches!(Aligned::fresh().0, Repr::Own(_)));
    }
}
