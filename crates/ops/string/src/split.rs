//! StringSplit and StringSplitV2 (TensorFlow: `core/kernels/string_split_op.cc`).

use crate::packer::Packer;
use ferroflow_base::{Result, invalid_argument};
use ferroflow_functors::str_util::is_space;
use ferroflow_opdef::{KernelCtx, Op, ShapeCtx};
use ferroflow_tensor::{Bytes, PartialShape, Tensor};

/// The ops of this file.
pub(crate) const OPS: &[Op] = &[
    Op::new(
        "StringSplit",
        "input: string, delimiter: string -> indices: int64, values: string, shape: \
         int64 | skip_empty: bool = true",
    )
    .shape(split_shape)
    .kernel(|build| {
        let skip_empty = build.attrs.bool("skip_empty")?;
        Ok(Box::new(move |ctx: &mut KernelCtx| {
            split_all(ctx, "delimiter", |text, delimiter, tokens| {
                split(text, delimiter, skip_empty, tokens);
            })
        }))
    })
    .not_differentiable(),
    Op::new(
        "StringSplitV2",
        "input: string, sep: string -> indices: int64, values: string, shape: int64 | \
         maxsplit: int = -1",
    )
    .shape(split_shape)
    .kernel(|build| {
        let max_split = build.attrs.int("maxsplit")?;
        let max_split = match max_split {
            0.. => usize::try_from(max_split).ok(),
            _ => None,
        };
        Ok(Box::new(move |ctx: &mut KernelCtx| {
            split_all(ctx, "sep", |text, separator, tokens| {
                split_v2(text, separator, max_split, tokens);
            })
        }))
    }),
];

fn split_shape(ctx: &mut ShapeCtx) -> Result<()> {
    ctx.with_rank(0, 1)?;
    ctx.with_rank(1, 0)?;
    ctx.set(0, PartialShape::of([None, Some(2)]));
    ctx.set(1, PartialShape::of_rank(1));
    ctx.set(2, PartialShape::of([Some(2)]));
    Ok(())
}

/// Splits every string of input 0 by input 1 and writes the sparse result. Tokens share the
/// storage of their strings.
fn split_all(
    ctx: &mut KernelCtx,
    name: &str,
    split: impl Fn(&Bytes, &[u8], &mut Packer),
) -> Result<()> {
    let (input, separator) = (ctx.input(0)?, ctx.input(1)?);
    if input.shape().rank() != 1 {
        return Err(invalid_argument!(
            "input must be a vector, got shape: {}",
            input.shape()
        ));
    }
    if !separator.shape().is_scalar() {
        return Err(invalid_argument!(
            "{name} must be a scalar, got shape: {}",
            separator.shape()
        ));
    }
    let separator = separator.strings()?.first().cloned().unwrap_or_default();
    let texts = input.strings()?;
    let (mut tokens, mut indices) = (Packer::new(texts.len()), Vec::new());
    let mut most = 0;
    // By one thread: several would count references to the same memory.
    for (row, text) in texts.iter().enumerate() {
        let first = tokens.len();
        split(text, &separator, &mut tokens);
        let n = tokens.len() - first;
        most = most.max(n);
        indices.extend((0..n).flat_map(|column| [row as i64, column as i64]));
    }
    let tokens = tokens.finish();
    let n = tokens.len();
    let shape = [input.num_elements() as i64, most as i64];
    ctx.set_output(0, Tensor::from_slice([n, 2], &indices)?)?;
    ctx.set_output(1, Tensor::from_strings([n], tokens)?)?;
    ctx.set_output(2, Tensor::vector(&shape)?)
}

/// Splits at every byte of `delimiters`, or between all bytes if it is empty.
fn split(text: &Bytes, delimiters: &[u8], skip_empty: bool, tokens: &mut Packer) {
    if text.is_empty() {
        return;
    }
    if delimiters.is_empty() {
        return (0..text.len()).for_each(|i| tokens.part(text, i..i + 1));
    }
    let mut start = 0;
    for part in text.split(|byte| delimiters.contains(byte)) {
        if !(skip_empty && part.is_empty()) {
            tokens.part(text, start..start + part.len());
        }
        start += part.len() + 1;
    }
}

/// Splits like Python's `str.split`: at `separator`, or at runs of spaces if it is empty.
fn split_v2(text: &Bytes, separator: &[u8], max_split: Option<usize>, tokens: &mut Packer) {
    if max_split == Some(0) {
        tokens.push(text.clone());
        return;
    }
    let (mut start, mut n) = (0, 0);
    if separator.is_empty() {
        let skip = |from: usize| text[from..].iter().position(|&b| !is_space(b));
        while let Some(skipped) = skip(start) {
            start += skipped;
            if Some(n) == max_split {
                break;
            }
            let rest = &text[start..];
            let len = rest.iter().position(|&b| is_space(b)).unwrap_or(rest.len());
            tokens.part(text, start..start + len);
            start += len;
            n += 1;
        }
        if Some(n) == max_split {
            let rest = skip(start).map_or(text.len(), |skipped| start + skipped);
            tokens.part(text, rest..text.len());
        }
        return;
    }
    while let Some(len) = find(&text[start..], separator) {
        if Some(n) == max_split {
            break;
        }
        tokens.part(text, start..start + len);
        start += len + separator.len();
        n += 1;
    }
    tokens.part(text, start..text.len());
}

/// Returns the first place of `wanted`, which is not empty, in `text`.
fn find(text: &[u8], wanted: &[u8]) -> Option<usize> {
    match wanted {
        [byte] => text.iter().position(|b| b == byte),
        _ => text.windows(wanted.len()).position(|part| part == wanted),
    }
}
