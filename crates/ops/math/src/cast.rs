//! Cast between all plain numeric types (TensorFlow: `core/kernels/cast_op.cc`).

use crate::float8::{self, Float8};
use crate::quantized::{self, of_stored_as};
use ferroflow_base::{Result, unimplemented_error};
use ferroflow_functors::numeric::Half;
use ferroflow_functors::shapes;
use ferroflow_functors::unary::{
    CHEAP, ConvertFn, NarrowOutput, UnaryFn, WidenInput, unary_kernel,
};
use ferroflow_functors::vectorized::Vectorized;
use ferroflow_opdef::{GradientCtx, KernelBuild, KernelCtx, Op, OpKernel};
use ferroflow_primitives::truncate::Truncate;
use ferroflow_tensor::{Complex, Complex32, Complex64, DType, Element, bf16, dispatch, f16};

/// Cast.
pub(crate) const OPS: &[Op] = &[Op::new(
    "Cast",
    "x: SrcT -> y: DstT | SrcT: type; DstT: type; Truncate: bool = false |",
)
.shape(shapes::unchanged)
.kernel(cast)
.gradient(cast_gradient)];

/// A conversion with the result of C++ on x86. A float out of range becomes what the conversion
/// instructions return, as in TensorFlow's vectorized loops.
trait CastTo<T> {
    fn cast(self) -> T;
}

macro_rules! primitives {
    ($($from:ty),*) => {$(
        impl CastTo<bool> for $from {
            #[inline(always)]
            fn cast(self) -> bool { self != 0 as $from }
        }
        impl CastTo<$from> for bool {
            #[inline(always)]
            fn cast(self) -> $from { self as u8 as $from }
        }
        primitives!(@complex $from: f32, f64);
    )*};
    (@to $from:ty: $($to:ty),*) => {$(
        impl CastTo<$to> for $from {
            #[inline(always)]
            fn cast(self) -> $to { self as $to }
        }
    )*};
    (@complex $from:ty: $($part:ty),*) => {$(
        impl CastTo<Complex<$part>> for $from {
            #[inline(always)]
            fn cast(self) -> Complex<$part> { Complex::new(self as $part, 0.0) }
        }
        impl CastTo<$from> for Complex<$part> {
            #[inline(always)]
            fn cast(self) -> $from { self.re.cast() }
        }
    )*};
}
primitives!(f32, f64, i8, i16, i32, i64, u8, u16, u32, u64);

macro_rules! integers {
    ($($from:ty),*) => {
        $(primitives!(@to $from: f32, f64, i8, i16, i32, i64, u8, u16, u32, u64);)*
    };
}
integers!(i8, i16, i32, i64, u8, u16, u32, u64);

macro_rules! floats {
    ($($from:ty),*) => {$(
        primitives!(@to $from: f32, f64);
        impl CastTo<i32> for $from {
            #[inline(always)]
            fn cast(self) -> i32 {
                self.to_i32()
            }
        }
        impl CastTo<i64> for $from {
            #[inline(always)]
            fn cast(self) -> i64 {
                self.to_i64()
            }
        }
        impl CastTo<u32> for $from {
            #[inline(always)]
            fn cast(self) -> u32 {
                match (-2147483648.0..4294967296.0).contains(&self) {
                    true => self.to_i64() as u32,
                    false => 1 << 31,
                }
            }
        }
        impl CastTo<u64> for $from {
            #[inline(always)]
            fn cast(self) -> u64 {
                let half = -(i64::MIN as $from);
                match self {
                    x if (-half..half).contains(&x) => x.to_i64() as u64,
                    x if (half..2.0 * half).contains(&x) => x as u64,
                    _ => 1 << 63,
                }
            }
        }
        floats!(@small $from: i8, i16, u8, u16);
    )*};
    (@small $from:ty: $($to:ty),*) => {$(
        impl CastTo<$to> for $from {
            #[inline(always)]
            fn cast(self) -> $to {
                let wide: i32 = self.cast();
                wide.clamp(<$to>::MIN.into(), <$to>::MAX.into()) as $to
            }
        }
    )*};
}
floats!(f32, f64);

macro_rules! complexes {
    ($($from:ty => $to:ty;)*) => {$(
        impl CastTo<Complex<$to>> for Complex<$from> {
            #[inline(always)]
            fn cast(self) -> Complex<$to> { Complex::new(self.re as $to, self.im as $to) }
        }
    )*};
}
complexes! { f32 => f32; f32 => f64; f64 => f32; f64 => f64; }

macro_rules! complex_bools {
    ($($part:ty),*) => {$(
        impl CastTo<bool> for Complex<$part> {
            #[inline(always)]
            fn cast(self) -> bool { self.re != 0.0 || self.im != 0.0 }
        }
        impl CastTo<Complex<$part>> for bool {
            #[inline(always)]
            fn cast(self) -> Complex<$part> { Complex::new(self as u8 as $part, 0.0) }
        }
    )*};
}
complex_bools!(f32, f64);

impl CastTo<bool> for bool {
    fn cast(self) -> bool {
        self
    }
}

fn cast(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    let (from, to) = (build.input(0)?, build.output(0)?);
    if from == to {
        return Ok(Box::new(|ctx: &mut KernelCtx| {
            let x = ctx.take_input(0)?;
            ctx.set_output(0, x)
        }));
    }
    if build.attrs.bool("Truncate")?
        && let Some(kernel) = truncating(from, to)
    {
        return kernel;
    }
    let (stored_from, stored_to) = (stored(from), stored(to));
    let kernel = if let Some(format) = float8::format(from) {
        from_float8(format, to)
    } else if let Some(format) = float8::format(to) {
        to_float8(format, from)
    } else if let DType::Int4 | DType::Uint4 = to {
        to_four_bits(stored_from, to == DType::Int4)
    } else {
        frequent(from, to).or_else(|| between(from, stored_from, stored_to))
    };
    let unsupported = || Err(unimplemented_error!("Cast {from} to {to} is not supported"));
    of_stored_as(build, kernel.unwrap_or_else(unsupported)?, stored)
}

/// Returns the storage type of elements.
fn stored(dtype: DType) -> DType {
    match dtype {
        DType::Float8E5m2 | DType::Float8E4m3fn | DType::Uint4 => DType::Uint8,
        DType::Int4 => DType::Int8,
        dtype => quantized::stored(dtype),
    }
}

/// Returns the frequent casts, which take as long as memory needs.
fn frequent(from: DType, to: DType) -> Option<Kernel> {
    macro_rules! among {
        ($($a:ty => $b:ty),*) => {
            match (from, to) {
                $((<$a>::DTYPE, <$b>::DTYPE) => Some(unary_kernel::<$a, $b>(
                    CHEAP,
                    Vectorized(ConvertFn(<$a as CastTo<$b>>::cast)),
                )),)*
                _ => None,
            }
        };
    }
    among!(
        f32 => i32, f32 => i64, f32 => u8, f32 => f64, f64 => f32, i32 => f32, i32 => i64,
        i64 => i32, i64 => f32, u8 => f32, bool => f32
    )
}

fn between(from: DType, stored_from: DType, stored_to: DType) -> Option<Kernel> {
    let is_small = matches!(from, DType::Int4 | DType::Uint4);
    if is_small && (stored_to.is_floating() || stored_to.is_complex() || stored_to == DType::Bool) {
        return None;
    }
    dispatch!(stored_from, S in [
        f32, f64, i32, i64, bool, u8, i8, i16, u16, u32, u64, Complex32, Complex64
    ] => from_plain::<S>(stored_to), else match from {
        DType::Half => from_half::<f16>(stored_to),
        DType::Bfloat16 => from_half::<bf16>(stored_to),
        _ => None,
    })
}

fn from_float8(format: &'static Float8, to: DType) -> Option<Kernel> {
    if let DType::Int4 | DType::Uint4 = to {
        return None;
    }
    let decode = move |x: u8| format.decode(x);
    if let Some(other) = float8::format(to) {
        let convert = move |x: u8| other.encode(format.decode(x).into());
        return Some(unary_kernel::<u8, u8>(CHEAP, ConvertFn(convert)));
    }
    dispatch!(stored(to), T in [
        f32, f64, i32, i64, bool, u8, i8, i16, u16, u32, u64, Complex32, Complex64
    ] => Some(unary_kernel::<u8, T>(CHEAP, ConvertFn(move |x| CastTo::<T>::cast(decode(x))))),
    else match to {
        DType::Half => Some(unary_kernel::<u8, f16>(CHEAP, NarrowOutput(ConvertFn(decode)))),
        DType::Bfloat16 => Some(unary_kernel::<u8, bf16>(CHEAP, NarrowOutput(ConvertFn(decode)))),
        _ => None,
    })
}

fn to_float8(format: &'static Float8, from: DType) -> Option<Kernel> {
    let encode = move |x: f64| format.encode(x);
    Some(match from {
        DType::Float => unary_kernel::<f32, u8>(CHEAP, ConvertFn(move |x: f32| encode(x.into()))),
        DType::Double => unary_kernel::<f64, u8>(CHEAP, ConvertFn(encode)),
        DType::Half => unary_kernel::<f16, u8>(CHEAP, ConvertFn(move |x: f16| encode(x.into()))),
        DType::Bfloat16 => {
            unary_kernel::<bf16, u8>(CHEAP, ConvertFn(move |x: bf16| encode(x.into())))
        }
        _ => return None,
    })
}

/// Truncates integers to their lowest four bits, stored in a byte each, sign-extended if signed.
fn to_four_bits(from: DType, is_signed: bool) -> Option<Kernel> {
    dispatch!(from, S in [i32, i64, u8, i8, i16, u16, u32, u64] => Some(match is_signed {
        true => unary_kernel::<S, i8>(CHEAP, ConvertFn(|x: S| CastTo::<i8>::cast(x) << 4 >> 4)),
        false => unary_kernel::<S, u8>(CHEAP, ConvertFn(|x: S| CastTo::<u8>::cast(x) & 15)),
    }), else None)
}

/// Returns casts to a shorter float that truncate instead of rounding, if there are any.
fn truncating(from: DType, to: DType) -> Option<Kernel> {
    fn single(digits: u32) -> impl Fn(f32) -> f32 {
        move |x| {
            if x.is_nan() {
                x
            } else {
                f32::from_bits(x.to_bits() >> digits << digits)
            }
        }
    }
    fn double(digits: u32) -> impl Fn(f64) -> f32 {
        move |x| {
            if x.is_nan() {
                f32::NAN
            } else {
                f64::from_bits(x.to_bits() >> digits << digits) as f32
            }
        }
    }
    Some(match (from, to) {
        (DType::Float, DType::Half) => {
            unary_kernel::<f32, f16>(CHEAP, NarrowOutput(UnaryFn(single(13))))
        }
        (DType::Float, DType::Bfloat16) => {
            unary_kernel::<f32, bf16>(CHEAP, NarrowOutput(UnaryFn(single(16))))
        }
        (DType::Double, DType::Float) => unary_kernel::<f64, f32>(CHEAP, ConvertFn(double(29))),
        (DType::Double, DType::Half) => {
            unary_kernel::<f64, f16>(CHEAP, NarrowOutput(ConvertFn(double(42))))
        }
        (DType::Double, DType::Bfloat16) => {
            unary_kernel::<f64, bf16>(CHEAP, NarrowOutput(ConvertFn(double(45))))
        }
        _ => return None,
    })
}

/// A type that converts to all others.
trait CastAll:
    Element
    + CastTo<f32>
    + CastTo<f64>
    + CastTo<i32>
    + CastTo<i64>
    + CastTo<bool>
    + CastTo<u8>
    + CastTo<i8>
    + CastTo<i16>
    + CastTo<u16>
    + CastTo<u32>
    + CastTo<u64>
    + CastTo<Complex32>
    + CastTo<Complex64>
{
}

macro_rules! all {
    ($($ty:ty),*) => { $(impl CastAll for $ty {})* };
}
all!(
    f32, f64, i32, i64, bool, u8, i8, i16, u16, u32, u64, Complex32, Complex64
);

type Kernel = Result<Box<dyn OpKernel>>;

fn from_plain<S: CastAll>(to: DType) -> Option<Kernel> {
    dispatch!(to, T in [
        f32, f64, i32, i64, bool, u8, i8, i16, u16, u32, u64, Complex32, Complex64
    ] => Some(unary_kernel::<S, T>(CHEAP, ConvertFn(<S as CastTo<T>>::cast))),
    else match to {
        DType::Half => Some(unary_kernel::<S, f16>(CHEAP, NarrowOutput(ConvertFn(<S as CastTo<f32>>::cast)))),
        DType::Bfloat16 => {
            Some(unary_kernel::<S, bf16>(CHEAP, NarrowOutput(ConvertFn(<S as CastTo<f32>>::cast))))
        }
        _ => None,
    })
}

fn from_half<H: Half>(to: DType) -> Option<Kernel> {
    dispatch!(to, T in [
        f32, f64, i32, i64, bool, u8, i8, i16, u16, u32, u64, Complex32, Complex64
    ] => Some(unary_kernel::<H, T>(CHEAP, WidenInput(ConvertFn(<f32 as CastTo<T>>::cast)))),
    else match to {
        DType::Half => Some(unary_kernel::<H, f16>(CHEAP, WidenInput(NarrowOutput(UnaryFn(|x: f32| x))))),
        DType::Bfloat16 => Some(unary_kernel::<H, bf16>(CHEAP, WidenInput(NarrowOutput(UnaryFn(|x: f32| x))))),
        _ => None,
    })
}

fn cast_gradient(g: &mut GradientCtx) -> Result<()> {
    let dx = g.dy(0).cast(g.x(0).dtype());
    g.set(0, dx)
}
