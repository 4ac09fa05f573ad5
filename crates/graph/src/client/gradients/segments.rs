//! Rules of segments and of partitions of data (`tensorflow/cc/gradients/math_grad.cc`, `data_flow_grad.cc`).

use super::backprop::Call;
use super::rules::{Rules, first};
use super::scope::{Arg, Scope, op};
use crate::Output;
use ferroflow_base::Result;
use ferroflow_tensor::DType;

type Gradients = Result<Vec<Option<Output>>>;

pub(super) const RULES: Rules = &[
    ("SegmentSum", |s, c| {
        first(op!(s, Gather, c.dy(0), c.x(1)), 2)
    }),
    ("UnsortedSegmentSum", |s, c| {
        let ids = clipped(s, c.x(1));
        let is_valid = is_not_negative(s, c.dy(0), c.x(1));
        first(gathered(s, c.dy(0), ids, is_valid), 3)
    }),
    ("UnsortedSegmentMax", extremum),
    ("UnsortedSegmentMin", extremum),
    ("DynamicPartition", |s, c| {
        let shape = op!(s, Shape, c.x(1));
        let (zero, one) = (s.constant(0i32), s.constant(1i32));
        let n = op!(s, Prod, shape, zero);
        let positions = op!(s, Range, zero, n, one);
        let positions = op!(s, Reshape, positions, shape);
        let attrs = [("num_partitions", c.attr("num_partitions")?)];
        let args = vec![Arg::from(positions), c.x(1).into()];
        let parts = s.outputs("DynamicPartition", args, &attrs);
        let joined = op!(s, DynamicStitch, &parts[..], &c.dy[..]);
        let shape = op!(s, Shape, c.x(0));
        first(op!(s, Reshape, joined, shape), 2)
    }),
    ("DynamicStitch", stitch),
    ("ParallelDynamicStitch", stitch),
];

/// Indices with 0 in the place of negative ones.
fn clipped(s: &Scope, ids: Output) -> Output {
    let zeros = op!(s, ZerosLike, ids);
    op!(s, Maximum, ids, zeros)
}

/// Whether indices are not negative, in the shape of what they choose of `params`.
fn is_not_negative(s: &Scope, params: Output, ids: Output) -> Output {
    let zeros = op!(s, ZerosLike, ids);
    let is_valid = op!(s, GreaterEqual, ids, zeros);
    let shape = op!(s, Shape, is_valid);
    let one = s.ints(&[1]);
    let rank = op!(s, Rank, params);
    let n = op!(s, Sub, rank, [1]);
    let ones = op!(s, Tile, one, n);
    let shape = op!(s, ConcatV2, &[shape, ones][..], 0);
    let is_valid = op!(s, Reshape, is_valid, shape);
    let all = op!(s, OnesLike, is_valid);
    op!(s, LogicalAnd, is_valid, all)
}

/// The chosen parts; zeros where the index is negative.
fn gathered(s: &Scope, params: Output, ids: Output, is_valid: Output) -> Output {
    let gathered = op!(s, Gather, params, ids);
    let zeros = op!(s, ZerosLike, gathered);
    op!(s, SelectV2, is_valid, gathered, zeros)
}

fn extremum(s: &Scope, c: &Call) -> Gradients {
    let ids = clipped(s, c.x(1));
    let is_valid = is_not_negative(s, c.y(0), c.x(1));
    let values = gathered(s, c.y(0), ids, is_valid);
    let is_chosen = op!(s, Equal, c.x(0), values);
    let is_chosen = op!(s, LogicalAnd, is_chosen, is_valid);
    let ones = s.cast(is_chosen, s.dtype(c.dy(0)));
    let n_chosen = op!(s, UnsortedSegmentSum, ones, c.x(1), c.x(2));
    let share = op!(s, Div, c.dy(0), n_chosen);
    let gradient = gathered(s, share, ids, is_valid);
    let zeros = op!(s, ZerosLike, gradient);
    first(op!(s, SelectV2, is_chosen, gradient, zeros), 3)
}

fn stitch(s: &Scope, c: &Call) -> Gradients {
    let n = c.node.inputs.len() / 2;
    let mut gradients = vec![None; n];
    for i in 0..n {
        let ids = match s.dtype(c.x(i)) {
            DType::Int32 => c.x(i),
            _ => s.cast(c.x(i), DType::Int32),
        };
        gradients.push(Some(op!(s, Gather, c.dy(0), ids)));
    }
    Ok(gradients)
}
