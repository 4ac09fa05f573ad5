//! Candidate sampling for sampled losses (TensorFlow: `core/kernels/candidate_sampler_ops.cc`).

use crate::random_ops::Seeded;
use crate::range_sampler::{Aliases, RangeSampler, WeightTree};
use ferroflow_base::{Result, invalid_argument};
use ferroflow_opdef::{KernelBuild, KernelCtx, Op, OpKernel, ShapeCtx};
use ferroflow_resources::file_system::{files, io_error, local_path};
use ferroflow_tensor::{DType, PartialShape, Shape, Tensor};
use rustc_hash::FxHashMap;
use std::io::{BufRead, BufReader, Read};
use std::sync::{Mutex, PoisonError};

/// The signature of the samplers that are determined by their range.
const OF_RANGE: &str = "true_classes: int64 -> sampled_candidates: int64, true_expected_count: float, \
         sampled_expected_count: float | num_true: int >= 1; num_sampled: int >= 1; \
         unique: bool; range_max: int >= 1; seed: int = 0; seed2: int = 0 | stateful";

/// AllCandidateSampler, UniformCandidateSampler, LogUniformCandidateSampler,
/// LearnedUnigramCandidateSampler, ThreadUnsafeUnigramCandidateSampler,
/// FixedUnigramCandidateSampler, ComputeAccidentalHits.
pub(crate) const OPS: &[Op] = &[
    Op::new(
        "AllCandidateSampler",
        "true_classes: int64 -> sampled_candidates: int64, true_expected_count: float, \
         sampled_expected_count: float | num_true: int >= 1; num_sampled: int >= 1; \
         unique: bool; seed: int = 0; seed2: int = 0 | stateful",
    )
    .shape(shape)
    .kernel(|build| {
        let range = build.attrs.int("num_sampled")?;
        sampler(build, move |_| Ok(RangeSampler::All { range }))
    }),
    Op::new("UniformCandidateSampler", OF_RANGE)
        .shape(shape)
        .kernel(|build| {
            let range = range(build)?;
            sampler(build, move |_| Ok(RangeSampler::Uniform { range }))
        }),
    Op::new("LogUniformCandidateSampler", OF_RANGE)
        .shape(shape)
        .kernel(|build| {
            let range = range(build)?;
            sampler(build, move |_| Ok(RangeSampler::LogUniform { range }))
        }),
    Op::new("LearnedUnigramCandidateSampler", OF_RANGE)
        .shape(shape)
        .kernel(learned),
    Op::new("ThreadUnsafeUnigramCandidateSampler", OF_RANGE)
        .shape(shape)
        .kernel(learned),
    Op::new(
        "FixedUnigramCandidateSampler",
        "true_classes: int64 -> sampled_candidates: int64, true_expected_count: float, \
         sampled_expected_count: float | num_true: int >= 1; num_sampled: int >= 1; \
         unique: bool; range_max: int >= 1; vocab_file: string = ''; distortion: float \
         = 1.0; num_reserved_ids: int = 0; num_shards: int >= 1 = 1; shard: int >= 0 = \
         0; unigrams: list(float) = []; seed: int = 0; seed2: int = 0 | stateful",
    )
    .shape(shape)
    .kernel(|build| {
        let unigrams = Unigrams::new(build)?;
        sampler(build, move |_| unigrams.sampler())
    }),
    Op::new(
        "ComputeAccidentalHits",
        "true_classes: int64, sampled_candidates: int64 -> indices: int32, ids: int64, \
         weights: float | num_true: int; seed: int = 0; seed2: int = 0 |",
    )
    .shape(|ctx| {
        let n_true = ctx.attrs().int("num_true")?;
        ctx.merge(&ctx.with_rank(0, 2)?, &columns(n_true))?;
        ctx.with_rank(1, 1)?;
        (0..3).for_each(|i| ctx.set(i, PartialShape::of([None])));
        Ok(())
    })
    .kernel(accidental_hits)
    .not_differentiable(),
];

/// Returns a matrix shape with `n` columns.
fn columns(n: i64) -> PartialShape {
    PartialShape::of([None, usize::try_from(n).ok()])
}

fn shape(ctx: &mut ShapeCtx) -> Result<()> {
    let (n_true, n) = (
        ctx.attrs().int("num_true")?,
        ctx.attrs().int("num_sampled")?,
    );
    let classes = ctx.merge(&ctx.with_rank(0, 2)?, &columns(n_true))?;
    let sampled = PartialShape::of([usize::try_from(n).ok()]);
    ctx.set(0, sampled.clone());
    ctx.set(1, classes);
    ctx.set(2, sampled);
    Ok(())
}

fn range(build: &KernelBuild) -> Result<i64> {
    match build.attrs.int("range_max")? {
        range if range > 0 => Ok(range),
        _ => Err(invalid_argument!("range_max must be positive")),
    }
}

fn learned(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    let range = range(build)?;
    if range >= i32::MAX.into() {
        return Err(invalid_argument!(
            "range_max must be less than {} for unigram samplers, got {range}",
            i32::MAX
        ));
    }
    sampler(build, move |go_on| {
        Ok(RangeSampler::Learned(WeightTree::new(
            range as usize,
            go_on,
        )?))
    })
}

/// The weights of a fixed distribution, from the attrs.
struct Unigrams {
    range: i64,
    distortion: f32,
    n_reserved: i64,
    shards: i64,
    shard: i64,
    file: String,
    unigrams: Vec<f32>,
}

impl Unigrams {
    fn new(build: &KernelBuild) -> Result<Self> {
        let attrs = build.attrs;
        let unigrams = Unigrams {
            range: range(build)?,
            distortion: attrs.float("distortion")?,
            n_reserved: attrs.int("num_reserved_ids")?,
            shards: attrs.int("num_shards")?.max(1),
            shard: attrs.int("shard")?,
            file: attrs.str("vocab_file")?.to_string(),
            unigrams: attrs.floats("unigrams")?.to_vec(),
        };
        match (unigrams.file.is_empty(), unigrams.unigrams.is_empty()) {
            (true, true) => Err(invalid_argument!(
                "Must provide either vocab_file or unigrams."
            )),
            (false, false) => Err(invalid_argument!(
                "Must only provide one of vocab_file and unigrams."
            )),
            _ => Ok(unigrams),
        }
    }

    fn sampler(&self) -> Result<RangeSampler> {
        let mut weights = Weights {
            of: self,
            values: Vec::new(),
            n: self.n_reserved_here(),
            total: 0.0,
        };
        weights.check_memory()?;
        let room = weights.n.min(self.range) as usize;
        weights.values.resize(room, 0.0);
        let first = weights.n;
        match self.file.as_str() {
            "" => {
                for (id, weight) in (first..).zip(&self.unigrams) {
                    weights.add(id, || Ok(*weight))?;
                }
            }
            file => weights.read(file, first)?,
        }
        if weights.n != self.range {
            return Err(invalid_argument!(
                "range is {} must be equal to weights size  {}",
                self.range,
                weights.n
            ));
        }
        let aliases = Aliases::new(weights.values, weights.total)?;
        Ok(RangeSampler::Fixed(aliases))
    }

    /// Returns the number of reserved ids of this shard.
    fn n_reserved_here(&self) -> i64 {
        match self.n_reserved.saturating_sub(self.shard) {
            left if left > 0 && self.shard < self.shards => (left - 1) / self.shards + 1,
            _ => 0,
        }
    }
}

/// Maximal length of a line of a vocabulary.
const LONGEST_LINE: u64 = 1 << 20;

/// Weights of this shard's ids. Surplus ones are counted but not stored.
struct Weights<'a> {
    of: &'a Unigrams,
    values: Vec<f32>,
    n: i64,
    total: f32,
}

impl Weights<'_> {
    /// Checks that the weights of all reserved ids fit into memory.
    fn check_memory(&self) -> Result<()> {
        let n = self.n.min(self.of.range) as usize;
        Tensor::for_overwrite(DType::Float, ferroflow_functors::indices::shape_of([n, 4])?)
            .map(drop)
    }

    fn add(&mut self, id: i64, weight: impl FnOnce() -> Result<f32>) -> Result<()> {
        if id % self.of.shards != self.of.shard {
            return Ok(());
        }
        let weight = weight()?.powf(self.of.distortion);
        self.n += 1;
        self.total += weight;
        if self.n <= self.of.range {
            self.values.push(weight);
        }
        Ok(())
    }

    /// Adds the last fields of a vocabulary's lines.
    fn read(&mut self, file: &str, first: i64) -> Result<()> {
        let path = local_path(file);
        let error = |e| io_error(path, &e);
        let mut text = BufReader::new(files::open(path).map_err(error)?);
        let (mut id, mut line) = (first, Vec::new());
        loop {
            line.clear();
            let mut limited = (&mut text).take(LONGEST_LINE);
            if limited.read_until(b'\n', &mut line).map_err(error)? == 0 {
                return Ok(());
            }
            let bad = |line: &[u8]| {
                let start = line.get(..200).unwrap_or(line);
                let start = String::from_utf8_lossy(start);
                invalid_argument!("Wrong vocabulary format at line: {}", start.trim_end())
            };
            if line.len() as u64 == LONGEST_LINE {
                return Err(bad(&line));
            }
            if line.trim_ascii().is_empty() {
                continue;
            }
            self.add(id, || {
                let last = line.rsplit(|&b| b == b',').next().unwrap_or_default();
                let last = std::str::from_utf8(last.trim_ascii()).ok();
                last.and_then(|w| w.parse().ok()).ok_or_else(|| bad(&line))
            })?;
            id += 1;
        }
    }
}

/// Returns a kernel whose distribution belongs to the session, because it may learn.
fn sampler(
    build: &KernelBuild,
    make: impl Fn(&dyn Fn() -> Result<()>) -> Result<RangeSampler> + Send + Sync + 'static,
) -> Result<Box<dyn OpKernel>> {
    let (n_true, n) = (
        build.attrs.int("num_true")?,
        build.attrs.int("num_sampled")?,
    );
    let (unique, node) = (build.attrs.bool("unique")?, Seeded::new(build)?);
    let name = build.node.to_string();
    let n = usize::try_from(n).map_err(|_| invalid_argument!("num_sampled is {n}"))?;
    Ok(Box::new(move |ctx: &mut KernelCtx| {
        let classes = ctx.input(0)?;
        let &[rows, cols] = classes.shape().dims() else {
            return Err(invalid_argument!("true_classes must be a matrix"));
        };
        if cols as i64 != n_true {
            return Err(invalid_argument!(
                "true_classes must have num_true columns, expected: {cols} was: {n_true}"
            ));
        }
        let sampler = ctx
            .resources()
            .session_local(&name, || Ok(Mutex::new(None)))?;
        let mut sampler = sampler.lock().unwrap_or_else(PoisonError::into_inner);
        let go_on = || ctx.services().cancel.check();
        let sampler = match &mut *sampler {
            Some(made) => made,
            none => none.insert(make(&go_on)?),
        };
        let range = sampler.range();
        if unique && n as i64 > sampler.n_possible() {
            return Err(invalid_argument!("Sampler's range is too small."));
        }
        let ids = classes.slice::<i64>()?;
        if let Some(id) = ids.iter().find(|id| !(0..range).contains(*id)) {
            return Err(invalid_argument!(
                "`true_candidate` out of range [0, {range}), received {id}"
            ));
        }
        let mut random = node.reserve(ctx, n as u128 * 512)?;
        let mut sampled = ctx.alloc(DType::Int64, Shape::from([n]))?;
        let mut expected = ctx.alloc(DType::Float, Shape::from([n]))?;
        let mut expected_true = ctx.alloc(DType::Float, Shape::from([rows, cols]))?;
        sampler.draw(
            &mut random,
            unique,
            sampled.slice_mut()?,
            expected.slice_mut()?,
            (ids, expected_true.slice_mut()?),
            &go_on,
        )?;
        sampler.learn(ids);
        ctx.set_output(0, sampled)?;
        ctx.set_output(1, expected_true)?;
        ctx.set_output(2, expected)
    }))
}

/// Finds samples that are true classes: row, position among the samples, and the lowest weight.
fn accidental_hits(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    let n_true = build.attrs.int("num_true")?;
    Ok(Box::new(move |ctx: &mut KernelCtx| {
        let (classes, sampled) = (ctx.input(0)?, ctx.input(1)?);
        let cols = match classes.shape().dims() {
            &[_, cols] if cols as i64 == n_true => cols,
            _ => {
                return Err(invalid_argument!(
                    "true_candidates must be a batch_size * num_true matrix"
                ));
            }
        };
        if sampled.shape().rank() != 1 {
            return Err(invalid_argument!(
                "sampled_candidates must be a vector, which is typically an output from CandidateSampler"
            ));
        }
        let at: FxHashMap<i64, i64> = sampled.slice::<i64>()?.iter().copied().zip(0..).collect();
        let (mut rows, mut ids) = (Vec::new(), Vec::new());
        for (row, classes) in classes.slice::<i64>()?.chunks(cols.max(1)).enumerate() {
            for id in classes.iter().filter_map(|class| at.get(class)) {
                rows.push(row as i32);
                ids.push(*id);
            }
        }
        let weights = vec![f32::MIN; ids.len()];
        ctx.set_output(0, Tensor::vector(&rows)?)?;
        ctx.set_output(1, Tensor::vector(&ids)?)?;
        ctx.set_output(2, Tensor::vector(&weights)?)
    }))
}
