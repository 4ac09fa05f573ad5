//! InTopK and InTopKV2 (TensorFlow: `core/kernels/in_topk_op.cc`).

use ferroflow_base::{Result, invalid_argument};
use ferroflow_functors::indices::{ints, scalar};
use ferroflow_opdef::{KernelBuild, KernelCtx, Op, OpKernel, ShapeCtx};
use ferroflow_tensor::{DType, PartialShape};

/// The ops of this file.
pub(crate) const OPS: &[Op] = &[
    Op::new(
        "InTopK",
        "predictions: float, targets: T -> precision: bool | k: int; T: type \
         {int32,int64} = int32",
    )
    .shape(in_top_k_shape)
    .kernel(|build| in_top_k_factory(build, Some(build.attrs.int("k")?))),
    Op::new(
        "InTopKV2",
        "predictions: float, targets: T, k: T -> precision: bool | T: type \
         {int32,int64} = int32",
    )
    .shape(in_top_k_shape)
    .kernel(|build| in_top_k_factory(build, None)),
];

fn in_top_k_shape(ctx: &mut ShapeCtx) -> Result<()> {
    let rows = ctx.with_rank(0, 2)?.dim(0);
    let targets = ctx.with_rank(1, 1)?;
    let shape = ctx.merge(&PartialShape::of([rows]), &targets)?;
    ctx.set(0, shape);
    Ok(())
}

fn in_top_k_factory(build: &KernelBuild, k: Option<i64>) -> Result<Box<dyn OpKernel>> {
    match build.input(1)? {
        DType::Int32 | DType::Int64 => {}
        dtype => return Err(build.unsupported(dtype)),
    }
    Ok(Box::new(move |ctx: &mut KernelCtx| in_top_k(ctx, k)))
}

fn in_top_k(ctx: &mut KernelCtx, k: Option<i64>) -> Result<()> {
    let (x, targets) = (ctx.input(0)?, ctx.input(1)?);
    let k = match k {
        Some(k) => k,
        None => {
            let k = ctx.input(2)?;
            scalar(k).ok_or_else(|| invalid_argument!("k must be 0-D, got shape {}", k.shape()))?
        }
    };
    let &[rows, n] = x.shape().dims() else {
        return Err(invalid_argument!("predictions must be 2-dimensional"));
    };
    if targets.shape().rank() != 1 {
        return Err(invalid_argument!("targets must be 1-dimensional"));
    }
    if targets.num_elements() != rows {
        return Err(invalid_argument!(
            "First dimension of predictions {rows} must match length of targets {}",
            targets.num_elements()
        ));
    }
    let (x, targets) = (x.slice::<f32>()?, ints(targets)?);
    let mut out = ctx.alloc(DType::Bool, [rows].into())?;
    for (r, (out, target)) in out.slice_mut::<bool>()?.iter_mut().zip(targets).enumerate() {
        let row = &x[r * n..(r + 1) * n];
        let target = usize::try_from(target).ok().and_then(|t| row.get(t));
        *out = target.is_some_and(|target| {
            let ahead = row.iter().filter(|x| *x > target).count() as i64;
            target.is_finite() && ahead < k && row.iter().all(|x| x.is_finite())
        });
    }
    ctx.set_output(0, out)
}
