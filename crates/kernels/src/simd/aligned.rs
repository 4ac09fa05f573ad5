//! Cache-line-aligned buffers and the scratch memory each thread keeps.

use std::cell::RefCell;

/// One cache line.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct Line([u8; 64]);

/// Plain numbers: every bit pattern is a value, no padding, alignment at most 64.
///
/// # Safety
/// The type is as just said.
pub(crate) unsafe trait Plain: Copy + Send + Sync + 'static {}
// SAFETY: a plain number.
unsafe impl Plain for f32 {}
// SAFETY: a plain number.
unsafe impl Plain for f64 {}
// SAFETY: null bytes are the null pointer; whoever reads one has written it before.
unsafe impl<T: Send + 'static> Plain for SendPtr<T> {}

/// Zero-initialized memory that starts on a cache line.
#[derive(Clone, Default)]
pub(crate) struct Aligned {
    lines: Vec<Line>,
}

impl Aligned {
    /// The memory as at least `n` elements, grown when needed; what it holds is unspecified.
    pub(crate) fn room<T: Plain>(&mut self, n: usize) -> &mut [T] {
        let lines = (n * size_of::<T>()).div_ceil(64);
        if self.lines.len() < lines {
            // A fresh buffer, so that growing copies nothing.
            self.lines = vec![Line([0; 64]); lines];
        }
        // SAFETY: the buffer is initialized, aligned to 64, at least `n` elements long and
        // exclusively borrowed; any bytes are a valid `T: Plain`.
        unsafe { std::slice::from_raw_parts_mut(self.lines.as_mut_ptr().cast(), n) }
    }

    /// The whole memory.
    pub(crate) fn get<T: Plain>(&self) -> &[T] {
        let n = self.lines.len() * 64 / size_of::<T>();
        // SAFETY: as in `room`, shared.
        unsafe { std::slice::from_raw_parts(self.lines.as_ptr().cast(), n) }
    }

    /// Bytes held.
    pub(crate) fn bytes(&self) -> usize {
        self.lines.len() * 64
    }
}

/// The largest scratch a thread keeps between calls, in bytes.
const KEEP: usize = 64 << 20;

thread_local! {
    static SPARE: RefCell<Vec<Aligned>> = const { RefCell::new(Vec::new()) };
}

/// A buffer from this thread's store, given back on drop.
pub(crate) struct Scratch(Aligned);

impl Scratch {
    /// Takes a buffer; it may be of any size, see [`Aligned::room`].
    pub(crate) fn take() -> Self {
        Scratch(SPARE.with_borrow_mut(Vec::pop).unwrap_or_default())
    }

    /// See [`Aligned::room`].
    pub(crate) fn room<T: Plain>(&mut self, n: usize) -> &mut [T] {
        self.0.room(n)
    }

    /// The buffer itself, to be taken out and put back.
    pub(crate) fn inner(&mut self) -> &mut Aligned {
        &mut self.0
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let buf = std::mem::take(&mut self.0);
        if buf.bytes() <= KEEP {
            // A thread that is ending has no store any more; then the buffer is just freed.
            let _ = SPARE.try_with(|s| s.borrow_mut().push(buf));
        }
    }
}

/// A raw pointer that may cross threads; whoever uses it says why the accesses are disjoint.
#[repr(transparent)]
pub(crate) struct SendPtr<T>(pub(crate) *mut T);
impl<T> Clone for SendPtr<T> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<T> Copy for SendPtr<T> {}
// SAFETY: only a number; every dereference carries its own reason.
unsafe impl<T: Send> Send for SendPtr<T> {}
// SAFETY: as above.
unsafe impl<T: Send> Sync for SendPtr<T> {}

impl<T> SendPtr<T> {
    /// The pointer (a method, so that closures capture the wrapper).
    #[inline(always)]
    pub(crate) fn get(self) -> *mut T {
        self.0
    }
}
