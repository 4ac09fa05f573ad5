//! The wire form of variants: what TensorFlow's types write into a `VariantTensorDataProto`
//! (`core/kernels/tensor_list.cc`, `ragged_tensor_variant.cc`, `data/optional_ops_util.h`).

use ferroflow_base::{Result, Status, invalid_argument};
use ferroflow_functors::optional::Optional;
use ferroflow_functors::ragged::Ragged;
use ferroflow_functors::tensor_list::TensorList;
use ferroflow_model::proto::{TensorProto, TensorShapeProto, VariantTensorDataProto};
use ferroflow_model::{shape_from_proto, shape_to_proto};
use ferroflow_tensor::{DType, Tensor, Variant};
use prost::Message;
use prost::encoding::{decode_varint, encode_varint};

const TENSOR_LIST: &str = "tensorflow::TensorList";
const RAGGED: &str = "RaggedTensorVariant";
const OPTIONAL: &str = "tensorflow::data::Optional";

/// Encodes a list of tensors, an optional or a ragged tensor; `None` if the value is another one. `encode`
/// encodes the tensors in it.
///
/// # Errors
/// Those of `encode`.
pub fn encode_variant(
    value: &Variant,
    encode: &mut dyn FnMut(&Tensor) -> Result<TensorProto>,
) -> Result<Option<VariantTensorDataProto>> {
    let mut tensors = Vec::new();
    let mut metadata = Vec::new();
    let type_name = if let Some(ragged) = Ragged::of(value) {
        for tensor in ragged.splits.iter().chain([&ragged.values]) {
            tensors.push(encode(tensor)?);
        }
        RAGGED
    } else if let Some(optional) = Optional::of(value) {
        metadata.push(u8::from(optional.0.is_some()));
        for tensor in optional.0.iter().flatten() {
            tensors.push(encode(tensor)?);
        }
        OPTIONAL
    } else if let Some(list) = list_of(value) {
        let missing = list.elements.iter().enumerate();
        let missing: Vec<usize> = missing
            .filter(|(_, e)| e.is_none())
            .map(|(i, _)| i)
            .collect();
        encode_varint(missing.len() as u64, &mut metadata);
        for i in missing {
            encode_varint(i as u64, &mut metadata);
        }
        encode_varint(list.dtype as u64, &mut metadata);
        // TensorFlow writes no limit as -1.
        let limit = list.max_elements.map_or(u64::MAX, |n| n as u64);
        encode_varint(limit, &mut metadata);
        metadata.extend(shape_to_proto(&list.element_shape).encode_to_vec());
        for tensor in list.elements.iter().flatten() {
            tensors.push(encode(tensor)?);
        }
        TENSOR_LIST
    } else {
        return Ok(None);
    };
    Ok(Some(VariantTensorDataProto {
        type_name: type_name.into(),
        metadata: metadata.into(),
        tensors,
    }))
}

/// Decodes what [`encode_variant`] encodes; `None` if the type is another one.
///
/// # Errors
/// INVALID_ARGUMENT if the message is damaged; those of `decode`.
pub fn decode_variant(
    proto: &VariantTensorDataProto,
    decode: &mut dyn FnMut(&TensorProto) -> Result<Tensor>,
) -> Result<Option<Variant>> {
    let is_known = matches!(proto.type_name.as_str(), TENSOR_LIST | RAGGED | OPTIONAL);
    if !is_known {
        return Ok(None);
    }
    let tensors = proto.tensors.iter().map(decode);
    let mut tensors: Vec<Tensor> = tensors.collect::<Result<_>>()?;
    let damaged = || invalid_argument!("a variant of type {} is damaged", proto.type_name);
    Ok(Some(match proto.type_name.as_str() {
        RAGGED => {
            let values = tensors.pop().ok_or_else(damaged)?;
            let splits = tensors;
            Ragged { splits, values }.variant()
        }
        OPTIONAL => {
            let has_value = proto.metadata.first().ok_or_else(damaged)? != &0;
            Optional(has_value.then_some(tensors)).into_variant()
        }
        _ => decode_list(&proto.metadata, tensors, &damaged)?.into_variant(),
    }))
}

fn decode_list(
    mut metadata: &[u8],
    tensors: Vec<Tensor>,
    damaged: &dyn Fn() -> Status,
) -> Result<TensorList> {
    let mut number = || decode_varint(&mut metadata).map_err(|_| damaged());
    let n_missing = number()?;
    let mut missing = Vec::new();
    for _ in 0..n_missing {
        // A message has at least a byte for each.
        missing.push(number()?);
    }
    let dtype = i32::try_from(number()?).map_err(|_| damaged())?;
    let dtype = DType::ALL.iter().find(|t| **t as i32 == dtype);
    let limit = number()?;
    let shape = TensorShapeProto::decode(metadata).map_err(|_| damaged())?;
    let mut list = TensorList::new(*dtype.ok_or_else(damaged)?, shape_from_proto(&shape)?);
    list.max_elements = usize::try_from(limit).ok().filter(|_| limit < 1 << 31);
    let mut missing = missing.into_iter().peekable();
    let mut tensors = tensors.into_iter();
    loop {
        if missing.next_if_eq(&(list.elements.len() as u64)).is_some() {
            list.elements.push(None);
        } else if let Some(tensor) = tensors.next() {
            if tensor.dtype() != list.dtype {
                return Err(damaged());
            }
            list.elements.push(Some(tensor));
        } else if missing.peek().is_none() {
            return Ok(list);
        } else {
            return Err(damaged());
        }
    }
}

fn list_of(value: &Variant) -> Option<&TensorList> {
    value.0.as_deref()?.downcast_ref()
}

#[cfg(test)]
mod tests {
    use super::*;
    use ferroflow_model::{tensor_from_proto, tensor_to_proto};
    use ferroflow_tensor::PartialShape;

    fn encode(value: &Variant) -> VariantTensorDataProto {
        let encoded = encode_variant(value, &mut |t| tensor_to_proto(t));
        encoded.expect("has a form").expect("is of a known type")
    }

    fn decode(proto: &VariantTensorDataProto) -> Result<Option<Variant>> {
        decode_variant(proto, &mut |t| tensor_from_proto(t, None)?.get())
    }

    fn list(max_elements: Option<usize>) -> Variant {
        let element = |v: f32| Some(Tensor::vector(&[v, v]).expect("small"));
        let mut list = TensorList::new(DType::Float, PartialShape::of([None]));
        list.max_elements = max_elements;
        list.elements = vec![element(1.0), None, element(2.0), None];
        list.into_variant()
    }

    /// A decoded value has the same wire form.
    fn check(value: Variant, metadata: &[u8]) {
        let sent = encode(&value);
        assert_eq!(&sent.metadata[..], metadata, "{}", sent.type_name);
        let back = decode(&sent).expect("intact").expect("known");
        assert_eq!(encode(&back), sent);
        for n in 0..metadata.len() {
            let cut = VariantTensorDataProto {
                metadata: sent.metadata.slice(..n),
                ..sent.clone()
            };
            // Whatever is left of it, the answer is a value or an error.
            let _ = decode(&cut);
        }
    }

    #[test]
    fn values_return() {
        // As TensorFlow 2.21 writes it: two missing ones, DT_FLOAT, the limit, [?].
        let shape = [18, 11, 8, 255, 255, 255, 255, 255, 255, 255, 255, 255, 1];
        let unlimited = [255, 255, 255, 255, 255, 255, 255, 255, 255, 1];
        check(list(Some(9)), &[&[2, 1, 3, 1, 9], &shape[..]].concat());
        check(
            list(None),
            &[&[2, 1, 3, 1], &unlimited[..], &shape].concat(),
        );
        check(Optional(None).into_variant(), &[0]);
        let some = vec![Tensor::scalar(3i64)];
        check(Optional(Some(some)).into_variant(), &[1]);
        let ragged = Ragged {
            splits: vec![Tensor::vector(&[0i64, 2]).expect("small")],
            values: Tensor::vector(&[1.0f32, 2.0]).expect("small"),
        };
        check(ragged.variant(), &[]);
    }

    #[test]
    fn damage_is_found() {
        let lists = [&[5, 1][..], &[1, 9, 1, 9], &[0, 99, 9], &[]];
        for metadata in lists {
            let proto = VariantTensorDataProto {
                type_name: TENSOR_LIST.into(),
                metadata: metadata.to_vec().into(),
                tensors: Vec::new(),
            };
            assert!(decode(&proto).is_err(), "{metadata:?}");
        }
        let unknown = VariantTensorDataProto::default();
        assert!(matches!(decode(&unknown), Ok(None)));
    }
}
