//! Files and wire messages only: TensorFlow's `GraphDef` and what it is made of.
//!
//! Entry points: [`GraphFile`] opens a model file, binary or text; [`tensor_from_proto`] and
//! [`tensor_to_proto`] convert constants; [`arrays`] reads and writes numpy files; [`proto`] has the messages.
//!
//! Does not know: ops, graphs as structures, execution.
#![forbid(unsafe_code)]

pub mod arrays;
mod graph_file;
mod tensor_proto;
mod text;

#[allow(
    missing_docs,
    clippy::all,
    clippy::allow_attributes_without_reason,
    reason = "generated"
)]
#[path = "proto_gen.rs"]
#[rustfmt::skip]
pub mod proto;

pub use graph_file::GraphFile;
pub use tensor_proto::{shape_from_proto, shape_to_proto, tensor_from_proto, tensor_to_proto};
pub use text::{graph_from_text, graph_to_text};
