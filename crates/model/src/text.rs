//! Protobuf's text format (`.pbtxt`), through the messages' descriptors.

use crate::proto::{GraphDef, SavedModel};
use ferroflow_base::{Result, internal, invalid_argument};
use prost::Message;
use prost_reflect::{DescriptorPool, DynamicMessage, MessageDescriptor};
use std::sync::OnceLock;

static DESCRIPTORS: &[u8] = include_bytes!("proto_gen.bin");

fn descriptor(message: &str) -> Result<MessageDescriptor> {
    static POOL: OnceLock<Option<DescriptorPool>> = OnceLock::new();
    POOL.get_or_init(|| DescriptorPool::decode(DESCRIPTORS).ok())
        .as_ref()
        .and_then(|pool| pool.get_message_by_name(message))
        .ok_or_else(|| internal!("the built-in descriptors are damaged"))
}

/// Parses a `GraphDef` in text form.
///
/// ```
/// let g = ferroflow_model::graph_from_text("node { name: 'a' op: 'NoOp' }").unwrap();
/// assert_eq!(g.node[0].name, "a");
/// assert!(ferroflow_model::graph_from_text("node { nome: 'a' }").is_err());
/// ```
pub fn graph_from_text(text: &str) -> Result<GraphDef> {
    let message = DynamicMessage::parse_text_format(descriptor("tensorflow.GraphDef")?, text)
        .map_err(|e| invalid_argument!("not a GraphDef in text form: {e}"))?;
    message
        .transcode_to()
        .map_err(|e| invalid_argument!("not a GraphDef: {e}"))
}

/// Parses a `SavedModel` in text form.
pub fn saved_model_from_text(text: &str) -> Result<SavedModel> {
    DynamicMessage::parse_text_format(descriptor("tensorflow.SavedModel")?, text)
        .map_err(|e| invalid_argument!("not a SavedModel in text form: {e}"))?
        .transcode_to()
        .map_err(|e| invalid_argument!("not a SavedModel: {e}"))
}

/// Prints a `GraphDef` in text form.
pub fn graph_to_text(graph: &GraphDef) -> Result<String> {
    let message = DynamicMessage::decode(
        descriptor("tensorflow.GraphDef")?,
        &graph.encode_to_vec()[..],
    )
    .map_err(|e| internal!("{e}"))?;
    let options = prost_reflect::text_format::FormatOptions::new().pretty(true);
    Ok(message.to_text_format_with_options(&options))
}
