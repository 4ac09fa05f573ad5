//! Configuration files in TensorFlow Serving's text format.

use ferroflow_base::{Code, Result, Status, invalid_argument, ordered_map, ordered_set};
use ferroflow_model::proto::serving::file_system_storage_path_source_config::{
    ServableVersionPolicy, servable_version_policy::PolicyChoice,
};
use ferroflow_model::proto::serving::{
    BatchingParameters, ModelConfig, ModelServerConfig, ModelType, MonitoringConfig, SslConfig,
    model_server_config::Config,
};
use ferroflow_model::{decode, message_from_text};
use prost::Message;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// The platform of TensorFlow's models.
const TENSORFLOW: &str = "tensorflow";

/// Which versions of a model are served.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum VersionPolicy {
    /// The newest ones, this many.
    Latest(usize),
    /// All.
    All,
    /// These.
    Specific(BTreeSet<i64>),
}

/// A model to serve.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelSource {
    /// Its name in requests.
    pub name: String,
    /// The directory of its versions, or a model without versions.
    pub path: PathBuf,
    /// Which versions are served.
    pub policy: VersionPolicy,
    /// Names of versions.
    pub labels: BTreeMap<String, i64>,
    /// The log of sampled requests, if any.
    pub log: Option<RequestLogConfig>,
}

/// The log of a model's requests.
#[derive(Clone, Debug, PartialEq)]
pub struct RequestLogConfig {
    /// The files' names begin with this.
    pub prefix: PathBuf,
    /// The part of the requests that is logged, from 0 to 1.
    pub rate: f64,
}

impl ModelSource {
    /// A model whose newest version is served.
    pub fn latest(name: &str, path: &Path) -> ModelSource {
        ModelSource {
            name: name.to_string(),
            path: path.to_path_buf(),
            policy: VersionPolicy::Latest(1),
            labels: BTreeMap::new(),
            log: None,
        }
    }

    fn from_proto(config: ModelConfig) -> Result<ModelSource> {
        let name = &config.name;
        let is_typed = config.model_type != ModelType::Unspecified as i32;
        let platform = match (is_typed, config.model_platform.as_str()) {
            (true, "") if config.model_type == ModelType::Tensorflow as i32 => TENSORFLOW,
            (true, "") => {
                return Err(invalid_argument!(
                    "ModelServerConfig::model_type choice {} not supported.",
                    config.model_type
                ));
            }
            (true, _) => {
                return Err(invalid_argument!(
                    "Illegal setting both ModelServerConfig::model_type (deprecated) and \
                     ModelServerConfig::model_platform, model name is {name}"
                ));
            }
            (false, "") => {
                return Err(invalid_argument!(
                    "Illegal setting neither ModelServerConfig::model_type (deprecated) nor \
                     ModelServerConfig::model_platform, model name is {name}"
                ));
            }
            (false, platform) => platform,
        };
        if platform != TENSORFLOW {
            return Err(invalid_argument!(
                "Model {name} requests unsupported platform {platform}"
            ));
        }
        let path = config.base_path.strip_prefix("file://");
        let path = PathBuf::from(path.unwrap_or(&config.base_path));
        if !path.is_absolute() {
            return Err(invalid_argument!(
                "Expected model {name} to have an absolute path or URI; got base_path()={}",
                config.base_path
            ));
        }
        let log = config.logging_config.and_then(|log| {
            let prefix = log.log_collector_config?.filename_prefix;
            let rate = log.sampling_config?.sampling_rate;
            (rate > 0.0 && !prefix.is_empty()).then_some(RequestLogConfig {
                prefix: prefix.into(),
                rate: rate.min(1.0),
            })
        });
        Ok(ModelSource {
            name: config.name,
            path,
            policy: VersionPolicy::from_proto(config.model_version_policy),
            labels: ordered_map(config.version_labels),
            log,
        })
    }
}

impl VersionPolicy {
    fn from_proto(policy: Option<ServableVersionPolicy>) -> VersionPolicy {
        match policy.and_then(|p| p.policy_choice) {
            None => VersionPolicy::Latest(1),
            Some(PolicyChoice::Latest(latest)) => {
                VersionPolicy::Latest(latest.num_versions.max(1) as usize)
            }
            Some(PolicyChoice::All(_)) => VersionPolicy::All,
            Some(PolicyChoice::Specific(s)) => VersionPolicy::Specific(ordered_set(s.versions)),
        }
    }
}

/// Returns the models of a `ModelServerConfig`.
///
/// # Errors
/// INVALID_ARGUMENT if it lists a model twice or one that cannot be served.
pub fn model_sources(config: ModelServerConfig) -> Result<Vec<ModelSource>> {
    let list = match config.config {
        Some(Config::ModelConfigList(list)) => list.config,
        None => Vec::new(),
        Some(Config::CustomModelConfig(_)) => {
            return Err(invalid_argument!(
                "ServerModelConfig type not supported by HandleReloadConfigRequest. Only \
                 ModelConfigList is currently supported"
            ));
        }
    };
    let mut names = BTreeSet::new();
    for config in &list {
        if !names.insert(config.name.clone()) {
            return Err(invalid_argument!(
                "Illegal to list model {} multiple times in config list",
                config.name
            ));
        }
    }
    list.into_iter().map(ModelSource::from_proto).collect()
}

/// Reads the models of a configuration file; `None` if it has no configuration, as while another program writes it.
///
/// # Errors
/// NOT_FOUND if the file cannot be read; INVALID_ARGUMENT as for [`model_sources`] and if the text does not
/// parse.
pub fn read_models(path: &Path) -> Result<Option<Vec<ModelSource>>> {
    let config: ModelServerConfig = read(path, "tensorflow.serving.ModelServerConfig")?;
    if config.config.is_none() {
        return Ok(None);
    }
    let sources = model_sources(config).map_err(|e| e.note(format!("in {}", path.display())));
    sources.map(Some)
}

/// Reads a file of batching parameters.
///
/// # Errors
/// NOT_FOUND if the file cannot be read; INVALID_ARGUMENT if the text does not parse.
pub fn read_batching(path: &Path) -> Result<BatchingParameters> {
    read(path, "tensorflow.serving.BatchingParameters")
}

/// Reads a file of monitoring options.
///
/// # Errors
/// NOT_FOUND if the file cannot be read; INVALID_ARGUMENT if the text does not parse.
pub fn read_monitoring(path: &Path) -> Result<MonitoringConfig> {
    read(path, "tensorflow.serving.MonitoringConfig")
}

/// Reads a file with certificates and keys.
///
/// # Errors
/// NOT_FOUND if the file cannot be read; INVALID_ARGUMENT if the text does not parse.
pub fn read_ssl(path: &Path) -> Result<SslConfig> {
    read(path, "tensorflow.serving.SSLConfig")
}

fn read<M: Message + Default>(path: &Path, name: &str) -> Result<M> {
    let text = std::fs::read_to_string(path)
        .map_err(|e| Status::new(Code::NotFound, format!("{}: {e}", path.display())))?;
    let message = message_from_text(name, &text);
    decode(&message.map_err(|e| e.note(format!("in {}", path.display())))?)
}
