//! StringUpper, StringLower, StringStrip, StringLength, StringJoin (TensorFlow:
//! `core/kernels/string_*_op.cc`).

use ferroflow_base::{Result, invalid_argument};
use ferroflow_functors::broadcast::broadcast_partial;
use ferroflow_functors::shapes;
use ferroflow_functors::str_util::{is_trail_byte, strip_whitespace};
use ferroflow_opdef::{KernelBuild, KernelCtx, Op, OpKernel};
use ferroflow_sync::par_chunks_mut;
use ferroflow_tensor::{Bytes, PartialShape, Shape, Tensor};
use std::ops::Range;

/// The ops of this file.
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
                each(ctx, |s| s.slice_ref(strip_whitespace(s)))
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

/// Strings that one thread computes in a row.
pub(crate) const BLOCK: usize = 1024;

/// Returns `n` strings, computed by several threads: `f` of their positions and of a buffer that it may use.
pub(crate) fn strings_of(
    ctx: &KernelCtx,
    n: usize,
    f: impl Fn(usize, &mut Vec<u8>) -> Bytes + Sync,
) -> Vec<Bytes> {
    let part = |range: Range<usize>| -> Vec<Bytes> {
        let mut buffer = Vec::new();
        range.map(|i| f(i, &mut buffer)).collect()
    };
    let width = ctx.par().width();
    if n <= BLOCK || width == 1 {
        return part(0..n);
    }
    let len = n.div_ceil(width).max(BLOCK);
    let mut parts = vec![Vec::new(); n.div_ceil(len)];
    par_chunks_mut(ctx.par(), &mut parts, 1, 1, &|i, to| {
        to[0] = part(i * len..n.min((i + 1) * len));
    });
    let mut values = Vec::with_capacity(n);
    values.extend(parts.into_iter().flatten());
    values
}

/// Sets output 0 to `f` of every string of input 0.
pub(crate) fn each(ctx: &mut KernelCtx, f: impl Fn(&Bytes) -> Bytes + Sync) -> Result<()> {
    let input = ctx.input(0)?;
    let strings = input.strings()?;
    let values = strings_of(ctx, strings.len(), |i, _| f(&strings[i]));
    let out = Tensor::from_strings(input.shape().clone(), values)?;
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

fn length(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    let characters = build.attrs.str("unit")? == "UTF8_CHAR";
    Ok(Box::new(move |ctx: &mut KernelCtx| {
        let input = ctx.input(0)?;
        let length = |s: &Bytes| match characters {
            false => s.len() as i32,
            // Count the bytes that begin a character.
            true => s.iter().filter(|&&b| !is_trail_byte(b)).count() as i32,
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
        let values = strings_of(ctx, shape.num_elements(), |i, _| at(i));
        ctx.set_output(0, Tensor::from_strings(shape, values)?)
    }))
}
