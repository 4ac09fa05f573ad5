//! Datasets as graphs (TensorFlow: `core/kernels/data/dataset_ops.cc`).

use crate::common::dataset;
use ferroflow_base::{Result, invalid_argument};
use ferroflow_functors::shapes;
use ferroflow_opdef::{AttrValue, FUNCTION_LIBRARY, KernelBuild, KernelCtx, Op, OpKernel};
use ferroflow_tensor::{Bytes, Shape, Tensor};

/// The ops of this file.
pub(crate) const OPS: &[Op] = &[
    Op::new(
        "DatasetToGraph",
        "input_dataset: variant -> graph: string | stateful_whitelist: list(string) >= 0 = []; \
         allow_stateful: bool = false; strip_device_assignment: bool = false",
    )
    .shape(shapes::scalar)
    .kernel(to_graph),
    Op::new(
        "DatasetToGraphV2",
        "input_dataset: variant -> graph: string | external_state_policy: int = 0; \
         strip_device_assignment: bool = false",
    )
    .shape(shapes::scalar)
    .kernel(to_graph),
    Op::new("DatasetFromGraph", "graph_def: string -> handle: variant")
        .shape(shapes::scalar)
        .kernel(from_graph),
];

fn to_graph(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    // The session sets the functions that it knows.
    let library = match build.attrs.get(FUNCTION_LIBRARY) {
        Some(AttrValue::Str(library)) => library.clone(),
        _ => Bytes::new(),
    };
    Ok(Box::new(move |ctx: &mut KernelCtx| {
        // Other variants are refused in TensorFlow's words.
        dataset(ctx, 0)?;
        let graphs = ctx.resources().dataset_graphs()?;
        let graph = graphs.graph_of(ctx.input(0)?, &library)?;
        let graph = Tensor::from_strings(Shape::scalar(), vec![Bytes::from(graph)])?;
        ctx.set_output(0, graph)
    }))
}

fn from_graph(_: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    Ok(Box::new(|ctx: &mut KernelCtx| {
        let graph = match ctx.input(0)?.strings()? {
            [graph] if ctx.input(0)?.shape().is_scalar() => graph.clone(),
            _ => return Err(invalid_argument!("graph_def must be a scalar")),
        };
        let graphs = ctx.resources().dataset_graphs()?.clone();
        let made = graphs.dataset_of(&graph, &[], ctx.services())?;
        ctx.set_output(0, made)
    }))
}
