//! [`Master`]: the sessions of a server, one method for each of `tensorflow.MasterService`'s.

use crate::cluster::GrpcCluster;
use crate::collectives::carrier::Carrier;
use crate::collectives::steps::GraphKeys;
use crate::config::{compile_options, costs, isolates_state, log_placement, session_task};
use crate::device::{Devices, ServerDef, random_u64};
use crate::master_session::{ClientCallable, MasterSession, StepObserver, lock, millis};
use crate::monitor::Metrics;
use crate::peers::Peers;
use crate::recent_requests::RecentRequests;
use crate::task::Task;
use crate::tensors::{decode_feeds, encode_fetch};
use ferroflow_base::{Result, aborted, invalid_argument, unimplemented_error};
use ferroflow_model::proto::{
    CallableOptions, CloseSessionRequest, CloseSessionResponse, ConfigProto, CreateSessionRequest,
    CreateSessionResponse, ExtendSessionRequest, ExtendSessionResponse, GraphDef,
    ListDevicesRequest, ListDevicesResponse, MakeCallableRequest, MakeCallableResponse,
    PartialRunSetupRequest, PartialRunSetupResponse, ReleaseCallableRequest,
    ReleaseCallableResponse, ResetRequest, ResetResponse, RunCallableRequest, RunCallableResponse,
};
use ferroflow_runtime::cluster::Cluster;
use ferroflow_runtime::{
    CancelToken, Resources, Session, SessionOptions, Signature, TensorConnection,
};
use std::collections::HashMap;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tokio::runtime::Handle;

/// Options of a master.
#[derive(Clone, Debug)]
pub struct MasterOptions {
    /// The cluster, and the task of this server in it.
    pub server: ServerDef,
    /// Number of virtual CPU devices; 0 means that of the server's configuration, else 1.
    pub cpus: usize,
    /// Threads that compute; 0 means as many as the server's configuration says, else all processors.
    pub threads: usize,
    /// Closes sessions that are unused for this long; `None` keeps all.
    pub session_idle: Option<Duration>,
    /// Most sessions at a time.
    pub max_sessions: usize,
    /// What carries the buffers of collectives, if the tasks do not ask each other for them.
    pub carrier: Option<Arc<dyn Carrier>>,
}

impl Default for MasterOptions {
    fn default() -> Self {
        MasterOptions {
            server: ServerDef::single("localhost", "localhost:0"),
            cpus: 0,
            threads: 0,
            session_idle: Some(Duration::from_secs(24 * 3600)),
            max_sessions: 100_000,
            carrier: None,
        }
    }
}

/// The sessions of a server, and the state that they share.
pub struct Master {
    options: MasterOptions,
    pub(crate) task: Arc<Task>,
    sessions: Mutex<HashMap<String, Arc<MasterSession>>>,
    pub(crate) recent: RecentRequests,
    pub(crate) metrics: Metrics,
}

impl Master {
    /// Returns a master without sessions; `runtime` serves its connections to other tasks.
    pub fn new(options: MasterOptions, runtime: Handle) -> Self {
        let task = Task::new(&options, runtime);
        Self::of_task(options, task)
    }

    /// Returns a master of this task without sessions.
    pub(crate) fn of_task(options: MasterOptions, task: Task) -> Self {
        Master {
            task: Arc::new(task),
            sessions: Mutex::default(),
            recent: RecentRequests::default(),
            metrics: Metrics::default(),
            options,
        }
    }

    /// What the master shares with the worker of its server.
    pub(crate) fn task(&self) -> &Arc<Task> {
        &self.task
    }

    /// How long a session may stay unused.
    pub(crate) fn session_idle(&self) -> Option<Duration> {
        self.options.session_idle
    }

    /// `CreateSession`: a new session over a graph.
    ///
    /// # Errors
    /// As [`Session::create`]; RESOURCE_EXHAUSTED if there are too many sessions; INVALID_ARGUMENT if the
    /// configuration is not supported; DEADLINE_EXCEEDED or the reason of `cancel` if a task does not answer.
    pub fn create_session(
        &self,
        request: CreateSessionRequest,
        cancel: &CancelToken,
    ) -> Result<CreateSessionResponse> {
        let defaults = &self.task.server.defaults;
        let config = defaults.session_config(&request.config.unwrap_or_default())?;
        check_threads(&config)?;
        let own_devices = match &config.cluster_def {
            None => self.task.devices.clone(),
            Some(cluster) => {
                let task = session_task(cluster, &request.target, &self.task.server.task)?;
                Arc::new(self.task.devices.renamed(&task))
            }
        };
        let handle = format!("{:016x}", random_u64());
        let timeout = millis(config.operation_timeout_in_ms);
        // A client that waits as long must still hear which task is missing.
        let limited = timeout.map(|t| cancel.with_timeout(t * 9 / 10));
        let cancel = limited.as_ref().unwrap_or(cancel);
        let peers = self.task.peers_of(&config)?;
        let connected =
            GrpcCluster::connect(&self.task, &own_devices, &peers, &handle, &config, cancel);
        let cluster = connected?;
        let graph = request.graph_def.unwrap_or_default();
        let session = self.open(graph, &config, own_devices, &peers, cluster.clone());
        let inserted = session.and_then(|session| self.insert(&handle, session));
        if let (Err(_), Some(cluster)) = (&inserted, &cluster) {
            cluster.close();
        }
        inserted.map(|()| CreateSessionResponse {
            session_handle: handle,
            graph_version: 0,
        })
    }

    /// Returns the options of a session of this process that has the devices of all tasks of the server's
    /// cluster, and waits until they answer. Its part of a step runs in this process, without a call. Other tasks
    /// fetch tensors from there, so that the server [runs](crate::Server::run) before the first step, on
    /// another thread. What the other tasks keep for these sessions ends with the last one that has these options.
    ///
    /// ```no_run
    /// use ferroflow_remote::{MasterOptions, Server, ServerDef, ServerOptions};
    /// use ferroflow_runtime::Session;
    /// # let graph = Default::default();
    /// let cluster = "chief=localhost:2222;worker=localhost:2223,localhost:2224";
    /// let def = ServerDef::from_flags(cluster, "chief", 0)?;
    /// let server = Server::bind(ServerOptions {
    ///     address: "127.0.0.1:2222".parse().unwrap(),
    ///     monitor: None,
    ///     tls: None,
    ///     max_message: usize::MAX,
    ///     master: MasterOptions { server: def, ..Default::default() },
    /// })?;
    /// let master = server.master();
    /// std::thread::spawn(|| server.run(std::future::pending()));
    /// let session = Session::create(graph, master.session_options(&Default::default())?)?;
    /// # Ok::<(), ferroflow_base::Status>(())
    /// ```
    ///
    /// # Errors
    /// INVALID_ARGUMENT if the configuration is not supported; DEADLINE_EXCEEDED, which names the tasks that did not
    /// answer, after its `operation_timeout_in_ms`, if that is set.
    pub fn session_options(&self, config: &ConfigProto) -> Result<SessionOptions> {
        let config = &self.task.server.defaults.session_config(config)?;
        check_threads(config)?;
        if config.cluster_def.is_some() {
            return Err(invalid_argument!(
                "a session of a server's process has the server's cluster: leave out cluster_def"
            ));
        }
        let handle = format!("{:016x}", random_u64());
        let cancel = CancelToken::new();
        let timeout = millis(config.operation_timeout_in_ms);
        let limited = timeout.map(|t| cancel.with_timeout(t));
        let cancel = limited.as_ref().unwrap_or(&cancel);
        let (own, peers) = (&self.task.devices, &self.task.peers);
        let cluster = GrpcCluster::connect(&self.task, own, peers, &handle, config, cancel)?;
        Ok(self.options_of(config, own, peers, cluster))
    }

    /// The options of a session of these tasks.
    fn options_of(
        &self,
        config: &ConfigProto,
        own_devices: &Arc<Devices>,
        peers: &Arc<Peers>,
        cluster: Option<Arc<GrpcCluster>>,
    ) -> SessionOptions {
        let resources = match isolates_state(config) {
            true => Resources::with_default_container(&self.task.server.task.job),
            false => self.task.resources.fork_session(),
        };
        self.task.join_collectives(&resources, own_devices, peers);
        let devices = match &cluster {
            Some(cluster) => cluster.device_set(config.allow_soft_placement),
            None => own_devices.set(config.allow_soft_placement),
        };
        let graph_options = config.graph_options.as_ref();
        SessionOptions {
            pool: Some(self.task.pool.clone()),
            resources,
            compile: compile_options(config),
            devices,
            cluster: cluster.map(|c| -> Arc<dyn Cluster> { c }),
            place_pruned_graph: graph_options.is_some_and(|g| g.place_pruned_graph),
            freeze_variables: false,
            check_feed_shapes: false,
            costs: costs(config),
            ..Default::default()
        }
    }

    /// Returns a session over `graph`.
    fn open(
        &self,
        graph: GraphDef,
        config: &ConfigProto,
        own_devices: Arc<Devices>,
        peers: &Arc<Peers>,
        cluster: Option<Arc<GrpcCluster>>,
    ) -> Result<MasterSession> {
        let options = self.options_of(config, &own_devices, peers, cluster.clone());
        let collectives = options.resources.collectives();
        let graph_keys = collectives.map(|_| GraphKeys::new(&graph));
        let graph_options = config.graph_options.as_ref();
        let experimental = config.experimental.as_ref();
        let logged = config.log_device_placement.then(|| graph.clone());
        let session = Session::create(graph, options)?;
        log_placement(&session, logged.as_ref());
        Ok(MasterSession {
            session,
            callables: Mutex::default(),
            next_callable: AtomicI64::new(0),
            timeout: millis(config.operation_timeout_in_ms),
            devices: own_devices,
            cluster,
            logs_placement: config.log_device_placement,
            keeps_graphs: experimental.is_some_and(|e| e.disable_output_partition_graphs),
            cost_model: graph_options
                .map_or((0, 0), |g| (g.build_cost_model, g.build_cost_model_after)),
            steps: Mutex::default(),
            graph_keys,
            used: Mutex::new(Instant::now()),
        })
    }

    fn insert(&self, handle: &str, session: MasterSession) -> Result<()> {
        let mut sessions = lock(&self.sessions);
        if sessions.len() >= self.options.max_sessions {
            return Err(ferroflow_base::resource_exhausted!(
                "the server has {} sessions, the most it may have; close some or start it with a \
                 higher --max-sessions",
                sessions.len()
            ));
        }
        sessions.insert(handle.to_string(), Arc::new(session));
        self.metrics.sessions.set(sessions.len() as i64);
        Ok(())
    }

    pub(crate) fn find(&self, handle: &str) -> Result<Arc<MasterSession>> {
        let session = lock(&self.sessions).get(handle).cloned();
        let session = session.ok_or_else(|| aborted!("Session {handle} is not found."))?;
        *lock(&session.used) = Instant::now();
        Ok(session)
    }

    /// `ExtendSession`: adds nodes to a session's graph.
    ///
    /// # Errors
    /// As [`Session::extend`]; ABORTED if the session does not exist.
    pub fn extend_session(&self, request: ExtendSessionRequest) -> Result<ExtendSessionResponse> {
        let session = self.find(&request.session_handle)?;
        let graph = request.graph_def.unwrap_or_default();
        let keys = session.graph_keys.iter();
        keys.for_each(|keys| keys.extend(&graph));
        let logged = session.logs_placement.then(|| graph.clone());
        let version = request.current_graph_version;
        let new_graph_version = session.session.extend(graph, version)?;
        log_placement(&session.session, logged.as_ref());
        Ok(ExtendSessionResponse { new_graph_version })
    }

    /// `PartialRunSetup`: begins a step whose feeds come in several calls.
    ///
    /// # Errors
    /// As [`Session::partial_run_setup`]; ABORTED if the session does not exist.
    pub fn partial_run_setup(
        &self,
        request: PartialRunSetupRequest,
    ) -> Result<PartialRunSetupResponse> {
        self.recent
            .reject_duplicate(request.request_id, "PartialRunSetup (Master)")?;
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

    /// `CloseSession`: cancels a session's steps and removes it.
    ///
    /// # Errors
    /// ABORTED if the session does not exist.
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
        session.close();
        Ok(CloseSessionResponse {})
    }

    /// `ListDevices`.
    ///
    /// # Errors
    /// INVALID_ARGUMENT if the session does not exist.
    pub fn list_devices(&self, request: ListDevicesRequest) -> Result<ListDevicesResponse> {
        let handle = &request.session_handle;
        if handle.is_empty() {
            return Ok(ListDevicesResponse {
                local_device: self.task.devices.attributes().to_vec(),
                remote_device: Vec::new(),
            });
        }
        let session = self.find(handle).map_err(|_| {
            invalid_argument!("Session {handle} is not found. Possibly, this master has restarted.")
        })?;
        let cluster = session.cluster.as_ref();
        Ok(ListDevicesResponse {
            local_device: session.devices.attributes().to_vec(),
            remote_device: cluster.map(|c| c.remote_devices()).unwrap_or_default(),
        })
    }

    /// `Reset`: closes all sessions and clears containers of all tasks, the default one if none is named.
    pub fn reset(&self, request: ResetRequest) -> ResetResponse {
        let sessions: Vec<_> = lock(&self.sessions).drain().collect();
        self.metrics.sessions.set(0);
        // Sessions first: steps that wait at a queue end because their session is closed.
        for (_, session) in sessions {
            session.close();
        }
        self.task.clear(&request.container);
        self.task
            .clear_others(&request.container, &request.device_filters);
        ResetResponse {}
    }

    /// `MakeCallable`: compiles a signature.
    ///
    /// # Errors
    /// As [`Session::callable`]; ABORTED if the session does not exist; UNIMPLEMENTED for feed and fetch
    /// devices.
    pub fn make_callable(&self, request: MakeCallableRequest) -> Result<MakeCallableResponse> {
        self.recent
            .reject_duplicate(request.request_id, "MakeCallable (Master)")?;
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
        signature.check_ends()?;
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

    /// `RunCallable`: runs a compiled signature.
    ///
    /// # Errors
    /// As [`Session::run_callable`]; INVALID_ARGUMENT if the handle is not valid or the number of feeds wrong.
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
        self.recent
            .reject_duplicate(request.request_id, "RunCallable (Master)")?;
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
        let feeds = decode_feeds(&signature.feeds, request.feed)?;
        let observer = StepObserver::new(&session, &callable.options, signature)?;
        let options = observer.run_options(&session, &callable.options, cancel);
        let (compiled, asked) = (&callable.callable, &callable.options);
        let results = self.call(&session, compiled, feeds, options, asked)?;
        let named = signature.fetches.iter().zip(&results);
        let fetch = named
            .map(|(n, t)| Ok(encode_fetch(n, t)?.tensor.unwrap_or_default()))
            .collect::<Result<_>>()?;
        let metadata = session.metadata(&observer, signature)?;
        Ok(RunCallableResponse { fetch, metadata })
    }

    /// `ReleaseCallable`: drops a compiled signature.
    ///
    /// # Errors
    /// ABORTED if the session does not exist.
    pub fn release_callable(
        &self,
        request: ReleaseCallableRequest,
    ) -> Result<ReleaseCallableResponse> {
        let session = self.find(&request.session_handle)?;
        lock(&session.callables).remove(&request.handle);
        Ok(ReleaseCallableResponse {})
    }

    /// Closes sessions that were unused for too long and have no running step.
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
                    tracing::warn!(session = handle, ?idle, "closed an unused session");
                    dropped.push(session.clone());
                }
                keep
            });
            self.metrics.sessions.set(sessions.len() as i64);
        }
        for session in dropped {
            session.session.garbage_collect();
            if let Some(cluster) = &session.cluster {
                cluster.close();
            }
        }
    }

    /// The number of running steps of all sessions.
    pub(crate) fn num_running(&self) -> usize {
        let sessions = lock(&self.sessions);
        sessions.values().map(|s| s.session.num_running()).sum()
    }

    /// Closes every session.
    pub(crate) fn close_all(&self) {
        let sessions: Vec<_> = lock(&self.sessions).drain().collect();
        sessions.iter().for_each(|(_, s)| s.close());
    }
}

/// Fails if a session asks for threads of its own.
fn check_threads(config: &ConfigProto) -> Result<()> {
    match config.use_per_session_threads || !config.session_inter_op_thread_pool.is_empty() {
        true => Err(invalid_argument!(
            "Distributed session does not support session thread pool options."
        )),
        false => Ok(()),
    }
}
