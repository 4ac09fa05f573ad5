//! Traces in Chrome's JSON format, which Perfetto reads.

use ferroflow_executor::{DeadNode, NodeSpan, StreamSpan, TraceSink, TracedTensor};
use serde_json::json;
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

/// Collects spans and writes them as a trace with one track per thread, and one per stream of a device that enqueues.
pub struct ChromeTrace {
    origin: Instant,
    spans: Mutex<Vec<Span>>,
}

struct Span {
    name: String,
    op: String,
    thread: String,
    start_us: f64,
    duration_us: f64,
    /// Function or loop, with the iteration.
    place: Option<(String, u64)>,
    inputs: String,
    outputs: String,
    /// Whether `thread` is a stream.
    is_stream: bool,
}

impl Default for ChromeTrace {
    fn default() -> Self {
        ChromeTrace {
            origin: Instant::now(),
            spans: Mutex::default(),
        }
    }
}

impl TraceSink for ChromeTrace {
    fn span(&self, span: NodeSpan) {
        let thread = std::thread::current();
        let span = Span {
            name: span.node.name.clone(),
            op: span.node.op.clone(),
            thread: thread.name().unwrap_or("caller").to_string(),
            start_us: self.us(span.start),
            duration_us: self.us(span.end) - self.us(span.start),
            place: (!span.frame.is_empty()).then(|| (span.frame.to_string(), span.iteration)),
            inputs: join(&span.inputs),
            outputs: join(&span.outputs),
            is_stream: false,
        };
        self.push(span);
    }

    fn stream_span(&self, span: StreamSpan) {
        self.push(Span {
            name: span.name.to_string(),
            op: span.op.to_string(),
            thread: span.stream.to_string(),
            start_us: self.us(span.start),
            duration_us: self.us(span.end) - self.us(span.start),
            place: None,
            inputs: String::new(),
            outputs: String::new(),
            is_stream: true,
        });
    }
}

impl ChromeTrace {
    fn us(&self, t: Instant) -> f64 {
        t.saturating_duration_since(self.origin).as_nanos() as f64 / 1e3
    }

    fn push(&self, span: Span) {
        let mut spans = self.spans.lock().unwrap_or_else(PoisonError::into_inner);
        spans.push(span);
    }

    /// The number of recorded kernel calls.
    pub fn len(&self) -> usize {
        let spans = self.spans.lock().unwrap_or_else(PoisonError::into_inner);
        spans.iter().filter(|s| !s.is_stream).count()
    }

    /// Returns whether no span was recorded.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the time by op type, most expensive first: (op, calls, microseconds). Nodes of a device that enqueues count with
    /// the time that the device took.
    pub fn by_op(&self) -> Vec<(String, usize, f64)> {
        let spans = self.spans.lock().unwrap_or_else(PoisonError::into_inner);
        let mut ops: rustc_hash::FxHashMap<&str, (usize, f64)> = Default::default();
        let on_stream = spans.iter().filter(|s| s.is_stream);
        let on_stream: rustc_hash::FxHashSet<&str> = on_stream.map(|s| &*s.name).collect();
        let counts = |s: &&Span| s.is_stream || !on_stream.contains(&*s.name);
        for span in spans.iter().filter(counts) {
            let entry = ops.entry(&span.op).or_default();
            entry.0 += 1;
            entry.1 += span.duration_us;
        }
        let mut list: Vec<_> = ops
            .into_iter()
            .map(|(op, (n, us))| (op.to_string(), n, us))
            .collect();
        list.sort_by(|a, b| b.2.total_cmp(&a.2));
        list
    }

    /// Returns the trace as JSON.
    pub fn to_json(&self) -> String {
        let spans = self.spans.lock().unwrap_or_else(PoisonError::into_inner);
        let mut threads: Vec<&str> = spans.iter().map(|s| s.thread.as_str()).collect();
        threads.sort_unstable();
        threads.dedup();
        let names = threads.iter().enumerate().map(|(tid, name)| {
            json!({"ph": "M", "pid": 1, "tid": tid, "name": "thread_name", "args": {"name": name}})
        });
        let spans = spans.iter().map(|s| {
            let mut args = json!({"node": s.name, "inputs": s.inputs, "outputs": s.outputs});
            if let Some((frame, iteration)) = &s.place {
                args["frame"] = json!(frame);
                args["iteration"] = json!(iteration);
            }
            let tid = threads.binary_search(&s.thread.as_str()).unwrap_or(0);
            json!({"ph": "X", "pid": 1, "tid": tid, "ts": s.start_us, "dur": s.duration_us,
                   "name": s.op, "cat": s.op, "args": args})
        });
        let events: Vec<_> = names.chain(spans).map(|event| event.to_string()).collect();
        let events = events.join(",\n");
        format!("{{\"displayTimeUnit\":\"ns\",\"traceEvents\":[\n{events}\n]}}\n")
    }
}

/// Reports every dead node, and the dead input that it received, as a line on standard error.
///
/// A node is dead if one of its inputs is, as in the branch of a conditional that is not taken.
#[derive(Default)]
pub struct DeadnessLog;

impl TraceSink for DeadnessLog {
    fn span(&self, _: NodeSpan) {}

    fn dead(&self, node: DeadNode) {
        let place = match node.frame {
            "" => String::new(),
            frame => format!(" in frame '{frame}', iteration {}", node.iteration),
        };
        eprintln!(
            "dead: '{}' ({}){place}: its input from '{}' ({}) is dead",
            node.node.name, node.node.op, node.cause.name, node.cause.op
        );
    }
}

fn join(tensors: &[TracedTensor]) -> String {
    let shown: Vec<String> = tensors.iter().map(TracedTensor::to_string).collect();
    shown.join(", ")
}
