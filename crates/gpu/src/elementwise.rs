//! Ops that compute elements one by one: fused programs, functions of one and two tensors, casts, biases.

use crate::data;
use crate::kernel::{FLOATS, GpuCtx, GpuKernel, Row, int};
use crate::ptx::{Args, Loop, Step, Walk};
use ferroflow_base::{Result, invalid_argument};
use ferroflow_device::{Grid, TensorArg};
use ferroflow_functors::agreement::{Agreement, check_operands};
use ferroflow_functors::broadcast::broadcast_shape;
use ferroflow_opdef::{Attrs, BinaryFn, ElementwiseProgram, KernelBuild, UnaryFn};
use ferroflow_tensor::{DType, Shape, Tensor};
use smallvec::SmallVec;

pub(crate) const ROWS: &[Row] = &[
    Row::new("_FusedElementwise", fused),
    Row::new("BiasAdd", binary).strings(&[("data_format", &["NHWC"])]),
    Row::new("Cast", cast)
        .types(&[("SrcT", CASTS_FROM), ("DstT", FLOATS)])
        .only_if(rounds),
    Row::new("Cast", cast)
        .types(&[
            ("SrcT", FLOATS),
            ("DstT", &[DType::Bool, DType::Int32, DType::Int64]),
        ])
        .only_if(rounds),
    Row::new("Cast", cast)
        .types(&[
            ("SrcT", &[DType::Bool]),
            ("DstT", &[DType::Int32, DType::Int64]),
        ])
        .only_if(rounds),
    Row::new("Neg", unary),
    Row::new("Abs", unary),
    Row::new("Square", unary),
    Row::new("Sqrt", unary),
    Row::new("Rsqrt", unary),
    Row::new("Reciprocal", unary),
    Row::new("Inv", unary),
    Row::new("Exp", unary),
    Row::new("Expm1", unary),
    Row::new("Log", unary),
    Row::new("Log1p", unary),
    Row::new("Sin", unary),
    Row::new("Cos", unary),
    Row::new("Tanh", unary),
    Row::new("Sigmoid", unary),
    Row::new("Erf", unary),
    Row::new("Erfc", unary),
    Row::new("Floor", unary),
    Row::new("Ceil", unary),
    Row::new("Rint", unary),
    Row::new("Round", unary),
    Row::new("Sign", unary),
    Row::new("Relu", unary),
    Row::new("Relu6", unary),
    Row::new("LeakyRelu", unary),
    Row::new("Elu", unary),
    Row::new("Selu", unary),
    Row::new("Softplus", unary),
    Row::new("Softsign", unary),
    Row::new("_Swish", unary),
    Row::new("_HardSwish", unary),
    Row::new("_Gelu", unary),
    Row::new("_GeluTanh", unary),
    Row::new("AddV2", binary),
    Row::new("Add", binary),
    Row::new("Sub", binary),
    Row::new("Mul", binary),
    Row::new("RealDiv", binary),
    Row::new("Div", binary),
    Row::new("Maximum", binary),
    Row::new("Minimum", binary),
    Row::new("SquaredDifference", binary),
    Row::new("Pow", binary),
    Row::new("AddN", add_n),
    Row::new("Tan", call),
    Row::new("Asin", call),
    Row::new("Acos", call),
    Row::new("Atan", call),
    Row::new("Sinh", call),
    Row::new("Cosh", call),
    Row::new("Asinh", call),
    Row::new("Acosh", call),
    Row::new("Atanh", call),
    Row::new("Lgamma", call),
    Row::new("Atan2", call),
    Row::new("DivNoNan", call),
    Row::new("MulNoNan", call),
    Row::new("Xdivy", call),
    Row::new("Xlogy", call),
    Row::new("Xlog1py", call),
    Row::new("FloorDiv", floor_div),
    Row::new("ClipByValue", call),
    Row::new("IsNan", call),
    Row::new("IsInf", call),
    Row::new("IsFinite", call),
    Row::new("LogicalAnd", call).types(&[]),
    Row::new("LogicalOr", call).types(&[]),
    Row::new("LogicalNot", call).types(&[]),
    Row::new("ReluGrad", call),
    Row::new("Relu6Grad", call),
    Row::new("LeakyReluGrad", call),
    Row::new("EluGrad", call),
    Row::new("SeluGrad", call),
    Row::new("TanhGrad", call),
    Row::new("SigmoidGrad", call),
    Row::new("SqrtGrad", call),
    Row::new("RsqrtGrad", call),
    Row::new("InvGrad", call),
    Row::new("ReciprocalGrad", call),
    Row::new("SoftplusGrad", call),
    Row::new("SoftsignGrad", call),
];

/// The functions of `kernels/functions.cu` that ops call with their inputs, which are broadcast (or not, for gradients).
pub(crate) const CALLS: &[(&str, &str)] = &[
    ("Tan", "ff_tan"),
    ("Asin", "ff_asin"),
    ("Acos", "ff_acos"),
    ("Atan", "ff_atan"),
    ("Sinh", "ff_sinh"),
    ("Cosh", "ff_cosh"),
    ("Asinh", "ff_asinh"),
    ("Acosh", "ff_acosh"),
    ("Atanh", "ff_atanh"),
    ("Lgamma", "ff_lgamma"),
    ("Atan2", "ff_atan2"),
    ("DivNoNan", "ff_div_no_nan"),
    ("MulNoNan", "ff_mul_no_nan"),
    ("Xdivy", "ff_xdivy"),
    ("Xlogy", "ff_xlogy"),
    ("Xlog1py", "ff_xlog1py"),
    ("FloorDiv", "ff_floor_div"),
    ("ClipByValue", "ff_clip"),
    ("IsNan", "ff_is_nan"),
    ("IsInf", "ff_is_inf"),
    ("IsFinite", "ff_is_finite"),
    ("LogicalAnd", "ff_and"),
    ("LogicalOr", "ff_or"),
    ("LogicalNot", "ff_not"),
    ("Equal", "ff_equal"),
    ("NotEqual", "ff_not_equal"),
    ("Less", "ff_less"),
    ("LessEqual", "ff_less_equal"),
    ("Greater", "ff_greater"),
    ("GreaterEqual", "ff_greater_equal"),
    ("ReluGrad", "ff_relu_grad"),
    ("Relu6Grad", "ff_relu6_grad"),
    ("LeakyReluGrad", "ff_leaky_relu_grad"),
    ("EluGrad", "ff_elu_grad"),
    ("SeluGrad", "ff_selu_grad"),
    ("TanhGrad", "ff_tanh_grad"),
    ("SigmoidGrad", "ff_sigmoid_grad"),
    ("SqrtGrad", "ff_sqrt_grad"),
    ("RsqrtGrad", "ff_rsqrt_grad"),
    ("InvGrad", "ff_inv_grad"),
    ("ReciprocalGrad", "ff_inv_grad"),
    ("SoftplusGrad", "ff_softplus_grad"),
    ("SoftsignGrad", "ff_softsign_grad"),
];

fn rounds(attrs: &Attrs) -> bool {
    !attrs.bool("Truncate").unwrap_or(false)
}

const CASTS_FROM: &[DType] = &[
    DType::Float,
    DType::Half,
    DType::Bfloat16,
    DType::Int32,
    DType::Int64,
    DType::Uint8,
    DType::Bool,
];

/// Threads of a block.
const BLOCK: usize = 256;
/// Elements that a thread computes, where they can be loaded at once.
const WIDTH: usize = 4;

fn fused(build: &KernelBuild) -> Result<Box<dyn GpuKernel>> {
    let program = ElementwiseProgram::decode(build.attrs.str("program")?, build.inputs.len())?;
    let steps: Vec<Step> = program.steps().iter().map(|s| (*s).into()).collect();
    let checked = build.attrs.bool("checked")?;
    Ok(Box::new(move |ctx: &mut GpuCtx| {
        let inputs = (0..ctx.num_inputs()).map(|i| ctx.input(i));
        let inputs: Vec<Tensor> = inputs.collect::<Result<_>>()?;
        if checked {
            let shapes: Vec<&Shape> = inputs.iter().map(Tensor::shape).collect();
            check_operands(&program, ctx.node(), &shapes)?;
        }
        let y = apply(ctx, &steps, &inputs)?;
        ctx.set_output(0, y)
    }))
}

fn unary(build: &KernelBuild) -> Result<Box<dyn GpuKernel>> {
    let alpha = build.attrs.float("alpha").unwrap_or(0.2);
    let function = UnaryFn::of_op(&build.def.name, alpha);
    let function = function.ok_or_else(|| build.unsupported(build.inputs[0]))?;
    let steps = [Step::Unary(function, 0)];
    Ok(Box::new(move |ctx: &mut GpuCtx| {
        let y = apply(ctx, &steps, &[ctx.input(0)?])?;
        ctx.set_output(0, y)
    }))
}

fn binary(build: &KernelBuild) -> Result<Box<dyn GpuKernel>> {
    let function = BinaryFn::of_op(&build.def.name);
    let function = function.ok_or_else(|| build.unsupported(build.inputs[0]))?;
    let is_bias = build.def.name == "BiasAdd";
    let steps = [Step::Binary(function, 0, 1)];
    Ok(Box::new(move |ctx: &mut GpuCtx| {
        let (a, b) = (ctx.input(0)?, ctx.input(1)?);
        if is_bias && a.shape().rank() < 2 {
            return Err(invalid_argument!(
                "Input tensor must be at least 2D: {}",
                a.shape()
            ));
        }
        if is_bias && (b.shape().rank() != 1 || a.shape().last() != Some(&b.num_elements())) {
            return Err(invalid_argument!(
                "Must provide as many biases as the last dimension of the input tensor: {} vs. {}",
                b.shape(),
                a.shape()
            ));
        }
        let y = apply(ctx, &steps, &[a, b])?;
        ctx.set_output(0, y)
    }))
}

fn cast(build: &KernelBuild) -> Result<Box<dyn GpuKernel>> {
    let to = build.output(0)?;
    Ok(Box::new(move |ctx: &mut GpuCtx| {
        let x = ctx.input(0)?;
        if x.dtype() == to {
            return ctx.set_output(0, x);
        }
        let y = ctx.alloc(to, x.shape().clone())?;
        run(ctx, &[], &[x], &y)?;
        ctx.set_output(0, y)
    }))
}

/// An op that calls a function with its inputs.
pub(crate) fn call(build: &KernelBuild) -> Result<Box<dyn GpuKernel>> {
    let op = &*build.def.name;
    let found = CALLS.iter().find(|(name, _)| *name == op);
    let (_, function) = *found.ok_or_else(|| build.unsupported(build.inputs[0]))?;
    let (n, dtype) = (build.inputs.len(), build.output(0)?);
    let is_clip = op == "ClipByValue";
    let agreement = match op {
        "TanhGrad" | "SigmoidGrad" | "SqrtGrad" | "RsqrtGrad" | "InvGrad" | "ReciprocalGrad" => {
            Some(Agreement::Count)
        }
        _ => op.ends_with("Grad").then_some(Agreement::Shape),
    };
    let mut args: Args = (0..n).collect();
    let mut steps = Vec::new();
    if op == "LeakyReluGrad" {
        args.push(n);
        steps.push(Step::Number(build.attrs.float("alpha")?));
    }
    steps.push(Step::Call(function, args));
    let op = op.to_string();
    Ok(Box::new(move |ctx: &mut GpuCtx| {
        let inputs = (0..n).map(|i| ctx.input(i));
        let mut inputs: Vec<Tensor> = inputs.collect::<Result<_>>()?;
        if let Some(agreement) = agreement {
            agreement.check(&op, ctx.node(), [inputs[0].shape(), inputs[1].shape()])?;
            inputs[1] = inputs[1].clone().with_shape(inputs[0].shape().clone())?;
        }
        let fits = |t: &Tensor| t.num_elements() == 1 || t.shape() == inputs[0].shape();
        if is_clip && !inputs.iter().all(fits) {
            return Err(invalid_argument!(
                "clip_value_min and clip_value_max must be either of the same shape as input, or a scalar. input shape: \
                 {}clip_value_min shape: {}clip_value_max shape: {}",
                inputs[0].shape(),
                inputs[1].shape(),
                inputs[2].shape()
            ));
        }
        let y = apply_as(ctx, &steps, &inputs, dtype)?;
        ctx.set_output(0, y)
    }))
}

/// FloorDiv: quotients of 16 bits are rounded to these before they are rounded down.
fn floor_div(build: &KernelBuild) -> Result<Box<dyn GpuKernel>> {
    if build.output(0)? == DType::Float {
        return call(build);
    }
    Ok(Box::new(|ctx: &mut GpuCtx| {
        let inputs = [ctx.input(0)?, ctx.input(1)?];
        let quotient = apply(ctx, &[Step::Binary(BinaryFn::Div, 0, 1)], &inputs)?;
        let y = apply(ctx, &[Step::Unary(UnaryFn::Floor, 0)], &[quotient])?;
        ctx.set_output(0, y)
    }))
}

/// Operands that one kernel adds up.
const MAX_ADDED: usize = 8;

fn add_n(_: &KernelBuild) -> Result<Box<dyn GpuKernel>> {
    Ok(Box::new(|ctx: &mut GpuCtx| {
        let inputs = (0..ctx.num_inputs()).map(|i| ctx.input(i));
        let inputs: Vec<Tensor> = inputs.collect::<Result<_>>()?;
        let shape = inputs[0].shape();
        if let Some(i) = inputs.iter().position(|t| t.shape() != shape) {
            return Err(invalid_argument!(
                "Inputs to operation {} of type AddN must have the same size and shape.  Input 0: {shape} != input {i}: {}",
                ctx.node(),
                inputs[i].shape()
            ));
        }
        let mut sum = inputs[0].clone();
        for part in inputs[1..].chunks(MAX_ADDED) {
            let operands: Vec<Tensor> = std::iter::once(sum).chain(part.iter().cloned()).collect();
            let n = operands.len();
            let add = |i: usize| match i {
                1 => Step::Binary(BinaryFn::Add, 0, 1),
                i => Step::Binary(BinaryFn::Add, n + i - 2, i),
            };
            let steps: Vec<Step> = (1..n).map(add).collect();
            sum = apply(ctx, &steps, &operands)?;
        }
        ctx.set_output(0, sum)
    }))
}

/// Computes a program of tensors that are broadcast together.
///
/// # Errors
/// INVALID_ARGUMENT if the shapes do not fit; those of the device.
pub(crate) fn apply(ctx: &GpuCtx, steps: &[Step], inputs: &[Tensor]) -> Result<Tensor> {
    let dtype = inputs.last().map_or(DType::Float, Tensor::dtype);
    apply_as(ctx, steps, inputs, dtype)
}

/// As [`apply`], with a result of another dtype.
///
/// # Errors
/// As for [`apply`].
pub(crate) fn apply_as(
    ctx: &GpuCtx,
    steps: &[Step],
    inputs: &[Tensor],
    dtype: DType,
) -> Result<Tensor> {
    let mut shape = Shape::scalar();
    for input in inputs {
        shape = broadcast_shape(&shape, input.shape())?;
    }
    let y = ctx.alloc(dtype, shape)?;
    run(ctx, steps, inputs, &y)?;
    Ok(y)
}

/// An operand and the numbers of its walk.
struct Operand {
    tensor: Tensor,
    walk: Walk,
    n: usize,
    inner: usize,
}

/// Computes a program into `y`, which may be an operand.
///
/// # Errors
/// Those of the device.
pub(crate) fn run(ctx: &GpuCtx, steps: &[Step], inputs: &[Tensor], y: &Tensor) -> Result<()> {
    let last = (inputs.len() + steps.len()).saturating_sub(1);
    run_all(ctx, steps, inputs, &[(y, last)])
}

/// Computes a program with several results of one shape, each with the number of the operand or step that it is; they may
/// be operands.
///
/// # Errors
/// Those of the device.
pub(crate) fn run_all(
    ctx: &GpuCtx,
    steps: &[Step],
    inputs: &[Tensor],
    results: &[(&Tensor, usize)],
) -> Result<()> {
    let Some((first, _)) = results.first() else {
        return Ok(());
    };
    let (count, shape) = (first.num_elements(), first.shape());
    if count == 0 {
        return Ok(());
    }
    let operands = inputs.iter().map(|x| operand(ctx, x, shape));
    let operands: SmallVec<[Operand; 4]> = operands.collect::<Result<_>>()?;
    let kernel = Loop {
        operands: operands
            .iter()
            .map(|o| (o.tensor.dtype(), o.walk))
            .collect(),
        steps: steps.to_vec(),
        results: results.iter().map(|(y, at)| (y.dtype(), *at)).collect(),
        width: width(ctx, &operands, results)?,
    };
    let function = ctx.library.elementwise(ctx.memory, &kernel)?;
    let mut args: SmallVec<[TensorArg; 16]> = SmallVec::new();
    args.push(TensorArg::I32(int(count)?));
    args.extend(results.iter().map(|(y, _)| TensorArg::Tensor(y)));
    for operand in &operands {
        args.push(TensorArg::Tensor(&operand.tensor));
        if matches!(operand.walk, Walk::Last | Walk::Middle) {
            args.push(TensorArg::I32(int(operand.n)?));
        }
        if operand.walk == Walk::Middle {
            args.push(TensorArg::I32(int(operand.inner)?));
        }
    }
    ctx.launch(&function, &grid(count / kernel.width), &args)
}

/// A grid of a thread for each of `n` elements.
pub(crate) fn grid(n: usize) -> Grid {
    Grid {
        blocks: [n.div_ceil(BLOCK).max(1) as u32, 1, 1],
        threads: [BLOCK as u32, 1, 1],
        shared_bytes: 0,
    }
}

/// How an operand is walked; where there is no way for its broadcast, a copy of the full shape.
fn operand(ctx: &GpuCtx, x: &Tensor, shape: &Shape) -> Result<Operand> {
    let found = walk(x.shape(), shape);
    let (walk, n, inner) = found.unwrap_or((Walk::Full, 0, 0));
    let tensor = match found {
        Some(_) => x.clone(),
        None => data::broadcast(ctx, x, shape)?,
    };
    Ok(Operand {
        tensor,
        walk,
        n,
        inner,
    })
}

/// The walk of an operand of shape `own`, with its period and the elements that each of its elements is for.
fn walk(own: &Shape, shape: &Shape) -> Option<(Walk, usize, usize)> {
    if own.num_elements() == shape.num_elements() {
        return Some((Walk::Full, 0, 0));
    }
    if own.num_elements() == 1 {
        return Some((Walk::Scalar, 0, 0));
    }
    let lead = shape.rank() - own.rank();
    let is_own = |d: &usize| *d >= lead && own[d - lead] != 1;
    let first = (0..shape.rank()).find(is_own)?;
    let last = (0..shape.rank()).rev().find(is_own)?;
    let is_whole = (first..=last).all(|d| own[d - lead] == shape[d]);
    let inner: usize = shape[last + 1..].iter().product();
    let n = own.num_elements();
    is_whole.then_some(match inner {
        1 => (Walk::Last, n, 1),
        inner => (Walk::Middle, n, inner),
    })
}

/// How many elements a thread can load and store at once.
fn width(ctx: &GpuCtx, operands: &[Operand], results: &[(&Tensor, usize)]) -> Result<usize> {
    let is_aligned = |t: &Tensor| -> Result<bool> {
        let bytes = t.dtype().size() * WIDTH;
        let address = ctx.memory.span(t)?.address.0;
        Ok(bytes <= 16 && address.is_multiple_of(bytes as u64))
    };
    let mut fits = true;
    for (y, _) in results {
        fits = fits && y.num_elements().is_multiple_of(WIDTH) && is_aligned(y)?;
    }
    for operand in operands {
        fits = fits
            && match operand.walk {
                Walk::Full => is_aligned(&operand.tensor)?,
                Walk::Scalar => true,
                Walk::Last => operand.n.is_multiple_of(WIDTH) && is_aligned(&operand.tensor)?,
                Walk::Middle => operand.inner.is_multiple_of(WIDTH),
            };
    }
    Ok(if fits { WIDTH } else { 1 })
}
