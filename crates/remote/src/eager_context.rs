//! [`RemoteContext`]: a client's eager context on this task.

use crate::cluster::{EAGER, GrpcCluster};
use crate::collectives::SessionCollectives;
use crate::device::{Devices, TaskName};
use crate::eager_transfers::key_of;
use crate::master_session::lock;
use crate::packed_handles::Components;
use crate::peers::Peers;
use crate::rendezvous::{StepRendezvous, take_later};
use crate::task::Task;
use crate::worker_session::WorkerSession;
use ferroflow_base::{Result, Status, aborted, internal, invalid_argument};
use ferroflow_model::proto::operation::{Input, input};
use ferroflow_model::proto::queue_item::Item;
use ferroflow_model::proto::{
    DeviceAttributes, Operation, QueueItem, QueueResponse, RegisterFunctionOp, RemoteTensorHandle,
    TensorProto,
};
use ferroflow_model::shape_to_proto;
use ferroflow_runtime::eager::{Attrs, CallDevices, CallInputs, EagerCall, EagerContext};
use ferroflow_runtime::{CancelToken, DType, Rendezvous, Resources, RunOptions, attrs_of_proto};
use ferroflow_tensor::Tensor;
use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// A context that the client abandoned is dropped after this time if it asks for none.
const KEEP_ALIVE: Duration = Duration::from_secs(600);

/// An op whose last call took longer gets a thread of its own.
const BRIEF: Duration = Duration::from_micros(100);
/// Most bytes of a tensor that is decoded without one.
const BRIEF_BYTES: usize = 1 << 14;

/// At most this many handles of other tasks are kept.
const MAX_FOREIGN: usize = 4096;

/// An eager context of a client.
pub(crate) struct RemoteContext {
    id: u64,
    task: Arc<Task>,
    view: AtomicU64,
    keep_alive: Duration,
    /// How long an op or a function may take, if limited.
    timeout: Option<Duration>,
    used: Mutex<Instant>,
    /// The name of this task in the client's cluster.
    name: TaskName,
    devices: Arc<Devices>,
    peers: Mutex<Arc<Peers>>,
    eager: EagerContext,
    /// The incarnations of the cluster's devices.
    pub(crate) incarnations: Mutex<HashMap<String, u64>>,
    /// The tasks that nodes of functions may run on.
    cluster: Mutex<Arc<GrpcCluster>>,
    /// Through which the other tasks run such nodes here.
    session: Arc<WorkerSession>,
    collectives: Arc<SessionCollectives>,
    /// Handles of resources of other tasks, by op and output.
    foreign: Mutex<HashMap<(i64, i32), Tensor>>,
    /// The tensors of packed handles, by op.
    pub(crate) packed: Mutex<HashMap<i64, Components>>,
    /// The functions of other tasks that take outputs which stay there.
    pub(crate) forwarders: Mutex<HashSet<String>>,
    /// The tensors that the client has handles of, by op and output.
    tensors: Mutex<HashMap<(i64, i32), Tensor>>,
    /// How long the last call of each op took that neither waits nor has effects.
    took: Mutex<HashMap<String, Duration>>,
    /// Where ops of other tasks take tensors, and bring them.
    pub(crate) rendezvous: Arc<StepRendezvous>,
}

impl RemoteContext {
    pub(crate) fn new(
        task: &Arc<Task>,
        id: u64,
        view: u64,
        keep_alive_secs: i64,
        name: &TaskName,
        peers: Arc<Peers>,
        cluster: &[DeviceAttributes],
    ) -> Result<Self> {
        let rendezvous = task.rendezvous.renew(id);
        rendezvous.initialize(name, &peers)?;
        let devices = Arc::new(task.devices.renamed(name));
        let handle = session_of(id);
        let grpc = GrpcCluster::of_context(task, &devices, &handle, &peers, cluster)?;
        let resources = task.resources.fork_session();
        let collectives = SessionCollectives::new(&task.collectives, &devices, &peers);
        // Collectives of all functions of a context belong to one step.
        let collectives = Arc::new(collectives.in_step(0));
        resources.set_collectives(collectives.clone());
        let eager = EagerContext::with_resources(task.pool.clone(), resources);
        let resources = eager.resources().fork_session();
        let session = WorkerSession::new(name.clone(), devices.clone(), resources, peers.clone());
        let session = Arc::new(session);
        for dropped in task.sessions.insert(handle, session.clone()) {
            task.rendezvous.end_session(&dropped);
        }
        let keep_alive = u64::try_from(keep_alive_secs).ok().filter(|s| *s > 0);
        Ok(RemoteContext {
            id,
            view: AtomicU64::new(view),
            timeout: None,
            keep_alive: keep_alive.map_or(KEEP_ALIVE, Duration::from_secs),
            used: Mutex::new(Instant::now()),
            name: name.clone(),
            devices,
            peers: Mutex::new(peers),
            eager,
            incarnations: Mutex::new(incarnations(cluster)),
            cluster: Mutex::new(Arc::new(grpc)),
            session,
            collectives,
            foreign: Mutex::default(),
            packed: Mutex::default(),
            forwarders: Mutex::default(),
            tensors: Mutex::default(),
            took: Mutex::default(),
            rendezvous,
            task: task.clone(),
        })
    }

    /// Limits the time of each op and function.
    pub(crate) fn with_timeout(mut self, timeout: Option<Duration>) -> Self {
        self.timeout = timeout;
        self
    }

    pub(crate) fn id(&self) -> u64 {
        self.id
    }

    pub(crate) fn eager(&self) -> &EagerContext {
        &self.eager
    }

    pub(crate) fn peers(&self) -> Arc<Peers> {
        lock(&self.peers).clone()
    }

    /// Encodes a tensor of this task for another one.
    pub(crate) fn encode(&self, tensor: &Tensor) -> Result<TensorProto> {
        self.task.handles.encode(tensor, self.devices.first())
    }

    /// Decodes a tensor of another task.
    pub(crate) fn decode(&self, proto: &TensorProto) -> Result<Tensor> {
        self.task.handles.decode(proto)
    }

    pub(crate) fn name(&self) -> &TaskName {
        &self.name
    }

    pub(crate) fn resources(&self) -> &Resources {
        self.eager.resources()
    }

    pub(crate) fn devices(&self) -> &Devices {
        &self.devices
    }

    pub(crate) fn view(&self) -> u64 {
        self.view.load(Ordering::Acquire)
    }

    pub(crate) fn set_view(&self, view: u64) {
        self.view.store(view, Ordering::Release);
    }

    /// Uses the addresses and devices of a changed cluster from now on.
    ///
    /// # Errors
    /// INVALID_ARGUMENT if an address is malformed.
    pub(crate) fn set_cluster(
        &self,
        peers: Arc<Peers>,
        cluster: &[DeviceAttributes],
    ) -> Result<()> {
        let handle = session_of(self.id);
        let grpc = GrpcCluster::of_context(&self.task, &self.devices, &handle, &peers, cluster)?;
        self.rendezvous.set_peers(&peers);
        self.session.set_peers(peers.clone());
        self.collectives.set_peers(peers.clone());
        *lock(&self.cluster) = Arc::new(grpc);
        // What was placed on the devices of the old one.
        self.eager.clear_caches();
        lock(&self.foreign).clear();
        lock(&self.forwarders).clear();
        *lock(&self.peers) = peers;
        *lock(&self.incarnations) = incarnations(cluster);
        Ok(())
    }

    pub(crate) fn keep_alive(&self) {
        *lock(&self.used) = Instant::now();
    }

    pub(crate) fn is_expired(&self) -> bool {
        lock(&self.used).elapsed() > self.keep_alive
    }

    /// Whether an item is expected to take less than a switch of threads, without waiting for other tasks.
    pub(crate) fn is_brief(&self, item: &QueueItem) -> bool {
        match &item.item {
            Some(Item::HandleToDecref(_)) => true,
            Some(Item::SendTensor(sent)) => {
                let bytes: usize = sent.tensors.iter().map(|t| t.tensor_content.len()).sum();
                bytes <= BRIEF_BYTES
            }
            Some(Item::Operation(operation)) if !operation.is_function => {
                let tensors = lock(&self.tensors);
                let is_here = |input: &Input| match &input.item {
                    Some(input::Item::Tensor(proto)) => proto.tensor_content.len() <= BRIEF_BYTES,
                    Some(input::Item::RemoteHandle(handle)) => {
                        tensors.contains_key(&(handle.op_id, handle.output_num))
                    }
                    None => false,
                };
                let took = lock(&self.took).get(&operation.name).copied();
                operation.op_inputs.iter().all(is_here)
                    && (operation.name == "_Send" || took.is_some_and(|took| took <= BRIEF))
            }
            _ => false,
        }
    }

    /// Runs an item of a queue.
    ///
    /// # Errors
    /// Those of the item.
    pub(crate) fn run_item(&self, item: QueueItem, cancel: &CancelToken) -> Result<QueueResponse> {
        let empty = QueueResponse::default();
        let Some(item) = item.item else {
            return Ok(empty);
        };
        match item {
            Item::Operation(operation) => return self.execute(&operation, cancel),
            Item::HandleToDecref(handle) => {
                let removed = lock(&self.tensors).remove(&(handle.op_id, handle.output_num));
                drop(removed);
                lock(&self.packed).remove(&handle.op_id);
            }
            Item::SendTensor(sent) => {
                for (i, proto) in (0..).zip(&sent.tensors) {
                    let tensor = self.decode(proto);
                    let tensor =
                        tensor.map_err(|e| e.prefixed("Unable to parse tensor proto: "))?;
                    lock(&self.tensors).insert((sent.op_id, i), tensor);
                }
            }
            Item::RegisterFunction(function) => self.register(function)?,
            Item::RemoveFunction(function) => {
                self.eager.remove_function(&function.function_name)?
            }
            Item::CleanupFunction(step) => self.task.rendezvous.cleanup(step.step_id as u64),
            // Items run in order.
            Item::SyncRemoteExecutorForStream(_) => {}
            Item::SendPackedHandle(packed) => self.keep_packed(&packed)?,
        }
        Ok(empty)
    }

    fn register(&self, function: RegisterFunctionOp) -> Result<()> {
        let library = function.library.unwrap_or_default();
        for inner in library.function {
            let name = inner
                .signature
                .as_ref()
                .map(|s| s.name.clone())
                .unwrap_or_default();
            // The library of each component has the functions that it shares with others.
            if self.eager.function(&name).is_none() {
                self.eager.add_function(Arc::new(inner))?;
            }
        }
        let mut def = function.function_def.unwrap_or_default();
        if function.is_component_function {
            // No output depends on what a component sends to others.
            let sends = def.node_def.iter().filter(|n| n.op == "_Send");
            let sends = sends.map(|n| (n.name.clone(), n.name.clone()));
            def.control_ret.extend(sends.collect::<Vec<_>>());
        }
        self.eager.add_function(Arc::new(def))
    }

    /// The tensor that an input stands for. One of another task is copied from there.
    fn input(&self, handle: &RemoteTensorHandle, cancel: &CancelToken) -> Result<Tensor> {
        match self.packed_tensor(handle.op_id, cancel) {
            Some(tensor) => tensor,
            None => self.tensor(handle, cancel),
        }
    }

    /// The tensor that a handle stands for, if it is not a packed one.
    pub(crate) fn tensor(
        &self,
        handle: &RemoteTensorHandle,
        cancel: &CancelToken,
    ) -> Result<Tensor> {
        let key = (handle.op_id, handle.output_num);
        if let Some(tensor) = lock(&self.tensors).get(&key) {
            return Ok(tensor.clone());
        }
        let owner = TaskName::of_device(&handle.op_device).filter(|owner| *owner != self.name);
        match owner {
            Some(owner) if handle.dtype == DType::Resource as i32 => {
                if let Some(known) = lock(&self.foreign).get(&key) {
                    return Ok(known.clone());
                }
                let tensor = self.copy_from(&owner, handle, cancel)?;
                let mut foreign = lock(&self.foreign);
                if foreign.len() >= MAX_FOREIGN {
                    foreign.clear();
                }
                foreign.insert(key, tensor.clone());
                Ok(tensor)
            }
            Some(owner) => self.copy_from(&owner, handle, cancel),
            None => Err(no_tensor(handle)),
        }
    }

    /// The tensors of an operation's inputs.
    fn inputs(&self, operation: &Operation, cancel: &CancelToken) -> Result<Vec<Tensor>> {
        let inputs = operation.op_inputs.iter();
        let tensors = inputs.map(|input| match &input.item {
            Some(input::Item::Tensor(proto)) => self.decode(proto),
            Some(input::Item::RemoteHandle(handle)) => self.input(handle, cancel),
            None => Err(invalid_argument!("an input of {} is empty", operation.name)),
        });
        tensors.collect()
    }

    /// Runs an op or a function.
    fn execute(&self, operation: &Operation, cancel: &CancelToken) -> Result<QueueResponse> {
        let device = &operation.device;
        if !operation.is_function && !device.is_empty() && !self.devices().names().contains(device)
        {
            return Err(invalid_argument!("{device} unknown device."));
        }
        let mut inputs = self.inputs(operation, cancel)?;
        let attrs = attrs_of_proto(&operation.attrs)?;
        let mut elsewhere = Vec::new();
        let outputs = match operation.name.as_str() {
            "_Send" => {
                let tensor = inputs.into_iter().next();
                let tensor = tensor.ok_or_else(|| invalid_argument!("_Send has no input"))?;
                self.rendezvous.send(&key_of(&attrs)?, Some(tensor))?;
                Vec::new()
            }
            "_Recv" => {
                let tensor = take_later(&self.rendezvous, &key_of(&attrs)?, cancel)?;
                vec![tensor.ok_or_else(|| invalid_argument!("the tensor is dead"))?]
            }
            name => {
                let options = RunOptions {
                    cancel: Some(cancel.clone()),
                    timeout: self.timeout,
                    ..Default::default()
                };
                let unpacked = self.unpacked_call(operation, cancel)?;
                let name = unpacked.as_ref().map_or(name, |(name, _)| name).to_string();
                inputs.extend(unpacked.into_iter().flat_map(|(_, components)| components));
                let started = Instant::now();
                let call = self.prepare(&name, &attrs, &inputs, false)?;
                let outputs = run(&call, inputs, &options)?;
                self.note_time(operation, started.elapsed());
                if operation.is_function && operation.id >= 0 {
                    elsewhere = call.remote_outputs();
                }
                outputs
            }
        };
        self.answer(operation, outputs, &elsewhere)
    }

    /// Remembers the outputs of an operation, those of `elsewhere` in the contexts of the tasks that have their devices.
    fn answer(
        &self,
        operation: &Operation,
        outputs: Vec<Tensor>,
        elsewhere: &[(usize, String)],
    ) -> Result<QueueResponse> {
        let numbers: Vec<i32> = (0..outputs.len() as i32).collect();
        for (i, device) in elsewhere {
            if let Some(output) = outputs.get(*i) {
                self.store_on(device, (operation.id, *i as i32), output)?;
            }
        }
        let mut response = self.keep(operation.id, &numbers, outputs)?;
        if operation.is_function && operation.id >= 0 {
            response.device = vec![String::new(); numbers.len()];
        }
        for (i, device) in elsewhere {
            if let Some(named) = response.device.get_mut(*i) {
                named.clone_from(device);
                lock(&self.tensors).remove(&(operation.id, *i as i32));
            }
        }
        Ok(response)
    }

    /// Remembers how long an op took, if it cannot wait for others.
    fn note_time(&self, operation: &Operation, took: Duration) {
        let def = self.eager.def(&operation.name);
        let op = def.as_ref().ok().map(|def| def.op_def());
        let has_state =
            op.is_none_or(|op| op.flags.stateful || op.inputs.iter().any(|arg| arg.is_ref()));
        if !operation.is_function && !has_state {
            lock(&self.took).insert(operation.name.clone(), took);
        }
    }

    /// Calls a function that has no attrs; its nodes are with the resources that they use.
    pub(crate) fn call_function(
        &self,
        name: &str,
        args: Vec<Tensor>,
        options: &RunOptions,
    ) -> Result<Vec<Tensor>> {
        let call = self.prepare(name, &Attrs::default(), &args, false)?;
        run(&call, args, options)
    }

    /// The compiled form of a call with these inputs.
    fn prepare(
        &self,
        name: &str,
        attrs: &Attrs,
        inputs: &[Tensor],
        is_component: bool,
    ) -> Result<Arc<EagerCall>> {
        let def = self.eager.def(name)?;
        let mut complete = attrs.clone();
        // What lacks a default is reported by the call.
        let given = match def.op_def().complete_attrs(&mut complete) {
            Ok(()) => def.given(&complete)?,
            Err(_) => def.given(attrs)?,
        };
        let dtypes: Vec<DType> = inputs.iter().map(Tensor::dtype).collect();
        match is_component || !def.needs_graph(attrs) {
            true => self.eager.call(&def, attrs, &given, &dtypes),
            false => {
                let cluster = lock(&self.cluster).clone();
                let devices = CallDevices {
                    set: cluster.device_set(true),
                    cluster,
                };
                let places: Box<[String]> = inputs.iter().map(device_of).collect();
                let inputs = (&dtypes[..], places);
                self.eager.call_on(&def, attrs, &given, inputs, &devices)
            }
        }
    }

    /// Remembers the outputs of an operation; one without an id returns them at once.
    fn keep(&self, id: i64, numbers: &[i32], outputs: Vec<Tensor>) -> Result<QueueResponse> {
        if id < 0 {
            let tensors = outputs.iter().map(|t| self.encode(t));
            return Ok(QueueResponse {
                tensor: tensors.collect::<Result<_>>()?,
                ..Default::default()
            });
        }
        let shapes = outputs.iter().map(|t| shape_to_proto(&t.shape().into()));
        let response = QueueResponse {
            shape: shapes.collect(),
            ..Default::default()
        };
        let mut tensors = lock(&self.tensors);
        for (number, output) in numbers.iter().zip(outputs) {
            tensors.insert((id, *number), output);
        }
        Ok(response)
    }

    /// Runs the part of a function that is on this task; `numbers` are the positions of its outputs among
    /// those of the whole function.
    ///
    /// # Errors
    /// Those of the function, which its other parts end with too.
    pub(crate) fn run_component(
        &self,
        operation: &Operation,
        numbers: &[i32],
        cancel: &CancelToken,
    ) -> Result<QueueResponse> {
        let step_id = operation.func_step_id as u64;
        let rendezvous = self.task.rendezvous.get(step_id);
        let peers = self.peers();
        rendezvous.initialize(&self.name, &peers)?;
        rendezvous.set_session(&session_of(self.id));
        let options = RunOptions {
            cancel: Some(cancel.clone()),
            step_id: Some(step_id),
            rendezvous: Some(rendezvous.clone()),
            ..Default::default()
        };
        let outputs = self.inputs(operation, cancel).and_then(|inputs| {
            let attrs = attrs_of_proto(&operation.attrs)?;
            let call = self.prepare(&operation.name, &attrs, &inputs, true)?;
            run(&call, inputs, &options)
        });
        let outputs = outputs.inspect_err(|e| rendezvous.abort(e.clone()))?;
        match numbers {
            // A function that another task called as a whole.
            [] => {
                let all: Vec<i32> = (0..outputs.len() as i32).collect();
                self.keep(operation.id, &all, outputs)
            }
            some if some.len() == outputs.len() => self.keep(operation.id, some, outputs),
            some => Err(internal!(
                "{} has {} outputs, {} are expected",
                operation.name,
                outputs.len(),
                some.len()
            )),
        }
    }
}

fn run(call: &EagerCall, inputs: Vec<Tensor>, options: &RunOptions) -> Result<Vec<Tensor>> {
    let mut values: CallInputs = inputs.into_iter().map(|t| Some(t).into()).collect();
    let outputs = call.run_with(&mut values, options)?;
    Ok(outputs.into_iter().collect())
}

impl Drop for RemoteContext {
    fn drop(&mut self) {
        let handle = session_of(self.id);
        let current = self.task.sessions.get(&handle);
        // A newer context of the client may have taken its place.
        if current.is_some_and(|session| Arc::ptr_eq(&session, &self.session)) {
            self.task.rendezvous.cleanup(self.id);
            // A client that is gone has not ended the steps of its functions.
            self.task.rendezvous.end_session(&handle);
            self.task.sessions.remove(&handle);
        }
    }
}

/// The handle of the worker session of a context, as in TensorFlow.
pub(crate) fn session_of(context: u64) -> String {
    format!("{EAGER}{context}")
}

/// The context of a worker session, if it is one of a context.
pub(crate) fn context_of(session: &str) -> Option<u64> {
    session.strip_prefix(EAGER)?.parse().ok()
}

/// The error of a task that does not have a context.
#[cold]
pub(crate) fn no_context(id: u64) -> Status {
    aborted!(
        "Unable to find a context_id matching the specified one ({}). Perhaps the worker was \
         restarted, or the context was GC'd?",
        id as i64
    )
}

/// The error of a handle without a tensor, whose payload says where it was found
/// (`tensorflow.core.platform.ErrorSourceProto`).
#[cold]
fn no_tensor(handle: &RemoteTensorHandle) -> Status {
    const SOURCE: &str = "type.googleapis.com/tensorflow.core.platform.ErrorSourceProto";
    // `error_source: EAGER_REMOTE_MGR`.
    const EAGER_REMOTE_MGR: [u8; 2] = [8, 5];
    let error = invalid_argument!(
        "Unable to find the relevant tensor remote_handle: Op ID: {}, Output num: {}. One possible cause is that \
         the tensor was accessed after deallocation in a distributed worker setup.Try setting \
         `os.environ['TF_ENABLE_EAGER_CLIENT_STREAMING_ENQUEUE']='False'` in your client to disable async \
         streaming behavior to see if it fixes the problem.",
        handle.op_id,
        handle.output_num
    );
    error.with_payload(SOURCE, EAGER_REMOTE_MGR)
}

/// The device of the resource that a tensor is the handle of, if another task or this one named it.
pub(crate) fn device_of(tensor: &Tensor) -> String {
    let handle = tensor.resources().ok().and_then(|handles| handles.first());
    let origin = handle.and_then(|handle| handle.origin.as_ref());
    origin.map(|o| o.device.clone()).unwrap_or_default()
}

fn incarnations(cluster: &[DeviceAttributes]) -> HashMap<String, u64> {
    let devices = cluster.iter();
    devices.map(|d| (d.name.clone(), d.incarnation)).collect()
}
