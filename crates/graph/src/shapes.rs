//! Shape inference over a whole graph.

use crate::shape_values::ShapeValues;
use crate::{Graph, NodeId, Output, topological_order};
use ferroflow_base::Result;
use ferroflow_opdef::{NodeClass, Registry, ShapeCtx};
use ferroflow_tensor::{DType, PartialShape, Tensor};

/// Constants of at most this many elements are shown to shape functions as values.
const MAX_CONSTANT: usize = 1024;

/// The inferred shape of every output.
#[derive(Clone, Default)]
pub struct ShapeMap {
    shapes: Vec<Vec<PartialShape>>,
}

impl ShapeMap {
    /// The shape of `output`; unknown when nothing was inferred.
    pub fn get(&self, output: Output) -> PartialShape {
        let of_node = self.shapes.get(output.node.index());
        of_node
            .and_then(|s| s.get(output.slot as usize))
            .cloned()
            .unwrap_or_default()
    }

    /// The shapes of all outputs of `node`.
    pub fn of(&self, node: NodeId) -> &[PartialShape] {
        self.shapes.get(node.index()).map_or(&[], |s| s)
    }
}

/// Shape inference that visits a graph node by node, each after the nodes that it reads.
#[derive(Clone, Default)]
pub(crate) struct ShapeRefiner {
    values: ShapeValues,
    map: ShapeMap,
}

impl ShapeRefiner {
    /// The shapes inferred so far.
    pub(crate) fn shapes(&self) -> &ShapeMap {
        &self.map
    }

    /// Replaces the shape of an output.
    pub(crate) fn set(&mut self, output: Output, shape: PartialShape) {
        let of_node = self.map.shapes.get_mut(output.node.index());
        if let Some(old) = of_node.and_then(|shapes| shapes.get_mut(output.slot as usize)) {
            *old = shape;
        }
    }

    /// Infers the shapes of a node's outputs; those of an op without shape function are unknown.
    pub(crate) fn visit(&mut self, graph: &Graph, id: NodeId, registry: &Registry) -> Result<()> {
        let node = graph.node(id);
        let n_outputs = node.outputs.len();
        let shapes = &mut self.map.shapes;
        shapes.resize_with(shapes.len().max(id.index() + 1), Vec::new);
        let Some(op) = registry.op(node.op()) else {
            shapes[id.index()] = vec![PartialShape::unknown(); n_outputs];
            return Ok(());
        };
        let inputs: Vec<PartialShape> = node.inputs.iter().map(|i| self.map.get(*i)).collect();
        let dtypes: Vec<_> = node
            .inputs
            .iter()
            .map(|i| graph.node(i.node).outputs[i.slot as usize])
            .collect();
        let constants: Vec<Option<Tensor>> = node
            .inputs
            .iter()
            .map(|i| small_constant(graph, *i))
            .collect();
        let held: Vec<_> = node
            .inputs
            .iter()
            .map(|i| self.values.vector(graph, *i))
            .collect();
        let handles: Vec<_> = match dtypes.contains(&DType::Resource) {
            true => node.inputs.iter().map(|i| variable(graph, *i)).collect(),
            false => Vec::new(),
        };
        let mut ctx = ShapeCtx::new(&node.attrs, &inputs, &dtypes, &constants, n_outputs)
            .with_shape_values(&held)
            .with_handles(&handles);
        op.infer_shapes(&mut ctx)
            .map_err(|e| e.at_node(&node.name, node.op()))?;
        self.map.shapes[id.index()] = ctx.into_outputs();
        self.values.note(graph, Output::new(id, 0), &self.map);
        Ok(())
    }
}

/// Infers the shapes of all outputs, in one pass over a topological order.
///
/// A contradiction is an error that names the node. Nodes on loops see unknown shapes on their
/// back edges.
///
/// # Errors
/// INVALID_ARGUMENT for the first node whose input shapes contradict each other.
pub fn infer_shapes(graph: &Graph, registry: &Registry) -> Result<ShapeMap> {
    let mut refiner = ShapeRefiner::default();
    refiner.map.shapes.resize_with(graph.id_bound(), Vec::new);
    for id in topological_order(graph)? {
        refiner.visit(graph, id, registry)?;
    }
    Ok(refiner.map)
}

/// The shape of the variable that `output` is a handle of.
fn variable(graph: &Graph, mut output: Output) -> Option<PartialShape> {
    loop {
        let node = graph.get(output.node)?;
        match node.class() {
            NodeClass::VarHandle => return node.attrs.shape("shape").ok().cloned(),
            NodeClass::Identity | NodeClass::Enter => {
                output = *node.inputs.get(output.slot as usize)?;
            }
            _ => return None,
        }
    }
}

fn small_constant(graph: &Graph, output: Output) -> Option<Tensor> {
    let node = graph.get(output.node)?;
    if node.class() != NodeClass::Const {
        return None;
    }
    let value = node.attrs.tensor("value").ok()?;
    if value.shape().num_elements() > MAX_CONSTANT {
        return None;
    }
    value.get().ok()
}
