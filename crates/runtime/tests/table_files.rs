//! Tables filled from text files hold what TensorFlow's hold (`table_files.jsonl`, written by
//! `oracle/table_files.py`).

use ferroflow_testkit::tensors as json;

use ferroflow_runtime::{DType, Result, Session, SessionOptions, Tensor};
use serde_json::Value as Json;
use std::path::Path;

fn dtype(json: &Json) -> String {
    let name = json.as_str().expect("a dtype");
    let name = name
        .replace("float32", "float")
        .replace("float64", "double");
    format!("DT_{}", name.to_uppercase())
}

fn attr(name: &str, value: &str) -> String {
    format!("attr {{ key: '{name}' value {{ {value} }} }} ")
}

fn node(name: &str, op: &str, inputs: &str, attrs: &str) -> String {
    format!("node {{ name: '{name}' op: '{op}' {inputs} {attrs} }}\n")
}

/// A graph with a table, the op that fills it, and one that looks keys up. The version of the ops,
/// `V2` or nothing, says how they take the table.
fn graph(row: &Json, version: &str) -> String {
    let (key, value) = (dtype(&row["key"]), dtype(&row["value"]));
    let (key, value) = (format!("type: {key}"), format!("type: {value}"));
    let placeholder =
        |name: &str, dtype: &str| node(name, "Placeholder", "", &attr("dtype", dtype));
    let mut fill = String::new();
    for (name, value) in row["attrs"].as_object().expect("attrs") {
        fill += &match value {
            Json::String(s) => attr(name, &format!("s: '{s}'")),
            number => attr(name, &format!("i: {number}")),
        };
    }
    let types = attr("Tin", &key) + &attr("Tout", &value);
    placeholder("path", "type: DT_STRING")
        + &placeholder("keys", &key)
        + &placeholder("default", &value)
        + &node(
            "table",
            &format!("HashTable{version}"),
            "",
            &(attr("key_dtype", &key) + &attr("value_dtype", &value)),
        )
        + &node(
            "fill",
            &format!("InitializeTableFromTextFile{version}"),
            "input: 'table' input: 'path'",
            &fill,
        )
        + &node(
            "find",
            &format!("LookupTableFind{version}"),
            "input: 'table' input: 'keys' input: 'default'",
            &types,
        )
}

fn run(row: &Json, path: &Path, version: &str) -> Result<Vec<Tensor>> {
    let session = Session::from_text(&graph(row, version), SessionOptions::default())?;
    let path = path.to_string_lossy().into_owned().into_bytes();
    session.run(&[("path", Tensor::string(path))], &[], &["fill"])?;
    let keys = json::tensor(&row["keys"]).expect("keys");
    let default = match row["value"].as_str() {
        Some("string") => Tensor::string("?"),
        Some("int32") => Tensor::scalar(-1i32),
        Some("int64") => Tensor::scalar(-1i64),
        Some("float32") => Tensor::scalar(-1f32),
        Some("float64") => Tensor::scalar(-1f64),
        _ => Tensor::zeros(DType::Bool, [].into())?,
    };
    session.run(&[("keys", keys), ("default", default)], &["find"], &[])
}

fn check(row: &Json, path: &Path, version: &str) -> json::Res<()> {
    match row["content"].as_str() {
        Some(content) => std::fs::write(path, content).expect("writable"),
        None => _ = std::fs::remove_file(path),
    }
    match (row.get("error"), run(row, path, version)) {
        (None, Ok(got)) => {
            let wanted = json::tensor(&row["outputs"][0])?;
            json::compare(&wanted, &got[0], 0.0)
        }
        (None, Err(e)) => Err(format!("unexpected error {e}")),
        (Some(error), Ok(got)) => Err(format!("expected {error}, got {got:?}")),
        (Some(error), Err(e)) => {
            let words = error["contains"].as_str().ok_or("contains")?;
            let words = words.replace("PATH", &path.to_string_lossy());
            let same = Some(e.code() as i64) == error["code"].as_i64();
            match same && e.to_string().contains(&words) {
                true => Ok(()),
                false => Err(format!("expected {error}, got {e}")),
            }
        }
    }
}

#[test]
fn tables_hold_what_tensorflows_hold() {
    let rows = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/table_files.jsonl");
    let rows = std::fs::read_to_string(rows).expect("it exists");
    let path = std::env::temp_dir().join(format!("ferroflow-table-{}", std::process::id()));
    let mut failures = Vec::new();
    for (i, line) in rows.lines().enumerate().skip(1) {
        let row: Json = serde_json::from_str(line).expect("JSON");
        for version in ["", "V2"] {
            if let Err(e) = check(&row, &path, version) {
                failures.push(format!("line {} {version}: {e}", i + 1));
            }
        }
    }
    let _ = std::fs::remove_file(&path);
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}
