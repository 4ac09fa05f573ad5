//! `cargo xtask interop`: programs of a stock TensorFlow client, against TensorFlow's server and
//! ours.

use crate::{Res, cargo, command};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Creates the Python environment, builds the server, compares, and runs short forms of the scripts for clusters.
pub fn run(root: &Path) -> Res {
    let python = environment(root)?;
    compare(root, &python)
}

/// Like [`run`], but prints a notice and succeeds where TensorFlow cannot be installed.
pub fn run_if_possible(root: &Path) -> Res {
    match environment(root) {
        Ok(python) => compare(root, &python),
        Err(e) => {
            eprintln!("== interoperability SKIPPED: TensorFlow cannot be installed: {e}");
            Ok(())
        }
    }
}

fn compare(root: &Path, python: &Path) -> Res {
    // Built as the tests are: other features would compile everything again.
    let tests = ["test", "--workspace", "--all-targets", "--no-run"];
    cargo("the server", &tests)?;
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or(root.join("target"), PathBuf::from);
    eprintln!("== interoperability");
    let server = target.join("debug/ferroflow");
    let run = |script: &str, more: &[&str]| {
        let mut command = Command::new(python);
        command.arg(root.join("interop").join(script));
        command.arg("--server").arg(&server).args(more);
        crate::command(&mut command)
    };
    run("run.py", &[])?;
    run("cluster_graphs.py", &["--graphs", "12"])?;
    run("cluster_rewrites.py", &[])?;
    run("cluster_faults.py", &["--rounds", "3", "--longest", "3"])?;
    run("ray_cluster.py", &[])
}

/// Returns the Python of a virtual environment with the packages of `requirements.txt`.
fn environment(root: &Path) -> Res<PathBuf> {
    let requirements = root.join("interop/requirements.txt");
    let wanted = fs::read(&requirements).map_err(|e| e.to_string())?;
    let venv = root.join("target/interop-venv");
    let (python, installed) = (venv.join("bin/python"), venv.join("installed.txt"));
    if fs::read(&installed).is_ok_and(|have| have == wanted) {
        return Ok(python);
    }
    command(Command::new("python3").args(["-m", "venv"]).arg(&venv))?;
    let mut pip = Command::new(&python);
    pip.args([
        "-m",
        "pip",
        "install",
        "--quiet",
        "--disable-pip-version-check",
        "-r",
    ]);
    command(pip.arg(&requirements))?;
    fs::write(&installed, wanted).map_err(|e| e.to_string())?;
    Ok(python)
}
