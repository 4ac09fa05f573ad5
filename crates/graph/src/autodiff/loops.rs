//! Variables of loops and of their reverses.
//!
//! The reverse of a loop runs as many iterations as the loop did, which the loop counts. A gradient
//! needs values of the iteration that it belongs to: the loop pushes them to lists that it carries
//! as further variables, and the reverse pops them. Lists are values like others, so they nest, and a
//! reverse can be reversed. What is the same in all iterations is not kept; its gradient is summed.

use super::branches::{Branches, Side, ends_loop, is_header, is_switch};
use super::emit::{Emit, NodeScope, Region};
use super::reach::is_next_iteration;
use crate::{Node, NodeId, Output};
use ferroflow_base::{Result, internal, invalid_argument};
use ferroflow_opdef::{AttrValue, Attrs, NodeClass};
use ferroflow_tensor::{DType, Tensor};
use rustc_hash::FxHashMap;

/// A variable of a loop.
#[derive(Clone, Copy)]
pub(super) struct Var {
    pub(super) enter: NodeId,
    pub(super) merge: NodeId,
    /// Its value in the next iteration.
    pub(super) next: Output,
    pub(super) exit: Option<NodeId>,
    /// Whether the next iteration gets what this one got.
    pub(super) is_same: bool,
}

/// The nodes that make a loop.
#[derive(Clone, Default)]
pub(super) struct LoopParts {
    pub(super) vars: Vec<Var>,
    /// Values that enter and stay.
    pub(super) constants: Vec<NodeId>,
    cond: Option<Output>,
}

/// The nodes of the loops, and the branches.
#[derive(Default)]
pub(super) struct Loops {
    parts: FxHashMap<usize, LoopParts>,
    branches: Option<Branches>,
}

/// A loop being built: the place of its nodes, and their attrs.
#[derive(Clone)]
pub(super) struct LoopFrame {
    pub(super) place: NodeScope,
    pub(super) name: String,
    pub(super) parallel: i64,
    pub(super) cond: Output,
}

fn typed(dtype: DType) -> Attrs {
    Attrs::default().with("T", AttrValue::Type(dtype))
}

impl Emit<'_, '_> {
    fn branches(&mut self) -> Result<()> {
        if self.loops.branches.is_none() {
            self.loops.branches = Some(Branches::new(&self.builder.graph)?);
        }
        Ok(())
    }

    /// The predicate that decides between the inputs of a Merge; see [`Branches::merge_predicate`].
    pub(super) fn merge_predicate(
        &mut self,
        merge: &Node,
    ) -> Result<Option<(Output, usize, Vec<usize>)>> {
        self.branches()?;
        let graph = &self.builder.graph;
        Ok(self.loops.branches.as_ref().and_then(|b| {
            let of: Vec<_> = merge.inputs.iter().map(|i| b.of(graph, *i)).collect();
            b.merge_predicate(&of)
        }))
    }

    /// Finds the nodes that make each loop; done once, before anything is added.
    pub(super) fn find_loops(&mut self) -> Result<()> {
        let graph = &self.builder.graph;
        let mut exits: FxHashMap<Output, NodeId> = FxHashMap::default();
        let mut parts: FxHashMap<usize, LoopParts> = FxHashMap::default();
        // The Merge behind the Switch that an Exit reads.
        let header = |value: Output| {
            let node = graph.node(value.node);
            (is_switch(node) && ends_loop(graph, node)).then(|| node.inputs[0])
        };
        for (id, node) in graph.iter() {
            if node.class() == NodeClass::Exit
                && let Some(merge) = header(node.inputs[0])
            {
                exits.insert(merge, id);
            }
        }
        for (id, node) in graph.iter() {
            let Some(of) = super::reach::inside(graph, &self.frames, id) else {
                continue;
            };
            let parts = parts.entry(of).or_default();
            if node.class() == NodeClass::LoopCond {
                parts.cond = Some(Output::new(id, 0));
            } else if is_header(graph, node) {
                let is_next = |i: &&Output| is_next_iteration(graph.node(i.node));
                let next = node.inputs.iter().find(is_next);
                let enter = node.inputs.iter().find(|i| !is_next(i));
                let (Some(next), Some(enter)) = (next, enter) else {
                    continue;
                };
                let next = graph.node(next.node).inputs[0];
                let mut from = next;
                while graph.node(from.node).op() == "Identity" {
                    from = graph.node(from.node).inputs[0];
                }
                let own = Output::new(id, 0);
                parts.vars.push(Var {
                    enter: enter.node,
                    merge: id,
                    next,
                    exit: exits.get(&own).copied(),
                    is_same: header(from) == Some(own) && from.slot == 1,
                });
            } else if node.class() == NodeClass::Enter
                && node.attrs.bool("is_constant").unwrap_or(false)
            {
                parts.constants.push(id);
            }
        }
        self.loops.parts = parts;
        Ok(())
    }

    /// `value` as `region` sees it.
    pub(super) fn bring(&mut self, value: Output, region: usize) -> Result<Output> {
        let place = self.place(value);
        if place == self.place_of(region) || place == NodeScope::Anywhere {
            return Ok(value);
        }
        if let Some(known) = self.regions[region].inside.get(&value) {
            return Ok(*known);
        }
        if region == 0 {
            return Err(internal!(
                "'{}' is inside a loop",
                self.builder.graph.output_name(value)
            ));
        }
        let brought = if place == NodeScope::Forward(self.regions[region].of) {
            self.carry(value, region)?
        } else {
            let outer = self.bring(value, self.regions[region].parent)?;
            if self.place(outer) == NodeScope::Anywhere {
                outer
            } else {
                self.enter(outer, region, true)?
            }
        };
        self.regions[region].inside.insert(value, brought);
        Ok(brought)
    }

    fn frame_of(&self, region: usize) -> Result<&LoopFrame> {
        let frame = self.regions[region].frame.as_ref();
        frame.ok_or_else(|| internal!("a region without a loop"))
    }

    fn enter(&mut self, outer: Output, region: usize, constant: bool) -> Result<Output> {
        let frame = self.frame_of(region)?.clone();
        self.enter_at(&frame, outer, constant)
    }

    fn enter_at(&mut self, frame: &LoopFrame, outer: Output, constant: bool) -> Result<Output> {
        let attrs = typed(self.builder.dtype(outer)?)
            .with("frame_name", AttrValue::str(&frame.name))
            .with("is_constant", AttrValue::Bool(constant))
            .with("parallel_iterations", AttrValue::Int(frame.parallel));
        let id = self.add_at(frame.place, "Enter", &[outer], attrs, &[])?;
        Ok(Output::new(id, 0))
    }

    pub(super) fn one(&mut self, place: NodeScope, op: &str, inputs: &[Output]) -> Result<Output> {
        let id = self.add_at(place, op, inputs, Attrs::default(), &[])?;
        Ok(Output::new(id, 0))
    }

    /// Begins a variable: returns its Merge, and its value in the body and at the end.
    fn begin(&mut self, frame: &LoopFrame, entered: Output) -> Result<(Output, Output, Output)> {
        let merge = self.one(frame.place, "Merge", &[entered, entered])?;
        let switch = self.one(frame.place, "Switch", &[merge, frame.cond])?;
        Ok((merge, Output::new(switch.node, 1), switch))
    }

    /// Ends a variable whose next value is `next`; returns its last value, in `outside`.
    fn end(
        &mut self,
        frame: &LoopFrame,
        merge: Output,
        next: Output,
        last: Output,
        outside: NodeScope,
    ) -> Result<Output> {
        let next = self.one(frame.place, "NextIteration", &[next])?;
        self.builder.graph.set_input(merge.node, 1, next);
        self.one(outside, "Exit", &[last])
    }

    pub(super) fn parts(&self, of: usize) -> Result<&LoopParts> {
        let parts = self.loops.parts.get(&of);
        parts.ok_or_else(|| internal!("a loop without nodes"))
    }

    /// The loop `of` of the graph.
    pub(super) fn forward(&self, of: usize) -> Result<LoopFrame> {
        let frame = &self.frames.loops[of];
        let cond = self.parts(of)?.cond;
        Ok(LoopFrame {
            place: NodeScope::Forward(Some(of)),
            name: frame.name.clone(),
            parallel: frame.parallel_iterations,
            cond: cond.ok_or_else(|| {
                invalid_argument!(
                    "the loop '{}' has no LoopCond, so it cannot be reversed",
                    frame.name
                )
            })?,
        })
    }

    /// The place of the outputs of loop `of`.
    pub(super) fn outside(&self, of: usize) -> NodeScope {
        NodeScope::Forward(self.frames.loops[of].parent)
    }

    /// Adds a node outside loop `of`, alive if and only if the loop is entered.
    fn add_outside(
        &mut self,
        of: usize,
        op: &str,
        inputs: &[Output],
        attrs: Attrs,
    ) -> Result<Output> {
        let graph = &self.builder.graph;
        let parts = self.parts(of)?;
        let enters = parts.vars.iter().map(|v| v.enter);
        let enters = enters.chain(parts.constants.iter().copied());
        let mut sources = enters.map(|e| graph.node(e).inputs[0]);
        let bound = sources.find(|s| self.place(*s) != NodeScope::Anywhere);
        let controls: Vec<NodeId> = bound.iter().map(|s| s.node).collect();
        let id = self.add_at(self.outside(of), op, inputs, attrs, &controls)?;
        if let Some(source) = bound {
            self.note(id, source.node)?;
        }
        Ok(Output::new(id, 0))
    }

    pub(super) fn note(&mut self, node: NodeId, like: NodeId) -> Result<()> {
        self.branches()?;
        if let Some(branches) = &mut self.loops.branches {
            branches.note(node, like);
        }
        Ok(())
    }

    /// The number of iterations that loop `of` made.
    fn count(&mut self, of: usize) -> Result<Output> {
        let frame = self.forward(of)?;
        let attrs = Attrs::default()
            .with("dtype", AttrValue::Type(DType::Int32))
            .with("value", AttrValue::Tensor(Tensor::scalar(0i32).into()));
        let zero = self.add_outside(of, "Const", &[], attrs)?;
        let entered = self.enter_at(&frame, zero, false)?;
        let (merge, value, last) = self.begin(&frame, entered)?;
        let one = self.scalar(1)?;
        let next = self.one(frame.place, "AddV2", &[value, one])?;
        let outside = self.outside(of);
        let exit = self.end(&frame, merge, next, last, outside)?;
        self.note(exit.node, frame.cond.node)?;
        Ok(exit)
    }

    fn scalar(&mut self, value: i32) -> Result<Output> {
        self.add_constant(Tensor::scalar(value))
    }

    /// The value in the iteration that the reverse is at.
    fn carry(&mut self, value: Output, region: usize) -> Result<Output> {
        let of = self.regions[region].of;
        let of = of.ok_or_else(|| internal!("a region without a loop"))?;
        let root = self.forward(of)?.cond;
        let mut value = value;
        // What is passed on unchanged is kept once.
        loop {
            let graph = &self.builder.graph;
            let node = graph.node(value.node);
            let from = match node.class() {
                NodeClass::Identity => node.inputs[value.slot as usize],
                NodeClass::Enter => break,
                _ => match self.same_in_all(of, value) {
                    Some(enter) => {
                        value = Output::new(enter, 0);
                        break;
                    }
                    None => break,
                },
            };
            self.branches()?;
            let graph = &self.builder.graph;
            let known = self.loops.branches.as_ref();
            let branch = |v| known.map_or(0, |b| b.of(graph, v));
            let (own, its) = (branch(value), branch(from));
            if own != its || self.place(from) != NodeScope::Forward(Some(of)) {
                break;
            }
            value = from;
        }
        let node = self.builder.graph.node(value.node).clone();
        match node.class() {
            NodeClass::Enter if self.place(node.inputs[0]) == NodeScope::Anywhere => {
                return Ok(node.inputs[0]);
            }
            NodeClass::Enter => {
                let outer = self.bring(node.inputs[0], self.regions[region].parent)?;
                return match self.place(outer) {
                    NodeScope::Anywhere => Ok(outer),
                    _ => match self.regions[region].inside.get(&outer) {
                        Some(known) => Ok(*known),
                        None => {
                            let brought = self.enter(outer, region, true)?;
                            self.regions[region].inside.insert(outer, brought);
                            Ok(brought)
                        }
                    },
                };
            }
            NodeClass::Const => return self.add_constant(node.attrs.tensor("value")?.get()?),
            _ => {}
        }
        if let Some(known) = self.regions[region].inside.get(&value) {
            return Ok(*known);
        }
        self.branches()?;
        let path = {
            let graph = &self.builder.graph;
            let branches = self.loops.branches.as_ref();
            branches.map(|b| b.path(b.of(graph, root), b.of(graph, value)))
        };
        let path = path.unwrap_or_default();
        let lists = self.push(of, value, &path)?;
        let popped = self.pop(region, lists, self.builder.dtype(value)?, &path)?;
        self.regions[region].inside.insert(value, popped);
        Ok(popped)
    }

    /// The Enter of a variable that is the same in all iterations.
    fn same_in_all(&self, of: usize, value: Output) -> Option<NodeId> {
        let graph = &self.builder.graph;
        let node = graph.node(value.node);
        let merge = match ends_loop(graph, node) {
            true => node.inputs[0].node,
            false => value.node,
        };
        let vars = &self.loops.parts.get(&of)?.vars;
        let var = vars.iter().find(|v| v.merge == merge)?;
        var.is_same.then_some(var.enter)
    }

    /// Goes into branches with a list; returns the list inside and what stays outside, by branch.
    fn enter_branches(
        &mut self,
        place: NodeScope,
        mut list: Output,
        path: &[(Output, Side)],
    ) -> Result<(Output, Vec<NodeId>)> {
        let mut switches = Vec::with_capacity(path.len());
        for (pred, side) in path {
            let switch = match self.builder.dtype(*pred)? {
                DType::Bool => self.one(place, "Switch", &[list, *pred])?.node,
                _ => {
                    let attrs = Attrs::default().with("num_outs", AttrValue::Int(side.n as i64));
                    self.add_at(place, "_SwitchN", &[list, *pred], attrs, &[])?
                }
            };
            switches.push(switch);
            list = Output::new(switch, side.slot);
        }
        Ok((list, switches))
    }

    fn leave_branches(
        &mut self,
        place: NodeScope,
        mut list: Output,
        path: &[(Output, Side)],
        switches: &[NodeId],
    ) -> Result<Output> {
        for ((_, side), switch) in path.iter().zip(switches).rev() {
            let all = (0..side.n).map(|slot| match slot == side.slot {
                true => list,
                false => Output::new(*switch, slot),
            });
            let all: Vec<Output> = all.collect();
            list = self.one(place, "Merge", &all)?;
        }
        Ok(list)
    }

    /// Makes loop `of` push `value` to a list; returns the list of all iterations.
    fn push(&mut self, of: usize, value: Output, path: &[Side]) -> Result<Output> {
        let frame = self.forward(of)?;
        let any = self.scalar(-1)?;
        let dtype = self.builder.dtype(value)?;
        let attrs = Attrs::default().with("element_dtype", AttrValue::Type(dtype));
        let empty = self.add_outside(of, "EmptyTensorList", &[any, any], attrs)?;
        let entered = self.enter_at(&frame, empty, false)?;
        let (merge, list, last) = self.begin(&frame, entered)?;
        let path: Vec<(Output, Side)> = path.iter().map(|s| (s.pred, *s)).collect();
        let (inner, switches) = self.enter_branches(frame.place, list, &path)?;
        let pushed = self.one(frame.place, "TensorListPushBack", &[inner, value])?;
        let next = self.leave_branches(frame.place, pushed, &path, &switches)?;
        let outside = self.outside(of);
        let exit = self.end(&frame, merge, next, last, outside)?;
        self.note(exit.node, frame.cond.node)?;
        Ok(exit)
    }

    /// Makes a reverse pop from a list.
    fn pop(&mut self, region: usize, lists: Output, dtype: DType, path: &[Side]) -> Result<Output> {
        let outer = self.bring(lists, self.regions[region].parent)?;
        let entered = self.enter(outer, region, false)?;
        let mut brought = Vec::with_capacity(path.len());
        for side in path {
            brought.push((self.bring(side.pred, region)?, *side));
        }
        let place = NodeScope::Backward(region);
        let frame = self.frame_of(region)?.clone();
        let (merge, list, _) = self.begin(&frame, entered)?;
        let (inner, switches) = self.enter_branches(place, list, &brought)?;
        let any = self.scalar(-1)?;
        let attrs = Attrs::default().with("element_dtype", AttrValue::Type(dtype));
        let popped = self.add_at(place, "TensorListPopBack", &[inner, any], attrs, &[])?;
        let rest = Output::new(popped, 0);
        let next = self.leave_branches(place, rest, &brought, &switches)?;
        let next = self.one(place, "NextIteration", &[next])?;
        self.builder.graph.set_input(merge.node, 1, next);
        Ok(Output::new(popped, 1))
    }

    /// Begins the reverse of loop `of` in `parent`; returns its region.
    pub(super) fn begin_reverse(&mut self, of: usize, parent: usize) -> Result<usize> {
        let region = self.regions.len();
        let forward = self.forward(of)?;
        let n = self.count(of)?;
        let n = self.bring(n, parent)?;
        let place = NodeScope::Backward(region);
        let mut frame = LoopFrame {
            place,
            name: format!("{}/{}", self.scope, forward.name),
            parallel: forward.parallel,
            cond: n,
        };
        let entered = self.enter_at(&frame, n, false)?;
        let merge = self.one(place, "Merge", &[entered, entered])?;
        let zero = self.scalar(0)?;
        let goes_on = self.one(place, "Greater", &[merge, zero])?;
        frame.cond = self.one(place, "LoopCond", &[goes_on])?;
        let switch = self.one(place, "Switch", &[merge, frame.cond])?;
        let left = self.one(place, "Identity", &[Output::new(switch.node, 1)])?;
        let one = self.scalar(1)?;
        let next = self.one(place, "Sub", &[left, one])?;
        let next = self.one(place, "NextIteration", &[next])?;
        self.builder.graph.set_input(merge.node, 1, next);
        self.regions.push(Region {
            parent,
            of: Some(of),
            pivot: Some(left.node),
            frame: Some(frame),
            inside: FxHashMap::default(),
        });
        Ok(region)
    }

    /// The place of nodes in a region.
    pub(super) fn place_of(&self, region: usize) -> NodeScope {
        match region {
            0 => NodeScope::Forward(self.regions[0].of),
            r => NodeScope::Backward(r),
        }
    }

    /// A variable of the reverse that begins as `first`; returns its Merge, value and end.
    pub(super) fn begin_var(
        &mut self,
        region: usize,
        first: Output,
    ) -> Result<(Output, Output, Output)> {
        let first = self.bring(first, self.regions[region].parent)?;
        let entered = self.enter(first, region, false)?;
        let frame = self.frame_of(region)?.clone();
        self.begin(&frame, entered)
    }

    pub(super) fn end_var(
        &mut self,
        region: usize,
        merge: Output,
        next: Output,
        last: Output,
    ) -> Result<Output> {
        let outside = self.place_of(self.regions[region].parent);
        let next = self.bring(next, region)?;
        let frame = self.frame_of(region)?.clone();
        self.end(&frame, merge, next, last, outside)
    }
}
