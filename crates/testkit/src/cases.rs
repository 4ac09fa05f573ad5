//! Files of cases: `.jsonl`, or `.jsonl.z` compressed as a whole; a case is a line that begins with
//! its name and may contain a graph.

use crate::tensors::{Res, base64, unhex};
use ferroflow_model::proto::GraphDef;
use serde_json::Value as Json;
use std::collections::BTreeSet;
use std::path::Path;

/// Decompresses a zlib stream.
pub fn inflate(packed: &[u8]) -> Res<Vec<u8>> {
    let mut plain = Vec::new();
    std::io::Read::read_to_end(&mut flate2::read::ZlibDecoder::new(packed), &mut plain)
        .map_err(|e| e.to_string())?;
    Ok(plain)
}

/// Returns the cases of every file of `folder`, in the order of the files' names.
pub fn lines(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).expect("the folder of cases exists");
    let mut files: Vec<_> = entries.map(|e| e.expect("readable").path()).collect();
    files.sort();
    let mut lines = Vec::new();
    for path in files {
        let data = std::fs::read(&path).expect("readable cases");
        let data = match path.extension().is_some_and(|e| e == "z") {
            true => inflate(&data).expect("compressed cases"),
            false => data,
        };
        let text = String::from_utf8(data).expect("cases are text");
        let cases = text.lines().filter(|l| l.starts_with("{\"name\""));
        lines.extend(cases.map(str::to_string));
    }
    lines
}

/// Returns the binary `GraphDef` of a case: hexadecimal digits, or compressed base64.
pub fn graph(case: &Json) -> Res<Vec<u8>> {
    match case["hex"].as_str() {
        Some(digits) => unhex(digits),
        None => inflate(&base64(case["graph"].as_str().ok_or("graph")?)?),
    }
}

/// Returns the ops of the graphs of every case of `folder`, functions included.
pub fn ops(folder: &Path) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for line in lines(folder) {
        let case: Json = serde_json::from_str(&line).expect("valid JSON");
        let graph = graph(&case).expect("a graph");
        let graph: GraphDef = ferroflow_model::decode(&graph).expect("a graph");
        let functions = graph.library.iter().flat_map(|l| &l.function);
        let bodies = functions.flat_map(|f| &f.node_def);
        found.extend(graph.node.iter().chain(bodies).map(|n| n.op.clone()));
    }
    found
}
