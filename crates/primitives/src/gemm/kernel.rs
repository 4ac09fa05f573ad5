//! The register-blocked inner loop of every matrix product and convolution.

use crate::vector::{Lanes, array};

/// One column panel times several row tiles, for one block of the reduction.
///
/// The left rows are given by pointers, `n_offsets` of them to a row, so the same loop serves a
/// plain matrix (one offset) and an implicit convolution (an offset per filter row or filter
/// pixel), as in Dukhan, "The indirect convolution algorithm" (2019).
pub(crate) struct Sweep<T> {
    /// `[tiles][tile_stride]` pointers of which the first `n_offsets * MR` are used:
    /// `[offsets][MR]`.
    pub rows: *const *const T,
    pub tiles: usize,
    pub tile_stride: usize,
    pub n_offsets: usize,
    /// Elements to skip at every row pointer.
    pub off: usize,
    /// Elements to read at every row pointer.
    pub len: usize,
    /// The panel at this block of the reduction: `n_offsets * len` rows of two vectors.
    pub b: *const T,
    pub next: Ahead<T>,
    /// The output of the first row, at the panel's first column.
    pub c: *mut T,
    pub ldc: usize,
    /// Columns that exist.
    pub n: usize,
    /// Whether to add to what `c` holds.
    pub accumulate: bool,
    /// Whether to apply `scale`, `bias`, `side` and the limits.
    pub last: bool,
    /// `n` values, or null.
    pub scale: *const T,
    /// `n` values, or null.
    pub bias: *const T,
    /// A matrix like `c`, or null.
    pub side: *const T,
    pub ld_side: usize,
    /// Lower and upper limit of the result.
    pub limits: Option<(T, T)>,
}

/// The memory to prefetch during a sweep, as much as its `b`: a cache line every four steps of the
/// reduction.
#[derive(Clone, Copy)]
pub(crate) struct Ahead<T> {
    pub first: *const T,
    /// Adjacent lines, each prefetched by one of as many tiles.
    pub lines: usize,
    /// Elements between the shares of those tiles and the next ones.
    pub share: usize,
    /// Elements between steps.
    pub pace: usize,
}

impl<T> Ahead<T> {
    /// Nothing to prefetch.
    pub(crate) const fn nothing() -> Self {
        Ahead {
            first: std::ptr::null(),
            lines: 1,
            share: 0,
            pace: 0,
        }
    }

    /// Returns the part that the `tile`-th tile prefetches in a sweep of that tile alone; complete
    /// after `tiles`.
    pub(crate) fn alone(self, tile: usize, tiles: usize) -> Self {
        Ahead {
            first: self.of_tile(tile % tiles),
            pace: if tile < tiles { self.pace } else { 0 },
            ..self
        }
    }

    /// Returns the number of tiles that together prefetch all of it.
    #[inline(always)]
    pub(crate) const fn tiles(lanes: usize) -> usize {
        8 * lanes * size_of::<T>() / 64
    }

    /// Returns the start of the share of the `tile`-th tile.
    #[inline(always)]
    fn of_tile(&self, tile: usize) -> *const T {
        let (row, column) = (tile / self.lines, tile % self.lines);
        let line = 64 / size_of::<T>();
        self.first.wrapping_add(row * self.share + column * line)
    }
}

/// Computes `c = a · b` for `tiles` tiles of `MR` rows and `NV` vectors.
///
/// `KU` accumulator sets alternate along the reduction if `MR * NV` alone would not keep the
/// multipliers busy.
///
/// # Safety
/// Every pointer of `s` is valid as described there, and no other thread accesses `c`
/// meanwhile.
#[inline(always)]
pub(crate) unsafe fn sweep<L: Lanes, const MR: usize, const NV: usize, const KU: usize>(
    l: L,
    s: &Sweep<L::T>,
) {
    let nr = 2 * L::N;
    let ahead = s.next;
    for tile in 0..s.tiles {
        // These tiles prefetch the next panel.
        let wanted = MR > 2 && tile < Ahead::<L::T>::tiles(L::N);
        let mut next = s.b;
        let mut pace = 0;
        if wanted {
            next = ahead.of_tile(tile);
            pace = ahead.pace;
        }
        if MR > 2 {
            // The output is needed at the end of the tile.
            let mut r = 0;
            while r < MR {
                let row = s.c.wrapping_add((tile * MR + r) * s.ldc);
                l.prefetch(row);
                if NV > 1 {
                    l.prefetch(row.wrapping_add(L::N));
                }
                r += 1;
            }
        }
        // SAFETY: the caller promises `tiles * tile_stride` pointers, for `off + len` elements
        // behind each one, and for `n_offsets * len` rows of `nr` elements of `b`.
        let acc = unsafe {
            let mut acc = [[[l.zero(); NV]; MR]; KU];
            let mut rows = s.rows.add(tile * s.tile_stride);
            let mut b = s.b;
            for _ in 0..s.n_offsets {
                let p: [*const L::T; MR] = array(|r| (*rows.add(r)).add(s.off));
                rows = rows.add(MR);
                let mut k = 0;
                while k + 4 <= s.len {
                    l.prefetch(next);
                    next = next.wrapping_add(pace);
                    let mut u = 0;
                    while u < 4 {
                        step::<L, MR, NV>(l, &mut acc[u % KU], &p, k + u, b.add(u * nr));
                        u += 1;
                    }
                    b = b.add(4 * nr);
                    k += 4;
                }
                while k < s.len {
                    step::<L, MR, NV>(l, &mut acc[0], &p, k, b);
                    b = b.add(nr);
                    k += 1;
                }
            }
            let mut u = 1;
            while u < KU {
                let mut r = 0;
                while r < MR {
                    let mut v = 0;
                    while v < NV {
                        acc[0][r][v] = l.add(acc[0][r][v], acc[u][r][v]);
                        v += 1;
                    }
                    r += 1;
                }
                u += 1;
            }
            acc[0]
        };
        // SAFETY: `c` and `side` are valid for `tiles * MR` rows of `n` columns, `scale` and
        // `bias` for `n`.
        unsafe { finish::<L, MR, NV>(l, s, acc, tile * MR) };
    }
}

/// # Safety
/// `p[..][k]` and `NV` vectors at `b` can be read.
#[inline(always)]
unsafe fn step<L: Lanes, const MR: usize, const NV: usize>(
    l: L,
    acc: &mut [[L::V; NV]; MR],
    p: &[*const L::T; MR],
    k: usize,
    b: *const L::T,
) {
    // SAFETY: the caller's promise.
    unsafe {
        let bv: [L::V; NV] = array(|v| l.load(b.add(v * L::N)));
        let mut r = 0;
        while r < MR {
            let x = l.splat(*p[r].add(k));
            let mut v = 0;
            while v < NV {
                acc[r][v] = l.fma(x, bv[v], acc[r][v]);
                v += 1;
            }
            r += 1;
        }
    }
}

/// # Safety
/// Rows `row..row + MR` of `s.c` can be written, and `s.side`, `s.scale` and `s.bias` read where
/// not null.
#[inline(always)]
pub(crate) unsafe fn finish<L: Lanes, const MR: usize, const NV: usize>(
    l: L,
    s: &Sweep<L::T>,
    acc: [[L::V; NV]; MR],
    row: usize,
) {
    // SAFETY: column `v * N` is only touched below `n`; rows are the caller's promise.
    unsafe {
        if s.n == NV * L::N {
            finish_with(s, acc, row, l, |p, _| l.load(p), |p, x, _| l.store(p, x));
        } else {
            let left = s.n - (NV - 1) * L::N;
            finish_with(
                s,
                acc,
                row,
                l,
                |p, v| {
                    if v + 1 < NV || left == L::N {
                        l.load(p)
                    } else {
                        l.load_part(p, left)
                    }
                },
                |p, x, v| {
                    if v + 1 < NV || left == L::N {
                        l.store(p, x)
                    } else {
                        l.store_part(p, x, left)
                    }
                },
            );
        }
    }
}

/// # Safety
/// As for [`finish`], `load` and `store` touching only columns that exist.
#[inline(always)]
unsafe fn finish_with<L: Lanes, const MR: usize, const NV: usize>(
    s: &Sweep<L::T>,
    mut acc: [[L::V; NV]; MR],
    row: usize,
    l: L,
    load: impl Fn(*const L::T, usize) -> L::V,
    store: impl Fn(*mut L::T, L::V, usize),
) {
    /// Does something for each row and vector; iterators would be several times as much code to optimize.
    macro_rules! each {
        ($r:ident, $v:ident, $do:expr) => {{
            let mut $r = 0;
            while $r < MR {
                let mut $v = 0;
                while $v < NV {
                    $do;
                    $v += 1;
                }
                $r += 1;
            }
        }};
    }
    // SAFETY: the caller's promise.
    unsafe {
        let c = s.c.add(row * s.ldc);
        if s.accumulate {
            each!(
                r,
                v,
                acc[r][v] = l.add(acc[r][v], load(c.add(r * s.ldc + v * L::N), v))
            );
        }
        if s.last {
            let columns = |p: *const L::T| -> [L::V; NV] { array(|v| load(p.add(v * L::N), v)) };
            if !s.scale.is_null() {
                let scale = columns(s.scale);
                let bias = match s.bias.is_null() {
                    true => [l.zero(); NV],
                    false => columns(s.bias),
                };
                each!(r, v, acc[r][v] = l.fma(acc[r][v], scale[v], bias[v]));
            } else if !s.bias.is_null() {
                let bias = columns(s.bias);
                each!(r, v, acc[r][v] = l.add(acc[r][v], bias[v]));
            }
            if !s.side.is_null() {
                let side = s.side.add(row * s.ld_side);
                each!(
                    r,
                    v,
                    acc[r][v] = l.add(acc[r][v], load(side.add(r * s.ld_side + v * L::N), v))
                );
            }
            if let Some((lo, hi)) = s.limits {
                let (lo, hi) = (l.splat(lo), l.splat(hi));
                each!(r, v, acc[r][v] = l.min(hi, l.max(lo, acc[r][v])));
            }
        }
        each!(r, v, store(c.add(r * s.ldc + v * L::N), acc[r][v], v));
    }
}

/// Rows of a matrix to copy to a panel.
pub(crate) struct PackJob<T> {
    pub from: *const T,
    pub ld: usize,
    pub rows: usize,
    /// Columns that exist; zeros follow them.
    pub width: usize,
    pub to: *mut T,
}

/// Rows between the one that is copied and the one that is prefetched.
const PACK_AHEAD: usize = 16;

/// Copies rows of at most two vectors, one behind the other.
///
/// # Safety
/// The rows can be read, and as many rows of two vectors written.
#[inline(always)]
pub(crate) unsafe fn pack_rows<L: Lanes>(l: L, j: &PackJob<L::T>) {
    let (first, second) = (j.width.min(L::N), j.width.saturating_sub(L::N));
    for row in 0..j.rows {
        let from = j.from.wrapping_add(row * j.ld);
        let ahead = from.wrapping_add(PACK_AHEAD * j.ld);
        l.prefetch(ahead);
        l.prefetch(ahead.wrapping_add(L::N));
        // SAFETY: the caller's promise.
        unsafe {
            let to = j.to.add(row * 2 * L::N);
            if second == L::N {
                l.store(to, l.load(from));
                l.store(to.add(L::N), l.load(from.add(L::N)));
                continue;
            }
            let part = |n: usize, at: usize| match n {
                0 => l.zero(),
                n if n == L::N => l.load(from.add(at)),
                n => l.load_part(from.add(at), n),
            };
            l.store(to, part(first, 0));
            l.store(to.add(L::N), part(second, L::N));
        }
    }
}
