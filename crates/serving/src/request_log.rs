//! [`RequestLogs`]: samples of requests with their responses, as `PredictionLog` records.

use crate::answer::typed;
use crate::config::{ModelSource, RequestLogConfig};
use crate::manager::lock;
use crate::metrics::Metrics;
use crate::servable::Servable;
use ferroflow_model::proto::serving::{
    LogMetadata, ModelSpec, PredictLog, PredictRequest, PredictResponse, PredictionLog,
    SamplingConfig, prediction_log::LogType,
};
use ferroflow_model::{RecordCompression, RecordWriter};
use ferroflow_runtime::Tensor;
use prost::Message;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{SystemTime, UNIX_EPOCH};

/// The logs of all models.
pub(crate) struct RequestLogs {
    /// Whether a model has a log, so that the others cost nothing.
    is_on: AtomicBool,
    logs: Mutex<BTreeMap<String, Log>>,
    counter: AtomicU64,
    metrics: Arc<Metrics>,
}

struct Log {
    config: RequestLogConfig,
    writer: Option<RecordWriter>,
}

impl RequestLogs {
    pub(crate) fn new(metrics: Arc<Metrics>) -> RequestLogs {
        RequestLogs {
            is_on: AtomicBool::new(false),
            logs: Mutex::default(),
            counter: AtomicU64::new(0),
            metrics,
        }
    }

    /// Sets the logs of the models.
    pub(crate) fn set(&self, sources: &[ModelSource]) {
        let mut logs = lock(&self.logs);
        logs.retain(|name, log| {
            let source = sources.iter().find(|s| s.name == *name);
            source.is_some_and(|s| s.log.as_ref() == Some(&log.config))
        });
        for source in sources {
            if let Some(config) = source.log.clone() {
                let log = Log {
                    config,
                    writer: None,
                };
                logs.entry(source.name.clone()).or_insert(log);
            }
        }
        self.is_on.store(!logs.is_empty(), Ordering::Relaxed);
    }

    /// Decides whether to log a request of a model: every n-th, so that the part is exact.
    pub(crate) fn samples(&self, model: &str) -> bool {
        if !self.is_on.load(Ordering::Relaxed) {
            return false;
        }
        let Some(rate) = lock(&self.logs).get(model).map(|l| l.config.rate) else {
            return false;
        };
        let n = self.counter.fetch_add(1, Ordering::Relaxed) as f64;
        ((n + 1.0) * rate).floor() > (n * rate).floor()
    }

    /// Logs a prediction.
    pub(crate) fn predict(
        &self,
        servable: &Servable,
        request: PredictRequest,
        spec: &ModelSpec,
        outputs: &[(String, Tensor)],
    ) {
        let outputs = outputs
            .iter()
            .filter_map(|(k, t)| Some((k.clone(), typed(t).ok()?)));
        let response = PredictResponse {
            outputs: outputs.collect(),
            model_spec: Some(spec.clone()),
        };
        let log = PredictLog {
            request: Some(request),
            response: Some(response),
        };
        self.write(servable, LogType::PredictLog(log));
    }

    /// Logs a request with its response.
    pub(crate) fn write(&self, servable: &Servable, log: LogType) {
        let now = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default();
        let mut logs = lock(&self.logs);
        let Some(entry) = logs.get_mut(servable.name()) else {
            return;
        };
        let record = PredictionLog {
            log_metadata: Some(LogMetadata {
                model_spec: Some(crate::inference::model_spec(servable, "")),
                sampling_config: Some(SamplingConfig {
                    sampling_rate: entry.config.rate,
                    ..Default::default()
                }),
                saved_model_tags: Vec::new(),
                timestamp_secs: i64::try_from(now.as_secs()).unwrap_or(0),
            }),
            log_type: Some(log),
        };
        if entry.writer.is_none() {
            let path = format!(
                "{}-{}-{}",
                entry.config.prefix.display(),
                servable.name(),
                now.as_millis()
            );
            match RecordWriter::create(&PathBuf::from(path), RecordCompression::None) {
                Ok(writer) => entry.writer = Some(writer),
                Err(e) => {
                    tracing::error!(model = servable.name(), "cannot log requests: {e}");
                    logs.remove(servable.name());
                    return;
                }
            }
        }
        if let Some(writer) = &mut entry.writer {
            let written = writer
                .write(&record.encode_to_vec())
                .and_then(|()| writer.flush());
            match written {
                Ok(()) => self.metrics.logged(servable.name()),
                Err(e) => tracing::error!(model = servable.name(), "cannot log requests: {e}"),
            }
        }
    }
}
