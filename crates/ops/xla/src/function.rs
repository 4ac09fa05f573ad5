//! The functions of ops that reduce, scatter and sort: known ones run as loops, others are called.

use ferroflow_base::{Result, Status, invalid_argument};
use ferroflow_functors::numeric::{Num, Ordered};
use ferroflow_opdef::{Callable, KernelCtx, StepServices};
use ferroflow_primitives::math::{BinaryOp, binary_left};
use ferroflow_tensor::{Complex32, Complex64, Element, Tensor, bf16, f16};
use std::ops::{BitAnd, BitOr, BitXor};
use std::sync::Arc;

/// A function of scalars that an attr names.
pub(crate) struct Function<'a> {
    callable: Arc<dyn Callable>,
    services: StepServices<'a>,
}

impl<'a> Function<'a> {
    pub(crate) fn of(ctx: &KernelCtx<'a>, name: &str) -> Result<Self> {
        Ok(Function {
            callable: ctx.function(name)?,
            services: *ctx.services(),
        })
    }

    /// Returns the op that the function is, if it is only one.
    pub(crate) fn only_op(&self) -> Option<&str> {
        self.callable.only_op()
    }

    /// Returns whether the function may be called with tensors in place of scalars.
    pub(crate) fn is_elementwise(&self) -> bool {
        self.callable.is_elementwise()
    }

    /// Returns the function's results.
    pub(crate) fn call(&self, args: Vec<Tensor>) -> Result<Vec<Tensor>> {
        self.services.cancel.check()?;
        self.callable.call(args, &self.services)
    }

    /// Returns the function's scalar for two.
    pub(crate) fn call2<T: Element, R: Element>(&self, a: T, b: T) -> Result<R> {
        let results = self.call(vec![Tensor::scalar(a), Tensor::scalar(b)])?;
        match &results[..] {
            [result] if result.shape().is_scalar() => result.to_scalar(),
            _ => Err(unfit()),
        }
    }

    /// Returns how the function combines elements of type `T`.
    pub(crate) fn combine<T: Combined>(&self) -> Combine<'_, 'a, T> {
        match (
            self.callable.forwarded_arg(),
            self.only_op().and_then(T::known),
        ) {
            (Some(0), _) => Combine::Known(|a, _| a),
            (Some(1), _) => Combine::Known(|_, b| b),
            (_, Some(known)) => Combine::Known(known),
            _ => Combine::Called(self),
        }
    }
}

/// Returns the error of a function whose results do not fit the op.
#[cold]
pub(crate) fn unfit() -> Status {
    invalid_argument!("the function must return a scalar for each of its values")
}

/// How two elements become one.
pub(crate) enum Combine<'f, 'a, T> {
    Known(fn(T, T) -> T),
    Called(&'f Function<'a>),
}

impl<T: Element> Combine<'_, '_, T> {
    /// Returns the function, if it is a known one.
    pub(crate) fn known(&self) -> Option<fn(T, T) -> T> {
        match self {
            Combine::Known(f) => Some(*f),
            Combine::Called(_) => None,
        }
    }

    #[inline]
    pub(crate) fn apply(&self, a: T, b: T) -> Result<T> {
        match self {
            Combine::Known(f) => Ok(f(a, b)),
            Combine::Called(function) => function.call2(a, b),
        }
    }
}

/// Combines each element of a row with one of another row.
pub(crate) type Rows<T> = fn(&mut [T], &[T]);

/// An element type with functions that are known by the op they consist of.
pub(crate) trait Combined: Element {
    /// Returns the function of two elements that an op computes.
    fn known(op: &str) -> Option<fn(Self, Self) -> Self>;

    /// Returns the same for each element of a row and one of another row, as vectors compute it.
    fn known_rows(_op: &str) -> Option<Rows<Self>> {
        None
    }

    /// Returns the result of a comparison of two elements, if the op is one.
    fn compared(_op: &str, _a: Self, _b: Self) -> Option<bool> {
        None
    }
}

/// The comparisons of elements that have an order.
macro_rules! comparisons {
    () => {
        #[inline]
        fn compared(op: &str, a: Self, b: Self) -> Option<bool> {
            Some(match op {
                "GreaterEqual" => a >= b,
                "Greater" => a > b,
                "LessEqual" => a <= b,
                "Less" => a < b,
                _ => return None,
            })
        }
    };
}

macro_rules! ordered {
    ($($ty:ty),*: $bits:expr, $rows:expr) => {$(
        impl Combined for $ty {
            comparisons!();

            fn known(op: &str) -> Option<fn(Self, Self) -> Self> {
                Some(match op {
                    "Add" | "AddV2" => Num::add,
                    "Mul" => Num::mul,
                    "Maximum" => Ordered::larger,
                    "Minimum" => Ordered::smaller,
                    _ => return $bits(op),
                })
            }

            fn known_rows(op: &str) -> Option<Rows<Self>> {
                $rows(op)
            }
        }
    )*};
}
ordered!(f64: |_: &str| None, |_: &str| None);
ordered!(f32: |_: &str| None, single_rows);
ordered!(i8, i16, i32, i64, u8, u16, u32, u64: bits, |_: &str| None);

/// Returns the function of two rows that an op computes.
fn single_rows(op: &str) -> Option<Rows<f32>> {
    Some(match op {
        "Add" | "AddV2" => |a, b| binary_left(BinaryOp::Add, a, b),
        "Mul" => |a, b| binary_left(BinaryOp::Mul, a, b),
        "Maximum" => |a, b| binary_left(BinaryOp::Max, a, b),
        "Minimum" => |a, b| binary_left(BinaryOp::Min, a, b),
        _ => return None,
    })
}

/// Returns the function of two integers that an op of their bits computes.
fn bits<T>(op: &str) -> Option<fn(T, T) -> T>
where
    T: BitAnd<Output = T> + BitOr<Output = T> + BitXor<Output = T>,
{
    Some(match op {
        "BitwiseAnd" => |a, b| a & b,
        "BitwiseOr" => |a, b| a | b,
        "BitwiseXor" => |a, b| a ^ b,
        _ => return None,
    })
}

macro_rules! halves {
    ($($ty:ty),*) => {$(
        impl Combined for $ty {
            comparisons!();

            fn known(op: &str) -> Option<fn(Self, Self) -> Self> {
                Some(match op {
                    "Add" | "AddV2" => |a, b| a + b,
                    "Mul" => |a, b| a * b,
                    "Maximum" => |a, b| if a > b || a.is_nan() { a } else { b },
                    "Minimum" => |a, b| if a < b || a.is_nan() { a } else { b },
                    _ => return None,
                })
            }
        }
    )*};
}
halves!(f16, bf16);

macro_rules! complex {
    ($($ty:ty),*) => {$(
        impl Combined for $ty {
            fn known(op: &str) -> Option<fn(Self, Self) -> Self> {
                Some(match op {
                    "Add" | "AddV2" => Num::add,
                    "Mul" => Num::mul,
                    _ => return None,
                })
            }
        }
    )*};
}
complex!(Complex32, Complex64);

impl Combined for bool {
    fn known(op: &str) -> Option<fn(Self, Self) -> Self> {
        Some(match op {
            "LogicalAnd" => |a, b| a & b,
            "LogicalOr" => |a, b| a | b,
            _ => return None,
        })
    }
}

/// Runs `$body` with the type of elements as `$T`, for the types that functions combine.
macro_rules! dispatch_combined {
    ($dtype:expr, $T:ident => $body:expr, else $otherwise:expr) => {
        ferroflow_tensor::dispatch!($dtype, $T in [
            f32, f64, ferroflow_tensor::f16, ferroflow_tensor::bf16, i8, i16, i32, i64, u8, u16, u32, u64, bool,
            ferroflow_tensor::Complex32, ferroflow_tensor::Complex64
        ] => $body, else $otherwise)
    };
}
pub(crate) use dispatch_combined;
