//! RandomCrop (TensorFlow: `core/kernels/image/random_crop_op.cc`).

use ferroflow_base::{Result, failed_precondition, invalid_argument};
use ferroflow_functors::random_stream::NodeRandom;
use ferroflow_opdef::{KernelBuild, KernelCtx, Op, OpKernel, ShapeCtx};
use ferroflow_tensor::{Element, PartialShape, dispatch};

/// The ops of this file.
pub(crate) const OPS: &[Op] = &[Op::new(
    "RandomCrop",
    "image: T, size: int64 -> output: T | T: type {uint8,int8,int16,int32,int64,float,double}; seed: int = 0; \
     seed2: int = 0 | stateful",
)
.shape(shape)
.kernel(random_crop)
.not_differentiable()];

fn shape(ctx: &mut ShapeCtx) -> Result<()> {
    let image = ctx.with_rank(0, 3)?;
    ctx.with_rank(1, 1)?;
    ctx.set(0, PartialShape::of([None, None, image.dim(2)]));
    Ok(())
}

fn random_crop(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    let (random, dtype) = (NodeRandom::new(build)?, build.input(0)?);
    dispatch!(dtype, T in [u8, i8, i16, i32, i64, f32, f64] =>
        Ok(Box::new(move |ctx: &mut KernelCtx| crop::<T>(ctx, &random))),
        else Err(build.unsupported(dtype)))
}

fn crop<T: Element>(ctx: &mut KernelCtx, random: &NodeRandom) -> Result<()> {
    let &[height, width, channels] = ctx.shape(0)?.dims() else {
        return Err(invalid_argument!(
            "input must be 3-dimensional{}",
            ctx.shape(0)?
        ));
    };
    let size = ctx.input(1)?;
    if size.shape().rank() != 1 {
        return Err(invalid_argument!(
            "shape_t must be 1-dimensional{}",
            size.shape()
        ));
    }
    let &[rows, columns] = size.slice::<i64>()? else {
        return Err(invalid_argument!(
            "shape_t must have two elements{}",
            size.shape()
        ));
    };
    let fits = |target: i64, name: &str| {
        usize::try_from(target)
            .map_err(|_| invalid_argument!("target_{name} must not be negative: {target}"))
    };
    let (rows, columns) = (fits(rows, "height")?, fits(columns, "width")?);
    for (name, size, target) in [("width", width, columns), ("height", height, rows)] {
        if size < target {
            return Err(failed_precondition!(
                "{name} must be >= target_{name}: {name} = {size}, target_{name} = {target}"
            ));
        }
    }
    let mut stream = random.reserve(ctx, 1)?;
    let mut offset = |size: usize, target: usize| match size - target {
        0 => 0,
        spare => stream.next_u32() as usize % (spare + 1),
    };
    let (left, top) = (offset(width, columns), offset(height, rows));
    let mut out = ctx.alloc(T::DTYPE, [rows, columns, channels].into())?;
    let (from, row) = (ctx.slice::<T>(0)?, columns * channels);
    for (y, to) in out
        .slice_mut::<T>()?
        .chunks_exact_mut(row.max(1))
        .enumerate()
    {
        to.copy_from_slice(&from[((y + top) * width + left) * channels..][..row]);
    }
    ctx.set_output(0, out)
}
