//! StringNGrams (TensorFlow: `core/kernels/string_ngrams_op.cc`).

use crate::packer::Packer;
use ferroflow_base::{Result, invalid_argument, resource_exhausted};
use ferroflow_functors::indices::{int_vector, ints, narrowed};
use ferroflow_functors::window::ints32;
use ferroflow_opdef::{KernelBuild, KernelCtx, Op, OpKernel};
use ferroflow_tensor::{Bytes, PartialShape, Shape, Tensor, memory_limit};
use std::ops::Range;

/// The ops of this file.
pub(crate) const OPS: &[Op] = &[Op::new(
    "StringNGrams",
    "data: string, data_splits: Tsplits -> ngrams: string, ngrams_splits: Tsplits | \
     separator: string; ngram_widths: list(int) >= 0; left_pad: string; right_pad: \
     string; pad_width: int; preserve_short_sequences: bool; Tsplits: type \
     {int32,int64} = int64",
)
.shape(|ctx| {
    ctx.with_rank(0, 1)?;
    let splits = ctx.with_rank(1, 1)?;
    ctx.set(0, PartialShape::of_rank(1));
    ctx.set(1, splits);
    Ok(())
})
.kernel(kernel)];

struct NGrams {
    separator: Bytes,
    left_pad: Bytes,
    right_pad: Bytes,
    widths: Vec<i64>,
    /// As many as fit if negative.
    pad_width: i64,
    preserve_short: bool,
}

fn kernel(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    let attrs = build.attrs;
    let op = NGrams {
        separator: attrs.bytes("separator")?.clone(),
        left_pad: attrs.bytes("left_pad")?.clone(),
        right_pad: attrs.bytes("right_pad")?.clone(),
        widths: ints32(attrs, "ngram_widths")?,
        pad_width: int32(attrs.int("pad_width")?, "pad_width")?,
        preserve_short: attrs.bool("preserve_short_sequences")?,
    };
    Ok(Box::new(move |ctx: &mut KernelCtx| op.compute(ctx)))
}

/// A number that TensorFlow keeps in 32 bits.
pub(crate) fn int32(value: i64, name: &str) -> Result<i64> {
    match i32::try_from(value) {
        Ok(value) => Ok(i64::from(value)),
        Err(_) => Err(invalid_argument!(
            "Attr {name} has value {value} out of range for an int32"
        )),
    }
}

/// Returns the rows of `data` that the splits describe.
fn rows(splits: &[i64], n: usize) -> Result<Vec<Range<usize>>> {
    let mut previous = match splits.first() {
        Some(&first) if first != 0 => {
            return Err(invalid_argument!(
                "First split value must be 0, got {first}"
            ));
        }
        _ => 0,
    };
    let mut rows = Vec::with_capacity(splits.len());
    for &split in splits.iter().skip(1) {
        match usize::try_from(split) {
            Ok(end) if end >= previous && end <= n => rows.push(previous..end),
            _ => {
                return Err(invalid_argument!(
                    "Invalid split value {split}, must be in [{previous}, {n}]"
                ));
            }
        }
        previous = split as usize;
    }
    if !splits.is_empty() && previous != n {
        return Err(invalid_argument!(
            "Last split value must be data size. Expected {n}, got {previous}"
        ));
    }
    Ok(rows)
}

impl NGrams {
    fn pad_width(&self, width: i64) -> i64 {
        match self.pad_width {
            0.. => self.pad_width.min(width - 1),
            _ => width - 1,
        }
    }

    /// The number of n-grams of a row.
    fn count(&self, length: usize, width: i64) -> Result<i64> {
        let (pad, length) = (self.pad_width(width), length as i64);
        if pad > i64::from(i32::MAX) / 2 - length {
            return Err(invalid_argument!(
                "Pad width could lead to integer overflow, got pad_width = {pad}"
            ));
        }
        Ok((length + 2 * pad - width + 1).max(0))
    }

    /// The widths and counts of a row's n-grams.
    fn plan(&self, length: usize) -> Result<Vec<(i64, i64)>> {
        let mut plan = Vec::with_capacity(self.widths.len());
        for &width in &self.widths {
            plan.push((width, self.count(length, width)?));
        }
        if self.preserve_short && length > 0 && plan.iter().all(|&(_, n)| n == 0) {
            if self.pad_width < 0 {
                return Err(invalid_argument!(
                    "Pad width should be >= 0 when preserve_short_sequences is True and ngram_widths \
                     are not provided, got {}",
                    self.pad_width
                ));
            }
            plan.push((length as i64 + 2 * self.pad_width, 1));
        }
        Ok(plan)
    }

    fn compute(&self, ctx: &mut KernelCtx) -> Result<()> {
        if self.widths.iter().any(|&width| width <= 0) {
            return Err(invalid_argument!(
                "ngram_widths must contain positive values"
            ));
        }
        let (data, splits) = (ctx.input(0)?, ctx.input(1)?);
        let (dtype, splits_shape) = (splits.dtype(), splits.shape().clone());
        let strings = data.strings()?;
        let rows = rows(&ints(splits)?, strings.len())?;
        if strings.is_empty() || splits_shape.num_elements() == 0 {
            let n = splits_shape.num_elements();
            let zeros = narrowed(Tensor::from_slice(splits_shape, &vec![0i64; n])?, dtype)?;
            let empty = Tensor::zeros(data.dtype(), data.shape().clone())?;
            ctx.set_output(0, empty)?;
            return ctx.set_output(1, zeros);
        }
        let (mut ends, mut plans, mut bytes) = (vec![0i64], Vec::new(), 0u128);
        for row in &rows {
            let plan = self.plan(row.len())?;
            let n = plan.iter().map(|&(_, n)| n).sum::<i64>();
            ends.push(ends.last().map_or(n, |last| last.saturating_add(n)));
            bytes += self.bytes(&strings[row.clone()], &plan);
            plans.push(plan);
        }
        if bytes > memory_limit() as u128 {
            return Err(resource_exhausted!(
                "OOM when building n-grams of {bytes} bytes: larger than the machine's memory"
            ));
        }
        let n = ends.last().map_or(0, |n| *n as usize);
        let mut ngrams = Packer::new(n);
        for (row, plan) in rows.iter().zip(plans) {
            let row = &strings[row.clone()];
            for (width, n) in plan {
                for i in 0..n {
                    ngrams.write(|out| self.write_ngram(row, width, n, i, out));
                }
            }
        }
        ctx.set_output(0, ngrams.into_tensor(Shape::from([n]))?)?;
        let ends = int_vector(dtype, ends.into_iter())?.with_shape(splits_shape)?;
        ctx.set_output(1, ends)
    }

    /// An upper bound of the memory that the n-grams of a row take.
    fn bytes(&self, row: &[Bytes], plan: &[(i64, i64)]) -> u128 {
        let longest = |texts: &[&Bytes]| texts.iter().map(|t| t.len()).max().unwrap_or(0);
        let pad = longest(&[&self.left_pad, &self.right_pad]) + self.separator.len();
        let tokens: usize = row.iter().map(|t| t.len() + self.separator.len()).sum();
        let of = |&(width, n): &(i64, i64)| {
            let each = tokens as u128 + width as u128 * pad as u128 + size_of::<Bytes>() as u128;
            n as u128 * each
        };
        plan.iter().map(of).sum()
    }

    /// Appends n-gram `i` of the `n` of a row.
    fn write_ngram(&self, row: &[Bytes], width: i64, n: i64, i: i64, out: &mut Vec<u8>) {
        let pad = self.pad_width(width);
        let left = (pad - i).max(0);
        let right = (pad - (n - (i + 1))).max(0);
        let tokens = (width - (left + right)).max(0);
        let first = if left > 0 { 0 } else { i - pad };
        let row = row.get(first.max(0) as usize..).unwrap_or_default();
        let repeat = |text, n: i64| std::iter::repeat_n(text, n as usize);
        let parts = repeat(&self.left_pad, left)
            .chain(row.iter().take(tokens as usize))
            .chain(repeat(&self.right_pad, right));
        for (i, part) in parts.enumerate() {
            if i > 0 {
                out.extend_from_slice(&self.separator);
            }
            out.extend_from_slice(part);
        }
    }
}
