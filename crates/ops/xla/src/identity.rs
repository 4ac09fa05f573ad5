//! Ops that tell XLA's compiler something and return their inputs: XlaSharding, XlaOptimizationBarrier; and
//! XlaReplicaId (TensorFlow: `compiler/tf2xla/kernels/{sharding,xla_optimization_barrier,replica_id}_op.cc`).

use ferroflow_base::Result;
use ferroflow_functors::shapes;
use ferroflow_opdef::{Cost, KernelCtx, Op};
use ferroflow_tensor::Tensor;

/// The ops of this file.
pub(crate) const OPS: &[Op] = &[
    Op::new(
        "XlaSharding",
        "input: T -> output: T | T: type; sharding: string = ''; unspecified_dims: list(int) = []",
    )
    .shape(shapes::unchanged)
    .cost(Cost::Cheap)
    .kernel(|_| Ok(Box::new(inputs)))
    .gradient(|g| {
        let (sharding, dims) = (g.attr("sharding"), g.attr("unspecified_dims"));
        let dx = g.dy(0).op_with("XlaSharding", &[], &[sharding, dims]);
        g.set(0, dx)
    }),
    Op::new(
        "XlaOptimizationBarrier",
        "input: list(T) -> output: list(T) | T: list(type) >= 0",
    )
    .shape(shapes::each_unchanged)
    .cost(Cost::Cheap)
    .kernel(|_| Ok(Box::new(inputs))),
    Op::new("XlaReplicaId", "-> id: int32")
        .shape(shapes::scalar)
        .cost(Cost::Cheap)
        // A graph runs as one replica.
        .kernel(|_| {
            Ok(Box::new(|ctx: &mut KernelCtx| {
                ctx.set_output(0, Tensor::scalar(0i32))
            }))
        }),
];

fn inputs(ctx: &mut KernelCtx) -> Result<()> {
    for i in 0..ctx.num_inputs() {
        let input = ctx.take_input(i)?;
        ctx.set_output(i, input)?;
    }
    Ok(())
}
