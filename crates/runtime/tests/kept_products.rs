//! Products by a variable, whose matrix stays packed between steps, see what is written to it.

use ferroflow_runtime::{Session, SessionOptions, Tensor};

const GRAPH: &str = "
node { name: 'x' op: 'Placeholder' attr { key: 'dtype' value { type: DT_FLOAT } } }
node { name: 'value' op: 'Placeholder' attr { key: 'dtype' value { type: DT_FLOAT } } }
node { name: 'v' op: 'VarHandleOp' attr { key: 'dtype' value { type: DT_FLOAT } } attr { key: 'shape' value { shape { unknown_rank: true } } } }
node { name: 'set' op: 'AssignVariableOp' input: 'v' input: 'value' attr { key: 'dtype' value { type: DT_FLOAT } } }
node { name: 'add' op: 'AssignAddVariableOp' input: 'v' input: 'value' attr { key: 'dtype' value { type: DT_FLOAT } } }
node { name: 'read' op: 'ReadVariableOp' input: 'v' attr { key: 'dtype' value { type: DT_FLOAT } } }
node { name: 'y' op: 'MatMul' input: 'x' input: 'read' attr { key: 'T' value { type: DT_FLOAT } } }
node { name: 'z' op: 'MatMul' input: 'x' input: 'value' attr { key: 'T' value { type: DT_FLOAT } } }
";

fn matrix([rows, cols]: [usize; 2], seed: usize) -> Tensor {
    let value = |i: usize| ((i * 37 + seed * 11) % 101) as f32 / 50.0 - 0.9;
    let values: Vec<f32> = (0..rows * cols).map(value).collect();
    Tensor::from_slice([rows, cols], &values).expect("a matrix")
}

/// Products by a variable equal those by a fed matrix, to the bit, before and after the variable changes in place.
fn check([m, n, k]: [usize; 3], threads: usize) {
    let options = SessionOptions {
        threads,
        // Constants are packed when kernels are built, in blocks of another size.
        freeze_variables: false,
        ..Default::default()
    };
    let session = Session::from_text(GRAPH, options).expect("a graph");
    let run = |feeds: &[(&str, Tensor)], fetch: &[&str], target: &[&str]| {
        session.run(feeds, fetch, target).expect("runs")
    };
    let (x, step) = (matrix([m, k], 1), matrix([k, n], 2));
    run(&[("value:0", step.clone())], &[], &["set"]);
    for _ in 0..3 {
        let current = run(&[], &["read:0"], &[]).remove(0);
        let fed = [("x:0", x.clone()), ("value:0", matrix_of(&current))];
        let want = run(&fed, &["z:0"], &[]).remove(0);
        for _ in 0..3 {
            let got = run(&[("x:0", x.clone())], &["y:0"], &[]).remove(0);
            assert!(got.same_value(&want), "{m} {n} {k}, {threads} threads");
        }
        drop(current);
        run(&[("value:0", step.clone())], &[], &["add"]);
    }
}

/// A copy in memory of its own.
fn matrix_of(t: &Tensor) -> Tensor {
    Tensor::from_slice(t.shape().clone(), t.slice::<f32>().expect("floats")).expect("a matrix")
}

#[test]
fn written_variables_are_packed_anew() {
    for size in [
        [1, 100, 128],
        [4, 33, 700],
        [32, 256, 64],
        [64, 90, 100],
        [65, 90, 100],
    ] {
        for threads in [1, 2] {
            check(size, threads);
        }
    }
}
