//! Names of nodes in graphs that other tasks run. A stock worker keeps the stateful kernels of a session by node
//! name (TensorFlow: `core/framework/op_segment.h`): a name stands for the same kernel in all graphs of the session, those
//! of other masters included.

use ferroflow_model::proto::{GraphDef, NodeDef};
use ferroflow_runtime::registry;
use std::collections::HashMap;

/// Attrs that name what a stateful op shares with others; without a name it is that of the node.
const SHARED_BY_NAME: [&str; 2] = ["shared_name", "container"];

/// Ends the names of transfers with `suffix`, which no other graph of the session has: graphs that send a tensor to
/// several devices, or that several tasks register, give their transfers the same names. In the session of an eager
/// context this holds for all kernels with state, since functions do not share any.
pub(crate) fn make_unique(graph: &mut GraphDef, is_eager: bool, suffix: &str) {
    let is_renamed = |node: &NodeDef| match node.op.as_str() {
        "_Send" | "_Recv" | "_HostSend" | "_HostRecv" => true,
        op => is_eager && has_own_kernel(op, node),
    };
    let renamed = graph.node.iter_mut().filter(|node| is_renamed(node));
    let new_names: HashMap<String, String> = renamed
        .map(|node| {
            let new = format!("{}{suffix}", node.name);
            (std::mem::replace(&mut node.name, new.clone()), new)
        })
        .collect();
    for input in graph.node.iter_mut().flat_map(|node| &mut node.input) {
        let (mark, rest) = match input.strip_prefix('^') {
            Some(rest) => ("^", rest),
            None => ("", input.as_str()),
        };
        let (name, slot) = rest.split_once(':').unwrap_or((rest, ""));
        if let Some(new) = new_names.get(name) {
            let colon = if slot.is_empty() { "" } else { ":" };
            *input = format!("{mark}{new}{colon}{slot}");
        }
    }
}

/// Whether a node has state that is not shared under its name.
fn has_own_kernel(op: &str, node: &NodeDef) -> bool {
    let def = registry().def(op).ok().flatten();
    def.is_some_and(|def| def.flags.stateful)
        && !SHARED_BY_NAME
            .iter()
            .any(|attr| node.attr.contains_key(*attr))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Renames nodes written as `name=Op(inputs)`; returns them in the same form.
    fn check(nodes: &[(&str, &str, &[&str])], is_eager: bool, expect: &[&str]) {
        let node = |(name, op, inputs): &(&str, &str, &[&str])| NodeDef {
            name: name.to_string(),
            op: op.to_string(),
            input: inputs.iter().map(|i| i.to_string()).collect(),
            attr: match *op {
                "VarHandleOp" => [("shared_name".to_string(), Default::default())].into(),
                _ => Default::default(),
            },
            ..Default::default()
        };
        let mut graph = GraphDef {
            node: nodes.iter().map(node).collect(),
            ..Default::default()
        };
        make_unique(&mut graph, is_eager, "_S7");
        let text = |n: &NodeDef| format!("{}={}({})", n.name, n.op, n.input.join(","));
        assert_eq!(graph.node.iter().map(text).collect::<Vec<_>>(), expect);
    }

    #[test]
    fn graphs_share_no_kernels_of_transfers() {
        let nodes: &[(&str, &str, &[&str])] = &[
            ("r", "_Recv", &[]),
            ("v", "VarHandleOp", &[]),
            ("u", "RandomUniform", &["r:0", "^v"]),
            ("s", "_HostSend", &["u:0", "^r"]),
        ];
        check(
            nodes,
            false,
            &[
                "r_S7=_Recv()",
                "v=VarHandleOp()",
                "u=RandomUniform(r_S7:0,^v)",
                "s_S7=_HostSend(u:0,^r_S7)",
            ],
        );
        check(
            nodes,
            true,
            &[
                "r_S7=_Recv()",
                "v=VarHandleOp()",
                "u_S7=RandomUniform(r_S7:0,^v)",
                "s_S7=_HostSend(u_S7:0,^r_S7)",
            ],
        );
    }
}
