//! Runs the decoders of bytes on one input. The fuzz target `decoders` includes this file.

use ferroflow_opdef::{AttrValue, Attrs, PreparedOp};
use ferroflow_ops::registry;
use ferroflow_tensor::{DType, Tensor};
use ferroflow_testkit::op;

fn texts(values: &[&str]) -> AttrValue {
    AttrValue::strs(values)
}

fn proto(message: &str, fields: &[&str], format: &str, sanitize: bool) -> Attrs {
    let types = vec![AttrValue::Type(DType::String); fields.len()];
    Attrs::default()
        .with("message_type", AttrValue::str(message))
        .with("field_names", texts(fields))
        .with("output_types", AttrValue::List(types))
        .with("message_format", AttrValue::str(format))
        .with("sanitize", AttrValue::Bool(sanitize))
}

/// The decoders and their attrs.
fn decoders() -> Vec<(&'static str, Attrs)> {
    let plain = Attrs::default;
    let graph = ["node", "versions", "library"];
    let compressed = |kind: &str| plain().with("compression_type", AttrValue::str(kind));
    let tensor = |dtype: DType| plain().with("out_type", AttrValue::Type(dtype));
    let charset = |from: &str| {
        plain()
            .with("input_encoding", AttrValue::str(from))
            .with("output_encoding", AttrValue::str("UTF-8"))
    };
    vec![
        (
            "DecodeProtoV2",
            proto("tensorflow.Example", &["features"], "binary", false),
        ),
        (
            "DecodeProtoV2",
            proto("tensorflow.GraphDef", &graph, "binary", true),
        ),
        (
            "DecodeProtoV2",
            proto("tensorflow.GraphDef", &graph, "text", false),
        ),
        ("DecodeJSONExample", plain()),
        ("DecodeImage", plain()),
        ("DecodeGif", plain()),
        ("DecodeBmp", plain()),
        ("DecodeWebP", plain()),
        ("DecodeJpeg", plain()),
        ("DecodePng", plain()),
        ("DecodeWav", plain()),
        ("DecodeCompressed", compressed("ZLIB")),
        ("DecodeCompressed", compressed("GZIP")),
        ("ParseTensor", tensor(DType::Float)),
        ("ParseTensor", tensor(DType::String)),
        ("DecodeBase64", plain()),
        ("StringToNumber", tensor(DType::Float)),
        ("UnicodeTranscode", charset("UTF-16-BE")),
        ("UnicodeTranscode", charset("GB18030")),
    ]
}

/// Returns how many decoders there are: the last one reads descriptors of messages.
pub fn count() -> usize {
    decoders().len() + 1
}

/// Runs a decoder; returns whether it took the bytes.
pub fn decode(which: usize, bytes: &[u8]) -> bool {
    let all = decoders();
    let Some((op, attrs)) = all.get(which) else {
        return describe(bytes);
    };
    let input = Tensor::string(bytes.to_vec());
    // Some take a vector of messages only.
    [
        input.clone(),
        input.with_shape([1].into()).expect("one string"),
    ]
    .into_iter()
    .any(|input| run(op, attrs, input))
}

/// Builds a kernel of messages whose descriptors the bytes are.
fn describe(bytes: &[u8]) -> bool {
    let source = [b"bytes://", bytes].concat();
    let attrs = proto(
        "case.All",
        &["string", "r_message", "case.ext"],
        "binary",
        true,
    );
    let types = [DType::String, DType::String, DType::Int64].map(AttrValue::Type);
    let attrs = attrs
        .with("output_types", AttrValue::List(types.to_vec()))
        .with("descriptor_source", AttrValue::Str(source.into()));
    run("DecodeProtoV2", &attrs, Tensor::string(bytes.to_vec()))
        || PreparedOp::new(registry(), "DecodeProtoV2", &attrs, &[DType::String]).is_ok()
}

fn run(name: &str, attrs: &Attrs, input: Tensor) -> bool {
    op::run(registry(), name, attrs, vec![input]).is_ok()
}
