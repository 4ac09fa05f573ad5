//! Graphs as Graphviz text and as SVG.

use ferroflow_runtime::{Graph, Node, NodeId};
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

/// The places of nodes in a picture: layers from top to bottom.
struct Layout {
    /// Each node's place in its layer, and the layer.
    places: Vec<(usize, usize)>,
    /// The number of nodes of each layer.
    widths: Vec<usize>,
    widest: usize,
}

impl Layout {
    fn of(graph: &Graph, shown: &[NodeId]) -> Layout {
        let mut is_shown = vec![false; graph.id_bound()];
        let mut places = vec![(0usize, 0usize); graph.id_bound()];
        let mut widths: Vec<usize> = Vec::new();
        for id in shown {
            let sources = graph.node(*id).predecessors();
            let above = sources.filter(|s| is_shown[s.index()]);
            let layer = above.map(|s| places[s.index()].1 + 1).max().unwrap_or(0);
            if widths.len() <= layer {
                widths.resize(layer + 1, 0);
            }
            places[id.index()] = (widths[layer], layer);
            is_shown[id.index()] = true;
            widths[layer] += 1;
        }
        let widest = widths.iter().copied().max().unwrap_or(1);
        Layout {
            places,
            widths,
            widest,
        }
    }

    fn size(&self) -> (usize, usize) {
        (
            self.widest * (BOX_WIDTH + GAP_X) + GAP_X,
            self.widths.len() * (BOX_HEIGHT + GAP_Y) + GAP_Y,
        )
    }

    /// The upper left corner of a node's box.
    fn corner(&self, id: NodeId) -> (usize, usize) {
        let (x, y) = self.places[id.index()];
        let indent = (self.widest - self.widths[y]) * (BOX_WIDTH + GAP_X) / 2;
        (
            indent + GAP_X + x * (BOX_WIDTH + GAP_X),
            GAP_Y / 2 + y * (BOX_HEIGHT + GAP_Y),
        )
    }
}

/// Returns the graph as an SVG picture: layers from top to bottom, without constants.
pub fn svg(graph: &Graph) -> ferroflow_runtime::Result<String> {
    let is_shown = |id: &NodeId| graph.node(*id).op() != "Const";
    let mut shown = ferroflow_runtime::topological_order(graph)?;
    shown.retain(is_shown);
    let layout = Layout::of(graph, &shown);
    let (width, height) = layout.size();
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" \
         font-family=\"Helvetica\" font-size=\"11\">\n<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n"
    );
    for id in &shown {
        let (x, y) = layout.corner(*id);
        let inputs = graph.node(*id).inputs.iter();
        for input in inputs.filter(|i| is_shown(&i.node)) {
            let (sx, sy) = layout.corner(input.node);
            let _ = writeln!(
                out,
                "<line x1=\"{}\" y1=\"{}\" x2=\"{}\" y2=\"{y}\" stroke=\"#888\"/>",
                sx + BOX_WIDTH / 2,
                sy + BOX_HEIGHT,
                x + BOX_WIDTH / 2
            );
        }
    }
    for id in &shown {
        write_box(&mut out, graph.node(*id), layout.corner(*id));
    }
    out.push_str("</svg>\n");
    Ok(out)
}

fn write_box(out: &mut String, node: &Node, (x, y): (usize, usize)) {
    let chars: Vec<char> = node.name.chars().collect();
    let tail: String = chars[chars.len().saturating_sub(26)..].iter().collect();
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

fn escape(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
}
