//! Summary ops, which return messages for event files (TensorFlow: `c/kernels/summary_op.cc`).

use ferroflow_base::{Result, invalid_argument};
use ferroflow_functors::half_conversion::floats;
use ferroflow_functors::shapes;
use ferroflow_model::proto::{HistogramProto, Summary, SummaryMetadata, summary};
use ferroflow_model::tensor_to_proto;
use ferroflow_opdef::{KernelBuild, KernelCtx, Op, OpKernel};
use ferroflow_sync::Parallelism;
use ferroflow_tensor::{DType, Tensor};
use prost::Message;

/// The ops of this file.
pub(crate) const OPS: &[Op] = &[
    Op::new(
        "ScalarSummary",
        "tags: string, values: T -> summary: string | T: realnumbertype",
    )
    .shape(shapes::scalar)
    .kernel(|_| Ok(Box::new(scalars)))
    .not_differentiable(),
    Op::new(
        "HistogramSummary",
        "tag: string, values: T -> summary: string | T: realnumbertype = float",
    )
    .shape(shapes::scalar)
    .kernel(histogram)
    .not_differentiable(),
    Op::new(
        "MergeSummary",
        "inputs: N*string -> summary: string | N: int >= 1 |",
    )
    .shape(shapes::scalar)
    .kernel(|_| Ok(Box::new(merge)))
    .not_differentiable(),
    Op::new(
        "TensorSummary",
        "tensor: T -> summary: string | T: type; description: string = ''; labels: list(string) = \
         []; display_name: string = ''",
    )
    .shape(shapes::scalar)
    .kernel(tensor)
    .not_differentiable(),
    Op::new(
        "TensorSummaryV2",
        "tag: string, tensor: T, serialized_summary_metadata: string -> summary: string | T: type",
    )
    .shape(shapes::scalar)
    .kernel(tensor_with_tag)
    .not_differentiable(),
];

/// Converts the numbers of a tensor to doubles.
pub(crate) fn doubles(par: &dyn Parallelism, t: &Tensor) -> Result<Vec<f64>> {
    match t.dtype() {
        DType::Double => Ok(t.slice::<f64>()?.to_vec()),
        DType::Int64 => Ok(t.slice::<i64>()?.iter().map(|&x| x as f64).collect()),
        DType::Uint64 => Ok(t.slice::<u64>()?.iter().map(|&x| x as f64).collect()),
        DType::Uint32 => Ok(t.slice::<u32>()?.iter().map(|&x| x.into()).collect()),
        DType::Int32 => Ok(t.slice::<i32>()?.iter().map(|&x| x.into()).collect()),
        _ => {
            let wide = floats(par, t)?;
            Ok(wide.slice::<f32>()?.iter().map(|&x| x.into()).collect())
        }
    }
}

/// Sets the output to a message with these values. The bytes of each, UTF-8 or not, come before its tag.
pub(crate) fn set<'a>(
    ctx: &mut KernelCtx,
    values: impl IntoIterator<Item = (&'a [u8], summary::Value)>,
) -> Result<()> {
    let mut message = Vec::new();
    for (start, mut value) in values {
        let tag = [start, std::mem::take(&mut value.tag).as_bytes()].concat();
        let tag = if tag.is_empty() { tag } else { field(&tag)? };
        message.extend(field(&[tag, value.encode_to_vec()].concat())?);
    }
    ctx.set_output(0, Tensor::string(message))
}

/// Encodes bytes as the first field of a message.
fn field(bytes: &[u8]) -> Result<Vec<u8>> {
    let mut out = vec![0x0a];
    prost::encode_length_delimiter(bytes.len(), &mut out)
        .map_err(|e| invalid_argument!("the summary is too long: {e}"))?;
    out.extend_from_slice(bytes);
    Ok(out)
}

fn scalars(ctx: &mut KernelCtx) -> Result<()> {
    let (tags, values) = (ctx.input(0)?, ctx.input(1)?);
    let (n_tags, n_values) = (tags.num_elements(), values.num_elements());
    let alike = tags.shape() == values.shape() || n_tags == 1 && n_values == 1;
    if !alike {
        let tag = match tags.strings()? {
            [tag] => format!(" (tag '{}')", String::from_utf8_lossy(tag)),
            _ => String::new(),
        };
        return Err(invalid_argument!(
            "tags and values are not the same shape: {} != {}{tag}",
            tags.shape(),
            values.shape()
        ));
    }
    let (tags, values) = (tags.clone(), doubles(ctx.par(), values)?);
    let values = values.into_iter().map(|value| summary::Value {
        value: Some(summary::value::Value::SimpleValue(value as f32)),
        ..Default::default()
    });
    set(ctx, tags.strings()?.iter().map(|tag| &tag[..]).zip(values))
}

fn tensor(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    let named = summary::Value {
        node_name: build.node.to_string(),
        ..Default::default()
    };
    Ok(Box::new(move |ctx: &mut KernelCtx| {
        let tensor = tensor_to_proto(ctx.input(0)?)?;
        let value = summary::Value {
            value: Some(summary::value::Value::Tensor(tensor)),
            ..Default::default()
        };
        // In the order of field numbers, as TensorFlow writes them; prost writes oneofs first.
        let fields = [named.encode_to_vec(), value.encode_to_vec()].concat();
        ctx.set_output(0, Tensor::string(field(&fields)?))
    }))
}

fn tensor_with_tag(_: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    Ok(Box::new(|ctx: &mut KernelCtx| {
        for (i, name) in [(0, "tag"), (2, "serialized_summary_metadata")] {
            if !ctx.shape(i)?.is_scalar() {
                return Err(invalid_argument!("{name} must be scalar"));
            }
        }
        let text = |i: usize| -> Result<&[u8]> {
            let words = ctx.input(i)?.strings()?;
            Ok(words.first().map(|w| &w[..]).unwrap_or_default())
        };
        let value = summary::Value {
            // What is not a message counts as an empty one, as in TensorFlow.
            metadata: Some(SummaryMetadata::decode(text(2)?).unwrap_or_default()),
            value: Some(summary::value::Value::Tensor(tensor_to_proto(
                ctx.input(1)?,
            )?)),
            ..Default::default()
        };
        let tag = ctx.input(0)?.clone();
        let tag = tag.strings()?.first().map(|tag| &tag[..]);
        set(ctx, [(tag.unwrap_or_default(), value)])
    }))
}

fn merge(ctx: &mut KernelCtx) -> Result<()> {
    let mut all = Vec::new();
    let mut tags = std::collections::BTreeSet::new();
    for i in 0..ctx.num_inputs() {
        for bytes in ctx.input(i)?.strings()? {
            let part = Summary::decode(&bytes[..])
                .map_err(|_| invalid_argument!("Could not parse one of the summary inputs"))?;
            for value in part.value {
                if !value.tag.is_empty() && !tags.insert(value.tag.clone()) {
                    return Err(invalid_argument!(
                        "Duplicate tag {} found in summary inputs",
                        value.tag
                    ));
                }
                all.push(value);
            }
        }
    }
    set(ctx, all.into_iter().map(|value| (&[][..], value)))
}

fn histogram(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    let limits = limits();
    let node = build.node.to_string();
    Ok(Box::new(move |ctx: &mut KernelCtx| {
        let tag = ctx.input(0)?.clone();
        let [tag] = tag.strings()? else {
            return Err(invalid_argument!("tags must be scalar"));
        };
        let values = doubles(ctx.par(), ctx.input(1)?)?;
        if values.iter().any(|v| v.is_nan()) {
            return Err(invalid_argument!("Nan in summary histogram for: {node}"));
        }
        if values.iter().any(|v| v.is_infinite()) {
            return Err(invalid_argument!("Infinity in Histogram for: {node}"));
        }
        let value = summary::Value {
            value: Some(summary::value::Value::Histo(counted(&limits, &values))),
            ..Default::default()
        };
        set(ctx, [(&tag[..], value)])
    }))
}

/// Returns the upper limits of TensorFlow's histogram buckets, each a tenth wider than the
/// previous.
pub(crate) fn limits() -> Vec<f64> {
    let mut positive = Vec::new();
    let mut v = 1.0e-12;
    while v < 1.0e20 {
        positive.push(v);
        v *= 1.1;
    }
    positive.push(f64::MAX);
    let negative = positive.iter().rev().map(|v| -v);
    negative
        .chain([0.0])
        .chain(positive.iter().copied())
        .collect()
}

pub(crate) fn counted(limits: &[f64], values: &[f64]) -> HistogramProto {
    let mut counts = vec![0.0; limits.len()];
    let mut out = HistogramProto {
        min: f64::MAX,
        max: -f64::MAX,
        ..Default::default()
    };
    for &value in values {
        let at = limits.partition_point(|limit| *limit <= value);
        if let Some(count) = counts.get_mut(at) {
            *count += 1.0;
        }
        out.min = out.min.min(value);
        out.max = out.max.max(value);
        out.num += 1.0;
        out.sum += value;
        out.sum_squares += value * value;
    }
    // Consecutive empty buckets become one.
    let mut empty = false;
    for (&limit, &count) in limits.iter().zip(&counts) {
        if count == 0.0 && empty {
            if let Some(last) = out.bucket_limit.last_mut() {
                *last = limit;
            }
            continue;
        }
        out.bucket_limit.push(limit);
        out.bucket.push(count);
        empty = count == 0.0;
    }
    out
}
