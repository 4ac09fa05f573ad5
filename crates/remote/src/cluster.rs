//! [`GrpcCluster`]: the tasks of a session that has several, over gRPC.

use crate::config::isolates_state;
use crate::device::{Devices, TaskName, random_step_id};
use crate::peers::{Peer, Peers};
use crate::rendezvous::StepRendezvous;
use crate::task::Task;
use ferroflow_base::{Code, Result, deadline_exceeded, internal};
use ferroflow_model::proto::{
    CleanupGraphRequest, CleanupGraphResponse, ConfigProto, CreateWorkerSessionRequest,
    CreateWorkerSessionResponse, DeleteWorkerSessionRequest, DeleteWorkerSessionResponse,
    DeviceAttributes, GetStatusRequest, GetStatusResponse, GraphDef, GraphOptions, ServerDef,
};
use ferroflow_runtime::cluster::{Cluster, ClusterStep, RegisteredGraph};
use ferroflow_runtime::{CancelToken, DeviceSet, DeviceSpec, Rendezvous, TraceSink};
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::task::JoinSet;

/// How long closing a session waits for its workers.
pub(crate) const CLOSE_TIMEOUT: Duration = Duration::from_secs(10);

/// The tasks of a session, the own one first.
pub(crate) struct GrpcCluster {
    pub(crate) task: Arc<Task>,
    /// The name of this task in the session's cluster.
    own: TaskName,
    peers: Arc<Peers>,
    /// The other tasks; task number `i` is at `i - 1`.
    others: Vec<Peer>,
    pub(crate) devices: Vec<DeviceAttributes>,
    /// The number of the task of each device.
    task_of: Vec<usize>,
    /// The incarnation of each task's first device.
    incarnations: Vec<u64>,
    /// The number of each task.
    pub(crate) numbers: HashMap<TaskName, usize>,
    pub(crate) handle: String,
    pub(crate) config: ConfigProto,
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
        let statuses = ferroflow_rpc::block_on(&runtime, get_statuses(&others, cancel))?;
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
        let numbers = others.iter().map(|peer| peer.task.clone()).zip(1..);
        let numbers = numbers.chain([(name.clone(), 0)]).collect();
        let cluster = GrpcCluster {
            task: task.clone(),
            own: name,
            peers: peers.clone(),
            incarnations: incarnations(&devices, &task_of, others.len() + 1),
            numbers,
            others,
            devices,
            task_of,
            handle: handle.to_string(),
            config: config.clone(),
            is_closed: AtomicBool::new(false),
        };
        ferroflow_rpc::block_on(&runtime, cluster.create_worker_sessions(cancel))?;
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
        let mut numbers = HashMap::from([(name.clone(), 0)]);
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
            let number = *numbers.entry(owner).or_insert_with(|| {
                others.push(peer);
                others.len()
            });
            devices.push(device.clone());
            task_of.push(number);
        }
        Ok(GrpcCluster {
            task: task.clone(),
            own: name,
            peers: peers.clone(),
            incarnations: incarnations(&devices, &task_of, others.len() + 1),
            numbers,
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
            ..Default::default()
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
    pub(crate) fn graph_options(&self, peer: &Peer, part: &GraphDef) -> Option<GraphOptions> {
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
    pub(crate) fn incarnation_of(&self, task: usize) -> u64 {
        self.incarnations.get(task).copied().unwrap_or(0)
    }

    pub(crate) fn peer(&self, task: usize) -> Result<&Peer> {
        let peer = task.checked_sub(1).and_then(|i| self.others.get(i));
        peer.ok_or_else(|| internal!("the session has no task {task}"))
    }
}

/// The incarnation of the first device of each of `n` tasks.
fn incarnations(devices: &[DeviceAttributes], task_of: &[usize], n: usize) -> Vec<u64> {
    let mut first = vec![0; n];
    // The last that is written is the first device.
    for (device, task) in devices.iter().zip(task_of).rev() {
        first[*task] = device.incarnation;
    }
    first
}

/// Opens a link that was lost, for later steps.
fn reopen(peer: &Peer) {
    if peer.link.is_known() && !peer.link.is_open() {
        let link = peer.link.clone();
        // A link that cannot be opened is not known any more.
        ferroflow_rpc::spawn(peer.runtime(), async move { drop(link.open().await) });
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
                "CreateSession timed out while waiting for response from worker: {missing} ({})",
                error.message()
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

    fn register(&self, parts: Vec<(usize, GraphDef)>) -> Result<Vec<Arc<dyn RegisteredGraph>>> {
        let n = parts.len();
        let mut calls = JoinSet::new();
        // A worker has its session's cluster already.
        let config = ConfigProto {
            cluster_def: None,
            ..self.config.clone()
        };
        let runtime = self.peers.runtime();
        for (i, (task, graph)) in parts.into_iter().enumerate() {
            let (graph, call) = self.registration(task, graph, &config)?;
            let call = async move { (i, call.await.map(|handle| graph.registered(handle))) };
            calls.spawn_on(call, runtime);
        }
        runtime.block_on(async {
            let mut registered: Vec<Option<Arc<dyn RegisteredGraph>>> = vec![None; n];
            let mut error = None;
            // All of them: a graph that comes after an error is deregistered.
            while let Some(done) = calls.join_next().await {
                match done.map_err(|e| internal!("RegisterGraph: {e}"))? {
                    (i, Ok(graph)) => registered[i] = Some(Arc::new(graph)),
                    (_, Err(e)) => drop(error.get_or_insert(e)),
                }
            }
            match error {
                Some(error) => Err(error),
                None => Ok(registered.into_iter().flatten().collect()),
            }
        })
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
