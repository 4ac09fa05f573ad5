//! Gradients of calls: what a function did, its gradient does not do again.
//!
//! The functions give `c x^k`, where `c` is a product of random numbers, so that `x dy/dx = k y`
//! holds for the numbers that were drawn and for no others; each draw is counted by a variable.

use ferroflow_runtime::building::{
    AttrValue, GradientOptions, GraphBuilder, Unconnected, WhileOptions, lowered,
};
use ferroflow_runtime::{
    DType, Output, PartialShape, Result, Session, SessionOptions, Tensor, import_graph, registry,
};

const DOUBLE: &[DType] = &[DType::Double];

fn counter(b: &mut GraphBuilder) -> Result<Output> {
    let op = b
        .op("VarHandleOp")
        .attr("shared_name", AttrValue::str("count"));
    op.attr("dtype", DType::Int32.into())
        .attr("shape", PartialShape::scalar().into())
        .output()
}

/// `x` times a random number from 1 to 2; adds one to the counter.
fn noisy(b: &mut GraphBuilder, x: Output) -> Result<Output> {
    let one = b.constant("one", Tensor::scalar(1i32))?;
    let handle = counter(b)?;
    let counts = b
        .op("AssignAddVariableOp")
        .input(handle)
        .input(one)
        .build()?;
    let shape = b.constant("shape", Tensor::vector(&[0i32; 0])?)?;
    let random = b
        .op("RandomUniform")
        .input(shape)
        .attr("dtype", DType::Double.into());
    let random = random.control(counts).output()?;
    let least = b.constant("least", Tensor::scalar(1f64))?;
    let random = b.op("AddV2").input(random).input(least).output()?;
    b.op("Mul").input(x).input(random).output()
}

fn two(b: &mut GraphBuilder, op: &str, x: Output, y: Output) -> Result<Output> {
    b.op(op).input(x).input(y).output()
}

fn number(b: &mut GraphBuilder, value: i32) -> Result<Output> {
    b.constant("number", Tensor::scalar(value))
}

/// `x` to the power of `n` by a loop, which makes a draw each time.
fn noisy_power(b: &mut GraphBuilder, x: Output, n: i32) -> Result<Output> {
    let (zero, one, n) = (number(b, 0)?, number(b, 1)?, number(b, n)?);
    let unit = b.constant("unit", Tensor::scalar(1f64))?;
    let end = b.while_loop(
        "loop",
        &[zero, unit],
        |b, v| two(b, "Less", v[0], n),
        |b, v| {
            let y = two(b, "Mul", v[1], x)?;
            Ok(vec![two(b, "AddV2", v[0], one)?, noisy(b, y)?])
        },
        WhileOptions::default(),
    )?;
    Ok(end[1])
}

/// Defines `noisy`.
fn define(b: &mut GraphBuilder) -> Result<()> {
    b.function("noisy", DOUBLE, |b, a| Ok(vec![noisy(b, a[0])?]))
}

type Build = fn(&mut GraphBuilder, Output) -> Result<Output>;

/// A graph whose y is `c x^degree`, and how often it draws.
const CASES: &[(&str, f64, i32, Build)] = &[
    ("a call", 1.0, 1, |b, x| {
        define(b)?;
        Ok(b.call("noisy", &[x])?[0])
    }),
    ("a call of a call", 2.0, 2, |b, x| {
        define(b)?;
        b.function("outer", DOUBLE, |b, a| {
            let y = b.call("noisy", a)?;
            let y = two(b, "Mul", y[0], a[0])?;
            b.call("noisy", &[y])
        })?;
        Ok(b.call("outer", &[x])?[0])
    }),
    ("two calls of one function", 2.0, 2, |b, x| {
        define(b)?;
        let (y, z) = (b.call("noisy", &[x])?[0], b.call("noisy", &[x])?[0]);
        two(b, "Mul", y, z)
    }),
    ("an If", 3.0, 1, |b, x| {
        b.function("cube", DOUBLE, |b, a| {
            let y = noisy(b, a[0])?;
            let square = two(b, "Mul", y, a[0])?;
            Ok(vec![two(b, "Mul", square, a[0])?])
        })?;
        b.function("same", DOUBLE, |_, a| Ok(a.to_vec()))?;
        let yes = b.constant("yes", Tensor::scalar(true))?;
        Ok(b.if_op(yes, &[x], "cube", "same")?[0])
    }),
    ("the side of an If that keeps nothing", 1.0, 0, |b, x| {
        define(b)?;
        b.function("same", DOUBLE, |_, a| Ok(a.to_vec()))?;
        let no = b.constant("no", Tensor::scalar(false))?;
        Ok(b.if_op(no, &[x], "noisy", "same")?[0])
    }),
    ("a Case", 2.0, 1, |b, x| {
        define(b)?;
        b.function("square", DOUBLE, |b, a| {
            let y = noisy(b, a[0])?;
            Ok(vec![two(b, "Mul", y, a[0])?])
        })?;
        let branches = ["noisy", "square"].map(|name| {
            AttrValue::Func(ferroflow_opdef::FuncRef {
                name: name.to_string(),
                ..Default::default()
            })
        });
        let which = number(b, 1)?;
        b.op("Case")
            .input(which)
            .inputs(&[x])
            .attr("Tout", AttrValue::List(vec![DType::Double.into()]))
            .attr("branches", AttrValue::List(branches.to_vec()))
            .output()
    }),
    ("a call in a loop", 3.0, 3, |b, x| {
        b.function("times", &[DType::Double; 2], |b, a| {
            let y = two(b, "Mul", a[0], a[1])?;
            Ok(vec![noisy(b, y)?])
        })?;
        let (zero, one, three) = (number(b, 0)?, number(b, 1)?, number(b, 3)?);
        let unit = b.constant("unit", Tensor::scalar(1f64))?;
        let end = b.while_loop(
            "loop",
            &[zero, unit],
            |b, v| two(b, "Less", v[0], three),
            |b, v| {
                Ok(vec![
                    two(b, "AddV2", v[0], one)?,
                    b.call("times", &[v[1], x])?[0],
                ])
            },
            WhileOptions::default(),
        )?;
        Ok(end[1])
    }),
    ("a loop in a call", 3.0, 3, |b, x| {
        b.function("power", DOUBLE, |b, a| Ok(vec![noisy_power(b, a[0], 3)?]))?;
        Ok(b.call("power", &[x])?[0])
    }),
    ("a conditional in a call", 2.0, 2, |b, x| {
        b.function("either", DOUBLE, |b, a| {
            let zero = b.constant("zero", Tensor::scalar(0f64))?;
            let is_more = two(b, "Greater", a[0], zero)?;
            let x = a[0];
            let y = b.cond(
                "cond",
                is_more,
                |b| {
                    let limit = b.constant("limit", Tensor::scalar(100f64))?;
                    let (y, z) = (noisy(b, x)?, noisy(b, x)?);
                    let is_less = two(b, "Less", y, limit)?;
                    b.cond(
                        "inner",
                        is_less,
                        |b| Ok(vec![two(b, "Mul", y, z)?]),
                        |_| Ok(vec![y]),
                    )
                },
                |b| Ok(vec![noisy(b, x)?]),
            )?;
            Ok(y)
        })?;
        Ok(b.call("either", &[x])?[0])
    }),
    ("a loop in a conditional in a call", 2.0, 2, |b, x| {
        b.function("either", DOUBLE, |b, a| {
            let zero = b.constant("zero", Tensor::scalar(0f64))?;
            let is_more = two(b, "Greater", a[0], zero)?;
            let x = a[0];
            b.cond(
                "cond",
                is_more,
                |b| Ok(vec![noisy_power(b, x, 2)?]),
                |_| Ok(vec![x]),
            )
        })?;
        Ok(b.call("either", &[x])?[0])
    }),
    ("a variable that a call changes", 1.0, 2, |b, x| {
        b.function("counted", DOUBLE, |b, a| {
            let y = noisy(b, a[0])?;
            let y = noisy(b, y)?;
            let handle = counter(b)?;
            let read = b.op("ReadVariableOp").input(handle).control(y.node);
            let read = read.attr("dtype", DType::Int32.into()).output()?;
            let read = b.op("Cast").input(read).attr("DstT", DType::Double.into());
            let read = read.output()?;
            Ok(vec![two(b, "Mul", y, read)?])
        })?;
        Ok(b.call("counted", &[x])?[0])
    }),
];

/// y, its gradient and the gradient's gradient belong to the same draws.
fn check(name: &str, degree: f64, n_draws: i32, b: &mut GraphBuilder, x: Output, y: Output) {
    let at = |e: ferroflow_base::Status| -> ! { panic!("{name}: {e}") };
    let mut ends = vec![b.graph().output_name(y)];
    let mut of = y;
    for _ in 0..2 {
        let d = b.gradients(&[of], &[x], &GradientOptions::default());
        let Some(d) = d.unwrap_or_else(|e| at(e))[0] else {
            break;
        };
        ends.push(b.graph().output_name(d));
        of = d;
    }
    let one = number(b, 0).unwrap_or_else(|e| at(e));
    let handle = counter(b).unwrap_or_else(|e| at(e));
    let start = b
        .op("AssignVariableOp")
        .name("start")
        .input(handle)
        .input(one);
    start.build().unwrap_or_else(|e| at(e));
    let read = b.op("ReadVariableOp").name("draws").input(handle);
    let read = read.attr("dtype", DType::Int32.into()).build();
    read.unwrap_or_else(|e| at(e));
    let x = b.graph().output_name(x);
    let graph = std::mem::replace(b, GraphBuilder::new(registry())).finish();
    let graph = graph.unwrap_or_else(|e| at(e));
    for (optimize, threads) in [(false, 1), (true, 2)] {
        let mut options = SessionOptions {
            threads,
            ..Default::default()
        };
        options.compile.optimize = optimize;
        let session = Session::new(graph.clone(), options);
        session.run(&[], &[], &["start"]).unwrap_or_else(|e| at(e));
        let feeds = [(x.as_str(), Tensor::scalar(1.5f64))];
        let ends: Vec<&str> = ends.iter().map(String::as_str).collect();
        let got = session.run(&feeds, &ends, &[]).unwrap_or_else(|e| at(e));
        let got: Vec<f64> = got
            .iter()
            .map(|t| t.to_scalar().expect("a double"))
            .collect();
        let mut want = got[0];
        for (order, got) in got.iter().enumerate() {
            assert!(
                (got - want).abs() <= 1e-12 * want.abs(),
                "{name}: derivative {order} is {got}, not {want}"
            );
            want *= (degree - order as f64) / 1.5;
        }
        assert!(got[0].abs() > 0.0, "{name}");
        let draws = session.run(&[], &["draws:0"], &[]).expect("a variable");
        let draws = draws[0].to_scalar::<i32>().expect("a number");
        assert_eq!(draws, n_draws, "{name}, optimized: {optimize}");
    }
}

#[test]
fn nothing_is_done_twice() {
    for (name, degree, n_draws, build) in CASES {
        let mut b = GraphBuilder::new(registry());
        let x = b.placeholder("x", DType::Double, PartialShape::scalar());
        let x = x.expect("a placeholder");
        let y = build(&mut b, x).unwrap_or_else(|e| panic!("{name}: {e}"));
        check(name, *degree, *n_draws, &mut b, x, y);
    }
}

/// f(n, x) draws and calls itself, n times.
#[test]
fn recursion_keeps_every_call() {
    let text = include_str!("call_gradients/recursion.pbtxt");
    let file = ferroflow_model::graph_from_text(text).expect("a graph");
    let graph = import_graph(&file, None, registry()).expect("a valid graph");
    let graph = lowered(graph).expect("a valid graph");
    let [x, y] = ["x", "y"].map(|name| Output::new(graph.find(name).expect("a node"), 0));
    let mut b = GraphBuilder::from_graph(graph, registry());
    check("recursion", 5.0, 4, &mut b, x, y);
}

/// What could not be made leaves no trace.
#[test]
fn after_an_error_the_graph_still_runs() {
    let mut b = GraphBuilder::new(registry());
    let x = b
        .placeholder("x", DType::Float, PartialShape::scalar())
        .expect("x");
    b.function("f", &[DType::Float], |b, a| {
        let y = b.op("Square").input(a[0]).output()?;
        Ok(vec![b.op("_Swish").name("swish").input(y).output()?])
    })
    .expect("a function");
    let y = b.call("f", &[x]).expect("a call")[0];
    let n = b.graph().len();
    let error = b.gradients(&[y], &[x], &GradientOptions::default());
    let error = error.expect_err("no gradient").to_string();
    for part in [
        "No gradient defined for operation 'swish'",
        "in the gradient of function 'f'",
    ] {
        assert!(error.contains(part), "{error}");
    }
    assert_eq!(b.graph().len(), n);
    let y = b.graph().output_name(y);
    let session = Session::new(b.finish().expect("a graph"), SessionOptions::default());
    let got = session.run(&[("x", Tensor::scalar(0f32))], &[&y], &[]);
    assert_eq!(
        got.expect("runs")[0].to_scalar::<f32>().expect("a float"),
        0.0
    );
}

/// Without incoming gradients there are none, or zeros; inside a loop too.
#[test]
fn gradients_of_nothing() {
    let mut b = GraphBuilder::new(registry());
    let x = b
        .placeholder("x", DType::Float, PartialShape::scalar())
        .expect("x");
    let none = b.gradients(&[], &[x], &GradientOptions::default());
    assert_eq!(none.expect("gradients"), [None]);
    let (zero, one) = (
        number(&mut b, 0).expect("a constant"),
        number(&mut b, 1).expect("a constant"),
    );
    let end = b.while_loop(
        "loop",
        &[zero, x],
        |b, v| two(b, "Less", v[0], one),
        |b, v| {
            assert_eq!(
                b.gradients(&[], &[v[1]], &GradientOptions::default())?,
                [None]
            );
            let options = GradientOptions {
                unconnected: Unconnected::Zero,
                ..Default::default()
            };
            let zero = b.gradients(&[], &[v[1]], &options)?[0];
            Ok(vec![two(b, "AddV2", v[0], one)?, zero.unwrap_or(v[1])])
        },
        WhileOptions::default(),
    );
    let y = b.graph().output_name(end.expect("a loop")[1]);
    let session = Session::new(b.finish().expect("a graph"), SessionOptions::default());
    let got = session.run(&[("x", Tensor::scalar(3f32))], &[&y], &[]);
    assert_eq!(
        got.expect("runs")[0].to_scalar::<f32>().expect("a float"),
        0.0
    );
}
