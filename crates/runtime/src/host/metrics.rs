//! The metrics of a host, as lines of text.

use ferroflow_host_context::{Buckets, Gauge, Histogram, MetricsRegistry};
use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[derive(Default)]
struct Text(Mutex<String>);

impl Gauge for Text {
    fn set(&self, value: &str) {
        *lock(&self.0) = value.to_string();
    }
}

struct Counts {
    buckets: Buckets,
    /// Counts between the bounds, and above the last.
    counts: Mutex<Vec<u64>>,
}

impl Histogram for Counts {
    fn record(&self, value: f64) {
        if let Some(count) = lock(&self.counts).get_mut(self.buckets.index(value)) {
            *count += 1;
        }
    }
}

/// Collects metrics until they are printed.
#[derive(Default)]
pub(super) struct TextMetrics {
    gauges: Mutex<BTreeMap<String, Arc<Text>>>,
    histograms: Mutex<BTreeMap<String, Arc<Counts>>>,
}

impl MetricsRegistry for TextMetrics {
    fn string_gauge(&self, name: &str) -> Arc<dyn Gauge> {
        lock(&self.gauges)
            .entry(name.to_string())
            .or_default()
            .clone()
    }

    fn histogram(&self, name: &str, buckets: &Buckets) -> Arc<dyn Histogram> {
        let make = || {
            Arc::new(Counts {
                buckets: buckets.clone(),
                counts: Mutex::new(vec![0; buckets.bounds().len() + 1]),
            })
        };
        lock(&self.histograms)
            .entry(name.to_string())
            .or_insert_with(make)
            .clone()
    }
}

impl TextMetrics {
    /// Returns a line for each metric, by name, texts first; of a distribution only the buckets that are
    /// not empty.
    pub(super) fn print(&self) -> String {
        let mut text = String::new();
        // Writing to a string cannot fail.
        for (name, gauge) in lock(&self.gauges).iter() {
            let _ = writeln!(text, "Metric:{name}: {}", lock(&gauge.0));
        }
        for (name, histogram) in lock(&self.histograms).iter() {
            let _ = write!(text, "Metric:{name}:");
            let bounds = histogram.buckets.bounds();
            for (i, n) in lock(&histogram.counts).iter().enumerate() {
                let _ = match (*n, bounds.get(i)) {
                    (0, _) => Ok(()),
                    (n, Some(bound)) => write!(text, " <{bound}: {n}"),
                    (n, None) => write!(text, " more: {n}"),
                };
            }
            text.push('\n');
        }
        text
    }
}
