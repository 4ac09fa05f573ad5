//! Windows of an input as the rows of a matrix.

use crate::aligned::{Scratch, SendPtr};
use crate::gemm::GemmElement;
use crate::gemm::drive::{RowSource, Tiles};
use std::ops::Range;

/// One spatial axis of a convolution.
#[derive(Clone, Copy, Debug)]
pub(super) struct Axis {
    pub input: usize,
    pub output: usize,
    pub filter: usize,
    pub stride: usize,
    pub dilation: usize,
    pub pad: usize,
}

impl Axis {
    /// Returns whether output positions equal input positions.
    pub(super) fn is_identity(&self) -> bool {
        self.filter == 1 && self.stride == 1 && self.pad == 0 && self.output == self.input
    }

    /// Returns the start of a window, possibly before the input.
    fn start(&self, out: usize) -> isize {
        (out * self.stride) as isize - self.pad as isize
    }

    /// Returns the input position of a filter position, if it exists.
    fn at(&self, out: usize, offset: usize) -> Option<usize> {
        let i = self.start(out) + (offset * self.dilation) as isize;
        (0..self.input as isize).contains(&i).then_some(i as usize)
    }
}

pub(crate) static ZEROS: [f32; 16 * 1024] = [0.0; 16 * 1024];

/// The windows of one channel group, or of all.
pub(super) struct Windows<'a, T> {
    input: &'a [T],
    /// Channels of a pixel, and those of the group.
    pixel: usize,
    first: usize,
    channels: usize,
    axes: [Axis; 3],
    /// Whether a whole filter row is one run of input elements.
    merged: bool,
    /// Zeros, if the static ones are too few.
    zeros: Vec<T>,
}

impl<'a, T: GemmElement> Windows<'a, T> {
    pub(super) fn new(
        input: &'a [T],
        pixel: usize,
        first: usize,
        channels: usize,
        axes: [Axis; 3],
    ) -> Self {
        let merged = channels == pixel && (axes[2].dilation == 1 || axes[2].filter == 1);
        Self::of(input, pixel, [first, channels], axes, merged)
    }

    /// Windows with a pointer for each pixel, whose channels are those of all groups.
    pub(super) fn of_pixels(input: &'a [T], pixel: usize, axes: [Axis; 3]) -> Self {
        Self::of(input, pixel, [0, pixel], axes, false)
    }

    fn of(
        input: &'a [T],
        pixel: usize,
        [first, channels]: [usize; 2],
        axes: [Axis; 3],
        merged: bool,
    ) -> Self {
        let run = if merged {
            channels * axes[2].filter
        } else {
            channels
        };
        let zeros = if run > T::zeros().len() {
            vec![T::ZERO; run]
        } else {
            Vec::new()
        };
        Windows {
            input,
            pixel,
            first,
            channels,
            axes,
            merged,
            zeros,
        }
    }

    /// Returns the output position of a row: image, plane, row, column.
    fn position(&self, row: usize) -> [usize; 4] {
        let [d, h, w] = self.axes.map(|a| a.output);
        [row / w / h / d, row / w / h % d, row / w % h, row % w]
    }

    /// Returns the output columns whose filter rows are inside the input.
    fn inside(&self) -> Range<usize> {
        let w = &self.axes[2];
        let first = w.pad.div_ceil(w.stride);
        let end = match (w.input + w.pad).checked_sub(w.filter) {
            Some(last) => (last / w.stride + 1).min(w.output),
            None => 0,
        };
        first..end
    }
}

fn pointer<T>(s: &[T]) -> SendPtr<T> {
    SendPtr(s.as_ptr().cast_mut())
}

impl<T: GemmElement> RowSource<T> for Windows<'_, T> {
    fn n_offsets(&self) -> usize {
        let [d, h, w] = self.axes.map(|a| a.filter);
        if self.merged { d * h } else { d * h * w }
    }

    fn run(&self) -> usize {
        if self.merged {
            self.channels * self.axes[2].filter
        } else {
            self.channels
        }
    }

    fn fill(&self, rows: Range<usize>, tiles: Tiles, out: &mut [SendPtr<T>], spare: &mut Scratch) {
        let (n_offsets, run) = (self.n_offsets(), self.run());
        let [depth, height, width] = &self.axes;
        let zeros = if self.zeros.is_empty() {
            &T::zeros()[..run]
        } else {
            &self.zeros
        };
        let (inside, step) = (self.inside(), width.stride * self.pixel);
        let edges = if self.merged {
            let mut x = self.position(rows.start)[3];
            let mut n = 0;
            for _ in rows.clone() {
                n += usize::from(!inside.contains(&x));
                x = if x + 1 == width.output { 0 } else { x + 1 };
            }
            n
        } else {
            0
        };
        let mut patches = spare
            .alloc::<T>(edges * n_offsets * run)
            .chunks_exact_mut(run.max(1));
        let mut pos = self.position(rows.start);
        // Starts of the input lines under the filter rows; they change with the output row.
        let mut lines = vec![None; depth.filter * height.filter];
        self.lines(pos, &mut lines);
        let base = self.input.as_ptr().cast_mut();
        let line_len = width.input * self.pixel;
        tiles.each(|row, mr| {
            let mut r = 0;
            while r < mr {
                let x = pos[3];
                if self.merged && inside.contains(&x) {
                    let n = (mr - r).min(inside.end - x);
                    let start = width.start(x) as usize * self.pixel;
                    let slots = out[row * n_offsets..][..mr * n_offsets].chunks_exact_mut(mr);
                    for (slots, line) in slots.zip(&lines) {
                        let slots = &mut slots[r..r + n];
                        match line {
                            // Inside the line, since the windows are.
                            Some(line) => slots.iter_mut().enumerate().for_each(|(i, slot)| {
                                *slot = SendPtr(base.wrapping_add(line + start + i * step));
                            }),
                            None => slots.fill(pointer(zeros)),
                        }
                    }
                    self.advance(n, &mut pos, &mut lines);
                    r += n;
                    continue;
                }
                let mut slots = out[row * n_offsets + r..].iter_mut().step_by(mr);
                if self.merged {
                    for (slot, line) in slots.zip(&lines) {
                        *slot = match line {
                            Some(line) => {
                                let patch = patches.next().unwrap_or_default();
                                let line = &self.input[*line..*line + line_len];
                                self.copy(line, width.start(x), patch);
                                pointer(patch)
                            }
                            None => pointer(zeros),
                        };
                    }
                } else {
                    for line in &lines {
                        for kx in 0..width.filter {
                            let Some(slot) = slots.next() else { break };
                            *slot = match line.zip(width.at(x, kx)) {
                                Some((line, x)) => {
                                    let at = line + x * self.pixel + self.first;
                                    pointer(&self.input[at..at + run])
                                }
                                None => pointer(zeros),
                            };
                        }
                    }
                }
                self.advance(1, &mut pos, &mut lines);
                r += 1;
            }
        });
    }
}

impl<T: GemmElement> Windows<'_, T> {
    /// Computes the start of the input line under each filter row, if it exists.
    fn lines(&self, [n, z, y, _]: [usize; 4], lines: &mut [Option<usize>]) {
        let [depth, height, width] = &self.axes;
        for (i, line) in lines.iter_mut().enumerate() {
            let plane = depth.at(z, i / height.filter);
            *line = plane.zip(height.at(y, i % height.filter)).map(|(z, y)| {
                ((n * depth.input + z) * height.input + y) * width.input * self.pixel
            });
        }
    }

    /// Steps `n` output pixels further, at most to the next row.
    fn advance(&self, n: usize, pos: &mut [usize; 4], lines: &mut [Option<usize>]) {
        let [_, height, width] = &self.axes;
        pos[3] += n;
        if pos[3] == width.output {
            let [n, z, y, _] = *pos;
            let row = ((n * self.axes[0].output + z) * height.output + y + 1) * width.output;
            *pos = self.position(row);
            self.lines(*pos, lines);
        }
    }

    /// Copies the part of a window that is in `line`, zeros elsewhere.
    fn copy(&self, line: &[T], start: isize, patch: &mut [T]) {
        let c = self.pixel as isize;
        let len = patch.len() as isize;
        let from = (-start * c).clamp(0, len) as usize;
        let to = (line.len() as isize - start * c).clamp(from as isize, len) as usize;
        patch[..from].fill(T::ZERO);
        let at = (start * c + from as isize) as usize;
        if from < to {
            patch[from..to].copy_from_slice(&line[at..at + to - from]);
        }
        patch[to..].fill(T::ZERO);
    }
}
