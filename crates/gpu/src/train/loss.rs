//! Losses with their gradients, and the gradient of a bias.

use crate::data;
use crate::gather::index_suffix;
use crate::kernel::{FLOATS, GpuCtx, GpuKernel, Row, int, suffix};
use crate::reduce::{Sums, in_parts};
use crate::rows::{blocks, threads};
use ferroflow_base::{Result, invalid_argument};
use ferroflow_device::TensorArg;
use ferroflow_functors::broadcast::broadcast_shape;
use ferroflow_functors::indices;
use ferroflow_opdef::KernelBuild;
use ferroflow_tensor::{DType, Shape, Tensor};

pub(crate) const ROWS: &[Row] = &[
    Row::new("SoftmaxCrossEntropyWithLogits", xent),
    Row::new("SparseSoftmaxCrossEntropyWithLogits", sparse_xent)
        .types(&[("T", FLOATS), ("Tlabels", &[DType::Int32, DType::Int64])]),
    Row::new("L2Loss", l2_loss),
    Row::new("BiasAddGrad", bias_add_grad).strings(&[("data_format", &["NHWC"])]),
];

fn xent(_: &KernelBuild) -> Result<Box<dyn GpuKernel>> {
    Ok(Box::new(|ctx: &mut GpuCtx| {
        let (x, labels) = (ctx.input(0)?, ctx.input(1)?);
        let shape = broadcast_shape(x.shape(), labels.shape()).map_err(|_| {
            invalid_argument!(
                "logits and labels must be broadcastable: logits_size={} labels_size={}",
                x.shape(),
                labels.shape()
            )
        })?;
        let &[rows, n] = shape.dims() else {
            return Err(invalid_argument!(
                "logits and labels must be either 2-dimensional, or broadcasted to be 2-dimensional"
            ));
        };
        let whole = |t: &Tensor| match *t.shape() == shape {
            true => Ok(t.clone()),
            false => data::broadcast(ctx, t, &shape),
        };
        let (x, labels) = (whole(&x)?, whole(&labels)?);
        let loss = ctx.alloc(x.dtype(), [rows])?;
        let grad = ctx.alloc(x.dtype(), shape.clone())?;
        if n == 0 {
            data::zero(ctx, &loss)?;
        } else if rows > 0 {
            let [a, b, c, d] = [&x, &labels, &loss, &grad].map(TensorArg::Tensor);
            let args = [a, b, c, d, TensorArg::I32(int(n)?)];
            int(rows)?;
            let name = format!("xent_{}", suffix(x.dtype())?);
            ctx.run(&name, &blocks(rows, threads(n)), &args)?;
        }
        ctx.set_output(0, loss)?;
        ctx.set_output(1, grad)
    }))
}

fn sparse_xent(_: &KernelBuild) -> Result<Box<dyn GpuKernel>> {
    Ok(Box::new(|ctx: &mut GpuCtx| {
        let (x, labels) = (ctx.input(0)?, ctx.pass(1)?);
        let &[rows, n] = x.shape().dims() else {
            return Err(invalid_argument!(
                "logits must be 2-D, but got shape {}",
                x.shape()
            ));
        };
        if labels.shape().rank() != 1 {
            return Err(invalid_argument!(
                "labels must be 1-D, but got shape {}",
                labels.shape()
            ));
        }
        if labels.num_elements() != rows {
            return Err(invalid_argument!(
                "logits and labels must have the same first dimension, got logits shape {} and labels shape {}",
                x.shape(),
                labels.shape()
            ));
        }
        if n == 0 {
            return Err(invalid_argument!(
                "Must have at least one class, but got logits shape {}",
                x.shape()
            ));
        }
        ctx.check(1, Box::new(move |labels| check_labels(labels, n)))?;
        let loss = ctx.alloc(x.dtype(), [rows])?;
        let grad = ctx.alloc(x.dtype(), x.shape().clone())?;
        if rows > 0 {
            let labels = ctx.input(1)?;
            let [a, b, c, d] = [&x, &labels, &loss, &grad].map(TensorArg::Tensor);
            let args = [a, b, c, d, TensorArg::I32(int(n)?)];
            int(rows)?;
            let of = suffix(x.dtype())?;
            let name = format!("sparse_xent_{of}_{}", index_suffix(labels.dtype()));
            ctx.run(&name, &blocks(rows, threads(n)), &args)?;
        }
        ctx.set_output(0, loss)?;
        ctx.set_output(1, grad)
    }))
}

/// # Errors
/// INVALID_ARGUMENT if a class does not exist, as on CPUs.
fn check_labels(labels: &Tensor, n: usize) -> Result<()> {
    let numbers = indices::ints(labels)?;
    let is_outside = |i: &&i64| usize::try_from(**i).map_or(true, |i| i >= n);
    match numbers.iter().find(is_outside) {
        None => Ok(()),
        Some(label) => Err(invalid_argument!(
            "Received a label value of {label} which is outside the valid range of [0, {n}).  Label values: {labels}"
        )),
    }
}

fn l2_loss(_: &KernelBuild) -> Result<Box<dyn GpuKernel>> {
    Ok(Box::new(|ctx: &mut GpuCtx| {
        let x = ctx.input(0)?;
        let y = ctx.alloc(x.dtype(), Shape::scalar())?;
        let sizes = [1, x.num_elements(), 1];
        in_parts(ctx, &x, sizes, Sums::Squares, 0.5, &y)?;
        ctx.set_output(0, y)
    }))
}

fn bias_add_grad(_: &KernelBuild) -> Result<Box<dyn GpuKernel>> {
    Ok(Box::new(|ctx: &mut GpuCtx| {
        let x = ctx.input(0)?;
        let (Some((&n, outer)), true) = (x.shape().split_last(), x.shape().rank() >= 2) else {
            return Err(invalid_argument!(
                "Input tensor must be at least 2D: {}",
                x.shape()
            ));
        };
        let y = ctx.alloc(x.dtype(), [n])?;
        let sizes = [1, outer.iter().product(), n];
        in_parts(ctx, &x, sizes, Sums::Plain, 1.0, &y)?;
        ctx.set_output(0, y)
    }))
}
