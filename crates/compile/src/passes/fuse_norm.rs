//! Fuses a tensor that is added and Relu into batch normalizations (TensorFlow's `_FusedBatchNormEx`,
//! `core/grappler/optimizers/remapper.cc`), and Relu's gradient into theirs; only devices have kernels of the two.

use crate::pass::FUSED_SUFFIX;
use crate::view::{View, added_to, same_shape};
use crate::{Pass, PassCtx};
use ferroflow_base::Result;
use ferroflow_graph::{Graph, Node, NodeId, Output, Patch};
use ferroflow_opdef::AttrValue;
use ferroflow_tensor::DType;
use rustc_hash::{FxHashMap, FxHashSet};

pub(crate) const NAME: &str = "fuse_norm";

pub(crate) const PASS: Pass = Pass {
    name: NAME,
    about: "fuses a sum, Relu and its gradient into batch normalizations of devices",
    run,
};

/// A normalization and what follows it.
struct Chain {
    norm: NodeId,
    /// What is added to its result.
    side: Option<Output>,
    /// The Relu of the sum.
    end: NodeId,
}

fn run(graph: &mut Graph, ctx: &PassCtx) -> Result<()> {
    let view = View::new(graph, ctx.shapes(graph)?);
    let mut taken = FxHashSet::default();
    let chains = view.graph.iter().filter_map(|(id, _)| chain(&view, id));
    // The sum of two normalizations is fused into one of them.
    let chains: Vec<Chain> = chains.filter(|c| taken.insert(c.end)).collect();
    let fused = |c: &Chain| forward(&view, ctx, c);
    let nodes: Vec<Node> = chains.iter().map(fused).collect::<Result<_>>()?;
    let relus = chains.iter().filter(|c| c.side.is_none());
    let relus: FxHashMap<NodeId, NodeId> = relus.map(|c| (c.end, c.norm)).collect();
    let gradients = view.graph.iter();
    let gradients: Vec<(NodeId, Node)> = gradients
        .filter_map(|(id, _)| {
            let node = gradient(&view, ctx, &relus, id).transpose()?;
            Some(node.map(|node| (id, node)))
        })
        .collect::<Result<_>>()?;
    let mut patch = Patch::new();
    for (chain, node) in chains.iter().zip(nodes) {
        let new = patch.add(graph, node)?;
        patch.redirect(Output::new(chain.end, 0), Output::new(new, 0));
        patch.redirect_control(chain.end, Some(new));
        for slot in 1..6 {
            patch.redirect(Output::new(chain.norm, slot), Output::new(new, slot));
        }
    }
    for (id, node) in gradients {
        let new = patch.add(graph, node)?;
        for slot in 0..5 {
            patch.redirect(Output::new(id, slot), Output::new(new, slot));
        }
        patch.redirect_control(id, Some(new));
    }
    patch.apply(graph);
    Ok(())
}

/// The one node that reads `output`; others may read other outputs of its node.
fn reader(view: &View, output: Output) -> Option<NodeId> {
    let all = view.consumers.of(output.node).iter();
    let mut readers = all.filter(|(_, slot)| slot.is_none_or(|slot| slot == output.slot));
    match (readers.next(), readers.next()) {
        (Some((by, Some(_))), None) => Some(*by),
        _ => None,
    }
}

/// What may be fused with `norm`.
fn chain(view: &View, norm: NodeId) -> Option<Chain> {
    let node = view.node(norm);
    let y = Output::new(norm, 0);
    let is_image = view.shape(y).rank() == Some(4);
    let is_last = node.attrs.str("data_format").is_ok_and(|f| f == "NHWC");
    let has_floats = node.attrs.dtype("U").is_ok_and(|u| u == DType::Float);
    let fits = is_image && is_last && has_floats && view.is_pure(norm);
    if node.op() != "FusedBatchNormV3" || !fits {
        return None;
    }
    let is_relu = |id: &NodeId| view.node(*id).op() == "Relu" && view.is_pure(*id);
    let next = reader(view, y)?;
    if is_relu(&next) {
        let (side, end) = (None, next);
        return Some(Chain { norm, side, end });
    }
    let side = added_to(y, view.node(next))?;
    let end = reader(view, Output::new(next, 0)).filter(is_relu)?;
    let fits = view.is_pure(next) && same_shape(&view.shape(side), &view.shape(y));
    let waits = depends_on(view, side.node, norm);
    let side = Some(side);
    (fits && !waits).then_some(Chain { norm, side, end })
}

/// Whether `id` waits for `node`, such as for its statistics: then it cannot be its input.
fn depends_on(view: &View, id: NodeId, node: NodeId) -> bool {
    let mut todo = vec![id];
    let mut seen = FxHashSet::from_iter([id]);
    while let Some(at) = todo.pop() {
        if at == node {
            return true;
        }
        let before = view.node(at).predecessors();
        todo.extend(before.filter(|p| seen.insert(*p)));
    }
    false
}

fn forward(view: &View, ctx: &PassCtx, chain: &Chain) -> Result<Node> {
    let mut node = view.node(chain.norm).clone();
    let name = format!("{}{FUSED_SUFFIX}", view.node(chain.end).name);
    node.name = view.graph.unique_name(&name);
    node.def = ctx.def("_FusedBatchNormEx")?;
    let n_sides = chain.side.iter().count() as i64;
    node.attrs.set("num_side_inputs", AttrValue::Int(n_sides));
    node.attrs.set("activation_mode", AttrValue::str("Relu"));
    node.inputs.extend(chain.side);
    Ok(node)
}

/// The gradient `id` with that of the Relu behind its normalization, if only it reads that one.
fn gradient(
    view: &View,
    ctx: &PassCtx,
    relus: &FxHashMap<NodeId, NodeId>,
    id: NodeId,
) -> Result<Option<Node>> {
    let node = view.node(id);
    if node.op() != "FusedBatchNormGradV3" || !view.is_pure(id) {
        return Ok(None);
    }
    let relu_grad = node.inputs[0].node;
    let inner = view.node(relu_grad);
    let is_own = inner.op() == "ReluGrad"
        && view.is_pure(relu_grad)
        && reader(view, node.inputs[0]) == Some(id);
    let norm = inner.inputs.get(1).and_then(|y| relus.get(&y.node));
    let Some(&norm) = norm.filter(|_| is_own) else {
        return Ok(None);
    };
    let statistics = [3, 4].map(|slot| Output::new(norm, slot));
    let norm = view.node(norm);
    let same_attr = |name: &&str| match (node.attrs.get(name), norm.attrs.get(name)) {
        (Some(a), Some(b)) => a.same_value(b),
        _ => false,
    };
    let is_same = node.inputs[1..3] == norm.inputs[..2]
        && node.inputs[3..5] == statistics
        && ["T", "epsilon", "data_format", "is_training"]
            .iter()
            .all(same_attr);
    if !is_same {
        return Ok(None);
    }
    let mut new = node.clone();
    let name = format!("{}{FUSED_SUFFIX}", node.name);
    new.name = view.graph.unique_name(&name);
    new.def = ctx.def("_ReluBatchNormGrad")?;
    new.inputs[0] = inner.inputs[0];
    new.inputs.extend([norm.inputs[2], inner.inputs[1]]);
    Ok(Some(new))
}
