//! Examples and weights of stochastic dual coordinate ascent (TensorFlow: `core/kernels/sdca_internal.cc`).

use ferroflow_base::{Result, invalid_argument};
use ferroflow_opdef::{Attrs, KernelCtx};
use ferroflow_primitives::philox::Philox;
use rustc_hash::{FxHashMap, FxHashSet};
use std::hash::{BuildHasher, RandomState};

/// The numbers of feature groups, from which the positions of the inputs follow.
#[derive(Clone, Copy)]
pub(crate) struct Groups {
    pub n_sparse: usize,
    pub n_with_values: usize,
    pub n_dense: usize,
}

impl Groups {
    pub(crate) fn of(attrs: &Attrs) -> Result<Self> {
        let count = |name: &str| {
            let n = attrs.int(name)?;
            let n = i32::try_from(n).ok().and_then(|n| usize::try_from(n).ok());
            n.ok_or_else(|| invalid_argument!("Too many feature groups"))
        };
        Ok(Groups {
            n_sparse: count("num_sparse_features")?,
            n_with_values: count("num_sparse_features_with_values")?,
            n_dense: count("num_dense_features")?,
        })
    }

    fn values(&self) -> usize {
        2 * self.n_sparse
    }

    fn dense(&self) -> usize {
        self.values() + self.n_with_values
    }

    fn weights(&self) -> usize {
        self.dense() + self.n_dense
    }

    fn indices(&self) -> usize {
        self.weights() + 2
    }

    /// The first input with weights; those of dense features follow.
    pub(crate) fn sparse_weights(&self) -> usize {
        self.indices() + self.n_sparse
    }

    pub(crate) fn state(&self) -> usize {
        self.sparse_weights() + self.n_sparse + self.n_dense
    }
}

/// The strengths of the penalties.
#[derive(Clone, Copy)]
pub(crate) struct Regularization {
    l2: f32,
    shrinkage: f64,
}

impl Regularization {
    pub(crate) fn of(attrs: &Attrs) -> Result<Self> {
        let (l1, l2) = (attrs.float("l1")?, attrs.float("l2")?);
        let shrinkage = f64::from(l1 / l2);
        Ok(Regularization { l2, shrinkage })
    }

    pub(crate) fn l2(&self) -> f64 {
        f64::from(self.l2)
    }

    fn shrunk(&self, weight: f64) -> f64 {
        match weight.abs() - self.shrinkage {
            rest if rest > 0.0 => rest.copysign(weight),
            _ => 0.0,
        }
    }

    pub(crate) fn shrunk_f32(&self, weight: f32) -> f32 {
        let sign = match weight {
            w if w > 0.0 => 1.0,
            w if w < 0.0 => -1.0,
            w => w,
        };
        sign * (weight.abs() - self.shrinkage as f32).max(0.0)
    }
}

/// The weights of a feature group and their changes.
struct Weights {
    nominals: Vec<f32>,
    deltas: Vec<f32>,
}

/// The weights of all groups.
pub(crate) struct Model {
    /// The position of each sparse feature in its weights.
    positions: Vec<FxHashMap<i64, usize>>,
    sparse: Vec<Weights>,
    dense: Vec<Weights>,
}

impl Model {
    pub(crate) fn of(ctx: &KernelCtx, groups: Groups) -> Result<Self> {
        let weights = |i: usize| -> Result<Weights> {
            let nominals = ctx.slice::<f32>(i)?.to_vec();
            let deltas = vec![0.0; nominals.len()];
            Ok(Weights { nominals, deltas })
        };
        let first = groups.sparse_weights();
        let sparse = (0..groups.n_sparse).map(|i| weights(first + i));
        let sparse = sparse.collect::<Result<Vec<_>>>()?;
        let dense = (0..groups.n_dense).map(|i| weights(first + groups.n_sparse + i));
        let dense = dense.collect::<Result<Vec<_>>>()?;
        let mut positions = Vec::with_capacity(groups.n_sparse);
        for (i, weights) in sparse.iter().enumerate() {
            let indices = ctx.slice::<i64>(groups.indices() + i)?;
            if indices.len() > weights.nominals.len() {
                return Err(invalid_argument!(
                    "sparse_indices and sparse_weights must have the same length, got {} and {}",
                    indices.len(),
                    weights.nominals.len()
                ));
            }
            positions.push(indices.iter().enumerate().map(|(at, i)| (*i, at)).collect());
        }
        Ok(Model {
            positions,
            sparse,
            dense,
        })
    }

    /// Returns the changes of the weights, those of sparse features first.
    pub(crate) fn into_deltas(self) -> Vec<Vec<f32>> {
        let all = self.sparse.into_iter().chain(self.dense);
        all.map(|weights| weights.deltas).collect()
    }
}

/// An example: sparse features by position, and the rows of dense ones.
pub(crate) struct Example {
    /// The positions of the weights and the values, group by group.
    sparse: Vec<Vec<(usize, f64)>>,
    pub label: f32,
    pub weight: f32,
    pub squared_norm: f64,
}

/// What an example's loss depends on.
pub(crate) struct Statistics {
    pub wx: f64,
    pub previous_wx: f64,
    pub norm: f64,
}

/// The examples of a batch.
pub(crate) struct Examples<'a> {
    all: Vec<Example>,
    /// The dense features and their number, group by group.
    dense: Vec<(&'a [f32], usize)>,
}

/// Returns a list as TensorFlow prints it in errors.
fn printed(values: &[i64]) -> String {
    let values: Vec<String> = values.iter().map(i64::to_string).collect();
    values.join(" ")
}

impl<'a> Examples<'a> {
    pub(crate) fn of(ctx: &'a KernelCtx, groups: Groups, model: &Model) -> Result<Self> {
        let weights = ctx.slice::<f32>(groups.weights())?;
        let labels = ctx.slice::<f32>(groups.weights() + 1)?;
        if labels.len() != weights.len() {
            return Err(invalid_argument!(
                "Expected {} example labels but got {}",
                weights.len(),
                labels.len()
            ));
        }
        for i in 0..groups.n_dense {
            let rank = ctx.shape(groups.dense() + i)?.rank();
            if rank != 2 {
                return Err(invalid_argument!(
                    "Dense features at index {i} must be rank 2 but is rank {rank}"
                ));
            }
        }
        let examples = weights.iter().zip(labels).map(|(weight, label)| Example {
            sparse: vec![Vec::new(); groups.n_sparse],
            label: *label,
            weight: *weight,
            squared_norm: 0.0,
        });
        let mut examples = Examples {
            all: examples.collect(),
            dense: Vec::with_capacity(groups.n_dense),
        };
        for i in 0..groups.n_sparse {
            examples.read_sparse(ctx, groups, model, i)?;
        }
        for (i, weights) in model.dense.iter().enumerate() {
            let shape = ctx.shape(groups.dense() + i)?;
            let (rows, columns) = (shape[0], shape[1]);
            let n = weights.nominals.len();
            if columns == 0 || columns > n {
                return Err(invalid_argument!(
                    "More dense features than we have parameters for: {columns}"
                ));
            }
            if columns < n || rows < examples.len() {
                return Err(invalid_argument!(
                    "Dense features at index {i} have shape {shape}, expected [{},{n}]",
                    examples.len()
                ));
            }
            examples
                .dense
                .push((ctx.slice(groups.dense() + i)?, columns));
        }
        examples.measure()?;
        Ok(examples)
    }

    fn read_sparse(
        &mut self,
        ctx: &KernelCtx,
        groups: Groups,
        model: &Model,
        i: usize,
    ) -> Result<()> {
        let rows = ctx.slice::<i64>(i)?;
        let features = ctx.slice::<i64>(groups.n_sparse + i)?;
        if rows.len() != features.len() {
            return Err(invalid_argument!(
                "Found mismatched example_indices and feature_indices [{}] vs [{}]",
                printed(rows),
                printed(features)
            ));
        }
        let values = match i < groups.n_with_values {
            true => Some(ctx.slice::<f32>(groups.values() + i)?),
            false => None,
        };
        if values.is_some_and(|v| v.len() < features.len()) {
            return Err(invalid_argument!(
                "Expected {} feature values in group {i}",
                features.len()
            ));
        }
        let mut next = 0;
        for (id, example) in self.all.iter_mut().enumerate() {
            while rows.get(next) == Some(&(id as i64)) {
                let feature = features[next];
                let at = model.positions[i].get(&feature).ok_or_else(|| {
                    invalid_argument!("Found sparse feature indices out of valid range: {feature}")
                })?;
                let value = values.map_or(1.0, |v| f64::from(v[next]));
                example.sparse[i].push((*at, value));
                next += 1;
            }
        }
        Ok(())
    }

    /// Computes the squared norms.
    fn measure(&mut self) -> Result<()> {
        let mut seen = FxHashSet::default();
        for (i, example) in self.all.iter_mut().enumerate() {
            for features in &example.sparse {
                seen.clear();
                for (at, value) in features {
                    if !seen.insert(*at) {
                        return Err(invalid_argument!("Duplicate index in sparse vector."));
                    }
                    example.squared_norm += value * value;
                }
            }
            for (values, n) in &self.dense {
                let row = &values[i * n..][..*n];
                example.squared_norm += f64::from(row.iter().map(|x| x * x).sum::<f32>());
            }
        }
        Ok(())
    }

    pub(crate) fn len(&self) -> usize {
        self.all.len()
    }

    pub(crate) fn get(&self, i: usize) -> &Example {
        &self.all[i]
    }

    /// Returns the predictions of an example, and its norm.
    pub(crate) fn statistics(
        &self,
        model: &Model,
        by: &Regularization,
        i: usize,
        partitions: f64,
    ) -> Statistics {
        let example = &self.all[i];
        let (mut wx, mut previous_wx) = (0.0, 0.0);
        for (features, weights) in example.sparse.iter().zip(&model.sparse) {
            for (at, value) in features {
                let weight = weights.nominals[*at];
                // TensorFlow sums in single precision.
                let changed = weight + weights.deltas[*at] * partitions as f32;
                previous_wx += value * by.shrunk(f64::from(weight));
                wx += value * by.shrunk(f64::from(changed));
            }
        }
        for ((values, n), weights) in self.dense.iter().zip(&model.dense) {
            let row = &values[i * n..][..*n];
            let (mut now, mut before) = (0.0f32, 0.0f32);
            for ((x, weight), delta) in row.iter().zip(&weights.nominals).zip(&weights.deltas) {
                before += x * by.shrunk_f32(*weight);
                now += x * by.shrunk_f32(weight + delta * partitions as f32);
            }
            previous_wx += f64::from(before);
            wx += f64::from(now);
        }
        Statistics {
            wx,
            previous_wx,
            norm: example.squared_norm / by.l2(),
        }
    }

    /// Moves the weights along an example.
    pub(crate) fn update(&self, model: &mut Model, i: usize, delta: f64) {
        for (features, weights) in self.all[i].sparse.iter().zip(&mut model.sparse) {
            for (at, value) in features {
                weights.deltas[*at] = (f64::from(weights.deltas[*at]) + value * delta) as f32;
            }
        }
        for ((values, n), weights) in self.dense.iter().zip(&mut model.dense) {
            for (to, x) in weights.deltas.iter_mut().zip(&values[i * n..]) {
                *to += x * delta as f32;
            }
        }
    }

    /// Returns the examples in random order.
    pub(crate) fn shuffled(&self) -> Vec<usize> {
        let mut random = fresh();
        let mut order: Vec<usize> = (0..self.len()).collect();
        for i in (1..order.len()).rev() {
            let j = (unit(&mut random) * (i + 1) as f64) as usize;
            order.swap(i, j.min(i));
        }
        order
    }

    /// Draws as many examples as there are by these weights. An example that was drawn `k` times is kept with
    /// probability `10^-k`; after too many retries those not drawn follow, the largest weight first.
    pub(crate) fn sampled(&self, weight: impl Fn(usize, &Example) -> f64) -> Vec<usize> {
        let weights = self.all.iter().enumerate().map(|(i, e)| weight(i, e));
        let weights: Vec<f64> = weights.collect();
        let mut sums = Vec::with_capacity(weights.len());
        let mut total = 0.0;
        for weight in &weights {
            total += if *weight > 0.0 { *weight } else { 0.0 };
            sums.push(total);
        }
        if total <= 0.0 || !total.is_finite() {
            return self.shuffled();
        }
        let (mut random, mut counts) = (fresh(), vec![0; self.len()]);
        let (mut order, mut retries) = (Vec::with_capacity(self.len()), 0);
        while order.len() < self.len() && retries < self.len() {
            let at = unit(&mut random) * total;
            let picked = sums.partition_point(|sum| *sum <= at).min(self.len() - 1);
            if unit(&mut random) > 0.1f64.powi(counts[picked]) {
                retries += 1;
                continue;
            }
            counts[picked] += 1;
            order.push(picked);
        }
        let mut rest: Vec<usize> = (0..self.len()).filter(|i| counts[*i] == 0).collect();
        rest.sort_by(|a, b| weights[*b].total_cmp(&weights[*a]));
        rest.truncate(self.len() - order.len());
        order.extend(rest);
        order
    }
}

fn fresh() -> Philox {
    let seed = || RandomState::new().hash_one(0);
    Philox::new(seed(), seed())
}

/// Returns a number in [0, 1).
fn unit(random: &mut Philox) -> f64 {
    f64::from(random.next_u32()) / 4_294_967_296.0
}
