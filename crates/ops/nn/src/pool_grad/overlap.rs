//! Gradients of windows that overlap: each input pixel adds up what the windows over it have for it, so that nothing is
//! read again that was just written.

use super::TOGETHER;
use crate::conv_reference::offsets;
use ferroflow_functors::numeric::Ordered;
use ferroflow_primitives::conv::Conv3dShape;
use ferroflow_tensor::DType;

/// The windows over the positions of an axis.
struct Cover {
    /// By input position: the output position of each window over it, and which of the window's positions it is.
    over: Vec<Vec<(usize, usize)>>,
    /// By output position: the positions that exist under its window.
    counts: Vec<usize>,
}

impl Cover {
    fn new(input: usize, output: usize, [window, stride, dilation, pad]: [usize; 4]) -> Cover {
        let mut cover = Cover {
            over: vec![Vec::new(); input],
            counts: vec![0; output],
        };
        for out in 0..output {
            for (i, (_, at)) in offsets(out * stride, window, dilation, pad, input).enumerate() {
                cover.over[at].push((out, i));
                cover.counts[out] += 1;
            }
        }
        cover
    }
}

/// The windows of a pooling.
pub(super) struct Overlap {
    axes: [Cover; 3],
    channels: usize,
    /// Lists of the windows over a column, each kind of list once: the distance of a window from the first one, which of
    /// its columns this is, and how many it has.
    alike: Vec<Vec<[usize; 3]>>,
    /// By input column: which of these lists, and the output column of the first window.
    columns: Vec<(usize, usize)>,
}

/// Most pixels of a window: lists of larger ones take longer than adding to pixels.
const MAX_WINDOW: usize = 49;

impl Overlap {
    /// Returns the windows, if adding up what they have is faster than adding it to pixels: for small windows over
    /// pixels whose channels fill vectors.
    pub(super) fn new<T: Ordered>(s: &Conv3dShape) -> Option<Overlap> {
        let p = &s.plane;
        let window = [p.filter_h, p.filter_w]
            .into_iter()
            .fold(s.filter_d, usize::saturating_mul);
        if window > MAX_WINDOW || p.in_c < TOGETHER || T::DTYPE != DType::Float {
            return None;
        }
        let depth = [s.filter_d, s.stride_d, s.dil_d, s.pad_front];
        let height = [p.filter_h, p.stride_h, p.dil_h, p.pad_top];
        let width = [p.filter_w, p.stride_w, p.dil_w, p.pad_left];
        let width = Cover::new(p.in_w, p.out_w, width);
        let mut alike: Vec<Vec<[usize; 3]>> = Vec::new();
        let columns = width.over.iter().map(|over| {
            let first = over.first().map_or(0, |(out, _)| *out);
            let kind = over
                .iter()
                .map(|&(out, i)| [out - first, i, width.counts[out]]);
            let kind: Vec<[usize; 3]> = kind.collect();
            let known = alike.iter().position(|known| *known == kind);
            let number = known.unwrap_or_else(|| {
                alike.push(kind);
                alike.len() - 1
            });
            (number, first)
        });
        let columns = columns.collect();
        Some(Overlap {
            axes: [
                Cover::new(s.in_d, s.out_d, depth),
                Cover::new(p.in_h, p.out_h, height),
                width,
            ],
            channels: p.in_c,
            alike,
            columns,
        })
    }

    /// Sets each pixel of an image to the sum of the gradients of those windows over it, and in those channels, whose
    /// `which` is the pixel's number in the window.
    #[inline(always)]
    pub(super) fn largest<T: Ordered>(&self, which: &[u32], grad: &[T], out: &mut [T]) {
        self.each_pixel(
            out,
            #[inline(always)]
            |at, windows, to| {
                let (which, grad) = (&which[at..], &grad[at..]);
                let (blocks, rest) = to.as_chunks_mut::<TOGETHER>();
                let whole = blocks.len() * TOGETHER;
                for (i, block) in (0..).step_by(TOGETHER).zip(blocks) {
                    *block = largest_of(windows, &which[i..], &grad[i..]);
                }
                for (i, to) in (whole..).zip(rest) {
                    [*to] = largest_of(windows, &which[i..], &grad[i..]);
                }
            },
        );
    }

    /// Sets each pixel of an image to the sum of the shares of the windows over it.
    #[inline(always)]
    pub(super) fn sums<T: Ordered>(&self, shares: &[T], out: &mut [T]) {
        self.each_pixel(
            out,
            #[inline(always)]
            |at, windows, to| {
                let shares = &shares[at..];
                let (blocks, rest) = to.as_chunks_mut::<TOGETHER>();
                let whole = blocks.len() * TOGETHER;
                for (i, block) in (0..).step_by(TOGETHER).zip(blocks) {
                    *block = sum_of(windows, &shares[i..]);
                }
                for (i, to) in (whole..).zip(rest) {
                    [*to] = sum_of(windows, &shares[i..]);
                }
            },
        );
    }

    /// Calls `f(position, windows, pixel)` for all pixels of an image. Windows are positions behind the first one, of
    /// their channels, and the pixel's number in each.
    #[inline(always)]
    fn each_pixel<T>(&self, out: &mut [T], mut f: impl FnMut(usize, &[(usize, u32)], &mut [T])) {
        let ([depth, height, width], c) = (&self.axes, self.channels);
        let (mut lines, mut windows) = (Vec::new(), vec![Vec::new(); self.alike.len()]);
        let line_len = width.over.len() * c;
        for (i, line) in out.chunks_exact_mut(line_len.max(1)).enumerate() {
            let (z, y) = (i / height.over.len(), i % height.over.len());
            lines.clear();
            for &(oz, dz) in &depth.over[z] {
                for &(oy, dy) in &height.over[y] {
                    let at = (oz * height.counts.len() + oy) * width.counts.len();
                    lines.push((at, dz * height.counts[oy] + dy));
                }
            }
            for (windows, columns) in windows.iter_mut().zip(&self.alike) {
                windows.clear();
                for &(at, number) in &lines {
                    windows.extend(columns.iter().map(|&[behind, dx, count]| {
                        ((at + behind) * c, (number * count + dx) as u32)
                    }));
                }
            }
            for (pixel, &(kind, first)) in line.chunks_exact_mut(c).zip(&self.columns) {
                f(first * c, &windows[kind], pixel);
            }
        }
    }
}

/// Returns the sums of [`Overlap::largest`] for the first `N` channels of a pixel.
#[inline(always)]
fn largest_of<T: Ordered, const N: usize>(
    windows: &[(usize, u32)],
    which: &[u32],
    grad: &[T],
) -> [T; N] {
    let mut sum = [T::ZERO; N];
    for &(from, number) in windows {
        let found = which[from..].first_chunk::<N>();
        let Some((which, grad)) = found.zip(grad[from..].first_chunk::<N>()) else {
            break;
        };
        let mut shares = [T::ZERO; N];
        for i in 0..N {
            // Loaded in any case, so that it can be chosen without a branch.
            let share = grad[i];
            shares[i] = if which[i] == number { share } else { T::ZERO };
        }
        for i in 0..N {
            sum[i] = sum[i].add(shares[i]);
        }
    }
    sum
}

/// Returns the sums of [`Overlap::sums`] for the first `N` channels of a pixel.
#[inline(always)]
fn sum_of<T: Ordered, const N: usize>(windows: &[(usize, u32)], shares: &[T]) -> [T; N] {
    let mut sum = [T::ZERO; N];
    for &(from, _) in windows {
        let Some(shares) = shares[from..].first_chunk::<N>() else {
            break;
        };
        for i in 0..N {
            sum[i] = sum[i].add(shares[i]);
        }
    }
    sum
}
