//! Strings, element by element.

use ferroflow_base::{Result, invalid_argument};
use ferroflow_functors::broadcast::broadcast_partial;
use ferroflow_functors::shapes;
use ferroflow_opdef::{KernelBuild, KernelCtx, Op, OpKernel};
use ferroflow_tensor::{Bytes, DType, Element, PartialShape, Shape, Tensor};
use std::ops::Neg;
use std::str::FromStr;

/// StringUpper, StringLower, StringStrip, StringLength, StringJoin, StringToNumber.
pub(crate) const OPS: &[Op] = &[
    Op::new(
        "StringUpper",
        "input: string -> output: string | encoding: string = ''",
    )
    .shape(shapes::unchanged)
    .kernel(|b| cased(b, <[u8]>::to_ascii_uppercase, str::to_uppercase))
    .not_differentiable(),
    Op::new(
        "StringLower",
        "input: string -> output: string | encoding: string = ''",
    )
    .shape(shapes::unchanged)
    .kernel(|b| cased(b, <[u8]>::to_ascii_lowercase, str::to_lowercase))
    .not_differentiable(),
    Op::new("StringStrip", "input: string -> output: string")
        .shape(shapes::unchanged)
        .kernel(|_| {
            Ok(Box::new(|ctx: &mut KernelCtx| {
                each(ctx, |s| s.slice_ref(trimmed(s)))
            }))
        })
        .not_differentiable(),
    Op::new(
        "StringLength",
        "input: string -> output: int32 | unit: string {'BYTE','UTF8_CHAR'} = 'BYTE'",
    )
    .shape(shapes::unchanged)
    .kernel(length)
    .not_differentiable(),
    Op::new(
        "StringJoin",
        "inputs: N*string -> output: string | N: int >= 0; separator: string = ''",
    )
    .shape(|ctx| {
        let mut shape = PartialShape::scalar();
        for i in 0..ctx.num_inputs() {
            // Scalars go with everything.
            if ctx.input(i).rank() != Some(0) {
                shape = broadcast_partial(&shape, &ctx.input(i))?;
            }
        }
        if shape.rank() != Some(0) && (0..ctx.num_inputs()).any(|i| ctx.input(i).rank().is_none()) {
            shape = PartialShape::unknown();
        }
        ctx.set(0, shape);
        Ok(())
    })
    .kernel(join)
    .not_differentiable(),
    Op::new(
        "StringToNumber",
        "string_tensor: string -> output: out_type | \
         out_type: type {float,double,int32,int64,uint32,uint64} = float",
    )
    .shape(shapes::unchanged)
    .kernel(to_number)
    .not_differentiable(),
];

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

/// A decimal number, or a hexadecimal integer.
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
        let text = std::str::from_utf8(trimmed(s)).ok().and_then(&parse);
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

fn each(ctx: &mut KernelCtx, f: impl Fn(&Bytes) -> Bytes) -> Result<()> {
    let input = ctx.input(0)?;
    let values = input.strings()?.iter().map(f).collect();
    let out = Tensor::from_strings(input.shape().clone(), values)?;
    ctx.set_output(0, out)
}

fn cased(
    build: &KernelBuild,
    ascii: fn(&[u8]) -> Vec<u8>,
    unicode: fn(&str) -> String,
) -> Result<Box<dyn OpKernel>> {
    match build.attrs.str("encoding")? {
        "" => Ok(Box::new(move |ctx: &mut KernelCtx| {
            each(ctx, |s| ascii(s).into())
        })),
        "utf-8" => Ok(Box::new(move |ctx: &mut KernelCtx| {
            each(ctx, |s| unicode(&String::from_utf8_lossy(s)).into())
        })),
        other => Err(invalid_argument!(
            "only utf-8 or '' (no encoding) is supported, received {other}"
        )),
    }
}

fn trimmed(s: &[u8]) -> &[u8] {
    let is_space = |b: &u8| b.is_ascii_whitespace() || *b == 0x0b;
    let start = s.iter().position(|b| !is_space(b)).unwrap_or(s.len());
    let end = s
        .iter()
        .rposition(|b| !is_space(b))
        .map_or(start, |e| e + 1);
    s.get(start..end).unwrap_or_default()
}

fn length(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    let characters = build.attrs.str("unit")? == "UTF8_CHAR";
    Ok(Box::new(move |ctx: &mut KernelCtx| {
        let input = ctx.input(0)?;
        let length = |s: &Bytes| match characters {
            false => s.len() as i32,
            // Bytes that begin a character.
            true => s.iter().filter(|&b| b & 0xc0 != 0x80).count() as i32,
        };
        let lengths: Vec<i32> = input.strings()?.iter().map(length).collect();
        let out = Tensor::from_slice(input.shape().clone(), &lengths)?;
        ctx.set_output(0, out)
    }))
}

fn join(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    let separator = build.attrs.bytes("separator")?.clone();
    Ok(Box::new(move |ctx: &mut KernelCtx| {
        let mut shape = Shape::scalar();
        for i in 0..ctx.num_inputs() {
            let other = ctx.shape(i)?;
            if other.is_scalar() || *other == shape {
                continue;
            }
            if !shape.is_scalar() {
                return Err(invalid_argument!(
                    "Input shapes do not match: {shape} vs. {other}"
                ));
            }
            shape = other.clone();
        }
        let parts: Vec<&[Bytes]> = (0..ctx.num_inputs())
            .map(|i| ctx.input(i)?.strings())
            .collect::<Result<_>>()?;
        let at = |i: usize| -> Bytes {
            let items = parts.iter().map(|p| match p {
                [one] => one,
                many => &many[i],
            });
            let items: Vec<&[u8]> = items.map(|b| &b[..]).collect();
            items.join(&separator[..]).into()
        };
        let values = (0..shape.num_elements()).map(at).collect();
        ctx.set_output(0, Tensor::from_strings(shape, values)?)
    }))
}
