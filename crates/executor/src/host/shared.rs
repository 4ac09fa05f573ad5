//! An execution that several threads, or values that come later, know of.
//!
//! Its registers and counts lie under one lock that is never held while a kernel runs. Who finishes a
//! kernel stores its results, counts down who reads them and takes the arguments of the next one; of
//! several that become ready, the first runs next on this thread and the others go to the work queue.
//! Where the program has streams, those of one stream run on one thread, the latest first, and each
//! other stream that has something ready becomes a task.

use super::engine::{Call, Late, Runner, kernel, result_register};
use super::program::Loaded;
use super::registers::{Ready, Registers, Unstored};
use super::streams::StreamQueue;
use ferroflow_opdef::host::{ExecutionContext, HostProgram, Values};
use ferroflow_program::bef::Body;
use ferroflow_sync::{AsyncValue, IndirectPromise};
use smallvec::SmallVec;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

pub(super) struct Execution {
    program: Arc<dyn HostProgram>,
    loaded: Arc<Loaded>,
    body: Arc<Body>,
    ctx: ExecutionContext,
    registers: Mutex<Box<Registers>>,
}

impl Execution {
    fn new(call: Call<'_>, registers: Box<Registers>) -> Arc<Self> {
        Arc::new(Execution {
            program: call.program.clone(),
            loaded: call.loaded.clone(),
            body: call.body.clone(),
            ctx: call.ctx.clone(),
            registers: Mutex::new(registers),
        })
    }

    /// Runs what is `ready`, and the rest when the `late` arguments (by number) are there; the
    /// function's results.
    pub(super) fn begin(
        call: Call<'_>,
        registers: Box<Registers>,
        late: Vec<(AsyncValue, u32)>,
        ready: Ready,
    ) -> Values {
        let this = Execution::new(call, registers);
        for (arg, i) in late {
            let this = this.clone();
            arg.and_then(move || {
                let mut ready = Ready::new();
                let users = this.body.argument_used_by(i as usize);
                this.lock().count_down(users, |_, user| ready.push(user));
                this.process(0, ready);
            });
        }
        this.process(0, ready);
        this.results()
    }

    /// Goes on behind kernel `id`, some of whose results are `late`; other kernels are `ready`.
    pub(super) fn resume(
        call: Call<'_>,
        registers: Box<Registers>,
        id: u32,
        late: Late,
        mut ready: Ready,
    ) -> Values {
        let this = Execution::new(call, registers);
        this.store(id, late, &mut ready);
        this.process(id, ready);
        this.results()
    }

    fn results(&self) -> Values {
        self.lock().take_all(self.body.result_registers())
    }

    fn lock(&self) -> MutexGuard<'_, Box<Registers>> {
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
    fn process(self: &Arc<Self>, from: u32, mut ready: Ready) {
        if ready.is_empty() {
            return;
        }
        if let Some(streams) = self.body.streams() {
            let mut queue = StreamQueue::new(streams, streams.get(from as usize).copied());
            queue.add(&ready);
            return self.process_streams(queue);
        }
        let mut runner = Runner::new(self.call());
        // Whether the frame has the arguments of the first one already.
        let mut has_args = false;
        while let Some((first, others)) = ready.split_first() {
            let id = *first;
            self.enqueue_all(others);
            ready.clear();
            if !has_args {
                self.take_args(id, &mut runner);
            }
            has_args = self.run(id, &mut runner, &mut ready);
        }
    }

    /// Prepares the frame for a call of a kernel.
    fn take_args<'a>(&'a self, id: u32, runner: &mut Runner<'a>) {
        if let Some(kernel) = kernel(&self.body, id) {
            runner.begin(kernel, &mut self.lock());
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
        let mut runner = Runner::new(self.call());
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
            self.take_args(id, &mut runner);
            self.run(id, &mut runner, &mut ready);
            queue.add(&ready);
            ready.clear();
        }
    }

    /// Runs a kernel with the arguments in the frame. Kernels become ready by it; whether the frame
    /// has the arguments of the first of them, because they could be taken on the way.
    fn run<'a>(self: &'a Arc<Self>, id: u32, runner: &mut Runner<'a>, ready: &mut Ready) -> bool {
        let body = &*self.body;
        let Some(this) = kernel(body, id) else {
            return false;
        };
        runner.call(this);
        let mut results = Late::new();
        runner.frame.end(|i, value| results.push((i as u32, value)));
        // What most kernels give: one value that is there.
        match results.pop() {
            Some((0, value)) if value.is_available() => {
                let mut registers = self.lock();
                let unstored = registers.set(result_register(body, this, 0), value);
                registers.count_down(body.used_by(this, 0), |_, user| ready.push(user));
                // Which of several streams' kernels runs next is not known here.
                let next = match (&unstored, ready.first(), body.streams()) {
                    (None, Some(next), None) => kernel(body, *next),
                    _ => None,
                };
                if let Some(next) = next {
                    runner.begin(next, &mut registers);
                    return true;
                }
                drop(registers);
                unstored.into_iter().for_each(Unstored::settle);
            }
            Some(last) => {
                results.push(last);
                self.store(id, results, ready);
            }
            None => {}
        }
        false
    }

    /// Stores results of a kernel, by number.
    fn store(self: &Arc<Self>, id: u32, results: Late, ready: &mut Ready) {
        let body = &*self.body;
        let Some(kernel) = kernel(body, id) else {
            return;
        };
        let mut late: SmallVec<[(AsyncValue, u32, Option<IndirectPromise>); 2]> = SmallVec::new();
        let mut unstored: SmallVec<[Unstored; 2]> = SmallVec::new();
        {
            let mut registers = self.lock();
            for (i, value) in results {
                let number = result_register(body, kernel, i as usize);
                let users = body.used_by(kernel, i as usize);
                if value.is_available() {
                    unstored.extend(registers.set(number, value));
                    registers.count_down(users, |_, user| ready.push(user));
                    continue;
                }
                let is_read = !users.is_empty();
                let waits = is_read.then(|| value.clone());
                match (registers.set(number, value), waits) {
                    // Forwarded before who reads it is counted down.
                    (
                        Some(Unstored {
                            promise: Some(promise),
                            value,
                        }),
                        Some(_),
                    ) => late.push((value, i, Some(promise))),
                    (other, waits) => {
                        unstored.extend(other);
                        late.extend(waits.map(|value| (value, i, None)));
                    }
                }
            }
        }
        unstored.into_iter().for_each(Unstored::settle);
        for (value, i, promise) in late {
            let (this, result) = (self.clone(), (u64::from(id) << 32) | u64::from(i));
            match promise {
                None => value.and_then(move || this.arrived(result)),
                Some(promise) => {
                    let waiting = value.clone();
                    waiting.and_then(move || {
                        promise.forward_to(value);
                        this.arrived(result);
                    });
                }
            }
        }
    }

    /// A result that was not available when its kernel returned is so now.
    fn arrived(self: &Arc<Self>, result: u64) {
        let (id, i) = ((result >> 32) as u32, result as u32 as usize);
        let Some(kernel) = kernel(&self.body, id) else {
            return;
        };
        let mut ready = Ready::new();
        let users = self.body.used_by(kernel, i);
        self.lock().count_down(users, |_, user| ready.push(user));
        self.process(id, ready);
    }
}
