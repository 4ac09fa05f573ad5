//! Common subexpressions: of nodes with the same op, attrs and inputs one is kept.

use crate::deadness::is_next;
use crate::{Pass, PassCtx};
use ferroflow_base::Result;
use ferroflow_graph::{Graph, Node, NodeClass, NodeId, Output, Patch, topological_order};
use ferroflow_opdef::AttrValue;
use rustc_hash::{FxHashMap, FxHasher};
use smallvec::SmallVec;
use std::hash::{Hash, Hasher};

pub(crate) const PASS: Pass = Pass {
    name: "cse",
    about: "merges nodes that compute the same from the same inputs",
    run,
};

fn run(graph: &mut Graph, _: &PassCtx) -> Result<()> {
    let mut back_edges = BackEdges::of(graph);
    for _ in 0..ROUNDS {
        let mut patch = Patch::new();
        merge_twins(graph, &mut patch, &back_edges.carried)?;
        if back_edges.refine(&patch) {
            patch.apply(graph);
            return Ok(());
        }
    }
    back_edges.separate();
    let mut patch = Patch::new();
    merge_twins(graph, &mut patch, &back_edges.carried)?;
    patch.apply(graph);
    Ok(())
}

/// Rounds in which the variables of loops are told apart.
const ROUNDS: usize = 8;

/// The back edges of loops, with what they are assumed to carry: at first all the same, so that variables which begin
/// equal and are changed equally, as counters are, count as one (Alpern, Wegman and Zadeck, "Detecting equality of
/// variables in programs", 1988).
struct BackEdges {
    /// Merges of loops, with the value of their NextIteration.
    edges: Vec<(NodeId, Output)>,
    carried: FxHashMap<NodeId, Output>,
}

impl BackEdges {
    fn of(graph: &Graph) -> BackEdges {
        let is_back = |o: &Output| is_next(graph.node(o.node));
        let merges = graph
            .iter()
            .filter(|(_, n)| n.class() == NodeClass::Merge && n.inputs.len() == 2);
        let edges: Vec<(NodeId, Output)> = merges
            .filter(|(_, n)| !is_back(&n.inputs[0]))
            .filter_map(|(id, n)| is_back(&n.inputs[1]).then_some((id, n.inputs[1])))
            .collect();
        let any = edges.first().map(|e| e.1);
        let carried = edges.iter().filter_map(|e| Some((e.0, any?))).collect();
        BackEdges { edges, carried }
    }

    /// Tells apart what `patch` shows to differ. Returns whether all Merges that it replaces carry what their twins do.
    fn refine(&mut self, patch: &Patch) -> bool {
        let back: FxHashMap<NodeId, Output> = self.edges.iter().copied().collect();
        let is_same = |(merge, value): &(NodeId, Output)| {
            let twin = back.get(&patch.resolve(Output::new(*merge, 0)).node);
            twin.is_some_and(|twin| patch.resolve(*twin) == patch.resolve(*value))
        };
        let holds = self.edges.iter().all(is_same);
        let resolved = self.edges.iter().map(|e| (e.0, patch.resolve(e.1)));
        self.carried = resolved.collect();
        holds
    }

    /// Assumes nothing.
    fn separate(&mut self) {
        self.carried = self
            .edges
            .iter()
            .map(|e| (e.0, Output::new(e.0, 0)))
            .collect();
    }
}

/// Redirects the outputs of every node to those of an earlier one that computes the same. In place of a Merge's second
/// input stands what `carried` holds for it, if anything.
pub(super) fn merge_twins(
    graph: &Graph,
    patch: &mut Patch,
    carried: &FxHashMap<NodeId, Output>,
) -> Result<()> {
    let mut seen: FxHashMap<u64, Vec<NodeId>> = FxHashMap::default();
    for id in topological_order(graph)? {
        let node = graph.node(id);
        if node.def.flags.stateful
            || node.class() == NodeClass::Placeholder
            || node.outputs.is_empty()
            || graph.is_target(id)
            || patch.resolve(Output::new(id, 0)).node != id
        {
            continue;
        }
        let back = carried.get(&id).copied();
        let input = |of: &Node, slot: usize| match back {
            Some(value) if slot == 1 => value,
            _ => patch.resolve(of.inputs[slot]),
        };
        let slots = 0..node.inputs.len();
        let inputs: SmallVec<[Output; 4]> = slots.clone().map(|slot| input(node, slot)).collect();
        let candidates = seen.entry(key(node, &inputs)).or_default();
        let twin = candidates.iter().copied().find(|&other| {
            let o = graph.node(other);
            o.def.name == node.def.name
                && o.controls == node.controls
                && o.inputs.len() == inputs.len()
                && carried.get(&other) == back.as_ref()
                && slots.clone().all(|slot| input(o, slot) == inputs[slot])
                && o.attrs.same_values(&node.attrs)
        });
        match twin {
            None => candidates.push(id),
            Some(twin) => {
                for slot in 0..node.outputs.len() {
                    patch.redirect(Output::new(id, slot), Output::new(twin, slot));
                }
                patch.redirect_control(id, Some(twin));
            }
        }
    }
    Ok(())
}

fn key(node: &Node, inputs: &[Output]) -> u64 {
    let mut h = FxHasher::default();
    node.op().hash(&mut h);
    inputs.hash(&mut h);
    for (name, value) in node.attrs.iter() {
        name.hash(&mut h);
        hash_attr(value, &mut h);
    }
    h.finish()
}

fn hash_attr(value: &AttrValue, h: &mut FxHasher) {
    match value {
        AttrValue::Str(s) => s.hash(h),
        AttrValue::Int(i) => i.hash(h),
        AttrValue::Float(f) => f.to_bits().hash(h),
        AttrValue::Bool(b) => b.hash(h),
        AttrValue::Type(t) => t.hash(h),
        AttrValue::Shape(s) => s.hash(h),
        AttrValue::Tensor(t) => {
            (t.dtype(), t.shape()).hash(h);
            // Small constants are hashed by value, since graphs hold thousands of them.
            if t.shape().num_elements() <= 64
                && let Ok(value) = t.get()
                && let Ok(bytes) = value.bytes()
            {
                bytes.hash(h);
            }
        }
        AttrValue::Func(f) => f.name.hash(h),
        AttrValue::Placeholder(p) => p.hash(h),
        AttrValue::List(items) => items.iter().for_each(|i| hash_attr(i, h)),
    }
}
