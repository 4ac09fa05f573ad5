//! The list of passes, in order.

use crate::passes;
use crate::{Lower, Options, Pass, PassCtx, emit};
use ferroflow_base::{Result, invalid_argument};
use ferroflow_graph::Graph;
use ferroflow_opdef::Registry;
use ferroflow_program::Plan;

/// Every pass, in the order in which they run. Nodes that nothing needs any more are removed after
/// each.
pub const PIPELINE: &[Pass] = &[
    passes::lower::PASS,
    passes::unpin::PASS,
    passes::identity::PASS,
    passes::awaited::PASS,
    passes::loop_vars::PASS,
    passes::fold::PASS,
    passes::simplify::PASS,
    passes::cse::PASS,
    passes::patterns::PASS,
    passes::fuse::PASS,
    passes::fuse_read::PASS,
    passes::fuse_update::PASS,
    passes::elementwise::PASS,
];

/// Runs the pipeline, emits the body and loads it.
///
/// # Errors
/// A pass fails, or a node has no kernel.
pub fn compile(mut graph: Graph, registry: &Registry, options: &Options) -> Result<Plan> {
    optimize(&mut graph, registry, options, &mut |_, _| {})?;
    let body = emit(&graph, registry, options)?;
    drop(graph);
    body.load(registry)
}

/// Runs the pipeline; `observe` sees the graph after each pass.
pub fn optimize(
    graph: &mut Graph,
    registry: &Registry,
    options: &Options,
    observe: &mut dyn FnMut(&str, &Graph),
) -> Result<()> {
    if let Some(unknown) = options
        .disabled
        .iter()
        .find(|d| !PIPELINE.iter().any(|p| p.name == **d))
    {
        let names: Vec<&str> = PIPELINE.iter().map(|p| p.name).collect();
        return Err(invalid_argument!(
            "no pass '{unknown}'; there are: {}",
            names.join(", ")
        ));
    }
    let ctx = PassCtx {
        registry,
        lower: options.lower,
    };
    for pass in PIPELINE {
        let is_wanted = match pass.name {
            passes::lower::NAME => options.lower != Lower::Never,
            _ => options.optimize,
        };
        if !is_wanted || options.disabled.iter().any(|d| d == pass.name) {
            continue;
        }
        (pass.run)(graph, &ctx).map_err(|e| match e.node() {
            // What a client's node says, as TensorFlow's kernel would say it.
            Some(_) => e,
            None => e.note(format!("in pass '{}'", pass.name)),
        })?;
        passes::dead::remove_dead(graph);
        if cfg!(debug_assertions) {
            graph
                .verify()
                .map_err(|e| e.note(format!("after pass '{}'", pass.name)))?;
        }
        observe(pass.name, graph);
    }
    Ok(())
}
