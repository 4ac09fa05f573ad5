//! Functions that code calls: those of the kernels, element by element.

use ferroflow_functors::field::{Field, Real};
use ferroflow_functors::numeric::{Int, Ordered};
use ferroflow_functors::unary::{SimdUnary, UnaryFunctor};
use ferroflow_opdef::{ScalarBinary, ScalarType, ScalarUnary};
use ferroflow_primitives::math::UnaryOp;

macro_rules! simd {
    ($f:ident; $($variant:ident),* $(,)?) => {
        match $f {
            $(ScalarUnary::$variant => {
                extern "C" fn helper(x: f32) -> f32 {
                    SimdUnary(UnaryOp::$variant).apply(x)
                }
                Some(helper as extern "C" fn(f32) -> f32 as usize)
            })*
            _ => None,
        }
    };
}

macro_rules! field {
    ($ty:ident, $f:ident; $($variant:ident = $path:path),* $(,)?) => {
        match $f {
            $(ScalarUnary::$variant => {
                extern "C" fn helper(x: $ty) -> $ty {
                    $path(x)
                }
                Some(helper as extern "C" fn($ty) -> $ty as usize)
            })*
            _ => None,
        }
    };
}

macro_rules! binary {
    ($ty:ident, $path:path) => {{
        extern "C" fn helper(a: $ty, b: $ty) -> $ty {
            $path(a, b)
        }
        Some(helper as extern "C" fn($ty, $ty) -> $ty as usize)
    }};
}

/// Returns the address of a function of one float, unless code is made for it.
pub(crate) fn unary(f: ScalarUnary, ty: ScalarType) -> Option<usize> {
    match ty {
        ScalarType::F32 => {
            let simd = simd!(f; Rsqrt, Exp, Expm1, Log, Log1p, Sin, Cos, Asin, Acos, Atan, Tanh,
                Sigmoid, Erf, Erfc, Reciprocal, Sign);
            simd.or_else(|| {
                field!(f32, f; Tan = Field::tan, Sinh = Field::sinh, Cosh = Field::cosh,
                    Asinh = Field::asinh, Acosh = Field::acosh, Atanh = Field::atanh)
            })
        }
        ScalarType::F64 => {
            field!(f64, f; Rsqrt = Field::rsqrt, Exp = Field::exp, Expm1 = Field::exp_m1,
                Log = Field::ln, Log1p = Field::ln_1p, Sin = Field::sin, Cos = Field::cos,
                Tan = Field::tan, Asin = Field::asin, Acos = Field::acos, Atan = Field::atan,
                Sinh = Field::sinh, Cosh = Field::cosh, Tanh = Field::tanh,
                Asinh = Field::asinh, Acosh = Field::acosh, Atanh = Field::atanh,
                Sigmoid = Field::sigmoid, Erf = Real::erf, Erfc = Real::erfc, Sign = Field::sign)
        }
        _ => None,
    }
}

/// Returns the address of a function of two scalars, unless code is made for it.
pub(crate) fn binary(f: ScalarBinary, ty: ScalarType) -> Option<usize> {
    match (f, ty) {
        (ScalarBinary::Pow, ScalarType::F32) => binary!(f32, Field::pow),
        (ScalarBinary::Pow, ScalarType::F64) => binary!(f64, Field::pow),
        (ScalarBinary::Pow, ScalarType::I32) => binary!(i32, Int::pow),
        (ScalarBinary::Pow, ScalarType::I64) => binary!(i64, Int::pow),
        (ScalarBinary::FloorMod, ScalarType::F32) => binary!(f32, Ordered::floor_mod),
        (ScalarBinary::FloorMod, ScalarType::F64) => binary!(f64, Ordered::floor_mod),
        (ScalarBinary::TruncateMod, ScalarType::F32) => binary!(f32, Ordered::trunc_mod),
        (ScalarBinary::TruncateMod, ScalarType::F64) => binary!(f64, Ordered::trunc_mod),
        (ScalarBinary::Atan2, ScalarType::F32) => binary!(f32, Real::atan2),
        (ScalarBinary::Atan2, ScalarType::F64) => binary!(f64, Real::atan2),
        _ => None,
    }
}
