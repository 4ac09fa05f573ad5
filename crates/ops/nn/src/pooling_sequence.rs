//! The random regions of fractional pooling (TensorFlow: `core/kernels/fractional_pool_common.cc`).

use ferroflow_base::{Result, invalid_argument};
use ferroflow_opdef::KernelBuild;
use ferroflow_primitives::philox::Philox;
use std::hash::{BuildHasher, RandomState};

/// How the regions are chosen.
pub(crate) struct Seeds {
    seeds: Option<[u64; 2]>,
    pseudo_random: bool,
}

impl Seeds {
    /// Reads the attrs of a node.
    ///
    /// # Errors
    /// INVALID_ARGUMENT if there are seeds for regions that differ in each step.
    pub(crate) fn of(build: &KernelBuild) -> Result<Seeds> {
        let seeds = [
            build.attrs.int("seed")? as u64,
            build.attrs.int("seed2")? as u64,
        ];
        let given = seeds != [0, 0];
        let seeds = match (build.attrs.bool("deterministic")?, given) {
            (true, true) => Some(seeds),
            (true, false) => Some([0, 1].map(|i| RandomState::new().hash_one(i))),
            (false, false) => None,
            (false, true) => {
                return Err(invalid_argument!(
                    "Both seed and seed2 should be 0 if deterministic is false."
                ));
            }
        };
        Ok(Seeds {
            seeds,
            pseudo_random: build.attrs.bool("pseudo_random")?,
        })
    }

    /// Returns the bounds of the regions of each (input length, number of regions).
    pub(crate) fn sequences(&self, sizes: [(usize, usize); 2]) -> [Vec<i64>; 2] {
        let fresh = || [0, 1].map(|i| RandomState::new().hash_one(i));
        let [seed, seed2] = self.seeds.unwrap_or_else(fresh);
        let mut generator = Philox::new(seed, seed2);
        sizes.map(|(from, to)| {
            let (lengths, n_samples) = match self.pseudo_random {
                true => (pseudo_random(from, to, generator), 2),
                false => (shuffled(from, to, generator), to),
            };
            generator = generator.skipped(n_samples.div_ceil(4) as u128);
            let mut bounds = vec![0];
            let ends = lengths.iter().scan(0, |end, n| {
                *end += n;
                Some(*end)
            });
            bounds.extend(ends);
            bounds
        })
    }
}

/// Returns lengths whose bounds are a line's, rounded; the line is shifted at random.
fn pseudo_random(from: usize, to: usize, mut random: Philox) -> Vec<i64> {
    let alpha = from as f64 / to as f64;
    let k = from / to;
    let most = (k as f64 + 2.0) / alpha - 1.0;
    let most = most.min((from + 1 - k) as f64 / alpha - (to as f64 - 1.0));
    let (high, low) = (random.next_u32(), random.next_u32());
    // The upper bits of a fraction in [1, 2).
    let bits = (1023u64 << 52) | (u64::from(high & 0xf_ffff) << 32) | u64::from(low);
    let u = (f64::from_bits(bits) - 1.0) * most;
    let mut bounds: Vec<i64> = (0..=to)
        .map(|i| (alpha * (i as f64 + u)).ceil() as i64)
        .collect();
    if let [first, .., last] = &mut bounds[..] {
        (*first, *last) = (1, from as i64 + 1);
    }
    bounds.windows(2).map(|pair| pair[1] - pair[0]).collect()
}

/// Returns lengths that differ by at most one, in random order.
fn shuffled(from: usize, to: usize, mut random: Philox) -> Vec<i64> {
    let (k, longer) = (from / to, from % to);
    let mut lengths: Vec<i64> = (0..to)
        .map(|i| (k + usize::from(i < longer)) as i64)
        .collect();
    for i in 0..to.saturating_sub(1) {
        lengths.swap(i, i + random.next_u32() as usize % (to - i));
    }
    lengths
}

/// A range of rows or columns.
pub(crate) struct Region {
    pub(crate) start: usize,
    pub(crate) end: usize,
}

/// Returns the regions between the bounds, inside of `0..n`; overlapping ones share a line.
pub(crate) fn regions(bounds: &[i64], n: usize, overlapping: bool) -> Vec<Region> {
    let inside = |x: i64| usize::try_from(x).unwrap_or(0).min(n);
    let region = |pair: &[i64]| Region {
        start: inside(pair[0]),
        end: inside(pair[1].saturating_add(i64::from(overlapping))),
    };
    bounds.windows(2).map(region).collect()
}
