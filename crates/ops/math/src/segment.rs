//! SegmentSum, Mean, Prod, Max, Min and UnsortedSegmentSum, Prod, Max, Min (TensorFlow:
//! `core/kernels/segment_reduction_ops_impl.h`).

use ferroflow_base::{Result, invalid_argument};
use ferroflow_functors::indices::{Ints, constant_int, ints, scalar};
use ferroflow_functors::numeric::{Half, Num};
use ferroflow_functors::reduce::{Max, Min, Prod, Reduce, Sum};
use ferroflow_opdef::{Expr, GradientCtx, KernelCtx, Op, OpKernel, ShapeCtx};
use ferroflow_tensor::{
    Complex32, Complex64, DType, PartialShape, Shape, Tensor, bf16, dispatch, f16,
};

macro_rules! number_segments {
    ($form:expr, $reduce:ty, $gap:ident, $scale:expr) => {
        |build| match build.input(0)? {
            DType::Half => half_kernel::<f16, $reduce>($form, <f32 as Num>::$gap, $scale),
            DType::Bfloat16 => half_kernel::<bf16, $reduce>($form, <f32 as Num>::$gap, $scale),
            dtype => dispatch!(dtype, T in [
                f32, f64, i8, i16, i32, i64, u8, u16, u32, u64, Complex32, Complex64
            ] => kernel::<T, $reduce>($form, <T as Num>::$gap, $scale),
            else Err(build.unsupported(dtype))),
        }
    };
}

macro_rules! ordered_segments {
    ($form:expr, $reduce:ty, $gap:ident) => {
        |build| match build.input(0)? {
            DType::Half => half_kernel::<f16, $reduce>($form, <f16 as EmptyValue>::$gap.wide(), Scale::None),
            DType::Bfloat16 => half_kernel::<bf16, $reduce>($form, <bf16 as EmptyValue>::$gap.wide(), Scale::None),
            dtype => dispatch!(dtype, T in [
                f32, f64, i8, i16, i32, i64, u8, u16, u32, u64
            ] => kernel::<T, $reduce>($form, <T as EmptyValue>::$gap, Scale::None),
            else Err(build.unsupported(dtype))),
        }
    };
}

macro_rules! limits {
    ($($ty:ty = $zero:expr;)*) => {$(
        impl EmptyValue for $ty {
            const ZERO: Self = $zero;
            const LOWEST: Self = <$ty>::MIN;
            const HIGHEST: Self = <$ty>::MAX;
        }
    )*};
}

/// The ops of this file.
pub(crate) const OPS: &[Op] = &[
    Op::new("SegmentSum", SORTED)
        .shape(sorted_shape)
        .kernel(number_segments!(IdLayout::Sorted, Sum, ZERO, Scale::None))
        .gradient(sum_gradient),
    Op::new("SegmentMean", SORTED)
        .shape(sorted_shape)
        .kernel(number_segments!(IdLayout::Sorted, Sum, ZERO, Scale::Mean))
        .gradient(mean_gradient),
    Op::new("SegmentProd", SORTED)
        .shape(sorted_shape)
        .kernel(number_segments!(IdLayout::Sorted, Prod, ONE, Scale::None))
        .gradient(prod_gradient),
    Op::new("SegmentMax", SORTED_ORDERED)
        .shape(sorted_shape)
        .kernel(ordered_segments!(IdLayout::Sorted, Max, ZERO))
        .gradient(extreme_gradient),
    Op::new("SegmentMin", SORTED_ORDERED)
        .shape(sorted_shape)
        .kernel(ordered_segments!(IdLayout::Sorted, Min, ZERO))
        .gradient(extreme_gradient),
    Op::new("UnsortedSegmentSum", UNSORTED_SUM)
        .shape(unsorted_shape)
        .kernel(number_segments!(IdLayout::Unsorted, Sum, ZERO, Scale::None))
        .gradient(sum_gradient),
    Op::new("UnsortedSegmentProd", UNSORTED)
        .shape(unsorted_shape)
        .kernel(number_segments!(IdLayout::Unsorted, Prod, ONE, Scale::None))
        .gradient(prod_gradient),
    Op::new("UnsortedSegmentMax", UNSORTED_ORDERED)
        .shape(unsorted_shape)
        .kernel(ordered_segments!(IdLayout::Unsorted, Max, LOWEST))
        .gradient(extreme_gradient),
    Op::new("UnsortedSegmentMin", UNSORTED_ORDERED)
        .shape(unsorted_shape)
        .kernel(ordered_segments!(IdLayout::Unsorted, Min, HIGHEST))
        .gradient(extreme_gradient),
];

/// How the ids of an op map rows to segments.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum IdLayout {
    /// `data, segment_ids`: ascending, a row each.
    Sorted,
    /// `data, segment_ids, num_segments`: any order; negative ids drop rows.
    Unsorted,
    /// `data, indices, segment_ids`: ascending, rows by index.
    Sparse,
    /// Like `Sparse`, with `num_segments`.
    SparseCounted,
}

/// The scaling of a segment's sum.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Scale {
    None,
    Mean,
    SqrtN,
}

const SORTED: &str = "data: T, segment_ids: Tindices -> output: T | T: numbertype; Tindices: type \
         {int32,int64} |";

const SORTED_ORDERED: &str = "data: T, segment_ids: Tindices -> output: T | T: realnumbertype; Tindices: \
         type {int32,int64}";

const UNSORTED_SUM: &str = "data: T, segment_ids: Tindices, num_segments: Tnumsegments -> output: T | T: \
         numbertype; Tindices: type {int16,int32,int64}; Tnumsegments: type \
         {int32,int64} = int32";

const UNSORTED: &str = "data: T, segment_ids: Tindices, num_segments: Tnumsegments -> output: T | T: \
         numbertype; Tindices: type {int32,int64}; Tnumsegments: type {int32,int64} = \
         int32";

const UNSORTED_ORDERED: &str = "data: T, segment_ids: Tindices, num_segments: Tnumsegments -> output: T | T: \
         realnumbertype; Tindices: type {int32,int64}; Tnumsegments: type \
         {int32,int64} = int32";

/// Sets the output shape to `[segments, data.shape[skip..]]`, as far as known.
pub(crate) fn rows_shape(ctx: &mut ShapeCtx, segments: Option<usize>, skip: usize) -> Result<()> {
    let data = ctx.with_rank_at_least(0, skip)?;
    let shape = match data.dims() {
        Some(dims) => PartialShape::of([segments].into_iter().chain(dims[skip..].iter().copied())),
        None => PartialShape::unknown(),
    };
    ctx.set(0, shape);
    Ok(())
}

fn sorted_shape(ctx: &mut ShapeCtx) -> Result<()> {
    ctx.with_rank(1, 1)?;
    rows_shape(ctx, None, 1)
}

pub(crate) fn num_segments(value: i64) -> Result<usize> {
    usize::try_from(value)
        .map_err(|_| invalid_argument!("Input num_segments == {value} must not be negative."))
}

fn unsorted_shape(ctx: &mut ShapeCtx) -> Result<()> {
    let segments = constant_int(ctx, 2).map(num_segments).transpose()?;
    match ctx.input(1).rank() {
        Some(rank) => rows_shape(ctx, segments, rank),
        None => Ok(()),
    }
}

/// The values of empty segments: finite, unlike the limits of reductions.
trait EmptyValue {
    const ZERO: Self;
    const LOWEST: Self;
    const HIGHEST: Self;
}

limits! {
    f32 = 0.0; f64 = 0.0; f16 = f16::ZERO; bf16 = bf16::ZERO;
    i8 = 0; i16 = 0; i32 = 0; i64 = 0; u8 = 0; u16 = 0; u32 = 0; u64 = 0;
}

/// The work of one call.
struct Job {
    /// Target segment and source row.
    moves: Vec<(usize, usize)>,
    out: Shape,
    row_len: usize,
}

fn job(ctx: &KernelCtx, form: IdLayout) -> Result<Job> {
    match form {
        IdLayout::Sorted => sorted_job(ctx),
        IdLayout::Unsorted => unsorted_job(ctx),
        IdLayout::Sparse | IdLayout::SparseCounted => {
            sparse_job(ctx, form == IdLayout::SparseCounted)
        }
    }
}

/// Returns the shape of the output: `segments` rows like those of `data` without `skip` dimensions.
fn out_shape(segments: i64, data: &Shape, skip: usize) -> Result<(Shape, usize)> {
    let rest = &data[skip..];
    let dims: Vec<i64> = std::iter::once(segments)
        .chain(rest.iter().map(|&d| d as i64))
        .collect();
    Ok((Shape::checked(&dims)?, rest.iter().product()))
}

/// Ascending ids with the number of segments they reach.
fn ascending(ids: &[i64], limit: Option<usize>) -> Result<i64> {
    let Some(&last) = ids.last() else {
        return Ok(limit.unwrap_or(0) as i64);
    };
    let segments = last.checked_add(1).filter(|n| *n > 0);
    let Some(segments) = segments else {
        return Err(invalid_argument!("segment ids must be >= 0"));
    };
    if let Some(limit) = limit.filter(|&l| segments > l as i64) {
        return Err(invalid_argument!(
            "segment ids must be < num_segments ({limit})"
        ));
    }
    if ids[0] < 0 {
        return Err(invalid_argument!(
            "Segment id {} out of range [0, {segments}), possibly because 'segment_ids' input is not sorted.",
            ids[0]
        ));
    }
    match ids.windows(2).any(|w| w[1] < w[0]) {
        true => Err(invalid_argument!("segment ids are not increasing")),
        false => Ok(limit.map_or(segments, |l| l as i64)),
    }
}

fn sorted_job(ctx: &KernelCtx) -> Result<Job> {
    let (data, ids) = (ctx.shape(0)?, ctx.input(1)?);
    let Some(&rows) = data.first() else {
        return Err(invalid_argument!("input must be at least rank 1"));
    };
    if ids.shape().rank() != 1 {
        return Err(invalid_argument!("segment_ids should be a vector."));
    }
    let ids = ints(ids)?;
    if ids.len() != rows {
        return Err(invalid_argument!(
            "segment_ids should be the same size as dimension 0 of input."
        ));
    }
    let (out, row_len) = out_shape(ascending(&ids, None)?, data, 1)?;
    let moves = ids
        .iter()
        .enumerate()
        .map(|(i, &id)| (id as usize, i))
        .collect();
    Ok(Job {
        moves,
        out,
        row_len,
    })
}

fn unsorted_job(ctx: &KernelCtx) -> Result<Job> {
    let (data, ids, count) = (ctx.shape(0)?, ctx.input(1)?, ctx.input(2)?);
    let ids_shape = ids.shape();
    let segments = count_of_segments(count)?;
    if data.rank() < ids_shape.rank() || data[..ids_shape.rank()] != ids_shape[..] {
        return Err(invalid_argument!(
            "data.shape = {data} does not start with segment_ids.shape = {ids_shape}"
        ));
    }
    num_segments(segments)?;
    let ids = ints(ids)?;
    let mut moves = Vec::with_capacity(ids.len());
    for (i, &id) in ids.iter().enumerate() {
        if id >= segments {
            let position = position(i, ids_shape);
            return Err(invalid_argument!(
                "segment_ids{position} = {id} is out of range [0, {segments})"
            ));
        }
        if id >= 0 {
            moves.push((id as usize, i));
        }
    }
    let (out, row_len) = out_shape(segments, data, ids_shape.rank())?;
    Ok(Job {
        moves,
        out,
        row_len,
    })
}

/// Formats position `i` like TensorFlow: `[1,2]`, or empty for a scalar.
fn position(i: usize, shape: &Shape) -> String {
    let mut coords = vec![0; shape.rank()];
    ferroflow_functors::strided::unravel(i, shape, &mut coords);
    match coords[..] {
        [] => String::new(),
        _ => Shape::from(&coords[..]).to_string(),
    }
}

/// Returns the number of segments, a scalar input.
fn count_of_segments(count: &Tensor) -> Result<i64> {
    scalar(count).ok_or_else(|| {
        invalid_argument!(
            "num_segments should be a scalar, not shape {}",
            count.shape()
        )
    })
}

/// Checks the ranks of the indices and segments of the sparse ops.
pub(crate) fn check_vectors(indices: &Shape, ids: &Shape) -> Result<()> {
    for (name, shape) in [("indices", indices), ("segment_ids", ids)] {
        if shape.rank() != 1 {
            return Err(invalid_argument!("{name} should be a vector."));
        }
    }
    Ok(())
}

pub(crate) fn check_same_size(indices: &Tensor, ids: &Tensor) -> Result<()> {
    if indices.num_elements() != ids.num_elements() {
        return Err(invalid_argument!(
            "segment_ids and indices should have same size."
        ));
    }
    Ok(())
}

fn sparse_job(ctx: &KernelCtx, counted: bool) -> Result<Job> {
    let (data, indices, ids) = (ctx.shape(0)?, ctx.input(1)?, ctx.input(2)?);
    let limit = match counted {
        true => Some(
            usize::try_from(count_of_segments(ctx.input(3)?)?)
                .map_err(|_| invalid_argument!("segment ids must be >= 0"))?,
        ),
        false => None,
    };
    check_vectors(indices.shape(), ids.shape())?;
    check_same_size(indices, ids)?;
    let Some(&rows) = data.first() else {
        return Err(invalid_argument!("Shape must be at least rank 1"));
    };
    let (indices, ids): (Ints, Ints) = (ints(indices)?, ints(ids)?);
    let (out, row_len) = out_shape(ascending(&ids, limit)?, data, 1)?;
    let mut moves = Vec::with_capacity(ids.len());
    for (i, (&index, &id)) in indices.iter().zip(&ids).enumerate() {
        let Some(index) = usize::try_from(index).ok().filter(|&x| x < rows) else {
            return Err(invalid_argument!(
                "Bad: indices[{i}] == {index} out of range [0, {rows})"
            ));
        };
        moves.push((id as usize, index));
    }
    Ok(Job {
        moves,
        out,
        row_len,
    })
}

/// Runs `job` on rows `x`.
fn gather<T: Num, R: Reduce<T>>(job: &Job, x: &[T], out: &mut [T], gap: T, scale: Scale) {
    let n = job.row_len;
    if n == 0 || out.is_empty() {
        return;
    }
    let mut counts = vec![0usize; out.len() / n];
    for &(segment, source) in &job.moves {
        let to = &mut out[segment * n..(segment + 1) * n];
        let from = &x[source * n..(source + 1) * n];
        match counts[segment] {
            0 => to.copy_from_slice(from),
            _ => {
                for (to, from) in to.iter_mut().zip(from) {
                    *to = R::step(*to, *from);
                }
            }
        }
        counts[segment] += 1;
    }
    for (row, &count) in out.chunks_exact_mut(n).zip(&counts) {
        match (count, scale) {
            (0, _) => row.fill(gap),
            (1, _) | (_, Scale::None) => {}
            (_, Scale::Mean) => row.iter_mut().for_each(|x| *x = x.average(count)),
            (_, Scale::SqrtN) => {
                let root = T::from_count(count).root();
                row.iter_mut().for_each(|x| *x = x.div(root));
            }
        }
    }
}

pub(crate) fn kernel<T: Num, R: Reduce<T>>(
    form: IdLayout,
    gap: T,
    scale: Scale,
) -> Result<Box<dyn OpKernel>> {
    Ok(Box::new(move |ctx: &mut KernelCtx| {
        let job = job(ctx, form)?;
        let mut out = ctx.alloc(T::DTYPE, job.out.clone())?;
        gather::<T, R>(&job, ctx.slice(0)?, out.slice_mut()?, gap, scale);
        ctx.set_output(0, out)
    }))
}

pub(crate) fn half_kernel<H: Half, R: Reduce<f32>>(
    form: IdLayout,
    gap: f32,
    scale: Scale,
) -> Result<Box<dyn OpKernel>> {
    Ok(Box::new(move |ctx: &mut KernelCtx| {
        let job = job(ctx, form)?;
        let x = ctx.slice::<H>(0)?;
        let mut wide = Tensor::for_overwrite(DType::Float, [x.len()].into())?;
        H::widen(x, wide.slice_mut()?);
        let mut sums = ctx.alloc(DType::Float, job.out.clone())?;
        gather::<f32, R>(&job, wide.slice()?, sums.slice_mut()?, gap, scale);
        let mut out = ctx.alloc(H::DTYPE, job.out)?;
        H::narrow_all(sums.slice()?, out.slice_mut()?);
        ctx.set_output(0, out)
    }))
}

/// Returns, for each element of the input, the element of `v` of its segment; `other` where the
/// segment's number is negative.
fn spread<'g>(g: &GradientCtx<'g>, v: Expr<'g>, other: f64) -> Expr<'g> {
    let ids = g.x(1);
    let zero = v.int(0);
    if !g.op_name().starts_with("Unsorted") {
        return v.op("GatherV2", &[ids, zero]);
    }
    let none = ids.number(0.0);
    let gathered = v.op("GatherV2", &[ids.op("Maximum", &[none]), zero]);
    // Expand the condition to the rank of the gathered values.
    let is_in = ids.op("GreaterEqual", &[none]);
    let missing = gathered.op("Rank", &[]) - ids.op("Rank", &[]);
    let ones = v
        .int(1)
        .make("Fill", &[missing.reshape(v.ints([1])), v.int(1)], &[]);
    let shape = is_in.make("ConcatV2", &[is_in.op("Shape", &[]), ones, zero], &[]);
    let number = v.number(other);
    gathered.where_(is_in.reshape(shape), number)
}

/// Applies the same op to other values.
fn again<'g>(g: &GradientCtx<'g>, op: &str, x: Expr<'g>) -> Expr<'g> {
    match g.op_name().starts_with("Unsorted") {
        true => x.op(&format!("UnsortedSegment{op}"), &[g.x(1), g.x(2)]),
        false => x.op(&format!("Segment{op}"), &[g.x(1)]),
    }
}

fn sum_gradient(g: &mut GradientCtx) -> Result<()> {
    let dx = spread(g, g.dy(0), 0.0);
    g.set(0, dx)
}

fn mean_gradient(g: &mut GradientCtx) -> Result<()> {
    let (x, ids, d) = (g.x(0), g.x(1), g.dy(0));
    let n = ids.op("OnesLike", &[]).cast(d.dtype());
    let n = n.op("SegmentSum", &[ids]).op("Maximum", &[d.number(1.0)]);
    // One number per segment, expanded to the rank of the input.
    let shape = n.make(
        "ConcatV2",
        &[n.op("Shape", &[]), ones_behind(x), x.int(0)],
        &[],
    );
    let dx = spread(g, d / n.reshape(shape), 0.0);
    g.set(0, dx)
}

/// Shares the gradient among elements equal to the result.
fn extreme_gradient(g: &mut GradientCtx) -> Result<()> {
    let (x, y, d) = (g.x(0), g.y(0), g.dy(0));
    let is_it = x.op("Equal", &[spread(g, y, 0.0)]).cast(d.dtype());
    let share = d / again(g, "Sum", is_it);
    // Empty segments have no share; nothing is gathered from them.
    let dx = spread(g, share, 0.0);
    let picked = is_it.op("NotEqual", &[is_it.number(0.0)]);
    g.set(0, dx.where_(picked, dx.zeros_like()))
}

/// The product of the other elements cannot be found by division if one of them is zero.
fn prod_gradient(g: &mut GradientCtx) -> Result<()> {
    let (x, y, d) = (g.x(0), g.y(0), g.dy(0));
    let is_zero = x.op("Equal", &[x.number(0.0)]);
    let n_zeros = again(g, "Sum", is_zero.cast(DType::Int32));
    let several = n_zeros.op("Greater", &[x.int(1)]);
    let d = d.zeros_like().where_(several, d);
    let others = x.op("OnesLike", &[]).where_(is_zero, x);
    let rest = spread(g, again(g, "Prod", others), 1.0);
    let quotient = spread(g, y, 1.0) / others;
    let dx = spread(g, d, 0.0) * rest.where_(is_zero, quotient);
    g.set(0, dx)
}

/// Returns a vector of ones, one per dimension but the first.
pub(crate) fn ones_behind(x: Expr) -> Expr {
    match x.rank() {
        Some(rank) => x.ints(std::iter::repeat_n(1, rank.saturating_sub(1))),
        None => {
            let rest = x.op("Rank", &[]) - x.int(1);
            x.int(0)
                .make("Fill", &[rest.reshape(x.ints([1])), x.int(1)], &[])
        }
    }
}
