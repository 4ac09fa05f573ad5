//! The engine `dataflow`: runs every node whose inputs have all arrived.
//!
//! One thread at a time owns a step's state and propagates values, without an atomic per node.
//! Inexpensive nodes run right there. When several expensive nodes are ready and there are threads to
//! take them, all but one leave the state (their inputs are moved out) and run as tasks of the
//! pool; a finished one puts its outputs into the step's inbox, and the thread that then gets the state's
//! lock carries on: the former owner, or the thread that just finished. `ferroflow_sync::Mailbox` is
//! this protocol, which loses no completion.

use crate::kernel::{Env, NodeRunner, RunArgs};
use crate::memory::{Memory, MemoryUse, StepMemory};
use crate::offloaded::OffloadedNode;
use crate::state::{Outputs, StepState, TaggedNode};
use crate::trace::TraceSink;
use ferroflow_base::{Code, Result, Status, internal, invalid_argument};
use ferroflow_opdef::{Callable, Cost, Functions, Rendezvous, Resources, StepServices, Value};
use ferroflow_program::{Action, Plan};
use ferroflow_sync::{CancelToken, FlushDenormals, Mailbox, Parallelism, Pool, Registration};
use ferroflow_tensor::{Tensor, outside_arenas};
use std::collections::{BTreeMap, HashMap};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

/// Inexpensive nodes between two checks of the cancellation token.
const CANCEL_INTERVAL: usize = 256;
/// States kept for reuse.
const MAX_IDLE_STATES: usize = 64;

/// Runs one plan, any number of steps at the same time.
pub struct Executor {
    plan: Arc<Plan>,
    functions: FunctionTable,
    has_async: bool,
    has_transfers: bool,
    idle: Mutex<Vec<StepState>>,
    memory: Memory,
}

/// The functions that kernels of a plan call themselves.
#[derive(Default)]
struct FunctionTable(BTreeMap<String, Arc<Function>>);

impl Functions for FunctionTable {
    fn get(&self, name: &str) -> Option<Arc<dyn Callable>> {
        Some(self.0.get(name)?.clone())
    }
}

/// Receives the results of a step.
type Done = Box<dyn FnOnce(Result<Vec<Tensor>>) + Send>;

/// A step that several threads carry on.
pub(crate) struct Step {
    executor: Arc<Executor>,
    pub(crate) pool: Arc<Pool>,
    resources: Resources,
    rendezvous: Option<Arc<dyn Rendezvous>>,
    cancel: CancelToken,
    /// Cancels the asynchronous kernels that still wait when the step fails.
    pub(crate) waiting: CancelToken,
    pub(crate) trace: Option<Arc<dyn TraceSink>>,
    pub(crate) runner: Option<Arc<dyn NodeRunner>>,
    id: u64,
    memory: Option<StepMemory>,
    /// Messages are nodes that finished away from the state.
    pub(crate) state: Mailbox<StepState, (TaggedNode, Result<Outputs>)>,
    /// Set at the end of a step without `on_done`.
    done: AtomicBool,
    on_done: Mutex<Option<Done>>,
    /// Ends `waiting` with `cancel`.
    registration: Mutex<Option<Registration>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Executor {
    /// An executor of `plan`.
    pub fn new(plan: Arc<Plan>) -> Arc<Self> {
        Arc::new(Self::with_functions(plan, &mut HashMap::new()))
    }

    /// An executor of `plan`; each function that kernels call has one, which `known` remembers.
    fn with_functions(plan: Arc<Plan>, known: &mut HashMap<*const Plan, Arc<Executor>>) -> Self {
        let mut functions = BTreeMap::new();
        for (name, function) in &plan.functions {
            let at = Arc::as_ptr(function);
            let executor = match known.get(&at) {
                Some(executor) => executor.clone(),
                None => Arc::new(Self::with_functions(function.clone(), known)),
            };
            known.insert(at, executor.clone());
            let name = name.clone();
            functions.insert(name.clone(), Arc::new(Function { name, executor }));
        }
        Executor {
            functions: FunctionTable(functions),
            has_transfers: plan
                .nodes
                .iter()
                .any(|n| matches!(n.action, Action::Send(_) | Action::Recv(_))),
            has_async: plan.nodes.iter().any(|n| n.cost == Cost::Async),
            plan,
            idle: Mutex::new(Vec::new()),
            memory: Memory::default(),
        }
    }

    /// The plan.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// The memory of steps, for each set of shapes of arguments that is planned; the one that was looked up last comes
    /// first.
    pub fn memory(&self) -> Vec<MemoryUse> {
        self.memory.report(&self.plan)
    }

    /// Whether steps need a rendezvous.
    pub fn has_transfers(&self) -> bool {
        self.has_transfers
    }

    /// A number that no other step of the process has.
    pub fn next_step_id() -> u64 {
        static NEXT_ID: AtomicU64 = AtomicU64::new(1);
        NEXT_ID.fetch_add(1, Ordering::Relaxed)
    }

    /// Runs one step on the calling thread and the pool; returns the results in order.
    ///
    /// # Errors
    /// The first error of a node, which it names; CANCELLED or DEADLINE_EXCEEDED if the step was
    /// cancelled. Other steps are not affected.
    pub fn run(self: &Arc<Self>, with: RunArgs) -> Result<Vec<Tensor>> {
        let par: &dyn Parallelism = &**with.pool;
        self.run_with(with, par)
    }

    /// Like [`Executor::run`], with `par` for work inside kernels that run on the calling thread. The thread may be in a
    /// kernel of another step.
    fn run_with(self: &Arc<Self>, with: RunArgs, par: &dyn Parallelism) -> Result<Vec<Tensor>> {
        let _flush = FlushDenormals::new();
        outside_arenas(|| self.run_step(with, par))
    }

    fn run_step(self: &Arc<Self>, mut with: RunArgs, par: &dyn Parallelism) -> Result<Vec<Tensor>> {
        let args = std::mem::take(&mut with.args);
        let id = with.step_id.unwrap_or_else(Self::next_step_id);
        let mut state = self.idle_state();
        // Nothing is shared until two expensive nodes are ready at once.
        let dispatches = with.pool.width() > 1 || self.has_async;
        let memory = self.step_memory(&with, &mut state, &args);
        let mut env = Env::new(&self.plan, &self.functions, &with, id, dispatches);
        env.services.par = par;
        env.set_memory(memory.as_ref());
        let started = state.start(&env, args);
        let inline = started.and_then(|()| no_panic(|| run_inline(&env, &mut state)));
        let inline = match inline {
            Ok(inline) => inline,
            Err(error) => {
                abandon(state, memory.as_ref());
                return Err(error);
            }
        };
        if let Inline::Dispatch = inline {
            let step = Step::new(self, &with, id, state, memory, None);
            step.drive();
            with.pool.help_until(&|| step.done.load(Ordering::Acquire));
            return step.finish();
        }
        self.finish(state, memory.as_ref())
    }

    /// Starts one step; the thread that ends it calls `done` with what [`Executor::run`] would return.
    ///
    /// A step that waits for a tensor occupies no thread. The calling thread runs what is ready; the
    /// rest runs on the pool and on the threads that deliver tensors. A pool of width 1 needs a thread
    /// in [`Pool::help_until`].
    pub fn run_async(
        self: &Arc<Self>,
        mut with: RunArgs,
        done: impl FnOnce(Result<Vec<Tensor>>) + Send + 'static,
    ) {
        let args = std::mem::take(&mut with.args);
        let id = with.step_id.unwrap_or_else(Self::next_step_id);
        let mut state = self.idle_state();
        let memory = self.step_memory(&with, &mut state, &args);
        let mut env = Env::new(&self.plan, &self.functions, &with, id, true);
        env.set_memory(memory.as_ref());
        if let Err(error) = state.start(&env, args) {
            return done(Err(error));
        }
        Step::new(self, &with, id, state, memory, Some(Box::new(done))).resume();
    }

    /// The memory of a step that begins; a device has its own.
    #[inline]
    fn step_memory(
        &self,
        with: &RunArgs,
        state: &mut StepState,
        args: &[Tensor],
    ) -> Option<StepMemory> {
        match with.runner {
            None => {
                let is_concurrent = with.pool.width() > 1;
                self.memory
                    .begin(&self.plan, &mut state.memory, args, is_concurrent)
            }
            Some(_) => None,
        }
    }

    fn idle_state(&self) -> StepState {
        let idle = lock(&self.idle).pop();
        idle.unwrap_or_else(|| StepState::new(&self.plan))
    }

    fn finish(&self, mut state: StepState, memory: Option<&StepMemory>) -> Result<Vec<Tensor>> {
        let results = match state.take_results(&self.plan) {
            Ok(results) => results,
            Err(error) => {
                abandon(state, memory);
                return Err(error);
            }
        };
        state.clean(&self.plan);
        if let Some(memory) = memory {
            self.memory.end(&self.plan, memory, &mut state.memory);
        }
        let mut idle = lock(&self.idle);
        if idle.len() < MAX_IDLE_STATES {
            idle.push(state);
        }
        Ok(results)
    }

    /// Runs the executor as a function that a kernel calls, on the calling thread alone: threads that
    /// help each other could take a task that waits for a lock of this caller.
    fn call(
        self: &Arc<Self>,
        mut args: Vec<Tensor>,
        services: &StepServices,
    ) -> Result<Vec<Tensor>> {
        static INLINE: LazyLock<Arc<Pool>> = LazyLock::new(|| Arc::new(Pool::new(1)));
        let expected = self.plan.root().args.len();
        // Datasets capture tensors, after all others, that they only keep alive.
        args.truncate(expected);
        if args.len() < expected {
            return Err(invalid_argument!(
                "a function of {expected} arguments is called with {}",
                args.len()
            ));
        }
        // Only asynchronous kernels put tasks into a pool of width 1.
        let own = self.has_async.then(|| Arc::new(Pool::new(1)));
        let with = RunArgs {
            args,
            step_id: None,
            pool: own.as_ref().unwrap_or(&*INLINE),
            resources: services.resources,
            rendezvous: None,
            cancel: services.cancel,
            trace: None,
            runner: None,
        };
        // Blocks of one kernel are no such tasks: the session's threads may help with them.
        self.run_with(with, services.par)
    }
}

/// Ends a step that failed.
#[cold]
fn abandon(state: StepState, memory: Option<&StepMemory>) {
    drop(state);
    if let Some(memory) = memory {
        memory.abandon();
    }
}

/// A function that kernels call.
struct Function {
    name: String,
    executor: Arc<Executor>,
}

impl Callable for Function {
    fn call(&self, mut args: Vec<Tensor>, services: &StepServices) -> Result<Vec<Tensor>> {
        let tasks = services.resources.function_tasks();
        let Some(tasks) = tasks.filter(|tasks| tasks.spans(&self.name, &args)) else {
            return self.executor.call(args, services);
        };
        args.truncate(self.executor.plan.root().args.len());
        // This thread waits for others, which may need one of the pool.
        let _stand_in = services.par.spawner().and_then(|pool| pool.stand_in());
        tasks.call(&self.name, args, services)
    }

    fn only_op(&self) -> Option<&str> {
        self.executor.plan.only_op()
    }

    fn forwarded_arg(&self) -> Option<usize> {
        self.executor.plan.forwarded_arg()
    }

    fn is_elementwise(&self) -> bool {
        self.executor.plan.is_elementwise()
    }
}

/// Turns a panic of a kernel, which is a bug, into an error of its step.
pub(crate) fn no_panic<T>(f: impl FnOnce() -> Result<T>) -> Result<T> {
    catch_unwind(AssertUnwindSafe(f)).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        let text = text
            .or(panic.downcast_ref::<&str>().copied())
            .unwrap_or("no message");
        Err(internal!("a kernel panicked (please report this): {text}"))
    })
}

enum Inline {
    Done,
    Dispatch,
}

/// Runs on this thread until the step is done or several expensive nodes are ready.
fn run_inline(env: &Env, state: &mut StepState) -> Result<Inline> {
    loop {
        run_inexpensive(env, state)?;
        if state.needs_dispatch(env.plan) {
            return Ok(Inline::Dispatch);
        }
        let Some(item) = state.next_expensive() else {
            return Ok(Inline::Done);
        };
        state.run(env, item)?;
    }
}

/// Runs every ready node that is not expensive, checking the cancellation token now and then.
fn run_inexpensive(env: &Env, state: &mut StepState) -> Result<()> {
    env.services.cancel.check()?;
    let mut until_check = CANCEL_INTERVAL;
    while let Some(item) = state.next_inexpensive() {
        state.run(env, item)?;
        until_check -= 1;
        if until_check == 0 {
            env.services.cancel.check()?;
            until_check = CANCEL_INTERVAL;
        }
    }
    Ok(())
}

impl Step {
    /// Shares a step that has begun; `on_done` receives its results, if any.
    fn new(
        executor: &Arc<Executor>,
        with: &RunArgs,
        id: u64,
        state: StepState,
        memory: Option<StepMemory>,
        on_done: Option<Done>,
    ) -> Arc<Self> {
        let waiting = with.cancel.with_same_deadline();
        let (token, callers) = (waiting.clone(), with.cancel.clone());
        let registration = with.cancel.on_cancel(move || match callers.check() {
            // What waits has the same deadline and reports it itself.
            Err(e) if e.code() == Code::DeadlineExceeded => token.run_expired(),
            _ => token.cancel(),
        });
        Arc::new(Step {
            executor: executor.clone(),
            pool: with.pool.clone(),
            resources: with.resources.clone(),
            rendezvous: with.rendezvous.cloned(),
            cancel: with.cancel.clone(),
            waiting,
            trace: with.trace.cloned(),
            runner: with.runner.cloned(),
            id,
            memory,
            state: Mailbox::new(state),
            done: AtomicBool::new(false),
            on_done: Mutex::new(on_done),
            registration: Mutex::new(Some(registration)),
        })
    }

    pub(crate) fn env(&self) -> Env<'_> {
        let with = RunArgs {
            args: Vec::new(),
            step_id: None,
            pool: &self.pool,
            resources: &self.resources,
            rendezvous: self.rendezvous.as_ref(),
            cancel: &self.cancel,
            trace: self.trace.as_ref(),
            runner: self.runner.as_ref(),
        };
        let executor = &self.executor;
        let mut env = Env::new(&executor.plan, &executor.functions, &with, self.id, true);
        env.set_memory(self.memory.as_ref());
        env
    }

    /// Takes the results of a step that is over.
    fn finish(&self) -> Result<Vec<Tensor>> {
        drop(lock(&self.registration).take());
        let mut state = std::mem::take(&mut *self.state.lock());
        match state.error.take() {
            Some(error) => {
                abandon(state, self.memory.as_ref());
                Err(error)
            }
            None => self.executor.finish(state, self.memory.as_ref()),
        }
    }

    /// Tells the caller that the step is over. Two threads may both see its end; the first counts.
    fn notify_done(&self) {
        let on_done = lock(&self.on_done).take();
        match on_done {
            Some(done) => done(self.finish()),
            None => {
                self.done.store(true, Ordering::Release);
                self.pool.notify();
            }
        }
    }

    /// Carries the step on for as long as this thread can own its state. The thread may be in a kernel of another step.
    pub(crate) fn drive(self: &Arc<Self>) {
        let _flush = FlushDenormals::new();
        outside_arenas(|| self.carry_on());
    }

    fn carry_on(self: &Arc<Self>) {
        let (env, plan) = (self.env(), &*self.executor.plan);
        while let Some(mut state) = self.state.try_lock() {
            if state.is_taken() {
                // A task that comes after the end of the step.
                self.state.release(state);
                return;
            }
            if let Err(error) = no_panic(|| {
                self.drain_inbox(&env, &mut state);
                match state.error {
                    None => run_inexpensive(&env, &mut state),
                    Some(_) => Ok(()),
                }
            }) {
                keep_first(&mut state.error, error);
            }
            let mut own = None;
            while state.error.is_none()
                && let Some(item) = state.next_expensive()
            {
                let offloaded = state.take_inputs(plan, item);
                if plan.nodes[item.node.index()].cost == Cost::Async {
                    // A panic drops the call, which answers it.
                    let started = no_panic(|| {
                        match &plan.nodes[item.node.index()].action {
                            Action::Recv(key) => {
                                let key = state.full_key(plan, item, key);
                                self.recv(&env, &offloaded, &key);
                            }
                            _ => {
                                let frame = state.frame_id(plan, item.iter);
                                self.start(&env, offloaded, frame);
                            }
                        }
                        Ok(())
                    });
                    if let Err(e) = started {
                        keep_first(&mut state.error, e);
                    }
                } else if own.is_none() {
                    own = Some(offloaded);
                } else {
                    let step = self.clone();
                    self.spawn(Box::new(move || {
                        step.run_offloaded(offloaded);
                        step.drive();
                    }));
                }
            }
            let finished = own.is_none() && state.in_flight == 0;
            let given_up = state.error.clone();
            let left = self.state.release(state);
            if let Some(error) = given_up {
                // First: receivers of a tensor of this step learn why it does not come.
                if let Some(rendezvous) = &self.rendezvous {
                    rendezvous.abort(error);
                }
                self.waiting.cancel();
            }
            match own {
                Some(offloaded) => self.run_offloaded(offloaded),
                None if finished => return self.notify_done(),
                None if !left => return,
                None => {}
            }
        }
    }

    /// Starts an asynchronous kernel; the thread that ends it carries the step on.
    fn start(self: &Arc<Self>, env: &Env, offloaded: OffloadedNode, frame: (u64, u64)) {
        let (item, place, step) = (offloaded.item, offloaded.place, self.clone());
        let started = step.trace.as_ref().map(|_| Instant::now());
        offloaded.start(env, frame, self.waiting.clone(), move |outputs| {
            let env = step.env();
            let outputs = outputs
                .map(|o| o.into_iter().map(Value::Tensor).collect::<Outputs>())
                .map_err(|e| env.at_node(item.node, e));
            if let (Some(started), Ok(outputs)) = (started, &outputs) {
                env.record(item.node, place, started, Vec::new(), outputs);
            }
            step.state.send((item, outputs));
            step.resume();
        });
    }

    /// Carries the step on where its nodes run: on this thread, unless something else runs them.
    fn resume(self: &Arc<Self>) {
        let Some(runner) = &self.runner else {
            return self.drive();
        };
        let step = self.clone();
        runner.spawn(Box::new(move || step.drive()));
    }

    pub(crate) fn spawn(&self, task: Box<dyn FnOnce() + Send>) {
        match &self.runner {
            Some(runner) => runner.spawn(task),
            None => self.pool.spawn(task),
        }
    }

    fn run_offloaded(&self, offloaded: OffloadedNode) {
        let (item, env) = (offloaded.item, self.env());
        // The thread may be in a kernel of another step.
        let run = || outside_arenas(|| offloaded.run(&env));
        let outcome = no_panic(run).map_err(|e| env.at_node(item.node, e));
        self.state.send((item, outcome));
    }

    /// Passes on what arrived; an error that came with it is the step's.
    fn drain_inbox(&self, env: &Env, state: &mut StepState) {
        for (item, outcome) in self.state.messages() {
            // One at a time: a panic must not lose the other messages.
            let passed = no_panic(|| match outcome {
                Ok(outputs) if state.error.is_none() => state.complete(env, item, outputs),
                Ok(_) => {
                    state.in_flight -= 1;
                    Ok(())
                }
                Err(error) => {
                    state.in_flight -= 1;
                    Err(error)
                }
            });
            if let Err(error) = passed {
                keep_first(&mut state.error, error);
            }
        }
    }
}

fn keep_first(slot: &mut Option<Status>, error: Status) {
    if slot.is_none() {
        *slot = Some(error);
    }
}
