//! Passes that users add to a session's groups, and placement by cost.

#[path = "../../../examples/passes/main.rs"]
#[allow(dead_code, reason = "its main function is for cargo run")]
mod example;

use ferroflow_runtime::{
    CompileOptions, CompileRequest, CompiledModel, CostModel, DeviceSet, Graph, Lower, Pass,
    PassCtx, PassGroup, Patch, Session, SessionOptions, Signature, Tensor, to_text,
};
use std::sync::{Arc, Mutex};

#[test]
fn the_example_runs() {
    let (sum, parts) = example::run().expect("runs");
    assert_eq!(sum, 90.0);
    assert_eq!(parts.len(), 2, "{parts:?}");
    assert!(
        parts.iter().all(|part| !part.contains("Square ")),
        "{parts:?}"
    );
    assert!(parts[1].contains("second/y"), "{parts:?}");
}

const GRAPH: &str = "
    node { name: 'x' op: 'Placeholder' attr { key: 'dtype' value { type: DT_FLOAT } } }
    node { name: 'y' op: 'Neg' input: 'x' device: '/cpu:1' attr { key: 'T' value { type: DT_FLOAT } } }
    node { name: 'z' op: 'Neg' input: 'y' attr { key: 'T' value { type: DT_FLOAT } } }";

fn two_devices() -> DeviceSet {
    let name = |i| format!("/job:localhost/replica:0/task:0/device:CPU:{i}");
    DeviceSet {
        names: vec![name(0), name(1)],
        ..Default::default()
    }
}

fn signature(feed: &str, fetch: &str) -> Signature {
    Signature {
        feeds: vec![feed.to_string()],
        fetches: vec![fetch.to_string()],
        targets: Vec::new(),
    }
}

/// What the passes of this test saw: the group, and the device of each node that was there.
static SEEN: Mutex<Vec<String>> = Mutex::new(Vec::new());

type PassFn = fn(&mut Graph, &PassCtx) -> ferroflow_runtime::Result<()>;

fn see(group: PassGroup) -> Pass {
    fn look(group: &str, graph: &Graph) {
        let last = |n: &ferroflow_runtime::Node| {
            let device = n.device.rsplit(':').next().unwrap_or_default().to_string();
            format!("{}@{device}", n.op())
        };
        let nodes: Vec<String> = graph.iter().map(|(_, n)| last(n)).collect();
        let line = format!("{group}: {}", nodes.join(" "));
        SEEN.lock().expect("no panic").push(line);
    }
    let run: PassFn = match group {
        PassGroup::PrePlacement => |g, _| {
            look("pre", g);
            Ok(())
        },
        PassGroup::PostPlacement => |g, _| {
            look("post", g);
            Ok(())
        },
        PassGroup::PostRewriteForExec => |g, _| {
            look("rewrite", g);
            Ok(())
        },
        PassGroup::PostPartitioning => |g, _| {
            look("part", g);
            Ok(())
        },
    };
    Pass {
        name: "see",
        about: "remembers the graph",
        run,
    }
}

#[test]
fn groups_run_in_order() {
    let mut options = SessionOptions {
        devices: two_devices(),
        ..Default::default()
    };
    for group in PassGroup::ALL {
        options.passes.add(group, see(group));
    }
    let session = Session::from_text(GRAPH, options).expect("valid");
    let x = [("x:0", Tensor::scalar(2.0f32))];
    let z = session.run(&x, &["z:0"], &[]).expect("runs");
    assert_eq!(z[0].to_scalar::<f32>().expect("a scalar"), 2.0);
    let mut seen = std::mem::take(&mut *SEEN.lock().expect("no panic"));
    // The parts have no order.
    seen[3..].sort();
    assert_eq!(
        seen,
        [
            "pre: _Arg@ Neg@1 Neg@ _Retval@",
            "post: _Arg@1 Neg@1 Neg@0 _Retval@0",
            "rewrite: _Arg@1 Neg@1 Neg@0 _Retval@0",
            "part: Neg@0 _Retval@0 _Recv@0",
            "part: _Arg@1 Neg@1 _Send@1",
        ]
    );
}

/// The `_Recv` nodes that wait, and for what.
static WAITS: Mutex<Vec<String>> = Mutex::new(Vec::new());

#[test]
fn parts_receive_what_they_need_late_not_early() {
    let attr = "attr { key: 'T' value { type: DT_FLOAT } }";
    let mut graph = format!(
        "node {{ name: 'x' op: 'Placeholder' attr {{ key: 'dtype' value {{ type: DT_FLOAT }} }} }}
         node {{ name: 'a' op: 'Exp' input: 'x' device: '/cpu:1' {attr} }}
         node {{ name: 'y' op: 'Mul' input: 'c29' input: 'a' {attr} }}
         node {{ name: 'c0' op: 'Neg' input: 'x' {attr} }}\n"
    );
    for i in 1..30 {
        graph += &format!(
            "node {{ name: 'c{i}' op: 'Neg' input: 'c{}' {attr} }}\n",
            i - 1
        );
    }
    let run = |schedules_recvs| {
        let mut options = SessionOptions {
            devices: DeviceSet {
                schedules_recvs,
                ..two_devices()
            },
            ..Default::default()
        };
        let look = Pass {
            name: "look",
            about: "remembers what is waited for",
            run: |graph, _| {
                let recvs = graph.iter().filter(|(_, n)| n.op() == "_Recv");
                let names =
                    recvs.flat_map(|(_, n)| n.controls.iter().map(|c| &graph.node(*c).name));
                WAITS.lock().expect("no panic").extend(names.cloned());
                Ok(())
            },
        };
        options.passes.add(PassGroup::PostPartitioning, look);
        let session = Session::from_text(&graph, options).expect("valid");
        let x = [("x:0", Tensor::scalar(0.5f32))];
        let y = session.run(&x, &["y:0"], &[]).expect("runs");
        let waits = std::mem::take(&mut *WAITS.lock().expect("no panic"));
        // The compiler keeps the edges.
        let parts = session.partition_graphs(&signature("x:0", "y:0"));
        let parts = parts.expect("valid");
        let recvs = parts.iter().flat_map(|p| &p.node);
        let recvs = recvs.filter(|n| n.op == "_Recv" && !n.input.is_empty());
        assert_eq!(recvs.count(), usize::from(schedules_recvs));
        (y[0].to_scalar::<f32>().expect("a scalar"), waits)
    };
    let (expected, none) = run(false);
    assert!(none.is_empty(), "{none:?}");
    // `y` starts after 31 microseconds; six before, `a` is asked for.
    assert_eq!(run(true), (expected, vec!["synch_25".to_string()]));
}

/// Replaces each negation by a square.
fn squares(graph: &mut Graph, ctx: &PassCtx) -> ferroflow_runtime::Result<()> {
    let mut patch = Patch::new();
    let negations = graph.iter().filter(|(_, n)| n.op() == "Neg");
    let ids: Vec<_> = negations.map(|(id, _)| id).collect();
    for id in ids {
        let old = graph.node(id).clone();
        let name = graph.unique_name(&format!("{}/square", old.name));
        let mut square = ctx.node(name, "Square", old.attrs, &old.inputs, &[])?;
        square.device = old.device;
        patch.substitute(graph, id, square)?;
    }
    patch.apply(graph);
    Ok(())
}

#[test]
fn whole_graphs_see_all_groups() {
    for group in PassGroup::ALL {
        for devices in [DeviceSet::default(), two_devices()] {
            let mut options = SessionOptions {
                devices,
                ..Default::default()
            };
            let pass = Pass {
                name: "squares",
                about: "squares what was negated",
                run: squares,
            };
            options.passes.add(group, pass);
            let session = Session::from_text(GRAPH, options).expect("valid");
            let x = [("x:0", Tensor::scalar(2.0f32))];
            let z = session.run(&x, &["z:0"], &[]).expect("runs");
            assert_eq!(z[0].to_scalar::<f32>().expect("a scalar"), 16.0);
            let signature = signature("x:0", "z:0");
            let (graph, _) = session.graph_after(&signature, None).expect("valid");
            let text = to_text(&graph);
            assert!(!text.contains("Neg"), "{group:?}: {text}");
            let request = CompileRequest {
                signature,
                ..Default::default()
            };
            let file = session.compile_to_bytes(&request).expect("valid");
            let model = CompiledModel::from_bytes(&file, SessionOptions::default());
            let z = model.expect("valid").run(&x).expect("runs");
            assert_eq!(z[0].1.to_scalar::<f32>().expect("a scalar"), 16.0);
        }
    }
}

#[test]
fn parts_are_simplified_in_rounds() {
    let float = "device: '/cpu:1' attr { key: 'T' value { type: DT_FLOAT } }";
    let dtype = "attr { key: 'dtype' value { type: DT_FLOAT } }";
    let graph = format!(
        "node {{ name: 'x' op: 'Placeholder' {dtype} device: '/cpu:0' }}
         node {{ name: 'c' op: 'Const' {dtype} device: '/cpu:1' attr {{ key: 'value' value {{ tensor {{ \
         dtype: DT_FLOAT tensor_shape {{ }} float_val: 0 }} }} }} }}
         node {{ name: 'n0' op: 'Exp' input: 'c' {float} }}
         node {{ name: 'n1' op: 'Exp' input: 'c' input: '^n0' {float} }}
         node {{ name: 'n2' op: 'Exp' input: 'c' input: '^n1' {float} }}
         node {{ name: 'y' op: 'AddV2' input: 'x' input: 'n2' {float} }}
         node {{ name: 'z' op: 'Neg' input: 'y' device: '/cpu:0' attr {{ key: 'T' value {{ type: DT_FLOAT }} }} }}"
    );
    let options = SessionOptions {
        devices: two_devices(),
        ..Default::default()
    };
    let session = Session::from_text(&graph, options).expect("valid");
    let parts = session.partition_graphs(&signature("x:0", "z:0"));
    let parts = parts.expect("valid");
    assert_eq!(parts.len(), 2, "{parts:?}");
    let ops: Vec<&str> = parts.iter().flat_map(|p| &p.node).map(|n| &*n.op).collect();
    assert!(!ops.contains(&"Exp"), "{ops:?}");
    let x = [("x:0", Tensor::scalar(2.0f32))];
    let z = session.run(&x, &["z:0"], &[]).expect("runs");
    assert_eq!(z[0].to_scalar::<f32>().expect("a scalar"), -3.0);
}

#[test]
fn errors_name_the_pass() {
    let mut options = SessionOptions::default();
    let pass = Pass {
        name: "broken",
        about: "fails",
        run: |_, _| Err(ferroflow_base::internal!("no")),
    };
    options.passes.add(PassGroup::PostRewriteForExec, pass);
    let session = Session::from_text(GRAPH, options).expect("valid");
    let x = [("x:0", Tensor::scalar(2.0f32))];
    let error = session.run(&x, &["z:0"], &[]).expect_err("fails");
    let text = error.to_string();
    assert!(
        text.contains("in pass 'broken' of POST_REWRITE_FOR_EXEC"),
        "{text}"
    );
}

/// Two products that take long, of the same input, and their sum.
fn products() -> String {
    let attr = |name: &str, value: &str| format!("attr {{ key: '{name}' value {{ {value} }} }}");
    let float = attr("T", "type: DT_FLOAT");
    let product = |name: &str| {
        format!("node {{ name: '{name}' op: 'MatMul' input: 'x' input: 'x' {float} }}\n")
    };
    format!(
        "node {{ name: 'x' op: 'Placeholder' {} {} }}\n{}{}\
         node {{ name: 'sum' op: 'Sub' input: 'a' input: 'b' {float} }}",
        attr("dtype", "type: DT_FLOAT"),
        attr("shape", "shape { dim { size: 300 } dim { size: 300 } }"),
        product("a"),
        product("b"),
    )
}

#[test]
fn costs_place_nodes() {
    let costs = Arc::new(CostModel::default());
    let options = SessionOptions {
        devices: two_devices(),
        costs: Some(costs.clone()),
        ..Default::default()
    };
    let session = Session::from_text(&products(), options).expect("valid");
    let signature = signature("x:0", "sum:0");
    let device_of = |name: &str| {
        let placed = session.explain_placement(Some(&signature)).expect("placed");
        let node = placed.into_iter().find(|n| n.name == name);
        let node = node.expect("a node");
        (
            node.device.rsplit(':').next().map(str::to_string),
            node.reason,
        )
    };
    let first = |device: &str| {
        let reason = "finishes there first".to_string();
        (Some(device.to_string()), reason)
    };
    assert_eq!((device_of("a"), device_of("b")), (first("0"), first("1")));
    let x = Tensor::zeros(ferroflow_runtime::DType::Float, [300, 300].into()).expect("small");
    let sum = session.run(&[("x:0", x)], &["sum:0"], &[]).expect("runs");
    assert_eq!(sum[0].shape().dims(), [300, 300]);
    // Measured, they take less time than a copy.
    costs.record("a", 10, vec![360_000]);
    costs.record("b", 10, vec![360_000]);
    assert_eq!(device_of("a").0, device_of("b").0);
}

/// AccumulateNV2 and ParallelConcat, whose kernels TensorFlow's workers lack, and a loop of two values of which one is
/// read.
const FOR_WORKERS: &str = "
    node { name: 'x' op: 'Placeholder' attr { key: 'dtype' value { type: DT_FLOAT } } }
    node { name: 'sum' op: 'AccumulateNV2' input: 'row' input: 'x' device: '/cpu:1'
      attr { key: 'T' value { type: DT_FLOAT } } attr { key: 'N' value { i: 2 } }
      attr { key: 'shape' value { shape { dim { size: 1 } dim { size: 2 } } } } }
    node { name: 'rows' op: 'ParallelConcat' input: 'x' input: 'sum' device: '/cpu:1'
      attr { key: 'T' value { type: DT_FLOAT } } attr { key: 'N' value { i: 2 } }
      attr { key: 'shape' value { shape { dim { size: 2 } dim { size: 2 } } } } }
    node { name: 'row' op: 'ParallelConcat' input: 'x' device: '/cpu:1'
      attr { key: 'T' value { type: DT_FLOAT } } attr { key: 'N' value { i: 1 } }
      attr { key: 'shape' value { shape { dim { size: 1 } dim { size: 2 } } } } }
    node { name: 'no' op: 'Const' attr { key: 'dtype' value { type: DT_BOOL } }
      attr { key: 'value' value { tensor { dtype: DT_BOOL tensor_shape {} bool_val: false } } } }
    node { name: 'loop' op: 'While' input: 'no' input: 'rows' device: '/cpu:1'
      attr { key: 'T' value { list { type: [DT_BOOL, DT_FLOAT] } } }
      attr { key: 'cond' value { func { name: 'goes_on' } } }
      attr { key: 'body' value { func { name: 'same' } } }
      attr { key: '_lower_using_switch_merge' value { b: true } } }
    node { name: 'out' op: 'Neg' input: 'loop:1' attr { key: 'T' value { type: DT_FLOAT } } }
    library {
      function { signature { name: 'goes_on' input_arg { name: 'a' type: DT_BOOL } input_arg { name: 'b' type: DT_FLOAT }
          output_arg { name: 'r' type: DT_BOOL } } ret { key: 'r' value: 'a' } }
      function { signature { name: 'same' input_arg { name: 'a' type: DT_BOOL } input_arg { name: 'b' type: DT_FLOAT }
          output_arg { name: 'p' type: DT_BOOL } output_arg { name: 'q' type: DT_FLOAT } }
        ret { key: 'p' value: 'a' } ret { key: 'q' value: 'b' } }
    }";

#[test]
fn workers_get_ops_that_have_kernels_and_results_that_are_read() {
    let options = SessionOptions {
        devices: two_devices(),
        compile: CompileOptions {
            lower: Lower::Marked,
            ..CompileOptions::all()
        },
        ..Default::default()
    };
    let session = Session::from_text(FOR_WORKERS, options).expect("valid");
    let placed = session.explain_placement(Some(&signature("x:0", "out:0")));
    let placed = placed.expect("placed");
    let ops: Vec<&str> = placed.iter().map(|n| n.op.as_str()).collect();
    let count = |op: &str| ops.iter().filter(|o| **o == op).count();
    let wanted = [
        ("AccumulateNV2", 0),
        ("AddN", 1),
        ("ParallelConcat", 0),
        ("ConcatV2", 1),
        ("While", 0),
        ("Exit", 1),
    ];
    let row = placed.iter().find(|n| n.name == "row");
    assert_eq!(row.map(|n| n.op.as_str()), Some("Identity"));
    let found = wanted.map(|(op, _)| (op, count(op)));
    assert_eq!(found, wanted, "{ops:?}");
    let x = Tensor::from_slice([1, 2], &[1f32, 2.0]).expect("small");
    let out = session.run(&[("x:0", x)], &["out:0"], &[]).expect("runs");
    let out = out[0].slice::<f32>().expect("floats");
    assert_eq!(out, [-1.0, -2.0, -2.0, -4.0]);
}
