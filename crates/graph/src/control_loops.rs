//! Loops that span partitions (TensorFlow: `core/graph/graph_partition.cc`).
//!
//! The frame of a loop exists in each partition that has some of its nodes. A partition that receives a
//! tensor in each iteration has to know that there is one: a *control loop* there has the same frame
//! name, carries an empty tensor from iteration to iteration, and ends when the predicate of the real
//! loop, which it receives too, is false. Its Merge starts the `_Recv` nodes of the iteration; those of
//! the last one receive dead tensors. Tensors of nodes that do not run in the first iteration are received
//! from the second one on: its NextIteration starts their `_Recv` nodes. TensorFlow has no such case, so
//! that a step with such an edge waits for ever there.

use crate::late::Late;
use crate::{Consumers, Frames, Graph, Node, NodeId, Output, loop_frames, topological_order};
use ferroflow_base::{Result, internal, invalid_argument};
use ferroflow_opdef::{AttrValue, Attrs, NodeClass, Registry};
use ferroflow_tensor::{DType, LazyTensor, Tensor};
use rustc_hash::FxHashMap;

/// Moves nodes of loops and conditionals to where partitioning needs them: a Switch and an Exit to their
/// data input, an Enter and a NextIteration to their first reader.
pub(crate) fn colocate_control_flow(graph: &Graph, places: &mut [usize]) -> Result<()> {
    let class = |id: NodeId| graph.node(id).class();
    if !graph.iter().any(|(_, n)| n.class().is_control_flow()) {
        return Ok(());
    }
    let order = topological_order(graph)?;
    for &id in &order {
        if matches!(class(id), NodeClass::Switch | NodeClass::Exit)
            && let Some(data) = graph.node(id).inputs.first()
        {
            places[id.index()] = places[data.node.index()];
        }
    }
    let consumers = Consumers::new(graph);
    for &id in order.iter().rev() {
        let moves = match class(id) {
            NodeClass::Enter => graph.node(id).op() != "RefEnter",
            class => class == NodeClass::NextIteration,
        };
        let reads = |reader: &NodeId| graph.node(*reader).inputs.iter().any(|i| i.node == id);
        let mut readers = consumers.of(id).iter().map(|(reader, _)| *reader);
        if moves && let Some(reader) = readers.find(reads) {
            places[id.index()] = places[reader.index()];
        }
    }
    Ok(())
}

/// The control loops of a graph that is cut.
#[derive(Default)]
pub(crate) struct ControlLoops {
    frames: Frames,
    late: Late,
    /// The control loops, by frame and partition.
    loops: FxHashMap<(usize, usize), ControlLoop>,
}

/// The nodes of a control loop that start others.
#[derive(Clone, Copy)]
struct ControlLoop {
    /// Runs in each iteration.
    merge: NodeId,
    /// Its output exists in each iteration but the first.
    next: NodeId,
}

impl ControlLoops {
    /// Adds the control loops that `graph` needs, and their devices to `places`.
    ///
    /// # Errors
    /// INVALID_ARGUMENT if a loop is malformed or has no LoopCond.
    pub(crate) fn add(
        graph: &mut Graph,
        places: &mut Vec<usize>,
        part_of: &dyn Fn(usize) -> usize,
        registry: &Registry,
    ) -> Result<ControlLoops> {
        let mut added = ControlLoops {
            frames: loop_frames(graph)?,
            ..Default::default()
        };
        if added.frames.loops.is_empty() {
            return Ok(added);
        }
        added.late = Late::find(graph, &added.frames)?;
        let mut wanted = Vec::new();
        for (id, node) in graph.iter() {
            let to = places[id.index()];
            for from in node.predecessors() {
                if part_of(places[from.index()]) != part_of(to)
                    && let Some(frame) = added.frames.after(graph, from)
                {
                    wanted.push((frame, to));
                }
            }
        }
        let mut conds = vec![None; added.frames.loops.len()];
        for (id, node) in graph.iter() {
            if node.class() == NodeClass::LoopCond
                && let Some(frame) = added.frames.of(id)
            {
                conds[frame] = Some(id);
            }
        }
        for (frame, device) in wanted {
            let part = part_of(device);
            let mut builder = Builder {
                graph,
                places,
                registry,
                conds: &conds,
                device,
                part,
            };
            builder.control_loop(&mut added, frame)?;
        }
        Ok(added)
    }

    /// The node of partition `part` that starts its `_Recv` of a tensor of `source`, if that is in a loop.
    pub(crate) fn trigger(&self, graph: &Graph, source: NodeId, part: usize) -> Option<NodeId> {
        let frame = self.frames.after(graph, source)?;
        let control = self.loops.get(&(frame, part))?;
        Some(match self.late.contains(source, frame) {
            true => control.next,
            false => control.merge,
        })
    }
}

struct Builder<'a> {
    graph: &'a mut Graph,
    places: &'a mut Vec<usize>,
    registry: &'a Registry,
    /// The LoopCond of each frame.
    conds: &'a [Option<NodeId>],
    device: usize,
    part: usize,
}

impl Builder<'_> {
    /// The control loop of `frame`, which is added if needed, with those around it.
    fn control_loop(&mut self, loops: &mut ControlLoops, frame: usize) -> Result<ControlLoop> {
        if let Some(control) = loops.loops.get(&(frame, self.part)) {
            return Ok(*control);
        }
        let own = loops.frames.loops[frame].clone();
        let cond = self.conds[frame].ok_or_else(|| {
            invalid_argument!(
                "A cross-device loop must have a pivot predicate: {}",
                own.name
            )
        })?;
        let enter_attrs = Attrs::default()
            .with("frame_name", AttrValue::Str(own.name.into()))
            .with(
                "parallel_iterations",
                AttrValue::Int(own.parallel_iterations),
            );
        let outer = match own.parent {
            Some(parent) => {
                let around = self.control_loop(loops, parent)?;
                match loops.late.contains(cond, parent) {
                    true => around.next,
                    false => around.merge,
                }
            }
            None => self.add("Const", empty_constant()?, &[])?,
        };
        let enter = self.add("Enter", enter_attrs, &[Output::new(outer, 0)])?;
        let count = Attrs::default().with("N", AttrValue::Int(2));
        let merge = self.add("Merge", count, &[Output::new(enter, 0); 2])?;
        let inputs = [Output::new(merge, 0), Output::new(cond, 0)];
        let switch = self.add("Switch", Attrs::default(), &inputs)?;
        let again = [Output::new(switch, 1)];
        let next = self.add("NextIteration", Attrs::default(), &again)?;
        self.graph.set_input(merge, 1, Output::new(next, 0));
        let control = ControlLoop { merge, next };
        loops.loops.insert((frame, self.part), control);
        Ok(control)
    }

    fn add(&mut self, op: &str, attrs: Attrs, inputs: &[Output]) -> Result<NodeId> {
        let attrs = match op {
            "Const" => attrs,
            _ => attrs.with("T", AttrValue::Type(DType::Float)),
        };
        let base = format!("_cloop{}_{}", self.part, op.to_lowercase());
        let name = self.graph.unique_name(&base);
        let node = Node::new(self.registry, name, op, attrs, inputs, &[])?;
        let id = self.graph.add(node)?;
        self.places.push(self.device);
        match self.places.len() == self.graph.id_bound() {
            true => Ok(id),
            false => Err(internal!("a node has no place")),
        }
    }
}

/// The attrs of a constant without elements, which stands for a control edge.
pub(crate) fn empty_constant() -> Result<Attrs> {
    let nothing: LazyTensor = Tensor::vector::<f32>(&[])?.into();
    Ok(Attrs::default()
        .with("dtype", AttrValue::Type(DType::Float))
        .with("value", AttrValue::Tensor(nothing)))
}
