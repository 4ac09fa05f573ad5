//! Golden rows of the compile passes: `passes/<pass>.txt` holds graphs before and after; `expand`
//! is what every graph goes through before the pipeline.
//!
//! A row is a title line `== …`, a GraphDef in text form (node `out` is fetched, placeholders are
//! fed), a line `--`, and the graph after the pass, one node a line, or `error: ` and its text.
//! `BLESS=1` rewrites the latter.

use ferroflow_base::Result;
use ferroflow_compile::{Int8, Lower, Options, PART_ROUNDS, PIPELINE, expand, optimize};
use ferroflow_graph::{NodeClass, Signature, import_graph, prune, to_text};
use ferroflow_ops::registry;
use ferroflow_tensor::DType;
use std::path::Path;
use std::sync::Arc;

/// Whether a pass acts only on what another one has prepared.
fn needs(pass: &str, other: &str) -> bool {
    (pass, other) == ("cluster_acyclic", "arg_shapes")
}

/// Runs only `pass` on the graph and prints the result.
fn after(pass: &str, graph: &str) -> Result<String> {
    let others = PIPELINE.iter().map(|p| p.name.to_string());
    let options = Options {
        disabled: others.filter(|n| n != pass && !needs(pass, n)).collect(),
        lower: match pass {
            "lower" => Lower::Always,
            _ => Lower::Never,
        },
        device: match pass {
            "fuse_attention" | "fuse_norm" | "mixed_precision" => {
                "/job:a/replica:0/task:0/device:GPU:0".to_string()
            }
            _ => String::new(),
        },
        precision: match pass {
            "mixed_precision" | "bf16_products" => Some(DType::Bfloat16),
            _ => None,
        },
        int8: match pass {
            "int8" => Int8::On(Arc::default()),
            _ => Int8::Off,
        },
        ..Options::all()
    };
    optimized(graph, (pass != "expand").then_some(&options))
}

/// Runs passes on the graph, if any, and prints the result.
fn optimized(graph: &str, options: Option<&Options>) -> Result<String> {
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
    let Some(options) = options else {
        return Ok(to_text(expanded.graph()));
    };
    let placed = expanded.on_one_device();
    let optimized = optimize(placed, registry(), options, &mut |_, _| {})?;
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

/// `n` nodes that each compute with a constant and wait for the one before: folding one lets the next be folded.
fn waiting(n: usize) -> String {
    let float = "attr { key: 'T' value { type: DT_FLOAT } }";
    let check = |i: usize| {
        format!(
            "node {{ name: 'k{i}' op: 'EnsureShape' input: 'n{i}' {float} attr {{ key: 'shape' value {{ shape {{ }} }} }} }}\n"
        )
    };
    let mut graph = format!(
        "node {{ name: 'x' op: 'Placeholder' attr {{ key: 'dtype' value {{ type: DT_FLOAT }} }} }}
         node {{ name: 'c' op: 'Const' attr {{ key: 'dtype' value {{ type: DT_FLOAT }} }} attr {{ key: 'value' \
         value {{ tensor {{ dtype: DT_FLOAT tensor_shape {{ }} float_val: 1 }} }} }} }}
         node {{ name: 'n0' op: 'Exp' input: 'c' {float} }}\n{}",
        check(0)
    );
    for i in 1..n {
        let before = i - 1;
        graph += &format!(
            "node {{ name: 'n{i}' op: 'Exp' input: 'c' input: '^k{before}' {float} }}\n{}",
            check(i)
        );
    }
    graph
        + &format!(
            "node {{ name: 'out' op: 'AddV2' input: 'x' input: 'n{}' {float} }}",
            n - 1
        )
}

#[test]
fn rounds_end_when_nothing_changes() {
    for (n, rounds, is_folded) in [
        (1, 1, true),
        (3, 1, false),
        (3, 3, true),
        (3, PART_ROUNDS, true),
        (PART_ROUNDS + 2, PART_ROUNDS, false),
    ] {
        let options = Options {
            rounds,
            ..Options::all()
        };
        let graph = optimized(&waiting(n), Some(&options)).expect("valid");
        assert_eq!(
            !graph.contains("Exp"),
            is_folded,
            "{n} in {rounds}:\n{graph}"
        );
    }
}
