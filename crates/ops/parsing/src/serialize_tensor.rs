//! SerializeTensor and ParseTensor (TensorFlow: `core/kernels/parse_tensor_op.cc`).

use base64::prelude::{BASE64_STANDARD, Engine};
use ferroflow_base::{Result, invalid_argument};
use ferroflow_functors::shapes;
use ferroflow_model::proto::TensorProto;
use ferroflow_model::{tensor_from_proto, tensor_to_proto};
use ferroflow_opdef::{KernelBuild, KernelCtx, Op, OpKernel};
use ferroflow_tensor::Tensor;
use prost::Message;

/// The ops of this file.
pub(crate) const OPS: &[Op] = &[
    Op::new(
        "SerializeTensor",
        "tensor: T -> serialized: string | T: type |",
    )
    .shape(shapes::scalar)
    .kernel(|_| {
        Ok(Box::new(|ctx: &mut KernelCtx| {
            let message = tensor_to_proto(ctx.input(0)?)?.encode_to_vec();
            ctx.set_output(0, Tensor::string(message))
        }))
    })
    .not_differentiable(),
    Op::new(
        "ParseTensor",
        "serialized: string -> output: out_type | out_type: type |",
    )
    .kernel(parse)
    .not_differentiable(),
];

fn parse(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    let dtype = build.output(0)?;
    Ok(Box::new(move |ctx: &mut KernelCtx| {
        let serialized = ctx.input(0)?;
        let bytes = match serialized.strings()? {
            [bytes] if serialized.shape().is_scalar() => bytes,
            _ => {
                return Err(invalid_argument!(
                    "Expected `serialized` to be a scalar, got shape: {}",
                    serialized.shape()
                ));
            }
        };
        let message = TensorProto::decode(&bytes[..]).map_err(|_| {
            invalid_argument!(
                "Could not parse `serialized` as TensorProto, base64: {}",
                BASE64_STANDARD.encode(bytes)
            )
        })?;
        let value = tensor_from_proto(&message, None)?.get()?;
        if value.dtype() != dtype {
            return Err(invalid_argument!(
                "Type mismatch between parsed tensor ({}) and dtype ({dtype})",
                value.dtype()
            ));
        }
        ctx.set_output(0, value)
    }))
}
