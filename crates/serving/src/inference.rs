//! Classification, regression and several of them in one request, over examples.
//!
//! The rules and messages are those of TensorFlow Serving's `classifier.cc`, `regressor.cc` and `multi_inference.cc`.

use crate::servable::Servable;
use crate::step::{Step, joined, signature_name};
use bytes::Bytes;
use ferroflow_base::{Result, Status, invalid_argument, unimplemented_error};
use ferroflow_model::proto::serving::{
    Class, ClassificationResult, Classifications, InferenceResult, Input, Int64Value, ModelSpec,
    MultiInferenceRequest, MultiInferenceResponse, Regression, RegressionResult,
    inference_result::Result as Outcome, input::Kind, model_spec::VersionChoice,
};
use ferroflow_runtime::{DType, ModelSignature, Tensor};
use std::sync::Arc;

const CLASSIFY: &str = "tensorflow/serving/classify";
const REGRESS: &str = "tensorflow/serving/regress";
const INPUTS: &str = "inputs";
const OUTPUTS: &str = "outputs";
const CLASSES: &str = "classes";
const SCORES: &str = "scores";

/// Runs a step: on this thread, or merged with others.
pub type Run<'a> = &'a mut dyn FnMut(Step) -> Result<Vec<Tensor>>;

/// The version, signature and model that answered.
pub fn model_spec(servable: &Servable, signature: &str) -> ModelSpec {
    let version = Int64Value {
        value: servable.version(),
    };
    ModelSpec {
        name: servable.name().to_string(),
        version_choice: Some(VersionChoice::Version(version)),
        signature_name: signature_name(signature).to_string(),
    }
}

/// The number of examples of a request.
pub fn num_examples(input: &Input) -> usize {
    match &input.kind {
        Some(Kind::ExampleList(list)) => list.examples.len(),
        Some(Kind::ExampleListWithContext(list)) => list.examples.len(),
        None => 0,
    }
}

/// The examples of a request, encoded; the context is part of each.
fn examples(input: &Input) -> Result<Tensor> {
    let examples: Vec<Bytes> = match &input.kind {
        Some(Kind::ExampleList(list)) => list.examples.clone(),
        Some(Kind::ExampleListWithContext(list)) => {
            let merged = list
                .examples
                .iter()
                .map(|e| [&list.context[..], e].concat().into());
            merged.collect()
        }
        None => Vec::new(),
    };
    if examples.is_empty() {
        return Err(invalid_argument!("Input is empty."));
    }
    Tensor::from_strings([examples.len()], examples)
}

/// Returns the step of a signature whose only input is `inputs`, with the positions of its outputs.
fn step(
    servable: &Arc<Servable>,
    signature: &str,
    input: &Input,
    outputs: Vec<usize>,
) -> Result<Step> {
    Ok(Step {
        servable: servable.clone(),
        signature: signature.to_string(),
        args: vec![examples(input)?],
        outputs,
    })
}

fn ports<'a>(servable: &'a Servable, signature: &str) -> Result<&'a ModelSignature> {
    let program = servable.program(signature);
    program
        .map(|p| &p.ports)
        .ok_or_else(|| invalid_argument!("No signature was found with the name: {signature}"))
}

/// The signature in TensorFlow's messages.
fn described(ports: &ModelSignature) -> String {
    let inputs = joined(ports.inputs.iter().map(|p| p.key.as_str()));
    let outputs = joined(ports.outputs.iter().map(|p| p.key.as_str()));
    format!(
        "inputs {{{inputs}}} outputs {{{outputs}}} method_name: \"{}\"",
        ports.method_name
    )
}

fn check_input(ports: &ModelSignature, what: &str) -> Result<()> {
    if ports.inputs.len() != 1 {
        return Err(invalid_argument!("Expected one input Tensor."));
    }
    let input = ports.input(INPUTS).ok_or_else(|| {
        invalid_argument!(
            "No {what} inputs found in SignatureDef: {}",
            described(ports)
        )
    })?;
    if input.dtype != DType::String {
        return Err(invalid_argument!(
            "Expects arg[0] to be {} but string is provided",
            input.dtype
        ));
    }
    Ok(())
}

/// The positions of the outputs `classes` and `scores`.
fn class_outputs(ports: &ModelSignature) -> Result<(Option<usize>, Option<usize>)> {
    check_input(ports, "classification")?;
    let n = ports.outputs.len();
    if n != 1 && n != 2 {
        return Err(invalid_argument!(
            "Expected one or two output Tensors, found {n}"
        ));
    }
    let find = |key: &str| ports.outputs.iter().position(|o| o.key == key);
    match (find(CLASSES), find(SCORES)) {
        (None, None) => Err(invalid_argument!(
            "Expected classification signature outputs to contain at least one of \"{CLASSES}\" or \
             \"{SCORES}\". Signature was: {}",
            described(ports)
        )),
        found => Ok(found),
    }
}

fn check_matrix(t: &Tensor, what: &str, dtype: DType, name: &str, n: usize) -> Result<usize> {
    let &[rows, columns] = t.shape().dims() else {
        return Err(invalid_argument!(
            "Expected Tensor shape: [batch_size num_classes] but got {}",
            t.shape()
        ));
    };
    if t.dtype() != dtype {
        return Err(invalid_argument!(
            "Expected {what} Tensor of {name}. Got: DT_{}",
            t.dtype().name().to_uppercase()
        ));
    }
    if rows != n {
        return Err(invalid_argument!(
            "Expected {what} output batch size of {n}. Got: {rows}"
        ));
    }
    Ok(columns)
}

/// Classifies examples.
///
/// # Errors
/// INVALID_ARGUMENT if the signature does not classify or the input is empty; those of the step.
pub fn classify(
    servable: &Arc<Servable>,
    signature: &str,
    input: &Input,
    run: Run<'_>,
) -> Result<ClassificationResult> {
    let signature = signature_name(signature);
    let (classes, scores) = class_outputs(ports(servable, signature)?)?;
    let fetched: Vec<usize> = classes.into_iter().chain(scores).collect();
    let results = run(step(servable, signature, input, fetched)?)?;
    let mut results = results.iter();
    let classes = classes.and_then(|_| results.next());
    let scores = scores.and_then(|_| results.next());
    let n = num_examples(input);
    let mut columns = None;
    if let Some(classes) = classes {
        columns = Some(check_matrix(
            classes,
            "classes",
            DType::String,
            "DT_STRING",
            n,
        )?);
    }
    if let Some(scores) = scores {
        let other = check_matrix(scores, "scores", DType::Float, "DT_FLOAT", n)?;
        if let Some(columns) = columns.filter(|c| *c != other) {
            return Err(invalid_argument!(
                "Tensors class and score should match in dim_size(1). Got {columns} vs. {other}"
            ));
        }
        columns = Some(other);
    }
    let columns = columns.unwrap_or(0);
    let classes = classes.map(|t| t.strings()).transpose()?;
    let scores = scores.map(|t| t.slice::<f32>()).transpose()?;
    let class = |i: usize| {
        let label = classes.and_then(|c| c.get(i));
        Class {
            label: label.map_or(String::new(), |l| String::from_utf8_lossy(l).into_owned()),
            score: scores.and_then(|s| s.get(i)).copied().unwrap_or(0.0),
        }
    };
    let row = |r: usize| Classifications {
        classes: (r * columns..(r + 1) * columns).map(class).collect(),
    };
    Ok(ClassificationResult {
        classifications: (0..n).map(row).collect(),
    })
}

/// The position of the output `outputs`.
fn value_output(ports: &ModelSignature) -> Result<usize> {
    check_input(ports, "regression")?;
    if ports.outputs.len() != 1 {
        return Err(invalid_argument!("Expected one output Tensor."));
    }
    let output = ports.outputs.iter().position(|o| o.key == OUTPUTS);
    output.ok_or_else(|| {
        invalid_argument!(
            "No regression outputs found in SignatureDef: {}",
            described(ports)
        )
    })
}

/// Computes a value for each example.
///
/// # Errors
/// INVALID_ARGUMENT if the signature has no values or the input is empty; those of the step.
pub fn regress(
    servable: &Arc<Servable>,
    signature: &str,
    input: &Input,
    run: Run<'_>,
) -> Result<RegressionResult> {
    let signature = signature_name(signature);
    let output = value_output(ports(servable, signature)?)?;
    let results = run(step(servable, signature, input, vec![output])?)?;
    let n = num_examples(input);
    let Some(values) = results.first() else {
        return Err(invalid_argument!(
            "Could not find output tensor '{OUTPUTS}'"
        ));
    };
    let dims = values.shape().dims();
    if !matches!(dims, [_] | [_, 1]) {
        return Err(invalid_argument!(
            "Expected output Tensor shape to be either [batch_size] or [batch_size, 1] but got {}",
            values.shape()
        ));
    }
    if dims[0] != n {
        return Err(invalid_argument!(
            "Input batch size did not match output batch size: {n} vs. {}",
            dims[0]
        ));
    }
    if values.dtype() != DType::Float {
        return Err(invalid_argument!(
            "Expected output Tensor of DT_FLOAT.  Got: DT_{}",
            values.dtype().name().to_uppercase()
        ));
    }
    let values = values.slice::<f32>()?.iter();
    Ok(RegressionResult {
        regressions: values.map(|&value| Regression { value }).collect(),
    })
}

/// Runs several signatures on the same examples.
///
/// # Errors
/// INVALID_ARGUMENT if the tasks name several models, or a signature twice; UNIMPLEMENTED for other methods than
/// classification and regression; those of [`classify`] and [`regress`].
pub fn multi_inference(
    servable: &Arc<Servable>,
    request: &MultiInferenceRequest,
    run: Run<'_>,
) -> Result<MultiInferenceResponse> {
    let mut seen: Vec<&str> = Vec::new();
    let empty = ModelSpec::default();
    let specs = request
        .tasks
        .iter()
        .map(|t| t.model_spec.as_ref().unwrap_or(&empty));
    let specs: Vec<&ModelSpec> = specs.collect();
    for (task, spec) in request.tasks.iter().zip(&specs) {
        if spec.name.is_empty() {
            return Err(invalid_argument!(
                "Found ModelSpec with an empty model name."
            ));
        }
        if spec.name != specs[0].name {
            return Err(invalid_argument!(
                "All ModelSpecs in a MultiInferenceRequest must access the same model name."
            ));
        }
        let signature = signature_name(&spec.signature_name);
        if seen.contains(&signature) {
            return Err(invalid_argument!(
                "Duplicate evaluation of signature: {signature}"
            ));
        }
        seen.push(signature);
        let program = servable.program(signature).ok_or_else(|| {
            invalid_argument!("Requested signature not found in model graph: {signature}")
        })?;
        match task.method_name.as_str() {
            CLASSIFY => drop(class_outputs(&program.ports)?),
            REGRESS => drop(value_output(&program.ports)?),
            other => return Err(unsupported(other)),
        }
    }
    let input = request.input.clone().unwrap_or_default();
    let mut results = Vec::new();
    for (task, spec) in request.tasks.iter().zip(specs) {
        let signature = &spec.signature_name;
        let result = match task.method_name.as_str() {
            CLASSIFY => Outcome::ClassificationResult(classify(servable, signature, &input, run)?),
            REGRESS => Outcome::RegressionResult(regress(servable, signature, &input, run)?),
            other => return Err(unsupported(other)),
        };
        results.push(InferenceResult {
            model_spec: Some(model_spec(servable, signature)),
            result: Some(result),
        });
    }
    Ok(MultiInferenceResponse { results })
}

#[cold]
fn unsupported(method: &str) -> Status {
    unimplemented_error!("Unsupported signature method_name: {method}")
}
