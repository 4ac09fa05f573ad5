//! Graphs written with `GraphBuilder`: they run, their file form is the stored one, and what is
//! read from that file runs the same.
//!
//! `BLESS=1` writes the stored files; `python oracle/builder.py` then has TensorFlow import and run
//! each and compares with the values stored here.

use ferroflow_runtime::building::{GraphBuilder, WhileOptions};
use ferroflow_runtime::{
    DType, Output, PartialShape, Result, Session, SessionOptions, Tensor, export_graph,
    import_graph, registry, to_text,
};
use std::path::Path;

/// Builds with `x` (an int32 scalar), names the result `y`; `rows` are values of x and y.
fn check(
    name: &str,
    rows: &[(i32, i32)],
    build: impl FnOnce(&mut GraphBuilder, Output) -> Result<Output>,
) {
    let mut b = GraphBuilder::new(registry());
    let x = b.placeholder("x", DType::Int32, PartialShape::scalar());
    let y = x.and_then(|x| build(&mut b, x)).expect("a valid graph");
    b.op("Identity")
        .name("y")
        .input(y)
        .build()
        .expect("a result");
    let graph = b.finish().expect("a valid graph");
    let exported = export_graph(&graph).expect("exports");
    let text = ferroflow_model::graph_to_text(&exported).expect("text");
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/builder");
    let path = folder.join(format!("{name}.pbtxt"));
    let values: Vec<String> = rows.iter().map(|(x, y)| format!("{x} {y}")).collect();
    let stored = format!("# x y: {}\n{text}", values.join(", "));
    if std::env::var_os("BLESS").is_some() {
        std::fs::write(&path, &stored).expect("writable");
    }
    let expected = std::fs::read_to_string(&path).unwrap_or_default();
    assert_eq!(
        canonical(&stored),
        canonical(&expected),
        "{name}: BLESS=1 writes the files"
    );
    let read = Session::from_text(&text, SessionOptions::default()).expect("imports");
    let built = Session::new(graph, SessionOptions::default());
    for session in [built, read] {
        for (x, want) in rows {
            let y = session.run(&[("x:0", Tensor::scalar(*x))], &["y:0"], &[]);
            let y = y.unwrap_or_else(|e| panic!("{name}({x}): {e}"));
            assert_eq!(
                y[0].to_scalar::<i32>().expect("a scalar"),
                *want,
                "{name}({x})"
            );
        }
    }
}

/// What a file says, whatever the order of its attrs.
fn canonical(text: &str) -> String {
    let def = ferroflow_model::graph_from_text(text).expect("a graph");
    let graph = import_graph(&def, None, registry()).expect("a valid graph");
    let mut all = to_text(&graph);
    for name in graph.library().names() {
        let function = graph.library().get(name).expect("a valid body");
        all += &format!("{name}:\n{}", to_text(&function.graph));
    }
    all
}

fn int(b: &mut GraphBuilder, name: &str, value: i32) -> Result<Output> {
    b.constant(name, Tensor::scalar(value))
}

fn binary(b: &mut GraphBuilder, op: &str, x: Output, y: Output) -> Result<Output> {
    b.op(op).input(x).input(y).output()
}

/// Names get the next number, however many there are.
#[test]
fn names_are_numbered() {
    let mut b = GraphBuilder::new(registry());
    let mut made = Vec::new();
    for _ in 0..2000 {
        let node = b.op("NoOp").build().expect("a node");
        made.push(b.graph().node(node).name.clone());
    }
    let wanted = (1..2000).map(|i| format!("NoOp_{i}"));
    assert!(
        made.into_iter()
            .eq(std::iter::once("NoOp".to_string()).chain(wanted))
    );
}

#[test]
fn scopes_controls_devices() {
    check("scopes", &[(1, 6), (5, 14)], |b, x| {
        let two = b.scope("outer", |b| b.scope("inner", |b| int(b, "two", 2)))?;
        let again = b.scope("outer", |b| int(b, "two", 2))?;
        let product = b.on_device("/cpu:0", |b| binary(b, "Mul", x, two))?;
        let waits = b.op("NoOp").name("after").control(product.node).build()?;
        b.with_controls(&[waits], |b| {
            b.colocate_with(product.node, |b| {
                let sum = binary(b, "AddV2", product, again)?;
                binary(b, "AddV2", sum, two)
            })
        })
    });
}

#[test]
fn conditionals() {
    check("cond", &[(-3, 3), (4, 4), (0, 0)], |b, x| {
        let zero = int(b, "zero", 0)?;
        let is_negative = binary(b, "Less", x, zero)?;
        let y = b.cond(
            "abs",
            is_negative,
            |b| Ok(vec![b.op("Neg").input(x).output()?]),
            |_| Ok(vec![x]),
        )?;
        Ok(y[0])
    });
    check("nested_cond", &[(-7, -1), (0, 0), (9, 1)], |b, x| {
        let zero = int(b, "zero", 0)?;
        let is_negative = binary(b, "Less", x, zero)?;
        let is_zero = binary(b, "Equal", x, zero)?;
        let sign = b.cond(
            "sign",
            is_negative,
            |b| Ok(vec![int(b, "minus", -1)?]),
            |b| {
                b.cond(
                    "rest",
                    is_zero,
                    |_| Ok(vec![zero]),
                    |b| Ok(vec![int(b, "plus", 1)?]),
                )
            },
        )?;
        Ok(sign[0])
    });
    check(
        "switch_case",
        &[(0, 10), (1, 20), (2, 30), (7, 30), (-1, 30)],
        |b, x| {
            let y = b.switch_case(
                "pick",
                x,
                vec![
                    Box::new(|b| Ok(vec![int(b, "ten", 10)?])),
                    Box::new(|b| Ok(vec![int(b, "twenty", 20)?])),
                    Box::new(|b| Ok(vec![int(b, "thirty", 30)?])),
                ],
            )?;
            Ok(y[0])
        },
    );
}

#[test]
fn loops() {
    check("while", &[(0, 0), (5, 10), (10, 45)], |b, x| {
        let (zero, one) = (int(b, "zero", 0)?, int(b, "one", 1)?);
        let vars = b.while_loop(
            "sum",
            &[zero, zero],
            |b, v| binary(b, "Less", v[0], x),
            |b, v| {
                Ok(vec![
                    binary(b, "AddV2", v[0], one)?,
                    binary(b, "AddV2", v[1], v[0])?,
                ])
            },
            WhileOptions {
                parallel_iterations: 1,
            },
        )?;
        Ok(vars[1])
    });
    // Steps of the Collatz sequence: a conditional in a loop, constants made inside.
    check("collatz", &[(1, 0), (6, 8), (27, 111)], |b, x| {
        let zero = int(b, "zero", 0)?;
        let vars = b.while_loop(
            "collatz",
            &[x, zero],
            |b, v| {
                let one = int(b, "one", 1)?;
                binary(b, "Greater", v[0], one)
            },
            |b, v| {
                let (two, zero) = (int(b, "two", 2)?, int(b, "zero", 0)?);
                let rest = binary(b, "FloorMod", v[0], two)?;
                let is_even = binary(b, "Equal", rest, zero)?;
                let next = b.cond(
                    "step",
                    is_even,
                    |b| Ok(vec![binary(b, "FloorDiv", v[0], two)?]),
                    |b| {
                        let (three, one) = (int(b, "three", 3)?, int(b, "one", 1)?);
                        let tripled = binary(b, "Mul", v[0], three)?;
                        Ok(vec![binary(b, "AddV2", tripled, one)?])
                    },
                )?;
                let one = int(b, "one", 1)?;
                Ok(vec![next[0], binary(b, "AddV2", v[1], one)?])
            },
            WhileOptions::default(),
        )?;
        Ok(vars[1])
    });
    // Products of pairs below x: a loop in a loop, with outer variables inside.
    check("nested_while", &[(0, 0), (3, 9), (5, 100)], |b, x| {
        let (zero, one) = (int(b, "zero", 0)?, int(b, "one", 1)?);
        let outer = b.while_loop(
            "rows",
            &[zero, zero],
            |b, v| binary(b, "Less", v[0], x),
            |b, v| {
                let inner = b.while_loop(
                    "columns",
                    &[zero, v[1]],
                    |b, w| binary(b, "Less", w[0], x),
                    |b, w| {
                        let product = binary(b, "Mul", v[0], w[0])?;
                        Ok(vec![
                            binary(b, "AddV2", w[0], one)?,
                            binary(b, "AddV2", w[1], product)?,
                        ])
                    },
                    WhileOptions::default(),
                )?;
                Ok(vec![binary(b, "AddV2", v[0], one)?, inner[1]])
            },
            WhileOptions::default(),
        )?;
        Ok(outer[1])
    });
}

#[test]
fn functions() {
    check("functions", &[(0, 1), (3, 10), (-4, 17)], |b, x| {
        b.function("square", &[DType::Int32], |b, a| {
            Ok(vec![binary(b, "Mul", a[0], a[0])?])
        })?;
        b.function("square_and_one", &[DType::Int32], |b, a| {
            let square = b.call("square", &[a[0]])?;
            let one = int(b, "one", 1)?;
            Ok(vec![binary(b, "AddV2", square[0], one)?])
        })?;
        Ok(b.call("square_and_one", &[x])?[0])
    });
    check("functional", &[(0, 0), (5, 10), (-2, -2)], |b, x| {
        b.function("goes_on", &[DType::Int32; 3], |b, a| {
            Ok(vec![binary(b, "Less", a[0], a[2])?])
        })?;
        b.function("add_up", &[DType::Int32; 3], |b, a| {
            let one = int(b, "one", 1)?;
            let next = binary(b, "AddV2", a[0], one)?;
            Ok(vec![next, binary(b, "AddV2", a[1], a[0])?, a[2]])
        })?;
        b.function("sum", &[DType::Int32], |b, a| {
            let zero = int(b, "zero", 0)?;
            Ok(vec![
                b.while_op(&[zero, zero, a[0]], "goes_on", "add_up")?[1],
            ])
        })?;
        b.function("same", &[DType::Int32], |_, a| Ok(vec![a[0]]))?;
        let zero = int(b, "zero", 0)?;
        let is_negative = binary(b, "Less", x, zero)?;
        Ok(b.if_op(is_negative, &[x], "same", "sum")?[0])
    });
}

#[test]
fn misuse_is_an_error() {
    let mut b = GraphBuilder::new(registry());
    let x = b
        .placeholder("x", DType::Int32, PartialShape::scalar())
        .expect("x");
    let f = b.constant("f", Tensor::scalar(1f32)).expect("f");
    assert!(binary(&mut b, "AddV2", x, f).is_err(), "two dtypes");
    assert!(b.op("AddV2").input(x).output().is_err(), "too few inputs");
    assert!(b.op("NoSuchOp").build().is_err());
    let zero = int(&mut b, "zero", 0).expect("zero");
    let pred = binary(&mut b, "Less", x, zero).expect("pred");
    let uneven = b.cond("c", pred, |_| Ok(vec![x, x]), |_| Ok(vec![x]));
    assert!(uneven.is_err(), "branches of different length");
    let mut leaked = None;
    let leaking = b.cond(
        "d",
        pred,
        |b| {
            leaked = Some(b.op("Neg").input(x).output()?);
            Ok(vec![x])
        },
        |_| Ok(vec![x]),
    );
    assert!(leaking.is_ok());
    let leaked = leaked.expect("made");
    assert!(
        b.op("Neg").input(leaked).build().is_err(),
        "a branch's value outside"
    );
    assert!(b.call("nothing", &[x]).is_err());
    let no_bool = b.while_loop(
        "w",
        &[x],
        |_, v| Ok(v[0]),
        |_, v| Ok(v.to_vec()),
        WhileOptions::default(),
    );
    assert!(no_bool.is_err());
}
