//! The engine `async`: kernels run when their arguments are available, and nobody ever waits.
//!
//! A function begins on the thread that calls it, with registers and counts of its own that need no
//! lock ([`run`]). Most functions end there, too. What makes an execution visible to others moves
//! its state under a lock ([`Execution`]): an argument or a result that is not available yet, streams,
//! or several kernels that are ready where tasks may run at the same time.

use super::program::Loaded;
use super::registers::Registers;
use super::shared::Execution;
use ferroflow_base::invalid_argument;
use ferroflow_opdef::host::{
    CallSite, ExecutionContext, HostContext, HostKernel, HostProgram, KernelFrame, TraceLevel,
    Values,
};
use ferroflow_program::bef::{Body, Kernel};
use ferroflow_sync::{AsyncValue, IndirectPromise};
use smallvec::SmallVec;
use std::cell::Cell;
use std::sync::Arc;

/// How deep calls may nest on the stack before one goes to the work queue.
const MAX_DEPTH: usize = 48;

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
    let n_results = call.body.result_registers().len();
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

fn start(call: Call<'_>, args: Values) -> Values {
    let body = &**call.body;
    let mut registers = Registers::new(body);
    body.sources().iter().for_each(|id| registers.queue(*id));
    let mut late = Vec::new();
    for (i, arg) in (0u32..).zip(args) {
        let users = body.argument_used_by(i as usize);
        if arg.is_available() {
            registers.count_down(users, Registers::queue);
        } else if !users.is_empty() {
            late.push((arg.clone(), i));
        }
        // The value of an argument that nobody reads is dropped here.
        let _ = registers.set(i, arg);
    }
    if !late.is_empty() || body.streams().is_some() {
        let ready = registers.take_queue(None);
        return Execution::begin(call, registers, late, ready);
    }
    run(call, registers)
}

/// Runs the kernels of an execution that only this thread knows of; of several that one makes ready,
/// the first comes next and the others queue up.
fn run(call: Call<'_>, mut registers: Box<Registers>) -> Values {
    let body = &**call.body;
    let mut runner = Runner::new(call);
    let mut next = None;
    loop {
        let Some(id) = next.take().or_else(|| registers.next_queued()) else {
            let results = registers.take_all(body.result_registers());
            registers.recycle();
            return results;
        };
        if registers.has_queued() && is_parallel(call.ctx) {
            let ready = registers.take_queue(Some(id));
            return Execution::begin(call, registers, Vec::new(), ready);
        }
        let Some(kernel) = kernel(body, id) else {
            continue;
        };
        runner.run(kernel, &mut registers);
        let mut late = Late::new();
        runner.frame.end(|i, value| {
            if !value.is_available() {
                late.push((i as u32, value));
                return;
            }
            // A kernel that is not strict may have asked for it.
            if let Some(unstored) = registers.set(result_register(body, kernel, i), value) {
                unstored.settle();
            }
            registers.count_down(body.used_by(kernel, i), |registers, user| match next {
                None => next = Some(user),
                Some(_) => registers.queue(user),
            });
        });
        if !late.is_empty() {
            let ready = registers.take_queue(next);
            return Execution::resume(call, registers, id, late, ready);
        }
    }
}

fn is_parallel(ctx: &ExecutionContext) -> bool {
    ctx.host().work_queue().parallelism_level() > 1
}

/// The kernel of a number from 1.
#[inline]
pub(super) fn kernel(body: &Body, id: u32) -> Option<&Kernel> {
    body.kernels().get((id as usize).wrapping_sub(1))
}

/// The register of result `i` of a kernel; none that exists if the kernel has no such result.
#[inline]
pub(super) fn result_register(body: &Body, kernel: &Kernel, i: usize) -> u32 {
    body.results(kernel).get(i).copied().unwrap_or(u32::MAX)
}

/// Results of a kernel that are not available yet, by number.
pub(super) type Late = SmallVec<[(u32, AsyncValue); 2]>;

/// Runs kernels of a function one after the other, in one frame.
pub(super) struct Runner<'a> {
    pub(super) frame: KernelFrame<'a>,
    loaded: &'a Loaded,
    host: &'a HostContext,
    body: &'a Body,
    call: Call<'a>,
}

impl<'a> Runner<'a> {
    #[inline]
    pub(super) fn new(call: Call<'a>) -> Self {
        let site = CallSite {
            program: call.program,
            attrs: &[],
            functions: &[],
            location: 0,
        };
        Runner {
            frame: KernelFrame::new(site, call.ctx, Values::new(), 0),
            loaded: call.loaded,
            host: call.ctx.host(),
            body: call.body,
            call,
        }
    }

    /// Runs `kernel` with arguments from `registers`; the frame has its results then.
    #[inline]
    pub(super) fn run(&mut self, kernel: &'a Kernel, registers: &mut Registers) {
        self.begin(kernel, registers);
        self.call(kernel);
    }

    /// Fills the frame for a call of `kernel`.
    #[inline]
    pub(super) fn begin(&mut self, kernel: &'a Kernel, registers: &mut Registers) {
        let site = CallSite {
            program: self.call.program,
            attrs: self.body.attrs(kernel),
            functions: self.body.functions(kernel),
            location: kernel.location,
        };
        self.frame.begin(site, self.body.results(kernel).len());
        for number in self.body.args(kernel) {
            self.frame.push_arg(registers.take(*number));
        }
    }

    /// Calls `kernel` with the arguments in the frame.
    #[inline]
    pub(super) fn call(&mut self, kernel: &Kernel) {
        if !kernel.non_strict {
            let error = self.frame.args().iter().rfind(|a| a.is_error());
            if let Some(error) = error.or(self.call.ctx.cancel_value()).cloned() {
                return self.frame.fail(&error);
            }
        }
        let _scope = self.host.trace(TraceLevel::Debug, || {
            self.loaded.file.kernel_name(kernel.code).to_string()
        });
        match self.loaded.kernels.get(kernel.code) {
            Some(HostKernel::Async(implementation)) => implementation(&mut self.frame),
            _ => self.frame.report_error(invalid_argument!(
                "kernel '{}' is synchronous, but its function is not",
                self.loaded.file.kernel_name(kernel.code)
            )),
        }
    }
}
