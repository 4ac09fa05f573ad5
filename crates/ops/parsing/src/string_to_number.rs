//! StringToNumber (TensorFlow: `core/kernels/string_to_number_op.cc`).

use ferroflow_base::{Result, invalid_argument};
use ferroflow_functors::shapes;
use ferroflow_functors::str_util::strip_whitespace;
use ferroflow_opdef::{KernelBuild, KernelCtx, Op, OpKernel};
use ferroflow_sync::par_chunks_mut;
use ferroflow_tensor::{DType, Element};
use std::ops::Neg;
use std::str::FromStr;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The ops of this file.
pub(crate) const OPS: &[Op] = &[Op::new(
    "StringToNumber",
    "string_tensor: string -> output: out_type | \
         out_type: type {float,double,int32,int64,uint32,uint64} = float",
)
.shape(shapes::unchanged)
.kernel(to_number)
.not_differentiable()];

fn to_number(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    Ok(match build.outputs.first() {
        Some(DType::Double) => Box::new(|ctx: &mut KernelCtx| {
            numbers(ctx, |t| {
                quotient(t, 1 << 53).or_else(|| float(std::str::from_utf8(t).ok()?))
            })
        }),
        Some(DType::Int32) => Box::new(|ctx: &mut KernelCtx| numbers(ctx, integer::<i32>)),
        Some(DType::Int64) => Box::new(|ctx: &mut KernelCtx| numbers(ctx, integer::<i64>)),
        Some(DType::Uint32) => Box::new(|ctx: &mut KernelCtx| numbers(ctx, integer::<u32>)),
        Some(DType::Uint64) => Box::new(|ctx: &mut KernelCtx| numbers(ctx, integer::<u64>)),
        _ => Box::new(|ctx: &mut KernelCtx| {
            numbers(ctx, |t| match quotient(t, 1 << 24) {
                Some(value) => Some(value as f32),
                None => float(std::str::from_utf8(t).ok()?),
            })
        }),
    })
}

fn integer<T: FromStr>(text: &[u8]) -> Option<T> {
    std::str::from_utf8(text).ok()?.parse().ok()
}

/// Powers of ten that 24 bits hold.
const POWERS: [f64; 11] = [1e0, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9, 1e10];

/// Parses a short decimal number without exponent whose digits are a number up to `limit`. Digits and power of ten
/// are exact, so that their quotient is the nearest number, also after it is rounded to 24 bits if they have as many
/// (Figueroa, "When is double rounding innocuous?").
fn quotient(text: &[u8], limit: u64) -> Option<f64> {
    let (negative, digits) = match text {
        [b'-', digits @ ..] => (true, digits),
        _ => (false, text),
    };
    if digits.len() > POWERS.len() {
        return None;
    }
    let (mut value, mut places) = (0, None);
    for (i, byte) in digits.iter().enumerate() {
        match byte {
            b'0'..=b'9' => value = value * 10 + u64::from(byte - b'0'),
            b'.' if places.is_none() => places = Some(digits.len() - 1 - i),
            _ => return None,
        }
    }
    if value > limit || digits.len() == usize::from(places.is_some()) {
        return None;
    }
    let quotient = value as f64 / POWERS.get(places.unwrap_or(0))?;
    Some(if negative { -quotient } else { quotient })
}

/// Parses a decimal number, or a hexadecimal integer.
fn float<T: FromStr + Neg<Output = T>>(text: &str) -> Option<T> {
    let (negative, digits) = match text.strip_prefix('-') {
        Some(digits) => (true, digits),
        None => (false, text.strip_prefix('+').unwrap_or(text)),
    };
    let hex = digits.strip_prefix("0x").or(digits.strip_prefix("0X"));
    let Some(hex) = hex.filter(|h| h.bytes().all(|b| b.is_ascii_hexdigit())) else {
        return text.parse().ok();
    };
    let whole = u64::from_str_radix(hex, 16).ok()?;
    let value: T = whole.to_string().parse().ok()?;
    Some(if negative { -value } else { value })
}

/// Strings that one thread parses in a row.
const BLOCK: usize = 1024;

fn numbers<T: Element>(
    ctx: &mut KernelCtx,
    parse: impl Fn(&[u8]) -> Option<T> + Sync,
) -> Result<()> {
    let input = ctx.input(0)?;
    let strings = input.strings()?;
    let mut out = ctx.alloc(T::DTYPE, input.shape().clone())?;
    // The first string that does not hold a number.
    let bad = AtomicUsize::new(usize::MAX);
    par_chunks_mut(ctx.par(), out.slice_mut()?, BLOCK, 1, &|block, to| {
        for (to, i) in to.iter_mut().zip(block * BLOCK..) {
            match parse(strip_whitespace(&strings[i])) {
                Some(value) => *to = value,
                None => {
                    bad.fetch_min(i, Ordering::Relaxed);
                    return;
                }
            }
        }
    });
    match strings.get(bad.into_inner()) {
        Some(bad) => Err(invalid_argument!(
            "StringToNumberOp could not correctly convert string: {}",
            String::from_utf8_lossy(bad)
        )),
        None => ctx.set_output(0, out),
    }
}
