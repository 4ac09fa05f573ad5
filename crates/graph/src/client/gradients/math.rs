//! Rules of elementwise functions and products of matrices (`tensorflow/cc/gradients/math_grad.cc`).

use super::backprop::Call;
use super::rules::{Rules, all, first};
use super::scope::{Scope, op};
use crate::Output;
use ferroflow_base::Result;
use ferroflow_tensor::DType;
use std::f64::consts::PI;

type Gradients = Result<Vec<Option<Output>>>;

pub(super) const RULES: Rules = &[
    ("Abs", |s, c| {
        all([op!(s, Mul, c.dy(0), op!(s, Sign, c.x(0)))])
    }),
    ("Neg", |s, c| all([op!(s, Neg, c.dy(0))])),
    ("Inv", |s, c| all([op!(s, ReciprocalGrad, c.y(0), c.dy(0))])),
    ("Reciprocal", |s, c| {
        all([op!(s, ReciprocalGrad, c.y(0), c.dy(0))])
    }),
    ("Square", |s, c| {
        let two = s.number(2i32, s.dtype(c.x(0)));
        times(s, c, op!(s, Mul, two, c.x(0)))
    }),
    ("Sqrt", |s, c| all([op!(s, SqrtGrad, c.y(0), c.dy(0))])),
    ("Rsqrt", |s, c| all([op!(s, RsqrtGrad, c.y(0), c.dy(0))])),
    ("Exp", |s, c| times(s, c, c.y(0))),
    ("Expm1", |s, c| times(s, c, op!(s, Exp, c.x(0)))),
    ("Log", |s, c| times(s, c, op!(s, Reciprocal, c.x(0)))),
    ("Log1p", |s, c| {
        let one = s.number(1f64, s.dtype(c.x(0)));
        times(s, c, op!(s, Reciprocal, op!(s, Add, one, c.x(0))))
    }),
    ("Sinh", |s, c| times(s, c, op!(s, Cosh, c.x(0)))),
    ("Cosh", |s, c| times(s, c, op!(s, Sinh, c.x(0)))),
    ("Tanh", |s, c| {
        let s = s.after(c.dy(0));
        let y = s.conj(c.y(0));
        all([op!(s, TanhGrad, y, c.dy(0))])
    }),
    ("Asinh", |s, c| {
        times(s, c, op!(s, Reciprocal, op!(s, Cosh, c.y(0))))
    }),
    ("Acosh", |s, c| {
        times(s, c, op!(s, Reciprocal, op!(s, Sinh, c.y(0))))
    }),
    ("Atanh", |s, c| {
        let one = s.number(1f64, s.dtype(c.x(0)));
        let square = op!(s, Square, c.x(0));
        times(s, c, op!(s, Reciprocal, op!(s, Sub, one, square)))
    }),
    ("Sigmoid", |s, c| {
        let s = s.after(c.dy(0));
        let y = s.conj(c.y(0));
        all([op!(s, SigmoidGrad, y, c.dy(0))])
    }),
    ("Sign", |s, c| {
        let shape = op!(s, Shape, c.x(0));
        let zero = s.number(0f64, s.dtype(c.x(0)));
        all([op!(s, Fill, shape, zero)])
    }),
    ("Sin", |s, c| times(s, c, op!(s, Cos, c.x(0)))),
    ("Cos", |s, c| times(s, c, op!(s, Neg, op!(s, Sin, c.x(0))))),
    ("Asin", |s, c| times(s, c, inverse_root(s, c))),
    ("Acos", |s, c| {
        let slope = op!(s, Neg, inverse_root(s, c));
        all([op!(s, Mul, c.dy(0), slope)])
    }),
    ("Tan", |s, c| {
        let secant = op!(s, Reciprocal, op!(s, Cos, c.x(0)));
        times(s, c, op!(s, Square, secant))
    }),
    ("Atan", |s, c| {
        let one = s.number(1f64, s.dtype(c.x(0)));
        let sum = op!(s, Add, one, op!(s, Square, c.x(0)));
        all([op!(s, Mul, c.dy(0), op!(s, Reciprocal, sum))])
    }),
    ("Atan2", |s, c| {
        let (y, x) = (c.x(0), c.x(1));
        let squares = op!(s, Add, op!(s, Square, x), op!(s, Square, y));
        let inverse = op!(s, Div, c.dy(0), squares);
        let dy = op!(s, Mul, x, inverse);
        all([dy, op!(s, Mul, op!(s, Neg, y), inverse)])
    }),
    ("Add", sum),
    ("AddV2", sum),
    ("AddN", |s, c| {
        let gradient = op!(s, Identity, c.dy(0));
        Ok(vec![Some(gradient); c.node.inputs.len()])
    }),
    ("Sub", |s, c| {
        let dx = op!(s, Identity, c.dy(0));
        broadcast(s, c, dx, op!(s, Neg, c.dy(0)))
    }),
    ("Mul", |s, c| {
        let (x, y) = (s.conj(c.x(0)), s.conj(c.x(1)));
        let dx = op!(s, Mul, c.dy(0), y);
        broadcast(s, c, dx, op!(s, Mul, c.dy(0), x))
    }),
    ("Div", |s, c| quotient(s, c, |s, a, b| op!(s, Div, a, b))),
    ("RealDiv", |s, c| {
        quotient(s, c, |s, a, b| op!(s, RealDiv, a, b))
    }),
    ("DivNoNan", |s, c| {
        quotient(s, c, |s, a, b| op!(s, DivNoNan, a, b))
    }),
    ("SquaredDifference", |s, c| {
        let (x, y) = (s.conj(c.x(0)), s.conj(c.x(1)));
        let two = s.number(2i32, s.dtype(c.dy(0)));
        let twice = op!(s, Mul, two, op!(s, Sub, x, y));
        let dx = op!(s, Mul, c.dy(0), twice);
        broadcast(s, c, dx, op!(s, Neg, dx))
    }),
    ("Pow", power),
    ("Maximum", |s, c| {
        choice(s, c, op!(s, GreaterEqual, c.x(0), c.x(1)))
    }),
    ("Minimum", |s, c| {
        choice(s, c, op!(s, LessEqual, c.x(0), c.x(1)))
    }),
    ("Real", |s, c| {
        let zero = s.number(0f64, s.dtype(c.y(0)));
        all([complex(s, c.dy(0), zero)])
    }),
    ("Imag", |s, c| {
        let zero = s.number(0f64, s.dtype(c.y(0)));
        all([complex(s, zero, c.dy(0))])
    }),
    ("Complex", |s, c| {
        let dx = part_real(s, c.dy(0));
        broadcast(s, c, dx, part_imaginary(s, c.dy(0)))
    }),
    ("Angle", |s, c| {
        let (re, im) = (part_real(s, c.x(0)), part_imaginary(s, c.x(0)));
        let inverse = op!(s, Reciprocal, complex(s, im, re));
        let zero = s.number(0i32, s.dtype(c.dy(0)));
        let gradient = complex(s, c.dy(0), zero);
        all([op!(s, Neg, op!(s, Mul, gradient, inverse))])
    }),
    ("Conj", |s, c| all([op!(s, Conj, c.dy(0))])),
    ("Erf", |s, c| {
        let factor = s.number(2.0 / PI.sqrt(), s.dtype(c.dy(0)));
        let s = s.after(c.dy(0));
        let x = s.conj(c.x(0));
        let scaled = op!(s, Mul, c.dy(0), factor);
        let bell = op!(s, Exp, op!(s, Neg, op!(s, Square, x)));
        all([op!(s, Mul, scaled, bell)])
    }),
    ("Erfinv", |s, c| {
        let factor = s.number(PI.sqrt() / 2.0, s.dtype(c.dy(0)));
        let s = s.after(c.dy(0));
        s.conj(c.x(0));
        let scaled = op!(s, Mul, c.dy(0), factor);
        all([op!(s, Mul, scaled, op!(s, Exp, op!(s, Square, c.y(0))))])
    }),
    ("Ndtri", |s, c| {
        let factor = s.number((2.0 * PI).sqrt(), s.dtype(c.dy(0)));
        let two = s.number(2i32, s.dtype(c.dy(0)));
        let s = s.after(c.dy(0));
        s.conj(c.x(0));
        let scaled = op!(s, Mul, c.dy(0), factor);
        let half = op!(s, Div, op!(s, Square, c.y(0)), two);
        all([op!(s, Mul, scaled, op!(s, Exp, half))])
    }),
    ("Lgamma", |s, c| {
        let s = s.after(c.dy(0));
        let x = s.conj(c.x(0));
        all([op!(s, Mul, c.dy(0), op!(s, Digamma, x))])
    }),
    ("MatMul", |s, c| {
        let flags = [
            c.node.attrs.bool("transpose_a")?,
            c.node.attrs.bool("transpose_b")?,
        ];
        let (a, b) = (s.conj(c.x(0)), s.conj(c.x(1)));
        all(products([a, b], c.dy(0), flags)
            .map(|[x, y]| op!(s, MatMul, x.0, y.0; transpose_a = x.1, transpose_b = y.1)))
    }),
    ("BatchMatMul", |s, c| all(batch_products(s, c)?)),
    ("BatchMatMulV2", broadcast_products),
    ("BatchMatMulV3", broadcast_products),
    ("Cast", |s, c| {
        let is_float = |dtype: DType| dtype.is_complex() || is_plain_float(dtype);
        let (from, to) = (s.dtype(c.x(0)), s.dtype(c.dy(0)));
        Ok(vec![match is_float(from) && is_float(to) {
            true => Some(s.cast(c.dy(0), from)),
            false => None,
        }])
    }),
    ("Select", |s, c| {
        let zeros = op!(s, ZerosLike, c.dy(0));
        let dx = op!(s, Select, c.x(0), c.dy(0), zeros);
        let dy = op!(s, Select, c.x(0), zeros, c.dy(0));
        Ok(vec![None, Some(dx), Some(dy)])
    }),
    ("SelectV2", |s, c| {
        let zeros = op!(s, ZerosLike, c.dy(0));
        let dx = op!(s, SelectV2, c.x(0), c.dy(0), zeros);
        let shape = op!(s, Shape, c.x(1));
        let whole = op!(s, Shape, c.y(0));
        let dx = kept_sum(s, dx, shape, whole);
        let dy = op!(s, SelectV2, c.x(0), zeros, c.dy(0));
        let shape = op!(s, Shape, c.x(2));
        Ok(vec![None, Some(dx), Some(kept_sum(s, dy, shape, whole))])
    }),
    ("ClipByValue", clip),
    ("ReadVariableOp", |s, c| all([op!(s, Identity, c.dy(0))])),
    ("Roll", |s, c| {
        let back = op!(s, Neg, c.x(1));
        first(op!(s, Roll, c.dy(0), back, c.x(2)), 3)
    }),
];

fn is_plain_float(dtype: DType) -> bool {
    use DType::{Bfloat16, Double, Float, Half};
    matches!(dtype, Float | Half | Double | Bfloat16)
}

/// The gradient times a slope.
fn times(s: &Scope, c: &Call, slope: Output) -> Gradients {
    let slope = s.conj(slope);
    all([op!(s, Mul, c.dy(0), slope)])
}

/// `1 / sqrt(1 - x * x)`
fn inverse_root(s: &Scope, c: &Call) -> Output {
    let square = op!(s, Square, c.x(0));
    let one = s.number(1f64, s.dtype(c.x(0)));
    op!(s, Reciprocal, op!(s, Sqrt, op!(s, Sub, one, square)))
}

/// Of float32 parts, like TensorFlow's: others are an error.
fn complex(s: &Scope, re: Output, im: Output) -> Output {
    op!(s, Complex, re, im)
}

fn part_real(s: &Scope, x: Output) -> Output {
    op!(s, Real, x)
}

fn part_imaginary(s: &Scope, x: Output) -> Output {
    op!(s, Imag, x)
}

/// Gradients of inputs that were broadcast together, summed over what was repeated.
fn broadcast(s: &Scope, c: &Call, dx: Output, dy: Output) -> Gradients {
    let shapes = [op!(s, Shape, c.x(0)), op!(s, Shape, c.x(1))];
    let axes = op!(s, BroadcastGradientArgs, shapes[0], shapes[1]);
    let summed = |gradient: Output, i: usize| {
        let axes = Output::new(axes.node, i);
        op!(s, Reshape, op!(s, Sum, gradient, axes), shapes[i])
    };
    all([summed(dx, 0), summed(dy, 1)])
}

/// A gradient that was broadcast from `shape` to `whole`.
fn kept_sum(s: &Scope, gradient: Output, shape: Output, whole: Output) -> Output {
    let axes = op!(s, BroadcastGradientArgs, shape, whole);
    let sum = op!(s, Sum, gradient, axes; keep_dims = true);
    op!(s, Reshape, sum, shape)
}

fn sum(s: &Scope, c: &Call) -> Gradients {
    let dx = op!(s, Identity, c.dy(0));
    broadcast(s, c, dx, op!(s, Identity, c.dy(0)))
}

fn quotient(s: &Scope, c: &Call, div: fn(&Scope, Output, Output) -> Output) -> Gradients {
    let (x, y) = (s.conj(c.x(0)), s.conj(c.x(1)));
    let dx = div(s, c.dy(0), y);
    let slope = div(s, div(s, op!(s, Neg, x), y), y);
    broadcast(s, c, dx, op!(s, Mul, c.dy(0), slope))
}

fn power(s: &Scope, c: &Call) -> Gradients {
    let (x, y, z) = (s.conj(c.x(0)), s.conj(c.x(1)), s.conj(c.y(0)));
    let one = s.number(1f64, s.dtype(y));
    let scaled = op!(s, Mul, c.dy(0), y);
    let dx = op!(s, Mul, scaled, op!(s, Pow, x, op!(s, Sub, y, one)));
    let zero = s.number(0f64, s.dtype(x));
    let has_log = match s.dtype(x).is_complex() {
        true => op!(s, NotEqual, x, zero),
        false => op!(s, Greater, x, zero),
    };
    let log = op!(s, Log, x);
    let log = op!(s, Select, has_log, log, op!(s, ZerosLike, x));
    let scaled = op!(s, Mul, c.dy(0), z);
    broadcast(s, c, dx, op!(s, Mul, scaled, log))
}

/// The gradient goes to the first input where `is_first`, else to the second one.
fn choice(s: &Scope, c: &Call, is_first: Output) -> Gradients {
    let zeros = op!(s, ZerosLike, c.dy(0));
    let dx = op!(s, Select, is_first, c.dy(0), zeros);
    broadcast(s, c, dx, op!(s, Select, is_first, zeros, c.dy(0)))
}

/// A matrix and whether it is transposed in a product.
type Factor = (Output, bool);

/// The factors of the gradients of a product of two matrices.
fn products([a, b]: [Output; 2], dy: Output, flags: [bool; 2]) -> [[Factor; 2]; 2] {
    match flags {
        [false, false] => [[(dy, false), (b, true)], [(a, true), (dy, false)]],
        [false, true] => [[(dy, false), (b, false)], [(dy, true), (a, false)]],
        [true, false] => [[(b, false), (dy, true)], [(a, false), (dy, false)]],
        [true, true] => [[(b, true), (dy, true)], [(dy, true), (a, true)]],
    }
}

fn batch_products(s: &Scope, c: &Call) -> Result<[Output; 2]> {
    let flags = [c.node.attrs.bool("adj_x")?, c.node.attrs.bool("adj_y")?];
    let inputs = [c.x(0), c.x(1)];
    let mut dtypes = inputs.map(|x| s.dtype(x)).into_iter();
    Ok(products(inputs, c.dy(0), flags).map(|[x, y]| {
        let dtype = dtypes.next().unwrap_or(DType::Float);
        op!(s, BatchMatMulV3, x.0, y.0; adj_x = x.1, adj_y = y.1, Tout = dtype)
    }))
}

fn broadcast_products(s: &Scope, c: &Call) -> Gradients {
    let [dx, dy] = batch_products(s, c)?;
    let shapes = [op!(s, Shape, c.x(0)), op!(s, Shape, c.x(1))];
    let [x, y] = shapes.map(|shape| {
        let n_batch = op!(s, Sub, op!(s, Shape, shape), 2);
        op!(s, Slice, shape, [0], n_batch)
    });
    let axes = op!(s, BroadcastGradientArgs, x, y);
    let dx = op!(s, Reshape, op!(s, Sum, dx, axes), shapes[0]);
    let axes = Output::new(axes.node, 1);
    all([dx, op!(s, Reshape, op!(s, Sum, dy, axes), shapes[1])])
}

fn clip(s: &Scope, c: &Call) -> Gradients {
    let (x, min, max) = (c.x(0), c.x(1), c.x(2));
    let [shape, of_min, of_max] = [x, min, max].map(|x| op!(s, Shape, x));
    let is_below = op!(s, Less, x, min);
    let is_above = op!(s, Greater, x, max);
    let axes_min = op!(s, BroadcastGradientArgs, shape, of_min);
    let axes_max = op!(s, BroadcastGradientArgs, shape, of_max);
    let zeros = op!(s, ZerosLike, c.dy(0));
    let is_outside = op!(s, LogicalOr, is_below, is_above);
    let dx = op!(s, Select, is_outside, zeros, c.dy(0));
    let bound = |is_beyond: Output, axes: Output, shape: Output| {
        let chosen = op!(s, Select, is_beyond, c.dy(0), zeros);
        let axes = Output::new(axes.node, 1);
        op!(s, Reshape, op!(s, Sum, chosen, axes), shape)
    };
    let dmin = bound(is_below, axes_min, of_min);
    all([dx, dmin, bound(is_above, axes_max, of_max)])
}
