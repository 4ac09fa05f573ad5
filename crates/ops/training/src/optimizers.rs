//! Optimizers of whole variables (TensorFlow: `core/kernels/training_ops.cc`). The update rules are
//! in `rules.rs`.

use crate::rules;
use ferroflow_opdef::Op;

/// ResourceApplyGradientDescent, ResourceApplyProximalGradientDescent, ResourceApplyMomentum,
/// ResourceApplyKerasMomentum, ResourceApplyAdagrad, ResourceApplyAdagradV2,
/// ResourceApplyAdagradDA, ResourceApplyProximalAdagrad, ResourceApplyAdadelta,
/// ResourceApplyRMSProp, ResourceApplyCenteredRMSProp, ResourceApplyAdam,
/// ResourceApplyAdamWithAmsgrad, ResourceApplyAdaMax, ResourceApplyFtrl, ResourceApplyFtrlV2,
/// ResourceApplyAddSign, ResourceApplyPowerSign.
pub(crate) const OPS: &[Op] = &[
    Op::new(
        "ResourceApplyGradientDescent",
        "var: resource, alpha: T, delta: T -> | T: numbertype; use_locking: bool = \
         false | stateful",
    )
    .shape(rules::shape)
    .kernel(rules::gradient_descent),
    Op::new(
        "ResourceApplyProximalGradientDescent",
        "var: resource, alpha: T, l1: T, l2: T, delta: T -> | T: numbertype; \
         use_locking: bool = false | stateful",
    )
    .shape(rules::shape)
    .kernel(rules::proximal_gradient_descent),
    Op::new(
        "ResourceApplyMomentum",
        "var: resource, accum: resource, lr: T, grad: T, momentum: T -> | T: \
         numbertype; use_locking: bool = false; use_nesterov: bool = false | stateful",
    )
    .shape(rules::shape)
    .kernel(rules::momentum),
    Op::new(
        "ResourceApplyKerasMomentum",
        "var: resource, accum: resource, lr: T, grad: T, momentum: T -> | T: \
         numbertype; use_locking: bool = false; use_nesterov: bool = false | stateful",
    )
    .shape(rules::shape)
    .kernel(rules::keras_momentum),
    Op::new(
        "ResourceApplyAdagrad",
        "var: resource, accum: resource, lr: T, grad: T -> | T: numbertype; \
         use_locking: bool = false; update_slots: bool = true | stateful",
    )
    .shape(rules::shape)
    .kernel(rules::adagrad),
    Op::new(
        "ResourceApplyAdagradV2",
        "var: resource, accum: resource, lr: T, epsilon: T, grad: T -> | T: numbertype; \
         use_locking: bool = false; update_slots: bool = true | stateful",
    )
    .shape(rules::shape)
    .kernel(rules::adagrad_v2),
    Op::new(
        "ResourceApplyAdagradDA",
        "var: resource, gradient_accumulator: resource, gradient_squared_accumulator: \
         resource, grad: T, lr: T, l1: T, l2: T, global_step: int64 -> | T: \
         numbertype; use_locking: bool = false | stateful",
    )
    .shape(rules::shape)
    .kernel(rules::adagrad_da),
    Op::new(
        "ResourceApplyProximalAdagrad",
        "var: resource, accum: resource, lr: T, l1: T, l2: T, grad: T -> | T: \
         numbertype; use_locking: bool = false | stateful",
    )
    .shape(rules::shape)
    .kernel(rules::proximal_adagrad),
    Op::new(
        "ResourceApplyAdadelta",
        "var: resource, accum: resource, accum_update: resource, lr: T, rho: T, \
         epsilon: T, grad: T -> | T: numbertype; use_locking: bool = false | stateful",
    )
    .shape(rules::shape)
    .kernel(rules::adadelta),
    Op::new(
        "ResourceApplyRMSProp",
        "var: resource, ms: resource, mom: resource, lr: T, rho: T, momentum: T, \
         epsilon: T, grad: T -> | T: numbertype; use_locking: bool = false | stateful",
    )
    .shape(rules::shape)
    .kernel(rules::rms_prop),
    Op::new(
        "ResourceApplyCenteredRMSProp",
        "var: resource, mg: resource, ms: resource, mom: resource, lr: T, rho: T, \
         momentum: T, epsilon: T, grad: T -> | T: numbertype; use_locking: bool = \
         false | stateful",
    )
    .shape(rules::shape)
    .kernel(rules::centered_rms_prop),
    Op::new(
        "ResourceApplyAdam",
        "var: resource, m: resource, v: resource, beta1_power: T, beta2_power: T, lr: \
         T, beta1: T, beta2: T, epsilon: T, grad: T -> | T: numbertype; use_locking: \
         bool = false; use_nesterov: bool = false | stateful",
    )
    .shape(rules::shape)
    .kernel(rules::adam),
    Op::new(
        "ResourceApplyAdamWithAmsgrad",
        "var: resource, m: resource, v: resource, vhat: resource, beta1_power: T, \
         beta2_power: T, lr: T, beta1: T, beta2: T, epsilon: T, grad: T -> | T: \
         numbertype; use_locking: bool = false | stateful",
    )
    .shape(rules::shape)
    .kernel(rules::amsgrad),
    Op::new(
        "ResourceApplyAdaMax",
        "var: resource, m: resource, v: resource, beta1_power: T, lr: T, beta1: T, \
         beta2: T, epsilon: T, grad: T -> | T: numbertype; use_locking: bool = false | \
         stateful",
    )
    .shape(rules::shape)
    .kernel(rules::ada_max),
    Op::new(
        "ResourceApplyFtrl",
        "var: resource, accum: resource, linear: resource, grad: T, lr: T, l1: T, l2: \
         T, lr_power: T -> | T: numbertype; use_locking: bool = false; \
         multiply_linear_by_lr: bool = false | stateful",
    )
    .shape(rules::shape)
    .kernel(rules::ftrl),
    Op::new(
        "ResourceApplyFtrlV2",
        "var: resource, accum: resource, linear: resource, grad: T, lr: T, l1: T, l2: \
         T, l2_shrinkage: T, lr_power: T -> | T: numbertype; use_locking: bool = \
         false; multiply_linear_by_lr: bool = false | stateful",
    )
    .shape(rules::shape)
    .kernel(rules::ftrl_v2),
    Op::new(
        "ResourceApplyAddSign",
        "var: resource, m: resource, lr: T, alpha: T, sign_decay: T, beta: T, grad: T \
         -> | T: numbertype; use_locking: bool = false | stateful",
    )
    .shape(rules::shape)
    .kernel(rules::add_sign),
    Op::new(
        "ResourceApplyPowerSign",
        "var: resource, m: resource, lr: T, logbase: T, sign_decay: T, beta: T, grad: \
         T -> | T: numbertype; use_locking: bool = false | stateful",
    )
    .shape(rules::shape)
    .kernel(rules::power_sign),
];
