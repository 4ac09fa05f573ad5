//! Loops: iterations in a window of at most `parallel_iterations`, as in TensorFlow's executor.

use crate::kernel::Env;
use crate::propagate::are_small;
use crate::state::{Owner, StepState, TaggedNode};
use ferroflow_base::{Result, internal, invalid_argument};
use ferroflow_opdef::Value;
use ferroflow_program::{Action, Frame, FrameIdx, FrameKind, NodeIdx, StaticSchedule};
use ferroflow_tensor::Tensor;
use std::collections::VecDeque;

/// A loop in progress. Invariants: `window` is not empty and holds consecutive iterations, the
/// oldest first; `deferred` is empty unless the window is full; `dead_exits` are of the newest
/// iteration.
#[derive(Default)]
pub(crate) struct Loop {
    frame: Option<FrameIdx>,
    parent: u32,
    window: VecDeque<u32>,
    /// Number of the oldest iteration.
    first: u64,
    pending_enters: u32,
    /// Values for the iteration after the newest.
    deferred: Vec<(NodeIdx, Tensor)>,
    /// Constant Enters that have arrived; `None` when dead.
    invariants: Vec<(NodeIdx, Option<Tensor>)>,
    dead_exits: Vec<NodeIdx>,
    /// Exits that were alive.
    live_exits: Vec<NodeIdx>,
    /// What has entered a loop that may run by its schedule; it begins with the last Enter. The Enter, whether it is
    /// constant, its value; `None` when dead.
    held: Vec<(NodeIdx, bool, Option<Tensor>)>,
    /// Whether a NextIteration of the iteration at hand was alive, if the loop runs by its schedule.
    pub(crate) continues: bool,
}

/// All loops of a step, with those that can be reused.
#[derive(Default)]
pub(crate) struct Loops {
    all: Vec<Loop>,
    free: Vec<u32>,
}

impl Loops {
    /// The iteration that loop `id` was entered from.
    pub(crate) fn parent_of(&self, id: u32) -> u32 {
        self.all[id as usize].parent
    }

    pub(crate) fn clear(&mut self) {
        self.all.clear();
        self.free.clear();
    }
}

impl StepState {
    pub(crate) fn loop_mut(&mut self, id: u32) -> &mut Loop {
        &mut self.loops.all[id as usize]
    }

    /// The loop `frame` entered from iteration `parent`; it begins with the first Enter.
    fn loop_entered(&mut self, env: &Env, parent: u32, frame: FrameIdx) -> Result<u32> {
        let children = &self.iterations[parent as usize].children;
        if let Some((_, id)) = children.iter().find(|(f, _)| *f == frame) {
            return Ok(*id);
        }
        self.check_size()?;
        let id = self.loops.free.pop().unwrap_or_else(|| {
            self.loops.all.push(Loop::default());
            (self.loops.all.len() - 1) as u32
        });
        let is_scheduled = env.uses_schedule(&env.plan.frames[frame.index()], || true);
        let first = self.new_iteration(env.plan, frame, Owner::Loop(id), 0, is_scheduled);
        let new = self.loop_mut(id);
        (new.frame, new.parent) = (Some(frame), parent);
        (new.first, new.pending_enters) = (0, env.plan.frames[frame.index()].n_enters);
        new.window.push_back(first);
        let parent = &mut self.iterations[parent as usize];
        parent.children.push((frame, id));
        parent.outstanding += 1;
        Ok(id)
    }

    /// Passes `outputs[0]` of an Enter into its loop. Returns whether it was the last one that the loop waited for.
    pub(crate) fn enter(
        &mut self,
        env: &Env,
        item: TaggedNode,
        frame: FrameIdx,
        is_constant: bool,
        alive: bool,
    ) -> Result<bool> {
        let id = self.loop_entered(env, item.iter, frame)?;
        let lp = &mut self.loops.all[id as usize];
        lp.pending_enters = lp.pending_enters.saturating_sub(1);
        let waits = lp.pending_enters > 0;
        let front = lp.window.front().copied();
        let front = front.ok_or_else(|| internal!("an Enter came too late"))?;
        if self.iterations[front as usize].is_scheduled {
            let value = std::mem::take(&mut self.outputs[0]).into_tensor();
            let value = value.filter(|_| alive);
            self.loop_mut(id).held.push((item.node, is_constant, value));
            if waits {
                return Ok(false);
            }
            if self.begin_held(env, id, front)? {
                self.resume_schedule(front);
                return Ok(true);
            }
        } else {
            self.pass_into_loop(env, id, item.node, is_constant, alive)?;
        }
        // The loop may be done by now: nothing happens in it when all that enters is dead.
        let lp = &self.loops.all[id as usize];
        if let Some(&front) = lp.window.front()
            && self.iterations[front as usize].outstanding == 0
        {
            self.finish_iterations(env, front)?;
        }
        Ok(!waits)
    }

    /// Passes `outputs[0]` of an Enter to the first iteration, or to all.
    fn pass_into_loop(
        &mut self,
        env: &Env,
        id: u32,
        node: NodeIdx,
        is_constant: bool,
        alive: bool,
    ) -> Result<()> {
        let lp = &mut self.loops.all[id as usize];
        if !is_constant {
            let first = lp.window.front().copied().filter(|_| lp.first == 0);
            let first = first.ok_or_else(|| internal!("an Enter came too late"))?;
            self.propagate_liveness(env, node, first, alive);
            return Ok(());
        }
        let value = std::mem::take(&mut self.outputs[0]).into_tensor();
        lp.invariants.push((node, value.clone()));
        for i in 0..lp.window.len() {
            let iter = self.loops.all[id as usize].window[i];
            self.outputs[0] = value.clone().into();
            self.propagate_liveness(env, node, iter, alive);
        }
        Ok(())
    }

    /// Passes everything into a loop that waited for its last Enter. Returns whether it runs by its schedule: if what
    /// entered is too small for tasks of their own.
    fn begin_held(&mut self, env: &Env, id: u32, first: u32) -> Result<bool> {
        let mut held = std::mem::take(&mut self.loop_mut(id).held);
        let frame = &env.plan.frames[self.iterations[first as usize].frame.index()];
        let is_small = || are_small(held.iter().filter_map(|(_, _, value)| value.as_ref()));
        let is_scheduled = env.uses_schedule(frame, is_small);
        self.iterations[first as usize].is_scheduled = is_scheduled;
        if !is_scheduled {
            self.reset_pending(first, frame);
        }
        for (node, is_constant, value) in held.drain(..) {
            let alive = value.is_some();
            self.outputs[0] = value.into();
            self.pass_into_loop(env, id, node, is_constant, alive)?;
        }
        self.loop_mut(id).held = held;
        Ok(is_scheduled)
    }

    /// Passes `outputs` of a node on, alive or dead.
    pub(crate) fn propagate_liveness(&mut self, env: &Env, from: NodeIdx, iter: u32, alive: bool) {
        let is_scheduled = self.iterations[iter as usize].is_scheduled;
        match (alive, is_scheduled) {
            (true, false) => self.propagate::<true>(env, from, iter),
            (false, false) => self.propagate::<false>(env, from, iter),
            (true, true) => self.deliver::<true>(env, from, iter),
            (false, true) => self.deliver::<false>(env, from, iter),
        }
    }

    /// Begins the next iteration of a loop that runs by its schedule, in place. False if no NextIteration was alive.
    pub(crate) fn repeat_scheduled(
        &mut self,
        env: &Env,
        id: u32,
        iter: u32,
        frame: &Frame,
    ) -> bool {
        let lp = &mut self.loops.all[id as usize];
        if !std::mem::take(&mut lp.continues) {
            return false;
        }
        lp.first += 1;
        let n_invariants = lp.invariants.len();
        let it = &mut self.iterations[iter as usize];
        it.number += 1;
        it.cursor = 0;
        self.reset_pending(iter, frame);
        for i in 0..n_invariants {
            let (node, value) = self.loop_mut(id).invariants[i].clone();
            let alive = value.is_some();
            self.outputs[0] = value.into();
            self.propagate_liveness(env, node, iter, alive);
        }
        true
    }

    /// Ends a loop that runs by its schedule, whose last iteration is `iter`. Exits that were never alive are dead, also
    /// those whose variable never entered, for which TensorFlow would wait in vain.
    pub(crate) fn end_scheduled_loop(
        &mut self,
        env: &Env,
        id: u32,
        iter: u32,
        schedule: &StaticSchedule,
    ) -> Result<()> {
        let lp = self.loop_mut(id);
        let (parent, frame) = (lp.parent, lp.frame);
        let mut live = std::mem::take(&mut lp.live_exits);
        lp.invariants.clear();
        lp.window.clear();
        for &node in &schedule.order {
            let is_exit = matches!(env.plan.nodes[node.index()].action, Action::Exit);
            if is_exit && !live.contains(&node) {
                self.propagate_liveness(env, node, parent, false);
            }
        }
        live.clear();
        self.loop_mut(id).live_exits = live;
        self.iterations[iter as usize].outstanding -= 1;
        self.free_iteration(iter);
        self.leave_loop(id, parent, frame);
        self.release(env, parent)
    }

    /// Makes a loop that is done ready for reuse, and the iteration that it was entered from ready to go on.
    fn leave_loop(&mut self, id: u32, parent: u32, frame: Option<FrameIdx>) {
        self.loops.free.push(id);
        let it = &mut self.iterations[parent as usize];
        it.children.retain(|(f, _)| Some(*f) != frame);
        if it.is_scheduled {
            self.resume_schedule(parent);
        }
    }

    /// Passes `outputs[0]` of a live NextIteration on.
    pub(crate) fn next_iteration(&mut self, env: &Env, item: TaggedNode) -> Result<()> {
        let it = &self.iterations[item.iter as usize];
        let (Owner::Loop(id), number) = (it.owner, it.number) else {
            return Err(internal!("a NextIteration is outside any loop"));
        };
        let lp = &mut self.loops.all[id as usize];
        let newest = lp.first + lp.window.len() as u64 - 1;
        if number < newest {
            let next = lp.window[(number + 1 - lp.first) as usize];
            self.propagate::<true>(env, item.node, next);
            return Ok(());
        }
        let frame = lp.frame.unwrap_or(FrameIdx::new(0));
        let parallel = match env.plan.frames[frame.index()].kind {
            FrameKind::Loop {
                parallel_iterations,
                ..
            } => parallel_iterations as usize,
            FrameKind::Function => 1,
        };
        if lp.window.len() >= parallel {
            let value = std::mem::take(&mut self.outputs[0]).into_tensor();
            lp.deferred.extend(value.map(|v| (item.node, v)));
            return Ok(());
        }
        let next = self.push_iteration(env, id);
        self.propagate::<true>(env, item.node, next);
        Ok(())
    }

    /// Adds the next iteration to the window; constants enter it.
    fn push_iteration(&mut self, env: &Env, id: u32) -> u32 {
        let lp = &mut self.loops.all[id as usize];
        let number = lp.first + lp.window.len() as u64;
        let frame = lp.frame.unwrap_or(FrameIdx::new(0));
        lp.dead_exits.clear();
        let held = std::mem::take(&mut self.outputs[0]);
        let iter = self.new_iteration(env.plan, frame, Owner::Loop(id), number, false);
        self.loop_mut(id).window.push_back(iter);
        for i in 0..self.loop_mut(id).invariants.len() {
            let (node, value) = self.loop_mut(id).invariants[i].clone();
            let alive = value.is_some();
            self.outputs[0] = value.into();
            self.propagate_liveness(env, node, iter, alive);
        }
        self.outputs[0] = held;
        iter
    }

    /// Passes `outputs[0]` of a live Exit on to the iteration that its loop was entered from.
    pub(crate) fn exit(&mut self, env: &Env, item: TaggedNode) -> Result<()> {
        let Owner::Loop(id) = self.iterations[item.iter as usize].owner else {
            return Err(internal!("an Exit is outside any loop"));
        };
        let lp = self.loop_mut(id);
        if lp.live_exits.contains(&item.node) {
            let error = invalid_argument!(
                "the Exit is alive in more than one iteration: its input must come from the \
                 Switch that ends the loop"
            );
            return Err(env.at_node(item.node, error));
        }
        lp.live_exits.push(item.node);
        let parent = lp.parent;
        self.propagate_liveness(env, item.node, parent, true);
        Ok(())
    }

    /// Remembers a dead Exit of the newest iteration: it counts if the loop ends there.
    pub(crate) fn dead_exit(&mut self, item: TaggedNode) {
        let it = &self.iterations[item.iter as usize];
        let (Owner::Loop(id), number) = (it.owner, it.number) else {
            return;
        };
        let lp = self.loop_mut(id);
        if number + 1 == lp.first + lp.window.len() as u64 {
            lp.dead_exits.push(item.node);
        }
    }

    /// Ends the iterations at the front of the window that are done, begins what waited for that.
    /// When the loop is done its dead exits take effect, and the iteration that it was entered
    /// from, which has one thing less outstanding, is returned.
    pub(crate) fn advance_loop(&mut self, env: &Env, id: u32) -> Result<Option<u32>> {
        loop {
            let lp = &mut self.loops.all[id as usize];
            let Some(&front) = lp.window.front() else {
                break;
            };
            let waits = lp.first == 0 && lp.pending_enters > 0;
            if waits || self.iterations[front as usize].outstanding > 0 {
                return Ok(None);
            }
            if lp.deferred.is_empty() {
                lp.window.pop_front();
                lp.first += 1;
                self.free_iteration(front);
                continue;
            }
            // The new one first, so that the window is never empty in between.
            let mut deferred = std::mem::take(&mut lp.deferred);
            let next = self.push_iteration(env, id);
            let lp = self.loop_mut(id);
            lp.window.pop_front();
            lp.first += 1;
            self.free_iteration(front);
            for (node, value) in deferred.drain(..) {
                self.outputs[0] = Value::Tensor(value);
                self.propagate::<true>(env, node, next);
            }
            self.loop_mut(id).deferred = deferred;
        }
        let lp = self.loop_mut(id);
        let (parent, frame) = (lp.parent, lp.frame);
        let mut dead = std::mem::take(&mut lp.dead_exits);
        let mut live = std::mem::take(&mut lp.live_exits);
        lp.invariants.clear();
        for node in dead.drain(..).filter(|n| !live.contains(n)) {
            self.propagate_liveness(env, node, parent, false);
        }
        live.clear();
        let lp = self.loop_mut(id);
        (lp.dead_exits, lp.live_exits) = (dead, live);
        self.leave_loop(id, parent, frame);
        Ok(Some(parent))
    }
}
