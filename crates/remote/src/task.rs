//! [`Task`]: what the master and the worker of a server share.

use crate::coordination::Coordination;
use crate::device::{Devices, ServerDef};
use crate::handles::HandleTable;
use crate::peers::Peers;
use crate::rendezvous::RendezvousManager;
use crate::worker_session::WorkerSessions;
use ferroflow_runtime::{DEFAULT_CONTAINER, Pool, Resources};
use std::sync::Arc;

/// A task: its place in the cluster, its devices and what they hold.
pub(crate) struct Task {
    pub(crate) server: ServerDef,
    pub(crate) devices: Arc<Devices>,
    pub(crate) pool: Arc<Pool>,
    pub(crate) resources: Resources,
    pub(crate) peers: Arc<Peers>,
    pub(crate) rendezvous: RendezvousManager,
    /// The sessions of masters and of eager contexts on this task.
    pub(crate) sessions: WorkerSessions,
    pub(crate) coordination: Coordination,
    pub(crate) handles: Arc<HandleTable>,
}

impl Task {
    /// Clears containers, the default one if none is named.
    pub(crate) fn clear(&self, containers: &[String]) {
        match containers {
            [] => self.resources.clear(DEFAULT_CONTAINER),
            some => some.iter().for_each(|c| self.resources.clear(c)),
        }
    }
}
