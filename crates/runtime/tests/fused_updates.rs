//! Optimizers that compute their gradient themselves leave the same bits in their variables as with
//! the product made before, where that sums in the same order, and say the same of what does not
//! fit.

use ferroflow_runtime::{CompileOptions, Session, SessionOptions, Tensor};

/// Optimizers, their slots, and their other inputs, `g` being the gradient.
const OPTIMIZERS: &[(&str, usize, &[&str], &str)] = &[
    ("GradientDescent", 0, &["lr", "g"], ""),
    ("Momentum", 1, &["lr", "g", "half"], ""),
    ("Momentum", 1, &["lr", "g", "half"], "use_nesterov"),
    ("Adagrad", 1, &["lr", "g"], ""),
    ("RMSProp", 2, &["lr", "half", "half", "lr", "g"], ""),
    (
        "Adam",
        2,
        &["half", "half", "lr", "half", "half", "lr", "g"],
        "",
    ),
];

struct Row {
    optimizer: usize,
    /// Rows and columns of the variable, and what the product is summed over.
    size: [usize; 3],
    transposed: [bool; 2],
}

impl Row {
    /// A graph with the variables `v0`, `v1`, …, what sets, steps and reads them.
    fn graph(&self, n_vars: usize) -> String {
        let (op, _, inputs, attr) = OPTIMIZERS[self.optimizer];
        let t = "attr { key: 'T' value { type: DT_FLOAT } }";
        let dtype = "attr { key: 'dtype' value { type: DT_FLOAT } }";
        let node = |name: &str, op: &str, inputs: &[String], rest: &str| {
            let inputs: Vec<String> = inputs.iter().map(|i| format!("input: '{i}'")).collect();
            let inputs = inputs.join(" ");
            format!("node {{ name: '{name}' op: '{op}' {inputs} {rest} }}\n")
        };
        let constant = |name: &str, value: f32| {
            let tensor = format!("dtype: DT_FLOAT tensor_shape {{ }} float_val: {value}");
            let value =
                format!("{dtype} attr {{ key: 'value' value {{ tensor {{ {tensor} }} }} }}");
            node(name, "Const", &[], &value)
        };
        let mut text = constant("lr", 0.125) + &constant("half", 0.5);
        text += &node("a", "Placeholder", &[], dtype);
        text += &node("b", "Placeholder", &[], dtype);
        text += &node("value", "Placeholder", &[], dtype);
        let [ta, tb] = self.transposed;
        let product = format!(
            "{t} attr {{ key: 'transpose_a' value {{ b: {ta} }} }} \
             attr {{ key: 'transpose_b' value {{ b: {tb} }} }}"
        );
        text += &node("g", "MatMul", &["a".into(), "b".into()], &product);
        let mut all: Vec<String> = Vec::new();
        for i in 0..n_vars {
            let v = format!("v{i}");
            let place = format!("{dtype} attr {{ key: 'shared_name' value {{ s: '{v}' }} }}");
            let place = place + " attr { key: 'shape' value { shape { unknown_rank: true } } }";
            text += &node(&v, "VarHandleOp", &[], &place);
            let assigned = [v.clone(), "value".into()];
            text += &node(&format!("set{i}"), "AssignVariableOp", &assigned, dtype);
            text += &node(
                &format!("read{i}"),
                "ReadVariableOp",
                std::slice::from_ref(&v),
                dtype,
            );
            all.push(v);
        }
        all.extend(inputs.iter().map(|i| i.to_string()));
        let attr = match attr {
            "" => String::new(),
            attr => format!("attr {{ key: '{attr}' value {{ b: true }} }}"),
        };
        text + &node(
            "step",
            &format!("ResourceApply{op}"),
            &all,
            &format!("{t} {attr}"),
        )
    }

    /// What three steps leave in the variables, or the first error.
    fn run(
        &self,
        disabled: &[&str],
        var: [usize; 2],
        is_set: bool,
    ) -> Result<Vec<Vec<u32>>, String> {
        let n_vars = 1 + OPTIMIZERS[self.optimizer].1;
        let options = SessionOptions {
            threads: 2,
            compile: CompileOptions {
                disabled: disabled.iter().map(|d| d.to_string()).collect(),
                ..CompileOptions::all()
            },
            ..Default::default()
        };
        let session = Session::from_text(&self.graph(n_vars), options).expect("a graph");
        let matrix = |rows: usize, cols: usize, seed: usize| {
            let value = |i: usize| ((i * 37 + seed * 11) % 101) as f32 / 50.0 - 0.9;
            let values: Vec<f32> = (0..rows * cols).map(value).collect();
            Tensor::from_slice([rows, cols], &values).expect("a matrix")
        };
        for i in 0..n_vars * usize::from(is_set) {
            let set = format!("set{i}");
            // Slots that roots are taken of.
            let value = Tensor::from_slice(var, &vec![0.5f32; var[0] * var[1]]).expect("a matrix");
            session
                .run(&[("value:0", value)], &[], &[&set])
                .expect("assigns");
        }
        let [m, n, k] = self.size;
        for step in 0..3 {
            let (a, b) = match self.transposed {
                [false, false] => (matrix(m, k, step), matrix(k, n, step + 5)),
                [true, false] => (matrix(k, m, step), matrix(k, n, step + 5)),
                [false, true] => (matrix(m, k, step), matrix(n, k, step + 5)),
                [true, true] => (matrix(k, m, step), matrix(n, k, step + 5)),
            };
            let feeds = [("a:0", a), ("b:0", b)];
            session
                .run(&feeds, &[], &["step"])
                .map_err(|e| e.to_string())?;
        }
        let reads: Vec<String> = (0..n_vars).map(|i| format!("read{i}:0")).collect();
        let reads: Vec<&str> = reads.iter().map(String::as_str).collect();
        let values = session.run(&[], &reads, &[]).expect("reads");
        let bits = |t: &Tensor| {
            t.slice::<f32>()
                .expect("floats")
                .iter()
                .map(|x| x.to_bits())
                .collect()
        };
        Ok(values.iter().map(bits).collect())
    }
}

fn check(row: &Row, var: [usize; 2], is_set: bool) -> Result<(), String> {
    let apart = row.run(&["fuse_update"], var, is_set);
    // An error ends with what the node is.
    let renamed = |e: String| e.replace("= _MatMulApply", "= ResourceApply");
    let fused = row.run(&[], var, is_set).map_err(renamed);
    let (op, ..) = OPTIMIZERS[row.optimizer];
    assert!(
        fused == apart,
        "{op} {:?} {:?}: {:?}",
        row.size,
        row.transposed,
        [fused.err(), apart.err()]
    );
    fused.map(|_| ())
}

#[test]
fn variables_are_the_same_to_the_last_bit() {
    // None of them is so wide that its transpose is computed, which sums in another order.
    let sizes = [
        [3, 2, 5],
        [3, 2, 0],
        [40, 20, 30],
        [8, 5, 385],
        [70, 33, 384],
        [30, 100, 7],
    ];
    for optimizer in 0..OPTIMIZERS.len() {
        for size in sizes {
            for transposed in [[false, false], [true, false], [false, true], [true, true]] {
                let row = Row {
                    optimizer,
                    size,
                    transposed,
                };
                let result = check(&row, [size[0], size[1]], true);
                assert_eq!(result, Ok(()));
            }
        }
    }
}

#[test]
fn what_does_not_fit_is_said_in_the_same_words() {
    let transposed = [true, false];
    for optimizer in 0..OPTIMIZERS.len() {
        let row = Row {
            optimizer,
            size: [40, 20, 30],
            transposed,
        };
        let error = check(&row, [40, 21], true).expect_err("another shape");
        assert!(error.contains("do not have the same shape"), "{error}");
        let error = check(&row, [40, 20], false).expect_err("no value");
        assert!(error.contains("Invalid variable reference."), "{error}");
    }
}
