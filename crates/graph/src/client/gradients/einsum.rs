//! The rule of Einsum (`tensorflow/cc/gradients/linalg_grad.cc`).

use super::backprop::Call;
use super::reductions::reduced_shape;
use super::rules::{Rules, all};
use super::scope::{Arg, Scope, op};
use crate::Output;
use ferroflow_base::{Result, internal, invalid_argument, ordered_set};
use std::collections::BTreeSet;

pub(super) const RULES: Rules = &[("Einsum", einsum)];

const ELLIPSIS: &str = "...";

/// An operand: its labels and its shape.
struct Operand<'a> {
    labels: &'a str,
    shape: Output,
}

fn einsum(s: &Scope, c: &Call) -> Result<Vec<Option<Output>>> {
    let equation = c.node.attrs.str("equation")?;
    let (inputs, result) = equation
        .split_once("->")
        .filter(|(_, result)| !result.contains("->"))
        .ok_or_else(|| invalid_argument!("Equation must contain a single ->"))?;
    let dy = c.dy(0);
    if c.node.inputs.len() == 1 {
        let shape = op!(s, Shape, c.x(0));
        let x = Operand {
            labels: inputs,
            shape,
        };
        let reduced = reduced_labels(inputs, &[result]);
        return all([match reduced.is_empty() {
            true => call(s, &[dy], &format!("{result}->{inputs}")),
            false => spread(s, dy, result, &x, &reduced)?,
        }]);
    }
    let (x_labels, y_labels) = inputs
        .split_once(',')
        .filter(|(_, y)| !y.contains(','))
        .ok_or_else(|| invalid_argument!("Only 2 inputs are supported"))?;
    let is_broadcast = result.contains(ELLIPSIS);
    let [x_labels, y_labels] =
        [x_labels, y_labels].map(|labels| match is_broadcast && !labels.contains(ELLIPSIS) {
            true => format!("{labels}{ELLIPSIS}"),
            false => labels.to_string(),
        });
    let (mut x, mut y) = (c.x(0), c.x(1));
    if s.dtype(dy).is_complex() {
        (x, y) = (op!(s, Conj, x), op!(s, Conj, y));
    }
    let (x_shape, y_shape) = (op!(s, Shape, x), op!(s, Shape, y));
    let of_x = Operand {
        labels: &x_labels,
        shape: x_shape,
    };
    let of_y = Operand {
        labels: &y_labels,
        shape: y_shape,
    };
    let dx = by_operand(s, (dy, result), (y, &y_labels), &of_x)?;
    let dy = by_operand(s, (dy, result), (x, &x_labels), &of_y)?;
    if !is_broadcast {
        return all([dx, dy]);
    }
    let starts = [&of_x, &of_y].map(|o| o.labels.find(ELLIPSIS).unwrap_or(0) as i32);
    let x_axes = broadcast_part(s, &of_x);
    let y_axes = broadcast_part(s, &of_y);
    let axes = op!(s, BroadcastGradientArgs, x_axes, y_axes);
    let mut sums = [dx, dy];
    for (i, sum) in sums.iter_mut().enumerate() {
        let axes = op!(s, Add, starts[i], Output::new(axes.node, i));
        *sum = op!(s, Reshape, op!(s, Sum, *sum, axes), [x_shape, y_shape][i]);
    }
    all(sums)
}

fn call(s: &Scope, inputs: &[Output], equation: &str) -> Output {
    op!(s, Einsum, inputs; equation = equation)
}

/// The labels that only `labels` has.
fn reduced_labels(labels: &str, others: &[&str]) -> BTreeSet<char> {
    let is_other = |label: &char| *label == '.' || others.iter().any(|o| o.contains(*label));
    ordered_set(labels.chars().filter(|label| !is_other(label)))
}

/// The gradient by one of two operands.
fn by_operand(
    s: &Scope,
    (dy, result): (Output, &str),
    (other, others): (Output, &str),
    operand: &Operand,
) -> Result<Output> {
    let reduced = reduced_labels(operand.labels, &[result, others]);
    let kept: String = without(operand.labels, &reduced);
    let gradient = call(s, &[dy, other], &format!("{result},{others}->{kept}"));
    match reduced.is_empty() {
        true => Ok(gradient),
        false => spread(s, gradient, &kept, operand, &reduced),
    }
}

fn without(labels: &str, reduced: &BTreeSet<char>) -> String {
    labels
        .chars()
        .filter(|label| !reduced.contains(label))
        .collect()
}

/// The axis of a label, from the end if it is behind the ellipsis.
fn axis_of(labels: &str, label: char) -> Result<i32> {
    let (front, back) = labels.split_once(ELLIPSIS).unwrap_or((labels, ""));
    if let Some(axis) = front.find(label) {
        return Ok(axis as i32);
    }
    let axis = back.find(label);
    let axis = axis.ok_or_else(|| internal!("Missing axis{label}"))?;
    Ok(axis as i32 - back.len() as i32)
}

/// A gradient without the axes of `reduced`, repeated along these.
fn spread(
    s: &Scope,
    gradient: Output,
    labels: &str,
    operand: &Operand,
    reduced: &BTreeSet<char>,
) -> Result<Output> {
    let name: String = reduced.iter().collect();
    let axes = reduced.iter().map(|label| axis_of(operand.labels, *label));
    let axes: Vec<i32> = axes.collect::<Result<_>>()?;
    let size = |axis: &i32| match *axis {
        axis if axis < 0 => {
            let rank = op!(s, Size, operand.shape);
            let axis = op!(s, Add, rank, axis);
            op!(s, Gather, operand.shape, axis)
        }
        axis => op!(s, Gather, operand.shape, axis),
    };
    let sizes: Vec<Output> = axes.iter().map(size).collect();
    let sizes = op!(s, Pack, &sizes[..]);
    let axes = s.ints(&axes);
    let distinct = |labels: &str| ordered_set(labels.chars()).len();
    let repeats = |labels: &str| distinct(labels) < labels.chars().count();
    let repeats = repeats(operand.labels) || repeats(labels);
    if !repeats && without(operand.labels, reduced) == labels {
        let shape = reduced_shape(s, operand.shape, axes);
        let gradient = op!(s, Reshape, gradient, shape);
        return Ok(op!(s, BroadcastTo, gradient, operand.shape));
    }
    let shape = op!(s, Shape, gradient);
    let whole = op!(s, ConcatV2, &[sizes, shape][..], 0);
    let ones = s.ints(&vec![1; reduced.len()]);
    let ones = op!(s, ConcatV2, &[ones, shape][..], 0);
    let gradient = op!(s, Reshape, gradient, ones);
    let gradient = op!(s, BroadcastTo, gradient, whole);
    Ok(call(
        s,
        &[gradient],
        &format!("{name}{labels}->{}", operand.labels),
    ))
}

/// The part of a shape that the ellipsis stands for.
fn broadcast_part(s: &Scope, operand: &Operand) -> Output {
    let (start, after) = match operand.labels.split_once(ELLIPSIS) {
        Some((front, back)) => (front.len() as i32, back.len() as i32),
        None => (0, 0),
    };
    let begin = s.ints(&[start]);
    let rank = op!(s, Shape, operand.shape);
    let n = op!(s, Add, rank, -after - start);
    op!(s, Slice, operand.shape, Arg::from(begin), n)
}
