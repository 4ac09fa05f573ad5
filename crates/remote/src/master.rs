//! [`Master`]: the sessions of a server, one method for each of `tensorflow.MasterService`'s.

use crate::config::{compile_options, log_placement, session_task};
use crate::cost_graph::cost_graph;
use crate::device::{Devices, TaskName};
use crate::monitor::Metrics;
use crate::step_stats::StepTrace;
use crate::tensors::{fed, fetched};
use ferroflow_base::{Code, Result, Status, aborted, invalid_argument, unimplemented_error};
use ferroflow_model::proto::{
    CallableOptions, CleanupAllRequest, CleanupAllResponse, CloseSessionRequest,
    CloseSessionResponse, CreateSessionRequest, CreateSessionResponse, CreateWorkerSessionRequest,
    CreateWorkerSessionResponse, DeleteWorkerSessionRequest, DeleteWorkerSessionResponse,
    ExtendSessionRequest, ExtendSessionResponse, GetStatusRequest, GetStatusResponse,
    ListDevicesRequest, ListDevicesResponse, MakeCallableRequest, MakeCallableResponse,
    PartialRunSetupRequest, PartialRunSetupResponse, ReleaseCallableRequest,
    ReleaseCallableResponse, ResetRequest, ResetResponse, RunCallableRequest, RunCallableResponse,
    RunMetadata, RunOptions as RunOptionsProto, RunStepRequest, RunStepResponse, TensorProto,
    run_options::TraceLevel,
};
use ferroflow_runtime::{
    Callable, CancelToken, ClientOptions, ClientSession, DEFAULT_CONTAINER, DeviceSet, Pool,
    Resources, RunOptions, Signature, TensorConnection, TraceSink,
};
use ferroflow_tensor::Tensor;
use std::collections::hash_map::RandomState;
use std::collections::{HashMap, HashSet, VecDeque};
use std::hash::BuildHasher;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Requests whose ids are remembered, to tell a retry.
const RECENT_REQUESTS: usize = 100_000;
/// Bytes that a short step may be fed.
const SHORT_FEEDS: usize = 1 << 14;

/// How a master works.
#[derive(Clone, Debug)]
pub struct MasterOptions {
    /// Which task this is.
    pub task: TaskName,
    /// Virtual CPU devices.
    pub cpus: usize,
    /// Threads that compute; 0 means all processors.
    pub threads: usize,
    /// A session that nobody used for so long is closed; `None` keeps all.
    pub session_idle: Option<Duration>,
    /// Most sessions at one time.
    pub max_sessions: usize,
}

impl Default for MasterOptions {
    fn default() -> Self {
        MasterOptions {
            task: TaskName {
                job: "localhost".to_string(),
                index: 0,
            },
            cpus: 1,
            threads: 0,
            session_idle: Some(Duration::from_secs(24 * 3600)),
            max_sessions: 100_000,
        }
    }
}

/// What a client hears when a step took too long, in gRPC's own words.
pub(crate) fn deadline_exceeded() -> Status {
    Status::new(Code::DeadlineExceeded, "Deadline Exceeded")
}

/// The sessions of a server and what they share.
pub struct Master {
    options: MasterOptions,
    devices: Arc<Devices>,
    pool: Arc<Pool>,
    resources: Resources,
    sessions: Mutex<HashMap<String, Arc<MasterSession>>>,
    recent: Mutex<RecentIds>,
    pub(crate) metrics: Metrics,
}

/// A client's session.
struct MasterSession {
    session: Arc<ClientSession>,
    callables: Mutex<HashMap<i64, Arc<ClientCallable>>>,
    next_callable: AtomicI64,
    timeout: Option<Duration>,
    devices: Arc<Devices>,
    /// The devices, when the client wants to read where nodes are.
    logs_placement: Option<DeviceSet>,
    /// The client asked never to give it the partitions' graphs.
    keeps_graphs: bool,
    /// `build_cost_model` and `build_cost_model_after`.
    cost_model: (i64, i64),
    /// Steps of each signature, if there is a cost model.
    steps: Mutex<HashMap<Signature, i64>>,
    used: Mutex<Instant>,
}

struct ClientCallable {
    callable: Arc<Callable>,
    options: RunOptionsProto,
}

/// A step that is about to run.
pub struct Step {
    session: Arc<MasterSession>,
    signature: Signature,
    feeds: Vec<TensorProto>,
    options: RunOptionsProto,
    /// Unless this is the first run of the signature.
    callable: Option<Arc<Callable>>,
    /// The step that was set up and that this is a part of, if any.
    partial: String,
}

impl Step {
    /// Whether it ends so soon that no other thread need run it.
    pub(crate) fn is_short(&self) -> bool {
        let bytes: usize = self.feeds.iter().map(|f| f.tensor_content.len()).sum();
        bytes <= SHORT_FEEDS && self.callable.as_ref().is_some_and(|c| c.is_short())
    }
}

#[derive(Default)]
struct RecentIds {
    ids: HashSet<i64>,
    order: VecDeque<i64>,
}

pub(crate) fn random_u64() -> u64 {
    // Its keys come from the system's random numbers and differ at every call.
    RandomState::new().hash_one(0)
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Master {
    /// A master without sessions.
    pub fn new(options: MasterOptions) -> Self {
        let threads = match options.threads {
            0 => Pool::available_threads(),
            n => n,
        };
        Master {
            devices: Arc::new(Devices::cpus(&options.task, options.cpus.max(1))),
            pool: Arc::new(Pool::new(threads)),
            resources: Resources::default(),
            sessions: Mutex::default(),
            recent: Mutex::default(),
            metrics: Metrics::default(),
            options,
        }
    }

    /// How long a session may be unused.
    pub(crate) fn session_idle(&self) -> Option<Duration> {
        self.options.session_idle
    }

    /// `CreateSession`: a new session over a graph.
    pub fn create_session(&self, request: CreateSessionRequest) -> Result<CreateSessionResponse> {
        let config = request.config.unwrap_or_default();
        if config.use_per_session_threads || !config.session_inter_op_thread_pool.is_empty() {
            return Err(invalid_argument!(
                "Distributed session does not support session thread pool options."
            ));
        }
        let resources = match config.isolate_session_state {
            true => Arc::default(),
            false => Arc::new(self.resources.fork_session()),
        };
        let own_devices = match &config.cluster_def {
            None => self.devices.clone(),
            Some(cluster) => {
                let task = session_task(cluster, &request.target, &self.options.task)?;
                Arc::new(Devices::cpus(&task, self.options.cpus.max(1)))
            }
        };
        let devices = DeviceSet {
            names: own_devices.names(),
            soft: config.allow_soft_placement,
        };
        let graph = request.graph_def.unwrap_or_default();
        if config.log_device_placement {
            log_placement(&graph, &devices);
        }
        let options = ClientOptions {
            pool: self.pool.clone(),
            resources,
            compile: compile_options(&config),
            devices: devices.clone(),
            place_pruned_graph: config
                .graph_options
                .as_ref()
                .is_some_and(|g| g.place_pruned_graph),
        };
        let session = ClientSession::new(graph, options)?;
        let handle = format!("{:016x}", random_u64());
        let session = Arc::new(MasterSession {
            session: Arc::new(session),
            callables: Mutex::default(),
            next_callable: AtomicI64::new(0),
            timeout: millis(config.operation_timeout_in_ms),
            devices: own_devices,
            logs_placement: config.log_device_placement.then_some(devices),
            keeps_graphs: config
                .experimental
                .is_some_and(|e| e.disable_output_partition_graphs),
            cost_model: config
                .graph_options
                .as_ref()
                .map_or((0, 0), |g| (g.build_cost_model, g.build_cost_model_after)),
            steps: Mutex::default(),
            used: Mutex::new(Instant::now()),
        });
        let mut sessions = lock(&self.sessions);
        if sessions.len() >= self.options.max_sessions {
            return Err(ferroflow_base::resource_exhausted!(
                "the server has {} sessions, the most it may have; close some or start it with a \
                 higher --max-sessions",
                sessions.len()
            ));
        }
        sessions.insert(handle.clone(), session);
        self.metrics.sessions.set(sessions.len() as i64);
        Ok(CreateSessionResponse {
            session_handle: handle,
            graph_version: 0,
        })
    }

    fn find(&self, handle: &str) -> Result<Arc<MasterSession>> {
        let session = lock(&self.sessions).get(handle).cloned();
        let session = session.ok_or_else(|| aborted!("Session {handle} is not found."))?;
        *lock(&session.used) = Instant::now();
        Ok(session)
    }

    /// `ExtendSession`: adds nodes to a session's graph.
    pub fn extend_session(&self, request: ExtendSessionRequest) -> Result<ExtendSessionResponse> {
        let session = self.find(&request.session_handle)?;
        let graph = request.graph_def.unwrap_or_default();
        if let Some(devices) = &session.logs_placement {
            log_placement(&graph, devices);
        }
        let version = request.current_graph_version;
        Ok(ExtendSessionResponse {
            new_graph_version: session.session.extend(graph, version)?,
        })
    }

    /// `RunStep`, what comes before the step runs: finds the session and the compiled signature.
    pub fn prepare(&self, request: RunStepRequest) -> Result<Step> {
        self.counted(self.prepared(request))
    }

    fn prepared(&self, request: RunStepRequest) -> Result<Step> {
        self.once(request.request_id, "RunStep (Master)")?;
        let session = self.find(&request.session_handle)?;
        let mut feeds = Vec::with_capacity(request.feed.len());
        let mut names: Vec<String> = Vec::with_capacity(request.feed.len());
        for feed in request.feed {
            if names.contains(&feed.name) {
                return Err(invalid_argument!(
                    "Endpoint \"{}\" fed more than once.",
                    feed.name
                ));
            }
            feeds.push(feed.tensor.unwrap_or_default());
            names.push(feed.name);
        }
        let signature = Signature {
            feeds: names,
            fetches: request.fetch,
            targets: request.target,
        };
        let callable = match request.partial_run_handle.as_str() {
            "" => session.session.cached(&signature),
            _ => None,
        };
        // What is compiled was looked at before.
        if callable.is_none() {
            check_ends(&signature)?;
        }
        Ok(Step {
            callable,
            partial: request.partial_run_handle,
            session,
            signature,
            feeds,
            options: request.options.unwrap_or_default(),
        })
    }

    /// `RunStep`: feeds, runs, fetches.
    pub fn run_step(&self, step: Step, cancel: &CancelToken) -> Result<RunStepResponse> {
        self.counted(match step.partial.is_empty() {
            true => self.whole_run(step, cancel),
            false => self.partial_run(step, cancel),
        })
    }

    fn whole_run(&self, step: Step, cancel: &CancelToken) -> Result<RunStepResponse> {
        let session = &step.session.session;
        let callable = match step.callable {
            Some(callable) => callable,
            None => session.callable(&step.signature)?,
        };
        let feeds = fed(&step.signature.feeds, step.feeds)?;
        let watch = Watch::new(&step.session, &step.options, &step.signature)?;
        let options = watch.run_options(&step.session, &step.options, cancel);
        let results = self.call(&step.session, &callable, feeds, &options)?;
        let mut answer = response(&step.signature.fetches, &results)?;
        answer.metadata = step.session.metadata(&watch, &step.signature)?;
        Ok(answer)
    }

    /// A `RunStep` of a step that was set up before.
    fn partial_run(&self, step: Step, cancel: &CancelToken) -> Result<RunStepResponse> {
        let feeds = fed(&step.signature.feeds, step.feeds)?;
        let watch = Watch::new(&step.session, &step.options, &step.signature)?;
        let feeds = step.signature.feeds.into_iter().zip(feeds).collect();
        let options = watch.run_options(&step.session, &step.options, cancel);
        let fetches = &step.signature.fetches;
        let session = &step.session.session;
        let results = session.partial_run(&step.partial, feeds, fetches, &options);
        response(
            fetches,
            &results.map_err(|e| step.session.as_clients_hear(e))?,
        )
    }

    /// Counts a step that failed.
    fn counted<T>(&self, result: Result<T>) -> Result<T> {
        if result.is_err() {
            self.metrics.failed();
        }
        result
    }

    fn call(
        &self,
        session: &MasterSession,
        callable: &Callable,
        feeds: Vec<Tensor>,
        options: &RunOptions,
    ) -> Result<Vec<Tensor>> {
        let started = Instant::now();
        let results = session.session.call(callable, feeds, options);
        self.metrics.step(started.elapsed());
        results.map_err(|e| session.as_clients_hear(e))
    }

    /// Fails when this request came before.
    fn once(&self, id: i64, method: &str) -> Result<()> {
        if id == 0 {
            return Ok(());
        }
        let mut recent = lock(&self.recent);
        if !recent.ids.insert(id) {
            return Err(aborted!(
                "The same {method} request was received twice. request_id: {id}"
            ));
        }
        recent.order.push_back(id);
        if recent.order.len() > RECENT_REQUESTS
            && let Some(oldest) = recent.order.pop_front()
        {
            recent.ids.remove(&oldest);
        }
        Ok(())
    }

    /// `PartialRunSetup`: begins a step whose feeds come one by one.
    pub fn partial_run_setup(
        &self,
        request: PartialRunSetupRequest,
    ) -> Result<PartialRunSetupResponse> {
        self.once(request.request_id, "PartialRunSetup (Master)")?;
        let session = self.find(&request.session_handle)?;
        let signature = Signature {
            feeds: request.feed,
            fetches: request.fetch,
            targets: request.target,
        };
        Ok(PartialRunSetupResponse {
            partial_run_handle: session.session.partial_run_setup(&signature)?,
        })
    }

    /// `CloseSession`: cancels a session's steps and forgets it.
    pub fn close_session(&self, request: CloseSessionRequest) -> Result<CloseSessionResponse> {
        let session = {
            let mut sessions = lock(&self.sessions);
            let session = sessions.remove(&request.session_handle);
            self.metrics.sessions.set(sessions.len() as i64);
            session.ok_or_else(|| {
                aborted!(
                    "Session {} is not found. Possibly, this master has restarted.",
                    request.session_handle
                )
            })?
        };
        session.session.close();
        Ok(CloseSessionResponse {})
    }

    /// `ListDevices`.
    pub fn list_devices(&self, request: ListDevicesRequest) -> Result<ListDevicesResponse> {
        let devices = match request.session_handle.as_str() {
            "" => self.devices.clone(),
            handle => match self.find(handle) {
                Ok(session) => session.devices.clone(),
                Err(_) => {
                    return Err(invalid_argument!(
                        "Session {handle} is not found. Possibly, this master has restarted."
                    ));
                }
            },
        };
        Ok(ListDevicesResponse {
            local_device: devices.attributes().to_vec(),
            remote_device: Vec::new(),
        })
    }

    /// `Reset`: closes all sessions and clears containers, the default one when none is named.
    pub fn reset(&self, request: ResetRequest) -> Result<ResetResponse> {
        let sessions: Vec<_> = lock(&self.sessions).drain().collect();
        self.metrics.sessions.set(0);
        // Before their queues go: steps that wait there end because their session does.
        for (_, session) in sessions {
            session.session.close();
        }
        self.clear(&request.container);
        Ok(ResetResponse {})
    }

    fn clear(&self, containers: &[String]) {
        match containers {
            [] => self.resources.clear(DEFAULT_CONTAINER),
            some => some.iter().for_each(|c| self.resources.clear(c)),
        }
    }

    /// `MakeCallable`: prepares a signature.
    pub fn make_callable(&self, request: MakeCallableRequest) -> Result<MakeCallableResponse> {
        self.once(request.request_id, "MakeCallable (Master)")?;
        let session = self.find(&request.session_handle)?;
        let CallableOptions {
            feed,
            fetch,
            target,
            run_options,
            tensor_connection,
            feed_devices,
            fetch_devices,
            ..
        } = request.options.unwrap_or_default();
        if !feed_devices.is_empty() || !fetch_devices.is_empty() {
            return Err(unimplemented_error!(
                "CallableOptions::feed_devices and CallableOptions::fetch_devices to configure \
                 feeding/fetching tensors to/from device memory is not yet supported when using a \
                 remote session."
            ));
        }
        let signature = Signature {
            feeds: feed,
            fetches: fetch,
            targets: target,
        };
        check_ends(&signature)?;
        let connections = tensor_connection.into_iter().map(|c| TensorConnection {
            from: c.from_tensor,
            to: c.to_tensor,
        });
        let callable = match connections.collect::<Vec<_>>().as_slice() {
            [] => session.session.callable(&signature)?,
            some => session.session.connected_callable(&signature, some)?,
        };
        let handle = session.next_callable.fetch_add(1, Ordering::Relaxed);
        let made = ClientCallable {
            callable,
            options: run_options.unwrap_or_default(),
        };
        lock(&session.callables).insert(handle, Arc::new(made));
        Ok(MakeCallableResponse { handle })
    }

    /// `RunCallable`: runs a prepared signature.
    pub fn run_callable(
        &self,
        request: RunCallableRequest,
        cancel: &CancelToken,
    ) -> Result<RunCallableResponse> {
        self.counted(self.callable_run(request, cancel))
    }

    fn callable_run(
        &self,
        request: RunCallableRequest,
        cancel: &CancelToken,
    ) -> Result<RunCallableResponse> {
        self.once(request.request_id, "RunCallable (Master)")?;
        let session = self.find(&request.session_handle)?;
        let handle = request.handle;
        let callable = lock(&session.callables).get(&handle).cloned();
        let callable = callable.ok_or_else(|| {
            match handle >= session.next_callable.load(Ordering::Relaxed) {
                true => invalid_argument!("No such callable handle: {handle}"),
                false => invalid_argument!(
                    "Attempted to run callable after handle was released: {handle}"
                ),
            }
        })?;
        let signature = callable.callable.signature();
        if request.feed.len() != signature.feeds.len() {
            return Err(invalid_argument!(
                "Expected {} feed tensors, but got {}",
                signature.feeds.len(),
                request.feed.len()
            ));
        }
        let feeds = fed(&signature.feeds, request.feed)?;
        let watch = Watch::new(&session, &callable.options, signature)?;
        let options = watch.run_options(&session, &callable.options, cancel);
        let results = self.call(&session, &callable.callable, feeds, &options)?;
        let named = signature.fetches.iter().zip(&results);
        let fetch = named
            .map(|(n, t)| Ok(fetched(n, t)?.tensor.unwrap_or_default()))
            .collect::<Result<_>>()?;
        let metadata = session.metadata(&watch, signature)?;
        Ok(RunCallableResponse { fetch, metadata })
    }

    /// `ReleaseCallable`: forgets a prepared signature.
    pub fn release_callable(
        &self,
        request: ReleaseCallableRequest,
    ) -> Result<ReleaseCallableResponse> {
        let session = self.find(&request.session_handle)?;
        lock(&session.callables).remove(&request.handle);
        Ok(ReleaseCallableResponse {})
    }

    /// `GetStatus` of the worker: its devices.
    pub fn get_status(&self, _: GetStatusRequest) -> Result<GetStatusResponse> {
        Ok(GetStatusResponse {
            device_attributes: self.devices.attributes().to_vec(),
        })
    }

    /// `CreateWorkerSession`: this server is its own worker, its sessions need nothing more.
    pub fn create_worker_session(
        &self,
        _: CreateWorkerSessionRequest,
    ) -> Result<CreateWorkerSessionResponse> {
        Ok(CreateWorkerSessionResponse {})
    }

    /// `DeleteWorkerSession`.
    pub fn delete_worker_session(
        &self,
        _: DeleteWorkerSessionRequest,
    ) -> Result<DeleteWorkerSessionResponse> {
        Ok(DeleteWorkerSessionResponse {})
    }

    /// `CleanupAll`: clears containers.
    pub fn cleanup_all(&self, request: CleanupAllRequest) -> Result<CleanupAllResponse> {
        self.clear(&request.container);
        Ok(CleanupAllResponse {})
    }

    /// Closes the sessions that nobody used for long; a session whose steps run is used.
    pub(crate) fn collect_garbage(&self) {
        let Some(limit) = self.options.session_idle else {
            return;
        };
        let mut dropped = Vec::new();
        {
            let mut sessions = lock(&self.sessions);
            sessions.retain(|handle, session| {
                let idle = lock(&session.used).elapsed();
                let keep = idle <= limit || session.session.num_running() > 0;
                if !keep {
                    tracing::warn!(session = handle, ?idle, "session closed: nobody used it");
                    dropped.push(session.clone());
                }
                keep
            });
            self.metrics.sessions.set(sessions.len() as i64);
        }
        dropped.iter().for_each(|s| s.session.garbage_collect());
    }

    /// Steps under way in all sessions.
    pub(crate) fn num_running(&self) -> usize {
        let sessions = lock(&self.sessions);
        sessions.values().map(|s| s.session.num_running()).sum()
    }

    /// Closes every session.
    pub(crate) fn close_all(&self) {
        let sessions: Vec<_> = lock(&self.sessions).drain().collect();
        sessions.iter().for_each(|(_, s)| s.session.close());
    }
}

impl MasterSession {
    fn timeout_of(&self, options: &RunOptionsProto) -> Option<Duration> {
        millis(options.timeout_in_ms).or(self.timeout)
    }

    /// What the client asked to know of a step.
    fn metadata(&self, watch: &Watch, signature: &Signature) -> Result<Option<RunMetadata>> {
        let session = &self.session;
        if watch.trace.is_none() && !watch.graphs {
            return Ok(None);
        }
        let (asked, names) = (session.placement(), self.devices.names());
        let callable = session.cached(signature);
        let parts = callable.as_ref().map(|c| c.placement()).unwrap_or_default();
        let first = self.devices.first();
        let device_of = |node: &str| match parts.get(node) {
            Some(part) => names.get(*part).map_or(first, String::as_str),
            None if parts.is_empty() => asked.get(node).map_or(first, String::as_str),
            None => first,
        };
        let trace = watch.trace.as_ref();
        let stats = trace.map(|t| t.finish(device_of, &session.inputs()));
        let graphs = match watch.graphs || watch.costs {
            true => session.partition_graphs(signature)?,
            false => Vec::new(),
        };
        let costs = stats.as_ref().filter(|_| watch.costs);
        Ok(Some(RunMetadata {
            cost_graph: costs.map(|stats| cost_graph(&graphs, stats)),
            step_stats: stats.filter(|_| watch.stats),
            partition_graphs: if watch.graphs { graphs } else { Vec::new() },
            ..Default::default()
        }))
    }

    /// Counts a step; whether it is one whose costs the client wants to know: of each signature every so many
    /// steps, as `build_cost_model` of its configuration says, shifted by `build_cost_model_after`.
    fn wants_costs(&self, signature: &Signature) -> bool {
        let (every, after) = self.cost_model;
        if every <= 0 {
            return false;
        }
        let mut steps = lock(&self.steps);
        let step = steps.entry(signature.clone()).or_insert(0);
        *step += 1;
        step.wrapping_sub(after) % every == 0
    }

    /// An error of a step, with the task that it comes from, as TensorFlow says it.
    fn as_clients_hear(&self, e: Status) -> Status {
        match e.node() {
            // Whichever of the two clocks rings first, the client hears the same.
            _ if e.code() == Code::DeadlineExceeded => deadline_exceeded(),
            Some(_) => e.prefixed(&format!("From {}:\n", self.devices.task())),
            None => e,
        }
    }
}

/// What a client wants to know of a step.
struct Watch {
    trace: Option<Arc<StepTrace>>,
    /// Whether the client gets the trace.
    stats: bool,
    graphs: bool,
    /// Whether this step's costs are told.
    costs: bool,
}

impl Watch {
    fn new(
        session: &MasterSession,
        options: &RunOptionsProto,
        signature: &Signature,
    ) -> Result<Self> {
        if session.keeps_graphs && options.output_partition_graphs {
            return Err(invalid_argument!(
                "RunOptions.output_partition_graphs() is not supported when \
                 disable_output_partition_graphs is true."
            ));
        }
        // The other levels trace what is below the ops, of which TensorFlow says nothing here.
        let traces = options.trace_level() == TraceLevel::FullTrace;
        let costs = session.wants_costs(signature);
        Ok(Watch {
            trace: (traces || costs).then(Arc::default),
            stats: traces,
            graphs: options.output_partition_graphs,
            costs,
        })
    }

    fn run_options(
        &self,
        session: &MasterSession,
        options: &RunOptionsProto,
        cancel: &CancelToken,
    ) -> RunOptions {
        RunOptions {
            timeout: session.timeout_of(options),
            cancel: cancel.clone(),
            trace: self.trace.clone().map(|t| -> Arc<dyn TraceSink> { t }),
        }
    }
}

fn check_ends(signature: &Signature) -> Result<()> {
    let mut fetches = signature.fetches.iter();
    match fetches.find(|name| signature.feeds.contains(name)) {
        Some(name) => Err(invalid_argument!("{name} is both fed and fetched.")),
        None => Ok(()),
    }
}

fn response(names: &[String], tensors: &[Tensor]) -> Result<RunStepResponse> {
    let mut seen = HashSet::new();
    // What is fetched twice is sent once.
    let named = names.iter().zip(tensors).filter(|(n, _)| seen.insert(*n));
    Ok(RunStepResponse {
        tensor: named.map(|(n, t)| fetched(n, t)).collect::<Result<_>>()?,
        ..Default::default()
    })
}

fn millis(ms: i64) -> Option<Duration> {
    u64::try_from(ms)
        .ok()
        .filter(|ms| *ms > 0)
        .map(Duration::from_millis)
}
