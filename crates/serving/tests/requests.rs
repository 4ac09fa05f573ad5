//! Requests of both protocols, good and bad, with TensorFlow's answers: `requests.jsonl`, written by
//! `oracle/serving.py`.

use crate::support;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use ferroflow_model::proto::serving::*;
use ferroflow_model::tensor_from_proto;
use ferroflow_serving::json::{Number, Value, parse};
use ferroflow_serving::{ModelSource, VersionPolicy};
use prost::Message;
use support::{World, models, options};

fn world() -> World {
    let mut half = ModelSource::latest("half", &models().join("half"));
    half.policy = VersionPolicy::All;
    half.labels = [("stable".to_string(), 1)].into();
    World::new(options(vec![
        half,
        ModelSource::latest("many", &models().join("many")),
    ]))
}

/// Compares JSON values; decimal numbers as 32-bit ones.
fn same(a: &Value<'_>, b: &Value<'_>) -> bool {
    match (a, b) {
        (Value::Number(Number::Double(a)), Value::Number(Number::Double(b))) => {
            (*a as f32).to_bits() == (*b as f32).to_bits() || (a.is_nan() && b.is_nan())
        }
        (Value::Array(a), Value::Array(b)) => {
            a.len() == b.len() && a.iter().zip(b).all(|(a, b)| same(a, b))
        }
        (Value::Object(a), Value::Object(b)) => {
            let other = |key| b.iter().find(|(k, _)| k == key);
            a.len() == b.len()
                && a.iter()
                    .all(|(k, v)| other(k).is_some_and(|(_, o)| same(v, o)))
        }
        _ => a == b,
    }
}

fn check_rest(world: &World, row: &serde_json::Value) -> Result<(), String> {
    let text = |key: &str| row["rest"][key].as_str().unwrap();
    let (status, body) = world.json(text("method"), text("path"), text("body"));
    let expected = row["expected"].as_str().unwrap();
    let read = parse(body.as_bytes()).map_err(|e| format!("{e}: {body}"))?;
    let fits = u64::from(status) == row["rest"]["status"]
        && same(&read, &parse(expected.as_bytes()).unwrap());
    fits.then_some(())
        .ok_or_else(|| format!("{status} {body}\nexpected {expected}"))
}

/// The outputs of a prediction as comparable text.
fn tensors(response: &PredictResponse) -> Vec<String> {
    let outputs = response.outputs.iter().map(|(key, proto)| {
        let t = tensor_from_proto(proto, None).unwrap().get().unwrap();
        let values = match t.strings() {
            Ok(strings) => format!("{strings:?}"),
            Err(_) => format!("{:?}", t.bytes().unwrap()),
        };
        format!("{key} {} {} {values}", t.dtype(), t.shape())
    });
    let mut outputs: Vec<String> = outputs.collect();
    outputs.sort();
    outputs
}

fn call<Q, R>(world: &World, method: &str, request: &[u8], expected: &str) -> Result<(), String>
where
    Q: Message + Default + 'static,
    R: Message + Default + Comparable + 'static,
{
    let request = Q::decode(request).unwrap();
    let answer: R = world
        .call(method, request)
        .map_err(|e| format!("{:?} {}", e.code(), e.message()))?;
    let expected = R::decode(&STANDARD.decode(expected).unwrap()[..]).unwrap();
    match answer.text() == expected.text() {
        true => Ok(()),
        false => Err(format!("{}\nexpected {}", answer.text(), expected.text())),
    }
}

trait Comparable: std::fmt::Debug {
    fn text(&self) -> String {
        format!("{self:?}")
    }
}
impl Comparable for RegressionResponse {}
impl Comparable for ClassificationResponse {}
impl Comparable for MultiInferenceResponse {}
impl Comparable for GetModelStatusResponse {}
impl Comparable for PredictResponse {
    fn text(&self) -> String {
        format!("{:?} {:?}", self.model_spec, tensors(self))
    }
}
impl Comparable for GetModelMetadataResponse {
    fn text(&self) -> String {
        let metadata = self.metadata.iter().map(|(key, any)| {
            let map = SignatureDefMap::decode(&any.value[..]).unwrap();
            let mut signatures: Vec<String> = map
                .signature_def
                .iter()
                .map(|(name, def)| {
                    let sorted = |m: &std::collections::HashMap<_, _>| {
                        let sorted: std::collections::BTreeMap<String, _> =
                            m.clone().into_iter().collect();
                        format!("{sorted:?}")
                    };
                    format!(
                        "{name} {} {} {}",
                        sorted(&def.inputs),
                        sorted(&def.outputs),
                        def.method_name
                    )
                })
                .collect();
            signatures.sort();
            format!("{key} {} {signatures:?}", any.type_url)
        });
        format!("{:?} {:?}", self.model_spec, metadata.collect::<Vec<_>>())
    }
}

fn check_rpc(world: &World, row: &serde_json::Value) -> Result<(), String> {
    let rpc = &row["rpc"];
    let method = rpc["method"].as_str().unwrap();
    let request = STANDARD.decode(rpc["request"].as_str().unwrap()).unwrap();
    let expected = row["expected"].as_str().unwrap();
    let code = rpc["code"].as_i64().unwrap();
    let good = if code == 0 { expected } else { "" };
    let answered = match method.rsplit('/').next().unwrap() {
        "Predict" => call::<PredictRequest, PredictResponse>(world, method, &request, good),
        "Regress" => call::<RegressionRequest, RegressionResponse>(world, method, &request, good),
        "Classify" => {
            call::<ClassificationRequest, ClassificationResponse>(world, method, &request, good)
        }
        "MultiInference" => {
            call::<MultiInferenceRequest, MultiInferenceResponse>(world, method, &request, good)
        }
        "GetModelStatus" => {
            call::<GetModelStatusRequest, GetModelStatusResponse>(world, method, &request, good)
        }
        "GetModelMetadata" => {
            call::<GetModelMetadataRequest, GetModelMetadataResponse>(world, method, &request, good)
        }
        other => panic!("{other}"),
    };
    if code == 0 {
        return answered;
    }
    let failure = format!("{:?} {expected}", tonic::Code::from_i32(code as i32));
    match answered {
        Err(e) if e == failure => Ok(()),
        other => Err(format!("{other:?}\nexpected {failure}")),
    }
}

fn check(world: &World, row: &serde_json::Value) -> Result<(), String> {
    let result = match row["rest"].is_object() {
        true => check_rest(world, row),
        false => check_rpc(world, row),
    };
    result.map_err(|e| format!("{}: {e}", row["name"]))
}

#[test]
fn answers_are_tensorflows() {
    let world = world();
    let text = std::fs::read_to_string(models().with_file_name("requests.jsonl")).unwrap();
    let only = std::env::var("CASE").unwrap_or_default();
    let rows = text.lines().map(|l| serde_json::from_str(l).unwrap());
    let rows = rows.filter(|r: &serde_json::Value| r["name"].as_str().unwrap().contains(&only));
    let results: Vec<_> = rows.map(|row| check(&world, &row)).collect();
    let failures: Vec<String> = results.iter().filter_map(|r| r.clone().err()).collect();
    assert!(
        failures.is_empty(),
        "{} of {}:\n{}",
        failures.len(),
        results.len(),
        failures.join("\n\n")
    );
    assert!(!only.is_empty() || results.len() >= 60);
}
