//! Metrics of a host: gauges and histograms by name, for monitoring.

use std::sync::Arc;

/// A text that describes the current state.
pub trait Gauge: Send + Sync {
    /// Replaces the text.
    fn set(&self, value: &str);
}

/// Counts values by range.
pub trait Histogram: Send + Sync {
    /// Counts a value.
    fn record(&self, value: f64);
}

/// The ranges of a histogram: bucket 0 holds values less than the first bound, bucket `i` values of
/// at least bound `i - 1` and less than bound `i`.
///
/// ```
/// use ferroflow_host_context::Buckets;
/// let buckets = Buckets::explicit(&[0.5, 2.0]).unwrap();
/// assert_eq!([0.1, 0.5, 7.0].map(|v| buckets.index(v)), [0, 1, 2]);
/// assert!(Buckets::explicit(&[2.0, 2.0]).is_none() && Buckets::explicit(&[]).is_none());
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Buckets(Vec<f64>);

impl Buckets {
    /// Returns ranges with these bounds; `None` unless there is at least one, all are finite, and
    /// each is greater than the one before.
    pub fn explicit(bounds: &[f64]) -> Option<Buckets> {
        let is_increasing = bounds.is_sorted_by(|a, b| a < b);
        let is_fine = is_increasing && !bounds.is_empty() && bounds.iter().all(|b| b.is_finite());
        is_fine.then(|| Buckets(bounds.to_vec()))
    }

    /// Returns the bounds.
    pub fn bounds(&self) -> &[f64] {
        &self.0
    }

    /// Returns the bucket of `value`; NaN counts as too large.
    pub fn index(&self, value: f64) -> usize {
        let is_beyond = |bound: &f64| value >= *bound || value.is_nan();
        self.0.partition_point(is_beyond)
    }
}

/// Registers metrics. The same name always returns the same metric.
///
/// ```
/// use ferroflow_host_context::{Buckets, Gauge, Histogram, HostContext, MetricsRegistry};
/// use ferroflow_sync::SingleThreadedWorkQueue;
/// use ferroflow_tensor::MallocAllocator;
/// use std::sync::{Arc, Mutex};
///
/// #[derive(Clone, Default)]
/// struct Log(Arc<Mutex<Vec<String>>>);
/// impl Gauge for Log {
///     fn set(&self, value: &str) {
///         self.0.lock().unwrap().push(value.to_string());
///     }
/// }
/// impl Histogram for Log {
///     fn record(&self, value: f64) {
///         self.0.lock().unwrap().push(value.to_string());
///     }
/// }
/// impl MetricsRegistry for Log {
///     fn string_gauge(&self, _: &str) -> Arc<dyn Gauge> {
///         Arc::new(self.clone())
///     }
///     fn histogram(&self, _: &str, _: &Buckets) -> Arc<dyn Histogram> {
///         Arc::new(self.clone())
///     }
/// }
///
/// let queue = Arc::new(SingleThreadedWorkQueue::new());
/// let out = Box::new(std::io::sink());
/// let host = HostContext::new(queue, Arc::new(MallocAllocator), out, Box::new(|_| {}));
/// host.string_gauge("/not/registered").set("yet");
/// let log = Log::default();
/// host.set_metrics(Arc::new(log.clone()));
/// host.string_gauge("/version").set("1");
/// host.histogram("/seconds", &Buckets::explicit(&[1.0]).unwrap()).record(0.5);
/// assert_eq!(*log.0.lock().unwrap(), ["1", "0.5"]);
/// ```
pub trait MetricsRegistry: Send + Sync {
    /// Returns the gauge of a name.
    fn string_gauge(&self, name: &str) -> Arc<dyn Gauge>;

    /// Returns the histogram of a name.
    fn histogram(&self, name: &str, buckets: &Buckets) -> Arc<dyn Histogram>;
}

/// A metric that is not registered.
pub(super) struct NoopMetric;

impl Gauge for NoopMetric {
    fn set(&self, _: &str) {}
}

impl Histogram for NoopMetric {
    fn record(&self, _: f64) {}
}
