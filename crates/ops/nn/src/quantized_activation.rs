//! QuantizedRelu, QuantizedRelu6, QuantizedBiasAdd and QuantizedBatchNormWithGlobalNormalization
//! (TensorFlow: `core/kernels/quantized_activation_ops.cc`, `quantized_bias_add_op.cc`,
//! `quantized_batch_norm_op.cc`).

use ferroflow_base::{Result, invalid_argument};
use ferroflow_functors::quantized::{
    Dequantizer, Quantizer, Stored, code, codes, map_slices, par_map, range_of, scalar_ranges,
    set_codes, set_range, stored, value,
};
use ferroflow_functors::shapes;
use ferroflow_opdef::{KernelBuild, KernelCtx, Op, OpKernel, ShapeCtx};
use ferroflow_tensor::{DType, Element, PartialShape, Tensor, dispatch};

/// The ops of this file.
pub(crate) const OPS: &[Op] = &[
    Op::new(
        "QuantizedRelu",
        "features: Tinput, min_features: float, max_features: float -> activations: out_type, \
         min_activations: float, max_activations: float | Tinput: type \
         {qint8,quint8,qint32,qint16,quint16}; out_type: type \
         {qint8,quint8,qint32,qint16,quint16} = quint8",
    )
    .shape(activation_shape)
    .kernel(|build| activation(build, None)),
    Op::new(
        "QuantizedRelu6",
        "features: Tinput, min_features: float, max_features: float -> activations: out_type, \
         min_activations: float, max_activations: float | Tinput: type \
         {qint8,quint8,qint32,qint16,quint16}; out_type: type \
         {qint8,quint8,qint32,qint16,quint16} = quint8",
    )
    .shape(activation_shape)
    .kernel(|build| activation(build, Some(6.0))),
    Op::new(
        "QuantizedBiasAdd",
        "input: T1, bias: T2, min_input: float, max_input: float, min_bias: float, max_bias: \
         float -> output: out_type, min_out: float, max_out: float | T1: type \
         {qint8,quint8,qint32,qint16,quint16}; T2: type {qint8,quint8,qint32,qint16,quint16}; \
         out_type: type {qint8,quint8,qint32,qint16,quint16}",
    )
    .shape(bias_add_shape)
    .kernel(bias_add),
    Op::new(
        "QuantizedBatchNormWithGlobalNormalization",
        "t: Tinput, t_min: float, t_max: float, m: Tinput, m_min: float, m_max: float, v: Tinput, \
         v_min: float, v_max: float, beta: Tinput, beta_min: float, beta_max: float, gamma: \
         Tinput, gamma_min: float, gamma_max: float -> result: out_type, result_min: float, \
         result_max: float | Tinput: type {qint8,quint8,qint32,qint16,quint16}; out_type: type \
         {qint8,quint8,qint32,qint16,quint16}; variance_epsilon: float; \
         scale_after_normalization: bool",
    )
    .shape(batch_norm_shape)
    .kernel(batch_norm),
];

fn activation_shape(ctx: &mut ShapeCtx) -> Result<()> {
    shapes::unchanged(ctx)?;
    scalar_ranges(ctx, 1..3)
}

fn activation(build: &KernelBuild, top: Option<f32>) -> Result<Box<dyn OpKernel>> {
    let (dtype, out) = (build.input(0)?, build.output(0)?);
    if out != dtype {
        return Err(build.unsupported(out));
    }
    if !matches!(dtype, DType::Quint8 | DType::Qint32) {
        return Err(build.unsupported(dtype));
    }
    dispatch!(stored(dtype), T in [u8, i32] => Ok(Box::new(move |ctx: &mut KernelCtx| {
        let [min, max] = range_of(ctx, 1, ["min_input", "max_input"])?;
        let low = code::<T>(0.0, min, max);
        let high = top.map(|top| code::<T>(top, min, max));
        let input = codes(ctx, 0)?;
        let mut out = ctx.alloc(T::DTYPE, input.shape().clone())?;
        let (from, to) = (input.slice::<T>()?, out.slice_mut::<T>()?);
        match high {
            None => par_map(ctx.par(), from, to, |v| v.max(low)),
            Some(high) => par_map(ctx.par(), from, to, |v| v.max(low).min(high)),
        }
        set_codes(ctx, 0, out, dtype)?;
        set_range(ctx, 1, [min, max])
    })), else Err(build.unsupported(dtype)))
}

fn bias_add_shape(ctx: &mut ShapeCtx) -> Result<()> {
    let (input, bias) = (ctx.with_rank_at_least(0, 2)?, ctx.with_rank(1, 1)?);
    if let Some(rank) = input.rank() {
        let last = PartialShape::of([input.dim(rank as isize - 1)]);
        ctx.merge(&last, &bias)?;
    }
    ctx.set(0, input);
    scalar_ranges(ctx, 2..6)
}

fn bias_add(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    let (dtype, of_bias) = (build.input(0)?, build.input(1)?);
    if !matches!(dtype, DType::Quint8 | DType::Qint8) || of_bias != dtype {
        return Err(build.unsupported(dtype));
    }
    if build.output(0)? != DType::Qint32 {
        return Err(build.unsupported(build.output(0)?));
    }
    dispatch!(stored(dtype), T in [u8, i8] =>
        Ok(Box::new(|ctx: &mut KernelCtx| with_bias::<T>(ctx))),
        else Err(build.unsupported(dtype)))
}

fn with_bias<T: Stored>(ctx: &mut KernelCtx) -> Result<()> {
    let range = range_of(ctx, 2, ["min_input", "max_input"])?;
    let of_bias = range_of(ctx, 4, ["min_bias", "max_bias"])?;
    let (shape, bias) = (ctx.shape(0)?.clone(), ctx.shape(1)?);
    if shape.rank() < 2 {
        return Err(invalid_argument!(
            "Input tensor must be at least 2D: {shape}"
        ));
    }
    if bias.rank() != 1 {
        return Err(invalid_argument!("Biases must be 1D: {bias}"));
    }
    if bias[0] != shape[shape.rank() - 1] {
        return Err(invalid_argument!(
            "Must provide as many biases as the last dimension of the input tensor: {bias} vs. \
             {shape}"
        ));
    }
    if bias[0] == 0 {
        return Err(invalid_argument!("Must provide at least 1 bias"));
    }
    // 15 bits are left for the values, so that sums do not overflow.
    let most = range[1].max((-range[0]).max(of_bias[1].max(-of_bias[0]))) * 131_072.0;
    let zero = code::<i32>(0.0, -most, most);
    let to = Quantizer::new::<i32>(-most, most);
    let of = Dequantizer::new::<T>(range[0], range[1]);
    let bias_of = Dequantizer::new::<T>(of_bias[0], of_bias[1]);
    let (input, bias) = (codes(ctx, 0)?, codes(ctx, 1)?);
    let biases = bias.slice::<T>()?.iter();
    let biases: Vec<i32> = biases
        .map(|b| to.code::<i32>(bias_of.value(*b)).wrapping_add(zero))
        .collect();
    let mut out = ctx.alloc(DType::Int32, shape)?;
    let (from, into) = (input.slice::<T>()?, out.slice_mut::<i32>()?);
    map_slices(ctx.par(), from, into, &biases, 1, |v, bias| {
        to.code::<i32>(of.value(v)).wrapping_add(*bias)
    });
    set_codes(ctx, 0, out, DType::Qint32)?;
    set_range(ctx, 1, [-most, most])
}

fn batch_norm_shape(ctx: &mut ShapeCtx) -> Result<()> {
    let input = ctx.with_rank(0, 4)?;
    let mut last = PartialShape::of([input.dim(3)]);
    for i in 1..5 {
        last = ctx.merge(&last, &ctx.with_rank(i * 3, 1)?)?;
    }
    let dims = [input.dim(0), input.dim(1), input.dim(2), last.dim(0)];
    ctx.set(0, PartialShape::of(dims));
    scalar_ranges(ctx, 0..0)
}

fn batch_norm(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    let (from, to) = (build.input(0)?, build.output(0)?);
    if from != DType::Quint8 {
        return Err(build.unsupported(from));
    }
    if to != DType::Qint32 {
        return Err(build.unsupported(to));
    }
    let epsilon = build.attrs.float("variance_epsilon")?;
    let scales = build.attrs.bool("scale_after_normalization")?;
    Ok(Box::new(move |ctx: &mut KernelCtx| {
        normalized(ctx, epsilon, scales)
    }))
}

const NAMES: [&str; 5] = ["input", "mean", "var", "beta", "gamma"];

/// Returns the ranges of the five tensors, which are checked.
fn checked_ranges(ctx: &KernelCtx) -> Result<[[f32; 2]; 5]> {
    let mut ranges = [[0.0; 2]; 5];
    for (i, name) in NAMES.into_iter().enumerate() {
        for (side, end) in ["min", "max"].into_iter().enumerate() {
            ranges[i][side] = match ctx.slice::<f32>(i * 3 + 1 + side)? {
                [end] => *end,
                _ => return Err(invalid_argument!("{name}_{end} must have 1 element")),
            };
        }
    }
    let input = ctx.shape(0)?;
    for (i, name) in NAMES.into_iter().enumerate() {
        let (shape, rank) = (ctx.shape(i * 3)?, if i == 0 { 4 } else { 1 });
        if shape.rank() != rank {
            return Err(invalid_argument!(
                "{name} must be {rank}-dimensional{shape}"
            ));
        }
    }
    let mean = ctx.shape(3)?;
    if mean.num_elements() <= 1 {
        return Err(invalid_argument!(
            "Must have at least a mean value{}",
            ctx.shape(12)?
        ));
    }
    if mean[0] != input[3] {
        return Err(invalid_argument!(
            "Must provide as many means as the last dimension of the input tensor: {mean} vs. \
             {input}"
        ));
    }
    for (i, name) in [(2, "variance"), (3, "beta"), (4, "gamma")] {
        let other = ctx.shape(i * 3)?;
        if other != mean {
            return Err(invalid_argument!(
                "Mean and {name} tensors must have the same shape: {mean} vs. {other}"
            ));
        }
    }
    Ok(ranges)
}

/// Computes in 32-bit codes of a fixed range.
fn normalized(ctx: &mut KernelCtx, epsilon: f32, scales: bool) -> Result<()> {
    const RANGE: [f32; 2] = [-1_048_576.0, 1_048_576.0];
    let ranges = checked_ranges(ctx)?;
    let tensors = (0..5).map(|i| codes(ctx, i * 3));
    let tensors: Vec<Tensor> = tensors.collect::<Result<_>>()?;
    let floats = |i: usize, c: usize| -> Result<f32> {
        Ok(value(
            tensors[i].slice::<u8>()?[c],
            ranges[i][0],
            ranges[i][1],
        ))
    };
    let to_code = |x: f32| code::<i32>(x, RANGE[0], RANGE[1]);
    let mut params = Vec::with_capacity(tensors[1].num_elements());
    for c in 0..tensors[1].num_elements() {
        let scale = 1.0 / (floats(2, c)? + epsilon).sqrt();
        let scale = if scales { scale * floats(4, c)? } else { scale };
        let offset = -floats(1, c)? * scale + floats(3, c)?;
        params.push((to_code(scale), to_code(offset)));
    }
    let one = to_code(1.0);
    let [min, max] = ranges[0];
    let table: Vec<i32> = (0..=u8::MAX).map(|v| to_code(value(v, min, max))).collect();
    let mut out = ctx.alloc(DType::Int32, ctx.shape(0)?.clone())?;
    let (from, into) = (tensors[0].slice::<u8>()?, out.slice_mut::<i32>()?);
    map_slices(ctx.par(), from, into, &params, 1, |v, (scale, offset)| {
        let product = table[usize::from(v)].wrapping_mul(*scale);
        product.wrapping_div(one).wrapping_add(*offset)
    });
    set_codes(ctx, 0, out, DType::Qint32)?;
    set_range(ctx, 1, RANGE)
}
