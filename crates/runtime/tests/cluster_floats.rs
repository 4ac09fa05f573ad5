//! Random loops over small float matrices result in the same bits with and without machine code: products, reductions,
//! random numbers.

use super::clusters::options;
use ferroflow_runtime::{CompileJit, Session, Shape, Tensor};
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

fn run(text: &str, xs: &[Tensor], jit: CompileJit) -> Vec<Vec<u8>> {
    let mut options = options(jit);
    // A product by constants that is fused with what follows it rounds once for both.
    options.compile.disabled = vec!["fuse".to_string()];
    let session = Session::from_text(text, options).expect("a valid graph");
    let step = |x: &Tensor| {
        let results = session.run(&[("x:0", x.clone())], &["y:0"], &[]);
        let results = results.unwrap_or_else(|e| panic!("{e}\n{text}"));
        results[0].bytes().expect("numbers").to_vec()
    };
    xs.iter().map(step).collect()
}

#[test]
fn loops_over_small_matrices_result_in_the_same_bits() {
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
        let expected = run(&text, &xs, CompileJit::Off);
        assert_eq!(
            run(&text, &xs, CompileJit::Auto),
            expected,
            "seed {seed}\n{text}"
        );
    }
}
