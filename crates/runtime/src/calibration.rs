//! Calibration: the ranges of the tensors of a signature on given feeds, for execution on 8-bit codes.

use crate::callable::{Callable, Feed};
use crate::freeze::Frozen;
use crate::session::{Engine, RunOptions, Session, registry};
use ferroflow_base::{Result, internal};
use ferroflow_compile::{Int8, OBSERVED, Options, Ranges, emit, optimize};
use ferroflow_executor::Executor;
use ferroflow_graph::{PlacedGraph, Signature};
use ferroflow_program::bef::Port;
use ferroflow_tensor::{DType, Tensor};
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

/// How products and convolutions of a compiled model run on 8-bit codes.
#[derive(Clone, Debug, Default)]
pub struct Calibration {
    /// Feeds of steps, each in the order of the signature. The ranges of tensors in these steps are added
    /// to those that the graph's nodes say, such as FakeQuantWithMinMaxVars; without feeds only those count.
    pub feeds: Vec<Vec<Tensor>>,
    /// Whether convolutions that expand a tensor of few channels with numbers on both sides of zero read it in two codes
    /// of each number, which takes longer and is more exact.
    pub two_codes: bool,
}

/// Most rows of a batch that are observed together.
const ROWS: usize = 4;
/// Bytes of what is observed in a step, which is kept until its end; a single row may have more.
const KEPT_BYTES: usize = 512 << 20;
/// Most rows of a batch of which products are corrected together.
const CORRECTED_ROWS: usize = 32;
/// Bytes of all tensors of such a step. Few of them are in memory at once.
const CORRECTED_BYTES: usize = 4 << 30;

/// Fewest rows of all feeds by which products are corrected.
const MIN_CORRECTED_ROWS: usize = 16;

/// A signature that is observed.
struct Observed<'a> {
    placed: &'a PlacedGraph,
    signature: &'a Signature,
    feeds: &'a [Port],
    steps: &'a [Vec<Tensor>],
}

impl Session {
    /// Returns the ranges of tensors on feeds, and the corrections of products.
    ///
    /// # Errors
    /// Those of compiling the signature and of its steps.
    pub(crate) fn calibrate(
        &self,
        placed: &PlacedGraph,
        signature: &Signature,
        feeds: &[Port],
        calibration: &Calibration,
    ) -> Result<Ranges> {
        let mut ranges = Ranges::new(calibration.two_codes);
        if calibration.feeds.is_empty() {
            return Ok(ranges);
        }
        let observed = Observed {
            placed,
            signature,
            feeds,
            steps: &calibration.feeds,
        };
        let mut sums: BTreeMap<String, Channels> = BTreeMap::new();
        let row_bytes = self.observe(
            &observed,
            Int8::Observe,
            [1, ROWS],
            &mut |name, result, _| {
                ranges.add(name, range(result.slice()?));
                sums.entry(name.to_string()).or_default().add(result, 1)
            },
        )?;
        for (name, sums) in sums {
            ranges.set_means(&name, &sums.means());
        }
        let mut sums: BTreeMap<String, Channels> = BTreeMap::new();
        let correct = Int8::Correct(Arc::new(ranges.clone()));
        let rows = (CORRECTED_BYTES / row_bytes.max(1)).clamp(1, CORRECTED_ROWS);
        self.observe(
            &observed,
            correct,
            [rows, rows],
            &mut |name, result, rows| sums.entry(name.to_string()).or_default().add(result, rows),
        )?;
        for (name, sums) in sums {
            // The mean of few rows would be their own error.
            if sums.rows >= MIN_CORRECTED_ROWS {
                ranges.set_corrections(&name, &sums.means());
            }
        }
        Ok(ranges)
    }

    /// Calls `note` with the name and the value of each tensor that the pass `int8` makes a result, and with the
    /// number of rows that it was computed of: of a batch, at first `rows[0]`, then as many as [`KEPT_BYTES`] allow, up to
    /// `rows[1]`. Returns the most bytes that the tensors of a row have.
    fn observe(
        &self,
        observed: &Observed<'_>,
        int8: Int8,
        rows: [usize; 2],
        note: &mut dyn FnMut(&str, &Tensor, usize) -> Result<()>,
    ) -> Result<usize> {
        let (signature, feeds) = (observed.signature, observed.feeds);
        let options = Options {
            int8,
            ..self.compile_options().clone()
        };
        let optimized = optimize(
            observed.placed.clone(),
            registry(),
            &options,
            &mut |_, _| {},
        )?;
        let mut names = Vec::new();
        for (_, node) in optimized.graph().iter() {
            if let Ok(name) = node.attrs.str(OBSERVED) {
                names.push((node.attrs.int("index")?, name.to_string()));
            }
        }
        names.sort_unstable();
        let plan = emit(&optimized, registry(), &options)?.load(registry())?;
        let n_fetches = signature.fetches.len();
        let fetches = names.iter().map(|(_, name)| name.clone());
        let signature = Signature {
            fetches: signature.fetches.iter().cloned().chain(fetches).collect(),
            ..signature.clone()
        };
        let engine = Engine::One(Executor::new(Arc::new(plan)));
        let given = feeds.iter().map(Feed::of_port).collect();
        let callable = Callable::new(engine, Frozen::default(), signature, given);
        let ([mut rows, most], mut row_bytes) = (rows, 1);
        for step in observed.steps {
            let n = batch_size(step, feeds);
            let (mut at, end) = (0, n.unwrap_or(1));
            while at < end {
                let taken = rows.min(end - at);
                let args = match n {
                    Some(n) => cut(step, n, at..at + taken)?,
                    None => step.clone(),
                };
                at += taken;
                let n_rows = args.first().and_then(|t| t.shape().first().copied());
                let n_rows = n_rows.filter(|n| *n > 0);
                let results = self.run_callable(&callable, args, &RunOptions::default())?;
                let results = results.get(n_fetches..);
                let results = results.ok_or_else(|| internal!("a step has too few results"))?;
                for ((_, name), result) in names.iter().zip(results) {
                    if result.dtype() == DType::Float && result.num_elements() > 0 {
                        note(name, result, n_rows.unwrap_or(1))?;
                    }
                }
                let bytes: usize = results.iter().map(Tensor::byte_len).sum();
                row_bytes = row_bytes.max(bytes / n_rows.unwrap_or(1));
                rows = (KEPT_BYTES / row_bytes).clamp(1, most);
            }
        }
        Ok(row_bytes)
    }
}

/// The number of rows of feeds, if all are batches of one size.
fn batch_size(step: &[Tensor], feeds: &[Port]) -> Option<usize> {
    let n = step.first().and_then(|t| t.shape().first().copied())?;
    let is_batch = |(t, port): (&Tensor, &Port)| {
        t.shape().first() == Some(&n)
            && port.shape.rank() == Some(t.shape().rank())
            && port.shape.dim(0).is_none()
    };
    (n > 0 && step.iter().zip(feeds).all(is_batch)).then_some(n)
}

/// Some rows of feeds that have `n`.
fn cut(step: &[Tensor], n: usize, rows: Range<usize>) -> Result<Vec<Tensor>> {
    let cut = |t: &Tensor| {
        let mut shape = t.shape().to_vec();
        let size = t.num_elements() / n;
        shape[0] = rows.len();
        t.view(rows.start * size, shape.into_iter().collect())
    };
    step.iter().map(cut).collect()
}

/// The sums of the channels of a tensor.
#[derive(Clone, Default)]
struct Channels {
    sums: Vec<f64>,
    rows: usize,
}

impl Channels {
    /// Adds each row as often as `weight` says.
    fn add(&mut self, tensor: &Tensor, weight: usize) -> Result<()> {
        let n = tensor.shape().last().copied().unwrap_or(1);
        // Another size would be another tensor: those of the first count.
        if self.sums.is_empty() {
            self.sums = vec![0.0; n];
        }
        let values = tensor.slice::<f32>()?;
        if self.sums.len() == n && values.iter().all(|x| x.is_finite()) {
            for row in values.chunks_exact(n) {
                let pairs = self.sums.iter_mut().zip(row);
                pairs.for_each(|(sum, x)| *sum += f64::from(*x) * weight as f64);
                self.rows += weight;
            }
        }
        Ok(())
    }

    fn means(&self) -> Vec<f32> {
        let n = self.rows.max(1) as f64;
        self.sums.iter().map(|sum| (sum / n) as f32).collect()
    }
}

/// The lowest and the highest number.
fn range(values: &[f32]) -> (f32, f32) {
    let all = (f32::INFINITY, f32::NEG_INFINITY);
    values
        .iter()
        .fold(all, |(low, high), x| (low.min(*x), high.max(*x)))
}
