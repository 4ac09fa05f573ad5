//! [`Front`]: the methods of both protocols, after their messages are read.

use crate::answer::Answer;
use crate::batching::Batcher;
use crate::config::ModelSource;
use crate::inference::{Run, classify, model_spec, multi_inference, num_examples, regress};
use crate::manager::ModelManager;
use crate::metrics::{Metrics, Recent};
use crate::request_log::RequestLogs;
use crate::servable::Servable;
use crate::share::{Share, Shared};
use crate::step::Step;
use crate::trace::{self, Traced, Traces};
use ferroflow_base::{Code, Result, Status, invalid_argument, resource_exhausted};
use ferroflow_model::proto::Any;
use ferroflow_model::proto::serving::metric::ValueIncrease;
use ferroflow_model::proto::serving::{
    ClassificationRequest, ClassificationResponse, GetModelMetadataRequest,
    GetModelMetadataResponse, GetModelStatusRequest, GetModelStatusResponse, Input, ModelSpec,
    ModelVersionStatus, MultiInferenceRequest, MultiInferenceResponse, PredictRequest,
    RegressionRequest, RegressionResponse, ReloadConfigRequest, ReloadConfigResponse,
    SignatureDefMap, StatusProto, prediction_log::LogType,
};
use ferroflow_model::proto::serving::{ClassifyLog, Metric, MultiInferenceLog, RegressLog};
use ferroflow_rpc::{Calls, blocking};
use ferroflow_runtime::{CancelToken, RunOptions, Tensor};
use prost::Message;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime};
use tokio::runtime::Handle;

/// The only metadata that a model has.
const SIGNATURE_DEF: &str = "signature_def";
/// The type of the metadata, as `Any` names it.
const SIGNATURE_DEF_TYPE: &str = "type.googleapis.com/tensorflow.serving.SignatureDefMap";

/// Which protocol a request came by, in the metrics.
#[derive(Clone, Copy)]
pub enum Entry {
    /// gRPC.
    Grpc,
    /// HTTP.
    Rest,
}

impl Entry {
    fn name(self) -> &'static str {
        match self {
            Entry::Grpc => "GRPC",
            Entry::Rest => "REST",
        }
    }
}

/// Options of both protocols.
#[derive(Clone, Debug, Default)]
pub struct FrontOptions {
    /// Writes outputs as `tensor_content`.
    pub tensor_content: bool,
    /// Most requests that run at the same time.
    pub max_running: Option<usize>,
    /// The token that requests must carry, if any.
    pub bearer_token: Option<String>,
}

/// The methods of the server.
pub struct Front {
    /// The models.
    pub manager: Arc<ModelManager>,
    /// The metrics.
    pub metrics: Arc<Metrics>,
    /// Calls in progress.
    pub calls: Calls,
    pub(crate) recent: Recent,
    pub(crate) options: FrontOptions,
    pub(crate) batcher: Option<Arc<Batcher>>,
    pub(crate) logs: RequestLogs,
    pub(crate) is_stopping: AtomicBool,
    pub(crate) traces: Option<Traces>,
    /// The threads of steps that are not short.
    pub(crate) threads: Handle,
    /// What these steps compute with.
    pub(crate) share: Arc<Share>,
}

impl Front {
    /// Returns whether the server was asked to stop.
    pub(crate) fn is_stopping(&self) -> bool {
        self.is_stopping.load(Ordering::Relaxed)
    }

    /// Runs a request and counts it.
    pub(crate) async fn counted<R>(
        &self,
        spec: Option<&ModelSpec>,
        api: &str,
        entry: Entry,
        request: impl Future<Output = Result<R>>,
    ) -> Result<R> {
        let began = Instant::now();
        let running = self.metrics.begin();
        let is_full = self.options.max_running;
        let is_full = is_full.filter(|max| self.metrics.running() > *max as i64);
        let result = match is_full {
            Some(max) => Err(resource_exhausted!(
                "the server runs {max} requests already"
            )),
            None => request.await,
        };
        drop(running);
        let code = result.as_ref().map_or_else(|e| e.code().name(), |_| "OK");
        let model = spec.map_or("", |s| s.name.as_str());
        self.metrics
            .request(model, api, entry.name(), code, began.elapsed());
        if let Err(e) = &result {
            tracing::debug!(model, api, entry = entry.name(), "{e}");
        }
        result
    }

    /// Runs a step: merged with others, where the request arrived if it is short, or on a thread that may block.
    ///
    /// # Errors
    /// Those of the step; RESOURCE_EXHAUSTED if too many steps run or wait.
    pub async fn run(self: &Arc<Self>, step: Step) -> Result<Vec<Tensor>> {
        let began = Instant::now();
        let model = step.servable.clone();
        let span = traced(&step);
        let result = match &self.batcher {
            Some(batcher) if batcher.accepts(&step) => batcher.submit_in(step, span)?.wait().await,
            _ if step.is_short() => {
                trace::step(span.as_slice(), || step.run(&RunOptions::default()))
            }
            _ => {
                let _permit = self.calls.begin_step()?;
                let arrived = span.as_ref().map(|_| SystemTime::now());
                let share = self.share.clone();
                blocking(&self.threads, move |cancel| {
                    if let (Some(span), Some(arrived)) = (&span, arrived) {
                        span.waited(arrived);
                    }
                    let share = share.begin();
                    let options = options(cancel, &share);
                    trace::step(span.as_slice(), || step.run(&options))
                })
                .await
            }
        };
        self.metrics.step(model.name(), "Predict", began.elapsed());
        result
    }

    /// Runs `f` with a function that runs steps, on a thread that may block.
    async fn inference<R: Send + 'static>(
        self: &Arc<Self>,
        f: impl FnOnce(&mut dyn FnMut(Step) -> Result<Vec<Tensor>>) -> Result<R> + Send + 'static,
    ) -> Result<R> {
        let _permit = self.calls.begin_step()?;
        let batcher = self.batcher.clone();
        let request = Traced::current();
        let share = self.share.clone();
        blocking(&self.threads, move |cancel| {
            f(&mut |step| {
                let span = request.clone().inspect(|span| describe(span, &step));
                match &batcher {
                    Some(batcher) if batcher.accepts(&step) => {
                        batcher.submit_in(step, span)?.block()
                    }
                    _ => {
                        let share = share.begin();
                        let options = options(cancel, &share);
                        trace::step(span.as_slice(), || step.run(&options))
                    }
                }
            })
        })
        .await
    }

    /// `Predict`.
    ///
    /// # Errors
    /// Those of finding the model, of checking the inputs and of the step.
    pub async fn predict(
        self: &Arc<Self>,
        request: PredictRequest,
        entry: Entry,
    ) -> Result<Answer> {
        let spec = request.model_spec.clone();
        let answered = async {
            let servable = self.manager.find(request.model_spec.as_ref())?;
            let signature = request
                .model_spec
                .as_ref()
                .map_or("", |s| &s.signature_name);
            let given: Vec<&str> = request.inputs.keys().map(String::as_str).collect();
            let find = |key: &str| request.inputs.get(key);
            let step = Step::predict(
                servable.clone(),
                signature,
                &given,
                find,
                &request.output_filter,
            )?;
            let (keys, signature) = (step.keys(), step.signature.clone());
            let outputs = self.run(step).await?;
            let outputs: Vec<_> = keys.into_iter().zip(outputs).collect();
            let spec = model_spec(&servable, &signature);
            if self.logs.samples(servable.name()) {
                self.logs.predict(&servable, request, &spec, &outputs);
            }
            Answer::new(spec, outputs, self.options.tensor_content)
        };
        self.counted(spec.as_ref(), "Predict", entry, answered)
            .await
    }

    /// `Classify`.
    ///
    /// # Errors
    /// As [`classify`].
    pub async fn classify(
        self: &Arc<Self>,
        request: ClassificationRequest,
        entry: Entry,
    ) -> Result<ClassificationResponse> {
        let spec = request.model_spec.clone();
        let answered = async {
            let asked = (spec.as_ref(), request.input.as_ref());
            let (servable, result, spec) = self.infer(asked, classify).await?;
            let response = ClassificationResponse {
                result: Some(result),
                model_spec: Some(spec),
            };
            if self.logs.samples(servable.name()) {
                let log = ClassifyLog {
                    request: Some(request),
                    response: Some(response.clone()),
                };
                self.logs.write(&servable, LogType::ClassifyLog(log));
            }
            Ok(response)
        };
        self.counted(spec.as_ref(), "Classify", entry, answered)
            .await
    }

    /// `Regress`.
    ///
    /// # Errors
    /// As [`regress`].
    pub async fn regress(
        self: &Arc<Self>,
        request: RegressionRequest,
        entry: Entry,
    ) -> Result<RegressionResponse> {
        let spec = request.model_spec.clone();
        let answered = async {
            let asked = (spec.as_ref(), request.input.as_ref());
            let (servable, result, spec) = self.infer(asked, regress).await?;
            let response = RegressionResponse {
                result: Some(result),
                model_spec: Some(spec),
            };
            if self.logs.samples(servable.name()) {
                let log = RegressLog {
                    request: Some(request),
                    response: Some(response.clone()),
                };
                self.logs.write(&servable, LogType::RegressLog(log));
            }
            Ok(response)
        };
        self.counted(spec.as_ref(), "Regress", entry, answered)
            .await
    }

    /// Runs `f` with the model and signature of a specification, and the examples; returns the model and its
    /// specification, too.
    async fn infer<R: Send + 'static>(
        self: &Arc<Self>,
        (spec, input): (Option<&ModelSpec>, Option<&Input>),
        f: fn(&Arc<Servable>, &str, &Input, Run<'_>) -> Result<R>,
    ) -> Result<(Arc<Servable>, R, ModelSpec)> {
        let servable = self.manager.find(spec)?;
        let signature = spec.map_or("", |s| &s.signature_name).to_string();
        let input = input.cloned().unwrap_or_default();
        self.metrics.examples(servable.name(), num_examples(&input));
        let spec = model_spec(&servable, &signature);
        let model = servable.clone();
        let run = move |run: Run<'_>| f(&model, &signature, &input, run);
        Ok((servable, self.inference(run).await?, spec))
    }

    /// `MultiInference`.
    ///
    /// # Errors
    /// As [`multi_inference`].
    pub async fn multi_inference(
        self: &Arc<Self>,
        request: MultiInferenceRequest,
        entry: Entry,
    ) -> Result<MultiInferenceResponse> {
        let spec = request.tasks.first().and_then(|t| t.model_spec.clone());
        let answered = async {
            if request.tasks.is_empty() {
                return Err(invalid_argument!(
                    "Inference request must have at least one task."
                ));
            }
            let servable = self.manager.find(spec.as_ref())?;
            self.metrics.examples(
                servable.name(),
                request.input.as_ref().map_or(0, num_examples),
            );
            let (model, asked) = (servable.clone(), request.clone());
            let run = move |run: &mut dyn FnMut(Step) -> Result<Vec<Tensor>>| {
                multi_inference(&model, &asked, run)
            };
            let response = self.inference(run).await?;
            if self.logs.samples(servable.name()) {
                let log = MultiInferenceLog {
                    request: Some(request),
                    response: Some(response.clone()),
                };
                self.logs.write(&servable, LogType::MultiInferenceLog(log));
            }
            Ok(response)
        };
        self.counted(spec.as_ref(), "MultiInference", entry, answered)
            .await
    }

    /// `GetModelMetadata`.
    ///
    /// # Errors
    /// INVALID_ARGUMENT if the request names no or unknown metadata; those of finding the model.
    pub fn metadata(&self, request: &GetModelMetadataRequest) -> Result<GetModelMetadataResponse> {
        if request.model_spec.is_none() {
            return Err(invalid_argument!("Missing ModelSpec"));
        }
        if request.metadata_field.is_empty() {
            return Err(invalid_argument!(
                "GetModelMetadataRequest must specify at least one metadata_field"
            ));
        }
        if let Some(other) = request.metadata_field.iter().find(|f| *f != SIGNATURE_DEF) {
            return Err(invalid_argument!("Metadata field {other} is not supported"));
        }
        let servable = self.manager.find(request.model_spec.as_ref())?;
        let signatures = SignatureDefMap {
            signature_def: servable.signature_defs().clone(),
        };
        let metadata = Any {
            type_url: SIGNATURE_DEF_TYPE.to_string(),
            value: signatures.encode_to_vec().into(),
        };
        let spec = ModelSpec {
            signature_name: String::new(),
            ..model_spec(&servable, "")
        };
        Ok(GetModelMetadataResponse {
            model_spec: Some(spec),
            metadata: [(SIGNATURE_DEF.to_string(), metadata)].into(),
        })
    }

    /// `GetModelStatus`.
    ///
    /// # Errors
    /// NOT_FOUND if the model is not known.
    pub fn status(&self, request: &GetModelStatusRequest) -> Result<GetModelStatusResponse> {
        let versions = self.manager.status(request.model_spec.as_ref())?;
        let versions = versions.into_iter().map(|v| ModelVersionStatus {
            version: v.version,
            state: v.state as i32,
            status: Some(status_proto(v.error.as_ref())),
        });
        Ok(GetModelStatusResponse {
            model_version_status: versions.collect(),
        })
    }

    /// Replaces the models that are served, with their request logs.
    ///
    /// # Errors
    /// Those of [`ModelManager::set_models`].
    pub(crate) fn set_models(&self, sources: Vec<ModelSource>) -> Result<()> {
        let set = self.manager.set_models(sources.clone());
        // Without its labels, a configuration is refused.
        let is_refused = |e: &Status| e.code() == Code::FailedPrecondition;
        if !set.as_ref().is_err_and(is_refused) {
            self.logs.set(&sources);
        }
        set
    }

    /// `HandleReloadConfigRequest`; waits until new models are loaded.
    ///
    /// # Errors
    /// Those of [`crate::config::model_sources`] and of [`ModelManager::set_models`].
    pub fn reload(&self, request: ReloadConfigRequest) -> Result<ReloadConfigResponse> {
        let names = request.metric_names;
        let before: Vec<i64> = names.iter().map(|n| self.metrics.counter(n)).collect();
        let config = request
            .config
            .filter(|c| c.config.is_some())
            .ok_or_else(|| {
                invalid_argument!(
                    "ServerModelConfig type not supported by HandleReloadConfigRequest. Only \
                 ModelConfigList is currently supported"
                )
            })?;
        let sources = crate::config::model_sources(config)?;
        self.set_models(sources)?;
        let metric = names.into_iter().zip(before).map(|(name, before)| {
            let increase = self.metrics.counter(&name) - before;
            Metric {
                name,
                value_increase: Some(ValueIncrease::Int64ValueIncrease(increase)),
            }
        });
        Ok(ReloadConfigResponse {
            status: Some(status_proto(None)),
            metric: metric.collect(),
        })
    }

    /// Records the totals once a second, for the page.
    pub(crate) async fn record_totals(self: Arc<Self>) {
        loop {
            self.recent.push(self.metrics.totals());
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
    }
}

fn status_proto(error: Option<&ferroflow_base::Status>) -> StatusProto {
    StatusProto {
        error_code: error.map_or(0, |e| e.code() as i32),
        error_message: error.map_or(String::new(), ferroflow_rpc::message),
    }
}

/// The span of the request, which names the step.
fn traced(step: &Step) -> Option<Traced> {
    Traced::current().inspect(|span| describe(span, step))
}

fn describe(span: &Traced, step: &Step) {
    span.set("ferroflow.model", step.servable.name().to_string());
    span.set("ferroflow.version", step.servable.version());
    span.set("ferroflow.signature", step.signature.clone());
}

fn options(cancel: &CancelToken, share: &Shared<'_>) -> RunOptions {
    RunOptions {
        cancel: Some(cancel.clone()),
        pool: share.pool.clone(),
        ..Default::default()
    }
}
