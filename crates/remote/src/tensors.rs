//! Tensors of requests and responses.

use ferroflow_base::Result;
use ferroflow_model::proto::{NamedTensorProto, TensorProto};
use ferroflow_model::{tensor_from_proto, tensor_to_proto};
use ferroflow_tensor::Tensor;

/// The tensor that a client fed as `name`.
pub(crate) fn fed(name: &str, proto: TensorProto) -> Result<Tensor> {
    let tensor = tensor_from_proto(&proto, None).and_then(|t| t.get());
    tensor.map_err(|e| e.note(format!("when reading the feed '{name}'")))
}

/// The message of a fetch.
pub(crate) fn fetched(name: &str, tensor: &Tensor) -> Result<NamedTensorProto> {
    let proto = tensor_to_proto(tensor);
    Ok(NamedTensorProto {
        name: name.to_string(),
        tensor: Some(proto.map_err(|e| e.note(format!("when sending the fetch '{name}'")))?),
    })
}
