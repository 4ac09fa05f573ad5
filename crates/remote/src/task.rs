//! [`Task`]: what the master and the worker of a server share.

use crate::cluster::CLOSE_TIMEOUT;
use crate::collectives::{CollectiveManager, SessionCollectives};
use crate::config::addresses;
use crate::coordination::Coordination;
use crate::device::{Devices, ServerDef};
use crate::handles::HandleTable;
use crate::master::MasterOptions;
use crate::peers::{Connections, Peer, Peers};
use crate::rendezvous::RendezvousManager;
use crate::security::Security;
use crate::worker_session::WorkerSessions;
use ferroflow_base::Result;
use ferroflow_model::proto::{CleanupAllRequest, CleanupAllResponse, ConfigProto};
use ferroflow_runtime::{DeviceSpec, Pool, Resources, RunOptions};
use std::sync::Arc;
use tokio::runtime::Handle;
use tokio::task::JoinSet;

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
    pub(crate) collectives: Arc<CollectiveManager>,
    pub(crate) handles: Arc<HandleTable>,
}

impl Task {
    /// The task of a server; `runtime` serves its connections.
    pub(crate) fn new(options: &MasterOptions, runtime: Handle) -> Self {
        let threads = match options.threads {
            0 => options
                .server
                .defaults
                .threads
                .unwrap_or_else(Pool::available_threads),
            n => n,
        };
        Self::with(
            options,
            Arc::new(Pool::new(threads)),
            |security, incarnation| {
                let own = options.server.task.to_string();
                let connections = Connections::new(security, own, incarnation, runtime.clone());
                Peers::new(&options.server.cluster, Arc::new(connections), runtime)
            },
        )
    }

    /// The task of a server that computes on `pool`; `peers` makes the others from the security of connections
    /// and the incarnation of this one.
    pub(crate) fn with(
        options: &MasterOptions,
        pool: Arc<Pool>,
        peers: impl FnOnce(Security, u64) -> Peers,
    ) -> Self {
        let server = options.server.clone();
        let cpus = match options.cpus {
            0 => server.defaults.cpus.unwrap_or(1),
            n => n,
        };
        let handles = Arc::<HandleTable>::default();
        let devices = Arc::new(Devices::cpus(&server.task, cpus));
        let peers = peers(server.security.clone(), devices.incarnation());
        Task {
            devices,
            pool,
            resources: Resources::with_default_container(&server.task.job),
            peers: Arc::new(peers),
            rendezvous: RendezvousManager::new(handles.clone()),
            sessions: WorkerSessions::default(),
            coordination: Coordination::default(),
            collectives: CollectiveManager::new(
                &server.task,
                &server.defaults.collective_leader,
                options.carrier.as_ref(),
            ),
            handles,
            server,
        }
    }

    /// What tells this task from others in steps and links.
    pub(crate) fn incarnation(&self) -> u64 {
        self.devices.incarnation()
    }

    /// Lets collectives of a session with these resources reach the other tasks, if there are any.
    pub(crate) fn join_collectives(
        &self,
        resources: &Resources,
        devices: &Arc<Devices>,
        peers: &Arc<Peers>,
    ) {
        if peers.tasks().nth(1).is_some() {
            let collectives = SessionCollectives::new(&self.collectives, devices, peers);
            resources.set_collectives(Arc::new(collectives));
        }
    }

    /// The tasks of a session: of the cluster in its configuration, if any.
    ///
    /// # Errors
    /// INVALID_ARGUMENT if that is malformed.
    pub(crate) fn peers_of(&self, config: &ConfigProto) -> Result<Arc<Peers>> {
        Ok(match &config.cluster_def {
            Some(cluster) => Arc::new(self.peers.of_cluster(&addresses(cluster)?)),
            None => self.peers.clone(),
        })
    }

    /// Runs a step of the graph with this key of collectives, under the number that other masters give
    /// it, too.
    ///
    /// # Errors
    /// Those of the step and of asking for the number.
    pub(crate) fn run_collectives<T>(
        &self,
        key: i64,
        options: RunOptions,
        run: impl FnOnce(&RunOptions) -> Result<T>,
    ) -> Result<T> {
        let step = self.collectives.next_step(&self.peers, key)?;
        let result = run(&RunOptions {
            step_id: Some(step as u64),
            ..options
        });
        self.collectives.retire_step(key, step, result.is_ok());
        result
    }

    /// Forgets a step that is over on all tasks.
    pub(crate) fn end_step(&self, id: u64) {
        self.rendezvous.cleanup(id);
        self.collectives.end_step(id as i64);
    }

    /// Clears containers, the default one if none is named.
    pub(crate) fn clear(&self, containers: &[String]) {
        match containers {
            [] => self.resources.clear(""),
            // An empty name is that of no container here.
            some => {
                let named = some.iter().filter(|c| !c.is_empty());
                named.for_each(|c| self.resources.clear(c));
            }
        }
    }

    /// `CleanupAll` of the tasks that match the filters; errors are only logged.
    pub(crate) fn clear_others(&self, containers: &[String], filters: &[String]) {
        let filters: Vec<DeviceSpec> = filters.iter().flat_map(|f| DeviceSpec::parse(f)).collect();
        let others = self.peers.tasks().filter(|t| **t != self.server.task);
        let wanted = others.filter(|t| {
            let device = format!("{t}/device:CPU:0");
            filters.is_empty() || filters.iter().any(|f| f.matches(&device))
        });
        let peers: Vec<Peer> = wanted.flat_map(|t| self.peers.get(t)).collect();
        let request = CleanupAllRequest {
            container: containers.to_vec(),
        };
        self.peers.runtime().block_on(async {
            let mut calls = JoinSet::new();
            for peer in peers {
                let request = request.clone();
                calls.spawn(async move {
                    let call = peer.call::<_, CleanupAllResponse>("CleanupAll", request);
                    match tokio::time::timeout(CLOSE_TIMEOUT, call).await {
                        Ok(Ok(_)) => {}
                        Ok(Err(e)) => {
                            tracing::warn!("CleanupAll of {}: {}", peer.task, e.message())
                        }
                        Err(_) => tracing::warn!("CleanupAll of {}: no answer", peer.task),
                    }
                });
            }
            while calls.join_next().await.is_some() {}
        });
    }
}
