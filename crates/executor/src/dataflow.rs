//! The engine `dataflow`: runs every node whose inputs have all arrived.
//!
//! One thread at a time owns a step's state and passes values along; nobody needs an atomic per
//! node. Cheap nodes run right there. When several heavy nodes are ready and there are threads to
//! take them, all but one leave the state (their inputs are moved out) and run as tasks of the
//! pool; a finished one puts its outputs into the step's inbox, and whoever then gets the state's
//! lock carries on: the former owner, or the thread that just finished.
//!
//! No completion is lost: a finisher fills the inbox before it tries the lock, and an owner looks
//! into the inbox again after it has released the lock.

use crate::state::{Outputs, StepState};
use crate::trace::TraceSink;
use ferroflow_base::{Result, Status, internal};
use ferroflow_opdef::{Resources, StepServices};
use ferroflow_program::{NodeIdx, Plan};
use ferroflow_sync::{CancelToken, Parallelism, Pool};
use ferroflow_tensor::Tensor;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering, fence};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};

/// Cheap nodes between two looks at the cancellation token.
const CANCEL_INTERVAL: usize = 256;
/// States kept for reuse.
const MAX_IDLE_STATES: usize = 64;

/// Runs one plan, any number of steps at the same time.
pub struct Executor {
    plan: Arc<Plan>,
    idle: Mutex<Vec<StepState>>,
}

struct Step {
    plan: Arc<Plan>,
    pool: Arc<Pool>,
    resources: Arc<Resources>,
    cancel: CancelToken,
    trace: Option<Arc<dyn TraceSink>>,
    id: u64,
    state: Mutex<StepState>,
    inbox: Mutex<Vec<(NodeIdx, Result<Outputs>)>>,
    n_inbox: AtomicUsize,
    done: AtomicBool,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Executor {
    /// An executor of `plan`.
    pub fn new(plan: Arc<Plan>) -> Self {
        Executor {
            plan,
            idle: Mutex::new(Vec::new()),
        }
    }

    /// The plan.
    pub fn plan(&self) -> &Plan {
        &self.plan
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
        static NEXT_ID: AtomicU64 = AtomicU64::new(1);
        let id = NEXT_ID.fetch_add(1, Ordering::Relaxed);
        let mut state = lock(&self.idle)
            .pop()
            .unwrap_or_else(|| StepState::new(&self.plan));
        let spread = pool.width() > 1;
        state.start(&self.plan, args, spread)?;
        // Until two heavy nodes are ready at once there is no need for anything shared.
        let services = StepServices {
            par: &**pool,
            cancel,
            resources,
            step_id: id,
        };
        let alone =
            no_panic(|| run_alone(&self.plan, &mut state, services, trace.as_deref(), spread))?;
        let state = match alone {
            Alone::Done => state,
            Alone::Spread => {
                let step = Arc::new(Step {
                    plan: self.plan.clone(),
                    pool: pool.clone(),
                    resources: resources.clone(),
                    cancel: cancel.clone(),
                    trace,
                    id,
                    state: Mutex::new(state),
                    inbox: Mutex::new(Vec::new()),
                    n_inbox: AtomicUsize::new(0),
                    done: AtomicBool::new(false),
                });
                step.drive();
                pool.help_until(&|| step.done.load(Ordering::Acquire));
                let mut state = std::mem::take(&mut *lock(&step.state));
                if let Some(error) = state.error.take() {
                    return Err(error);
                }
                state
            }
        };
        self.finish(state)
    }

    fn finish(&self, mut state: StepState) -> Result<Vec<Tensor>> {
        let results = state.take_results()?;
        let mut idle = lock(&self.idle);
        if idle.len() < MAX_IDLE_STATES {
            idle.push(state);
        }
        Ok(results)
    }
}

/// A kernel that panics is a bug, but it ends its step, not the process, and leaves nobody waiting.
fn no_panic<T>(f: impl FnOnce() -> Result<T>) -> Result<T> {
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
fn run_alone(
    plan: &Plan,
    state: &mut StepState,
    services: StepServices,
    trace: Option<&dyn TraceSink>,
    spread: bool,
) -> Result<Alone> {
    loop {
        run_light(plan, state, services, trace, spread)?;
        if state.n_heavy() > 1 {
            return Ok(Alone::Spread);
        }
        let Some(node) = state.next_heavy() else {
            return Ok(Alone::Done);
        };
        state.run(plan, node, services, trace, spread)?;
    }
}

/// Runs every ready node that is not heavy, looking at the cancellation token now and then.
fn run_light(
    plan: &Plan,
    state: &mut StepState,
    services: StepServices,
    trace: Option<&dyn TraceSink>,
    spread: bool,
) -> Result<()> {
    services.cancel.check()?;
    let mut until_check = CANCEL_INTERVAL;
    while let Some(node) = state.next_light() {
        state.run(plan, node, services, trace, spread)?;
        until_check -= 1;
        if until_check == 0 {
            services.cancel.check()?;
            until_check = CANCEL_INTERVAL;
        }
    }
    Ok(())
}

impl Step {
    fn services(&self) -> StepServices<'_> {
        StepServices {
            par: &*self.pool,
            cancel: &self.cancel,
            resources: &self.resources,
            step_id: self.id,
        }
    }

    /// Carries the step on for as long as this thread can own its state.
    fn drive(self: &Arc<Self>) {
        loop {
            let mut state = match self.state.try_lock() {
                Ok(state) => state,
                Err(TryLockError::Poisoned(e)) => e.into_inner(),
                // The owner looks into the inbox after unlocking.
                Err(TryLockError::WouldBlock) => return,
            };
            self.drain_inbox(&mut state);
            if state.error.is_none()
                && let Err(error) = no_panic(|| {
                    run_light(
                        &self.plan,
                        &mut state,
                        self.services(),
                        self.trace.as_deref(),
                        true,
                    )
                })
            {
                state.error = Some(error);
            }
            let mut own = None;
            if state.error.is_none() {
                own = state.next_heavy().map(|n| state.detach(&self.plan, n));
                while let Some(node) = state.next_heavy() {
                    let detached = state.detach(&self.plan, node);
                    let step = self.clone();
                    self.pool.spawn(Box::new(move || {
                        step.run_detached(detached);
                        step.drive();
                    }));
                }
            }
            let finished = own.is_none() && state.in_flight == 0;
            drop(state);
            // Pairs with the fence in `run_detached`: see the module text.
            fence(Ordering::SeqCst);
            match own {
                Some(detached) => self.run_detached(detached),
                None if finished => {
                    self.done.store(true, Ordering::Release);
                    self.pool.notify();
                    return;
                }
                None if self.n_inbox.load(Ordering::SeqCst) == 0 => return,
                None => {}
            }
        }
    }

    fn run_detached(&self, detached: crate::state::Detached) {
        let node = detached.node;
        let info = &self.plan.info[node.index()];
        let outcome = no_panic(|| detached.run(&self.plan, self.services(), self.trace.as_deref()))
            .map_err(|e| e.at_node(&info.name, &info.op));
        lock(&self.inbox).push((node, outcome));
        self.n_inbox.fetch_add(1, Ordering::SeqCst);
        fence(Ordering::SeqCst);
    }

    fn drain_inbox(&self, state: &mut StepState) {
        if self.n_inbox.load(Ordering::SeqCst) == 0 {
            return;
        }
        let arrived = std::mem::take(&mut *lock(&self.inbox));
        self.n_inbox.fetch_sub(arrived.len(), Ordering::SeqCst);
        for (node, outcome) in arrived {
            match outcome {
                Ok(outputs) => state.attach(&self.plan, node, outputs, true),
                Err(error) => {
                    state.in_flight -= 1;
                    keep_first(&mut state.error, error);
                }
            }
        }
    }
}

fn keep_first(slot: &mut Option<Status>, error: Status) {
    if slot.is_none() {
        *slot = Some(error);
    }
}
