//! TensorFlow's audio ops: WAV files, spectrograms, cepstral coefficients.
//!
//! Does not know: other groups, graphs, engines.
#![forbid(unsafe_code)]

// codegen:begin
mod filter_channels;
mod fixed_fft;
mod microfrontend;
mod spectrogram;
mod wav;

/// The ops of the group, file by file. A static, so that their kernels are compiled in this crate.
#[rustfmt::skip]
pub static ALL: &[ferroflow_opdef::OpFile] = &[
    ("microfrontend", microfrontend::OPS),
    ("spectrogram", spectrogram::OPS),
    ("wav", wav::OPS),
];
// codegen:end
