//! Propagation: the values of a node that has run go to the slots of its readers, and nodes whose last edge arrives are
//! ready. Ends iterations when nothing of them is outstanding.

use crate::kernel::Env;
use crate::state::{Owner, ROOT, StepState, TaggedNode};
use ferroflow_base::Result;
use ferroflow_opdef::{Cost, Value};
use ferroflow_program::{Action, DEAD, Edge, EdgeKind, MergeEvent, MergeState, Node, NodeIdx};
use ferroflow_tensor::Tensor;

/// Inputs of this many bytes make a `Cost::BySize` node worth a task of its own.
const EXPENSIVE_BYTES: usize = 64 << 10;
/// What an element without a size of its own, such as a string, counts.
const OWNED_BYTES: usize = 32;

/// Returns the bytes that a kernel works on.
fn work_bytes(t: &Tensor) -> usize {
    let size = match t.dtype().size() {
        0 => OWNED_BYTES,
        size => size,
    };
    t.num_elements() * size
}

/// Whether a node with these inputs is not worth a task of its own because of them.
pub(crate) fn are_small<'a>(tensors: impl IntoIterator<Item = &'a Tensor>) -> bool {
    tensors.into_iter().all(|t| work_bytes(t) < EXPENSIVE_BYTES)
}

impl StepState {
    /// Hands the only output of a live node to its consumers.
    #[inline]
    pub(crate) fn forward_output(&mut self, env: &Env, from: TaggedNode, value: Value) {
        match env.plan.nodes[from.node.index()].forward_slot.get() {
            None => {
                self.outputs[0] = value;
                self.propagate::<true>(env, from.node, from.iter);
            }
            Some(slot) => {
                let at = (self.iterations[from.iter as usize].slot_base + slot) as usize;
                self.slots[at] = value;
                self.propagate_forwarded(env, from, at);
            }
        }
    }

    // Out of line, as LLVM decides by itself, it costs 1.7 ns a node; so does `propagate_forwarded`.
    #[inline(always)]
    pub(crate) fn schedule(&mut self, env: &Env, item: TaggedNode) {
        let node = &env.plan.nodes[item.node.index()];
        if env.dispatches && self.is_expensive(env.offloads, node, item.iter) {
            self.expensive.push(item);
        } else {
            self.inexpensive.push(item);
        }
    }

    #[inline(never)]
    fn is_expensive(&self, offloads: bool, node: &Node, iter: u32) -> bool {
        match (&node.action, node.cost) {
            (Action::Kernel(_), Cost::Async) | (Action::Recv(_), _) => true,
            (Action::Kernel(_), Cost::Expensive) => offloads,
            (Action::Kernel(_), Cost::BySize) if offloads => {
                let first = (self.iterations[iter as usize].slot_base + node.first_slot) as usize;
                let slots = &self.slots[first..first + node.n_inputs as usize];
                !are_small(slots.iter().filter_map(|slot| match slot {
                    Value::Tensor(t) => Some(t),
                    _ => None,
                }))
            }
            _ => false,
        }
    }

    /// One edge of node `item` has arrived, whose count is `pending[at]`; how many nodes are ready
    /// now that were not.
    #[inline(always)]
    fn arrived(&mut self, env: &Env, item: TaggedNode, at: usize, from: NodeIdx) -> u32 {
        let pending = &mut self.pending[at];
        *pending -= 1;
        match *pending {
            0 => self.schedule(env, item),
            DEAD => self.dead.push((item, from)),
            _ => return 0,
        }
        1
    }

    /// The value of `self.outputs` that `edge` carries.
    #[inline(always)]
    pub(crate) fn carried(&mut self, edge: &Edge) -> Value {
        let output = &mut self.outputs[edge.output as usize];
        match edge.last {
            true => std::mem::take(output),
            false => output.clone(),
        }
    }

    /// [`StepState::propagate`] for a node whose only output is in slot `at`, its last reader's.
    #[inline(always)]
    pub(crate) fn propagate_forwarded(&mut self, env: &Env, from: TaggedNode, at: usize) {
        let iter = from.iter;
        let node = &env.plan.nodes[from.node.index()];
        let it = &self.iterations[iter as usize];
        let (slot_base, pending_base) = (it.slot_base, it.pending_base);
        let mut n_ready = 0;
        for edge in env.plan.edges_of(node) {
            if edge.kind.is_data() && !edge.last {
                let value = self.slots[at].clone();
                self.slots[(slot_base + edge.slot) as usize] = value;
            }
            if edge.kind == EdgeKind::Result {
                continue;
            }
            let pending = pending_base.wrapping_add(edge.node.index() as u32) as usize;
            let item = TaggedNode {
                node: edge.node,
                iter,
            };
            n_ready += self.arrived(env, item, pending, from.node);
        }
        self.iterations[iter as usize].outstanding += n_ready;
    }

    /// Delivers `self.outputs` of node `from` to its consumers in iteration `iter`; an output that is
    /// `Empty` is dead, and all are when not `ALIVE`. Consumers that now have all inputs are ready.
    #[inline]
    pub(crate) fn propagate<const ALIVE: bool>(&mut self, env: &Env, from: NodeIdx, iter: u32) {
        let node = &env.plan.nodes[from.index()];
        let it = &self.iterations[iter as usize];
        let (slot_base, pending_base) = (it.slot_base, it.pending_base);
        let mut n_ready = 0;
        for edge in env.plan.edges_of(node) {
            let item = TaggedNode {
                node: edge.node,
                iter,
            };
            let at = pending_base.wrapping_add(edge.node.index() as u32) as usize;
            match edge.kind {
                EdgeKind::Data => {
                    let value = self.carried(edge);
                    let pending = &mut self.pending[at];
                    match value {
                        Value::Tensor(t) if ALIVE => {
                            self.slots[(slot_base + edge.slot) as usize] = Value::Tensor(t);
                        }
                        _ => {
                            // The Exits of a loop that continues: nothing else waits for them.
                            let consumer = &env.plan.nodes[edge.node.index()].action;
                            if *pending == 1
                                && matches!(consumer, Action::Exit)
                                && env.trace.is_none()
                            {
                                self.dead_exit(item);
                                continue;
                            }
                            *pending |= DEAD;
                        }
                    }
                    n_ready += self.arrived(env, item, at, from);
                }
                EdgeKind::Control => {
                    if !ALIVE {
                        self.pending[at] |= DEAD;
                    }
                    n_ready += self.arrived(env, item, at, from);
                }
                EdgeKind::Trigger => {
                    let pending = &mut self.pending[at];
                    *pending -= 1;
                    if *pending & !DEAD == 0 {
                        self.schedule(env, item);
                        n_ready += 1;
                    }
                }
                EdgeKind::Result => {
                    let value = self.carried(edge);
                    if ALIVE {
                        self.slots[(slot_base + edge.slot) as usize] = value;
                    }
                }
                EdgeKind::MergeData => {
                    let value = self.carried(edge);
                    let value = if ALIVE { value } else { Value::Empty };
                    let is_entry = matches!(node.action, Action::Enter { .. });
                    let event = self.arrive_at_merge(env, edge, (slot_base, at), value, is_entry);
                    n_ready += self.resolve_merge(item, event, from);
                }
                EdgeKind::MergeControl => {
                    let n_inputs = env.plan.nodes[edge.node.index()].n_inputs;
                    let mut state = MergeState::from_bits(self.pending[at]);
                    let event = state.control_arrived(n_inputs);
                    self.pending[at] = state.bits();
                    n_ready += self.resolve_merge(item, event, from);
                }
            }
        }
        self.iterations[iter as usize].outstanding += n_ready;
        // Outputs without readers must not outlive the node.
        let outputs = &mut self.outputs[..node.n_outputs as usize];
        outputs.iter_mut().for_each(Value::clear);
    }

    /// Queues a Merge that is ready or dead; how many nodes are ready now that were not.
    #[inline(always)]
    fn resolve_merge(&mut self, item: TaggedNode, event: MergeEvent, from: NodeIdx) -> u32 {
        match event {
            MergeEvent::None => return 0,
            MergeEvent::Ready => self.inexpensive.push(item),
            MergeEvent::Dead => self.dead.push((item, from)),
        }
        1
    }

    /// One thing less is outstanding in `iter`; ends iterations, loops and calls as far as that
    /// finishes them, and runs what is dead.
    #[inline]
    pub(crate) fn release(&mut self, env: &Env, iter: u32) -> Result<()> {
        self.iterations[iter as usize].outstanding -= 1;
        if self.iterations[iter as usize].outstanding == 0 && iter != ROOT {
            self.finish_iterations(env, iter)?;
        }
        if !self.dead.is_empty() {
            self.run_dead(env)?;
        }
        Ok(())
    }

    #[cold]
    pub(crate) fn run_dead(&mut self, env: &Env) -> Result<()> {
        while let Some((item, cause)) = self.dead.pop() {
            if let Some(trace) = env.trace {
                let it = &self.iterations[item.iter as usize];
                trace.dead(crate::trace::DeadNode {
                    node: &env.plan.info[item.node.index()],
                    cause: &env.plan.info[cause.index()],
                    frame: &env.plan.frames[it.frame.index()].name,
                    iteration: it.number,
                });
            }
            let node = &env.plan.nodes[item.node.index()];
            let base = self.iterations[item.iter as usize].slot_base;
            let first = (base + node.first_slot) as usize;
            let inputs = &mut self.slots[first..first + node.n_inputs as usize];
            inputs.iter_mut().for_each(Value::clear);
            let outputs = &mut self.outputs[..node.n_outputs as usize];
            outputs.iter_mut().for_each(Value::clear);
            match &node.action {
                &Action::Enter { frame, is_constant } => {
                    self.enter(env, item, frame, is_constant, false)?;
                }
                Action::Send(key) => {
                    self.send(env, item, key, None)?;
                    self.propagate::<false>(env, item.node, item.iter);
                }
                // Its peer sends all the same.
                Action::Recv(_) => {
                    self.iterations[item.iter as usize].outstanding += 1;
                    self.schedule(env, item);
                }
                Action::Exit => self.dead_exit(item),
                Action::NextIteration => {}
                _ => self.propagate::<false>(env, item.node, item.iter),
            }
            self.iterations[item.iter as usize].outstanding -= 1;
            if self.iterations[item.iter as usize].outstanding == 0 && item.iter != ROOT {
                self.finish_iterations(env, item.iter)?;
            }
        }
        Ok(())
    }

    /// Ends `iter`, of which nothing is outstanding, and what that finishes in turn.
    #[cold]
    pub(crate) fn finish_iterations(&mut self, env: &Env, mut iter: u32) -> Result<()> {
        let mut n = 0u32;
        loop {
            let next = match self.iterations[iter as usize].owner {
                Owner::Loop(id) => self.advance_loop(env, id)?,
                Owner::Call(id) => Some(self.end_call(env, id)?),
            };
            let Some(next) = next else { return Ok(()) };
            iter = next;
            let it = &mut self.iterations[iter as usize];
            it.outstanding -= 1;
            if it.outstanding > 0 || iter == ROOT {
                return Ok(());
            }
            n += 1;
            if n.is_multiple_of(1024) {
                env.services.cancel.check()?;
            }
        }
    }
}
