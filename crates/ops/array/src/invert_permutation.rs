//! InvertPermutation (TensorFlow: `core/kernels/transpose_op.cc`).

use ferroflow_base::{Result, invalid_argument};
use ferroflow_opdef::{KernelBuild, KernelCtx, Op, OpKernel};
use ferroflow_tensor::{DType, Element};
use std::fmt::Display;

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
            DType::Int32 => invert(ctx.slice::<i32>(0)?, out.slice_mut()?)?,
            _ => invert(ctx.slice::<i64>(0)?, out.slice_mut()?)?,
        }
        ctx.set_output(0, out)
    }))
}

fn invert<T: Index>(perm: &[T], out: &mut [T]) -> Result<()> {
    out.fill(T::NONE);
    for (i, &p) in perm.iter().enumerate() {
        let Some(slot) = p.position().and_then(|p| out.get_mut(p)) else {
            return Err(invalid_argument!("{p} is not between 0 and {}", perm.len()));
        };
        if *slot != T::NONE {
            return Err(invalid_argument!("{p} is duplicated in the input."));
        }
        *slot = T::of(i);
    }
    Ok(())
}

/// An integer that is a position.
trait Index: Element + PartialEq + Display {
    const NONE: Self;
    fn position(self) -> Option<usize>;
    fn of(i: usize) -> Self;
}

macro_rules! indices {
    ($($ty:ty),*) => {$(
        impl Index for $ty {
            const NONE: Self = -1;
            fn position(self) -> Option<usize> {
                usize::try_from(self).ok()
            }
            fn of(i: usize) -> Self {
                i as $ty
            }
        }
    )*};
}
indices!(i32, i64);
