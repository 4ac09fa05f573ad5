//! Variables that are constants of a plan until the first write.

use ferroflow_runtime::building::{AttrValue, GraphBuilder};
use ferroflow_runtime::{
    CompileRequest, CompiledModel, DType, PartialShape, Session, SessionOptions, Signature, Tensor,
    registry,
};

/// `y = x * v + 1`, with ops that set, destroy and read the variable `v` in the same step.
fn session() -> Session {
    let mut b = GraphBuilder::new(registry());
    let scalar = PartialShape::scalar;
    let x = b.placeholder("x", DType::Float, scalar()).unwrap();
    let handle = |b: &mut GraphBuilder, name: &str| {
        let op = b.op("VarHandleOp").name(name);
        let op = op.attr("dtype", AttrValue::Type(DType::Float));
        let op = op.attr("shape", AttrValue::Shape(scalar()));
        op.attr("shared_name", AttrValue::str("v")).output()
    };
    let v = handle(&mut b, "v").unwrap();
    let read = |b: &mut GraphBuilder, v| {
        let op = b.op("ReadVariableOp").input(v);
        op.attr("dtype", AttrValue::Type(DType::Float)).output()
    };
    let value = read(&mut b, v).unwrap();
    let scaled = b.op("Mul").input(x).input(value).output().unwrap();
    let one = b.constant("one", Tensor::scalar(1f32)).unwrap();
    b.op("AddV2")
        .name("y")
        .input(scaled)
        .input(one)
        .build()
        .unwrap();
    // Another node under the same name, which names the default container.
    let op = b.op("VarHandleOp").name("again");
    let op = op.attr("dtype", AttrValue::Type(DType::Float));
    let op = op.attr("shape", AttrValue::Shape(scalar()));
    let op = op.attr("container", AttrValue::str("localhost"));
    let again = op
        .attr("shared_name", AttrValue::str("v"))
        .output()
        .unwrap();
    let set = b.op("AssignVariableOp").name("set").input(again).input(x);
    let set = set
        .attr("dtype", AttrValue::Type(DType::Float))
        .build()
        .unwrap();
    b.op("DestroyResourceOp")
        .name("destroy")
        .input(v)
        .build()
        .unwrap();
    let after = b.op("ReadVariableOp").name("after").input(v).control(set);
    after
        .attr("dtype", AttrValue::Type(DType::Float))
        .build()
        .unwrap();
    Session::new(b.finish().unwrap(), SessionOptions::default())
}

fn get(session: &Session, x: f32, fetch: &str) -> Result<f32, String> {
    let got = session.run(&[("x:0", Tensor::scalar(x))], &[fetch], &[]);
    got.map(|t| t[0].to_scalar::<f32>().unwrap())
        .map_err(|e| e.to_string())
}

fn set(session: &Session, x: f32) {
    session
        .run(&[("x:0", Tensor::scalar(x))], &[], &["set"])
        .unwrap();
}

fn reads(session: &Session) -> usize {
    let signature = Signature {
        feeds: vec!["x:0".to_string()],
        fetches: vec!["y:0".to_string()],
        targets: vec![],
    };
    let (graph, _) = session.graph_after(&signature, None).unwrap();
    graph
        .iter()
        .filter(|(_, n)| n.op() == "ReadVariableOp")
        .count()
}

#[test]
fn writes_are_seen_by_every_step_after_them() {
    let session = session();
    assert_eq!(reads(&session), 1);
    assert!(
        get(&session, 1.0, "y:0")
            .unwrap_err()
            .contains("FAILED_PRECONDITION")
    );
    set(&session, 2.0);
    assert_eq!(reads(&session), 0);
    for v in [3.0, 4.0, 4.0, 5.0] {
        assert_eq!(get(&session, 10.0, "after:0"), Ok(10.0));
        set(&session, v);
        for x in [1.0, 2.0] {
            assert_eq!(get(&session, x, "y:0"), Ok(x * v + 1.0));
        }
    }
    session.run(&[], &[], &["destroy"]).unwrap();
    assert!(
        get(&session, 1.0, "y:0")
            .unwrap_err()
            .contains("FAILED_PRECONDITION")
    );
}

#[test]
fn a_plan_made_of_values_is_given_up_when_they_change() {
    let session = session();
    set(&session, 2.0);
    assert_eq!(get(&session, 3.0, "y:0"), Ok(7.0));
    std::thread::scope(|scope| {
        scope.spawn(|| (0..200).for_each(|_| set(&session, 5.0)));
        for _ in 0..200 {
            let y = get(&session, 3.0, "y:0").unwrap();
            assert!(y == 7.0 || y == 16.0, "{y}");
        }
    });
    assert_eq!(get(&session, 3.0, "y:0"), Ok(16.0));
}

/// Loops and conditionals whose functions read and write `v`, `w` and `c`; made by TensorFlow 2.21.
const FUNCTIONS: &str = include_str!("frozen_variables/functions.pbtxt");

fn session_of_functions(freeze_variables: bool) -> Session {
    session_of(FUNCTIONS, freeze_variables)
}

fn session_of(graph: &str, freeze_variables: bool) -> Session {
    let options = SessionOptions {
        freeze_variables,
        ..Default::default()
    };
    Session::from_text(graph, options).unwrap()
}

/// Gathers of rows of `e` and `d`, also in functions; made by TensorFlow 2.21.
const GATHERS: &str = include_str!("frozen_variables/gathers.pbtxt");

fn feeds(x: f32, n: i32) -> [(&'static str, Tensor); 2] {
    [("x:0", Tensor::scalar(x)), ("n:0", Tensor::scalar(n))]
}

fn signature(fetches: &[&str]) -> Signature {
    Signature {
        feeds: vec!["x:0".to_string(), "n:0".to_string()],
        fetches: fetches.iter().map(|f| f.to_string()).collect(),
        targets: vec![],
    }
}

/// The reads and gathers that are left in the graph of these fetches and in the functions that it can run.
fn reads_of(session: &Session, fetches: &[&str]) -> usize {
    let signature = Signature {
        feeds: vec!["x:0".to_string(), "n:0".to_string()],
        fetches: fetches.iter().map(|f| f.to_string()).collect(),
        targets: vec![],
    };
    let (graph, _) = session
        .graph_after(&signature, Some("relax_control"))
        .unwrap();
    let library = graph.library().clone();
    let names = library.reachable(&graph);
    let functions = names.iter().map(|name| &library.get(name).unwrap().graph);
    let graphs = std::iter::once(&graph).chain(functions);
    let nodes = graphs.flat_map(|graph| graph.iter());
    let is_read = |op: &str| op == "ReadVariableOp" || op.starts_with("ResourceGather");
    nodes.filter(|(_, n)| is_read(n.op())).count()
}

#[test]
fn rows_are_gathered_from_constants() {
    const ROWS: &[(&str, usize)] = &[
        ("plain:0", 0),
        ("loop:0", 0),
        ("branch:0", 0),
        ("nd:0", 0),
        ("batches:0", 0),
        ("tied:0", 0),
        ("asked:0", 0),
        ("shape:0", 0),
        // `d`, which the loop writes.
        ("written:0", 1),
    ];
    for (fetch, reads) in ROWS {
        let (frozen, plain) = (session_of(GATHERS, true), session_of(GATHERS, false));
        for value in [2.0, 0.5] {
            for session in [&frozen, &plain] {
                for target in ["set_e", "set_d"] {
                    session.run(&feeds(value, 0), &[], &[target]).unwrap();
                }
            }
            for (x, n) in [(1.5, 2), (-2.0, 1), (0.25, 0), (1.0, 3)] {
                let got = |s: &Session| {
                    let run = s.run(&feeds(x, n), &[fetch], &[]);
                    // An error names the node in the same way; its op is another.
                    run.map(|t| t[0].to_scalar::<f32>().unwrap())
                        .map_err(|e| e.to_string().replace("ResourceGather]]", "GatherV2]]"))
                };
                assert_eq!(got(&frozen), got(&plain), "{fetch} of {x} and {n}");
            }
        }
        assert_eq!(reads_of(&frozen, &[fetch]), *reads, "{fetch}");
        if *reads == 0 {
            let request = CompileRequest {
                signature: signature(&[fetch]),
                ..Default::default()
            };
            let file = frozen.compile_to_bytes(&request).unwrap();
            let model = CompiledModel::from_bytes(&file, SessionOptions::default()).unwrap();
            let got = model.run(&feeds(1.5, 2)).unwrap();
            let want = plain.run(&feeds(1.5, 2), &[fetch], &[]).unwrap();
            let number = |t: &Tensor| t.to_scalar::<f32>().unwrap();
            assert_eq!(number(&got[0].1), number(&want[0]), "{fetch}");
        }
    }
}

#[test]
fn variables_are_constants_in_functions_that_only_read_them() {
    const ROWS: &[(&[&str], usize)] = &[
        (&["loop:0"], 0),
        (&["branch:0"], 0),
        (&["swapped:0"], 0),
        // The same functions read different variables.
        (&["branch:0", "swapped:0"], 2),
        (&["case:0"], 0),
        (&["nested:0"], 0),
        // `c`, which the loop writes.
        (&["written:0"], 1),
        (&["read:0"], 0),
        // `v`, in the other loop, stays a constant.
        (&["written:0", "read:0"], 2),
    ];
    for (fetches, reads) in ROWS {
        let (frozen, plain) = (session_of_functions(true), session_of_functions(false));
        for values in [[2.0, 3.0, 4.0], [0.5, -1.0, 2.0]] {
            for session in [&frozen, &plain] {
                for (target, value) in ["set_v", "set_w", "set_c"].iter().zip(values) {
                    session.run(&feeds(value, 0), &[], &[target]).unwrap();
                }
            }
            for (x, n) in [(1.5, 2), (-2.0, 1), (0.25, 0)] {
                let got = |s: &Session| {
                    let tensors = s.run(&feeds(x, n), fetches, &[]).unwrap();
                    tensors
                        .iter()
                        .map(|t| t.to_scalar::<f32>().unwrap())
                        .collect::<Vec<_>>()
                };
                // Both loops would race for `c`.
                if fetches.len() == 1 || !fetches.contains(&"read:0") {
                    assert_eq!(got(&frozen), got(&plain), "{fetches:?} of {x} and {n}");
                }
            }
        }
        assert_eq!(reads_of(&frozen, fetches), *reads, "{fetches:?}");
    }
}

#[test]
fn compiled_files_hold_what_functions_read() {
    let session = session_of_functions(true);
    for (target, value) in [("set_v", 2.0), ("set_w", 3.0), ("set_c", 4.0)] {
        session.run(&feeds(value, 0), &[], &[target]).unwrap();
    }
    session.run(&[], &[], &["fill"]).unwrap();
    let request = |fetch: &str| CompileRequest {
        signature: signature(&[fetch]),
        ..Default::default()
    };
    for fetch in [
        "loop:0", "branch:0", "case:0", "nested:0", "read:0", "table:0", "word:0",
    ] {
        let file = session.compile_to_bytes(&request(fetch)).unwrap();
        let model = CompiledModel::from_bytes(&file, SessionOptions::default()).unwrap();
        for (x, n) in [(1.5, 2), (-2.0, 1), (0.25, 0), (1.0, 7)] {
            let got = model.run(&feeds(x, n)).unwrap();
            let want = session.run(&feeds(x, n), &[fetch], &[]).unwrap();
            let number = |t: &Tensor| t.to_scalar::<f32>().unwrap();
            assert_eq!(
                number(&got[0].1),
                number(&want[0]),
                "{fetch} of {x} and {n}"
            );
        }
    }
    for fetch in ["written:0", "inserted:0"] {
        let error = session.compile_to_bytes(&request(fetch)).unwrap_err();
        assert!(
            error.to_string().contains("state that outlives a step"),
            "{error}"
        );
    }
}

#[test]
fn functions_of_datasets_see_every_value() {
    let session = session_of_functions(true);
    session.run(&feeds(2.0, 0), &[], &["set_v"]).unwrap();
    session.run(&[], &[], &["make"]).unwrap();
    for (v, next) in [(2.0, 3.0), (5.0, 7.0)] {
        session.run(&feeds(v, 0), &[], &["set_v"]).unwrap();
        let got = session.run(&feeds(0.0, 0), &["next:0"], &[]).unwrap();
        assert_eq!(got[0].to_scalar::<f32>().unwrap(), next);
    }
}
