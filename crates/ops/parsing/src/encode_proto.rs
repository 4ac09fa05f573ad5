//! EncodeProto: serialized messages of tensors (TensorFlow: `core/kernels/encode_proto_op.cc`).

use crate::proto_fields::{Field, Type, Wire, message};
use crate::wire_reader::put_varint;
use ferroflow_base::{Result, invalid_argument};
use ferroflow_functors::indices::shape_of;
use ferroflow_opdef::{Cost, KernelBuild, KernelCtx, Op, OpKernel, ShapeCtx};
use ferroflow_tensor::{Bytes, DType, PartialShape, Shape, Tensor};

/// The ops of this file.
pub(crate) const OPS: &[Op] = &[Op::new(
    "EncodeProto",
    "sizes: int32, values: list(Tinput_types) -> bytes: string | field_names: list(string); \
     message_type: string; descriptor_source: string = 'local://'; Tinput_types: list(type) >= 1",
)
.shape(shape)
.cost(Cost::Expensive)
.kernel(encode)
.not_differentiable()];

fn shape(ctx: &mut ShapeCtx) -> Result<()> {
    let mut out = PartialShape::unknown();
    for i in (1..ctx.num_inputs()).rev() {
        let values = ctx.with_rank_at_least(i, 2)?;
        if let Some([prefix @ .., _]) = values.dims() {
            let prefix = PartialShape::of(prefix.iter().copied());
            out = out.merge(&prefix).ok_or_else(|| {
                invalid_argument!("Shapes must be equal, but are {out} and {prefix}")
            })?;
        }
    }
    ctx.set(0, out);
    Ok(())
}

fn encode(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    let descriptor = message(build.attrs)?;
    let names: Vec<String> = build
        .attrs
        .strs("field_names")?
        .into_iter()
        .map(String::from)
        .collect();
    let fields = names.iter().map(|name| Field::of(&descriptor, name, false));
    let fields = fields.collect::<Result<Vec<_>>>()?;
    let mut order: Vec<usize> = (0..fields.len()).collect();
    order.sort_unstable_by_key(|i| fields[*i].number);
    Ok(Box::new(move |ctx: &mut KernelCtx| {
        let prefix = check(ctx, &fields, &names)?;
        let n_messages = prefix.num_elements();
        let sizes = ctx.slice::<i32>(0)?;
        for i in 0..fields.len() {
            let most = last(ctx.shape(1 + i)?);
            for m in 0..n_messages {
                let size = sizes[m * fields.len() + i];
                if i64::from(size) > most as i64 {
                    return Err(invalid_argument!(
                        "Size to write must not be larger than value tensor; but saw: {size} > \
                         {most} at message {m} field {i}"
                    ));
                }
            }
        }
        let mut messages = Vec::with_capacity(n_messages);
        for m in 0..n_messages {
            let mut out = Vec::new();
            for &i in &order {
                let size = sizes[m * fields.len() + i];
                if size != 0 {
                    write(&fields[i], ctx.input(1 + i)?, m, size, &mut out)?;
                }
            }
            messages.push(Bytes::from(out));
        }
        ctx.set_output(0, Tensor::from_strings(prefix, messages)?)
    }))
}

fn last(shape: &Shape) -> usize {
    shape.last().copied().unwrap_or(0)
}

/// Returns the shape of the messages.
fn check(ctx: &KernelCtx, fields: &[Field], names: &[String]) -> Result<Shape> {
    if fields.len() != ctx.num_inputs() - 1 {
        return Err(invalid_argument!(
            "Length of inputs list must match field_names"
        ));
    }
    let mut prefix: Option<Shape> = None;
    for (i, field) in fields.iter().enumerate() {
        let values = ctx.input(1 + i)?;
        let (name, dtype, shape) = (&names[i], values.dtype(), values.shape());
        if !field.kind.fits(dtype) {
            return Err(invalid_argument!(
                "Incompatible type for field {name}.  Saw dtype: {dtype} but field type is: {}",
                field.kind.name()
            ));
        }
        if shape.rank() < 2 {
            return Err(invalid_argument!(
                "Invalid shape for field {name}.  Saw shape {shape} but it should be at least a \
                 matrix."
            ));
        }
        let own = shape_of(shape[..shape.rank() - 1].iter().copied())?;
        match &prefix {
            Some(prefix) if *prefix != own => {
                return Err(invalid_argument!(
                    "Values must match up to the last dimension"
                ));
            }
            Some(_) => {}
            None => prefix = Some(own),
        }
    }
    let prefix = prefix.unwrap_or_default();
    let mut expected = prefix.clone();
    expected.push(fields.len());
    let sizes = ctx.shape(0)?;
    if *sizes != expected {
        return Err(invalid_argument!(
            "sizes should be batch_size + [len(field_names)].  Saw: {sizes} but expected: {expected}"
        ));
    }
    Ok(prefix)
}

/// Appends `size` values of message `m`.
fn write(field: &Field, values: &Tensor, m: usize, size: i32, out: &mut Vec<u8>) -> Result<()> {
    let from = m * last(values.shape());
    let n = usize::try_from(size).unwrap_or(0);
    let tag = |wire: u32, out: &mut Vec<u8>| put_varint((field.number << 3 | wire).into(), out);
    let wire = field.kind.wire();
    if wire == Wire::Delimited || wire == Wire::Group {
        for value in &values.strings()?[from..from + n] {
            tag(wire.number(), out);
            if wire == Wire::Delimited {
                put_varint(value.len() as u64, out);
            }
            out.extend_from_slice(value);
            if wire == Wire::Group {
                tag(4, out);
            }
        }
        return Ok(());
    }
    let mut packed = Vec::new();
    for i in from..from + n {
        if !field.is_packed {
            tag(wire.number(), out);
        }
        let to = if field.is_packed {
            &mut packed
        } else {
            &mut *out
        };
        let bits = bits(field.kind, values, i)?;
        match wire {
            Wire::Fixed64 => to.extend(bits.to_le_bytes()),
            Wire::Fixed32 => to.extend((bits as u32).to_le_bytes()),
            _ => put_varint(bits, to),
        }
    }
    if field.is_packed {
        tag(2, out);
        put_varint(packed.len() as u64, out);
        out.extend(packed);
    }
    Ok(())
}

/// Returns what is written for element `i`.
fn bits(kind: Type, values: &Tensor, i: usize) -> Result<u64> {
    let integer = match values.dtype() {
        DType::Bool => return Ok(values.slice::<bool>()?[i].into()),
        DType::Float => return Ok(values.slice::<f32>()?[i].to_bits().into()),
        DType::Double => {
            let value = values.slice::<f64>()?[i];
            return Ok(match kind {
                Type::Float => (value as f32).to_bits().into(),
                _ => value.to_bits(),
            });
        }
        DType::Int32 => i64::from(values.slice::<i32>()?[i]),
        DType::Int64 => values.slice::<i64>()?[i],
        DType::Uint32 => i64::from(values.slice::<u32>()?[i]),
        _ => values.slice::<u64>()?[i] as i64,
    };
    Ok(match kind {
        Type::Int32 | Type::Enum | Type::Sfixed32 => integer as i32 as u64,
        Type::Uint32 | Type::Fixed32 => u64::from(integer as u32),
        Type::Sint32 => {
            let v = integer as i32;
            u64::from((v << 1 ^ v >> 31) as u32)
        }
        Type::Sint64 => (integer << 1 ^ integer >> 63) as u64,
        _ => integer as u64,
    })
}
