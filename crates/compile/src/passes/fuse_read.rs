//! Fuses bias and activation into products whose weights are read in each step, as they are when
//! a network learns: TensorFlow's `_FusedConv2D` and `_FusedMatMul`. A Reshape between product and bias, as
//! `tf.tensordot` leaves it, follows them.

use crate::pass::FUSED_SUFFIX;
use crate::view::{View, added_to};
use crate::{Pass, PassCtx};
use ferroflow_base::Result;
use ferroflow_graph::{Graph, Node, NodeId, Output, Patch};
use ferroflow_opdef::AttrValue;
use ferroflow_tensor::DType;
use smallvec::smallvec;

pub(crate) const PASS: Pass = Pass {
    name: "fuse_read",
    about: "fuses bias and activation into products whose weights are not constants",
    run,
};

/// A product, its bias, and the last node that is fused into it.
struct Chain {
    root: NodeId,
    /// Between product and bias; the last dimension is that of the product.
    reshape: Option<NodeId>,
    bias: Output,
    activation: Option<NodeId>,
    end: NodeId,
}

fn run(graph: &mut Graph, ctx: &PassCtx) -> Result<()> {
    let view = View::new(graph, ctx.shapes(graph)?);
    let mut plans = Vec::new();
    for chain in graph.iter().filter_map(|(id, _)| chain(&view, id)) {
        plans.push((fused(&view, ctx, &chain)?, chain.end));
    }
    let mut patch = Patch::new();
    for ((node, reshape), end) in plans {
        let Some(mut reshape) = reshape else {
            patch.substitute(graph, end, node)?;
            continue;
        };
        reshape.inputs[0] = Output::new(patch.add(graph, node)?, 0);
        patch.substitute(graph, end, reshape)?;
    }
    patch.apply(graph);
    Ok(())
}

/// The chain that can be fused into the product `root`.
fn chain(view: &View, root: NodeId) -> Option<Chain> {
    let node = view.node(root);
    let fits = match node.op() {
        "Conv2D" => node.attrs.str("data_format").ok()? == "NHWC",
        "MatMul" => true,
        _ => false,
    };
    if !fits || node.outputs[..] != [DType::Float] || !view.is_pure(root) {
        return None;
    }
    let product = Output::new(root, 0);
    let reader = view.only_reader(product)?;
    let reshape = Some(reader).filter(|id| view.node(*id).op() == "Reshape" && view.is_pure(*id));
    let added = reshape.map_or(product, |id| Output::new(id, 0));
    let adding = reshape.map_or(Some(reader), |_| view.only_reader(added))?;
    let sum = view.node(adding);
    let bias = bias_of(sum, added)?;
    let is_beside = |other: &Node| other.device == node.device;
    if !view.is_pure(adding) || !is_beside(sum) {
        return None;
    }
    // A bias that does not fit is the error of its op, so its shape must be known.
    let length = match view.shape(bias).dims()? {
        [length] => (*length)?,
        _ => return None,
    };
    if [product, added]
        .iter()
        .any(|o| view.shape(*o).dim(-1) != Some(length))
    {
        return None;
    }
    let activation = view.only_reader(Output::new(adding, 0)).filter(|id| {
        let next = view.node(*id);
        let known = ["Relu", "Relu6", "Elu", "Tanh", "Sigmoid", "LeakyRelu"];
        known.contains(&next.op()) && view.is_pure(*id) && is_beside(next)
    });
    Some(Chain {
        root,
        reshape,
        bias,
        activation,
        end: activation.unwrap_or(adding),
    })
}

/// What a node adds to all rows of `added`.
fn bias_of(sum: &Node, added: Output) -> Option<Output> {
    match (sum.op(), &sum.inputs[..]) {
        ("BiasAdd", [x, bias]) if sum.attrs.str("data_format").ok()? == "NHWC" => {
            (*x == added).then_some(*bias)
        }
        _ => added_to(added, sum),
    }
}

/// The product with all that is fused into it, and what reshapes it, if it is reshaped.
fn fused(view: &View, ctx: &PassCtx, chain: &Chain) -> Result<(Node, Option<Node>)> {
    let root = view.node(chain.root);
    let mut node = root.clone();
    let mut ops = vec!["BiasAdd"];
    if let Some(activation) = chain.activation.map(|id| view.node(id)) {
        ops.push(activation.op());
        if let Ok(alpha) = activation.attrs.float("alpha") {
            node.attrs.set("leakyrelu_alpha", AttrValue::Float(alpha));
        }
    }
    let reshape = chain.reshape.map(|id| view.node(id).clone());
    let named = reshape.as_ref().map_or(view.node(chain.end), |_| root);
    let name = format!("{}{FUSED_SUFFIX}", named.name);
    node.name = view.graph.unique_name(&name);
    node.attrs.set("fused_ops", AttrValue::strs(&ops));
    node.attrs.set("num_args", AttrValue::Int(1));
    node.def = match root.op() {
        "Conv2D" => {
            let types = vec![AttrValue::Type(DType::Float)];
            node.attrs.set("TArgs", AttrValue::List(types));
            ctx.def("_FusedConv2D")?
        }
        _ => ctx.def("_FusedMatMul")?,
    };
    node.inputs = smallvec![root.inputs[0], root.inputs[1], chain.bias];
    node.def.complete_attrs(&mut node.attrs)?;
    let reshape = reshape.map(|reshape| Node {
        name: view
            .graph
            .unique_name(&format!("{}{FUSED_SUFFIX}", reshape.name)),
        ..reshape
    });
    Ok((node, reshape))
}
