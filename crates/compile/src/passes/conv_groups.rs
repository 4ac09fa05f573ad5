//! Tells convolutions with constant filters how many groups of channels they have, which decides how
//! their filters are packed. Otherwise the first step shows it.

use crate::view::View;
use crate::{Pass, PassCtx};
use ferroflow_base::Result;
use ferroflow_graph::{Graph, NodeId, Patch};
use ferroflow_opdef::AttrValue;

pub(crate) const PASS: Pass = Pass {
    name: "conv_groups",
    about: "notes the number of groups at convolutions that have several",
    run,
};

/// The attr with the number.
pub(crate) const GROUPS: &str = "_groups";

fn run(graph: &mut Graph, ctx: &PassCtx) -> Result<()> {
    let view = View::new(graph, ctx.shapes(graph)?);
    let found: Vec<_> = graph
        .iter()
        .filter_map(|(id, _)| Some((id, groups(&view, id)?)))
        .collect();
    let mut patch = Patch::new();
    for (id, groups) in found {
        let node = patch.edit(graph, id);
        node.attrs.set(GROUPS, AttrValue::Int(groups));
    }
    patch.apply(graph);
    Ok(())
}

/// Returns the number of groups, if it is known and more than one.
fn groups(view: &View, id: NodeId) -> Option<i64> {
    let node = view.node(id);
    let is_3d = match node.op() {
        "Conv2D" => false,
        "Conv3D" => true,
        _ => return None,
    };
    let filter = view.constant(*node.inputs.get(1)?)?.shape().clone();
    let rank = if is_3d { 5 } else { 4 };
    if filter.rank() != rank || node.attrs.get(GROUPS).is_some() {
        return None;
    }
    let format = node.attrs.str("data_format").ok()?;
    let channel = if format.starts_with("NC") { 1 } else { -1 };
    let in_c = view.shape(node.inputs[0]).dim(channel)?;
    let of_group = filter[rank - 2];
    let divides = of_group > 0 && in_c.is_multiple_of(of_group) && in_c > of_group;
    divides.then(|| (in_c / of_group) as i64)
}
