//! Tensors that eager contexts of one client exchange.

use crate::device::TaskName;
use crate::eager_context::RemoteContext;
use crate::master_session::lock;
use crate::rendezvous::take_later;
use ferroflow_base::{Result, Status, invalid_argument};
use ferroflow_model::proto::operation::{Input, input};
use ferroflow_model::proto::queue_item::Item;
use ferroflow_model::proto::{
    AttrValue as AttrProto, EnqueueResponse, Operation, RemoteTensorHandle, attr_value,
};
use ferroflow_runtime::CancelToken;
use ferroflow_runtime::eager::Attrs;
use ferroflow_tensor::Tensor;
use std::sync::atomic::{AtomicU64, Ordering};

impl RemoteContext {
    /// Makes another task send a tensor, and receives it.
    pub(crate) fn copy_from(
        &self,
        owner: &TaskName,
        handle: &RemoteTensorHandle,
        cancel: &CancelToken,
    ) -> Result<Tensor> {
        static COPIES: AtomicU64 = AtomicU64::new(0);
        let number = COPIES.fetch_add(1, Ordering::Relaxed);
        let name = format!("{}_{number}", crate::device::random_u64());
        let text = |s: &str| attr_value::Value::S(s.as_bytes().to_vec().into());
        let recv_device = self.devices().first().to_string();
        let known = lock(&self.incarnations).get(&handle.op_device).copied();
        // The client's device filters may hide a task.
        let incarnation =
            known.ok_or_else(|| invalid_argument!("{} unknown device.", handle.op_device))?;
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
        let request = self.enqueue_request(Item::Operation(send));
        let peers = self.peers();
        let peer = peers.get(owner)?;
        let call = peer.call_eager::<_, EnqueueResponse>("Enqueue", request);
        ferroflow_rpc::block_on(peers.runtime(), call)?;
        let key = format!(
            "{};{incarnation:016x};{recv_device};{name};0:0",
            handle.op_device
        );
        let tensor = take_later(&self.rendezvous, &key, cancel)?;
        tensor.ok_or_else(|| invalid_argument!("the tensor of {owner} is dead"))
    }
}

/// The rendezvous key in the attrs of a `_Send` or `_Recv`.
pub(crate) fn key_of(attrs: &Attrs) -> Result<String> {
    let incarnation = attrs.int("send_device_incarnation")?;
    let text = |name: &str| attrs.str(name).map_err(|e: Status| e.note("in a transfer"));
    Ok(format!(
        "{};{incarnation:016x};{};{};0:0",
        text("send_device")?,
        text("recv_device")?,
        text("tensor_name")?
    ))
}
