//! Fuses trees of elementwise ops into one pass over memory. A Tile that repeats single elements is not computed: the
//! others read its input.

use crate::pass::FUSED_SUFFIX;
use crate::view::{View, same_shape};
use crate::{Pass, PassCtx};
use ferroflow_base::{Result, Status, internal};
use ferroflow_graph::{Graph, Node, NodeId, Output, Patch, topological_order};
use ferroflow_opdef::{AttrValue, Attrs, BinaryFn, ElementwiseProgram, Instruction, UnaryFn};
use ferroflow_tensor::DType;
use rustc_hash::FxHashMap;
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
    /// The sum of all inputs, from the first to the last: AddN adds more than eight in groups.
    Sum,
    /// The first input, whose dimensions of one element are repeated.
    Repeat,
}

/// Whether each element of the node's output depends on one of each input alone.
pub(in crate::passes) fn is_elementwise(node: &Node) -> bool {
    UnaryFn::of_op(node.op(), 0.0).is_some() || BinaryFn::of_op(node.op()).is_some()
}

fn function(node: &Node) -> Option<Function> {
    let alpha = || node.attrs.float("alpha").unwrap_or(0.2);
    let is_last =
        node.op() != "BiasAdd" || node.attrs.str("data_format").is_ok_and(|f| f == "NHWC");
    match node.inputs.len() {
        1 => UnaryFn::of_op(node.op(), alpha()).map(Function::Unary),
        2..=8 if node.op() == "AddN" => Some(Function::Sum),
        2 if matches!(node.op(), "Tile" | "BroadcastTo") => Some(Function::Repeat),
        2 if is_last => BinaryFn::of_op(node.op()).map(Function::Binary),
        _ => None,
    }
}

impl Function {
    /// Steps of a program.
    fn len(&self, node: &Node) -> usize {
        match self {
            Function::Unary(_) | Function::Binary(_) => 1,
            Function::Sum => node.inputs.len() - 1,
            Function::Repeat => 0,
        }
    }
}

fn can_fuse(view: &View, id: NodeId) -> bool {
    let node = view.node(id);
    let fits = |f: Function| match f {
        Function::Unary(_) => true,
        Function::Binary(f) if !f.needs_same_shape() => true,
        // Others would be broadcast where the op reports an error.
        Function::Binary(_) | Function::Sum => {
            let shape = view.shape(Output::new(id, 0));
            let same = |i: &Output| view.shape(*i) == shape;
            shape.to_full().is_some() && node.inputs.iter().all(same)
        }
        Function::Repeat => repeats_ones(view, id),
    };
    node.outputs[..] == [DType::Float] && view.is_pure(id) && function(node).is_some_and(fits)
}

/// Whether the dimensions that a node repeats have one element.
fn repeats_ones(view: &View, id: NodeId) -> bool {
    let (to, from) = (
        view.shape(Output::new(id, 0)),
        view.shape(view.node(id).inputs[0]),
    );
    let (Some(to), Some(from)) = (to.dims(), from.dims()) else {
        return false;
    };
    let each = |(to, from): (&Option<usize>, &Option<usize>)| {
        to.is_some() && (to == from || *from == Some(1))
    };
    to.len() == from.len() && to.iter().zip(from).all(each)
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
        let is_repeat = matches!(function(view.node(root)), Some(Function::Repeat));
        if taken[root.index()] || is_repeat || !can_fuse(&view, root) {
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
    let steps = |id: NodeId| {
        let node = view.node(id);
        function(node).map_or(0, |f| f.len(node))
    };
    let (mut members, mut n_steps) = (vec![root], steps(root));
    let mut next = 0;
    while next < members.len() {
        let node = view.node(members[next]);
        next += 1;
        for input in &node.inputs {
            let id = input.node;
            if n_steps + steps(id) > MAX_STEPS || members.contains(&id) || taken[id.index()] {
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
                n_steps += steps(id);
                // A producer with several readers may fit once all of them are members.
                next = 0;
            }
        }
    }
    members.sort_unstable_by_key(|m| position[m.index()]);
    // The result is as large as the largest input.
    if !inputs_of(view, &members)
        .iter()
        .any(|i| same_shape(&view.shape(*i), &shape))
    {
        members.retain(|m| !matches!(function(view.node(*m)), Some(Function::Repeat)));
    }
    members
}

/// What members read of others.
fn inputs_of(view: &View, members: &[NodeId]) -> SmallVec<[Output; 4]> {
    let mut inputs: SmallVec<[Output; 4]> = smallvec![];
    for member in members {
        let node = view.node(*member);
        let n = match function(node) {
            Some(Function::Repeat) => 1,
            _ => node.inputs.len(),
        };
        for input in &node.inputs[..n] {
            if !members.contains(&input.node) && !inputs.contains(input) {
                inputs.push(*input);
            }
        }
    }
    inputs
}

fn fused_node(view: &View, ctx: &PassCtx, root: NodeId, members: &[NodeId]) -> Result<Node> {
    let inputs = inputs_of(view, members);
    let external = |o: &Output| inputs.iter().position(|i| i == o);
    // The operand that is the value of each member.
    let mut values: FxHashMap<NodeId, usize> = FxHashMap::default();
    let mut steps = Vec::new();
    for member in members {
        let node = view.node(*member);
        let read = |o: &Output| values.get(&o.node).copied().or_else(|| external(o));
        let operands: Option<Vec<usize>> = match function(node) {
            Some(Function::Repeat) => node
                .inputs
                .first()
                .map(&read)
                .map(|o| o.into_iter().collect()),
            _ => node.inputs.iter().map(read).collect(),
        };
        let operands = operands.ok_or_else(not_elementwise)?;
        let mut push = |step| {
            steps.push(step);
            inputs.len() + steps.len() - 1
        };
        let value = match (function(node), &operands[..]) {
            (Some(Function::Unary(f)), &[a]) => push(Instruction::Unary(f, a)),
            (Some(Function::Binary(f)), &[a, b]) => push(Instruction::Binary(f, a, b)),
            (Some(Function::Sum), &[first, ref others @ ..]) => {
                others.iter().fold(first, |sum, o| {
                    push(Instruction::Binary(BinaryFn::Add, sum, *o))
                })
            }
            (Some(Function::Repeat), &[a]) => a,
            _ => return Err(not_elementwise()),
        };
        values.insert(*member, value);
    }
    let program = ElementwiseProgram::new(steps, inputs.len())?;
    let name = format!("{}{FUSED_SUFFIX}", view.node(root).name);
    let attrs = Attrs::default()
        .with("T", AttrValue::Type(DType::Float))
        .with("N", AttrValue::Int(inputs.len() as i64))
        .with("program", AttrValue::str(&program.encode()));
    let name = view.graph.unique_name(&name);
    ctx.node(name, "_FusedElementwise", attrs, &inputs, &[])
}

#[cold]
fn not_elementwise() -> Status {
    internal!("a fused op is not elementwise")
}
