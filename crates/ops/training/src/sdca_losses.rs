//! Losses of stochastic dual coordinate ascent (TensorFlow: `core/kernels/*-loss.h`; Shalev-Shwartz and Zhang, 2013).

use ferroflow_base::{Result, invalid_argument};

/// A loss by its name in the attr `loss_type`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Loss {
    Logistic,
    Squared,
    Hinge,
    SmoothHinge,
    Poisson,
}

/// An example as a loss sees it.
#[derive(Clone, Copy)]
pub(crate) struct Seen {
    pub partitions: f64,
    pub label: f64,
    pub weight: f64,
    pub dual: f64,
    /// The prediction.
    pub wx: f64,
    /// The squared norm over the regularization.
    pub norm: f64,
}

const NEWTON_STEPS: usize = 10;

impl Loss {
    pub(crate) fn of(name: &str) -> Result<Self> {
        match name {
            "logistic_loss" => Ok(Loss::Logistic),
            "squared_loss" => Ok(Loss::Squared),
            "hinge_loss" => Ok(Loss::Hinge),
            "smooth_hinge_loss" => Ok(Loss::SmoothHinge),
            "poisson_loss" => Ok(Loss::Poisson),
            _ => Err(invalid_argument!("Unsupported loss type: {name}")),
        }
    }

    /// Returns the label that the loss works with.
    pub(crate) fn label(self, label: f32) -> Result<f32> {
        match self {
            Loss::Squared => Ok(label),
            Loss::Poisson if label < 0.0 => Err(invalid_argument!(
                "Only non-negative labels can be used with the Poisson log loss. Found example \
                 with label: {label}"
            )),
            Loss::Poisson => Ok(label),
            _ if label == 0.0 => Ok(-1.0),
            _ if label == 1.0 => Ok(label),
            _ => Err(invalid_argument!(
                "Only labels of 0.0 or 1.0 are supported right now. Found example with label: \
                 {label}"
            )),
        }
    }

    /// Returns the dual after a step along the example.
    pub(crate) fn updated_dual(self, x: Seen) -> f64 {
        match self {
            Loss::Squared => {
                let step = 1.0 + x.partitions * x.norm * x.weight;
                x.dual + (x.label - x.dual - x.wx) / step
            }
            Loss::Hinge => {
                let step = x.partitions * x.weight * x.norm;
                in_box(x.dual + (x.label - x.wx) / step, x.label)
            }
            Loss::SmoothHinge => {
                let step = x.partitions * x.weight * x.norm + 1.0;
                in_box(x.dual + (x.label - x.wx - x.dual) / step, x.label)
            }
            Loss::Logistic => {
                let newton = |at: f64, _| {
                    let tanh = at.tanh();
                    let scale = x.partitions * x.norm * x.weight;
                    let rest = 0.5 * (1.0 + tanh) / x.label - x.dual;
                    let numerator = -2.0 * x.label * at - x.wx - scale * rest;
                    let slope = scale * (1.0 - tanh * tanh) * 0.5 / x.label;
                    at - numerator / (-2.0 * x.label - slope)
                };
                let at = (0..NEWTON_STEPS).fold(0.0, newton);
                0.5 * (1.0 + at.tanh()) / x.label
            }
            Loss::Poisson => {
                let rest = x.label - x.dual;
                let first = if rest > 0.0 { rest.ln() } else { 0.0 };
                let newton = |at: f64, _| {
                    let (exp, scale) = (at.exp(), x.partitions * x.norm * x.weight);
                    let numerator = at - x.wx - scale * (x.label - x.dual - exp);
                    at - numerator / (1.0 + scale * exp)
                };
                x.label - (0..NEWTON_STEPS).fold(first, newton).exp()
            }
        }
    }

    pub(crate) fn dual_loss(self, dual: f64, label: f64, weight: f64) -> f64 {
        let log = |x: f64| if x > 0.0 { x.ln() } else { 0.0 };
        let y = dual * label;
        match self {
            Loss::Squared => dual * (0.5 * dual - label) * weight,
            Loss::Hinge | Loss::SmoothHinge if !(0.0..=1.0).contains(&y) && !y.is_nan() => f64::MAX,
            Loss::Hinge => -y * weight,
            Loss::SmoothHinge => (-y + 0.5 * dual * dual) * weight,
            Loss::Logistic => (y * log(y) + (1.0 - y) * log(1.0 - y)) * weight,
            Loss::Poisson => match label - dual {
                0.0 => 0.0,
                rest if rest < 0.0 => f64::MAX,
                rest => rest * (rest.ln() - 1.0) * weight,
            },
        }
    }

    pub(crate) fn primal_loss(self, wx: f64, label: f64, weight: f64) -> f64 {
        let y = label * wx;
        match self {
            Loss::Squared => (wx - label) * (wx - label) * weight * 0.5,
            Loss::Hinge => (1.0 - y).max(0.0) * weight,
            Loss::SmoothHinge if y >= 1.0 => 0.0,
            Loss::SmoothHinge if y <= 0.0 => (1.0 - y - 0.5) * weight,
            Loss::SmoothHinge => (1.0 - y) * (1.0 - y) * weight * 0.5,
            Loss::Logistic if y > 0.0 => (-y).exp().ln_1p() * weight,
            Loss::Logistic => (y.exp().ln_1p() - y) * weight,
            Loss::Poisson => (wx.exp() - wx * label) * weight,
        }
    }

    /// Returns the derivative of the primal loss of an example of weight one.
    pub(crate) fn derivative(self, wx: f64, label: f64) -> f64 {
        let y = label * wx;
        match self {
            Loss::Squared => wx - label,
            Loss::Hinge if y < 1.0 => -label,
            Loss::Hinge => 0.0,
            Loss::SmoothHinge if y >= 1.0 => 0.0,
            Loss::SmoothHinge if y <= 0.0 => -label,
            Loss::SmoothHinge => wx - label,
            Loss::Logistic => -label / (1.0 + y.exp()),
            Loss::Poisson => wx.exp() - label,
        }
    }

    pub(crate) fn smoothness(self) -> f64 {
        match self {
            Loss::Hinge => 0.0,
            Loss::Logistic => 4.0,
            Loss::Squared | Loss::SmoothHinge | Loss::Poisson => 1.0,
        }
    }
}

/// Limits a dual to those between zero and the label.
fn in_box(dual: f64, label: f64) -> f64 {
    if label * dual < 0.0 {
        0.0
    } else if label * dual > 1.0 {
        label
    } else {
        dual
    }
}
