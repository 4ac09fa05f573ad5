//! Batches of matrix products for every numeric type: `ferroflow_primitives` for `f32` and `f64`,
//! 16-bit floats through `f32`, plain loops for integers and complex numbers.

use crate::half_conversion::{narrow_slice, widened_slice};
use crate::strided::par_rows;
use ferroflow_base::Result;
use ferroflow_primitives::gemm::{Activation, BatchItem, GemmShape, batch_gemm};
use ferroflow_sync::{Parallelism, par_chunks_mut};
use ferroflow_tensor::{Complex32, Complex64, Element, Shape, Tensor, bf16, f16};

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
    /// Adds the multiple `scale * x` to `out`.
    fn add_scaled(out: &mut [Self], scale: Self, x: &[Self]);
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
                    loops(par, s, a, b, out, item, 0.0, |acc, a, b| acc + a * b);
                } else {
                    let stride = s.m * s.n;
                    batch_gemm(par, batch, s, a, b, out, stride, item, Activation::None);
                }
                Ok(())
            }
            fn row_sums(par: &dyn Parallelism, rows: &[Self], row_len: usize, out: &mut [Self]) {
                sums(par, rows, row_len, out, 0.0, |a, b| a + b, |a| a);
            }
            fn add_scaled(out: &mut [Self], scale: Self, x: &[Self]) {
                out.iter_mut().zip(x).for_each(|(o, &x)| *o += scale * x);
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
                f32::products(par, batch, s, a.slice()?, b.slice()?, wide.slice_mut()?, item)?;
                narrow_slice(par, wide.slice()?, out);
                Ok(())
            }
            fn row_sums(par: &dyn Parallelism, rows: &[Self], row_len: usize, out: &mut [Self]) {
                sums(par, rows, row_len, out, 0f32, |a, b| a + b.to_f32(), <$ty>::from_f32);
            }
            fn add_scaled(out: &mut [Self], scale: Self, x: &[Self]) {
                out.iter_mut().zip(x).for_each(|(o, &x)| *o += scale * x);
            }
        }
    )*};
}
halves!(f16, bf16);

macro_rules! plain {
    ($($ty:ty, $zero:expr, $mul_add:expr, $add:expr, $conj:expr;)*) => {$(
        impl MatMulElement for $ty {
            const ZERO: Self = $zero;
            fn products(
                par: &dyn Parallelism,
                _: usize,
                s: &GemmShape,
                a: &[Self],
                b: &[Self],
                out: &mut [Self],
                item: &(dyn Fn(usize) -> BatchItem + Sync),
            ) -> Result<()> {
                loops(par, s, a, b, out, item, $zero, $mul_add);
                Ok(())
            }
            fn row_sums(par: &dyn Parallelism, rows: &[Self], row_len: usize, out: &mut [Self]) {
                sums(par, rows, row_len, out, $zero, $add, |a| a);
            }
            fn add_scaled(out: &mut [Self], scale: Self, x: &[Self]) {
                out.iter_mut().zip(x).for_each(|(o, &x)| *o = $mul_add(*o, scale, x));
            }
            fn conjugate(self) -> Self {
                $conj(self)
            }
        }
    )*};
}
macro_rules! integers {
    ($($ty:ty),*) => {
        plain! {$(
            $ty, 0, |acc: $ty, a: $ty, b: $ty| acc.wrapping_add(a.wrapping_mul(b)),
            <$ty>::wrapping_add, |a| a;
        )*}
    };
}
integers!(i8, u8, i16, u16, i32, u32, i64, u64);
plain! {
    Complex32, Complex32::new(0.0, 0.0), |acc, a, b| acc + a * b, |a, b| a + b, |a: Self| a.conj();
    Complex64, Complex64::new(0.0, 0.0), |acc, a, b| acc + a * b, |a, b| a + b, |a: Self| a.conj();
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

#[allow(
    clippy::too_many_arguments,
    reason = "the usual shape of a matrix product"
)]
fn loops<T: Element>(
    par: &dyn Parallelism,
    s: &GemmShape,
    a: &[T],
    b: &[T],
    out: &mut [T],
    item: &(dyn Fn(usize) -> BatchItem + Sync),
    zero: T,
    mul_add: impl Fn(T, T, T) -> T + Sync,
) {
    par_rows(par, out, s.n, &|row, to| {
        let (at, i) = (item(row / s.m), row % s.m);
        let (a, b) = (&a[at.a..], &b[at.b..]);
        let (step, start) = if s.trans_a {
            (s.lda, i)
        } else {
            (1, i * s.lda)
        };
        if s.trans_b {
            let row = |j: usize| &b[j * s.ldb..][..s.k];
            let (quads, rest) = to.as_chunks_mut::<4>();
            // Each sum waits for its last term, so four are computed at the same time.
            for (j, out) in quads.iter_mut().enumerate() {
                let [p, q, r, t] = [0, 1, 2, 3].map(|i| row(4 * j + i));
                *out = [zero; 4];
                for (k, (((p, q), r), t)) in p.iter().zip(q).zip(r).zip(t).enumerate() {
                    let x = a[start + k * step];
                    let [o, u, v, w] = *out;
                    *out = [
                        mul_add(o, x, *p),
                        mul_add(u, x, *q),
                        mul_add(v, x, *r),
                        mul_add(w, x, *t),
                    ];
                }
            }
            let done = 4 * quads.len();
            for (j, o) in rest.iter_mut().enumerate() {
                let terms = row(done + j).iter().enumerate();
                *o = terms.fold(zero, |acc, (k, &b)| mul_add(acc, a[start + k * step], b));
            }
        } else {
            to.fill(zero);
            for k in 0..s.k {
                let x = a[start + k * step];
                for (o, &b) in to.iter_mut().zip(&b[k * s.ldb..]) {
                    *o = mul_add(*o, x, b);
                }
            }
        }
    });
}
