//! Pooling of images with channels last.

use crate::data;
use crate::elementwise::grid;
use crate::kernel::{GpuCtx, GpuKernel, Row, int, suffix};
use ferroflow_base::{Result, invalid_argument, unimplemented_error};
use ferroflow_device::TensorArg;
use ferroflow_functors::window::{NHWC, Placed, Rule, pads};
use ferroflow_opdef::{Attrs, KernelBuild};

const FORMAT: &[(&str, &[&str])] = &[("data_format", &["NHWC"])];

pub(crate) const ROWS: &[Row] = &[
    Row::new("MaxPool", pool).strings(FORMAT).only_if(is_flat),
    Row::new("AvgPool", pool).strings(FORMAT).only_if(is_flat),
];

/// Whether windows are over rows and columns alone.
pub(crate) fn is_flat(attrs: &Attrs) -> bool {
    let is_flat = |name| {
        attrs
            .ints(name)
            .is_ok_and(|n| matches!(n[..], [1, _, _, 1]))
    };
    is_flat("ksize") && is_flat("strides")
}

/// The windows of a node, over rows and columns.
pub(crate) struct Windows {
    sizes: [usize; 2],
    rules: [Rule; 2],
}

impl Windows {
    pub(crate) fn of(build: &KernelBuild) -> Result<Windows> {
        let (window, strides) = (build.attrs.ints("ksize")?, build.attrs.ints("strides")?);
        let pads = pads(build.attrs, NHWC)?;
        let ([1, rows, columns, 1], [1, step_h, step_w, 1]) = (&window[..], &strides[..]) else {
            return Err(unimplemented_error!(
                "Pooling is not yet supported on the batch or depth dimension."
            ));
        };
        let size = |n: i64| {
            let size = usize::try_from(n).ok().filter(|n| *n > 0);
            size.ok_or_else(|| invalid_argument!("Sliding window ksize must be positive, got {n}"))
        };
        let rule = |i: usize, stride: i64| Rule {
            stride,
            dilation: 1,
            pad: pads[i],
        };
        Ok(Windows {
            sizes: [size(*rows)?, size(*columns)?],
            rules: [rule(0, *step_h), rule(1, *step_w)],
        })
    }

    pub(crate) fn place(&self, height: usize, width: usize) -> Result<[Placed; 2]> {
        Ok([
            self.rules[0].place(height, self.sizes[0])?,
            self.rules[1].place(width, self.sizes[1])?,
        ])
    }
}

fn pool(build: &KernelBuild) -> Result<Box<dyn GpuKernel>> {
    let is_max = build.def.name == "MaxPool";
    let windows = Windows::of(build)?;
    Ok(Box::new(move |ctx: &mut GpuCtx| {
        let x = ctx.input(0)?;
        let &[batch, height, width, channels] = x.shape().dims() else {
            return Err(invalid_argument!("Input must be 4 or 5-dimensional"));
        };
        let [h, w] = windows.place(height, width)?;
        let y = ctx.alloc(x.dtype(), [batch, h.output, w.output, channels])?;
        let count = y.num_elements();
        if count > 0 {
            let x = data::aligned(ctx, x)?;
            let lanes = if channels.is_multiple_of(4) { 4 } else { 1 };
            let mut args = vec![TensorArg::Tensor(&x), TensorArg::Tensor(&y)];
            let sizes = [
                count, height, width, channels, h.output, w.output, h.window, w.window, h.stride,
                w.stride, h.before, w.before,
            ];
            for size in sizes {
                args.push(TensorArg::I32(int(size)?));
            }
            args.push(TensorArg::I32(i32::from(is_max)));
            let name = format!("pool_{lanes}_{}", suffix(x.dtype())?);
            ctx.run(&name, &grid(count / lanes), &args)?;
        }
        ctx.set_output(0, y)
    }))
}
