//! Which loop each node is in.

use crate::{Graph, Node, NodeId, topological_order};
use ferroflow_base::{Result, invalid_argument};
use rustc_hash::FxHashMap;

/// A loop: what the Enter nodes of one frame name lead into.
#[derive(Clone, Debug)]
pub struct LoopFrame {
    /// The attr `frame_name`.
    pub name: String,
    /// The loop around it, by position; `None` for the graph or function itself.
    pub parent: Option<usize>,
    /// The attr of its first Enter.
    pub parallel_iterations: i64,
}

/// The loops of a graph, outer ones first, and the loop of every node.
#[derive(Clone, Debug, Default)]
pub struct Frames {
    /// All loops.
    pub loops: Vec<LoopFrame>,
    of: Vec<Option<usize>>,
}

impl Frames {
    /// The loop that `node` is in.
    pub fn of(&self, node: NodeId) -> Option<usize> {
        self.of.get(node.index()).copied().flatten()
    }

    /// The loop that the outputs of `node` are in: an Enter's inside, an Exit's outside.
    pub fn after(&self, graph: &Graph, node: NodeId) -> Option<usize> {
        let own = self.of(node);
        match graph.node(node).op() {
            "Enter" | "RefEnter" => self.child(own, graph.node(node)),
            "Exit" | "RefExit" => own.and_then(|f| self.loops.get(f)?.parent),
            _ => own,
        }
    }

    fn child(&self, parent: Option<usize>, enter: &Node) -> Option<usize> {
        let name = enter.attrs.str("frame_name").ok()?;
        self.loops
            .iter()
            .position(|l| l.parent == parent && l.name == name)
    }
}

/// Whether `op` is one of the loop ops.
fn is_loop_op(op: &str) -> bool {
    matches!(
        op.strip_prefix("Ref").unwrap_or(op),
        "Enter" | "Exit" | "NextIteration"
    ) || op == "LoopCond"
}

/// Finds the loops of a graph and checks that they are well formed: inputs of a node come from one
/// frame (constants without inputs may be anywhere), Exit and NextIteration are in a loop, a loop
/// that goes on has a LoopCond, a NextIteration leads to a Merge of its own loop.
pub fn loop_frames(graph: &Graph) -> Result<Frames> {
    let mut frames = Frames::default();
    if !graph.iter().any(|(_, n)| is_loop_op(n.op())) {
        return Ok(frames);
    }
    frames.of = vec![None; graph.id_bound()];
    let mut ids: FxHashMap<(Option<usize>, String), usize> = FxHashMap::default();
    let mut has_cond = Vec::new();
    let mut nexts = Vec::new();
    for id in topological_order(graph)? {
        let node = graph.node(id);
        let mut frame: Option<(Option<usize>, NodeId)> = None;
        for source in sources(node) {
            let from = graph.node(source);
            if floats(from) || is_next(from) {
                continue;
            }
            let here = frames.after(graph, source);
            match frame {
                None => frame = Some((here, source)),
                Some((there, first)) if there != here => {
                    return Err(mixed(graph, &frames, node, (first, there), (source, here)));
                }
                Some(_) => {}
            }
        }
        let frame = frame.and_then(|(f, _)| f);
        frames.of[id.index()] = frame;
        let outside = |what: &str| {
            invalid_argument!("{what} node '{}' is outside any loop", node.name)
                .at_node(&node.name, node.op())
        };
        match node.op().strip_prefix("Ref").unwrap_or(node.op()) {
            "Enter" => {
                let name = node.attrs.str("frame_name")?.to_string();
                if let std::collections::hash_map::Entry::Vacant(e) = ids.entry((frame, name)) {
                    frames.loops.push(LoopFrame {
                        name: e.key().1.clone(),
                        parent: frame,
                        parallel_iterations: node.attrs.int("parallel_iterations")?,
                    });
                    has_cond.push(false);
                    e.insert(frames.loops.len() - 1);
                }
            }
            "Exit" => {
                frame.ok_or_else(|| outside("Exit"))?;
            }
            "NextIteration" => {
                frame.ok_or_else(|| outside("NextIteration"))?;
                nexts.push(id);
            }
            "LoopCond" => {
                has_cond[frame.ok_or_else(|| outside("LoopCond"))?] = true;
            }
            _ => {}
        }
    }
    let is_next_of: FxHashMap<NodeId, Option<usize>> =
        nexts.iter().map(|n| (*n, frames.of(*n))).collect();
    for (id, node) in graph.iter() {
        for source in sources(node) {
            let Some(&from) = is_next_of.get(&source) else {
                continue;
            };
            let first = sources(node).find(|s| !is_next_of.contains_key(s));
            if frames.of(id) != from {
                let first = (first.unwrap_or(id), frames.of(id));
                return Err(mixed(graph, &frames, node, first, (source, from)));
            }
            if let Some(f) = from.filter(|f| !has_cond[*f]) {
                return Err(invalid_argument!(
                    "the loop '{}' has a NextIteration ('{}') but no LoopCond, so it cannot end",
                    frames.loops[f].name,
                    graph.node(source).name
                )
                .at_node(&node.name, node.op()));
            }
        }
    }
    Ok(frames)
}

fn sources(node: &Node) -> impl Iterator<Item = NodeId> + '_ {
    let data = node.inputs.iter().map(|i| i.node);
    data.chain(node.controls.iter().copied())
}

/// Constants without inputs are at home in every frame.
fn floats(node: &Node) -> bool {
    node.op() == "Const" && node.controls.is_empty()
}

fn is_next(node: &Node) -> bool {
    matches!(node.op(), "NextIteration" | "RefNextIteration")
}

#[cold]
fn mixed(
    graph: &Graph,
    frames: &Frames,
    node: &Node,
    a: (NodeId, Option<usize>),
    b: (NodeId, Option<usize>),
) -> ferroflow_base::Status {
    let name = |f: Option<usize>| f.map_or("", |f| frames.loops[f].name.as_str());
    invalid_argument!(
        "{{{{node {}}}}} has inputs from different frames. The input {{{{node {}}}}} is in frame \
         '{}'. The input {{{{node {}}}}} is in frame '{}'.",
        node.name,
        graph.node(a.0).name,
        name(a.1),
        graph.node(b.0).name,
        name(b.1)
    )
    .at_node(&node.name, node.op())
}
