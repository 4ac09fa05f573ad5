//! The regions of nodes: the loops and branches of conditionals that Switch, Merge and loop ops
//! stand for.

use super::build::Region;
use crate::deadness::is_next;
use ferroflow_graph::{Frames, Graph, Node, NodeClass, NodeId, Output, topological_order};

/// The regions around a node, outermost first.
pub(super) type Path = Vec<Region>;

/// The loops and conditionals of a graph.
pub(super) struct Regions {
    pub(super) frames: Frames,
    pub(super) paths: Paths,
}

impl Regions {
    /// `None` if values of different regions meet.
    pub(super) fn new(graph: &Graph, frames: Frames) -> Option<Regions> {
        let paths = Paths::new(graph, &frames)?;
        Some(Regions { frames, paths })
    }
}

/// The paths of all nodes of a graph.
pub(super) struct Paths {
    /// `None` for nodes whose inputs are in no order of regions.
    of: Vec<Option<Path>>,
    /// The path around each loop.
    around: Vec<Option<Path>>,
}

/// Rounds until paths are given up; each level of loops may need one.
const MAX_ROUNDS: usize = 32;

impl Paths {
    /// Finds the paths of a graph.
    fn new(graph: &Graph, frames: &Frames) -> Option<Paths> {
        let mut paths = Paths {
            of: vec![None; graph.id_bound()],
            around: vec![None; frames.loops.len()],
        };
        let order = topological_order(graph).ok()?;
        for _ in 0..MAX_ROUNDS {
            let mut has_changed = false;
            for &id in &order {
                let path = paths.find(graph, frames, id);
                if path != paths.of[id.index()] {
                    paths.of[id.index()] = path;
                    has_changed = true;
                }
            }
            if !has_changed {
                return Some(paths);
            }
        }
        None
    }

    /// The path of a node.
    pub(super) fn of(&self, id: NodeId) -> Option<&Path> {
        self.of.get(id.index())?.as_ref()
    }

    /// The path around a loop.
    pub(super) fn around(&self, frame: usize) -> Option<&Path> {
        self.around.get(frame)?.as_ref()
    }

    /// The path of what reads an output.
    pub(super) fn after(&self, graph: &Graph, frames: &Frames, output: Output) -> Option<Path> {
        let node = graph.node(output.node);
        let mut path = self.of(output.node)?.clone();
        match node.class() {
            NodeClass::Enter => {
                let frame = frames.after(graph, output.node)?;
                path = self.around(frame)?.clone();
                path.push(Region::Head(frame));
            }
            NodeClass::Switch => path.push(side(graph, frames, node, output.slot as usize)?),
            _ => {}
        }
        Some(path)
    }

    fn find(&mut self, graph: &Graph, frames: &Frames, id: NodeId) -> Option<Path> {
        let node = graph.node(id);
        match node.class() {
            NodeClass::Merge => return self.merged(graph, frames, node),
            NodeClass::Exit => {
                let frame = frames.of(id)?;
                let mut path = self.after(graph, frames, *node.inputs.first()?)?;
                let is_end = path.pop() == Some(Region::End(frame));
                let is_within = path.pop() == Some(Region::Head(frame));
                return (is_end && is_within).then_some(path);
            }
            _ => {}
        }
        let mut path = Some(Path::new());
        for input in &node.inputs {
            path = deeper(path?, self.after(graph, frames, *input)?);
        }
        for control in &node.controls {
            path = deeper(path?, self.after_control(graph, frames, *control)?);
        }
        if node.class() == NodeClass::Enter {
            let frame = frames.after(graph, id)?;
            let around = self.around[frame].take().unwrap_or_default();
            self.around[frame] = deeper(around, path.clone()?);
        }
        path
    }

    fn after_control(&self, graph: &Graph, frames: &Frames, id: NodeId) -> Option<Path> {
        match graph.node(id).class() {
            NodeClass::Switch => self.of(id).cloned(),
            _ => self.after(graph, frames, Output::new(id, 0)),
        }
    }

    fn merged(&self, graph: &Graph, frames: &Frames, node: &Node) -> Option<Path> {
        let [a, b] = node.inputs[..] else {
            return None;
        };
        if is_next(graph.node(b.node)) {
            return self.after(graph, frames, a);
        }
        if is_next(graph.node(a.node)) {
            return self.after(graph, frames, b);
        }
        let (mut a, mut b) = (self.after(graph, frames, a)?, self.after(graph, frames, b)?);
        match (a.pop()?, b.pop()?) {
            (Region::Branch(p, on), Region::Branch(q, other))
                if p == q && on != other && a == b =>
            {
                Some(a)
            }
            _ => None,
        }
    }
}

/// The region of an output of a Switch within that of its inputs.
fn side(graph: &Graph, frames: &Frames, node: &Node, slot: usize) -> Option<Region> {
    if node.op() == "_SwitchN" {
        return None;
    }
    let predicate = origin(graph, *node.inputs.get(1)?);
    let maker = graph.node(predicate.node);
    if maker.class() == NodeClass::LoopCond {
        let frame = frames.of(predicate.node)?;
        return Some(match slot {
            0 => Region::End(frame),
            _ => Region::Body(frame),
        });
    }
    Some(Region::Branch(predicate, slot == 1))
}

/// What an output is a copy of.
pub(super) fn origin(graph: &Graph, mut output: Output) -> Output {
    // A cycle of copies would be caught elsewhere.
    for _ in 0..graph.len() {
        let node = graph.node(output.node);
        match (node.class(), node.inputs.first()) {
            (NodeClass::Identity, Some(input)) if node.inputs.len() == 1 => output = *input,
            _ => break,
        }
    }
    output
}

/// The node whose error a node that copies has: that behind Switch and Identity nodes.
pub(super) fn maker(graph: &Graph, mut id: NodeId) -> NodeId {
    for _ in 0..graph.len() {
        let node = graph.node(id);
        match (node.class(), node.inputs.first()) {
            (NodeClass::Identity | NodeClass::Switch, Some(input)) => id = input.node,
            _ => break,
        }
    }
    id
}

/// The deeper one of two paths of which one leads to the other.
fn deeper(a: Path, b: Path) -> Option<Path> {
    let (short, long) = if a.len() < b.len() { (a, b) } else { (b, a) };
    long.starts_with(&short).then_some(long)
}
