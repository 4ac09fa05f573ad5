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
//! s = RefSwitch(v, p)       s = Switch(v/_handle, p)
//! i = RefIdentity(v)        i/_handle = Identity(v/_handle), i = ReadVariableOp(i/_handle)
//! t = TemporaryVariable     t/_handle = _TemporaryVariable, t = ReadVariableOp(t/_handle)
//! b = Assign(s:1, x)        b/_update = AssignVariableOp(s:1, x), b = ReadVariableOp(s:1, ^b/_update)
//! ```
//! Names of nodes stay, so that they can be fetched and run as before.

use crate::{Graph, Output, parse_tensor_name};
use ferroflow_base::{Result, invalid_argument};
use ferroflow_model::proto::{
    AttrValue, DataType, GraphDef, NodeDef,
    attr_value::{self, Value},
};
use rustc_hash::{FxHashMap, FxHashSet};
use std::borrow::Cow;

/// The attr of a node that says which node of the client's graph it does the work of.
pub const ORIGIN: &str = "_origin";

/// The graph with handles in place of references; borrowed when there is no reference.
pub(crate) fn without_references(graph: &GraphDef) -> Result<Cow<'_, GraphDef>> {
    if !graph
        .node
        .iter()
        .any(|n| is_variable(n) || control_op(&n.op).is_some())
    {
        return Ok(Cow::Borrowed(graph));
    }
    let mut names: FxHashSet<String> = graph.node.iter().map(|n| n.name.clone()).collect();
    let by_name: FxHashMap<&str, &NodeDef> =
        graph.node.iter().map(|n| (n.name.as_str(), n)).collect();
    let mut handles = FxHashMap::default();
    let roots = roots(graph, &by_name);
    let holds = |n: &&NodeDef| {
        roots
            .get(n.name.as_str())
            .is_some_and(|r| r.holder == n.name)
    };
    for node in graph.node.iter().filter(holds) {
        // A Switch has one for each side: it becomes the handles itself.
        if node.op != "RefSwitch" {
            let handle = unique(&mut names, format!("{}/_handle", node.name));
            handles.insert(node.name.as_str(), handle);
        }
    }
    let mut lowering = Lowering {
        roots,
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

/// The handle, where `output` is what a variable that handed out references became: a read of its own.
pub(crate) fn variable(graph: &Graph, output: Output) -> Output {
    let handle = || {
        let node = graph.get(output.node)?;
        let &[handle] = node.inputs.as_slice() else {
            return None;
        };
        let holder = graph.get(handle.node)?.name.strip_suffix("/_handle");
        (node.op() == "ReadVariableOp" && holder == Some(node.name.as_str())).then_some(handle)
    };
    handle().unwrap_or(output)
}

fn is_variable(node: &NodeDef) -> bool {
    matches!(
        node.op.as_str(),
        "Variable" | "VariableV2" | "TemporaryVariable"
    )
}

/// The op on a handle that does what an op on a reference does.
fn update_op(op: &str) -> Option<String> {
    match op {
        "Assign" => Some("AssignVariableOp".to_string()),
        "AssignAdd" | "AssignSub" => Some(format!("{op}VariableOp")),
        "ScatterAdd" | "ScatterSub" | "ScatterMul" | "ScatterDiv" | "ScatterMin" | "ScatterMax"
        | "ScatterUpdate" | "ScatterNdAdd" | "ScatterNdSub" | "ScatterNdMin" | "ScatterNdMax"
        | "ScatterNdUpdate" | "StridedSliceAssign" => Some(format!("Resource{op}")),
        _ if n_optimized(op) > 0 => Some(format!("Resource{op}")),
        _ => None,
    }
}

/// How many variables an optimizer changes: its first inputs.
fn n_optimized(op: &str) -> usize {
    let rule = op.strip_prefix("Sparse").unwrap_or(op);
    match rule.strip_prefix("Apply").unwrap_or_default() {
        "GradientDescent" | "ProximalGradientDescent" => 1,
        "Momentum" | "Adagrad" | "AdagradV2" | "ProximalAdagrad" | "AddSign" | "PowerSign" => 2,
        "AdagradDA" | "Adadelta" | "RMSProp" | "Adam" | "AdaMax" | "Ftrl" | "FtrlV2" => 3,
        "CenteredRMSProp" => 4,
        _ => 0,
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

/// The op that does with a handle what an op of control flow does with a reference.
fn control_op(op: &str) -> Option<&str> {
    match op {
        "RefSwitch" | "RefMerge" | "RefEnter" | "RefExit" | "RefNextIteration" | "RefIdentity" => {
            op.get(3..)
        }
        _ => None,
    }
}

struct Lowering<'a> {
    by_name: FxHashMap<&'a str, &'a NodeDef>,
    /// The handle of each variable, and of each node of control flow with one output.
    handles: FxHashMap<&'a str, String>,
    /// Nodes that hand out a reference.
    roots: FxHashMap<&'a str, Root<'a>>,
    names: FxHashSet<String>,
    out: Vec<NodeDef>,
}

/// Where the reference that a node hands out begins.
#[derive(Clone, Copy)]
struct Root<'a> {
    variable: &'a NodeDef,
    /// The variable, or the node of control flow that the handle last went through.
    holder: &'a str,
    slot: u32,
}

/// Where a reference leads.
struct Reference<'a> {
    variable: &'a NodeDef,
    handle: String,
    /// The node that handed it on, which readers come after.
    after: Option<&'a str>,
}

/// Follows references from the variables on.
fn roots<'a>(
    graph: &'a GraphDef,
    by_name: &FxHashMap<&'a str, &'a NodeDef>,
) -> FxHashMap<&'a str, Root<'a>> {
    let mut readers: FxHashMap<&str, Vec<(&NodeDef, u32)>> = FxHashMap::default();
    for node in &graph.node {
        let n_refs = match node.op.as_str() {
            "RefMerge" => node.input.len(),
            op if control_op(op).is_some() || update_op(op).is_some() => 1,
            _ => continue,
        };
        for input in node.input.iter().take(n_refs) {
            if let Ok((name, slot)) = parse_tensor_name(input) {
                readers.entry(name).or_default().push((node, slot as u32));
            }
        }
    }
    let mut roots: FxHashMap<&str, Root> = FxHashMap::default();
    let mut stack = Vec::new();
    for variable in graph.node.iter().filter(|n| is_variable(n)) {
        let holder = variable.name.as_str();
        let root = Root {
            variable,
            holder,
            slot: 0,
        };
        roots.insert(holder, root);
        stack.push(holder);
    }
    while let Some(name) = stack.pop() {
        let Some(&root) = roots.get(name) else {
            continue;
        };
        for &(reader, slot) in readers.get(name).into_iter().flatten() {
            let is_switch = by_name.get(name).is_some_and(|n| n.op == "RefSwitch");
            let name = reader.name.as_str();
            if roots.contains_key(name) || (slot > 0 && !is_switch) {
                continue;
            }
            let root = match control_op(&reader.op) {
                Some(_) => Root {
                    holder: name,
                    slot: 0,
                    ..root
                },
                None if is_switch => Root { slot, ..root },
                None => root,
            };
            roots.insert(name, root);
            stack.push(name);
        }
    }
    roots
}

impl<'a> Lowering<'a> {
    /// The variable that an input refers to, if it is a reference.
    fn reference(&self, input: &str) -> Option<Reference<'a>> {
        if input.starts_with('^') {
            return None;
        }
        let (name, slot) = parse_tensor_name(input).ok()?;
        let root = *self.roots.get(name)?;
        let node = *self.by_name.get(name)?;
        let passes_on = !is_variable(node) && control_op(&node.op).is_none();
        // A Merge's second output is a number.
        if slot > 0 && node.op != "RefSwitch" {
            return None;
        }
        let slot = if passes_on { root.slot } else { slot as u32 };
        let handle = match (self.handles.get(root.holder), slot) {
            (Some(handle), _) => handle.clone(),
            (None, 0) => root.holder.to_string(),
            (None, slot) => format!("{}:{slot}", root.holder),
        };
        Some(Reference {
            variable: root.variable,
            handle,
            after: passes_on.then_some(node.name.as_str()),
        })
    }

    /// A node of control flow: the handle goes where the reference went.
    fn control(&mut self, node: &NodeDef, op: &str, controls: Vec<String>) -> Result<()> {
        let n_refs = if op == "Merge" { node.input.len() } else { 1 };
        let data = node.input.iter().filter(|i| !i.starts_with('^'));
        let mut input = Vec::new();
        let mut after = Vec::new();
        for (i, name) in data.enumerate() {
            match self.reference(name) {
                Some(to) if i < n_refs => {
                    input.push(to.handle);
                    after.extend(to.after.map(|a| format!("^{a}")));
                }
                None if i < n_refs => {
                    return Err(invalid_argument!(
                        "Input {i} of node {} is no reference to a variable",
                        node.name
                    ));
                }
                _ => input.push(self.value(node, i, name, &controls)),
            }
        }
        input.extend(after);
        input.extend(controls);
        let handle = self.handles.get(node.name.as_str()).cloned();
        let mut copy = NodeDef {
            name: handle.clone().unwrap_or_else(|| node.name.clone()),
            op: op.to_string(),
            input,
            ..node.clone()
        };
        let resource = attr(Value::Type(DataType::DtResource as i32));
        copy.attr.insert("T".to_string(), resource);
        self.out.push(copy);
        let root = self.roots.get(node.name.as_str());
        if let Some((handle, variable)) = handle.zip(root.map(|r| r.variable)) {
            self.value_of_control(node, op, handle, variable);
        }
        Ok(())
    }

    /// What a node of control flow gives to those who fetch it: the variable's value.
    fn value_of_control(
        &mut self,
        node: &NodeDef,
        op: &str,
        handle: String,
        variable: &'a NodeDef,
    ) {
        let to = Reference {
            variable,
            handle,
            after: None,
        };
        if op != "Merge" {
            let read = self.read(node.name.clone(), &to, node, Vec::new());
            self.out.push(read);
            return;
        }
        let name = unique(&mut self.names, format!("{}/_read", node.name));
        let read = self.read(name.clone(), &to, node, Vec::new());
        let dtype = match read.attr.get("dtype").and_then(|a| a.value.as_ref()) {
            Some(Value::Type(dtype)) => *dtype,
            _ => 0,
        };
        let types = attr_value::ListValue {
            r#type: vec![dtype, DataType::DtInt32 as i32],
            ..Default::default()
        };
        self.out.push(read);
        self.out.push(NodeDef {
            name: node.name.clone(),
            op: "IdentityN".to_string(),
            input: vec![name, format!("{}:1", to.handle)],
            device: node.device.clone(),
            attr: [("T".to_string(), attr(Value::List(Box::new(types))))].into(),
            ..Default::default()
        });
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
        if let Some(op) = control_op(&node.op) {
            // Handles of old stacks and arrays are references to strings that nobody changes.
            if first.is_some() || self.roots.contains_key(node.name.as_str()) {
                return self.control(node, op, controls);
            }
            self.out.push(NodeDef {
                op: op.to_string(),
                ..node.clone()
            });
            return Ok(());
        }
        if let Some(to) = first {
            if let Some(op) = update_op(&node.op) {
                return self.update(node, op, &to, controls);
            }
            match node.op.as_str() {
                "Identity" | "DestroyTemporaryVariable" => {
                    let read = self.read(node.name.clone(), &to, node, controls);
                    self.out.push(read);
                    return Ok(());
                }
                "IsVariableInitialized" | "CountUpTo" => {
                    let (op, attr) = match node.op.as_str() {
                        "CountUpTo" => ("ResourceCountUpTo", node.attr.clone()),
                        _ => ("VarIsInitializedOp", Default::default()),
                    };
                    let mut input = vec![to.handle];
                    input.extend(to.after.map(|a| format!("^{a}")));
                    input.extend(controls);
                    self.out.push(NodeDef {
                        name: node.name.clone(),
                        op: op.to_string(),
                        input,
                        device: node.device.clone(),
                        attr,
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
        copy.input = self.values(node, 0, &controls);
        copy.input.extend(controls);
        self.out.push(copy);
        Ok(())
    }

    /// The data inputs from position `from` on, references read.
    fn values(&mut self, node: &NodeDef, from: usize, controls: &[String]) -> Vec<String> {
        let data = node.input.iter().filter(|i| !i.starts_with('^'));
        let mut values = Vec::new();
        for (i, input) in data.enumerate().skip(from) {
            values.push(self.value(node, i, input, controls));
        }
        values
    }

    /// Data input `i`, read when it is a reference.
    fn value(&mut self, node: &NodeDef, i: usize, input: &str, controls: &[String]) -> String {
        let Some(to) = self.reference(input) else {
            return input.to_string();
        };
        let name = unique(&mut self.names, format!("{}/_read_{i}", node.name));
        let read = self.read(name.clone(), &to, node, controls.to_vec());
        self.out.push(read);
        name
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
        let op = match node.op.as_str() {
            "TemporaryVariable" => "_TemporaryVariable",
            _ => "VarHandleOp",
        };
        attrs.insert("_reference".to_string(), attr(Value::B(true)));
        self.out.push(NodeDef {
            name: handle.clone(),
            op: op.to_string(),
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
        let mut after: Vec<String> = to.after.iter().map(|a| format!("^{a}")).collect();
        let slots = node.input.iter().take(n_optimized(&node.op)).skip(1);
        for (i, slot) in slots.enumerate() {
            let to = self.reference(slot).ok_or_else(|| {
                invalid_argument!("Input {} of node {} is no reference", i + 1, node.name)
            })?;
            input.push(to.handle);
            after.extend(to.after.map(|a| format!("^{a}")));
        }
        input.extend(self.values(node, input.len(), &controls));
        input.extend(after);
        input.extend(controls);
        let mut attrs = node.attr.clone();
        let validate = attrs.remove("validate_shape").and_then(|a| a.value);
        let keeps_attrs = op.starts_with("ResourceScatterNd") || op == "ResourceStridedSliceAssign";
        if n_optimized(&node.op) == 0 && !keeps_attrs {
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
        attrs.insert(ORIGIN.to_string(), text(&node.name));
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
