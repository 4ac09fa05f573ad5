//! The integration tests of the crate, in one program: each would contain the whole engine.

mod datasets;
mod decoders;
mod decoding;
mod decompositions;
mod dtypes;
mod elementwise;
mod large_decompositions;
mod linalg;
mod lists;
mod nn;
mod quantized;
mod queues;
mod reference;
mod remap;
mod rows;
mod strings;
