//! Kernel calls: what a step provides to kernels, traces of calls, and the node of an error.

use crate::memory::StepMemory;
use crate::trace::{NodeSpan, TraceSink, TracedTensor};
use ferroflow_base::{Result, Status};
use ferroflow_opdef::{
    Cost, Functions, KernelCtx, NodeInfo, OpKernel, Rendezvous, Resources, StepServices, Value,
};
use ferroflow_program::{Frame, FrameIdx, NodeIdx, Plan};
use ferroflow_sync::{CancelToken, Pool};
use ferroflow_tensor::Tensor;
use std::sync::Arc;
use std::time::Instant;

/// The arguments of a step (TensorFlow's `Executor::Args`).
pub struct RunArgs<'a> {
    /// The arguments of the plan's function.
    pub args: Vec<Tensor>,
    /// The number of the step, which the plans of a step share; a new one by default.
    pub step_id: Option<u64>,
    /// Threads that compute, besides the calling one.
    pub pool: &'a Arc<Pool>,
    /// State that outlives the step.
    pub resources: &'a Resources,
    /// Where `_Send` and `_Recv` nodes meet; a plan without any needs none.
    pub rendezvous: Option<&'a Arc<dyn Rendezvous>>,
    /// Ends the step when cancelled.
    pub cancel: &'a CancelToken,
    /// Receives a span for every node.
    pub trace: Option<&'a Arc<dyn TraceSink>>,
    /// Runs the nodes, if not the pool and the calling thread do. Only for [`Executor::run_async`].
    ///
    /// [`Executor::run_async`]: crate::Executor::run_async
    pub runner: Option<&'a Arc<dyn NodeRunner>>,
}

/// What runs the nodes of a step in place of the pool: a stream of a device.
pub trait NodeRunner: Send + Sync {
    /// Runs a task behind those before, not on the calling thread.
    fn spawn(&self, task: Box<dyn FnOnce() + Send>);

    /// Calls the kernel of a node, in a task of [`NodeRunner::spawn`].
    ///
    /// # Errors
    /// Those of the kernel.
    fn run(&self, node: &NodeInfo, kernel: &mut dyn FnMut() -> Result<()>) -> Result<()>;

    /// Whether expensive nodes become tasks of their own.
    fn offloads(&self) -> bool {
        true
    }
}

/// The environment of all nodes of a step.
pub(crate) struct Env<'a> {
    pub(crate) plan: &'a Plan,
    pub(crate) services: StepServices<'a>,
    pub(crate) rendezvous: Option<&'a Arc<dyn Rendezvous>>,
    pub(crate) trace: Option<&'a dyn TraceSink>,
    runner: Option<&'a dyn NodeRunner>,
    memory: Option<&'a StepMemory>,
    /// Nodes below this index are watched: all by a trace or a runner, those of the root frame by planned memory. One
    /// check for each node.
    n_watched: usize,
    /// Whether nodes may run by static schedules: neither a trace nor a runner watches them.
    in_order: bool,
    /// Whether expensive nodes may run on other threads.
    pub(crate) dispatches: bool,
    /// Whether those that compute do, besides those that wait.
    pub(crate) offloads: bool,
}

/// Tells the compiler that what calls it is seldom reached.
#[cold]
#[inline]
fn seldom() {}

/// Frame and iteration, for traces.
pub(crate) type Place = (FrameIdx, u64);

impl<'a> Env<'a> {
    /// The environment of step `id`.
    #[inline]
    pub(crate) fn new(
        plan: &'a Plan,
        functions: &'a dyn Functions,
        with: &RunArgs<'a>,
        id: u64,
        dispatches: bool,
    ) -> Env<'a> {
        let is_watched = with.trace.is_some() || with.runner.is_some();
        Env {
            plan,
            services: StepServices {
                par: &**with.pool,
                cancel: with.cancel,
                resources: with.resources,
                functions,
                step_id: id,
            },
            rendezvous: with.rendezvous,
            trace: with.trace.map(|trace| &**trace),
            runner: with.runner.map(|runner| &**runner),
            memory: None,
            n_watched: match is_watched {
                true => usize::MAX,
                false => 0,
            },
            in_order: !is_watched,
            dispatches,
            offloads: with.runner.is_none_or(|runner| runner.offloads()),
        }
    }

    /// Takes the memory of nodes from `memory`, if any.
    #[inline]
    pub(crate) fn set_memory(&mut self, memory: Option<&'a StepMemory>) {
        self.memory = memory;
        if memory.is_some() {
            self.n_watched = self.n_watched.max(self.plan.root().pending.len());
        }
    }

    /// Whether an iteration of `frame` that begins now runs by its static schedule. `is_small` says whether what it
    /// begins with is too small for nodes to be worth tasks of their own.
    #[inline]
    pub(crate) fn uses_schedule(&self, frame: &Frame, is_small: impl FnOnce() -> bool) -> bool {
        let Some(schedule) = &frame.schedule else {
            return false;
        };
        let fits = || match schedule.cost {
            Cost::Cheap => true,
            Cost::BySize => is_small(),
            Cost::Expensive | Cost::Async => false,
        };
        self.in_order && (!self.dispatches || fits())
    }

    /// Calls the kernel of `node`. An error names the node.
    #[inline]
    pub(crate) fn compute(
        &self,
        kernel: &dyn OpKernel,
        node: NodeIdx,
        place: Place,
        inputs: &mut [Value],
        outputs: &mut [Value],
    ) -> Result<()> {
        if node.index() < self.n_watched {
            seldom();
            return self.watched_compute(kernel, node, place, inputs, outputs);
        }
        let (plan, info) = (self.plan, &self.plan.info[node.index()]);
        let mut ctx = KernelCtx::new(info, inputs, &plan.consts, outputs, &self.services);
        let result = kernel.compute(&mut ctx);
        result.map_err(|e| self.at_node(node, e))
    }

    /// Calls the kernel with the step's memory and through the runner, if any.
    #[inline]
    fn call(
        &self,
        kernel: &dyn OpKernel,
        node: NodeIdx,
        inputs: &mut [Value],
        outputs: &mut [Value],
    ) -> Result<()> {
        let (plan, info) = (self.plan, &self.plan.info[node.index()]);
        let compute = |inputs: &mut [Value], outputs: &mut [Value]| {
            let mut ctx = KernelCtx::new(info, inputs, &plan.consts, outputs, &self.services);
            match self.runner {
                None => kernel.compute(&mut ctx),
                Some(runner) => runner.run(info, &mut || kernel.compute(&mut ctx)),
            }
        };
        let result = match self.memory {
            None => compute(inputs, outputs),
            Some(memory) => memory.call(node, inputs, outputs, |v| self.traced(v), compute),
        };
        result.map_err(|e| self.at_node(node, e))
    }

    /// [`Env::compute`] with a runner, a trace or planned memory.
    #[inline(never)]
    fn watched_compute(
        &self,
        kernel: &dyn OpKernel,
        node: NodeIdx,
        place: Place,
        inputs: &mut [Value],
        outputs: &mut [Value],
    ) -> Result<()> {
        if self.trace.is_none() {
            return self.call(kernel, node, inputs, outputs);
        }
        self.traced_compute(kernel, node, place, inputs, outputs)
    }

    #[cold]
    fn traced_compute(
        &self,
        kernel: &dyn OpKernel,
        node: NodeIdx,
        place: Place,
        inputs: &mut [Value],
        outputs: &mut [Value],
    ) -> Result<()> {
        let (read, start) = (self.traced(inputs), Instant::now());
        let result = self.call(kernel, node, inputs, outputs);
        self.record(node, place, start, read, outputs);
        result
    }

    /// Traces a node that began at `start` and has just ended.
    #[cold]
    pub(crate) fn record(
        &self,
        node: NodeIdx,
        (frame, iteration): Place,
        start: Instant,
        inputs: Vec<TracedTensor>,
        outputs: &[Value],
    ) {
        let end = Instant::now();
        if let Some(trace) = self.trace {
            trace.span(NodeSpan {
                node: &self.plan.info[node.index()],
                frame: &self.plan.frames[frame.index()].name,
                iteration,
                start,
                end,
                inputs,
                outputs: self.traced(outputs),
            });
        }
    }

    fn traced(&self, values: &[Value]) -> Vec<TracedTensor> {
        let tensor = |value| match value {
            &Value::Const(c) => self.plan.consts.get(c as usize),
            Value::Tensor(t) => Some(t),
            Value::Empty => None,
        };
        let tensors = values.iter().filter_map(tensor);
        tensors.map(TracedTensor::of).collect()
    }

    /// The error with the node's name and op.
    #[cold]
    pub(crate) fn at_node(&self, node: NodeIdx, error: Status) -> Status {
        let info = &self.plan.info[node.index()];
        error.at_node(&info.name, &info.op)
    }
}
