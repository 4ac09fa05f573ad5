//! [`GraphFile`]: opening a frozen graph.

use crate::proto::GraphDef;
use crate::text::graph_from_text;
use bytes::Bytes;
use ferroflow_base::{Result, invalid_argument};
use ferroflow_tensor::MappedFile;
use prost::Message;
use std::path::Path;
use std::sync::Arc;

/// A `GraphDef` with the mapped file that holds its large constants.
pub struct GraphFile {
    /// The message. `tensor_content` fields are slices of `file`.
    pub graph: GraphDef,
    /// The mapping, for a binary file.
    pub file: Option<Arc<MappedFile>>,
}

pub(crate) struct Owner(pub(crate) Arc<MappedFile>);

impl AsRef<[u8]> for Owner {
    fn as_ref(&self) -> &[u8] {
        (*self.0).as_ref()
    }
}

impl GraphFile {
    /// Opens a frozen graph, binary (`.pb`) or text (`.pbtxt`); the content decides, not the name.
    ///
    /// # Errors
    /// NOT_FOUND if the file cannot be opened; INVALID_ARGUMENT if it is empty or not a `GraphDef`.
    pub fn open(path: &Path) -> Result<GraphFile> {
        let file = Arc::new(crate::files::map(path)?);
        let content = (*file).as_ref();
        if content.is_empty() {
            return Err(invalid_argument!(
                "{} is empty, expected a GraphDef",
                path.display()
            ));
        }
        if let Some(text) = text_of(content) {
            let graph =
                graph_from_text(text).map_err(|e| e.note(format!("in {}", path.display())))?;
            return Ok(GraphFile { graph, file: None });
        }
        let bytes = Bytes::from_owner(Owner(file.clone()));
        let graph = GraphDef::decode(bytes).map_err(|e| {
            invalid_argument!(
                "{} is not a GraphDef in binary or text form (truncated?): {e}",
                path.display()
            )
        })?;
        Ok(GraphFile {
            graph,
            file: Some(file),
        })
    }

    /// Decodes a binary `GraphDef` from memory.
    ///
    /// # Errors
    /// INVALID_ARGUMENT if the bytes are not a `GraphDef`.
    pub fn from_bytes(bytes: impl Into<Bytes>) -> Result<GraphFile> {
        let graph = GraphDef::decode(bytes.into())
            .map_err(|e| invalid_argument!("not a binary GraphDef: {e}"))?;
        Ok(GraphFile { graph, file: None })
    }
}

/// Returns the content as text if it is not binary: a binary GraphDef starts with a field tag
/// below 0x20 or one that text does not start with.
fn text_of(content: &[u8]) -> Option<&str> {
    let head = &content[..content.len().min(512)];
    let is_text = head
        .iter()
        .all(|&b| b >= 0x20 || matches!(b, b'\n' | b'\r' | b'\t'))
        && !matches!(head[0], b'\n' if head.len() > 1 && head[1] >= 0x80);
    // A binary GraphDef's first byte is '\n' (field 1, length-delimited) followed by a length.
    // A text one that starts with a newline continues with text.
    if !is_text {
        return None;
    }
    let text = std::str::from_utf8(content).ok()?;
    let first = text.trim_start().chars().next()?;
    (first.is_ascii_alphabetic() || first == '#')
        .then_some(text)
        .filter(|t| t.contains(['{', ':']))
}
