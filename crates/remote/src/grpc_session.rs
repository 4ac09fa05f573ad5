//! [`GrpcSession`]: a session on a master of another process (TensorFlow:
//! `core/distributed_runtime/rpc/grpc_session.cc`).

use crate::device::{TaskName, random_u64};
use crate::master_session::lock;
use crate::peers::{Connections, Peer, Peers};
use crate::security::Security;
use ferroflow_base::{Code, Result, Status, internal, invalid_argument, ordered_map};
use ferroflow_model::proto::{
    CloseSessionRequest, CloseSessionResponse, ConfigProto, CreateSessionRequest,
    CreateSessionResponse, DeviceAttributes, ExtendSessionRequest, ExtendSessionResponse, GraphDef,
    ListDevicesRequest, ListDevicesResponse, NamedTensorProto, PartialRunSetupRequest,
    PartialRunSetupResponse, ResetRequest, ResetResponse, RunMetadata, RunOptions, RunStepRequest,
    RunStepResponse,
};
use ferroflow_model::{tensor_from_proto, tensor_to_proto};
use ferroflow_runtime::{Signature, Tensor};
use prost::Message;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, OnceLock};
use tokio::runtime::Runtime;

/// A session that a master runs, such as that of a TensorFlow server. The master has it from the
/// first graph on.
///
/// ```no_run
/// use ferroflow_remote::{GrpcSession, GrpcStep};
/// # let (config, graph) = Default::default();
/// let session = GrpcSession::new("grpc://localhost:2222", config)?;
/// session.extend(graph)?;
/// let step = GrpcStep { fetches: vec!["y:0".to_string()], ..Default::default() };
/// let (results, _) = session.run(step)?;
/// # Ok::<(), ferroflow_base::Status>(())
/// ```
pub struct GrpcSession {
    master: Master,
    config: ConfigProto,
    /// The name that the master gave the session, and the version of its graph.
    opened: Mutex<Option<(String, i64)>>,
}

/// A step of a [`GrpcSession`].
#[derive(Default)]
pub struct GrpcStep {
    /// What is fed, by name.
    pub feeds: Vec<(String, Tensor)>,
    /// What is fetched.
    pub fetches: Vec<String>,
    /// The nodes that run without results.
    pub targets: Vec<String>,
    /// How it runs.
    pub options: Option<RunOptions>,
    /// The step in parts that this one continues, if any.
    pub partial_run: String,
}

impl GrpcStep {
    /// Returns a step that feeds `args` in the order of the signature's feeds.
    pub fn new(signature: Signature, args: Vec<Tensor>) -> GrpcStep {
        GrpcStep {
            feeds: signature.feeds.into_iter().zip(args).collect(),
            fetches: signature.fetches,
            targets: signature.targets,
            options: None,
            partial_run: String::new(),
        }
    }
}

/// The connection to a master.
struct Master {
    peer: Peer,
    target: String,
}

/// Returns the runtime of all connections to masters, which has one thread.
fn runtime() -> Result<&'static Runtime> {
    static RUNTIME: OnceLock<std::io::Result<Runtime>> = OnceLock::new();
    let runtime = RUNTIME.get_or_init(|| {
        tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name("ferroflow-grpc-session")
            .enable_all()
            .build()
    });
    let failed = |e| internal!("starting the thread of the connections to masters: {e}");
    runtime.as_ref().map_err(failed)
}

impl Master {
    fn connect(target: &str) -> Result<Master> {
        let address = target.strip_prefix("grpc://").unwrap_or(target);
        let name = TaskName {
            job: "master".to_string(),
            index: 0,
        };
        let tasks = ordered_map([(0, address.to_string())]);
        let handle = runtime()?.handle().clone();
        let connections = Connections::new(
            Security::default(),
            String::new(),
            random_u64(),
            handle.clone(),
        );
        let cluster = ordered_map([(name.job.clone(), tasks)]);
        let peer = Peers::new(&cluster, Arc::new(connections), handle).get(&name)?;
        Ok(Master {
            peer,
            target: target.to_string(),
        })
    }

    fn call<Q, R>(&self, method: &str, request: Q) -> Result<R>
    where
        Q: Message + 'static,
        R: Message + Default + 'static,
    {
        runtime()?.block_on(self.peer.call_master(method, request))
    }
}

impl GrpcSession {
    /// A session on the master at a target, `grpc://HOST:PORT`. Nothing is sent yet.
    ///
    /// # Errors
    /// INVALID_ARGUMENT if the target is not an address.
    pub fn new(target: &str, config: ConfigProto) -> Result<GrpcSession> {
        Ok(GrpcSession {
            master: Master::connect(target)?,
            config,
            opened: Mutex::default(),
        })
    }

    /// Forgets the variables of these containers, or of all, on the master's tasks.
    ///
    /// # Errors
    /// As [`GrpcSession::new`]; UNAVAILABLE if the master cannot be reached.
    pub fn reset(target: &str, containers: Vec<String>) -> Result<()> {
        let request = ResetRequest {
            container: containers,
            device_filters: Vec::new(),
        };
        let ResetResponse {} = Master::connect(target)?.call("Reset", request)?;
        Ok(())
    }

    /// Adds nodes to the graph.
    ///
    /// # Errors
    /// Those of the master; UNAVAILABLE if it cannot be reached.
    pub fn extend(&self, graph: GraphDef) -> Result<()> {
        let mut opened = lock(&self.opened);
        let graph_def = Some(graph);
        let Some((handle, version)) = &mut *opened else {
            let created: CreateSessionResponse = self.master.call(
                "CreateSession",
                CreateSessionRequest {
                    graph_def,
                    config: Some(self.config.clone()),
                    target: self.master.target.clone(),
                },
            )?;
            *opened = Some((created.session_handle, created.graph_version));
            return Ok(());
        };
        let extended: ExtendSessionResponse = self.master.call(
            "ExtendSession",
            ExtendSessionRequest {
                session_handle: handle.clone(),
                graph_def,
                current_graph_version: *version,
            },
        )?;
        *version = extended.new_graph_version;
        Ok(())
    }

    fn handle(&self) -> Result<String> {
        let opened = lock(&self.opened);
        let handle = opened.as_ref().map(|(handle, _)| handle.clone());
        handle
            .ok_or_else(|| invalid_argument!("Session was not created with a graph before Run()!"))
    }

    /// Runs a step; returns what was fetched, and the report that the options ask for.
    ///
    /// # Errors
    /// INVALID_ARGUMENT before the first graph; those of the step.
    pub fn run(&self, step: GrpcStep) -> Result<(Vec<Tensor>, RunMetadata)> {
        let feed = step.feeds.iter().map(|(name, tensor)| {
            Ok(NamedTensorProto {
                name: name.clone(),
                tensor: Some(tensor_to_proto(tensor)?),
            })
        });
        let request = RunStepRequest {
            session_handle: self.handle()?,
            feed: feed.collect::<Result<_>>()?,
            fetch: step.fetches.clone(),
            target: step.targets,
            options: step.options,
            partial_run_handle: step.partial_run,
            store_errors_in_response_body: true,
            request_id: (random_u64() >> 1) as i64,
        };
        let response: RunStepResponse = self.master.call("RunStep", request)?;
        if let Some(code) = Code::from_number(response.status_code) {
            return Err(Status::new(code, response.status_error_message));
        }
        let mut found: HashMap<String, Tensor> = HashMap::new();
        for named in response.tensor {
            let proto = named.tensor.unwrap_or_default();
            found.insert(named.name, tensor_from_proto(&proto, None)?.get()?);
        }
        let results = step.fetches.iter().map(|name| {
            let found = found.get(name).cloned();
            found.ok_or_else(|| internal!("the master has not returned '{name}'"))
        });
        Ok((
            results.collect::<Result<_>>()?,
            response.metadata.unwrap_or_default(),
        ))
    }

    /// Begins a step whose feeds come in several calls; returns its name.
    ///
    /// # Errors
    /// As [`GrpcSession::run`].
    pub fn partial_run_setup(&self, signature: &Signature) -> Result<String> {
        let request = PartialRunSetupRequest {
            session_handle: self.handle()?,
            feed: signature.feeds.clone(),
            fetch: signature.fetches.clone(),
            target: signature.targets.clone(),
            request_id: (random_u64() >> 1) as i64,
        };
        let begun: PartialRunSetupResponse = self.master.call("PartialRunSetup", request)?;
        Ok(begun.partial_run_handle)
    }

    /// The devices of the master's task, then those of the others.
    ///
    /// # Errors
    /// UNAVAILABLE if the master cannot be reached.
    pub fn devices(&self) -> Result<Vec<DeviceAttributes>> {
        let opened = lock(&self.opened).clone();
        let session_handle = opened.map(|(handle, _)| handle).unwrap_or_default();
        let request = ListDevicesRequest { session_handle };
        let all: ListDevicesResponse = self.master.call("ListDevices", request)?;
        Ok([all.local_device, all.remote_device].concat())
    }

    /// Ends the session; its steps are cancelled.
    ///
    /// # Errors
    /// Those of the master; UNAVAILABLE if it cannot be reached.
    pub fn close(&self) -> Result<()> {
        let Some((session_handle, _)) = lock(&self.opened).take() else {
            return Ok(());
        };
        let request = CloseSessionRequest { session_handle };
        let CloseSessionResponse {} = self.master.call("CloseSession", request)?;
        Ok(())
    }
}

impl Drop for GrpcSession {
    fn drop(&mut self) {
        if let Err(e) = self.close() {
            tracing::debug!(
                "closing a session of {}: {}",
                self.master.target,
                e.message()
            );
        }
    }
}
