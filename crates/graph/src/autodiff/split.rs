//! Splits a function with its gradient into the two.
//!
//! Both were made in one graph. What the function itself needs stays one graph, with a further result:
//! an optional of all values that the gradient reads. The rest becomes the gradient's graph, which
//! takes that optional. So nothing runs twice: random numbers are those that the function drew, its
//! effects happen once, and a function that calls itself keeps what each of its calls computed.
//!
//! A value on a side of a conditional may be dead. It is kept behind a Merge with fillers for the
//! other sides, and goes back to its side in the gradient.

use super::branches::{Branches, Side};
use super::reach::inside;
use crate::{ARG, Consumers, Frames, Graph, GraphBuilder, NodeId, Output, RETVAL, needed_by};
use ferroflow_base::{Result, internal, unimplemented_error};
use ferroflow_opdef::{AttrValue, NodeClass, Registry};
use ferroflow_tensor::{DType, PartialShape, Shape, Tensor};
use rustc_hash::FxHashMap;

/// A function and its gradient in one graph.
pub(super) struct JointGraph {
    pub(super) graph: Graph,
    /// The results of the function.
    pub(super) results: Vec<Output>,
    /// The number of arguments of the function; those of the gradient follow.
    pub(super) n_args: usize,
}

/// Splits a joint graph: the function returns what its gradient reads as one more result, the gradient
/// takes that as one more argument.
pub(super) fn split_forward_backward(
    joint: JointGraph,
    registry: &Registry,
) -> Result<(Graph, Graph)> {
    let parts = Sides::new(&joint)?;
    let branches = Branches::new(&joint.graph)?;
    let mut forward = joint.graph.clone();
    let mut backward = joint.graph;
    backward.set_targets(Vec::new());
    let ids: Vec<NodeId> = backward.iter().map(|(id, _)| id).collect();
    for id in ids {
        let node = backward.node(id);
        let is_kept = node.class() == NodeClass::Arg || node.is_free_constant();
        if !parts.is_backward[id.index()] && !is_kept {
            backward.remove(id);
        }
        if !parts.is_forward[id.index()] {
            forward.remove(id);
        }
    }
    let mut split = Split {
        branches,
        forward: GraphBuilder::from_graph(forward, registry),
        backward: GraphBuilder::from_graph(backward, registry),
        fillers: FxHashMap::default(),
        slots: FxHashMap::default(),
        kept: Vec::new(),
        unpacked: Vec::new(),
        brought: FxHashMap::default(),
    };
    let arg = split.redirect(&parts)?;
    split.finish(&joint.results, arg)
}

/// The nodes of the function and those of its gradient.
struct Sides {
    is_forward: Vec<bool>,
    is_backward: Vec<bool>,
}

impl Sides {
    fn new(joint: &JointGraph) -> Result<Sides> {
        let graph = &joint.graph;
        let n = graph.id_bound();
        let frames = crate::loop_frames(graph)?;
        let late = depends_on_gradients(joint, &frames)?;
        // What the function needs, and loops that do not need the gradient: they may keep
        // values of each iteration for it.
        let mut stack: Vec<NodeId> = joint.results.iter().map(|o| o.node).collect();
        stack.extend(graph.targets());
        stack.extend(graph.iter().filter_map(|(id, node)| {
            let is_part = node.class() == NodeClass::Arg || frames.of(id).is_some();
            (is_part && !late[id.index()]).then_some(id)
        }));
        let is_forward = needed_by(graph, stack, |_| false);
        if (0..n).any(|i| is_forward[i] && late[i]) {
            return Err(internal!("the function needs its own gradient"));
        }
        let gradients = graph
            .iter()
            .filter(|(_, node)| node.class() == NodeClass::Retval);
        let gradients = gradients.map(|(id, _)| id);
        Ok(Sides {
            is_backward: needed_by(graph, gradients, |id| is_forward[id.index()]),
            is_forward,
        })
    }
}

/// The nodes after the gradients that come in; of a loop all or none.
fn depends_on_gradients(joint: &JointGraph, frames: &Frames) -> Result<Vec<bool>> {
    let graph = &joint.graph;
    let consumers = Consumers::new(graph);
    let mut members: Vec<Vec<NodeId>> = vec![Vec::new(); frames.loops.len()];
    let outermost = |id: NodeId| {
        let mut at = frames.of(id).or_else(|| inside(graph, frames, id));
        while let Some(parent) = at.and_then(|l| frames.loops.get(l)?.parent) {
            at = Some(parent);
        }
        at
    };
    let mut stack = Vec::new();
    for (id, node) in graph.iter() {
        if let Some(l) = outermost(id) {
            members[l].push(id);
        }
        if node.class() == NodeClass::Arg && node.attrs.int("index")? >= joint.n_args as i64 {
            stack.push(id);
        }
    }
    let mut late = vec![false; graph.id_bound()];
    while let Some(id) = stack.pop() {
        if std::mem::replace(&mut late[id.index()], true) {
            continue;
        }
        stack.extend(consumers.of(id).iter().map(|(reader, _)| *reader));
        if let Some(l) = outermost(id) {
            stack.append(&mut members[l]);
        }
    }
    Ok(late)
}

/// The two graphs while they are separated.
struct Split<'r> {
    branches: Branches,
    forward: GraphBuilder<'r>,
    backward: GraphBuilder<'r>,
    /// By dtype: something without a meaning.
    fillers: FxHashMap<DType, Output>,
    /// The position in the optional of each value of the function.
    slots: FxHashMap<Output, usize>,
    /// The values in the optional, and the unpacked ones.
    kept: Vec<Output>,
    unpacked: Vec<Output>,
    /// The values of the function as the gradient sees them.
    brought: FxHashMap<Output, Output>,
}

impl Split<'_> {
    /// Makes the gradient's nodes read what was kept; returns the argument that passes it.
    fn redirect(&mut self, parts: &Sides) -> Result<NodeId> {
        let is_elsewhere = |id: NodeId| !parts.is_backward[id.index()];
        let ids: Vec<NodeId> = self.backward.graph.iter().map(|(id, _)| id).collect();
        let (mut reads, mut waits) = (Vec::new(), Vec::new());
        for id in ids.into_iter().filter(|id| !is_elsewhere(*id)) {
            let node = self.backward.graph.node(id).clone();
            for (i, input) in node.inputs.iter().enumerate() {
                if self.note(*input)? {
                    reads.push((id, i, *input));
                }
            }
            for control in node.controls.iter().filter(|c| is_elsewhere(**c)) {
                // An output that no node has is on no side of the node itself.
                let n = self.forward.graph.node(*control).outputs.len();
                let path = self.path(Output::new(*control, n));
                for side in &path {
                    self.note(side.pred)?;
                }
                if !path.is_empty() {
                    waits.push((id, path));
                }
            }
            if let Some(node) = self.backward.graph.node_mut(id) {
                node.controls.retain(|c| !is_elsewhere(*c));
            }
        }
        let arg = self.unpack()?;
        for (id, i, from) in reads {
            let brought = self.bring(from)?;
            self.backward.graph.set_input(id, i, brought);
        }
        for (id, path) in waits {
            let zero = self.backward.constant("zero", Tensor::scalar(0i32))?;
            let alive = self.on_side(zero, &path)?;
            let op = self.backward.op("Identity").name("pivot").input(alive);
            let pivot = op.build()?;
            if let Some(node) = self.backward.graph.node_mut(id) {
                node.controls.push(pivot);
            }
        }
        Ok(arg)
    }

    /// The sides that a value of the function is on.
    fn path(&self, value: Output) -> Vec<Side> {
        let branch = self.branches.of(&self.forward.graph, value);
        self.branches.path(0, branch)
    }

    /// The handle outside of conditionals that this one is, if it is one and there is one.
    fn origin(&self, value: Output) -> Option<Output> {
        let graph = &self.forward.graph;
        let mut at = value;
        while graph.dtype(at) == Some(DType::Resource) {
            if self.path(at).is_empty() {
                return Some(at);
            }
            let node = graph.get(at.node)?;
            match node.class() {
                NodeClass::Identity => at = *node.inputs.get(at.slot as usize)?,
                NodeClass::Switch => at = *node.inputs.first()?,
                _ => return None,
            }
        }
        None
    }

    /// Keeps a value if the gradient does not have it, and the predicates that decide whether it is alive.
    fn note(&mut self, value: Output) -> Result<bool> {
        if self.backward.graph.get(value.node).is_some() {
            return Ok(false);
        }
        if self.slots.contains_key(&value) {
            return Ok(true);
        }
        let dtype = self.forward.dtype(value)?;
        let path = self.path(value);
        for side in &path {
            self.note(side.pred)?;
        }
        if dtype == DType::Resource && !path.is_empty() {
            let Some(origin) = self.origin(value) else {
                return Err(unimplemented_error!(
                    "the gradient of a call needs the handle '{}', which is made inside a \
                     conditional and cannot be kept; running the function again would repeat \
                     its effects",
                    self.forward.graph.output_name(value)
                ));
            };
            self.note(origin)?;
            return Ok(true);
        }
        let mut kept = value;
        for (depth, side) in path.iter().enumerate().rev() {
            let filler = self.filler(dtype, path.get(..depth).unwrap_or_default())?;
            let others = switch(&mut self.forward, filler, side.pred, side.n)?;
            let sides: Vec<Output> = (0..side.n)
                .map(|slot| match slot == side.slot {
                    true => kept,
                    false => Output::new(others, slot),
                })
                .collect();
            let merge = self.forward.op("Merge").name("either").inputs(&sides);
            kept = merge.output()?;
        }
        self.slots.insert(value, self.kept.len());
        self.kept.push(kept);
        Ok(true)
    }

    /// A value without a meaning that is alive where all these sides are taken.
    fn filler(&mut self, dtype: DType, path: &[Side]) -> Result<Output> {
        let mut filler = match self.fillers.get(&dtype) {
            Some(known) => *known,
            None => {
                let made = match dtype {
                    DType::Variant => self.forward.op("OptionalNone").output()?,
                    _ => {
                        let zero = Tensor::zeros(dtype, Shape::scalar())?;
                        self.forward.constant("filler", zero)?
                    }
                };
                self.fillers.insert(dtype, made);
                made
            }
        };
        for side in path {
            let id = switch(&mut self.forward, filler, side.pred, side.n)?;
            filler = Output::new(id, side.slot);
        }
        Ok(filler)
    }

    /// Adds the argument for what was kept, and the node that unpacks it.
    fn unpack(&mut self) -> Result<NodeId> {
        let arg = self.backward.op(ARG).name("kept");
        let arg = arg.attr("T", DType::Variant.into());
        let arg = arg.attr("index", AttrValue::Int(0)).build()?;
        if self.kept.is_empty() {
            return Ok(arg);
        }
        let dtypes = self.kept.iter().map(|k| self.forward.dtype(*k));
        let dtypes: Vec<AttrValue> = dtypes
            .map(|t| t.map(AttrValue::Type))
            .collect::<Result<_>>()?;
        let shapes = vec![AttrValue::Shape(PartialShape::unknown()); dtypes.len()];
        let op = self.backward.op("OptionalGetValue").name("unpacked");
        self.unpacked = op
            .input(Output::new(arg, 0))
            .attr("output_types", AttrValue::List(dtypes))
            .attr("output_shapes", AttrValue::List(shapes))
            .outputs()?;
        Ok(arg)
    }

    /// A value of the function as the gradient sees it.
    fn bring(&mut self, value: Output) -> Result<Output> {
        if self.backward.graph.get(value.node).is_some() {
            return Ok(value);
        }
        if let Some(known) = self.brought.get(&value) {
            return Ok(*known);
        }
        let path = self.path(value);
        let slot = self.slots.get(&value);
        let outside = match slot.and_then(|slot| self.unpacked.get(*slot)) {
            Some(unpacked) => *unpacked,
            None => {
                let origin = self.origin(value).filter(|origin| *origin != value);
                let origin = origin.ok_or_else(|| internal!("a value was not kept"))?;
                self.bring(origin)?
            }
        };
        let brought = self.on_side(outside, &path)?;
        self.brought.insert(value, brought);
        Ok(brought)
    }

    fn on_side(&mut self, value: Output, path: &[Side]) -> Result<Output> {
        let mut value = value;
        for side in path {
            let pred = self.bring(side.pred)?;
            let id = switch(&mut self.backward, value, pred, side.n)?;
            value = Output::new(id, side.slot);
        }
        Ok(value)
    }

    fn finish(mut self, results: &[Output], arg: NodeId) -> Result<(Graph, Graph)> {
        let args = self.backward.graph.iter();
        let n = args
            .filter(|(_, node)| node.class() == NodeClass::Arg)
            .count();
        if let Some(arg) = self.backward.graph.node_mut(arg) {
            arg.attrs.set("index", AttrValue::Int(n as i64 - 1));
        }
        let all = match self.kept.is_empty() {
            true => self.forward.op("OptionalNone").name("kept").output()?,
            false => {
                let op = self.forward.op("OptionalFromValue").name("kept");
                op.inputs(&self.kept).output()?
            }
        };
        let results = results.iter().chain([&all]).enumerate();
        for (i, result) in results {
            let retval = self.forward.op(RETVAL).name("result").input(*result);
            retval.attr("index", AttrValue::Int(i as i64)).build()?;
        }
        Ok((self.forward.graph, self.backward.graph))
    }
}

/// A Switch of `value` by `pred`, which has `n` sides.
fn switch(builder: &mut GraphBuilder, value: Output, pred: Output, n: usize) -> Result<NodeId> {
    match builder.dtype(pred)? {
        DType::Bool => builder.op("Switch").input(value).input(pred).build(),
        _ => {
            let op = builder.op("_SwitchN").input(value).input(pred);
            op.attr("num_outs", AttrValue::Int(n as i64)).build()
        }
    }
}
