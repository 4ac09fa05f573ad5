//! Optimizers of old-style variables, which import converts to those of resource variables
//! (TensorFlow: `core/kernels/training_ops.cc`).

use ferroflow_opdef::Op;

/// ApplyGradientDescent, ApplyProximalGradientDescent, ApplyMomentum, ApplyAdagrad,
/// ApplyAdagradV2, ApplyAdagradDA, ApplyProximalAdagrad, ApplyAdadelta, ApplyRMSProp,
/// ApplyCenteredRMSProp, ApplyAdam, ApplyAdaMax, ApplyFtrl, ApplyFtrlV2, ApplyAddSign,
/// ApplyPowerSign, SparseApplyProximalGradientDescent, SparseApplyMomentum, SparseApplyAdagrad,
/// SparseApplyAdagradV2, SparseApplyAdagradDA, SparseApplyProximalAdagrad, SparseApplyAdadelta,
/// SparseApplyRMSProp, SparseApplyCenteredRMSProp, SparseApplyFtrl, SparseApplyFtrlV2.
pub(crate) const OPS: &[Op] = &[
    Op::new(
        "ApplyGradientDescent",
        "var: Ref(T), alpha: T, delta: T -> out: Ref(T) | T: numbertype; use_locking: \
         bool = false",
    ),
    Op::new(
        "ApplyProximalGradientDescent",
        "var: Ref(T), alpha: T, l1: T, l2: T, delta: T -> out: Ref(T) | T: numbertype; \
         use_locking: bool = false |",
    ),
    Op::new(
        "ApplyMomentum",
        "var: Ref(T), accum: Ref(T), lr: T, grad: T, momentum: T -> out: Ref(T) | T: \
         numbertype; use_locking: bool = false; use_nesterov: bool = false",
    ),
    Op::new(
        "ApplyAdagrad",
        "var: Ref(T), accum: Ref(T), lr: T, grad: T -> out: Ref(T) | T: numbertype; \
         use_locking: bool = false; update_slots: bool = true",
    ),
    Op::new(
        "ApplyAdagradV2",
        "var: Ref(T), accum: Ref(T), lr: T, epsilon: T, grad: T -> out: Ref(T) | T: \
         numbertype; use_locking: bool = false; update_slots: bool = true",
    ),
    Op::new(
        "ApplyAdagradDA",
        "var: Ref(T), gradient_accumulator: Ref(T), gradient_squared_accumulator: \
         Ref(T), grad: T, lr: T, l1: T, l2: T, global_step: int64 -> out: Ref(T) | T: \
         numbertype; use_locking: bool = false",
    ),
    Op::new(
        "ApplyProximalAdagrad",
        "var: Ref(T), accum: Ref(T), lr: T, l1: T, l2: T, grad: T -> out: Ref(T) | T: \
         numbertype; use_locking: bool = false |",
    ),
    Op::new(
        "ApplyAdadelta",
        "var: Ref(T), accum: Ref(T), accum_update: Ref(T), lr: T, rho: T, epsilon: T, \
         grad: T -> out: Ref(T) | T: numbertype; use_locking: bool = false",
    ),
    Op::new(
        "ApplyRMSProp",
        "var: Ref(T), ms: Ref(T), mom: Ref(T), lr: T, rho: T, momentum: T, epsilon: T, \
         grad: T -> out: Ref(T) | T: numbertype; use_locking: bool = false",
    ),
    Op::new(
        "ApplyCenteredRMSProp",
        "var: Ref(T), mg: Ref(T), ms: Ref(T), mom: Ref(T), lr: T, rho: T, momentum: T, \
         epsilon: T, grad: T -> out: Ref(T) | T: numbertype; use_locking: bool = false",
    ),
    Op::new(
        "ApplyAdam",
        "var: Ref(T), m: Ref(T), v: Ref(T), beta1_power: T, beta2_power: T, lr: T, \
         beta1: T, beta2: T, epsilon: T, grad: T -> out: Ref(T) | T: numbertype; \
         use_locking: bool = false; use_nesterov: bool = false",
    ),
    Op::new(
        "ApplyAdaMax",
        "var: Ref(T), m: Ref(T), v: Ref(T), beta1_power: T, lr: T, beta1: T, beta2: T, \
         epsilon: T, grad: T -> out: Ref(T) | T: numbertype; use_locking: bool = false",
    ),
    Op::new(
        "ApplyFtrl",
        "var: Ref(T), accum: Ref(T), linear: Ref(T), grad: T, lr: T, l1: T, l2: T, \
         lr_power: T -> out: Ref(T) | T: numbertype; use_locking: bool = false; \
         multiply_linear_by_lr: bool = false",
    ),
    Op::new(
        "ApplyFtrlV2",
        "var: Ref(T), accum: Ref(T), linear: Ref(T), grad: T, lr: T, l1: T, l2: T, \
         l2_shrinkage: T, lr_power: T -> out: Ref(T) | T: numbertype; use_locking: \
         bool = false; multiply_linear_by_lr: bool = false",
    ),
    Op::new(
        "ApplyAddSign",
        "var: Ref(T), m: Ref(T), lr: T, alpha: T, sign_decay: T, beta: T, grad: T -> \
         out: Ref(T) | T: numbertype; use_locking: bool = false",
    ),
    Op::new(
        "ApplyPowerSign",
        "var: Ref(T), m: Ref(T), lr: T, logbase: T, sign_decay: T, beta: T, grad: T -> \
         out: Ref(T) | T: numbertype; use_locking: bool = false",
    ),
    Op::new(
        "SparseApplyProximalGradientDescent",
        "var: Ref(T), alpha: T, l1: T, l2: T, grad: T, indices: Tindices -> out: \
         Ref(T) | T: numbertype; Tindices: type {int32,int64}; use_locking: bool = \
         false",
    ),
    Op::new(
        "SparseApplyMomentum",
        "var: Ref(T), accum: Ref(T), lr: T, grad: T, indices: Tindices, momentum: T -> \
         out: Ref(T) | T: numbertype; Tindices: type {int32,int64}; use_locking: bool \
         = false; use_nesterov: bool = false",
    ),
    Op::new(
        "SparseApplyAdagrad",
        "var: Ref(T), accum: Ref(T), lr: T, grad: T, indices: Tindices -> out: Ref(T) \
         | T: numbertype; Tindices: type {int32,int64}; use_locking: bool = false; \
         update_slots: bool = true",
    ),
    Op::new(
        "SparseApplyAdagradV2",
        "var: Ref(T), accum: Ref(T), lr: T, epsilon: T, grad: T, indices: Tindices -> \
         out: Ref(T) | T: numbertype; Tindices: type {int32,int64}; use_locking: bool \
         = false; update_slots: bool = true",
    ),
    Op::new(
        "SparseApplyAdagradDA",
        "var: Ref(T), gradient_accumulator: Ref(T), gradient_squared_accumulator: \
         Ref(T), grad: T, indices: Tindices, lr: T, l1: T, l2: T, global_step: int64 \
         -> out: Ref(T) | T: numbertype; Tindices: type {int32,int64}; use_locking: \
         bool = false",
    ),
    Op::new(
        "SparseApplyProximalAdagrad",
        "var: Ref(T), accum: Ref(T), lr: T, l1: T, l2: T, grad: T, indices: Tindices \
         -> out: Ref(T) | T: numbertype; Tindices: type {int32,int64}; use_locking: \
         bool = false",
    ),
    Op::new(
        "SparseApplyAdadelta",
        "var: Ref(T), accum: Ref(T), accum_update: Ref(T), lr: T, rho: T, epsilon: T, \
         grad: T, indices: Tindices -> out: Ref(T) | T: numbertype; Tindices: type \
         {int32,int64}; use_locking: bool = false",
    ),
    Op::new(
        "SparseApplyRMSProp",
        "var: Ref(T), ms: Ref(T), mom: Ref(T), lr: T, rho: T, momentum: T, epsilon: T, \
         grad: T, indices: Tindices -> out: Ref(T) | T: numbertype; Tindices: type \
         {int32,int64}; use_locking: bool = false",
    ),
    Op::new(
        "SparseApplyCenteredRMSProp",
        "var: Ref(T), mg: Ref(T), ms: Ref(T), mom: Ref(T), lr: T, rho: T, momentum: T, \
         epsilon: T, grad: T, indices: Tindices -> out: Ref(T) | T: numbertype; \
         Tindices: type {int32,int64}; use_locking: bool = false",
    ),
    Op::new(
        "SparseApplyFtrl",
        "var: Ref(T), accum: Ref(T), linear: Ref(T), grad: T, indices: Tindices, lr: \
         T, l1: T, l2: T, lr_power: T -> out: Ref(T) | T: numbertype; Tindices: type \
         {int32,int64}; use_locking: bool = false; multiply_linear_by_lr: bool = false",
    ),
    Op::new(
        "SparseApplyFtrlV2",
        "var: Ref(T), accum: Ref(T), linear: Ref(T), grad: T, indices: Tindices, lr: \
         T, l1: T, l2: T, l2_shrinkage: T, lr_power: T -> out: Ref(T) | T: numbertype; \
         Tindices: type {int32,int64}; use_locking: bool = false; \
         multiply_linear_by_lr: bool = false",
    ),
];
