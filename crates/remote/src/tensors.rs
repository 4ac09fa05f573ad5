//! Tensors of requests and responses.

use ferroflow_base::{Code, Result};
use ferroflow_model::proto::{NamedTensorProto, RunStepResponse, TensorProto};
use ferroflow_model::{tensor_from_proto, tensor_to_proto};
use ferroflow_tensor::Tensor;
use std::collections::HashSet;

/// Decodes the tensors that a client fed as `names`.
pub(crate) fn decode_feeds(names: &[String], protos: Vec<TensorProto>) -> Result<Vec<Tensor>> {
    let named = names.iter().zip(protos).enumerate();
    named
        .map(|(i, (name, mut proto))| {
            // TensorFlow reads a tensor without a shape as a scalar.
            proto.tensor_shape = proto.tensor_shape.filter(|s| !s.unknown_rank);
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

/// Encodes a fetch.
pub(crate) fn encode_fetch(name: &str, tensor: &Tensor) -> Result<NamedTensorProto> {
    let proto = tensor_to_proto(tensor);
    Ok(NamedTensorProto {
        name: name.to_string(),
        tensor: Some(proto.map_err(|e| e.note(format!("when sending the fetch '{name}'")))?),
    })
}

/// Encodes the fetches of a step.
pub(crate) fn response(names: &[String], tensors: &[Tensor]) -> Result<RunStepResponse> {
    let mut seen = HashSet::new();
    // A tensor that is fetched twice is sent once.
    let named = names.iter().zip(tensors).filter(|(n, _)| seen.insert(*n));
    Ok(RunStepResponse {
        tensor: named
            .map(|(n, t)| encode_fetch(n, t))
            .collect::<Result<_>>()?,
        ..Default::default()
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use ferroflow_model::proto::TensorShapeProto;

    fn check(tensor: TensorProto) -> std::result::Result<Vec<usize>, String> {
        let fed = decode_feeds(&["x:0".to_string()], vec![tensor]);
        fed.map(|t| t[0].shape().dims().to_vec())
            .map_err(|e| e.to_string())
    }

    #[test]
    fn feeds_are_checked() {
        let float = TensorProto {
            dtype: 1,
            float_val: vec![2.0],
            ..TensorProto::default()
        };
        assert_eq!(check(float.clone()), Ok(vec![]));
        let unknown_rank = Some(TensorShapeProto {
            unknown_rank: true,
            ..TensorShapeProto::default()
        });
        let scalar = TensorProto {
            tensor_shape: unknown_rank,
            ..float.clone()
        };
        assert_eq!(check(scalar), Ok(vec![]));
        let rows = [
            TensorProto {
                dtype: 99,
                ..float.clone()
            },
            TensorProto {
                tensor_content: vec![1, 2, 3].into(),
                ..float
            },
        ];
        for row in rows {
            let error = check(row).expect_err("no tensor");
            let start = "INVALID_ARGUMENT: Invalid TensorProto for feed value 0 ('x:0'): ";
            assert!(error.starts_with(start), "{error}");
        }
    }
}
