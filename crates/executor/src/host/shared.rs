//! An execution that several threads, or values that come later, know of.
//!
//! Its registers and counts lie under one lock that is never held while a kernel runs. Who finishes a
//! kernel stores its results, counts down who reads them and takes the arguments of the next one; of
//! several that become ready, the first runs next on this thread and the others go to the work queue.
//! Where the program has streams, those of one stream run on one thread, the latest first, and each
//! other stream that has something ready becomes a task.

use super::engine::{Call, Late, kernel};
use super::program::Loaded;
use super::registers::{Ready, Registers, Unstored};
use super::streams::StreamQueue;
use ferroflow_host_context::{ExecutionContext, HostProgram, Operand, Register, Values};
use ferroflow_program::bef::{Body, Kernel};
use ferroflow_sync::AsyncValue;
use smallvec::SmallVec;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

pub(super) struct Execution {
    program: Arc<dyn HostProgram>,
    loaded: Arc<Loaded>,
    body: Arc<Body>,
    ctx: ExecutionContext,
    registers: Mutex<Registers>,
}

/// Where the operands of a kernel lie while it runs: its arguments, then its results, all its own.
#[derive(Default)]
struct Window {
    registers: SmallVec<[Register; 6]>,
    n_args: usize,
    has_errors: bool,
}

/// Operands of a window: the first register, the second and so on.
static IN_ORDER: [Operand; 64] = {
    let mut operands = [Operand::new(0); 64];
    let mut i = 0;
    while i < operands.len() {
        operands[i] = Operand::new(i as u32).last();
        i += 1;
    }
    operands
};

impl Window {
    /// Fills the window, which is empty, for a call of `kernel`.
    #[inline]
    fn fill(&mut self, body: &Body, kernel: &Kernel, registers: &mut Registers) {
        let (args, results) = body.operands(kernel);
        self.has_errors = false;
        for arg in args {
            let value = registers.take(*arg);
            self.has_errors |= value.is_error();
            self.registers.push(Some(value));
        }
        self.n_args = args.len();
        results.iter().for_each(|_| self.registers.push(None));
    }

    /// Runs `kernel` and drops its arguments; the window has its results then.
    #[inline]
    fn run(&mut self, call: Call<'_>, kernel: &Kernel) {
        let many: Vec<Operand>;
        let operands = match IN_ORDER.get(..self.registers.len()) {
            Some(operands) => operands,
            None => {
                let n = self.registers.len() as u32;
                many = (0..n).map(|i| Operand::new(i).last()).collect();
                &many
            }
        };
        let (args, results) = operands.split_at(self.n_args);
        let mut frame = call.frame(kernel, &mut self.registers, args, results);
        call.run(kernel, &mut frame, self.has_errors);
        let (args, rest) = self.registers.split_at_mut(self.n_args);
        // In order, which people can see.
        args.iter_mut().for_each(|arg| *arg = None);
        if rest.iter().any(Option::is_none) {
            let mut frame = call.frame(kernel, &mut self.registers, &[], results);
            frame.report_missing_result();
        }
    }

    /// The result, if there is one only; the window is empty then.
    #[inline]
    fn take_single(&mut self) -> Option<AsyncValue> {
        if self.registers.len() != self.n_args + 1 {
            return None;
        }
        let value = self.registers.pop().flatten();
        self.registers.clear();
        value
    }

    /// All results, by number; the window is empty then.
    fn take_all(&mut self) -> Late {
        let results = self.registers.drain(..).skip(self.n_args);
        let number = |(i, value): (u32, Register)| Some((i, value?));
        (0..).zip(results).filter_map(number).collect()
    }
}

impl Execution {
    fn new(call: Call<'_>, registers: Registers) -> Arc<Self> {
        Arc::new(Execution {
            program: call.program.clone(),
            loaded: call.loaded.clone(),
            body: call.body.clone(),
            ctx: call.ctx.clone(),
            registers: Mutex::new(registers),
        })
    }

    /// Runs a function from its beginning; its results.
    pub(super) fn begin(call: Call<'_>, args: Values) -> Values {
        let body = &**call.body;
        let mut registers = Registers::new(body);
        let mut ready = Ready::from_slice(body.sources());
        let mut late = Vec::new();
        for (i, arg) in args.into_iter().enumerate() {
            let users = body.argument_used_by(i);
            if arg.is_available() {
                registers.count_down(users, &mut ready);
            } else if !users.is_empty() {
                late.push((arg.clone(), i));
            }
            // The value of an argument that nobody reads is dropped here.
            let _ = registers.set(i, arg);
        }
        let this = Execution::new(call, registers);
        for (arg, i) in late {
            let this = this.clone();
            arg.and_then(move || {
                let mut ready = Ready::new();
                let users = this.body.argument_used_by(i);
                this.lock().count_down(users, &mut ready);
                this.process(0, ready);
            });
        }
        this.process(0, ready);
        this.results()
    }

    /// Goes on behind kernel `id`, which gave these results (none of kernel 0); other kernels are
    /// ready, too.
    pub(super) fn resume(
        call: Call<'_>,
        registers: Registers,
        id: u32,
        results: Late,
        others: Ready,
    ) -> Values {
        let this = Execution::new(call, registers);
        let mut ready = Ready::new();
        this.store(id, results, &mut ready);
        ready.extend(others);
        this.process(id, ready);
        this.results()
    }

    fn results(&self) -> Values {
        self.lock().take_all(self.body.returns())
    }

    fn lock(&self) -> MutexGuard<'_, Registers> {
        self.registers
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    fn call(&self) -> Call<'_> {
        Call {
            program: &self.program,
            loaded: &self.loaded,
            body: &self.body,
            ctx: &self.ctx,
        }
    }

    /// Runs kernels that `from` made ready, and those that become ready by it.
    fn process(self: &Arc<Self>, from: u32, ready: Ready) {
        if ready.is_empty() {
            return;
        }
        if let Some(streams) = self.body.streams() {
            let mut queue = StreamQueue::new(streams, streams.get(from as usize).copied());
            queue.add(&ready);
            return self.process_streams(queue);
        }
        self.process_in(&mut Window::default(), ready, false);
    }

    /// As [`Execution::process`], without streams; the window may have the arguments of the first
    /// kernel already.
    fn process_in(self: &Arc<Self>, window: &mut Window, mut ready: Ready, mut is_filled: bool) {
        while let Some((first, others)) = ready.split_first() {
            let id = *first;
            self.enqueue_all(others);
            ready.clear();
            if !is_filled {
                self.fill(id, window);
            }
            is_filled = self.run(id, window, &mut ready);
        }
    }

    /// Prepares the window for a call of a kernel.
    fn fill(&self, id: u32, window: &mut Window) {
        if let Some(kernel) = kernel(&self.body, id) {
            window.fill(&self.body, kernel, &mut self.lock());
        }
    }

    /// Puts kernels into the queue: a task for each that could run at the same time, which takes
    /// one kernel after the other.
    fn enqueue_all(self: &Arc<Self>, kernels: &[u32]) {
        if kernels.is_empty() {
            return;
        }
        if let [id] = *kernels {
            let this = self.clone();
            return self
                .ctx
                .enqueue(move || this.process(id, Ready::from_slice(&[id])));
        }
        let n_tasks = self.ctx.host().work_queue().parallelism_level();
        let batch = Arc::new((Ready::from_slice(kernels), AtomicUsize::new(0)));
        for _ in 0..n_tasks.min(kernels.len()) {
            let (this, batch) = (self.clone(), batch.clone());
            self.ctx.enqueue(move || {
                let (kernels, next) = &*batch;
                while let Some(id) = kernels.get(next.fetch_add(1, Ordering::Relaxed)) {
                    this.process(*id, Ready::from_slice(&[*id]));
                }
            });
        }
    }

    fn process_streams(self: &Arc<Self>, mut queue: StreamQueue<'_>) {
        let mut window = Window::default();
        let mut ready = Ready::new();
        loop {
            queue.continue_elsewhere();
            for (stream, kernels) in queue.take_others() {
                let this = self.clone();
                self.ctx.enqueue(move || {
                    let Some(streams) = this.body.streams() else {
                        return;
                    };
                    let mut queue = StreamQueue::new(streams, Some(stream));
                    queue.add(&kernels);
                    this.process_streams(queue);
                });
            }
            let Some(id) = queue.here.pop() else {
                return;
            };
            self.fill(id, &mut window);
            self.run(id, &mut window, &mut ready);
            queue.add(&ready);
            ready.clear();
        }
    }

    /// Runs a kernel with the arguments in the window. Kernels become ready by it; whether the window
    /// has the arguments of the first of them, because they could be taken on the way.
    fn run(self: &Arc<Self>, id: u32, window: &mut Window, ready: &mut Ready) -> bool {
        let body = &*self.body;
        let Some(this) = kernel(body, id) else {
            return false;
        };
        window.run(self.call(), this);
        match window.take_single() {
            // What most kernels give.
            Some(value) if value.is_available() => {
                return self.set(this, 0, value, window, ready);
            }
            Some(value) => self.store_one(id, this, 0, value, ready),
            None => {
                let results = window.take_all();
                self.store(id, results, ready);
            }
        }
        false
    }

    /// Stores result `i` of a kernel, which is there. Kernels become ready by it; whether the window
    /// has the arguments of the first of them.
    fn set(
        &self,
        kernel: &Kernel,
        i: usize,
        value: AsyncValue,
        window: &mut Window,
        ready: &mut Ready,
    ) -> bool {
        let body = &*self.body;
        let mut registers = self.lock();
        let unstored = registers.store(body, kernel, i, value, ready);
        // Which of several streams' kernels runs next is not known here.
        if unstored.is_none()
            && body.streams().is_none()
            && let Some(next) = ready.first().and_then(|id| self::kernel(body, *id))
        {
            window.fill(body, next, &mut registers);
            return true;
        }
        drop(registers);
        unstored.into_iter().for_each(Unstored::settle);
        false
    }

    /// Stores results of a kernel, by number; those that are late when they come.
    fn store(self: &Arc<Self>, id: u32, results: Late, ready: &mut Ready) {
        if let Some(kernel) = kernel(&self.body, id) {
            for (i, value) in results {
                self.store_one(id, kernel, i, value, ready);
            }
        }
    }

    fn store_one(
        self: &Arc<Self>,
        id: u32,
        kernel: &Kernel,
        i: u32,
        value: AsyncValue,
        ready: &mut Ready,
    ) {
        let body = &*self.body;
        let Some(operand) = body.results(kernel).get(i as usize) else {
            return;
        };
        let users = body.used_by(kernel, i as usize);
        let result = (u64::from(id) << 32) | u64::from(i);
        if value.is_available() {
            let unstored = self.lock().store(body, kernel, i as usize, value, ready);
            unstored.into_iter().for_each(Unstored::settle);
        } else if !operand.is_early() && users.is_empty() {
            // Nobody waits for it, and nobody will ask.
            drop(value);
        } else if !operand.is_early() {
            let this = self.clone();
            value.when_available(move |value| this.arrived(result, Some(value)));
        } else {
            let (this, is_read) = (self.clone(), !users.is_empty());
            let unstored = self.lock().set(operand.register(), value.clone());
            match unstored.filter(|u| u.promise.is_some()) {
                // Forwarded before who reads it is counted down.
                Some(promised) => value.and_then(move || {
                    promised.settle();
                    if is_read {
                        this.arrived(result, None);
                    }
                }),
                None if is_read => value.and_then(move || this.arrived(result, None)),
                None => {}
            }
        }
    }

    /// A result that was not available when its kernel returned is so now; its value, if no register
    /// has it yet.
    fn arrived(self: &Arc<Self>, result: u64, value: Option<AsyncValue>) {
        let (id, i) = ((result >> 32) as u32, result as u32 as usize);
        let Some(kernel) = kernel(&self.body, id) else {
            return;
        };
        let mut ready = Ready::new();
        let mut window = Window::default();
        let mut is_filled = false;
        match value {
            Some(value) => is_filled = self.set(kernel, i, value, &mut window, &mut ready),
            None => {
                let users = self.body.used_by(kernel, i);
                self.lock().count_down(users, &mut ready);
            }
        }
        match is_filled {
            true => self.process_in(&mut window, ready, true),
            false => self.process(id, ready),
        }
    }
}
