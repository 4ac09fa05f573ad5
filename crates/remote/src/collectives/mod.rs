//! Collectives among tasks: groups are formed by a leader, members pull the parts from each other
//! (TensorFlow: `core/distributed_runtime/collective_rma_distributed.cc`).

mod algorithms;
mod buffers;
pub(crate) mod carrier;
mod groups;
pub(crate) mod steps;
mod transfer;

use crate::device::{Devices, TaskName};
use crate::master_session::lock;
use crate::peers::Peers;
use buffers::Buffers;
use carrier::{Carrier, Inbox};
use ferroflow_base::{
    Code, Result, Status, deadline_exceeded, failed_precondition, internal, ordered_set,
};
use ferroflow_model::proto::{
    CleanupGraphRequest, CleanupGraphResponse, CompleteGroupRequest, CompleteGroupResponse,
    CompleteInstanceRequest, CompleteInstanceResponse, DeviceAttributes, GetStepSequenceRequest,
    GetStepSequenceResponse, RecvBufRequest, RecvBufResponse, StepSequence,
};
use ferroflow_model::shape_to_proto;
use ferroflow_runtime::{
    AsyncCall, CancelToken, CollectiveOp, CollectiveRequest, Collectives, DeviceSpec,
};
use ferroflow_tensor::Tensor;
use groups::{BROADCAST, Group, Groups, Instances};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;
use steps::StepSequences;
use tokio::sync::oneshot;
use transfer::Transfer;

/// How long the other tasks of a failed collective may take to answer.
const ABORT_TIMEOUT: Duration = Duration::from_secs(10);

/// The collectives of a task.
pub(crate) struct CollectiveManager {
    /// The task that forms groups, if it is another one.
    leader: Mutex<Option<TaskName>>,
    groups: Groups,
    instances: Instances,
    buffers: Buffers,
    sequences: StepSequences,
    /// What carries buffers to other tasks in place of RecvBuf.
    carrier: Option<Arc<dyn Carrier>>,
}

impl CollectiveManager {
    /// The collectives of a task whose groups are formed by the device's or task's name `leader`; by
    /// itself, if that is empty.
    pub(crate) fn new(
        own: &TaskName,
        leader: &str,
        carrier: Option<&Arc<dyn Carrier>>,
    ) -> Arc<Self> {
        let manager = Arc::new(CollectiveManager {
            leader: Mutex::default(),
            groups: Groups::default(),
            instances: Instances::default(),
            buffers: Buffers::default(),
            sequences: StepSequences::default(),
            carrier: carrier.cloned(),
        });
        manager.set_leader(own, leader);
        if let Some(carrier) = carrier {
            carrier.open(Inbox::new(&manager));
        }
        manager
    }

    fn set_leader(&self, own: &TaskName, leader: &str) {
        let named = TaskName::of_device(leader).filter(|leader| leader != own);
        *lock(&self.leader) = named;
    }

    /// Begins anew under the leader of a client's cluster, where this task is called `own`.
    pub(crate) fn reset(&self, own: &TaskName, leader: &str) {
        self.groups.clear();
        self.instances.clear();
        self.buffers.clear();
        self.set_leader(own, leader);
    }

    fn leader(&self) -> Option<TaskName> {
        lock(&self.leader).clone()
    }

    /// Ends the collectives of a step with an error.
    pub(crate) fn abort(&self, step: i64, reason: Status) {
        self.buffers.step(step).abort(reason);
    }

    /// Forgets a step that is over.
    pub(crate) fn end_step(&self, step: i64) {
        self.buffers.end_step(step);
    }

    /// `CompleteGroup`, at the leader.
    ///
    /// # Errors
    /// As [`Groups::join`].
    pub(crate) async fn complete_group(
        &self,
        request: CompleteGroupRequest,
    ) -> Result<CompleteGroupResponse> {
        Ok(self.groups.join(request).await?.to_proto())
    }

    /// `CompleteInstance`, at the leader.
    ///
    /// # Errors
    /// FAILED_PRECONDITION if the group does not exist; those of [`Instances::complete`].
    pub(crate) async fn complete_instance(
        &self,
        request: CompleteInstanceRequest,
    ) -> Result<CompleteInstanceResponse> {
        let group = self.groups.find(request.group_key)?;
        let source = self.instances.complete(&group, &request).await?;
        Ok(CompleteInstanceResponse {
            instance_key: request.instance_key,
            source_rank: source.map_or(-1, |rank| rank as i32),
        })
    }

    /// `RecvBuf`: waits for a part that a member of this task sends.
    ///
    /// # Errors
    /// FAILED_PRECONDITION if the sender is another incarnation of the device; INTERNAL if the sizes
    /// differ; what ended the step.
    pub(crate) async fn recv_buf(
        &self,
        devices: &Devices,
        request: RecvBufRequest,
    ) -> Result<RecvBufResponse> {
        transfer::response(&self.buffer(devices, &request).await?)
    }

    /// The buffer that a RecvBuf asks for.
    ///
    /// # Errors
    /// As [`CollectiveManager::recv_buf`].
    pub(crate) async fn buffer(
        &self,
        devices: &Devices,
        request: &RecvBufRequest,
    ) -> Result<Tensor> {
        let device = devices.local(&request.src_device)?;
        if request.src_incarnation != 0 && request.src_incarnation != device.incarnation {
            return Err(failed_precondition!(
                "RecvBuf expects a different device incarnation: {} vs. {}. Your worker job that contains the \
                 device (\"{}\") was probably restarted. Check your worker job for the reason why it was \
                 restarted.",
                request.src_incarnation,
                device.incarnation,
                request.src_device
            ));
        }
        let buffers = self.buffers.step(request.step_id);
        let tensor = buffers.recv(&request.buf_rendezvous_key).await?;
        match i64::try_from(tensor.bytes()?.len()) == Ok(request.num_bytes) {
            true => Ok(tensor),
            false => Err(transfer::size_mismatch(
                tensor.byte_len(),
                request.num_bytes,
            )),
        }
    }

    /// `GetStepSequence`, at the leader.
    ///
    /// # Errors
    /// INTERNAL if another task is the leader.
    pub(crate) fn step_sequence(
        &self,
        request: &GetStepSequenceRequest,
    ) -> Result<GetStepSequenceResponse> {
        if self.leader().is_some() {
            return Err(internal!("GetStepSequenceAsync called at non-group-leader"));
        }
        let step = |&graph_key: &i64| StepSequence {
            graph_key,
            next_step_id: self.sequences.lead(graph_key),
        };
        Ok(GetStepSequenceResponse {
            step_sequence: request.graph_key.iter().map(step).collect(),
        })
    }

    /// The id of the next step of a graph with collectives.
    ///
    /// # Errors
    /// Those of calling the leader.
    pub(crate) fn next_step(&self, peers: &Peers, graph_key: i64) -> Result<i64> {
        if let Some(next) = self.sequences.next(graph_key) {
            return Ok(next);
        }
        let Some(leader) = self.leader() else {
            return Ok(self.sequences.lead(graph_key));
        };
        let request = GetStepSequenceRequest {
            graph_key: vec![graph_key],
        };
        let peer = peers.get(&leader)?;
        let call = peer.call::<_, GetStepSequenceResponse>("GetStepSequence", request);
        let answer = ferroflow_rpc::block_on(peers.runtime(), call)?;
        let mut steps = answer.step_sequence.iter();
        let step = steps.find(|s| s.graph_key == graph_key);
        let next = step.map(|s| s.next_step_id);
        let next = next.ok_or_else(|| internal!("{leader} has no step of graph {graph_key}"))?;
        self.sequences.set(graph_key, next);
        Ok(next)
    }

    /// Notes that a step of a graph is over.
    pub(crate) fn retire_step(&self, graph_key: i64, step: i64, succeeded: bool) {
        self.sequences.retire(graph_key, step, succeeded);
        self.end_step(step);
    }
}

/// The collectives of a session on this task.
pub(crate) struct SessionCollectives {
    manager: Arc<CollectiveManager>,
    /// The name of this task in the session's cluster.
    own: TaskName,
    devices: Arc<Devices>,
    peers: Mutex<Arc<Peers>>,
    /// The step of all collectives; `None` stands for that of each.
    step: Option<i64>,
}

impl SessionCollectives {
    pub(crate) fn new(
        manager: &Arc<CollectiveManager>,
        devices: &Arc<Devices>,
        peers: &Arc<Peers>,
    ) -> Self {
        SessionCollectives {
            manager: manager.clone(),
            own: devices.task().clone(),
            devices: devices.clone(),
            peers: Mutex::new(peers.clone()),
            step: None,
        }
    }

    /// Runs all collectives as those of one step, as eager contexts do.
    pub(crate) fn in_step(mut self, step: i64) -> Self {
        self.step = Some(step);
        self
    }

    /// Uses the addresses of a changed cluster from now on.
    pub(crate) fn set_peers(&self, peers: Arc<Peers>) {
        *lock(&self.peers) = peers;
    }

    fn device(&self, name: &str) -> Result<&DeviceAttributes> {
        let spec = DeviceSpec::parse(name)?;
        let mut all = self.devices.attributes().iter();
        let found = all.find(|d| spec.matches(&d.name));
        found.ok_or_else(|| internal!("device {name} is not on {}", self.own))
    }
}

impl Collectives for SessionCollectives {
    fn run(&self, request: CollectiveRequest, call: AsyncCall) {
        let device = match self.device(&request.device) {
            Ok(device) => device.clone(),
            Err(error) => return call.finish(Err(error)),
        };
        let peers = lock(&self.peers).clone();
        let member = Member {
            manager: self.manager.clone(),
            own: self.own.clone(),
            device,
            step: self.step.unwrap_or(call.step_id as i64),
            frame: call.frame,
            peers: peers.clone(),
            request,
            group: OnceLock::new(),
        };
        ferroflow_rpc::spawn(peers.runtime(), async move {
            let (sender, cancelled) = oneshot::channel();
            // The receiver is gone once the collective is done.
            let registration = call.cancel.on_cancel(move || {
                let _ = sender.send(());
            });
            let timeout = member.request.timeout;
            let late = async {
                match timeout {
                    Some(timeout) => tokio::time::sleep(timeout).await,
                    None => std::future::pending().await,
                }
            };
            let input = call.inputs.first().cloned();
            let result = tokio::select! {
                result = member.run(input) => result,
                Ok(()) = cancelled => Err(match call.cancel.check() {
                    Err(reason) => reason,
                    Ok(()) => ferroflow_base::cancelled!("the collective was cancelled"),
                }),
                () = late => Err(deadline_exceeded!(
                    "Collective has timed out waiting for other workers."
                )),
            };
            if let Err(error) = &result {
                member.abort(error);
            }
            drop(registration);
            call.finish(result.map(|tensor| vec![tensor]));
        });
    }
}

/// A member of a group that takes part in a collective.
struct Member {
    manager: Arc<CollectiveManager>,
    own: TaskName,
    device: DeviceAttributes,
    step: i64,
    /// The frame id and the iteration of the node.
    frame: (u64, u64),
    peers: Arc<Peers>,
    request: CollectiveRequest,
    /// The group, once it is formed.
    group: OnceLock<Arc<Group>>,
}

impl Member {
    async fn run(&self, input: Option<Tensor>) -> Result<Tensor> {
        let group = self.join().await?;
        let group = self.group.get_or_init(|| group).clone();
        let rank = group.rank(&self.device.name)?;
        let request = &self.request;
        if matches!(request.op, CollectiveOp::Join) {
            return input.ok_or_else(|| internal!("a member that joins has a tensor"));
        }
        let source = self.instance(&group).await?;
        let (frame, iteration) = self.frame;
        let via = Arc::new(Transfer {
            rank,
            key: format!("{}:{}:{frame}:{iteration}", request.group, request.instance),
            step: self.step,
            buffers: self.manager.buffers.step(self.step),
            dtype: request.dtype,
            peers: self.peers.clone(),
            own: self.own.clone(),
            group: group.clone(),
            carrier: self.manager.carrier.clone(),
        });
        let (dtype, shape) = (request.dtype, request.shape.clone());
        let part = || {
            input
                .clone()
                .ok_or_else(|| internal!("a collective needs an input"))
        };
        match &request.op {
            CollectiveOp::Reduce {
                scatter,
                merge,
                finish,
                offsets,
                max_rings,
            } => {
                let part = part()?;
                let chosen = match offsets.is_empty() {
                    true => algorithms::ring_offsets(&group, part.byte_len(), *max_rings),
                    false => offsets.clone(),
                };
                let rings = algorithms::rings(&group.devices_per_task(), &chosen);
                drop(input);
                let sum = algorithms::reduce(&via, part, merge, finish.as_ref(), rings).await?;
                match scatter {
                    true => sum.view(rank * shape.num_elements(), shape),
                    false => Ok(sum),
                }
            }
            CollectiveOp::Gather => algorithms::gather(&via, part()?, shape).await,
            CollectiveOp::AllToAll => algorithms::all_to_all(&via, part()?).await,
            CollectiveOp::Broadcast { is_source } => {
                let source = source.ok_or_else(|| internal!("a broadcast has no source"))?;
                let own = input.filter(|_| *is_source);
                algorithms::broadcast(&via, own, source, dtype, shape).await
            }
            CollectiveOp::Join => Err(internal!("a group is formed without a transfer")),
        }
    }

    /// The group, which the leader forms.
    async fn join(&self) -> Result<Arc<Group>> {
        let group = self.formed().await?;
        if let Some(asked) = self.request.rank {
            group.check_rank(&self.device.name, asked)?;
        }
        Ok(group)
    }

    async fn formed(&self) -> Result<Arc<Group>> {
        let (groups, request) = (&self.manager.groups, &self.request);
        let (key, size) = (request.group, request.size);
        if let Some(group) = groups.complete(key, size, &self.device)? {
            return Ok(group);
        }
        let join = CompleteGroupRequest {
            group_key: key,
            group_size: i32::try_from(size).unwrap_or(i32::MAX),
            device_type: self.device.device_type.clone(),
            collective_type: kind(&request.op),
            device_attributes: Some(self.device.clone()),
            rank: request.rank.and_then(|rank| i32::try_from(rank).ok()),
        };
        let Some(leader) = self.manager.leader() else {
            return groups.join(join).await;
        };
        let peer = self.peers.get(&leader)?;
        // The leader may start later than its members.
        let never = CancelToken::new();
        let answer = peer.call_when_ready("CompleteGroup", join, &never).await?;
        let group = Arc::new(Group::from_proto(answer)?);
        groups.insert(group);
        let group = groups.complete(key, size, &self.device)?;
        group.ok_or_else(|| internal!("the group {key} was reset"))
    }

    /// Checks this member against the others, and returns the source of a broadcast.
    async fn instance(&self, group: &Group) -> Result<Option<usize>> {
        let request = &self.request;
        let instance = CompleteInstanceRequest {
            name: request.node.clone(),
            r#type: kind(&request.op),
            data_type: request.dtype as i32,
            shape: Some(shape_to_proto(&(&request.shape).into())),
            group_key: request.group,
            group_size: group.members.len() as i32,
            instance_key: request.instance,
            device_type: group.device_type.clone(),
            subdiv_offset: Vec::new(),
            device: self.device.name.clone(),
            is_source: matches!(request.op, CollectiveOp::Broadcast { is_source: true }),
            // As TensorFlow sends it: all steps share an instance.
            step_id: 0,
        };
        let Some(leader) = self.manager.leader() else {
            return self.manager.instances.complete(group, &instance).await;
        };
        let peer = self.peers.get(&leader)?;
        let call = peer.call::<_, CompleteInstanceResponse>("CompleteInstance", instance);
        let source = call.await?.source_rank;
        Ok(usize::try_from(source).ok())
    }

    /// Ends the other collectives of the step, here and on the other tasks of the group: members there may
    /// wait until this one takes what they send.
    fn abort(&self, error: &Status) {
        let reason = match error.code() {
            Code::Cancelled => error.clone(),
            code => Status::new(
                code,
                format!(
                    "Collective ops is aborted by: {}\nThe error could be from a previous operation. \
                     Restart your program to reset.",
                    error.message()
                ),
            ),
        };
        self.manager.buffers.step(self.step).abort(reason);
        // One that was aborted itself does not: the first one has told all.
        let Some(group) = self.group.get().filter(|_| error.code() != Code::Aborted) else {
            return;
        };
        let tasks = group
            .members
            .iter()
            .flat_map(|m| TaskName::of_device(&m.name));
        let tasks = ordered_set(tasks.filter(|task| *task != self.own));
        for peer in tasks.iter().flat_map(|task| self.peers.get(task)) {
            let request = CleanupGraphRequest { step_id: self.step };
            peer.notify::<_, CleanupGraphResponse>("CleanupGraph", request, ABORT_TIMEOUT);
        }
    }
}

/// The number of an operation in TensorFlow's `CollectiveType`.
fn kind(op: &CollectiveOp) -> i32 {
    match op {
        CollectiveOp::Reduce { scatter: true, .. } => 5,
        CollectiveOp::Reduce { .. } => 0,
        CollectiveOp::Broadcast { .. } => BROADCAST,
        CollectiveOp::Gather => 2,
        CollectiveOp::AllToAll => 4,
        CollectiveOp::Join => 6,
    }
}
