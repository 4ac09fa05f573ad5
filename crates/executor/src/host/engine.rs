//! The engine `async`: kernels run when their arguments are available, and nobody ever waits.
//!
//! A function begins on the thread that calls it, in the order that its body knows ([`run`]): no
//! counts, no lock, and kernels work on the registers themselves. Most functions end there, too. What
//! makes the order unknown, or an execution visible to others, moves its state under a lock
//! ([`Execution`]): an argument or a result that is not available yet, streams, or several kernels
//! that are ready where tasks may run at the same time.

use super::program::Loaded;
use super::registers::{Promises, Registers};
use super::shared::Execution;
use ferroflow_base::invalid_argument;
use ferroflow_host_context::{
    ExecutionContext, HostKernel, HostProgram, KernelFrame, Operand, Register, TraceLevel, Values,
};
use ferroflow_program::bef::{Body, Kernel};
use ferroflow_sync::{AsyncValue, IndirectPromise, State};
use smallvec::SmallVec;
use std::cell::Cell;
use std::sync::Arc;

/// How deep calls may nest on the stack before one goes to the work queue.
const MAX_DEPTH: usize = 48;
/// Registers of small functions lie on the stack: a call of them costs no memory.
const N_INLINE: usize = 8;

thread_local! {
    static DEPTH: Cell<usize> = const { Cell::new(0) };
}

/// Counts nested calls, whatever way they end.
struct Level;

impl Level {
    fn enter() -> Option<Level> {
        let depth = DEPTH.get();
        (depth < MAX_DEPTH).then(|| {
            DEPTH.set(depth + 1);
            Level
        })
    }
}

impl Drop for Level {
    fn drop(&mut self) {
        DEPTH.set(DEPTH.get() - 1);
    }
}

/// A function and what surrounds its execution.
#[derive(Clone, Copy)]
pub(super) struct Call<'a> {
    /// The program as kernels see it.
    pub(super) program: &'a Arc<dyn HostProgram>,
    pub(super) loaded: &'a Arc<Loaded>,
    pub(super) body: &'a Arc<Body>,
    pub(super) ctx: &'a ExecutionContext,
}

/// Starts a function; its results.
pub(super) fn execute(call: Call<'_>, args: Values) -> Values {
    match Level::enter() {
        Some(_level) => start(call, args),
        None => start_elsewhere(call, args),
    }
}

#[cold]
fn start_elsewhere(call: Call<'_>, args: Values) -> Values {
    let n_results = call.body.returns().len();
    let (promises, values): (Vec<_>, Values) =
        (0..n_results).map(|_| IndirectPromise::new()).unzip();
    let (program, loaded) = (call.program.clone(), call.loaded.clone());
    let (body, ctx) = (call.body.clone(), call.ctx.clone());
    call.ctx.enqueue(move || {
        // The task begins a stack of its own.
        let depth = DEPTH.replace(0);
        let call = Call {
            program: &program,
            loaded: &loaded,
            body: &body,
            ctx: &ctx,
        };
        let results = execute(call, args);
        DEPTH.set(depth);
        for (promise, result) in promises.into_iter().zip(results) {
            promise.forward_to(result);
        }
    });
    values
}

fn start(call: Call<'_>, mut args: Values) -> Values {
    let body = &**call.body;
    let (mut is_late, mut has_errors) = (false, false);
    for arg in &args {
        is_late |= !arg.is_available();
        has_errors |= arg.is_error();
    }
    let host = call.ctx.host();
    if is_late || (body.streams().is_some() && host.heeds_streams(body.has_one_stream())) {
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
        // The value of an argument that nobody reads is dropped here.
        if let (Some(register), Some(1..)) = (registers.get_mut(args.len()), uses.get(args.len())) {
            *register = Some(arg);
        }
    }
    run(call, registers, has_errors)
}

/// Runs the kernels of an execution that only this thread knows of, in serial order.
fn run(call: Call<'_>, registers: &mut [Register], mut has_errors: bool) -> Values {
    let body = &**call.body;
    let mut promises = Promises::default();
    let order = body.serial().order();
    let n_here = match call.ctx.host().is_parallel() {
        true => body.serial().n_alone(),
        false => order.len(),
    };
    for (i, id) in order.iter().take(n_here).enumerate() {
        let Some(kernel) = kernel(body, *id) else {
            continue;
        };
        let (args, results) = body.operands(kernel);
        let is_special = kernel.non_strict || !promises.is_empty();
        if is_special {
            prepare(registers, &mut promises, args, results);
        }
        let mut frame = call.frame(kernel, registers, args, results);
        call.run(kernel, &mut frame, has_errors);
        // In order, which people can see.
        for arg in args {
            if arg.is_last()
                && let Some(register) = registers.get_mut(arg.register())
            {
                *register = None;
            }
        }
        let mut is_late = false;
        for result in results {
            let Some(register) = registers.get_mut(result.register()) else {
                continue;
            };
            match register.as_ref().map(AsyncValue::state) {
                Some(State::Concrete) => {}
                Some(State::Error) => has_errors = true,
                Some(_) => {
                    is_late = true;
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
                promises.keep(result.register(), register);
            }
            if result.is_last() {
                *register = None;
            }
        }
        if is_late {
            let mut values = Late::new();
            for (i, result) in (0..).zip(results) {
                let register = registers.get_mut(result.register());
                let value = register.and_then(Option::take);
                if is_special {
                    promises.keep(result.register(), &value);
                }
                values.extend(value.map(|value| (i, value)));
            }
            let (registers, ready) = Registers::behind(body, i + 1, i, registers, promises);
            return Execution::resume(call, registers, *id, values, ready);
        }
    }
    if n_here < order.len() {
        let (registers, ready) = Registers::behind(body, n_here, n_here, registers, promises);
        return Execution::resume(call, registers, 0, Late::new(), ready);
    }
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

/// Makes room for results that were asked for already, and promises values for arguments of a kernel
/// that is not strict.
#[cold]
fn prepare(
    registers: &mut [Register],
    promises: &mut Promises,
    args: &[Operand],
    results: &[Operand],
) {
    for result in results {
        if promises.has(result.register())
            && let Some(register) = registers.get_mut(result.register())
        {
            *register = None;
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

/// The kernel of a number from 1.
#[inline]
pub(super) fn kernel(body: &Body, id: u32) -> Option<&Kernel> {
    body.kernels().get((id as usize).wrapping_sub(1))
}

/// Results of a kernel that are not available yet, by number.
pub(super) type Late = SmallVec<[(u32, AsyncValue); 2]>;

impl<'a> Call<'a> {
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
