//! Ops that compute elements one by one: fused programs, functions of one and two tensors, casts, biases.

use crate::data;
use crate::kernel::{FLOATS, GpuCtx, GpuKernel, Row, int};
use crate::ptx::{Loop, Step, Walk};
use ferroflow_base::{Result, invalid_argument};
use ferroflow_device::{Grid, TensorArg};
use ferroflow_functors::broadcast::broadcast_shape;
use ferroflow_opdef::{BinaryFn, ElementwiseProgram, KernelBuild, UnaryFn};
use ferroflow_tensor::{DType, Shape, Tensor};
use smallvec::SmallVec;

pub(crate) const ROWS: &[Row] = &[
    Row::new("_FusedElementwise", fused),
    Row::new("BiasAdd", binary).strings(&[("data_format", &["NHWC"])]),
    Row::new("Cast", cast)
        .types(&[("SrcT", CASTS_FROM), ("DstT", CASTS_TO)])
        .only_if(|attrs| !attrs.bool("Truncate").unwrap_or(false)),
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
];

const CASTS_FROM: &[DType] = &[
    DType::Float,
    DType::Half,
    DType::Bfloat16,
    DType::Int32,
    DType::Int64,
    DType::Uint8,
    DType::Bool,
];
const CASTS_TO: &[DType] = FLOATS;

/// Threads of a block.
const BLOCK: usize = 256;
/// Elements that a thread computes, where they can be loaded at once.
const WIDTH: usize = 4;

fn fused(build: &KernelBuild) -> Result<Box<dyn GpuKernel>> {
    let program = ElementwiseProgram::decode(build.attrs.str("program")?, build.inputs.len())?;
    let steps: Vec<Step> = program.steps().iter().map(|s| (*s).into()).collect();
    Ok(Box::new(move |ctx: &mut GpuCtx| {
        let inputs = (0..ctx.num_inputs()).map(|i| ctx.input(i));
        let inputs: Vec<Tensor> = inputs.collect::<Result<_>>()?;
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

/// Computes a program of tensors that are broadcast together.
///
/// # Errors
/// INVALID_ARGUMENT if the shapes do not fit; those of the device.
pub(crate) fn apply(ctx: &GpuCtx, steps: &[Step], inputs: &[Tensor]) -> Result<Tensor> {
    let mut shape = Shape::scalar();
    for input in inputs {
        shape = broadcast_shape(&shape, input.shape())?;
    }
    let dtype = inputs.last().map_or(DType::Float, Tensor::dtype);
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
    let count = y.num_elements();
    if count == 0 {
        return Ok(());
    }
    let operands = inputs.iter().map(|x| operand(ctx, x, y.shape()));
    let operands: SmallVec<[Operand; 4]> = operands.collect::<Result<_>>()?;
    let kernel = Loop {
        operands: operands
            .iter()
            .map(|o| (o.tensor.dtype(), o.walk))
            .collect(),
        steps: steps.to_vec(),
        result: y.dtype(),
        width: width(ctx, &operands, y)?,
    };
    let function = ctx.library.elementwise(ctx.memory, &kernel)?;
    let mut args: SmallVec<[TensorArg; 16]> = SmallVec::new();
    args.push(TensorArg::Tensor(y));
    args.push(TensorArg::I32(int(count)?));
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
fn width(ctx: &GpuCtx, operands: &[Operand], y: &Tensor) -> Result<usize> {
    let is_aligned = |t: &Tensor| -> Result<bool> {
        let bytes = t.dtype().size() * WIDTH;
        let address = ctx.memory.span(t)?.address.0;
        Ok(bytes <= 16 && address.is_multiple_of(bytes as u64))
    };
    let mut fits = y.num_elements().is_multiple_of(WIDTH) && is_aligned(y)?;
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
