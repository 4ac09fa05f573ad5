//! The nodes of a plan as kernels of a host program: [`HostExecutor`].

use super::Program;
use crate::Executor;
use crate::calls::is_true;
use crate::dataflow::no_panic;
use crate::trace::{NodeSpan, TraceSink, TracedTensor};
use ferroflow_base::{Result, Status, data_loss, internal, invalid_argument};
use ferroflow_host_context::{
    ExecutionContext, Frame, Function, HostContext, HostValue, KernelFrame, KernelRegistry, Values,
};
use ferroflow_opdef::{
    AsyncCall, Cost, Functions, KernelCtx, NodeInfo, OpKernel, Resources, StepServices, Value,
};
use ferroflow_program::bef::File;
use ferroflow_program::lower::{AFTER, BRANCH_INDEX, CONSTANT, MAIN, PREDICATE, PREFIX};
use ferroflow_program::{Action, NodeIdx, Plan, PlanNode, Wiring};
use ferroflow_sync::{
    AsyncValue, CancelToken, Chain, Diagnostic, MultiThreadedWorkQueue, Parallelism, Pool,
};
use ferroflow_tensor::{MallocAllocator, Tensor};
use smallvec::SmallVec;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

/// Runs a plan as the host program that `ferroflow_program::to_host_program` made of it.
pub struct HostExecutor {
    /// Has the plan, and the functions that its kernels call themselves.
    dataflow: Executor,
    main: Function,
    /// The host of the pool that ran the last step.
    host: Mutex<Option<(Arc<Pool>, Arc<HostContext>)>>,
}

/// What a kernel finds in place of the inputs that the program does not give it, and which inputs it
/// does.
struct Inputs {
    slots: Slots,
    given: SmallVec<[u32; 4]>,
}

/// One step, as its kernels see it.
struct Step {
    plan: Arc<Plan>,
    functions: Arc<dyn Functions>,
    pool: Arc<Pool>,
    resources: Arc<Resources>,
    trace: Option<Arc<dyn TraceSink>>,
    id: u64,
    /// What went wrong first.
    error: Mutex<Option<Status>>,
}

impl HostExecutor {
    /// An executor of `plan` and the program `file` that was made of it; `kernels` are those of the
    /// program that are not nodes.
    ///
    /// A program that is not one of this plan is an error, here or in a step.
    pub fn new(plan: Arc<Plan>, file: File, mut kernels: KernelRegistry) -> Result<HostExecutor> {
        let inputs: Arc<Vec<Inputs>> = Arc::new(inputs(&plan));
        for code in 0..file.n_kernels() {
            let name = file.kernel_name(code);
            if let Some(op) = name.strip_prefix(PREFIX) {
                let (inputs, op) = (inputs.clone(), op.to_string());
                kernels.add_raw(name, move |frame| run_node(frame, &inputs, &op));
            }
        }
        kernels
            .add_raw(CONSTANT, constant)
            .add_raw(PREDICATE, |frame| decide(frame, is_true))
            .add_raw(BRANCH_INDEX, |frame| {
                decide(frame, Tensor::to_scalar::<i32>)
            })
            .add_raw(AFTER, after);
        check_calls(&file)?;
        let program = Program::new(file, &kernels).map_err(|d| d.status)?;
        let main = program.function(MAIN);
        let main = main.ok_or_else(|| data_loss!("the BEF file has no function '{MAIN}'"))?;
        let root = plan.root();
        main.check_arity(root.args.len() + 1, root.n_results + 1)?;
        Ok(HostExecutor {
            dataflow: Executor::new(plan),
            main,
            host: Mutex::default(),
        })
    }

    /// The plan.
    pub fn plan(&self) -> &Plan {
        self.dataflow.plan()
    }

    /// Runs one step; as [`Executor::run`]. Kernels run in the order of the program, on the calling
    /// thread, and use `pool` for what they do; streams that are worth it run beside it. Traces do not
    /// count iterations, and have no spans of asynchronous kernels.
    pub fn run(
        &self,
        pool: &Arc<Pool>,
        resources: &Arc<Resources>,
        args: Vec<Tensor>,
        cancel: &CancelToken,
        trace: Option<Arc<dyn TraceSink>>,
    ) -> Result<Vec<Tensor>> {
        cancel.check()?;
        let step = Arc::new(Step {
            plan: self.dataflow.shared_plan().clone(),
            functions: self.dataflow.functions(),
            pool: pool.clone(),
            resources: resources.clone(),
            trace,
            id: Executor::next_step_id(),
            error: Mutex::new(None),
        });
        let ctx = ExecutionContext::for_request(self.host(pool), cancel, step.clone());
        let mut values = Values::new();
        values.push(AsyncValue::new(Chain));
        values.extend(args.into_iter().map(AsyncValue::new));
        let results = self.main.execute(&ctx, values);
        wait(pool, &results);
        if let Some(error) = step.first_error().take() {
            return Err(error);
        }
        if let Some(error) = results.iter().find_map(AsyncValue::error) {
            // Rather in the words of who gave the step up.
            cancel.check()?;
            return Err(error.status.clone());
        }
        results.into_iter().skip(1).map(take_tensor).collect()
    }

    /// A host whose tasks run on `pool`.
    fn host(&self, pool: &Arc<Pool>) -> Arc<HostContext> {
        let mut known = self.host.lock().unwrap_or_else(PoisonError::into_inner);
        match &*known {
            Some((of, host)) if Arc::ptr_eq(of, pool) => host.clone(),
            _ => {
                let queue = MultiThreadedWorkQueue::over(pool.clone(), pool.width(), 0);
                let (out, ignore) = (Box::new(std::io::sink()), |_: &Diagnostic| {});
                let allocator = Arc::new(MallocAllocator);
                let host = HostContext::in_order(Arc::new(queue), allocator, out, Box::new(ignore));
                *known = Some((pool.clone(), host.clone()));
                host
            }
        }
    }
}

fn inputs(plan: &Plan) -> Vec<Inputs> {
    let wiring = Wiring::of(plan);
    let mut all = Vec::with_capacity(plan.nodes.len());
    let mut frames = plan.frames.iter().peekable();
    let mut slots = &[][..];
    for ((i, node), sources) in plan.nodes.iter().enumerate().zip(&wiring.inputs) {
        while let Some(frame) = frames.next_if(|f| f.first_node as usize <= i) {
            slots = &frame.slots;
        }
        let first = node.first_slot as usize;
        let mine = slots.get(first..first + node.n_inputs as usize);
        let given = (0..).zip(sources).filter(|(_, s)| s.is_some());
        all.push(Inputs {
            slots: mine.unwrap_or(&[]).iter().cloned().collect(),
            given: given.map(|(i, _)| i).collect(),
        });
    }
    all
}

/// Functions that call themselves would fill the memory: no model has any.
fn check_calls(file: &File) -> Result<()> {
    let n = file.functions().len();
    let (mut left, mut callers) = (vec![0usize; n], vec![Vec::new(); n]);
    for (caller, n_left) in left.iter_mut().enumerate() {
        let body = file.body(caller)?;
        for callee in body.kernels().iter().flat_map(|k| body.functions(k)) {
            if let Some(list) = callers.get_mut(*callee as usize) {
                list.push(caller);
                *n_left += 1;
            }
        }
    }
    // Takes away functions whose callees are all gone.
    let mut open: Vec<usize> = (0..n).filter(|f| left[*f] == 0).collect();
    let mut n_gone = 0;
    while let Some(function) = open.pop() {
        n_gone += 1;
        for caller in std::mem::take(&mut callers[function]) {
            left[caller] -= 1;
            if left[caller] == 0 {
                open.push(caller);
            }
        }
    }
    match n_gone == n {
        true => Ok(()),
        false => Err(not_of_plan()),
    }
}

/// Runs tasks of the pool until all values are there.
fn wait(pool: &Arc<Pool>, values: &[AsyncValue]) {
    let late: Vec<&AsyncValue> = values.iter().filter(|v| !v.is_available()).collect();
    if late.is_empty() {
        return;
    }
    let left = Arc::new(AtomicUsize::new(late.len()));
    for value in late {
        let (left, pool) = (left.clone(), Arc::downgrade(pool));
        value.and_then(move || {
            left.fetch_sub(1, Ordering::AcqRel);
            if let Some(pool) = pool.upgrade() {
                pool.notify();
            }
        });
    }
    pool.help_until(&|| left.load(Ordering::Acquire) == 0);
}

/// The tensor of a value: its own, if nobody else has the value.
fn take_tensor(mut value: AsyncValue) -> Result<Tensor> {
    if let Some(tensor) = value.get_mut::<Tensor>() {
        return Ok(std::mem::replace(tensor, Tensor::scalar(false)));
    }
    value.expect::<Tensor>().cloned()
}

impl Step {
    fn of(ctx: &ExecutionContext) -> Result<&Step> {
        let step = ctx.data::<Step>();
        step.ok_or_else(|| invalid_argument!("kernels of a model run in the model's steps only"))
    }

    fn services<'a>(&'a self, ctx: &'a ExecutionContext) -> StepServices<'a> {
        StepServices {
            par: &*self.pool,
            cancel: ctx.token(),
            resources: &self.resources,
            functions: &*self.functions,
            step_id: self.id,
        }
    }

    fn first_error(&self) -> MutexGuard<'_, Option<Status>> {
        self.error.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Remembers what node `number` did wrong, if it is the first error of the step, and gives the step up.
#[cold]
fn give_up(ctx: &ExecutionContext, number: usize, error: Status) -> Status {
    let Ok(step) = Step::of(ctx) else {
        return error;
    };
    let error = match step.plan.info.get(number) {
        Some(info) => error.at_node(&info.name, &info.op),
        None => error,
    };
    step.first_error().get_or_insert_with(|| error.clone());
    ctx.cancel();
    error
}

fn not_of_plan() -> Status {
    data_loss!("the functions of the BEF file are not those of its graph")
}

/// A call of a node.
struct Call<'a> {
    ctx: &'a ExecutionContext,
    step: &'a Step,
    number: usize,
    node: &'a PlanNode,
    info: &'a NodeInfo,
}

/// Tensors of a call, most of which have a few.
type Slots = SmallVec<[Value; 3]>;

fn run_node(frame: &mut KernelFrame, all: &[Inputs], op: &str) -> Result<()> {
    let number = node_number(frame, 1)?;
    let ctx = frame.request();
    let step = Step::of(ctx)?;
    let node = step.plan.nodes.get(number).ok_or_else(not_of_plan)?;
    let info = step.plan.info.get(number).filter(|i| i.op == op);
    let (info, inputs) = info.zip(all.get(number)).ok_or_else(not_of_plan)?;
    if frame.n_args() < inputs.given.len() || frame.n_results() < usize::from(node.n_outputs) {
        return Err(not_of_plan());
    }
    let mut slots = Slots::new();
    slots.extend(inputs.slots.iter().cloned());
    for (arg, i) in inputs.given.iter().enumerate() {
        if let (Some(slot), Some(value)) = (slots.get_mut(*i as usize), frame.take_arg(arg)) {
            *slot = Value::Tensor(take_tensor(value)?);
        }
    }
    let call = Call {
        ctx,
        step,
        number,
        node,
        info,
    };
    let outcome = match node.cost {
        Cost::Async => call.start(frame, slots),
        _ => call.run(frame, &mut slots),
    };
    outcome.map_err(|e| give_up(ctx, number, e))
}

impl Call<'_> {
    /// Runs the node and sets the results.
    fn run(&self, frame: &mut KernelFrame, inputs: &mut Slots) -> Result<()> {
        let n_outputs = usize::from(self.node.n_outputs);
        let mut outputs = Slots::new();
        outputs.resize(n_outputs, Value::Empty);
        match &self.node.action {
            Action::Kernel(kernel) => no_panic(|| self.compute(&**kernel, inputs, &mut outputs))?,
            Action::Const(index) => {
                outputs.iter_mut().for_each(|o| *o = Value::Const(*index));
            }
            Action::Forward => {
                let inputs = inputs.iter_mut().map(std::mem::take);
                outputs.iter_mut().zip(inputs).for_each(|(o, i)| *o = i);
            }
            _ => return Err(not_of_plan()),
        }
        let consts = &self.step.plan.consts;
        for (i, output) in outputs.iter_mut().enumerate() {
            match own(std::mem::take(output), consts) {
                Some(tensor) => frame.emplace(i, tensor),
                None => return Err(internal!("output {i} is missing")),
            }
        }
        if frame.n_results() > n_outputs {
            frame.emplace(n_outputs, Chain);
        }
        Ok(())
    }

    fn compute(
        &self,
        kernel: &dyn OpKernel,
        inputs: &mut [Value],
        outputs: &mut [Value],
    ) -> Result<()> {
        let (plan, services) = (&*self.step.plan, self.step.services(self.ctx));
        let Some(trace) = self.step.trace.as_deref() else {
            let mut ctx = KernelCtx::new(self.info, inputs, &plan.consts, outputs, &services);
            return kernel.compute(&mut ctx);
        };
        let read = TracedTensor::all(plan, inputs);
        let start = Instant::now();
        let mut ctx = KernelCtx::new(self.info, inputs, &plan.consts, outputs, &services);
        kernel.compute(&mut ctx)?;
        trace.span(NodeSpan {
            node: self.info,
            frame: self.frame_name(),
            iteration: 0,
            start,
            end: Instant::now(),
            inputs: read,
            outputs: TracedTensor::all(plan, outputs),
        });
        Ok(())
    }

    /// The function that the node is in.
    fn frame_name(&self) -> &str {
        let plan = &self.step.plan;
        let frame = plan.frames.get(plan.frame_of(NodeIdx::new(self.number)));
        frame.map_or("", |f| &f.name)
    }

    /// Starts an asynchronous kernel; whoever ends it sets the results.
    fn start(&self, frame: &mut KernelFrame, inputs: Slots) -> Result<()> {
        let Action::Kernel(kernel) = &self.node.action else {
            return Err(not_of_plan());
        };
        let n_outputs = usize::from(self.node.n_outputs);
        let inputs = inputs.into_iter();
        let inputs = inputs
            .filter_map(|v| own(v, &self.step.plan.consts))
            .collect();
        let outputs: Vec<_> = (0..n_outputs)
            .map(|i| frame.allocate::<Tensor>(i))
            .collect();
        let end = (frame.n_results() > n_outputs).then(|| frame.allocate::<Chain>(n_outputs));
        let number = self.number;
        let (ctx, reporter) = (frame.request().clone(), frame.reporter());
        let done = move |results: Result<Vec<Tensor>>| match results {
            Ok(tensors) if tensors.len() == outputs.len() => {
                outputs
                    .into_iter()
                    .zip(tensors)
                    .for_each(|(p, t)| p.emplace(t));
                end.into_iter().for_each(|p| p.emplace(Chain));
            }
            results => {
                let status = results
                    .err()
                    .unwrap_or_else(|| internal!("an output is missing"));
                let error = reporter.report(give_up(&ctx, number, status));
                outputs.into_iter().for_each(|p| p.set_error(error.clone()));
                end.into_iter().for_each(|p| p.set_error(error.clone()));
            }
        };
        let mut call = AsyncCall::new(inputs, frame.request().token().clone(), done);
        call.step_id = self.step.id;
        no_panic(|| {
            kernel.start(call);
            Ok(())
        })
    }
}

/// A tensor of its own; nothing where nothing arrived.
fn own(value: Value, consts: &[Tensor]) -> Option<Tensor> {
    match value {
        Value::Tensor(tensor) => Some(tensor),
        Value::Const(index) => consts.get(index as usize).cloned(),
        Value::Empty => None,
    }
}

/// The number that attribute `i` is.
fn node_number(frame: &KernelFrame, i: usize) -> Result<usize> {
    let number = frame.attribute(i)?.number::<i32>()?;
    usize::try_from(number).map_err(|_| not_of_plan())
}

fn constant(frame: &mut KernelFrame) -> Result<()> {
    let index = node_number(frame, 0)?;
    let value = Step::of(frame.request())?.plan.consts.get(index);
    let value = value.ok_or_else(not_of_plan)?.clone();
    frame.emplace(0, value);
    Ok(())
}

/// What `read` finds in the first argument; an error is that of the node that attribute 0 names.
fn decide<T: HostValue>(
    frame: &mut KernelFrame,
    read: impl Fn(&Tensor) -> Result<T>,
) -> Result<()> {
    let read = frame.arg::<Tensor>(0).and_then(read);
    let value = read.or_else(|e| Err(give_up(frame.request(), node_number(frame, 0)?, e)))?;
    frame.emplace(0, value);
    Ok(())
}

fn after(frame: &mut KernelFrame) -> Result<()> {
    let mut args = frame.take_args();
    let first = args.len().checked_sub(frame.n_results());
    let results = args.drain(first.ok_or_else(not_of_plan)?..).collect();
    frame.set_results(results);
    Ok(())
}
