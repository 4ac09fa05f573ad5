//! Constant folding: nodes whose inputs are constants are run now; Shape, Size and Rank of tensors
//! with known shapes become constants.

use crate::evaluate::evaluate;
use crate::pass::constant_node;
use crate::view::{has_dead_outputs, moves_values};
use crate::{Pass, PassCtx};
use ferroflow_base::Result;
use ferroflow_graph::{
    Consumers, Graph, Node, NodeClass, NodeId, Output, Patch, ShapeMap, topological_order,
};
use ferroflow_tensor::{DType, LazyTensor, PartialShape, Shape, Tensor};
use rustc_hash::FxHashMap;
use smallvec::SmallVec;
use std::collections::hash_map::Entry;

pub(crate) const PASS: Pass = Pass {
    name: "constant_folding",
    about: "evaluates nodes whose inputs are constants, and Shape, ShapeN, Size, Rank of known shapes",
    run,
};

/// A result larger than this that is also larger than the node's inputs has grown.
const GROWN_BYTES: usize = 64 << 10;
/// One that has grown to more than this stays a node, as in TensorFlow's sessions
/// (`core/common_runtime/constant_folding.h`).
const MAX_GROWN_BYTES: usize = 10 << 20;
/// Most bytes of all results that have grown, and of what is computed of them, at a time.
const MAX_TOTAL_BYTES: usize = 64 << 20;

/// The values of folded nodes that others still read.
#[derive(Default)]
struct Values {
    known: FxHashMap<Output, Known>,
    /// The bytes of those that have grown.
    grown: usize,
}

struct Known {
    value: Tensor,
    /// The edges to nodes that are not folded, or not yet.
    n_readers: usize,
    /// Whether it is large for having grown, or computed of such a value.
    has_grown: bool,
}

impl Known {
    /// Returns what it counts of the bytes that have grown.
    fn grown(&self) -> usize {
        match self.has_grown {
            true => self.value.byte_len(),
            false => 0,
        }
    }
}

/// A constant that takes the place of an output if a node that is not folded reads it.
struct Replacement {
    from: Output,
    name: String,
    /// What it waits for.
    controls: SmallVec<[NodeId; 2]>,
}

impl Values {
    fn get(&self, output: Output) -> Option<&Tensor> {
        self.known.get(&output).map(|known| &known.value)
    }

    fn insert(&mut self, output: Output, known: Known) {
        if known.n_readers > 0 {
            self.grown += known.grown();
            self.known.insert(output, known);
        }
    }

    /// Drops a value when its last reader is folded: chains of large ones must not need memory for each.
    fn release(&mut self, output: Output) {
        if let Entry::Occupied(mut known) = self.known.entry(output) {
            known.get_mut().n_readers -= 1;
            if known.get().n_readers == 0 {
                self.grown -= known.remove().grown();
            }
        }
    }
}

/// The outputs of a node that was run.
struct Folded {
    outputs: Vec<Tensor>,
    has_grown: bool,
    /// Whether constants take their place. Otherwise only nodes that read them are folded.
    is_replaced: bool,
}

fn run(graph: &mut Graph, ctx: &PassCtx) -> Result<()> {
    // Inside control flow a statically known shape must not become a live constant, because the value may
    // be dead.
    let may_be_dead = moves_values(graph);
    let shapes = ctx.shapes(graph)?;
    let mut values = Values::default();
    let mut waits: FxHashMap<NodeId, SmallVec<[NodeId; 2]>> = FxHashMap::default();
    let mut patch = Patch::new();
    let consumers = Consumers::new(graph);
    let mut replacements = Vec::new();
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
            Some(outputs) => Some(Folded {
                outputs,
                has_grown: false,
                is_replaced: true,
            }),
            None => fold(graph, ctx, id, &shapes, &values),
        };
        let Some(folded) = folded else { continue };
        let mut controls = controls_of(graph, &node, &waits);
        controls.extend(asked.filter(|id| waits_for_asked && !controls.contains(id)));
        node.inputs.iter().for_each(|input| values.release(*input));
        for (slot, value) in folded.outputs.into_iter().enumerate() {
            let from = Output::new(id, slot);
            let readers = consumers.of(id).iter();
            let readers = readers.filter(|(_, of)| *of == Some(slot as u32));
            // Nodes that wait for a constant that waits need it, too.
            let n_readers = readers.count() + usize::from(!controls.is_empty());
            let known = Known {
                value,
                n_readers,
                has_grown: folded.has_grown,
            };
            values.insert(from, known);
            if folded.is_replaced {
                replacements.push(Replacement {
                    from,
                    name: format!("{}/folded_{slot}", node.name),
                    controls: controls.clone(),
                });
            }
        }
        if folded.is_replaced {
            // Readers that only wait for it wait for nothing: constants are always there.
            patch.redirect_control(id, None);
        }
        waits.insert(id, controls);
    }
    replace(graph, ctx, &mut patch, replacements, &mut values)?;
    patch.apply(graph);
    super::relax_control::run(graph, ctx)
}

/// What a constant in the place of a node waits for: a constant that waits for something may be dead; what is made of it
/// then is, too.
fn controls_of(
    graph: &Graph,
    node: &Node,
    waits: &FxHashMap<NodeId, SmallVec<[NodeId; 2]>>,
) -> SmallVec<[NodeId; 2]> {
    let mut controls = node.controls.clone();
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
    controls
}

/// Puts constants in the place of outputs that nodes which are not folded read.
fn replace(
    graph: &mut Graph,
    ctx: &PassCtx,
    patch: &mut Patch,
    replacements: Vec<Replacement>,
    values: &mut Values,
) -> Result<()> {
    for replacement in replacements {
        let from = replacement.from;
        let Some(Known { value, .. }) = values.known.remove(&from) else {
            continue;
        };
        let mut constant = constant_node(ctx, graph.unique_name(&replacement.name), value)?;
        constant.controls = replacement.controls;
        let waits = !constant.controls.is_empty();
        let to = patch.add(graph, constant)?;
        patch.redirect(from, Output::new(to, 0));
        if waits {
            patch.redirect_control(from.node, Some(to));
        }
    }
    Ok(())
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
    if value.byte_len() <= GROWN_BYTES {
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

/// Whether a node fills its outputs by a rule that is as fast as reading a constant of their size.
fn is_generated(op: &str) -> bool {
    matches!(
        op,
        "Fill" | "Tile" | "BroadcastTo" | "Range" | "LinSpace" | "OneHot"
    )
}

/// The bytes of a node's outputs, as far as they are known before it runs.
fn known_bytes(node: &Node, shapes: &[PartialShape]) -> usize {
    let sizes = shapes.iter().zip(&node.outputs).map(|(shape, dtype)| {
        let elements = shape.num_elements().unwrap_or(0);
        elements.saturating_mul(dtype.size())
    });
    sizes.fold(0, usize::saturating_add)
}

/// The outputs of a node with constant inputs; `None` when it has others, or when running it
/// fails: the error then belongs to the step.
fn fold(
    graph: &Graph,
    ctx: &PassCtx,
    id: NodeId,
    shapes: &ShapeMap,
    values: &Values,
) -> Option<Folded> {
    let node = graph.node(id);
    ctx.registry.op(node.op())?.kernel?;
    let is_constant = |i: &Output| graph.node(i.node).class() == NodeClass::Const;
    let is_known = |i: &Output| values.get(*i).is_some() || is_constant(i);
    if node.inputs.is_empty() || !node.inputs.iter().all(is_known) {
        return None;
    }
    let inputs: Option<Vec<Tensor>> = node
        .inputs
        .iter()
        .map(|i| match values.get(*i) {
            Some(v) => Some(v.clone()),
            None => graph.node(i.node).attrs.tensor("value").ok()?.get().ok(),
        })
        .collect();
    let inputs = inputs?;
    let n_in: usize = inputs.iter().map(Tensor::byte_len).sum();
    let is_grown = |i: &Output| values.known.get(i).is_some_and(|known| known.has_grown);
    let is_derived = node.inputs.iter().any(is_grown);
    let room = MAX_GROWN_BYTES.min(MAX_TOTAL_BYTES - values.grown);
    let most = room.max(GROWN_BYTES).max(if is_derived { 0 } else { n_in });
    if known_bytes(node, shapes.of(id)) > most {
        return None;
    }
    let outputs = evaluate(node, &inputs, ctx.registry).ok()?;
    let n_out: usize = outputs.iter().map(Tensor::byte_len).sum();
    if n_out > most {
        return None;
    }
    if outputs
        .iter()
        .any(|o| matches!(o.dtype(), DType::Resource | DType::Variant))
    {
        return None;
    }
    let grows = n_out > GROWN_BYTES && n_out > n_in;
    Some(Folded {
        outputs,
        has_grown: grows || is_derived && n_out > GROWN_BYTES,
        is_replaced: !(grows && is_generated(node.op())),
    })
}
