//! Layer normalization (Ba, Kiros & Hinton 2016) over the last axis, as graphs spell it out.

use super::plus_constant;
use crate::view::View;
use ferroflow_graph::{NodeId, Output};

/// Normalizes `x`.
pub(super) struct LayerNorm {
    pub(super) x: Output,
    pub(super) scale: Channels,
    pub(super) offset: Channels,
    pub(super) epsilon: f32,
}

/// A vector along the last axis.
pub(super) enum Channels {
    Constant(Vec<f32>),
    Output(Output),
}

impl Channels {
    /// Returns `output` if it is a vector of `n` numbers, or a constant of as many along the last axis.
    fn of(view: &View, output: Output, n: usize) -> Option<Channels> {
        if let Some(constant) = view.constant(output) {
            let shape = constant.shape();
            let is_along_last = shape.last() == Some(&n) && shape.num_elements() == n;
            let values = is_along_last.then(|| view.floats(output)).flatten();
            return values.map(Channels::Constant);
        }
        let shape = view.shape(output);
        (shape.rank() == Some(1) && shape.dim(0) == Some(n)).then_some(Channels::Output(output))
    }

    fn is_constant(&self) -> bool {
        matches!(self, Channels::Constant(_))
    }
}

/// The factor `1 / √(variance + epsilon)`.
struct InverseDeviation {
    variance: Output,
    epsilon: f64,
}

impl LayerNorm {
    /// Returns the layer normalization whose last step is the sum `id`.
    pub(super) fn find(view: &View, id: NodeId) -> Option<LayerNorm> {
        let [a, b] = view.node(id).inputs[..] else {
            return None;
        };
        [(a, b), (b, a)].into_iter().find_map(|(product, rest)| {
            scaled_and_shifted(view, product, rest).or_else(|| centered(view, product, rest))
        })
    }

    fn new(
        view: &View,
        x: Output,
        mean: Output,
        inverse: &InverseDeviation,
        [scale, offset]: [Option<Output>; 2],
    ) -> Option<LayerNorm> {
        if last_axis_mean(view, mean)? != x || !is_variance(view, inverse.variance, x, mean) {
            return None;
        }
        let n = view.shape(x).dim(-1)?;
        let scale = match scale {
            Some(scale) => Channels::of(view, scale, n)?,
            None => Channels::Constant(vec![1.0; n]),
        };
        let offset = Channels::of(view, offset?, n)?;
        Some(LayerNorm {
            x,
            scale,
            offset,
            epsilon: inverse.epsilon as f32,
        })
    }
}

/// `x·s + (offset - mean·s)` with `s = scale / √(variance + epsilon)`, as `tf.nn.batch_normalization` spells it.
fn scaled_and_shifted(view: &View, scaled: Output, shift: Output) -> Option<LayerNorm> {
    let scaled = view.producer(scaled, "Mul")?;
    let [p, q] = scaled.inputs[..] else {
        return None;
    };
    [(p, q), (q, p)].into_iter().find_map(|(x, s)| {
        let (mean, offset) = shift_parts(view, shift, s)?;
        let (inverse, scale) = scale_parts(view, s);
        let found = inverse_deviation(view, inverse)?;
        let norm = LayerNorm::new(view, x, mean, &found, [scale, Some(offset)])?;
        let is_inference = norm.scale.is_constant() && norm.offset.is_constant();
        // A gradient that reads the factor would have it computed twice.
        (is_inference || view.only_reader(inverse).is_some()).then_some(norm)
    })
}

/// `(x - mean)·scale / √(variance + epsilon) + offset`, its factors in any order.
fn centered(view: &View, product: Output, offset: Output) -> Option<LayerNorm> {
    let mut factors = Factors::default();
    factors.collect(view, product, 3)?;
    let inverse = factors.inverse?;
    let [x, mean] = factors.difference?;
    LayerNorm::new(view, x, mean, &inverse, [factors.scale, Some(offset)])
}

/// The factors of a product, which nothing else reads.
#[derive(Default)]
struct Factors {
    /// `x` and what is subtracted from it.
    difference: Option<[Output; 2]>,
    inverse: Option<InverseDeviation>,
    scale: Option<Output>,
}

impl Factors {
    /// Adds the factors of `output`. None if there are others than expected.
    fn collect(&mut self, view: &View, output: Output, depth: usize) -> Option<()> {
        let node = view.node(output.node);
        match (node.op(), &node.inputs[..]) {
            ("Mul", [a, b]) if depth > 0 && view.only_reader(output).is_some() => {
                self.collect(view, *a, depth - 1)?;
                self.collect(view, *b, depth - 1)
            }
            ("RealDiv", [a, b]) if depth > 0 && view.only_reader(output).is_some() => {
                let sqrt = view.producer(*b, "Sqrt")?;
                view.only_reader(*b)?;
                self.set_inverse(plus_constant(view, sqrt.inputs[0])?)?;
                self.collect(view, *a, depth - 1)
            }
            ("Rsqrt", [sum]) if self.inverse.is_none() => {
                view.only_reader(output)?;
                self.set_inverse(plus_constant(view, *sum)?)
            }
            ("Sub", [x, mean]) if self.difference.is_none() => {
                self.difference = Some([*x, *mean]);
                Some(())
            }
            _ => self.scale.replace(output).is_none().then_some(()),
        }
    }

    fn set_inverse(&mut self, (epsilon, variance): (f64, Output)) -> Option<()> {
        let inverse = InverseDeviation { variance, epsilon };
        self.inverse.replace(inverse).is_none().then_some(())
    }
}

/// `rsqrt(variance + epsilon)`.
fn inverse_deviation(view: &View, output: Output) -> Option<InverseDeviation> {
    let rsqrt = view.producer(output, "Rsqrt")?;
    let (epsilon, variance) = plus_constant(view, rsqrt.inputs[0])?;
    Some(InverseDeviation { variance, epsilon })
}

/// Whether `variance` is the mean of the squares of `x - mean`.
fn is_variance(view: &View, variance: Output, x: Output, mean: Output) -> bool {
    let Some(squares) = last_axis_mean(view, variance) else {
        return false;
    };
    let node = view.node(squares.node);
    let is_difference = |output: Output| {
        let difference = view.producer(output, "Sub");
        difference.is_some_and(|d| d.inputs[..] == [x, mean])
    };
    match (node.op(), &node.inputs[..]) {
        ("SquaredDifference", inputs) => *inputs == [x, mean] || *inputs == [mean, x],
        ("Square", [d]) => is_difference(*d),
        ("Mul", [d, e]) => d == e && is_difference(*d),
        _ => false,
    }
}

/// `shift = offset - mean·s`, spelled with Sub or with Neg and Add: returns mean and offset.
fn shift_parts(view: &View, shift: Output, s: Output) -> Option<(Output, Output)> {
    let node = view.node(shift.node);
    let [a, b] = node.inputs[..] else { return None };
    let other_factor = |product: Output| {
        let m = view.producer(product, "Mul")?;
        match m.inputs[..] {
            [f, g] if g == s => Some(f),
            [f, g] if f == s => Some(g),
            _ => None,
        }
    };
    match node.op() {
        "Sub" => Some((other_factor(b)?, a)),
        "Add" | "AddV2" => [(a, b), (b, a)].into_iter().find_map(|(term, offset)| {
            let neg = view.producer(other_factor(term)?, "Neg")?;
            Some((neg.inputs[0], offset))
        }),
        _ => None,
    }
}

/// `s = rsqrt·scale` or `s = rsqrt`.
fn scale_parts(view: &View, s: Output) -> (Output, Option<Output>) {
    let parts = view.producer(s, "Mul").and_then(|m| match m.inputs[..] {
        [a, b] if view.producer(a, "Rsqrt").is_some() => Some((a, b)),
        [a, b] if view.producer(b, "Rsqrt").is_some() => Some((b, a)),
        _ => None,
    });
    parts.map_or((s, None), |(inv, scale)| (inv, Some(scale)))
}

/// The input of a mean over the last axis that keeps the axis.
fn last_axis_mean(view: &View, output: Output) -> Option<Output> {
    let mean = view.producer(output, "Mean")?;
    let x = mean.inputs[0];
    let axes = view.ints(mean.inputs[1])?;
    let last = view.shape(x).rank()? as i64 - 1;
    let over_last = matches!(axes[..], [a] if a == -1 || a == last);
    (over_last && mean.attrs.bool("keep_dims").ok()?).then_some(x)
}
