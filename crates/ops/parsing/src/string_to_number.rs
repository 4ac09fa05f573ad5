//! StringToNumber (TensorFlow: `core/kernels/string_to_number_op.cc`).

use ferroflow_base::{Result, invalid_argument};
use ferroflow_functors::shapes;
use ferroflow_functors::str_util::strip_whitespace;
use ferroflow_opdef::{KernelBuild, KernelCtx, Op, OpKernel};
use ferroflow_sync::par_chunks_mut;
use ferroflow_tensor::{Bytes, DType, Element};
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
        Some(DType::Double) => Box::new(|ctx: &mut KernelCtx| numbers(ctx, float::<f64>)),
        Some(DType::Int32) => {
            Box::new(|ctx: &mut KernelCtx| numbers(ctx, |t| t.parse::<i32>().ok()))
        }
        Some(DType::Int64) => {
            Box::new(|ctx: &mut KernelCtx| numbers(ctx, |t| t.parse::<i64>().ok()))
        }
        Some(DType::Uint32) => {
            Box::new(|ctx: &mut KernelCtx| numbers(ctx, |t| t.parse::<u32>().ok()))
        }
        Some(DType::Uint64) => {
            Box::new(|ctx: &mut KernelCtx| numbers(ctx, |t| t.parse::<u64>().ok()))
        }
        _ => Box::new(|ctx: &mut KernelCtx| numbers(ctx, float::<f32>)),
    })
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
    parse: impl Fn(&str) -> Option<T> + Sync,
) -> Result<()> {
    let input = ctx.input(0)?;
    let strings = input.strings()?;
    let number = |s: &Bytes| {
        let text = std::str::from_utf8(strip_whitespace(s)).ok()?;
        parse(text)
    };
    let mut out = ctx.alloc(T::DTYPE, input.shape().clone())?;
    // The first string that does not hold a number.
    let bad = AtomicUsize::new(usize::MAX);
    par_chunks_mut(ctx.par(), out.slice_mut()?, BLOCK, 1, &|block, to| {
        for (to, i) in to.iter_mut().zip(block * BLOCK..) {
            match number(&strings[i]) {
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
