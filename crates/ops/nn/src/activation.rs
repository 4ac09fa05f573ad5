//! Activation functions and their gradients (TensorFlow: `core/kernels/relu_op.cc`,
//! `softplus_op.cc` and `softsign_op.cc`).

use ferroflow_base::Result;
use ferroflow_functors::agreement::{Agreement, without_broadcast};
use ferroflow_functors::binary::{BinaryFn, binary_kernel, half_binary_kernel};
use ferroflow_functors::field::Real;
use ferroflow_functors::numeric::Ordered;
use ferroflow_functors::shapes;
use ferroflow_functors::unary::{
    CHEAP, COSTLY, SimdUnary, UnaryFn, half_unary_kernel, unary_kernel, unary_op,
};
use ferroflow_opdef::{GradientCtx, KernelBuild, KernelCtx, Op};
use ferroflow_primitives::math::UnaryOp;
use ferroflow_sync::par_chunks_mut;
use ferroflow_tensor::{DType, Element, bf16, dispatch, f16};

/// The kernel of a function with `f32` and `f64` forms.
macro_rules! real_map {
    ($build:expr, $block:expr, $simd:expr, $f:expr) => {{
        let build: &KernelBuild = $build;
        match build.input(0)? {
            DType::Float => unary_kernel::<f32, f32>($block, SimdUnary($simd)),
            DType::Double => unary_kernel::<f64, f64>($block, UnaryFn($f)),
            DType::Half => half_unary_kernel::<f16>($block, SimdUnary($simd)),
            DType::Bfloat16 => half_unary_kernel::<bf16>($block, SimdUnary($simd)),
            dtype => Err(build.unsupported(dtype)),
        }
    }};
}

macro_rules! ordered_map {
    ($simd:ident, $f:ident) => {
        |build| {
            dispatch!(build.input(0)?, T in [i8, i16, i32, i64, u8, u16, u32, u64] =>
                Ok(Box::new(|ctx: &mut KernelCtx| map_integers::<T>(ctx, |x| {
                    x.iter_mut().for_each(|x| *x = $f(*x));
                }))),
                else real_map!(build, CHEAP, UnaryOp::$simd, $f))
        }
    };
}

macro_rules! real_zip {
    ($build:expr, $f:expr) => {{
        let build: &KernelBuild = $build;
        let kernel = match build.input(0)? {
            DType::Float => binary_kernel::<f32, f32>(BinaryFn($f)),
            DType::Double => binary_kernel::<f64, f64>(BinaryFn($f)),
            DType::Half => half_binary_kernel::<f16>(BinaryFn($f)),
            DType::Bfloat16 => half_binary_kernel::<bf16>(BinaryFn($f)),
            dtype => Err(build.unsupported(dtype)),
        };
        without_broadcast(build, Agreement::Shape, kernel?)
    }};
}

macro_rules! ordered_zip {
    ($f:ident) => {
        |build| {
            dispatch!(build.input(0)?, T in [i8, i16, i32, i64, u8, u16, u32, u64] =>
                without_broadcast(build, Agreement::Shape, Box::new(|ctx: &mut KernelCtx| {
                    zip_integers::<T>(ctx, |g, x| {
                        g.iter_mut().zip(x).for_each(|(g, &x)| *g = $f(*g, x));
                    })
                })),
                else real_zip!(build, $f))
        }
    };
}

/// Integers are rare: their kernels are shorter than [`unary_kernel`]'s.
fn map_integers<T: Element>(ctx: &mut KernelCtx, f: fn(&mut [T])) -> Result<()> {
    let shape = ctx.shape(0)?.clone();
    let (mut out, forwarded) = ctx.forward_or_alloc(&[0], T::DTYPE, shape)?;
    let x = match forwarded {
        Some(_) => None,
        None => Some(ctx.slice::<T>(0)?),
    };
    par_chunks_mut(ctx.par(), out.slice_mut::<T>()?, CHEAP, 1, &|i, out| {
        if let Some(x) = x {
            out.copy_from_slice(&x[i * CHEAP..][..out.len()]);
        }
        f(out);
    });
    ctx.set_output(0, out)
}

/// Sets output 0 to what `f` makes of input 0 with input 1 of the same shape.
fn zip_integers<T: Element>(ctx: &mut KernelCtx, f: fn(&mut [T], &[T])) -> Result<()> {
    let shape = ctx.shape(0)?.clone();
    let (mut out, forwarded) = ctx.forward_or_alloc(&[0], T::DTYPE, shape)?;
    let g = match forwarded {
        Some(_) => None,
        None => Some(ctx.slice::<T>(0)?),
    };
    let x = ctx.slice::<T>(1)?;
    par_chunks_mut(ctx.par(), out.slice_mut::<T>()?, CHEAP, 1, &|i, out| {
        if let Some(g) = g {
            out.copy_from_slice(&g[i * CHEAP..][..out.len()]);
        }
        f(out, &x[i * CHEAP..][..out.len()]);
    });
    ctx.set_output(0, out)
}

/// The ops of this file.
pub(crate) const OPS: &[Op] = &[
    unary_op(
        "Relu",
        "features: T -> activations: T | T: type {realnumbertype,qint8} |",
        ordered_map!(Relu, relu),
    )
    .gradient(relu_gradient),
    unary_op("Relu6", ORDERED, ordered_map!(Relu6, relu6)).gradient(relu6_gradient),
    unary_op(
        "LeakyRelu",
        "features: T -> activations: T | alpha: float = 0.2; T: type \
         {half,bfloat16,float,double} = float",
        |build| {
            let alpha = build.attrs.float("alpha")?;
            real_map!(
                build,
                CHEAP,
                UnaryOp::LeakyRelu(alpha),
                move |x| leaky_relu(x, alpha)
            )
        },
    )
    .gradient(leaky_relu_gradient),
    unary_op("Elu", FLOATS, |build| {
        real_map!(build, COSTLY, UnaryOp::Elu(1.0), elu)
    })
    .gradient(elu_gradient),
    unary_op("Selu", FLOATS, |build| {
        real_map!(build, COSTLY, UnaryOp::Selu, selu)
    })
    .gradient(selu_gradient),
    unary_op("Softplus", FLOATS, |build| {
        real_map!(build, COSTLY, UnaryOp::Softplus, softplus)
    })
    .gradient(softplus_gradient),
    unary_op("Softsign", FLOATS, |build| {
        real_map!(build, CHEAP, UnaryOp::Softsign, softsign)
    })
    .gradient(softsign_gradient),
    Op::new(
        "ReluGrad",
        "gradients: T, features: T -> backprops: T | T: realnumbertype |",
    )
    .shape(shapes::merged)
    .kernel(ordered_zip!(relu_grad))
    .gradient(relu_grad_gradient),
    Op::new(
        "Relu6Grad",
        "gradients: T, features: T -> backprops: T | T: realnumbertype |",
    )
    .shape(shapes::merged)
    .kernel(ordered_zip!(relu6_grad))
    .gradient(relu_grad_gradient),
    Op::new(
        "LeakyReluGrad",
        "gradients: T, features: T -> backprops: T | alpha: float = 0.2; T: type \
         {half,bfloat16,float,double} = float",
    )
    .shape(shapes::merged)
    .kernel(|build| {
        let alpha = build.attrs.float("alpha")?;
        real_zip!(build, move |g, x| leaky_relu_grad(g, x, alpha))
    })
    .gradient(leaky_relu_grad_gradient),
    Op::new(
        "EluGrad",
        "gradients: T, outputs: T -> backprops: T | T: type \
         {half,bfloat16,float,double}",
    )
    .shape(shapes::merged)
    .kernel(|build| real_zip!(build, elu_grad))
    .gradient(elu_grad_gradient),
    Op::new(
        "SeluGrad",
        "gradients: T, outputs: T -> backprops: T | T: type \
         {half,bfloat16,float,double}",
    )
    .shape(shapes::merged)
    .kernel(|build| real_zip!(build, selu_grad))
    .gradient(elu_grad_gradient),
    Op::new(
        "SoftplusGrad",
        "gradients: T, features: T -> backprops: T | T: type \
         {half,bfloat16,float,double}",
    )
    .shape(shapes::merged)
    .kernel(|build| real_zip!(build, softplus_grad))
    .gradient(softplus_grad_gradient),
    Op::new(
        "SoftsignGrad",
        "gradients: T, features: T -> backprops: T | T: type \
         {half,bfloat16,float,double}",
    )
    .shape(shapes::merged)
    .kernel(|build| real_zip!(build, softsign_grad)),
];

const FLOATS: &str = "features: T -> activations: T | T: type {half,bfloat16,float,double} |";

const ORDERED: &str = "features: T -> activations: T | T: realnumbertype |";

#[inline(always)]
fn relu<T: Ordered>(x: T) -> T {
    x.larger(T::ZERO)
}

#[inline(always)]
fn relu6<T: Ordered>(x: T) -> T {
    relu(x).smaller(T::from_count(6))
}

#[inline(always)]
fn leaky_relu<T: Real>(x: T, alpha: f32) -> T {
    if x < T::ZERO {
        x.mul(T::from_f64(alpha.into()))
    } else {
        x
    }
}

#[inline(always)]
fn elu<T: Real>(x: T) -> T {
    if x < T::ZERO { x.exp_m1() } else { x }
}

const SELU_SCALE: f64 = 1.050_700_987_355_480_5;

const SELU_SCALE_ALPHA: f64 = 1.758_099_340_847_376_7;

#[inline(always)]
fn selu<T: Real>(x: T) -> T {
    if x < T::ZERO {
        x.exp_m1().mul(T::from_f64(SELU_SCALE_ALPHA))
    } else {
        x.mul(T::from_f64(SELU_SCALE))
    }
}

#[inline(always)]
fn softplus<T: Real>(x: T) -> T {
    x.larger(T::ZERO).add(x.abs().neg().exp().ln_1p())
}

#[inline(always)]
fn softsign<T: Real>(x: T) -> T {
    x.div(T::ONE.add(x.abs()))
}

#[inline(always)]
fn relu_grad<T: Ordered>(g: T, x: T) -> T {
    if x > T::ZERO { g } else { T::ZERO }
}

#[inline(always)]
fn relu6_grad<T: Ordered>(g: T, x: T) -> T {
    if x > T::ZERO && x < T::from_count(6) {
        g
    } else {
        T::ZERO
    }
}

#[inline(always)]
fn leaky_relu_grad<T: Real>(g: T, x: T, alpha: f32) -> T {
    if x > T::ZERO {
        g
    } else {
        g.mul(T::from_f64(alpha.into()))
    }
}

#[inline(always)]
fn elu_grad<T: Real>(g: T, y: T) -> T {
    if y < T::ZERO { g.mul(y.add(T::ONE)) } else { g }
}

#[inline(always)]
fn selu_grad<T: Real>(g: T, y: T) -> T {
    if y < T::ZERO {
        g.mul(y.add(T::from_f64(SELU_SCALE_ALPHA)))
    } else {
        g.mul(T::from_f64(SELU_SCALE))
    }
}

#[inline(always)]
fn softplus_grad<T: Real>(g: T, x: T) -> T {
    g.mul(x.sigmoid())
}

#[inline(always)]
fn softsign_grad<T: Real>(g: T, x: T) -> T {
    g.div(T::ONE.add(x.abs()).square())
}

/// Sets `dx = op(dy, output)`.
fn by_output(g: &mut GradientCtx, op: &str) -> Result<()> {
    let dx = g.dy(0).op(op, &[g.y(0)]);
    g.set(0, dx)
}

/// Sets `dx = op(dy, input)`.
fn by_input(g: &mut GradientCtx, op: &str) -> Result<()> {
    let dx = g.dy(0).op(op, &[g.x(0)]);
    g.set(0, dx)
}

fn relu_gradient(g: &mut GradientCtx) -> Result<()> {
    by_output(g, "ReluGrad")
}

fn relu6_gradient(g: &mut GradientCtx) -> Result<()> {
    by_output(g, "Relu6Grad")
}

fn elu_gradient(g: &mut GradientCtx) -> Result<()> {
    by_output(g, "EluGrad")
}

fn selu_gradient(g: &mut GradientCtx) -> Result<()> {
    by_output(g, "SeluGrad")
}

fn softplus_gradient(g: &mut GradientCtx) -> Result<()> {
    by_input(g, "SoftplusGrad")
}

fn softsign_gradient(g: &mut GradientCtx) -> Result<()> {
    by_input(g, "SoftsignGrad")
}

fn leaky_relu_gradient(g: &mut GradientCtx) -> Result<()> {
    let dx = g
        .dy(0)
        .op_with("LeakyReluGrad", &[g.x(0)], &[g.attr("alpha")]);
    g.set(0, dx)
}

/// The inputs are a gradient and the features that decide whether it passes.
fn relu_grad_gradient(g: &mut GradientCtx) -> Result<()> {
    let dx = g.dy(0).op(g.op_name(), &[g.x(1)]);
    g.set(0, dx)?;
    g.set(1, g.x(1).zeros_like())
}

fn leaky_relu_grad_gradient(g: &mut GradientCtx) -> Result<()> {
    let dx = g
        .dy(0)
        .op_with("LeakyReluGrad", &[g.x(1)], &[g.attr("alpha")]);
    g.set(0, dx)?;
    g.set(1, g.x(1).zeros_like())
}

/// Returns the gradient of `EluGrad(dy, y)` and `SeluGrad(dy, y)`.
fn elu_grad_gradient(g: &mut GradientCtx) -> Result<()> {
    let (dy, y, d) = (g.x(0), g.x(1), g.dy(0));
    g.set(0, d.op(g.op_name(), &[y]))?;
    let is_curved = y.op("Less", &[y.number(0.0)]);
    g.set(1, (d * dy).where_(is_curved, y.zeros_like()))
}

fn softplus_grad_gradient(g: &mut GradientCtx) -> Result<()> {
    let (dy, x, d) = (g.x(0), g.x(1), g.dy(0));
    g.set(0, d.op("SoftplusGrad", &[x]))?;
    let curve = (-x).op("Exp", &[]) + 2.0 + x.op("Exp", &[]);
    g.set(1, d * dy / curve)
}
