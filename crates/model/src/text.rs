//! Protobuf's text format (`.pbtxt`), by the messages' descriptors.

use crate::proto::{ApiDefs, GraphDef, SavedModel};
use ferroflow_base::{Result, internal, invalid_argument};
use prost::Message;
use prost_reflect::{DescriptorPool, DynamicMessage, MessageDescriptor};
use std::sync::OnceLock;

static DESCRIPTORS: &[u8] = include_bytes!("proto_gen.bin");

/// Returns the descriptors of TensorFlow's messages, those that this crate has.
pub fn descriptors() -> Option<&'static DescriptorPool> {
    static POOL: OnceLock<Option<DescriptorPool>> = OnceLock::new();
    let pool = POOL.get_or_init(|| DescriptorPool::decode(DESCRIPTORS).ok());
    pool.as_ref()
}

fn descriptor(message: &str) -> Result<MessageDescriptor> {
    descriptors()
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

/// Parses any message in text form.
///
/// # Errors
/// INVALID_ARGUMENT if the text is not one.
pub fn dynamic_from_text(descriptor: MessageDescriptor, text: &str) -> Result<DynamicMessage> {
    check_depth(text)?;
    DynamicMessage::parse_text_format(descriptor, text).map_err(|e| invalid_argument!("{e}"))
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

/// Formats a message of TensorFlow's as JSON, with the field names of the message, all fields that have no presence,
/// and one space of indentation.
///
/// # Errors
/// INTERNAL if the type is unknown or not that of the message.
pub fn message_to_json(name: &str, message: &impl Message) -> Result<String> {
    let message = DynamicMessage::decode(descriptor(name)?, &message.encode_to_vec()[..]);
    let message = message.map_err(|e| internal!("not a {name}: {e}"))?;
    let options = prost_reflect::SerializeOptions::new()
        .use_proto_field_name(true)
        .skip_default_fields(false);
    let layout = serde_json::ser::PrettyFormatter::with_indent(b" ");
    let mut json = serde_json::Serializer::with_formatter(Vec::new(), layout);
    let written = message.serialize_with_options(&mut json, &options);
    written.map_err(|e| internal!("cannot write a {name}: {e}"))?;
    String::from_utf8(json.into_inner()).map_err(|e| internal!("{e}"))
}

/// The encoded `FileDescriptorProto` of a file of `proto/`, by its name or by the full name of a message, enum, service
/// or method that it declares.
pub fn file_descriptor(name: &str) -> Option<Vec<u8>> {
    let pool = descriptors()?;
    let file = pool.get_file_by_name(name).or_else(|| {
        let method = name.rsplit_once('.').map_or("", |(service, _)| service);
        let service = [name, method]
            .into_iter()
            .find_map(|n| pool.get_service_by_name(n));
        let message = || pool.get_message_by_name(name).map(|m| m.parent_file());
        let enumeration = || pool.get_enum_by_name(name).map(|e| e.parent_file());
        service
            .map(|s| s.parent_file())
            .or_else(message)
            .or_else(enumeration)
    });
    file.map(|file| file.encode_to_vec())
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
