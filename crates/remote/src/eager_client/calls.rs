//! Ops that other tasks run, and the tensors that travel.

use super::{EagerCluster, RemoteTensor, Shared, View};
use crate::device::{TaskName, random_u64};
use crate::master_session::lock;
use crate::peers::Peer;
use crate::rendezvous::take_later;
use ferroflow_base::{Result, internal, invalid_argument};
use ferroflow_model::proto::operation::{Input, input};
use ferroflow_model::proto::queue_item::Item;
use ferroflow_model::proto::{
    AttrValue as AttrProto, EnqueueRequest, EnqueueResponse, KeepAliveRequest, KeepAliveResponse,
    Operation, QueueItem, QueueResponse, RegisterFunctionOp, RemoteTensorHandle, RemoveFunctionOp,
    SendTensorOp, attr_value,
};
use ferroflow_model::shape_from_proto;
use ferroflow_runtime::eager::{Attrs, EagerContext};
use ferroflow_runtime::{AttrValue, CancelToken, DType, PartialShape, export_attr};
use ferroflow_tensor::Tensor;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;
use tokio::sync::{mpsc, oneshot};

/// At most this many tensors are forgotten by one message.
const MAX_FORGOTTEN: usize = 256;

/// A call that another task runs.
pub struct RemoteCall<'a> {
    /// The op or function.
    pub name: &'a str,
    /// Its attrs, complete but for defaults.
    pub attrs: &'a Attrs,
    /// Its inputs.
    pub inputs: Vec<RemoteInput>,
}

/// An input of such a call.
#[derive(Clone)]
pub enum RemoteInput {
    /// A tensor of this process, which is sent.
    Local(Tensor),
    /// A tensor that a task has.
    Remote(Arc<RemoteTensor>),
}

impl RemoteInput {
    /// Returns the tensor in this process.
    ///
    /// # Errors
    /// As [`RemoteTensor::fetch`].
    pub fn fetch(&self) -> Result<Tensor> {
        match self {
            RemoteInput::Local(tensor) => Ok(tensor.clone()),
            RemoteInput::Remote(remote) => remote.fetch(),
        }
    }

    /// Returns the device of the resource that the input is a handle of; empty if any device may use it, and for
    /// other tensors.
    pub fn resource_device(&self) -> String {
        match self {
            RemoteInput::Remote(remote) if remote.dtype() == DType::Resource => {
                remote.device().to_string()
            }
            RemoteInput::Remote(_) => String::new(),
            RemoteInput::Local(tensor) => crate::eager_context::device_of(tensor),
        }
    }
}

impl EagerCluster {
    /// Returns the outputs of a call that is still to be run on a device of another task.
    ///
    /// # Errors
    /// INVALID_ARGUMENT if `device` is not a full name.
    pub fn promise(&self, device: &str, dtypes: &[DType]) -> Result<Vec<Arc<RemoteTensor>>> {
        let task = owner_of(device)?;
        let op = self.shared.next_op();
        let output = |(number, dtype): (i32, &DType)| {
            let place = (&task, device);
            Arc::new(RemoteTensor::new(&self.shared, place, *dtype, (op, number)))
        };
        Ok((0..).zip(dtypes).map(output).collect())
    }

    /// Runs a call on a device of another task; `outputs` were promised for it. Returns when it has run.
    ///
    /// # Errors
    /// Those of the inputs, of the task, of the op; the reason of `cancel`. The caller has to tell the outputs:
    /// [`RemoteTensor::fail`].
    pub fn run(
        &self,
        engine: &EagerContext,
        call: &RemoteCall,
        device: &str,
        outputs: &[Arc<RemoteTensor>],
        cancel: &CancelToken,
    ) -> Result<()> {
        let answer = self.enqueue_call(engine, call, device, outputs, cancel)?;
        for (i, output) in outputs.iter().enumerate() {
            if let Some(device) = answer.device.get(i) {
                output.set_device(device);
            }
            let shape = answer.shape.get(i).map(shape_from_proto);
            output.set(shape.unwrap_or_else(|| Ok(PartialShape::unknown())));
        }
        Ok(())
    }

    fn enqueue_call(
        &self,
        engine: &EagerContext,
        call: &RemoteCall,
        device: &str,
        outputs: &[Arc<RemoteTensor>],
        cancel: &CancelToken,
    ) -> Result<QueueResponse> {
        let (shared, view) = (&self.shared, self.shared.view());
        shared.check()?;
        let task = owner_of(device)?;
        let peer = view.peer(&task)?;
        let is_function = engine.function(call.name).is_some();
        let mut kept = Vec::new();
        let mut inputs = Vec::with_capacity(call.inputs.len());
        for given in &call.inputs {
            let item = match given {
                RemoteInput::Local(tensor) => {
                    let own = shared.task.devices.first();
                    input::Item::Tensor(shared.task.handles.encode(tensor, own)?)
                }
                RemoteInput::Remote(remote) => {
                    remote.shape()?;
                    // A function asks for what others have by itself.
                    let stays =
                        *remote.task() == task || is_function || remote.dtype() == DType::Resource;
                    let there = match stays {
                        true => remote.clone(),
                        false => shared.copy(&view, remote, device, cancel)?,
                    };
                    kept.push(there.clone());
                    input::Item::RemoteHandle(there.to_proto())
                }
            };
            inputs.push(Input { item: Some(item) });
        }
        let attrs = call.attrs.iter();
        let attrs = attrs.map(|(name, value)| Ok((name.to_string(), export_attr(value)?)));
        let operation = Operation {
            id: outputs.first().map_or_else(|| shared.next_op(), |o| o.op()),
            name: call.name.to_string(),
            op_inputs: inputs,
            attrs: attrs.collect::<Result<_>>()?,
            device: device.to_string(),
            is_function,
            ..Default::default()
        };
        let new = match is_function || call.attrs.iter().any(|(_, value)| has_function(value)) {
            true => shared.new_functions(engine, &task),
            false => Vec::new(),
        };
        let names = new.iter().map(|(name, _)| name.clone());
        let names: Vec<String> = names.collect();
        let mut queue: Vec<Item> = new.into_iter().map(|(_, item)| item).collect();
        queue.push(Item::Operation(operation));
        let answer = shared.enqueue(&peer, queue, cancel)?;
        lock(&shared.registered)
            .entry(task)
            .or_default()
            .extend(names);
        Ok(answer)
    }

    /// Copies a tensor of this process to a device of another task.
    ///
    /// # Errors
    /// Those of the task.
    pub fn send(&self, tensor: &Tensor, device: &str) -> Result<Arc<RemoteTensor>> {
        let (shared, view) = (&self.shared, self.shared.view());
        shared.check()?;
        let task = owner_of(device)?;
        let peer = view.peer(&task)?;
        let op = shared.next_op();
        let send = Item::SendTensor(SendTensorOp {
            op_id: op,
            tensors: vec![
                shared
                    .task
                    .handles
                    .encode(tensor, shared.task.devices.first())?,
            ],
            device_name: device.to_string(),
        });
        shared.enqueue(&peer, vec![send], &CancelToken::new())?;
        let sent = RemoteTensor::new(shared, (&task, device), tensor.dtype(), (op, 0));
        sent.set(Ok(tensor.shape().into()));
        Ok(Arc::new(sent))
    }

    /// Copies a tensor from one task to another one; on the same device it stays where it is.
    ///
    /// # Errors
    /// Those of the op that computes it, and of the tasks.
    pub fn copy(&self, tensor: &Arc<RemoteTensor>, device: &str) -> Result<Arc<RemoteTensor>> {
        if tensor.device() == device {
            return Ok(tensor.clone());
        }
        self.shared.check()?;
        let view = self.shared.view();
        self.shared.copy(&view, tensor, device, &CancelToken::new())
    }

    /// Lets the other tasks forget a function.
    ///
    /// # Errors
    /// Those of the tasks.
    pub fn remove_function(&self, name: &str) -> Result<()> {
        let view = self.shared.view();
        self.shared.check()?;
        let mut registered = lock(&self.shared.registered);
        let tasks = registered.iter_mut();
        let tasks = tasks.filter_map(|(task, names)| names.remove(name).then(|| task.clone()));
        let tasks: Vec<TaskName> = tasks.collect();
        drop(registered);
        for task in tasks {
            let remove = Item::RemoveFunction(RemoveFunctionOp {
                function_name: name.to_string(),
            });
            let peer = view.peer(&task)?;
            self.shared
                .enqueue(&peer, vec![remove], &CancelToken::new())?;
        }
        Ok(())
    }
}

impl Shared {
    fn next_op(&self) -> i64 {
        self.next_op.fetch_add(1, Ordering::Relaxed)
    }

    /// Runs items in order on a task; returns the answer to the last one.
    fn enqueue(
        &self,
        peer: &Peer,
        items: Vec<Item>,
        cancel: &CancelToken,
    ) -> Result<QueueResponse> {
        let queue = items.into_iter().map(|item| QueueItem { item: Some(item) });
        let request = EnqueueRequest {
            context_id: self.id,
            queue: queue.collect(),
        };
        let (cancelled, on_cancel) = oneshot::channel();
        let (token, sender) = (cancel.clone(), Mutex::new(Some(cancelled)));
        let _registration = cancel.on_cancel(move || {
            if let (Err(reason), Some(sender)) = (token.check(), lock(&sender).take()) {
                // The call may just have ended.
                let _ = sender.send(reason);
            }
        });
        let call = peer.call_eager::<_, EnqueueResponse>("Enqueue", request);
        let answer = peer.runtime().block_on(async {
            tokio::select! {
                answer = call => answer,
                Ok(reason) = on_cancel => Err(reason),
            }
        });
        let answer = answer?.queue_response.pop();
        answer.ok_or_else(|| internal!("{} has not answered", peer.task))
    }

    /// The functions that a task does not have yet.
    fn new_functions(&self, engine: &EagerContext, task: &TaskName) -> Vec<(String, Item)> {
        let registered = lock(&self.registered);
        let known = registered.get(task);
        let is_new = |name: &String| known.is_none_or(|known| !known.contains(name));
        let functions = engine.functions().into_iter();
        let new = functions.filter(|(name, _)| is_new(name));
        new.map(|(name, function)| {
            let register = RegisterFunctionOp {
                function_def: Some((*function).clone()),
                ..Default::default()
            };
            (name, Item::RegisterFunction(register))
        })
        .collect()
    }

    /// Requests a tensor from its task.
    pub(super) fn fetch(&self, tensor: &RemoteTensor) -> Result<Tensor> {
        self.check()?;
        let view = self.view();
        let cancel = CancelToken::new();
        let peer = view.peer(tensor.task())?;
        let transfer = self.begin_transfer(&view, tensor, self.task.devices.first());
        let send = transfer.operation("_Send", tensor.to_proto(), -1);
        self.enqueue(&peer, vec![Item::Operation(send)], &cancel)?;
        let tensor = take_later(&self.rendezvous, &transfer.key(), &cancel)?;
        tensor.ok_or_else(|| invalid_argument!("the tensor of {} is dead", peer.task))
    }

    /// Lets the task of a tensor send it to another one.
    fn copy(
        self: &Arc<Self>,
        view: &View,
        tensor: &RemoteTensor,
        device: &str,
        cancel: &CancelToken,
    ) -> Result<Arc<RemoteTensor>> {
        let shape = tensor.shape()?;
        let task = owner_of(device)?;
        let (from, to) = (view.peer(tensor.task())?, view.peer(&task)?);
        let transfer = self.begin_transfer(view, tensor, device);
        let send = transfer.operation("_Send", tensor.to_proto(), -1);
        self.enqueue(&from, vec![Item::Operation(send)], cancel)?;
        let op = self.next_op();
        let receive = Operation {
            op_inputs: Vec::new(),
            ..transfer.operation("_Recv", tensor.to_proto(), op)
        };
        self.enqueue(&to, vec![Item::Operation(receive)], cancel)?;
        let copy = RemoteTensor::new(self, (&task, device), tensor.dtype(), (op, 0));
        copy.set(Ok(shape));
        Ok(Arc::new(copy))
    }

    fn begin_transfer(&self, view: &View, tensor: &RemoteTensor, to: &str) -> Transfer {
        static TRANSFERS: AtomicU64 = AtomicU64::new(0);
        let number = TRANSFERS.fetch_add(1, Ordering::Relaxed);
        Transfer {
            name: format!("{}_{number}", random_u64()),
            from: tensor.device().to_string(),
            to: to.to_string(),
            incarnation: view.incarnation(tensor.device()),
        }
    }
}

/// A tensor on its way between two devices.
struct Transfer {
    name: String,
    from: String,
    to: String,
    incarnation: u64,
}

impl Transfer {
    /// The rendezvous key.
    fn key(&self) -> String {
        let Transfer {
            name,
            from,
            to,
            incarnation,
        } = self;
        format!("{from};{incarnation:016x};{to};{name};0:0")
    }

    /// `_Send` on the device that has the tensor, or `_Recv` on the other one.
    fn operation(&self, op: &str, tensor: RemoteTensorHandle, id: i64) -> Operation {
        let text = |s: &str| attr_value::Value::S(s.as_bytes().to_vec().into());
        let (dtype_attr, device) = match op {
            "_Send" => ("T", &self.from),
            _ => ("tensor_type", &self.to),
        };
        let attrs = [
            (dtype_attr, attr_value::Value::Type(tensor.dtype)),
            ("tensor_name", text(&self.name)),
            ("send_device", text(&self.from)),
            (
                "send_device_incarnation",
                attr_value::Value::I(self.incarnation as i64),
            ),
            ("recv_device", text(&self.to)),
            ("client_terminated", attr_value::Value::B(false)),
        ];
        let attrs = attrs.map(|(name, value)| {
            let value = AttrProto { value: Some(value) };
            (name.to_string(), value)
        });
        Operation {
            id,
            name: op.to_string(),
            op_inputs: vec![Input {
                item: Some(input::Item::RemoteHandle(tensor)),
            }],
            attrs: attrs.into_iter().collect(),
            device: device.clone(),
            ..Default::default()
        }
    }
}

fn owner_of(device: &str) -> Result<TaskName> {
    TaskName::of_device(device).ok_or_else(|| invalid_argument!("{device} unknown device."))
}

fn has_function(value: &AttrValue) -> bool {
    match value {
        AttrValue::List(list) => list.iter().any(has_function),
        value => matches!(value, AttrValue::Func(_)),
    }
}

/// Tells tasks which tensors they may forget, many by one message if they come faster than it travels.
pub(super) async fn forget_tensors(
    shared: Weak<Shared>,
    mut forgotten: mpsc::UnboundedReceiver<(TaskName, RemoteTensorHandle)>,
) {
    let mut handles = Vec::new();
    while forgotten.recv_many(&mut handles, MAX_FORGOTTEN).await > 0 {
        let mut of_tasks: BTreeMap<TaskName, Vec<QueueItem>> = BTreeMap::new();
        for (task, handle) in handles.drain(..) {
            let item = Some(Item::HandleToDecref(handle));
            of_tasks.entry(task).or_default().push(QueueItem { item });
        }
        let Some((id, view)) = shared.upgrade().map(|shared| (shared.id, shared.view())) else {
            return;
        };
        for (task, queue) in of_tasks {
            let Ok(peer) = view.peer(&task) else {
                continue;
            };
            let request = EnqueueRequest {
                context_id: id,
                queue,
            };
            let call = peer.call_eager::<_, EnqueueResponse>("Enqueue", request);
            if let Err(error) = call.await {
                tracing::debug!("tensors of {task}: {}", error.message());
            }
        }
    }
}

/// Tells the tasks regularly that the client still has its context.
pub(super) async fn keep_alive(shared: Weak<Shared>, often: Duration) {
    loop {
        tokio::time::sleep(often).await;
        let Some((id, view)) = shared.upgrade().map(|shared| (shared.id, shared.view())) else {
            return;
        };
        for peer in view.members.iter().flat_map(|task| view.peer(task)) {
            let request = KeepAliveRequest { context_id: id };
            let call = peer.call_eager::<_, KeepAliveResponse>("KeepAlive", request);
            if let Err(error) = call.await {
                tracing::debug!("keeping the context of {}: {}", peer.task, error.message());
            }
        }
    }
}
