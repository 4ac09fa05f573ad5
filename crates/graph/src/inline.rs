//! Expands calls of library functions in a `GraphDef`, before it becomes a [`Graph`](crate::Graph).

use ferroflow_base::{Result, invalid_argument, not_found};
use ferroflow_model::proto::{self, FunctionDef, GraphDef, NodeDef};
use ferroflow_opdef::{Name, Registry};
use rustc_hash::FxHashMap;
use std::borrow::Cow;

/// Deepest nesting of calls that is expanded; a recursive function is an error.
const MAX_DEPTH: usize = 64;

/// The graph with every PartitionedCall and StatefulPartitionedCall replaced by the body of its
/// function; borrowed when there is none.
///
/// Nodes of a body are named `CALL/NODE`. The call itself becomes an IdentityN of the same name,
/// so that fetches and control edges by its name stay valid.
pub(crate) fn inline_calls<'a>(
    graph: &'a GraphDef,
    registry: &Registry,
) -> Result<Cow<'a, GraphDef>> {
    if !graph.node.iter().any(is_call) {
        return Ok(Cow::Borrowed(graph));
    }
    let functions: FxHashMap<&str, &FunctionDef> = graph
        .library
        .iter()
        .flat_map(|l| &l.function)
        .filter_map(|f| Some((f.signature.as_ref()?.name.as_str(), f)))
        .collect();
    let inliner = Inliner {
        functions,
        registry,
    };
    let mut nodes = Vec::with_capacity(graph.node.len());
    for node in &graph.node {
        inliner.node(node, 0, &mut nodes)?;
    }
    Ok(Cow::Owned(GraphDef {
        node: nodes,
        versions: graph.versions.clone(),
        library: graph.library.clone(),
        ..Default::default()
    }))
}

fn is_call(node: &NodeDef) -> bool {
    matches!(
        node.op.as_str(),
        "PartitionedCall" | "StatefulPartitionedCall"
    )
}

struct Inliner<'a> {
    functions: FxHashMap<&'a str, &'a FunctionDef>,
    registry: &'a Registry,
}

impl Inliner<'_> {
    fn node(&self, node: &NodeDef, depth: usize, out: &mut Vec<NodeDef>) -> Result<()> {
        if !is_call(node) {
            out.push(node.clone());
            return Ok(());
        }
        self.call(node, depth, out)
            .map_err(|e| e.at_node(&node.name, &node.op))
    }

    fn call(&self, call: &NodeDef, depth: usize, out: &mut Vec<NodeDef>) -> Result<()> {
        if depth >= MAX_DEPTH {
            return Err(invalid_argument!(
                "functions call each other more than {MAX_DEPTH} deep; recursion is not expanded"
            ));
        }
        let name = match call.attr.get("f").and_then(|a| a.value.as_ref()) {
            Some(proto::attr_value::Value::Func(f)) => f.name.as_str(),
            _ => return Err(invalid_argument!("the call has no function attr 'f'")),
        };
        let function = self
            .functions
            .get(name)
            .ok_or_else(|| not_found!("function '{name}' is not in the graph's library"))?;
        let signature = function.signature.clone().unwrap_or_default();
        let data: Vec<&String> = call.input.iter().filter(|i| !i.starts_with('^')).collect();
        let controls: Vec<&String> = call.input.iter().filter(|i| i.starts_with('^')).collect();
        if data.len() != signature.input_arg.len() {
            return Err(invalid_argument!(
                "function '{name}' takes {} arguments, the call passes {}",
                signature.input_arg.len(),
                data.len()
            ));
        }
        let body = Body {
            inliner: self,
            prefix: &call.name,
            args: signature
                .input_arg
                .iter()
                .map(|a| a.name.as_str())
                .zip(data)
                .collect(),
            nodes: function
                .node_def
                .iter()
                .map(|n| (n.name.as_str(), n))
                .collect(),
        };
        for node in &function.node_def {
            let mut copy = node.clone();
            copy.name = format!("{}/{}", call.name, node.name);
            copy.input = node
                .input
                .iter()
                .map(|i| body.input(i))
                .collect::<Result<_>>()?;
            // The body runs after what the call waits for.
            copy.input.extend(controls.iter().map(|c| c.to_string()));
            self.node(&copy, depth + 1, out)?;
        }
        let mut results = Vec::new();
        let mut types = proto::attr_value::ListValue::default();
        for output in &signature.output_arg {
            let from = function.ret.get(&output.name).ok_or_else(|| {
                invalid_argument!(
                    "function '{name}' does not say what it returns as '{}'",
                    output.name
                )
            })?;
            results.push(body.input(from)?);
            types.r#type.push(output.r#type);
        }
        let effects = function
            .control_ret
            .values()
            .map(|n| format!("^{}/{n}", call.name));
        let is_empty = results.is_empty();
        results.extend(effects);
        results.extend(controls.iter().map(|c| c.to_string()));
        let mut attr = std::collections::HashMap::new();
        if !is_empty {
            let value = Some(proto::attr_value::Value::List(types));
            attr.insert("T".to_string(), proto::AttrValue { value });
        }
        out.push(NodeDef {
            name: call.name.clone(),
            op: if is_empty { "NoOp" } else { "IdentityN" }.to_string(),
            input: results,
            device: call.device.clone(),
            attr,
            ..Default::default()
        });
        Ok(())
    }
}

struct Body<'a> {
    inliner: &'a Inliner<'a>,
    prefix: &'a str,
    args: FxHashMap<&'a str, &'a String>,
    nodes: FxHashMap<&'a str, &'a NodeDef>,
}

impl Body<'_> {
    /// An input inside a body: `arg`, `node:output_name:position` or `^node`.
    fn input(&self, input: &str) -> Result<String> {
        if let Some(control) = input.strip_prefix('^') {
            return Ok(match self.args.get(control) {
                // Waiting for an argument is waiting for who made it.
                Some(arg) => format!("^{}", crate::parse_tensor_name(arg)?.0),
                None => format!("^{}/{control}", self.prefix),
            });
        }
        if let Some(arg) = self.args.get(input) {
            return Ok(arg.to_string());
        }
        let bad = || invalid_argument!("'{input}' names nothing in the function's body");
        let mut parts = input.split(':');
        let node = parts.next().unwrap_or("");
        let def = self.nodes.get(node).ok_or_else(bad)?;
        let (output, position) = match (parts.next(), parts.next()) {
            (None, _) => return Ok(format!("{}/{node}", self.prefix)),
            (Some(output), position) => (output, position.unwrap_or("0")),
        };
        let position: usize = position.parse().map_err(|_| bad())?;
        let slot = self.flat_slot(def, output, position)?;
        Ok(format!("{}/{node}:{slot}", self.prefix))
    }

    /// The position among all outputs of element `position` of the output argument `output`.
    fn flat_slot(&self, node: &NodeDef, output: &str, position: usize) -> Result<usize> {
        if is_call(node) {
            // A call's outputs are one list.
            return Ok(position);
        }
        let registry = self.inliner.registry;
        let def = registry
            .def(&node.op)?
            .ok_or_else(|| not_found!("Op type not registered '{}'", node.op))?;
        let mut attrs = crate::import::import_attrs(&node.attr, &def, None)?;
        def.complete_attrs(&mut attrs)?;
        let mut first = 0;
        for arg in &def.outputs {
            if arg.name() == output {
                return Ok(first + position);
            }
            first += arg.dtypes(&attrs)?.len();
        }
        Err(invalid_argument!(
            "op {} has no output '{}'",
            node.op,
            Name::Owned(output.to_string())
        ))
    }
}
