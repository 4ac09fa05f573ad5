//! Static schedules: the order in which one thread runs the nodes of a frame, found when the plan is made.
//!
//! The order is that of an engine which runs ready nodes depth first. Where a frame has one, an engine runs its
//! nodes without counting edges. Dead nodes are skipped, so conditionals need no other order; a loop runs, all
//! iterations one after the other, behind the last of its Enters.

use super::body::{Action, FrameIdx, FrameKind, NodeIdx};
use super::plan::{Edge, EdgeKind, Frame, Node, Plan};
use ferroflow_opdef::Cost;
use std::collections::HashMap;

/// The order of a frame's nodes.
pub struct StaticSchedule {
    /// The nodes but for Args. The Merges that begin an iteration of a loop come first.
    pub order: Vec<NodeIdx>,
    /// Whether a node can be dead.
    pub has_dead: bool,
    /// The highest cost of a node, also of the loops and functions that the frame leads to.
    pub cost: Cost,
    /// What the arguments of a function lead to.
    pub args: Vec<ArgEdge>,
    /// The same where the arguments are the variables of a loop, in the slots of the results.
    pub variables: VariableEdges,
}

/// A slot that an argument is passed to: of an input or a result.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ArgEdge {
    /// Position of the argument.
    pub arg: u32,
    /// The slot in the function's frame.
    pub slot: u32,
    /// Whether the value is passed nowhere else, later, so that it may be moved.
    pub last: bool,
}

/// What the variables of a loop lead to in its body. A variable that the body returns unchanged stays where it is.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub struct VariableEdges {
    /// Slots of inputs.
    pub inputs: Vec<ArgEdge>,
    /// Slots of other results.
    pub exchanged: Vec<ArgEdge>,
    /// Variables that the body does not read.
    pub unused: Vec<u32>,
}

impl VariableEdges {
    fn of(edges: &[ArgEdge], frame: &Frame) -> VariableEdges {
        let own = |arg: u32| frame.first_result + arg;
        let n = frame.args.len().min(frame.n_results) as u32;
        let mut stays = vec![false; n as usize];
        let mut is_read = stays.clone();
        for edge in edges.iter().filter(|edge| edge.arg < n) {
            stays[edge.arg as usize] |= edge.slot == own(edge.arg);
            is_read[edge.arg as usize] = true;
        }
        let others = edges.iter().filter(|e| e.arg < n && e.slot != own(e.arg));
        let others = others.map(|edge| ArgEdge {
            last: edge.last && !stays[edge.arg as usize],
            ..*edge
        });
        let (inputs, exchanged) = others.partition(|edge| edge.slot < frame.first_result);
        VariableEdges {
            inputs,
            exchanged,
            unused: (0..n).filter(|arg| !is_read[*arg as usize]).collect(),
        }
    }
}

impl Plan {
    /// Finds the schedules of all frames, once their edges are known.
    pub(super) fn schedule_frames(&mut self) {
        let arrivals = Arrivals::of(self);
        // A loop's frame comes behind the one that it is entered from.
        for f in (0..self.frames.len()).rev() {
            let walk = Walk::new(self, FrameIdx::new(f), &arrivals);
            self.frames[f].schedule = walk.and_then(Walk::finish);
        }
        for f in 0..self.frames.len() {
            // Whether all Enters of a loop arrive before it runs is known of the frame around it.
            if let FrameKind::Loop { parent, .. } = self.frames[f].kind
                && self.frames[parent.index()].schedule.is_none()
            {
                self.frames[f].schedule = None;
            }
        }
        let callers = self.callers();
        self.spread_cost(Cost::Expensive, &callers);
        self.spread_cost(Cost::BySize, &callers);
    }

    /// The frames that lead to each frame.
    fn callers(&self) -> Vec<Vec<usize>> {
        let mut callers = vec![Vec::new(); self.frames.len()];
        for (f, frame) in self.frames.iter().enumerate() {
            for node in &self.nodes[frame.nodes()] {
                for callee in callees(&node.action) {
                    callers[callee.index()].push(f);
                }
            }
        }
        callers
    }

    /// Frames that lead to one with a cost of `cost` or more have that cost at least.
    fn spread_cost(&mut self, cost: Cost, callers: &[Vec<usize>]) {
        let costs = |f: &Frame| f.schedule.as_ref().map_or(Cost::Async, |s| s.cost);
        let mut found: Vec<usize> = (0..self.frames.len())
            .filter(|f| level(costs(&self.frames[*f])) >= level(cost))
            .collect();
        while let Some(callee) = found.pop() {
            for &caller in &callers[callee] {
                if let Some(schedule) = &mut self.frames[caller].schedule
                    && level(schedule.cost) < level(cost)
                {
                    schedule.cost = cost;
                    found.push(caller);
                }
            }
        }
    }
}

/// Costs in their order.
fn level(cost: Cost) -> u8 {
    match cost {
        Cost::Cheap => 0,
        Cost::BySize => 1,
        Cost::Expensive | Cost::Async => 2,
    }
}

/// The frames that a node calls or enters.
fn callees<K>(action: &Action<K>) -> Vec<FrameIdx> {
    match action {
        &Action::Enter { frame, .. } => vec![frame],
        &Action::Call(frame) => vec![frame],
        &Action::If {
            then_branch,
            else_branch,
        } => vec![then_branch, else_branch],
        Action::Case(branches) => branches.to_vec(),
        &Action::While { cond, body } => vec![cond, body],
        _ => Vec::new(),
    }
}

/// What arrives at Merges and loops.
struct Arrivals {
    /// The edges into each Merge.
    merges: Vec<u32>,
    /// The Enters and NextIterations that lead into each loop.
    sources: HashMap<FrameIdx, Vec<NodeIdx>>,
}

impl Arrivals {
    fn of(plan: &Plan) -> Arrivals {
        let mut merges = vec![0; plan.nodes.len()];
        for edge in &plan.edges {
            if matches!(edge.kind, EdgeKind::MergeData | EdgeKind::MergeControl) {
                merges[edge.node.index()] += 1;
            }
        }
        let mut sources = HashMap::<_, Vec<_>>::new();
        for (f, frame) in plan.frames.iter().enumerate() {
            for i in frame.nodes() {
                let into = match plan.nodes[i].action {
                    Action::Enter { frame, .. } => frame,
                    Action::NextIteration => FrameIdx::new(f),
                    _ => continue,
                };
                sources.entry(into).or_default().push(NodeIdx::new(i));
            }
        }
        Arrivals { merges, sources }
    }
}

/// A run of a frame without values.
struct Walk<'a> {
    plan: &'a Plan,
    frame: &'a Frame,
    first: usize,
    /// Edges that are missing, by position in the frame.
    pending: Vec<u32>,
    ready: Vec<NodeIdx>,
    order: Vec<NodeIdx>,
    /// Enters of each loop that are missing.
    enters: HashMap<FrameIdx, u32>,
    n_args: usize,
    has_dead: bool,
    cost: Cost,
}

impl<'a> Walk<'a> {
    /// Starts where a call or an iteration does. `None` if the order depends on values.
    fn new(plan: &'a Plan, index: FrameIdx, arrivals: &Arrivals) -> Option<Walk<'a>> {
        let frame = &plan.frames[index.index()];
        let nodes = &plan.nodes[frame.nodes()];
        let mut walk = Walk {
            plan,
            frame,
            first: frame.first_node as usize,
            pending: frame.pending.clone(),
            ready: Vec::new(),
            order: Vec::with_capacity(nodes.len()),
            enters: HashMap::new(),
            n_args: frame.args.iter().flatten().count(),
            // What enters a loop may be dead.
            has_dead: matches!(frame.kind, FrameKind::Loop { .. }),
            cost: Cost::Cheap,
        };
        for (i, node) in nodes.iter().enumerate() {
            // A Merge runs when all its edges have arrived.
            if matches!(node.action, Action::Merge) {
                walk.pending[i] = arrivals.merges[walk.first + i];
            }
        }
        nodes.iter().all(|node| walk.admits(node)).then_some(())?;
        match frame.kind {
            FrameKind::Function => {
                walk.ready.extend(frame.roots.iter().rev());
                for arg in frame.args.iter().flatten() {
                    walk.deliver(*arg)?;
                }
            }
            // A root inside a loop never runs.
            FrameKind::Loop { .. } if !frame.roots.is_empty() => return None,
            FrameKind::Loop { .. } => walk.begin_iteration(arrivals.sources.get(&index)?)?,
        }
        Some(walk)
    }

    fn position(&self, node: NodeIdx) -> Option<usize> {
        let at = node.index().checked_sub(self.first)?;
        (at < self.pending.len()).then_some(at)
    }

    /// Whether a node can be part of a schedule.
    fn admits(&mut self, node: &Node) -> bool {
        match &node.action {
            Action::Kernel(_) => {
                if level(node.cost) > level(self.cost) {
                    self.cost = node.cost;
                }
                true
            }
            Action::Switch | Action::SwitchN | Action::Merge => {
                self.has_dead = true;
                true
            }
            &Action::Enter { frame, .. } => {
                let inner = &self.plan.frames[frame.index()];
                self.has_dead = true;
                self.enters.insert(frame, inner.n_enters);
                inner.schedule.is_some()
            }
            Action::Call(_) | Action::If { .. } | Action::Case(_) | Action::While { .. } => true,
            Action::Arg(_) | Action::Const(_) | Action::Forward | Action::Trigger => true,
            Action::Exit | Action::NextIteration => true,
            Action::Send(_) | Action::Recv(_) => false,
        }
    }

    /// Makes the Merges of loop variables ready, and delivers what enters every iteration.
    fn begin_iteration(&mut self, sources: &[NodeIdx]) -> Option<()> {
        let mut from_outside = vec![0; self.pending.len()];
        for source in sources {
            let node = &self.plan.nodes[source.index()];
            let is_constant =
                matches!(node.action, Action::Enter { is_constant, .. } if is_constant);
            for edge in self.plan.edges_of(node) {
                match edge.kind {
                    EdgeKind::MergeData if !is_constant => {
                        from_outside[self.position(edge.node)?] += 1;
                    }
                    EdgeKind::Data | EdgeKind::Control | EdgeKind::Trigger if is_constant => {
                        self.arrived(edge)?;
                    }
                    _ => return None,
                }
            }
        }
        for at in (0..from_outside.len()).filter(|at| from_outside[*at] > 0) {
            // What it forwards must not depend on the iteration's own nodes.
            (self.pending[at] == from_outside[at]).then_some(())?;
            self.pending[at] = 0;
            self.order.push(NodeIdx::new(self.first + at));
        }
        for i in 0..self.order.len() {
            self.deliver(self.order[i])?;
        }
        Some(())
    }

    /// Passes on the outputs of a node, which arrive in the frame.
    fn deliver(&mut self, node: NodeIdx) -> Option<()> {
        let plan = self.plan;
        plan.edges_of(&plan.nodes[node.index()])
            .iter()
            .filter(|edge| edge.kind != EdgeKind::Result)
            .try_for_each(|edge| self.arrived(edge))
    }

    fn arrived(&mut self, edge: &Edge) -> Option<()> {
        let at = self.position(edge.node)?;
        self.pending[at] = self.pending[at].checked_sub(1)?;
        if self.pending[at] == 0 {
            self.ready.push(edge.node);
        }
        Some(())
    }

    /// Runs every node. `None` if one never gets ready.
    fn finish(mut self) -> Option<StaticSchedule> {
        let plan = self.plan;
        while let Some(node) = self.ready.pop() {
            self.order.push(node);
            match plan.nodes[node.index()].action {
                Action::Enter { frame, .. } => self.enter(frame)?,
                // They arrive in another iteration, or where the loop was entered.
                Action::NextIteration | Action::Exit => {}
                _ => self.deliver(node)?,
            }
        }
        let is_complete = self.order.len() + self.n_args == self.pending.len()
            && self.enters.values().all(|missing| *missing == 0);
        let args = self.arg_edges();
        is_complete.then(|| StaticSchedule {
            order: self.order,
            has_dead: self.has_dead,
            cost: self.cost,
            variables: VariableEdges::of(&args, self.frame),
            args,
        })
    }

    /// What the arguments lead to; the edges of each one in their order.
    fn arg_edges(&self) -> Vec<ArgEdge> {
        let edges_of = |(arg, node): (usize, &Option<NodeIdx>)| {
            let edges = node.map(|node| self.plan.edges_of(&self.plan.nodes[node.index()]));
            let edges = edges.unwrap_or_default().iter();
            edges
                .filter(|edge| edge.kind.is_data())
                .map(move |edge| ArgEdge {
                    arg: arg as u32,
                    slot: edge.slot,
                    last: edge.last,
                })
        };
        self.frame
            .args
            .iter()
            .enumerate()
            .flat_map(edges_of)
            .collect()
    }

    /// One of a loop's Enters; with the last one the loop runs.
    fn enter(&mut self, frame: FrameIdx) -> Option<()> {
        let missing = self.enters.get_mut(&frame)?;
        *missing = missing.checked_sub(1)?;
        if *missing > 0 {
            return Some(());
        }
        let plan = self.plan;
        let inner = &plan.frames[frame.index()];
        for node in &inner.schedule.as_ref()?.order {
            if matches!(plan.nodes[node.index()].action, Action::Exit) {
                self.deliver(*node)?;
            }
        }
        Some(())
    }
}
