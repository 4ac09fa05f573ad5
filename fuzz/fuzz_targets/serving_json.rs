//! Feeds arbitrary text to the readers of REST requests: `cargo +nightly fuzz run serving_json`.
#![no_main]

use ferroflow_runtime::{DType, PartialShape, SignatureTensor};
use ferroflow_serving::json::{examples_from_json, predict_from_json, tensors_to_json};
use libfuzzer_sys::fuzz_target;

fn port(key: &str, dtype: DType) -> SignatureTensor {
    SignatureTensor {
        key: key.to_string(),
        name: format!("{key}:0"),
        dtype,
        shape: PartialShape::unknown(),
    }
}

fuzz_target!(|body: &[u8]| {
    let one = [port("x", DType::Float)];
    let several = [port("b", DType::Bool), port("i", DType::Uint8), port("s_bytes", DType::String)];
    for ports in [&one[..], &several] {
        if let Ok(read) = predict_from_json(body, |_| Ok(ports)) {
            drop(tensors_to_json(&read.inputs, read.format));
        }
    }
    drop(examples_from_json(body));
});
