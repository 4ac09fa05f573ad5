//! Readers and checkpoints of the V1 format, as TensorFlow answers (`oracle/readers.py` writes
//! `readers.json`).

use ferroflow_testkit::tensors;

use ferroflow_runtime::building::{AttrValue, GraphBuilder};
use ferroflow_runtime::{
    Code, DType, Output, PartialShape, Result, Session, SessionOptions, Tensor, registry,
};
use ferroflow_testkit::folder::Folder;
use serde_json::Value as Json;
use std::path::Path;
use std::time::Duration;

/// A folder with files.
fn filled(what: &str, files: &Json) -> Folder {
    let folder = Folder::new(what);
    for (name, content) in files.as_object().expect("files") {
        std::fs::write(folder.path(name), bytes(content)).expect("writable");
    }
    folder
}

fn stored() -> Json {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/readers.json");
    let text = std::fs::read_to_string(path).expect("stored answers");
    serde_json::from_str(&text).expect("valid JSON")
}

fn bytes(hex: &Json) -> Vec<u8> {
    tensors::unhex(hex.as_str().expect("hexadecimal digits")).expect("digits")
}

fn list(items: &Json) -> &Vec<Json> {
    items.as_array().expect("a list")
}

fn text(value: String) -> Tensor {
    Tensor::string(value.into_bytes())
}

/// A graph with the reader and its queue; `v` is the version of all ops.
fn graph(case: &Json, v: &str) -> Result<Session> {
    let mut b = GraphBuilder::new(registry());
    let types = |t: DType| AttrValue::List(vec![AttrValue::Type(t)]);
    let scalar = AttrValue::List(vec![AttrValue::Shape(PartialShape::scalar())]);
    let queue = b.op(&format!("FIFOQueue{v}"));
    let queue = queue.attr("component_types", types(DType::String));
    let queue = queue.attr("shapes", scalar).output()?;
    let name = b.placeholder("name", DType::String, PartialShape::scalar())?;
    let put = b.op(&format!("QueueEnqueue{v}")).name("put");
    put.input(queue).inputs(&[name]).build()?;
    let close = b.op(&format!("QueueClose{v}")).name("close");
    close.input(queue).build()?;
    let op = case["op"].as_str().expect("an op");
    let mut reader = b.op(&format!("{op}{v}"));
    for (name, value) in case["attrs"].as_object().expect("attrs") {
        reader = reader.attr(
            name,
            match value.as_i64() {
                Some(n) => AttrValue::Int(n),
                None => AttrValue::str(value.as_str().expect("a string")),
            },
        );
    }
    let reader = reader.output()?;
    match case["up_to"].as_i64() {
        None => {
            let read = b.op(&format!("ReaderRead{v}")).name("read");
            read.input(reader).input(queue).build()?;
        }
        Some(n) => {
            let n = b.constant("n", Tensor::scalar(n))?;
            let read = b.op(&format!("ReaderReadUpTo{v}")).name("read");
            read.input(reader).input(queue).input(n).build()?;
        }
    }
    let mut one = |op: &str, name: &str, more: &[Output]| {
        let node = b.op(&format!("{op}{v}")).name(name).input(reader);
        more.iter().fold(node, |n, i| n.input(*i)).build()
    };
    one("ReaderNumRecordsProduced", "produced", &[])?;
    one("ReaderNumWorkUnitsCompleted", "completed", &[])?;
    one("ReaderSerializeState", "state", &[])?;
    one("ReaderReset", "reset", &[])?;
    one("ReaderRestoreState", "restore", &[name])?;
    Ok(Session::new(b.finish()?, SessionOptions::default()))
}

fn counts(session: &Session) -> Vec<i64> {
    let got = session.run(&[], &["produced:0", "completed:0"], &[]);
    let got = got.expect("counts");
    got.iter()
        .map(|t| t.to_scalar().expect("a number"))
        .collect()
}

fn check_reader(folder: &Folder, case: &Json, v: &str) {
    let what = format!("{case:.80} {v}");
    // IdentityReader returns names unchanged.
    let place = match case["op"].as_str() {
        Some("IdentityReader") => String::new(),
        _ => folder.path(""),
    };
    let session = graph(case, v).unwrap_or_else(|e| panic!("{what}: {e}"));
    for name in list(&case["names"]) {
        let name = format!("{place}{}", name.as_str().expect("a name"));
        let put = session.run(&[("name:0", text(name))], &[], &["put"]);
        put.expect("room in the queue");
    }
    session.run(&[], &[], &["close"]).expect("an open queue");
    let reads = list(&case["reads"]);
    for read in reads {
        let got = session.run(&[], &["read:0", "read:1"], &[]);
        let got = got.unwrap_or_else(|e| panic!("{what}: {e}"));
        for (part, want) in got.iter().zip(list(read)) {
            let want: Vec<Vec<u8>> = list(want).iter().map(bytes).collect();
            let got: Vec<Vec<u8>> = part
                .strings()
                .expect("strings")
                .iter()
                .map(|s| match s.strip_prefix(place.as_bytes()) {
                    Some(rest) if !place.is_empty() => rest.to_vec(),
                    _ => s.to_vec(),
                })
                .collect();
            assert_eq!(got, want, "{what}");
            let is_one = case["up_to"].is_null();
            assert_eq!(part.shape().is_scalar(), is_one, "{what}");
        }
        let want = [read[2].as_i64(), read[3].as_i64()].map(Option::unwrap);
        assert_eq!(counts(&session), want, "{what}");
    }
    let error = session
        .run(&[], &["read:0"], &[])
        .expect_err("no more files");
    assert_eq!(error.code(), Code::OutOfRange, "{what}: {error}");
    let last = list(&case["last"]).iter().filter_map(Json::as_i64);
    let last: Vec<i64> = last.collect();
    assert_eq!(counts(&session), last, "{what}");
    let state = session.run(&[], &["state:0"], &[]);
    if case["state"].is_null() {
        let error = state.expect_err("a reader without a state");
        assert_eq!(error.code(), Code::Unimplemented, "{what}: {error}");
        return;
    }
    let state = state.expect("a state").remove(0);
    if place.is_empty() {
        assert_eq!(state.strings().expect("a string")[0], bytes(&case["state"]));
    }
    session.run(&[], &[], &["reset"]).expect("resets");
    assert_eq!(counts(&session), [0, 0], "{what}");
    let restored = session.run(&[("name:0", state)], &[], &["restore"]);
    restored.expect("its own state");
    assert_eq!(counts(&session), last, "{what}");
    let error = session.run(&[("name:0", text("bad".into()))], &[], &["restore"]);
    let error = error.expect_err("no state").to_string();
    assert!(error.contains("Could not parse state for"), "{error}");
}

#[test]
fn readers_are_tensorflows() {
    let stored = stored();
    let folder = filled("files", &stored["files"]);
    for case in list(&stored["readers"]) {
        for v in ["V2", ""] {
            check_reader(&folder, case, v);
        }
    }
}

/// Reads that came before the names do wait, in their order; those of a step that is given up end.
#[test]
fn reads_wait_for_names() {
    let case = serde_json::json!({"op": "IdentityReader", "attrs": {}, "up_to": null});
    let session = graph(&case, "V2").expect("a graph");
    let session = &session;
    std::thread::scope(|scope| {
        let reads: Vec<_> = (0..3)
            .map(|_| scope.spawn(move || session.run(&[], &["read:1"], &[])))
            .collect();
        while session.num_running() < 3 {
            std::thread::yield_now();
        }
        for name in ["a", "b", "c"] {
            let put = session.run(&[("name:0", text(name.into()))], &[], &["put"]);
            put.expect("room in the queue");
        }
        let mut got: Vec<Vec<u8>> = reads
            .into_iter()
            .map(|r| r.join().expect("no panic").expect("a record"))
            .map(|t| t[0].strings().expect("a string")[0].to_vec())
            .collect();
        got.sort();
        assert_eq!(got, [b"a", b"b", b"c"]);
    });
    let options = ferroflow_runtime::RunOptions {
        timeout: Some(Duration::from_millis(30)),
        ..Default::default()
    };
    let error = session.run_with(&[], &["read:1"], &[], &options);
    let error = error.expect_err("nothing comes");
    assert_eq!(error.code(), Code::DeadlineExceeded, "{error}");
    // The reader is not stuck with it.
    let put = session.run(&[("name:0", text("d".into()))], &[], &["put"]);
    put.expect("room in the queue");
    let got = session.run(&[], &["read:1"], &[]).expect("a record");
    assert_eq!(got[0].strings().expect("a string")[0], "d");
}

/// What a reader cannot be or do.
#[test]
fn readers_refuse() {
    let check = |op: &str, attrs: Json, part: &str| {
        let case = serde_json::json!({"op": op, "attrs": attrs, "up_to": null});
        let error = graph(&case, "V2").and_then(|s| s.run(&[], &[], &["reset"]));
        let error = error.expect_err(part).to_string();
        assert!(error.contains(part), "{error}");
    };
    let fixed = "FixedLengthRecordReader";
    for name in ["header_bytes", "footer_bytes", "hop_bytes"] {
        let attrs = serde_json::json!({"record_bytes": 1, name: -1});
        check(fixed, attrs, &format!("{name} must be >= 0 not -1"));
    }
    let attrs = serde_json::json!({"record_bytes": 0});
    check(fixed, attrs, "record_bytes must be > 0 not 0");
    let attrs = serde_json::json!({"skip_header_lines": -1});
    check(
        "TextLineReader",
        attrs,
        "skip_header_lines must be >= 0 not -1",
    );

    let case = serde_json::json!({"op": "TextLineReader", "attrs": {}, "up_to": null});
    let session = graph(&case, "V2").expect("a graph");
    let folder = filled("refuse", &serde_json::json!({"a": "61"}));
    for name in ["none", "a"] {
        let put = session.run(&[("name:0", text(folder.path(name)))], &[], &["put"]);
        put.expect("room in the queue");
    }
    let error = session
        .run(&[], &["read:1"], &[])
        .expect_err("no such file");
    assert_eq!(error.code(), Code::NotFound, "{error}");
    let got = session.run(&[], &["read:1"], &[]).expect("the next file");
    assert_eq!(got[0].strings().expect("a string")[0], "a");
}

/// A session that restores with one of the ops, everything fed.
fn restorer(op: &str, dtype: DType) -> Session {
    let mut b = GraphBuilder::new(registry());
    let feed = |b: &mut GraphBuilder, name: &str| {
        let feed = b.placeholder(name, DType::String, PartialShape::unknown());
        feed.expect("a placeholder")
    };
    let [pattern, name, spec] = ["pattern", "name", "spec"].map(|n| feed(&mut b, n));
    let node = b.op(op).name("value").input(pattern).input(name);
    let node = match op {
        "Restore" => node,
        _ => node.input(spec),
    };
    let node = match op {
        "RestoreV2" => node.attr("dtypes", AttrValue::List(vec![dtype.into()])),
        _ => node.attr("dt", dtype.into()),
    };
    node.build().expect("a node");
    Session::new(b.finish().expect("a graph"), SessionOptions::default())
}

#[test]
fn old_checkpoints_are_read() {
    let mut stored = stored();
    let files = stored["checkpoints"]["files"]
        .as_object_mut()
        .expect("files");
    files.insert("a.txt".to_string(), "61620a".into());
    let stored = &stored["checkpoints"];
    let folder = filled("old", &stored["files"]);
    for ask in list(&stored["asks"]) {
        let number = ask["dtype"].as_i64().expect("a dtype") as i32;
        let dtype = DType::from_number(number).expect("a dtype");
        let name = ask["name"].as_str().expect("a name").to_string();
        let pattern = folder.path(ask["pattern"].as_str().expect("a pattern"));
        let spec = ask["spec"].as_str();
        let op = match spec {
            None => "Restore",
            Some(_) => "RestoreSlice",
        };
        for op in [op, "RestoreV2"] {
            let vector = |text: String| match op {
                "RestoreV2" => Tensor::from_strings([1], vec![text.into_bytes().into()]),
                _ => Ok(self::text(text)),
            };
            let mut feeds = vec![
                ("pattern:0", text(pattern.clone())),
                ("name:0", vector(name.clone()).expect("strings")),
            ];
            if op != "Restore" {
                let spec = spec.unwrap_or_default().to_string();
                feeds.push(("spec:0", vector(spec).expect("strings")));
            }
            let got = restorer(op, dtype).run(&feeds, &["value:0"], &[]);
            match ask["error"].as_i64() {
                Some(code) => {
                    let error = got.expect_err("no such tensor");
                    assert_eq!(error.code() as i64, code, "{ask}: {error}");
                }
                None => {
                    let got = got.unwrap_or_else(|e| panic!("{op} {ask}: {e}"));
                    let want = tensors::tensor(&ask["value"]).expect("a tensor");
                    tensors::compare(&want, &got[0], 0.0).unwrap_or_else(|e| panic!("{ask}: {e}"));
                }
            }
        }
    }
}

#[test]
fn old_checkpoints_are_written() {
    let folder = Folder::new("written");
    let mut b = GraphBuilder::new(registry());
    let floats: Vec<f32> = (0..6).map(|i| i as f32).collect();
    let value = Tensor::from_slice([2, 3], &floats).expect("a tensor");
    let value = b.constant("value", value).expect("a constant");
    let words = ["x", "yy"].map(|w| w.as_bytes().to_vec().into());
    let words = Tensor::from_strings([2], words.to_vec()).expect("strings");
    let words = b.constant("words", words).expect("a constant");
    let strings = |b: &mut GraphBuilder, all: &[&str]| {
        let all: Vec<_> = all.iter().map(|s| s.as_bytes().to_vec().into()).collect();
        let all = Tensor::from_strings([all.len()], all).expect("strings");
        b.constant("strings", all).expect("a constant")
    };
    let mut save = |name: &str, specs: Option<[&str; 2]>| {
        let path = text(folder.path(name));
        let path = b.constant("path", path).expect("a constant");
        let names = strings(&mut b, &["v", "w"]);
        let op = if specs.is_some() {
            "SaveSlices"
        } else {
            "Save"
        };
        let specs = specs.map(|s| strings(&mut b, &s));
        let node = b.op(op).name(name).input(path).input(names);
        let node = specs.into_iter().fold(node, |n, s| n.input(s));
        node.inputs(&[value, words]).build().expect("a node");
    };
    save("whole", None);
    save("part", Some(["4 3 2,2:-", ""]));
    save("bad", Some(["4 3 2,1:-", ""]));
    let session = Session::new(b.finish().expect("a graph"), SessionOptions::default());
    session.run(&[], &[], &["whole", "part"]).expect("saves");
    let error = session.run(&[], &[], &["bad"]).expect_err("another shape");
    assert!(
        error.to_string().contains("does not match the shape"),
        "{error}"
    );
    let read = |file: &str, spec: &str| {
        let feeds = [
            ("pattern:0", text(folder.path(file))),
            ("name:0", text("v".into())),
            ("spec:0", text(spec.into())),
        ];
        let got = restorer("RestoreSlice", DType::Float).run(&feeds, &["value:0"], &[]);
        got.map(|t| t[0].slice::<f32>().expect("floats").to_vec())
    };
    assert_eq!(read("whole", "").expect("all of it"), floats);
    assert_eq!(read("part", "4 3 3,1:0,2").expect("a part"), [3.0, 4.0]);
    read("part", "").expect_err("half of it is in no file");
}
