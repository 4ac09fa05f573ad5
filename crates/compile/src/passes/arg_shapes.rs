//! Tells loops, branches and other functions the shapes of their arguments.
//!
//! A function's nodes are optimized without its callers, so that nothing is known of the shapes that they pass, or of the
//! variables and arrays whose handles they pass. Each caller gets a copy of the function whose arguments have them, and passes over its body see what they see in the main graph. The
//! shapes of a loop's variables are what all iterations have in common.

use crate::{Pass, PassCtx};
use ferroflow_base::{Result, internal};
use ferroflow_graph::{
    Function, Graph, HandleData, Node, NodeClass, NodeId, Output, PROVEN_SHAPES, Patch, ShapeMap,
    handle_data, infer_proven_shapes, set_handle_data,
};
use ferroflow_opdef::AttrValue;
use ferroflow_tensor::{DType, PartialShape};
use rustc_hash::FxHasher;
use std::hash::{Hash, Hasher};

pub(crate) const PASS: Pass = Pass {
    name: "arg_shapes",
    about: "tells functions the shapes of their arguments",
    run,
};

/// Rounds in which the results of loops refine what later functions are passed.
const ROUNDS: usize = 3;
/// Iterations after which the shapes of a loop's variables must not change any more.
const MAX_ITERATIONS: usize = 4;
/// Functions of a library from which on it gets no copies: callers that pass ever other shapes could make ever more.
const MAX_FUNCTIONS: usize = 1 << 13;

fn run(graph: &mut Graph, ctx: &PassCtx) -> Result<()> {
    for _ in 0..ROUNDS {
        let shapes = ctx.shapes(graph)?;
        let calls: Vec<NodeId> = graph
            .iter()
            .filter(|(_, n)| callees(n).is_some())
            .map(|(id, _)| id)
            .collect();
        let mut patch = Patch::new();
        let mut refines = false;
        for id in calls {
            refines |= refine(graph, &mut patch, ctx, id, &shapes)?;
        }
        patch.apply(graph);
        if !refines {
            break;
        }
    }
    Ok(())
}

/// The attrs that name the functions of a call, and its first input that is an argument.
fn callees(node: &Node) -> Option<(&'static [&'static str], usize)> {
    match node.class() {
        NodeClass::Call => Some((&["f"], 0)),
        NodeClass::If => Some((&["then_branch", "else_branch"], 1)),
        NodeClass::Case => Some((&["branches"], 1)),
        NodeClass::While => Some((&["cond", "body"], 0)),
        _ => None,
    }
}

/// Makes node `id` call functions that know the shapes of their arguments. Returns whether its outputs are known better.
fn refine(
    graph: &Graph,
    patch: &mut Patch,
    ctx: &PassCtx,
    id: NodeId,
    shapes: &ShapeMap,
) -> Result<bool> {
    let node = graph.node(id);
    let Some((attrs, first)) = callees(node) else {
        return Ok(false);
    };
    let args = node.inputs.iter().skip(first);
    let mut args: Vec<Value> = args.map(|i| Value::of(graph, shapes, *i)).collect();
    let is_loop = node.class() == NodeClass::While;
    if is_loop {
        match variables(graph, ctx, node, args)? {
            Some(common) => args = common,
            None => return Ok(false),
        }
    }
    // What the results of all branches have in common.
    let mut results: Option<Vec<Value>> = None;
    for &attr in attrs {
        let mut value = node.attrs.get(attr).cloned();
        let functions = match &mut value {
            Some(AttrValue::List(list)) => &mut list[..],
            Some(one) => std::slice::from_mut(one),
            None => continue,
        };
        let mut changes = false;
        for function in functions {
            changes |= specialize(graph, patch, ctx, function, &args)?;
            if let (AttrValue::Func(f), false) = (&*function, is_loop) {
                let body = patch.library(graph).get(&f.name)?.clone();
                let of_body = result_values(&body.graph, ctx, body.results.len())?;
                let common = |all: Vec<Value>| {
                    let pairs = all.iter().zip(&of_body);
                    pairs.map(|(a, b)| in_common(a, b)).collect()
                };
                results = Some(results.take().map_or_else(|| of_body.clone(), common));
            }
        }
        if let Some(value) = value.filter(|_| changes) {
            patch.edit(graph, id).attrs.set(attr, value);
        }
    }
    let outputs: Vec<PartialShape> = match node.class() {
        NodeClass::Call => return Ok(false),
        NodeClass::While => args.into_iter().map(|a| a.shape).collect(),
        _ => {
            let results = results.unwrap_or_default();
            results.into_iter().map(|r| r.shape).collect()
        }
    };
    let old = shapes.of(id);
    let new = old.iter().zip(&outputs);
    let new: Vec<PartialShape> = new.map(|(o, n)| o.merge(n).unwrap_or_default()).collect();
    let refines = new.len() == old.len() && new != old;
    if refines {
        let new = AttrValue::List(new.into_iter().map(AttrValue::Shape).collect());
        patch.edit(graph, id).attrs.set(PROVEN_SHAPES, new);
    }
    Ok(refines)
}

/// What is known of a value.
#[derive(Clone, Default, PartialEq)]
struct Value {
    shape: PartialShape,
    /// What it refers to, if it is a handle.
    handle: Option<Vec<HandleData>>,
}

impl Value {
    fn of(graph: &Graph, shapes: &ShapeMap, output: Output) -> Value {
        let is_handle = graph.dtype(output) == Some(DType::Resource);
        Value {
            shape: shapes.get(output),
            handle: is_handle.then(|| handle_data(graph, output)).flatten(),
        }
    }

    /// What is known of an argument of a function, by itself.
    fn of_arg(arg: &Node, id: NodeId, body: &Graph) -> Value {
        let shape = arg.attrs.shape("_shape");
        Value {
            shape: shape.cloned().unwrap_or_default(),
            handle: handle_data(body, Output::new(id, 0)),
        }
    }

    /// What is known of it by itself, and by its caller.
    fn merge(&self, passed: &Value) -> Value {
        let shape = self.shape.merge(&passed.shape);
        Value {
            shape: shape.unwrap_or_else(|| self.shape.clone()),
            handle: self.handle.clone().or_else(|| passed.handle.clone()),
        }
    }
}

/// What is known of the results of a function.
fn result_values(body: &Graph, ctx: &PassCtx, n: usize) -> Result<Vec<Value>> {
    let mut results = vec![Value::default(); n];
    // What contradicts itself fails where it runs.
    let Ok(shapes) = infer_proven_shapes(body, ctx.registry) else {
        return Ok(results);
    };
    for (_, node) in body.iter().filter(|(_, n)| n.class() == NodeClass::Retval) {
        let index = node.attrs.int("index")? as usize;
        if let (Some(result), Some(input)) = (results.get_mut(index), node.inputs.first()) {
            *result = Value::of(body, &shapes, *input);
        }
    }
    Ok(results)
}

/// Makes `function` a copy whose arguments have these shapes, if it does not know them. Callers that pass the same shapes
/// share one. A function that calls itself stays: its copies would need copies in turn. So does one that the shapes
/// contradict: it fails if it is called.
fn specialize(
    graph: &Graph,
    patch: &mut Patch,
    ctx: &PassCtx,
    function: &mut AttrValue,
    args: &[Value],
) -> Result<bool> {
    let AttrValue::Func(function) = function else {
        return Ok(false);
    };
    let library = patch.library(graph);
    let old = library.get(&function.name)?.clone();
    let known = arg_values(&old.graph, args.len())?;
    let pairs = known.iter().zip(args);
    let new: Vec<Value> = pairs.map(|(known, arg)| known.merge(arg)).collect();
    let is_recursive = || library.reachable(&old.graph).contains(&function.name);
    if new == known || library.len() >= MAX_FUNCTIONS || is_recursive() {
        return Ok(false);
    }
    let mut name = format!("{}/shaped_{:08x}", function.name, hash(&new));
    match library.get(&name).ok().cloned() {
        Some(copy) if arg_values(&copy.graph, args.len())? == new => {}
        other => {
            if other.is_some() {
                name = library.unique_name(&name);
            }
            let body = with_args(&old.graph, &new)?;
            if infer_proven_shapes(&body, ctx.registry).is_err() {
                return Ok(false);
            }
            library.insert(&name, old.with_body(body));
        }
    }
    function.name = name;
    Ok(true)
}

fn hash(args: &[Value]) -> u32 {
    let mut hasher = FxHasher::default();
    for arg in args {
        arg.shape.to_string().hash(&mut hasher);
        for data in arg.handle.iter().flatten() {
            (data.shape.to_string(), data.dtype).hash(&mut hasher);
        }
    }
    hasher.finish() as u32
}

/// What the body knows of its arguments.
fn arg_values(body: &Graph, n: usize) -> Result<Vec<Value>> {
    let mut values = vec![Value::default(); n];
    for (id, node) in body.iter().filter(|(_, n)| n.class() == NodeClass::Arg) {
        if let Some(value) = values.get_mut(node.attrs.int("index")? as usize) {
            *value = Value::of_arg(node, id, body);
        }
    }
    Ok(values)
}

/// A body that knows this of its arguments.
fn with_args(body: &Graph, args: &[Value]) -> Result<Graph> {
    let mut patch = Patch::new();
    for (id, node) in body.iter().filter(|(_, n)| n.class() == NodeClass::Arg) {
        if let Some(value) = args.get(node.attrs.int("index")? as usize) {
            let arg = patch.edit(body, id);
            let shape = AttrValue::Shape(value.shape.clone());
            arg.attrs.set("_shape", shape);
            if let Some(data) = &value.handle {
                set_handle_data(arg, data);
            }
        }
    }
    let mut body = body.clone();
    patch.apply(&mut body);
    Ok(body)
}

/// What is known of the variables of a loop in each iteration, if it does not change all the time.
fn variables(
    graph: &Graph,
    ctx: &PassCtx,
    node: &Node,
    mut common: Vec<Value>,
) -> Result<Option<Vec<Value>>> {
    let Some(AttrValue::Func(body)) = node.attrs.get("body") else {
        return Err(internal!("a loop has no body"));
    };
    let body: &Function = graph.library().get(&body.name)?;
    for _ in 0..MAX_ITERATIONS {
        let body = with_args(&body.graph, &common)?;
        let results = result_values(&body, ctx, common.len())?;
        let next = common.iter().zip(&results).map(|(a, b)| in_common(a, b));
        let next: Vec<Value> = next.collect();
        if next == common {
            return Ok(Some(common));
        }
        common = next;
    }
    Ok(None)
}

/// What is known of a value that is one of two.
fn in_common(a: &Value, b: &Value) -> Value {
    let shape = match (a.shape.dims(), b.shape.dims()) {
        (Some(a), Some(b)) if a.len() == b.len() => {
            PartialShape::of(a.iter().zip(b).map(|(a, b)| a.filter(|_| a == b)))
        }
        _ => PartialShape::unknown(),
    };
    let handle = a.handle.clone().filter(|_| a.handle == b.handle);
    Value { shape, handle }
}
