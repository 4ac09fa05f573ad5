//! Files of every kind with changed, missing and repeated bytes: they are read or refused.
//!
//! The fuzz target `fuzz/fuzz_targets/files.rs` looks for new cases.

mod reading;

use ferroflow_model::arrays::write_npz;
use ferroflow_model::{
    BundleWriter, RecordCompression, RecordWriter, SavedPart, TensorSlice, write_slices,
};
use ferroflow_tensor::Tensor;
use std::path::{Path, PathBuf};

/// A temporary folder, removed on drop.
struct Folder(PathBuf);

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Returns a good file of each kind, in the order of `reading::read`.
fn good(folder: &Path) -> Vec<Vec<u8>> {
    let path = folder.join("good");
    let bytes = |path: &Path| std::fs::read(path).expect("a written file");
    let mut files: Vec<Vec<u8>> = ["", "ZLIB", "GZIP"]
        .iter()
        .map(|kind| {
            let kind = RecordCompression::from_name(kind).expect("a compression");
            let mut writer = RecordWriter::create(&path, kind).expect("a writer");
            for record in [&b"first"[..], &[7; 40], b""] {
                writer.write(record).expect("a record");
            }
            writer.finish().expect("a file");
            bytes(&path)
        })
        .collect();
    let header = "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }\n";
    let mut npy = b"\x93NUMPY\x01\x00".to_vec();
    npy.extend((header.len() as u16).to_le_bytes());
    npy.extend(header.bytes());
    npy.extend([0; 24]);
    files.push(npy);
    let value = Tensor::vector(&[1f32, 2.0, 3.0]).expect("a tensor");
    let names = Tensor::vector(&[1i64, 2]).expect("a tensor");
    let arrays = [
        ("a".to_string(), value.clone()),
        ("b".to_string(), names.clone()),
    ];
    write_npz(&path, &arrays).expect("a file");
    files.push(bytes(&path));
    let whole = value.shape().clone();
    let part = SavedPart {
        name: "w".into(),
        slice: TensorSlice::all(&whole),
        whole,
        value: &value,
    };
    write_slices(&path, &[part]).expect("a file");
    files.push(bytes(&path));
    let prefix = folder.join("bundle").display().to_string();
    let mut writer = BundleWriter::create(&prefix).expect("a writer");
    writer.add("a", &value).expect("a tensor");
    writer.add("b", &names).expect("a tensor");
    writer.finish().expect("a checkpoint");
    files.push(bytes(&folder.join("bundle.index")));
    files
}

/// Random numbers (Knuth's MMIX generator).
struct Random(u64);

impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % n.max(1)
    }
}

fn damaged(bytes: &[u8], random: &mut Random) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    for _ in 0..=random.below(3) {
        let at = random.below(bytes.len());
        match random.below(5) {
            0 => bytes.truncate(at),
            1 => {
                let piece = bytes[at..].to_vec();
                bytes.extend(piece);
            }
            2 => {
                let end = bytes.len().min(at + 8);
                bytes[at..end].fill(0xff);
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
fn damaged_files_are_read_or_refused() {
    let name = format!("ferroflow-damaged-{}", std::process::id());
    let folder = Folder(std::env::temp_dir().join(name));
    std::fs::create_dir_all(&folder.0).expect("a folder");
    let files = good(&folder.0);
    assert_eq!(files.len(), reading::count());
    let mut random = Random(5);
    for (kind, bytes) in files.iter().enumerate() {
        // The values of the bundle are others: their checksums differ.
        let is_bundle = kind + 1 == files.len();
        assert!(
            is_bundle || reading::read(kind, &folder.0, bytes),
            "kind {kind}"
        );
        for _ in 0..200 {
            reading::read(kind, &folder.0, &damaged(bytes, &mut random));
        }
    }
}
