//! RandomUniform, RandomStandardNormal, TruncatedNormal, RandomUniformInt: stateful ops, whose
//! stream continues from step to step of a session (TensorFlow: `core/kernels/random_op.cc`).

use ferroflow_base::{Result, invalid_argument};
use ferroflow_functors::distributions::{self, Distribution, Integers, Normal, Truncated, Uniform};
use ferroflow_functors::indices::{shape_input, shape_vector};
pub(crate) use ferroflow_functors::random_stream::NodeRandom as Seeded;
use ferroflow_opdef::{KernelBuild, KernelCtx, Op, OpKernel, ShapeCtx};
use ferroflow_primitives::philox::Philox;
use ferroflow_tensor::{DType, Element, Shape, Tensor, bf16, dispatch, f16};

/// The ops of this file.
pub(crate) const OPS: &[Op] = &[
    Op::new(
        "RandomUniform",
        "shape: T -> output: dtype | seed: int = 0; seed2: int = 0; dtype: type \
         {half,bfloat16,float,double}; T: type {int32,int64} | stateful",
    )
    .shape(shape_from_input)
    .kernel(|b| floats(b, Floats::Uniform))
    .not_differentiable(),
    Op::new(
        "RandomStandardNormal",
        "shape: T -> output: dtype | seed: int = 0; seed2: int = 0; dtype: type \
         {half,bfloat16,float,double}; T: type {int32,int64} | stateful",
    )
    .shape(shape_from_input)
    .kernel(|b| floats(b, Floats::Normal))
    .not_differentiable(),
    Op::new(
        "TruncatedNormal",
        "shape: T -> output: dtype | seed: int = 0; seed2: int = 0; dtype: type \
         {half,bfloat16,float,double}; T: type {int32,int64} | stateful",
    )
    .shape(shape_from_input)
    .kernel(|b| floats(b, Floats::Truncated))
    .not_differentiable(),
    Op::new(
        "RandomUniformInt",
        "shape: T, minval: Tout, maxval: Tout -> output: Tout | seed: int = 0; seed2: \
         int = 0; Tout: type {int32,int64}; T: type {int32,int64} | stateful",
    )
    .shape(|ctx| {
        ctx.with_rank(1, 0)?;
        ctx.with_rank(2, 0)?;
        shape_from_input(ctx)
    })
    .kernel(uniform_int),
];

pub(crate) fn shape_from_input(ctx: &mut ShapeCtx) -> Result<()> {
    shape_from_input_at(ctx, 0)
}

/// Sets the output to the shape in input `i`.
pub(crate) fn shape_from_input_at(ctx: &mut ShapeCtx, i: usize) -> Result<()> {
    ctx.with_rank(i, 1)?;
    let shape = shape_input(ctx, i)?;
    ctx.set(0, shape);
    Ok(())
}

/// Returns the shape in input 0.
pub(crate) fn wanted_shape(ctx: &KernelCtx) -> Result<Shape> {
    wanted_shape_at(ctx, 0)
}

/// Returns the shape in input `i`.
pub(crate) fn wanted_shape_at(ctx: &KernelCtx, i: usize) -> Result<Shape> {
    shape_vector(ctx.input(i)?)
}

/// A distribution of floats.
#[derive(Clone, Copy)]
pub(crate) enum Floats {
    Uniform,
    Normal,
    Truncated,
}

impl Floats {
    /// Returns a tensor of random numbers.
    pub(crate) fn fill(
        self,
        ctx: &KernelCtx,
        dtype: DType,
        shape: Shape,
        from: &Philox,
    ) -> Result<Tensor> {
        dispatch!(dtype, T in [f32, f64, f16, bf16] => match self {
            Floats::Uniform => filled::<T, _>(ctx, shape, from, &Uniform),
            Floats::Normal => filled::<T, _>(ctx, shape, from, &Normal),
            Floats::Truncated => filled::<T, _>(ctx, shape, from, &Truncated),
        }, else Err(invalid_argument!("random numbers of type {dtype} are not supported")))
    }
}

pub(crate) fn filled<T: Element, D: Distribution<T>>(
    ctx: &KernelCtx,
    shape: Shape,
    from: &Philox,
    distribution: &D,
) -> Result<Tensor> {
    let mut out = ctx.alloc(T::DTYPE, shape)?;
    distributions::fill(ctx.par(), from, distribution, out.slice_mut::<T>()?);
    Ok(out)
}

fn floats(build: &KernelBuild, kind: Floats) -> Result<Box<dyn OpKernel>> {
    let (dtype, seeded) = (build.output(0)?, Seeded::new(build)?);
    Ok(Box::new(move |ctx: &mut KernelCtx| {
        let shape = wanted_shape(ctx)?;
        let from = seeded.outputs(ctx, shape.num_elements())?;
        let out = kind.fill(ctx, dtype, shape, &from)?;
        ctx.set_output(0, out)
    }))
}

/// Returns integers from input `at` up to the next input.
pub(crate) fn integers(
    ctx: &KernelCtx,
    at: usize,
    shape: Shape,
    from: impl FnOnce(usize) -> Result<Philox>,
) -> Result<Tensor> {
    let (low, high) = (ctx.input(at)?, ctx.input(at + 1)?);
    for (name, t) in [("minval", low), ("maxval", high)] {
        if !t.shape().is_scalar() {
            return Err(invalid_argument!(
                "{name} must be 0-D, got shape {}",
                t.shape()
            ));
        }
    }
    if shape.num_elements() == 0 {
        return ctx.alloc(low.dtype(), shape);
    }
    macro_rules! between {
        ($T:ty, $U:ty) => {{
            let (low, high) = (low.to_scalar::<$T>()?, high.to_scalar::<$T>()?);
            if low >= high {
                return Err(invalid_argument!(
                    "Need minval < maxval, got {low} >= {high}"
                ));
            }
            let range = (high as $U).wrapping_sub(low as $U);
            let from = from(shape.num_elements())?;
            filled::<$T, _>(ctx, shape, &from, &Integers { low, range })
        }};
    }
    match low.dtype() {
        DType::Int32 => between!(i32, u32),
        DType::Int64 => between!(i64, u64),
        DType::Uint32 => between!(u32, u32),
        DType::Uint64 => between!(u64, u64),
        dtype => Err(invalid_argument!(
            "random integers of type {dtype} are not supported"
        )),
    }
}

fn uniform_int(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    let seeded = Seeded::new(build)?;
    Ok(Box::new(move |ctx: &mut KernelCtx| {
        let shape = wanted_shape(ctx)?;
        let out = integers(ctx, 1, shape, |n| seeded.outputs(ctx, n))?;
        ctx.set_output(0, out)
    }))
}
