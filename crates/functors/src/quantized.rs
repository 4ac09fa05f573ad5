//! Quantized numbers: integers that stand for evenly spaced floats of a range
//! (TensorFlow: `core/kernels/quantization_utils.h`).

use ferroflow_base::{Result, invalid_argument};
use ferroflow_opdef::{KernelCtx, ShapeCtx};
use ferroflow_primitives::truncate::Truncate;
use ferroflow_sync::{Parallelism, par_chunks_mut};
use ferroflow_tensor::{DType, Element, PartialShape, Tensor};

/// Elements per task.
const BLOCK: usize = 16 * 1024;

/// Returns the integer type of a quantized dtype; any other dtype unchanged.
pub fn stored(dtype: DType) -> DType {
    match dtype {
        DType::Qint8 => DType::Int8,
        DType::Quint8 => DType::Uint8,
        DType::Qint16 => DType::Int16,
        DType::Quint16 => DType::Uint16,
        DType::Qint32 => DType::Int32,
        other => other,
    }
}

/// The stored integer of a quantized number.
pub trait Stored: Element + Ord {
    /// Lowest value.
    const LOWEST: i64;
    /// Highest value.
    const HIGHEST: i64;
    /// Size in bits.
    const BITS: u32;
    /// Returns the value.
    fn wide(self) -> i64;
    /// Keeps the low bits.
    fn narrow(v: i64) -> Self;
    /// Converts to a float.
    fn float(self) -> f32;
    /// Keeps the low bits of a 32-bit integer.
    fn of_i32(v: i32) -> Self;
    /// Returns the number of values.
    fn steps() -> i64 {
        1 << Self::BITS
    }
}

macro_rules! stored_integers {
    ($($ty:ident),*) => {$(
        impl Stored for $ty {
            const LOWEST: i64 = $ty::MIN as i64;
            const HIGHEST: i64 = $ty::MAX as i64;
            const BITS: u32 = $ty::BITS;
            #[inline(always)]
            fn wide(self) -> i64 {
                self as i64
            }
            #[inline(always)]
            fn narrow(v: i64) -> Self {
                v as $ty
            }
            #[inline(always)]
            fn float(self) -> f32 {
                self as f32
            }
            #[inline(always)]
            fn of_i32(v: i32) -> Self {
                v as $ty
            }
        }
    )*};
}
stored_integers!(i8, u8, i16, u16, i32);

/// Converts to an integer as x86 does: what does not fit becomes the lowest one.
#[inline(always)]
pub fn to_i32(v: f32) -> i32 {
    v.to_i32()
}

/// Rounds half away from zero, without a call of the math library.
#[inline(always)]
pub fn rounded(v: f32) -> f32 {
    match v.abs() < 8_388_608.0 {
        // The largest float below a half, so that the sum does not round up.
        true => to_i32(v + 0.499_999_97_f32.copysign(v)) as f32,
        false => v,
    }
}

/// Returns the code of `x` in a range, which may lie outside the type.
pub fn code_unclamped<T: Stored>(x: f32, min: f32, max: f32) -> i64 {
    if min == max {
        return T::LOWEST;
    }
    let scale = T::steps() as f64 / range::<T>(min, max);
    let code = (f64::from(x) * scale).round() - (f64::from(min) * scale).round();
    (code as i64).wrapping_add(T::LOWEST)
}

/// Returns the code of `x` in a range.
pub fn code<T: Stored>(x: f32, min: f32, max: f32) -> T {
    T::narrow(code_unclamped::<T>(x, min, max).clamp(T::LOWEST, T::HIGHEST))
}

/// The width of a range with one more step than there are between the values.
fn range<T: Stored>(min: f32, max: f32) -> f64 {
    let steps = T::steps() as f64;
    f64::from(max - min) * (steps / (steps - 1.0))
}

/// Returns the float that a code stands for.
pub fn value<T: Stored>(code: T, min: f32, max: f32) -> f32 {
    if min == max {
        return min;
    }
    let scale = range::<T>(min, max) / T::steps() as f64;
    let offset = code.wide() as f64 - T::LOWEST as f64;
    let base = (min / scale as f32).round() * scale as f32;
    (f64::from(base) + offset * scale) as f32
}

/// Returns the difference of the floats of consecutive codes.
pub fn level<T: Stored>(min: f32, max: f32) -> f32 {
    (max - min) / (T::HIGHEST - T::LOWEST) as f32
}

/// Returns the range of 32-bit sums of products.
pub fn product_range<A: Stored, B: Stored>([min_a, max_a]: [f32; 2], b: [f32; 2]) -> [f32; 2] {
    let level = level::<A>(min_a, max_a) * level::<B>(b[0], b[1]);
    [level * i32::MIN as f32, level * i32::MAX as f32]
}

/// Converts codes of a range to floats.
#[derive(Clone, Copy, Debug)]
pub struct Dequantizer {
    base: f32,
    scale: f32,
}

impl Dequantizer {
    /// Returns the conversion for a range.
    pub fn new<T: Stored>(min: f32, max: f32) -> Self {
        let scale = (f64::from(max - min) / (T::steps() as f64 - 1.0)) as f32;
        let first = match max == min {
            true => min,
            false => (min / scale).round() * scale,
        };
        Dequantizer {
            base: first - T::LOWEST as f32 * scale,
            scale,
        }
    }

    /// Returns the float of a code.
    #[inline(always)]
    pub fn value<T: Stored>(self, code: T) -> f32 {
        self.base + code.float() * self.scale
    }
}

/// Converts floats to codes of a range.
#[derive(Clone, Copy, Debug)]
pub struct Quantizer {
    scale: f32,
    shift: f32,
    lowest: f32,
    highest: f32,
}

impl Quantizer {
    /// Returns the conversion for a range.
    pub fn new<T: Stored>(min: f32, max: f32) -> Self {
        let scale = match max == min {
            true => 0.0,
            false => ((T::steps() as f64 - 1.0) / f64::from(max - min)) as f32,
        };
        Quantizer {
            scale,
            shift: (min * scale).round() - T::LOWEST as f32,
            lowest: T::LOWEST as f32,
            highest: (T::HIGHEST as f32).min(2_147_483_520.0),
        }
    }

    /// Returns the code of a float.
    #[inline(always)]
    pub fn code<T: Stored>(self, x: f32) -> T {
        let code = rounded(x * self.scale) - self.shift;
        let code = if code < self.lowest {
            self.lowest
        } else {
            code
        };
        let code = if code > self.highest {
            self.highest
        } else {
            code
        };
        T::of_i32(code as i32)
    }
}

/// Applies `f` to every element.
pub fn par_map<A: Copy + Sync, B: Send>(
    par: &dyn Parallelism,
    from: &[A],
    to: &mut [B],
    f: impl Fn(A) -> B + Sync,
) {
    par_chunks_mut(par, to, BLOCK, 1, &|i, to| {
        for (to, from) in to.iter_mut().zip(&from[i * BLOCK..]) {
            *to = f(*from);
        }
    });
}

/// Converts 32-bit codes of one range to codes of another, as TensorFlow does: to 8 bits without
/// sign in fixed point, else through floats.
pub fn requantize<T: Stored>(
    par: &dyn Parallelism,
    from: &[i32],
    [min, max]: [f32; 2],
    [new_min, new_max]: [f32; 2],
    to: &mut [T],
) {
    if (T::LOWEST, T::HIGHEST) != (0, 255) {
        let (of, into) = (
            Dequantizer::new::<i32>(min, max),
            Quantizer::new::<T>(new_min, new_max),
        );
        return par_map(par, from, to, |code| into.code(of.value(code)));
    }
    const SHIFT: f64 = 65_536.0;
    let (range, new_range) = (max - min, new_max - new_min);
    let (scale, offset) = match new_range == 0.0 {
        true => (0, 0),
        false => {
            let reciprocal = (255.0 / f64::from(new_range)) as f32;
            let center = (f64::from(min + max) / 2.0) as f32;
            let scale = 255.0 * SHIFT * f64::from(range) / f64::from(new_range);
            let first = SHIFT * (f64::from(new_min) * 255.0) / f64::from(new_range);
            let offset = (center * reciprocal * SHIFT as f32) as i64;
            (scale as i64, offset.wrapping_sub(first.round() as i64))
        }
    };
    let offset = offset.wrapping_add(1 << 15);
    par_map(par, from, to, |code| {
        let fixed = (i64::from(code).wrapping_mul(scale) >> 32).wrapping_add(offset);
        T::narrow((fixed >> 16).clamp(0, 255))
    });
}

/// Returns input `i` as its stored integers.
///
/// # Errors
/// INVALID_ARGUMENT if the node has no such input; INTERNAL if it has no value.
pub fn codes(ctx: &KernelCtx, i: usize) -> Result<Tensor> {
    let t = ctx.input(i)?;
    let dtype = stored(t.dtype());
    match dtype == t.dtype() {
        true => Ok(t.clone()),
        false => t.bitcast(dtype),
    }
}

/// Sets output `i` to stored integers, as `dtype`.
///
/// # Errors
/// INTERNAL if the node has no such output or the sizes of the dtypes differ.
pub fn set_codes(ctx: &mut KernelCtx, i: usize, codes: Tensor, dtype: DType) -> Result<()> {
    match codes.dtype() == dtype {
        true => ctx.set_output(i, codes),
        false => ctx.set_output(i, codes.bitcast(dtype)?),
    }
}

/// Sets outputs `i` and `i + 1` to the ends of a range.
///
/// # Errors
/// INTERNAL if the node has no such outputs.
pub fn set_range(ctx: &mut KernelCtx, i: usize, [min, max]: [f32; 2]) -> Result<()> {
    ctx.set_output(i, Tensor::scalar(min))?;
    ctx.set_output(i + 1, Tensor::scalar(max))
}

/// Returns float scalar input `i`.
///
/// # Errors
/// INVALID_ARGUMENT, naming the input, if it is not a scalar.
pub fn scalar(ctx: &KernelCtx, i: usize, name: &str) -> Result<f32> {
    let t = ctx.input(i)?;
    match t.shape().rank() {
        0 => t.to_scalar(),
        rank => Err(invalid_argument!(
            "`{name}` must be rank 0 but is rank {rank}"
        )),
    }
}

/// Returns scalar inputs `i` and `i + 1`, the ends of a range.
///
/// # Errors
/// INVALID_ARGUMENT, naming the input, if one is not a scalar.
pub fn range_of(ctx: &KernelCtx, i: usize, names: [&str; 2]) -> Result<[f32; 2]> {
    Ok([scalar(ctx, i, names[0])?, scalar(ctx, i + 1, names[1])?])
}

/// Checks that the inputs in `scalars` are scalars, as far as known, and sets the last two outputs
/// to scalars.
///
/// # Errors
/// INVALID_ARGUMENT if an input is not a scalar.
pub fn scalar_ranges(ctx: &mut ShapeCtx, scalars: std::ops::Range<usize>) -> Result<()> {
    for i in scalars {
        ctx.with_rank(i, 0)?;
    }
    let n = ctx.num_outputs();
    for i in n.saturating_sub(2)..n {
        ctx.set(i, PartialShape::scalar());
    }
    Ok(())
}

/// Applies `f` to every element of slices along an axis, each with its parameter: `post` elements
/// of a slice lie together.
pub fn map_slices<A: Copy + Sync, B: Send, P: Sync>(
    par: &dyn Parallelism,
    from: &[A],
    to: &mut [B],
    params: &[P],
    post: usize,
    f: impl Fn(A, &P) -> B + Sync,
) {
    // The parameter of all elements is that of a slice of any length.
    let (n, post) = match params {
        [] => return,
        [_] => (1, BLOCK),
        _ => (params.len(), post),
    };
    match post {
        0 => {}
        1 => par_chunks_mut(par, to, n, (BLOCK / n).max(1), &|i, to| {
            for ((to, from), p) in to.iter_mut().zip(&from[i * n..]).zip(params) {
                *to = f(*from, p);
            }
        }),
        _ => par_chunks_mut(par, to, post, (BLOCK / post).max(1), &|i, to| {
            let p = &params[i % n];
            for (to, from) in to.iter_mut().zip(&from[i * post..]) {
                *to = f(*from, p);
            }
        }),
    }
}

/// Rounds half to even, without a call of the math library.
#[inline(always)]
pub fn rounded_even(v: f32) -> f32 {
    // Adding and subtracting this number leaves no bits for a fraction.
    const SHIFT: f32 = 12_582_912.0;
    match v.abs() < 4_194_304.0 {
        true => ((v + SHIFT) - SHIFT).copysign(v),
        false => v.round_ties_even(),
    }
}
