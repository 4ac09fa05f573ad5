//! [`Optimizer`]: the ops that change variables by their gradients.

use super::{Network, Rate, Variable};
use ferroflow_base::{Result, invalid_argument};
use ferroflow_graph::{Gradient, GradientOptions, IndexedSlices, NodeId, Output};
use ferroflow_opdef::AttrValue;
use ferroflow_tensor::{DType, Tensor};

/// How gradients are kept from growing too large.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Clip {
    /// Each element into `-limit..=limit`.
    Value(f32),
    /// Each gradient scaled down to this norm.
    Norm(f32),
    /// All gradients scaled down together to this norm.
    GlobalNorm(f32),
}

/// An update rule, named after TensorFlow's ops.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Rule {
    /// `var -= lr * grad`
    GradientDescent,
    /// `accum = momentum * accum + grad; var -= lr * accum`
    Momentum {
        /// Share of the old direction that stays.
        momentum: f32,
        /// Whether the step looks ahead.
        nesterov: bool,
    },
    /// `accum += grad²; var -= lr * grad / sqrt(accum)`
    Adagrad {
        /// Where `accum` begins.
        initial: f32,
    },
    /// Zeiler's rule without a scale of its own.
    Adadelta {
        /// Decay of both averages.
        rho: f32,
        /// Keeps divisions sane.
        epsilon: f32,
    },
    /// Hinton's running mean of squares.
    RmsProp {
        /// Decay of the averages.
        rho: f32,
        /// Share of the old direction that stays.
        momentum: f32,
        /// Keeps divisions sane.
        epsilon: f32,
        /// Whether the mean gradient is taken off.
        centered: bool,
    },
    /// Kingma and Ba's.
    Adam {
        /// Decay of the mean.
        beta1: f32,
        /// Decay of the mean of squares.
        beta2: f32,
        /// Keeps divisions sane.
        epsilon: f32,
    },
    /// Adam with the largest gradient in the place of the mean square.
    AdaMax {
        /// Decay of the mean.
        beta1: f32,
        /// Decay of the maximum.
        beta2: f32,
        /// Keeps divisions sane.
        epsilon: f32,
    },
    /// McMahan's rule with regularization.
    Ftrl {
        /// Where `accum` begins.
        initial: f32,
        /// Weight of the sum of magnitudes.
        l1: f32,
        /// Weight of the sum of squares.
        l2: f32,
        /// Usually -0.5.
        power: f32,
    },
}

/// An update rule with its learning rate.
#[derive(Clone, Debug)]
pub struct Optimizer {
    /// The rule.
    pub rule: Rule,
    /// The learning rate.
    pub rate: Rate,
    /// What is done to gradients first.
    pub clip: Option<Clip>,
}

impl Optimizer {
    /// A rule with a learning rate.
    pub fn new(rule: Rule, rate: impl Into<Rate>) -> Self {
        Optimizer {
            rule,
            rate: rate.into(),
            clip: None,
        }
    }

    /// Plain steps downhill.
    pub fn gradient_descent(rate: impl Into<Rate>) -> Self {
        Self::new(Rule::GradientDescent, rate)
    }

    /// Steps that keep their direction.
    pub fn momentum(rate: impl Into<Rate>, momentum: f32) -> Self {
        let nesterov = false;
        Self::new(Rule::Momentum { momentum, nesterov }, rate)
    }

    /// Adam with its usual constants.
    pub fn adam(rate: impl Into<Rate>) -> Self {
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

    /// The same with clipped gradients.
    #[must_use]
    pub fn with_clip(mut self, clip: Clip) -> Self {
        self.clip = Some(clip);
        self
    }

    /// Adds the updates of all trainable variables that `loss` depends on.
    pub(super) fn minimize(&self, net: &mut Network, loss: Output) -> Result<Vec<NodeId>> {
        let trainable = net.variables.iter().filter(|v| v.trainable);
        let variables: Vec<Variable> = trainable.cloned().collect();
        let values: Vec<Output> = variables.iter().map(|v| v.value).collect();
        let options = GradientOptions::default();
        let gradients = net
            .builder
            .gradients_as_slices(&[loss], &values, &options)?;
        let pairs = variables.into_iter().zip(gradients);
        let mut pairs: Vec<(Variable, Gradient)> =
            pairs.filter_map(|(v, g)| Some((v, g?))).collect();
        if pairs.is_empty() {
            return Err(invalid_argument!(
                "no trainable variable is on the way to the loss: nothing can be learned"
            ));
        }
        if let Some(clip) = self.clip {
            super::clip::clip(net, clip, &mut pairs)?;
        }
        let rate = self.rate.build(net)?;
        let mut update = Update::new(net, self.rule, rate)?;
        let mut done = Vec::new();
        for (variable, gradient) in &pairs {
            done.push(update.variable(variable, gradient)?);
        }
        update.finish(&mut done)?;
        Ok(done)
    }
}

/// The updates of one optimizer in the making.
struct Update<'n> {
    net: &'n mut Network,
    rule: Rule,
    rate: Output,
    /// Variables that hold the powers of Adam's decays.
    powers: Vec<(Variable, Output)>,
}

impl<'n> Update<'n> {
    fn new(net: &'n mut Network, rule: Rule, rate: Output) -> Result<Self> {
        let decays: &[(&str, f32)] = match &rule {
            Rule::Adam { beta1, beta2, .. } => &[("beta1_power", *beta1), ("beta2_power", *beta2)],
            Rule::AdaMax { beta1, .. } => &[("beta1_power", *beta1)],
            _ => &[],
        };
        let mut powers = Vec::new();
        for (name, decay) in decays {
            let variable = net.state(name, Tensor::scalar(*decay))?;
            powers.push((variable, net.scalar(*decay)?));
        }
        Ok(Update {
            net,
            rule,
            rate,
            powers,
        })
    }

    /// A variable of the rule's own beside `of`.
    fn slot(&mut self, of: &Variable, name: &str, value: f32) -> Result<Variable> {
        let filled = vec![value; of.shape.num_elements()];
        let initial = Tensor::from_slice(of.shape.clone(), &filled)?;
        self.net.state(&format!("{}/{name}", of.name), initial)
    }

    fn variable(&mut self, variable: &Variable, gradient: &Gradient) -> Result<NodeId> {
        if variable.dtype != DType::Float {
            return Err(invalid_argument!(
                "variable '{}' is {}: the optimizers train float variables",
                variable.name,
                variable.dtype
            ));
        }
        match gradient {
            Gradient::Dense(gradient) => self.dense(variable, *gradient),
            Gradient::Slices(slices) => {
                let (values, indices) = self.summed(slices)?;
                self.sparse(variable, values, indices)
            }
        }
    }

    /// Slices of the same row added up, so that each row is updated once.
    fn summed(&mut self, slices: &IndexedSlices) -> Result<(Output, Output)> {
        let unique = self.net.op("Unique").input(slices.indices).outputs()?;
        let [rows, place] = unique[..] else {
            return Err(invalid_argument!("Unique has two outputs"));
        };
        let n = self.net.apply("Size", &[rows])?;
        let values = self
            .net
            .apply("UnsortedSegmentSum", &[slices.values, place, n])?;
        Ok((values, rows))
    }

    fn dense(&mut self, v: &Variable, gradient: Output) -> Result<NodeId> {
        let (op, slots, before, after, nesterov) = self.plan(v)?;
        let mut inputs = vec![v.handle];
        inputs.extend(slots);
        inputs.extend(before);
        // These two take their gradient before the last numbers.
        match self.rule {
            Rule::Ftrl { .. } | Rule::Momentum { .. } => {
                inputs.push(gradient);
                inputs.extend(after);
            }
            _ => {
                inputs.extend(after);
                inputs.push(gradient);
            }
        }
        let mut node = self.net.node(&format!("ResourceApply{op}"), &inputs);
        if nesterov {
            node = node.attr("use_nesterov", AttrValue::Bool(true));
        }
        node.name(&format!("{}/update", v.name)).build()
    }

    fn sparse(&mut self, v: &Variable, values: Output, rows: Output) -> Result<NodeId> {
        if let Rule::GradientDescent = self.rule {
            let step = self.net.apply("Mul", &[values, self.rate])?;
            let inputs = [v.handle, rows, step];
            let node = self.net.node("ResourceScatterSub", &inputs);
            return node.name(&format!("{}/update", v.name)).build();
        }
        if let Rule::Adam {
            beta1,
            beta2,
            epsilon,
        } = self.rule
        {
            return self.sparse_adam(v, values, rows, [beta1, beta2, epsilon]);
        }
        if let Rule::AdaMax { .. } = self.rule {
            return Err(invalid_argument!(
                "variable '{}' has a sparse gradient, for which AdaMax has no rule",
                v.name
            ));
        }
        let (op, slots, before, after, nesterov) = self.plan(v)?;
        let mut inputs = vec![v.handle];
        inputs.extend(slots);
        inputs.extend(before);
        match self.rule {
            Rule::Ftrl { .. } | Rule::Momentum { .. } => {
                inputs.extend([values, rows]);
                inputs.extend(after);
            }
            _ => {
                inputs.extend(after);
                inputs.extend([values, rows]);
            }
        }
        let mut node = self.net.node(&format!("ResourceSparseApply{op}"), &inputs);
        if nesterov {
            node = node.attr("use_nesterov", AttrValue::Bool(true));
        }
        node.name(&format!("{}/update", v.name)).build()
    }

    /// Adam over some rows, as TensorFlow composes it: the averages of all rows decay.
    fn sparse_adam(
        &mut self,
        v: &Variable,
        values: Output,
        rows: Output,
        [beta1, beta2, epsilon]: [f32; 3],
    ) -> Result<NodeId> {
        let (m, s) = (self.slot(v, "Adam", 0.0)?, self.slot(v, "Adam_1", 0.0)?);
        let squares = self.net.apply("Square", &[values])?;
        let mut averages = Vec::new();
        for (slot, decay, update) in [(&m, beta1, values), (&s, beta2, squares)] {
            let (keep, add) = (self.net.scalar(decay)?, self.net.scalar(1.0 - decay)?);
            let kept = self.net.apply("Mul", &[slot.value, keep])?;
            let set = self
                .net
                .node("AssignVariableOp", &[slot.handle, kept])
                .build()?;
            let added = self.net.apply("Mul", &[update, add])?;
            let scatter = self
                .net
                .node("ResourceScatterAdd", &[slot.handle, rows, added]);
            let scatter = scatter.control(set).build()?;
            let read = self
                .net
                .op("ReadVariableOp")
                .input(slot.handle)
                .control(scatter);
            averages.push(read.attr("dtype", AttrValue::Type(DType::Float)).output()?);
        }
        let one = self.net.scalar(1.0)?;
        let mut rate = self.rate;
        if let [(p1, _), (p2, _)] = &self.powers[..] {
            let (p1, p2) = (p1.value, p2.value);
            let (r1, r2) = (
                self.net.apply("Sub", &[one, p1])?,
                self.net.apply("Sub", &[one, p2])?,
            );
            let root = self.net.apply("Sqrt", &[r2])?;
            let scaled = self.net.apply("Mul", &[rate, root])?;
            rate = self.net.apply("RealDiv", &[scaled, r1])?;
        }
        let epsilon = self.net.scalar(epsilon)?;
        let root = self.net.apply("Sqrt", &[averages[1]])?;
        let below = self.net.apply("AddV2", &[root, epsilon])?;
        let above = self.net.apply("Mul", &[averages[0], rate])?;
        let step = self.net.apply("RealDiv", &[above, below])?;
        let node = self.net.node("AssignSubVariableOp", &[v.handle, step]);
        node.name(&format!("{}/update", v.name)).build()
    }

    /// Op without prefix; slots; numbers before and after the place of a Momentum's gradient; whether it looks ahead.
    #[allow(
        clippy::type_complexity,
        reason = "taken apart at once by its two callers"
    )]
    fn plan(
        &mut self,
        v: &Variable,
    ) -> Result<(&'static str, Vec<Output>, Vec<Output>, Vec<Output>, bool)> {
        let rate = self.rate;
        let numbers = |net: &mut Network, values: &[f32]| -> Result<Vec<Output>> {
            values.iter().map(|x| net.scalar(*x)).collect()
        };
        let (op, slots, before, after, nesterov): (_, &[(&str, f32)], _, _, _) = match self.rule {
            Rule::GradientDescent => ("GradientDescent", &[], vec![], vec![rate], false),
            Rule::Momentum { momentum, nesterov } => {
                let after = numbers(self.net, &[momentum])?;
                (
                    "Momentum",
                    &[("Momentum", 0.0)],
                    vec![rate],
                    after,
                    nesterov,
                )
            }
            Rule::Adagrad { initial } => (
                "Adagrad",
                &[("Adagrad", initial)],
                vec![rate],
                vec![],
                false,
            ),
            Rule::Adadelta { rho, epsilon } => {
                let after = numbers(self.net, &[rho, epsilon])?;
                (
                    "Adadelta",
                    &[("Adadelta", 0.0), ("Adadelta_1", 0.0)],
                    vec![rate],
                    after,
                    false,
                )
            }
            Rule::RmsProp {
                rho,
                momentum,
                epsilon,
                centered,
            } => {
                let after = numbers(self.net, &[rho, momentum, epsilon])?;
                if centered {
                    let slots = &[("RMSProp_2", 0.0), ("RMSProp", 1.0), ("RMSProp_1", 0.0)];
                    ("CenteredRMSProp", slots, vec![rate], after, false)
                } else {
                    (
                        "RMSProp",
                        &[("RMSProp", 1.0), ("RMSProp_1", 0.0)],
                        vec![rate],
                        after,
                        false,
                    )
                }
            }
            Rule::Adam {
                beta1,
                beta2,
                epsilon,
            } => {
                let mut before: Vec<Output> = self.powers.iter().map(|(p, _)| p.value).collect();
                before.push(rate);
                let after = numbers(self.net, &[beta1, beta2, epsilon])?;
                (
                    "Adam",
                    &[("Adam", 0.0), ("Adam_1", 0.0)],
                    before,
                    after,
                    false,
                )
            }
            Rule::AdaMax {
                beta1,
                beta2,
                epsilon,
            } => {
                let mut before: Vec<Output> = self.powers.iter().map(|(p, _)| p.value).collect();
                before.push(rate);
                let after = numbers(self.net, &[beta1, beta2, epsilon])?;
                (
                    "AdaMax",
                    &[("AdaMax", 0.0), ("AdaMax_1", 0.0)],
                    before,
                    after,
                    false,
                )
            }
            Rule::Ftrl {
                initial,
                l1,
                l2,
                power,
            } => {
                let mut after = vec![rate];
                after.extend(numbers(self.net, &[l1, l2, power])?);
                (
                    "Ftrl",
                    &[("Ftrl", initial), ("Ftrl_1", 0.0)],
                    vec![],
                    after,
                    false,
                )
            }
        };
        let mut handles = Vec::new();
        for (name, value) in slots {
            handles.push(self.slot(v, name, *value)?.handle);
        }
        Ok((op, handles, before, after, nesterov))
    }

    /// After all variables the powers of the decays go on.
    fn finish(self, done: &mut Vec<NodeId>) -> Result<()> {
        let Update { net, powers, .. } = self;
        let variables = done.clone();
        for (power, decay) in powers {
            let next = net.apply("Mul", &[power.value, decay])?;
            let mut node = net.node("AssignVariableOp", &[power.handle, next]);
            for before in &variables {
                node = node.control(*before);
            }
            done.push(node.build()?);
        }
        Ok(())
    }
}
