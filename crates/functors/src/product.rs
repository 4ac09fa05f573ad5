//! Batches of matrix products for every numeric type: `ferroflow_primitives` for `f32` and `f64`,
//! 16-bit floats through `f32`, complex numbers by real products, plain loops for integers.

use crate::bf16_product::{is_worth_pairs, products_of_pairs};
use crate::half_conversion::{narrow_slice, widened_slice};
use crate::strided::par_rows;
use ferroflow_base::Result;
use ferroflow_primitives::gemm::{
    Activation, BatchItem, Epilogue, GemmElement, GemmShape, batch_gemm, gemm, gemm_add,
};
use ferroflow_primitives::vectorized;
use ferroflow_sync::{Parallelism, par_chunks_mut};
use ferroflow_tensor::{Complex32, Complex64, DType, Element, Shape, Tensor, bf16, f16};
use num_complex::Complex;
use std::ops::Neg;

/// An element type of matrix products.
pub trait MatMulElement: Element {
    /// Zero.
    const ZERO: Self;
    /// Writes `batch` dense `m × n` products one after another to `out`; `item(i)` returns the
    /// offsets of the `i`-th operands.
    ///
    /// # Errors
    /// RESOURCE_EXHAUSTED if packed operands do not fit into memory.
    fn products(
        par: &dyn Parallelism,
        batch: usize,
        s: &GemmShape,
        a: &[Self],
        b: &[Self],
        out: &mut [Self],
        item: &(dyn Fn(usize) -> BatchItem + Sync),
    ) -> Result<()>;
    /// Returns the sum of rows of `row_len` elements.
    fn row_sums(par: &dyn Parallelism, rows: &[Self], row_len: usize, out: &mut [Self]);
    /// Returns `self + a * b`; integers wrap.
    fn plus_product(self, a: Self, b: Self) -> Self;
    /// Adds the multiple `scale * x` to `out`.
    fn add_scaled(out: &mut [Self], scale: Self, x: &[Self]) {
        let each = out.iter_mut().zip(x);
        each.for_each(|(o, &x)| *o = o.plus_product(scale, x));
    }
    /// Returns the complex conjugate.
    fn conjugate(self) -> Self {
        self
    }
}

/// Products of at most this many terms are not worth packing a matrix for.
const TINY: usize = 64;

macro_rules! vectorized {
    ($($ty:ty),*) => {$(
        impl MatMulElement for $ty {
            const ZERO: Self = 0.0;
            fn products(
                par: &dyn Parallelism,
                batch: usize,
                s: &GemmShape,
                a: &[Self],
                b: &[Self],
                out: &mut [Self],
                item: &(dyn Fn(usize) -> BatchItem + Sync),
            ) -> Result<()> {
                if s.k == 0 {
                    out.fill(0.0);
                } else if s.m * s.n * s.k <= TINY {
                    loops(par, s, a, b, out, item);
                } else {
                    let stride = s.m * s.n;
                    batch_gemm(par, batch, s, a, b, out, stride, item, Activation::None);
                }
                Ok(())
            }
            fn row_sums(par: &dyn Parallelism, rows: &[Self], row_len: usize, out: &mut [Self]) {
                sums(par, rows, row_len, out, 0.0, |a, b| a + b, |a| a);
            }
            #[inline(always)]
            fn plus_product(self, a: Self, b: Self) -> Self {
                self + a * b
            }
        }
    )*};
}
vectorized!(f32, f64);

macro_rules! halves {
    ($($ty:ty),*) => {$(
        impl MatMulElement for $ty {
            const ZERO: Self = <$ty>::ZERO;
            fn products(
                par: &dyn Parallelism,
                batch: usize,
                s: &GemmShape,
                a: &[Self],
                b: &[Self],
                out: &mut [Self],
                item: &(dyn Fn(usize) -> BatchItem + Sync),
            ) -> Result<()> {
                let (a, b) = (widened_slice(par, a)?, widened_slice(par, b)?);
                let mut wide = Tensor::for_overwrite(f32::DTYPE, Shape::from([out.len()]))?;
                let (a, b, to) = (a.slice()?, b.slice()?, wide.slice_mut()?);
                if is_worth_pairs(Self::DTYPE, s) {
                    products_of_pairs(par, batch, s, [a, b], to, item, &Epilogue::default())?;
                } else {
                    f32::products(par, batch, s, a, b, to, item)?;
                }
                narrow_slice(par, wide.slice()?, out);
                Ok(())
            }
            fn row_sums(par: &dyn Parallelism, rows: &[Self], row_len: usize, out: &mut [Self]) {
                sums(par, rows, row_len, out, 0f32, |a, b| a + b.to_f32(), <$ty>::from_f32);
            }
            #[inline(always)]
            fn plus_product(self, a: Self, b: Self) -> Self {
                self + a * b
            }
        }
    )*};
}
halves!(f16, bf16);

macro_rules! integers {
    ($($ty:ty),*) => {$(
        impl MatMulElement for $ty {
            const ZERO: Self = 0;
            fn products(
                par: &dyn Parallelism,
                _: usize,
                s: &GemmShape,
                a: &[Self],
                b: &[Self],
                out: &mut [Self],
                item: &(dyn Fn(usize) -> BatchItem + Sync),
            ) -> Result<()> {
                loops(par, s, a, b, out, item);
                Ok(())
            }
            fn row_sums(par: &dyn Parallelism, rows: &[Self], row_len: usize, out: &mut [Self]) {
                sums(par, rows, row_len, out, 0, <$ty>::wrapping_add, |a| a);
            }
            #[inline(always)]
            fn plus_product(self, a: Self, b: Self) -> Self {
                self.wrapping_add(a.wrapping_mul(b))
            }
        }
    )*};
}
integers!(i8, u8, i16, u16, i32, u32, i64, u64);

macro_rules! complex {
    ($($ty:ident of $real:ty;)*) => {$(
        impl MatMulElement for $ty {
            const ZERO: Self = $ty::new(0.0, 0.0);
            fn products(
                par: &dyn Parallelism,
                batch: usize,
                s: &GemmShape,
                a: &[Self],
                b: &[Self],
                out: &mut [Self],
                item: &(dyn Fn(usize) -> BatchItem + Sync),
            ) -> Result<()> {
                if s.m * s.n * s.k < SPLIT || s.m.min(s.n) < FEW {
                    loops(par, s, a, b, out, item);
                    return Ok(());
                }
                for (i, out) in out.chunks_exact_mut(s.m * s.n).take(batch).enumerate() {
                    let at = item(i);
                    split_product::<$real>(par, s, &a[at.a..], &b[at.b..], out);
                }
                Ok(())
            }
            fn row_sums(par: &dyn Parallelism, rows: &[Self], row_len: usize, out: &mut [Self]) {
                sums(par, rows, row_len, out, Self::ZERO, |a, b| a + b, |a| a);
            }
            #[inline(always)]
            fn plus_product(self, a: Self, b: Self) -> Self {
                self + a * b
            }
            fn conjugate(self) -> Self {
                self.conj()
            }
        }
    )*};
}
complex! {
    Complex32 of f32;
    Complex64 of f64;
}

/// Multiply-adds of complex numbers from which real products are faster.
const SPLIT: usize = 16 * 1024;
/// Least rows and columns for that.
const FEW: usize = 8;

/// Writes a product of complex matrices as four products of real ones.
fn split_product<T: GemmElement + Neg<Output = T>>(
    par: &dyn Parallelism,
    s: &GemmShape,
    a: &[Complex<T>],
    b: &[Complex<T>],
    out: &mut [Complex<T>],
) {
    let size = |trans: bool, rows: usize, cols: usize, ld: usize| match trans {
        true => (cols - 1) * ld + rows,
        false => (rows - 1) * ld + cols,
    };
    let a = &a[..size(s.trans_a, s.m, s.k, s.lda)];
    let b = &b[..size(s.trans_b, s.k, s.n, s.ldb)];
    let real = |x: &[Complex<T>]| x.iter().map(|x| x.re).collect::<Vec<T>>();
    let imaginary = |x: &[Complex<T>]| x.iter().map(|x| x.im).collect::<Vec<T>>();
    let (a_re, mut a_im, b_re, b_im) = (real(a), imaginary(a), real(b), imaginary(b));
    let (mut re, mut im) = (vec![T::ZERO; s.m * s.n], vec![T::ZERO; s.m * s.n]);
    let shape = GemmShape { ldc: s.n, ..*s };
    let ep = Epilogue::none();
    gemm(par, &shape, &a_re, &b_re, &mut re, &ep);
    gemm(par, &shape, &a_re, &b_im, &mut im, &ep);
    gemm_add(par, &shape, &a_im, &b_re, &mut im, &ep);
    a_im.iter_mut().for_each(|x| *x = -*x);
    gemm_add(par, &shape, &a_im, &b_im, &mut re, &ep);
    for ((out, re), im) in out.iter_mut().zip(re).zip(im) {
        *out = Complex { re, im };
    }
}

fn sums<T: Element, Acc: Copy + Sync>(
    par: &dyn Parallelism,
    rows: &[T],
    row_len: usize,
    out: &mut [T],
    zero: Acc,
    add: impl Fn(Acc, T) -> Acc + Sync,
    finish: impl Fn(Acc) -> T + Sync,
) {
    let group = (16 * 1024 / row_len.max(1)).max(1);
    par_chunks_mut(par, out, group, 1, &|i, out| {
        for (j, o) in out.iter_mut().enumerate() {
            let row = &rows[(i * group + j) * row_len..][..row_len];
            *o = finish(row.iter().fold(zero, |acc, &v| add(acc, v)));
        }
    });
}

fn loops<T: MatMulElement>(
    par: &dyn Parallelism,
    s: &GemmShape,
    a: &[T],
    b: &[T],
    out: &mut [T],
    item: &(dyn Fn(usize) -> BatchItem + Sync),
) {
    par_rows(par, out, s.n, &|row, to| {
        let (at, i) = (item(row / s.m), row % s.m);
        let (a, b) = (&a[at.a..], &b[at.b..]);
        let turned: Vec<T>;
        let a = match s.trans_a {
            true => {
                turned = (0..s.k).map(|k| a[i + k * s.lda]).collect();
                &turned[..]
            }
            false => &a[i * s.lda..][..s.k],
        };
        // Those that programs compute with; SSE2 has no instruction for their products.
        match const { matches!(T::DTYPE, DType::Int32 | DType::Int64) } {
            true => vectorized(
                #[inline(always)]
                || row_product(s, a, b, to),
            ),
            false => row_product(s, a, b, to),
        }
    });
}

/// Writes the product of a row and a matrix.
#[inline(always)]
fn row_product<T: MatMulElement>(s: &GemmShape, a: &[T], b: &[T], to: &mut [T]) {
    match s.trans_b {
        true => dots(a, b, s.ldb, to),
        false => multiples(a, b, s.ldb, to),
    }
}

/// Writes the sums of products of `a` and each row of `b`.
#[inline(always)]
fn dots<T: MatMulElement>(a: &[T], b: &[T], ldb: usize, to: &mut [T]) {
    let row = |j: usize| &b[j * ldb..][..a.len()];
    let dot = |j: usize| {
        let terms = a.iter().zip(row(j));
        terms.fold(T::ZERO, |acc, (a, b)| acc.plus_product(*a, *b))
    };
    if const { T::DTYPE.is_integer() } {
        // Compilers add integers in an order of their own.
        return to.iter_mut().enumerate().for_each(|(j, o)| *o = dot(j));
    }
    let (quads, rest) = to.as_chunks_mut::<4>();
    let done = 4 * quads.len();
    // Each sum waits for its last term, so four are computed at the same time.
    for (j, out) in quads.iter_mut().enumerate() {
        let [p, q, r, t] = [0, 1, 2, 3].map(|i| row(4 * j + i));
        *out = [T::ZERO; 4];
        for ((((x, p), q), r), t) in a.iter().zip(p).zip(q).zip(r).zip(t) {
            let [o, u, v, w] = *out;
            *out = [
                o.plus_product(*x, *p),
                u.plus_product(*x, *q),
                v.plus_product(*x, *r),
                w.plus_product(*x, *t),
            ];
        }
    }
    rest.iter_mut()
        .enumerate()
        .for_each(|(j, o)| *o = dot(done + j));
}

/// Writes the sum of the rows of `b`, times the elements of `a`.
#[inline(always)]
fn multiples<T: MatMulElement>(a: &[T], b: &[T], ldb: usize, to: &mut [T]) {
    to.fill(T::ZERO);
    let n = to.len();
    let (quads, rest) = a.as_chunks::<4>();
    for (i, x) in quads.iter().enumerate() {
        let [p, q, r, t] = [0, 1, 2, 3].map(|k| &b[(4 * i + k) * ldb..][..n]);
        for ((((o, p), q), r), t) in to.iter_mut().zip(p).zip(q).zip(r).zip(t) {
            let sum = o.plus_product(x[0], *p).plus_product(x[1], *q);
            *o = sum.plus_product(x[2], *r).plus_product(x[3], *t);
        }
    }
    for (k, x) in (4 * quads.len()..).zip(rest) {
        for (o, b) in to.iter_mut().zip(&b[k * ldb..]) {
            *o = o.plus_product(*x, *b);
        }
    }
}
