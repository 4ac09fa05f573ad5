//! Replaces a string among the inputs of a row's op: `cargo +nightly fuzz run strings`. The first two bytes say which row,
//! the third which of its strings.
#![no_main]

#[path = "../../crates/ops/tests/strings/mod.rs"]
mod strings;

use ferroflow_testkit::rows::Row;
use libfuzzer_sys::fuzz_target;
use std::path::Path;

thread_local! {
    static CALLS: Vec<Row> =
        strings::calls(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../crates/ops/rows"));
}

fuzz_target!(|data: &[u8]| {
    if let [a, b, at, bytes @ ..] = data {
        CALLS.with(|calls| {
            let row = &calls[usize::from(u16::from_le_bytes([*a, *b])) % calls.len()];
            strings::call(row, usize::from(*at) % strings::strings_of(row), bytes);
        });
    }
});
