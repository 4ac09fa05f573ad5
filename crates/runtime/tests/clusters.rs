//! Random loops and groups of ops of scalars, nested and with conditionals, result in the same with and without machine
//! code, errors included.

use ferroflow_runtime::{CompileJit, CompileOptions, Session, SessionOptions, Tensor};
use ferroflow_testkit::random::Rng;

const OPS: &[&str] = &[
    "AddV2",
    "Sub",
    "Mul",
    "Maximum",
    "Minimum",
    "FloorMod",
    "FloorDiv",
    "TruncateDiv",
    "BitwiseXor",
    "BitwiseAnd",
    "LeftShift",
    "RightShift",
];

/// A graph that is being built: nodes as text, all int32 but for predicates.
struct Graph {
    text: String,
    n: usize,
    random: Rng,
}

impl Graph {
    fn node(&mut self, op: &str, inputs: &[&str], attrs: &str) -> String {
        self.n += 1;
        let name = format!("{}_{}", op.to_lowercase(), self.n);
        self.named(&name, op, inputs, attrs);
        name
    }

    fn named(&mut self, name: &str, op: &str, inputs: &[&str], attrs: &str) {
        let inputs: String = inputs.iter().map(|i| format!(" input: '{i}'")).collect();
        let ty = match op {
            "Const" | "Placeholder" => " attr { key: 'dtype' value { type: DT_INT32 } }",
            "LoopCond" | "NoOp" => "",
            _ => " attr { key: 'T' value { type: DT_INT32 } }",
        };
        self.text += &format!("node {{ name: '{name}' op: '{op}'{inputs}{ty} {attrs} }}\n");
    }

    fn constant(&mut self, value: usize, after: &str) -> String {
        let value = format!(
            "attr {{ key: 'value' value {{ tensor {{ dtype: DT_INT32 tensor_shape {{ }} int_val: {value} }} }} }}"
        );
        match after {
            "" => self.node("Const", &[], &value),
            after => self.node("Const", &[&format!("^{after}")], &value),
        }
    }

    /// A value computed from `known` by some steps, in the region of `pivot`.
    fn value(&mut self, known: &[String], pivot: &str, depth: usize) -> String {
        let mut known = known.to_vec();
        for _ in 0..1 + self.random.below(3) {
            let a = known[self.random.below(known.len())].clone();
            let made = match self.random.below(8) {
                0 => self.constant(self.n % 7, pivot),
                1 if depth > 0 => self.conditional(&known, &a, pivot, depth - 1),
                2 if depth > 0 => self.repeat(&known, pivot, depth - 1),
                _ => {
                    let b = known[self.random.below(known.len())].clone();
                    let op = OPS[self.random.below(OPS.len())];
                    self.node(op, &[&a, &b], "")
                }
            };
            known.push(made);
        }
        known[known.len() - 1].clone()
    }

    fn conditional(&mut self, known: &[String], a: &str, pivot: &str, depth: usize) -> String {
        let bound = self.constant(3, pivot);
        let predicate = self.node("Less", &[a, &bound], "");
        let mut branches = Vec::new();
        for side in ["", ":1"] {
            let mut inside = Vec::new();
            for value in known {
                let switch = self.node("Switch", &[value, &predicate], "");
                inside.push(self.node("Identity", &[&format!("{switch}{side}")], ""));
            }
            let pivot = inside[0].clone();
            branches.push(self.value(&inside, &pivot, depth));
        }
        let n = "attr { key: 'N' value { i: 2 } }";
        self.node("Merge", &[&branches[0], &branches[1]], n)
    }

    /// A loop that counts to a small number, over two variables.
    fn repeat(&mut self, known: &[String], pivot: &str, depth: usize) -> String {
        self.n += 1;
        let frame = format!(
            "attr {{ key: 'frame_name' value {{ s: 'frame_{}' }} }}",
            self.n
        );
        let zero = self.constant(0, pivot);
        let times = self.random.below(5);
        let times = self.constant(times, pivot);
        let first = known[self.random.below(known.len())].clone();
        let times = self.node(
            "Enter",
            &[&times],
            &format!("{frame} attr {{ key: 'is_constant' value {{ b: true }} }}"),
        );
        let (mut merges, mut nexts) = (Vec::new(), Vec::new());
        for init in [&zero, &first] {
            let enter = self.node("Enter", &[init], &frame);
            self.n += 1;
            let next = format!("next_{}", self.n);
            merges.push(self.node(
                "Merge",
                &[&enter, &next],
                "attr { key: 'N' value { i: 2 } }",
            ));
            nexts.push(next);
        }
        let test = self.node("Less", &[&merges[0], &times], "");
        let goes_on = self.node("LoopCond", &[&test], "");
        let (mut inside, mut exits) = (Vec::new(), Vec::new());
        for merge in &merges {
            let switch = self.node("Switch", &[merge, &goes_on], "");
            inside.push(self.node("Identity", &[&format!("{switch}:1")], ""));
            exits.push(self.node("Exit", &[&switch], ""));
        }
        let pivot = inside[0].clone();
        let one = self.constant(1, &pivot);
        let counted = self.node("AddV2", &[&inside[0], &one], "");
        let made = self.value(&inside, &pivot, depth);
        self.named(&nexts[0], "NextIteration", &[&counted], "");
        self.named(&nexts[1], "NextIteration", &[&made], "");
        exits[1].clone()
    }
}

fn options(jit: CompileJit) -> SessionOptions {
    SessionOptions {
        threads: 1,
        compile: CompileOptions {
            jit,
            ..CompileOptions::all()
        },
        ..Default::default()
    }
}

/// The steps of a session with these values of `x`: those of `fetches`.
fn run(text: &str, xs: &[i32], fetches: &[&str], jit: CompileJit) -> Vec<Result<Vec<i32>, String>> {
    let session = Session::from_text(text, options(jit)).expect("valid");
    let step = |x: &i32| {
        let results = session.run(&[("x:0", Tensor::scalar(*x))], fetches, &[]);
        let results =
            results.map_err(|e| format!("{:?} {} {:?}", e.code(), e.message(), e.node()))?;
        let value = |t: &Tensor| t.to_scalar().map_err(|e| e.to_string());
        results.iter().map(value).collect()
    };
    xs.iter().map(step).collect()
}

/// Checks that a graph results in the same with and without machine code; returns the number of errors and of results.
/// With several nodes that fail, which of them does first is open.
#[track_caller]
fn check(
    nodes: &str,
    xs: &[i32],
    fetches: &[&str],
    seed: u64,
    compares_errors: bool,
) -> [usize; 2] {
    let text = format!("versions {{ producer: 2474 }}\n{nodes}");
    let run = |jit| {
        let mut results = run(&text, xs, fetches, jit);
        if !compares_errors {
            let errors = results.iter_mut().filter_map(|r| r.as_mut().err());
            errors.for_each(String::clear);
        }
        results
    };
    let expected = run(CompileJit::Off);
    for jit in [CompileJit::On, CompileJit::Auto] {
        let got = run(jit);
        assert_eq!(got, expected, "seed {seed}, {jit:?}\n{text}");
    }
    let n_errors = expected.iter().filter(|r| r.is_err()).count();
    [n_errors, expected.len() - n_errors]
}

fn graph_of_x(seed: u64) -> Graph {
    let mut graph = Graph {
        text: String::new(),
        n: 0,
        random: Rng(seed),
    };
    let scalar = "attr { key: 'shape' value { shape { } } }";
    graph.named("x", "Placeholder", &[], scalar);
    graph
}

#[test]
fn random_loops_result_in_the_same() {
    let mut n = [0, 0];
    for seed in 0..150 {
        let mut graph = graph_of_x(seed);
        let made = graph.repeat(&["x".to_string()], "", 3);
        graph.named("y", "Identity", &[&made], "");
        for x in [0, -7, 100] {
            let found = check(&graph.text, &[x], &["y:0"], seed, true);
            n = [n[0] + found[0], n[1] + found[1]];
        }
    }
    assert!(n[0] > 0 && n[1] > 0, "{n:?} errors and results");
}

/// Groups of small ops with conditionals between ops that are in none, and several results.
#[test]
fn random_groups_result_in_the_same() {
    let mut n = [0, 0];
    // Code is made after some steps.
    let xs: Vec<i32> = (0..24).map(|i| i * 37 % 101 - 40).collect();
    for seed in 0..120 {
        let mut graph = graph_of_x(seed);
        let mut known = vec!["x".to_string()];
        for _ in 0..5 + graph.random.below(30) {
            // Late values more often.
            let from = known.len().saturating_sub(6);
            let at = from + graph.random.below(known.len() - from);
            let (a, b) = (known[at].clone(), graph.value(&known[from..], "", 1));
            known.push(match graph.random.below(6) {
                0 => {
                    let sum = graph.node("AddN", &[&a, &b], "attr { key: 'N' value { i: 2 } }");
                    graph.node("Neg", &[&sum], "")
                }
                1 => {
                    let waits = graph.node("NoOp", &[&format!("^{a}")], "");
                    graph.node("Abs", &[&b, &format!("^{waits}")], "")
                }
                _ => b,
            });
        }
        for (i, name) in ["y", "z", "last"].iter().enumerate() {
            let at = (known.len() - 1) * (i + 1) / 3;
            graph.named(name, "Identity", &[&known[at]], "");
        }
        let found = check(&graph.text, &xs, &["y:0", "z:0", "last:0"], seed, false);
        n = [n[0] + found[0], n[1] + found[1]];
    }
    assert!(n[0] > 0 && n[1] > 0, "{n:?} errors and results");
}

#[test]
fn an_error_of_a_group_is_that_of_its_node() {
    let mut graph = graph_of_x(0);
    let mut value = "x".to_string();
    for n in 1..12 {
        let step = graph.constant(n, "");
        value = graph.node("AddV2", &[&value, &step], "");
    }
    let hundred = graph.constant(100, "");
    graph.named("quotient", "FloorDiv", &[&hundred, &value], "");
    graph.named("y", "AddV2", &["quotient", "x"], "");
    let xs: Vec<i32> = (0..40).map(|i| -66 - i % 2).collect();
    let found = check(&graph.text, &xs, &["y:0"], 0, true);
    assert_eq!(found, [20, 20]);
    let text = "versions { producer: 2474 }\n".to_string() + &graph.text;
    let error = &run(&text, &xs, &["y:0"], CompileJit::Auto)[38];
    assert!(
        error.as_ref().is_err_and(|e| e.contains("quotient")),
        "{error:?}"
    );
}

#[test]
fn counted_loops_result_in_the_same() {
    let body = "library { function { signature { name: 'step' input_arg { name: 'i' type: DT_INT32 } \
                input_arg { name: 'a' type: DT_INT32 } output_arg { name: 'r' type: DT_INT32 } } \
                node_def { name: 'm' op: 'Mul' input: 'a' input: 'a' attr { key: 'T' value { type: DT_INT32 } } } \
                node_def { name: 's' op: 'AddV2' input: 'm:z:0' input: 'i' attr { key: 'T' value { type: DT_INT32 } } } \
                ret { key: 'r' value: 's:z:0' } } }\n";
    let mut n = [0, 0];
    for (limit, delta) in [
        (10, 1),
        (10, 3),
        (-5, -2),
        (7, 0),
        (i32::MAX, i32::MAX),
        (3, 1),
    ] {
        let mut graph = graph_of_x(0);
        let constant = |graph: &mut Graph, value: i32| {
            let value = format!(
                "attr {{ key: 'value' value {{ tensor {{ dtype: DT_INT32 tensor_shape {{ }} int_val: {value} }} }} }}"
            );
            graph.node("Const", &[], &value)
        };
        let (limit, delta) = (constant(&mut graph, limit), constant(&mut graph, delta));
        graph.text += &format!(
            "node {{ name: 'y' op: 'For' input: 'x' input: '{limit}' input: '{delta}' input: 'x' \
             attr {{ key: 'T' value {{ list {{ type: DT_INT32 }} }} }} \
             attr {{ key: 'body' value {{ func {{ name: 'step' }} }} }} }}\n{body}"
        );
        let found = check(&graph.text, &[0, 3, 7, 12, -9], &["y:0"], 0, true);
        n = [n[0] + found[0], n[1] + found[1]];
    }
    assert!(n[0] > 0 && n[1] > 0, "{n:?} errors and results");
}

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
