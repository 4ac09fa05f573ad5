//! The list of passes, in order.

use crate::passes;
use crate::{Jit, Lower, OptimizedGraph, Options, Pass, PassCtx, emit};
use ferroflow_base::{Result, invalid_argument};
use ferroflow_graph::{Graph, PlacedGraph};
use ferroflow_opdef::Registry;
use ferroflow_program::{Body, OpSegment, Plan};
use rustc_hash::FxHasher;
use std::hash::{Hash, Hasher};
use std::ops::Range;

/// Every pass, in the order in which they run. Nodes that nothing needs any more are removed after
/// each.
pub const PIPELINE: &[Pass] = &[
    passes::lower::PASS,
    passes::relax_control::PASS,
    passes::dependency::PASS,
    passes::identity::PASS,
    passes::control_only::PASS,
    passes::loop_vars::PASS,
    passes::constant_folding::PASS,
    passes::arithmetic::PASS,
    passes::cse::PASS,
    passes::arg_shapes::PASS,
    passes::cluster::PASS,
    passes::functionalize::PASS,
    passes::dilated_conv::PASS,
    passes::conv_groups::PASS,
    passes::remapper::PASS,
    passes::fuse::PASS,
    passes::int8::PASS,
    passes::fuse_read::PASS,
    passes::fuse_update::PASS,
    passes::fuse_norm::PASS,
    passes::fuse_attention::PASS,
    passes::cluster::acyclic::PASS,
    passes::fuse_sum::PASS,
    passes::elementwise::PASS,
    passes::mixed_precision::PASS,
    passes::bf16_products::PASS,
];

/// The passes of [`PIPELINE`] that simplify, from `dependency` to `cse`: what one of them removes may be what another
/// one waited for, so that they run in rounds ([`Options::rounds`]).
pub const SIMPLIFYING: Range<usize> = 2..9;

/// Optimizes a graph, emits its body and loads it.
///
/// # Errors
///
/// Those of [`optimize`] and [`emit`], and of a node that has no kernel.
pub fn compile(placed: PlacedGraph, registry: &Registry, options: &Options) -> Result<Plan> {
    body(placed, registry, options)?.load(registry)
}

/// [`compile`] for a session, whose stateful nodes keep their kernels in `kept`.
///
/// # Errors
///
/// As [`compile`].
pub fn compile_in(
    placed: PlacedGraph,
    registry: &Registry,
    options: &Options,
    kept: &OpSegment,
) -> Result<Plan> {
    body(placed, registry, options)?.load_in(registry, kept)
}

/// [`compile_in`], unless `pays` says of the optimized graph's body that it does not.
///
/// # Errors
///
/// As [`compile`].
pub fn compile_if(
    placed: PlacedGraph,
    registry: &Registry,
    options: &Options,
    kept: &OpSegment,
    pays: impl FnOnce(&Body) -> bool,
) -> Result<Option<Plan>> {
    let body = body(placed, registry, options)?;
    match pays(&body) {
        true => body.load_in(registry, kept).map(Some),
        false => Ok(None),
    }
}

fn body(placed: PlacedGraph, registry: &Registry, options: &Options) -> Result<Body> {
    let optimized = optimize(placed, registry, options, &mut |_, _| {})?;
    emit(&optimized, registry, options)
}

/// Runs the pipeline; `observe` sees the graph after each pass.
///
/// # Errors
///
/// INVALID_ARGUMENT if a disabled pass does not exist or a node is malformed.
pub fn optimize(
    placed: PlacedGraph,
    registry: &Registry,
    options: &Options,
    observe: &mut dyn FnMut(&str, &Graph),
) -> Result<OptimizedGraph> {
    let mut graph = placed.into_graph();
    run(&mut graph, registry, options, observe)?;
    Ok(OptimizedGraph(graph))
}

/// Runs the pipeline over a graph or the body of a function.
pub(crate) fn run(
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
            "unknown pass '{unknown}'; expected one of {}",
            names.join(", ")
        ));
    }
    let ctx = PassCtx {
        precision: options.precision,
        int8: &options.int8,
        jit: options.jit,
        ..PassCtx::new(registry, options.lower)
    };
    let (mut at, mut round, mut before) = (0, 1, None);
    while let Some(pass) = PIPELINE.get(at) {
        if at == SIMPLIFYING.start && round < options.rounds {
            before = Some(fingerprint(graph));
        }
        if is_wanted(pass, options) {
            run_pass(pass, graph, &ctx)?;
            observe(pass.name, graph);
        }
        at += 1;
        if at == SIMPLIFYING.end
            && let Some(before) = before.take()
            && before != fingerprint(graph)
        {
            (at, round) = (SIMPLIFYING.start, round + 1);
        }
    }
    Ok(())
}

fn is_wanted(pass: &Pass, options: &Options) -> bool {
    let is_wanted = match pass.name {
        passes::lower::NAME => options.lower != Lower::Never,
        passes::fuse_norm::NAME | passes::fuse_attention::NAME | passes::mixed_precision::NAME => {
            options.optimize && !options.device.is_empty()
        }
        passes::cluster::NAME => options.optimize && options.jit != Jit::Off,
        // Devices have kernels of their own.
        passes::cluster::acyclic::NAME => {
            options.optimize && options.jit != Jit::Off && options.device.is_empty()
        }
        passes::fuse_sum::NAME => options.optimize && options.device.is_empty(),
        passes::bf16_products::NAME => options.optimize && options.device.is_empty(),
        _ => options.optimize,
    };
    is_wanted && !options.disabled.iter().any(|d| d == pass.name)
}

fn run_pass(pass: &Pass, graph: &mut Graph, ctx: &PassCtx) -> Result<()> {
    (pass.run)(graph, ctx).map_err(|e| match e.node() {
        // An error of a client's node has the words of TensorFlow's kernel.
        Some(_) => e,
        None => e.note(format!("in pass '{}'", pass.name)),
    })?;
    passes::dce::remove_dead(graph);
    if cfg!(debug_assertions) {
        graph
            .verify()
            .map_err(|e| e.note(format!("after pass '{}'", pass.name)))?;
    }
    Ok(())
}

/// A hash of the nodes, their ops and edges. Passes replace nodes whose attrs they change, or change the edges, too.
fn fingerprint(graph: &Graph) -> u64 {
    let mut h = FxHasher::default();
    for (id, node) in graph.iter() {
        (id, node.op()).hash(&mut h);
        node.inputs.hash(&mut h);
        node.controls.hash(&mut h);
    }
    h.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn simplifying_passes_follow_each_other() {
        let names: Vec<&str> = PIPELINE[SIMPLIFYING].iter().map(|p| p.name).collect();
        assert_eq!((names[0], names[6]), ("dependency", "cse"));
    }
}
