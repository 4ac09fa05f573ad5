//! The state of one step: iterations with their input slots and pending counts, ready nodes.
//!
//! All iterations of all frames are in two arrays, `slots` and `pending`; an iteration is a range
//! of each and goes back to its frame's free list when it is done, so that further iterations
//! allocate nothing. Invariants:
//! - the root call is call 0 with iteration 0, whose range begins at 0;
//! - `outstanding` of an iteration counts its nodes that are ready or running, the loops and calls
//!   that were entered from it, and one while its call is being started; it is done when that is 0
//!   (a loop's further when all Enters have arrived or the iteration before it is done); one that runs by
//!   its schedule counts itself as one node;
//! - a pending count is the number of edges that have not arrived, with `DEAD` set as soon as one
//!   of them was dead; that of a Merge is a `ferroflow_program::MergeState`.

use crate::kernel::Env;
use crate::offloaded::OffloadedNode;
use ferroflow_base::{Result, Status, internal, resource_exhausted};
use ferroflow_opdef::{Cost, OpKernel, Value};
use ferroflow_program::{Action, Frame, FrameIdx, Node, NodeIdx, Plan};
use ferroflow_tensor::Tensor;
use smallvec::SmallVec;
use std::time::Instant;

/// Most input slots of all iterations of a step: 1 GB.
const MAX_SLOTS: usize = 1 << 26;

/// Outputs of a node that ran away from the state's lock.
pub(crate) type Outputs = SmallVec<[Value; 2]>;

/// A node in an iteration.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct TaggedNode {
    pub(crate) node: NodeIdx,
    pub(crate) iter: u32,
}

/// The owner of an iteration.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Owner {
    /// A function call, by position in `calls`.
    Call(u32),
    /// A loop, by position in `loops`.
    Loop(u32),
}

pub(crate) struct Iteration {
    pub(crate) slot_base: u32,
    /// Added (wrapping) to a node's index it is the node's place in `pending`.
    pub(crate) pending_base: u32,
    pub(crate) outstanding: u32,
    pub(crate) owner: Owner,
    pub(crate) frame: FrameIdx,
    /// 0 for calls.
    pub(crate) number: u64,
    /// Whether its nodes run by the frame's static schedule.
    pub(crate) is_scheduled: bool,
    /// If so, how many have run.
    pub(crate) cursor: u32,
    /// Loops that were entered from here: frame, position in `loops`.
    pub(crate) children: SmallVec<[(FrameIdx, u32); 1]>,
}

/// All that a step changes. Between steps every slot is as in the plan's template, so that
/// starting a step copies only the pending counts of its root.
#[derive(Default)]
pub(crate) struct StepState {
    pub(crate) slots: Vec<Value>,
    pub(crate) pending: Vec<u32>,
    pub(crate) iterations: Vec<Iteration>,
    /// Finished iterations of each frame, for reuse.
    free: Vec<Vec<u32>>,
    pub(crate) calls: crate::calls::Calls,
    pub(crate) loops: crate::loops::Loops,
    /// Ready nodes to run at once, depth first.
    pub(crate) inexpensive: Vec<TaggedNode>,
    /// Ready nodes that may run elsewhere.
    pub(crate) expensive: Vec<TaggedNode>,
    /// Ready nodes with a dead input, and a node that it came from.
    pub(crate) dead: Vec<(TaggedNode, NodeIdx)>,
    pub(crate) outputs: Vec<Value>,
    /// Arguments of a call on their way, and those of a condition: kept for their memory.
    pub(crate) args: Vec<Option<Tensor>>,
    pub(crate) copies: Vec<Option<Tensor>>,
    /// Variables of a loop that are exchanged, on their way.
    pub(crate) exchanged: Vec<Value>,
    /// Nodes that run away from the lock right now.
    pub(crate) in_flight: usize,
    pub(crate) error: Option<Status>,
    /// Nodes that have run by schedules.
    pub(crate) n_scheduled: u32,
    pub(crate) memory: crate::memory::Kept,
}

/// The iteration of the root call.
pub(crate) const ROOT: u32 = 0;

/// Whether an iteration of `frame` reads its range of `pending`.
fn needs_pending(frame: &Frame, is_scheduled: bool) -> bool {
    !is_scheduled || frame.schedule.as_ref().is_some_and(|s| s.has_dead)
}

impl StepState {
    /// The state before the first step.
    pub(crate) fn new(plan: &Plan) -> Self {
        let mut state = StepState {
            outputs: vec![Value::Empty; plan.max_outputs()],
            free: vec![Vec::new(); plan.frames.len()],
            ..Default::default()
        };
        let root = FrameIdx::new(0);
        let call = state.calls.add_root();
        state.new_iteration(plan, root, Owner::Call(call), 0, false);
        state
    }

    /// Whether the step is over and its state was taken out.
    pub(crate) fn is_taken(&self) -> bool {
        self.iterations.is_empty()
    }

    /// Starts the step's call with these arguments.
    pub(crate) fn start(&mut self, env: &Env, args: Vec<Tensor>) -> Result<()> {
        debug_assert!(
            self.inexpensive.is_empty() && self.expensive.is_empty() && self.in_flight == 0
        );
        let root = env.plan.root();
        if args.len() != root.args.len() {
            return Err(internal!(
                "{} arguments given, {} expected",
                args.len(),
                root.args.len()
            ));
        }
        let frame = &mut self.iterations[ROOT as usize];
        frame.outstanding = 1;
        frame.cursor = 0;
        // Its variables may be of any size.
        frame.is_scheduled = env.uses_schedule(root, || false);
        if needs_pending(root, frame.is_scheduled) {
            self.pending[..root.pending.len()].copy_from_slice(&root.pending);
        }
        let mut args: SmallVec<[Option<Tensor>; 8]> = args.into_iter().map(Some).collect();
        self.begin_function(env, FrameIdx::new(0), ROOT, &mut args);
        self.iterations[ROOT as usize].outstanding -= 1;
        Ok(())
    }

    /// Schedules the roots of a function and delivers its arguments, which are taken.
    pub(crate) fn begin_function(
        &mut self,
        env: &Env,
        frame: FrameIdx,
        iter: u32,
        args: &mut [Option<Tensor>],
    ) {
        let frame = &env.plan.frames[frame.index()];
        self.set_const_results(env.plan, frame, iter);
        if self.iterations[iter as usize].is_scheduled
            && let Some(schedule) = &frame.schedule
        {
            self.deliver_args(schedule, iter, args);
            return self.resume_schedule(iter);
        }
        // Roots run in plan order: the stack pops from its end.
        for &node in frame.roots.iter().rev() {
            self.schedule(env, TaggedNode { node, iter });
        }
        self.iterations[iter as usize].outstanding += frame.roots.len() as u32;
        for (arg, value) in frame.args.iter().zip(args) {
            if let Some(idx) = arg {
                let value = value.take().into();
                self.forward_output(env, TaggedNode { node: *idx, iter }, value);
            }
        }
    }

    /// Sets the results that are constants.
    #[inline]
    pub(crate) fn set_const_results(&mut self, plan: &Plan, frame: &Frame, iter: u32) {
        let base = self.iterations[iter as usize].slot_base + frame.first_result;
        for &(result, constant) in &frame.const_results {
            let value = plan.consts.get(constant as usize).cloned();
            self.slots[(base + result) as usize] = value.into();
        }
    }

    /// The slots of the results of a function that runs in `iter`.
    #[inline]
    pub(crate) fn results_of(&mut self, plan: &Plan, iter: u32) -> &mut [Value] {
        let it = &self.iterations[iter as usize];
        let frame = &plan.frames[it.frame.index()];
        let first = (it.slot_base + frame.first_result) as usize;
        &mut self.slots[first..first + frame.n_results]
    }

    /// Fails when the step's iterations take more memory than any sensible step.
    pub(crate) fn check_size(&self) -> Result<()> {
        if self.slots.len() < MAX_SLOTS && self.pending.len() < MAX_SLOTS {
            return Ok(());
        }
        Err(resource_exhausted!(
            "the step has {} iterations of loops and functions in progress at the same time; does \
             the recursion end?",
            self.iterations.len()
        ))
    }

    /// A fresh iteration of `frame`, from its free list if there is one.
    pub(crate) fn new_iteration(
        &mut self,
        plan: &Plan,
        frame: FrameIdx,
        owner: Owner,
        number: u64,
        is_scheduled: bool,
    ) -> u32 {
        let template = &plan.frames[frame.index()];
        if let Some(id) = self.free[frame.index()].pop() {
            let it = &mut self.iterations[id as usize];
            (it.owner, it.number) = (owner, number);
            (it.is_scheduled, it.cursor) = (is_scheduled, 0);
            if needs_pending(template, is_scheduled) {
                self.reset_pending(id, template);
            }
            return id;
        }
        let id = self.iterations.len() as u32;
        self.iterations.push(Iteration {
            slot_base: self.slots.len() as u32,
            pending_base: (self.pending.len() as u32).wrapping_sub(template.first_node),
            outstanding: 0,
            owner,
            frame,
            number,
            is_scheduled,
            cursor: 0,
            children: SmallVec::new(),
        });
        self.slots.extend_from_slice(&template.slots);
        self.pending.extend_from_slice(&template.pending);
        id
    }

    /// Sets the counts of an iteration to what they are at its beginning.
    pub(crate) fn reset_pending(&mut self, iter: u32, template: &Frame) {
        let base = self.iterations[iter as usize].pending_base;
        let first = base.wrapping_add(template.first_node) as usize;
        self.pending[first..first + template.pending.len()].copy_from_slice(&template.pending);
    }

    /// Returns an iteration to the free list.
    pub(crate) fn free_iteration(&mut self, iter: u32) {
        let it = &mut self.iterations[iter as usize];
        debug_assert_eq!(it.outstanding, 0);
        debug_assert!(it.children.is_empty());
        self.free[it.frame.index()].push(iter);
    }

    /// A ready node to run at once.
    #[inline]
    pub(crate) fn next_inexpensive(&mut self) -> Option<TaggedNode> {
        self.inexpensive.pop()
    }

    /// A ready expensive node.
    pub(crate) fn next_expensive(&mut self) -> Option<TaggedNode> {
        self.expensive.pop()
    }

    /// Whether expensive nodes are ready that one thread alone cannot serve.
    pub(crate) fn needs_dispatch(&self, plan: &Plan) -> bool {
        self.expensive.len() > 1
            || self
                .expensive
                .first()
                .is_some_and(|i| plan.nodes[i.node.index()].cost == Cost::Async)
    }

    /// Runs a node in place and passes its outputs on.
    #[inline]
    pub(crate) fn run(&mut self, env: &Env, item: TaggedNode) -> Result<()> {
        if self.iterations[item.iter as usize].is_scheduled {
            return self.run_schedule(env, item.iter);
        }
        let node = &env.plan.nodes[item.node.index()];
        match &node.action {
            Action::Kernel(kernel) => self.run_kernel::<false>(env, item, node, &**kernel)?,
            _ if env.trace.is_some() => {
                let it = &self.iterations[item.iter as usize];
                let (place, start) = ((it.frame, it.number), Instant::now());
                self.run_control(env, item)?;
                env.record(item.node, place, start, Vec::new(), &[]);
                return Ok(());
            }
            _ => return self.run_control(env, item),
        }
        self.release(env, item.iter)
    }

    #[inline(always)]
    pub(crate) fn run_kernel<const SCHEDULED: bool>(
        &mut self,
        env: &Env,
        item: TaggedNode,
        node: &Node,
        kernel: &dyn OpKernel,
    ) -> Result<()> {
        let it = &self.iterations[item.iter as usize];
        let (base, place) = (it.slot_base, (it.frame, it.number));
        let first = (base + node.first_slot) as usize;
        let inputs = first..first + node.n_inputs as usize;
        match node.forward_slot.get() {
            Some(slot) => {
                // The output is written right to the slot of its last reader.
                let at = (base + slot) as usize;
                let Ok([inputs, output]) = self.slots.get_disjoint_mut([inputs, at..at + 1]) else {
                    return Err(internal!("a node reads its own output"));
                };
                env.compute(kernel, item.node, place, inputs, output)?;
                inputs.iter_mut().for_each(Value::clear);
                match SCHEDULED {
                    true => self.deliver_forwarded(env, item, at),
                    false => self.propagate_forwarded(env, item, at),
                }
            }
            None => {
                let inputs = &mut self.slots[inputs];
                let outputs = &mut self.outputs[..node.n_outputs as usize];
                env.compute(kernel, item.node, place, inputs, outputs)?;
                inputs.iter_mut().for_each(Value::clear);
                match SCHEDULED {
                    true => self.deliver::<true>(env, item.node, item.iter),
                    false => self.propagate::<true>(env, item.node, item.iter),
                }
            }
        }
        Ok(())
    }

    /// Takes the inputs of a ready node out, so that it can run away from the lock.
    pub(crate) fn take_inputs(&mut self, plan: &Plan, item: TaggedNode) -> OffloadedNode {
        let node = &plan.nodes[item.node.index()];
        let it = &self.iterations[item.iter as usize];
        let place = (it.frame, it.number);
        let first = (it.slot_base + node.first_slot) as usize;
        let take = |slot: &mut Value| match slot {
            Value::Const(c) => Value::Const(*c),
            slot => std::mem::take(slot),
        };
        let inputs = self.slots[first..first + node.n_inputs as usize]
            .iter_mut()
            .map(take)
            .collect();
        self.in_flight += 1;
        OffloadedNode {
            item,
            place,
            inputs,
        }
    }

    /// Takes the outputs of an offloaded node and propagates them.
    pub(crate) fn complete(&mut self, env: &Env, item: TaggedNode, outputs: Outputs) -> Result<()> {
        self.in_flight -= 1;
        for (slot, output) in self.outputs.iter_mut().zip(outputs) {
            *slot = output;
        }
        self.propagate::<true>(env, item.node, item.iter);
        self.release(env, item.iter)
    }

    /// Drops what a step with loops or calls may have left in its slots, for the next one.
    pub(crate) fn clean(&mut self, plan: &Plan) {
        if plan.frames.len() == 1 {
            return;
        }
        self.loops.clear();
        self.calls.clear();
        self.iterations.truncate(1);
        self.free.iter_mut().for_each(Vec::clear);
        let root = plan.root();
        self.slots.truncate(root.slots.len());
        self.pending.truncate(root.pending.len());
        self.slots.clone_from_slice(&root.slots);
        let root = &mut self.iterations[ROOT as usize];
        root.children.clear();
        root.outstanding = 0;
    }
}
