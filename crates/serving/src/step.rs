//! [`Step`]: a request that was checked against a signature and is ready to run.
//!
//! The rules and messages are those of TensorFlow Serving's `predict_util.cc` and of `GetInputValues`.

use crate::servable::Servable;
use ferroflow_base::{Result, failed_precondition, internal, invalid_argument, ordered_set};
use ferroflow_model::proto::TensorProto;
use ferroflow_model::tensor_from_proto;
use ferroflow_runtime::{DEFAULT_SIGNATURE, RunOptions, SignatureTensor, Tensor};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

/// A request that is ready to run.
pub struct Step {
    /// The version that runs it.
    pub servable: Arc<Servable>,
    /// The name of the signature.
    pub signature: String,
    /// The inputs, in the signature's order.
    pub args: Vec<Tensor>,
    /// The positions of the outputs that are fetched; all if empty.
    pub outputs: Vec<usize>,
}

/// An input as a client sent it.
pub trait Given {
    /// The tensor.
    ///
    /// # Errors
    /// INVALID_ARGUMENT if it is malformed.
    fn tensor(&self) -> Result<Tensor>;
}

impl Given for Tensor {
    fn tensor(&self) -> Result<Tensor> {
        Ok(self.clone())
    }
}

impl Given for TensorProto {
    fn tensor(&self) -> Result<Tensor> {
        if self.tensor_shape.as_ref().is_some_and(|s| s.unknown_rank) {
            return Err(invalid_argument!("a tensor has a shape of unknown rank"));
        }
        tensor_from_proto(self, None)?.get()
    }
}

/// Runs `f`; a panic becomes an error, so that it costs one request or version and not a thread that others need.
///
/// # Errors
/// Those of `f`; INTERNAL if it panics.
pub(crate) fn contained<R>(f: impl FnOnce() -> Result<R>) -> Result<R> {
    let ran = catch_unwind(AssertUnwindSafe(f));
    ran.unwrap_or_else(|_| Err(internal!("a thread panicked (please report this)")))
}

/// Joins keys as TensorFlow lists sets.
pub(crate) fn joined<'a>(keys: impl IntoIterator<Item = &'a str>) -> String {
    let sorted = ordered_set(keys);
    sorted.into_iter().collect::<Vec<_>>().join(",")
}

/// The name of a signature, by default `serving_default`.
pub(crate) fn signature_name(name: &str) -> &str {
    match name {
        "" => DEFAULT_SIGNATURE,
        name => name,
    }
}

impl Step {
    /// Checks the inputs and the outputs of a prediction. `find` returns an input by its key; `given` are the keys
    /// of all inputs.
    ///
    /// # Errors
    /// FAILED_PRECONDITION if the signature does not exist; INVALID_ARGUMENT if inputs are missing, unknown or
    /// malformed, or if an output is unknown or listed twice.
    pub fn predict<'a, G: Given + 'a>(
        servable: Arc<Servable>,
        signature: &str,
        given: &[&str],
        find: impl Fn(&str) -> Option<&'a G>,
        filter: &[String],
    ) -> Result<Step> {
        let signature = signature_name(signature);
        let program = servable.program(signature).ok_or_else(|| {
            failed_precondition!("Serving signature key \"{signature}\" not found.")
        })?;
        let (inputs, defaults) = (&program.ports.inputs, &program.ports.defaults);
        let n = given.len();
        if n > inputs.len() || (n < inputs.len() && defaults.is_empty()) {
            return Err(wrong_inputs(given, inputs));
        }
        let mut args = Vec::with_capacity(inputs.len());
        let mut seen = Vec::new();
        for (i, input) in inputs.iter().enumerate() {
            let key = input.key.as_str();
            let arg = match find(key) {
                Some(given) => {
                    seen.push(key);
                    let arg = given.tensor();
                    arg.map_err(|_| invalid_argument!("tensor parsing error: {key}"))?
                }
                None => defaults.get(key).cloned().ok_or_else(|| {
                    invalid_argument!(
                        "Signature input alias: {key}(feed name: {}) not found in request and no \
                         default value provided. Inputs expected to be in the request {{{}}}, or \
                         default input alias set: {}",
                        input.name,
                        joined(given.iter().copied()),
                        joined(defaults.keys().map(String::as_str))
                    )
                })?,
            };
            if arg.dtype() != input.dtype {
                return Err(invalid_argument!(
                    "Expects arg[{i}] to be {} but {} is provided",
                    input.dtype,
                    arg.dtype()
                ));
            }
            args.push(arg);
        }
        if seen.len() != n {
            return Err(invalid_argument!(
                "Inputs contains invalid name. Used request inputs: {}, request input: {}",
                joined(seen),
                joined(given.iter().copied())
            ));
        }
        let outputs = positions(&program.ports.outputs, filter)?;
        Ok(Step {
            outputs,
            signature: signature.to_string(),
            args,
            servable,
        })
    }

    /// The keys of the fetched outputs, in order.
    pub fn keys(&self) -> Vec<String> {
        let ports = self
            .servable
            .program(&self.signature)
            .map(|p| &p.ports.outputs);
        let Some(ports) = ports else {
            return Vec::new();
        };
        match &self.outputs[..] {
            [] => ports.iter().map(|p| p.key.clone()).collect(),
            some => some
                .iter()
                .filter_map(|&i| Some(ports.get(i)?.key.clone()))
                .collect(),
        }
    }

    /// Returns whether the step is expected to end too soon to be worth a switch of threads.
    pub fn is_short(&self) -> bool {
        const SHORT_INPUTS: usize = 1 << 14;
        let bytes: usize = self.args.iter().map(Tensor::byte_len).sum();
        let program = self.servable.program(&self.signature);
        bytes <= SHORT_INPUTS && program.is_some_and(|p| self.servable.is_short(&self.signature, p))
    }

    /// Runs the step.
    ///
    /// # Errors
    /// Those of the step.
    pub fn run(self, options: &RunOptions) -> Result<Vec<Tensor>> {
        self.servable
            .run(&self.signature, self.args, &self.outputs, options)
    }
}

#[cold]
fn wrong_inputs(given: &[&str], inputs: &[SignatureTensor]) -> ferroflow_base::Status {
    let keys = || inputs.iter().map(|i| i.key.as_str());
    let extra = given.iter().copied().filter(|g| keys().all(|k| k != *g));
    let missing = keys().filter(|k| !given.contains(k));
    invalid_argument!(
        "input size does not match signature: {}!={} len({{{}}}) != len({{{}}}). Sent extra: {{{}}}. \
         Missing but required: {{{}}}.",
        given.len(),
        inputs.len(),
        joined(given.iter().copied()),
        joined(keys()),
        joined(extra),
        joined(missing)
    )
}

/// The positions of the outputs that a client asks for.
fn positions(outputs: &[SignatureTensor], filter: &[String]) -> Result<Vec<usize>> {
    let mut found = Vec::with_capacity(filter.len());
    for key in filter {
        let position = outputs.iter().position(|o| o.key == *key).ok_or_else(|| {
            invalid_argument!(
                "output tensor alias not found in signature: {key} Outputs expected to be in the set \
                 {{{}}}.",
                joined(outputs.iter().map(|o| o.key.as_str()))
            )
        })?;
        if found.contains(&position) {
            return Err(invalid_argument!("duplicate output tensor alias: {key}"));
        }
        found.push(position);
    }
    Ok(found)
}
