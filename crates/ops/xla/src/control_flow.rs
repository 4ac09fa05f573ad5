//! XlaIf and XlaWhile: If and While under other names (TensorFlow: `compiler/tf2xla/kernels/{if,while}_op.cc`).

use ferroflow_opdef::{Cost, Op};

/// The ops of this file.
pub(crate) const OPS: &[Op] = &[
    Op::new(
        "XlaIf",
        "cond: Tcond, inputs: list(Tin) -> output: list(Tout) | Tcond: type; then_branch: func; else_branch: func; \
         Tin: list(type) >= 0; Tout: list(type) >= 0 | stateful",
    )
    .cost(Cost::Cheap),
    Op::new(
        "XlaWhile",
        "input: list(T) -> output: list(T) | T: list(type) >= 0; cond: func; body: func | stateful",
    )
    .cost(Cost::Cheap),
];
