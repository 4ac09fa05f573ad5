//! The rendezvous of steps that several tasks run (TensorFlow:
//! `core/distributed_runtime/base_rendezvous_mgr.h`).

use crate::device::TaskName;
use crate::handles::HandleTable;
use crate::master_session::lock;
use crate::peers::{Peer, Peers};
use ferroflow_base::{Result, Status, aborted, internal, invalid_argument};
use ferroflow_model::proto::{RecvTensorRequest, RecvTensorResponse};
use ferroflow_runtime::{
    CancelToken, DeviceSpec, LocalRendezvous, RecvDone, Rendezvous, StepTable,
};
use ferroflow_tensor::Tensor;
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, Mutex, OnceLock, mpsc};
use tokio::sync::watch;

/// The rendezvous of the steps in progress, by step id.
pub(crate) struct RendezvousManager {
    steps: StepTable<StepRendezvous>,
    handles: Arc<HandleTable>,
}

/// Most steps that are remembered after their end: a peer may ask for their tensors afterwards.
const MAX_ENDED: usize = 10_000;

impl RendezvousManager {
    pub(crate) fn new(handles: Arc<HandleTable>) -> Self {
        RendezvousManager {
            steps: StepTable::new(MAX_ENDED),
            handles,
        }
    }

    fn new_step(&self, step_id: u64) -> StepRendezvous {
        StepRendezvous::new(step_id, self.handles.clone())
    }

    /// The rendezvous of a step. A peer may ask for a tensor before the step begins here.
    pub(crate) fn get(&self, step_id: u64) -> Arc<StepRendezvous> {
        self.steps.get(step_id, || self.new_step(step_id))
    }

    /// The rendezvous of a step for a peer that asks for a tensor.
    ///
    /// # Errors
    /// ABORTED if the step is over; nothing would end the request.
    pub(crate) fn get_for_peer(&self, step_id: u64) -> Result<Arc<StepRendezvous>> {
        let step = self.steps.begin(step_id, || self.new_step(step_id));
        step.ok_or_else(|| over(step_id))
    }

    /// The rendezvous of an eager context, which has that of an older one no more.
    pub(crate) fn renew(&self, step_id: u64) -> Arc<StepRendezvous> {
        let new = || self.new_step(step_id);
        self.steps.renew(step_id, new, || over(step_id))
    }

    /// Removes the rendezvous of a step that is over on all tasks.
    pub(crate) fn cleanup(&self, step_id: u64) {
        self.steps.end(step_id, || over(step_id));
    }

    /// Whether a step was cleaned up.
    pub(crate) fn is_over(&self, step_id: u64) -> bool {
        self.steps.is_ended(step_id)
    }

    /// Ends a call that runs a part of a step here. The step may have been cleaned up before the call began: its
    /// master has given it up.
    pub(crate) fn leave(&self, step_id: u64) {
        self.steps.leave(step_id, || over(step_id));
    }

    /// Brings a tensor that another task pushed to a step; that of one that is over is dropped.
    pub(crate) fn push(&self, step_id: u64, key: &str, tensor: Result<Option<Tensor>>) {
        let Ok(step) = self.get_for_peer(step_id) else {
            return;
        };
        let brought = tensor.and_then(|tensor| step.local.send(key, tensor));
        if let Err(e) = brought {
            step.abort(e);
        }
    }

    /// Ends the steps that a task takes part in which is lost: it may have pushed tensors that never come.
    pub(crate) fn lose_task(&self, incarnation: u64, reason: &Status) {
        let of_task = self.steps.select(|step| match step.pushing.get() {
            Some(pushing) => pushing.tasks.contains(&incarnation),
            None => false,
        });
        let steps = of_task.iter();
        steps.for_each(|(_, step)| step.abort(reason.clone()));
    }

    /// Ends the steps of a session that is over.
    pub(crate) fn end_session(&self, session: &str) {
        let of_session = self.steps.select(|step| step.is_of(session));
        of_session.iter().for_each(|(id, _)| self.cleanup(*id));
    }

    /// The number of steps that were not cleaned up.
    pub(crate) fn len(&self) -> usize {
        self.steps.len()
    }
}

/// Why a step that was cleaned up has no tensors.
fn over(step_id: u64) -> Status {
    aborted!("Cleanup {step_id}")
}

/// The rendezvous of one step: tensors of this task wait in a table, those of others are requested from
/// them.
pub(crate) struct StepRendezvous {
    step_id: u64,
    handles: Arc<HandleTable>,
    local: LocalRendezvous,
    route: OnceLock<Route>,
    /// The handle of the session on a worker, if it is one of those.
    session: OnceLock<String>,
    /// Set if the tasks of the step push what they send to each other.
    pushing: OnceLock<Pushing>,
    /// Ends the requests to other tasks.
    aborted: watch::Sender<Option<Status>>,
}

/// What a step knows of the tasks that push.
pub(crate) struct Pushing {
    /// The incarnations of all tasks of the step.
    pub(crate) tasks: Vec<u64>,
    /// The parts of other tasks that ended without an error, at the master: nothing is left of these.
    pub(crate) ended: AtomicUsize,
}

/// The parts of a key under which a tensor travels (TensorFlow: `Rendezvous::ParsedKey`).
pub(crate) struct RendezvousKey<'a> {
    /// The device that sends.
    pub(crate) source: &'a str,
    /// Its incarnation.
    pub(crate) incarnation: u64,
}

impl RendezvousKey<'_> {
    /// Parses a key.
    ///
    /// # Errors
    /// INVALID_ARGUMENT unless it has five parts: a device, its incarnation, another device, a name and an iteration.
    pub(crate) fn parse(key: &str) -> Result<RendezvousKey<'_>> {
        let parse = || {
            let mut parts = key.split(';');
            let is_device = |name: &&str| DeviceSpec::parse(name).is_ok();
            let source = parts.next().filter(is_device)?;
            let incarnation = u64::from_str_radix(parts.next()?, 16).ok()?;
            parts.next().filter(is_device)?;
            let rest = [parts.next()?, parts.next()?];
            let is_whole = rest.iter().all(|part| !part.is_empty()) && parts.next().is_none();
            is_whole.then_some(RendezvousKey {
                source,
                incarnation,
            })
        };
        parse().ok_or_else(|| invalid_argument!("Invalid  rendezvous key: {key}"))
    }
}

/// How a session names this task and reaches the others.
struct Route {
    own: TaskName,
    /// What the names of this task's devices begin with.
    prefix: String,
    peers: Mutex<Arc<Peers>>,
}

impl StepRendezvous {
    fn new(step_id: u64, handles: Arc<HandleTable>) -> Self {
        StepRendezvous {
            step_id,
            handles,
            local: LocalRendezvous::default(),
            route: OnceLock::new(),
            session: OnceLock::new(),
            pushing: OnceLock::new(),
            aborted: watch::Sender::new(None),
        }
    }

    /// Begins the step as the task `own` of a session.
    ///
    /// # Errors
    /// INTERNAL if the step was begun under another name.
    pub(crate) fn initialize(&self, own: &TaskName, peers: &Arc<Peers>) -> Result<()> {
        let route = self.route.get_or_init(|| Route {
            own: own.clone(),
            prefix: format!("{own}/"),
            peers: Mutex::new(peers.clone()),
        });
        match route.own == *own {
            true => Ok(()),
            false => Err(internal!(
                "Double init! Worker names would have changed from: {} -> {own}",
                route.own
            )),
        }
    }

    /// Says which session of this worker the step is of.
    pub(crate) fn set_session(&self, session: &str) {
        self.session.get_or_init(|| session.to_string());
    }

    /// Lets the tasks of these incarnations push what they send to each other.
    pub(crate) fn set_pushing(&self, tasks: Vec<u64>) {
        let ended = AtomicUsize::new(0);
        self.pushing.get_or_init(|| Pushing { tasks, ended });
    }

    /// Set if the tasks push what they send.
    pub(crate) fn pushing(&self) -> Option<&Pushing> {
        self.pushing.get()
    }

    /// The task that receives under a key, if it is another one, and the device that sends.
    fn receiver<'a>(&self, key: &'a str) -> Result<Option<(Peer, &'a str)>> {
        let Some(route) = self.route.get().filter(|_| self.pushing.get().is_some()) else {
            return Ok(None);
        };
        let mut parts = key.split(';');
        let (from, to) = (parts.next(), parts.nth(1).unwrap_or_default());
        if to.starts_with(&route.prefix) {
            return Ok(None);
        }
        let target = TaskName::of_device(to);
        let target = target.ok_or_else(|| invalid_argument!("Invalid  rendezvous key: {key}"))?;
        let peers = lock(&route.peers).clone();
        Ok(Some((peers.get(&target)?, from.unwrap_or_default())))
    }

    fn is_of(&self, session: &str) -> bool {
        self.session.get().is_some_and(|own| own == session)
    }

    /// Uses the addresses of a changed cluster from now on.
    pub(crate) fn set_peers(&self, peers: &Arc<Peers>) {
        if let Some(route) = self.route.get() {
            lock(&route.peers).clone_from(peers);
        }
    }

    /// Calls `done` with a tensor that this task sends. Keys of other tasks are refused.
    pub(crate) fn recv_local(&self, key: &str, done: RecvDone) {
        let is_own = |route: &Route| key.starts_with(&route.prefix) || key.starts_with(';');
        match self.route.get() {
            Some(route) if !is_own(route) => done(Err(invalid_argument!(
                "Invalid rendezvous key (src): {key} @ {}",
                route.own
            ))),
            _ => self.local.recv(key, done),
        }
    }

    /// The task that sends under a key, if it is another one.
    fn remote_source(&self, key: &str) -> Result<Option<Peer>> {
        let Some(route) = self.route.get() else {
            return Ok(None);
        };
        if key.starts_with(&route.prefix) || key.starts_with(';') {
            return Ok(None);
        }
        let source = TaskName::of_device(key.split(';').next().unwrap_or_default());
        let source = source.ok_or_else(|| invalid_argument!("Invalid  rendezvous key: {key}"))?;
        let peers = lock(&route.peers).clone();
        peers.get(&source).map(Some)
    }
}

impl ferroflow_runtime::Step for StepRendezvous {
    fn abort(&self, reason: Status) {
        Rendezvous::abort(self, reason);
    }
}

impl Rendezvous for StepRendezvous {
    fn send(&self, key: &str, tensor: Option<Tensor>) -> Result<()> {
        let Some((peer, device)) = self.receiver(key)? else {
            return self.local.send(key, tensor);
        };
        let encode = |tensor: &Tensor| self.handles.encode(tensor, device);
        let pushed = peer.link.push(self.step_id, key, tensor.as_ref(), encode);
        pushed.map_err(|e| peer.lost("RecvTensor", &e))
    }

    fn recv(&self, key: &str, done: RecvDone) {
        if self.pushing.get().is_some() {
            return self.local.recv(key, done);
        }
        let peer = match self.remote_source(key) {
            Ok(Some(peer)) => peer,
            Ok(None) => return self.local.recv(key, done),
            Err(e) => return done(Err(e)),
        };
        let mut aborted = self.aborted.subscribe();
        let request = RecvTensorRequest {
            step_id: self.step_id as i64,
            rendezvous_key: key.to_string(),
            request_id: crate::device::random_id(),
            ..Default::default()
        };
        let handles = self.handles.clone();
        ferroflow_rpc::spawn(&peer.runtime().clone(), async move {
            let received = tokio::select! {
                received = recv_tensor(&peer, request, &handles) => received,
                reason = aborted.wait_for(Option::is_some) => Err(match reason {
                    Ok(reason) => reason.clone().unwrap_or_else(|| internal!("aborted")),
                    Err(_) => aborted!("the step is over"),
                }),
            };
            done(received);
        });
    }

    fn abort(&self, reason: Status) {
        self.local.abort(reason.clone());
        self.aborted.send_if_modified(|first| {
            let is_first = first.is_none();
            first.get_or_insert(reason);
            is_first
        });
    }
}

/// Waits for a tensor; `None` if it is dead.
///
/// # Errors
/// The reason of `cancel`; the error that ends the step.
pub(crate) fn take_later(
    rendezvous: &StepRendezvous,
    key: &str,
    cancel: &CancelToken,
) -> Result<Option<Tensor>> {
    let (sender, receiver) = mpsc::channel();
    let (done, token) = (sender.clone(), cancel.clone());
    let _registration = cancel.on_cancel(move || {
        if let Err(reason) = token.check() {
            // The receiver is gone once the tensor has come.
            let _ = sender.send(Err(reason));
        }
    });
    let done = move |tensor| {
        let _ = done.send(tensor);
    };
    rendezvous.recv(key, Box::new(done));
    let received = receiver.recv();
    received.unwrap_or_else(|_| Err(internal!("nothing sends {key}")))
}

/// Requests a tensor from the task that sends it.
async fn recv_tensor(
    peer: &Peer,
    request: RecvTensorRequest,
    handles: &HandleTable,
) -> Result<Option<Tensor>> {
    let answer: RecvTensorResponse = peer.call("RecvTensor", request).await?;
    if answer.is_dead {
        return Ok(None);
    }
    let mut proto = answer.tensor.unwrap_or_default();
    // TensorFlow leaves the shape of a scalar out.
    proto.tensor_shape = proto.tensor_shape.filter(|s| !s.unknown_rank);
    handles.decode(&proto).map(Some)
}
