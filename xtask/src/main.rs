//! Repository tasks: `cargo xtask test | interop | soak | loom | asan | conformance | tidy |
//! codegen | dist | python`.
#![forbid(unsafe_code)]

mod codegen;
mod conformance;
mod dist;
mod interop;
mod python;
mod tidy;

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

/// A result whose error is a message.
type Res<T = ()> = Result<T, String>;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .expect("xtask is in the root")
        .to_path_buf()
}

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let result = match args.first().map(String::as_str) {
        Some("test") => test(),
        Some("tidy") => tidy::run(&root()),
        Some("codegen") => codegen::run(&root(), codegen::Mode::Write),
        Some("conformance") => conformance::run(args.get(1..).unwrap_or(&[])),
        Some("interop") => interop::run(&root()),
        Some("dist") => dist::run(args.get(1..).unwrap_or(&[])),
        Some("python") => python::run(args.get(1..).unwrap_or(&[])),
        Some("loom") => loom(),
        Some("asan") => asan(),
        Some("soak") => soak(),
        _ => Err(
            "usage: cargo xtask test | interop | soak | loom | asan | conformance | tidy | codegen | \
             dist | python"
                .to_string(),
        ),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("error: {e}");
            ExitCode::FAILURE
        }
    }
}

/// Runs formatting, the repository's own checks, lints, all tests, cargo-deny, loom models,
/// AddressSanitizer and TensorFlow clients.
fn test() -> Res {
    cargo("formatting", &["fmt", "--all", "--check"])?;
    tidy::run(&root())?;
    codegen::run(&root(), codegen::Mode::Check)?;
    cargo(
        "lints",
        &[
            "clippy",
            "--workspace",
            "--all-targets",
            "--",
            "-D",
            "warnings",
        ],
    )?;
    cargo("tests", &["test", "--workspace", "--all-targets"])?;
    cargo(
        "examples in the documentation",
        &["test", "--workspace", "--doc"],
    )?;
    deny_if_installed()?;
    loom()?;
    match asan_works() {
        true => asan()?,
        false => eprintln!("== AddressSanitizer does not work here: its tests are skipped"),
    }
    interop::run_if_possible(&root())?;
    python::run_if_possible()
}

/// Runs the long tests, which are `#[ignore]`d, optimized and one at a time.
fn soak() -> Res {
    let tests = [
        "test",
        "--release",
        "--workspace",
        "--tests",
        "--no-fail-fast",
    ];
    let which = ["--", "--ignored", "--test-threads=1"];
    cargo("long tests", &[&tests[..], &which].concat())
}

/// Runs `cargo deny check` where cargo-deny is installed.
fn deny_if_installed() -> Res {
    let cargo_path = std::env::var("CARGO").unwrap_or_else(|_| "cargo".to_string());
    let version = Command::new(cargo_path)
        .args(["deny", "--version"])
        .output();
    if !version.is_ok_and(|output| output.status.success()) {
        eprintln!("== cargo-deny is not installed: its check is skipped");
        return Ok(());
    }
    cargo("licences, duplicates, advisories", &["deny", "check"])
}

/// Runs the loom models of concurrent code over all interleavings. Builds in a directory of its
/// own because `--cfg loom` changes every crate.
fn loom() -> Res {
    eprintln!("== loom models: cargo xtask loom");
    let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".to_string());
    let status = Command::new(cargo)
        .args([
            "test",
            "-p",
            "ferroflow-sync",
            "--test",
            "loom",
            "--release",
        ])
        .env("RUSTFLAGS", "--cfg loom")
        .env("CARGO_TARGET_DIR", root().join("target/loom"))
        .current_dir(root())
        .status()
        .map_err(|e| format!("cannot start cargo: {e}"))?;
    if status.success() {
        Ok(())
    } else {
        Err("loom found a failing interleaving".to_string())
    }
}

/// Runs tests of the crates with unsafe code, and of their users, under AddressSanitizer, which the
/// stable compiler offers only under `RUSTC_BOOTSTRAP`.
fn asan() -> Res {
    eprintln!("== AddressSanitizer: cargo xtask asan");
    let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".to_string());
    for package in ["sync", "tensor", "program", "executor"] {
        let status = Command::new(&cargo)
            .args(["test", "--lib", "--tests", "--target"])
            .arg("x86_64-unknown-linux-gnu")
            .arg("--package")
            .arg(format!("ferroflow-{package}"))
            .env("RUSTC_BOOTSTRAP", "1")
            .env("RUSTFLAGS", "-Zsanitizer=address --cfg asan")
            .env("CARGO_TARGET_DIR", root().join("target/asan"))
            .current_dir(root())
            .status()
            .map_err(|e| format!("cannot start cargo: {e}"))?;
        if !status.success() {
            return Err(format!("ferroflow-{package} fails under AddressSanitizer"));
        }
    }
    Ok(())
}

/// Returns whether a program can be built and run under AddressSanitizer with leak detection.
fn asan_works() -> bool {
    let folder = root().join("target");
    let (source, program) = (folder.join("asan_works.rs"), folder.join("asan_works"));
    if std::fs::write(&source, "fn main() {}\n").is_err() {
        return false;
    }
    let built = Command::new(std::env::var("RUSTC").unwrap_or_else(|_| "rustc".to_string()))
        .args([
            "-Zsanitizer=address",
            "--target",
            "x86_64-unknown-linux-gnu",
        ])
        .arg("-o")
        .arg(&program)
        .arg(&source)
        .env("RUSTC_BOOTSTRAP", "1")
        .current_dir(root())
        .output();
    let is_built = built.is_ok_and(|output| output.status.success());
    is_built
        && Command::new(program)
            .output()
            .is_ok_and(|output| output.status.success())
}

/// Runs a program and fails if it does.
pub(crate) fn command(command: &mut Command) -> Res {
    let name = command.get_program().to_string_lossy().into_owned();
    match command.status() {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("{name} ended with {status}")),
        Err(e) => Err(format!("cannot start {name}: {e}")),
    }
}

pub(crate) fn cargo(what: &str, args: &[&str]) -> Res {
    eprintln!("== {what}: cargo {}", args.join(" "));
    let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".to_string());
    let status = Command::new(cargo)
        .args(args)
        .current_dir(root())
        .status()
        .map_err(|e| format!("cannot start cargo: {e}"))?;
    if status.success() {
        Ok(())
    } else {
        Err(format!("{what} failed"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn generated_files_are_fresh() {
        codegen::run(&root(), codegen::Mode::Check).expect("fresh");
    }

    #[test]
    fn the_repository_is_tidy() {
        tidy::run(&root()).expect("tidy");
    }
}
