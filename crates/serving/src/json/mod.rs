//! JSON of the REST API.
//!
//! The grammar is that of TensorFlow Serving's parser: JSON with `NaN`, `Inf` and `Infinity`, which the parsers that
//! exist as libraries reject. What follows the first value is ignored, and errors have the words and offsets of its
//! parser.

mod parse;
mod tensors;
mod write;

pub use parse::{Number, Value, parse};
pub use tensors::{Format, Predict, examples_from_json, predict_from_json};
pub use write::{
    classifications_to_json, error_to_json, metadata_to_json, regressions_to_json, status_to_json,
    tensors_to_json,
};
