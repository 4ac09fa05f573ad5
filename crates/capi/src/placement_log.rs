//! The log of placed nodes (`core/common_runtime/placer.cc`).

use ferroflow_model::proto::NodeDef;
use ferroflow_runtime::Session;
use std::collections::HashSet;
use std::io::Write;

/// Writes where new nodes of a session run to standard error, a line each, for clients that set
/// `log_device_placement`. Steps that need a node without a device say so themselves.
pub(crate) fn log(session: &Session, new: &[NodeDef]) {
    if new.is_empty() {
        return;
    }
    let text = lines(session, new).concat();
    // A client may have closed its standard error.
    let _ = std::io::stderr().write_all(text.as_bytes());
}

fn lines(session: &Session, new: &[NodeDef]) -> Vec<String> {
    let new: HashSet<&str> = new.iter().map(|node| node.name.as_str()).collect();
    let placed = session.explain_placement(None).unwrap_or_default();
    let placed = placed
        .iter()
        .filter(|node| new.contains(node.name.as_str()));
    placed.map(|node| format!("{node}\n")).collect()
}

#[cfg(test)]
mod tests {
    use super::lines;
    use ferroflow_runtime::{DeviceSet, Session, SessionOptions};

    #[test]
    fn new_nodes_are_logged_once() {
        let node = |name: &str, device: &str| {
            let text = format!("node {{ name: \"{name}\" op: \"NoOp\" device: \"{device}\" }}");
            ferroflow_model::graph_from_text(&text).expect("a node")
        };
        let devices = [
            "/job:localhost/replica:0/task:0/device:CPU:0",
            "/job:localhost/replica:0/task:0/device:CPU:1",
        ];
        let options = SessionOptions {
            devices: DeviceSet {
                names: devices.map(str::to_string).to_vec(),
                ..Default::default()
            },
            ..Default::default()
        };
        let (a, b) = (node("a", ""), node("b", "/cpu:1"));
        let session = Session::create(a.clone(), options).expect("a session");
        let check = |new: &[_], expect: &[&str]| assert_eq!(lines(&session, new), expect);
        check(
            &a.node,
            &["a: (NoOp): /job:localhost/replica:0/task:0/device:CPU:0\n"],
        );
        session.extend(b.clone(), 0).expect("extended");
        check(
            &b.node,
            &["b: (NoOp): /job:localhost/replica:0/task:0/device:CPU:1\n"],
        );
        check(&[], &[]);
    }
}
