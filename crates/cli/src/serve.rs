//! `ferroflow serve`, also called `tensorflow_model_server`: TensorFlow Serving's API.

use crate::server::{parse_positive, start_logging, stop_signal, tell};
use clap::Parser;
use ferroflow_base::{Result, invalid_argument};
use ferroflow_runtime::{Pool, SERVE};
use ferroflow_serving::config::{read_batching, read_monitoring, read_ssl};
use ferroflow_serving::{
    FrontOptions, LoadOptions, ManagerOptions, ModelSource, Parameters, RestOptions, Server,
    ServerOptions, TlsOptions, TlsPem, TraceOptions, TraceProtocol,
};
use std::collections::BTreeSet;
use std::io::Write;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

/// The name under which the binary takes TensorFlow Serving's flags.
const MODEL_SERVER: &str = "tensorflow_model_server";

/// How an OpenTelemetry collector receives spans.
#[derive(Clone, Copy, clap::ValueEnum)]
enum OtlpProtocol {
    /// OTLP over gRPC.
    Grpc,
    /// OTLP's protos over HTTP.
    #[value(name = "http/protobuf")]
    Http,
}

/// Serves models with TensorFlow Serving's gRPC and REST API.
///
/// A model is a directory with a directory for each version (1, 2, …), or one SavedModel, .pb or .bef file. New versions
/// are loaded while the server runs. Called `tensorflow_model_server`, the binary takes TensorFlow Serving's flags, which
/// are these with underscores.
///
/// Examples:
///   ferroflow serve --model half=/models/half_plus_two
///   ferroflow serve --model-config-file models.config --enable-batching
///   curl -d '{"instances": [1.0, 2.0]}' http://localhost:8501/v1/models/half:predict
#[derive(clap::Args)]
#[command(verbatim_doc_comment)]
pub struct Args {
    /// A model to serve: NAME=PATH; may be repeated.
    #[arg(long, value_name = "NAME=PATH", value_parser = parse_model)]
    model: Vec<(String, PathBuf)>,
    /// Name of the model at --model-base-path.
    #[arg(long, default_value = "default", value_name = "NAME")]
    model_name: String,
    /// A model to serve.
    #[arg(long, value_name = "PATH")]
    model_base_path: Option<PathBuf>,
    /// File with a ModelServerConfig in text form, instead of --model.
    #[arg(long, value_name = "FILE", conflicts_with = "model")]
    model_config_file: Option<PathBuf>,
    /// Read the configuration file again after this many seconds; 0 reads it once.
    #[arg(
        long,
        default_value_t = 0,
        value_name = "SECONDS",
        allow_hyphen_values = true
    )]
    model_config_file_poll_wait_seconds: i64,
    /// Search for new versions after this many seconds; 0 searches once.
    #[arg(
        long,
        default_value_t = 1,
        value_name = "SECONDS",
        allow_hyphen_values = true
    )]
    file_system_poll_wait_seconds: i64,
    /// Port of the gRPC services; 0 takes a free one.
    #[arg(long, default_value_t = 8500, value_name = "PORT")]
    port: u16,
    /// Serve gRPC at no port.
    #[arg(long)]
    no_grpc: bool,
    /// Path of a UNIX socket for the gRPC services, besides the port.
    #[arg(long, value_name = "PATH")]
    grpc_socket_path: Option<PathBuf>,
    /// Port of the REST API, the metrics and the page; 0 takes a free one.
    #[arg(long, default_value_t = 8501, value_name = "PORT")]
    rest_api_port: u16,
    /// Do not serve the REST API.
    #[arg(long)]
    no_rest_api: bool,
    /// Address to listen on.
    #[arg(long, default_value = "0.0.0.0", value_name = "ADDRESS")]
    host: IpAddr,
    /// Longest time of a REST request, in milliseconds.
    #[arg(long, default_value_t = 30_000, value_name = "MS")]
    rest_api_timeout_in_ms: u64,
    /// Let scripts of other origins use the REST API.
    #[arg(long)]
    rest_api_enable_cors_support: bool,
    /// Merge requests into batches, with TensorFlow Serving's parameters.
    #[arg(long)]
    enable_batching: bool,
    /// File with BatchingParameters in text form.
    #[arg(long, value_name = "FILE", requires = "enable_batching")]
    batching_parameters_file: Option<PathBuf>,
    /// Use the file `batching_params.pbtxt` of each model, where requests are merged into batches.
    #[arg(long)]
    enable_per_model_batching_parameters: bool,
    /// Merge requests while all processors are busy; needs no parameters.
    #[arg(long, conflicts_with = "enable_batching")]
    adaptive_batching: bool,
    /// Comma-separated tags of the graph in a SavedModel.
    #[arg(long, default_value = SERVE, value_name = "TAGS")]
    saved_model_tags: String,
    /// Replay each model's recorded requests (assets.extra/tf_serving_warmup_requests) before it serves.
    #[arg(long, default_value_t = true, action = clap::ArgAction::Set, value_name = "BOOL")]
    enable_model_warmup: bool,
    /// How often each recorded request is replayed.
    #[arg(
        long,
        default_value_t = 1,
        value_name = "N",
        allow_hyphen_values = true
    )]
    num_request_iterations_for_warmup: i64,
    /// Also run this many steps with zeros before a version serves.
    #[arg(long, default_value_t = 0, value_name = "N")]
    warmup: usize,
    /// How often a version that failed to load is tried again.
    #[arg(long, default_value_t = 5, value_name = "N")]
    max_num_load_retries: u32,
    /// Microseconds between two tries; changed files are tried at once.
    #[arg(
        long,
        default_value_t = 60_000_000,
        value_name = "MICROS",
        allow_hyphen_values = true
    )]
    load_retry_interval_micros: i64,
    /// Versions that are loaded at the same time.
    #[arg(long, default_value_t = 1, value_name = "N")]
    num_load_threads: usize,
    /// Folder for compiled models, so that the next start is faster.
    #[arg(long, value_name = "FOLDER")]
    compiled_cache: Option<PathBuf>,
    /// Refuse models beyond this many megabytes of files in all.
    #[arg(long, value_name = "MB")]
    memory_budget_mb: Option<u64>,
    /// Let labels name versions that are not available.
    #[arg(long)]
    allow_version_labels_for_unavailable_models: bool,
    /// Write outputs as tensor_content instead of typed fields.
    #[arg(long)]
    enable_serialization_as_tensor_content: bool,
    /// Threads that compute [default: all processors].
    #[arg(long, alias = "threads", default_value_t = 0, hide_default_value = true, value_name = "N", value_parser = crate::model::parse_threads)]
    tensorflow_session_parallelism: usize,
    /// Largest accepted request, in bytes [default: no limit for gRPC, 1 GiB for REST].
    #[arg(long, value_name = "BYTES", value_parser = parse_positive)]
    max_message_bytes: Option<usize>,
    /// Most requests that run at the same time [default: no limit].
    #[arg(long, value_name = "N", value_parser = parse_positive)]
    max_concurrent_requests: Option<usize>,
    /// File with a MonitoringConfig in text form.
    #[arg(long, value_name = "FILE")]
    monitoring_config_file: Option<PathBuf>,
    /// File with an SSLConfig in text form: keys and certificates of the gRPC services.
    #[arg(long, value_name = "FILE", conflicts_with = "tls_cert")]
    ssl_config_file: Option<PathBuf>,
    /// PEM file with the certificate of the gRPC services.
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    tls_cert: Option<PathBuf>,
    /// PEM file with the certificate's key.
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    tls_key: Option<PathBuf>,
    /// PEM file with the authorities of client certificates, which are then required.
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    tls_client_ca: Option<PathBuf>,
    /// Encrypt the REST port with the same certificate; client certificates as for gRPC.
    #[arg(long)]
    rest_api_tls: bool,
    /// Send spans of requests to this OpenTelemetry collector: http://HOST:4317, or http://HOST:4318 over HTTP.
    #[arg(long, value_name = "URL")]
    otlp_endpoint: Option<String>,
    /// How the collector receives spans.
    #[arg(
        long,
        value_enum,
        default_value_t = OtlpProtocol::Grpc,
        value_name = "PROTOCOL",
        requires = "otlp_endpoint"
    )]
    otlp_protocol: OtlpProtocol,
    /// PEM file with the authorities of a collector at an https address.
    #[arg(long, value_name = "FILE", requires = "otlp_endpoint")]
    otlp_ca: Option<PathBuf>,
    /// Share of requests that are traced, from 0 to 1; clients that trace decide for their requests.
    #[arg(
        long,
        default_value_t = 1.0,
        value_name = "RATE",
        requires = "otlp_endpoint"
    )]
    trace_rate: f64,
    /// File with a token that requests must carry: Authorization: Bearer TOKEN.
    #[arg(long, value_name = "FILE")]
    bearer_token_file: Option<PathBuf>,
    /// Seconds that running requests may take after SIGTERM.
    #[arg(long, default_value_t = 30, value_name = "SECONDS")]
    drain_seconds: u64,
    /// Write logs as JSON lines.
    #[arg(long)]
    log_json: bool,
}

fn parse_model(text: &str) -> std::result::Result<(String, PathBuf), String> {
    match text.split_once('=') {
        Some((name, path)) if !name.is_empty() && !path.is_empty() => {
            Ok((name.to_string(), path.into()))
        }
        _ => Err("expected NAME=PATH".to_string()),
    }
}

fn seconds(n: i64) -> Duration {
    Duration::from_secs(u64::try_from(n).unwrap_or(0))
}

fn read_file(path: &Path) -> Result<Vec<u8>> {
    std::fs::read(path).map_err(|e| invalid_argument!("cannot read {}: {e}", path.display()))
}

/// Reads a token; with an empty one the server would accept any request.
fn read_token(path: &Path) -> Result<String> {
    let token = String::from_utf8(read_file(path)?).unwrap_or_default();
    match token.trim() {
        "" => Err(invalid_argument!("{} has no token", path.display())),
        token => Ok(token.to_string()),
    }
}

impl Args {
    fn models(&self) -> Result<Vec<ModelSource>> {
        let own = self.model_base_path.as_ref();
        let own = own.map(|path| (self.model_name.clone(), path.clone()));
        let models: Vec<_> = self.model.iter().cloned().chain(own).collect();
        if models.is_empty() && self.model_config_file.is_none() {
            return Err(invalid_argument!(
                "name a model to serve: --model NAME=PATH, --model-base-path or --model-config-file"
            ));
        }
        let sources = models.iter().map(|(name, path)| {
            let path = std::path::absolute(path).unwrap_or_else(|_| path.clone());
            ModelSource::latest(name, &path)
        });
        Ok(sources.collect())
    }

    /// The certificate and the key; a configuration file holds their text.
    fn tls(&self) -> Result<Option<TlsPem>> {
        if let Some((certificate, key)) = self.tls_cert.clone().zip(self.tls_key.clone()) {
            let files = TlsOptions {
                certificate,
                key,
                client_authorities: self.tls_client_ca.clone(),
            };
            return files.read().map(Some);
        }
        let Some(path) = &self.ssl_config_file else {
            return Ok(None);
        };
        let config = read_ssl(path)?;
        let authorities = config.custom_ca.into_bytes();
        Ok(Some(TlsPem {
            certificate: config.server_cert.into_bytes(),
            key: config.server_key.into_bytes(),
            client_authorities: config.client_verify.then_some(authorities),
        }))
    }

    fn traces(&self) -> Result<Option<TraceOptions>> {
        let Some(endpoint) = self.otlp_endpoint.clone() else {
            return Ok(None);
        };
        let authorities = self.otlp_ca.as_deref().map(read_file).transpose()?;
        Ok(Some(TraceOptions {
            endpoint,
            protocol: match self.otlp_protocol {
                OtlpProtocol::Grpc => TraceProtocol::Grpc,
                OtlpProtocol::Http => TraceProtocol::Http,
            },
            rate: self.trace_rate,
            authorities,
        }))
    }

    fn batching(&self, threads: usize) -> Result<Option<(Parameters, bool)>> {
        if self.adaptive_batching {
            return Ok(Some((Parameters::adaptive(threads), false)));
        }
        if !self.enable_batching {
            return Ok(None);
        }
        let proto = match &self.batching_parameters_file {
            Some(file) => read_batching(file)?,
            None => Default::default(),
        };
        let parameters = Parameters::from_proto(&proto, threads)?;
        Ok(Some((
            parameters,
            self.enable_per_model_batching_parameters,
        )))
    }

    fn rest_options(&self) -> Result<RestOptions> {
        let mut metrics_path = "/monitoring/prometheus/metrics".to_string();
        if let Some(file) = &self.monitoring_config_file {
            let path = read_monitoring(file)?.prometheus_config.map(|p| p.path);
            metrics_path = path.filter(|p| p.starts_with('/')).unwrap_or(metrics_path);
        }
        Ok(RestOptions {
            cors: self.rest_api_enable_cors_support,
            max_body: self.max_message_bytes.unwrap_or(1 << 30),
            metrics_path,
            timeout: Duration::from_millis(self.rest_api_timeout_in_ms),
        })
    }

    fn grace(&self) -> Duration {
        Duration::from_secs(self.drain_seconds)
    }

    fn options(&self) -> Result<ServerOptions> {
        let threads = match self.tensorflow_session_parallelism {
            0 => Pool::available_threads(),
            n => n,
        };
        let token = self.bearer_token_file.as_deref().map(read_token);
        let replays = match self.enable_model_warmup {
            true => self.num_request_iterations_for_warmup.max(1),
            false => 0,
        };
        let at = |port: u16| SocketAddr::new(self.host, port);
        let tls = self.tls()?;
        if self.rest_api_tls && tls.is_none() {
            return Err(invalid_argument!(
                "--rest-api-tls needs a certificate: --tls-cert or --ssl-config-file"
            ));
        }
        Ok(ServerOptions {
            grpc: (!self.no_grpc).then(|| at(self.port)),
            rest: (!self.no_rest_api).then(|| at(self.rest_api_port)),
            grpc_socket: self.grpc_socket_path.clone(),
            rest_tls: tls.clone().filter(|_| self.rest_api_tls),
            tls,
            max_message: self.max_message_bytes.unwrap_or(usize::MAX),
            rest_options: self.rest_options()?,
            front: FrontOptions {
                tensor_content: self.enable_serialization_as_tensor_content,
                max_running: self.max_concurrent_requests,
                bearer_token: token.transpose()?,
            },
            manager: ManagerOptions {
                load: LoadOptions {
                    tags: self
                        .saved_model_tags
                        .split(',')
                        .map(ToString::to_string)
                        .collect(),
                    pool: Arc::new(Pool::new(threads)),
                    cache: self.compiled_cache.clone(),
                },
                max_retries: self.max_num_load_retries,
                retry_interval: Duration::from_micros(
                    u64::try_from(self.load_retry_interval_micros).unwrap_or(0),
                ),
                load_threads: self.num_load_threads,
                warmup_steps: self.warmup,
                warmup_replays: usize::try_from(replays).unwrap_or(1),
                memory_budget: self.memory_budget_mb.map(|mb| mb.saturating_mul(1 << 20)),
                labels_need_no_version: self.allow_version_labels_for_unavailable_models,
            },
            batching: self.batching(threads)?,
            models: self.models()?,
            model_config: self.model_config_file.clone(),
            config_poll: seconds(self.model_config_file_poll_wait_seconds),
            version_poll: seconds(self.file_system_poll_wait_seconds),
            traces: self.traces()?,
            grace: self.grace(),
        })
    }
}

/// Runs the command.
pub fn run(args: &Args) -> Result<()> {
    // Memory that the next layer or batch needs again must not go back to the system in between: the system would clear
    // every page of it, which took three quarters of the time of a batch of MobileNetV2.
    ferroflow_tensor::return_freed_memory_after(Duration::from_secs(2));
    start_logging(args.log_json);
    let server = args.options().and_then(Server::bind)?;
    let stop = stop_signal(server.handle(), args.log_json, args.grace());
    let mut out = std::io::stdout();
    let mut say = |line: String| writeln!(out, "{line}").and_then(|()| out.flush());
    // With its output closed the server still runs.
    if let Some(at) = server.grpc_address() {
        let _ = say(format!("GRPC {at}"));
    }
    if let Some(at) = server.rest_address() {
        let scheme = if args.rest_api_tls { "https" } else { "http" };
        let _ = say(format!("REST {scheme}://{at}"));
    }
    tell(args.log_json, "serving; stop it with ^C");
    server.run(stop);
    Ok(())
}

/// The flags of TensorFlow Serving.
#[derive(Parser)]
#[command(name = MODEL_SERVER, version, max_term_width = 100, args_override_self = true)]
struct ModelServer {
    #[command(flatten)]
    args: Args,
}

/// TensorFlow Serving's flags that are switches here.
const SWITCHES: [&str; 7] = [
    "enable-batching",
    "enable-per-model-batching-parameters",
    "rest-api-enable-cors-support",
    "allow-version-labels-for-unavailable-models",
    "enable-serialization-as-tensor-content",
    "log-json",
    "rest-api-tls",
];

/// TensorFlow Serving's flags that have no effect here: they tune what this server does not have.
const IGNORED: [&str; 24] = [
    "enable-grpc-healthcheck-service",
    "enable-profiler",
    "enable-signature-method-name-check",
    "flush-filesystem-caches",
    "grpc-channel-arguments",
    "grpc-max-threads",
    "mixed-precision",
    "num-tflite-interpreters-per-pool",
    "num-tflite-pools",
    "num-unload-threads",
    "per-process-gpu-memory-fraction",
    "prefer-tflite-model",
    "remove-unused-fields-from-bundle-metagraph",
    "rest-api-num-threads",
    "skip-initialize-tpu",
    "tensorflow-inter-op-parallelism",
    "tensorflow-intra-op-parallelism",
    "tensorflow-session-config-file",
    "thread-pool-factory-config-file",
    "use-alts-credentials",
    "xla-cpu-compilation-enabled",
    "xla-gpu-compilation-enabled",
    "platform-config-file",
    "v",
];

/// Translates TensorFlow Serving's flags: `--a_b=c`, switches with `=true` and `=false`. An empty value is none; port 0 serves
/// nothing; of flags that are given twice the last one counts.
fn translated(args: impl Iterator<Item = String>) -> Vec<String> {
    let mut out = vec![MODEL_SERVER.to_string()];
    let (mut has_rest, mut has_grpc) = (false, true);
    let mut switches = BTreeSet::new();
    for arg in args {
        let Some(flag) = arg.strip_prefix("--").or_else(|| arg.strip_prefix('-')) else {
            out.push(arg);
            continue;
        };
        let (name, value) = match flag.split_once('=') {
            Some((name, value)) => (name.replace('_', "-"), Some(value)),
            None => (flag.replace('_', "-"), None),
        };
        if IGNORED.contains(&name.as_str()) {
            eprintln!("note: --{name} has no effect");
            continue;
        }
        match name.as_str() {
            "rest-api-port" => has_rest = value != Some("0"),
            "port" => has_grpc = value != Some("0"),
            _ => {}
        }
        match (SWITCHES.contains(&name.as_str()), value) {
            (true, Some("false" | "0")) => _ = switches.remove(&name),
            (true, _) => _ = switches.insert(name),
            (false, Some("")) => {}
            (false, Some(value)) => out.push(format!("--{name}={value}")),
            (false, None) if name == "enable-model-warmup" => out.push(format!("--{name}=true")),
            (false, None) => out.push(format!("--{name}")),
        }
    }
    out.extend(switches.iter().map(|name| format!("--{name}")));
    if !has_rest {
        out.push("--no-rest-api".to_string());
    }
    if !has_grpc {
        out.push("--no-grpc".to_string());
    }
    out
}

/// Runs as `tensorflow_model_server`, if the binary was called so.
pub fn by_program_name() -> Option<ExitCode> {
    let program = std::env::args_os().next()?;
    let name = Path::new(&program).file_name()?.to_str()?.to_string();
    if name != MODEL_SERVER {
        return None;
    }
    let parsed = ModelServer::parse_from(translated(std::env::args().skip(1)));
    Some(match run(&parsed.args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            println!("Failed to start server. Error: {e}");
            ExitCode::FAILURE
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tensorflow_servings_flags_are_taken() {
        let args = [
            "--port=9000",
            "--rest_api_port=9001",
            "--model_name=half",
            "--model_base_path=/models/half",
            "--enable_batching=true",
            "--rest_api_enable_cors_support=false",
            "--enable_model_warmup=false",
            "--file_system_poll_wait_seconds=0",
            "--grpc_max_threads=8",
            "--flush_filesystem_caches",
        ];
        let parsed = ModelServer::parse_from(translated(args.iter().map(ToString::to_string))).args;
        assert_eq!(
            (parsed.port, parsed.rest_api_port, parsed.no_rest_api),
            (9000, 9001, false)
        );
        assert_eq!(parsed.model_name, "half");
        assert!(parsed.enable_batching && !parsed.rest_api_enable_cors_support);
        assert!(!parsed.enable_model_warmup);
        let sources = parsed.models().unwrap();
        assert_eq!(
            sources[0],
            ModelSource::latest("half", Path::new("/models/half"))
        );
        let rows: [(&[&str], &[&str]); 5] = [
            (
                &["--rest_api_port=0"],
                &["--rest-api-port=0", "--no-rest-api"],
            ),
            (&["--port=0"], &["--port=0", "--no-rest-api", "--no-grpc"]),
            (&["--ssl_config_file="], &["--no-rest-api"]),
            (
                &["--enable_batching", "--enable_batching=false"],
                &["--no-rest-api"],
            ),
            (
                &["--port=0", "--port=1", "--rest_api_port=2"],
                &["--port=0", "--port=1", "--rest-api-port=2"],
            ),
        ];
        for (given, expected) in rows {
            let taken = translated(given.iter().map(ToString::to_string));
            assert_eq!(taken[1..], *expected, "{given:?}");
            ModelServer::parse_from(taken);
        }
        let twice = ["--model_name=a", "--port=8", "--model_name=b", "--port=9"];
        let twice = ModelServer::parse_from(translated(twice.iter().map(ToString::to_string)));
        assert_eq!((twice.args.model_name.as_str(), twice.args.port), ("b", 9));
    }
}
