//! Drops a bound of a loop that another one reaches no later.
//!
//! A loop with a maximum of iterations ends when `counter < maximum && i < n` is false. If both grow by one, are compared
//! with the same number and `i` begins no lower, the second comparison implies the first. Neither wraps: `i` stays below
//! the number until the loop ends, and `counter` below `i`.

use super::Sides;
use ferroflow_base::Result;
use ferroflow_graph::{Graph, Node, NodeId, Output, Patch};

/// `arg < bound` in the condition of a loop.
struct Comparison {
    /// The node of it.
    node: NodeId,
    /// Position of the variable.
    arg: usize,
    bound: Output,
}

/// A While node with its functions.
pub(super) struct Loop<'a> {
    pub(super) graph: &'a Graph,
    pub(super) node: &'a Node,
    pub(super) cond: &'a Sides,
    pub(super) body: &'a Sides,
}

impl Loop<'_> {
    /// Returns the change of the condition that drops the comparison which the other one implies, if any.
    pub(super) fn without_implied_bound(&self) -> Option<Patch> {
        let cond = &self.cond.graph;
        let both = self.cond.value(0, &Patch::new())?;
        let node = cond.node(both.node);
        let ("LogicalAnd", [a, b]) = (node.op(), &node.inputs[..]) else {
            return None;
        };
        let (a, b) = (self.comparison(*a)?, self.comparison(*b)?);
        if !self.same_bound(a.bound, b.bound) {
            return None;
        }
        let kept = match self.start(a.arg)? >= self.start(b.arg)? {
            true => a,
            false => b,
        };
        let mut patch = Patch::new();
        patch.redirect(both, Output::new(kept.node, 0));
        Some(patch)
    }

    /// The comparison that `output` of the condition is, of a variable that grows by one.
    fn comparison(&self, output: Output) -> Option<Comparison> {
        let node = self.cond.graph.node(output.node);
        let ("Less", [counter, bound], true) =
            (node.op(), &node.inputs[..], node.controls.is_empty())
        else {
            return None;
        };
        let is_arg = |arg: &Option<NodeId>| *arg == Some(counter.node);
        let arg = self.cond.args.iter().position(is_arg)?;
        self.grows_by_one(arg).then_some(Comparison {
            node: output.node,
            arg,
            bound: *bound,
        })
    }

    /// Whether the body adds one to variable `arg`.
    fn grows_by_one(&self, arg: usize) -> bool {
        let body = &self.body.graph;
        let Some(sum) = self.body.value(arg, &Patch::new()) else {
            return false;
        };
        let node = body.node(sum.node);
        let ("Add" | "AddV2", [a, b]) = (node.op(), &node.inputs[..]) else {
            return false;
        };
        let is_arg = |o: &Output| self.body.args[arg] == Some(o.node);
        let is_one = |o: &Output| scalar(body, *o) == Some(1);
        is_arg(a) && is_one(b) || is_one(a) && is_arg(b)
    }

    /// What variable `arg` begins with.
    fn start(&self, arg: usize) -> Option<i64> {
        scalar(self.graph, *self.node.inputs.get(arg)?)
    }

    /// Whether two values of the condition are the same number all the time.
    fn same_bound(&self, a: Output, b: Output) -> bool {
        let number = |o: Output| match self.outside(o) {
            Some(outside) => scalar(self.graph, outside),
            None => scalar(&self.cond.graph, o),
        };
        let is_same_value =
            || matches!((self.outside(a), self.outside(b)), (Some(a), Some(b)) if a == b);
        is_same_value() || matches!((number(a), number(b)), (Some(a), Some(b)) if a == b)
    }

    /// What a variable that the loop never changes is outside.
    fn outside(&self, of: Output) -> Option<Output> {
        let is_arg = |arg: &Option<NodeId>| *arg == Some(of.node);
        let arg = self.cond.args.iter().position(is_arg)?;
        let is_fixed = self.body.passes_on(arg) == Some(arg);
        self.node.inputs.get(arg).copied().filter(|_| is_fixed)
    }
}

/// The value of a constant that is an integer scalar.
fn scalar(graph: &Graph, output: Output) -> Option<i64> {
    let node = graph.node(output.node);
    let value = node.attrs.tensor("value").ok()?;
    if !node.is_free_constant() || !value.shape().is_scalar() {
        return None;
    }
    let integer = || -> Result<i64> {
        let value = value.get()?;
        value
            .to_scalar::<i32>()
            .map(i64::from)
            .or_else(|_| value.to_scalar::<i64>())
    };
    integer().ok()
}
