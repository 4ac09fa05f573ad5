//! Conversions between types of numbers, for ops that compute in another type than their inputs have.

use ferroflow_base::{Result, invalid_argument};
use ferroflow_tensor::{Complex32, Complex64, DType, Element, Tensor, bf16, dispatch, f16};

/// A number of any type.
#[derive(Clone, Copy)]
enum Number {
    Int(i128),
    Real(f64),
    Complex(Complex64),
}

/// A type whose elements are numbers.
trait ToNumber: Element {
    fn number(self) -> Number;
    fn of_number(number: Number) -> Self;
}

macro_rules! ints {
    ($($ty:ty),*) => {$(
        impl ToNumber for $ty {
            #[inline(always)]
            fn number(self) -> Number { Number::Int(self.into()) }
            #[inline(always)]
            fn of_number(number: Number) -> Self {
                match number {
                    Number::Int(x) => x as $ty,
                    Number::Real(x) => x as $ty,
                    Number::Complex(x) => x.re as $ty,
                }
            }
        }
    )*};
}
ints!(i8, i16, i32, i64, u8, u16, u32, u64);

macro_rules! reals {
    ($($ty:ty, $of:expr;)*) => {$(
        impl ToNumber for $ty {
            #[inline(always)]
            fn number(self) -> Number { Number::Real(self.into()) }
            #[inline(always)]
            fn of_number(number: Number) -> Self {
                match number {
                    Number::Int(x) => $of(x as f64),
                    Number::Real(x) => $of(x),
                    Number::Complex(x) => $of(x.re),
                }
            }
        }
    )*};
}
reals! {
    f64, |x| x;
    f32, |x| x as f32;
    f16, f16::from_f64;
    bf16, bf16::from_f64;
}

macro_rules! complex {
    ($($ty:ty, $part:ty;)*) => {$(
        impl ToNumber for $ty {
            #[inline(always)]
            fn number(self) -> Number {
                Number::Complex(Complex64::new(self.re.into(), self.im.into()))
            }
            #[inline(always)]
            fn of_number(number: Number) -> Self {
                match number {
                    Number::Int(x) => Self::new(x as $part, 0.0),
                    Number::Real(x) => Self::new(x as $part, 0.0),
                    Number::Complex(x) => Self::new(x.re as $part, x.im as $part),
                }
            }
        }
    )*};
}
complex! {
    Complex32, f32;
    Complex64, f64;
}

/// Returns the tensor with elements of type `to`: integers wrap, floats that do not fit an integer become its
/// nearest value.
///
/// # Errors
/// INVALID_ARGUMENT for types that are not numbers; RESOURCE_EXHAUSTED if the result does not fit into memory.
pub fn converted(t: &Tensor, to: DType) -> Result<Tensor> {
    if t.dtype() == to {
        return Ok(t.clone());
    }
    let mut out = Tensor::for_overwrite(to, t.shape().clone())?;
    let unfit = || invalid_argument!("{} cannot be converted to {to}", t.dtype());
    dispatch!(t.dtype(), F in [f32, f64, f16, bf16, i8, i16, i32, i64, u8, u16, u32, u64, Complex32, Complex64] => {
        let from = t.slice::<F>()?;
        dispatch!(to, T in [f32, f64, f16, bf16, i8, i16, i32, i64, u8, u16, u32, u64, Complex32, Complex64] => {
            for (to, from) in out.slice_mut::<T>()?.iter_mut().zip(from) {
                *to = T::of_number(from.number());
            }
        }, else return Err(unfit()))
    }, else return Err(unfit()));
    Ok(out)
}

/// Returns the type in which numbers of both types are computed: the larger one, a float rather than an integer,
/// a complex number rather than a float.
pub fn common(a: DType, b: DType) -> DType {
    let class = |t: DType| match t {
        t if t.is_complex() => 2,
        t if t.is_floating() => 1,
        _ => 0,
    };
    match (class(a).cmp(&class(b)), a.size().cmp(&b.size())) {
        (std::cmp::Ordering::Greater, _) => a,
        (std::cmp::Ordering::Less, _) => b,
        // Neither of the two floats of 16 bits holds all of the other.
        (_, std::cmp::Ordering::Equal) if a != b && class(a) == 1 => DType::Float,
        (_, std::cmp::Ordering::Less) => b,
        _ => a,
    }
}
