//! Outputs of functions that stay with the tasks that computed them (`core/common_runtime/eager/kernel_and_device.cc`,
//! `core/distributed_runtime/eager/cluster_function_library_runtime.cc`).

use crate::device::{TaskName, random_u64};
use crate::eager_context::RemoteContext;
use crate::master_session::lock;
use crate::peers::Peer;
use ferroflow_base::{Result, internal};
use ferroflow_model::proto::op_def::ArgDef;
use ferroflow_model::proto::operation::{Input, input};
use ferroflow_model::proto::queue_item::Item;
use ferroflow_model::proto::{
    AttrValue, CleanupFunctionOp, EnqueueRequest, EnqueueResponse, FunctionDef, NodeDef, OpDef,
    Operation, QueueItem, RegisterFunctionOp, RunComponentFunctionRequest,
    RunComponentFunctionResponse, attr_value,
};
use ferroflow_tensor::{DType, Tensor};

impl RemoteContext {
    /// Stores an output of the operation `id` in the context of another task, where the client looks for it.
    ///
    /// # Errors
    /// NOT_FOUND if the cluster does not have the task; UNAVAILABLE if it cannot be reached.
    pub(crate) fn store_on(
        &self,
        device: &str,
        (id, number): (i64, i32),
        output: &Tensor,
    ) -> Result<()> {
        let owner = TaskName::of_device(device);
        let owner = owner.ok_or_else(|| internal!("{device} is not the full name of a device"))?;
        let peers = self.peers();
        let peer = peers.get(&owner)?;
        let function = self.identity_function(&peer, output.dtype())?;
        let step_id = random_u64() as i64;
        let request = RunComponentFunctionRequest {
            context_id: self.id(),
            operation: Some(Operation {
                id,
                name: function,
                op_inputs: vec![Input {
                    item: Some(input::Item::Tensor(self.encode(output)?)),
                }],
                device: device.to_string(),
                is_component_function: true,
                func_step_id: step_id,
                is_function: true,
                ..Default::default()
            }),
            output_num: vec![number],
        };
        let call =
            peer.call_eager::<_, RunComponentFunctionResponse>("RunComponentFunction", request);
        ferroflow_rpc::block_on(peers.runtime(), call)?;
        let cleanup = self.enqueue_request(Item::CleanupFunction(CleanupFunctionOp { step_id }));
        let task = peer.clone();
        ferroflow_rpc::spawn(peers.runtime(), async move {
            let call = task.call_eager::<_, EnqueueResponse>("Enqueue", cleanup);
            if let Err(e) = call.await {
                tracing::debug!(
                    "a step of {} was not cleaned up: {}",
                    task.task,
                    e.message()
                );
            }
        });
        Ok(())
    }

    /// The function of a task's context that returns its argument, registered there at its first use.
    fn identity_function(&self, peer: &Peer, dtype: DType) -> Result<String> {
        let name = format!(
            "__forward_{}_to_{}_{}",
            dtype as i32, peer.task.job, peer.task.index
        );
        if lock(&self.forwarders).contains(&name) {
            return Ok(name);
        }
        let register = Item::RegisterFunction(RegisterFunctionOp {
            function_def: Some(identity(&name, dtype)),
            is_component_function: true,
            ..Default::default()
        });
        let request = self.enqueue_request(register);
        let call = peer.call_eager::<_, EnqueueResponse>("Enqueue", request);
        ferroflow_rpc::block_on(self.peers().runtime(), call)?;
        lock(&self.forwarders).insert(name.clone());
        Ok(name)
    }

    /// A request to a context of this client on another task.
    pub(crate) fn enqueue_request(&self, item: Item) -> EnqueueRequest {
        EnqueueRequest {
            context_id: self.id(),
            queue: vec![QueueItem { item: Some(item) }],
        }
    }
}

/// The function of this name that returns its argument.
fn identity(name: &str, dtype: DType) -> FunctionDef {
    let arg = |name: &str| ArgDef {
        name: name.to_string(),
        r#type: dtype as i32,
        ..Default::default()
    };
    let dtype = AttrValue {
        value: Some(attr_value::Value::Type(dtype as i32)),
    };
    FunctionDef {
        signature: Some(OpDef {
            name: name.to_string(),
            input_arg: vec![arg("x")],
            output_arg: vec![arg("y")],
            ..Default::default()
        }),
        node_def: vec![NodeDef {
            name: "forward".to_string(),
            op: "Identity".to_string(),
            input: vec!["x".to_string()],
            attr: [("T".to_string(), dtype)].into_iter().collect(),
            ..Default::default()
        }],
        ret: [("y".to_string(), "forward:output:0".to_string())]
            .into_iter()
            .collect(),
        ..Default::default()
    }
}
