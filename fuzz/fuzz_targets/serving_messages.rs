//! Feeds arbitrary messages to the checks of predictions and examples: `cargo +nightly fuzz run serving_messages`.
#![no_main]

use ferroflow_model::proto::serving::{ModelServerConfig, BatchingParameters, PredictRequest};
use ferroflow_runtime::Pool;
use ferroflow_serving::config::model_sources;
use ferroflow_serving::{LoadOptions, Parameters, Servable, Step};
use libfuzzer_sys::fuzz_target;
use prost::Message;
use std::sync::{Arc, OnceLock};

const GRAPH: &str = "
    node { name: 'x' op: 'Placeholder' attr { key: 'dtype' value { type: DT_FLOAT } } }
    node { name: 'y' op: 'AddV2' input: 'x' input: 'x' attr { key: 'T' value { type: DT_FLOAT } } }";

fn servable() -> Arc<Servable> {
    static SERVABLE: OnceLock<Arc<Servable>> = OnceLock::new();
    let open = || {
        let path = std::env::temp_dir().join(format!("fuzz-{}.pbtxt", std::process::id()));
        std::fs::write(&path, GRAPH).expect("a file");
        let options = LoadOptions {
            tags: vec!["serve".to_string()],
            pool: Arc::new(Pool::new(1)),
            cache: None,
        };
        Arc::new(Servable::open("m", 1, &path, &options).expect("a model"))
    };
    SERVABLE.get_or_init(open).clone()
}

fuzz_target!(|bytes: &[u8]| {
    if let Ok(request) = PredictRequest::decode(bytes) {
        let given: Vec<&str> = request.inputs.keys().map(String::as_str).collect();
        let signature = request.model_spec.as_ref().map_or("", |s| &s.signature_name);
        let find = |key: &str| request.inputs.get(key);
        if let Ok(step) = Step::predict(servable(), signature, &given, find, &request.output_filter) {
            drop(step.run(&Default::default()));
        }
    }
    if let Ok(config) = ModelServerConfig::decode(bytes) {
        drop(model_sources(config));
    }
    if let Ok(parameters) = BatchingParameters::decode(bytes) {
        drop(Parameters::from_proto(&parameters, 1));
    }
});
