//! SigmoidGrad, TanhGrad, SqrtGrad, RsqrtGrad, ReciprocalGrad, InvGrad (TensorFlow:
//! `core/kernels/cwise_op_*.cc`).

use ferroflow_base::Result;
use ferroflow_functors::agreement::{Agreement, without_broadcast};
use ferroflow_functors::binary::{BinaryFn, binary_kernel, half_binary_kernel};
use ferroflow_functors::field::Field;
use ferroflow_functors::numeric::Num;
use ferroflow_functors::shapes;
use ferroflow_opdef::{GradientCtx, KernelBuild, Op};
use ferroflow_tensor::{Complex32, Complex64, DType, bf16, dispatch, f16};

macro_rules! field_binary {
    (|$y:ident, $dy:ident| $e:expr) => {
        |build: &KernelBuild| {
            macro_rules! function {
                ($ty:ty) => {
                    BinaryFn(|$y: $ty, $dy: $ty| {
                        #[allow(dead_code, reason = "not every gradient needs it")]
                        const ONE: $ty = <$ty as Num>::ONE;
                        $e
                    })
                };
            }
            let kernel = match build.input(0)? {
                DType::Half => half_binary_kernel::<f16>(function!(f32)),
                DType::Bfloat16 => half_binary_kernel::<bf16>(function!(f32)),
                dtype => dispatch!(dtype, T in [f32, f64, Complex32, Complex64] =>
                    binary_kernel::<T, T>(function!(T)),
                    else Err(build.unsupported(dtype))),
            };
            without_broadcast(build, Agreement::Count, kernel?)
        }
    };
}

/// The ops of this file.
pub(crate) const OPS: &[Op] = &[
    Op::new("SigmoidGrad", FIELD_GRAD)
        .shape(shapes::unchanged)
        .kernel(field_binary!(|y, dy| dy.mul(y).mul(ONE.sub(y))))
        .gradient(sigmoid_grad_gradient),
    Op::new("TanhGrad", FIELD_GRAD)
        .shape(shapes::unchanged)
        .kernel(field_binary!(|y, dy| dy.mul(ONE.sub(y.square()))))
        .gradient(tanh_grad_gradient),
    Op::new("SqrtGrad", FIELD_GRAD)
        .shape(shapes::unchanged)
        .kernel(field_binary!(|y, dy| dy.div(y.conj().add(y.conj()))))
        .gradient(sqrt_grad_gradient),
    Op::new("RsqrtGrad", FIELD_GRAD)
        .shape(shapes::unchanged)
        .kernel(field_binary!(|y, dy| {
            dy.mul(y.conj().square().mul(y.conj()))
                .div(ONE.add(ONE).neg())
        }))
        .gradient(rsqrt_grad_gradient),
    Op::new("ReciprocalGrad", FIELD_GRAD)
        .shape(shapes::unchanged)
        .kernel(field_binary!(|y, dy| dy.mul(y.conj().square()).neg()))
        .gradient(reciprocal_grad_gradient),
    Op::new("InvGrad", FIELD_GRAD)
        .shape(shapes::unchanged)
        .kernel(field_binary!(|y, dy| dy.mul(y.conj().square()).neg()))
        .gradient(reciprocal_grad_gradient),
];

const FIELD_GRAD: &str = "y: T, dy: T -> z: T | T: type \
         {bfloat16,half,float,double,complex64,complex128}";

/// Returns the gradient of `SqrtGrad(y, dy) = dy / 2 ȳ`, which depends on the conjugate of `y`
/// only.
fn sqrt_grad_gradient(g: &mut GradientCtx) -> Result<()> {
    let over = g.dy(0) / g.x(0);
    let own = -over.conj() * g.y(0);
    g.set(0, own)?;
    g.set(1, over * 0.5)
}

/// Returns the gradient of `RsqrtGrad(y, dy) = -dy ȳ³ / 2`.
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

/// Returns the gradient of `ReciprocalGrad(y, dy) = -dy ȳ²`.
fn reciprocal_grad_gradient(g: &mut GradientCtx) -> Result<()> {
    let (y, dy, d) = (g.x(0).conj(), g.x(1), g.dy(0));
    g.set(0, d.conj() * -2.0 * dy * y)?;
    g.set(1, y.op("ReciprocalGrad", &[d]))
}
