//! PTX on the host: an interpreter, for tests of kernels on machines without a GPU.
//!
//! Entry points: [`attach`], which has the stand-in for NVIDIA's driver run kernels; [`launched`], which tells which ones ran.
//!
//! `source.rs` and `module.rs` read texts; `decode.rs` and `instruction.rs` turn a kernel into instructions whose operands are
//! rows, that is a register of each lane of a warp; `launch.rs` runs blocks, `warp.rs` the warps of one in step, `alu.rs`,
//! `float.rs` and `matrix.rs` what they compute. `memory.rs` and `shared.rs` check accesses: global ones against the arguments
//! of the launch, shared ones against the variables, what is written, and what other warps do without a barrier in between. A
//! copy that runs meanwhile arrives when it is waited for.
//!
//! Unsafe code: accesses to the memory that launches are given, and the calls of the stand-in.
//!
//! Does not know: tensors, ops, engines.
#![warn(clippy::missing_errors_doc)]

mod alu;
mod decode;
mod driver;
mod float;
mod instruction;
mod kernel;
mod launch;
mod matrix;
mod memory;
mod module;
mod ops;
mod shared;
mod source;
#[cfg(test)]
mod tests;
mod warp;

pub use driver::{Launched, attach, kernels, launched};

use std::sync::{Mutex, MutexGuard, PoisonError};

type Res<T> = Result<T, String>;

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
