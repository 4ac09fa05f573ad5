//! Checkpoints that TensorFlow wrote: every tensor is read as TensorFlow reads it, and damaged
//! files are errors or have right values, never a panic.

use ferroflow_base::Code;
use ferroflow_model::{TensorBundle, TensorSlice};
use ferroflow_tensor::{Bytes, DType, Shape, Tensor};
use proptest::prelude::*;
use serde_json::Value as Json;
use std::path::{Path, PathBuf};

const FILES: [&str; 3] = [
    "every.index",
    "every.data-00000-of-00002",
    "every.data-00001-of-00002",
];

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/bundles")
}

fn unhex(json: &Json) -> Vec<u8> {
    let digits = json.as_str().expect("hexadecimal digits").as_bytes();
    let byte = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap();
    digits.chunks(2).map(byte).collect()
}

/// Returns the tensors that TensorFlow read, by name.
fn expected() -> Vec<(String, Tensor)> {
    let text = std::fs::read_to_string(folder().join("expected.json")).expect("it exists");
    let json: Json = serde_json::from_str(&text).expect("JSON");
    let tensor = |(name, json): (&String, &Json)| {
        let dtype = DType::from_name(json["dtype"].as_str()?)?;
        let dims = json["shape"].as_array()?.iter();
        let shape: Shape = dims.map(|d| d.as_u64().unwrap() as usize).collect();
        let value = match dtype {
            DType::String => {
                let values = json["hex"].as_array()?.iter();
                Tensor::from_strings(shape, values.map(|h| Bytes::from(unhex(h))).collect())
            }
            _ => Tensor::from_bytes(dtype, shape, &unhex(&json["hex"])),
        };
        Some((name.clone(), value.expect("well-formed")))
    };
    json.as_object()
        .unwrap()
        .iter()
        .filter_map(tensor)
        .collect()
}

/// A copy of the checkpoint in a temporary folder, removed on drop.
struct Copy(PathBuf);

impl Copy {
    fn new(what: &str) -> Copy {
        let name = format!("ferroflow-bundle-{}-{what}", std::process::id());
        let to = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&to).expect("writable");
        for file in FILES {
            std::fs::copy(folder().join(file), to.join(file)).expect("copied");
        }
        Copy(to)
    }

    fn open(&self) -> ferroflow_base::Result<TensorBundle> {
        TensorBundle::open(&self.0.join("every").to_string_lossy())
    }

    /// Reads all expected tensors. Those that can be read must be right; returns the errors.
    fn check(&self, expected: &[(String, Tensor)]) -> Vec<ferroflow_base::Status> {
        let bundle = match self.open() {
            Ok(bundle) => bundle,
            Err(e) => return vec![e],
        };
        let mut errors = Vec::new();
        for (name, value) in expected {
            match bundle.read(name) {
                Ok(read) => assert!(read.same_value(value), "{name}: {read:?} is not {value:?}"),
                Err(e) => errors.push(e),
            }
        }
        errors
    }
}

impl Drop for Copy {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[test]
fn every_tensor_is_what_tensorflow_read() {
    let expected = expected();
    assert!(expected.len() > 60, "{}", expected.len());
    let bundle = TensorBundle::open(&folder().join("every").to_string_lossy()).expect("opens");
    let names: Vec<&str> = expected.iter().map(|(n, _)| n.as_str()).collect();
    assert_eq!(bundle.names().collect::<Vec<_>>(), names);
    for (name, value) in &expected {
        let read = bundle.read(name).unwrap_or_else(|e| panic!("{name}: {e}"));
        assert!(read.same_value(value), "{name}: {read:?} is not {value:?}");
        let (dtype, shape) = bundle.dtype_and_shape(name).expect("there");
        assert_eq!((dtype, &shape), (value.dtype(), value.shape()));
    }
    let missing = bundle.read("nope").expect_err("not there");
    assert_eq!(missing.code(), Code::NotFound);
    assert_eq!(missing.message(), "Key nope not found in checkpoint");
    assert_eq!(
        bundle.read("").expect_err("the header").code(),
        Code::NotFound
    );
}

#[test]
fn parts_of_tensors() {
    let bundle = TensorBundle::open(&folder().join("every").to_string_lossy()).expect("opens");
    let whole = bundle.read("sliced").expect("there");
    let whole = whole.slice::<f32>().unwrap();
    for (start, rows) in [(0, 5), (0, 2), (1, 3), (2, 3), (4, 1)] {
        for (left, columns) in [(0, 4), (0, 1), (1, 3), (2, 2), (3, 1)] {
            let spec = format!("5 4 {start},{rows}:{left},{columns}");
            let (shape, slice) = TensorSlice::parse_spec(&spec).expect("valid");
            let part = bundle.read_slice("sliced", &shape, &slice).expect("there");
            let wanted: Vec<f32> = (start..start + rows)
                .flat_map(|r| whole[r * 4 + left..][..columns].to_vec())
                .collect();
            assert_eq!(part.slice::<f32>().unwrap(), wanted, "{spec}");
        }
    }
    // Slices of a tensor that is stored as a whole.
    let (shape, slice) = TensorSlice::parse_spec("2 3 1,1:0,2").expect("valid");
    let part = bundle
        .read_slice("of_int32", &shape, &slice)
        .expect("there");
    let all = bundle.read("of_int32").expect("there");
    assert_eq!(
        part.slice::<i32>().unwrap(),
        &all.slice::<i32>().unwrap()[3..5]
    );
    let (shape, slice) = TensorSlice::parse_spec("2 4 1,1:0,2").expect("valid");
    let other = bundle.read_slice("of_int32", &shape, &slice);
    assert_eq!(
        other.expect_err("other shape").code(),
        Code::InvalidArgument
    );
}

#[test]
fn missing_files_are_named() {
    let copy = Copy::new("missing");
    let expected = expected();
    let shard = copy.0.join(FILES[1]);
    std::fs::remove_file(&shard).expect("was there");
    let errors = copy.check(&expected);
    assert!(!errors.is_empty());
    for e in &errors {
        let text = e.to_string();
        assert_eq!(e.code(), Code::NotFound, "{e}");
        assert!(
            text.contains(FILES[1]) && text.contains("for tensor '"),
            "{text}"
        );
    }
    std::fs::remove_file(copy.0.join(FILES[0])).expect("was there");
    let e = copy.open().err().expect("no index");
    assert_eq!(e.code(), Code::NotFound);
    assert!(e.message().starts_with(
        "Unsuccessful TensorSliceReader constructor: Failed to find any matching files for "
    ));
}

#[test]
fn files_cut_short() {
    let copy = Copy::new("cut");
    let expected = expected();
    for file in FILES {
        let whole = std::fs::read(folder().join(file)).expect("readable");
        let path = copy.0.join(file);
        let step = if file.ends_with(".index") {
            1
        } else {
            whole.len() / 20 + 1
        };
        for keep in (0..whole.len()).step_by(step) {
            // A new file each time: the old one may still be mapped.
            std::fs::remove_file(&path).expect("was there");
            std::fs::write(&path, &whole[..keep]).expect("writable");
            let errors = copy.check(&expected);
            assert!(!errors.is_empty(), "{file} cut to {keep} bytes");
            for e in errors {
                assert_eq!(e.code(), Code::DataLoss, "{file} cut to {keep} bytes: {e}");
            }
        }
        std::fs::remove_file(&path).expect("was there");
        std::fs::write(&path, whole).expect("writable");
    }
    assert!(copy.check(&expected).is_empty());
}

#[test]
fn flipped_bits() {
    let copy = Copy::new("flipped");
    let expected = expected();
    for file in FILES {
        let whole = std::fs::read(folder().join(file)).expect("readable");
        let path = copy.0.join(file);
        for i in 0..whole.len() {
            let mut bytes = whole.clone();
            bytes[i] ^= 1 << (i % 8);
            std::fs::remove_file(&path).expect("was there");
            std::fs::write(&path, bytes).expect("writable");
            for e in copy.check(&expected) {
                assert_eq!(e.code(), Code::DataLoss, "{file} at {i}: {e}");
            }
        }
        std::fs::remove_file(&path).expect("was there");
        std::fs::write(&path, whole).expect("writable");
    }
}

proptest! {
    /// Arbitrary entries in an otherwise valid table.
    #[test]
    fn hostile_entries(
        dtype in -1..40i32, dims in prop::collection::vec(any::<i64>(), 0..4), shard in -1..3i32,
        offset in any::<i64>(), size in any::<i64>(), near in any::<bool>(),
        extents in prop::collection::vec((any::<i64>(), any::<i64>()), 0..4),
    ) {
        let clamp = |v: i64| if near { v.rem_euclid(9) } else { v };
        let entry = ferroflow_model::proto::BundleEntryProto {
            dtype,
            shape: Some(ferroflow_model::proto::TensorShapeProto {
                dim: dims.iter().map(|&d| ferroflow_model::proto::tensor_shape_proto::Dim {
                    size: clamp(d),
                    name: String::new(),
                }).collect(),
                unknown_rank: false,
            }),
            shard_id: shard,
            offset: clamp(offset),
            size: clamp(size),
            crc32c: 0,
            slices: if extents.is_empty() { vec![] } else {
                vec![ferroflow_model::proto::TensorSliceProto {
                    extent: extents.iter().map(|&(start, length)| {
                        use ferroflow_model::proto::tensor_slice_proto::{Extent, extent::HasLength};
                        Extent { start: clamp(start), has_length: Some(HasLength::Length(clamp(length))) }
                    }).collect(),
                }]
            },
        };
        let bundle = TensorBundle::with_entry(
            &folder().join("every").to_string_lossy(), "x", &entry, 2);
        let _ = bundle.read("x");
        let _ = bundle.dtype_and_shape("x");
        let (shape, slice) = TensorSlice::parse_spec("2 3 0,1:1,2").unwrap();
        let _ = bundle.read_slice("x", &shape, &slice);
    }
}
