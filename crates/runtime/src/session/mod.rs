//! [`Session`]: a graph that can be run.

mod captures;
mod compile;
mod function_tasks;
mod inspect;
mod partial_run;
mod partitioned;
mod specialize;
mod steps;

use crate::callable::{Callable, Compiled};
use crate::cluster::Cluster;
use crate::cost_model::CostModel;
use crate::dataset_graphs::SessionDatasetGraphs;
use crate::devices::StreamDevices;
use ferroflow_base::{Result, aborted, cancelled};
use ferroflow_compile::{Options, PassGroups};
use ferroflow_executor::{RunArgs, TraceSink};
use ferroflow_graph::{
    DeviceSet, Graph, GraphExecutionState, Node, Signature, TensorConnection, import_graph,
};
use ferroflow_model::GraphFile;
use ferroflow_model::proto::GraphDef;
use ferroflow_opdef::{Registry, Rendezvous, Resources};
use ferroflow_sync::{CancelToken, Parallelism, Pool};
use ferroflow_tensor::Tensor;
use function_tasks::SessionFunctions;
use partial_run::PartialRuns;
use rustc_hash::FxHashMap;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError, RwLock, RwLockReadGuard};
use std::time::Duration;
use steps::RunningSteps;

pub use inspect::PlacedNode;
pub(crate) use partitioned::Engine;

/// The registry of all ops.
pub fn registry() -> &'static Registry {
    ferroflow_ops::registry()
}

/// How a session works.
#[derive(Clone)]
pub struct SessionOptions {
    /// Threads that compute, the caller of `run` included; 0 means all processors.
    pub threads: usize,
    /// Threads shared with other sessions, instead of `threads` of its own.
    pub pool: Option<Arc<Pool>>,
    /// Variables, queues and tables; sessions that share them see each other's.
    pub resources: Resources,
    /// Which compile passes run.
    pub compile: Options,
    /// Passes besides the compiler's own.
    pub passes: PassGroups,
    /// The devices that nodes are placed on; if empty, devices of nodes are ignored.
    pub devices: DeviceSet,
    /// Places nodes by cost; by default, nodes that ask for no device are on the first.
    pub costs: Option<Arc<CostModel>>,
    /// Those of the devices whose nodes run on streams.
    pub stream_devices: StreamDevices,
    /// The tasks that have the devices, if they are several.
    pub cluster: Option<Arc<dyn Cluster>>,
    /// Fetches are on the devices of the nodes that compute them, even behind Identity nodes without a device, as the
    /// outputs of TensorFlow's functions (`PinArgsAndRets` in `core/common_runtime/optimize_function_graph_utils.cc`).
    pub fetches_follow_producers: bool,
    /// Places only the nodes that a step needs, not the whole graph.
    pub place_pruned_graph: bool,
    /// Compiles variables that a signature only reads as constants, until they change.
    pub freeze_variables: bool,
    /// Checks the shapes of feeds. TensorFlow's service leaves them to its clients, and reports a wrong
    /// dtype as an error of the step.
    pub check_feed_shapes: bool,
}

impl Default for SessionOptions {
    fn default() -> Self {
        SessionOptions {
            threads: 0,
            pool: None,
            resources: Resources::default(),
            compile: Options::all(),
            passes: PassGroups::default(),
            devices: DeviceSet::default(),
            costs: None,
            stream_devices: StreamDevices::default(),
            cluster: None,
            fetches_follow_producers: false,
            place_pruned_graph: true,
            freeze_variables: true,
            check_feed_shapes: true,
        }
    }
}

impl SessionOptions {
    fn pool(&self) -> Arc<Pool> {
        let own = || {
            let all = Pool::available_threads();
            let threads = if self.threads == 0 { all } else { self.threads };
            Arc::new(Pool::new(threads))
        };
        self.pool.clone().unwrap_or_else(own)
    }
}

/// Options of one run.
#[derive(Clone, Default)]
pub struct RunOptions {
    /// Ends the step with DEADLINE_EXCEEDED after this time.
    pub timeout: Option<Duration>,
    /// Ends the step with CANCELLED when cancelled.
    pub cancel: Option<CancelToken>,
    /// Receives a span for every kernel call.
    pub trace: Option<Arc<dyn TraceSink>>,
    /// The number of the step, which its parts on several tasks share.
    pub step_id: Option<u64>,
    /// Where `_Send` and `_Recv` nodes of the graph meet those of others; by default each other.
    pub rendezvous: Option<Arc<dyn Rendezvous>>,
    /// The threads of [`Session::run_callable`]; by default the session's.
    pub pool: Option<Arc<Pool>>,
}

impl RunOptions {
    /// The token that ends the step, at the deadline if there is one; `default` if the caller has none.
    fn token(&self, default: &CancelToken) -> Option<CancelToken> {
        match self.timeout {
            Some(timeout) => Some(
                self.cancel
                    .as_ref()
                    .unwrap_or(default)
                    .with_timeout(timeout),
            ),
            None => self.cancel.clone(),
        }
    }
}

/// A graph, which may grow, with a thread pool and the compiled form of every signature it was run with.
///
/// Every method may be called from many threads at once.
///
/// ```
/// use ferroflow_runtime::{Session, SessionOptions, Tensor};
/// let graph = "
///     node { name: 'x' op: 'Placeholder' attr { key: 'dtype' value { type: DT_FLOAT } } }
///     node { name: 'y' op: 'Identity' input: 'x' attr { key: 'T' value { type: DT_FLOAT } } }";
/// let session = Session::from_text(graph, SessionOptions::default()).unwrap();
/// let y = session.run(&[("x:0", Tensor::scalar(2.0f32))], &["y:0"], &[]).unwrap();
/// assert_eq!(y[0].to_scalar::<f32>().unwrap(), 2.0);
/// ```
pub struct Session {
    graph: Arc<RwLock<VersionedGraph>>,
    pool: Arc<Pool>,
    options: SessionOptions,
    compiled: Compiled,
    partial_runs: Mutex<PartialRuns>,
    steps: Arc<RunningSteps>,
    /// Functions that its kernels call over several tasks.
    _functions: Option<Arc<SessionFunctions>>,
}

struct VersionedGraph {
    state: GraphExecutionState,
    /// How often the graph was extended.
    version: i64,
}

impl Session {
    /// The devices whose nodes run on streams.
    pub fn stream_devices(&self) -> &StreamDevices {
        &self.options.stream_devices
    }

    /// Opens a frozen graph, binary or text.
    ///
    /// # Errors
    /// Those of reading the file and of [`import_graph`].
    pub fn open(path: &Path, options: SessionOptions) -> Result<Session> {
        Self::from_file(GraphFile::open(path)?, options)
    }

    /// A session over a `GraphDef` in text form.
    ///
    /// # Errors
    /// INVALID_ARGUMENT if the text does not parse; those of [`import_graph`].
    pub fn from_text(text: &str, options: SessionOptions) -> Result<Session> {
        Self::from_graph_def(ferroflow_model::graph_from_text(text)?, options)
    }

    /// A session over a `GraphDef` that does not grow.
    ///
    /// # Errors
    /// Those of [`import_graph`].
    pub fn from_graph_def(graph: GraphDef, options: SessionOptions) -> Result<Session> {
        Self::from_file(GraphFile { graph, file: None }, options)
    }

    /// A session over a binary `GraphDef` in memory.
    ///
    /// # Errors
    /// INVALID_ARGUMENT if the bytes do not decode; those of [`import_graph`].
    pub fn from_bytes(bytes: Vec<u8>, options: SessionOptions) -> Result<Session> {
        Self::from_file(GraphFile::from_bytes(bytes)?, options)
    }

    pub(crate) fn from_file(file: GraphFile, options: SessionOptions) -> Result<Session> {
        let graph = import_graph(&file.graph, file.file.as_ref(), registry())?;
        let state = GraphExecutionState::new(graph, file.graph.library);
        Ok(Self::with_state(state, options))
    }

    /// A session over a graph.
    pub fn new(graph: Graph, options: SessionOptions) -> Session {
        Self::with_state(GraphExecutionState::new(graph, None), options)
    }

    /// A session over a graph of a client that extends it, which may be empty. A node that cannot run,
    /// such as one of an unknown op, is an error of the steps that need it.
    ///
    /// # Errors
    /// As [`Session::extend`].
    ///
    /// ```
    /// use ferroflow_runtime::{Session, SessionOptions, Tensor};
    /// let def = |text: &str| ferroflow_model::graph_from_text(text).unwrap();
    /// let x = "node { name: 'x' op: 'Placeholder' attr { key: 'dtype' value { type: DT_FLOAT } } }";
    /// let y = "node { name: 'y' op: 'Neg' input: 'x' attr { key: 'T' value { type: DT_FLOAT } } }";
    /// let session = Session::create(def(x), SessionOptions::default()).unwrap();
    /// assert_eq!(session.extend(def(y), 0).unwrap(), 1);
    /// let y = session.run(&[("x:0", Tensor::scalar(2.0f32))], &["y:0"], &[]).unwrap();
    /// assert_eq!(y[0].to_scalar::<f32>().unwrap(), -2.0);
    /// ```
    pub fn create(graph: GraphDef, options: SessionOptions) -> Result<Session> {
        let mut state = GraphExecutionState::default();
        add(&mut state, graph, &options)?;
        Ok(Self::with_state(state, options))
    }

    /// A session that has one compiled signature and an empty graph.
    pub(crate) fn of_callable(callable: &Arc<Callable>, options: SessionOptions) -> Session {
        let session = Session::new(Graph::new(), options);
        session.compiled.insert(callable);
        session.compiled.remember(callable);
        session
    }

    pub(crate) fn compile_options(&self) -> &Options {
        &self.options.compile
    }

    fn with_state(state: GraphExecutionState, options: SessionOptions) -> Session {
        let pool = options.pool();
        let graphs = Arc::<SessionDatasetGraphs>::default();
        options.resources.set_dataset_graphs(graphs);
        let graph = Arc::new(RwLock::new(VersionedGraph { state, version: 0 }));
        Session {
            steps: Arc::new(RunningSteps::new(pool.clone())),
            _functions: SessionFunctions::open(&graph, &options),
            graph,
            pool,
            options,
            compiled: Compiled::default(),
            partial_runs: Mutex::default(),
        }
    }

    /// Adds nodes and functions to the graph, whose version must be `version`; returns the new one.
    /// All or nothing: an error leaves the graph as it was.
    ///
    /// # Errors
    /// ABORTED if the version differs; FAILED_PRECONDITION if the session is closed; those of
    /// [`GraphExecutionState::check`] and of placing the nodes.
    pub fn extend(&self, graph: GraphDef, version: i64) -> Result<i64> {
        self.steps.check_open()?;
        let mut current = self.graph.write().unwrap_or_else(PoisonError::into_inner);
        if current.version != version {
            return Err(aborted!(
                "Current version is {} but caller expected {version}.",
                current.version
            ));
        }
        add(&mut current.state, graph, &self.options)?;
        current.version += 1;
        Ok(current.version)
    }

    fn current(&self) -> RwLockReadGuard<'_, VersionedGraph> {
        self.graph.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Feeds tensors by name, runs what the fetches and targets need, returns the fetches.
    ///
    /// # Errors
    /// Those of [`Session::callable`] and of [`Session::run_callable`].
    pub fn run(
        &self,
        feeds: &[(&str, Tensor)],
        fetches: &[&str],
        targets: &[&str],
    ) -> Result<Vec<Tensor>> {
        self.run_with(feeds, fetches, targets, &RunOptions::default())
    }

    /// [`Session::run`] with a timeout, a cancellation token or a trace.
    ///
    /// # Errors
    /// As [`Session::run`].
    pub fn run_with(
        &self,
        feeds: &[(&str, Tensor)],
        fetches: &[&str],
        targets: &[&str],
        options: &RunOptions,
    ) -> Result<Vec<Tensor>> {
        let args = feeds.iter().map(|(_, t)| t.clone()).collect();
        if let Some(callable) = self.compiled.by_names(feeds, fetches, targets) {
            return self.run_callable(&callable, args, options);
        }
        let names = |list: &[&str]| list.iter().map(|s| s.to_string()).collect();
        let signature = Signature {
            feeds: feeds.iter().map(|(name, _)| name.to_string()).collect(),
            fetches: names(fetches),
            targets: names(targets),
        };
        let callable = self.callable(&signature)?;
        self.compiled.remember(&callable);
        self.run_callable(&callable, args, options)
    }

    /// The compiled form of a signature, from the cache or new.
    ///
    /// # Errors
    /// NOT_FOUND or INVALID_ARGUMENT if the signature names what the graph does not have; the error of a
    /// node that cannot run or be placed; FAILED_PRECONDITION if the session is closed.
    pub fn callable(&self, signature: &Signature) -> Result<Arc<Callable>> {
        self.steps.check_open()?;
        self.compiled
            .get_or_make(signature, || self.compile_callable(signature, &[]))
    }

    /// The compiled form of a signature that was run before, if any.
    pub fn cached(&self, signature: &Signature) -> Option<Arc<Callable>> {
        self.compiled.get(signature)
    }

    /// The compiled form of a signature in a graph where some tensors stand for others
    /// (`CallableOptions.tensor_connection`). It is not cached.
    ///
    /// # Errors
    /// As [`Session::callable`].
    pub fn connected_callable(
        &self,
        signature: &Signature,
        connections: &[TensorConnection],
    ) -> Result<Arc<Callable>> {
        self.steps.check_open()?;
        self.compile_callable(signature, connections).map(Arc::new)
    }

    /// Runs a compiled signature; `args` are the feeds in the signature's order.
    ///
    /// # Errors
    /// INVALID_ARGUMENT if a feed has another dtype or shape; the first error of a node; CANCELLED or
    /// DEADLINE_EXCEEDED if the options or [`Session::close`] ended the step; FAILED_PRECONDITION if the
    /// session is closed.
    pub fn run_callable(
        &self,
        callable: &Callable,
        args: Vec<Tensor>,
        options: &RunOptions,
    ) -> Result<Vec<Tensor>> {
        callable.check_feeds(&args, self.options.check_feed_shapes)?;
        let engine = self.engine_of(callable, &args, true)?;
        let step = RunningSteps::begin(&*self.steps, options.cancel.as_ref())?;
        let token = options.token(self.steps.closing());
        let results = engine.run(RunArgs {
            args,
            step_id: options.step_id,
            pool: options.pool.as_ref().unwrap_or(&self.pool),
            resources: &self.options.resources,
            rendezvous: options.rendezvous.as_ref(),
            cancel: token.as_ref().unwrap_or(self.steps.closing()),
            trace: options.trace.as_ref(),
            runner: None,
        });
        results.map_err(|e| step.cause(e))
    }

    /// Returns whether [`Session::start_callable`] may run this callable: its steps [are
    /// brief](Callable::is_brief), and the pool has threads of its own for expensive kernels.
    pub fn is_brief(&self, callable: &Callable) -> bool {
        self.pool.width() > 1 && callable.is_brief()
    }

    /// As [`Session::run_callable`], without waiting for the end of the step: the thread that ends it calls
    /// `done`. Kernels also run on the calling thread and on those that deliver tensors from elsewhere, so this is
    /// for callables that [are brief](Self::is_brief).
    pub fn start_callable(
        &self,
        callable: &Callable,
        args: Vec<Tensor>,
        options: &RunOptions,
        done: impl FnOnce(Result<Vec<Tensor>>) + Send + 'static,
    ) {
        let begun = callable
            .check_feeds(&args, self.options.check_feed_shapes)
            .and_then(|()| self.engine_of(callable, &args, false))
            .and_then(|engine| {
                let steps = self.steps.clone();
                Ok((engine, RunningSteps::begin(steps, options.cancel.as_ref())?))
            });
        let (engine, step) = match begun {
            Ok(begun) => begun,
            Err(e) => return done(Err(e)),
        };
        let token = options.token(self.steps.closing());
        let token = token.unwrap_or_else(|| self.steps.closing().clone());
        let held = token.clone();
        let with = RunArgs {
            args,
            step_id: options.step_id,
            // Its threads run the expensive kernels.
            pool: &self.pool,
            resources: &self.options.resources,
            rendezvous: options.rendezvous.as_ref(),
            cancel: &token,
            trace: options.trace.as_ref(),
            runner: None,
        };
        let end = move |results: Result<Vec<Tensor>>| {
            let results = results.map_err(|e| step.cause(e));
            drop((step, held));
            done(results);
        };
        engine.start(with, Box::new(end));
    }

    /// What runs a callable: another plan once a variable that is part of the first one has changed, or if there is one
    /// for the shapes of the feeds. Such a plan is made only if the thread `may_wait`.
    fn engine_of<'a>(
        &self,
        callable: &'a Callable,
        args: &[Tensor],
        may_wait: bool,
    ) -> Result<&'a Engine> {
        match (callable.thawed.get(), &callable.classes) {
            (Some(thawed), _) => Ok(thawed),
            (None, _) if !callable.frozen.holds() => self.thaw(callable),
            (None, None) => Ok(&callable.engine),
            (None, Some(classes)) => Ok(match classes.find(args) {
                Some(engine) => engine.unwrap_or(&callable.engine),
                None if may_wait && classes.is_due(args) => {
                    self.specialize(callable, classes, args)
                }
                None => &callable.engine,
            }),
        }
    }

    /// Cancels the steps in progress and waits for them; later calls fail with FAILED_PRECONDITION.
    pub fn close(&self) {
        self.steps.close(Some(cancelled!(
            "Step was cancelled by an explicit call to `Session::Close()`."
        )));
        self.steps.join();
    }

    /// As [`close`](Self::close); the steps fail with the error of the op that was cancelled, as those of TensorFlow's
    /// sessions do that run in the client's process.
    pub fn close_in_process(&self) {
        self.steps.close(None);
        self.steps.join();
    }

    /// As [`close`](Self::close) for a session that was not used for long, without waiting.
    pub fn garbage_collect(&self) {
        self.steps.close(Some(cancelled!(
            "Step was cancelled because the session was garbage collected due to inactivity."
        )));
    }
}

impl Drop for Session {
    /// Ends partial runs, which would wait for their next call otherwise.
    fn drop(&mut self) {
        self.steps
            .close(Some(cancelled!("The session was dropped.")));
    }
}

/// Adds nodes and functions, and checks that the nodes can be placed.
fn add(state: &mut GraphExecutionState, graph: GraphDef, options: &SessionOptions) -> Result<()> {
    let checked = state.check(graph, registry())?;
    check_devices(state.graph(), checked.nodes(), options)?;
    state.add(checked, registry())
}

/// Checks the devices of new nodes, if all nodes must have one.
fn check_devices(graph: &Graph, nodes: &[Node], options: &SessionOptions) -> Result<()> {
    let devices = &options.devices;
    if devices.names.is_empty() || options.place_pruned_graph {
        return Ok(());
    }
    let asking = nodes.iter().filter(|n| !n.device.is_empty());
    let (generators, others): (Vec<_>, Vec<_>) = asking.partition(|n| is_generator(n));
    let mut index = devices.index();
    // As in TensorFlow: a node that only produces a value is placed last, with its readers.
    for node in others.into_iter().chain(generators) {
        index.place(&node.name, &node.device)?;
    }
    let new: FxHashMap<&str, &Node> = nodes.iter().map(|n| (n.name.as_str(), n)).collect();
    let known = |name: &str| graph.get(graph.find(name)?);
    index.check_colocation(nodes, |name| new.get(name).copied().or_else(|| known(name)))
}

/// Whether a node only produces a value.
fn is_generator(node: &Node) -> bool {
    let is_placed = matches!(node.op(), "NoOp" | "Variable" | "VariableV2");
    !is_placed && node.inputs.is_empty()
}
