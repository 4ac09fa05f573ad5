//! Constant folding: nodes whose inputs are constants are run now; Shape, Size and Rank of tensors
//! with known shapes become constants.

use crate::evaluate::evaluate;
use crate::pass::constant_node;
use crate::view::{has_dead_outputs, moves_values};
use crate::{Pass, PassCtx};
use ferroflow_base::Result;
use ferroflow_graph::{Graph, Node, NodeClass, NodeId, Output, Patch, ShapeMap, topological_order};
use ferroflow_tensor::{DType, LazyTensor, Tensor};
use rustc_hash::FxHashMap;
use smallvec::SmallVec;

pub(crate) const PASS: Pass = Pass {
    name: "constant_folding",
    about: "evaluates nodes whose inputs are constants, and Shape, Size, Rank of known shapes",
    run,
};

/// Folding must not grow a model: a result larger than this that is also larger than its inputs
/// (Fill, Tile) stays a node.
const MAX_GROWN_BYTES: usize = 64 << 10;

fn run(graph: &mut Graph, ctx: &PassCtx) -> Result<()> {
    // Inside control flow a statically known shape must not become a live constant, because the value may
    // be dead.
    let may_be_dead = moves_values(graph);
    let shapes = ctx.shapes(graph)?;
    let mut values: FxHashMap<Output, Tensor> = FxHashMap::default();
    let mut waits: FxHashMap<NodeId, SmallVec<[NodeId; 2]>> = FxHashMap::default();
    let mut patch = Patch::new();
    for id in topological_order(graph)? {
        let node = graph.node(id);
        let is_source = matches!(node.class(), NodeClass::Const | NodeClass::Placeholder);
        let is_pinned = !node.controls.is_empty();
        if is_source || node.def.flags.stateful || is_pinned || node.outputs.is_empty() {
            continue;
        }
        let node = node.clone();
        if !may_be_dead && let Some(value) = reshape_constant(graph, id, &shapes) {
            let name = graph.unique_name(&format!("{}/folded_0", node.name));
            let to = patch.add(graph, constant_node(ctx, name, value)?)?;
            patch.redirect(Output::new(id, 0), Output::new(to, 0));
            patch.redirect_control(id, None);
            continue;
        }
        let asked = node.inputs.first().map(|i| i.node);
        let mut of_shape = materialize(&node, &shapes);
        if may_be_dead && asked.is_some_and(|n| has_dead_outputs(graph.node(n))) {
            of_shape = None;
        }
        let waits_for_asked = may_be_dead && of_shape.is_some();
        let folded = match of_shape {
            Some(value) => vec![value],
            None => match fold(graph, ctx, &node, &values) {
                Some(outputs) => outputs,
                None => continue,
            },
        };
        // A constant that waits for something may be dead; what is made of it then is, too.
        let mut controls = node.controls.clone();
        controls.extend(asked.filter(|_| waits_for_asked));
        for input in &node.inputs {
            let source = waits.get(&input.node);
            let of_const = || {
                let source = graph.node(input.node);
                (source.class() == NodeClass::Const).then_some(&source.controls)
            };
            for c in source.or_else(of_const).into_iter().flatten() {
                if !controls.contains(c) {
                    controls.push(*c);
                }
            }
        }
        let mut waiting = None;
        for (slot, value) in folded.into_iter().enumerate() {
            let from = Output::new(id, slot);
            let name = graph.unique_name(&format!("{}/folded_{slot}", node.name));
            let mut constant = constant_node(ctx, name, value.clone())?;
            constant.controls = controls.clone();
            let to = patch.add(graph, constant)?;
            patch.redirect(from, Output::new(to, 0));
            values.insert(from, value);
            waiting = (!controls.is_empty()).then_some(to);
        }
        // Readers that only wait for it wait for nothing: constants are always there.
        patch.redirect_control(id, waiting);
        waits.insert(id, controls);
    }
    patch.apply(graph);
    super::relax_control::run(graph, ctx)
}

/// A reshaped constant: large weights are not loaded for that.
fn reshape_constant(graph: &Graph, id: NodeId, shapes: &ShapeMap) -> Option<LazyTensor> {
    let node = graph.node(id);
    if !matches!(node.op(), "Reshape" | "ExpandDims" | "Squeeze") {
        return None;
    }
    let input = node.inputs.first()?;
    let source = graph.get(input.node)?;
    if source.class() != NodeClass::Const {
        return None;
    }
    let shape = shapes.of(id).first()?.to_full()?;
    let value = source.attrs.tensor("value").ok()?;
    if value.byte_len() <= MAX_GROWN_BYTES {
        None
    } else {
        value.with_shape(shape).ok()
    }
}

/// The value of a node that returns a known shape.
fn materialize(node: &Node, shapes: &ShapeMap) -> Option<Tensor> {
    let shape = match node.op() {
        "Shape" | "Size" | "Rank" => shapes.get(*node.inputs.first()?),
        _ => return None,
    };
    let number = |n: usize| match node.outputs[0] {
        DType::Int64 => Some(Tensor::scalar(n as i64)),
        _ => i32::try_from(n).ok().map(Tensor::scalar),
    };
    match node.op() {
        "Rank" => number(shape.rank()?),
        "Size" => number(shape.num_elements()?),
        _ => {
            let full = shape.to_full()?;
            match node.outputs[0] {
                DType::Int64 => Tensor::vector(&full.to_i64()).ok(),
                _ => {
                    let dims: Option<Vec<i32>> =
                        full.iter().map(|&d| i32::try_from(d).ok()).collect();
                    Tensor::vector(&dims?).ok()
                }
            }
        }
    }
}

/// The outputs of a node with constant inputs; `None` when it has others, or when running it
/// fails: the error then belongs to the step.
fn fold(
    graph: &Graph,
    ctx: &PassCtx,
    node: &Node,
    values: &FxHashMap<Output, Tensor>,
) -> Option<Vec<Tensor>> {
    ctx.registry.op(node.op())?.kernel?;
    let is_constant = |i: &Output| graph.node(i.node).class() == NodeClass::Const;
    let is_known = |i: &Output| values.contains_key(i) || is_constant(i);
    if node.inputs.is_empty() || !node.inputs.iter().all(is_known) {
        return None;
    }
    let inputs: Option<Vec<Tensor>> = node
        .inputs
        .iter()
        .map(|i| match values.get(i) {
            Some(v) => Some(v.clone()),
            None => graph.node(i.node).attrs.tensor("value").ok()?.get().ok(),
        })
        .collect();
    let inputs = inputs?;
    let outputs = evaluate(node, &inputs, ctx.registry).ok()?;
    let n_in: usize = inputs.iter().map(Tensor::byte_len).sum();
    let n_out: usize = outputs.iter().map(Tensor::byte_len).sum();
    if n_out > MAX_GROWN_BYTES && n_out > n_in {
        return None;
    }
    if outputs
        .iter()
        .any(|o| matches!(o.dtype(), DType::Resource | DType::Variant))
    {
        return None;
    }
    Some(outputs)
}
