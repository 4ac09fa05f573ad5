//! [`Barriers`]: where tasks wait for each other.

use super::members::{Members, task_name};
use crate::device::TaskName;
use ferroflow_base::{
    Code, Result, Status, failed_precondition, internal, invalid_argument, ordered_map,
};
use ferroflow_model::proto::{BarrierRequest, CancelBarrierRequest};
use std::collections::{BTreeMap, HashMap};
use std::time::{Duration, Instant};
use tokio::sync::oneshot;

/// Receives the counter of the barrier.
pub(super) type Passed = oneshot::Receiver<Result<i64>>;

/// Errors name at most this many tasks.
const MAX_NAMED: usize = 3;

/// The barriers by id. One that has passed may be used again with the next counter.
#[derive(Default)]
pub(super) struct Barriers(HashMap<String, Barrier>);

struct Barrier {
    counter: i64,
    /// What it passed with, if it has.
    result: Option<Result<()>>,
    /// Whether a task has reached it.
    tasks: BTreeMap<TaskName, bool>,
    waiting: BTreeMap<TaskName, oneshot::Sender<Result<i64>>>,
    deadline: Instant,
}

impl Barrier {
    fn pass(&mut self, result: Result<()>) {
        for (_, waiting) in std::mem::take(&mut self.waiting) {
            // The task may have hung up.
            let _ = waiting.send(result.clone().map(|()| self.counter));
        }
        self.result = Some(result);
    }

    fn is_open(&self) -> bool {
        self.result.is_none()
    }

    fn wait(&mut self, task: TaskName) -> Passed {
        let (sender, receiver) = oneshot::channel();
        if let Some(old) = self.waiting.insert(task, sender) {
            let newer = "Cancelled because there's a more recent barrier call from the same task.";
            // The task may have hung up.
            let _ = old.send(Err(Status::new(Code::Cancelled, newer)));
        }
        receiver
    }
}

fn barrier_name(id: &str, counter: i64) -> String {
    format!("{id}::{counter}")
}

impl Barriers {
    /// Barrier: waits until all of the request's tasks, or all of the service's, have called it.
    ///
    /// # Errors
    /// INVALID_ARGUMENT if the callers disagree about the tasks.
    pub(super) fn enter(
        &mut self,
        request: &BarrierRequest,
        members: &Members,
        now: Instant,
    ) -> Result<Passed> {
        let task = request.source_task.clone().unwrap_or_default();
        let caller = task_name(&task);
        let (id, mut counter) = (&request.barrier_id, request.counter);
        let timeout =
            Duration::from_millis(u64::try_from(request.barrier_timeout_in_ms).unwrap_or(0));
        let may_restart = task.recoverable && counter == 0;
        let known = self.0.get(id);
        let is_new = match known {
            None => true,
            Some(old) if old.is_open() => false,
            Some(old) if may_restart => {
                counter = old.counter + 1;
                true
            }
            Some(old) => counter == old.counter + 1,
        };
        if is_new {
            let barrier = new_barrier(known, request, counter, members, now + timeout)?;
            self.0.insert(id.clone(), barrier);
        }
        let Some(barrier) = self.0.get_mut(id) else {
            return Err(internal!("the barrier {id} is lost"));
        };
        let receiver = barrier.wait(caller.clone());
        if counter != barrier.counter && !may_restart {
            barrier.pass(Err(internal!(
                "Barrier ({}) is invoked by the task, but the service thinks it is the {}-th instance. The \
                 service or task probably restarted, check the earlier logs to debug further. Usually, a \
                 restart on the stale tasks will resolve the issue.",
                barrier_name(id, counter),
                barrier.counter
            )));
        } else if let Err(e) = check_tasks(barrier, request, &caller, members) {
            barrier.pass(Err(e));
        } else if let Some(result) = barrier.result.clone() {
            barrier.pass(result);
        } else {
            barrier.tasks.insert(caller, true);
            if barrier.tasks.values().all(|arrived| *arrived) {
                barrier.pass(Ok(()));
            }
        }
        Ok(receiver)
    }

    /// CancelBarrier.
    ///
    /// # Errors
    /// FAILED_PRECONDITION if the barrier has another counter or has passed.
    pub(super) fn cancel(&mut self, request: &CancelBarrierRequest, now: Instant) -> Result<()> {
        let name = barrier_name(&request.barrier_id, request.counter);
        let task = task_name(&request.source_task.clone().unwrap_or_default());
        let new = || Barrier {
            counter: 0,
            result: None,
            tasks: BTreeMap::new(),
            waiting: BTreeMap::new(),
            deadline: now,
        };
        let barrier = self.0.entry(request.barrier_id.clone());
        let barrier = barrier.or_insert_with(new);
        if barrier.counter != request.counter {
            return Err(failed_precondition!(
                "Barrier ({name}) is cancelled by task, but the service thinks it is the {}-th instance. \
                 This is likely due to a restart in the task or service.",
                barrier.counter
            ));
        }
        if let Some(result) = &barrier.result {
            let code = result.as_ref().err().map_or(0, |e| e.code() as i32);
            return Err(failed_precondition!(
                "Barrier ({name}) has already been passed with status code: {code}"
            ));
        }
        let message = format!("Barrier ({name}) is cancelled by task: {task}");
        barrier.pass(Err(Status::new(Code::Cancelled, message)));
        Ok(())
    }

    /// Ends the barriers that wait for a task which does not come.
    pub(super) fn leave(&mut self, task: &TaskName, is_recoverable: bool, reason: &str) {
        let waits = |b: &&mut Barrier| b.is_open() && b.tasks.contains_key(task);
        for (id, barrier) in &mut self.0 {
            let Some(barrier) = Some(barrier).filter(waits) else {
                continue;
            };
            let name = barrier_name(id, barrier.counter);
            if !is_recoverable {
                barrier.pass(Err(internal!(
                    "Barrier failed because: {reason}. Barrier Id: {name}, Task: {task}"
                )));
                continue;
            }
            barrier.tasks.insert(task.clone(), false);
            if let Some(waiting) = barrier.waiting.remove(task) {
                let message = format!(
                    "Stale barrier invocation is cancelled because:  {reason}. Barrier: {name} Task {task}"
                );
                // The task may have hung up.
                let _ = waiting.send(Err(Status::new(Code::Cancelled, message)));
            }
        }
    }

    /// Ends the barriers whose time is up.
    pub(super) fn expire(&mut self, now: Instant) {
        for (id, barrier) in &mut self.0 {
            if !barrier.is_open() || now <= barrier.deadline {
                continue;
            }
            let missing = barrier.tasks.iter().filter(|(_, arrived)| !**arrived);
            let missing: Vec<String> = missing.map(|(task, _)| task.to_string()).collect();
            let total = barrier.tasks.len();
            let some = &missing[..missing.len().min(MAX_NAMED)];
            let error = ferroflow_base::deadline_exceeded!(
                "Barrier timed out. Id: {}. This usually happens because a task triggered the barrier too \
                 early or too slowly. # of tasks that reached the barrier: {}/{total}. The first tasks that \
                 timed out: {}",
                barrier_name(id, barrier.counter),
                total - missing.len(),
                some.join("\n")
            );
            barrier.pass(Err(error));
        }
    }
}

/// A barrier that no task has reached.
fn new_barrier(
    old: Option<&Barrier>,
    request: &BarrierRequest,
    counter: i64,
    members: &Members,
    deadline: Instant,
) -> Result<Barrier> {
    let name = barrier_name(&request.barrier_id, counter);
    let tasks: Vec<TaskName> = match (old, &request.tasks[..]) {
        (Some(old), _) => old.tasks.keys().cloned().collect(),
        (None, []) => members.tasks.keys().cloned().collect(),
        (None, given) => given.iter().map(task_name).collect(),
    };
    for task in &tasks {
        let member = members.tasks.get(task).ok_or_else(|| {
            invalid_argument!(
                "Unexpected task ({task}) that is not in the cluster called the barrier. Barrier Id: {name}"
            )
        })?;
        if let Some(error) = member.error().filter(|_| !member.is_recoverable) {
            return Err(internal!(
                "Task ({task}) is already in error before the barrier was called. Barrier Id: {name} Task \
                 error: {error}"
            ));
        }
    }
    Ok(Barrier {
        counter,
        result: None,
        tasks: ordered_map(tasks.into_iter().map(|task| (task, false))),
        waiting: BTreeMap::new(),
        deadline,
    })
}

/// Checks that a call of an existing barrier names its tasks.
fn check_tasks(
    barrier: &Barrier,
    request: &BarrierRequest,
    caller: &TaskName,
    members: &Members,
) -> Result<()> {
    let name = barrier_name(&request.barrier_id, barrier.counter);
    let is_known = |task: &TaskName| barrier.tasks.contains_key(task);
    match &request.tasks[..] {
        [] if barrier.tasks.len() != members.tasks.len() => Err(invalid_argument!(
            "{name}: No tasks were specified by the client, which implies that the entire cluster is \
             participating in the barrier. However, the service disagrees. Check that the callers are \
             invoking the barrier with the same arguments."
        )),
        given
            if !given.is_empty()
                && (given.len() != barrier.tasks.len()
                    || !given.iter().map(task_name).all(|t| is_known(&t))) =>
        {
            Err(invalid_argument!(
                "Conflicting tasks specified by different processes for the same barrier: {name}. Check \
                 that the callers are invoking the barrier with the same arguments."
            ))
        }
        _ if !is_known(caller) => Err(invalid_argument!(
            "A non-participating task ({caller}) called the barrier: {name}"
        )),
        _ => Ok(()),
    }
}
