//! Gradients of Switch and Merge: each is the reverse of the other.

use super::branches::{ends_loop, is_header, is_merge, is_switch, predicate};
use super::walk::Walk;
use super::{Gradient, IndexedSlices};
use crate::{Node, NodeId, Output};
use ferroflow_base::{Result, internal};
use ferroflow_opdef::Expr;
use ferroflow_tensor::DType;

type Results = Vec<Option<Gradient>>;

impl<'w> Walk<'w, '_, '_> {
    /// The gradients of a node that is part of control flow; `None` for others.
    pub(super) fn of_control_flow(
        &self,
        id: NodeId,
        node: &Node,
        arrived: &[Option<Gradient>],
    ) -> Result<Option<Results>> {
        if node.class().is_loop() {
            // A loop is reversed as a whole.
            return Ok(Some(Vec::new()));
        }
        if is_switch(node) {
            let ends = ends_loop(&self.emitter.emit().builder.graph, node);
            return match ends {
                true => Ok(Some(vec![arrived.get(1).copied().flatten()])),
                false => self.of_switch(id, node, arrived).map(Some),
            };
        }
        if is_merge(node) {
            let begins = is_header(&self.emitter.emit().builder.graph, node);
            return match begins {
                true => Ok(Some(Vec::new())),
                false => self.of_merge(id, node, arrived).map(Some),
            };
        }
        Ok(None)
    }

    /// Merges the gradients of the sides; a side without a gradient has zeros.
    fn of_switch(&self, id: NodeId, node: &Node, arrived: &[Option<Gradient>]) -> Result<Results> {
        let pred = predicate(&self.emitter.emit().builder.graph, node.inputs[1]);
        let pred = self.emitter.expr(pred);
        let slices: Vec<Option<IndexedSlices>> = arrived.iter().map(slices_of).collect();
        let n_arrived = arrived.iter().flatten().count();
        if n_arrived > 0 && slices.iter().flatten().count() == n_arrived {
            let merged = self.of_switch_of_slices(node, &slices, pred)?;
            return Ok(vec![Some(Gradient::Slices(merged))]);
        }
        let terms: Vec<Option<Expr<'w>>> = arrived
            .iter()
            .map(|g| g.map(|g| self.term(g).dense()))
            .collect();
        let Some(first) = terms.iter().flatten().next().copied() else {
            return Ok(Vec::new());
        };
        let n = terms.len();
        let parts: Vec<Expr> = terms
            .into_iter()
            .enumerate()
            .map(|(slot, term)| {
                term.unwrap_or_else(|| {
                    let other = self.expr(Output::new(id, slot));
                    let dtype = other.dtype();
                    let shape = other.shape().to_full();
                    if dtype == DType::Variant || (dtype != DType::Resource && shape.is_none()) {
                        return other.zeros_like();
                    }
                    // One zero that is alive on this side only.
                    let zero = side(first.number(0.0), pred, n, slot);
                    let shape = match dtype {
                        DType::Resource => other.op("VariableShape", &[]),
                        _ => other.shape_of(),
                    };
                    zero.op("BroadcastTo", &[shape])
                })
            })
            .collect();
        let merged = first.make("Merge", &parts, &[]);
        self.emitter.check()?;
        Ok(vec![Some(Gradient::Dense(merged.output()))])
    }

    /// The same for slices; a side without a gradient has no slices.
    fn of_switch_of_slices(
        &self,
        node: &Node,
        arrived: &[Option<IndexedSlices>],
        pred: Expr<'w>,
    ) -> Result<IndexedSlices> {
        let wide = |s: &IndexedSlices| self.expr(s.indices).dtype() != DType::Int32;
        let index = match arrived.iter().flatten().any(wide) {
            true => DType::Int64,
            false => DType::Int32,
        };
        let first = arrived.iter().flatten().next();
        let first = first.ok_or_else(|| internal!("a Switch without gradients"))?;
        let first = self.expr(first.values);
        let shape = self.shape_behind(node.inputs[0], first);
        let n = arrived.len();
        let none = |like: Expr<'w>, slot: usize, shape: Expr<'w>| {
            // Alive on this side only.
            side(like, pred, n, slot).op("BroadcastTo", &[shape])
        };
        let (mut values, mut indices) = (Vec::with_capacity(n), Vec::with_capacity(n));
        for (slot, slices) in arrived.iter().enumerate() {
            match slices {
                Some(s) => {
                    values.push(self.expr(s.values));
                    indices.push(self.expr(s.indices).cast(index));
                }
                None => {
                    let rows = rows_of(shape, 0);
                    values.push(none(first.number(0.0), slot, rows));
                    indices.push(none(first.int(0).cast(index), slot, first.ints([0])));
                }
            }
        }
        let merged = [
            first.make("Merge", &values, &[]),
            first.make("Merge", &indices, &[]),
        ];
        self.emitter.check()?;
        Ok(IndexedSlices {
            values: merged[0].output(),
            indices: merged[1].output(),
            dense_shape: shape.output(),
        })
    }

    /// The shape of a value, or of the variable behind a handle, seen where nodes are added now.
    pub(super) fn shape_behind(&self, value: Output, here: Expr<'w>) -> Expr<'w> {
        let value = here.at(value);
        match value.dtype() {
            DType::Resource => value.op("VariableShape", &[]),
            _ => value.op("Shape", &[]),
        }
    }

    /// Passes the gradient to the side that was taken.
    fn of_merge(&self, id: NodeId, node: &Node, arrived: &[Option<Gradient>]) -> Result<Results> {
        let Some(gradient) = arrived.first().copied().flatten() else {
            return Ok(Vec::new());
        };
        if let Some(s) = slices_of(&Some(gradient)) {
            let values = self.by_side(id, node, self.expr(s.values))?;
            let indices = self.by_side(id, node, self.expr(s.indices))?;
            let both = values.into_iter().zip(indices);
            return Ok(both
                .map(|(values, indices)| {
                    Some(Gradient::Slices(IndexedSlices {
                        values: values.output(),
                        indices: indices.output(),
                        dense_shape: s.dense_shape,
                    }))
                })
                .collect());
        }
        let d = self.term(gradient).dense();
        let parts = self.by_side(id, node, d)?.into_iter();
        Ok(parts.map(|p| Some(Gradient::Dense(p.output()))).collect())
    }

    /// A value on each of the sides that a Merge joins.
    fn by_side(&self, id: NodeId, node: &Node, d: Expr<'w>) -> Result<Vec<Expr<'w>>> {
        let merged_by = self.emitter.emit().merge_predicate(node)?;
        let parts: Vec<Expr> = match merged_by {
            Some((pred, n, slots)) => {
                let all = sides(d, self.emitter.expr(pred), n);
                let side = |slot: &usize| all.get(*slot).copied().unwrap_or(d.nothing());
                slots.iter().map(side).collect()
            }
            // No single predicate decides between the branches; output 1 of the Merge is the input it took.
            None => (0..node.inputs.len())
                .map(|i| {
                    let which = self.expr(Output::new(id, 1));
                    let is_it = which.op("Equal", &[which.int(i as i32)]);
                    side(d, is_it, 2, 1)
                })
                .collect(),
        };
        self.emitter.check()?;
        Ok(parts)
    }

    pub(super) fn expr(&self, value: Output) -> Expr<'w> {
        Expr::new(self.emitter, value)
    }
}

fn slices_of(gradient: &Option<Gradient>) -> Option<IndexedSlices> {
    match gradient {
        Some(Gradient::Slices(slices)) => Some(*slices),
        _ => None,
    }
}

/// The shape with another first dimension.
pub(super) fn rows_of<'g>(shape: Expr<'g>, first: i64) -> Expr<'g> {
    let ends = [shape.ints([1]), shape.ints([0]), shape.ints([1])];
    let rest = shape.op_with("StridedSlice", &ends, &[("end_mask", 1i64.into())]);
    shape.make("ConcatV2", &[shape.ints([first]), rest, shape.int(0)], &[])
}

/// Output `slot` of a Switch.
fn side<'g>(value: Expr<'g>, pred: Expr<'g>, n: usize, slot: usize) -> Expr<'g> {
    let all = sides(value, pred, n);
    all.get(slot).copied().unwrap_or(value.nothing())
}

/// The outputs of a Switch.
fn sides<'g>(value: Expr<'g>, pred: Expr<'g>, n: usize) -> Vec<Expr<'g>> {
    match pred.dtype() {
        DType::Bool => value.node("Switch", &[value, pred], &[]),
        _ => value.node(
            "_SwitchN",
            &[value, pred],
            &[("num_outs", (n as i64).into())],
        ),
    }
}
