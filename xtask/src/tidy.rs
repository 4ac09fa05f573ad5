//! Rules of the repository that no compiler checks.
//!
//! - Crates import only the rooms that the table in ARCHITECTURE.md allows them, dev-dependencies
//!   included, and every crate has a row and a section there, a description and a README.
//! - Every source file starts with `//!` and, except for [`LONG`], has at most [`MAX_LINES`] lines.
//! - `unsafe` appears only in the rooms of [`UNSAFE`]; the other rooms forbid it.
//! - There are no marks of unfinished work.
//! - Licences and duplicate versions of dependencies are listed in `deny.toml`.
//! - Prose does not contain the phrases of `words.rs`.

mod dependencies;
mod words;

use crate::Res;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

const MAX_LINES: usize = 600;

/// Files that are still longer. The list only shrinks: a file that has become short must be
/// removed.
const LONG: &[&str] = &[
    "crates/runtime/tests/compiled.rs",
    "crates/runtime/tests/host_programs.rs",
];

/// Folders in which unsafe code is allowed.
const UNSAFE: &[&str] = &[
    "crates/sync/src",
    "crates/tensor/src",
    "crates/primitives/src",
    "crates/device/src",
    "crates/plugin/src",
    "crates/capi/src",
    "crates/jit/src",
    "crates/python/src",
    "crates/ptx/src",
];

/// Rooms that the tests of every room may import.
const TEST_IMPORTS: &[&str] = &["testkit", "ops", "model"];

/// Rooms whose tests and examples may import a further one.
const MORE_TEST_IMPORTS: &[(&str, &str)] =
    &[("train", "remote"), ("gpu", "ptx"), ("runtime", "ptx")];

/// Checks all rules.
///
/// # Errors
/// All offences, one per line.
pub fn run(root: &Path) -> Res {
    let metadata = metadata(root)?;
    let packages = metadata["packages"].as_array().ok_or("no packages")?;
    let ours = packages.iter().filter(|p| p["source"].is_null());
    let ours: Vec<&serde_json::Value> = ours.collect();
    let mut offences = edges(root, &ours)?;
    offences.extend(manifests(&ours));
    offences.extend(dependencies::check(root, packages)?);
    for file in files(root)? {
        let text = fs::read_to_string(&file).map_err(|e| format!("{}: {e}", file.display()))?;
        let name = file.strip_prefix(root).unwrap_or(&file);
        let name = name.display().to_string();
        if name.ends_with(".rs") {
            offences.extend(source(&name, &text));
        }
        if words::is_checked(&name) {
            offences.extend(words::check(&name, &text));
        }
    }
    if offences.is_empty() {
        Ok(())
    } else {
        Err(format!("not tidy:\n{}", offences.join("\n")))
    }
}

fn source(name: &str, text: &str) -> Vec<String> {
    let mut offences = Vec::new();
    if !text.starts_with("//!") {
        offences.push(format!("{name}: does not start with //!"));
    }
    let n_lines = text.lines().count();
    let is_long = n_lines > MAX_LINES && !name.ends_with("_gen.rs");
    match (is_long, LONG.contains(&name)) {
        (true, false) => offences.push(format!("{name}: {n_lines} lines, limit {MAX_LINES}")),
        (false, true) => offences.push(format!("{name}: short enough to leave `LONG` in tidy.rs")),
        _ => {}
    }
    let marks = ["TO", "FIX"].map(|m| m.to_string() + if m == "TO" { "DO" } else { "ME" });
    // This tool contains the marks it searches for.
    let is_product = name.starts_with("crates/");
    let may_be_unsafe = !is_product || UNSAFE.iter().any(|u| name.starts_with(u));
    for (i, line) in text.lines().enumerate() {
        let code = line.split("//").next().unwrap_or("");
        if !may_be_unsafe
            && code
                .split(|c: char| !c.is_alphanumeric() && c != '_')
                .any(|w| w == "unsafe")
        {
            offences.push(format!("{name}:{}: unsafe code outside its rooms", i + 1));
        }
        if is_product && marks.iter().any(|m| line.contains(m.as_str())) {
            offences.push(format!("{name}:{}: unfinished: {}", i + 1, line.trim()));
        }
    }
    let is_lib = name.starts_with("crates/") && name.ends_with("src/lib.rs");
    if is_lib && !may_be_unsafe && !text.contains("(unsafe_code)]") {
        offences.push(format!("{name}: does not forbid unsafe code"));
    }
    offences
}

/// Returns the repository's Rust, Markdown, YAML and Python files.
fn files(root: &Path) -> Res<Vec<PathBuf>> {
    let list = |folder: &Path| -> Res<Vec<PathBuf>> {
        let entries = fs::read_dir(folder).map_err(|e| format!("{}: {e}", folder.display()))?;
        let paths = entries.map(|e| e.map(|e| e.path()).map_err(|e| e.to_string()));
        paths.collect()
    };
    let is_text = |path: &Path| {
        let extension = path.extension().and_then(|e| e.to_str());
        matches!(
            extension,
            Some("c" | "h" | "md" | "mlir" | "py" | "rs" | "toml" | "txt" | "yml")
        )
    };
    let mut files = list(root)?;
    files.retain(|f| f.is_file() && is_text(f));
    let mut folders: Vec<PathBuf> = [
        ".github",
        "bench",
        "crates",
        "docs",
        "examples",
        "fuzz/fuzz_targets",
        "interop",
        "oracle",
        "xtask",
    ]
    .map(|f| root.join(f))
    .into();
    while let Some(folder) = folders.pop() {
        for path in list(&folder)? {
            if path.ends_with("rows") {
                // Data of TensorFlow's.
                continue;
            }
            if path.is_dir() {
                folders.push(path);
            } else if is_text(&path) {
                files.push(path);
            }
        }
    }
    files.sort();
    Ok(files)
}

/// Returns `cargo metadata` for this machine: only what is downloaded for it is needed.
fn metadata(root: &Path) -> Res<serde_json::Value> {
    let rustc = std::env::var("RUSTC").unwrap_or_else(|_| "rustc".to_string());
    let version = Command::new(rustc).arg("-vV").output();
    let version = version.map_err(|e| format!("rustc: {e}"))?.stdout;
    let version = String::from_utf8_lossy(&version).into_owned();
    let host = version.lines().find_map(|l| l.strip_prefix("host: "));
    let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".to_string());
    let output = Command::new(cargo)
        .args(["metadata", "--format-version", "1", "--all-features"])
        .args([
            "--offline",
            "--filter-platform",
            host.ok_or("rustc has no host")?,
        ])
        .current_dir(root)
        .output()
        .map_err(|e| format!("cargo metadata: {e}"))?;
    if !output.status.success() {
        let errors = String::from_utf8_lossy(&output.stderr);
        return Err(format!("cargo metadata: {errors}"));
    }
    serde_json::from_slice(&output.stdout).map_err(|e| format!("cargo metadata: {e}"))
}

/// Finds crates without a description, a README or the workspace's `rust-version`.
fn manifests(packages: &[&serde_json::Value]) -> Vec<String> {
    let mut offences = Vec::new();
    for package in packages {
        let name = package["name"].as_str().unwrap_or_default();
        let mut need = vec!["description", "rust_version"];
        if name.starts_with("ferroflow-") {
            need.push("readme");
        }
        for field in need.into_iter().filter(|f| package[f].is_null()) {
            offences.push(format!("{name}: Cargo.toml has no {field}"));
        }
        let manifest = Path::new(package["manifest_path"].as_str().unwrap_or_default());
        let readme = package["readme"]
            .as_str()
            .map(|r| manifest.with_file_name(r));
        if let Some(readme) = readme.filter(|r| !r.is_file()) {
            offences.push(format!("{} is missing", readme.display()));
        }
    }
    offences
}

/// Parses the table of ARCHITECTURE.md: room → rooms it may import.
fn allowed_edges(root: &Path) -> Res<(BTreeMap<String, BTreeSet<String>>, String)> {
    let text = fs::read_to_string(root.join("ARCHITECTURE.md")).map_err(|e| e.to_string())?;
    let mut table = BTreeMap::new();
    let rows = text
        .lines()
        .skip_while(|l| !l.starts_with("| room |"))
        .skip(2);
    for row in rows.take_while(|l| l.starts_with('|')) {
        let cells: Vec<&str> = row.split('|').map(str::trim).collect();
        if let [_, room, imports, ..] = cells[..] {
            let imports = imports.split_whitespace().map(str::to_string).collect();
            table.insert(room.to_string(), imports);
        }
    }
    Ok((table, text))
}

fn edges(root: &Path, packages: &[&serde_json::Value]) -> Res<Vec<String>> {
    let (allowed, architecture) = allowed_edges(root)?;
    let room = |name: &str| {
        let name = name.strip_prefix("ferroflow-")?.replace('-', "_");
        Some(match name.starts_with("ops_") {
            true => "ops/*".to_string(),
            false => name,
        })
    };
    let mut offences = Vec::new();
    let mut seen = BTreeSet::new();
    for package in packages {
        let Some(from) = package["name"].as_str().and_then(room) else {
            continue;
        };
        let Some(may) = allowed.get(&from) else {
            offences.push(format!("room {from} has no row in ARCHITECTURE.md"));
            continue;
        };
        let section = from.trim_end_matches("/*");
        if !architecture.contains(&format!("### {section}\n")) {
            offences.push(format!("room {from} has no section in ARCHITECTURE.md"));
        }
        for dependency in package["dependencies"].as_array().into_iter().flatten() {
            let Some(to) = dependency["name"].as_str().and_then(room) else {
                continue;
            };
            let is_dev = dependency["kind"] == "dev";
            let in_tests = TEST_IMPORTS.contains(&to.as_str())
                || MORE_TEST_IMPORTS.contains(&(from.as_str(), to.as_str()));
            let is_allowed = may.contains(&to) || (is_dev && in_tests);
            if !is_allowed {
                offences.push(format!(
                    "room {from} imports {to}, which ARCHITECTURE.md does not allow"
                ));
            }
        }
        seen.insert(from);
    }
    for room in allowed.keys().filter(|r| !seen.contains(*r)) {
        offences.push(format!(
            "ARCHITECTURE.md has room {room}, which does not exist"
        ));
    }
    Ok(offences)
}

#[cfg(test)]
mod tests {
    use super::source;

    #[test]
    fn offences_are_found() {
        assert_eq!(source("crates/graph/src/x.rs", "//! Fine.\n").len(), 0);
        let word = "un".to_string() + "safe";
        assert_eq!(
            source(
                "crates/graph/src/x.rs",
                &format!("//! A.\n{word} fn f() {{}}\n")
            )
            .len(),
            1
        );
        assert_eq!(
            source(
                "crates/sync/src/x.rs",
                &format!("//! A.\n{word} fn f() {{}}\n")
            )
            .len(),
            0
        );
        assert_eq!(source("crates/graph/src/x.rs", "fn f() {}\n").len(), 1);
        assert_eq!(
            source("crates/graph/src/x.rs", &"//!\n".repeat(601)).len(),
            1
        );
    }
}
