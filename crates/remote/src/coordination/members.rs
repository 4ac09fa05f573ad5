//! [`Members`]: the tasks that a coordination service knows, with their states.

use crate::device::TaskName;
use ferroflow_base::{
    Code, Result, Status, aborted, failed_precondition, invalid_argument, ordered_map,
};
use ferroflow_model::proto::{
    CoordinatedTask, CoordinatedTaskState, CoordinatedTaskStateInfo, CoordinationServiceError,
    DeviceInfo,
};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// The name of a task in a message.
pub(super) fn task_name(task: &CoordinatedTask) -> TaskName {
    TaskName {
        job: task.job_name.clone(),
        index: u32::try_from(task.task_id).unwrap_or(u32::MAX),
    }
}

/// The task of this name in a message.
pub(super) fn task_proto(name: &TaskName) -> CoordinatedTask {
    CoordinatedTask {
        job_name: name.job.clone(),
        task_id: i32::try_from(name.index).unwrap_or(i32::MAX),
        recoverable: false,
    }
}

/// The state of a task.
#[derive(Clone, Debug)]
enum State {
    /// Late heartbeats are tolerated until the time, if it was connected before.
    Disconnected(Option<Instant>),
    Connected,
    Error(Status),
}

/// One task.
pub(super) struct Member {
    state: State,
    pub(super) incarnation: u64,
    heartbeat: Instant,
    pub(super) is_recoverable: bool,
    /// The devices that it told of in WaitForAllTasks.
    pub(super) devices: Option<DeviceInfo>,
}

impl Member {
    pub(super) fn is_connected(&self) -> bool {
        matches!(self.state, State::Connected)
    }

    pub(super) fn error(&self) -> Option<&Status> {
        match &self.state {
            State::Error(e) => Some(e),
            _ => None,
        }
    }

    pub(super) fn info(&self, name: &TaskName) -> CoordinatedTaskStateInfo {
        let state = match &self.state {
            State::Disconnected(_) => CoordinatedTaskState::TaskstateDisconnected,
            State::Connected => CoordinatedTaskState::TaskstateConnected,
            State::Error(_) => CoordinatedTaskState::TaskstateError,
        };
        let error = self.error();
        CoordinatedTaskStateInfo {
            task: Some(task_proto(name)),
            incarnation: self.incarnation,
            state: state as i32,
            error_code: error.map_or(0, |e| e.code() as i32),
            error_message: error.map(|e| e.message().to_string()).unwrap_or_default(),
            error_payload: error.map(|_| CoordinationServiceError {
                is_reported_error: false,
                source_task: Some(task_proto(name)),
            }),
        }
    }
}

/// What registering a task leads to.
pub(super) enum Registered {
    /// It is connected; one that is recoverable leaves its barriers.
    Yes,
    /// It, and the tasks that know it, have this error.
    Failed(Status),
}

/// The tasks by name.
pub(super) struct Members {
    pub(super) tasks: BTreeMap<TaskName, Member>,
    heartbeat_timeout: Duration,
    /// Whether a task that was lost may return with a new incarnation.
    may_reconnect: bool,
    /// Grows with each change of a state.
    pub(super) version: i64,
}

impl Members {
    pub(super) fn new(
        names: impl Iterator<Item = TaskName>,
        heartbeat_timeout: Duration,
        may_reconnect: bool,
        now: Instant,
    ) -> Self {
        let member = || Member {
            state: State::Disconnected(None),
            incarnation: 0,
            heartbeat: now,
            is_recoverable: false,
            devices: None,
        };
        Members {
            tasks: ordered_map(names.map(|name| (name, member()))),
            heartbeat_timeout,
            may_reconnect,
            version: 0,
        }
    }

    /// RegisterTask.
    ///
    /// # Errors
    /// INVALID_ARGUMENT if the task is not one of the service's.
    pub(super) fn register(
        &mut self,
        task: &CoordinatedTask,
        incarnation: u64,
        now: Instant,
    ) -> Result<Registered> {
        let (name, may_reconnect) = (task_name(task), self.may_reconnect);
        let member = self
            .tasks
            .get_mut(&name)
            .ok_or_else(|| invalid_argument!("Unexpected task registered with task_name={name}"))?;
        member.is_recoverable = task.recoverable;
        let may_connect = match &member.state {
            State::Disconnected(_) => Ok(()),
            // The answer to an earlier request may have been lost.
            State::Connected if member.incarnation == incarnation || member.is_recoverable => {
                Ok(())
            }
            State::Error(e)
                if (may_reconnect || member.is_recoverable) && e.code() == Code::Unavailable =>
            {
                Ok(())
            }
            State::Connected => Err(aborted!(
                "{name} unexpectedly tried to connect with a different incarnation. It has likely \
                 restarted."
            )),
            State::Error(e) => Err(aborted!(
                "{name} unexpectedly tried to connect while it is already in error. ResetTask() should \
                 be called before a subsequent connect attempt. Existing error: {e}"
            )),
        };
        if let Err(e) = may_connect {
            self.set_error(&name, e.clone());
            return Ok(Registered::Failed(e));
        }
        member.state = State::Connected;
        member.incarnation = incarnation;
        member.heartbeat = now;
        self.version += 1;
        Ok(Registered::Yes)
    }

    /// Heartbeat.
    ///
    /// # Errors
    /// INVALID_ARGUMENT if the task is not one of the service's or is not registered; ABORTED if it has an
    /// error or restarted.
    pub(super) fn heartbeat(
        &mut self,
        task: &CoordinatedTask,
        incarnation: u64,
        now: Instant,
    ) -> Result<()> {
        let name = task_name(task);
        let member = self.tasks.get_mut(&name).ok_or_else(|| {
            invalid_argument!(
                "Unexpected heartbeat request from task: {name}. This usually implies a configuration \
                 error."
            )
        })?;
        match &member.state {
            State::Error(e) => Err(aborted!(
                "Unexpected heartbeat request from an already-in-error task: {name} with existing error: {e}"
            )),
            State::Disconnected(until) if until.is_none_or(|until| now > until) => {
                Err(invalid_argument!(
                    "Task with task_name={name} must be registered before sending heartbeat messages. The \
                     service might have restarted, please restart / reset and register again."
                ))
            }
            _ if member.incarnation == incarnation => {
                member.heartbeat = now;
                Ok(())
            }
            _ if member.is_recoverable => Ok(()),
            _ => Err(aborted!(
                "{name} Heartbeat: Incarnation ID mismatch: expecting {} but got {incarnation}. The task has \
                 restarted and likely crashed earlier - check for any earlier errors or any scheduler events \
                 (e.g. preemption, eviction) to debug further.",
                member.incarnation
            )),
        }
    }

    /// ResetTask, and ShutdownTask without a barrier.
    ///
    /// # Errors
    /// INVALID_ARGUMENT if the task is not one of the service's; FAILED_PRECONDITION if it is disconnected.
    pub(super) fn disconnect(&mut self, name: &TaskName, now: Instant) -> Result<()> {
        let until = now + self.heartbeat_timeout;
        let member = self.tasks.get_mut(name).ok_or_else(|| {
            invalid_argument!("Unexpected disconnect request with task_name={name}")
        })?;
        if matches!(member.state, State::Disconnected(_)) {
            return Err(failed_precondition!(
                "The task is already disconnected: {name}"
            ));
        }
        member.state = State::Disconnected(Some(until));
        self.version += 1;
        Ok(())
    }

    /// Puts a task in error, unless it is; returns whether it was not.
    pub(super) fn set_error(&mut self, name: &TaskName, error: Status) -> bool {
        let Some(member) = self.tasks.get_mut(name) else {
            return false;
        };
        if member.error().is_some() {
            return false;
        }
        member.state = State::Error(error);
        self.version += 1;
        true
    }

    /// Puts the connected tasks in error whose heartbeats stopped, and returns their names.
    pub(super) fn expire(&mut self, now: Instant) -> Vec<TaskName> {
        let timeout = self.heartbeat_timeout;
        let is_stale = |(_, m): &(&TaskName, &Member)| {
            m.is_connected() && now.saturating_duration_since(m.heartbeat) > timeout
        };
        let stale = self.tasks.iter().filter(is_stale);
        let stale: Vec<TaskName> = stale.map(|(name, _)| name.clone()).collect();
        for name in &stale {
            let text = format!(
                "Task {name} heartbeat timeout. This indicates that the remote task has failed, got \
                 preempted, or crashed unexpectedly. Check the task logs for an earlier error or scheduler \
                 events (e.g. preemption, eviction) to debug further."
            );
            self.set_error(name, Status::new(Code::Unavailable, text));
        }
        stale
    }

    /// The devices of all tasks, in order of job and index.
    pub(super) fn devices(&self) -> DeviceInfo {
        let all = self.tasks.values().filter_map(|m| m.devices.as_ref());
        DeviceInfo {
            device: all.flat_map(|d| d.device.clone()).collect(),
        }
    }
}
