//! _Arg and _Retval: a function's arguments and results (TensorFlow:
//! `core/kernels/function_ops.cc`).

use ferroflow_opdef::{Cost, Op};

/// The ops of this file.
pub(crate) const OPS: &[Op] = &[
    Op::new("_Arg", "-> output: T | T: type; index: int >= 0 | stateful")
        .shape(|ctx| {
            if let Ok(shape) = ctx.attrs().shape("_shape") {
                ctx.set(0, shape.clone());
            }
            Ok(())
        })
        .cost(Cost::Cheap),
    Op::new(
        "_Retval",
        "input: T -> | T: type; index: int >= 0 | stateful",
    )
    .cost(Cost::Cheap),
];
