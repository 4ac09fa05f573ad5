//! Ops that read vocabularies and checkpoints from files; the results are those of TensorFlow 2.21.

use ferroflow_base::Code;
use ferroflow_opdef::{AttrValue, Attrs};
use ferroflow_ops::registry;
use ferroflow_tensor::{Bytes, Shape, Tensor};
use ferroflow_testkit::folder::Folder;
use ferroflow_testkit::op::run;
use std::path::Path;

fn attrs(all: &[(&'static str, i64)]) -> Attrs {
    let mut attrs = Attrs::default();
    for &(name, value) in all {
        attrs.set(name, AttrValue::Int(value));
    }
    attrs
}

fn path(folder: &Folder, name: &str) -> Tensor {
    let path = folder.0.join(name).to_string_lossy().into_owned();
    Tensor::string(path.into_bytes())
}

fn write(path: &Path, text: &str) {
    std::fs::write(path, text).expect("a writable folder");
}

#[test]
fn vocabularies() {
    let folder = Folder::new("vocabularies");
    write(&folder.0.join("new"), "b\nx\na\ny\nc\n");
    write(&folder.0.join("old"), "a\nb\nc\nd\n");
    for (offset, n, old, remapping, present) in [
        (0, 5, -1, &[1i64, -1, 0, -1, 2][..], 3),
        (1, 3, -1, &[-1, 0, -1], 1),
        (0, 5, 2, &[1, -1, 0, -1, -1], 2),
        (0, 2, 1, &[-1, -1], 0),
    ] {
        let attrs = attrs(&[
            ("new_vocab_offset", offset),
            ("num_new_vocab", n),
            ("old_vocab_size", old),
        ]);
        let files = vec![path(&folder, "new"), path(&folder, "old")];
        let out = run(registry(), "GenerateVocabRemapping", &attrs, files).expect("runs");
        assert_eq!(out[0].slice::<i64>().unwrap(), remapping);
        assert_eq!(out[1].to_scalar::<i32>().unwrap(), present);
    }
    let attrs = attrs(&[("new_vocab_offset", 0), ("num_new_vocab", 6)]);
    let files = vec![path(&folder, "new"), path(&folder, "old")];
    let error = run(registry(), "GenerateVocabRemapping", &attrs, files).unwrap_err();
    assert_eq!(error.code(), Code::InvalidArgument, "{error}");
}

/// Saves `[[0, 1, 2], [3, 4, 5], [6, 7, 8], [9, 10, 11]]` as `m`.
fn saved(folder: &Folder) {
    let values: Vec<f32> = (0..12).map(|x| x as f32).collect();
    let one = |text: &str| {
        Tensor::from_strings([1], vec![Bytes::from(text.as_bytes().to_vec())]).unwrap()
    };
    let inputs = vec![
        path(folder, "ckpt"),
        one("m"),
        one(""),
        Tensor::from_slice([4, 3], &values).unwrap(),
    ];
    run(registry(), "SaveV2", &Attrs::default(), inputs).expect("saves");
}

#[test]
fn matrices() {
    let folder = Folder::new("remapped-matrices");
    saved(&folder);
    let load =
        |name: &str, rows: &[i64], columns: &[i64], init: &[f32], shape: [usize; 2], most| {
            let attrs = attrs(&[
                ("num_rows", shape[0] as i64),
                ("num_cols", shape[1] as i64),
                ("max_rows_in_memory", most),
            ]);
            let inputs = vec![
                path(&folder, "ckpt"),
                Tensor::string(name.as_bytes().to_vec()),
                Tensor::vector(rows).unwrap(),
                Tensor::vector(columns).unwrap(),
                Tensor::vector(init).unwrap(),
            ];
            run(registry(), "LoadAndRemapMatrix", &attrs, inputs).map(|mut out| out.swap_remove(0))
        };
    for (rows, columns, init, shape, expected) in [
        (
            &[2i64, 0][..],
            &[1i64, 2, 0][..],
            &[][..],
            [2, 3],
            &[7f32, 8., 6., 1., 2., 0.][..],
        ),
        (
            &[3, -1, 1],
            &[],
            &[-1., -2., -3.],
            [3, 3],
            &[9., 10., 11., -1., -2., -3., 3., 4., 5.],
        ),
        (&[3, -1], &[0, -1], &[9., 8., 7.], [2, 2], &[9., 9., 8., 7.]),
        (&[3, 1], &[0, -1], &[9., 8.], [2, 2], &[9., 9., 3., 8.]),
    ] {
        for most in [-1, 1, 2] {
            let out = load("m", rows, columns, init, shape, most).expect("loads");
            assert_eq!(out.shape(), &Shape::from(&shape[..]));
            assert_eq!(out.slice::<f32>().unwrap(), expected);
        }
    }
    for (name, rows, columns, init, shape, code, text) in [
        (
            "m",
            &[3i64, -1][..],
            &[0i64, -1][..],
            &[9f32][..],
            [2, 2],
            Code::InvalidArgument,
            "initializing_values contained 1 elements, but more missing values remain.",
        ),
        (
            "m",
            &[1, 1],
            &[],
            &[],
            [2, 3],
            Code::Unimplemented,
            "Old ID 1 is mapped to both new ID 0 and 1, which is not supported.",
        ),
        ("m", &[9], &[], &[], [1, 3], Code::Internal, "out of bounds"),
        (
            "q",
            &[0],
            &[],
            &[],
            [1, 3],
            Code::NotFound,
            "Key q not found in checkpoint",
        ),
        (
            "m",
            &[0, 1],
            &[],
            &[],
            [3, 3],
            Code::InvalidArgument,
            "Size of row_remapping is 2 instead of being equal to num_rows=3",
        ),
    ] {
        let error = load(name, rows, columns, init, shape, -1).unwrap_err();
        assert_eq!(error.code(), code, "{error}");
        assert!(error.message().contains(text), "{error}");
    }
}
