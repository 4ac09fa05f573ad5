//! StableHLO programs, as jax2tf stores them in the attr `module` of XlaCallModule: MLIR bytecode of the dialect VHLO, whose
//! ops, types and attributes are versioned (<https://openxla.org/stablehlo/vhlo>).
//!
//! Entry point: [`Module`].
//!
//! ```
//! use ferroflow_stablehlo::Module;
//!
//! let program = include_bytes!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/softmax.mlirbc"));
//! let module = Module::read(program)?;
//! let main = module.function("main").expect("each program has it");
//! assert!(main.body.ops.iter().any(|op| op.name == "dot_general"));
//! # Ok::<(), ferroflow_base::Status>(())
//! ```
//!
//! Does not know: ops and kernels of TensorFlow, graphs.
#![forbid(unsafe_code)]
#![warn(clippy::missing_errors_doc)]

mod bytecode;
mod module;
mod text;
mod vhlo;

pub use module::{Attr, Block, Function, Module, Op, TensorType, Type, ValueId};
