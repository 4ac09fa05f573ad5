//! Old-style variables as handles.
//!
//! A `VariableV2` hands out a reference: an edge on which some ops change the variable and all
//! others see its value. Here it becomes a handle, and each reference a read at its reader:
//!
//! ```text
//! v = VariableV2            v/_handle = VarHandleOp, v = ReadVariableOp(v/_handle)
//! a = Assign(v, x)          a/_update = AssignVariableOp(v/_handle, x),
//!                           a = ReadVariableOp(v/_handle, ^a/_update)
//! r = Identity(v, ^c)       r = ReadVariableOp(v/_handle, ^c)
//! n = Neg(a)                n/_read_0 = ReadVariableOp(v/_handle, ^a), n = Neg(n/_read_0)
//! ```
//! Names of nodes stay, so that they can be fetched and run as before.

use crate::parse_tensor_name;
use ferroflow_base::{Result, invalid_argument};
use ferroflow_model::proto::{AttrValue, GraphDef, NodeDef, attr_value::Value};
use rustc_hash::{FxHashMap, FxHashSet};
use std::borrow::Cow;

/// The graph with handles in place of references; borrowed when there is no reference.
pub(crate) fn without_references(graph: &GraphDef) -> Result<Cow<'_, GraphDef>> {
    if !graph.node.iter().any(is_variable) {
        return Ok(Cow::Borrowed(graph));
    }
    let mut names: FxHashSet<String> = graph.node.iter().map(|n| n.name.clone()).collect();
    let by_name: FxHashMap<&str, &NodeDef> =
        graph.node.iter().map(|n| (n.name.as_str(), n)).collect();
    let mut handles = FxHashMap::default();
    for variable in graph.node.iter().filter(|n| is_variable(n)) {
        let handle = unique(&mut names, format!("{}/_handle", variable.name));
        handles.insert(variable.name.as_str(), handle);
    }
    let mut lowering = Lowering {
        by_name,
        handles,
        names,
        out: Vec::with_capacity(graph.node.len()),
    };
    for node in &graph.node {
        lowering
            .node(node)
            .map_err(|e| e.at_node(&node.name, &node.op))?;
    }
    Ok(Cow::Owned(GraphDef {
        node: lowering.out,
        versions: graph.versions.clone(),
        library: graph.library.clone(),
        ..Default::default()
    }))
}

fn is_variable(node: &NodeDef) -> bool {
    matches!(node.op.as_str(), "Variable" | "VariableV2")
}

/// The op on a handle that does what an op on a reference does.
fn update_op(op: &str) -> Option<String> {
    match op {
        "Assign" => Some("AssignVariableOp".to_string()),
        "AssignAdd" | "AssignSub" => Some(format!("{op}VariableOp")),
        "ScatterAdd" | "ScatterSub" | "ScatterMul" | "ScatterDiv" | "ScatterMin" | "ScatterMax"
        | "ScatterUpdate" | "ScatterNdAdd" | "ScatterNdSub" | "ScatterNdMin" | "ScatterNdMax"
        | "ScatterNdUpdate" => Some(format!("Resource{op}")),
        _ => None,
    }
}

fn unique(names: &mut FxHashSet<String>, name: String) -> String {
    let mut candidate = name.clone();
    let mut i = 1;
    while !names.insert(candidate.clone()) {
        candidate = format!("{name}_{i}");
        i += 1;
    }
    candidate
}

fn attr(value: Value) -> AttrValue {
    AttrValue { value: Some(value) }
}

fn text(value: &str) -> AttrValue {
    attr(Value::S(value.as_bytes().to_vec().into()))
}

struct Lowering<'a> {
    by_name: FxHashMap<&'a str, &'a NodeDef>,
    /// The handle of each variable.
    handles: FxHashMap<&'a str, String>,
    names: FxHashSet<String>,
    out: Vec<NodeDef>,
}

/// Where a reference leads.
struct Reference<'a> {
    variable: &'a NodeDef,
    handle: String,
    /// The node that handed it on, which readers come after.
    after: Option<&'a str>,
}

impl<'a> Lowering<'a> {
    /// The variable that an input refers to, if it is a reference.
    fn reference(&self, input: &str) -> Option<Reference<'a>> {
        if input.starts_with('^') {
            return None;
        }
        let (first, slot) = parse_tensor_name(input).ok()?;
        let mut node = *self.by_name.get(first).filter(|_| slot == 0)?;
        let after = (!is_variable(node)).then_some(node.name.as_str());
        // Chains of updates end at their variable; a cycle is no reference.
        for _ in 0..self.by_name.len() {
            if is_variable(node) {
                let handle = self.handles.get(node.name.as_str())?.clone();
                return Some(Reference {
                    variable: node,
                    handle,
                    after,
                });
            }
            if update_op(&node.op).is_none() && node.op != "RefIdentity" {
                return None;
            }
            let (next, slot) = parse_tensor_name(node.input.first()?).ok()?;
            node = *self.by_name.get(next).filter(|_| slot == 0)?;
        }
        None
    }

    /// Control inputs, without those that wait for a variable to hand out its reference.
    fn controls(&self, node: &NodeDef) -> Vec<String> {
        let controls = node.input.iter().filter(|i| i.starts_with('^'));
        controls
            .map(|c| match self.handles.get(&c[1..]) {
                Some(handle) => format!("^{handle}"),
                None => c.clone(),
            })
            .collect()
    }

    fn read(&self, name: String, to: &Reference, node: &NodeDef, after: Vec<String>) -> NodeDef {
        let mut input = vec![to.handle.clone()];
        input.extend(after);
        if let Some(after) = to.after {
            let control = format!("^{after}");
            if !input.contains(&control) {
                input.push(control);
            }
        }
        let dtype = to.variable.attr.get("dtype").cloned().unwrap_or_default();
        NodeDef {
            name,
            op: "ReadVariableOp".to_string(),
            input,
            device: node.device.clone(),
            attr: [
                ("dtype".to_string(), dtype),
                ("_reference".to_string(), text(&to.variable.name)),
            ]
            .into(),
            ..Default::default()
        }
    }

    fn node(&mut self, node: &'a NodeDef) -> Result<()> {
        let controls = self.controls(node);
        if is_variable(node) {
            return self.variable(node, controls);
        }
        let first = node.input.first().and_then(|i| self.reference(i));
        if let Some(to) = first {
            if let Some(op) = update_op(&node.op) {
                return self.update(node, op, &to, controls);
            }
            match node.op.as_str() {
                "Identity" | "RefIdentity" => {
                    let read = self.read(node.name.clone(), &to, node, controls);
                    self.out.push(read);
                    return Ok(());
                }
                "IsVariableInitialized" => {
                    let mut input = vec![to.handle];
                    input.extend(to.after.map(|a| format!("^{a}")));
                    input.extend(controls);
                    self.out.push(NodeDef {
                        name: node.name.clone(),
                        op: "VarIsInitializedOp".to_string(),
                        input,
                        device: node.device.clone(),
                        ..Default::default()
                    });
                    return Ok(());
                }
                _ => {}
            }
        } else if update_op(&node.op).is_some() {
            return Err(invalid_argument!(
                "Input 0 of node {} is no reference to a variable",
                node.name
            ));
        }
        let mut copy = node.clone();
        copy.input = self.values(node, 0, &controls)?;
        copy.input.extend(controls);
        self.out.push(copy);
        Ok(())
    }

    /// The data inputs from position `from` on, references read.
    fn values(&mut self, node: &NodeDef, from: usize, controls: &[String]) -> Result<Vec<String>> {
        let data = node.input.iter().filter(|i| !i.starts_with('^'));
        let mut values = Vec::new();
        for (i, input) in data.enumerate().skip(from) {
            let Some(to) = self.reference(input) else {
                values.push(input.clone());
                continue;
            };
            let name = unique(&mut self.names, format!("{}/_read_{i}", node.name));
            let read = self.read(name.clone(), &to, node, controls.to_vec());
            self.out.push(read);
            values.push(name);
        }
        Ok(values)
    }

    fn variable(&mut self, node: &'a NodeDef, controls: Vec<String>) -> Result<()> {
        let handle = self
            .handles
            .get(node.name.as_str())
            .cloned()
            .unwrap_or_default();
        let shared = match node.attr.get("shared_name").and_then(|a| a.value.as_ref()) {
            Some(Value::S(s)) if !s.is_empty() => attr(Value::S(s.clone())),
            _ => text(&node.name),
        };
        let mut attrs: std::collections::HashMap<String, AttrValue> =
            [("shared_name".to_string(), shared)].into();
        for name in ["dtype", "shape", "container"] {
            if let Some(value) = node.attr.get(name) {
                attrs.insert(name.to_string(), value.clone());
            }
        }
        self.out.push(NodeDef {
            name: handle.clone(),
            op: "VarHandleOp".to_string(),
            input: controls,
            device: node.device.clone(),
            attr: attrs,
            ..Default::default()
        });
        let to = Reference {
            variable: node,
            handle,
            after: None,
        };
        let read = self.read(node.name.clone(), &to, node, Vec::new());
        self.out.push(read);
        Ok(())
    }

    fn update(
        &mut self,
        node: &NodeDef,
        op: String,
        to: &Reference<'a>,
        controls: Vec<String>,
    ) -> Result<()> {
        let name = unique(&mut self.names, format!("{}/_update", node.name));
        let mut input = vec![to.handle.clone()];
        input.extend(self.values(node, 1, &controls)?);
        input.extend(to.after.map(|a| format!("^{a}")));
        input.extend(controls);
        let mut attrs = node.attr.clone();
        let validate = attrs.remove("validate_shape").and_then(|a| a.value);
        if op.ends_with("VariableOp") || !op.starts_with("ResourceScatterNd") {
            if let Some(dtype) = attrs.remove("T") {
                attrs.insert("dtype".to_string(), dtype);
            }
            attrs.remove("use_locking");
        }
        if op == "AssignVariableOp"
            && validate != Some(Value::B(false))
            && let Some(shape) = to.variable.attr.get("shape")
        {
            attrs.insert("_declared".to_string(), shape.clone());
        }
        self.out.push(NodeDef {
            name: name.clone(),
            op,
            input,
            device: node.device.clone(),
            attr: attrs,
            ..Default::default()
        });
        let to = Reference {
            variable: to.variable,
            handle: to.handle.clone(),
            after: None,
        };
        let read = self.read(node.name.clone(), &to, node, vec![format!("^{name}")]);
        self.out.push(read);
        Ok(())
    }
}
