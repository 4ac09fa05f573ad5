//! The input pixels under the filter rows of output lines.

use crate::aligned::{Scratch, SendPtr};
use crate::conv::Conv3dShape;
use std::ops::Range;

/// How channels are grouped: every output channel reads `per_in` input channels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Groups {
    pub per_in: usize,
    pub per_out: usize,
}

impl Groups {
    pub(super) fn of(s: &Conv3dShape) -> Self {
        let groups = s.plane.groups.max(1);
        Groups {
            per_in: s.plane.in_c / groups,
            per_out: s.plane.out_c / groups,
        }
    }

    /// Returns whether input and output channels correspond one to one.
    pub(super) fn are_plain(self) -> bool {
        (self.per_in, self.per_out) == (1, 1)
    }
}

/// Pointers to the input pixels along a line, one table for each filter row, for the output
/// channels `channels`.
///
/// Where channels do not correspond one to one, lines are copied so that each output channel finds
/// the input channel that it reads at its own place; a copy serves all output lines that read it.
pub(super) struct Lines<'a> {
    s: &'a Conv3dShape,
    input: &'a [f32],
    groups: Groups,
    channels: Range<usize>,
    /// Pointers of a table.
    columns: usize,
    zeros: &'a [f32],
    /// `[filter rows of a channel][per_in]` tables.
    tables: Scratch,
    /// The line that the tables of a filter row are for, and its copies: `[filter rows of a channel][per_in]`
    /// lines.
    held: Vec<Option<usize>>,
    copies: Scratch,
}

/// A table of an output line: which filter row it is for, and the pointers.
pub(super) type Table = (usize, *const SendPtr<f32>);

impl<'a> Lines<'a> {
    /// Prepares tables; `zeros` are as many as the channels of a pixel.
    pub(super) fn new(
        s: &'a Conv3dShape,
        input: &'a [f32],
        channels: Range<usize>,
        zeros: &'a [f32],
    ) -> Self {
        let p = &s.plane;
        let groups = Groups::of(s);
        let columns = (p.out_w - 1) * p.stride_w + (p.filter_w - 1) * p.dil_w + 1;
        let filter_rows = s.filter_d * p.filter_h;
        let n_tables = filter_rows * groups.per_in;
        let mut lines = Lines {
            s,
            input,
            groups,
            channels,
            columns,
            zeros,
            tables: Scratch::take(),
            held: vec![None; filter_rows],
            copies: Scratch::take(),
        };
        let tables = lines.tables.alloc::<SendPtr<f32>>(n_tables * columns);
        if !groups.are_plain() {
            let n = lines.channels.len();
            let copies = lines.copies.alloc::<f32>(n_tables * p.in_w * n);
            let base = copies.as_mut_ptr();
            for (i, table) in tables.chunks_exact_mut(columns).enumerate() {
                let line = base.wrapping_add(i * p.in_w * n);
                point(table, line, n, p.in_w, p.pad_left, zeros);
            }
        }
        lines
    }

    /// Returns the place of the first channel in the pixels that the tables point to.
    pub(super) fn first_input(&self) -> usize {
        match self.groups.are_plain() {
            true => self.channels.start,
            false => 0,
        }
    }

    /// Lists the filter rows that see some of the input from output line `line`. The tables are
    /// valid until the next call.
    pub(super) fn under(&mut self, line: usize, found: &mut Vec<Table>) {
        let (s, p) = (self.s, &self.s.plane);
        let (plane, y) = (line / p.out_h, line % p.out_h);
        let (n, z) = (plane / s.out_d, plane % s.out_d);
        found.clear();
        let mut lines = Vec::with_capacity(s.filter_d * p.filter_h);
        for kz in 0..s.filter_d {
            let Some(iz) = inside(z * s.stride_d + kz * s.dil_d, s.pad_front, s.in_d) else {
                continue;
            };
            for ky in 0..p.filter_h {
                if let Some(iy) = inside(y * p.stride_h + ky * p.dil_h, p.pad_top, p.in_h) {
                    lines.push((kz * p.filter_h + ky, (n * s.in_d + iz) * p.in_h + iy));
                }
            }
        }
        let per_in = self.groups.per_in;
        for &(row, line) in &lines {
            let slot = match self.held.iter().position(|held| *held == Some(line)) {
                Some(slot) => slot,
                None => {
                    let needed = |held: &Option<usize>| {
                        held.is_some_and(|held| lines.iter().any(|(_, line)| *line == held))
                    };
                    // There are as many copies as filter rows, so one is not needed.
                    let slot = self.held.iter().position(|h| !needed(h)).unwrap_or(0);
                    self.held[slot] = Some(line);
                    self.hold(line, slot);
                    slot
                }
            };
            let tables = self
                .tables
                .alloc::<SendPtr<f32>>(self.held.len() * per_in * self.columns);
            for i in 0..per_in {
                let table = &tables[(slot * per_in + i) * self.columns..];
                found.push((row * per_in + i, table.as_ptr()));
            }
        }
    }

    /// Points a table at an input line, or copies the line once for each input channel that an output
    /// channel reads.
    fn hold(&mut self, line: usize, slot: usize) {
        let p = &self.s.plane;
        let Groups { per_in, per_out } = self.groups;
        let (n, count) = (self.channels.len(), self.held.len() * per_in);
        let line = &self.input[line * p.in_w * p.in_c..][..p.in_w * p.in_c];
        if self.groups.are_plain() {
            let tables = self.tables.alloc::<SendPtr<f32>>(count * self.columns);
            let table = &mut tables[slot * self.columns..][..self.columns];
            let base = line.as_ptr().cast_mut();
            return point(table, base, p.in_c, p.in_w, p.pad_left, self.zeros);
        }
        let copies = self.copies.alloc::<f32>(count * p.in_w * n);
        let copies = copies[slot * per_in * p.in_w * n..].chunks_exact_mut(p.in_w * n);
        let first = self.channels.start / per_out * per_in;
        for (i, copy) in copies.take(per_in).enumerate() {
            for (pixel, copy) in line.chunks_exact(p.in_c).zip(copy.chunks_exact_mut(n)) {
                let from = &pixel[first + i..];
                match per_out {
                    1 => spread::<1>(from, per_in, copy),
                    2 => spread::<2>(from, per_in, copy),
                    4 => spread::<4>(from, per_in, copy),
                    8 => spread::<8>(from, per_in, copy),
                    _ => {
                        for (to, x) in copy.chunks_mut(per_out).zip(from.iter().step_by(per_in)) {
                            to.fill(*x);
                        }
                    }
                }
            }
        }
    }
}

/// Repeats every `step`th number `N` times.
fn spread<const N: usize>(from: &[f32], step: usize, to: &mut [f32]) {
    for (to, from) in to.as_chunks_mut::<N>().0.iter_mut().zip(from.chunks(step)) {
        *to = [from[0]; N];
    }
}

/// Returns the input position, if it exists.
pub(super) fn inside(start: usize, pad: usize, input: usize) -> Option<usize> {
    start.checked_sub(pad).filter(|i| *i < input)
}

/// Points a table at the `count` pixels of a line, and at zeros before and after.
fn point(
    table: &mut [SendPtr<f32>],
    line: *mut f32,
    pixel: usize,
    count: usize,
    pad: usize,
    zeros: &[f32],
) {
    let none = SendPtr(zeros.as_ptr().cast_mut());
    let before = pad.min(table.len());
    let inside = (table.len() - before).min(count);
    table[..before].fill(none);
    for (x, p) in table[before..before + inside].iter_mut().enumerate() {
        *p = SendPtr(line.wrapping_add(x * pixel));
    }
    table[before + inside..].fill(none);
}
