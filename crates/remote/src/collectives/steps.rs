//! Step ids that masters of several tasks agree on without talking to each other (TensorFlow:
//! `core/distributed_runtime/rpc_collective_executor_mgr.h`).

use crate::device::random_step_id;
use crate::master_session::lock;
use ferroflow_base::hash64_combine;
use ferroflow_model::proto::{
    FunctionDef, GraphDef, NodeDef, RunOptions as RunOptionsProto, attr_value,
};
use ferroflow_runtime::Signature;
use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Mutex;

/// The key of a graph whose collectives get their instance keys as inputs.
const SEED: u64 = 0x8774_aa60_5c72_9c72;

/// The next step id of each key. Steps of the same graph on several tasks have the same ids.
#[derive(Default)]
pub(crate) struct StepSequences(Mutex<HashMap<i64, i64>>);

impl StepSequences {
    /// The next step id of a graph, as the leader answers GetStepSequence.
    pub(crate) fn lead(&self, graph_key: i64) -> i64 {
        let mut sequences = lock(&self.0);
        *sequences
            .entry(graph_key)
            .or_insert_with(|| random_step_id() as i64)
    }

    /// The next step id of a graph, if it is known here.
    pub(crate) fn next(&self, graph_key: i64) -> Option<i64> {
        lock(&self.0).get(&graph_key).copied()
    }

    /// Notes the next step id that the leader has sent.
    pub(crate) fn set(&self, graph_key: i64, next: i64) {
        lock(&self.0).insert(graph_key, next);
    }

    /// Notes that a step is over: the next id follows a successful one, and is asked for again after one
    /// that failed.
    pub(crate) fn retire(&self, graph_key: i64, step: i64, succeeded: bool) {
        let mut sequences = lock(&self.0);
        match sequences.get_mut(&graph_key) {
            Some(next) if succeeded && *next == step => *next = (step + 1) & (u64::MAX >> 7) as i64,
            _ => drop(sequences.remove(&graph_key)),
        }
    }
}

/// The keys of a session's graph, by signature.
pub(crate) struct GraphKeys {
    /// The graph, if it has collectives.
    graph: Mutex<Option<GraphDef>>,
    known: Mutex<HashMap<Signature, Option<i64>>>,
}

impl GraphKeys {
    pub(crate) fn new(graph: &GraphDef) -> Self {
        GraphKeys {
            graph: Mutex::new(has_collectives(graph).then(|| graph.clone())),
            known: Mutex::default(),
        }
    }

    /// Adds nodes to the graph.
    pub(crate) fn extend(&self, more: &GraphDef) {
        let mut graph = lock(&self.graph);
        match &mut *graph {
            Some(graph) => {
                graph.node.extend(more.node.iter().cloned());
                if let Some(library) = &more.library {
                    let all = graph.library.get_or_insert_default();
                    all.function.extend(library.function.iter().cloned());
                }
            }
            None => *graph = has_collectives(more).then(|| more.clone()),
        }
        lock(&self.known).clear();
    }

    /// The key of the collectives that a step runs, if any: that which the client asks for, else
    /// [`graph_key`].
    pub(crate) fn get(&self, signature: &Signature, asked: &RunOptionsProto) -> Option<i64> {
        let experimental = asked.experimental.as_ref();
        let asked = experimental.map_or(0, |e| e.collective_graph_key);
        if asked != 0 {
            return Some(asked);
        }
        let graph = lock(&self.graph);
        let graph = graph.as_ref()?;
        let mut known = lock(&self.known);
        if let Some(known) = known.get(signature) {
            return *known;
        }
        let key = {
            let ends = signature.fetches.iter().chain(&signature.targets);
            let feeds = signature
                .feeds
                .iter()
                .map(|f| f.strip_suffix(":0").unwrap_or(f));
            let feeds = feeds.chain(signature.feeds.iter().map(String::as_str));
            graph_key(graph, ends.map(String::as_str), &feeds.collect())
        };
        known.insert(signature.clone(), key);
        key
    }
}

/// Returns the key of the collectives that a step runs: of those of `graph` that its fetches and targets
/// need, with the functions that they call. `None` if there are none.
fn graph_key<'a>(
    graph: &'a GraphDef,
    ends: impl IntoIterator<Item = &'a str>,
    feeds: &HashSet<&str>,
) -> Option<i64> {
    let nodes = graph.node.iter().map(|n| (n.name.as_str(), n));
    let nodes: HashMap<&str, &NodeDef> = nodes.collect();
    let library = graph.library.as_ref();
    let functions = library.iter().flat_map(|l| &l.function);
    let functions: HashMap<&str, &FunctionDef> = functions
        .filter_map(|f| Some((f.signature.as_ref()?.name.as_str(), f)))
        .collect();
    let mut found = Found::default();
    let mut waiting: Vec<&str> = ends.into_iter().map(node_name).collect();
    let mut seen: HashSet<&str> = waiting.iter().copied().collect();
    while let Some(name) = waiting.pop() {
        let Some(node) = nodes.get(name) else {
            continue;
        };
        found.add(node, &functions);
        // Nodes whose output is fed are not run.
        let inputs = node.input.iter().filter(|i| !feeds.contains(i.as_str()));
        let inputs = inputs.map(|i| node_name(i));
        waiting.extend(inputs.filter(|i| !feeds.contains(i) && seen.insert(i)));
    }
    if !found.any {
        return None;
    }
    let key = |hash, key: &i64| hash64_combine(*key as u64, hash);
    Some(found.instances.iter().fold(SEED, key) as i64)
}

/// Returns the key of the collectives of a whole graph, 0 if it has none: a worker runs collectives only in a graph
/// that was registered with a key.
pub(crate) fn whole_graph_key(graph: &GraphDef) -> i64 {
    let all = graph.node.iter().map(|node| node.name.as_str());
    graph_key(graph, all, &HashSet::new()).unwrap_or(0)
}

/// Returns whether a graph or its functions have collectives.
fn has_collectives(graph: &GraphDef) -> bool {
    let functions = graph.library.iter().flat_map(|l| &l.function);
    let inner = functions.flat_map(|f| &f.node_def);
    graph.node.iter().chain(inner).any(is_collective)
}

fn is_collective(node: &NodeDef) -> bool {
    node.op.starts_with("Collective") && node.op != "CollectiveAssignGroupV2"
}

fn node_name(input: &str) -> &str {
    let name = input.strip_prefix('^').unwrap_or(input);
    name.split_once(':').map_or(name, |(node, _)| node)
}

#[derive(Default)]
struct Found<'a> {
    any: bool,
    instances: BTreeSet<i64>,
    functions: HashSet<&'a str>,
}

impl<'a> Found<'a> {
    fn add(&mut self, node: &'a NodeDef, functions: &HashMap<&'a str, &'a FunctionDef>) {
        if is_collective(node) {
            self.any = true;
            let key = node.attr.get("instance_key");
            if let Some(attr_value::Value::I(key)) = key.and_then(|a| a.value.as_ref()) {
                self.instances.insert(*key);
            }
        }
        let mut called = vec![node.op.as_str()];
        for value in node.attr.values().filter_map(|a| a.value.as_ref()) {
            match value {
                attr_value::Value::Func(f) => called.push(&f.name),
                attr_value::Value::List(list) => {
                    called.extend(list.func.iter().map(|f| f.name.as_str()));
                }
                _ => {}
            }
        }
        for name in called {
            if let Some(function) = functions.get(name)
                && self.functions.insert(name)
            {
                for inner in &function.node_def {
                    self.add(inner, functions);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ferroflow_model::proto::AttrValue;

    fn node(name: &str, op: &str, inputs: &[&str], key: Option<i64>) -> NodeDef {
        let attr = key.map(|key| {
            let value = Some(attr_value::Value::I(key));
            ("instance_key".to_string(), AttrValue { value })
        });
        NodeDef {
            name: name.into(),
            op: op.into(),
            input: inputs.iter().map(ToString::to_string).collect(),
            attr: attr.into_iter().collect(),
            ..Default::default()
        }
    }

    #[test]
    fn keys_depend_on_what_a_step_runs() {
        let graph = GraphDef {
            node: vec![
                node("x", "Placeholder", &[], None),
                node("a", "CollectiveReduce", &["x"], Some(2)),
                node("b", "CollectiveReduce", &["a:0"], Some(1)),
                node("c", "CollectiveReduceV2", &["x"], None),
            ],
            ..Default::default()
        };
        let none = HashSet::new();
        let of = |keys: &[i64]| {
            let key = keys.iter().fold(SEED, |h, k| hash64_combine(*k as u64, h));
            Some(key as i64)
        };
        assert_eq!(graph_key(&graph, ["x:0"], &none), None);
        assert_eq!(graph_key(&graph, ["a:0"], &none), of(&[2]));
        assert_eq!(graph_key(&graph, ["b:0"], &none), of(&[1, 2]));
        assert_eq!(
            graph_key(&graph, ["b:0"], &HashSet::from(["a:0"])),
            of(&[1])
        );
        assert_eq!(graph_key(&graph, ["c"], &none), of(&[]));
        assert_eq!(Some(whole_graph_key(&graph)), of(&[1, 2]));
        assert_eq!(whole_graph_key(&GraphDef::default()), 0);
    }

    #[test]
    fn ids_follow_success_and_are_asked_for_after_failure() {
        let sequences = StepSequences::default();
        let first = sequences.lead(7);
        assert_eq!(sequences.lead(7), first);
        sequences.retire(7, first, true);
        assert_eq!(sequences.next(7), Some(first + 1));
        sequences.retire(7, first + 1, false);
        assert_eq!(sequences.next(7), None);
    }
}
