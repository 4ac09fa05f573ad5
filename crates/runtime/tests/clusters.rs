//! Random loops and groups of ops of scalars, nested and with conditionals, result in the same with and without machine
//! code, errors included.

use ferroflow_runtime::{
    ChromeTrace, CompileJit, CompileOptions, RunOptions, Session, SessionOptions, Tensor,
};
use ferroflow_testkit::random::Rng;
use std::sync::Arc;

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
pub(crate) struct Graph {
    pub(crate) text: String,
    n: usize,
    random: Rng,
}

impl Graph {
    pub(crate) fn node(&mut self, op: &str, inputs: &[&str], attrs: &str) -> String {
        self.n += 1;
        let name = format!("{}_{}", op.to_lowercase(), self.n);
        self.named(&name, op, inputs, attrs);
        name
    }

    pub(crate) fn named(&mut self, name: &str, op: &str, inputs: &[&str], attrs: &str) {
        let inputs: String = inputs.iter().map(|i| format!(" input: '{i}'")).collect();
        let ty = match op {
            "Const" | "Placeholder" => " attr { key: 'dtype' value { type: DT_INT32 } }",
            "LoopCond" | "NoOp" => "",
            _ => " attr { key: 'T' value { type: DT_INT32 } }",
        };
        self.text += &format!("node {{ name: '{name}' op: '{op}'{inputs}{ty} {attrs} }}\n");
    }

    pub(crate) fn constant(&mut self, value: usize, after: &str) -> String {
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

pub(crate) fn options(jit: CompileJit) -> SessionOptions {
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
pub(crate) fn run(
    text: &str,
    xs: &[i32],
    fetches: &[&str],
    jit: CompileJit,
) -> Vec<Result<Vec<i32>, String>> {
    run_with(text, xs, fetches, jit, &RunOptions::default())
}

fn run_with(
    text: &str,
    xs: &[i32],
    fetches: &[&str],
    jit: CompileJit,
    with: &RunOptions,
) -> Vec<Result<Vec<i32>, String>> {
    let session = Session::from_text(text, options(jit)).expect("valid");
    let step = |x: &i32| {
        let results = session.run_with(&[("x:0", Tensor::scalar(*x))], fetches, &[], with);
        let results =
            results.map_err(|e| format!("{:?} {} {:?}", e.code(), e.message(), e.node()))?;
        let value = |t: &Tensor| t.to_scalar().map_err(|e| e.to_string());
        results.iter().map(value).collect()
    };
    xs.iter().map(step).collect()
}

/// Checks that a graph results in the same with and without machine code, and if its nodes run when their inputs arrive,
/// as they do if a trace watches, instead of by schedules; returns the number of errors and of results.
/// With several nodes that fail, which of them does first is open.
#[track_caller]
pub(crate) fn check(
    nodes: &str,
    xs: &[i32],
    fetches: &[&str],
    seed: u64,
    compares_errors: bool,
) -> [usize; 2] {
    let text = format!("versions {{ producer: 2474 }}\n{nodes}");
    let run = |jit, with: &RunOptions, compares_errors: bool| {
        let mut results = run_with(&text, xs, fetches, jit, with);
        if !compares_errors {
            let errors = results.iter_mut().filter_map(|r| r.as_mut().err());
            errors.for_each(String::clear);
        }
        results
    };
    let plain = RunOptions::default();
    let expected = run(CompileJit::Off, &plain, compares_errors);
    for jit in [CompileJit::On, CompileJit::Auto] {
        let got = run(jit, &plain, compares_errors);
        assert_eq!(got, expected, "seed {seed}, {jit:?}\n{text}");
    }
    // Iterations then overlap: another node may fail first.
    let traced = RunOptions {
        trace: Some(Arc::new(ChromeTrace::default())),
        ..RunOptions::default()
    };
    let got = run(CompileJit::Off, &traced, false);
    let by_schedules = run(CompileJit::Off, &plain, false);
    assert_eq!(got, by_schedules, "seed {seed}, traced\n{text}");
    let n_errors = expected.iter().filter(|r| r.is_err()).count();
    [n_errors, expected.len() - n_errors]
}

pub(crate) fn graph_of_x(seed: u64) -> Graph {
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
