//! The `ferroflow` binary: run, bench, inspect, trace and serve TensorFlow models.
#![forbid(unsafe_code)]

mod bench;
mod cluster;
mod compile;
mod devices;
mod draw;
mod feeds;
mod host;
mod image_feed;
mod inspect;
mod inspect_file;
mod memory;
mod model;
mod ops;
mod out;
mod place;
mod progress;
mod run;
mod saved_model;
mod serve;
mod server;
mod summary;
mod trace;

use clap::{Parser, Subcommand};
use std::process::ExitCode;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Runs TensorFlow graphs without TensorFlow.
///
/// A MODEL is a frozen GraphDef, binary (.pb) or text (.pbtxt), the directory of a SavedModel, or a
/// model compiled by `compile` (.bef). Tensors are named as in TensorFlow: NODE:OUTPUT, or NODE for
/// output 0; in a SavedModel also by the keys of a signature.
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
    Devices(devices::Args),
    Trace(trace::Args),
    Serve(Box<serve::Args>),
    Server(Box<server::Args>),
    #[command(subcommand)]
    Cluster(cluster::Command),
    /// Translates host programs between MLIR text and BEF; see `translate --help`.
    #[command(disable_help_flag = true)]
    Translate(HostArgs),
    /// Runs the functions of a BEF file; see `exec --help`.
    #[command(disable_help_flag = true)]
    Exec(HostArgs),
    /// Checks and prints a host program; see `opt --help`.
    #[command(disable_help_flag = true)]
    Opt(HostArgs),
}

/// Options in the style of TFRT's tools.
#[derive(clap::Args)]
struct HostArgs {
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    args: Vec<String>,
}

fn main() -> ExitCode {
    if let Some(status) = host::by_program_name().or_else(serve::by_program_name) {
        return status;
    }
    let result = match Cli::parse().command {
        Command::Run(args) => run::run(&args),
        Command::Bench(args) => bench::run(&args),
        Command::Compile(args) => compile::run(&args),
        Command::Inspect(args) => inspect::run(&args),
        Command::Ops(args) => ops::run(&args),
        Command::Devices(args) => devices::run(&args),
        Command::Trace(args) => trace::run(&args),
        Command::Serve(args) => serve::run(&args),
        Command::Server(args) => server::run(&args),
        Command::Cluster(command) => cluster::run(&command),
        Command::Translate(args) => return host::finish(host::translate(&args.args)),
        Command::Exec(args) => return host::finish(host::exec(&args.args)),
        Command::Opt(args) => return host::finish(host::opt(&args.args)),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("error: {e}");
            if e.message().contains("Op type not registered") {
                eprintln!("`ferroflow inspect` lists everything in a model that is not supported");
            }
            ExitCode::FAILURE
        }
    }
}
