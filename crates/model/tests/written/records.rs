//! Record and event files that both the tests and `examples/write_files_for_tensorflow.rs` write.

use ferroflow_model::proto::{GraphDef, NodeDef};
use ferroflow_model::{EventWriter, RecordCompression, RecordWriter};
use serde_json::Value as Json;
use std::path::{Path, PathBuf};

pub const KINDS: [(&str, RecordCompression); 3] = [
    ("NONE", RecordCompression::None),
    ("ZLIB", RecordCompression::Zlib),
    ("GZIP", RecordCompression::Gzip),
];

pub fn unhex(json: &Json) -> Vec<u8> {
    let digits = json.as_str().expect("hexadecimal digits").as_bytes();
    let byte = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap();
    digits.chunks(2).map(byte).collect()
}

/// Returns the records of TensorFlow's files, and the files.
pub fn theirs() -> (Vec<Vec<u8>>, Json) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/records.json");
    let json: Json = serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
    let records = json["records"]
        .as_array()
        .unwrap()
        .iter()
        .map(unhex)
        .collect();
    (records, json["files"].clone())
}

pub fn write(path: &Path, compression: RecordCompression, records: &[Vec<u8>]) {
    let mut writer = RecordWriter::create(path, compression).unwrap();
    records.iter().for_each(|r| writer.write(r).unwrap());
    writer.finish().unwrap();
}

/// Writes an event file of a run; returns its path.
pub fn events(folder: &Path) -> PathBuf {
    let mut writer = EventWriter::create(folder).unwrap();
    let node = NodeDef {
        name: "x".into(),
        op: "NoOp".into(),
        ..Default::default()
    };
    let graph = GraphDef {
        node: vec![node],
        ..Default::default()
    };
    writer.graph(0, &graph).unwrap();
    writer.scalar("loss", 0, 2.5).unwrap();
    writer
        .scalars(1, &[("loss", 1.25), ("accuracy", 0.5)])
        .unwrap();
    writer.flush().unwrap();
    assert!(writer.summary(2, b"\xff").is_err());
    writer.path().to_path_buf()
}
