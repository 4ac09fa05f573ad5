//! The loop that each node is in.

use crate::{Consumers, Graph, Node, NodeId, topological_order};
use ferroflow_base::{Result, invalid_argument};
use ferroflow_opdef::NodeClass;
use rustc_hash::FxHashMap;
use std::collections::{VecDeque, hash_map::Entry};

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
    /// The loop of each frame name and loop around it.
    by_name: FxHashMap<String, FxHashMap<Option<usize>, usize>>,
}

impl Frames {
    /// The loop that `node` is in.
    pub fn of(&self, node: NodeId) -> Option<usize> {
        self.of.get(node.index()).copied().flatten()
    }

    /// The loop that the outputs of `node` are in: an Enter's inside, an Exit's outside.
    pub fn after(&self, graph: &Graph, node: NodeId) -> Option<usize> {
        let own = self.of(node);
        match graph.node(node).class() {
            NodeClass::Enter => self.child(own, graph.node(node)),
            NodeClass::Exit => own.and_then(|f| self.loops.get(f)?.parent),
            _ => own,
        }
    }

    fn child(&self, parent: Option<usize>, enter: &Node) -> Option<usize> {
        let name = enter.attrs.str("frame_name").ok()?;
        self.by_name.get(name)?.get(&parent).copied()
    }
}

/// Finds the loops of a graph and checks that they are well formed: inputs of a node come from one
/// frame (constants without inputs may be anywhere), Exit and NextIteration are in a loop, a loop
/// with a NextIteration has a LoopCond, every cycle is entered somewhere.
///
/// # Errors
/// INVALID_ARGUMENT if a loop is malformed.
pub fn loop_frames(graph: &Graph) -> Result<Frames> {
    let mut frames = Frames::default();
    if !graph.iter().any(|(_, n)| n.class().is_loop()) {
        return Ok(frames);
    }
    let order = topological_order(graph)?;
    frames.of = vec![None; graph.id_bound()];
    let mut reached = vec![false; graph.id_bound()];
    let consumers = Consumers::new(graph);
    // Edges from loops' ends may lead anywhere: frames spread from the roots, edge by edge.
    let is_root = |id: &NodeId| {
        graph
            .node(*id)
            .predecessors()
            .all(|s| graph.node(s).is_free_constant())
    };
    let mut queue: VecDeque<NodeId> = order.iter().copied().filter(is_root).collect();
    queue.iter().for_each(|id| reached[id.index()] = true);
    while let Some(id) = queue.pop_front() {
        let node = graph.node(id);
        let frame = frames.of(id);
        if node.class() == NodeClass::Enter {
            let name = node.attrs.str("frame_name")?;
            let named = frames.by_name.entry(name.to_string()).or_default();
            if let Entry::Vacant(e) = named.entry(frame) {
                e.insert(frames.loops.len());
                frames.loops.push(LoopFrame {
                    name: name.to_string(),
                    parent: frame,
                    parallel_iterations: node.attrs.int("parallel_iterations")?,
                });
            }
        }
        if node.is_free_constant() {
            continue;
        }
        let after = frames.after(graph, id);
        for &(reader, _) in consumers.of(id) {
            if !reached[reader.index()] {
                reached[reader.index()] = true;
                frames.of[reader.index()] = after;
                queue.push_back(reader);
            } else if frames.of(reader) != after {
                return Err(mixed(graph, &frames, reader));
            }
        }
    }
    check_loops(graph, &frames, &order, &reached)?;
    Ok(frames)
}

fn check_loops(graph: &Graph, frames: &Frames, order: &[NodeId], reached: &[bool]) -> Result<()> {
    let mut has_cond = vec![false; frames.loops.len()];
    for &id in order {
        let node = graph.node(id);
        let frame = frames.of(id);
        if !reached[id.index()] {
            return Err(invalid_argument!(
                "nothing enters the cycle that node '{}' is on, so it can never run",
                node.name
            )
            .at_node(&node.name, node.op()));
        }
        if frame.is_none() && node.class().is_loop() && node.class() != NodeClass::Enter {
            let what = node.op().trim_start_matches("Ref");
            return Err(
                invalid_argument!("{what} node '{}' is outside any loop", node.name)
                    .at_node(&node.name, node.op()),
            );
        }
        if let (NodeClass::LoopCond | NodeClass::Switch, Some(f)) = (node.class(), frame) {
            has_cond[f] = true;
        }
    }
    for (_, node) in graph.iter() {
        let is_next = |s: &NodeId| graph.node(*s).class() == NodeClass::NextIteration;
        for next in node.predecessors().filter(is_next) {
            if let Some(f) = frames.of(next).filter(|f| !has_cond[*f]) {
                return Err(invalid_argument!(
                    "the loop '{}' has a NextIteration ('{}') but neither LoopCond nor Switch, so it cannot end",
                    frames.loops[f].name,
                    graph.node(next).name
                )
                .at_node(&node.name, node.op()));
            }
        }
    }
    Ok(())
}

/// The error of a node whose inputs come from several frames.
#[cold]
fn mixed(graph: &Graph, frames: &Frames, id: NodeId) -> ferroflow_base::Status {
    let node = graph.node(id);
    let name = |s: NodeId| {
        let frame = frames.after(graph, s);
        frame.map_or("", |f| frames.loops[f].name.as_str())
    };
    let bound = |s: &NodeId| !graph.node(*s).is_free_constant();
    let first = node.predecessors().find(bound).unwrap_or(id);
    let mut others = node.predecessors().filter(bound);
    let other = others.find(|s| frames.after(graph, *s) != frames.after(graph, first));
    let other = other.unwrap_or(id);
    invalid_argument!(
        "{{{{node {}}}}} has inputs from different frames. The input {{{{node {}}}}} is in frame \
         '{}'. The input {{{{node {}}}}} is in frame '{}'.",
        node.name,
        graph.node(first).name,
        name(first),
        graph.node(other).name,
        name(other)
    )
    .at_node(&node.name, node.op())
}
