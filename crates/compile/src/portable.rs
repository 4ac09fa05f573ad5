//! Graphs that are ready to be emitted without any pass, today or by another process.

use crate::control::{Callee, passed};
use crate::emit::emit_seen;
use crate::{Options, optimize};
use ferroflow_base::Result;
use ferroflow_graph::{Function, Graph, Library, NodeId};
use ferroflow_opdef::{AttrValue, Attrs, PACKED, Registry};
use ferroflow_tensor::Tensor;
use rustc_hash::{FxHashMap, FxHashSet};
use std::sync::Arc;

/// Runs the pipeline over a graph and all functions that it calls; other functions are left out.
pub fn optimize_all(graph: &mut Graph, registry: &Registry, options: &Options) -> Result<()> {
    optimize(graph, registry, options, &mut |_, _| {})?;
    let mut library = graph.library().clone();
    let mut kept = Library::default();
    let mut seen = FxHashSet::default();
    let mut queue = called(graph)?;
    while let Some(name) = queue.pop() {
        if !seen.insert(name.clone()) {
            continue;
        }
        let function = library.get(&name)?.clone();
        let mut body = function.graph.clone();
        body.set_library(library);
        optimize(&mut body, registry, options, &mut |_, _| {})
            .map_err(|e| e.note(format!("in function '{name}'")))?;
        queue.extend(called(&body)?);
        library = body.library().clone();
        body.set_library(Arc::default());
        let (args, results) = (function.args.clone(), function.results.clone());
        kept.insert(
            &name,
            Function {
                graph: body,
                args,
                results,
            },
        );
    }
    graph.set_library(Arc::new(kept));
    Ok(())
}

fn called(graph: &Graph) -> Result<Vec<String>> {
    let mut names = Vec::new();
    for (_, node) in graph.iter() {
        match Callee::of(node)? {
            Some(callee) => names.extend(callee.names().into_iter().map(str::to_string)),
            None => names.extend(passed(node)),
        }
    }
    Ok(names)
}

/// Gives every node whose kernel packs weights an attr with the packed ones
/// ([`PACKED`]), so that a later emission need not pack them.
pub fn pack(graph: &mut Graph, registry: &Registry) -> Result<()> {
    let mut found: FxHashMap<String, Vec<(NodeId, Vec<Tensor>)>> = FxHashMap::default();
    emit_seen(
        graph,
        registry,
        &Options::none(),
        &mut |name, id, kernel| {
            let packed = kernel.packed()?;
            if !packed.is_empty() {
                let list = found.entry(name.to_string()).or_default();
                list.push((id, packed));
            }
            Ok(())
        },
    )?;
    let mut library = (**graph.library()).clone();
    for (name, list) in found {
        if name.is_empty() {
            list.into_iter().for_each(|(id, t)| attach(graph, id, t));
            continue;
        }
        let mut function = (**library.get(&name)?).clone();
        let body = &mut function.graph;
        list.into_iter().for_each(|(id, t)| attach(body, id, t));
        library.insert(&name, function);
    }
    graph.set_library(Arc::new(library));
    Ok(())
}

fn attach(graph: &mut Graph, id: NodeId, packed: Vec<Tensor>) {
    let list = packed.into_iter().map(|t| AttrValue::Tensor(t.into()));
    change(graph, id, |attrs| {
        attrs.set(PACKED, AttrValue::List(list.collect()));
    });
}

fn change(graph: &mut Graph, id: NodeId, edit: impl FnOnce(&mut Attrs)) {
    let Some(node) = graph.get(id) else { return };
    let (def, mut attrs) = (node.def.clone(), node.attrs.clone());
    edit(&mut attrs);
    graph.set_op(id, def, attrs);
}

/// Takes away what [`pack`] attached, on a machine that packs differently.
pub fn unpack(graph: &mut Graph) -> Result<()> {
    let mut library = (**graph.library()).clone();
    let names: Vec<String> = library.names().into_iter().map(str::to_string).collect();
    for name in names {
        let mut function = (**library.get(&name)?).clone();
        detach(&mut function.graph);
        library.insert(&name, function);
    }
    detach(graph);
    graph.set_library(Arc::new(library));
    Ok(())
}

fn detach(graph: &mut Graph) {
    let packed = graph.iter().filter(|(_, n)| n.attrs.get(PACKED).is_some());
    for id in packed.map(|(id, _)| id).collect::<Vec<_>>() {
        change(graph, id, |attrs| {
            attrs.remove(PACKED);
        });
    }
}
