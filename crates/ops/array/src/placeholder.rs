//! Placeholder, PlaceholderV2, PlaceholderWithDefault.

use crate::identity::{forward_all, pass_gradient};
use ferroflow_base::{Result, invalid_argument};
use ferroflow_functors::shapes;
use ferroflow_opdef::{Cost, KernelBuild, KernelCtx, Op, OpKernel};

/// The ops of this file.
pub(crate) const OPS: &[Op] = &[
    Op::new(
        "Placeholder",
        "-> output: dtype | dtype: type; shape: shape = unknown",
    )
    .shape(shapes::from_shape_attr)
    .cost(Cost::Cheap)
    .kernel(placeholder),
    Op::new(
        "PlaceholderV2",
        "-> output: dtype | dtype: type; shape: shape",
    )
    .shape(shapes::from_shape_attr)
    .cost(Cost::Cheap)
    .kernel(placeholder),
    Op::new(
        "PlaceholderWithDefault",
        "input: dtype -> output: dtype | dtype: type; shape: shape",
    )
    .shape(shapes::from_shape_attr)
    .cost(Cost::Cheap)
    .kernel(forward_all)
    .gradient(pass_gradient),
];

fn placeholder(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    let mut message = format!(
        "You must feed a value for placeholder tensor '{}' with dtype {}",
        build.node,
        build.output(0)?
    );
    let shape = build.attrs.shape("shape")?;
    if shape.rank().is_some_and(|rank| rank > 0) {
        message += &format!(" and shape {shape}");
    }
    Ok(Box::new(move |_: &mut KernelCtx| {
        Err(invalid_argument!("{message}"))
    }))
}
