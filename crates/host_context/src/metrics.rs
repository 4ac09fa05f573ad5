//! Figures that a host keeps: texts and distributions by name, for whoever watches it.

use std::sync::Arc;

/// A text that says how things are now.
pub trait Gauge: Send + Sync {
    /// Puts another text in its place.
    fn set(&self, value: &str);
}

/// How often values were in which range.
pub trait Histogram: Send + Sync {
    /// Counts a value.
    fn record(&self, value: f64);
}

/// The ranges of a histogram: bucket 0 has what is less than the first bound, bucket `i` what is at least bound
/// `i - 1` and less than bound `i`.
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
    /// Ranges with these lower bounds, the first without one. `None` unless the bounds are finite numbers, at least
    /// one, each greater than the one before.
    pub fn explicit(bounds: &[f64]) -> Option<Buckets> {
        let is_increasing = bounds.is_sorted_by(|a, b| a < b);
        let is_fine = is_increasing && !bounds.is_empty() && bounds.iter().all(|b| b.is_finite());
        is_fine.then(|| Buckets(bounds.to_vec()))
    }

    /// Returns the bounds.
    pub fn bounds(&self) -> &[f64] {
        &self.0
    }

    /// Returns the number of the bucket that `value` belongs to. What is no number counts as too
    /// large.
    pub fn index(&self, value: f64) -> usize {
        let is_beyond = |bound: &f64| value >= *bound || value.is_nan();
        self.0.partition_point(is_beyond)
    }
}

/// Where a host's figures go. A name that was used before gives what it gave then.
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
/// host.string_gauge("/nobody/listens").set("yet");
/// let log = Log::default();
/// host.set_metrics(Arc::new(log.clone()));
/// host.string_gauge("/version").set("1");
/// host.histogram("/seconds", &Buckets::explicit(&[1.0]).unwrap()).record(0.5);
/// assert_eq!(*log.0.lock().unwrap(), ["1", "0.5"]);
/// ```
pub trait MetricsRegistry: Send + Sync {
    /// Returns the text under a name.
    fn string_gauge(&self, name: &str) -> Arc<dyn Gauge>;

    /// Returns the distribution under a name.
    fn histogram(&self, name: &str, buckets: &Buckets) -> Arc<dyn Histogram>;
}

/// Nobody listens.
pub(super) struct Nobody;

impl Gauge for Nobody {
    fn set(&self, _: &str) {}
}

impl Histogram for Nobody {
    fn record(&self, _: f64) {}
}
