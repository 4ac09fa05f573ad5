//! Runs ops that take strings as rows call them, with another string. The fuzz target `strings` includes this file.

use ferroflow_ops::registry;
use ferroflow_tensor::{DType, Tensor};
use ferroflow_testkit::op;
use ferroflow_testkit::rows::{Row, parse_row};
use std::collections::HashMap;
use std::path::Path;

/// Rows of an op beyond these have little that is new.
const ROWS_OF_OP: usize = 12;

/// Returns rows of each op that has strings among its inputs, in a fixed order.
pub fn calls(folder: &Path) -> Vec<Row> {
    let entries = std::fs::read_dir(folder).expect("a readable folder");
    let mut files: Vec<_> = entries
        .map(|entry| entry.expect("an entry").path())
        .collect();
    files.retain(|path| path.extension().is_some_and(|end| end == "jsonl"));
    files.sort();
    let (mut found, mut count) = (Vec::new(), HashMap::new());
    for path in files {
        let text = std::fs::read_to_string(path).expect("readable rows");
        for line in text.lines().filter(|line| line.contains(r#""string""#)) {
            let Ok(row) = parse_row(line) else { continue };
            if strings_of(&row) == 0 || registry().op(&row.op).is_none_or(|op| op.kernel.is_none())
            {
                continue;
            }
            let seen = count.entry(row.op.clone()).or_insert(0);
            *seen += 1;
            if *seen <= ROWS_OF_OP {
                found.push(row);
            }
        }
    }
    found
}

fn elements(t: &Tensor) -> usize {
    match t.dtype() {
        DType::String => t.num_elements(),
        _ => 0,
    }
}

/// Returns how many strings a row has among its inputs.
pub fn strings_of(row: &Row) -> usize {
    row.inputs.iter().map(elements).sum()
}

/// Returns the `at`-th string of a row.
pub fn string(row: &Row, at: usize) -> Vec<u8> {
    let strings = row.inputs.iter().filter(|t| t.dtype() == DType::String);
    let mut all = strings.flat_map(|t| t.strings().expect("strings").iter());
    all.nth(at).map(|s| s.to_vec()).unwrap_or_default()
}

/// Calls a row's op with the `at`-th of its strings replaced; returns whether it took them.
pub fn call(row: &Row, mut at: usize, bytes: &[u8]) -> bool {
    let mut inputs = row.inputs.clone();
    for input in &mut inputs {
        let n = elements(input);
        if at < n {
            let mut all = input.strings().expect("strings").to_vec();
            all[at] = bytes.to_vec().into();
            let shape = input.shape().clone();
            *input = Tensor::from_strings(shape, all).expect("as many strings");
            break;
        }
        at -= n;
    }
    op::run(registry(), &row.op, &row.attrs, inputs).is_ok()
}
