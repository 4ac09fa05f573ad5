//! `TF_TryEvaluateConstant`: values that are known without running the graph (`tensorflow/c/c_api.h`).

use crate::graph::{GraphState, TF_Graph, TF_Output};
use crate::guard::{guard, handle, shared, unique};
use crate::{TF_Status, TF_Tensor};
use ferroflow_base::Result;
use ferroflow_graph::{ClientGraph, Node, NodeId, Output};
use ferroflow_opdef::AttrValue;
use ferroflow_runtime::{Session, SessionOptions};
use ferroflow_tensor::{DType, Shape, Tensor};
use rustc_hash::FxHashMap;
use std::ffi::c_uchar;
use std::sync::Arc;

/// Evaluates an output that depends on constants only; returns whether it does.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TF_TryEvaluateConstant(
    graph: *mut TF_Graph,
    output: TF_Output,
    result: *mut *mut TF_Tensor,
    status: *mut TF_Status,
) -> c_uchar {
    guard(status, 0, || {
        // SAFETY: the contract of the header.
        let (graph, output, result) =
            unsafe { (shared(graph)?, output.output()?, unique(result)?) };
        *result = std::ptr::null_mut();
        let value = evaluate_constant(&graph.state, output)?;
        let found = value.is_some();
        if let Some(value) = value {
            *result = handle(TF_Tensor::of_engine(value)?);
        }
        Ok(c_uchar::from(found))
    })
}

/// The value of an output that depends only on constants and on shapes that are known, not on control inputs
/// (`core/common_runtime/eval_const_tensor.cc`). One that cannot be computed is unknown, too.
fn evaluate_constant(graph: &Arc<GraphState>, output: Output) -> Result<Option<Tensor>> {
    let inner = graph.lock();
    inner.graph.dtype(output)?;
    let mut needed = vec![output.node];
    // The nodes that compute it, with the values that follow from shapes.
    let mut seen: FxHashMap<NodeId, Option<Tensor>> = FxHashMap::default();
    while let Some(id) = needed.pop() {
        let Some(node) = inner.graph.node(id).filter(|_| !seen.contains_key(&id)) else {
            continue;
        };
        let value = value_of_shape(&inner.graph, node)?;
        if value.is_none() {
            let is_source = node.inputs.is_empty() && node.op() != "Const";
            if is_source || node.def.flags.stateful {
                return Ok(None);
            }
            needed.extend(node.inputs.iter().map(|input| input.node));
        }
        seen.insert(id, value);
    }
    let name = inner.graph.node(output.node).map_or("", |n| &n.name);
    let fetch = format!("{name}:{}", output.slot);
    let mut def = inner.graph.to_graph_def()?;
    let nodes = std::mem::take(&mut def.node).into_iter().enumerate();
    for (i, mut node) in nodes {
        let Some(value) = seen.get(&NodeId::new(i)) else {
            continue;
        };
        node.input.retain(|input| !input.starts_with('^'));
        if let Some(value) = value {
            (node.op, node.input) = ("Const".to_string(), Vec::new());
            let attr = |value: &AttrValue| ferroflow_graph::export_attr(value);
            let dtype = attr(&AttrValue::Type(value.dtype()))?;
            let value = attr(&AttrValue::Tensor(value.clone().into()))?;
            let attrs = [("dtype", dtype), ("value", value)];
            node.attr = attrs.map(|(name, value)| (name.to_string(), value)).into();
        }
        def.node.push(node);
    }
    drop(inner);
    let options = SessionOptions {
        threads: 1,
        ..Default::default()
    };
    let found = Session::create(def, options)?.run(&[], &[&fetch], &[]);
    Ok(found.ok().and_then(|found| found.into_iter().next()))
}

/// The value of a Shape, Size or Rank whose input has a known shape.
fn value_of_shape(graph: &ClientGraph, node: &Node) -> Result<Option<Tensor>> {
    let (Some(input), "Shape" | "Size" | "Rank") = (node.inputs.first(), node.op()) else {
        return Ok(None);
    };
    let shape = graph.shape(*input)?;
    let rank = shape.rank().map(|rank| vec![rank]);
    let sizes = shape.to_full().map(|shape| shape.dims().to_vec());
    let values = match (node.op(), rank, sizes) {
        ("Rank", Some(rank), _) => rank,
        ("Size", _, Some(sizes)) => vec![sizes.iter().product()],
        ("Shape", _, Some(sizes)) => sizes,
        _ => return Ok(None),
    };
    let shape = match node.op() {
        "Shape" => Shape::from([values.len()]),
        _ => Shape::scalar(),
    };
    let tensor = match node.outputs.first() == Some(&DType::Int64) {
        true => Tensor::from_slice(shape, &values.iter().map(|n| *n as i64).collect::<Vec<_>>()),
        false => Tensor::from_slice(shape, &values.iter().map(|n| *n as i32).collect::<Vec<_>>()),
    };
    tensor.map(Some)
}
