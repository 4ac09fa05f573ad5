//! Diag and DiagPart (TensorFlow: `core/kernels/diag_op.cc`).

use ferroflow_base::{Result, invalid_argument};
use ferroflow_functors::indices::shape_of;
use ferroflow_functors::strided::Strided;
use ferroflow_opdef::{GradientCtx, KernelBuild, KernelCtx, Op, OpKernel, ShapeCtx};
use ferroflow_tensor::{PartialShape, Shape, Tensor};

/// The ops of this file.
pub(crate) const OPS: &[Op] = &[
    Op::new(
        "Diag",
        "diagonal: T -> output: T | \
         T: type {bfloat16,half,float,double,int32,int64,complex64,complex128}",
    )
    .shape(|ctx| {
        if let Some(dims) = ctx.input(0).dims() {
            ctx.set(0, PartialShape::of(dims.iter().chain(dims).copied()));
        }
        Ok(())
    })
    .kernel(diag)
    .gradient(diag_gradient),
    Op::new(
        "DiagPart",
        "input: T -> diagonal: T | \
         T: type {bfloat16,half,float,double,int32,int64,complex64,complex128}",
    )
    .shape(diag_part_shape)
    .kernel(diag_part)
    .gradient(diag_part_gradient),
];

fn diag(_: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    Ok(Box::new(diag_values))
}

fn diag_values(ctx: &mut KernelCtx) -> Result<()> {
    let input = ctx.input(0)?;
    let shape = input.shape();
    if shape.rank() < 1 {
        return Err(invalid_argument!("Input must be at least rank 1, got 0"));
    }
    let n = input.num_elements();
    let mut out = Tensor::zeros(
        input.dtype(),
        shape_of(shape.iter().chain(shape.iter()).copied())?,
    )?;
    let view = Strided::new(0, [(n, n as isize + 1)]);
    view.scatter(input, &mut out)?;
    ctx.set_output(0, out)
}

fn diag_part_shape(ctx: &mut ShapeCtx) -> Result<()> {
    let input = ctx.input(0);
    let Some(dims) = input.dims() else {
        return Ok(());
    };
    if !dims.len().is_multiple_of(2) || dims.is_empty() {
        return Err(invalid_argument!(
            "Input must have even and non-zero rank, input rank is {}",
            dims.len()
        ));
    }
    let (a, b) = dims.split_at(dims.len() / 2);
    let of = |d: &[Option<usize>]| PartialShape::of(d.iter().copied());
    let shape = ctx.merge(&of(a), &of(b))?;
    ctx.set(0, shape);
    Ok(())
}

fn diag_part(_: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    Ok(Box::new(diag_part_values))
}

fn diag_part_values(ctx: &mut KernelCtx) -> Result<()> {
    let input = ctx.input(0)?;
    let shape = input.shape();
    if shape.rank() % 2 != 0 {
        return Err(invalid_argument!(
            "The rank of the tensor should be{:42}even and positive, got shape {shape}",
            ""
        ));
    }
    let (a, b) = shape.split_at(shape.rank() / 2);
    if let Some(i) = a.iter().zip(b).position(|(a, b)| a != b) {
        return Err(invalid_argument!(
            "Invalid shape {shape}: dimensions {i} and {} do not match.",
            i + a.len()
        ));
    }
    let out_shape = Shape::from(a);
    let n = out_shape.num_elements();
    let mut out = ctx.alloc(input.dtype(), out_shape)?;
    let view = Strided::new(0, [(n, n as isize + 1)]);
    view.gather(ctx.par(), input, &mut out)?;
    ctx.set_output(0, out)
}

fn diag_gradient(g: &mut GradientCtx) -> Result<()> {
    let dx = g.dy(0).op("DiagPart", &[]);
    g.set(0, dx)
}

fn diag_part_gradient(g: &mut GradientCtx) -> Result<()> {
    let dx = g.dy(0).op("Diag", &[]);
    g.set(0, dx)
}
