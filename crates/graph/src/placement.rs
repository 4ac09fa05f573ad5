//! Placement of nodes on devices (TensorFlow: `core/common_runtime/placer.cc`, `colocation_graph.cc`).

use crate::device::colocated_with;
use crate::{Consumers, DeviceIndex, DeviceSet, DeviceSpec, Graph, Node, NodeId, Output};
use ferroflow_base::{Result, Status, invalid_argument};
use ferroflow_opdef::NodeClass;
use ferroflow_tensor::DType;
use smallvec::SmallVec;
use std::fmt;

/// The device of each node of a graph, with the reason; the lists are indexed by [`NodeId`].
#[derive(Clone, Debug, Default)]
pub struct Placement {
    /// Devices, by position.
    pub devices: Vec<usize>,
    /// What decided.
    pub reasons: Vec<PlacementReason>,
    /// When each device has computed its nodes, in nanoseconds, if costs decided.
    pub finish: Vec<u64>,
}

/// Why a node is on its device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PlacementReason {
    /// It requests the device.
    Requested,
    /// It is colocated with this node: by request, or since both use a resource or a reference.
    With(NodeId),
    /// The nodes that read it have that device.
    Readers,
    /// The value that is fetched has that device.
    Value,
    /// Nothing asks for another device than the first.
    First,
    /// It is the first device with kernels for it and for what is colocated with it.
    Kernel,
    /// An earlier graph has its state there.
    Kept,
    /// It finishes there first.
    Cost,
}

impl PlacementReason {
    /// The reason in words.
    pub fn text(self, graph: &Graph) -> String {
        match self {
            PlacementReason::With(node) => match graph.get(node) {
                Some(node) => format!("with '{}'", node.name),
                None => "colocated".to_string(),
            },
            other => other.to_string(),
        }
    }
}

impl fmt::Display for PlacementReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            PlacementReason::Requested => "requested",
            PlacementReason::With(_) => "colocated",
            PlacementReason::Readers => "with its readers",
            PlacementReason::Value => "with its value",
            PlacementReason::First => "first device",
            PlacementReason::Kernel => "first device with a kernel",
            PlacementReason::Kept => "its state was placed there",
            PlacementReason::Cost => "finishes there first",
        })
    }
}

impl DeviceSet {
    /// The device, by position, of each node (indexed by [`NodeId`]).
    ///
    /// # Errors
    /// As [`DeviceSet::place_by_rules`].
    pub fn place_nodes(&self, graph: &Graph) -> Result<Vec<usize>> {
        self.place_by_rules(graph).map(|placed| placed.devices)
    }

    /// Places each node as TensorFlow does.
    ///
    /// A node is on the device it requests; one without a request is with those it is colocated with,
    /// else on the first device, but a constant or a feed is on the device of its only readers and a
    /// fetch on that of its value. Where the device has no kernel for a node, one that has it is used instead. Users of a resource or a reference are with it, on a device that all
    /// of them accept, or else on that which the first one requests.
    ///
    /// # Errors
    /// INVALID_ARGUMENT if no device matches what a node requests, or that has no kernel for it.
    pub fn place_by_rules(&self, graph: &Graph) -> Result<Placement> {
        let mut groups = Groups::of(graph);
        let asked = self.requests(graph, &mut groups)?;
        let kernels = KernelDevices::of(self, graph, &mut groups);
        let mut placed = Placement {
            devices: Vec::with_capacity(graph.id_bound()),
            reasons: Vec::with_capacity(graph.id_bound()),
            finish: Vec::new(),
        };
        for i in 0..graph.id_bound() {
            let id = NodeId::new(i);
            let root = groups.root(id);
            let asked = asked[root].as_ref();
            let (device, reason) = match asked {
                Some(asked) if asked.by != id => (asked.device, PlacementReason::With(asked.by)),
                Some(asked) => (asked.device, PlacementReason::Requested),
                None => (0, PlacementReason::First),
            };
            let found = kernels.device(self, root, device, asked.is_some());
            let found = found.ok_or_else(|| kernels.error(self, graph, id, device))?;
            placed.devices.push(found);
            placed.reasons.push(match found == device {
                true => reason,
                false => PlacementReason::Kernel,
            });
        }
        let consumers = Consumers::new(graph);
        for (id, node) in graph.iter() {
            if asked[groups.root(id)].is_none() {
                placed.move_boundary(node, id, &consumers);
            }
        }
        Ok(placed)
    }

    /// What the nodes of each group request together, by the group's root.
    pub(crate) fn requests<'a>(
        &self,
        graph: &'a Graph,
        groups: &mut Groups,
    ) -> Result<Vec<Option<Asked<'a>>>> {
        let mut asked: Vec<Option<Asked>> = vec![None; graph.id_bound()];
        let mut index = self.index();
        for (id, node) in graph.iter().filter(|(_, n)| !n.device.is_empty()) {
            let device = index.place(&node.name, &node.device)?;
            match &mut asked[groups.root(id)] {
                None => {
                    asked[groups.root(id)] = Some(Asked {
                        device,
                        by: id,
                        name: &node.device,
                        others: Vec::new(),
                    });
                }
                Some(group) => {
                    if group.device != device && group.is_new(&node.device) {
                        group.narrow(&index, &node.device)?;
                    }
                }
            }
        }
        Ok(asked)
    }
}

impl Placement {
    /// Moves a node without request that only brings or takes a value to where that is used.
    pub(crate) fn move_boundary(&mut self, node: &Node, id: NodeId, consumers: &Consumers) {
        if is_generator(node) {
            let mut devices = consumers
                .of(id)
                .iter()
                .map(|(c, _)| self.devices[c.index()]);
            if let Some(first) = devices.next()
                && devices.all(|d| d == first)
            {
                self.devices[id.index()] = first;
                self.reasons[id.index()] = PlacementReason::Readers;
            }
        } else if node.class() == NodeClass::Retval
            && let Some(from) = node.inputs.first()
        {
            self.devices[id.index()] = self.devices[from.node.index()];
            self.reasons[id.index()] = PlacementReason::Value;
        }
    }
}

/// The types of devices that have kernels for all nodes of a group.
struct KernelDevices {
    /// The type of each device, by position; empty if all have all kernels.
    types: Vec<usize>,
    /// The types that lack a kernel, by the group's root.
    lacking: Vec<SmallVec<[usize; 2]>>,
}

impl KernelDevices {
    fn of(devices: &DeviceSet, graph: &Graph, groups: &mut Groups) -> KernelDevices {
        let mut found = KernelDevices {
            types: Vec::new(),
            lacking: Vec::new(),
        };
        if devices.kernels.are_everywhere() {
            return found;
        }
        let mut names: Vec<String> = Vec::new();
        for name in &devices.names {
            let spec = DeviceSpec::parse(name).ok();
            let kind = spec.and_then(|s| s.kind().map(str::to_string));
            let kind = kind.unwrap_or_else(|| "CPU".to_string());
            let known = names.iter().position(|n| *n == kind);
            found.types.push(known.unwrap_or(names.len()));
            if known.is_none() {
                names.push(kind);
            }
        }
        found.lacking.resize(graph.id_bound(), SmallVec::new());
        for (id, node) in graph.iter() {
            let lacking = &mut found.lacking[groups.root(id)];
            for (kind, name) in names.iter().enumerate() {
                if !lacking.contains(&kind) && !devices.kernels.has(name, node) {
                    lacking.push(kind);
                }
            }
        }
        found
    }

    /// The device of a group that would be on `device`; `None` if that was requested, has no kernel, and placement is
    /// not soft.
    fn device(&self, all: &DeviceSet, root: usize, device: usize, asked: bool) -> Option<usize> {
        if self.types.is_empty() {
            return Some(device);
        }
        let has = |d: usize| !self.lacking[root].contains(&self.types[d]);
        if has(device) {
            return Some(device);
        }
        if asked && !all.soft {
            return None;
        }
        let task = |d: usize| all.names[d].rsplit_once("/device:").map(|(task, _)| task);
        let mut others = (0..all.names.len()).filter(|d| has(*d));
        let near = others.clone().find(|d| task(*d) == task(device));
        // Loading a node without any kernel is an error.
        Some(near.or_else(|| others.next()).unwrap_or(device))
    }

    #[cold]
    fn error(&self, devices: &DeviceSet, graph: &Graph, id: NodeId, device: usize) -> Status {
        let name = graph.get(id).map_or("", |node| &node.name);
        let wanted = &devices.names[device];
        let kind = DeviceSpec::parse(wanted).ok();
        let kind = kind.as_ref().and_then(|s| s.kind()).unwrap_or("CPU");
        invalid_argument!(
            "Cannot assign a device for operation {name}: Could not satisfy explicit device specification '{wanted}' \
             because no supported kernel for {kind} devices is available.\n\t [[{{{{node {name}}}}}]]"
        )
    }
}

/// What a group requests.
#[derive(Clone)]
pub(crate) struct Asked<'a> {
    pub(crate) device: usize,
    /// The node that requests it.
    pub(crate) by: NodeId,
    name: &'a str,
    /// Further requests of the group.
    others: Vec<&'a str>,
}

impl<'a> Asked<'a> {
    fn is_new(&self, name: &str) -> bool {
        self.name != name && !self.others.contains(&name)
    }

    /// Adds a request: moves the group to the first device that all requests match, if there is one.
    fn narrow(&mut self, devices: &DeviceIndex, name: &'a str) -> Result<()> {
        self.others.push(name);
        let all = std::iter::once(self.name).chain(self.others.iter().copied());
        let all: Vec<DeviceSpec> = all.map(DeviceSpec::parse).collect::<Result<_>>()?;
        match devices.first(&all.iter().collect::<Vec<_>>()) {
            Some(device) => self.device = device,
            // The first one decides; further requests are measured against it alone.
            None => drop(self.others.pop()),
        }
        Ok(())
    }
}

/// Whether a node passes several values on, as what is left of a call or a loop does. They may be of
/// different devices.
fn forwards_several(node: &Node) -> bool {
    node.class() == NodeClass::Identity && node.inputs.len() > 1
}

/// Whether an op does not use the resources among its inputs itself, but passes them to a function whose nodes are with
/// them (TensorFlow: `REGISTER_INPUT_COLOCATION_EXEMPTION`).
fn passes_resources_on(op: &str) -> bool {
    const OPS: &[&str] = &[
        "DeleteMultiDeviceIterator",
        "ExperimentalGroupByReducerDataset",
        "ExperimentalGroupByWindowDataset",
        "ExperimentalMapAndBatchDataset",
        "ExperimentalParallelInterleaveDataset",
        "ExperimentalScanDataset",
        "ExperimentalTakeWhileDataset",
        "FilterDataset",
        "FlatMapDataset",
        "GeneratorDataset",
        "GroupByReducerDataset",
        "GroupByWindowDataset",
        "IdentityN",
        "InterleaveDataset",
        "LegacyParallelInterleaveDatasetV2",
        "MapAndBatchDataset",
        "MapDataset",
        "ParallelFilterDataset",
        "ParallelInterleaveDataset",
        "ParallelInterleaveDatasetV2",
        "ParallelInterleaveDatasetV3",
        "ParallelInterleaveDatasetV4",
        "ParallelMapDataset",
        "ParallelMapDatasetV2",
        "PartitionedCall",
        "ReduceDataset",
        "ScanDataset",
        "StatefulPartitionedCall",
        "TakeWhileDataset",
    ];
    OPS.binary_search(&op).is_ok()
}

/// The output that nodes which pass several on have a value from.
fn forwarded(graph: &Graph, mut output: Output) -> Output {
    while let Some(node) = graph.get(output.node).filter(|n| forwards_several(n)) {
        match node.inputs.get(output.slot as usize) {
            Some(input) => output = *input,
            None => break,
        }
    }
    output
}

/// Whether a node produces a value that may as well be produced where it is read.
pub(crate) fn is_generator(node: &Node) -> bool {
    node.class() == NodeClass::Arg
        || (node.inputs.is_empty() && node.controls.is_empty() && !node.def.flags.stateful)
}

/// Nodes that are on one device, as a forest.
pub(crate) struct Groups(Vec<usize>);

impl Groups {
    /// Groups by resource, reference and request.
    pub(crate) fn of(graph: &Graph) -> Self {
        let mut groups = Groups((0..graph.id_bound()).collect());
        for (id, node) in graph.iter() {
            let references = node.def.input_references(&node.attrs).unwrap_or_default();
            for (i, input) in node.inputs.iter().enumerate() {
                let is_resource = graph.dtype(*input) == Some(DType::Resource)
                    && !forwards_several(node)
                    && !passes_resources_on(&node.def.name);
                if is_resource || references.get(i) == Some(&true) {
                    groups.join(forwarded(graph, *input).node, id);
                }
            }
            for other in colocated_with(node).filter_map(|name| graph.find(name)) {
                groups.join(other, id);
            }
        }
        groups
    }

    pub(crate) fn root(&mut self, node: NodeId) -> usize {
        let mut at = node.index();
        while self.0[at] != at {
            self.0[at] = self.0[self.0[at]];
            at = self.0[at];
        }
        at
    }

    pub(crate) fn join(&mut self, a: NodeId, b: NodeId) {
        let (a, b) = (self.root(a), self.root(b));
        self.0[a.max(b)] = a.min(b);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::DeviceKernels;
    use crate::testing::graph;

    /// Places nodes that request what follows `@` in their line on the tasks `a:0`, `a:1`, `b:0`.
    fn check(text: &str, expect: &str) {
        let (nodes, devices): (Vec<&str>, Vec<&str>) = text
            .lines()
            .map(|line| line.split_once(" @").unwrap_or((line, "")))
            .unzip();
        let mut graph = graph(&nodes.join("\n")).expect("valid");
        for (i, device) in devices.iter().enumerate() {
            let node = graph.node_mut(NodeId::new(i)).expect("one a line");
            node.device = device.trim().to_string();
        }
        let devices = DeviceSet {
            names: [
                "a/replica:0/task:0",
                "a/replica:0/task:1",
                "b/replica:0/task:0",
            ]
            .map(|task| format!("/job:{task}/device:CPU:0"))
            .into(),
            ..Default::default()
        };
        let placed = devices.place_by_rules(&graph).expect("can be placed");
        let nodes = graph.iter().map(|(id, node)| {
            let reason = placed.reasons[id.index()].text(&graph);
            format!("{}: {} {reason}", node.name, placed.devices[id.index()])
        });
        assert_eq!(nodes.collect::<Vec<_>>().join("; "), expect, "{text}");
    }

    /// A task with a GPU that has kernels for Neg and what the engine does, then a CPU.
    fn with_gpu(soft: bool) -> DeviceSet {
        let names = ["GPU:0", "CPU:0"].map(|d| format!("/job:a/replica:0/task:0/device:{d}"));
        DeviceSet {
            names: names.into(),
            soft,
            kernels: DeviceKernels::new(|kind, node| {
                kind == "CPU" || node.op() == "Neg" || node.class() != NodeClass::Other
            }),
            ..Default::default()
        }
    }

    #[test]
    fn devices_need_kernels() {
        let text = "x = Placeholder\ny = Neg(x)\nz = Round(y)\nw = Neg(z)";
        let mut graph = graph(text).expect("valid");
        let placed = with_gpu(true)
            .place_by_rules(&graph)
            .expect("can be placed");
        let places = graph.iter().map(|(id, _)| placed.devices[id.index()]);
        assert_eq!(places.collect::<Vec<_>>(), [0, 0, 1, 0]);
        assert_eq!(placed.reasons[2].to_string(), "first device with a kernel");
        graph.node_mut(NodeId::new(2)).expect("there").device = "/gpu:0".to_string();
        let soft = with_gpu(true).place_by_rules(&graph).expect("soft");
        assert_eq!(soft.devices, [0, 0, 1, 0]);
        let error = with_gpu(false)
            .place_by_rules(&graph)
            .expect_err("no kernel");
        assert!(
            error
                .message()
                .contains("because no supported kernel for GPU devices is available"),
            "{error}"
        );
    }

    #[test]
    fn reasons() {
        check(
            "x = Placeholder\ny = Neg(x) @/job:b\nz = Neg(y)",
            "x: 2 with its readers; y: 2 requested; z: 0 first device",
        );
    }

    #[test]
    fn references_are_with_their_variable() {
        check(
            "v = VariableV2 @/job:b\nx = Placeholder\nset = Assign(v, x) @/job:a\nget = Identity(v)",
            "v: 2 requested; x: 2 with its readers; set: 2 with 'v'; get: 0 first device",
        );
    }

    #[test]
    fn datasets_are_not_with_what_their_functions_use() {
        check(
            "v = VarHandleOp @/job:b\nr = ReadVariableOp(v)\nd = RangeDataset\nf = FilterDataset(d, v)\n\
             m = ParallelMapDatasetV2(f, v)",
            "v: 2 requested; r: 2 with 'v'; d: 0 first device; f: 0 first device; m: 0 first device",
        );
    }

    #[test]
    fn requests_of_a_group_are_merged() {
        check(
            "v = VariableV2 @/job:a\nx = Placeholder @/job:b\nset = Assign(v, x) @/task:1/cpu:0",
            "v: 1 requested; x: 2 requested; set: 1 with 'v'",
        );
    }
}
