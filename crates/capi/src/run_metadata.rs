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
}

impl Observed {
    /// The options in a buffer; what they ask to report is left out unless `reports`.
    ///
    /// # Safety
    /// The buffer is NULL or valid.
    ///
    /// # Errors
    /// INVALID_ARGUMENT if it does not hold options.
    pub(crate) unsafe fn new(buffer: *const TF_Buffer, reports: bool) -> Result<Observed> {
        if buffer.is_null() {
            return Ok(Observed::default());
        }
        // SAFETY: as this function's.
        let options = proto::RunOptions::decode(unsafe { crate::buffer::bytes_of(buffer) })
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
        })
    }

    /// The report of a step that has ended.
    ///
    /// # Errors
    /// Those of exporting the signature's graphs.
    pub(crate) fn metadata(
        &self,
        session: &Session,
        signature: impl FnOnce() -> Result<Signature>,
    ) -> Result<proto::RunMetadata> {
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
        Ok(proto::RunMetadata {
            step_stats: stats,
            partition_graphs,
            ..Default::default()
        })
    }
}
