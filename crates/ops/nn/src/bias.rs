//! BiasAdd, BiasAddV1, and BiasAddGrad (TensorFlow: `core/kernels/bias_op.cc`).

use crate::batch_norm_grad::sums;
use ferroflow_base::{Result, invalid_argument};
use ferroflow_functors::binary::{
    BinaryFn, BinaryFunctor, BroadcastPlan, HalfBinary, SimdBinary, apply_plan,
};
use ferroflow_functors::gradients::part;
use ferroflow_functors::half_conversion::{narrowed, widened};
use ferroflow_functors::numeric::Num;
use ferroflow_opdef::{GradientCtx, KernelBuild, KernelCtx, Op, OpKernel, ShapeCtx};
use ferroflow_primitives::math::BinaryOp;
use ferroflow_primitives::rows::{ReduceOp, reduce_middle};
use ferroflow_tensor::{
    Complex32, Complex64, DType, Element, PartialShape, Shape, bf16, dispatch, f16,
};

/// The ops of this file.
pub(crate) const OPS: &[Op] = &[
    Op::new(
        "BiasAdd",
        "value: T, bias: T -> output: T | T: numbertype; data_format: string \
         {'NHWC','NCHW'} = 'NHWC'",
    )
    .shape(|ctx| {
        let first = ctx.attrs().str("data_format")? == "NCHW";
        bias_shape(ctx, first)
    })
    .kernel(|build| bias_add_kernel(build, build.attrs.str("data_format")? == "NCHW"))
    .gradient(bias_add_gradient),
    Op::new(
        "BiasAddV1",
        "value: T, bias: T -> output: T | T: numbertype |",
    )
    .shape(|ctx| bias_shape(ctx, false))
    .kernel(|build| bias_add_kernel(build, false))
    .gradient(bias_add_gradient),
    Op::new(
        "BiasAddGrad",
        "out_backprop: T -> output: T | T: numbertype; data_format: string \
         {'NHWC','NCHW'} = 'NHWC'",
    )
    .shape(|ctx| {
        let at = match ctx.attrs().str("data_format")? {
            "NCHW" => {
                ctx.with_rank_at_least(0, 3)?;
                1
            }
            _ => -1,
        };
        let shape = ctx.with_rank_at_least(0, 2)?;
        ctx.set(0, PartialShape::of([shape.dim(at)]));
        Ok(())
    })
    .kernel(bias_add_grad)
    .gradient(bias_add_grad_gradient),
];

fn bias_shape(ctx: &mut ShapeCtx, channels_first: bool) -> Result<()> {
    let value = ctx.with_rank_at_least(0, 2)?;
    let bias = ctx.with_rank(1, 1)?;
    let shape = match value.rank() {
        None => value,
        Some(rank) => {
            let channel = if channels_first { 1 } else { rank - 1 };
            let own = (0..rank).map(|i| if i == channel { bias.dim(0) } else { None });
            ctx.merge(&value, &PartialShape::of(own))?
        }
    };
    ctx.set(0, shape);
    Ok(())
}

fn bias_add_kernel(build: &KernelBuild, channels_first: bool) -> Result<Box<dyn OpKernel>> {
    fn kernel<T: Element>(
        zip: impl BinaryFunctor<T, T> + 'static,
        channels_first: bool,
    ) -> Result<Box<dyn OpKernel>> {
        let add: Box<dyn BinaryFunctor<T, T>> = Box::new(zip);
        Ok(Box::new(move |ctx: &mut KernelCtx| {
            run_bias(ctx, &*add, channels_first)
        }))
    }
    let single = SimdBinary(BinaryOp::Add, Num::add);
    match build.input(0)? {
        DType::Float => kernel::<f32>(single, channels_first),
        DType::Half => kernel::<f16>(HalfBinary(Box::new(single)), channels_first),
        DType::Bfloat16 => kernel::<bf16>(HalfBinary(Box::new(single)), channels_first),
        dtype => dispatch!(dtype, T in [
            f64, i8, i16, i32, i64, u8, u16, u32, u64, Complex32, Complex64
        ] => kernel::<T>(BinaryFn(<T as Num>::add), channels_first),
        else Err(build.unsupported(dtype))),
    }
}

fn run_bias<T: Element>(
    ctx: &mut KernelCtx,
    add: &dyn BinaryFunctor<T, T>,
    channels_first: bool,
) -> Result<()> {
    let (value, bias) = (ctx.shape(0)?.clone(), ctx.shape(1)?);
    if value.rank() < 2 {
        return Err(invalid_argument!(
            "Input tensor must be at least 2D: {value}"
        ));
    }
    if bias.rank() != 1 {
        return Err(invalid_argument!("Biases must be 1D: {bias}"));
    }
    let channel = if channels_first { 1 } else { value.rank() - 1 };
    if bias[0] != value[channel] {
        return Err(invalid_argument!(
            "Must provide as many biases as the last dimension of the input tensor: {bias} vs. {value}"
        ));
    }
    let plan = BroadcastPlan::new(
        value
            .iter()
            .enumerate()
            .map(|(i, &n)| (n, true, i == channel)),
    );
    apply_plan(ctx, add, value, &plan)
}

fn bias_add_gradient(g: &mut GradientCtx) -> Result<()> {
    let d = g.dy(0);
    g.set(0, d)?;
    if !g.needs(1) {
        return Ok(());
    }
    let first = g.attrs().str("data_format").is_ok_and(|f| f == "NCHW");
    let size = g.x(1).shape_of();
    let one = d.ints([-1]);
    let parts = match first {
        false => vec![one, size, d.int(0)],
        true => {
            let shape = d.shape_of();
            let attrs = [("begin_mask", 1i64.into())];
            let batch = [shape, d.ints([0]), d.ints([1]), d.ints([1])];
            vec![
                shape.make("StridedSlice", &batch, &attrs),
                size,
                one,
                d.int(0),
            ]
        }
    };
    let folded = d.reshape(d.make("ConcatV2", &parts, &[]));
    let axes = if first { d.ints([0, 2]) } else { d.ints([0]) };
    g.set(1, folded.sum(axes, false))
}

fn bias_add_grad(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    let channels_last = build.attrs.str("data_format")? == "NHWC";
    let dtype = build.output(0)?;
    Ok(Box::new(move |ctx: &mut KernelCtx| {
        let (par, shape) = (ctx.par(), ctx.shape(0)?.clone());
        let least = if channels_last { 2 } else { 3 };
        if shape.rank() < least {
            return Err(invalid_argument!(
                "Input tensor must be at least {}D: {shape}",
                if shape.rank() < 2 { 2 } else { 3 }
            ));
        }
        // The elements to sum up, around the channels.
        let at = if channels_last { shape.rank() - 1 } else { 1 };
        let [outer, inner] = [&shape[..at], &shape[at + 1..]].map(|d| d.iter().product::<usize>());
        let sizes = [outer, shape[at], inner];
        let x = match dtype {
            DType::Half | DType::Bfloat16 => widened(par, ctx.input(0)?)?,
            _ => ctx.input(0)?.clone(),
        };
        let out = match x.dtype() {
            DType::Float if channels_last => {
                let mut out = ctx.alloc(DType::Float, Shape::from([sizes[1]]))?;
                let middle = [1, outer, sizes[1]];
                reduce_middle(par, ReduceOp::Sum, middle, x.slice()?, out.slice_mut()?);
                out
            }
            _ => dispatch!(x.dtype(), T in
                [f32, f64, i8, i16, i32, i64, u8, u16, u32, u64, Complex32, Complex64] =>
                sums::<T>(par, &x, sizes)?,
                else return Err(invalid_argument!("biases of {dtype} are not supported"))),
        };
        let out = match out.dtype() == dtype {
            true => out,
            false => narrowed(par, out, dtype)?,
        };
        ctx.set_output(0, out)
    }))
}

/// Returns the gradient of BiasAddGrad, broadcast to every element of a channel.
fn bias_add_grad_gradient(g: &mut GradientCtx) -> Result<()> {
    let (x, mut d) = (g.x(0), g.dy(0));
    let shape = x.shape_of();
    if g.attrs().str("data_format")? == "NCHW" {
        let ones = part(shape, Some(shape.int(2)), None).op("OnesLike", &[]);
        d = d.reshape(
            d.shape_of()
                .make("ConcatV2", &[d.shape_of(), ones, d.int(0)], &[]),
        );
    }
    g.set(0, d.op("BroadcastTo", &[shape]))
}
