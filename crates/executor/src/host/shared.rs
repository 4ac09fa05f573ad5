//! An execution that several threads, or pending values, refer to.
//!
//! One lock protects its registers and counts and is never held while a kernel runs. The thread that
//! finishes a kernel stores its results, counts down their readers and takes the arguments of the next
//! kernel. Of several kernels that become ready, inexpensive ones and the first expensive one run on
//! this thread and the others go to the work queue; without threads, all but the first do, in TFRT's
//! order. Where the program has streams, the kernels of one stream run on one thread, the latest first,
//! and each other stream that has something ready becomes a task.

use super::costs::FunctionCosts;
use super::engine::{Call, Pending};
use super::program::Loaded;
use super::registers::{Forward, Ready, Registers};
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
    function: usize,
    body: Arc<Body>,
    ctx: ExecutionContext,
    registers: Mutex<Registers>,
}

/// The operands of a kernel while it runs: its arguments, then its results.
#[derive(Default)]
struct KernelOperands {
    registers: SmallVec<[Register; 6]>,
    n_args: usize,
    has_errors: bool,
}

/// The operands of [`KernelOperands`]: the first register, the second and so on.
static IN_ORDER: [Operand; 64] = {
    let mut operands = [Operand::new(0); 64];
    let mut i = 0;
    while i < operands.len() {
        operands[i] = Operand::new(i as u32).last();
        i += 1;
    }
    operands
};

impl KernelOperands {
    /// Takes the arguments for a call of `kernel`; there are no operands before.
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

    /// Runs `kernel` and drops its arguments, which leaves its results.
    #[inline]
    fn run(&mut self, call: Call<'_>, kernel: &Kernel) {
        let many: Vec<Operand>;
        let numbers = match IN_ORDER.get(..self.registers.len()) {
            Some(numbers) => numbers,
            None => {
                let n = self.registers.len() as u32;
                many = (0..n).map(|i| Operand::new(i).last()).collect();
                &many
            }
        };
        let (args, results) = numbers.split_at(self.n_args);
        let mut frame = call.frame(kernel, &mut self.registers, args, results);
        call.run(kernel, &mut frame, self.has_errors);
        let (args, rest) = self.registers.split_at_mut(self.n_args);
        // In order: destructors may have effects.
        args.iter_mut().for_each(|arg| *arg = None);
        if rest.iter().any(Option::is_none) {
            let mut frame = call.frame(kernel, &mut self.registers, &[], results);
            frame.report_missing_result();
        }
    }

    /// Takes the result of a kernel that has one only.
    #[inline]
    fn take_single(&mut self) -> Option<AsyncValue> {
        if self.registers.len() != self.n_args + 1 {
            return None;
        }
        let value = self.registers.pop().flatten();
        self.registers.clear();
        value
    }

    /// Takes all results, by number.
    fn take_all(&mut self) -> Pending {
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
            function: call.function,
            body: call.body.clone(),
            ctx: call.ctx.clone(),
            registers: Mutex::new(registers),
        })
    }

    /// Starts a function and returns its results.
    pub(super) fn begin(call: Call<'_>, args: Values) -> Values {
        let body = &**call.body;
        let mut registers = Registers::new(call);
        let mut ready = Ready::from_slice(body.sources());
        let mut pending = Vec::new();
        for (i, arg) in args.into_iter().enumerate() {
            let users = body.argument_used_by(i);
            if arg.is_available() {
                registers.count_down(users, &mut ready);
            } else if !users.is_empty() {
                registers.count_down_if(users, |user| call.is_deferred(user), &mut ready);
                pending.push((arg.clone(), i));
            }
            // An argument without readers is dropped here.
            let _ = registers.set(i, arg);
        }
        let this = Execution::new(call, registers);
        for (arg, i) in pending {
            let this = this.clone();
            arg.and_then(move || {
                let ready = this.count_down_rest(this.body.argument_used_by(i));
                this.process(0, ready);
            });
        }
        this.process(0, ready);
        this.results()
    }

    /// Continues after kernel `id`, which returned these results (none of kernel 0), with `others` that
    /// are ready, too.
    pub(super) fn resume(
        call: Call<'_>,
        registers: Registers,
        id: u32,
        results: Pending,
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

    /// Counts a value that was pending when its kernel returned; the kernels that are ready now.
    fn count_down_rest(&self, users: &[u32]) -> Ready {
        let (call, mut ready) = (self.call(), Ready::new());
        self.lock()
            .count_down_if(users, |user| !call.is_deferred(user), &mut ready);
        ready
    }

    fn call(&self) -> Call<'_> {
        Call {
            program: &self.program,
            loaded: &self.loaded,
            function: self.function,
            body: &self.body,
            ctx: &self.ctx,
        }
    }

    /// Runs kernels that `from` made ready, and those that these make ready.
    fn process(self: &Arc<Self>, from: u32, ready: Ready) {
        if ready.is_empty() {
            return;
        }
        if let Some(streams) = self.body.streams() {
            let mut queue = StreamQueue::new(streams, streams.get(from as usize).copied());
            queue.add(&ready);
            return self.process_streams(queue);
        }
        self.process_in(&mut KernelOperands::default(), ready, false);
    }

    /// As [`Execution::process`], without streams; `operands` may have the arguments of the first kernel
    /// already.
    fn process_in(
        self: &Arc<Self>,
        operands: &mut KernelOperands,
        mut ready: Ready,
        mut is_filled: bool,
    ) {
        let costs = self.call().costs();
        // Inexpensive kernels that wait for this thread.
        let mut here = Ready::new();
        loop {
            if let Some((_, others)) = ready.split_first() {
                self.distribute(costs, others, &mut here);
                ready.truncate(1);
            }
            let Some(id) = ready.pop().or_else(|| here.pop()) else {
                return;
            };
            if !is_filled {
                self.fill(id, operands);
            }
            is_filled = self.run(id, operands, &mut ready);
        }
    }

    /// Leaves inexpensive kernels to this thread and puts the others into the work queue.
    fn distribute(
        self: &Arc<Self>,
        costs: Option<&FunctionCosts>,
        kernels: &[u32],
        here: &mut Ready,
    ) {
        let Some(costs) = costs else {
            return self.enqueue_all(kernels);
        };
        if self.ctx.host().work_queue().is_saturated() {
            return here.extend_from_slice(kernels);
        }
        let mut expensive = Ready::new();
        for id in kernels {
            match costs.of(*id).is_inexpensive {
                true => here.push(*id),
                false => expensive.push(*id),
            }
        }
        self.enqueue_all(&expensive);
    }

    /// Takes the arguments for a call of a kernel.
    fn fill(&self, id: u32, operands: &mut KernelOperands) {
        if let Some(kernel) = self.body.kernel(id) {
            operands.fill(&self.body, kernel, &mut self.lock());
        }
    }

    /// Puts kernels into the work queue: as many tasks as can run at the same time, each of which takes
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
        let mut operands = KernelOperands::default();
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
            self.fill(id, &mut operands);
            self.run(id, &mut operands, &mut ready);
            queue.add(&ready);
            ready.clear();
        }
    }

    /// Runs a kernel with its operands and adds the kernels that become `ready`. Returns whether
    /// `operands` has the arguments of the first of them, because they could be taken on the way.
    fn run(self: &Arc<Self>, id: u32, operands: &mut KernelOperands, ready: &mut Ready) -> bool {
        let body = &*self.body;
        let Some(this) = body.kernel(id) else {
            return false;
        };
        operands.run(self.call(), this);
        match operands.take_single() {
            // The result of most kernels.
            Some(value) if value.is_available() => {
                return self.set(this, 0, value, operands, ready);
            }
            Some(value) => self.store_one(id, this, 0, value, ready),
            None => {
                let results = operands.take_all();
                self.store(id, results, ready);
            }
        }
        false
    }

    /// Stores result `i` of a kernel, which is available, and adds the kernels that become `ready`.
    /// Returns whether `operands` has the arguments of the first of them.
    fn set(
        &self,
        kernel: &Kernel,
        i: usize,
        value: AsyncValue,
        operands: &mut KernelOperands,
        ready: &mut Ready,
    ) -> bool {
        let body = &*self.body;
        let mut registers = self.lock();
        let forward = registers.store(body, kernel, i, value, ready);
        if ready.len() > 1
            && let Some(costs) = self.call().costs()
        {
            ready.sort_by_key(|id| !costs.of(*id).is_inexpensive);
        }
        // With streams, another kernel may run next.
        if forward.is_none()
            && body.streams().is_none()
            && let Some(next) = ready.first().and_then(|id| body.kernel(*id))
        {
            operands.fill(body, next, &mut registers);
            return true;
        }
        drop(registers);
        forward.into_iter().for_each(Forward::resolve);
        false
    }

    /// Stores results of a kernel, by number; pending ones when they arrive.
    fn store(self: &Arc<Self>, id: u32, results: Pending, ready: &mut Ready) {
        if let Some(kernel) = self.body.kernel(id) {
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
            let forward = self.lock().store(body, kernel, i as usize, value, ready);
            forward.into_iter().for_each(Forward::resolve);
        } else if !operand.is_early() && users.is_empty() {
            // The value has no readers.
            drop(value);
        } else if !operand.is_early() {
            let this = self.clone();
            value.when_available(move |value| this.arrived(result, Some(value)));
        } else {
            let (this, is_read) = (self.clone(), !users.is_empty());
            let mut registers = self.lock();
            let forward = registers.set(operand.register(), value.clone());
            let call = self.call();
            registers.count_down_if(users, |user| call.is_deferred(user), ready);
            drop(registers);
            match forward.filter(|f| f.promise.is_some()) {
                // Resolved before its readers are counted down.
                Some(promised) => value.and_then(move || {
                    promised.resolve();
                    if is_read {
                        this.arrived(result, None);
                    }
                }),
                None if is_read => value.and_then(move || this.arrived(result, None)),
                None => {}
            }
        }
    }

    /// Counts a result that was pending when its kernel returned and is available now; `value`, if no
    /// register has it yet.
    fn arrived(self: &Arc<Self>, result: u64, value: Option<AsyncValue>) {
        let (id, i) = ((result >> 32) as u32, result as u32 as usize);
        let Some(kernel) = self.body.kernel(id) else {
            return;
        };
        let mut ready = Ready::new();
        let mut operands = KernelOperands::default();
        let mut is_filled = false;
        match value {
            Some(value) => is_filled = self.set(kernel, i, value, &mut operands, &mut ready),
            None => ready = self.count_down_rest(self.body.used_by(kernel, i)),
        }
        match is_filled {
            true => self.process_in(&mut operands, ready, true),
            false => self.process(id, ready),
        }
    }
}
