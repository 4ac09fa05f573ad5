//! TensorFlow's RNN ops: fused LSTM and GRU cells and layers.
//!
//! Does not know: other groups, graphs, engines.
#![forbid(unsafe_code)]

// codegen:begin
mod block_lstm;
mod cell;
mod gru_block_cell;
mod lstm_block_cell;

/// The ops of the group, file by file. A static, so that their kernels are compiled in this crate.
#[rustfmt::skip]
pub static ALL: &[ferroflow_opdef::OpFile] = &[
    ("block_lstm", block_lstm::OPS),
    ("gru_block_cell", gru_block_cell::OPS),
    ("lstm_block_cell", lstm_block_cell::OPS),
];
// codegen:end
