//! Model files that are damaged: an error or a working session, never a panic.
//!
//! The fuzz target `fuzz/fuzz_targets/load.rs` looks for new cases; what it finds is kept in
//! `mangled/` and replayed here.

use ferroflow_runtime::{Session, SessionOptions, Signature};
use ferroflow_testkit::random::Rng;
use std::path::Path;

fn digits() -> Vec<u8> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/digits/digits.pb");
    std::fs::read(path).expect("the example model exists")
}

/// Loads and compiles whatever the bytes are.
fn load(bytes: Vec<u8>) {
    let options = SessionOptions {
        threads: 1,
        ..Default::default()
    };
    let Ok(session) = Session::from_bytes(bytes, options) else {
        return;
    };
    let names: Vec<String> = session
        .graph()
        .iter()
        .map(|(_, n)| n.name.clone())
        .collect();
    for fetch in names.iter().rev().take(3) {
        let feeds = names
            .iter()
            .filter(|n| n.as_str() == "images")
            .cloned()
            .collect();
        let signature = Signature {
            feeds,
            fetches: vec![fetch.clone()],
            targets: Vec::new(),
        };
        let _ = session.callable(&signature);
    }
}

#[test]
fn cut_short() {
    let whole = digits();
    for keep in (0..whole.len()).step_by(whole.len() / 60 + 1) {
        load(whole[..keep].to_vec());
    }
}

#[test]
fn flipped_bytes() {
    let whole = digits();
    let mut random = Rng(12345);
    for _ in 0..150 {
        let mut bytes = whole.clone();
        for _ in 0..4 {
            let at = random.below(bytes.len());
            bytes[at] ^= 1 << random.below(8);
        }
        load(bytes);
    }
}

#[test]
fn corpus() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/mangled");
    let mut n = 0;
    for entry in std::fs::read_dir(folder).expect("the corpus exists") {
        load(std::fs::read(entry.expect("readable").path()).expect("readable"));
        n += 1;
    }
    assert!(n > 0);
}
