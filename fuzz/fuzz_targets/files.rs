//! Reads arbitrary bytes as a file: `cargo +nightly fuzz run files`. The first byte says of which kind.
#![no_main]

#[path = "../../crates/model/tests/reading/mod.rs"]
mod reading;

use ferroflow_runtime::host::mlir;
use libfuzzer_sys::fuzz_target;
use std::path::PathBuf;

thread_local! {
    static FOLDER: PathBuf = {
        let folder = std::env::temp_dir().join(format!("ferroflow-fuzz-{}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("a folder");
        folder
    };
}

fuzz_target!(|data: &[u8]| {
    if let [which, bytes @ ..] = data {
        match usize::from(*which) % (reading::count() + 1) {
            0 => {
                let text = String::from_utf8_lossy(bytes);
                let _ = mlir::parse(&text, "fuzz.mlir", 0);
            }
            kind => {
                FOLDER.with(|folder| reading::read(kind - 1, folder, bytes));
            }
        }
    }
});
