//! Shapes and streams of the ops whose parameters are tensors.

use crate::random_ops::{Seeded, shape_from_input, wanted_shape};
use crate::stateless::{StreamSource, check_seed};
use ferroflow_base::{Result, invalid_argument};
use ferroflow_functors::broadcast::broadcast_tensor;
use ferroflow_functors::indices::{shape_input, shape_of};
use ferroflow_opdef::{KernelBuild, KernelCtx, ShapeCtx};
use ferroflow_primitives::philox::Philox;
use ferroflow_sync::par_chunks_mut;
use ferroflow_tensor::{Element, PartialShape, Shape, Tensor, f16};

macro_rules! drawn {
    ($($ty:ty: $of:expr),*) => {$(
        impl Drawn for $ty {
            fn of(x: f64) -> Self {
                let of: fn(f64) -> $ty = $of;
                of(x)
            }
        }
    )*};
}

/// An output type of samples.
pub(crate) trait Drawn: Element {
    /// Converts a sample; infinities and NaN are zero as an integer.
    fn of(x: f64) -> Self;
}

drawn! {
    f16: f16::from_f64, f32: |x| x as f32, f64: |x| x,
    i32: |x| if x.is_finite() { x as i32 } else { 0 },
    i64: |x| if x.is_finite() { x as i64 } else { 0 }
}

/// Returns a stream with the requested count of numbers.
pub(crate) type StreamFn = Box<dyn Fn(&KernelCtx, usize) -> Result<Philox> + Send + Sync>;

pub(crate) fn of_node(build: &KernelBuild) -> Result<StreamFn> {
    let node = Seeded::new(build)?;
    Ok(Box::new(move |ctx, n| node.outputs(ctx, n)))
}

pub(crate) fn of_input(source: StreamSource) -> StreamFn {
    Box::new(move |ctx, _| source(ctx))
}

/// Sets the output shape to the shape in input 0 followed by that of the parameters in input 1.
pub(crate) fn samples_shape(ctx: &mut ShapeCtx) -> Result<()> {
    ctx.with_rank(0, 1)?;
    let samples = shape_input(ctx, 0)?;
    let dims = match (samples.dims(), ctx.input(1).dims()) {
        (Some(a), Some(b)) => PartialShape::of(a.iter().chain(b).copied()),
        _ => PartialShape::unknown(),
    };
    ctx.set(0, dims);
    Ok(())
}

/// The meaning of the shape in input 0.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum ShapeMeaning {
    /// The numbers for each parameter.
    Samples,
    /// All numbers; its last dimensions are the parameters'.
    All,
}

/// Returns the shape of all numbers for the parameters in input `at`.
pub(crate) fn full_shape(ctx: &KernelCtx, at: usize, asked: ShapeMeaning) -> Result<Shape> {
    let (shape, of) = (wanted_shape(ctx)?, ctx.shape(at)?);
    if asked == ShapeMeaning::Samples {
        return shape_of(shape.dims().iter().chain(of.dims()).copied());
    }
    check_end(&shape, of)?;
    Ok(shape)
}

/// Returns a tensor of `shape`, whose last dimensions are those of `parameters`, with the results
/// of `draw` for a parameter and the position of the sample; the samples of a parameter are
/// computed one after another.
pub(crate) fn spread<O: Element, P: Copy + Sync>(
    ctx: &KernelCtx,
    shape: Shape,
    parameters: &[P],
    draw: impl Fn(P, u128) -> O + Sync,
) -> Result<Tensor> {
    let mut out = ctx.alloc(O::DTYPE, shape)?;
    let samples = out.num_elements() / parameters.len().max(1);
    let (par, row) = (ctx.par(), parameters.len());
    par_chunks_mut(par, out.slice_mut::<O>()?, row, 64, &|s, out| {
        for (p, (out, parameter)) in out.iter_mut().zip(parameters).enumerate() {
            *out = draw(*parameter, (p * samples + s) as u128);
        }
    });
    Ok(out)
}

pub(crate) fn stateless_shape(ctx: &mut ShapeCtx) -> Result<()> {
    check_seed(ctx, 1)?;
    shape_from_input(ctx)
}

pub(crate) fn check_end(shape: &Shape, of: &Shape) -> Result<()> {
    if shape.dims().ends_with(of.dims()) {
        return Ok(());
    }
    Err(invalid_argument!(
        "Shape passed in must end with broadcasted shape."
    ))
}

pub(crate) fn broadcast(ctx: &KernelCtx, t: &Tensor, to: &Shape) -> Result<Tensor> {
    broadcast_tensor(ctx, t, to.clone())
}
