//! Weights of compiled models in fewer bits. A file holds them as small constants with the nodes that
//! widen them (Cast, and Mul by the scales of channels), so every reader of the format can run it.
//! Opening a file folds these nodes: kernels see constants, and pack them.

use crate::session::registry;
use ferroflow_base::{Result, internal};
use ferroflow_functors::half_conversion::{narrowed, widened};
use ferroflow_opdef::{AttrValue, Attrs, Cost, NodeInfo};
use ferroflow_program::{
    Action, Body, BodyNode, FrameIdx, FrameKind, KernelEntry, NodeIdx, Source,
};
use ferroflow_sync::Inline;
use ferroflow_tensor::{DType, LazyTensor, Shape, Tensor};
use std::collections::HashMap;
use std::sync::Arc;

/// How a compiled model stores the weights of products and convolutions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Precision {
    /// As they are.
    #[default]
    Full,
    /// In IEEE half precision.
    Half,
    /// In bfloat16.
    Bfloat16,
    /// In 8-bit integers, symmetric, with a scale for each output channel.
    Int8,
}

/// Marks the nodes that widen weights.
const WIDENS: &str = "_weights";
/// Smaller constants stay as they are.
const MIN_ELEMENTS: usize = 1024;

/// How the scales of output channels lie in weights.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Channels {
    /// The last axes, of this many elements.
    Last(usize),
    /// The rows of a matrix.
    Rows(usize),
}

/// Returns how output channels lie in input 1 of a product or convolution.
fn channels(entry: &KernelEntry, shape: &Shape) -> Option<Channels> {
    let is_set = |name| entry.attrs.bool(name).unwrap_or(false);
    match (entry.op.as_str(), shape.dims()) {
        ("Conv2D" | "_FusedConv2D", [_, _, _, n]) => Some(Channels::Last(*n)),
        ("Conv3D" | "_FusedConv3D", [_, _, _, _, n]) => Some(Channels::Last(*n)),
        ("DepthwiseConv2dNative" | "_FusedDepthwiseConv2dNative", [_, _, c, m]) => {
            Some(Channels::Last(c * m))
        }
        ("MatMul" | "_FusedMatMul" | "_Dense" | "BatchMatMulV2" | "BatchMatMulV3", [rows, n]) => {
            let turned = is_set("transpose_b") || is_set("transpose_w") || is_set("adj_y");
            Some(match turned {
                true => Channels::Rows(*rows),
                false => Channels::Last(*n),
            })
        }
        _ => None,
    }
}

/// Stores the weights of the model's products and convolutions in `precision`. Those of functions
/// that kernels call, and of loops, stay.
pub(crate) fn narrow(body: &mut Body, precision: Precision) -> Result<()> {
    if precision == Precision::Full {
        return Ok(());
    }
    let mut made: HashMap<(u32, Channels), Source> = HashMap::new();
    for f in 0..body.frames.len() {
        if body.frames[f].kind != FrameKind::Function {
            continue;
        }
        made.clear();
        for i in body.frames[f].nodes.clone() {
            let node = &body.nodes[i.index()];
            let (Action::Kernel(entry), Some(Source::Const(c))) =
                (&node.action, node.inputs.get(1).copied())
            else {
                continue;
            };
            let weights = body.consts[c as usize].clone();
            let of = channels(entry, weights.shape());
            let Some(of) = of.filter(|_| {
                weights.dtype() == DType::Float && weights.shape().num_elements() >= MIN_ELEMENTS
            }) else {
                continue;
            };
            let name = node.info.name.clone();
            let source = match made.get(&(c, of)) {
                Some(source) => *source,
                None => add(body, f, &name, &weights, of, precision)?,
            };
            made.insert((c, of), source);
            body.nodes[i.index()].inputs[1] = source;
        }
    }
    drop_unread(body)
}

/// Empties the constants that nothing reads any more.
fn drop_unread(body: &mut Body) -> Result<()> {
    let mut is_read = vec![false; body.consts.len()];
    let inputs = body.nodes.iter().flat_map(|node| &node.inputs);
    let results = body.frames.iter().flat_map(|f| f.results.iter().flatten());
    for source in inputs.chain(results) {
        if let Source::Const(c) = source {
            is_read[*c as usize] = true;
        }
    }
    for node in &body.nodes {
        if let Action::Const(c) = node.action {
            is_read[c as usize] = true;
        }
    }
    for (constant, is_read) in body.consts.iter_mut().zip(is_read) {
        if !is_read {
            *constant = Tensor::zeros(DType::Bool, Shape::from([0]))?.into();
        }
    }
    Ok(())
}

/// Adds the narrow constant and the nodes that widen it.
fn add(
    body: &mut Body,
    frame: usize,
    name: &str,
    weights: &LazyTensor,
    of: Channels,
    precision: Precision,
) -> Result<Source> {
    let shape = weights.shape().clone();
    let wide = weights.get()?;
    let (narrow, scales) = match precision {
        Precision::Half => (narrowed(&Inline, wide, DType::Half)?, None),
        Precision::Bfloat16 => (narrowed(&Inline, wide, DType::Bfloat16)?, None),
        _ => {
            let (codes, scales) = quantized(wide.slice()?, of);
            let dims: Vec<usize> = match of {
                Channels::Rows(n) => vec![n, 1],
                Channels::Last(n) if shape.last() == Some(&n) => vec![n],
                Channels::Last(_) => shape[shape.rank() - 2..].to_vec(),
            };
            let scales = Tensor::from_slice(dims.into_iter().collect::<Shape>(), &scales)?;
            (Tensor::from_slice(shape, &codes)?, Some(scales))
        }
    };
    weights.release();
    let dtype = narrow.dtype();
    let narrow = Source::Const(body.constant(narrow.into()));
    let attrs = Attrs::default()
        .with("SrcT", AttrValue::Type(dtype))
        .with("DstT", AttrValue::Type(DType::Float));
    let cast = node(name, "Cast", attrs, &[dtype], vec![narrow])?;
    let frame = FrameIdx::new(frame);
    let cast = Source::Node(body.add(frame, cast), 0);
    let Some(scales) = scales else {
        return Ok(cast);
    };
    let scales = Source::Const(body.constant(scales.into()));
    let attrs = Attrs::default().with("T", AttrValue::Type(DType::Float));
    let product = node(name, "Mul", attrs, &[DType::Float; 2], vec![cast, scales])?;
    Ok(Source::Node(body.add(frame, product), 0))
}

/// Returns a node that widens weights.
fn node(
    of: &str,
    op: &str,
    attrs: Attrs,
    dtypes: &[DType],
    inputs: Vec<Source>,
) -> Result<BodyNode> {
    let name = format!("{of}/weights/{op}");
    let def = registry().def(op)?;
    let def = def.ok_or_else(|| internal!("op {op} is not registered"))?;
    let mut attrs = attrs.with(WIDENS, AttrValue::Bool(true));
    def.complete_attrs(&mut attrs)?;
    Ok(BodyNode {
        info: NodeInfo {
            name: name.clone(),
            op: op.to_string(),
        },
        action: Action::Kernel(Box::new(KernelEntry {
            op: op.to_string(),
            node: name,
            device: String::new(),
            attrs,
            inputs: dtypes.to_vec(),
            outputs: vec![DType::Float],
        })),
        inputs,
        controls: Vec::new(),
        n_outputs: 1,
        cost: Cost::Expensive,
    })
}

/// Returns the place of the scale of element `i`.
fn channel(of: Channels, len: usize, i: usize) -> usize {
    match of {
        Channels::Last(n) => i % n.max(1),
        Channels::Rows(n) => i / (len / n.max(1)).max(1),
    }
}

/// Rounds weights to multiples of a scale for each channel, the largest of which is 127.
fn quantized(values: &[f32], of: Channels) -> (Vec<i8>, Vec<f32>) {
    let (Channels::Last(n) | Channels::Rows(n)) = of;
    let mut scales = vec![0f32; n];
    let place = |i| channel(of, values.len(), i);
    for (i, x) in values.iter().enumerate() {
        let scale = &mut scales[place(i)];
        *scale = scale.max(x.abs());
    }
    scales.iter_mut().for_each(|s| *s /= 127.0);
    let code = |(i, x): (usize, &f32)| match scales[place(i)] {
        scale if scale > 0.0 => (x / scale).round().clamp(-127.0, 127.0) as i8,
        _ => 0,
    };
    (values.iter().enumerate().map(code).collect(), scales)
}

/// Replaces the nodes that widen weights by constants, which are widened when they are read.
pub(crate) fn widen(body: &mut Body) -> Result<()> {
    let mut replaced: HashMap<NodeIdx, u32> = HashMap::new();
    for i in 0..body.nodes.len() {
        let node = &body.nodes[i];
        let Action::Kernel(entry) = &node.action else {
            continue;
        };
        if !node.controls.is_empty() || entry.attrs.get(WIDENS).is_none() {
            continue;
        }
        let constant = |k: usize| match node.inputs.get(k)? {
            Source::Const(c) => body.consts.get(*c as usize).cloned(),
            Source::Node(from, 0) => body.consts.get(*replaced.get(from)? as usize).cloned(),
            Source::Node(..) => None,
        };
        let wide = match (entry.op.as_str(), constant(0), constant(1)) {
            ("Cast", Some(narrow), None) => widened_later(narrow),
            ("Mul", Some(values), Some(scales)) => scaled_later(values, &scales)?,
            _ => None,
        };
        if let Some(wide) = wide {
            replaced.insert(NodeIdx::new(i), body.constant(wide));
        }
    }
    if !replaced.is_empty() {
        remove(body, &replaced);
    }
    Ok(())
}

/// A 16-bit or 8-bit constant in single precision; `None` for other dtypes.
fn widened_later(narrow: LazyTensor) -> Option<LazyTensor> {
    let (dtype, shape) = (narrow.dtype(), narrow.shape().clone());
    if !matches!(dtype, DType::Half | DType::Bfloat16 | DType::Int8) {
        return None;
    }
    let compute = move || {
        let value = narrow.get()?;
        narrow.release();
        match dtype {
            DType::Int8 => {
                let values = value.slice::<i8>()?.iter().map(|v| f32::from(*v));
                Tensor::from_slice(value.shape().clone(), &values.collect::<Vec<_>>())
            }
            _ => widened(&Inline, &value),
        }
    };
    Some(LazyTensor::deferred(DType::Float, shape, Arc::new(compute)))
}

/// Weights times the scales of their channels; `None` if the shapes are not such.
fn scaled_later(values: LazyTensor, scales: &LazyTensor) -> Result<Option<LazyTensor>> {
    let (shape, n) = (values.shape().clone(), scales.shape().num_elements());
    if values.dtype() != DType::Float || scales.dtype() != DType::Float || n == 0 {
        return Ok(None);
    }
    let dims = scales.shape().dims();
    let of = match dims {
        [rows, 1] if shape.rank() == 2 && shape[0] == *rows => Channels::Rows(n),
        _ if shape.dims().ends_with(dims) => Channels::Last(n),
        _ => return Ok(None),
    };
    let scales = scales.get()?;
    let compute = move || {
        let (mut value, scales) = (values.get()?, scales.slice::<f32>()?);
        let elements = value.slice_mut::<f32>()?;
        let len = elements.len();
        for (i, x) in elements.iter_mut().enumerate() {
            *x *= scales[channel(of, len, i)];
        }
        Ok(value)
    };
    let wide = LazyTensor::deferred(DType::Float, shape, Arc::new(compute));
    Ok(Some(wide))
}

/// Removes nodes; what read them reads constants.
fn remove(body: &mut Body, replaced: &HashMap<NodeIdx, u32>) {
    let mut next = 0;
    let mut moved = Vec::with_capacity(body.nodes.len());
    for i in 0..body.nodes.len() {
        moved.push(NodeIdx::new(next));
        next += usize::from(!replaced.contains_key(&NodeIdx::new(i)));
    }
    let source = |s: &mut Source| {
        if let Source::Node(from, output) = *s {
            *s = match replaced.get(&from) {
                Some(constant) => Source::Const(*constant),
                None => match moved.get(from.index()) {
                    Some(to) => Source::Node(*to, output),
                    // Of a damaged file, whose check reports it.
                    None => *s,
                },
            };
        }
    };
    let place = |i: &NodeIdx| moved.get(i.index()).copied().unwrap_or(*i);
    let mut index = 0;
    body.nodes.retain(|_| {
        index += 1;
        !replaced.contains_key(&NodeIdx::new(index - 1))
    });
    for node in &mut body.nodes {
        node.inputs.iter_mut().for_each(source);
        node.controls.retain(|c| !replaced.contains_key(c));
        node.controls.iter_mut().for_each(|c| *c = place(c));
    }
    for frame in &mut body.frames {
        frame.nodes.retain(|i| !replaced.contains_key(i));
        frame.nodes.iter_mut().for_each(|i| *i = place(i));
        frame.results.iter_mut().flatten().for_each(source);
    }
}
