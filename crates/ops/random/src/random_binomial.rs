//! StatelessRandomBinomial, and the kernel of StatefulRandomBinomial (TensorFlow:
//! `core/kernels/random_binomial_op.cc`).

use crate::draws;
use crate::multinomial::as_doubles;
use crate::parameterized::{Drawn, broadcast, check_end, spread, stateless_shape};
use crate::random_ops::wanted_shape_at;
use crate::stateless::seeded;
use ferroflow_base::{Result, invalid_argument};
use ferroflow_functors::broadcast::broadcast_shape;
use ferroflow_opdef::{KernelCtx, Op};
use ferroflow_primitives::philox::Philox;
use ferroflow_tensor::{DType, Tensor, dispatch, f16};

/// The ops of this file.
pub(crate) const OPS: &[Op] = &[Op::new(
    "StatelessRandomBinomial",
    "shape: S, seed: Tseed, counts: T, probs: T -> output: dtype | S: type \
         {int32,int64}; Tseed: type {int32,int64} = int64; T: type \
         {half,float,double,int32,int64} = double; dtype: type \
         {half,float,double,int32,int64} = int64",
)
.shape(stateless_shape)
.kernel(|build| {
    let (wide, dtype) = (build.input(2)?, build.output(0)?);
    dispatch!(dtype, T in [f16, f32, f64, i32, i64] => Ok(Box::new(move |ctx: &mut KernelCtx| {
            let out = binomial::<T>(ctx, [0, 2], wide, |_| seeded(ctx))?;
            ctx.set_output(0, out)
        })), else Err(build.unsupported(dtype)))
})
.not_differentiable()];

/// Draws binomial samples of the shape in one input for the counts and probabilities in another and
/// the next, computed with as numbers of type `dtype`. `stream` gets the number of parameter pairs
/// and of samples for each.
pub(crate) fn binomial<O: Drawn>(
    ctx: &KernelCtx,
    [shape, at]: [usize; 2],
    dtype: DType,
    stream: impl FnOnce([usize; 2]) -> Result<Philox>,
) -> Result<Tensor> {
    let (counts, probs) = (ctx.input(at)?, ctx.input(at + 1)?);
    let shape = wanted_shape_at(ctx, shape)?;
    let of = broadcast_shape(counts.shape(), probs.shape()).map_err(|_| {
        invalid_argument!(
            "counts and probs must have compatible batch dimensions: {} vs. {}",
            counts.shape(),
            probs.shape()
        )
    })?;
    check_end(&shape, &of)?;
    let n = of.num_elements();
    // A step that runs out of memory does not advance the generator.
    ctx.alloc(O::DTYPE, shape.clone())?;
    let from = stream([n, shape.num_elements() / n.max(1)])?;
    let parameters: Vec<[f64; 2]> = as_doubles(&broadcast(ctx, counts, &of)?)?
        .into_iter()
        .zip(as_doubles(&broadcast(ctx, probs, &of)?)?)
        .map(|(count, prob)| [count, prob])
        .collect();
    spread(ctx, shape, &parameters, |[count, prob], position| {
        let less = if prob <= 0.5 { prob } else { 1.0 - prob };
        // The product, rounded to the inputs' type.
        let many = match dtype {
            DType::Half => f16::from_f64(count) * f16::from_f64(less) >= f16::from_f32(10.0),
            DType::Float => count as f32 * less as f32 >= 10.0,
            _ => count * less >= 10.0,
        };
        O::of(draws::binomial(&from, position, count, prob, many))
    })
}
