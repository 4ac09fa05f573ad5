//! Fuses trees of elementwise ops into one pass over memory.

use crate::pass::FUSED_SUFFIX;
use crate::view::{View, same_shape};
use crate::{Pass, PassCtx};
use ferroflow_base::{Result, internal};
use ferroflow_graph::{Graph, Node, NodeId, Output, Patch, topological_order};
use ferroflow_opdef::{AttrValue, Attrs, BinaryFn, ElementwiseProgram, Instruction, UnaryFn};
use ferroflow_tensor::DType;
use smallvec::{SmallVec, smallvec};

pub(crate) const PASS: Pass = Pass {
    name: "elementwise",
    about: "fuses trees of elementwise float ops into single nodes",
    run,
};

/// Longest program that is made.
const MAX_STEPS: usize = 24;

/// The function of an op that takes the elements of its inputs one by one.
enum Function {
    Unary(UnaryFn),
    Binary(BinaryFn),
}

fn function(node: &Node) -> Option<Function> {
    let alpha = || node.attrs.float("alpha").unwrap_or(0.2);
    let is_last =
        node.op() != "BiasAdd" || node.attrs.str("data_format").is_ok_and(|f| f == "NHWC");
    match node.inputs.len() {
        1 => UnaryFn::of_op(node.op(), alpha()).map(Function::Unary),
        2 if is_last => BinaryFn::of_op(node.op()).map(Function::Binary),
        _ => None,
    }
}

fn can_fuse(view: &View, id: NodeId) -> bool {
    let node = view.node(id);
    node.outputs[..] == [DType::Float] && view.is_pure(id) && function(node).is_some()
}

fn run(graph: &mut Graph, ctx: &PassCtx) -> Result<()> {
    let view = View::new(graph, ctx.shapes(graph)?);
    let order = topological_order(graph)?;
    let mut position = vec![0usize; graph.id_bound()];
    for (i, id) in order.iter().enumerate() {
        position[id.index()] = i;
    }
    let mut taken = vec![false; graph.id_bound()];
    let mut groups: Vec<(NodeId, Vec<NodeId>)> = Vec::new();
    for &root in order.iter().rev() {
        if taken[root.index()] || !can_fuse(&view, root) {
            continue;
        }
        let members = grow(&view, root, &taken, &position);
        if members.len() < 2 {
            continue;
        }
        members.iter().for_each(|m| taken[m.index()] = true);
        groups.push((root, members));
    }
    let new_nodes: Vec<(NodeId, Node)> = groups
        .iter()
        .map(|(root, members)| Ok((*root, fused_node(&view, ctx, *root, members)?)))
        .collect::<Result<_>>()?;
    let mut patch = Patch::new();
    for (root, node) in new_nodes {
        patch.substitute(graph, root, node)?;
    }
    patch.apply(graph);
    Ok(())
}

/// The nodes that can be computed together with `root`, in topological order: elementwise
/// producers of the same shape that only members read.
fn grow(view: &View, root: NodeId, taken: &[bool], position: &[usize]) -> Vec<NodeId> {
    let shape = view.shape(Output::new(root, 0));
    let mut members = vec![root];
    let mut next = 0;
    while next < members.len() {
        let node = view.node(members[next]);
        next += 1;
        for input in &node.inputs {
            let id = input.node;
            if members.len() >= MAX_STEPS || members.contains(&id) || taken[id.index()] {
                continue;
            }
            let only_members = |m: &[NodeId]| {
                view.consumers
                    .of(id)
                    .iter()
                    .all(|(c, slot)| slot.is_some() && m.contains(c))
            };
            if can_fuse(view, id)
                && only_members(&members)
                && same_shape(&view.shape(*input), &shape)
            {
                members.push(id);
                // A producer with several readers may fit once all of them are members.
                next = 0;
            }
        }
    }
    members.sort_unstable_by_key(|m| position[m.index()]);
    members
}

fn fused_node(view: &View, ctx: &PassCtx, root: NodeId, members: &[NodeId]) -> Result<Node> {
    let mut inputs: SmallVec<[Output; 4]> = smallvec![];
    for member in members {
        for input in &view.node(*member).inputs {
            if !members.contains(&input.node) && !inputs.contains(input) {
                inputs.push(*input);
            }
        }
    }
    let operand = |o: &Output| match members.iter().position(|m| *m == o.node) {
        Some(step) => inputs.len() + step,
        None => inputs.iter().position(|i| i == o).unwrap_or(0),
    };
    let steps = members.iter().map(|member| {
        let node = view.node(*member);
        match (function(node)?, &node.inputs[..]) {
            (Function::Unary(f), [a]) => Some(Instruction::Unary(f, operand(a))),
            (Function::Binary(f), [a, b]) => Some(Instruction::Binary(f, operand(a), operand(b))),
            _ => None,
        }
    });
    let steps: Option<Vec<Instruction>> = steps.collect();
    let steps = steps.ok_or_else(|| internal!("a fused op is not elementwise"))?;
    let program = ElementwiseProgram::new(steps, inputs.len())?;
    let name = format!("{}{FUSED_SUFFIX}", view.node(root).name);
    let attrs = Attrs::default()
        .with("T", AttrValue::Type(DType::Float))
        .with("N", AttrValue::Int(inputs.len() as i64))
        .with("program", AttrValue::str(&program.encode()));
    let name = view.graph.unique_name(&name);
    ctx.node(name, "_FusedElementwise", attrs, &inputs, &[])
}
