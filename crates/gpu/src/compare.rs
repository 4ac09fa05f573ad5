//! Comparisons, whose results are conditions on the device.

use crate::data;
use crate::elementwise::{self, grid};
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
    let number = OPS.iter().position(|op| *op == build.def.name);
    let number = int(number.ok_or_else(|| build.unsupported(dtype))?)?;
    let kernel = match dtype {
        DType::Int64 => "compare_i64",
        _ => "compare_i32",
    };
    Ok(Box::new(move |ctx: &mut GpuCtx| {
        let (a, b) = (ctx.input(0)?, ctx.input(1)?);
        let shape = broadcast_shape(a.shape(), b.shape())?;
        let y = ctx.alloc(DType::Bool, shape.clone())?;
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
            ctx.run(kernel, &grid(count), &args)?;
        }
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
