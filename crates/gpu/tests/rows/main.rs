//! Runs the rows of `crates/ops/rows` that GPU kernels are for on a GPU, and compares with what TensorFlow computed.
//!
//! Without a GPU, an interpreter runs the kernels (`crates/ptx`), but those of cuBLASLt and cuDNN. `ROWS=family[:Op]` runs a
//! part of the rows.

mod attention;
mod functions;
mod norms;
mod place;
mod training;

use ferroflow_gpu::DEVICE_TYPE;
use ferroflow_ops::registry;
use ferroflow_tensor::DType;
use ferroflow_testkit::{rows, tensors};
use place::{Inputs, Place, alone};
use std::path::Path;

type Res<T> = Result<T, String>;

fn check(row: &rows::Row, gpu: &Place, inputs: Inputs) -> Res<()> {
    let is_error = matches!(row.expect, rows::Expect::Error { .. });
    if inputs == Inputs::OnDevice && is_error {
        // What is on the device is not checked.
        return Ok(());
    }
    let got = gpu.compute(&row.op, &row.attrs, &row.inputs, inputs);
    let got = got.map_err(|e| format!("{} {e}", e.code() as i64));
    match (&row.expect, got) {
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

#[test]
fn rows_on_a_gpu() {
    let _alone = alone(false);
    let Some(gpu) = Place::gpu(80) else {
        return;
    };
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
                match check(&row, &gpu, inputs) {
                    Ok(()) => n_passed += 1,
                    Err(e) if gpu.lacks_library(&e) => n_skipped += 1,
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
