//! Databases of summaries hold what TensorFlow's hold (`summary_database.json`, written by
//! `oracle/summary_database.py`).

use ferroflow_runtime::building::GraphBuilder;
use ferroflow_runtime::{AttrValue, Code, Result, Session, SessionOptions, Tensor, registry};
use ferroflow_testkit::{folder::Folder, tensors as json};
use rusqlite::{Connection, types::ValueRef};
use serde_json::{Value as Json, json};
use std::path::Path;

fn stored() -> Json {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/summary_database.json");
    let text = std::fs::read_to_string(path).expect("summary_database.json");
    serde_json::from_str(&text).expect("JSON")
}

fn list(json: &Json) -> &[Json] {
    json.as_array().expect("a list")
}

/// A graph with a writer, `create`, and a node `w0`, `w1` and so on of each write.
fn writers(database: &str, writes: &[Json]) -> Result<Session> {
    let mut b = GraphBuilder::new(registry());
    let writer = b.op("SummaryWriter").output()?;
    let texts = [database, "an experiment", "a run", "a user"];
    let texts = texts.map(|text| b.constant("const", Tensor::string(text.as_bytes().to_vec())));
    let mut create = b.op("CreateSummaryDbWriter").name("create").input(writer);
    for text in texts {
        create = create.input(text?);
    }
    create.build()?;
    for (i, write) in writes.iter().enumerate() {
        let mut inputs = vec![writer];
        for input in list(&write["inputs"]) {
            inputs.push(b.constant("const", json::tensor(input).expect("a tensor"))?);
        }
        let mut node = b
            .op(write["op"].as_str().expect("an op"))
            .name(&format!("w{i}"));
        for input in inputs {
            node = node.input(input);
        }
        for (name, value) in write["attrs"].as_object().expect("attrs") {
            node = node.attr(name, AttrValue::Int(value.as_i64().expect("a number")));
        }
        node.build()?;
    }
    Ok(Session::new(b.finish()?, SessionOptions::default()))
}

fn rows(database: &Connection, sql: &str) -> Vec<Vec<Json>> {
    let mut statement = database.prepare(sql).expect(sql);
    let n = statement.column_count();
    let value = |value: ValueRef| match value {
        ValueRef::Null => Json::Null,
        ValueRef::Integer(v) => json!(v),
        ValueRef::Real(v) => json!(v),
        ValueRef::Text(text) | ValueRef::Blob(text) => json!(String::from_utf8_lossy(text)),
    };
    let rows = statement.query_map([], |row| {
        let columns = (0..n).map(|i| row.get_ref(i).map(value));
        columns.collect::<rusqlite::Result<_>>()
    });
    let rows = rows.expect(sql).collect::<rusqlite::Result<_>>();
    rows.expect(sql)
}

#[test]
fn databases_are_those_of_tensorflow() {
    let (stored, folder) = (stored(), Folder::new("summary-database"));
    let path = folder.0.join("summaries.db");
    let writes = list(&stored["writes"]);
    let session = writers(&path.to_string_lossy(), writes).expect("a valid graph");
    session.run(&[], &[], &["create"]).expect("creates");
    for (i, write) in writes.iter().enumerate() {
        let done = session.run(&[], &[], &[&format!("w{i}")]);
        let code = done.map_or_else(|e| e.code() as i64, |_| 0);
        assert_eq!(code, write["code"].as_i64().unwrap_or(0), "{i}: {write}");
    }
    let database = Connection::open(&path).expect("a database");
    for query in list(&stored["queries"]) {
        let sql = query["sql"].as_str().expect("a statement");
        assert_eq!(json!(rows(&database, sql)), query["rows"], "{sql}");
    }
}

/// Runs of the same experiment and user share their rows, and a run that is written again replaces the old one.
#[test]
fn runs_share_experiments() {
    let folder = Folder::new("summary-runs");
    let path = folder.0.join("summaries.db");
    let write = json!({
        "op": "WriteScalarSummary", "attrs": {},
        "inputs": [
            {"dtype": "int64", "shape": [], "data": [1]},
            {"dtype": "string", "shape": [], "data": [{"b64": "dGFn"}]},
            {"dtype": "float", "shape": [], "data": [0.5]},
        ],
    });
    for _ in 0..2 {
        let session =
            writers(&path.to_string_lossy(), std::slice::from_ref(&write)).expect("a valid graph");
        session.run(&[], &[], &["create"]).expect("creates");
        session.run(&[], &[], &["w0"]).expect("writes");
    }
    let database = Connection::open(&path).expect("a database");
    let counts = "SELECT (SELECT count(*) FROM Users), (SELECT count(*) FROM Experiments), \
                  (SELECT count(*) FROM Runs), (SELECT count(*) FROM Tags), (SELECT count(finished_time) FROM Runs)";
    assert_eq!(rows(&database, counts), [[1, 1, 1, 2, 1].map(|n| json!(n))]);
}

#[test]
fn bad_paths_are_refused() {
    let session = writers("/nowhere/summaries.db", &[]).expect("a valid graph");
    let error = session
        .run(&[], &[], &["create"])
        .expect_err("no such folder");
    assert_eq!(error.code(), Code::InvalidArgument, "{error}");
    assert!(
        error
            .message()
            .contains("Sqlite::Open(/nowhere/summaries.db) failed:"),
        "{error}"
    );
}
