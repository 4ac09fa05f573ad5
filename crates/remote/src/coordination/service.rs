//! [`Coordinator`]: the leader's side, one method for each of `tensorflow.CoordinationService`'s. Semantics of
//! TensorFlow's `xla/tsl/distributed_runtime/coordination/coordination_service.cc`.

use super::barriers::Barriers;
use super::members::{Members, Registered, task_name, task_proto};
use super::store::KeyValueStore;
use crate::device::{TaskName, random_u64};
use crate::master_session::lock;
use crate::peers::Peers;
use ferroflow_base::{
    Code, Result, Status, failed_precondition, internal, invalid_argument, ordered_set,
};
use ferroflow_model::proto::{
    BarrierRequest, BarrierResponse, CancelBarrierRequest, CancelBarrierResponse, CoordinatedTask,
    CoordinatedTaskStateInfo, CoordinationServiceConfig, CoordinationServiceError,
    DeleteKeyValueRequest, DeleteKeyValueResponse, GetAliveTasksRequest, GetAliveTasksResponse,
    GetKeyValueDirRequest, GetKeyValueDirResponse, GetKeyValueRequest, GetKeyValueResponse,
    GetTaskStateRequest, GetTaskStateResponse, HeartbeatRequest, HeartbeatResponse,
    InsertKeyValueRequest, InsertKeyValueResponse, KeyValueEntry, PollForErrorRequest,
    PollForErrorResponse, RegisterTaskRequest, RegisterTaskResponse, ReportErrorToServiceRequest,
    ReportErrorToServiceResponse, ReportErrorToTaskRequest, ReportErrorToTaskResponse,
    ResetTaskRequest, ResetTaskResponse, ShutdownTaskRequest, ShutdownTaskResponse,
    TryGetKeyValueRequest, TryGetKeyValueResponse, WaitForAllTasksRequest, WaitForAllTasksResponse,
    WatchJobStateRequest, WatchJobStateResponse,
};
use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::time::{Duration, Instant};
use tokio::sync::{Notify, oneshot};

/// The barrier of WaitForAllTasks, and how long it waits.
const DEVICES: &str = "[Init]Wait_for_all_tasks_devices";
const DEVICES_TIMEOUT: i64 = 3_600_000;
/// The barrier of tasks that shut down together.
const SHUTDOWN: &str = "[Shutdown]Wait_for_all_tasks";
/// The barrier of tasks that register together.
const REGISTER: &str = "[Init]Wait_for_all_tasks_to_register";
/// How often heartbeats and barriers are checked.
const CHECK_INTERVAL: Duration = Duration::from_millis(500);
/// How long the leader waits when it reports an error.
const REPORT_TIMEOUT: Duration = Duration::from_secs(10);

/// The coordination service of a cluster.
pub(crate) struct Coordinator {
    incarnation: u64,
    state: Mutex<State>,
    /// Notified of each change of a task's state.
    changed: Notify,
    peers: Arc<Peers>,
    recoverable_jobs: Vec<String>,
    /// How long tasks that register together wait, milliseconds; 0 if each registers alone.
    register_timeout: i64,
    /// How long tasks that shut down wait for each other, milliseconds; 0 if they do not.
    shutdown_timeout: i64,
}

struct State {
    members: Members,
    barriers: Barriers,
    store: KeyValueStore,
    /// Calls of GetAliveTasks that wait, by the tasks they ask for.
    alive: Vec<AliveCall>,
}

struct AliveCall {
    tasks: BTreeSet<TaskName>,
    arrived: BTreeSet<TaskName>,
    waiting: Vec<oneshot::Sender<GetAliveTasksResponse>>,
}

fn named(task: Option<CoordinatedTask>) -> (CoordinatedTask, TaskName) {
    let task = task.unwrap_or_default();
    let name = task_name(&task);
    (task, name)
}

fn entry(key: String, value: Vec<u8>) -> KeyValueEntry {
    KeyValueEntry {
        key,
        value: value.into(),
    }
}

impl Coordinator {
    /// Starts the service of a cluster, and the task that checks heartbeats, which ends with it.
    pub(super) fn start(config: &CoordinationServiceConfig, peers: &Arc<Peers>) -> Arc<Self> {
        let names = config.coordinated_job_list.iter().flat_map(|job| {
            let tasks = 0..u32::try_from(job.num_tasks).unwrap_or(0);
            tasks.map(|index| TaskName {
                job: job.name.clone(),
                index,
            })
        });
        let heartbeat = match u64::try_from(config.heartbeat_timeout_in_ms) {
            Ok(ms) if ms > 0 => ms,
            _ => 10_000,
        };
        let members = Members::new(
            names,
            Duration::from_millis(heartbeat),
            config.allow_new_incarnation_to_reconnect,
            Instant::now(),
        );
        let service = Arc::new(Coordinator {
            incarnation: random_u64(),
            state: Mutex::new(State {
                members,
                barriers: Barriers::default(),
                store: KeyValueStore::default(),
                alive: Vec::new(),
            }),
            changed: Notify::new(),
            peers: peers.clone(),
            recoverable_jobs: config.recoverable_jobs.clone(),
            register_timeout: match config.cluster_register_with_barrier {
                true => config.cluster_register_timeout_in_ms.max(1),
                false => 0,
            },
            shutdown_timeout: config.shutdown_barrier_timeout_in_ms,
        });
        ferroflow_rpc::spawn(peers.runtime(), check(Arc::downgrade(&service)));
        service
    }

    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    /// Ends the barriers that wait for a task, answers calls that do, and wakes those that watch states.
    fn left(&self, state: &mut State, name: &TaskName, reason: &str) {
        let member = state.members.tasks.get(name);
        let is_recoverable = member.is_some_and(|m| m.is_recoverable);
        state.barriers.leave(name, is_recoverable, reason);
        state.refresh_alive();
        self.changed.notify_waiters();
    }

    /// Puts a task in error and tells the others.
    fn fail(&self, name: &TaskName, error: &Status, is_reported: bool) {
        let mut state = self.state();
        if state.members.set_error(name, error.clone()) {
            self.left(&mut state, name, &format!("task is set to ERROR: {error}"));
        }
        drop(state);
        self.propagate(std::slice::from_ref(name), error, is_reported);
    }

    /// Reports an error of tasks to those that are connected, unless all of them may fail.
    fn propagate(&self, sources: &[TaskName], error: &Status, is_reported: bool) {
        let state = self.state();
        let may_fail = |name: &TaskName| {
            let member = state.members.tasks.get(name);
            member.is_some_and(|m| m.is_recoverable) || self.recoverable_jobs.contains(&name.job)
        };
        let Some(first) = sources.first().filter(|_| !sources.iter().all(may_fail)) else {
            return;
        };
        let request = ReportErrorToTaskRequest {
            error_code: error.code() as i32,
            error_message: error.message().to_string(),
            error_payload: Some(CoordinationServiceError {
                is_reported_error: is_reported,
                source_task: Some(task_proto(first)),
            }),
        };
        let connected = state.members.tasks.iter().filter(|(_, m)| m.is_connected());
        for peer in connected.filter_map(|(name, _)| self.peers.get(name).ok()) {
            let request = request.clone();
            ferroflow_rpc::spawn(self.peers.runtime(), async move {
                let call = peer.call_coordination("ReportErrorToTask", request);
                let told = tokio::time::timeout(REPORT_TIMEOUT, call).await;
                let told: std::result::Result<Result<ReportErrorToTaskResponse>, _> = told;
                if !matches!(told, Ok(Ok(_))) {
                    tracing::warn!("an error could not be reported to {}", peer.task);
                }
            });
        }
    }

    async fn wait_at(&self, request: BarrierRequest) -> Result<i64> {
        let entered = {
            let mut state = self.state();
            let State {
                members, barriers, ..
            } = &mut *state;
            barriers.enter(&request, members, Instant::now())?
        };
        let passed = entered.await;
        passed.map_err(|_| internal!("the barrier {} is lost", request.barrier_id))?
    }

    pub(crate) async fn register_task(
        &self,
        request: RegisterTaskRequest,
    ) -> Result<RegisterTaskResponse> {
        let (task, name) = named(request.source_task);
        if self.register_timeout > 0 {
            let together = BarrierRequest {
                barrier_id: REGISTER.to_string(),
                barrier_timeout_in_ms: self.register_timeout,
                source_task: Some(task.clone()),
                ..Default::default()
            };
            self.wait_at(together).await?;
        }
        let mut state = self.state();
        let now = Instant::now();
        match state.members.register(&task, request.incarnation, now)? {
            Registered::Yes => {
                if task.recoverable {
                    let reason = "recoverable task silently connected again";
                    self.left(&mut state, &name, reason);
                }
                self.changed.notify_waiters();
                Ok(RegisterTaskResponse {
                    leader_incarnation: self.incarnation,
                })
            }
            Registered::Failed(error) => {
                self.left(&mut state, &name, &format!("task is set to ERROR: {error}"));
                drop(state);
                self.propagate(&[name], &error, false);
                Err(error)
            }
        }
    }

    pub(crate) fn heartbeat(&self, request: HeartbeatRequest) -> Result<HeartbeatResponse> {
        let (task, name) = named(request.source_task);
        let now = Instant::now();
        let beat = self
            .state()
            .members
            .heartbeat(&task, request.incarnation, now);
        let is_known = || {
            let state = self.state();
            let member = state.members.tasks.get(&name);
            member.is_some_and(|m| m.is_connected())
        };
        if let Err(e) = &beat
            && e.code() == Code::Aborted
            && is_known()
        {
            self.fail(&name, e, false);
        }
        beat.map(|()| HeartbeatResponse {
            leader_incarnation: self.incarnation,
        })
    }

    pub(crate) async fn wait_for_all_tasks(
        &self,
        request: WaitForAllTasksRequest,
    ) -> Result<WaitForAllTasksResponse> {
        let (task, name) = named(request.source_task);
        if let Some(member) = self.state().members.tasks.get_mut(&name) {
            let told = request.device_info.unwrap_or_default();
            member.devices.get_or_insert(told);
        }
        let barrier = BarrierRequest {
            barrier_id: DEVICES.to_string(),
            barrier_timeout_in_ms: DEVICES_TIMEOUT,
            source_task: Some(task),
            ..Default::default()
        };
        self.wait_at(barrier).await?;
        Ok(WaitForAllTasksResponse {
            leader_incarnation: self.incarnation,
            device_info: Some(self.state().members.devices()),
        })
    }

    pub(crate) async fn shutdown_task(
        &self,
        request: ShutdownTaskRequest,
    ) -> Result<ShutdownTaskResponse> {
        let (task, name) = named(request.source_task);
        if self.shutdown_timeout > 0 && !task.recoverable {
            let tasks = self.state().unrecoverable();
            let barrier = BarrierRequest {
                barrier_id: SHUTDOWN.to_string(),
                barrier_timeout_in_ms: self.shutdown_timeout,
                tasks,
                source_task: Some(task),
                ..Default::default()
            };
            self.wait_at(barrier)
                .await
                .map_err(|e| internal!("Shutdown barrier has failed.\nBarrier result: '{e}'"))?;
        }
        self.disconnect(&name)?;
        Ok(ShutdownTaskResponse {})
    }

    pub(crate) fn reset_task(&self, request: ResetTaskRequest) -> Result<ResetTaskResponse> {
        let (_, name) = named(request.source_task);
        self.disconnect(&name)?;
        Ok(ResetTaskResponse {})
    }

    fn disconnect(&self, name: &TaskName) -> Result<()> {
        let mut state = self.state();
        state.members.disconnect(name, Instant::now())?;
        self.left(&mut state, name, "task disconnected");
        Ok(())
    }

    pub(crate) fn report_error(
        &self,
        request: ReportErrorToServiceRequest,
    ) -> Result<ReportErrorToServiceResponse> {
        let (_, name) = named(request.error_origin);
        let state = self.state();
        let member = state.members.tasks.get(&name);
        let member =
            member.ok_or_else(|| invalid_argument!("Unexpected request from task {name}"))?;
        if !member.is_connected() {
            return Err(failed_precondition!(
                "The task is not connected or already has an error."
            ));
        }
        drop(state);
        let code = Code::from_number(request.error_code).unwrap_or(Code::Unknown);
        self.fail(&name, &Status::new(code, request.error_message), true);
        Ok(ReportErrorToServiceResponse {})
    }

    pub(crate) fn task_states(&self, request: GetTaskStateRequest) -> Result<GetTaskStateResponse> {
        let state = self.state();
        let info = |task: &CoordinatedTask| {
            let name = task_name(task);
            let member = state.members.tasks.get(&name);
            let member = member.ok_or_else(|| {
                invalid_argument!("{name} is not a task of the coordination service")
            })?;
            Ok(member.info(&name))
        };
        let states = request.source_task.iter().map(info);
        Ok(GetTaskStateResponse {
            task_state: states.collect::<Result<_>>()?,
        })
    }

    /// WatchJobState: answers when the version is not the one that the caller knows.
    pub(crate) async fn watch_job(
        &self,
        request: WatchJobStateRequest,
    ) -> Result<WatchJobStateResponse> {
        loop {
            let mut changed = std::pin::pin!(self.changed.notified());
            changed.as_mut().enable();
            {
                let state = self.state();
                let version = state.members.version;
                if request.version_number > version {
                    return Err(invalid_argument!(
                        "the state of job {} has version {version}, not {} yet",
                        request.job_name,
                        request.version_number
                    ));
                }
                if request.version_number != version {
                    return Ok(WatchJobStateResponse {
                        task_state: state.job(&request.job_name),
                        version_number: version,
                    });
                }
            }
            changed.await;
        }
    }

    pub(crate) fn insert(&self, request: InsertKeyValueRequest) -> Result<InsertKeyValueResponse> {
        let kv = request.kv.unwrap_or_default();
        let mut state = self.state();
        let value = kv.value.to_vec();
        state
            .store
            .insert(&kv.key, value, request.allow_overwrite)?;
        Ok(InsertKeyValueResponse {})
    }

    /// GetKeyValue: waits until the key has a value.
    pub(crate) async fn get(&self, request: GetKeyValueRequest) -> Result<GetKeyValueResponse> {
        let value = self.state().store.get(&request.key);
        let value = value.await;
        let value = value.map_err(|_| internal!("the key {} is lost", request.key))?;
        Ok(GetKeyValueResponse {
            kv: Some(entry(request.key, value)),
        })
    }

    pub(crate) fn try_get(&self, request: TryGetKeyValueRequest) -> Result<TryGetKeyValueResponse> {
        let value = self.state().store.try_get(&request.key)?;
        Ok(TryGetKeyValueResponse {
            kv: Some(entry(request.key, value)),
        })
    }

    pub(crate) fn directory(&self, request: GetKeyValueDirRequest) -> GetKeyValueDirResponse {
        let inside = self.state().store.directory(&request.directory_key);
        let entries = inside.into_iter().map(|(key, value)| entry(key, value));
        GetKeyValueDirResponse {
            directory_key: request.directory_key,
            kv: entries.collect(),
        }
    }

    pub(crate) fn delete(&self, request: &DeleteKeyValueRequest) -> DeleteKeyValueResponse {
        self.state().store.delete(&request.key);
        DeleteKeyValueResponse {}
    }

    pub(crate) async fn barrier(&self, request: BarrierRequest) -> Result<BarrierResponse> {
        let counter = self.wait_at(request).await?;
        Ok(BarrierResponse { counter })
    }

    pub(crate) fn cancel_barrier(
        &self,
        request: &CancelBarrierRequest,
    ) -> Result<CancelBarrierResponse> {
        self.state().barriers.cancel(request, Instant::now())?;
        Ok(CancelBarrierResponse {})
    }

    /// GetAliveTasks: waits until all tasks that are alive have asked.
    pub(crate) async fn alive_tasks(
        &self,
        request: GetAliveTasksRequest,
    ) -> Result<GetAliveTasksResponse> {
        let (_, caller) = named(request.requesting_task);
        let tasks = ordered_set(request.tasks.iter().map(task_name));
        if !tasks.contains(&caller) {
            return Err(invalid_argument!(
                "Requesting task {caller} is not one of the tasks specified in a GetAliveTasks request."
            ));
        }
        let receiver = self.state().ask_alive(tasks, caller);
        let alive = receiver.await;
        alive.map_err(|_| internal!("a call of GetAliveTasks is lost"))
    }

    /// PollForError: errors reach tasks by ReportErrorToTask here.
    pub(crate) fn poll_for_error(&self, _: &PollForErrorRequest) -> Result<PollForErrorResponse> {
        Err(internal!(
            "Should not use error polling from service when there is service to client connection."
        ))
    }

    /// Finds the tasks whose heartbeats stopped and the barriers whose time is up.
    fn check(&self, now: Instant) {
        let mut state = self.state();
        state.barriers.expire(now);
        let stale = state.members.expire(now);
        for name in &stale {
            self.left(&mut state, name, "task heartbeat timeout");
        }
        drop(state);
        if !stale.is_empty() {
            let names: Vec<String> = stale.iter().map(TaskName::to_string).collect();
            let text = format!(
                "The following tasks are unhealthy (stopped sending heartbeats):\n{}\nThe tasks have \
                 crashed. Check the task logs for an earlier error, or scheduler events (e.g. preemption, \
                 eviction) to debug further.",
                names.join("\n")
            );
            self.propagate(&stale, &Status::new(Code::Unavailable, text), false);
        }
    }
}

impl State {
    fn job(&self, job: &str) -> Vec<CoordinatedTaskStateInfo> {
        let tasks = self.members.tasks.iter();
        let of_job = tasks.filter(|(name, _)| name.job == job);
        of_job.map(|(name, m)| m.info(name)).collect()
    }

    /// The tasks that shut down together.
    fn unrecoverable(&self) -> Vec<CoordinatedTask> {
        let tasks = self.members.tasks.iter();
        let staying = tasks.filter(|(_, m)| !m.is_recoverable);
        staying.map(|(name, _)| task_proto(name)).collect()
    }

    fn ask_alive(
        &mut self,
        tasks: BTreeSet<TaskName>,
        caller: TaskName,
    ) -> oneshot::Receiver<GetAliveTasksResponse> {
        let (sender, receiver) = oneshot::channel();
        let known = self.alive.iter().position(|call| call.tasks == tasks);
        let position = known.unwrap_or_else(|| {
            self.alive.push(AliveCall {
                tasks,
                arrived: BTreeSet::new(),
                waiting: Vec::new(),
            });
            self.alive.len() - 1
        });
        self.alive[position].arrived.insert(caller);
        self.alive[position].waiting.push(sender);
        self.refresh_alive();
        receiver
    }

    /// Answers the calls of GetAliveTasks that all living tasks have made.
    fn refresh_alive(&mut self) {
        let members = &self.members.tasks;
        self.alive.retain_mut(|call| {
            let connected = |name: &&TaskName| members.get(*name).is_some_and(|m| m.is_connected());
            let alive: Vec<&TaskName> = call.tasks.iter().filter(connected).collect();
            if !alive.iter().all(|name| call.arrived.contains(*name)) {
                return true;
            }
            let incarnation = |name: &&TaskName| members.get(*name).map_or(0, |m| m.incarnation);
            let mut incarnations: Vec<u64> = alive.iter().map(incarnation).collect();
            incarnations.sort_unstable();
            let response = GetAliveTasksResponse {
                alive_tasks: alive.iter().map(|name| task_proto(name)).collect(),
                incarnations,
            };
            for waiting in call.waiting.drain(..) {
                // The task may have hung up.
                let _ = waiting.send(response.clone());
            }
            false
        });
    }
}

/// Checks a service again and again, until it is dropped.
async fn check(service: Weak<Coordinator>) {
    loop {
        tokio::time::sleep(CHECK_INTERVAL).await;
        match service.upgrade() {
            Some(service) => service.check(Instant::now()),
            None => return,
        }
    }
}
