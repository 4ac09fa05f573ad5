//! [`RemoteContext`]: a client's eager context on this task.

use crate::cluster::{EAGER, GrpcCluster};
use crate::collectives::SessionCollectives;
use crate::device::{Devices, TaskName};
use crate::master_session::lock;
use crate::peers::Peers;
use crate::rendezvous::{StepRendezvous, take_later};
use crate::task::Task;
use crate::worker_session::WorkerSession;
use ferroflow_base::{Result, Status, internal, invalid_argument};
use ferroflow_model::proto::operation::{Input, input};
use ferroflow_model::proto::queue_item::Item;
use ferroflow_model::proto::send_packed_handle_op::handle;
use ferroflow_model::proto::{
    AttrValue as AttrProto, DeviceAttributes, EnqueueRequest, EnqueueResponse, Operation,
    QueueItem, QueueResponse, RegisterFunctionOp, RemoteTensorHandle, SendPackedHandleOp,
    TensorProto, attr_value,
};
use ferroflow_model::shape_to_proto;
use ferroflow_runtime::eager::{Attrs, CallDevices, CallInputs, EagerContext};
use ferroflow_runtime::{CancelToken, DType, Rendezvous, Resources, RunOptions, attrs_of_proto};
use ferroflow_tensor::Tensor;
use std::collections::HashMap;
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
    incarnations: Mutex<HashMap<String, u64>>,
    /// The tasks that nodes of functions may run on.
    cluster: Mutex<Arc<GrpcCluster>>,
    /// Through which the other tasks run such nodes here.
    session: Arc<WorkerSession>,
    collectives: Arc<SessionCollectives>,
    /// Handles of resources of other tasks, by op and output.
    foreign: Mutex<HashMap<(i64, i32), Tensor>>,
    /// The first tensor of packed handles that have none of this task, by op.
    packed: Mutex<HashMap<i64, RemoteTensorHandle>>,
    /// The tensors that the client has handles of, by op and output.
    tensors: Mutex<HashMap<(i64, i32), Tensor>>,
    /// How long the last call of each op took that neither waits nor has effects.
    took: Mutex<HashMap<String, Duration>>,
    /// Where ops of other tasks take tensors, and bring them.
    rendezvous: Arc<StepRendezvous>,
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
        match item
            .item
            .ok_or_else(|| invalid_argument!("the queue has an empty item"))?
        {
            Item::Operation(operation) => return self.execute(&operation, cancel),
            Item::HandleToDecref(handle) => {
                let removed = lock(&self.tensors).remove(&(handle.op_id, handle.output_num));
                drop(removed);
                lock(&self.packed).remove(&handle.op_id);
            }
            Item::SendTensor(sent) => {
                for (i, proto) in (0..).zip(&sent.tensors) {
                    let tensor = self.task.handles.decode(proto)?;
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
            Item::SendPackedHandle(packed) => self.unpack(&packed, cancel)?,
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

    /// Keeps the tensor of this task of a packed handle, or where its first one is.
    fn unpack(&self, packed: &SendPackedHandleOp, cancel: &CancelToken) -> Result<()> {
        let own = format!("{}/", self.name);
        for handle in packed.handles.iter().filter_map(|h| h.item.as_ref()) {
            let tensor = match handle {
                handle::Item::LocalHandle(local) if local.device.starts_with(&own) => self
                    .task
                    .handles
                    .decode(local.tensor.as_ref().unwrap_or(&TensorProto::default()))?,
                handle::Item::RemoteHandle(remote) if remote.device.starts_with(&own) => {
                    self.tensor(remote, cancel)?
                }
                _ => continue,
            };
            lock(&self.tensors).insert((packed.op_id, 0), tensor);
            return Ok(());
        }
        let remote = packed.handles.iter().find_map(|h| match &h.item {
            Some(handle::Item::RemoteHandle(remote)) => Some(remote.clone()),
            _ => None,
        });
        if let Some(remote) = remote {
            lock(&self.packed).insert(packed.op_id, remote);
        }
        Ok(())
    }

    /// The tensor that a handle stands for. One of another task is copied from there.
    fn tensor(&self, handle: &RemoteTensorHandle, cancel: &CancelToken) -> Result<Tensor> {
        let key = (handle.op_id, handle.output_num);
        if let Some(tensor) = lock(&self.tensors).get(&key) {
            return Ok(tensor.clone());
        }
        let packed = lock(&self.packed).get(&handle.op_id).cloned();
        if let Some(first) = packed.filter(|first| first.op_id != handle.op_id) {
            return self.tensor(&first, cancel);
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
            None => Err(invalid_argument!(
                "Unable to find the relevant tensor remote_handle: Op ID: {}, Output num: {}. One \
                 possible cause is that the tensor was accessed after deallocation in a distributed \
                 worker setup.  Try setting `os.environ['TF_ENABLE_EAGER_CLIENT_STREAMING_ENQUEUE']='False'` \
                 in your client to disable async streaming behavior to see if it fixes the problem.",
                handle.op_id,
                handle.output_num
            )),
        }
    }

    /// Makes another task send a tensor, and receives it.
    fn copy_from(
        &self,
        owner: &TaskName,
        handle: &RemoteTensorHandle,
        cancel: &CancelToken,
    ) -> Result<Tensor> {
        static COPIES: AtomicU64 = AtomicU64::new(0);
        let number = COPIES.fetch_add(1, Ordering::Relaxed);
        let name = format!("{}_{number}", crate::device::random_u64());
        let text = |s: &str| attr_value::Value::S(s.as_bytes().to_vec().into());
        let recv_device = self.devices.first().to_string();
        let known = lock(&self.incarnations).get(&handle.op_device).copied();
        let incarnation = known.unwrap_or_default();
        let attrs = [
            ("T", attr_value::Value::Type(handle.dtype)),
            ("tensor_name", text(&name)),
            ("send_device", text(&handle.op_device)),
            (
                "send_device_incarnation",
                attr_value::Value::I(incarnation as i64),
            ),
            ("recv_device", text(&recv_device)),
            ("client_terminated", attr_value::Value::B(false)),
        ];
        let attrs = attrs.map(|(name, value)| {
            let value = AttrProto { value: Some(value) };
            (name.to_string(), value)
        });
        let send = Operation {
            id: -1,
            name: "_Send".to_string(),
            op_inputs: vec![Input {
                item: Some(input::Item::RemoteHandle(handle.clone())),
            }],
            attrs: attrs.into_iter().collect(),
            device: handle.op_device.clone(),
            ..Default::default()
        };
        let request = EnqueueRequest {
            context_id: self.id,
            queue: vec![QueueItem {
                item: Some(Item::Operation(send)),
            }],
        };
        let peers = lock(&self.peers).clone();
        let peer = peers.get(owner)?;
        let call = peer.call_eager::<_, EnqueueResponse>("Enqueue", request);
        peers.runtime().block_on(call)?;
        let key = format!(
            "{};{incarnation:016x};{recv_device};{name};0:0",
            handle.op_device
        );
        let tensor = take_later(&self.rendezvous, &key, cancel)?;
        tensor.ok_or_else(|| invalid_argument!("the tensor of {owner} is dead"))
    }

    /// The tensors of an operation's inputs.
    fn inputs(&self, operation: &Operation, cancel: &CancelToken) -> Result<Vec<Tensor>> {
        let inputs = operation.op_inputs.iter();
        let tensors = inputs.map(|input| match &input.item {
            Some(input::Item::Tensor(proto)) => self.task.handles.decode(proto),
            Some(input::Item::RemoteHandle(handle)) => self.tensor(handle, cancel),
            None => Err(invalid_argument!("an input of {} is empty", operation.name)),
        });
        tensors.collect()
    }

    /// Runs an op or a function.
    fn execute(&self, operation: &Operation, cancel: &CancelToken) -> Result<QueueResponse> {
        let inputs = self.inputs(operation, cancel)?;
        let attrs = attrs_of_proto(&operation.attrs)?;
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
                let started = Instant::now();
                let outputs = self.call(name, &attrs, inputs, &options, false)?;
                self.note_time(operation, started.elapsed());
                outputs
            }
        };
        let numbers: Vec<i32> = (0..outputs.len() as i32).collect();
        let mut response = self.keep(operation.id, &numbers, outputs)?;
        if operation.is_function && operation.id >= 0 {
            response.device = vec![String::new(); numbers.len()];
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
        self.call(name, &Attrs::default(), args, options, false)
    }

    fn call(
        &self,
        name: &str,
        attrs: &Attrs,
        inputs: Vec<Tensor>,
        options: &RunOptions,
        is_component: bool,
    ) -> Result<Vec<Tensor>> {
        let def = self.eager.def(name)?;
        let mut complete = attrs.clone();
        // What lacks a default is reported by the call.
        let given = match def.op_def().complete_attrs(&mut complete) {
            Ok(()) => def.given(&complete)?,
            Err(_) => def.given(attrs)?,
        };
        let dtypes: Vec<DType> = inputs.iter().map(Tensor::dtype).collect();
        let call = match is_component || !def.needs_graph(attrs) {
            true => self.eager.call(&def, attrs, &given, &dtypes)?,
            false => {
                let cluster = lock(&self.cluster).clone();
                let devices = CallDevices {
                    set: cluster.device_set(true),
                    cluster,
                };
                let places: Box<[String]> = inputs.iter().map(device_of).collect();
                let inputs = (&dtypes[..], places);
                self.eager.call_on(&def, attrs, &given, inputs, &devices)?
            }
        };
        let mut values: CallInputs = inputs.into_iter().map(|t| Some(t).into()).collect();
        let outputs = call.run_with(&mut values, options)?;
        Ok(outputs.into_iter().collect())
    }

    /// Remembers the outputs of an operation; one without an id returns them at once.
    fn keep(&self, id: i64, numbers: &[i32], outputs: Vec<Tensor>) -> Result<QueueResponse> {
        if id < 0 {
            let device = self.devices.first();
            let tensors = outputs.iter().map(|t| self.task.handles.encode(t, device));
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
        let peers = lock(&self.peers).clone();
        rendezvous.initialize(&self.name, &peers)?;
        let options = RunOptions {
            cancel: Some(cancel.clone()),
            step_id: Some(step_id),
            rendezvous: Some(rendezvous.clone()),
            ..Default::default()
        };
        let outputs = self.inputs(operation, cancel).and_then(|inputs| {
            let attrs = attrs_of_proto(&operation.attrs)?;
            self.call(&operation.name, &attrs, inputs, &options, true)
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

impl Drop for RemoteContext {
    fn drop(&mut self) {
        self.task.rendezvous.cleanup(self.id);
        self.task.sessions.remove(&session_of(self.id));
    }
}

/// The handle of the worker session of a context, as in TensorFlow.
pub(crate) fn session_of(context: u64) -> String {
    format!("{EAGER}{context}")
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

/// The rendezvous key in the attrs of a `_Send` or `_Recv`.
fn key_of(attrs: &Attrs) -> Result<String> {
    let incarnation = attrs.int("send_device_incarnation")?;
    let text = |name: &str| attrs.str(name).map_err(|e: Status| e.note("in a transfer"));
    Ok(format!(
        "{};{incarnation:016x};{};{};0:0",
        text("send_device")?,
        text("recv_device")?,
        text("tensor_name")?
    ))
}
