//! Matrix products: [`gemm_packed`] against a constant matrix, [`gemm`], [`batch_gemm`], and
//! [`gemm_generic`] for the number types without vector code.
//!
//! The loops around the register-blocked kernel are those of Goto and van de Geijn ("Anatomy of
//! high-performance matrix multiplication", TOMS 2008) as BLIS arranges them (Van Zee and van de
//! Geijn, TOMS 2015): the right side is packed in panels as wide as the kernel; blocks of the
//! reduction are sized to the first-level cache, blocks of rows to the second.

pub(crate) mod dots;
pub(crate) mod drive;
pub(crate) mod groups;
pub(crate) mod kernel;
mod pack;
pub(crate) mod stream;
#[cfg(test)]
mod tests;
mod turned;
mod update;

pub use super::epilogue::{Activation, Epilogue};
pub use pack::PackedB;
use pack::Stored;
pub(crate) use turned::turn;
pub use update::{MAX_UPDATE_K, gemm_add, gemm_update};

use super::aligned::{Plain, Scratch, SendPtr};
use super::bf16::{Bf16Weights, bf16_gemm};
use super::math::{UnaryOp, unary_in_place};
use super::table::{DispatchTable, GemmTable};
use bytes::Bytes;
use drive::{Columns, Out, RowSource, Tiles, drive};
use ferroflow_sync::{Inline, Parallelism};
use std::ops::Range;

/// A float type with matrix kernels: `f32` or `f64`.
#[allow(private_bounds, reason = "the trait is sealed by it")]
pub trait GemmElement: Plain + Sealed {
    /// Zero.
    const ZERO: Self;
    /// Rounds a constant.
    fn from_f32(x: f32) -> Self;
    /// Applies an activation to a row.
    fn apply(op: UnaryOp, row: &mut [Self]);
    /// Computes `scale · x + offset` of a row.
    fn affine(row: &mut [Self], scale: Self, offset: Self);
    /// Packs `weights[k][n]`, or the transpose of `weights[n][k]`, for products in `bfloat16`; `None` for
    /// types and CPUs that have none.
    fn bf16(
        _: &dyn Parallelism,
        _: &[Self],
        _: [usize; 2],
        _transposed: bool,
    ) -> Option<PackedB<Self>> {
        None
    }
    /// Returns the matrix of these packed bytes, if there are as many as [`GemmElement::bf16`] makes.
    fn bf16_from_packed(_k: usize, _n: usize, _: Bytes) -> Option<PackedB<Self>> {
        None
    }
}

/// The part of [`GemmElement`] that is private to the crate.
pub(crate) trait Sealed: Copy + PartialOrd {
    /// Returns some zeros, for pixels outside of images.
    fn zeros() -> &'static [Self] {
        &[]
    }
    fn table() -> &'static GemmTable<Self>;
    /// Multiplies in `bfloat16`; matrices for that exist for floats only.
    #[allow(
        clippy::too_many_arguments,
        reason = "the usual shape of a matrix product"
    )]
    fn multiply_bf16(
        _: &dyn Parallelism,
        _: &[Self],
        _lda: usize,
        _m: usize,
        _: &Bf16Weights,
        _: &mut [Self],
        _ldc: usize,
        _: &Epilogue<'_, Self>,
    ) {
        unreachable!("only floats are packed for bfloat16");
    }
}

impl Sealed for f32 {
    fn zeros() -> &'static [f32] {
        &crate::conv::rows::ZEROS
    }
    fn table() -> &'static GemmTable<f32> {
        &DispatchTable::current().gemm
    }
    fn multiply_bf16(
        par: &dyn Parallelism,
        a: &[f32],
        lda: usize,
        m: usize,
        b: &Bf16Weights,
        out: &mut [f32],
        ldc: usize,
        ep: &Epilogue<'_>,
    ) {
        bf16_gemm(par, a, lda, m, b, out, ldc, ep);
    }
}
impl GemmElement for f32 {
    const ZERO: f32 = 0.0;
    fn from_f32(x: f32) -> f32 {
        x
    }
    fn apply(op: UnaryOp, row: &mut [f32]) {
        unary_in_place(op, row);
    }
    fn affine(row: &mut [f32], scale: f32, offset: f32) {
        unary_in_place(UnaryOp::Affine(scale, offset), row);
    }
    fn bf16(
        par: &dyn Parallelism,
        weights: &[f32],
        size: [usize; 2],
        transposed: bool,
    ) -> Option<PackedB> {
        Bf16Weights::is_supported()
            .then(|| PackedB::of_bf16(Bf16Weights::new(par, weights, size, transposed)))
    }
    fn bf16_from_packed(k: usize, n: usize, bytes: Bytes) -> Option<PackedB> {
        let is_supported = Bf16Weights::is_supported();
        let weights = is_supported.then(|| Bf16Weights::from_packed(k, n, bytes))?;
        weights.map(PackedB::of_bf16)
    }
}
impl Sealed for f64 {
    fn table() -> &'static GemmTable<f64> {
        &DispatchTable::current().gemm_double
    }
}
impl GemmElement for f64 {
    const ZERO: f64 = 0.0;
    fn from_f32(x: f32) -> f64 {
        f64::from(x)
    }
    fn apply(op: UnaryOp, row: &mut [f64]) {
        for x in row {
            *x = super::scalar::unary_f64(op, *x);
        }
    }
    fn affine(row: &mut [f64], scale: f64, offset: f64) {
        row.iter_mut().for_each(|x| *x = x.mul_add(scale, offset));
    }
}

/// Checks that `len` elements hold `rows` rows of `cols` columns and stride `ld`.
///
/// # Panics
/// If they do not.
pub(crate) fn check(len: usize, rows: usize, cols: usize, ld: usize, what: &str) {
    assert!(
        cols <= ld || rows <= 1,
        "{what}: {cols} columns with a stride of {ld}"
    );
    if rows > 0 {
        assert!(
            len >= (rows - 1) * ld + cols,
            "{what}: {len} elements for {rows} × {cols}"
        );
    }
}

/// Checks the epilogue's sizes.
pub(crate) fn check_epilogue<T>(ep: &Epilogue<'_, T>, m: usize, n: usize) {
    for (what, values) in [("scale", ep.scale), ("bias", ep.bias)] {
        let len = values.map_or(n, <[T]>::len);
        assert!(len >= n, "{what}: {len} elements for {n} columns");
    }
    if let Some((s, ld)) = ep.side {
        check(s.len(), m, n, ld, "side input");
    }
}

/// A row-major matrix.
pub(crate) struct Rows<T> {
    pub ptr: SendPtr<T>,
    /// Distance from one row to the next.
    pub ld: usize,
    pub k: usize,
    /// Whether a task copies its rows to memory where they do not share cache sets.
    pub spread: bool,
}

/// Bytes of a cache line.
const LINE: usize = 64;
/// Bytes between lines of the same set of a first-level cache.
const SET_STRIDE: usize = 4096;
/// Columns from which copying the left rows takes a small part of the time of the product.
const SPREAD_COLUMNS: usize = 256;
/// Elements of the rows that are copied: short ones are read once only, long ones would take much memory.
const SPREAD_K: (usize, usize) = (256, 4 * 1024);

impl<T: GemmElement> RowSource<T> for Rows<T> {
    fn n_offsets(&self) -> usize {
        1
    }
    fn run(&self) -> usize {
        self.k
    }
    fn fill(&self, rows: Range<usize>, _: Tiles, out: &mut [SendPtr<T>], spare: &mut Scratch) {
        if !self.spread {
            for (p, r) in out.iter_mut().zip(rows) {
                *p = SendPtr(self.ptr.get().wrapping_add(r * self.ld));
            }
            return;
        }
        let ld = self.k.next_multiple_of(LINE / size_of::<T>()) + LINE / size_of::<T>();
        let copies = spare.alloc::<T>(rows.len() * ld);
        for ((p, r), to) in out.iter_mut().zip(rows).zip(copies.chunks_exact_mut(ld)) {
            // SAFETY: the caller of `drive` promises `k` readable elements in each row.
            let row =
                unsafe { std::slice::from_raw_parts(self.ptr.get().add(r * self.ld), self.k) };
            to[..self.k].copy_from_slice(row);
            *p = SendPtr(to.as_mut_ptr());
        }
    }
}

/// Computes `out = epilogue(a · b)` with `a[m][k]` of row stride `lda` and `out[m][n]` of row
/// stride `ldc`.
///
/// # Panics
/// If a slice is too short for its matrix.
#[allow(
    clippy::too_many_arguments,
    reason = "the usual shape of a matrix product"
)]
pub fn gemm_packed<T: GemmElement>(
    par: &dyn Parallelism,
    a: &[T],
    lda: usize,
    m: usize,
    b: &PackedB<T>,
    out: &mut [T],
    ldc: usize,
    ep: &Epilogue<'_, T>,
) {
    check(out.len(), m, b.n(), ldc, "output");
    if let Some(b) = b.bf16() {
        return T::multiply_bf16(par, a, lda, m, b, out, ldc, ep);
    }
    if dots::suits(b.n(), b.k(), ldc, ep) {
        check(a.len(), m, b.k(), lda, "left-hand matrix");
        check_epilogue(ep, m, 1);
        let (mut scratch, width) = (Scratch::take(), 2 * b.table().lanes);
        let column = scratch.alloc::<T>(b.k());
        let rows = b.panel(0).iter().step_by(width);
        column.iter_mut().zip(rows).for_each(|(to, x)| *to = *x);
        return dots::multiply(par, (a, lda), column, &mut out[..m], ep);
    }
    let out = Out::Matrix(SendPtr(out.as_mut_ptr()), ldc);
    // SAFETY: the size was just checked; `out` is exclusively borrowed.
    unsafe { multiply(par, (a, lda), m, b.into(), out, ep, false) }
}

/// Computes what [`gemm`] computes of `a` and the matrix that `b` was packed from, bit by bit: for a matrix that
/// products use again.
///
/// # Panics
/// If a slice is too short for its matrix, or the matrix has one column or is packed for `bfloat16`.
#[allow(
    clippy::too_many_arguments,
    reason = "the usual shape of a matrix product"
)]
pub fn gemm_kept<T: GemmElement>(
    par: &dyn Parallelism,
    a: &[T],
    lda: usize,
    m: usize,
    b: &PackedB<T>,
    out: &mut [T],
    ldc: usize,
    ep: &Epilogue<'_, T>,
) {
    check(out.len(), m, b.n(), ldc, "output");
    assert!(b.n() > 1 && b.bf16().is_none(), "another kernel's matrix");
    let out = Out::Matrix(SendPtr(out.as_mut_ptr()), ldc);
    // SAFETY: the size was just checked; `out` is exclusively borrowed.
    unsafe { multiply(par, (a, lda), m, Columns::Kept(b.into()), out, ep, false) }
}

/// Like [`gemm_packed`], for a right side that may be unpacked; adds the product to `out` if `add`.
///
/// # Safety
/// As for [`drive`], for `out`.
unsafe fn multiply<T: GemmElement>(
    par: &dyn Parallelism,
    (a, lda): (&[T], usize),
    m: usize,
    b: Columns<'_, T>,
    out: Out<'_, T>,
    ep: &Epilogue<'_, T>,
    add: bool,
) {
    let [k, n] = b.size();
    check(a.len(), m, k, lda, "left-hand matrix");
    check_epilogue(ep, m, n);
    let rows = Rows {
        ptr: SendPtr(a.as_ptr().cast_mut()),
        ld: lda,
        k,
        spread: (lda * size_of::<T>()).is_multiple_of(SET_STRIDE)
            && n >= SPREAD_COLUMNS
            && (SPREAD_K.0..=SPREAD_K.1).contains(&k)
            && m > 1,
    };
    // SAFETY: the sizes were just checked; for `out`, the caller's promise.
    unsafe { drive(par, m, &rows, b, out, ep, add) }
}

/// The sizes and layouts of a product: `out[m][n] = op(a) · op(b)`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GemmShape {
    /// Rows of the output.
    pub m: usize,
    /// Columns of the output.
    pub n: usize,
    /// Length of the reduction.
    pub k: usize,
    /// Whether `a` is stored `[k][m]` rather than `[m][k]`.
    pub trans_a: bool,
    /// Whether `b` is stored `[n][k]` rather than `[k][n]`.
    pub trans_b: bool,
    /// Row stride of `a` as stored.
    pub lda: usize,
    /// Row stride of `b` as stored.
    pub ldb: usize,
    /// Row stride of the output.
    pub ldc: usize,
}

impl GemmShape {
    /// Returns dense matrices, stored without gaps.
    pub fn dense(m: usize, n: usize, k: usize, trans_a: bool, trans_b: bool) -> Self {
        let lda = if trans_a { m } else { k };
        let ldb = if trans_b { k } else { n };
        GemmShape {
            m,
            n,
            k,
            trans_a,
            trans_b,
            lda,
            ldb,
            ldc: n,
        }
    }

    /// Returns whether packing a matrix takes longer than the product.
    pub fn is_tiny(&self) -> bool {
        self.m.saturating_mul(self.n).saturating_mul(self.k) <= MAX_TINY
    }
}

/// Products of at most this many terms take longer to pack than to compute.
const MAX_TINY: usize = 64;

/// Ratio of width to height from which transposing a product is faster.
const WIDE: usize = 4;

/// Computes `out = epilogue(op(a) · op(b))`, packing `b` on the way.
///
/// # Panics
/// If a slice is too short for its matrix.
pub fn gemm<T: GemmElement>(
    par: &dyn Parallelism,
    s: &GemmShape,
    a: &[T],
    b: &[T],
    out: &mut [T],
    ep: &Epilogue<'_, T>,
) {
    check(out.len(), s.m, s.n, s.ldc, "output");
    if !s.trans_a && (s.trans_b || s.ldb == 1) && dots::suits(s.n, s.k, s.ldc, ep) {
        check(a.len(), s.m, s.k, s.lda, "left-hand matrix");
        check_epilogue(ep, s.m, 1);
        return dots::multiply(par, (a, s.lda), &b[..s.k], &mut out[..s.m], ep);
    }
    // Transposing a short product takes longer than packing the larger matrix.
    let moves_less = s.n * s.k >= 2 * (s.k + s.n) * s.m;
    if s.trans_b && !s.trans_a && s.n >= WIDE * s.m && moves_less && ep.is_none() {
        // The product of the transposed matrices packs the smaller one.
        check(a.len(), s.m, s.k, s.lda, "left-hand matrix");
        check(b.len(), s.n, s.k, s.ldb, "right-hand matrix");
        return PackedB::with_scratch(par, (a, s.lda, true), s.k, s.m, |a| {
            let mut scratch = Scratch::take();
            let t = scratch.alloc::<T>(s.n * s.m);
            gemm_packed(par, b, s.ldb, s.n, a, t, s.m, ep);
            turn(par, t, s.m, [s.n, s.m], out, s.ldc);
        });
    }
    if turned::suits(s, ep) {
        return turned::multiply(par, s, a, b, out);
    }
    let out = Out::Matrix(SendPtr(out.as_mut_ptr()), s.ldc);
    // SAFETY: the size was checked; `out` is exclusively borrowed.
    unsafe { multiply_into(par, s, a, b, out, ep, false) }
}

/// Like [`gemm`], with any kind of output, which it adds to if `add`.
///
/// # Safety
/// As for [`drive`], for `out`.
unsafe fn multiply_into<T: GemmElement>(
    par: &dyn Parallelism,
    s: &GemmShape,
    a: &[T],
    b: &[T],
    out: Out<'_, T>,
    ep: &Epilogue<'_, T>,
    add: bool,
) {
    let mut scratch = Scratch::take();
    let (a, lda) = match s.trans_a {
        false => (a, s.lda),
        true => {
            check(a.len(), s.k, s.m, s.lda, "left-hand matrix");
            let t = scratch.alloc::<T>(s.m * s.k);
            turn(par, a, s.lda, [s.k, s.m], t, s.k);
            (&*t, s.k)
        }
    };
    // SAFETY: the caller's promise.
    unsafe {
        multiply(
            par,
            (a, lda),
            s.m,
            Columns::Stored(Stored::new(s, b)),
            out,
            ep,
            add,
        )
    }
}

/// Element offsets of one product of a [`batch_gemm`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BatchItem {
    /// Start of its `a`.
    pub a: usize,
    /// Start of its `b`.
    pub b: usize,
    /// Start of its output.
    pub out: usize,
}

/// Computes `batch` products of one shape, parallel over the batch; `item(i)` returns the offsets
/// of the `i`-th.
///
/// The outputs must not overlap: output `i` starts at `i * out_stride`, and `item(i).out` is
/// ignored.
///
/// # Panics
/// If a slice is too short for its matrices.
#[allow(
    clippy::too_many_arguments,
    reason = "the usual shape of a matrix product"
)]
pub fn batch_gemm<T: GemmElement>(
    par: &dyn Parallelism,
    batch: usize,
    s: &GemmShape,
    a: &[T],
    b: &[T],
    out: &mut [T],
    out_stride: usize,
    item: &(dyn Fn(usize) -> BatchItem + Sync),
    act: Activation,
) {
    if batch == 0 || s.m == 0 || s.n == 0 {
        return;
    }
    let size = (s.m - 1) * s.ldc + s.n;
    assert!(batch == 1 || out_stride >= size, "outputs overlap");
    assert!(
        out.len() >= (batch - 1) * out_stride + size,
        "output: too short"
    );
    let ep = Epilogue::new(None, act);
    let is_streamed = !s.trans_a && !s.trans_b && stream::suits(s.m, s.k) && ep.is_none();
    let multiply = |par: &dyn Parallelism, at: BatchItem, out: &mut [T]| {
        let (a, b) = (&a[at.a..], &b[at.b..]);
        if !is_streamed {
            return gemm(par, s, a, b, out, &ep);
        }
        check(a.len(), s.m, s.k, s.lda, "left-hand matrix");
        check(b.len(), s.k, s.n, s.ldb, "right-hand matrix");
        stream::multiply(par, (a, s.lda), (b, s.ldb), (out, s.ldc), [s.m, s.n, s.k]);
    };
    if batch < par.width() {
        for i in 0..batch {
            multiply(par, item(i), &mut out[i * out_stride..]);
        }
        return;
    }
    let base = SendPtr(out.as_mut_ptr());
    par.run_blocks(batch, &|i| {
        // SAFETY: output `i` is inside `out` and, the stride being at least its size, apart
        // from the others; each block runs once.
        let out = unsafe { std::slice::from_raw_parts_mut(base.get().add(i * out_stride), size) };
        multiply(&Inline, item(i), out);
    });
}

/// Computes a plain product for any numeric type: `out[i][j] = finish(Σ mac(…, a[i][k], b[k][j]))`.
///
/// `Acc` may be wider than `T`, such as `f32` for half precision.
///
/// # Panics
/// If a slice is too short for its matrix.
#[allow(
    clippy::too_many_arguments,
    reason = "the usual shape of a matrix product"
)]
pub fn gemm_generic<T: Copy + Sync, U: Send, Acc: Copy + Sync>(
    par: &dyn Parallelism,
    s: &GemmShape,
    a: &[T],
    b: &[T],
    out: &mut [U],
    zero: Acc,
    mac: &(dyn Fn(Acc, T, T) -> Acc + Sync),
    finish: &(dyn Fn(Acc) -> U + Sync),
) {
    check(out.len(), s.m, s.n, s.ldc, "output");
    let (ra, ca) = if s.trans_a { (s.k, s.m) } else { (s.m, s.k) };
    check(a.len(), ra, ca, s.lda, "left-hand matrix");
    let (rb, cb) = if s.trans_b { (s.n, s.k) } else { (s.k, s.n) };
    check(b.len(), rb, cb, s.ldb, "right-hand matrix");
    if s.m == 0 || s.n == 0 {
        return;
    }
    let end = (s.m - 1) * s.ldc + s.n;
    ferroflow_sync::par_chunks_mut(par, &mut out[..end], s.ldc, 4, &|i, row| {
        let mut acc = vec![zero; s.n];
        for k in 0..s.k {
            let x = if s.trans_a {
                a[k * s.lda + i]
            } else {
                a[i * s.lda + k]
            };
            if s.trans_b {
                for (j, acc) in acc.iter_mut().enumerate() {
                    *acc = mac(*acc, x, b[j * s.ldb + k]);
                }
            } else {
                for (acc, y) in acc.iter_mut().zip(&b[k * s.ldb..][..s.n]) {
                    *acc = mac(*acc, x, *y);
                }
            }
        }
        for (o, acc) in row.iter_mut().zip(acc) {
            *o = finish(acc);
        }
    });
}
