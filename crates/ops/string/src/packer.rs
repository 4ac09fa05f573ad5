//! Vectors of strings that share memory, computed by several threads.

use crate::strings::BLOCK;
use ferroflow_opdef::KernelCtx;
use ferroflow_sync::par_chunks_mut;
use ferroflow_tensor::Bytes;
use std::ops::Range;

/// Bytes of short strings that share memory.
const SHARED: usize = 4096;
/// Bytes of the longest string that shares memory with others.
const SHORT: usize = 512;
/// Strings one after another. Short ones share memory: what has memory of its own costs more than to compute it.
pub(crate) struct Packer {
    strings: Vec<Bytes>,
    buffer: Vec<u8>,
    /// Where the strings of the buffer end.
    ends: Vec<usize>,
}

impl Packer {
    /// Returns a packer for about `n` strings.
    pub fn new(n: usize) -> Self {
        Packer {
            strings: Vec::with_capacity(n),
            buffer: Vec::new(),
            ends: Vec::new(),
        }
    }

    pub fn len(&self) -> usize {
        self.strings.len() + self.ends.len()
    }

    /// Adds the string that `f` appends to a buffer.
    #[inline]
    pub fn write(&mut self, f: impl FnOnce(&mut Vec<u8>)) {
        self.try_write(|buffer| {
            f(buffer);
            true
        });
    }

    /// The same if `f` returns true; otherwise adds nothing. Returns what `f` returns.
    #[inline]
    pub fn try_write(&mut self, f: impl FnOnce(&mut Vec<u8>) -> bool) -> bool {
        let start = self.buffer.len();
        if !f(&mut self.buffer) {
            self.buffer.truncate(start);
            return false;
        }
        self.added(start);
        true
    }

    /// Ends the string that begins at `start` in the buffer.
    fn added(&mut self, start: usize) {
        if self.buffer.len() - start > SHORT {
            let long = self.buffer.split_off(start);
            return self.push(long.into());
        }
        self.ends.push(self.buffer.len());
        if self.buffer.len() >= SHARED {
            self.flush();
        }
    }

    /// Adds a string that has memory.
    #[inline]
    pub fn push(&mut self, text: Bytes) {
        if !self.ends.is_empty() {
            self.flush();
        }
        self.strings.push(text);
    }

    /// Adds a part of a string, which shares its memory.
    #[inline]
    pub fn part(&mut self, text: &Bytes, range: Range<usize>) {
        self.push(text.slice(range));
    }

    fn flush(&mut self) {
        match self.ends[..] {
            [] => return,
            [_] => self.strings.push(Bytes::copy_from_slice(&self.buffer)),
            _ => {
                let shared = Bytes::copy_from_slice(&self.buffer);
                let mut start = 0;
                for &end in &self.ends {
                    self.strings.push(shared.slice(start..end));
                    start = end;
                }
            }
        }
        self.buffer.clear();
        self.ends.clear();
    }

    /// Returns the strings.
    pub fn finish(mut self) -> Vec<Bytes> {
        self.flush();
        self.strings
    }
}

/// Splits `0..n` among the threads; returns what `f` returns of each part, in order.
pub(crate) fn in_parts<R: Send>(
    ctx: &KernelCtx,
    n: usize,
    f: impl Fn(Range<usize>) -> R + Sync,
) -> Vec<R> {
    let width = ctx.par().width();
    if n <= BLOCK || width == 1 {
        return vec![f(0..n)];
    }
    let len = n.div_ceil(width).max(BLOCK);
    let mut parts: Vec<Option<R>> = (0..n.div_ceil(len)).map(|_| None).collect();
    par_chunks_mut(ctx.par(), &mut parts, 1, 1, &|i, to| {
        to[0] = Some(f(i * len..n.min((i + 1) * len)));
    });
    parts.into_iter().flatten().collect()
}

/// Returns the vectors as one.
pub(crate) fn joined<T>(parts: impl IntoIterator<Item = Vec<T>>) -> Vec<T> {
    let mut parts = parts.into_iter();
    let mut all = parts.next().unwrap_or_default();
    parts.for_each(|mut part| all.append(&mut part));
    all
}

/// Returns `n` strings, computed by several threads: `f` adds the one of a position.
pub(crate) fn strings_of(
    ctx: &KernelCtx,
    n: usize,
    f: impl Fn(usize, &mut Packer) + Sync,
) -> Vec<Bytes> {
    joined(in_parts(ctx, n, |range| {
        let mut packer = Packer::new(match range.start {
            0 => n,
            _ => range.len(),
        });
        range.for_each(|i| f(i, &mut packer));
        packer.finish()
    }))
}
