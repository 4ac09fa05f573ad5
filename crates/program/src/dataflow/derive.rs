//! What follows from a body's nodes and edges: pending counts, roots, arguments and so on. The builder
//! stores it, the verifier compares it with what a file says.

use super::body::{Action, Body, EdgeKind, ForwardSlot, FrameKind, NodeIdx};
use super::merge::MergeState;
use ferroflow_base::{Result, data_loss};

/// The derived part of a frame.
#[derive(Default)]
pub(super) struct DerivedFrame {
    pub(super) pending: Vec<u32>,
    pub(super) roots: Vec<NodeIdx>,
    pub(super) args: Vec<Option<NodeIdx>>,
    pub(super) n_enters: u32,
}

/// The derived part of a body.
pub(super) struct Derived {
    pub(super) frames: Vec<DerivedFrame>,
    /// By edge.
    pub(super) last: Vec<bool>,
    /// By node.
    pub(super) forward_slots: Vec<ForwardSlot>,
    pub(super) max_outputs: usize,
}

impl Derived {
    /// Derives it from a body whose frames, nodes and edges lie as they must.
    ///
    /// # Errors
    /// Two Arg nodes deliver the same argument, or one an argument that the function does not have.
    pub(super) fn of(body: &Body) -> Result<Derived> {
        let (last, forward_slots) = forwarding(body);
        let mut n_controls = vec![0; body.nodes.len()];
        let mut n_data = vec![0u32; body.nodes.len()];
        for edge in &body.edges {
            match edge.kind {
                EdgeKind::Result => {}
                EdgeKind::Data | EdgeKind::MergeData => n_data[edge.node.index()] += 1,
                _ => n_controls[edge.node.index()] += 1,
            }
        }
        let mut frames: Vec<DerivedFrame> = Vec::with_capacity(body.frames.len());
        for frame in &body.frames {
            let mut derived = DerivedFrame {
                args: vec![None; frame.args.len()],
                ..DerivedFrame::default()
            };
            for i in frame.nodes() {
                let node = &body.nodes[i];
                let pending = match node.action {
                    Action::Merge => MergeState::new(n_controls[i]).bits(),
                    _ => n_data[i] + n_controls[i] as u32,
                };
                derived.pending.push(pending);
                match node.action {
                    Action::Arg(a) => match derived.args.get_mut(a as usize) {
                        Some(arg @ None) => *arg = Some(NodeIdx::new(i)),
                        _ => {
                            let name = &frame.name;
                            return Err(data_loss!(
                                "argument {a} of '{name}' is out of range or delivered twice"
                            ));
                        }
                    },
                    _ if pending == 0 => derived.roots.push(NodeIdx::new(i)),
                    _ => {}
                }
            }
            frames.push(derived);
        }
        for node in &body.nodes {
            if let Action::Enter { frame, .. } = node.action
                && let Some(frame) = frames.get_mut(frame.index())
            {
                frame.n_enters += 1;
            }
        }
        let outputs = body.nodes.iter().map(|n| usize::from(n.n_outputs));
        Ok(Derived {
            frames,
            last,
            forward_slots,
            max_outputs: outputs.max().unwrap_or(0).max(1),
        })
    }

    /// Stores it in the body.
    pub(super) fn store(self, body: &mut Body) {
        for (frame, derived) in body.frames.iter_mut().zip(self.frames) {
            (frame.pending, frame.roots) = (derived.pending, derived.roots);
            frame.args = derived.args;
            if let FrameKind::Loop { n_enters, .. } = &mut frame.kind {
                *n_enters = derived.n_enters;
            }
        }
        for (edge, last) in body.edges.iter_mut().zip(self.last) {
            edge.last = last;
        }
        for (node, slot) in body.nodes.iter_mut().zip(self.forward_slots) {
            node.forward_slot = slot;
        }
        body.max_outputs = self.max_outputs;
    }
}

/// For each edge, whether it is the last that carries its output; for each node, where its only
/// output can be written directly.
fn forwarding(body: &Body) -> (Vec<bool>, Vec<ForwardSlot>) {
    let mut last = vec![false; body.edges.len()];
    let mut slots = Vec::with_capacity(body.nodes.len());
    for node in &body.nodes {
        let edges = body.edges_of(node);
        let mut seen = vec![false; usize::from(node.n_outputs)];
        for (i, edge) in edges
            .iter()
            .enumerate()
            .rev()
            .filter(|e| e.1.kind.is_data())
        {
            let is_later = std::mem::replace(&mut seen[usize::from(edge.output)], true);
            last[node.first_edge as usize + i] = !is_later;
        }
        let is_plain = |kind| matches!(kind, EdgeKind::Data | EdgeKind::Control);
        let reader = edges.iter().rev().find(|e| e.kind == EdgeKind::Data);
        slots.push(match (&node.action, reader) {
            (
                Action::Kernel(_)
                | Action::Arg(_)
                | Action::Const(_)
                | Action::Forward
                | Action::Merge,
                Some(reader),
            ) if node.n_outputs == 1 && edges.iter().all(|e| is_plain(e.kind)) => {
                ForwardSlot(reader.slot)
            }
            _ => ForwardSlot::NONE,
        });
    }
    (last, slots)
}
