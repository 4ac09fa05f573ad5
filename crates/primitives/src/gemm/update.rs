//! Products that change matrices: [`gemm_add`] adds to one, [`gemm_update`] is consumed as it is computed.

use super::drive::{Out, TileSink};
use super::{Epilogue, GemmElement, GemmShape, check, multiply_into};
use crate::aligned::SendPtr;
use crate::each::each_of_tile;
use crate::isa::Isa;
use ferroflow_sync::Parallelism;

/// The longest reduction of [`gemm_update`]: its sums must be complete after one block.
pub const MAX_UPDATE_K: usize = super::drive::BLOCK_K;

/// Computes `out = epilogue(out + op(a) · op(b))`.
///
/// # Panics
/// If a slice is too short for its matrix.
pub fn gemm_add<T: GemmElement>(
    par: &dyn Parallelism,
    s: &GemmShape,
    a: &[T],
    b: &[T],
    out: &mut [T],
    ep: &Epilogue<'_, T>,
) {
    check(out.len(), s.m, s.n, s.ldc, "output");
    let out = Out::Matrix(SendPtr(out.as_mut_ptr()), s.ldc);
    // SAFETY: the size was checked; `out` is exclusively borrowed and initialized.
    unsafe { multiply_into(par, s, a, b, out, ep, true) }
}

/// Calls `rule(values, product)` for each element of the dense matrices `values`, where the product
/// is the corresponding element of `op(a) · op(b)`, which is never stored as a whole: `s.ldc` must
/// be `s.n`.
///
/// An optimizer whose gradient is a product this way reads and writes its variables only.
///
/// # Panics
/// If a slice is too short for its matrix, or the reduction longer than [`MAX_UPDATE_K`] or empty.
pub fn gemm_update<T: GemmElement, F: Fn([&mut T; N], T) + Sync, const N: usize>(
    par: &dyn Parallelism,
    s: &GemmShape,
    a: &[T],
    b: &[T],
    values: [&mut [T]; N],
    rule: &F,
) {
    assert!((1..=MAX_UPDATE_K).contains(&s.k), "a reduction of {}", s.k);
    assert!(s.ldc == s.n, "values with gaps");
    for v in &values {
        check(v.len(), s.m, s.n, s.n, "values");
    }
    let update = TileUpdate {
        values: values.map(|v| SendPtr(v.as_mut_ptr())),
        ld: s.n,
        rule,
        isa: Isa::current(),
    };
    // SAFETY: the values were checked and are exclusively borrowed, and tiles do not overlap.
    unsafe { multiply_into(par, s, a, b, Out::Tiles(&update), &Epilogue::none(), false) };
}

/// Values updated tile by tile.
struct TileUpdate<'a, T, F, const N: usize> {
    values: [SendPtr<T>; N],
    ld: usize,
    rule: &'a F,
    isa: Isa,
}

impl<T: GemmElement, F: Fn([&mut T; N], T) + Sync, const N: usize> TileSink<T>
    for TileUpdate<'_, T, F, N>
{
    fn bring(&self, row: usize, col: usize, [rows, cols]: [usize; 2]) {
        let line = 64 / size_of::<T>();
        for value in &self.values {
            for r in row..row + rows {
                for c in (0..cols).step_by(line) {
                    prefetch(value.get().wrapping_add(r * self.ld + col + c));
                }
            }
        }
    }

    unsafe fn take(&self, row: usize, col: usize, size: [usize; 2], tile: *const T, ld: usize) {
        let first = |value: &SendPtr<T>| value.get().wrapping_add(row * self.ld + col);
        let values = self.values.each_ref().map(first);
        let lds = [self.ld, ld];
        // SAFETY: the caller's promise; the values were checked.
        unsafe { each_of_tile(self.isa, values, tile, lds, size, self.rule) };
    }
}

/// Prefetches the cache line at `p`, which may be invalid, into the second-level cache.
#[inline(always)]
fn prefetch<T>(p: *const T) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_MM_HINT_T1, _mm_prefetch};
        // SAFETY: a prefetch of an address that is not valid does nothing.
        unsafe { _mm_prefetch(p.cast(), _MM_HINT_T1) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = p;
}
