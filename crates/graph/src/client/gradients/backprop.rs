//! Backpropagation as TensorFlow's C++ clients do it (`tensorflow/cc/framework/gradients.cc`).

use super::rules;
use super::scope::{Scope, op};
use crate::client::ClientGraph;
use crate::{Node, NodeId, Output};
use ferroflow_base::{Result, internal, invalid_argument};
use ferroflow_opdef::AttrValue;
use rustc_hash::{FxHashMap, FxHashSet};
use std::collections::VecDeque;

/// Writes the gradients of a node's inputs; `None` for an input that has none.
pub(super) type Rule = fn(&Scope, &Call) -> Result<Vec<Option<Output>>>;

/// A node to be differentiated.
pub(super) struct Call {
    pub(super) id: NodeId,
    pub(super) node: Node,
    /// The gradients of its outputs.
    pub(super) dy: Vec<Output>,
}

impl Call {
    /// Input `i`; a rule asks only for those that its op has.
    pub(super) fn x(&self, i: usize) -> Output {
        self.node.inputs.get(i).copied().unwrap_or(self.y(0))
    }

    /// Output `i`.
    pub(super) fn y(&self, i: usize) -> Output {
        Output::new(self.id, i)
    }

    /// The gradient of output `i`.
    pub(super) fn dy(&self, i: usize) -> Output {
        self.dy.get(i).copied().unwrap_or(self.y(i))
    }

    /// An attr, to be copied to another node.
    pub(super) fn attr(&self, name: &str) -> Result<AttrValue> {
        let value = self.node.attrs.get(name).cloned();
        value.ok_or_else(|| invalid_argument!("node '{}' has no attr '{name}'", self.node.name))
    }
}

/// The nodes that `ys` depend on, these included.
pub(super) fn reached(graph: &ClientGraph, ys: &[Output]) -> FxHashSet<NodeId> {
    let mut reached: FxHashSet<NodeId> = ys.iter().map(|y| y.node).collect();
    let mut stack: Vec<NodeId> = reached.iter().copied().collect();
    while let Some(node) = stack.pop().and_then(|id| graph.node(id)) {
        let inputs = node.inputs.iter().map(|i| i.node);
        stack.extend(inputs.filter(|id| reached.insert(*id)));
    }
    reached
}

/// The nodes that depend on `xs`.
pub(super) fn depending(graph: &ClientGraph, xs: &[Output]) -> FxHashSet<NodeId> {
    let mut after = FxHashSet::default();
    let mut stack: Vec<NodeId> = xs.iter().map(|x| x.node).collect();
    while let Some(id) = stack.pop() {
        let readers = graph.consumers(id).iter().map(|c| c.node);
        stack.extend(readers.filter(|reader| after.insert(*reader)));
    }
    after
}

/// Those of the nodes of `ys` that no other one depends on, or rather those that the first way from the
/// `xs` leads to last.
fn last_nodes(
    graph: &ClientGraph,
    ys: &[Output],
    xs: &[Output],
    reached: &FxHashSet<NodeId>,
) -> FxHashSet<NodeId> {
    let of_ys: FxHashSet<NodeId> = ys.iter().map(|y| y.node).collect();
    let (mut inner, mut seen) = (FxHashSet::default(), FxHashSet::default());
    let mut queue = VecDeque::new();
    for x in xs {
        if seen.insert(x.node) {
            queue.push_back((x.node, None));
        }
    }
    while let Some((id, passed)) = queue.pop_front() {
        for reader in graph.consumers(id).iter().map(|c| c.node) {
            if !reached.contains(&reader) || !seen.insert(reader) {
                continue;
            }
            let mut last = passed;
            if of_ys.contains(&reader) {
                inner.extend(last);
                last = Some(reader);
            }
            queue.push_back((reader, last));
        }
    }
    of_ys.difference(&inner).copied().collect()
}

/// The state of a traversal from the `ys` to the `xs`.
struct Backprop<'s, 'a> {
    scope: &'s Scope<'a>,
    /// The terms of each value's gradient; values that depend on no `x` have no entry.
    terms: FxHashMap<Output, Vec<Option<Output>>>,
    /// How many terms each node's outputs still wait for.
    pending: FxHashMap<NodeId, usize>,
    ready: VecDeque<NodeId>,
}

/// Adds the gradients of `ys`, which are `given`, by `xs`.
pub(super) fn gradients(
    scope: &Scope,
    ys: &[Output],
    xs: &[Output],
    given: &[Output],
) -> Result<Vec<Option<Output>>> {
    let mut walk = Backprop {
        scope,
        terms: FxHashMap::default(),
        pending: FxHashMap::default(),
        ready: VecDeque::new(),
    };
    scope.graph(|g| walk.start(g, ys, xs));
    for (y, gradient) in ys.iter().zip(given) {
        walk.send(Some(*gradient), *y);
    }
    let positions: FxHashMap<Output, usize> = xs.iter().copied().zip(0..).collect();
    let mut results = vec![None; xs.len()];
    while let Some(id) = walk.ready.pop_front() {
        walk.node(id, |value, gradient| {
            if let Some(result) = positions.get(&value).and_then(|i| results.get_mut(*i)) {
                *result = gradient;
            }
        })?;
    }
    // Other outputs of the node of an x may have had no gradient from anywhere.
    for (x, i) in &positions {
        if walk.pending.get(&x.node).is_some_and(|n| *n > 0) {
            results[*i] = walk.sum(*x);
        }
    }
    scope.check()?;
    Ok(xs.iter().map(|x| results[positions[x]]).collect())
}

impl Backprop<'_, '_> {
    /// Counts the terms that will come to each node.
    fn start(&mut self, graph: &ClientGraph, ys: &[Output], xs: &[Output]) {
        let reached = reached(graph, ys);
        let last = last_nodes(graph, ys, xs, &reached);
        let (mut seen, mut queue) = (FxHashSet::default(), VecDeque::new());
        queue.extend(xs.iter().map(|x| x.node).filter(|id| seen.insert(*id)));
        while let Some(id) = queue.pop_front() {
            let n_outputs = graph.node(id).map_or(0, |n| n.outputs.len());
            let outputs = (0..n_outputs).map(|slot| Output::new(id, slot));
            self.terms
                .extend(outputs.map(|output| (output, Vec::new())));
            let mut n_terms = 0;
            if !last.contains(&id) {
                for reader in graph.consumers(id).iter().map(|c| c.node) {
                    if reached.contains(&reader) {
                        n_terms += 1;
                        if seen.insert(reader) {
                            queue.push_back(reader);
                        }
                    }
                }
            }
            n_terms += ys.iter().filter(|y| y.node == id).count();
            self.pending.insert(id, n_terms);
        }
    }

    /// Adds a term to the gradient of `value`.
    fn send(&mut self, term: Option<Output>, value: Output) {
        let Some(terms) = self.terms.get_mut(&value) else {
            return;
        };
        terms.push(term);
        if let Some(n) = self.pending.get_mut(&value.node) {
            *n = n.saturating_sub(1);
            if *n == 0 {
                self.ready.push_back(value.node);
            }
        }
    }

    /// The gradient of a value.
    fn sum(&self, value: Output) -> Option<Output> {
        let terms: Vec<Output> = self.terms.get(&value)?.iter().flatten().copied().collect();
        match terms[..] {
            [] => None,
            [one] => Some(one),
            _ => Some(op!(self.scope, AddN, &terms[..])),
        }
    }

    /// Passes the gradients of a node's outputs, which `found` is told of, to its inputs.
    fn node(&mut self, id: NodeId, mut found: impl FnMut(Output, Option<Output>)) -> Result<()> {
        let Some(node) = self.scope.graph(|g| g.node(id).cloned()) else {
            return Ok(());
        };
        let outputs = (0..node.outputs.len()).map(|slot| Output::new(id, slot));
        let arrived: Vec<(Output, Option<Output>)> = outputs.map(|y| (y, self.sum(y))).collect();
        for (y, gradient) in &arrived {
            found(*y, *gradient);
        }
        let inputs = node.inputs.clone();
        if !inputs.iter().any(|input| self.terms.contains_key(input)) {
            return Ok(());
        }
        let rule = rules::of_op(node.op());
        if matches!(rule, Some(None)) || arrived.iter().all(|(_, gradient)| gradient.is_none()) {
            inputs.iter().for_each(|input| self.send(None, *input));
            return Ok(());
        }
        let or_zeros = |(y, gradient): (Output, Option<Output>)| {
            gradient.unwrap_or_else(|| op!(self.scope, ZerosLike, y))
        };
        let dy = arrived.into_iter().map(or_zeros).collect();
        let rule = rule
            .flatten()
            .ok_or_else(|| super::no_gradient(node.op()))?;
        let results = rule(self.scope, &Call { id, node, dy })?;
        self.scope.check()?;
        for (i, input) in inputs.iter().enumerate() {
            let term = results.get(i).copied().ok_or_else(|| {
                internal!("Invalid gradient output index: {i} size: {}", results.len())
            })?;
            self.send(term, *input);
        }
        Ok(())
    }
}
