//! Graphs as Graphviz text and as SVG.

use ferroflow_runtime::Graph;
use std::fmt::Write;

/// Returns the graph in Graphviz's language, without constants.
pub fn dot(graph: &Graph) -> String {
    let mut out =
        String::from("digraph model {\n  rankdir=TB; node [shape=box, fontname=Helvetica];\n");
    for (id, node) in graph.iter().filter(|(_, n)| n.op() != "Const") {
        let label = format!("{}\\n{}", node.op(), node.name.replace('"', "'"));
        let _ = writeln!(out, "  n{} [label=\"{label}\"];", id.index());
        for input in &node.inputs {
            if graph.node(input.node).op() != "Const" {
                let _ = writeln!(out, "  n{} -> n{};", input.node.index(), id.index());
            }
        }
        for control in &node.controls {
            let _ = writeln!(
                out,
                "  n{} -> n{} [style=dashed];",
                control.index(),
                id.index()
            );
        }
    }
    out.push_str("}\n");
    out
}

const BOX_WIDTH: usize = 170;
const BOX_HEIGHT: usize = 34;
const GAP_X: usize = 20;
const GAP_Y: usize = 36;

/// Returns the graph as an SVG picture: layers from top to bottom, without constants.
pub fn svg(graph: &Graph) -> ferroflow_runtime::Result<String> {
    let order = ferroflow_runtime::topological_order(graph)?;
    let mut layer = vec![0usize; graph.id_bound()];
    let mut place = vec![(0usize, 0usize); graph.id_bound()];
    let mut widths: Vec<usize> = Vec::new();
    let shown = |id: &ferroflow_runtime::NodeId| graph.node(*id).op() != "Const";
    for id in order.iter().filter(|id| shown(id)) {
        let node = graph.node(*id);
        let sources = node
            .inputs
            .iter()
            .map(|i| i.node)
            .chain(node.controls.iter().copied());
        let depth = sources
            .filter(shown)
            .map(|s| layer[s.index()] + 1)
            .max()
            .unwrap_or(0);
        layer[id.index()] = depth;
        if widths.len() <= depth {
            widths.resize(depth + 1, 0);
        }
        place[id.index()] = (widths[depth], depth);
        widths[depth] += 1;
    }
    let widest = widths.iter().copied().max().unwrap_or(1);
    let (total_w, total_h) = (
        widest * (BOX_WIDTH + GAP_X) + GAP_X,
        widths.len() * (BOX_HEIGHT + GAP_Y) + GAP_Y,
    );
    let corner = |id: ferroflow_runtime::NodeId| {
        let (x, y) = place[id.index()];
        let indent = (widest - widths[y]) * (BOX_WIDTH + GAP_X) / 2;
        (
            indent + GAP_X + x * (BOX_WIDTH + GAP_X),
            GAP_Y / 2 + y * (BOX_HEIGHT + GAP_Y),
        )
    };
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{total_w}\" height=\"{total_h}\" \
         font-family=\"Helvetica\" font-size=\"11\">\n<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n"
    );
    for id in order.iter().filter(|id| shown(id)) {
        let (x, y) = corner(*id);
        for input in graph.node(*id).inputs.iter().filter(|i| shown(&i.node)) {
            let (sx, sy) = corner(input.node);
            let _ = writeln!(
                out,
                "<line x1=\"{}\" y1=\"{}\" x2=\"{}\" y2=\"{y}\" stroke=\"#888\"/>",
                sx + BOX_WIDTH / 2,
                sy + BOX_HEIGHT,
                x + BOX_WIDTH / 2
            );
        }
    }
    for id in order.iter().filter(|id| shown(id)) {
        let node = graph.node(*id);
        let (x, y) = corner(*id);
        let tail: String = {
            let chars: Vec<char> = node.name.chars().collect();
            chars[chars.len().saturating_sub(26)..].iter().collect()
        };
        let _ = writeln!(
            out,
            "<g><title>{}</title><rect x=\"{x}\" y=\"{y}\" width=\"{BOX_WIDTH}\" height=\"{BOX_HEIGHT}\" \
             rx=\"4\" fill=\"#eef3fb\" stroke=\"#456\"/><text x=\"{tx}\" y=\"{ty}\" text-anchor=\"middle\" \
             font-weight=\"bold\">{}</text><text x=\"{tx}\" y=\"{uy}\" text-anchor=\"middle\" \
             font-size=\"9\">{}</text></g>",
            escape(&node.name),
            escape(node.op()),
            escape(&tail),
            tx = x + BOX_WIDTH / 2,
            ty = y + 14,
            uy = y + 27,
        );
    }
    out.push_str("</svg>\n");
    Ok(out)
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
}
