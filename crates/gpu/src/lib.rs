//! Kernels of TensorFlow's ops for GPUs.
//!
//! A kernel enqueues launches on the computing stream of its device and returns; nothing waits. Elementwise
//! ops, fused or alone, are generated as PTX (`ptx.rs`); what is the same for every model is compiled ahead
//! (`kernels/`); products and convolutions are cuBLASLt's and cuDNN's.
//!
//! Floats are in the device's memory. Integers and conditions are where they were computed: shapes and indices with the
//! host, whose kernels read what is on the device as well (`host.rs`), comparisons of floats on the device. Variables of
//! floats stay on the device.
//!
//! Entry points, in reading order: [`register`]; `kernel.rs`, what all kernels have; the ops by file, those of training in
//! `train/`.
//!
//! Does not know: graphs, engines, which devices there are.

#![forbid(unsafe_code)]
#![warn(clippy::missing_errors_doc)]

mod attention;
mod compare;
mod conv;
mod data;
mod einsum;
mod elementwise;
mod epilogue;
mod gather;
mod host;
mod kernel;
mod library;
mod lists;
mod matmul;
mod pad;
mod pass_through;
mod pool;
mod ptx;
mod random;
mod reduce;
mod rows;
mod scan;
mod select;
mod slice;
mod train;

pub use library::{set_tf32, tf32};
pub use train::step_variables::CapturedStep;

use ferroflow_base::Result;
use ferroflow_opdef::Registry;
use ferroflow_tensor::DType;

/// The type of the devices that have the kernels.
pub const DEVICE_TYPE: &str = "GPU";

/// Whether the state of a stateful op with outputs of these dtypes is kept apart from what a captured step enqueues, as that
/// of variables and of random numbers is.
pub fn can_replay_state(op: &str, outputs: &[DType]) -> bool {
    let is_among = |rows: &[kernel::Row]| rows.iter().any(|row| row.op() == op);
    let of_variables = [
        train::variables::ROWS,
        train::optimizers::ROWS,
        train::scatter::ROWS,
    ];
    let has_variables = of_variables.into_iter().any(is_among) && op != "DestroyResourceOp";
    // Kernels of CPUs draw in a capture, too.
    let draws = is_among(random::ROWS) && outputs.iter().all(|t| kernel::FLOATS.contains(t));
    has_variables || draws
}

/// Registers the kernels of devices of type `GPU`, once.
///
/// # Errors
/// NOT_FOUND if the registry lacks an op.
pub fn register(registry: &Registry) -> Result<()> {
    let files: &[&[kernel::Row]] = &[
        attention::ROWS,
        compare::ROWS,
        conv::ROWS,
        data::ROWS,
        einsum::ROWS,
        elementwise::ROWS,
        gather::ROWS,
        lists::ROWS,
        matmul::ROWS,
        pad::ROWS,
        pass_through::ROWS,
        pool::ROWS,
        random::ROWS,
        reduce::ROWS,
        rows::ROWS,
        scan::ROWS,
        select::ROWS,
        slice::ROWS,
        train::batch_norm::ROWS,
        train::conv::ROWS,
        train::loss::ROWS,
        train::optimizers::ROWS,
        train::pool::ROWS,
        train::scatter::ROWS,
        train::variables::ROWS,
    ];
    registry.adapt_kernels(DEVICE_TYPE, host::on_host);
    let rows = files.iter().copied().flatten();
    rows.into_iter()
        .try_for_each(|row| registry.register_kernel(row.def(registry)))
}
