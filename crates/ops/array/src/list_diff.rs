//! ListDiff (TensorFlow: `core/kernels/listdiff_op.cc`).

use crate::hash_key::{Key, dispatch_keys};
use ferroflow_base::{Result, invalid_argument};
use ferroflow_functors::indices::{self};
use ferroflow_opdef::{KernelBuild, KernelCtx, Op, OpKernel};
use ferroflow_tensor::{Bytes, DType, PartialShape, Shape, Tensor};
use std::collections::HashSet;

/// The ops of this file.
pub(crate) const OPS: &[Op] = &[Op::new(
    "ListDiff",
    "x: T, y: T -> out: T, idx: out_idx | T: type; out_idx: type {int32,int64} = \
         int32",
)
.shape(|ctx| {
    for i in 0..2 {
        ctx.with_rank(i, 1)?;
        ctx.set(i, PartialShape::of_rank(1));
    }
    Ok(())
})
.kernel(list_diff)];

fn list_diff(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    let (dtype, index) = (build.input(0)?, build.output(1)?);
    let remaining: Remaining = dispatch_keys!(build, dtype, T => Ok(remaining::<T> as Remaining))?;
    Ok(Box::new(move |ctx: &mut KernelCtx| {
        let (x, y) = (ctx.input(0)?, ctx.input(1)?);
        for (name, t) in [("x", x), ("y", y)] {
            if t.shape().rank() != 1 {
                return Err(invalid_argument!("{name} should be a 1D vector."));
            }
        }
        let (out, kept) = remaining(ctx, dtype)?;
        ctx.set_output(
            1,
            indices::int_vector(index, kept.iter().map(|&i| i as i64))?,
        )?;
        ctx.set_output(0, out)
    }))
}

/// Returns the elements of x that y does not have, and where they are.
type Remaining = fn(&KernelCtx, DType) -> Result<(Tensor, Vec<usize>)>;

fn remaining<T: Key>(ctx: &KernelCtx, dtype: DType) -> Result<(Tensor, Vec<usize>)> {
    let (from, y) = (ctx.input(0)?.items::<T>()?, ctx.input(1)?.items::<T>()?);
    let taken: HashSet<_> = y.iter().filter_map(|v| v.key(dtype)).collect();
    let kept: Vec<usize> = (0..from.len())
        .filter(|&i| from[i].key(dtype).is_none_or(|k| !taken.contains(&k)))
        .collect();
    let mut out = ctx.alloc(dtype, Shape::from([kept.len()]))?;
    for (to, &i) in out.items_mut::<T>()?.iter_mut().zip(&kept) {
        to.clone_from(&from[i]);
    }
    Ok((out, kept))
}
