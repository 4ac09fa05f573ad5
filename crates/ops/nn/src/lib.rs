//! TensorFlow's nn ops: convolutions, pooling, normalization, activations, losses.
//!
//! Does not know: other groups, graphs, engines.
#![forbid(unsafe_code)]

// codegen:begin
mod activation;
mod attention;
mod batch_norm;
mod batch_norm_grad;
mod bias;
mod conv;
mod conv3d_backprop_v1;
mod conv_backprop;
mod conv_filter;
mod conv_packed;
mod conv_reference;
mod data_format;
mod dense;
mod depthwise;
mod dilation;
mod dilation_grad;
mod fractional_pool;
mod fused;
mod fused_activation;
mod fused_ops;
mod in_topk;
mod int8;
mod int8_codes;
mod isotonic_regression;
mod l2_loss;
mod layer_norm;
mod lrn;
mod nth_element;
mod onednn;
mod pool;
mod pool_grad;
mod pooling_sequence;
mod quantized_activation;
mod quantized_conv;
mod quantized_epilogue;
mod quantized_fused;
mod quantized_matmul;
mod quantized_pool;
mod softmax;
mod topk;
mod transposed;
mod wide;
mod xent;

/// The ops of the group, file by file. A static, so that their kernels are compiled in this crate.
#[rustfmt::skip]
pub static ALL: &[ferroflow_opdef::OpFile] = &[
    ("activation", activation::OPS),
    ("attention", attention::OPS),
    ("batch_norm", batch_norm::OPS),
    ("batch_norm_grad", batch_norm_grad::OPS),
    ("bias", bias::OPS),
    ("conv", conv::OPS),
    ("conv3d_backprop_v1", conv3d_backprop_v1::OPS),
    ("conv_backprop", conv_backprop::OPS),
    ("data_format", data_format::OPS),
    ("dense", dense::OPS),
    ("depthwise", depthwise::OPS),
    ("dilation", dilation::OPS),
    ("dilation_grad", dilation_grad::OPS),
    ("fractional_pool", fractional_pool::OPS),
    ("fused_activation", fused_activation::OPS),
    ("in_topk", in_topk::OPS),
    ("int8", int8::OPS),
    ("int8_codes", int8_codes::OPS),
    ("isotonic_regression", isotonic_regression::OPS),
    ("l2_loss", l2_loss::OPS),
    ("layer_norm", layer_norm::OPS),
    ("lrn", lrn::OPS),
    ("nth_element", nth_element::OPS),
    ("onednn", onednn::OPS),
    ("pool", pool::OPS),
    ("pool_grad", pool_grad::OPS),
    ("quantized_activation", quantized_activation::OPS),
    ("quantized_conv", quantized_conv::OPS),
    ("quantized_fused", quantized_fused::OPS),
    ("quantized_matmul", quantized_matmul::OPS),
    ("quantized_pool", quantized_pool::OPS),
    ("softmax", softmax::OPS),
    ("topk", topk::OPS),
    ("xent", xent::OPS),
];
// codegen:end
