//! Runs the rows of `crates/ops/rows` that GPU kernels are for on a GPU, and compares with what TensorFlow computed.
//!
//! Without a GPU, an interpreter runs the kernels (`crates/ptx`), but those of cuBLASLt and cuDNN. `ROWS=family[:Op]` runs a
//! part of the rows.

use ferroflow_device::cuda::Cuda;
use ferroflow_device::{AllocatorOptions, Device, StreamMemory};
use ferroflow_gpu::DEVICE_TYPE;
use ferroflow_opdef::{KernelBuild, KernelCtx, NodeInfo, Resources, StepServices, Value};
use ferroflow_ops::registry;
use ferroflow_sync::{CancelToken, Inline};
use ferroflow_tensor::{DType, Tensor};
use ferroflow_testkit::driver::stand_in_driver;
use ferroflow_testkit::{rows, tensors};
use std::path::Path;
use std::sync::{Arc, mpsc};

type Res<T> = Result<T, String>;

fn text(e: impl std::fmt::Display) -> String {
    e.to_string()
}

/// Where the inputs are.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Inputs {
    /// Floats on the device, others with the host.
    Values,
    /// All are constants.
    Constants,
    /// All on the device, as where a node before computed them.
    OnDevice,
}

/// Runs the kernel of a row.
fn compute(row: &rows::Row, memory: &Arc<StreamMemory>, inputs: Inputs) -> Res<Vec<Tensor>> {
    let constant = inputs == Inputs::Constants;
    let is_placed = |t: &Tensor| match inputs {
        Inputs::OnDevice => t.dtype().is_plain(),
        _ => t.dtype().is_floating(),
    };
    let def = registry().def(&row.op).map_err(text)?.ok_or("no such op")?;
    let mut attrs = row.attrs.clone();
    def.complete_attrs(&mut attrs).map_err(text)?;
    let dtypes: Vec<DType> = row.inputs.iter().map(Tensor::dtype).collect();
    let out_dtypes = def.output_dtypes(&attrs).map_err(text)?;
    let constants: Vec<_> = match constant {
        true => row.inputs.iter().cloned().map(|t| Some(t.into())).collect(),
        false => Vec::new(),
    };
    let build = KernelBuild {
        node: "op",
        device: "/job:test/replica:0/task:0/device:GPU:0",
        def: &def,
        attrs: &attrs,
        inputs: &dtypes,
        outputs: &out_dtypes,
        constants: &constants,
    };
    let info = NodeInfo {
        name: "op".into(),
        op: row.op.clone(),
    };
    let (cancel, resources) = (CancelToken::new(), Resources::default());
    let services = StepServices {
        par: &Inline,
        cancel: &cancel,
        resources: &resources,
        functions: &(),
        step_id: 0,
    };
    let run = || -> ferroflow_base::Result<Vec<Tensor>> {
        let kernel = registry().build_kernel(&build)?;
        let value = |(i, t): (usize, &Tensor)| match constant && kernel.prepacks_input(i) {
            true => Ok(Value::Empty),
            false if is_placed(t) => memory.upload(t).map(Value::Tensor),
            false => Ok(Value::Tensor(t.clone())),
        };
        let inputs = row.inputs.iter().enumerate().map(value);
        let mut inputs: Vec<Value> = inputs.collect::<ferroflow_base::Result<_>>()?;
        let mut outputs = vec![Value::Empty; out_dtypes.len()];
        let mut ctx = KernelCtx::new(&info, &mut inputs, &[], &mut outputs, &services);
        kernel.compute(&mut ctx)?;
        let tensor = |o: Value| o.into_tensor().expect("every output is set");
        Ok(outputs.into_iter().map(tensor).collect())
    };
    let outputs = memory
        .enqueuing("node", "op", run)
        .map_err(|e| format!("{} {e}", e.code() as i64))?;
    outputs.into_iter().map(|t| to_host(memory, t)).collect()
}

fn to_host(memory: &Arc<StreamMemory>, tensor: Tensor) -> Res<Tensor> {
    let (send, receive) = mpsc::channel();
    memory.to_host(tensor, move |t| drop(send.send(t)));
    receive.recv().map_err(text)?.map_err(text)
}

fn check(row: &rows::Row, memory: &Arc<StreamMemory>, inputs: Inputs) -> Res<()> {
    let is_error = matches!(row.expect, rows::Expect::Error { .. });
    if inputs == Inputs::OnDevice && is_error {
        // What is on the device is not checked.
        return Ok(());
    }
    match (&row.expect, compute(row, memory, inputs)) {
        (rows::Expect::Error { code, .. }, Err(e)) if e.starts_with(&format!("{code} ")) => Ok(()),
        (rows::Expect::Error { contains, .. }, got) => {
            Err(format!("expected {contains}, got {got:?}"))
        }
        (rows::Expect::Outputs(_), Err(e)) => Err(format!("unexpected error {e}")),
        (rows::Expect::Outputs(expected), Ok(got)) => {
            for (i, (e, g)) in expected.iter().zip(&got).enumerate() {
                // GPUs add up in another order, with functions of their own.
                let tol = match e.dtype() {
                    DType::Half => row.tol.max(2e-3),
                    DType::Bfloat16 => row.tol.max(1.6e-2),
                    _ => row.tol.max(4e-6),
                };
                if !row.unchecked.contains(&i) {
                    tensors::compare(e, g, tol).map_err(|m| format!("output {i}: {m}"))?;
                }
            }
            Ok(())
        }
    }
}

/// A device whose kernels an interpreter runs; `None` without a C compiler.
fn interpreted(capability: u32) -> Option<Arc<Cuda>> {
    let library = stand_in_driver()?;
    ferroflow_ptx::attach(&library, capability).expect("the stand-in");
    let cuda = Cuda::open(&library.display().to_string()).expect("all functions");
    std::fs::remove_file(library).expect("just written");
    Some(cuda)
}

/// Whether an error is that of a library that is not there.
fn is_missing_library(error: &str) -> bool {
    error.contains("where the dynamic loader finds it")
}

#[test]
fn rows_on_a_gpu() {
    ferroflow_gpu::register(registry()).expect("all ops exist");
    let Some(cuda) = Cuda::new().ok().or_else(|| interpreted(80)) else {
        return;
    };
    let device = Device::new(cuda, 0).expect("a GPU");
    let options = AllocatorOptions {
        memory_limit: Some(2 << 30),
        ..Default::default()
    };
    let memory = Arc::new(StreamMemory::new(&device, &options).expect("memory"));
    ferroflow_gpu::set_tf32(false);
    let filter = std::env::var("ROWS").unwrap_or_default();
    let (family, only_op) = filter.split_once(':').unwrap_or((&filter, ""));
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../ops/rows");
    let (mut n_passed, mut n_skipped, mut failures) = (0, 0, Vec::new());
    for entry in std::fs::read_dir(folder).expect("rows") {
        let path = entry.expect("readable").path();
        let stem = path
            .file_stem()
            .expect("a name")
            .to_string_lossy()
            .to_string();
        let is_rows = path.extension().is_some_and(|e| e == "jsonl");
        if !is_rows || !(family.is_empty() || stem == family) {
            continue;
        }
        let lines = std::fs::read_to_string(&path).expect("readable rows");
        for (i, line) in lines
            .lines()
            .enumerate()
            .filter(|(_, l)| l.starts_with('{'))
        {
            let row = rows::parse_row(line).unwrap_or_else(|e| panic!("{stem}:{}: {e}", i + 1));
            let mut attrs = row.attrs.clone();
            let def = registry().def(&row.op).expect("signatures parse");
            let known = def.is_some_and(|def| def.complete_attrs(&mut attrs).is_ok());
            if !known
                || !registry().has_kernel_on(DEVICE_TYPE, &row.op, &attrs)
                || !(only_op.is_empty() || row.op == only_op)
            {
                continue;
            }
            for inputs in [Inputs::Values, Inputs::Constants, Inputs::OnDevice] {
                match check(&row, &memory, inputs) {
                    Ok(()) => n_passed += 1,
                    Err(e) if is_missing_library(&e) => n_skipped += 1,
                    Err(e) => {
                        failures.push(format!("{stem}:{} {} {inputs:?}: {e:.400}", i + 1, row.op))
                    }
                }
            }
        }
    }
    println!(
        "{n_passed} rows passed, {} failed, {n_skipped} skipped without cuBLASLt or cuDNN",
        failures.len()
    );
    assert!(
        n_passed + failures.len() > 0,
        "ROWS={filter} matches no row"
    );
    let shown = failures[..failures.len().min(200)].join("\n");
    assert!(
        failures.is_empty(),
        "{} rows fail:\n{shown}",
        failures.len()
    );
}
