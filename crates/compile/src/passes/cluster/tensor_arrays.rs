//! TensorArrays of scalars as arrays.
//!
//! An element is written once and, unless the TensorArray says otherwise, read once. Marks of the
//! elements hold programs to that: what TensorFlow refuses leaves the program. (TensorFlow:
//! `core/kernels/tensor_array_ops.cc`.)

use super::build::{List, Marks, Meaning};
use super::lists::scalar;
use super::translate::{Scope, Translator};
use super::{Candidate, is_member};
use ferroflow_graph::{Consumers, Frames, Graph, Node, NodeId, Output};
use ferroflow_opdef::{ClusterInst, ClusterLoop, ScalarBinary, ScalarType, ValueId};
use ferroflow_tensor::{DType, Tensor};

/// The marks of an element that was not written, can be read, and was read for the last time. One
/// of a vector starts without a mark.
const WRITTEN: i64 = 1;
const CLEARED: i64 = 2;

/// An op on TensorArrays that programs have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TensorArrayOp {
    Make,
    Read,
    Write,
    Scatter,
    Gather,
    Size,
}

impl TensorArrayOp {
    pub(super) fn of(node: &Node) -> Option<TensorArrayOp> {
        Some(match node.op() {
            "TensorArrayV3" => TensorArrayOp::Make,
            "TensorArrayReadV3" => TensorArrayOp::Read,
            "TensorArrayWriteV3" => TensorArrayOp::Write,
            "TensorArrayScatterV3" => TensorArrayOp::Scatter,
            "TensorArrayGatherV3" => TensorArrayOp::Gather,
            "TensorArraySizeV3" => TensorArrayOp::Size,
            _ => return None,
        })
    }

    /// Whether the output is the next state of the TensorArray.
    fn results_in_flow(self) -> bool {
        matches!(self, TensorArrayOp::Write | TensorArrayOp::Scatter)
    }
}

impl Candidate {
    /// Adds the TensorArrays of the loop with everything around it that uses them; false if
    /// something else does.
    pub(super) fn add_tensor_arrays(
        &mut self,
        graph: &Graph,
        frames: &Frames,
        consumers: &Consumers,
    ) -> bool {
        let entries = self.entries.iter().flat_map(|e| &graph.node(*e).inputs);
        let handles = entries.filter(|i| graph.dtype(**i) == Some(DType::Resource));
        let mut todo: Vec<NodeId> = handles.map(|i| i.node).collect();
        if todo.is_empty() {
            return true;
        }
        let is_array = |id: NodeId| {
            let op = TensorArrayOp::of(graph.node(id));
            op.filter(|_| frames.of(id).is_none() && is_member(graph, id))
        };
        if todo
            .iter()
            .any(|id| is_array(*id) != Some(TensorArrayOp::Make))
        {
            return false;
        }
        let old = self.members.len();
        while let Some(id) = todo.pop() {
            if self.members.contains(&id) {
                continue;
            }
            self.add_around(id);
            let op = TensorArrayOp::of(graph.node(id));
            // The indices of all elements.
            if let Some(indices) = graph.node(id).inputs.get(1)
                && matches!(op, Some(TensorArrayOp::Scatter | TensorArrayOp::Gather))
                && graph.node(indices.node).op() == "Range"
                && frames.of(indices.node).is_none()
            {
                self.add_around(indices.node);
            }
            let is_state = |slot: Option<u32>| match op {
                Some(TensorArrayOp::Make) => slot.is_some(),
                Some(op) => slot.is_some() && op.results_in_flow(),
                None => false,
            };
            for (reader, slot) in consumers.of(id) {
                if !is_state(*slot) || self.members.contains(reader) {
                    continue;
                }
                if is_array(*reader).is_none() {
                    return false;
                }
                todo.push(*reader);
            }
        }
        let is_outside = |reader: &(NodeId, Option<u32>), output: Output, members: &[NodeId]| {
            reader.1 == Some(output.slot) && !members.contains(&reader.0)
        };
        for id in self.members[old..].iter().copied() {
            if graph.node(id).op() != "Range" {
                let slots = 0..graph.node(id).outputs.len();
                self.outputs.extend(slots.map(|slot| Output::new(id, slot)));
            }
        }
        let members = &self.members;
        self.outputs.retain(|o| {
            let mut readers = consumers.of(o.node).iter();
            readers.any(|reader| is_outside(reader, *o, members))
        });
        true
    }

    /// Adds a node before or after the loop.
    fn add_around(&mut self, id: NodeId) {
        if !self.members.contains(&id) {
            self.members.push(id);
            self.entries.push(id);
        }
    }

    /// Whether a vector is what members fill TensorArrays with, and nothing else to them.
    pub(super) fn fills_tensor_arrays(&self, graph: &Graph, vector: Output) -> bool {
        let entries = self.entries.iter().map(|e| graph.node(*e));
        let readers: Vec<&Node> = entries.filter(|n| n.inputs.contains(&vector)).collect();
        let fills = |n: &&Node| {
            let at = |i: usize| n.inputs.get(i) == Some(&vector);
            TensorArrayOp::of(n) == Some(TensorArrayOp::Scatter) && at(2) && !at(1)
        };
        !readers.is_empty() && readers.iter().all(fills)
    }
}

impl Translator<'_> {
    pub(super) fn tensor_array_op(
        &mut self,
        scope: &Scope,
        id: NodeId,
        op: TensorArrayOp,
        inputs: &[Meaning],
    ) -> Option<Vec<Meaning>> {
        let node = scope.graph.node(id);
        match (op, inputs) {
            (TensorArrayOp::Make, [size]) => {
                let is_given = scope.graph.iter().any(|(_, n)| {
                    let op = TensorArrayOp::of(n);
                    op == Some(TensorArrayOp::Scatter)
                        && n.inputs.first() == Some(&Output::new(id, 0))
                });
                self.tensor_array(node, size, is_given)
            }
            (TensorArrayOp::Size, [_, flow]) => {
                let len = self.b.len(flow.list()?.marks?.slot)?;
                let len = self.b.cast(ScalarType::I32, len)?;
                scalar(ScalarType::I32, len)
            }
            (TensorArrayOp::Read, [_, index, flow]) => {
                let index = self.index(index)?;
                self.read(flow.list()?, index)
            }
            (TensorArrayOp::Write, [_, index, value, flow]) => {
                let (index, flow) = (self.index(index)?, flow.list()?);
                let value = value.scalar(flow.ty)?;
                self.write(flow, index, value)
            }
            (TensorArrayOp::Scatter, [_, indices, values, flow]) => {
                let (flow, values) = (self.latest(flow.list()?)?, values.list()?);
                let marks = flow.marks.filter(|m| m.is_given)?;
                if flow.slot != marks.slot || values.ty != flow.ty || self.b.open.len() != 1 {
                    return None;
                }
                // A second one would write again.
                *self.b.versions.get_mut(marks.slot as usize)? += 1;
                let (len, size) = (self.b.len(values.slot)?, self.b.len(marks.slot)?);
                self.b.leave_unless_equal(len, size)?;
                self.counts_to(indices, len)?;
                let marks = Some(marks);
                Some(vec![Meaning::List(List { marks, ..values })])
            }
            (TensorArrayOp::Gather, [_, indices, flow]) => self.gather(node, indices, flow.list()?),
            _ => None,
        }
    }

    fn tensor_array(
        &mut self,
        node: &Node,
        size: &Meaning,
        is_given: bool,
    ) -> Option<Vec<Meaning>> {
        let ty = ScalarType::of(node.attrs.dtype("dtype").ok()?)?;
        let shape = node.attrs.shape("element_shape").ok()?;
        if self.b.open.len() != 1 || !matches!(shape.rank(), None | Some(0)) {
            return None;
        }
        let size = size.scalar(ScalarType::I32)?;
        let size = self.b.cast(ScalarType::I64, size)?;
        let marks = self.b.alloc(ScalarType::I32, size)?;
        let list = List {
            slot: match is_given {
                true => marks,
                false => self.b.alloc(ty, size)?,
            },
            ty,
            version: 0,
            marks: Some(Marks {
                slot: marks,
                is_given,
                clears: node.attrs.bool("clear_after_read").ok()?,
                has_shape: shape.rank() == Some(0),
            }),
        };
        Some(vec![Meaning::List(list); 2])
    }

    fn read(&mut self, flow: List, index: ValueId) -> Option<Vec<Meaning>> {
        let marks = flow.marks?;
        if marks.is_given && flow.slot == marks.slot {
            return None;
        }
        if !marks.is_given || marks.clears {
            let expected = if marks.is_given { 0 } else { WRITTEN };
            self.expect_mark(marks.slot, index, expected)?;
        }
        let out = self.b.load(flow.ty, flow.slot, index)?;
        if marks.clears {
            self.mark(marks.slot, index, CLEARED)?;
        }
        scalar(flow.ty, out)
    }

    fn write(&mut self, flow: List, index: ValueId, value: ValueId) -> Option<Vec<Meaning>> {
        let flow = self.latest(flow)?;
        let marks = flow.marks.filter(|m| !m.is_given)?;
        if self.b.n_branches() > 0 {
            return None;
        }
        self.expect_mark(marks.slot, index, 0)?;
        let next = self.store(flow, index, value)?;
        self.mark(marks.slot, index, WRITTEN)?;
        Some(vec![Meaning::List(next)])
    }

    /// All elements as a vector: each must be there.
    fn gather(&mut self, node: &Node, indices: &Meaning, flow: List) -> Option<Vec<Meaning>> {
        let flow = self.latest(flow)?;
        let marks = flow.marks.filter(|m| !m.is_given)?;
        let shape = node.attrs.shape("element_shape").ok()?;
        if self.b.open.len() != 1 || !matches!(shape.rank(), None | Some(0)) {
            return None;
        }
        let len = self.b.len(flow.slot)?;
        self.counts_to(indices, len)?;
        let zero = self.b.int(ScalarType::I64, 0)?;
        if !marks.has_shape && shape.rank().is_none() {
            let cond = self.b.binary(ScalarBinary::Equal, len, zero)?;
            self.b.push(ClusterInst::LeaveIf { cond })?;
        }
        let one = self.b.int(ScalarType::I64, 1)?;
        let i = self.b.value(ScalarType::I64)?;
        self.b.enter(None);
        let cond = self.b.binary(ScalarBinary::Less, i, len)?;
        let head = self.b.leave()?;
        self.b.enter(None);
        self.expect_mark(marks.slot, i, WRITTEN)?;
        if marks.clears {
            // Nothing is read after it.
            self.mark(marks.slot, i, CLEARED)?;
        }
        let next = self.b.binary(ScalarBinary::Add, i, one)?;
        let body = self.b.leave()?;
        self.b.push(ClusterInst::Loop(Box::new(ClusterLoop {
            params: vec![i],
            init: vec![zero],
            head,
            cond,
            body,
            next: vec![next],
            ..ClusterLoop::default()
        })))?;
        Some(vec![Meaning::List(flow)])
    }

    fn index(&mut self, index: &Meaning) -> Option<ValueId> {
        let index = index.scalar(ScalarType::I32)?;
        self.b.cast(ScalarType::I64, index)
    }

    fn expect_mark(&mut self, marks: u32, index: ValueId, expected: i64) -> Option<()> {
        let mark = self.b.load(ScalarType::I32, marks, index)?;
        let expected = self.b.int(ScalarType::I32, expected)?;
        self.b.leave_unless_equal(mark, expected)
    }

    fn mark(&mut self, marks: u32, index: ValueId, mark: i64) -> Option<()> {
        let value = self.b.int(ScalarType::I32, mark)?;
        let array = marks;
        self.b.push(ClusterInst::Store {
            array,
            index,
            value,
        })
    }

    /// Leaves the program unless these indices are all below `len`, in order.
    fn counts_to(&mut self, indices: &Meaning, len: ValueId) -> Option<()> {
        let limit = match indices {
            Meaning::Range(limit) => *limit,
            Meaning::List(_) | Meaning::Key(_) | Meaning::Counter(_) => return None,
            Meaning::Tensor(elements) => {
                let all = self.b.ints(elements)?;
                let counts = all.iter().copied().eq(0..all.len() as i64);
                if !counts || elements.dims.len() != 1 {
                    return None;
                }
                self.b.int(ScalarType::I64, all.len() as i64)?
            }
        };
        self.b.leave_unless_equal(limit, len)
    }

    /// `Range` from zero in steps of one.
    pub(super) fn range(&mut self, inputs: &[Meaning]) -> Option<Vec<Meaning>> {
        let [start, limit, delta] = inputs else {
            return None;
        };
        let is = |t: &Self, m: &Meaning, n: i64| {
            let ints = m.tensor().and_then(|e| t.b.ints(e));
            ints.is_some_and(|ints| ints == [n])
        };
        if !is(self, start, 0) || !is(self, delta, 1) {
            return None;
        }
        let limit = self.index(limit)?;
        Some(vec![Meaning::Range(limit)])
    }
}

impl super::build::Builder {
    /// The meaning of a constant vector of integers that count from zero.
    pub(super) fn range(&mut self, tensor: &Tensor) -> Option<Meaning> {
        let values = tensor.slice::<i32>().ok()?;
        let counts = values
            .iter()
            .copied()
            .eq(0..i32::try_from(values.len()).ok()?);
        if !counts || tensor.shape().rank() != 1 {
            return None;
        }
        let limit = self.int(ScalarType::I64, values.len() as i64)?;
        Some(Meaning::Range(limit))
    }
}
