//! Fuses what follows a convolution or matrix product with constant weights into its kernel:
//! per-channel scales and offsets (batch normalization in any spelling), a residual addition, an
//! activation.

use crate::pass::FUSED_SUFFIX;
use crate::pass::constant_node;
use crate::passes::{conv_groups, tensordot};
use crate::view::{View, same_shape};
use crate::{Pass, PassCtx};
use ferroflow_base::{Result, internal};
use ferroflow_graph::{Graph, Node, NodeId, Output, Patch, topological_order};
use ferroflow_opdef::{AttrValue, Attrs};
use ferroflow_tensor::{DType, LazyTensor, PartialShape, Tensor};
use smallvec::{SmallVec, smallvec};
use std::sync::Arc;

pub(crate) const PASS: Pass = Pass {
    name: "fuse",
    about: "fuses bias, batch normalization, residual additions and activations into products",
    run,
};

#[derive(Clone, Copy, PartialEq)]
enum Kind {
    Conv,
    Volume,
    Depthwise,
    Dense { transpose_w: bool },
}

/// A product and what follows it, as far as it fuses.
struct Chain {
    root: NodeId,
    kind: Kind,
    input: Output,
    /// Output channels.
    n: usize,
    /// Per-channel factor and offset of the product, once something scales or shifts it.
    affine: Option<Vec<(f64, f64)>>,
    /// A Reshape that the chain goes through; what follows it acts on the same rows.
    reshape: Option<NodeId>,
    side: Option<Output>,
    activation: Option<(&'static str, f32)>,
    /// The value that the fused node will stand for, and its shape.
    end: Output,
    shape: PartialShape,
    /// The nodes that the fused node stands for.
    nodes: Vec<NodeId>,
}

fn run(graph: &mut Graph, ctx: &PassCtx) -> Result<()> {
    let view = View::new(graph, ctx.shapes(graph)?);
    let mut taken = vec![false; graph.id_bound()];
    let mut chains: Vec<Chain> = Vec::new();
    // Backwards, so that of two products that meet in an addition the later one takes it.
    for &root in topological_order(graph)?.iter().rev() {
        let Some(mut chain) = start(&view, root) else {
            continue;
        };
        while follow(&view, &mut chain, &taken).is_some() {}
        let is_batched = matches!(view.node(root).op(), "BatchMatMulV2" | "BatchMatMulV3");
        let moves_input = view.node(root).inputs[0] != chain.input;
        if chain.nodes.len() == 1 && !is_batched && !moves_input {
            continue;
        }
        chain.nodes.iter().for_each(|n| taken[n.index()] = true);
        chains.push(chain);
    }
    let mut plans = Vec::new();
    for chain in &chains {
        plans.push(fused(&view, chain)?);
    }
    let mut patch = Patch::new();
    for (chain, plan) in chains.iter().zip(plans) {
        plan.apply(graph, ctx, &mut patch, chain)?;
    }
    patch.apply(graph);
    Ok(())
}

fn start(view: &View, root: NodeId) -> Option<Chain> {
    let node = view.node(root);
    let attrs = &node.attrs;
    let is_nhwc = || attrs.str("data_format").is_ok_and(|f| f == "NHWC");
    let kind = match node.op() {
        "Conv2D" if is_nhwc() => Kind::Conv,
        "Conv3D" if attrs.str("data_format").is_ok_and(|f| f == "NDHWC") => Kind::Volume,
        "DepthwiseConv2dNative" if is_nhwc() => Kind::Depthwise,
        "MatMul" if !attrs.bool("transpose_a").ok()? => Kind::Dense {
            transpose_w: attrs.bool("transpose_b").ok()?,
        },
        "BatchMatMulV2" | "BatchMatMulV3" if !attrs.bool("adj_x").ok()? => Kind::Dense {
            transpose_w: attrs.bool("adj_y").ok()?,
        },
        _ => return None,
    };
    let weights = view.constant(*node.inputs.get(1)?)?;
    if weights.dtype() != DType::Float || node.outputs[..] != [DType::Float] || !view.is_pure(root)
    {
        return None;
    }
    let n = match (kind, weights.shape().dims()) {
        (Kind::Conv, [_, _, _, out]) => *out,
        (Kind::Volume, [_, _, _, _, out]) => *out,
        (Kind::Depthwise, [_, _, c, m]) => c * m,
        (Kind::Dense { transpose_w: false }, [_, n]) => *n,
        (Kind::Dense { transpose_w: true }, [n, _]) => *n,
        _ => return None,
    };
    let mut chain = Chain {
        root,
        kind,
        input: node.inputs[0],
        n,
        affine: None,
        reshape: None,
        side: None,
        activation: None,
        end: Output::new(root, 0),
        shape: view.shape(Output::new(root, 0)),
        nodes: vec![root],
    };
    if let Some((x, end)) = tensordot::match_around(view, root) {
        chain.input = x;
        chain.end = end;
        chain.shape = view.shape(end);
        chain.nodes.push(end.node);
    }
    Some(chain)
}

/// Takes the next node into the chain; `None` at its end.
fn follow(view: &View, chain: &mut Chain, taken: &[bool]) -> Option<()> {
    let id = view.only_reader(chain.end)?;
    let node = view.node(id);
    if taken[id.index()] || node.outputs.first() != Some(&DType::Float) || !view.is_pure(id) {
        return None;
    }
    if chain.activation.is_some() {
        return None;
    }
    let after_sum = chain.side.is_some();
    let other = |i: usize| node.inputs.get(1 - i).copied();
    let at = node.inputs.iter().position(|i| *i == chain.end)?;
    match node.op() {
        "BiasAdd" if at == 0 && !after_sum && node.attrs.str("data_format").ok()? == "NHWC" => {
            let bias = view.floats(other(0)?)?;
            if bias.len() != chain.n || !last_is_channels(chain, true) {
                return None;
            }
            affine(chain, |i, (s, o)| (s, o + bias[i] as f64));
        }
        "Add" | "AddV2" if !after_sum => match channel_values(view, chain, other(at)?) {
            Some(c) => affine(chain, |i, (s, o)| (s, o + c[i])),
            None => {
                let other = other(at)?;
                let fits = same_shape(&view.shape(other), &chain.shape) && chain.reshape.is_none();
                if !fits || chain.kind == Kind::Depthwise || other == chain.end {
                    return None;
                }
                chain.side = Some(other);
            }
        },
        "Sub" if at == 0 && !after_sum => {
            let c = channel_values(view, chain, other(0)?)?;
            affine(chain, |i, (s, o)| (s, o - c[i]));
        }
        "Mul" if !after_sum => {
            let c = channel_values(view, chain, other(at)?)?;
            affine(chain, |i, (s, o)| (s * c[i], o * c[i]));
        }
        "FusedBatchNorm" | "FusedBatchNormV2" | "FusedBatchNormV3" if at == 0 && !after_sum => {
            let factors = batch_norm(view, node)?;
            if factors.len() != chain.n || chain.reshape.is_some() {
                return None;
            }
            affine(chain, |i, (s, o)| {
                (s * factors[i].0, o * factors[i].0 + factors[i].1)
            });
        }
        "Reshape" if at == 0 && !after_sum && chain.reshape.is_none() => {
            if !matches!(chain.kind, Kind::Dense { .. }) || view.constant(other(0)?).is_none() {
                return None;
            }
            chain.reshape = Some(id);
            chain.shape = view.shape(Output::new(id, 0));
        }
        op => {
            let (_, name) = ACTIVATIONS.iter().find(|(of, _)| *of == op)?;
            let alpha = node.attrs.float("alpha").unwrap_or(0.2);
            chain.activation = Some((name, alpha));
        }
    }
    chain.end = Output::new(id, 0);
    chain.nodes.push(id);
    Some(())
}

/// Activations by op, and what the fused ops call them.
const ACTIVATIONS: [(&str, &str); 11] = [
    ("Relu", "Relu"),
    ("Relu6", "Relu6"),
    ("Elu", "Elu"),
    ("Tanh", "Tanh"),
    ("Sigmoid", "Sigmoid"),
    ("LeakyRelu", "LeakyRelu"),
    ("Softplus", "Softplus"),
    ("_Swish", "Swish"),
    ("_HardSwish", "HardSwish"),
    ("_Gelu", "GeluExact"),
    ("_GeluTanh", "GeluApproximate"),
];

fn affine(chain: &mut Chain, f: impl Fn(usize, (f64, f64)) -> (f64, f64)) {
    let all = chain
        .affine
        .get_or_insert_with(|| vec![(1.0, 0.0); chain.n]);
    for (i, a) in all.iter_mut().enumerate() {
        *a = f(i, *a);
    }
}

/// Whether the last dimension of the chain's value is all channels. `strict` ops (BiasAdd) check
/// their last dimension themselves, so that only a value that no Reshape has cut is needed.
fn last_is_channels(chain: &Chain, strict: bool) -> bool {
    chain.reshape.is_none() || chain.shape.dim(-1).map_or(strict, |d| d == chain.n)
}

/// One number for each channel, from a constant that broadcasts along them.
fn channel_values(view: &View, chain: &Chain, output: Output) -> Option<Vec<f64>> {
    let value = view.constant(output)?;
    let (dims, rank) = (value.shape().dims(), chain.shape.rank());
    let count = value.shape().num_elements();
    if value.dtype() != DType::Float || (count != 1 && count != chain.n) {
        return None;
    }
    // It must not add dimensions, and each of its dimensions must be 1 or exactly the value's.
    let significant = dims
        .iter()
        .position(|&d| d != 1)
        .map_or(&dims[dims.len()..], |i| &dims[i..]);
    if dims.len() > 1 && rank.is_none_or(|r| dims.len() > r) {
        return None;
    }
    if count == 1 {
        // A scalar changes no shape unless the value has fewer dimensions.
        return Some(vec![view.floats(output)?[0] as f64; chain.n]);
    }
    if chain.reshape.is_none() {
        // Rows are the last dimension, whose length is known to be `n`.
        return match significant {
            [_] => Some(view.floats(output)?.iter().map(|&v| v as f64).collect()),
            _ => None,
        };
    }
    let trailing = chain.shape.dims()?;
    let trailing = trailing.get(trailing.len().checked_sub(significant.len())?..)?;
    let equal = trailing
        .iter()
        .zip(significant)
        .all(|(a, b)| *a == Some(*b));
    equal.then(|| {
        view.floats(output)
            .map(|v| v.iter().map(|&v| v as f64).collect())
    })?
}

/// Factor and offset of an inference batch normalization with constant statistics. The factor is
/// rounded where TensorFlow rounds it: an error in it is the same for a whole channel, so over a
/// hundred layers it counts more than all others.
fn batch_norm(view: &View, node: &Node) -> Option<Vec<(f64, f64)>> {
    let has_channels_last = matches!(node.attrs.str("data_format").ok()?, "NHWC" | "NDHWC");
    if node.attrs.bool("is_training").ok()? || !has_channels_last {
        return None;
    }
    let epsilon = node.attrs.float("epsilon").ok()?;
    let [scale, offset, mean, variance] = [1, 2, 3, 4].map(|i| view.floats(node.inputs[i]));
    let (scale, offset, mean, variance) = (scale?, offset?, mean?, variance?);
    Some(
        (0..scale.len())
            .map(|i| {
                let s = (scale[i] * (1.0 / (variance[i] + epsilon).sqrt())) as f64;
                (s, offset[i] as f64 - mean[i] as f64 * s)
            })
            .collect(),
    )
}

/// The fused node, its new constants and the Reshape that follows it.
struct Fusion {
    weights: Option<LazyTensor>,
    /// Arguments of a factor and an offset for each channel, with their names.
    channel_args: Vec<(&'static str, Vec<f32>)>,
    node: Node,
    reshape: Option<Node>,
}

fn fused(view: &View, chain: &Chain) -> Result<Fusion> {
    let root = view.node(chain.root);
    let source = view
        .constant(root.inputs[1])
        .cloned()
        .ok_or_else(|| internal!("the weights of '{}' are not a constant", root.name))?;
    let scales = chain
        .affine
        .as_ref()
        .filter(|a| a.iter().any(|(s, _)| *s != 1.0));
    let mut factors = scales.map(|a| a.iter().map(|(s, _)| *s as f32).collect::<Vec<_>>());
    let mut names: Vec<&str> = Vec::new();
    let mut channel_args = Vec::new();
    if matches!(chain.kind, Kind::Conv | Kind::Volume)
        && let Some(factors) = factors.take()
    {
        names.push("Scale");
        channel_args.push(("scale", factors));
    }
    // The other kernels have no factor: it goes into the weights.
    let transposed = chain.kind == (Kind::Dense { transpose_w: true });
    let weights = factors.map(|f| scaled(&source, f, transposed));
    if let Some(a) = &chain.affine {
        names.push("BiasAdd");
        channel_args.push(("bias", a.iter().map(|(_, o)| *o as f32).collect()));
    }
    names.extend(chain.side.is_some().then_some("Add"));
    names.extend(chain.activation.map(|a| a.0));
    let n_args = channel_args.len() as i64 + chain.side.is_some() as i64;
    let mut attrs = Attrs::default()
        .with("T", AttrValue::Type(DType::Float))
        .with("num_args", AttrValue::Int(n_args))
        .with("fused_ops", AttrValue::strs(&names));
    if let Some(("LeakyRelu", alpha)) = chain.activation {
        attrs.set("leakyrelu_alpha", AttrValue::Float(alpha));
    }
    match chain.kind {
        Kind::Dense { transpose_w } => attrs.set("transpose_w", AttrValue::Bool(transpose_w)),
        _ => {
            for name in [
                "strides",
                "padding",
                "explicit_paddings",
                "data_format",
                "dilations",
                conv_groups::GROUPS,
            ] {
                if let Some(value) = root.attrs.get(name) {
                    attrs.set(name, value.clone());
                }
            }
        }
    }
    if chain.kind == Kind::Conv {
        let types = vec![AttrValue::Type(DType::Float); n_args as usize];
        attrs.set("TArgs", AttrValue::List(types));
    }
    let mut node = root.clone();
    node.name = view
        .graph
        .unique_name(&format!("{}{FUSED_SUFFIX}", root.name));
    node.attrs = attrs;
    node.inputs = smallvec![chain.input, root.inputs[1]];
    Ok(Fusion {
        weights,
        channel_args,
        node,
        reshape: chain.reshape.map(|r| view.node(r).clone()),
    })
}

/// Weights times a factor for each output channel, computed when they are packed.
fn scaled(source: &LazyTensor, factors: Vec<f32>, channels_first: bool) -> LazyTensor {
    let lazy = source.clone();
    let compute = move || -> Result<Tensor> {
        let mut t = lazy.get()?;
        lazy.release();
        let values = t.slice_mut::<f32>()?;
        let n = factors.len().max(1);
        if channels_first {
            let k = (values.len() / n).max(1);
            for (row, f) in values.chunks_mut(k).zip(&factors) {
                row.iter_mut().for_each(|v| *v *= f);
            }
        } else {
            for row in values.chunks_mut(n) {
                row.iter_mut().zip(&factors).for_each(|(v, f)| *v *= f);
            }
        }
        Ok(t)
    };
    LazyTensor::deferred(DType::Float, source.shape().clone(), Arc::new(compute))
}

impl Fusion {
    fn apply(
        mut self,
        graph: &mut Graph,
        ctx: &PassCtx,
        patch: &mut Patch,
        chain: &Chain,
    ) -> Result<()> {
        let base = graph.node(chain.root).name.clone();
        let mut constant = |graph: &mut Graph, suffix: &str, value: LazyTensor| -> Result<Output> {
            let name = graph.unique_name(&format!("{base}/{suffix}"));
            Ok(Output::new(
                patch.add(graph, constant_node(ctx, name, value)?)?,
                0,
            ))
        };
        if let Some(weights) = self.weights.take() {
            self.node.inputs[1] = constant(graph, "scaled", weights)?;
        }
        for (name, values) in &self.channel_args {
            let values = constant(graph, name, Tensor::vector(values)?.into())?;
            self.node.inputs.push(values);
        }
        self.node.inputs.extend(chain.side);
        let op = match chain.kind {
            // TensorFlow's signature requires at least one argument.
            Kind::Conv if self.node.inputs.len() == 2 => "Conv2D",
            Kind::Conv => "_FusedConv2D",
            Kind::Volume => "_FusedConv3D",
            Kind::Depthwise => "_FusedDepthwiseConv2dNative",
            Kind::Dense { .. } => "_Dense",
        };
        if op == "Conv2D" {
            // An activation alone: a zero bias makes the fused form fit.
            let zeros = Tensor::vector(&vec![0.0f32; chain.n])?;
            let zeros = constant(graph, "bias", zeros.into())?;
            self.node.inputs.push(zeros);
            let attrs = &mut self.node.attrs;
            let mut names: Vec<AttrValue> = vec![AttrValue::str("BiasAdd")];
            names.extend(attrs.list("fused_ops")?.iter().cloned());
            attrs.set("fused_ops", AttrValue::List(names));
            attrs.set("num_args", AttrValue::Int(1));
            attrs.set(
                "TArgs",
                AttrValue::List(vec![AttrValue::Type(DType::Float)]),
            );
        }
        self.node.def = ctx.def(if op == "Conv2D" { "_FusedConv2D" } else { op })?;
        self.node.def.complete_attrs(&mut self.node.attrs)?;
        let mut end = Output::new(patch.add(graph, self.node)?, 0);
        if let Some(mut reshape) = self.reshape {
            reshape.name = graph.unique_name(&format!("{}/moved", reshape.name));
            let shape = reshape.inputs[1];
            reshape.inputs = SmallVec::from_slice(&[end, shape]);
            end = Output::new(patch.add(graph, reshape)?, 0);
        }
        patch.redirect(chain.end, end);
        patch.redirect_control(chain.end.node, Some(end.node));
        Ok(())
    }
}
