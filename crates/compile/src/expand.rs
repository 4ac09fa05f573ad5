//! Expansion of pruned graphs, with or without optimization.

use crate::groups::run_pre_placement;
use crate::passes::{composite, dce, inline, kernel_label, references, symbolic_gradient};
use crate::{ExpandedGraph, Lower, PassCtx, passes};
use ferroflow_base::Result;
use ferroflow_graph::{
    DeviceSet, Function, Graph, Library, Patch, PrunedGraph, referred_functions,
};
use ferroflow_opdef::Registry;
use rustc_hash::FxHashSet;

/// Replaces references by handles, ops that stand for several by those, and calls by the bodies of their
/// functions, in the graph and in the functions that it still refers to.
///
/// # Errors
///
/// INVALID_ARGUMENT if an op on a reference has none, the error of a function's body if that is called.
pub fn expand(pruned: PrunedGraph, registry: &Registry) -> Result<ExpandedGraph> {
    let mut graph = pruned.into_graph();
    expand_graph(&mut graph, registry)?;
    dce::remove_dead(&mut graph);
    Ok(ExpandedGraph(graph))
}

/// A graph in the form that gradients go through: expanded, with If, Case and While as Switch, Merge and
/// loops. Nodes keep their names and ids.
///
/// # Errors
///
/// Those of [`expand`].
pub fn lowered(mut graph: Graph, registry: &Registry) -> Result<Graph> {
    expand_graph(&mut graph, registry)?;
    let ctx = PassCtx::new(registry, Lower::Always);
    let lower = passes::lower::lower;
    let mut patch = Patch::new();
    // A function that calls itself stays a call, and may have loops.
    let library = graph.library().clone();
    for name in library.reachable(&graph) {
        if let Ok(function) = library.get(&name) {
            let mut body = library.graph(&name)?;
            lower(&mut body, &ctx)?;
            patch.add_function(&graph, &name, function.with_body(body));
        }
    }
    lower(&mut graph, &ctx)?;
    patch.apply(&mut graph);
    Ok(graph)
}

/// Inlines calls and lowers functional control flow, so that what is left can be placed on the devices of
/// several tasks. References and ops that stand for several stay: any of TensorFlow's workers can run the
/// parts.
///
/// # Errors
///
/// The error of a function's body if that is called.
pub fn expand_for_placement(
    pruned: PrunedGraph,
    lower: Lower,
    registry: &Registry,
) -> Result<PrunedGraph> {
    let ctx = PassCtx::new(registry, lower);
    pruned.try_map(|graph| {
        run_pre_placement(graph, &ctx)?;
        // The results of a loop that nothing reads would be sent from task to task.
        dce::remove_dead(graph);
        Ok(())
    })
}

/// Makes calls of functions on devices that their inputs name (RemoteCall) calls of functions whose nodes ask
/// for the devices.
///
/// # Errors
///
/// INVALID_ARGUMENT if no device has the name.
pub fn resolve_remote_calls(
    pruned: PrunedGraph,
    devices: &DeviceSet,
    registry: &Registry,
) -> Result<PrunedGraph> {
    let ctx = PassCtx::new(registry, Lower::Never);
    pruned.try_map(|graph| passes::remote_call::run(graph, &ctx, devices))
}

/// Inlines calls in the graph and its functions, and drops the functions that nothing calls any more.
pub(crate) fn inline_all(graph: &mut Graph, ctx: &PassCtx) -> Result<()> {
    let called = rewrite(graph, ctx, inline::run)?;
    let mut patch = Patch::new();
    patch.set_library(graph.library().subset(&called));
    patch.apply(graph);
    Ok(())
}

fn expand_graph(graph: &mut Graph, registry: &Registry) -> Result<()> {
    let ctx = PassCtx::new(registry, Lower::Never);
    // What is inlined has been expanded.
    rewrite(graph, &ctx, expand_body)?;
    inline_all(graph, &ctx)
}

/// Rewrites a graph and the functions that it then refers to, whose names it returns. `step` is told the
/// function whose body it rewrites.
pub(crate) fn rewrite(
    graph: &mut Graph,
    ctx: &PassCtx,
    step: fn(&mut Graph, &PassCtx, Option<&str>) -> Result<()>,
) -> Result<FxHashSet<String>> {
    step(graph, ctx, None)?;
    let mut library = graph.library().clone();
    let mut rewritten: Vec<(String, Function)> = Vec::new();
    let mut seen = FxHashSet::default();
    let mut queue = called(graph);
    while let Some(name) = queue.pop() {
        if !seen.insert(name.clone()) {
            continue;
        }
        let Ok(function) = library.get(&name).cloned() else {
            continue;
        };
        let mut body = library.graph(&name)?;
        let made = step(&mut body, ctx, Some(&name));
        made.map_err(|e| e.note(format!("in function '{name}'")))?;
        queue.extend(called(&body));
        // Functions for gradients that the body has may be new.
        library = body.library().clone();
        rewritten.push((name, function.with_body(body)));
    }
    let mut library = Library::clone(&library);
    for (name, function) in rewritten {
        library.insert(&name, function);
    }
    let mut patch = Patch::new();
    patch.set_library(library);
    patch.apply(graph);
    Ok(seen)
}

/// The functions that the nodes of a graph refer to.
pub(crate) fn called(graph: &Graph) -> Vec<String> {
    let names = graph.iter().flat_map(|(_, n)| referred_functions(n));
    names.map(str::to_string).collect()
}

/// Expands one graph, calls excepted.
fn expand_body(graph: &mut Graph, ctx: &PassCtx, _: Option<&str>) -> Result<()> {
    kernel_label::run(graph, ctx)?;
    references::run(graph, ctx)?;
    composite::run(graph, ctx)?;
    symbolic_gradient::run(graph, ctx)
}
