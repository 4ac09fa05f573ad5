//! Transforms of real rows of even length, by one of half as many complex numbers: its even and odd elements as
//! real and imaginary parts.

use crate::transform::Sample;
use ferroflow_fft::{Fft, FftDirection};
use ferroflow_primitives::vectorized;
use ferroflow_tensor::Complex;
use std::f64::consts::TAU;
use std::sync::Arc;

/// The plan for rows of a length.
pub(crate) struct Halves<T: Sample> {
    half: Arc<dyn Fft<T>>,
    /// Half the cosines and sines of the frequencies' angles.
    cosines: Vec<T>,
    sines: Vec<T>,
}

impl<T: Sample> Halves<T> {
    /// Plans for rows of `n` numbers, which is even.
    pub(crate) fn new(n: usize) -> Self {
        let m = n / 2;
        let halves = |f: fn(f64) -> f64| {
            let half = |k: usize| f(TAU * k as f64 / n as f64) / 2.0;
            let number = |v: f64| T::from_f64(v).unwrap_or(T::zero());
            (0..=m).map(|k| number(half(k))).collect()
        };
        let mut made = Halves {
            half: T::complex(m, FftDirection::Forward),
            cosines: halves(f64::cos),
            sines: halves(f64::sin),
        };
        // Exact where the angle is a multiple of a right one.
        if n.is_multiple_of(4) {
            made.cosines[m / 2] = T::zero();
        }
        made.sines[m] = T::zero();
        made
    }

    /// Transforms rows, given as pairs of numbers, to their half spectra.
    pub(crate) fn transform(&self, rows: &[[T; 2]], spectra: &mut [Complex<T>]) {
        let m = self.half.len();
        let zero = Complex::new(T::zero(), T::zero());
        let mut row = vec![zero; m];
        let mut scratch = vec![zero; self.half.get_inplace_scratch_len()];
        let mut parts = [vec![T::zero(); m + 1], vec![T::zero(); m + 1]];
        for (from, to) in rows.chunks_exact(m).zip(spectra.chunks_exact_mut(m + 1)) {
            for (to, &[re, im]) in row.iter_mut().zip(from) {
                *to = Complex::new(re, im);
            }
            self.half.process_with_scratch(&mut row, &mut scratch);
            vectorized(
                #[inline(always)]
                || self.separate(&row, &mut parts, to),
            );
        }
    }

    /// Computes the half spectrum of a row from the spectrum of its halves.
    #[inline(always)]
    fn separate(&self, row: &[Complex<T>], parts: &mut [Vec<T>; 2], to: &mut [Complex<T>]) {
        let [re, im] = parts;
        for ((re, im), z) in re.iter_mut().zip(im.iter_mut()).zip(row) {
            (*re, *im) = (z.re, z.im);
        }
        // The spectrum is periodic.
        let m = row.len();
        (re[m], im[m]) = (re[0], im[0]);
        let n = to.len();
        let (re, im) = (&re[..n], &im[..n]);
        let (cosines, sines) = (&self.cosines[..n], &self.sines[..n]);
        let half = T::from_f64(0.5).unwrap_or(T::zero());
        for (k, to) in to.iter_mut().enumerate() {
            let (a, b) = ([re[k], im[k]], [re[n - 1 - k], im[n - 1 - k]]);
            let (sum, difference) = ([a[0] + b[0], a[1] + b[1]], [a[0] - b[0], a[1] - b[1]]);
            let (c, s) = (cosines[k], sines[k]);
            *to = Complex::new(
                half * sum[0] + (c * sum[1] - s * difference[0]),
                half * difference[1] - (c * difference[0] + s * sum[1]),
            );
        }
    }
}
