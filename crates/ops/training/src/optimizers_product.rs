//! Optimizers whose gradient is a product of two matrices, created by the pass `fuse_update` from
//! an optimizer and its MatMul. The gradient is never stored.

use crate::rules;
use ferroflow_opdef::{Cost, Op};

/// _MatMulApplyGradientDescent, _MatMulApplyMomentum, _MatMulApplyAdagrad, _MatMulApplyRMSProp,
/// _MatMulApplyAdam: the inputs of `ResourceApply…`, with `a` for the gradient and `b` at the end.
pub(crate) const OPS: &[Op] = &[
    Op::new(
        "_MatMulApplyGradientDescent",
        "var: resource, alpha: T, a: T, b: T -> | T: type {float}; use_locking: bool = \
         false; transpose_a: bool = false; transpose_b: bool = false | stateful",
    )
    .shape(rules::shape)
    .cost(Cost::Expensive)
    .kernel(rules::gradient_descent),
    Op::new(
        "_MatMulApplyMomentum",
        "var: resource, accum: resource, lr: T, a: T, momentum: T, b: T -> | T: type \
         {float}; use_locking: bool = false; use_nesterov: bool = false; transpose_a: \
         bool = false; transpose_b: bool = false | stateful",
    )
    .shape(rules::shape)
    .cost(Cost::Expensive)
    .kernel(rules::momentum),
    Op::new(
        "_MatMulApplyAdagrad",
        "var: resource, accum: resource, lr: T, a: T, b: T -> | T: type {float}; \
         use_locking: bool = false; update_slots: bool = true; transpose_a: bool = \
         false; transpose_b: bool = false | stateful",
    )
    .shape(rules::shape)
    .cost(Cost::Expensive)
    .kernel(rules::adagrad),
    Op::new(
        "_MatMulApplyRMSProp",
        "var: resource, ms: resource, mom: resource, lr: T, rho: T, momentum: T, \
         epsilon: T, a: T, b: T -> | T: type {float}; use_locking: bool = false; \
         transpose_a: bool = false; transpose_b: bool = false | stateful",
    )
    .shape(rules::shape)
    .cost(Cost::Expensive)
    .kernel(rules::rms_prop),
    Op::new(
        "_MatMulApplyAdam",
        "var: resource, m: resource, v: resource, beta1_power: T, beta2_power: T, lr: \
         T, beta1: T, beta2: T, epsilon: T, a: T, b: T -> | T: type {float}; \
         use_locking: bool = false; use_nesterov: bool = false; transpose_a: bool = \
         false; transpose_b: bool = false | stateful",
    )
    .shape(rules::shape)
    .cost(Cost::Expensive)
    .kernel(rules::adam),
];
