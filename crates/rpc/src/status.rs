//! Errors in the form that TensorFlow's clients expect.

use ferroflow_base::Status;

/// Returns the message of an error in TensorFlow's form: the text, the notes, and the node in double braces,
/// by which clients find the line of the program that created it.
pub fn message(status: &Status) -> String {
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

/// Returns the gRPC status of an error.
pub fn to_tonic(status: &Status) -> tonic::Status {
    tonic::Status::new(tonic::Code::from_i32(status.code() as i32), message(status))
}
