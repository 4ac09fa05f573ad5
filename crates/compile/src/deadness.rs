//! When values are alive: in dataflow control flow, the branches that are not taken and the loops that have ended pass dead
//! values on.

use crate::view::has_dead_outputs;
use ferroflow_base::Result;
use ferroflow_graph::{
    Frames, Graph, Node, NodeClass, NodeId, Output, loop_frames, topological_order,
};
use ferroflow_tensor::DType;
use rustc_hash::FxHashSet;
use smallvec::SmallVec;

/// Most conditions of a node that are kept.
const MAX_ATOMS: usize = 32;
/// Rounds before all loops count as irregular.
const MAX_ROUNDS: usize = 4;

/// A condition for a value to be alive.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Atom {
    /// The loop was entered.
    Loop(usize),
    /// An iteration of the loop began.
    Iteration(usize),
    /// The loop ended.
    Done(usize),
    /// The predicate of a Switch has this value.
    Side(Output, bool),
    /// This output is alive, for reasons that are not followed further.
    Alive(Output),
}

/// A conjunction of necessary conditions; when `exact` it is sufficient too.
#[derive(Clone, Default, Debug)]
pub(crate) struct Condition {
    atoms: SmallVec<[Atom; 4]>,
    exact: bool,
}

impl Condition {
    pub(crate) fn always() -> Self {
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

    pub(crate) fn and(&mut self, other: &Condition) {
        self.exact &= other.exact;
        other.atoms.iter().for_each(|a| self.add(*a));
    }

    /// Whether it is known to be sufficient.
    pub(crate) fn is_exact(&self) -> bool {
        self.exact
    }

    /// Whether the other one holds whenever this one does.
    pub(crate) fn implies(&self, other: &Condition) -> bool {
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

/// Whether a node passes a value to the next iteration.
pub(crate) fn is_next(node: &Node) -> bool {
    node.class() == NodeClass::NextIteration
}

/// The conditions for the nodes of a graph to be alive.
pub(crate) struct Deadness<'a> {
    graph: &'a Graph,
    frames: Frames,
    of: Vec<Condition>,
    /// Merges of loops that do not get a value in every iteration that LoopCond allows.
    irregular: FxHashSet<NodeId>,
}

impl<'a> Deadness<'a> {
    pub(crate) fn new(graph: &'a Graph) -> Result<Self> {
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

    /// The loops of the graph.
    pub(crate) fn frames(&self) -> &Frames {
        &self.frames
    }

    /// When a node is alive.
    pub(crate) fn node(&self, id: NodeId) -> &Condition {
        &self.of[id.index()]
    }

    /// Whether a loop's Merge gets a value in every iteration that LoopCond allows.
    pub(crate) fn is_regular(&self, merge: NodeId) -> bool {
        !self.irregular.contains(&merge)
    }

    /// When an output is alive, beyond its node.
    pub(crate) fn output(&self, output: Output) -> Condition {
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

    /// When an Exit of `from`, which `decision` passes out of a loop, is alive: all Exits of the iteration in which LoopCond is
    /// false are, so that it takes what the loop takes to begin.
    fn after_loop(&self, frame: usize, from: Output, decision: Output) -> Condition {
        let predicate = self.predicate(decision);
        let is_inside = |atom: &Atom| match atom {
            Atom::Loop(f) | Atom::Iteration(f) => *f == frame,
            Atom::Side(p, _) => *p == predicate,
            _ => false,
        };
        let mut inside = self.output(from);
        inside.and(self.node(predicate.node));
        let mut result = Condition {
            exact: inside.exact,
            ..Condition::always()
        };
        let outside = inside.atoms.iter().filter(|a| !is_inside(a));
        outside.for_each(|a| result.add(*a));
        let is_own = |merge: &NodeId| self.frames.of(*merge) == Some(frame);
        if self.irregular.iter().any(is_own) {
            result.add(Atom::Done(frame));
        }
        result
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
                // What enters a loop for all its iterations is alive in each, a variable not.
                if let Some(frame) = self.frames.of(id)
                    && node.inputs.iter().any(is_back)
                {
                    result.add(Atom::Iteration(frame));
                }
                if self.irregular.contains(&id) {
                    result.add(Atom::Alive(Output::new(id, 0)));
                }
            }
            NodeClass::Exit => {
                let from = node.inputs[0];
                let switch = self.graph.node(from.node);
                let by_cond = switch.class() == NodeClass::Switch
                    && from.slot == 0
                    && self.is_loop_cond(self.predicate(switch.inputs[1]));
                match self.frames.of(id).filter(|_| by_cond) {
                    Some(frame) => result = self.after_loop(frame, from, switch.inputs[1]),
                    None => result.add(Atom::Alive(Output::new(id, 0))),
                }
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

    /// Whether LoopCond `cond` is alive in the first iteration exactly if all `enters` of its loop are.
    pub(crate) fn starts_with(&self, cond: NodeId, enters: &[NodeId]) -> bool {
        let own = self.node(cond);
        let mut entered = Condition::always();
        enters.iter().for_each(|e| entered.and(self.node(*e)));
        if let Some(frame) = self.frames.of(cond) {
            entered.add(Atom::Iteration(frame));
        }
        own.exact && entered.exact && own.implies(&entered) && entered.implies(own)
    }
}
