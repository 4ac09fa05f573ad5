//! Tensors of strings that several threads compute.

use ferroflow_base::Result;
use ferroflow_opdef::KernelCtx;
use ferroflow_sync::par_chunks_mut;
use ferroflow_tensor::{Bytes, PackedStrings, Shape, Tensor, Texts};
use std::ops::Range;

/// Bytes of the longest string that is copied rather than shared with its source.
const SHORT: usize = 512;

/// Strings one after another: packed, as long as all are short or written.
pub(crate) struct Packer {
    packed: PackedStrings,
    /// All strings before those of `packed`.
    values: Vec<Bytes>,
}

impl Packer {
    /// Returns a packer for about `n` strings.
    pub fn new(n: usize) -> Self {
        Packer {
            packed: PackedStrings::with_capacity(n),
            values: Vec::new(),
        }
    }

    pub fn len(&self) -> usize {
        self.values.len() + self.packed.len()
    }

    /// Adds the string that `f` appends to a buffer.
    #[inline]
    pub fn write(&mut self, f: impl FnOnce(&mut Vec<u8>)) {
        self.packed.write(f);
    }

    /// The same if `f` returns true; otherwise adds nothing. Returns what `f` returns.
    #[inline]
    pub fn try_write(&mut self, f: impl FnOnce(&mut Vec<u8>) -> bool) -> bool {
        let done = self.packed.write(f);
        if !done {
            self.packed.pop();
        }
        done
    }

    /// Adds a part of string `i`; a long one shares its memory, if it is a value.
    #[inline]
    pub fn part(&mut self, texts: Texts, i: usize, range: Range<usize>) {
        match texts.value(i) {
            Some(value) if range.len() > SHORT => self.push(value.slice(range)),
            _ => self
                .packed
                .push(texts.get(i).get(range).unwrap_or_default()),
        }
    }

    /// Overwrites the strings that are packed, as one text.
    pub fn overwrite(&mut self, f: impl FnOnce(&mut [u8])) {
        f(self.packed.bytes_mut());
    }

    fn push(&mut self, text: Bytes) {
        self.flush();
        self.values.push(text);
    }

    fn flush(&mut self) {
        if !self.packed.is_empty() {
            self.values.append(&mut self.packed.values());
            self.packed = PackedStrings::default();
        }
    }

    /// Adds all strings of another.
    fn append(&mut self, mut other: Packer) {
        if !other.values.is_empty() {
            self.flush();
            self.values.append(&mut other.values);
        }
        self.packed.append(&other.packed);
    }

    /// Returns the strings as a tensor.
    pub fn into_tensor(mut self, shape: impl Into<Shape>) -> Result<Tensor> {
        if self.values.is_empty() {
            return Tensor::from_packed_strings(shape, self.packed);
        }
        self.flush();
        Tensor::from_strings(shape, self.values)
    }
}

/// Strings that are worth a thread.
const BLOCK: usize = 4096;

/// Splits `0..n` among the threads, each at least `block` positions; returns what `f` returns of each part, in order.
pub(crate) fn in_parts<R: Send>(
    ctx: &KernelCtx,
    n: usize,
    block: usize,
    f: impl Fn(Range<usize>) -> R + Sync,
) -> Vec<R> {
    let width = ctx.par().width();
    if n <= block || width == 1 {
        return vec![f(0..n)];
    }
    let len = n.div_ceil(width).max(block);
    let mut parts: Vec<Option<R>> = (0..n.div_ceil(len)).map(|_| None).collect();
    par_chunks_mut(ctx.par(), &mut parts, 1, 1, &|i, to| {
        to[0] = Some(f(i * len..n.min((i + 1) * len)));
    });
    parts.into_iter().flatten().collect()
}

/// Returns the strings of all parts.
pub(crate) fn joined(parts: impl IntoIterator<Item = Packer>) -> Packer {
    let mut parts = parts.into_iter();
    let mut all = parts.next().unwrap_or_else(|| Packer::new(0));
    parts.for_each(|part| all.append(part));
    all
}

/// Returns the strings of a tensor, computed by several threads: `f` adds those of positions.
pub(crate) fn ranges_of_strings(
    ctx: &KernelCtx,
    shape: &Shape,
    f: impl Fn(Range<usize>, &mut Packer) + Sync,
) -> Result<Tensor> {
    let n = shape.num_elements();
    let parts = in_parts(ctx, n, BLOCK, |range| {
        let mut packer = Packer::new(if range.start == 0 { n } else { range.len() });
        f(range, &mut packer);
        packer
    });
    joined(parts).into_tensor(shape.clone())
}

/// Returns the strings of a tensor, computed by several threads: `f` adds the one of a position.
pub(crate) fn strings_of(
    ctx: &KernelCtx,
    shape: &Shape,
    f: impl Fn(usize, &mut Packer) + Sync,
) -> Result<Tensor> {
    ranges_of_strings(ctx, shape, |range, to| range.for_each(|i| f(i, to)))
}
