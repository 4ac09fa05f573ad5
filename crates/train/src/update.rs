//! The ops of update rules: their names, slots and order of inputs.

use super::optimizer::Rule;
use super::{Network, Variable};
use ferroflow_base::{Result, invalid_argument};
use ferroflow_graph::{Gradient, IndexedSlices, NodeId, Output};
use ferroflow_opdef::AttrValue;
use ferroflow_tensor::{DType, Tensor};

/// The inputs of a rule's op: `variable, slots…, before…, gradient, after…`.
struct OpInputs {
    /// Its name after `ResourceApply` and `ResourceSparseApply`.
    op: &'static str,
    /// The slot variables of each variable, with their initial values.
    slots: Vec<(&'static str, f32)>,
    before: Vec<Output>,
    after: Vec<Output>,
    nesterov: bool,
}

/// Builds the updates of one optimizer.
pub(super) struct UpdateBuilder<'n> {
    net: &'n mut Network,
    rule: Rule,
    rate: Output,
    /// The device of what updates share.
    home: &'n str,
    /// Variables with the powers of Adam's decays.
    powers: Vec<(Variable, Output)>,
    /// The slot variables so far.
    slots: Vec<Variable>,
}

impl<'n> UpdateBuilder<'n> {
    /// Builds updates with this rule; what they share is on `home`.
    pub(super) fn new(
        net: &'n mut Network,
        rule: Rule,
        rate: Output,
        home: &'n str,
    ) -> Result<Self> {
        let decays: &[(&str, f32)] = match &rule {
            Rule::Adam { beta1, beta2, .. } => &[("beta1_power", *beta1), ("beta2_power", *beta2)],
            Rule::AdaMax { beta1, .. } => &[("beta1_power", *beta1)],
            _ => &[],
        };
        let mut powers = Vec::new();
        for (name, decay) in decays {
            powers.push(net.on(home, |net| {
                let variable = net.state(name, Tensor::scalar(*decay))?;
                Ok((variable, net.scalar(*decay)?))
            })?);
        }
        Ok(UpdateBuilder {
            net,
            rule,
            rate,
            home,
            powers,
            slots: Vec::new(),
        })
    }

    /// Returns a slot variable of `of`, which is added on first use.
    fn slot(&mut self, of: &Variable, name: &str, value: f32) -> Result<Variable> {
        let key = format!("{}/{name}", of.name);
        if let Some(slot) = self.slots.iter().find(|slot| slot.name == key) {
            return Ok(slot.clone());
        }
        let filled = vec![value; of.shape.num_elements()];
        let initial = Tensor::from_slice(of.shape.clone(), &filled)?;
        let slot = self.net.state(&key, initial)?;
        self.slots.push(slot.clone());
        Ok(slot)
    }

    /// Adds the op that updates `variable`, on its device.
    pub(super) fn variable(&mut self, variable: &Variable, gradient: &Gradient) -> Result<NodeId> {
        let outer = self.net.builder.set_device(&variable.device);
        let added = self.update(variable, gradient);
        self.net.builder.set_device(&outer);
        added
    }

    fn update(&mut self, variable: &Variable, gradient: &Gradient) -> Result<NodeId> {
        if variable.dtype != DType::Float {
            return Err(invalid_argument!(
                "variable '{}' is {}: the optimizers train float variables",
                variable.name,
                variable.dtype
            ));
        }
        let slices = match gradient {
            Gradient::Dense(gradient) => return self.apply("Resource", variable, &[*gradient]),
            Gradient::Slices(slices) => slices,
        };
        let [values, rows] = self.summed(slices)?;
        match self.rule {
            Rule::GradientDescent => {
                let step = self.net.apply("Mul", &[values, self.rate])?;
                let inputs = [variable.handle, rows, step];
                let node = self.net.node("ResourceScatterSub", &inputs);
                let node = node.control(variable.value.node);
                node.name(&format!("{}/update", variable.name)).build()
            }
            Rule::Adam {
                beta1,
                beta2,
                epsilon,
            } => self.sparse_adam(variable, values, rows, [beta1, beta2, epsilon]),
            Rule::AdaMax {
                beta1,
                beta2,
                epsilon,
            } => self.sparse_adamax(variable, values, rows, [beta1, beta2, epsilon]),
            _ => self.apply("ResourceSparse", variable, &[values, rows]),
        }
    }

    /// Adds up slices of the same row, so that each row is updated once.
    fn summed(&mut self, slices: &IndexedSlices) -> Result<[Output; 2]> {
        let unique = self.net.op("Unique").input(slices.indices).outputs()?;
        let [rows, place] = unique[..] else {
            return Err(invalid_argument!("Unique has two outputs"));
        };
        let n = self.net.apply("Size", &[rows])?;
        let values = self
            .net
            .apply("UnsortedSegmentSum", &[slices.values, place, n])?;
        Ok([values, rows])
    }

    /// Adds the rule's op with the inputs `gradient`.
    fn apply(&mut self, family: &str, v: &Variable, gradient: &[Output]) -> Result<NodeId> {
        let form = self.form()?;
        let mut inputs = vec![v.handle];
        for (name, value) in form.slots {
            inputs.push(self.slot(v, name, value)?.handle);
        }
        inputs.extend(form.before);
        inputs.extend(gradient);
        inputs.extend(form.after);
        let mut node = self.net.node(&format!("{family}Apply{}", form.op), &inputs);
        if form.nesterov {
            node = node.attr("use_nesterov", AttrValue::Bool(true));
        }
        // A step reads the value before its update.
        node.control(v.value.node)
            .name(&format!("{}/update", v.name))
            .build()
    }

    fn numbers(&mut self, values: &[f32]) -> Result<Vec<Output>> {
        values.iter().map(|x| self.net.scalar(*x)).collect()
    }

    fn form(&mut self) -> Result<OpInputs> {
        // Most take the decay powers, the rate and the parameters, then the gradient.
        let mut numbers: Vec<f32> = Vec::new();
        let mut after: Vec<f32> = Vec::new();
        let mut is_nesterov = false;
        let (op, slots) = match self.rule {
            Rule::GradientDescent => ("GradientDescent", vec![]),
            Rule::Momentum { momentum, nesterov } => {
                is_nesterov = nesterov;
                after = vec![momentum];
                ("Momentum", vec![("Momentum", 0.0)])
            }
            Rule::Adagrad { initial } => ("Adagrad", vec![("Adagrad", initial)]),
            Rule::AdagradV2 { initial, epsilon } => {
                numbers = vec![epsilon];
                ("AdagradV2", vec![("Adagrad", initial)])
            }
            Rule::Adadelta { rho, epsilon } => {
                numbers = vec![rho, epsilon];
                ("Adadelta", vec![("Adadelta", 0.0), ("Adadelta_1", 0.0)])
            }
            Rule::RmsProp {
                rho,
                momentum,
                epsilon,
                centered,
            } => {
                numbers = vec![rho, momentum, epsilon];
                let mut slots = vec![("RMSProp", 1.0), ("RMSProp_1", 0.0)];
                if centered {
                    slots.insert(0, ("RMSProp_2", 0.0));
                }
                (["RMSProp", "CenteredRMSProp"][usize::from(centered)], slots)
            }
            Rule::Adam {
                beta1,
                beta2,
                epsilon,
            } => {
                numbers = vec![beta1, beta2, epsilon];
                ("Adam", vec![("Adam", 0.0), ("Adam_1", 0.0)])
            }
            Rule::AdaMax {
                beta1,
                beta2,
                epsilon,
            } => {
                numbers = vec![beta1, beta2, epsilon];
                ("AdaMax", vec![("AdaMax", 0.0), ("AdaMax_1", 0.0)])
            }
            Rule::Ftrl {
                initial,
                l1,
                l2,
                l2_shrinkage,
                power,
            } => {
                let slots = vec![("Ftrl", initial), ("Ftrl_1", 0.0)];
                if l2_shrinkage > 0.0 {
                    after = vec![l1, l2, l2_shrinkage, power];
                    ("FtrlV2", slots)
                } else {
                    after = vec![l1, l2, power];
                    ("Ftrl", slots)
                }
            }
        };
        let powers = self.powers.iter().map(|(power, _)| power.value);
        let mut before: Vec<Output> = powers.chain([self.rate]).collect();
        before.extend(self.numbers(&numbers)?);
        let mut after = self.numbers(&after)?;
        if let Rule::Ftrl { .. } = self.rule {
            // The only one whose rate comes after its gradient.
            after.splice(0..0, before.drain(..));
        }
        Ok(OpInputs {
            op,
            slots,
            before,
            after,
            nesterov: is_nesterov,
        })
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
        let node = node.control(v.value.node);
        node.name(&format!("{}/update", v.name)).build()
    }

    /// AdaMax over some rows: only their averages change.
    fn sparse_adamax(
        &mut self,
        v: &Variable,
        values: Output,
        rows: Output,
        [beta1, beta2, epsilon]: [f32; 3],
    ) -> Result<NodeId> {
        let (m, s) = (self.slot(v, "AdaMax", 0.0)?, self.slot(v, "AdaMax_1", 0.0)?);
        let axis = self.net.builder.constant("Const", Tensor::scalar(0i32))?;
        let mut decayed = Vec::new();
        for (slot, decay) in [(&m, beta1), (&s, beta2)] {
            let of_rows = self.net.apply("GatherV2", &[slot.value, rows, axis])?;
            let decay = self.net.scalar(decay)?;
            decayed.push(self.net.apply("Mul", &[of_rows, decay])?);
        }
        let share = self.net.scalar(1.0 - beta1)?;
        let added = self.net.apply("Mul", &[values, share])?;
        let mean = self.net.apply("AddV2", &[decayed[0], added])?;
        let size = self.net.apply("Abs", &[values])?;
        let largest = self.net.apply("Maximum", &[decayed[1], size])?;
        let mut kept = Vec::new();
        for (slot, new) in [(&m, mean), (&s, largest)] {
            let node = self
                .net
                .node("ResourceScatterUpdate", &[slot.handle, rows, new]);
            kept.push(node.control(slot.value.node).build()?);
        }
        let mut rate = self.rate;
        if let [(power, _), ..] = &self.powers[..] {
            let (power, one) = (power.value, self.net.scalar(1.0)?);
            let below = self.net.apply("Sub", &[one, power])?;
            rate = self.net.apply("RealDiv", &[rate, below])?;
        }
        let epsilon = self.net.scalar(epsilon)?;
        let below = self.net.apply("AddV2", &[largest, epsilon])?;
        let ratio = self.net.apply("RealDiv", &[mean, below])?;
        let step = self.net.apply("Mul", &[rate, ratio])?;
        let node = self.net.node("ResourceScatterSub", &[v.handle, rows, step]);
        let node = kept.into_iter().fold(node, |n, k| n.control(k));
        let node = node.control(v.value.node);
        node.name(&format!("{}/update", v.name)).build()
    }

    /// Updates the decay powers after all variables.
    pub(super) fn finish(&mut self, done: &mut Vec<NodeId>) -> Result<()> {
        let outer = self.net.builder.set_device(self.home);
        let added = self.update_powers(done);
        self.net.builder.set_device(&outer);
        added
    }

    fn update_powers(&mut self, done: &mut Vec<NodeId>) -> Result<()> {
        let variables = done.clone();
        for (power, decay) in &self.powers {
            let next = self.net.apply("Mul", &[power.value, *decay])?;
            let mut node = self.net.node("AssignVariableOp", &[power.handle, next]);
            for before in &variables {
                node = node.control(*before);
            }
            done.push(node.build()?);
        }
        Ok(())
    }
}
