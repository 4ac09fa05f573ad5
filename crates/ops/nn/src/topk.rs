//! TopK and TopKV2 (TensorFlow: `core/kernels/topk_op.cc`).

use crate::wide::{self, dispatch_wide, is_real, widened};
use ferroflow_base::{Result, invalid_argument};
use ferroflow_functors::indices::{constant_int, int, narrowed};
use ferroflow_functors::strided::MIN_BLOCK;
use ferroflow_opdef::{GradientCtx, KernelBuild, KernelCtx, Op, OpKernel, ShapeCtx};
use ferroflow_primitives::vectorized;
use ferroflow_sync::{Parallelism, par_chunks_mut};
use ferroflow_tensor::{DType, Element, PartialShape, Shape, Tensor};
use std::cmp::Ordering;
use std::ops::Range;

/// The ops of this file.
pub(crate) const OPS: &[Op] = &[
    Op::new(
        "TopK",
        "input: T -> values: T, indices: int32 | k: int >= 0; sorted: bool = true; T: \
         realnumbertype |",
    )
    .shape(|ctx| {
        let k = ctx.attrs().int("k")?;
        top_k_shape(ctx, Some(k))
    })
    .kernel(|build| top_k_factory(build, Some(build.attrs.int("k")?)))
    .gradient(top_k_gradient),
    Op::new(
        "TopKV2",
        "input: T, k: Tk -> values: T, indices: index_type | sorted: bool = true; T: \
         realnumbertype; Tk: type {int16,int32,int64} = int32; index_type: type \
         {int16,int32,int64} = int32",
    )
    .shape(|ctx| {
        let k = constant_int(ctx, 1);
        top_k_shape(ctx, k)
    })
    .kernel(|build| top_k_factory(build, None))
    .gradient(top_k_gradient),
    Op::new(
        "ApproxTopK",
        "input: T -> values: T, indices: int32 | k: int >= 0; reduction_dimension: int = -1; \
         recall_target: float = 0.95; is_max_k: bool = true; reduction_input_size_override: int = \
         -1; aggregate_to_topk: bool = true; T: type {half,bfloat16,float}",
    )
    .shape(|ctx| {
        let k = ctx.attrs().int("k")?;
        approx_shape(ctx, k)
    })
    .kernel(approx_factory)
    .gradient(top_k_gradient),
];

/// As in TensorFlow, the CPU's kernel is exact and for the largest of the last dimension only.
fn approx_factory(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    let is_last = build.attrs.int("reduction_dimension")? == -1;
    if !is_last || !build.attrs.bool("is_max_k")? {
        return Err(build.unsupported(build.input(0)?));
    }
    let k = build.attrs.int("k")?;
    let exact = top_k_factory(build, Some(k))?;
    Ok(Box::new(move |ctx: &mut KernelCtx| {
        if let Some(&n) = ctx.shape(0)?.last().filter(|&&n| (n as i64) < k) {
            return Err(too_few(k, n));
        }
        exact.compute(ctx)
    }))
}

fn too_few(k: i64, n: usize) -> ferroflow_base::Status {
    invalid_argument!("input must have last dimension >= k = {k} but was {n}")
}

fn approx_shape(ctx: &mut ShapeCtx, k: i64) -> Result<()> {
    let input = ctx.with_rank_at_least(0, 1)?;
    let recall = ctx.attrs().float("recall_target")?;
    if !(recall > 0.0 && recall <= 1.0) {
        return Err(invalid_argument!(
            "Invalid recall target: {recall}. Valid value range in : [0, 1.0]."
        ));
    }
    if let Some(n) = input.dim(-1).filter(|&n| (n as i64) < k) {
        return Err(too_few(k, n));
    }
    match ctx.attrs().int("reduction_dimension")? == -1 && ctx.attrs().bool("aggregate_to_topk")? {
        true => top_k_shape(ctx, Some(k)),
        false => Ok(()),
    }
}

fn top_k_shape(ctx: &mut ShapeCtx, k: Option<i64>) -> Result<()> {
    let input = ctx.with_rank_at_least(0, 1)?;
    let k = match k {
        Some(k) if k < 0 => return Err(invalid_argument!("Need k >= 0, got {k}")),
        k => k.map(|k| k as usize),
    };
    let shape = match input.dims() {
        Some([rows @ .., last]) => {
            if let (Some(k), Some(n)) = (k, last)
                && k > *n
            {
                return Err(invalid_argument!(
                    "input must have last dimension >= k = {k} but is {n}"
                ));
            }
            PartialShape::of(rows.iter().copied().chain([k]))
        }
        _ => PartialShape::unknown(),
    };
    ctx.set(0, shape.clone());
    ctx.set(1, shape);
    Ok(())
}

fn top_k_factory(build: &KernelBuild, k: Option<i64>) -> Result<Box<dyn OpKernel>> {
    let (dtype, index) = (build.input(0)?, build.output(1)?);
    if !is_real(dtype) {
        return Err(build.unsupported(dtype));
    }
    Ok(Box::new(move |ctx: &mut KernelCtx| top_k(ctx, k, index)))
}

/// Returns the order of elements in the result: larger first, NaN last.
fn before<T: PartialOrd>(a: T, b: T) -> Ordering {
    b.partial_cmp(&a).unwrap_or_else(|| {
        #[allow(
            clippy::eq_op,
            reason = "only what is not a number differs from itself"
        )]
        (a != a).cmp(&(b != b))
    })
}

pub(crate) fn scalar_k(ctx: &KernelCtx, i: usize) -> Result<i64> {
    let k = ctx.input(i)?;
    int(k)
        .filter(|_| k.shape().is_scalar())
        .ok_or_else(|| invalid_argument!("k must be scalar, got shape {}", k.shape()))
}

fn top_k(ctx: &mut KernelCtx, k: Option<i64>, index: DType) -> Result<()> {
    let k = match k {
        Some(k) => k,
        None => scalar_k(ctx, 1)?,
    };
    let Ok(k) = usize::try_from(k) else {
        return Err(invalid_argument!("Need k >= 0, got {k}"));
    };
    let x = ctx.input(0)?;
    let Some((&n, rows)) = x.shape().split_last() else {
        return Err(invalid_argument!(
            "input must be >= 1-D, got shape {}",
            x.shape()
        ));
    };
    if k > n {
        return Err(invalid_argument!(
            "input must have at least k columns. Had {n}, needed {k}"
        ));
    }
    let shape: Shape = rows.iter().copied().chain([k]).collect();
    let dtype = x.dtype();
    let wide = widened(ctx.par(), x)?;
    let [values, indices] = dispatch_wide!(wide.dtype(), T => top_of_rows::<T>(ctx, &wide, [n, k], shape)?,
        else return Err(invalid_argument!("{dtype} cannot be sorted")));
    let values = wide::narrowed(ctx.par(), values, dtype)?;
    ctx.set_output(0, values)?;
    let indices = narrowed(indices, index)?;
    ctx.set_output(1, indices)
}

/// Returns the first `k` of each row of `n`, and where they are.
fn top_of_rows<T: Element + PartialOrd>(
    ctx: &KernelCtx,
    x: &Tensor,
    [n, k]: [usize; 2],
    shape: Shape,
) -> Result<[Tensor; 2]> {
    let x = x.slice::<T>()?;
    let mut values = ctx.alloc(T::DTYPE, shape.clone())?;
    let mut indices = ctx.alloc(DType::Int64, shape)?;
    let positions = indices.slice_mut::<i64>()?;
    find(ctx.par(), x, [n, k], positions);
    let of_rows = x
        .chunks_exact(n.max(1))
        .zip(positions.chunks_exact(k.max(1)));
    let found = of_rows.flat_map(|(row, positions)| positions.iter().map(|&at| row[at as usize]));
    let to = values.slice_mut::<T>()?.iter_mut();
    to.zip(found).for_each(|(to, found)| *to = found);
    Ok([values, indices])
}

/// Sets `positions` to those of the first `k` of each row of `n`.
fn find<T: Element + PartialOrd>(
    par: &dyn Parallelism,
    x: &[T],
    [n, k]: [usize; 2],
    positions: &mut [i64],
) {
    // Rows of a thread.
    let rows = (MIN_BLOCK / n.max(1)).max(1);
    par_chunks_mut(par, positions, (rows * k).max(1), 1, &|i, to| {
        let mut order: Vec<usize> = Vec::new();
        let rows = x[i * rows * n..].chunks_exact(n);
        for (row, to) in rows.zip(to.chunks_exact_mut(k)) {
            match k <= FEW {
                true => vectorized(
                    #[inline(always)]
                    || find_few(row, k, &mut order),
                ),
                false => find_top(row, k, &mut order),
            }
            to.iter_mut()
                .zip(&order)
                .for_each(|(to, &at)| *to = at as i64);
        }
    });
}

/// Most elements that one look at a row finds.
const FEW: usize = 16;
/// Elements that are compared at once.
const BLOCK: usize = 32;

/// As [`find_top`], for a small `k`: most blocks have no element that comes before those found.
#[inline(always)]
fn find_few<T: Copy + PartialOrd>(row: &[T], k: usize, order: &mut Vec<usize>) {
    find_top(&row[..k], k, order);
    let (blocks, rest) = row[k..].as_chunks::<BLOCK>();
    for (i, block) in blocks.iter().enumerate() {
        let last = row[order[k - 1]];
        // Elements that are not numbers are looked at, too.
        #[allow(clippy::neg_cmp_op_on_partial_ord, reason = "vectorized as it is")]
        let any = block.iter().fold(false, |any, x| any | !(*x <= last));
        if any {
            insert(row, k + i * BLOCK..k + (i + 1) * BLOCK, order);
        }
    }
    insert(row, row.len() - rest.len()..row.len(), order);
}

/// Inserts those of the positions that come before the last of `order`, which keeps its length.
fn insert<T: Copy + PartialOrd>(row: &[T], positions: Range<usize>, order: &mut Vec<usize>) {
    for i in positions {
        // Of equal elements the first stays.
        let comes_later = |&at: &usize| before(row[i], row[at]).is_ge();
        if order.last().is_some_and(|last| !comes_later(last)) {
            let at = order.partition_point(comes_later);
            order.pop();
            order.insert(at, i);
        }
    }
}

/// Finds the positions of the first `k` elements of `row` in [`before`]'s order, at least one.
fn find_top<T: Copy + PartialOrd>(row: &[T], k: usize, order: &mut Vec<usize>) {
    let compare = |&a: &usize, &b: &usize| before(row[a], row[b]).then(a.cmp(&b));
    order.clear();
    order.extend(0..row.len());
    if k < row.len() {
        order.select_nth_unstable_by(k - 1, compare);
        order.truncate(k);
    }
    order.sort_unstable_by(compare);
}

/// Scatters the gradient of each value to its position.
fn top_k_gradient(g: &mut GradientCtx) -> Result<()> {
    let (x, indices, d) = (g.x(0), g.y(1), g.dy(0));
    let shape = x.shape_of();
    let width = shape.op(
        "GatherV2",
        &[shape.op("Size", &[]) - shape.int(1), shape.int(0)],
    );
    let all = shape.op("Prod", &[shape.int(0)]);
    let n_rows = all.op("FloorDiv", &[width.op("Maximum", &[shape.int(1)])]);
    let starts = shape.int(0).op("Range", &[n_rows, shape.int(1)]) * width;
    let counts = indices
        .op("Size", &[])
        .op("FloorDiv", &[n_rows.op("Maximum", &[shape.int(1)])]);
    let matrix = n_rows.op("Pack", &[counts]);
    let places = indices.cast(DType::Int32).reshape(matrix);
    let places = (places + starts.op("ExpandDims", &[shape.int(1)])).reshape(shape.ints([-1, 1]));
    let flat = places.op(
        "ScatterNd",
        &[d.reshape(shape.ints([-1])), all.reshape(shape.ints([1]))],
    );
    g.set(0, flat.reshape(shape))
}
