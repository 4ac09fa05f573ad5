//! [`Agent`]: a task's part in a coordination service.

use crate::device::{TaskName, random_u64};
use crate::master_session::lock;
use crate::peers::Peer;
use ferroflow_base::{Code, Result, Status, aborted, deadline_exceeded};
use ferroflow_model::proto::{
    BarrierRequest, BarrierResponse, CoordinatedTask, CoordinationServiceConfig,
    DeleteKeyValueRequest, DeleteKeyValueResponse, GetKeyValueRequest, GetKeyValueResponse,
    HeartbeatRequest, HeartbeatResponse, InsertKeyValueRequest, InsertKeyValueResponse,
    KeyValueEntry, RegisterTaskRequest, RegisterTaskResponse, ReportErrorToServiceRequest,
    ReportErrorToServiceResponse, ResetTaskRequest, ResetTaskResponse,
};
use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tokio::task::AbortHandle;

/// How long a task tries to register by default.
const REGISTER_TIMEOUT: Duration = Duration::from_secs(3600);
/// How often a task must send heartbeats by default.
const HEARTBEAT_TIMEOUT: Duration = Duration::from_secs(10);
/// Longest pause between two attempts to register.
const MAX_PAUSE: Duration = Duration::from_secs(16);

/// Registers this task with the leader and sends heartbeats.
pub(crate) struct Agent {
    leader: Peer,
    task: CoordinatedTask,
    incarnation: u64,
    register_timeout: Duration,
    heartbeat_interval: Duration,
    state: Arc<Mutex<State>>,
    /// Held while the task registers.
    connecting: tokio::sync::Mutex<()>,
    /// How often this task came to each barrier.
    barriers: Mutex<HashMap<String, i64>>,
}

#[derive(Default)]
enum State {
    #[default]
    Disconnected,
    /// Heartbeats are sent.
    Connected(Heartbeats),
    /// Heartbeats go on, so that the leader does not take this task for dead, too, because another one failed.
    Error(Option<Heartbeats>),
}

/// A loop that sends heartbeats, until dropped.
struct Heartbeats(AbortHandle);

impl Drop for Heartbeats {
    fn drop(&mut self) {
        self.0.abort();
    }
}

fn milliseconds(given: i64, default: Duration) -> Duration {
    let given = u64::try_from(given).ok().filter(|ms| *ms > 0);
    given.map_or(default, Duration::from_millis)
}

impl Agent {
    pub(super) fn new(config: &CoordinationServiceConfig, own: &TaskName, leader: Peer) -> Self {
        let timeout = milliseconds(config.heartbeat_timeout_in_ms, HEARTBEAT_TIMEOUT);
        Agent {
            leader,
            task: super::members::task_proto(own),
            incarnation: random_u64(),
            register_timeout: milliseconds(config.cluster_register_timeout_in_ms, REGISTER_TIMEOUT),
            heartbeat_interval: timeout / 2,
            state: Arc::default(),
            connecting: tokio::sync::Mutex::new(()),
            barriers: Mutex::default(),
        }
    }

    /// Puts the task in error: ReportErrorToTask, or a heartbeat that failed.
    pub(crate) fn set_error(&self, error: &Status) {
        set_error(&self.state, error);
    }

    /// Registers the task, unless it is. After an error it is reset first.
    ///
    /// # Errors
    /// Those of the leader; of the last attempt, when the time to register is up.
    pub(crate) async fn connect(&self) -> Result<()> {
        let _one = self.connecting.lock().await;
        let is_error = match &*lock(&self.state) {
            State::Connected(_) => return Ok(()),
            State::Error(_) => true,
            State::Disconnected => false,
        };
        if is_error {
            let request = ResetTaskRequest {
                source_task: Some(self.task.clone()),
            };
            let reset = self.leader.call_coordination("ResetTask", request);
            let _: ResetTaskResponse = reset.await?;
            *lock(&self.state) = State::Disconnected;
        }
        let leader_incarnation = self.register().await?;
        let heartbeats = self.heartbeats(leader_incarnation);
        let beating = ferroflow_rpc::spawn(self.leader.runtime(), heartbeats);
        *lock(&self.state) = State::Connected(Heartbeats(beating.abort_handle()));
        Ok(())
    }

    async fn register(&self) -> Result<u64> {
        let deadline = Instant::now() + self.register_timeout;
        let mut pause = Duration::from_millis(2);
        loop {
            let request = RegisterTaskRequest {
                incarnation: self.incarnation,
                source_task: Some(self.task.clone()),
            };
            let answer = self.leader.call_coordination("RegisterTask", request).await;
            let error = match answer {
                Ok(RegisterTaskResponse { leader_incarnation }) => return Ok(leader_incarnation),
                Err(e) => e,
            };
            // The leader may not serve yet, or not have noticed yet that this task restarted.
            let may_pass = matches!(
                error.code(),
                Code::Unavailable | Code::Aborted | Code::Internal | Code::DeadlineExceeded
            );
            if !may_pass || Instant::now() > deadline {
                set_error(&self.state, &error);
                return Err(error);
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(MAX_PAUSE);
        }
    }

    fn heartbeats(&self, leader_incarnation: u64) -> impl Future<Output = ()> + use<> {
        let (leader, interval) = (self.leader.clone(), self.heartbeat_interval);
        let request = HeartbeatRequest {
            incarnation: self.incarnation,
            source_task: Some(self.task.clone()),
        };
        let state = self.state.clone();
        async move {
            let mut failed_at: Option<Instant> = None;
            loop {
                let call = leader.call_coordination("Heartbeat", request.clone());
                let answer: Result<HeartbeatResponse> =
                    match tokio::time::timeout(interval, call).await {
                        Ok(answer) => answer,
                        Err(_) => Err(Status::new(
                            Code::Unavailable,
                            "the coordination leader does not answer",
                        )),
                    };
                let error = match answer {
                    Ok(answer) if answer.leader_incarnation == leader_incarnation => None,
                    Ok(_) => Some(aborted!(
                        "Leader incarnation ID mismatch: the coordination leader (usually slice 0 task 0) has \
                         restarted. Check for earlier errors or any scheduler events (e.g. preemption, \
                         eviction) to debug further."
                    )),
                    Err(e) => Some(e),
                };
                match (error, failed_at) {
                    (None, _) => failed_at = None,
                    // A connection that breaks once is repaired by the next heartbeat.
                    (Some(e), None) if e.code() == Code::Unavailable => {
                        failed_at = Some(Instant::now());
                    }
                    (Some(e), Some(at))
                        if e.code() == Code::Unavailable && at.elapsed() < interval => {}
                    (Some(e), _) => set_error(&state, &e),
                }
                tokio::time::sleep(interval).await;
            }
        }
    }
}

/// What clients ask of the leader.
impl Agent {
    /// Sets a value.
    ///
    /// # Errors
    /// ALREADY_EXISTS; those of registering, and of the leader.
    pub(crate) async fn insert(&self, key: &str, value: &str) -> Result<()> {
        self.connect().await?;
        let entry = KeyValueEntry {
            key: key.to_string(),
            value: value.as_bytes().to_vec().into(),
        };
        let request = InsertKeyValueRequest {
            kv: Some(entry),
            ..Default::default()
        };
        let answer = self.leader.call_coordination("InsertKeyValue", request);
        let InsertKeyValueResponse {} = answer.await?;
        Ok(())
    }

    /// Returns a value; waits until it is set.
    ///
    /// # Errors
    /// DEADLINE_EXCEEDED; those of registering, and of the leader.
    pub(crate) async fn get(&self, key: &str, timeout: Option<Duration>) -> Result<Vec<u8>> {
        self.connect().await?;
        let request = GetKeyValueRequest {
            key: key.to_string(),
        };
        let answer = self.leader.call_coordination("GetKeyValue", request);
        let answer: GetKeyValueResponse = match timeout {
            None => answer.await?,
            Some(timeout) => tokio::time::timeout(timeout, answer).await.map_err(|_| {
                deadline_exceeded!(
                    "GetKeyValue() timed out with key: {key} and duration: {timeout:?}"
                )
            })??,
        };
        Ok(answer.kv.unwrap_or_default().value.to_vec())
    }

    /// Deletes a value.
    ///
    /// # Errors
    /// Those of registering, and of the leader.
    pub(crate) async fn delete(&self, key: &str) -> Result<()> {
        self.connect().await?;
        let request = DeleteKeyValueRequest {
            key: key.to_string(),
            is_directory: true,
        };
        let answer = self.leader.call_coordination("DeleteKeyValue", request);
        let DeleteKeyValueResponse {} = answer.await?;
        Ok(())
    }

    /// Waits until all tasks have come.
    ///
    /// # Errors
    /// DEADLINE_EXCEEDED; those of registering, and of the leader.
    pub(crate) async fn wait_at_barrier(&self, barrier: &str, timeout: Duration) -> Result<()> {
        self.connect().await?;
        let counter = {
            let mut barriers = lock(&self.barriers);
            let counter = barriers.entry(barrier.to_string()).or_default();
            *counter += 1;
            *counter - 1
        };
        let request = BarrierRequest {
            barrier_id: barrier.to_string(),
            barrier_timeout_in_ms: i64::try_from(timeout.as_millis()).unwrap_or(i64::MAX),
            source_task: Some(self.task.clone()),
            counter,
            ..Default::default()
        };
        let answer = self.leader.call_coordination("Barrier", request);
        answer.await.map(|BarrierResponse { .. }| ())
    }

    /// Tells the leader that this task has failed.
    ///
    /// # Errors
    /// FAILED_PRECONDITION if the task is not registered or has an error; those of the leader.
    pub(crate) async fn report_error(&self, error: &Status) -> Result<()> {
        let request = ReportErrorToServiceRequest {
            error_code: error.code() as i32,
            error_message: error.message().to_string(),
            error_origin: Some(self.task.clone()),
        };
        let call = self
            .leader
            .call_coordination("ReportErrorToService", request);
        call.await.map(|ReportErrorToServiceResponse {}| ())
    }
}

fn set_error(state: &Mutex<State>, error: &Status) {
    let mut state = lock(state);
    let heartbeats = match std::mem::take(&mut *state) {
        State::Error(heartbeats) => heartbeats,
        before => {
            tracing::warn!("coordination service: {error}");
            match before {
                State::Connected(heartbeats) => Some(heartbeats),
                _ => None,
            }
        }
    };
    *state = State::Error(heartbeats);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn heartbeats_go_on_after_an_error() {
        let beating = tokio::spawn(std::future::pending::<()>());
        let heartbeats = Heartbeats(beating.abort_handle());
        let state = Mutex::new(State::Connected(heartbeats));
        for _ in 0..2 {
            set_error(&state, &aborted!("another task is lost"));
            tokio::task::yield_now().await;
            assert!(!beating.is_finished());
            assert!(matches!(&*lock(&state), State::Error(Some(_))));
        }
        drop(state);
        assert!(beating.await.is_err_and(|e| e.is_cancelled()));
    }
}
