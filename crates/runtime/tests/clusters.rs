//! Random loops of scalars, nested and with conditionals, result in the same with and without
//! machine code, errors included.

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
            "LoopCond" => "",
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

fn run(text: &str, x: i32, jit: CompileJit) -> Result<i32, String> {
    let options = SessionOptions {
        threads: 1,
        compile: CompileOptions {
            jit,
            ..CompileOptions::all()
        },
        ..Default::default()
    };
    let session = Session::from_text(text, options).map_err(|e| e.to_string())?;
    let result = session.run(&[("x:0", Tensor::scalar(x))], &["y:0"], &[]);
    let result = result.map_err(|e| format!("{:?} {}", e.code(), e.message()))?;
    result[0].to_scalar().map_err(|e| e.to_string())
}

#[test]
fn random_loops_result_in_the_same() {
    let (mut n_errors, mut n_results) = (0, 0);
    for seed in 0..150 {
        let mut graph = Graph {
            text: String::new(),
            n: 0,
            random: Rng(seed),
        };
        graph.named(
            "x",
            "Placeholder",
            &[],
            "attr { key: 'shape' value { shape { } } }",
        );
        let made = graph.repeat(&["x".to_string()], "", 3);
        graph.named("y", "Identity", &[&made], "");
        let text = "versions { producer: 2474 }\n".to_string() + &graph.text;
        for x in [0, -7, 100] {
            let expect = run(&text, x, CompileJit::Off);
            assert_eq!(
                run(&text, x, CompileJit::On),
                expect,
                "seed {seed}, x {x}\n{text}"
            );
            match expect {
                Ok(_) => n_results += 1,
                Err(_) => n_errors += 1,
            }
        }
    }
    assert!(
        n_errors > 0 && n_results > 0,
        "{n_errors} errors, {n_results} results"
    );
}
