//! Clipping of gradients.

use super::{Clip, Network, Variable};
use ferroflow_base::Result;
use ferroflow_graph::{Gradient, Output};

/// Clips the gradients, each on the device of its variable; what concerns all is on `home`.
pub(super) fn clip(
    net: &mut Network,
    by: Clip,
    pairs: &mut [(Variable, Gradient)],
    home: &str,
) -> Result<()> {
    let factor = match by {
        Clip::GlobalNorm(limit) => Some(global_factor(net, pairs, limit, home)?),
        _ => None,
    };
    for (variable, gradient) in pairs {
        let value = values_of(gradient);
        *value = net.on(&variable.device, |net| clipped(net, by, *value, factor))?;
    }
    Ok(())
}

/// Returns a clipped gradient; `factor` is that of all.
fn clipped(net: &mut Network, by: Clip, value: Output, factor: Option<Output>) -> Result<Output> {
    match (by, factor) {
        (_, Some(factor)) => net.apply("Mul", &[value, factor]),
        (Clip::Value(limit), None) => {
            let (low, high) = (net.scalar(-limit)?, net.scalar(limit)?);
            net.apply("ClipByValue", &[value, low, high])
        }
        (Clip::Norm(limit) | Clip::GlobalNorm(limit), None) => {
            let limit = net.scalar(limit)?;
            let half = net.apply("L2Loss", &[value])?;
            let norm = norm(net, &[half])?;
            let above = net.apply("Mul", &[value, limit])?;
            let below = net.apply("Maximum", &[norm, limit])?;
            net.apply("RealDiv", &[above, below])
        }
    }
}

/// Returns what all gradients are multiplied with.
fn global_factor(
    net: &mut Network,
    pairs: &mut [(Variable, Gradient)],
    limit: f32,
    home: &str,
) -> Result<Output> {
    let mut halves = Vec::new();
    for (variable, gradient) in pairs {
        let value = *values_of(gradient);
        halves.push(net.on(&variable.device, |net| net.apply("L2Loss", &[value]))?);
    }
    net.on(home, |net| {
        let norm = norm(net, &halves)?;
        factor(net, norm, limit)
    })
}

fn values_of(gradient: &mut Gradient) -> &mut Output {
    match gradient {
        Gradient::Dense(value) => value,
        Gradient::Slices(slices) => &mut slices.values,
    }
}

/// Returns the L2 norm over all values, whose L2 losses are `halves`.
fn norm(net: &mut Network, halves: &[Output]) -> Result<Output> {
    let sum = net.op("AddN").inputs(halves).output()?;
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
