//! BEF, the binary form of programs: written, opened, checked, and turned back into text.

mod body;
pub(crate) mod codec;
mod dataflow_text;
mod format;
mod model;
#[cfg(test)]
mod model_tests;
mod read;
mod static_schedule;
mod tensors;
mod to_mlir;
mod write;
mod write_attrs;
mod write_body;

pub use body::{Body, Kernel};
pub use format::FunctionKind;
pub use model::{MAIN, Model, Port, write_model};
pub use read::{File, FileBytes, Function};
pub use static_schedule::StaticSchedule;
pub use to_mlir::to_mlir;
pub use write::{WriteOptions, write, write_with};
