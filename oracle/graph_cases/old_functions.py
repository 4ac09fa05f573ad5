"""SymbolicGradient of functions and of ops, RemoteCall."""

import tensorflow as tf
from tensorflow.core.framework import attr_value_pb2
from tensorflow.python.framework import function
from tensorflow.python.ops import functional_ops, gen_functional_ops

from graphkit import case, v1

F, I = tf.float32, tf.int32
Defun = function.Defun


def gradient(f, inputs, types):
    return list(gen_functional_ops.symbolic_gradient(input=inputs, Tout=types, f=f))


@case("v1")
def symbolic_gradient(b):
    x, y, dz = b.feed(F, [2]), b.feed(F, []), b.feed(F, [2])

    @Defun(F, F)
    def f(x, y):
        return tf.sin(x) * y + tf.exp(y)

    b.step(gradient(f, [x, y, dz], [F, F]), {x: [1, 2], y: 3, dz: [1, 10]})


@case("v1")
def symbolic_gradient_of_several(b):
    x, n, dy, dz = b.feed(F, [2, 2]), b.feed(I, []), b.feed(F, [2, 2]), b.feed(F, [])

    @Defun(F, I, F)
    def f(x, n, unused):
        return tf.matmul(x, x), tf.shape(x)[n], tf.reduce_sum(x[n] * x)

    got = gradient(f, [x, n, dz, dy, n, dz], [F, I, F])
    b.step(got, {x: [[1, 2], [3, 4]], n: 1, dy: [[1, 0], [0, 2]], dz: 0.5})


@case("v1")
def symbolic_gradient_of_double(b):
    x, d = b.feed(tf.float64, [3]), b.feed(tf.float64, [3])

    @Defun(tf.float64)
    def f(x):
        return tf.tanh(x) / (1.0 + x * x)

    b.step(gradient(f, [x, d], [tf.float64]), {x: [1, 2, 3], d: [1, 1, 2]})


@case("v1")
def symbolic_gradient_of_nested(b):
    x, d = b.feed(F, [2]), b.feed(F, [])

    @Defun(F)
    def square(x):
        return x * x

    @Defun(F)
    def f(x):
        return tf.reduce_sum(square(square(x) + 1.0))

    b.step(gradient(f, [x, d], [F]), {x: [1, 2], d: 2})
    b.step(v1.gradients(f(x), x), {x: [1, 2]})


@case("v1")
def symbolic_gradient_of_arguments(b):
    """Results that are arguments, duplicates, or constants."""
    x, y, d = b.feed(F, [2]), b.feed(F, [2]), [b.feed(F, [2]) for _ in range(4)]

    @Defun(F, F)
    def f(x, y):
        z = x * y
        return x, z, z, tf.constant([1.0, 2.0])

    feeds = dict(zip(d, ([1, 2], [3, 4], [5, 6], [7, 8])))
    b.step(gradient(f, [x, y, *d], [F, F]), {x: [1, 2], y: [3, 4]} | feeds)


@case("v1")
def symbolic_gradient_given(b):
    """A function with a gradient in the library."""
    x, d = b.feed(F, [2]), b.feed(F, [2])

    @Defun(F, F)
    def grad_of_f(x, d):
        return d * 100.0 + x

    @Defun(F, grad_func=grad_of_f)
    def f(x):
        return tf.exp(x)

    b.step(v1.gradients(f(x), x, d), {x: [1, 2], d: [3, 4]})


@case("v1")
def symbolic_gradient_of_op(b):
    x, y, d = b.feed(F, [2]), b.feed(F, [2]), b.feed(F, [2])
    f = attr_value_pb2.NameAttrList(name="Mul")
    f.attr["T"].type = F.as_datatype_enum
    b.step(gradient(f, [x, y, d], [F, F]), {x: [1, 2], y: [3, 4], d: [1, 10]})
    f = attr_value_pb2.NameAttrList(name="Softmax")
    f.attr["T"].type = F.as_datatype_enum
    b.step(gradient(f, [x, d], [F]), {x: [1, 2], d: [1, 10]})


@case("v1")
def remote_call(b):
    b.placed = "the target is the full name of a device"
    x, y, where = b.feed(I, []), b.feed(I, []), b.feed(tf.string, [])

    @Defun(I, I)
    def f(x, y):
        return x * y + 1, x - y

    here = "/job:localhost/replica:0/task:0/device:CPU:0"
    product, difference = functional_ops.remote_call(args=[x, y], Tout=[I, I], f=f, target=where)
    b.step([product, difference], {x: 6, y: 7, where: here.encode()})
    b.step(difference * 2, {x: 6, y: 7, where: here.encode()})


@case("v1")
def remote_call_of_state(b):
    b.placed = "the target is the full name of a device"
    var = v1.get_variable("v", initializer=1.0, use_resource=True)

    @Defun(tf.resource, F)
    def f(handle, x):
        update = tf.raw_ops.AssignAddVariableOp(resource=handle, value=x)
        with tf.control_dependencies([update]):
            return tf.raw_ops.ReadVariableOp(resource=handle, dtype=F)

    x = b.feed(F, [])
    here = "/job:localhost/replica:0/task:0/device:CPU:0"
    now = functional_ops.remote_call(args=[var.handle, x], Tout=[F], f=f, target=here)
    b.step(targets=var.initializer.name)
    b.step(now, {x: 2})
    b.step(now, {x: 3})


@case("v1")
def expanded_ops_in_called_functions(b):
    """A SymbolicGradient and a composite op, in inlined functions."""
    x, d = b.feed(F, [2]), b.feed(F, [2])
    image, kernel = b.feed(F, [1, 2, 2, 1]), b.feed(F, [2, 2, 1, 1])

    @Defun(F)
    def f(x):
        return tf.sin(x) * x

    @Defun(F, F)
    def slope(x, d):
        return gradient(f, [x, d], [F])[0]

    @Defun(F, F)
    def outer(x, d):
        return slope(x, d) + 1.0

    @Defun(F, F)
    def padded(image, kernel):
        return tf.raw_ops.FusedPadConv2D(
            input=image, paddings=[[0, 0], [1, 1], [1, 1], [0, 0]], filter=kernel, mode="REFLECT",
            strides=[1, 1, 1, 1], padding="VALID")

    b.step(outer(x, d), {x: [1, 2], d: [1, 10]})
    b.step(padded(image, kernel), {image: [[[[1], [2]], [[3], [4]]]], kernel: [[[[1]], [[2]]], [[[3]], [[4]]]]})
