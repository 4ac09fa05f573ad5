//! The edges of a plan, by who reads them.

use crate::plan::{EdgeKind, NodeIdx, Plan};

/// Where an input of a node comes from.
pub type Producer = (NodeIdx, u16);

/// A plan's edges by who reads them.
pub struct Wiring {
    /// For each node and input, the output that arrives there; `None` for constants and what the
    /// kernel absorbed.
    pub inputs: Vec<Vec<Option<Producer>>>,
    /// For each node, whom it waits for.
    pub(crate) controls: Vec<Vec<NodeIdx>>,
    /// Whether somebody waits for the node.
    pub(crate) has_control_readers: Vec<bool>,
    /// By frame and number.
    pub(crate) results: Vec<Vec<Option<Producer>>>,
}

impl Wiring {
    /// The edges of `plan`.
    pub fn of(plan: &Plan) -> Wiring {
        let n = plan.nodes.len();
        let inputs = plan
            .nodes
            .iter()
            .map(|node| vec![None; node.n_inputs as usize]);
        let results = plan.frames.iter().map(|f| vec![None; f.n_results]);
        let mut wiring = Wiring {
            inputs: inputs.collect(),
            controls: vec![Vec::new(); n],
            has_control_readers: vec![false; n],
            results: results.collect(),
        };
        for (i, node) in plan.nodes.iter().enumerate() {
            let from = NodeIdx::new(i);
            for edge in plan.edges_of(node) {
                let to = edge.node.index();
                let slot = match edge.kind {
                    EdgeKind::Data | EdgeKind::MergeData => {
                        let first = plan.nodes.get(to).map_or(0, |n| n.first_slot);
                        let list = wiring.inputs.get_mut(to);
                        list.and_then(|l| l.get_mut(edge.slot.checked_sub(first)? as usize))
                    }
                    EdgeKind::Result => {
                        let list = wiring.results.get_mut(plan.frame_of(from));
                        list.and_then(|l| l.get_mut(edge.slot as usize))
                    }
                    EdgeKind::Control | EdgeKind::MergeControl | EdgeKind::Trigger => {
                        wiring.has_control_readers[i] = true;
                        if let Some(list) = wiring.controls.get_mut(to) {
                            list.push(from);
                        }
                        continue;
                    }
                };
                if let Some(slot) = slot {
                    *slot = Some((from, edge.output));
                }
            }
        }
        wiring
    }
}

pub(crate) fn nodes_of(plan: &Plan, frame: usize) -> std::ops::Range<usize> {
    let begin = |f: usize| plan.frames.get(f).map(|f| f.first_node as usize);
    let end = begin(frame + 1).unwrap_or(plan.nodes.len());
    begin(frame).unwrap_or(end)..end
}
