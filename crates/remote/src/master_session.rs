//! [`MasterSession`]: a client's session, and what its steps report.

use crate::cluster::GrpcCluster;
use crate::collectives::steps::GraphKeys;
use crate::cost_graph::cost_graph;
use crate::device::Devices;
use crate::step_stats::StepTrace;
use ferroflow_base::{Code, Result, Status, invalid_argument};
use ferroflow_model::proto::{RunMetadata, RunOptions as RunOptionsProto, run_options::TraceLevel};
use ferroflow_rpc::deadline_exceeded;
use ferroflow_runtime::{Callable, CancelToken, RunOptions, Session, Signature, TraceSink};
use std::collections::HashMap;
use std::sync::atomic::AtomicI64;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// A client's session.
pub(crate) struct MasterSession {
    pub(crate) session: Session,
    pub(crate) callables: Mutex<HashMap<i64, Arc<ClientCallable>>>,
    pub(crate) next_callable: AtomicI64,
    pub(crate) timeout: Option<Duration>,
    pub(crate) devices: Arc<Devices>,
    /// The other tasks, if any.
    pub(crate) cluster: Option<Arc<GrpcCluster>>,
    /// The client set `log_device_placement`.
    pub(crate) logs_placement: bool,
    /// The client set `disable_output_partition_graphs`.
    pub(crate) keeps_graphs: bool,
    /// `build_cost_model` and `build_cost_model_after`.
    pub(crate) cost_model: (i64, i64),
    /// Number of steps of each signature, for the cost model.
    pub(crate) steps: Mutex<HashMap<Signature, i64>>,
    /// The keys of graphs with collectives, if other tasks may take part.
    pub(crate) graph_keys: Option<GraphKeys>,
    pub(crate) used: Mutex<Instant>,
}

pub(crate) struct ClientCallable {
    pub(crate) callable: Arc<Callable>,
    pub(crate) options: RunOptionsProto,
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl MasterSession {
    /// Cancels the steps and ends the sessions of the workers.
    pub(crate) fn close(&self) {
        self.session.close();
        if let Some(cluster) = &self.cluster {
            cluster.close();
        }
    }

    fn timeout_of(&self, options: &RunOptionsProto) -> Option<Duration> {
        millis(options.timeout_in_ms).or(self.timeout)
    }

    /// The metadata that the client asked for.
    pub(crate) fn metadata(
        &self,
        observer: &StepObserver,
        signature: &Signature,
    ) -> Result<Option<RunMetadata>> {
        let session = &self.session;
        if observer.trace.is_none() && !observer.graphs {
            return Ok(None);
        }
        let (asked, names) = (session.placement(), self.devices.names());
        let callable = session.cached(signature);
        let parts = callable.as_ref().map(|c| c.placement()).unwrap_or_default();
        let first = self.devices.first();
        let device_of = |node: &str| match parts.get(node) {
            Some(part) => names.get(*part).map_or(first, String::as_str),
            None if parts.is_empty() => asked.get(node).map_or(first, String::as_str),
            None => first,
        };
        let trace = observer.trace.as_ref();
        if let (Some(trace), Some(_)) = (trace, &self.cluster) {
            // Other tasks report theirs.
            for part in session.partition_graphs(signature)? {
                let own = part.node.iter().filter(|n| names.contains(&n.device));
                let constants = own.filter(|n| n.op == "Const");
                trace.add_constants(constants.map(|n| n.name.as_str()));
            }
        }
        let stats = trace.map(|t| t.finish(device_of, &session.inputs()));
        let graphs = match observer.graphs || observer.costs {
            true => session.partition_graphs(signature)?,
            false => Vec::new(),
        };
        let costs = stats.as_ref().filter(|_| observer.costs);
        Ok(Some(RunMetadata {
            cost_graph: costs.map(|stats| cost_graph(&graphs, stats)),
            step_stats: stats.filter(|_| observer.stats),
            partition_graphs: if observer.graphs { graphs } else { Vec::new() },
            ..Default::default()
        }))
    }

    /// Counts a step and returns whether to report its costs: one in `build_cost_model` steps of each
    /// signature, shifted by `build_cost_model_after`.
    fn wants_costs(&self, signature: &Signature) -> bool {
        let (every, after) = self.cost_model;
        if every <= 0 {
            return false;
        }
        let mut steps = lock(&self.steps);
        let step = steps.entry(signature.clone()).or_insert(0);
        *step += 1;
        step.wrapping_sub(after) % every == 0
    }

    /// Returns the error of a step as TensorFlow reports it, with the task it comes from.
    pub(crate) fn to_client_status(&self, e: Status) -> Status {
        match e.node() {
            // The same error whichever side's timer fires first.
            _ if e.code() == Code::DeadlineExceeded => deadline_exceeded(),
            Some(_) => e.prefixed(&format!("From {}:\n", self.devices.task())),
            None => e,
        }
    }
}

/// What a client wants to be reported of a step.
pub(crate) struct StepObserver {
    trace: Option<Arc<StepTrace>>,
    /// Whether to return the trace.
    stats: bool,
    graphs: bool,
    /// Whether to return the costs.
    costs: bool,
}

impl StepObserver {
    pub(crate) fn new(
        session: &MasterSession,
        options: &RunOptionsProto,
        signature: &Signature,
    ) -> Result<Self> {
        if session.keeps_graphs && options.output_partition_graphs {
            return Err(invalid_argument!(
                "RunOptions.output_partition_graphs() is not supported when \
                 disable_output_partition_graphs is true."
            ));
        }
        // The other levels trace hardware, of which TensorFlow reports nothing here.
        let traces = options.trace_level() == TraceLevel::FullTrace;
        let costs = session.wants_costs(signature);
        Ok(StepObserver {
            trace: (traces || costs).then(Arc::default),
            stats: traces,
            graphs: options.output_partition_graphs,
            costs,
        })
    }

    pub(crate) fn run_options(
        &self,
        session: &MasterSession,
        options: &RunOptionsProto,
        cancel: &CancelToken,
    ) -> RunOptions {
        RunOptions {
            timeout: session.timeout_of(options),
            cancel: Some(cancel.clone()),
            trace: self.trace.clone().map(|t| -> Arc<dyn TraceSink> { t }),
            ..Default::default()
        }
    }
}

pub(crate) fn millis(ms: i64) -> Option<Duration> {
    u64::try_from(ms)
        .ok()
        .filter(|ms| *ms > 0)
        .map(Duration::from_millis)
}
