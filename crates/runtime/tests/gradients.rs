//! Compares the gradients of the graphs of `tests/gradients/*.jsonl.z` with TensorFlow's and, if a
//! row requires it, with finite differences in random directions.
//!
//! `CASE=part-of-a-name` runs a part of them; `oracle/gradients.py` writes the files.

use ferroflow_testkit::random::Rng;
use ferroflow_testkit::{cases, tensors};

use ferroflow_model::GraphFile;
use ferroflow_runtime::building::{
    GradientOptions, GraphBuilder, Unconnected, WhileOptions, lowered, without_gradient,
};
use ferroflow_runtime::{
    DType, Graph, Output, PartialShape, Session, SessionOptions, Tensor, import_graph,
    parse_tensor_name, registry,
};
use serde_json::Value as Json;
use std::path::Path;
use std::time::Instant;

struct Case {
    name: String,
    graph: Vec<u8>,
    feeds: Vec<(String, Tensor)>,
    ys: Vec<String>,
    gys: Vec<String>,
    xs: Vec<String>,
    stops: Vec<String>,
    gradients: Vec<Option<Tensor>>,
    tol: f64,
    numeric: bool,
}

fn parse(line: &str) -> tensors::Res<Case> {
    let json: Json = serde_json::from_str(line).map_err(|e| e.to_string())?;
    let names = |key: &str| -> Vec<String> {
        let items = json[key].as_array().into_iter().flatten();
        items
            .filter_map(|v| v.as_str().map(str::to_string))
            .collect()
    };
    let feeds = json["feeds"].as_object().ok_or("feeds")?;
    let gradients = json["gradients"].as_array().ok_or("gradients")?;
    Ok(Case {
        name: json["name"].as_str().ok_or("name")?.to_string(),
        graph: cases::graph(&json)?,
        feeds: feeds
            .iter()
            .map(|(k, v)| Ok((k.clone(), tensors::tensor(v)?)))
            .collect::<tensors::Res<_>>()?,
        ys: names("ys"),
        gys: names("gys"),
        xs: names("xs"),
        stops: names("stops"),
        gradients: gradients
            .iter()
            .map(|g| match g.is_null() {
                true => Ok(None),
                false => tensors::tensor(g).map(Some),
            })
            .collect::<tensors::Res<_>>()?,
        tol: tensors::number(&json["tol"])?,
        numeric: json["numeric"].as_bool().unwrap_or(false),
    })
}

fn find(graph: &Graph, name: &str) -> tensors::Res<Output> {
    let (node, slot) = parse_tensor_name(name).map_err(|e| e.to_string())?;
    let id = graph.find(node).ok_or(format!("no node {node}"))?;
    Ok(Output::new(id, slot))
}

fn all(graph: &Graph, names: &[String]) -> tensors::Res<Vec<Output>> {
    names.iter().map(|n| find(graph, n)).collect()
}

fn run(
    session: &Session,
    feeds: &[(String, Tensor)],
    names: &[String],
) -> tensors::Res<Vec<Tensor>> {
    let feeds: Vec<_> = feeds.iter().map(|(k, v)| (k.as_str(), v.clone())).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    session.run(&feeds, &names, &[]).map_err(|e| e.to_string())
}

/// What is in a loop reads constants of the loop, or TensorFlow refuses the graph.
fn constants_in_loops(graph: &Graph, n_before: usize) -> tensors::Res<()> {
    let frames = ferroflow_graph::loop_frames(graph).map_err(|e| e.to_string())?;
    for (id, node) in graph.iter().filter(|(id, _)| id.index() >= n_before) {
        if node.op() == "Enter" || frames.after(graph, id).is_none() {
            continue;
        }
        for input in node.inputs.iter().map(|i| graph.node(i.node)) {
            if input.op() == "Const" && input.controls.is_empty() {
                return Err(format!("'{}' reads '{}'", node.name, input.name));
            }
        }
    }
    Ok(())
}

/// Adds gradients and runs them, as written and optimised.
fn check(case: &Case) -> tensors::Res<()> {
    let file = GraphFile::from_bytes(case.graph.clone()).map_err(|e| e.to_string())?;
    let graph = import_graph(&file.graph, None, registry()).map_err(|e| e.to_string())?;
    let graph = lowered(graph).map_err(|e| e.to_string())?;
    let (ys, xs) = (all(&graph, &case.ys)?, all(&graph, &case.xs)?);
    let options = GradientOptions {
        grad_ys: all(&graph, &case.gys)?.into_iter().map(Some).collect(),
        stop_gradients: all(&graph, &case.stops)?,
        ..Default::default()
    };
    let n_before = graph.id_bound();
    let mut b = GraphBuilder::from_graph(graph, registry());
    let gradients = b.gradients(&ys, &xs, &options).map_err(|e| e.to_string())?;
    let mut names = Vec::new();
    for (i, (gradient, want)) in gradients.iter().zip(&case.gradients).enumerate() {
        if gradient.is_some() != want.is_some() {
            return Err(format!(
                "gradient {i} is {gradient:?}, TensorFlow's {want:?}"
            ));
        }
        names.extend(gradient.map(|g| b.graph().output_name(g)));
    }
    let graph = b.finish().map_err(|e| e.to_string())?;
    constants_in_loops(&graph, n_before)?;
    for optimize in [false, true] {
        let mut session = SessionOptions {
            threads: if optimize { 2 } else { 1 },
            ..Default::default()
        };
        session.compile.optimize = optimize;
        let session = Session::new(graph.clone(), session);
        let got = run(&session, &case.feeds, &names)?;
        let wanted: Vec<&Tensor> = case.gradients.iter().flatten().collect();
        for (i, (got, want)) in got.iter().zip(&wanted).enumerate() {
            match tensors::compare(want, got, case.tol) {
                Err(e) if !is_rounding(want, got) => return Err(format!("gradient {i}: {e}")),
                _ => {}
            }
        }
        if case.numeric && optimize {
            steps(case, &session, &got)?;
        }
    }
    Ok(())
}

/// Returns whether doubles differ by no more than numbers of about one are rounded: where a function is flat, as Tanh of
/// a large number, its gradient is a difference of such numbers.
fn is_rounding(want: &Tensor, got: &Tensor) -> bool {
    let (Ok(want), Ok(got)) = (doubles(want), doubles(got)) else {
        return false;
    };
    let mut pairs = want.iter().zip(&got);
    want.len() == got.len() && pairs.all(|(w, g)| (w - g).abs() <= 2.0 * f64::EPSILON)
}

fn doubles(t: &Tensor) -> tensors::Res<Vec<f64>> {
    t.slice::<f64>()
        .map(<[f64]>::to_vec)
        .map_err(|e| e.to_string())
}

/// Compares with the change of the result along random directions.
fn steps(case: &Case, session: &Session, gradients: &[Tensor]) -> tensors::Res<()> {
    const H: f64 = 1e-6;
    let mut rng = Rng(12345);
    let mut random = || rng.below(1 << 31) as f64 / (1u64 << 30) as f64 - 1.0;
    let with = case
        .xs
        .iter()
        .zip(&case.gradients)
        .filter(|(_, g)| g.is_some());
    let mut directions = Vec::new();
    for (x, _) in with {
        let (_, value) = case
            .feeds
            .iter()
            .find(|(k, _)| k == x)
            .ok_or("x is not fed")?;
        if value.dtype() == DType::Double {
            directions.push((
                x,
                (0..value.num_elements())
                    .map(|_| random())
                    .collect::<Vec<f64>>(),
            ));
        }
    }
    if directions.len() != gradients.len() {
        return Ok(());
    }
    let total = |sign: f64| -> tensors::Res<f64> {
        let mut feeds = case.feeds.clone();
        for (x, direction) in &directions {
            for (_, value) in feeds.iter_mut().filter(|(k, _)| k == *x) {
                let moved: Vec<f64> = doubles(value)?
                    .iter()
                    .zip(direction)
                    .map(|(v, d)| v + sign * H * d)
                    .collect();
                *value =
                    Tensor::from_slice(value.shape().clone(), &moved).map_err(|e| e.to_string())?;
            }
        }
        let fetches: Vec<String> = case.ys.iter().chain(&case.gys).cloned().collect();
        let values = run(session, &feeds, &fetches)?;
        let (ys, gys) = values.split_at(case.ys.len());
        let mut sum = 0.0;
        for (y, gy) in ys.iter().zip(gys) {
            sum += doubles(y)?
                .iter()
                .zip(doubles(gy)?)
                .map(|(a, b)| a * b)
                .sum::<f64>();
        }
        Ok(sum)
    };
    let slope = (total(1.0)? - total(-1.0)?) / (2.0 * H);
    let (mut said, mut size) = (0.0, 1.0);
    for ((_, direction), gradient) in directions.iter().zip(gradients) {
        for (g, d) in doubles(gradient)?.iter().zip(direction) {
            said += g * d;
            size += (g * d).abs();
        }
    }
    match (said - slope).abs() < 1e-5 * size {
        true => Ok(()),
        false => Err(format!(
            "the gradient says {said} along a direction, steps {slope}"
        )),
    }
}

#[test]
fn as_tensorflow() {
    let filter = std::env::var("CASE").unwrap_or_default();
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/gradients");
    let (mut n_passed, mut failures) = (0, Vec::new());
    for line in cases::lines(&dir) {
        let case = parse(&line).unwrap_or_else(|e| panic!("{e} in {line:.60}"));
        if case.name.contains(&filter) {
            match check(&case) {
                Ok(()) => n_passed += 1,
                Err(e) => failures.push(format!("{}: {e}", case.name)),
            }
        }
    }
    println!("{n_passed} passed, {} failed", failures.len());
    assert!(
        failures.is_empty(),
        "{} fail:\n{}",
        failures.len(),
        failures.join("\n")
    );
    assert!(n_passed > 0, "CASE={filter} matches no case");
}

fn float(b: &mut GraphBuilder, name: &str, shape: &[usize]) -> Output {
    let shape = PartialShape::of(shape.iter().map(|d| Some(*d)));
    b.placeholder(name, DType::Float, shape)
        .expect("a placeholder")
}

#[test]
fn what_has_no_gradient() {
    let check = |build: fn(&mut GraphBuilder, Output) -> ferroflow_runtime::Result<Output>,
                 words: &[&str]| {
        let mut b = GraphBuilder::new(registry());
        let x = float(&mut b, "x", &[2, 2]);
        let y = build(&mut b, x).expect("a valid graph");
        let error = b.gradients(&[y], &[x], &GradientOptions::default());
        let error = error.expect_err("no gradient").to_string();
        for word in words {
            assert!(error.contains(word), "'{word}' is not in {error}");
        }
    };
    check(
        |b, x| {
            let unknown = b.op("_Swish").name("swish").input(x).output()?;
            b.op("Neg").name("after").input(unknown).output()
        },
        &[
            "NOT_FOUND",
            "No gradient defined for operation 'swish' (op type: _Swish)",
            "after <- swish",
        ],
    );
    check(
        |b, x| {
            let bits = b.op("Bitcast").name("bits").input(x);
            bits.attr("type", DType::Double.into()).output()
        },
        &["No gradient defined for operation 'bits' (op type: Bitcast)"],
    );
    check(
        |b, x| {
            let own = b.op("Identity").name("own").input(x);
            own.attr("_gradient_op_type", "Clipped".into()).output()
        },
        &[
            "UNIMPLEMENTED",
            "the gradient of 'own' is 'Clipped'",
            "ignore_overrides",
        ],
    );
    check(
        |b, x| {
            b.op("PreventGradient")
                .input(x)
                .attr("message", "not here".into())
                .output()
        },
        &["not here"],
    );
    check(
        |b, x| {
            b.op("Cast")
                .input(x)
                .attr("DstT", DType::Int32.into())
                .output()
        },
        &["INVALID_ARGUMENT", "int32"],
    );
}

#[test]
fn ends_of_all_kinds() {
    let mut b = GraphBuilder::new(registry());
    let (x, y) = (float(&mut b, "x", &[3]), float(&mut b, "y", &[3]));
    let z = b.op("Mul").input(x).input(x).output().expect("z");
    let none = b
        .gradients(&[z], &[y], &GradientOptions::default())
        .expect("gradients");
    assert_eq!(none, [None]);
    let options = GradientOptions {
        unconnected: Unconnected::Zero,
        ..Default::default()
    };
    let both = b.gradients(&[z, x], &[x, y], &options).expect("gradients");
    let names: Vec<String> = both
        .iter()
        .flatten()
        .map(|g| b.graph().output_name(*g))
        .collect();
    let session = Session::new(b.finish().expect("a graph"), SessionOptions::default());
    let three = Tensor::vector(&[1f32, 2., 3.]).expect("a vector");
    let feeds = [
        ("x:0".to_string(), three.clone()),
        ("y:0".to_string(), three),
    ];
    let got = run(&session, &feeds, &names).expect("runs");
    assert_eq!(got[0].slice::<f32>().expect("floats"), [3., 5., 7.]);
    assert_eq!(got[1].slice::<f32>().expect("floats"), [0., 0., 0.]);
}

#[test]
fn long_chains_take_linear_time() {
    for n_stops in [0, 25_000] {
        let mut b = GraphBuilder::new(registry());
        let x = float(&mut b, "x", &[]);
        let mut y = x;
        let mut stops = Vec::new();
        for i in 0..25_000 {
            let sine = b.op("Sin").name(&format!("s{i}")).input(y).output();
            let sine = sine.expect("a node");
            // The sines are constants where their gradients stop.
            if stops.len() < n_stops {
                stops.push(sine);
            }
            let sum = b.op("AddV2").name(&format!("a{i}")).input(sine).input(x);
            y = sum.output().expect("a node");
        }
        let start = Instant::now();
        let options = GradientOptions {
            stop_gradients: stops,
            ..Default::default()
        };
        let d = b.gradients(&[y], &[x], &options).expect("gradients");
        let took = start.elapsed();
        println!(
            "50000 nodes, {n_stops} stops: {took:?}, {} nodes now",
            b.graph().len()
        );
        assert!(d[0].is_some());
        // Two seconds are for an optimised build on an idle machine.
        assert!(
            took.as_secs() < if cfg!(debug_assertions) { 20 } else { 2 },
            "{took:?}"
        );
    }
}

/// The third derivative of x⁵ by way of a loop, a conditional in it and the reverses of both.
#[test]
fn derivatives_of_higher_order() {
    let mut b = GraphBuilder::new(registry());
    let x = b
        .placeholder("x", DType::Double, PartialShape::scalar())
        .expect("x");
    let zero = b
        .constant("zero", Tensor::scalar(0i32))
        .expect("a constant");
    let one = b.constant("one", Tensor::scalar(1i32)).expect("a constant");
    let four = b
        .constant("four", Tensor::scalar(4i32))
        .expect("a constant");
    let y = b.while_loop(
        "powers",
        &[zero, x],
        |b, v| b.op("Less").input(v[0]).input(four).output(),
        |b, v| {
            let is_first = b.op("Equal").input(v[0]).input(zero).output()?;
            let y = b.cond(
                "either",
                is_first,
                |b| Ok(vec![b.op("Square").input(v[1]).output()?]),
                |b| Ok(vec![b.op("Mul").input(v[1]).input(x).output()?]),
            )?;
            Ok(vec![b.op("AddV2").input(v[0]).input(one).output()?, y[0]])
        },
        WhileOptions::default(),
    );
    let mut d = y.expect("a loop")[1];
    let mut names = Vec::new();
    for _ in 0..3 {
        d = b
            .gradients(&[d], &[x], &GradientOptions::default())
            .expect("gradients")[0]
            .expect("connected");
        names.push(b.graph().output_name(d));
    }
    let session = Session::new(b.finish().expect("a graph"), SessionOptions::default());
    for x in [1.5f64, -0.5] {
        let got = run(&session, &[("x:0".to_string(), Tensor::scalar(x))], &names).expect("runs");
        let want = [5.0 * x.powi(4), 20.0 * x.powi(3), 60.0 * x.powi(2)];
        for (got, want) in got.iter().zip(want) {
            let got = got.to_scalar::<f64>().expect("a scalar");
            assert!((got - want).abs() < 1e-9, "{got} {want}");
        }
    }
}

/// In the graph, in functions that it calls, in what those call: each function once.
#[test]
fn ops_without_gradients_are_listed() {
    let mut b = GraphBuilder::new(registry());
    let swish = |b: &mut GraphBuilder, x: Output| b.op("_Swish").input(x).output();
    b.function("inner", &[DType::Float], |b, a| {
        let y = swish(b, a[0])?;
        Ok(vec![swish(b, y)?])
    })
    .expect("a function");
    b.function("outer", &[DType::Float], |b, a| {
        let y = b.call("inner", a)?;
        b.call("inner", &y)
    })
    .expect("a function");
    b.function("unused", &[DType::Float], |b, a| Ok(vec![swish(b, a[0])?]))
        .expect("a function");
    let x = float(&mut b, "x", &[2]);
    let y = swish(&mut b, x).expect("a node");
    let which = b.placeholder("which", DType::Bool, PartialShape::scalar());
    let which = which.expect("a placeholder");
    let y = b.if_op(which, &[y], "outer", "inner").expect("a node");
    b.op("Neg").input(y[0]).build().expect("a node");
    let found = without_gradient(&b.finish().expect("a graph"));
    assert_eq!(
        found.into_iter().collect::<Vec<_>>(),
        [("_Swish".to_string(), 3)]
    );
}
