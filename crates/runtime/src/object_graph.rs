//! Variables of a SavedModel that its saver does not restore: their values are found through the objects
//! that have them (TensorFlow: `python/checkpoint/restore.py`).
//!
//! A model and its checkpoint both hold a graph of objects. Walked from the root along the same names, they
//! lead to the same variable: here to its name, there to the key of its value.

use ferroflow_base::Result;
use ferroflow_graph::{Graph, NodeClass};
use ferroflow_model::TensorBundle;
use ferroflow_model::proto::{SavedObjectGraph, TrackableObjectGraph};
use ferroflow_opdef::Resources;
use ferroflow_resources::resource::{Var, container_and_name};
use ferroflow_tensor::DType;
use prost::Message;
use std::collections::{HashMap, HashSet, VecDeque};
use std::path::Path;

/// The tensor of a checkpoint that holds its graph of objects.
const OBJECT_GRAPH: &str = "_CHECKPOINTABLE_OBJECT_GRAPH";
/// What objects call a variable's value.
const VALUE: &str = "VARIABLE_VALUE";

/// Restores the variables of `graph` that have no value yet, as far as the objects name them.
pub(crate) fn restore(
    objects: &SavedObjectGraph,
    prefix: &Path,
    graph: &Graph,
    resources: &Resources,
) -> Result<()> {
    let unset = unset_variables(graph, resources)?;
    if unset.is_empty() {
        return Ok(());
    }
    let bundle = TensorBundle::open(&prefix.to_string_lossy())?;
    if !bundle.names().any(|name| name == OBJECT_GRAPH) {
        return Ok(());
    }
    let saved = bundle.read(OBJECT_GRAPH)?;
    let Some(saved) = saved.strings()?.first().cloned() else {
        return Ok(());
    };
    let Ok(saved) = TrackableObjectGraph::decode(&saved[..]) else {
        return Ok(());
    };
    for (name, key) in keys_of_variables(objects, &saved) {
        let Some((container, variable, dtype)) = unset.get(&name) else {
            continue;
        };
        let value = bundle.read(&key)?;
        // The graph may call another variable, such as one that its initializer sets, by this name.
        if value.dtype() != *dtype {
            continue;
        }
        let variable = resources.lookup_or_create(container, variable, || Ok(Var::default()))?;
        variable.write().get_or_insert(value);
    }
    Ok(())
}

/// Returns container, name and dtype of the variables without a value, by their names.
fn unset_variables(
    graph: &Graph,
    resources: &Resources,
) -> Result<HashMap<String, (String, String, DType)>> {
    let mut unset = HashMap::new();
    for (_, node) in graph.iter() {
        if node.class() != NodeClass::VarHandle {
            continue;
        }
        let (container, name) = container_and_name(&node.attrs)?;
        let known = resources.lookup::<Var>(&container, &name);
        if known.is_ok_and(|var| var.get().is_some()) || name.is_empty() {
            continue;
        }
        unset.insert(name.clone(), (container, name, node.attrs.dtype("dtype")?));
    }
    Ok(unset)
}

/// Returns the keys of variables' values in a checkpoint; not of names that several variables have.
fn keys_of_variables(
    objects: &SavedObjectGraph,
    saved: &TrackableObjectGraph,
) -> HashMap<String, String> {
    let mut n_of_name: HashMap<&str, usize> = HashMap::new();
    for variable in objects.nodes.iter().filter_map(|o| o.variable.as_ref()) {
        *n_of_name.entry(&variable.name).or_default() += 1;
    }
    let mut keys = HashMap::new();
    let (mut queue, mut seen) = (VecDeque::from([(0usize, 0usize)]), HashSet::new());
    while let Some((object, stored)) = queue.pop_front() {
        let pair = (objects.nodes.get(object), saved.nodes.get(stored));
        let (Some(object_node), Some(stored_node)) = pair else {
            continue;
        };
        // An object may be reached along several paths, only some of which the checkpoint knows.
        if !seen.insert((object, stored)) {
            continue;
        }
        let value = stored_node.attributes.iter().find(|a| a.name == VALUE);
        if let (Some(variable), Some(value)) = (&object_node.variable, value)
            && n_of_name.get(variable.name.as_str()) == Some(&1)
        {
            keys.insert(variable.name.clone(), value.checkpoint_key.clone());
        }
        for child in &object_node.children {
            let same = stored_node
                .children
                .iter()
                .find(|c| c.local_name == child.local_name);
            if let Some(same) = same
                && let (Ok(a), Ok(b)) = (child.node_id.try_into(), same.node_id.try_into())
            {
                queue.push_back((a, b));
            }
        }
    }
    keys
}

#[cfg(test)]
mod tests {
    use super::*;
    use ferroflow_model::proto::trackable_object_graph::TrackableObject;
    use ferroflow_model::proto::trackable_object_graph::trackable_object::{
        ObjectReference, SerializedTensor,
    };
    use ferroflow_model::proto::{SavedObject, SavedVariable};

    /// Checks which keys are found. Objects are lines `children | variable`, children `name:object`.
    fn check(objects: &[&str], saved: &[&str], expected: &[(&str, &str)]) {
        let parts = |line: &str| -> (Vec<ObjectReference>, String) {
            let (children, value) = line.split_once('|').unwrap();
            let child = |child: &str| {
                let (name, id) = child.split_once(':').unwrap();
                ObjectReference {
                    node_id: id.parse().unwrap(),
                    local_name: name.to_string(),
                }
            };
            (
                children.split_whitespace().map(child).collect(),
                value.trim().to_string(),
            )
        };
        let object = |line: &&str| {
            let (children, name) = parts(line);
            let variable = (!name.is_empty()).then(|| SavedVariable {
                name,
                ..Default::default()
            });
            SavedObject { children, variable }
        };
        let stored = |line: &&str| {
            let (children, key) = parts(line);
            let attributes = (!key.is_empty()).then(|| SerializedTensor {
                name: VALUE.to_string(),
                checkpoint_key: key,
                ..Default::default()
            });
            TrackableObject {
                children,
                attributes: attributes.into_iter().collect(),
            }
        };
        let objects = SavedObjectGraph {
            nodes: objects.iter().map(object).collect(),
        };
        let saved = TrackableObjectGraph {
            nodes: saved.iter().map(stored).collect(),
        };
        let mut keys: Vec<_> = keys_of_variables(&objects, &saved).into_iter().collect();
        keys.sort_unstable();
        let keys: Vec<(&str, &str)> = keys.iter().map(|(a, b)| (&a[..], &b[..])).collect();
        assert_eq!(keys, expected);
    }

    #[test]
    fn keys() {
        // Other numbers, a loop, a child that the checkpoint lacks, one that leads nowhere.
        check(
            &[
                "layer:2 all:3 |",
                "| w",
                "kernel:1 self:0 bias:4 |",
                "0:1 |",
                "| b",
                "| lost",
            ],
            &["layer:1 |", "self:0 kernel:2 bias:9 |", "| layer/kernel"],
            &[("w", "layer/kernel")],
        );
        // Two variables of one name.
        check(
            &["a:1 b:2 |", "| w", "| w"],
            &["a:1 b:2 |", "| a/value", "| b/value"],
            &[],
        );
        check(&[], &["a:0 |"], &[]);
    }
}
