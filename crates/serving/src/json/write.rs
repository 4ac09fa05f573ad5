//! The writer: TensorFlow Serving's layout, byte for byte.

use super::parse::{Number, Value};
use super::tensors::Format;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use ferroflow_base::{Result, general, internal, invalid_argument};
use ferroflow_model::message_to_json;
use ferroflow_model::proto::serving::{
    ClassificationResult, GetModelMetadataResponse, GetModelStatusResponse, RegressionResult,
    SignatureDefMap, model_version_status::State,
};
use ferroflow_runtime::{Code, DType, Tensor};

/// Writes objects and lists with indentation; lists on one line if `one_line` is set.
pub(crate) struct Writer {
    out: Vec<u8>,
    /// For each open object or list: whether it is a list, and the number of its values; keys count.
    levels: Vec<(bool, usize)>,
    pub(crate) one_line: bool,
}

impl Writer {
    pub(crate) fn new() -> Writer {
        Writer {
            out: Vec::new(),
            levels: Vec::new(),
            one_line: false,
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.out.len()
    }

    pub(crate) fn finish(self) -> Vec<u8> {
        self.out
    }

    fn indent(&mut self) {
        self.out
            .extend(std::iter::repeat_n(b' ', self.levels.len() * 4));
    }

    /// What separates a value from the one before.
    fn prefix(&mut self) {
        let one_line = self.one_line;
        let Some((is_list, n)) = self.levels.last_mut() else {
            return;
        };
        let (is_list, before) = (*is_list, *n);
        *n += 1;
        if is_list {
            if before > 0 {
                self.out.push(b',');
                if one_line {
                    self.out.push(b' ');
                }
            }
            if !one_line {
                self.out.push(b'\n');
                self.indent();
            }
        } else if before % 2 == 1 {
            self.out.extend_from_slice(b": ");
        } else {
            self.out
                .extend_from_slice(if before > 0 { b",\n" } else { b"\n" });
            self.indent();
        }
    }

    pub(crate) fn begin_object(&mut self) {
        self.prefix();
        self.levels.push((false, 0));
        self.out.push(b'{');
    }

    pub(crate) fn end_object(&mut self) {
        if self.levels.pop().is_some_and(|(_, n)| n > 0) {
            self.out.push(b'\n');
            self.indent();
        }
        self.out.push(b'}');
    }

    pub(crate) fn begin_list(&mut self) {
        self.prefix();
        self.levels.push((true, 0));
        self.out.push(b'[');
    }

    pub(crate) fn end_list(&mut self) {
        if self.levels.pop().is_some_and(|(_, n)| n > 0) && !self.one_line {
            self.out.push(b'\n');
            self.indent();
        }
        self.out.push(b']');
    }

    /// A value that is text already.
    pub(crate) fn raw(&mut self, text: &str) {
        self.prefix();
        self.out.extend_from_slice(text.as_bytes());
    }

    pub(crate) fn string(&mut self, text: &[u8]) {
        self.prefix();
        self.out.push(b'"');
        for &byte in text {
            let escaped = match byte {
                b'"' | b'\\' => byte,
                8 => b'b',
                12 => b'f',
                b'\n' => b'n',
                b'\r' => b'r',
                b'\t' => b't',
                0..0x20 => {
                    self.out
                        .extend_from_slice(format!("\\u00{byte:02X}").as_bytes());
                    continue;
                }
                _ => {
                    self.out.push(byte);
                    continue;
                }
            };
            self.out.extend_from_slice(&[b'\\', escaped]);
        }
        self.out.push(b'"');
    }

    /// A number with six digits if they suffice to read it back, else with all.
    fn float(&mut self, v: f32) {
        let short = general(v.into(), 6);
        let same = short.parse::<f32>().is_ok_and(|s| s == v);
        let text = if same { short } else { general(v.into(), 9) };
        self.decimal(v.into(), text);
    }

    fn double(&mut self, v: f64) {
        let short = general(v, 6);
        let same = short.parse::<f64>().is_ok_and(|s| s == v);
        self.decimal(v, if same { short } else { general(v, 17) });
    }

    fn decimal(&mut self, v: f64, mut text: String) {
        if v.is_nan() {
            return self.raw("NaN");
        }
        if v.is_infinite() {
            return self.raw(if v > 0.0 { "Infinity" } else { "-Infinity" });
        }
        if !text.contains(['.', 'e']) {
            text.push_str(".0");
        }
        self.raw(&text);
    }
}

/// Longest text of a value in a message, bytes.
const MAX_SHOWN: usize = 256;

/// The value in messages, cut off after some length.
pub(super) fn shown(value: &Value<'_>) -> String {
    let mut writer = Writer::new();
    writer.one_line = true;
    show(value, &mut writer);
    String::from_utf8_lossy(&writer.finish()).into_owned()
}

/// Writes until the limit is reached; returns whether it was not.
fn show(value: &Value<'_>, writer: &mut Writer) -> bool {
    if writer.len() >= MAX_SHOWN {
        return false;
    }
    match value {
        Value::Null => writer.raw("null"),
        Value::Bool(v) => writer.raw(if *v { "true" } else { "false" }),
        Value::Number(Number::Int(v)) => writer.raw(&v.to_string()),
        Value::Number(Number::Uint(v)) => writer.raw(&v.to_string()),
        Value::Number(Number::Double(v)) => {
            writer.raw(
                &serde_json::Number::from_f64(*v).map_or("null".to_string(), |n| n.to_string()),
            );
        }
        Value::String(text) => writer.string(text),
        Value::Array(values) => {
            writer.begin_list();
            if !values.iter().all(|v| show(v, writer)) || writer.len() >= MAX_SHOWN {
                return false;
            }
            writer.end_list();
        }
        Value::Object(members) => {
            writer.begin_object();
            for (key, value) in members {
                if writer.len() >= MAX_SHOWN {
                    return false;
                }
                writer.string(key);
                if !show(value, writer) {
                    return false;
                }
            }
            if writer.len() >= MAX_SHOWN {
                return false;
            }
            writer.end_object();
        }
    }
    true
}

/// The suffix of outputs that hold bytes and not text.
const BYTES: &str = "_bytes";

fn element(writer: &mut Writer, t: &Tensor, is_bytes: bool, i: usize) -> Result<()> {
    macro_rules! at {
        ($t:ty) => {
            t.slice::<$t>()?[i]
        };
    }
    match t.dtype() {
        DType::Float => writer.float(at!(f32)),
        DType::Double => writer.double(at!(f64)),
        DType::Int32 => writer.raw(&at!(i32).to_string()),
        DType::Int16 => writer.raw(&at!(i16).to_string()),
        DType::Int8 => writer.raw(&at!(i8).to_string()),
        DType::Uint8 => writer.raw(&at!(u8).to_string()),
        DType::Int64 => writer.raw(&at!(i64).to_string()),
        DType::Uint32 => writer.raw(&at!(u32).to_string()),
        DType::Uint64 => writer.raw(&at!(u64).to_string()),
        DType::Bool => writer.raw(if at!(bool) { "true" } else { "false" }),
        DType::String if is_bytes => {
            writer.begin_object();
            writer.string(b"b64");
            writer.string(STANDARD.encode(&t.strings()?[i]).as_bytes());
            writer.end_object();
        }
        DType::String => writer.string(&t.strings()?[i]),
        dtype => {
            return Err(invalid_argument!(
                "Failed to write JSON value for tensor type: {dtype}"
            ));
        }
    }
    Ok(())
}

/// Writes the part of a tensor below dimension `dim`, beginning at element `at`.
fn elements(
    writer: &mut Writer,
    (t, is_bytes): (&Tensor, bool),
    dim: usize,
    at: &mut usize,
) -> Result<()> {
    let dims = t.shape().dims();
    let Some(&n) = dims.get(dim) else {
        element(writer, t, is_bytes, *at)?;
        *at += 1;
        return Ok(());
    };
    writer.begin_list();
    for _ in 0..n {
        elements(writer, (t, is_bytes), dim + 1, at)?;
    }
    writer.end_list();
    Ok(())
}

/// The response to a prediction.
///
/// # Errors
/// INVALID_ARGUMENT if an output has a dtype without a JSON form or, in row format, if the outputs have different
/// numbers of rows.
pub fn tensors_to_json(outputs: &[(String, Tensor)], format: Format) -> Result<Vec<u8>> {
    if outputs.is_empty() {
        return Err(invalid_argument!("Cannot convert empty tensor map to JSON"));
    }
    let mut writer = Writer::new();
    let are_named = outputs.len() > 1;
    let part =
        |(name, t): &'_ (String, Tensor)| t.dtype() == DType::String && name.ends_with(BYTES);
    writer.begin_object();
    match format {
        Format::Columns => {
            writer.string(b"outputs");
            if are_named {
                writer.begin_object();
            }
            for output in outputs {
                if are_named {
                    writer.string(output.0.as_bytes());
                }
                elements(&mut writer, (&output.1, part(output)), 0, &mut 0)?;
            }
            if are_named {
                writer.end_object();
            }
        }
        Format::Rows => {
            let rows = num_rows(outputs)?;
            writer.string(b"predictions");
            writer.begin_list();
            let mut at = vec![0; outputs.len()];
            for _ in 0..rows {
                if are_named {
                    writer.begin_object();
                }
                writer.one_line = true;
                for (output, at) in outputs.iter().zip(&mut at) {
                    if are_named {
                        writer.string(output.0.as_bytes());
                    }
                    elements(&mut writer, (&output.1, part(output)), 1, at)?;
                }
                writer.one_line = false;
                if are_named {
                    writer.end_object();
                }
            }
            writer.end_list();
        }
    }
    writer.end_object();
    Ok(writer.finish())
}

fn num_rows(outputs: &[(String, Tensor)]) -> Result<usize> {
    let mut rows = None;
    for (name, t) in outputs {
        let Some(&n) = t.shape().dims().first() else {
            return Err(invalid_argument!(
                "Tensor name: {name} has no shape information "
            ));
        };
        if let Some(rows) = rows.filter(|r| *r != n) {
            return Err(invalid_argument!(
                "Tensor name: {name} has inconsistent batch size: {n} expecting: {rows}"
            ));
        }
        rows = Some(n);
    }
    Ok(rows.unwrap_or(0))
}

/// The response to a classification.
///
/// # Errors
/// INVALID_ARGUMENT if there are no results.
pub fn classifications_to_json(result: &ClassificationResult) -> Result<Vec<u8>> {
    if result.classifications.is_empty() {
        return Err(invalid_argument!(
            "Cannot convert empty ClassificationResults to JSON"
        ));
    }
    let mut writer = Writer::new();
    writer.begin_object();
    writer.string(b"results");
    writer.begin_list();
    for example in &result.classifications {
        writer.one_line = true;
        writer.begin_list();
        for class in &example.classes {
            writer.begin_list();
            writer.string(class.label.as_bytes());
            writer.float(class.score);
            writer.end_list();
        }
        writer.end_list();
        writer.one_line = false;
    }
    writer.end_list();
    writer.end_object();
    Ok(writer.finish())
}

/// The response to a regression.
///
/// # Errors
/// INVALID_ARGUMENT if there are no results.
pub fn regressions_to_json(result: &RegressionResult) -> Result<Vec<u8>> {
    if result.regressions.is_empty() {
        return Err(invalid_argument!(
            "Cannot convert empty RegressionResults to JSON"
        ));
    }
    let mut writer = Writer::new();
    writer.begin_object();
    writer.string(b"results");
    writer.one_line = true;
    writer.begin_list();
    result
        .regressions
        .iter()
        .for_each(|r| writer.float(r.value));
    writer.end_list();
    writer.end_object();
    Ok(writer.finish())
}

/// An error.
pub fn error_to_json(message: &str) -> Vec<u8> {
    let mut writer = Writer::new();
    writer.begin_object();
    writer.string(b"error");
    writer.string(message.as_bytes());
    writer.end_object();
    writer.finish()
}

/// The states of versions, with the layout of protobuf's JSON printer.
pub fn status_to_json(response: &GetModelStatusResponse) -> Vec<u8> {
    let text = |s: &str| serde_json::Value::from(s).to_string();
    let versions = response.model_version_status.iter().map(|v| {
        let state = State::try_from(v.state)
            .unwrap_or(State::Unknown)
            .as_str_name();
        let status = v.status.clone().unwrap_or_default();
        let code = Code::from_number(status.error_code).map_or("OK", Code::name);
        format!(
            "  {{\n   \"version\": \"{}\",\n   \"state\": \"{state}\",\n   \"status\": {{\n    \
             \"error_code\": \"{code}\",\n    \"error_message\": {}\n   }}\n  }}",
            v.version,
            text(&status.error_message)
        )
    });
    let versions: Vec<String> = versions.collect();
    let list = versions.join(",\n");
    format!("{{\n \"model_version_status\": [\n{list}\n ]\n}}\n").into_bytes()
}

/// The signatures of a model, with the layout of TensorFlow Serving.
///
/// # Errors
/// INTERNAL if the response has no signatures.
pub fn metadata_to_json(response: &GetModelMetadataResponse) -> Result<Vec<u8>> {
    let spec = response.model_spec.clone().unwrap_or_default();
    let metadata = response.metadata.get("signature_def").ok_or_else(|| {
        internal!(
            "Failed to find 'signature_def' key in the GetModelMetadataResponse metadata map."
        )
    })?;
    let signatures: SignatureDefMap = ferroflow_model::decode(&metadata.value)?;
    let signatures = message_to_json("tensorflow.serving.SignatureDefMap", &signatures)?;
    let version = match spec.version_choice {
        Some(ferroflow_model::proto::serving::model_spec::VersionChoice::Version(v)) => v.value,
        _ => 0,
    };
    let name = serde_json::Value::from(spec.name);
    let spec = format!(
        "{{\n \"name\": {name},\n \"signature_name\": \"\",\n \"version\": \"{version}\"\n}}\n"
    );
    let text = format!(
        "{{\n\"model_spec\":{spec},\n\"metadata\": {{\"signature_def\": {signatures}}}\n}}\n"
    );
    Ok(text.into_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(outputs: &[(&str, Tensor)], format: Format, expected: &str) {
        let outputs: Vec<_> = outputs
            .iter()
            .map(|(k, t)| (k.to_string(), t.clone()))
            .collect();
        let json = tensors_to_json(&outputs, format).unwrap();
        assert_eq!(String::from_utf8(json).unwrap(), expected);
    }

    #[test]
    fn layouts_are_those_of_tensorflow_serving() {
        let x = Tensor::vector(&[3.5f32, 4.0, 1e9]).unwrap();
        check(
            &[("y", x.clone())],
            Format::Rows,
            "{\n    \"predictions\": [3.5, 4.0, 1e+09\n    ]\n}",
        );
        check(
            &[("y", x.clone())],
            Format::Columns,
            "{\n    \"outputs\": [\n        3.5,\n        4.0,\n        1e+09\n    ]\n}",
        );
        let s = Tensor::from_strings([3], vec!["a".into(), "\"\n".into(), "c".into()]).unwrap();
        check(
            &[("a", s.clone()), ("b_bytes", s)],
            Format::Rows,
            "{\n    \"predictions\": [\n        {\n            \"a\": \"a\",\n            \"b_bytes\": {\n                \"b64\": \"YQ==\"\n            }\n        },\n        {\n            \"a\": \"\\\"\\n\",\n            \"b_bytes\": {\n                \"b64\": \"Igo=\"\n            }\n        },\n        {\n            \"a\": \"c\",\n            \"b_bytes\": {\n                \"b64\": \"Yw==\"\n            }\n        }\n    ]\n}",
        );
        let odd = Tensor::vector(&[0.2f32, 1.0 / 3.0, f32::NAN, f32::NEG_INFINITY, -0.0]).unwrap();
        check(
            &[("y", odd)],
            Format::Rows,
            "{\n    \"predictions\": [0.2, 0.333333343, NaN, -Infinity, -0.0\n    ]\n}",
        );
    }
}
