//! TensorFlow's CTC ops: loss and decoders of connectionist temporal classification.
//!
//! Does not know: other groups, graphs, engines.
#![forbid(unsafe_code)]

// codegen:begin
mod beam_search;
mod ctc_decode;
mod ctc_loss;
mod top_n;

/// The ops of the group, file by file. A static, so that their kernels are compiled in this crate.
#[rustfmt::skip]
pub static ALL: &[ferroflow_opdef::OpFile] = &[
    ("ctc_decode", ctc_decode::OPS),
    ("ctc_loss", ctc_loss::OPS),
];
// codegen:end
