//! TensorFlow's audio ops: WAV files, spectrograms, cepstral coefficients.
//!
//! Does not know: other groups, graphs, engines.
#![forbid(unsafe_code)]

// codegen:begin
mod spectrogram;
mod wav;

/// The ops of the group, file by file. A static, so that their kernels are compiled in this crate.
#[rustfmt::skip]
pub static ALL: &[ferroflow_opdef::OpFile] = &[
    ("spectrogram", spectrogram::OPS),
    ("wav", wav::OPS),
];
// codegen:end
