//! Tile (TensorFlow: `core/kernels/tile_ops.cc`).

use ferroflow_base::{Result, invalid_argument};
use ferroflow_functors::indices::{self, constant};
use ferroflow_functors::strided::Strided;
use ferroflow_opdef::{GradientCtx, KernelBuild, KernelCtx, Op, OpKernel, ShapeCtx};
use ferroflow_sync::par_chunks_mut;
use ferroflow_tensor::{DType, PartialShape, Shape, Tensor, dispatch};
use smallvec::SmallVec;

/// The ops of this file.
pub(crate) const OPS: &[Op] = &[Op::new(
    "Tile",
    "input: T, multiples: Tmultiples -> output: T | T: type; Tmultiples: type \
         {int32,int64} = int32",
)
.shape(tile_shape)
.kernel(tile)
.gradient(tile_gradient)];

fn tiled(dim: usize, i: usize, multiple: i64) -> Result<usize> {
    let Ok(m) = usize::try_from(multiple) else {
        return Err(invalid_argument!(
            "Expected multiples[{i}] >= 0, but got {multiple}"
        ));
    };
    dim.checked_mul(m).ok_or_else(|| {
        invalid_argument!("dimension {i} of {dim} elements times {multiple} is too large")
    })
}

fn check_multiples(shape: &Shape, rank: usize) -> Result<()> {
    if shape.rank() != 1 {
        return Err(invalid_argument!(
            "Expected multiples to be 1-D, but got shape {shape}"
        ));
    }
    if shape[0] != rank {
        return Err(invalid_argument!(
            "Expected multiples argument to be a vector of length {rank} but got length {}",
            shape[0]
        ));
    }
    Ok(())
}

fn tile(_: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    Ok(Box::new(|ctx: &mut KernelCtx| {
        let input = ctx.input(0)?;
        let shape = input.shape();
        check_multiples(ctx.shape(1)?, shape.rank())?;
        let multiples = indices::ints(ctx.input(1)?)?;
        let dims: SmallVec<[usize; 8]> = (0..shape.rank())
            .map(|i| tiled(shape[i], i, multiples[i]))
            .collect::<Result<_>>()?;
        let out_shape = indices::shape_of(dims)?;
        if &out_shape == shape {
            let same = ctx.take_input(0)?;
            return ctx.set_output(0, same);
        }
        let mut out = ctx.alloc(input.dtype(), out_shape)?;
        if out.num_elements() > 0 && !repeat(ctx, shape, &multiples, &mut out)? {
            let strides = shape.strides();
            let dims = (0..shape.rank())
                .flat_map(|i| [(multiples[i] as usize, 0), (shape[i], strides[i] as isize)]);
            let view = Strided::new(0, dims);
            view.gather(ctx.par(), input, &mut out)?;
        }
        ctx.set_output(0, out)
    }))
}

/// Outputs that a task computes together.
const CHUNK: usize = 16 * 1024;

/// Elements up to which a block is repeated element by element.
const SHORT: usize = 16;

/// Repeats short blocks, of the elements from one dimension on, the only one with a multiple; `false` if there is none such.
fn repeat(ctx: &KernelCtx, shape: &Shape, multiples: &[i64], out: &mut Tensor) -> Result<bool> {
    let mut repeated = (0..shape.rank()).filter(|i| multiples[*i] != 1);
    let (Some(axis), None) = (repeated.next(), repeated.next()) else {
        return Ok(false);
    };
    let (times, block) = (
        multiples[axis] as usize,
        shape[axis..].iter().product::<usize>(),
    );
    if block > SHORT {
        return Ok(false);
    }
    let input = ctx.input(0)?;
    dispatch!(input.dtype(), T in [f32, f64, i32, i64] => {
        let x = input.slice::<T>()?;
        let n = (CHUNK / (block * times)).max(1);
        par_chunks_mut(ctx.par(), out.slice_mut::<T>()?, n * block * times, 1, &|i, out| {
            let x = &x[i * n * block..][..out.len() / times];
            match (block, times) {
                (1, 2) => repeat_each::<T, 2>(x, out),
                (1, 3) => repeat_each::<T, 3>(x, out),
                (1, 4) => repeat_each::<T, 4>(x, out),
                (1, _) => {
                    for (out, x) in out.chunks_exact_mut(times).zip(x) {
                        out.fill(*x);
                    }
                }
                _ => {
                    let blocks = out.chunks_exact_mut(block * times).zip(x.chunks_exact(block));
                    for (out, x) in blocks {
                        for out in out.chunks_exact_mut(block) {
                            out.copy_from_slice(x);
                        }
                    }
                }
            }
        });
        Ok(true)
    }, else Ok(false))
}

fn repeat_each<T: Copy, const N: usize>(x: &[T], out: &mut [T]) {
    let (groups, _) = out.as_chunks_mut::<N>();
    for (out, x) in groups.iter_mut().zip(x) {
        *out = [*x; N];
    }
}

fn tile_shape(ctx: &mut ShapeCtx) -> Result<()> {
    let mut input = ctx.input(0);
    let len = ctx.with_rank(1, 1)?.dim(0).filter(|&n| n <= 254);
    if let Some(rank) = len {
        input = ctx.with_rank(0, rank)?;
    }
    let Some(dims) = input.dims() else {
        return Ok(());
    };
    let Some(multiples) = constant(ctx, 1).filter(|m| m.len() == dims.len()) else {
        ctx.set(0, PartialShape::of_rank(dims.len()));
        return Ok(());
    };
    let mut out = SmallVec::<[Option<usize>; 4]>::new();
    for (i, (d, &m)) in dims.iter().zip(&multiples).enumerate() {
        out.push(match d {
            Some(d) => Some(tiled(*d, i, m)?),
            None if m == 0 => Some(0),
            None => None,
        });
    }
    ctx.set(0, PartialShape::of(out));
    Ok(())
}

/// Splits each dimension into multiple and size, and sums over the multiples.
fn tile_gradient(g: &mut GradientCtx) -> Result<()> {
    let (x, multiples, d) = (g.x(0), g.x(1).cast(DType::Int32), g.dy(0));
    let shape = x.shape_of();
    let pairs = x.make("Pack", &[multiples, shape], &[("axis", 1i64.into())]);
    let split = pairs.reshape(x.ints([-1]));
    let axes = match x.rank() {
        Some(rank) => x.ints((0..rank as i64).map(|i| 2 * i)),
        None => x.int(0).op("Range", &[split.op("Size", &[]), x.int(2)]),
    };
    g.set(0, d.reshape(split).sum(axes, false).reshape(shape))
}
