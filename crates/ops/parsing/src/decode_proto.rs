//! DecodeProtoV2: fields of serialized messages as tensors (TensorFlow: `core/kernels/decode_proto_op.cc`).

use crate::proto_fields::{Field, Type, Wire, message};
use crate::wire_reader::{Reader, zigzag};
use ferroflow_base::{Result, data_loss, invalid_argument};
use ferroflow_opdef::{Cost, KernelBuild, KernelCtx, Op, OpKernel, ShapeCtx};
use ferroflow_tensor::{Bytes, DType, PartialShape, Tensor};
use prost::Message;
use prost_reflect::{Cardinality, DynamicMessage, MessageDescriptor, ReflectMessage, Value};

/// The ops of this file.
pub(crate) const OPS: &[Op] = &[Op::new(
    "DecodeProtoV2",
    "bytes: string -> sizes: int32, values: list(output_types) | message_type: string; \
     field_names: list(string); output_types: list(type) >= 0; descriptor_source: string = \
     'local://'; message_format: string = 'binary'; sanitize: bool = false",
)
.shape(shape)
.cost(Cost::Expensive)
.kernel(decode)
.not_differentiable()];

fn shape(ctx: &mut ShapeCtx) -> Result<()> {
    let n = ctx.attrs().dtypes("output_types")?.len();
    let bytes = ctx.input(0);
    let with = |last: Option<usize>| match bytes.dims() {
        Some(dims) => PartialShape::of(dims.iter().copied().chain([last])),
        None => PartialShape::unknown(),
    };
    ctx.set(0, with(Some(n)));
    for i in 0..n {
        ctx.set(1 + i, with(None));
    }
    Ok(())
}

/// A field that becomes an output.
struct Wanted {
    field: Field,
    dtype: DType,
    output: usize,
}

fn wanted(build: &KernelBuild, descriptor: &MessageDescriptor) -> Result<Vec<Wanted>> {
    let names = build.attrs.strs("field_names")?;
    let dtypes = build.attrs.dtypes("output_types")?;
    if names.len() != dtypes.len() {
        return Err(invalid_argument!(
            "field_names and output_types attributes must have the same length"
        ));
    }
    let fields = names
        .iter()
        .zip(dtypes)
        .enumerate()
        .map(|(output, (name, dtype))| {
            let field = Field::of(descriptor, name, true)?;
            if !field.kind.fits(dtype) {
                return Err(invalid_argument!(
                    "Unexpected output type for {}: {} to DT_{}",
                    field.name,
                    field.kind.cpp_name(),
                    dtype.to_string().to_uppercase()
                ));
            }
            Ok(Wanted {
                field,
                dtype,
                output,
            })
        });
    let mut fields = fields.collect::<Result<Vec<_>>>()?;
    fields.sort_unstable_by_key(|f| f.field.number);
    Ok(fields)
}

fn decode(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    let descriptor = message(build.attrs)?;
    let fields = wanted(build, &descriptor)?;
    let is_binary = match build.attrs.str("message_format")? {
        "binary" => true,
        "text" => false,
        _ => {
            return Err(invalid_argument!("format must be one of binary or text"));
        }
    };
    let sanitize = build.attrs.bool("sanitize")?;
    Ok(Box::new(move |ctx: &mut KernelCtx| {
        let input = ctx.input(0)?;
        let (shape, messages) = (input.shape().clone(), input.strings()?.to_vec());
        if messages.is_empty() {
            return Err(invalid_argument!(
                "Bufs argument must contain at least one value"
            ));
        }
        let messages = match is_binary && !sanitize {
            true => messages,
            false => {
                let again = messages
                    .iter()
                    .map(|m| rewritten(&descriptor, m, is_binary));
                again.collect::<Result<Vec<_>>>()?
            }
        };
        let with = |last: usize| {
            let mut whole = shape.clone();
            whole.push(last);
            ferroflow_functors::indices::shape_of(whole.dims().iter().copied())
        };
        let mut sizes = ctx.alloc(DType::Int32, with(fields.len())?)?;
        let most = count_values(&messages, &fields, sizes.slice_mut::<i32>()?)?;
        ctx.set_output(0, sizes)?;
        let outputs = fields.iter().zip(&most).map(|(field, most)| {
            let tensor = ctx.alloc(field.dtype, with(*most)?)?;
            Ok(tensor)
        });
        let mut outputs = outputs.collect::<Result<Vec<Tensor>>>()?;
        take_values(&messages, &fields, &most, &mut outputs)?;
        for (field, tensor) in fields.iter().zip(outputs) {
            ctx.set_output(1 + field.output, tensor)?;
        }
        Ok(())
    }))
}

/// Writes the number of values of each field in each message; returns the most of each field, at least one.
fn count_values(messages: &[Bytes], fields: &[Wanted], counts: &mut [i32]) -> Result<Vec<usize>> {
    let n = fields.len();
    let mut most = vec![1usize; n];
    for (i, bytes) in messages.iter().enumerate() {
        let mut found = vec![0usize; n];
        collect(bytes, fields, &mut |at, part| {
            count(&fields[at], part, &mut found[at])
        })
        .map_err(|e| e.prefixed("CountFields"))?;
        for (at, found) in found.into_iter().enumerate() {
            counts[i * n + fields[at].output] = i32::try_from(found).unwrap_or(i32::MAX);
            most[at] = most[at].max(found);
        }
    }
    Ok(most)
}

/// Writes the values of each field, `most` for each message; defaults where there are fewer.
fn take_values(
    messages: &[Bytes],
    fields: &[Wanted],
    most: &[usize],
    outputs: &mut [Tensor],
) -> Result<()> {
    let columns = outputs.iter_mut().map(Column::of);
    let mut columns = columns.collect::<Result<Vec<_>>>()?;
    for (i, bytes) in messages.iter().enumerate() {
        let mut next = vec![0usize; fields.len()];
        collect(bytes, fields, &mut |at, part| {
            let row = i * most[at];
            let column = &mut columns[at];
            take(
                &fields[at],
                part,
                bytes,
                column,
                row,
                most[at],
                &mut next[at],
            )
        })
        .map_err(|e| e.prefixed("AccumulateFields"))?;
        for (at, field) in fields.iter().enumerate() {
            columns[at].fill(
                i * most[at] + next[at]..(i + 1) * most[at],
                &field.field.default,
            );
        }
    }
    Ok(())
}

/// Returns whether a message and those in it have their required fields.
fn is_complete(message: &DynamicMessage) -> bool {
    let has_all = message
        .descriptor()
        .fields()
        .all(|field| field.cardinality() != Cardinality::Required || message.has_field(&field));
    let complete = |value: &Value| match value {
        Value::Message(inner) => is_complete(inner),
        _ => true,
    };
    has_all
        && message.fields().all(|(_, value)| match value {
            Value::List(all) => all.iter().all(complete),
            Value::Map(all) => all.values().all(complete),
            one => complete(one),
        })
}

/// Parses a message and writes it anew.
fn rewritten(descriptor: &MessageDescriptor, bytes: &Bytes, is_binary: bool) -> Result<Bytes> {
    let parsed = match is_binary {
        true => DynamicMessage::decode(descriptor.clone(), &bytes[..]).ok(),
        false => {
            let text = std::str::from_utf8(bytes).ok();
            text.and_then(|t| ferroflow_model::dynamic_from_text(descriptor.clone(), t).ok())
        }
    };
    let kind = if is_binary { "binary" } else { "text" };
    let message = parsed.filter(is_complete);
    let message = message.ok_or_else(|| data_loss!("Unable to parse {kind} protobuf"))?;
    Ok(Bytes::from(message.encode_to_vec()))
}

/// A part of a message that belongs to a field.
enum Part<'a, 'b> {
    /// One value, which the reader stands in front of.
    Value(&'b mut Reader<'a>),
    /// Several values in the bytes, which begin at the position.
    Packed(&'a [u8]),
}

/// Why a message could not be read.
enum Unread {
    Incomplete,
    Other(ferroflow_base::Status),
}

impl Unread {
    fn prefixed(self, pass: &str) -> ferroflow_base::Status {
        match self {
            Unread::Incomplete => data_loss!("{pass}: Failed to consume entire buffer"),
            Unread::Other(status) => status,
        }
    }
}

/// Reads a message and hands out the parts of the fields.
fn collect<'a>(
    bytes: &'a [u8],
    fields: &[Wanted],
    each: &mut dyn FnMut(usize, Part<'a, '_>) -> Result<()>,
) -> std::result::Result<(), Unread> {
    let mut input = Reader::new(bytes);
    let lost = |text: &str| Unread::Other(data_loss!("{text}"));
    while let Some(tag) = input.tag().filter(|tag| tag & 7 != 4) {
        // The last of several outputs of one field gets nothing, as in TensorFlow.
        let at = fields.partition_point(|f| f.field.number < tag >> 3);
        let Some(wanted) = fields.get(at).filter(|f| f.field.number == tag >> 3) else {
            if input.skip(tag, None).is_none() {
                return Err(lost("Failed skipping unrequested field"));
            }
            continue;
        };
        let wire = wanted.field.kind.wire();
        if tag & 7 == 2 && wire != Wire::Delimited {
            let size = input.size();
            let size = size.ok_or_else(|| lost("CollectField: Failed reading packed size"))?;
            let packed = match size {
                0 => &[],
                size => input
                    .take(size)
                    .ok_or_else(|| lost("ReadPackedValues: Skipping packed field failed"))?,
            };
            each(at, Part::Packed(packed)).map_err(Unread::Other)?;
        } else if tag & 7 != wire.number() {
            if input.skip(tag, None).is_none() {
                return Err(lost("CollectField: Failed skipping malformed field"));
            }
        } else {
            each(at, Part::Value(&mut input)).map_err(Unread::Other)?;
        }
    }
    match input.is_at_end() {
        true => Ok(()),
        false => Err(Unread::Incomplete),
    }
}

/// Counts the values of a part.
fn count(wanted: &Wanted, part: Part, found: &mut usize) -> Result<()> {
    let field = &wanted.field;
    let packed = match part {
        Part::Value(input) => {
            if *found == 0 || field.is_repeated {
                *found += 1;
            }
            let skipped = input.skip(field.number << 3 | field.kind.wire().number(), None);
            return skipped
                .ok_or_else(|| data_loss!("ReadValue: Failed skipping field when counting"));
        }
        Part::Packed(packed) => packed,
    };
    let width = match field.kind.wire() {
        Wire::Fixed64 => 8,
        Wire::Fixed32 => 4,
        Wire::Group => return Err(data_loss!("TYPE_GROUP encountered as packed")),
        _ => {
            let mut values = Reader::new(packed);
            while !values.is_at_end() {
                let value = values.varint();
                value.ok_or_else(|| data_loss!("Corrupt packed varint"))?;
                *found += 1;
            }
            0
        }
    };
    if width > 0 {
        if packed.len() % width != 0 {
            return Err(data_loss!(
                "Illegal data length for packed fixed-size type: {}",
                packed.len()
            ));
        }
        *found += packed.len() / width;
    }
    if !field.is_repeated && *found > 1 {
        *found = 1;
    }
    Ok(())
}

/// Stores the values of a part in a row of an output.
fn take(
    wanted: &Wanted,
    part: Part,
    message: &Bytes,
    column: &mut Column,
    row: usize,
    most: usize,
    next: &mut usize,
) -> Result<()> {
    let field = &wanted.field;
    let input = match part {
        Part::Value(input) => input,
        Part::Packed(packed) => {
            if *next >= most {
                return Err(data_loss!(
                    "ReadPackedValues: Tried to write more entries than allowed.  Field tag: {}, \
                     Max entries allowed: {most}",
                    field.number
                ));
            }
            let mut values = Reader::new(packed);
            while !values.is_at_end() && *next < most {
                let value = number(field.kind, &mut values, wanted.dtype, true);
                let value = value.ok_or_else(|| data_loss!("Corrupt packed varint"))?;
                column.set(row + *next, value);
                *next += usize::from(field.is_repeated);
            }
            return Ok(());
        }
    };
    let at = if field.is_repeated { *next } else { 0 };
    if at >= most {
        return Err(data_loss!("Failed reading field {}", field.number));
    }
    *next = at + 1;
    let lost = || data_loss!("Failed reading primitive");
    match field.kind {
        Type::String | Type::Message | Type::Bytes => {
            let size = input.size().ok_or_else(lost)?;
            let start = input.position();
            input.take(size).ok_or_else(lost)?;
            column.set_bytes(row + at, message.slice(start..start + size));
        }
        Type::Group => {
            let mut group = Vec::new();
            let skipped = input.skip(field.number << 3 | 3, Some(&mut group));
            skipped.ok_or_else(lost)?;
            column.set_bytes(row + at, Bytes::from(group));
        }
        kind => {
            let value = number(kind, input, wanted.dtype, false).ok_or_else(lost)?;
            column.set(row + at, value);
        }
    }
    Ok(())
}

/// Reads a number and returns its bits in a tensor of this dtype.
fn number(kind: Type, input: &mut Reader, dtype: DType, is_packed: bool) -> Option<u64> {
    Some(match kind {
        Type::Double | Type::Fixed64 | Type::Sfixed64 => input.fixed64()?,
        Type::Float => {
            let value = f32::from_bits(input.fixed32()?);
            match dtype {
                DType::Double => f64::from(value).to_bits(),
                _ => u64::from(value.to_bits()),
            }
        }
        Type::Fixed32 => u64::from(input.fixed32()?),
        Type::Sfixed32 => input.fixed32()? as i32 as u64,
        // TensorFlow does not extend the sign of packed integers.
        Type::Int32 if is_packed => u64::from(input.varint()? as u32),
        Type::Int32 | Type::Enum => input.varint()? as i32 as u64,
        Type::Uint32 => u64::from(input.varint()? as u32),
        Type::Bool => u64::from(input.varint()? != 0),
        Type::Sint32 => zigzag(u64::from(input.varint()? as u32)) as u64,
        Type::Sint64 => zigzag(input.varint()?) as u64,
        _ => input.varint()?,
    })
}

/// The elements of an output.
enum Column<'a> {
    Bool(&'a mut [bool]),
    Float(&'a mut [f32]),
    Double(&'a mut [f64]),
    Int32(&'a mut [i32]),
    Int64(&'a mut [i64]),
    Uint32(&'a mut [u32]),
    Uint64(&'a mut [u64]),
    Strings(&'a mut [Bytes]),
}

impl<'a> Column<'a> {
    fn of(tensor: &'a mut Tensor) -> Result<Self> {
        Ok(match tensor.dtype() {
            DType::Bool => Column::Bool(tensor.slice_mut()?),
            DType::Float => Column::Float(tensor.slice_mut()?),
            DType::Double => Column::Double(tensor.slice_mut()?),
            DType::Int32 => Column::Int32(tensor.slice_mut()?),
            DType::Int64 => Column::Int64(tensor.slice_mut()?),
            DType::Uint32 => Column::Uint32(tensor.slice_mut()?),
            DType::Uint64 => Column::Uint64(tensor.slice_mut()?),
            _ => Column::Strings(tensor.items_mut()?),
        })
    }

    /// Stores a number by its bits.
    fn set(&mut self, i: usize, bits: u64) {
        match self {
            Column::Bool(all) => all[i] = bits != 0,
            Column::Float(all) => all[i] = f32::from_bits(bits as u32),
            Column::Double(all) => all[i] = f64::from_bits(bits),
            Column::Int32(all) => all[i] = bits as i32,
            Column::Int64(all) => all[i] = bits as i64,
            Column::Uint32(all) => all[i] = bits as u32,
            Column::Uint64(all) => all[i] = bits,
            Column::Strings(_) => {}
        }
    }

    fn set_bytes(&mut self, i: usize, bytes: Bytes) {
        if let Column::Strings(all) = self {
            all[i] = bytes;
        }
    }

    fn fill(&mut self, range: std::ops::Range<usize>, default: &Value) {
        let bytes = match default {
            Value::String(text) => Bytes::copy_from_slice(text.as_bytes()),
            Value::Bytes(bytes) => Bytes::copy_from_slice(bytes),
            _ => Bytes::new(),
        };
        let is_double = matches!(self, Column::Double(_));
        let bits = match default {
            Value::Bool(v) => u64::from(*v),
            Value::I32(v) => *v as u64,
            Value::I64(v) => *v as u64,
            Value::U32(v) => u64::from(*v),
            Value::U64(v) => *v,
            Value::F32(v) if is_double => f64::from(*v).to_bits(),
            Value::F32(v) => u64::from(v.to_bits()),
            Value::F64(v) => v.to_bits(),
            Value::EnumNumber(v) => *v as u64,
            _ => 0,
        };
        for i in range {
            self.set(i, bits);
            self.set_bytes(i, bytes.clone());
        }
    }
}
