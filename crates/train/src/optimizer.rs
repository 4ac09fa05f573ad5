//! [`Optimizer`]: update rules of variables by their gradients.

use super::tasks::Tasks;
use super::update::UpdateBuilder;
use super::{LearningRateSchedule, Network, replicas};
use ferroflow_base::{Result, invalid_argument};
use ferroflow_graph::{NodeId, Output};

/// How to clip gradients (Pascanu et al. 2013).
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Clip {
    /// Clip each element to `-limit..=limit`.
    Value(f32),
    /// Scale each gradient down to this norm.
    Norm(f32),
    /// Scale all gradients down together to this global norm.
    GlobalNorm(f32),
}

/// An update rule, named after TensorFlow's ops.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Rule {
    /// `var -= lr * grad`
    GradientDescent,
    /// `accum = momentum * accum + grad; var -= lr * accum`
    Momentum {
        /// Fraction of the previous direction that is kept.
        momentum: f32,
        /// Whether to use Nesterov momentum.
        nesterov: bool,
    },
    /// `accum += grad²; var -= lr * grad / sqrt(accum)` (Duchi et al. 2011).
    Adagrad {
        /// Initial value of `accum`.
        initial: f32,
    },
    /// `accum += grad²; var -= lr * grad / (sqrt(accum) + epsilon)`
    AdagradV2 {
        /// Initial value of `accum`.
        initial: f32,
        /// Prevents division by zero.
        epsilon: f32,
    },
    /// Adadelta (Zeiler 2012).
    Adadelta {
        /// Decay of both averages.
        rho: f32,
        /// Prevents division by zero.
        epsilon: f32,
    },
    /// RMSProp (Tieleman & Hinton 2012).
    RmsProp {
        /// Decay of the averages.
        rho: f32,
        /// Fraction of the previous direction that is kept.
        momentum: f32,
        /// Prevents division by zero.
        epsilon: f32,
        /// Whether to subtract the mean gradient.
        centered: bool,
    },
    /// Adam (Kingma & Ba 2015).
    Adam {
        /// Decay of the mean.
        beta1: f32,
        /// Decay of the mean of squares.
        beta2: f32,
        /// Prevents division by zero.
        epsilon: f32,
    },
    /// AdaMax: Adam with the infinity norm instead of the mean of squares (Kingma & Ba 2015).
    AdaMax {
        /// Decay of the mean.
        beta1: f32,
        /// Decay of the maximum.
        beta2: f32,
        /// Prevents division by zero.
        epsilon: f32,
    },
    /// FTRL-Proximal (McMahan et al. 2013).
    Ftrl {
        /// Initial value of `accum`.
        initial: f32,
        /// L1 regularization strength.
        l1: f32,
        /// L2 regularization strength.
        l2: f32,
        /// L2 shrinkage: a penalty on the size of the variable, added to the gradient.
        l2_shrinkage: f32,
        /// Usually -0.5.
        power: f32,
    },
}

impl Rule {
    /// Checks the parameters as TensorFlow's optimizers do.
    fn check(&self) -> Result<()> {
        let positive = |value: f32| match value > 0.0 && value.is_finite() {
            true => Ok(()),
            false => Err(invalid_argument!(
                "initial_accumulator_value must be positive: {value:?}"
            )),
        };
        let not_below = |name: &str, value: f32| match value >= 0.0 && value.is_finite() {
            true => Ok(()),
            false => Err(invalid_argument!(
                "{name} {value:.6} needs to be positive or zero"
            )),
        };
        let share = |name: &str, value: f32| match (0.0..=1.0).contains(&value) {
            true => Ok(()),
            false => Err(invalid_argument!(
                "`{name}` must be between [0, 1]. Received: {value:?}"
            )),
        };
        match *self {
            Rule::GradientDescent => Ok(()),
            Rule::Momentum { momentum, .. } => share("momentum", momentum),
            Rule::Adagrad { initial } => positive(initial),
            Rule::AdagradV2 { initial, epsilon } => {
                positive(initial)?;
                not_below("epsilon", epsilon)
            }
            Rule::Adadelta { rho, epsilon } => {
                share("rho", rho)?;
                not_below("epsilon", epsilon)
            }
            Rule::RmsProp {
                rho,
                momentum,
                epsilon,
                ..
            } => {
                share("rho", rho)?;
                share("momentum", momentum)?;
                not_below("epsilon", epsilon)
            }
            Rule::Adam {
                beta1,
                beta2,
                epsilon,
            }
            | Rule::AdaMax {
                beta1,
                beta2,
                epsilon,
            } => {
                share("beta_1", beta1)?;
                share("beta_2", beta2)?;
                not_below("epsilon", epsilon)
            }
            Rule::Ftrl {
                initial,
                l1,
                l2,
                l2_shrinkage,
                power,
            } => {
                not_below("initial_accumulator_value", initial)?;
                if power > 0.0 || !power.is_finite() {
                    return Err(invalid_argument!(
                        "learning_rate_power {power:.6} needs to be negative or zero"
                    ));
                }
                not_below("l1_regularization_strength", l1)?;
                not_below("l2_regularization_strength", l2)?;
                not_below("l2_shrinkage_regularization_strength", l2_shrinkage)
            }
        }
    }
}

impl Clip {
    fn check(self) -> Result<()> {
        let (Clip::Value(limit) | Clip::Norm(limit) | Clip::GlobalNorm(limit)) = self;
        match limit > 0.0 {
            true => Ok(()),
            false => Err(invalid_argument!("clip_norm should be positive: {limit:?}")),
        }
    }
}

/// An update rule with its learning rate.
#[derive(Clone, Debug)]
pub struct Optimizer {
    /// The rule.
    pub rule: Rule,
    /// The learning rate.
    pub rate: LearningRateSchedule,
    /// How to clip gradients, if at all.
    pub clip: Option<Clip>,
}

impl Optimizer {
    /// Creates a rule with a learning rate.
    pub fn new(rule: Rule, rate: impl Into<LearningRateSchedule>) -> Self {
        Optimizer {
            rule,
            rate: rate.into(),
            clip: None,
        }
    }

    /// Gradient descent.
    pub fn gradient_descent(rate: impl Into<LearningRateSchedule>) -> Self {
        Self::new(Rule::GradientDescent, rate)
    }

    /// Gradient descent with momentum.
    pub fn momentum(rate: impl Into<LearningRateSchedule>, momentum: f32) -> Self {
        let nesterov = false;
        Self::new(Rule::Momentum { momentum, nesterov }, rate)
    }

    /// Adam with its usual parameters.
    pub fn adam(rate: impl Into<LearningRateSchedule>) -> Self {
        let (beta1, beta2, epsilon) = (0.9, 0.999, 1e-8);
        Self::new(
            Rule::Adam {
                beta1,
                beta2,
                epsilon,
            },
            rate,
        )
    }

    /// Returns the same with clipped gradients.
    #[must_use]
    pub fn with_clip(mut self, clip: Clip) -> Self {
        self.clip = Some(clip);
        self
    }

    /// Adds the updates of all trainable variables that `loss` depends on: for each step that trains,
    /// its loss and the nodes that update.
    pub(super) fn minimize(
        &self,
        net: &mut Network,
        loss: Output,
        tasks: &Tasks,
    ) -> Result<Vec<(Output, Vec<NodeId>)>> {
        self.rule.check()?;
        self.rate.check()?;
        self.clip.map_or(Ok(()), Clip::check)?;
        let replicas = replicas::of_loss(net, loss, tasks)?;
        let mut steps = Vec::new();
        for (loss, mut pairs) in replicas::gradients(net, &replicas, tasks)? {
            if pairs.is_empty() {
                return Err(invalid_argument!("no trainable variable affects the loss"));
            }
            if let Some(clip) = self.clip {
                super::clip::clip(net, clip, &mut pairs, tasks.home())?;
            }
            steps.push((loss, pairs));
        }
        let home = tasks.home();
        let rate = net.on(home, |net| {
            let rate = self.rate.build(net)?;
            net.name("learning_rate", rate)
        })?;
        let mut update = UpdateBuilder::new(net, self.rule, rate, home)?;
        let mut added = Vec::new();
        for (loss, pairs) in &steps {
            let mut done = Vec::new();
            for (variable, gradient) in pairs {
                done.push(update.variable(variable, gradient)?);
            }
            update.finish(&mut done)?;
            added.push((*loss, done));
        }
        Ok(added)
    }
}
