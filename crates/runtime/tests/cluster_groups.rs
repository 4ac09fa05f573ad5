//! Groups of small ops: what may be in them, what they wait for, and whose errors they have.

use crate::clusters::{Graph, check, graph_of_x, options, run};
use ferroflow_runtime::{CompileJit, Session, Signature, Tensor};

/// Nodes whose outputs are more than one scalar of int32, or that have none.
fn other(graph: &mut Graph, name: &str, op: &str, inputs: &[&str], attrs: &[(&str, &str)]) {
    let inputs: String = inputs.iter().map(|i| format!(" input: '{i}'")).collect();
    let attr =
        |(key, value): &(&str, &str)| format!(" attr {{ key: '{key}' value {{ {value} }} }}");
    let attrs: String = attrs.iter().map(attr).collect();
    graph.text += &format!("node {{ name: '{name}' op: '{op}'{inputs}{attrs} }}\n");
}

/// A chain of ops behind `x`, long enough to be a group.
fn chain(graph: &mut Graph, x: &str) -> String {
    let mut at = x.to_string();
    for i in 0..12 {
        at = graph.node(["Neg", "Invert", "Abs"][i % 3], &[&at], "");
    }
    at
}

const MANY: [i32; 40] = [5; 40];

#[test]
fn groups_wait_for_nothing_that_waits_for_them() {
    // What the first queue has goes into the second one.
    let mut graph = graph_of_x(0);
    let types = ("component_types", "list { type: DT_INT32 }");
    let put = [("Tcomponents", "list { type: DT_INT32 }")];
    for q in ["q1", "q2"] {
        let named = format!("s: '{q}'");
        let attrs = [
            types,
            ("shapes", "list { shape { } }"),
            ("shared_name", &named),
        ];
        other(&mut graph, q, "FIFOQueueV2", &[], &attrs);
    }
    other(&mut graph, "put1", "QueueEnqueueV2", &["q1", "x"], &put);
    other(&mut graph, "got1", "QueueDequeueV2", &["q1"], &[types]);
    let shape = "attr { key: 'shape' value { shape { } } }";
    let got = graph.node("EnsureShape", &["got1"], shape);
    let first = chain(&mut graph, &got);
    other(&mut graph, "put2", "QueueEnqueueV2", &["q2", &first], &put);
    other(&mut graph, "got2", "QueueDequeueV2", &["q2"], &[types]);
    let got = graph.node("EnsureShape", &["got2"], shape);
    let sum = graph.node("AddV2", &[&first, &got], "");
    let last = chain(&mut graph, &sum);
    graph.named("y", "Identity", &[&last, "^put1", "^put2"], "");
    check(&graph.text, &MANY, &["y:0"], 0, true);
    // A loop reads a group by way of a constant, and its result joins the group.
    let mut graph = graph_of_x(0);
    let known = chain(&mut graph, "x");
    let frame = "attr { key: 'frame_name' value { s: 'f' } }";
    let constant = format!("{frame} attr {{ key: 'is_constant' value {{ b: true }} }}");
    let zero = graph.constant(0, "");
    let limit = graph.node("Enter", &[&known], &constant);
    let enter = graph.node("Enter", &[&zero], frame);
    let n = "attr { key: 'N' value { i: 2 } }";
    let merge = graph.node("Merge", &[&enter, "next"], n);
    let sum = graph.node("AddN", &[&merge, &merge], n);
    let test = graph.node("Less", &[&sum, &limit], "");
    let goes_on = graph.node("LoopCond", &[&test], "");
    let switch = graph.node("Switch", &[&merge, &goes_on], "");
    let inside = graph.node("Identity", &[&format!("{switch}:1")], "");
    let one = graph.constant(1, &inside);
    let step = graph.node("AddV2", &[&inside, &one], "");
    graph.named("next", "NextIteration", &[&step], "");
    let exit = graph.node("Exit", &[&switch], "");
    let exit = graph.node("EnsureShape", &[&exit], shape);
    let joined = graph.node("AddV2", &[&exit, &known], "");
    let last = chain(&mut graph, &joined);
    graph.named("y", "Identity", &[&last], "");
    check(&graph.text, &MANY, &["y:0"], 0, true);
}

#[test]
fn what_may_be_dead_is_in_no_group() {
    let mut graph = graph_of_x(0);
    let known = chain(&mut graph, "x");
    let bounds = [graph.constant(3, ""), graph.constant(7, "")];
    let sides = bounds.map(|bound| {
        let predicate = graph.node("Less", &[&bound, "x"], "");
        graph.node("Switch", &[&known, &predicate], "")
    });
    let both = graph.node(
        "AddV2",
        &[&format!("{}:1", sides[0]), &format!("{}:1", sides[1])],
        "",
    );
    // Counts the steps in which both are alive.
    let handle = [
        ("dtype", "type: DT_INT32"),
        ("shape", "shape { }"),
        ("shared_name", "s: 'v'"),
    ];
    other(&mut graph, "v", "VarHandleOp", &[], &handle);
    let dtype = [("dtype", "type: DT_INT32")];
    let zero = graph.constant(0, "");
    other(&mut graph, "is_set", "VarIsInitializedOp", &["v"], &[]);
    other(&mut graph, "set", "AssignVariableOp", &["v", &zero], &dtype);
    let one = graph.constant(1, &both);
    other(
        &mut graph,
        "count",
        "AssignAddVariableOp",
        &["v", &one],
        &dtype,
    );
    other(&mut graph, "get", "ReadVariableOp", &["v"], &dtype);
    graph.named("y", "Identity", &[&known], "");
    let text = "versions { producer: 2474 }\n".to_string() + &graph.text;
    for jit in [CompileJit::Off, CompileJit::On] {
        let session = Session::from_text(&text, options(jit)).expect("valid");
        session.run(&[], &[], &["set"]).expect("sets");
        for x in 0..60 {
            let feeds = [("x:0", Tensor::scalar(x % 10))];
            session.run(&feeds, &["y:0"], &["count"]).expect("runs");
        }
        let count = session.run(&[], &["get:0"], &[]).expect("reads");
        assert_eq!(count[0].slice::<i32>().expect("ints"), [12], "{jit:?}");
    }
}

#[test]
fn what_is_only_awaited_still_fails() {
    let mut graph = graph_of_x(0);
    let known = chain(&mut graph, "x");
    let hundred = graph.constant(100, "");
    graph.named("quotient", "FloorDiv", &[&hundred, "x"], "");
    graph.named("y", "AddV2", &[&known, "quotient"], "");
    let last = chain(&mut graph, "y");
    graph.named("z", "AddV2", &[&last, "x", "^quotient"], "");
    let xs: Vec<i32> = (0..60).map(|i| i % 5).collect();
    let found = check(&graph.text, &xs, &["z:0"], 0, true);
    assert_eq!(found, [12, 48]);
    let without = graph.text.replace("input: 'quotient'", "input: 'x'");
    assert_eq!(check(&without, &xs, &["z:0"], 0, true), [12, 48]);
}

#[test]
fn functions_of_one_name_are_not_mixed_up() {
    // The groups in both functions end in a node of the same name.
    let int = "attr { key: 'T' value { type: DT_INT32 } }";
    let function = |name: &str, by: i32| {
        let mut nodes = format!(
            "node_def {{ name: 'n0' op: 'EnsureShape' input: 'a' {int} attr {{ key: 'shape' value {{ shape {{ }} }} }} }} \
             node_def {{ name: 'by' op: 'Const' attr {{ key: 'dtype' value {{ type: DT_INT32 }} }} attr {{ key: 'value' \
             value {{ tensor {{ dtype: DT_INT32 tensor_shape {{ }} int_val: {by} }} }} }} }} \
             node_def {{ name: 'm' op: 'Mul' input: 'n0:output:0' input: 'by:output:0' {int} }} "
        );
        let mut at = "m:z:0".to_string();
        for i in 1..12 {
            nodes += &format!("node_def {{ name: 'n{i}' op: 'Neg' input: '{at}' {int} }} ");
            at = format!("n{i}:y:0");
        }
        format!(
            "function {{ signature {{ name: '{name}' input_arg {{ name: 'a' type: DT_INT32 }} \
             output_arg {{ name: 'r' type: DT_INT32 }} }} {nodes} ret {{ key: 'r' value: '{at}' }} }} "
        )
    };
    let sum = format!(
        "function {{ signature {{ name: 'sum' input_arg {{ name: 'a' type: DT_INT32 }} input_arg {{ name: 'b' type: DT_INT32 }} \
         output_arg {{ name: 'r' type: DT_INT32 }} }} node_def {{ name: 's' op: 'AddV2' input: 'a' input: 'b' {int} }} \
         ret {{ key: 'r' value: 's:z:0' }} }}"
    );
    let mut graph = graph_of_x(0);
    let types = ("output_types", "list { type: DT_INT32 }");
    let shapes = ("output_shapes", "list { shape { } }");
    let none = ("Targuments", "list { }");
    let one = graph.constant(1, "");
    let t = ("T", "type: DT_INT32");
    other(
        &mut graph,
        "both",
        "Pack",
        &["x", &one],
        &[("N", "i: 2"), t],
    );
    let list = ("Toutput_types", "list { type: DT_INT32 }");
    other(
        &mut graph,
        "d0",
        "TensorSliceDataset",
        &["both"],
        &[list, shapes],
    );
    for (d, from, f) in [
        ("d1", "d0", "func { name: 'f1' }"),
        ("d2", "d1", "func { name: 'f2' }"),
    ] {
        other(
            &mut graph,
            d,
            "MapDataset",
            &[from],
            &[("f", f), none, types, shapes],
        );
    }
    let zero = graph.constant(0, "");
    let (f, state) = (
        ("f", "func { name: 'sum' }"),
        ("Tstate", "list { type: DT_INT32 }"),
    );
    other(
        &mut graph,
        "y",
        "ReduceDataset",
        &["d2", &zero],
        &[f, state, none, types, shapes],
    );
    graph.text += &format!(
        "library {{ {}{}{sum} }}",
        function("f1", 2),
        function("f2", 5)
    );
    let text = "versions { producer: 2474 }\n".to_string() + &graph.text;
    for jit in [CompileJit::Off, CompileJit::On, CompileJit::Auto] {
        let got = run(&text, &MANY, &["y:0"], jit);
        assert!(got.iter().all(|r| *r == Ok(vec![60])), "{jit:?}: {got:?}");
    }
}

#[test]
fn errors_that_others_wait_for_stay() {
    // The node that waits is in no group.
    let xs: Vec<i32> = (0..60).map(|i| i % 5).collect();
    let quotient = |graph: &mut Graph| {
        let known = chain(graph, "x");
        let hundred = graph.constant(100, "");
        let divisor = graph.node("Maximum", &["x", "x"], "");
        graph.named("quotient", "FloorDiv", &[&hundred, &divisor], "");
        known
    };
    let n = "attr { key: 'N' value { i: 2 } }";
    let mut graph = graph_of_x(0);
    let known = quotient(&mut graph);
    let sum = graph.node("AddN", &[&known, "x", "^quotient"], n);
    graph.named("y", "Identity", &[&sum], "");
    assert_eq!(check(&graph.text, &xs, &["y:0"], 0, true), [12, 48]);
    // Only the pivots of a conditional depend on it.
    let mut graph = graph_of_x(0);
    let known = quotient(&mut graph);
    let three = graph.constant(3, "");
    let test = graph.node("Less", &["x", &three], "");
    let switch = graph.node("Switch", &["quotient", &test], "");
    let sides = ["", ":1"].map(|side| {
        let pivot = graph.node("Identity", &[&format!("{switch}{side}")], "");
        graph.constant(side.len(), &pivot)
    });
    let merge = graph.node("Merge", &[&sides[0], &sides[1]], n);
    graph.named("y", "AddV2", &[&merge, &known], "");
    assert_eq!(check(&graph.text, &xs, &["y:0"], 0, true), [12, 48]);
    // Within a branch.
    let mut graph = graph_of_x(0);
    let known = chain(&mut graph, "x");
    let two = graph.constant(2, "");
    let test = graph.node("Less", &["x", &two], "");
    let sides = ["", ":1"].map(|side| {
        let [a, x] = [&*known, "x"].map(|of| {
            let switch = graph.node("Switch", &[of, &test], "");
            graph.node("Identity", &[&format!("{switch}{side}")], "")
        });
        let hundred = graph.constant(100, &a);
        let quotient = graph.node("FloorDiv", &[&hundred, &x], "");
        graph.node("Neg", &[&a, &format!("^{quotient}")], "")
    });
    let merge = graph.node("Merge", &[&sides[0], &sides[1]], n);
    graph.named("y", "AddV2", &[&merge, &known], "");
    assert_eq!(check(&graph.text, &xs, &["y:0"], 0, true), [12, 48]);
}

#[test]
fn small_tensors_are_moved_and_reduced_the_same() {
    let mut graph = graph_of_x(0);
    let t = ("T", "type: DT_INT32");
    let constant = |graph: &mut Graph, name: &str, dims: &[usize], values: &[i32]| {
        let dims: String = dims
            .iter()
            .map(|d| format!("dim {{ size: {d} }} "))
            .collect();
        let value = format!(
            "tensor {{ dtype: DT_INT32 tensor_shape {{ {dims}}} {} }}",
            values
                .iter()
                .map(|v| format!("int_val: {v} "))
                .collect::<String>()
        );
        other(
            graph,
            name,
            "Const",
            &[],
            &[("dtype", "type: DT_INT32"), ("value", &value)],
        );
    };
    let mut parts = vec!["x".to_string()];
    for i in 1..6 {
        let by = graph.constant(i, "");
        let last = parts[i - 1].clone();
        parts.push(graph.node(["Mul", "AddV2", "Sub"][i % 3], &[&last, &by], ""));
    }
    let all: Vec<&str> = parts.iter().map(String::as_str).collect();
    other(&mut graph, "six", "Pack", &all, &[("N", "i: 6"), t]);
    constant(&mut graph, "shape", &[2], &[2, 3]);
    other(&mut graph, "m", "Reshape", &["six", "shape"], &[t]);
    constant(&mut graph, "perm", &[2], &[1, 0]);
    other(&mut graph, "mt", "Transpose", &["m", "perm"], &[t]);
    constant(&mut graph, "one", &[], &[1]);
    constant(&mut graph, "minus", &[], &[-1]);
    constant(&mut graph, "rows", &[2, 2], &[2, 0, 1, 2]);
    let gather = [
        ("Tparams", "type: DT_INT32"),
        ("Tindices", "type: DT_INT32"),
        ("Taxis", "type: DT_INT32"),
    ];
    other(&mut graph, "g", "GatherV2", &["m", "rows", "one"], &gather);
    constant(&mut graph, "b", &[3], &[1, 0, -1]);
    constant(&mut graph, "e", &[3], &[0, 2, -5]);
    constant(&mut graph, "s", &[3], &[1, 1, -1]);
    let masks = [
        t,
        ("Index", "type: DT_INT32"),
        ("shrink_axis_mask", "i: 1"),
        ("end_mask", "i: 4"),
    ];
    other(
        &mut graph,
        "gs",
        "StridedSlice",
        &["g", "b", "e", "s"],
        &masks,
    );
    constant(&mut graph, "zeros", &[2], &[0, 1]);
    constant(&mut graph, "sizes", &[2], &[-1, 2]);
    other(
        &mut graph,
        "sl",
        "Slice",
        &["m", "zeros", "sizes"],
        &[t, ("Index", "type: DT_INT32")],
    );
    other(
        &mut graph,
        "c",
        "ConcatV2",
        &["gs", "sl", "minus"],
        &[("N", "i: 2"), t],
    );
    constant(&mut graph, "times", &[2], &[1, 2]);
    other(&mut graph, "tiled", "Tile", &["sl", "times"], &[t]);
    let sum = graph.node("AddV2", &["c", "tiled"], "");
    for (name, op, of, axis, keeps) in [
        ("r1", "Sum", &*sum, "one", "b: true"),
        ("r2", "Max", "mt", "minus", "b: false"),
        ("r3", "Min", "m", "zeros", "b: false"),
        ("r4", "Prod", "mt", "zeros", "b: true"),
    ] {
        let attrs = [t, ("Tidx", "type: DT_INT32"), ("keep_dims", keeps)];
        other(&mut graph, name, op, &[of, axis], &attrs);
    }
    other(&mut graph, "r4s", "Squeeze", &["r4"], &[t]);
    // [2, 1] and [3] and [] and [] are broadcast, and then added up.
    let mut y = "r1".to_string();
    for r in ["r2", "r3", "r4s"] {
        y = graph.node("BitwiseXor", &[&y, r], "");
    }
    let attrs = [t, ("Tidx", "type: DT_INT32")];
    other(&mut graph, "y", "Sum", &[&y, "zeros"], &attrs);
    let xs: Vec<i32> = (-20..20).collect();
    assert_eq!(check(&graph.text, &xs, &["y:0"], 0, true), [0, 40]);
    let text = "versions { producer: 2474 }\n".to_string() + &graph.text;
    let session = Session::from_text(&text, options(CompileJit::On)).expect("valid");
    let (feeds, fetches) = (vec!["x:0".to_string()], vec!["y:0".to_string()]);
    let signature = Signature {
        feeds,
        fetches,
        targets: Vec::new(),
    };
    assert_eq!(
        session.callable(&signature).expect("compiles").num_nodes(),
        2
    );
}
