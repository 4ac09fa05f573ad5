//! Clipping of gradients.

use super::{Clip, Network, Variable};
use ferroflow_base::Result;
use ferroflow_graph::{Gradient, Output};

/// Clips the gradients.
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
            let limit = net.scalar(limit)?;
            for value in values {
                let norm = norm(net, &[*value])?;
                let above = net.apply("Mul", &[*value, limit])?;
                let below = net.apply("Maximum", &[norm, limit])?;
                *value = net.apply("RealDiv", &[above, below])?;
            }
        }
        Clip::GlobalNorm(limit) => {
            let all: Vec<Output> = values.iter().map(|v| **v).collect();
            let norm = norm(net, &all)?;
            let factor = factor(net, norm, limit)?;
            for value in &mut values {
                **value = net.apply("Mul", &[**value, factor])?;
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

/// Returns the L2 norm over all values.
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

/// Returns `limit * min(1 / norm, 1 / limit)`; NaN if the norm is NaN or infinite, so that such
/// gradients do not turn into small ones.
fn factor(net: &mut Network, norm: Output, limit: f32) -> Result<Output> {
    let (one, largest) = (net.scalar(1.0)?, net.scalar(1.0 / limit)?);
    let limit = net.scalar(limit)?;
    let inverse = net.apply("RealDiv", &[one, norm])?;
    let smaller = net.apply("Minimum", &[inverse, largest])?;
    let factor = net.apply("Mul", &[limit, smaller])?;
    let zero = net.apply("Sub", &[norm, norm])?;
    net.apply("AddV2", &[factor, zero])
}
