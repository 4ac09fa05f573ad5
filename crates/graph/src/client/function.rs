//! Functions made from graphs (`tensorflow/c/c_api_function.cc`,
//! `core/framework/graph_to_functiondef.cc`).

use super::ClientGraph;
use crate::export::{export_attr, export_node};
use crate::{Node, NodeId, Output};
use ferroflow_base::{Result, Status, invalid_argument, unimplemented_error};
use ferroflow_model::proto::{self, FunctionDef, attr_value::Value as Proto, op_def};
use ferroflow_opdef::{AttrValue, NodeClass};
use ferroflow_tensor::DType;
use rustc_hash::{FxHashMap, FxHashSet};
use std::collections::BTreeSet;

/// What a function is made of.
#[derive(Clone, Debug, Default)]
pub struct FunctionRequest<'a> {
    /// The function's name.
    pub name: &'a str,
    /// Whether a hash of the function is added to the name.
    pub append_hash: bool,
    /// The nodes of the body; all but the inputs if `None`.
    pub body: Option<Vec<NodeId>>,
    /// The function's arguments.
    pub inputs: &'a [Output],
    /// The function's results.
    pub outputs: &'a [Output],
    /// Names of the results, if given.
    pub output_names: Option<Vec<String>>,
    /// Nodes that run for their effects.
    pub control_outputs: &'a [NodeId],
    /// Names of these, if given.
    pub control_output_names: Option<Vec<String>>,
    /// A text for humans.
    pub description: Option<&'a str>,
}

/// Names in a function: arguments, results and nodes share one namespace.
#[derive(Default)]
struct Names {
    used: FxHashMap<String, usize>,
    of_nodes: FxHashMap<String, String>,
}

impl Names {
    fn unique(&mut self, name: &str) -> String {
        let Some(next) = self.used.get(name).copied() else {
            self.used.insert(name.to_string(), 0);
            return name.to_string();
        };
        let mut next = next;
        loop {
            let candidate = format!("{name}_{next}");
            next += 1;
            if !self.used.contains_key(&candidate) {
                self.used.insert(candidate.clone(), 0);
                self.used.insert(name.to_string(), next);
                return candidate;
            }
        }
    }

    /// The name of an argument that comes from node `name`.
    fn argument(&mut self, name: &str) -> String {
        let unique = self.unique(&normalized(name));
        self.of_nodes.insert(name.to_string(), unique.clone());
        unique
    }

    fn node(&mut self, name: &str) -> String {
        let unique = self.unique(name);
        self.of_nodes.insert(name.to_string(), unique.clone());
        unique
    }
}

/// Lower case, `_` for other characters than letters and digits, from the first letter on.
fn normalized(name: &str) -> String {
    let lower = name.bytes().map(|b| match b.is_ascii_alphanumeric() {
        true => b.to_ascii_lowercase() as char,
        false => '_',
    });
    let name: String = lower.skip_while(|c| !c.is_ascii_alphabetic()).collect();
    match name.is_empty() {
        true => "unknown".to_string(),
        false => name,
    }
}

impl ClientGraph {
    /// Makes a function of a part of the graph.
    ///
    /// # Errors
    /// INVALID_ARGUMENT if an input, output or body node is not in the graph, a tensor that the body needs
    /// is not available in it, or names are repeated.
    pub fn to_function(&self, request: &FunctionRequest) -> Result<FunctionDef> {
        self.check_inputs(request)?;
        self.check_outputs(request)?;
        let body = self.body_of(request)?;
        let mut def = FunctionDef::default();
        let mut signature = proto::OpDef {
            description: request.description.unwrap_or("").to_string(),
            ..Default::default()
        };
        let mut names = Names::default();
        self.results(request, &mut names, &mut signature)?;
        let mut tensors = self.arguments(request, &mut names, &mut signature, &mut def)?;
        for id in &body {
            self.name_outputs(*id, &mut names, &mut tensors)?;
        }
        self.fill_body(request, &body, &names, &tensors, &mut signature, &mut def)?;
        for (arg, output) in signature.output_arg.iter().zip(request.outputs) {
            let from = tensors.get(output).ok_or_else(|| {
                invalid_argument!(
                    "TF_Output {} is neither in the function body nor among function inputs. \
                     Encountered while creating function '{}'",
                    self.tensor_name(*output),
                    request.name
                )
            })?;
            def.ret.insert(arg.name.clone(), from.clone());
        }
        def.signature = Some(signature);
        let name = match request.append_hash {
            true => format!("{}_{}", request.name, super::fingerprint::of_function(&def)),
            false => request.name.to_string(),
        };
        if let Some(signature) = &mut def.signature {
            signature.name = name;
        }
        self.control_results(request, &names, &mut def)?;
        Ok(def)
    }

    fn tensor_name(&self, output: Output) -> String {
        let name = self.node(output.node).map_or("", |n| n.name.as_str());
        format!("{name}:{}", output.slot)
    }

    /// Checks that an output exists and is not a reference.
    fn check_value(&self, output: Output, context: &str) -> Result<()> {
        let at = |e: Status| {
            let text = format!("{}\n\t{context}", e.message());
            Status::new(e.code(), text)
        };
        self.dtype(output).map_err(at)?;
        match self.is_reference(output) {
            false => Ok(()),
            true => Err(at(invalid_argument!(
                "Output {} of node '{}' has a reference type {}_ref",
                output.slot,
                self.node(output.node).map_or("", |n| &n.name),
                self.dtype(output)?
            ))),
        }
    }

    fn check_inputs(&self, request: &FunctionRequest) -> Result<()> {
        let mut seen = FxHashSet::default();
        for (i, input) in request.inputs.iter().enumerate() {
            let context = format!(
                "Encountered while processing input {i} into function '{}'",
                request.name
            );
            self.check_value(*input, &context)?;
            if !seen.insert(*input) {
                return Err(invalid_argument!(
                    "TF_Output {} appears more than once in the input list",
                    self.tensor_name(*input)
                ));
            }
        }
        Ok(())
    }

    fn check_outputs(&self, request: &FunctionRequest) -> Result<()> {
        for (i, output) in request.outputs.iter().enumerate() {
            let context = match self.dtype(*output) {
                Err(_) => format!(
                    "Encountered while processing output {i} from function '{}'",
                    request.name
                ),
                Ok(_) => format!("Encountered while creating function '{}'", request.name),
            };
            self.check_value(*output, &context)?;
        }
        Ok(())
    }

    fn body_of(&self, request: &FunctionRequest) -> Result<Vec<NodeId>> {
        if let Some(body) = &request.body {
            return Ok(body.clone());
        }
        let mut body = Vec::new();
        for (id, node) in self.graph().iter() {
            if !request.inputs.iter().any(|i| i.node == id) {
                body.push(id);
            } else if node.outputs.len() != 1 {
                return Err(invalid_argument!(
                    "When `num_opers` is set to -1, nodes referenced in `inputs` must have a single \
                     output. Node {} has {} outputs. Encountered while creating function '{}'",
                    node.name,
                    node.outputs.len(),
                    request.name
                ));
            }
        }
        Ok(body)
    }

    /// Names the results first, so that given names do not collide with others.
    fn results(
        &self,
        request: &FunctionRequest,
        names: &mut Names,
        signature: &mut proto::OpDef,
    ) -> Result<()> {
        for (i, output) in request.outputs.iter().enumerate() {
            let given = request.output_names.as_ref().and_then(|n| n.get(i));
            let name = match given {
                Some(name) if names.used.contains_key(name) => {
                    return Err(invalid_argument!(
                        "Cannot have duplicate output names. Name '{name}' appears more than once in \
                         'output_names' array."
                    ));
                }
                Some(name) => names.unique(name),
                None => {
                    let node = self.node(output.node).map_or("", |n| n.name.as_str());
                    names.unique(&normalized(node))
                }
            };
            signature
                .output_arg
                .push(argument(name, self.dtype(*output)?));
        }
        Ok(())
    }

    /// Declares the arguments; returns the tensors that they stand for.
    fn arguments(
        &self,
        request: &FunctionRequest,
        names: &mut Names,
        signature: &mut proto::OpDef,
        def: &mut FunctionDef,
    ) -> Result<FxHashMap<Output, String>> {
        let mut tensors = FxHashMap::default();
        for (i, input) in (0u32..).zip(request.inputs) {
            let Some(node) = self.node(input.node) else {
                continue;
            };
            let dtype = self.dtype(*input)?;
            let name = names.argument(&node.name);
            signature.input_arg.push(argument(name.clone(), dtype));
            let attrs = argument_attrs(node, dtype)?;
            if !attrs.attr.is_empty() {
                def.arg_attr.insert(i, attrs);
            }
            tensors.insert(*input, name);
        }
        Ok(tensors)
    }

    /// Names a node of the body and its outputs, which are `NODE:OUTPUT:POSITION`.
    fn name_outputs(
        &self,
        id: NodeId,
        names: &mut Names,
        tensors: &mut FxHashMap<Output, String>,
    ) -> Result<()> {
        let Some(node) = self.node(id) else {
            return Err(invalid_argument!(
                "a node of the function is not in the graph"
            ));
        };
        let name = names.node(&node.name);
        let mut slot = 0;
        for arg in &node.def.outputs {
            for i in 0..arg.dtypes(&node.attrs)?.len() {
                let text = || format!("{name}:{}:{i}", arg.name());
                tensors.entry(Output::new(id, slot)).or_insert_with(text);
                slot += 1;
            }
        }
        Ok(())
    }

    fn fill_body(
        &self,
        request: &FunctionRequest,
        body: &[NodeId],
        names: &Names,
        tensors: &FxHashMap<Output, String>,
        signature: &mut proto::OpDef,
        def: &mut FunctionDef,
    ) -> Result<()> {
        for id in body {
            let Some(node) = self.node(*id) else { continue };
            let mut inputs = Vec::with_capacity(node.inputs.len());
            for (i, input) in node.inputs.iter().enumerate() {
                let from = tensors.get(input).ok_or_else(|| {
                    invalid_argument!(
                        "Input {i}, '{}', of node '{}' in function '{}' is not available. You might need \
                         to include it in inputs or include its source node in the body",
                        self.tensor_name(*input),
                        node.name,
                        request.name
                    )
                })?;
                inputs.push(from.clone());
            }
            let mut controls: Vec<&str> = Vec::new();
            for control in &node.controls {
                controls.extend(self.node(*control).map(|n| n.name.as_str()));
            }
            controls.sort_unstable();
            for control in controls {
                let from = names.of_nodes.get(control).ok_or_else(|| {
                    invalid_argument!(
                        "The source of control edge [id={} {control}:-1 -> {}:-1] is not in the body. \
                         Encountered while creating function '{}'",
                        self.edge_number(*id, control),
                        node.name,
                        request.name
                    )
                })?;
                inputs.push(format!("^{from}"));
            }
            let mut exported = export_node(self.graph(), &without_controls(node), inputs)?;
            exported.name = names.of_nodes.get(&node.name).cloned().unwrap_or_default();
            signature.is_stateful |= node.def.flags.stateful;
            declare_placeholders(node, signature)?;
            def.node_def.push(exported);
        }
        Ok(())
    }

    /// The number of a control edge: edges count in the order in which they were added, after edge 0 from
    /// TensorFlow's source to its sink.
    fn edge_number(&self, id: NodeId, control: &str) -> usize {
        let mut n = 1;
        for (other, node) in self.graph().iter() {
            n += node.inputs.len();
            for c in &node.controls {
                if other == id && self.node(*c).is_some_and(|c| c.name == control) {
                    return n;
                }
                n += 1;
            }
        }
        n
    }

    fn control_results(
        &self,
        request: &FunctionRequest,
        names: &Names,
        def: &mut FunctionDef,
    ) -> Result<()> {
        let outputs = request.control_outputs;
        if let Some(given) = request
            .control_output_names
            .as_ref()
            .filter(|g| !g.is_empty())
            && given.len() != outputs.len()
        {
            return Err(invalid_argument!(
                "Expected number of control outputs ({}) and the number of control output names ({}) to \
                 match but they do not.",
                outputs.len(),
                given.len()
            ));
        }
        let mut seen = BTreeSet::new();
        for (i, id) in outputs.iter().enumerate() {
            let node = self.node(*id).map_or("", |n| n.name.as_str());
            let given = request.control_output_names.as_ref().and_then(|n| n.get(i));
            let name = given.map_or(node, String::as_str);
            if name.is_empty() {
                return Err(invalid_argument!("Control output name must be not empty"));
            }
            if !seen.insert(name.to_string()) {
                return Err(invalid_argument!("Repeated control output name: {name}"));
            }
            let from = names.of_nodes.get(node);
            let from = from
                .ok_or_else(|| invalid_argument!("Control output node name must be not empty"))?;
            def.control_ret.insert(name.to_string(), from.clone());
        }
        if let Some(signature) = &mut def.signature {
            signature.control_output = seen.into_iter().collect();
        }
        Ok(())
    }
}

fn without_controls(node: &Node) -> Node {
    let mut node = node.clone();
    node.controls.clear();
    node
}

fn argument(name: String, dtype: DType) -> op_def::ArgDef {
    op_def::ArgDef {
        name,
        r#type: dtype as i32,
        ..Default::default()
    }
}

/// The attrs of an argument: internal ones, and the shape.
fn argument_attrs(node: &Node, dtype: DType) -> Result<proto::function_def::ArgAttrs> {
    let mut attrs = proto::function_def::ArgAttrs::default();
    let shape_list = |shape| {
        let list = proto::attr_value::ListValue {
            shape: vec![shape],
            ..Default::default()
        };
        let value = Some(Proto::List(Box::new(list)));
        proto::AttrValue { value }
    };
    for (name, value) in node.attrs.iter() {
        match value {
            _ if name.starts_with('_') => {
                attrs.attr.insert(name.to_string(), export_attr(value)?);
            }
            AttrValue::Shape(shape) if name == "shape" && dtype != DType::Resource => {
                let shape = ferroflow_model::shape_to_proto(shape);
                attrs
                    .attr
                    .insert("_output_shapes".into(), shape_list(shape));
            }
            AttrValue::Tensor(tensor) if node.class() == NodeClass::Const => {
                let shape = ferroflow_model::shape_to_proto(&tensor.shape().into());
                attrs
                    .attr
                    .insert("_output_shapes".into(), shape_list(shape));
            }
            _ => {}
        }
    }
    Ok(attrs)
}

/// Declares the attrs of the function that placeholders of a node's attrs refer to.
fn declare_placeholders(node: &Node, signature: &mut proto::OpDef) -> Result<()> {
    for (name, value) in node.attrs.iter() {
        let AttrValue::Placeholder(placeholder) = value else {
            continue;
        };
        if signature.attr.iter().any(|a| a.name == *placeholder) {
            continue;
        }
        let def = super::op_def_to_proto(&node.def)?;
        let attr = def.attr.into_iter().find(|a| a.name == **name).ok_or_else(|| {
            unimplemented_error!(
                "Placeholder value is not supported for attributes not in OpDef. Attribute: {name}, \
                 OpDef: {}",
                node.def
            )
        })?;
        signature.attr.push(op_def::AttrDef {
            name: placeholder.clone(),
            r#type: attr.r#type,
            ..Default::default()
        });
    }
    Ok(())
}
