//! Packed handles: tensors of several devices that a function reads as one argument, each node that of its device
//! (`core/common_runtime/replicate_per_replica_nodes.cc`).

use crate::eager_context::RemoteContext;
use crate::master_session::lock;
use ferroflow_base::{Result, invalid_argument, not_found};
use ferroflow_model::proto::operation::{Input, input};
use ferroflow_model::proto::send_packed_handle_op::handle;
use ferroflow_model::proto::{
    FunctionDef, Operation, RemoteTensorHandle, SendPackedHandleOp, TensorProto,
};
use ferroflow_runtime::{CancelToken, DeviceSpec};
use ferroflow_tensor::Tensor;
use std::sync::Arc;

/// The tensors of a packed handle, with their devices.
pub(crate) type Components = Arc<Vec<(String, Component)>>;

/// A tensor of a packed handle.
pub(crate) enum Component {
    Local(Tensor),
    Remote(RemoteTensorHandle),
}

impl RemoteContext {
    /// Keeps the tensors of a packed handle.
    ///
    /// # Errors
    /// INVALID_ARGUMENT if the handle is empty, or a tensor is malformed.
    pub(crate) fn keep_packed(&self, packed: &SendPackedHandleOp) -> Result<()> {
        if packed.handles.is_empty() {
            return Err(invalid_argument!("Handles should not be empty."));
        }
        let handles = packed.handles.iter().filter_map(|h| h.item.as_ref());
        let components = handles.map(|handle| {
            Ok(match handle {
                handle::Item::LocalHandle(local) => {
                    let nothing = TensorProto::default();
                    let tensor = self.decode(local.tensor.as_ref().unwrap_or(&nothing))?;
                    (local.device.clone(), Component::Local(tensor))
                }
                handle::Item::RemoteHandle(remote) => {
                    (remote.device.clone(), Component::Remote(remote.clone()))
                }
            })
        });
        let components: Vec<_> = components.collect::<Result<_>>()?;
        lock(&self.packed).insert(packed.op_id, Arc::new(components));
        Ok(())
    }

    fn packed_of(&self, input: &Input) -> Option<Components> {
        match &input.item {
            Some(input::Item::RemoteHandle(handle)) => {
                lock(&self.packed).get(&handle.op_id).cloned()
            }
            _ => None,
        }
    }

    fn component(&self, component: &Component, cancel: &CancelToken) -> Result<Tensor> {
        match component {
            Component::Local(tensor) => Ok(tensor.clone()),
            Component::Remote(handle) => self.tensor(handle, cancel),
        }
    }

    /// The tensor of a packed handle that is on this task, or else its first one, if `op_id` is such a handle's.
    pub(crate) fn packed_tensor(&self, op_id: i64, cancel: &CancelToken) -> Option<Result<Tensor>> {
        let components = lock(&self.packed).get(&op_id).cloned()?;
        let own = format!("{}/", self.name());
        let here = components
            .iter()
            .find(|(device, _)| device.starts_with(&own));
        let (_, component) = here.or(components.first())?;
        Some(self.component(component, cancel))
    }

    /// The function that a call with packed handles runs, if there are such of several tensors, and its further
    /// arguments: a tensor each.
    ///
    /// # Errors
    /// NOT_FOUND if the function is not registered; those of receiving a tensor of another task.
    pub(crate) fn unpacked_call(
        &self,
        operation: &Operation,
        cancel: &CancelToken,
    ) -> Result<Option<(String, Vec<Tensor>)>> {
        if !operation.is_function || lock(&self.packed).is_empty() {
            return Ok(None);
        }
        let (mut name, mut packed, mut tensors) = (operation.name.clone(), Vec::new(), Vec::new());
        for (i, input) in operation.op_inputs.iter().enumerate() {
            let Some(components) = self.packed_of(input).filter(|c| c.len() > 1) else {
                continue;
            };
            let mut devices = Vec::with_capacity(components.len());
            for (device, component) in &*components {
                tensors.push(self.component(component, cancel)?);
                devices.push(device.clone());
            }
            name.push_str(&format!("__packed_{i}_{}", devices.join(",")));
            packed.push((i, devices));
        }
        if packed.is_empty() {
            return Ok(None);
        }
        if self.eager().function(&name).is_none() {
            let function = self.eager().function(&operation.name);
            let function = function
                .ok_or_else(|| not_found!("Function {} is not registered", operation.name))?;
            let function = with_components(&function, name.clone(), &packed);
            // Another call may have added it meanwhile.
            self.eager().add_function(Arc::new(function))?;
        }
        Ok(Some((name, tensors)))
    }
}

/// A function with an additional argument for each tensor of its packed arguments, which are numbered and have the
/// devices of their tensors. Nodes that ask for one of these read its tensor.
fn with_components(
    function: &FunctionDef,
    name: String,
    packed: &[(usize, Vec<String>)],
) -> FunctionDef {
    let mut function = function.clone();
    let signature = function.signature.get_or_insert_default();
    signature.name = name;
    for (arg, devices) in packed {
        let Some(arg) = signature.input_arg.get(*arg).cloned() else {
            continue;
        };
        for (k, device) in devices.iter().enumerate() {
            let mut component = arg.clone();
            component.name = format!("{}__{k}", arg.name);
            for node in &mut function.node_def {
                let asks = DeviceSpec::parse(&node.device);
                let asks = asks.is_ok_and(|spec| !node.device.is_empty() && spec.matches(device));
                for input in node
                    .input
                    .iter_mut()
                    .filter(|input| asks && **input == arg.name)
                {
                    input.clone_from(&component.name);
                }
            }
            signature.input_arg.push(component);
        }
    }
    function
}
