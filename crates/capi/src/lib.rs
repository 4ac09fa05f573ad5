//! TensorFlow's C API: what `libtensorflow.so.2` exports.
//!
//! Wiring only: each function converts its arguments and calls the rooms below. Handles are boxes whose
//! address the client keeps; a delete function takes NULL. No panic crosses the border: it becomes
//! an INTERNAL status ([`guard`]).
//!
//! The contract of each function is that of TensorFlow's header (`tensorflow/c/c_api.h` and those it
//! includes): pointers are valid for their documented use, and handles were made by this library and not
//! deleted.
#![allow(
    non_camel_case_types,
    non_snake_case,
    reason = "names are those of TensorFlow's headers"
)]
#![allow(
    clippy::missing_safety_doc,
    reason = "the contract of all functions is stated above"
)]

mod buffer;
mod guard;
mod status;
mod tensor;
mod tstring;

pub use buffer::*;
pub use status::*;
pub use tensor::*;
pub use tstring::*;
