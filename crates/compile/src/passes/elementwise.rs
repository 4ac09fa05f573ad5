//! Fuses trees of elementwise ops into one pass over memory. A Tile that repeats single elements is not computed: the
//! others read its input. A cheap op of one tensor and smaller ones is computed again by each tree that reads it, which costs
//! less than to write and read its result (rematerialization, as in XLA's loop fusion).

use crate::pass::FUSED_SUFFIX;
use crate::view::{View, same_shape};
use crate::{Jit, Pass, PassCtx};
use ferroflow_base::{Result, Status, internal};
use ferroflow_graph::{Graph, Node, NodeId, Output, Patch, topological_order};
use ferroflow_opdef::{AttrValue, Attrs, BinaryFn, ElementwiseProgram, Instruction, UnaryFn};
use ferroflow_tensor::DType;
use rustc_hash::FxHashMap;
use smallvec::{SmallVec, smallvec};
use std::cmp::Reverse;

pub(crate) const PASS: Pass = Pass {
    name: "elementwise",
    about: "fuses trees of elementwise float ops into single nodes",
    run,
};

/// Longest program that is made.
const MAX_STEPS: usize = 24;
/// Readers of an op that each compute it again, at most.
const MAX_COPIES: usize = 4;
/// Ops that a group computes although others do, at most.
const MAX_COPIED: usize = 8;

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
    /// Whether its op demands inputs of the same shape.
    fn needs_same_shape(&self) -> bool {
        match self {
            Function::Binary(f) => f.needs_same_shape(),
            Function::Sum => true,
            Function::Unary(_) | Function::Repeat => false,
        }
    }

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
        Function::Repeat => repeats_ones(view, id),
        // These would be broadcast where the op reports an error, which the kernel does if the first dimensions
        // differ.
        f if f.needs_same_shape() => {
            let shape = view.shape(Output::new(id, 0));
            let same = |i: &Output| same_shape(&view.shape(*i), &shape);
            node.inputs.iter().all(same)
        }
        _ => true,
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
    // Readers of each node that compute it again.
    let mut copied = vec![0usize; graph.id_bound()];
    let mut groups: Vec<(NodeId, Vec<NodeId>)> = Vec::new();
    for &root in order.iter().rev() {
        let is_repeat = matches!(function(view.node(root)), Some(Function::Repeat));
        let n_readers = view.consumers.of(root).len();
        let is_idle = n_readers > 0 && copied[root.index()] >= n_readers;
        if taken[root.index()] || is_repeat || is_idle || !can_fuse(&view, root) {
            continue;
        }
        let (members, own) = grow(&view, root, &taken, &position);
        if members.len() < 2 {
            continue;
        }
        for &member in &members {
            if own.contains(&member) {
                taken[member.index()] = true;
            } else {
                let readers = view.consumers.of(member).iter();
                copied[member.index()] += readers.filter(|(by, _)| members.contains(by)).count();
            }
        }
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
/// producers of the same shape that only members read, and cheap ones that others read, too. The second list has
/// the former, [`owned`].
fn grow(
    view: &View,
    root: NodeId,
    taken: &[bool],
    position: &[usize],
) -> (Vec<NodeId>, Vec<NodeId>) {
    let shape = view.shape(Output::new(root, 0));
    let steps = |id: NodeId| {
        let node = view.node(id);
        function(node).map_or(0, |f| f.len(node))
    };
    let (mut members, mut own, mut n_steps) = (vec![root], vec![root], steps(root));
    let mut next = 0;
    while next < members.len() {
        let node = view.node(members[next]);
        next += 1;
        for input in &node.inputs {
            let id = input.node;
            if n_steps + steps(id) > MAX_STEPS || members.contains(&id) || taken[id.index()] {
                continue;
            }
            let fits = can_fuse(view, id) && same_shape(&view.shape(*input), &shape);
            let may_copy = members.len() - own.len() < MAX_COPIED && is_cheap(view, id);
            if fits && (only_these_read(view, id, &own) || may_copy) {
                members.push(id);
                n_steps += steps(id);
                own = owned(view, root, &members, position);
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
        own = owned(view, root, &members, position);
    }
    (members, own)
}

/// The members that other groups need not compute, too: only such members read them.
fn owned(view: &View, root: NodeId, members: &[NodeId], position: &[usize]) -> Vec<NodeId> {
    let mut backwards = members.to_vec();
    backwards.sort_unstable_by_key(|m| Reverse(position[m.index()]));
    let mut owned = vec![root];
    for member in backwards {
        if member != root && only_these_read(view, member, &owned) {
            owned.push(member);
        }
    }
    owned
}

fn only_these_read(view: &View, id: NodeId, these: &[NodeId]) -> bool {
    let mut readers = view.consumers.of(id).iter();
    readers.all(|(by, slot)| slot.is_some() && these.contains(by))
}

/// Whether it costs less to compute a node again in each of its readers than to store it: all of them can be fused,
/// and it takes a few instructions for an element of one tensor.
fn is_cheap(view: &View, id: NodeId) -> bool {
    const CHEAP: [BinaryFn; 5] = [
        BinaryFn::Add,
        BinaryFn::Sub,
        BinaryFn::Mul,
        BinaryFn::Maximum,
        BinaryFn::Minimum,
    ];
    let node = view.node(id);
    let is_cheap = match function(node) {
        Some(Function::Unary(f)) => matches!(f, UnaryFn::Neg | UnaryFn::Square | UnaryFn::Relu),
        Some(Function::Binary(f)) => CHEAP.contains(&f),
        Some(Function::Repeat) => true,
        _ => false,
    };
    let shape = view.shape(Output::new(id, 0));
    let is_whole = |i: &&Output| same_shape(&view.shape(**i), &shape);
    let is_small = |i: &Output| same_shape(&view.shape(*i), &shape) || is_vector(view, *i);
    let readers = view.consumers.of(id);
    let joins = |by: NodeId| {
        let fused = view.shape(Output::new(by, 0));
        can_fuse(view, by) && same_shape(&fused, &shape)
    };
    let mut all_readers = readers.iter();
    is_cheap
        && readers.len() <= MAX_COPIES
        && node.inputs.iter().filter(is_whole).count() <= 1
        && (matches!(function(node), Some(Function::Repeat)) || node.inputs.iter().all(is_small))
        && all_readers.all(|(by, slot)| slot.is_some() && joins(*by))
}

/// Whether a tensor is a scalar or a vector.
fn is_vector(view: &View, output: Output) -> bool {
    view.shape(output).rank().is_some_and(|rank| rank < 2)
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
                    push(Instruction::Binary(BinaryFn::AddN, sum, *o))
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
        .with("program", AttrValue::str(&program.encode()))
        .with("checked", AttrValue::Bool(is_checked(view, members)))
        .with("jit", AttrValue::Bool(ctx.jit != Jit::Off));
    let name = view.graph.unique_name(&name);
    ctx.node(name, "_FusedElementwise", attrs, &inputs, &[])
}

/// Whether members that do not broadcast their inputs have ones whose shapes may differ.
fn is_checked(view: &View, members: &[NodeId]) -> bool {
    members.iter().any(|&member| {
        let needs_same = function(view.node(member)).is_some_and(|f| f.needs_same_shape());
        needs_same && view.shape(Output::new(member, 0)).to_full().is_none()
    })
}

#[cold]
fn not_elementwise() -> Status {
    internal!("a fused op is not elementwise")
}
