//! Errors in the form that TensorFlow's clients expect.

use ferroflow_base::{Code, Status};
use prost::Message;
use std::collections::BTreeMap;

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

/// The payloads of an error in the details of its gRPC status
/// (`tensorflow.distributed_runtime.GrpcPayloadContainer`).
#[derive(Clone, PartialEq, Message)]
struct Payloads {
    #[prost(btree_map = "string, bytes", tag = "1")]
    payloads: BTreeMap<String, Vec<u8>>,
}

/// The type URL of the payload that says that the details could not be read.
const PAYLOADS_LOST: &str = "type.googleapis.com/tensorflow.distributed_runtime.GrpcPayloadsLost";

/// Returns the gRPC status of an error, whose details are the payloads.
///
/// ```
/// use ferroflow_base::aborted;
/// let e = aborted!("restarted").with_payload("type.googleapis.com/Restarted", [1, 2]);
/// let back = ferroflow_rpc::from_tonic(&ferroflow_rpc::to_tonic(&e));
/// assert_eq!(back.payloads(), e.payloads());
/// ```
pub fn to_tonic(status: &Status) -> tonic::Status {
    let container = Payloads {
        payloads: status.payloads().clone(),
    };
    let code = tonic::Code::from_i32(status.code() as i32);
    match container.payloads.is_empty() {
        true => tonic::Status::new(code, message(status)),
        false => {
            tonic::Status::with_details(code, message(status), container.encode_to_vec().into())
        }
    }
}

/// Returns the error of a gRPC status, with its payloads.
pub fn from_tonic(status: &tonic::Status) -> Status {
    let code = Code::from_number(status.code() as i32).unwrap_or(Code::Unknown);
    let error = Status::new(code, status.message());
    match Payloads::decode(status.details()) {
        Ok(container) => error.with_payloads(container.payloads),
        Err(_) => error.with_payload(PAYLOADS_LOST, ""),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(status: &tonic::Status, payloads: &[(&str, &[u8])]) {
        let error = from_tonic(status);
        assert_eq!(error.message(), status.message());
        let found = error.payloads().iter();
        let found: Vec<(&str, &[u8])> = found.map(|(url, payload)| (&**url, &**payload)).collect();
        assert_eq!(found, payloads);
    }

    #[test]
    fn payloads_are_the_details() {
        let plain = Status::new(Code::Aborted, "a");
        assert!(to_tonic(&plain).details().is_empty());
        check(&to_tonic(&plain), &[]);
        let with = plain.with_payload("u", [7, 0]).with_payload("t", "");
        // A map of two entries as TensorFlow serializes it.
        let bytes = b"\n\x03\n\x01t\n\x07\n\x01u\x12\x02\x07\0";
        assert_eq!(to_tonic(&with).details(), bytes);
        check(&to_tonic(&with), &[("t", b""), ("u", &[7, 0])]);
        let damaged = b"\n\xff".to_vec().into();
        let damaged = tonic::Status::with_details(tonic::Code::Aborted, "a", damaged);
        check(&damaged, &[(PAYLOADS_LOST, b"")]);
    }
}
