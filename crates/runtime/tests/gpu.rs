//! Steps on an NVIDIA GPU that are replayed; without one an interpreter runs the kernels, but not those of cuBLASLt and cuDNN.

mod attention;

use ferroflow_runtime::{
    Code, DType, DeviceSet, Result, Session, SessionOptions, StreamDeviceOptions, StreamDevices,
    Tensor, set_tf32,
};
use ferroflow_testkit::driver::replacement_driver;
use std::sync::OnceLock;

const TASK: &str = "/job:test/replica:0/task:0";

/// Opens the GPU, or the interpreter in its place.
fn open(options: &StreamDeviceOptions) -> Result<StreamDevices> {
    is_interpreted();
    StreamDevices::gpus(TASK, 1, options)
}

/// Whether kernels are interpreted, so that there are no products and convolutions.
fn is_interpreted() -> bool {
    static INTERPRETED: OnceLock<bool> = OnceLock::new();
    *INTERPRETED.get_or_init(|| {
        if StreamDevices::gpus(TASK, 1, &StreamDeviceOptions::default()).is_ok() {
            return false;
        }
        // Other tests of the process take what they find for a GPU then.
        let is_asked_for = std::env::var_os("GPU").is_some();
        let library = (!is_asked_for).then(replacement_driver).flatten();
        let Some(library) = library else {
            return false;
        };
        ferroflow_ptx::attach(&library, 80).unwrap();
        std::fs::remove_file(library).unwrap();
        true
    })
}

/// The GPU, or why there is none.
fn gpu(precision: Option<DType>) -> Result<StreamDevices> {
    static PLAIN: OnceLock<Result<StreamDevices>> = OnceLock::new();
    set_tf32(false);
    let options = StreamDeviceOptions {
        memory_limit: Some(2 << 30),
        precision,
        ..Default::default()
    };
    match precision {
        None => PLAIN.get_or_init(|| open(&options)).clone(),
        Some(_) => open(&options),
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
    if is_interpreted() {
        return println!("skipped: no cuBLASLt");
    }
    for (precision, tol) in [(None, 1e-6), (Some(DType::Bfloat16), 2e-2)] {
        let gpu = match gpu(precision) {
            Ok(gpu) => gpu,
            Err(e) => return println!("skipped: {e}"),
        };
        let own = session(&graph(), &gpu).unwrap();
        let cpu = Session::from_text(&graph(), SessionOptions::default()).unwrap();
        let replays = || own.stream_devices().replays().map(|(n, _)| n).sum::<u64>();
        let before = replays();
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
        assert!(replays() > before + 2);
    }
}

#[test]
fn too_little_memory_is_an_error_that_names_holders() {
    let options = StreamDeviceOptions {
        memory_limit: Some(1 << 20),
        ..Default::default()
    };
    let gpu = match open(&options) {
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

/// A node with attrs in text form, behind its inputs.
fn node(name: &str, op: &str, inputs: &[&str], attrs: &[(&str, &str)]) -> String {
    let inputs: String = inputs.iter().map(|i| format!("input: '{i}' ")).collect();
    let attrs: String = attrs
        .iter()
        .map(|(key, value)| format!("attr {{ key: '{key}' value {{ {value} }} }} "))
        .collect();
    format!("node {{ name: '{name}' op: '{op}' {inputs}{attrs}}}")
}

/// Training steps of a product: Momentum, a moving average, a copy of the weights, a count of steps, and noise.
fn training_graph() -> String {
    const F: &str = "type: DT_FLOAT";
    const I: &str = "type: DT_INT64";
    let variable = |name: &str, dtype: &str| {
        let named = format!("s: '{name}'");
        let attrs = [
            ("dtype", dtype),
            ("shape", "shape { unknown_rank: true }"),
            ("shared_name", &*named),
        ];
        node(name, "VarHandleOp", &[], &attrs)
    };
    let of_dtype = |name: &str, op: &str, inputs: &[&str], dtype: &str| {
        node(name, op, inputs, &[("dtype", dtype)])
    };
    let assign = |name: &str, op: &str, inputs: &[&str]| of_dtype(name, op, inputs, F);
    let read = |name: &str, inputs: &[&str]| of_dtype(name, "ReadVariableOp", inputs, F);
    let sum = |name: &str, of: &str| {
        let attrs = [("T", F), ("Tidx", "type: DT_INT32")];
        node(name, "Sum", &[of, "axes"], &attrs)
    };
    let constant = |name: &str, value: &str| {
        let value = format!("tensor {{ dtype: DT_FLOAT tensor_shape {{ }} float_val: {value} }}");
        node(name, "Const", &[], &[("dtype", F), ("value", &value)])
    };
    let ints = |name: &str, dtype: &str, dims: &str, values: &str| {
        let value = format!("tensor {{ dtype: DT_{dtype} tensor_shape {{ {dims} }} {values} }}");
        let dtype = format!("type: DT_{dtype}");
        node(name, "Const", &[], &[("dtype", &dtype), ("value", &value)])
    };
    let float = |name: &str, op: &str, inputs: &[&str]| node(name, op, inputs, &[("T", F)]);
    let transposed = |name: &str, inputs: &[&str]| {
        node(
            name,
            "MatMul",
            inputs,
            &[("T", F), ("transpose_a", "b: true")],
        )
    };
    [
        variable("w", F),
        variable("slot", F),
        variable("mean", F),
        variable("last", F),
        variable("steps", I),
        of_dtype("x", "Placeholder", &[], F),
        of_dtype("start", "Placeholder", &[], F),
        ints("one", "INT64", "", "int64_val: 1"),
        ints("zero", "INT64", "", "int64_val: 0"),
        ints("noise_shape", "INT32", "dim { size: 2 }", "int_val: [4, 8]"),
        ints("axes", "INT32", "dim { size: 2 }", "int_val: [0, 1]"),
        constant("rate", "0.01"),
        constant("momentum", "0.9"),
        constant("tenth", "0.1"),
        // Every variable but the count is on the device.
        assign("init_w", "AssignVariableOp", &["w", "start"]),
        float("zeros", "ZerosLike", &["start"]),
        assign("init_slot", "AssignVariableOp", &["slot", "zeros"]),
        assign("init_mean", "AssignVariableOp", &["mean", "zeros"]),
        assign("init_last", "AssignVariableOp", &["last", "zeros"]),
        of_dtype("init_steps", "AssignVariableOp", &["steps", "zero"], I),
        // The step.
        read("value", &["w"]),
        float("y", "MatMul", &["x", "value"]),
        node(
            "noise",
            "RandomUniform",
            &["noise_shape"],
            &[
                ("T", "type: DT_INT32"),
                ("dtype", F),
                ("seed", "i: 3"),
                ("seed2", "i: 4"),
            ],
        ),
        transposed("product", &["x", "y"]),
        float("gradient", "AddV2", &["product", "noise"]),
        node(
            "update",
            "ResourceApplyMomentum",
            &["w", "slot", "rate", "gradient", "momentum"],
            &[("T", F)],
        ),
        read("old_mean", &["mean"]),
        float("change", "Sub", &["old_mean", "value"]),
        float("part", "Mul", &["change", "tenth"]),
        assign("move_mean", "AssignSubVariableOp", &["mean", "part"]),
        assign("keep", "AssignVariableOp", &["last", "gradient"]),
        of_dtype("count", "AssignAddVariableOp", &["steps", "one"], I),
        sum("loss", "y"),
        // What depends on a number of rows that only the step knows.
        of_dtype("ids", "Placeholder", &[], "type: DT_INT32"),
        node("different", "Unique", &["ids"], &[("T", "type: DT_INT32")]),
        node(
            "rows",
            "ResourceGather",
            &["w", "different", "^update"],
            &[("dtype", F), ("Tindices", "type: DT_INT32")],
        ),
        sum("tail", "rows"),
        // After a step.
        read("new", &["w", "^update"]),
        read("get_w", &["w"]),
        read("get_slot", &["slot"]),
        read("get_mean", &["mean"]),
        read("get_last", &["last"]),
        of_dtype("get_steps", "ReadVariableOp", &["steps"], I),
    ]
    .join("\n")
}

/// Numbers of a shape that differ by `n`.
fn numbers(shape: &[usize], n: usize) -> Tensor {
    let count = shape.iter().product::<usize>();
    let values: Vec<f32> = (0..count)
        .map(|i| ((i * 7 + i / 3 + n * 3) % 11) as f32 / 11.0 - 0.4)
        .collect();
    let values = Tensor::vector(&values).unwrap();
    values.with_shape(shape.into()).unwrap()
}

/// Whether all elements differ by at most `tol` of the largest.
fn is_near(got: &Tensor, expected: &Tensor, tol: f32) -> bool {
    let (g, e) = (
        got.slice::<f32>().unwrap(),
        expected.slice::<f32>().unwrap(),
    );
    // Sums may be of numbers that cancel out.
    let largest = e.iter().fold(1f32, |m, v| m.max(v.abs()));
    let near = |(g, e): (&f32, &f32)| (g - e).abs() <= tol * largest;
    got.shape() == expected.shape() && g.iter().zip(e).all(near)
}

#[test]
fn normalizations_with_relu_have_gradients() {
    const F: &str = "type: DT_FLOAT";
    let types: &[(&str, &str)] = &[("T", F), ("U", F), ("epsilon", "f: 0.001")];
    let norm = |name: &str, inputs: &[&str]| node(name, "FusedBatchNormV3", inputs, types);
    let gradient = |name: &str, inputs: &[&str]| node(name, "FusedBatchNormGradV3", inputs, types);
    let float = |name: &str, op: &str, inputs: &[&str]| node(name, op, inputs, &[("T", F)]);
    let pool = |name: &str, op: &str, inputs: &[&str]| {
        let sizes = |n: i64| format!("list {{ i: 1 i: {n} i: {n} i: 1 }}");
        let (window, strides) = (sizes(3), sizes(2));
        let attrs = [
            ("T", F),
            ("ksize", &*window),
            ("strides", &strides),
            ("padding", "s: 'SAME'"),
        ];
        node(name, op, inputs, &attrs)
    };
    let feeds = ["x", "s", "o", "m", "v", "side", "g"];
    let mut nodes: Vec<String> = feeds
        .iter()
        .map(|name| {
            node(
                name,
                "Placeholder",
                &[],
                &[("dtype", F), ("shape", "shape { unknown_rank: true }")],
            )
        })
        .collect();
    // Shapes are known behind EnsureShape.
    let image = "shape { dim { size: 2 } dim { size: 6 } dim { size: 5 } dim { size: 8 } }";
    for name in ["x", "side", "g"] {
        nodes.push(node(
            &format!("{name}_"),
            "EnsureShape",
            &[name],
            &[("T", F), ("shape", image)],
        ));
    }
    nodes.extend([
        norm("n", &["x_", "s", "o", "m", "v"]),
        float("r", "Relu", &["n"]),
        float("rg", "ReluGrad", &["g_", "r"]),
        gradient("ng", &["rg", "x_", "s", "n:3", "n:4", "n:5"]),
        norm("n2", &["r", "s", "o", "m", "v"]),
        float("sum", "AddV2", &["side_", "n2"]),
        float("r2", "Relu", &["sum"]),
        float("both", "AddN", &["r2", "g_", "side_"])
            .replace("AddN' ", "AddN' attr { key: 'N' value { i: 3 } } "),
        float("r2g", "ReluGrad", &["both", "r2"]),
        pool("p", "MaxPool", &["r2g"]),
        pool("pg", "MaxPoolGrad", &["r2g", "p", "p"]),
    ]);
    let graph = nodes.join("\n");
    for (precision, tol) in [(None, 1e-5), (Some(DType::Bfloat16), 5e-2)] {
        let gpu = match gpu(precision) {
            Ok(gpu) => gpu,
            Err(e) => return println!("skipped: {e}"),
        };
        let own = session(&graph, &gpu).unwrap();
        let cpu = Session::from_text(&graph, SessionOptions::default()).unwrap();
        for n in 0..3 {
            let images =
                ["x:0", "side:0", "g:0"].map(|name| (name, numbers(&[2, 6, 5, 8], n + name.len())));
            let vectors = ["s:0", "o:0", "m:0", "v:0"].map(|name| (name, numbers(&[8], n)));
            let feeds: Vec<(&str, Tensor)> = images.into_iter().chain(vectors).collect();
            let mut fetches = vec!["r:0", "ng:0", "ng:1", "ng:2", "n:1", "n:4", "r2:0", "r2g:0"];
            if precision.is_none() {
                fetches.push("pg:0");
            }
            let got = own.run(&feeds, &fetches, &[]).unwrap();
            let expected = cpu.run(&feeds, &fetches, &[]).unwrap();
            for ((got, expected), name) in got.iter().zip(&expected).zip(&fetches) {
                assert!(
                    is_near(got, expected, tol),
                    "{name}: {got} instead of {expected}"
                );
            }
        }
    }
}

#[test]
fn replayed_training_does_what_single_launches_do() {
    if is_interpreted() {
        return println!("skipped: no cuBLASLt");
    }
    let opened = |capture| {
        let options = StreamDeviceOptions {
            capture,
            memory_limit: Some(1 << 30),
            ..Default::default()
        };
        open(&options)
    };
    set_tf32(false);
    let (captured, single) = match (opened(true), opened(false)) {
        (Ok(captured), Ok(single)) => (captured, single),
        (Err(e), _) | (_, Err(e)) => return println!("skipped: {e}"),
    };
    let sessions = [captured, single].map(|gpu| session(&training_graph(), &gpu).unwrap());
    let matrix = |rows: usize, columns: usize, n: usize| numbers(&[rows, columns], n);
    let init = [
        "init_w",
        "init_slot",
        "init_mean",
        "init_last",
        "init_steps",
    ];
    let step = ["update", "move_mean", "keep", "count"];
    let state = [
        "get_w:0",
        "get_slot:0",
        "get_mean:0",
        "get_last:0",
        "get_steps:0",
    ];
    let both = |feeds: &[(&str, Tensor)], fetches: &[&str], targets: &[&str]| {
        let [a, b] = [0, 1].map(|i| sessions[i].run(feeds, fetches, targets).unwrap());
        for ((a, b), name) in a.iter().zip(&b).zip(fetches) {
            // Products may be computed in another order.
            let same = a.same_value(b) || a.dtype() == DType::Float && is_near(a, b, 1e-5);
            assert!(same, "{name}: {a} instead of {b}");
        }
        a
    };
    both(&[("start:0", matrix(4, 8, 1))], &[], &init);
    let mut kept = Vec::new();
    for n in 0..40 {
        // Another number of rows now and then; the new weights as a result, too; the old ones where the step replaces them.
        let x = matrix(if n % 7 == 6 { 3 } else { 5 }, 4, n);
        let fetches: &[&str] = match n % 5 {
            4 => &["loss:0", "new:0"],
            3 => &["loss:0", "value:0"],
            _ => &["tail:0", "loss:0", "rows:0"],
        };
        let ids: Vec<i32> = (0..6).map(|i| i % (1 + n as i32 % 4)).collect();
        let feeds = [("x:0", x), ("ids:0", Tensor::vector(&ids).unwrap())];
        let feeds = if fetches.len() == 3 {
            &feeds[..]
        } else {
            &feeds[..1]
        };
        kept.push((n, both(feeds, fetches, &step)));
        if n % 3 == 0 {
            both(&[], &state, &[]);
        }
        if n == 20 {
            // Other values than the step left, in other memory.
            both(
                &[("start:0", matrix(4, 8, 5))],
                &[],
                &["init_w", "init_slot"],
            );
        }
    }
    let replays = |i: usize| {
        sessions[i]
            .stream_devices()
            .replays()
            .map(|(n, _)| n)
            .sum::<u64>()
    };
    let refused = sessions[0].stream_devices().replays().next();
    assert!(replays(0) > 12, "{refused:?}");
    assert_eq!(replays(1), 0);
    let end = both(&[], &state, &[]);
    assert_eq!(end[4].slice::<i64>().unwrap(), [40]);
    // Results are not overwritten by later steps.
    let [.., a, b] = &kept[..] else {
        panic!("40 steps")
    };
    assert!(!a.1[0].same_value(&b.1[0]));
}
