//! Options shared by commands: the model, and what to run.

use crate::feeds;
use ferroflow_base::{invalid_argument, not_found};
use ferroflow_runtime::{
    CompileJit, CompileOptions, CompiledModel, DEFAULT_SIGNATURE, DType, Graph, Lower,
    ModelSignature, PartialShape, Result, SERVE, SavedModel, Session, SessionOptions, Signature,
    SignatureTensor, StreamDeviceOptions, StreamDevices, Tensor,
};
use std::path::PathBuf;

/// The model and its compile options.
#[derive(Clone, clap::Args)]
pub struct ModelArgs {
    /// A frozen GraphDef (.pb or .pbtxt), the directory of a SavedModel, or a model compiled by
    /// `ferroflow compile` (.bef).
    pub model: PathBuf,
    /// A tag of the graph in a SavedModel; may be repeated. By default `serve`.
    #[arg(long, value_name = "TAG")]
    pub tag: Vec<String>,
    /// Threads to compute with; 0 means all processors.
    #[arg(long, default_value_t = 0, value_name = "N", value_parser = parse_threads)]
    pub threads: usize,
    /// Runs the graph without any compile pass.
    #[arg(long)]
    pub no_optimize: bool,
    /// Lowers If, Case and While to Switch, Merge and loops, which run concurrently with other
    /// nodes.
    #[arg(long)]
    pub lower: bool,
    /// Whether loops, conditionals and groups of ops on scalars and small tensors run as machine code.
    #[arg(long, value_enum, default_value_t = Jit::Auto, value_name = "WHEN")]
    pub jit: Jit,
    /// Disables a compile pass; may be repeated. `inspect --help` lists them.
    #[arg(long, value_name = "PASS")]
    pub disable_pass: Vec<String>,
    /// The devices that nodes may ask for, such as `GPU:1` or `CPU:1,HOST_STREAM:2`; nodes that ask for none are on
    /// the first one that has a kernel for them. A GPU is one of NVIDIA. A HOST_STREAM device computes on a thread of
    /// its own, in memory of its own. Without the option, devices of nodes are ignored.
    #[arg(long, value_name = "KIND:N,...", value_parser = parse_devices)]
    pub devices: Option<DeviceCounts>,
    /// Megabytes of memory of each HOST_STREAM or GPU device; by default 1024, and all that a GPU has.
    #[arg(long, value_name = "MB", requires = "devices")]
    pub device_memory: Option<usize>,
    /// Computes products of floats on GPUs with 23 bits of mantissa instead of 10.
    #[arg(long, requires = "devices")]
    pub no_tf32: bool,
    /// Enqueues each kernel of each step, instead of replaying steps as CUDA graphs.
    #[arg(long, requires = "devices")]
    pub no_capture: bool,
    /// What products of floats are computed in: on GPUs what is around them, too. CPUs with instructions for bf16
    /// multiply by constant weights in it and add in f32; others ignore it. f16 is for GPUs.
    #[arg(long, value_enum, value_name = "DTYPE", conflicts_with = "no_optimize")]
    pub precision: Option<Half>,
}

/// A dtype of half the size of floats.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Half {
    /// As many exponents as floats, 7 bits of mantissa.
    Bf16,
    /// 10 bits of mantissa, up to 65504.
    F16,
}

impl Half {
    fn dtype(self) -> DType {
        match self {
            Half::Bf16 => DType::Bfloat16,
            Half::F16 => DType::Half,
        }
    }
}

/// Whether loops, conditionals and groups of ops on scalars and small tensors run as machine code.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Jit {
    /// Never.
    Off,
    /// Wherever that is possible.
    On,
    /// Where that is expected to be faster.
    Auto,
}

/// Kinds of devices, with the number of each.
#[derive(Clone, Debug)]
pub struct DeviceCounts(Vec<(String, usize)>);

/// Parses `KIND:N,KIND:N`.
pub fn parse_devices(text: &str) -> std::result::Result<DeviceCounts, String> {
    let parse = |part: &str| {
        let (kind, n) = part.split_once(':').unwrap_or((part, "1"));
        let kind = kind.to_uppercase();
        if !matches!(&*kind, "CPU" | "GPU" | "HOST_STREAM") {
            return Err(format!(
                "there are no {kind} devices; there are CPU, GPU and HOST_STREAM"
            ));
        }
        match n.parse() {
            Ok(n) if (1..=64).contains(&n) => Ok((kind, n)),
            _ => Err("expected a number of devices from 1 to 64".to_string()),
        }
    };
    let mut counts = text
        .split(',')
        .map(parse)
        .collect::<std::result::Result<Vec<_>, _>>()?;
    let mut kinds: Vec<&String> = counts.iter().map(|(kind, _)| kind).collect();
    kinds.sort_unstable();
    if kinds.windows(2).any(|pair| pair[0] == pair[1]) {
        return Err("each kind of device may be listed once".to_string());
    }
    if !counts.iter().any(|(kind, _)| kind == "CPU") {
        // For what no other device does.
        counts.push(("CPU".to_string(), 1));
    }
    Ok(DeviceCounts(counts))
}

/// The task of this process in device names.
const TASK: &str = "/job:localhost/replica:0/task:0";

/// Parses a number of threads. More than any machine has processors is a typing error.
pub fn parse_threads(text: &str) -> std::result::Result<usize, String> {
    match text.parse() {
        Ok(n) if n <= 4096 => Ok(n),
        _ => Err("expected a number of at most 4096".to_string()),
    }
}

/// Parses a time in seconds, at most a year.
pub fn parse_seconds(text: &str) -> std::result::Result<f64, String> {
    match text.parse() {
        Ok(s) if (0.0..=365.0 * 86400.0).contains(&s) => Ok(s),
        _ => Err("expected seconds, such as 2.5".to_string()),
    }
}

impl ModelArgs {
    /// Returns the compile options.
    pub fn compile_options(&self) -> CompileOptions {
        CompileOptions {
            optimize: !self.no_optimize,
            disabled: self.disable_pass.clone(),
            lower: match self.lower {
                true => Lower::Always,
                false => Lower::Never,
            },
            jit: match self.jit {
                Jit::Off => CompileJit::Off,
                Jit::On => CompileJit::On,
                Jit::Auto => CompileJit::Auto,
            },
            precision: match self.has_gpus() {
                true => None,
                false => self.precision.map(Half::dtype),
            },
            ..CompileOptions::all()
        }
    }

    /// Opens the model with products in single precision, if that is not how it is opened otherwise.
    pub fn open_exact(&self) -> Result<Option<Model>> {
        let exact = self.precision.map(|_| ModelArgs {
            precision: None,
            ..self.clone()
        });
        exact.map(|args| args.open()).transpose()
    }

    /// Returns whether nodes may be on GPUs.
    pub fn has_gpus(&self) -> bool {
        let counts = self.devices.iter().flat_map(|DeviceCounts(counts)| counts);
        counts.into_iter().any(|(kind, n)| kind == "GPU" && *n > 0)
    }

    /// Opens the model.
    pub fn open(&self) -> Result<Model> {
        let mut options = SessionOptions {
            threads: self.threads,
            compile: self.compile_options(),
            ..Default::default()
        };
        self.add_devices(&mut options)?;
        if self.is_directory() {
            let mut tags: Vec<&str> = self.tag.iter().map(String::as_str).collect();
            if tags.is_empty() {
                tags.push(SERVE);
            }
            return SavedModel::open(&self.model, &tags, options)
                .map(|m| Model::Saved(Box::new(m)));
        }
        if !self.tag.is_empty() {
            return Err(invalid_argument!(
                "--tag is for SavedModels, and {} is not a directory",
                self.model.display()
            ));
        }
        if CompiledModel::is_at(&self.model) {
            return self.open_compiled(options);
        }
        Session::open(&self.model, options).map(|s| Model::Frozen(Box::new(s)))
    }

    fn add_devices(&self, options: &mut SessionOptions) -> Result<()> {
        let Some(DeviceCounts(counts)) = &self.devices else {
            return Ok(());
        };
        options.devices.soft = true;
        for (kind, n) in counts {
            let names = (0..*n).map(|i| format!("{TASK}/device:{kind}:{i}"));
            options.devices.names.extend(names);
            let limit = self.device_memory.map(|mb| mb.saturating_mul(1 << 20));
            let mut of_each = StreamDeviceOptions::default();
            let made = match &**kind {
                "HOST_STREAM" => {
                    of_each.memory_limit = limit;
                    StreamDevices::host_streams(TASK, *n, &of_each)?
                }
                "GPU" => {
                    of_each.memory_limit = limit;
                    ferroflow_runtime::set_tf32(!self.no_tf32);
                    of_each.capture = !self.no_capture;
                    of_each.precision = self.precision.map(Half::dtype);
                    StreamDevices::gpus(TASK, *n, &of_each)?
                }
                _ => continue,
            };
            options.stream_devices = options.stream_devices.with(&made);
        }
        options.devices.kernels = options.stream_devices.kernels();
        Ok(())
    }

    fn open_compiled(&self, options: SessionOptions) -> Result<Model> {
        let changes_passes = self.no_optimize || self.lower || !self.disable_pass.is_empty();
        if changes_passes || self.precision.is_some() {
            return Err(invalid_argument!(
                "{} is already compiled: --no-optimize, --lower, --disable-pass and --precision are options \
                 of `ferroflow compile`",
                self.model.display()
            ));
        }
        let model = CompiledModel::open(&self.model, options)?;
        if !model.is_packed() {
            eprintln!(
                "note: {} was compiled for another kind of machine; its weights are packed anew",
                self.model.display()
            );
        }
        Ok(Model::Compiled(Box::new(model)))
    }

    /// Returns whether the model is a SavedModel.
    pub fn is_directory(&self) -> bool {
        self.model.is_dir()
    }
}

/// An opened model.
pub enum Model {
    /// A frozen graph.
    Frozen(Box<Session>),
    /// A SavedModel, ready to run.
    Saved(Box<SavedModel>),
    /// One signature, compiled earlier.
    Compiled(Box<CompiledModel>),
}

impl Model {
    /// Returns the session that runs it.
    pub fn session(&self) -> &Session {
        match self {
            Model::Frozen(session) => session,
            Model::Saved(model) => model.session(),
            Model::Compiled(model) => model.session(),
        }
    }

    /// Returns dtype and shape of a tensor to feed, as far as the model declares them.
    fn tensor(&self, name: &str) -> Result<(DType, PartialShape)> {
        if let Model::Compiled(model) = self {
            let ports = model.ports();
            let port = ports.inputs.iter().find(|p| same_tensor(&p.name, name));
            return match port {
                Some(port) => Ok((port.dtype, port.shape.clone())),
                None => Err(not_found!(
                    "--feed {name}: the model was not compiled for it"
                )),
            };
        }
        let graph = self.session().graph();
        let output = graph.find_output(name, "--feed")?;
        let node = graph.node(output.node);
        let shape = node.attrs.shape("shape").cloned().unwrap_or_default();
        match graph.dtype(output) {
            Some(dtype) => Ok((dtype, shape)),
            None => Err(not_found!("--feed {name}: not found in the graph")),
        }
    }

    /// Returns the signature to run: the selected one, or the default one of a SavedModel if there
    /// are no fetches.
    pub fn signature(
        &self,
        name: Option<&str>,
        fetches: &[String],
        targets: &[String],
    ) -> Result<Option<&ModelSignature>> {
        let model = match (self, name) {
            (Model::Saved(model), _) => model,
            (_, Some(_)) => return Err(invalid_argument!("--signature is for SavedModels")),
            (Model::Frozen(_), None) => return Ok(None),
            (Model::Compiled(model), None) => return Ok(Some(model.ports())),
        };
        let name = match name {
            Some(name) => name,
            None if !targets.is_empty() => return Ok(None),
            None if !model.signatures().contains_key(DEFAULT_SIGNATURE) => {
                let names: Vec<&str> = model.signatures().keys().map(String::as_str).collect();
                return match fetches.is_empty() {
                    false => Ok(None),
                    true => Err(invalid_argument!(
                        "the model has no signature '{DEFAULT_SIGNATURE}'; name one with --signature: {}",
                        names.join(", ")
                    )),
                };
            }
            None => DEFAULT_SIGNATURE,
        };
        let signature = model.signature(name)?;
        model.check(signature)?;
        Ok(Some(signature))
    }
}

/// The feeds, fetches and targets of a run.
#[derive(clap::Args)]
pub struct RunArgs {
    /// The signature of a SavedModel whose keys --feed and --fetch may use. By default
    /// `serving_default`; without --fetch, all its outputs are fetched.
    #[arg(long, value_name = "NAME")]
    pub signature: Option<String>,
    /// Feeds a tensor: NAME=VALUE, where VALUE is a literal such as `3.5`, `true`, `"text"` or
    /// `[[1,2],[3,4]]`, or @file.npy, @file.npz:key, or an image @file.png or @file.jpg, which is
    /// resized to the placeholder's shape. A string input takes the bytes of any other @file.
    #[arg(long, value_name = "NAME=VALUE")]
    pub feed: Vec<String>,
    /// Feeds every array of the file whose key names a tensor of the model.
    #[arg(long, value_name = "FILE.npz")]
    pub feeds: Option<PathBuf>,
    /// Fetches a tensor; may be repeated. Without --fetch and --target, the outputs of the model
    /// are fetched: those of nodes that no other node reads.
    #[arg(long, value_name = "NAME")]
    pub fetch: Vec<String>,
    /// Runs a node for its effects; may be repeated.
    #[arg(long, value_name = "OP")]
    pub target: Vec<String>,
    /// Runs a node once before everything else, such as an initializer of variables; may be
    /// repeated.
    #[arg(long, value_name = "OP")]
    pub init: Vec<String>,
    /// Pixel values of images are scaled from 0…255 to this range.
    #[arg(long, value_name = "LO,HI", default_value = "0,255", value_parser = parse_range, allow_hyphen_values = true)]
    pub image_range: (f32, f32),
}

fn parse_range(text: &str) -> std::result::Result<(f32, f32), String> {
    let (lo, hi) = text.split_once(',').ok_or("expected LO,HI")?;
    let number = |s: &str| s.trim().parse::<f32>().map_err(|e| e.to_string());
    match (number(lo)?, number(hi)?) {
        (lo, hi) if lo.is_finite() && hi.is_finite() => Ok((lo, hi)),
        _ => Err("expected two finite numbers".to_string()),
    }
}

/// The value of an input that is not fed.
pub type DefaultFeed<'a> = dyn Fn(&str, DType, &PartialShape) -> Result<Tensor> + 'a;

/// A resolved run, ready to be compiled.
pub struct Request {
    /// Names of feeds, fetches and targets.
    pub signature: Signature,
    /// Labels of the fetches in results.
    pub labels: Vec<String>,
    /// Labels to show; all if empty.
    pub shown: Vec<String>,
    /// Values of the feeds, in order.
    pub args: Vec<Tensor>,
}

impl RunArgs {
    /// Returns a run with feeds that fetches all outputs.
    pub fn of_feeds(feed: Vec<String>, feeds: Option<PathBuf>) -> RunArgs {
        RunArgs {
            signature: None,
            feed,
            feeds,
            fetch: Vec::new(),
            target: Vec::new(),
            init: Vec::new(),
            image_range: (0.0, 255.0),
        }
    }

    /// Returns whether no option was given.
    pub fn is_default(&self) -> bool {
        let lists = [&self.feed, &self.fetch, &self.target, &self.init];
        self.signature.is_none() && self.feeds.is_none() && lists.iter().all(|l| l.is_empty())
    }

    /// Runs the initializers, reads the feeds and resolves the names.
    pub fn request(&self, model: &Model) -> Result<Request> {
        self.request_or(model, None)
    }

    /// Like [`RunArgs::request`]; `default`, if any, returns the values of inputs that are not fed, by name, dtype and shape.
    pub fn request_or(&self, model: &Model, default: Option<&DefaultFeed>) -> Result<Request> {
        let session = model.session();
        if !self.init.is_empty() {
            let init: Vec<&str> = self.init.iter().map(String::as_str).collect();
            session.run(&[], &[], &init)?;
        }
        let by_key = model.signature(self.signature.as_deref(), &self.fetch, &self.target)?;
        let input = |key: &str| {
            let input = by_key.and_then(|s| s.input(key));
            input.map_or(key, |i| i.name.as_str()).to_string()
        };
        let mut feeds = feeds::read(
            &|name| model.tensor(name),
            &input,
            &self.feed,
            self.feeds.as_deref(),
            self.image_range,
        )?;
        let mut labels = self.fetch.clone();
        if labels.is_empty() && self.target.is_empty() {
            labels = match by_key {
                Some(signature) => signature.outputs.iter().map(|o| o.key.clone()).collect(),
                None => ferroflow_runtime::outputs(&session.graph()),
            };
        }
        let output = |key: &String| {
            let output = by_key.and_then(|s| s.output(key));
            output.map_or(key, |o| &o.name).clone()
        };
        let fetches = labels.iter().map(output).collect();
        if let Some(signature) = by_key {
            for input in &signature.inputs {
                if let Some(default) = signature.defaults.get(&input.key)
                    && !feeds.iter().any(|(name, _)| *name == input.name)
                {
                    feeds.push((input.name.clone(), default.clone()));
                }
            }
        }
        if let Some(default) = default {
            let declared = match by_key {
                Some(signature) => {
                    let inputs = signature.inputs.iter();
                    inputs
                        .map(|i| (i.name.clone(), i.dtype, i.shape.clone()))
                        .collect()
                }
                None => placeholders(&session.graph()),
            };
            for (name, dtype, shape) in declared {
                if !feeds.iter().any(|(fed, _)| same_tensor(fed, &name)) {
                    let value = default(&name, dtype, &shape)?;
                    feeds.push((name, value));
                }
            }
        }
        if let Model::Compiled(compiled) = model {
            return self.compiled(compiled, feeds, labels);
        }
        let (names, args) = feeds.into_iter().unzip();
        Ok(Request {
            shown: Vec::new(),
            signature: Signature {
                feeds: names,
                fetches,
                targets: self.target.clone(),
            },
            labels,
            args,
        })
    }

    /// Returns a run of a compiled model, which always computes all its fetches.
    fn compiled(
        &self,
        model: &CompiledModel,
        feeds: Vec<(String, Tensor)>,
        shown: Vec<String>,
    ) -> Result<Request> {
        let ports = model.ports();
        if *model.signature().targets != self.target[..] && !self.target.is_empty() {
            return Err(invalid_argument!(
                "the model was compiled for other targets: {}",
                model.signature().targets.join(", ")
            ));
        }
        let key = |name: &String| {
            let mut outputs = ports.outputs.iter();
            let output = outputs.find(|o| same_tensor(&o.key, name) || same_tensor(&o.name, name));
            output.map(|o| o.key.clone()).ok_or_else(|| {
                let keys: Vec<&str> = ports.outputs.iter().map(|o| o.key.as_str()).collect();
                let keys = keys.join(", ");
                not_found!("--fetch {name}: the model was compiled for: {keys}")
            })
        };
        let value = |port: &SignatureTensor| {
            let fed = feeds.iter().find(|(name, _)| same_tensor(name, &port.name));
            fed.map(|(_, value)| value.clone()).ok_or_else(|| {
                let keys: Vec<&str> = ports.inputs.iter().map(|i| i.key.as_str()).collect();
                invalid_argument!("the model must be fed: {}", keys.join(", "))
            })
        };
        Ok(Request {
            shown: shown.iter().map(key).collect::<Result<_>>()?,
            signature: model.signature().clone(),
            labels: ports.outputs.iter().map(|o| o.key.clone()).collect(),
            args: ports.inputs.iter().map(value).collect::<Result<_>>()?,
        })
    }
}

/// Returns the placeholders without a default value: name, dtype and shape.
fn placeholders(graph: &Graph) -> Vec<(String, DType, PartialShape)> {
    let nodes = graph.iter().map(|(_, node)| node);
    let inputs = nodes.filter(|node| matches!(node.op(), "Placeholder" | "PlaceholderV2"));
    let declared = inputs.map(|node| {
        let shape = node.attrs.shape("shape").cloned().unwrap_or_default();
        (format!("{}:0", node.name), node.outputs[0], shape)
    });
    declared.collect()
}

/// Returns whether two names mean the same tensor: `:0` is optional.
fn same_tensor(a: &str, b: &str) -> bool {
    a.trim_end_matches(":0") == b.trim_end_matches(":0")
}
