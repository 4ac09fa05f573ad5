//! The `ferroflow` binary: run, bench, inspect and trace TensorFlow models.
#![forbid(unsafe_code)]

mod bench;
mod draw;
mod feeds;
mod image_feed;
mod inspect;
mod model;
mod progress;
mod run;
mod saved_model;
mod summary;
mod trace;

use clap::{Parser, Subcommand};
use std::process::ExitCode;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Runs TensorFlow graphs without TensorFlow.
///
/// A MODEL is a frozen GraphDef, binary (.pb) or text (.pbtxt), or the directory of a SavedModel.
/// Tensors are named as in TensorFlow: NODE:OUTPUT, or NODE for output 0; of a SavedModel also by
/// the keys of a signature.
#[derive(Parser)]
#[command(name = "ferroflow", version, max_term_width = 100)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Run(run::Args),
    Bench(bench::Args),
    Inspect(inspect::Args),
    Trace(trace::Args),
}

fn main() -> ExitCode {
    let result = match Cli::parse().command {
        Command::Run(args) => run::run(&args),
        Command::Bench(args) => bench::run(&args),
        Command::Inspect(args) => inspect::run(&args),
        Command::Trace(args) => trace::run(&args),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("error: {e}");
            ExitCode::FAILURE
        }
    }
}
