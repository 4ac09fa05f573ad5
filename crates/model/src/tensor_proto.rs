//! Conversion of `TensorProto` and `TensorShapeProto`.

use crate::proto::{
    DataType, ResourceHandleProto, TensorProto, TensorShapeProto, VariantTensorDataProto,
    resource_handle_proto::DtypeAndShape, tensor_shape_proto::Dim,
};
use ferroflow_base::{Result, Status, invalid_argument, unimplemented_error};
use ferroflow_tensor::{
    Bytes, Complex, DType, Element, LazyTensor, MappedFile, PartialShape, ResourceHandle,
    ResourceOrigin, Shape, Tensor, Variant, bf16, f16,
};
use prost::Message;
use std::any::Any;
use std::sync::Arc;

/// Converts a `DataType` number. Reference types are not allowed here.
fn dtype_from_proto(number: i32) -> Result<DType> {
    DType::from_number(number)
        .ok_or_else(|| invalid_argument!("dtype number {number} is not known"))
}

/// Decodes a shape; −1 is an unknown dimension.
///
/// # Errors
/// INVALID_ARGUMENT for dimensions below −1.
pub fn shape_from_proto(proto: &TensorShapeProto) -> Result<PartialShape> {
    if proto.unknown_rank {
        return Ok(PartialShape::unknown());
    }
    let dims: Vec<i64> = proto.dim.iter().map(|d| d.size).collect();
    PartialShape::from_tf(Some(&dims))
}

/// Encodes a shape.
pub fn shape_to_proto(shape: &PartialShape) -> TensorShapeProto {
    let dim = |d: &Option<usize>| Dim {
        size: d.map_or(-1, |d| d as i64),
        name: String::new(),
    };
    match shape.dims() {
        None => TensorShapeProto {
            dim: Vec::new(),
            unknown_rank: true,
        },
        Some(dims) => TensorShapeProto {
            dim: dims.iter().map(dim).collect(),
            unknown_rank: false,
        },
    }
}

/// Tensors from this size keep the short form of their message.
const EXPANDED_BYTES: usize = 1 << 20;

/// Decodes a constant. Content inside `file` stays there until it is used.
///
/// # Errors
/// INVALID_ARGUMENT if dtype, shape or content are not valid; RESOURCE_EXHAUSTED if the tensor
/// does not fit into memory.
pub fn tensor_from_proto(
    proto: &TensorProto,
    file: Option<&Arc<MappedFile>>,
) -> Result<LazyTensor> {
    let dtype = dtype_from_proto(proto.dtype)?;
    let dims: Vec<i64> = match &proto.tensor_shape {
        Some(s) if s.unknown_rank => {
            return Err(invalid_argument!("a constant has a shape of unknown rank"));
        }
        Some(s) => s.dim.iter().map(|d| d.size).collect(),
        None => Vec::new(),
    };
    let shape = Shape::checked(&dims)?;
    if !proto.tensor_content.is_empty() {
        let content = &proto.tensor_content;
        if content.len() > 64
            && let Some(file) = file
            && let Some(range) = file.locate(content)
            && let Some(t) = LazyTensor::mapped(dtype, shape.clone(), file.clone(), range)
        {
            return Ok(t);
        }
        if dtype == DType::String {
            let strings = split_strings(content, shape.num_elements())?;
            return Ok(Tensor::from_strings(shape, strings)?.into());
        }
        if matches!(dtype, DType::Resource | DType::Variant) {
            return Ok(listed(
                dtype,
                shape.clone(),
                &split_messages(dtype, content, &shape)?,
            )?
            .into());
        }
        return Ok(Tensor::from_bytes(dtype, shape, content)?.into());
    }
    // A small message may stand for a large tensor, which is computed on use.
    let n_bytes = shape.num_elements().saturating_mul(dtype.size());
    if n_bytes >= EXPANDED_BYTES && proto.encoded_len() < n_bytes / 4 {
        let (proto, of) = (proto.clone(), shape.clone());
        let expand = move || listed(dtype, of.clone(), &proto);
        return Ok(LazyTensor::deferred(dtype, shape, Arc::new(expand)));
    }
    Ok(listed(dtype, shape, proto)?.into())
}

/// Decodes the values that a message lists; the last one is repeated.
fn listed(dtype: DType, shape: Shape, proto: &TensorProto) -> Result<Tensor> {
    match dtype {
        DType::Float => fill(shape, &proto.float_val, |v| *v),
        DType::Double => fill(shape, &proto.double_val, |v| *v),
        DType::Int32 => fill(shape, &proto.int_val, |v| *v),
        DType::Int16 => fill(shape, &proto.int_val, |v| *v as i16),
        DType::Int8 => fill(shape, &proto.int_val, |v| *v as i8),
        DType::Uint8 => fill(shape, &proto.int_val, |v| *v as u8),
        DType::Uint16 => fill(shape, &proto.int_val, |v| *v as u16),
        DType::Uint32 => fill(shape, &proto.uint32_val, |v| *v),
        DType::Qint8 => fill(shape, &proto.int_val, |v| *v as i8)?.bitcast(dtype),
        DType::Quint8 => fill(shape, &proto.int_val, |v| *v as u8)?.bitcast(dtype),
        DType::Qint16 => fill(shape, &proto.int_val, |v| *v as i16)?.bitcast(dtype),
        DType::Quint16 => fill(shape, &proto.int_val, |v| *v as u16)?.bitcast(dtype),
        DType::Qint32 => fill(shape, &proto.int_val, |v| *v)?.bitcast(dtype),
        // A byte each, sign-extended.
        DType::Int4 => fill(shape, &proto.int_val, |v| (*v << 4) as i8 >> 4)?.bitcast(dtype),
        DType::Uint4 => fill(shape, &proto.int_val, |v| (*v & 15) as u8)?.bitcast(dtype),
        DType::Int2 => fill(shape, &proto.int_val, |v| (*v << 6) as i8 >> 6)?.bitcast(dtype),
        DType::Uint2 => fill(shape, &proto.int_val, |v| (*v & 3) as u8)?.bitcast(dtype),
        DType::Int64 => fill(shape, &proto.int64_val, |v| *v),
        DType::Uint64 => fill(shape, &proto.uint64_val, |v| *v),
        DType::Bool => fill(shape, &proto.bool_val, |v| *v),
        DType::Half => fill(shape, &proto.half_val, |v| f16::from_bits(*v as u16)),
        DType::Bfloat16 => fill(shape, &proto.half_val, |v| bf16::from_bits(*v as u16)),
        DType::Complex64 => fill(shape, proto.scomplex_val.as_chunks::<2>().0, |v| {
            Complex::new(v[0], v[1])
        }),
        DType::Complex128 => fill(shape, proto.dcomplex_val.as_chunks::<2>().0, |v| {
            Complex::new(v[0], v[1])
        }),
        DType::String => {
            let n = shape.num_elements();
            // Allocating first checks the size against the memory of the machine.
            Tensor::zeros(dtype, shape.clone())?;
            let last = proto.string_val.last().cloned().unwrap_or_default();
            let mut values: Vec<Bytes> = proto.string_val.clone();
            values.resize(n, last);
            Tensor::from_strings(shape, values)
        }
        DType::Float8E5m2
        | DType::Float8E4m3fn
        | DType::Float8E4m3fnuz
        | DType::Float8E4m3b11fnuz
        | DType::Float8E5m2fnuz
        | DType::Float4E2m1fn => {
            let n = shape.num_elements();
            Tensor::zeros(dtype, shape.clone())?;
            let last = proto.float8_val.last().copied().unwrap_or_default();
            let mut bytes = proto.float8_val.to_vec();
            bytes.resize(n, last);
            Tensor::from_bytes(dtype, shape, &bytes)
        }
        DType::Variant => {
            let n = shape.num_elements();
            Tensor::zeros(dtype, shape.clone())?;
            let given = proto.variant_val.iter().map(variant_from_proto);
            let mut values: Vec<Variant> = given.take(n).collect();
            let last = values.last().cloned().unwrap_or_default();
            values.resize(n, last);
            Tensor::from_variants(shape, values)
        }
        DType::Resource => {
            let handles = proto.resource_handle_val.iter().take(shape.num_elements());
            let handles = handles.map(handle_from_proto).collect::<Result<_>>();
            Tensor::from_resources(shape, handles?)
        }
    }
}

/// Decodes the handles or variants of a tensor content, which are messages in the form of strings.
fn split_messages(dtype: DType, content: &Bytes, shape: &Shape) -> Result<TensorProto> {
    let bad = |e| invalid_argument!("the content of a {dtype} tensor is damaged: {e}");
    let mut proto = TensorProto::default();
    for message in split_strings(content, shape.num_elements())? {
        match dtype {
            DType::Resource => {
                let handle = Message::decode(message).map_err(bad)?;
                proto.resource_handle_val.push(handle);
            }
            _ => proto
                .variant_val
                .push(Message::decode(message).map_err(bad)?),
        }
    }
    Ok(proto)
}

/// Decodes `n` strings: first all lengths, as varints, then all bytes.
fn split_strings(content: &Bytes, n: usize) -> Result<Vec<Bytes>> {
    let bad = || invalid_argument!("the content of a string tensor is damaged");
    // A string takes at least a byte.
    if n > content.len() {
        return Err(bad());
    }
    let mut rest = content.clone();
    let mut lengths = Vec::with_capacity(n);
    for _ in 0..n {
        let length = prost::encoding::decode_varint(&mut rest).map_err(|_| bad())?;
        lengths.push(usize::try_from(length).map_err(|_| bad())?);
    }
    let mut take = |length: usize| match length <= rest.len() {
        true => Ok(rest.split_to(length)),
        false => Err(bad()),
    };
    lengths.into_iter().map(&mut take).collect()
}

/// Fills a tensor with `values`, repeating the last one; zeros if there are none. Like TensorFlow,
/// ignores surplus values.
fn fill<T: Element, V>(shape: Shape, values: &[V], f: impl Fn(&V) -> T) -> Result<Tensor> {
    let n = shape.num_elements();
    let mut t = Tensor::for_overwrite(T::DTYPE, shape)?;
    let out = t.slice_mut::<T>()?;
    for (to, from) in out.iter_mut().zip(values) {
        *to = f(from);
    }
    if values.len() < n {
        out[values.len()..].fill(values.last().map_or(T::default(), f));
    }
    Ok(t)
}

/// Contents from this size are shared, not copied.
const SHARED_BYTES: usize = 4096;

/// The bytes of a plain tensor.
struct Shared(Tensor);

impl AsRef<[u8]> for Shared {
    fn as_ref(&self) -> &[u8] {
        self.0.bytes().unwrap_or_default()
    }
}

fn handle_to_proto(handle: &ResourceHandle) -> ResourceHandleProto {
    let mut proto = ResourceHandleProto {
        container: handle.container.to_string(),
        name: handle.name.to_string(),
        ..Default::default()
    };
    if let Some(origin) = &handle.origin {
        proto.device.clone_from(&origin.device);
        proto.hash_code = origin.hash_code;
        proto.maybe_type_name.clone_from(&origin.type_name);
        let described = origin.dtypes_and_shapes.iter();
        let described = described.map(|(dtype, shape)| DtypeAndShape {
            dtype: *dtype as i32,
            shape: Some(shape_to_proto(shape)),
        });
        proto.dtypes_and_shapes = described.collect();
    }
    proto
}

fn handle_from_proto(proto: &ResourceHandleProto) -> Result<ResourceHandle> {
    let described = proto.dtypes_and_shapes.iter().map(|d| {
        let shape = d.shape.as_ref().map(shape_from_proto).transpose()?;
        Ok((dtype_from_proto(d.dtype)?, shape.unwrap_or_default()))
    });
    let origin = ResourceOrigin {
        device: proto.device.clone(),
        hash_code: proto.hash_code,
        type_name: proto.maybe_type_name.clone(),
        dtypes_and_shapes: described.collect::<Result<_>>()?,
    };
    Ok(ResourceHandle {
        container: proto.container.as_str().into(),
        name: proto.name.as_str().into(),
        value: None,
        origin: (origin != ResourceOrigin::default()).then(|| Arc::new(origin)),
    })
}

/// Sets the device of the handles that name none: those of resources of this task.
pub fn set_handle_device(proto: &mut TensorProto, device: &str) {
    let own = proto.resource_handle_val.iter_mut();
    for handle in own.filter(|h| h.device.is_empty()) {
        handle.device = device.to_string();
    }
}

/// Decodes the types of `core/framework/variant_op_registry.cc`. Values of other types stay
/// encoded.
pub(crate) fn variant_from_proto(proto: &VariantTensorDataProto) -> Variant {
    fn plain<const N: usize, T>(metadata: &[u8], decode: fn([u8; N]) -> T) -> Option<Variant>
    where
        T: Any + Send + Sync,
    {
        let value = decode(metadata.try_into().ok()?);
        Some(Variant(Some(Arc::new(value))))
    }
    let data = &proto.metadata[..];
    let decoded = match proto.type_name.as_str() {
        "" => Some(Variant::default()),
        "int" => plain(data, i32::from_le_bytes),
        "float" => plain(data, f32::from_le_bytes),
        "double" => plain(data, f64::from_le_bytes),
        "bool" => plain(data, |[byte]| byte != 0),
        _ => None,
    };
    decoded.unwrap_or_else(|| Variant(Some(Arc::new(proto.clone()))))
}

/// Encodes a value that [`variant_from_proto`] returned.
pub(crate) fn variant_to_proto(value: &Variant) -> Result<VariantTensorDataProto> {
    let Some(value) = &value.0 else {
        return Ok(VariantTensorDataProto::default());
    };
    if let Some(proto) = value.downcast_ref::<VariantTensorDataProto>() {
        return Ok(proto.clone());
    }
    let (name, metadata) = if let Some(v) = value.downcast_ref::<i32>() {
        ("int", v.to_le_bytes().to_vec())
    } else if let Some(v) = value.downcast_ref::<f32>() {
        ("float", v.to_le_bytes().to_vec())
    } else if let Some(v) = value.downcast_ref::<f64>() {
        ("double", v.to_le_bytes().to_vec())
    } else if let Some(v) = value.downcast_ref::<bool>() {
        ("bool", vec![u8::from(*v)])
    } else {
        return Err(unwritable(DType::Variant));
    };
    Ok(VariantTensorDataProto {
        type_name: name.into(),
        metadata: metadata.into(),
        tensors: Vec::new(),
    })
}

fn unwritable(dtype: DType) -> Status {
    unimplemented_error!("{dtype} tensors cannot be written to a file")
}

/// Encodes a constant.
///
/// # Errors
/// UNIMPLEMENTED if the dtype, or the type of a variant, has no encoding.
pub fn tensor_to_proto(tensor: &Tensor) -> Result<TensorProto> {
    let mut proto = TensorProto {
        dtype: tensor.dtype() as i32,
        tensor_shape: Some(shape_to_proto(&tensor.shape().into())),
        ..Default::default()
    };
    match tensor.dtype() {
        DType::String => proto.string_val = tensor.strings()?.to_vec(),
        DType::Resource => {
            let handles = tensor.resources()?.iter();
            proto.resource_handle_val = handles.map(handle_to_proto).collect();
        }
        dtype if dtype.is_plain() => {
            proto.tensor_content = match tensor.byte_len() {
                n if n < SHARED_BYTES => Bytes::copy_from_slice(tensor.bytes()?),
                _ => Bytes::from_owner(Shared(tensor.clone())),
            };
        }
        DType::Variant => {
            let values = tensor.variants()?.iter();
            proto.variant_val = values.map(variant_to_proto).collect::<Result<_>>()?;
        }
        dtype => return Err(unwritable(dtype)),
    }
    debug_assert!(DataType::try_from(proto.dtype).is_ok());
    Ok(proto)
}

/// Encodes the value of an attr as TensorFlow's graphs hold it: a single number in the typed field of
/// its dtype (`core/framework/attr_value_util.cc`).
///
/// # Errors
/// As [`tensor_to_proto`].
pub fn tensor_to_attr_proto(tensor: &Tensor) -> Result<TensorProto> {
    let mut proto = tensor_to_proto(tensor)?;
    if tensor.num_elements() != 1 {
        return Ok(proto);
    }
    match tensor.dtype() {
        DType::Float => proto.float_val = tensor.slice::<f32>()?.to_vec(),
        DType::Double => proto.double_val = tensor.slice::<f64>()?.to_vec(),
        DType::Int32 => proto.int_val = tensor.slice::<i32>()?.to_vec(),
        DType::Int64 => proto.int64_val = tensor.slice::<i64>()?.to_vec(),
        DType::Bool => proto.bool_val = tensor.slice::<bool>()?.to_vec(),
        _ => return Ok(proto),
    }
    proto.tensor_content = Bytes::new();
    Ok(proto)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_value_lists_repeat_the_last() {
        let mut p = TensorProto {
            dtype: 1,
            tensor_shape: Some(shape_to_proto(&PartialShape::of([Some(4)]))),
            float_val: vec![1.0, 2.0],
            ..Default::default()
        };
        let t = tensor_from_proto(&p, None).unwrap().get().unwrap();
        assert_eq!(t.slice::<f32>().unwrap(), [1.0, 2.0, 2.0, 2.0]);
        p.float_val = vec![3.0; 5];
        let t = tensor_from_proto(&p, None).unwrap().get().unwrap();
        assert_eq!(t.slice::<f32>().unwrap(), [3.0; 4]);
    }

    #[test]
    fn variants_round_trip() {
        let of = |name: &str, data: &[u8]| VariantTensorDataProto {
            type_name: name.into(),
            metadata: Bytes::copy_from_slice(data),
            tensors: Vec::new(),
        };
        for value in [
            of("int", &7i32.to_le_bytes()),
            of("int", b"7"),
            of("float", &1.5f32.to_le_bytes()),
            of("double", &2.5f64.to_le_bytes()),
            of("bool", &[1]),
            of("some::Type", b"data"),
        ] {
            let mut p = TensorProto {
                dtype: DataType::DtVariant as i32,
                tensor_shape: Some(shape_to_proto(&PartialShape::of([Some(3)]))),
                variant_val: vec![VariantTensorDataProto::default(), value.clone()],
                ..Default::default()
            };
            let t = tensor_from_proto(&p, None).unwrap().get().unwrap();
            let back = tensor_to_proto(&t).unwrap();
            // The last value is repeated.
            p.variant_val.push(value);
            assert_eq!(back.variant_val, p.variant_val);
        }
    }

    #[test]
    fn round_trips() {
        for t in [
            Tensor::vector(&[1i32, 2, 3]).unwrap(),
            Tensor::vector(&[true, false]).unwrap(),
            Tensor::string("abc"),
            Tensor::zeros(DType::Half, Shape::from([0, 3])).unwrap(),
        ] {
            let back = tensor_from_proto(&tensor_to_proto(&t).unwrap(), None)
                .unwrap()
                .get()
                .unwrap();
            assert!(t.same_value(&back), "{t:?}");
        }
    }
}
