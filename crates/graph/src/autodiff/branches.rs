//! The sides of Switch nodes that a value is on.

use crate::{Graph, Node, NodeId, Output, topological_order};
use ferroflow_base::Result;
use ferroflow_opdef::NodeClass;
use rustc_hash::FxHashMap;

/// A side of a conditional, by its position in the list of all; 0 is outside of all.
pub(super) type Branch = usize;

/// One side of a conditional.
#[derive(Clone, Copy)]
pub(super) struct Side {
    /// The predicate.
    pub(super) pred: Output,
    /// The output of the Switch.
    pub(super) slot: usize,
    /// The number of its outputs.
    pub(super) n: usize,
    around: Branch,
    depth: usize,
}

/// The branches of a graph. Those of a loop begin with what the loop itself is in.
#[derive(Default)]
pub(super) struct Branches {
    sides: Vec<Option<Side>>,
    known: FxHashMap<(Branch, Output, usize), Branch>,
    of: FxHashMap<NodeId, Branch>,
}

pub(super) fn is_switch(node: &Node) -> bool {
    node.class() == NodeClass::Switch
}

pub(super) fn is_merge(node: &Node) -> bool {
    node.class() == NodeClass::Merge
}

/// Whether this Merge is where the iterations of a loop begin.
pub(super) fn is_header(graph: &Graph, node: &Node) -> bool {
    let comes_round = |i: &Output| {
        let from = graph.node(i.node);
        matches!(from.class(), NodeClass::NextIteration | NodeClass::Enter)
    };
    is_merge(node) && node.inputs.iter().any(comes_round)
}

/// Whether this Switch ends a loop.
pub(super) fn ends_loop(graph: &Graph, node: &Node) -> bool {
    let pred = node.inputs.get(1);
    is_switch(node) && pred.is_some_and(|p| graph.node(p.node).class() == NodeClass::LoopCond)
}

/// The predicate behind Identity nodes.
pub(super) fn predicate(graph: &Graph, mut pred: Output) -> Output {
    loop {
        let node = graph.node(pred.node);
        match (node.op(), node.inputs.first()) {
            ("Identity", Some(from)) if !is_switch(graph.node(from.node)) => pred = *from,
            _ => return pred,
        }
    }
}

impl Branches {
    pub(super) fn new(graph: &Graph) -> Result<Branches> {
        let mut this = Branches {
            sides: vec![None],
            ..Default::default()
        };
        if !graph.iter().any(|(_, n)| is_switch(n)) {
            return Ok(this);
        }
        for id in topological_order(graph)? {
            let node = graph.node(id);
            let data = node.inputs.iter().map(|i| this.of(graph, *i));
            let branch = if is_header(graph, node) {
                data.take(1).next().unwrap_or(0)
            } else if is_merge(node) {
                let all: Vec<Branch> = data.collect();
                let mut all = all.into_iter();
                let first = all.next().unwrap_or(0);
                all.fold(first, |a, b| this.around_both(a, b))
            } else {
                let controls = node.controls.iter();
                let controls = controls.map(|c| this.of.get(c).copied().unwrap_or(0));
                let all: Vec<Branch> = data.chain(controls).collect();
                all.into_iter().max_by_key(|b| this.depth(*b)).unwrap_or(0)
            };
            if is_switch(node) && !ends_loop(graph, node) {
                let pred = predicate(graph, node.inputs[1]);
                for slot in 0..node.outputs.len() {
                    this.enter(branch, pred, slot, node.outputs.len());
                }
            }
            if branch != 0 {
                this.of.insert(id, branch);
            }
        }
        Ok(this)
    }

    fn enter(&mut self, around: Branch, pred: Output, slot: usize, n: usize) {
        let (next, depth) = (self.sides.len(), self.depth(around) + 1);
        self.known.entry((around, pred, slot)).or_insert_with(|| {
            self.sides.push(Some(Side {
                pred,
                slot,
                n,
                around,
                depth,
            }));
            next
        });
    }

    fn depth(&self, branch: Branch) -> usize {
        self.side(branch).map_or(0, |s| s.depth)
    }

    fn side(&self, branch: Branch) -> Option<Side> {
        self.sides.get(branch).copied().flatten()
    }

    fn around_both(&self, mut a: Branch, mut b: Branch) -> Branch {
        while a != b {
            let deeper = if self.depth(a) >= self.depth(b) {
                &mut a
            } else {
                &mut b
            };
            *deeper = self.side(*deeper).map_or(0, |s| s.around);
        }
        a
    }

    /// Notes that a new node is where `like` is.
    pub(super) fn note(&mut self, node: NodeId, like: NodeId) {
        if let Some(branch) = self.of.get(&like).copied() {
            self.of.insert(node, branch);
        }
    }

    /// The branch that a value is in.
    pub(super) fn of(&self, graph: &Graph, value: Output) -> Branch {
        let own = self.of.get(&value.node).copied().unwrap_or(0);
        let node = graph.node(value.node);
        if !is_switch(node) || ends_loop(graph, node) || node.inputs.len() < 2 {
            return own;
        }
        let pred = predicate(graph, node.inputs[1]);
        let side = self.known.get(&(own, pred, value.slot as usize));
        side.copied().unwrap_or(own)
    }

    /// The sides from those of `root` down to `branch`, outermost first.
    pub(super) fn path(&self, root: Branch, branch: Branch) -> Vec<Side> {
        let mut path = Vec::new();
        let mut at = branch;
        while at != root {
            let Some(side) = self.side(at) else { break };
            path.push(side);
            at = side.around;
        }
        path.reverse();
        path
    }

    /// The predicate that decides between these branches, if there is one: itself, how many sides it has,
    /// and the side of each branch.
    pub(super) fn merge_predicate(
        &self,
        branches: &[Branch],
    ) -> Option<(Output, usize, Vec<usize>)> {
        let sides: Option<Vec<Side>> = branches.iter().map(|b| self.side(*b)).collect();
        let sides = sides?;
        let first = sides.first()?;
        let fits = |s: &Side| s.pred == first.pred && s.around == first.around;
        let slots: Vec<usize> = sides.iter().map(|s| s.slot).collect();
        let all_differ = (0..slots.len()).all(|i| !slots[..i].contains(&slots[i]));
        (sides.iter().all(fits) && all_differ).then_some((first.pred, first.n, slots))
    }
}
