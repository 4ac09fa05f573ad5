//! Feeds arbitrary bytes to the reader of StableHLO programs: `cargo +nightly fuzz run stablehlo`.
#![no_main]

use ferroflow_stablehlo::Module;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    if let Ok(module) = Module::read(data) {
        let _ = module.to_string();
    }
});
