//! Cache-line-aligned buffers and the scratch memory each thread keeps.

use bytes::Bytes;
use std::alloc::{Layout, alloc_zeroed, handle_alloc_error};
use std::cell::RefCell;

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
        if !matches!(&self.0, Repr::Own(lines) if lines.len() >= needed) {
            // A fresh buffer, so that growing copies nothing.
            self.0 = Repr::Own(zeroed(needed));
        }
        let start = match &mut self.0 {
            Repr::Own(lines) => lines.as_mut_ptr(),
            Repr::Shared(_) => unreachable!("just replaced"),
        };
        // SAFETY: the buffer is initialized, aligned to 64, at least `n` elements long and
        // exclusively borrowed; any bytes are a valid `T: Plain`.
        unsafe { std::slice::from_raw_parts_mut(start.cast(), n) }
    }

    /// Returns the whole memory.
    #[inline]
    pub(crate) fn get<T: Plain>(&self) -> &[T] {
        let (start, len): (*const u8, usize) = match &self.0 {
            Repr::Own(lines) => (lines.as_ptr().cast(), lines.len() * 64),
            Repr::Shared(bytes) => (bytes.as_ptr(), bytes.len()),
        };
        // SAFETY: as in `alloc`, shared; `shared` has seen that foreign bytes are aligned.
        unsafe { std::slice::from_raw_parts(start.cast(), len / size_of::<T>()) }
    }

    /// Returns the size in bytes.
    pub(crate) fn bytes(&self) -> usize {
        match &self.0 {
            Repr::Own(lines) => lines.len() * 64,
            Repr::Shared(bytes) => bytes.len(),
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
