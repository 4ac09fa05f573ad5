//! RandomPoisson, RandomPoissonV2, StatelessRandomPoisson (TensorFlow:
//! `core/kernels/random_poisson_op.cc` and `stateless_random_ops.cc`).

use crate::draws;
use crate::multinomial::as_doubles;
use crate::parameterized::{
    Drawn, ShapeMeaning, StreamFn, full_shape, of_input, of_node, samples_shape, spread,
    stateless_shape,
};
use crate::stateless::seeded;
use ferroflow_base::Result;
use ferroflow_functors::distributions::RESERVED;
use ferroflow_opdef::{KernelBuild, KernelCtx, Op, OpKernel};
use ferroflow_tensor::{dispatch, f16};

/// The ops of this file.
pub(crate) const OPS: &[Op] = &[
    Op::new(
        "RandomPoisson",
        "shape: S, rate: dtype -> output: dtype | seed: int = 0; seed2: int = 0; \
         S: type {int32,int64}; dtype: type {half,float,double} | stateful",
    )
    .shape(samples_shape)
    .kernel(|build| poisson(build, (1, ShapeMeaning::Samples), of_node(build)?)),
    Op::new(
        "RandomPoissonV2",
        "shape: S, rate: R -> output: dtype | seed: int = 0; seed2: int = 0; S: type \
         {int32,int64}; R: type {half,float,double,int32,int64} = double; dtype: type \
         {half,float,double,int32,int64} = int64 | stateful",
    )
    .shape(samples_shape)
    .kernel(|build| poisson(build, (1, ShapeMeaning::Samples), of_node(build)?)),
    Op::new(
        "StatelessRandomPoisson",
        "shape: T, seed: Tseed, lam: Rtype -> output: dtype | \
         Rtype: type {half,float,double,int32,int64}; \
         dtype: type {half,float,double,int32,int64}; T: type {int32,int64}; \
         Tseed: type {int32,int64} = int64 |",
    )
    .shape(stateless_shape)
    .kernel(|build| poisson(build, (2, ShapeMeaning::All), of_input(seeded)))
    .not_differentiable(),
];

fn poisson(
    build: &KernelBuild,
    (at, asked): (usize, ShapeMeaning),
    stream: StreamFn,
) -> Result<Box<dyn OpKernel>> {
    let dtype = build.output(0)?;
    dispatch!(dtype, T in [f16, f32, f64, i32, i64] => Ok(Box::new(move |ctx: &mut KernelCtx| {
        let (shape, rates) = (full_shape(ctx, at, asked)?, as_doubles(ctx.input(at)?)?);
        let from = stream(ctx, shape.num_elements())?;
        let out = spread(ctx, shape, &rates, |rate, position| {
            let n = draws::poisson(from.skipped(RESERVED * position), rate);
            <T as Drawn>::of(n)
        })?;
        ctx.set_output(0, out)
    })), else Err(build.unsupported(dtype)))
}
