//! Derivatives of values of a client's graph, of the nodes that TensorFlow's C++ gradients consist of
//! (`tensorflow/cc/framework/gradients.cc`); gradients of loops are those of `autodiff`.

mod array;
mod backprop;
mod einsum;
mod gather;
mod loops;
mod math;
mod nn;
mod reductions;
mod rules;
mod scope;
mod segments;

use super::ClientGraph;
use crate::{NodeId, Output};
use ferroflow_base::{Result, Status, invalid_argument, not_found};
use ferroflow_opdef::NodeClass;
use scope::{Scope, op};

impl ClientGraph {
    /// Adds the derivatives of the sum of `ys` by each of `xs`; `grad_ys` are those by the `ys`, ones where
    /// empty. It is `None` for an `x` if an op without gradient is on each way to it. The new nodes are in
    /// the scope `prefix`, or in a new scope `gradients`. Nothing is added if there is an error.
    ///
    /// # Errors
    /// INVALID_ARGUMENT if the prefix is taken, a value is not in the graph, or no `y` depends on an `x`;
    /// NOT_FOUND if TensorFlow's C++ library has no gradient of an op between the two.
    pub fn add_gradients(
        &mut self,
        prefix: Option<&str>,
        ys: &[Output],
        xs: &[Output],
        grad_ys: &[Output],
    ) -> Result<Vec<Option<Output>>> {
        for value in ys.iter().chain(xs).chain(grad_ys) {
            self.dtype(*value)?;
        }
        if !grad_ys.is_empty() && grad_ys.len() != ys.len() {
            return Err(invalid_argument!(
                "Must specify a gradient input for each output."
            ));
        }
        let reached = backprop::reached(self, ys);
        if let Some(x) = xs.iter().find(|x| !reached.contains(&x.node)) {
            return Err(invalid_argument!(
                "Cannot compute the partial derivative for node '{}' as it's unreachable from the output \
                 node(s).",
                self.node(x.node).map_or("", |n| &n.name)
            ));
        }
        let scope = self.gradient_scope(prefix)?;
        let is_exit = |id: &NodeId| self.node(*id).is_some_and(|n| n.class() == NodeClass::Exit);
        let mut after = backprop::depending(self, xs).into_iter();
        if after.any(|id| reached.contains(&id) && is_exit(&id)) {
            return self.add_gradients_of_loops(scope, ys, xs, grad_ys);
        }
        let before = self.mark();
        let added = self.add_nodes(scope, ys, xs, grad_ys);
        if added.is_err() {
            self.reset(before);
        }
        added
    }

    fn add_nodes(
        &mut self,
        scope: String,
        ys: &[Output],
        xs: &[Output],
        grad_ys: &[Output],
    ) -> Result<Vec<Option<Output>>> {
        let scope = Scope::new(self, scope);
        let ones = |y: &Output| op!(scope, OnesLike, *y);
        let given = match grad_ys.is_empty() {
            true => ys.iter().map(ones).collect(),
            false => grad_ys.to_vec(),
        };
        scope.check()?;
        backprop::gradients(&scope, ys, xs, &given)
    }

    fn gradient_scope(&self, prefix: Option<&str>) -> Result<String> {
        let is_taken = |name: &str| self.find(name).is_some() || self.scopes.contains(name);
        let Some(prefix) = prefix else {
            return Ok(crate::unique_name("gradients", is_taken));
        };
        match is_taken(prefix) {
            true => Err(invalid_argument!(
                "prefix [{prefix}] conflicts with existing node in the graph named [{prefix}]"
            )),
            false => Ok(prefix.to_string()),
        }
    }
}

/// The error of an op without gradient.
fn no_gradient(op: &str) -> Status {
    not_found!(
        "No gradient defined for op: {op}. Please see \
         https://www.tensorflow.org/code/tensorflow/cc/gradients/README.md for instructions on how to \
         add C++ gradients."
    )
}
