//! AddN and AccumulateNV2 (TensorFlow: `core/kernels/aggregate_ops.cc`).

use ferroflow_base::{Result, Status, invalid_argument};
use ferroflow_functors::numeric::{Half, Num};
use ferroflow_functors::unary::CHEAP;
use ferroflow_opdef::{GradientCtx, KernelBuild, KernelCtx, Op, OpKernel, ShapeCtx};
use ferroflow_primitives::math::{self, BinaryOp};
use ferroflow_sync::par_chunks_mut;
use ferroflow_tensor::{Complex32, Complex64, DType, Element, Shape, bf16, dispatch, f16};

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

macro_rules! accumulate_halves {
    ($($ty:ty),*) => {$(
        impl Accumulate for $ty {
            fn accumulate(out: &mut [Self], inputs: &[&[Self]]) {
                accumulate_wide(out, inputs);
            }
        }
    )*};
}

/// The ops of this file.
pub(crate) const OPS: &[Op] = &[
    Op::new(
        "AddN",
        "inputs: N*T -> sum: T | N: int >= 1; T: type {numbertype,variant} | \
         commutative aggregate",
    )
    .shape(add_n_shape)
    .kernel(add_n)
    .gradient(add_n_gradient),
    Op::new(
        "AccumulateNV2",
        "inputs: N*T -> sum: T | N: int >= 1; T: numbertype; shape: shape | \
         commutative aggregate",
    )
    .shape(add_n_shape)
    .kernel(add_n)
    .gradient(add_n_gradient),
];

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

/// Returns the error of input `i` of a node whose first input has another shape.
#[cold]
pub(crate) fn unequal_shapes(node: &str, first: &Shape, i: usize, shape: &Shape) -> Status {
    invalid_argument!(
        "Inputs to operation {node} of type AddN must have the same size and shape.  Input 0: {first} != input {i}: {shape}"
    )
}

fn sum_inputs<T: Accumulate>(ctx: &mut KernelCtx) -> Result<()> {
    let shape = ctx.shape(0)?.clone();
    for i in 1..ctx.num_inputs() {
        if ctx.shape(i)? != &shape {
            return Err(unequal_shapes(ctx.node(), &shape, i, ctx.shape(i)?));
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

fn add_n_gradient(g: &mut GradientCtx) -> Result<()> {
    for i in 0..g.num_inputs() {
        g.set(i, g.dy(0))?;
    }
    Ok(())
}

/// Adds blocks of elements.
pub(crate) trait Accumulate: Element {
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

accumulate_halves!(f16, bf16);
