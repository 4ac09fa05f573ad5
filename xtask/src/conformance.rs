//! `cargo xtask conformance tfrt --suite DIR [--binary FILE] [--tests FOLDER]`: TFRT's own tests
//! against our programs.
//!
//! Without a FILE the binary is built first. DIR is a checkout of TFRT; by default its
//! `mlir_tests/` and `integrationtest/fizzbuzz/` run. The RUN lines of each test run unchanged,
//! with our binary under TFRT's program names and LLVM's FileCheck (or the `filecheck` package from
//! PyPI) from the PATH.

use crate::{Res, root};
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

const NAMES: &[&str] = &[
    "tfrt_translate",
    "tfrt_opt",
    "bef_executor",
    "bef_executor_lite",
    "bef_executor_debug_tracing",
    "bef_name",
    "code_size_test_driver",
];

/// Runs the suite; returns an error if tests fail.
pub fn run(args: &[String]) -> Res {
    let usage = "usage: cargo xtask conformance tfrt --suite DIR [--binary FILE] [--tests FOLDER]";
    let (mut suite, mut binary, mut folder) = (None, None, None);
    let mut rest = args.strip_prefix(&["tfrt".to_string()]).ok_or(usage)?;
    while let [option, value, others @ ..] = rest {
        match option.as_str() {
            "--suite" => suite = Some(value),
            "--binary" => binary = Some(value),
            "--tests" => folder = Some(value.as_str()),
            _ => return Err(usage.to_string()),
        }
        rest = others;
    }
    let suite = suite.filter(|_| rest.is_empty()).ok_or(usage)?;
    let suite = fs::canonicalize(suite).map_err(|e| format!("{suite}: {e}"))?;
    let binary = match binary {
        Some(binary) => fs::canonicalize(binary).map_err(|e| format!("{binary}: {e}"))?,
        None => {
            // The workspace's features, so that little is compiled twice.
            let build = ["build", "--workspace", "--bin", "ferroflow"];
            crate::cargo("building", &build)?;
            let target = std::env::var_os("CARGO_TARGET_DIR").map(PathBuf::from);
            let target = target.unwrap_or_else(|| root().join("target"));
            target.join("debug/ferroflow")
        }
    };
    let work = root().join("target/conformance");
    let programs = work.join("bin");
    let _ = fs::remove_dir_all(&work);
    fs::create_dir_all(&programs).map_err(|e| e.to_string())?;
    install(&programs, &binary)?;
    let mut tests = Vec::new();
    let folders = match folder {
        Some(folder) => vec![folder],
        None => vec!["mlir_tests", "integrationtest/fizzbuzz"],
    };
    for folder in folders {
        find(&suite.join(folder), &mut tests)?;
    }
    tests.sort();
    let mut failed = 0;
    for test in &tests {
        let name = test.strip_prefix(&suite).unwrap_or(test);
        let problem = one(test, &work.join(name), &programs, &suite)?;
        match &problem {
            None => println!("pass  {}", name.display()),
            Some(problem) => {
                failed += 1;
                println!("FAIL  {}: {problem}", name.display());
            }
        }
    }
    println!("{} of {} tests pass", tests.len() - failed, tests.len());
    match failed {
        0 => Ok(()),
        n => Err(format!("{n} tests fail")),
    }
}

/// Installs our binary under all names, `not`, and FileCheck.
fn install(programs: &Path, binary: &Path) -> Res {
    for name in NAMES {
        symlink(binary, programs.join(name)).map_err(|e| format!("{name}: {e}"))?;
    }
    let not = programs.join("not");
    fs::write(&not, "#!/bin/bash\n! \"$@\"\n").map_err(|e| e.to_string())?;
    fs::set_permissions(&not, fs::Permissions::from_mode(0o755)).map_err(|e| e.to_string())?;
    let candidates = ["FileCheck", "filecheck"].map(String::from);
    let versions = (13..30).rev().map(|v| format!("FileCheck-{v}"));
    let path = std::env::var_os("PATH").unwrap_or_default();
    for name in candidates.into_iter().chain(versions) {
        let found = std::env::split_paths(&path)
            .map(|p| p.join(&name))
            .find(|p| p.is_file());
        if let Some(found) = found {
            return file_check(&found, &programs.join("FileCheck"));
        }
    }
    Err("FileCheck is not in the PATH (apt install llvm, or pip install filecheck)".to_string())
}

/// Wraps FileCheck, dropping the reporting options that the package from PyPI does not know.
fn file_check(found: &Path, script: &Path) -> Res {
    let text = format!(
        "#!/bin/bash\nargs=()\nfor arg in \"$@\"; do\n  case \"$arg\" in\n    \
         -dump-input*|--dump-input*) ;;\n    *) args+=(\"$arg\") ;;\n  esac\ndone\n\
         exec '{}' \"${{args[@]}}\"\n",
        found.display()
    );
    fs::write(script, text).map_err(|e| e.to_string())?;
    let mode = fs::Permissions::from_mode(0o755);
    fs::set_permissions(script, mode).map_err(|e| e.to_string())
}

fn find(folder: &Path, tests: &mut Vec<PathBuf>) -> Res {
    for entry in fs::read_dir(folder).map_err(|e| format!("{}: {e}", folder.display()))? {
        let path = entry.map_err(|e| e.to_string())?.path();
        if path.is_dir() {
            find(&path, tests)?;
        } else if path.extension().is_some_and(|e| e == "mlir") {
            tests.push(path);
        }
    }
    Ok(())
}

/// Translates a test and runs its lines; returns the first failure, if any.
fn one(test: &Path, copy: &Path, programs: &Path, suite: &Path) -> Res<Option<String>> {
    let text = fs::read_to_string(test).map_err(|e| format!("{}: {e}", test.display()))?;
    if let Some(folder) = copy.parent() {
        fs::create_dir_all(folder).map_err(|e| e.to_string())?;
    }
    fs::write(copy, &text).map_err(|e| e.to_string())?;
    let file = copy.display().to_string();
    let bef = copy.with_extension("bef");
    let path = std::env::var("PATH").unwrap_or_default();
    // Streams were added between the two states of TFRT that print differently.
    let has_streams = suite.join("lib/compiler/stream_analysis.cc").is_file();
    let state = if has_streams { "2022" } else { "2021" };
    let shell = |line: &str| {
        let line = format!("set -o pipefail; {line}");
        Command::new("timeout")
            .args(["120", "bash", "-c", &line])
            .env("PATH", format!("{}:{path}", programs.display()))
            .env("FERROFLOW_TFRT_STATE", state)
            .current_dir(suite)
            .stdin(Stdio::null())
            .output()
            .map_err(|e| format!("cannot start bash: {e}"))
    };
    // TFRT's build does this; tests that expect errors have no such file.
    let bef = bef.display();
    let translated = format!("tfrt_translate -mlir-to-bef {file} -o {bef}");
    // Later suites use the file's full name.
    shell(&format!("{translated} && cp {bef} {file}.bef"))?;
    for line in run_lines(&text) {
        let output = shell(&line.replace("%s", &file))?;
        if !output.status.success() {
            let errors = String::from_utf8_lossy(&output.stderr);
            let first = errors.lines().find(|l| l.contains("rror")).unwrap_or("");
            return Ok(Some(format!("{}: {first}", line.trim())));
        }
    }
    Ok(None)
}

/// Returns the lines to run; a line that ends in a backslash continues in the next.
fn run_lines(text: &str) -> Vec<String> {
    let lines = text.lines().filter_map(|l| {
        let comment = l.trim_start().strip_prefix("//")?;
        comment
            .trim_start_matches('/')
            .trim_start()
            .strip_prefix("RUN:")
    });
    let mut all: Vec<String> = Vec::new();
    let mut continues = false;
    for line in lines {
        let part = line.trim_end().trim_end_matches('\\');
        match all.last_mut().filter(|_| continues) {
            Some(last) => last.push_str(part),
            None => all.push(part.to_string()),
        }
        continues = line.trim_end().ends_with('\\');
    }
    all
}

#[cfg(test)]
mod tests {
    use super::run_lines;

    #[test]
    fn lines_to_run_are_found_and_joined() {
        let text = "// RUN: a %s\nx\n// RUN: b \\\n// RUN: | c\n/// RUN: d\n RUN: no";
        assert_eq!(run_lines(text), [" a %s", " b  | c", " d"]);
    }
}
