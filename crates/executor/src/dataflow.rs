//! The engine `dataflow`: runs every node whose inputs have all arrived.
//!
//! One thread at a time owns a step's state and passes values along; nobody needs an atomic per
//! node. Cheap nodes run right there. When several heavy nodes are ready and there are threads to
//! take them, all but one leave the state (their inputs are moved out) and run as tasks of the
//! pool; a finished one puts its outputs into the step's inbox, and whoever then gets the state's
//! lock carries on: the former owner, or the thread that just finished. `ferroflow_sync::Owned` is
//! this protocol, which loses no completion.

use crate::detached::Detached;
use crate::state::{Env, Item, Outputs, StepState};
use crate::trace::{TraceSink, TracedTensor, trace_other};
use ferroflow_base::{Code, Result, Status, internal, invalid_argument};
use ferroflow_opdef::{Callable, Cost, Functions, Resources, StepServices, Value};
use ferroflow_program::Plan;
use ferroflow_sync::{CancelToken, Owned, Parallelism, Pool};
use ferroflow_tensor::Tensor;
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

/// Cheap nodes between two looks at the cancellation token.
const CANCEL_INTERVAL: usize = 256;
/// States kept for reuse.
const MAX_IDLE_STATES: usize = 64;

/// Runs one plan, any number of steps at the same time.
pub struct Executor {
    plan: Arc<Plan>,
    functions: Arc<Table>,
    has_async: bool,
    idle: Mutex<Vec<StepState>>,
}

/// The functions that kernels of a plan call themselves.
#[derive(Default)]
struct Table(BTreeMap<String, Arc<Executor>>);

impl Functions for Table {
    fn get(&self, name: &str) -> Option<Arc<dyn Callable>> {
        Some(self.0.get(name)?.clone())
    }
}

struct Step {
    plan: Arc<Plan>,
    functions: Arc<Table>,
    pool: Arc<Pool>,
    resources: Arc<Resources>,
    cancel: CancelToken,
    /// Ends the asynchronous kernels that still wait, when the step is given up.
    waiting: CancelToken,
    trace: Option<Arc<dyn TraceSink>>,
    id: u64,
    /// Messages are nodes that finished away from the state.
    state: Owned<StepState, (Item, Result<Outputs>)>,
    done: AtomicBool,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Executor {
    /// An executor of `plan`.
    pub fn new(plan: Arc<Plan>) -> Self {
        let functions = plan.functions.iter();
        let functions =
            functions.map(|(name, f)| (name.clone(), Arc::new(Executor::new(f.clone()))));
        Executor {
            functions: Arc::new(Table(functions.collect())),
            has_async: plan.nodes.iter().any(|n| n.cost == Cost::Async),
            plan,
            idle: Mutex::new(Vec::new()),
        }
    }

    /// The plan.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    pub(crate) fn shared_plan(&self) -> &Arc<Plan> {
        &self.plan
    }

    /// The functions that the kernels call themselves.
    pub(crate) fn functions(&self) -> Arc<dyn Functions> {
        self.functions.clone()
    }

    /// A number that no other step of the process has.
    pub(crate) fn next_step_id() -> u64 {
        static NEXT_ID: AtomicU64 = AtomicU64::new(1);
        NEXT_ID.fetch_add(1, Ordering::Relaxed)
    }

    /// Runs one step with these arguments, on the calling thread and on `pool`; returns the
    /// results in order.
    ///
    /// The first error ends the step; it names the node. Other steps are not affected.
    pub fn run(
        &self,
        pool: &Arc<Pool>,
        resources: &Arc<Resources>,
        args: Vec<Tensor>,
        cancel: &CancelToken,
        trace: Option<Arc<dyn TraceSink>>,
    ) -> Result<Vec<Tensor>> {
        let id = Self::next_step_id();
        let idle = lock(&self.idle).pop();
        let mut state = idle.unwrap_or_else(|| StepState::new(&self.plan));
        // Until two heavy nodes are ready at once there is no need for anything shared.
        let env = Env {
            plan: &self.plan,
            services: StepServices {
                par: &**pool,
                cancel,
                resources,
                functions: &*self.functions,
                step_id: id,
            },
            trace: trace.as_deref(),
            spread: pool.width() > 1 || self.has_async,
        };
        state.start(&env, args)?;
        let state = match no_panic(|| run_alone(&env, &mut state))? {
            Alone::Done => state,
            Alone::Spread => {
                let step = Arc::new(Step {
                    plan: self.plan.clone(),
                    functions: self.functions.clone(),
                    pool: pool.clone(),
                    resources: resources.clone(),
                    cancel: cancel.clone(),
                    waiting: cancel.with_same_deadline(),
                    trace: trace.clone(),
                    id,
                    state: Owned::new(state),
                    done: AtomicBool::new(false),
                });
                let (waiting, callers) = (step.waiting.clone(), cancel.clone());
                let _given_up = cancel.on_cancel(move || match callers.check() {
                    // What waits has the same deadline and says so itself.
                    Err(e) if e.code() == Code::DeadlineExceeded => waiting.run_expired(),
                    _ => waiting.cancel(),
                });
                step.drive();
                pool.help_until(&|| step.done.load(Ordering::Acquire));
                let mut state = std::mem::take(&mut *step.state.lock());
                if let Some(error) = state.error.take() {
                    return Err(error);
                }
                state
            }
        };
        self.finish(state)
    }

    fn finish(&self, mut state: StepState) -> Result<Vec<Tensor>> {
        let results = state.take_results(&self.plan)?;
        state.clean(&self.plan);
        let mut idle = lock(&self.idle);
        if idle.len() < MAX_IDLE_STATES {
            idle.push(state);
        }
        Ok(results)
    }
}

impl Callable for Executor {
    fn call(&self, args: Vec<Tensor>, services: &StepServices) -> Result<Vec<Tensor>> {
        let expected = self.plan.root().args.len();
        if args.len() != expected {
            return Err(invalid_argument!(
                "a function of {expected} arguments is called with {}",
                args.len()
            ));
        }
        // A pool of its own: threads that help each other could come back for the caller's lock.
        let (alone, resources) = (Arc::new(Pool::new(1)), Arc::new(services.resources.clone()));
        self.run(&alone, &resources, args, services.cancel, None)
    }
}

/// A kernel that panics is a bug, but it ends its step, not the process, and leaves nobody waiting.
pub(crate) fn no_panic<T>(f: impl FnOnce() -> Result<T>) -> Result<T> {
    catch_unwind(AssertUnwindSafe(f)).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        let text = text
            .or(panic.downcast_ref::<&str>().copied())
            .unwrap_or("no message");
        Err(internal!("a kernel panicked (please report this): {text}"))
    })
}

enum Alone {
    Done,
    Spread,
}

/// Runs on this thread until the step is done or several heavy nodes are ready.
fn run_alone(env: &Env, state: &mut StepState) -> Result<Alone> {
    loop {
        run_light(env, state)?;
        if state.must_spread(env.plan) {
            return Ok(Alone::Spread);
        }
        let Some(item) = state.next_heavy() else {
            return Ok(Alone::Done);
        };
        state.run(env, item)?;
    }
}

/// Runs every ready node that is not heavy, looking at the cancellation token now and then.
fn run_light(env: &Env, state: &mut StepState) -> Result<()> {
    env.services.cancel.check()?;
    let mut until_check = CANCEL_INTERVAL;
    while let Some(item) = state.next_light() {
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
    fn env(&self) -> Env<'_> {
        Env {
            plan: &self.plan,
            services: StepServices {
                par: &*self.pool,
                cancel: &self.cancel,
                resources: &self.resources,
                functions: &*self.functions,
                step_id: self.id,
            },
            trace: self.trace.as_deref(),
            spread: true,
        }
    }

    /// Carries the step on for as long as this thread can own its state.
    fn drive(self: &Arc<Self>) {
        let env = self.env();
        while let Some(mut state) = self.state.try_own() {
            if let Err(error) = no_panic(|| {
                self.drain_inbox(&env, &mut state)?;
                match state.error {
                    None => run_light(&env, &mut state),
                    Some(_) => Ok(()),
                }
            }) {
                keep_first(&mut state.error, error);
            }
            let mut own = None;
            while state.error.is_none()
                && let Some(item) = state.next_heavy()
            {
                let detached = state.detach(&self.plan, item);
                if self.plan.nodes[item.node.index()].cost == Cost::Async {
                    // A panic drops the call, which answers it.
                    if let Err(e) = no_panic(|| {
                        self.start(&env, detached);
                        Ok(())
                    }) {
                        keep_first(&mut state.error, e);
                    }
                } else if own.is_none() {
                    own = Some(detached);
                } else {
                    let step = self.clone();
                    self.pool.spawn(Box::new(move || {
                        step.run_detached(detached);
                        step.drive();
                    }));
                }
            }
            let finished = own.is_none() && state.in_flight == 0;
            let given_up = state.error.is_some();
            let left = self.state.release(state);
            if given_up {
                self.waiting.cancel();
            }
            match own {
                Some(detached) => self.run_detached(detached),
                None if finished => {
                    self.done.store(true, Ordering::Release);
                    self.pool.notify();
                    return;
                }
                None if !left => return,
                None => {}
            }
        }
    }

    /// Starts an asynchronous kernel; whoever ends it carries the step on.
    fn start(self: &Arc<Self>, env: &Env, detached: Detached) {
        let (item, place, step) = (detached.item, detached.place, self.clone());
        let started = step.trace.as_ref().map(|_| Instant::now());
        detached.start(env, self.waiting.clone(), move |outputs| {
            let info = &step.plan.info[item.node.index()];
            let outputs = outputs
                .map(|o| o.into_iter().map(Value::Tensor).collect::<Outputs>())
                .map_err(|e| e.at_node(&info.name, &info.op));
            if let (Some(started), Ok(outputs)) = (started, &outputs) {
                let traced = TracedTensor::all(&step.plan, outputs);
                trace_other(&step.env(), item.node, place, started, traced);
            }
            step.state.send((item, outputs));
            step.drive();
        });
    }

    fn run_detached(&self, detached: Detached) {
        let item = detached.item;
        let info = &self.plan.info[item.node.index()];
        let outcome =
            no_panic(|| detached.run(&self.env())).map_err(|e| e.at_node(&info.name, &info.op));
        self.state.send((item, outcome));
    }

    /// Passes on what arrived; an error that came with it is the step's.
    fn drain_inbox(&self, env: &Env, state: &mut StepState) -> Result<()> {
        for (item, outcome) in self.state.messages() {
            let passed = match outcome {
                Ok(outputs) if state.error.is_none() => state.attach(env, item, outputs),
                Ok(_) => {
                    state.in_flight -= 1;
                    Ok(())
                }
                Err(error) => {
                    state.in_flight -= 1;
                    Err(error)
                }
            };
            if let Err(error) = passed {
                keep_first(&mut state.error, error);
            }
        }
        Ok(())
    }
}

fn keep_first(slot: &mut Option<Status>, error: Status) {
    if slot.is_none() {
        *slot = Some(error);
    }
}
