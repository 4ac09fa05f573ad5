//! The function library of a graph.

use crate::{ARG, Graph, Node, RETVAL};
use ferroflow_base::{Result, Status, invalid_argument, not_found};
use ferroflow_opdef::{AttrValue, FuncRef};
use ferroflow_tensor::DType;
use rustc_hash::FxHashMap;
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
}

/// Functions by name. One whose body could not be imported is kept with its error, which belongs
/// to whoever calls it.
#[derive(Clone, Default)]
pub struct Library {
    functions: FxHashMap<String, std::result::Result<Arc<Function>, String>>,
}

impl Library {
    /// The function `name`; NOT_FOUND when there is none, INVALID_ARGUMENT when its body is bad.
    pub fn get(&self, name: &str) -> Result<&Arc<Function>> {
        match self.functions.get(name) {
            Some(Ok(function)) => Ok(function),
            Some(Err(message)) => Err(invalid_argument!("function '{name}': {message}")),
            None => Err(not_found!(
                "Function {name} is not defined: it is not in the graph's library"
            )),
        }
    }

    /// Adds or replaces a function.
    pub fn insert(&mut self, name: &str, function: Function) {
        self.functions
            .insert(name.to_string(), Ok(Arc::new(function)));
    }

    pub(crate) fn insert_bad(&mut self, name: &str, error: &Status) {
        self.functions
            .insert(name.to_string(), Err(error.to_string()));
    }

    /// A name that no function has, `base` itself if possible.
    pub fn unique_name(&self, base: &str) -> String {
        let is_free = |name: &String| !self.functions.contains_key(name);
        let mut names = (1..).map(|i| format!("{base}_{i}"));
        Some(base.to_string())
            .filter(is_free)
            .or_else(|| names.find(is_free))
            .unwrap_or_default()
    }

    /// Names of all functions, sorted.
    pub fn names(&self) -> Vec<&str> {
        let mut names: Vec<&str> = self.functions.keys().map(String::as_str).collect();
        names.sort_unstable();
        names
    }

    /// True when there is no function.
    pub fn is_empty(&self) -> bool {
        self.functions.is_empty()
    }
}

impl Function {
    /// The function whose body is `graph`: every argument and every result has one node.
    pub fn new(graph: Graph) -> Result<Function> {
        let dtypes = |op: &str| -> Result<Vec<DType>> {
            let mut found: Vec<(i64, DType)> = Vec::new();
            for (_, node) in graph.iter().filter(|(_, n)| n.op() == op) {
                found.push((node.attrs.int("index")?, node.attrs.dtype("T")?));
            }
            found.sort_by_key(|(i, _)| *i);
            match found.iter().enumerate().find(|(i, (n, _))| *i as i64 != *n) {
                Some((i, _)) => Err(invalid_argument!("the body's {op} number {i} is missing")),
                None => Ok(found.into_iter().map(|(_, t)| t).collect()),
            }
        };
        Ok(Function {
            args: dtypes(ARG)?,
            results: dtypes(RETVAL)?,
            graph,
        })
    }
}

/// The functions that a node calls: the attr, the dtypes it passes and the dtypes it expects.
pub(crate) fn calls_of(node: &Node) -> Vec<(&FuncRef, Vec<DType>, Vec<DType>)> {
    let (attrs, op) = (&node.attrs, node.op());
    let types = |name: &str| attrs.dtypes(name).unwrap_or_default();
    let func = |name: &str| match attrs.get(name) {
        Some(AttrValue::Func(f)) => Some(f),
        _ => None,
    };
    let mut out = Vec::new();
    match op {
        "PartitionedCall" | "StatefulPartitionedCall" => {
            out.extend(func("f").map(|f| (f, types("Tin"), types("Tout"))));
        }
        "If" | "StatelessIf" => {
            for name in ["then_branch", "else_branch"] {
                out.extend(func(name).map(|f| (f, types("Tin"), types("Tout"))));
            }
        }
        "Case" | "StatelessCase" => {
            if let Some(AttrValue::List(branches)) = attrs.get("branches") {
                out.extend(branches.iter().filter_map(|b| match b {
                    AttrValue::Func(f) => Some((f, types("Tin"), types("Tout"))),
                    _ => None,
                }));
            }
        }
        "While" | "StatelessWhile" => {
            out.extend(func("body").map(|f| (f, types("T"), types("T"))));
        }
        "For" => {
            let mut args = vec![DType::Int32];
            args.extend(types("T"));
            out.extend(func("body").map(|f| (f, args, types("T"))));
        }
        _ => {}
    }
    out
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
                && matches!(node.op(), "While" | "StatelessWhile" | "For")
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
        if let "While" | "StatelessWhile" = node.op()
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

fn show(types: &[DType]) -> String {
    let names: Vec<String> = types.iter().map(DType::to_string).collect();
    names.join(", ")
}
