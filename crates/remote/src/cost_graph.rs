//! The cost graph of a step (`RunMetadata.cost_graph`).

use ferroflow_model::proto::{
    CostGraphDef, GraphDef, NodeExecStats, StepStats, TensorDescription,
    cost_graph_def::{
        Node,
        node::{InputInfo, OutputInfo},
    },
};
use ferroflow_runtime::parse_tensor_name;
use std::collections::HashMap;

/// Returns the nodes of the graphs that ran; those in the step's statistics have times and outputs.
pub(crate) fn cost_graph(graphs: &[GraphDef], stats: &StepStats) -> CostGraphDef {
    let ran = stats.dev_stats.iter().flat_map(|d| &d.node_stats);
    let ran: HashMap<&str, &NodeExecStats> = ran.map(|n| (n.node_name.as_str(), n)).collect();
    let mut all = CostGraphDef::default();
    for graph in graphs {
        let first = all.node.len();
        let ids = graph
            .node
            .iter()
            .map(|n| n.name.as_str())
            .zip(first as i32..);
        let ids: HashMap<&str, i32> = ids.collect();
        for node in &graph.node {
            let mut cost = Node {
                name: node.name.clone(),
                device: node.device.clone(),
                id: all.node.len() as i32,
                is_final: true,
                ..Default::default()
            };
            for input in &node.input {
                if let Some(control) = input.strip_prefix('^') {
                    cost.control_input.extend(ids.get(control));
                } else if let Ok((source, port)) = parse_tensor_name(input) {
                    cost.input_info.extend(ids.get(source).map(|id| InputInfo {
                        preceding_node: *id,
                        preceding_port: port as i32,
                    }));
                }
            }
            if let Some(stats) = ran.get(node.name.as_str()) {
                cost.compute_cost = stats.op_end_rel_micros;
                cost.compute_time = stats.op_end_rel_micros;
                let tensors = stats.output.iter().map(|o| &o.tensor_description);
                cost.output_info = tensors.flatten().map(output).collect();
            }
            all.node.push(cost);
        }
        let read = all.node.get(first..).unwrap_or(&[]).iter();
        let read: Vec<i32> = read
            .flat_map(|n| {
                let data = n.input_info.iter().map(|i| i.preceding_node);
                data.chain(n.control_input.iter().copied())
            })
            .collect();
        for id in read {
            if let Some(node) = all.node.get_mut(id as usize) {
                node.is_final = false;
            }
        }
    }
    all
}

fn output(tensor: &TensorDescription) -> OutputInfo {
    let allocation = tensor.allocation_description.as_ref();
    OutputInfo {
        size: allocation.map_or(0, |a| a.requested_bytes),
        // Outputs do not alias inputs.
        alias_input_port: -1,
        shape: tensor.shape.clone(),
        dtype: tensor.dtype,
    }
}
