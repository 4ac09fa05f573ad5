//! Protobuf's text format (`.pbtxt`), by the messages' descriptors.

use crate::proto::{ApiDefs, GraphDef, SavedModel};
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

/// Maximal nesting of messages, as in the binary form.
const MAX_DEPTH: usize = 100;

/// Rejects text whose messages are nested so deeply that parsing it could overflow the stack.
fn check_depth(text: &str) -> Result<()> {
    let mut depth = 0usize;
    let mut bytes = text.bytes();
    while let Some(byte) = bytes.next() {
        match byte {
            b'{' | b'<' | b'[' => depth += 1,
            b'}' | b'>' | b']' => depth = depth.saturating_sub(1),
            b'#' => drop(bytes.find(|b| *b == b'\n')),
            quote @ (b'"' | b'\'') => {
                while let Some(byte) = bytes.next().filter(|b| *b != quote) {
                    if byte == b'\\' {
                        bytes.next();
                    }
                }
            }
            _ => {}
        }
        if depth > MAX_DEPTH {
            return Err(invalid_argument!(
                "messages are nested more than {MAX_DEPTH} levels deep"
            ));
        }
    }
    Ok(())
}

/// Parses a `GraphDef` in text form.
///
/// ```
/// let g = ferroflow_model::graph_from_text("node { name: 'a' op: 'NoOp' }").unwrap();
/// assert_eq!(g.node[0].name, "a");
/// assert!(ferroflow_model::graph_from_text("node { nome: 'a' }").is_err());
/// ```
///
/// # Errors
/// INVALID_ARGUMENT if the text is not a `GraphDef`.
pub fn graph_from_text(text: &str) -> Result<GraphDef> {
    check_depth(text)?;
    let message = DynamicMessage::parse_text_format(descriptor("tensorflow.GraphDef")?, text)
        .map_err(|e| invalid_argument!("not a GraphDef in text form: {e}"))?;
    message
        .transcode_to()
        .map_err(|e| invalid_argument!("not a GraphDef: {e}"))
}

/// Parses a `SavedModel` in text form.
///
/// # Errors
/// INVALID_ARGUMENT if the text is not a `SavedModel`.
pub fn saved_model_from_text(text: &str) -> Result<SavedModel> {
    check_depth(text)?;
    DynamicMessage::parse_text_format(descriptor("tensorflow.SavedModel")?, text)
        .map_err(|e| invalid_argument!("not a SavedModel in text form: {e}"))?
        .transcode_to()
        .map_err(|e| invalid_argument!("not a SavedModel: {e}"))
}

/// Parses an `ApiDefs` message in text form.
///
/// # Errors
/// INVALID_ARGUMENT if the text is not one.
pub fn api_defs_from_text(text: &str) -> Result<ApiDefs> {
    check_depth(text)?;
    DynamicMessage::parse_text_format(descriptor("tensorflow.ApiDefs")?, text)
        .map_err(|e| invalid_argument!("not ApiDefs in text form: {e}"))?
        .transcode_to()
        .map_err(|e| invalid_argument!("not ApiDefs: {e}"))
}

/// Parses a message of TensorFlow's, such as `tensorflow.ServerDef`, in text form; returns it serialized.
///
/// # Errors
/// INVALID_ARGUMENT if the text is not one; INTERNAL if the type is unknown.
pub fn message_from_text(name: &str, text: &str) -> Result<Vec<u8>> {
    check_depth(text)?;
    let message = DynamicMessage::parse_text_format(descriptor(name)?, text);
    let message = message.map_err(|e| invalid_argument!("not a {name} in text form: {e}"))?;
    Ok(message.encode_to_vec())
}

/// Formats a message of TensorFlow's as text.
///
/// # Errors
/// INTERNAL if the type is unknown or not that of the message.
pub fn message_to_text(name: &str, message: &impl Message) -> Result<String> {
    let message = DynamicMessage::decode(descriptor(name)?, &message.encode_to_vec()[..]);
    let message = message.map_err(|e| internal!("not a {name}: {e}"))?;
    let options = prost_reflect::text_format::FormatOptions::new().pretty(true);
    Ok(message.to_text_format_with_options(&options))
}

/// Formats a `GraphDef` as text.
///
/// # Errors
/// INTERNAL if the graph does not fit the descriptors.
pub fn graph_to_text(graph: &GraphDef) -> Result<String> {
    let message = DynamicMessage::decode(
        descriptor("tensorflow.GraphDef")?,
        &graph.encode_to_vec()[..],
    )
    .map_err(|e| internal!("{e}"))?;
    let options = prost_reflect::text_format::FormatOptions::new().pretty(true);
    Ok(message.to_text_format_with_options(&options))
}
