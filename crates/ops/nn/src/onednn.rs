//! Ops of several nodes that TensorFlow makes for its oneDNN kernels (`core/ops/mkl_nn_ops.cc`). The pass
//! `composite` splits them; those of one node (`_MklNativeConv2D`) import reads as the op itself.

use ferroflow_functors::shapes;
use ferroflow_opdef::Op;

/// The ops of this file.
pub(crate) const OPS: &[Op] = &[
    Op::new(
        "_MklNativeConv2DWithBias",
        "input: T, filter: T, bias: T -> output: T | T: type {bfloat16,float,half}; \
         strides: list(int); use_cudnn_on_gpu: bool = true; is_filter_const: bool = \
         false; padding: string {'SAME','VALID','EXPLICIT'}; data_format: string \
         {'NHWC','NCHW'} = 'NHWC'; explicit_paddings: list(int) = []; dilations: \
         list(int) = [1,1,1,1]",
    )
    .shape(crate::conv::conv_shape),
    Op::new(
        "_MklNativeConv2DBackpropFilterWithBias",
        "input: T, filter_sizes: int32, out_backprop: T -> output: T, bias_grad: T | T: \
         type {bfloat16,float,half}; strides: list(int); use_cudnn_on_gpu: bool = true; \
         padding: string {'SAME','VALID'}; data_format: string {'NHWC','NCHW'} = \
         'NHWC'; dilations: list(int) = [1,1,1,1]",
    ),
    Op::new(
        "_MklNativePadWithConv2D",
        "input: T, filter: T, paddings: Tpaddings -> output: T | T: type \
         {bfloat16,float,half}; strides: list(int); use_cudnn_on_gpu: bool = true; \
         padding: string {'SAME','VALID'}; data_format: string {'NHWC','NCHW'} = \
         'NHWC'; is_filter_const: bool = false; dilations: list(int) = [1,1,1,1]; \
         Tpaddings: type {int32,int64} = int32",
    ),
    Op::new(
        "_MklNativePadWithFusedConv2D",
        "input: T, filter: T, args: num_args*T, paddings: Tpaddings -> output: T | T: \
         type {bfloat16,float,half}; num_args: int >= 0; strides: list(int); \
         is_filter_const: bool = false; padding: string {'SAME','VALID'}; data_format: \
         string {'NHWC','NCHW'} = 'NHWC'; dilations: list(int) = [1,1,1,1]; fused_ops: \
         list(string) = []; Tpaddings: type {int32,int64} = int32; epsilon: float = \
         0.0001; leakyrelu_alpha: float = 0.2",
    ),
    Op::new(
        "_MklFusedBatchMatMulV2",
        "x: T, y: T, args: num_args*T -> output: T | T: type {bfloat16,float,half}; \
         adj_x: bool = false; adj_y: bool = false; num_args: int >= 0; fused_ops: \
         list(string) = []; epsilon: float = 0.0001; leakyrelu_alpha: float = 0.2",
    ),
    Op::new(
        "_MklFusedInstanceNorm",
        "x: T, gamma: T, beta: T -> y: T | T: type {float,bfloat16,half}; fused_ops: \
         list(string) = []; epsilon: float = 0.0001; leakyrelu_alpha: float = 0.2; \
         reduction_axes: list(int)",
    )
    .shape(shapes::unchanged),
    Op::new(
        "_MklFusedMish",
        "features: T -> activations: T | T: type {bfloat16,float,half}",
    )
    .shape(shapes::unchanged),
    Op::new(
        "_MklLayerNorm",
        "x: T, scale: T, offset: T -> y: T | T: type {float,bfloat16,half}; epsilon: \
         float = 0.001",
    )
    .shape(shapes::unchanged),
    Op::new(
        "_MklSwish",
        "features: T -> activations: T | T: type {float,bfloat16,half} = float",
    )
    .shape(shapes::unchanged),
];
