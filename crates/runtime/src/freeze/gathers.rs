//! Gathers of rows of a variable as gathers of its value, which a constant can replace.

use super::handles::{Handles, Kind, is_gather};
use ferroflow_base::Result;
use ferroflow_compile::ExpandedGraph;
use ferroflow_graph::{Graph, Node, NodeId, Output, Patch};
use ferroflow_opdef::{AttrValue, Attrs, Registry, Resources};
use ferroflow_resources::resource::Var;
use ferroflow_tensor::{DType, Tensor};

/// Gathers of one graph, by the function whose body it is.
pub(super) type Gathers = Vec<(Option<String>, Vec<NodeId>)>;

/// Splits each of these nodes into a read and a gather of what it reads.
pub(super) fn split(
    expanded: &mut ExpandedGraph,
    registry: &Registry,
    gathers: &Gathers,
) -> Result<()> {
    let mut functions = Patch::new();
    for (function, nodes) in gathers {
        match function {
            None => expanded.edit(|graph| split_nodes(graph, registry, nodes))?,
            Some(name) => {
                let graph = expanded.graph();
                let old = graph.library().get(name)?;
                let mut body = old.graph.clone();
                split_nodes(&mut body, registry, nodes)?;
                functions.add_function(graph, name, old.with_body(body));
            }
        }
    }
    expanded.apply(functions);
    Ok(())
}

/// Returns the gathers of variables that are about to be replaced.
pub(super) fn of(handles: &Handles, resources: &Resources) -> Gathers {
    let mut nodes: Vec<Vec<NodeId>> = vec![Vec::new(); handles.scopes.len()];
    for variable in &handles.variables {
        if variable.kind != Kind::Variable || !variable.is_replaceable() {
            continue;
        }
        let var = resources.lookup::<Var>(&variable.container, &variable.name);
        if !var.is_ok_and(|var| var.read().is_some()) {
            continue;
        }
        for (scope, id) in &variable.reads {
            if is_gather(handles.scopes[*scope].graph.node(*id)) {
                nodes[*scope].push(*id);
            }
        }
    }
    let scopes = handles.scopes.iter().zip(nodes);
    let scopes = scopes.filter(|(_, nodes)| !nodes.is_empty());
    scopes
        .map(|(scope, nodes)| (scope.name.clone(), nodes))
        .collect()
}

fn split_nodes(graph: &mut Graph, registry: &Registry, nodes: &[NodeId]) -> Result<()> {
    let mut patch = Patch::new();
    for &id in nodes {
        let node = graph.node(id).clone();
        let dtype = AttrValue::Type(node.outputs[0]);
        let indices = AttrValue::Type(node.attrs.dtype("Tindices")?);
        let attrs = Attrs::default().with("dtype", dtype.clone());
        let name = graph.unique_name(&format!("{}/_value", node.name));
        let (handle, controls) = (node.inputs[0], &node.controls);
        let read = Node::new(registry, name, "ReadVariableOp", attrs, &[handle], controls)?;
        let read = Output::new(patch.add(graph, on_device(read, &node))?, 0);
        let attrs = Attrs::default()
            .with("Tparams", dtype)
            .with("Tindices", indices);
        let made = if node.op() == "ResourceGatherNd" {
            let inputs = [read, node.inputs[1]];
            Node::new(
                registry,
                node.name.clone(),
                "GatherNd",
                attrs,
                &inputs,
                controls,
            )?
        } else {
            let batch_dims = node.attrs.int("batch_dims")?;
            let axis = axis_of(graph, registry, &node.name, batch_dims)?;
            let axis = Output::new(patch.add(graph, on_device(axis, &node))?, 0);
            let attrs = attrs
                .with("Taxis", AttrValue::Type(DType::Int32))
                .with("batch_dims", AttrValue::Int(batch_dims));
            let inputs = [read, node.inputs[1], axis];
            Node::new(
                registry,
                node.name.clone(),
                "GatherV2",
                attrs,
                &inputs,
                controls,
            )?
        };
        *patch.edit(graph, id) = on_device(made, &node);
    }
    patch.apply(graph);
    Ok(())
}

fn on_device(node: Node, place: &Node) -> Node {
    Node {
        device: place.device.clone(),
        ..node
    }
}

/// Returns a constant for the axis of the gather `name`.
fn axis_of(graph: &Graph, registry: &Registry, name: &str, axis: i64) -> Result<Node> {
    let value = Tensor::scalar(axis as i32);
    let attrs = Attrs::default()
        .with("dtype", AttrValue::Type(DType::Int32))
        .with("value", AttrValue::Tensor(value.into()));
    let name = graph.unique_name(&format!("{name}/_axis"));
    Node::new(registry, name, "Const", attrs, &[], &[])
}
