//! Golden rows of the compile passes: `passes/<pass>.txt` holds graphs before and after; `expand`
//! is what every graph goes through before the pipeline.
//!
//! A row is a title line `== …`, a GraphDef in text form (node `out` is fetched, placeholders are
//! fed), a line `--`, and the graph after the pass, one node a line, or `error: ` and its text.
//! `BLESS=1` rewrites the latter.

use ferroflow_base::Result;
use ferroflow_compile::{Jit, Lower, Options, PIPELINE, expand, optimize};
use ferroflow_graph::{NodeClass, Signature, import_graph, prune, to_text};
use ferroflow_ops::registry;
use std::path::Path;

/// Runs only `pass` on the graph and prints the result.
fn after(pass: &str, graph: &str) -> Result<String> {
    let mut def = ferroflow_model::graph_from_text(graph)?;
    // Graphs without a version have no scalar placeholders.
    def.versions.get_or_insert_default().producer = 2474;
    let graph = import_graph(&def, None, registry())?;
    let nodes = graph.iter().map(|(_, n)| n);
    let feeds = nodes
        .filter(|n| n.class() == NodeClass::Placeholder)
        .map(|n| format!("{}:0", n.name))
        .collect();
    let signature = Signature {
        feeds,
        fetches: vec!["out:0".to_string()],
        targets: Vec::new(),
    };
    let expanded = expand(prune(&graph, &signature, registry())?, registry())?;
    if pass == "expand" {
        return Ok(to_text(expanded.graph()));
    }
    let others = PIPELINE.iter().map(|p| p.name.to_string());
    let options = Options {
        optimize: true,
        disabled: others.filter(|n| n != pass).collect(),
        lower: match pass {
            "lower" => Lower::Always,
            _ => Lower::Never,
        },
        jit: Jit::Auto,
    };
    let placed = expanded.on_one_device();
    let optimized = optimize(placed, registry(), &options, &mut |_, _| {})?;
    Ok(to_text(optimized.graph()))
}

#[test]
fn golden_rows() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/passes");
    let bless = std::env::var_os("BLESS").is_some();
    let mut n_rows = 0;
    for pass in PIPELINE.iter().map(|p| p.name).chain(["expand"]) {
        let path = folder.join(format!("{pass}.txt"));
        let text = std::fs::read_to_string(&path)
            .unwrap_or_else(|e| panic!("every pass has golden rows; {}: {e}", path.display()));
        let mut blessed = String::new();
        for row in text.split("== ").filter(|r| !r.trim().is_empty()) {
            let (title, rest) = row.split_once('\n').expect("a title line");
            let (before, expected) = rest.split_once("\n--\n").expect("a line of two dashes");
            let got = after(pass, before).unwrap_or_else(|e| {
                format!("error: {e}").replace(ferroflow_graph::host_name(), "this machine")
            });
            if !bless {
                assert_eq!(got.trim(), expected.trim(), "{pass}: {title}");
            }
            blessed += &format!("== {title}\n{before}\n--\n{}\n\n", got.trim());
            n_rows += 1;
        }
        if bless {
            std::fs::write(&path, blessed.trim_end().to_string() + "\n").expect("writable");
        }
    }
    assert!(n_rows > PIPELINE.len());
}
