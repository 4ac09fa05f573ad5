//! What every other room stands on: [`Status`] with TensorFlow's error codes, and typed ids.
//!
//! Entry points: [`Status`], [`Result`], the constructors ([`invalid_argument!`] and its kin),
//! [`define_id!`].
//!
//! Does not know: tensors, graphs, files, threads.
#![forbid(unsafe_code)]

mod id;
mod status;

pub use status::{Code, Result, Status};
