//! Graphs that read and write files: checkpoints, whole files, names by pattern; pictures that are
//! encoded and decoded again.

use ferroflow_runtime::{Code, CompileOptions, Result, Session, SessionOptions, Tensor};
use ferroflow_testkit::folder::Folder;

fn words(name: &str, values: &[&str], scalar: bool) -> String {
    let items: String = values
        .iter()
        .map(|v| format!("string_val: '{v}' "))
        .collect();
    let shape = match scalar {
        true => String::new(),
        false => format!("dim {{ size: {} }}", values.len()),
    };
    format!(
        "node {{ name: '{name}' op: 'Const' attr {{ key: 'dtype' value {{ type: DT_STRING }} }} \
         attr {{ key: 'value' value {{ tensor {{ dtype: DT_STRING tensor_shape {{ {shape} }} {items} \
         }} }} }} }}\n"
    )
}

fn placeholder(name: &str, dtype: &str) -> String {
    format!(
        "node {{ name: '{name}' op: 'Placeholder' attr {{ key: 'dtype' value {{ type: {dtype} }} }} }}\n"
    )
}

fn node(name: &str, op: &str, inputs: &[&str], attrs: &str) -> String {
    let inputs: String = inputs.iter().map(|i| format!("input: '{i}' ")).collect();
    format!("node {{ name: '{name}' op: '{op}' {inputs} {attrs} }}\n")
}

fn types(name: &str, types: &[&str]) -> String {
    let types: String = types.iter().map(|t| format!("type: {t} ")).collect();
    format!("attr {{ key: '{name}' value {{ list {{ {types} }} }} }}")
}

fn session(graph: &str) -> Session {
    let options = SessionOptions {
        threads: 2,
        compile: CompileOptions::all(),
        ..Default::default()
    };
    Session::from_text(graph, options).expect("a valid graph")
}

fn run(
    s: &Session,
    feeds: &[(&str, Tensor)],
    fetches: &[&str],
    targets: &[&str],
) -> Result<Vec<Tensor>> {
    s.run(feeds, fetches, targets)
}

/// Saves `x` (and a slice of it in another file), merges both, restores.
fn checkpoint(folder: &Folder) -> Session {
    let t = ["DT_FLOAT", "DT_FLOAT"];
    let (parts, model) = (
        [folder.path("tmp/a"), folder.path("tmp/b")],
        folder.path("model"),
    );
    session(
        &[
            placeholder("x", "DT_FLOAT"),
            placeholder("half", "DT_FLOAT"),
            words("a", &[&parts[0]], true),
            words("b", &[&parts[1]], true),
            words("names", &["x", "grid"], false),
            words("specs", &["", "2 2 0,1:-"], false),
            words("other", &["grid"], false),
            words("other_specs", &["2 2 1,1:-"], false),
            node(
                "save_a",
                "SaveV2",
                &["a", "names", "specs", "x", "half"],
                &types("dtypes", &t),
            ),
            node(
                "save_b",
                "SaveV2",
                &["b", "other", "other_specs", "half"],
                &types("dtypes", &t[..1]),
            ),
            words("parts", &[&parts[0], &parts[1]], false),
            words("model", &[&model], true),
            node("merge", "MergeV2Checkpoints", &["parts", "model"], ""),
            words("empty", &["", ""], false),
            node(
                "restore",
                "RestoreV2",
                &["model", "names", "empty"],
                &types("dtypes", &t),
            ),
            words("column", &["2 2 -:1,1"], false),
            node(
                "part",
                "RestoreV2",
                &["model", "other", "column"],
                &types("dtypes", &t[..1]),
            ),
            words("missing", &["nothing"], false),
            words("one", &[""], false),
            node(
                "gone",
                "RestoreV2",
                &["model", "missing", "one"],
                &types("dtypes", &t[..1]),
            ),
        ]
        .concat(),
    )
}

#[test]
fn checkpoints_are_saved_merged_and_restored() {
    let folder = Folder::new("checkpoint");
    let s = checkpoint(&folder);
    for round in 0..3 {
        let x = Tensor::vector(&[round as f32, 2.0, 3.0]).unwrap();
        let half = Tensor::from_slice([1, 2], &[round as f32, 7.0]).unwrap();
        run(
            &s,
            &[("x:0", x.clone()), ("half:0", half.clone())],
            &[],
            &["save_a"],
        )
        .unwrap();
        run(&s, &[("half:0", half)], &[], &["save_b"]).unwrap();
        run(&s, &[], &[], &["merge"]).unwrap();
        let out = run(&s, &[], &["restore:0", "restore:1", "part:0"], &[]).unwrap();
        assert!(out[0].same_value(&x), "{:?}", out[0]);
        let value = round as f32;
        assert_eq!(out[1].slice::<f32>().unwrap(), [value, 7.0, value, 7.0]);
        assert_eq!(out[2].slice::<f32>().unwrap(), [7.0, 7.0]);
    }
    let error = run(&s, &[], &["gone:0"], &[]).unwrap_err();
    assert_eq!(error.code(), Code::NotFound);
    assert!(
        error
            .message()
            .contains("Key nothing not found in checkpoint"),
        "{error}"
    );
    // A flipped bit is noticed, and the session lives on.
    let data = std::fs::read_dir(&folder.0).unwrap().flatten();
    for file in data.filter(|f| f.file_name().to_string_lossy().contains(".data-")) {
        let mut bytes = std::fs::read(file.path()).unwrap();
        if let Some(byte) = bytes.first_mut() {
            *byte ^= 4;
        }
        let copy = folder.path("damaged");
        std::fs::write(&copy, bytes).unwrap();
        std::fs::rename(copy, file.path()).unwrap();
    }
    let error = run(&s, &[], &["restore:0", "restore:1"], &[]).unwrap_err();
    assert_eq!(error.code(), Code::DataLoss);
}

#[test]
fn files_are_written_found_and_read() {
    let folder = Folder::new("files");
    let s = session(
        &[
            placeholder("name", "DT_STRING"),
            placeholder("contents", "DT_STRING"),
            node("write", "WriteFile", &["name", "contents"], ""),
            node("read", "ReadFile", &["name"], ""),
            node("match", "MatchingFiles", &["name"], ""),
        ]
        .concat(),
    );
    let text = |t: &str| Tensor::string(t.to_string());
    for (name, contents) in [("d/b1.txt", "one"), ("d/a2.txt", ""), ("e/b3.txt", "three")] {
        let feeds = [
            ("name:0", text(&folder.path(name))),
            ("contents:0", text(contents)),
        ];
        run(&s, &feeds, &[], &["write"]).unwrap();
        let out = run(&s, &feeds[..1], &["read:0"], &[]).unwrap();
        assert_eq!(out[0].strings().unwrap()[0], contents.as_bytes());
    }
    for (pattern, expected) in [
        ("d/*.txt", &["d/a2.txt", "d/b1.txt"][..]),
        ("*/b[0-9].txt", &["d/b1.txt", "e/b3.txt"]),
        ("d/b?.txt", &["d/b1.txt"]),
        ("d/nothing", &[]),
        ("d/b1.txt", &["d/b1.txt"]),
    ] {
        let out = run(
            &s,
            &[("name:0", text(&folder.path(pattern)))],
            &["match:0"],
            &[],
        )
        .unwrap();
        let found: Vec<_> = out[0].strings().unwrap().to_vec();
        let expected: Vec<_> = expected
            .iter()
            .map(|e| folder.path(e).into_bytes())
            .collect();
        assert_eq!(found, expected, "{pattern}");
    }
    let gone = run(
        &s,
        &[("name:0", text(&folder.path("gone")))],
        &["read:0"],
        &[],
    )
    .unwrap_err();
    assert_eq!(gone.code(), Code::NotFound);
}

#[test]
fn pictures_come_back() {
    let s = session(
        &[
            placeholder("image", "DT_UINT8"),
            node("png", "EncodePng", &["image"], ""),
            node("jpeg", "EncodeJpeg", &["image"], ""),
            node("from_png", "DecodePng", &["png"], ""),
            node("from_jpeg", "DecodeJpeg", &["jpeg"], ""),
        ]
        .concat(),
    );
    for channels in [1usize, 3] {
        let pixels: Vec<u8> = (0..24 * 16 * channels)
            .map(|i| {
                let (x, y) = ((i / channels) % 16, i / channels / 16);
                (x * 9 + y * 4 + (i % channels) * 20) as u8
            })
            .collect();
        let image = Tensor::from_slice([24, 16, channels], &pixels).unwrap();
        let out = run(
            &s,
            &[("image:0", image.clone())],
            &["from_png:0", "from_jpeg:0"],
            &[],
        )
        .unwrap();
        assert!(out[0].same_value(&image));
        assert_eq!(out[1].shape(), image.shape());
        let pairs = out[1].slice::<u8>().unwrap().iter().zip(&pixels);
        let error: u32 = pairs.map(|(a, b)| u32::from(a.abs_diff(*b))).sum();
        assert!(
            error < 3 * pixels.len() as u32,
            "{error} over {} samples",
            pixels.len()
        );
    }
}

#[test]
fn constants_are_read_from_files() {
    let folder = Folder::new("immutable_const");
    let path = folder.path("values.bin");
    let bytes: Vec<u8> = [1.5f32, -2.0, 3.25, 9.0]
        .iter()
        .flat_map(|x| x.to_ne_bytes())
        .collect();
    std::fs::write(&path, bytes).expect("a file");
    let constant = |name: &str, dtype: &str, n: usize, path: &str| {
        let attrs = format!(
            "attr {{ key: 'dtype' value {{ type: {dtype} }} }} \
             attr {{ key: 'shape' value {{ shape {{ dim {{ size: {n} }} }} }} }} \
             attr {{ key: 'memory_region_name' value {{ s: '{path}' }} }}"
        );
        node(name, "ImmutableConst", &[], &attrs)
    };
    let s = session(
        &[
            constant("read", "DT_FLOAT", 3, &path),
            constant("long", "DT_FLOAT", 5, &path),
            constant("text", "DT_STRING", 1, &path),
            constant("none", "DT_FLOAT", 1, &format!("{path}.none")),
        ]
        .concat(),
    );
    let got = run(&s, &[], &["read:0"], &[]).expect("the values");
    assert_eq!(got[0].slice::<f32>().expect("floats"), [1.5, -2.0, 3.25]);
    for (name, code, words) in [
        (
            "long:0",
            Code::Internal,
            "Readonly memory region has wrong length (16) when allocating 20",
        ),
        (
            "text:0",
            Code::Unimplemented,
            "Sorry, DT_STRING is not currently supported for ImmutableConstOp.",
        ),
        ("none:0", Code::NotFound, "No such file or directory"),
    ] {
        let error = run(&s, &[], &[name], &[]).expect_err(name);
        assert_eq!(error.code(), code);
        assert!(error.message().contains(words), "{error}");
    }
}
