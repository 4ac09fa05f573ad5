//! The costs of kernels: which are worth another thread.
//!
//! As in TensorFlow's executor, inexpensive kernels run on the thread that makes them ready; only
//! expensive ones, of which several are ready, are handed over.

use super::program::Loaded;
use ferroflow_host_context::KernelCost;
use ferroflow_program::bef::{Body, FunctionKind, Kernel};
use std::sync::{Arc, OnceLock};

/// Kernels that a function runs at most to be inexpensive; they take about as long as it takes
/// another thread to begin.
const MAX_INEXPENSIVE: usize = 64;
/// Work that the search for early starts may take for a function: its arguments times its kernels.
const MAX_SEARCH: usize = 1 << 16;

/// Properties of a kernel before it runs.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct Traits {
    /// Whether a call takes less time than handing it to another thread.
    pub(super) is_inexpensive: bool,
    /// Whether the kernel is not strict but starts when all its arguments have been computed, even if
    /// some are still pending: no expensive work could start earlier.
    pub(super) is_deferred: bool,
}

/// The costs of the kernels of a function.
#[derive(Debug)]
pub(super) struct FunctionCosts {
    traits: Vec<Traits>,
    /// The number of arguments that each kernel waits for; the first kernel is number 1.
    pub(super) waits: Vec<u32>,
    /// Positions in the static schedule of expensive kernels that could run at the same time as another
    /// kernel. Before the first one, the sequential prefix, no second thread is of use.
    pub(super) forks: Vec<usize>,
}

impl FunctionCosts {
    fn new(body: &Body, traits: Vec<Traits>) -> FunctionCosts {
        let mut costs = FunctionCosts {
            traits,
            waits: body.waits().to_vec(),
            forks: Vec::new(),
        };
        let kernels = body.kernels().iter().zip(&costs.traits);
        for (wait, (kernel, traits)) in costs.waits.iter_mut().skip(1).zip(kernels) {
            if traits.is_deferred {
                *wait = kernel.n_args() as u32;
            }
        }
        costs.forks = costs.find_forks(body);
        costs
    }

    /// The traits of a kernel by its number from 1.
    #[inline]
    pub(super) fn of(&self, id: u32) -> Traits {
        let traits = self.traits.get((id as usize).wrapping_sub(1));
        traits.copied().unwrap_or_default()
    }

    fn find_forks(&self, body: &Body) -> Vec<usize> {
        let mut waits = self.waits.clone();
        let mut arrive = |user: &u32| {
            let wait = waits.get_mut(*user as usize);
            usize::from(wait.is_some_and(|n| {
                *n = n.wrapping_sub(1);
                *n == 0
            }))
        };
        let arguments = (0..body.n_arguments()).flat_map(|i| body.argument_used_by(i));
        let mut n_ready = body.sources().len() + arguments.map(&mut arrive).sum::<usize>();
        let mut forks = Vec::new();
        for (position, id) in body.schedule().order().iter().enumerate() {
            if n_ready > 1 && !self.of(*id).is_inexpensive {
                forks.push(position);
            }
            n_ready = n_ready.saturating_sub(1);
            if let Some(kernel) = body.kernel(*id) {
                let results = 0..body.results(kernel).len();
                let users = results.flat_map(|i| body.used_by(kernel, i));
                n_ready += users.map(&mut arrive).sum::<usize>();
            }
        }
        forks
    }
}

/// Costs of a program's kernels and functions, computed when they are first asked for.
pub(super) struct Costs {
    kernels: Vec<KernelCost>,
    functions: Vec<FunctionSlot>,
}

#[derive(Default)]
struct FunctionSlot {
    costs: OnceLock<FunctionCosts>,
    needs_all_arguments: OnceLock<bool>,
}

impl Costs {
    /// The costs of a program with these kernels, by code, and `n_functions` functions.
    pub(super) fn new(kernels: Vec<KernelCost>, n_functions: usize) -> Costs {
        let mut functions = Vec::new();
        functions.resize_with(n_functions, FunctionSlot::default);
        Costs { kernels, functions }
    }

    /// The costs of the kernels of a function, whose body is `body`.
    pub(super) fn of_function(
        &self,
        loaded: &Loaded,
        function: usize,
        body: &Body,
    ) -> Option<&FunctionCosts> {
        let slot = self.functions.get(function)?;
        Some(slot.costs.get_or_init(|| {
            let kernels = body.kernels().iter();
            FunctionCosts::new(
                body,
                kernels.map(|k| self.traits(loaded, body, k)).collect(),
            )
        }))
    }

    fn cost(&self, kernel: &Kernel) -> KernelCost {
        self.kernels.get(kernel.code).copied().unwrap_or_default()
    }

    fn traits(&self, loaded: &Loaded, body: &Body, kernel: &Kernel) -> Traits {
        let mut budget = MAX_INEXPENSIVE;
        let is_inexpensive = self.spend(loaded, body, kernel, &mut budget).is_some();
        let callees = body.functions(kernel);
        Traits {
            is_inexpensive,
            is_deferred: kernel.non_strict
                && self.cost(kernel) == KernelCost::Callees
                && (is_inexpensive || callees.iter().all(|f| self.needs_all(loaded, *f as usize))),
        }
    }

    /// Takes the kernels that a call of `kernel` runs from the budget; `None` if it is expensive.
    fn spend(
        &self,
        loaded: &Loaded,
        body: &Body,
        kernel: &Kernel,
        budget: &mut usize,
    ) -> Option<()> {
        *budget = budget.checked_sub(1)?;
        match self.cost(kernel) {
            KernelCost::Expensive => None,
            KernelCost::Inexpensive => Some(()),
            KernelCost::Callees => body.functions(kernel).iter().try_for_each(|callee| {
                let body = async_body(loaded, *callee as usize)?;
                let mut kernels = body.kernels().iter();
                kernels.try_for_each(|kernel| self.spend(loaded, body, kernel, budget))
            }),
        }
    }

    /// Whether expensive kernels of a function can run only when all arguments are available.
    fn needs_all(&self, loaded: &Loaded, function: usize) -> bool {
        let (Some(slot), Some(body)) = (self.functions.get(function), async_body(loaded, function))
        else {
            return false;
        };
        *slot.needs_all_arguments.get_or_init(|| {
            let n_arguments = body.n_arguments();
            let is_searched = n_arguments.saturating_mul(body.kernels().len()) <= MAX_SEARCH;
            is_searched
                && (0..n_arguments).all(|missing| {
                    let mut ready = ready_without(body, missing).into_iter();
                    ready.all(|k| {
                        self.spend(loaded, body, k, &mut { MAX_INEXPENSIVE })
                            .is_some()
                    })
                })
        })
    }
}

/// The body of a function of the engine `async`.
fn async_body(loaded: &Loaded, function: usize) -> Option<&Arc<Body>> {
    let entry = loaded.file.functions().get(function)?;
    let body = loaded.file.body(function).ok()?;
    (entry.kind == FunctionKind::Async).then_some(body)
}

/// The kernels of a function that can run without one of its arguments.
fn ready_without(body: &Body, missing: usize) -> Vec<&Kernel> {
    let mut waits = body.waits().to_vec();
    let mut ready = body.sources().to_vec();
    let arguments = (0..body.n_arguments()).filter(|i| *i != missing);
    let mut arrived: Vec<u32> = arguments
        .flat_map(|i| body.argument_used_by(i))
        .copied()
        .collect();
    let mut found = Vec::new();
    loop {
        for user in arrived.drain(..) {
            if let Some(n) = waits.get_mut(user as usize) {
                *n = n.wrapping_sub(1);
                if *n == 0 {
                    ready.push(user);
                }
            }
        }
        let Some(id) = ready.pop() else {
            return found;
        };
        if let Some(kernel) = body.kernel(id) {
            found.push(kernel);
            let results = 0..body.results(kernel).len();
            arrived.extend(results.flat_map(|i| body.used_by(kernel, i)));
        }
    }
}
