//! Samplers over a range of classes for sampled losses, bit for bit TensorFlow's
//! (`core/kernels/range_sampler.cc`, `core/lib/random/weighted_picker.cc` and
//! `distribution_sampler.cc`).

use ferroflow_base::{Result, internal, invalid_argument};
use ferroflow_functors::distributions::{below_u32, below_u64, unit_f32, unit_f64};
use ferroflow_functors::indices::shape_of;
use ferroflow_primitives::philox::Philox;
use ferroflow_tensor::{DType, Tensor};
use rustc_hash::FxHashSet;

/// A distribution over `0..range`.
pub(crate) enum RangeSampler {
    /// Every class, once.
    All {
        range: i64,
    },
    Uniform {
        range: i64,
    },
    /// Classes by frequency: `ln((k + 2) / (k + 1)) / ln(range + 1)`.
    LogUniform {
        range: i64,
    },
    /// Classes by the number of times they were seen, plus one.
    Learned(WeightTree),
    /// Classes by constant weights.
    Fixed(Aliases),
}

impl RangeSampler {
    pub(crate) fn range(&self) -> i64 {
        match self {
            RangeSampler::All { range }
            | RangeSampler::Uniform { range }
            | RangeSampler::LogUniform { range } => *range,
            RangeSampler::Learned(tree) => tree.n as i64,
            RangeSampler::Fixed(aliases) => aliases.weights.len() as i64,
        }
    }

    /// Returns the number of classes with a positive probability.
    pub(crate) fn n_possible(&self) -> i64 {
        match self {
            RangeSampler::Fixed(aliases) => aliases.n_possible as i64,
            _ => self.range(),
        }
    }

    fn sample(&self, random: &mut Philox) -> i64 {
        match self {
            RangeSampler::All { .. } => 0,
            RangeSampler::Uniform { range } => below_u64(random, *range as u64) as i64,
            RangeSampler::LogUniform { range } => {
                let (a, b) = (random.next_u32(), random.next_u32());
                let log = unit_f64(a, b) * (*range as f64).ln_1p();
                (log.exp() as i64 - 1) % range
            }
            RangeSampler::Learned(tree) => tree.pick(random) as i64,
            RangeSampler::Fixed(aliases) => aliases.pick(random) as i64,
        }
    }

    fn probability(&self, class: i64) -> f32 {
        match self {
            RangeSampler::All { .. } => 1.0,
            RangeSampler::Uniform { range } => (1.0 / *range as f64) as f32,
            RangeSampler::LogUniform { range } => {
                let class = class as f64;
                (((class + 2.0) / (class + 1.0)).ln() / (*range as f64).ln_1p()) as f32
            }
            RangeSampler::Learned(tree) => tree.weight(class) as f32 / tree.total() as f32,
            RangeSampler::Fixed(aliases) => aliases.probability(class),
        }
    }

    /// Fills `sampled` with classes and returns how often each of them and of `classes` is expected
    /// among as many.
    ///
    /// # Errors
    /// INTERNAL if not enough distinct classes are found; those of `go_on`, which is called
    /// regularly.
    pub(crate) fn draw(
        &self,
        random: &mut Philox,
        unique: bool,
        sampled: &mut [i64],
        expected: &mut [f32],
        classes: (&[i64], &mut [f32]),
        go_on: &dyn Fn() -> Result<()>,
    ) -> Result<()> {
        if let RangeSampler::All { .. } = self {
            sampled.iter_mut().zip(0..).for_each(|(s, i)| *s = i);
            expected.fill(1.0);
            classes.1.fill(1.0);
            return Ok(());
        }
        let n = sampled.len();
        let mut tries = n as i32;
        if unique {
            tries = 0;
            let mut seen = FxHashSet::default();
            for class in sampled.iter_mut() {
                loop {
                    tries = tries.checked_add(1).ok_or_else(|| {
                        internal!(
                            "found fewer than {n} different classes among {}",
                            self.range()
                        )
                    })?;
                    if tries % (1 << 16) == 0 {
                        go_on()?;
                    }
                    *class = self.sample(random);
                    if seen.insert(*class) {
                        break;
                    }
                }
            }
        } else {
            sampled
                .iter_mut()
                .for_each(|class| *class = self.sample(random));
        }
        let count = |class: i64| {
            let p = self.probability(class);
            if tries == n as i32 {
                return p * n as f32;
            }
            -(tries as f32 * (-p).ln_1p()).exp_m1()
        };
        for (expected, class) in expected.iter_mut().zip(sampled.iter()) {
            *expected = count(*class);
        }
        for (expected, class) in classes.1.iter_mut().zip(classes.0) {
            *expected = count(*class);
        }
        Ok(())
    }

    /// Counts classes that were seen, if the distribution learns.
    pub(crate) fn learn(&mut self, classes: &[i64]) {
        if let RangeSampler::Learned(tree) = self {
            classes.iter().for_each(|&class| tree.add(class));
        }
    }
}

/// Weights of classes as a binary tree of sums: node `i` has the children `2 i` and `2 i + 1`.
pub(crate) struct WeightTree {
    n: usize,
    sums: Vec<i32>,
}

impl WeightTree {
    /// Creates a tree of `n` classes of weight one.
    ///
    /// # Errors
    /// RESOURCE_EXHAUSTED if it does not fit into memory; those of `go_on`, which is called
    /// regularly.
    pub(crate) fn new(n: usize, go_on: &dyn Fn() -> Result<()>) -> Result<Self> {
        let leaves = n.next_power_of_two();
        // Checks the size against the machine's memory.
        Tensor::for_overwrite(DType::Int32, shape_of([leaves, 2])?)?;
        let mut sums = vec![0; leaves];
        sums.resize(leaves + n, 1);
        sums.resize(2 * leaves, 0);
        let mut tree = WeightTree { n, sums };
        for i in (1..leaves).rev() {
            if i % (1 << 20) == 0 {
                go_on()?;
            }
            tree.sums[i] = tree.sums[2 * i] + tree.sums[2 * i + 1];
        }
        Ok(tree)
    }

    fn leaves(&self) -> usize {
        self.sums.len() / 2
    }

    fn total(&self) -> i32 {
        self.sums.get(1).copied().unwrap_or_default()
    }

    fn weight(&self, class: i64) -> i32 {
        self.sums[self.leaves() + class as usize]
    }

    fn add(&mut self, class: i64) {
        if self.total() == i32::MAX {
            return;
        }
        let mut i = self.leaves() + class as usize;
        while i > 0 {
            self.sums[i] += 1;
            i /= 2;
        }
    }

    fn pick(&self, random: &mut Philox) -> usize {
        let mut left = below_u32(random, self.total() as u32) as i32;
        let mut i = 1;
        while i < self.leaves() {
            i *= 2;
            if left >= self.sums[i] {
                left -= self.sums[i];
                i += 1;
            }
        }
        i - self.leaves()
    }
}

/// Weights of classes, each with an alias class (the alias method: Walker, 1977).
pub(crate) struct Aliases {
    weights: Vec<f32>,
    /// Weights that are not zero.
    n_possible: usize,
    total: f32,
    places: Vec<(f32, usize)>,
}

impl Aliases {
    /// # Errors
    /// INVALID_ARGUMENT if the weights are not a distribution.
    pub(crate) fn new(weights: Vec<f32>, total: f32) -> Result<Self> {
        let n = weights.len();
        let sum: f64 = weights.iter().copied().map(f64::from).sum();
        if !(sum > 0.0 && sum.is_finite()) || weights.iter().any(|w| *w < 0.0) {
            return Err(invalid_argument!(
                "the weights of classes must be finite, non-negative and not all zero"
            ));
        }
        let mut share: Vec<f64> = weights
            .iter()
            .map(|&w| f64::from(w * n as f32) / sum)
            .collect();
        let mut places: Vec<(f32, usize)> = (0..n).map(|i| (1.0, i)).collect();
        let (mut low, mut high): (Vec<usize>, Vec<usize>) = (0..n).partition(|&i| share[i] < 1.0);
        while let (Some(&l), Some(&h)) = (low.last(), high.last()) {
            low.pop();
            high.pop();
            places[l] = (share[l] as f32, h);
            share[h] -= 1.0 - share[l];
            match share[h] < 1.0 {
                true => low.push(h),
                false => high.push(h),
            }
        }
        Ok(Aliases {
            n_possible: weights.iter().filter(|w| **w > 0.0).count(),
            weights,
            total,
            places,
        })
    }

    fn probability(&self, class: i64) -> f32 {
        let weight = usize::try_from(class)
            .ok()
            .and_then(|i| self.weights.get(i));
        weight.map_or(0.0, |w| w / self.total)
    }

    fn pick(&self, random: &mut Philox) -> usize {
        let r = unit_f32(random.next_u32());
        let i = below_u32(random, self.places.len() as u32) as usize;
        match self.places.get(i) {
            Some(&(share, other)) if r >= share => other,
            _ => i,
        }
    }
}
