//! Const, HostConst, ImmutableConst (TensorFlow: `core/kernels/constant_op.cc`,
//! `immutable_constant_op.cc`).

use ferroflow_base::{Result, internal, invalid_argument, unimplemented_error};
use ferroflow_functors::shapes;
use ferroflow_opdef::{Cost, KernelBuild, KernelCtx, Op, OpKernel};
use ferroflow_resources::file_system::{files, io_error, local_path};
use ferroflow_tensor::{DType, PartialShape, Tensor};
use std::sync::OnceLock;

/// The ops of this file.
pub(crate) const OPS: &[Op] = &[
    Op::new("Const", "-> output: dtype | value: tensor; dtype: type")
        .shape(|ctx| {
            let shape = PartialShape::from(ctx.attrs().tensor("value")?.shape());
            ctx.set(0, shape);
            Ok(())
        })
        .cost(Cost::Cheap)
        .kernel(constant)
        .not_differentiable(),
    Op::new("HostConst", "-> output: dtype | value: tensor; dtype: type")
        .shape(|ctx| {
            let shape = PartialShape::from(ctx.attrs().tensor("value")?.shape());
            ctx.set(0, shape);
            Ok(())
        })
        .cost(Cost::Cheap)
        .kernel(constant),
    Op::new(
        "ImmutableConst",
        "-> tensor: dtype | dtype: type; shape: shape; memory_region_name: string",
    )
    .shape(shapes::from_shape_attr)
    .kernel(from_file),
];

/// Reads the values of a constant from a file, in the machine's byte order.
fn from_file(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    let dtype = build.output(0)?;
    if matches!(dtype, DType::Resource | DType::Variant) {
        return Err(invalid_argument!(
            "Resource and variant dtypes are invalid for this op."
        ));
    }
    let shape = build.attrs.shape("shape")?.to_full();
    let name = build.attrs.str("memory_region_name")?.to_string();
    let value = OnceLock::new();
    Ok(Box::new(move |ctx: &mut KernelCtx| {
        if let Some(value) = value.get() {
            return ctx.set_output(0, Tensor::clone(value));
        }
        let path = local_path(&name);
        let bytes = files::read(path).map_err(|e| io_error(path, &e))?;
        if dtype == DType::String {
            return Err(unimplemented_error!(
                "Sorry, DT_STRING is not currently supported for ImmutableConstOp."
            ));
        }
        let Some(shape) = &shape else {
            return Err(invalid_argument!("the shape must be fully defined"));
        };
        let n = shape.num_elements().saturating_mul(dtype.size());
        let Some(used) = bytes.get(..n) else {
            return Err(internal!(
                "Readonly memory region has wrong length ({}) when allocating {n}",
                bytes.len()
            ));
        };
        let tensor = Tensor::from_bytes(dtype, shape.clone(), used)?;
        ctx.set_output(0, value.get_or_init(|| tensor).clone())
    }))
}

fn constant(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    let value = build.attrs.tensor("value")?.get()?;
    Ok(Box::new(move |ctx: &mut KernelCtx| {
        ctx.set_output(0, value.clone())
    }))
}
