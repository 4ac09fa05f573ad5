//! Comparisons, whose results are conditions on the device, and what is computed of integers there.

use crate::data;
use crate::elementwise::{self, grid};
use crate::gather::index_suffix;
use crate::kernel::{GpuCtx, GpuKernel, Row, int};
use ferroflow_base::Result;
use ferroflow_device::TensorArg;
use ferroflow_functors::broadcast::broadcast_shape;
use ferroflow_opdef::{Attrs, KernelBuild};
use ferroflow_tensor::{DType, Shape, Tensor};

const T: &[(&str, &[DType])] = &[(
    "T",
    &[
        DType::Float,
        DType::Half,
        DType::Bfloat16,
        DType::Int32,
        DType::Int64,
    ],
)];

/// In the order of the numbers that the compiled kernel takes.
const OPS: [&str; 6] = [
    "Equal",
    "NotEqual",
    "Less",
    "LessEqual",
    "Greater",
    "GreaterEqual",
];

pub(crate) const ROWS: &[Row] = &[
    Row::new("Equal", compare).types(T).only_if(must_fit),
    Row::new("NotEqual", compare).types(T).only_if(must_fit),
    Row::new("Less", compare).types(T),
    Row::new("LessEqual", compare).types(T),
    Row::new("Greater", compare).types(T),
    Row::new("GreaterEqual", compare).types(T),
    Row::new("BitwiseAnd", arithmetic).types(INTS),
    Row::new("BitwiseOr", arithmetic).types(INTS),
    Row::new("BitwiseXor", arithmetic).types(INTS),
    Row::new("AddV2", arithmetic).types(INTS),
    Row::new("Sub", arithmetic).types(INTS),
    Row::new("Mul", arithmetic).types(INTS),
    Row::new("Minimum", arithmetic).types(INTS),
    Row::new("Maximum", arithmetic).types(INTS),
    Row::new("Cast", convert)
        .types(&[
            ("SrcT", &[DType::Int32, DType::Int64]),
            ("DstT", &[DType::Int32, DType::Int64, DType::Bool]),
        ])
        .only_if(|attrs| !attrs.bool("Truncate").unwrap_or(false)),
    Row::new("Bitcast", bitcast).types(&[
        ("T", &[DType::Float, DType::Int32]),
        ("type", &[DType::Float, DType::Int32]),
    ]),
];

const INTS: &[(&str, &[DType])] = &[("T", &[DType::Int32, DType::Int64])];

/// In the order of the numbers that the compiled kernel takes.
const FUNCTIONS: [&str; 8] = [
    "BitwiseAnd",
    "BitwiseOr",
    "BitwiseXor",
    "AddV2",
    "Sub",
    "Mul",
    "Minimum",
    "Maximum",
];

/// Whether shapes that do not fit are an error.
fn must_fit(attrs: &Attrs) -> bool {
    attrs.bool("incompatible_shape_error").unwrap_or(true)
}

fn compare(build: &KernelBuild) -> Result<Box<dyn GpuKernel>> {
    let dtype = build.input(0)?;
    if dtype.is_floating() {
        return elementwise::call(build);
    }
    of_integers(build, &OPS, "compare")
}

fn arithmetic(build: &KernelBuild) -> Result<Box<dyn GpuKernel>> {
    of_integers(build, &FUNCTIONS, "arithmetic")
}

/// A function of two integers: the compiled kernel takes its number among `all`.
fn of_integers(build: &KernelBuild, all: &[&str], kernel: &str) -> Result<Box<dyn GpuKernel>> {
    let (dtype, result) = (build.input(0)?, build.output(0)?);
    let number = all.iter().position(|op| *op == build.def.name);
    let number = int(number.ok_or_else(|| build.unsupported(dtype))?)?;
    let kernel = format!("{kernel}_{}", index_suffix(dtype));
    Ok(Box::new(move |ctx: &mut GpuCtx| {
        let (a, b) = (ctx.input(0)?, ctx.input(1)?);
        let shape = broadcast_shape(a.shape(), b.shape())?;
        let y = ctx.alloc(result, shape.clone())?;
        let count = y.num_elements();
        if count > 0 {
            let ((a, a_step), (b, b_step)) = (side(ctx, &a, &shape)?, side(ctx, &b, &shape)?);
            let args = [
                TensorArg::Tensor(&a),
                TensorArg::Tensor(&b),
                TensorArg::Tensor(&y),
                TensorArg::I32(int(count)?),
                TensorArg::I32(a_step),
                TensorArg::I32(b_step),
                TensorArg::I32(number),
            ];
            ctx.run(&kernel, &grid(count), &args)?;
        }
        ctx.set_output(0, y)
    }))
}

/// A Cast between integers, or to conditions.
fn convert(build: &KernelBuild) -> Result<Box<dyn GpuKernel>> {
    let (from, to) = (build.input(0)?, build.output(0)?);
    let of = match to {
        DType::Bool => "bool",
        to => index_suffix(to),
    };
    let kernel = format!("convert_{}_{of}", index_suffix(from));
    Ok(Box::new(move |ctx: &mut GpuCtx| {
        let x = ctx.input(0)?;
        if from == to {
            return ctx.set_output(0, x);
        }
        let y = ctx.alloc(to, x.shape().clone())?;
        let count = y.num_elements();
        if count > 0 {
            let args = [
                TensorArg::Tensor(&x),
                TensorArg::Tensor(&y),
                TensorArg::I32(int(count)?),
            ];
            ctx.run(&kernel, &grid(count), &args)?;
        }
        ctx.set_output(0, y)
    }))
}

fn bitcast(build: &KernelBuild) -> Result<Box<dyn GpuKernel>> {
    let to = build.output(0)?;
    Ok(Box::new(move |ctx: &mut GpuCtx| {
        let y = ctx.input(0)?.bitcast(to)?;
        ctx.set_output(0, y)
    }))
}

/// One side, with the distance from one of its elements to the next.
fn side(ctx: &GpuCtx, t: &Tensor, shape: &Shape) -> Result<(Tensor, i32)> {
    if t.num_elements() == shape.num_elements() {
        return Ok((t.clone(), 1));
    }
    match t.num_elements() {
        1 => Ok((t.clone(), 0)),
        _ => Ok((data::broadcast(ctx, t, shape)?, 1)),
    }
}
