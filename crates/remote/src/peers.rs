//! [`Peers`]: the other tasks of a cluster, and calls of their services.

use crate::device::TaskName;
use crate::link::{self, Link, LinkOptions};
use crate::master_session::lock;
use crate::security::Security;
use crate::transport::{Directory, Transport};
use bytes::Bytes;
use ferroflow_base::{Code, Result, Status, invalid_argument, not_found, ordered_map};
use ferroflow_model::proto::GetStatusRequest;
use ferroflow_rpc::{self as rpc, AnyMessage, Frames};
use ferroflow_runtime::CancelToken;
use prost::Message;
use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tokio::runtime::Handle;
use tonic::client::Grpc;

/// Flow control window of a connection, bytes.
const WINDOW: u32 = 8 << 20;
/// A task that has been called, and each connection to this server, is probed this often, and lost if it does
/// not answer as fast: a half-open connection is noticed within twice this.
pub(crate) const KEEPALIVE: Duration = Duration::from_secs(9);
/// How long a task that cannot be reached is told what has ended.
const NOTIFY_LIMIT: Duration = Duration::from_secs(300);
/// Where the methods of masters are.
const MASTER: &str = "/tensorflow.MasterService/";
/// What the text about the origin of an error begins with.
const ORIGIN: &str = "Additional GRPC error information from remote target";
/// Interval between messages about a task that does not answer.
const WAIT_LOG_INTERVAL: Duration = Duration::from_secs(10);

/// Connections by address, shared by all sessions of a server.
pub(crate) struct Connections {
    by_address: Mutex<HashMap<String, Connection>>,
    security: Security,
    links: Arc<LinkOptions>,
    /// The tasks, if they are in this process.
    local: Option<Arc<Directory>>,
}

#[derive(Clone)]
struct Connection {
    transport: Transport,
    link: Arc<Link>,
    /// When a probe was last answered.
    heard: Arc<Mutex<Instant>>,
}

impl Connections {
    /// No connections yet, of the task of this name and incarnation.
    pub(crate) fn new(security: Security, task: String, incarnation: u64, runtime: Handle) -> Self {
        let links = LinkOptions {
            task,
            incarnation,
            token: security.token.clone().unwrap_or_default(),
            runtime,
        };
        Connections {
            by_address: Mutex::default(),
            security,
            links: Arc::new(links),
            local: None,
        }
    }

    /// The tasks are those of this directory.
    pub(crate) fn within(self, directory: &Arc<Directory>) -> Self {
        let local = Some(directory.clone());
        Connections { local, ..self }
    }

    /// What carries calls to the task at `address`.
    fn transport(&self, address: &str, runtime: &Handle) -> Result<Transport> {
        if let Some(local) = &self.local {
            return Ok(Transport::Local(local.clone(), address.to_string()));
        }
        // Connecting needs the runtime's timers.
        let _context = runtime.enter();
        let endpoint = self.security.endpoint(address)?;
        let endpoint = endpoint
            .tcp_nodelay(true)
            .initial_stream_window_size(WINDOW)
            .initial_connection_window_size(WINDOW);
        Ok(Transport::Channel(endpoint.connect_lazy()))
    }
}

/// The tasks of a cluster with their addresses.
pub(crate) struct Peers {
    addresses: Arc<BTreeMap<TaskName, String>>,
    connections: Arc<Connections>,
    /// The async runtime that serves the connections.
    runtime: Handle,
}

impl Peers {
    pub(crate) fn new(
        cluster: &BTreeMap<String, BTreeMap<u32, String>>,
        connections: Arc<Connections>,
        runtime: Handle,
    ) -> Self {
        let tasks = cluster.iter().flat_map(|(job, tasks)| {
            let named = tasks.iter();
            named.map(|(index, at)| {
                let job = job.clone();
                (TaskName { job, index: *index }, at.clone())
            })
        });
        Self::of_addresses(Arc::new(ordered_map(tasks)), connections, runtime)
    }

    /// The tasks at these addresses.
    pub(crate) fn of_addresses(
        addresses: Arc<BTreeMap<TaskName, String>>,
        connections: Arc<Connections>,
        runtime: Handle,
    ) -> Self {
        Peers {
            addresses,
            connections,
            runtime,
        }
    }

    /// The peers of another cluster, over the same connections.
    pub(crate) fn of_cluster(&self, cluster: &BTreeMap<String, BTreeMap<u32, String>>) -> Self {
        Peers::new(cluster, self.connections.clone(), self.runtime.clone())
    }

    /// All tasks, in order of job and index.
    pub(crate) fn tasks(&self) -> impl Iterator<Item = &TaskName> {
        self.addresses.keys()
    }

    pub(crate) fn runtime(&self) -> &Handle {
        &self.runtime
    }

    /// The task of this name.
    ///
    /// # Errors
    /// NOT_FOUND if the cluster does not have it; INVALID_ARGUMENT if its address is malformed.
    pub(crate) fn get(&self, task: &TaskName) -> Result<Peer> {
        let address = self.addresses.get(task);
        let address = address.ok_or_else(|| not_found!("{task} is not in the cluster"))?;
        let mut known = lock(&self.connections.by_address);
        let connection = match known.get(address) {
            Some(connection) => connection.clone(),
            None => {
                let transport = self.connections.transport(address, &self.runtime);
                let connection = Connection {
                    transport: transport.map_err(|e| e.note(format!("{task}")))?,
                    link: Link::new(address, &self.connections.links),
                    heard: Arc::new(Mutex::new(Instant::now())),
                };
                known.insert(address.clone(), connection.clone());
                connection
            }
        };
        Ok(Peer {
            task: task.clone(),
            transport: connection.transport,
            link: connection.link,
            heard: connection.heard,
            connections: self.connections.clone(),
            runtime: self.runtime.clone(),
        })
    }
}

/// A task that can be called.
#[derive(Clone)]
pub(crate) struct Peer {
    pub(crate) task: TaskName,
    /// What tasks of Ferroflow's have besides the channel.
    pub(crate) link: Arc<Link>,
    heard: Arc<Mutex<Instant>>,
    transport: Transport,
    connections: Arc<Connections>,
    runtime: Handle,
}

impl Peer {
    pub(crate) fn runtime(&self) -> &Handle {
        &self.runtime
    }

    /// Calls a method of the task's WorkerService.
    ///
    /// # Errors
    /// UNAVAILABLE if the task cannot be reached; those of the method.
    pub(crate) async fn call<Q, R>(&self, method: &str, request: Q) -> Result<R>
    where
        Q: Message + 'static,
        R: Message + Default + 'static,
    {
        self.call_path(format!("/tensorflow.WorkerService/{method}"), request)
            .await
    }

    /// Calls a method of the task's EagerService.
    ///
    /// # Errors
    /// As [`Peer::call`].
    pub(crate) async fn call_eager<Q, R>(&self, method: &str, request: Q) -> Result<R>
    where
        Q: Message + 'static,
        R: Message + Default + 'static,
    {
        self.call_path(format!("/tensorflow.eager.EagerService/{method}"), request)
            .await
    }

    /// Calls a method of the task's CoordinationService.
    ///
    /// # Errors
    /// As [`Peer::call`].
    pub(crate) async fn call_coordination<Q, R>(&self, method: &str, request: Q) -> Result<R>
    where
        Q: Message + 'static,
        R: Message + Default + 'static,
    {
        self.call_path(format!("/tensorflow.CoordinationService/{method}"), request)
            .await
    }

    /// Calls a method of the task's MasterService. Its errors are the session's own.
    ///
    /// # Errors
    /// As [`Peer::call`].
    pub(crate) async fn call_master<Q, R>(&self, method: &str, request: Q) -> Result<R>
    where
        Q: Message + 'static,
        R: Message + Default + 'static,
    {
        self.call_path(format!("{MASTER}{method}"), request).await
    }

    async fn call_path<Q, R>(&self, path: String, request: Q) -> Result<R>
    where
        Q: Message + 'static,
        R: Message + Default + 'static,
    {
        let answer = self.call_frames(&path, Box::new(request)).await?;
        rpc::parse(answer).map_err(|e| self.status(&path, &e))
    }

    /// [`Peer::call_path`] without the types of the messages.
    async fn call_frames(&self, path: &str, request: AnyMessage) -> Result<Bytes> {
        tokio::select! {
            answer = self.call_unwatched(path, request) => answer,
            () = self.silence() => Err(self.unreachable(path, "it does not answer any more")),
        }
    }

    /// Returns once the task does not answer any more. HTTP/2's pings cannot tell: servers of TensorFlow's end
    /// connections that have several of them and no data.
    async fn silence(&self) {
        const PATH: &str = "/tensorflow.WorkerService/GetStatus";
        loop {
            tokio::time::sleep(KEEPALIVE).await;
            // Calls of one connection share the probes.
            if lock(&self.heard).elapsed() < KEEPALIVE / 2 {
                continue;
            }
            let probe = self.call_unwatched(PATH, Box::new(GetStatusRequest {}));
            match tokio::time::timeout(KEEPALIVE, probe).await {
                Ok(Err(e)) if e.code() == Code::Unavailable => return,
                Ok(_) => *lock(&self.heard) = Instant::now(),
                Err(_) => return,
            }
        }
    }

    async fn call_unwatched(&self, path: &str, request: AnyMessage) -> Result<Bytes> {
        let mut client = Grpc::new(self.transport.clone())
            .max_decoding_message_size(usize::MAX)
            .max_encoding_message_size(usize::MAX);
        client
            .ready()
            .await
            .map_err(|e| self.unreachable(path, &e.to_string()))?;
        let uri = http::uri::PathAndQuery::try_from(path);
        let uri = uri.map_err(|e| invalid_argument!("{path}: {e}"))?;
        let mut request = tonic::Request::new(request);
        self.connections.security.sign(&mut request)?;
        let answer = client.unary(request, uri, Frames).await;
        let headers = match &answer {
            Ok(answer) => answer.metadata(),
            Err(e) => e.metadata(),
        };
        if headers.contains_key(link::HEADER) {
            self.link.set_known();
        }
        Ok(answer.map_err(|e| self.status(path, &e))?.into_inner())
    }

    /// As [`Peer::call`], repeated while the task cannot be reached, until `cancel` ends it.
    ///
    /// # Errors
    /// Those of the method; the reason of `cancel`, or, if that is the time, with why the last attempt failed as its
    /// text.
    pub(crate) async fn call_when_ready<Q, R>(
        &self,
        method: &str,
        request: Q,
        cancel: &CancelToken,
    ) -> Result<R>
    where
        Q: Message + Clone + 'static,
        R: Message + Default + 'static,
    {
        let (mut pause, mut logged) = (Duration::from_millis(20), Instant::now());
        loop {
            let failed = match self.call(method, request.clone()).await {
                Err(e) if e.code() == Code::Unavailable => e,
                result => return result,
            };
            let why = failed.message().lines().next().unwrap_or_default();
            match cancel.check() {
                Err(e) if e.code() == Code::DeadlineExceeded => {
                    return Err(Status::new(e.code(), why));
                }
                result => result?,
            }
            if logged.elapsed() >= WAIT_LOG_INTERVAL {
                logged = Instant::now();
                let task = &self.task;
                tracing::warn!("still waiting for response from worker: {task} ({why})");
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(Duration::from_millis(500));
        }
    }

    /// Calls a method whose outcome does not matter, again while the task cannot be reached: it may only be
    /// cut off, and has to free what it holds. Each attempt may take the time `within`.
    pub(crate) fn notify<Q, R>(&self, method: &'static str, request: Q, within: Duration)
    where
        Q: Message + Clone + 'static,
        R: Message + Default + 'static,
    {
        let peer = self.clone();
        let end = Instant::now() + NOTIFY_LIMIT;
        ferroflow_rpc::spawn(&self.runtime, async move {
            let mut pause = Duration::from_millis(100);
            loop {
                let call = peer.call::<Q, R>(method, request.clone());
                let failed = match tokio::time::timeout(within, call).await {
                    Ok(Ok(_)) => return,
                    Ok(Err(e)) if e.code() != Code::Unavailable => e.message().to_string(),
                    _ if Instant::now() < end => {
                        tokio::time::sleep(pause).await;
                        pause = (pause * 2).min(Duration::from_secs(5));
                        continue;
                    }
                    _ => "it cannot be reached".to_string(),
                };
                tracing::debug!("{method} of {}: {failed}", peer.task);
                return;
            }
        });
    }

    /// The status of a call over a link that failed.
    pub(crate) fn lost(&self, method: &str, e: &Status) -> Status {
        match e.code() {
            Code::Unavailable => {
                self.unreachable(&format!("/tensorflow.WorkerService/{method}"), e.message())
            }
            _ => e.clone(),
        }
    }

    /// An error of a part of a function, with the call by which TensorFlow runs those: its coordinator of workers
    /// looks for the task there.
    pub(crate) fn with_eager_origin(&self, e: Status) -> Status {
        const PATH: &str = "/tensorflow.eager.EagerService/RunComponentFunction";
        match e.message().contains(ORIGIN) {
            true => e,
            false => self.with_origin(e, PATH),
        }
    }

    fn unreachable(&self, path: &str, why: &str) -> Status {
        let text = format!("failed to connect to {}: {why}", self.task);
        self.with_origin(Status::new(Code::Unavailable, text), path)
    }

    /// The status of a failed call. One without a cause comes from the task itself.
    fn status(&self, path: &str, e: &tonic::Status) -> Status {
        match std::error::Error::source(e) {
            Some(cause) => self.unreachable(path, &deepest(cause)),
            None => self.with_origin(ferroflow_rpc::from_tonic(e), path),
        }
    }

    /// The error with the task that it comes from in its text, unless a master tells of its session.
    fn with_origin(&self, e: Status, path: &str) -> Status {
        match path.starts_with(MASTER) {
            true => e,
            false => with_origin(&e, &self.task, path),
        }
    }
}

/// The call by which tensors come from another task.
pub(crate) const RECV_TENSOR: &str = "/tensorflow.WorkerService/RecvTensor";

/// The error of a call with the task that it comes from in its text.
pub(crate) fn with_origin(e: &Status, task: impl fmt::Display, path: &str) -> Status {
    let text = format!(
        "{}\n{ORIGIN} {task} while calling {path}:\n:{{}}",
        ferroflow_rpc::message(e)
    );
    Status::new(e.code(), text).with_payloads(e.payloads().clone())
}

/// The text of the first cause of an error.
fn deepest(error: &(dyn std::error::Error + 'static)) -> String {
    let mut error = error;
    while let Some(cause) = error.source() {
        error = cause;
    }
    error.to_string()
}
