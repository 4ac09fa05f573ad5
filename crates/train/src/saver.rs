//! The nodes that save and restore a network's variables, like those of TensorFlow's Saver.

use super::Network;
use ferroflow_base::Result;
use ferroflow_graph::NodeId;
use ferroflow_opdef::AttrValue;
use ferroflow_tensor::{Bytes, DType, PartialShape, Shape, Tensor};

/// The tensor that is fed with the prefix of a checkpoint.
pub(super) const FILENAME: &str = "save/Const:0";
/// The tensor to fetch for writing a checkpoint.
pub(super) const SAVED: &str = "save/control_dependency:0";
/// The op that restores all variables.
pub(super) const RESTORE: &str = "save/restore_all";
/// The op that initializes all variables.
pub(super) const INIT: &str = "init";

fn strings(values: impl Iterator<Item = String>) -> Result<Tensor> {
    let values: Vec<Bytes> = values.map(|v| v.into_bytes().into()).collect();
    Tensor::from_strings(Shape::from([values.len()]), values)
}

/// The op that initializes all tables.
pub(super) const TABLES: &str = "init_all_tables";

/// Adds the nodes for all variables.
pub(super) fn add(net: &mut Network) -> Result<()> {
    for name in [
        TABLES,
        INIT,
        RESTORE,
        "save/Const",
        "save/control_dependency",
    ] {
        net.claim(name)?;
    }
    let variables = net.variables.clone();
    let tables = net.tables.clone();
    let filled = group(net, TABLES, tables.into_iter())?;
    let all = variables.iter().map(|v| v.initializer).chain([filled]);
    group(net, INIT, all)?;
    let name = net
        .builder
        .constant("save/filename/input", Tensor::string("model"))?;
    let prefix = net
        .op("PlaceholderWithDefault")
        .name("save/Const")
        .input(name)
        .attr("shape", AttrValue::Shape(PartialShape::scalar()))
        .output()?;
    let names = strings(variables.iter().map(|v| v.name.clone()))?;
    let names = net.builder.constant("save/tensor_names", names)?;
    let slices = strings(variables.iter().map(|_| String::new()))?;
    let slices = net.builder.constant("save/shape_and_slices", slices)?;
    let values: Vec<_> = variables.iter().map(|v| v.value).collect();
    let save = net
        .node("SaveV2", &[prefix, names, slices])
        .name("save/SaveV2")
        .inputs(&values)
        .build()?;
    net.op("Identity")
        .name("save/control_dependency")
        .input(prefix)
        .control(save)
        .build()?;
    let dtypes: Vec<DType> = variables.iter().map(|v| v.dtype).collect();
    let types = dtypes.into_iter().map(AttrValue::Type).collect();
    let restored = net
        .node("RestoreV2", &[prefix, names, slices])
        .name("save/RestoreV2")
        .attr("dtypes", AttrValue::List(types))
        .outputs()?;
    let mut assigned = Vec::new();
    for (variable, value) in variables.iter().zip(restored) {
        let node = net.node("AssignVariableOp", &[variable.handle, value]);
        let node = node.attr("validate_shape", AttrValue::Bool(true));
        // Its error messages name the node.
        let name = format!("save/{}/Assign", variable.name);
        assigned.push(node.name(&name).build()?);
    }
    group(net, RESTORE, assigned.into_iter()).map(|_| ())
}

/// Returns a NoOp with control inputs.
fn group(net: &mut Network, name: &str, after: impl Iterator<Item = NodeId>) -> Result<NodeId> {
    let node = net.op("NoOp").name(name);
    after.fold(node, |n, before| n.control(before)).build()
}
