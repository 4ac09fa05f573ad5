//! Empty resources, with which TensorFlow's tests check the lifetime of resources.

use ferroflow_base::{Result, already_exists, not_found};
use ferroflow_functors::shapes;
use ferroflow_opdef::{Cost, KernelCtx, Op};
use ferroflow_resources::resource::{Resource, container_and_name, handle};
use ferroflow_tensor::{ResourceHandle, Shape, Tensor};
use std::sync::Arc;

/// StubResourceHandleOp, ResourceInitializedOp, ResourceCreateOp, ResourceUsingOp.
pub(crate) const OPS: &[Op] = &[
    Op::new(
        "StubResourceHandleOp",
        "-> resource: resource | container: string = ''; shared_name: string = '' | \
         stateful",
    )
    .shape(shapes::scalar)
    .cost(Cost::Cheap)
    .kernel(|build| {
        let (container, name) = container_and_name(build.attrs)?;
        Ok(Box::new(move |ctx: &mut KernelCtx| {
            // The handle has a name only: another op creates the resource.
            let handle = ResourceHandle {
                container: ctx.resources().container(&container).into(),
                name: name.as_str().into(),
                value: None,
                origin: None,
            };
            ctx.set_output(0, Tensor::from_resources(Shape::scalar(), vec![handle])?)
        }))
    })
    .not_differentiable(),
    Op::new(
        "ResourceInitializedOp",
        "resource: resource -> initialized: bool | | stateful",
    )
    .shape(shapes::scalar)
    .cost(Cost::Cheap)
    .kernel(|_| {
        Ok(Box::new(|ctx: &mut KernelCtx| {
            let exists = find(ctx)?.is_some();
            ctx.set_output(0, Tensor::scalar(exists))
        }))
    })
    .not_differentiable(),
    Op::new("ResourceCreateOp", "resource: resource -> | | stateful")
        .cost(Cost::Cheap)
        .kernel(|_| {
            Ok(Box::new(|ctx: &mut KernelCtx| {
                let h = handle(ctx, 0)?;
                let made = ctx
                    .resources()
                    .create(&h.container, &h.name, Arc::new(Stub));
                made.map_err(|_| already_exists!("Resource {}", path(h)))
            }))
        })
        .not_differentiable(),
    Op::new("ResourceUsingOp", "resource: resource -> | | stateful")
        .cost(Cost::Cheap)
        .kernel(|_| {
            Ok(Box::new(|ctx: &mut KernelCtx| match find(ctx)? {
                Some(_) => Ok(()),
                None => Err(not_found!(
                    "Resource {} does not exist.",
                    path(handle(ctx, 0)?)
                )),
            }))
        })
        .not_differentiable(),
];

struct Stub;

impl Resource for Stub {
    const TYPE: &'static str = "tensorflow::StubResource";

    fn is_gone(&self) -> bool {
        false
    }
}

fn find(ctx: &KernelCtx) -> Result<Option<Arc<Stub>>> {
    let h = handle(ctx, 0)?;
    Ok(ctx.resources().lookup(&h.container, &h.name).ok())
}

/// Removes a stub; returns whether it existed.
pub(crate) fn destroy(ctx: &KernelCtx, h: &ResourceHandle) -> bool {
    let removed = ctx.resources().remove::<Stub>(&h.container, &h.name);
    removed.is_ok()
}

/// Returns the name in TensorFlow's messages.
fn path(h: &ResourceHandle) -> String {
    format!("{}/{}/N10tensorflow12StubResourceE", h.container, h.name)
}
