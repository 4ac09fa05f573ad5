//! `ferroflow compile`.

use crate::model::{Model, ModelArgs};
use crate::out::say;
use crate::progress::Progress;
use crate::summary;
use ferroflow_base::invalid_argument;
use ferroflow_runtime::{
    Calibration, CompileRequest, CompiledModel, Precision, Result, RunOptions, SessionOptions,
    Signature, Tensor, arrays, outputs, placeholders,
};
use std::path::{Path, PathBuf};

/// Compiles a model into one file that `run`, `bench` and `trace` open quickly.
///
/// The file holds the optimized graph and its weights in the layout of this machine's kernels;
/// other machines reorder them when they open it.
///
/// Examples:
///   ferroflow compile resnet50.pb -o resnet50.bef
///   ferroflow compile model.pb -o model.bef --feed x --feed mask --fetch logits:0
///   ferroflow compile saved_model/ -o model.bef --signature serving_default
///   ferroflow compile resnet50.pb -o small.bef --weights int8 --check images.npz
///   ferroflow compile resnet50.pb -o fast.bef --int8 --calibrate images.npz
#[derive(clap::Args)]
#[command(verbatim_doc_comment)]
pub struct Args {
    #[command(flatten)]
    model: ModelArgs,
    /// Output file.
    #[arg(short, long, value_name = "FILE.bef")]
    out: PathBuf,
    /// The signature of a SavedModel; `serving_default` by default.
    #[arg(long, value_name = "NAME")]
    signature: Option<String>,
    /// A tensor to be fed; may be repeated. By default the placeholders that the fetches need.
    #[arg(long, alias = "feeds", value_name = "NAME", value_delimiter = ',')]
    feed: Vec<String>,
    /// A tensor to be fetched; may be repeated. By default the model's outputs.
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    fetch: Vec<String>,
    /// A node to be run for its effects; may be repeated.
    #[arg(long, value_name = "OP")]
    target: Vec<String>,
    /// Leaves packed weights out: a smaller file that takes longer to open.
    #[arg(long)]
    plain: bool,
    /// Stores the weights of products and convolutions in fewer bits: a smaller file with less exact
    /// results. int8 has a scale for each output channel.
    #[arg(long, value_enum, default_value_t = Weights::F32)]
    weights: Weights,
    /// Runs products and convolutions on 8-bit codes, with less exact results, where the ranges of their
    /// inputs are known: from FakeQuant nodes and the like, and from `--calibrate`.
    #[arg(long)]
    int8: bool,
    /// Feeds, by tensor name or key, that show the ranges of tensors for `--int8`, and for which the
    /// compiled model is compared with the original, as by `--check`.
    #[arg(long, value_name = "FILE.npz", requires = "int8")]
    calibrate: Option<PathBuf>,
    /// Runs convolutions that expand a tensor of few channels with numbers on both sides of zero, such as a
    /// linear bottleneck, on two codes of each number: closer results in up to 1.3 times the time.
    #[arg(long, requires = "calibrate")]
    two_codes: bool,
    /// Feeds, by tensor name or key, for which the compiled model is compared with the original:
    /// the largest and the mean difference, and how often the largest score is the same.
    #[arg(long, value_name = "FILE.npz")]
    check: Option<PathBuf>,
}

/// How weights are stored.
#[derive(Clone, Copy, clap::ValueEnum)]
enum Weights {
    F32,
    F16,
    Bf16,
    Int8,
}

impl Weights {
    fn precision(self) -> Precision {
        match self {
            Weights::F32 => Precision::Full,
            Weights::F16 => Precision::Half,
            Weights::Bf16 => Precision::Bfloat16,
            Weights::Int8 => Precision::Int8,
        }
    }
}

/// Runs the command.
pub fn run(args: &Args) -> Result<()> {
    let progress = Progress::start("compiling");
    let model = args.model.open()?;
    if let Model::Compiled(_) = model {
        let path = args.model.model.display();
        return Err(invalid_argument!("{path} is already compiled"));
    }
    if args.model.precision.is_some() && args.model.has_gpus() {
        return Err(invalid_argument!(
            "a compiled model is for the CPU: --precision goes without GPUs in --devices"
        ));
    }
    let mut request = args.request(&model)?;
    if args.int8 {
        let feeds = args.calibrate.iter().map(|f| read_feeds(&request, f));
        let feeds = feeds.collect::<Result<_>>()?;
        request.int8 = Some(Calibration {
            feeds,
            two_codes: args.two_codes,
        });
    }
    model.session().compile_to(&args.out, &request)?;
    drop(progress);
    let size = std::fs::metadata(&args.out).map_or(0, |m| m.len());
    say!(
        "{}: {:.1} MB; inputs {}; outputs {}",
        args.out.display(),
        size as f64 / 1e6,
        listed(&request.feed_keys, &request.signature.feeds),
        listed(&request.fetch_keys, &request.signature.fetches),
    );
    match args.check.as_ref().or(args.calibrate.as_ref()) {
        Some(feeds) => {
            let exact = args.model.open_exact()?;
            args.compare(exact.as_ref().unwrap_or(&model), &request, feeds)
        }
        None => Ok(()),
    }
}

fn listed(keys: &[String], names: &[String]) -> String {
    match if keys.is_empty() { names } else { keys } {
        [] => "nothing".to_string(),
        list => list.join(", "),
    }
}

impl Args {
    fn request(&self, model: &Model) -> Result<CompileRequest> {
        let session = model.session();
        let signature = model.signature(self.signature.as_deref(), &self.fetch, &self.target)?;
        let (mut feed_keys, mut fetch_keys) = (self.feed.clone(), self.fetch.clone());
        let Some(signature) = signature else {
            if fetch_keys.is_empty() && self.target.is_empty() {
                fetch_keys = outputs(&session.graph());
            }
            let missing = placeholders(&session.graph(), &feed_keys, &fetch_keys, &self.target)?;
            if feed_keys.is_empty() {
                feed_keys = missing;
            } else if !missing.is_empty() {
                return Err(invalid_argument!(
                    "the fetches need more feeds: add --feed {}",
                    missing.join(" --feed ")
                ));
            }
            let signature = Signature {
                feeds: feed_keys,
                fetches: fetch_keys,
                targets: self.target.clone(),
            };
            return Ok(CompileRequest {
                signature,
                plain: self.plain,
                weights: self.weights.precision(),
                ..Default::default()
            });
        };
        if feed_keys.is_empty() {
            feed_keys = signature.inputs.iter().map(|i| i.key.clone()).collect();
        }
        if fetch_keys.is_empty() {
            fetch_keys = signature.outputs.iter().map(|o| o.key.clone()).collect();
        }
        let feed = |key: &String| signature.input(key).map_or(key, |i| &i.name).clone();
        let fetch = |key: &String| signature.output(key).map_or(key, |o| &o.name).clone();
        Ok(CompileRequest {
            signature: Signature {
                feeds: feed_keys.iter().map(feed).collect(),
                fetches: fetch_keys.iter().map(fetch).collect(),
                targets: self.target.clone(),
            },
            feed_keys,
            fetch_keys,
            plain: self.plain,
            weights: self.weights.precision(),
            int8: None,
        })
    }

    /// Prints how the results of the written file differ from those of the model it was made of.
    fn compare(&self, model: &Model, request: &CompileRequest, feeds: &Path) -> Result<()> {
        let args = read_feeds(request, feeds)?;
        let signature = &request.signature;
        let options = RunOptions::default();
        let session = model.session();
        let callable = session.callable(signature)?;
        let exact = session.run_callable(&callable, args.clone(), &options)?;
        let file = CompiledModel::open(&self.out, SessionOptions::default())?;
        let made = file
            .session()
            .run_callable(file.callable(), args, &options)?;
        for ((name, exact), made) in signature.fetches.iter().zip(&exact).zip(&made) {
            if let Some(line) = summary::differences(exact, made) {
                say!("{name}: {line}");
            }
        }
        Ok(())
    }
}

/// Reads the feeds of a signature from a file of arrays.
fn read_feeds(request: &CompileRequest, feeds: &Path) -> Result<Vec<Tensor>> {
    let given = arrays::npz_keys(feeds)?;
    let mut args = Vec::new();
    for (i, name) in request.signature.feeds.iter().enumerate() {
        let is_it = |key: &&String| {
            let bare = |name: &str| name.trim_end_matches(":0").to_string();
            bare(key) == bare(name) || request.feed_keys.get(i) == Some(key)
        };
        let key = given
            .iter()
            .find(is_it)
            .ok_or_else(|| invalid_argument!("{} has no array for '{name}'", feeds.display()))?;
        args.push(arrays::read_npz_key(feeds, key)?);
    }
    Ok(args)
}
