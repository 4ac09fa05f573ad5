//! The state of one step: input slots, pending counts, ready nodes.

use crate::trace::{NodeSpan, TraceSink};
use ferroflow_base::{Result, Status, internal};
use ferroflow_opdef::{Cost, KernelCtx, OpKernel, StepServices, Value};
use ferroflow_program::{Action, NodeIdx, Plan, PlanNode, Target};
use ferroflow_tensor::Tensor;
use smallvec::SmallVec;
use std::time::Instant;

/// Inputs of this many bytes make a `Cost::BySize` node worth a task of its own.
const HEAVY_BYTES: usize = 64 << 10;

/// Outputs of a node that ran away from the state's lock.
pub(crate) type Outputs = SmallVec<[Option<Tensor>; 2]>;

/// All that a step changes. Between steps every slot is as in the plan's template, so that
/// starting a step copies only the pending counts.
#[derive(Default)]
pub(crate) struct StepState {
    slots: Vec<Value>,
    pending: Vec<u32>,
    /// Ready nodes to run at once, depth first.
    light: Vec<NodeIdx>,
    /// Ready nodes that may run elsewhere.
    heavy: Vec<NodeIdx>,
    outputs: Vec<Option<Tensor>>,
    results: Vec<Option<Tensor>>,
    /// Nodes that run away from the lock right now.
    pub(crate) in_flight: usize,
    /// Nodes that are done.
    pub(crate) n_done: usize,
    pub(crate) error: Option<Status>,
}

/// A node whose inputs were taken out of the state.
pub(crate) struct Detached {
    pub(crate) node: NodeIdx,
    inputs: SmallVec<[Value; 4]>,
}

impl StepState {
    /// The state before the first step.
    pub(crate) fn new(plan: &Plan) -> Self {
        StepState {
            slots: plan.root.slots.clone(),
            pending: plan.root.pending.clone(),
            outputs: vec![None; plan.max_outputs],
            ..Default::default()
        }
    }

    /// Prepares for a step with these arguments. `spread` says whether heavy nodes are kept apart.
    pub(crate) fn start(&mut self, plan: &Plan, args: Vec<Tensor>, spread: bool) -> Result<()> {
        debug_assert!(self.light.is_empty() && self.heavy.is_empty() && self.in_flight == 0);
        self.pending.copy_from_slice(&plan.root.pending);
        self.results.clear();
        self.results.resize(plan.n_results, None);
        self.n_done = 0;
        for &(result, constant) in &plan.const_results {
            self.results[result as usize] = plan.consts.get(constant as usize).cloned();
        }
        if args.len() != plan.n_args {
            return Err(internal!(
                "{} arguments given, {} expected",
                args.len(),
                plan.n_args
            ));
        }
        // Roots run in plan order: the stack pops from its end.
        for &root in plan.roots.iter().rev() {
            if !matches!(plan.nodes[root.index()].action, Action::Arg(_)) {
                self.schedule(plan, root, spread);
            }
        }
        let mut args: Vec<Option<Tensor>> = args.into_iter().map(Some).collect();
        for &root in plan.roots.iter().rev() {
            let node = &plan.nodes[root.index()];
            if let Action::Arg(index) = node.action {
                self.outputs[0] = args[index as usize].take();
                self.propagate(plan, node, spread);
            }
        }
        Ok(())
    }

    /// A ready node to run at once.
    #[inline]
    pub(crate) fn next_light(&mut self) -> Option<NodeIdx> {
        self.light.pop()
    }

    /// A ready heavy node.
    pub(crate) fn next_heavy(&mut self) -> Option<NodeIdx> {
        self.heavy.pop()
    }

    /// How many heavy nodes are ready.
    pub(crate) fn n_heavy(&self) -> usize {
        self.heavy.len()
    }

    /// The step's results; every one is set when all nodes are done.
    pub(crate) fn take_results(&mut self) -> Result<Vec<Tensor>> {
        let results: Option<Vec<Tensor>> = self.results.drain(..).collect();
        results.ok_or_else(|| internal!("the step ended without producing all results"))
    }

    /// Runs a node in place and passes its outputs on.
    #[inline]
    pub(crate) fn run(
        &mut self,
        plan: &Plan,
        idx: NodeIdx,
        services: StepServices,
        trace: Option<&dyn TraceSink>,
        spread: bool,
    ) -> Result<()> {
        let node = &plan.nodes[idx.index()];
        let first = node.first_slot as usize;
        let inputs = &mut self.slots[first..first + node.n_inputs as usize];
        match &node.action {
            Action::Kernel(kernel) => {
                let outputs = &mut self.outputs[..node.n_outputs as usize];
                call(plan, idx, kernel.as_ref(), inputs, outputs, services, trace)?;
                for slot in inputs {
                    if !matches!(slot, Value::Const(_)) {
                        *slot = Value::Empty;
                    }
                }
            }
            Action::Retval(index) => {
                self.results[*index as usize] = match &mut inputs[0] {
                    Value::Const(c) => plan.consts.get(*c as usize).cloned(),
                    slot => match std::mem::take(slot) {
                        Value::Tensor(t) => Some(t),
                        _ => None,
                    },
                };
            }
            Action::Arg(_) => {}
        }
        self.n_done += 1;
        self.propagate(plan, node, spread);
        Ok(())
    }

    /// Takes the inputs of a ready node out, so that it can run away from the lock.
    pub(crate) fn detach(&mut self, plan: &Plan, idx: NodeIdx) -> Detached {
        let node = &plan.nodes[idx.index()];
        let first = node.first_slot as usize;
        let take = |slot: &mut Value| match slot {
            Value::Const(c) => Value::Const(*c),
            slot => std::mem::take(slot),
        };
        let inputs = self.slots[first..first + node.n_inputs as usize]
            .iter_mut()
            .map(take)
            .collect();
        self.in_flight += 1;
        Detached { node: idx, inputs }
    }

    /// Takes the outputs of a detached node back in and passes them on.
    pub(crate) fn attach(&mut self, plan: &Plan, idx: NodeIdx, outputs: Outputs, spread: bool) {
        self.in_flight -= 1;
        self.n_done += 1;
        for (slot, output) in self.outputs.iter_mut().zip(outputs) {
            *slot = output;
        }
        self.propagate(plan, &plan.nodes[idx.index()], spread);
    }

    #[inline]
    fn schedule(&mut self, plan: &Plan, idx: NodeIdx, spread: bool) {
        if spread && self.is_heavy(&plan.nodes[idx.index()]) {
            self.heavy.push(idx);
        } else {
            self.light.push(idx);
        }
    }

    fn is_heavy(&self, node: &PlanNode) -> bool {
        match (&node.action, node.cost) {
            (Action::Arg(_) | Action::Retval(_), _) | (_, Cost::Cheap) => false,
            (_, Cost::Expensive | Cost::Async) => true,
            (_, Cost::BySize) => {
                let first = node.first_slot as usize;
                let slots = &self.slots[first..first + node.n_inputs as usize];
                slots
                    .iter()
                    .any(|s| matches!(s, Value::Tensor(t) if t.byte_len() >= HEAVY_BYTES))
            }
        }
    }

    /// Hands `self.outputs` to the consumers of `node`; those that now have all inputs are ready.
    #[inline]
    fn propagate(&mut self, plan: &Plan, node: &PlanNode, spread: bool) {
        for edge in plan.edges_of(node) {
            if let Target::Slot(slot) = edge.target {
                let output = &mut self.outputs[edge.output as usize];
                let value = if edge.last {
                    output.take()
                } else {
                    output.clone()
                };
                self.slots[slot as usize] = value.map_or(Value::Empty, Value::Tensor);
            }
            let pending = &mut self.pending[edge.node.index()];
            *pending -= 1;
            if *pending == 0 {
                self.schedule(plan, edge.node, spread);
            }
        }
        // Outputs that nobody reads must not outlive the node.
        for output in &mut self.outputs[..node.n_outputs as usize] {
            if output.is_some() {
                *output = None;
            }
        }
    }
}

impl Detached {
    /// Calls the kernel.
    pub(crate) fn run(
        mut self,
        plan: &Plan,
        services: StepServices,
        trace: Option<&dyn TraceSink>,
    ) -> Result<Outputs> {
        let node = &plan.nodes[self.node.index()];
        let mut outputs: Outputs = smallvec::smallvec![None; node.n_outputs as usize];
        if let Action::Kernel(kernel) = &node.action {
            call(
                plan,
                self.node,
                kernel.as_ref(),
                &mut self.inputs,
                &mut outputs,
                services,
                trace,
            )?;
        }
        Ok(outputs)
    }
}

#[inline]
fn call(
    plan: &Plan,
    idx: NodeIdx,
    kernel: &dyn OpKernel,
    inputs: &mut [Value],
    outputs: &mut [Option<Tensor>],
    services: StepServices,
    trace: Option<&dyn TraceSink>,
) -> Result<()> {
    let info = &plan.info[idx.index()];
    if let Some(trace) = trace {
        return traced_call(plan, idx, kernel, inputs, outputs, services, trace);
    }
    let mut ctx = KernelCtx::new(info, inputs, &plan.consts, outputs, services);
    kernel
        .compute(&mut ctx)
        .map_err(|e| e.at_node(&info.name, &info.op))
}

#[cold]
fn traced_call(
    plan: &Plan,
    idx: NodeIdx,
    kernel: &dyn OpKernel,
    inputs: &mut [Value],
    outputs: &mut [Option<Tensor>],
    services: StepServices,
    trace: &dyn TraceSink,
) -> Result<()> {
    let info = &plan.info[idx.index()];
    let show = |t: &Tensor| format!("{}{}", t.dtype(), t.shape());
    let shown: Vec<String> = inputs
        .iter()
        .map(|v| match v {
            Value::Tensor(t) => show(t),
            Value::Const(c) => plan.consts.get(*c as usize).map_or(String::new(), show),
            Value::Empty => "packed".to_string(),
        })
        .collect();
    let start = Instant::now();
    let mut ctx = KernelCtx::new(info, inputs, &plan.consts, outputs, services);
    let result = kernel
        .compute(&mut ctx)
        .map_err(|e| e.at_node(&info.name, &info.op));
    let end = Instant::now();
    let out: Vec<String> = outputs.iter().flatten().map(show).collect();
    trace.span(NodeSpan {
        node: info,
        start,
        end,
        inputs: shown.join(", "),
        outputs: out.join(", "),
    });
    result
}
