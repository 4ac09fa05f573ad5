//! Kernels of TensorFlow's ops for GPUs.
//!
//! A kernel enqueues launches on the computing stream of its device and returns; nothing waits. Elementwise
//! ops, fused or alone, are generated as PTX (`ptx.rs`); what is the same for every model is compiled ahead
//! (`kernels/`); products and convolutions are cuBLASLt's and cuDNN's.
//!
//! Floats are in the device's memory, all else with the host, which computes shapes, indices and conditions. Entry points, in reading order: [`register`]; `kernel.rs`, what all kernels have; the ops by file.
//!
//! Does not know: graphs, engines, which devices there are.

#![forbid(unsafe_code)]
#![warn(clippy::missing_errors_doc)]

mod batch_norm;
mod conv;
mod data;
mod einsum;
mod elementwise;
mod epilogue;
mod gather;
mod kernel;
mod library;

mod matmul;
mod pad;
mod pass_through;
mod pool;
mod ptx;
mod reduce;
mod rows;
mod select;

pub use library::set_tf32;

use ferroflow_base::Result;
use ferroflow_opdef::Registry;

/// The type of the devices that have the kernels.
pub const DEVICE_TYPE: &str = "GPU";

/// Registers the kernels of devices of type `GPU`, once.
///
/// # Errors
/// NOT_FOUND if the registry lacks an op.
pub fn register(registry: &Registry) -> Result<()> {
    let files: &[&[kernel::Row]] = &[
        batch_norm::ROWS,
        conv::ROWS,
        data::ROWS,
        einsum::ROWS,
        elementwise::ROWS,
        gather::ROWS,
        select::ROWS,
        matmul::ROWS,
        pad::ROWS,
        pass_through::ROWS,
        pool::ROWS,
        reduce::ROWS,
        rows::ROWS,
    ];
    let rows = files.iter().copied().flatten();
    rows.into_iter()
        .try_for_each(|row| registry.register_kernel(row.def()))
}
