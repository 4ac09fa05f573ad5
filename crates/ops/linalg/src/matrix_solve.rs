//! MatrixSolve and MatrixTriangularSolve (TensorFlow: `core/kernels/linalg/matrix_solve_op.cc` and
//! `matrix_triangular_solve_op_impl.h`).

use crate::dense::{Decomposed, Scalar};
use crate::lu::{LARGE, load_as, matrices, product, solve_one, square_batch, substitute};
use ferroflow_base::{Result, invalid_argument};
use ferroflow_functors::binary::{BroadcastPlan, checked_broadcast};
use ferroflow_functors::field::{Field, Promote};
use ferroflow_opdef::{Cost, Expr, GradientCtx, KernelCtx, Op, ShapeCtx};
use ferroflow_tensor::{Complex32, Complex64, PartialShape, Shape, bf16, dispatch, f16};

/// The ops of this file.
pub(crate) const OPS: &[Op] = &[
    Op::new(
        "MatrixSolve",
        "matrix: T, rhs: T -> output: T | adjoint: bool = false; T: type \
         {double,float,half,complex64,complex128}",
    )
    .shape(|ctx| solve_shape(ctx, false))
    .cost(Cost::Expensive)
    .kernel(|build| {
        let adjoint = build.attrs.bool("adjoint")?;
        let dtype = build.input(0)?;
        dispatch!(dtype, T in [f32, f64, Complex32, Complex64] =>
                Ok(Box::new(move |ctx: &mut KernelCtx| solve::<T>(ctx, adjoint))),
                else Err(build.unsupported(dtype)))
    })
    .gradient(solve_gradient),
    Op::new(
        "MatrixTriangularSolve",
        "matrix: T, rhs: T -> output: T | lower: bool = true; adjoint: bool = false; T: \
         type {bfloat16,double,float,half,complex64,complex128}",
    )
    .shape(|ctx| solve_shape(ctx, true))
    .cost(Cost::Expensive)
    .kernel(|build| {
        let adjoint = build.attrs.bool("adjoint")?;
        let lower = build.attrs.bool("lower")?;
        let dtype = build.input(0)?;
        dispatch!(dtype, T in [f32, f64, f16, bf16, Complex32, Complex64] =>
                Ok(Box::new(move |ctx: &mut KernelCtx| triangular_solve::<T>(ctx, lower, adjoint))),
                else Err(build.unsupported(dtype)))
    })
    .gradient(triangular_solve_gradient),
];

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

fn rows_disagree() -> ferroflow_base::Status {
    invalid_argument!("Input matrix and rhs are incompatible.")
}

fn solve<T: Promote + Decomposed>(ctx: &mut KernelCtx, adjoint: bool) -> Result<()>
where
    T::Wide: Scalar,
{
    let (batch, n, cols) = matrices(ctx, 0)?;
    if ctx.shape(1)?.rank() != batch.rank() + 2 {
        return Err(invalid_argument!(
            "All input tensors must have the same rank."
        ));
    }
    let (rhs_batch, rows, m) = matrices(ctx, 1)?;
    if batch != rhs_batch {
        return Err(invalid_argument!(
            "All input tensors must have the same outer dimensions."
        ));
    }
    if n != cols {
        return Err(invalid_argument!(
            "First input (lhs) must be a square matrix."
        ));
    }
    if rows != n {
        return Err(rows_disagree());
    }
    let mut out = ctx.alloc(T::DTYPE, ctx.shape(1)?.clone())?;
    let (x, b) = (ctx.slice::<T>(0)?, ctx.slice::<T>(1)?);
    if x.is_empty() || b.is_empty() {
        return ctx.set_output(0, out);
    }
    let to = out.slice_mut::<T>()?;
    match n >= LARGE {
        true => solve_all(x, b, to, [n, m], adjoint, (T::widen, T::narrow))?,
        false => solve_all(x, b, to, [n, m], adjoint, (T::promote, T::demote))?,
    }
    ctx.set_output(0, out)
}

/// Solves a batch of systems of `n` rows and `m` right-hand sides in another type.
fn solve_all<T: Copy, W: Scalar>(
    x: &[T],
    b: &[T],
    out: &mut [T],
    [n, m]: [usize; 2],
    adjoint: bool,
    (widen, narrow): (impl Fn(T) -> W + Copy, impl Fn(W) -> T),
) -> Result<()> {
    let work = x.chunks_exact(n * n).zip(b.chunks_exact(n * m));
    for ((x, b), out) in work.zip(out.chunks_exact_mut(n * m)) {
        let b: Vec<W> = b.iter().map(|&x| widen(x)).collect();
        let solution = solve_one(load_as(x, n, adjoint, widen), n, &b, m);
        let solution = solution.ok_or_else(not_invertible)?;
        let values = out.iter_mut().zip(solution);
        values.for_each(|(to, x)| *to = narrow(x));
    }
    Ok(())
}

fn not_invertible() -> ferroflow_base::Status {
    invalid_argument!("Input matrix is not invertible.")
}

fn triangular_solve<T: Decomposed>(ctx: &mut KernelCtx, lower: bool, adjoint: bool) -> Result<()> {
    let (a, b) = (ctx.shape(0)?, ctx.shape(1)?);
    for (i, shape) in [a, b].into_iter().enumerate() {
        if shape.rank() < 2 {
            return Err(invalid_argument!(
                "In[{i}] ndims must be >= 2: {}",
                shape.rank()
            ));
        }
    }
    let ((batch, n, cols), (rhs_batch, rows, m)) = (matrices(ctx, 0)?, matrices(ctx, 1)?);
    if n != cols {
        return Err(invalid_argument!(
            "In[0] matrices in the last dimensions must be square ({cols} =/= {n})"
        ));
    }
    let all = checked_broadcast(&batch, &rhs_batch).map_err(|_| {
        invalid_argument!("In[0] and In[1] must have compatible batch dimensions: {a} vs. {b}")
    })?;
    if rows != n {
        let [lower, adjoint] = [lower, adjoint].map(u8::from);
        return Err(invalid_argument!(
            "In[0] mismatch In[1] shape: {n} vs. {rows}: {a} {b} {lower} {adjoint}"
        ));
    }
    let mut shape = all.to_i64();
    shape.extend([n as i64, m as i64]);
    let mut out = ctx.alloc(T::DTYPE, Shape::checked(&shape)?)?;
    let (x, b) = (ctx.slice::<T>(0)?, ctx.slice::<T>(1)?);
    let values = out.slice_mut::<T>()?;
    if values.is_empty() {
        return ctx.set_output(0, out);
    }
    BroadcastPlan::broadcast(&all, &batch, &rhs_batch).elements(all.num_elements(), |i, a, r| {
        let x = &x[a * n * n..(a + 1) * n * n];
        let a: Vec<T::Scalar> = match adjoint {
            false => x.iter().map(|x| x.widen()).collect(),
            true => (0..n * n)
                .map(|i| x[i % n * n + i / n].widen().conj())
                .collect(),
        };
        let b = &b[r * n * m..(r + 1) * n * m];
        let mut b: Vec<T::Scalar> = b.iter().map(|x| x.widen()).collect();
        substitute(&a, n, lower != adjoint, false, &mut b, m);
        let to = &mut values[i * n * m..(i + 1) * n * m];
        to.iter_mut().zip(b).for_each(|(to, x)| *to = T::narrow(x));
    });
    ctx.set_output(0, out)
}

/// Returns the gradients of `a⁻¹ b`, by solving the adjoint system.
fn solved<'g>(g: &GradientCtx<'g>, op: &str) -> Result<(Expr<'g>, Expr<'g>)> {
    let (a, y, d) = (g.x(0), g.y(0), g.dy(0));
    let adjoint = g.attrs().bool("adjoint")?;
    let mut attrs = vec![("adjoint", (!adjoint).into())];
    if op == "MatrixTriangularSolve" {
        attrs.push(g.attr("lower"));
    }
    let db = a.op_with(op, &[d], &attrs);
    let da = match adjoint {
        true => product(y, db, false, true),
        false => product(db, y, false, true),
    };
    Ok((-da, db))
}

fn solve_gradient(g: &mut GradientCtx) -> Result<()> {
    let (da, db) = solved(g, "MatrixSolve")?;
    g.set(0, da)?;
    g.set(1, db)
}

fn triangular_solve_gradient(g: &mut GradientCtx) -> Result<()> {
    let (da, db) = solved(g, "MatrixTriangularSolve")?;
    let (below, above) = match g.attrs().bool("lower")? {
        true => (-1, 0),
        false => (0, -1),
    };
    let da = da.op("MatrixBandPart", &[da.int(below), da.int(above)]);
    // Sums over broadcast batch dimensions.
    let (da, db) = (da.sum_to(g.x(0)), db.sum_to(g.x(1)));
    g.set(0, da)?;
    g.set(1, db)
}
