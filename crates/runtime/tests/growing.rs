//! Sessions whose graphs grow, that are closed, run in parts, or span devices.

use ferroflow_model::proto::GraphDef;
use ferroflow_runtime::{
    Code, DeviceSet, Pool, Result, RunOptions, Session, SessionOptions, Signature, Tensor,
};
use std::sync::Arc;

fn def(text: &str) -> GraphDef {
    ferroflow_model::graph_from_text(text).expect("valid text")
}

/// A graph in short: `name = Op(input, ...) @device`, one node a line, of 32-bit floats.
fn graph(lines: &str) -> String {
    let node = |line: &str| {
        let (name, rest) = line.split_once(" = ")?;
        let (op, rest) = rest.split_once('(')?;
        let (inputs, device) = rest.split_once(')')?;
        let inputs = inputs.split(", ").filter(|i| !i.is_empty());
        let inputs: String = inputs.map(|i| format!("input: '{i}' ")).collect();
        let attr = if op == "Placeholder" { "dtype" } else { "T" };
        let device = device.trim().trim_start_matches('@');
        Some(format!(
            "node {{ name: '{name}' op: '{op}' {inputs} device: '{device}' attr {{ key: '{attr}' value {{ \
             type: DT_FLOAT }} }} }}\n"
        ))
    };
    lines.lines().filter_map(|l| node(l.trim())).collect()
}

const SQUARE: &str = "library { function {
    signature { name: 'square' input_arg { name: 'x' type: DT_FLOAT } output_arg { name: 'y' type: DT_FLOAT } }
    node_def { name: 's' op: 'Square' input: 'x' attr { key: 'T' value { type: DT_FLOAT } } }
    ret { key: 'y' value: 's:y:0' } } }";

/// The first tensor; 0 if there are none.
fn value(result: Result<Vec<Tensor>>) -> std::result::Result<f32, Code> {
    result
        .and_then(|t| t.first().map_or(Ok(0.0), Tensor::to_scalar))
        .map_err(|e| e.code())
}

fn two() -> Tensor {
    Tensor::scalar(2f32)
}

#[test]
fn graphs_grow_however_they_were_opened() {
    let text = graph("x = Placeholder()") + SQUARE;
    let default = SessionOptions::default;
    for session in [
        Session::create(def(&text), default()),
        Session::from_text(&text, default()),
    ] {
        let session = session.expect("valid");
        let y = graph("y = Neg(x)");
        assert_eq!(session.extend(def(&y), 0).expect("fits"), 1);
        let call = "node { name: 'z' op: 'square' input: 'y' }";
        assert_eq!(session.extend(def(call), 1).expect("fits"), 2);
        for (fetch, expect) in [("y", Ok(-2.0)), ("z", Ok(4.0)), ("q", Err(Code::NotFound))] {
            let got = session.run(&[("x", two())], &[fetch], &[]);
            assert_eq!(value(got), expect, "{fetch}");
        }
        let stale = session.extend(def(&graph("v = Neg(x)")), 1);
        assert_eq!(stale.expect_err("an old version").code(), Code::Aborted);
        let twice = session.extend(def(&y), 2);
        assert_eq!(twice.expect_err("a name").code(), Code::InvalidArgument);
        assert_eq!(session.graph().len(), 3);
    }
}

#[test]
fn a_closed_session_refuses() {
    let session = Session::from_text(&graph("x = Placeholder()\ny = Neg(x)"), Default::default());
    let session = session.expect("valid");
    let run = || value(session.run(&[("x", two())], &["y"], &[]));
    assert_eq!(run(), Ok(-2.0));
    session.close();
    assert_eq!(run(), Err(Code::FailedPrecondition));
    let extended = session.extend(def(&graph("z = Neg(x)")), 0);
    let code = extended.expect_err("closed").code();
    assert_eq!((code, session.num_running()), (Code::FailedPrecondition, 0));
}

fn strings(names: &[&str]) -> Vec<String> {
    names.iter().map(|n| n.to_string()).collect()
}

fn with_pool(width: usize) -> SessionOptions {
    SessionOptions {
        pool: Some(Arc::new(Pool::new(width))),
        ..Default::default()
    }
}

#[test]
fn steps_run_in_parts_on_pools_of_any_width() {
    let text = graph(
        "a = Placeholder()\nb = Placeholder()\nna = Exp(a)\nnb = Exp(b)\nsum = AddV2(na, nb)",
    );
    for width in [1, 2, 4] {
        let session = Session::from_text(&text, with_pool(width)).expect("valid");
        let signature = Signature {
            feeds: strings(&["a", "b"]),
            fetches: strings(&["na", "sum"]),
            targets: vec![],
        };
        let zero = || Tensor::scalar(0f32);
        for _ in 0..50 {
            let handle = session.partial_run_setup(&signature).expect("valid");
            let part = |feed: &str, fetch: &str| {
                let feeds = vec![(feed.to_string(), zero())];
                let fetches = strings(&[fetch]);
                value(session.partial_run(&handle, feeds, &fetches, &RunOptions::default()))
            };
            assert_eq!(part("a", "sum"), Err(Code::InvalidArgument), "b is not fed");
            assert_eq!(part("a", "na"), Ok(1.0));
            assert_eq!(session.num_running(), 0, "it waits for its next part");
            assert_eq!(part("b", "sum"), Ok(2.0));
            assert_eq!(part("b", "sum"), Err(Code::InvalidArgument), "it is over");
        }
        session.partial_run_setup(&signature).expect("valid");
        // Cancels the step that nothing feeds.
        session.close();
    }
}

#[test]
fn steps_span_devices_on_pools_of_any_width() {
    let text = graph(
        "x = Placeholder()\na = Neg(x) @/cpu:1\nb = Exp(a) @/cpu:2\nc = Neg(b) @/cpu:0\nd = AddV2(c, a) @/cpu:1
         bad = _FusedNothing(a)",
    );
    for width in [1, 2, 4] {
        let names = (0..3).map(|i| format!("/job:w/replica:0/task:0/device:CPU:{i}"));
        let options = SessionOptions {
            devices: DeviceSet {
                names: names.collect(),
                ..Default::default()
            },
            ..with_pool(width)
        };
        let session = Session::create(def(&text), options).expect("valid");
        for i in 0..100 {
            let zero = Tensor::scalar(0f32);
            let got = session.run(&[("x", zero)], &["d", "b"], &[]);
            assert_eq!(value(got), Ok(-1.0), "step {i} on {width} threads");
        }
        let placed = session.placement();
        assert!(
            placed["b"].ends_with("CPU:2") && !placed.contains_key("c"),
            "{placed:?}"
        );
        assert_eq!(
            value(session.run(&[("x", two())], &["bad"], &[])),
            Err(Code::NotFound)
        );
    }
}

/// A session of `a`, `b` and, if `a` is below `b`, `dead` of `a`.
fn conditional(width: usize) -> Session {
    let text = graph("a = Placeholder()\nb = Placeholder()\nless = Less(a, b)")
        + "node { name: 's' op: 'Switch' input: 'a' input: 'less' attr { key: 'T' value { type: DT_FLOAT } } }"
        + &graph("dead = Exp(s:1)\nalive = Exp(s)\nproduct = Mul(a, b)");
    Session::from_text(&text, with_pool(width)).expect("valid")
}

#[test]
fn partial_runs_end_in_every_way() {
    for width in [1, 2] {
        let session = conditional(width);
        let setup = |fetches: &[&str]| {
            let signature = Signature {
                feeds: strings(&["a", "b"]),
                fetches: strings(fetches),
                targets: vec![],
            };
            session.partial_run_setup(&signature).expect("valid")
        };
        let fed = |names: &[&str]| -> Vec<_> {
            let one = |n: &&str| (n.to_string(), Tensor::scalar(1f32));
            names.iter().map(one).collect()
        };
        let run = |handle: &str, feeds: &[&str], fetches: &[&str], options: &RunOptions| {
            value(session.partial_run(handle, fed(feeds), &strings(fetches), options))
        };
        let default = RunOptions::default();
        let handle = setup(&["alive", "dead"]);
        let dead = run(&handle, &["a", "b"], &["dead"], &default);
        assert_eq!(dead, Err(Code::InvalidArgument), "a dead tensor");
        for (feeds, fetches) in [(&["a", "a"][..], &[][..]), (&["a", "b"], &["product"; 2])] {
            let handle = setup(&["product"]);
            let twice = run(&handle, feeds, fetches, &default);
            assert_eq!(twice, Err(Code::InvalidArgument), "{feeds:?} {fetches:?}");
        }
        let handle = setup(&["product", "alive"]);
        let timeout = RunOptions {
            timeout: Some(std::time::Duration::from_millis(5)),
            ..Default::default()
        };
        let cancelled = run(&handle, &["a"], &[], &timeout);
        assert_eq!(cancelled, Ok(0.0), "nothing is fetched");
        // Dropping the session ends what is left, also on a pool without threads of its own.
        session.close();
        drop(session);
    }
}
