//! Truncated normal samples with parameters, bit for bit TensorFlow's
//! (`core/kernels/parameterized_truncated_normal_op.cc`; the tails by Robert, 1995).

use ferroflow_base::{Result, internal, invalid_argument};
use ferroflow_functors::distributions::{Distribution, Normal, Uniform};
use ferroflow_primitives::philox::Philox;
use ferroflow_tensor::{Element, Tensor};
use num_traits::Float;

/// Attempts per sample.
pub(crate) const MAX_TRIES: usize = 1000;

/// A truncated normal distribution.
pub(crate) struct TruncatedNormal<T> {
    mean: T,
    deviation: T,
    min: T,
    max: T,
}

/// Distributions whose parameters are one each, or the same for all.
pub(crate) struct TruncatedNormals<'a, T> {
    mean: &'a [T],
    deviation: &'a [T],
    min: &'a [T],
    max: &'a [T],
}

impl<'a, T: Element + Float> TruncatedNormals<'a, T> {
    /// Reads the tensors of means, deviations and both bounds.
    pub(crate) fn new([mean, deviation, min, max]: [&'a Tensor; 4]) -> Result<Self> {
        Ok(TruncatedNormals {
            mean: mean.slice()?,
            deviation: deviation.slice()?,
            min: min.slice()?,
            max: max.slice()?,
        })
    }

    /// Returns the `i`-th one.
    pub(crate) fn at(&self, i: usize) -> TruncatedNormal<T> {
        let of = |values: &[T]| match values {
            [one] => *one,
            several => several.get(i).copied().unwrap_or_else(T::nan),
        };
        TruncatedNormal {
            mean: of(self.mean),
            deviation: of(self.deviation),
            min: of(self.min),
            max: of(self.max),
        }
    }
}

/// Takes random bits a group at a time; the rest of the last group is discarded.
struct Groups<'a>(&'a mut Philox);

impl Groups<'_> {
    fn next<T: Copy + Default, D: Distribution<T>>(&mut self, of: &D) -> [T; 4] {
        let mut group = [T::default(); 4];
        if let Some(out) = group.get_mut(..D::GROUP) {
            of.group(self.0, out);
        }
        group
    }
}

/// Collects accepted numbers, up to a given count.
struct Accepted<F> {
    n: usize,
    wanted: usize,
    tries: usize,
    put: F,
}

impl<F> Accepted<F> {
    /// Accepts or rejects a number; returns whether all numbers are drawn.
    fn offer<T>(&mut self, x: Option<T>, from: &str) -> Result<bool>
    where
        F: FnMut(usize, T),
    {
        match x {
            Some(x) => {
                (self.put)(self.n, x);
                self.n += 1;
                self.tries = 0;
            }
            None => self.tries += 1,
        }
        if self.tries > MAX_TRIES {
            return Err(internal!(
                "TruncatedNormal {from} rejection sampler failed to accept a sample."
            ));
        }
        Ok(self.n >= self.wanted)
    }
}

impl<T: Float + Default> TruncatedNormal<T>
where
    Uniform: Distribution<T>,
    Normal: Distribution<T>,
{
    /// Flips the distribution such that a one-sided bound is the lower one, and bounds on one side of the mean are
    /// positive.
    fn flipped(mut self) -> Result<Self> {
        let (min, max) = (self.min, self.max);
        let is_bounded = min < max && (min.is_finite() || max.is_finite());
        if !(self.deviation > T::zero() && is_bounded) {
            return Err(invalid_argument!("Invalid parameters"));
        }
        if (min.is_infinite() && min < T::zero()) || max < self.mean {
            (self.min, self.max) = (max, min);
            self.deviation = -self.deviation;
        }
        Ok(self)
    }

    /// Draws `wanted` numbers from `random` and passes them to `put`, with their index.
    ///
    /// # Errors
    /// INVALID_ARGUMENT for invalid bounds, INTERNAL if no number is accepted.
    pub(crate) fn draw(
        self,
        random: &mut Philox,
        wanted: usize,
        put: impl FnMut(usize, T),
    ) -> Result<()> {
        if wanted == 0 {
            return Ok(());
        }
        let of = |x: f64| T::from(x).unwrap_or_else(T::nan);
        let (zero, two) = (T::zero(), of(2.0));
        let TruncatedNormal {
            mean,
            deviation,
            min,
            max,
        } = self.flipped()?;
        let (low, high) = ((min - mean) / deviation, (max - mean) / deviation);
        let root = (low * low + of(4.0)).sqrt();
        let cutoff = two * (of(0.5) + (low * (low - root)) / of(4.0)).exp() / (low + root);
        let width = high - low;
        let back = |x: T| x * deviation + mean;
        let mut groups = Groups(random);
        let mut out = Accepted {
            n: 0,
            wanted,
            tries: 0,
            put,
        };
        let inside = of(1.3);
        if (low < -inside && high >= zero) || (high > inside && low <= zero) {
            // Much of the normal distribution is inside the bounds.
            let n = <Normal as Distribution<T>>::GROUP;
            loop {
                for x in groups.next(&Normal).into_iter().take(n) {
                    let ok = x >= low && x <= high;
                    if out.offer(ok.then(|| back(x)), "randn")? {
                        return Ok(());
                    }
                }
            }
        }
        let n = <Uniform as Distribution<T>>::GROUP;
        if width < cutoff {
            let plus = if low < zero { zero } else { low * low };
            loop {
                let (places, tries) =
                    (groups.next::<T, _>(&Uniform), groups.next::<T, _>(&Uniform));
                for (x, u) in places.into_iter().zip(tries).take(n) {
                    let z = x * width + low;
                    let ok = u <= ((plus - z * z) / two).exp();
                    if out.offer(ok.then(|| back(z)), "uniform")? {
                        return Ok(());
                    }
                }
            }
        }
        // The exponential proposal with the highest acceptance rate.
        let alpha = (low + root) / two;
        loop {
            let group = groups.next::<T, _>(&Uniform);
            for pair in group[..n.min(4)].chunks_exact(2) {
                let z = -pair[0].ln() / alpha + low;
                let x = if low < alpha { alpha - z } else { low - alpha };
                let ok = pair[1] <= (-x * x / two).exp() && z < high;
                if out.offer(ok.then(|| back(z)), "exponential distribution")? {
                    return Ok(());
                }
            }
        }
    }
}
