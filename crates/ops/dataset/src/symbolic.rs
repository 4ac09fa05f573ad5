//! Symbolic checkpoints, an option of datasets: positions are saved in full either way, but TensorFlow refuses those of
//! windows.

use crate::options::collect_options;
use ferroflow_base::{Result, unimplemented_error};
use ferroflow_model::proto::GraphDef;
use ferroflow_resources::dataset::Dataset;
use prost::Message;

/// The part of `tensorflow.data.Options` that asks for symbolic checkpoints.
#[derive(Clone, PartialEq, prost::Message)]
struct Options {
    #[prost(bool, tag = "8")]
    symbolic_checkpoint: bool,
}

/// Checks that iterators of a dataset, which `graph_of` writes as a graph, may be saved.
///
/// # Errors
/// UNIMPLEMENTED if checkpoints are symbolic and the dataset or one of its functions makes windows.
pub(crate) fn check(dataset: &Dataset, graph_of: impl FnOnce() -> Result<Vec<u8>>) -> Result<()> {
    let mut all = Vec::new();
    collect_options(dataset, &mut all);
    if !Options::decode(&all[..]).is_ok_and(|options| options.symbolic_checkpoint) {
        return Ok(());
    }
    // A dataset that has no graph is saved without one, too.
    let graph = graph_of().ok();
    let graph = graph.and_then(|bytes| GraphDef::decode(&bytes[..]).ok());
    let GraphDef { node, library, .. } = graph.unwrap_or_default();
    let functions = library.into_iter().flat_map(|library| library.function);
    let mut nodes = functions.flat_map(|f| f.node_def).chain(node);
    match nodes.any(|node| node.op == "WindowDataset") {
        true => Err(unimplemented_error!(
            "WindowOp does not support symbolic checkpointing."
        )),
        false => Ok(()),
    }
}
