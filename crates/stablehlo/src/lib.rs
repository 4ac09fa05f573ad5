//! StableHLO programs, as jax2tf stores them in the attr `module` of XlaCallModule: MLIR bytecode of the dialect VHLO, whose
//! ops, types and attributes are versioned (<https://openxla.org/stablehlo/vhlo>).
//!
//! Entry point: [`Module`].
//!
//! Does not know: ops and kernels of TensorFlow, graphs.
#![forbid(unsafe_code)]
#![warn(clippy::missing_errors_doc)]

mod bytecode;
mod module;
mod text;
mod vhlo;

pub use module::{Attr, Block, Function, Module, Op, TensorType, Type, ValueId};
