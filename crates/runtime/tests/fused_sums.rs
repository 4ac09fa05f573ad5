//! Products that sums read, added as they are computed, against the same graphs without the pass `fuse_sum`.

use ferroflow_runtime::{CompileOptions, Session, SessionOptions, Tensor};
use ferroflow_testkit::tensors::compare;

/// Sums of the products `p` and `q` of matrices `a` and `b`, and of `x`; a line has name, op, inputs and attrs.
const GRAPHS: &[&str] = &[
    // The memory of `n` is reused, that of `x` is not.
    "n Neg x\nout AddV2 n,p",
    "out Add x,p",
    "n Neg x\nout AddN p,n N=2",
    "n Neg x\nout AddN p,n,q N=3",
    "out AddN p,q N=2",
    "n Neg x\nout AddN n,p,q N=3",
    "d BiasAdd p,row\nout AddV2 x,d",
    // A product that something waits for.
    "all NoOp ^p\ngated Identity p,^all\nn Neg x\nout AddV2 n,gated",
    // A loop that adds the product five times.
    "zero Const DT_INT32=0\ni/enter Enter zero frame\nx/enter Enter x frame\na/enter Enter a frame is_constant\n\
     b/enter Enter b frame is_constant\ni Merge i/enter,i/next N=2\ns Merge x/enter,s/next N=2\nfive Const ^i DT_INT32=5\n\
     less Less i,five\ncond LoopCond less\ni/switch Switch i,cond\ns/switch Switch s,cond\ni/body Identity i/switch:1\n\
     one Const ^i/body DT_INT32=1\ni/add AddV2 i/body,one\ni/next NextIteration i/add\nm MatMul a/enter,b/enter turned\n\
     ready NoOp ^m\ngated Identity m,^ready\ns/add AddV2 s/switch:1,gated\ns/next NextIteration s/add\nout Exit s/switch",
];

fn node(line: &str, [ta, tb]: [bool; 2]) -> String {
    let words: Vec<&str> = line.split(' ').collect();
    let (name, op) = (words[0], words[1]);
    let attr = |name: &str, value: &str| format!("attr {{ key: '{name}' value {{ {value} }} }}");
    let is_counter = |i: &str| ["zero", "five", "one", "i"].contains(&i) || i.starts_with("i/");
    let dtype = if words[2..].iter().any(|w| w.split(',').any(is_counter)) {
        "type: DT_INT32"
    } else {
        "type: DT_FLOAT"
    };
    let mut attrs = match op {
        "Const" | "NoOp" | "LoopCond" => String::new(),
        _ => attr("T", dtype),
    };
    let mut inputs = String::new();
    for word in &words[2..] {
        attrs += &match word.split_once('=') {
            Some(("N", n)) => attr("N", &format!("i: {n}")),
            Some((dtype, value)) => {
                let field = if dtype == "DT_FLOAT" {
                    "float_val"
                } else {
                    "int_val"
                };
                let tensor =
                    format!("tensor {{ dtype: {dtype} tensor_shape {{ }} {field}: {value} }}");
                attr("dtype", &format!("type: {dtype}")) + &attr("value", &tensor)
            }
            None if *word == "frame" => attr("frame_name", "s: 'f'"),
            None if *word == "is_constant" => attr("is_constant", "b: true"),
            None if *word == "turned" => {
                attr("transpose_a", &format!("b: {ta}")) + &attr("transpose_b", &format!("b: {tb}"))
            }
            None => {
                let all = word.split(',').map(|i| format!("input: '{i}' "));
                inputs += &all.collect::<String>();
                String::new()
            }
        };
    }
    format!("node {{ name: '{name}' op: '{op}' {inputs} {attrs} }}\n")
}

/// Rows, columns and terms of the product, which factors are transposed, and the shape of `x`.
struct Row<'a> {
    size: [usize; 3],
    transposed: [bool; 2],
    x: &'a [usize],
    /// Whether the graph has the shapes.
    is_known: bool,
}

impl Row<'_> {
    fn run(&self, graph: &str, disabled: &[&str], threads: usize) -> Result<Tensor, String> {
        let [m, n, k] = self.size;
        let [ta, tb] = self.transposed;
        let matrix = |shape: &[usize], seed: usize| {
            let value = |i: usize| ((i * 37 + seed * 11) % 101) as f32 / 50.0 - 0.9;
            let values: Vec<f32> = (0..shape.iter().product()).map(value).collect();
            Tensor::from_slice(shape, &values).expect("a matrix")
        };
        let a = if ta { [k, m] } else { [m, k] };
        let b = if tb { [n, k] } else { [k, n] };
        let feeds = [
            ("a:0", matrix(&a, 1)),
            ("b:0", matrix(&b, 2)),
            ("x:0", matrix(self.x, 3)),
            ("row:0", matrix(&[n], 4)),
        ];
        let placeholder = |name: &str, shape: &[usize]| {
            let dims = shape.iter().map(|d| format!("dim {{ size: {d} }} "));
            let shape = match self.is_known {
                true => dims.collect(),
                false => "unknown_rank: true".to_string(),
            };
            format!(
                "node {{ name: '{name}' op: 'Placeholder' attr {{ key: 'dtype' value {{ type: DT_FLOAT }} }} \
                 attr {{ key: 'shape' value {{ shape {{ {shape} }} }} }} }}\n"
            )
        };
        let placeholders = [
            placeholder("a", &a),
            placeholder("b", &b),
            placeholder("x", self.x),
            placeholder("row", &[n]),
        ];
        let mut text = placeholders.concat();
        text += &node("p MatMul a,b turned", self.transposed);
        text += &node("q MatMul a,b turned", self.transposed);
        for line in graph.lines() {
            text += &node(line.trim(), self.transposed);
        }
        let options = SessionOptions {
            threads,
            compile: CompileOptions {
                disabled: disabled.iter().map(|d| d.to_string()).collect(),
                ..CompileOptions::all()
            },
            ..Default::default()
        };
        let session = Session::from_text(&text, options).expect("a graph");
        let run = session.run(&feeds, &["out:0"], &[]);
        run.map(|mut out| out.remove(0)).map_err(|e| e.to_string())
    }

    fn check(&self) {
        for graph in GRAPHS {
            let apart = self.run(graph, &["fuse_sum", "cse"], 2);
            for threads in [1, 2] {
                let fused = self.run(graph, &["cse"], threads);
                let what = format!("{:?} {:?}: {graph}", self.size, self.transposed);
                match (&apart, fused) {
                    (Ok(want), Ok(got)) => {
                        compare(want, &got, 1e-5).unwrap_or_else(|e| panic!("{what}: {e}"));
                    }
                    (Err(want), Err(got)) => {
                        let without_op = |e: &str| e.split(" = ").next().map(String::from);
                        assert_eq!(without_op(want), without_op(&got), "{what}");
                    }
                    (want, got) => panic!("{what}: {:?}, not {:?}", got.err(), want.as_ref().err()),
                }
            }
        }
    }
}

const TURNS: [[bool; 2]; 4] = [[false, false], [true, false], [false, true], [true, true]];

#[test]
fn sums_are_those_of_separate_nodes() {
    for size in [
        [3, 2, 5],
        [1, 1, 1],
        [3, 2, 0],
        [0, 4, 3],
        [70, 33, 400],
        [65, 40, 9],
        [64, 256, 90],
    ] {
        for transposed in TURNS {
            for is_known in [false, true] {
                Row {
                    size,
                    transposed,
                    x: &[size[0], size[1]],
                    is_known,
                }
                .check();
            }
        }
    }
}

#[test]
fn terms_of_other_shapes_broadcast_or_fail_as_separate_nodes_do() {
    for x in [
        &[20][..],
        &[],
        &[1, 20],
        &[6, 1],
        &[2, 6, 20],
        &[6, 21],
        &[7, 20],
    ] {
        Row {
            size: [6, 20, 30],
            transposed: [true, false],
            x,
            is_known: false,
        }
        .check();
    }
}

#[test]
fn factors_that_do_not_fit_are_the_error_of_the_product() {
    let row = Row {
        size: [6, 20, 30],
        transposed: [false, false],
        x: &[6, 20],
        is_known: false,
    };
    let graph = "r MatMul p,b turned\nout AddV2 x,r";
    let [apart, fused] = [&["fuse_sum"][..], &[]].map(|off| row.run(graph, off, 1));
    let error = fused.expect_err("[6,20] times [30,20]");
    assert!(error.contains("{{node r}} = MatMul"), "{error}");
    assert_eq!(Err(error), apart.map(|_| ()));
}
