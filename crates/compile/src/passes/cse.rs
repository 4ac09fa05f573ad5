//! Common subexpressions: of nodes with the same op, attrs and inputs one is kept.

use crate::{Pass, PassCtx};
use ferroflow_base::Result;
use ferroflow_graph::{Graph, Node, NodeClass, NodeId, Output, Patch, topological_order};
use ferroflow_opdef::AttrValue;
use rustc_hash::{FxHashMap, FxHasher};
use std::hash::{Hash, Hasher};

pub(crate) const PASS: Pass = Pass {
    name: "cse",
    about: "merges nodes that compute the same from the same inputs",
    run,
};

fn run(graph: &mut Graph, _: &PassCtx) -> Result<()> {
    let mut patch = Patch::new();
    let mut seen: FxHashMap<u64, Vec<NodeId>> = FxHashMap::default();
    for id in topological_order(graph)? {
        let node = graph.node(id);
        if node.def.flags.stateful
            || node.class() == NodeClass::Placeholder
            || node.outputs.is_empty()
        {
            continue;
        }
        if graph.is_target(id) {
            continue;
        }
        let inputs: Vec<Output> = node.inputs.iter().map(|i| patch.resolve(*i)).collect();
        let candidates = seen.entry(key(node, &inputs)).or_default();
        let twin = candidates.iter().copied().find(|&other| {
            let o = graph.node(other);
            o.def.name == node.def.name
                && o.controls == node.controls
                && o.inputs.len() == inputs.len()
                && o.inputs
                    .iter()
                    .zip(&inputs)
                    .all(|(a, b)| patch.resolve(*a) == *b)
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
    patch.apply(graph);
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
