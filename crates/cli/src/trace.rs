//! `ferroflow trace`.

use crate::model::{ModelArgs, RunArgs};
use crate::out::say;
use ferroflow_runtime::{ChromeTrace, Result, RunOptions};
use std::path::PathBuf;
use std::sync::Arc;

/// Writes a trace of one step for chrome://tracing or ui.perfetto.dev, and prints time by op.
#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    model: ModelArgs,
    #[command(flatten)]
    run: RunArgs,
    /// Output file.
    #[arg(long, value_name = "FILE.json", default_value = "trace.json")]
    out: PathBuf,
    /// Untraced runs before the traced one.
    #[arg(long, value_name = "N", default_value_t = 3)]
    warmup: usize,
}

/// Runs the command.
pub fn run(args: &Args) -> Result<()> {
    let model = args.model.open()?;
    let session = model.session();
    let request = args.run.request(&model)?;
    let callable = session.callable(&request.signature)?;
    for _ in 0..args.warmup {
        session.run_callable(&callable, request.args.clone(), &RunOptions::default())?;
    }
    let trace = Arc::new(ChromeTrace::default());
    let options = RunOptions {
        trace: Some(trace.clone()),
        ..Default::default()
    };
    session.run_callable(&callable, request.args, &options)?;
    ferroflow_model::write_output(&args.out, trace.to_json().as_bytes())?;
    say!("{:<28} {:>7} {:>12}", "op", "calls", "µs");
    for (op, calls, us) in trace.by_op() {
        say!("{op:<28} {calls:>7} {us:>12.1}");
    }
    say!(
        "{} kernel calls written to {}",
        trace.len(),
        args.out.display()
    );
    Ok(())
}
