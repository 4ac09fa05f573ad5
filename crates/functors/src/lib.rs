//! Functors, in TensorFlow's sense (`core/kernels/*_functor.h`): typed loops over tensors that the
//! kernels of several op groups share, and the shape functions that go with them.
//!
//! Entry points, in reading order: [`indices`] (tensors of sizes and positions), [`shapes`],
//! [`numeric`] (traits of element types), [`unary`], [`binary`], [`broadcast`], [`reduce`],
//! [`strided`], [`gather`], [`matmul`], [`prepack`].
//!
//! Does not know: which ops exist, resources, graphs, engines.
#![forbid(unsafe_code)]
#![warn(clippy::missing_errors_doc)]

pub mod agreement;
pub mod bf16_product;
pub mod binary;
pub mod broadcast;
pub mod broadcast_walk;
pub mod conversion;
pub mod csr;
pub mod distributions;
mod farmhash;
pub mod feature_cross;
pub mod field;
pub mod fill_empty_rows;
pub mod gather;
pub mod gradients;
pub mod half_conversion;
pub mod hash;
pub mod heap;
pub mod index_shuffle;
pub mod indices;
pub mod matmul;
pub mod number_text;
pub mod numeric;
pub mod optional;
pub mod prepack;
pub mod product;
pub mod quantized;
pub mod ragged;
pub mod random_stream;
pub mod reduce;
pub mod scatter_nd;
pub mod sequence;
pub mod shapes;
pub mod sparse;
pub mod spread;
pub mod str_util;
pub mod strided;
pub mod strided_spec;
pub mod summarize;
pub mod tensor_list;
pub mod transpose;
pub mod unary;
pub mod vectorized;
pub mod wav;
pub mod window;
