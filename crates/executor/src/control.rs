//! Nodes that the engine runs itself: they route values.

use crate::calls::is_true;
use crate::kernel::Env;
use crate::state::{StepState, TaggedNode};
use ferroflow_base::{Result, internal, invalid_argument};
use ferroflow_opdef::Value;
use ferroflow_program::{Action, Edge, FrameIdx, MergeEvent, MergeState, Node, Plan};
use ferroflow_tensor::Tensor;

impl StepState {
    /// Runs a node that has no kernel.
    pub(crate) fn run_control(&mut self, env: &Env, item: TaggedNode) -> Result<()> {
        let plan = env.plan;
        let node = &plan.nodes[item.node.index()];
        let slot = self.iterations[item.iter as usize].slot_base + node.first_slot;
        let first = slot as usize;
        match &node.action {
            Action::Forward if node.n_inputs == 1 => {
                let value = take(plan, &mut self.slots[first]);
                self.forward_output(env, item, value);
            }
            Action::Forward => {
                for i in 0..node.n_inputs as usize {
                    self.outputs[i] = take(plan, &mut self.slots[first + i]);
                }
                self.propagate::<true>(env, item.node, item.iter);
            }
            Action::Switch | Action::SwitchN => {
                let (output, value) = self.choose_output(env, item, node, first)?;
                self.outputs[usize::from(output)] = value;
                self.propagate::<true>(env, item.node, item.iter);
            }
            Action::Merge => {
                let slots = &mut self.slots[first..first + node.n_inputs as usize];
                let live = slots.iter().position(|s| !matches!(s, Value::Empty));
                let live = live.ok_or_else(|| internal!("a Merge runs without input"))?;
                let value = take(plan, &mut slots[live]);
                if node.n_outputs == 1 {
                    self.forward_output(env, item, value);
                } else {
                    self.outputs[0] = value;
                    self.outputs[1] = Value::Tensor(Tensor::scalar(live as i32));
                    self.propagate::<true>(env, item.node, item.iter);
                }
            }
            &Action::Enter { frame, is_constant } => {
                self.outputs[0] = take(plan, &mut self.slots[first]);
                self.enter(env, item, frame, is_constant, true)?;
            }
            Action::Exit => {
                self.outputs[0] = take(plan, &mut self.slots[first]);
                self.exit(env, item)?;
            }
            Action::NextIteration => {
                self.outputs[0] = take(plan, &mut self.slots[first]);
                self.next_iteration(env, item)?;
            }
            Action::Const(c) => {
                let value = plan.consts.get(*c as usize).cloned();
                self.forward_output(env, item, value.into());
            }
            Action::Send(key) => {
                let tensor = take(plan, &mut self.slots[first]).into_tensor();
                self.send(env, item, key, tensor)?;
                self.propagate::<true>(env, item.node, item.iter);
            }
            Action::Trigger => self.propagate::<true>(env, item.node, item.iter),
            Action::Call(_) | Action::While { .. } | Action::If { .. } | Action::Case(_) => {
                return self.start_call(env, item);
            }
            Action::Arg(_) | Action::Kernel(_) | Action::Recv(_) => {}
        }
        self.release(env, item.iter)
    }

    /// Calls the function of a Call or While, or that which the first input of an If or Case selects.
    pub(crate) fn start_call(&mut self, env: &Env, item: TaggedNode) -> Result<()> {
        let node = &env.plan.nodes[item.node.index()];
        let slot = self.iterations[item.iter as usize].slot_base + node.first_slot;
        let first = slot as usize;
        match &node.action {
            Action::Call(frame) | Action::While { cond: frame, .. } => {
                let args = self.take_args(env.plan, node, first, 0);
                self.begin_call(env, item, *frame, args)
            }
            action => {
                let function = self.chosen_branch(env.plan, action, first);
                let function = function.map_err(|e| env.at_node(item.node, e))?;
                self.begin_branch(env, item, first, function)
            }
        }
    }

    /// Takes the inputs of a Switch; returns the output that is chosen, and its value.
    #[inline]
    pub(crate) fn choose_output(
        &mut self,
        env: &Env,
        item: TaggedNode,
        node: &Node,
        first: usize,
    ) -> Result<(u16, Value)> {
        let to = self.chosen_output(env.plan, node, first);
        let to = to.map_err(|e| env.at_node(item.node, e))?;
        self.slots[first + 1].clear();
        Ok((to as u16, take(env.plan, &mut self.slots[first])))
    }

    /// Takes a value out of its slot; constants stay and are shared.
    #[inline]
    pub(crate) fn take_slot(&mut self, plan: &Plan, slot: usize) -> Value {
        take(plan, &mut self.slots[slot])
    }

    /// Delivers `value`, which is empty if dead, to the Merge at the end of `edge`; its slots begin at
    /// `slot_base` and its state is `pending[at]`. `is_entry` is set if the edge leaves an Enter.
    #[inline]
    pub(crate) fn arrive_at_merge(
        &mut self,
        env: &Env,
        edge: &Edge,
        (slot_base, at): (u32, usize),
        value: Value,
        is_entry: bool,
    ) -> MergeEvent {
        let merge = &env.plan.nodes[edge.node.index()];
        let mut state = MergeState::from_bits(self.pending[at]);
        let Value::Tensor(tensor) = value else {
            // A loop whose Enter is dead never gets to its NextIteration.
            let event = state.dead_input_arrived(merge.n_inputs, is_entry);
            self.pending[at] = state.bits();
            return event;
        };
        if !state.live_input_arrived() {
            return MergeEvent::None;
        }
        self.pending[at] = state.bits();
        // A former iteration may have left a value that was never taken.
        let first = (slot_base + merge.first_slot) as usize;
        for slot in &mut self.slots[first..first + merge.n_inputs as usize] {
            if !matches!(slot, Value::Empty) {
                slot.clear();
            }
        }
        self.slots[(slot_base + edge.slot) as usize] = Value::Tensor(tensor);
        match state.is_unresolved() {
            true => MergeEvent::None,
            false => MergeEvent::Ready,
        }
    }

    /// The function that the first input of an If or Case selects.
    fn chosen_branch<K>(&self, plan: &Plan, action: &Action<K>, first: usize) -> Result<FrameIdx> {
        let mut copy = None;
        let selector = on_host(self.peek(plan, first)?, &mut copy)?;
        Ok(match action {
            Action::If {
                then_branch,
                else_branch,
            } => match is_true(selector)? {
                true => *then_branch,
                false => *else_branch,
            },
            Action::Case(branches) => {
                let index = usize::try_from(selector.to_scalar::<i32>()?).ok();
                let chosen = index.and_then(|i| branches.get(i)).or(branches.last());
                *chosen.ok_or_else(|| internal!("a Case without branches"))?
            }
            _ => return Err(internal!("a node without branches")),
        })
    }

    /// Calls a function with the inputs behind the one that selected it.
    fn begin_branch(
        &mut self,
        env: &Env,
        item: TaggedNode,
        first: usize,
        function: FrameIdx,
    ) -> Result<()> {
        self.slots[first].clear();
        let node = &env.plan.nodes[item.node.index()];
        let args = self.take_args(env.plan, node, first, 1);
        self.begin_call(env, item, function, args)
    }

    fn peek<'a>(&'a self, plan: &'a Plan, slot: usize) -> Result<&'a Tensor> {
        match &self.slots[slot] {
            Value::Tensor(t) => Some(t),
            Value::Const(c) => plan.consts.get(*c as usize),
            Value::Empty => None,
        }
        .ok_or_else(|| internal!("an input is missing"))
    }

    fn chosen_output(&self, plan: &Plan, node: &Node, first: usize) -> Result<usize> {
        let mut copy = None;
        let choice = on_host(self.peek(plan, first + 1)?, &mut copy)?;
        let scalar = |e: &Tensor| {
            invalid_argument!(
                "The second input must be a scalar, but it has shape {}",
                e.shape()
            )
        };
        if let Action::Switch = node.action {
            if let Some(to) = choice.inline_scalar::<bool>() {
                return Ok(usize::from(to));
            }
            let to = choice.to_scalar::<bool>().map_err(|_| scalar(choice))?;
            return Ok(usize::from(to));
        }
        let to = choice.to_scalar::<i32>().map_err(|_| scalar(choice))?;
        let last = (node.n_outputs as usize).saturating_sub(1);
        Ok(usize::try_from(to).map_or(last, |i| i.min(last)))
    }

    /// The inputs of a call from number `from` on.
    fn take_args(
        &mut self,
        plan: &Plan,
        node: &Node,
        first: usize,
        from: usize,
    ) -> Vec<Option<Tensor>> {
        let mut args = std::mem::take(&mut self.args);
        args.clear();
        let slots = &mut self.slots[first + from..first + node.n_inputs as usize];
        args.extend(slots.iter_mut().map(|slot| take(plan, slot).into_tensor()));
        args
    }
}

/// A tensor as the host reads it; `copy` keeps a copy of what is on a device.
#[inline]
fn on_host<'a>(tensor: &'a Tensor, copy: &'a mut Option<Tensor>) -> Result<&'a Tensor> {
    match tensor.is_on_device() {
        false => Ok(tensor),
        true => Ok(copy.insert(tensor.on_host()?)),
    }
}

/// Takes a value out of its slot; constants stay and are shared.
#[inline]
fn take(plan: &Plan, slot: &mut Value) -> Value {
    match slot {
        Value::Const(c) => plan.consts.get(*c as usize).cloned().into(),
        slot => std::mem::take(slot),
    }
}
