//! Metrics in Prometheus' text format, with TensorFlow Serving's names and our own.
//!
//! TensorFlow's exporter writes `/tensorflow/serving/request_count` as `:tensorflow:serving:request_count`, without a
//! suffix for counters, which the exposition libraries do not allow.

use crate::manager::lock;
use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::Duration;

/// Buckets of a distribution, with the one above all limits. The limits are those of TensorFlow Serving.
const BUCKETS: usize = 34;

/// The metrics of a server.
#[derive(Default)]
pub struct Metrics {
    request_count: Family<AtomicU64>,
    request_latency: Family<Histogram>,
    runtime_latency: Family<Histogram>,
    example_counts: Family<Histogram>,
    example_total: Family<AtomicU64>,
    log_count: Family<AtomicU64>,
    warmup_latency: Family<Histogram>,
    warmup_records: Family<AtomicU64>,
    queuing_latency: Family<Histogram>,
    batches: Family<AtomicU64>,
    batched_requests: Family<AtomicU64>,
    padding: Family<AtomicU64>,
    running: AtomicI64,
}

/// The values of a metric by the values of its labels, which are joined for the search.
struct Family<T>(RwLock<BTreeMap<String, Labelled<T>>>);

type Labelled<T> = (Vec<String>, Arc<T>);

/// Most values of a metric; clients may name any model.
const MAX_VALUES: usize = 1000;
/// The first label of the values beyond.
const OTHERS: &str = "(others)";

impl<T> Default for Family<T> {
    fn default() -> Self {
        Family(RwLock::default())
    }
}

impl<T: Default> Family<T> {
    fn of(&self, labels: &[&str]) -> Arc<T> {
        let key = labels.join("\u{1f}");
        {
            let values = self.0.read().unwrap_or_else(PoisonError::into_inner);
            if let Some((_, value)) = values.get(&key) {
                return value.clone();
            }
        }
        let mut values = self.0.write().unwrap_or_else(PoisonError::into_inner);
        let mut labels: Vec<String> = labels.iter().map(ToString::to_string).collect();
        if values.len() >= MAX_VALUES
            && let Some(first) = labels.first_mut()
        {
            *first = OTHERS.to_string();
        }
        let key = labels.join("\u{1f}");
        let value = values
            .entry(key)
            .or_insert_with(|| (labels, Arc::default()));
        value.1.clone()
    }

    fn each(&self, f: &mut dyn FnMut(&[String], &T)) {
        let values = self.0.read().unwrap_or_else(PoisonError::into_inner);
        values.values().for_each(|(labels, value)| f(labels, value));
    }
}

/// The limits of a distribution's buckets: a geometric sequence.
struct Scale {
    first: f64,
    factor: f64,
    /// The number of limits.
    n: usize,
}

/// Of times in microseconds.
const TIMES: Scale = Scale {
    first: 10.0,
    factor: 1.8,
    n: BUCKETS - 1,
};

/// Of numbers of examples.
const EXAMPLES: Scale = Scale {
    first: 1.0,
    factor: 2.0,
    n: 15,
};

/// A distribution of times or of sizes.
struct Histogram {
    buckets: [AtomicU64; BUCKETS],
    sum: AtomicU64,
}

impl Default for Histogram {
    fn default() -> Self {
        Histogram {
            buckets: [(); BUCKETS].map(|()| AtomicU64::new(0)),
            sum: AtomicU64::new(0),
        }
    }
}

impl Histogram {
    fn observe(&self, value: u64) {
        self.observe_in(&TIMES, value);
    }

    fn observe_in(&self, scale: &Scale, value: u64) {
        let limit = (value as f64 / scale.first).max(1.0).log(scale.factor);
        let limit = limit.ceil() as usize;
        self.buckets[limit.min(scale.n)].fetch_add(1, Ordering::Relaxed);
        self.sum.fetch_add(value, Ordering::Relaxed);
    }
}

/// A request that is counted as running.
pub(crate) struct Running<'a>(&'a Metrics);

impl Drop for Running<'_> {
    fn drop(&mut self) {
        self.0.running.fetch_sub(1, Ordering::Relaxed);
    }
}

fn micros(took: Duration) -> u64 {
    u64::try_from(took.as_micros()).unwrap_or(u64::MAX)
}

impl Metrics {
    /// Counts a request as running until the guard is dropped.
    pub(crate) fn begin(&self) -> Running<'_> {
        self.running.fetch_add(1, Ordering::Relaxed);
        Running(self)
    }

    /// The number of requests that are running.
    pub(crate) fn running(&self) -> i64 {
        self.running.load(Ordering::Relaxed)
    }

    /// Counts a request that has ended with a code such as `OK`; successful ones with their time.
    pub(crate) fn request(&self, model: &str, api: &str, entry: &str, code: &str, took: Duration) {
        let count = self.request_count.of(&[model, code]);
        count.fetch_add(1, Ordering::Relaxed);
        if code == "OK" {
            self.request_latency
                .of(&[model, api, entry])
                .observe(micros(took));
        }
    }

    /// Counts a step.
    pub(crate) fn step(&self, model: &str, api: &str, took: Duration) {
        self.runtime_latency
            .of(&[model, api, "ferroflow"])
            .observe(micros(took));
    }

    /// Counts the examples of a request.
    pub(crate) fn examples(&self, model: &str, n: usize) {
        let counts = self.example_counts.of(&[model]);
        counts.observe_in(&EXAMPLES, n as u64);
        self.example_total
            .of(&[model])
            .fetch_add(n as u64, Ordering::Relaxed);
    }

    /// Counts a request that was logged.
    pub(crate) fn logged(&self, model: &str) {
        self.log_count.of(&[model]).fetch_add(1, Ordering::Relaxed);
    }

    /// Counts the warm-up of a model.
    pub(crate) fn warmup(&self, path: &str, code: &str, records: u64, took: Duration) {
        self.warmup_latency.of(&[path, code]).observe(micros(took));
        self.warmup_records
            .of(&[path, code])
            .fetch_add(records, Ordering::Relaxed);
    }

    /// Counts a batch: how long its requests waited, its requests, and the rows that pad it.
    pub(crate) fn batch(&self, model: &str, waited: &[Duration], padding: usize) {
        let queuing = self.queuing_latency.of(&[model]);
        waited.iter().for_each(|w| queuing.observe(micros(*w)));
        self.batches.of(&[model]).fetch_add(1, Ordering::Relaxed);
        let requests = self.batched_requests.of(&[model]);
        requests.fetch_add(waited.len() as u64, Ordering::Relaxed);
        self.padding
            .of(&[model])
            .fetch_add(padding as u64, Ordering::Relaxed);
    }

    /// The requests that ended, and the sum of the times of the successful ones in microseconds.
    pub(crate) fn totals(&self) -> (u64, u64, u64) {
        let (mut all, mut ok, mut time) = (0, 0, 0);
        self.request_count.each(&mut |labels, n| {
            let n = n.load(Ordering::Relaxed);
            all += n;
            ok += if labels[1] == "OK" { n } else { 0 };
        });
        self.request_latency
            .each(&mut |_, h| time += h.sum.load(Ordering::Relaxed));
        (all, ok, time)
    }

    /// The value of a counter by TensorFlow's name, summed over its labels; 0 if there is none.
    pub(crate) fn counter(&self, name: &str) -> i64 {
        let family = match name {
            "/tensorflow/serving/request_count" => &self.request_count,
            "/tensorflow/serving/request_example_count_total" => &self.example_total,
            "/tensorflow/serving/request_log_count" => &self.log_count,
            "/tensorflow/serving/model_warmup_records_read" => &self.warmup_records,
            _ => return 0,
        };
        let mut sum = 0;
        family.each(&mut |_, n| sum += n.load(Ordering::Relaxed));
        i64::try_from(sum).unwrap_or(i64::MAX)
    }

    /// The metrics as text.
    pub fn text(&self) -> String {
        let mut page = Page(String::new());
        let serving = ":tensorflow:serving:";
        let names = ["model_path", "status"];
        page.histogram(
            &format!("{serving}model_warmup_latency"),
            &names,
            &self.warmup_latency,
        );
        page.counter(
            &format!("{serving}model_warmup_records_read"),
            &names,
            &self.warmup_records,
        );
        page.counter(
            &format!("{serving}request_count"),
            &["model_name", "status"],
            &self.request_count,
        );
        page.histogram_in(
            &EXAMPLES,
            &format!("{serving}request_example_counts"),
            &["model"],
            &self.example_counts,
        );
        page.counter(
            &format!("{serving}request_example_count_total"),
            &["model"],
            &self.example_total,
        );
        let names = ["model_name", "API", "entrypoint"];
        page.histogram(
            &format!("{serving}request_latency"),
            &names,
            &self.request_latency,
        );
        page.counter(
            &format!("{serving}request_log_count"),
            &["model_name"],
            &self.log_count,
        );
        let names = ["model_name", "API", "runtime"];
        page.histogram(
            &format!("{serving}runtime_latency"),
            &names,
            &self.runtime_latency,
        );
        let name = format!("{serving}batching_session:queuing_latency");
        page.histogram(&name, &["model_name"], &self.queuing_latency);
        page.counter("ferroflow_batches", &["model_name"], &self.batches);
        page.counter(
            "ferroflow_batched_requests",
            &["model_name"],
            &self.batched_requests,
        );
        page.counter(
            "ferroflow_batch_padding_rows",
            &["model_name"],
            &self.padding,
        );
        page.gauge("ferroflow_requests_running", self.running());
        page.gauge("ferroflow_resident_memory_bytes", resident_bytes());
        page.0
    }
}

/// Resident memory of this process, bytes; 0 if unknown.
pub(crate) fn resident_bytes() -> i64 {
    let text = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages = text.split_whitespace().nth(1).and_then(|p| p.parse().ok());
    pages.unwrap_or(0i64) * 4096
}

/// The text under construction.
struct Page(String);

impl Page {
    fn counter(&mut self, name: &str, names: &[&str], family: &Family<AtomicU64>) {
        let mut lines = format!("# TYPE {name} counter\n");
        family.each(&mut |values, n| {
            let n = n.load(Ordering::Relaxed);
            // Writing to a string cannot fail.
            let _ = writeln!(lines, "{name}{{{}}} {n}", labels(names, values));
        });
        self.0 += &lines;
    }

    fn gauge(&mut self, name: &str, value: i64) {
        let _ = writeln!(self.0, "# TYPE {name} gauge\n{name}{{}} {value}");
    }

    fn histogram(&mut self, name: &str, names: &[&str], family: &Family<Histogram>) {
        self.histogram_in(&TIMES, name, names, family);
    }

    fn histogram_in(
        &mut self,
        scale: &Scale,
        name: &str,
        names: &[&str],
        family: &Family<Histogram>,
    ) {
        let mut lines = format!("# TYPE {name} histogram\n");
        family.each(&mut |values, h| {
            let labels = labels(names, values);
            let (mut count, mut limit) = (0, scale.first);
            let (below, above) = h.buckets.split_at(scale.n);
            for bucket in below {
                count += bucket.load(Ordering::Relaxed);
                let le = ferroflow_base::general(limit, 6);
                let _ = writeln!(lines, "{name}_bucket{{{labels},le=\"{le}\"}} {count}");
                limit *= scale.factor;
            }
            count += above[0].load(Ordering::Relaxed);
            let sum = h.sum.load(Ordering::Relaxed);
            let _ = writeln!(lines, "{name}_bucket{{{labels},le=\"+Inf\"}} {count}");
            let _ = writeln!(lines, "{name}_sum{{{labels}}} {sum}");
            let _ = writeln!(lines, "{name}_count{{{labels}}} {count}");
        });
        self.0 += &lines;
    }
}

fn labels(names: &[&str], values: &[String]) -> String {
    let escaped = |v: &String| {
        v.replace('\\', "\\\\")
            .replace('"', "\\\"")
            .replace('\n', "\\n")
    };
    let pairs = names.iter().zip(values);
    let pairs: Vec<String> = pairs
        .map(|(n, v)| format!("{n}=\"{}\"", escaped(v)))
        .collect();
    pairs.join(",")
}

/// The latest times of requests, for the page's charts: a ring of seconds.
#[derive(Default)]
pub(crate) struct Recent(Mutex<Vec<(u64, u64, u64)>>);

impl Recent {
    /// Seconds that are kept.
    const KEPT: usize = 120;

    /// Appends the totals of now; called once a second.
    pub(crate) fn push(&self, totals: (u64, u64, u64)) {
        let mut ring = lock(&self.0);
        ring.push(totals);
        if ring.len() > Self::KEPT {
            ring.remove(0);
        }
    }

    /// The totals by second, oldest first.
    pub(crate) fn all(&self) -> Vec<(u64, u64, u64)> {
        lock(&self.0).clone()
    }
}
