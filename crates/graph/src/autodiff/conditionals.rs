//! Gradients of Switch and Merge: each is the other one backwards.

use super::branches::{ends_loop, is_header, is_merge, is_switch, question};
use super::walk::Walk;
use super::{Gradient, output};
use crate::{Node, NodeId, Output};
use ferroflow_base::Result;
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
        let op = node.op().strip_prefix("Ref").unwrap_or(node.op());
        if matches!(op, "Enter" | "Exit" | "NextIteration" | "LoopCond") {
            // Loops are turned round as a whole.
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

    /// What came to the sides meets; a side that nothing came to has zeros.
    fn of_switch(&self, id: NodeId, node: &Node, arrived: &[Option<Gradient>]) -> Result<Results> {
        let pred = question(&self.emitter.emit().builder.graph, node.inputs[1]);
        let pred = self.emitter.expr(pred);
        let terms: Vec<Option<Expr<'w>>> = arrived
            .iter()
            .map(|g| g.is_some().then(|| self.term(*g).dense()))
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
                    let zero = sides(first.number(0.0), pred, n);
                    let zero = zero.get(slot).copied().unwrap_or(first.nothing());
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
        Ok(vec![Some(Gradient::Dense(output(merged.symbol())))])
    }

    /// What came goes to the side that was taken.
    fn of_merge(&self, id: NodeId, node: &Node, arrived: &[Option<Gradient>]) -> Result<Results> {
        let Some(gradient) = arrived.first().copied().flatten() else {
            return Ok(Vec::new());
        };
        let d = self.term(Some(gradient)).dense();
        let answers = self.emitter.emit().answers(node)?;
        let parts: Vec<Expr> = match answers {
            Some((pred, n, slots)) => {
                let all = sides(d, self.emitter.expr(pred), n);
                let side = |slot: &usize| all.get(*slot).copied().unwrap_or(d.nothing());
                slots.iter().map(side).collect()
            }
            // The branches are of no one question; the Merge says where its value came from.
            None => (0..node.inputs.len())
                .map(|i| {
                    let which = self.expr(Output::new(id, 1));
                    let is_it = which.op("Equal", &[which.int(i as i32)]);
                    sides(d, is_it, 2).get(1).copied().unwrap_or(d.nothing())
                })
                .collect(),
        };
        self.emitter.check()?;
        let gradients = parts.into_iter();
        Ok(gradients
            .map(|p| Some(Gradient::Dense(output(p.symbol()))))
            .collect())
    }

    fn expr(&self, value: Output) -> Expr<'w> {
        Expr::new(self.emitter, super::symbol(value))
    }
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
