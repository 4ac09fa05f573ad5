//! Activation functions and the gradients of elementwise functions.

use ferroflow_base::Result;
use ferroflow_functors::binary::{Both, half_zip_kernel, zip_kernel};
use ferroflow_functors::field::{Field, Real};
use ferroflow_functors::numeric::{Num, Ordered};
use ferroflow_functors::shapes;
use ferroflow_functors::unary::{CHEAP, COSTLY, Each, Simd, half_kernel, map_kernel};
use ferroflow_opdef::{GradientCtx, KernelBuild, Op, OpKernel};
use ferroflow_primitives::math::UnaryOp;
use ferroflow_tensor::{Complex32, Complex64, DType, bf16, dispatch, f16};

const FLOATS: &str = "features: T -> activations: T | T: type {half,bfloat16,float,double} |";
const ORDERED: &str = "features: T -> activations: T | T: type {float,double,int32,uint8,int16,int8,int64,bfloat16,uint16,half,uint32,uint64} |";

const fn row(
    name: &'static str,
    signature: &'static str,
    kernel: fn(&KernelBuild) -> Result<Box<dyn OpKernel>>,
) -> Op {
    Op::new(name, signature)
        .shape(shapes::unchanged)
        .kernel(kernel)
}

/// The kernel of a function that is given for `f32` and `f64`.
macro_rules! real_map {
    ($build:expr, $block:expr, $simd:expr, $f:expr) => {{
        let build: &KernelBuild = $build;
        match build.input(0)? {
            DType::Float => map_kernel::<f32, f32>($block, Simd($simd)),
            DType::Double => map_kernel::<f64, f64>($block, Each($f)),
            DType::Half => half_kernel::<f16>($block, Simd($simd)),
            DType::Bfloat16 => half_kernel::<bf16>($block, Simd($simd)),
            dtype => Err(build.unsupported(dtype)),
        }
    }};
}
macro_rules! ordered_map {
    ($simd:ident, $f:ident) => {
        |build| {
            dispatch!(build.input(0)?, T in [i8, i16, i32, i64, u8, u16, u32, u64] =>
                map_kernel::<T, T>(CHEAP, Each($f::<T>)),
                else real_map!(build, CHEAP, UnaryOp::$simd, $f))
        }
    };
}
macro_rules! real_zip {
    ($build:expr, $f:expr) => {{
        let build: &KernelBuild = $build;
        match build.input(0)? {
            DType::Float => zip_kernel::<f32, f32>(Both($f)),
            DType::Double => zip_kernel::<f64, f64>(Both($f)),
            DType::Half => half_zip_kernel::<f16>(Both($f)),
            DType::Bfloat16 => half_zip_kernel::<bf16>(Both($f)),
            dtype => Err(build.unsupported(dtype)),
        }
    }};
}
macro_rules! ordered_zip {
    ($f:ident) => {
        |build| {
            dispatch!(build.input(0)?, T in [i8, i16, i32, i64, u8, u16, u32, u64] =>
                zip_kernel::<T, T>(Both($f::<T>)),
                else real_zip!(build, $f))
        }
    };
}
macro_rules! field_zip {
    (|$y:ident, $dy:ident| $e:expr) => {
        |build: &KernelBuild| {
            macro_rules! function {
                ($ty:ty) => {
                    Both(|$y: $ty, $dy: $ty| {
                        #[allow(dead_code, reason = "not every gradient needs it")]
                        const ONE: $ty = <$ty as Num>::ONE;
                        $e
                    })
                };
            }
            match build.input(0)? {
                DType::Half => half_zip_kernel::<f16>(function!(f32)),
                DType::Bfloat16 => half_zip_kernel::<bf16>(function!(f32)),
                dtype => dispatch!(dtype, T in [f32, f64, Complex32, Complex64] =>
                    zip_kernel::<T, T>(function!(T)),
                    else Err(build.unsupported(dtype))),
            }
        }
    };
}

/// Relu, Relu6, LeakyRelu, Elu, Selu, Softplus, Softsign, and gradients of elementwise functions.
pub(crate) const OPS: &[Op] = &[
    row(
        "Relu",
        "features: T -> activations: T | T: type {float,double,int32,uint8,int16,int8,int64,bfloat16,uint16,half,uint32,uint64,qint8} |",
        ordered_map!(Relu, relu),
    )
    .gradient(relu_gradient),
    row("Relu6", ORDERED, ordered_map!(Relu6, relu6))
    .gradient(relu6_gradient),
    row(
        "LeakyRelu",
        "features: T -> activations: T | alpha: float = 0.2; T: type {half,bfloat16,float,double} = float |",
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
    row("Elu", FLOATS, |build| {
        real_map!(build, COSTLY, UnaryOp::Elu(1.0), elu)
    })
    .gradient(elu_gradient),
    row("Selu", FLOATS, |build| {
        real_map!(build, COSTLY, UnaryOp::Selu, selu)
    })
    .gradient(selu_gradient),
    row("Softplus", FLOATS, |build| {
        real_map!(build, COSTLY, UnaryOp::Softplus, softplus)
    })
    .gradient(softplus_gradient),
    row("Softsign", FLOATS, |build| {
        real_map!(build, CHEAP, UnaryOp::Softsign, softsign)
    })
    .gradient(softsign_gradient),
    gradient(
        "ReluGrad",
        "gradients: T, features: T -> backprops: T | T: type {float,double,int32,uint8,int16,int8,int64,bfloat16,uint16,half,uint32,uint64} |",
        ordered_zip!(relu_grad),
    )
    .gradient(relu_grad_gradient),
    gradient(
        "Relu6Grad",
        "gradients: T, features: T -> backprops: T | T: type {float,double,int32,uint8,int16,int8,int64,bfloat16,uint16,half,uint32,uint64} |",
        ordered_zip!(relu6_grad),
    )
    .gradient(relu_grad_gradient),
    gradient(
        "LeakyReluGrad",
        "gradients: T, features: T -> backprops: T | alpha: float = 0.2; T: type {half,bfloat16,float,double} = float |",
        |build| {
            let alpha = build.attrs.float("alpha")?;
            real_zip!(build, move |g, x| leaky_relu_grad(g, x, alpha))
        },
    )
    .gradient(leaky_relu_grad_gradient),
    gradient(
        "EluGrad",
        "gradients: T, outputs: T -> backprops: T | T: type {half,bfloat16,float,double} |",
        |build| real_zip!(build, elu_grad),
    )
    .gradient(elu_grad_gradient),
    gradient(
        "SeluGrad",
        "gradients: T, outputs: T -> backprops: T | T: type {half,bfloat16,float,double} |",
        |build| real_zip!(build, selu_grad),
    )
    .gradient(elu_grad_gradient),
    gradient(
        "SoftplusGrad",
        "gradients: T, features: T -> backprops: T | T: type {half,bfloat16,float,double} |",
        |build| real_zip!(build, softplus_grad),
    )
    .gradient(softplus_grad_gradient),
    gradient(
        "SoftsignGrad",
        "gradients: T, features: T -> backprops: T | T: type {half,bfloat16,float,double} |",
        |build| real_zip!(build, softsign_grad),
    ),
    gradient(
        "SigmoidGrad",
        FIELD_GRAD,
        field_zip!(|y, dy| dy.mul(y).mul(ONE.sub(y))),
    )
    .gradient(sigmoid_grad_gradient),
    gradient(
        "TanhGrad",
        FIELD_GRAD,
        field_zip!(|y, dy| dy.mul(ONE.sub(y.square()))),
    )
    .gradient(tanh_grad_gradient),
    gradient(
        "SqrtGrad",
        FIELD_GRAD,
        field_zip!(|y, dy| dy.div(y.conj().add(y.conj()))),
    )
    .gradient(sqrt_grad_gradient),
    gradient(
        "RsqrtGrad",
        FIELD_GRAD,
        field_zip!(|y, dy| {
            dy.mul(y.conj().square().mul(y.conj()))
                .div(ONE.add(ONE).neg())
        }),
    )
    .gradient(rsqrt_grad_gradient),
    gradient(
        "ReciprocalGrad",
        FIELD_GRAD,
        field_zip!(|y, dy| dy.mul(y.conj().square()).neg()),
    )
    .gradient(reciprocal_grad_gradient),
    gradient(
        "InvGrad",
        FIELD_GRAD,
        field_zip!(|y, dy| dy.mul(y.conj().square()).neg()),
    )
    .gradient(reciprocal_grad_gradient),
];

const FIELD_GRAD: &str =
    "y: T, dy: T -> z: T | T: type {bfloat16,half,float,double,complex64,complex128} |";

/// A row of an op whose two inputs have the same shape.
const fn gradient(
    name: &'static str,
    signature: &'static str,
    kernel: fn(&KernelBuild) -> Result<Box<dyn OpKernel>>,
) -> Op {
    Op::new(name, signature)
        .shape(|ctx| {
            let shape = ctx.merge(&ctx.input(0), &ctx.input(1))?;
            ctx.set(0, shape);
            Ok(())
        })
        .kernel(kernel)
}

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
        x.mul(T::lit(alpha.into()))
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
        x.exp_m1().mul(T::lit(SELU_SCALE_ALPHA))
    } else {
        x.mul(T::lit(SELU_SCALE))
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
        g.mul(T::lit(alpha.into()))
    }
}

#[inline(always)]
fn elu_grad<T: Real>(g: T, y: T) -> T {
    if y < T::ZERO { g.mul(y.add(T::ONE)) } else { g }
}

#[inline(always)]
fn selu_grad<T: Real>(g: T, y: T) -> T {
    if y < T::ZERO {
        g.mul(y.add(T::lit(SELU_SCALE_ALPHA)))
    } else {
        g.mul(T::lit(SELU_SCALE))
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

/// `dx = op(dy, output)`.
fn by_output(g: &mut GradientCtx, op: &str) -> Result<()> {
    let dx = g.dy(0).op(op, &[g.y(0)]);
    g.set(0, dx)
}

/// `dx = op(dy, input)`.
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

/// The inputs are a gradient and what decides whether it passes.
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

/// Of `EluGrad(dy, y)` and `SeluGrad(dy, y)`.
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

/// Of `SqrtGrad(y, dy)`, which is `dy / 2 ȳ`: of `y` it depends through the conjugate alone.
fn sqrt_grad_gradient(g: &mut GradientCtx) -> Result<()> {
    let over = g.dy(0) / g.x(0);
    let own = -over.conj() * g.y(0);
    g.set(0, own)?;
    g.set(1, over * 0.5)
}

/// Of `RsqrtGrad(y, dy)`, which is `-dy ȳ³ / 2`.
fn rsqrt_grad_gradient(g: &mut GradientCtx) -> Result<()> {
    let (y, dy, d) = (g.x(0).conj(), g.x(1), g.dy(0));
    let own = d.conj() * -1.5 * dy * y.op("Square", &[]);
    g.set(0, own)?;
    g.set(1, y.op("RsqrtGrad", &[d]))
}

fn tanh_grad_gradient(g: &mut GradientCtx) -> Result<()> {
    let (y, dy, d) = (g.x(0).conj(), g.x(1).conj(), g.dy(0));
    g.set(0, d * -2.0 * dy * y)?;
    g.set(1, y.op("TanhGrad", &[d]))
}

fn sigmoid_grad_gradient(g: &mut GradientCtx) -> Result<()> {
    let (y, dy, d) = (g.x(0).conj(), g.x(1).conj(), g.dy(0));
    let both = d * dy;
    g.set(0, both - both * 2.0 * y)?;
    g.set(1, y.op("SigmoidGrad", &[d]))
}

/// Of `ReciprocalGrad(y, dy)`, which is `-dy ȳ²`.
fn reciprocal_grad_gradient(g: &mut GradientCtx) -> Result<()> {
    let (y, dy, d) = (g.x(0).conj(), g.x(1), g.dy(0));
    g.set(0, d.conj() * -2.0 * dy * y)?;
    g.set(1, y.op("ReciprocalGrad", &[d]))
}
