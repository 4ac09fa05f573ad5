//! [`GrpcCluster`]: the tasks of a session that has several, over gRPC.

use crate::config::isolates_state;
use crate::device::{Devices, TaskName, random_id, random_step_id, random_u64};
use crate::handles::HandleTable;
use crate::master_session::lock;
use crate::node_names::make_unique;
use crate::peers::{Peer, Peers};
use crate::rendezvous::StepRendezvous;
use crate::step_stats::StepTrace;
use crate::task::Task;
use ferroflow_base::{Code, Result, Status, deadline_exceeded, internal};
use ferroflow_model::proto::{
    CleanupGraphRequest, CleanupGraphResponse, ConfigProto, CreateWorkerSessionRequest,
    CreateWorkerSessionResponse, DeleteWorkerSessionRequest, DeleteWorkerSessionResponse,
    DeregisterGraphRequest, DeregisterGraphResponse, DeviceAttributes, ExecutorOpts,
    GetStatusRequest, GetStatusResponse, GraphDef, GraphOptions, NamedTensorProto,
    RegisterGraphRequest, RegisterGraphResponse, RunGraphRequest, RunGraphResponse, ServerDef,
};
use ferroflow_runtime::cluster::{Cluster, ClusterStep, RegisteredGraph, RunDone};
use ferroflow_runtime::{CancelToken, DeviceSet, DeviceSpec, Rendezvous, TraceSink};
use ferroflow_tensor::Tensor;
use std::any::Any;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::sync::oneshot;
use tokio::task::JoinSet;

/// How long closing a session waits for its workers.
pub(crate) const CLOSE_TIMEOUT: Duration = Duration::from_secs(10);

/// The tasks of a session, the own one first.
pub(crate) struct GrpcCluster {
    task: Arc<Task>,
    /// The name of this task in the session's cluster.
    own: TaskName,
    peers: Arc<Peers>,
    /// The other tasks; task number `i` is at `i - 1`.
    others: Vec<Peer>,
    devices: Vec<DeviceAttributes>,
    /// The number of the task of each device.
    task_of: Vec<usize>,
    handle: String,
    config: ConfigProto,
    /// Whether the sessions of the workers have ended, or are not the cluster's to end.
    is_closed: AtomicBool,
}

impl Drop for GrpcCluster {
    fn drop(&mut self) {
        self.close();
    }
}

impl GrpcCluster {
    /// Connects to the tasks of a session's cluster, which are `peers`. `None` if this task is alone in it.
    ///
    /// # Errors
    /// The reason of `cancel`, with the tasks that did not answer; those of the tasks.
    pub(crate) fn connect(
        task: &Arc<Task>,
        own: &Devices,
        peers: &Arc<Peers>,
        handle: &str,
        config: &ConfigProto,
        cancel: &CancelToken,
    ) -> Result<Option<Arc<GrpcCluster>>> {
        let name = own.task().clone();
        let filters = config.device_filters.iter().map(|f| DeviceSpec::parse(f));
        let filters: Vec<DeviceSpec> = filters.collect::<Result<_>>()?;
        let is_wanted = |task: &&TaskName| {
            let device = format!("{task}/device:CPU:0");
            **task != name && (filters.is_empty() || filters.iter().any(|f| f.matches(&device)))
        };
        let others = peers.tasks().filter(is_wanted).map(|task| peers.get(task));
        let others: Vec<Peer> = others.collect::<Result<_>>()?;
        if others.is_empty() {
            return Ok(None);
        }
        let runtime = peers.runtime().clone();
        let statuses = runtime.block_on(get_statuses(&others, cancel))?;
        let mut devices = own.attributes().to_vec();
        let mut task_of = vec![0; devices.len()];
        for (i, (peer, status)) in others.iter().zip(statuses).enumerate() {
            for mut device in status.device_attributes {
                let local = device.name.rsplit('/').next().unwrap_or_default();
                device.name = format!("{}/{local}", peer.task);
                devices.push(device);
                task_of.push(i + 1);
            }
        }
        let cluster = GrpcCluster {
            task: task.clone(),
            own: name,
            peers: peers.clone(),
            others,
            devices,
            task_of,
            handle: handle.to_string(),
            config: config.clone(),
            is_closed: AtomicBool::new(false),
        };
        runtime.block_on(cluster.create_worker_sessions(cancel))?;
        Ok(Some(Arc::new(cluster)))
    }

    /// The tasks of an eager context: those that have some of the devices `all`. They have a session of
    /// the handle already.
    ///
    /// # Errors
    /// INVALID_ARGUMENT if an address is malformed.
    pub(crate) fn of_context(
        task: &Arc<Task>,
        own: &Devices,
        handle: &str,
        peers: &Arc<Peers>,
        all: &[DeviceAttributes],
    ) -> Result<GrpcCluster> {
        let name = own.task().clone();
        let mut others: Vec<Peer> = Vec::new();
        let mut devices = own.attributes().to_vec();
        let mut task_of = vec![0; devices.len()];
        for device in all {
            let owner = TaskName::of_device(&device.name);
            let Some(owner) = owner.filter(|owner| *owner != name) else {
                continue;
            };
            // Devices of a task that has left the cluster stay in the list for a while.
            let Ok(peer) = peers.get(&owner) else {
                continue;
            };
            let known = others.iter().position(|p| p.task == owner);
            let number = known.unwrap_or_else(|| {
                others.push(peer);
                others.len() - 1
            });
            devices.push(device.clone());
            task_of.push(number + 1);
        }
        Ok(GrpcCluster {
            task: task.clone(),
            own: name,
            peers: peers.clone(),
            others,
            devices,
            task_of,
            handle: handle.to_string(),
            config: ConfigProto {
                allow_soft_placement: true,
                ..Default::default()
            },
            is_closed: AtomicBool::new(true),
        })
    }

    async fn create_worker_sessions(&self, cancel: &CancelToken) -> Result<()> {
        let mut calls = JoinSet::new();
        let incarnation = self.devices.first().map_or(0, |d| d.incarnation);
        for peer in &self.others {
            let request = CreateWorkerSessionRequest {
                session_handle: self.handle.clone(),
                server_def: Some(ServerDef {
                    protocol: "grpc".to_string(),
                    job_name: peer.task.job.clone(),
                    task_index: peer.task.index as i32,
                    cluster: self.config.cluster_def.clone(),
                    ..Default::default()
                }),
                isolate_session_state: isolates_state(&self.config),
                master_task: self.own.to_string(),
                master_incarnation: incarnation as i64,
                ..Default::default()
            };
            let (peer, cancel) = (peer.clone(), cancel.clone());
            calls.spawn(async move {
                let call = peer.call_when_ready::<_, CreateWorkerSessionResponse>(
                    "CreateWorkerSession",
                    request,
                    &cancel,
                );
                call.await
            });
        }
        while let Some(done) = calls.join_next().await {
            done.map_err(|e| internal!("CreateWorkerSession: {e}"))??;
        }
        Ok(())
    }

    /// All devices of the session, those of this task first.
    pub(crate) fn device_set(&self, soft: bool) -> DeviceSet {
        let options = self.config.graph_options.as_ref();
        DeviceSet {
            names: self.devices.iter().map(|d| d.name.clone()).collect(),
            incarnations: self.devices.iter().map(|d| d.incarnation).collect(),
            soft,
            sends_bfloat16: options.is_some_and(|o| o.enable_bfloat16_sendrecv),
            schedules_recvs: options.is_some_and(|o| o.enable_recv_scheduling),
        }
    }

    /// The devices of the other tasks.
    pub(crate) fn remote_devices(&self) -> Vec<DeviceAttributes> {
        let all = self.devices.iter().zip(&self.task_of);
        let remote = all.filter(|(_, task)| **task > 0);
        remote.map(|(device, _)| device.clone()).collect()
    }

    /// Ends the sessions of the workers; those that do not answer are left alone.
    pub(crate) fn close(&self) {
        if self.is_closed.swap(true, Ordering::Relaxed) {
            return;
        }
        for peer in &self.others {
            let request = DeleteWorkerSessionRequest {
                session_handle: self.handle.clone(),
            };
            peer.notify::<_, DeleteWorkerSessionResponse>(
                "DeleteWorkerSession",
                request,
                CLOSE_TIMEOUT,
            );
        }
    }

    /// The options of a part. TensorFlow's workers would wait for ever in loops whose Recv nodes they have
    /// scheduled.
    fn graph_options(&self, peer: &Peer, part: &GraphDef) -> Option<GraphOptions> {
        let mut options = self.config.graph_options.clone();
        let has_loop = || part.node.iter().any(|n| n.op == "NextIteration");
        if let Some(options) = &mut options
            && !peer.link.is_known()
            && has_loop()
        {
            options.enable_recv_scheduling = false;
        }
        options
    }

    /// The incarnation of a task's first device.
    fn incarnation_of(&self, task: usize) -> u64 {
        let first = self.task_of.iter().position(|of| *of == task);
        let first = first.and_then(|i| self.devices.get(i));
        first.map_or(0, |device| device.incarnation)
    }

    fn peer(&self, task: usize) -> Result<&Peer> {
        let peer = task.checked_sub(1).and_then(|i| self.others.get(i));
        peer.ok_or_else(|| internal!("the session has no task {task}"))
    }
}

/// Opens a link that was lost, for later steps.
fn reopen(peer: &Peer) {
    if peer.link.is_known() && !peer.link.is_open() {
        let link = peer.link.clone();
        // A link that cannot be opened is not known any more.
        peer.runtime().spawn(async move { drop(link.open().await) });
    }
}

/// Calls GetStatus of all tasks and waits until each has answered.
pub(crate) async fn get_statuses(
    others: &[Peer],
    cancel: &CancelToken,
) -> Result<Vec<GetStatusResponse>> {
    let mut calls = JoinSet::new();
    for (i, peer) in others.iter().enumerate() {
        let (peer, cancel) = (peer.clone(), cancel.clone());
        calls.spawn(async move {
            let call = peer.call_when_ready("GetStatus", GetStatusRequest {}, &cancel);
            (i, call.await)
        });
    }
    let mut statuses = vec![None; others.len()];
    let mut error = None;
    while let Some(done) = calls.join_next().await {
        match done.map_err(|e| internal!("GetStatus: {e}"))? {
            (i, Ok(status)) => statuses[i] = Some(status),
            (_, Err(e)) => error = Some(e),
        }
    }
    if let Some(error) = error {
        let missing = others.iter().zip(&statuses).filter(|(_, s)| s.is_none());
        let missing: Vec<String> = missing.map(|(peer, _)| peer.task.to_string()).collect();
        let missing = missing.join(", ");
        return Err(match error.code() {
            Code::DeadlineExceeded => deadline_exceeded!(
                "CreateSession timed out while waiting for response from worker: {missing}"
            ),
            _ => error.note(format!("no response from worker: {missing}")),
        });
    }
    Ok(statuses.into_iter().flatten().collect())
}

impl Cluster for GrpcCluster {
    fn task_of(&self, device: usize) -> usize {
        self.task_of.get(device).copied().unwrap_or(0)
    }

    fn own_task(&self) -> usize {
        0
    }

    fn register(&self, task: usize, mut graph: GraphDef) -> Result<Arc<dyn RegisteredGraph>> {
        let peer = self.peer(task)?;
        let is_eager = self.handle.starts_with(EAGER);
        make_unique(&mut graph, is_eager, &format!("_S{:016x}", random_u64()));
        let request = RegisterGraphRequest {
            session_handle: self.handle.clone(),
            create_worker_session_called: true,
            graph_options: self.graph_options(peer, &graph),
            graph_def: Some(graph),
            config_proto: Some(self.config.clone()),
            ..Default::default()
        };
        let call = peer.call::<_, RegisterGraphResponse>("RegisterGraph", request);
        let registered = self.peers.runtime().block_on(async {
            let registered = call.await?;
            if peer.link.is_known()
                && let Err(e) = peer.link.open().await
            {
                tracing::debug!("no link to {}: {}", peer.task, e.message());
            }
            Ok::<_, Status>(registered)
        })?;
        Ok(Arc::new(GrpcGraph {
            task: self.task.clone(),
            peer: peer.clone(),
            session: self.handle.clone(),
            handle: registered.graph_handle,
            handles: self.task.handles.clone(),
            own_device: self
                .devices
                .first()
                .map(|d| d.name.clone())
                .unwrap_or_default(),
        }))
    }

    fn begin_step(
        &self,
        tasks: &[usize],
        id: Option<u64>,
        trace: Option<&Arc<dyn TraceSink>>,
    ) -> Result<Arc<dyn ClusterStep>> {
        let id = id.unwrap_or_else(random_step_id);
        let rendezvous = self.task.rendezvous.get(id);
        rendezvous.initialize(&self.own, &self.peers)?;
        let peers = tasks.iter().map(|t| self.peer(*t).cloned());
        let peers = peers.collect::<Result<Vec<_>>>()?;
        if peers.iter().all(|peer| peer.link.is_open()) {
            let incarnations = std::iter::once(&0).chain(tasks);
            let incarnations = incarnations.map(|task| self.incarnation_of(*task));
            rendezvous.set_pushing(incarnations.collect());
        } else {
            peers.iter().for_each(reopen);
        }
        Ok(Arc::new(GrpcStep {
            id,
            task: self.task.clone(),
            rendezvous,
            peers,
            trace: trace.cloned(),
        }))
    }
}

/// What the handles of the sessions of eager contexts begin with.
pub(crate) const EAGER: &str = "eager_";

/// A step in progress.
struct GrpcStep {
    id: u64,
    task: Arc<Task>,
    rendezvous: Arc<StepRendezvous>,
    /// The other tasks that run parts of it.
    peers: Vec<Peer>,
    trace: Option<Arc<dyn TraceSink>>,
}

impl ClusterStep for GrpcStep {
    fn id(&self) -> u64 {
        self.id
    }

    fn rendezvous(&self) -> Arc<dyn Rendezvous> {
        self.rendezvous.clone()
    }

    fn trace(&self) -> Option<&Arc<dyn TraceSink>> {
        self.trace.as_ref()
    }
}

impl Drop for GrpcStep {
    fn drop(&mut self) {
        self.task.end_step(self.id);
        let pushing = self.rendezvous.pushing();
        if pushing.is_some_and(|p| p.ended.load(Ordering::Acquire) == self.peers.len()) {
            return;
        }
        for peer in &self.peers {
            let request = CleanupGraphRequest {
                step_id: self.id as i64,
            };
            peer.notify::<_, CleanupGraphResponse>("CleanupGraph", request, CLOSE_TIMEOUT);
        }
    }
}

/// A graph that another task runs.
struct GrpcGraph {
    task: Arc<Task>,
    peer: Peer,
    session: String,
    handle: String,
    handles: Arc<HandleTable>,
    /// The device that has the resources of this task.
    own_device: String,
}

impl RegisteredGraph for GrpcGraph {
    fn run(
        &self,
        step: &Arc<dyn ClusterStep>,
        feeds: Vec<(String, Tensor)>,
        fetches: Vec<String>,
        cancel: &CancelToken,
        done: RunDone,
    ) {
        let send = feeds.iter().map(|(key, tensor)| {
            let tensor = self.handles.encode(tensor, &self.own_device)?;
            Ok(NamedTensorProto {
                name: key.clone(),
                tensor: Some(tensor),
            })
        });
        let send = match send.collect::<Result<_>>() {
            Ok(send) => send,
            Err(e) => return done(Err(e)),
        };
        let request = RunGraphRequest {
            session_handle: self.session.clone(),
            create_worker_session_called: true,
            graph_handle: self.handle.clone(),
            step_id: step.id() as i64,
            send,
            recv_key: fetches.clone(),
            exec_opts: Some(ExecutorOpts {
                record_timeline: step.trace().is_some(),
                ..Default::default()
            }),
            store_errors_in_response_body: true,
            request_id: random_id(),
            ..Default::default()
        };
        let trace = step.trace().cloned();
        let (peer, handles) = (self.peer.clone(), self.handles.clone());
        let is_eager = self.session.starts_with(EAGER);
        let done = move |answer: Result<RunGraphResponse>| {
            if let (Some(trace), Ok(answer)) = (&trace, &answer)
                && let Some(trace) = (&**trace as &dyn Any).downcast_ref::<StepTrace>()
                && let Some(stats) = &answer.step_stats
            {
                trace.add_remote(stats);
            }
            let results = answer.and_then(|answer| results(answer, &fetches, &peer.task, &handles));
            done(results.map_err(|e| match is_eager {
                true => peer.with_eager_origin(e),
                false => e,
            }));
        };
        let rendezvous = self.task.rendezvous.get(step.id());
        match rendezvous.pushing().map(|p| p.tasks.clone()) {
            Some(tasks) => self.run_linked(request, tasks, rendezvous, cancel, done),
            None => self.run_called(request, cancel, done),
        }
    }
}

impl GrpcGraph {
    /// Runs the part by RunGraph.
    fn run_called(
        &self,
        request: RunGraphRequest,
        cancel: &CancelToken,
        done: impl FnOnce(Result<RunGraphResponse>) + Send + 'static,
    ) {
        let (cancelled, on_cancel) = oneshot::channel();
        let (token, sender) = (cancel.clone(), Mutex::new(Some(cancelled)));
        let registration = cancel.on_cancel(move || {
            let sender = sender.lock().ok().and_then(|mut s| s.take());
            if let (Err(reason), Some(sender)) = (token.check(), sender) {
                // The call may just have ended.
                let _ = sender.send(reason);
            }
        });
        let peer = self.peer.clone();
        self.peer.runtime().spawn(async move {
            let call = peer.call::<_, RunGraphResponse>("RunGraph", request);
            let answer = tokio::select! {
                answer = call => answer,
                Ok(reason) = on_cancel => Err(reason),
            };
            drop(registration);
            done(answer);
        });
    }

    /// Runs the part over the link to its task.
    fn run_linked(
        &self,
        request: RunGraphRequest,
        tasks: Vec<u64>,
        step: Arc<StepRendezvous>,
        cancel: &CancelToken,
        done: impl FnOnce(Result<RunGraphResponse>) + Send + 'static,
    ) {
        let (peer, sent) = (self.peer.clone(), Arc::new(Mutex::new(Some(done))));
        // Whether the call has ended, and what cancels it.
        let kept = Arc::new(Mutex::new((false, None)));
        let (waiting, ended) = (sent.clone(), kept.clone());
        let done = move |answer: Result<RunGraphResponse>| {
            if answer.as_ref().is_ok_and(|a| a.status_code == 0)
                && let Some(pushing) = step.pushing()
            {
                pushing.ended.fetch_add(1, Ordering::AcqRel);
            }
            let registration = std::mem::replace(&mut *lock(&ended), (true, None));
            drop(registration);
            let done = lock(&waiting).take();
            if let Some(done) = done {
                done(answer.map_err(|e| peer.lost("RunGraph", &e)));
            }
        };
        match self.peer.link.run(request, tasks, done) {
            Ok(call) => {
                let token = cancel.clone();
                let registration = cancel.on_cancel(move || {
                    if let Err(reason) = token.check() {
                        call.cancel(reason);
                    }
                });
                let mut kept = lock(&kept);
                // It may have ended already.
                if !kept.0 {
                    kept.1 = Some(registration);
                }
            }
            Err(e) => {
                let done = lock(&sent).take();
                if let Some(done) = done {
                    done(Err(self.peer.lost("RunGraph", &e)));
                }
            }
        }
    }
}

impl Drop for GrpcGraph {
    fn drop(&mut self) {
        let request = DeregisterGraphRequest {
            graph_handle: self.handle.clone(),
            session_handle: self.session.clone(),
            create_worker_session_called: true,
        };
        self.peer
            .notify::<_, DeregisterGraphResponse>("DeregisterGraph", request, CLOSE_TIMEOUT);
    }
}

/// The fetches of an answer, in the order of `keys`, or its error.
fn results(
    answer: RunGraphResponse,
    keys: &[String],
    task: &TaskName,
    handles: &HandleTable,
) -> Result<Vec<Tensor>> {
    if answer.status_code != 0 {
        let code = Code::from_number(answer.status_code).unwrap_or(Code::Unknown);
        let text = format!("From {task}:\n{}", answer.status_error_message);
        return Err(Status::new(code, text));
    }
    let fetch = |key: &String| {
        let named = answer.recv.iter().find(|r| r.name == *key);
        let proto = named.and_then(|r| r.tensor.as_ref());
        let proto = proto.ok_or_else(|| internal!("{task} did not return {key}"))?;
        handles.decode(proto)
    };
    keys.iter().map(fetch).collect()
}
