"""Optimizers: dense and sparse, of variables by handle and by reference."""

import numpy as np
import tensorflow as tf
from tensorflow.python.framework import kernels, op_def_registry

from graphkit import CASES, case, raw, v1

RULES = ["GradientDescent", "ProximalGradientDescent", "Momentum", "KerasMomentum", "Adagrad",
         "AdagradV2", "AdagradDA", "ProximalAdagrad", "Adadelta", "RMSProp", "CenteredRMSProp",
         "Adam", "AdamWithAmsgrad", "AdaMax", "Ftrl", "FtrlV2", "AddSign", "PowerSign"]
NUMBERS = {"lr": 0.1, "alpha": 0.2, "l1": 0.05, "l2": 0.03, "momentum": 0.9, "epsilon": 0.01,
           "rho": 0.8, "beta1_power": 0.81, "beta2_power": 0.95, "beta1": 0.9, "beta2": 0.97,
           "beta": 0.7, "sign_decay": 0.6, "logbase": 1.1, "l2_shrinkage": 0.04, "lr_power": -0.5}
SHAPE = (4, 3)
COMPRESSED = True
DTYPES = [tf.float32, tf.float64, tf.float16, tf.bfloat16]


def optimizer(b, op_name, dtype, by_reference=False, numbers=None, **attrs):
    """Runs the op three times on fresh variables, and compares their values."""
    op_def = op_def_registry.get(op_name)
    rng = np.random.default_rng(len(op_name))
    inits, reads, inputs, feeds = [], [], {}, {}
    sparse = "Sparse" in op_name
    for arg in op_def.input_arg:
        if arg.is_ref or arg.type == tf.resource.as_datatype_enum:
            # The mean square of the centered rule must stay above the squared mean.
            low = 2 if arg.name == "ms" else 0 if arg.name == "mg" else 0.5
            start = rng.uniform(low, low + 1, SHAPE).round(3)
            if by_reference:
                var = v1.Variable(tf.constant(start, dtype), name=arg.name, use_resource=False)
                inputs[arg.name] = var._ref()
                inits.append(var.initializer)
                reads.append(var)
            else:
                h = raw.VarHandleOp(dtype=dtype, shape=SHAPE, shared_name=arg.name)
                inputs[arg.name] = h
                inits.append(raw.AssignVariableOp(resource=h, value=tf.constant(start, dtype)))
                reads.append(raw.ReadVariableOp(resource=h, dtype=dtype))
        elif arg.name in ("grad", "delta"):
            inputs[arg.name] = b.feed(dtype, None)
            feeds[inputs[arg.name]] = lambda: rng.uniform(-1, 1, (3, 3) if sparse else SHAPE).round(3)
        elif arg.name == "indices":
            inputs[arg.name] = tf.constant([2, 0, 2], tf.int64 if by_reference else tf.int32)
        elif arg.name == "global_step":
            inputs[arg.name] = tf.constant(3, tf.int64)
        else:
            value = (numbers or {}).get(arg.name, NUMBERS[arg.name])
            inputs[arg.name] = tf.constant(value, dtype)
    update = getattr(raw, op_name)(**inputs, **attrs)
    if not by_reference:
        b.step(targets=update.name, feeds={k: v() for k, v in feeds.items()}, error="")
    b.step(targets=[i.name for i in inits])
    for _ in range(3):
        b.step(targets=update.name if not by_reference else update.op.name,
               feeds={k: v() for k, v in feeds.items()})
        # TensorFlow rounds every step of 16-bit arithmetic; Ferroflow rounds once.
        b.step(reads, tol={2: 2e-2}.get(dtype.size))
    if by_reference:
        b.step(update, {k: v() for k, v in feeds.items()})
    grad = next(iter(feeds))
    b.step(targets=update.name if not by_reference else update.op.name,
           feeds={grad: np.ones((2, 2))}, error="")


def has_kernel(op_name, dtype):
    """Whether TensorFlow runs the op on its CPU."""
    found = kernels.get_registered_kernels_for_op(op_name).kernel
    types = [c.allowed_values.list.type for k in found if k.device_type == "CPU"
             for c in k.constraint if c.name == "T"]
    return any(dtype.as_datatype_enum in t for t in types)


def enter_all():
    def enter(name, fn):
        CASES.append((f"{name}/v1", "v1", fn))

    for rule in RULES:
        for op_name in (f"ResourceApply{rule}", f"ResourceSparseApply{rule}"):
            op_def = op_def_registry.get(op_name)
            if op_def is None:
                continue
            flags = [a.name for a in op_def.attr if a.type == "bool" and a.name != "use_locking"]
            for dtype in DTYPES if "Sparse" not in op_name else DTYPES[:3]:
                if not has_kernel(op_name, dtype):
                    continue
                enter(f"{op_name}_{dtype.name}",
                      lambda b, o=op_name, d=dtype: optimizer(b, o, d))
            for flag in flags:
                default = next(a.default_value.b for a in op_def.attr if a.name == flag)
                enter(f"{op_name}_{flag}", lambda b, o=op_name, f=flag, v=not default:
                      optimizer(b, o, tf.float32, **{f: v}))
            if "Ftrl" in op_name:
                enter(f"{op_name}_power", lambda b, o=op_name:
                      optimizer(b, o, tf.float32, numbers={"lr_power": -0.7}))
            if "l1" in [a.name for a in op_def.input_arg]:
                enter(f"{op_name}_no_l1", lambda b, o=op_name:
                      optimizer(b, o, tf.float32, numbers={"l1": 0.0}))
        for op_name in (f"Apply{rule}", f"SparseApply{rule}"):
            if op_def_registry.get(op_name) is not None:
                enter(op_name, lambda b, o=op_name: optimizer(b, o, tf.float32, True))


@case("v1")
def counting(b):
    for by_reference in (True, False):
        name = "r" if by_reference else "h"
        v = v1.Variable(5, use_resource=not by_reference, name=name)
        limited = (raw.CountUpTo(ref=v._ref(), limit=7) if by_reference else
                   raw.ResourceCountUpTo(resource=v.handle, limit=7, T=tf.int32))
        b.step(limited, error="")
        b.step(targets=v.initializer.name)
        b.step(limited)
        b.step(limited)
        b.step(limited, error="Reached limit of 7")
        b.step(v.value())


@case("v1")
def optimizers_by_hand(b):
    """Training with tf.compat.v1's optimizers."""
    x = b.feed(tf.float32, [None, 3])
    for use_resource in (True, False):
        w = v1.Variable(tf.ones([3, 2]), use_resource=use_resource)
        y = tf.matmul(x, w)
        with tf.control_dependencies([y]):
            grad = tf.matmul(x, y, transpose_a=True)
        opt = v1.train.MomentumOptimizer(0.1, 0.9)
        step = opt.apply_gradients([(grad, w)])
        init = v1.global_variables_initializer()
        b.step(targets=init.name)
        for i in range(3):
            b.step(targets=step.name, feeds={x: np.arange(6).reshape(2, 3) / 7 + i})
            b.step([w.value(), opt.get_slot(w, "momentum").value()])
