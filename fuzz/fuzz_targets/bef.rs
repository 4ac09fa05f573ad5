//! Bytes as a BEF file: opened, every function checked, turned into text, and linked with the kernels: an error or a
//! program, never a crash or a hang. Seeds are the files that `translate` makes of
//! `crates/runtime/tests/host/*.mlir`.

#![no_main]

use ferroflow_runtime::host::{Program, bef, host_registry, mlir};
use libfuzzer_sys::fuzz_target;
use std::sync::Arc;

fuzz_target!(|bytes: &[u8]| {
    let Ok(file) = bef::File::open(Arc::new(bytes.to_vec())) else {
        return;
    };
    let is_valid = file.verify().is_ok();
    if let Ok((module, _)) = bef::to_mlir(&file) {
        let text = mlir::print(&module, Default::default());
        let _ = mlir::parse(&text, "fuzz.mlir", 0);
        // What was valid can be written again.
        if is_valid {
            let _ = bef::write(&module, true);
        }
    }
    let _ = Program::new(file, &host_registry());
});
