//! InvertPermutation (TensorFlow: `core/kernels/transpose_op.cc`).

use ferroflow_base::{Result, invalid_argument};
use ferroflow_functors::indices::{self, Ints};
use ferroflow_opdef::{KernelBuild, KernelCtx, Op, OpKernel};

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
        let perm = indices::ints(ctx.input(0)?)?;
        let mut out = Ints::from_elem(-1, perm.len());
        for (i, &p) in perm.iter().enumerate() {
            let Some(slot) = usize::try_from(p).ok().and_then(|p| out.get_mut(p)) else {
                return Err(invalid_argument!("{p} is not between 0 and {}", perm.len()));
            };
            if *slot != -1 {
                return Err(invalid_argument!("{p} is duplicated in the input."));
            }
            *slot = i as i64;
        }
        let out = indices::int_vector(dtype, out.iter().copied())?;
        ctx.set_output(0, out)
    }))
}
