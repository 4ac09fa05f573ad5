//! TensorFlow's coordination service: the leader's [`Coordinator`], and the [`Agent`] of each task.

mod agent;
mod barriers;
mod members;
mod service;
mod store;

use crate::config::addresses;
use crate::device::TaskName;
use crate::master_session::lock;
use crate::peers::Peers;
use ferroflow_base::{Result, Status, internal};
use ferroflow_model::proto::{CoordinatedJob, CoordinationServiceConfig, ServerDef};
use std::sync::{Arc, Mutex};

pub(crate) use agent::Agent;
pub(crate) use service::Coordinator;

/// What a task takes part in of a coordination service.
#[derive(Default)]
pub(crate) struct Coordination(Mutex<Roles>);

#[derive(Default)]
struct Roles {
    /// The service, if this task leads.
    coordinator: Option<Arc<Coordinator>>,
    agent: Option<Arc<Agent>>,
}

impl Coordination {
    /// The service of this task.
    ///
    /// # Errors
    /// INTERNAL if this task does not lead, or no session has started the service.
    pub(crate) fn coordinator(&self) -> Result<Arc<Coordinator>> {
        let coordinator = lock(&self.0).coordinator.clone();
        coordinator.ok_or_else(|| internal!("Coordination service is not enabled."))
    }

    /// The agent of this task.
    ///
    /// # Errors
    /// INTERNAL if no session has started it.
    pub(crate) fn agent(&self) -> Result<Arc<Agent>> {
        let agent = lock(&self.0).agent.clone();
        agent.ok_or_else(|| {
            internal!("CoordinationServiceAgent is uninitialized or has already shutdown.")
        })
    }

    /// Starts what the configuration of a session asks for, the first time, and registers this task with
    /// the leader if the session wants health checks. Blocks until the leader has answered.
    ///
    /// # Errors
    /// Those of the leader; INVALID_ARGUMENT if an address is malformed.
    pub(crate) fn join(&self, def: &ServerDef, own: &TaskName, peers: &Arc<Peers>) -> Result<()> {
        let Some(config) = config_of(def, own) else {
            return Ok(());
        };
        let agent = self.start(&config, own, peers)?;
        match config.enable_health_check {
            true => ferroflow_rpc::block_on(peers.runtime(), agent.connect()),
            false => Ok(()),
        }
    }

    fn start(
        &self,
        config: &CoordinationServiceConfig,
        own: &TaskName,
        peers: &Arc<Peers>,
    ) -> Result<Arc<Agent>> {
        let mut roles = lock(&self.0);
        if let Some(agent) = &roles.agent {
            return Ok(agent.clone());
        }
        let leader = TaskName::of_device(&format!("{}/", config.service_leader));
        let leader = leader.unwrap_or_else(|| own.clone());
        if leader == *own {
            roles.coordinator = Some(Coordinator::start(config, peers));
        }
        let agent = Arc::new(Agent::new(config, own, peers.get(&leader)?));
        roles.agent = Some(agent.clone());
        Ok(agent)
    }
}

/// The configuration of a session's coordination service, if it has one, with the leader and the jobs that
/// TensorFlow assumes.
fn config_of(def: &ServerDef, own: &TaskName) -> Option<CoordinationServiceConfig> {
    let session = def.default_session_config.as_ref()?;
    let experimental = session.experimental.as_ref()?;
    let mut config = experimental.coordination_config.clone()?;
    if config.service_type.is_empty() || config.force_disable {
        return None;
    }
    if config.service_leader.is_empty() {
        config.service_leader = match experimental.collective_group_leader.as_str() {
            "" => format!("/job:{}/replica:0/task:0", own.job),
            leader => leader.to_string(),
        };
    }
    if config.coordinated_job_list.is_empty() {
        let cluster = def.cluster.as_ref().map(addresses);
        let jobs = cluster.and_then(Result::ok).unwrap_or_default();
        config.coordinated_job_list = jobs
            .iter()
            .map(|(name, tasks)| CoordinatedJob {
                name: name.clone(),
                num_tasks: tasks.keys().next_back().map_or(0, |last| *last as i32 + 1),
            })
            .collect();
    }
    Some(config)
}

/// The gRPC status of an error of the coordination service, with the payload by which TensorFlow's agents
/// tell it from one of the connection.
pub(crate) fn to_tonic(error: &Status) -> tonic::Status {
    use ferroflow_model::proto::GrpcPayloadContainer;
    use prost::Message;
    const PAYLOAD: &str = "type.googleapis.com/tensorflow.CoordinationServiceError";
    let payloads = [(PAYLOAD.to_string(), Vec::new().into())];
    let container = GrpcPayloadContainer {
        payloads: payloads.into_iter().collect(),
    };
    let plain = ferroflow_rpc::to_tonic(error);
    let details = container.encode_to_vec();
    tonic::Status::with_details(plain.code(), plain.message(), details.into())
}
