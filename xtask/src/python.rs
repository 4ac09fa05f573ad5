//! `cargo xtask python [--release]`: builds the Python package in a virtual environment of its own and runs
//! its tests.

use crate::{Res, command, root};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// What building and testing need.
const PACKAGES: [&str; 3] = ["maturin>=1.7,<2", "numpy>=1.26", "ml_dtypes>=0.4"];

/// Builds and tests; `--release` makes the wheel that is published.
///
/// # Errors
/// What failed.
pub fn run(args: &[String]) -> Res {
    let is_release = match args {
        [] => false,
        [flag] if flag == "--release" => true,
        _ => return Err("usage: cargo xtask python [--release]".to_string()),
    };
    let python = environment()?;
    test(&python, is_release)
}

/// Like [`run`], but prints a notice and succeeds where no Python or no package index is available.
///
/// # Errors
/// What failed.
pub fn run_if_possible() -> Res {
    match environment() {
        Ok(python) => test(&python, false),
        Err(e) => {
            eprintln!("== the Python package SKIPPED: {e}");
            Ok(())
        }
    }
}

fn target() -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or(root().join("target"), PathBuf::from)
}

fn test(python: &Path, is_release: bool) -> Res {
    eprintln!("== the Python package");
    let profile = if is_release { "release" } else { "dev" };
    let wheels = target().join("wheels").join(profile);
    if wheels.exists() {
        fs::remove_dir_all(&wheels).map_err(|e| format!("{}: {e}", wheels.display()))?;
    }
    let mut maturin = Command::new(python);
    maturin.args(["-m", "maturin", "build", "--profile", profile, "--out"]);
    maturin.arg(&wheels).arg("--interpreter").arg(python);
    // Wheels of the dev profile are not published: their library need not fit old systems.
    if !is_release {
        maturin.args(["--compatibility", "linux"]);
    }
    command(maturin.current_dir(root().join("crates/python")))?;
    let mut install = Command::new(python);
    install.args([
        "-m",
        "pip",
        "install",
        "--quiet",
        "--disable-pip-version-check",
    ]);
    install.args([
        "--force-reinstall",
        "--no-deps",
        "--no-index",
        "--find-links",
    ]);
    command(install.arg(&wheels).arg("ferroflow"))?;
    let tests = root().join("crates/python/tests/run.py");
    command(Command::new(python).arg(tests))
}

/// Returns the Python of a virtual environment with [`PACKAGES`].
fn environment() -> Res<PathBuf> {
    let venv = target().join("python-venv");
    let (python, installed) = (venv.join("bin/python"), venv.join("installed.txt"));
    let wanted = PACKAGES.join("\n");
    if fs::read_to_string(&installed).is_ok_and(|have| have == wanted) {
        return Ok(python);
    }
    let base = std::env::var("PYTHON").unwrap_or_else(|_| "python3".to_string());
    command(Command::new(base).args(["-m", "venv"]).arg(&venv))?;
    let mut pip = Command::new(&python);
    pip.args([
        "-m",
        "pip",
        "install",
        "--quiet",
        "--disable-pip-version-check",
    ]);
    command(pip.args(PACKAGES))?;
    fs::write(&installed, wanted).map_err(|e| e.to_string())?;
    Ok(python)
}
