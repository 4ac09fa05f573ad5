//! Old-style variables and the ops that update them through a reference (TensorFlow:
//! `core/kernels/variable_ops.cc`, `dense_update_ops.cc` and `scatter_op.cc`).
//!
//! The compiler replaces them by resource variables; they have no kernels.

use ferroflow_functors::shapes;
use ferroflow_opdef::Op;

/// The ops of this file.
pub(crate) const OPS: &[Op] = &[
    Op::new(
        "Variable",
        "-> ref: Ref(dtype) | shape: shape; dtype: type; container: string = ''; \
         shared_name: string = '' | stateful",
    )
    .shape(shapes::from_shape_attr),
    Op::new(
        "VariableV2",
        "-> ref: Ref(dtype) | shape: shape; dtype: type; container: string = ''; \
         shared_name: string = '' | stateful",
    )
    .shape(shapes::from_shape_attr),
    Op::new(
        "Assign",
        "ref: Ref(T), value: T -> output_ref: Ref(T) | T: type; validate_shape: bool = \
         true; use_locking: bool = true | uninit",
    )
    .not_differentiable(),
    Op::new(
        "AssignAdd",
        "ref: Ref(T), value: T -> output_ref: Ref(T) | T: numbertype; use_locking: \
         bool = false",
    )
    .not_differentiable(),
    Op::new(
        "AssignSub",
        "ref: Ref(T), value: T -> output_ref: Ref(T) | T: numbertype; use_locking: \
         bool = false",
    )
    .not_differentiable(),
    Op::new(
        "IsVariableInitialized",
        "ref: Ref(dtype) -> is_initialized: bool | dtype: type | uninit",
    ),
    Op::new(
        "ScatterAdd",
        "ref: Ref(T), indices: Tindices, updates: T -> output_ref: Ref(T) | T: \
         numbertype; Tindices: type {int32,int64}; use_locking: bool = false",
    )
    .not_differentiable(),
    Op::new(
        "ScatterSub",
        "ref: Ref(T), indices: Tindices, updates: T -> output_ref: Ref(T) | T: \
         numbertype; Tindices: type {int32,int64}; use_locking: bool = false",
    )
    .not_differentiable(),
    Op::new(
        "ScatterMul",
        "ref: Ref(T), indices: Tindices, updates: T -> output_ref: Ref(T) | T: \
         numbertype; Tindices: type {int32,int64}; use_locking: bool = false",
    )
    .not_differentiable(),
    Op::new(
        "ScatterDiv",
        "ref: Ref(T), indices: Tindices, updates: T -> output_ref: Ref(T) | T: \
         numbertype; Tindices: type {int32,int64}; use_locking: bool = false",
    )
    .not_differentiable(),
    Op::new(
        "ScatterMin",
        "ref: Ref(T), indices: Tindices, updates: T -> output_ref: Ref(T) | T: type \
         {half,bfloat16,float,double,int32,int64}; Tindices: type {int32,int64}; \
         use_locking: bool = false",
    ),
    Op::new(
        "ScatterMax",
        "ref: Ref(T), indices: Tindices, updates: T -> output_ref: Ref(T) | T: type \
         {half,bfloat16,float,double,int32,int64}; Tindices: type {int32,int64}; \
         use_locking: bool = false",
    ),
    Op::new(
        "ScatterUpdate",
        "ref: Ref(T), indices: Tindices, updates: T -> output_ref: Ref(T) | T: type; \
         Tindices: type {int32,int64}; use_locking: bool = true",
    ),
    Op::new(
        "ScatterNdAdd",
        "ref: Ref(T), indices: Tindices, updates: T -> output_ref: Ref(T) | T: \
         numbertype; Tindices: type {int32,int64}; use_locking: bool = false; \
         bad_indices_policy: string = ''",
    )
    .not_differentiable(),
    Op::new(
        "ScatterNdSub",
        "ref: Ref(T), indices: Tindices, updates: T -> output_ref: Ref(T) | T: \
         numbertype; Tindices: type {int32,int64}; use_locking: bool = false; \
         bad_indices_policy: string = ''",
    )
    .not_differentiable(),
    Op::new(
        "ScatterNdMin",
        "ref: Ref(T), indices: Tindices, updates: T -> output_ref: Ref(T) | T: \
         numbertype; Tindices: type {int32,int64}; use_locking: bool = false; \
         bad_indices_policy: string = ''",
    ),
    Op::new(
        "ScatterNdMax",
        "ref: Ref(T), indices: Tindices, updates: T -> output_ref: Ref(T) | T: \
         numbertype; Tindices: type {int32,int64}; use_locking: bool = false; \
         bad_indices_policy: string = ''",
    ),
    Op::new(
        "ScatterNdUpdate",
        "ref: Ref(T), indices: Tindices, updates: T -> output_ref: Ref(T) | T: type; \
         Tindices: type {int32,int64}; use_locking: bool = true; bad_indices_policy: \
         string = ''",
    )
    .not_differentiable(),
    Op::new(
        "TemporaryVariable",
        "-> ref: Ref(dtype) | shape: shape; dtype: type; var_name: string = '' | stateful",
    ),
    Op::new(
        "DestroyTemporaryVariable",
        "ref: Ref(T) -> value: T | T: type; var_name: string",
    ),
    Op::new(
        "CountUpTo",
        "ref: Ref(T) -> output: T | limit: int; T: type {int32,int64}",
    ),
];
