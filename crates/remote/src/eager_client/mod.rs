//! [`EagerCluster`]: the other tasks of a cluster for the client of an eager context. It is the counterpart
//! of [`EagerService`](crate::EagerService), TensorFlow's `EagerContextDistributedManager`.

mod calls;
mod contexts;
mod coordination;
mod server;
mod tensor;

use crate::cluster::GrpcCluster;
use crate::collectives::SessionCollectives;
use crate::config::addresses;
use crate::device::{TaskName, random_u64};
use crate::eager_context::session_of;
use crate::master_session::lock;
use crate::peers::{Peer, Peers};
use crate::rendezvous::StepRendezvous;
use crate::task::Task;
use crate::worker_session::WorkerSession;
use ferroflow_base::{Code, Result, Status, failed_precondition, invalid_argument, ordered_set};
use ferroflow_model::proto::{
    DeviceAttributes, GetStatusRequest, GetStatusResponse, RemoteTensorHandle, ServerDef,
};
use ferroflow_runtime::DeviceSpec;
use ferroflow_runtime::eager::{CallDevices, EagerContext};
use server::{OwnServer, port_of};
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::sync::mpsc;

pub use calls::{RemoteCall, RemoteInput};
pub use tensor::RemoteTensor;

/// A context of which the client says nothing else is kept alive for this time.
const KEEP_ALIVE_SECS: i64 = 600;

/// Collectives of all calls of a context belong to this step.
const COLLECTIVE_STEP: i64 = 0;

/// How a context joins a cluster.
#[derive(Clone, Debug, Default)]
pub struct JoinOptions {
    /// Number of CPU devices of this process; 0 means one.
    pub cpus: usize,
    /// How long tasks keep a context whose client is silent, in seconds; 0 stands for their default.
    pub keep_alive_secs: i64,
    /// How long a task may take to begin a context, if limited.
    pub timeout: Option<Duration>,
    /// How often beginning a context is tried again.
    pub retries: u32,
    /// Whether tasks forget the contexts of other clients.
    pub clear_existing: bool,
    /// Whether the other tasks get no contexts: they have clients of their own, and only run collectives with this
    /// one.
    pub is_alone: bool,
}

/// The place of an eager context in a cluster: this process is one of its tasks and serves the others, which
/// run ops for it. Leaves the cluster when dropped.
///
/// ```no_run
/// use ferroflow_remote::{EagerCluster, JoinOptions, RemoteCall, RemoteInput};
/// use ferroflow_runtime::{Attrs, CancelToken, DType, Tensor, eager::EagerContext};
/// # let def = ferroflow_model::proto::ServerDef::default();
/// let context = EagerContext::new(2);
/// let cluster = EagerCluster::join(&context, &def, &JoinOptions::default())?;
/// let device = "/job:worker/replica:0/task:1/device:CPU:0";
/// let call = RemoteCall {
///     name: "Neg",
///     attrs: &Attrs::default(),
///     inputs: vec![RemoteInput::Local(Tensor::scalar(2.0f32))],
/// };
/// let outputs = cluster.promise(device, &[DType::Float])?;
/// cluster.run(&context, &call, device, &outputs, &CancelToken::new())?;
/// assert_eq!(outputs[0].fetch()?.to_scalar::<f32>()?, -2.0);
/// # Ok::<(), ferroflow_base::Status>(())
/// ```
pub struct EagerCluster {
    shared: Arc<Shared>,
    options: JoinOptions,
    collectives: Arc<SessionCollectives>,
    /// Held while the cluster changes.
    updating: Mutex<()>,
    server: OwnServer,
}

/// What the handles of tensors of other tasks need.
struct Shared {
    id: u64,
    task: Arc<Task>,
    own: TaskName,
    /// Where ops of other tasks bring tensors.
    rendezvous: Arc<StepRendezvous>,
    /// Through which other tasks run parts of functions here.
    session: Arc<WorkerSession>,
    view: Mutex<Arc<View>>,
    /// The functions that each task has.
    registered: Mutex<BTreeMap<TaskName, HashSet<String>>>,
    next_op: AtomicI64,
    has_left: AtomicBool,
    /// Tensors whose last handle is gone.
    forgotten: mpsc::UnboundedSender<(TaskName, RemoteTensorHandle)>,
}

/// The cluster after a change.
struct View {
    number: u64,
    peers: Arc<Peers>,
    /// The other tasks that have a context.
    members: BTreeSet<TaskName>,
    /// All devices, those of this task last.
    devices: Vec<DeviceAttributes>,
    cluster: Arc<GrpcCluster>,
}

impl Shared {
    fn view(&self) -> Arc<View> {
        lock(&self.view).clone()
    }

    /// # Errors
    /// UNAVAILABLE if the context has left the cluster.
    fn check(&self) -> Result<()> {
        match self.has_left.load(Ordering::Acquire) {
            false => Ok(()),
            true => Err(Status::new(
                Code::Unavailable,
                "the context has left the cluster",
            )),
        }
    }

    /// Lets a task forget a tensor, some time later.
    fn forget(&self, task: &TaskName, handle: RemoteTensorHandle) {
        // The receiver is gone once the context has left.
        let _ = self.forgotten.send((task.clone(), handle));
    }
}

impl EagerCluster {
    /// Starts to serve as the task that `def` names, and begins a context on each other task. Functions of `engine`
    /// are registered there when they are called.
    ///
    /// # Errors
    /// UNAVAILABLE if the port is in use; those of [`ServerDef`](crate::ServerDef); those of the other tasks.
    pub fn join(
        engine: &EagerContext,
        def: &ServerDef,
        options: &JoinOptions,
    ) -> Result<EagerCluster> {
        let server = OwnServer::start(def, options.cpus.max(1))?;
        let task = server.task.clone();
        let own = task.server.task.clone();
        let (peers, runtime) = (task.peers.clone(), task.peers.runtime().clone());
        let id = random_u64();
        let resources = engine.resources().fork_session();
        let session =
            WorkerSession::new(own.clone(), task.devices.clone(), resources, peers.clone());
        let session = Arc::new(session);
        task.sessions.insert(session_of(id), session.clone());
        let rendezvous = task.rendezvous.renew(id);
        rendezvous.initialize(&own, &peers)?;
        let collectives = SessionCollectives::new(&task.collectives, &task.devices, &peers);
        let collectives = Arc::new(collectives.in_step(COLLECTIVE_STEP));
        engine.resources().set_collectives(collectives.clone());
        let others = match options.is_alone {
            true => Vec::new(),
            false => others(&own, &peers)?,
        };
        let mut devices = runtime.block_on(contexts::devices_of(&others, options.timeout))?;
        devices.extend(task.devices.attributes().to_vec());
        let members = ordered_set(others.iter().map(|peer| peer.task.clone()));
        let view = View::new(&task, id, 0, (peers.clone(), members), devices)?;
        let (begun, joined) = std::thread::scope(|scope| {
            // The leader of the coordination service answers once all contexts have begun.
            let join = || task.coordination.join(def, &own, &peers);
            let joined = scope.spawn(join);
            let begun = runtime.block_on(contexts::create(&others, id, &view, def, options));
            (begun, joined.join())
        });
        begun.into_iter().collect::<Result<()>>()?;
        joined.unwrap_or(Ok(()))?;
        let (forgotten, receiver) = mpsc::unbounded_channel();
        let shared = Arc::new(Shared {
            id,
            own,
            rendezvous,
            session,
            view: Mutex::new(Arc::new(view)),
            registered: Mutex::default(),
            next_op: AtomicI64::new(1),
            has_left: AtomicBool::new(false),
            forgotten,
            task,
        });
        ferroflow_rpc::spawn(
            &runtime,
            calls::forget_tensors(Arc::downgrade(&shared), receiver),
        );
        let often = match options.keep_alive_secs {
            n if n > 0 => n,
            _ => KEEP_ALIVE_SECS,
        };
        let often = Duration::from_secs((often as u64 / 2).max(1));
        ferroflow_rpc::spawn(&runtime, calls::keep_alive(Arc::downgrade(&shared), often));
        Ok(EagerCluster {
            shared,
            options: options.clone(),
            collectives,
            updating: Mutex::default(),
            server,
        })
    }

    /// Uses another list of tasks. Tasks that are new, or were replaced or restarted under the same name, get a new
    /// context; tensors and resources that such a task had are lost. Each task has the time `timeout` to answer. After
    /// an error, the tasks that answered are of the cluster; another update may add the missing ones.
    ///
    /// # Errors
    /// INVALID_ARGUMENT if this task has another name in it; those of the tasks.
    pub fn update(
        &self,
        engine: &EagerContext,
        def: &ServerDef,
        timeout: Option<Duration>,
    ) -> Result<()> {
        let _one = lock(&self.updating);
        let shared = &self.shared;
        shared.check()?;
        if def.job_name != shared.own.job || def.task_index != shared.own.index as i32 {
            return Err(invalid_argument!(
                "the update of a cluster renames {} to /job:{}/replica:0/task:{}",
                shared.own,
                def.job_name,
                def.task_index
            ));
        }
        let old = shared.view();
        let cluster = addresses(def.cluster.as_ref().unwrap_or(&Default::default()))?;
        let peers = Arc::new(old.peers.of_cluster(&cluster));
        let runtime = peers.runtime().clone();
        let (kept, mut added) = self.compare(&old, &peers)?;
        let found = runtime.block_on(contexts::devices_of(&added, timeout));
        let (found, missing) = match found {
            Ok(found) => (found, None),
            Err(error) => (Vec::new(), Some(error)),
        };
        if missing.is_some() {
            added.clear();
        }
        let stays = |d: &&DeviceAttributes| {
            let owner = TaskName::of_device(&d.name);
            owner.is_some_and(|owner| kept.iter().any(|peer| peer.task == owner))
        };
        let mut devices: Vec<_> = old.devices.iter().filter(stays).cloned().collect();
        let is_same = added.is_empty() && kept.len() == old.members.len();
        devices.extend(found);
        devices.extend(shared.task.devices.attributes().to_vec());
        let members = ordered_set(kept.iter().map(|peer| peer.task.clone()));
        let number = old.number + 1;
        let mut view = View::new(&shared.task, shared.id, number, (peers, members), devices)?;
        let options = JoinOptions {
            timeout,
            clear_existing: false,
            ..self.options.clone()
        };
        let create = contexts::create(&added, shared.id, &view, def, &options);
        let begun = runtime.block_on(create);
        for (peer, begun) in added.iter().zip(&begun) {
            lock(&shared.registered).remove(&peer.task);
            if begun.is_ok() {
                view.members.insert(peer.task.clone());
            }
        }
        let full = (!is_same).then_some(def);
        let updated = runtime.block_on(contexts::update(&kept, shared.id, &view, full));
        self.use_view(view);
        engine.clear_caches();
        let results = begun.into_iter().chain(updated);
        missing.map_or(Ok(()), Err).and(results.collect())
    }

    /// The tasks that still have the context, and those that need one.
    fn compare(&self, old: &View, peers: &Peers) -> Result<(Vec<Peer>, Vec<Peer>)> {
        let shared = &self.shared;
        let (known, new): (Vec<Peer>, Vec<Peer>) = others(&shared.own, peers)?
            .into_iter()
            .partition(|peer| old.members.contains(&peer.task));
        let probe = contexts::probe(&known, shared.id, old.number);
        let has_context = peers.runtime().block_on(probe);
        let (mut kept, mut added) = (Vec::new(), Vec::new());
        for (peer, has_context) in known.into_iter().zip(has_context) {
            match has_context {
                true => kept.push(peer),
                false => added.push(peer),
            }
        }
        added.extend(new);
        Ok((kept, added))
    }

    fn use_view(&self, view: View) {
        let shared = &self.shared;
        shared.rendezvous.set_peers(&view.peers);
        shared.session.set_peers(view.peers.clone());
        self.collectives.set_peers(view.peers.clone());
        *lock(&shared.view) = Arc::new(view);
    }

    /// Returns the name of this task.
    pub fn own_task(&self) -> &TaskName {
        &self.shared.own
    }

    /// Returns the number that all tasks know the context by.
    pub fn id(&self) -> u64 {
        self.shared.id
    }

    /// Returns whether the server listens at this port, which no other one can do meanwhile.
    pub fn listens_like(&self, def: &ServerDef) -> bool {
        let own = self.server.task.server.address().ok().and_then(port_of);
        let cluster = def.cluster.as_ref().map(addresses);
        let cluster = cluster.and_then(Result::ok).unwrap_or_default();
        let tasks = cluster.get(&def.job_name);
        let index = u32::try_from(def.task_index).unwrap_or_default();
        let address = tasks.and_then(|tasks| tasks.get(&index));
        own.is_some() && own == address.and_then(|address| port_of(address))
    }

    /// Returns all devices, those of this task first.
    pub fn devices(&self) -> Vec<DeviceAttributes> {
        let view = self.shared.view();
        let (own, others): (Vec<_>, Vec<_>) = view
            .devices
            .iter()
            .cloned()
            .partition(|device| self.is_own(&device.name));
        own.into_iter().chain(others).collect()
    }

    /// Returns whether a device is of this task.
    pub fn is_own(&self, device: &str) -> bool {
        TaskName::of_device(device).is_some_and(|owner| owner == self.shared.own)
    }

    /// Returns the full name of the first device, of this task if possible, that a partial name stands for.
    pub fn find_device(&self, spec: &DeviceSpec) -> Option<String> {
        let devices = self.devices().into_iter().map(|device| device.name);
        devices.into_iter().find(|name| spec.matches(name))
    }

    /// Returns the devices that the nodes of functions of this context may be on.
    pub fn call_devices(&self) -> CallDevices {
        let cluster = self.shared.view().cluster.clone();
        CallDevices {
            set: cluster.device_set(true),
            cluster,
        }
    }

    /// Ends the collectives of this process, present and future, with an error.
    pub fn abort_collectives(&self, reason: Status) {
        self.shared.task.collectives.abort(COLLECTIVE_STEP, reason);
    }

    /// Returns whether a task answers.
    ///
    /// # Errors
    /// INVALID_ARGUMENT if the cluster does not have it.
    pub fn is_alive(&self, task: &str) -> Result<bool> {
        let peer = self.peer_named(task)?;
        let call = peer.call::<_, GetStatusResponse>("GetStatus", GetStatusRequest {});
        let answer = peer.runtime().block_on(call);
        if let Err(error) = &answer {
            tracing::info!("Remote worker {task} is not alive: {}", error.message());
        }
        Ok(answer.is_ok())
    }

    /// Checks that a task answers within `timeout` and was not restarted since its context began.
    ///
    /// # Errors
    /// INVALID_ARGUMENT if the cluster does not have it; UNAVAILABLE, DEADLINE_EXCEEDED if it does not answer;
    /// FAILED_PRECONDITION if it was restarted.
    pub fn check_health(&self, task: &str, timeout: Option<Duration>) -> Result<()> {
        let peer = self.peer_named(task)?;
        let devices = contexts::devices_of(std::slice::from_ref(&peer), timeout);
        let known = &self.shared.view().devices;
        for device in peer.runtime().block_on(devices)? {
            let known = known.iter().find(|d| d.name == device.name);
            if let Some(known) = known.filter(|d| d.incarnation != device.incarnation) {
                return Err(failed_precondition!(
                    "{} with incarnation {} is not available. This usually means {task} has restarted",
                    known.name,
                    known.incarnation
                ));
            }
        }
        Ok(())
    }

    fn peer_named(&self, task: &str) -> Result<Peer> {
        self.shared.check()?;
        let name = TaskName::of_device(task);
        let peers = self.shared.view().peers.clone();
        let peer = name.and_then(|name| peers.get(&name).ok());
        peer.ok_or_else(|| {
            invalid_argument!("Unable to find worker interface corresponding to task {task}")
        })
    }
}

impl Drop for EagerCluster {
    fn drop(&mut self) {
        let shared = &self.shared;
        shared.has_left.store(true, Ordering::Release);
        let view = shared.view();
        let members = view.members.iter().map(|task| view.peers.get(task));
        let members: Vec<Peer> = members.flatten().collect();
        let close = contexts::close(&members, shared.id, view.number);
        view.peers.runtime().block_on(close);
        shared.task.rendezvous.cleanup(shared.id);
        shared.task.sessions.remove(&session_of(shared.id));
    }
}

impl View {
    fn new(
        task: &Arc<Task>,
        id: u64,
        number: u64,
        (peers, members): (Arc<Peers>, BTreeSet<TaskName>),
        devices: Vec<DeviceAttributes>,
    ) -> Result<View> {
        let handle = session_of(id);
        let cluster = GrpcCluster::of_context(task, &task.devices, &handle, &peers, &devices)?;
        Ok(View {
            number,
            peers,
            members,
            devices,
            cluster: Arc::new(cluster),
        })
    }

    /// A task that has a context.
    ///
    /// # Errors
    /// INVALID_ARGUMENT if it has none.
    fn peer(&self, task: &TaskName) -> Result<Peer> {
        match self.members.contains(task) {
            true => self.peers.get(task),
            false => Err(invalid_argument!(
                "Unable to find eager client corresponding to target: {task}"
            )),
        }
    }

    /// The incarnation of a device.
    fn incarnation(&self, device: &str) -> u64 {
        let mut devices = self.devices.iter();
        let found = devices.find(|d| d.name == device);
        found.map_or(0, |d| d.incarnation)
    }
}

/// The other tasks of a cluster.
fn others(own: &TaskName, peers: &Peers) -> Result<Vec<Peer>> {
    let others = peers.tasks().filter(|task| *task != own);
    others.map(|task| peers.get(task)).collect()
}
