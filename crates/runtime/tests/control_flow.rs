//! Control flow beyond the stored graphs: malformed loops and functions, depth, length,
//! concurrency.

use ferroflow_runtime::building::GraphBuilder;
use ferroflow_runtime::{
    Code, CompileOptions, DType, PartialShape, RunOptions, Session, SessionOptions, Tensor,
    registry,
};

fn options(threads: usize) -> SessionOptions {
    SessionOptions {
        threads,
        ..Default::default()
    }
}

/// `name op input input ^control key=value…`, a node a line; all dtypes are int32 but those of
/// `p`, Less and LoopCond.
fn graph(nodes: &str) -> String {
    let mut text = String::new();
    for line in nodes.lines().map(str::trim).filter(|l| !l.is_empty()) {
        let mut words = line.split_whitespace();
        let (name, op) = (words.next().unwrap(), words.next().unwrap());
        text += &format!("node {{ name: '{name}' op: '{op}'");
        let ty = if name.starts_with('p') {
            "DT_BOOL"
        } else {
            "DT_INT32"
        };
        let mut n_inputs = 0;
        for word in words {
            match word.split_once('=') {
                Some(("frame", frame)) => {
                    text += &format!(" attr {{ key: 'frame_name' value {{ s: '{frame}' }} }}");
                }
                Some((key, value)) => {
                    text += &format!(" attr {{ key: '{key}' value {{ {value} }} }}");
                }
                None => {
                    n_inputs += usize::from(!word.starts_with('^'));
                    text += &format!(" input: '{word}'");
                }
            }
        }
        match op {
            "Placeholder" => text += &format!(" attr {{ key: 'dtype' value {{ type: {ty} }} }}"),
            "LoopCond" | "NoOp" => {}
            "Merge" => {
                text += &format!(
                    " attr {{ key: 'T' value {{ type: {ty} }} }} attr {{ key: 'N' value {{ i: {n_inputs} }} }}"
                );
            }
            _ => text += &format!(" attr {{ key: 'T' value {{ type: {ty} }} }}"),
        }
        text += " }\n";
    }
    text
}

/// The error of importing, or of running with x = 3 and p = true, must say all of `parts`.
fn check_error(nodes: &str, parts: &[&str]) {
    for optimize in [true, false] {
        let options = SessionOptions {
            threads: 1,
            compile: if optimize {
                CompileOptions::all()
            } else {
                CompileOptions::none()
            },
            ..Default::default()
        };
        let error = Session::from_text(&graph(nodes), options)
            .and_then(|s| {
                let x = ("x:0", Tensor::scalar(3i32));
                let p = ("p:0", Tensor::scalar(true));
                let feeds = if nodes.contains("p Placeholder") {
                    vec![x, p]
                } else {
                    vec![x]
                };
                s.run(&feeds, &["y:0"], &[])
            })
            .expect_err(nodes)
            .to_string();
        for part in parts {
            assert!(error.contains(part), "{error}\nshould say: {part}\n{nodes}");
        }
    }
}

#[test]
fn malformed_graphs_name_the_node() {
    check_error(
        "x Placeholder\n y Exit x",
        &["Exit", "outside any loop", "y"],
    );
    check_error(
        "x Placeholder\n y NextIteration x",
        &["NextIteration", "outside any loop"],
    );
    check_error(
        "x Placeholder\n e Enter x frame=f\n g Enter x frame=g\n s AddV2 e g\n y Exit s",
        &["{{node s}} has inputs from different frames", "'f'", "'g'"],
    );
    check_error(
        "x Placeholder\n e Enter x frame=f\n s AddV2 e x\n y Exit s",
        &[
            "{{node s}} has inputs from different frames. The input {{node e}} is in frame 'f'. The input {{node x}} is in frame ''.",
        ],
    );
    check_error(
        "x Placeholder\n e Enter x frame=f\n m Merge e n\n n NextIteration m\n y Exit m",
        &["'f'", "neither LoopCond nor Switch"],
    );
    check_error(
        "x Placeholder\n e Enter x frame=f\n m Merge e n\n s Neg m\n n Identity s\n y Exit m",
        &["cycle"],
    );
    check_error(
        "x Placeholder\n e Enter x frame=f\n m Merge n n\n n NextIteration m\n k Neg e\n y Exit m",
        &["nothing enters the cycle", "can never run"],
    );
    check_error("x Placeholder\n y Merge", &["y", "N"]);
    // An Exit that takes the value of every iteration.
    check_error(
        "x Placeholder\n z Sub x x\n o Sign x\n e Enter x frame=f\n ze Enter z frame=f \
         is_constant=b:true\n oe Enter o frame=f is_constant=b:true\n m Merge e n\n g Greater m ze\n \
         pl LoopCond g\n s Switch m pl\n b Sub s:1 oe\n n NextIteration b\n y Exit m",
        &["y", "Exit", "alive in more than one iteration"],
    );
    // The other side of a conditional.
    check_error(
        "x Placeholder\n p Placeholder\n s Switch x p\n y Identity s",
        &["Retval[0] does not have value"],
    );
    // A Merge whose only input comes around a loop that was never entered cannot get any.
    check_error(
        "x Placeholder\n p Placeholder\n e Enter x frame=f\n pe Enter p frame=f is_constant=b:true
         m Merge n ^e\n pl LoopCond pe\n s Switch m pl\n i Identity s:1\n n NextIteration i
         k AddV2 e i\n y Exit s",
        &[
            "Retval[0] does not have value",
            "cannot finish",
            "'m' (Merge) waits for",
        ],
    );
}

/// A stored graph returns TensorFlow's (2.21) number, optimized or not.
fn check_file(name: &str, feeds: &[(&str, f64)], fetch: &str, expected: f64) {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/control_flow");
    let text = std::fs::read_to_string(format!("{folder}/{name}.pbtxt")).expect("readable");
    for (optimize, threads) in [(true, 1), (true, 2), (false, 1), (false, 2)] {
        let compile = match optimize {
            true => CompileOptions::all(),
            false => CompileOptions::none(),
        };
        let session = Session::from_text(
            &text,
            SessionOptions {
                threads,
                compile,
                ..Default::default()
            },
        );
        let session = session.unwrap_or_else(|e| panic!("{name}: {e}"));
        let fed: Vec<(&str, Tensor)> = feeds
            .iter()
            .map(|(feed, value)| {
                let graph = session.graph();
                let node = graph.node(graph.find(feed).expect("a placeholder"));
                let value = match node.outputs[0] {
                    DType::Bool => Tensor::scalar(*value != 0.0),
                    DType::Int32 => Tensor::scalar(*value as i32),
                    _ => Tensor::scalar(*value as f32),
                };
                (*feed, value)
            })
            .collect();
        let got = session.run(&fed, &[fetch], &[]);
        let got = got.unwrap_or_else(|e| panic!("{name} (optimize {optimize}): {e}"));
        let got = match got[0].dtype() {
            DType::Int32 => f64::from(got[0].slice::<i32>().expect("int32")[0]),
            _ => f64::from(got[0].slice::<f32>().expect("float")[0]),
        };
        assert_eq!(
            got, expected,
            "{name}, optimize {optimize}, {threads} threads"
        );
    }
}

#[test]
fn what_is_dead_stays_dead() {
    let (no, yes) = (("p", 0.0), ("p", 1.0));
    check_file("awaited_false_1", &[("x", 3.0), no], "r:0", 72.0);
    check_file("awaited_false_2", &[("x", 3.0), no], "r:0", 72.0);
    check_file("awaited_true_1", &[("x", 3.0), yes], "r:0", 72.0);
    check_file("awaited_true_2", &[("x", 3.0), yes], "r:0", 72.0);
    let feeds = [no, ("x", 3.0), ("k", 0.0)];
    check_file("effect_behind_identities", &feeds, "m:0", 3.0);
    check_file("effect_behind_times_one", &feeds, "m:0", 3.0);
    check_file("size_of_dead", &[no, ("x", 3.0)], "m:0", -3.0);
    check_file("times_pinned_one", &[no, ("x", 3.0)], "m:0", -3.0);
    check_file("times_pinned_one", &[no, ("x", 3.0)], "m:1", 0.0);
    check_file("irregular_merge", &[("x", 1000.0)], "z:0", 996.0);
    check_file("merge_that_never_fires", &[("x", 1000.0)], "xs:0", 15.0);
    // A constant Enter, behind an Exit of its own loop.
    check_file("enter_after_exit", &[("x", 0.0)], "y:0", 3.0);
    check_file("enter_after_exit", &[("x", 2.0)], "y:0", 7.0);
    // In an iteration of a loop, which has the schedule that its inner loop may have.
    check_file(
        "loop_without_merges",
        &[("x", 1.0), ("n", 4.0)],
        "y:0",
        16.0,
    );
    check_file("loop_without_merges", &[("x", 1.0), ("n", 0.0)], "y:0", 1.0);
    check_file("large_constant_beside_dead", &[("n", 3.0), no], "y:0", 8.0);
}

#[test]
fn a_loop_without_nodes_ends_at_its_deadline() {
    let nodes = "versions { producer: 2474 }
library {
  function { signature { name: 'go' input_arg { name: 'x' type: DT_STRING } output_arg { name: 'r' type: DT_BOOL } }
    node_def { name: 'yes' op: 'Const' attr { key: 'dtype' value { type: DT_BOOL } }
      attr { key: 'value' value { tensor { dtype: DT_BOOL tensor_shape { } bool_val: true } } } }
    ret { key: 'r' value: 'yes:output:0' } }
  function { signature { name: 'same' input_arg { name: 'x' type: DT_STRING } output_arg { name: 'r' type: DT_STRING } }
    ret { key: 'r' value: 'x' } } }
node { name: 'x' op: 'Placeholder' attr { key: 'dtype' value { type: DT_STRING } } }
node { name: 'y' op: 'StatelessWhile' input: 'x' attr { key: 'T' value { list { type: DT_STRING } } }
  attr { key: 'cond' value { func { name: 'go' } } } attr { key: 'body' value { func { name: 'same' } } } }";
    for threads in [1, 2] {
        let session = Session::from_text(nodes, options(threads)).expect("valid");
        let limited = RunOptions {
            timeout: Some(std::time::Duration::from_millis(200)),
            ..RunOptions::default()
        };
        let x = Tensor::from_strings([1], vec!["a".into()]).expect("small");
        let error = session.run_with(&[("x:0", x)], &["y:0"], &[], &limited);
        assert_eq!(error.expect_err("endless").code(), Code::DeadlineExceeded);
    }
}

#[test]
fn functions_that_do_not_fit() {
    let mut b = GraphBuilder::new(registry());
    b.function("one", &[DType::Int32], |_, a| Ok(vec![a[0]]))
        .unwrap();
    b.function("two", &[DType::Int32; 2], |_, a| Ok(a.to_vec()))
        .unwrap();
    b.function("cond", &[DType::Int32], |b, a| {
        let zero = b.constant("zero", Tensor::scalar(0i32))?;
        Ok(vec![b.op("Less").input(zero).input(a[0]).output()?])
    })
    .unwrap();
    let x = b
        .placeholder("x", DType::Int32, PartialShape::scalar())
        .unwrap();
    b.while_op(&[x], "cond", "two").unwrap();
    let error = b
        .finish()
        .err()
        .expect("the body has two variables")
        .to_string();
    assert!(
        error.contains("While loop body returned 2 arguments. Expected: 1"),
        "{error}"
    );

    let call = "node { name: 'y' op: 'PartitionedCall' attr { key: 'Tin' value { list {} } }
        attr { key: 'Tout' value { list { type: DT_INT32 } } }
        attr { key: 'f' value { func { name: 'nowhere' } } } }";
    let error = Session::from_text(call, options(1))
        .err()
        .expect("no such function");
    assert!(
        error
            .to_string()
            .contains("Function nowhere is not defined"),
        "{error}"
    );
}

/// f0 calls f1 calls f2 …, each adds one.
#[test]
fn ten_thousand_calls_deep() {
    const DEPTH: usize = 10_000;
    let mut b = GraphBuilder::new(registry());
    for i in (0..DEPTH).rev() {
        b.function(&format!("f{i}"), &[DType::Int32], |b, a| {
            let one = b.constant("one", Tensor::scalar(1i32))?;
            let sum = b.op("AddV2").input(a[0]).input(one).output()?;
            match i + 1 {
                DEPTH => Ok(vec![sum]),
                next => {
                    let op = b.op("PartitionedCall").inputs(&[sum]);
                    op.attr(
                        "Tout",
                        ferroflow_opdef::AttrValue::List(vec![ferroflow_opdef::AttrValue::Type(
                            DType::Int32,
                        )]),
                    )
                    .attr(
                        "f",
                        ferroflow_opdef::AttrValue::Func(ferroflow_opdef::FuncRef {
                            name: format!("f{next}"),
                            ..Default::default()
                        }),
                    )
                    .outputs()
                }
            }
        })
        .unwrap();
    }
    let x = b
        .placeholder("x", DType::Int32, PartialShape::scalar())
        .unwrap();
    let y = b.call("f0", &[x]).unwrap();
    b.op("Identity").name("y").input(y[0]).build().unwrap();
    let session = Session::new(b.finish().unwrap(), options(2));
    let y = session
        .run(&[("x:0", Tensor::scalar(5i32))], &["y:0"], &[])
        .unwrap();
    assert_eq!(y[0].to_scalar::<i32>().unwrap(), 5 + DEPTH as i32);
}

/// A function that calls itself for as long as its argument is not `end`.
fn recursive(end: i32) -> String {
    let function = |name: &str, nodes: &str, ret: &str| {
        format!(
            "function {{ signature {{ name: '{name}' input_arg {{ name: 'a' type: DT_INT32 }}
             output_arg {{ name: 'r' type: DT_INT32 }} }} {nodes} ret {{ key: 'r' value: '{ret}' }} }}"
        )
    };
    let constant = |value: i32| {
        format!(
            "node_def {{ name: 'k' op: 'Const' attr {{ key: 'dtype' value {{ type: DT_INT32 }} }}
             attr {{ key: 'value' value {{ tensor {{ dtype: DT_INT32 tensor_shape {{}} int_val: {value} }} }} }} }}"
        )
    };
    let ty = "attr { key: 'T' value { type: DT_INT32 } }";
    let one = "list { type: DT_INT32 }";
    let run = format!(
        "{} node_def {{ name: 'more' op: 'NotEqual' input: 'a' input: 'k:output:0' {ty} }}
         node_def {{ name: 'i' op: 'If' input: 'more:z:0' input: 'a'
           attr {{ key: 'Tcond' value {{ type: DT_BOOL }} }}
           attr {{ key: 'Tin' value {{ {one} }} }} attr {{ key: 'Tout' value {{ {one} }} }}
           attr {{ key: 'then_branch' value {{ func {{ name: 'step' }} }} }}
           attr {{ key: 'else_branch' value {{ func {{ name: 'stop' }} }} }} }}",
        constant(end)
    );
    let step = format!(
        "{} node_def {{ name: 'next' op: 'AddV2' input: 'a' input: 'k:output:0' {ty} }}
         node_def {{ name: 'again' op: 'run' input: 'next:z:0' }}
         node_def {{ name: 'sum' op: 'AddV2' input: 'again:r:0' input: 'k:output:0' {ty} }}",
        constant(1)
    );
    format!(
        "library {{ {} {} {} }}
         node {{ name: 'x' op: 'Placeholder' attr {{ key: 'dtype' value {{ type: DT_INT32 }} }} }}
         node {{ name: 'y' op: 'run' input: 'x' }}",
        function("run", &run, "i:output:0"),
        function("step", &step, "sum:z:0"),
        function("stop", "", "a")
    )
}

#[test]
fn recursion_runs_and_runaway_recursion_ends() {
    let run = |end: i32| {
        let session = Session::from_text(&recursive(end), options(1)).expect("valid");
        session.run(&[("x:0", Tensor::scalar(0i32))], &["y:0"], &[])
    };
    // n down, n up.
    assert_eq!(run(10_000).unwrap()[0].to_scalar::<i32>().unwrap(), 20_000);
    let error = run(-1).expect_err("never ends").to_string();
    assert!(
        error.contains("RESOURCE_EXHAUSTED") && error.contains("deep"),
        "{error}"
    );
}
