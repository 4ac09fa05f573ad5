//! Repository tasks: `cargo xtask test | interop | soak | loom | asan | conformance | tidy | codegen`.
#![forbid(unsafe_code)]

mod codegen;
mod conformance;
mod interop;
mod tidy;

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

/// What went wrong, for people.
type Res<T = ()> = Result<T, String>;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .expect("xtask lies in the root")
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
        Some("loom") => loom(),
        Some("asan") => asan(),
        Some("soak") => soak(),
        _ => Err(
            "usage: cargo xtask test | interop | soak | loom | asan | conformance | tidy | codegen"
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

/// Formatting, lints, the repository's own checks, every test, the models of what threads share,
/// AddressSanitizer, clients of TensorFlow.
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
    loom()?;
    match asan_works() {
        true => asan()?,
        false => eprintln!("== AddressSanitizer does not work here: its tests are left out"),
    }
    interop::run_if_possible(&root())
}

/// The tests that take long, one after the other, optimized.
fn soak() -> Res {
    let tests = ["test", "--release", "--workspace", "--tests"];
    let which = ["--", "--ignored", "--test-threads=1"];
    cargo("soaks", &[&tests[..], &which].concat())
}

/// The models of what threads share, over every order of their steps. Builds in a folder of its
/// own, for every crate is compiled differently.
fn loom() -> Res {
    eprintln!("== models of what threads share: cargo xtask loom");
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
        Err("loom found an order that fails".to_string())
    }
}

/// Tests of the crates that have unsafe code, and of what runs on it, under AddressSanitizer. The
/// stable compiler has it when it is told to forget that it is stable.
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

/// Whether a program can be built and run under AddressSanitizer, with its search for leaks.
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
