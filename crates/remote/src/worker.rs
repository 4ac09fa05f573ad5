//! [`Worker`]: the parts of graphs that masters run here, one method for each of
//! `tensorflow.WorkerService`'s.

use crate::config::compile_options;
use crate::device::TaskName;
use crate::eager_context::{context_of, no_context};
use crate::master::Master;
use crate::master_session::lock;
use crate::partial_steps::PartialSteps;
use crate::recent_requests::RecentRequests;
use crate::rendezvous::RendezvousKey;
use crate::task::Task;
use crate::worker_session::{WorkerGraph, WorkerSession};
use ferroflow_base::{Result, Status, aborted, internal, invalid_argument, ordered_set};
use ferroflow_model::proto::{
    CleanupAllRequest, CleanupAllResponse, CleanupGraphRequest, CleanupGraphResponse,
    CreateWorkerSessionRequest, CreateWorkerSessionResponse, DeleteWorkerSessionRequest,
    DeleteWorkerSessionResponse, DeregisterGraphRequest, DeregisterGraphResponse, GetStatusRequest,
    GetStatusResponse, GraphDef, RecvTensorRequest, RecvTensorResponse, RegisterGraphRequest,
    RegisterGraphResponse, attr_value,
};
use ferroflow_runtime::{
    CompileOptions, DeviceSet, PART_ROUNDS, Resources, Session, SessionOptions, Signature,
};
use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The worker of a server.
pub struct Worker {
    pub(crate) task: Arc<Task>,
    /// Serves requests that name no session.
    default_session: Arc<WorkerSession>,
    next_graph: AtomicU64,
    pub(crate) recent: RecentRequests,
    pub(crate) partial: PartialSteps,
}

impl Worker {
    /// The worker of the server that has this master, without sessions.
    pub fn new(master: &Master) -> Self {
        let task = master.task().clone();
        let resources = task.resources.fork_session();
        task.join_collectives(&resources, &task.devices, &task.peers);
        let default_session = WorkerSession::new(
            task.server.task.clone(),
            task.devices.clone(),
            resources,
            task.peers.clone(),
        );
        Worker {
            default_session: Arc::new(default_session),
            task,
            next_graph: AtomicU64::new(0),
            recent: RecentRequests::default(),
            partial: PartialSteps::default(),
        }
    }

    /// `GetStatus`: the devices.
    pub fn get_status(&self, _: GetStatusRequest) -> GetStatusResponse {
        GetStatusResponse {
            device_attributes: self.task.devices.attributes().to_vec(),
        }
    }

    /// `CreateWorkerSession`.
    ///
    /// # Errors
    /// INVALID_ARGUMENT if the handle is empty or the cluster is malformed.
    pub fn create_worker_session(
        &self,
        request: CreateWorkerSessionRequest,
    ) -> Result<CreateWorkerSessionResponse> {
        if request.session_handle.is_empty() {
            return Err(invalid_argument!("Session must be non-empty."));
        }
        let def = request.server_def.unwrap_or_default();
        let cluster = def.cluster.filter(|cluster| !cluster.job.is_empty());
        let (name, devices, peers) = match &cluster {
            None => {
                let task = &self.task;
                (
                    task.server.task.clone(),
                    task.devices.clone(),
                    task.peers.clone(),
                )
            }
            Some(cluster) => {
                let name = TaskName {
                    job: def.job_name,
                    index: u32::try_from(def.task_index).unwrap_or(0),
                };
                let devices = Arc::new(self.task.devices.renamed(&name));
                let cluster = crate::config::addresses(cluster)?;
                (
                    name,
                    devices,
                    Arc::new(self.task.peers.of_cluster(&cluster)),
                )
            }
        };
        let resources = match request.isolate_session_state {
            true => Resources::with_default_container(&name.job),
            false => self.task.resources.fork_session(),
        };
        self.task.join_collectives(&resources, &devices, &peers);
        let session = WorkerSession::new(name, devices, resources, peers)
            .of_master(request.master_task, request.master_incarnation);
        let sessions = &self.task.sessions;
        let dropped = sessions.insert(request.session_handle, Arc::new(session));
        for handle in dropped {
            self.task.rendezvous.end_session(&handle);
        }
        Ok(CreateWorkerSessionResponse {})
    }

    /// `DeleteWorkerSession`: drops a session and its graphs, if it exists.
    pub fn delete_worker_session(
        &self,
        request: DeleteWorkerSessionRequest,
    ) -> DeleteWorkerSessionResponse {
        self.task.sessions.remove(&request.session_handle);
        self.task.rendezvous.end_session(&request.session_handle);
        DeleteWorkerSessionResponse {}
    }

    pub(crate) fn session(&self, handle: &str, is_created: bool) -> Result<Arc<WorkerSession>> {
        if handle.is_empty() || !is_created {
            return Ok(self.default_session.clone());
        }
        let session = self.task.sessions.get(handle);
        session.ok_or_else(|| match context_of(handle) {
            // Part of a function, which other workers run by RunComponentFunction.
            Some(context) => no_context(context),
            None => possibly_restarted(aborted!(
                "Session handle is not found: {handle}. Possibly this worker (\"{}\") just restarted.",
                self.task.server.task
            )),
        })
    }

    /// `RegisterGraph`: compiles the part of a graph that this task runs.
    ///
    /// # Errors
    /// ABORTED if the session does not exist; those of importing and compiling the graph.
    pub fn register_graph(&self, request: RegisterGraphRequest) -> Result<RegisterGraphResponse> {
        let session = self.session(
            &request.session_handle,
            request.create_worker_session_called,
        )?;
        let config = request.config_proto.unwrap_or_default();
        let graph_options = request.graph_options.as_ref();
        let schedules_recvs = graph_options.is_some_and(|o| o.enable_recv_scheduling);
        let graph = request.graph_def.unwrap_or_default();
        if let Some(node) = graph.node.iter().find(|n| n.device.is_empty()) {
            return Err(invalid_argument!(
                "Node '{}' is missing a device specification",
                node.name
            ));
        }
        let receivers = receivers(&graph, &session.name);
        let signature = Signature {
            targets: sinks(&graph),
            ..Default::default()
        };
        let options = SessionOptions {
            pool: Some(self.task.pool.clone()),
            resources: session.resources.clone(),
            compile: CompileOptions {
                rounds: PART_ROUNDS,
                ..compile_options(&config)
            },
            devices: DeviceSet {
                schedules_recvs,
                ..session.devices.set(config.allow_soft_placement)
            },
            freeze_variables: false,
            check_feed_shapes: false,
            ..Default::default()
        };
        let graph = Session::from_graph_def(graph, options)?;
        let callable = graph.callable(&signature)?;
        let number = self.next_graph.fetch_add(1, Ordering::Relaxed);
        let handle = format!("{number:016x}");
        let registered = WorkerGraph {
            session: graph,
            callable,
            signature,
            receivers,
        };
        lock(&session.graphs).insert(handle.clone(), Arc::new(registered));
        Ok(RegisterGraphResponse {
            graph_handle: handle,
        })
    }

    /// `DeregisterGraph`.
    ///
    /// # Errors
    /// ABORTED if the session or the graph does not exist.
    pub fn deregister_graph(
        &self,
        request: DeregisterGraphRequest,
    ) -> Result<DeregisterGraphResponse> {
        let session = self.session(
            &request.session_handle,
            request.create_worker_session_called,
        )?;
        match lock(&session.graphs).remove(&request.graph_handle) {
            Some(_) => Ok(DeregisterGraphResponse {}),
            None => Err(aborted!(
                "Graph handle is not found: {}. Possibly, this worker just restarted.",
                request.graph_handle
            )),
        }
    }

    /// `CleanupGraph`: ends a step.
    pub fn cleanup_graph(&self, request: CleanupGraphRequest) -> CleanupGraphResponse {
        // The number first: a call that begins the step now ends it itself.
        self.task.end_step(request.step_id as u64);
        self.partial.cleanup(request.step_id as u64);
        CleanupGraphResponse {}
    }

    /// `CleanupAll`: clears containers, the default one if none is named.
    pub fn cleanup_all(&self, request: CleanupAllRequest) -> CleanupAllResponse {
        self.task.clear(&request.container);
        CleanupAllResponse {}
    }

    /// `RecvTensor`: waits for a tensor that this task sends.
    ///
    /// # Errors
    /// INVALID_ARGUMENT if the key is malformed; ABORTED if it is that of another incarnation of the
    /// device; the error that ended the step.
    pub async fn recv_tensor(&self, request: RecvTensorRequest) -> Result<RecvTensorResponse> {
        self.recent
            .reject_duplicate(request.request_id, "RecvTensor (GrpcWorker)")?;
        let key = request.rendezvous_key;
        let source = self.check_source(&key)?;
        let rendezvous = self.task.rendezvous.get_for_peer(request.step_id as u64)?;
        let (sender, receiver) = tokio::sync::oneshot::channel();
        let done = move |tensor| {
            // A client that hung up has no use for it.
            let _ = sender.send(tensor);
        };
        rendezvous.recv_local(&key, Box::new(done));
        let received = receiver.await;
        let tensor =
            received.map_err(|_| internal!("the step ended without the tensor {key}"))??;
        Ok(RecvTensorResponse {
            is_dead: tensor.is_none(),
            tensor: tensor
                .map(|t| self.task.handles.encode(&t, source))
                .transpose()?,
            ..Default::default()
        })
    }

    /// Checks the device that sends under a key, and returns it.
    fn check_source<'a>(&self, key: &'a str) -> Result<&'a str> {
        let RendezvousKey {
            source,
            incarnation,
        } = RendezvousKey::parse(key)?;
        let device = self.task.devices.local(source)?;
        match device.incarnation == incarnation {
            true => Ok(source),
            false => Err(possibly_restarted(aborted!(
                "RecvTensor expects a different device incarnation: {incarnation} vs. {}. Your worker job \
                 (\"{}\") was probably restarted. Check your worker job for the reason why it was \
                 restarted.",
                device.incarnation,
                self.task.server.task
            ))),
        }
    }
}

/// Marks an error that a restart of the worker may have caused, as coordinators look for it.
#[cold]
fn possibly_restarted(error: Status) -> Status {
    const RESTARTED: &str =
        "type.googleapis.com/tensorflow.distributed_runtime.WorkerPossiblyRestarted";
    error.with_payload(RESTARTED, "")
}

/// The other tasks that a graph sends to.
fn receivers(graph: &GraphDef, own: &TaskName) -> Vec<TaskName> {
    let sends = graph.node.iter().filter(|n| SENDS.contains(&n.op.as_str()));
    let devices = sends.filter_map(|n| match &n.attr.get("recv_device")?.value {
        Some(attr_value::Value::S(device)) => TaskName::of_device(&String::from_utf8_lossy(device)),
        _ => None,
    });
    let others = ordered_set(devices.filter(|task| task != own));
    others.into_iter().collect()
}

const SENDS: [&str; 4] = ["_Send", "_HostSend", "Send", "HostSend"];

/// The nodes that no other node needs.
fn sinks(graph: &GraphDef) -> Vec<String> {
    let mut read = HashSet::new();
    for input in graph.node.iter().flat_map(|n| &n.input) {
        let name = input.strip_prefix('^').unwrap_or(input);
        let node = name
            .rsplit_once(':')
            .filter(|(_, slot)| slot.parse::<u32>().is_ok());
        read.insert(node.map_or(name, |(node, _)| node));
    }
    let nodes = graph.node.iter().map(|n| &n.name);
    nodes
        .filter(|n| !read.contains(n.as_str()))
        .cloned()
        .collect()
}
