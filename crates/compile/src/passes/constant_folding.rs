//! Constant folding: nodes whose inputs are constants are run now; Shape, Size and Rank of tensors
//! with known shapes become constants.

use crate::evaluate::evaluate;
use crate::pass::constant_node;
use crate::view::{has_dead_outputs, moves_values};
use crate::{Pass, PassCtx};
use ferroflow_base::Result;
use ferroflow_graph::{Graph, Node, NodeClass, NodeId, Output, Patch, ShapeMap, topological_order};
use ferroflow_tensor::{DType, LazyTensor, Shape, Tensor};
use rustc_hash::FxHashMap;
use smallvec::SmallVec;

pub(crate) const PASS: Pass = Pass {
    name: "constant_folding",
    about: "evaluates nodes whose inputs are constants, and Shape, ShapeN, Size, Rank of known shapes",
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
        let mut of_shape = materialize(&node, &shapes, may_be_dead);
        if may_be_dead && asked.is_some_and(|n| has_dead_outputs(graph.node(n))) {
            of_shape = None;
        }
        let waits_for_asked = may_be_dead && of_shape.is_some();
        let folded = match of_shape {
            Some(values) => values,
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

/// The outputs of a node that returns known shapes.
fn materialize(node: &Node, shapes: &ShapeMap, may_be_dead: bool) -> Option<Vec<Tensor>> {
    let shape = match node.op() {
        "Shape" | "Size" | "Rank" => shapes.get(*node.inputs.first()?),
        // Constants could not wait for each input alone.
        "ShapeN" if !may_be_dead => {
            let each = node.inputs.iter();
            let dims = each.map(|i| dims_tensor(&shapes.get(*i).to_full()?, node.outputs[0]));
            return dims.collect();
        }
        _ => return None,
    };
    let number = |n: usize| match node.outputs[0] {
        DType::Int64 => Some(Tensor::scalar(n as i64)),
        _ => i32::try_from(n).ok().map(Tensor::scalar),
    };
    let value = match node.op() {
        "Rank" => number(shape.rank()?),
        "Size" => number(shape.num_elements()?),
        _ => dims_tensor(&shape.to_full()?, node.outputs[0]),
    };
    Some(vec![value?])
}

/// The dimensions of a shape in one of the dtypes that they may have.
fn dims_tensor(shape: &Shape, dtype: DType) -> Option<Tensor> {
    if dtype == DType::Int64 {
        return Tensor::vector(&shape.to_i64()).ok();
    }
    let dims = shape.iter().map(|&d| i32::try_from(d).ok());
    Tensor::vector(&dims.collect::<Option<Vec<i32>>>()?).ok()
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
