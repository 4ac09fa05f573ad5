//! What a client learns of a step: `RunOptions` in, `RunMetadata` out
//! (`core/common_runtime/direct_session.cc`).

use crate::TF_Buffer;
use ferroflow_base::{Result, invalid_argument};
use ferroflow_model::proto::{self, run_options::TraceLevel};
use ferroflow_remote::StepTrace;
use ferroflow_runtime::{RunOptions, Session, Signature, TraceSink};
use prost::Message;
use std::sync::Arc;
use std::time::Duration;

/// The only device of a session that was not given others.
const DEVICE: &str = "/job:localhost/replica:0/task:0/device:CPU:0";

/// A step as the client wants it to run, and to be told of.
#[derive(Default)]
pub(crate) struct Observed {
    pub(crate) options: RunOptions,
    /// The options as the client gave them, if it did.
    pub(crate) message: Option<proto::RunOptions>,
    trace: Option<Arc<StepTrace>>,
    graphs: bool,
    /// Whether the client wants the report.
    reports: bool,
}

impl Observed {
    /// The options in a buffer; what they ask to report is left out without a buffer for it.
    ///
    /// # Safety
    /// The buffers are NULL or valid.
    ///
    /// # Errors
    /// INVALID_ARGUMENT if the first does not hold options, or the other is not empty.
    pub(crate) unsafe fn new(
        run_options: *const TF_Buffer,
        run_metadata: *const TF_Buffer,
    ) -> Result<Observed> {
        let reports = !run_metadata.is_null();
        // SAFETY: as this function's.
        if unsafe { run_metadata.as_ref() }.is_some_and(|m| !m.data.is_null()) {
            return Err(invalid_argument!(
                "Passing non-empty run_metadata is invalid."
            ));
        }
        if run_options.is_null() {
            return Ok(Observed {
                reports,
                ..Default::default()
            });
        }
        // SAFETY: as this function's.
        let options = proto::RunOptions::decode(unsafe { crate::buffer::bytes_of(run_options) })
            .map_err(|_| invalid_argument!("Unparseable RunOptions proto"))?;
        let timeout = u64::try_from(options.timeout_in_ms)
            .ok()
            .filter(|ms| *ms > 0);
        let traces = reports && options.trace_level() != TraceLevel::NoTrace;
        let trace: Option<Arc<StepTrace>> = traces.then(Arc::default);
        Ok(Observed {
            options: RunOptions {
                timeout: timeout.map(Duration::from_millis),
                trace: trace.clone().map(|t| -> Arc<dyn TraceSink> { t }),
                ..Default::default()
            },
            trace,
            graphs: reports && options.output_partition_graphs,
            message: Some(options),
            reports,
        })
    }

    /// Limits the step's time unless its own options do.
    pub(crate) fn limit(&mut self, limit: Option<Duration>) {
        self.options.timeout = self.options.timeout.or(limit);
    }

    /// The report of a step that has ended, if the client wants it.
    ///
    /// # Errors
    /// Those of exporting the signature's graphs.
    pub(crate) fn metadata(
        &self,
        session: &Session,
        signature: impl FnOnce() -> Result<Signature>,
    ) -> Result<Option<proto::RunMetadata>> {
        if !self.reports {
            return Ok(None);
        }
        let stats = self.trace.as_ref().map(|trace| {
            let placement = session.placement();
            let device_of = |node: &str| placement.get(node).map_or(DEVICE, String::as_str);
            trace.finish(device_of, &session.inputs())
        });
        let mut partition_graphs = match self.graphs {
            true => session.partition_graphs(&signature()?)?,
            false => Vec::new(),
        };
        let nodes = partition_graphs.iter_mut().flat_map(|g| &mut g.node);
        for node in nodes.filter(|n| n.device.is_empty()) {
            node.device = DEVICE.to_string();
        }
        Ok(Some(proto::RunMetadata {
            step_stats: stats,
            partition_graphs,
            ..Default::default()
        }))
    }
}
