//! Convolutions of images with channels last.

use crate::data;
use crate::elementwise;
use crate::epilogue::{self, Epilogue};
use crate::kernel::{GpuCtx, GpuKernel, Row, int, suffix};
use crate::library::tf32;
use crate::pad::padded;
use crate::ptx::Step;
use ferroflow_base::{Result, invalid_argument};
use ferroflow_device::cuda::{Conv, ConvArgs, Epilogue as BlasEpilogue, Gemm};
use ferroflow_device::{TensorArg, is_capturing};
use ferroflow_functors::window::{NHWC, Placed, Rules, conv_rules};
use ferroflow_opdef::{BinaryFn, KernelBuild};
use ferroflow_tensor::{DType, Tensor};
use std::sync::OnceLock;

const FORMAT: &[(&str, &[&str])] = &[("data_format", &["NHWC"])];

pub(crate) const ROWS: &[Row] = &[
    Row::new("Conv2D", conv).strings(FORMAT),
    Row::new("_FusedConv2D", conv).strings(FORMAT),
    Row::new("DepthwiseConv2dNative", depthwise).strings(FORMAT),
    Row::new("_FusedDepthwiseConv2dNative", depthwise).strings(FORMAT),
];

/// A filter with the output channels first.
#[derive(Clone)]
struct Filter {
    tensor: Tensor,
    /// How many of its input channels are zeros that inputs lack.
    added: usize,
}

struct ConvKernel {
    rules: Rules,
    epilogue: Epilogue,
    /// A constant filter as the convolution reads it.
    filter: OnceLock<Filter>,
}

fn conv(build: &KernelBuild) -> Result<Box<dyn GpuKernel>> {
    Ok(Box::new(ConvKernel {
        rules: conv_rules(build.attrs, NHWC)?,
        epilogue: Epilogue::of(build.attrs)?,
        filter: OnceLock::new(),
    }))
}

impl ConvKernel {
    /// The scaled filter for inputs of `channels`.
    fn filter(&self, ctx: &GpuCtx, channels: usize) -> Result<Filter> {
        if let Some(filter) = self.filter.get() {
            return Ok(filter.clone());
        }
        let mut filter = ctx.input(1)?;
        four(&filter, "filter")?;
        let mut is_constant = ctx.is_constant(1);
        if self.epilogue.scale {
            is_constant &= ctx.is_constant(2);
            let steps = [Step::Binary(BinaryFn::Mul, 0, 1)];
            filter = elementwise::apply(ctx, &steps, &[filter, ctx.input(2)?])?;
        }
        let mut tensor = data::transposed(ctx, &filter, &[3, 0, 1, 2])?;
        let added = match tensor.shape()[3] == channels {
            true => missing_channels(channels, tensor.dtype()),
            false => 0,
        };
        if added > 0 {
            let pads = [(0, 0), (0, 0), (0, 0), (0, added)];
            tensor = padded(ctx, &tensor, &pads, None)?;
        }
        let filter = Filter { tensor, added };
        // What is captured has not been computed.
        if is_constant && !is_capturing() {
            let _ = self.filter.set(filter.clone());
        }
        Ok(filter)
    }
}

/// Channels that an input lacks for tensor cores, which take 16 bytes of them at a time; fewer than three are as fast without.
fn missing_channels(n: usize, dtype: DType) -> usize {
    let lanes = 16 / dtype.size();
    match (3..lanes).contains(&n) && (dtype != DType::Float || tf32()) {
        true => lanes - n,
        false => 0,
    }
}

/// The dimensions of an image batch or a filter.
///
/// # Errors
/// INVALID_ARGUMENT if it has not four.
pub(crate) fn four(t: &Tensor, what: &str) -> Result<[usize; 4]> {
    let dims = t.shape().dims().try_into();
    dims.map_err(|_| invalid_argument!("{what} must be 4-dimensional: {}", t.shape()))
}

impl GpuKernel for ConvKernel {
    fn launch(&self, ctx: &mut GpuCtx) -> Result<()> {
        let mut x = ctx.input(0)?;
        let [batch, _, _, in_c] = four(&x, "input")?;
        let Filter {
            tensor: filter,
            added,
        } = self.filter(ctx, in_c)?;
        let [out_c, rows, columns, filter_c] = four(&filter, "filter")?;
        let of_group = filter_c - added;
        if of_group == 0 || !in_c.is_multiple_of(of_group) || !out_c.is_multiple_of(in_c / of_group)
        {
            return Err(invalid_argument!(
                "input depth must be evenly divisible by filter depth: {in_c} vs {of_group}"
            ));
        }
        let axes = [
            self.rules[0].place(x.shape()[1], rows)?,
            self.rules[1].place(x.shape()[2], columns)?,
        ];
        let mut pad = axes.map(|a| a.before);
        let mut copied = [(0, 0), (0, 0), (0, 0), (0, added)];
        // cuDNN has the same padding on both sides.
        if !axes.iter().all(is_even) {
            copied[1..3].copy_from_slice(&axes.map(|a| (a.before, after(&a))));
            pad = [0, 0];
        }
        if copied.iter().any(|(a, b)| a + b > 0) {
            x = padded(ctx, &x, &copied, None)?;
        }
        let output = [batch, axes[0].output, axes[1].output, out_c];
        let y = ctx.alloc(x.dtype(), output)?;
        if y.num_elements() == 0 {
            return ctx.set_output(0, y);
        }
        let mut at = 2 + usize::from(self.epilogue.scale);
        let bias = match self.epilogue.bias {
            true => ctx.input(at)?,
            false => zeros(ctx, &x, out_c)?,
        };
        at += usize::from(self.epilogue.bias);
        let side = match self.epilogue.side {
            true => Some(ctx.input(at)?),
            false => None,
        };
        let (direct, late) = epilogue::split_side(side, &y);
        let relu = self.epilogue.is_relu() && late.is_empty();
        let conv = Conv {
            dtype: x.dtype(),
            input: four(&x, "input")?,
            filter: [out_c, rows, columns, filter_c],
            output,
            pad,
            stride: axes.map(|a| a.stride),
            dilation: axes.map(|a| a.dilation),
            groups: in_c / of_group,
            has_side: direct.is_some(),
            relu,
            tf32: tf32(),
        };
        let (x, filter) = (data::aligned(ctx, x)?, data::aligned(ctx, filter)?);
        let bias = data::aligned(ctx, bias)?;
        let args = ConvArgs {
            x: &x,
            filter: &filter,
            bias: &bias,
            side: direct.as_ref(),
            y: &y,
        };
        enqueue(ctx, &conv, &args, self.epilogue.bias)?;
        let activation = self.epilogue.activation.filter(|_| !relu);
        epilogue::finish(ctx, &y, &late, activation)?;
        ctx.set_output(0, y)
    }
}

/// Whether a convolution is a matrix product.
pub(crate) fn is_product(conv: &Conv) -> bool {
    let [_, rows, columns, _] = conv.filter;
    [rows, columns] == [1, 1] && conv.stride == [1, 1] && conv.pad == [0, 0] && conv.groups == 1
}

/// Enqueues a convolution: as a matrix product, if it is one and that is faster.
fn enqueue(ctx: &GpuCtx, conv: &Conv, args: &ConvArgs, has_bias: bool) -> Result<()> {
    let convolution = || ctx.library.dnn()?.convolve(ctx.memory, conv, args);
    let [out_c, _, _, in_c] = conv.filter;
    if !is_product(conv) {
        return convolution();
    }
    let gemm = Gemm {
        dtype: conv.dtype,
        m: conv.output[..3].iter().product(),
        n: out_c,
        k: in_c,
        transpose_x: false,
        transpose_w: true,
        batch: 1,
        stride_x: 0,
        stride_w: 0,
        has_side: conv.has_side,
        epilogue: match (has_bias, conv.relu) {
            (false, false) => BlasEpilogue::None,
            (_, false) => BlasEpilogue::Bias,
            (_, true) => BlasEpilogue::BiasRelu,
        },
        tf32: conv.tf32,
    };
    let bias = (gemm.epilogue != BlasEpilogue::None).then_some(args.bias);
    let product = || {
        let tensors = [args.x, args.filter, args.y];
        let blas = ctx.library.blas(ctx.memory)?;
        blas.multiply(ctx.memory, &gemm, tensors, bias, args.side)
    };
    ctx.library.faster(ctx.memory, conv, product, convolution)
}

/// Whether an axis has as many windows with the padding in front of it on both sides.
fn is_even(axis: &Placed) -> bool {
    let window = (axis.window.max(1) - 1) * axis.dilation + 1;
    let length = axis.input + 2 * axis.before;
    length >= window && (length - window) / axis.stride + 1 == axis.output
}

/// Positions of padding behind an axis; those that no window reaches do not count.
pub(crate) fn after(axis: &Placed) -> usize {
    let reach =
        (axis.output.max(1) - 1) * axis.stride + (axis.window.max(1) - 1) * axis.dilation + 1;
    reach.saturating_sub(axis.before + axis.input)
}

fn zeros(ctx: &GpuCtx, like: &Tensor, n: usize) -> Result<Tensor> {
    let zeros = ctx.alloc(like.dtype(), [n])?;
    data::zero(ctx, &zeros)?;
    Ok(zeros)
}

fn depthwise(build: &KernelBuild) -> Result<Box<dyn GpuKernel>> {
    let rules = conv_rules(build.attrs, NHWC)?;
    if rules[0].stride != rules[1].stride {
        return Err(invalid_argument!(
            "Current implementation only supports equal length strides in the row and column dimensions."
        ));
    }
    let epilogue = Epilogue::of(build.attrs)?;
    Ok(Box::new(move |ctx: &mut GpuCtx| {
        let (x, mut filter) = (ctx.input(0)?, ctx.input(1)?);
        let [batch, height, width, channels] = four(&x, "input")?;
        let [rows, columns, filter_c, multiplier] = four(&filter, "filter")?;
        if filter_c != channels {
            return Err(invalid_argument!(
                "input and filter must have the same depth: {channels} vs {filter_c}"
            ));
        }
        let axes = [
            rules[0].place(height, rows)?,
            rules[1].place(width, columns)?,
        ];
        let outputs = channels * multiplier;
        let y = ctx.alloc(x.dtype(), [batch, axes[0].output, axes[1].output, outputs])?;
        let count = y.num_elements();
        if count == 0 {
            return ctx.set_output(0, y);
        }
        let mut at = 2;
        if epilogue.scale {
            let scale = ctx.input(at)?.with_shape([channels, multiplier].into())?;
            let steps = [Step::Binary(BinaryFn::Mul, 0, 1)];
            filter = elementwise::apply(ctx, &steps, &[filter, scale])?;
            at += 1;
        }
        let bias = match epilogue.bias {
            true => Some(ctx.input(at)?),
            false => None,
        };
        if bias.as_ref().is_some_and(|b| b.num_elements() != outputs) {
            return Err(invalid_argument!("the bias must have {outputs} elements"));
        }
        let added = match epilogue.side {
            true => vec![ctx.input(at + usize::from(epilogue.bias))?],
            false => Vec::new(),
        };
        let mut args = vec![
            TensorArg::Tensor(&x),
            TensorArg::Tensor(&filter),
            bias.as_ref().map_or(TensorArg::Null, TensorArg::Tensor),
            TensorArg::Tensor(&y),
        ];
        let [h, w] = axes;
        let sizes = [
            count, height, width, channels, multiplier, h.output, w.output, rows, columns,
            h.stride, w.stride, h.before, w.before, h.dilation, w.dilation,
        ];
        for size in sizes {
            args.push(TensorArg::I32(int(size)?));
        }
        let name = format!("depthwise_{}", suffix(x.dtype())?);
        ctx.run(&name, &elementwise::grid(count), &args)?;
        epilogue::finish(ctx, &y, &added, epilogue.activation)?;
        ctx.set_output(0, y)
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use ferroflow_functors::window::{Pad, Rule};

    #[test]
    fn few_channels_are_filled_up_to_16_bytes() {
        for (n, dtype, expected) in [
            (1, DType::Bfloat16, 0),
            (3, DType::Bfloat16, 5),
            (3, DType::Half, 5),
            (8, DType::Half, 0),
            (4, DType::Float, 0),
            (12, DType::Bfloat16, 0),
        ] {
            assert_eq!(missing_channels(n, dtype), expected, "{n} {dtype}");
        }
    }

    #[test]
    fn padding_behind_an_axis_counts_what_windows_reach() {
        // input, window, stride, dilation: before, after; whether the same on both sides will do.
        for (input, window, stride, dilation, expected) in [
            (5, 3, 1, 1, (1, 1, true)),
            (6, 3, 2, 1, (0, 1, false)),
            (7, 3, 2, 1, (1, 1, true)),
            (5, 2, 1, 1, (0, 1, false)),
            (9, 3, 1, 2, (2, 2, true)),
            (5, 1, 2, 1, (0, 0, true)),
            (6, 1, 2, 1, (0, 0, true)),
        ] {
            let rule = Rule {
                stride,
                dilation,
                pad: Pad::Same,
            };
            let axis = rule.place(input, window).expect("fits");
            assert_eq!(
                (axis.before, after(&axis), is_even(&axis)),
                expected,
                "{input} {window} {stride}"
            );
        }
    }
}
