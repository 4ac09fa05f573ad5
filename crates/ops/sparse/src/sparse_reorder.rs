//! SparseReorder (TensorFlow: `core/kernels/sparse_reorder_op.cc`).

use ferroflow_base::Result;
use ferroflow_functors::sparse::check_parts;
use ferroflow_opdef::{GradientCtx, KernelCtx, Op};
use ferroflow_tensor::{DType, Item, dispatch_items};

/// The ops of this file.
pub(crate) const OPS: &[Op] = &[Op::new(
    "SparseReorder",
    "input_indices: int64, input_values: T, input_shape: int64 -> output_indices: \
         int64, output_values: T | T: type",
)
.shape(|ctx| {
    let (at, values) = (ctx.with_rank(0, 2)?, ctx.with_rank(1, 1)?);
    ctx.with_rank(2, 1)?;
    ctx.set(0, at);
    ctx.set(1, values);
    Ok(())
})
.kernel(|build| dispatch_items!(build.output(1)?, T => Ok(Box::new(reorder::<T>))))
.gradient(reorder_gradient)];

/// Sorts rows of indices; equal ones keep their order.
/// Returns the order of `n` rows, equal ones as they are; `None` if they are in order.
fn order(rows: &[i64], n: usize, rank: usize) -> Option<Vec<usize>> {
    let row = |i: usize| rows.get(i * rank..(i + 1) * rank).unwrap_or_default();
    if (1..n).all(|i| row(i - 1) <= row(i)) {
        return None;
    }
    let mut order: Vec<usize> = (0..n).collect();
    order.sort_by_key(|&i| row(i));
    Some(order)
}

fn reorder<T: Item>(ctx: &mut KernelCtx) -> Result<()> {
    let (at, values) = (ctx.input(0)?, ctx.input(1)?);
    let (n, rank) = check_parts(at, values, ctx.input(2)?)?;
    let rows = at.slice::<i64>()?;
    let Some(order) = order(rows, n, rank) else {
        let (at, values) = (ctx.take_input(0)?, ctx.take_input(1)?);
        ctx.set_output(0, at)?;
        return ctx.set_output(1, values);
    };
    let row = |i: usize| rows.get(i * rank..(i + 1) * rank).unwrap_or_default();
    let mut sorted = ctx.alloc(DType::Int64, at.shape().clone())?;
    let mut moved = ctx.alloc(values.dtype(), values.shape().clone())?;
    let to = sorted.slice_mut::<i64>()?;
    for (to, &i) in to.chunks_mut(rank.max(1)).zip(&order) {
        to.copy_from_slice(row(i));
    }
    let from = values.items::<T>()?;
    for (to, &i) in moved.items_mut::<T>()?.iter_mut().zip(&order) {
        if let Some(from) = from.get(i) {
            to.clone_from(from);
        }
    }
    ctx.set_output(0, sorted)?;
    ctx.set_output(1, moved)
}

/// Returns the values' gradients in the original order.
fn reorder_gradient(g: &mut GradientCtx) -> Result<()> {
    let (at, shape, dy) = (g.x(0), g.x(2), g.dy(1));
    let zero = at.int(0);
    let n = at.shape_of().op("GatherV2", &[zero, zero]);
    let places = zero.op("Range", &[n, at.int(1)]);
    let order = at.node("SparseReorder", &[at, places, shape], &[]);
    let order = order.get(1).copied().unwrap_or(at.nothing());
    let back = order.op("InvertPermutation", &[]);
    g.set(1, dy.op("GatherV2", &[back, zero]))
}
