//! SelfAdjointEigV2 (TensorFlow: `core/kernels/linalg/self_adjoint_eig_v2_op_impl.h`).

use crate::dense::{Decomposed, Scalar, chunks, group, matrix, write};
use crate::lu::{adjoint, product, square_batch, squares};
use ferroflow_base::{Result, invalid_argument};
use ferroflow_functors::conversion::converted;
use ferroflow_functors::indices::shape_of;
use ferroflow_opdef::{Cost, Expr, GradientCtx, KernelCtx, Op, ShapeCtx};
use ferroflow_sync::par_chunks_mut;
use ferroflow_tensor::{Complex32, Complex64, DType, PartialShape, Shape, Tensor, dispatch};

/// The ops of this file.
pub(crate) const OPS: &[Op] = &[Op::new(
    "SelfAdjointEigV2",
    "input: T -> e: T, v: T | compute_v: bool = true; T: type \
     {double,float,half,complex64,complex128}",
)
.shape(eig_shape)
.cost(Cost::Expensive)
.kernel(|build| {
    let vectors = build.attrs.bool("compute_v")?;
    let dtype = build.input(0)?;
    dispatch!(dtype, T in [f32, f64, Complex32, Complex64] =>
        Ok(Box::new(move |ctx: &mut KernelCtx| eig::<T>(ctx, dtype, vectors))),
        else Err(build.unsupported(dtype)))
})
.gradient(gradient)];

pub(crate) fn eig_shape(ctx: &mut ShapeCtx) -> Result<()> {
    let batch = square_batch(ctx, 0)?;
    let n = ctx.input(0).dim(-1).or(ctx.input(0).dim(-2));
    let e = match batch.dims() {
        Some(batch) => PartialShape::of(batch.iter().copied().chain([n])),
        None => PartialShape::unknown(),
    };
    ctx.set(0, e);
    let v = match ctx.attrs().bool("compute_v")? {
        true => ctx.input(0),
        false => PartialShape::of([Some(0)]),
    };
    ctx.set(1, v);
    Ok(())
}

/// The results for a matrix: values, vectors, and whether there are any.
struct Job<'a, T> {
    e: &'a mut [T],
    v: &'a mut [T],
    is_done: bool,
}

/// Decomposes matrices, each for a job.
fn decompose<T: Decomposed>(
    ctx: &KernelCtx,
    x: &[T],
    n: usize,
    vectors: bool,
    mut jobs: Vec<Job<'_, T>>,
) -> Result<()> {
    par_chunks_mut(ctx.par(), &mut jobs, 1, group(n, n), &|i, jobs| {
        for job in jobs {
            let a = matrix(&x[i * n * n..][..n * n], n, n);
            if let Some((e, v)) = T::Scalar::self_adjoint_eig(a, vectors) {
                job.e
                    .iter_mut()
                    .zip(e)
                    .for_each(|(to, e)| *to = T::narrow(e));
                write(v.as_ref(), job.v);
                job.is_done = true;
            }
        }
    });
    match jobs.iter().all(|job| job.is_done) {
        true => Ok(()),
        false => Err(invalid_argument!(
            "Self-adjoint eigen decomposition was not successful. The input might not be valid."
        )),
    }
}

/// Decomposes the matrices of input 0; the results have type `to`.
pub(crate) fn eig<T: Decomposed>(ctx: &mut KernelCtx, to: DType, vectors: bool) -> Result<()> {
    let (batch, n) = squares(ctx, 0)?;
    let mut e_out = ctx.alloc(T::DTYPE, shape_of(batch.iter().copied().chain([n]))?)?;
    let mut v_out = match vectors {
        true => ctx.alloc(T::DTYPE, ctx.shape(0)?.clone())?,
        false => Tensor::zeros(T::DTYPE, Shape::from([0]))?,
    };
    let x = ctx.slice::<T>(0)?;
    let mut of_v = chunks(v_out.slice_mut::<T>()?, n * n);
    let job = |e| Job {
        e,
        v: of_v.next().unwrap_or_default(),
        is_done: false,
    };
    let jobs = chunks(e_out.slice_mut::<T>()?, n).map(job).collect();
    decompose(ctx, x, n, vectors, jobs)?;
    ctx.set_output(0, converted(&e_out, to)?)?;
    ctx.set_output(1, converted(&v_out, to)?)
}

/// Computes SelfAdjointEig of the first version: a row of values above the vectors.
pub(crate) fn packed_eig<T: Decomposed>(ctx: &mut KernelCtx) -> Result<()> {
    let (batch, n) = squares(ctx, 0)?;
    let mut out = ctx.alloc(T::DTYPE, shape_of(batch.iter().copied().chain([n + 1, n]))?)?;
    let x = ctx.slice::<T>(0)?;
    let parts = chunks(out.slice_mut::<T>()?, n * n + n).map(|all| all.split_at_mut(n));
    let jobs = parts.map(|(e, v)| Job {
        e,
        v,
        is_done: false,
    });
    let jobs = jobs.collect();
    decompose(ctx, x, n, true, jobs)?;
    ctx.set_output(0, out)
}

/// Returns `1 / x`, or 0 where `x` is 0.
pub(crate) fn safe_reciprocal(x: Expr<'_>) -> Expr<'_> {
    x / (x * x + x.number(1e-20))
}

fn gradient(g: &mut GradientCtx) -> Result<()> {
    let x = g.x(0);
    let de = g.dy(0).op("MatrixDiag", &[]);
    let (v, middle) = match g.attrs().bool("compute_v")? {
        true => {
            let (e, v, dv) = (g.y(0), g.y(1), g.dy(1));
            let differences = e.op("ExpandDims", &[e.int(-2)]) - e.op("ExpandDims", &[e.int(-1)]);
            let f = safe_reciprocal(differences).op("MatrixSetDiag", &[e.zeros_like()]);
            (v, de + f * product(v, dv, true, false))
        }
        false => match x.node("SelfAdjointEigV2", &[x], &[("compute_v", true.into())])[..] {
            [_, v] => (v, de),
            _ => return Ok(()),
        },
    };
    let dx = product(v, product(middle, v, false, true), false, false);
    let dx = dx + adjoint(dx);
    let dx = dx.op("MatrixBandPart", &[dx.int(-1), dx.int(0)]);
    let diagonal = dx.op("MatrixDiagPart", &[]) * 0.5;
    g.set(0, dx.op("MatrixSetDiag", &[diagonal]))
}
