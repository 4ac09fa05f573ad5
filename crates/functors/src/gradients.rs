//! Expressions that gradient functions of several groups share.

use ferroflow_opdef::{Expr, Gradient, IndexedSlices};
use ferroflow_tensor::DType;

/// Returns elements `from..to` of a vector; `None` stands for its ends.
pub fn part<'g>(v: Expr<'g>, from: Option<Expr<'g>>, to: Option<Expr<'g>>) -> Expr<'g> {
    let all = |e: Expr<'g>| e.reshape(e.ints([1]));
    let bound = |e: Option<Expr<'g>>| e.map_or_else(|| v.ints([0]), all);
    let attrs = [
        ("begin_mask", i64::from(from.is_none()).into()),
        ("end_mask", i64::from(to.is_none()).into()),
    ];
    v.op_with(
        "StridedSlice",
        &[bound(from), bound(to), v.ints([1])],
        &attrs,
    )
}

/// Returns the slices that were gathered from the first dimension of a tensor of this shape.
pub fn slices<'g>(d: Expr<'g>, indices: Expr<'g>, shape: Expr<'g>) -> Gradient<Expr<'g>> {
    let rest = part(shape, Some(shape.int(1)), None);
    let n = indices.op("Size", &[]).reshape(d.ints([1]));
    let sizes = d.make("ConcatV2", &[n, rest.cast(DType::Int32), d.int(0)], &[]);
    Gradient::Slices(IndexedSlices {
        values: d.reshape(sizes),
        indices: indices.reshape(d.ints([-1])),
        dense_shape: shape,
    })
}

/// Returns the product of all elements.
fn count(v: Expr) -> Expr {
    v.op("Prod", &[v.int(0)])
}

/// Packs scalars into a vector.
fn pack<'g, const N: usize>(first: Expr<'g>, rest: [Expr<'g>; N]) -> Expr<'g> {
    first.op("Pack", &rest)
}

/// Returns the number of batch dimensions of the indices.
pub fn batch_of(indices: Expr, batch_dims: i64) -> Expr {
    match batch_dims < 0 {
        false => indices.int(batch_dims as i32),
        true => indices.op("Rank", &[]) + indices.int(batch_dims as i32),
    }
}

/// Returns the gradient of a tensor of this shape from which slices were gathered along `axis`.
pub fn in_batches<'g>(
    d: Expr<'g>,
    indices: Expr<'g>,
    shape: Expr<'g>,
    axis: Expr<'g>,
    batch: Expr<'g>,
) -> Expr<'g> {
    // Reshape to matrices of slices: params are [batch, outer, size, inner], the gradient is
    // [batch, outer, indices, inner].
    let n_batch = count(part(shape, None, Some(batch)));
    let n_outer = count(part(shape, Some(batch), Some(axis)));
    let n_inner = count(part(shape, Some(axis + shape.int(1)), None));
    let size = shape.op("GatherV2", &[axis, shape.int(0)]);
    let places = indices.cast(DType::Int32);
    let n_indices = indices
        .op("Size", &[])
        .op("FloorDiv", &[n_batch.op("Maximum", &[shape.int(1)])]);
    let to_matrix = pack(n_batch, [n_indices]);
    let first = shape.int(0).op("Range", &[n_batch, shape.int(1)]) * size;
    let ids = places.reshape(to_matrix) + first.op("ExpandDims", &[shape.int(1)]);
    let swap = shape.ints([0, 2, 1, 3]);
    let came = d.reshape(pack(n_batch, [n_outer, n_indices, n_inner]));
    let rows = came
        .op("Transpose", &[swap])
        .reshape(pack(n_batch * n_indices, [n_outer * n_inner]));
    let ids = ids.reshape(shape.ints([-1]));
    let sums = rows.op("UnsortedSegmentSum", &[ids, n_batch * size]);
    let sums = sums.reshape(pack(n_batch, [size, n_outer, n_inner]));
    sums.op("Transpose", &[swap]).reshape(shape)
}
