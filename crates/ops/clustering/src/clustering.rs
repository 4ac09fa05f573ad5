//! KmeansPlusPlusInitialization, KMC2ChainInitialization, NearestNeighbors (TensorFlow:
//! `core/kernels/clustering_ops.cc`).

use ferroflow_base::{Result, invalid_argument};
use ferroflow_functors::shapes;
use ferroflow_opdef::{Cost, KernelCtx, Op};
use ferroflow_primitives::philox::Philox;
use ferroflow_tensor::{Shape, Tensor};
use std::collections::BTreeSet;

/// The ops of this file.
pub(crate) const OPS: &[Op] = &[
    Op::new(
        "KmeansPlusPlusInitialization",
        "points: float, num_to_sample: int64, seed: int64, num_retries_per_sample: int64 \
         -> samples: float",
    )
    .cost(Cost::Expensive)
    .kernel(|_| Ok(Box::new(kmeans_plus_plus))),
    Op::new(
        "KMC2ChainInitialization",
        "distances: float, seed: int64 -> index: int64",
    )
    .shape(shapes::scalar)
    .kernel(|_| Ok(Box::new(chain))),
    Op::new(
        "NearestNeighbors",
        "points: float, centers: float, k: int64 -> nearest_center_indices: int64, \
         nearest_center_distances: float",
    )
    .cost(Cost::Expensive)
    .kernel(|_| Ok(Box::new(nearest))),
];

/// Rows of a matrix.
struct Rows<'a> {
    data: &'a [f32],
    n: usize,
    width: usize,
}

impl<'a> Rows<'a> {
    fn of(t: &'a Tensor, what: &str) -> Result<Rows<'a>> {
        match t.shape()[..] {
            [n, width] => Ok(Rows {
                data: t.slice::<f32>()?,
                n,
                width,
            }),
            _ => Err(invalid_argument!("Input {what} should be a matrix.")),
        }
    }

    fn row(&self, i: usize) -> &'a [f32] {
        let start = i * self.width;
        self.data.get(start..start + self.width).unwrap_or(&[])
    }

    fn half_squared_norms(&self) -> Vec<f32> {
        let norm = |i| 0.5 * dot(self.row(i), self.row(i));
        (0..self.n).map(norm).collect()
    }
}

fn dot(a: &[f32], b: &[f32]) -> f32 {
    a.iter().zip(b).map(|(x, y)| x * y).sum()
}

fn number(ctx: &KernelCtx, i: usize, what: &str) -> Result<i64> {
    let t = ctx.input(i)?;
    match t.shape().is_scalar() {
        true => t.to_scalar::<i64>(),
        false => Err(invalid_argument!("Input {what} should be a scalar.")),
    }
}

/// Random numbers as TensorFlow's `random::SimplePhilox` draws them.
struct Draws(Philox);

impl Draws {
    fn of_seed(seed: i64) -> Draws {
        Draws(Philox::new(seed as u64, 0))
    }

    /// Returns a number from 0 to 1.
    fn float(&mut self) -> f32 {
        f32::from_bits((127 << 23) | (self.0.next_u32() & 0x7f_ffff)) - 1.0
    }

    fn next_u64(&mut self) -> u64 {
        let low = self.0.next_u32();
        u64::from(low) | u64::from(self.0.next_u32()) << 32
    }

    /// Returns a number below `n`, all equally likely.
    fn below(&mut self, n: u64) -> u64 {
        if n == 0 {
            self.next_u64() * n
        } else if n & (n - 1) == 0 {
            self.next_u64() & (n - 1)
        } else {
            let excess = (u64::MAX % n + 1) % n;
            loop {
                let drawn = self.next_u64();
                if drawn <= u64::MAX - excess {
                    return drawn % n;
                }
            }
        }
    }
}

/// The state of the k-means++ algorithm.
struct Sampler<'a> {
    points: Rows<'a>,
    norms: Vec<f32>,
    draws: Draws,
    sampled: BTreeSet<usize>,
    /// Of each point to the nearest sample.
    distances: Vec<f32>,
    sums: Vec<f32>,
}

impl Sampler<'_> {
    fn draw(&mut self) -> usize {
        if self.sampled.is_empty() {
            return self.draws.below(self.points.n as u64) as usize;
        }
        let last = self.points.n - 1;
        let total = self.sums.last().copied().unwrap_or_default();
        loop {
            let limit = self.draws.float() * total;
            let at = self.sums.partition_point(|&sum| sum <= limit).min(last);
            // Where all that is left has no weight, no draw finds a new point.
            if !self.sampled.contains(&at) || total.is_nan() || total <= 0.0 {
                return at;
            }
        }
    }

    fn distances_with(&self, sample: usize) -> Vec<f32> {
        let row = self.points.row(sample);
        let norm = self.norms.get(sample).copied().unwrap_or_default();
        let near = self.distances.iter().zip(&self.norms).enumerate();
        near.map(|(i, (&known, &n))| known.min(n - dot(self.points.row(i), row) + norm))
            .collect()
    }

    fn sample(&mut self, n_tries: i64) -> usize {
        let mut best = (f32::INFINITY, 0, None);
        for _ in 0..n_tries {
            let at = self.draw();
            let distances = self.distances_with(at);
            let potential = distances.iter().sum();
            if n_tries == 1 || potential < best.0 {
                best = (potential, at, Some(distances));
            }
        }
        if let Some(distances) = best.2 {
            self.distances = distances;
        }
        best.1
    }
}

fn kmeans_plus_plus(ctx: &mut KernelCtx) -> Result<()> {
    let points = Rows::of(ctx.input(0)?, "points")?;
    let n_wanted = number(ctx, 1, "num_to_sample")?;
    let seed = number(ctx, 2, "seed")?;
    let retries = match number(ctx, 3, "num_retries_per_sample")? {
        n if n >= 0 => n,
        _ => 2 + (n_wanted as f64).ln() as i64,
    };
    let (n, width) = (points.n, points.width);
    if n == 0 {
        return Err(invalid_argument!("Expected points.rows() > 0."));
    }
    if n_wanted <= 0 {
        return Err(invalid_argument!("Expected num_to_sample > 0."));
    }
    if n_wanted > n as i64 {
        return Err(invalid_argument!(
            "Expected num_to_sample <= points.rows(). {n_wanted} vs {n}."
        ));
    }
    let mut sampler = Sampler {
        norms: points.half_squared_norms(),
        points,
        draws: Draws::of_seed(seed),
        sampled: BTreeSet::new(),
        distances: vec![f32::INFINITY; n],
        sums: Vec::new(),
    };
    let mut out = Vec::new();
    for i in 0..n_wanted {
        ctx.services().cancel.check()?;
        if i > 0 {
            let running = |sum: &mut f32, x: &f32| {
                *sum += x;
                Some(*sum)
            };
            sampler.sums = sampler.distances.iter().scan(0.0, running).collect();
        }
        let at = sampler.sample(retries.saturating_add(1));
        out.extend_from_slice(sampler.points.row(at));
        sampler.sampled.insert(at);
    }
    ctx.set_output(0, Tensor::from_slice([n_wanted as usize, width], &out)?)
}

fn chain(ctx: &mut KernelCtx) -> Result<()> {
    let distances = ctx.input(0)?;
    if distances.shape().len() != 1 {
        return Err(invalid_argument!("Input distances should be a vector."));
    }
    let seed = number(ctx, 1, "seed")?;
    let distances = distances.slice::<f32>()?;
    let [first, rest @ ..] = distances else {
        return Err(invalid_argument!("Expected distances_tensor.size() > 0."));
    };
    let mut draws = Draws::of_seed(seed);
    let (mut at, mut selected) = (0, *first);
    for (i, &candidate) in rest.iter().enumerate() {
        if candidate > draws.float() * selected {
            (at, selected) = (i + 1, candidate);
        }
    }
    ctx.set_output(0, Tensor::scalar(at as i64))
}

fn nearest(ctx: &mut KernelCtx) -> Result<()> {
    let points = Rows::of(ctx.input(0)?, "points")?;
    let centers = Rows::of(ctx.input(1)?, "centers")?;
    let k = number(ctx, 2, "k")?;
    if points.n == 0 {
        return Err(invalid_argument!("Expected points.rows() > 0."));
    }
    if points.width != centers.width {
        return Err(invalid_argument!(
            "Expected point_dimensions == center_dimensions: {} vs {}.",
            points.width,
            centers.width
        ));
    }
    let Ok(k) = usize::try_from(k) else {
        return Err(invalid_argument!("Expected k >= 0, got {k}."));
    };
    let k = k.min(centers.n);
    let shape = Shape::from([points.n, k]);
    let norms = centers.half_squared_norms();
    let (mut indices, mut distances) = (Vec::new(), Vec::new());
    for i in 0..points.n {
        ctx.services().cancel.check()?;
        let point = points.row(i);
        let half_norm = 0.5 * dot(point, point);
        let partial = |(j, norm): (usize, &f32)| (norm - dot(point, centers.row(j)), j);
        let mut all: Vec<(f32, usize)> = norms.iter().enumerate().map(partial).collect();
        all.sort_unstable_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
        for &(distance, j) in all.iter().take(k) {
            indices.push(j as i64);
            distances.push(2.0 * (half_norm + distance));
        }
    }
    ctx.set_output(0, Tensor::from_slice(shape.clone(), &indices)?)?;
    ctx.set_output(1, Tensor::from_slice(shape, &distances)?)
}
