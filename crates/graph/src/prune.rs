//! The subgraph that a run needs: feeds become arguments, fetches become results.

use crate::client_ends::internal_op;
use crate::{Graph, Node, NodeId, Output};
use ferroflow_base::{Result, Status, invalid_argument, not_found};
use ferroflow_opdef::{AttrValue, Attrs, INPUT_NAME, Registry};
use smallvec::smallvec;

/// The op that stands for a fed tensor.
pub const ARG: &str = "_Arg";
/// The op that stands for a fetched tensor.
pub const RETVAL: &str = "_Retval";

/// What a run feeds, fetches and runs, by TensorFlow's names.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Signature {
    /// Tensors that are fed, e.g. `x:0`.
    pub feeds: Vec<String>,
    /// Tensors that are fetched.
    pub fetches: Vec<String>,
    /// Nodes that are run for their effects.
    pub targets: Vec<String>,
}

/// Splits `name:slot` (or `name`, slot 0).
///
/// ```
/// use ferroflow_graph::parse_tensor_name;
/// assert_eq!(parse_tensor_name("a/b:2").unwrap(), ("a/b", 2));
/// assert_eq!(parse_tensor_name("a").unwrap(), ("a", 0));
/// assert!(parse_tensor_name("a:x").is_err());
/// ```
pub fn parse_tensor_name(name: &str) -> Result<(&str, usize)> {
    match name.rsplit_once(':') {
        None => Ok((name, 0)),
        Some((node, slot)) => match slot.parse() {
            Ok(n) if !node.is_empty() && !slot.starts_with('+') => Ok((node, n)),
            _ => Err(invalid_argument!(
                "'{name}' is no tensor name; expected NODE or NODE:OUTPUT, e.g. 'x:0'"
            )),
        },
    }
}

/// As TensorFlow reads the names of feeds, fetches and targets: what does not end in an output is
/// the name of a node.
fn read_name(name: &str) -> (&str, usize) {
    parse_tensor_name(name).unwrap_or((name, 0))
}

impl Graph {
    /// The output that a tensor name means; `what` is for the message.
    pub fn find_output(&self, name: &str, what: &str) -> Result<Output> {
        self.look_up(
            name,
            |hint| not_found!("{what} {name}: not found{hint}"),
            |n| invalid_argument!("{what} {name}: output index too large, must be < {n}"),
        )
    }

    /// The output that is fed as `name`.
    fn find_feed(&self, name: &str) -> Result<Output> {
        self.look_up(
            name,
            |hint| not_found!("FeedInputs: unable to find feed output {name}{hint}"),
            |n| invalid_argument!("FeedInputs: {name} should have output index < {n}"),
        )
    }

    /// The output that is fetched as `name`.
    fn find_fetch(&self, name: &str) -> Result<Output> {
        let control = name.strip_prefix('^');
        let node = control.unwrap_or_else(|| read_name(name).0);
        let n = self.find(node).map(|id| self.node(id).outputs.len());
        if n == Some(0) {
            return Err(invalid_argument!(
                "Tried to fetch data for '{name}', which produces no output.  To run to a node but \
                 not fetch any data, pass '{name}' as an argument to the 'target_node_names' argument \
                 of the Session::Run API."
            ));
        }
        if control.is_some()
            && let Some(n) = n
        {
            return Err(invalid_argument!(
                "Attempt to add output -1 of {node} not in range [0, {n}) to node with type _Send. \
                 Node: {{{{node {node}}}}}"
            ));
        }
        self.look_up(
            name,
            |hint| not_found!("FetchOutputs node {name}: not found{hint}"),
            |n| invalid_argument!("FetchOutputs {name}: output index too large, must be < {n}"),
        )
    }

    /// The output that a tensor name means; the errors of a node that is not there, given what it
    /// may have been meant for, and of one that has only so many outputs.
    fn look_up(
        &self,
        name: &str,
        missing: impl FnOnce(&str) -> Status,
        beyond: impl FnOnce(usize) -> Status,
    ) -> Result<Output> {
        let (node, slot) = read_name(name);
        let Some(id) = self.find(node) else {
            let near = self.nearest_name(node);
            let hint = near.map_or(String::new(), |n| format!("; did you mean '{n}'?"));
            return Err(missing(&hint));
        };
        match self.node(id).outputs.len() {
            n if slot >= n => Err(beyond(n)),
            _ => Ok(Output::new(id, slot)),
        }
    }

    /// A name that somebody who mistyped `name` may have meant.
    fn nearest_name(&self, name: &str) -> Option<&str> {
        let lower = name.to_lowercase();
        let score = |candidate: &str| {
            let c = candidate.to_lowercase();
            if c == lower {
                return 0;
            }
            if c.ends_with(&lower) || lower.ends_with(&c) || c.starts_with(&lower) {
                return 1 + c.len().abs_diff(lower.len());
            }
            usize::MAX
        };
        self.iter()
            .map(|(_, n)| n.name.as_str())
            .min_by_key(|n| score(n))
            .filter(|n| score(n) < usize::MAX)
    }
}

/// The part of `graph` that `signature` needs, with an `_Arg` per feed and a `_Retval` per fetch,
/// each with its position as attr `index`. `registry` supplies their schemas.
pub fn prune(graph: &Graph, signature: &Signature, registry: &Registry) -> Result<Graph> {
    let mut feeds: Vec<Output> = Vec::with_capacity(signature.feeds.len());
    for name in &signature.feeds {
        let output = graph.find_feed(name)?;
        if feeds.contains(&output) {
            return Err(invalid_argument!("Endpoint \"{name}\" fed more than once."));
        }
        feeds.push(output);
    }
    let fetches: Vec<Output> = signature
        .fetches
        .iter()
        .map(|name| graph.find_fetch(name))
        .collect::<Result<_>>()?;
    let mut targets = Vec::new();
    let mut missing = String::new();
    for name in &signature.targets {
        let node = name.strip_prefix('^').unwrap_or_else(|| read_name(name).0);
        match graph.find(node) {
            Some(id) => targets.push(id),
            None => missing.extend([name, " "]),
        }
    }
    if !missing.is_empty() {
        return Err(not_found!(
            "PruneForTargets: Some target nodes not found: {missing}"
        ));
    }
    if fetches.is_empty() && targets.is_empty() {
        return Err(invalid_argument!(
            "Must specify at least one target to fetch or execute."
        ));
    }

    // Backwards from what is wanted; fed outputs cut the walk.
    let fed: rustc_hash::FxHashMap<Output, usize> =
        feeds.iter().enumerate().map(|(i, f)| (*f, i)).collect();
    // Whoever waits for a fed node waits for nothing.
    let is_fed = |id: NodeId| feeds.iter().any(|f| f.node == id);
    let mut needed = vec![false; graph.id_bound()];
    let mut stack: Vec<NodeId> = targets.clone();
    stack.extend(
        fetches
            .iter()
            .filter(|f| !fed.contains_key(f))
            .map(|f| f.node),
    );
    while let Some(id) = stack.pop() {
        if std::mem::replace(&mut needed[id.index()], true) {
            continue;
        }
        let node = graph.node(id);
        stack.extend(
            node.inputs
                .iter()
                .filter(|i| !fed.contains_key(i))
                .map(|i| i.node),
        );
        stack.extend(node.controls.iter().copied().filter(|c| !is_fed(*c)));
    }

    let mut out = Graph::new();
    out.producer = graph.producer;
    out.set_library(graph.library().clone());
    let def = |op: &str| internal_op(registry, op);
    let mut args: Vec<Output> = Vec::with_capacity(feeds.len());
    for (index, feed) in feeds.iter().enumerate() {
        let source = graph.node(feed.node);
        let dtype = source.outputs[feed.slot as usize];
        let mut attrs = Attrs::default()
            .with("T", AttrValue::Type(dtype))
            .with("index", AttrValue::Int(index as i64));
        if source.op().starts_with("Placeholder")
            && let Some(shape) = source.attrs.get("shape")
        {
            attrs.set("_shape", shape.clone());
        }
        let name = format!("_arg_{}_{index}", source.name);
        let id = out.add(Node {
            name: graph.unique_name(&name),
            def: def(ARG)?,
            attrs,
            inputs: smallvec![],
            controls: smallvec![],
            device: String::new(),
            outputs: smallvec![dtype],
        })?;
        args.push(Output::new(id, 0));
    }
    // Ids first, since loops make nodes read later ones.
    let mut new_id = vec![None; graph.id_bound()];
    let kept = graph.iter().filter(|(id, _)| needed[id.index()]);
    for (next, (id, _)) in (out.id_bound()..).zip(kept) {
        new_id[id.index()] = Some(NodeId::new(next));
    }
    let map = |output: &Output| match fed.get(output) {
        Some(&i) => args[i],
        None => Output {
            node: new_id[output.node.index()].unwrap_or(output.node),
            slot: output.slot,
        },
    };
    for (_, node) in graph.iter().filter(|(id, _)| needed[id.index()]) {
        let mut copy = node.clone();
        copy.inputs = node.inputs.iter().map(map).collect();
        if node.op() == "EnsureShape"
            && let Some(input) = node.inputs.first()
        {
            let name = input_name(graph, *input, fed.contains_key(input));
            copy.attrs.set(INPUT_NAME, AttrValue::Str(name.into()));
        }
        copy.controls = node
            .controls
            .iter()
            .filter(|c| !is_fed(**c))
            .filter_map(|c| new_id[c.index()])
            .collect();
        out.add(copy)?;
    }
    for (index, fetch) in fetches.iter().enumerate() {
        let dtype = graph.node(fetch.node).outputs[fetch.slot as usize];
        let name = format!("_retval_{}_{index}", graph.node(fetch.node).name);
        out.add(Node {
            name: out.unique_name(&name),
            def: def(RETVAL)?,
            attrs: Attrs::default()
                .with("T", AttrValue::Type(dtype))
                .with("index", AttrValue::Int(index as i64)),
            inputs: smallvec![map(fetch)],
            controls: smallvec![],
            device: String::new(),
            outputs: smallvec![],
        })?;
    }
    // Targets are kept alive by a name list that passes must respect.
    out.set_targets(targets.iter().filter_map(|t| new_id[t.index()]).collect());
    Ok(out)
}

/// What TensorFlow's kernel of a node calls its input.
fn input_name(graph: &Graph, input: Output, is_fed: bool) -> String {
    let name = &graph.node(input.node).name;
    match input.slot {
        slot if is_fed => format!("_recv_{name}_{slot}"),
        0 => name.clone(),
        slot => format!("{name}:{slot}"),
    }
}
