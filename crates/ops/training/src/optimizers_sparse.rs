//! Sparse optimizers: updates of the rows that a gradient has (TensorFlow:
//! `core/kernels/training_ops.cc`).

use crate::rules;
use ferroflow_opdef::Op;

/// ResourceSparseApplyProximalGradientDescent, ResourceSparseApplyMomentum,
/// ResourceSparseApplyKerasMomentum, ResourceSparseApplyAdagrad, ResourceSparseApplyAdagradV2,
/// ResourceSparseApplyAdagradDA, ResourceSparseApplyProximalAdagrad, ResourceSparseApplyAdadelta,
/// ResourceSparseApplyRMSProp, ResourceSparseApplyCenteredRMSProp, ResourceSparseApplyFtrl,
/// ResourceSparseApplyFtrlV2.
pub(crate) const OPS: &[Op] = &[
    Op::new(
        "ResourceSparseApplyProximalGradientDescent",
        "var: resource, alpha: T, l1: T, l2: T, grad: T, indices: Tindices -> | T: \
         numbertype; Tindices: type {int32,int64}; use_locking: bool = false | stateful",
    )
    .shape(rules::shape)
    .kernel(rules::proximal_gradient_descent),
    Op::new(
        "ResourceSparseApplyMomentum",
        "var: resource, accum: resource, lr: T, grad: T, indices: Tindices, momentum: \
         T -> | T: numbertype; Tindices: type {int32,int64}; use_locking: bool = \
         false; use_nesterov: bool = false | stateful",
    )
    .shape(rules::shape)
    .kernel(rules::momentum),
    Op::new(
        "ResourceSparseApplyKerasMomentum",
        "var: resource, accum: resource, lr: T, grad: T, indices: Tindices, momentum: \
         T -> | T: numbertype; Tindices: type {int32,int64}; use_locking: bool = \
         false; use_nesterov: bool = false | stateful",
    )
    .shape(rules::shape)
    .kernel(rules::keras_momentum),
    Op::new(
        "ResourceSparseApplyAdagrad",
        "var: resource, accum: resource, lr: T, grad: T, indices: Tindices -> | T: \
         numbertype; Tindices: type {int32,int64}; use_locking: bool = false; \
         update_slots: bool = true | stateful",
    )
    .shape(rules::shape)
    .kernel(rules::adagrad),
    Op::new(
        "ResourceSparseApplyAdagradV2",
        "var: resource, accum: resource, lr: T, epsilon: T, grad: T, indices: Tindices \
         -> | T: numbertype; Tindices: type {int32,int64}; use_locking: bool = false; \
         update_slots: bool = true | stateful",
    )
    .shape(rules::shape)
    .kernel(rules::adagrad_v2),
    Op::new(
        "ResourceSparseApplyAdagradDA",
        "var: resource, gradient_accumulator: resource, gradient_squared_accumulator: \
         resource, grad: T, indices: Tindices, lr: T, l1: T, l2: T, global_step: int64 \
         -> | T: numbertype; Tindices: type {int32,int64}; use_locking: bool = false | \
         stateful",
    )
    .shape(rules::shape)
    .kernel(rules::adagrad_da),
    Op::new(
        "ResourceSparseApplyProximalAdagrad",
        "var: resource, accum: resource, lr: T, l1: T, l2: T, grad: T, indices: \
         Tindices -> | T: numbertype; Tindices: type {int32,int64}; use_locking: bool \
         = false | stateful",
    )
    .shape(rules::shape)
    .kernel(rules::proximal_adagrad),
    Op::new(
        "ResourceSparseApplyAdadelta",
        "var: resource, accum: resource, accum_update: resource, lr: T, rho: T, \
         epsilon: T, grad: T, indices: Tindices -> | T: numbertype; Tindices: type \
         {int32,int64}; use_locking: bool = false | stateful",
    )
    .shape(rules::shape)
    .kernel(rules::adadelta),
    Op::new(
        "ResourceSparseApplyRMSProp",
        "var: resource, ms: resource, mom: resource, lr: T, rho: T, momentum: T, \
         epsilon: T, grad: T, indices: Tindices -> | T: numbertype; Tindices: type \
         {int32,int64}; use_locking: bool = false | stateful",
    )
    .shape(rules::shape)
    .kernel(rules::rms_prop),
    Op::new(
        "ResourceSparseApplyCenteredRMSProp",
        "var: resource, mg: resource, ms: resource, mom: resource, lr: T, rho: T, \
         momentum: T, epsilon: T, grad: T, indices: Tindices -> | T: numbertype; \
         Tindices: type {int32,int64}; use_locking: bool = false | stateful",
    )
    .shape(rules::shape)
    .kernel(rules::centered_rms_prop),
    Op::new(
        "ResourceSparseApplyFtrl",
        "var: resource, accum: resource, linear: resource, grad: T, indices: Tindices, \
         lr: T, l1: T, l2: T, lr_power: T -> | T: numbertype; Tindices: type \
         {int32,int64}; use_locking: bool = false; multiply_linear_by_lr: bool = false \
         | stateful",
    )
    .shape(rules::shape)
    .kernel(rules::ftrl),
    Op::new(
        "ResourceSparseApplyFtrlV2",
        "var: resource, accum: resource, linear: resource, grad: T, indices: Tindices, \
         lr: T, l1: T, l2: T, l2_shrinkage: T, lr_power: T -> | T: numbertype; \
         Tindices: type {int32,int64}; use_locking: bool = false; \
         multiply_linear_by_lr: bool = false | stateful",
    )
    .shape(rules::shape)
    .kernel(rules::ftrl_v2),
];
