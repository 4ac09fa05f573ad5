//! `GraphDef` → [`Graph`], checked.

use crate::client::PRODUCER;
use crate::functions::check_all_calls;
use crate::import_functions::{FunctionTable, Importer};
use crate::onednn;
use crate::{Function, Graph, Library, Node, NodeId, Output};
use ferroflow_base::{Result, Status, invalid_argument};
use ferroflow_model::proto::{self, NodeDef};
use ferroflow_opdef::{NodeClass, Registry};
use ferroflow_tensor::MappedFile;
use rustc_hash::FxHashMap;
use std::sync::Arc;

/// Checks that a graph's makers meant it for a reader like this.
pub(crate) fn check_versions(versions: &proto::VersionDef) -> Result<()> {
    let min_consumer = versions.min_consumer;
    if min_consumer > PRODUCER {
        return Err(invalid_argument!(
            "GraphDef min consumer version {min_consumer} above current version \
             {PRODUCER} for Ferroflow. Please upgrade it."
        ));
    }
    if versions.bad_consumers.contains(&PRODUCER) {
        return Err(invalid_argument!(
            "GraphDef disallows consumer version {PRODUCER}. Please upgrade Ferroflow: this \
             version is likely buggy."
        ));
    }
    Ok(())
}

/// Builds a graph from its file form and verifies it. Functions that nodes refer to are instantiated in
/// its library; nothing is expanded or rewritten. `file` is the mapping that constants may stay in.
///
/// # Errors
///
/// The first of: a format version that cannot be read, unknown ops, duplicate names, missing or
/// ill-typed attrs, dangling inputs, arity, dtypes along edges, cycles outside loops, calls that do not
/// fit their functions; the node is named.
pub fn import_graph(
    def: &proto::GraphDef,
    file: Option<&Arc<MappedFile>>,
    registry: &Registry,
) -> Result<Graph> {
    let mut graph = Graph::new();
    if let Some(versions) = &def.versions {
        graph.producer = versions.producer;
        check_versions(versions)?;
    }
    if def.node.is_empty() {
        return Err(invalid_argument!(
            "the GraphDef has no node; is this a frozen graph?"
        ));
    }
    let functions = FunctionTable::new(def.library.as_ref());
    let mut importer = Importer::new(registry, file, &functions).of_version(graph.producer);
    import_nodes(&mut graph, &def.node, &mut importer)?;
    let mut library = Library::default();
    importer.instantiate(&mut library);
    for (_, node) in graph.iter() {
        if node.class() == NodeClass::Call {
            check_callee(node, &library)?;
        }
    }
    check_all_calls(&graph, &library)?;
    graph.set_library(Arc::new(library));
    Ok(graph)
}

/// The body of a function that is called, not only referred to, must be valid.
fn check_callee(node: &Node, library: &Library) -> Result<()> {
    let callee = crate::functions::calls_of(node);
    let checked = callee
        .iter()
        .try_for_each(|(f, ..)| library.body_of(&f.name).map(|_: &Arc<Function>| ()));
    checked.map_err(|e| e.at_node(&node.name, node.op()))
}

fn import_nodes(graph: &mut Graph, nodes: &[NodeDef], importer: &mut Importer) -> Result<()> {
    let mut ids: FxHashMap<&str, NodeId> = FxHashMap::default();
    ids.reserve(nodes.len());
    for (i, node) in nodes.iter().enumerate() {
        if !is_valid_name(&node.name) {
            return Err(invalid_argument!(
                "Node '{}': Node name contains invalid characters",
                node.name
            ));
        }
        if ids.insert(&node.name, NodeId::new(i)).is_some() {
            return Err(invalid_argument!("Node '{}' is not unique", node.name));
        }
    }
    for def in nodes {
        let at = |e: Status| e.at_node(&def.name, &def.op);
        let mut node = importer.node(def).map_err(at)?;
        connect_by_name(&mut node, def, &|name| ids.get(name).copied()).map_err(at)?;
        graph.add(node)?;
    }
    graph.verify_with_references()?;
    crate::loop_frames(graph).map(|_| ())
}

/// Sets the inputs of a node; `find` knows the nodes by name, `source` the outputs.
pub(crate) fn connect(
    node: &mut Node,
    def: &NodeDef,
    find: &dyn Fn(&str) -> Option<NodeId>,
    source: &dyn Fn(&str) -> Result<Output>,
) -> Result<()> {
    for input in &def.input {
        if let Some(name) = input.strip_prefix('^') {
            let id = find(name).ok_or_else(|| unknown_input(def, name))?;
            if !node.controls.contains(&id) {
                node.controls.push(id);
            }
            continue;
        }
        if !node.controls.is_empty() {
            return Err(invalid_argument!(
                "All control inputs must follow all data inputs in NodeDef: {{{{node {}}}}}",
                node.name
            ));
        }
        if onednn::is_input(def, node.inputs.len()) {
            node.inputs.push(source(input)?);
        }
    }
    Ok(())
}

/// [`connect`] where data inputs are `NODE` or `NODE:OUTPUT`.
pub(crate) fn connect_by_name(
    node: &mut Node,
    def: &NodeDef,
    find: &dyn Fn(&str) -> Option<NodeId>,
) -> Result<()> {
    connect(node, def, find, &|input| {
        let (name, slot) = crate::parse_tensor_name(input)?;
        let id = find(name).ok_or_else(|| unknown_input(def, name))?;
        Ok(Output::new(id, slot))
    })
}

fn unknown_input(def: &NodeDef, name: &str) -> Status {
    invalid_argument!("Node '{}': Unknown input node '{name}'", def.name)
}

/// TensorFlow's rule for node names in files: letters, digits and `_ . / \ > -`, the first a letter, a digit,
/// `.` or `_`.
pub fn is_valid_name(name: &str) -> bool {
    let mut bytes = name.bytes();
    bytes
        .next()
        .is_some_and(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_'))
        && bytes.all(|b| b.is_ascii_alphanumeric() || b"_./\\>-".contains(&b))
}

#[cfg(test)]
mod tests {
    use crate::testing::graph;
    use crate::to_text;

    /// The graph as text, or its error.
    fn check(text: &str, expect: &str) {
        let got = match graph(text) {
            Ok(graph) => to_text(&graph),
            Err(e) => e.message().to_string(),
        };
        assert_eq!(got.trim(), expect, "{text}");
    }

    #[test]
    fn graphs() {
        check(
            "x = Placeholder\ny = Neg(x)",
            "x = Placeholder()\ny = Neg(x)",
        );
        check(
            "y = Pair(x)\nx = Placeholder\nz = Mul(y:1, y, ^x)",
            "x = Placeholder()\ny = Pair(x)\nz = Mul(y:1, y, ^x)",
        );
        check(
            "fn f(a) -> m:z:0:\n  m = Mul(a, a)\nx = Placeholder\ny = f(x)",
            "x = Placeholder()\ny = PartitionedCall{Tin=[float], Tout=[float], f=f}(x)",
        );
    }

    #[test]
    fn errors() {
        check("", "the GraphDef has no node; is this a frozen graph?");
        check("x = Neg(y)", "Node 'x': Unknown input node 'y'");
        check("x = NoOp\nx = NoOp", "Node 'x' is not unique");
        check(
            "-x = NoOp",
            "Node '-x': Node name contains invalid characters",
        );
        check("x = Nope", crate::op_not_registered("Nope").message());
        check(
            "x = Placeholder\ny = Mul(x)",
            "NodeDef expected inputs 'float, float' do not match 1 inputs specified; Op<name=Mul; \
             signature=x:T, y:T -> z:T; attr=T:type,default=DT_FLOAT>",
        );
        check(
            "x = Placeholder{dtype=int32}\ny = Neg(x)",
            "Input 0 of node y was passed int32 from x:0 incompatible with expected float.",
        );
        check(
            "x = Placeholder\ny = Neg(x:1)",
            "Node 'y': Connecting to invalid output 1 of source node x which has 1 outputs.",
        );
        check(
            "x = Placeholder\ny = Assign(x, x)",
            "Input 0 of node y was passed float from x:0 incompatible with expected float_ref.",
        );
        check(
            "x = Placeholder\ny = Neg(^x, x)",
            "All control inputs must follow all data inputs in NodeDef: {{node y}}",
        );
        check(
            "x = Neg(y)\ny = Neg(x)",
            "the graph has a cycle that is not a while loop (no NextIteration on it): y -> x -> y",
        );
        check(
            "x = Placeholder\ny = Exit(x)",
            "Exit node 'y' is outside any loop",
        );
    }

    #[test]
    fn errors_of_functions() {
        check(
            "fn f(a) -> m:y:0:\n  m = Nope(a)\nx = Placeholder\ny = f(x)",
            crate::op_not_registered("Nope").message(),
        );
        check(
            "fn f(a) -> m:q:0:\n  m = Neg(a)\nx = Placeholder\ny = f(x)",
            "op Neg has no output 'q'",
        );
        check(
            "fn f(a) -> n:y:0:\n  m = Neg(a)\nx = Placeholder\ny = f(x)",
            "'n:y:0' is not a node or argument of the function",
        );
        check(
            "fn f(a) -> a:\n  m = Neg(^b)\nx = Placeholder\ny = f(x)",
            "Node 'm': Unknown input node 'b'",
        );
    }
}
