//! SelfAdjointEigV2 (TensorFlow: `core/kernels/linalg/self_adjoint_eig_v2_op_impl.h`), which
//! `nalgebra` computes.

use crate::lu::{adjoint, product, square_batch, squares, store};
use ferroflow_base::{Result, invalid_argument};
use ferroflow_functors::field::{Field, Promote};
use ferroflow_functors::indices::shape_of;
use ferroflow_opdef::{Cost, Expr, GradientCtx, KernelCtx, Op, ShapeCtx};
use ferroflow_tensor::{Complex32, Complex64, PartialShape, Shape, Tensor, dispatch};
use nalgebra::{ComplexField, DMatrix, SymmetricEigen};
use std::cmp::Ordering;

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
        Ok(Box::new(move |ctx: &mut KernelCtx| eig::<T>(ctx, vectors))),
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

/// Iterations of a decomposition, for each row, before it counts as failed.
const ITERATIONS: usize = 100;

/// A scalar with a decomposition of dense row-major matrices.
trait Dense: Field {
    /// Returns the eigenvalues of a self-adjoint matrix in ascending order, and the vectors as the
    /// columns of a matrix; `None` if the iteration does not converge. Only the lower triangle is
    /// read.
    fn self_adjoint_eig(a: &[Self], n: usize) -> Option<(Vec<f64>, Vec<Self>)>;
}

impl<W: Field + ComplexField<RealField = f64>> Dense for W {
    fn self_adjoint_eig(a: &[W], n: usize) -> Option<(Vec<f64>, Vec<W>)> {
        if a.iter().any(|x| !ComplexField::is_finite(x)) {
            return None;
        }
        let lower = |i: usize, j: usize| match i.cmp(&j) {
            Ordering::Greater => a[i * n + j],
            Ordering::Equal => <W as Field>::from_f64(a[i * n + i].real_part()),
            Ordering::Less => Field::conj(a[j * n + i]),
        };
        let matrix = DMatrix::from_fn(n, n, lower);
        let eig = SymmetricEigen::try_new(matrix, f64::EPSILON, ITERATIONS * n)?;
        let mut order: Vec<usize> = (0..n).collect();
        order.sort_by(|&a, &b| eig.eigenvalues[a].total_cmp(&eig.eigenvalues[b]));
        let values = order.iter().map(|&i| eig.eigenvalues[i]).collect();
        let vectors = (0..n).flat_map(|row| order.iter().map(move |&i| (row, i)));
        let vectors = vectors.map(|at| eig.eigenvectors[at]).collect();
        Some((values, vectors))
    }
}

fn eig<T: Promote>(ctx: &mut KernelCtx, vectors: bool) -> Result<()>
where
    T::Wide: Dense,
{
    let (batch, n) = squares(ctx, 0)?;
    let mut e_out = ctx.alloc(T::DTYPE, shape_of(batch.iter().copied().chain([n]))?)?;
    let mut v_out = match vectors {
        true => ctx.alloc(T::DTYPE, ctx.shape(0)?.clone())?,
        false => Tensor::zeros(T::DTYPE, Shape::from([0]))?,
    };
    let x = ctx.slice::<T>(0)?;
    let (e_all, v_all) = (e_out.slice_mut::<T>()?, v_out.slice_mut::<T>()?);
    for i in 0..if n > 0 { batch.num_elements() } else { 0 } {
        let a: Vec<T::Wide> = x[i * n * n..][..n * n]
            .iter()
            .map(|x| x.promote())
            .collect();
        let (e, v) = T::Wide::self_adjoint_eig(&a, n).ok_or_else(|| {
            invalid_argument!(
                "Self-adjoint eigen decomposition was not successful. The input might not be valid."
            )
        })?;
        for (to, e) in e_all[i * n..].iter_mut().zip(e) {
            *to = T::demote(T::Wide::from_f64(e));
        }
        if vectors {
            store(&v, &mut v_all[i * n * n..][..n * n]);
        }
    }
    ctx.set_output(0, e_out)?;
    ctx.set_output(1, v_out)
}

/// Computes SelfAdjointEig of the first version: a row of values above the vectors.
pub(crate) fn packed_eig<T: Promote<Wide = f64>>(ctx: &mut KernelCtx) -> Result<()> {
    let (batch, n) = squares(ctx, 0)?;
    let mut out = ctx.alloc(T::DTYPE, shape_of(batch.iter().copied().chain([n + 1, n]))?)?;
    let x = ctx.slice::<T>(0)?;
    let size = (n * n).max(1);
    let outs = out.slice_mut::<T>()?.chunks_exact_mut(size + n);
    for (x, out) in x.chunks_exact(size).zip(outs) {
        let a: Vec<f64> = x.iter().map(|x| x.promote()).collect();
        let (e, v) = f64::self_adjoint_eig(&a, n).ok_or_else(|| {
            invalid_argument!(
                "Self-adjoint eigen decomposition was not successful. The input might not be valid."
            )
        })?;
        let (of_e, of_v) = out.split_at_mut(n);
        store(&e, of_e);
        store(&v, of_v);
    }
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
