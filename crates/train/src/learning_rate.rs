//! [`LearningRateSchedule`]: learning rates that depend on the step.

use super::Network;
use ferroflow_base::{Result, invalid_argument};
use ferroflow_graph::Output;
use ferroflow_opdef::AttrValue;
use ferroflow_tensor::{DType, Tensor};

/// A learning rate that may depend on the step, as Keras's schedules.
#[derive(Clone, Debug, PartialEq)]
pub enum LearningRateSchedule {
    /// Constant.
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
    /// From `initial` to `end` in `steps`, along a power of the remaining fraction of steps.
    Polynomial {
        /// The rate of step 0.
        initial: f32,
        /// The rate from `steps` on.
        end: f32,
        /// Duration.
        steps: f32,
        /// 1 is linear.
        power: f32,
        /// Whether `steps` grows to its next multiple once it is over, so that the rate jumps up
        /// again.
        cycle: bool,
    },
    /// Half a cosine from `initial` down to `initial * alpha`.
    Cosine {
        /// The rate of step 0.
        initial: f32,
        /// Duration.
        steps: f32,
        /// Final fraction of `initial`.
        alpha: f32,
    },
    /// `initial / (1 + decay * step / steps)`
    InverseTime {
        /// The rate of step 0.
        initial: f32,
        /// Steps to a unit of time.
        steps: f32,
        /// Decay rate.
        decay: f32,
        /// Whether the rate only changes every `steps`.
        staircase: bool,
    },
    /// `initial * exp(-decay * step / steps)`
    NaturalExp {
        /// The rate of step 0.
        initial: f32,
        /// Steps to a unit of time.
        steps: f32,
        /// Decay rate.
        decay: f32,
        /// Whether the rate only changes every `steps`.
        staircase: bool,
    },
    /// Half cosines, each `t_mul` times as long and `m_mul` times as high as the previous one
    /// (SGDR: Loshchilov & Hutter 2017).
    CosineRestarts {
        /// The rate of step 0.
        initial: f32,
        /// Duration of the first one.
        steps: f32,
        /// Ratio of durations.
        t_mul: f32,
        /// Ratio of initial rates.
        m_mul: f32,
        /// Final fraction of the first one.
        alpha: f32,
    },
    /// `values[i]` up to step `boundaries[i]`, the last value after all of them.
    Piecewise {
        /// The last step of each value but the last, increasing.
        boundaries: Vec<i64>,
        /// One more than there are boundaries.
        values: Vec<f32>,
    },
}

impl From<f32> for LearningRateSchedule {
    fn from(rate: f32) -> Self {
        LearningRateSchedule::Constant(rate)
    }
}

impl LearningRateSchedule {
    /// Checks that every step has a rate.
    pub(super) fn check(&self) -> Result<()> {
        let steps = match self {
            LearningRateSchedule::Constant(rate) if !rate.is_finite() => {
                return Err(invalid_argument!("a learning rate cannot be {rate:?}"));
            }
            LearningRateSchedule::Constant(_) => return Ok(()),
            LearningRateSchedule::Piecewise { boundaries, values } => {
                if boundaries.len() + 1 != values.len() {
                    return Err(invalid_argument!(
                        "The length of boundaries should be 1 less than the length of values: {} \
                         and {}",
                        boundaries.len(),
                        values.len()
                    ));
                }
                if boundaries.windows(2).any(|pair| pair[0] >= pair[1]) {
                    return Err(invalid_argument!(
                        "the boundaries of a learning rate must increase: {boundaries:?}"
                    ));
                }
                return Ok(());
            }
            LearningRateSchedule::CosineRestarts { t_mul, .. }
                if *t_mul < 1.0 || !t_mul.is_finite() =>
            {
                return Err(invalid_argument!("t_mul must be at least 1: {t_mul:?}"));
            }
            LearningRateSchedule::Exponential { steps, .. }
            | LearningRateSchedule::Polynomial { steps, .. }
            | LearningRateSchedule::Cosine { steps, .. }
            | LearningRateSchedule::InverseTime { steps, .. }
            | LearningRateSchedule::NaturalExp { steps, .. }
            | LearningRateSchedule::CosineRestarts { steps, .. } => *steps,
        };
        match steps > 0.0 && steps.is_finite() {
            true => Ok(()),
            false => Err(invalid_argument!(
                "a learning rate cannot change over {steps:?} steps"
            )),
        }
    }

    /// Adds the nodes that compute the rate from the global step.
    pub(super) fn build(&self, net: &mut Network) -> Result<Output> {
        match *self {
            LearningRateSchedule::Constant(rate) => net.scalar(rate),
            LearningRateSchedule::NaturalExp {
                initial,
                steps,
                decay,
                staircase,
            } => {
                let at = whole(net, steps, staircase)?;
                let (initial, decay) = (net.scalar(initial)?, net.scalar(-decay)?);
                let power = net.apply("Mul", &[decay, at])?;
                let factor = net.apply("Exp", &[power])?;
                net.apply("Mul", &[initial, factor])
            }
            LearningRateSchedule::CosineRestarts {
                initial,
                steps,
                t_mul,
                m_mul,
                alpha,
            } => cosine_restarts(net, [initial, steps, t_mul, m_mul, alpha]),
            LearningRateSchedule::Piecewise {
                ref boundaries,
                ref values,
            } => piecewise(net, boundaries, values),
            LearningRateSchedule::Exponential {
                initial,
                steps,
                decay,
                staircase,
            } => {
                let at = whole(net, steps, staircase)?;
                let (initial, decay) = (net.scalar(initial)?, net.scalar(decay)?);
                let factor = net.apply("Pow", &[decay, at])?;
                net.apply("Mul", &[initial, factor])
            }
            LearningRateSchedule::Polynomial {
                initial,
                end,
                steps,
                power,
                cycle,
            } => polynomial(net, [initial, end, steps, power], cycle),
            LearningRateSchedule::Cosine {
                initial,
                steps,
                alpha,
            } => cosine(net, [initial, steps, alpha]),
            LearningRateSchedule::InverseTime {
                initial,
                steps,
                decay,
                staircase,
            } => {
                let at = whole(net, steps, staircase)?;
                let (initial, decay) = (net.scalar(initial)?, net.scalar(decay)?);
                let one = net.scalar(1.0)?;
                let product = net.apply("Mul", &[decay, at])?;
                let below = net.apply("AddV2", &[one, product])?;
                net.apply("RealDiv", &[initial, below])
            }
        }
    }
}

/// Returns the rate of [`LearningRateSchedule::CosineRestarts`].
fn cosine_restarts(
    net: &mut Network,
    [initial, steps, t_mul, m_mul, alpha]: [f32; 5],
) -> Result<Output> {
    let at = time(net, steps)?;
    let one = net.scalar(1.0)?;
    let (number, share) = restart(net, at, t_mul)?;
    let m = net.scalar(m_mul)?;
    let height = net.apply("Pow", &[m, number])?;
    let pi = net.scalar(std::f32::consts::PI)?;
    let angle = net.apply("Mul", &[pi, share])?;
    let cosine = net.apply("Cos", &[angle])?;
    let wave = net.apply("AddV2", &[one, cosine])?;
    let half = net.scalar(0.5)?;
    let height = net.apply("Mul", &[half, height])?;
    let wave = net.apply("Mul", &[height, wave])?;
    let (range, alpha) = (net.scalar(1.0 - alpha)?, net.scalar(alpha)?);
    let above = net.apply("Mul", &[range, wave])?;
    let factor = net.apply("AddV2", &[above, alpha])?;
    let initial = net.scalar(initial)?;
    net.apply("Mul", &[initial, factor])
}

/// Returns how many half cosines are over at the time `at`, and the share of the next one that is.
fn restart(net: &mut Network, at: Output, t_mul: f32) -> Result<(Output, Output)> {
    if t_mul == 1.0 {
        let number = net.apply("Floor", &[at])?;
        Ok((number, net.apply("Sub", &[at, number])?))
    } else {
        // The restarts are at sums of a geometric series.
        let one = net.scalar(1.0)?;
        let (ratio, t) = (net.scalar(1.0 - t_mul)?, net.scalar(t_mul)?);
        let product = net.apply("Mul", &[at, ratio])?;
        let left = net.apply("Sub", &[one, product])?;
        let log = net.apply("Log", &[left])?;
        let unit = net.apply("Log", &[t])?;
        let number = net.apply("RealDiv", &[log, unit])?;
        let number = net.apply("Floor", &[number])?;
        let length = net.apply("Pow", &[t, number])?;
        let sum = net.apply("Sub", &[one, length])?;
        let sum = net.apply("RealDiv", &[sum, ratio])?;
        let rest = net.apply("Sub", &[at, sum])?;
        Ok((number, net.apply("RealDiv", &[rest, length])?))
    }
}

/// Returns the rate of [`LearningRateSchedule::Piecewise`].
fn piecewise(net: &mut Network, boundaries: &[i64], values: &[f32]) -> Result<Output> {
    let step = net.global_step()?;
    let boundaries = Tensor::vector(boundaries)?;
    let boundaries = net.builder.constant("boundaries", boundaries)?;
    let values = net.builder.constant("values", Tensor::vector(values)?)?;
    let over = net.apply("Greater", &[step.value, boundaries])?;
    let over = net.op("Cast").input(over);
    let over = over.attr("DstT", AttrValue::Type(DType::Int32)).output()?;
    let axis = net.ints(&[0])?;
    let number = net.apply("Sum", &[over, axis])?;
    let axis = net.builder.constant("axis", Tensor::scalar(0i32))?;
    net.apply("GatherV2", &[values, number, axis])
}

/// Returns the rate of [`LearningRateSchedule::Polynomial`].
fn polynomial(
    net: &mut Network,
    [initial, end, steps, power]: [f32; 4],
    cycle: bool,
) -> Result<Output> {
    let left = match cycle {
        false => left(net, steps)?,
        true => {
            let (at, one) = (time(net, steps)?, net.scalar(1.0)?);
            // The first cycle begins at step 0.
            let length = net.apply("Ceil", &[at])?;
            let length = net.apply("Maximum", &[length, one])?;
            let share = net.apply("RealDiv", &[at, length])?;
            net.apply("Sub", &[one, share])?
        }
    };
    let power = net.scalar(power)?;
    let share = net.apply("Pow", &[left, power])?;
    let (range, end) = (net.scalar(initial - end)?, net.scalar(end)?);
    let above = net.apply("Mul", &[range, share])?;
    net.apply("AddV2", &[above, end])
}

/// Returns the rate of [`LearningRateSchedule::Cosine`].
fn cosine(net: &mut Network, [initial, steps, alpha]: [f32; 3]) -> Result<Output> {
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

/// Returns `step / steps`.
fn time(net: &mut Network, steps: f32) -> Result<Output> {
    let step = net.global_step()?;
    let step = net.op("Cast").input(step.value);
    let step = step.attr("DstT", AttrValue::Type(DType::Float)).output()?;
    let steps = net.scalar(steps)?;
    net.apply("RealDiv", &[step, steps])
}

/// Returns `step / steps`, rounded down if `staircase`.
fn whole(net: &mut Network, steps: f32, staircase: bool) -> Result<Output> {
    let at = time(net, steps)?;
    match staircase {
        true => net.apply("Floor", &[at]),
        false => Ok(at),
    }
}

/// Returns the remaining fraction of `steps`, from 1 down to 0.
fn left(net: &mut Network, steps: f32) -> Result<Output> {
    let at = time(net, steps)?;
    let one = net.scalar(1.0)?;
    let at = net.apply("Minimum", &[at, one])?;
    net.apply("Sub", &[one, at])
}
