//! Steps on an NVIDIA GPU that are replayed; without one there is nothing to run.

use ferroflow_runtime::{
    Code, DType, DeviceSet, Result, Session, SessionOptions, StreamDeviceOptions, StreamDevices,
    Tensor, set_tf32,
};
use std::sync::OnceLock;

const TASK: &str = "/job:test/replica:0/task:0";

/// The GPU, or why there is none.
fn gpu(precision: Option<DType>) -> Result<StreamDevices> {
    static PLAIN: OnceLock<Result<StreamDevices>> = OnceLock::new();
    set_tf32(false);
    let open = || {
        StreamDevices::gpus(
            TASK,
            1,
            &StreamDeviceOptions {
                memory_limit: Some(2 << 30),
                precision,
                ..Default::default()
            },
        )
    };
    match precision {
        None => PLAIN.get_or_init(open).clone(),
        Some(_) => open(),
    }
}

fn session(graph: &str, gpu: &StreamDevices) -> Result<Session> {
    let mut names: Vec<String> = gpu.names().map(str::to_string).collect();
    names.push(format!("{TASK}/device:CPU:0"));
    let options = SessionOptions {
        devices: DeviceSet {
            names,
            soft: true,
            kernels: gpu.kernels(),
            ..Default::default()
        },
        stream_devices: gpu.clone(),
        ..Default::default()
    };
    Session::from_text(graph, options)
}

const FLOAT: &str = "attr { key: 'T' value { type: DT_FLOAT } }";

/// Rows of a table by number, in a shape that is fed, times a constant; then all of it added up.
fn graph() -> String {
    let feed = |name: &str| {
        format!(
            "node {{ name: '{name}' op: 'Placeholder' attr {{ key: 'dtype' value {{ type: DT_INT32 }} }} }}"
        )
    };
    let floats = |name: &str, dims: &[usize]| {
        let sizes: String = dims
            .iter()
            .map(|d| format!("dim {{ size: {d} }} "))
            .collect();
        let n: usize = dims.iter().product();
        let values: String = (0..n)
            .map(|i| format!("float_val: {} ", (i % 7) as f32 - 2.5))
            .collect();
        format!(
            "node {{ name: '{name}' op: 'Const' attr {{ key: 'dtype' value {{ type: DT_FLOAT }} }} attr {{ key: 'value' \
             value {{ tensor {{ dtype: DT_FLOAT tensor_shape {{ {sizes} }} {values} }} }} }} }}"
        )
    };
    [
        feed("ids"),
        feed("shape"),
        feed("dim"),
        "node { name: 'same' op: 'Identity' input: 'ids' attr { key: 'T' value { type: DT_INT32 } } }".to_string(),
        floats("table", &[10, 8]),
        floats("w", &[4, 3]),
        "node { name: 'axis' op: 'Const' attr { key: 'dtype' value { type: DT_INT32 } } attr { key: 'value' value { \
         tensor { dtype: DT_INT32 tensor_shape { } int_val: 0 } } } }"
            .to_string(),
        "node { name: 'rows' op: 'GatherV2' input: 'table' input: 'ids' input: 'axis' attr { key: 'Tparams' value { type: \
         DT_FLOAT } } attr { key: 'Tindices' value { type: DT_INT32 } } attr { key: 'Taxis' value { type: DT_INT32 } } }"
            .to_string(),
        format!("node {{ name: 'x' op: 'Reshape' input: 'rows' input: 'shape' {FLOAT} }}"),
        format!("node {{ name: 'y' op: 'MatMul' input: 'x' input: 'w' {FLOAT} }}"),
        format!("node {{ name: 'z' op: 'Relu' input: 'y' {FLOAT} }}"),
        format!("node {{ name: 'sum' op: 'Sum' input: 'z' input: 'dim' {FLOAT} }}"),
    ]
    .join("\n")
}

/// Runs steps in turn on both; they differ by at most `tol` of the largest element.
fn check(own: &Session, cpu: &Session, feeds: [(&str, Tensor); 3], tol: f32) {
    let fetches = ["sum:0", "z:0", "same:0"];
    let (got, expected) = (
        own.run(&feeds, &fetches, &[]),
        cpu.run(&feeds, &fetches, &[]),
    );
    match (got, expected) {
        (Ok(got), Ok(expected)) => {
            for (g, e) in got.iter().zip(&expected) {
                assert_eq!(g.shape(), e.shape());
                if e.dtype() == DType::Int32 {
                    assert!(g.same_value(e), "{g} instead of {e}");
                    continue;
                }
                let (g, e) = (g.slice::<f32>().unwrap(), e.slice::<f32>().unwrap());
                let largest = e.iter().fold(1e-9f32, |m, v| m.max(v.abs()));
                for (g, e) in g.iter().zip(e) {
                    assert!(
                        (g - e).abs() <= tol * largest,
                        "{g} instead of {e} for {feeds:?}"
                    );
                }
            }
        }
        (Err(got), Err(expected)) => {
            assert_eq!(got.code(), expected.code());
            assert_eq!(
                got.message().split('\n').next(),
                expected.message().split('\n').next()
            );
        }
        (got, expected) => panic!("{got:?} instead of {expected:?} for {feeds:?}"),
    }
}

#[test]
fn replayed_steps_depend_on_what_is_fed() {
    for (precision, tol) in [(None, 1e-6), (Some(DType::Bfloat16), 2e-2)] {
        let gpu = match gpu(precision) {
            Ok(gpu) => gpu,
            Err(e) => return println!("skipped: {e}"),
        };
        let own = session(&graph(), &gpu).unwrap();
        let cpu = Session::from_text(&graph(), SessionOptions::default()).unwrap();
        for round in 0..12i32 {
            // Other rows in each step, another shape now and then, and numbers of rows that do not exist.
            let ids: Vec<i32> = (0..32).map(|i| (i * 3 + round) % 10).collect();
            let mut ids = ids[..if round % 5 == 4 { 16 } else { 32 }].to_vec();
            if round == 7 {
                ids[5] = 10;
            }
            let rows = ids.len() as i32 * 2;
            let shape = [[rows, 4], [-1, 4]][usize::from(round % 3 == 2)];
            let feeds = [
                ("ids:0", Tensor::vector(&ids).unwrap()),
                ("shape:0", Tensor::vector(&shape).unwrap()),
                ("dim:0", Tensor::scalar(i32::from(round % 4 == 3))),
            ];
            check(&own, &cpu, feeds, tol);
        }
    }
}

#[test]
fn too_little_memory_is_an_error_that_names_holders() {
    let options = StreamDeviceOptions {
        memory_limit: Some(1 << 20),
        ..Default::default()
    };
    let gpu = match StreamDevices::gpus(TASK, 1, &options) {
        Ok(gpu) => gpu,
        Err(e) => return println!("skipped: {e}"),
    };
    let graph = format!(
        "node {{ name: 'x' op: 'Placeholder' attr {{ key: 'dtype' value {{ type: DT_FLOAT }} }} }}
         node {{ name: 'y' op: 'Relu' input: 'x' {FLOAT} }}
         node {{ name: 'z' op: 'Exp' input: 'y' {FLOAT} }}"
    );
    let session = session(&graph, &gpu).unwrap();
    let x = Tensor::vector(&vec![1f32; 150_000]).unwrap();
    let error = session
        .run(&[("x:0", x)], &["y:0", "z:0"], &[])
        .unwrap_err();
    assert_eq!(error.code(), Code::ResourceExhausted, "{error}");
    assert!(error.message().contains("Largest holders: ["), "{error}");
    // The device continues.
    let small = Tensor::vector(&[1f32; 100]).unwrap();
    assert!(session.run(&[("x:0", small)], &["z:0"], &[]).is_ok());
}

#[test]
fn steps_read_what_variables_have_now() {
    let gpu = match gpu(None) {
        Ok(gpu) => gpu,
        Err(e) => return println!("skipped: {e}"),
    };
    let dtype = "attr { key: 'dtype' value { type: DT_FLOAT } }";
    let graph = format!(
        "node {{ name: 'v' op: 'VarHandleOp' {dtype} attr {{ key: 'shape' value {{ shape {{ unknown_rank: true }} }} }}
               attr {{ key: 'shared_name' value {{ s: 'v' }} }} }}
         node {{ name: 'x' op: 'Placeholder' {dtype} }}
         node {{ name: 'set' op: 'AssignVariableOp' input: 'v' input: 'x' {dtype} }}
         node {{ name: 'get' op: 'ReadVariableOp' input: 'v' {dtype} }}
         node {{ name: 'y' op: 'Reshape' input: 'get' input: 'shape' {FLOAT} }}
         node {{ name: 'shape' op: 'Const' attr {{ key: 'dtype' value {{ type: DT_INT32 }} }} attr {{ key: 'value' value {{
               tensor {{ dtype: DT_INT32 tensor_shape {{ dim {{ size: 2 }} }} int_val: [2, 3] }} }} }} }}
         node {{ name: 'drop' op: 'DestroyResourceOp' input: 'v' }}"
    );
    let session = session(&graph, &gpu).unwrap();
    for round in 0..4 {
        let values: Vec<f32> = (0..6).map(|i| (i * round) as f32 + 0.5).collect();
        let x = Tensor::vector(&values).unwrap();
        session.run(&[("x:0", x)], &[], &["set"]).unwrap();
        for _ in 0..4 {
            let y = session.run(&[], &["y:0"], &[]).unwrap();
            assert_eq!(y[0].slice::<f32>().unwrap(), values, "round {round}");
        }
    }
    session.run(&[], &[], &["drop"]).unwrap();
    let error = session.run(&[], &["y:0"], &[]).unwrap_err();
    assert_eq!(error.code(), Code::FailedPrecondition, "{error}");
}
