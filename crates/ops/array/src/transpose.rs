//! Transpose and ConjugateTranspose (TensorFlow: `core/kernels/transpose_op.cc`).

use ferroflow_base::{Result, invalid_argument};
use ferroflow_functors::indices::{self, constant};
use ferroflow_functors::shapes::permutation;
use ferroflow_functors::transpose::transposed;
use ferroflow_opdef::{GradientCtx, KernelBuild, KernelCtx, Op, OpKernel, ShapeCtx};
use ferroflow_tensor::{Complex32, Complex64, DType, PartialShape, Tensor};

/// The ops of this file.
pub(crate) const OPS: &[Op] = &[
    Op::new(
        "Transpose",
        "x: T, perm: Tperm -> y: T | T: type; Tperm: type {int32,int64} = int32",
    )
    .shape(transpose_shape)
    .kernel(transpose)
    .gradient(transpose_gradient),
    Op::new(
        "ConjugateTranspose",
        "x: T, perm: Tperm -> y: T | T: type; Tperm: type {int32,int64} = int32",
    )
    .shape(transpose_shape)
    .kernel(conjugate_transpose)
    .gradient(transpose_gradient),
];

fn transpose_input(ctx: &mut KernelCtx) -> Result<Tensor> {
    if ctx.shape(1)?.rank() != 1 {
        return Err(invalid_argument!(
            "perm must be rank 1, got shape {}",
            ctx.shape(1)?
        ));
    }
    let perm = indices::ints(ctx.input(1)?)?;
    let value = ctx.take_input(0)?;
    let perm = permutation(&perm, value.shape().rank())?;
    transposed(ctx, value, &perm)
}

fn transpose(_: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    Ok(Box::new(|ctx: &mut KernelCtx| {
        let out = transpose_input(ctx)?;
        ctx.set_output(0, out)
    }))
}

fn conjugate_transpose(_: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    Ok(Box::new(|ctx: &mut KernelCtx| {
        let mut out = transpose_input(ctx)?;
        match out.dtype() {
            DType::Complex64 => {
                out.slice_mut::<Complex32>()?
                    .iter_mut()
                    .for_each(|v| *v = v.conj());
            }
            DType::Complex128 => {
                out.slice_mut::<Complex64>()?
                    .iter_mut()
                    .for_each(|v| *v = v.conj());
            }
            _ => {}
        }
        ctx.set_output(0, out)
    }))
}

fn transpose_shape(ctx: &mut ShapeCtx) -> Result<()> {
    let input = ctx.input(0);
    let perm_len = ctx.with_rank(1, 1)?.dim(0);
    let perm = constant(ctx, 1);
    let rank = input.rank().or(perm.as_ref().map(|p| p.len())).or(perm_len);
    let Some(rank) = rank.filter(|&r| r <= 254) else {
        return Ok(());
    };
    if perm_len.is_some_and(|n| n != rank) {
        return Err(invalid_argument!(
            "transpose expects a vector of size {rank}. But input(1) is a vector of size {}",
            perm_len.unwrap_or(0)
        ));
    }
    let shape = match perm {
        None if rank <= 1 => input,
        None => PartialShape::of_rank(rank),
        Some(perm) => {
            let perm = permutation(&perm, rank)?;
            indices::partial(rank, |i| input.dim(perm[i] as isize))
        }
    };
    ctx.set(0, shape);
    Ok(())
}

fn transpose_gradient(g: &mut GradientCtx) -> Result<()> {
    let back = g.x(1).op("InvertPermutation", &[]);
    let dx = g.dy(0).op(g.op_name(), &[back]);
    g.set(0, dx)
}
