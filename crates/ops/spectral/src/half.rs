//! Transforms of real rows of even length, and back: one of complex rows of half the length, and a step that separates
//! or joins the spectra of even and odd elements.

use crate::transform::Sample;
use ferroflow_fft::{Fft, FftDirection};
use ferroflow_primitives::vectorized;
use ferroflow_tensor::Complex;
use std::sync::Arc;

/// The transform of a length.
pub(crate) struct HalfLength<T: Sample> {
    plan: Arc<dyn Fft<T>>,
    /// Half of `e^(-2πik/n)`, from `k = 1` on.
    twiddles: Vec<Complex<T>>,
}

/// Frequencies of a block.
const WIDTH: usize = 16;

impl<T: Sample> HalfLength<T> {
    /// Returns the transform of rows of `n` elements, an even number that is not zero.
    pub fn new(n: usize, direction: FftDirection) -> Self {
        let twiddle = |k: usize| {
            let angle = -2.0 * std::f64::consts::PI / n as f64 * k as f64;
            let number = |x: f64| T::from_f64(0.5 * x).unwrap_or(T::zero());
            Complex::new(number(angle.cos()), number(angle.sin()))
        };
        HalfLength {
            plan: T::complex(n / 2, direction),
            twiddles: (1..n.div_ceil(4)).map(twiddle).collect(),
        }
    }

    pub fn scratch(&self) -> Vec<Complex<T>> {
        vec![Complex::new(T::zero(), T::zero()); self.plan.get_inplace_scratch_len()]
    }

    /// Transforms `signal` to the first half of its spectrum, and the element in its middle.
    pub fn transform(&self, signal: &[T], to: &mut [Complex<T>], scratch: &mut [Complex<T>]) {
        let half = signal.len() / 2;
        for (to, [even, odd]) in to.iter_mut().zip(signal.as_chunks().0) {
            *to = Complex::new(*even, *odd);
        }
        self.plan.process_with_scratch(&mut to[..half], scratch);
        let first = to[0];
        to[0] = Complex::new(first.re + first.im, T::zero());
        to[half] = Complex::new(first.re - first.im, T::zero());
        vectorized(
            #[inline(always)]
            || self.each_pair(&mut to[1..half], pair),
        );
        if half.is_multiple_of(2) {
            to[half / 2].im = -to[half / 2].im;
        }
    }

    /// Transforms the first half of a spectrum, and the element in its middle, to `scale` times the signal. What is
    /// imaginary of the first and of the middle element is ignored. Overwrites the spectrum.
    pub fn invert(
        &self,
        from: &mut [Complex<T>],
        to: &mut [T],
        scale: T,
        scratch: &mut [Complex<T>],
    ) {
        let half = to.len() / 2;
        let (first, middle) = (from[0].re, from[half].re);
        from[0] = Complex::new((first + middle) * scale, (first - middle) * scale);
        vectorized(
            #[inline(always)]
            || {
                self.each_pair(&mut from[1..half], |t, low, high| {
                    joined(t, low, high, scale)
                })
            },
        );
        if half.is_multiple_of(2) {
            let twice = scale + scale;
            let z = from[half / 2];
            from[half / 2] = Complex::new(z.re * twice, -(z.im * twice));
        }
        self.plan.process_with_scratch(&mut from[..half], scratch);
        for ([even, odd], from) in to.as_chunks_mut().0.iter_mut().zip(from.iter()) {
            (*even, *odd) = (from.re, from.im);
        }
    }

    /// Replaces pairs of frequencies at the same distance from both ends.
    #[inline(always)]
    fn each_pair(
        &self,
        to: &mut [Complex<T>],
        pair: impl Fn(Complex<T>, Complex<T>, Complex<T>) -> Pair<T>,
    ) {
        let n = self.twiddles.len();
        let (low, high) = to.split_at_mut(n);
        let at = high.len() - n;
        let high = &mut high[at..];
        let (twiddles, few) = self.twiddles.as_chunks::<WIDTH>();
        for (i, twiddles) in twiddles.iter().enumerate() {
            let low = low[i * WIDTH..].first_chunk_mut::<WIDTH>();
            let end = n - i * WIDTH;
            let high = high[..end].last_chunk_mut::<WIDTH>();
            if let (Some(low), Some(high)) = (low, high) {
                pairs(twiddles, low, high, &pair);
            }
        }
        let low = low[n - few.len()..].iter_mut();
        let high = high[..few.len()].iter_mut().rev();
        for ((twiddle, low), high) in few.iter().zip(low).zip(high) {
            (*low, *high) = pair(*twiddle, *low, *high);
        }
    }
}

/// Computes the pairs of a block. The results go where LLVM sees that they are interleaved: through arrays of real and
/// imaginary parts, they would take four times as long.
#[inline(always)]
fn pairs<T: Sample>(
    twiddles: &[Complex<T>; WIDTH],
    low: &mut [Complex<T>; WIDTH],
    high: &mut [Complex<T>; WIDTH],
    pair: impl Fn(Complex<T>, Complex<T>, Complex<T>) -> Pair<T>,
) {
    let (from_low, from_high) = (*low, *high);
    for i in 0..WIDTH {
        let mirrored = WIDTH - 1 - i;
        (low[i], high[mirrored]) = pair(twiddles[i], from_low[i], from_high[mirrored]);
    }
}

/// Elements at a frequency and at its mirror image.
type Pair<T> = (Complex<T>, Complex<T>);

/// Returns the elements of the half-length transform that become this pair of the spectrum, times `scale`.
#[inline(always)]
fn joined<T: Sample>(twiddle: Complex<T>, low: Complex<T>, high: Complex<T>, scale: T) -> Pair<T> {
    let twice = scale + scale;
    let (sum, difference) = (low + high.conj(), low - high.conj());
    let (re, im) = (twiddle.im * twice, twiddle.re * twice);
    let (odd_re, odd_im) = (
        re * difference.re - im * difference.im,
        re * difference.im + im * difference.re,
    );
    let (even_re, even_im) = (sum.re * scale, sum.im * scale);
    (
        Complex::new(even_re + odd_re, even_im + odd_im),
        Complex::new(even_re - odd_re, odd_im - even_im),
    )
}

/// Returns the pair of the spectrum that a pair of the half-length transform becomes.
#[inline(always)]
fn pair<T: Sample>(twiddle: Complex<T>, low: Complex<T>, high: Complex<T>) -> Pair<T> {
    let half = T::from_f64(0.5).unwrap_or(T::zero());
    let (sum, difference) = (low + high, low - high);
    let re = sum.im * twiddle.re + difference.re * twiddle.im;
    let im = sum.im * twiddle.im - difference.re * twiddle.re;
    let (even, odd) = (half * sum.re, half * difference.im);
    (
        Complex::new(even + re, odd + im),
        Complex::new(even - re, im - odd),
    )
}
