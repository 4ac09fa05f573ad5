//! Rows: graphs and the nodes that TensorFlow's own library adds to them as gradients.

use ferroflow_graph::{ClientGraph, ImportOptions, Node, NodeId, Output, parse_tensor_name};
use ferroflow_opdef::{AttrValue, Attrs};
use ferroflow_tensor::{DType, Tensor};
use std::path::Path;

fn outputs(graph: &ClientGraph, names: &str) -> Vec<Output> {
    let output = |name: &str| {
        let (name, slot) = parse_tensor_name(name).expect(name);
        Output::new(graph.find(name).expect(name), slot)
    };
    names.split_whitespace().map(output).collect()
}

fn name_of(graph: &ClientGraph, output: Output) -> String {
    let name = &graph.node(output.node).expect("a node").name;
    format!("{name}:{}", output.slot)
}

fn tensor_text(t: &Tensor) -> String {
    let values: Vec<String> = match t.dtype() {
        DType::Int32 => t
            .slice::<i32>()
            .expect("ints")
            .iter()
            .map(i32::to_string)
            .collect(),
        DType::Float => t
            .slice::<f32>()
            .expect("floats")
            .iter()
            .map(|v| format!("{v:?}"))
            .collect(),
        DType::Double => t
            .slice::<f64>()
            .expect("doubles")
            .iter()
            .map(|v| format!("{v:?}"))
            .collect(),
        other => panic!("a constant of {other}"),
    };
    let dims: Vec<String> = t.shape().dims().iter().map(usize::to_string).collect();
    format!("{}[{}] {}", t.dtype(), dims.join(","), values.join(", "))
}

fn value_text(value: &AttrValue) -> String {
    match value {
        AttrValue::Type(dtype) => dtype.name().to_string(),
        AttrValue::Float(value) => format!("{value:?}"),
        AttrValue::Tensor(t) => tensor_text(&t.get().expect("a tensor")),
        AttrValue::Func(f) => format!("{}{}", f.name, attrs_text(&f.attrs)),
        AttrValue::List(list) => {
            let list: Vec<String> = list.iter().map(value_text).collect();
            format!("[{}]", list.join(", "))
        }
        other => other.to_string(),
    }
}

fn attrs_text(attrs: &Attrs) -> String {
    let attrs = attrs
        .iter()
        .map(|(name, value)| format!("{name}={}", value_text(value)));
    format!("{{{}}}", attrs.collect::<Vec<_>>().join(", "))
}

fn node_text(graph: &ClientGraph, node: &Node) -> String {
    let input = |o: &Output| name_of(graph, *o).trim_end_matches(":0").to_string();
    let inputs: Vec<String> = node.inputs.iter().map(input).collect();
    let mut text = format!(
        "{} = {}{}({})",
        node.name,
        node.op(),
        attrs_text(&node.attrs),
        inputs.join(", ")
    );
    for control in &node.controls {
        text += &format!(" ^{}", graph.node(*control).expect("a node").name);
    }
    if !node.device.is_empty() {
        text += &format!(" on {}", node.device);
    }
    text
}

/// Adds gradients `ys by xs; given dys` to a graph; the new nodes and the results must be as expected.
fn check(title: &str, graph_text: &str, request: &str, expect: &[&str]) {
    let state = crate::graph::GraphState::new();
    let graph = &mut state.lock().graph;
    let def = ferroflow_model::graph_from_text(graph_text).expect(title);
    graph.import(&def, &ImportOptions::default()).expect(title);
    let (request, given) = request.split_once("; given ").unwrap_or((request, ""));
    let (ys, xs) = request.split_once(" by ").expect("ys by xs");
    let [ys, xs, given] = [ys, xs, given].map(|names| outputs(graph, names));
    let before = graph.len();
    let got = match graph.add_gradients(None, &ys, &xs, &given) {
        Err(e) => {
            assert_eq!(graph.len(), before, "{title}: nodes are left");
            vec![format!("{}: {}", e.code() as i32, e.message())]
        }
        Ok(found) => {
            let ids = (before..graph.len()).map(NodeId::new);
            let mut lines: Vec<String> = ids
                .map(|id| node_text(graph, graph.node(id).expect("a node")))
                .collect();
            let name = |o: Option<Output>| o.map_or("none".to_string(), |o| name_of(graph, o));
            let found: Vec<String> = found.into_iter().map(name).collect();
            lines.push(format!("return {}", found.join(", ")));
            lines
        }
    };
    assert_eq!(got, expect, "{title}");
}

#[test]
fn gradients_have_tensorflows_nodes() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("rows/gradients.txt");
    let rows = std::fs::read_to_string(path).expect("rows");
    let mut n = 0;
    for row in rows.split("\n== ").skip(1) {
        let lines: Vec<&str> = row.lines().collect();
        let [title, graph, request, "--", expect @ ..] = &lines[..] else {
            panic!("not a row: {row}");
        };
        check(title, graph, request, expect);
        n += 1;
    }
    assert!(n > 200, "{n} rows");
}
