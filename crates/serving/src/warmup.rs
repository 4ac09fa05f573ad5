//! Warms up a version before it serves: recorded requests, and steps with zeros.

use crate::inference::{classify, multi_inference, regress};
use crate::manager::ManagerOptions;
use crate::metrics::Metrics;
use crate::servable::Servable;
use crate::step::Step;
use ferroflow_base::{Result, invalid_argument};
use ferroflow_model::proto::serving::PredictionLog;
use ferroflow_model::proto::serving::prediction_log::LogType;
use ferroflow_model::{RecordCompression, RecordReader, decode};
use ferroflow_runtime::{DEFAULT_SIGNATURE, DType, RunOptions, Shape, Tensor};
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

/// The file of recorded requests, relative to the version's directory.
const REQUESTS: &str = "assets.extra/tf_serving_warmup_requests";
/// Most requests in the file.
const MAX_RECORDS: usize = 1000;

/// Warms up a version.
///
/// # Errors
/// INVALID_ARGUMENT if the file of requests is malformed or too long; those of the requests.
pub(crate) fn run(
    servable: &Arc<Servable>,
    options: &ManagerOptions,
    metrics: &Metrics,
) -> Result<()> {
    let began = Instant::now();
    let path = servable.path().join(REQUESTS);
    if options.warmup_replays > 0 && path.is_file() {
        let mut records = 0;
        let replayed = replay(servable, &path, options.warmup_replays, &mut records);
        let code = replayed
            .as_ref()
            .map_or_else(|e| e.code().name(), |()| "OK");
        let model = servable.path().to_string_lossy();
        metrics.warmup(&model, code, records as u64, began.elapsed());
        replayed.map_err(|e| e.note(format!("in the warm-up requests {}", path.display())))?;
    }
    for _ in 0..options.warmup_steps {
        let Some(args) = zeros(servable) else {
            break;
        };
        servable.run(DEFAULT_SIGNATURE, args, &[], &RunOptions::default())?;
    }
    Ok(())
}

fn replay(
    servable: &Arc<Servable>,
    path: &Path,
    replays: usize,
    records: &mut usize,
) -> Result<()> {
    let mut reader = RecordReader::open(path, RecordCompression::None)?;
    while let Some(record) = reader.read()? {
        let log: PredictionLog = decode(&record)?;
        for _ in 0..replays {
            replay_one(servable, &log)?;
        }
        *records += 1;
        if *records > MAX_RECORDS {
            return Err(invalid_argument!(
                "Number of warmup records exceeds the maximum ({MAX_RECORDS}) at {}",
                path.display()
            ));
        }
    }
    Ok(())
}

fn replay_one(servable: &Arc<Servable>, log: &PredictionLog) -> Result<()> {
    let mut run = |step: Step| step.run(&RunOptions::default());
    match &log.log_type {
        Some(LogType::PredictLog(log)) => {
            let request = log.request.clone().unwrap_or_default();
            let signature = request
                .model_spec
                .map(|s| s.signature_name)
                .unwrap_or_default();
            let given: Vec<&str> = request.inputs.keys().map(String::as_str).collect();
            let find = |key: &str| request.inputs.get(key);
            let filter = &request.output_filter;
            run(Step::predict(
                servable.clone(),
                &signature,
                &given,
                find,
                filter,
            )?)?;
        }
        Some(LogType::ClassifyLog(log)) => {
            let request = log.request.clone().unwrap_or_default();
            let signature = request
                .model_spec
                .map(|s| s.signature_name)
                .unwrap_or_default();
            classify(
                servable,
                &signature,
                &request.input.unwrap_or_default(),
                &mut run,
            )?;
        }
        Some(LogType::RegressLog(log)) => {
            let request = log.request.clone().unwrap_or_default();
            let signature = request
                .model_spec
                .map(|s| s.signature_name)
                .unwrap_or_default();
            regress(
                servable,
                &signature,
                &request.input.unwrap_or_default(),
                &mut run,
            )?;
        }
        Some(LogType::MultiInferenceLog(log)) => {
            multi_inference(servable, &log.request.clone().unwrap_or_default(), &mut run)?;
        }
        None => return Err(invalid_argument!("Unsupported log_type for warmup: 0")),
    }
    Ok(())
}

/// Zeros for the inputs of the default signature, with one row; `None` if one is not numeric.
fn zeros(servable: &Servable) -> Option<Vec<Tensor>> {
    let inputs = &servable.program(DEFAULT_SIGNATURE)?.ports.inputs;
    let zeros = inputs.iter().map(|input| {
        let dims = input.shape.dims()?.iter().map(|d| d.unwrap_or(1));
        let shape: Vec<i64> = dims.map(|d| d as i64).collect();
        let is_numeric = input.dtype.is_plain() && input.dtype != DType::String;
        let shape = Shape::checked(&shape).ok().filter(|_| is_numeric)?;
        Tensor::zeros(input.dtype, shape).ok()
    });
    zeros.collect()
}
