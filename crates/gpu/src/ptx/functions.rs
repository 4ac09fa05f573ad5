//! The instructions of one step.

use super::{Body, literal};
use ferroflow_opdef::{BinaryFn, UnaryFn};

pub(super) fn unary(body: &mut Body, f: UnaryFn, a: &str, to: &str) {
    let simple = match f {
        UnaryFn::Neg => "neg.f32",
        UnaryFn::Abs => "abs.f32",
        UnaryFn::Sqrt => "sqrt.rn.f32",
        UnaryFn::Rsqrt => "rsqrt.approx.f32",
        UnaryFn::Reciprocal => "rcp.rn.f32",
        UnaryFn::Floor => "cvt.rmi.f32.f32",
        UnaryFn::Ceil => "cvt.rpi.f32.f32",
        UnaryFn::Round => "cvt.rni.f32.f32",
        UnaryFn::Square => return body.line(&format!("mul.rn.f32 {to}, {a}, {a};")),
        UnaryFn::Relu => {
            let zero = literal(0.0);
            body.line(&format!("setp.lt.f32 %p2, {a}, {zero};"));
            return body.line(&format!("selp.f32 {to}, {zero}, {a}, %p2;"));
        }
        UnaryFn::LeakyRelu(alpha) => {
            return body.call("ff_leaky_relu", &[a, &literal(alpha)], to);
        }
        UnaryFn::Exp => return body.call("ff_exp", &[a], to),
        UnaryFn::Expm1 => return body.call("ff_expm1", &[a], to),
        UnaryFn::Log => return body.call("ff_log", &[a], to),
        UnaryFn::Log1p => return body.call("ff_log1p", &[a], to),
        UnaryFn::Sin => return body.call("ff_sin", &[a], to),
        UnaryFn::Cos => return body.call("ff_cos", &[a], to),
        UnaryFn::Tanh => return body.call("ff_tanh", &[a], to),
        UnaryFn::Sigmoid => return body.call("ff_sigmoid", &[a], to),
        UnaryFn::Erf => return body.call("ff_erf", &[a], to),
        UnaryFn::Erfc => return body.call("ff_erfc", &[a], to),
        UnaryFn::Sign => return body.call("ff_sign", &[a], to),
        UnaryFn::Relu6 => return body.call("ff_relu6", &[a], to),
        UnaryFn::Elu => return body.call("ff_elu", &[a], to),
        UnaryFn::Selu => return body.call("ff_selu", &[a], to),
        UnaryFn::Softplus => return body.call("ff_softplus", &[a], to),
        UnaryFn::Softsign => return body.call("ff_softsign", &[a], to),
        UnaryFn::Swish => return body.call("ff_swish", &[a], to),
        UnaryFn::HardSwish => return body.call("ff_hard_swish", &[a], to),
        UnaryFn::Gelu => return body.call("ff_gelu", &[a], to),
        UnaryFn::GeluTanh => return body.call("ff_gelu_tanh", &[a], to),
    };
    body.line(&format!("{simple} {to}, {a};"));
}

pub(super) fn binary(body: &mut Body, f: BinaryFn, a: &str, b: &str, to: &str) {
    let simple = match f {
        BinaryFn::Add | BinaryFn::AddN => "add.rn.f32",
        BinaryFn::Sub => "sub.rn.f32",
        BinaryFn::Mul => "mul.rn.f32",
        BinaryFn::Div => "div.rn.f32",
        BinaryFn::SquaredDifference => {
            body.line(&format!("sub.rn.f32 {to}, {a}, {b};"));
            return body.line(&format!("mul.rn.f32 {to}, {to}, {to};"));
        }
        BinaryFn::Maximum => return body.call("ff_maximum", &[a, b], to),
        BinaryFn::Minimum => return body.call("ff_minimum", &[a, b], to),
        BinaryFn::Pow => return body.call("ff_pow", &[a, b], to),
        BinaryFn::ReluGrad => return body.call("ff_relu_grad", &[a, b], to),
        BinaryFn::TanhGrad => return body.call("ff_tanh_grad", &[a, b], to),
        BinaryFn::SigmoidGrad => return body.call("ff_sigmoid_grad", &[a, b], to),
    };
    body.line(&format!("{simple} {to}, {a}, {b};"));
}
