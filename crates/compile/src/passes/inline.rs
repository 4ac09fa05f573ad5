//! Replaces calls by the bodies of their functions.
//!
//! A node of a body is named `CALL/NODE`. The call itself becomes an IdentityN, so that control edges
//! by its name stay valid.

use super::body::{BodyCopier, Boundary};
use super::composite::ON_ONE_DEVICE;
use crate::PassCtx;
use crate::view::may_be_dead;
use ferroflow_base::{Result, invalid_argument};
use ferroflow_graph::{Graph, MUST_COMPILE, Node, NodeClass, NodeId, Output};
use ferroflow_opdef::{AttrValue, Attrs};
use std::rc::Rc;

/// Deepest nesting of calls that is inlined; what is deeper, or recursive, stays a call.
const MAX_DEPTH: usize = 64;
/// Most nodes that are added; calls beyond stay calls.
const MAX_ADDED: usize = 1 << 18;

/// A call and the functions that it was copied out of.
struct Todo {
    id: NodeId,
    stack: Rc<Vec<String>>,
}

/// Inlines the calls of a graph; `name` is the function whose body it is.
///
/// A graph with conditionals keeps its calls, and a body with some stays a function: a body's constants
/// would be alive where the call is dead.
pub(crate) fn run(graph: &mut Graph, ctx: &PassCtx, name: Option<&str>) -> Result<()> {
    let is_call = |node: &Node| node.class() == NodeClass::Call;
    if !graph.iter().any(|(_, n)| is_call(n)) || may_be_dead(graph) {
        return Ok(());
    }
    let limit = graph.id_bound().saturating_add(MAX_ADDED);
    let stack: Rc<Vec<String>> = Rc::new(name.into_iter().map(str::to_string).collect());
    let mut copier = BodyCopier::new(ctx, graph);
    let enqueue = |graph: &Graph, ids: &[NodeId], stack: &Rc<Vec<String>>| {
        let calls = ids.iter().rev().filter(|id| is_call(graph.node(**id)));
        let todo = calls.map(|id| Todo {
            id: *id,
            stack: stack.clone(),
        });
        todo.collect::<Vec<Todo>>()
    };
    let ids: Vec<NodeId> = copier.graph.iter().map(|(id, _)| id).collect();
    let mut queue = enqueue(copier.graph, &ids, &stack);
    while let Some(todo) = queue.pop() {
        if todo.stack.len() >= MAX_DEPTH || copier.graph.id_bound() >= limit {
            continue;
        }
        let call = copier.graph.node(todo.id).clone();
        let added = inline(&mut copier, &todo, &call);
        let added = added.map_err(|e| e.at_node(&call.name, call.op()))?;
        if let Some((function, nodes)) = added {
            let mut stack = Vec::clone(&todo.stack);
            stack.push(function);
            queue.extend(enqueue(copier.graph, &nodes, &Rc::new(stack)));
        }
    }
    let BodyCopier { graph, patch, .. } = copier;
    patch.apply(graph);
    Ok(())
}

/// Inlines one call; returns the function's name and the nodes of the body, or `None` if the call stays.
fn inline(
    copier: &mut BodyCopier,
    todo: &Todo,
    call: &Node,
) -> Result<Option<(String, Vec<NodeId>)>> {
    let Some(AttrValue::Func(f)) = call.attrs.get("f") else {
        return Err(invalid_argument!("the call has no function attr 'f'"));
    };
    let function = copier.graph.library().body_of(&f.name)?.clone();
    if todo.stack.contains(&f.name) || may_be_dead(&function.graph) {
        return Ok(None);
    }
    if call.inputs.len() != function.args.len() {
        return Err(invalid_argument!(
            "function '{}' takes {} arguments, the call passes {}",
            f.name,
            function.args.len(),
            call.inputs.len()
        ));
    }
    let is_on_one_device = call.attrs.bool(ON_ONE_DEVICE).unwrap_or(false);
    let must_compile = function.must_compile || call.attrs.bool(MUST_COMPILE).unwrap_or(false);
    // The body runs after what the call waits for.
    let mut finish = |_: NodeId, node: &Node, copy: &mut Node| {
        if must_compile {
            copy.attrs.set(MUST_COMPILE, AttrValue::Bool(true));
        }
        if is_on_one_device {
            copy.device.clear();
        }
        for control in call.controls.iter().filter(|_| !node.is_free_constant()) {
            if !copy.controls.contains(control) {
                copy.controls.push(*control);
            }
        }
    };
    let (args, direct) = (&call.inputs, Boundary::Direct);
    let first = copier.graph.id_bound();
    let copied = copier.copy(&function, &call.name, args, direct, &mut finish)?;
    copier.place_added(first, &call.device)?;
    let mut controls = call.controls.clone();
    for effect in function.effects(call).iter().map(|c| copied.node(*c)) {
        if !controls.contains(&effect) {
            controls.push(effect);
        }
    }
    // The call stays for fetches and control edges. Its readers wait for its effects.
    for (slot, result) in copied.results.iter().enumerate() {
        if controls.is_empty() && !function.noinline {
            copier.patch.redirect(Output::new(todo.id, slot), *result);
        }
    }
    let (op, attrs) = match copied.results.is_empty() {
        true => ("NoOp", Attrs::default()),
        false => {
            let types = function.results.iter().map(|t| AttrValue::Type(*t));
            let types = AttrValue::List(types.collect());
            ("IdentityN", Attrs::default().with("T", types))
        }
    };
    let name = call.name.clone();
    let mut results = copier
        .ctx
        .node(name, op, attrs, &copied.results, &controls)?;
    results.device = call.device.clone();
    *copier.patch.edit(copier.graph, todo.id) = results;
    Ok(Some((f.name.clone(), copied.nodes)))
}
