//! Sums and limits of tensors of one shape: BiasAdd, BiasAddV1, AddN, AccumulateNV2, ClipByValue.

use ferroflow_base::{Result, invalid_argument};
use ferroflow_functors::binary::{Both, Plan, Rounded, Simd, Zip, ZipKernel};
use ferroflow_functors::numeric::{Half, Num};
use ferroflow_functors::unary::CHEAP;
use ferroflow_opdef::{GradientCtx, KernelBuild, KernelCtx, Op, OpKernel, ShapeCtx};
use ferroflow_primitives::math::{self, BinaryOp};
use ferroflow_sync::par_chunks_mut;
use ferroflow_tensor::{
    Complex, Complex32, Complex64, DType, Element, PartialShape, bf16, dispatch, f16,
};

/// BiasAdd, BiasAddV1, AddN, AccumulateNV2, ClipByValue.
pub(crate) const OPS: &[Op] = &[
    Op::new("BiasAdd", "value: T, bias: T -> output: T | T: type {float,double,int32,uint8,int16,int8,complex64,int64,qint8,quint8,qint32,bfloat16,qint16,quint16,uint16,complex128,half,uint32,uint64}; data_format: string {'NHWC','NCHW'} = 'NHWC' |")
        .shape(|ctx| {
            let first = ctx.attrs().str("data_format")? == "NCHW";
            bias_shape(ctx, first)
        })
        .kernel(|build| bias_add(build, build.attrs.str("data_format")? == "NCHW"))
    .gradient(bias_add_gradient),
    Op::new("BiasAddV1", "value: T, bias: T -> output: T | T: type {float,double,int32,uint8,int16,int8,complex64,int64,qint8,quint8,qint32,bfloat16,qint16,quint16,uint16,complex128,half,uint32,uint64} |")
        .shape(|ctx| bias_shape(ctx, false))
        .kernel(|build| bias_add(build, false))
    .gradient(bias_add_gradient),
    Op::new("AddN", "inputs: N*T -> sum: T | N: int >= 1; T: type {float,double,int32,uint8,int16,int8,complex64,int64,qint8,quint8,qint32,bfloat16,qint16,quint16,uint16,complex128,half,uint32,uint64,variant} | commutative aggregate")
        .shape(add_n_shape)
        .kernel(add_n)
    .gradient(add_n_gradient),
    Op::new("AccumulateNV2", "inputs: N*T -> sum: T | N: int >= 1; T: type {float,double,int32,uint8,int16,int8,complex64,int64,qint8,quint8,qint32,bfloat16,qint16,quint16,uint16,complex128,half,uint32,uint64}; shape: shape | commutative aggregate")
        .shape(add_n_shape)
        .kernel(add_n)
    .gradient(add_n_gradient),
    Op::new("ClipByValue", "t: T, clip_value_min: T, clip_value_max: T -> output: T | T: type {float,double,int32,uint8,int16,int8,complex64,int64,qint8,quint8,qint32,bfloat16,qint16,quint16,uint16,complex128,half,uint32,uint64} |")
        .shape(|ctx| {
            ctx.set(0, ctx.input(0));
            Ok(())
        })
        .kernel(|build| {
            let dtype = build.input(0)?;
            dispatch!(dtype, T in [f32, f64, f16, bf16, i8, i16, i32, i64, u8, u16, u32, u64] =>
                Ok(Box::new(|ctx: &mut KernelCtx| clip::<T>(ctx, limited))),
                else match dtype {
                    // Real and imaginary parts have limits of their own.
                    DType::Complex64 => Ok(Box::new(|ctx: &mut KernelCtx| clip::<Complex32>(ctx, by_parts))),
                    DType::Complex128 => Ok(Box::new(|ctx: &mut KernelCtx| clip::<Complex64>(ctx, by_parts))),
                    _ => Err(build.unsupported(dtype)),
                })
        })
    .gradient(clip_gradient),
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

fn bias_add(build: &KernelBuild, channels_first: bool) -> Result<Box<dyn OpKernel>> {
    fn kernel<T: Element>(
        zip: impl Zip<T, T> + 'static,
        channels_first: bool,
    ) -> Result<Box<dyn OpKernel>> {
        let add = ZipKernel::<T, T>::new(zip);
        Ok(Box::new(move |ctx: &mut KernelCtx| {
            run_bias(ctx, &add, channels_first)
        }))
    }
    let single = Simd(BinaryOp::Add, Num::add);
    match build.input(0)? {
        DType::Float => kernel::<f32>(single, channels_first),
        DType::Half => kernel::<f16>(Rounded(Box::new(single)), channels_first),
        DType::Bfloat16 => kernel::<bf16>(Rounded(Box::new(single)), channels_first),
        dtype => dispatch!(dtype, T in [
            f64, i8, i16, i32, i64, u8, u16, u32, u64, Complex32, Complex64
        ] => kernel::<T>(Both(<T as Num>::add), channels_first),
        else Err(build.unsupported(dtype))),
    }
}

fn run_bias<T: Element>(
    ctx: &mut KernelCtx,
    add: &ZipKernel<T, T>,
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
    let plan = Plan::new(
        value
            .iter()
            .enumerate()
            .map(|(i, &n)| (n, true, i == channel)),
    );
    add.run(ctx, value, &plan)
}

/// Adds blocks of elements.
trait Accumulate: Element {
    /// `out[i] += x[i]` for every `x`.
    fn accumulate(out: &mut [Self], inputs: &[&[Self]]);
}

impl Accumulate for f32 {
    fn accumulate(out: &mut [f32], inputs: &[&[f32]]) {
        for &x in inputs {
            math::binary_left(BinaryOp::Add, out, x);
        }
    }
}

macro_rules! accumulate {
    ($($ty:ty),*) => {$(
        impl Accumulate for $ty {
            fn accumulate(out: &mut [Self], inputs: &[&[Self]]) {
                for x in inputs {
                    for (out, x) in out.iter_mut().zip(*x) {
                        *out = out.add(*x);
                    }
                }
            }
        }
    )*};
}
accumulate!(
    f64, i8, i16, i32, i64, u8, u16, u32, u64, Complex32, Complex64
);

fn accumulate_wide<H: Half>(out: &mut [H], inputs: &[&[H]]) {
    let (mut sum, mut wide) = ([0.0; 256], [0.0; 256]);
    for (i, out) in out.chunks_mut(256).enumerate() {
        let (sum, wide) = (&mut sum[..out.len()], &mut wide[..out.len()]);
        H::widen(out, sum);
        for x in inputs {
            H::widen(&x[i * 256..i * 256 + out.len()], wide);
            math::binary_left(BinaryOp::Add, sum, &*wide);
        }
        H::narrow_all(sum, out);
    }
}

macro_rules! accumulate_halves {
    ($($ty:ty),*) => {$(
        impl Accumulate for $ty {
            fn accumulate(out: &mut [Self], inputs: &[&[Self]]) {
                accumulate_wide(out, inputs);
            }
        }
    )*};
}
accumulate_halves!(f16, bf16);

fn add_n_shape(ctx: &mut ShapeCtx) -> Result<()> {
    let mut shape = ctx.input(0);
    for i in 1..ctx.num_inputs() {
        shape = ctx.merge(&shape, &ctx.input(i))?;
    }
    ctx.set(0, shape);
    Ok(())
}

fn add_n(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    let dtype = build.input(0)?;
    if dtype == DType::Variant {
        return Ok(Box::new(|ctx: &mut KernelCtx| {
            let mut sum = ctx.input(0)?.clone();
            for i in 1..ctx.num_inputs() {
                sum = ferroflow_functors::tensor_list::add(&sum, ctx.input(i)?)?;
            }
            ctx.set_output(0, sum)
        }));
    }
    dispatch!(dtype, T in [
        f32, f64, f16, bf16, i8, i16, i32, i64, u8, u16, u32, u64, Complex32, Complex64
    ] => Ok(Box::new(sum_inputs::<T>)),
    else Err(build.unsupported(dtype)))
}

fn sum_inputs<T: Accumulate>(ctx: &mut KernelCtx) -> Result<()> {
    let shape = ctx.shape(0)?.clone();
    for i in 1..ctx.num_inputs() {
        if ctx.shape(i)? != &shape {
            return Err(invalid_argument!(
                "Inputs to operation {} of type AddN must have the same size and shape.  Input 0: {shape} != input {i}: {}",
                ctx.node(),
                ctx.shape(i)?
            ));
        }
    }
    let all: Vec<usize> = (0..ctx.num_inputs()).collect();
    let (mut out, first) = ctx.forward_or_alloc(&all, T::DTYPE, shape)?;
    let values = out.slice_mut::<T>()?;
    if first.is_none() {
        values.copy_from_slice(ctx.slice::<T>(0)?);
    }
    let rest = all.iter().filter(|&&i| i != first.unwrap_or(0));
    let rest = rest
        .map(|&i| ctx.slice::<T>(i))
        .collect::<Result<Vec<_>>>()?;
    par_chunks_mut(ctx.par(), values, CHEAP, 1, &|i, out| {
        let range = i * CHEAP..i * CHEAP + out.len();
        let parts: Vec<&[T]> = rest.iter().map(|x| &x[range.clone()]).collect();
        T::accumulate(out, &parts);
    });
    ctx.set_output(0, out)
}

#[inline(always)]
fn limited<T: PartialOrd>(x: T, lo: T, hi: T) -> T {
    let y = if hi < x { hi } else { x };
    if y < lo { lo } else { y }
}

fn by_parts<T: PartialOrd>(x: Complex<T>, lo: Complex<T>, hi: Complex<T>) -> Complex<T> {
    Complex::new(limited(x.re, lo.re, hi.re), limited(x.im, lo.im, hi.im))
}

fn clip<T: Element>(ctx: &mut KernelCtx, limit: impl Fn(T, T, T) -> T + Send + Sync) -> Result<()> {
    let (shape, lo, hi) = (ctx.shape(0)?.clone(), ctx.shape(1)?, ctx.shape(2)?);
    let fits = |s: &ferroflow_tensor::Shape| s.is_scalar() || *s == shape;
    if !fits(lo) || !fits(hi) {
        return Err(invalid_argument!(
            "clip_value_min and clip_value_max must be either of the same shape as input, or a scalar. \
             input shape: {shape}clip_value_min shape: {lo}clip_value_max shape: {hi}"
        ));
    }
    let (mut out, forwarded) = ctx.forward_or_alloc(&[0], T::DTYPE, shape)?;
    let x = if forwarded.is_some() {
        None
    } else {
        Some(ctx.slice::<T>(0)?)
    };
    let (lo, hi) = (ctx.slice::<T>(1)?, ctx.slice::<T>(2)?);
    par_chunks_mut(ctx.par(), out.slice_mut::<T>()?, CHEAP, 1, &|i, out| {
        let range = i * CHEAP..i * CHEAP + out.len();
        if let Some(x) = x {
            out.copy_from_slice(&x[range.clone()]);
        }
        match (lo, hi) {
            (&[lo], &[hi]) => out.iter_mut().for_each(|x| *x = limit(*x, lo, hi)),
            _ => {
                for (k, x) in range.zip(out) {
                    *x = limit(*x, lo[k.min(lo.len() - 1)], hi[k.min(hi.len() - 1)]);
                }
            }
        }
    });
    ctx.set_output(0, out)
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

fn add_n_gradient(g: &mut GradientCtx) -> Result<()> {
    for i in 0..g.num_inputs() {
        g.set(i, g.dy(0))?;
    }
    Ok(())
}

/// What was clipped has no influence; the limits have where they are taken.
fn clip_gradient(g: &mut GradientCtx) -> Result<()> {
    let (x, low, high, d) = (g.x(0), g.x(1), g.x(2), g.dy(0));
    let (below, above) = (x.op("Less", &[low]), x.op("Greater", &[high]));
    let zero = d.number(0.0);
    let outside = below.op("LogicalOr", &[above]);
    g.set(0, zero.where_(outside, d))?;
    for (i, (is_limit, limit)) in [(below, low), (above, high)].into_iter().enumerate() {
        if g.needs(i + 1) {
            g.set(i + 1, d.where_(is_limit, zero).sum_to(limit))?;
        }
    }
    Ok(())
}
