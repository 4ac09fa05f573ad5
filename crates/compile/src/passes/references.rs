//! Replaces variables that hand out references by variables with handles.
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
//! q = RefSelect(k, v, w)     q/_handle = _SelectHandle(k, v/_handle, w/_handle), q = ReadVariableOp(q/_handle)
//! SdcaShrinkL1(v, w)         _SdcaShrinkL1(v/_handle, w/_handle)
//! t = TemporaryVariable     t/_handle = _TemporaryVariable, t = ReadVariableOp(t/_handle)
//! d = DestroyTemporaryVariable(t)  d = _DestroyTemporaryVariable(t/_handle)
//! b = Assign(s:1, x)        b/_update = AssignVariableOp(s:1, x), b = ReadVariableOp(s:1, ^b/_update)
//! ```
//! Names of nodes stay, so that they can be fetched and run as before. A read runs after the inputs
//! of its reader that follow a write; `references/aliases.rs` finds the values that have to be read again.
//! It is dead if its reader is (`references/dead.rs`).

use crate::PassCtx;
use ferroflow_base::{Result, invalid_argument};
use ferroflow_graph::{Consumers, Graph, Node, NodeClass, NodeId, ORIGIN, Output, Patch};
use ferroflow_opdef::{AttrValue, Attrs};
use ferroflow_tensor::DType;
use rustc_hash::{FxHashMap, FxHashSet};

mod aliases;
mod dead;
mod temporary;
use aliases::{Aliases, aliases};
use dead::mortal;
use temporary::Temporaries;

/// The attr of a read with the name of the variable, and of a handle that replaces a reference.
const REFERENCE: &str = "_reference";

/// Replaces the references of a graph.
///
/// # Errors
///
/// INVALID_ARGUMENT if an op that needs a reference reads a value.
pub(crate) fn run(graph: &mut Graph, ctx: &PassCtx) -> Result<()> {
    let has_reference = |n: &Node| is_variable(n) || control_op(n.op()).is_some();
    if !graph
        .iter()
        .any(|(_, n)| has_reference(n) || update_op(n.op()).is_some())
    {
        return Ok(());
    }
    let roots = roots(graph);
    let ids: Vec<NodeId> = graph.iter().map(|(id, _)| id).collect();
    let mut lowering = Lowering {
        ctx,
        aliases: aliases(graph, &roots),
        twins: FxHashMap::default(),
        temporaries: Temporaries::of(graph)?,
        mortal: mortal(graph),
        roots,
        handles: FxHashMap::default(),
        patch: Patch::new(),
        graph,
    };
    for id in &ids {
        let node = lowering.graph.node(*id);
        let is_holder = lowering.roots.get(id).is_some_and(|r| r.holder == *id);
        // A Switch has a handle for each side: its own outputs.
        if is_holder && node.class() != NodeClass::Switch {
            let name = lowering
                .graph
                .unique_name(&format!("{}/_handle", node.name));
            let handle = Node {
                name,
                ..node.clone()
            };
            let handle = lowering.patch.add(lowering.graph, handle)?;
            lowering.handles.insert(*id, handle);
        }
    }
    for id in ids {
        let node = lowering.graph.node(id).clone();
        lowering
            .node(id, &node)
            .map_err(|e| e.at_node(&node.name, node.op()))?;
    }
    let Lowering { graph, patch, .. } = lowering;
    patch.apply(graph);
    Ok(())
}

fn is_variable(node: &Node) -> bool {
    node.class() == NodeClass::Variable
}

/// The op on a handle that does what an op on a reference does.
fn update_op(op: &str) -> Option<String> {
    match op {
        "Assign" => Some("AssignVariableOp".to_string()),
        "AssignAdd" | "AssignSub" => Some(format!("{op}VariableOp")),
        "ScatterAdd" | "ScatterSub" | "ScatterMul" | "ScatterDiv" | "ScatterMin" | "ScatterMax"
        | "ScatterUpdate" | "ScatterNdAdd" | "ScatterNdSub" | "ScatterNdMin" | "ScatterNdMax"
        | "ScatterNdUpdate" | "StridedSliceAssign" => Some(format!("Resource{op}")),
        "SdcaShrinkL1" => Some("_SdcaShrinkL1".to_string()),
        _ if n_optimized(op) > 0 => Some(format!("Resource{op}")),
        _ => None,
    }
}

/// The number of references that the op writes to: its first inputs.
fn refs_written(op: &str) -> usize {
    if op == "SdcaShrinkL1" {
        return usize::MAX;
    }
    let writes = update_op(op).is_some() || op == "CountUpTo";
    n_optimized(op).max(usize::from(writes))
}

/// The number of variables that an optimizer changes: its first inputs.
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

/// The op that does with a handle what an op of control flow does with a reference.
fn control_op(op: &str) -> Option<&str> {
    match op {
        "RefSwitch" | "RefMerge" | "RefEnter" | "RefExit" | "RefNextIteration" | "RefIdentity" => {
            op.get(3..)
        }
        "DebugGradientRefIdentity" => Some("Identity"),
        "RefSelect" => Some("_SelectHandle"),
        _ => None,
    }
}

/// The inputs of an op of control flow that are references.
fn refs_passed(node: &Node) -> std::ops::Range<usize> {
    match node.op() {
        "RefSelect" => 1..node.inputs.len(),
        _ if node.class() == NodeClass::Merge => 0..node.inputs.len(),
        _ => 0..1,
    }
}

/// The origin of the reference that a node returns.
#[derive(Clone, Copy)]
struct Root {
    variable: NodeId,
    /// The variable, or the node of control flow that the handle last went through.
    holder: NodeId,
    slot: u32,
}

/// The variable behind a reference.
struct Reference {
    variable: NodeId,
    handle: Output,
    /// The node that handed it on, which readers come after.
    after: Option<NodeId>,
}

/// Follows references from the variables on.
fn roots(graph: &Graph) -> FxHashMap<NodeId, Root> {
    let consumers = Consumers::new(graph);
    let mut roots: FxHashMap<NodeId, Root> = FxHashMap::default();
    let mut stack = Vec::new();
    for (variable, _) in graph.iter().filter(|(_, n)| is_variable(n)) {
        let (holder, slot) = (variable, 0);
        roots.insert(
            variable,
            Root {
                variable,
                holder,
                slot,
            },
        );
        stack.push(variable);
    }
    while let Some(id) = stack.pop() {
        let Some(&root) = roots.get(&id) else {
            continue;
        };
        let is_switch = graph.node(id).class() == NodeClass::Switch;
        for &(reader, slot) in consumers.of(id) {
            let node = graph.node(reader);
            let refs = match control_op(node.op()) {
                Some(_) => refs_passed(node),
                None => 0..usize::from(update_op(node.op()).is_some()),
            };
            let Some(slot) = slot.filter(|slot| *slot == 0 || is_switch) else {
                continue;
            };
            let from = Output::new(id, slot as usize);
            let is_ref = node.inputs.get(refs).is_some_and(|r| r.contains(&from));
            if roots.contains_key(&reader) || !is_ref {
                continue;
            }
            let root = match control_op(node.op()) {
                Some(_) => Root {
                    holder: reader,
                    slot: 0,
                    ..root
                },
                None if is_switch => Root { slot, ..root },
                None => root,
            };
            roots.insert(reader, root);
            stack.push(reader);
        }
    }
    roots
}

struct Lowering<'a, 'b> {
    ctx: &'a PassCtx<'b>,
    graph: &'a mut Graph,
    patch: Patch,
    /// The handle of each variable, and of each node of control flow with one output.
    handles: FxHashMap<NodeId, NodeId>,
    /// Nodes that hand out a reference.
    roots: FxHashMap<NodeId, Root>,
    aliases: Aliases,
    /// The nodes that pass a handle on where those of the graph pass an alias on.
    twins: FxHashMap<NodeId, NodeId>,
    temporaries: Temporaries,
    /// Nodes that may be dead.
    mortal: FxHashSet<NodeId>,
}

impl Lowering<'_, '_> {
    /// The variable that `output` refers to, if it is a reference.
    fn reference(&self, output: Output) -> Option<Reference> {
        let root = *self.roots.get(&output.node)?;
        let node = self.graph.node(output.node);
        let passes_on = !is_variable(node) && control_op(node.op()).is_none();
        // The second output of a Merge is a number.
        if output.slot > 0 && node.class() != NodeClass::Switch {
            return None;
        }
        let slot = if passes_on { root.slot } else { output.slot };
        let handle = match self.handles.get(&root.holder) {
            Some(handle) => Output::new(*handle, 0),
            None => Output::new(root.holder, slot as usize),
        };
        Some(Reference {
            variable: root.variable,
            handle,
            after: passes_on.then_some(output.node),
        })
    }

    /// Control inputs, without those that wait for a variable to hand out its reference.
    fn controls(&self, node: &Node) -> Vec<NodeId> {
        let controls = node.controls.iter();
        let controls = controls.map(|c| self.handles.get(c).copied().unwrap_or(*c));
        controls.collect()
    }

    /// A node in the place of `node`, on its device.
    fn make(
        &self,
        node: &Node,
        name: String,
        op: &str,
        attrs: Attrs,
        inputs: &[Output],
        controls: &[NodeId],
    ) -> Result<Node> {
        let mut unique: Vec<NodeId> = Vec::with_capacity(controls.len());
        for control in controls {
            if !unique.contains(control) {
                unique.push(*control);
            }
        }
        let mut made = self.ctx.node(name, op, attrs, inputs, &unique)?;
        made.device = node.device.clone();
        Ok(made)
    }

    fn read(&self, name: String, to: &Reference, node: &Node, after: &[NodeId]) -> Result<Node> {
        let variable = self.graph.node(to.variable);
        let attrs = Attrs::default()
            .with("dtype", AttrValue::Type(variable.attrs.dtype("dtype")?))
            .with(REFERENCE, AttrValue::str(&variable.name));
        let controls: Vec<NodeId> = after.iter().copied().chain(to.after).collect();
        self.make(node, name, "ReadVariableOp", attrs, &[to.handle], &controls)
    }

    /// Makes the node `id` a read.
    fn become_read(
        &mut self,
        id: NodeId,
        to: &Reference,
        node: &Node,
        after: &[NodeId],
    ) -> Result<()> {
        let read = self.read(node.name.clone(), to, node, after)?;
        *self.patch.edit(self.graph, id) = read;
        Ok(())
    }

    fn node(&mut self, id: NodeId, node: &Node) -> Result<()> {
        let controls = self.controls(node);
        if is_variable(node) {
            return self.variable(id, node, &controls);
        }
        let first = node.inputs.first().and_then(|i| self.reference(*i));
        if let Some(op) = control_op(node.op()) {
            // Handles of old stacks and arrays are references to strings that no op changes.
            if first.is_some() || self.roots.contains_key(&id) {
                return self.control(id, node, op, &controls);
            }
            let def = self.ctx.def(op)?;
            self.patch.edit(self.graph, id).def = def;
            return Ok(());
        }
        match (first, update_op(node.op()), node.op()) {
            (Some(to), Some(op), _) => self.update(id, node, &op, &to, &controls),
            (None, Some(_), _) => Err(invalid_argument!(
                "Input 0 of node {} is not a reference to a variable",
                node.name
            )),
            (Some(to), _, "Identity") => self.become_read(id, &to, node, &controls),
            (Some(to), _, "DestroyTemporaryVariable") => self.destroy(id, &to, node, &controls),
            (Some(to), _, op @ ("IsVariableInitialized" | "CountUpTo")) => {
                let (op, attrs) = match op {
                    "CountUpTo" => ("ResourceCountUpTo", node.attrs.clone()),
                    _ => ("VarIsInitializedOp", Attrs::default()),
                };
                let controls: Vec<NodeId> = to.after.into_iter().chain(controls).collect();
                let name = node.name.clone();
                let made = self.make(node, name, op, attrs, &[to.handle], &controls)?;
                *self.patch.edit(self.graph, id) = made;
                Ok(())
            }
            _ => {
                let values = self.values(id, node, 0, &controls)?;
                let edited = self.patch.edit(self.graph, id);
                (edited.inputs, edited.controls) = (values.into(), controls.into());
                Ok(())
            }
        }
    }

    /// The data inputs from position `from` on, references read.
    fn values(
        &mut self,
        id: NodeId,
        node: &Node,
        from: usize,
        controls: &[NodeId],
    ) -> Result<Vec<Output>> {
        let inputs = node.inputs.iter().enumerate().skip(from);
        inputs
            .map(|(i, input)| self.value(id, node, i, *input, controls))
            .collect()
    }

    /// Data input `i`, read when it is a reference or an alias that was written to.
    fn value(
        &mut self,
        id: NodeId,
        node: &Node,
        i: usize,
        input: Output,
        controls: &[NodeId],
    ) -> Result<Output> {
        let to = match self.reference(input) {
            None if self.aliases.late.contains(&(id, i)) => self.alias(input)?,
            to => to,
        };
        let Some(to) = to else {
            return Ok(input);
        };
        // A fetch returns what the fetched node reads. A Switch does not read, it has the handles.
        let is_fetch = matches!(node.class(), NodeClass::Retval | NodeClass::Send);
        if is_fetch && self.graph.node(input.node).class() != NodeClass::Switch {
            return self.fetched(node, input, &to);
        }
        let name = self.graph.unique_name(&format!("{}/_read_{i}", node.name));
        let mut after = self.written_inputs(node, i, to.variable);
        after.extend(controls);
        after.extend(self.dead_with(node, i)?);
        let read = self.read(name, &to, node, &after)?;
        Ok(Output::new(self.patch.add(self.graph, read)?, 0))
    }

    /// A fetched reference. A tensor that is fetched from a variable shares its buffer in TensorFlow, and
    /// shows all that the step wrote to it.
    fn fetched(&mut self, node: &Node, input: Output, to: &Reference) -> Result<Output> {
        let is_whole =
            node.class() == NodeClass::Retval && is_variable(self.graph.node(input.node));
        let writes = self.aliases.in_place.get(&to.variable);
        let Some(writes) = writes.filter(|_| is_whole).cloned() else {
            return Ok(input);
        };
        let name = self.graph.unique_name(&format!("{}/_fetch", node.name));
        let read = self.read(name, to, node, &writes)?;
        Ok(Output::new(self.patch.add(self.graph, read)?, 0))
    }

    fn variable(&mut self, id: NodeId, node: &Node, controls: &[NodeId]) -> Result<()> {
        let Some(&handle) = self.handles.get(&id) else {
            return Ok(());
        };
        let shared = match node.attrs.str("shared_name") {
            Ok(shared) if !shared.is_empty() => shared,
            _ => &node.name,
        };
        let mut attrs = Attrs::default()
            .with("shared_name", AttrValue::str(shared))
            .with(REFERENCE, AttrValue::Bool(true));
        for name in ["dtype", "shape", "container"] {
            if let Some(value) = node.attrs.get(name) {
                attrs.set(name, value.clone());
            }
        }
        let (op, inputs) = match node.op() {
            "TemporaryVariable" => ("_TemporaryVariable", self.temporary(id, &mut attrs)?),
            _ => ("VarHandleOp", Vec::new()),
        };
        let made = self.make(node, String::new(), op, attrs, &inputs, controls)?;
        *self.patch.edit(self.graph, handle) = made;
        let to = Reference {
            variable: id,
            handle: Output::new(handle, 0),
            after: None,
        };
        self.become_read(id, &to, node, &[])
    }

    /// A node of control flow: the handle goes where the reference went.
    fn control(&mut self, id: NodeId, node: &Node, op: &str, controls: &[NodeId]) -> Result<()> {
        let refs = refs_passed(node);
        let mut inputs = Vec::with_capacity(node.inputs.len());
        let mut after = Vec::new();
        for (i, &input) in node.inputs.iter().enumerate() {
            match self.reference(input) {
                Some(to) if refs.contains(&i) => {
                    inputs.push(to.handle);
                    after.extend(to.after);
                }
                None if refs.contains(&i) => {
                    return Err(invalid_argument!(
                        "Input {i} of node {} is not a reference to a variable",
                        node.name
                    ));
                }
                _ => inputs.push(self.value(id, node, i, input, controls)?),
            }
        }
        after.extend(controls);
        let attrs = node.attrs.clone();
        let attrs = attrs.with("T", AttrValue::Type(DType::Resource));
        let made = self.make(node, node.name.clone(), op, attrs, &inputs, &after)?;
        let handle = self.handles.get(&id).copied();
        *self.patch.edit(self.graph, handle.unwrap_or(id)) = made;
        match (handle, self.roots.get(&id).map(|r| r.variable)) {
            (Some(handle), Some(variable)) => {
                let to = Reference {
                    variable,
                    handle: Output::new(handle, 0),
                    after: None,
                };
                self.value_of_control(id, node, &to)
            }
            _ => Ok(()),
        }
    }

    /// Makes a node of control flow return the variable's value when it is fetched.
    fn value_of_control(&mut self, id: NodeId, node: &Node, to: &Reference) -> Result<()> {
        if node.class() != NodeClass::Merge {
            return self.become_read(id, to, node, &[]);
        }
        let name = self.graph.unique_name(&format!("{}/_read", node.name));
        let read = self.read(name, to, node, &[])?;
        let types = [read.outputs[0], DType::Int32].map(AttrValue::Type);
        let read = Output::new(self.patch.add(self.graph, read)?, 0);
        let attrs = Attrs::default().with("T", AttrValue::List(types.to_vec()));
        let inputs = [read, Output::new(to.handle.node, 1)];
        let both = self.make(node, node.name.clone(), "IdentityN", attrs, &inputs, &[])?;
        *self.patch.edit(self.graph, id) = both;
        Ok(())
    }

    fn update(
        &mut self,
        id: NodeId,
        node: &Node,
        op: &str,
        to: &Reference,
        controls: &[NodeId],
    ) -> Result<()> {
        let n_slots = match node.op() {
            "SdcaShrinkL1" => node.inputs.len(),
            op => n_optimized(op),
        };
        let mut inputs = vec![to.handle];
        let mut after: Vec<NodeId> = to.after.into_iter().collect();
        for (i, slot) in node.inputs.iter().enumerate().take(n_slots).skip(1) {
            let to = self.reference(*slot).ok_or_else(|| {
                invalid_argument!("Input {i} of node {} is not a reference", node.name)
            })?;
            inputs.push(to.handle);
            after.extend(to.after);
        }
        inputs.extend(self.values(id, node, inputs.len(), controls)?);
        after.extend(controls);
        let mut attrs = node.attrs.clone();
        let validate = attrs.remove("validate_shape");
        let keeps_attrs = op.starts_with("ResourceScatterNd") || op == "ResourceStridedSliceAssign";
        if n_slots == 0 && !keeps_attrs {
            if let Some(dtype) = attrs.remove("T") {
                attrs.set("dtype", dtype);
            }
            attrs.remove("use_locking");
        }
        let variable = self.graph.node(to.variable);
        if op == "AssignVariableOp"
            && !matches!(validate, Some(AttrValue::Bool(false)))
            && let Some(shape) = variable.attrs.get("shape")
        {
            attrs.set("_declared", shape.clone());
        }
        attrs.set(ORIGIN, AttrValue::str(&node.name));
        let name = self.graph.unique_name(&format!("{}/_update", node.name));
        let update = self.make(node, name, op, attrs, &inputs, &after)?;
        let update = self.patch.add(self.graph, update)?;
        let read_after = Reference {
            variable: to.variable,
            handle: to.handle,
            after: None,
        };
        self.become_read(id, &read_after, node, &[update])
    }
}
