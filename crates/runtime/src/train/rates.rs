//! [`Rate`]: learning rates that change with the step.

use super::Network;
use ferroflow_base::Result;
use ferroflow_graph::Output;
use ferroflow_opdef::AttrValue;
use ferroflow_tensor::DType;

/// A learning rate.
#[derive(Clone, Debug, PartialEq)]
pub enum Rate {
    /// The same in all steps.
    Constant(f32),
    /// `initial * decay ^ (step / steps)`; in whole powers when `staircase`.
    Exponential {
        /// The rate of step 0.
        initial: f32,
        /// Steps for one factor.
        steps: f32,
        /// The factor.
        decay: f32,
        /// Whether the rate only changes every `steps`.
        staircase: bool,
    },
    /// From `initial` to `end` in `steps`, along a power of the way that is left.
    Polynomial {
        /// The rate of step 0.
        initial: f32,
        /// The rate from `steps` on.
        end: f32,
        /// How long it takes.
        steps: f32,
        /// 1 is a straight line.
        power: f32,
    },
    /// Half a cosine from `initial` down to `initial * alpha`.
    Cosine {
        /// The rate of step 0.
        initial: f32,
        /// How long it takes.
        steps: f32,
        /// What is left at the end.
        alpha: f32,
    },
    /// `initial / (1 + decay * step / steps)`
    InverseTime {
        /// The rate of step 0.
        initial: f32,
        /// Steps to a unit of time.
        steps: f32,
        /// How fast it falls.
        decay: f32,
    },
}

impl From<f32> for Rate {
    fn from(rate: f32) -> Self {
        Rate::Constant(rate)
    }
}

impl Rate {
    /// Adds the nodes that compute the rate from the global step.
    pub(super) fn build(&self, net: &mut Network) -> Result<Output> {
        match *self {
            Rate::Constant(rate) => net.scalar(rate),
            Rate::Exponential {
                initial,
                steps,
                decay,
                staircase,
            } => {
                let mut at = time(net, steps)?;
                if staircase {
                    at = net.apply("Floor", &[at])?;
                }
                let (initial, decay) = (net.scalar(initial)?, net.scalar(decay)?);
                let factor = net.apply("Pow", &[decay, at])?;
                net.apply("Mul", &[initial, factor])
            }
            Rate::Polynomial {
                initial,
                end,
                steps,
                power,
            } => {
                let left = left(net, steps)?;
                let power = net.scalar(power)?;
                let share = net.apply("Pow", &[left, power])?;
                let (range, end) = (net.scalar(initial - end)?, net.scalar(end)?);
                let above = net.apply("Mul", &[range, share])?;
                net.apply("AddV2", &[above, end])
            }
            Rate::Cosine {
                initial,
                steps,
                alpha,
            } => {
                // cos(π(1 - left)) = -cos(π left)
                let left = left(net, steps)?;
                let pi = net.scalar(std::f32::consts::PI)?;
                let angle = net.apply("Mul", &[left, pi])?;
                let cosine = net.apply("Cos", &[angle])?;
                let half = net.scalar(-0.5 * (1.0 - alpha) * initial)?;
                let middle = net.scalar(0.5 * (1.0 + alpha) * initial)?;
                let wave = net.apply("Mul", &[cosine, half])?;
                net.apply("AddV2", &[middle, wave])
            }
            Rate::InverseTime {
                initial,
                steps,
                decay,
            } => {
                let at = time(net, steps)?;
                let (initial, decay) = (net.scalar(initial)?, net.scalar(decay)?);
                let one = net.scalar(1.0)?;
                let product = net.apply("Mul", &[decay, at])?;
                let below = net.apply("AddV2", &[one, product])?;
                net.apply("RealDiv", &[initial, below])
            }
        }
    }
}

/// `step / steps`
fn time(net: &mut Network, steps: f32) -> Result<Output> {
    let step = net.global_step()?;
    let step = net.op("Cast").input(step.value);
    let step = step.attr("DstT", AttrValue::Type(DType::Float)).output()?;
    let steps = net.scalar(steps)?;
    net.apply("RealDiv", &[step, steps])
}

/// What is left of `steps`, from 1 down to 0.
fn left(net: &mut Network, steps: f32) -> Result<Output> {
    let at = time(net, steps)?;
    let one = net.scalar(1.0)?;
    let at = net.apply("Minimum", &[at, one])?;
    net.apply("Sub", &[one, at])
}
