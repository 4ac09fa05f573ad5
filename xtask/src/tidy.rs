//! Rules of the repository that no compiler checks.
//!
//! - Crates import only the rooms that the table in ARCHITECTURE.md allows them, dev-dependencies
//!   included, and every crate has a row and a section there.
//! - Every source file starts with `//!` and has at most [`MAX_LINES`] lines.
//! - `unsafe` appears only in the rooms of [`UNSAFE`]; the other rooms forbid it.
//! - No TODO or FIXME is left.

use crate::Res;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

const MAX_LINES: usize = 1000;
/// Where unsafe code may stand.
const UNSAFE: &[&str] = &[
    "crates/sync/src",
    "crates/tensor/src",
    "crates/primitives/src",
    "crates/plugin/src",
];

/// What the tests of every room may import besides.
const TEST_IMPORTS: &[&str] = &["testkit", "ops", "model"];

/// Checks everything; lists all offences.
pub fn run(root: &Path) -> Res {
    let mut offences = Vec::new();
    offences.extend(edges(root)?);
    for file in sources(root)? {
        let text = fs::read_to_string(&file).map_err(|e| format!("{}: {e}", file.display()))?;
        let name = file
            .strip_prefix(root)
            .unwrap_or(&file)
            .display()
            .to_string();
        offences.extend(source(&name, &text));
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
    if n_lines > MAX_LINES && !name.ends_with("_gen.rs") {
        offences.push(format!(
            "{name}: {n_lines} lines, at most {MAX_LINES} are allowed"
        ));
    }
    let marks = ["TO", "FIX"].map(|m| m.to_string() + if m == "TO" { "DO" } else { "ME" });
    // This tool has to name what it looks for.
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

fn sources(root: &Path) -> Res<Vec<PathBuf>> {
    let mut files = Vec::new();
    let mut folders = vec![root.join("crates"), root.join("xtask")];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).map_err(|e| format!("{}: {e}", folder.display()))? {
            let path = entry.map_err(|e| e.to_string())?.path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|e| e == "rs") {
                files.push(path);
            }
        }
    }
    files.sort();
    Ok(files)
}

/// The table of ARCHITECTURE.md: room → rooms it may import.
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

fn edges(root: &Path) -> Res<Vec<String>> {
    let (allowed, architecture) = allowed_edges(root)?;
    let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".to_string());
    let output = Command::new(cargo)
        .args([
            "metadata",
            "--format-version",
            "1",
            "--no-deps",
            "--offline",
        ])
        .current_dir(root)
        .output()
        .map_err(|e| format!("cargo metadata: {e}"))?;
    let metadata: serde_json::Value =
        serde_json::from_slice(&output.stdout).map_err(|e| format!("cargo metadata: {e}"))?;
    let room = |name: &str| {
        let name = name.strip_prefix("ferroflow-")?.replace('-', "_");
        Some(match name.starts_with("ops_") {
            true => "ops/*".to_string(),
            false => name,
        })
    };
    let mut offences = Vec::new();
    let mut seen = BTreeSet::new();
    for package in metadata["packages"].as_array().into_iter().flatten() {
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
            if !may.contains(&to) && !(is_dev && TEST_IMPORTS.contains(&to.as_str())) {
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
            source("crates/graph/src/x.rs", &"//!\n".repeat(1001)).len(),
            1
        );
    }
}
