//! Sessions from the outside: feeding, fetching, errors, threads, cancellation.

use ferroflow_runtime::{
    CancelToken, Code, CompileOptions, RunOptions, Session, SessionOptions, Shape, Tensor,
};
use ferroflow_testkit::random::{Random, Rng};
use std::time::Duration;

fn options(threads: usize, optimize: bool) -> SessionOptions {
    let compile = if optimize {
        CompileOptions::all()
    } else {
        CompileOptions::none()
    };
    SessionOptions {
        threads,
        compile,
        ..Default::default()
    }
}

fn session(graph: &str) -> Session {
    Session::from_text(graph, options(2, true)).expect("a valid graph")
}

fn placeholder(name: &str, dims: &[i64]) -> String {
    let dims: String = dims
        .iter()
        .map(|d| format!("dim {{ size: {d} }} "))
        .collect();
    format!(
        "node {{ name: '{name}' op: 'Placeholder' attr {{ key: 'dtype' value {{ type: DT_FLOAT }} }} \
         attr {{ key: 'shape' value {{ shape {{ {dims} }} }} }} }}\n"
    )
}

fn node(name: &str, op: &str, inputs: &[&str]) -> String {
    let inputs: String = inputs.iter().map(|i| format!("input: '{i}' ")).collect();
    format!(
        "node {{ name: '{name}' op: '{op}' {inputs} attr {{ key: 'T' value {{ type: DT_FLOAT }} }} }}\n"
    )
}

fn int_const(name: &str, value: i32) -> String {
    format!(
        "node {{ name: '{name}' op: 'Const' attr {{ key: 'dtype' value {{ type: DT_INT32 }} }} attr {{ \
         key: 'value' value {{ tensor {{ dtype: DT_INT32 tensor_shape {{ }} int_val: {value} }} }} }} }}\n"
    )
}

fn small() -> String {
    placeholder("x", &[-1, 2])
        + &node("a", "Neg", &["x"])
        + &node("b", "AddV2", &["a", "x"])
        + &node("c", "Exp", &["b"])
}

fn vector(values: &[f32]) -> Tensor {
    Tensor::from_slice([values.len() / 2, 2], values).expect("pairs")
}

#[test]
fn any_tensor_can_be_fed_and_fetched() {
    let s = session(&small());
    let x = vector(&[1.0, 2.0]);
    let run = |feeds: &[(&str, Tensor)], fetch: &str| {
        let out = s.run(feeds, &[fetch], &[]).expect("runs");
        out[0].slice::<f32>().expect("float").to_vec()
    };
    assert_eq!(run(&[("x:0", x.clone())], "a:0"), [-1.0, -2.0]);
    assert_eq!(run(&[("x", x.clone())], "c"), [1.0, 1.0]);
    // Feeding an inner tensor cuts its producer off: x itself is not needed any more.
    assert_eq!(run(&[("b:0", vector(&[0.0, 0.0]))], "c:0"), [1.0, 1.0]);
    // A fed tensor can be fetched.
    assert_eq!(run(&[("x:0", x.clone())], "x:0"), [1.0, 2.0]);
    let both = s.run(&[("x:0", x)], &["a:0", "a:0"], &["c"]).expect("runs");
    assert!(both[0].same_value(&both[1]));
}

#[test]
fn bad_requests_are_errors_and_the_session_goes_on() {
    let s = session(&small());
    let x = vector(&[1.0, 2.0]);
    let code = |feeds: &[(&str, Tensor)], fetches: &[&str], targets: &[&str]| {
        s.run(feeds, fetches, targets)
            .expect_err("must fail")
            .code()
    };
    let xs = [("x:0", x.clone())];
    assert_eq!(code(&xs, &["nope:0"], &[]), Code::NotFound);
    assert_eq!(code(&xs, &["a:1"], &[]), Code::InvalidArgument);
    assert_eq!(code(&xs, &["a:x"], &[]), Code::NotFound);
    assert_eq!(code(&xs, &[], &[]), Code::InvalidArgument);
    assert_eq!(code(&xs, &[], &["nope"]), Code::NotFound);
    assert_eq!(code(&[("y:0", x.clone())], &["a"], &[]), Code::NotFound);
    assert_eq!(
        code(&[("x", x.clone()), ("x:0", x.clone())], &["a"], &[]),
        Code::InvalidArgument
    );
    assert_eq!(code(&[], &["a"], &[]), Code::InvalidArgument);
    let ints = Tensor::vector(&[1i32, 2]).expect("small");
    assert_eq!(code(&[("x:0", ints)], &["a"], &[]), Code::InvalidArgument);
    let wrong_shape = Tensor::vector(&[1.0f32; 3]).expect("small");
    assert_eq!(
        code(&[("x:0", wrong_shape)], &["a"], &[]),
        Code::InvalidArgument
    );
    assert!(s.run(&xs, &["c"], &[]).is_ok());
}

#[test]
fn errors_of_steps_name_their_node() {
    let graph = placeholder("x", &[-1])
        + &placeholder("y", &[-1])
        + &node("sum", "AddV2", &["x", "y"])
        + &int_const("one", 1)
        + &int_const("zero", 0)
        + "node { name: 'quotient' op: 'FloorDiv' input: 'one' input: 'zero' \
           attr { key: 'T' value { type: DT_INT32 } } }\n";
    for optimize in [true, false] {
        for threads in [1, 2] {
            let s = Session::from_text(&graph, options(threads, optimize)).expect("valid");
            let of = |n: usize| Tensor::vector(&vec![1.0f32; n]).expect("small");
            let e = s
                .run(&[("x", of(2)), ("y", of(3))], &["sum"], &[])
                .expect_err("shapes");
            assert_eq!(
                (e.code(), e.node()),
                (Code::InvalidArgument, Some("sum")),
                "{e}"
            );
            assert!(
                e.to_string().contains("Incompatible shapes: [2] vs. [3]"),
                "{e}"
            );
            let e = s
                .run(&[], &["quotient"], &[])
                .expect_err("division by zero");
            assert_eq!(
                (e.code(), e.node()),
                (Code::InvalidArgument, Some("quotient")),
                "{e}"
            );
            assert!(s.run(&[("x", of(2)), ("y", of(2))], &["sum"], &[]).is_ok());
        }
    }
}

#[test]
fn graphs_that_are_wrong_are_refused_on_import() {
    let cases: &[(&str, &str, &str)] = &[
        (
            "unknown op",
            "node { name: 'a' op: 'Bogus' }",
            "Op type not registered 'Bogus'",
        ),
        (
            "a constant of another dtype",
            "node { name: 'a' op: 'Const' attr { key: 'dtype' value { type: DT_INT32 } } attr { key: \
             'value' value { tensor { dtype: DT_FLOAT tensor_shape { } float_val: 1 } } } }",
            "Type mismatch between value (float) and dtype (int32)",
        ),
        (
            "missing attr",
            "node { name: 'a' op: 'Placeholder' }",
            "missing attr 'dtype'",
        ),
        (
            "duplicate",
            "node { name: 'a' op: 'NoOp' } node { name: 'a' op: 'NoOp' }",
            "not unique",
        ),
        (
            "dangling",
            &node("a", "Neg", &["missing"]),
            "Unknown input node 'missing'",
        ),
        (
            "arity",
            &(placeholder("x", &[]) + &node("a", "AddV2", &["x"])),
            "1 inputs",
        ),
        (
            "slot",
            &(placeholder("x", &[]) + &node("a", "Neg", &["x:3"])),
            "which has 1 outputs",
        ),
        (
            "slot of a loop",
            &(placeholder("x", &[])
                + "node { name: 'w' op: 'StatelessWhile' input: 'x' attr { key: 'T' value { list { \
                   type: DT_FLOAT } } } attr { key: 'cond' value { func { name: 'f' } } } attr { key: \
                   'body' value { func { name: 'f' } } } } "
                + &node("a", "Neg", &["w:1"])),
            "which has 1 outputs. Try using tf.compat.v1.experimental.output_all_intermediates(True).",
        ),
        (
            "cycle",
            &(node("a", "Neg", &["b"]) + &node("b", "Neg", &["a"])),
            "cycle",
        ),
        (
            "dtype",
            &(int_const("i", 1) + &node("a", "Neg", &["i"])),
            "incompatible with expected",
        ),
        (
            "bad dtype attr",
            "node { name: 'a' op: 'Neg' attr { key: 'T' value { type: DT_STRING } } }",
            "allowed",
        ),
        (
            "results of a gradient",
            &(placeholder("x", &[2])
                + "node { name: 'd' op: 'SymbolicGradient' input: 'x' input: 'x' attr { key: 'f' value { func { \
                   name: 'f' } } } attr { key: 'Tin' value { list { type: DT_FLOAT type: DT_FLOAT } } } \
                   attr { key: 'Tout' value { list { type: DT_FLOAT } } } } library { \
                   function { signature { name: 'f' input_arg { name: 'a' type: DT_FLOAT } \
                   output_arg { name: 'r' type: DT_FLOAT } } ret { key: 'r' value: 'a' } } \
                   function { signature { name: 'g' input_arg { name: 'a' type: DT_FLOAT } \
                   input_arg { name: 'b' type: DT_FLOAT } output_arg { name: 'r' type: DT_FLOAT } \
                   output_arg { name: 's' type: DT_FLOAT } } ret { key: 'r' value: 'a' } \
                   ret { key: 's' value: 'b' } } gradient { function_name: 'f' gradient_func: 'g' } }"),
            "SymGrad expects to return 1 tensor(s), but get 2 tensor(s) instead.",
        ),
        ("empty", "", ""),
    ];
    for (what, graph, message) in cases {
        let e = Session::from_text(graph, options(1, true)).err();
        let e = e
            .unwrap_or_else(|| panic!("{what} must be refused"))
            .to_string();
        assert!(e.contains(message), "{what}: {e}");
    }
    assert!(Session::from_bytes(vec![7; 100], options(1, true)).is_err());
}

#[test]
fn a_tensor_too_large_is_an_error_of_the_step() {
    let graph = "node { name: 'd' op: 'Placeholder' attr { key: 'dtype' value { type: DT_INT32 } } }\n\
        node { name: 'v' op: 'Const' attr { key: 'dtype' value { type: DT_FLOAT } } attr { key: 'value' \
        value { tensor { dtype: DT_FLOAT tensor_shape { } float_val: 1 } } } }\n\
        node { name: 'f' op: 'Fill' input: 'd' input: 'v' attr { key: 'T' value { type: DT_FLOAT } } }";
    let s = session(graph);
    let dims = |d: &[i32]| Tensor::vector(d).expect("small");
    let e = s
        .run(&[("d", dims(&[1 << 30, 1 << 30]))], &["f"], &[])
        .expect_err("too large");
    assert!(
        matches!(e.code(), Code::ResourceExhausted | Code::InvalidArgument),
        "{e}"
    );
    assert_eq!(e.node(), Some("f"));
    assert!(s.run(&[("d", dims(&[2]))], &["f"], &[]).is_ok());
}

#[test]
fn timeouts_and_cancellation_end_a_step() {
    // Long enough that it cannot finish first: the token is looked at between nodes.
    let mut graph = placeholder("x", &[-1, 2]);
    let mut last = "x".to_string();
    for i in 0..2000 {
        graph += &node(&format!("n{i}"), "Exp", &[&last]);
        last = format!("n{i}");
    }
    let s = Session::from_text(&graph, options(2, false)).expect("valid");
    let x =
        Tensor::zeros(ferroflow_runtime::DType::Float, Shape::from([100_000, 2])).expect("fits");
    let cancelled = CancelToken::new();
    cancelled.cancel();
    let run = |options: RunOptions| {
        s.run_with(&[("x", x.clone())], &[&last], &[], &options)
            .expect_err("must end")
            .code()
    };
    assert_eq!(
        run(RunOptions {
            cancel: Some(cancelled),
            ..Default::default()
        }),
        Code::Cancelled
    );
    let timeout = Some(Duration::from_millis(1));
    assert_eq!(
        run(RunOptions {
            timeout,
            ..Default::default()
        }),
        Code::DeadlineExceeded
    );
}

#[test]
fn many_threads_share_one_session() {
    let s = session(&small());
    std::thread::scope(|scope| {
        for t in 0..8 {
            let s = &s;
            scope.spawn(move || {
                for i in 0..200 {
                    let v = (t * 1000 + i) as f32;
                    let fetch = if i % 2 == 0 { "a:0" } else { "b:0" };
                    let out = s
                        .run(&[("x", vector(&[v, 1.0]))], &[fetch], &[])
                        .expect("runs");
                    let want = if i % 2 == 0 { -v } else { 0.0 };
                    assert_eq!(out[0].slice::<f32>().expect("float")[0], want);
                }
            });
        }
    });
}

#[test]
fn random_graphs_agree_whatever_the_setting() {
    const UNARY: &[&str] = &[
        "Neg", "Tanh", "Sigmoid", "Relu", "Square", "Abs", "Softplus",
    ];
    const BINARY: &[&str] = &["AddV2", "Sub", "Mul", "Maximum", "SquaredDifference"];
    for seed in 1..60u64 {
        let mut r = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let mut graph = placeholder("v0", &[-1, 2]) + &placeholder("v1", &[1, 2]);
        let n = 5 + r.below(40);
        for i in 2..n {
            let a = format!("v{}", r.below(i));
            let b = format!("v{}", r.below(i));
            graph += &match r.below(5) {
                0..=2 => node(&format!("v{i}"), UNARY[r.below(UNARY.len())], &[&a]),
                _ => {
                    // Values stay small: a squashed operand.
                    let squashed = format!("s{i}");
                    node(&squashed, "Tanh", &[&b])
                        + &node(
                            &format!("v{i}"),
                            BINARY[r.below(BINARY.len())],
                            &[&a, &squashed],
                        )
                }
            };
        }
        let fetches = [format!("v{}", n - 1), format!("v{}", 2 + r.below(n - 2))];
        let fetches: Vec<&str> = fetches.iter().map(String::as_str).collect();
        let rows = [1, 3, 5000][r.below(3)];
        let values: Vec<f32> = (0..rows * 2)
            .map(|_| r.below(2000) as f32 / 1000.0 - 1.0)
            .collect();
        let feeds = [("v0", vector(&values)), ("v1", vector(&[0.5, -0.25]))];
        let mut first: Option<Vec<Tensor>> = None;
        for optimize in [false, true] {
            for threads in [1, 2, 4] {
                let s = Session::from_text(&graph, options(threads, optimize)).expect("valid");
                let out = s.run(&feeds, &fetches, &[]).expect("runs");
                match &first {
                    None => first = Some(out),
                    Some(first) => {
                        for (a, b) in first.iter().zip(&out) {
                            assert_eq!(a.shape(), b.shape(), "seed {seed}");
                            for (x, y) in a
                                .slice::<f32>()
                                .unwrap()
                                .iter()
                                .zip(b.slice::<f32>().unwrap())
                            {
                                let close = (x - y).abs() <= 1e-4 * x.abs().max(1.0)
                                    || (x.is_infinite() && x == y)
                                    || (x.is_nan() && y.is_nan());
                                assert!(
                                    close,
                                    "seed {seed}, optimize {optimize}, {threads} threads: {x} {y}\n{graph}"
                                );
                            }
                        }
                    }
                }
            }
        }
    }
}

/// A graph of sums and products of earlier nodes, picked at random.
fn tangle(nodes: usize) -> String {
    let mut text = placeholder("n0", &[]) + &placeholder("n1", &[]);
    let mut random = Rng(1);
    for i in 2..nodes {
        let mut near = || format!("n{}", i - 1 - random.below(i.min(64)));
        let inputs = [near(), near()];
        let op = ["AddV2", "Mul", "Sub"][random.below(3)];
        text += &node(&format!("n{i}"), op, &inputs.each_ref().map(String::as_str));
    }
    text
}

/// Eight times the nodes take about eight times as long to import and compile: a step that is
/// quadratic takes 64 times as long. The bound is far from both.
#[test]
fn loading_and_compiling_are_linear() {
    let time = |nodes: usize| {
        let graph = tangle(nodes);
        let rounds = (0..3).map(|_| {
            let began = std::time::Instant::now();
            let s = Session::from_text(&graph, options(1, true)).expect("a session");
            let feeds = ["n0", "n1"].map(|n| (n, Tensor::scalar(0.5f32)));
            s.run(&feeds, &[&format!("n{}", nodes - 1)], &[])
                .expect("runs");
            began.elapsed().as_secs_f64()
        });
        rounds.fold(f64::INFINITY, f64::min)
    };
    let (small, large) = (time(2_000), time(16_000));
    assert!(
        large < 30.0 * small,
        "{small} s for 2,000 nodes, {large} s for 16,000"
    );
}

/// The shape of `x` in a graph of this version, where it is a placeholder with the shape of a scalar, as
/// its consumers see it: fed with a vector, or an error.
fn check_scalar_placeholder(producer: i32, expect: &[i32]) {
    let text = format!(
        "node {{ name: 'x' op: 'Placeholder' attr {{ key: 'dtype' value {{ type: DT_FLOAT }} }}
           attr {{ key: 'shape' value {{ shape {{ }} }} }} }}
         node {{ name: 'n' op: 'Shape' input: 'x' attr {{ key: 'T' value {{ type: DT_FLOAT }} }} }}
         versions {{ producer: {producer} }}"
    );
    let def = ferroflow_model::graph_from_text(&text).expect("valid");
    let options = SessionOptions {
        check_feed_shapes: false,
        ..SessionOptions::default()
    };
    let frozen = Session::from_text(&text, options.clone()).expect("imported");
    let growing = Session::create(def, options).expect("imported");
    let x = Tensor::from_slice([3], &[1.0f32, 2.0, 3.0]).expect("small");
    for session in [frozen, growing] {
        let n = session.run(&[("x", x.clone())], &["n"], &[]).expect("runs");
        assert_eq!(n[0].slice::<i32>().expect("int32"), expect, "{producer}");
    }
}

#[test]
fn old_graphs_cannot_say_that_a_placeholder_is_a_scalar() {
    check_scalar_placeholder(0, &[3]);
    check_scalar_placeholder(21, &[3]);
    // As TensorFlow's service: the declared shape is trusted.
    check_scalar_placeholder(22, &[]);
}

#[test]
fn a_fetched_variable_shows_what_the_step_wrote() {
    let graph = "node { name: 'v' op: 'VariableV2' attr { key: 'dtype' value { type: DT_FLOAT } } \
         attr { key: 'shape' value { shape { } } } }\n"
        .to_string()
        + &placeholder("x", &[])
        + &node("init", "Assign", &["v", "x"])
        + &node("add", "AssignAdd", &["v", "x"])
        + &node("more", "AssignAdd", &["v", "x", "^add"]);
    for optimize in [false, true] {
        let session = Session::from_text(&graph, options(2, optimize)).expect("a valid graph");
        let x = || Tensor::from_slice([0usize; 0], &[2.0f32]).expect("a scalar");
        session.run(&[("x", x())], &[], &["init"]).expect("init");
        // As in TensorFlow, where the fetched tensor shares the variable's buffer.
        for expected in [6.0, 10.0] {
            let found = session.run(&[("x", x())], &["v"], &["more"]).expect("run");
            assert_eq!(found[0].slice::<f32>().expect("floats"), [expected]);
        }
        let found = session.run(&[], &["v"], &[]).expect("read");
        assert_eq!(found[0].slice::<f32>().expect("floats"), [10.0]);
    }
}
