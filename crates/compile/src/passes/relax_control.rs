//! Relaxes the control dependencies of constants inside branches and loops.
//!
//! In dataflow control flow a constant of a branch waits for the branch's pivot, so that it is dead
//! when the branch is not taken, and a constant of a loop passes through an Enter. A reader that
//! has another input which is dead whenever the constant is can read the plain constant: it is then
//! known when kernels are built, and nothing is passed along at run time.

use crate::pass::constant_node;
use crate::view::{has_dead_outputs, moves_values};
use crate::{Pass, PassCtx};
use ferroflow_base::Result;
use ferroflow_graph::{
    Frames, Graph, Node, NodeClass, NodeId, Output, Patch, loop_frames, topological_order,
};
use ferroflow_tensor::DType;
use rustc_hash::{FxHashMap, FxHashSet};
use smallvec::SmallVec;

pub(crate) const PASS: Pass = Pass {
    name: "relax_control",
    about: "lets readers inside branches and loops read constants directly",
    run,
};

/// Most conditions of a node that are kept.
const MAX_ATOMS: usize = 32;
/// Rounds before all loops count as irregular.
const MAX_ROUNDS: usize = 4;

/// A condition for a value to be alive.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Atom {
    /// The loop was entered.
    Loop(usize),
    /// The loop ended.
    Done(usize),
    /// The predicate of a Switch has this value.
    Side(Output, bool),
    /// This output is alive, for reasons that are not followed further.
    Alive(Output),
}

/// A conjunction of necessary conditions; when `exact` it is sufficient too.
#[derive(Clone, Default, Debug)]
struct Condition {
    atoms: SmallVec<[Atom; 4]>,
    exact: bool,
}

impl Condition {
    fn always() -> Self {
        Condition {
            atoms: SmallVec::new(),
            exact: true,
        }
    }

    fn add(&mut self, atom: Atom) {
        if let Err(at) = self.atoms.binary_search(&atom) {
            if self.atoms.len() < MAX_ATOMS {
                self.atoms.insert(at, atom);
            } else {
                self.exact = false;
            }
        }
    }

    fn and(&mut self, other: &Condition) {
        self.exact &= other.exact;
        other.atoms.iter().for_each(|a| self.add(*a));
    }

    fn implies(&self, other: &Condition) -> bool {
        other.atoms.iter().all(|a| self.atoms.contains(a))
    }

    /// The condition that holds whenever one of both does.
    fn or(&self, other: &Condition) -> Condition {
        let common = |a: &&Atom| other.atoms.contains(a);
        let atoms: SmallVec<[Atom; 4]> = self.atoms.iter().filter(common).copied().collect();
        // p and not p: the two sides of one predicate.
        let exact = match (self.only(&atoms), other.only(&atoms)) {
            (Some(Atom::Side(p, a)), Some(Atom::Side(q, b))) => {
                self.exact && other.exact && p == q && a != b
            }
            _ => false,
        };
        Condition { atoms, exact }
    }

    /// The one atom that is not among `common`.
    fn only(&self, common: &[Atom]) -> Option<Atom> {
        let mut own = self.atoms.iter().filter(|a| !common.contains(a));
        own.next().copied().filter(|_| own.next().is_none())
    }
}

fn is_next(node: &Node) -> bool {
    node.class() == NodeClass::NextIteration
}

struct Deadness<'a> {
    graph: &'a Graph,
    frames: Frames,
    of: Vec<Condition>,
    /// Merges of loops that do not get a value in every iteration that LoopCond allows.
    irregular: FxHashSet<NodeId>,
}

impl<'a> Deadness<'a> {
    fn new(graph: &'a Graph) -> Result<Self> {
        let mut this = Deadness {
            graph,
            frames: loop_frames(graph)?,
            of: vec![Condition::default(); graph.id_bound()],
            irregular: FxHashSet::default(),
        };
        let order = topological_order(graph)?;
        let merges: Vec<(NodeId, NodeId)> = graph
            .iter()
            .filter(|(_, n)| n.class() == NodeClass::Merge)
            .flat_map(|(id, n)| n.inputs.iter().map(move |i| (id, i.node)))
            .filter(|(_, from)| is_next(graph.node(*from)))
            .collect();
        for round in 0.. {
            for &id in &order {
                this.of[id.index()] = this.condition(id);
            }
            let before = this.irregular.len();
            for &(merge, next) in &merges {
                if round >= MAX_ROUNDS || !this.comes_every_time(merge, next) {
                    this.irregular.insert(merge);
                }
            }
            if this.irregular.len() == before {
                break;
            }
        }
        Ok(this)
    }

    /// Whether a loop's Merge gets a value in exactly those iterations that LoopCond allows.
    fn comes_every_time(&self, merge: NodeId, next: NodeId) -> bool {
        let (own, back) = (&self.of[merge.index()], &self.of[next.index()]);
        let by_cond = |atom: &Atom| match atom {
            Atom::Side(predicate, true) => self.is_loop_cond(*predicate),
            _ => false,
        };
        let allowed = |a: &&Atom| own.atoms.contains(a) || by_cond(a);
        back.exact && back.atoms.iter().filter(allowed).count() == back.atoms.len()
    }

    /// When an output is alive, beyond its node.
    fn output(&self, output: Output) -> Condition {
        let node = self.graph.node(output.node);
        if is_next(node) {
            // What holds of it is of the iteration before.
            let mut condition = Condition::always();
            condition.add(Atom::Alive(output));
            return condition;
        }
        let mut condition = self.of[output.node.index()].clone();
        if has_dead_outputs(node) {
            // A _SwitchN has a side for each number, a _Recv has none.
            let predicate = node.inputs.get(1);
            let is_bool = |p: &&Output| self.graph.dtype(**p) == Some(DType::Bool);
            condition.add(match predicate.filter(is_bool) {
                Some(p) => Atom::Side(self.predicate(*p), output.slot == 1),
                None => Atom::Alive(output),
            });
        }
        condition
    }

    /// The output that a truth value was forwarded from.
    fn predicate(&self, mut output: Output) -> Output {
        loop {
            let node = self.graph.node(output.node);
            match node.class() {
                NodeClass::Identity if node.controls.is_empty() => {
                    output = node.inputs[output.slot as usize];
                }
                _ => return output,
            }
        }
    }

    fn is_loop_cond(&self, output: Output) -> bool {
        self.graph.node(output.node).class() == NodeClass::LoopCond
    }

    fn condition(&self, id: NodeId) -> Condition {
        let node = self.graph.node(id);
        let is_back = |i: &Output| is_next(self.graph.node(i.node));
        let mut result = Condition::always();
        match node.class() {
            NodeClass::Merge => {
                let mut inputs = node.inputs.iter().filter(|i| !is_back(i));
                if let Some(first) = inputs.next() {
                    result = self.output(*first);
                }
                for other in inputs {
                    result = result.or(&self.output(*other));
                }
                if self.irregular.contains(&id) {
                    result.add(Atom::Alive(Output::new(id, 0)));
                }
            }
            NodeClass::Exit => {
                // All Exits of the iteration in which LoopCond is false are alive.
                let from = node.inputs[0];
                let switch = self.graph.node(from.node);
                let by_cond = switch.class() == NodeClass::Switch
                    && from.slot == 0
                    && self.is_loop_cond(self.predicate(switch.inputs[1]));
                result.add(match self.frames.of(id).filter(|_| by_cond) {
                    Some(frame) => Atom::Done(frame),
                    None => Atom::Alive(Output::new(id, 0)),
                });
            }
            _ => node
                .inputs
                .iter()
                .for_each(|i| result.and(&self.output(*i))),
        }
        for control in &node.controls {
            result.and(&self.of[control.index()]);
        }
        if node.class() == NodeClass::Enter
            && let Some(inside) = self.frames.after(self.graph, id)
        {
            result.add(Atom::Loop(inside));
        }
        if !result.exact {
            // The node itself is what it takes.
            result.atoms.truncate(MAX_ATOMS - 1);
            result.exact = true;
            result.add(Atom::Alive(Output::new(id, 0)));
        }
        result
    }
}

/// The nodes that cannot run before a node with effects, seen from inside their branch or
/// iteration.
fn behind_effects(graph: &Graph) -> Result<Vec<bool>> {
    let mut behind = vec![false; graph.id_bound()];
    // The same, seen from inside the iteration: what follows a conditional also follows its effects.
    let mut in_iteration = behind.clone();
    for id in topological_order(graph)? {
        let node = graph.node(id);
        let follows = |seen: &[bool]| node.predecessors().any(|b| seen[b.index()]);
        let is_next = |i: &Output| graph.node(i.node).class() == NodeClass::NextIteration;
        let (branch, iteration) = match node.class() {
            NodeClass::Enter | NodeClass::Arg => (false, false),
            NodeClass::Merge if node.inputs.iter().any(is_next) => (false, false),
            NodeClass::Merge => (follows(&in_iteration), follows(&in_iteration)),
            NodeClass::Switch => (false, follows(&in_iteration)),
            // The iterations may have had effects.
            NodeClass::Exit => (true, true),
            _ if node.def.flags.stateful => (true, true),
            _ => (follows(&behind), follows(&in_iteration)),
        };
        (behind[id.index()], in_iteration[id.index()]) = (branch, iteration);
    }
    Ok(behind)
}

/// The constant that `output` is, if it is one that may be dead: one that waits, or one that enters
/// a loop.
fn pinned(graph: &Graph, behind: &[bool], output: Output) -> Option<NodeId> {
    let node = graph.node(output.node);
    match node.class() {
        // It waits for more than its branch.
        NodeClass::Const if behind[output.node.index()] => None,
        NodeClass::Const if !node.controls.is_empty() => Some(output.node),
        NodeClass::Enter if node.attrs.bool("is_constant").unwrap_or(false) => {
            let input = *node.inputs.first()?;
            match graph.node(input.node).class() {
                NodeClass::Const => Some(input.node),
                NodeClass::Enter => pinned(graph, behind, input),
                _ => None,
            }
        }
        NodeClass::Identity if !behind[output.node.index()] => {
            pinned(graph, behind, node.inputs[output.slot as usize])
        }
        NodeClass::Merge if output.slot == 0 => carried_constant(graph, output.node),
        NodeClass::Switch => carried_constant(graph, node.inputs[0].node),
        _ => None,
    }
}

/// The constant that a loop's Merge always outputs: it begins as a constant, and the body passes it
/// on as it is.
fn carried_constant(graph: &Graph, merge: NodeId) -> Option<NodeId> {
    let node = graph.node(merge);
    let (NodeClass::Merge, [first, back]) = (node.class(), &node.inputs[..]) else {
        return None;
    };
    let next = graph.node(back.node);
    if !is_next(next) {
        return None;
    }
    let mut value = *next.inputs.first()?;
    let switch = loop {
        let source = graph.node(value.node);
        match source.class() {
            NodeClass::Identity if source.controls.is_empty() => {
                value = source.inputs[value.slot as usize];
            }
            NodeClass::Switch if value.slot == 1 => break source,
            _ => return None,
        }
    };
    let enter = graph.node(first.node);
    let is_own = switch.inputs[0] == Output::new(merge, 0) && enter.class() == NodeClass::Enter;
    let begins = graph.node(enter.inputs.first().filter(|_| is_own)?.node);
    begins.is_free_constant().then(|| enter.inputs[0].node)
}

pub(crate) fn run(graph: &mut Graph, ctx: &PassCtx) -> Result<()> {
    if !moves_values(graph) {
        return Ok(());
    }
    let deadness = Deadness::new(graph)?;
    let behind = behind_effects(graph)?;
    let mut changes: Vec<(NodeId, usize, NodeId)> = Vec::new();
    for (id, node) in graph.iter() {
        let class = node.class();
        if class.is_control_flow() || node.op() == "Identity" || class == NodeClass::Retval {
            continue;
        }
        // A constant that another input stands in for cannot stand in for that one.
        let constants: SmallVec<[Option<NodeId>; 4]> = node
            .inputs
            .iter()
            .map(|i| pinned(graph, &behind, *i))
            .collect();
        if constants.iter().all(Option::is_none) {
            continue;
        }
        let mut others = Condition::always();
        for (input, constant) in node.inputs.iter().zip(&constants) {
            if constant.is_none() {
                others.and(&deadness.output(*input));
            }
        }
        for control in &node.controls {
            others.and(&deadness.of[control.index()]);
        }
        for (i, constant) in constants.iter().enumerate() {
            if let Some(constant) = constant {
                let own = deadness.output(node.inputs[i]);
                if own.exact && others.implies(&own) {
                    changes.push((id, i, *constant));
                }
            }
        }
    }
    let mut patch = Patch::new();
    let mut plain: FxHashMap<NodeId, NodeId> = FxHashMap::default();
    for (id, input, constant) in changes {
        let to = match plain.get(&constant) {
            Some(to) => *to,
            None => {
                let source = graph.node(constant);
                let to = if source.controls.is_empty() {
                    constant
                } else {
                    let name = graph.unique_name(&format!("{}/unpinned", source.name));
                    let value = source.attrs.tensor("value")?.clone();
                    patch.add(graph, constant_node(ctx, name, value)?)?
                };
                plain.insert(constant, to);
                to
            }
        };
        patch.edit(graph, id).inputs[input] = Output::new(to, 0);
    }
    patch.apply(graph);
    Ok(())
}
