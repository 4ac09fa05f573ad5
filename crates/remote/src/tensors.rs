//! Tensors of requests and responses.

use ferroflow_base::{Code, Result};
use ferroflow_model::proto::{NamedTensorProto, TensorProto};
use ferroflow_model::{tensor_from_proto, tensor_to_proto};
use ferroflow_tensor::Tensor;

/// The tensors that a client fed as `names`.
pub(crate) fn fed(names: &[String], protos: Vec<TensorProto>) -> Result<Vec<Tensor>> {
    let named = names.iter().zip(protos).enumerate();
    named
        .map(|(i, (name, mut proto))| {
            // TensorFlow reads a tensor whose shape says nothing as a scalar.
            if let Some(shape) = proto.tensor_shape.take_if(|s| s.unknown_rank) {
                drop(shape);
            }
            let tensor = tensor_from_proto(&proto, None).and_then(|t| t.get());
            tensor.map_err(|e| match e.code() {
                Code::InvalidArgument => e.prefixed(&format!(
                    "Invalid TensorProto for feed value {i} ('{name}'): "
                )),
                _ => e.note(format!("when reading the feed '{name}'")),
            })
        })
        .collect()
}

/// The message of a fetch.
pub(crate) fn fetched(name: &str, tensor: &Tensor) -> Result<NamedTensorProto> {
    let proto = tensor_to_proto(tensor);
    Ok(NamedTensorProto {
        name: name.to_string(),
        tensor: Some(proto.map_err(|e| e.note(format!("when sending the fetch '{name}'")))?),
    })
}
