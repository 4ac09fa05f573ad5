//! The parts of a loop that can become a While.

use crate::deadness::{Deadness, is_next};
use ferroflow_graph::{Consumers, Graph, NodeClass, NodeId, Output};
use rustc_hash::{FxHashMap, FxHashSet};

/// What is known of a graph.
pub(super) struct View<'a> {
    pub(super) graph: &'a Graph,
    pub(super) consumers: &'a Consumers,
    /// All nodes in topological order.
    pub(super) order: &'a [NodeId],
    pub(super) deadness: &'a Deadness<'a>,
}

/// A loop as TensorFlow's `tf.while_loop` writes it.
pub(super) struct Loop {
    pub(super) loop_cond: NodeId,
    /// What LoopCond reads.
    pub(super) predicate: Output,
    pub(super) variables: Vec<Variable>,
    /// The Enters of values that all iterations read.
    pub(super) invariants: Vec<NodeId>,
    pub(super) cond: Side,
    pub(super) body: Side,
    /// All its nodes, Enters and Exits included.
    pub(super) nodes: Vec<NodeId>,
}

/// A variable of a loop.
pub(super) struct Variable {
    pub(super) enter: NodeId,
    pub(super) next: NodeId,
    pub(super) exits: Vec<NodeId>,
}

/// The condition or the body.
#[derive(Default)]
pub(super) struct Side {
    /// The number of the argument that each output of a node of the loop is.
    pub(super) args: FxHashMap<Output, usize>,
    /// The nodes, in topological order.
    pub(super) nodes: Vec<NodeId>,
    /// Nodes that run whether a result needs them or not.
    pub(super) effects: Vec<NodeId>,
}

impl Loop {
    /// The loop of these nodes and Enters. `None` if it has another form.
    pub(super) fn of(view: &View, members: Vec<NodeId>, enters: Vec<NodeId>) -> Option<Loop> {
        let graph = view.graph;
        let mut conds = members
            .iter()
            .filter(|m| graph.node(**m).class() == NodeClass::LoopCond);
        let (loop_cond, None) = (*conds.next()?, conds.next()) else {
            return None;
        };
        let finder = Finder {
            view,
            members: members.iter().copied().collect(),
            loop_cond,
        };
        let predicate = *graph.node(loop_cond).inputs.first()?;
        let (variables, mut cond_args) = finder.variables(&members, &enters)?;
        let mut merges = cond_args.keys();
        let is_regular = merges.all(|merge| view.deadness.is_regular(merge.node));
        if !is_regular || !view.deadness.starts_with(loop_cond, &enters) {
            return None;
        }
        let (mut variables, invariants) = finder.invariants(variables, &enters)?;
        for (i, enter) in invariants.iter().enumerate() {
            cond_args.insert(Output::new(*enter, 0), variables.len() + i);
        }
        let mut body_args = cond_args.clone();
        finder.switches(&members, &mut variables, &mut body_args)?;
        let alive = finder.alive(&variables)?;
        let cond = finder.cond(predicate, cond_args, &alive)?;
        let body = finder.body(&variables, body_args, &alive, &cond)?;
        let found = Loop {
            loop_cond,
            predicate,
            variables,
            invariants,
            cond,
            body,
            nodes: members.into_iter().chain(enters).collect(),
        };
        finder.leaves_nothing(&found).then_some(found)
    }
}

struct Finder<'a> {
    view: &'a View<'a>,
    members: FxHashSet<NodeId>,
    loop_cond: NodeId,
}

impl Finder<'_> {
    fn class(&self, id: NodeId) -> NodeClass {
        self.view.graph.node(id).class()
    }

    /// Whether a node moves values of the loop's variables.
    fn is_structure(&self, id: NodeId, args: &FxHashMap<Output, usize>) -> bool {
        match self.class(id) {
            NodeClass::Enter | NodeClass::Exit | NodeClass::NextIteration => true,
            NodeClass::LoopCond => true,
            NodeClass::Merge => args.contains_key(&Output::new(id, 0)),
            NodeClass::Switch => self.is_of_loop(id),
            _ => false,
        }
    }

    /// Whether a Switch is decided by the loop's condition.
    fn is_of_loop(&self, switch: NodeId) -> bool {
        let predicate = self.view.graph.node(switch).inputs.get(1);
        predicate.is_some_and(|p| p.node == self.loop_cond)
    }

    /// The variables, and the argument that each Merge is.
    fn variables(
        &self,
        members: &[NodeId],
        enters: &[NodeId],
    ) -> Option<(Vec<Variable>, FxHashMap<Output, usize>)> {
        let mut variables = Vec::new();
        let mut args = FxHashMap::default();
        for &id in members {
            let node = self.view.graph.node(id);
            if node.class() != NodeClass::Merge {
                continue;
            }
            let is_back = |i: &Output| is_next(self.view.graph.node(i.node));
            if !node.inputs.iter().any(is_back) {
                continue;
            }
            let (enter, next) = match node.inputs[..] {
                [a, b] if is_back(&b) => (a.node, b.node),
                [a, b] if is_back(&a) => (b.node, a.node),
                _ => return None,
            };
            let is_entered = enters.contains(&enter) && !self.is_constant(enter);
            let is_plain = node.op() == "Merge" && node.controls.is_empty();
            let mut readers = self.view.consumers.of(id).iter();
            if !is_entered || !is_plain || readers.any(|(_, slot)| *slot == Some(1)) {
                return None;
            }
            let exits = Vec::new();
            args.insert(Output::new(id, 0), variables.len());
            variables.push(Variable { enter, next, exits });
        }
        // What else reads the first value or the next one would run in one iteration only.
        let is_merge = |(id, slot): &(NodeId, Option<u32>)| {
            slot.is_some() && args.contains_key(&Output::new(*id, 0))
        };
        let feeds_merges = |id: NodeId| self.view.consumers.of(id).iter().all(is_merge);
        let is_regular = |v: &Variable| feeds_merges(v.enter) && feeds_merges(v.next);
        variables
            .iter()
            .all(is_regular)
            .then_some((variables, args))
    }

    fn is_constant(&self, enter: NodeId) -> bool {
        let node = self.view.graph.node(enter);
        node.attrs.bool("is_constant").unwrap_or(false)
    }

    /// The Enters of values that are not variables.
    fn invariants(
        &self,
        variables: Vec<Variable>,
        enters: &[NodeId],
    ) -> Option<(Vec<Variable>, Vec<NodeId>)> {
        let is_first = |id: &NodeId| variables.iter().any(|v| v.enter == *id);
        let others = enters.iter().copied().filter(|e| !is_first(e));
        let others: Vec<NodeId> = others.collect();
        let is_plain = |id: &NodeId| self.view.graph.node(*id).op() == "Enter";
        let is_regular = enters.iter().all(is_plain) && others.iter().all(|e| self.is_constant(*e));
        is_regular.then_some((variables, others))
    }

    /// Finds the Exits, and the argument that each Switch passes to the body.
    fn switches(
        &self,
        members: &[NodeId],
        variables: &mut [Variable],
        args: &mut FxHashMap<Output, usize>,
    ) -> Option<()> {
        let mut n_exits = 0;
        for &id in members {
            let node = self.view.graph.node(id);
            n_exits += usize::from(node.class() == NodeClass::Exit);
            if node.class() != NodeClass::Switch || !self.is_of_loop(id) {
                continue;
            }
            let [value, _] = node.inputs[..] else {
                return None;
            };
            let variable = args.get(&value).copied().filter(|v| *v < variables.len())?;
            if node.op() != "Switch" {
                return None;
            }
            for (reader, slot) in self.view.consumers.of(id) {
                if *slot == Some(0) {
                    let exit = self.view.graph.node(*reader);
                    let is_plain = exit.op() == "Exit" && exit.controls.is_empty();
                    is_plain.then(|| variables[variable].exits.push(*reader))?;
                }
            }
            args.insert(Output::new(id, 1), variable);
        }
        let found: usize = variables.iter().map(|v| v.exits.len()).sum();
        // Only Switches read LoopCond.
        let mut readers = self.view.consumers.of(self.loop_cond).iter();
        let is_read_well = readers.all(|(reader, slot)| {
            let node = self.view.graph.node(*reader);
            slot.is_none() || node.class() == NodeClass::Switch && self.is_of_loop(*reader)
        });
        (found == n_exits && is_read_well).then_some(())
    }

    /// The nodes that are dead once the condition is false. `None` if the next value of a variable is not one.
    fn alive(&self, variables: &[Variable]) -> Option<FxHashSet<NodeId>> {
        let mut alive = FxHashSet::default();
        // A Merge is dead if all its inputs are.
        let mut missing: FxHashMap<NodeId, usize> = FxHashMap::default();
        let of_loop = |m: &&NodeId| self.class(**m) == NodeClass::Switch && self.is_of_loop(**m);
        let mut stack: Vec<(NodeId, Option<u32>)> = Vec::new();
        for switch in self.members.iter().filter(of_loop) {
            let readers = self.view.consumers.of(*switch).iter();
            stack.extend(readers.filter(|r| r.1 == Some(1)));
        }
        while let Some((id, slot)) = stack.pop() {
            match self.class(id) {
                NodeClass::Exit | NodeClass::LoopCond | NodeClass::Enter => return None,
                NodeClass::Switch if self.is_of_loop(id) => return None,
                // It runs whether what it waits for is dead or not.
                NodeClass::ControlTrigger => continue,
                NodeClass::Merge => {
                    let n_inputs = self.view.graph.node(id).inputs.len();
                    let missing = missing.entry(id).or_insert(n_inputs);
                    *missing -= usize::from(slot.is_some());
                    if *missing > 0 {
                        continue;
                    }
                }
                _ => {}
            }
            if alive.insert(id) && self.class(id) != NodeClass::NextIteration {
                stack.extend(self.view.consumers.of(id));
            }
        }
        let ends = |v: &Variable| alive.contains(&v.next);
        variables.iter().all(ends).then_some(alive)
    }

    fn cond(
        &self,
        predicate: Output,
        args: FxHashMap<Output, usize>,
        alive: &FxHashSet<NodeId>,
    ) -> Option<Side> {
        let effects = self.view.graph.node(self.loop_cond).controls.to_vec();
        let mut side = Side {
            args,
            ..Side::default()
        };
        let found = self.closure(&side, &[predicate], &effects, &FxHashSet::default())?;
        if found.iter().any(|id| alive.contains(id)) {
            return None;
        }
        self.finish(&mut side, &found, &effects);
        Some(side)
    }

    fn body(
        &self,
        variables: &[Variable],
        args: FxHashMap<Output, usize>,
        alive: &FxHashSet<NodeId>,
        cond: &Side,
    ) -> Option<Side> {
        let mut side = Side {
            args,
            ..Side::default()
        };
        let nexts = || variables.iter().map(|v| self.view.graph.node(v.next));
        let results: Vec<Output> = nexts()
            .map(|n| n.inputs.first().copied())
            .collect::<Option<_>>()?;
        let is_inner = |id: &&NodeId| self.class(**id) != NodeClass::NextIteration;
        let mut roots: Vec<NodeId> = alive.iter().filter(is_inner).copied().collect();
        roots.sort_unstable();
        let awaited: FxHashSet<NodeId> = nexts().flat_map(|n| n.controls.iter().copied()).collect();
        let tested: FxHashSet<NodeId> = cond.nodes.iter().copied().collect();
        let found = self.closure(&side, &results, &roots, &tested)?;
        // What is alive when the condition is false runs once more: in the condition, or without anyone seeing it.
        let is_unseen = |id: NodeId| tested.contains(&id) || self.cannot_fail(id);
        let is_exact = |id: &NodeId| alive.contains(id) || !self.has_effects(*id) && is_unseen(*id);
        if !found.iter().all(is_exact) {
            return None;
        }
        let runs = |id: &&NodeId| awaited.contains(*id) || self.has_effects(**id);
        let effects: Vec<NodeId> = roots.iter().filter(runs).copied().collect();
        self.finish(&mut side, &found, &effects);
        Some(side)
    }

    /// Whether a node has results for all inputs.
    fn cannot_fail(&self, id: NodeId) -> bool {
        let node = self.view.graph.node(id);
        match node.class() {
            NodeClass::Const | NodeClass::Identity | NodeClass::NoOp => true,
            NodeClass::ControlTrigger => true,
            _ => matches!(
                node.op(),
                "Shape" | "Size" | "Rank" | "ZerosLike" | "OnesLike"
            ),
        }
    }

    fn has_effects(&self, id: NodeId) -> bool {
        self.view.graph.is_target(id) || self.view.graph.node(id).def.flags.stateful
    }

    /// What these outputs and nodes depend on inside the loop. A node does not wait for those in `earlier`.
    fn closure(
        &self,
        side: &Side,
        outputs: &[Output],
        nodes: &[NodeId],
        earlier: &FxHashSet<NodeId>,
    ) -> Option<FxHashSet<NodeId>> {
        let mut found = FxHashSet::default();
        let mut stack: Vec<NodeId> = Vec::new();
        let is_arg = |output: &&Output| !side.args.contains_key(output);
        let waits = |id: &&NodeId| !self.is_structure(**id, &side.args) && !earlier.contains(*id);
        stack.extend(outputs.iter().filter(is_arg).map(|o| o.node));
        stack.extend(nodes.iter().filter(waits));
        while let Some(id) = stack.pop() {
            if !found.insert(id) {
                continue;
            }
            let node = self.view.graph.node(id);
            let is_inside = self.members.contains(&id) && !self.is_structure(id, &side.args);
            if !is_inside && !node.is_free_constant() {
                return None;
            }
            let moves = [
                NodeClass::Send,
                NodeClass::Recv,
                NodeClass::Arg,
                NodeClass::Retval,
            ];
            if moves.contains(&node.class()) {
                return None;
            }
            stack.extend(node.inputs.iter().filter(is_arg).map(|o| o.node));
            stack.extend(node.controls.iter().filter(waits));
        }
        Some(found)
    }

    /// Sets the nodes and effects of a side.
    fn finish(&self, side: &mut Side, found: &FxHashSet<NodeId>, effects: &[NodeId]) {
        let nodes = self.view.order.iter().filter(|id| found.contains(*id));
        side.nodes = nodes.copied().collect();
        let runs = |id: &&NodeId| effects.contains(id) || self.view.graph.is_target(**id);
        side.effects = side.nodes.iter().filter(runs).copied().collect();
    }

    /// Whether every node with effects is part of the condition or the body.
    fn leaves_nothing(&self, found: &Loop) -> bool {
        let sides = [&found.cond, &found.body];
        let kept = sides.iter().flat_map(|s| s.nodes.iter().copied());
        let kept: FxHashSet<NodeId> = kept.collect();
        let is_done = |id: &NodeId| {
            kept.contains(id) || self.is_structure(*id, &found.body.args) || !self.has_effects(*id)
        };
        let device = |id: &NodeId| &self.view.graph.node(*id).device;
        let is_near = |id: &NodeId| device(id) == device(&self.loop_cond);
        self.members.iter().all(|id| is_done(id) && is_near(id))
    }
}
