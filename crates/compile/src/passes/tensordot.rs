//! Recognises Keras's Dense layer on inputs of more than two dimensions: rows are flattened, one
//! matrix product is made, and the rows get their shape back.

use crate::view::View;
use ferroflow_graph::{NodeId, Output};

/// If `root` is the MatMul of such a layer: the unflattened input and the reshaped result.
///
/// The forms matched are `Reshape(x, [Prod(outer), k])` before, where `x` is known to have `k` as
/// its last dimension, and `Reshape(product, Concat(Gather(Shape(x), outer), [n]))` after.
pub(crate) fn match_around(view: &View, root: NodeId) -> Option<(Output, Output)> {
    let node = view.node(root);
    if node.op() != "MatMul" || node.attrs.bool("transpose_b").ok()? {
        return None;
    }
    let weights = view.constant(node.inputs[1])?.shape().clone();
    let [k, n] = weights.dims() else { return None };
    let flatten = view.producer(node.inputs[0], "Reshape")?;
    let x = flatten.inputs[0];
    let rank = view.shape(x).rank()?;
    if rank < 3 || view.shape(x).dim(-1)? != *k {
        return None;
    }
    let after = view.only_reader(Output::new(root, 0))?;
    let restore = view.node(after);
    if restore.op() != "Reshape"
        || restore.inputs[0] != Output::new(root, 0)
        || !view.is_pure(after)
    {
        return None;
    }
    let shape = view.producer(restore.inputs[1], "ConcatV2")?;
    let [outer, last, axis] = shape.inputs[..] else {
        return None;
    };
    if view.ints(axis)? != [0] || view.ints(last)? != [*n as i64] {
        return None;
    }
    let gather = view.producer(outer, "GatherV2")?;
    let dims = view.ints(gather.inputs[1])?;
    let all_outer = dims.iter().enumerate().all(|(i, &d)| d == i as i64) && dims.len() == rank - 1;
    let of_x = view.producer(gather.inputs[0], "Shape")?.inputs[0] == x;
    (all_outer && of_x && view.ints(gather.inputs[2])? == [0]).then_some((x, Output::new(after, 0)))
}
