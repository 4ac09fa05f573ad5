//! Compiling a signature: prune, expand, freeze, place, partition, optimize.

use super::captures::{Captures, can_capture, can_replay};
use super::partitioned::{Part, Parts, Runner, Tail};
use super::{Engine, Session, registry};
use crate::callable::{Callable, Feed};
use crate::cluster::Cluster;
use crate::devices::StreamRunner;
use crate::freeze::{Freeze, Frozen, freeze};
use ferroflow_base::Result;
use ferroflow_compile::{
    ExpandedGraph, Jit, Lower, Options as CompileOptions, PART_ROUNDS, PassCtx, PassGroup,
    compile_in, expand, expand_for_placement, resolve_remote_calls,
};
use ferroflow_device::Reclaim;
use ferroflow_executor::Executor;
use ferroflow_graph::{
    ClientDevice, Graph, Node, NodeClass, NodeId, Partition, Patch, PlacedGraph, Placement,
    PrunedGraph, Signature, TensorConnection, args_to_send_recv, complete_start_times,
    export_graph, partition, partition_by_task, recvs_to_args, schedule_recvs, split_tail,
};
use ferroflow_program::OpSegment;
use rustc_hash::FxHashMap;
use std::sync::Arc;

/// The groups of passes that see the nodes with their devices, before the graph is cut.
const AFTER_PLACEMENT: [PassGroup; 2] = [PassGroup::PostPlacement, PassGroup::PostRewriteForExec];

/// The graphs that a signature runs.
pub(super) enum Placed {
    /// One device runs all.
    One(PlacedGraph),
    Parts(Vec<Partition>),
}

/// What runs the nodes of a part.
struct CompiledPart {
    executor: Arc<Executor>,
    /// What runs behind it, if it is split.
    tail: Option<Tail>,
    /// Whether the operations of `executor` may be captured.
    can_capture: bool,
    /// The signature's fetches, in the order of the results of both.
    fetches: Vec<usize>,
}

impl Session {
    pub(super) fn compile_callable(
        &self,
        signature: &Signature,
        connections: &[TensorConnection],
    ) -> Result<Callable> {
        let pruned = self.prune(signature, connections)?;
        if let Some(cluster) = &self.options.cluster
            && let Some(parts) = self.partition_by_task(&pruned, signature, &**cluster)?
        {
            let feeds = Feed::all(pruned.graph(), signature);
            let engine = self.distributed(parts, signature, cluster)?;
            let (frozen, signature) = (Frozen::default(), signature.clone());
            let callable = Callable::new(engine, frozen, signature, feeds);
            return Ok(callable.connected(connections.to_vec()));
        }
        let mut expanded = expand(pruned, registry())?;
        let feeds = Feed::all(expanded.graph(), signature);
        let frozen = self.freeze(&mut expanded, Freeze::Variables)?;
        let engine = self.engine(expanded)?;
        let connections = connections.to_vec();
        let callable = Callable::new(engine, frozen, signature.clone(), feeds);
        let callable = callable.connected(connections);
        let options = &self.options.compile;
        let makes_clusters = options.optimize && options.jit != Jit::Off;
        let has_one_device = self.options.devices.names.len() <= 1;
        Ok(match makes_clusters && has_one_device {
            true => callable.with_classes(),
            false => callable,
        })
    }

    /// The kernels of stateful nodes, which all plans share.
    pub(super) fn op_segment(&self) -> Result<Arc<OpSegment>> {
        let resources = &self.options.resources;
        resources.session_local("op segment", || Ok(OpSegment::default()))
    }

    /// The engine of a callable whose variables have changed: it reads them in every step.
    #[cold]
    pub(super) fn thaw<'a>(&self, callable: &'a Callable) -> Result<&'a Engine> {
        let _one = self.compiled.alone();
        if let Some(thawed) = callable.thawed.get() {
            return Ok(thawed);
        }
        let engine = self.engine(self.expanded(&callable.signature, &callable.connections)?)?;
        Ok(callable.thawed.get_or_init(|| engine))
    }

    /// The part of the graph that a signature needs.
    pub(super) fn prune(
        &self,
        signature: &Signature,
        connections: &[TensorConnection],
    ) -> Result<PrunedGraph> {
        let current = self.current();
        let pruned = current.state.prune(signature, connections, registry())?;
        drop(current);
        let pruned = pruned.try_map(|graph| self.run_added(PassGroup::PrePlacement, graph))?;
        match self.options.devices.names.len() {
            0 | 1 => Ok(pruned),
            _ => resolve_remote_calls(pruned, &self.options.devices, registry()),
        }
    }

    /// Runs the passes that the session's options add to a group.
    pub(crate) fn run_added(&self, group: PassGroup, graph: &mut Graph) -> Result<()> {
        let ctx = PassCtx::new(registry(), self.options.compile.lower);
        self.options.passes.run(group, graph, &ctx)
    }

    /// The part of the graph that a signature needs, with its functions expanded.
    pub(crate) fn expanded(
        &self,
        signature: &Signature,
        connections: &[TensorConnection],
    ) -> Result<ExpandedGraph> {
        expand(self.prune(signature, connections)?, registry())
    }

    /// Replaces variables that are only read, and tables if asked to, by their contents, if the session's options say so.
    pub(crate) fn freeze(&self, expanded: &mut ExpandedGraph, what: Freeze) -> Result<Frozen> {
        match self.options.freeze_variables && self.options.compile.optimize {
            true => freeze(expanded, registry(), &self.options.resources, what),
            false => Ok(Frozen::default()),
        }
    }

    fn engine(&self, expanded: ExpandedGraph) -> Result<Engine> {
        Ok(match self.place(expanded)? {
            Placed::One(graph) => {
                let graph = self.rewrite_part(graph)?;
                Engine::One(self.executor(graph, &self.options.compile)?)
            }
            Placed::Parts(mut parts) => {
                self.receive_first(&mut parts)?;
                let parts = parts.into_iter().map(|p| self.part(p));
                Engine::Parts(Arc::new(Parts {
                    parts: parts.collect::<Result<_>>()?,
                    cluster: None,
                    tasks: Vec::new(),
                    streams: self.options.stream_devices.clone(),
                }))
            }
        })
    }

    /// Rewrites the part of a device before it is optimized.
    pub(super) fn rewrite_part(&self, graph: PlacedGraph) -> Result<PlacedGraph> {
        graph.try_map(|graph| {
            if self.options.devices.schedules_recvs {
                schedule_recvs(graph, registry())?;
            }
            self.run_added(PassGroup::PostPartitioning, graph)
        })
    }

    /// A graph as one device runs it, whatever devices the session has.
    pub(crate) fn on_one_device(&self, expanded: ExpandedGraph) -> Result<PlacedGraph> {
        let expanded = match self.rewrites_placed() {
            true => expanded.try_map(|graph| self.rewrite_placed(graph).map(drop))?,
            false => expanded,
        };
        self.rewrite_part(expanded.on_one_device())
    }

    pub(super) fn executor(
        &self,
        graph: PlacedGraph,
        options: &CompileOptions,
    ) -> Result<Arc<Executor>> {
        let kept = self.op_segment()?;
        let plan = compile_in(graph, registry(), options, &kept)?;
        Ok(Executor::new(Arc::new(plan)))
    }

    /// Lets parts of devices that replay their steps receive all that others send before they run, where nothing that
    /// is sent can be dead.
    fn receive_first(&self, parts: &mut [Partition]) -> Result<()> {
        let is_switch = |n: &Node| matches!(n.class(), NodeClass::Switch | NodeClass::Enter);
        let branches = |p: &Partition| p.graph.graph().iter().any(|(_, n)| is_switch(n));
        if parts.iter().any(branches) {
            return Ok(());
        }
        for part in parts {
            let stream = self.stream_of(part.part);
            if stream.is_some_and(|stream| stream.captures()) {
                part.recvs = recvs_to_args(&mut part.graph, part.feeds.len(), registry())?;
            }
        }
        Ok(())
    }

    /// How the graph of one of several devices is compiled.
    pub(super) fn part_options(&self) -> CompileOptions {
        CompileOptions {
            rounds: PART_ROUNDS,
            ..self.options.compile.clone()
        }
    }

    /// The executor of the graph of one of several devices, and of its stream, if it has one.
    fn part_executor(
        &self,
        graph: PlacedGraph,
        device: usize,
        stream: Option<&StreamRunner>,
    ) -> Result<Arc<Executor>> {
        let options = self.part_options();
        let name = self.options.devices.names.get(device);
        let options = match (stream, name) {
            (Some(stream), Some(name)) => stream.compile_options(options, name),
            _ => options,
        };
        self.executor(self.rewrite_part(graph)?, &options)
    }

    fn part(&self, mut partition: Partition) -> Result<Part> {
        let (device, feeds) = (partition.part, std::mem::take(&mut partition.feeds));
        let recvs = std::mem::take(&mut partition.recvs);
        let stream = self.stream_of(device);
        let compiled = self.compile_part(partition, stream.as_deref())?;
        let captures: Option<Arc<Captures>> = compiled.can_capture.then(Arc::default);
        if let (Some(captures), Some(stream)) = (&captures, &stream) {
            let reclaimable: Arc<dyn Reclaim> = captures.clone();
            stream
                .memory()
                .add_reclaimable(Arc::downgrade(&reclaimable));
        }
        Ok(Part {
            runner: Runner::Local {
                captures,
                executor: compiled.executor,
                device,
                stream,
                tail: compiled.tail,
            },
            feeds,
            recvs,
            fetches: compiled.fetches,
        })
    }

    fn compile_part(
        &self,
        partition: Partition,
        stream: Option<&StreamRunner>,
    ) -> Result<CompiledPart> {
        let captures = stream.is_some_and(StreamRunner::captures);
        if captures && let Some(split) = self.split_part(&partition, stream)? {
            return Ok(split);
        }
        let captures = captures && can_replay(&partition.graph);
        let executor = self.part_executor(partition.graph, partition.part, stream)?;
        Ok(CompiledPart {
            can_capture: captures && can_capture(executor.plan()),
            executor,
            tail: None,
            fetches: partition.fetches,
        })
    }

    /// Splits what depends on shapes that only a step knows off a part, if the rest can be captured then. Nothing in them waits
    /// for others.
    fn split_part(
        &self,
        partition: &Partition,
        stream: Option<&StreamRunner>,
    ) -> Result<Option<CompiledPart>> {
        let split = split_tail(&partition.graph, partition.fetches.len(), registry())?;
        let Some(split) = split.filter(|s| can_replay(&s.main)) else {
            return Ok(None);
        };
        let device = partition.part;
        let executor = self.part_executor(split.main, device, stream)?;
        let tail = self.part_executor(split.tail, device, stream)?;
        if ![&executor, &tail].iter().all(|e| can_capture(e.plan())) {
            return Ok(None);
        }
        let fetches = partition.fetches.iter().copied().zip(split.is_of_tail);
        let (of_tail, own): (Vec<_>, Vec<_>) = fetches.partition(|(_, of_tail)| *of_tail);
        let n_results = own.len();
        let fetches = own.into_iter().chain(of_tail).map(|(fetch, _)| fetch);
        Ok(Some(CompiledPart {
            executor,
            tail: Some(Tail {
                executor: tail,
                n_results,
            }),
            can_capture: true,
            fetches: fetches.collect(),
        }))
    }

    /// The device of each node, if the session has devices.
    ///
    /// # Errors
    /// INVALID_ARGUMENT if a node asks for a device that the session does not have.
    pub(super) fn place_nodes(&self, graph: &Graph) -> Result<Option<Placement>> {
        let devices = &self.options.devices;
        match (devices.names.is_empty(), &self.options.costs) {
            (true, _) => Ok(None),
            (false, None) => devices.place_by_rules(graph).map(Some),
            (false, Some(costs)) => costs.place(graph, devices).map(Some),
        }
    }

    /// Whether the session's options add passes behind the placement.
    fn rewrites_placed(&self) -> bool {
        let added = |group: &PassGroup| !self.options.passes.added(*group).is_empty();
        AFTER_PLACEMENT.iter().any(added)
    }

    /// Places the nodes of a graph and runs the passes that follow.
    fn rewrite_placed(&self, graph: &mut Graph) -> Result<Option<Vec<usize>>> {
        let placed = self.place_nodes(graph)?.map(|placed| placed.devices);
        if !self.rewrites_placed() {
            return Ok(placed);
        }
        if let Some(placed) = placed {
            let mut patch = Patch::new();
            let names = &self.options.devices.names;
            let nodes: Vec<NodeId> = graph.iter().map(|(id, _)| id).collect();
            for id in nodes {
                let device = placed.get(id.index()).and_then(|d| names.get(*d));
                patch.edit(graph, id).device = device.cloned().unwrap_or_default();
            }
            patch.apply(graph);
        }
        for group in AFTER_PLACEMENT {
            self.run_added(group, graph)?;
        }
        // Nodes that were placed ask for their devices now.
        Ok(self.place_nodes(graph)?.map(|placed| placed.devices))
    }

    /// Which functional loops and conditionals become those of frames: all where GPUs are, whose nodes are those of frames.
    pub(super) fn lowered(&self) -> Lower {
        match self.options.stream_devices.has_gpus() {
            true => Lower::Always,
            false => self.options.compile.lower,
        }
    }

    /// Places a graph: one part for each device that runs something, if they are several.
    pub(super) fn place(&self, mut expanded: ExpandedGraph) -> Result<Placed> {
        if self.options.devices.names.len() > 1 {
            expanded.lower(self.lowered(), registry())?;
        }
        let mut places = None;
        let expanded = expanded.try_map(|graph| {
            places = self.rewrite_placed(graph)?;
            Ok(())
        })?;
        self.cut(expanded, places)
    }

    /// Cuts a graph whose nodes have places.
    fn cut(&self, expanded: ExpandedGraph, places: Option<Vec<usize>>) -> Result<Placed> {
        let graph = expanded.graph();
        // The device of all nodes, if they are on one.
        let first = graph.iter().next().map(|(id, _)| id.index());
        let device = places
            .as_ref()
            .and_then(|places| places.get(first?).copied());
        let parts = match places {
            Some(places) => partition(graph, &places, &self.options.devices, registry())?,
            None => None,
        };
        if let Some(parts) = parts {
            return Ok(Placed::Parts(parts));
        }
        Ok(match device.filter(|d| self.stream_of(*d).is_some()) {
            Some(part) => Placed::Parts(vec![Partition {
                part,
                feeds: (0..count(graph, NodeClass::Arg)).collect(),
                recvs: Vec::new(),
                fetches: (0..count(graph, NodeClass::Retval)).collect(),
                graph: expanded.on_one_device(),
            }]),
            None => Placed::One(expanded.on_one_device()),
        })
    }

    /// The stream of a device, by position, if its nodes run on one.
    fn stream_of(&self, device: usize) -> Option<Arc<StreamRunner>> {
        let name = self.options.devices.names.get(device)?;
        self.options.stream_devices.runner(name).cloned()
    }

    /// The part of each task that has nodes, unless this task has all of them.
    pub(super) fn partition_by_task(
        &self,
        pruned: &PrunedGraph,
        signature: &Signature,
        cluster: &dyn Cluster,
    ) -> Result<Option<Vec<Partition<PrunedGraph>>>> {
        let devices = &self.options.devices;
        let lower = self.lowered();
        let mut places = Vec::new();
        let pruned = expand_for_placement(pruned.clone(), lower, registry())?;
        let pruned = &pruned.try_map(|graph| {
            if self.options.fetches_follow_producers {
                follow_producers(graph);
            }
            places = self.rewrite_placed(graph)?.unwrap_or_default();
            Ok(())
        })?;
        let task_of = |device| cluster.task_of(device);
        let parts = partition_by_task(pruned, &places, devices, &task_of, registry())?;
        if parts.is_some() {
            return Ok(parts);
        }
        // One task has all nodes, maybe another one.
        let first = pruned.graph().iter().next();
        let task = first.map(|(id, _)| task_of(places[id.index()]));
        Ok(task.filter(|task| *task != cluster.own_task()).map(|part| {
            vec![Partition {
                part,
                feeds: (0..signature.feeds.len()).collect(),
                recvs: Vec::new(),
                fetches: (0..signature.fetches.len()).collect(),
                graph: pruned.clone().with_devices(&places, devices),
            }]
        }))
    }

    /// Compiles the part of this task, and registers the others with theirs.
    pub(super) fn distributed(
        &self,
        partitions: Vec<Partition<PrunedGraph>>,
        signature: &Signature,
        cluster: &Arc<dyn Cluster>,
    ) -> Result<Engine> {
        let own_task = cluster.own_task();
        let tasks = partitions.iter().map(|p| p.part);
        let tasks = tasks.filter(|task| *task != own_task).collect();
        let (own, others): (Vec<_>, Vec<_>) =
            partitions.into_iter().partition(|p| p.part == own_task);
        let mut parts = Vec::with_capacity(own.len() + others.len());
        for partition in own {
            self.add_own(partition, &**cluster, &mut parts)?;
        }
        parts.extend(self.register(others, signature, &**cluster)?);
        Ok(Engine::Parts(Arc::new(Parts {
            parts,
            cluster: Some(cluster.clone()),
            tasks,
            streams: self.options.stream_devices.clone(),
        })))
    }

    /// Compiles the part of this task, one for each of its devices.
    fn add_own(
        &self,
        partition: Partition<PrunedGraph>,
        cluster: &dyn Cluster,
        parts: &mut Vec<Part>,
    ) -> Result<()> {
        let own_device = (0..self.options.devices.names.len())
            .find(|d| cluster.task_of(*d) == partition.part)
            .unwrap_or(0);
        let whole = |own: Vec<usize>, of: &[usize]| own.into_iter().map(|i| of[i]).collect();
        let expanded = expand(partition.graph, registry())?;
        // Its nodes name devices of this task.
        let places = self.options.devices.place_nodes(expanded.graph())?;
        match self.cut(expanded, Some(places))? {
            Placed::One(graph) => parts.push(Part {
                runner: Runner::Local {
                    executor: self.part_executor(graph, own_device, None)?,
                    device: own_device,
                    stream: None,
                    captures: None,
                    tail: None,
                },
                feeds: partition.feeds,
                recvs: Vec::new(),
                fetches: partition.fetches,
            }),
            Placed::Parts(own) => {
                for device in own {
                    let part = self.part(device)?;
                    parts.push(Part {
                        runner: part.runner,
                        feeds: whole(part.feeds, &partition.feeds),
                        recvs: Vec::new(),
                        fetches: whole(part.fetches, &partition.fetches),
                    });
                }
            }
        }
        Ok(())
    }

    /// Registers the parts of other tasks.
    fn register(
        &self,
        partitions: Vec<Partition<PrunedGraph>>,
        signature: &Signature,
        cluster: &dyn Cluster,
    ) -> Result<Vec<Part>> {
        let devices = &self.options.devices;
        let mut first_of_task = FxHashMap::default();
        for device in 0..devices.names.len() {
            first_of_task
                .entry(cluster.task_of(device))
                .or_insert(device);
        }
        let names = |of: &[usize], all: &[String]| -> Vec<String> {
            of.iter().map(|i| all[*i].clone()).collect()
        };
        let (mut graphs, mut ends) = (Vec::new(), Vec::new());
        for partition in partitions {
            let device = first_of_task.get(&partition.part).copied().unwrap_or(0);
            let client = ClientDevice {
                name: devices.names[device].clone(),
                incarnation: devices.incarnation(device),
            };
            let feeds = names(&partition.feeds, &signature.feeds);
            let fetches = names(&partition.fetches, &signature.fetches);
            let part = partition.graph;
            let produced = fetch_devices(part.graph(), &client.name);
            let mut graph = args_to_send_recv(part, &feeds, &fetches, &client, registry())?;
            if devices.schedules_recvs {
                graph = graph.try_map(complete_start_times)?;
            }
            let mut def = export_graph(graph.graph())?;
            for node in def.node.iter_mut().filter(|n| n.device.is_empty()) {
                node.device.clone_from(&client.name);
            }
            graphs.push((partition.part, def));
            let keys = |names: Vec<String>| names.iter().map(|name| client.key(name)).collect();
            let keys: (Vec<String>, Vec<String>, _) = (keys(feeds), keys(fetches), produced);
            ends.push((keys, partition.feeds, partition.fetches));
        }
        let registered = cluster.register(graphs)?.into_iter().zip(ends);
        let parts = registered.map(|(graph, (keys, feeds, fetches))| Part {
            runner: Runner::Remote {
                graph,
                feeds: keys.0,
                fetches: keys.1,
                devices: keys.2,
            },
            feeds,
            recvs: Vec::new(),
            fetches,
        });
        Ok(parts.collect())
    }
}

/// Makes fetches read nodes that name their device, if there are only Identity nodes without one between them.
fn follow_producers(graph: &mut Graph) {
    let mut patch = Patch::new();
    let fetches = graph
        .iter()
        .filter(|(_, node)| node.class() == NodeClass::Retval);
    for (id, fetch) in fetches {
        let mut at = fetch.inputs.first().copied();
        while let Some(output) = at {
            let node = graph.node(output.node);
            if !node.device.is_empty() {
                patch.edit(graph, id).inputs[0] = output;
                break;
            }
            let is_identity = node.class() == NodeClass::Identity;
            at = node.inputs.get(output.slot as usize).copied();
            at = at.filter(|_| is_identity);
        }
    }
    patch.apply(graph);
}

/// The devices of the nodes that compute the fetches of another task's part, in order; `default` where a node names none.
fn fetch_devices(part: &Graph, default: &str) -> Vec<String> {
    let fetches = part
        .iter()
        .filter(|(_, node)| node.class() == NodeClass::Retval);
    let producers = fetches.filter_map(|(_, node)| node.inputs.first());
    let devices = producers.map(|input| match &*part.node(input.node).device {
        "" => default.to_string(),
        device => device.to_string(),
    });
    devices.collect()
}

fn count(graph: &Graph, class: NodeClass) -> usize {
    graph
        .iter()
        .filter(|(_, node)| node.class() == class)
        .count()
}
