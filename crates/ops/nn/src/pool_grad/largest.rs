//! The largest pixels of windows, and what their gradients add up to.

use super::overlap::Overlap;
use crate::conv_reference::each_window;
use ferroflow_functors::numeric::Ordered;
use ferroflow_primitives::conv::Conv3dShape;
use ferroflow_primitives::vectorized;

/// An image whose windows have gradients.
pub(super) struct Image<'a, T> {
    pub(super) s: &'a Conv3dShape,
    pub(super) n: usize,
    /// All images.
    pub(super) x: &'a [T],
    pub(super) grad: &'a [T],
    /// The elements of an image of the input, and of the output.
    pub(super) sizes: [usize; 2],
}

impl<T: Ordered> Image<'_, T> {
    /// Calls `f` as [`each_largest`] does, but with the position of the output pixel's channels in this image.
    #[inline(always)]
    fn each(&self, mut f: impl FnMut(usize, usize, &[usize], &[u32])) {
        let (of_out, c) = (self.sizes[1] * self.n, self.s.plane.in_c);
        each_largest(
            self.s,
            self.n,
            self.x,
            first_largest::<T, TOGETHER>,
            |to, first, window, which| f(to * c - of_out, first, window, which),
        );
    }

    /// The gradient of this image's windows.
    fn grad(&self) -> &[T] {
        let [_, size] = self.sizes;
        &self.grad[self.n * size..][..size]
    }

    /// Sets pixels that each belong to one window.
    pub(super) fn hand_down(&self, out: &mut [T]) {
        let (grad, c, before) = (self.grad(), self.s.plane.in_c, self.n * self.sizes[0]);
        self.each(|to, first, window, which| {
            for (k, from) in (0..).zip(window) {
                let place = &mut out[first + from - before..][..c];
                hand_down(k, which, &grad[to..][..c], place);
            }
        });
    }

    /// Adds the gradient of each window to its largest pixels.
    pub(super) fn scatter(&self, out: &mut [T]) {
        let (grad, before) = (self.grad(), self.n * self.sizes[0]);
        out.fill(T::ZERO);
        self.each(|to, first, window, which| {
            for (j, (k, g)) in which.iter().zip(&grad[to..]).enumerate() {
                let place = &mut out[first + window[*k as usize] + j - before];
                *place = place.add(*g);
            }
        });
    }

    /// Adds up the gradients of the windows over each pixel.
    pub(super) fn add_up(&self, overlap: &Overlap, out: &mut [T]) {
        let c = self.s.plane.in_c;
        let first_pixel = self.n * self.sizes[1];
        vectorized(
            #[inline(always)]
            || {
                // What belongs to no pixel, where a window is empty.
                let mut all = vec![u32::MAX; self.sizes[1]];
                each_largest(
                    self.s,
                    self.n,
                    self.x,
                    first_largest_by_masks::<T, TOGETHER>,
                    #[inline(always)]
                    |to, _, _, which| {
                        all[to * c - first_pixel..][..c].copy_from_slice(which);
                    },
                );
                overlap.largest(&all, self.grad(), out);
            },
        );
    }

    /// Reads, for second derivatives, what the largest pixels of each window have.
    pub(super) fn read(&self, out: &mut [T]) {
        out.fill(T::ZERO);
        self.each(|to, first, window, which| {
            for (j, (k, o)) in which.iter().zip(&mut out[to..]).enumerate() {
                *o = self.grad[first + window[*k as usize] + j];
            }
        });
    }
}

/// Calls `f(output pixel, where its window begins, offsets from there of the window's pixels, index of the first maximum
/// of each channel)` for the output pixels of image `n` whose window is not empty. `largest` returns these indices for
/// some channels of `x`.
#[inline(always)]
fn each_largest<T: Ordered>(
    s: &Conv3dShape,
    n: usize,
    x: &[T],
    largest: impl Fn(&[usize], &[T]) -> [u32; TOGETHER],
    mut f: impl FnMut(usize, usize, &[usize], &[u32]),
) {
    let mut which = vec![0; s.plane.in_c];
    each_window(
        s,
        n,
        #[inline(always)]
        |i, first, window| {
            if window.is_empty() {
                return;
            }
            let x = &x[first..];
            let (blocks, rest) = which.as_chunks_mut::<TOGETHER>();
            let whole = blocks.len() * TOGETHER;
            for (block, which) in blocks.iter_mut().enumerate() {
                *which = largest(window, &x[block * TOGETHER..]);
            }
            for (j, which) in rest.iter_mut().enumerate() {
                [*which] = first_largest::<T, 1>(window, &x[whole + j..]);
            }
            f(i, first, window, &which);
        },
    );
}

/// Channels compared together.
pub(super) const TOGETHER: usize = 16;

/// Returns the index of the window pixel with the first maximum of each of `N` channels; `window`
/// has the positions of its pixels.
#[inline(always)]
fn first_largest<T: Ordered, const N: usize>(window: &[usize], x: &[T]) -> [u32; N] {
    let pixel = |from: usize| -> [T; N] { std::array::from_fn(|i| x[from..][..N][i]) };
    let mut best = pixel(window[0]);
    let mut which = [0; N];
    for (k, from) in (1..).zip(&window[1..]) {
        let x = pixel(*from);
        for i in 0..N {
            let larger = x[i] > best[i];
            best[i] = if larger { x[i] } else { best[i] };
            which[i] = if larger { k } else { which[i] };
        }
    }
    which
}

/// As [`first_largest`], in steps that become instructions with masks.
#[inline(always)]
fn first_largest_by_masks<T: Ordered, const N: usize>(window: &[usize], x: &[T]) -> [u32; N] {
    let (mut best, mut which) = ([T::ZERO; N], [0; N]);
    for (k, from) in (0..).zip(window) {
        let Some(x) = x[*from..].first_chunk::<N>() else {
            break;
        };
        if k == 0 {
            best = *x;
        }
        let mut larger = [0; N];
        for i in 0..N {
            larger[i] = u32::from(x[i] > best[i]).wrapping_neg();
        }
        for i in 0..N {
            best[i] = if x[i] > best[i] { x[i] } else { best[i] };
        }
        for i in 0..N {
            // Chosen by bits, for which no branch is made.
            which[i] = which[i] & !larger[i] | k & larger[i];
        }
    }
    which
}

/// Sets a pixel to the gradients of the channels in which it is the `k`-th and largest of its
/// window, and to zero in the others.
#[inline]
fn hand_down<T: Ordered>(k: u32, which: &[u32], grad: &[T], place: &mut [T]) {
    let (places, rest) = place.as_chunks_mut::<TOGETHER>();
    let (grads, rest_grad) = grad.as_chunks::<TOGETHER>();
    let (whiches, rest_which) = which.as_chunks::<TOGETHER>();
    for ((place, grad), which) in places.iter_mut().zip(grads).zip(whiches) {
        for i in 0..TOGETHER {
            let kept = grad[i];
            place[i] = if which[i] == k { kept } else { T::ZERO };
        }
    }
    for ((place, grad), which) in rest.iter_mut().zip(rest_grad).zip(rest_which) {
        *place = if *which == k { *grad } else { T::ZERO };
    }
}
