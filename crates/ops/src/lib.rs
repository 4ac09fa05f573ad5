//! The registry of TensorFlow's ops: one crate per group beside this file, in TensorFlow's grouping
//! (`core/ops/*_ops.cc`).
//!
//! Entry point: [`registry`].
//!
//! Does not know: graphs, engines.
#![forbid(unsafe_code)]

use ferroflow_opdef::{Op, Registry};
use std::sync::OnceLock;

// codegen:begin
/// The ops of every group, file by file.
#[rustfmt::skip]
const ALL: &[&[&[Op]]] = &[
    ferroflow_ops_array::ALL,
    ferroflow_ops_collective::ALL,
    ferroflow_ops_control_flow::ALL,
    ferroflow_ops_data_flow::ALL,
    ferroflow_ops_dataset::ALL,
    ferroflow_ops_image::ALL,
    ferroflow_ops_io::ALL,
    ferroflow_ops_linalg::ALL,
    ferroflow_ops_list::ALL,
    ferroflow_ops_logging::ALL,
    ferroflow_ops_lookup::ALL,
    ferroflow_ops_math::ALL,
    ferroflow_ops_nn::ALL,
    ferroflow_ops_parsing::ALL,
    ferroflow_ops_ragged::ALL,
    ferroflow_ops_random::ALL,
    ferroflow_ops_sparse::ALL,
    ferroflow_ops_state::ALL,
    ferroflow_ops_string::ALL,
    ferroflow_ops_training::ALL,
];
// codegen:end

/// Returns the registry of every op.
///
/// ```
/// assert!(ferroflow_ops::registry().op("Identity").is_some());
/// ```
pub fn registry() -> &'static Registry {
    static REGISTRY: OnceLock<Registry> = OnceLock::new();
    REGISTRY.get_or_init(|| Registry::new(ALL))
}
