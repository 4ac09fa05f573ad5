//! A node that is being described, and the checks of adding it
//! (`core/framework/node_def_builder.cc`).

use super::ClientGraph;
use crate::{Node, NodeId, Output};
use ferroflow_base::{Result, Status, invalid_argument, ordered_set};
use ferroflow_opdef::{ArgDef, ArgType, AttrValue, Attrs, Name, OpDef};
use ferroflow_tensor::DType;
use std::collections::BTreeSet;
use std::sync::Arc;

/// A node to be added to a [`ClientGraph`]: its inputs in order, its attrs, its device.
///
/// Attrs that the inputs determine need not be set.
#[derive(Clone, Debug, Default)]
pub struct NodeDescription {
    op: String,
    name: String,
    args: Vec<Arg>,
    attrs: Attrs,
    controls: Vec<NodeId>,
    device: String,
    colocated: BTreeSet<String>,
    /// Attrs that were set to two values.
    conflicts: Vec<String>,
}

/// An input argument.
#[derive(Clone, Debug)]
enum Arg {
    One(Output),
    List(Vec<Output>),
}

impl NodeDescription {
    /// A node of op `op` without inputs.
    pub fn new(op: &str, name: &str) -> Self {
        NodeDescription {
            op: op.to_string(),
            name: name.to_string(),
            ..Default::default()
        }
    }

    /// The op type.
    pub fn op(&self) -> &str {
        &self.op
    }

    /// The name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The same node with another name.
    pub(super) fn named(mut self, name: String) -> Self {
        self.name = name;
        self
    }

    /// Adds the next input argument, one tensor.
    pub fn add_input(&mut self, input: Output) {
        self.args.push(Arg::One(input));
    }

    /// Adds the next input argument, a list of tensors.
    pub fn add_inputs(&mut self, inputs: Vec<Output>) {
        self.args.push(Arg::List(inputs));
    }

    /// Adds a node to wait for.
    pub fn add_control(&mut self, node: NodeId) {
        self.controls.push(node);
    }

    /// Sets the requested device.
    pub fn set_device(&mut self, device: &str) {
        self.device = device.to_string();
    }

    /// Sets an attr; two values are an error of adding the node. `_class` replaces what
    /// [`colocate_with`](Self::colocate_with) added.
    pub fn set_attr(&mut self, name: &str, value: AttrValue) {
        if name == CLASS {
            self.colocated = classes(&value);
            return;
        }
        match self.attrs.get(name) {
            Some(old) if !old.same_value(&value) => self.conflicts.push(format!(
                "Inconsistent values for attr '{name}' {old} vs. {value}"
            )),
            Some(_) => {}
            None => self.attrs.set(name.to_string(), value),
        }
    }

    /// Places the node where the node `name` is.
    pub fn colocate_with(&mut self, name: &str) {
        self.colocated.insert(format!("loc:@{name}"));
    }

    /// Places the node where `other` is: with its group, if it is in one.
    pub(super) fn colocate_like(&mut self, other: &Node) {
        match other.attrs.get(CLASS) {
            Some(group) => self.colocated.extend(classes(group)),
            None => self.colocate_with(&other.name),
        }
    }
}

/// The attr of colocation groups.
const CLASS: &str = "_class";

fn classes(value: &AttrValue) -> BTreeSet<String> {
    let AttrValue::List(list) = value else {
        return BTreeSet::new();
    };
    let text = |item: &AttrValue| match item {
        AttrValue::Str(s) => Some(String::from_utf8_lossy(s).into_owned()),
        _ => None,
    };
    ordered_set(list.iter().filter_map(text))
}

impl ClientGraph {
    /// Adds the node that `description` describes.
    ///
    /// # Errors
    /// NOT_FOUND if the op is not registered; INVALID_ARGUMENT if the name is taken, inputs
    /// or attrs do not match the op, or the shapes of the inputs contradict each other.
    pub fn add(&mut self, description: NodeDescription) -> Result<NodeId> {
        let (name, op) = (description.name.clone(), description.op.clone());
        let def = self
            .op_def(&op)
            .map_err(|e| invalid_argument!("{} while building NodeDef '{name}'", e.message()))?;
        self.check_sources(&description)?;
        let given = self.given(description, &def)?;
        let node = completed(given, &def).map_err(|e| {
            let text = match e.message().strip_prefix("NodeDef missing attr") {
                Some(_) => format!("{}; NodeDef: {{{{node {name}}}}}", e.message()),
                None => format!("{}\n\t; NodeDef: {{{{node {name}}}}}; {def}", e.message()),
            };
            Status::new(e.code(), text)
        })?;
        super::deprecation::check(&op, self.graph.producer)?;
        self.insert(node)
    }

    /// A node as TensorFlow's messages show it, with the shapes of its inputs.
    pub(super) fn summary(&self, node: &Node) -> String {
        let attrs: Vec<String> = node
            .attrs
            .iter()
            .map(|(name, value)| format!("{name}={value}"))
            .collect();
        let source = |o: &Output| {
            let name = self.node(o.node).map_or("", |n| &n.name);
            match o.slot {
                0 => name.to_string(),
                slot => format!("{name}:{slot}"),
            }
        };
        let inputs: Vec<String> = node.inputs.iter().map(source).collect();
        let shapes: Vec<String> = node
            .inputs
            .iter()
            .map(|o| self.shape(*o).map_or("?".to_string(), |s| s.to_string()))
            .collect();
        format!(
            "'{{{{node {}}}}} = {}[{}]({})' with input shapes: {}",
            node.name,
            node.op(),
            attrs.join(", "),
            inputs.join(", "),
            shapes.join(", ")
        )
    }

    /// Checks that the inputs are outputs of nodes of the graph.
    fn check_sources(&self, description: &NodeDescription) -> Result<()> {
        let outputs = description.args.iter().flat_map(|arg| match arg {
            Arg::One(output) => std::slice::from_ref(output),
            Arg::List(list) => list,
        });
        for output in outputs {
            let node = self.node(output.node);
            let (name, n) = node.map_or(("", 0), |n| (&n.name, n.outputs.len()));
            if output.slot as usize >= n {
                return Err(no_output(description.op(), name, output.slot.into(), n));
            }
        }
        Ok(())
    }

    /// The node without what follows from its op's definition.
    fn given(&self, description: NodeDescription, def: &Arc<OpDef>) -> Result<Node> {
        let mut attrs = description.attrs.clone();
        let mut errors = description.conflicts.clone();
        let (n_given, n_declared) = (description.args.len(), def.inputs.len());
        let mut inputs = smallvec::SmallVec::new();
        for (arg, given) in def.inputs.iter().zip(&description.args) {
            let given = match (given, arg) {
                (Arg::List(_), ArgDef::Single { name, .. }) => {
                    errors.push(format!(
                        "List provided to input '{name}' when single Tensor expected"
                    ));
                    continue;
                }
                (Arg::One(_), ArgDef::Repeated { name, .. } | ArgDef::List { name, .. }) => {
                    errors.push(format!("Single tensor passed to '{name}', expected list"));
                    continue;
                }
                (Arg::One(output), _) => std::slice::from_ref(output),
                (Arg::List(list), _) => list,
            };
            if let Err(e) = self.infer(arg, given, &description.attrs, &mut attrs) {
                errors.push(e.message().to_string());
            }
            inputs.extend_from_slice(given);
        }
        if n_given > n_declared {
            errors.push(format!(
                "More Input() calls than the {n_declared} input_args"
            ));
        } else if n_given < n_declared {
            errors.push(format!(
                "{n_given} inputs specified of {n_declared} inputs in Op"
            ));
        }
        let place = format!("while building NodeDef '{}' using {def}", description.name);
        match &errors[..] {
            [] => {}
            [error] => return Err(invalid_argument!("{error} {place}")),
            all => {
                let n = all.len();
                return Err(invalid_argument!("{n} errors {place}:\n{}", all.join("\n")));
            }
        }
        if !description.colocated.is_empty() {
            let list = description.colocated.iter().map(|c| AttrValue::str(c));
            attrs.set(CLASS, AttrValue::List(list.collect()));
        }
        let mut controls = smallvec::SmallVec::new();
        for control in description.controls {
            if !controls.contains(&control) {
                controls.push(control);
            }
        }
        Ok(Node {
            name: description.name,
            def: def.clone(),
            attrs,
            inputs,
            controls,
            device: description.device,
            outputs: Default::default(),
        })
    }

    /// Checks the tensors of an input argument and sets the attrs that they determine.
    fn infer(
        &self,
        arg: &ArgDef,
        given: &[Output],
        client: &Attrs,
        attrs: &mut Attrs,
    ) -> Result<()> {
        let mut set = |name: &Name, value| {
            let is_set = client.get(name).is_some();
            set_inferred(attrs, name, value, is_set)
        };
        let dtypes = given.iter().map(|output| self.dtype(*output));
        let dtypes: Vec<DType> = dtypes.collect::<Result<_>>()?;
        let ty = match arg {
            ArgDef::Single { ty, .. } => ty,
            ArgDef::Repeated { ty, number, .. } => {
                let n = AttrValue::Int(dtypes.len() as i64);
                set(number, n)?;
                ty
            }
            ArgDef::List { types, .. } => {
                let list = dtypes.iter().map(|t| AttrValue::Type(*t)).collect();
                return set(types, AttrValue::List(list));
            }
        };
        if let Some(other) = dtypes.iter().find(|t| *t != &dtypes[0]) {
            return Err(invalid_argument!(
                "Input '{}' passed {other} expected {}",
                arg.name(),
                dtypes[0]
            ));
        }
        for (dtype, output) in dtypes.iter().zip(given) {
            match ty {
                ArgType::Attr(attr) => set(attr, AttrValue::Type(*dtype))?,
                ArgType::Fixed(wanted) if wanted == dtype => {}
                ArgType::Fixed(wanted) => {
                    return Err(invalid_argument!(
                        "Input '{}' passed {dtype} expected {wanted}",
                        arg.name()
                    ));
                }
            }
            if arg.is_ref() && !self.is_reference(*output) {
                return Err(invalid_argument!(
                    "Input '{}' passed {dtype} expected ref type",
                    arg.name()
                ));
            }
        }
        Ok(())
    }

    /// Whether an output is a reference to a variable's buffer.
    pub fn is_reference(&self, output: Output) -> bool {
        let Some(node) = self.node(output.node) else {
            return false;
        };
        let references = node.def.output_references(&node.attrs);
        references.is_ok_and(|list| list.get(output.slot as usize) == Some(&true))
    }
}

/// The error of an input that no node has as an output (`core/graph/node_builder.cc`).
///
/// `op` is that of the node to be added, `source` the other node, which has `n` outputs.
pub fn no_output(op: &str, source: &str, slot: i64, n: usize) -> Status {
    invalid_argument!(
        "Attempt to add output {slot} of {source} not in range [0, {n}) to node with type {op}. Node: \
         {{{{node {source}}}}}"
    )
}

/// Fills in the defaults of attrs and derives the outputs.
fn completed(mut node: Node, def: &OpDef) -> Result<Node> {
    def.complete_attrs(&mut node.attrs)?;
    node.outputs = def.output_dtypes(&node.attrs)?;
    Ok(node)
}

fn set_inferred(attrs: &mut Attrs, name: &Name, value: AttrValue, is_set: bool) -> Result<()> {
    match attrs.get(name) {
        Some(old) if old.same_value(&value) => Ok(()),
        // Clients set attrs after the inputs, so what the inputs determine comes first.
        Some(old) if is_set => Err(invalid_argument!(
            "Inconsistent values for attr '{name}' {value} vs. {old}"
        )),
        Some(old) => Err(invalid_argument!(
            "Inconsistent values for attr '{name}' {old} vs. {value}"
        )),
        None => {
            attrs.set(name.clone(), value);
            Ok(())
        }
    }
}
