//! Opens arbitrary bytes as a BEF file, checks every function, prints it, links it with the
//! kernels, and runs it if it is a compiled model: the result is an error or a program, never a
//! crash or a hang. Seeds are `crates/runtime/tests/host/*.mlir` after `translate`, and
//! `examples/digits/digits.pb` after `compile`.

#![no_main]

use ferroflow_runtime::host::{Program, bef, host_registry, mlir};
use ferroflow_runtime::{CompiledModel, RunOptions, SessionOptions, Tensor};
use libfuzzer_sys::fuzz_target;
use std::sync::Arc;
use std::time::Duration;

fuzz_target!(|bytes: &[u8]| {
    let Ok(file) = bef::File::open(Arc::new(bytes.to_vec())) else {
        return;
    };
    let is_valid = file.verify().is_ok();
    let is_model = file.functions().iter().any(|f| f.kind == bef::FunctionKind::Dataflow);
    if let Ok((module, _)) = bef::to_mlir(&file) {
        let text = mlir::print(&module, Default::default());
        let _ = mlir::parse(&text, "fuzz.mlir", 0);
        // A valid file can be written again.
        if is_valid && !is_model {
            let _ = bef::write(&module, true);
        }
    }
    let _ = Program::new(file, &host_registry());
    if is_model {
        run(bytes);
    }
});

/// Runs a compiled model with tensors of zeros.
fn run(bytes: &[u8]) {
    let options = SessionOptions {
        threads: 1,
        ..Default::default()
    };
    let Ok(model) = CompiledModel::from_bytes(bytes, options) else {
        return;
    };
    let inputs = &model.ports().inputs;
    let feeds: Vec<(&str, Tensor)> = inputs
        .iter()
        .filter_map(|port| {
            let dims: Vec<usize> = port.shape.dims()?.iter().map(|d| d.unwrap_or(1)).collect();
            let n = dims.iter().try_fold(1usize, |n, d| n.checked_mul(*d));
            n.filter(|n| *n <= 1 << 20)?;
            Some((&*port.key, Tensor::zeros(port.dtype, dims[..].into()).ok()?))
        })
        .collect();
    let run = RunOptions {
        timeout: Some(Duration::from_secs(5)),
        ..Default::default()
    };
    let _ = model.run_with(&feeds, &run);
}
