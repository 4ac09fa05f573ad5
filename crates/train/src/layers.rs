//! Layers, losses and metrics.

use super::{Network, Variable};
use ferroflow_base::{Result, invalid_argument};
use ferroflow_graph::{GraphBuilder, Output};
use ferroflow_opdef::AttrValue;
use ferroflow_tensor::{DType, PartialShape, Shape, Tensor};

/// The activation function of a layer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Activation {
    /// `max(x, 0)`
    Relu,
    /// `tanh(x)`
    Tanh,
    /// `1 / (1 + exp(-x))`
    Sigmoid,
}

impl Activation {
    fn op(self) -> &'static str {
        match self {
            Activation::Relu => "Relu",
            Activation::Tanh => "Tanh",
            Activation::Sigmoid => "Sigmoid",
        }
    }
}

/// A convolution of images in NHWC.
#[derive(Clone, Copy, Debug)]
pub struct Conv {
    /// Channels of the output.
    pub filters: usize,
    /// Side of the square filter.
    pub size: usize,
    /// Distance between outputs.
    pub stride: usize,
    /// Whether the borders are padded so that stride 1 keeps the size.
    pub same: bool,
}

impl Network {
    /// Returns the size of dimension `i` of `value`, which must be known.
    pub(super) fn dim(&mut self, value: Output, i: usize) -> Result<usize> {
        known(&self.shape(value)?, i)
    }

    /// Adds a weight with Glorot's uniform initialization (Glorot & Bengio 2010).
    pub(super) fn weight(
        &mut self,
        name: &str,
        dims: &[usize],
        fans: [f32; 2],
    ) -> Result<Variable> {
        if dims.contains(&0) {
            return Err(invalid_argument!(
                "'{name}' would be empty: its shape is {}",
                Shape::from(dims)
            ));
        }
        let limit = (6.0 / (fans[0] + fans[1])).sqrt();
        let shape = Shape::from(dims);
        let initial = self.uniform(&shape, limit)?;
        self.add_variable(name, initial, shape, true)
    }

    fn with_bias(
        &mut self,
        name: &str,
        product: Output,
        n: usize,
        activation: Option<Activation>,
    ) -> Result<Output> {
        let zeros = Tensor::zeros(DType::Float, Shape::from([n]))?;
        let zeros = self
            .builder
            .constant(&format!("{name}/bias/Initial"), zeros)?;
        let bias = self.add_variable(&format!("{name}/bias"), zeros, Shape::from([n]), true)?;
        let sum = self.apply("BiasAdd", &[product, bias.value])?;
        match activation {
            None => Ok(sum),
            Some(activation) => self.apply(activation.op(), &[sum]),
        }
    }

    /// Adds `activation(x · kernel + bias)` for rows `x`.
    ///
    /// # Errors
    /// INVALID_ARGUMENT if `x` is not a matrix with a known number of columns; ALREADY_EXISTS if
    /// the name is taken.
    pub fn dense(
        &mut self,
        name: &str,
        x: Output,
        units: usize,
        activation: Option<Activation>,
    ) -> Result<Output> {
        let shape = self.shape(x)?;
        if shape.rank().is_some_and(|r| r != 2) {
            return Err(invalid_argument!(
                "dense layer '{name}' takes rows, a matrix, but its input has shape {shape}: flatten it"
            ));
        }
        let n = known(&shape, 1)?;
        let fans = [n as f32, units as f32];
        let kernel = self.weight(&format!("{name}/kernel"), &[n, units], fans)?;
        let product = self.apply("MatMul", &[x, kernel.value])?;
        self.with_bias(name, product, units, activation)
    }

    /// Adds a convolution with bias.
    ///
    /// # Errors
    /// INVALID_ARGUMENT if the number of channels of `x` is unknown; ALREADY_EXISTS if the name is
    /// taken.
    pub fn conv2d(
        &mut self,
        name: &str,
        x: Output,
        conv: Conv,
        activation: Option<Activation>,
    ) -> Result<Output> {
        let n = self.dim(x, 3)?;
        let Conv { filters, size, .. } = conv;
        let dims = [size, size, n, filters];
        let fans = [n, filters].map(|n| size as f32 * size as f32 * n as f32);
        let kernel = self.weight(&format!("{name}/kernel"), &dims, fans)?;
        let product = self
            .op("Conv2D")
            .input(x)
            .input(kernel.value)
            .attr("strides", window(conv.stride))
            .attr("padding", padding(conv.same))
            .output()?;
        self.with_bias(name, product, filters, activation)
    }

    /// Adds max pooling with adjacent windows of `size`.
    ///
    /// # Errors
    /// INVALID_ARGUMENT if `size` is 0.
    pub fn max_pool(&mut self, x: Output, size: usize) -> Result<Output> {
        if size == 0 {
            return Err(invalid_argument!("the size of a window must be positive"));
        }
        self.op("MaxPool")
            .input(x)
            .attr("ksize", window(size))
            .attr("strides", window(size))
            .attr("padding", padding(true))
            .output()
    }

    /// Flattens all dimensions but the first.
    ///
    /// # Errors
    /// INVALID_ARGUMENT if an inner dimension of `x` is unknown.
    pub fn flatten(&mut self, x: Output) -> Result<Output> {
        let shape = self.shape(x)?;
        let inner = shape.dims().and_then(|d| d.get(1..));
        let size: Option<usize> = inner.and_then(|d| d.iter().copied().product());
        let size = size.ok_or_else(|| {
            invalid_argument!("flatten must know the inner dimensions of its input, {shape}")
        })?;
        let dims = self.ints(&[-1, size as i32])?;
        self.apply("Reshape", &[x, dims])
    }

    /// Adds an embedding table and returns its rows `ids`; its gradient is sparse.
    ///
    /// # Errors
    /// INVALID_ARGUMENT if the table is too large; ALREADY_EXISTS if the name is taken.
    pub fn embedding(&mut self, name: &str, ids: Output, n: usize, width: usize) -> Result<Output> {
        let shape = Shape::from([n, width]);
        let initial = self.uniform(&shape, 0.05)?;
        let table = self.add_variable(name, initial, shape, true)?;
        let axis = self.builder.constant("Const", Tensor::scalar(0i32))?;
        self.apply("GatherV2", &[table.value, ids, axis])
    }

    /// Sets a random fraction `rate` of `x` to zero in training steps and scales up the rest;
    /// otherwise returns `x` (Srivastava et al. 2014).
    ///
    /// # Errors
    /// INVALID_ARGUMENT if `rate` is not in [0, 1).
    pub fn dropout(&mut self, x: Output, rate: f32) -> Result<Output> {
        if !(0.0..1.0).contains(&rate) {
            return Err(invalid_argument!(
                "`rate` must be a scalar tensor or a float in the range [0, 1). Received: rate={rate}"
            ));
        }
        let training = self.training()?;
        let [seed, seed2] = self.next_seed();
        let dropped = |b: &mut GraphBuilder<'static>| {
            let scale = b.constant("scale", Tensor::scalar(1.0 / (1.0 - rate)))?;
            let scaled = b.op("Mul").input(x).input(scale).output()?;
            let shape = b.op("Shape").input(x).output()?;
            let random = b
                .op("RandomUniform")
                .input(shape)
                .attr("dtype", AttrValue::Type(DType::Float))
                .attr("seed", AttrValue::Int(seed))
                .attr("seed2", AttrValue::Int(seed2))
                .output()?;
            let rate = b.constant("rate", Tensor::scalar(rate))?;
            let keep = b.op("GreaterEqual").input(random).input(rate).output()?;
            let zero = b.constant("zero", Tensor::scalar(0f32))?;
            let kept = b.op("SelectV2").input(keep).input(scaled).input(zero);
            Ok(vec![kept.output()?])
        };
        let dropped = self
            .builder
            .cond("dropout", training, dropped, |_| Ok(vec![x]))?;
        let dropped = dropped.first().copied();
        dropped.ok_or_else(|| invalid_argument!("the conditional has no results"))
    }

    fn mean(&mut self, x: Output) -> Result<Output> {
        let rank = self.shape(x)?.rank();
        let rank = rank.ok_or_else(|| invalid_argument!("the mean of a value of unknown rank"))?;
        let axes: Vec<i32> = (0..rank as i32).collect();
        let axes = self.ints(&axes)?;
        self.apply("Mean", &[x, axes])
    }

    /// Returns the mean cross entropy of softmax(`logits`) with the classes `labels` (int32 or
    /// int64).
    ///
    /// # Errors
    /// INVALID_ARGUMENT if the shapes do not fit.
    pub fn softmax_cross_entropy(&mut self, logits: Output, labels: Output) -> Result<Output> {
        let losses = self.apply("SparseSoftmaxCrossEntropyWithLogits", &[logits, labels])?;
        self.mean(losses)
    }

    /// Returns the mean cross entropy of sigmoid(`logits`) with `targets`, which are broadcast.
    ///
    /// # Errors
    /// INVALID_ARGUMENT if the shapes do not fit.
    pub fn sigmoid_cross_entropy(&mut self, logits: Output, targets: Output) -> Result<Output> {
        // max(x, 0) - x * z + log(1 + exp(-|x|)), whose gradient at 0 is that of x >= 0.
        let zero = self.scalar(0.0)?;
        let minus = self.apply("Neg", &[logits])?;
        let is_above = self.apply("GreaterEqual", &[logits, zero])?;
        let above = self.apply("SelectV2", &[is_above, logits, zero])?;
        let product = self.apply("Mul", &[logits, targets])?;
        let rest = self.apply("Sub", &[above, product])?;
        let size = self.apply("SelectV2", &[is_above, minus, logits])?;
        let small = self.apply("Exp", &[size])?;
        let log = self.apply("Log1p", &[small])?;
        let losses = self.apply("AddV2", &[rest, log])?;
        self.mean(losses)
    }

    /// Returns the mean squared difference of two values of the same shape.
    ///
    /// # Errors
    /// INVALID_ARGUMENT if the shapes differ.
    pub fn mean_squared_error(&mut self, guess: Output, target: Output) -> Result<Output> {
        let (of_guess, of_target) = (self.shape(guess)?, self.shape(target)?);
        if !of_guess.is_compatible_with(&of_target) {
            return Err(invalid_argument!(
                "Shapes {of_guess} and {of_target} are incompatible: a guess and its target have the same"
            ));
        }
        let squares = self.apply("SquaredDifference", &[guess, target])?;
        self.mean(squares)
    }

    /// Returns the fraction of rows whose largest logit is at the label.
    ///
    /// # Errors
    /// INVALID_ARGUMENT if the shapes do not fit.
    pub fn accuracy(&mut self, logits: Output, labels: Output) -> Result<Output> {
        let axis = self.builder.constant("Const", Tensor::scalar(1i32))?;
        let dtype = self.builder.dtype(labels)?;
        let best = self
            .op("ArgMax")
            .input(logits)
            .input(axis)
            .attr("output_type", AttrValue::Type(dtype))
            .output()?;
        let right = self.apply("Equal", &[best, labels])?;
        let right = self
            .op("Cast")
            .input(right)
            .attr("DstT", AttrValue::Type(DType::Float))
            .output()?;
        self.mean(right)
    }
}

/// Returns dimension `i` of a layer's input, which must be known.
fn known(shape: &PartialShape, i: usize) -> Result<usize> {
    let known = shape.dims().and_then(|d| d.get(i).copied().flatten());
    known.ok_or_else(|| {
        invalid_argument!("the layer must know dimension {i} of its input, which is {shape}")
    })
}

fn window(size: usize) -> AttrValue {
    let dims = [1, size as i64, size as i64, 1];
    AttrValue::List(dims.into_iter().map(AttrValue::Int).collect())
}

fn padding(same: bool) -> AttrValue {
    AttrValue::str(if same { "SAME" } else { "VALID" })
}
