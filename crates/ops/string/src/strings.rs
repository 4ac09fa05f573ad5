//! StringUpper, StringLower, StringStrip, StringLength, StringJoin (TensorFlow:
//! `core/kernels/string_*_op.cc`).

use crate::packer::{Packer, ranges_of_strings, strings_of};
use ferroflow_base::{Result, invalid_argument};
use ferroflow_functors::broadcast::broadcast_partial;
use ferroflow_functors::shapes;
use ferroflow_functors::str_util::{is_trail_byte, strip_whitespace};
use ferroflow_opdef::{KernelBuild, KernelCtx, Op, OpKernel};
use ferroflow_tensor::{Bytes, PartialShape, Shape, Tensor, Texts};
use std::ops::Range;

/// The ops of this file.
pub(crate) const OPS: &[Op] = &[
    Op::new(
        "StringUpper",
        "input: string -> output: string | encoding: string = ''",
    )
    .shape(shapes::unchanged)
    .kernel(|b| cased(b, <[u8]>::make_ascii_uppercase, str::to_uppercase))
    .not_differentiable(),
    Op::new(
        "StringLower",
        "input: string -> output: string | encoding: string = ''",
    )
    .shape(shapes::unchanged)
    .kernel(|b| cased(b, <[u8]>::make_ascii_lowercase, str::to_lowercase))
    .not_differentiable(),
    Op::new("StringStrip", "input: string -> output: string")
        .shape(shapes::unchanged)
        .kernel(|_| {
            Ok(Box::new(|ctx: &mut KernelCtx| {
                each_part(ctx, |s| {
                    let kept = strip_whitespace(s);
                    let start = kept.as_ptr().addr() - s.as_ptr().addr();
                    start..start + kept.len()
                })
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
            // Scalars are broadcast.
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
];

/// Sets output 0 to the part `f` of every string of input 0.
fn each_part(ctx: &mut KernelCtx, f: impl Fn(&[u8]) -> Range<usize> + Sync) -> Result<()> {
    let input = ctx.input(0)?;
    let texts = input.texts()?;
    let out = strings_of(ctx, input.shape(), |i, out| {
        out.part(texts, i, f(texts.get(i)));
    })?;
    ctx.set_output(0, out)
}

/// Sets output 0 to what `f` writes for every string of input 0.
pub(crate) fn each_written(
    ctx: &mut KernelCtx,
    f: impl Fn(&[u8], &mut Vec<u8>) + Sync,
) -> Result<()> {
    let input = ctx.input(0)?;
    let texts = input.texts()?;
    let out = strings_of(ctx, input.shape(), |i, out| {
        out.write(|out| f(texts.get(i), out));
    })?;
    ctx.set_output(0, out)
}

/// Sets output 0 to `f` of every string of input 0, or fails with the first error.
pub(crate) fn try_each(ctx: &mut KernelCtx, f: impl Fn(&Bytes) -> Result<Bytes>) -> Result<()> {
    let input = ctx.input(0)?;
    let values = input.strings()?.iter().map(f).collect::<Result<_>>()?;
    let out = Tensor::from_strings(input.shape().clone(), values)?;
    ctx.set_output(0, out)
}

fn cased(
    build: &KernelBuild,
    ascii: fn(&mut [u8]),
    unicode: fn(&str) -> String,
) -> Result<Box<dyn OpKernel>> {
    match build.attrs.str("encoding")? {
        "" => Ok(Box::new(move |ctx: &mut KernelCtx| {
            let input = ctx.input(0)?;
            let texts = input.texts()?;
            let out = ranges_of_strings(ctx, input.shape(), |range, out: &mut Packer| {
                range.for_each(|i| out.write(|out| out.extend_from_slice(texts.get(i))));
                out.overwrite(ascii);
            })?;
            ctx.set_output(0, out)
        })),
        "utf-8" => Ok(Box::new(move |ctx: &mut KernelCtx| {
            each_written(ctx, |s, out| {
                out.extend_from_slice(unicode(&String::from_utf8_lossy(s)).as_bytes());
            })
        })),
        other => Err(invalid_argument!(
            "only utf-8 or '' (no encoding) is supported, received {other}"
        )),
    }
}

fn length(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    let characters = build.attrs.str("unit")? == "UTF8_CHAR";
    Ok(Box::new(move |ctx: &mut KernelCtx| {
        let input = ctx.input(0)?;
        let length = |s: &[u8]| match characters {
            false => s.len() as i32,
            // Count the bytes that begin a character.
            true => s.iter().filter(|&&b| !is_trail_byte(b)).count() as i32,
        };
        let lengths: Vec<i32> = input.texts()?.iter().map(length).collect();
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
        let parts: Vec<Texts> = (0..ctx.num_inputs())
            .map(|i| ctx.input(i)?.texts())
            .collect::<Result<_>>()?;
        let write = |i: usize, out: &mut Vec<u8>| {
            for (n, part) in parts.iter().enumerate() {
                if n > 0 {
                    out.extend_from_slice(&separator);
                }
                out.extend_from_slice(part.get(if part.len() == 1 { 0 } else { i }));
            }
        };
        let out = strings_of(ctx, &shape, |i, out| out.write(|out| write(i, out)))?;
        ctx.set_output(0, out)
    }))
}
