//! TopK and TopKV2 (TensorFlow: `core/kernels/topk_op.cc`).

use crate::wide::{self, dispatch_wide, is_real, widened};
use ferroflow_base::{Result, invalid_argument};
use ferroflow_functors::indices::{constant_int, int, narrowed};
use ferroflow_functors::strided::MIN_BLOCK;
use ferroflow_opdef::{GradientCtx, KernelBuild, KernelCtx, Op, OpKernel, ShapeCtx};
use ferroflow_primitives::vectorized;
use ferroflow_sync::{Parallelism, par_chunks_mut};
use ferroflow_tensor::{DType, Element, PartialShape, Shape, Tensor};
use heap::Heap;
use rank::{Key, Ranked, keys};

mod heap;
mod rank;

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
    .kernel(|build| {
        let k = build.attrs.int("k")?;
        top_k_factory(build, Some(k), Order::of(build)?)
    })
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
    .kernel(|build| top_k_factory(build, None, Order::of(build)?))
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
    let exact = top_k_factory(build, Some(k), Order::Sorted)?;
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

/// The order of the elements that are found.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Order {
    /// From the first on.
    Sorted,
    /// That of TensorFlow's heap; the first alone or all elements are sorted all the same.
    Heap,
}

impl Order {
    fn of(build: &KernelBuild) -> Result<Order> {
        Ok(match build.attrs.bool("sorted")? {
            true => Order::Sorted,
            false => Order::Heap,
        })
    }
}

fn top_k_factory(build: &KernelBuild, k: Option<i64>, order: Order) -> Result<Box<dyn OpKernel>> {
    let (dtype, index) = (build.input(0)?, build.output(1)?);
    if !is_real(dtype) {
        return Err(build.unsupported(dtype));
    }
    Ok(Box::new(move |ctx: &mut KernelCtx| {
        top_k(ctx, k, index, order)
    }))
}

pub(crate) fn scalar_k(ctx: &KernelCtx, i: usize) -> Result<i64> {
    let k = ctx.input(i)?;
    int(k)
        .filter(|_| k.shape().is_scalar())
        .ok_or_else(|| invalid_argument!("k must be scalar, got shape {}", k.shape()))
}

fn top_k(ctx: &mut KernelCtx, k: Option<i64>, index: DType, order: Order) -> Result<()> {
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
    let [values, indices] = dispatch_wide!(wide.dtype(), T => top_of_rows::<T>(ctx, &wide, [n, k], shape, order)?,
        else return Err(invalid_argument!("{dtype} cannot be sorted")));
    let values = wide::narrowed(ctx.par(), values, dtype)?;
    ctx.set_output(0, values)?;
    let indices = narrowed(indices, index)?;
    ctx.set_output(1, indices)
}

/// Returns the first `k` of each row of `n`, and where they are.
fn top_of_rows<T: Element + Ranked>(
    ctx: &KernelCtx,
    x: &Tensor,
    [n, k]: [usize; 2],
    shape: Shape,
    order: Order,
) -> Result<[Tensor; 2]> {
    let x = x.slice::<T>()?;
    let mut values = ctx.alloc(T::DTYPE, shape.clone())?;
    let mut indices = ctx.alloc(DType::Int64, shape)?;
    let positions = indices.slice_mut::<i64>()?;
    find(ctx.par(), x, [n, k], positions, order);
    let of_rows = x
        .chunks_exact(n.max(1))
        .zip(positions.chunks_exact(k.max(1)));
    let found = of_rows.flat_map(|(row, positions)| positions.iter().map(|&at| row[at as usize]));
    let to = values.slice_mut::<T>()?.iter_mut();
    to.zip(found).for_each(|(to, found)| *to = found);
    Ok([values, indices])
}

/// Sets `positions` to those of the first `k` of each row of `n`.
fn find<T: Element + Ranked>(
    par: &dyn Parallelism,
    x: &[T],
    [n, k]: [usize; 2],
    positions: &mut [i64],
    order: Order,
) {
    match T::FITS && u32::try_from(n).is_ok() {
        true => find_by_keys::<T, u64>(par, x, [n, k], positions, order),
        false => find_by_keys::<T, u128>(par, x, [n, k], positions, order),
    }
}

fn find_by_keys<T: Element + Ranked, K: Key>(
    par: &dyn Parallelism,
    x: &[T],
    [n, k]: [usize; 2],
    positions: &mut [i64],
    order: Order,
) {
    let in_heap = order == Order::Heap && 1 < k && k < n;
    // Rows of a thread.
    let rows = (MIN_BLOCK / n.max(1)).max(1);
    par_chunks_mut(par, positions, (rows * k).max(1), 1, &|i, to| {
        let mut found: Vec<K> = Vec::new();
        let rows = x[i * rows * n..].chunks_exact(n);
        for (row, to) in rows.zip(to.chunks_exact_mut(k)) {
            found.clear();
            match k {
                _ if in_heap => vectorized(
                    #[inline(always)]
                    || find_in_heap(row, k, &mut found),
                ),
                ..=FEW => vectorized(
                    #[inline(always)]
                    || find_few(row, k, &mut found),
                ),
                _ if n / 4 >= k => vectorized(
                    #[inline(always)]
                    || find_some(row, k, &mut found),
                ),
                _ => {
                    found.extend(keys::<T, K>(row, 0));
                    keep_first(k, &mut found);
                }
            }
            if k > FEW && !in_heap {
                found.sort_unstable();
            }
            to.iter_mut()
                .zip(&found)
                .for_each(|(to, key)| *to = key.position() as i64);
        }
    });
}

/// Most elements that one look at a row finds.
const FEW: usize = 16;
/// Elements that are compared at once.
const BLOCK: usize = 32;

/// Finds the first `k` elements of a row, for a small `k`: most blocks have no element that comes before those found.
#[inline(always)]
fn find_few<T: Ranked, K: Key>(row: &[T], k: usize, found: &mut Vec<K>) {
    found.extend(keys::<T, K>(&row[..k], 0));
    found.sort_unstable();
    each_before(row, [k, k - 1], found, |found, key| {
        if key < found[k - 1] {
            let at = found.partition_point(|other| *other < key);
            found.pop();
            found.insert(at, key);
        }
    });
}

/// As [`find_few`], for any `k`, but leaves what it finds unsorted: gathers elements that come before the last of the
/// first `k` so far, and takes the first `k` of them when there are twice as many.
#[inline(always)]
fn find_some<T: Ranked, K: Key>(row: &[T], k: usize, found: &mut Vec<K>) {
    found.extend(keys::<T, K>(&row[..k], 0));
    found.select_nth_unstable(k - 1);
    each_before(row, [k, k - 1], found, |found, key| {
        found.push(key);
        if found.len() == 2 * k {
            keep_first(k, found);
        }
    });
    keep_first(k, found);
}

/// As [`find_few`], in the order of TensorFlow's heap.
#[inline(always)]
fn find_in_heap<T: Ranked, K: Key>(row: &[T], k: usize, found: &mut Vec<K>) {
    found.extend(keys::<T, K>(&row[..=k], 0));
    Heap(found).build();
    each_before(row, [k + 1, 0], found, |found, key| Heap(found).push(key));
}

/// Calls `take` with the keys of elements from position `start` on that come before element `last` of `found`, and
/// perhaps some more from blocks that contain such an element.
#[inline(always)]
fn each_before<T: Ranked, K: Key>(
    row: &[T],
    [start, last]: [usize; 2],
    found: &mut Vec<K>,
    mut take: impl FnMut(&mut Vec<K>, K),
) {
    let (blocks, rest) = row[start..].as_chunks::<BLOCK>();
    for (i, block) in blocks.iter().enumerate() {
        let last = row[found[last].position()];
        // Elements that are not numbers are looked at, too.
        #[allow(clippy::neg_cmp_op_on_partial_ord, reason = "vectorized as it is")]
        let any = block.iter().fold(false, |any, x| any | !(*x <= last));
        if any {
            keys(block, start + i * BLOCK).for_each(|key| take(found, key));
        }
    }
    keys(rest, row.len() - rest.len()).for_each(|key| take(found, key));
}

/// Leaves the first `k` of `found`, the last of them at its end.
fn keep_first<K: Key>(k: usize, found: &mut Vec<K>) {
    if k < found.len() {
        found.select_nth_unstable(k - 1);
        found.truncate(k);
    }
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

#[cfg(test)]
mod tests {
    use super::*;
    use ferroflow_sync::Inline;

    /// Checks what is found in a row against sorting all of it.
    fn check<T: Element + Ranked + std::fmt::Debug>(row: &[T], k: usize) {
        let mut order: Vec<usize> = (0..row.len()).collect();
        order.sort_by_key(|&i| row[i].rank());
        let expected: Vec<i64> = order[..k].iter().map(|&i| i as i64).collect();
        let mut found = vec![0; k];
        find(&Inline, row, [row.len(), k], &mut found, Order::Sorted);
        assert_eq!(found, expected, "{k} of {}", row.len());
        let mut wide = vec![0; k];
        find_by_keys::<T, u128>(&Inline, row, [row.len(), k], &mut wide, Order::Sorted);
        assert_eq!(wide, expected, "{k} of {}", row.len());
        // The same elements in another order.
        find(&Inline, row, [row.len(), k], &mut found, Order::Heap);
        found.sort_unstable_by_key(|&i| (row[i as usize].rank(), i));
        assert_eq!(found, expected, "{k} of {}", row.len());
    }

    #[test]
    fn the_first_of_a_row() {
        let mixed = |i: i64| i * 7919 % 1013 - 500;
        for n in [1, 17, 100, 1000, 5000] {
            let rising: Vec<i64> = (0..n).collect();
            let all: Vec<i64> = (0..n).map(mixed).collect();
            let mut floats: Vec<f32> = all.iter().map(|&x| x as f32 / 7.0).collect();
            for i in (0..floats.len()).step_by(97) {
                floats[i] = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, -0.0][i % 4];
            }
            let doubles: Vec<f64> = floats.iter().map(|&x| x.into()).collect();
            let ints: Vec<i32> = all.iter().map(|&x| x as i32 % 5).collect();
            for k in [1, 3, 16, 17, 25, 200, 1000, 5000] {
                if k <= n as usize {
                    check(&rising, k);
                    check(&all, k);
                    check(&floats, k);
                    check(&doubles, k);
                    check(&ints, k);
                }
            }
        }
    }
}
