//! The subgraph that a run needs: feeds become arguments, fetches become results.

use crate::{DeviceSet, Graph, Node, NodeId, Output, needed_by};
use ferroflow_base::{Result, Status, invalid_argument, not_found};
use ferroflow_opdef::{AttrValue, Attrs, INPUT_NAME, NodeClass, Registry};
use ferroflow_tensor::DType;
use rustc_hash::{FxHashMap, FxHashSet};

/// The op that stands for a fed tensor.
pub const ARG: &str = "_Arg";
/// The op that stands for a fetched tensor.
pub const RETVAL: &str = "_Retval";

/// The feeds, fetches and targets of a run, by TensorFlow's names.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Signature {
    /// Tensors that are fed, e.g. `x:0`.
    pub feeds: Vec<String>,
    /// Tensors that are fetched.
    pub fetches: Vec<String>,
    /// Nodes that are run for their effects.
    pub targets: Vec<String>,
}

impl Signature {
    /// Checks that no tensor is both fed and fetched, which TensorFlow's masters and C API refuse.
    ///
    /// ```
    /// let x = || vec!["x:0".to_string()];
    /// let signature = ferroflow_graph::Signature { feeds: x(), fetches: x(), ..Default::default() };
    /// assert_eq!(signature.check_ends().unwrap_err().message(), "x:0 is both fed and fetched.");
    /// ```
    ///
    /// # Errors
    /// INVALID_ARGUMENT if one is.
    pub fn check_ends(&self) -> Result<()> {
        let feeds: FxHashSet<&String> = self.feeds.iter().collect();
        let mut fetches = self.fetches.iter();
        match fetches.find(|name| feeds.contains(name)) {
            Some(name) => Err(invalid_argument!("{name} is both fed and fetched.")),
            None => Ok(()),
        }
    }
}

/// Splits `name:slot` (or `name`, slot 0).
///
/// ```
/// use ferroflow_graph::parse_tensor_name;
/// assert_eq!(parse_tensor_name("a/b:2").unwrap(), ("a/b", 2));
/// assert_eq!(parse_tensor_name("a").unwrap(), ("a", 0));
/// assert!(parse_tensor_name("a:x").is_err());
/// ```
///
/// # Errors
/// INVALID_ARGUMENT if the name is malformed.
pub fn parse_tensor_name(name: &str) -> Result<(&str, usize)> {
    match name.rsplit_once(':') {
        None => Ok((name, 0)),
        Some((node, slot)) => match slot.parse() {
            Ok(n) if !node.is_empty() && !slot.starts_with('+') => Ok((node, n)),
            _ => Err(invalid_argument!(
                "invalid tensor name '{name}'; expected NODE or NODE:OUTPUT, e.g. 'x:0'"
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
    ///
    /// # Errors
    /// NOT_FOUND if the node does not exist, INVALID_ARGUMENT if it has fewer outputs.
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

    /// The output that a tensor name means. `missing` makes the error for a node that does not exist from
    /// a hint, `beyond` the one for a node with that number of outputs.
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

    /// A name that `name` may be a misspelling of.
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

/// A tensor that is read in the place of another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorConnection {
    /// The tensor that is read, e.g. `a:0`.
    pub from: String,
    /// The tensor in whose place it is read.
    pub to: String,
}

/// The part of a graph that a signature needs, with an `_Arg` node for each feed and a `_Retval` node for
/// each fetch, which have their positions as attr `index`.
#[derive(Clone)]
pub struct PrunedGraph(pub(crate) Graph);

impl PrunedGraph {
    /// The graph.
    pub fn graph(&self) -> &Graph {
        &self.0
    }

    /// The graph, for the compiler to rewrite.
    pub fn into_graph(self) -> Graph {
        self.0
    }

    /// Rewrites the graph; its `_Arg` and `_Retval` nodes must stay.
    ///
    /// # Errors
    /// Those of `rewrite`.
    pub fn try_map(mut self, rewrite: impl FnOnce(&mut Graph) -> Result<()>) -> Result<Self> {
        rewrite(&mut self.0)?;
        Ok(self)
    }

    /// The graph with each node on the device that `places` has for it.
    #[must_use]
    pub fn with_devices(mut self, places: &[usize], devices: &DeviceSet) -> Self {
        for (i, place) in places.iter().enumerate() {
            if let (Some(node), Some(name)) =
                (self.0.node_mut(NodeId::new(i)), devices.names.get(*place))
            {
                node.device.clone_from(name);
            }
        }
        self
    }

    /// For each fetch, the feeds that it depends on, by position.
    ///
    /// # Errors
    /// INVALID_ARGUMENT if an `_Arg` or `_Retval` node has no index.
    pub fn feeds_of_fetches(&self) -> Result<Vec<Vec<usize>>> {
        let mut all = Vec::new();
        for (id, node) in self
            .0
            .iter()
            .filter(|(_, n)| n.class() == NodeClass::Retval)
        {
            let needed = needed_by(&self.0, [id], |_| false);
            let args = self.0.iter().filter(|(_, n)| n.class() == NodeClass::Arg);
            let args = args.filter(|(id, _)| needed[id.index()]);
            let feeds = args.map(|(_, arg)| Ok(arg.attrs.int("index")? as usize));
            let feeds: Vec<usize> = feeds.collect::<Result<_>>()?;
            all.push((node.attrs.int("index")?, feeds));
        }
        all.sort_unstable_by_key(|(index, _)| *index);
        Ok(all.into_iter().map(|(_, feeds)| feeds).collect())
    }
}

/// The part of `graph` that `signature` needs. `registry` has the schemas of `_Arg` and `_Retval`.
///
/// # Errors
///
/// NOT_FOUND or INVALID_ARGUMENT if the signature names what the graph does not have, and the error of a
/// needed node that could not be imported.
pub fn prune(graph: &Graph, signature: &Signature, registry: &Registry) -> Result<PrunedGraph> {
    prune_connected(graph, signature, &[], registry)
}

/// [`prune`](fn@prune) where some tensors are read in the place of others.
pub fn prune_connected(
    graph: &Graph,
    signature: &Signature,
    connections: &[TensorConnection],
    registry: &Registry,
) -> Result<PrunedGraph> {
    let resolved = ResolvedSignature::new(graph, signature, connections)?;
    let needed = resolved.needed()?;
    resolved.copy(&needed, registry)
}

/// A signature in terms of a graph.
struct ResolvedSignature<'a> {
    graph: &'a Graph,
    feeds: Vec<Output>,
    fetches: Vec<Output>,
    targets: Vec<NodeId>,
    /// The position of each fed output.
    fed: FxHashMap<Output, usize>,
    fed_nodes: FxHashSet<NodeId>,
    /// The output that is read instead of another.
    connected: FxHashMap<Output, Output>,
}

impl<'a> ResolvedSignature<'a> {
    fn new(
        graph: &'a Graph,
        signature: &Signature,
        connections: &[TensorConnection],
    ) -> Result<Self> {
        let connected = connected(graph, signature, connections)?;
        let named = [&signature.fetches, &signature.targets, &signature.feeds];
        for name in named.into_iter().flatten() {
            let node = read_name(name.strip_prefix('^').unwrap_or(name)).0;
            if let Some(error) = graph.find(node).and_then(|id| graph.invalid().get(&id)) {
                return Err(error.clone());
            }
        }
        let mut feeds: Vec<Output> = Vec::with_capacity(signature.feeds.len());
        let mut fed = FxHashMap::default();
        for name in &signature.feeds {
            let output = graph.find_feed(name)?;
            if fed.insert(output, feeds.len()).is_some() {
                return Err(invalid_argument!("Endpoint \"{name}\" fed more than once."));
            }
            feeds.push(output);
        }
        let fetches = signature.fetches.iter().map(|name| graph.find_fetch(name));
        let fetches: Vec<Output> = fetches.collect::<Result<_>>()?;
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
        Ok(ResolvedSignature {
            graph,
            fed_nodes: feeds.iter().map(|feed| feed.node).collect(),
            feeds,
            fetches,
            targets,
            fed,
            connected,
        })
    }

    /// A node that waits for a fed node does not wait.
    fn is_fed(&self, id: NodeId) -> bool {
        self.fed_nodes.contains(&id)
    }

    /// The output that is read where `output` is named.
    fn source(&self, output: Output) -> Output {
        self.connected.get(&output).copied().unwrap_or(output)
    }

    /// The needed nodes in order: backwards from the fetches and targets as far as the feeds.
    fn needed(&self) -> Result<Vec<NodeId>> {
        let is_open = |o: &Output| !self.fed.contains_key(o);
        let mut seen = vec![false; self.graph.id_bound()];
        let mut needed = Vec::new();
        let mut stack: Vec<NodeId> = self.targets.clone();
        let fetches = self.fetches.iter().map(|f| self.source(*f));
        stack.extend(fetches.filter(is_open).map(|f| f.node));
        while let Some(id) = stack.pop() {
            if std::mem::replace(&mut seen[id.index()], true) {
                continue;
            }
            needed.push(id);
            let node = self.graph.node(id);
            let inputs = node.inputs.iter().map(|i| self.source(*i));
            stack.extend(inputs.filter(is_open).map(|i| i.node));
            stack.extend(node.controls.iter().copied().filter(|c| !self.is_fed(*c)));
        }
        needed.sort_unstable();
        let invalid = self.graph.invalid();
        match needed.iter().find_map(|id| invalid.get(id)) {
            Some(error) => Err(error.clone()),
            None => Ok(needed),
        }
    }

    fn copy(&self, needed: &[NodeId], registry: &Registry) -> Result<PrunedGraph> {
        let graph = self.graph;
        let mut out = Graph::new();
        out.producer = graph.producer;
        out.set_library(graph.library().clone());
        let mut args: Vec<Output> = Vec::with_capacity(self.feeds.len());
        for index in 0..self.feeds.len() {
            args.push(Output::new(out.add(self.arg(index, registry)?)?, 0));
        }
        // Ids first, since loops make nodes read later ones.
        let mut new_id = vec![None; graph.id_bound()];
        for (next, id) in (out.id_bound()..).zip(needed) {
            new_id[id.index()] = Some(NodeId::new(next));
        }
        let map = |output: &Output| {
            let output = self.source(*output);
            match self.fed.get(&output) {
                Some(&i) => args[i],
                None => Output {
                    node: new_id[output.node.index()].unwrap_or(output.node),
                    slot: output.slot,
                },
            }
        };
        for id in needed {
            let node = graph.node(*id);
            let mut copy = node.clone();
            copy.inputs = node.inputs.iter().map(map).collect();
            if node.op() == "EnsureShape"
                && let Some(input) = node.inputs.first()
            {
                let name = input_name(graph, *input, self.fed.contains_key(input));
                copy.attrs.set(INPUT_NAME, AttrValue::Str(name.into()));
            }
            let controls = node.controls.iter().filter(|c| !self.is_fed(**c));
            copy.controls = controls.filter_map(|c| new_id[c.index()]).collect();
            out.add(copy)?;
        }
        for (index, fetch) in self.fetches.iter().enumerate() {
            let source = graph.node(fetch.node);
            let dtype = source.outputs[fetch.slot as usize];
            let name = format!("_retval_{}_{index}", source.name);
            let (name, attrs) = (out.unique_name(&name), boundary_attrs(dtype, index));
            out.add(Node::new(
                registry,
                name,
                RETVAL,
                attrs,
                &[map(fetch)],
                &[],
            )?)?;
        }
        let targets = self.targets.iter().filter_map(|t| new_id[t.index()]);
        out.set_targets(targets.collect());
        if !self.connected.is_empty() {
            out.verify()?;
        }
        Ok(PrunedGraph(out))
    }

    /// The argument of feed number `index`.
    fn arg(&self, index: usize, registry: &Registry) -> Result<Node> {
        let feed = self.feeds[index];
        let source = self.graph.node(feed.node);
        let dtype = source.outputs[feed.slot as usize];
        let mut attrs = boundary_attrs(dtype, index);
        if source.class() == NodeClass::Placeholder
            && let Some(shape) = source.attrs.get("shape")
        {
            attrs.set("_shape", shape.clone());
        }
        let name = format!("_arg_{}_{index}", source.name);
        let name = self.graph.unique_name(&name);
        let mut arg = Node::new(registry, name, ARG, attrs, &[], &[])?;
        if dtype == DType::Resource {
            // What uses the resource is placed with it.
            arg.device.clone_from(&source.device);
        }
        Ok(arg)
    }
}

/// The attrs of an `_Arg` or `_Retval` node.
pub fn boundary_attrs(dtype: DType, index: usize) -> Attrs {
    Attrs::default()
        .with("T", AttrValue::Type(dtype))
        .with("index", AttrValue::Int(index as i64))
}

/// The outputs that are read instead of others, checked as in TensorFlow.
fn connected(
    graph: &Graph,
    signature: &Signature,
    connections: &[TensorConnection],
) -> Result<FxHashMap<Output, Output>> {
    let mut connected = FxHashMap::default();
    for TensorConnection { from, to } in connections {
        let find = |name: &str| -> Result<Option<Output>> {
            let (node, slot) = parse_tensor_name(name)?;
            Ok(graph.find(node).map(|id| Output::new(id, slot)))
        };
        let (from_output, to_output) = (find(from)?, find(to)?);
        let from_output = from_output.ok_or_else(|| {
            invalid_argument!("Requested tensor connection from unknown node: \"{to}\".")
        })?;
        let to_output =
            to_output.ok_or_else(|| not_found!("FeedInputs: unable to find feed output {to}"))?;
        let is_named = |names: &[String]| {
            let mut outputs = names.iter().filter_map(|name| find(name).ok()?);
            outputs.any(|output| output == to_output)
        };
        let is_second = connected.insert(to_output, from_output).is_some();
        if is_second || is_named(&signature.feeds) {
            return Err(invalid_argument!("Endpoint \"{to}\" fed more than once."));
        }
        if is_named(&signature.fetches) {
            return Err(invalid_argument!("{to} is both fed and fetched."));
        }
    }
    Ok(connected)
}

/// The name of an input in errors of TensorFlow's kernel.
fn input_name(graph: &Graph, input: Output, is_fed: bool) -> String {
    let name = &graph.node(input.node).name;
    match input.slot {
        slot if is_fed => format!("_recv_{name}_{slot}"),
        0 => name.clone(),
        slot => format!("{name}:{slot}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{graph, registry};
    use crate::to_text;

    const GRAPH: &str = "
        x = Placeholder
        v = VariableV2
        p = Pair(x)
        n = Neg(p:1, ^w)
        w = Print(x)
        e = NoOp(^w)";

    /// What `feeds -> fetches; targets` leave of the graph, or the error.
    fn check(signature: &str, expect: &str) {
        let list =
            |text: &str| -> Vec<String> { text.split_whitespace().map(str::to_string).collect() };
        let (feeds, rest) = signature.split_once("->").expect("an arrow");
        let (fetches, targets) = rest.split_once(';').unwrap_or((rest, ""));
        let signature = Signature {
            feeds: list(feeds),
            fetches: list(fetches),
            targets: list(targets),
        };
        let got = match prune(&graph(GRAPH).expect("valid"), &signature, registry()) {
            Ok(pruned) => to_text(pruned.graph()),
            Err(e) => e.message().to_string(),
        };
        assert_eq!(got.trim().replace("\n", "; "), expect, "{signature:?}");
    }

    #[test]
    fn parts() {
        check(
            "x:0 -> p:1",
            "_arg_x_0 = _Arg{_shape=<unknown>, index=0}(); p = Pair(_arg_x_0); _retval_p_0 = _Retval{index=0}(p:1)",
        );
        check(
            "p:1 w -> n",
            "_arg_p_0 = _Arg{index=0}(); _arg_w_1 = _Arg{index=1}(); n = Neg(_arg_p_0); \
             _retval_n_0 = _Retval{index=0}(n)",
        );
        check(
            "x -> ; e",
            "_arg_x_0 = _Arg{_shape=<unknown>, index=0}(); w = Print(_arg_x_0); e = NoOp(^w)",
        );
        check(
            "x -> x",
            "_arg_x_0 = _Arg{_shape=<unknown>, index=0}(); _retval_x_0 = _Retval{index=0}(_arg_x_0)",
        );
    }

    #[test]
    fn errors() {
        check("y -> x", "FeedInputs: unable to find feed output y");
        check("x x:0 -> p", "Endpoint \"x:0\" fed more than once.");
        check("-> X", "FetchOutputs node X: not found; did you mean 'x'?");
        check(
            "-> p:2",
            "FetchOutputs p:2: output index too large, must be < 2",
        );
        check(
            "-> x; q r",
            "PruneForTargets: Some target nodes not found: q r",
        );
        check(
            "->",
            "Must specify at least one target to fetch or execute.",
        );
        check(
            "-> e",
            "Tried to fetch data for 'e', which produces no output.  To run to a node but not fetch any \
             data, pass 'e' as an argument to the 'target_node_names' argument of the Session::Run API.",
        );
    }

    #[test]
    fn fetches_name_their_feeds() {
        let signature = Signature {
            feeds: vec!["x".into(), "w".into()],
            fetches: vec!["w".into(), "n".into(), "v".into()],
            targets: Vec::new(),
        };
        let pruned = prune(&graph(GRAPH).expect("valid"), &signature, registry());
        let needs = pruned.expect("valid").feeds_of_fetches();
        assert_eq!(needs.expect("indexed"), [vec![1], vec![0], vec![]]);
    }
}
