//! Gradients of SparseSegmentSum, SparseSegmentMean and SparseSegmentSqrtN (TensorFlow:
//! `core/kernels/segment_reduction_ops_impl.h`).

use crate::segment::{check_same_size, check_vectors};
use ferroflow_base::{Result, invalid_argument};
use ferroflow_functors::half_conversion::{narrowed, widened};
use ferroflow_functors::indices::{Index, dispatch_index, ints, scalar, shape_of};
use ferroflow_functors::numeric::Num;
use ferroflow_opdef::{KernelBuild, KernelCtx, Op, OpKernel, ShapeCtx};
use ferroflow_tensor::{DType, PartialShape, Shape, Tensor, dispatch};

/// The ops of this file.
pub(crate) const OPS: &[Op] = &[
    Op::new(
        "SparseSegmentSumGrad",
        "grad: T, indices: Tidx, segment_ids: Tsegmentids, output_dim0: int32 -> \
         output: T | T: type {bfloat16,half,float,double}; Tidx: type {int32,int64} = \
         int32; Tsegmentids: type {int32,int64} = int32",
    )
    .shape(shape)
    .kernel(|b| kernel(b, Scale::None)),
    Op::new(
        "SparseSegmentMeanGrad",
        "grad: T, indices: Tidx, segment_ids: Tsegmentids, output_dim0: int32 -> \
         output: T | T: type {bfloat16,half,float,double}; Tidx: type {int32,int64} = \
         int32; Tsegmentids: type {int32,int64} = int32",
    )
    .shape(shape)
    .kernel(|b| kernel(b, Scale::Mean)),
    Op::new(
        "SparseSegmentSqrtNGrad",
        "grad: T, indices: Tidx, segment_ids: Tsegmentids, output_dim0: int32 -> \
         output: T | T: type {bfloat16,half,float,double}; Tidx: type {int32,int64} = \
         int32; Tsegmentids: type {int32,int64} = int32",
    )
    .shape(shape)
    .kernel(|b| kernel(b, Scale::SqrtN)),
    Op::new(
        "SparseSegmentSumGradV2",
        "grad: T, indices: Tidx, segment_ids: Tsegmentids, dense_output_dim0: int32 -> \
         output: T, sorted_unique_indices: Tidx | T: type \
         {bfloat16,half,float,double}; Tidx: type {int32,int64} = int32; Tsegmentids: \
         type {int32,int64} = int32",
    )
    .shape(shape)
    .kernel(|b| kernel(b, Scale::None)),
    Op::new(
        "SparseSegmentMeanGradV2",
        "grad: T, indices: Tidx, segment_ids: Tsegmentids, dense_output_dim0: int32 -> \
         output: T, sorted_unique_indices: Tidx | T: type \
         {bfloat16,half,float,double}; Tidx: type {int32,int64} = int32; Tsegmentids: \
         type {int32,int64} = int32",
    )
    .shape(shape)
    .kernel(|b| kernel(b, Scale::Mean)),
    Op::new(
        "SparseSegmentSqrtNGradV2",
        "grad: T, indices: Tidx, segment_ids: Tsegmentids, dense_output_dim0: int32 -> \
         output: T, sorted_unique_indices: Tidx | T: type \
         {bfloat16,half,float,double}; Tidx: type {int32,int64} = int32; Tsegmentids: \
         type {int32,int64} = int32",
    )
    .shape(shape)
    .kernel(|b| kernel(b, Scale::SqrtN)),
];

/// The divisor of a segment's sum in the forward op.
#[derive(Clone, Copy)]
enum Scale {
    None,
    Mean,
    SqrtN,
}

fn shape(ctx: &mut ShapeCtx) -> Result<()> {
    let grad = ctx.with_rank_at_least(0, 1)?;
    let indices = ctx.with_rank(1, 1)?;
    ctx.merge(&indices, &ctx.with_rank(2, 1)?)?;
    ctx.with_rank(3, 0)?;
    // With two outputs, only the rows with an index are returned.
    let rows = match ctx.num_outputs() {
        1 => ferroflow_functors::indices::constant_int(ctx, 3),
        _ => None,
    };
    let rows = rows.map(|n| usize::try_from(n).map_err(|_| negative(n)));
    if let Some(dims) = grad.dims() {
        let rest = dims.iter().skip(1).copied();
        let dims = std::iter::once(rows.transpose()?).chain(rest);
        ctx.set(0, PartialShape::of(dims));
    }
    ctx.set(1, PartialShape::of_rank(1));
    Ok(())
}

#[cold]
fn negative(n: i64) -> ferroflow_base::Status {
    invalid_argument!("Cannot specify a negative value for output_dim0: {n}")
}

fn kernel(build: &KernelBuild, scale: Scale) -> Result<Box<dyn OpKernel>> {
    let (dtype, index) = (build.output(0)?, build.input(1)?);
    Ok(Box::new(move |ctx: &mut KernelCtx| {
        let grad = match dtype {
            DType::Half | DType::Bfloat16 => widened(ctx.par(), ctx.input(0)?)?,
            _ => ctx.input(0)?.clone(),
        };
        let job = job(ctx, &grad)?;
        let out = dispatch!(grad.dtype(), T in [f32, f64] => job.run::<T>(&grad, scale)?,
            else return Err(invalid_argument!("segments of {dtype} are not supported")));
        let out = match out.dtype() == dtype {
            true => out,
            false => narrowed(ctx.par(), out, dtype)?,
        };
        ctx.set_output(0, out)?;
        if let Some(unique) = job.unique {
            let indices = dispatch_index!(index, I => {
                let unique: Vec<I> = unique.iter().map(|&i| I::from_i64(i as i64)).collect();
                Tensor::vector(&unique)
            })?;
            ctx.set_output(1, indices)?;
        }
        Ok(())
    }))
}

/// The rows of a scatter.
struct Job {
    /// The output row of each index.
    rows: Vec<usize>,
    /// The gradient row of each index.
    segments: Vec<usize>,
    shape: Shape,
    unique: Option<Vec<usize>>,
}

fn job(ctx: &KernelCtx, grad: &Tensor) -> Result<Job> {
    let (indices, ids) = (ctx.input(1)?, ctx.input(2)?);
    check_vectors(indices.shape(), ids.shape())?;
    let size = ctx.input(3)?;
    let Some(size) = scalar(size) else {
        let name = match ctx.num_outputs() {
            1 => "output_dim0",
            _ => "dense_output_dim0",
        };
        return Err(invalid_argument!("{name} should be a scalar."));
    };
    check_same_size(indices, ids)?;
    let Some(&n_segments) = grad.shape().first() else {
        return Err(invalid_argument!("Shape must be at least rank 1"));
    };
    let limit = usize::try_from(size)
        .map_err(|_| invalid_argument!("Expected a non-negative size, got {size}"))?;
    let (indices, ids) = (ints(indices)?, ints(ids)?);
    let n = if limit == 0 { 0 } else { indices.len() };
    if n > 0 && ids.last().is_some_and(|&last| last >= n_segments as i64) {
        return Err(invalid_argument!("Invalid number of segments"));
    }
    let (mut rows, mut segments) = (Vec::with_capacity(n), Vec::with_capacity(n));
    let inside = |i: i64, n: usize| usize::try_from(i).ok().filter(|&i| i < n);
    for (&index, &id) in indices.iter().zip(&ids).take(n) {
        rows.push(
            inside(index, limit)
                .ok_or_else(|| invalid_argument!("Index {index} out of range [0, {limit})."))?,
        );
        segments.push(
            inside(id, n_segments).ok_or_else(|| {
                invalid_argument!("Segment id {id} out of range [0, {n_segments}).")
            })?,
        );
    }
    let mut unique = None;
    let mut n_rows = limit;
    if ctx.num_outputs() > 1 {
        let mut sorted = rows.clone();
        sorted.sort_unstable();
        sorted.dedup();
        rows.iter_mut()
            .for_each(|r| *r = sorted.partition_point(|u| u < r));
        n_rows = sorted.len();
        unique = Some(sorted);
    }
    let dims = std::iter::once(n_rows).chain(grad.shape().iter().skip(1).copied());
    Ok(Job {
        rows,
        segments,
        shape: shape_of(dims)?,
        unique,
    })
}

impl Job {
    fn run<T: Num>(&self, grad: &Tensor, scale: Scale) -> Result<Tensor> {
        let mut counts = vec![0usize; grad.shape()[0]];
        self.segments.iter().for_each(|&s| counts[s] += 1);
        let factors: Vec<T> = counts
            .iter()
            .map(|&n| match scale {
                Scale::None => T::ONE,
                Scale::Mean => T::ONE.div(T::from_count(n.max(1))),
                Scale::SqrtN => T::ONE.div(T::from_count(n.max(1)).root()),
            })
            .collect();
        let width: usize = self.shape.iter().skip(1).product();
        let mut out = Tensor::zeros(T::DTYPE, self.shape.clone())?;
        let (to, grad) = (out.slice_mut::<T>()?, grad.slice::<T>()?);
        for (&row, &segment) in self.rows.iter().zip(&self.segments) {
            let from = &grad[segment * width..][..width];
            let factor = factors[segment];
            for (o, g) in to[row * width..][..width].iter_mut().zip(from) {
                *o = o.add(g.mul(factor));
            }
        }
        Ok(out)
    }
}
