//! Checks a body before it is loaded, whether it comes from the compiler or from a file.
//!
//! Loading relies on these rules and checks none of them; the engine relies on the plan that follows:
//!
//! 1. *Frames.* The first frame is a function. Each node belongs to one frame. The parent of a loop
//!    comes before it. A loop has no arguments and results, at least one parallel iteration, and is
//!    entered from its parent only; Exit and NextIteration are inside loops.
//! 2. *Sources.* Each input, control input and result has a producer whose outputs arrive in the frame of
//!    the consumer, and the producer has that output; or a constant that exists. The inputs of a Merge
//!    are not constants.
//! 3. *Actions.* Inputs and outputs are as many as the action needs; calls agree with the functions'
//!    arguments and results. Each argument has at most one Arg node.
//! 4. *Sizes.* A Merge has fewer than [`MergeState::MAX_INPUTS`] inputs and control inputs. A node has at
//!    most [`u16::MAX`] outputs, and all functions together have at most [`MAX_ARGS`] arguments.
//! 5. *Cycles* go through an edge from a NextIteration to a Merge.

use super::body::{Action, Body, BodyFrame, FrameIdx, FrameKind, NodeIdx, Source};
use super::merge::MergeState;
use ferroflow_base::{Result, Status, data_loss, topological_order};
use std::collections::HashSet;

/// Most arguments of all functions of a body.
const MAX_ARGS: usize = 1 << 22;

impl Body {
    /// Checks the rules that loading and engines rely on; the source of this module lists them.
    /// Functions that kernels call are not checked.
    ///
    /// # Errors
    /// DATA_LOSS if a rule is broken.
    pub fn verify(&self) -> Result<()> {
        let verifier = Verifier {
            body: self,
            frame_of: self.frames_of_nodes()?,
        };
        for (f, frame) in self.frames.iter().enumerate() {
            verifier.results(FrameIdx::new(f), frame)?;
        }
        let mut args = HashSet::new();
        for (i, node) in self.nodes.iter().enumerate() {
            let own = verifier.frame_of[i];
            let bad = |what: &str| data_loss!("{what}").at_node(&node.info.name, &node.info.op);
            let arrive = node.inputs.iter().all(|s| verifier.arrives(*s, own));
            let mut controls = node.controls.iter();
            if !arrive || !controls.all(|from| verifier.reaches(*from, own)) {
                return Err(bad("an input does not exist or does not reach the node"));
            }
            if !verifier.fits(i) {
                return Err(bad("the node does not fit its inputs and outputs"));
            }
            if let Action::Arg(a) = node.action
                && !args.insert((own, a))
            {
                return Err(bad("the argument is delivered twice"));
            }
        }
        self.check_cycles()
    }

    /// Checks the frames and returns that of each node.
    fn frames_of_nodes(&self) -> Result<Vec<FrameIdx>> {
        if self.frames.first().map(|f| f.kind) != Some(FrameKind::Function) {
            return Err(data_loss!("the first frame is not a function"));
        }
        let n_args = self.frames.iter().map(|f| f.n_args);
        if n_args.fold(0, usize::saturating_add) > MAX_ARGS {
            return Err(data_loss!(
                "the functions have more than {MAX_ARGS} arguments"
            ));
        }
        let mut frame_of = vec![None; self.nodes.len()];
        for (f, frame) in self.frames.iter().enumerate() {
            if let FrameKind::Loop {
                parent,
                parallel_iterations,
            } = frame.kind
                && (parent.index() >= f
                    || parallel_iterations == 0
                    || frame.n_args > 0
                    || !frame.results.is_empty())
            {
                return Err(bad_frame(frame, "invalid loop"));
            }
            for i in &frame.nodes {
                match frame_of.get_mut(i.index()) {
                    Some(own @ None) => *own = Some(FrameIdx::new(f)),
                    _ => return Err(bad_frame(frame, "a node does not exist or has two frames")),
                }
            }
        }
        let frame_of: Option<Vec<FrameIdx>> = frame_of.into_iter().collect();
        frame_of.ok_or_else(|| data_loss!("a node has no frame"))
    }

    fn check_cycles(&self) -> Result<()> {
        // Backwards, from consumers to producers.
        let producers = |i: usize| {
            let is_merge = matches!(self.nodes[i].action, Action::Merge);
            let inputs = self.nodes[i].inputs.iter().filter_map(|s| match s {
                Source::Node(from, _) => Some(from.index()),
                Source::Const(_) => None,
            });
            let controls = self.nodes[i].controls.iter().map(|c| c.index());
            let is_back = move |from: &usize| {
                is_merge && matches!(self.nodes[*from].action, Action::NextIteration)
            };
            inputs.chain(controls).filter(move |from| !is_back(from))
        };
        let mut pending = vec![0; self.nodes.len()];
        for i in 0..self.nodes.len() {
            producers(i).for_each(|from| pending[from] += 1);
        }
        topological_order(0..self.nodes.len(), &mut pending, producers);
        match pending.iter().position(|n| *n > 0) {
            Some(i) => {
                let info = &self.nodes[i].info;
                Err(data_loss!("the node is on a cycle").at_node(&info.name, &info.op))
            }
            None => Ok(()),
        }
    }
}

#[cold]
fn bad_frame(frame: &BodyFrame, what: &str) -> Status {
    data_loss!("frame '{}': {what}", frame.name)
}

struct Verifier<'a> {
    body: &'a Body,
    frame_of: Vec<FrameIdx>,
}

impl Verifier<'_> {
    fn results(&self, f: FrameIdx, frame: &BodyFrame) -> Result<()> {
        let is_set = |r: &Option<Source>| r.is_some_and(|source| self.arrives(source, f));
        match frame.results.iter().position(|r| !is_set(r)) {
            Some(r) => Err(bad_frame(
                frame,
                &format!("result {r} is not set or does not reach the frame"),
            )),
            None => Ok(()),
        }
    }

    /// Whether a node's outputs arrive in `frame`.
    fn reaches(&self, from: NodeIdx, frame: FrameIdx) -> bool {
        let own = self.frame_of.get(from.index());
        own.and_then(|own| self.body.arrives_in(from, *own)) == Some(frame)
    }

    /// Whether a source exists and arrives in `frame`.
    fn arrives(&self, source: Source, frame: FrameIdx) -> bool {
        match source {
            Source::Const(c) => (c as usize) < self.body.consts.len(),
            Source::Node(from, output) => {
                let has_output = |f: &super::BodyNode| usize::from(output) < f.n_outputs;
                self.reaches(from, frame)
                    && self.body.nodes.get(from.index()).is_some_and(has_output)
            }
        }
    }

    fn function(&self, frame: FrameIdx) -> Option<&BodyFrame> {
        let frame = self.body.frames.get(frame.index())?;
        (frame.kind == FrameKind::Function).then_some(frame)
    }

    /// Rules 3 and 4.
    fn fits(&self, i: usize) -> bool {
        let node = &self.body.nodes[i];
        let (n_inputs, n_outputs) = (node.inputs.len(), node.n_outputs);
        let own = &self.body.frames[self.frame_of[i].index()];
        let is_loop = own.kind != FrameKind::Function;
        let calls = |frame: &FrameIdx, n_args: usize| {
            let function = self.function(*frame);
            function.is_some_and(|f| f.n_args == n_args && f.results.len() == n_outputs)
        };
        let shape = (n_inputs, n_outputs);
        let fits = match &node.action {
            Action::Kernel(entry) => shape == (entry.inputs.len(), entry.outputs.len()),
            Action::Arg(a) => {
                shape == (0, 1) && node.controls.is_empty() && (*a as usize) < own.n_args
            }
            Action::Const(c) => shape == (0, 1) && (*c as usize) < self.body.consts.len(),
            Action::Forward => n_inputs == n_outputs,
            Action::Switch => shape == (2, 2),
            Action::SwitchN => n_inputs == 2 && n_outputs > 0,
            Action::Merge => {
                let mut inputs = node.inputs.iter();
                let max = MergeState::MAX_INPUTS;
                (1..max).contains(&n_inputs)
                    && node.controls.len() < max
                    && (1..=2).contains(&n_outputs)
                    && inputs.all(|s| matches!(s, Source::Node(..)))
            }
            Action::Enter { frame, .. } => {
                let kind = self.body.frames.get(frame.index()).map(|f| f.kind);
                let parent = kind.and_then(|kind| match kind {
                    FrameKind::Loop { parent, .. } => Some(parent),
                    FrameKind::Function => None,
                });
                shape == (1, 1) && parent == Some(self.frame_of[i])
            }
            Action::Exit | Action::NextIteration => shape == (1, 1) && is_loop,
            Action::Trigger => shape == (0, 0),
            Action::Send(_) => shape == (1, 0),
            Action::Recv(_) => shape == (0, 1),
            Action::Call(function) => calls(function, n_inputs),
            Action::If {
                then_branch,
                else_branch,
            } => {
                let branches = [then_branch, else_branch];
                n_inputs > 0 && branches.iter().all(|f| calls(f, n_inputs - 1))
            }
            Action::Case(branches) => {
                let mut all = branches.iter();
                n_inputs > 0 && !branches.is_empty() && all.all(|f| calls(f, n_inputs - 1))
            }
            Action::While { cond, body } => {
                let cond = self.function(*cond);
                let tests = cond.is_some_and(|f| f.n_args == n_inputs && f.results.len() == 1);
                tests && n_inputs == n_outputs && calls(body, n_inputs)
            }
        };
        fits && n_outputs <= usize::from(u16::MAX)
    }
}
