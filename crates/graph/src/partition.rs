//! Partitions a graph into one for each device.

use crate::feed_fetch::add_rendezvous;
use crate::{Graph, Node, NodeId, Output, ShapeMap, infer_shapes, loop_frames};
use ferroflow_base::{Result, internal};
use ferroflow_opdef::{AttrValue, Attrs, NodeClass, Registry};
use ferroflow_tensor::{DType, LazyTensor, Tensor};
use rustc_hash::FxHashMap;

/// A graph that one device runs.
#[derive(Clone)]
pub struct PlacedGraph(Graph);

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
}

/// The part of a graph that one device runs.
///
/// Values for other parts leave through `_Send` nodes, those from other parts arrive through
/// `_Recv` nodes. The rendezvous where they meet is its first argument; its other arguments and its
/// results are some of the whole graph's.
pub struct Partition {
    /// The device, by position.
    pub device: usize,
    /// Its nodes.
    pub graph: PlacedGraph,
    /// For each argument after the first, the argument of the whole graph.
    pub feeds: Vec<usize>,
    /// For each result, the result of the whole graph.
    pub fetches: Vec<usize>,
}

/// Cuts a pruned graph along `places` (the device of each node; see
/// [`DeviceSet::place_nodes`](crate::DeviceSet::place_nodes)). `names` are the devices' names.
///
/// `None` when one device has all nodes, and when a cut would go through a loop or between a
/// Switch and what it may leave dead: such a graph runs in one piece.
///
/// # Errors
/// INVALID_ARGUMENT if a loop is malformed.
pub fn partition(
    graph: &Graph,
    places: &[usize],
    names: &[String],
    registry: &Registry,
) -> Result<Option<Vec<Partition>>> {
    let mut devices: Vec<usize> = graph.iter().map(|(id, _)| places[id.index()]).collect();
    devices.sort_unstable();
    devices.dedup();
    if devices.len() < 2 || !may_be_cut(graph, places)? {
        return Ok(None);
    }
    let cut = Cut {
        graph,
        places,
        names,
        registry,
        shapes: infer_shapes(graph, registry).unwrap_or_default(),
    };
    cut.run(&devices).map(Some)
}

/// Whether no edge between devices is in a loop or may carry a dead value.
fn may_be_cut(graph: &Graph, places: &[usize]) -> Result<bool> {
    let frames = loop_frames(graph)?;
    let crosses = |from: NodeId, to: NodeId| places[from.index()] != places[to.index()];
    let in_loop = graph.iter().any(|(id, node)| {
        node.predecessors()
            .any(|from| crosses(from, id) && frames.after(graph, from).is_some())
    });
    if in_loop {
        return Ok(false);
    }
    let consumers = crate::Consumers::new(graph);
    let mut stack: Vec<NodeId> = graph
        .iter()
        .filter(|(_, n)| n.class() == NodeClass::Switch)
        .map(|(id, _)| id)
        .collect();
    let mut seen = vec![false; graph.id_bound()];
    while let Some(id) = stack.pop() {
        if std::mem::replace(&mut seen[id.index()], true) {
            continue;
        }
        for &(reader, _) in consumers.of(id) {
            if crosses(id, reader) {
                return Ok(false);
            }
            stack.push(reader);
        }
    }
    Ok(true)
}

/// An edge between devices: a value, or only a control dependency.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum Carried {
    Value(Output),
    Done(NodeId),
}

struct Cut<'a> {
    graph: &'a Graph,
    places: &'a [usize],
    names: &'a [String],
    registry: &'a Registry,
    shapes: ShapeMap,
}

/// A partition being made.
struct Part {
    out: Partition,
    /// The rendezvous.
    table: NodeId,
    targets: Vec<NodeId>,
    /// Nodes to add after those of the graph; their ids are known before.
    extra: Vec<Node>,
    first_extra: usize,
    /// The `_Recv` of each thing that comes from elsewhere.
    received: FxHashMap<Carried, NodeId>,
}

impl Part {
    fn push(&mut self, node: Node) -> NodeId {
        self.extra.push(node);
        NodeId::new(self.first_extra + self.extra.len() - 1)
    }
}

impl Cut<'_> {
    fn run(&self, devices: &[usize]) -> Result<Vec<Partition>> {
        let mut parts = Vec::with_capacity(devices.len());
        for &device in devices {
            parts.push(self.begin(device)?);
        }
        let index_of = |id: NodeId| devices.binary_search(&self.places[id.index()]);
        let mut new_id = vec![NodeId::new(0); self.graph.id_bound()];
        let mut part_of = vec![0; self.graph.id_bound()];
        for (id, node) in self.graph.iter() {
            let at = index_of(id).map_err(|_| internal!("'{}' has no place", node.name))?;
            part_of[id.index()] = at;
            // The rendezvous is the first node.
            new_id[id.index()] = NodeId::new(parts[at].first_extra);
            parts[at].first_extra += 1;
        }
        for (id, node) in self.graph.iter() {
            let at = part_of[id.index()];
            let mut copy = node.clone();
            for input in &mut copy.inputs {
                let from = part_of[input.node.index()];
                *input = match from == at {
                    true => Output {
                        node: new_id[input.node.index()],
                        ..*input
                    },
                    false => {
                        let carried = Carried::Value(*input);
                        Output::new(self.carry(&mut parts, carried, from, at, &new_id)?, 0)
                    }
                };
            }
            for control in &mut copy.controls {
                let from = part_of[control.index()];
                *control = match from == at {
                    true => new_id[control.index()],
                    false => self.carry(&mut parts, Carried::Done(*control), from, at, &new_id)?,
                };
            }
            let part = &mut parts[at];
            let boundary = match node.class() {
                NodeClass::Arg => Some((&mut part.out.feeds, 1)),
                NodeClass::Retval => Some((&mut part.out.fetches, 0)),
                _ => None,
            };
            if let Some((list, first)) = boundary {
                let index = node.attrs.int("index")?;
                let own = (first + list.len()) as i64;
                list.push(usize::try_from(index).unwrap_or(usize::MAX));
                copy.attrs.set("index", AttrValue::Int(own));
            }
            part.out.graph.0.add(copy)?;
            if self.graph.targets().contains(&id) {
                part.targets.push(new_id[id.index()]);
            }
        }
        parts.into_iter().map(finish).collect()
    }

    fn begin(&self, device: usize) -> Result<Part> {
        let mut graph = Graph::new();
        graph.producer = self.graph.producer;
        graph.set_library(self.graph.library().clone());
        let name = self.graph.unique_name("_rendezvous");
        let table = add_rendezvous(&mut graph, name, self.registry)?;
        Ok(Part {
            out: Partition {
                device,
                graph: PlacedGraph(graph),
                feeds: Vec::new(),
                fetches: Vec::new(),
            },
            table,
            targets: Vec::new(),
            extra: Vec::new(),
            first_extra: 1,
            received: FxHashMap::default(),
        })
    }

    /// The `_Recv` in part `to` of what part `from` has.
    fn carry(
        &self,
        parts: &mut [Part],
        carried: Carried,
        from: usize,
        to: usize,
        new_id: &[NodeId],
    ) -> Result<NodeId> {
        if let Some(id) = parts[to].received.get(&carried) {
            return Ok(*id);
        }
        let (source, slot, dtype) = match carried {
            Carried::Value(o) => (o.node, o.slot as usize, self.graph.dtype(o)),
            Carried::Done(node) => (node, 0, Some(DType::Float)),
        };
        let name = &self.graph.node(source).name;
        let dtype = dtype.ok_or_else(|| internal!("'{name}' has no output {slot}"))?;
        let serial = parts[from].extra.len();
        let value = match carried {
            Carried::Value(_) => Output::new(new_id[source.index()], slot),
            Carried::Done(_) => {
                let nothing: LazyTensor = Tensor::vector::<f32>(&[])?.into();
                let attrs = Attrs::default()
                    .with("dtype", AttrValue::Type(dtype))
                    .with("value", AttrValue::Tensor(nothing));
                let name = self.graph.unique_name(&format!("{name}/_ctrl_{serial}"));
                let after = [new_id[source.index()]];
                let node = Node::new(self.registry, name, "Const", attrs, &[], &after)?;
                Output::new(parts[from].push(node), 0)
            }
        };
        let device = |part: usize| {
            let name = self.names.get(parts[part].out.device);
            AttrValue::Str(name.cloned().unwrap_or_default().into())
        };
        let key = format!("edge_{serial}_{name}");
        let attrs = Attrs::default()
            .with("tensor_name", AttrValue::Str(key.into()))
            .with("send_device", device(from))
            .with("send_device_incarnation", AttrValue::Int(1))
            .with("recv_device", device(to))
            .with("client_terminated", AttrValue::Bool(false));
        let made = |op: &str, attrs: Attrs, inputs: &[Output]| {
            let name = format!("{name}/{}_{serial}", op.to_lowercase());
            let name = self.graph.unique_name(&name);
            Node::new(self.registry, name, op, attrs, inputs, &[])
        };
        let of_type = attrs.clone().with("T", AttrValue::Type(dtype));
        let send = made(
            "_Send",
            of_type,
            &[Output::new(parts[from].table, 0), value],
        )?;
        let id = parts[from].push(send);
        parts[from].targets.push(id);
        let mut attrs = attrs.with("tensor_type", AttrValue::Type(dtype));
        if let Carried::Value(o) = carried {
            attrs.set("_shape", AttrValue::Shape(self.shapes.get(o)));
        }
        let recv = made("_Recv", attrs, &[Output::new(parts[to].table, 0)])?;
        let id = parts[to].push(recv);
        parts[to].received.insert(carried, id);
        Ok(id)
    }
}

fn finish(mut part: Part) -> Result<Partition> {
    let graph = &mut part.out.graph.0;
    for node in part.extra {
        graph.add(node)?;
    }
    graph.set_targets(part.targets);
    Ok(part.out)
}
