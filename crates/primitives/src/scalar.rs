//! The elementary functions of one `f64`, for types and callers without vector code.

use super::math::UnaryOp;

fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

/// Returns `op(x)` in double precision.
pub fn unary_f64(op: UnaryOp, x: f64) -> f64 {
    match op {
        UnaryOp::Identity => x,
        UnaryOp::Neg => -x,
        UnaryOp::Abs => x.abs(),
        UnaryOp::Square => x * x,
        UnaryOp::Sqrt => x.sqrt(),
        UnaryOp::Rsqrt => 1.0 / x.sqrt(),
        UnaryOp::Reciprocal => 1.0 / x,
        UnaryOp::Exp => x.exp(),
        UnaryOp::Expm1 => x.exp_m1(),
        UnaryOp::Log => x.ln(),
        UnaryOp::Log1p => x.ln_1p(),
        UnaryOp::Sin => x.sin(),
        UnaryOp::Cos => x.cos(),
        UnaryOp::Asin => x.asin(),
        UnaryOp::Acos => x.acos(),
        UnaryOp::Atan => x.atan(),
        UnaryOp::Tanh => x.tanh(),
        UnaryOp::Sinh => x.sinh(),
        UnaryOp::Cosh => x.cosh(),
        UnaryOp::Asinh => x.asinh(),
        UnaryOp::Acosh => x.acosh(),
        UnaryOp::Atanh => x.atanh(),
        UnaryOp::Sigmoid => sigmoid(x),
        UnaryOp::Erf => libm::erf(x),
        UnaryOp::Erfc => libm::erfc(x),
        UnaryOp::Floor => x.floor(),
        UnaryOp::Ceil => x.ceil(),
        UnaryOp::Round => x.round_ties_even(),
        UnaryOp::Trunc => x.trunc(),
        UnaryOp::Sign => {
            if x == 0.0 || x.is_nan() {
                x
            } else {
                x.signum()
            }
        }
        UnaryOp::Relu => clamp(x, 0.0, f64::INFINITY),
        UnaryOp::Relu6 => clamp(x, 0.0, 6.0),
        UnaryOp::Clamp(lo, hi) => clamp(x, lo.into(), hi.into()),
        UnaryOp::LeakyRelu(a) => below(x, || x * f64::from(a), x),
        UnaryOp::Elu(a) => below(x, || x.exp_m1() * f64::from(a), x),
        UnaryOp::Selu => {
            const SCALE: f64 = 1.050_700_987_355_480_5;
            const ALPHA: f64 = 1.673_263_242_354_377_2;
            below(x, || x.exp_m1() * SCALE * ALPHA, x * SCALE)
        }
        UnaryOp::Softplus => (-x.abs()).exp().ln_1p() + clamp(x, 0.0, f64::INFINITY),
        UnaryOp::Softsign => x / (1.0 + x.abs()),
        UnaryOp::Swish => x * sigmoid(x),
        UnaryOp::HardSwish => x * clamp(x + 3.0, 0.0, 6.0) / 6.0,
        UnaryOp::HardSigmoid => clamp(x + 3.0, 0.0, 6.0) / 6.0,
        UnaryOp::GeluErf => 0.5 * x * (1.0 + libm::erf(x * std::f64::consts::FRAC_1_SQRT_2)),
        UnaryOp::GeluTanh => {
            let c = (2.0 / std::f64::consts::PI).sqrt();
            0.5 * x * (1.0 + (c * (x + 0.044715 * x * x * x)).tanh())
        }
        UnaryOp::Affine(a, b) => x * f64::from(a) + f64::from(b),
        UnaryOp::Pow(c) => x.powf(c.into()),
    }
}

/// Clamps, propagating NaN.
fn clamp(x: f64, lo: f64, hi: f64) -> f64 {
    let y = if lo > x { lo } else { x };
    if hi < y { hi } else { y }
}

fn below(x: f64, low: impl Fn() -> f64, high: f64) -> f64 {
    if x < 0.0 { low() } else { high }
}
