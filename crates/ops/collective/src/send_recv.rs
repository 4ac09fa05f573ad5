//! _Send, _Recv: the ends of an edge that leaves a plan. The rendezvous is an input, like all state
//! of a step. TensorFlow: `core/kernels/sendrecv_ops.cc`.

use ferroflow_base::{Result, invalid_argument};
use ferroflow_opdef::{AsyncCall, AttrValue, Cost, KernelBuild, KernelCtx, Op, OpKernel, ShapeCtx};
use ferroflow_resources::rendezvous::{Rendezvous, abort_on_cancel};
use ferroflow_tensor::Tensor;
use std::sync::Arc;

/// _Send, _Recv.
pub(crate) const OPS: &[Op] = &[
    Op::new(
        "_Send",
        "rendezvous: resource, tensor: T -> | T: type; tensor_name: string; \
         send_device: string = ''; send_device_incarnation: int = 0; recv_device: \
         string = ''; client_terminated: bool = false | stateful",
    )
    .cost(Cost::Cheap)
    .kernel(send),
    Op::new(
        "_Recv",
        "rendezvous: resource -> tensor: tensor_type | tensor_type: type; tensor_name: \
         string; send_device: string = ''; send_device_incarnation: int = 0; \
         recv_device: string = ''; client_terminated: bool = false | stateful",
    )
    .shape(recv_shape)
    .cost(Cost::Async)
    .kernel(recv),
];

/// Returns the shape inferred on the sender's side.
fn recv_shape(ctx: &mut ShapeCtx) -> Result<()> {
    if let Some(AttrValue::Shape(shape)) = ctx.attrs().get("_shape") {
        let shape = shape.clone();
        ctx.set(0, shape);
    }
    Ok(())
}

fn table(handle: &Tensor) -> Result<Arc<Rendezvous>> {
    let handle = handle.resources()?.first();
    let value = handle.and_then(|h| h.value.clone());
    value
        .and_then(|v| v.downcast().ok())
        .ok_or_else(|| invalid_argument!("the input is not a rendezvous"))
}

fn send(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    let key = build.attrs.str("tensor_name")?.to_string();
    Ok(Box::new(move |ctx: &mut KernelCtx| {
        let table = table(ctx.input(0)?)?;
        table.send(&key, ctx.take_input(1)?)
    }))
}

struct Recv(String);

impl OpKernel for Recv {
    fn compute(&self, _: &mut KernelCtx) -> Result<()> {
        Err(ferroflow_base::internal!("_Recv is asynchronous"))
    }

    fn start(&self, call: AsyncCall) {
        let table = match call.inputs.first().map(table) {
            Some(Ok(table)) => table,
            Some(Err(e)) => return call.finish(Err(e)),
            None => return call.finish(Err(invalid_argument!("_Recv has no input"))),
        };
        let registration = abort_on_cancel(&table, &call.cancel);
        table.recv(&self.0, move |value| {
            drop(registration);
            call.finish(value.map(|v| vec![v]));
        });
    }
}

fn recv(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    Ok(Box::new(Recv(build.attrs.str("tensor_name")?.to_string())))
}
