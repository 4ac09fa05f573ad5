//! Shape inference over a whole graph.

use crate::shape_values::ShapeValues;
use crate::{Graph, Node, NodeId, Output, topological_order};
use ferroflow_base::Result;
use ferroflow_opdef::{AttrValue, NodeClass, Registry, ShapeCtx};
use ferroflow_tensor::{DType, PartialShape, Tensor};
use rustc_hash::FxHashMap;

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
    /// What handles refer to, where the client has said it.
    handles: FxHashMap<Output, Vec<HandleData>>,
}

/// What a resource handle refers to: a variable's value, or a component of an element of a dataset.
#[derive(Clone, Debug, PartialEq)]
pub struct HandleData {
    /// Its shape.
    pub shape: PartialShape,
    /// Its dtype, if known.
    pub dtype: Option<DType>,
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

    /// Replaces what is known of a handle.
    pub(crate) fn set_handle(&mut self, output: Output, data: Vec<HandleData>) {
        self.handles.insert(output, data);
    }

    /// What a handle refers to: as the client said, or what it was made for.
    pub(crate) fn handle(&self, graph: &Graph, output: Output) -> Option<Vec<HandleData>> {
        traced(graph, output, |output| self.handles.get(&output).cloned())
    }

    /// The shape of the variable that `output` is a handle of.
    fn variable(&self, graph: &Graph, output: Output) -> Option<PartialShape> {
        let data = self.handle(graph, output)?;
        data.into_iter().next().map(|first| first.shape)
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
            true => node
                .inputs
                .iter()
                .map(|i| self.variable(graph, *i))
                .collect(),
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

/// The attrs of a function's argument that is a handle (TensorFlow: `_Arg` in `core/ops/function_ops.cc`).
const HANDLE_DTYPES: &str = "_handle_dtypes";
const HANDLE_SHAPES: &str = "_handle_shapes";

/// What the handle `output` refers to, if that follows from its origin: a variable, or an array of tensors that all fit one shape.
pub fn handle_data(graph: &Graph, output: Output) -> Option<Vec<HandleData>> {
    traced(graph, output, |_| None)
}

/// Makes `arg`, an argument of a function, a handle of something.
pub fn set_handle_data(arg: &mut Node, data: &[HandleData]) {
    let shapes = data.iter().map(|d| AttrValue::Shape(d.shape.clone()));
    let dtypes = data.iter().map(|d| d.dtype.map(AttrValue::Type));
    if let Some(dtypes) = dtypes.collect() {
        arg.attrs
            .set(HANDLE_SHAPES, AttrValue::List(shapes.collect()));
        arg.attrs.set(HANDLE_DTYPES, AttrValue::List(dtypes));
    }
}

/// [`handle_data`] where `known` says more.
fn traced(
    graph: &Graph,
    mut output: Output,
    known: impl Fn(Output) -> Option<Vec<HandleData>>,
) -> Option<Vec<HandleData>> {
    loop {
        if let Some(data) = known(output) {
            return Some(data);
        }
        let node = graph.get(output.node)?;
        let of_attr = |shape: &str| {
            Some(vec![HandleData {
                shape: node.attrs.shape(shape).ok()?.clone(),
                dtype: node.attrs.dtype("dtype").ok(),
            }])
        };
        match node.class() {
            NodeClass::VarHandle => return of_attr("shape"),
            NodeClass::Arg => return of_arg(node),
            NodeClass::Identity | NodeClass::Enter => {
                output = *node.inputs.get(output.slot as usize)?;
            }
            _ if node.op() == "TensorArrayV3" => {
                return of_attr("element_shape").filter(|data| data[0].shape.dims().is_some());
            }
            _ => return None,
        }
    }
}

fn of_arg(arg: &Node) -> Option<Vec<HandleData>> {
    let dtypes = arg.attrs.dtypes(HANDLE_DTYPES).ok()?;
    let Some(AttrValue::List(shapes)) = arg.attrs.get(HANDLE_SHAPES) else {
        return None;
    };
    let data = shapes.iter().zip(dtypes).map(|(shape, dtype)| match shape {
        AttrValue::Shape(shape) => Some(HandleData {
            shape: shape.clone(),
            dtype: Some(dtype),
        }),
        _ => None,
    });
    data.collect()
}

/// Infers the shapes of all outputs, in one pass over a topological order.
///
/// A contradiction is an error that names the node. Nodes on loops see unknown shapes on their
/// back edges.
///
/// # Errors
/// INVALID_ARGUMENT for the first node whose input shapes contradict each other.
pub fn infer_shapes(graph: &Graph, registry: &Registry) -> Result<ShapeMap> {
    infer(graph, |refiner, id| refiner.visit(graph, id, registry))
}

fn infer(
    graph: &Graph,
    mut visit: impl FnMut(&mut ShapeRefiner, NodeId) -> Result<()>,
) -> Result<ShapeMap> {
    let mut refiner = ShapeRefiner::default();
    refiner.map.shapes.resize_with(graph.id_bound(), Vec::new);
    for id in topological_order(graph)? {
        visit(&mut refiner, id)?;
    }
    Ok(refiner.map)
}

/// The attr of an If, Case or While with the shapes of its outputs that follow from its functions.
pub const PROVEN_SHAPES: &str = "_proven_shapes";

/// Like [`infer_shapes`], without what the attr `output_shapes` of conditionals and loops says: where TensorFlow has taken a
/// gradient, it says what the first branch returns, or what the body of a loop does (`cond_v2.py`, `while_v2.py`). The attr
/// [`PROVEN_SHAPES`] counts. A contradiction behind a Switch is none: its node is dead where the shapes are such, or fails.
///
/// # Errors
/// Those of [`infer_shapes`].
pub fn infer_proven_shapes(graph: &Graph, registry: &Registry) -> Result<ShapeMap> {
    let is_switch = |n: &Node| n.class() == NodeClass::Switch;
    let may_be_dead = graph.iter().any(|(_, n)| is_switch(n));
    infer(graph, |refiner, id| {
        let visited = refiner.visit(graph, id, registry);
        let is_unknown = visited.is_err() && may_be_dead;
        if !is_unknown {
            visited?;
        }
        let node = graph.node(id);
        let has_functions = matches!(
            node.class(),
            NodeClass::If | NodeClass::Case | NodeClass::While
        );
        if is_unknown || has_functions {
            refiner.map.shapes[id.index()] = proven_shapes(node);
        }
        Ok(())
    })
}

/// What [`PROVEN_SHAPES`] says of the outputs of a node.
fn proven_shapes(node: &Node) -> Vec<PartialShape> {
    let mut shapes = vec![PartialShape::unknown(); node.outputs.len()];
    if let Some(AttrValue::List(proven)) = node.attrs.get(PROVEN_SHAPES) {
        for (shape, proven) in shapes.iter_mut().zip(proven) {
            if let AttrValue::Shape(proven) = proven {
                *shape = proven.clone();
            }
        }
    }
    shapes
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
