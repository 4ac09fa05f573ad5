//! The function library of a graph.

use crate::{Graph, Node, NodeId};
use ferroflow_base::{Result, Status, invalid_argument, not_found};
use ferroflow_opdef::{AttrValue, FuncRef, NodeClass};
use ferroflow_tensor::DType;
use rustc_hash::{FxHashMap, FxHashSet};
use std::sync::Arc;

/// A function: a graph whose `_Arg` and `_Retval` nodes are its arguments and results.
#[derive(Clone)]
pub struct Function {
    /// The body; its targets are run even if no result needs them.
    pub graph: Graph,
    /// Dtypes of the arguments.
    pub args: Vec<DType>,
    /// Dtypes of the results.
    pub results: Vec<DType>,
    /// Nodes that a caller waits for.
    pub control_results: Vec<NodeId>,
    /// Whether an inlined call keeps a node, which traces show.
    pub noinline: bool,
    /// Whether its nodes are to become machine code where that is possible (`jit_compile` of a tf.function).
    pub must_compile: bool,
}

/// The attr of functions and calls whose nodes are to become machine code (TensorFlow: `kXlaMustCompileAttr` of
/// `compiler/jit/defs.h`).
pub const MUST_COMPILE: &str = "_XlaMustCompile";

/// Functions by name. One whose body could not be imported is kept with its error, which belongs
/// to its callers.
#[derive(Clone, Default)]
pub struct Library {
    functions: FxHashMap<String, Result<Arc<Function>>>,
    /// The functions that are declared as gradients of others.
    gradients: FxHashMap<String, String>,
}

impl Library {
    /// The function `name`.
    ///
    /// # Errors
    ///
    /// NOT_FOUND if the library does not have it, INVALID_ARGUMENT if its body is malformed.
    pub fn get(&self, name: &str) -> Result<&Arc<Function>> {
        match self.functions.get(name) {
            Some(Err(error)) => Err(invalid_argument!("function '{name}': {error}")),
            _ => self.body_of(name),
        }
    }

    /// The function `name`, or the very error of its body.
    ///
    /// # Errors
    /// NOT_FOUND if the library does not have it.
    pub fn body_of(&self, name: &str) -> Result<&Arc<Function>> {
        match self.functions.get(name) {
            Some(function) => function.as_ref().map_err(Status::clone),
            None => Err(not_found!(
                "Function {name} is not defined: it is not in the graph's library"
            )),
        }
    }

    /// The body of the function `name` as a graph that may call the functions of the library.
    ///
    /// # Errors
    /// Those of [`get`](Self::get).
    pub fn graph(self: &Arc<Self>, name: &str) -> Result<Graph> {
        let mut graph = self.get(name)?.graph.clone();
        graph.set_library(self.clone());
        Ok(graph)
    }

    /// Whether there is a function `name`, well-formed or not.
    pub fn contains(&self, name: &str) -> bool {
        self.functions.contains_key(name)
    }

    /// Adds or replaces a function.
    pub fn insert(&mut self, name: &str, function: Function) {
        self.functions
            .insert(name.to_string(), Ok(Arc::new(function)));
    }

    pub(crate) fn insert_bad(&mut self, name: &str, error: Status) {
        self.functions.insert(name.to_string(), Err(error));
    }

    pub(crate) fn declare_gradient(&mut self, of: &str, gradient: String) {
        self.gradients.insert(of.to_string(), gradient);
    }

    /// The function that is declared as the gradient of `name`.
    pub fn gradient_of(&self, name: &str) -> Option<&str> {
        self.gradients.get(name).map(String::as_str)
    }

    /// The functions of these names.
    pub fn subset(&self, names: &FxHashSet<String>) -> Library {
        let entries = names
            .iter()
            .filter_map(|name| self.functions.get_key_value(name));
        Library {
            functions: entries.map(|(k, v)| (k.clone(), v.clone())).collect(),
            gradients: FxHashMap::default(),
        }
    }

    /// The functions that `graph` refers to, and those that these refer to.
    pub fn reachable(&self, graph: &Graph) -> Vec<String> {
        let mut names: Vec<String> = Vec::new();
        let mut seen = FxHashSet::default();
        let mut note = |graph: &Graph, names: &mut Vec<String>| {
            for (_, node) in graph.iter() {
                let new = referred_functions(node).filter(|n| seen.insert(n.to_string()));
                names.extend(new.map(str::to_string));
            }
        };
        note(graph, &mut names);
        let mut next = 0;
        while let Some(name) = names.get(next) {
            next += 1;
            if let Some(Ok(function)) = self.functions.get(name) {
                note(&function.graph, &mut names);
            }
        }
        names
    }

    /// A name that no function has, `base` itself if possible.
    pub fn unique_name(&self, base: &str) -> String {
        crate::unique_name(base, |name| self.functions.contains_key(name))
    }

    /// The names of all functions, sorted.
    pub fn names(&self) -> Vec<&str> {
        let mut names: Vec<&str> = self.functions.keys().map(String::as_str).collect();
        names.sort_unstable();
        names
    }

    /// The number of functions.
    pub fn len(&self) -> usize {
        self.functions.len()
    }

    /// Whether the library is empty.
    pub fn is_empty(&self) -> bool {
        self.functions.is_empty()
    }
}

/// On calls that run all stateful nodes of their function, needed or not: those by the function's name. Other calls run
/// its control outputs.
pub const RUNS_EFFECTS: &str = "_runs_effects";

impl Function {
    /// The nodes that `call` runs even if no result needs them.
    pub fn effects(&self, call: &Node) -> &[NodeId] {
        match call.attrs.bool(RUNS_EFFECTS).unwrap_or(false) {
            true => self.graph.targets(),
            false => &self.control_results,
        }
    }

    /// The function whose body is `graph`: every argument and every result has one node.
    ///
    /// # Errors
    /// INVALID_ARGUMENT if an argument or result has no node or several.
    pub fn new(graph: Graph) -> Result<Function> {
        let dtypes = |class: NodeClass| -> Result<Vec<DType>> {
            let mut found: Vec<(i64, DType)> = Vec::new();
            for (_, node) in graph.iter().filter(|(_, n)| n.class() == class) {
                found.push((node.attrs.int("index")?, node.attrs.dtype("T")?));
            }
            found.sort_unstable_by_key(|(i, _)| *i);
            match found.iter().enumerate().find(|(i, (n, _))| *i as i64 != *n) {
                Some((i, _)) => Err(invalid_argument!(
                    "the body's _{class:?} number {i} is missing"
                )),
                None => Ok(found.into_iter().map(|(_, t)| t).collect()),
            }
        };
        Ok(Function {
            args: dtypes(NodeClass::Arg)?,
            results: dtypes(NodeClass::Retval)?,
            control_results: graph.targets().to_vec(),
            noinline: false,
            must_compile: false,
            graph,
        })
    }

    /// As [`Function::new`], of a body of which some nodes run whether a result needs them or not.
    ///
    /// # Errors
    /// As for [`Function::new`].
    pub fn with_effects(mut graph: Graph, effects: Vec<NodeId>) -> Result<Function> {
        graph.set_targets(effects);
        Function::new(graph)
    }

    /// The function with another body of the same arguments and results.
    #[must_use]
    pub fn with_body(&self, mut graph: Graph) -> Function {
        graph.set_library(Arc::default());
        Function {
            graph,
            args: self.args.clone(),
            results: self.results.clone(),
            control_results: self.control_results.clone(),
            noinline: self.noinline,
            must_compile: self.must_compile,
        }
    }
}

/// The functions that the attrs of a node name.
pub fn referred_functions(node: &Node) -> impl Iterator<Item = &str> {
    node.attrs.iter().flat_map(|(_, value)| {
        let values = match value {
            AttrValue::List(items) => &items[..],
            one => std::slice::from_ref(one),
        };
        values.iter().filter_map(|value| match value {
            AttrValue::Func(f) => Some(f.name.as_str()),
            _ => None,
        })
    })
}

/// The functions that a node calls: the attr, the dtypes it passes and the dtypes it expects.
pub(crate) fn calls_of(node: &Node) -> Vec<(&FuncRef, Vec<DType>, Vec<DType>)> {
    let attrs = &node.attrs;
    let types = |name: &str| attrs.dtypes(name).unwrap_or_default();
    let (names, args, results): (&[&str], _, _) = match node.class() {
        NodeClass::Call => (&["f"], types("Tin"), types("Tout")),
        NodeClass::If => (&["then_branch", "else_branch"], types("Tin"), types("Tout")),
        NodeClass::Case => (&["branches"], types("Tin"), types("Tout")),
        NodeClass::While => (&["body"], types("T"), types("T")),
        NodeClass::For => {
            let mut args = vec![DType::Int32];
            args.extend(types("T"));
            (&["body"], args, types("T"))
        }
        _ => return Vec::new(),
    };
    let values = names.iter().filter_map(|name| attrs.get(name));
    let values = values.flat_map(|value| match value {
        AttrValue::List(items) => &items[..],
        one => std::slice::from_ref(one),
    });
    let functions = values.filter_map(|value| match value {
        AttrValue::Func(f) => Some((f, args.clone(), results.clone())),
        _ => None,
    });
    functions.collect()
}

/// Checks the calls of a graph and of the functions that it refers to.
pub(crate) fn check_all_calls(graph: &Graph, library: &Library) -> Result<()> {
    check_calls(graph, library)?;
    for name in library.reachable(graph) {
        if let Some(Ok(function)) = library.functions.get(&name) {
            check_calls(&function.graph, library)
                .map_err(|e| e.note(format!("in function '{name}'")))?;
        }
    }
    Ok(())
}

/// Checks that the functions that `graph` calls exist and fit the calls.
pub(crate) fn check_calls(graph: &Graph, library: &Library) -> Result<()> {
    for (_, node) in graph.iter() {
        let at = |e: Status| e.at_node(&node.name, node.op());
        for (function, args, results) in calls_of(node) {
            if library
                .functions
                .get(&function.name)
                .is_some_and(|f| f.is_err())
            {
                continue;
            }
            let body = library.get(&function.name).map_err(at)?;
            if body.results.len() != results.len()
                && matches!(node.class(), NodeClass::While | NodeClass::For)
            {
                let kind = node.op().trim_start_matches("Stateless");
                return Err(at(invalid_argument!(
                    "{kind} loop body returned {} arguments. Expected: {}",
                    body.results.len(),
                    results.len()
                )));
            }
            if body.args != args || body.results != results {
                return Err(at(invalid_argument!(
                    "function '{}' takes ({}) and returns ({}), but node '{}' calls it with ({}) \
                     and expects ({})",
                    function.name,
                    show(&body.args),
                    show(&body.results),
                    node.name,
                    show(&args),
                    show(&results)
                )));
            }
        }
        check_declared_gradient(node, library).map_err(at)?;
        if node.class() == NodeClass::While
            && let Some(AttrValue::Func(cond)) = node.attrs.get("cond")
            && !matches!(library.functions.get(&cond.name), Some(Err(_)))
        {
            let body = library.get(&cond.name).map_err(at)?;
            if body.results.len() != 1 {
                return Err(at(invalid_argument!(
                    "Expected a single scalar which can be converted to a boolean, got {} tensors.",
                    body.results.len()
                )));
            }
            if body.args != node.attrs.dtypes("T")? {
                return Err(at(invalid_argument!(
                    "the condition '{}' takes ({}) and returns ({}), but the loop's variables are \
                     ({}) and it must return one value",
                    cond.name,
                    show(&body.args),
                    show(&body.results),
                    show(&node.outputs)
                )));
            }
        }
    }
    Ok(())
}

/// Checks the number of results of the gradient that the library declares for a SymbolicGradient.
fn check_declared_gradient(node: &Node, library: &Library) -> Result<()> {
    let of = match (node.class(), node.attrs.get("f")) {
        (NodeClass::SymbolicGradient, Some(AttrValue::Func(f))) => library.gradient_of(&f.name),
        _ => None,
    };
    match of.map(|name| library.get(name)) {
        Some(Ok(gradient)) if gradient.results.len() != node.outputs.len() => {
            Err(invalid_argument!(
                "SymGrad expects to return {} tensor(s), but get {} tensor(s) instead.",
                node.outputs.len(),
                gradient.results.len()
            ))
        }
        _ => Ok(()),
    }
}

fn show(types: &[DType]) -> String {
    let names: Vec<String> = types.iter().map(DType::to_string).collect();
    names.join(", ")
}
