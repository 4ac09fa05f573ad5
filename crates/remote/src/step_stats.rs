//! The statistics of a step (`StepStats`), which TensorBoard and `timeline.py` read.

use ferroflow_model::proto::{
    AllocationDescription, AllocatorMemoryUsed, DeviceStepStats, MemoryStats, NodeExecStats,
    NodeOutput, StepStats, TensorDescription,
};
use ferroflow_model::shape_to_proto;
use ferroflow_runtime::{NodeSpan, StreamSpan, TraceSink, TracedTensor};
use rustc_hash::FxHashMap;
use std::collections::{BTreeMap, HashMap};
use std::sync::{Mutex, PoisonError};
use std::thread::ThreadId;
use std::time::{Instant, SystemTime};

/// Collects the spans of one step: a [`TraceSink`] that [`RunOptions`](ferroflow_runtime::RunOptions) takes.
pub struct StepTrace {
    began: Instant,
    /// Start of the step, nanoseconds since 1970.
    epoch_nanos: i64,
    nodes: Mutex<Nodes>,
}

#[derive(Default)]
struct Nodes {
    stats: Vec<NodeExecStats>,
    threads: HashMap<ThreadId, u32>,
    /// What streams of devices ran, by their names.
    streams: BTreeMap<String, Vec<NodeExecStats>>,
    /// Those of other tasks.
    remote: Vec<DeviceStepStats>,
}

impl Default for StepTrace {
    fn default() -> Self {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        let nanos = now.unwrap_or_default().as_nanos();
        StepTrace {
            began: Instant::now(),
            epoch_nanos: i64::try_from(nanos).unwrap_or(i64::MAX),
            nodes: Mutex::default(),
        }
    }
}

impl TraceSink for StepTrace {
    fn span(&self, span: NodeSpan) {
        // As in TensorFlow, transfers between devices are left out.
        if matches!(span.node.op.as_str(), "_Send" | "_Recv") {
            return;
        }
        let timed = self.timed(span.start, span.end);
        let mut nodes = self.nodes.lock().unwrap_or_else(PoisonError::into_inner);
        let next = nodes.threads.len() as u32;
        let thread = *nodes
            .threads
            .entry(std::thread::current().id())
            .or_insert(next);
        nodes.stats.push(NodeExecStats {
            node_name: span.node.name.clone(),
            timeline_label: format!("{} = {}(", span.node.name, span.node.op),
            thread_id: thread,
            output: (0..).zip(&span.outputs).map(output).collect(),
            memory: memory(&span.outputs),
            memory_stats: Some(MemoryStats::default()),
            ..timed
        });
    }

    fn stream_span(&self, span: StreamSpan) {
        let stats = NodeExecStats {
            node_name: span.name.to_string(),
            timeline_label: format!("{} = {}()", span.name, span.op),
            ..self.timed(span.start, span.end)
        };
        let mut nodes = self.nodes.lock().unwrap_or_else(PoisonError::into_inner);
        let stream = nodes.streams.entry(span.stream.to_string()).or_default();
        stream.push(stats);
    }
}

fn output((slot, tensor): (i32, &TracedTensor)) -> NodeOutput {
    NodeOutput {
        slot,
        tensor_description: Some(TensorDescription {
            dtype: tensor.dtype as i32,
            shape: Some(shape_to_proto(&(&tensor.shape).into())),
            allocation_description: Some(AllocationDescription {
                requested_bytes: tensor.bytes as i64,
                allocated_bytes: tensor.bytes as i64,
                allocator_name: "cpu".to_string(),
                ptr: tensor.address as u64,
                ..Default::default()
            }),
        }),
    }
}

/// The memory of a node's outputs, which is all that is known of its allocations.
fn memory(outputs: &[TracedTensor]) -> Vec<AllocatorMemoryUsed> {
    let bytes: i64 = outputs.iter().map(|t| t.bytes as i64).sum();
    let used = AllocatorMemoryUsed {
        allocator_name: "cpu".to_string(),
        total_bytes: bytes,
        peak_bytes: bytes,
        ..Default::default()
    };
    (bytes > 0).then_some(used).into_iter().collect()
}

/// The start of each device, which TensorFlow reports as a node.
fn source(begins: i64) -> NodeExecStats {
    NodeExecStats {
        node_name: "_SOURCE".to_string(),
        all_start_micros: begins / 1000,
        all_start_nanos: begins,
        all_end_rel_micros: 1,
        scheduled_micros: begins / 1000,
        scheduled_nanos: begins,
        timeline_label: "_SOURCE = NoOp()".to_string(),
        ..Default::default()
    }
}

impl StepTrace {
    /// The statistics of what ran from `start` to `end`.
    fn timed(&self, start: Instant, end: Instant) -> NodeExecStats {
        let since = start.saturating_duration_since(self.began).as_nanos() as i64;
        let took = end.saturating_duration_since(start).as_nanos() as i64;
        let start = self.epoch_nanos + since;
        NodeExecStats {
            all_start_micros: start / 1000,
            all_start_nanos: start,
            op_end_rel_micros: took / 1000,
            op_end_rel_nanos: took,
            all_end_rel_micros: (took / 1000).max(1),
            all_end_rel_nanos: took,
            scheduled_micros: start / 1000,
            scheduled_nanos: start,
            ..Default::default()
        }
    }

    /// Adds constants, which TensorFlow runs as nodes; here the plan has their values.
    pub(crate) fn add_constants<'a>(&self, names: impl Iterator<Item = &'a str>) {
        let mut nodes = self.nodes.lock().unwrap_or_else(PoisonError::into_inner);
        let constants = names.map(|name| NodeExecStats {
            node_name: name.to_string(),
            timeline_label: format!("{name} = Const("),
            ..source(self.epoch_nanos)
        });
        nodes.stats.extend(constants);
    }

    /// Adds the statistics of another task.
    pub(crate) fn add_remote(&self, stats: &StepStats) {
        let mut nodes = self.nodes.lock().unwrap_or_else(PoisonError::into_inner);
        nodes.remote.extend(stats.dev_stats.iter().cloned());
    }

    /// Returns the statistics by device; `inputs` are the names that each node reads
    /// ([`Session::inputs`](ferroflow_runtime::Session::inputs)).
    pub fn finish<'a>(
        &self,
        device_of: impl Fn(&str) -> &'a str,
        inputs: &FxHashMap<String, String>,
    ) -> StepStats {
        let mut nodes = self.nodes.lock().unwrap_or_else(PoisonError::into_inner);
        let nodes = std::mem::take(&mut *nodes);
        let (threads, remote) = (nodes.threads.into_values(), nodes.remote);
        let threads: HashMap<u32, String> = threads.map(|t| (t, format!("thread {t}"))).collect();
        let mut devices: BTreeMap<&str, Vec<NodeExecStats>> = BTreeMap::new();
        // A step whose nodes were all folded also ran on a device.
        if remote.is_empty() || !nodes.stats.is_empty() {
            devices.entry(device_of("")).or_default();
        }
        let begins = nodes.stats.iter().map(|n| n.all_start_nanos).min();
        let begins = begins.unwrap_or(self.epoch_nanos);
        for mut node in nodes.stats {
            // The form that timeline.py parses for the edges between nodes.
            let inputs = inputs.get(&node.node_name).map_or("", String::as_str);
            node.timeline_label = format!("{}{inputs})", node.timeline_label);
            let device = device_of(&node.node_name);
            devices.entry(device).or_default().push(node);
        }
        for nodes in devices.values_mut() {
            nodes.insert(0, source(begins));
        }
        let stats = devices
            .into_iter()
            .map(|(device, node_stats)| DeviceStepStats {
                device: device.to_string(),
                node_stats,
                thread_names: threads.clone(),
            });
        let streams = nodes.streams.into_iter();
        let streams = streams.map(|(device, node_stats)| DeviceStepStats {
            device,
            node_stats,
            ..Default::default()
        });
        StepStats {
            dev_stats: stats.chain(streams).chain(remote).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn streams_are_devices_of_their_own() {
        let trace = StepTrace::default();
        let start = trace.began + Duration::from_micros(7);
        trace.stream_span(StreamSpan {
            stream: "/device:GPU:0/stream:compute",
            name: "y",
            op: "MatMul",
            start,
            end: start + Duration::from_micros(5),
        });
        let stats = trace.finish(|_| "/device:CPU:0", &FxHashMap::default());
        let devices: Vec<&str> = stats.dev_stats.iter().map(|d| &*d.device).collect();
        assert_eq!(devices, ["/device:CPU:0", "/device:GPU:0/stream:compute"]);
        let node = &stats.dev_stats[1].node_stats[0];
        assert_eq!(node.timeline_label, "y = MatMul()");
        assert_eq!(node.op_end_rel_micros, 5);
        assert_eq!(node.all_start_nanos, trace.epoch_nanos + 7000);
    }
}
