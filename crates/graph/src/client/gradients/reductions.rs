//! Rules of reductions (`tensorflow/cc/gradients/math_grad.cc`, `grad_helper.cc`).

use super::backprop::Call;
use super::rules::{Rules, first};
use super::scope::{Arg, Scope, op};
use crate::Output;
use ferroflow_base::Result;
use ferroflow_opdef::AttrValue;
use ferroflow_tensor::DType;

type Gradients = Result<Vec<Option<Output>>>;

pub(super) const RULES: Rules = &[
    ("Sum", |s, c| first(tiled(s, c), 2)),
    ("Mean", |s, c| {
        let sum = tiled(s, c);
        let input = op!(s, Shape, c.x(0));
        let output = op!(s, Shape, c.y(0));
        let zero = s.constant(0i32);
        let n_inputs = op!(s, Prod, input, zero);
        let n = safe_div(s, n_inputs, op!(s, Prod, output, zero));
        let n = s.cast(n, s.dtype(sum));
        first(op!(s, Div, sum, n), 2)
    }),
    ("Max", extremum),
    ("Min", extremum),
    ("Prod", product),
    ("Cumsum", |s, c| {
        let is_reverse = c.node.attrs.bool("reverse")?;
        let sum = op!(s, Cumsum, c.dy(0), c.x(1);
            exclusive = c.attr("exclusive")?, reverse = !is_reverse);
        first(sum, 2)
    }),
];

/// The shape `shape` with ones at `axes`.
pub(super) fn reduced_shape(s: &Scope, shape: Output, axes: Output) -> Output {
    let (zero, one) = (s.constant(0i32), s.constant(1i32));
    let rank = op!(s, Size, shape);
    let axes = op!(s, Mod, op!(s, Add, axes, rank), rank);
    let range = op!(s, Range, zero, rank, one);
    let ones = op!(s, OnesLike, axes);
    op!(s, DynamicStitch, &[range, axes][..], &[shape, ones][..])
}

fn safe_div(s: &Scope, x: Output, y: Output) -> Output {
    let one = s.constant(1i32);
    op!(s, Div, x, op!(s, Maximum, y, one))
}

/// The gradient of a sum, repeated.
fn tiled(s: &Scope, c: &Call) -> Output {
    let shape = op!(s, Shape, c.x(0));
    let reduced = reduced_shape(s, shape, c.x(1));
    let multiples = safe_div(s, shape, reduced);
    let gradient = op!(s, Reshape, c.dy(0), reduced);
    op!(s, Tile, gradient, multiples)
}

fn extremum(s: &Scope, c: &Call) -> Gradients {
    let shape = op!(s, Shape, c.x(0));
    let reduced = reduced_shape(s, shape, c.x(1));
    let y = op!(s, Reshape, c.y(0), reduced);
    let gradient = op!(s, Reshape, c.dy(0), reduced);
    let is_chosen = op!(s, Equal, y, c.x(0));
    let is_chosen = s.cast(is_chosen, s.dtype(c.dy(0)));
    let sum = op!(s, Sum, is_chosen, c.x(1));
    let n_chosen = op!(s, Reshape, sum, reduced);
    let share = op!(s, Div, is_chosen, n_chosen);
    first(op!(s, Mul, share, gradient), 2)
}

/// The gradient times the products of all other elements.
fn product(s: &Scope, c: &Call) -> Gradients {
    let (zero, one) = (s.constant(0i32), s.constant(1i32));
    let shape = op!(s, Shape, c.x(0));
    let axes = op!(s, Reshape, c.x(1), [-1]);
    let reduced_to = reduced_shape(s, shape, axes);
    let multiples = safe_div(s, shape, reduced_to);
    let gradient = op!(s, Reshape, c.dy(0), reduced_to);
    let gradient = op!(s, Tile, gradient, multiples);
    let cpu = s.on("/cpu:0");
    let rank = op!(cpu, Rank, c.x(0));
    let axes = op!(cpu, Mod, op!(cpu, Add, axes, rank), rank);
    let reduced = cpu.cast(axes, DType::Int32);
    let all = op!(cpu, Range, zero, rank, one);
    let other = op!(cpu, ListDiff, all, reduced);
    let order = op!(cpu, ConcatV2, &[reduced, other][..], 0);
    let counts = [reduced, other].map(|axes| {
        let sizes = op!(s, Gather, shape, axes);
        op!(cpu, Prod, sizes, 0)
    });
    let permuted = op!(s, Transpose, c.x(0), order);
    let permuted_shape = op!(s, Shape, permuted);
    let matrix = op!(s, Pack, &counts[..]);
    let matrix = op!(s, Reshape, permuted, matrix);
    let [left, right] = [false, true].map(|reverse| {
        let attrs = [
            ("exclusive", true.into()),
            ("reverse", AttrValue::Bool(reverse)),
        ];
        s.add("Cumprod", vec![Arg::from(matrix), zero.into()], &attrs)
    });
    let others = op!(s, Mul, left, right);
    let others = op!(s, Reshape, others, permuted_shape);
    let back = op!(s, InvertPermutation, order);
    let slope = op!(s, Transpose, others, back);
    let gradient = op!(s, Mul, gradient, slope);
    first(op!(s, Reshape, gradient, shape), 2)
}
