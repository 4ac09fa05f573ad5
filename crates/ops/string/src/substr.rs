//! Substr (TensorFlow: `core/kernels/substr_op.cc`).

use crate::packer::Packer;
use ferroflow_base::{Result, Status, invalid_argument, unimplemented_error};
use ferroflow_functors::broadcast::{broadcast_partial, broadcast_shape, broadcast_tensor};
use ferroflow_functors::indices::ints;
use ferroflow_functors::str_util::is_trail_byte;
use ferroflow_opdef::{KernelCtx, Op};
use ferroflow_tensor::{Shape, Tensor};

/// The ops of this file.
pub(crate) const OPS: &[Op] = &[Op::new(
    "Substr",
    "input: string, pos: T, len: T -> output: string | T: type {int32,int64}; unit: \
     string {'BYTE','UTF8_CHAR'} = 'BYTE'",
)
.shape(|ctx| {
    let (pos, len) = (ctx.input(1), ctx.input(2));
    let (Some(pos_dims), Some(len_dims)) = (pos.dims(), len.dims()) else {
        return Ok(());
    };
    if let Some(rank) = len.rank() {
        ctx.with_rank(1, rank)?;
    }
    if pos_dims != len_dims {
        return Err(invalid_argument!(
            "pos and len shapes must match: {pos} vs. {len}"
        ));
    }
    let shape = broadcast_partial(&ctx.input(0), &pos)?;
    ctx.set(0, shape);
    Ok(())
})
.kernel(|build| {
    let characters = build.attrs.str("unit")? == "UTF8_CHAR";
    Ok(Box::new(move |ctx: &mut KernelCtx| substr(ctx, characters)))
})];

fn substr(ctx: &mut KernelCtx, characters: bool) -> Result<()> {
    let (input, pos, len) = (ctx.input(0)?, ctx.input(1)?, ctx.input(2)?);
    if pos.shape() != len.shape() {
        return Err(invalid_argument!(
            "pos and len should have the same shape, got: {} vs. {}",
            pos.shape(),
            len.shape()
        ));
    }
    let needs_broadcast = !pos.shape().is_scalar() && input.shape() != pos.shape();
    let (input, pos, len) = match needs_broadcast {
        false => (input.clone(), pos.clone(), len.clone()),
        true => {
            let shape = broadcast_shape(input.shape(), pos.shape())?;
            if !matches!(shape.rank(), 1 | 2) {
                return Err(unimplemented_error!(
                    "Substr broadcast not implemented for {} dimensions",
                    shape.rank()
                ));
            }
            (
                broadcast_tensor(ctx, input, shape.clone())?,
                spread(ctx, pos, &shape)?,
                spread(ctx, len, &shape)?,
            )
        }
    };
    let (positions, lengths) = (ints(&pos)?, ints(&len)?);
    let at = |values: &[i64], i: usize| match values {
        [one] => *one,
        many => many[i],
    };
    let texts = input.texts()?;
    let mut out = Packer::new(texts.len());
    for (i, text) in texts.iter().enumerate() {
        let (pos, len) = (at(&positions, i), at(&lengths, i));
        let range = match characters {
            true => characters_in(text, pos, len),
            false => bytes_in(text, pos, len),
        };
        let Some((from, to)) = range else {
            let is_matrix = needs_broadcast && input.shape().rank() == 2;
            let columns = input.shape().last().filter(|_| is_matrix);
            return Err(out_of_range(pos, text, characters, i, columns.copied()));
        };
        out.part(texts, i, from..to);
    }
    let out = out.into_tensor(input.shape().clone())?;
    ctx.set_output(0, out)
}

/// The error of position `pos` of string `i`, which is in a matrix of that many columns, if any.
#[cold]
fn out_of_range(
    pos: i64,
    text: &[u8],
    characters: bool,
    i: usize,
    columns: Option<usize>,
) -> Status {
    let (row, column) = (i / columns.unwrap_or(1), columns.map(|n| i % n));
    if characters {
        return invalid_argument!("pos {pos} out of range for string at index {row}");
    }
    let place = match column {
        Some(column) => format!("({row}, {column})"),
        None => row.to_string(),
    };
    invalid_argument!(
        "pos {pos} out of range for string b'{}' at index {place}",
        String::from_utf8_lossy(text)
    )
}

fn spread(ctx: &KernelCtx, t: &Tensor, shape: &Shape) -> Result<Tensor> {
    broadcast_tensor(ctx, t, shape.clone())
}

/// The range of `len` bytes at `pos`; a negative length reaches to the end.
fn bytes_in(text: &[u8], pos: i64, len: i64) -> Option<(usize, usize)> {
    let size = text.len() as i64;
    let from = if pos < 0 { size.checked_add(pos)? } else { pos };
    if !(0..=size).contains(&from) {
        return None;
    }
    let to = match len {
        0.. => from.saturating_add(len).min(size),
        _ => size,
    };
    Some((from as usize, to as usize))
}

/// The range of `len` characters at `pos`, of which invalid bytes are part of their neighbors.
fn characters_in(text: &[u8], pos: i64, len: i64) -> Option<(usize, usize)> {
    if pos >= 0 {
        let (from, is_complete) = forward(text, 0, pos);
        if !is_complete {
            return None;
        }
        return Some((from, forward(text, from, len).0));
    }
    let from_end = pos.saturating_neg();
    let skipped = from_end.saturating_sub(len).max(0);
    let (to, is_complete) = back(text, text.len(), skipped);
    if !is_complete {
        return None;
    }
    let (from, is_complete) = back(text, to, from_end.saturating_sub(skipped));
    is_complete.then_some((from, to))
}

/// The place `n` characters after `at`, and whether there are as many.
fn forward(text: &[u8], mut at: usize, n: i64) -> (usize, bool) {
    let mut counted = 0;
    while counted < n && at < text.len() {
        at += 1;
        while text.get(at).is_some_and(|&b| is_trail_byte(b)) {
            at += 1;
        }
        counted += 1;
    }
    (at, counted == n)
}

/// The place `n` characters before `at`, and whether there are as many.
fn back(text: &[u8], mut at: usize, n: i64) -> (usize, bool) {
    let mut counted = 0;
    while counted < n && at > 0 {
        at -= 1;
        while at > 0 && text.get(at).is_some_and(|&b| is_trail_byte(b)) {
            at -= 1;
        }
        counted += 1;
    }
    (at, counted == n)
}
