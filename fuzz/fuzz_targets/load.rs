//! Feeds arbitrary bytes to the loader: `cargo +nightly fuzz run load`.
#![no_main]

use ferroflow_runtime::{Session, SessionOptions};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let options = SessionOptions { threads: 1, ..Default::default() };
    let _ = Session::from_bytes(bytes.to_vec(), options.clone());
    if let Ok(text) = std::str::from_utf8(bytes) {
        let _ = Session::from_text(text, options);
    }
});
