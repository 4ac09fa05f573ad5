//! Stateful ops whose effects no golden row can hold: summary writers, resources of TensorFlow's
//! tests, session tensors.

use ferroflow_model::proto::{Event, GraphDef, NodeDef, Summary, event::What, summary};
use ferroflow_model::{RecordCompression, RecordReader, decode};
use ferroflow_runtime::building::GraphBuilder;
use ferroflow_runtime::{
    Code, DType, DeviceSet, Output, Result, Session, SessionOptions, Tensor, registry,
};
use ferroflow_testkit::folder::Folder;
use prost::Message;

fn text(value: &str) -> Tensor {
    Tensor::string(value.as_bytes().to_vec())
}

/// A graph of one writer and a node of each op, named after it.
fn writers(logdir: &str) -> Result<Session> {
    let mut b = GraphBuilder::new(registry());
    let writer = b.op("SummaryWriter").output()?;
    let logdir = b.constant("const", text(logdir))?;
    let (queue, millis) = (
        b.constant("const", Tensor::scalar(10))?,
        b.constant("const", Tensor::scalar(60_000))?,
    );
    let suffix = b.constant("const", text(".test"))?;
    let mut op = |name: &str, inputs: &[Output]| {
        let node = b.op(name).name(name).input(writer);
        let node = inputs.iter().fold(node, |node, i| node.input(*i));
        node.build().map(drop)
    };
    op("CreateSummaryFileWriter", &[logdir, queue, millis, suffix])?;
    op("FlushSummaryWriter", &[])?;
    op("CloseSummaryWriter", &[])?;
    let step = b.constant("const", Tensor::scalar(7i64))?;
    let tag = b.constant("const", text("tag"))?;
    let value = b.constant("const", Tensor::from_slice([3], &[1.0f32, 2.0, 4.0])?)?;
    let scalar = b.constant("const", Tensor::scalar(0.5f32))?;
    let metadata = b.constant("const", text(""))?;
    let raw = Summary {
        value: vec![summary::Value {
            tag: "raw".into(),
            ..Default::default()
        }],
    };
    let raw = b.constant("const", Tensor::string(raw.encode_to_vec()))?;
    let graph = GraphDef {
        node: vec![NodeDef {
            name: "n".into(),
            ..Default::default()
        }],
        ..Default::default()
    };
    let graph = b.constant("const", Tensor::string(graph.encode_to_vec()))?;
    let event = Event {
        step: 99,
        ..Default::default()
    };
    let event = b.constant("const", Tensor::string(event.encode_to_vec()))?;
    let mut op = |name: &str, inputs: &[Output]| {
        let node = b.op(name).name(name).input(writer);
        let node = inputs.iter().fold(node, |node, i| node.input(*i));
        node.build().map(drop)
    };
    op("WriteSummary", &[step, value, tag, metadata])?;
    op("WriteScalarSummary", &[step, tag, scalar])?;
    op("WriteHistogramSummary", &[step, tag, value])?;
    op("WriteRawProtoSummary", &[step, raw])?;
    op("WriteGraphSummary", &[step, graph])?;
    op("ImportEvent", &[event])?;
    let image = b.constant("const", Tensor::zeros(DType::Uint8, [1, 2, 3, 1].into())?)?;
    let color = b.constant("const", Tensor::vector(&[255u8, 0, 0, 255])?)?;
    let sound = b.constant("const", Tensor::zeros(DType::Float, [1, 8, 2].into())?)?;
    let rate = b.constant("const", Tensor::scalar(8000.0f32))?;
    let mut op = |name: &str, inputs: &[Output]| {
        let node = b.op(name).name(name).input(writer);
        let node = inputs.iter().fold(node, |node, i| node.input(*i));
        node.build().map(drop)
    };
    op("WriteImageSummary", &[step, tag, image, color])?;
    op("WriteAudioSummary", &[step, tag, sound, rate])?;
    Ok(Session::new(b.finish()?, SessionOptions::default()))
}

fn events(folder: &Folder) -> Vec<Event> {
    let mut files = std::fs::read_dir(&folder.0).expect("a folder");
    let path = files
        .next()
        .expect("an event file")
        .expect("readable")
        .path();
    assert!(path.to_string_lossy().ends_with(".test"), "{path:?}");
    let mut reader = RecordReader::open(&path, RecordCompression::None).expect("records");
    let mut events = Vec::new();
    while let Some(record) = reader.read().expect("whole records") {
        events.push(decode(&record).expect("an event"));
    }
    events
}

#[test]
fn summary_writers_write_events() {
    let folder = Folder::new("summary-writers");
    let session = writers(&folder.0.to_string_lossy()).expect("a valid graph");
    let run = |target: &str| session.run(&[], &[], &[target]);
    let unopened = run("WriteScalarSummary").expect_err("no file yet");
    assert_eq!(unopened.code(), Code::NotFound, "{unopened}");
    for target in [
        "CreateSummaryFileWriter",
        "WriteScalarSummary",
        "WriteHistogramSummary",
        "WriteSummary",
        "WriteRawProtoSummary",
        "WriteGraphSummary",
        "ImportEvent",
        "WriteImageSummary",
        "WriteAudioSummary",
        "FlushSummaryWriter",
    ] {
        run(target).unwrap_or_else(|e| panic!("{target}: {e}"));
    }
    let events = events(&folder);
    let steps: Vec<i64> = events.iter().map(|e| e.step).collect();
    assert_eq!(steps, [0, 7, 7, 7, 7, 7, 99, 7, 7]);
    let value = |i: usize| match &events[i].what {
        Some(What::Summary(s)) => s.value[0].value.clone(),
        other => panic!("event {i} is {other:?}"),
    };
    use summary::value::Value;
    assert_eq!(value(1), Some(Value::SimpleValue(0.5)));
    let Some(Value::Histo(histogram)) = value(2) else {
        panic!("no histogram: {:?}", value(2));
    };
    assert_eq!((histogram.num, histogram.sum), (3.0, 7.0));
    assert!(matches!(value(3), Some(Value::Tensor(_))));
    assert_eq!(value(4), None);
    let Some(Value::Image(image)) = value(7) else {
        panic!("no image: {:?}", value(7));
    };
    assert_eq!((image.height, image.width, image.colorspace), (2, 3, 1));
    let Some(Value::Audio(audio)) = value(8) else {
        panic!("no sound: {:?}", value(8));
    };
    let length = (audio.sample_rate, audio.num_channels, audio.length_frames);
    assert_eq!(length, (8000.0, 2, 8));
    let Some(What::GraphDef(graph)) = &events[5].what else {
        panic!("no graph: {:?}", events[5]);
    };
    let graph: GraphDef = decode(graph).expect("a graph");
    assert_eq!(graph.node[0].name, "n");
    run("CloseSummaryWriter").expect("closes");
}

#[test]
fn stub_resources_are_created_once() {
    let build = || -> Result<Session> {
        let mut b = GraphBuilder::new(registry());
        let handle = b
            .op("StubResourceHandleOp")
            .attr("shared_name", "stub".into());
        let handle = handle.output()?;
        let exists = b.op("ResourceInitializedOp").name("exists").input(handle);
        exists.build()?;
        for (name, op) in [("create", "ResourceCreateOp"), ("use", "ResourceUsingOp")] {
            b.op(op).name(name).input(handle).build()?;
        }
        Ok(Session::new(b.finish()?, SessionOptions::default()))
    };
    let session = build().expect("a valid graph");
    let exists = || {
        let out = session.run(&[], &["exists:0"], &[]).expect("runs");
        out[0].to_scalar::<bool>().expect("a bool")
    };
    let code = |target: &str| session.run(&[], &[], &[target]).err().map(|e| e.code());
    assert!(!exists());
    assert_eq!(code("use"), Some(Code::NotFound));
    assert_eq!(code("create"), None);
    assert!(exists());
    assert_eq!(code("use"), None);
    assert_eq!(code("create"), Some(Code::AlreadyExists));
}

/// As TensorFlow's server answers: session tensors live in sessions of one process.
#[test]
fn session_tensors_are_refused() {
    let build = || -> Result<Session> {
        let mut b = GraphBuilder::new(registry());
        let x = b.constant("const", Tensor::scalar(1.0f32))?;
        let name = b.constant("const", text("name"))?;
        for op in ["GetSessionHandle", "GetSessionHandleV2"] {
            b.op(op).name(op).input(x).build()?;
        }
        let get = b
            .op("GetSessionTensor")
            .name("GetSessionTensor")
            .input(name);
        get.attr("dtype", DType::Float.into()).build()?;
        let delete = b.op("DeleteSessionTensor").name("DeleteSessionTensor");
        delete.input(name).build()?;
        Ok(Session::new(b.finish()?, SessionOptions::default()))
    };
    let session = build().expect("a valid graph");
    for op in [
        "GetSessionHandle",
        "GetSessionHandleV2",
        "GetSessionTensor",
        "DeleteSessionTensor",
    ] {
        let error = session.run(&[], &[], &[op]).expect_err("no session state");
        assert_eq!(error.code(), Code::FailedPrecondition, "{op}");
        assert!(error.to_string().contains("null session state"), "{error}");
    }
}

/// Functions without control outputs: `f` adds 1 to a variable, which its result does not need, and `g` calls `f`.
const EFFECTS: &str = r#"
library {
  function {
    signature {
      name: "f"
      input_arg { name: "v" type: DT_RESOURCE }
      input_arg { name: "x" type: DT_FLOAT }
      output_arg { name: "y" type: DT_FLOAT }
    }
    node_def {
      name: "one" op: "Const"
      attr { key: "dtype" value { type: DT_FLOAT } }
      attr { key: "value" value { tensor { dtype: DT_FLOAT tensor_shape { } float_val: 1 } } }
    }
    node_def {
      name: "add" op: "AssignAddVariableOp" input: "v" input: "one:output:0"
      attr { key: "dtype" value { type: DT_FLOAT } }
    }
    node_def { name: "n" op: "Neg" input: "x" attr { key: "T" value { type: DT_FLOAT } } }
    ret { key: "y" value: "n:y:0" }
  }
  function {
    signature {
      name: "g"
      input_arg { name: "v" type: DT_RESOURCE }
      input_arg { name: "x" type: DT_FLOAT }
      output_arg { name: "y" type: DT_FLOAT }
    }
    node_def { name: "call" op: "f" input: "v" input: "x" }
    node_def { name: "n" op: "Neg" input: "x" attr { key: "T" value { type: DT_FLOAT } } }
    ret { key: "y" value: "n:y:0" }
  }
}
node {
  name: "v" op: "VarHandleOp"
  attr { key: "dtype" value { type: DT_FLOAT } }
  attr { key: "shape" value { shape { } } }
}
node { name: "x" op: "Placeholder" attr { key: "dtype" value { type: DT_FLOAT } } }
node { name: "init" op: "AssignVariableOp" input: "v" input: "x" attr { key: "dtype" value { type: DT_FLOAT } } }
node { name: "read" op: "ReadVariableOp" input: "v" attr { key: "dtype" value { type: DT_FLOAT } } }
"#;

#[test]
fn calls_by_name_run_the_effects_of_their_functions() {
    // The values of the variable after one call, in TensorFlow.
    let check = |call: &str, fetches: &[&str], targets: &[&str], expect: f32| {
        let text = format!("{EFFECTS}node {{ name: \"call\" input: \"v\" input: \"x\" {call} }}");
        let graph = ferroflow_model::graph_from_text(&text).expect(call);
        let session = Session::create(graph, SessionOptions::default()).expect(call);
        let x = [("x", Tensor::scalar(0f32))];
        session.run(&x, &[], &["init"]).expect(call);
        session.run(&x, fetches, targets).expect(call);
        let read = session.run(&[], &["read"], &[]).expect(call);
        assert_eq!(read[0].slice::<f32>().expect("floats"), [expect], "{call}");
    };
    let partitioned = |f: &str| {
        format!(
            "op: \"StatefulPartitionedCall\" attr {{ key: \"f\" value {{ func {{ name: \"{f}\" }} }} }} \
             attr {{ key: \"Tin\" value {{ list {{ type: [DT_RESOURCE, DT_FLOAT] }} }} }} \
             attr {{ key: \"Tout\" value {{ list {{ type: DT_FLOAT }} }} }}"
        )
    };
    check("op: \"f\"", &["call"], &[], 1.0);
    check("op: \"f\"", &[], &["call"], 1.0);
    check("op: \"g\"", &["call"], &[], 1.0);
    check(&partitioned("f"), &["call"], &[], 0.0);
    check(&partitioned("g"), &["call"], &[], 0.0);
}

/// The function that makes an iterator's dataset runs on the iterator's device: those that its nodes ask for need not
/// exist.
#[test]
fn a_dataset_factory_runs_where_its_iterator_is() {
    let list =
        |name: &str, of: &str| format!("attr {{ key: '{name}' value {{ list {{ {of} }} }} }}");
    let spec = list("output_types", "type: DT_INT64") + &list("output_shapes", "shape { }");
    let constant = |name: &str, value: i64| {
        format!(
            "node_def {{ name: '{name}' op: 'Const' device: '/device:CPU:7' attr {{ key: 'dtype' value {{ type: DT_INT64 }} }} \
             attr {{ key: 'value' value {{ tensor {{ dtype: DT_INT64 tensor_shape {{ }} int64_val: {value} }} }} }} }}"
        )
    };
    let graph = format!(
        "node {{ name: 'it' op: 'OneShotIterator' attr {{ key: 'dataset_factory' value {{ func {{ name: 'make' }} }} }} {spec} }}
         node {{ name: 'next' op: 'IteratorGetNext' input: 'it' {spec} }}
         library {{ function {{
           signature {{ name: 'make' output_arg {{ name: 'd' type: DT_VARIANT }} }}
           {} {} node_def {{ name: 'd' op: 'RangeDataset' device: '/device:CPU:7' input: 'a:output:0'
           input: 'b:output:0' input: 'a:output:0' {spec} }} ret {{ key: 'd' value: 'd:handle:0' }} }} }}",
        constant("a", 3),
        constant("b", 6),
    );
    let devices = DeviceSet {
        names: vec!["/job:localhost/replica:0/task:0/device:CPU:0".to_string()],
        ..Default::default()
    };
    let options = SessionOptions {
        devices,
        ..Default::default()
    };
    let session = Session::from_text(&graph, options).expect("a valid graph");
    let next = session
        .run(&[], &["next:0"], &[])
        .expect("the device is not looked for");
    assert_eq!(next[0].to_scalar::<i64>().expect("a number"), 3);
}
