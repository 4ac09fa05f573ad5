//! Bincount (TensorFlow: `core/kernels/bincount_op.cc`).

use ferroflow_base::{Result, invalid_argument};
use ferroflow_functors::indices::{constant_int, int};
use ferroflow_functors::numeric::Num;
use ferroflow_opdef::{KernelCtx, Op};
use ferroflow_tensor::{PartialShape, Tensor, dispatch};

/// The ops of this file.
pub(crate) const OPS: &[Op] = &[Op::new(
    "Bincount",
    "arr: int32, size: int32, weights: T -> bins: T | T: type \
         {int32,int64,float,double}",
)
.shape(|ctx| {
    let size = constant_int(ctx, 1);
    if let Some(size) = size.filter(|&s| s < 0) {
        return Err(invalid_argument!("size ({size}) must be non-negative"));
    }
    ctx.set(0, PartialShape::of([size.map(|s| s as usize)]));
    Ok(())
})
.kernel(|build| {
    let dtype = build.input(2)?;
    dispatch!(dtype, T in [i32, i64, f32, f64] => Ok(Box::new(bincount::<T>)),
                else Err(build.unsupported(dtype)))
})];

fn bincount<T: Num>(ctx: &mut KernelCtx) -> Result<()> {
    let (arr, size, weights) = (ctx.input(0)?, ctx.input(1)?, ctx.input(2)?);
    let size = int(size).ok_or_else(|| {
        invalid_argument!("Shape must be rank 0 but is rank {}", size.shape().rank())
    })?;
    let Ok(size) = usize::try_from(size) else {
        return Err(invalid_argument!("size ({size}) must be non-negative"));
    };
    let (arr, weights) = (arr.slice::<i32>()?, weights.slice::<T>()?);
    if !weights.is_empty() && weights.len() != arr.len() {
        return Err(invalid_argument!(
            "Input indices and weights must have the same size."
        ));
    }
    if arr.iter().any(|&v| v < 0) {
        return Err(invalid_argument!("Input arr must be non-negative!"));
    }
    let mut out = Tensor::zeros(T::DTYPE, [size].into())?;
    let bins = out.slice_mut::<T>()?;
    for (i, &v) in arr.iter().enumerate() {
        if let Some(bin) = bins.get_mut(v as usize) {
            *bin = bin.add(weights.get(i).copied().unwrap_or(T::ONE));
        }
    }
    ctx.set_output(0, out)
}
