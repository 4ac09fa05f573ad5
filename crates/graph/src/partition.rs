//! Partitions a graph into one for each device or task (TensorFlow: `core/graph/graph_partition.cc`).

use crate::control_loops::{ControlLoops, colocate_control_flow, empty_constant};
use crate::recv_scheduling::{complete_start_times, set_start_times};
use crate::{DeviceSet, Graph, Node, NodeId, Output, PrunedGraph, ShapeMap, infer_shapes};
use ferroflow_base::{Result, internal};
use ferroflow_opdef::{AttrValue, Attrs, NodeClass, Registry};
use ferroflow_tensor::DType;
use rustc_hash::FxHashMap;

/// A graph that one device runs.
#[derive(Clone)]
pub struct PlacedGraph(pub(crate) Graph);

impl PlacedGraph {
    /// A graph all of whose nodes run on one device.
    pub fn on_one_device(graph: Graph) -> Self {
        PlacedGraph(graph)
    }

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
}

/// The part of a graph that one device or task runs.
///
/// Tensors for other parts leave through `_Send` nodes, those from other parts arrive through `_Recv`
/// nodes. Its arguments and results are some of the whole graph's.
pub struct Partition<G = PlacedGraph> {
    /// The number of the device or task.
    pub part: usize,
    /// Its nodes.
    pub graph: G,
    /// For each argument, the argument of the whole graph.
    pub feeds: Vec<usize>,
    /// The rendezvous keys of the arguments behind these, if some are received from other parts.
    pub recvs: Vec<String>,
    /// For each result, the result of the whole graph.
    pub fetches: Vec<usize>,
}

impl<G> Partition<G> {
    fn map<H>(self, f: impl FnOnce(G) -> H) -> Partition<H> {
        Partition {
            part: self.part,
            graph: f(self.graph),
            feeds: self.feeds,
            recvs: self.recvs,
            fetches: self.fetches,
        }
    }
}

/// Cuts a graph into one for each device; `places` are the devices of its nodes (see
/// [`DeviceSet::place_nodes`]). `None` if one device has all nodes.
///
/// # Errors
/// INVALID_ARGUMENT if a loop is malformed, or spans devices without a LoopCond.
pub fn partition(
    graph: &Graph,
    places: &[usize],
    devices: &DeviceSet,
    registry: &Registry,
) -> Result<Option<Vec<Partition>>> {
    let parts = cut(graph, places, devices, &|device| device, registry, false)?;
    let placed = |p: Partition<Graph>| p.map(PlacedGraph);
    Ok(parts.map(|parts| parts.into_iter().map(placed).collect()))
}

/// As [`partition`], into one graph for each task; `task_of` returns that of a device. A task may
/// partition its graph again.
///
/// # Errors
/// As [`partition`].
pub fn partition_by_task(
    graph: &PrunedGraph,
    places: &[usize],
    devices: &DeviceSet,
    task_of: &dyn Fn(usize) -> usize,
    registry: &Registry,
) -> Result<Option<Vec<Partition<PrunedGraph>>>> {
    let shortens = devices.sends_bfloat16;
    let parts = cut(graph.graph(), places, devices, task_of, registry, shortens)?;
    let pruned = |p: Partition<Graph>| p.map(PrunedGraph);
    Ok(parts.map(|parts| parts.into_iter().map(pruned).collect()))
}

fn cut(
    graph: &Graph,
    places: &[usize],
    devices: &DeviceSet,
    part_of: &dyn Fn(usize) -> usize,
    registry: &Registry,
    shortens: bool,
) -> Result<Option<Vec<Partition<Graph>>>> {
    let mut places = places.to_vec();
    colocate_control_flow(graph, &mut places)?;
    let of_node = |(id, _): (NodeId, &Node)| part_of(places[id.index()]);
    let mut numbers: Vec<usize> = graph.iter().map(of_node).collect();
    numbers.sort_unstable();
    numbers.dedup();
    if numbers.len() < 2 {
        return Ok(None);
    }
    let shapes = infer_shapes(graph, registry).unwrap_or_default();
    let mut graph = graph.clone();
    let loops = ControlLoops::add(&mut graph, &mut places, part_of, registry)?;
    if devices.schedules_recvs {
        set_start_times(&mut graph, &places)?;
    }
    let cut = Cut {
        graph: &graph,
        places: &places,
        devices,
        part_of,
        loops,
        registry,
        shortens,
        shapes,
        n_edges: 0,
        new_id: vec![NodeId::new(0); graph.id_bound()],
        parts: Vec::new(),
    };
    let mut parts = cut.run(&numbers)?;
    if devices.schedules_recvs {
        parts
            .iter_mut()
            .try_for_each(|part| complete_start_times(&mut part.graph))?;
    }
    Ok(Some(parts))
}

/// An edge between partitions: a tensor, or only a control dependency.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum Carried {
    Value(Output),
    Done(NodeId),
}

impl Carried {
    fn source(self) -> NodeId {
        match self {
            Carried::Value(output) => output.node,
            Carried::Done(node) => node,
        }
    }
}

struct Cut<'a> {
    graph: &'a Graph,
    places: &'a [usize],
    devices: &'a DeviceSet,
    part_of: &'a dyn Fn(usize) -> usize,
    loops: ControlLoops,
    registry: &'a Registry,
    /// Whether floats travel as bfloat16.
    shortens: bool,
    shapes: ShapeMap,
    /// Edges that were cut.
    n_edges: usize,
    /// The id of each node in its partition.
    new_id: Vec<NodeId>,
    parts: Vec<Part>,
}

/// A partition that is being made.
struct Part {
    out: Partition<Graph>,
    targets: Vec<NodeId>,
    /// Nodes to add after those of the graph; their ids are known before.
    extra: Vec<Node>,
    first_extra: usize,
    /// The node that has each tensor from elsewhere.
    received: FxHashMap<Carried, NodeId>,
}

impl Part {
    fn push(&mut self, node: Node) -> NodeId {
        self.extra.push(node);
        NodeId::new(self.first_extra + self.extra.len() - 1)
    }

    fn finish(mut self) -> Result<Partition<Graph>> {
        for node in self.extra {
            self.out.graph.add(node)?;
        }
        self.out.graph.set_targets(self.targets);
        Ok(self.out)
    }
}

impl Cut<'_> {
    fn run(mut self, numbers: &[usize]) -> Result<Vec<Partition<Graph>>> {
        self.parts = numbers.iter().map(|n| self.begin(*n)).collect();
        let mut own = vec![0; self.graph.id_bound()];
        for (id, node) in self.graph.iter() {
            let part = (self.part_of)(self.places[id.index()]);
            let at = numbers.binary_search(&part);
            let at = at.map_err(|_| internal!("'{}' has no place", node.name))?;
            own[id.index()] = at;
            self.new_id[id.index()] = NodeId::new(self.parts[at].first_extra);
            self.parts[at].first_extra += 1;
        }
        for (id, node) in self.graph.iter() {
            let mut copy = self.copy(id, &own)?;
            let part = &mut self.parts[own[id.index()]];
            let boundary = match node.class() {
                NodeClass::Arg => Some(&mut part.out.feeds),
                NodeClass::Retval => Some(&mut part.out.fetches),
                _ => None,
            };
            if let Some(list) = boundary {
                let index = node.attrs.int("index")?;
                copy.attrs.set("index", AttrValue::Int(list.len() as i64));
                list.push(usize::try_from(index).unwrap_or(usize::MAX));
            }
            part.out.graph.add(copy)?;
            if self.graph.is_target(id) {
                part.targets.push(self.new_id[id.index()]);
            }
        }
        self.parts.into_iter().map(Part::finish).collect()
    }

    fn begin(&self, part: usize) -> Part {
        let mut graph = Graph::new();
        graph.producer = self.graph.producer;
        graph.set_library(self.graph.library().clone());
        Part {
            out: Partition {
                part,
                graph,
                feeds: Vec::new(),
                recvs: Vec::new(),
                fetches: Vec::new(),
            },
            targets: Vec::new(),
            extra: Vec::new(),
            first_extra: 0,
            received: FxHashMap::default(),
        }
    }

    /// A node with the inputs that it has in its partition.
    fn copy(&mut self, id: NodeId, own: &[usize]) -> Result<Node> {
        let mut copy = self.graph.node(id).clone();
        copy.device = self.device_name(id);
        let at = own[id.index()];
        for input in &mut copy.inputs {
            let from = own[input.node.index()];
            *input = match from == at {
                true => Output {
                    node: self.new_id[input.node.index()],
                    ..*input
                },
                false => self.carry(Carried::Value(*input), from, at, id)?,
            };
        }
        for control in &mut copy.controls {
            let from = own[control.index()];
            *control = match from == at {
                true => self.new_id[control.index()],
                false => self.carry(Carried::Done(*control), from, at, id)?.node,
            };
        }
        Ok(copy)
    }

    fn device_name(&self, id: NodeId) -> String {
        let name = self.devices.names.get(self.places[id.index()]);
        name.cloned().unwrap_or_default()
    }

    /// What stands in part `to` for an edge that comes from part `from` and goes to node `reader`.
    fn carry(
        &mut self,
        carried: Carried,
        from: usize,
        to: usize,
        reader: NodeId,
    ) -> Result<Output> {
        if let Some(id) = self.parts[to].received.get(&carried) {
            return Ok(Output::new(*id, 0));
        }
        let source = self.graph.node(carried.source());
        if source.is_free_constant() {
            // Any frame may read it, and no step has to send it.
            let mut copy = source.clone();
            copy.name = self.name(&copy.name, "const");
            // Its value and a control edge from it are carried separately.
            self.n_edges += 1;
            copy.device = self.device_name(reader);
            let id = self.parts[to].push(copy);
            self.parts[to].received.insert(carried, id);
            return Ok(Output::new(id, 0));
        }
        let mut value = self.sent(carried, from)?;
        let dtype = match carried {
            Carried::Value(output) => self.graph.dtype(output),
            Carried::Done(_) => Some(DType::Float),
        };
        let mut dtype =
            dtype.ok_or_else(|| internal!("an output of '{}' is missing", source.name))?;
        let is_shortened =
            self.shortens && dtype == DType::Float && matches!(carried, Carried::Value(_));
        if is_shortened {
            value = self.cast(carried, value, DType::Bfloat16, from, carried.source())?;
            dtype = DType::Bfloat16;
        }
        let attrs = self.transfer_attrs(carried.source(), reader);
        let of_type = attrs.clone().with("T", AttrValue::Type(dtype));
        let name = self.name(&source.name, "send");
        let mut send = Node::new(self.registry, name, "_Send", of_type, &[value], &[])?;
        send.device = self.device_name(carried.source());
        let id = self.parts[from].push(send);
        self.parts[from].targets.push(id);
        let attrs = attrs.with("tensor_type", AttrValue::Type(dtype));
        let mut id = self.recv(carried, attrs, to, reader)?;
        if is_shortened {
            let received = Output::new(id, 0);
            id = self.cast(carried, received, DType::Float, to, reader)?.node;
        }
        self.parts[to].received.insert(carried, id);
        self.n_edges += 1;
        Ok(Output::new(id, 0))
    }

    /// Casts a float for its way between tasks, or back, in part `at` on the device of node `with`.
    fn cast(
        &mut self,
        carried: Carried,
        value: Output,
        to: DType,
        at: usize,
        with: NodeId,
    ) -> Result<Output> {
        let (from, what) = match to {
            DType::Bfloat16 => (DType::Float, "shortened"),
            _ => (DType::Bfloat16, "restored"),
        };
        let attrs = Attrs::default()
            .with("SrcT", AttrValue::Type(from))
            .with("DstT", AttrValue::Type(to))
            .with("Truncate", AttrValue::Bool(true));
        let name = self.name(&self.graph.node(carried.source()).name, what);
        let mut node = Node::new(self.registry, name, "Cast", attrs, &[value], &[])?;
        node.device = self.device_name(with);
        Ok(Output::new(self.parts[at].push(node), 0))
    }

    /// The output of part `from` that is sent: for a control edge, a constant that waits for its source.
    fn sent(&mut self, carried: Carried, from: usize) -> Result<Output> {
        let source = carried.source();
        let id = self.new_id[source.index()];
        if let Carried::Value(output) = carried {
            return Ok(Output { node: id, ..output });
        }
        let name = self.name(&self.graph.node(source).name, "ctrl");
        let mut node = Node::new(self.registry, name, "Const", empty_constant()?, &[], &[id])?;
        node.device = self.device_name(source);
        Ok(Output::new(self.parts[from].push(node), 0))
    }

    /// Adds the `_Recv` to part `to`, started by the control loop if the edge is in a loop.
    fn recv(
        &mut self,
        carried: Carried,
        mut attrs: Attrs,
        to: usize,
        reader: NodeId,
    ) -> Result<NodeId> {
        let source = &self.graph.node(carried.source()).name;
        if let Carried::Value(output) = carried {
            attrs.set("_shape", AttrValue::Shape(self.shapes.get(output)));
        }
        let part = (self.part_of)(self.places[reader.index()]);
        let trigger = self.loops.trigger(self.graph, carried.source(), part);
        let after: Vec<NodeId> = trigger
            .map(|t| self.new_id[t.index()])
            .into_iter()
            .collect();
        let device = self.device_name(reader);
        let name = self.name(source, "recv");
        let mut recv = Node::new(self.registry, name, "_Recv", attrs, &[], &after)?;
        recv.device.clone_from(&device);
        let id = self.parts[to].push(recv);
        if let Carried::Value(_) = carried {
            return Ok(id);
        }
        // A control edge from a `_Recv` is alive even if the tensor is dead.
        let attrs = Attrs::default().with("T", AttrValue::Type(DType::Float));
        let (name, input) = (self.name(source, "done"), [Output::new(id, 0)]);
        let mut done = Node::new(self.registry, name, "Identity", attrs, &input, &[])?;
        done.device = device;
        Ok(self.parts[to].push(done))
    }

    fn name(&self, source: &str, what: &str) -> String {
        let name = format!("{source}/_{what}_{}", self.n_edges);
        self.graph.unique_name(&name)
    }

    /// The attrs that `_Send` and `_Recv` share: the parts of the rendezvous key.
    fn transfer_attrs(&self, source: NodeId, reader: NodeId) -> Attrs {
        let place = self.places[source.index()];
        let key = format!("edge_{}_{}", self.n_edges, self.graph.node(source).name);
        let text = |text: String| AttrValue::Str(text.into());
        let incarnation = self.devices.incarnation(place) as i64;
        Attrs::default()
            .with("tensor_name", text(key))
            .with("send_device", text(self.device_name(source)))
            .with("send_device_incarnation", AttrValue::Int(incarnation))
            .with("recv_device", text(self.device_name(reader)))
            .with("client_terminated", AttrValue::Bool(false))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{graph, registry};
    use crate::to_text;

    /// Cuts a graph whose nodes are on the device of their first letter, `a` or `b`; returns the parts,
    /// without the names of devices and edges, or the error.
    fn check(text: &str, expect: &[&str]) {
        check_with(text, false, expect);
    }

    /// As [`check`]; floats may be shortened, as between tasks.
    fn check_with(text: &str, shortens: bool, expect: &[&str]) {
        let graph = graph(text).expect("valid");
        let mut places = vec![0; graph.id_bound()];
        for (id, node) in graph.iter() {
            places[id.index()] = usize::from(node.name.starts_with('b'));
        }
        let devices = DeviceSet {
            names: vec!["A".to_string(), "B".to_string()],
            incarnations: vec![3, 4],
            ..Default::default()
        };
        let cut = cut(&graph, &places, &devices, &|d| d, registry(), shortens);
        let got = match cut {
            Ok(Some(parts)) => parts.iter().map(|p| short(&p.graph)).collect(),
            Ok(None) => Vec::new(),
            Err(e) => vec![e.message().to_string()],
        };
        assert_eq!(got, expect, "{text}");
    }

    /// One line a node, without attrs of transfers and constants.
    fn short(graph: &Graph) -> String {
        let text = to_text(graph);
        let lines = text.lines().map(|line| match line.split_once('{') {
            Some((head, rest))
                if head.contains("_Send") || head.contains("Recv") || head.ends_with("Const") =>
            {
                let key = rest.split("tensor_name=").nth(1);
                let key = key.and_then(|k| k.split('"').nth(1)).unwrap_or_default();
                let inputs = rest.rsplit_once("}(").map_or("", |(_, inputs)| inputs);
                format!("{head}<{key}>({inputs}")
            }
            _ => line.to_string(),
        });
        lines.collect::<Vec<_>>().join("; ")
    }

    #[test]
    fn a_tensor_is_sent_once() {
        check("a = Placeholder\na2 = Neg(a)", &[]);
        check(
            "a = Placeholder\nb = Neg(a)\nb2 = Mul(a, b)",
            &[
                "a = Placeholder(); a/_send_0 = _Send<edge_0_a>(a)",
                "a/_recv_0 = _Recv<edge_0_a>(); b = Neg(a/_recv_0); b2 = Mul(a/_recv_0, b)",
            ],
        );
    }

    #[test]
    fn floats_are_shortened_on_request() {
        check_with(
            "a = Placeholder\nb = Neg(a)\nbn = NoOp(^a)\nbl = Less(b, b)\nas = Switch(a, bl)",
            true,
            &[
                "a = Placeholder(); bl/_recv_2 = _Recv<edge_2_bl>(); a/_shortened_0 = \
                 Cast{Truncate=true}(a); a/_ctrl_1 = Const<>(^a); as = Switch(a, bl/_recv_2); a/_send_0 \
                 = _Send<edge_0_a>(a/_shortened_0); a/_send_1 = _Send<edge_1_a>(a/_ctrl_1)",
                "a/_recv_0 = _Recv<edge_0_a>(); a/_recv_1 = _Recv<edge_1_a>(); a/_restored_0 = \
                 Cast{Truncate=true}(a/_recv_0); a/_done_1 = Identity(a/_recv_1); b = \
                 Neg(a/_restored_0); bn = NoOp(^a/_done_1); bl = Less(b, b); bl/_send_2 = \
                 _Send<edge_2_bl>(bl)",
            ],
        );
    }

    #[test]
    fn control_edges_are_sent_as_empty_tensors() {
        check(
            "a = NoOp\nb = NoOp(^a)",
            &[
                "a = NoOp(); a/_ctrl_0 = Const<>(^a); a/_send_0 = _Send<edge_0_a>(a/_ctrl_0)",
                "a/_recv_0 = _Recv<edge_0_a>(); a/_done_0 = Identity(a/_recv_0); b = NoOp(^a/_done_0)",
            ],
        );
    }

    #[test]
    fn what_reads_a_next_iteration_is_received_from_the_second_one_on() {
        check(
            "a = Placeholder\nam = Merge(ae, an)\nae = Enter(a)\nal = Less(am, am)\n\
             ac = LoopCond(al)\nas = Switch(am, ac)\nan = NextIteration(as:1)\nb = Neg(an)\n\
             aq = Merge(ae, b)\nat = Switch(aq, ac)\nax = Exit(at)",
            &[
                "a = Placeholder(); _cloop0_const = Const<>(); an/_send_0 = _Send<edge_0_an>(an); \
                 b/_recv_1 = _Recv<edge_1_b>(^_cloop0_nextiteration); ae = Enter(a); _cloop0_enter = \
                 Enter(_cloop0_const); am = Merge(ae, an); aq = Merge(ae, b/_recv_1); _cloop0_merge = \
                 Merge(_cloop0_enter, _cloop0_nextiteration); al = Less(am, am); ac = LoopCond(al); as = \
                 Switch(am, ac); at = Switch(aq, ac); _cloop0_switch = Switch(_cloop0_merge, ac); \
                 ac/_send_2 = _Send<edge_2_ac>(ac); an = NextIteration(as:1); ax = Exit(at); \
                 _cloop0_nextiteration = NextIteration(_cloop0_switch:1)",
                "_cloop1_const = Const<>(); an/_recv_0 = _Recv<edge_0_an>(^_cloop1_nextiteration); \
                 _cloop1_enter = Enter(_cloop1_const); b = Neg(an/_recv_0); _cloop1_merge = \
                 Merge(_cloop1_enter, _cloop1_nextiteration); b/_send_1 = _Send<edge_1_b>(b); ac/_recv_2 \
                 = _Recv<edge_2_ac>(^_cloop1_merge); _cloop1_switch = Switch(_cloop1_merge, ac/_recv_2); \
                 _cloop1_nextiteration = NextIteration(_cloop1_switch:1)",
            ],
        );
    }

    #[test]
    fn a_loop_that_spans_devices_has_a_control_loop() {
        let looped = "a = Placeholder\nam = Merge(ae, an)\nae = Enter(a)\nal = Less(am, am)\n\
                      ac = LoopCond(al)\nas = Switch(am, ac)\nb = Neg(as:1)\nan = NextIteration(b)\n\
                      ax = Exit(as)";
        check(
            looped,
            &[
                "a = Placeholder(); _cloop0_const = Const<>(); ae = Enter(a); \
                 _cloop0_enter = Enter(_cloop0_const); am = Merge(ae, an); \
                 _cloop0_merge = Merge(_cloop0_enter, _cloop0_nextiteration); al = Less(am, am); \
                 b/_recv_1 = _Recv<edge_1_b>(^_cloop0_merge); ac = LoopCond(al); \
                 an = NextIteration(b/_recv_1); as = Switch(am, ac); \
                 _cloop0_switch = Switch(_cloop0_merge, ac); ac/_send_2 = _Send<edge_2_ac>(ac); \
                 ax = Exit(as); as/_send_0 = _Send<edge_0_as>(as:1); \
                 _cloop0_nextiteration = NextIteration(_cloop0_switch:1)",
                "_cloop1_const = Const<>(); _cloop1_enter = Enter(_cloop1_const); \
                 _cloop1_merge = Merge(_cloop1_enter, _cloop1_nextiteration); \
                 as/_recv_0 = _Recv<edge_0_as>(^_cloop1_merge); \
                 ac/_recv_2 = _Recv<edge_2_ac>(^_cloop1_merge); b = Neg(as/_recv_0); \
                 _cloop1_switch = Switch(_cloop1_merge, ac/_recv_2); b/_send_1 = _Send<edge_1_b>(b); \
                 _cloop1_nextiteration = NextIteration(_cloop1_switch:1)",
            ],
        );
        check(
            "a = Placeholder\nae = Enter(a)\nam = Merge(ae, an)\nal = Less(am, am)\n\
             as = Switch(am, al)\nb = Neg(as:1)\nan = NextIteration(b)\nax = Exit(as)",
            &["A cross-device loop must have a pivot predicate: loop"],
        );
    }
}
