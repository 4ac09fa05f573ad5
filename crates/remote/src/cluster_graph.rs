//! [`GrpcGraph`]: the part of a graph that another task runs.

use crate::cluster::{CLOSE_TIMEOUT, EAGER, GrpcCluster};
use crate::collectives::steps::whole_graph_key;
use crate::device::{TaskName, random_id, random_u64};
use crate::handles::HandleTable;
use crate::master_session::lock;
use crate::node_names::make_unique;
use crate::peers::Peer;
use crate::rendezvous::StepRendezvous;
use crate::step_stats::StepTrace;
use crate::task::Task;
use ferroflow_base::{Code, Result, Status, internal, ordered_set};
use ferroflow_model::proto::{
    ConfigProto, DeregisterGraphRequest, DeregisterGraphResponse, ExecutorOpts, GraphDef,
    NamedTensorProto, RegisterGraphRequest, RegisterGraphResponse, RunGraphRequest,
    RunGraphResponse, attr_value,
};
use ferroflow_runtime::CancelToken;
use ferroflow_runtime::cluster::{ClusterStep, RegisteredGraph, RunDone};
use ferroflow_tensor::Tensor;
use std::any::Any;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use tokio::sync::oneshot;

impl GrpcCluster {
    /// The graph that a task will have, and the call that registers it, which returns its handle.
    pub(crate) fn registration(
        &self,
        task: usize,
        mut graph: GraphDef,
        config: &ConfigProto,
    ) -> Result<(GrpcGraph, impl Future<Output = Result<String>> + use<>)> {
        let peer = self.peer(task)?.clone();
        let is_eager = self.handle.starts_with(EAGER);
        make_unique(&mut graph, is_eager, &format!("_S{:016x}", random_u64()));
        let unregistered = GrpcGraph {
            task: self.task.clone(),
            peer: peer.clone(),
            session: self.handle.clone(),
            handle: String::new(),
            senders: self.senders(&graph),
            handles: self.task.handles.clone(),
            own_device: self
                .devices
                .first()
                .map(|d| d.name.clone())
                .unwrap_or_default(),
        };
        let request = RegisterGraphRequest {
            session_handle: self.handle.clone(),
            create_worker_session_called: true,
            graph_options: self.graph_options(&peer, &graph),
            collective_graph_key: whole_graph_key(&graph),
            graph_def: Some(graph),
            config_proto: Some(config.clone()),
        };
        let call = async move {
            let call = peer.call::<_, RegisterGraphResponse>("RegisterGraph", request);
            let registered = call.await?;
            if peer.link.is_known()
                && let Err(e) = peer.link.open().await
            {
                tracing::debug!("no link to {}: {}", peer.task, e.message());
            }
            Ok(registered.graph_handle)
        };
        Ok((unregistered, call))
    }

    /// The incarnations of the tasks that push tensors to a part: the master and those that it receives from.
    fn senders(&self, graph: &GraphDef) -> Vec<u64> {
        let receives = graph
            .node
            .iter()
            .filter(|n| RECEIVES.contains(&n.op.as_str()));
        let devices = receives.filter_map(|n| match &n.attr.get("send_device")?.value {
            Some(attr_value::Value::S(device)) => Some(String::from_utf8_lossy(device)),
            _ => None,
        });
        let tasks = devices.filter_map(|device| TaskName::of_device(&device));
        let numbers = tasks.filter_map(|task| self.numbers.get(&task));
        let numbers = ordered_set(numbers.copied().chain([0]));
        let incarnations = numbers.into_iter().map(|task| self.incarnation_of(task));
        incarnations.collect()
    }
}

/// The ops that receive tensors of other tasks.
const RECEIVES: [&str; 4] = ["_Recv", "_HostRecv", "Recv", "HostRecv"];

/// A graph that another task runs.
pub(crate) struct GrpcGraph {
    task: Arc<Task>,
    peer: Peer,
    session: String,
    handle: String,
    /// The incarnations of the tasks that may push tensors to the part.
    senders: Vec<u64>,
    handles: Arc<HandleTable>,
    /// The device that has the resources of this task.
    own_device: String,
}

impl RegisteredGraph for GrpcGraph {
    fn run(
        &self,
        step: &Arc<dyn ClusterStep>,
        feeds: Vec<(String, Tensor)>,
        fetches: Vec<String>,
        cancel: &CancelToken,
        done: RunDone,
    ) {
        let send = feeds.iter().map(|(key, tensor)| {
            let tensor = self.handles.encode(tensor, &self.own_device)?;
            Ok(NamedTensorProto {
                name: key.clone(),
                tensor: Some(tensor),
            })
        });
        let send = match send.collect::<Result<_>>() {
            Ok(send) => send,
            Err(e) => return done(Err(e)),
        };
        let request = RunGraphRequest {
            session_handle: self.session.clone(),
            create_worker_session_called: true,
            graph_handle: self.handle.clone(),
            step_id: step.id() as i64,
            send,
            recv_key: fetches.clone(),
            exec_opts: Some(ExecutorOpts {
                record_timeline: step.trace().is_some(),
                ..Default::default()
            }),
            store_errors_in_response_body: true,
            request_id: random_id(),
            ..Default::default()
        };
        let trace = step.trace().cloned();
        let (peer, handles) = (self.peer.clone(), self.handles.clone());
        let is_eager = self.session.starts_with(EAGER);
        let done = move |answer: Result<RunGraphResponse>| {
            if let (Some(trace), Ok(answer)) = (&trace, &answer)
                && let Some(trace) = (&**trace as &dyn Any).downcast_ref::<StepTrace>()
                && let Some(stats) = &answer.step_stats
            {
                trace.add_remote(stats);
            }
            let results = answer.and_then(|answer| results(answer, &fetches, &peer.task, &handles));
            done(results.map_err(|e| match is_eager {
                true => peer.with_eager_origin(e),
                false => e,
            }));
        };
        let rendezvous = self.task.rendezvous.get(step.id());
        match rendezvous.pushing().is_some() {
            true => self.run_linked(request, rendezvous, cancel, done),
            false => self.run_called(request, cancel, done),
        }
    }
}

impl GrpcGraph {
    /// The graph under the handle that its task has given it.
    pub(crate) fn registered(mut self, handle: String) -> Self {
        self.handle = handle;
        self
    }

    /// Runs the part by RunGraph.
    fn run_called(
        &self,
        request: RunGraphRequest,
        cancel: &CancelToken,
        done: impl FnOnce(Result<RunGraphResponse>) + Send + 'static,
    ) {
        let (cancelled, on_cancel) = oneshot::channel();
        let (token, sender) = (cancel.clone(), Mutex::new(Some(cancelled)));
        let registration = cancel.on_cancel(move || {
            let sender = sender.lock().ok().and_then(|mut s| s.take());
            if let (Err(reason), Some(sender)) = (token.check(), sender) {
                // The call may just have ended.
                let _ = sender.send(reason);
            }
        });
        let peer = self.peer.clone();
        ferroflow_rpc::spawn(self.peer.runtime(), async move {
            let call = peer.call::<_, RunGraphResponse>("RunGraph", request);
            let answer = tokio::select! {
                answer = call => answer,
                Ok(reason) = on_cancel => Err(reason),
            };
            drop(registration);
            done(answer);
        });
    }

    /// Runs the part over the link to its task.
    fn run_linked(
        &self,
        request: RunGraphRequest,
        step: Arc<StepRendezvous>,
        cancel: &CancelToken,
        done: impl FnOnce(Result<RunGraphResponse>) + Send + 'static,
    ) {
        let (peer, sent) = (self.peer.clone(), Arc::new(Mutex::new(Some(done))));
        // Whether the call has ended, and what cancels it.
        let kept = Arc::new(Mutex::new((false, None)));
        let (waiting, ended) = (sent.clone(), kept.clone());
        let done = move |answer: Result<RunGraphResponse>| {
            if answer.as_ref().is_ok_and(|a| a.status_code == 0)
                && let Some(pushing) = step.pushing()
            {
                pushing.ended.fetch_add(1, Ordering::AcqRel);
            }
            let registration = std::mem::replace(&mut *lock(&ended), (true, None));
            drop(registration);
            let done = lock(&waiting).take();
            if let Some(done) = done {
                done(answer.map_err(|e| peer.lost("RunGraph", &e)));
            }
        };
        match self.peer.link.run(request, self.senders.clone(), done) {
            Ok(call) => {
                let token = cancel.clone();
                let registration = cancel.on_cancel(move || {
                    if let Err(reason) = token.check() {
                        call.cancel(reason);
                    }
                });
                let mut kept = lock(&kept);
                // It may have ended already.
                if !kept.0 {
                    kept.1 = Some(registration);
                }
            }
            Err(e) => {
                let done = lock(&sent).take();
                if let Some(done) = done {
                    done(Err(self.peer.lost("RunGraph", &e)));
                }
            }
        }
    }
}

impl Drop for GrpcGraph {
    fn drop(&mut self) {
        if self.handle.is_empty() {
            return;
        }
        let request = DeregisterGraphRequest {
            graph_handle: self.handle.clone(),
            session_handle: self.session.clone(),
            create_worker_session_called: true,
        };
        self.peer
            .notify::<_, DeregisterGraphResponse>("DeregisterGraph", request, CLOSE_TIMEOUT);
    }
}

/// The fetches of an answer, in the order of `keys`, or its error.
fn results(
    answer: RunGraphResponse,
    keys: &[String],
    task: &TaskName,
    handles: &HandleTable,
) -> Result<Vec<Tensor>> {
    if answer.status_code != 0 {
        let code = Code::from_number(answer.status_code).unwrap_or(Code::Unknown);
        let text = format!("From {task}:\n{}", answer.status_error_message);
        return Err(Status::new(code, text));
    }
    let fetch = |key: &String| {
        let named = answer.recv.iter().find(|r| r.name == *key);
        let proto = named.and_then(|r| r.tensor.as_ref());
        let proto = proto.ok_or_else(|| internal!("{task} did not return {key}"))?;
        handles.decode(proto)
    };
    keys.iter().map(fetch).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::LocalCluster;
    use ferroflow_model::graph_from_text;

    #[test]
    fn a_part_knows_the_tasks_that_it_receives_from() {
        let local = LocalCluster::new(50, 2).expect("threads");
        let task = local.master(0).expect("the first task").task().clone();
        let config = ConfigProto::default();
        let (devices, peers) = (&task.devices, &task.peers);
        let token = CancelToken::new();
        let cluster = GrpcCluster::connect(&task, devices, peers, "s", &config, &token);
        let cluster = cluster.expect("all answer").expect("several tasks");
        let receive = |name: &str, op: &str, task: u32| {
            let device = format!("/job:w/replica:0/task:{task}/device:CPU:0");
            let attr = format!("attr {{ key: 'send_device' value {{ s: '{device}' }} }}");
            format!("node {{ name: '{name}' op: '{op}' {attr} }}\n")
        };
        let text = receive("a", "_Recv", 7) + &receive("b", "_HostRecv", 7);
        let text = text + &receive("c", "_Recv", 3) + &receive("d", "_Send", 9);
        let senders = cluster.senders(&graph_from_text(&text).expect("valid"));
        let of = |task| local.master(task).expect("a task").task().incarnation();
        assert_eq!(senders, [of(0), of(3), of(7)]);
    }
}
