//! Bias correction: what products on codes lack in the mean of each channel, compared with those of floats.
//!
//! The graph of floats stays as a copy next to that of codes, which both compute in a step.

use super::product::{ALL, clamp_of};
use crate::pass::constant_node;
use crate::{OBSERVED, PassCtx};
use ferroflow_base::Result;
use ferroflow_graph::{
    Graph, Node, NodeClass, NodeId, Output, Patch, RETVAL, boundary_attrs, topological_order,
};
use ferroflow_opdef::{AttrValue, Attrs};
use ferroflow_tensor::{DType, Tensor};
use rustc_hash::FxHashMap;

/// The copy of floats, and the number of results so far.
pub(super) struct Corrections {
    /// The product of floats without its activation, and its rank, by the node that is converted.
    references: FxHashMap<NodeId, (Output, usize)>,
    n_results: usize,
}

/// Returns whether a node may compute twice.
fn is_copied(node: &Node) -> bool {
    let is_plain = matches!(node.class(), NodeClass::Other | NodeClass::Identity);
    is_plain && !node.inputs.is_empty() && !node.def.flags.stateful
}

impl Corrections {
    /// Copies what computes floats; `ranks` has the products that are to be corrected.
    pub(super) fn new(
        graph: &mut Graph,
        ctx: &PassCtx,
        ranks: &FxHashMap<NodeId, usize>,
    ) -> Result<Corrections> {
        let retvals = graph.iter().filter(|(_, n)| n.class() == NodeClass::Retval);
        let n_results = retvals.count();
        let mut patch = Patch::new();
        let mut copies: FxHashMap<NodeId, NodeId> = FxHashMap::default();
        let mut references = FxHashMap::default();
        for id in topological_order(graph)? {
            let node = graph.node(id);
            if !is_copied(node) {
                continue;
            }
            let mut copy = node.clone();
            for input in &mut copy.inputs {
                input.node = *copies.get(&input.node).unwrap_or(&input.node);
            }
            let rank = ranks.get(&id).copied();
            let bare = rank.and_then(|rank| Some((rank, take_activation(&mut copy)?)));
            copy.name = graph.unique_name(&format!("{}/floats", copy.name));
            let mut made = Output::new(patch.add(graph, copy)?, 0);
            if let Some((rank, activation)) = bare {
                references.insert(id, (made, rank));
                made = activated(graph, ctx, &mut patch, made, activation)?;
            }
            copies.insert(id, made.node);
        }
        patch.apply(graph);
        Ok(Corrections {
            references,
            n_results,
        })
    }

    /// Adds to the sums of a product what they lack in the mean of each channel, which becomes a result.
    pub(super) fn add(
        &mut self,
        graph: &mut Graph,
        ctx: &PassCtx,
        patch: &mut Patch,
        product: NodeId,
        sums: Output,
    ) -> Result<Output> {
        let Some(&(reference, rank)) = self.references.get(&product) else {
            return Ok(sums);
        };
        let name = graph.node(product).name.clone();
        let float = || Attrs::default().with("T", AttrValue::Type(DType::Float));
        let axes: Vec<i32> = (0..rank.saturating_sub(1) as i32).collect();
        let axes_name = graph.unique_name(&format!("{name}/correction/axes"));
        let axes = constant_node(ctx, axes_name, Tensor::vector(&axes)?)?;
        let axes = Output::new(patch.add(graph, axes)?, 0);
        let mut add = |graph: &mut Graph, op: &str, attrs: Attrs, inputs: &[Output]| {
            let name = graph.unique_name(&format!("{name}/correction/{op}"));
            let node = ctx.node(name, op, attrs, inputs, &[])?;
            Result::Ok(Output::new(patch.add(graph, node)?, 0))
        };
        let gap = add(graph, "Sub", float(), &[reference, sums])?;
        let mean = float().with("Tidx", AttrValue::Type(DType::Int32));
        let mean = add(graph, "Mean", mean, &[gap, axes])?;
        let result =
            boundary_attrs(DType::Float, self.n_results).with(OBSERVED, AttrValue::str(&name));
        add(graph, RETVAL, result, &[mean])?;
        self.n_results += 1;
        add(graph, "AddV2", float(), &[sums, mean])
    }
}

/// Takes the activation, if any, from a product and returns its limits; `None` if the product cannot do without.
fn take_activation(product: &mut Node) -> Option<(f32, f32)> {
    if product.attrs.get("fused_ops").is_none() {
        return Some(ALL);
    }
    let names = product.attrs.strs("fused_ops").ok()?;
    let limits = names.iter().find_map(|n| clamp_of(n)).unwrap_or(ALL);
    let kept: Vec<&str> = names
        .into_iter()
        .filter(|n| clamp_of(n).is_none())
        .collect();
    if kept.is_empty() {
        return None;
    }
    let kept = AttrValue::strs(&kept);
    product.attrs.set("fused_ops", kept);
    Some(limits)
}

/// Adds the activation that these limits are, if any.
pub(super) fn activated(
    graph: &mut Graph,
    ctx: &PassCtx,
    patch: &mut Patch,
    sums: Output,
    (low, high): (f32, f32),
) -> Result<Output> {
    let op = match (low == 0.0, high.is_finite()) {
        (false, _) => return Ok(sums),
        (true, false) => "Relu",
        (true, true) => "Relu6",
    };
    let name = format!("{}/{op}", graph.node(sums.node).name);
    let attrs = Attrs::default().with("T", AttrValue::Type(DType::Float));
    let node = ctx.node(graph.unique_name(&name), op, attrs, &[sums], &[])?;
    Ok(Output::new(patch.add(graph, node)?, 0))
}
