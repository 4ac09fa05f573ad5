//! Gradients by variables, and gradients that are slices of a tensor.

use ferroflow_runtime::building::{
    AttrValue, Gradient, GradientOptions, GraphBuilder, WhileOptions,
};
use ferroflow_runtime::{DType, Output, PartialShape, Session, SessionOptions, Tensor, registry};

fn run(session: &Session, feeds: &[(String, Tensor)], names: &[String]) -> Vec<Tensor> {
    let feeds: Vec<_> = feeds.iter().map(|(k, v)| (k.as_str(), v.clone())).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    session.run(&feeds, &names, &[]).expect("runs")
}

fn float(b: &mut GraphBuilder, name: &str, shape: &[usize]) -> Output {
    let shape = PartialShape::of(shape.iter().map(|d| Some(*d)));
    b.placeholder(name, DType::Float, shape)
        .expect("a placeholder")
}

/// By a variable that hands out references, asked for by its own name or that of a read.
#[test]
fn reference_variables() {
    let text = r#"
        node { name: "v" op: "VariableV2" attr { key: "dtype" value { type: DT_FLOAT } }
               attr { key: "shape" value { shape { } } } }
        node { name: "three" op: "Const" attr { key: "dtype" value { type: DT_FLOAT } }
               attr { key: "value" value { tensor { dtype: DT_FLOAT float_val: 3 tensor_shape { } } } } }
        node { name: "set" op: "Assign" input: "v" input: "three" attr { key: "T" value { type: DT_FLOAT } } }
        node { name: "v/read" op: "Identity" input: "v" attr { key: "T" value { type: DT_FLOAT } } }
        node { name: "y" op: "Square" input: "v/read" attr { key: "T" value { type: DT_FLOAT } } }
        versions { producer: 27 }"#;
    let def = ferroflow_model::graph_from_text(text).expect("a graph");
    let graph = ferroflow_graph::import_graph(&def, None, registry()).expect("a graph");
    let [y, v, read] = ["y", "v", "v/read"].map(|n| Output::new(graph.find(n).expect(n), 0));
    let mut b = GraphBuilder::from_graph(graph, registry());
    for (name, x) in [("by_variable", v), ("by_read", read)] {
        let dx = b.gradients(&[y], &[x], &GradientOptions::default());
        let dx = dx.expect("a gradient")[0].expect("on the way");
        b.op("Identity")
            .name(name)
            .input(dx)
            .build()
            .expect("a node");
    }
    let session = Session::new(b.finish().expect("a graph"), SessionOptions::default());
    session.run(&[], &[], &["set"]).expect("runs");
    for name in ["by_variable:0", "by_read:0"] {
        let dx = session.run(&[], &[name], &[]).expect("runs");
        assert_eq!(dx[0].to_scalar::<f32>().expect("a scalar"), 6.0, "{name}");
    }
}

/// A variable that a loop reads in every iteration, and one that it gathers from.
#[test]
fn variables_in_loops() {
    let mut b = GraphBuilder::new(registry());
    let handle = |b: &mut GraphBuilder, name: &str, shape: &[usize]| {
        let shape = PartialShape::of(shape.iter().map(|d| Some(*d)));
        let op = b.op("VarHandleOp").name(name);
        let op = op.attr("shared_name", AttrValue::str(name));
        let op = op
            .attr("dtype", DType::Float.into())
            .attr("shape", shape.into());
        op.output().expect("a handle")
    };
    let (w, table) = (handle(&mut b, "w", &[2]), handle(&mut b, "table", &[3, 2]));
    let values = [
        (w, Tensor::vector(&[2f32, 3.]).expect("a vector")),
        (
            table,
            Tensor::from_slice([3, 2], &[1f32, 2., 3., 4., 5., 6.]).expect("a matrix"),
        ),
    ];
    for (i, (handle, value)) in values.into_iter().enumerate() {
        let value = b.constant("value", value).expect("a constant");
        let assign = b.op("AssignVariableOp").name(&format!("assign_{i}"));
        assign.input(handle).input(value).build().expect("a node");
    }
    let zero = b
        .constant("zero", Tensor::scalar(0i32))
        .expect("a constant");
    let one = b.constant("one", Tensor::scalar(1i32)).expect("a constant");
    let two = b.constant("two", Tensor::scalar(2i32)).expect("a constant");
    let start = b.constant("start", Tensor::vector(&[1f32, 1.]).expect("a vector"));
    // ((1 w + t[0]) w + t[1]) for both columns.
    let y = b.while_loop(
        "loop",
        &[zero, start.expect("a constant")],
        |b, v| b.op("Less").input(v[0]).input(two).output(),
        |b, v| {
            let read = b
                .op("ReadVariableOp")
                .input(w)
                .attr("dtype", DType::Float.into());
            let read = read.output()?;
            let row = b.op("ResourceGather").input(table).input(v[0]);
            let row = row.attr("dtype", DType::Float.into()).output()?;
            let product = b.op("Mul").input(v[1]).input(read).output()?;
            let next = b.op("AddV2").input(product).input(row).output()?;
            Ok(vec![b.op("AddV2").input(v[0]).input(one).output()?, next])
        },
        WhileOptions::default(),
    );
    let y = y.expect("a loop")[1];
    let d = b
        .gradients(&[y], &[w, table], &GradientOptions::default())
        .expect("gradients");
    let names: Vec<String> = d
        .iter()
        .flatten()
        .map(|g| b.graph().output_name(*g))
        .collect();
    let session = Session::new(b.finish().expect("a graph"), SessionOptions::default());
    session
        .run(&[], &[], &["assign_0", "assign_1"])
        .expect("assigns");
    let got = run(&session, &[], &names);
    assert_eq!(got[0].slice::<f32>().expect("floats"), [5., 8.]);
    assert_eq!(
        got[1].slice::<f32>().expect("floats"),
        [2., 3., 1., 1., 0., 0.]
    );
}

/// Gathered in a loop and on one side of a conditional, the gradients of a table are slices.
#[test]
fn slices_stay_slices() {
    let mut b = GraphBuilder::new(registry());
    let table = float(&mut b, "table", &[100, 2]);
    let start = float(&mut b, "start", &[2]);
    let [zero, one, three] = [0i32, 1, 3].map(|i| {
        let value = b.constant("number", Tensor::scalar(i));
        value.expect("a constant")
    });
    let y = b.while_loop(
        "loop",
        &[zero, start],
        |b, v| b.op("Less").input(v[0]).input(three).output(),
        |b, v| {
            let is_first = b.op("Equal").input(v[0]).input(zero).output()?;
            let row = b.cond(
                "either",
                is_first,
                |_| Ok(vec![start]),
                |b| Ok(vec![b.op("Gather").input(table).input(v[0]).output()?]),
            )?;
            let next = b.op("AddV2").input(v[1]).input(row[0]).output()?;
            Ok(vec![b.op("AddV2").input(v[0]).input(one).output()?, next])
        },
        WhileOptions::default(),
    );
    let y = y.expect("a loop")[1];
    let d = b.gradients_as_slices(&[y], &[table], &GradientOptions::default());
    let Some(Gradient::Slices(d)) = d.expect("gradients")[0] else {
        panic!("no slices");
    };
    let names = [d.values, d.indices, d.dense_shape].map(|o| b.graph().output_name(o));
    let session = Session::new(b.finish().expect("a graph"), SessionOptions::default());
    let feeds = [
        (
            "table:0".to_string(),
            Tensor::zeros(DType::Float, [100, 2].into()).expect("zeros"),
        ),
        (
            "start:0".to_string(),
            Tensor::vector(&[1f32, 2.]).expect("a vector"),
        ),
    ];
    let got = run(&session, &feeds, &names);
    assert_eq!(got[0].slice::<f32>().expect("floats"), [1.; 4]);
    assert_eq!(got[1].slice::<i32>().expect("integers"), [2, 1]);
    assert_eq!(got[2].slice::<i32>().expect("integers"), [100, 2]);
}

/// The gradient of a variable that a function reads which calls itself, and of one that is gathered
/// from in batches.
#[test]
fn variables_in_functions() {
    let mut b = GraphBuilder::new(registry());
    let handle = |b: &mut GraphBuilder, name: &str, value: Tensor| {
        let op = b
            .op("VarHandleOp")
            .name(name)
            .attr("shared_name", AttrValue::str(name));
        let op = op.attr("dtype", DType::Float.into());
        let handle = op
            .attr("shape", PartialShape::from(value.shape()).into())
            .output();
        let (handle, value) = (handle.expect("a handle"), b.constant("value", value));
        let assign = b
            .op("AssignVariableOp")
            .name(&format!("set_{name}"))
            .input(handle);
        assign
            .input(value.expect("a constant"))
            .build()
            .expect("a node");
        handle
    };
    let w = handle(&mut b, "w", Tensor::vector(&[2f32, 3.]).expect("a vector"));
    let table = Tensor::from_slice([2, 2], &[1f32, 2., 3., 4.]).expect("a matrix");
    let table = handle(&mut b, "table", table);
    let args = [DType::Resource, DType::Float];
    b.function("same", &args, |_, args| Ok(vec![args[1]]))
        .expect("a function");
    b.function("times", &args, |b, args| {
        let read = b.op("ReadVariableOp").input(args[0]);
        let read = read.attr("dtype", DType::Float.into()).output()?;
        Ok(vec![b.op("Mul").input(args[1]).input(read).output()?])
    })
    .expect("a function");
    b.function("power", &args, |b, args| {
        let x = b.call("times", &[args[0], args[1]])?[0];
        let yes = b.constant("yes", Tensor::scalar(true))?;
        b.if_op(yes, &[args[0], x], "times", "same")
    })
    .expect("a function");
    let ids = Tensor::from_slice([2, 3], &[0i32, 1, 1, 0, 0, 0]).expect("a matrix");
    let ids = b.constant("ids", ids).expect("a constant");
    let rows = b
        .op("ResourceGather")
        .input(table)
        .input(ids)
        .attr("batch_dims", 1i64.into());
    let rows = rows
        .attr("dtype", DType::Float.into())
        .output()
        .expect("rows");
    let x = b.constant("x", Tensor::vector(&[1f32, 10.]).expect("a vector"));
    let y = b
        .call("power", &[w, x.expect("a constant")])
        .expect("a call")[0];
    // Of x w², and of the number of times that each element was gathered.
    let d = b.gradients(&[y, rows], &[w, table], &GradientOptions::default());
    let d: Vec<Output> = d.expect("gradients").into_iter().flatten().collect();
    let names: Vec<String> = d.iter().map(|g| b.graph().output_name(*g)).collect();
    let session = Session::new(b.finish().expect("a graph"), SessionOptions::default());
    session
        .run(&[], &[], &["set_w", "set_table"])
        .expect("assigns");
    let got = run(&session, &[], &names);
    assert_eq!(got[0].slice::<f32>().expect("floats"), [4., 60.]);
    assert_eq!(got[1].slice::<f32>().expect("floats"), [1., 2., 3., 0.]);
}
