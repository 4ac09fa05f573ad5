//! Golden rows of the compile passes: `passes/<pass>.txt` holds graphs before and after.
//!
//! A row is a title line `== …`, a GraphDef in text form (node `out` is fetched, placeholders are
//! fed), a line `--`, and the graph after the pass, one node a line. `BLESS=1` rewrites the latter.

use ferroflow_runtime::{
    CompileOptions, Lower, PIPELINE, Session, SessionOptions, Signature, to_text,
};
use std::path::Path;

/// Runs only `pass` on the graph and prints the result.
fn after(pass: &str, graph: &str) -> String {
    let disabled = PIPELINE
        .iter()
        .map(|p| p.name.to_string())
        .filter(|n| n != pass)
        .collect();
    let options = SessionOptions {
        threads: 1,
        compile: CompileOptions {
            optimize: true,
            disabled,
            lower: match pass {
                "lower" => Lower::Always,
                _ => Lower::Never,
            },
        },
    };
    let session = Session::from_text(graph, options).expect("the row's graph is valid");
    let feeds = session
        .graph()
        .iter()
        .filter(|(_, n)| n.op() == "Placeholder")
        .map(|(_, n)| format!("{}:0", n.name))
        .collect();
    let signature = Signature {
        feeds,
        fetches: vec!["out:0".to_string()],
        targets: Vec::new(),
    };
    to_text(
        &session
            .graph_after(&signature, None)
            .expect("the pass runs")
            .0,
    )
}

#[test]
fn golden_rows() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/passes");
    let bless = std::env::var_os("BLESS").is_some();
    let mut n_rows = 0;
    for pass in PIPELINE {
        let path = folder.join(format!("{}.txt", pass.name));
        let text = std::fs::read_to_string(&path)
            .unwrap_or_else(|e| panic!("every pass has golden rows; {}: {e}", path.display()));
        let mut blessed = String::new();
        for row in text.split("== ").filter(|r| !r.trim().is_empty()) {
            let (title, rest) = row.split_once('\n').expect("a title line");
            let (before, expected) = rest.split_once("\n--\n").expect("a line of two dashes");
            let got = after(pass.name, before);
            if !bless {
                assert_eq!(got.trim(), expected.trim(), "{}: {title}", pass.name);
            }
            blessed += &format!("== {title}\n{before}\n--\n{}\n\n", got.trim());
            n_rows += 1;
        }
        if bless {
            std::fs::write(&path, blessed.trim_end().to_string() + "\n").expect("writable");
        }
    }
    assert!(n_rows > 10);
}
