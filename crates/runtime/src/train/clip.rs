//! Clipping of gradients.

use super::{Clip, Network, Variable};
use ferroflow_base::Result;
use ferroflow_graph::{Gradient, Output};

/// Replaces the gradients by clipped ones.
pub(super) fn clip(net: &mut Network, by: Clip, pairs: &mut [(Variable, Gradient)]) -> Result<()> {
    let mut values: Vec<&mut Output> = pairs.iter_mut().map(|(_, g)| values_of(g)).collect();
    match by {
        Clip::Value(limit) => {
            let (low, high) = (net.scalar(-limit)?, net.scalar(limit)?);
            for value in values {
                *value = net.apply("ClipByValue", &[*value, low, high])?;
            }
        }
        Clip::Norm(limit) => {
            for value in values {
                let norm = norm(net, &[*value])?;
                *value = scaled(net, *value, norm, limit)?;
            }
        }
        Clip::GlobalNorm(limit) => {
            let all: Vec<Output> = values.iter().map(|v| **v).collect();
            let norm = norm(net, &all)?;
            for value in &mut values {
                **value = scaled(net, **value, norm, limit)?;
            }
        }
    }
    Ok(())
}

fn values_of(gradient: &mut Gradient) -> &mut Output {
    match gradient {
        Gradient::Dense(value) => value,
        Gradient::Slices(slices) => &mut slices.values,
    }
}

/// The root of the sum of all squares.
fn norm(net: &mut Network, values: &[Output]) -> Result<Output> {
    let mut halves = Vec::new();
    for value in values {
        halves.push(net.apply("L2Loss", &[*value])?);
    }
    let sum = net.op("AddN").inputs(&halves).output()?;
    let two = net.scalar(2.0)?;
    let squares = net.apply("Mul", &[sum, two])?;
    net.apply("Sqrt", &[squares])
}

/// `value * limit / max(norm, limit)`
fn scaled(net: &mut Network, value: Output, norm: Output, limit: f32) -> Result<Output> {
    let limit = net.scalar(limit)?;
    let larger = net.apply("Maximum", &[norm, limit])?;
    let factor = net.apply("RealDiv", &[limit, larger])?;
    net.apply("Mul", &[value, factor])
}
