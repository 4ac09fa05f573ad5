//! Quantized convolutions with what follows them, as in TensorFlow's oneDNN builds: filters of both
//! signs, no zero points (TensorFlow: `core/kernels/mkl/mkl_conv_ops.cc`).

use crate::quantized_epilogue::{Epilogue, Filters, finish, magnitude};
use crate::{conv::conv_shape, depthwise};
use ferroflow_base::{Result, invalid_argument};
use ferroflow_functors::indices::shape_of;
use ferroflow_functors::quantized::{Stored, codes, scalar, set_codes, set_range, stored};
use ferroflow_functors::window::{NHWC, Pad, Rules, conv_rules, ints32};
use ferroflow_opdef::{Cost, KernelBuild, KernelCtx, Op, OpKernel, ShapeCtx};
use ferroflow_primitives::int_gemm::{Code, IntConv, PackedCodes, int_conv};
use ferroflow_sync::{Parallelism, par_chunks_mut};
use ferroflow_tensor::{DType, PartialShape, Shape, Tensor, dispatch};

/// The ops of this file: convolutions of all channels, then those of each channel.
pub(crate) const OPS: &[Op] = &[
    Op::new(
        "QuantizedConv2DAndRelu",
        "input: Tinput, filter: Tfilter, min_input: float, max_input: float, min_filter: float, \
         max_filter: float -> output: out_type, min_output: float, max_output: float | Tinput: \
         type {qint8,quint8,qint32,qint16,quint16}; Tfilter: type \
         {qint8,quint8,qint32,qint16,quint16}; out_type: type \
         {qint8,quint8,qint32,qint16,quint16} = qint32; strides: list(int); padding: string \
         {'SAME','VALID'}; dilations: list(int) = [1,1,1,1]; padding_list: list(int) = []",
    )
    .shape(fused_shape)
    .cost(Cost::Expensive)
    .kernel(kernel),
    Op::new(
        "QuantizedConv2DAndReluAndRequantize",
        "input: Tinput, filter: Tfilter, min_input: float, max_input: float, min_filter: float, \
         max_filter: float, min_freezed_output: float, max_freezed_output: float -> output: \
         out_type, min_output: float, max_output: float | Tinput: type \
         {qint8,quint8,qint32,qint16,quint16}; Tfilter: type \
         {qint8,quint8,qint32,qint16,quint16}; out_type: type \
         {qint8,quint8,qint32,qint16,quint16} = quint8; strides: list(int); padding: string \
         {'SAME','VALID'}; dilations: list(int) = [1,1,1,1]; padding_list: list(int) = []",
    )
    .shape(fused_shape)
    .cost(Cost::Expensive)
    .kernel(kernel),
    Op::new(
        "QuantizedConv2DAndRequantize",
        "input: Tinput, filter: Tfilter, min_input: float, max_input: float, min_filter: float, \
         max_filter: float, min_freezed_output: float, max_freezed_output: float -> output: \
         out_type, min_output: float, max_output: float | Tinput: type \
         {qint8,quint8,qint32,qint16,quint16}; Tfilter: type \
         {qint8,quint8,qint32,qint16,quint16}; out_type: type \
         {qint8,quint8,qint32,qint16,quint16} = qint8; strides: list(int); padding: string \
         {'SAME','VALID'}; dilations: list(int) = [1,1,1,1]; padding_list: list(int) = []",
    )
    .shape(fused_shape)
    .cost(Cost::Expensive)
    .kernel(kernel),
    Op::new(
        "QuantizedConv2DPerChannel",
        "input: Tinput, filter: Tfilter, min_input: float, max_input: float, min_filter: float, \
         max_filter: float -> output: out_type, min_output: float, max_output: float | Tinput: \
         type {qint8,quint8,qint32,qint16,quint16}; Tfilter: type \
         {qint8,quint8,qint32,qint16,quint16}; out_type: type \
         {qint8,quint8,qint32,qint16,quint16} = qint32; strides: list(int); padding: string \
         {'SAME','VALID'}; dilations: list(int) = [1,1,1,1]",
    )
    .shape(fused_shape)
    .cost(Cost::Expensive)
    .kernel(kernel),
    Op::new(
        "QuantizedConv2DWithBias",
        "input: Tinput, filter: Tfilter, bias: float, min_input: float, max_input: float, \
         min_filter: float, max_filter: float -> output: out_type, min_output: float, \
         max_output: float | Tinput: type {qint8,quint8,qint32,qint16,quint16}; Tfilter: type \
         {qint8,quint8,qint32,qint16,quint16}; out_type: type \
         {qint8,quint8,qint32,qint16,quint16} = qint32; strides: list(int); padding: string \
         {'SAME','VALID'}; dilations: list(int) = [1,1,1,1]; padding_list: list(int) = []",
    )
    .shape(fused_shape)
    .cost(Cost::Expensive)
    .kernel(kernel),
    Op::new(
        "QuantizedConv2DWithBiasAndRelu",
        "input: Tinput, filter: Tfilter, bias: float, min_input: float, max_input: float, \
         min_filter: float, max_filter: float -> output: out_type, min_output: float, \
         max_output: float | Tinput: type {qint8,quint8,qint32,qint16,quint16}; Tfilter: type \
         {qint8,quint8,qint32,qint16,quint16}; out_type: type \
         {qint8,quint8,qint32,qint16,quint16} = qint32; strides: list(int); padding: string \
         {'SAME','VALID'}; dilations: list(int) = [1,1,1,1]; padding_list: list(int) = []",
    )
    .shape(fused_shape)
    .cost(Cost::Expensive)
    .kernel(kernel),
    Op::new(
        "QuantizedConv2DWithBiasAndReluAndRequantize",
        "input: Tinput, filter: Tfilter, bias: Tbias, min_input: float, max_input: float, \
         min_filter: float, max_filter: float, min_freezed_output: float, max_freezed_output: \
         float -> output: out_type, min_output: float, max_output: float | Tinput: type \
         {qint8,quint8,qint32,qint16,quint16}; Tfilter: type \
         {qint8,quint8,qint32,qint16,quint16}; Tbias: type {float,qint32}; out_type: type \
         {qint8,quint8,qint32,qint16,quint16} = quint8; strides: list(int); padding: string \
         {'SAME','VALID'}; dilations: list(int) = [1,1,1,1]; padding_list: list(int) = []",
    )
    .shape(fused_shape)
    .cost(Cost::Expensive)
    .kernel(kernel),
    Op::new(
        "QuantizedConv2DWithBiasAndRequantize",
        "input: Tinput, filter: Tfilter, bias: Tbias, min_input: float, max_input: float, \
         min_filter: float, max_filter: float, min_freezed_output: float, max_freezed_output: \
         float -> output: out_type, min_output: float, max_output: float | Tinput: type \
         {qint8,quint8,qint32,qint16,quint16}; Tfilter: type \
         {qint8,quint8,qint32,qint16,quint16}; Tbias: type {float,qint32}; out_type: type \
         {qint8,quint8,qint32,qint16,quint16} = qint8; strides: list(int); padding: string \
         {'SAME','VALID'}; dilations: list(int) = [1,1,1,1]; padding_list: list(int) = []",
    )
    .shape(fused_shape)
    .cost(Cost::Expensive)
    .kernel(kernel),
    Op::new(
        "QuantizedConv2DWithBiasSignedSumAndReluAndRequantize",
        "input: Tinput, filter: Tfilter, bias: Tbias, min_input: float, max_input: float, \
         min_filter: float, max_filter: float, min_freezed_output: float, max_freezed_output: \
         float, summand: Tsummand, min_summand: float, max_summand: float -> output: out_type, \
         min_output: float, max_output: float | Tinput: type \
         {qint8,quint8,qint32,qint16,quint16}; Tfilter: type \
         {qint8,quint8,qint32,qint16,quint16}; Tbias: type {float,qint32}; Tsummand: type \
         {qint8,quint8,qint32,qint16,quint16}; out_type: type \
         {qint8,quint8,qint32,qint16,quint16} = quint8; strides: list(int); padding: string \
         {'SAME','VALID'}; dilations: list(int) = [1,1,1,1]; padding_list: list(int) = []",
    )
    .shape(fused_shape)
    .cost(Cost::Expensive)
    .kernel(kernel),
    Op::new(
        "QuantizedConv2DWithBiasSumAndRelu",
        "input: Tinput, filter: Tfilter, bias: float, min_input: float, max_input: float, \
         min_filter: float, max_filter: float, summand: float -> output: out_type, min_output: \
         float, max_output: float | Tinput: type {qint8,quint8,qint32,qint16,quint16}; Tfilter: \
         type {qint8,quint8,qint32,qint16,quint16}; out_type: type \
         {qint8,quint8,qint32,qint16,quint16} = qint32; strides: list(int); padding: string \
         {'SAME','VALID'}; dilations: list(int) = [1,1,1,1]; padding_list: list(int) = []",
    )
    .shape(fused_shape)
    .cost(Cost::Expensive)
    .kernel(kernel),
    Op::new(
        "QuantizedConv2DWithBiasSumAndReluAndRequantize",
        "input: Tinput, filter: Tfilter, bias: Tbias, min_input: float, max_input: float, \
         min_filter: float, max_filter: float, min_freezed_output: float, max_freezed_output: \
         float, summand: Tsummand, min_summand: float, max_summand: float -> output: out_type, \
         min_output: float, max_output: float | Tinput: type \
         {qint8,quint8,qint32,qint16,quint16}; Tfilter: type \
         {qint8,quint8,qint32,qint16,quint16}; Tbias: type {float,qint32}; Tsummand: type \
         {qint8,quint8,qint32,qint16,quint16}; out_type: type \
         {qint8,quint8,qint32,qint16,quint16} = quint8; strides: list(int); padding: string \
         {'SAME','VALID'}; dilations: list(int) = [1,1,1,1]; padding_list: list(int) = []",
    )
    .shape(fused_shape)
    .cost(Cost::Expensive)
    .kernel(kernel),
    Op::new(
        "QuantizedDepthwiseConv2D",
        "input: Tinput, filter: Tfilter, min_input: float, max_input: float, min_filter: float, \
         max_filter: float -> output: out_type, min_output: float, max_output: float | Tinput: \
         type {qint8,quint8,qint32,qint16,quint16}; Tfilter: type \
         {qint8,quint8,qint32,qint16,quint16}; out_type: type \
         {qint8,quint8,qint32,qint16,quint16} = qint32; strides: list(int); padding: string \
         {'SAME','VALID'}; dilations: list(int) = [1,1,1,1]",
    )
    .shape(depthwise::depthwise_shape)
    .cost(Cost::Expensive)
    .kernel(kernel),
    Op::new(
        "QuantizedDepthwiseConv2DWithBias",
        "input: Tinput, filter: Tfilter, bias: float, min_input: float, max_input: float, \
         min_filter: float, max_filter: float -> output: out_type, min_output: float, \
         max_output: float | Tinput: type {qint8,quint8,qint32,qint16,quint16}; Tfilter: type \
         {qint8,quint8,qint32,qint16,quint16}; out_type: type \
         {qint8,quint8,qint32,qint16,quint16} = qint32; strides: list(int); padding: string \
         {'SAME','VALID'}; dilations: list(int) = [1,1,1,1]",
    )
    .shape(depthwise::depthwise_shape)
    .cost(Cost::Expensive)
    .kernel(kernel),
    Op::new(
        "QuantizedDepthwiseConv2DWithBiasAndRelu",
        "input: Tinput, filter: Tfilter, bias: float, min_input: float, max_input: float, \
         min_filter: float, max_filter: float -> output: out_type, min_output: float, \
         max_output: float | Tinput: type {qint8,quint8,qint32,qint16,quint16}; Tfilter: type \
         {qint8,quint8,qint32,qint16,quint16}; out_type: type \
         {qint8,quint8,qint32,qint16,quint16} = qint32; strides: list(int); padding: string \
         {'SAME','VALID'}; dilations: list(int) = [1,1,1,1]; padding_list: list(int) = []",
    )
    .shape(depthwise::depthwise_shape)
    .cost(Cost::Expensive)
    .kernel(kernel),
    Op::new(
        "QuantizedDepthwiseConv2DWithBiasAndReluAndRequantize",
        "input: Tinput, filter: Tfilter, bias: Tbias, min_input: float, max_input: float, \
         min_filter: float, max_filter: float, min_freezed_output: float, max_freezed_output: \
         float -> output: out_type, min_output: float, max_output: float | Tinput: type \
         {qint8,quint8,qint32,qint16,quint16}; Tfilter: type \
         {qint8,quint8,qint32,qint16,quint16}; Tbias: type {float,qint32}; out_type: type \
         {qint8,quint8,qint32,qint16,quint16} = quint8; strides: list(int); padding: string \
         {'SAME','VALID'}; dilations: list(int) = [1,1,1,1]; padding_list: list(int) = []",
    )
    .shape(depthwise::depthwise_shape)
    .cost(Cost::Expensive)
    .kernel(kernel),
];

fn fused_shape(ctx: &mut ShapeCtx) -> Result<()> {
    conv_shape(ctx)?;
    let out = ctx.attrs().dtype("out_type")?;
    // Without a bias there are the ranges of input and filter, and perhaps that of the output.
    let bias = match ctx.num_inputs() {
        6 => 0,
        8 => usize::from(out == DType::Qint32),
        _ => 1,
    };
    if bias == 1 {
        ctx.with_rank(2, 1)?;
    }
    ctx.with_rank(2 + bias, 0)?;
    ctx.with_rank(3 + bias, 0)?;
    let range = match out {
        DType::Qint32 => ctx.input(5 + bias),
        _ => PartialShape::scalar(),
    };
    ctx.set(1, range.clone());
    ctx.set(2, range);
    Ok(())
}

/// What an op computes, from its name.
struct Spec {
    bias: bool,
    sum: bool,
    relu: bool,
    requantize: bool,
    depthwise: bool,
    rules: Rules,
    out: DType,
}

/// Builds the kernel of an op that multiplies codes by codes of both signs.
pub(crate) fn kernel(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    let (attrs, op) = (build.attrs, build.def.name.as_ref());
    let mut rules = conv_rules(attrs, NHWC)?;
    if let Ok(pads) = ints32(attrs, "padding_list")
        && pads.iter().any(|&p| p != 0)
    {
        if pads.len() != 8 || pads.iter().any(|&p| p < 0) {
            return Err(invalid_argument!(
                "padding_list must have 8 elements, none negative"
            ));
        }
        rules[0].pad = Pad::Explicit(pads[2], pads[3]);
        rules[1].pad = Pad::Explicit(pads[4], pads[5]);
    }
    let spec = Spec {
        bias: op.contains("WithBias"),
        sum: op.contains("Sum"),
        relu: op.contains("Relu"),
        requantize: op.contains("Requantize"),
        depthwise: op.contains("Depthwise"),
        rules,
        out: build.output(0)?,
    };
    check_dtypes(build, &spec)?;
    let input = build.input(0)?;
    dispatch!(stored(input), T in [u8, i8] => Ok(Box::new(move |ctx: &mut KernelCtx| {
        convolved::<T>(ctx, &spec)
    })), else Err(build.unsupported(input)))
}

/// Checks that TensorFlow has a kernel for the dtypes.
fn check_dtypes(build: &KernelBuild, spec: &Spec) -> Result<()> {
    let (input, filter, op) = (build.input(0)?, build.input(1)?, build.def.name.as_ref());
    let signed = spec.bias && !spec.sum && !spec.depthwise;
    let out = match (spec.requantize, spec.relu) {
        (false, _) => DType::Qint32,
        (true, true) => DType::Quint8,
        (true, false) => DType::Qint8,
    };
    let summand = match (spec.sum, spec.requantize, op.contains("Signed")) {
        (false, ..) => None,
        (true, false, _) => Some(DType::Float),
        (true, true, false) => Some(DType::Quint8),
        (true, true, true) => Some(DType::Qint8),
    };
    let given = build.inputs.get(summand_index(spec)).copied();
    if input != DType::Quint8 && !(signed && input == DType::Qint8) {
        Err(build.unsupported(input))
    } else if filter != DType::Qint8 {
        Err(build.unsupported(filter))
    } else if spec.out != out {
        Err(build.unsupported(spec.out))
    } else if let (Some(has), Some(given)) = (summand, given)
        && has != given
    {
        Err(build.unsupported(given))
    } else {
        Ok(())
    }
}

/// The position of the summand, if there is one.
fn summand_index(spec: &Spec) -> usize {
    match spec.requantize {
        true => 9,
        false => 7,
    }
}

fn place(spec: &Spec, input: &Shape, filter: &Shape) -> Result<IntConv> {
    for (shape, name) in [(input, "input"), (filter, "filter")] {
        if shape.rank() != 4 {
            return Err(invalid_argument!(
                "{name} must be 4-dimensional, got shape {shape}"
            ));
        }
    }
    if input[3] != filter[2] {
        return Err(invalid_argument!(
            "input and filter must have the same depth: {} vs {}",
            input[3],
            filter[2]
        ));
    }
    let rows = spec.rules[0].place(input[1], filter[0])?;
    let columns = spec.rules[1].place(input[2], filter[1])?;
    Ok(IntConv {
        batch: input[0],
        input: [input[1], input[2]],
        in_c: input[3],
        filter: [filter[0], filter[1]],
        stride: [rows.stride, columns.stride],
        dilation: [rows.dilation, columns.dilation],
        before: [rows.before as isize, columns.before as isize],
        output: [rows.output, columns.output],
    })
}

/// Returns the sums of products of codes.
fn sums<T: Stored + Code>(
    ctx: &KernelCtx,
    spec: &Spec,
    s: &IntConv,
    [x, w]: [&Tensor; 2],
    out_c: usize,
) -> Result<Tensor> {
    let shape = shape_of([s.batch, s.output[0], s.output[1], out_c])?;
    let mut out = ctx.alloc(DType::Int32, shape)?;
    let (x, w, to) = (x.slice::<T>()?, w.slice::<i8>()?, out.slice_mut::<i32>()?);
    if spec.depthwise {
        depthwise_sums(ctx.par(), s, x, w, out_c, to);
    } else {
        let k = s.filter[0] * s.filter[1] * s.in_c;
        let filter = PackedCodes::new(w, k, out_c, false, 0);
        int_conv(ctx.par(), s, x, 0, 0, &filter, to);
    }
    Ok(out)
}

/// Writes the sums of products of each channel with its filters.
fn depthwise_sums<T: Code>(
    par: &dyn Parallelism,
    s: &IntConv,
    x: &[T],
    w: &[i8],
    out_c: usize,
    out: &mut [i32],
) {
    let multiplier = out_c.checked_div(s.in_c).unwrap_or(0).max(1);
    let [out_h, out_w] = s.output;
    par_chunks_mut(par, out, out_c, 16, &|i, sums| {
        sums.fill(0);
        let (image, y, column) = (i / (out_h * out_w), i / out_w % out_h, i % out_w);
        for fy in 0..s.filter[0] {
            for fx in 0..s.filter[1] {
                let in_y = (y * s.stride[0] + fy * s.dilation[0]) as isize - s.before[0];
                let in_x = (column * s.stride[1] + fx * s.dilation[1]) as isize - s.before[1];
                let inside = usize::try_from(in_y).ok().zip(usize::try_from(in_x).ok());
                let Some((in_y, in_x)) = inside.filter(|&(y, x)| y < s.input[0] && x < s.input[1])
                else {
                    continue;
                };
                let at = ((image * s.input[0] + in_y) * s.input[1] + in_x) * s.in_c;
                let pixel = &x[at..][..s.in_c];
                let taps = &w[(fy * s.filter[1] + fx) * out_c..][..out_c];
                if multiplier == 1 {
                    for ((sum, x), w) in sums.iter_mut().zip(pixel).zip(taps) {
                        *sum += i32::from(x.wide()) * i32::from(*w);
                    }
                    continue;
                }
                let groups = sums.chunks_mut(multiplier).zip(taps.chunks(multiplier));
                for ((sums, taps), x) in groups.zip(pixel) {
                    for (sum, w) in sums.iter_mut().zip(taps) {
                        *sum += i32::from(x.wide()) * i32::from(*w);
                    }
                }
            }
        }
    });
}

fn convolved<T: Stored + Code>(ctx: &mut KernelCtx, spec: &Spec) -> Result<()> {
    let (x, w) = (codes(ctx, 0)?, codes(ctx, 1)?);
    let s = place(spec, x.shape(), w.shape())?;
    let out_c = match spec.depthwise {
        true => shape_of([w.shape()[2], w.shape()[3]])?.num_elements(),
        false => w.shape()[3],
    };
    let b = usize::from(spec.bias);
    let range = [
        scalar(ctx, 2 + b, "min_input")?,
        scalar(ctx, 3 + b, "max_input")?,
    ];
    let filters = Filters::of(ctx, 4 + b, out_c)?;
    let (in_limit, input) = (if T::LOWEST == 0 { 255.0 } else { 127.0 }, magnitude(range));
    let sums = sums::<T>(ctx, spec, &s, [&x, &w], out_c)?;
    let frozen = match spec.requantize {
        false => None,
        true => Some([
            scalar(ctx, 6 + b, "min_freezed_output")?,
            scalar(ctx, 7 + b, "max_freezed_output")?,
        ]),
    };
    let steps = (0..out_c).map(|c| input / in_limit * (magnitude(filters.range(c)) / 127.0));
    let steps: Vec<f32> = steps.collect();
    let out = match (frozen, spec.out) {
        (Some(frozen), DType::Qint8) => magnitude(frozen) / 127.0,
        (Some(frozen), _) => magnitude(frozen) / 255.0,
        (None, _) => input / in_limit * (filters.magnitude() / 127.0),
    };
    let summand = match spec.sum {
        false => None,
        true => Some(summand(ctx, spec, sums.shape())?),
    };
    let epilogue = Epilogue {
        steps,
        bias: spec.bias.then(|| codes(ctx, 2)).transpose()?,
        summand,
        relu: spec.relu,
        out,
    };
    let out = finish(ctx, sums, &epilogue, spec.out)?;
    set_codes(ctx, 0, out, spec.out)?;
    match frozen {
        Some(frozen) => set_range(ctx, 1, frozen),
        None => filters.set_ranges::<T>(ctx, range),
    }
}

/// Returns what is added to the sums, and its step.
fn summand(ctx: &KernelCtx, spec: &Spec, shape: &Shape) -> Result<(Tensor, f32)> {
    let i = summand_index(spec);
    let t = codes(ctx, i)?;
    if t.shape() != shape {
        return Err(invalid_argument!(
            "Summand cannot be forwarded in the current fusion."
        ));
    }
    let limit = match t.dtype() {
        DType::Float => return Ok((t, 1.0)),
        DType::Int8 => 127.0,
        _ => 255.0,
    };
    let range = [
        scalar(ctx, i + 1, "min_summand")?,
        scalar(ctx, i + 2, "max_summand")?,
    ];
    Ok((t, magnitude(range) / limit))
}
