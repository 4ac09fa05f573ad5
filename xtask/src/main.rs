//! Repository tasks: `cargo xtask test | codegen | tidy`.
#![forbid(unsafe_code)]

mod codegen;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// What went wrong, for people.
type Res<T = ()> = Result<T, String>;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask lies in the root").to_path_buf()
}

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let result = match args.first().map(String::as_str) {
        Some("codegen") => codegen::run(&root(), codegen::Mode::Write),
        _ => Err("usage: cargo xtask <codegen>".to_string()),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("error: {e}");
            ExitCode::FAILURE
        }
    }
}
