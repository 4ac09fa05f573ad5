//! Feeds arbitrary bytes to the decoders of images, sound, messages and text: `cargo +nightly fuzz run decoders`. The first
//! byte says which.
#![no_main]

#[path = "../../crates/ops/tests/decoding/mod.rs"]
mod decoding;

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    if let [which, bytes @ ..] = data {
        decoding::decode(usize::from(*which) % decoding::count(), bytes);
    }
});
