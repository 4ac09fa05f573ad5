//! [`Network`]: a graph being built, with its variables.

use super::optimizer::Optimizer;
use super::tasks::Tasks;
use ferroflow_base::{Result, already_exists, invalid_argument};
use ferroflow_graph::{GraphBuilder, NodeId, Output, infer_shapes, is_valid_name};
use ferroflow_opdef::AttrValue;
use ferroflow_runtime::registry;
use ferroflow_tensor::{DType, PartialShape, Shape, Tensor};
use std::path::{Path, PathBuf};

/// A variable of a network.
#[derive(Clone, Debug)]
pub struct Variable {
    /// Its name: that of its VarHandleOp, and its key in checkpoints.
    pub name: String,
    /// Element type.
    pub dtype: DType,
    /// Shape; it does not change.
    pub shape: Shape,
    /// Whether optimizers update it.
    pub trainable: bool,
    /// Its handle.
    pub handle: Output,
    /// Its value at the beginning of a step: updates wait until it is read.
    pub value: Output,
    /// The initial value.
    pub(crate) initial: Output,
    /// The op that assigns the initial value.
    pub(crate) initializer: NodeId,
    /// The device that has it, if [`Tasks`] have chosen one.
    pub(crate) device: String,
}

/// A step that trains.
#[derive(Clone, Debug)]
pub(super) struct TrainStep {
    /// The tensor to fetch for its loss.
    pub(super) loss: String,
    /// The node to run.
    pub(super) train: String,
}

/// A graph being built, with variables, layers and losses.
///
/// Initial values are drawn with seeds derived from the network's, so training is reproducible.
pub struct Network {
    pub(super) builder: GraphBuilder<'static>,
    pub(super) variables: Vec<Variable>,
    pub(super) inputs: Vec<String>,
    /// The steps that train: one, or one of each worker.
    pub(super) steps: Vec<TrainStep>,
    /// The tasks that train, if they are several.
    pub(super) tasks: Option<Tasks>,
    pub(super) global_step: Option<Variable>,
    pub(super) metrics: Vec<(String, Output)>,
    /// Whether a step is a training step, once a layer needs it.
    pub(super) training: Option<Output>,
    pub(super) assets: Vec<(Output, PathBuf)>,
    /// The ops that initialize tables.
    pub(super) tables: Vec<NodeId>,
    seed: i64,
}

impl Network {
    /// Creates an empty network.
    pub fn new(seed: i64) -> Network {
        Network {
            builder: GraphBuilder::new(registry()),
            variables: Vec::new(),
            inputs: Vec::new(),
            steps: Vec::new(),
            tasks: None,
            global_step: None,
            metrics: Vec::new(),
            training: None,
            assets: Vec::new(),
            tables: Vec::new(),
            seed,
        }
    }

    /// Returns the graph's builder, for ops without a method here.
    pub fn builder(&mut self) -> &mut GraphBuilder<'static> {
        &mut self.builder
    }

    /// Returns all variables so far, including those of optimizers.
    pub fn variables(&self) -> &[Variable] {
        &self.variables
    }

    /// Adds a placeholder that batches of a dataset feed; the first dimension is the batch.
    ///
    /// # Errors
    /// INVALID_ARGUMENT if the name is not valid, ALREADY_EXISTS if it is taken.
    pub fn input(&mut self, name: &str, dtype: DType, dims: &[Option<usize>]) -> Result<Output> {
        self.claim(name)?;
        let shape = PartialShape::of(dims.iter().copied());
        let input = self.builder.placeholder(name, dtype, shape)?;
        self.inputs.push(name.to_string());
        Ok(input)
    }

    /// Checks a name for a new node. Training finds its own nodes by their names: `loss`,
    /// `learning_rate`, `train`, `training`, `init` and `save/…`.
    ///
    /// # Errors
    /// INVALID_ARGUMENT if the name is not valid, ALREADY_EXISTS if it is taken.
    pub(super) fn claim(&self, name: &str) -> Result<()> {
        // TensorFlow reserves names with a leading underscore.
        if !is_valid_name(name) || name.starts_with('_') {
            return Err(invalid_argument!(
                "'{name}' cannot be the name of a node: names start with a letter, a digit or '.', and \
                 continue with these and _ / \\ > -"
            ));
        }
        match self.builder.graph().find(name) {
            None => Ok(()),
            Some(_) => Err(already_exists!("a node '{name}' already exists")),
        }
    }

    /// Names a value so that it can be fetched.
    ///
    /// # Errors
    /// INVALID_ARGUMENT if the name is not valid, ALREADY_EXISTS if it is taken.
    pub fn name(&mut self, name: &str, value: Output) -> Result<Output> {
        self.claim(name)?;
        self.op("Identity").name(name).input(value).output()
    }

    /// Starts a node of any op.
    pub fn op<'b>(&'b mut self, op: &str) -> ferroflow_graph::OpBuilder<'b, 'static> {
        self.builder.op(op)
    }

    /// Adds a node whose attrs follow from its inputs.
    pub(super) fn apply(&mut self, op: &str, inputs: &[Output]) -> Result<Output> {
        self.node(op, inputs).output()
    }

    /// Starts a node with each input a separate argument.
    pub(super) fn node<'b>(
        &'b mut self,
        op: &str,
        inputs: &[Output],
    ) -> ferroflow_graph::OpBuilder<'b, 'static> {
        inputs.iter().fold(self.op(op), |o, i| o.input(*i))
    }

    pub(super) fn scalar(&mut self, value: f32) -> Result<Output> {
        self.builder.constant("Const", Tensor::scalar(value))
    }

    pub(super) fn ints(&mut self, values: &[i32]) -> Result<Output> {
        self.builder.constant("Const", Tensor::vector(values)?)
    }

    /// Returns what is known of a value's shape.
    pub(super) fn shape(&self, value: Output) -> Result<PartialShape> {
        // Checks that the value belongs to this graph.
        self.builder.dtype(value)?;
        let shapes = infer_shapes(self.builder.graph(), registry())?;
        Ok(shapes.get(value))
    }

    /// Adds a variable with the initial value `initial`, which must have its shape.
    ///
    /// # Errors
    /// INVALID_ARGUMENT if the name is not valid or the shapes differ; ALREADY_EXISTS if the name
    /// is taken.
    pub fn variable(&mut self, name: &str, initial: Output, shape: Shape) -> Result<Variable> {
        let begins = self.shape(initial)?;
        if !begins.is_compatible_with(&PartialShape::from(&shape)) {
            return Err(invalid_argument!(
                "variable '{name}' of shape {shape} cannot have an initial value of shape {begins}"
            ));
        }
        self.add_variable(name, initial, shape, true)
    }

    /// Adds a variable that optimizers do not update.
    ///
    /// # Errors
    /// INVALID_ARGUMENT if the name is not valid, ALREADY_EXISTS if it is taken.
    pub fn state(&mut self, name: &str, initial: Tensor) -> Result<Variable> {
        let shape = initial.shape().clone();
        let value = self.builder.constant(&format!("{name}/Initial"), initial)?;
        self.add_variable(name, value, shape, false)
    }

    /// Adds a variable whose initial value is known to fit.
    pub(super) fn add_variable(
        &mut self,
        name: &str,
        initial: Output,
        shape: Shape,
        trainable: bool,
    ) -> Result<Variable> {
        if self.variables.iter().any(|v| v.name == name) {
            return Err(already_exists!("a variable '{name}' already exists"));
        }
        self.claim(name)?;
        let dtype = self.builder.dtype(initial)?;
        let handle = self
            .op("VarHandleOp")
            .name(name)
            .attr("dtype", AttrValue::Type(dtype))
            .attr("shape", AttrValue::Shape(PartialShape::from(&shape)))
            .attr("shared_name", AttrValue::str(name))
            .output()?;
        let initializer = self
            .op("AssignVariableOp")
            .name(&format!("{name}/Assign"))
            .input(handle)
            .input(initial)
            .build()?;
        let value = self
            .op("ReadVariableOp")
            .name(&format!("{name}/Read/ReadVariableOp"))
            .input(handle)
            .attr("dtype", AttrValue::Type(dtype))
            .output()?;
        let variable = Variable {
            name: name.to_string(),
            dtype,
            shape,
            trainable,
            handle,
            value,
            initial,
            initializer,
            device: String::new(),
        };
        self.variables.push(variable.clone());
        Ok(variable)
    }

    /// Returns the seed of the next random op.
    pub(super) fn next_seed(&mut self) -> [i64; 2] {
        self.seed = self
            .seed
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        [(self.seed >> 33) | 1, self.seed & 0x7fff_ffff]
    }

    /// Draws uniform numbers from `-limit` to `limit`, the same in every session.
    ///
    /// # Errors
    /// INVALID_ARGUMENT if the shape is too large.
    pub fn uniform(&mut self, shape: &Shape, limit: f32) -> Result<Output> {
        let dims = shape.dims().iter().map(|d| i32::try_from(*d).ok());
        let dims: Option<Vec<i32>> = dims.collect();
        let dims = dims.ok_or_else(|| {
            invalid_argument!("a variable of shape {shape} is too large to be drawn at random")
        })?;
        let dims = self.ints(&dims)?;
        let [seed, seed2] = self.next_seed();
        let unit = self
            .op("RandomUniform")
            .input(dims)
            .attr("dtype", AttrValue::Type(DType::Float))
            .attr("seed", AttrValue::Int(seed))
            .attr("seed2", AttrValue::Int(seed2))
            .output()?;
        let (width, low) = (self.scalar(2.0 * limit)?, self.scalar(-limit)?);
        let scaled = self.apply("Mul", &[unit, width])?;
        self.apply("AddV2", &[scaled, low])
    }

    /// Adds a metric that [`Trainer`](super::Trainer) reports after each epoch: a float32 scalar,
    /// averaged over batches.
    ///
    /// # Errors
    /// INVALID_ARGUMENT if the value is not a float scalar or the name is not valid; ALREADY_EXISTS
    /// if the name is taken.
    pub fn metric(&mut self, name: &str, value: Output) -> Result<()> {
        let (dtype, shape) = (self.builder.dtype(value)?, self.shape(value)?);
        if dtype != DType::Float || shape.rank().is_some_and(|r| r != 0) {
            return Err(invalid_argument!(
                "metric '{name}' must be a float scalar, but '{}' is {dtype} of shape {shape}: take its mean or \
                 its sum, and cast it",
                self.builder.graph().output_name(value)
            ));
        }
        let value = self.name(&format!("metrics/{name}"), value)?;
        self.metrics.push((name.to_string(), value));
        Ok(())
    }

    /// Returns whether a step is a training step: a bool scalar that is false unless it is fed.
    ///
    /// # Errors
    /// ALREADY_EXISTS if a node `training` exists.
    pub fn training(&mut self) -> Result<Output> {
        if let Some(training) = self.training {
            return Ok(training);
        }
        self.claim("training")?;
        let default = self
            .builder
            .constant("training/input", Tensor::scalar(false))?;
        let training = self
            .op("PlaceholderWithDefault")
            .name("training")
            .input(default)
            .attr("shape", AttrValue::Shape(PartialShape::scalar()))
            .output()?;
        self.training = Some(training);
        Ok(training)
    }

    /// Returns the path of a file that the graph reads, a string scalar. A SavedModel gets a copy
    /// of the file.
    ///
    /// # Errors
    /// Those of adding a constant, which do not occur here.
    pub fn asset(&mut self, path: &Path) -> Result<Output> {
        let text = Tensor::string(path.display().to_string().into_bytes());
        let asset = self.builder.constant("asset_path", text)?;
        self.assets.push((asset, path.to_path_buf()));
        Ok(asset)
    }

    /// Runs `node`, which initializes a lookup table, before the first step and whenever a
    /// SavedModel of the network is opened.
    pub fn table_initializer(&mut self, node: NodeId) {
        self.tables.push(node);
    }

    /// Returns the variable that counts training steps, added on first use.
    ///
    /// # Errors
    /// ALREADY_EXISTS if another node has its name.
    pub fn global_step(&mut self) -> Result<Variable> {
        if let Some(step) = &self.global_step {
            return Ok(step.clone());
        }
        let step = self.state("global_step", Tensor::scalar(0i64))?;
        self.global_step = Some(step.clone());
        Ok(step)
    }

    /// Makes the nodes that `f` adds on `device`; an empty one is none in particular.
    pub(super) fn on<T>(
        &mut self,
        device: &str,
        f: impl FnOnce(&mut Self) -> Result<T>,
    ) -> Result<T> {
        let outer = self.builder.set_device(device);
        let result = f(self);
        self.builder.set_device(&outer);
        result
    }

    /// Adds the op that minimizes `loss`, a scalar, by updating all trainable variables that it
    /// depends on, and counts the step.
    ///
    /// # Errors
    /// INVALID_ARGUMENT if the loss is not a scalar, depends on no trainable variable, or on an op
    /// without gradient, which the error names.
    pub fn minimize(&mut self, loss: Output, optimizer: &Optimizer) -> Result<NodeId> {
        let added = self.add_steps(loss, optimizer, &Tasks::local())?;
        let train = added.first().copied();
        train.ok_or_else(|| invalid_argument!("training takes a worker"))
    }

    /// Like [`Network::minimize`], by several tasks of a cluster: the network's variables are spread over the
    /// tasks that have [parameters](Tasks::parameters), and the forward pass and its gradients are
    /// computed by each worker for its part of a batch. Every other node, such as a metric, is where
    /// the trainer is.
    ///
    /// The loss must be a mean over the examples of a batch, as those of this type are, to which
    /// terms that do not depend on examples may be added.
    ///
    /// # Errors
    /// As for [`Network::minimize`]; INVALID_ARGUMENT if the tasks have no worker or no parameters.
    pub fn minimize_over(
        &mut self,
        loss: Output,
        optimizer: &Optimizer,
        tasks: &Tasks,
    ) -> Result<()> {
        tasks.check()?;
        self.add_steps(loss, optimizer, tasks)?;
        self.tasks = Some(tasks.clone());
        Ok(())
    }

    /// Adds the steps that train; returns their nodes.
    fn add_steps(
        &mut self,
        loss: Output,
        optimizer: &Optimizer,
        tasks: &Tasks,
    ) -> Result<Vec<NodeId>> {
        if !self.steps.is_empty() {
            return Err(invalid_argument!("the network already minimizes a loss"));
        }
        let shapes = infer_shapes(self.builder.graph(), registry()).unwrap_or_default();
        let shape = shapes.get(loss);
        if shape.rank().is_some_and(|r| r != 0) {
            return Err(invalid_argument!(
                "the loss must be a scalar, but '{}' has shape {shape}: take its mean or its sum",
                self.builder.graph().output_name(loss)
            ));
        }
        ["loss", "learning_rate", "train"]
            .iter()
            .try_for_each(|name| self.claim(name))?;
        let updates = optimizer.minimize(self, loss, tasks)?;
        let home = tasks.home();
        let step = self.on(home, Network::global_step)?;
        let mut added = Vec::new();
        for (loss, updated) in updates {
            let one = Tensor::scalar(1i64);
            let one = self.on(home, |net| net.builder.constant("Const", one))?;
            let mut count = self.op("AssignAddVariableOp").input(step.handle).input(one);
            for node in updated {
                count = count.control(node);
            }
            let train = count.name("train").build()?;
            let loss = self.op("Identity").name("loss").input(loss).output()?;
            let graph = self.builder.graph();
            self.steps.push(TrainStep {
                loss: format!("{}:0", graph.node(loss.node).name),
                train: graph.node(train).name.clone(),
            });
            added.push(train);
        }
        Ok(added)
    }
}
