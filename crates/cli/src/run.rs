//! `ferroflow run`.

use crate::model::{ModelArgs, RunArgs};
use crate::out::say;
use crate::progress::Progress;
use crate::summary;
use ferroflow_model::arrays;
use ferroflow_runtime::{DeadnessLog, Result, RunOptions};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// Runs a model once and prints what it computes.
///
/// Examples:
/// ferroflow run digits.pb --feed images=@three.png --image-range 0,1 --fetch probabilities --top 3
/// ferroflow run model.pb --feeds inputs.npz --fetch logits:0 --out result.npz ferroflow run
/// saved_model/ --signature serving_default --feed words='["red", "blue"]'
#[derive(clap::Args)]
#[command(verbatim_doc_comment)]
pub struct Args {
    #[command(flatten)]
    model: ModelArgs,
    #[command(flatten)]
    run: RunArgs,
    /// Writes the fetched tensors to a file, under their names.
    #[arg(long, value_name = "FILE.npz")]
    out: Option<PathBuf>,
    /// Prints the K classes with the highest scores of each row instead of all values.
    #[arg(long, value_name = "K")]
    top: Option<usize>,
    /// Cancels the run after this many seconds.
    #[arg(long, value_name = "SECONDS", value_parser = crate::model::parse_seconds)]
    timeout: Option<f64>,
    /// Prints every node that did not run because of a dead input, and that input, on standard
    /// error.
    #[arg(long)]
    log_deadness: bool,
}

/// Runs the command.
pub fn run(args: &Args) -> Result<()> {
    let results = {
        let _progress = Progress::start("loading and running");
        let model = args.model.open()?;
        let request = args.run.request(&model)?;
        let session = model.session();
        let callable = session.callable(&request.signature)?;
        let timeout = args
            .timeout
            .and_then(|s| Duration::try_from_secs_f64(s).ok());
        let options = RunOptions {
            timeout,
            trace: args.log_deadness.then(|| Arc::new(DeadnessLog) as _),
            ..Default::default()
        };
        let values = session.run_callable(&callable, request.args, &options)?;
        let shown = request.shown;
        let results = request.labels.into_iter().zip(values);
        results
            .filter(|(label, _)| shown.is_empty() || shown.contains(label))
            .collect::<Vec<_>>()
    };
    if let Some(path) = &args.out {
        arrays::write_npz(path, &results)?;
    }
    for (name, value) in &results {
        match args.top {
            Some(k) => {
                say!("{name}  {}{}", value.dtype().numpy_name(), value.shape());
                crate::out::print(format_args!("{}", summary::top(value, k)?));
            }
            None => say!("{}", summary::describe(name, value)),
        }
    }
    if results.is_empty() {
        say!("done: {}", args.run.target.join(", "));
    }
    Ok(())
}
