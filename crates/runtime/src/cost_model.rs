//! [`CostModel`]: costs of nodes, measured by steps, for placement.

use crate::registry;
use ferroflow_base::Result;
use ferroflow_executor::{NodeSpan, TraceSink};
use ferroflow_graph::{CopyCosts, Costs, DeviceSet, Graph, Node, Placement, infer_shapes};
use ferroflow_tensor::DType;
use rustc_hash::FxHashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Places nodes where they finish first, by costs that steps have measured, or else by estimates from
/// shapes.
///
/// As the trace of a step it measures that step; signatures that are compiled later use what it has
/// measured. State stays where it was placed first: sessions that share variables have to share the model,
/// too.
///
/// ```
/// use ferroflow_runtime::{CostModel, RunOptions, Session, SessionOptions, Tensor, TraceSink};
/// use std::sync::Arc;
/// let costs = Arc::new(CostModel::default());
/// let options = SessionOptions { costs: Some(costs.clone()), ..Default::default() };
/// let graph = "
///     node { name: 'x' op: 'Placeholder' attr { key: 'dtype' value { type: DT_FLOAT } } }
///     node { name: 'y' op: 'Exp' input: 'x' attr { key: 'T' value { type: DT_FLOAT } } }";
/// let session = Session::from_text(graph, options).unwrap();
/// let trace: Arc<dyn TraceSink> = costs.clone();
/// let run = RunOptions { trace: Some(trace), ..Default::default() };
/// session.run_with(&[("x:0", Tensor::scalar(0.0f32))], &["y:0"], &[], &run).unwrap();
/// assert!(costs.measured("y").is_some());
/// ```
#[derive(Default)]
pub struct CostModel {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    measured: FxHashMap<String, Measured>,
    /// The device, by name, of each node that has state.
    kept: FxHashMap<String, String>,
    copies: Option<CopyCosts>,
}

/// The calls of one node's kernel.
#[derive(Default)]
struct Measured {
    n_calls: u64,
    nanoseconds: u64,
    output_bytes: Vec<u64>,
}

/// What the compiler appends to the name of the last node of several that became one.
const FUSED: &str = "/fused";

impl CostModel {
    /// A model in which copies between devices cost this.
    pub fn with_copies(copies: CopyCosts) -> CostModel {
        let model = CostModel::default();
        model.state().copies = Some(copies);
        model
    }

    /// Adds the time and the output sizes of one call of a node's kernel.
    pub fn record(&self, node: &str, nanoseconds: u64, output_bytes: Vec<u64>) {
        let name = node.strip_suffix(FUSED).unwrap_or(node);
        let mut state = self.state();
        let known = match state.measured.get_mut(name) {
            Some(known) => known,
            None => state.measured.entry(name.to_string()).or_default(),
        };
        known.n_calls += 1;
        known.nanoseconds = known.nanoseconds.saturating_add(nanoseconds);
        known.output_bytes = output_bytes;
    }

    /// The mean time of a call of a node's kernel in nanoseconds, if it was measured.
    pub fn measured(&self, node: &str) -> Option<u64> {
        let state = self.state();
        let known = state.measured.get(node)?;
        Some(known.nanoseconds / known.n_calls.max(1))
    }

    /// Places the nodes of a graph on devices, and remembers where those that have state are.
    pub(crate) fn place(&self, graph: &Graph, devices: &DeviceSet) -> Result<Placement> {
        let shapes = infer_shapes(graph, registry()).unwrap_or_default();
        let mut costs = Costs::estimate(graph, &shapes);
        let mut state = self.state();
        costs.copies = state.copies.unwrap_or_default();
        let numbers = devices.names.iter().enumerate();
        let numbers: FxHashMap<&str, usize> = numbers.map(|(i, n)| (n.as_str(), i)).collect();
        let mut kept: FxHashMap<String, usize> = FxHashMap::default();
        for (id, node) in graph.iter() {
            if let Some(known) = state.measured.get(&node.name) {
                let mean = known.nanoseconds / known.n_calls.max(1);
                costs.set_measured(id, mean, &known.output_bytes);
            }
            let device = state.kept.get(&node.name);
            if let Some(device) = device.and_then(|name| numbers.get(name.as_str())) {
                kept.insert(node.name.clone(), *device);
            }
        }
        let placed = devices.place_by_cost(graph, &costs, &kept)?;
        for (id, node) in graph.iter().filter(|(_, n)| has_state(n)) {
            if let Some(device) = devices.names.get(placed.devices[id.index()]) {
                state.kept.insert(node.name.clone(), device.clone());
            }
        }
        Ok(placed)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl TraceSink for CostModel {
    fn span(&self, span: NodeSpan) {
        let elapsed = span.end.saturating_duration_since(span.start).as_nanos();
        let bytes = span.outputs.iter().map(|t| t.bytes as u64).collect();
        self.record(
            &span.node.name,
            u64::try_from(elapsed).unwrap_or(u64::MAX),
            bytes,
        );
    }
}

/// Whether a node is the handle or the reference of something that outlives the step.
fn has_state(node: &Node) -> bool {
    let is_reference = || node.def.output_references(&node.attrs);
    node.def.flags.stateful
        && (node.outputs.contains(&DType::Resource)
            || is_reference().is_ok_and(|references| references.contains(&true)))
}
