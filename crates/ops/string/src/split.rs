//! StringSplit and StringSplitV2 (TensorFlow: `core/kernels/string_split_op.cc`).

use crate::packer::{Packer, in_parts, joined};
use ferroflow_base::{Result, invalid_argument};
use ferroflow_functors::str_util::is_space;
use ferroflow_opdef::{KernelCtx, Op, ShapeCtx};
use ferroflow_tensor::{PartialShape, Tensor};
use std::ops::Range;

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
            split_all(ctx, "delimiter", |text, delimiter, add| {
                split(text, delimiter, skip_empty, add);
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
            split_all(ctx, "sep", |text, separator, add| {
                split_v2(text, separator, max_split, add);
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

/// Strings that are worth a thread.
const BLOCK: usize = 1024;

/// Splits every string of input 0 by input 1, at the ranges that `split` passes on, and writes the sparse result.
fn split_all(
    ctx: &mut KernelCtx,
    name: &str,
    split: impl Fn(&[u8], &[u8], &mut dyn FnMut(Range<usize>)) + Sync,
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
    let texts = input.texts()?;
    let parts = in_parts(ctx, texts.len(), BLOCK, |rows| {
        let (mut tokens, mut indices) = (Packer::new(rows.len()), Vec::new());
        let mut most = 0;
        for row in rows {
            let mut n = 0;
            split(texts.get(row), &separator, &mut |range| {
                tokens.part(texts, row, range);
                indices.extend([row as i64, n as i64]);
                n += 1;
            });
            most = most.max(n);
        }
        (tokens, indices, most)
    });
    let most = parts.iter().map(|part| part.2).max().unwrap_or(0);
    let mut indices = Vec::new();
    let tokens = joined(parts.into_iter().map(|(tokens, part, _)| {
        match indices.is_empty() {
            true => indices = part,
            false => indices.extend(part),
        }
        tokens
    }));
    let n = tokens.len();
    let shape = [input.num_elements() as i64, most as i64];
    ctx.set_output(0, Tensor::from_slice([n, 2], &indices)?)?;
    ctx.set_output(1, tokens.into_tensor([n])?)?;
    ctx.set_output(2, Tensor::vector(&shape)?)
}

/// Splits at every byte of `delimiters`, or between all bytes if it is empty.
fn split(text: &[u8], delimiters: &[u8], skip_empty: bool, add: &mut dyn FnMut(Range<usize>)) {
    if text.is_empty() {
        return;
    }
    if delimiters.is_empty() {
        return (0..text.len()).for_each(|i| add(i..i + 1));
    }
    let mut start = 0;
    for part in text.split(|byte| delimiters.contains(byte)) {
        if !(skip_empty && part.is_empty()) {
            add(start..start + part.len());
        }
        start += part.len() + 1;
    }
}

/// Splits like Python's `str.split`: at `separator`, or at runs of spaces if it is empty.
fn split_v2(
    text: &[u8],
    separator: &[u8],
    max_split: Option<usize>,
    add: &mut dyn FnMut(Range<usize>),
) {
    if max_split == Some(0) {
        add(0..text.len());
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
            add(start..start + len);
            start += len;
            n += 1;
        }
        if Some(n) == max_split {
            let rest = skip(start).map_or(text.len(), |skipped| start + skipped);
            add(rest..text.len());
        }
        return;
    }
    while let Some(len) = find(&text[start..], separator) {
        if Some(n) == max_split {
            break;
        }
        add(start..start + len);
        start += len + separator.len();
        n += 1;
    }
    add(start..text.len());
}

/// Returns the first place of `wanted`, which is not empty, in `text`.
pub(crate) fn find(text: &[u8], wanted: &[u8]) -> Option<usize> {
    match wanted {
        [byte] => text.iter().position(|b| b == byte),
        _ => text.windows(wanted.len()).position(|part| part == wanted),
    }
}
