//! [`ClientSession`]: the session of a client that extends its graph as it goes.

use crate::RunOptions;
use crate::callable::{Callable, Compiled, Feed};
use crate::engine::{Engine, Part};
use crate::freeze::Frozen;
use crate::partial_run::PartialRun;
use crate::session::registry;
use ferroflow_base::{
    Result, Status, aborted, cancelled, failed_precondition, invalid_argument, resource_exhausted,
};
use ferroflow_compile::{Options, compile, expand, optimize};
use ferroflow_executor::{Executor, RunArgs};
use ferroflow_graph::{
    ARG, DeviceSet, Graph, GraphExecutionState, Node, Partition, PlacedGraph, PrunedGraph,
    Signature, TensorConnection, args_to_send_recv, export_graph, partition,
};
use ferroflow_model::proto::{self, GraphDef};
use ferroflow_opdef::Resources;
use ferroflow_sync::{CancelToken, Pool};
use ferroflow_tensor::{ResourceHandle, Shape, Tensor};
use rustc_hash::FxHashMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::Instant;

/// What sessions of one process share, and how they compile.
#[derive(Clone)]
pub struct ClientOptions {
    /// The threads that compute.
    pub pool: Arc<Pool>,
    /// Variables, queues and tables; sessions that share them see each other's.
    pub resources: Arc<Resources>,
    /// Which compile passes run.
    pub compile: Options,
    /// Where nodes may be; without names, whatever they ask for.
    pub devices: DeviceSet,
    /// Whether only the nodes that run need a device, not the whole graph.
    pub place_pruned_graph: bool,
}

impl Default for ClientOptions {
    fn default() -> Self {
        ClientOptions {
            pool: Arc::new(Pool::new(Pool::available_threads())),
            resources: Arc::default(),
            compile: Options::all(),
            devices: DeviceSet::default(),
            place_pruned_graph: true,
        }
    }
}

/// A graph that grows, run in parts: what a TensorFlow client calls a session.
///
/// Every method may be called from many threads at once.
///
/// ```
/// use ferroflow_runtime::{ClientOptions, ClientSession, RunOptions, Signature, Tensor};
/// let def = |text: &str| ferroflow_model::graph_from_text(text).unwrap();
/// let x = "node { name: 'x' op: 'Placeholder' attr { key: 'dtype' value { type: DT_FLOAT } } }";
/// let y = "node { name: 'y' op: 'Neg' input: 'x' attr { key: 'T' value { type: DT_FLOAT } } }";
/// let session = ClientSession::new(def(x), ClientOptions::default()).unwrap();
/// assert_eq!(session.extend(def(y), 0).unwrap(), 1);
/// let signature = Signature { feeds: vec!["x:0".into()], fetches: vec!["y:0".into()], targets: vec![] };
/// let y = session.run(&signature, vec![Tensor::scalar(2.0f32)], &RunOptions::default()).unwrap();
/// assert_eq!(y[0].to_scalar::<f32>().unwrap(), -2.0);
/// ```
pub struct ClientSession {
    graph: RwLock<Versioned>,
    options: ClientOptions,
    compiled: Compiled,
    partial: Mutex<PartialRuns>,
    running: Mutex<Running>,
    nobody_runs: Condvar,
}

#[derive(Default)]
struct Versioned {
    state: GraphExecutionState,
    version: i64,
}

/// Steps that were set up and have feeds or fetches left.
#[derive(Default)]
struct PartialRuns {
    next_id: u64,
    runs: FxHashMap<String, Arc<PartialRun>>,
}

/// The steps under way; each is cancelled when the session is closed.
#[derive(Default)]
struct Running {
    closed: Option<Status>,
    next_id: u64,
    steps: FxHashMap<u64, CancelToken>,
}

/// Whether a node only produces a value.
fn is_generator(node: &Node) -> bool {
    let is_placed = matches!(node.op(), "NoOp" | "Variable" | "VariableV2");
    !is_placed && node.inputs.is_empty()
}

/// Looks for the devices of new nodes, where all nodes must have one.
fn check_places(
    state: &GraphExecutionState,
    nodes: &[Node],
    options: &ClientOptions,
) -> Result<()> {
    let devices = &options.devices;
    if devices.names.is_empty() || options.place_pruned_graph {
        return Ok(());
    }
    let asking = nodes.iter().filter(|n| !n.device.is_empty());
    let (generators, others): (Vec<_>, Vec<_>) = asking.partition(|n| is_generator(n));
    // As in TensorFlow: a node that only produces a value goes where it is read, and comes last.
    for node in others.into_iter().chain(generators) {
        devices.place(&node.name, &node.device)?;
    }
    let new: FxHashMap<&str, &Node> = nodes.iter().map(|n| (n.name.as_str(), n)).collect();
    let graph = state.graph();
    let known = |name: &str| graph.get(graph.find(name)?);
    devices.check_colocation(nodes, |name| new.get(name).copied().or_else(|| known(name)))
}

/// Adds nodes and functions that fit, and whose devices are there.
fn grow(state: &mut GraphExecutionState, graph: GraphDef, options: &ClientOptions) -> Result<()> {
    let checked = state.check(graph, registry())?;
    check_places(state, checked.nodes(), options)?;
    state.add(checked, registry())
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl ClientSession {
    /// A session over a graph, which may be empty.
    pub fn new(graph: GraphDef, options: ClientOptions) -> Result<Self> {
        let mut state = GraphExecutionState::default();
        grow(&mut state, graph, &options)?;
        let graph = Versioned { state, version: 0 };
        Ok(ClientSession {
            graph: RwLock::new(graph),
            options,
            compiled: Compiled::default(),
            partial: Mutex::default(),
            running: Mutex::default(),
            nobody_runs: Condvar::new(),
        })
    }

    /// Adds nodes and functions to the graph, whose version must be `version`; returns the new one.
    pub fn extend(&self, graph: GraphDef, version: i64) -> Result<i64> {
        self.check_open()?;
        let mut current = self.graph.write().unwrap_or_else(PoisonError::into_inner);
        if current.version != version {
            return Err(aborted!(
                "Current version is {} but caller expected {version}.",
                current.version
            ));
        }
        grow(&mut current.state, graph, &self.options)?;
        current.version += 1;
        Ok(current.version)
    }

    /// Runs a signature; `args` are its feeds in order. Returns its fetches in order.
    pub fn run(
        &self,
        signature: &Signature,
        args: Vec<Tensor>,
        options: &RunOptions,
    ) -> Result<Vec<Tensor>> {
        let callable = self.callable(signature)?;
        self.call(&callable, args, options)
    }

    /// The compiled form of a signature that was run before.
    pub fn cached(&self, signature: &Signature) -> Option<Arc<Callable>> {
        self.compiled.get(signature)
    }

    /// The compiled form of a signature, from the cache or new.
    pub fn callable(&self, signature: &Signature) -> Result<Arc<Callable>> {
        self.check_open()?;
        self.compiled
            .get_or_make(signature, || self.make_callable(signature, &[]))
    }

    /// The compiled form of a signature in a graph where some tensors stand for others.
    pub fn connected_callable(
        &self,
        signature: &Signature,
        connections: &[TensorConnection],
    ) -> Result<Arc<Callable>> {
        self.check_open()?;
        self.make_callable(signature, connections).map(Arc::new)
    }

    fn make_callable(
        &self,
        signature: &Signature,
        connections: &[TensorConnection],
    ) -> Result<Callable> {
        let expanded = expand(self.prune(signature, connections)?, registry())?;
        let feeds = Feed::all(expanded.graph(), signature);
        let engine = match self.partitions(expanded.graph())? {
            None => Engine::One(self.compile(expanded.on_one_device())?),
            Some(parts) => {
                let parts = parts.into_iter().map(|p| self.part_of(p));
                Engine::Parts(parts.collect::<Result<_>>()?)
            }
        };
        let frozen = Frozen::default();
        Ok(Callable::new(engine, frozen, signature.clone(), feeds))
    }

    /// One part for each device that runs something, if they are several.
    ///
    /// Fails when a node asks for a device that is not there.
    fn partitions(&self, expanded: &Graph) -> Result<Option<Vec<Partition>>> {
        match self.places(expanded)? {
            None => Ok(None),
            Some(places) => partition(expanded, &places, &self.options.devices.names, registry()),
        }
    }

    /// The device of each node, where there are devices.
    fn places(&self, expanded: &Graph) -> Result<Option<Vec<usize>>> {
        let devices = &self.options.devices;
        if devices.names.is_empty() {
            return Ok(None);
        }
        devices.place_nodes(expanded).map(Some)
    }

    /// The device of each node of the graph that asks for another one than the first.
    pub fn placement(&self) -> FxHashMap<String, String> {
        let graph = self.graph.read().unwrap_or_else(PoisonError::into_inner);
        let devices = &self.options.devices;
        let nodes = graph.state.graph().iter().map(|(_, n)| n);
        let placed = nodes.filter(|n| !n.device.is_empty()).filter_map(|n| {
            let device = devices.place(&n.name, &n.device).ok().filter(|d| *d > 0)?;
            Some((n.name.clone(), devices.names.get(device)?.clone()))
        });
        placed.collect()
    }

    /// The inputs of each node, separated by commas.
    pub fn inputs(&self) -> FxHashMap<String, String> {
        let current = self.graph.read().unwrap_or_else(PoisonError::into_inner);
        let graph = current.state.graph();
        let inputs = graph.iter().map(|(_, node)| {
            let data = node.inputs.iter().map(|i| graph.output_name(*i));
            let controls = node.controls.iter();
            let controls = controls.map(|c| format!("^{}", graph.node(*c).name));
            let all: Vec<String> = data.chain(controls).collect();
            (node.name.clone(), all.join(", "))
        });
        inputs.collect()
    }

    /// The part of the graph that a signature needs.
    fn prune(
        &self,
        signature: &Signature,
        connections: &[TensorConnection],
    ) -> Result<PrunedGraph> {
        let current = self.graph.read().unwrap_or_else(PoisonError::into_inner);
        current.state.prune(signature, connections, registry())
    }

    fn compile(&self, placed: PlacedGraph) -> Result<Executor> {
        let plan = compile(placed, registry(), &self.options.compile)?;
        Ok(Executor::new(Arc::new(plan)))
    }

    fn part_of(&self, partition: Partition) -> Result<Part> {
        Ok(Part {
            device: partition.device,
            executor: self.compile(partition.graph)?,
            feeds: partition.feeds,
            fetches: partition.fetches,
        })
    }

    /// The graphs that a signature runs, one for each device: cut out, optimized, with feeds,
    /// fetches and what goes from device to device as nodes.
    pub fn partition_graphs(&self, signature: &Signature) -> Result<Vec<GraphDef>> {
        let expanded = expand(self.prune(signature, &[])?, registry())?;
        let parts = match self.partitions(expanded.graph())? {
            None => vec![(None, expanded.on_one_device())],
            Some(parts) => {
                let parts = parts.into_iter();
                parts.map(|p| (Some(p.device), p.graph)).collect()
            }
        };
        let asked = self.placement();
        let exported = parts.into_iter().map(|(device, placed)| {
            let options = &self.options.compile;
            let optimized = optimize(placed, registry(), options, &mut |_, _| {})?;
            let mut def = export_graph(optimized.graph())?;
            if device.is_some() {
                without_rendezvous(&mut def);
            }
            let names = &self.options.devices.names;
            for node in &mut def.node {
                let own = asked.get(&node.name).filter(|_| device.is_none());
                let name = own.or(names.get(device.unwrap_or(0)));
                node.device = name.cloned().unwrap_or_default();
            }
            Ok(def)
        });
        exported.collect()
    }

    /// Begins a step whose feeds come in later calls of [`partial_run`](Self::partial_run);
    /// returns what to call it.
    pub fn partial_run_setup(self: &Arc<Self>, signature: &Signature) -> Result<String> {
        self.check_open()?;
        let pruned = self.prune(signature, &[])?;
        let run = Arc::new(PartialRun::new(signature.clone(), &pruned)?);
        let pruned = args_to_send_recv(pruned, signature, registry())?;
        let expanded = expand(pruned, registry())?;
        // One plan runs it all, but what asks for devices must find them.
        self.places(expanded.graph())?;
        let only_rendezvous = Signature {
            feeds: vec!["_rendezvous".to_string()],
            ..Default::default()
        };
        let feeds = Feed::all(expanded.graph(), &only_rendezvous);
        let engine = Engine::One(self.compile(expanded.on_one_device())?);
        let callable = Callable::new(engine, Frozen::default(), only_rendezvous, feeds);
        let handle = {
            let mut partial = lock(&self.partial);
            partial.next_id += 1;
            let handle = format!("partial_run_{}", partial.next_id);
            partial.runs.insert(handle.clone(), run.clone());
            handle
        };
        let session = self.clone();
        let step = move || {
            let rendezvous = ResourceHandle {
                value: Some(run.rendezvous.clone()),
                ..Default::default()
            };
            let options = RunOptions {
                cancel: run.cancel.clone(),
                ..Default::default()
            };
            let arg = Tensor::from_resources(Shape::scalar(), vec![rendezvous]);
            let outcome = arg.and_then(|arg| session.call(&callable, vec![arg], &options));
            run.end(outcome.map(|_| ()));
        };
        let spawned = std::thread::Builder::new().spawn(step);
        spawned.map_err(|e| resource_exhausted!("no thread for a partial run: {e}"))?;
        Ok(handle)
    }

    /// Feeds some tensors to a step that was set up, and fetches some.
    pub fn partial_run(
        &self,
        handle: &str,
        feeds: Vec<(String, Tensor)>,
        fetches: &[String],
        options: &RunOptions,
    ) -> Result<Vec<Tensor>> {
        self.check_open()?;
        let run = lock(&self.partial).runs.get(handle).cloned();
        let run = run.ok_or_else(|| {
            invalid_argument!("Must run PartialRunSetup before performing partial runs")
        })?;
        let result = run.run(feeds, fetches, options);
        if !matches!(result, Ok((_, false))) && run.has_ended() {
            lock(&self.partial).runs.remove(handle);
        }
        result.map(|(fetched, _)| fetched)
    }

    /// Runs a compiled signature.
    pub fn call(
        &self,
        callable: &Callable,
        args: Vec<Tensor>,
        options: &RunOptions,
    ) -> Result<Vec<Tensor>> {
        callable.check_feeds(&args, true)?;
        let step = self.begin(&options.cancel)?;
        let started = Instant::now();
        let result = callable.engine.run(RunArgs {
            args,
            pool: &self.options.pool,
            resources: &self.options.resources,
            cancel: &options.token(),
            trace: options.trace.as_ref(),
        });
        callable.note_time(started.elapsed());
        let closed = step.end();
        result.map_err(|e| match closed {
            Some(reason) if e.code() == ferroflow_base::Code::Cancelled => reason,
            _ => e,
        })
    }

    /// Cancels the steps under way and waits for them; whatever is asked later fails.
    pub fn close(&self) {
        self.end(cancelled!(
            "Step was cancelled by an explicit call to `Session::Close()`."
        ));
        let mut running = lock(&self.running);
        while !running.steps.is_empty() {
            let waited = self.nobody_runs.wait(running);
            running = waited.unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// As [`close`](Self::close) for a session that nobody has used for long, without waiting.
    pub fn garbage_collect(&self) {
        self.end(cancelled!(
            "Step was cancelled because the session was garbage collected due to inactivity."
        ));
    }

    fn end(&self, reason: Status) {
        let steps: Vec<CancelToken> = {
            let mut running = lock(&self.running);
            running.closed.get_or_insert(reason);
            running.steps.values().cloned().collect()
        };
        for step in steps {
            step.cancel();
        }
    }

    /// Steps under way that somebody waits for: not those that wait for their next partial run, which
    /// may never come.
    pub fn num_running(&self) -> usize {
        let waiting = |run: &&Arc<PartialRun>| !run.has_ended();
        let waiting = lock(&self.partial).runs.values().filter(waiting).count();
        lock(&self.running).steps.len().saturating_sub(waiting)
    }

    fn check_open(&self) -> Result<()> {
        match lock(&self.running).closed {
            Some(_) => Err(failed_precondition!("Session is closed.")),
            None => Ok(()),
        }
    }

    fn begin(&self, cancel: &CancelToken) -> Result<StepGuard<'_>> {
        let mut running = lock(&self.running);
        if running.closed.is_some() {
            return Err(failed_precondition!("Session is closed."));
        }
        let id = running.next_id;
        running.next_id += 1;
        running.steps.insert(id, cancel.clone());
        Ok(StepGuard { session: self, id })
    }
}

/// Takes the first argument of a partition out: TensorFlow's rendezvous is no node.
fn without_rendezvous(def: &mut GraphDef) {
    let is_first = |n: &proto::NodeDef| {
        let index = n.attr.get("index").and_then(|a| a.value.as_ref());
        n.op == ARG && matches!(index, Some(proto::attr_value::Value::I(0)))
    };
    let Some(at) = def.node.iter().position(is_first) else {
        return;
    };
    let table = def.node.remove(at).name;
    for node in &mut def.node {
        node.input.retain(|i| *i != table);
    }
}

/// A step under way.
struct StepGuard<'a> {
    session: &'a ClientSession,
    id: u64,
}

impl StepGuard<'_> {
    /// Ends the step; says why if the session was closed meanwhile.
    fn end(self) -> Option<Status> {
        lock(&self.session.running).closed.clone()
    }
}

impl Drop for StepGuard<'_> {
    fn drop(&mut self) {
        let mut running = lock(&self.session.running);
        running.steps.remove(&self.id);
        // Who waits has closed the session before; waking nobody is a system call all the same.
        if running.steps.is_empty() && running.closed.is_some() {
            self.session.nobody_runs.notify_all();
        }
    }
}
