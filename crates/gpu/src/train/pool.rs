//! The gradients of pooling.

use crate::data::aligned;
use crate::elementwise::grid;
use crate::kernel::{GpuCtx, GpuKernel, Row, int, suffix};
use crate::pool::{Windows, is_flat};
use ferroflow_base::{Result, invalid_argument};
use ferroflow_device::TensorArg;
use ferroflow_opdef::KernelBuild;
use ferroflow_tensor::{Shape, Tensor};

const FORMAT: &[(&str, &[&str])] = &[("data_format", &["NHWC"])];

pub(crate) const ROWS: &[Row] = &[
    Row::new("MaxPoolGrad", max_pool)
        .strings(FORMAT)
        .only_if(is_flat),
    Row::new("AvgPoolGrad", avg_pool)
        .strings(FORMAT)
        .only_if(is_flat)
        .host(&["orig_input_shape"]),
];

fn max_pool(build: &KernelBuild) -> Result<Box<dyn GpuKernel>> {
    let windows = Windows::of(build)?;
    Ok(Box::new(move |ctx: &mut GpuCtx| {
        let (x, y, dy) = (ctx.input(0)?, ctx.input(1)?, ctx.input(2)?);
        if y.shape() != dy.shape() {
            return Err(invalid_argument!(
                "Expected grad shape to be {}, but got {}",
                y.shape(),
                dy.shape()
            ));
        }
        let dx = gradient(ctx, &windows, x.shape(), Some([&x, &y]), &dy)?;
        ctx.set_output(0, dx)
    }))
}

fn avg_pool(build: &KernelBuild) -> Result<Box<dyn GpuKernel>> {
    let windows = Windows::of(build)?;
    Ok(Box::new(move |ctx: &mut GpuCtx| {
        let (sizes, dy) = (ctx.host(0)?, ctx.input(1)?);
        if sizes.shape().dims() != [4] {
            return Err(invalid_argument!(
                "out_backprop must be 1-dimensional and 4 elements"
            ));
        }
        let shape = Shape::checked(&ctx.ints(0)?)?;
        let dx = gradient(ctx, &windows, &shape, None, &dy)?;
        ctx.set_output(0, dx)
    }))
}

/// The gradient by the input, of which `largest` is the input and its pooled elements; else it was averaged.
fn gradient(
    ctx: &GpuCtx,
    windows: &Windows,
    shape: &Shape,
    largest: Option<[&Tensor; 2]>,
    dy: &Tensor,
) -> Result<Tensor> {
    let &[batch, height, width, channels] = shape.dims() else {
        return Err(invalid_argument!(
            "tensor_in must be 4-dimensional, not {shape}"
        ));
    };
    let [h, w] = windows.place(height, width)?;
    if dy.shape().dims() != [batch, h.output, w.output, channels] {
        return Err(invalid_argument!(
            "Expected grad shape to be {}, but got {}",
            Shape::from([batch, h.output, w.output, channels]),
            dy.shape()
        ));
    }
    let dx = ctx.alloc(dy.dtype(), shape.clone())?;
    let count = dx.num_elements();
    if count > 0 {
        // Several channels are loaded at once.
        let [x, y, dy] = match largest {
            Some([x, y]) => [x, y, dy],
            None => [dy; 3],
        }
        .map(|t| aligned(ctx, t.clone()));
        let (x, y, dy) = (x?, y?, dy?);
        let mut args: Vec<TensorArg> = [&x, &y, &dy, &dx].map(TensorArg::Tensor).into();
        let sizes = [
            count, height, width, channels, h.output, w.output, h.window, w.window, h.stride,
            w.stride, h.before, w.before,
        ];
        for size in sizes {
            args.push(TensorArg::I32(int(size)?));
        }
        args.push(TensorArg::I32(i32::from(largest.is_some())));
        let lanes = if channels.is_multiple_of(4) { 4 } else { 1 };
        let name = format!("pool_grad_{lanes}_{}", suffix(dx.dtype())?);
        ctx.run(&name, &grid(count / lanes), &args)?;
    }
    Ok(dx)
}
