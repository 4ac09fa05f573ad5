//! Options that name a model and what to run of it, shared by the commands.

use crate::feeds;
use ferroflow_runtime::{CompileOptions, Result, Session, SessionOptions, Signature, Tensor};
use std::path::PathBuf;

/// The model and how it is compiled.
#[derive(clap::Args)]
pub struct ModelArgs {
    /// A frozen GraphDef: .pb or .pbtxt.
    pub model: PathBuf,
    /// Threads that compute; 0 means all processors.
    #[arg(long, default_value_t = 0, value_name = "N")]
    pub threads: usize,
    /// Runs the graph as it is, without any compile pass.
    #[arg(long)]
    pub no_optimize: bool,
    /// Leaves one compile pass out; may be repeated. `inspect --help` lists them.
    #[arg(long, value_name = "PASS")]
    pub disable_pass: Vec<String>,
}

impl ModelArgs {
    /// The compile options.
    pub fn compile_options(&self) -> CompileOptions {
        CompileOptions {
            optimize: !self.no_optimize,
            disabled: self.disable_pass.clone(),
        }
    }

    /// Opens the model.
    pub fn open(&self) -> Result<Session> {
        let options = SessionOptions {
            threads: self.threads,
            compile: self.compile_options(),
        };
        Session::open(&self.model, options)
    }
}

/// What to feed, fetch and run.
#[derive(clap::Args)]
pub struct RunArgs {
    /// Feeds a tensor: NAME=VALUE, where VALUE is a literal such as 3.5, true or [[1,2],[3,4]], or
    /// @file.npy, @file.npz:key, or an image @file.png or @file.jpg, which is resized to the
    /// placeholder's shape.
    #[arg(long, value_name = "NAME=VALUE")]
    pub feed: Vec<String>,
    /// Feeds every array of the file whose key names a tensor of the model.
    #[arg(long, value_name = "FILE.npz")]
    pub feeds: Option<PathBuf>,
    /// Fetches a tensor; may be repeated. Without it (and without --target) the outputs of the
    /// model are fetched: tensors that no other node reads.
    #[arg(long, value_name = "NAME")]
    pub fetch: Vec<String>,
    /// Runs a node for its effects; may be repeated.
    #[arg(long, value_name = "OP")]
    pub target: Vec<String>,
    /// Pixel values of images are scaled from 0…255 to this range.
    #[arg(long, value_name = "LO,HI", default_value = "0,255", value_parser = parse_range)]
    pub image_range: (f32, f32),
}

fn parse_range(text: &str) -> std::result::Result<(f32, f32), String> {
    let (lo, hi) = text.split_once(',').ok_or("expected LO,HI")?;
    let number = |s: &str| s.trim().parse::<f32>().map_err(|e| e.to_string());
    Ok((number(lo)?, number(hi)?))
}

/// A run, ready to be compiled.
pub struct Request {
    /// Names.
    pub signature: Signature,
    /// Values of the feeds, in order.
    pub args: Vec<Tensor>,
}

impl RunArgs {
    /// Reads the feeds and settles the names.
    pub fn request(&self, session: &Session) -> Result<Request> {
        let feeds = feeds::read(session, &self.feed, self.feeds.as_deref(), self.image_range)?;
        let mut fetches = self.fetch.clone();
        if fetches.is_empty() && self.target.is_empty() {
            fetches = crate::inspect::outputs(session.graph());
        }
        let (names, args) = feeds.into_iter().unzip();
        Ok(Request {
            signature: Signature {
                feeds: names,
                fetches,
                targets: self.target.clone(),
            },
            args,
        })
    }
}
