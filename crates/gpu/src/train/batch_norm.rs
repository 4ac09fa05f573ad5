//! Batch normalization with given statistics or those of the batch, and its gradient.

use crate::elementwise::{self, grid};
use crate::kernel::{FLOATS, GpuCtx, GpuKernel, Row, int, suffix};
use crate::ptx::Step;
use crate::reduce::parts;
use ferroflow_base::{Result, invalid_argument};
use ferroflow_device::{Grid, TensorArg};
use ferroflow_opdef::{BinaryFn, KernelBuild, UnaryFn};
use ferroflow_tensor::{DType, Shape, Tensor};
use std::sync::OnceLock;

const FORMAT: &[(&str, &[&str])] = &[("data_format", &["NHWC"])];
/// The pass `fuse_norm` makes no others.
const FUSED: &[(&str, &[&str])] = &[("data_format", &["NHWC"]), ("activation_mode", &["Relu"])];
const T: &[(&str, &[DType])] = &[("T", &[DType::Float])];
/// The statistics are floats.
const T_U: &[(&str, &[DType])] = &[("T", FLOATS), ("U", &[DType::Float])];

pub(crate) const ROWS: &[Row] = &[
    Row::new("FusedBatchNorm", batch_norm)
        .types(T)
        .strings(FORMAT),
    Row::new("FusedBatchNormV2", batch_norm)
        .types(T_U)
        .strings(FORMAT),
    Row::new("FusedBatchNormV3", batch_norm)
        .types(T_U)
        .strings(FORMAT),
    Row::new("_FusedBatchNormEx", batch_norm)
        .types(T_U)
        .strings(FUSED),
    Row::new("_ReluBatchNormGrad", gradient).types(T_U),
    Row::new("FusedBatchNormGrad", gradient)
        .types(T)
        .strings(FORMAT),
    Row::new("FusedBatchNormGradV2", gradient)
        .types(T_U)
        .strings(FORMAT),
    Row::new("FusedBatchNormGradV3", gradient)
        .types(T_U)
        .strings(FORMAT),
];

/// Of x, scale, offset, mean, variance and epsilon: (x - mean) * (scale * rsqrt(variance + epsilon)) + offset.
const NORMALIZE: [Step; 6] = [
    Step::Binary(BinaryFn::Add, 4, 5),
    Step::Unary(UnaryFn::Rsqrt, 6),
    Step::Binary(BinaryFn::Mul, 1, 7),
    Step::Binary(BinaryFn::Sub, 0, 3),
    Step::Binary(BinaryFn::Mul, 9, 8),
    Step::Binary(BinaryFn::Add, 10, 2),
];

/// Of dy, x, mean and three terms: term 0 * dy + term 1 * (x - mean) + term 2.
const BACKWARD: [Step; 5] = [
    Step::Binary(BinaryFn::Sub, 1, 2),
    Step::Binary(BinaryFn::Mul, 6, 4),
    Step::Binary(BinaryFn::Mul, 0, 3),
    Step::Binary(BinaryFn::Add, 8, 7),
    Step::Binary(BinaryFn::Add, 9, 5),
];

fn batch_norm(build: &KernelBuild) -> Result<Box<dyn GpuKernel>> {
    let epsilon = build.attrs.float("epsilon")?;
    let trains = build.attrs.bool("is_training")?;
    let factor = build.attrs.float("exponential_avg_factor").unwrap_or(1.0);
    let has_reserve = matches!(&*build.def.name, "FusedBatchNormV3" | "_FusedBatchNormEx");
    let (is_fused, epsilon) = (build.def.name == "_FusedBatchNormEx", Epsilon::new(epsilon));
    Ok(Box::new(move |ctx: &mut GpuCtx| {
        let inputs = (0..5).map(|i| ctx.input(i));
        let mut inputs: Vec<Tensor> = inputs.collect::<Result<_>>()?;
        let shape = inputs[0].shape().clone();
        if shape.rank() != 4 {
            return Err(invalid_argument!("input must be 4 or 5-dimensional{shape}"));
        }
        let channels = shape[3];
        // The first step of a running mean has none yet.
        let n_params = if trains && factor == 1.0 { 3 } else { 5 };
        let wrong = |t: &&Tensor| t.shape().dims() != [channels];
        if let Some(wrong) = inputs[1..n_params].iter().find(wrong) {
            return Err(invalid_argument!(
                "scale, offset, mean and variance must have {channels} elements, not the shape {}",
                wrong.shape()
            ));
        }
        // Running mean and variance, then those that the gradient reads.
        let mut statistics = [3, 4, 3, 4].map(|i| inputs[i].clone());
        if shape.num_elements() == 0 {
            for t in &mut statistics[..2] {
                *t = ctx.alloc(t.dtype(), [channels])?;
                ctx.memory.fill(t, &f32::NAN.to_le_bytes())?;
            }
        } else if trains {
            statistics = of_batch(ctx, &inputs, factor)?;
            (inputs[3], inputs[4]) = (statistics[2].clone(), statistics[3].clone());
        }
        inputs.push(epsilon.on(ctx)?);
        let y = match is_fused {
            true => normalized_relu(ctx, inputs)?,
            false => {
                let y = ctx.alloc(inputs[0].dtype(), shape)?;
                elementwise::run(ctx, &NORMALIZE, &inputs, &y)?;
                y
            }
        };
        ctx.set_output(0, y)?;
        for (i, t) in statistics.into_iter().enumerate() {
            ctx.set_output(i + 1, t)?;
        }
        match has_reserve {
            true => ctx.set_output(5, Tensor::scalar(0.0f32)),
            false => Ok(()),
        }
    }))
}

/// A number that is copied to the device once.
struct Epsilon {
    value: f32,
    on_device: OnceLock<Tensor>,
}

impl Epsilon {
    fn new(value: f32) -> Epsilon {
        let on_device = OnceLock::new();
        Epsilon { value, on_device }
    }

    fn on(&self, ctx: &GpuCtx) -> Result<Tensor> {
        if let Some(epsilon) = self.on_device.get() {
            return Ok(epsilon.clone());
        }
        let epsilon = ctx.memory.upload(&Tensor::scalar(self.value))?;
        Ok(self.on_device.get_or_init(|| epsilon).clone())
    }
}

/// The Relu of what [`NORMALIZE`] computes of `operands`, plus the tensor in input 5, if there is one.
fn normalized_relu(ctx: &GpuCtx, mut operands: Vec<Tensor>) -> Result<Tensor> {
    let (dtype, shape) = (operands[0].dtype(), operands[0].shape().clone());
    let side = (ctx.num_inputs() > 5).then(|| ctx.input(5)).transpose()?;
    let y = ctx.alloc(dtype, shape.clone())?;
    let Some(side) = side else {
        let mut steps = NORMALIZE.to_vec();
        steps.push(Step::Unary(UnaryFn::Relu, 11));
        elementwise::run(ctx, &steps, &operands, &y)?;
        return Ok(y);
    };
    if *side.shape() != shape {
        elementwise::run(ctx, &NORMALIZE, &operands, &y)?;
        let steps = [
            Step::Binary(BinaryFn::Add, 0, 1),
            Step::Unary(UnaryFn::Relu, 2),
        ];
        return elementwise::apply(ctx, &steps, &[y, side]);
    }
    operands.push(side);
    let mut steps = behind(&NORMALIZE, 6, 7);
    steps.push(Step::Binary(BinaryFn::Add, 12, 6));
    steps.push(Step::Unary(UnaryFn::Relu, 13));
    elementwise::run(ctx, &steps, &operands, &y)?;
    Ok(y)
}

/// Steps of a program with `n` operands in one with `to`, of which the first `n` are the same.
fn behind(steps: &[Step], n: usize, to: usize) -> Vec<Step> {
    let moved = |o: usize| if o < n { o } else { o + to - n };
    let each = steps.iter().map(|step| match step {
        Step::Unary(f, a) => Step::Unary(*f, moved(*a)),
        Step::Binary(f, a, b) => Step::Binary(*f, moved(*a), moved(*b)),
        other => other.clone(),
    });
    each.collect()
}

/// How the sums of columns are distributed: blocks, and in how many parts each column is.
fn blocks_of(n: usize, channels: usize) -> (Grid, usize) {
    let columns = channels.div_ceil(32);
    let n_parts = parts(n, columns);
    let grid = Grid {
        blocks: [columns as u32, n_parts as u32, 1],
        threads: [32, 8, 1],
        shared_bytes: 0,
    };
    (grid, n_parts)
}

/// The new running mean and variance, and the batch's own.
fn of_batch(ctx: &GpuCtx, inputs: &[Tensor], factor: f32) -> Result<[Tensor; 4]> {
    let x = &inputs[0];
    let channels = x.shape()[3];
    let n = x.num_elements() / channels;
    int(x.num_elements())?;
    let of = suffix(x.dtype())?;
    let (blocks, n_parts) = blocks_of(n, channels);
    let sums = ctx.alloc(DType::Float, [n_parts * 2 * channels])?;
    let (rows, columns) = (TensorArg::I32(int(n)?), TensorArg::I32(int(channels)?));
    let args = [
        TensorArg::Tensor(x),
        TensorArg::Tensor(&sums),
        rows,
        columns,
    ];
    ctx.run(&format!("norm_parts_{of}"), &blocks, &args)?;
    let vector = || ctx.alloc(DType::Float, [channels]);
    let results = [vector()?, vector()?, vector()?, vector()?];
    let [new_mean, new_variance, mean, variance] = &results;
    let args = [
        TensorArg::Tensor(x),
        TensorArg::Tensor(&sums),
        TensorArg::Tensor(&inputs[3]),
        TensorArg::Tensor(&inputs[4]),
        TensorArg::Tensor(mean),
        TensorArg::Tensor(variance),
        TensorArg::Tensor(new_mean),
        TensorArg::Tensor(new_variance),
        rows,
        columns,
        TensorArg::I32(int(n_parts)?),
        TensorArg::F32(factor),
    ];
    ctx.run(&format!("norm_finish_{of}"), &grid(channels), &args)?;
    Ok(results)
}

/// Of the operands of `NORMALIZE`, dy, and three terms: as [`BACKWARD`], for the part of dy that passes Relu.
fn relu_backward() -> Vec<Step> {
    let mut steps = behind(&NORMALIZE, 6, 10);
    // The distance from the mean is step 3, the normalized x the last one.
    let (distance, y) = (13, 15);
    steps.extend([
        Step::Binary(BinaryFn::ReluGrad, 6, y),
        Step::Binary(BinaryFn::Mul, distance, 8),
        Step::Binary(BinaryFn::Mul, 16, 7),
        Step::Binary(BinaryFn::Add, 18, 17),
        Step::Binary(BinaryFn::Add, 19, 9),
    ]);
    steps
}

fn gradient(build: &KernelBuild) -> Result<Box<dyn GpuKernel>> {
    let gradient = Gradient {
        epsilon: Epsilon::new(build.attrs.float("epsilon")?),
        trains: build.attrs.bool("is_training")?,
        is_fused: build.def.name == "_ReluBatchNormGrad",
    };
    Ok(Box::new(move |ctx: &mut GpuCtx| {
        let inputs = (0..5).map(|i| ctx.input(i));
        let inputs: Vec<Tensor> = inputs.collect::<Result<_>>()?;
        let channels = check_gradient(&inputs)?;
        let x = &inputs[1];
        let dx = ctx.alloc(x.dtype(), x.shape().clone())?;
        let vector = |n: usize| ctx.alloc(DType::Float, [n]);
        let of_params = [vector(channels)?, vector(channels)?];
        for t in &of_params {
            crate::data::zero(ctx, t)?;
        }
        if dx.num_elements() > 0 {
            gradient.run(ctx, &inputs, &of_params, &dx)?;
        }
        ctx.set_output(0, dx)?;
        for (i, t) in (1..).zip(of_params) {
            ctx.set_output(i, t)?;
        }
        for i in 3..5 {
            ctx.set_output(i, Tensor::zeros(DType::Float, Shape::from([0]))?)?;
        }
        Ok(())
    }))
}

/// Checks the gradient, x, scale, mean and variance; returns the number of channels.
fn check_gradient(inputs: &[Tensor]) -> Result<usize> {
    let (dy, shape) = (&inputs[0], inputs[1].shape());
    if shape.rank() != 4 {
        return Err(invalid_argument!("input must be 4 or 5-dimensional{shape}"));
    }
    if dy.shape() != shape {
        return Err(invalid_argument!(
            "x and y_backprop must have same shape, but x has shape {shape} and y_backprop has shape {}",
            dy.shape()
        ));
    }
    let channels = shape[3];
    for (t, name) in inputs[2..]
        .iter()
        .zip(["scale", "saved mean", "saved variance"])
    {
        if t.shape().dims() != [channels] {
            return Err(invalid_argument!(
                "{name} must have the same number of elements as the channels of x, got {} and {channels}",
                t.shape()
            ));
        }
    }
    Ok(channels)
}

struct Gradient {
    epsilon: Epsilon,
    trains: bool,
    /// Whether dy is that of the Relu behind the normalization, whose offset is input 6.
    is_fused: bool,
}

impl Gradient {
    /// Sets the gradients of scale, offset and x, which has elements.
    fn run(
        &self,
        ctx: &GpuCtx,
        inputs: &[Tensor],
        [d_scale, d_offset]: &[Tensor; 2],
        dx: &Tensor,
    ) -> Result<()> {
        let [dy, x, scale, mean, variance] = [0, 1, 2, 3, 4].map(|i| &inputs[i]);
        let channels = d_scale.num_elements();
        int(dx.num_elements())?;
        let offset = self.is_fused.then(|| ctx.input(6)).transpose()?;
        let (sums, n_parts) = self.sums(ctx, inputs, offset.as_ref())?;
        let terms = ctx.alloc(DType::Float, [3 * channels])?;
        let n = dx.num_elements() / channels;
        let args = [
            TensorArg::Tensor(&sums),
            TensorArg::Tensor(scale),
            TensorArg::Tensor(variance),
            TensorArg::Tensor(d_scale),
            TensorArg::Tensor(d_offset),
            TensorArg::Tensor(&terms),
            TensorArg::I32(int(n)?),
            TensorArg::I32(int(channels)?),
            TensorArg::I32(int(n_parts)?),
            TensorArg::F32(self.epsilon.value),
            TensorArg::I32(self.trains.into()),
        ];
        ctx.run("norm_grad_finish", &grid(channels), &args)?;
        let term = |i: usize| terms.view(i * channels, Shape::from([channels]));
        let terms = [term(0)?, term(1)?, term(2)?];
        let run = |steps: &[Step], of: &[&Tensor]| {
            let operands: Vec<Tensor> = of.iter().copied().chain(&terms).cloned().collect();
            elementwise::run(ctx, steps, &operands, dx)
        };
        match &offset {
            None => run(&BACKWARD, &[dy, x, mean]),
            Some(offset) => {
                let epsilon = &self.epsilon.on(ctx)?;
                let operands = [x, scale, offset, mean, variance, epsilon, dy];
                run(&relu_backward(), &operands)
            }
        }
    }

    /// The sums of dy, and of its products with the distance from the mean, of each part of the rows; and how many parts.
    fn sums(
        &self,
        ctx: &GpuCtx,
        inputs: &[Tensor],
        offset: Option<&Tensor>,
    ) -> Result<(Tensor, usize)> {
        let [dy, x, scale, mean, variance] = [0, 1, 2, 3, 4].map(|i| &inputs[i]);
        let channels = mean.num_elements();
        let n = x.num_elements() / channels;
        let (blocks, n_parts) = blocks_of(n, channels);
        let sums = ctx.alloc(DType::Float, [n_parts * 2 * channels])?;
        let (rows, columns) = (TensorArg::I32(int(n)?), TensorArg::I32(int(channels)?));
        let [d, input, m, to] = [dy, x, mean, &sums].map(TensorArg::Tensor);
        let of = suffix(x.dtype())?;
        match offset {
            None => {
                let args = [d, input, m, to, rows, columns];
                ctx.run(&format!("norm_grad_parts_{of}"), &blocks, &args)?;
            }
            Some(offset) => {
                let [s, o, v] = [scale, offset, variance].map(TensorArg::Tensor);
                let e = TensorArg::F32(self.epsilon.value);
                let args = [d, input, m, s, o, v, to, rows, columns, e];
                ctx.run(&format!("norm_relu_grad_parts_{of}"), &blocks, &args)?;
            }
        }
        Ok((sums, n_parts))
    }
}
