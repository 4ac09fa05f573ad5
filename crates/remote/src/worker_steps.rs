//! The steps of a [`Worker`]: `RunGraph`, and parts that come over a link.

use crate::cost_graph::cost_graph;
use crate::master_session::lock;
use crate::rendezvous::{RendezvousKey, StepRendezvous, take_later};
use crate::step_stats::StepTrace;
use crate::worker::Worker;
use crate::worker_session::{WorkerGraph, WorkerSession};
use ferroflow_base::{Code, Result, Status, aborted, internal, invalid_argument};
use ferroflow_model::proto::{ExecutorOpts, NamedTensorProto, RunGraphRequest, RunGraphResponse};
use ferroflow_rpc::Calls;
use ferroflow_runtime::{CancelToken, NodeClass, Rendezvous, RunOptions, TraceSink};
use ferroflow_tensor::Tensor;
use std::sync::{Arc, mpsc};
use std::time::Instant;
use tokio::runtime::Handle;
use tokio::sync::oneshot;

/// A step that is ready to run.
struct WorkerStep {
    session: Arc<WorkerSession>,
    graph: Arc<WorkerGraph>,
    rendezvous: Arc<StepRendezvous>,
    options: RunOptions,
    trace: Option<Arc<StepTrace>>,
    observed: ExecutorOpts,
    recv_key: Vec<String>,
    /// The step's number.
    id: i64,
    started: Instant,
}

/// A call of RunGraph that has begun.
pub(crate) struct PreparedStep {
    step: WorkerStep,
    request: RunGraphRequest,
    cancel: CancelToken,
}

impl PreparedStep {
    /// Whether the step is expected to occupy threads for a moment only, though it may wait for other tasks.
    pub(crate) fn is_brief(&self) -> bool {
        let graph = &self.step.graph;
        !self.request.is_partial && graph.session.is_brief(&graph.callable)
    }
}

/// Receives the answer to a part of a step.
pub(crate) type PartDone = Box<dyn FnOnce(Result<RunGraphResponse>) + Send>;

impl Worker {
    /// `RunGraph`: runs a registered graph in a step.
    ///
    /// # Errors
    /// ABORTED if the session or the graph does not exist or the request is a retry; the first error of a
    /// node; CANCELLED if `cancel` is cancelled.
    pub fn run_graph(
        &self,
        request: RunGraphRequest,
        cancel: &CancelToken,
    ) -> Result<RunGraphResponse> {
        self.run_prepared(self.prepare(request, cancel)?)
    }

    /// The first half of `RunGraph`: finds the graph and begins the step.
    pub(crate) fn prepare(
        &self,
        request: RunGraphRequest,
        cancel: &CancelToken,
    ) -> Result<PreparedStep> {
        let step = self.step(&request, cancel)?;
        Ok(PreparedStep {
            step,
            request,
            cancel: cancel.clone(),
        })
    }

    /// The second half of `RunGraph`, on a thread that may block.
    pub(crate) fn run_prepared(&self, prepared: PreparedStep) -> Result<RunGraphResponse> {
        let PreparedStep {
            step,
            request,
            cancel,
        } = prepared;
        if request.is_partial {
            let device = step.session.devices.first();
            return self.run_partial(request, device, &step.graph, &step.rendezvous, &cancel);
        }
        self.run_step(step, request.send)
    }

    /// As [`run_prepared`](Self::run_prepared) for a step that [is brief](PreparedStep::is_brief): no thread waits
    /// for its tensors.
    pub(crate) async fn run_brief(
        self: &Arc<Self>,
        prepared: PreparedStep,
    ) -> Result<RunGraphResponse> {
        let (sender, receiver) = oneshot::channel();
        self.start_brief(prepared.step, prepared.request.send, move |answer| {
            // The master may have hung up.
            let _ = sender.send(answer);
        });
        let answer = receiver.await;
        answer.unwrap_or_else(|_| Err(internal!("the step was lost")))
    }

    /// Runs a part of a step whose tasks, of these incarnations, push what they send; `done` receives the
    /// answer. Nothing is left of the step here if it has ended well.
    pub(crate) fn start_part(
        self: &Arc<Self>,
        mut request: RunGraphRequest,
        tasks: Vec<u64>,
        cancel: CancelToken,
        calls: &Arc<Calls>,
        done: PartDone,
    ) {
        let step = match self.step(&request, &cancel) {
            Ok(step) => step,
            Err(e) => return done(Err(e)),
        };
        step.rendezvous.set_pushing(tasks);
        let (worker, id) = (self.clone(), step.id);
        let done = move |answer: Result<RunGraphResponse>| {
            if answer.is_ok() {
                worker.task.end_step(id as u64);
            }
            done(answer);
        };
        let sent = std::mem::take(&mut request.send);
        let peers = step.session.peers();
        let links = step.graph.receivers.iter();
        let links: Result<Vec<_>> = links.map(|to| Ok(peers.get(to)?.link)).collect();
        let links = match links {
            Ok(links) => links,
            Err(e) => return done(self.ended(&step, Err(e))),
        };
        let are_open = links.iter().all(|link| link.is_open());
        if are_open && step.graph.session.is_brief(&step.graph.callable) {
            return self.start_brief(step, sent, done);
        }
        let (worker, calls) = (self.clone(), calls.clone());
        ferroflow_rpc::spawn(&Handle::current(), async move {
            for link in links {
                if let Err(e) = link.open().await {
                    return done(worker.ended(&step, Err(e)));
                }
            }
            let permit = match calls.begin_step() {
                Ok(permit) => permit,
                Err(e) => return done(worker.ended(&step, Err(e))),
            };
            Handle::current().spawn_blocking(move || {
                done(worker.run_step(step, sent));
                drop(permit);
            });
        });
    }

    /// Starts a step that occupies this thread for a moment only.
    fn start_brief(
        self: &Arc<Self>,
        step: WorkerStep,
        sent: Vec<NamedTensorProto>,
        done: impl FnOnce(Result<RunGraphResponse>) + Send + 'static,
    ) {
        if let Err(e) = self.send_feeds(&step.rendezvous, sent) {
            return done(self.ended(&step, Err(e)));
        }
        let (worker, graph, options) = (self.clone(), step.graph.clone(), step.options.clone());
        let end = move |ran: Result<Vec<Tensor>>| done(worker.ended(&step, ran.map(drop)));
        graph
            .session
            .start_callable(&graph.callable, Vec::new(), &options, end);
    }

    fn step(&self, request: &RunGraphRequest, cancel: &CancelToken) -> Result<WorkerStep> {
        self.recent
            .reject_duplicate(request.request_id, "RunGraph (Worker)")?;
        let session = self.session(
            &request.session_handle,
            request.create_worker_session_called,
        )?;
        let graph = lock(&session.graphs).get(&request.graph_handle).cloned();
        let no_graph = || aborted!("Graph handle is not found: {}", request.graph_handle);
        let graph = graph.ok_or_else(no_graph)?;
        let rendezvous = self.task.rendezvous.get(request.step_id as u64);
        rendezvous.initialize(&session.name, &session.peers())?;
        if request.create_worker_session_called {
            rendezvous.set_session(&request.session_handle);
            // A session that was deleted meanwhile has ended the steps that were known to be its.
            if let Err(e) = self.session(&request.session_handle, true) {
                self.task.end_step(request.step_id as u64);
                return Err(e);
            }
        }
        let observed = request.exec_opts.unwrap_or_default();
        let wants_stats = observed.record_timeline || observed.record_costs;
        let trace = wants_stats.then(Arc::<StepTrace>::default);
        let options = RunOptions {
            cancel: Some(cancel.clone()),
            rendezvous: Some(rendezvous.clone()),
            step_id: Some(request.step_id as u64),
            trace: trace.clone().map(|t| -> Arc<dyn TraceSink> { t }),
            ..Default::default()
        };
        Ok(WorkerStep {
            session,
            graph,
            rendezvous,
            options,
            trace,
            observed,
            recv_key: request.recv_key.clone(),
            id: request.step_id,
            started: Instant::now(),
        })
    }

    fn run_step(&self, step: WorkerStep, sent: Vec<NamedTensorProto>) -> Result<RunGraphResponse> {
        let graph = &step.graph;
        let ran = self.send_feeds(&step.rendezvous, sent).and_then(|()| {
            let session = &graph.session;
            session.run_callable(&graph.callable, Vec::new(), &step.options)
        });
        self.ended(&step, ran.map(drop))
    }

    /// The answer to a step that has ended so.
    fn ended(&self, step: &WorkerStep, ran: Result<()>) -> Result<RunGraphResponse> {
        let answer = self.answer(step, ran);
        self.task.rendezvous.leave(step.id as u64);
        answer
    }

    fn answer(&self, step: &WorkerStep, ran: Result<()>) -> Result<RunGraphResponse> {
        let (session, graph) = (&step.session, &step.graph);
        graph.callable.note_time(step.started.elapsed());
        if let Err(e) = ran {
            // Peers that wait for a tensor of this task learn why it does not come.
            step.rendezvous.abort(e.clone());
            return Err(e);
        }
        let recv = step.recv_key.iter().map(|key| {
            let tensor = take(&step.rendezvous, key);
            let tensor = tensor.map_err(|e| {
                internal!(
                    "Failed to fetch outputs for step {}. (Original error message: {})",
                    step.id,
                    ferroflow_rpc::message(&e)
                )
            })?;
            Ok(NamedTensorProto {
                name: key.clone(),
                tensor: Some(self.task.handles.encode(&tensor, session.devices.first())?),
            })
        });
        let recv = recv.collect::<Result<_>>()?;
        let graphs = match step.observed.record_partition_graphs || step.observed.record_costs {
            true => graph.session.partition_graphs(&graph.signature)?,
            false => Vec::new(),
        };
        let stats = step.trace.as_ref().map(|trace| {
            let (first, names) = (session.devices.first(), session.devices.names());
            let placement = graph.callable.placement();
            let device_of = |node: &str| match placement.get(node) {
                Some(device) => names.get(*device).map_or(first, String::as_str),
                None => first,
            };
            let nodes = graph.session.graph();
            let constants = nodes.iter().filter(|(_, n)| n.class() == NodeClass::Const);
            trace.add_constants(constants.map(|(_, n)| n.name.as_str()));
            trace.finish(device_of, &graph.session.inputs())
        });
        let costs = stats.as_ref().filter(|_| step.observed.record_costs);
        Ok(RunGraphResponse {
            recv,
            cost_graph: costs.map(|stats| cost_graph(&graphs, stats)),
            step_stats: stats,
            partition_graph: match step.observed.record_partition_graphs {
                true => graphs,
                false => Vec::new(),
            },
            ..Default::default()
        })
    }

    fn send_feeds(
        &self,
        rendezvous: &Arc<StepRendezvous>,
        sent: Vec<NamedTensorProto>,
    ) -> Result<()> {
        for (i, NamedTensorProto { name, tensor }) in sent.into_iter().enumerate() {
            let mut proto = tensor.unwrap_or_default();
            proto.tensor_shape = proto.tensor_shape.filter(|s| !s.unknown_rank);
            let tensor = self.task.handles.decode(&proto).map_err(|e| {
                invalid_argument!("Invalid TensorProto for feed value {i}: {}", e.message())
            })?;
            RendezvousKey::parse(&name)?;
            rendezvous.send(&name, Some(tensor))?;
        }
        Ok(())
    }

    /// A RunGraph call of a partial run: the first begins the step, the last waits for its end.
    fn run_partial(
        &self,
        request: RunGraphRequest,
        device: &str,
        graph: &Arc<WorkerGraph>,
        rendezvous: &Arc<StepRendezvous>,
        cancel: &CancelToken,
    ) -> Result<RunGraphResponse> {
        let (handle, id) = (&request.graph_handle, request.step_id as u64);
        let step = self.partial.begin(handle, id, graph, rendezvous)?;
        // It may have been cleaned up before it began.
        if self.task.rendezvous.is_over(id) {
            self.partial.cleanup(id);
            self.task.rendezvous.leave(id);
        }
        self.send_feeds(rendezvous, request.send)?;
        let recv = request.recv_key.iter().map(|key| {
            let tensor = take_later(rendezvous, key, cancel)?;
            let tensor = tensor
                .ok_or_else(|| invalid_argument!("The tensor returned for {key} was not valid."))?;
            Ok(NamedTensorProto {
                name: key.clone(),
                tensor: Some(self.task.handles.encode(&tensor, device)?),
            })
        });
        let recv = recv.collect::<Result<_>>()?;
        if request.is_last_partial_run {
            let ended = step.wait();
            self.partial.cleanup(id);
            ended?;
        }
        Ok(RunGraphResponse {
            recv,
            ..Default::default()
        })
    }
}

/// Takes a tensor that was sent.
fn take(rendezvous: &StepRendezvous, key: &str) -> Result<Tensor> {
    let (sender, receiver) = mpsc::channel();
    let done = move |tensor| {
        // The receiver is gone if the tensor comes late.
        let _ = sender.send(tensor);
    };
    rendezvous.recv(key, Box::new(done));
    match receiver.try_recv() {
        Ok(Ok(Some(tensor))) => Ok(tensor),
        Ok(Ok(None)) => Err(invalid_argument!(
            "The tensor returned for {key} was not valid."
        )),
        Ok(Err(e)) => Err(e),
        Err(_) => Err(Status::new(
            Code::Internal,
            "the tensor was not produced".to_string(),
        )),
    }
}
