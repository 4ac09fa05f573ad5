//! The inner loops of products of `bfloat16` numbers: tiles, and vectors of pairs.

use crate::amx;
use crate::gemm::drive::Tiles as RowTiles;
#[cfg(target_arch = "x86_64")]
use crate::halves::round_bf16;
use std::ops::Range;

/// Lanes of a vector of sums.
const LANES: usize = 16;
/// Columns of a panel.
pub(super) const WIDTH: usize = 4 * LANES;
/// The most rows of a tile of vectors: their sums, the panel's vectors and a row's pair are registers.
const MAX_ROWS: usize = 6;

/// Rows times a panel of columns.
pub(super) struct Sweep {
    /// Rows of `steps` pairs.
    pub rows: *const i32,
    pub height: usize,
    pub steps: usize,
    /// `steps` times [`WIDTH`] pairs.
    pub columns: *const i32,
    /// Columns that exist.
    pub n: usize,
    /// Where the sums go.
    pub out: *mut f32,
    pub ldc: usize,
}

/// Steps of a block of the reduction: its rows and columns stay in the first-level cache.
const BLOCK_STEPS: usize = 24 * amx::CHUNK / 4;

/// What sums start with.
static ZEROS: [i32; amx::BLOCK] = [0; amx::BLOCK];

impl Sweep {
    /// Computes the sums; whole tiles of rows with `tiles`, if there are any.
    ///
    /// # Safety
    /// Every pointer is valid as described there, no other thread accesses the output, and the CPU has
    /// AVX-512 BF16.
    pub(super) unsafe fn run(&self, tiles: Option<&amx::Tiles>) {
        let mut first = 0;
        if let Some(tiles) = tiles.filter(|_| self.steps > 0) {
            first = self.height / amx::SIDE * amx::SIDE;
            // SAFETY: the caller's promise.
            unsafe { self.in_tiles(tiles, first) };
        }
        let rest = RowTiles::of(self.height - first, MAX_ROWS);
        rest.each(|row, height| {
            let part = Sweep {
                rows: self.rows.wrapping_add((first + row) * self.steps),
                height,
                out: self.out.wrapping_add((first + row) * self.ldc),
                ..*self
            };
            if height > 0 {
                // SAFETY: the caller's promise.
                unsafe { part.in_vectors() };
            }
        });
    }

    /// Computes the first `height` rows, a multiple of a tile's: for a part of the reduction, two tiles of columns,
    /// which stay in the first-level cache, times all rows.
    ///
    /// # Safety
    /// As for [`Sweep::run`].
    unsafe fn in_tiles(&self, tiles: &amx::Tiles, height: usize) {
        for vector in (0..self.n.div_ceil(LANES)).step_by(2) {
            for first in (0..self.steps).step_by(BLOCK_STEPS) {
                for row in (0..height).step_by(amx::BLOCK) {
                    let rows = amx::BLOCK.min(height - row);
                    // SAFETY: the caller's promise.
                    unsafe { self.block(tiles, row..row + rows, vector * LANES, first) };
                }
            }
        }
    }

    /// Computes one or two tiles of rows and of columns, for a block of steps; adds them to the earlier ones' sums.
    ///
    /// # Safety
    /// As for [`Sweep::run`].
    #[inline(always)]
    unsafe fn block(&self, tiles: &amx::Tiles, rows: Range<usize>, column: usize, first: usize) {
        let count = (self.n - column).div_ceil(LANES).min(2);
        let n = (count * LANES).min(self.n - column);
        let out = self.out.wrapping_add(rows.start * self.ldc + column);
        let steps = BLOCK_STEPS.min(self.steps - first);
        let mut block = amx::Block {
            rows: self
                .rows
                .wrapping_add(rows.start * self.steps + first)
                .cast(),
            ld_rows: self.steps * 4,
            columns: self.columns.wrapping_add(first * WIDTH + column),
            ld_columns: WIDTH * 4,
            steps: steps * 4 / amx::CHUNK,
            start: ZEROS.as_ptr(),
            ld_start: 0,
            out: out.cast(),
            ld_out: self.ldc * 4,
        };
        let size = [rows.len() / amx::SIDE, count];
        if n == count * LANES {
            if first > 0 {
                (block.start, block.ld_start) = (out.cast(), self.ldc * 4);
            }
            // SAFETY: the caller's promise.
            unsafe { tiles.multiply(amx::Numbers::Bf16, size, &block) };
            return;
        }
        // The last tile of columns has fewer than the output has room for.
        let mut sums = [0f32; amx::BLOCK * amx::BLOCK];
        for (r, sums) in sums
            .chunks_exact_mut(amx::BLOCK)
            .take(rows.len())
            .enumerate()
        {
            if first > 0 {
                // SAFETY: `n` columns of a row of the output, which an earlier block has written.
                let earlier = unsafe { std::slice::from_raw_parts(out.add(r * self.ldc), n) };
                sums[..n].copy_from_slice(earlier);
            }
        }
        let pointer = sums.as_mut_ptr().cast();
        (block.out, block.ld_out) = (pointer, amx::BLOCK * 4);
        (block.start, block.ld_start) = (pointer.cast_const(), amx::BLOCK * 4);
        // SAFETY: the caller's promise; the sums have room for the largest block.
        unsafe { tiles.multiply(amx::Numbers::Bf16, size, &block) };
        for (r, sums) in sums.chunks_exact(amx::BLOCK).take(rows.len()).enumerate() {
            // SAFETY: `n` columns of a row of the output.
            let to = unsafe { std::slice::from_raw_parts_mut(out.add(r * self.ldc), n) };
            to.copy_from_slice(&sums[..n]);
        }
    }

    /// Computes at most [`MAX_ROWS`] rows.
    ///
    /// # Safety
    /// As for [`Sweep::run`].
    #[cfg(target_arch = "x86_64")]
    unsafe fn in_vectors(&self) {
        macro_rules! of_rows {
            ($($rows:literal)*) => {
                match (self.height, self.n.div_ceil(LANES)) {
                    $(
                        ($rows, 1) => vectors::<$rows, 1>(self),
                        ($rows, 2) => vectors::<$rows, 2>(self),
                        ($rows, _) => vectors::<$rows, 4>(self),
                    )*
                    (rows, _) => unreachable!("a tile of {rows} rows"),
                }
            };
        }
        // SAFETY: the caller's promise.
        unsafe { of_rows!(1 2 3 4 5 6) }
    }

    /// # Safety
    /// As elsewhere; no such CPU is supported.
    #[cfg(not(target_arch = "x86_64"))]
    unsafe fn in_vectors(&self) {
        unreachable!("no products of bfloat16 here");
    }
}

/// Computes `MR` rows of `NV` vectors.
///
/// # Safety
/// As for [`Sweep::run`].
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bf16")]
unsafe fn vectors<const MR: usize, const NV: usize>(job: &Sweep) {
    use std::arch::x86_64::*;
    // SAFETY: the caller promises `MR` rows of `steps` pairs, a panel, and the output's columns; others are
    // masked off.
    unsafe {
        let mut sums = [[_mm512_setzero_ps(); NV]; MR];
        for step in 0..job.steps {
            let columns = job.columns.add(step * WIDTH);
            let mut w = [_mm512_setzero_si512(); NV];
            for (v, w) in w.iter_mut().enumerate() {
                *w = _mm512_loadu_si512(columns.add(v * LANES).cast());
            }
            for (r, sums) in sums.iter_mut().enumerate() {
                let x = _mm512_set1_epi32(*job.rows.add(r * job.steps + step));
                for (sum, w) in sums.iter_mut().zip(&w) {
                    *sum = _mm512_dpbf16_ps(
                        *sum,
                        std::mem::transmute::<__m512i, __m512bh>(x),
                        std::mem::transmute::<__m512i, __m512bh>(*w),
                    );
                }
            }
        }
        for (r, sums) in sums.iter().enumerate() {
            for (v, sum) in sums.iter().enumerate() {
                let n = job.n.saturating_sub(v * LANES).min(LANES);
                let mask = ((1u32 << n) - 1) as __mmask16;
                _mm512_mask_storeu_ps(job.out.wrapping_add(r * job.ldc + v * LANES), mask, *sum);
            }
        }
    }
}

/// Rounds floats to `bfloat16`, ties to even, as products do: numbers below the normal ones become zeros.
///
/// # Safety
/// The CPU has AVX-512 BF16.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bf16")]
pub(super) unsafe fn round(from: &[f32], to: &mut [u16]) {
    use std::arch::x86_64::*;
    let ((from, from_rest), (to, to_rest)) = (from.as_chunks::<32>(), to.as_chunks_mut::<32>());
    for (from, to) in from.iter().zip(to) {
        // SAFETY: chunks of 32.
        unsafe {
            let (low, high) = (
                _mm512_loadu_ps(from.as_ptr()),
                _mm512_loadu_ps(from.as_ptr().add(LANES)),
            );
            let rounded = std::mem::transmute::<__m512bh, __m512i>(_mm512_cvtne2ps_pbh(high, low));
            _mm512_storeu_si512(to.as_mut_ptr().cast(), rounded);
        }
    }
    for (from, to) in from_rest.iter().zip(to_rest) {
        *to = round_bf16(*from);
    }
}

/// Rounds floats.
///
/// # Safety
/// As elsewhere; no such CPU is supported.
#[cfg(not(target_arch = "x86_64"))]
pub(super) unsafe fn round(from: &[f32], to: &mut [u16]) {
    crate::halves::narrow_bf16(from, to);
}
