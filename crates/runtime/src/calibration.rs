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
use std::sync::Arc;

/// How products and convolutions of a compiled model run on 8-bit codes.
#[derive(Clone, Debug, Default)]
pub struct Calibration {
    /// Feeds of steps, each in the order of the signature. The ranges of tensors in these steps are added
    /// to those that the graph's nodes say, such as FakeQuantWithMinMaxVars; without feeds only those count.
    pub feeds: Vec<Vec<Tensor>>,
}

/// Rows of a batch that are computed together: all tensors of a step are kept until its end.
const ROWS: usize = 4;

impl Session {
    /// Returns the ranges of tensors on feeds.
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
        let mut ranges = Ranges::default();
        if calibration.feeds.is_empty() {
            return Ok(ranges);
        }
        let options = Options {
            int8: Int8::Observe,
            ..self.compile_options().clone()
        };
        let optimized = optimize(placed.clone(), registry(), &options, &mut |_, _| {})?;
        let mut names = Vec::new();
        for (_, node) in optimized.graph().iter() {
            if let Ok(name) = node.attrs.str(OBSERVED) {
                names.push((node.attrs.int("index")?, name.to_string()));
            }
        }
        names.sort_unstable();
        let plan = emit(&optimized, registry(), &options)?.load(registry())?;
        let n_fetches = signature.fetches.len();
        let observed = names.iter().map(|(_, name)| name.clone());
        let signature = Signature {
            fetches: signature.fetches.iter().cloned().chain(observed).collect(),
            ..signature.clone()
        };
        let engine = Engine::One(Executor::new(Arc::new(plan)));
        let given = feeds.iter().map(Feed::of_port).collect();
        let callable = Callable::new(engine, Frozen::default(), signature, given);
        let mut sums = vec![Channels::default(); names.len()];
        for step in &calibration.feeds {
            for args in pieces(step, feeds)? {
                let results = self.run_callable(&callable, args, &RunOptions::default())?;
                let results = results.get(n_fetches..);
                let results = results.ok_or_else(|| internal!("a step has too few results"))?;
                for (((_, name), result), sums) in names.iter().zip(results).zip(&mut sums) {
                    if result.dtype() == DType::Float && result.num_elements() > 0 {
                        ranges.add(name, range(result.slice()?));
                        sums.add(result)?;
                    }
                }
            }
        }
        for ((_, name), sums) in names.iter().zip(sums) {
            ranges.set_means(name, &sums.means());
        }
        Ok(ranges)
    }
}

/// Cuts feeds into pieces of some rows, if all are batches of one size.
fn pieces(step: &[Tensor], feeds: &[Port]) -> Result<Vec<Vec<Tensor>>> {
    let n = step.first().and_then(|t| t.shape().first().copied());
    let is_batch = |(t, port): (&Tensor, &Port)| {
        t.shape().first().copied() == n
            && port.shape.rank() == Some(t.shape().rank())
            && port.shape.dim(0).is_none()
    };
    let n = match n {
        Some(n) if n > ROWS && step.iter().zip(feeds).all(is_batch) => n,
        _ => return Ok(vec![step.to_vec()]),
    };
    let piece = |first: usize| -> Result<Vec<Tensor>> {
        let cut = |t: &Tensor| {
            let mut shape = t.shape().to_vec();
            let size = t.num_elements() / n;
            shape[0] = ROWS.min(n - first);
            t.view(first * size, shape.into_iter().collect())
        };
        step.iter().map(cut).collect()
    };
    (0..n).step_by(ROWS).map(piece).collect()
}

/// The sums of the channels of a tensor.
#[derive(Clone, Default)]
struct Channels {
    sums: Vec<f64>,
    rows: usize,
}

impl Channels {
    fn add(&mut self, tensor: &Tensor) -> Result<()> {
        let n = tensor.shape().last().copied().unwrap_or(1);
        // Another size would be another tensor: those of the first count.
        if self.sums.is_empty() {
            self.sums = vec![0.0; n];
        }
        if self.sums.len() == n {
            for row in tensor.slice::<f32>()?.chunks_exact(n) {
                let pairs = self.sums.iter_mut().zip(row);
                pairs.for_each(|(sum, x)| *sum += f64::from(*x));
                self.rows += 1;
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
