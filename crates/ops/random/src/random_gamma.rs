//! RandomGamma, StatelessRandomGammaV2, StatelessRandomGammaV3, RandomGammaGrad (TensorFlow:
//! `core/kernels/stateless_random_gamma_op.cc`, `cwise_op_random_grad.cc` and `random_op.cc`).

use crate::draws;
use crate::multinomial::as_doubles;
use crate::parameterized::{
    Drawn, ShapeMeaning, StreamFn, full_shape, of_input, of_node, samples_shape, spread,
    stateless_shape,
};
use crate::random_ops::shape_from_input;
use crate::stateless::{check_key, keyed, seeded};
use ferroflow_base::Result;
use ferroflow_functors::binary::{BinaryFn, binary_kernel};
use ferroflow_functors::distributions::RESERVED;
use ferroflow_functors::shapes;
use ferroflow_opdef::{GradientCtx, KernelBuild, KernelCtx, Op, OpKernel};
use ferroflow_primitives::special_gamma;
use ferroflow_tensor::{DType, dispatch, f16};

/// The ops of this file.
pub(crate) const OPS: &[Op] = &[
    Op::new(
        "RandomGamma",
        "shape: S, alpha: T -> output: T | seed: int = 0; seed2: int = 0; S: type \
         {int32,int64}; T: type {half,float,double} | stateful",
    )
    .shape(samples_shape)
    .kernel(|build| gamma(build, (1, ShapeMeaning::Samples), of_node(build)?))
    .gradient(|g| gamma_gradient(g, 1)),
    Op::new(
        "StatelessRandomGammaV2",
        "shape: T, seed: Tseed, alpha: dtype -> output: dtype | dtype: type \
         {half,float,double}; T: type {int32,int64}; Tseed: type {int32,int64} = int64",
    )
    .shape(stateless_shape)
    .kernel(|build| gamma(build, (2, ShapeMeaning::All), of_input(seeded)))
    .gradient(|g| gamma_gradient(g, 2)),
    Op::new(
        "StatelessRandomGammaV3",
        "shape: shape_dtype, key: uint64, counter: uint64, alg: int32, alpha: dtype -> \
         output: dtype | dtype: type {half,float,double}; shape_dtype: type \
         {int32,int64} = int32",
    )
    .shape(|ctx| {
        check_key(ctx)?;
        shape_from_input(ctx)
    })
    .kernel(|build| gamma(build, (4, ShapeMeaning::All), of_input(keyed)))
    .gradient(|g| gamma_gradient(g, 4)),
    Op::new(
        "RandomGammaGrad",
        "alpha: T, sample: T -> output: T | T: type {float,double} |",
    )
    .shape(shapes::broadcast)
    .kernel(|build| match build.input(0)? {
        DType::Float => binary_kernel::<f32, f32>(BinaryFn(|a: f32, b: f32| {
            special_gamma::sample_by_shape(a.into(), b.into()) as f32
        })),
        DType::Double => binary_kernel::<f64, f64>(BinaryFn(special_gamma::sample_by_shape)),
        dtype => Err(build.unsupported(dtype)),
    }),
];

fn gamma(
    build: &KernelBuild,
    (at, asked): (usize, ShapeMeaning),
    stream: StreamFn,
) -> Result<Box<dyn OpKernel>> {
    let dtype = build.output(0)?;
    dispatch!(dtype, T in [f16, f32, f64] => Ok(Box::new(move |ctx: &mut KernelCtx| {
        let (shape, alphas) = (full_shape(ctx, at, asked)?, as_doubles(ctx.input(at)?)?);
        let from = stream(ctx, shape.num_elements())?;
        let out = spread(ctx, shape, &alphas, |alpha, position| {
            let x = draws::gamma(from.skipped(RESERVED * position), alpha);
            <T as Drawn>::of(x)
        })?;
        ctx.set_output(0, out)
    })), else Err(build.unsupported(dtype)))
}

/// Implicit reparameterization by `alpha` in input `at`, whose dimensions are the samples' last
/// ones.
fn gamma_gradient(g: &mut GradientCtx, at: usize) -> Result<()> {
    let (alpha, samples) = (g.x(at), g.y(0));
    let moved = g.dy(0) * alpha.op("RandomGammaGrad", &[samples]);
    g.set(at, moved.sum_to(alpha))
}
