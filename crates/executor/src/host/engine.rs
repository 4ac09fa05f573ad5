//! The engine `async`: kernels run when their arguments are available, and no thread ever blocks.
//!
//! A function starts on the thread that calls it, in the order of its static schedule ([`run`]): no
//! counts, no lock, and kernels work on the registers themselves. Most functions end there, too. An
//! execution moves its state under a lock ([`Execution`]) when its order becomes dynamic or other
//! threads see it: an argument or a result is pending, the function has streams, or an expensive
//! kernel could run at the same time as another one and other threads lack work.

use super::costs::FunctionCosts;
use super::program::Loaded;
use super::registers::{Promises, Registers};
use super::shared::Execution;
use ferroflow_base::invalid_argument;
use ferroflow_host_context::{
    ExecutionContext, HostKernel, HostProgram, KernelFrame, Operand, Register, TraceLevel, Values,
};
use ferroflow_program::bef::{Body, Kernel};
use ferroflow_sync::{AsyncValue, DepthGuard, IndirectPromise, ValueState};
use smallvec::SmallVec;
use std::cell::Cell;
use std::sync::Arc;

/// The maximum nesting of calls on the stack before one goes to the work queue.
const MAX_DEPTH: u32 = 48;
/// Registers that fit on the stack: a call of a function with at most as many allocates nothing.
const N_INLINE: usize = 8;

thread_local! {
    static DEPTH: Cell<u32> = const { Cell::new(0) };
}

/// A function and what surrounds its execution.
#[derive(Clone, Copy)]
pub(super) struct Call<'a> {
    /// The program as kernels see it.
    pub(super) program: &'a Arc<dyn HostProgram>,
    pub(super) loaded: &'a Arc<Loaded>,
    /// Index of the function.
    pub(super) function: usize,
    pub(super) body: &'a Arc<Body>,
    pub(super) ctx: &'a ExecutionContext,
}

/// Starts a function and returns its results.
pub(super) fn execute(call: Call<'_>, args: Values) -> Values {
    match DepthGuard::enter(&DEPTH, MAX_DEPTH) {
        Some(_guard) => start(call, args),
        None => start_elsewhere(call, args),
    }
}

#[cold]
fn start_elsewhere(call: Call<'_>, args: Values) -> Values {
    let n_results = call.body.returns().len();
    let (promises, values): (Vec<_>, Values) =
        (0..n_results).map(|_| IndirectPromise::new()).unzip();
    let (program, loaded) = (call.program.clone(), call.loaded.clone());
    let (function, body, ctx) = (call.function, call.body.clone(), call.ctx.clone());
    call.ctx.enqueue(move || {
        let call = Call {
            program: &program,
            loaded: &loaded,
            function,
            body: &body,
            ctx: &ctx,
        };
        // The task has a stack to itself.
        let guard = DepthGuard::restart(&DEPTH);
        let results = execute(call, args);
        drop(guard);
        for (promise, result) in promises.into_iter().zip(results) {
            promise.forward_to(result);
        }
    });
    values
}

fn start(call: Call<'_>, mut args: Values) -> Values {
    let body = &**call.body;
    let (mut is_pending, mut has_errors) = (false, false);
    for arg in &args {
        is_pending |= !arg.is_available();
        has_errors |= arg.is_error();
    }
    if is_pending || body.streams().is_some() {
        return Execution::begin(call, args);
    }
    let uses = body.register_uses();
    let mut inline = [const { None }; N_INLINE];
    let mut many: Vec<Register>;
    let registers = match inline.get_mut(..uses.len()) {
        Some(registers) => registers,
        None => {
            many = std::iter::repeat_with(|| None).take(uses.len()).collect();
            &mut many
        }
    };
    while let Some(arg) = args.pop() {
        // An argument without readers is dropped here.
        if let (Some(register), Some(1..)) = (registers.get_mut(args.len()), uses.get(args.len())) {
            *register = Some(arg);
        }
    }
    run(call, registers, has_errors)
}

/// Runs the kernels of an execution that no other thread sees, in the order of the static schedule.
fn run(call: Call<'_>, registers: &mut [Register], mut has_errors: bool) -> Values {
    let body = &**call.body;
    let mut promises = Promises::default();
    let order = body.schedule().order();
    let mut forks = call.costs().map_or(&[][..], |costs| &costs.forks).iter();
    let mut fork = forks.next();
    for (i, id) in order.iter().enumerate() {
        if fork == Some(&i) {
            if !call.ctx.host().work_queue().is_saturated() {
                let (registers, ready) = Registers::behind(call, i, i, registers, promises);
                return Execution::resume(call, registers, 0, Pending::new(), ready);
            }
            fork = forks.next();
        }
        let Some(kernel) = body.kernel(*id) else {
            continue;
        };
        let (args, results) = body.operands(kernel);
        let is_special = kernel.non_strict || !promises.is_empty();
        if is_special {
            promise_missing(registers, &mut promises, args, results);
        }
        let mut frame = call.frame(kernel, registers, args, results);
        call.run(kernel, &mut frame, has_errors);
        // In order: destructors may have effects.
        for arg in args {
            if arg.is_last()
                && let Some(register) = registers.get_mut(arg.register())
            {
                *register = None;
            }
        }
        let mut is_pending = false;
        for result in results {
            let Some(register) = registers.get_mut(result.register()) else {
                continue;
            };
            match register.as_ref().map(AsyncValue::state) {
                Some(ValueState::Concrete) => {}
                Some(ValueState::Error) => has_errors = true,
                Some(_) => {
                    is_pending = true;
                    continue;
                }
                None => {
                    has_errors = true;
                    call.frame(kernel, registers, &[], results)
                        .report_missing_result();
                    continue;
                }
            }
            if is_special {
                promises.fulfill(result.register(), register);
            }
            if result.is_last() {
                *register = None;
            }
        }
        if is_pending {
            let values = take_results(registers, results, is_special.then_some(&mut promises));
            let (registers, ready) = Registers::behind(call, i + 1, i, registers, promises);
            return Execution::resume(call, registers, *id, values, ready);
        }
    }
    returned(body, registers)
}

/// Takes the results of a kernel, of which some are unavailable, and fulfills their promises.
fn take_results(
    registers: &mut [Register],
    results: &[Operand],
    mut promises: Option<&mut Promises>,
) -> Pending {
    let mut values = Pending::new();
    for (i, result) in (0..).zip(results) {
        let register = registers.get_mut(result.register());
        let value = register.and_then(Option::take);
        if let Some(promises) = &mut promises {
            promises.fulfill(result.register(), &value);
        }
        values.extend(value.map(|value| (i, value)));
    }
    values
}

/// The values that a function returns.
#[inline]
fn returned(body: &Body, registers: &mut [Register]) -> Values {
    let mut values = Values::new();
    for operand in body.returns() {
        let register = registers.get_mut(operand.register());
        let value = register.and_then(|register| match operand.is_last() {
            true => register.take(),
            false => register.clone(),
        });
        if let Some(value) = value {
            values.push(value);
        }
    }
    values
}

/// Makes room for results that have been promised, and promises values for missing arguments of a
/// non-strict kernel.
#[inline]
fn promise_missing(
    registers: &mut [Register],
    promises: &mut Promises,
    args: &[Operand],
    results: &[Operand],
) {
    if !promises.is_empty() {
        for result in results {
            if promises.has(result.register())
                && let Some(register) = registers.get_mut(result.register())
            {
                *register = None;
            }
        }
    }
    for arg in args {
        if let Some(register @ None) = registers.get_mut(arg.register()) {
            let (promise, value) = IndirectPromise::new();
            *register = Some(value);
            promises.insert(arg.register(), promise);
        }
    }
}

/// Results of a kernel by number, some of which may be pending.
pub(super) type Pending = SmallVec<[(u32, AsyncValue); 2]>;

impl<'a> Call<'a> {
    /// The number of arguments that each kernel waits for.
    pub(super) fn waits(self) -> Vec<u32> {
        self.costs()
            .map_or(self.body.waits(), |costs| &costs.waits)
            .to_vec()
    }

    /// Whether a kernel (from 1) waits until all its arguments have been computed, pending or not.
    #[inline]
    pub(super) fn is_deferred(self, id: u32) -> bool {
        self.costs().is_some_and(|costs| costs.of(id).is_deferred)
    }

    /// The costs of the function's kernels, if some may run at the same time.
    #[inline]
    pub(super) fn costs(self) -> Option<&'a FunctionCosts> {
        let loaded: &'a Loaded = self.loaded;
        let is_parallel = self.ctx.host().is_parallel();
        match is_parallel {
            true => loaded.costs.of_function(loaded, self.function, self.body),
            false => None,
        }
    }

    /// A frame for a call of `kernel`.
    #[inline]
    pub(super) fn frame<'f>(
        self,
        kernel: &'f Kernel,
        registers: &'f mut [Register],
        args: &'f [Operand],
        results: &'f [Operand],
    ) -> KernelFrame<'f>
    where
        'a: 'f,
    {
        let body: &'a Body = self.body;
        let site = body.site(self.program, &kernel.refers);
        KernelFrame::new(site, self.ctx, registers, args, results)
    }

    /// Calls `kernel` in its frame; some of its arguments may be errors if `has_errors`.
    #[inline]
    pub(super) fn run(self, kernel: &Kernel, frame: &mut KernelFrame<'_>, has_errors: bool) {
        if !kernel.non_strict && (has_errors || self.ctx.cancel_value().is_some()) {
            let error = frame.error_arg().or(self.ctx.cancel_value().cloned());
            if let Some(error) = error {
                return frame.fail(&error);
            }
        }
        let _scope = self.ctx.host().trace(TraceLevel::Debug, || {
            self.loaded.file.kernel_name(kernel.code).to_string()
        });
        match self.loaded.kernels.get(kernel.code) {
            Some(HostKernel::Async(implementation)) => implementation(frame),
            _ => frame.report_error(invalid_argument!(
                "kernel '{}' is synchronous, but its function is not",
                self.loaded.file.kernel_name(kernel.code)
            )),
        }
    }
}
