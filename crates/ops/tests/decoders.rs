//! Corrupted files and messages: decoders take them or return an error.
//!
//! The fuzz target `fuzz/fuzz_targets/decoders.rs` looks for new cases.

use crate::decoding;
use crate::strings;

use ferroflow_tensor::DType;
use ferroflow_testkit::random::Rng;
use ferroflow_testkit::rows;
use std::collections::BTreeSet;
use std::path::Path;

/// Returns the strings that rows decode, each short enough for many variants.
fn corpus() -> BTreeSet<Vec<u8>> {
    // A serialized tensor: its rows are all too long.
    let mut found = BTreeSet::from([vec![8, 7, 18, 0, 66, 1, b'a']]);
    for family in [
        "protos",
        "messages",
        "image_files",
        "audio",
        "input",
        "string",
    ] {
        let path = format!("{}/rows/{family}.jsonl", env!("CARGO_MANIFEST_DIR"));
        let text = std::fs::read_to_string(path).expect("readable rows");
        for line in text.lines().filter(|l| l.starts_with('{')) {
            let row = rows::parse_row(line).expect("a row");
            if let Ok(source) = row.attrs.bytes("descriptor_source") {
                found.extend(source.strip_prefix(b"bytes://").map(<[u8]>::to_vec));
            }
            let strings = row.inputs.iter().filter(|t| t.dtype() == DType::String);
            for t in strings {
                let all = t.strings().expect("strings").iter();
                found.extend(all.filter(|s| s.len() < 4096).map(|s| s.to_vec()));
            }
        }
    }
    found
}

/// Returns the bytes with some changed, cut off, repeated or made large.
fn mangled(bytes: &[u8], random: &mut Rng) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    for _ in 0..=random.below(4) {
        let at = random.below(bytes.len().max(1));
        match random.below(6) {
            0 => bytes.truncate(at),
            1 => {
                let piece = bytes.get(at..).unwrap_or_default().to_vec();
                bytes.extend(piece);
            }
            2 => {
                let end = bytes.len().min(at + 4);
                bytes.get_mut(at..end).unwrap_or_default().fill(0xff);
            }
            _ => {
                if let Some(byte) = bytes.get_mut(at) {
                    *byte = random.below(256) as u8;
                }
            }
        }
    }
    bytes
}

#[test]
fn corrupted_bytes_are_decoded_or_refused() {
    let (mut random, corpus) = (Rng(11), corpus());
    let mut taken = vec![0; decoding::count()];
    for bytes in &corpus {
        for (which, taken) in taken.iter_mut().enumerate() {
            let is_taken = decoding::decode(which, bytes);
            *taken += usize::from(is_taken);
            // A change of what is decoded reaches further than one of other bytes.
            for _ in 0..if is_taken { 40 } else { 2 } {
                decoding::decode(which, &mangled(bytes, &mut random));
            }
        }
    }
    // Each decoder has something to decode.
    assert!(taken.iter().all(|n| *n > 0), "{taken:?}");
}

#[test]
fn corrupted_strings_are_taken_or_refused() {
    let mut random = Rng(13);
    let calls = strings::calls(&Path::new(env!("CARGO_MANIFEST_DIR")).join("rows"));
    let mut taken = 0;
    for row in &calls {
        let count = strings::strings_of(row);
        for _ in 0..8 {
            let at = random.below(count);
            let mut bytes = strings::string(row, at);
            bytes.truncate(4096);
            taken += usize::from(strings::call(row, at, &mangled(&bytes, &mut random)));
        }
    }
    assert!(taken > calls.len(), "{taken} of {}", calls.len());
}
