//! The graph of a session that clients extend.

use crate::functions::check_all_calls;
use crate::graph::{Wanted, check_arity, check_edge};
use crate::import::{check_versions, connect_by_name, is_valid_name};
use crate::import_functions::{FunctionTable, Importer, Instance};
use crate::prune::prune_connected;
use crate::{Graph, Node, NodeId, PrunedGraph, Signature, TensorConnection};
use ferroflow_base::{Result, Status, invalid_argument, topological_order};
use ferroflow_model::proto::{FunctionDef, FunctionDefLibrary, GraphDef, NodeDef};
use ferroflow_opdef::{AttrValue, Attrs, NodeClass, OpDef, Registry};
use rustc_hash::{FxHashMap, FxHashSet};
use smallvec::SmallVec;
use std::sync::Arc;

/// A graph that grows; the part that a run needs is cut out of it.
///
/// A node is imported once, when it is added. One whose op is not supported is kept with its error, which
/// running it returns.
///
/// ```
/// use ferroflow_graph::{GraphExecutionState, Signature};
/// use ferroflow_opdef::{Op, Registry};
/// const OPS: &[Op] = &[Op::new("NoOp", "->")];
/// let registry = Registry::new(&[("test", &[("no_op", OPS)])]);
/// let mut state = GraphExecutionState::default();
/// let def = ferroflow_model::graph_from_text("node { name: 'a' op: 'NoOp' }").unwrap();
/// state.extend(def.clone(), &registry).unwrap();
/// assert!(state.extend(def, &registry).is_err(), "'a' exists");
/// ```
#[derive(Default)]
pub struct GraphExecutionState {
    graph: Arc<Graph>,
    functions: FxHashMap<String, FunctionDef>,
    gradients: FxHashMap<String, String>,
    /// Functions that nodes refer to and that were not added yet.
    wanted: Vec<Instance>,
}

/// Nodes and functions that fit a graph.
pub struct CheckedGraphDef {
    nodes: Vec<Node>,
    /// The errors of nodes that cannot run.
    invalid: FxHashMap<NodeId, Status>,
    wanted: Vec<Instance>,
    library: FunctionDefLibrary,
    producer: Option<i32>,
}

impl CheckedGraphDef {
    /// The nodes.
    pub fn nodes(&self) -> &[Node] {
        &self.nodes
    }
}

/// The name of a function in file form.
pub(crate) fn function_name(function: &FunctionDef) -> &str {
    function.signature.as_ref().map_or("", |s| &s.name)
}

impl GraphExecutionState {
    /// The state of an imported graph, and of the functions that nodes added later may call.
    pub fn new(graph: Graph, library: Option<FunctionDefLibrary>) -> Self {
        let mut state = GraphExecutionState {
            graph: Arc::new(graph),
            ..Default::default()
        };
        state.add_functions(library.unwrap_or_default());
        state
    }

    fn add_functions(&mut self, library: FunctionDefLibrary) {
        let functions = library.function.into_iter();
        self.functions
            .extend(functions.map(|f| (function_name(&f).to_string(), f)));
        let gradients = library.gradient.into_iter();
        self.gradients
            .extend(gradients.map(|g| (g.function_name, g.gradient_func)));
    }

    /// Adds nodes and functions. All or nothing: an error leaves the graph as it was.
    ///
    /// # Errors
    ///
    /// Those of [`check`](Self::check).
    pub fn extend(&mut self, def: GraphDef, registry: &Registry) -> Result<()> {
        let checked = self.check(def, registry)?;
        self.add(checked, registry)
    }

    /// Imports nodes and functions without adding them.
    ///
    /// # Errors
    ///
    /// INVALID_ARGUMENT if a version, name, input, attr, arity or dtype is wrong, a name is taken, there is
    /// a cycle, or a function of the same name differs.
    pub fn check(&self, def: GraphDef, registry: &Registry) -> Result<CheckedGraphDef> {
        def.versions.as_ref().map_or(Ok(()), check_versions)?;
        self.check_functions(&def, registry)?;
        self.check_names(&def.node)?;
        let mut functions = function_table(&self.functions, &self.gradients);
        let new = def.library.iter().flat_map(|l| &l.function);
        new.for_each(|f| functions.add(f));
        let first = self.graph.id_bound();
        let names = def.node.iter().map(|n| n.name.as_str());
        let new: FxHashMap<&str, NodeId> = names.zip((first..).map(NodeId::new)).collect();
        let find = |name: &str| new.get(name).copied().or_else(|| self.graph.find(name));
        let producer = def
            .versions
            .as_ref()
            .map_or(self.graph.producer, |v| v.producer);
        let mut importer = Importer::new(registry, None, &functions).of_version(producer);
        let mut nodes = Vec::with_capacity(def.node.len());
        let mut invalid = FxHashMap::default();
        for (i, def) in def.node.iter().enumerate() {
            let at = |e: Status| e.at_node(&def.name, &def.op);
            check_inputs(def, &find)?;
            let is_call = functions.contains(&def.op);
            let (mut node, error) = match importer.node(def) {
                Ok(node) => (node, None),
                Err(e) if is_call || is_unchecked(def, registry) => (unusable(def), Some(at(e))),
                Err(e) => return Err(at(e)),
            };
            connect_by_name(&mut node, def, &find).map_err(at)?;
            if let Some(error) = error {
                invalid.insert(NodeId::new(first + i), error);
            }
            nodes.push(node);
        }
        let wanted = importer.wanted;
        let checked = CheckedGraphDef {
            nodes,
            invalid,
            wanted,
            producer: def.versions.map(|v| v.producer),
            library: def.library.unwrap_or_default(),
        };
        self.check_edges(&checked)?;
        Ok(checked)
    }

    fn check_functions(&self, def: &GraphDef, registry: &Registry) -> Result<()> {
        let mut new: FxHashMap<&str, &FunctionDef> = FxHashMap::default();
        for function in def.library.iter().flat_map(|l| &l.function) {
            let name = function_name(function);
            if registry.op(name).is_some() {
                return Err(invalid_argument!(
                    "Cannot add function '{name}' because an op with the same name already exists."
                ));
            }
            let known = [new.insert(name, function), self.functions.get(name)];
            if known
                .into_iter()
                .flatten()
                .any(|old| !crate::same_function(old, function))
            {
                return Err(invalid_argument!(
                    "Cannot add function '{name}' because a different function with the same name \
                     already exists."
                ));
            }
        }
        Ok(())
    }

    fn check_names(&self, nodes: &[NodeDef]) -> Result<()> {
        let mut new: FxHashSet<&str> = FxHashSet::default();
        for node in nodes {
            if !is_valid_name(&node.name) {
                let illegal = invalid_argument!("Illegal op name '{}'", node.name);
                return Err(illegal.at_node(&node.name, &node.op));
            }
            if self.graph.find(&node.name).is_some() || !new.insert(&node.name) {
                return Err(invalid_argument!(
                    "GraphDef argument to Extend includes node '{}', which was created by a previous \
                     call to Create or Extend in this session.",
                    node.name
                ));
            }
        }
        Ok(())
    }

    /// Checks what new nodes read, and that they do not wait for each other in a cycle.
    fn check_edges(&self, checked: &CheckedGraphDef) -> Result<()> {
        let first = self.graph.id_bound();
        let new = |id: NodeId| id.index().checked_sub(first);
        let node_of = |id: NodeId| match new(id) {
            Some(i) => checked.nodes.get(i),
            None => self.graph.get(id),
        };
        let is_unknown = |id: NodeId| {
            let invalid = checked.invalid.get(&id).or(self.graph.invalid().get(&id));
            invalid.is_some() && node_of(id).is_none_or(|n| n.outputs.is_empty())
        };
        let mut pending = vec![0; checked.nodes.len()];
        let mut readers: Vec<Vec<usize>> = vec![Vec::new(); checked.nodes.len()];
        for (at, node) in checked.nodes.iter().enumerate() {
            if !checked.invalid.contains_key(&NodeId::new(first + at)) {
                self.check_node(node, &node_of, &is_unknown)
                    .map_err(|e| e.at_node(&node.name, node.op()))?;
            }
            for source in node.predecessors().filter_map(new) {
                // The next iteration comes back to a Merge, which does not wait for it.
                if checked.nodes[source].class() != NodeClass::NextIteration {
                    pending[at] += 1;
                    readers[source].push(at);
                }
            }
        }
        let order = topological_order(0..pending.len(), &mut pending, |n| {
            readers[n].iter().copied()
        });
        match readers.len() - order.len() {
            0 => Ok(()),
            left => Err(invalid_argument!("{left} nodes in a cycle")),
        }
    }

    fn check_node<'a>(
        &self,
        node: &Node,
        node_of: &dyn Fn(NodeId) -> Option<&'a Node>,
        is_unknown: &dyn Fn(NodeId) -> bool,
    ) -> Result<()> {
        let dtypes = node.def.input_dtypes(&node.attrs)?;
        check_arity(node, &dtypes)?;
        let references = node.def.input_references(&node.attrs)?;
        for (i, (input, dtype)) in node.inputs.iter().zip(dtypes).enumerate() {
            if let Some(source) = node_of(input.node).filter(|_| !is_unknown(input.node)) {
                let is_reference = references.get(i) == Some(&true);
                let want = Wanted {
                    dtype,
                    is_reference,
                };
                check_edge(node, i, want, source, input.slot as usize)?;
            }
        }
        Ok(())
    }

    /// Adds what was checked against this very graph.
    ///
    /// # Errors
    ///
    /// INVALID_ARGUMENT if the graph has changed since.
    pub fn add(&mut self, checked: CheckedGraphDef, registry: &Registry) -> Result<()> {
        let graph = Arc::make_mut(&mut self.graph);
        for node in checked.nodes {
            graph.add(node)?;
        }
        for (id, error) in checked.invalid {
            graph.set_invalid(id, error);
        }
        graph.producer = checked.producer.unwrap_or(graph.producer);
        self.add_functions(checked.library);
        self.wanted.extend(checked.wanted);
        if self.wanted.is_empty() {
            return Ok(());
        }
        let table = function_table(&self.functions, &self.gradients);
        let mut importer = Importer::new(registry, None, &table).of_version(self.graph.producer);
        importer.wanted = std::mem::take(&mut self.wanted);
        importer.instantiate(Arc::make_mut(&mut self.graph).library_mut());
        self.wanted = importer.wanted;
        Ok(())
    }

    /// The whole graph.
    pub fn graph(&self) -> &Arc<Graph> {
        &self.graph
    }

    /// The part of the graph that a signature needs; readers of the second tensor of one of the
    /// `connections` read the first instead.
    ///
    /// # Errors
    ///
    /// Those of [`prune`](fn@crate::prune), and of calls that do not fit their functions.
    pub fn prune(
        &self,
        signature: &Signature,
        connections: &[TensorConnection],
        registry: &Registry,
    ) -> Result<PrunedGraph> {
        let pruned = prune_connected(&self.graph, signature, connections, registry)?;
        check_all_calls(pruned.graph(), pruned.graph().library())?;
        crate::loop_frames(pruned.graph())?;
        Ok(pruned)
    }
}

fn function_table<'a>(
    functions: &'a FxHashMap<String, FunctionDef>,
    gradients: &'a FxHashMap<String, String>,
) -> FunctionTable<'a> {
    let mut table = FunctionTable::default();
    functions.values().for_each(|f| table.add(f));
    for (of, gradient) in gradients {
        table.add_gradient(of, gradient);
    }
    table
}

/// Whether errors of a node are reported when it runs: its op is unknown, or it is a constant, whose value
/// is checked late.
fn is_unchecked(def: &NodeDef, registry: &Registry) -> bool {
    def.op == "Const" || registry.op(&def.op).is_none()
}

/// A node that cannot run. Of a constant the dtype may be known.
fn unusable(def: &NodeDef) -> Node {
    let dtype = def.attr.get("dtype").filter(|_| def.op == "Const");
    let dtype = dtype.and_then(crate::import_attrs::dtype_of);
    Node {
        name: def.name.clone(),
        def: Arc::new(OpDef::unknown(&def.op)),
        attrs: dtype.map_or(Attrs::default(), |t| {
            Attrs::default().with("dtype", AttrValue::Type(t))
        }),
        inputs: SmallVec::new(),
        controls: SmallVec::new(),
        device: def.device.clone(),
        outputs: dtype.into_iter().collect(),
    }
}

/// Checks the order of a node's inputs and that they exist.
fn check_inputs(def: &NodeDef, find: &dyn Fn(&str) -> Option<NodeId>) -> Result<()> {
    for input in &def.input {
        let name = match input.strip_prefix('^') {
            Some(name) => name,
            None => {
                let parsed = crate::parse_tensor_name(input);
                parsed.map(|(name, _)| name).map_err(|_| {
                    let illegal = invalid_argument!("Illegal op input name '{input}'");
                    illegal.at_node(&def.name, &def.op)
                })?
            }
        };
        if find(name).is_none() {
            return Err(invalid_argument!(
                "Node '{}': Unknown input node '{input}'",
                def.name
            ));
        }
    }
    let first_control = def.input.iter().position(|i| i.starts_with('^'));
    let after = &def.input[first_control.unwrap_or(def.input.len())..];
    match after.iter().any(|i| !i.starts_with('^')) {
        true => Err(
            invalid_argument!("All control inputs must follow all data inputs")
                .at_node(&def.name, &def.op),
        ),
        false => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{def, registry};
    use crate::to_text;

    /// Extends a graph part by part, then fetches `fetch`; returns the part it needs or the error.
    fn check(parts: &[&str], fetch: &str, expect: &str) {
        let mut state = GraphExecutionState::default();
        let extended = parts
            .iter()
            .try_for_each(|part| state.extend(def(part), registry()));
        let signature = Signature {
            fetches: vec![fetch.to_string()],
            ..Default::default()
        };
        let pruned = extended.and_then(|()| state.prune(&signature, &[], registry()));
        let got = match pruned {
            Ok(pruned) => to_text(pruned.graph()),
            Err(e) => e.message().to_string(),
        };
        assert_eq!(got.trim().replace("\n", "; "), expect, "{parts:?}");
    }

    #[test]
    fn nodes_are_added() {
        let x = "x = Placeholder";
        check(
            &[x, "y = Neg(x)", "z = Neg(y)"],
            "y",
            "x = Placeholder(); y = Neg(x); _retval_y_0 = _Retval{index=0}(y)",
        );
        check(&[x, "y = Neg(q)"], "x", "Node 'y': Unknown input node 'q'");
        check(
            &[x, x],
            "x",
            "GraphDef argument to Extend includes node 'x', which was created by a previous call to \
             Create or Extend in this session.",
        );
        check(
            &[x, "y = Mul(x)"],
            "x",
            "NodeDef expected inputs 'float, float' do not match 1 inputs specified; Op<name=Mul; \
             signature=x:T, y:T -> z:T; attr=T:type,default=DT_FLOAT>",
        );
        check(
            &["x = Placeholder{dtype=bool}", "y = Neg(x)"],
            "x",
            "Input 0 of node y was passed bool from x:0 incompatible with expected float.",
        );
        check(&["x = Neg(y)\ny = Neg(x)"], "x", "2 nodes in a cycle");
        check(
            &["x = Placeholder\ny = Neg(^x, x)"],
            "x",
            "All control inputs must follow all data inputs",
        );
    }

    #[test]
    fn unknown_ops_are_refused_when_they_are_needed() {
        let parts = ["x = Placeholder\nu = Nope(x)\nz = Neg(u:3)", "y = Neg(x)"];
        check(
            &parts,
            "y",
            "x = Placeholder(); y = Neg(x); _retval_y_0 = _Retval{index=0}(y)",
        );
        let error = crate::op_not_registered("Nope");
        let refused = error.message();
        check(&parts, "z", refused);
        check(&parts, "u", refused);
        let constant = "x = Placeholder\nc = Const{dtype=float}\ny = Neg(c)";
        check(
            &[constant],
            "y",
            "NodeDef missing attr 'value' from Op<name=Const; signature= -> output:dtype; \
             attr=value:tensor; attr=dtype:type>",
        );
        check(
            &[constant],
            "x",
            "x = Placeholder(); _retval_x_0 = _Retval{index=0}(x)",
        );
    }

    #[test]
    fn functions_are_added() {
        let f = "fn f(a) -> m:y:0:\n  m = Neg(a)\n";
        let call = "x = Placeholder\ny = f(x)";
        check(
            &[f, call],
            "y",
            "x = Placeholder(); y = PartitionedCall{Tin=[float], Tout=[float], f=f}(x); \
             _retval_y_0 = _Retval{index=0}(y)",
        );
        check(
            &[&(f.to_string() + call), f],
            "x",
            "x = Placeholder(); _retval_x_0 = _Retval{index=0}(x)",
        );
        check(
            &[f, "fn f(a) -> a:\n"],
            "x",
            "Cannot add function 'f' because a different function with the same name already exists.",
        );
        check(
            &["fn Neg(a) -> a:\n"],
            "x",
            "Cannot add function 'Neg' because an op with the same name already exists.",
        );
    }
}
