//! Svd (TensorFlow: `core/kernels/linalg/svd_op_impl.h`, gradient in `python/ops/linalg_grad.py`).

use crate::dense::{Decomposed, Scalar, Singular, chunks, group, matrix, write};
use crate::lu::{adjoint, matrices, product};
use crate::qr::columns;
use crate::self_adjoint_eig::safe_reciprocal;
use faer::linalg::svd::ComputeSvdVectors;
use ferroflow_base::{Result, unimplemented_error};
use ferroflow_functors::conversion::converted;
use ferroflow_functors::field::Field;
use ferroflow_functors::indices::shape_of;
use ferroflow_opdef::{Cost, Expr, GradientCtx, KernelCtx, Op, ShapeCtx};
use ferroflow_sync::par_chunks_mut;
use ferroflow_tensor::{Complex32, Complex64, DType, PartialShape, Shape, Tensor, dispatch};

/// The ops of this file.
pub(crate) const OPS: &[Op] = &[Op::new(
    "Svd",
    "input: T -> s: T, u: T, v: T | compute_uv: bool = true; full_matrices: bool = false; T: \
     type {double,float,half,complex64,complex128}",
)
.shape(shape)
.cost(Cost::Expensive)
.kernel(|build| {
    let vectors = build.attrs.bool("compute_uv")?;
    let full = build.attrs.bool("full_matrices")?;
    let dtype = build.input(0)?;
    dispatch!(dtype, T in [f32, f64, Complex32, Complex64] =>
        Ok(Box::new(move |ctx: &mut KernelCtx| svd::<T>(ctx, dtype, vectors, full))),
        else Err(build.unsupported(dtype)))
})
.gradient(gradient)];

fn shape(ctx: &mut ShapeCtx) -> Result<()> {
    let input = ctx.with_rank_at_least(0, 2)?;
    let vectors = ctx.attrs().bool("compute_uv")?;
    let full = ctx.attrs().bool("full_matrices")?;
    let none = match vectors {
        true => PartialShape::unknown(),
        false => PartialShape::of([]),
    };
    let (mut s, mut u, mut v) = (PartialShape::unknown(), none.clone(), none);
    if let Some([batch @ .., m, n]) = input.dims() {
        let p = m.zip(*n).map(|(m, n)| m.min(n));
        let of = |dims: &[Option<usize>]| PartialShape::of(batch.iter().chain(dims).copied());
        s = of(&[p]);
        if vectors {
            u = of(&[*m, if full { *m } else { p }]);
            v = of(&[*n, if full { *n } else { p }]);
        }
    }
    for (i, shape) in [s, u, v].into_iter().enumerate() {
        ctx.set(i, shape);
    }
    Ok(())
}

/// Decomposes the matrices of input 0; the results have type `to`.
pub(crate) fn svd<T: Decomposed>(
    ctx: &mut KernelCtx,
    to: DType,
    vectors: bool,
    full: bool,
) -> Result<()> {
    let (batch, m, n) = matrices(ctx, 0)?;
    let p = m.min(n);
    let of = |dims: &[usize]| shape_of(batch.iter().chain(dims).copied());
    let (columns_u, columns_v) = if full { (m, n) } else { (p, p) };
    let wanted = match (vectors, full) {
        (false, _) => ComputeSvdVectors::No,
        (true, false) => ComputeSvdVectors::Thin,
        (true, true) => ComputeSvdVectors::Full,
    };
    let mut s_out = ctx.alloc(T::DTYPE, of(&[p])?)?;
    // TensorFlow returns scalars without a meaning.
    let none = || Tensor::zeros(T::DTYPE, Shape::scalar());
    let (mut u_out, mut v_out) = match vectors {
        true => (
            ctx.alloc(T::DTYPE, of(&[m, columns_u])?)?,
            ctx.alloc(T::DTYPE, of(&[n, columns_v])?)?,
        ),
        false => (none()?, none()?),
    };
    let x = ctx.slice::<T>(0)?;
    let nan = T::narrow(T::Scalar::from_f64(f64::NAN));
    let mut of_u = chunks(u_out.slice_mut::<T>()?, m * columns_u);
    let mut of_v = chunks(v_out.slice_mut::<T>()?, n * columns_v);
    let mut of_s = chunks(s_out.slice_mut::<T>()?, p);
    let mut jobs: Vec<[&mut [T]; 3]> = (0..batch.num_elements())
        .map(|_| [&mut of_s, &mut of_u, &mut of_v].map(|all| all.next().unwrap_or_default()))
        .collect();
    par_chunks_mut(ctx.par(), &mut jobs, 1, group(m, n), &|i, jobs| {
        let a = matrix(&x[i * m * n..][..m * n], m, n);
        let parts = T::Scalar::svd(a.as_ref(), wanted);
        for [s_to, u_to, v_to] in jobs {
            let Some(Singular { s, u, v }) = &parts else {
                [s_to, u_to, v_to].into_iter().for_each(|to| to.fill(nan));
                continue;
            };
            s_to.iter_mut()
                .zip(s)
                .for_each(|(to, s)| *to = T::narrow(*s));
            write(u.as_ref(), u_to);
            write(v.as_ref(), v_to);
        }
    });
    drop(jobs);
    ctx.set_output(0, converted(&s_out, to)?)?;
    ctx.set_output(1, converted(&u_out, to)?)?;
    ctx.set_output(2, converted(&v_out, to)?)
}

/// The factors of the gradient: those of the adjoint matrix if it has more rows than columns.
struct Factors<'g> {
    u: Expr<'g>,
    v: Expr<'g>,
    du: Expr<'g>,
    dv: Expr<'g>,
    m: usize,
    n: usize,
    rank: usize,
    full: bool,
}

fn gradient(g: &mut GradientCtx) -> Result<()> {
    let a = g.x(0);
    let ds = g.dy(0).op("MatrixDiag", &[]);
    if !g.attrs().bool("compute_uv")? {
        let vectors = [("compute_uv", true.into())];
        let &[_, u, v] = &a.node("Svd", &[a], &vectors)[..] else {
            return Ok(());
        };
        return g.set(0, product(u, product(ds, v, false, true), false, false));
    }
    let full = g.attrs().bool("full_matrices")?;
    let shape = a.shape();
    let (Some(m), Some(n), Some(rank)) = (shape.dim(-2), shape.dim(-1), shape.rank()) else {
        return Err(unimplemented_error!(
            "SVD gradient has not been implemented for input with unknown inner matrix shape."
        ));
    };
    if full && m.abs_diff(n) > 1 {
        return Err(unimplemented_error!(
            "svd gradient is not implemented for abs(m - n) > 1 when full_matrices is True."
        ));
    }
    let (u, v, du, dv) = (g.y(1), g.y(2), g.dy(1), g.dy(2));
    let dx = match m > n {
        true => adjoint(of_wide(
            g.y(0),
            ds,
            Factors {
                u: v,
                v: u,
                du: dv,
                dv: du,
                m: n,
                n: m,
                rank,
                full,
            },
        )),
        false => of_wide(
            g.y(0),
            ds,
            Factors {
                u,
                v,
                du,
                dv,
                m,
                n,
                rank,
                full,
            },
        ),
    };
    g.set(0, dx)
}

fn of_wide<'g>(s: Expr<'g>, ds: Expr<'g>, factors: Factors<'g>) -> Expr<'g> {
    let Factors {
        u,
        v,
        du,
        dv,
        m,
        n,
        rank,
        full,
    } = factors;
    let diagonal = s.op("MatrixDiag", &[]);
    let squares = s * s;
    let differences =
        squares.op("ExpandDims", &[s.int(-2)]) - squares.op("ExpandDims", &[s.int(-1)]);
    let f = safe_reciprocal(differences).op("MatrixSetDiag", &[s.zeros_like()]);
    let inverse = safe_reciprocal(s).op("MatrixDiag", &[]);
    let (v1, dv1) = match full {
        true => (columns(v, rank, 0, m), columns(dv, rank, 0, m)),
        false => (v, dv),
    };
    let v_dv = product(v1, dv1, true, false);
    let (f_u, f_v) = (f * product(u, du, true, false), f * v_dv);
    let middle = ds
        + product(f_u + adjoint(f_u), diagonal, false, false)
        + product(diagonal, f_v + adjoint(f_v), false, false);
    let mut dx = product(u, product(middle, v1, false, true), false, false);
    if m != n {
        let turned = adjoint(dv1);
        let inside = product(turned, v1, false, false);
        let mut outside = turned - product(inside, v1, false, true);
        if full {
            let (v2, dv2) = (columns(v, rank, m, n - m), columns(dv, rank, m, n - m));
            outside = outside - product(product(v1, dv2, true, false), v2, false, true);
        }
        dx = dx + product(product(u, inverse, false, false), outside, false, false);
    }
    if s.dtype().is_complex() {
        let l = v_dv.op("MatrixDiagPart", &[]).op("MatrixDiag", &[]);
        let skew = product(inverse, adjoint(l) - l, false, false);
        dx = dx + product(u, product(skew, v1, false, true), false, false) * 0.5;
    }
    dx
}
