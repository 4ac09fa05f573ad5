//! [`HostStreams`]: devices whose streams are threads of this machine.
//!
//! Real threads, real asynchrony and bounded memory, so that everything about devices can be tested
//! without one, and the addresses of its memory are those of the host. [`Order::Shuffled`] delays and
//! reorders operations as far as events allow, to find missing synchronization; the race detector finds
//! it whatever the order.

mod kernels;
mod memory;
mod queue;
mod races;
mod schedule;

use crate::backend::{
    Address, Backend, DeviceInfo, Grid, HostCall, LaunchArg, RawEvent, RawFunction, RawModule,
    RawStream, Span, no_device,
};
use ferroflow_base::{
    Result, failed_precondition, invalid_argument, not_found, resource_exhausted,
};
pub use kernels::{HostKernel, HostKernels, Operand};
use memory::{Access, Memory};
use queue::{Launch, Op, Queue, Record, lock};
pub use races::Race;
use races::{Clock, Detector};
use schedule::Shuffled;
pub(crate) use schedule::quiet;
use smallvec::SmallVec;
use std::sync::{Arc, Mutex, PoisonError, RwLock};

/// In which order operations of different streams run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// Each stream has a thread and continues as soon as it can.
    Threads,
    /// Operations run one at a time, no earlier than a thread waits for them, in an order picked by the seed.
    /// The same calls from one thread run in the same order.
    Shuffled {
        /// Picks the order.
        seed: u64,
        /// Whether a thread runs operations that no thread waits for; the order then depends on it.
        in_background: bool,
    },
}

/// What host-stream devices are like.
#[derive(Clone, Debug)]
pub struct HostStreamOptions {
    /// The number of devices.
    pub devices: usize,
    /// The memory of each, in bytes.
    pub memory: usize,
    /// The order of operations.
    pub order: Order,
    /// Whether accesses that nothing orders are recorded, for [`HostStreams::races`].
    pub detect_races: bool,
}

impl Default for HostStreamOptions {
    fn default() -> Self {
        HostStreamOptions {
            devices: 1,
            memory: 1 << 30,
            order: Order::Threads,
            detect_races: false,
        }
    }
}

/// Devices whose streams are threads. Threads end when their streams are destroyed.
pub struct HostStreams {
    options: HostStreamOptions,
    kernels: HostKernels,
    memory: Arc<Memory>,
    streams: RwLock<Vec<Option<Arc<Queue>>>>,
    events: Mutex<Table<Option<Arc<Record>>>>,
    modules: Mutex<Table<Module>>,
    functions: Mutex<Vec<HostKernel>>,
    shuffled: Option<Arc<Shuffled>>,
    detector: Option<Arc<Mutex<Detector>>>,
}

struct Module {
    functions: Vec<String>,
    globals: Vec<(String, Span)>,
}

/// Items by number; numbers are used again.
struct Table<T> {
    items: Vec<Option<T>>,
    vacant: Vec<usize>,
}

impl<T> Default for Table<T> {
    fn default() -> Self {
        Table {
            items: Vec::new(),
            vacant: Vec::new(),
        }
    }
}

impl<T> Table<T> {
    fn insert(&mut self, item: T) -> u64 {
        let at = self.vacant.pop().unwrap_or(self.items.len());
        match self.items.get_mut(at) {
            Some(slot) => *slot = Some(item),
            None => self.items.push(Some(item)),
        }
        at as u64
    }

    fn get_mut(&mut self, at: u64) -> Option<&mut T> {
        self.items.get_mut(usize::try_from(at).ok()?)?.as_mut()
    }

    fn remove(&mut self, at: u64) -> Option<T> {
        let index = usize::try_from(at).ok()?;
        let item = self.items.get_mut(index)?.take()?;
        self.vacant.push(index);
        Some(item)
    }
}

#[cold]
fn unknown(what: &str, handle: u64) -> ferroflow_base::Status {
    invalid_argument!("{what} {handle} does not exist")
}

impl HostStreams {
    /// Makes devices with the kernels of [`HostKernels::with_shipped`].
    pub fn new(options: HostStreamOptions) -> Arc<HostStreams> {
        let memory = Arc::new(Memory::new(options.devices, options.memory));
        let shuffled = match options.order {
            Order::Threads => None,
            Order::Shuffled {
                seed,
                in_background,
            } => Some(Arc::new(Shuffled::new(seed, in_background))),
        };
        if let Some(shuffled) = shuffled.clone().filter(|s| s.in_background) {
            let memory = memory.clone();
            std::thread::spawn(move || shuffled.run_in_background(&memory));
        }
        Arc::new(HostStreams {
            detector: options.detect_races.then(Arc::default),
            options,
            kernels: HostKernels::with_shipped(),
            memory,
            streams: RwLock::default(),
            events: Mutex::default(),
            modules: Mutex::default(),
            functions: Mutex::default(),
            shuffled,
        })
    }

    /// The functions that modules may contain.
    pub fn kernels(&self) -> &HostKernels {
        &self.kernels
    }

    /// The number of races so far, and the first of them.
    pub fn races(&self) -> (u64, Vec<Race>) {
        let Some(detector) = &self.detector else {
            return (0, Vec::new());
        };
        let detector = lock(detector);
        let (races, n) = detector.races();
        (n, races.to_vec())
    }

    fn queue(&self, stream: RawStream) -> Result<Arc<Queue>> {
        let streams = self.streams.read().unwrap_or_else(PoisonError::into_inner);
        let at = usize::try_from(stream.0).unwrap_or(usize::MAX);
        let queue = streams.get(at).cloned().flatten();
        queue.ok_or_else(|| unknown("stream", stream.0))
    }

    fn check_device(&self, device: usize) -> Result<()> {
        match device < self.options.devices {
            true => Ok(()),
            false => Err(no_device(self, device)),
        }
    }

    fn enqueue(&self, stream: RawStream, op: Op) -> Result<()> {
        let queue = self.queue(stream)?;
        if let Some(detector) = &self.detector {
            let mut accesses = SmallVec::<[(Span, bool); 4]>::new();
            let mut add = |a: &Access| accesses.push((a.span, a.writes));
            match &op {
                Op::Copy(both) => both.iter().for_each(add),
                Op::Fill(to, ..) => add(to),
                Op::Launch(launch) => launch.accesses.iter().for_each(add),
                _ => {}
            }
            // Under the lock, so that the detector sees the operations of a stream in their order.
            let mut detector = lock(detector);
            detector.enqueue(queue.number, accesses.into_iter());
            queue.push(op);
        } else {
            queue.push(op);
        }
        if let Some(shuffled) = &self.shuffled {
            shuffled.came(&self.memory);
        }
        Ok(())
    }

    fn record_of(&self, event: RawEvent) -> Result<Option<Arc<Record>>> {
        let mut events = lock(&self.events);
        let record = events.get_mut(event.0).map(|r| r.clone());
        record.ok_or_else(|| unknown("event", event.0))
    }

    fn joined(&self, clock: &Clock) {
        if let Some(detector) = &self.detector {
            lock(detector).wait_host(clock);
        }
    }
}

impl Drop for HostStreams {
    fn drop(&mut self) {
        let streams = self.streams.get_mut();
        let streams = streams.unwrap_or_else(PoisonError::into_inner);
        streams.iter().flatten().for_each(|queue| queue.close());
        if let Some(shuffled) = &self.shuffled {
            shuffled.close();
        }
    }
}

impl Backend for HostStreams {
    fn kind(&self) -> &str {
        "HOST_STREAM"
    }

    fn platform(&self) -> &str {
        "HOST_STREAM"
    }

    fn device_count(&self) -> usize {
        self.options.devices
    }

    fn describe(&self, device: usize) -> Result<DeviceInfo> {
        self.check_device(device)?;
        Ok(DeviceInfo {
            model: "threads of this machine".to_string(),
            memory: self.options.memory,
        })
    }

    fn create_stream(&self, device: usize) -> Result<RawStream> {
        self.check_device(device)?;
        let mut streams = self.streams.write().unwrap_or_else(PoisonError::into_inner);
        let number = streams.len();
        let queue = Arc::new(Queue::new(number));
        match &self.shuffled {
            Some(shuffled) => shuffled.add(queue.clone()),
            None => {
                let (queue, memory) = (queue.clone(), self.memory.clone());
                let name = format!("HOST_STREAM:{device} stream {number}");
                let thread = std::thread::Builder::new().name(name);
                let spawned = thread.spawn(move || queue.run(&memory));
                spawned.map_err(|e| resource_exhausted!("no thread for a stream: {e}"))?;
            }
        }
        streams.push(Some(queue));
        Ok(RawStream(number as u64))
    }

    fn destroy_stream(&self, stream: RawStream) {
        let mut streams = self.streams.write().unwrap_or_else(PoisonError::into_inner);
        let at = usize::try_from(stream.0).unwrap_or(usize::MAX);
        if let Some(queue) = streams.get_mut(at).and_then(Option::take) {
            queue.close();
        }
    }

    fn synchronize(&self, stream: RawStream) -> Result<()> {
        let queue = self.queue(stream)?;
        if queue.is_own_thread() {
            return Err(failed_precondition!(
                "a function that a stream calls cannot wait for the stream"
            ));
        }
        let clock = self.detector.as_ref().map(|d| lock(d).clock(queue.number));
        let n = queue.n_enqueued();
        match &self.shuffled {
            Some(shuffled) => shuffled.run_until(&self.memory, || queue.has_run(n))?,
            None => queue.block_until(n),
        }
        if let Some(clock) = clock {
            self.joined(&clock);
        }
        queue.take_error()
    }

    fn create_event(&self, device: usize) -> Result<RawEvent> {
        self.check_device(device)?;
        Ok(RawEvent(lock(&self.events).insert(None)))
    }

    fn destroy_event(&self, event: RawEvent) {
        lock(&self.events).remove(event.0);
    }

    fn record(&self, event: RawEvent, stream: RawStream) -> Result<()> {
        let queue = self.queue(stream)?;
        let detector = self.detector.as_ref();
        let clock = detector.map_or_else(Clock::new, |d| lock(d).clock(queue.number));
        let record = Arc::new(Record::of(clock));
        let mut events = lock(&self.events);
        let known = events.get_mut(event.0);
        *known.ok_or_else(|| unknown("event", event.0))? = Some(record.clone());
        drop(events);
        self.enqueue(stream, Op::Record(record))
    }

    fn wait(&self, stream: RawStream, event: RawEvent) -> Result<()> {
        let queue = self.queue(stream)?;
        let Some(record) = self.record_of(event)? else {
            return Ok(());
        };
        if let Some(detector) = &self.detector {
            lock(detector).wait(queue.number, &record.clock);
        }
        match record.reached() {
            Some(Ok(())) => Ok(()),
            _ => self.enqueue(stream, Op::Wait(record)),
        }
    }

    fn is_reached(&self, event: RawEvent) -> Result<bool> {
        let Some(record) = self.record_of(event)? else {
            return Ok(true);
        };
        if let Some(shuffled) = &self.shuffled {
            shuffled.asked(&self.memory);
        }
        match record.reached() {
            Some(outcome) => {
                self.joined(&record.clock);
                outcome.map(|()| true)
            }
            None => Ok(false),
        }
    }

    fn synchronize_event(&self, event: RawEvent) -> Result<()> {
        let Some(record) = self.record_of(event)? else {
            return Ok(());
        };
        if let Some(shuffled) = &self.shuffled {
            shuffled.run_until(&self.memory, || record.reached().is_some())?;
        }
        let outcome = record.block();
        self.joined(&record.clock);
        outcome
    }

    fn allocate(&self, device: usize, len: usize) -> Result<Address> {
        self.check_device(device)?;
        self.memory.allocate(Some(device), len)
    }

    fn allocate_host(&self, device: usize, len: usize) -> Result<Address> {
        self.check_device(device)?;
        self.memory.allocate(None, len)
    }

    unsafe fn free(&self, _device: usize, address: Address) {
        if let Some(detector) = &self.detector
            && let Some(len) = self.memory.len_of(address)
        {
            lock(detector).forget(Span { address, len });
        }
        self.memory.free(address);
    }

    unsafe fn copy(&self, stream: RawStream, to: Span, from: Address) -> Result<()> {
        let from = Span {
            address: from,
            len: to.len,
        };
        let accesses = [
            self.memory.access(to, true)?,
            self.memory.access(from, false)?,
        ];
        self.enqueue(stream, Op::Copy(accesses))
    }

    unsafe fn fill(&self, stream: RawStream, to: Span, word: &[u8]) -> Result<()> {
        let mut padded = [0; 4];
        if !matches!(word.len(), 1 | 2 | 4) || !to.len.is_multiple_of(word.len()) {
            return Err(invalid_argument!(
                "{} bytes cannot be filled with words of {} bytes",
                to.len,
                word.len()
            ));
        }
        padded[..word.len()].copy_from_slice(word);
        let to = self.memory.access(to, true)?;
        self.enqueue(stream, Op::Fill(to, padded, word.len()))
    }

    fn load_module(&self, device: usize, image: &str) -> Result<RawModule> {
        self.check_device(device)?;
        let (functions, sizes) = kernels::symbols(image)?;
        let mut globals = Vec::with_capacity(sizes.len());
        for (name, len) in sizes {
            let address = self.memory.allocate(Some(device), len)?;
            globals.push((name, Span { address, len }));
        }
        let module = Module { functions, globals };
        Ok(RawModule(lock(&self.modules).insert(module)))
    }

    fn unload_module(&self, module: RawModule) {
        let module = lock(&self.modules).remove(module.0);
        for (_, span) in module.iter().flat_map(|m| &m.globals) {
            self.memory.free(span.address);
        }
    }

    fn function(&self, module: RawModule, name: &str) -> Result<RawFunction> {
        let mut modules = lock(&self.modules);
        let module = modules
            .get_mut(module.0)
            .ok_or_else(|| unknown("module", module.0))?;
        if !module.functions.iter().any(|f| f == name) {
            return Err(not_found!(
                "named symbol not found: the module has no function '{name}'"
            ));
        }
        let kernel = self.kernels.get(name)?;
        let mut functions = lock(&self.functions);
        functions.push(kernel);
        Ok(RawFunction(functions.len() as u64 - 1))
    }

    fn global(&self, module: RawModule, name: &str) -> Result<Span> {
        let mut modules = lock(&self.modules);
        let module = modules
            .get_mut(module.0)
            .ok_or_else(|| unknown("module", module.0))?;
        let found = module.globals.iter().find(|(n, _)| n == name);
        found.map(|(_, span)| *span).ok_or_else(|| {
            not_found!("named symbol not found: the module has no global variable '{name}'")
        })
    }

    unsafe fn launch(
        &self,
        stream: RawStream,
        function: RawFunction,
        grid: &Grid,
        args: &[LaunchArg],
    ) -> Result<()> {
        let at = usize::try_from(function.0).unwrap_or(usize::MAX);
        let kernel = lock(&self.functions).get(at).cloned();
        let kernel = kernel.ok_or_else(|| unknown("function", function.0))?;
        let mut accesses = SmallVec::<[Access; 4]>::new();
        for (i, arg) in args.iter().enumerate() {
            if let LaunchArg::Memory(span) | LaunchArg::Within { all: span, .. } = arg {
                accesses.push(self.memory.access(*span, kernel.writes.contains(&i))?);
            }
        }
        for (i, a) in accesses.iter().enumerate() {
            let mut others = accesses.iter().enumerate().filter(|(j, _)| *j != i);
            if a.writes && others.any(|(_, b)| a.span.overlaps(b.span)) {
                return Err(invalid_argument!(
                    "an argument that a host kernel writes overlaps another one"
                ));
            }
        }
        let launch = Launch {
            kernel,
            grid: *grid,
            accesses,
            args: args.into(),
        };
        self.enqueue(stream, Op::Launch(Box::new(launch)))
    }

    fn call_host(&self, stream: RawStream, call: HostCall) -> Result<()> {
        let Some(detector) = &self.detector else {
            return self.enqueue(stream, Op::Call(call));
        };
        let number = self.queue(stream)?.number;
        let (clock, detector) = (lock(detector).clock(number), detector.clone());
        let call = Box::new(move |ran| {
            lock(&detector).wait_host(&clock);
            call(ran);
        });
        self.enqueue(stream, Op::Call(call))
    }
}
