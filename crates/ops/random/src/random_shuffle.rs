//! RandomShuffle (TensorFlow: `core/kernels/random_shuffle_op.cc`).

use crate::random_ops::Seeded;
use ferroflow_base::Result;
use ferroflow_functors::distributions;
use ferroflow_functors::shapes;
use ferroflow_opdef::{KernelBuild, KernelCtx, Op, OpKernel};
use ferroflow_primitives::philox::Philox;
use ferroflow_sync::par_chunks_mut;
use ferroflow_tensor::dispatch_items;

/// The ops of this file.
pub(crate) const OPS: &[Op] = &[Op::new(
    "RandomShuffle",
    "value: T -> output: T | seed: int = 0; seed2: int = 0; T: type | stateful",
)
.shape(shapes::unchanged)
.kernel(|build| {
    let node = Seeded::new(build)?;
    shuffle(
        build,
        |_| Ok(()),
        move |(), ctx, n| node.reserve(ctx, n.div_ceil(4) as u128),
    )
})
.not_differentiable()];

/// Shuffles along the first dimension; `check` reads what `stream` makes the numbers for a count of
/// rows of.
pub(crate) fn shuffle<S: 'static>(
    build: &KernelBuild,
    check: fn(&KernelCtx) -> Result<S>,
    stream: impl Fn(&S, &KernelCtx, usize) -> Result<Philox> + Send + Sync + 'static,
) -> Result<Box<dyn OpKernel>> {
    let dtype = build.output(0)?;
    Ok(
        dispatch_items!(dtype, T => Box::new(move |ctx: &mut KernelCtx| {
            let source = check(ctx)?;
            let value = ctx.input(0)?;
            let n = value.shape().dims().first().copied().unwrap_or(1);
            if n <= 1 || value.num_elements() == 0 {
                let value = ctx.take_input(0)?;
                return ctx.set_output(0, value);
            }
            let mut stream = stream(&source, ctx, n)?;
            let order = distributions::permutation(&mut stream, n);
            let row = value.num_elements() / n;
            let mut out = ctx.alloc(dtype, value.shape().clone())?;
            let from = value.items::<T>()?;
            par_chunks_mut(ctx.par(), out.items_mut::<T>()?, row, (4096 / row).max(1), &|i, to| {
                let start = order.get(i).map_or(0, |p| p * row);
                if let Some(from) = from.get(start..start + to.len()) {
                    to.clone_from_slice(from);
                }
            });
            ctx.set_output(0, out)
        })),
    )
}
