//! The gradients of convolutions of images with channels last.

use crate::conv::{after, four, is_product};
use crate::data;
use crate::elementwise::grid;
use crate::kernel::{GpuCtx, GpuKernel, Row, int, suffix};
use crate::library::tf32;
use crate::matmul::multiply;
use crate::pad::{padded, unpadded};
use ferroflow_base::{Result, invalid_argument};
use ferroflow_device::cuda::{Conv, ConvGradient, Epilogue, Gemm};
use ferroflow_device::{Grid, TensorArg};
use ferroflow_functors::window::{NHWC, Placed, Rules, conv_rules};
use ferroflow_opdef::KernelBuild;
use ferroflow_tensor::{Shape, Tensor};

const FORMAT: &[(&str, &[&str])] = &[("data_format", &["NHWC"])];

pub(crate) const ROWS: &[Row] = &[
    Row::new("Conv2DBackpropInput", conv)
        .strings(FORMAT)
        .host(&["input_sizes"]),
    Row::new("Conv2DBackpropFilter", conv)
        .strings(FORMAT)
        .host(&["filter_sizes"]),
    Row::new("DepthwiseConv2dNativeBackpropInput", depthwise)
        .strings(FORMAT)
        .host(&["input_sizes"]),
    Row::new("DepthwiseConv2dNativeBackpropFilter", depthwise)
        .strings(FORMAT)
        .host(&["filter_sizes"]),
];

/// The gradient of a convolution by one of its inputs.
struct Gradient {
    op: String,
    rules: Rules,
    of: ConvGradient,
}

/// Shapes and tensors of a convolution. `input` or `filter` is the shape of what is computed.
struct Operands {
    input: [usize; 4],
    filter: [usize; 4],
    /// The other operand.
    given: Tensor,
    dy: Tensor,
    axes: [Placed; 2],
}

impl Gradient {
    fn new(build: &KernelBuild) -> Result<Gradient> {
        Ok(Gradient {
            op: build.def.name.to_string(),
            rules: conv_rules(build.attrs, NHWC)?,
            of: match build.def.name.ends_with("Input") {
                true => ConvGradient::Input,
                false => ConvGradient::Filter,
            },
        })
    }

    fn operands(&self, ctx: &GpuCtx, is_depthwise: bool) -> Result<Operands> {
        let op = &self.op;
        let (sizes_at, given_at) = match self.of {
            ConvGradient::Input => (0, 1),
            ConvGradient::Filter => (1, 0),
        };
        let (sizes, given, dy) = (ctx.host(sizes_at)?, ctx.input(given_at)?, ctx.input(2)?);
        if sizes.shape().rank() != 1 {
            return Err(invalid_argument!(
                "{op}: sizes input must be 1-dim, not {}",
                sizes.shape().rank()
            ));
        }
        let sizes = Shape::checked(&ctx.ints(sizes_at)?)?;
        let known = four(&given, "operand")?;
        let gradient = four(&dy, "out_backprop")?;
        let (input, filter) = match (self.of, sizes.dims()) {
            (ConvGradient::Input, &[h, w]) => ([gradient[0], h, w, known[2]], known),
            (ConvGradient::Input, &[b, h, w, c]) => ([b, h, w, c], known),
            (ConvGradient::Filter, &[h, w, i, o]) => (known, [h, w, i, o]),
            _ => {
                return Err(invalid_argument!(
                    "{op}: the sizes must be 4 numbers, not {sizes}"
                ));
            }
        };
        let channels = match is_depthwise {
            true => filter[2] == input[3],
            false => filter[2] > 0 && input[3].is_multiple_of(filter[2]),
        };
        if !channels {
            return Err(invalid_argument!(
                "{op}: input depth must be evenly divisible by filter depth: {} vs {}",
                input[3],
                filter[2]
            ));
        }
        let axes = [
            self.rules[0].place(input[1], filter[0])?,
            self.rules[1].place(input[2], filter[1])?,
        ];
        let outputs = match is_depthwise {
            true => filter[2] * filter[3],
            false => filter[3],
        };
        let computed = [input[0], axes[0].output, axes[1].output, outputs];
        if gradient != computed {
            return Err(invalid_argument!(
                "{op}: Size of out_backprop doesn't match computed: actual = {}, computed = {}",
                dy.shape(),
                Shape::from(computed)
            ));
        }
        Ok(Operands {
            input,
            filter,
            given,
            dy,
            axes,
        })
    }
}

fn conv(build: &KernelBuild) -> Result<Box<dyn GpuKernel>> {
    let gradient = Gradient::new(build)?;
    Ok(Box::new(move |ctx: &mut GpuCtx| {
        let of = gradient.of;
        let operands = gradient.operands(ctx, false)?;
        let shape = match of {
            ConvGradient::Input => operands.input,
            ConvGradient::Filter => operands.filter,
        };
        let is_empty = operands.given.num_elements() == 0 || operands.dy.num_elements() == 0;
        if is_empty || shape.contains(&0) {
            let y = ctx.alloc(operands.dy.dtype(), shape)?;
            data::zero(ctx, &y)?;
            return ctx.set_output(0, y);
        }
        let y = match of {
            ConvGradient::Input => operands.by_input(ctx)?,
            ConvGradient::Filter => operands.by_filter(ctx)?,
        };
        ctx.set_output(0, y)
    }))
}

impl Operands {
    /// The convolution with an input of `padded` sizes, which needs padding on both sides alike.
    fn describe(&self, input: [usize; 4], pad: [usize; 2]) -> Conv {
        let [rows, columns, of_group, outputs] = self.filter;
        Conv {
            dtype: self.dy.dtype(),
            input,
            filter: [outputs, rows, columns, of_group],
            output: [input[0], self.axes[0].output, self.axes[1].output, outputs],
            pad,
            stride: self.axes.map(|a| a.stride),
            dilation: self.axes.map(|a| a.dilation),
            groups: input[3] / of_group,
            has_side: false,
            relu: false,
            tf32: tf32(),
        }
    }

    /// The padding before and behind rows and columns.
    fn pads(&self) -> [(usize, usize); 4] {
        let [h, w] = self.axes.map(|a| (a.before, after(&a)));
        [(0, 0), h, w, (0, 0)]
    }

    /// The input with its padding, and the padding that is left.
    fn placed(&self) -> ([usize; 4], [usize; 2]) {
        let pads = self.pads();
        // cuDNN has the same padding on both sides.
        if pads.iter().all(|(before, after)| before == after) {
            return (self.input, self.axes.map(|a| a.before));
        }
        let mut input = self.input;
        for (n, (before, after)) in input.iter_mut().zip(pads) {
            *n += before + after;
        }
        (input, [0, 0])
    }

    fn by_input(&self, ctx: &GpuCtx) -> Result<Tensor> {
        let (input, pad) = self.placed();
        let conv = self.describe(input, pad);
        let dx = ctx.alloc(conv.dtype, input)?;
        let dy = data::aligned(ctx, self.dy.clone())?;
        if is_product(&conv) {
            let gemm = Gemm {
                n: input[3],
                k: conv.filter[0],
                transpose_w: true,
                ..product(&conv, input[..3].iter().product())
            };
            multiply(ctx, &gemm, [&dy, &self.given, &dx], None, None)?;
        } else {
            let filter = data::transposed(ctx, &self.given, &[3, 0, 1, 2])?;
            let filter = data::aligned(ctx, filter)?;
            let dnn = ctx.library.dnn()?;
            dnn.gradient(ctx.memory, &conv, ConvGradient::Input, [&dx, &filter, &dy])?;
        }
        match input == self.input {
            true => Ok(dx),
            false => unpadded(ctx, &dx, &self.pads()),
        }
    }

    fn by_filter(&self, ctx: &GpuCtx) -> Result<Tensor> {
        let (input, pad) = self.placed();
        let conv = self.describe(input, pad);
        let x = match input == self.input {
            true => self.given.clone(),
            false => padded(ctx, &self.given, &self.pads(), None)?,
        };
        let (x, dy) = (data::aligned(ctx, x)?, data::aligned(ctx, self.dy.clone())?);
        if is_product(&conv) {
            let dw = ctx.alloc(conv.dtype, self.filter)?;
            let gemm = Gemm {
                n: conv.filter[0],
                k: input[..3].iter().product(),
                transpose_x: true,
                ..product(&conv, input[3])
            };
            multiply(ctx, &gemm, [&x, &dy, &dw], None, None)?;
            return Ok(dw);
        }
        let dw = ctx.alloc(conv.dtype, conv.filter)?;
        let dnn = ctx.library.dnn()?;
        dnn.gradient(ctx.memory, &conv, ConvGradient::Filter, [&x, &dw, &dy])?;
        data::transposed(ctx, &dw, &[1, 2, 3, 0])
    }
}

/// A product of `m` rows, all else of which is to be set.
fn product(conv: &Conv, m: usize) -> Gemm {
    Gemm {
        dtype: conv.dtype,
        m,
        n: 0,
        k: 0,
        transpose_x: false,
        transpose_w: false,
        batch: 1,
        stride_x: 0,
        stride_w: 0,
        has_side: false,
        epilogue: Epilogue::None,
        tf32: conv.tf32,
    }
}

fn depthwise(build: &KernelBuild) -> Result<Box<dyn GpuKernel>> {
    let gradient = Gradient::new(build)?;
    if gradient.rules[0].stride != gradient.rules[1].stride {
        return Err(invalid_argument!(
            "Current implementation only supports equal length strides in the row and column dimensions."
        ));
    }
    Ok(Box::new(move |ctx: &mut GpuCtx| {
        let operands = gradient.operands(ctx, true)?;
        let (input, filter) = (operands.input, operands.filter);
        let [h, w] = operands.axes;
        let dims = [
            input[0], input[1], input[2], input[3], filter[3], h.output, w.output, filter[0],
            filter[1], h.stride, w.stride, h.before, w.before, h.dilation, w.dilation,
        ];
        let (given, dy) = (&operands.given, &operands.dy);
        let of = suffix(dy.dtype())?;
        let is_input = gradient.of == ConvGradient::Input;
        let y = ctx.alloc(dy.dtype(), if is_input { input } else { filter })?;
        let count = y.num_elements();
        int(dy.num_elements())?;
        let mut args = vec![
            TensorArg::Tensor(given),
            TensorArg::Tensor(dy),
            TensorArg::Tensor(&y),
        ];
        if is_input {
            args.push(TensorArg::I32(int(count)?));
        }
        for n in dims {
            args.push(TensorArg::I32(int(n)?));
        }
        if count > 0 && is_input {
            ctx.run(&format!("depthwise_input_{of}"), &grid(count), &args)?;
        } else if count > 0 {
            let blocks = Grid {
                blocks: [int(count)? as u32, 1, 1],
                threads: [256, 1, 1],
                shared_bytes: 0,
            };
            ctx.run(&format!("depthwise_filter_{of}"), &blocks, &args)?;
        }
        ctx.set_output(0, y)
    }))
}
