//! TensorFlow's parsing ops: CSV, tf.Example, raw bytes.
//!
//! Does not know: other groups, graphs, engines.
#![forbid(unsafe_code)]

// codegen:begin
mod decode_compressed;
mod decode_csv;
mod decode_proto;
mod decode_raw;
mod encode_proto;
mod example_records;
mod feature_values;
mod json_example;
mod parse_example;
mod parse_example_dataset;
mod proto_fields;
mod sequence_example;
mod sequence_features;
mod serialize_tensor;
mod string_to_number;
mod wire_reader;

/// The ops of the group, file by file. A static, so that their kernels are compiled in this crate.
#[rustfmt::skip]
pub static ALL: &[ferroflow_opdef::OpFile] = &[
    ("decode_compressed", decode_compressed::OPS),
    ("decode_csv", decode_csv::OPS),
    ("decode_proto", decode_proto::OPS),
    ("decode_raw", decode_raw::OPS),
    ("encode_proto", encode_proto::OPS),
    ("json_example", json_example::OPS),
    ("parse_example", parse_example::OPS),
    ("parse_example_dataset", parse_example_dataset::OPS),
    ("sequence_example", sequence_example::OPS),
    ("serialize_tensor", serialize_tensor::OPS),
    ("string_to_number", string_to_number::OPS),
];
// codegen:end
