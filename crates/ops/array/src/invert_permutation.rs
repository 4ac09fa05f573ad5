//! InvertPermutation (TensorFlow: `core/kernels/transpose_op.cc`).

use ferroflow_base::{Result, invalid_argument};
use ferroflow_functors::indices::Index;
use ferroflow_opdef::{KernelBuild, KernelCtx, Op, OpKernel};
use ferroflow_tensor::DType;

/// The ops of this file.
pub(crate) const OPS: &[Op] = &[Op::new(
    "InvertPermutation",
    "x: T -> y: T | T: type {int32,int64} = int32",
)
.shape(|ctx| {
    ctx.set(0, ctx.with_rank(0, 1)?);
    Ok(())
})
.kernel(invert_permutation)
.not_differentiable()];

fn invert_permutation(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    let dtype = build.input(0)?;
    Ok(Box::new(move |ctx: &mut KernelCtx| {
        if ctx.shape(0)?.rank() != 1 {
            return Err(invalid_argument!("invert_permutation expects a 1D vector."));
        }
        let mut out = ctx.alloc(dtype, ctx.shape(0)?.clone())?;
        match dtype {
            DType::Int32 => invert::<i32>(ctx.slice(0)?, out.slice_mut()?)?,
            _ => invert::<i64>(ctx.slice(0)?, out.slice_mut()?)?,
        }
        ctx.set_output(0, out)
    }))
}

fn invert<I: Index>(perm: &[I], out: &mut [I]) -> Result<()> {
    const NONE: i64 = -1;
    out.fill(I::from_i64(NONE));
    for (i, p) in perm.iter().map(|p| p.to_i64()).enumerate() {
        let Some(slot) = usize::try_from(p).ok().and_then(|p| out.get_mut(p)) else {
            return Err(invalid_argument!("{p} is not between 0 and {}", perm.len()));
        };
        if slot.to_i64() != NONE {
            return Err(invalid_argument!("{p} is duplicated in the input."));
        }
        *slot = I::from_i64(i as i64);
    }
    Ok(())
}
