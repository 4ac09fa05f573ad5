//! Expands the ops into which TensorFlow rewrites parts of a graph before it sends them to a worker: its optimizers
//! (`core/grappler/optimizers/remapper.cc`, `arithmetic_optimizer.cc`), its passes before placement
//! (`core/common_runtime/parallel_concat_optimizer.cc`) and oneDNN's layout pass (`mkl_layout_pass.cc`).

use super::composite::{Expand, Expansion};
use crate::PassCtx;
use crate::pass::keep_attrs;
use ferroflow_base::{Result, invalid_argument};
use ferroflow_graph::{Graph, Node, NodeId, Output, Patch};
use ferroflow_opdef::{AttrValue, Attrs};
use ferroflow_tensor::{DType, Tensor};
use std::collections::BTreeMap;

/// How a node is expanded, if it is one that TensorFlow made of others.
pub(super) fn expansion(node: &Node) -> Option<Expand> {
    Some(match node.op() {
        "_UnaryOpsComposition" => unary_ops,
        "_TensorToHashBucketFast" => hash_bucket,
        "_FusedBatchNormEx" => batch_norm,
        "_FusedBatchNormGradEx" => batch_norm_grad,
        "_FusedConv2D" | "_FusedConv3D" | "_FusedMatMul" if ends_in_mish(node) => product_and_mish,
        "_MklNativeConv2DWithBias" => biased_conv,
        "_MklNativeConv2DBackpropFilterWithBias" => biased_filter_gradient,
        "_MklNativePadWithConv2D" | "_MklNativePadWithFusedConv2D" => padded_conv,
        "_MklFusedBatchMatMulV2" => scaled_product,
        "_MklFusedInstanceNorm" => instance_norm,
        "_MklFusedMish" => |this, node| mish(this, node.inputs[0], node),
        "_MklLayerNorm" => layer_norm,
        "_MklSwish" => |this, node| {
            let sigmoid = this.of_type(&node, "sigmoid", "Sigmoid", &node.inputs)?;
            this.last(node.clone(), "Mul", &[node.inputs[0], sigmoid])
        },
        _ => return None,
    })
}

impl Expansion<'_> {
    /// Adds a node whose only attr is the `T` of `node`.
    fn of_type(&mut self, node: &Node, name: &str, op: &str, inputs: &[Output]) -> Result<Output> {
        let attrs = Attrs::default().with("T", AttrValue::Type(node.attrs.dtype("T")?));
        self.part(name, op, inputs, &node.controls, attrs)
    }

    /// Adds a node that converts `x`.
    pub(super) fn cast(&mut self, name: &str, x: Output, from: DType, to: DType) -> Result<Output> {
        let attrs = Attrs::default()
            .with("SrcT", AttrValue::Type(from))
            .with("DstT", AttrValue::Type(to));
        self.part(name, "Cast", &[x], &[], attrs)
    }

    fn constant(&mut self, name: &str, value: Tensor) -> Result<Output> {
        let attrs = Attrs::default()
            .with("dtype", AttrValue::Type(value.dtype()))
            .with("value", AttrValue::Tensor(value.into()));
        self.part(name, "Const", &[], &[], attrs)
    }

    /// `node` as one of an op that has its `T` and nothing else.
    fn last(&self, mut node: Node, op: &str, inputs: &[Output]) -> Result<Node> {
        node.inputs = inputs.into();
        keep_attrs(&mut node.attrs, &["T"]);
        self.ctx.become_op(node, op)
    }
}

/// The ops that TensorFlow composes.
const UNARY: &[&str] = &[
    "Abs",
    "Acos",
    "Acosh",
    "Asin",
    "Asinh",
    "Atan",
    "Atanh",
    "Ceil",
    "Cos",
    "Cosh",
    "Elu",
    "Exp",
    "Expm1",
    "Floor",
    "Inv",
    "Log",
    "Log1p",
    "Neg",
    "Reciprocal",
    "Relu",
    "Relu6",
    "Rint",
    "Round",
    "Rsqrt",
    "Selu",
    "Sigmoid",
    "Sin",
    "Sinh",
    "Sqrt",
    "Square",
    "Tan",
    "Tanh",
];

fn unary_ops(this: &mut Expansion, node: Node) -> Result<Node> {
    let names = node.attrs.strs("op_names")?;
    if let Some(unknown) = names.iter().find(|name| !UNARY.contains(name)) {
        return Err(invalid_argument!(
            "Do not have a compute function registered for op: {unknown}"
        ));
    }
    let Some((last, before)) = names.split_last() else {
        return Err(invalid_argument!(
            "Unary op composition must have at least one op"
        ));
    };
    let mut x = node.inputs[0];
    for op in before {
        x = this.of_type(&node, &op.to_lowercase(), op, &[x])?;
    }
    this.last(node.clone(), last, &[x])
}

fn hash_bucket(this: &mut Expansion, mut node: Node) -> Result<Node> {
    let text = this.of_type(&node, "text", "AsString", &node.inputs)?;
    node.inputs = smallvec::smallvec![text];
    keep_attrs(&mut node.attrs, &["num_buckets"]);
    this.ctx.become_op(node, "StringToHashBucketFast")
}

/// A batch normalization, a sum with a tensor of the same shape if there is one, and Relu if that is asked.
fn batch_norm(this: &mut Expansion, mut node: Node) -> Result<Node> {
    let is_relu = has_relu(&node)?;
    let side = node.inputs.get(5).copied();
    let mut attrs = node.attrs.clone();
    keep_attrs(
        &mut attrs,
        &[
            "T",
            "U",
            "epsilon",
            "exponential_avg_factor",
            "data_format",
            "is_training",
        ],
    );
    if side.is_none() && !is_relu {
        node.attrs = attrs;
        return this.ctx.become_op(node, "FusedBatchNormV3");
    }
    let inputs = &node.inputs[..5];
    let mut y = this.part(
        "batch_norm",
        "FusedBatchNormV3",
        inputs,
        &node.controls,
        attrs,
    )?;
    for slot in 1..6 {
        let from = Output::new(this.id, slot);
        this.patch.redirect(from, Output::new(y.node, slot));
    }
    match side {
        Some(side) if !is_relu => return this.last(node, "AddV2", &[y, side]),
        Some(side) => y = this.of_type(&node, "add", "AddV2", &[y, side])?,
        None => {}
    }
    this.last(node, "Relu", &[y])
}

/// Whether the Relu of a fused normalization is asked for.
fn has_relu(node: &Node) -> Result<bool> {
    match node.attrs.str("activation_mode")? {
        "Identity" => Ok(false),
        "Relu" => Ok(true),
        mode => Err(invalid_argument!("Unsupported activation mode: {mode}")),
    }
}

/// The gradient of [`batch_norm`]: that of Relu, which is that of the tensor that was added, and that of the normalization.
fn batch_norm_grad(this: &mut Expansion, mut node: Node) -> Result<Node> {
    let mut dy = node.inputs[0];
    if has_relu(&node)? {
        dy = this.of_type(&node, "relu", "ReluGrad", &[dy, node.inputs[7]])?;
    }
    if node.attrs.int("num_side_inputs")? == 1 {
        this.patch.redirect(Output::new(this.id, 5), dy);
    }
    node.inputs.truncate(6);
    node.inputs[0] = dy;
    let kept = ["T", "U", "epsilon", "data_format", "is_training"];
    keep_attrs(&mut node.attrs, &kept);
    this.ctx.become_op(node, "FusedBatchNormGradV3")
}

fn ends_in_mish(node: &Node) -> bool {
    let ops = node.attrs.strs("fused_ops");
    ops.is_ok_and(|ops| ops.last() == Some(&"Mish"))
}

fn product_and_mish(this: &mut Expansion, node: Node) -> Result<Node> {
    let mut ops = node.attrs.strs("fused_ops")?;
    ops.pop();
    let mut attrs = node.attrs.clone();
    attrs.set("fused_ops", AttrValue::strs(&ops));
    let y = this.part("product", node.op(), &node.inputs, &node.controls, attrs)?;
    mish(this, y, node)
}

/// `x * tanh(softplus(x))` (Misra 2019).
fn mish(this: &mut Expansion, x: Output, node: Node) -> Result<Node> {
    let softplus = this.of_type(&node, "softplus", "Softplus", &[x])?;
    let tanh = this.of_type(&node, "tanh", "Tanh", &[softplus])?;
    this.last(node, "Mul", &[x, tanh])
}

fn biased_conv(this: &mut Expansion, mut node: Node) -> Result<Node> {
    let dtype = node.attrs.dtype("T")?;
    node.attrs.set("fused_ops", AttrValue::strs(&["BiasAdd"]));
    fused_conv(this, node, dtype, 1)
}

/// `node`, whose inputs are an image, a filter and `n` arguments, as a fused convolution.
fn fused_conv(this: &Expansion, mut node: Node, dtype: DType, n: usize) -> Result<Node> {
    let types = vec![AttrValue::Type(dtype); n];
    node.attrs.set("TArgs", AttrValue::List(types));
    node.attrs.set("num_args", AttrValue::Int(n as i64));
    this.ctx.become_op(node, "_FusedConv2D")
}

fn biased_filter_gradient(this: &mut Expansion, node: Node) -> Result<Node> {
    let out_backprop = node.inputs[2];
    let attrs = Attrs::default()
        .with("T", AttrValue::Type(node.attrs.dtype("T")?))
        .with(
            "data_format",
            AttrValue::str(node.attrs.str("data_format")?),
        );
    let bias = this.part(
        "bias",
        "BiasAddGrad",
        &[out_backprop],
        &node.controls,
        attrs,
    )?;
    this.patch.redirect(Output::new(this.id, 1), bias);
    this.ctx.become_op(node, "Conv2DBackpropFilter")
}

fn padded_conv(this: &mut Expansion, mut node: Node) -> Result<Node> {
    let dtype = node.attrs.dtype("T")?;
    let paddings = node.inputs.pop();
    let paddings = paddings.ok_or_else(|| invalid_argument!("the node has no paddings"))?;
    let attrs = Attrs::default()
        .with("T", AttrValue::Type(dtype))
        .with("Tpaddings", AttrValue::Type(node.attrs.dtype("Tpaddings")?));
    let inputs = [node.inputs[0], paddings];
    node.inputs[0] = this.part("pad", "Pad", &inputs, &node.controls, attrs)?;
    node.attrs.remove("Tpaddings");
    match node.op() {
        "_MklNativePadWithConv2D" => this.ctx.become_op(node, "Conv2D"),
        _ => {
            let n_args = node.inputs.len() - 2;
            let node = fused_conv(this, node, dtype, n_args)?;
            match ends_in_mish(&node) {
                true => product_and_mish(this, node),
                false => Ok(node),
            }
        }
    }
}

/// A product times the first argument plus the second, if any.
fn scaled_product(this: &mut Expansion, node: Node) -> Result<Node> {
    let ops = node.attrs.strs("fused_ops")?;
    let has_sum = match ops[..] {
        ["Mul"] => false,
        ["Mul", "Add"] => true,
        _ => return Err(invalid_argument!("Fusion is not implemented: {ops:?}")),
    };
    if node.inputs.len() != 2 + ops.len() {
        return Err(invalid_argument!(
            "Fused BatchMatmul must have same number of additional inputs as number of fused operators"
        ));
    }
    let mut attrs = node.attrs.clone();
    keep_attrs(&mut attrs, &["T", "adj_x", "adj_y"]);
    let product = this.part(
        "product",
        "BatchMatMulV2",
        &node.inputs[..2],
        &node.controls,
        attrs,
    )?;
    let factors = [product, node.inputs[2]];
    if !has_sum {
        return this.last(node, "Mul", &factors);
    }
    let scaled = this.of_type(&node, "mul", "Mul", &factors)?;
    let side = node.inputs[3];
    this.last(node, "AddV2", &[scaled, side])
}

/// The engine's layer normalization, which is one of floats.
fn layer_norm(this: &mut Expansion, mut node: Node) -> Result<Node> {
    let dtype = node.attrs.dtype("T")?;
    if dtype == DType::Float {
        return this.ctx.become_op(node, "_LayerNorm");
    }
    for (i, name) in ["x", "scale", "offset"].into_iter().enumerate() {
        node.inputs[i] = this.cast(name, node.inputs[i], dtype, DType::Float)?;
    }
    let attrs = Attrs::default()
        .with("T", AttrValue::Type(DType::Float))
        .with("epsilon", AttrValue::Float(node.attrs.float("epsilon")?));
    let y = this.part("norm", "_LayerNorm", &node.inputs, &node.controls, attrs)?;
    from_float(this, node, y, dtype)
}

/// `node` as the conversion of its value.
fn from_float(this: &Expansion, mut node: Node, value: Output, to: DType) -> Result<Node> {
    node.inputs = smallvec::smallvec![value];
    keep_attrs(&mut node.attrs, &[]);
    node.attrs.set("SrcT", AttrValue::Type(DType::Float));
    node.attrs.set("DstT", AttrValue::Type(to));
    this.ctx.become_op(node, "Cast")
}

/// Normalization over the axes of an image of each example and channel (Ulyanov, Vedaldi & Lempitsky 2016), in
/// single precision, and an activation.
fn instance_norm(this: &mut Expansion, node: Node) -> Result<Node> {
    let dtype = node.attrs.dtype("T")?;
    let axes = node.attrs.ints("reduction_axes")?;
    let epsilon = node.attrs.float("epsilon")?;
    let mut floats = node.clone();
    floats.attrs.set("T", AttrValue::Type(DType::Float));
    let node_of = |this: &mut Expansion, name: &str, op: &str, inputs: &[Output]| {
        this.of_type(&floats, name, op, inputs)
    };
    let mut inputs = node.inputs.clone();
    if dtype != DType::Float {
        for (i, name) in ["x", "gamma", "beta"].into_iter().enumerate() {
            inputs[i] = this.cast(name, inputs[i], dtype, DType::Float)?;
        }
    }
    // One element a channel: behind the axes, or before them.
    let ones = if axes.contains(&1) { 0 } else { axes.len() };
    let mut per_channel = vec![-1];
    per_channel.resize(1 + ones, 1);
    let shape = this.constant("shape", Tensor::from_slice([1 + ones], &per_channel)?)?;
    let gamma = node_of(this, "scale", "Reshape", &[inputs[1], shape])?;
    let beta = node_of(this, "offset", "Reshape", &[inputs[2], shape])?;
    let axes: Vec<i32> = axes.iter().map(|&axis| axis as i32).collect();
    let axes = this.constant("axes", Tensor::from_slice([axes.len()], &axes)?)?;
    let mean_of = |this: &mut Expansion, name: &str, of: Output| {
        let attrs = Attrs::default()
            .with("T", AttrValue::Type(DType::Float))
            .with("keep_dims", AttrValue::Bool(true));
        this.part(name, "Mean", &[of, axes], &floats.controls, attrs)
    };
    let mean = mean_of(this, "mean", inputs[0])?;
    let centered = node_of(this, "centered", "Sub", &[inputs[0], mean])?;
    let squares = node_of(this, "squares", "Square", &[centered])?;
    let variance = mean_of(this, "variance", squares)?;
    let epsilon = this.constant("epsilon", Tensor::scalar(epsilon))?;
    let variance = node_of(this, "biased", "AddV2", &[variance, epsilon])?;
    let factor = node_of(this, "rsqrt", "Rsqrt", &[variance])?;
    let factor = node_of(this, "factor", "Mul", &[factor, gamma])?;
    let scaled = node_of(this, "mul", "Mul", &[centered, factor])?;
    let (op, alpha) = match node.attrs.strs("fused_ops")?[..] {
        [] => ("Identity", None),
        ["Relu"] => ("Relu", None),
        ["LeakyRelu"] => ("LeakyRelu", Some(node.attrs.float("leakyrelu_alpha")?)),
        ref ops => return Err(invalid_argument!("Fusion is not implemented: {ops:?}")),
    };
    let y = node_of(this, "add", "AddV2", &[scaled, beta])?;
    let mut attrs = Attrs::default().with("T", AttrValue::Type(DType::Float));
    if let Some(alpha) = alpha {
        attrs.set("alpha", AttrValue::Float(alpha));
    }
    let y = this.part("activation", op, &[y], &floats.controls, attrs)?;
    match dtype {
        DType::Float => this.last(node, "Identity", &[y]),
        _ => from_float(this, node, y, dtype),
    }
}

/// Makes ParallelConcat nodes of the buffers and the updates, each of a row, into which TensorFlow splits them: a
/// buffer that several nodes write is not a value here.
pub(super) fn join_parallel_concats(graph: &Graph, patch: &mut Patch, ctx: &PassCtx) -> Result<()> {
    let mut updates: BTreeMap<NodeId, Vec<NodeId>> = BTreeMap::new();
    for (id, node) in graph.iter() {
        if node.op() == "_ParallelConcatUpdate" {
            updates.entry(node.inputs[0].node).or_default().push(id);
        }
    }
    for (start, mut rows) in updates {
        let node = graph.node(start);
        let at = |e: ferroflow_base::Status| e.at_node(&node.name, node.op());
        rows.sort_by_key(|id| graph.node(*id).attrs.int("loc").unwrap_or(-1));
        let joined = joined(graph, start, &rows, ctx).map_err(at)?;
        *patch.edit(graph, start) = joined;
        for row in rows {
            patch.redirect(Output::new(row, 0), Output::new(start, 0));
            patch.redirect_control(row, Some(start));
            patch.remove(row);
        }
    }
    Ok(())
}

fn joined(graph: &Graph, start: NodeId, rows: &[NodeId], ctx: &PassCtx) -> Result<Node> {
    let mut node = graph.node(start).clone();
    if node.op() != "_ParallelConcatStart" {
        return Err(invalid_argument!(
            "the node is updated by _ParallelConcatUpdate but is not a _ParallelConcatStart"
        ));
    }
    let locs = rows.iter().map(|id| graph.node(*id).attrs.int("loc"));
    let locs: Vec<i64> = locs.collect::<Result<_>>()?;
    if locs.iter().enumerate().any(|(i, &loc)| loc != i as i64) {
        return Err(invalid_argument!(
            "the rows {locs:?} are updated, not each row once"
        ));
    }
    node.inputs = rows.iter().map(|id| graph.node(*id).inputs[1]).collect();
    for control in rows.iter().flat_map(|id| &graph.node(*id).controls) {
        if !node.controls.contains(control) {
            node.controls.push(*control);
        }
    }
    let dtype = node.attrs.dtype("dtype")?;
    keep_attrs(&mut node.attrs, &["shape"]);
    node.attrs.set("T", AttrValue::Type(dtype));
    node.attrs.set("N", AttrValue::Int(rows.len() as i64));
    ctx.become_op(node, "ParallelConcat")
}
