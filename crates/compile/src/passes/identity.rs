//! Removes nodes that pass values on unchanged.

use crate::view::may_be_dead;
use crate::{Pass, PassCtx};
use ferroflow_base::Result;
use ferroflow_graph::{Consumers, Graph, Output, Patch};

pub(crate) const PASS: Pass = Pass {
    name: "identity",
    about: "removes Identity, IdentityN, StopGradient, PreventGradient and Snapshot",
    run,
};

fn run(graph: &mut Graph, _: &PassCtx) -> Result<()> {
    let mut patch = Patch::new();
    let consumers = Consumers::new(graph);
    let may_be_dead = may_be_dead(graph);
    for (id, node) in graph.iter() {
        // A node with control inputs also orders its readers after them.
        if !node.def.is_identity() || !node.controls.is_empty() || graph.is_target(id) {
            continue;
        }
        // A consumer that waits for a node on one side of a Switch waits for that side only, which a
        // control edge from the Switch cannot express.
        if may_be_dead && consumers.is_awaited(id) {
            continue;
        }
        for (slot, input) in node.inputs.iter().enumerate() {
            patch.redirect(Output::new(id, slot), *input);
        }
        // A control edge from an IdentityN stands for all its inputs; one edge cannot express that.
        if node.inputs.len() == 1 {
            patch.redirect_control(id, Some(node.inputs[0].node));
        }
    }
    patch.apply(graph);
    Ok(())
}
