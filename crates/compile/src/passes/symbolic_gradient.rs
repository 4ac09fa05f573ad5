//! Replaces SymbolicGradient nodes by calls of gradient functions.

use crate::PassCtx;
use ferroflow_base::{Result, invalid_argument, not_found, unimplemented_error};
use ferroflow_graph::{Function, Graph, GraphBuilder, Library, NodeClass, NodeId, Patch};
use ferroflow_opdef::{AttrValue, FuncRef};
use ferroflow_tensor::DType;

/// Deepest nesting of gradients of functions that have SymbolicGradient nodes themselves.
const MAX_DEPTH: usize = 64;

pub(crate) fn run(graph: &mut Graph, ctx: &PassCtx) -> Result<()> {
    run_within(graph, ctx, 0)
}

fn run_within(graph: &mut Graph, ctx: &PassCtx, depth: usize) -> Result<()> {
    let nodes = graph.iter();
    let nodes = nodes.filter(|(_, n)| n.class() == NodeClass::SymbolicGradient);
    for id in nodes.map(|(id, _)| id).collect::<Vec<_>>() {
        let mut patch = Patch::new();
        let node = graph.node(id);
        let called = callee(graph, id, &mut patch, ctx, depth);
        let called = called.map_err(|e| e.at_node(&node.name, node.op()))?;
        let name = called.to_string();
        let call = patch.edit(graph, id);
        call.def = ctx.def("StatefulPartitionedCall")?;
        let attrs = Default::default();
        call.attrs
            .set("f", AttrValue::Func(FuncRef { name, attrs }));
        call.def.complete_attrs(&mut call.attrs)?;
        patch.apply(graph);
    }
    Ok(())
}

/// The function that a SymbolicGradient node calls, which is made if the library does not declare one.
fn callee(
    graph: &Graph,
    id: NodeId,
    patch: &mut Patch,
    ctx: &PassCtx,
    depth: usize,
) -> Result<String> {
    let node = graph.node(id);
    let Some(AttrValue::Func(f)) = node.attrs.get("f") else {
        return Err(invalid_argument!("the node has no function attr 'f'"));
    };
    let args = node.attrs.dtypes("Tout")?;
    let library = graph.library();
    if let Some(declared) = library.gradient_of(&f.name) {
        return Ok(declared.to_string());
    }
    let inputs = node.attrs.dtypes("Tin")?;
    let results = inputs.get(args.len()..).unwrap_or_default();
    let mut attrs: Vec<String> = f.attrs.iter().map(|(k, v)| format!("{k}={v:?}")).collect();
    attrs.sort_unstable();
    let name = match attrs.is_empty() {
        true => f.name.clone(),
        false => format!("{}[{}]", f.name, attrs.join(",")),
    };
    let key = format!("SymbolicGradient[{name},{args:?},{results:?}]");
    if library.contains(&key) {
        return Ok(key);
    }
    let function = if library.contains(&f.name) {
        if depth >= MAX_DEPTH {
            return Err(unimplemented_error!(
                "the gradients of functions are nested too deeply"
            ));
        }
        let mut body = library.graph(&f.name)?;
        super::composite::run(&mut body, ctx)?;
        run_within(&mut body, ctx, depth + 1)?;
        patch.set_library(Library::clone(body.library()));
        library.get(&f.name)?.with_body(body)
    } else if ctx.registry.op(&f.name).is_some() {
        op_as_function(f, &args, results, ctx)?
    } else {
        return Err(not_found!(
            "Function {} is not defined: it is not in the graph's library",
            f.name
        ));
    };
    let library = patch.library(graph);
    library.add_symbolic_gradient(&key, function, ctx.registry);
    Ok(key)
}

/// A function that has one node of an op.
fn op_as_function(
    op: &FuncRef,
    args: &[DType],
    results: &[DType],
    ctx: &PassCtx,
) -> Result<Function> {
    let mut b = GraphBuilder::new(ctx.registry);
    b.function("op", args, |b, inputs| {
        let def = ctx.def(&op.name)?;
        let outputs = def.output_dtypes(&op.attrs)?;
        if outputs[..] != *results {
            return Err(invalid_argument!("op {} returns other dtypes", op.name));
        }
        let node = op.attrs.iter().fold(b.op(&op.name), |node, (name, value)| {
            node.attr(name, value.clone())
        });
        let node = def
            .inputs
            .iter()
            .try_fold((node, inputs), |(node, rest), arg| {
                let n = arg.dtypes(&op.attrs)?.len();
                let (own, rest) = rest
                    .split_at_checked(n)
                    .ok_or_else(|| invalid_argument!("op {} takes more inputs", op.name))?;
                Result::Ok((node.inputs(own), rest))
            });
        node?.0.outputs()
    })?;
    let graph = b.finish()?;
    Ok(graph.library().get("op")?.as_ref().clone())
}
