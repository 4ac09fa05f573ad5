//! The attrs of Batch and BatchFunction (TensorFlow: `core/kernels/batch_kernels.cc`).

use ferroflow_base::{Result, invalid_argument};
use ferroflow_opdef::KernelBuild;
use std::time::Duration;

/// How batches are made.
#[derive(Clone)]
pub(crate) struct Options {
    pub(crate) max_size: usize,
    pub(crate) timeout: Duration,
    pub(crate) max_waiting: usize,
    allowed: Vec<usize>,
    pub(crate) splits: bool,
}

impl Options {
    pub(crate) fn of(build: &KernelBuild) -> Result<Options> {
        let attrs = build.attrs;
        let positive = |name: &str| -> Result<usize> {
            let n = attrs.int(name)?;
            let found = usize::try_from(n).ok().filter(|&n| n > 0);
            found.ok_or_else(|| invalid_argument!("{name} must be positive; was {n}"))
        };
        positive("num_batch_threads")?;
        let max_size = positive("max_batch_size")?;
        let micros = attrs.int("batch_timeout_micros")?;
        let timeout = u64::try_from(micros).map_err(|_| {
            invalid_argument!("batch_timeout_micros must be non-negative; was {micros}")
        })?;
        let splits = attrs.bool("enable_large_batch_splitting").unwrap_or(false);
        let sizes = attrs.ints("allowed_batch_sizes")?;
        let allowed: Vec<usize> = sizes
            .iter()
            .filter_map(|&n| usize::try_from(n).ok())
            .collect();
        if allowed.len() != sizes.len() || !allowed.is_sorted_by(|a, b| a < b) {
            return Err(invalid_argument!(
                "allowed_batch_sizes entries must be monotonically increasing"
            ));
        }
        if !splits && allowed.last().is_some_and(|&last| last != max_size) {
            return Err(invalid_argument!(
                "final entry in allowed_batch_sizes must equal max_batch_size when \
                 enable_large_batch_splitting is False"
            ));
        }
        Ok(Options {
            max_size,
            timeout: Duration::from_micros(timeout),
            max_waiting: positive("max_enqueued_batches")?,
            allowed,
            splits,
        })
    }

    /// Returns the size that a batch of `n` rows is padded to.
    pub(crate) fn padded(&self, n: usize) -> usize {
        let fits = self.allowed.iter().find(|&&size| size >= n);
        fits.copied().unwrap_or(n)
    }

    /// Returns the most rows of a batch.
    pub(crate) fn largest(&self) -> usize {
        match (self.splits, self.allowed.last()) {
            (true, Some(&last)) => last.min(self.max_size),
            _ => self.max_size,
        }
    }
}
