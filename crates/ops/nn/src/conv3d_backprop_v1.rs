//! Conv3DBackpropInput and Conv3DBackpropFilter, which read sizes off tensors; the second versions
//! compute them (TensorFlow: `core/kernels/conv_grad_ops_3d.cc`).

use crate::conv_backprop;
use ferroflow_base::{Result, internal};
use ferroflow_opdef::{Cost, KernelBuild, KernelCtx, NodeInfo, Op, OpKernel, Value};
use ferroflow_tensor::{DType, Tensor};

const SIGNATURE: &str = "input: T, filter: T, out_backprop: T -> output: T | T: type \
     {half,float,double}; strides: list(int) >= 5; padding: string {'SAME','VALID'}; dilations: \
     list(int) = [1,1,1,1,1]";

/// The ops of this file.
pub(crate) const OPS: &[Op] = &[
    Op::new("Conv3DBackpropInput", SIGNATURE)
        .shape(|ctx| {
            let shape = ctx.with_rank(0, 5)?;
            ctx.set(0, shape);
            Ok(())
        })
        .cost(Cost::Expensive)
        .kernel(|build| by_sizes(build, "Conv3DBackpropInputV2", 0)),
    Op::new("Conv3DBackpropFilter", SIGNATURE)
        .shape(|ctx| {
            let shape = ctx.with_rank(1, 5)?;
            ctx.set(0, shape);
            Ok(())
        })
        .cost(Cost::Expensive)
        .kernel(|build| by_sizes(build, "Conv3DBackpropFilterV2", 1)),
];

/// Builds the kernel of the second version, whose input `at` is the shape of this op's.
fn by_sizes(build: &KernelBuild, op: &str, at: usize) -> Result<Box<dyn OpKernel>> {
    let newer = conv_backprop::OPS.iter().find(|newer| newer.name == op);
    let factory = newer.and_then(|newer| newer.kernel);
    let factory = factory.ok_or_else(|| internal!("{op} has no kernel"))?;
    let mut attrs = build.attrs.clone();
    attrs.set("data_format", "NDHWC".into());
    let mut inputs = build.inputs.to_vec();
    if let Some(dtype) = inputs.get_mut(at) {
        *dtype = DType::Int32;
    }
    let kernel = factory(&KernelBuild {
        attrs: &attrs,
        inputs: &inputs,
        constants: &[],
        ..*build
    })?;
    let info = NodeInfo {
        name: build.node.to_string(),
        op: op.to_string(),
    };
    Ok(Box::new(move |ctx: &mut KernelCtx| {
        let mut inputs = Vec::with_capacity(3);
        for i in 0..3 {
            let input = ctx.input(i)?;
            inputs.push(Value::Tensor(match i == at {
                true => {
                    let sizes = input.shape().iter().map(|&d| i32::try_from(d));
                    let sizes: Vec<i32> =
                        sizes.collect::<std::result::Result<_, _>>().map_err(|_| {
                            ferroflow_base::invalid_argument!("a dimension is too large")
                        })?;
                    Tensor::vector(&sizes)?
                }
                false => input.clone(),
            }));
        }
        let mut outputs = [Value::Empty];
        let mut inner = KernelCtx::new(&info, &mut inputs, &[], &mut outputs, ctx.services());
        kernel.compute(&mut inner)?;
        let [output] = outputs;
        let output = output.into_tensor();
        ctx.set_output(
            0,
            output.ok_or_else(|| internal!("{} has no output", info.op))?,
        )
    }))
}
