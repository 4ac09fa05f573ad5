//! Random loops over small float matrices result in the same bits with and without machine code: products, reductions,
//! random numbers.

use super::clusters::options;
use ferroflow_runtime::{CompileJit, Lower, Session, Shape, Signature, Tensor};
use ferroflow_testkit::random::Rng;

const ITERATIONS: i32 = 6;

/// A function `(i, x) -> (i + 1, f(x))` on matrices of one shape, as nodes of a function body.
struct Body {
    text: String,
    n: usize,
    random: Rng,
    dtype: &'static str,
    shape: [usize; 2],
}

impl Body {
    fn node(&mut self, op: &str, inputs: &[&str], attrs: &[(&str, &str)]) -> String {
        self.n += 1;
        let name = format!("{}_{}", op.to_lowercase(), self.n);
        let inputs: String = inputs.iter().map(|i| format!(" input: '{i}'")).collect();
        let attr =
            |(key, value): &(&str, &str)| format!(" attr {{ key: '{key}' value {{ {value} }} }}");
        let attrs: String = attrs.iter().map(attr).collect();
        self.text += &format!("node_def {{ name: '{name}' op: '{op}'{inputs}{attrs} }}\n");
        name
    }

    fn typed(&mut self, op: &str, inputs: &[&str], output: &str, attrs: &[(&str, &str)]) -> String {
        let ty = format!("type: {}", self.dtype);
        let mut all = vec![("T", ty.as_str())];
        all.extend(attrs);
        format!("{}:{output}:0", self.node(op, inputs, &all))
    }

    fn ints(&mut self, values: &[i64], is_scalar: bool) -> String {
        let dims = match is_scalar {
            true => String::new(),
            false => format!("dim {{ size: {} }}", values.len()),
        };
        let values: String = values.iter().map(|v| format!(" int_val: {v}")).collect();
        let value = format!("tensor {{ dtype: DT_INT32 tensor_shape {{ {dims} }}{values} }}");
        let attrs = [("dtype", "type: DT_INT32"), ("value", value.as_str())];
        format!("{}:output:0", self.node("Const", &[], &attrs))
    }

    fn floats(&mut self, dims: &[usize]) -> String {
        let n: usize = dims.iter().product();
        let of = |random: &mut Rng| (random.below(2001) as f64 - 1000.0) / 700.0;
        let field = if self.dtype == "DT_FLOAT" {
            "float_val"
        } else {
            "double_val"
        };
        let values: String = (0..n)
            .map(|_| format!(" {field}: {}", of(&mut self.random)))
            .collect();
        let sizes: String = dims
            .iter()
            .map(|d| format!("dim {{ size: {d} }}"))
            .collect();
        let value = format!(
            "tensor {{ dtype: {} tensor_shape {{ {sizes} }}{values} }}",
            self.dtype
        );
        let ty = format!("type: {}", self.dtype);
        format!(
            "{}:output:0",
            self.node("Const", &[], &[("dtype", &ty), ("value", &value)])
        )
    }

    /// Another matrix, made of `x`.
    fn step(&mut self, x: &str) -> String {
        let [rows, columns] = self.shape;
        match self.random.below(9) {
            0 => {
                let w = self.floats(&[columns, columns]);
                self.typed("MatMul", &[x, &w], "product", &[])
            }
            1 => {
                let w = self.floats(&[columns, columns]);
                self.typed("MatMul", &[x, &w], "product", &[("transpose_b", "b: true")])
            }
            2 => {
                let square =
                    self.typed("MatMul", &[x, x], "product", &[("transpose_a", "b: true")]);
                self.typed("MatMul", &[x, &square], "product", &[])
            }
            3 => {
                let op = ["Sum", "Mean", "Max", "Min", "Prod"][self.random.below(5)];
                let axes = [&[0][..], &[1], &[-1], &[0, 1]][self.random.below(4)];
                let axes = self.ints(axes, false);
                let attrs = [("keep_dims", "b: true"), ("Tidx", "type: DT_INT32")];
                let reduced = self.typed(op, &[x, &axes], "output", &attrs);
                let op = ["Sub", "AddV2"][self.random.below(2)];
                self.typed(op, &[x, &reduced], "z", &[])
            }
            4 => {
                let bias = self.floats(&[columns]);
                let sum = self.typed("BiasAdd", &[x, &bias], "output", &[]);
                let op = ["Relu", "Relu6", "Tanh"][self.random.below(3)];
                let output = if op == "Tanh" { "y" } else { "activations" };
                self.typed(op, &[&sum], output, &[])
            }
            5 => {
                let op = ["ArgMax", "ArgMin"][self.random.below(2)];
                let axis = self.ints(&[0], true);
                let attrs = [
                    ("Tidx", "type: DT_INT32"),
                    ("output_type", "type: DT_INT32"),
                ];
                let best = self.typed(op, &[x, &axis], "output", &attrs);
                let to = format!("type: {}", self.dtype);
                let cast = self.node(
                    "Cast",
                    &[&best],
                    &[("SrcT", "type: DT_INT32"), ("DstT", &to)],
                );
                self.typed("AddV2", &[x, &format!("{cast}:y:0")], "z", &[])
            }
            6 => {
                let shape = self.ints(&[rows as i64, columns as i64], false);
                let op = ["RandomUniform", "RandomStandardNormal", "TruncatedNormal"]
                    [self.random.below(3)];
                let (seed, ty) = (
                    format!("i: {}", 1 + self.random.below(9)),
                    format!("type: {}", self.dtype),
                );
                let attrs = [
                    ("T", "type: DT_INT32"),
                    ("dtype", &ty),
                    ("seed", &seed),
                    ("seed2", "i: 3"),
                ];
                let drawn = self.node(op, &[&shape], &attrs);
                self.typed("AddV2", &[x, &format!("{drawn}:output:0")], "z", &[])
            }
            7 => {
                let shape = self.ints(&[rows as i64, columns as i64], false);
                let seed = self.ints(&[5, 7], false);
                let seed = self.node("AddV2", &[&seed, "i"], &[("T", "type: DT_INT32")]) + ":z:0";
                let ty = format!("type: {}", self.dtype);
                let seed_type = ("Tseed", "type: DT_INT32");
                let drawn = match self.random.below(2) {
                    0 => {
                        let op = ["StatelessRandomUniform", "StatelessRandomNormal"]
                            [self.random.below(2)];
                        let attrs = [("T", "type: DT_INT32"), ("dtype", &ty), seed_type];
                        self.node(op, &[&shape, &seed], &attrs)
                    }
                    _ => {
                        let key = self.node("StatelessRandomGetKeyCounter", &[&seed], &[seed_type]);
                        let (key, counter) = (format!("{key}:key:0"), format!("{key}:counter:0"));
                        let alg = self.node("StatelessRandomGetAlg", &[], &[]) + ":alg:0";
                        let attrs = [("Tshape", "type: DT_INT32"), ("dtype", &ty)];
                        let op = ["StatelessRandomUniformV2", "StatelessTruncatedNormalV2"]
                            [self.random.below(2)];
                        self.node(op, &[&shape, &key, &counter, &alg], &attrs)
                    }
                };
                self.typed("Sub", &[x, &format!("{drawn}:output:0")], "z", &[])
            }
            _ => {
                let op = ["Mul", "Maximum", "SquaredDifference"][self.random.below(3)];
                let other = self.floats(&[rows, columns]);
                self.typed(op, &[x, &other], "z", &[])
            }
        }
    }
}

/// A loop of one iteration at a time: those of several would draw in any order.
fn graph(seed: u64, lowers: bool) -> (String, [usize; 2], &'static str) {
    let mut random = Rng(seed);
    let shape = [1 + random.below(4), 1 + random.below(4)];
    let dtype = ["DT_FLOAT", "DT_DOUBLE"][random.below(2)];
    let mut body = Body {
        text: String::new(),
        n: 0,
        random,
        dtype,
        shape,
    };
    let mut x = "x".to_string();
    for _ in 0..1 + body.random.below(4) {
        x = body.step(&x);
    }
    let half = body.floats(&[1]);
    // Values stay small.
    let scaled = body.typed("Mul", &[&x, &half], "z", &[]);
    let next = body.typed("Tanh", &[&scaled], "y", &[]);
    let [rows, columns] = shape;
    let text = format!(
        "versions {{ producer: 2474 }}
        node {{ name: 'x' op: 'Placeholder' attr {{ key: 'dtype' value {{ type: {dtype} }} }}
          attr {{ key: 'shape' value {{ shape {{ dim {{ size: {rows} }} dim {{ size: {columns} }} }} }} }} }}
        node {{ name: 'zero' op: 'Const' attr {{ key: 'dtype' value {{ type: DT_INT32 }} }}
          attr {{ key: 'value' value {{ tensor {{ dtype: DT_INT32 tensor_shape {{ }} int_val: 0 }} }} }} }}
        node {{ name: 'loop' op: 'While' input: 'zero' input: 'x'
          attr {{ key: 'T' value {{ list {{ type: DT_INT32 type: {dtype} }} }} }}
          attr {{ key: '_lower_using_switch_merge' value {{ b: {lowers} }} }}
          attr {{ key: 'parallel_iterations' value {{ i: 1 }} }}
          attr {{ key: 'cond' value {{ func {{ name: 'cond' }} }} }}
          attr {{ key: 'body' value {{ func {{ name: 'body' }} }} }} }}
        node {{ name: 'y' op: 'Identity' input: 'loop:1' attr {{ key: 'T' value {{ type: {dtype} }} }} }}
        library {{
          function {{ signature {{ name: 'cond' input_arg {{ name: 'i' type: DT_INT32 }} input_arg {{ name: 'x' type: {dtype} }}
              output_arg {{ name: 'r' type: DT_BOOL }} }}
            node_def {{ name: 'n' op: 'Const' attr {{ key: 'dtype' value {{ type: DT_INT32 }} }}
              attr {{ key: 'value' value {{ tensor {{ dtype: DT_INT32 tensor_shape {{ }} int_val: {ITERATIONS} }} }} }} }}
            node_def {{ name: 'l' op: 'Less' input: 'i' input: 'n:output:0' attr {{ key: 'T' value {{ type: DT_INT32 }} }} }}
            ret {{ key: 'r' value: 'l:z:0' }} }}
          function {{ signature {{ name: 'body' input_arg {{ name: 'i' type: DT_INT32 }} input_arg {{ name: 'x' type: {dtype} }}
              output_arg {{ name: 'j' type: DT_INT32 }} output_arg {{ name: 'r' type: {dtype} }} }}
            node_def {{ name: 'one' op: 'Const' attr {{ key: 'dtype' value {{ type: DT_INT32 }} }}
              attr {{ key: 'value' value {{ tensor {{ dtype: DT_INT32 tensor_shape {{ }} int_val: 1 }} }} }} }}
            node_def {{ name: 'next' op: 'AddV2' input: 'i' input: 'one:output:0' attr {{ key: 'T' value {{ type: DT_INT32 }} }} }}
            {}
            ret {{ key: 'j' value: 'next:z:0' }} ret {{ key: 'r' value: '{next}' }} }} }}",
        body.text
    );
    (text, shape, dtype)
}

/// The results, and whether the loop is a cluster.
fn run(
    text: &str,
    xs: &[Tensor],
    lower: Lower,
    jit: CompileJit,
) -> (Vec<Result<Vec<u8>, String>>, bool) {
    let mut options = options(jit);
    options.compile.lower = lower;
    // A product by constants that is fused with what follows it rounds once for both.
    options.compile.disabled = vec!["fuse".to_string()];
    let session = Session::from_text(text, options).expect("a valid graph");
    let signature = Signature {
        feeds: vec!["x:0".to_string()],
        fetches: vec!["y:0".to_string()],
        targets: Vec::new(),
    };
    let (optimized, _) = session.graph_after(&signature, None).expect("compiles");
    let has_cluster = optimized.iter().any(|(_, n)| n.op() == "_Cluster");
    let step = |x: &Tensor| {
        let results = session.run(&[("x:0", x.clone())], &["y:0"], &[]);
        let results = results.map_err(|e| format!("{:?}", e.code()))?;
        Ok(results[0].bytes().expect("numbers").to_vec())
    };
    (xs.iter().map(step).collect(), has_cluster)
}

#[test]
fn loops_over_small_matrices_result_in_the_same_bits() {
    let mut n_clusters = 0;
    for seed in 0..150 {
        let (text, [rows, columns], dtype) = graph(seed, seed % 2 == 0);
        let mut random = Rng(seed + 1000);
        let xs = (0..3).map(|_| {
            let values: Vec<f32> = (0..rows * columns)
                .map(|_| (random.below(2001) as f32 - 1000.0) / 500.0)
                .collect();
            let shape: Shape = [rows, columns].into();
            match dtype {
                "DT_FLOAT" => Tensor::from_slice(shape, &values),
                _ => {
                    let values: Vec<f64> = values.iter().map(|x| f64::from(*x)).collect();
                    Tensor::from_slice(shape, &values)
                }
            }
        });
        let xs: Vec<Tensor> = xs.map(|x| x.expect("a matrix")).collect();
        let lower = [Lower::Marked, Lower::Never][seed as usize % 2];
        let (expected, no) = run(&text, &xs, lower, CompileJit::Off);
        let (got, is_cluster) = run(&text, &xs, lower, CompileJit::Auto);
        assert_eq!(got, expected, "seed {seed}\n{text}");
        n_clusters += usize::from(is_cluster && !no);
    }
    // All but those that add 16 floats, in an order that depends on the machine.
    assert!(n_clusters > 140, "{n_clusters} clusters");
}

/// A loop of the variables `i` and `s`, with these nodes, of which `next` is the next `s`. `x` enters as `x0`.
fn frame(nodes: &str) -> String {
    let int = "attr { key: 'T' value { type: DT_INT32 } }";
    let float = "attr { key: 'T' value { type: DT_FLOAT } }";
    let constant = |name: &str, ty: &str, value: &str, after: &str| {
        format!(
            "node {{ name: '{name}' op: 'Const' {after} attr {{ key: 'dtype' value {{ type: {ty} }} }}
              attr {{ key: 'value' value {{ tensor {{ dtype: {ty} tensor_shape {{ }} {value} }} }} }} }}\n"
        )
    };
    let enter = |name: &str, input: &str, ty: &str, more: &str| {
        format!(
            "node {{ name: '{name}' op: 'Enter' input: '{input}' {ty} attr {{ key: 'frame_name' value {{ s: 'f' }} }} {more} }}\n"
        )
    };
    let same = "attr { key: 'is_constant' value { b: true } }";
    [
        "versions { producer: 2474 }\n".to_string(),
        "node { name: 'x' op: 'Placeholder' attr { key: 'dtype' value { type: DT_INT32 } } attr { key: 'shape' value { shape { } } } }\n".to_string(),
        constant("i0", "DT_INT32", "int_val: 0", ""),
        constant("s0", "DT_FLOAT", "float_val: 0", ""),
        enter("i1", "i0", int, ""),
        enter("s1", "s0", float, ""),
        enter("x0", "x", int, same),
        format!("node {{ name: 'i' op: 'Merge' input: 'i1' input: 'i5' {int} attr {{ key: 'N' value {{ i: 2 }} }} }}\n"),
        format!("node {{ name: 's' op: 'Merge' input: 's1' input: 's5' {float} attr {{ key: 'N' value {{ i: 2 }} }} }}\n"),
        constant("n", "DT_INT32", "int_val: 5", "input: '^i'"),
        format!("node {{ name: 'less' op: 'Less' input: 'i' input: 'n' {int} }}\n"),
        "node { name: 'on' op: 'LoopCond' input: 'less' }\n".to_string(),
        format!("node {{ name: 'i3' op: 'Switch' input: 'i' input: 'on' {int} }}\n"),
        format!("node {{ name: 's3' op: 'Switch' input: 's' input: 'on' {float} }}\n"),
        format!("node {{ name: 'i4' op: 'Identity' input: 'i3:1' {int} }}\n"),
        format!("node {{ name: 's4' op: 'Identity' input: 's3:1' {float} }}\n"),
        constant("one", "DT_INT32", "int_val: 1", "input: '^i4'"),
        constant("two", "DT_INT32", "int_val: 2", "input: '^i4'"),
        format!("node {{ name: 'up' op: 'AddV2' input: 'i4' input: 'one' {int} }}\n"),
        nodes.replace(" INT ", &format!(" {int} ")).replace(" FLOAT ", &format!(" {float} ")),
        format!("node {{ name: 'i5' op: 'NextIteration' input: 'up' {int} }}\n"),
        format!("node {{ name: 's5' op: 'NextIteration' input: 'next' {float} }}\n"),
        format!("node {{ name: 'y' op: 'Exit' input: 's3' {float} }}\n"),
    ]
    .concat()
}

/// A scalar of the stream of a node.
fn draw(name: &str, after: &str) -> String {
    format!(
        "node {{ name: '{name}_shape' op: 'Const' input: '^{after}' attr {{ key: 'dtype' value {{ type: DT_INT32 }} }}
          attr {{ key: 'value' value {{ tensor {{ dtype: DT_INT32 tensor_shape {{ dim {{ size: 0 }} }} }} }} }} }}
        node {{ name: '{name}' op: 'RandomUniform' input: '{name}_shape' attr {{ key: 'T' value {{ type: DT_INT32 }} }}
          attr {{ key: 'dtype' value {{ type: DT_FLOAT }} }} attr {{ key: 'seed' value {{ i: 3 }} }} attr {{ key: 'seed2' value {{ i: 4 }} }} }}\n"
    )
}

/// Steps of a graph with and without machine code, whatever becomes of its loop.
#[track_caller]
fn check_steps(text: &str, xs: &[i32], jits: [CompileJit; 2]) {
    let run = |jit| {
        let session = Session::from_text(text, options(jit)).expect("a valid graph");
        let step = |x: &i32| {
            let results = session.run(&[("x:0", Tensor::scalar(*x))], &["y:0"], &[]);
            let results = results.map_err(|e| format!("{:?} {:?}", e.code(), e.node()))?;
            results[0].to_scalar::<f32>().map_err(|e| e.to_string())
        };
        xs.iter().map(step).collect::<Vec<_>>()
    };
    let [own, other] = jits.map(run);
    assert_eq!(own, other, "{text}");
}

#[test]
fn a_node_draws_once_in_a_branch_that_two_merges_end() {
    let nodes = format!(
        "node {{ name: 'half' op: 'FloorMod' input: 'i4' input: 'two' INT }}
        node {{ name: 'p' op: 'Less' input: 'half' input: 'one' INT }}
        node {{ name: 'a' op: 'Switch' input: 's4' input: 'p' FLOAT }}
        node {{ name: 'in' op: 'Identity' input: 'a:1' FLOAT }}
        {}
        node {{ name: 'a1' op: 'AddV2' input: 'a:1' input: 'r' FLOAT }}
        node {{ name: 'm' op: 'Merge' input: 'a' input: 'a1' FLOAT attr {{ key: 'N' value {{ i: 2 }} }} }}
        node {{ name: 'b' op: 'Switch' input: 'm' input: 'p' FLOAT }}
        node {{ name: 'b1' op: 'AddV2' input: 'b:1' input: 'r' FLOAT }}
        node {{ name: 'next' op: 'Merge' input: 'b' input: 'b1' FLOAT attr {{ key: 'N' value {{ i: 2 }} }} }}\n",
        draw("r", "in")
    );
    check_steps(
        &frame(&nodes),
        &[1, 1, 1],
        [CompileJit::Auto, CompileJit::Off],
    );
}

#[test]
fn a_program_that_leaves_draws_nothing() {
    // The division fails in the last iteration if x is 4; the nodes report it, and have drawn as without a program.
    let nodes = format!(
        "{}
        node {{ name: 'd' op: 'Sub' input: 'x0' input: 'i4' INT }}
        node {{ name: 'q' op: 'FloorDiv' input: 'one' input: 'd' INT }}
        node {{ name: 'f' op: 'Cast' input: 'q' attr {{ key: 'SrcT' value {{ type: DT_INT32 }} }} attr {{ key: 'DstT' value {{ type: DT_FLOAT }} }} }}
        node {{ name: 't' op: 'AddV2' input: 'f' input: 'r' FLOAT }}
        node {{ name: 'next' op: 'AddV2' input: 's4' input: 't' FLOAT }}\n",
        draw("r", "i4")
    );
    let text = frame(&nodes);
    check_steps(&text, &[9, 9, 9], [CompileJit::Auto, CompileJit::Off]);
    check_steps(&text, &[9, 4, 9, 4, 9], [CompileJit::Auto, CompileJit::Off]);
}
