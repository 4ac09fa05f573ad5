//! The `ferroflow` binary: run, bench, inspect, trace and serve TensorFlow models.
#![forbid(unsafe_code)]

mod bench;
mod compile;
mod draw;
mod feeds;
mod host;
mod image_feed;
mod inspect;
mod inspect_file;
mod model;
mod ops;
mod out;
mod progress;
mod run;
mod saved_model;
mod server;
mod summary;
mod trace;

use clap::{Parser, Subcommand};
use std::process::ExitCode;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Runs TensorFlow graphs without TensorFlow.
///
/// A MODEL is a frozen GraphDef, binary (.pb) or text (.pbtxt), the directory of a SavedModel, or
/// what `compile` made of one of them (.bef). Tensors are named as in TensorFlow: NODE:OUTPUT, or
/// NODE for output 0; of a SavedModel also by the keys of a signature.
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
    Compile(compile::Args),
    Inspect(inspect::Args),
    Ops(ops::Args),
    Trace(trace::Args),
    Server(server::Args),
    /// Translates host programs between MLIR text and BEF; `translate --help` says more.
    #[command(disable_help_flag = true)]
    Translate(HostArgs),
    /// Runs the functions of a BEF file; `exec --help` says more.
    #[command(disable_help_flag = true)]
    Exec(HostArgs),
    /// Checks and prints a host program; `opt --help` says more.
    #[command(disable_help_flag = true)]
    Opt(HostArgs),
}

/// Options as TFRT's tools take them.
#[derive(clap::Args)]
struct HostArgs {
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    args: Vec<String>,
}

fn main() -> ExitCode {
    if let Some(status) = host::by_program_name() {
        return status;
    }
    let result = match Cli::parse().command {
        Command::Run(args) => run::run(&args),
        Command::Bench(args) => bench::run(&args),
        Command::Compile(args) => compile::run(&args),
        Command::Inspect(args) => inspect::run(&args),
        Command::Ops(args) => ops::run(&args),
        Command::Trace(args) => trace::run(&args),
        Command::Server(args) => server::run(&args),
        Command::Translate(args) => return host::finish(host::translate(&args.args)),
        Command::Exec(args) => return host::finish(host::exec(&args.args)),
        Command::Opt(args) => return host::finish(host::opt(&args.args)),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("error: {e}");
            ExitCode::FAILURE
        }
    }
}
