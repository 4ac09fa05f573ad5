//! Rules of ops that move elements (`tensorflow/cc/gradients/array_grad.cc`), and of calls.

use super::backprop::Call;
use super::rules::{Rules, all, first};
use super::scope::{Arg, Scope, op};
use crate::Output;
use ferroflow_base::{Result, invalid_argument};
use ferroflow_opdef::AttrValue;

type Gradients = Result<Vec<Option<Output>>>;

pub(super) const RULES: Rules = &[
    ("Pack", |s, c| {
        let attrs = [("num", c.attr("N")?), ("axis", c.attr("axis")?)];
        let parts = s.outputs("Unpack", vec![Arg::from(c.dy(0))], &attrs);
        Ok(parts.into_iter().map(Some).collect())
    }),
    ("Unpack", |s, c| {
        all([op!(s, Pack, &c.dy[..]; axis = c.attr("axis")?)])
    }),
    ("Identity", pass_on),
    ("RefIdentity", pass_on),
    ("QuantizeAndDequantize", pass_on),
    ("QuantizeAndDequantizeV3", |s, c| {
        first(op!(s, Identity, c.dy(0)), 4)
    }),
    ("QuantizeAndDequantizeV4", |s, c| {
        let shape = op!(s, Shape, c.x(0));
        let gradient = op!(s, QuantizeAndDequantizeV4Grad, c.dy(0), shape, c.x(1), c.x(2);
            axis = c.attr("axis")?);
        let part = |slot| Output::new(gradient.node, slot);
        all([part(0), part(1), part(2)])
    }),
    ("Split", |s, c| {
        Ok(vec![None, Some(op!(s, ConcatV2, &c.dy[..], c.x(0)))])
    }),
    ("SplitV", |s, c| {
        first(op!(s, ConcatV2, &c.dy[..], c.x(2)), 3)
    }),
    ("Fill", |s, c| {
        let zero = s.constant(0i32);
        let rank = op!(s, Rank, c.dy(0));
        let axes = op!(s, Range, zero, rank, s.constant(1i32));
        Ok(vec![None, Some(op!(s, Sum, c.dy(0), axes))])
    }),
    ("Diag", |s, c| all([op!(s, DiagPart, c.dy(0))])),
    ("DiagPart", |s, c| all([op!(s, Diag, c.dy(0))])),
    ("MatrixDiag", |s, c| all([op!(s, MatrixDiagPart, c.dy(0))])),
    ("MatrixBandPart", |s, c| {
        first(op!(s, MatrixBandPart, c.dy(0), c.x(1), c.x(2)), 3)
    }),
    ("GatherNd", |s, c| {
        let shape = op!(s, Shape, c.x(0); out_type = s.dtype(c.x(1)));
        first(op!(s, ScatterNd, c.x(1), c.dy(0), shape), 2)
    }),
    ("CheckNumerics", |s, c| {
        let message = format!(
            "Not a number (NaN) or infinity (Inf) values detected in gradient. {}",
            c.node.attrs.str("message")?
        );
        all([op!(s, CheckNumerics, c.dy(0); message = message.as_str())])
    }),
    ("Reshape", |s, c| first(in_shape_of_input(s, c), 2)),
    ("ExpandDims", |s, c| first(in_shape_of_input(s, c), 2)),
    ("Squeeze", |s, c| all([in_shape_of_input(s, c)])),
    ("Transpose", |s, c| {
        let back = op!(s, InvertPermutation, c.x(1));
        first(op!(s, Transpose, c.dy(0), back), 2)
    }),
    ("ReverseSequence", |s, c| {
        let reversed = op!(s, ReverseSequence, c.dy(0), c.x(1);
            seq_dim = c.attr("seq_dim")?, batch_dim = c.attr("batch_dim")?);
        first(reversed, 2)
    }),
    ("ReverseV2", |s, c| {
        first(op!(s, ReverseV2, c.dy(0), c.x(1)), 2)
    }),
    ("ScatterNd", |s, c| {
        Ok(vec![None, Some(op!(s, GatherNd, c.dy(0), c.x(0))), None])
    }),
    ("ScatterNdNonAliasingAdd", |s, c| {
        let dx = op!(s, Identity, c.dy(0));
        Ok(vec![
            Some(dx),
            None,
            Some(op!(s, GatherNd, c.dy(0), c.x(1))),
        ])
    }),
    ("Pad", |s, c| first(unpadded(s, c), 2)),
    ("PadV2", |s, c| first(unpadded(s, c), 3)),
    ("SpaceToBatch", |s, c| {
        first(
            op!(s, BatchToSpace, c.dy(0), c.x(1); block_size = c.attr("block_size")?),
            2,
        )
    }),
    ("BatchToSpace", |s, c| {
        first(
            op!(s, SpaceToBatch, c.dy(0), c.x(1); block_size = c.attr("block_size")?),
            2,
        )
    }),
    ("SpaceToBatchND", |s, c| {
        first(op!(s, BatchToSpaceND, c.dy(0), c.x(1), c.x(2)), 3)
    }),
    ("BatchToSpaceND", |s, c| {
        first(op!(s, SpaceToBatchND, c.dy(0), c.x(1), c.x(2)), 3)
    }),
    ("SpaceToDepth", |s, c| {
        all([op!(s, DepthToSpace, c.dy(0); block_size = c.attr("block_size")?)])
    }),
    ("DepthToSpace", |s, c| {
        all([op!(s, SpaceToDepth, c.dy(0); block_size = c.attr("block_size")?)])
    }),
    ("MirrorPad", |s, c| {
        first(
            op!(s, MirrorPadGrad, c.dy(0), c.x(1); mode = c.attr("mode")?),
            2,
        )
    }),
    ("MirrorPadGrad", |s, c| {
        first(
            op!(s, MirrorPad, c.dy(0), c.x(1); mode = c.attr("mode")?),
            2,
        )
    }),
    ("StridedSlice", |s, c| {
        let shape = op!(s, Shape, c.x(0));
        let gradient = op!(s, StridedSliceGrad, shape, c.x(1), c.x(2), c.x(3), c.dy(0);
            begin_mask = c.attr("begin_mask")?,
            end_mask = c.attr("end_mask")?,
            ellipsis_mask = c.attr("ellipsis_mask")?,
            new_axis_mask = c.attr("new_axis_mask")?,
            shrink_axis_mask = c.attr("shrink_axis_mask")?);
        first(gradient, 4)
    }),
    ("Slice", |s, c| {
        let rank = op!(s, Rank, c.x(0));
        let size = op!(s, Shape, c.y(0));
        let shape = op!(s, Pack, vec![Arg::from(rank), 1.into()]);
        let before = op!(s, Reshape, c.x(1), shape);
        let rest = op!(s, Sub, op!(s, Shape, c.x(0)), size);
        let rest = op!(s, Sub, rest, c.x(1));
        let after = op!(s, Reshape, rest, shape);
        let one = s.constant(1i32);
        let paddings = op!(s, ConcatV2, &[before, after][..], one);
        first(op!(s, Pad, c.dy(0), paddings), 3)
    }),
    ("ConcatV2", |s, c| {
        let n = c.node.inputs.len().saturating_sub(1);
        let inputs = &c.node.inputs[..n];
        let shapes = s.outputs("ShapeN", vec![Arg::from(inputs)], &[]);
        let args = vec![Arg::from(c.x(n)), Arg::from(&shapes[..])];
        let offsets = s.outputs("ConcatOffset", args, &[]);
        let slice = |(offset, shape): (&Output, &Output)| op!(s, Slice, c.dy(0), *offset, *shape);
        let slices = offsets.iter().zip(&shapes).map(slice).map(Some);
        Ok(slices.chain([None]).collect())
    }),
    ("BroadcastTo", |s, c| {
        let shape = op!(s, Shape, c.x(0));
        let axes = op!(s, BroadcastGradientArgs, shape, c.x(1));
        let sum = op!(s, Sum, c.dy(0), axes);
        first(op!(s, Reshape, sum, shape), 2)
    }),
    ("Tile", |s, c| {
        let shape = op!(s, Shape, c.x(0); out_type = s.dtype(c.x(1)));
        let pairs = op!(s, Pack, &[c.x(1), shape][..]);
        let last = op!(s, Sub, op!(s, Rank, pairs), 1);
        let order = op!(s, Range, last, -1, -1);
        let split = op!(s, Transpose, pairs, order);
        let split = op!(s, Reshape, split, [-1]);
        let zero = s.constant(0i32);
        let axes = op!(s, Range, zero, op!(s, Size, split), 2);
        let gradient = op!(s, Reshape, c.dy(0), split);
        first(op!(s, Sum, gradient, axes), 2)
    }),
    ("PartitionedCall", call),
    ("StatefulPartitionedCall", call),
];

fn pass_on(s: &Scope, c: &Call) -> Gradients {
    all([op!(s, Identity, c.dy(0))])
}

fn in_shape_of_input(s: &Scope, c: &Call) -> Output {
    let shape = op!(s, Shape, c.x(0));
    op!(s, Reshape, c.dy(0), shape)
}

fn unpadded(s: &Scope, c: &Call) -> Output {
    let rank = op!(s, Rank, c.x(0));
    let size = op!(s, Pack, vec![Arg::from(rank), 1.into()]);
    let before = op!(s, Slice, c.x(1), [0, 0], size);
    let begin = op!(s, Reshape, before, [-1]);
    let shape = op!(s, Shape, c.x(0));
    op!(s, Slice, c.dy(0), begin, shape)
}

/// The gradient function, which has the attrs of the call (`tensorflow/cc/gradients/functional_grad.cc`).
fn call(s: &Scope, c: &Call) -> Gradients {
    let AttrValue::Func(mut function) = c.attr("f")? else {
        return Err(invalid_argument!("{}: `f` must be a function", c.node.name));
    };
    for (name, value) in c.node.attrs.iter() {
        function.attrs.set(name.to_string(), value.clone());
    }
    let inputs: Vec<Output> = c.node.inputs.iter().chain(&c.dy).copied().collect();
    let dtypes = c.node.inputs.iter().map(|x| AttrValue::Type(s.dtype(*x)));
    let attrs = [
        ("Tout", AttrValue::List(dtypes.collect())),
        ("f", AttrValue::Func(function)),
    ];
    let gradients = s.outputs("SymbolicGradient", vec![Arg::from(&inputs[..])], &attrs);
    Ok(gradients.into_iter().map(Some).collect())
}
