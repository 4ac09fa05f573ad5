//! What every other room stands on: [`Status`] with TensorFlow's error codes, typed ids, numbers as text.
//!
//! Entry points: [`Status`], [`Result`], the constructors ([`invalid_argument!`] and its kin),
//! [`define_id!`], [`general`].
//!
//! Does not know: tensors, graphs, files, threads.
#![forbid(unsafe_code)]

mod id;
mod number;
mod status;

pub use number::general;
pub use status::{Code, Result, Status};
