//! Fill, ZerosLike, OnesLike, Empty (TensorFlow: `core/kernels/constant_op.cc` and
//! `inplace_ops.cc`).

use ferroflow_base::{Result, invalid_argument};
use ferroflow_functors::indices::{self};
use ferroflow_functors::shapes;
use ferroflow_functors::strided::filled;
use ferroflow_opdef::{GradientCtx, KernelBuild, KernelCtx, Op, OpKernel, ShapeCtx};
use ferroflow_tensor::{Complex32, Complex64, DType, Element, Shape, Tensor, bf16, dispatch, f16};

/// The ops of this file.
pub(crate) const OPS: &[Op] = &[
    Op::new(
        "Fill",
        "dims: index_type, value: T -> output: T | T: type; index_type: type \
         {int32,int64} = int32",
    )
    .shape(shape_from_input)
    .kernel(fill)
    .gradient(fill_gradient),
    Op::new("ZerosLike", "x: T -> y: T | T: type")
        .shape(shapes::unchanged)
        .kernel(zeros_like)
        .not_differentiable(),
    Op::new(
        "OnesLike",
        "x: T -> y: T | T: type \
         {bfloat16,half,float,double,int8,uint8,int16,uint16,int32,uint32,int64,uint64,complex64,complex128,bool}",
    )
    .shape(shapes::unchanged)
    .kernel(ones_like)
    .not_differentiable(),
    Op::new(
        "Empty",
        "shape: int32 -> output: dtype | dtype: type; init: bool = false | stateful",
    )
    .shape(shape_from_input)
    .kernel(empty)
    .not_differentiable(),
];

fn shape_from_input(ctx: &mut ShapeCtx) -> Result<()> {
    let shape = indices::shape_input(ctx, 0)?;
    ctx.set(0, shape);
    Ok(())
}

fn dims_input(ctx: &KernelCtx, name: &str) -> Result<Shape> {
    check_vector(ctx, name)?;
    Shape::checked(&indices::ints(ctx.input(0)?)?)
}

fn check_vector(ctx: &KernelCtx, name: &str) -> Result<()> {
    let dims = ctx.shape(0)?;
    // Old graphs may have a single size as a scalar.
    match dims.rank() {
        0 | 1 => Ok(()),
        _ => Err(invalid_argument!(
            "{name} must represent a vector, got shape {dims}"
        )),
    }
}

pub(crate) fn fill(_: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    Ok(Box::new(|ctx: &mut KernelCtx| {
        check_vector(ctx, "dims")?;
        let value = ctx.input(1)?;
        if value.num_elements() != 1 {
            return Err(invalid_argument!(
                "value must represent a scalar, got shape {}",
                value.shape()
            ));
        }
        let shape = Shape::checked(&indices::ints(ctx.input(0)?)?)?;
        let out = filled(ctx, value, shape)?;
        ctx.set_output(0, out)
    }))
}

fn zeros_like(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    let dtype = build.output(0)?;
    if dtype == DType::Variant {
        return Ok(Box::new(|ctx: &mut KernelCtx| {
            let zeros = ferroflow_functors::tensor_list::zeros(ctx.input(0)?)?;
            ctx.set_output(0, zeros)
        }));
    }
    if dtype == DType::Resource {
        return Err(build.unsupported(dtype));
    }
    Ok(Box::new(move |ctx: &mut KernelCtx| {
        let out = Tensor::zeros(dtype, ctx.shape(0)?.clone())?;
        ctx.set_output(0, out)
    }))
}

fn ones_like(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    fn ones<T: Element>(one: T) -> Box<dyn OpKernel> {
        Box::new(move |ctx: &mut KernelCtx| {
            let shape = ctx.shape(0)?.clone();
            let (mut out, _) = ctx.forward_or_alloc(&[0], T::DTYPE, shape)?;
            out.slice_mut::<T>()?.fill(one);
            ctx.set_output(0, out)
        })
    }
    match build.output(0)? {
        DType::Bool => Ok(ones(true)),
        DType::Half => Ok(ones(f16::ONE)),
        DType::Bfloat16 => Ok(ones(bf16::ONE)),
        DType::Complex64 => Ok(ones(Complex32::new(1.0, 0.0))),
        DType::Complex128 => Ok(ones(Complex64::new(1.0, 0.0))),
        DType::Float => Ok(ones(1f32)),
        DType::Double => Ok(ones(1f64)),
        dtype => dispatch!(dtype, T in [i8, u8, i16, u16, i32, u32, i64, u64] => Ok(ones(1 as T)),
            else Err(build.unsupported(dtype))),
    }
}

fn empty(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    let dtype = build.output(0)?;
    let init = build.attrs.bool("init")?;
    Ok(Box::new(move |ctx: &mut KernelCtx| {
        let shape = dims_input(ctx, "shape")?;
        let out = if init {
            Tensor::zeros(dtype, shape)?
        } else {
            ctx.alloc(dtype, shape)?
        };
        ctx.set_output(0, out)
    }))
}

fn fill_gradient(g: &mut GradientCtx) -> Result<()> {
    let d = g.dy(0);
    let flat = d.reshape(d.ints([-1]));
    g.set(1, flat.sum(d.ints([0]), false))
}
