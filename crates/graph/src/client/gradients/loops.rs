//! Gradients of graphs with loops, whose iterations are reversed with the values that they have computed:
//! TensorFlow's C++ gradients would read these in another loop, which is an error when they run.

use super::no_gradient;
use super::rules::NO_GRADIENT;
use super::scope::class_of;
use crate::client::ClientGraph;
use crate::{GradientOptions, GraphBuilder, NodeId, Output};
use ferroflow_base::{Code, Result, Status, internal};
use ferroflow_opdef::{GradientRule, Registry};
use ferroflow_tensor::DType;
use rustc_hash::{FxHashMap, FxHashSet};

impl ClientGraph {
    /// As `add_gradients`, by the gradient rules of the ops.
    pub(super) fn add_gradients_of_loops(
        &mut self,
        scope: String,
        ys: &[Output],
        xs: &[Output],
        grad_ys: &[Output],
    ) -> Result<Vec<Option<Output>>> {
        self.check_differentiable(ys, xs)?;
        let registry: &'static Registry = self.registry();
        let mut builder = GraphBuilder::from_graph(self.graph.clone(), registry);
        let mut given: Vec<Option<Output>> = grad_ys.iter().map(|g| Some(*g)).collect();
        if given.is_empty() {
            for y in ys {
                given.push(Some(builder.op("OnesLike").input(*y).output()?));
            }
        }
        // Values such as those of comparisons have no derivatives.
        let has_some = |y: &Output| self.graph.dtype(*y) != Some(DType::Bool);
        let of_ys = ys.iter().zip(given).filter(|(y, _)| has_some(y));
        let (ys, given): (Vec<Output>, Vec<_>) = of_ys.map(|(y, g)| (*y, g)).unzip();
        let mut dtypes = ys.iter().filter_map(|y| self.graph.dtype(*y));
        let options = GradientOptions {
            name: scope.clone(),
            integers: dtypes.any(DType::is_integer),
            grad_ys: given,
            ..Default::default()
        };
        let gradients = match ys.is_empty() {
            true => vec![None; xs.len()],
            false => builder.gradients(&ys, xs, &options).map_err(of_client)?,
        };
        let renumbered = self.adopt(builder.graph(), &scope)?;
        let new = |output: Output| {
            let node = renumbered.get(&output.node).copied().unwrap_or(output.node);
            Output::new(node, output.slot as usize)
        };
        Ok(gradients.into_iter().map(|g| g.map(new)).collect())
    }

    /// Checks the ops between `xs` and `ys`: those that count as constants for all clients are
    /// [`NO_GRADIENT`]; others, such as ArgMax, are not differentiable.
    fn check_differentiable(&self, ys: &[Output], xs: &[Output]) -> Result<()> {
        let after = super::backprop::depending(self, xs);
        let mut seen = FxHashSet::default();
        let mut stack: Vec<NodeId> = ys.iter().map(|y| y.node).collect();
        while let Some(id) = stack.pop() {
            let Some(node) = self.node(id).filter(|_| after.contains(&id)) else {
                continue;
            };
            if !seen.insert(id) || NO_GRADIENT.contains(&node.op()) {
                continue;
            }
            let rule = self.registry.op(node.op()).map(|op| op.gradient);
            if matches!(rule, Some(GradientRule::None)) {
                return Err(no_gradient(node.op()));
            }
            let inputs = node.inputs.iter().filter(|i| self.has_derivative(id, **i));
            stack.extend(inputs.map(|i| i.node));
        }
        Ok(())
    }

    /// Returns whether the gradient function of a node may have a derivative by this input: not by integers that
    /// only say how values are computed, such as the axes of a sum.
    fn has_derivative(&self, node: NodeId, input: Output) -> bool {
        if !self.graph.dtype(input).is_some_and(DType::is_integer) {
            return true;
        }
        let Some(reader) = self.node(node) else {
            return true;
        };
        reader.op() == "Cast" || reader.outputs.iter().any(|dtype| dtype.is_integer())
    }

    /// Adds the nodes that `grown` has and this graph has not, named by their ops in `scope`.
    fn adopt(&mut self, grown: &crate::Graph, scope: &str) -> Result<FxHashMap<NodeId, NodeId>> {
        let before = self.mark();
        let added = self.adopt_all(grown, scope);
        if added.is_err() {
            self.reset(before);
        }
        added
    }

    fn adopt_all(
        &mut self,
        grown: &crate::Graph,
        scope: &str,
    ) -> Result<FxHashMap<NodeId, NodeId>> {
        let n_before = self.len();
        let order: Vec<NodeId> = crate::topological_order(grown)?
            .into_iter()
            .filter(|id| id.index() >= n_before)
            .collect();
        let numbers = (n_before..).map(NodeId::new);
        let renumbered: FxHashMap<NodeId, NodeId> = order.iter().copied().zip(numbers).collect();
        let new = |id: NodeId| renumbered.get(&id).copied().unwrap_or(id);
        let mut back_edges = Vec::new();
        for id in order {
            let mut node = grown.node(id).clone();
            let (own, mut known) = (new(id), None);
            for (i, input) in node.inputs.iter_mut().enumerate() {
                input.node = new(input.node);
                if input.node < own {
                    known.get_or_insert(*input);
                    continue;
                }
                // The back edge of a loop is added when its node exists.
                back_edges.push((*input, own, i));
                *input = known
                    .ok_or_else(|| internal!("{}: a loop without a first value", node.name))?;
            }
            for control in &mut node.controls {
                *control = new(*control);
            }
            let name = format!("{scope}/{}", class_of(node.op()));
            node.name = self.graph.unique_name(&name);
            self.insert(node)?;
            if back_edges.last().is_some_and(|(_, merge, _)| *merge == own) {
                self.refiner.set(Output::new(own, 0), Default::default());
            }
        }
        for (source, merge, i) in back_edges {
            self.update_edge(source, merge, i)?;
            self.mutations.pop();
            self.updated.remove(&(merge, i));
        }
        Ok(renumbered)
    }
}

/// The error of an op without gradient as TensorFlow's C++ clients know it.
fn of_client(error: Status) -> Status {
    let op = error
        .message()
        .split_once("(op type: ")
        .and_then(|(_, rest)| rest.split_once(')'));
    match (error.code(), op) {
        (Code::NotFound, Some((op, _))) => no_gradient(op),
        _ => error,
    }
}
