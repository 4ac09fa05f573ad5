//! Nodes of loops that do not run in the first iteration.
//!
//! The output of a NextIteration belongs to the next iteration. Most are read by a Merge only, which takes
//! the value of an Enter in the first iteration. Other readers, and nodes that depend on them, run from the
//! second iteration on: they are *late* in that loop.

use crate::{Frames, Graph, NodeId, topological_order};
use ferroflow_base::Result;
use ferroflow_opdef::NodeClass;
use rustc_hash::FxHashMap;

/// The late nodes of a graph.
#[derive(Default)]
pub(crate) struct Late(FxHashMap<NodeId, Vec<usize>>);

impl Late {
    /// Finds the late nodes.
    ///
    /// # Errors
    /// INVALID_ARGUMENT if there is a cycle that is not a loop.
    pub(crate) fn find(graph: &Graph, frames: &Frames) -> Result<Late> {
        let mut late = Late::default();
        for id in topological_order(graph)? {
            let of_node = late.of_node(graph, frames, id);
            if !of_node.is_empty() {
                late.0.insert(id, of_node);
            }
        }
        Ok(late)
    }

    /// Whether the outputs of `node` are late in loop `frame`.
    pub(crate) fn contains(&self, node: NodeId, frame: usize) -> bool {
        self.0.get(&node).is_some_and(|late| late.contains(&frame))
    }

    /// The loops in which the outputs of a node are late: that of its inputs, except for a Merge, which
    /// needs one input, and those that wait for a NextIteration.
    fn of_node(&self, graph: &Graph, frames: &Frames, id: NodeId) -> Vec<usize> {
        let (node, own) = (graph.node(id), frames.of(id));
        if node.class() == NodeClass::NextIteration {
            return own.into_iter().collect();
        }
        let of_input = |input: NodeId| match graph.node(input).class() {
            NodeClass::NextIteration => frames.of(input).into_iter().collect(),
            _ => self.0.get(&input).cloned().unwrap_or_default(),
        };
        let mut late: Vec<usize> = match node.class() {
            NodeClass::Merge => {
                let data = node.inputs.iter().map(|input| of_input(input.node));
                let controls = node.controls.iter().flat_map(|c| of_input(*c));
                merged(data.collect(), own)
                    .into_iter()
                    .chain(controls)
                    .collect()
            }
            _ => node.predecessors().flat_map(of_input).collect(),
        };
        if node.class() == NodeClass::Exit {
            late.retain(|frame| Some(*frame) != own);
        }
        late.sort_unstable();
        late.dedup();
        late
    }
}

/// Where a Merge in loop `own` is late: where all inputs that it may have in the first iteration are.
fn merged(inputs: Vec<Vec<usize>>, own: Option<usize>) -> Vec<usize> {
    let is_late = |input: &Vec<usize>| own.is_some_and(|frame| input.contains(&frame));
    let (late, mut first): (Vec<_>, Vec<_>) = inputs.into_iter().partition(is_late);
    match first.pop() {
        None => late.into_iter().flatten().collect(),
        Some(mut all) => {
            all.retain(|frame| first.iter().all(|input| input.contains(frame)));
            all
        }
    }
}
