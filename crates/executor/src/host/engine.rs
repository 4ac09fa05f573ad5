//! The engine `async`: kernels run when their arguments are available, and nobody ever waits.
//!
//! An execution's state (registers, counts) lies under one lock that is never held while a kernel
//! runs. Who finishes a kernel stores its results, counts down who reads them and takes the
//! arguments of the next one; of several that become ready, the first runs next on this thread and
//! the others go to the work queue. Where the program has streams, those of one stream run on one
//! thread, the latest first, and each other stream that has something ready becomes a task.

use super::program::Program;
use ferroflow_base::invalid_argument;
use ferroflow_opdef::host::{
    CallSite, ExecutionContext, HostKernel, HostProgram, KernelFrame, TraceLevel, Values,
};
use ferroflow_program::bef::{Body, Kernel};
use ferroflow_sync::{AsyncValue, IndirectPromise};
use smallvec::SmallVec;
use std::cell::Cell;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// How deep calls may nest on the stack before one goes to the work queue.
const MAX_DEPTH: usize = 48;

type Ready = SmallVec<[u32; 8]>;

struct Register {
    value: Option<AsyncValue>,
    uses_left: u32,
    /// The other end of `value`, if somebody asked for it before it was there.
    promise: Option<IndirectPromise>,
}

impl Register {
    /// The value for one of its uses; the last one moves it out.
    fn take(&mut self) -> AsyncValue {
        let value = match self.value.take() {
            Some(value) => value,
            None => {
                let (promise, value) = IndirectPromise::new();
                self.promise = Some(promise);
                value
            }
        };
        self.uses_left = self.uses_left.saturating_sub(1);
        if self.uses_left > 0 {
            self.value = Some(value.clone());
        }
        value
    }
}

/// Small functions need no memory of their own for these.
struct State {
    registers: SmallVec<[Register; 8]>,
    /// Arguments that each kernel still waits for; the first kernel is number 1.
    waits: SmallVec<[u32; 8]>,
}

impl State {
    #[inline]
    fn take_args(&mut self, body: &Body, kernel: &Kernel) -> Values {
        let mut args = Values::new();
        for register in body.args(kernel) {
            if let Some(register) = self.registers.get_mut(*register as usize) {
                args.push(register.take());
            }
        }
        args
    }

    #[inline]
    fn count_down(&mut self, users: &[u32], ready: &mut Ready) {
        for user in users {
            if let Some(n) = self.waits.get_mut(*user as usize) {
                *n = n.wrapping_sub(1);
                if *n == 0 {
                    ready.push(*user);
                }
            }
        }
    }
}

struct Execution {
    program: Arc<dyn HostProgram>,
    loaded: Arc<Program>,
    body: Arc<Body>,
    ctx: ExecutionContext,
    state: Mutex<State>,
}

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

/// Starts a function; its results.
pub(super) fn execute(
    program: &Arc<Program>,
    body: Arc<Body>,
    ctx: &ExecutionContext,
    args: Values,
) -> Values {
    match Level::enter() {
        Some(_level) => start(program, body, ctx, args),
        None => {
            let n_results = body.result_registers().len();
            let (promises, values): (Vec<_>, Values) =
                (0..n_results).map(|_| IndirectPromise::new()).unzip();
            let (program, task_ctx) = (program.clone(), ctx.clone());
            ctx.enqueue(move || {
                // The task begins a stack of its own.
                let depth = DEPTH.replace(0);
                let results = execute(&program, body, &task_ctx, args);
                DEPTH.set(depth);
                for (promise, result) in promises.into_iter().zip(results) {
                    promise.forward_to(result);
                }
            });
            values
        }
    }
}

fn start(program: &Arc<Program>, body: Arc<Body>, ctx: &ExecutionContext, args: Values) -> Values {
    let registers = body.register_uses().iter().map(|uses| Register {
        value: None,
        uses_left: *uses,
        promise: None,
    });
    let mut state = State {
        registers: registers.collect(),
        waits: SmallVec::from_slice(body.waits()),
    };
    let mut ready = Ready::new();
    ready.extend_from_slice(body.sources());
    let mut late: SmallVec<[(AsyncValue, u32); 4]> = SmallVec::new();
    for (i, arg) in args.into_iter().enumerate() {
        let users = body.argument_used_by(i);
        if arg.is_available() {
            state.count_down(users, &mut ready);
        } else if !users.is_empty() {
            late.push((arg.clone(), i as u32));
        }
        if let Some(register) = state.registers.get_mut(i)
            && register.uses_left > 0
        {
            register.value = Some(arg);
        }
    }
    let execution = Arc::new(Execution {
        program: program.clone(),
        loaded: program.clone(),
        body,
        ctx: ctx.clone(),
        state: Mutex::new(state),
    });
    for (arg, i) in late {
        let execution = execution.clone();
        arg.and_then(move || {
            let mut ready = Ready::new();
            let users = execution.body.argument_used_by(i as usize);
            execution.lock().count_down(users, &mut ready);
            execution.process(0, ready);
        });
    }
    execution.process(0, ready);
    let mut state = execution.lock();
    let results = execution.body.result_registers().iter().map(|r| {
        match state.registers.get_mut(*r as usize) {
            Some(register) => register.take(),
            None => AsyncValue::new_error(invalid_argument!("no such register")),
        }
    });
    results.collect()
}

impl Execution {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs kernels that `from` made ready, and those that become ready by it.
    fn process(self: &Arc<Self>, from: u32, mut ready: Ready) {
        if let Some(streams) = self.body.streams() {
            let mut queue = StreamQueue::new(streams, streams.get(from as usize).copied());
            queue.add(&ready);
            return self.process_streams(queue);
        }
        // The arguments of the first one, if they were taken already.
        let mut next: Option<Values> = None;
        while let Some((first, others)) = ready.split_first() {
            let id = *first;
            self.enqueue_all(others);
            ready.clear();
            let args = match next.take() {
                Some(args) => args,
                None => self.take_args(id),
            };
            next = self.run(id, args, &mut ready);
        }
    }

    fn kernel(&self, id: u32) -> Option<&Kernel> {
        self.body.kernels().get((id as usize).wrapping_sub(1))
    }

    fn take_args(&self, id: u32) -> Values {
        match self.kernel(id) {
            Some(kernel) => self.lock().take_args(&self.body, kernel),
            None => Values::new(),
        }
    }

    /// Puts kernels into the queue; as one task where no two tasks run at the same time.
    fn enqueue_all(self: &Arc<Self>, kernels: &[u32]) {
        if kernels.len() > 1 && self.ctx.host().work_queue().parallelism_level() == 1 {
            let (execution, kernels) = (self.clone(), Ready::from_slice(kernels));
            self.ctx.enqueue(move || {
                for id in kernels {
                    execution.process(id, SmallVec::from_slice(&[id]));
                }
            });
            return;
        }
        for id in kernels {
            let (execution, id) = (self.clone(), *id);
            self.ctx
                .enqueue(move || execution.process(id, SmallVec::from_slice(&[id])));
        }
    }

    fn process_streams(self: &Arc<Self>, mut queue: StreamQueue<'_>) {
        let mut ready = Ready::new();
        loop {
            queue.continue_elsewhere();
            for (stream, kernels) in queue.take_others() {
                let execution = self.clone();
                self.ctx.enqueue(move || {
                    let Some(streams) = execution.body.streams() else {
                        return;
                    };
                    let mut queue = StreamQueue::new(streams, Some(stream));
                    queue.add(&kernels);
                    execution.process_streams(queue);
                });
            }
            let Some(id) = queue.here.pop() else {
                return;
            };
            let args = self.take_args(id);
            let _ = self.run(id, args, &mut ready);
            queue.add(&ready);
            ready.clear();
        }
    }

    /// Runs a kernel. Kernels become ready by it; the arguments of the first of them, if they could
    /// be taken on the way.
    fn run(self: &Arc<Self>, id: u32, args: Values, ready: &mut Ready) -> Option<Values> {
        let body = &*self.body;
        let kernel = self.kernel(id)?;
        let registers = body.results(kernel);
        let error = match kernel.non_strict {
            true => None,
            false => args
                .iter()
                .rev()
                .find(|a| a.is_error())
                .or(self.ctx.cancel_value())
                .cloned(),
        };
        let results = match error {
            Some(error) => {
                drop(args);
                registers.iter().map(|_| Some(error.clone())).collect()
            }
            None => {
                let site = CallSite {
                    program: &self.program,
                    attrs: body.attrs(kernel),
                    functions: body.functions(kernel),
                    location: kernel.location,
                };
                let mut frame = KernelFrame::new(site, &self.ctx, args, registers.len());
                let _scope = self.ctx.host().trace(TraceLevel::Debug, || {
                    self.loaded.file.kernel_name(kernel.code).to_string()
                });
                match self.loaded.kernels.get(kernel.code) {
                    Some(HostKernel::Async(implementation)) => implementation(&mut frame),
                    _ => frame.report_error(invalid_argument!(
                        "kernel '{}' is synchronous, but its function is not",
                        self.loaded.file.kernel_name(kernel.code)
                    )),
                }
                frame.finish()
            }
        };
        self.store(id, results, ready)
    }

    fn store(
        self: &Arc<Self>,
        id: u32,
        mut results: SmallVec<[Option<AsyncValue>; 4]>,
        ready: &mut Ready,
    ) -> Option<Values> {
        let body = &*self.body;
        let kernel = self.kernel(id)?;
        // What most kernels give: one value that is there.
        if let ([number], [slot]) = (body.results(kernel), &mut results[..])
            && slot.as_ref().is_some_and(AsyncValue::is_available)
        {
            let mut state = self.lock();
            if let Some(register) = state.registers.get_mut(*number as usize)
                && register.promise.is_none()
            {
                if register.uses_left > 0 {
                    register.value = slot.take();
                }
                state.count_down(body.used_by(kernel, 0), ready);
                // Which of several streams' kernels runs next is not known here.
                if body.streams().is_some() {
                    return None;
                }
                let next = self.kernel(*ready.first()?)?;
                return Some(state.take_args(body, next));
            }
        }
        self.store_any(id, results, ready);
        None
    }

    fn store_any(
        self: &Arc<Self>,
        id: u32,
        results: SmallVec<[Option<AsyncValue>; 4]>,
        ready: &mut Ready,
    ) {
        let body = &*self.body;
        let Some(kernel) = self.kernel(id) else {
            return;
        };
        let mut late: SmallVec<[(AsyncValue, u32, Option<IndirectPromise>); 2]> = SmallVec::new();
        let mut promised: SmallVec<[(IndirectPromise, AsyncValue); 2]> = SmallVec::new();
        // Dropped after the lock: dropping may run anything.
        let mut unused: SmallVec<[AsyncValue; 2]> = SmallVec::new();
        {
            let mut state = self.lock();
            let registers = body.results(kernel);
            for (i, (number, value)) in registers.iter().zip(results).enumerate() {
                let Some(value) = value else {
                    continue;
                };
                let users = body.used_by(kernel, i);
                let is_available = value.is_available();
                let mut waits = (!is_available && !users.is_empty()).then(|| value.clone());
                if let Some(register) = state.registers.get_mut(*number as usize) {
                    if let Some(promise) = register.promise.take() {
                        match waits.take() {
                            // Forwarded before who reads it is counted down.
                            Some(_) => late.push((value, i as u32, Some(promise))),
                            None => promised.push((promise, value)),
                        }
                    } else if register.uses_left > 0 {
                        register.value = Some(value);
                    } else {
                        unused.push(value);
                    }
                }
                if let Some(value) = waits {
                    late.push((value, i as u32, None));
                }
                if is_available {
                    state.count_down(users, ready);
                }
            }
        }
        drop(unused);
        for (promise, value) in promised {
            promise.forward_to(value);
        }
        for (value, i, promise) in late {
            let (execution, result) = (self.clone(), (u64::from(id) << 32) | u64::from(i));
            match promise {
                None => value.and_then(move || execution.arrived(result)),
                Some(promise) => {
                    let waiting = value.clone();
                    waiting.and_then(move || {
                        promise.forward_to(value);
                        execution.arrived(result);
                    });
                }
            }
        }
    }

    /// A result that was not available when its kernel returned is so now.
    fn arrived(self: &Arc<Self>, result: u64) {
        let (id, i) = ((result >> 32) as usize, result as u32 as usize);
        let Some(kernel) = self.body.kernels().get(id.wrapping_sub(1)) else {
            return;
        };
        let mut ready = Ready::new();
        self.lock()
            .count_down(self.body.used_by(kernel, i), &mut ready);
        self.process(id as u32, ready);
    }
}

/// Kernels that are ready: those of the stream that runs here, and others.
struct StreamQueue<'a> {
    streams: &'a [u32],
    stream: u32,
    here: Vec<u32>,
    others: Vec<u32>,
}

impl<'a> StreamQueue<'a> {
    fn new(streams: &'a [u32], stream: Option<u32>) -> Self {
        StreamQueue {
            streams,
            stream: stream.unwrap_or(0),
            here: Vec::new(),
            others: Vec::new(),
        }
    }

    fn stream_of(&self, kernel: u32) -> u32 {
        self.streams.get(kernel as usize).copied().unwrap_or(0)
    }

    fn add(&mut self, kernels: &[u32]) {
        for kernel in kernels {
            match self.stream_of(*kernel) == self.stream {
                true => self.here.push(*kernel),
                false => self.others.push(*kernel),
            }
        }
    }

    /// When nothing is left of the stream, this thread goes on with another one.
    fn continue_elsewhere(&mut self) {
        if let (true, Some(first)) = (self.here.is_empty(), self.others.first()) {
            self.stream = self.stream_of(*first);
            let others = std::mem::take(&mut self.others);
            self.add(&others);
        }
    }

    /// The kernels of other streams, stream by stream.
    fn take_others(&mut self) -> Vec<(u32, Ready)> {
        let mut others = std::mem::take(&mut self.others);
        others.sort_by_key(|kernel| self.stream_of(*kernel));
        let groups = others.chunk_by(|a, b| self.stream_of(*a) == self.stream_of(*b));
        let group = |kernels: &[u32]| {
            let stream = kernels.first().map_or(0, |k| self.stream_of(*k));
            (stream, Ready::from_slice(kernels))
        };
        groups.map(group).collect()
    }
}
