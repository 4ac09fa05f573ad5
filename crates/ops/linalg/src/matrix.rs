//! Small dense matrices: MatrixDeterminant, LogMatrixDeterminant, MatrixInverse, MatrixSolve,
//! MatrixTriangularSolve, Cholesky, Cross. All compute in double precision.

use crate::matrix_gradient;
use ferroflow_base::{Result, failed_precondition, invalid_argument};
use ferroflow_functors::binary::{Plan, checked_broadcast};
use ferroflow_functors::numeric::Num;
use ferroflow_opdef::{Cost, KernelBuild, KernelCtx, Op, OpKernel, ShapeCtx};
use ferroflow_tensor::{Complex32, Complex64, Element, PartialShape, Shape, bf16, dispatch, f16};

macro_rules! factory {
    ($kernel:ident) => {
        |build| {
            let dtype = build.input(0)?;
            dispatch!(dtype, T in [f32, f64, Complex32, Complex64] => boxed($kernel::<T>),
                else Err(build.unsupported(dtype)))
        }
    };
}

const SQUARE: &str = "input: T -> output: T | T: type {half,float,double,complex64,complex128} |";

/// MatrixDeterminant, LogMatrixDeterminant, MatrixInverse, MatrixSolve, MatrixTriangularSolve,
/// Cholesky, Cross.
pub(crate) const OPS: &[Op] = &[
    Op::new("MatrixDeterminant", SQUARE)
        .shape(|ctx| {
            let batch = square_batch(ctx, 0)?;
            ctx.set(0, batch);
            Ok(())
        })
        .cost(Cost::Expensive)
        .kernel(factory!(determinant))
    .gradient(matrix_gradient::determinant),
    Op::new("LogMatrixDeterminant", "input: T -> sign: T, log_abs_determinant: T | T: type {half,float,double,complex64,complex128} |")
        .shape(|ctx| {
            let batch = square_batch(ctx, 0)?;
            ctx.set(0, batch.clone());
            ctx.set(1, batch);
            Ok(())
        })
        .cost(Cost::Expensive)
        .kernel(factory!(log_determinant))
    .gradient(matrix_gradient::log_determinant),
    Op::new("MatrixInverse", "input: T -> output: T | adjoint: bool = false; T: type {double,float,half,complex64,complex128} |")
        .shape(square_unchanged)
        .cost(Cost::Expensive)
        .kernel(|build| {
            let adjoint = build.attrs.bool("adjoint")?;
            let dtype = build.input(0)?;
            dispatch!(dtype, T in [f32, f64, Complex32, Complex64] =>
                boxed(move |ctx| inverse::<T>(ctx, adjoint)),
                else Err(build.unsupported(dtype)))
        })
    .gradient(matrix_gradient::inverse),
    Op::new("MatrixSolve", "matrix: T, rhs: T -> output: T | adjoint: bool = false; T: type {double,float,half,complex64,complex128} |")
        .shape(|ctx| solve_shape(ctx, false))
        .cost(Cost::Expensive)
        .kernel(|build| {
            let adjoint = build.attrs.bool("adjoint")?;
            let dtype = build.input(0)?;
            dispatch!(dtype, T in [f32, f64, Complex32, Complex64] =>
                boxed(move |ctx| solve::<T>(ctx, adjoint)),
                else Err(build.unsupported(dtype)))
        })
    .gradient(matrix_gradient::solve),
    Op::new("MatrixTriangularSolve", "matrix: T, rhs: T -> output: T | lower: bool = true; adjoint: bool = false; T: type {bfloat16,double,float,half,complex64,complex128} |")
        .shape(|ctx| solve_shape(ctx, true))
        .cost(Cost::Expensive)
        .kernel(|build| {
            let adjoint = build.attrs.bool("adjoint")?;
            let lower = build.attrs.bool("lower")?;
            let dtype = build.input(0)?;
            dispatch!(dtype, T in [f32, f64, f16, bf16, Complex32, Complex64] =>
                boxed(move |ctx| triangular_solve::<T>(ctx, lower, adjoint)),
                else Err(build.unsupported(dtype)))
        })
    .gradient(matrix_gradient::triangular_solve),
    Op::new("Cholesky", "input: T -> output: T | T: type {double,float,half,complex64,complex128} |")
        .shape(square_unchanged)
        .cost(Cost::Expensive)
        .kernel(factory!(cholesky))
    .gradient(matrix_gradient::cholesky),
    Op::new("Cross", "a: T, b: T -> product: T | T: type {float,double,int32,uint8,int16,int8,int64,bfloat16,uint16,half,uint32,uint64} |")
        .shape(|ctx| {
            let shape = ctx.merge(&ctx.input(0), &ctx.input(1))?;
            ctx.set(0, shape);
            Ok(())
        })
        .kernel(cross_factory)
    .gradient(matrix_gradient::cross),
];

fn boxed(
    f: impl Fn(&mut KernelCtx) -> Result<()> + Send + Sync + 'static,
) -> Result<Box<dyn OpKernel>> {
    Ok(Box::new(f))
}

/// The shape without the last two dimensions of input `i`, which must be square matrices.
fn square_batch(ctx: &ShapeCtx, i: usize) -> Result<PartialShape> {
    let input = ctx.with_rank_at_least(i, 2)?;
    let Some([batch @ .., rows, cols]) = input.dims() else {
        return Ok(PartialShape::unknown());
    };
    match (rows, cols) {
        (Some(rows), Some(cols)) if rows != cols => {
            Err(invalid_argument!("Input matrix must be square."))
        }
        _ => Ok(PartialShape::of(batch.iter().copied())),
    }
}

fn square_unchanged(ctx: &mut ShapeCtx) -> Result<()> {
    square_batch(ctx, 0)?;
    ctx.set(0, ctx.input(0));
    Ok(())
}

fn solve_shape(ctx: &mut ShapeCtx, broadcasts: bool) -> Result<()> {
    let batch = square_batch(ctx, 0)?;
    let rhs = ctx.with_rank_at_least(1, 2)?;
    let shape = match rhs.dims() {
        Some([rhs_batch @ .., rows, cols]) => {
            let rhs_batch = PartialShape::of(rhs_batch.iter().copied());
            let batch = match broadcasts {
                true => ferroflow_functors::broadcast::broadcast_partial(&batch, &rhs_batch)?,
                false => ctx.merge(&batch, &rhs_batch)?,
            };
            let rows = rows.or_else(|| ctx.input(0).dim(-1));
            match batch.dims() {
                Some(batch) => PartialShape::of(batch.iter().copied().chain([rows, *cols])),
                None => PartialShape::unknown(),
            }
        }
        _ => PartialShape::unknown(),
    };
    ctx.set(0, shape);
    Ok(())
}

/// A number the factorizations work on.
trait Wide: Num {
    fn magnitude(self) -> f64;
    fn conj(self) -> Self;
    fn real(x: f64) -> Self;
    /// The real part.
    fn re(self) -> f64;
}

impl Wide for f64 {
    fn magnitude(self) -> f64 {
        self.abs()
    }
    fn conj(self) -> Self {
        self
    }
    fn real(x: f64) -> Self {
        x
    }
    fn re(self) -> f64 {
        self
    }
}

impl Wide for Complex64 {
    fn magnitude(self) -> f64 {
        self.norm()
    }
    fn conj(self) -> Self {
        Complex64::conj(&self)
    }
    fn real(x: f64) -> Self {
        Complex64::new(x, 0.0)
    }
    fn re(self) -> f64 {
        self.re
    }
}

/// An element type of matrices.
trait Entry: Element {
    type Wide: Wide;
    fn up(self) -> Self::Wide;
    fn down(x: Self::Wide) -> Self;
}

macro_rules! entries {
    ($($ty:ty, $wide:ty, |$x:ident| $up:expr, |$y:ident| $down:expr;)*) => {$(
        impl Entry for $ty {
            type Wide = $wide;
            fn up(self) -> $wide { let $x = self; $up }
            fn down($y: $wide) -> Self { $down }
        }
    )*};
}
entries! {
    f32, f64, |x| x.into(), |y| y as f32;
    f64, f64, |x| x, |y| y;
    f16, f64, |x| x.to_f64(), |y| f16::from_f64(y);
    bf16, f64, |x| x.to_f64(), |y| bf16::from_f64(y);
    Complex32, Complex64, |x| Complex64::new(x.re.into(), x.im.into()), |y| Complex32::new(y.re as f32, y.im as f32);
    Complex64, Complex64, |x| x, |y| y;
}

/// The batch dimensions and the two others of input `i`.
fn matrices(ctx: &KernelCtx, i: usize) -> Result<(Shape, usize, usize)> {
    let shape = ctx.shape(i)?;
    match shape.dims() {
        [batch @ .., rows, cols] => Ok((Shape::from(batch), *rows, *cols)),
        _ => Err(invalid_argument!(
            "Input tensor {i} must have rank >= 2, got {}",
            shape.rank()
        )),
    }
}

fn squares(ctx: &KernelCtx, i: usize) -> Result<(Shape, usize)> {
    let (batch, rows, cols) = matrices(ctx, i)?;
    match rows == cols {
        true => Ok((batch, rows)),
        false => Err(invalid_argument!("Input matrix must be square.")),
    }
}

/// A copy of one `n × n` matrix, conjugated and transposed on demand.
fn load<T: Entry>(from: &[T], n: usize, adjoint: bool) -> Vec<T::Wide> {
    (0..n * n)
        .map(|i| match adjoint {
            false => from[i].up(),
            true => from[i % n * n + i / n].up().conj(),
        })
        .collect()
}

/// Factors `a` in place into unit lower and upper triangles with row exchanges; gives where each
/// row came from and whether the number of exchanges is odd.
fn factor<W: Wide>(a: &mut [W], n: usize) -> (Vec<usize>, bool) {
    let mut order: Vec<usize> = (0..n).collect();
    let mut odd = false;
    for k in 0..n {
        let size = |r: usize| a[r * n + k].magnitude();
        let pivot = (k + 1..n).fold(k, |best, r| if size(r) > size(best) { r } else { best });
        if pivot != k {
            odd = !odd;
            order.swap(k, pivot);
            for c in 0..n {
                a.swap(k * n + c, pivot * n + c);
            }
        }
        let head = a[k * n + k];
        if head.is_zero() {
            continue;
        }
        let (top, below) = a.split_at_mut((k + 1) * n);
        let top = &top[k * n..];
        for row in below.chunks_exact_mut(n) {
            let factor = row[k].div(head);
            row[k] = factor;
            for (x, t) in row[k + 1..].iter_mut().zip(&top[k + 1..]) {
                *x = x.sub(factor.mul(*t));
            }
        }
    }
    (order, odd)
}

/// Solves `a x = b` in place for a triangular `a` and `b` of `m` columns.
fn substitute<W: Wide>(a: &[W], n: usize, lower: bool, unit: bool, b: &mut [W], m: usize) {
    for step in 0..n {
        let r = if lower { step } else { n - 1 - step };
        let others = if lower { 0..r } else { r + 1..n };
        for k in others {
            let factor = a[r * n + k];
            for c in 0..m {
                b[r * m + c] = b[r * m + c].sub(factor.mul(b[k * m + c]));
            }
        }
        if !unit {
            for x in &mut b[r * m..(r + 1) * m] {
                *x = x.div(a[r * n + r]);
            }
        }
    }
}

fn diagonal<W: Wide>(a: &[W], n: usize) -> impl Iterator<Item = W> {
    (0..n).map(move |i| a[i * n + i])
}

fn determinant<T: Entry>(ctx: &mut KernelCtx) -> Result<()> {
    let (batch, n) = squares(ctx, 0)?;
    let mut out = ctx.alloc(T::DTYPE, batch)?;
    let x = ctx.slice::<T>(0)?;
    for (i, out) in out.slice_mut::<T>()?.iter_mut().enumerate() {
        let mut a = load(&x[i * n * n..(i + 1) * n * n], n, false);
        let (_, odd) = factor(&mut a, n);
        let det = diagonal(&a, n).fold(T::Wide::ONE, |d, x| d.mul(x));
        *out = T::down(if odd { det.neg() } else { det });
    }
    ctx.set_output(0, out)
}

fn log_determinant<T: Entry>(ctx: &mut KernelCtx) -> Result<()> {
    let (batch, n) = squares(ctx, 0)?;
    let mut sign = ctx.alloc(T::DTYPE, batch.clone())?;
    let mut log = ctx.alloc(T::DTYPE, batch)?;
    let x = ctx.slice::<T>(0)?;
    let outputs = sign.slice_mut::<T>()?.iter_mut().zip(log.slice_mut::<T>()?);
    for (i, (sign, log)) in outputs.enumerate() {
        let mut a = load(&x[i * n * n..(i + 1) * n * n], n, false);
        let (_, odd) = factor(&mut a, n);
        let (mut s, mut l) = (T::Wide::ONE, 0.0);
        for x in diagonal(&a, n) {
            let size = x.magnitude();
            l += size.ln();
            s = if size == 0.0 {
                T::Wide::ZERO
            } else {
                s.mul(x.div(T::Wide::real(size)))
            };
        }
        *sign = T::down(if odd { s.neg() } else { s });
        *log = T::down(T::Wide::real(l));
    }
    ctx.set_output(0, sign)?;
    ctx.set_output(1, log)
}

/// Solves `a x = b`; the columns of `b` are `m`.
fn solve_one<W: Wide>(mut a: Vec<W>, n: usize, b: &[W], m: usize) -> Option<Vec<W>> {
    let (order, _) = factor(&mut a, n);
    if diagonal(&a, n).any(|x| x.is_zero()) {
        return None;
    }
    let mut x: Vec<W> = order
        .iter()
        .flat_map(|&r| &b[r * m..(r + 1) * m])
        .copied()
        .collect();
    substitute(&a, n, true, true, &mut x, m);
    substitute(&a, n, false, false, &mut x, m);
    Some(x)
}

fn store<T: Entry>(from: &[T::Wide], to: &mut [T]) {
    for (to, from) in to.iter_mut().zip(from) {
        *to = T::down(*from);
    }
}

fn inverse<T: Entry>(ctx: &mut KernelCtx, adjoint: bool) -> Result<()> {
    let (_, n) = squares(ctx, 0)?;
    let mut out = ctx.alloc(T::DTYPE, ctx.shape(0)?.clone())?;
    let x = ctx.slice::<T>(0)?;
    if x.is_empty() {
        return ctx.set_output(0, out);
    }
    let mut identity = vec![T::Wide::ZERO; n * n];
    identity
        .iter_mut()
        .step_by(n + 1)
        .for_each(|x| *x = T::Wide::ONE);
    for (x, out) in x
        .chunks_exact(n * n)
        .zip(out.slice_mut::<T>()?.chunks_exact_mut(n * n))
    {
        let inverse = solve_one(load(x, n, adjoint), n, &identity, n);
        store(
            &inverse.ok_or_else(|| invalid_argument!("Input is not invertible."))?,
            out,
        );
    }
    ctx.set_output(0, out)
}

fn rows_disagree(a: &Shape, b: &Shape) -> ferroflow_base::Status {
    invalid_argument!("Input matrix and rhs are incompatible: {a} vs. {b}")
}

fn solve<T: Entry>(ctx: &mut KernelCtx, adjoint: bool) -> Result<()> {
    let ((batch, n), (rhs_batch, rows, m)) = (squares(ctx, 0)?, matrices(ctx, 1)?);
    if batch != rhs_batch || rows != n {
        return Err(rows_disagree(ctx.shape(0)?, ctx.shape(1)?));
    }
    let mut out = ctx.alloc(T::DTYPE, ctx.shape(1)?.clone())?;
    let (x, b) = (ctx.slice::<T>(0)?, ctx.slice::<T>(1)?);
    if x.is_empty() || b.is_empty() {
        return ctx.set_output(0, out);
    }
    let size = n * m;
    let work = x.chunks_exact(n * n).zip(b.chunks_exact(size));
    for ((x, b), out) in work.zip(out.slice_mut::<T>()?.chunks_exact_mut(size)) {
        let b: Vec<T::Wide> = b.iter().map(|x| x.up()).collect();
        let solution = solve_one(load(x, n, adjoint), n, &b, m);
        store(&solution.ok_or_else(not_invertible)?, out);
    }
    ctx.set_output(0, out)
}

fn not_invertible() -> ferroflow_base::Status {
    invalid_argument!("Input matrix is not invertible.")
}

fn triangular_solve<T: Entry>(ctx: &mut KernelCtx, lower: bool, adjoint: bool) -> Result<()> {
    let ((batch, n), (rhs_batch, rows, m)) = (squares(ctx, 0)?, matrices(ctx, 1)?);
    if rows != n {
        return Err(rows_disagree(ctx.shape(0)?, ctx.shape(1)?));
    }
    let all = checked_broadcast(&batch, &rhs_batch)?;
    let mut shape = all.to_i64();
    shape.extend([n as i64, m as i64]);
    let mut out = ctx.alloc(T::DTYPE, Shape::checked(&shape)?)?;
    let (x, b) = (ctx.slice::<T>(0)?, ctx.slice::<T>(1)?);
    let values = out.slice_mut::<T>()?;
    if values.is_empty() {
        return ctx.set_output(0, out);
    }
    let mut singular = false;
    Plan::broadcast(&all, &batch, &rhs_batch).elements(all.num_elements(), |i, a, r| {
        let a = load(&x[a * n * n..(a + 1) * n * n], n, adjoint);
        singular |= diagonal(&a, n).any(|x| x.is_zero());
        let mut b: Vec<T::Wide> = b[r * n * m..(r + 1) * n * m]
            .iter()
            .map(|x| x.up())
            .collect();
        substitute(&a, n, lower != adjoint, false, &mut b, m);
        store(&b, &mut values[i * n * m..(i + 1) * n * m]);
    });
    if singular {
        return Err(not_invertible());
    }
    ctx.set_output(0, out)
}

fn cholesky<T: Entry>(ctx: &mut KernelCtx) -> Result<()> {
    let (_, n) = squares(ctx, 0)?;
    let mut out = ctx.alloc(T::DTYPE, ctx.shape(0)?.clone())?;
    let x = ctx.slice::<T>(0)?;
    if x.is_empty() {
        return ctx.set_output(0, out);
    }
    let size = n * n;
    for (x, out) in x
        .chunks_exact(size)
        .zip(out.slice_mut::<T>()?.chunks_exact_mut(size))
    {
        let mut a = load(x, n, false);
        'rows: for r in 0..n {
            for c in 0..=r {
                let mut sum = a[r * n + c];
                for k in 0..c {
                    sum = sum.sub(a[r * n + k].mul(a[c * n + k].conj()));
                }
                a[r * n + c] = if c < r {
                    sum.div(a[c * n + c])
                } else if sum.re() > 0.0 {
                    T::Wide::real(sum.re().sqrt())
                } else {
                    // TensorFlow's way to say that there is none.
                    for r in 0..n {
                        a[r * n..][..n].fill(T::Wide::ZERO);
                        a[r * n..][..r + 1].fill(T::Wide::real(f64::NAN));
                    }
                    break 'rows;
                };
            }
            a[r * n + r + 1..(r + 1) * n].fill(T::Wide::ZERO);
        }
        store(&a, out);
    }
    ctx.set_output(0, out)
}

fn cross_factory(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    let dtype = build.input(0)?;
    dispatch!(dtype, T in [f32, f64, i8, i16, i32, i64, u8, u16, u32, u64] =>
        boxed(|ctx| cross(ctx, |x: T| x, |x: T| x)),
        else dispatch!(dtype, H in [f16, bf16] =>
            boxed(|ctx| cross(ctx, |x: H| x.to_f32(), H::from_f32)),
            else Err(build.unsupported(dtype))))
}

fn cross<T: Element, W: Num>(
    ctx: &mut KernelCtx,
    up: impl Fn(T) -> W,
    down: impl Fn(W) -> T,
) -> Result<()> {
    let (a, b) = (ctx.shape(0)?, ctx.shape(1)?);
    if a != b {
        return Err(invalid_argument!(
            "Both inputs must be of same shape: {a} vs. {b}"
        ));
    }
    match a.last() {
        None => return Err(invalid_argument!("Input must be at least 1D, but is {a}")),
        Some(3) => {}
        Some(_) => {
            return Err(failed_precondition!(
                "Cross-products are only defined for 3-element vectors."
            ));
        }
    }
    let mut out = ctx.alloc(T::DTYPE, a.clone())?;
    let (a, b) = (ctx.slice::<T>(0)?, ctx.slice::<T>(1)?);
    let vectors = a.chunks_exact(3).zip(b.chunks_exact(3));
    for ((a, b), out) in vectors.zip(out.slice_mut::<T>()?.chunks_exact_mut(3)) {
        let (a, b) = ([0, 1, 2].map(|i| up(a[i])), [0, 1, 2].map(|i| up(b[i])));
        for (i, out) in out.iter_mut().enumerate() {
            let (j, k) = ((i + 1) % 3, (i + 2) % 3);
            *out = down(a[j].mul(b[k]).sub(a[k].mul(b[j])));
        }
    }
    ctx.set_output(0, out)
}
