//! [`DatasetGraphs`]: datasets as graphs, for kernels.

use crate::{Resources, StepServices};
use ferroflow_base::{Result, failed_precondition};
use ferroflow_tensor::Tensor;
use std::sync::Arc;

/// The attr of a node that writes datasets as graphs: the serialized library of its graph's functions.
pub const FUNCTION_LIBRARY: &str = "_function_library";

/// Writes datasets as graphs and makes them again: what DatasetToGraph and DatasetFromGraph need of the
/// engine that runs them.
pub trait DatasetGraphs: Send + Sync {
    /// Returns a serialized `GraphDef` that makes the dataset of a variant scalar. `library` is a serialized
    /// `FunctionDefLibrary` with its functions.
    ///
    /// # Errors
    /// FAILED_PRECONDITION if the dataset uses a resource or a function that is not in the library;
    /// INVALID_ARGUMENT if the tensor holds no dataset.
    fn graph_of(&self, dataset: &Tensor, library: &[u8]) -> Result<Vec<u8>>;

    /// The same for a graph that is run in this process: placeholders stand for tensors that no graph
    /// can hold.
    ///
    /// # Errors
    /// FAILED_PRECONDITION if a function is not in the library; INVALID_ARGUMENT if the tensor holds no
    /// dataset.
    fn local_graph_of(&self, dataset: &Tensor, library: &[u8]) -> Result<LocalGraph>;

    /// Runs a serialized `GraphDef` that makes a dataset, and returns that. `feeds` are the values of its
    /// placeholders.
    ///
    /// # Errors
    /// INVALID_ARGUMENT if the bytes do not decode or the graph has no `_Retval` node; those of its nodes.
    fn dataset_of(
        &self,
        graph: &[u8],
        feeds: &[(String, Tensor)],
        services: &StepServices,
    ) -> Result<Tensor>;
}

/// A graph that makes a dataset in this process.
pub struct LocalGraph {
    /// The serialized `GraphDef`.
    pub graph: Vec<u8>,
    /// The values of its placeholders, by name.
    pub feeds: Vec<(String, Tensor)>,
}

impl Resources {
    /// Sets what writes and makes datasets in this session and those forked from it, unless it is set.
    pub fn set_dataset_graphs(&self, graphs: Arc<dyn DatasetGraphs>) {
        // The first one stays.
        let _ = self.dataset_graphs_slot().set(graphs);
    }

    /// Returns what writes and makes datasets.
    ///
    /// # Errors
    /// FAILED_PRECONDITION if no session has these resources.
    pub fn dataset_graphs(&self) -> Result<&Arc<dyn DatasetGraphs>> {
        let graphs = self.dataset_graphs_slot().get();
        graphs.ok_or_else(|| {
            failed_precondition!("datasets and graphs are converted in sessions only")
        })
    }
}
