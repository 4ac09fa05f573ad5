//! BandedTriangularSolve (TensorFlow: `core/kernels/linalg/banded_triangular_solve_op.cc`).

use crate::lu::{matrices, product, store};
use ferroflow_base::{Result, invalid_argument};
use ferroflow_functors::binary::{BroadcastPlan, checked_broadcast};
use ferroflow_functors::broadcast::broadcast_partial;
use ferroflow_functors::field::{Field, Promote};
use ferroflow_functors::indices::shape_of;
use ferroflow_functors::numeric::Num;
use ferroflow_opdef::{Cost, GradientCtx, KernelCtx, Op, ShapeCtx};
use ferroflow_tensor::{Complex32, Complex64, PartialShape, dispatch};

/// The ops of this file.
pub(crate) const OPS: &[Op] = &[Op::new(
    "BandedTriangularSolve",
    "matrix: T, rhs: T -> output: T | lower: bool = true; adjoint: bool = false; T: type \
     {double,float,half,complex64,complex128}",
)
.shape(shape)
.cost(Cost::Expensive)
.kernel(|build| {
    let lower = build.attrs.bool("lower")?;
    let adjoint = build.attrs.bool("adjoint")?;
    let dtype = build.input(0)?;
    dispatch!(dtype, T in [f32, f64, Complex32, Complex64] =>
        Ok(Box::new(move |ctx: &mut KernelCtx| solve::<T>(ctx, lower, adjoint))),
        else Err(build.unsupported(dtype)))
})
.gradient(gradient)];

fn shape(ctx: &mut ShapeCtx) -> Result<()> {
    let (a, b) = (ctx.with_rank_at_least(0, 2)?, ctx.with_rank_at_least(1, 2)?);
    if let (Some([a_batch @ .., bands, n]), Some([b_batch @ .., rows, m])) = (a.dims(), b.dims()) {
        if *bands == Some(0) {
            return Err(invalid_argument!(
                "Number of bands must be positive, but is 0"
            ));
        }
        if let (Some(bands), Some(n)) = (bands, n)
            && bands > n
        {
            return Err(invalid_argument!(
                "Number of bands {bands} cannot exceed the size of the matrix {n}"
            ));
        }
        let of = |dims: &[Option<usize>]| PartialShape::of(dims.iter().copied());
        let batch = broadcast_partial(&of(a_batch), &of(b_batch))?;
        let rows = rows.or(*n);
        let shape = batch
            .dims()
            .map(|batch| PartialShape::of(batch.iter().copied().chain([rows, *m])));
        ctx.set(0, shape.unwrap_or(PartialShape::unknown()));
    }
    Ok(())
}

fn solve<T: Promote>(ctx: &mut KernelCtx, lower: bool, adjoint: bool) -> Result<()> {
    let (a_shape, b_shape) = (ctx.shape(0)?, ctx.shape(1)?);
    for (i, shape) in [a_shape, b_shape].into_iter().enumerate() {
        if shape.rank() < 2 {
            return Err(invalid_argument!(
                "In[{i}] ndims must be >= 2: {}",
                shape.rank()
            ));
        }
    }
    for (i, shape) in [a_shape, b_shape].into_iter().enumerate() {
        if shape.num_elements() == 0 {
            return Err(invalid_argument!(
                "In[{i}] must not be an empty tensor: Tensor<type: {} shape: {shape} values: >",
                T::DTYPE.name()
            ));
        }
    }
    let ((a_batch, bands, n), (b_batch, rows, m)) = (matrices(ctx, 0)?, matrices(ctx, 1)?);
    let all = checked_broadcast(&a_batch, &b_batch).map_err(|_| {
        invalid_argument!(
            "In[0] and In[1] must have compatible batch dimensions: {a_shape} vs. {b_shape}"
        )
    })?;
    if n != rows {
        return Err(invalid_argument!(
            "In[0] mismatch In[1] shape: {n} vs. {rows}: {a_shape} {b_shape} {} {}",
            u8::from(lower),
            u8::from(adjoint)
        ));
    }
    let shape = shape_of(all.iter().copied().chain([n, m]))?;
    let mut out = ctx.alloc(T::DTYPE, shape)?;
    let (a, b) = (ctx.slice::<T>(0)?, ctx.slice::<T>(1)?);
    let values = out.slice_mut::<T>()?;
    let mut singular = false;
    let main = if lower { 0 } else { bands - 1 };
    BroadcastPlan::broadcast(&all, &a_batch, &b_batch).elements(all.num_elements(), |i, ai, bi| {
        let a = &a[ai * bands * n..][..bands * n];
        singular |= a[main * n..][..n].iter().any(|x| x.promote().is_zero());
        // The element in row `r` and column `c`, which the band stores at its row's end or start.
        let at = |r: usize, c: usize| match (lower, adjoint) {
            (true, false) => a[(r - c) * n + r].promote(),
            (true, true) => a[(c - r) * n + c].promote().conj(),
            (false, false) => a[(bands - 1 - (c - r)) * n + r].promote(),
            (false, true) => a[(bands - 1 - (r - c)) * n + c].promote().conj(),
        };
        let b = &b[bi * n * m..][..n * m];
        let mut x: Vec<T::Wide> = b.iter().map(|x| x.promote()).collect();
        let forward = lower != adjoint;
        for step in 0..n {
            let r = if forward { step } else { n - 1 - step };
            let others = match forward {
                true => r.saturating_sub(bands - 1)..r,
                false => r + 1..n.min(r.saturating_add(bands)),
            };
            for k in others {
                let factor = at(r, k);
                for c in 0..m {
                    x[r * m + c] = x[r * m + c].sub(factor.mul(x[k * m + c]));
                }
            }
            let pivot = at(r, r);
            x[r * m..][..m].iter_mut().for_each(|x| *x = x.div(pivot));
        }
        store(&x, &mut values[i * n * m..][..n * m]);
    });
    if singular {
        return Err(invalid_argument!("Input matrix is not invertible."));
    }
    ctx.set_output(0, out)
}

fn gradient(g: &mut GradientCtx) -> Result<()> {
    let (a, y, d) = (g.x(0), g.y(0), g.dy(0));
    let (lower, adjoint) = (g.attrs().bool("lower")?, g.attrs().bool("adjoint")?);
    let attrs = [("lower", lower.into()), ("adjoint", (!adjoint).into())];
    let db = a.op_with("BandedTriangularSolve", &[d], &attrs);
    let full = match adjoint {
        true => product(y, db, false, true),
        false => product(db, y, false, true),
    };
    let shape = a.shape_of();
    let rank = a.op("Rank", &[]);
    let at = (rank - a.int(2)).op("ExpandDims", &[a.int(0)]);
    let bands = shape.op("Slice", &[at, a.ints([1])]);
    let last = bands - a.ints([1]);
    let (from, to) = if lower {
        (-last, a.ints([0]))
    } else {
        (a.ints([0]), last)
    };
    let k = a.make("ConcatV2", &[from, to, a.int(0)], &[("N", 2.into())]);
    let align = [("align", "LEFT_RIGHT".into())];
    let da = full.op_with("MatrixDiagPartV3", &[k, a.number(0.0)], &align);
    // Sums over broadcast batch dimensions.
    let (da, db) = ((-da).sum_to(g.x(0)), db.sum_to(g.x(1)));
    g.set(0, da)?;
    g.set(1, db)
}
