//! The REST API: path → JSON → [`Front`].
//!
//! Paths, status codes and messages are those of TensorFlow Serving's `http_rest_api_handler.cc`.

use crate::front::{Entry, Front};
use crate::inference::model_spec as served_by;
use crate::json::{
    classifications_to_json, error_to_json, examples_from_json, metadata_to_json,
    predict_from_json, regressions_to_json, status_to_json, tensors_to_json,
};
use crate::step::{Step, signature_name};
use crate::trace::Traced;
use ferroflow_base::{Code, Result, Status, invalid_argument};
use ferroflow_model::proto::serving::{
    ClassificationRequest, GetModelMetadataRequest, GetModelStatusRequest, Int64Value, ModelSpec,
    PredictRequest, RegressionRequest, model_spec::VersionChoice,
};
use ferroflow_model::tensor_to_proto;
use ferroflow_runtime::Tensor;
use http::StatusCode;
use std::sync::Arc;
use tokio::runtime::{Handle, RuntimeFlavor};

/// Options of the REST API.
#[derive(Clone, Debug)]
pub struct RestOptions {
    /// Lets scripts of other origins use the API.
    pub cors: bool,
    /// Largest body, bytes.
    pub max_body: usize,
    /// The path of the metrics.
    pub metrics_path: String,
    /// How long a request may take, its body included.
    pub timeout: std::time::Duration,
}

/// A request of the API.
pub struct Request<'a> {
    /// `GET`, `POST`, …
    pub method: &'a str,
    /// The path, percent-encoded.
    pub path: &'a str,
    /// The body, without compression.
    pub body: &'a [u8],
}

/// The response to a request.
pub struct Response {
    /// The HTTP status.
    pub status: StatusCode,
    /// JSON.
    pub body: Vec<u8>,
}

/// The HTTP status of a code.
pub(crate) fn http_status(code: Code) -> StatusCode {
    let number = match code {
        Code::Cancelled => 499,
        Code::InvalidArgument | Code::FailedPrecondition | Code::OutOfRange => 400,
        Code::DeadlineExceeded => 504,
        Code::NotFound => 404,
        Code::AlreadyExists | Code::Aborted => 409,
        Code::PermissionDenied => 403,
        Code::ResourceExhausted => 429,
        Code::Unimplemented => 501,
        Code::Unavailable => 503,
        Code::Unauthenticated => 401,
        _ => 500,
    };
    StatusCode::from_u16(number).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR)
}

impl Response {
    /// The response that reports an error.
    pub(crate) fn error(error: &Status) -> Response {
        Response {
            status: http_status(error.code()),
            body: error_to_json(&ferroflow_rpc::message(error)),
        }
    }
}

/// What a path names.
#[derive(Debug, PartialEq, Eq)]
struct Target {
    spec: Spec,
    /// `classify`, `regress`, `predict`, `metadata` or nothing.
    verb: String,
}

#[derive(Debug, PartialEq, Eq, Default)]
struct Spec {
    name: String,
    version: Option<i64>,
    label: Option<String>,
}

impl Spec {
    fn to_proto(&self, signature: String) -> ModelSpec {
        let version = self
            .version
            .map(|value| VersionChoice::Version(Int64Value { value }));
        ModelSpec {
            name: self.name.clone(),
            version_choice: version.or(self.label.clone().map(VersionChoice::VersionLabel)),
            signature_name: signature,
        }
    }
}

/// Decodes `%41`; a `%` without two digits stays.
fn percent_decoded(text: &str) -> String {
    let mut out = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&byte, tail)) = rest.split_first() {
        let hex = tail
            .get(..2)
            .filter(|h| byte == b'%' && h.iter().all(u8::is_ascii_hexdigit));
        let decoded = hex.and_then(|h| u8::from_str_radix(std::str::from_utf8(h).ok()?, 16).ok());
        out.push(decoded.unwrap_or(byte));
        rest = if decoded.is_some() { &tail[2..] } else { tail };
    }
    String::from_utf8_lossy(&out).into_owned()
}

/// Removes a prefix, whatever its case.
fn without<'a>(text: &'a str, prefix: &str) -> Option<&'a str> {
    let head = text.get(..prefix.len())?;
    head.eq_ignore_ascii_case(prefix)
        .then(|| &text[prefix.len()..])
}

/// Parses `/v1/models/NAME[/versions/V|/labels/L][:VERB|/metadata]`; `None` if the path is another one.
fn target(method: &str, path: &str) -> Result<Option<Target>> {
    let Some(rest) = without(path, "/v1/models") else {
        return Ok(None);
    };
    let (rest, verb) = match method {
        "POST" => match rest.rsplit_once(':') {
            Some((rest, verb))
                if ["classify", "regress", "predict"]
                    .contains(&verb.to_ascii_lowercase().as_str()) =>
            {
                (rest, verb.to_ascii_lowercase())
            }
            _ => return Ok(None),
        },
        "GET" => match rest.len().checked_sub("/metadata".len()) {
            Some(at)
                if rest
                    .get(at..)
                    .is_some_and(|t| t.eq_ignore_ascii_case("/metadata")) =>
            {
                (&rest[..at], "metadata".to_string())
            }
            _ => (rest, String::new()),
        },
        _ => return Ok(None),
    };
    if rest.is_empty() && method == "GET" {
        let spec = Spec::default();
        return Ok(Some(Target { spec, verb }));
    }
    let Some(rest) = rest.strip_prefix('/') else {
        return Ok(None);
    };
    let parts: Vec<&str> = rest.split('/').collect();
    let is_name = |part: &str| !part.is_empty() && !part.contains(':');
    let mut spec = Spec::default();
    match parts[..] {
        [name] if is_name(name) => spec.name = percent_decoded(name),
        [name, kind, version]
            if is_name(name)
                && kind.eq_ignore_ascii_case("versions")
                && !version.is_empty()
                && version.bytes().all(|b| b.is_ascii_digit()) =>
        {
            spec.name = percent_decoded(name);
            spec.version = Some(version.parse().map_err(|_| {
                invalid_argument!("Failed to convert version: {version} to numeric.")
            })?);
        }
        [name, kind, label]
            if is_name(name) && kind.eq_ignore_ascii_case("labels") && is_name(label) =>
        {
            spec.name = percent_decoded(name);
            spec.label = Some(percent_decoded(label));
        }
        _ => return Ok(None),
    }
    Ok(Some(Target { spec, verb }))
}

impl Front {
    /// Answers a request of the REST API.
    pub async fn rest(self: &Arc<Self>, request: Request<'_>) -> Response {
        match self.rest_body(&request).await {
            Ok(body) => Response {
                status: StatusCode::OK,
                body,
            },
            Err(e) => Response::error(&e),
        }
    }

    async fn rest_body(self: &Arc<Self>, request: &Request<'_>) -> Result<Vec<u8>> {
        let Some(Target { spec, verb }) = target(request.method, request.path)? else {
            return Err(invalid_argument!(
                "Malformed request: {} {}",
                request.method,
                request.path
            ));
        };
        if let Some(span) = Traced::current() {
            let mark = if request.method == "POST" { ":" } else { "/" };
            let mark = if verb.is_empty() { "" } else { mark };
            span.rename(format!(
                "{} /v1/models/{{model}}{mark}{verb}",
                request.method
            ));
        }
        match verb.as_str() {
            "predict" => self.rest_predict(&spec, request.body).await,
            "classify" => {
                let parsed = examples_from_json(request.body);
                let (signature, input) = self.parsed(&spec, "Classify", parsed).await?;
                let request = ClassificationRequest {
                    model_spec: Some(spec.to_proto(signature)),
                    input: Some(input),
                };
                let response = self.classify(request, Entry::Rest).await?;
                classifications_to_json(&response.result.unwrap_or_default())
            }
            "regress" => {
                let parsed = examples_from_json(request.body);
                let (signature, input) = self.parsed(&spec, "Regress", parsed).await?;
                let request = RegressionRequest {
                    model_spec: Some(spec.to_proto(signature)),
                    input: Some(input),
                };
                let response = self.regress(request, Entry::Rest).await?;
                regressions_to_json(&response.result.unwrap_or_default())
            }
            _ if spec.name.is_empty() => Err(invalid_argument!("Missing model name in request.")),
            "metadata" => {
                let response = self.metadata(&GetModelMetadataRequest {
                    model_spec: Some(spec.to_proto(String::new())),
                    metadata_field: vec!["signature_def".to_string()],
                })?;
                metadata_to_json(&response)
            }
            _ => {
                let response = self.status(&GetModelStatusRequest {
                    model_spec: Some(spec.to_proto(String::new())),
                })?;
                Ok(status_to_json(&response))
            }
        }
    }

    /// Counts a request whose body is malformed.
    async fn parsed<R>(&self, spec: &Spec, api: &str, parsed: Result<R>) -> Result<R> {
        match parsed {
            Ok(parsed) => Ok(parsed),
            Err(e) => {
                let proto = spec.to_proto(String::new());
                let failed = async { Err::<R, _>(e) };
                self.counted(Some(&proto), api, Entry::Rest, failed).await
            }
        }
    }

    async fn rest_predict(self: &Arc<Self>, spec: &Spec, body: &[u8]) -> Result<Vec<u8>> {
        let proto = spec.to_proto(String::new());
        let answered = async {
            // A request for an unknown model is reported as malformed first, as in TensorFlow Serving.
            let servable = self.manager.find(Some(&proto));
            let ports = |name: &str| {
                let servable = servable.as_ref().map_err(Clone::clone)?;
                let name = signature_name(name);
                let program = servable.program(name).ok_or_else(|| {
                    invalid_argument!(
                        "Serving signature name: \"{name}\" not found in signature def"
                    )
                })?;
                Ok(&program.ports.inputs[..])
            };
            let parsed = aside(body.len(), || predict_from_json(body, ports))?;
            let servable = servable.clone()?;
            let given: Vec<&str> = parsed.inputs.iter().map(|(k, _)| k.as_str()).collect();
            let find = |key: &str| {
                let mut inputs = parsed.inputs.iter();
                inputs.find(|(k, _)| k == key).map(|(_, t)| t)
            };
            let step = Step::predict(servable.clone(), &parsed.signature, &given, find, &[])?;
            let (keys, signature) = (step.keys(), step.signature.clone());
            let outputs: Vec<(String, Tensor)> =
                keys.into_iter().zip(self.run(step).await?).collect();
            if self.logs.samples(servable.name()) {
                let inputs = parsed.inputs.iter();
                let inputs =
                    inputs.filter_map(|(k, t)| Some((k.clone(), tensor_to_proto(t).ok()?)));
                let request = PredictRequest {
                    model_spec: Some(spec.to_proto(signature.clone())),
                    inputs: inputs.collect(),
                    output_filter: Vec::new(),
                };
                self.logs.predict(
                    &servable,
                    request,
                    &served_by(&servable, &signature),
                    &outputs,
                );
            }
            let bytes = outputs.iter().map(|(_, t)| t.byte_len()).sum();
            aside(bytes, || tensors_to_json(&outputs, parsed.format))
        };
        self.counted(Some(&proto), "Predict", Entry::Rest, answered)
            .await
    }
}

/// Reading or writing this many bytes of JSON takes long enough to let others use the connections' threads.
const LONG: usize = 1 << 16;

/// Runs `f`, which handles a number of bytes, while other tasks leave this thread if they are many.
fn aside<R>(bytes: usize, f: impl FnOnce() -> R) -> R {
    let has_others = || Handle::current().runtime_flavor() == RuntimeFlavor::MultiThread;
    match bytes >= LONG && has_others() {
        true => tokio::task::block_in_place(f),
        false => f(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(method: &str, path: &str, expected: Option<(&str, Option<i64>, Option<&str>, &str)>) {
        let found = target(method, path).unwrap();
        let expected = expected.map(|(name, version, label, verb)| Target {
            spec: Spec {
                name: name.to_string(),
                version,
                label: label.map(ToString::to_string),
            },
            verb: verb.to_string(),
        });
        assert_eq!(found, expected, "{method} {path}");
    }

    #[test]
    fn paths() {
        check(
            "POST",
            "/v1/models/m:predict",
            Some(("m", None, None, "predict")),
        );
        check(
            "POST",
            "/V1/Models/m/versions/7:Regress",
            Some(("m", Some(7), None, "regress")),
        );
        check(
            "POST",
            "/v1/models/m/labels/a%20b:classify",
            Some(("m", None, Some("a b"), "classify")),
        );
        check(
            "POST",
            "/v1/models/a%2Fb:predict",
            Some(("a/b", None, None, "predict")),
        );
        check("POST", "/v1/models/m", None);
        check("POST", "/v1/models/m:explain", None);
        check("POST", "/v1/models/m/versions/x:predict", None);
        check("GET", "/v1/models/m", Some(("m", None, None, "")));
        check("GET", "/v1/models", Some(("", None, None, "")));
        check(
            "GET",
            "/v1/models/m/metadata",
            Some(("m", None, None, "metadata")),
        );
        check(
            "GET",
            "/v1/models/m/versions/1/metadata",
            Some(("m", Some(1), None, "metadata")),
        );
        check("GET", "/v1/models/m:predict", None);
        check("GET", "/v2/models/m", None);
        check("DELETE", "/v1/models/m", None);
        assert!(target("GET", "/v1/models/m/versions/99999999999999999999").is_err());
    }
}
