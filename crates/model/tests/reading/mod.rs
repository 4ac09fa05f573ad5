//! Reads a file of any kind. The fuzz target `files` includes this file.

use ferroflow_model::arrays::{npz_keys, read_npy, read_npz_key};
use ferroflow_model::{RecordCompression, RecordReader, SliceReader, TensorBundle};
use std::path::Path;

/// Returns how many kinds of files there are.
pub fn count() -> usize {
    7
}

/// Reads all of a file of a kind; returns whether it could be read.
pub fn read(kind: usize, folder: &Path, bytes: &[u8]) -> bool {
    let names = [
        "records", "records", "records", "a.npy", "a.npz", "slices", "a.index",
    ];
    let path = folder.join(names[kind]);
    std::fs::write(&path, bytes).expect("a written file");
    match kind {
        0 => records(&path, ""),
        1 => records(&path, "ZLIB"),
        2 => records(&path, "GZIP"),
        3 => read_npy(&path).is_ok(),
        4 => npz_keys(&path).is_ok_and(|keys| {
            let mut all = keys.iter();
            all.all(|key| read_npz_key(&path, key).is_ok())
        }),
        5 => SliceReader::open(&[path]).is_ok_and(|reader| {
            let names: Vec<&str> = reader.names().collect();
            names.iter().all(|name| reader.read(name, None).is_ok())
        }),
        _ => bundle(&folder.join("a")),
    }
}

fn records(path: &Path, compression: &str) -> bool {
    let compression = RecordCompression::from_name(compression).expect("a compression");
    let Ok(mut reader) = RecordReader::open(path, compression) else {
        return false;
    };
    loop {
        match reader.read() {
            Ok(Some(_)) => {}
            Ok(None) => return true,
            Err(_) => return false,
        }
    }
}

/// The data of the tensors are 64 bytes.
fn bundle(prefix: &Path) -> bool {
    std::fs::write(prefix.with_extension("data-00000-of-00001"), [0; 64]).expect("a written file");
    let prefix = prefix.to_string_lossy();
    TensorBundle::open(&prefix).is_ok_and(|bundle| {
        let names: Vec<&str> = bundle.names().collect();
        names.iter().all(|name| bundle.read(name).is_ok())
    })
}
