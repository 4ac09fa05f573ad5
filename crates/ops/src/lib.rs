//! The registry of TensorFlow's ops: one crate per group in the folders next to `src`, in
//! TensorFlow's grouping (`core/ops/*_ops.cc`).
//!
//! Entry point: [`registry`].
//!
//! Does not know: graphs, engines.
#![forbid(unsafe_code)]

use ferroflow_opdef::{OpGroup, Registry};
use std::sync::OnceLock;

// codegen:begin
/// The op groups. A function, since only at run time can statics of other crates be read.
#[rustfmt::skip]
fn groups() -> Vec<OpGroup> {
    vec![
        ("array", ferroflow_ops_array::ALL),
        ("audio", ferroflow_ops_audio::ALL),
        ("cluster", ferroflow_ops_cluster::ALL),
        ("clustering", ferroflow_ops_clustering::ALL),
        ("collective", ferroflow_ops_collective::ALL),
        ("control_flow", ferroflow_ops_control_flow::ALL),
        ("count", ferroflow_ops_count::ALL),
        ("ctc", ferroflow_ops_ctc::ALL),
        ("data_flow", ferroflow_ops_data_flow::ALL),
        ("dataset", ferroflow_ops_dataset::ALL),
        ("debug", ferroflow_ops_debug::ALL),
        ("image", ferroflow_ops_image::ALL),
        ("io", ferroflow_ops_io::ALL),
        ("linalg", ferroflow_ops_linalg::ALL),
        ("list", ferroflow_ops_list::ALL),
        ("logging", ferroflow_ops_logging::ALL),
        ("lookup", ferroflow_ops_lookup::ALL),
        ("map", ferroflow_ops_map::ALL),
        ("math", ferroflow_ops_math::ALL),
        ("nn", ferroflow_ops_nn::ALL),
        ("parsing", ferroflow_ops_parsing::ALL),
        ("ragged", ferroflow_ops_ragged::ALL),
        ("random", ferroflow_ops_random::ALL),
        ("rnn", ferroflow_ops_rnn::ALL),
        ("set", ferroflow_ops_set::ALL),
        ("sparse", ferroflow_ops_sparse::ALL),
        ("spectral", ferroflow_ops_spectral::ALL),
        ("state", ferroflow_ops_state::ALL),
        ("string", ferroflow_ops_string::ALL),
        ("training", ferroflow_ops_training::ALL),
        ("uniform_quant", ferroflow_ops_uniform_quant::ALL),
        ("xla", ferroflow_ops_xla::ALL),
    ]
}
// codegen:end

/// Returns the registry of every op.
///
/// ```
/// assert!(ferroflow_ops::registry().op("Identity").is_some());
/// ```
pub fn registry() -> &'static Registry {
    static REGISTRY: OnceLock<Registry> = OnceLock::new();
    REGISTRY.get_or_init(|| Registry::new(&groups()))
}
