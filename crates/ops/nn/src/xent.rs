//! SoftmaxCrossEntropyWithLogits and SparseSoftmaxCrossEntropyWithLogits (TensorFlow:
//! `core/kernels/sparse_xent_op.cc` and `xent_op.cc`).

use crate::softmax::{each_row, exponentials, largest, last_sum};
use ferroflow_base::{Result, invalid_argument};
use ferroflow_functors::field::Promote;
use ferroflow_functors::indices;
use ferroflow_opdef::{Expr, GradientCtx, KernelBuild, KernelCtx, Op, OpKernel, ShapeCtx};
use ferroflow_primitives::rows;
use ferroflow_tensor::{DType, PartialShape, Shape, Tensor, bf16, dispatch, f16};

/// The ops of this file.
pub(crate) const OPS: &[Op] = &[
    Op::new(
        "SoftmaxCrossEntropyWithLogits",
        "features: T, labels: T -> loss: T, backprop: T | T: type \
         {half,bfloat16,float,double}",
    )
    .shape(shape_dense)
    .kernel(build_dense)
    .gradient(cross_entropy_gradient),
    Op::new(
        "SparseSoftmaxCrossEntropyWithLogits",
        "features: T, labels: Tlabels -> loss: T, backprop: T | T: type \
         {half,bfloat16,float,double}; Tlabels: type {int32,int64} = int64",
    )
    .shape(shape_sparse)
    .kernel(build_sparse)
    .gradient(sparse_cross_entropy_gradient),
];

fn shape_dense(ctx: &mut ShapeCtx) -> Result<()> {
    let shape = ferroflow_functors::broadcast::broadcast_partial(&ctx.input(0), &ctx.input(1))?;
    if shape.rank().is_some_and(|r| r != 2) {
        return Err(invalid_argument!(
            "Shape must be rank 2 but is rank {} for the broadcast of logits and labels",
            shape.rank().unwrap_or(0)
        ));
    }
    ctx.set(0, PartialShape::of([shape.dim(0)]));
    ctx.set(1, PartialShape::of([shape.dim(0), shape.dim(1)]));
    Ok(())
}

fn build_dense(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    dispatch!(build.input(0)?, T in [f32, f64, f16, bf16] => Ok(Box::new(dense::<T>)),
        else Err(build.unsupported(build.input(0)?)))
}

fn dense<T: Promote<Wide = f64>>(ctx: &mut KernelCtx) -> Result<()> {
    let (a, b) = (ctx.shape(0)?, ctx.shape(1)?);
    let shape = ferroflow_functors::broadcast::broadcast_shape(a, b).map_err(|_| {
        invalid_argument!(
            "logits and labels must be broadcastable: logits_size={a} labels_size={b}"
        )
    })?;
    let (2, Some(&rows), Some(&n)) = (shape.rank(), shape.first(), shape.last()) else {
        return Err(invalid_argument!(
            "logits and labels must be either 2-dimensional, or broadcasted to be 2-dimensional"
        ));
    };
    // Position of a row and stride between columns.
    let steps = |s: &Shape| {
        let at = |from_end: usize| {
            let i = s.rank().checked_sub(from_end)?;
            (s[i] > 1).then(|| s[i + 1..].iter().product::<usize>())
        };
        (at(2).unwrap_or(0), at(1).unwrap_or(0))
    };
    let ((row_x, step_x), (row_l, step_l)) = (steps(a), steps(b));
    if T::DTYPE == DType::Float && a == b {
        let labels = ctx.input(1)?.clone();
        let labels = labels.slice::<f32>()?;
        return single_losses(ctx, [rows, n], |r, grad, part| {
            let mut loss = 0.0f64;
            for (j, (g, l)) in grad.iter_mut().zip(&labels[r * n..]).enumerate() {
                if *l != 0.0 {
                    loss += f64::from(l * part(j));
                }
                *g -= l;
            }
            loss as f32
        });
    }
    let (x, labels) = (ctx.slice::<T>(0)?, ctx.slice::<T>(1)?);
    losses(ctx, rows, n, |r, wide, label| {
        for (j, (w, l)) in wide.iter_mut().zip(label.iter_mut()).enumerate() {
            *w = x[r * row_x + j * step_x].promote();
            *l = labels[r * row_l + j * step_l].promote();
        }
    })
    .and_then(|out: (Tensor, Tensor)| narrow_outputs::<T>(ctx, out))
}

/// Computes loss and gradient of each row of `f32`; `less(row, gradient, part)` subtracts the
/// labels from the gradient and adds up their weights times `part(column)`.
fn single_losses(
    ctx: &mut KernelCtx,
    [rows, n]: [usize; 2],
    less: impl Fn(usize, &mut [f32], &dyn Fn(usize) -> f32) -> f32 + Sync,
) -> Result<()> {
    let mut loss = ctx.alloc(DType::Float, Shape::from([rows]))?;
    let mut grad = ctx.alloc(DType::Float, ferroflow_functors::window::shape(&[rows, n])?)?;
    let x = ctx.slice::<f32>(0)?;
    let (to, of) = (grad.slice_mut::<f32>()?, loss.slice_mut::<f32>()?);
    rows::softmax_then(ctx.par(), x, n, to, of, |r, [max, log], grad| {
        less(r, grad, &|j| log - (x[r * n + j] - max))
    });
    ctx.set_output(0, loss)?;
    ctx.set_output(1, grad)
}

/// Computes loss and gradient of each row in double precision; `read(row, logits, labels)` loads a
/// row.
fn losses(
    ctx: &KernelCtx,
    rows: usize,
    n: usize,
    read: impl Fn(usize, &mut [f64], &mut [f64]) + Sync,
) -> Result<(Tensor, Tensor)> {
    let mut loss = ctx.alloc(DType::Double, Shape::from([rows]))?;
    // Each row of the gradient, with the loss after it.
    let width = n + 1;
    let mut grad = ctx.alloc(
        DType::Double,
        ferroflow_functors::window::shape(&[rows, width])?,
    )?;
    each_row(ctx.par(), grad.slice_mut::<f64>()?, width, |r, out| {
        let (grad, loss) = out.split_at_mut(n);
        let (mut x, mut labels) = (vec![0.0; n], vec![0.0; n]);
        read(r, &mut x, &mut labels);
        let max = largest(&x);
        let sum = exponentials(&x, grad);
        let log = sum.ln();
        loss[0] = 0.0;
        for ((g, x), l) in grad.iter_mut().zip(&x).zip(&labels) {
            if *l != 0.0 {
                loss[0] += l * (log - (x - max));
            }
            *g = *g / sum - l;
        }
    });
    let all = grad.slice::<f64>()?;
    for (o, row) in loss
        .slice_mut::<f64>()?
        .iter_mut()
        .zip(all.chunks_exact(width))
    {
        *o = row[n];
    }
    let mut out = ctx.alloc(DType::Double, Shape::from([rows, n]))?;
    if n > 0 {
        let rows = out.slice_mut::<f64>()?.chunks_exact_mut(n);
        for (o, row) in rows.zip(all.chunks_exact(width)) {
            o.copy_from_slice(&row[..n]);
        }
    }
    Ok((loss, out))
}

fn narrow_outputs<T: Promote<Wide = f64>>(
    ctx: &mut KernelCtx,
    out: (Tensor, Tensor),
) -> Result<()> {
    for (i, t) in [out.0, out.1].into_iter().enumerate() {
        let mut y = ctx.alloc(T::DTYPE, t.shape().clone())?;
        for (o, v) in y.slice_mut::<T>()?.iter_mut().zip(t.slice::<f64>()?) {
            *o = T::demote(*v);
        }
        ctx.set_output(i, y)?;
    }
    Ok(())
}

fn shape_sparse(ctx: &mut ShapeCtx) -> Result<()> {
    let features = ctx.with_rank(0, 2)?;
    let labels = ctx.with_rank(1, 1)?;
    let rows = match (features.dim(0), labels.dim(0)) {
        (Some(a), Some(b)) if a != b => {
            return Err(invalid_argument!(
                "Dimensions must be equal, but are {a} and {b}"
            ));
        }
        (a, b) => a.or(b),
    };
    ctx.set(0, PartialShape::of([rows]));
    ctx.set(1, PartialShape::of([rows, features.dim(1)]));
    Ok(())
}

fn build_sparse(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    dispatch!(build.input(0)?, T in [f32, f64, f16, bf16] => Ok(Box::new(sparse::<T>)),
        else Err(build.unsupported(build.input(0)?)))
}

fn sparse<T: Promote<Wide = f64>>(ctx: &mut KernelCtx) -> Result<()> {
    let (a, b) = (ctx.shape(0)?, ctx.shape(1)?);
    let (2, Some(&rows), Some(&n)) = (a.rank(), a.first(), a.last()) else {
        return Err(invalid_argument!("logits must be 2-D, but got shape {a}"));
    };
    if b.rank() != 1 {
        return Err(invalid_argument!("labels must be 1-D, but got shape {b}"));
    }
    if b[0] != rows {
        return Err(invalid_argument!(
            "logits and labels must have the same first dimension, got logits shape {a} and \
             labels shape {b}"
        ));
    }
    if n == 0 {
        return Err(invalid_argument!(
            "Must have at least one class, but got logits shape {a}"
        ));
    }
    let labels = indices::ints(ctx.input(1)?)?;
    if let Some(bad) = labels.iter().find(|&&l| l < 0 || l as u64 >= n as u64) {
        let all: Vec<String> = labels.iter().map(i64::to_string).collect();
        return Err(invalid_argument!(
            "Received a label value of {bad} which is outside the valid range of [0, {n}).  \
             Label values: {}",
            all.join(" ")
        ));
    }
    if T::DTYPE == DType::Float {
        return single_losses(ctx, [rows, n], |r, grad, part| {
            let label = labels[r] as usize;
            grad[label] -= 1.0;
            part(label)
        });
    }
    let x = ctx.slice::<T>(0)?;
    losses(ctx, rows, n, |r, wide, label| {
        for (w, x) in wide.iter_mut().zip(&x[r * n..]) {
            *w = x.promote();
        }
        label[labels[r] as usize] = 1.0;
    })
    .and_then(|out| narrow_outputs::<T>(ctx, out))
}

fn column(x: Expr) -> Expr {
    x.op("ExpandDims", &[x.int(-1)])
}

/// Returns the gradient of the logits: the gradient of the loss times the second output, plus the
/// gradient of that output itself, which second derivatives need.
fn of_logits<'g>(g: &GradientCtx<'g>) -> Expr<'g> {
    let (x, backprop) = (g.x(0), g.y(1));
    let dx = g.arrived(0).map(|loss| column(loss.dense()) * backprop);
    let second = g.arrived(1).map(|d| {
        let (d, p) = (d.dense(), x.op("Softmax", &[]));
        (d - last_sum(d * p)) * p
    });
    match (dx, second) {
        (Some(a), Some(b)) => a + b,
        (Some(one), None) | (None, Some(one)) => one,
        (None, None) => x.zeros_like(),
    }
}

fn cross_entropy_gradient(g: &mut GradientCtx) -> Result<()> {
    g.set(0, of_logits(g))?;
    if g.needs(1) {
        let labels = column(g.dy(0)) * -g.x(0).op("LogSoftmax", &[]);
        let labels = match g.arrived(1) {
            Some(d) => labels - d.dense(),
            None => labels,
        };
        g.set(1, labels)?;
    }
    Ok(())
}

fn sparse_cross_entropy_gradient(g: &mut GradientCtx) -> Result<()> {
    g.set(0, of_logits(g))
}
