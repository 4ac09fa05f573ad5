//! SparseSegmentSum, SparseSegmentMean, and SparseSegmentSqrtN, with and without a number of
//! segments (TensorFlow: `core/kernels/segment_reduction_ops_impl.h`).

use crate::segment::{IdLayout, Scale, half_kernel, kernel, num_segments, ones_behind, rows_shape};
use ferroflow_base::Result;
use ferroflow_functors::indices::constant_int;
use ferroflow_functors::numeric::Num;
use ferroflow_functors::reduce::Sum;
use ferroflow_opdef::{GradientCtx, Op, ShapeCtx};
use ferroflow_tensor::{DType, bf16, dispatch, f16};

macro_rules! ordered_sum {
    ($form:expr, $scale:expr) => {
        |build| match build.input(0)? {
            DType::Half => half_kernel::<f16, Sum>($form, 0.0, $scale),
            DType::Bfloat16 => half_kernel::<bf16, Sum>($form, 0.0, $scale),
            dtype => dispatch!(dtype, T in [
                f32, f64, i8, i16, i32, i64, u8, u16, u32, u64
            ] => kernel::<T, Sum>($form, <T as Num>::ZERO, $scale),
            else Err(build.unsupported(dtype))),
        }
    };
}

/// The ops of this file.
pub(crate) const OPS: &[Op] = &[
    Op::new("SparseSegmentSum", SPARSE_SUM)
        .shape(sparse_shape)
        .kernel(ordered_sum!(IdLayout::Sparse, Scale::None))
        .gradient(sparse_gradient),
    Op::new("SparseSegmentMean", SPARSE)
        .shape(sparse_shape)
        .kernel(ordered_sum!(IdLayout::Sparse, Scale::Mean))
        .gradient(sparse_gradient),
    Op::new("SparseSegmentSqrtN", SPARSE)
        .shape(sparse_shape)
        .kernel(ordered_sum!(IdLayout::Sparse, Scale::SqrtN))
        .gradient(sparse_gradient),
    Op::new("SparseSegmentSumWithNumSegments", COUNTED_SUM)
        .shape(counted_shape)
        .kernel(ordered_sum!(IdLayout::SparseCounted, Scale::None))
        .gradient(sparse_gradient),
    Op::new("SparseSegmentMeanWithNumSegments", COUNTED)
        .shape(counted_shape)
        .kernel(ordered_sum!(IdLayout::SparseCounted, Scale::Mean))
        .gradient(sparse_gradient),
    Op::new("SparseSegmentSqrtNWithNumSegments", COUNTED)
        .shape(counted_shape)
        .kernel(ordered_sum!(IdLayout::SparseCounted, Scale::SqrtN))
        .gradient(sparse_gradient),
];

const SPARSE_SUM: &str = "data: T, indices: Tidx, segment_ids: Tsegmentids -> output: T | T: \
         realnumbertype; Tidx: type {int32,int64} = int32; Tsegmentids: type \
         {int32,int64} = int32; sparse_gradient: bool = false";

const SPARSE: &str = "data: T, indices: Tidx, segment_ids: Tsegmentids -> output: T | T: type \
         {bfloat16,half,float,double}; Tidx: type {int32,int64} = int32; Tsegmentids: \
         type {int32,int64} = int32; sparse_gradient: bool = false";

const COUNTED_SUM: &str = "data: T, indices: Tidx, segment_ids: Tsegmentids, num_segments: Tnumsegments \
         -> output: T | T: realnumbertype; Tidx: type {int32,int64} = int32; \
         Tnumsegments: type {int32,int64} = int32; Tsegmentids: type {int32,int64} = \
         int32; sparse_gradient: bool = false";

const COUNTED: &str = "data: T, indices: Tidx, segment_ids: Tsegmentids, num_segments: Tnumsegments \
         -> output: T | T: type {bfloat16,half,float,double}; Tidx: type {int32,int64} \
         = int32; Tnumsegments: type {int32,int64} = int32; Tsegmentids: type \
         {int32,int64} = int32; sparse_gradient: bool = false";

fn sparse_shape(ctx: &mut ShapeCtx) -> Result<()> {
    ctx.with_rank(1, 1)?;
    sparse_ids(ctx)?;
    rows_shape(ctx, None, 1)
}

fn sparse_ids(ctx: &ShapeCtx) -> Result<()> {
    let ids = ctx.with_rank(2, 1)?;
    ctx.merge(&ctx.input(1), &ids).map(|_| ())
}

fn counted_shape(ctx: &mut ShapeCtx) -> Result<()> {
    sparse_ids(ctx)?;
    let segments = constant_int(ctx, 3).map(num_segments).transpose()?;
    rows_shape(ctx, segments, 1)
}

fn sparse_gradient(g: &mut GradientCtx) -> Result<()> {
    let (x, indices, ids, d) = (g.x(0), g.x(1), g.x(2), g.dy(0));
    let zero = d.int(0);
    let mut rows = d.op("GatherV2", &[ids, zero]);
    let op = g.op_name();
    if !op.starts_with("SparseSegmentSum") {
        let n = ids.op("OnesLike", &[]).cast(d.dtype());
        let n = n.op("SegmentSum", &[ids]).op("GatherV2", &[ids, zero]);
        let n = if op.contains("SqrtN") {
            n.op("Sqrt", &[])
        } else {
            n
        };
        let width = d.make("ConcatV2", &[d.ints([-1]), ones_behind(x), zero], &[]);
        rows = rows / n.reshape(width);
    }
    let shape = x.shape_of();
    let size = shape.op("GatherV2", &[zero, zero]);
    g.set(0, rows.op("UnsortedSegmentSum", &[indices, size]))
}
