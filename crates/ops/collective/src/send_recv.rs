//! _Send, _Recv and their variants: the ends of an edge that leaves a graph. The engine runs them,
//! dead or alive, with the rendezvous of the step. TensorFlow: `core/kernels/sendrecv_ops.cc`.

use ferroflow_base::Result;
use ferroflow_opdef::{AttrValue, Cost, Op, ShapeCtx};

const SEND: &str = "tensor: T -> | T: type; tensor_name: string; send_device: string; \
                    send_device_incarnation: int; recv_device: string; \
                    client_terminated: bool = false | stateful";
const RECV: &str = "-> tensor: tensor_type | tensor_type: type; tensor_name: string; \
                    send_device: string; send_device_incarnation: int; recv_device: string; \
                    client_terminated: bool = false | stateful distributed";

const fn send(name: &'static str) -> Op {
    Op::new(name, SEND).cost(Cost::Cheap)
}

const fn recv(name: &'static str) -> Op {
    Op::new(name, RECV).shape(recv_shape).cost(Cost::Async)
}

/// The ops of this file.
pub(crate) const OPS: &[Op] = &[
    send("_Send"),
    send("_HostSend"),
    send("Send"),
    recv("_Recv"),
    recv("_HostRecv"),
    recv("Recv"),
];

/// Returns the shape inferred on the sender's side.
fn recv_shape(ctx: &mut ShapeCtx) -> Result<()> {
    if let Some(AttrValue::Shape(shape)) = ctx.attrs().get("_shape") {
        let shape = shape.clone();
        ctx.set(0, shape);
    }
    Ok(())
}
