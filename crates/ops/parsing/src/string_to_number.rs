//! StringToNumber (TensorFlow: `core/kernels/string_to_number_op.cc`).

use ferroflow_base::{Result, invalid_argument};
use ferroflow_functors::shapes;
use ferroflow_functors::str_util::strip_whitespace;
use ferroflow_opdef::{KernelBuild, KernelCtx, Op, OpKernel};
use ferroflow_tensor::{Bytes, DType, Element, Tensor};
use std::ops::Neg;
use std::str::FromStr;

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

fn numbers<T: Element>(ctx: &mut KernelCtx, parse: impl Fn(&str) -> Option<T>) -> Result<()> {
    let input = ctx.input(0)?;
    let number = |s: &Bytes| {
        let text = std::str::from_utf8(strip_whitespace(s))
            .ok()
            .and_then(&parse);
        text.ok_or_else(|| {
            invalid_argument!(
                "StringToNumberOp could not correctly convert string: {}",
                String::from_utf8_lossy(s)
            )
        })
    };
    let values: Vec<T> = input.strings()?.iter().map(number).collect::<Result<_>>()?;
    let out = Tensor::from_slice(input.shape().clone(), &values)?;
    ctx.set_output(0, out)
}
