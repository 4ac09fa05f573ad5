//! [`Answer`]: the response to a prediction, written from its tensors.
//!
//! On the wire it is a `PredictResponse`. Floating-point values are copied once, from the tensor to the connection's
//! buffer.

use bytes::{Buf, BufMut, Bytes};
use ferroflow_base::Result;
use ferroflow_model::proto::serving::ModelSpec;
use ferroflow_model::proto::{TensorProto, TensorShapeProto};
use ferroflow_model::{shape_to_proto, tensor_to_proto};
use ferroflow_runtime::{DType, Tensor};
use prost::encoding::{
    DecodeContext, WireType, encode_key, encode_varint, encoded_len_varint, key_len, skip_field,
};
use prost::{DecodeError, Message};

/// Field numbers of `PredictResponse`, of an entry of its map, and of `TensorProto`.
const OUTPUTS: u32 = 1;
const MODEL_SPEC: u32 = 2;
const KEY: u32 = 1;
const VALUE: u32 = 2;
const DTYPE: u32 = 1;
const SHAPE: u32 = 2;
const TENSOR_CONTENT: u32 = 4;
const FLOAT_VAL: u32 = 5;
const DOUBLE_VAL: u32 = 6;

/// A `PredictResponse`.
#[derive(Debug, Default)]
pub struct Answer {
    spec: ModelSpec,
    outputs: Vec<Output>,
}

#[derive(Debug)]
struct Output {
    key: String,
    value: Value,
}

#[derive(Debug)]
enum Value {
    /// The elements as they are in memory.
    Raw {
        dtype: DType,
        shape: TensorShapeProto,
        field: u32,
        tensor: Tensor,
    },
    Message(Box<TensorProto>),
}

impl Answer {
    /// The response with these outputs: in typed fields, which scripts read directly, or as `tensor_content`.
    ///
    /// # Errors
    /// UNIMPLEMENTED if a dtype has no encoding.
    pub fn new(
        spec: ModelSpec,
        outputs: Vec<(String, Tensor)>,
        as_content: bool,
    ) -> Result<Answer> {
        let outputs = outputs.into_iter().map(|(key, tensor)| {
            let value = Value::new(tensor, as_content)?;
            Ok(Output { key, value })
        });
        Ok(Answer {
            spec,
            outputs: outputs.collect::<Result<_>>()?,
        })
    }
}

impl Value {
    fn new(tensor: Tensor, as_content: bool) -> Result<Value> {
        let field = match tensor.dtype() {
            dtype if as_content && dtype.is_plain() => TENSOR_CONTENT,
            DType::Float => FLOAT_VAL,
            DType::Double => DOUBLE_VAL,
            _ => return Ok(Value::Message(Box::new(typed(&tensor)?))),
        };
        Ok(Value::Raw {
            dtype: tensor.dtype(),
            shape: shape_to_proto(&tensor.shape().into()),
            field,
            tensor,
        })
    }

    fn len(&self) -> usize {
        match self {
            Value::Message(message) => message.encoded_len(),
            Value::Raw {
                dtype,
                shape,
                field,
                tensor,
            } => {
                let mut len = key_len(DTYPE) + encoded_len_varint(*dtype as u64);
                len += delimited_len(SHAPE, shape.encoded_len());
                match tensor.byte_len() {
                    0 => len,
                    n => len + delimited_len(*field, n),
                }
            }
        }
    }

    fn write(&self, buf: &mut impl BufMut) {
        match self {
            Value::Message(message) => message.encode_raw(buf),
            Value::Raw {
                dtype,
                shape,
                field,
                tensor,
            } => {
                encode_key(DTYPE, WireType::Varint, buf);
                encode_varint(*dtype as u64, buf);
                begin(SHAPE, shape.encoded_len(), buf);
                shape.encode_raw(buf);
                // Only plain tensors are raw.
                let bytes = tensor.bytes().unwrap_or_default();
                if !bytes.is_empty() {
                    begin(*field, bytes.len(), buf);
                    buf.put_slice(bytes);
                }
            }
        }
    }
}

/// The length of a length-delimited field.
fn delimited_len(field: u32, n: usize) -> usize {
    key_len(field) + encoded_len_varint(n as u64) + n
}

/// Writes the key and the length of a length-delimited field.
fn begin(field: u32, n: usize, buf: &mut impl BufMut) {
    encode_key(field, WireType::LengthDelimited, buf);
    encode_varint(n as u64, buf);
}

impl Output {
    fn len(&self) -> usize {
        delimited_len(KEY, self.key.len()) + delimited_len(VALUE, self.value.len())
    }
}

impl Message for Answer {
    fn encode_raw(&self, buf: &mut impl BufMut) {
        for output in &self.outputs {
            begin(OUTPUTS, output.len(), buf);
            begin(KEY, output.key.len(), buf);
            buf.put_slice(output.key.as_bytes());
            begin(VALUE, output.value.len(), buf);
            output.value.write(buf);
        }
        begin(MODEL_SPEC, self.spec.encoded_len(), buf);
        self.spec.encode_raw(buf);
    }

    /// Responses are only written.
    fn merge_field(
        &mut self,
        tag: u32,
        wire_type: WireType,
        buf: &mut impl Buf,
        ctx: DecodeContext,
    ) -> std::result::Result<(), DecodeError> {
        skip_field(wire_type, tag, buf, ctx)
    }

    fn encoded_len(&self) -> usize {
        let outputs = self.outputs.iter().map(|o| delimited_len(OUTPUTS, o.len()));
        outputs.sum::<usize>() + delimited_len(MODEL_SPEC, self.spec.encoded_len())
    }

    fn clear(&mut self) {
        *self = Answer::default();
    }
}

/// Encodes a tensor with its elements in the field of its dtype, as TensorFlow's `AsProtoField` does.
///
/// # Errors
/// UNIMPLEMENTED if the dtype has no encoding.
pub(crate) fn typed(tensor: &Tensor) -> Result<TensorProto> {
    let mut proto = TensorProto {
        dtype: tensor.dtype() as i32,
        tensor_shape: Some(shape_to_proto(&tensor.shape().into())),
        ..Default::default()
    };
    fn ints<T: ferroflow_tensor::Element + Into<i32>>(t: &Tensor) -> Result<Vec<i32>> {
        Ok(t.slice::<T>()?.iter().map(|&v| v.into()).collect())
    }
    match tensor.dtype() {
        DType::Float => proto.float_val = tensor.slice()?.to_vec(),
        DType::Double => proto.double_val = tensor.slice()?.to_vec(),
        DType::Int32 => proto.int_val = tensor.slice()?.to_vec(),
        DType::Int16 => proto.int_val = ints::<i16>(tensor)?,
        DType::Int8 => proto.int_val = ints::<i8>(tensor)?,
        DType::Uint8 => proto.int_val = ints::<u8>(tensor)?,
        DType::Uint16 => proto.int_val = ints::<u16>(tensor)?,
        DType::Int64 => proto.int64_val = tensor.slice()?.to_vec(),
        DType::Uint32 => proto.uint32_val = tensor.slice()?.to_vec(),
        DType::Uint64 => proto.uint64_val = tensor.slice()?.to_vec(),
        DType::Bool => proto.bool_val = tensor.slice()?.to_vec(),
        DType::Half | DType::Bfloat16 => {
            let halves = tensor.bytes()?.as_chunks::<2>().0.iter();
            proto.half_val = halves.map(|b| i32::from(u16::from_le_bytes(*b))).collect();
        }
        DType::String => proto.string_val = tensor.strings()?.to_vec() as Vec<Bytes>,
        _ => return tensor_to_proto(tensor),
    }
    Ok(proto)
}

#[cfg(test)]
mod tests {
    use super::*;
    use ferroflow_model::proto::serving::PredictResponse;
    use ferroflow_model::tensor_from_proto;

    fn check(tensor: Tensor) {
        for as_content in [false, true] {
            let outputs = vec![
                ("y".to_string(), tensor.clone()),
                ("z".to_string(), tensor.clone()),
            ];
            let answer = Answer::new(ModelSpec::default(), outputs, as_content).unwrap();
            let bytes = answer.encode_to_vec();
            assert_eq!(bytes.len(), answer.encoded_len());
            let read = PredictResponse::decode(&bytes[..]).unwrap();
            assert_eq!(read.outputs.len(), 2);
            for proto in read.outputs.values() {
                let read = tensor_from_proto(proto, None).unwrap().get().unwrap();
                assert!(read.same_value(&tensor), "{read} {tensor}");
            }
        }
    }

    #[test]
    fn answers_are_predict_responses() {
        check(Tensor::from_slice([2, 2], &[1.5f32, -2.0, 0.0, 3.0]).unwrap());
        check(Tensor::from_slice([0, 3], &[] as &[f32]).unwrap());
        check(Tensor::scalar(2.5f64));
        check(Tensor::vector(&[1i32, -7]).unwrap());
        check(Tensor::vector(&[1u8, 255]).unwrap());
        check(Tensor::vector(&[i64::MIN, 5]).unwrap());
        check(Tensor::vector(&[true, false]).unwrap());
        check(Tensor::from_strings([2], vec!["a".into(), "bc".into()]).unwrap());
    }
}
