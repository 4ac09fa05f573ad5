//! Checks a body before it is loaded, whoever made it.
//!
//! The engine relies on these rules and checks none of them:
//!
//! 1. *Arrays.* There is a name for each node. Frames divide the nodes, nodes divide the edges and, in
//!    each frame, the input slots: all consecutive, without gaps. The first frame is a function.
//! 2. *Frames.* The parent of a loop comes before it. A loop has no arguments and results, at least one
//!    parallel iteration, and is entered from its parent only; Exit and NextIteration are inside loops.
//! 3. *Edges.* An edge stays in its producer's frame, unless it leaves an Enter (into the loop) or an
//!    Exit (out of it). It carries an output that the producer has, or none and names output and slot 0.
//!    Its kind is the one for its consumer; a consumer has inputs, unless it only waits.
//! 4. *Slots and results.* Each input slot either holds a constant or is written by exactly one edge;
//!    those of a Merge hold no constants. Each result of a function is set exactly once.
//! 5. *Derived values* (pending counts, roots, arguments, last edges, forward slots, numbers of Enters)
//!    are what follows from nodes and edges.
//! 6. *Actions.* Inputs and outputs are as many as the action needs; calls agree with the functions'
//!    arguments and results. A Merge has fewer than [`MergeState::MAX_INPUTS`] inputs and control inputs.
//! 7. *Cycles* go through an edge from a NextIteration to a Merge.
//! 8. *Constants* that slots, nodes and results refer to exist.

use super::body::{Action, Body, Edge, EdgeKind, Frame, FrameIdx, FrameKind, KernelEntry, Node};
use super::derive::Derived;
use super::merge::MergeState;
use ferroflow_base::{Result, Status, data_loss};
use ferroflow_opdef::Value;

impl Body {
    /// Checks the rules that engines rely on; the source of this module lists them. Functions that
    /// kernels call are not looked at.
    ///
    /// # Errors
    /// DATA_LOSS if a rule is broken.
    pub fn verify(&self) -> Result<()> {
        let frame_of = arrays(self)?;
        let verifier = Verifier {
            body: self,
            frame_of,
        };
        for (f, frame) in self.frames.iter().enumerate() {
            verifier.frame(f, frame)?;
        }
        verifier.edges()?;
        for i in 0..self.nodes.len() {
            verifier.action(i)?;
        }
        derived(self)?;
        verifier.cycles()
    }
}

/// Rule 1; returns the frame of each node.
fn arrays(body: &Body) -> Result<Vec<usize>> {
    if body.info.len() != body.nodes.len() {
        return Err(data_loss!("a node of the function has no name"));
    }
    if body.frames.first().map(|f| f.kind) != Some(FrameKind::Function) {
        return Err(data_loss!("the first frame is not a function"));
    }
    let mut frame_of = Vec::with_capacity(body.nodes.len());
    let mut first_edge = 0;
    for (f, frame) in body.frames.iter().enumerate() {
        let nodes = body.nodes.get(frame.nodes());
        let nodes = nodes.filter(|_| frame.first_node as usize == frame_of.len());
        let nodes = nodes.ok_or_else(|| bad_frame(frame, "its nodes are not consecutive"))?;
        let mut first_slot = 0;
        for node in nodes {
            if (node.first_slot as usize, node.first_edge as usize) != (first_slot, first_edge) {
                return Err(bad_frame(frame, "slots or edges are not consecutive"));
            }
            first_slot += node.n_inputs as usize;
            first_edge += node.n_edges as usize;
            frame_of.push(f);
        }
        if first_slot != frame.slots.len() {
            return Err(bad_frame(frame, "slots are left over"));
        }
    }
    match frame_of.len() == body.nodes.len() && first_edge == body.edges.len() {
        true => Ok(frame_of),
        false => Err(data_loss!("nodes or edges are left over")),
    }
}

#[cold]
fn bad_frame(frame: &Frame, what: &str) -> Status {
    data_loss!("frame '{}': {what}", frame.name)
}

/// Rule 5.
fn derived(body: &Body) -> Result<()> {
    let derived = Derived::of(body)?;
    for (frame, expected) in body.frames.iter().zip(&derived.frames) {
        let n_enters = match frame.kind {
            FrameKind::Loop { n_enters, .. } => n_enters,
            FrameKind::Function => 0,
        };
        if frame.pending != expected.pending
            || frame.roots != expected.roots
            || frame.args != expected.args
            || n_enters != expected.n_enters
        {
            return Err(bad_frame(frame, "counts do not agree with the edges"));
        }
    }
    let mut last = body.edges.iter().map(|e| e.last).zip(&derived.last);
    let mut slots = body.nodes.iter().map(|n| n.forward_slot);
    let mut slots = slots.by_ref().zip(&derived.forward_slots);
    let agree = last.all(|(is, expected)| is == *expected)
        && slots.all(|(is, expected)| is == *expected)
        && body.max_outputs == derived.max_outputs;
    match agree {
        true => Ok(()),
        false => Err(data_loss!("forwarding does not agree with the edges")),
    }
}

struct Verifier<'a> {
    body: &'a Body,
    frame_of: Vec<usize>,
}

impl Verifier<'_> {
    #[cold]
    fn bad_node(&self, i: usize, what: &str) -> Status {
        match self.body.info.get(i) {
            Some(info) => data_loss!("{what}").at_node(&info.name, &info.op),
            None => data_loss!("{what}"),
        }
    }

    fn function(&self, frame: FrameIdx) -> Option<&Frame> {
        let frame = self.body.frames.get(frame.index())?;
        (frame.kind == FrameKind::Function).then_some(frame)
    }

    /// Rule 2.
    fn frame(&self, f: usize, frame: &Frame) -> Result<()> {
        let FrameKind::Loop {
            parent,
            parallel_iterations,
            ..
        } = frame.kind
        else {
            return Ok(());
        };
        let is_valid = parent.index() < f
            && parallel_iterations > 0
            && frame.args.is_empty()
            && frame.n_results == 0;
        match is_valid {
            true => Ok(()),
            false => Err(bad_frame(frame, "invalid loop")),
        }
    }

    /// The frame that the outputs of node `i` arrive in.
    fn arrives_in(&self, i: usize) -> Option<usize> {
        let own = *self.frame_of.get(i)?;
        match self.body.nodes.get(i)?.action {
            Action::Enter { frame, .. } => Some(frame.index()),
            Action::Exit => match self.body.frames.get(own)?.kind {
                FrameKind::Loop { parent, .. } => Some(parent.index()),
                FrameKind::Function => None,
            },
            _ => Some(own),
        }
    }

    /// Rules 3, 4 and 8.
    fn edges(&self) -> Result<()> {
        let body = self.body;
        // How often each slot is written, and each result set, frame by frame.
        let mut written: Vec<Vec<bool>> = Vec::with_capacity(body.frames.len());
        let mut results: Vec<Vec<bool>> = Vec::with_capacity(body.frames.len());
        let is_const = |c: u32| (c as usize) < body.consts.len();
        for frame in &body.frames {
            let missing = || bad_frame(frame, "a constant does not exist");
            let mut slots = Vec::with_capacity(frame.slots.len());
            for slot in &frame.slots {
                slots.push(match slot {
                    Value::Empty => false,
                    Value::Const(c) if is_const(*c) => true,
                    _ => return Err(missing()),
                });
            }
            written.push(slots);
            // Each result has an edge or a constant: a count beyond that is not worth its memory.
            if frame.n_results > body.edges.len() + frame.const_results.len() {
                return Err(bad_frame(frame, "a result is not set"));
            }
            let mut set = vec![false; frame.n_results];
            for (result, constant) in &frame.const_results {
                match set.get_mut(*result as usize) {
                    Some(set @ false) if is_const(*constant) => *set = true,
                    _ => return Err(missing()),
                }
            }
            results.push(set);
        }
        for (i, node) in body.nodes.iter().enumerate() {
            let bad = || self.bad_node(i, "an edge is invalid");
            for edge in body.edges_of(node) {
                let arrival = self.arrives_in(i).ok_or_else(bad)?;
                self.edge(node, edge, arrival).ok_or_else(bad)?;
                let list = match edge.kind {
                    EdgeKind::Result => &mut results,
                    EdgeKind::Data | EdgeKind::MergeData => &mut written,
                    _ => continue,
                };
                let list = list.get_mut(arrival).ok_or_else(bad)?;
                match list.get_mut(edge.slot as usize) {
                    Some(set @ false) => *set = true,
                    _ => return Err(self.bad_node(i, "an output is written twice")),
                }
            }
        }
        for (frame, (written, results)) in body.frames.iter().zip(written.iter().zip(&results)) {
            if !written.iter().chain(results).all(|set| *set) {
                return Err(bad_frame(frame, "an input or result is not set"));
            }
        }
        Ok(())
    }

    /// Whether an edge of `node` that arrives in frame `arrival` is one.
    fn edge(&self, node: &Node<Box<KernelEntry>>, edge: &Edge, arrival: usize) -> Option<()> {
        let has_output = match edge.kind.is_data() {
            true => edge.output < node.n_outputs,
            false => edge.output == 0 && edge.slot == 0,
        };
        if edge.kind == EdgeKind::Result {
            let function = self.function(FrameIdx::new(arrival))?;
            let is_set = (edge.slot as usize) < function.n_results && edge.node.index() == 0;
            return (is_set && has_output).then_some(());
        }
        let to = edge.node.index();
        let consumer = self.body.nodes.get(to)?;
        let fits = match consumer.action {
            Action::Merge => matches!(edge.kind, EdgeKind::MergeData | EdgeKind::MergeControl),
            Action::Trigger => edge.kind == EdgeKind::Trigger,
            Action::Arg(_) => false,
            _ => matches!(edge.kind, EdgeKind::Data | EdgeKind::Control),
        };
        let is_own = !edge.kind.is_data() || consumer.slots().contains(&(edge.slot as usize));
        let is_here = self.frame_of.get(to) == Some(&arrival);
        (has_output && fits && is_own && is_here).then_some(())
    }

    /// Rule 6.
    fn action(&self, i: usize) -> Result<()> {
        let node = &self.body.nodes[i];
        let (n_inputs, n_outputs) = (node.n_inputs as usize, usize::from(node.n_outputs));
        let own = &self.body.frames[self.frame_of[i]];
        let is_loop = own.kind != FrameKind::Function;
        let calls = |frame: FrameIdx, n_args: usize| {
            let function = self.function(frame);
            function.is_some_and(|f| f.args.len() == n_args && f.n_results == n_outputs)
        };
        let shape = (n_inputs, n_outputs);
        let is_valid = match &node.action {
            Action::Kernel(entry) => shape == (entry.inputs.len(), entry.outputs.len()),
            Action::Arg(_) => shape == (0, 1) && !is_loop,
            Action::Const(c) => shape == (0, 1) && (*c as usize) < self.body.consts.len(),
            Action::Forward => n_inputs == n_outputs,
            Action::Switch => shape == (2, 2),
            Action::SwitchN => n_inputs == 2 && n_outputs > 0,
            Action::Merge => {
                let slots = &own.slots[node.slots()];
                let reads_const = slots.iter().any(|s| matches!(s, Value::Const(_)));
                let max = MergeState::MAX_INPUTS;
                let n_controls = own.pending.get(i - own.first_node as usize);
                let n_controls = n_controls.map_or(max, |bits| *bits as usize / 2);
                let is_small = n_inputs < max && n_controls < max;
                n_inputs > 0 && (1..=2).contains(&n_outputs) && is_small && !reads_const
            }
            Action::Enter { frame, .. } => {
                let kind = self.body.frames.get(frame.index()).map(|f| f.kind);
                let is_parent = |kind| {
                    matches!(kind, FrameKind::Loop { parent, .. }
                        if parent.index() == self.frame_of[i])
                };
                shape == (1, 1) && kind.is_some_and(is_parent)
            }
            Action::Exit | Action::NextIteration => shape == (1, 1) && is_loop,
            Action::Trigger => shape == (0, 0),
            Action::Call(function) => calls(*function, n_inputs),
            Action::If {
                then_branch,
                else_branch,
            } => {
                let branches = [*then_branch, *else_branch];
                n_inputs > 0 && branches.iter().all(|f| calls(*f, n_inputs - 1))
            }
            Action::Case(branches) => {
                let all = branches.iter().all(|f| calls(*f, n_inputs.wrapping_sub(1)));
                n_inputs > 0 && !branches.is_empty() && all
            }
            Action::While { cond, body } => {
                let cond = self.function(*cond);
                let tests = cond.is_some_and(|f| f.args.len() == n_inputs && f.n_results == 1);
                tests && n_inputs == n_outputs && calls(*body, n_inputs)
            }
        };
        match is_valid {
            true => Ok(()),
            false => Err(self.bad_node(i, "the node does not fit its inputs and outputs")),
        }
    }

    /// Rule 7.
    fn cycles(&self) -> Result<()> {
        let body = self.body;
        let edges = |i: usize| {
            let node = &body.nodes[i];
            let is_next = matches!(node.action, Action::NextIteration);
            let edges = body.edges_of(node).iter();
            edges.filter(move |e| match e.kind {
                EdgeKind::Result => false,
                EdgeKind::MergeData | EdgeKind::MergeControl => !is_next,
                _ => true,
            })
        };
        let mut left = vec![0u32; body.nodes.len()];
        for i in 0..body.nodes.len() {
            edges(i).for_each(|e| left[e.node.index()] += 1);
        }
        let mut open: Vec<usize> = (0..left.len()).filter(|i| left[*i] == 0).collect();
        let mut n_done = 0;
        while let Some(i) = open.pop() {
            n_done += 1;
            for edge in edges(i) {
                let to = edge.node.index();
                left[to] -= 1;
                if left[to] == 0 {
                    open.push(to);
                }
            }
        }
        match left.iter().position(|n| *n > 0) {
            Some(i) if n_done < left.len() => Err(self.bad_node(i, "the node is on a cycle")),
            _ => Ok(()),
        }
    }
}
