//! Functions that code calls, by way of a table: those of the kernels, element by element, so that results are the same,
//! and those of the run.

use crate::code::{Env, allocate, poll};
use crate::draws;
use ferroflow_functors::field::{Field, Real};
use ferroflow_functors::numeric::{Int, Ordered};
use ferroflow_functors::unary::{SimdUnary, UnaryFunctor};
use ferroflow_opdef::{Distribution, ScalarBinary, ScalarType, ScalarUnary};
use ferroflow_primitives::math::{BinaryOp, UnaryOp, binary_single};
use std::fmt::{self, Display, Formatter};

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
    ($ty:ident, $f:expr) => {{
        extern "C" fn helper(a: $ty, b: $ty) -> $ty {
            ($f)(a, b)
        }
        Some(helper as extern "C" fn($ty, $ty) -> $ty as usize)
    }};
}

/// A function that code calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Helper {
    Allocate,
    Poll,
    Unary(ScalarUnary, ScalarType),
    Binary(ScalarBinary, ScalarType),
    Draw(Distribution, ScalarType),
}

impl Helper {
    /// The address; `None` if code is made in its place, or kernels have no function for the type.
    pub(crate) fn address(self) -> Option<usize> {
        match self {
            Helper::Allocate => {
                Some(allocate as extern "C" fn(&mut Env<'_, '_>, i64, i64) -> i64 as usize)
            }
            Helper::Poll => Some(poll as extern "C" fn(&Env<'_, '_>) -> i64 as usize),
            Helper::Unary(f, ty) => unary(f, ty),
            Helper::Binary(f, ty) => binary(f, ty),
            Helper::Draw(distribution, ty) => draws::function(distribution, ty),
        }
    }
}

impl Display for Helper {
    fn fmt(&self, f: &mut Formatter) -> fmt::Result {
        match self {
            Helper::Allocate => f.write_str("allocate"),
            Helper::Poll => f.write_str("poll"),
            Helper::Unary(function, ty) => write!(f, "{}:{}", function.name(), ty.name()),
            Helper::Binary(function, ty) => write!(f, "{}:{}", function.name(), ty.name()),
            Helper::Draw(distribution, ty) => write!(f, "{}:{}", distribution.name(), ty.name()),
        }
    }
}

impl Helper {
    /// Reads what [`Display`] writes.
    pub(crate) fn parse(text: &str) -> Option<Helper> {
        let (name, ty) = match text {
            "allocate" => return Some(Helper::Allocate),
            "poll" => return Some(Helper::Poll),
            _ => text.split_once(':')?,
        };
        let ty = ScalarType::from_name(ty)?;
        let unary = ScalarUnary::of_op(name).map(|f| Helper::Unary(f, ty));
        let binary = || ScalarBinary::of_op(name).map(|f| Helper::Binary(f, ty));
        let draw = || Distribution::from_name(name).map(|d| Helper::Draw(d, ty));
        unary.or_else(binary).or_else(draw)
    }
}

/// Returns the address of a function of one float, unless code is made for it.
fn unary(f: ScalarUnary, ty: ScalarType) -> Option<usize> {
    match ty {
        ScalarType::F32 => {
            let simd = simd!(f; Rsqrt, Exp, Expm1, Log, Log1p, Sin, Cos, Asin, Acos, Atan, Tanh,
                Sinh, Cosh, Asinh, Acosh, Atanh, Sigmoid, Erf, Erfc, Reciprocal, Sign);
            simd.or_else(|| field!(f32, f; Tan = Field::tan))
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
fn binary(f: ScalarBinary, ty: ScalarType) -> Option<usize> {
    match (f, ty) {
        (ScalarBinary::Pow, ScalarType::F32) => binary!(f32, Field::pow),
        (ScalarBinary::Pow, ScalarType::F64) => binary!(f64, Field::pow),
        (ScalarBinary::Pow, ScalarType::I32) => binary!(i32, Int::pow),
        (ScalarBinary::Pow, ScalarType::I64) => binary!(i64, Int::pow),
        (ScalarBinary::FloorMod, ScalarType::F32) => binary!(f32, Ordered::floor_mod),
        (ScalarBinary::FloorMod, ScalarType::F64) => binary!(f64, Ordered::floor_mod),
        (ScalarBinary::TruncateMod, ScalarType::F32) => binary!(f32, Ordered::trunc_mod),
        (ScalarBinary::TruncateMod, ScalarType::F64) => binary!(f64, Ordered::trunc_mod),
        (ScalarBinary::Atan2, ScalarType::F32) => {
            binary!(f32, |a, b| binary_single(BinaryOp::Atan2, a, b))
        }
        (ScalarBinary::Atan2, ScalarType::F64) => binary!(f64, Real::atan2),
        _ => None,
    }
}
