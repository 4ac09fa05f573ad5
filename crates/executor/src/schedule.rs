//! Iterations that run by the static schedule of their frame: their nodes run in its order, and no edge is counted.
//!
//! Such an iteration has one outstanding: itself, or the call or loop that it waits for; loops that still miss Enters
//! come on top. It stops where a function is called or a loop begins, and is ready again, behind that node, when these
//! have ended. Its range of `pending` only says which nodes are dead.

use crate::kernel::Env;
use crate::state::{Owner, StepState, TaggedNode};
use ferroflow_base::{Result, internal};
use ferroflow_opdef::Value;
use ferroflow_program::{Action, DEAD, EdgeKind, Node, NodeIdx, StaticSchedule};
use ferroflow_tensor::Tensor;

/// Nodes between two checks of the cancellation token.
const CANCEL_INTERVAL: u32 = 256;

/// What comes behind a node.
#[derive(PartialEq, Eq)]
enum Next {
    /// The node behind it in the schedule.
    Node,
    /// A call or a loop, at whose end the iteration continues.
    Suspended,
}

impl StepState {
    /// Delivers the arguments of a function that runs by its schedule.
    #[inline]
    pub(crate) fn deliver_args(
        &mut self,
        schedule: &StaticSchedule,
        iter: u32,
        args: &mut [Option<Tensor>],
    ) {
        let base = self.iterations[iter as usize].slot_base;
        for edge in &schedule.args {
            let arg = &mut args[edge.arg as usize];
            let value = match edge.last {
                true => arg.take(),
                false => arg.clone(),
            };
            self.slots[(base + edge.slot) as usize] = value.into();
        }
    }

    /// Makes an iteration ready to go on.
    pub(crate) fn resume_schedule(&mut self, iter: u32) {
        self.iterations[iter as usize].outstanding += 1;
        let node = NodeIdx::new(0);
        self.inexpensive.push(TaggedNode { node, iter });
    }

    /// Runs an iteration, with what it calls and what called it, as far as that is possible by schedules.
    pub(crate) fn run_schedule(&mut self, env: &Env, mut iter: u32) -> Result<()> {
        loop {
            // A condition and a body without nodes could repeat for ever.
            self.count_scheduled(env)?;
            let frame = &env.plan.frames[self.iterations[iter as usize].frame.index()];
            let schedule = frame.schedule.as_ref();
            let schedule = schedule.ok_or_else(|| internal!("the frame has no schedule"))?;
            let next = match schedule.has_dead {
                true => self.run_nodes::<true>(env, iter, schedule)?,
                false => self.run_nodes::<false>(env, iter, schedule)?,
            };
            if next == Next::Node {
                let owner = self.iterations[iter as usize].owner;
                match owner {
                    Owner::Call(id) => match self.next_phase(env, id)? {
                        Some(next) => {
                            iter = next;
                            continue;
                        }
                        None => self.release(env, iter)?,
                    },
                    Owner::Loop(id) if self.repeat_scheduled(env, id, iter, frame) => continue,
                    Owner::Loop(id) => self.end_scheduled_loop(env, id, iter, schedule)?,
                }
            }
            // What it called, or what called it.
            let iterations = &self.iterations;
            let is_scheduled = |item: &mut TaggedNode| iterations[item.iter as usize].is_scheduled;
            match self.inexpensive.pop_if(is_scheduled) {
                Some(item) => iter = item.iter,
                None => return Ok(()),
            }
        }
    }

    /// Checks the cancellation token now and then.
    #[inline]
    fn count_scheduled(&mut self, env: &Env) -> Result<()> {
        self.n_scheduled = self.n_scheduled.wrapping_add(1);
        match self.n_scheduled.is_multiple_of(CANCEL_INTERVAL) {
            true => env.services.cancel.check(),
            false => Ok(()),
        }
    }

    fn run_nodes<const MAY_BE_DEAD: bool>(
        &mut self,
        env: &Env,
        iter: u32,
        schedule: &StaticSchedule,
    ) -> Result<Next> {
        let it = &self.iterations[iter as usize];
        let (start, pending_base) = (it.cursor as usize, it.pending_base);
        for (at, &idx) in schedule.order.iter().enumerate().skip(start) {
            self.count_scheduled(env)?;
            let (node, item) = (&env.plan.nodes[idx.index()], TaggedNode { node: idx, iter });
            let pending = pending_base.wrapping_add(idx.index() as u32) as usize;
            if MAY_BE_DEAD && self.pending[pending] & DEAD != 0 {
                // The Exits of a loop that continues, most often.
                if matches!(node.action, Action::Exit) {
                    let base = self.iterations[iter as usize].slot_base;
                    self.slots[(base + node.first_slot) as usize].clear();
                    continue;
                }
                if self.skip_dead(env, item, at)? == Next::Suspended {
                    return Ok(Next::Suspended);
                }
                continue;
            }
            if let Action::Kernel(kernel) = &node.action {
                self.run_kernel::<true>(env, item, node, &**kernel)?;
            } else if self.route(env, item, node, at)? == Next::Suspended {
                return Ok(Next::Suspended);
            }
        }
        Ok(Next::Node)
    }

    /// Runs a node without a kernel, number `at` of the schedule.
    #[inline]
    fn route(&mut self, env: &Env, item: TaggedNode, node: &Node, at: usize) -> Result<Next> {
        let first = (self.iterations[item.iter as usize].slot_base + node.first_slot) as usize;
        let slots = first..first + node.n_inputs as usize;
        match &node.action {
            Action::Forward if node.n_inputs == 1 => {
                let value = self.take_slot(env.plan, first);
                self.deliver_only(env, item, node, value);
            }
            Action::Forward => {
                for (i, slot) in slots.enumerate() {
                    self.outputs[i] = self.take_slot(env.plan, slot);
                }
                self.deliver::<true>(env, item.node, item.iter);
            }
            Action::Switch | Action::SwitchN => {
                let (output, value) = self.choose_output(env, item, node, first)?;
                self.deliver_value(env, item, output, value);
            }
            Action::Merge => self.route_merge(env, item, node, first)?,
            Action::Const(c) => {
                let value = env.plan.consts.get(*c as usize).cloned();
                self.deliver_only(env, item, node, value.into());
            }
            Action::Enter { .. } => {
                self.outputs[0] = self.take_slot(env.plan, first);
                return self.enter_scheduled(env, item, true, at);
            }
            Action::Exit => {
                self.outputs[0] = self.take_slot(env.plan, first);
                self.exit(env, item)?;
            }
            Action::NextIteration => {
                let value = self.take_slot(env.plan, first);
                if let Owner::Loop(id) = self.iterations[item.iter as usize].owner {
                    self.loop_mut(id).continues = true;
                }
                // The Merges of the loop, which come first, have taken their inputs.
                self.deliver_only(env, item, node, value);
            }
            Action::Trigger => self.deliver::<true>(env, item.node, item.iter),
            Action::Call(_) | Action::While { .. } | Action::If { .. } | Action::Case(_) => {
                self.iterations[item.iter as usize].cursor = at as u32 + 1;
                self.start_call(env, item)?;
                return Ok(Next::Suspended);
            }
            Action::Arg(_) | Action::Kernel(_) | Action::Send(_) | Action::Recv(_) => {
                return Err(internal!("the node is not part of a schedule"));
            }
        }
        Ok(Next::Node)
    }

    /// Forwards the live input of a Merge; it is dead if there is none.
    #[inline]
    fn route_merge(
        &mut self,
        env: &Env,
        item: TaggedNode,
        node: &Node,
        first: usize,
    ) -> Result<()> {
        let slots = &mut self.slots[first..first + node.n_inputs as usize];
        let Some(live) = slots.iter().position(|s| !matches!(s, Value::Empty)) else {
            self.deliver::<false>(env, item.node, item.iter);
            return Ok(());
        };
        let value = std::mem::take(&mut slots[live]);
        slots.iter_mut().for_each(Value::clear);
        if node.n_outputs == 1 {
            self.deliver_only(env, item, node, value);
        } else {
            self.outputs[0] = value;
            self.outputs[1] = Value::Tensor(Tensor::scalar(live as i32));
            self.deliver::<true>(env, item.node, item.iter);
        }
        Ok(())
    }

    /// Passes `outputs[0]` of an Enter into its loop; the last one starts it.
    fn enter_scheduled(
        &mut self,
        env: &Env,
        item: TaggedNode,
        alive: bool,
        at: usize,
    ) -> Result<Next> {
        let Action::Enter { frame, is_constant } = env.plan.nodes[item.node.index()].action else {
            return Err(internal!("the node is not an Enter"));
        };
        self.iterations[item.iter as usize].cursor = at as u32 + 1;
        Ok(match self.enter(env, item, frame, is_constant, alive)? {
            true => {
                // The loop counts in its place.
                self.iterations[item.iter as usize].outstanding -= 1;
                if !self.dead.is_empty() {
                    // Of a loop that counts its edges.
                    self.run_dead(env)?;
                }
                Next::Suspended
            }
            false => Next::Node,
        })
    }

    /// Passes on that a node is dead.
    #[inline(never)]
    fn skip_dead(&mut self, env: &Env, item: TaggedNode, at: usize) -> Result<Next> {
        let node = &env.plan.nodes[item.node.index()];
        let first = (self.iterations[item.iter as usize].slot_base + node.first_slot) as usize;
        let slots = first..first + node.n_inputs as usize;
        self.slots[slots].iter_mut().for_each(Value::clear);
        match node.action {
            Action::Enter { .. } => {
                self.outputs[0].clear();
                return self.enter_scheduled(env, item, false, at);
            }
            Action::NextIteration => {}
            _ => self.deliver::<false>(env, item.node, item.iter),
        }
        Ok(Next::Node)
    }

    /// Hands `value`, the only output of a live node, to its consumers.
    #[inline]
    fn deliver_only(&mut self, env: &Env, from: TaggedNode, node: &Node, value: Value) {
        let slot = match env.plan.edges_of(node) {
            [edge] if edge.kind.is_data() => Some(edge.slot),
            _ => node.forward_slot.get(),
        };
        match slot {
            None => self.deliver_value(env, from, 0, value),
            Some(slot) => {
                let at = (self.iterations[from.iter as usize].slot_base + slot) as usize;
                self.slots[at] = value;
                self.deliver_forwarded(env, from, at);
            }
        }
    }

    /// Hands `value`, an output of a live node, to its consumers; its other outputs, if any, are dead.
    #[inline]
    pub(crate) fn deliver_value(
        &mut self,
        env: &Env,
        from: TaggedNode,
        output: u16,
        mut value: Value,
    ) {
        let node = &env.plan.nodes[from.node.index()];
        let it = &self.iterations[from.iter as usize];
        let (slot_base, pending_base) = (it.slot_base, it.pending_base);
        for edge in env.plan.edges_of(node) {
            let is_carried = edge.output == output;
            let mut carried = || match edge.last {
                true => std::mem::take(&mut value),
                false => value.clone(),
            };
            match edge.kind {
                EdgeKind::Data | EdgeKind::MergeData | EdgeKind::Result if is_carried => {
                    self.slots[(slot_base + edge.slot) as usize] = carried();
                }
                EdgeKind::Data => {
                    let at = pending_base.wrapping_add(edge.node.index() as u32);
                    self.pending[at as usize] |= DEAD;
                }
                _ => {}
            }
        }
    }

    /// Copies the only output of a node from slot `at`, its last reader's, to the others.
    #[inline(always)]
    pub(crate) fn deliver_forwarded(&mut self, env: &Env, from: TaggedNode, at: usize) {
        let node = &env.plan.nodes[from.node.index()];
        if node.n_edges == 1 {
            return;
        }
        let slot_base = self.iterations[from.iter as usize].slot_base;
        for edge in env.plan.edges_of(node) {
            if edge.kind.is_data() && !edge.last {
                self.slots[(slot_base + edge.slot) as usize] = self.slots[at].clone();
            }
        }
    }

    /// [`StepState::propagate`] in an iteration that runs by its schedule.
    #[inline]
    pub(crate) fn deliver<const ALIVE: bool>(&mut self, env: &Env, from: NodeIdx, iter: u32) {
        let node = &env.plan.nodes[from.index()];
        let it = &self.iterations[iter as usize];
        let (slot_base, pending_base) = (it.slot_base, it.pending_base);
        for edge in env.plan.edges_of(node) {
            let at = pending_base.wrapping_add(edge.node.index() as u32) as usize;
            match edge.kind {
                EdgeKind::Data | EdgeKind::MergeData | EdgeKind::Result => {
                    match self.carried(edge) {
                        Value::Tensor(t) if ALIVE => {
                            self.slots[(slot_base + edge.slot) as usize] = Value::Tensor(t);
                        }
                        _ if edge.kind == EdgeKind::Data => self.pending[at] |= DEAD,
                        _ => {}
                    }
                }
                EdgeKind::Control if !ALIVE => self.pending[at] |= DEAD,
                EdgeKind::Control | EdgeKind::Trigger | EdgeKind::MergeControl => {}
            }
        }
        // Outputs without readers must not outlive the node.
        let outputs = &mut self.outputs[..node.n_outputs as usize];
        outputs.iter_mut().for_each(Value::clear);
    }
}
