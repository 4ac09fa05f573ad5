//! Variables that live for one step: lowered forms of TemporaryVariable and
//! DestroyTemporaryVariable (TensorFlow: `core/kernels/variable_ops.cc`).

use ferroflow_base::{Result, already_exists, invalid_argument, not_found};
use ferroflow_functors::shapes;
use ferroflow_opdef::{Cost, KernelBuild, KernelCtx, Op, OpKernel};
use ferroflow_resources::resource::{
    ContainerInfo, Resource, Var, handle, handle_tensor, resource,
};
use ferroflow_tensor::Tensor;
use std::sync::{Arc, Mutex, PoisonError};

/// _TemporaryVariable, _TemporaryVariableName, _DestroyTemporaryVariable.
pub(crate) const OPS: &[Op] = &[
    // Variables of one name share the input.
    Op::new(
        "_TemporaryVariable",
        "names: N*resource -> resource: resource | N: int >= 0; dtype: type; shape: shape; \
         var_name: string | stateful",
    )
    .shape(shapes::scalar)
    .cost(Cost::Cheap)
    .kernel(create)
    .not_differentiable(),
    Op::new("_TemporaryVariableName", "-> name: resource | | stateful")
        .shape(shapes::scalar)
        .cost(Cost::Cheap)
        .kernel(|_| {
            Ok(Box::new(|ctx: &mut KernelCtx| {
                let name = handle_tensor("", "", Arc::<Name>::default())?;
                ctx.set_output(0, name)
            }))
        })
        .not_differentiable(),
    Op::new(
        "_DestroyTemporaryVariable",
        "resource: resource -> value: dtype | dtype: type; var_name: string | stateful",
    )
    .shape(|ctx| {
        ctx.set(0, ctx.handle_shape(0));
        Ok(())
    })
    .cost(Cost::Cheap)
    .kernel(destroy)
    .not_differentiable(),
];

/// The variable that currently has a name, if any.
#[derive(Default)]
struct Name(Mutex<Option<Arc<Var>>>);

impl Resource for Name {
    const TYPE: &'static str = "TemporaryVariableName";

    fn is_gone(&self) -> bool {
        false
    }
}

/// Returns a variable's name in messages.
fn full_name(ctx: &KernelCtx, name: &str) -> String {
    let step = ctx.services().step_id;
    format!("Resource __per_step_{step}/{name}/N10tensorflow19TemporaryVariableOp6TmpVarE")
}

/// Creates a variable that lives until it is destroyed, at most as long as its handle.
fn create(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    let (dtype, shape) = (build.attrs.dtype("dtype")?, build.attrs.shape("shape")?);
    let shape = shape.to_full().ok_or_else(|| {
        invalid_argument!("a temporary variable needs a fully defined shape, got {shape}")
    })?;
    let (name, place) = (
        build.attrs.str("var_name")?.to_string(),
        ContainerInfo::anonymous(),
    );
    Ok(Box::new(move |ctx: &mut KernelCtx| {
        let var = Arc::new(Var::default());
        *var.write() = Some(Tensor::zeros(dtype, shape.clone())?);
        for i in 0..ctx.num_inputs() {
            let names = resource::<Name>(ctx, i)?;
            let mut owner = names.0.lock().unwrap_or_else(PoisonError::into_inner);
            if owner.as_ref().is_some_and(|var| var.read().is_some()) {
                return Err(already_exists!("{}", full_name(ctx, &name)));
            }
            *owner = Some(var.clone());
        }
        let handle = handle_tensor(place.container(ctx.resources()), &name, var)?;
        ctx.set_output(0, handle)
    }))
}

/// Takes the value out of the variable.
fn destroy(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    let name = build.attrs.str("var_name")?.to_string();
    Ok(Box::new(move |ctx: &mut KernelCtx| {
        let var = resource::<Var>(ctx, 0)?;
        let value = match *handle(ctx, 0)?.name == *name {
            true => var.write().take(),
            false => None,
        };
        let missing = || not_found!("{} does not exist.", full_name(ctx, &name));
        let value = value.ok_or_else(missing)?;
        ctx.set_output(0, value)
    }))
}
