//! [`Task`]: what the master and the worker of a server share.

use crate::coordination::Coordination;
use crate::device::{Devices, ServerDef};
use crate::handles::HandleTable;
use crate::peers::Peers;
use crate::rendezvous::RendezvousManager;
use crate::worker_session::WorkerSessions;
use ferroflow_runtime::{DEFAULT_CONTAINER, Pool, Resources};
use std::sync::Arc;
use tokio::runtime::Handle;

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
    /// The task of a server with this many CPU devices and threads; `runtime` serves its connections.
    pub(crate) fn new(server: ServerDef, cpus: usize, threads: usize, runtime: Handle) -> Self {
        let handles = Arc::<HandleTable>::default();
        Task {
            devices: Arc::new(Devices::cpus(&server.task, cpus.max(1))),
            pool: Arc::new(Pool::new(threads)),
            resources: Resources::default(),
            peers: Arc::new(Peers::new(&server.cluster, Arc::default(), runtime)),
            rendezvous: RendezvousManager::new(handles.clone()),
            sessions: WorkerSessions::default(),
            coordination: Coordination::default(),
            handles,
            server,
        }
    }

    /// Clears containers, the default one if none is named.
    pub(crate) fn clear(&self, containers: &[String]) {
        match containers {
            [] => self.resources.clear(DEFAULT_CONTAINER),
            some => some.iter().for_each(|c| self.resources.clear(c)),
        }
    }
}
