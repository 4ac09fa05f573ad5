//! [`WorkerSessions`]: what masters and eager contexts keep on this task.

use crate::device::{Devices, TaskName};
use crate::master_session::lock;
use crate::peers::Peers;
use ferroflow_runtime::{Callable, Resources, Session, Signature};
use std::collections::HashMap;
use std::sync::{Arc, Mutex};

/// The sessions of a task, by handle.
#[derive(Default)]
pub(crate) struct WorkerSessions(Mutex<HashMap<String, Arc<WorkerSession>>>);

/// A master's session on this task, or that of an eager context.
pub(crate) struct WorkerSession {
    /// The name of this task in the session's cluster.
    pub(crate) name: TaskName,
    pub(crate) devices: Arc<Devices>,
    pub(crate) resources: Resources,
    peers: Mutex<Arc<Peers>>,
    pub(crate) graphs: Mutex<HashMap<String, Arc<WorkerGraph>>>,
    /// The task and the incarnation of the master; empty for an eager context.
    master: (String, i64),
}

/// A registered graph.
pub(crate) struct WorkerGraph {
    pub(crate) session: Session,
    pub(crate) callable: Arc<Callable>,
    pub(crate) signature: Signature,
    /// The other tasks that it sends to.
    pub(crate) receivers: Vec<TaskName>,
}

impl WorkerSessions {
    /// Adds a session, and drops those of the same master before it restarted, whose handles it returns.
    pub(crate) fn insert(&self, handle: String, session: Arc<WorkerSession>) -> Vec<String> {
        let (master, incarnation) = &session.master;
        let mut sessions = lock(&self.0);
        let mut dropped = Vec::new();
        sessions.retain(|handle, old| {
            let is_old = !master.is_empty() && old.master.0 == *master;
            let stays = !is_old || old.master.1 == *incarnation;
            if !stays {
                dropped.push(handle.clone());
            }
            stays
        });
        sessions.insert(handle, session);
        dropped
    }

    pub(crate) fn get(&self, handle: &str) -> Option<Arc<WorkerSession>> {
        lock(&self.0).get(handle).cloned()
    }

    pub(crate) fn remove(&self, handle: &str) {
        let removed = lock(&self.0).remove(handle);
        drop(removed);
    }
}

impl WorkerSession {
    pub(crate) fn new(
        name: TaskName,
        devices: Arc<Devices>,
        resources: Resources,
        peers: Arc<Peers>,
    ) -> Self {
        WorkerSession {
            name,
            devices,
            resources,
            peers: Mutex::new(peers),
            graphs: Mutex::default(),
            master: Default::default(),
        }
    }

    /// The session of the master that has this task and incarnation.
    pub(crate) fn of_master(mut self, task: String, incarnation: i64) -> Self {
        self.master = (task, incarnation);
        self
    }

    pub(crate) fn peers(&self) -> Arc<Peers> {
        lock(&self.peers).clone()
    }

    /// Uses the addresses of a changed cluster from now on.
    pub(crate) fn set_peers(&self, peers: Arc<Peers>) {
        *lock(&self.peers) = peers;
    }
}
