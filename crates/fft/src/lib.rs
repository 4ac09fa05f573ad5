//! Plans of Fourier transforms. The planners of rustfft and realfft are generic: each crate that calls them compiles
//! all their algorithms again, about half a megabyte for each real type. Here they are compiled once.

#![forbid(unsafe_code)]

pub use realfft::{ComplexToReal, FftError, RealToComplex};
pub use rustfft::{Fft, FftDirection};

use realfft::RealFftPlanner;
use rustfft::{FftNum, FftPlanner};
use std::sync::Arc;

/// A real type with transforms; none of them scales its results.
///
/// ```
/// use ferroflow_fft::Real;
/// let plan = f32::real_to_complex(4);
/// let (mut signal, mut spectrum) = (vec![1.0, 0.0, 0.0, 0.0], plan.make_output_vec());
/// plan.process(&mut signal, &mut spectrum)?;
/// assert!(spectrum.iter().all(|z| (z.re, z.im) == (1.0, 0.0)));
/// # Ok::<(), ferroflow_fft::FftError>(())
/// ```
pub trait Real: FftNum {
    /// Returns a plan for complex rows of length `n`.
    fn complex(n: usize, direction: FftDirection) -> Arc<dyn Fft<Self>>;

    /// Returns a plan from real rows of length `n` to the first `n / 2 + 1` elements of their spectra.
    fn real_to_complex(n: usize) -> Arc<dyn RealToComplex<Self>>;

    /// Returns a plan from the first `n / 2 + 1` elements of spectra to real rows of length `n`.
    fn complex_to_real(n: usize) -> Arc<dyn ComplexToReal<Self>>;
}

macro_rules! real {
    ($($t:ty),*) => {
        $(
            impl Real for $t {
                fn complex(n: usize, direction: FftDirection) -> Arc<dyn Fft<Self>> {
                    FftPlanner::new().plan_fft(n, direction)
                }

                fn real_to_complex(n: usize) -> Arc<dyn RealToComplex<Self>> {
                    RealFftPlanner::new().plan_fft_forward(n)
                }

                fn complex_to_real(n: usize) -> Arc<dyn ComplexToReal<Self>> {
                    RealFftPlanner::new().plan_fft_inverse(n)
                }
            }
        )*
    };
}

real!(f32, f64);

#[cfg(test)]
mod tests {
    use super::*;

    /// Transforms a row of length `n` there and back.
    fn check(n: usize) {
        let row: Vec<f64> = (0..n).map(|i| (i * i % 7) as f64).collect();
        let (there, back) = (f64::real_to_complex(n), f64::complex_to_real(n));
        let (mut spectrum, mut out) = (there.make_output_vec(), vec![0.0; n]);
        there
            .process(&mut row.clone(), &mut spectrum)
            .expect("the lengths fit");
        let mut full: Vec<_> = row
            .iter()
            .map(|x| rustfft::num_complex::Complex::from(*x))
            .collect();
        f64::complex(n, FftDirection::Forward).process(&mut full);
        for (half, full) in spectrum.iter().zip(&full) {
            assert!((half - full).norm() < 1e-9, "{n}: {half} {full}");
        }
        back.process(&mut spectrum, &mut out)
            .expect("the lengths fit");
        for (x, y) in row.iter().zip(&out) {
            assert!((x - y / n as f64).abs() < 1e-9, "{n}: {x} {y}");
        }
    }

    #[test]
    fn there_and_back() {
        [1, 2, 3, 8, 15, 64, 97, 1000].into_iter().for_each(check);
    }
}
