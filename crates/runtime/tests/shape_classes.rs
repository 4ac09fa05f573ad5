//! Signatures whose feeds have open sizes get plans for the shapes that they are fed with again and again.

use super::clusters::options;
use ferroflow_runtime::{CompileJit, Session, Shape, Signature, Tensor};

/// Newton's iteration for the square roots of the elements of a vector, and a few ops on them.
fn graph(shape: &str) -> String {
    format!(
        "versions {{ producer: 2474 }}
        node {{ name: 'x' op: 'Placeholder' attr {{ key: 'dtype' value {{ type: DT_FLOAT }} }}
          attr {{ key: 'shape' value {{ shape {{ {shape} }} }} }} }}
        node {{ name: 'n' op: 'Const' attr {{ key: 'dtype' value {{ type: DT_INT32 }} }}
          attr {{ key: 'value' value {{ tensor {{ dtype: DT_INT32 tensor_shape {{ }} int_val: 8 }} }} }} }}
        node {{ name: 'loop' op: 'While' input: 'n' input: 'x' input: 'x'
          attr {{ key: 'T' value {{ list {{ type: DT_INT32 type: DT_FLOAT type: DT_FLOAT }} }} }}
          attr {{ key: 'cond' value {{ func {{ name: 'cond' }} }} }} attr {{ key: 'body' value {{ func {{ name: 'body' }} }} }} }}
        node {{ name: 'y' op: 'Identity' input: 'loop:1' attr {{ key: 'T' value {{ type: DT_FLOAT }} }} }}
        library {{
          function {{ signature {{ name: 'cond' input_arg {{ name: 'n' type: DT_INT32 }} input_arg {{ name: 'y' type: DT_FLOAT }}
              input_arg {{ name: 'x' type: DT_FLOAT }} output_arg {{ name: 'r' type: DT_BOOL }} }}
            node_def {{ name: 'zero' op: 'Const' attr {{ key: 'dtype' value {{ type: DT_INT32 }} }}
              attr {{ key: 'value' value {{ tensor {{ dtype: DT_INT32 tensor_shape {{ }} int_val: 0 }} }} }} }}
            node_def {{ name: 'g' op: 'Greater' input: 'n' input: 'zero:output:0' attr {{ key: 'T' value {{ type: DT_INT32 }} }} }}
            ret {{ key: 'r' value: 'g:z:0' }} }}
          function {{ signature {{ name: 'body' input_arg {{ name: 'n' type: DT_INT32 }} input_arg {{ name: 'y' type: DT_FLOAT }}
              input_arg {{ name: 'x' type: DT_FLOAT }} output_arg {{ name: 'm' type: DT_INT32 }}
              output_arg {{ name: 'z' type: DT_FLOAT }} output_arg {{ name: 'w' type: DT_FLOAT }} }}
            node_def {{ name: 'one' op: 'Const' attr {{ key: 'dtype' value {{ type: DT_INT32 }} }}
              attr {{ key: 'value' value {{ tensor {{ dtype: DT_INT32 tensor_shape {{ }} int_val: 1 }} }} }} }}
            node_def {{ name: 'half' op: 'Const' attr {{ key: 'dtype' value {{ type: DT_FLOAT }} }}
              attr {{ key: 'value' value {{ tensor {{ dtype: DT_FLOAT tensor_shape {{ }} float_val: 0.5 }} }} }} }}
            node_def {{ name: 's' op: 'Sub' input: 'n' input: 'one:output:0' attr {{ key: 'T' value {{ type: DT_INT32 }} }} }}
            node_def {{ name: 'q' op: 'RealDiv' input: 'x' input: 'y' attr {{ key: 'T' value {{ type: DT_FLOAT }} }} }}
            node_def {{ name: 'a' op: 'AddV2' input: 'y' input: 'q:z:0' attr {{ key: 'T' value {{ type: DT_FLOAT }} }} }}
            node_def {{ name: 'h' op: 'Mul' input: 'a:z:0' input: 'half:output:0' attr {{ key: 'T' value {{ type: DT_FLOAT }} }} }}
            ret {{ key: 'm' value: 's:z:0' }} ret {{ key: 'z' value: 'h:z:0' }} ret {{ key: 'w' value: 'x' }} }} }}"
    )
}

fn vector(n: usize, seed: usize) -> Tensor {
    let values: Vec<f32> = (0..n).map(|i| 1.0 + ((i + seed) % 7) as f32).collect();
    Tensor::from_slice(Shape::from([n]), &values).expect("a vector")
}

/// Runs steps with vectors of these lengths; returns the number of plans for shapes.
#[track_caller]
fn check(shape: &str, lengths: impl Iterator<Item = usize>) -> usize {
    let signature = Signature {
        feeds: vec!["x:0".to_string()],
        fetches: vec!["y:0".to_string()],
        targets: Vec::new(),
    };
    let open = |jit| {
        let session = Session::from_text(&graph(shape), options(jit)).expect("a valid graph");
        let callable = session.callable(&signature).expect("compiles");
        (session, callable)
    };
    let ((own, compiled), (other, plain)) = (open(CompileJit::Auto), open(CompileJit::Off));
    for (i, n) in lengths.enumerate() {
        let run = |session: &Session, callable| {
            let out = session.run_callable(callable, vec![vector(n, i)], &Default::default());
            out.expect("runs")[0]
                .slice::<f32>()
                .expect("floats")
                .to_vec()
        };
        assert_eq!(
            run(&own, &compiled),
            run(&other, &plain),
            "step {i}, {n} elements"
        );
    }
    assert_eq!(plain.num_shape_classes(), 0);
    compiled.num_shape_classes()
}

#[test]
fn a_plan_is_made_for_shapes_that_come_again() {
    let open = "dim { size: -1 }";
    // Steps with one shape; with two, one after another; with two that alternate.
    assert_eq!(check(open, std::iter::repeat_n(3, 40)), 1);
    assert_eq!(check(open, (0..80).map(|i| 3 + i / 40)), 2);
    assert_eq!(check(open, (0..80).map(|i| 3 + i % 2)), 2);
    // More shapes than plans.
    assert_eq!(check(open, (0..400).map(|i| 1 + i / 40)), 8);
    // Nothing is open; no program has as many elements.
    assert_eq!(check("dim { size: 3 }", std::iter::repeat_n(3, 40)), 0);
    assert_eq!(check(open, std::iter::repeat_n(65, 40)), 0);
}

#[test]
fn a_plan_for_shapes_sees_variables_that_change() {
    let state = "node { name: 'v' op: 'VarHandleOp' attr { key: 'dtype' value { type: DT_FLOAT } } attr { key: 'shape' value { shape { } } } }
        node { name: 'r' op: 'ReadVariableOp' input: 'v' attr { key: 'dtype' value { type: DT_FLOAT } } }
        node { name: 'new' op: 'Placeholder' attr { key: 'dtype' value { type: DT_FLOAT } } attr { key: 'shape' value { shape { } } } }
        node { name: 'set' op: 'AssignVariableOp' input: 'v' input: 'new' attr { key: 'dtype' value { type: DT_FLOAT } } }
        node { name: 'z' op: 'Mul' input: 'y' input: 'r' attr { key: 'T' value { type: DT_FLOAT } } }
        library {";
    let text = graph("dim { size: -1 }").replacen("library {", state, 1);
    // With and without a value when the signature is compiled.
    for is_set in [true, false] {
        let session = Session::from_text(&text, options(CompileJit::Auto)).expect("a valid graph");
        let set = |value: f32| {
            let new = [("new:0", Tensor::scalar(value))];
            session.run(&new, &[], &["set"]).expect("assigns");
        };
        let step = |value: f32| {
            let out = session.run(&[("x:0", vector(1, 0))], &["z:0"], &[]);
            let z = out.expect("runs")[0].slice::<f32>().expect("floats")[0];
            assert_eq!(z, value, "is set: {is_set}");
        };
        if is_set {
            set(2.0);
        } else {
            session
                .run(&[("x:0", vector(1, 0))], &["z:0"], &[])
                .expect_err("not initialized");
            set(2.0);
        }
        (0..40).for_each(|_| step(2.0));
        set(3.0);
        (0..40).for_each(|_| step(3.0));
    }
}
