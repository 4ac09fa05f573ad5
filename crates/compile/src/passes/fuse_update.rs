//! Fuses the product that an optimizer gets as its gradient into the optimizer, which then uses up the
//! gradient as it is computed.
//!
//! TF1's optimizers get each gradient through an Identity that waits until all gradients of a layer are
//! computed (`tf.tuple`). Consumers that wait for the product wait for its inputs instead, as
//! in the pass `control_only`; the optimizer waits for what the Identity waited for. So when matrices
//! do not fit, others that waited for the product may have updated their variables before the step fails.
//!
//! An optimizer that has its gradient earlier than before should not run while the gradient of the layer
//! before still reads the old value of its variable, which would have to be copied: it waits for that.

use crate::passes::control_only::{wait_for, waiting};
use crate::view::{has_dead_outputs, moves_values};
use crate::{Pass, PassCtx};
use ferroflow_base::Result;
use ferroflow_graph::{Consumers, Graph, Node, NodeClass, NodeId, Output, Patch};
use ferroflow_opdef::AttrValue;
use ferroflow_tensor::DType;

pub(crate) const PASS: Pass = Pass {
    name: "fuse_update",
    about: "fuses matrix products into the optimizers whose gradients they are",
    run,
};

/// Optimizers, which input is the gradient, and what they are with a product for it.
const OPTIMIZERS: &[(&str, usize, &str)] = &[
    (
        "ResourceApplyGradientDescent",
        2,
        "_MatMulApplyGradientDescent",
    ),
    ("ResourceApplyMomentum", 3, "_MatMulApplyMomentum"),
    ("ResourceApplyAdagrad", 3, "_MatMulApplyAdagrad"),
    ("ResourceApplyRMSProp", 7, "_MatMulApplyRMSProp"),
    ("ResourceApplyAdam", 9, "_MatMulApplyAdam"),
];

/// An optimizer and the product that becomes part of it.
struct Update {
    optimizer: NodeId,
    op: &'static str,
    gradient: usize,
    product: NodeId,
    /// Further control inputs of the optimizer.
    controls: Vec<NodeId>,
}

fn run(graph: &mut Graph, ctx: &PassCtx) -> Result<()> {
    let consumers = Consumers::new(graph);
    let updates = graph.iter().map(|(id, _)| id);
    let mut updates: Vec<Update> = updates
        .filter_map(|id| update(graph, &consumers, id))
        .collect();
    wait_for_readers(graph, &consumers, &mut updates);
    let mut patch = Patch::new();
    for update in updates {
        let product = graph.node(update.product).clone();
        let node = patch.edit(graph, update.optimizer);
        node.def = ctx.def(update.op)?;
        for name in ["transpose_a", "transpose_b"] {
            let value = AttrValue::Bool(product.attrs.bool(name)?);
            node.attrs.set(name, value);
        }
        node.def.complete_attrs(&mut node.attrs)?;
        node.inputs[update.gradient] = product.inputs[0];
        node.inputs.push(product.inputs[1]);
        wait_for(node, update.controls);
        *patch.edit(graph, update.product) = waiting(&product, ctx)?;
    }
    patch.apply(graph);
    Ok(())
}

/// Makes optimizers wait for products that read the old values of their variables.
fn wait_for_readers(graph: &Graph, consumers: &Consumers, updates: &mut [Update]) {
    // What is in a branch may never come.
    if updates.is_empty() || moves_values(graph) {
        return;
    }
    // Nodes that need an optimizer, which cannot be waited for.
    let mut is_after = vec![false; graph.id_bound()];
    let mut next: Vec<NodeId> = updates.iter().map(|u| u.optimizer).collect();
    while let Some(id) = next.pop() {
        if !std::mem::replace(&mut is_after[id.index()], true) {
            next.extend(consumers.of(id).iter().map(|(reader, _)| *reader));
        }
    }
    for update in updates {
        let variable = graph.node(update.optimizer).inputs[0].node;
        let factors = &graph.node(update.product).inputs;
        for (read, _) in consumers.of(variable) {
            if graph.node(*read).class() != NodeClass::ReadVariable {
                continue;
            }
            // A product of the same factor needs nothing that the optimizer has not.
            let is_ready = |reader: &NodeId| {
                let inputs = &graph.node(*reader).inputs;
                graph.node(*reader).op() == "MatMul"
                    && graph.node(*reader).controls.is_empty()
                    && inputs
                        .iter()
                        .all(|i| i.node == *read || factors.contains(i))
            };
            let readers = consumers.of(*read).iter().map(|(reader, _)| *reader);
            let others = readers
                .filter(|r| *r != update.product && !is_after[r.index()])
                .filter(is_ready);
            update.controls.extend(others);
        }
    }
}

/// The update of optimizer `id`, if its gradient is a product without other readers.
fn update(graph: &Graph, consumers: &Consumers, id: NodeId) -> Option<Update> {
    let node = graph.node(id);
    let known = OPTIMIZERS.iter().find(|(op, ..)| *op == node.op());
    let (_, gradient, op) = *known?;
    let from = *node.inputs.get(gradient)?;
    let is_product = |n: &Node| n.op() == "MatMul" && n.outputs[..] == [DType::Float];
    let (id_of_product, controls) = product_behind(graph, consumers, node, from, &is_product)?;
    // Only one side of a Switch comes, which a control edge cannot name.
    let inputs = &graph.node(id_of_product).inputs;
    let beside_switch = inputs.iter().any(|i| has_dead_outputs(graph.node(i.node)));
    (!beside_switch).then_some(Update {
        optimizer: id,
        op,
        gradient,
        product: id_of_product,
        controls,
    })
}

/// The product that `from` is, behind Identities, if `reader` alone reads it; with what these nodes wait for.
pub(crate) fn product_behind(
    graph: &Graph,
    consumers: &Consumers,
    reader: &Node,
    mut from: Output,
    is_product: &dyn Fn(&Node) -> bool,
) -> Option<(NodeId, Vec<NodeId>)> {
    let mut controls = Vec::new();
    let product = loop {
        let of = graph.node(from.node);
        if of.device != reader.device || graph.is_target(from.node) {
            return None;
        }
        controls.extend(of.controls.iter().copied());
        if is_product(of) {
            break of;
        }
        if of.op() != "Identity" || consumers.of(from.node).len() != 1 {
            return None;
        }
        from = *of.inputs.first()?;
    };
    // A constant on the right is packed once, for MatMul.
    let right = graph.node(product.inputs.get(1)?.node);
    if right.class() == NodeClass::Const && !product.attrs.bool("transpose_a").ok()? {
        return None;
    }
    let readers = consumers.of(from.node).iter();
    let is_read_once = readers.filter(|(_, slot)| slot.is_some()).count() == 1;
    is_read_once.then_some((from.node, controls))
}
