//! [`StreamDevices`]: devices of this process whose nodes run on streams.

use crate::registry;
use ferroflow_base::{Result, Status};
use ferroflow_compile::{Jit, Options as CompileOptions};
use ferroflow_device::cuda::Cuda;
use ferroflow_device::{
    AllocatorOptions, Backend, Device, HostStreamOptions, HostStreams, MemoryStats, Order,
    StreamMemory, Timeline,
};
use ferroflow_executor::{NodeRunner, StreamSpan, TraceSink};
use ferroflow_functors::tensor_list;
use ferroflow_graph::{DeviceKernels, Node, NodeClass};
use ferroflow_opdef::{NodeInfo, RecvDone, Rendezvous};
use ferroflow_tensor::{DType, Tensor};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

/// Devices whose nodes run on a stream, with their tensors in the device's memory. Sessions that share
/// them share streams and memory.
///
/// ```
/// use ferroflow_runtime::{DeviceSet, Session, SessionOptions, StreamDevices, Tensor};
/// let prefix = "/job:localhost/replica:0/task:0";
/// let streams = StreamDevices::host_streams(prefix, 1, &Default::default()).unwrap();
/// let mut names = vec![format!("{prefix}/device:CPU:0")];
/// names.extend(streams.names().map(str::to_string));
/// let options = SessionOptions {
///     devices: DeviceSet { names, ..Default::default() },
///     stream_devices: streams,
///     ..Default::default()
/// };
/// let graph = "
///     node { name: 'x' op: 'Placeholder' attr { key: 'dtype' value { type: DT_FLOAT } } }
///     node { name: 'y' op: 'Neg' input: 'x' device: '/device:HOST_STREAM:0'
///            attr { key: 'T' value { type: DT_FLOAT } } }";
/// let session = Session::from_text(graph, options).unwrap();
/// let x = Tensor::vector(&[1.0f32; 100]).unwrap();
/// let y = session.run(&[("x:0", x)], &["y:0"], &[]).unwrap();
/// assert_eq!(y[0].slice::<f32>().unwrap()[99], -1.0);
/// ```
#[derive(Clone, Default)]
pub struct StreamDevices(Arc<[StreamDevice]>);

/// How devices of [`StreamDevices`] work.
#[derive(Clone, Debug)]
pub struct StreamDeviceOptions {
    /// Bytes of memory of each device; by default 1 GiB for streams that are threads, and all that a GPU has.
    pub memory_limit: Option<usize>,
    /// Whether a device takes memory as it needs it; else all at once.
    pub allow_growth: bool,
    /// Runs operations late and in an order that this seed picks, to find missing synchronization.
    pub shuffle: Option<u64>,
    /// The dtype, bfloat16 or half, that GPUs compute products of floats and what is around them in.
    pub precision: Option<DType>,
    /// Whether GPUs replay steps whose arguments have known shapes as CUDA graphs, if all of the step is on the GPU.
    pub capture: bool,
}

impl Default for StreamDeviceOptions {
    fn default() -> Self {
        StreamDeviceOptions {
            memory_limit: None,
            allow_growth: true,
            shuffle: None,
            precision: None,
            capture: true,
        }
    }
}

#[derive(Clone)]
struct StreamDevice {
    name: String,
    runner: Arc<StreamRunner>,
}

/// Runs nodes on the computing stream of a device.
pub(crate) struct StreamRunner {
    memory: Arc<StreamMemory>,
    precision: Option<DType>,
    capture: bool,
}

impl NodeRunner for StreamRunner {
    fn spawn(&self, task: Box<dyn FnOnce() + Send>) {
        self.memory.spawn(task);
    }

    fn run(&self, node: &NodeInfo, kernel: &mut dyn FnMut() -> Result<()>) -> Result<()> {
        match self.memory.enqueues() {
            true => self.memory.enqueuing(&node.name, &node.op, kernel),
            false => self.memory.allocating(&node.name, kernel),
        }
    }

    fn offloads(&self) -> bool {
        // Kernels that enqueue take no longer than a message to another task.
        !self.memory.enqueues()
    }
}

impl StreamDevices {
    /// Makes `n` devices whose streams are threads: `PREFIX/device:HOST_STREAM:0` and so on.
    ///
    /// # Errors
    /// RESOURCE_EXHAUSTED if there are too few threads.
    pub fn host_streams(prefix: &str, n: usize, options: &StreamDeviceOptions) -> Result<Self> {
        let backend = HostStreams::new(HostStreamOptions {
            devices: n,
            memory: options.memory_limit.unwrap_or(1 << 30),
            order: match options.shuffle {
                None => Order::Threads,
                Some(seed) => Order::Shuffled {
                    seed,
                    in_background: true,
                },
            },
            ..Default::default()
        });
        let allocator = AllocatorOptions {
            allow_growth: options.allow_growth,
            ..Default::default()
        };
        Self::of_backend(&(backend as _), prefix, n, &allocator, options)
    }

    /// Opens the first `n` NVIDIA GPUs of the machine: `PREFIX/device:GPU:0` and so on. Nodes have the kernels of
    /// `ferroflow_gpu` there; see [`StreamDevices::kernels`] for which nodes those are.
    ///
    /// # Errors
    /// FAILED_PRECONDITION if there is no driver, an old one, or no GPU; INVALID_ARGUMENT if there are fewer.
    pub fn gpus(prefix: &str, n: usize, options: &StreamDeviceOptions) -> Result<Self> {
        static REGISTERED: OnceLock<Result<()>> = OnceLock::new();
        let backend = Cuda::new()?;
        let registered = REGISTERED.get_or_init(|| ferroflow_gpu::register(registry()));
        registered.clone()?;
        let allocator = AllocatorOptions {
            memory_limit: options.memory_limit,
            allow_growth: options.allow_growth,
            ..Default::default()
        };
        Self::of_backend(&(backend as _), prefix, n, &allocator, options)
    }

    fn of_backend(
        backend: &Arc<dyn Backend>,
        prefix: &str,
        n: usize,
        allocator: &AllocatorOptions,
        options: &StreamDeviceOptions,
    ) -> Result<Self> {
        let device = |ordinal| {
            let device = Device::new(backend.clone(), ordinal)?;
            let memory = StreamMemory::new(&device, allocator)?;
            Ok(StreamDevice {
                name: format!("{prefix}{device}"),
                runner: Arc::new(StreamRunner {
                    capture: options.capture && memory.enqueues(),
                    memory: Arc::new(memory),
                    precision: options.precision,
                }),
            })
        };
        let devices: Result<Vec<_>> = (0..n).map(device).collect();
        devices.map(|devices| StreamDevices(devices.into()))
    }

    /// These devices and `others`.
    #[must_use]
    pub fn with(&self, others: &StreamDevices) -> StreamDevices {
        StreamDevices(self.0.iter().chain(others.0.iter()).cloned().collect())
    }

    /// Which nodes have kernels on GPUs and on other devices, for placement
    /// ([`DeviceSet::kernels`](crate::DeviceSet)).
    pub fn kernels(&self) -> DeviceKernels {
        if !self.has_gpus() {
            return DeviceKernels::default();
        }
        DeviceKernels::new(|device_type, node: &Node| {
            device_type != ferroflow_gpu::DEVICE_TYPE || has_gpu_kernel(node)
        })
    }

    /// The full names of the devices.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(|device| &*device.name)
    }

    /// How many steps of each device were replayed, and why the last one that was not had to run otherwise, if any.
    pub fn replays(&self) -> impl Iterator<Item = (u64, Option<Status>)> {
        self.0.iter().map(|device| {
            let stats = device.runner.memory.capture_stats();
            (stats.replays(), stats.refused())
        })
    }

    /// The memory of each device.
    pub fn memory(&self) -> impl Iterator<Item = (&str, MemoryStats)> {
        let stats = |device: &StreamDevice| device.runner.memory.stats();
        self.0
            .iter()
            .map(move |device| (&*device.name, stats(device)))
    }

    pub(crate) fn runner(&self, name: &str) -> Option<&Arc<StreamRunner>> {
        let found = self.0.iter().find(|device| device.name == name);
        found.map(|device| &device.runner)
    }

    /// Whether there are devices with kernels of their own.
    pub(crate) fn has_gpus(&self) -> bool {
        self.0.iter().any(|device| device.runner.memory.enqueues())
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// Whether the part of a GPU may have a node: the engine itself, a kernel of GPUs, or one of CPUs for tensors that stay with
/// the host.
fn has_gpu_kernel(node: &Node) -> bool {
    match node.class() {
        NodeClass::Other | NodeClass::Identity | NodeClass::VarHandle | NodeClass::ReadVariable => {
            registry().has_kernel_on(ferroflow_gpu::DEVICE_TYPE, node.op(), &node.attrs)
                || is_of_host(node)
        }
        NodeClass::Switch
        | NodeClass::Merge
        | NodeClass::Enter
        | NodeClass::Exit
        | NodeClass::NextIteration
        | NodeClass::LoopCond
        | NodeClass::ControlTrigger
        | NodeClass::Send
        | NodeClass::Recv
        | NodeClass::Arg
        | NodeClass::Retval
        | NodeClass::Const
        | NodeClass::Placeholder
        | NodeClass::NoOp => true,
        _ => false,
    }
}

/// Whether a node computes integers and conditions of others, which are with the host: shapes, indices, masks. With the
/// nodes that read them they are optimized as one graph.
fn is_of_host(node: &Node) -> bool {
    let stays = |t: &DType| t.is_integer() || *t == DType::Bool;
    let inputs = node.def.input_dtypes(&node.attrs);
    let is_pure = !node.def.flags.stateful && registry().has_kernel(node.op());
    is_pure && node.outputs.iter().all(stays) && inputs.is_ok_and(|inputs| inputs.iter().all(stays))
}

pub(crate) type TensorDone = Box<dyn FnOnce(Result<Tensor>) + Send>;
pub(crate) type TensorsDone = Box<dyn FnOnce(Result<Vec<Tensor>>) + Send>;

/// Tensors that arrive one by one.
struct Gather {
    tensors: Vec<Option<Tensor>>,
    n_left: usize,
    error: Option<Status>,
    done: Option<TensorsDone>,
}

/// Calls `make` for each item, and `done` with all tensors.
pub(crate) fn gather<T>(items: Vec<T>, make: impl Fn(T, TensorDone), done: TensorsDone) {
    if items.is_empty() {
        return done(Ok(Vec::new()));
    }
    let state = Arc::new(Mutex::new(Gather {
        tensors: vec![None; items.len()],
        n_left: items.len(),
        error: None,
        done: Some(done),
    }));
    for (i, item) in items.into_iter().enumerate() {
        let state = state.clone();
        let arrived = move |copied: Result<Tensor>| {
            let mut gather = state.lock().unwrap_or_else(PoisonError::into_inner);
            gather.n_left -= 1;
            match copied {
                Ok(copied) => gather.tensors[i] = Some(copied),
                Err(e) => drop(gather.error.get_or_insert(e)),
            }
            if gather.n_left == 0
                && let Some(done) = gather.done.take()
            {
                let (error, tensors) = (gather.error.take(), std::mem::take(&mut gather.tensors));
                drop(gather);
                done(error.map_or_else(|| Ok(tensors.into_iter().flatten().collect()), Err));
            }
        };
        make(item, Box::new(arrived));
    }
}

impl StreamRunner {
    /// The device's tensors and streams.
    pub(crate) fn memory(&self) -> &Arc<StreamMemory> {
        &self.memory
    }

    /// Whether steps become graphs of operations.
    pub(crate) fn captures(&self) -> bool {
        self.capture
    }

    /// The compile options of the device's part of a graph.
    pub(crate) fn compile_options(&self, mut own: CompileOptions, name: &str) -> CompileOptions {
        if self.memory.enqueues() {
            own.device = name.to_string();
            own.jit = Jit::Off;
            own.precision = self.precision;
            // Made for kernels of CPUs.
            own.disabled
                .extend(["conv_groups", "fuse_update", "int8"].map(String::from));
        }
        own
    }

    /// Begins to time what the device runs, if it has times.
    pub(crate) fn start_timeline(&self) -> Option<Arc<Timeline>> {
        let timeline = self.memory.enqueues().then(|| self.memory.start_timeline());
        timeline?.ok()
    }

    /// Ends a timeline, and reports what the device ran; waits for it.
    pub(crate) fn report(&self, timeline: &Arc<Timeline>, trace: &dyn TraceSink) {
        self.memory.end_timeline(timeline);
        // The step that failed with the device reports why.
        for ops in timeline.ops().unwrap_or_default() {
            let device = self.memory.compute().device();
            trace.stream_span(StreamSpan {
                stream: &format!("{device}/stream:{}", ops.stream),
                name: &ops.name,
                op: &ops.op,
                start: ops.start,
                end: ops.end,
            });
        }
    }

    /// Copies the arguments of a part to the device.
    pub(crate) fn to_device(&self, tensors: Vec<Tensor>, done: TensorsDone) {
        gather(
            tensors,
            |tensor, arrived| self.memory.to_device(tensor, "a feed", arrived),
            done,
        );
    }

    /// Copies the results of a part to the host.
    pub(crate) fn to_host(&self, tensors: Vec<Tensor>, done: TensorsDone) {
        gather(
            tensors,
            |tensor, arrived| self.copy_to_host(tensor, arrived),
            done,
        );
    }

    /// Copies a tensor, or the elements of the lists that it holds, to the host.
    fn copy_to_host(&self, tensor: Tensor, done: TensorDone) {
        match tensor.dtype() == DType::Variant && self.memory.enqueues() {
            true => done(tensor_list::on_host(&tensor)),
            false => self.memory.to_host(tensor, done),
        }
    }
}

/// A rendezvous whose tensors are copied to the devices that receive them.
pub(crate) struct CopyingRendezvous {
    pub(crate) inner: Arc<dyn Rendezvous>,
    pub(crate) devices: StreamDevices,
}

impl CopyingRendezvous {
    /// The devices that send and receive the tensor of a key, if they are ours.
    fn ends(&self, key: &str) -> [Option<&Arc<StreamRunner>>; 2] {
        let mut fields = key.split(';');
        let mut end = |n| self.devices.runner(fields.nth(n)?);
        [end(0), end(1)]
    }
}

impl Rendezvous for CopyingRendezvous {
    fn send(&self, key: &str, tensor: Option<Tensor>) -> Result<()> {
        let (Some(tensor), [Some(source), None]) = (&tensor, self.ends(key)) else {
            // A device copies from another device itself, when it receives.
            return self.inner.send(key, tensor);
        };
        let (inner, key) = (self.inner.clone(), key.to_string());
        let send = move |copied: Result<Tensor>| {
            let sent = copied.and_then(|tensor| inner.send(&key, Some(tensor)));
            if let Err(e) = sent {
                inner.abort(e);
            }
        };
        source.copy_to_host(tensor.clone(), Box::new(send));
        Ok(())
    }

    fn recv(&self, key: &str, done: RecvDone) {
        let [_, Some(target)] = self.ends(key) else {
            return self.inner.recv(key, done);
        };
        let (target, holder) = (
            target.memory.clone(),
            key.split(';').nth(3).unwrap_or(key).to_string(),
        );
        let arrived = move |tensor: Result<Option<Tensor>>| match tensor {
            Ok(Some(tensor)) => {
                target.to_device(tensor, &holder, move |copied| done(copied.map(Some)));
            }
            other => done(other),
        };
        self.inner.recv(key, Box::new(arrived));
    }

    fn abort(&self, reason: Status) {
        self.inner.abort(reason);
    }
}
