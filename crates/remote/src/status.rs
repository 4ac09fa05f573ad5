//! Errors as TensorFlow's clients expect them.

use ferroflow_base::Status;

/// The message of an error as TensorFlow words it: the text, the notes, the node in double braces,
/// from which clients find the line of the program that made it.
pub(crate) fn message(status: &Status) -> String {
    let mut text = status.message().to_string();
    for note in status.notes() {
        text.push('\n');
        text.push_str(note);
    }
    if let Some(node) = status.node() {
        text.push_str(&format!("\n\t [[{{{{node {node}}}}}]]"));
    }
    text
}

/// The same for the wire.
pub(crate) fn to_tonic(status: &Status) -> tonic::Status {
    tonic::Status::new(tonic::Code::from_i32(status.code() as i32), message(status))
}
