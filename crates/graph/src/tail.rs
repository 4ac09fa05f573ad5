//! [`split_tail`]: what depends on shapes that only a step knows, as a graph of its own.

use crate::prune::{ARG, RETVAL, boundary_attrs};
use crate::{Graph, Node, NodeId, Output, PlacedGraph, topological_order};
use ferroflow_base::{Result, internal};
use ferroflow_opdef::{AttrValue, NodeClass, Registry};
use rustc_hash::FxHashMap;

/// Ops whose outputs have shapes that depend on the values of their inputs.
const SHAPED_BY_VALUES: &[&str] = &[
    "DynamicPartition",
    "ListDiff",
    "Unique",
    "UniqueV2",
    "UniqueWithCounts",
    "UniqueWithCountsV2",
    "Where",
];

/// A graph without the nodes that depend on shapes that only a step knows, and these, which run behind it.
pub struct Split {
    /// Its results are some of the whole graph's, then the arguments of `tail`.
    pub main: PlacedGraph,
    /// The others.
    pub tail: PlacedGraph,
    /// For each result of the whole graph, whether it is one of `tail`.
    pub is_of_tail: Vec<bool>,
}

/// Splits a graph with `n_results` results; `None` if all depends on such shapes, nothing does, or values are dead in
/// branches and loops.
///
/// # Errors
/// INTERNAL if a node lacks an attr.
pub fn split_tail(
    whole: &PlacedGraph,
    n_results: usize,
    registry: &Registry,
) -> Result<Option<Split>> {
    let graph = whole.graph();
    let is_root = |n: &Node| SHAPED_BY_VALUES.contains(&n.op());
    let moves = |n: &Node| {
        matches!(
            n.class(),
            NodeClass::Switch | NodeClass::Merge | NodeClass::Enter
        )
    };
    if !graph.iter().any(|(_, n)| is_root(n)) || graph.iter().any(|(_, n)| moves(n)) {
        return Ok(None);
    }
    let mut in_tail = vec![false; graph.id_bound()];
    for id in topological_order(graph)? {
        let node = graph.node(id);
        in_tail[id.index()] = is_root(node) || node.predecessors().any(|p| in_tail[p.index()]);
    }
    let mut is_of_tail = vec![false; n_results];
    for (id, node) in graph.iter().filter(|(_, n)| n.class() == NodeClass::Retval) {
        let index = node.attrs.int("index")? as usize;
        let result = is_of_tail.get_mut(index);
        *result.ok_or_else(|| internal!("there is no result {index}"))? = in_tail[id.index()];
    }
    let mut splitter = Splitter {
        in_tail,
        is_of_tail,
        main: graph.clone(),
        tail: graph.clone(),
        registry,
    };
    let crossing = splitter.tail(graph)?;
    splitter.main(graph, &crossing)?;
    let Splitter {
        main,
        tail,
        is_of_tail,
        ..
    } = splitter;
    Ok(Some(Split {
        main: PlacedGraph(main),
        tail: PlacedGraph(tail),
        is_of_tail,
    }))
}

struct Splitter<'a> {
    in_tail: Vec<bool>,
    is_of_tail: Vec<bool>,
    main: Graph,
    tail: Graph,
    registry: &'a Registry,
}

/// Nodes that both graphs may have.
fn is_shared(node: &Node) -> bool {
    matches!(node.class(), NodeClass::Const | NodeClass::VarHandle)
        && node.predecessors().next().is_none()
}

impl Splitter<'_> {
    /// Makes the tail; returns the outputs of other nodes that it reads, in the order of its arguments.
    fn tail(&mut self, graph: &Graph) -> Result<Vec<Output>> {
        let mut args: FxHashMap<Output, NodeId> = FxHashMap::default();
        let mut crossing = Vec::new();
        for (id, node) in graph.iter().filter(|(id, _)| self.in_tail[id.index()]) {
            let mut node = node.clone();
            node.controls.retain(|c| self.in_tail[c.index()]);
            for input in &mut node.inputs {
                if self.in_tail[input.node.index()] || is_shared(graph.node(input.node)) {
                    continue;
                }
                let arg = match args.get(input) {
                    Some(arg) => *arg,
                    None => {
                        let arg = self.boundary(graph, *input, ARG, crossing.len())?;
                        let arg = self.tail.add(arg)?;
                        crossing.push(*input);
                        args.insert(*input, arg);
                        arg
                    }
                };
                *input = Output::new(arg, 0);
            }
            self.tail.replace(id, node);
        }
        for (id, node) in graph.iter() {
            if !self.in_tail[id.index()] && !is_shared(node) {
                self.tail.remove(id);
            }
        }
        let targets = graph.targets().iter().copied();
        let targets = targets.filter(|t| self.in_tail[t.index()]).collect();
        self.tail.set_targets(targets);
        renumber(&mut self.tail, |i| self.is_of_tail[i])?;
        Ok(crossing)
    }

    /// Makes the graph without the tail, whose further results are `crossing`. What the tail waits for are its targets.
    fn main(&mut self, graph: &Graph, crossing: &[Output]) -> Result<()> {
        let is_own = |id: &NodeId| !self.in_tail[id.index()];
        let mut targets: Vec<NodeId> = graph.targets().iter().copied().filter(is_own).collect();
        for (id, node) in graph.iter() {
            if !is_own(&id) {
                let awaited = node.controls.iter().filter(|c| is_own(c));
                targets.extend(awaited.filter(|c| !is_shared(graph.node(**c))));
                self.main.remove(id);
            }
        }
        targets.sort_unstable();
        targets.dedup();
        self.main.set_targets(targets);
        renumber(&mut self.main, |i| !self.is_of_tail[i])?;
        let first = self.is_of_tail.iter().filter(|of_tail| !**of_tail).count();
        for (i, output) in crossing.iter().enumerate() {
            let result = self.boundary(graph, *output, RETVAL, first + i)?;
            self.main.add(result)?;
        }
        Ok(())
    }

    /// An argument or result for an output.
    fn boundary(&self, graph: &Graph, output: Output, op: &str, index: usize) -> Result<Node> {
        let source = graph.node(output.node);
        let dtype = graph.dtype(output);
        let dtype =
            dtype.ok_or_else(|| internal!("{} has no output {}", source.name, output.slot))?;
        let attrs = boundary_attrs(dtype, index);
        let name = graph.unique_name(&format!("{}/{}{op}", source.name, output.slot));
        let inputs = [output];
        let inputs = match op {
            RETVAL => &inputs[..],
            _ => &[],
        };
        let mut node = Node::new(self.registry, name, op, attrs, inputs, &[])?;
        node.device.clone_from(&source.device);
        Ok(node)
    }
}

/// Numbers the results of a graph that are among those of the whole one.
fn renumber(graph: &mut Graph, is_own: impl Fn(usize) -> bool) -> Result<()> {
    let results = graph.iter().filter(|(_, n)| n.class() == NodeClass::Retval);
    let results: Vec<NodeId> = results.map(|(id, _)| id).collect();
    for id in results {
        let mut node = graph.node(id).clone();
        let index = node.attrs.int("index")? as usize;
        let index = (0..index).filter(|i| is_own(*i)).count();
        node.attrs.set("index", AttrValue::Int(index as i64));
        graph.replace(id, node);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{graph, registry};
    use crate::to_text;

    /// The two graphs of one with targets, or nothing.
    fn check(text: &str, targets: &[&str], n_results: usize, expect: Option<[&str; 2]>) {
        let mut whole = graph(text).expect("valid");
        let found = targets.iter().map(|t| whole.find(t).expect("a target"));
        let found = found.collect();
        whole.set_targets(found);
        let whole = PlacedGraph::on_one_device(whole);
        let split = split_tail(&whole, n_results, registry()).expect("all attrs");
        let text = |g: &Graph| {
            let targets: Vec<&str> = g.targets().iter().map(|t| &*g.node(*t).name).collect();
            format!(
                "{}; targets {targets:?}",
                to_text(g).trim().replace('\n', "; ")
            )
        };
        let got = split.map(|s| {
            s.main.graph().verify().expect("whole");
            s.tail.graph().verify().expect("whole");
            [text(s.main.graph()), text(s.tail.graph())]
        });
        let got = got.as_ref().map(|[a, b]| [&**a, b]);
        assert_eq!(got, expect);
    }

    #[test]
    fn graphs_are_split_where_shapes_depend_on_values() {
        let rows = "x = _Arg{T=float, index=0}\ny = Neg(x)\n\
                    u = Unique{T=float}(y)\np = Print(y)\nq = Print(u, ^p)\nz = Mul(q, q)\nw = Mul(y, y)\n\
                    r0 = _Retval{T=float, index=0}(z)\nr1 = _Retval{T=float, index=1}(w)\nall = NoOp(^q, ^w)";
        check(
            rows,
            &["all"],
            2,
            Some([
                "x = _Arg{index=0}(); y = Neg(x); p = Print(y); w = Mul(y, y); y/0_Retval = _Retval{index=1}(y); \
                 r1 = _Retval{index=0}(w); targets [\"p\", \"w\"]",
                "y/0_Arg = _Arg{index=0}(); u = Unique(y/0_Arg); q = Print(u); z = Mul(q, q); all = NoOp(^q); \
                 r0 = _Retval{index=0}(z); targets [\"all\"]",
            ]),
        );
        let without = "x = _Arg{T=float, index=0}\ny = Neg(x)\nr = _Retval{T=float, index=0}(y)";
        check(without, &[], 1, None);
    }
}
