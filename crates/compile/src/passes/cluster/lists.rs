//! Lists of scalars as arrays.
//!
//! A list that is made of a vector is only read; one that is reserved is only written, and stacked
//! in the end. An array has no versions, so that every write must be to the latest version of its
//! list, and only that one may be passed on.

use super::build::{Elements, List, Meaning};
use super::translate::Translator;
use ferroflow_graph::Node;
use ferroflow_opdef::{ClusterInst, ScalarType, ValueId};
use std::rc::Rc;

impl Translator<'_> {
    /// The outputs of a node that makes, reads or writes a list of scalars.
    pub(super) fn list_op(&mut self, node: &Node, inputs: &[Meaning]) -> Option<Vec<Meaning>> {
        match (node.op(), inputs) {
            ("TensorListReserve", [shape, n]) => {
                let ty = ScalarType::of(node.attrs.dtype("element_dtype").ok()?)?;
                if self.b.open.len() != 1 || !self.is_scalar_shape(shape) {
                    return None;
                }
                let n = n.scalar(ScalarType::I32)?;
                let len = self.b.cast(ScalarType::I64, n)?;
                Some(vec![Meaning::List(List {
                    slot: self.b.alloc(ty, len)?,
                    ty,
                    version: 0,
                    marks: None,
                })])
            }
            ("TensorListLength", [list]) => {
                let len = self.b.len(list.list()?.slot)?;
                let len = self.b.cast(ScalarType::I32, len)?;
                scalar(ScalarType::I32, len)
            }
            ("TensorListGetItem", [list, index, shape]) => {
                let list = list.list()?;
                if list.slot as usize >= self.b.input_arrays.len() || !self.is_scalar_shape(shape) {
                    return None;
                }
                let index = index.scalar(ScalarType::I32)?;
                let index = self.b.cast(ScalarType::I64, index)?;
                let out = self.b.load(list.ty, list.slot, index)?;
                scalar(list.ty, out)
            }
            ("TensorListSetItem", [list, index, item]) => {
                let list = self.latest(list.list()?)?;
                let can_grow = node.attrs.bool("resize_if_index_out_of_bounds").ok()?;
                let is_own = list.slot as usize >= self.b.input_arrays.len();
                if can_grow || !is_own || self.b.n_branches() > 0 {
                    return None;
                }
                let index = index.scalar(ScalarType::I32)?;
                let index = self.b.cast(ScalarType::I64, index)?;
                let value = item.scalar(list.ty)?;
                let list = self.store(list, index, value)?;
                Some(vec![Meaning::List(list)])
            }
            ("TensorListStack", [list, shape]) => {
                let list = self.latest(list.list()?)?;
                let n = node.attrs.int("num_elements").ok()?;
                let is_own = list.slot as usize >= self.b.input_arrays.len();
                if !is_own || self.b.open.len() != 1 || !self.is_scalar_shape(shape) {
                    return None;
                }
                if n >= 0 {
                    let (len, n) = (self.b.len(list.slot)?, self.b.int(ScalarType::I64, n)?);
                    self.b.leave_unless_equal(len, n)?;
                }
                Some(vec![Meaning::List(list)])
            }
            _ => None,
        }
    }

    /// The list, if it is the latest version of its array.
    pub(super) fn latest(&self, list: List) -> Option<List> {
        let latest = self.b.versions.get(list.slot as usize)?;
        (*latest == list.version).then_some(list)
    }

    /// Writes an element of the latest version of a list; returns the next version.
    pub(super) fn store(&mut self, list: List, index: ValueId, value: ValueId) -> Option<List> {
        self.b.push(ClusterInst::Store {
            array: list.slot,
            index,
            value,
        })?;
        let version = self.b.versions.get_mut(list.slot as usize)?;
        *version += 1;
        let version = *version;
        Some(List { version, ..list })
    }

    /// Whether an element shape can only be that of scalars: it is empty or unknown.
    fn is_scalar_shape(&self, shape: &Meaning) -> bool {
        let Some(shape) = shape.tensor() else {
            return false;
        };
        let is_empty = shape.dims == [0] && shape.values.is_empty();
        is_empty || shape.dims.is_empty() && self.b.ints(shape).is_some_and(|s| s == [-1])
    }
}

pub(super) fn scalar(ty: ScalarType, value: ValueId) -> Option<Vec<Meaning>> {
    Some(vec![Meaning::Tensor(Rc::new(Elements::scalar(ty, value)))])
}
