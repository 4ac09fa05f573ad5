"""Elementwise maths, reductions, matrix products, softmax and losses."""

import numpy as np
import tensorflow as tf
from gradients import case

raw = tf.raw_ops


def unary(op, low=-2.0, high=2.0, **attrs):
    @case(name=op)
    def run(b):
        return getattr(raw, op)(**{first(op): b.x(b.random.uniform(low, high, (2, 3)))}, **attrs)


def first(op):
    import inspect
    return next(iter(inspect.signature(getattr(raw, op)).parameters))


for op in ["Exp", "Expm1", "Sin", "Cos", "Tan", "Atan", "Sinh", "Cosh", "Tanh", "Asinh", "Sigmoid",
           "Erf", "Erfc", "Abs", "Neg", "Square", "Relu", "Relu6", "Elu", "Selu", "Softplus",
           "Softsign", "Reciprocal", "Inv", "LeakyRelu", "Sign", "Identity"]:
    unary(op)
for op in ["Sqrt", "Rsqrt", "Log", "Log1p", "Lgamma", "Digamma"]:
    unary(op, 0.3, 3.0)
for op in ["Asin", "Acos", "Atanh", "Erfinv"]:
    unary(op, -0.9, 0.9)
unary("Acosh", 1.2, 3.0)
for op in ["BesselI0", "BesselI0e", "BesselI1", "BesselI1e", "BesselJ0", "BesselJ1", "BesselK0",
           "BesselK0e", "BesselK1", "BesselK1e", "BesselY0", "BesselY1", "Dawsn", "Expint",
           "FresnelCos", "FresnelSin", "Spence"]:
    unary(op, 0.3, 3.0)
for op in ["BesselI0", "BesselI0e", "BesselI1e", "BesselJ0", "BesselJ1", "Dawsn", "FresnelCos", "FresnelSin"]:
    unary(op)
unary("Ndtri", 0.1, 0.9)
unary("LeakyRelu", alpha=0.3)
for op in ["Floor", "Ceil", "Rint", "Round"]:
    case(lambda b, op=op: getattr(raw, op)(x=b.x([4])) * b.x([4]), numeric=False, name=op)


def parts(z):
    return [tf.math.real(z), tf.math.imag(z)]


COMPLEX = {
    "mul": lambda z: z * tf.math.conj(z) * z, "exp": tf.exp, "sub": lambda z: z - 2.0 * z,
    "div": lambda z: tf.exp(z) / (z + 3.0), "sin": tf.sin, "cos": tf.cos, "sqrt": tf.sqrt,
    "rsqrt": tf.math.rsqrt, "tanh": tf.tanh, "reciprocal": tf.math.reciprocal,
    "square": tf.square, "log": tf.math.log, "sigmoid": tf.sigmoid, "atan": tf.atan,
    "asinh": tf.asinh, "acosh": tf.acosh, "pow": lambda z: tf.pow(z, z * 0.5),
    "sum": lambda z: tf.reduce_sum(z) * z, "prod": tf.reduce_prod,
    "matmul": lambda z: tf.matmul(tf.reshape(z, [1, 3]), tf.reshape(z, [3, 1])),
}
for name, f in COMPLEX.items():
    @case(name=f"complex_{name}")
    def of_complex(b, f=f):
        z = raw.Complex(real=b.x([3]), imag=b.x([3]), Tout=tf.complex128) + 3.0
        return parts(f(z))


# Second derivatives depend on conjugates, too.
for name in ["sqrt", "rsqrt", "reciprocal", "log", "exp", "square", "div"]:
    @case(name=f"complex_twice_{name}", second=True)
    def twice(b, f=COMPLEX[name]):
        x = b.x([3])
        y = tf.gradients(tf.math.real(f(raw.Complex(real=x, imag=x * x, Tout=tf.complex128) + 3.0)), x)[0]
        return tf.gradients(y * x, x)[0]


@case
def complex_parts(b):
    z = raw.Complex(real=b.x([3]), imag=b.x([3]), Tout=tf.complex128)
    return [tf.math.real(z), tf.math.imag(z), tf.abs(z), tf.math.angle(z)]


def binary(op, low=-2.0, high=2.0, numeric=True):
    for i, (a, c) in enumerate([((2, 3), (2, 3)), ((2, 3), (3,)), ((), (4,)), ((2, 1, 4), (3, 1)),
                                ((1, 3), (2, 1)), ((5,), ())]):
        @case(name=f"{op}_{i}", numeric=numeric)
        def run(b, a=a, c=c):
            x, y = b.x(b.random.uniform(low, high, a)), b.x(b.random.uniform(low, high, c))
            names = list(__import__("inspect").signature(getattr(raw, op)).parameters)
            return getattr(raw, op)(**{names[0]: x, names[1]: y})


for op in ["Add", "AddV2", "Sub", "Mul", "Maximum", "Minimum", "SquaredDifference", "MulNoNan",
           "Atan2"]:
    binary(op)
for op in ["Div", "RealDiv", "DivNoNan", "Xdivy", "Xlogy", "Xlog1py", "Pow"]:
    binary(op, 0.5, 2.0)
binary("FloorMod", 0.6, 3.0, numeric=False)


@case(numeric=False)
def pow_of_zero(b):
    return tf.pow(b.x([0.0, -1.0, 2.0, 0.0]), b.x([2.0, 3.0, 0.0, 0.0]))


@case(numeric=False)
def equal_ones(b):
    x, y = b.x([1.0, 2.0, 2.0]), b.x([1.0, 1.0, 3.0])
    return [tf.maximum(x, y), tf.minimum(x, y), tf.reduce_max(tf.stack([x, y]), 0)]


def reduction(op, keep, axes, shape=(2, 3, 4), low=-2.0, high=2.0):
    @case(name=f"{op}_{keep}_{axes}".replace(" ", ""))
    def run(b):
        x = b.x(b.random.uniform(low, high, shape))
        axis = tf.constant(axes, tf.int32) if b.static else b.feed(np.array(axes, np.int32))
        args = {"input": x, "keep_dims": keep}
        names = list(__import__("inspect").signature(getattr(raw, op)).parameters)
        args[names[1]] = axis
        return getattr(raw, op)(**args)


for op in ["Sum", "Mean", "Prod", "Max", "Min", "EuclideanNorm"]:
    for keep in [False, True]:
        for axes in [[1], [0, -1], [0, 1, 2], 2, []]:
            reduction(op, keep, axes)


@case(numeric=False)
def prod_with_zeros(b):
    return tf.reduce_prod(b.x(np.array([[0.0, 2.0, 3.0], [0.0, 0.0, 1.0], [4.0, 5.0, 6.0]])), 1)


@case
def l2_loss(b):
    return tf.nn.l2_loss(b.x([3, 2]))


for ta in [False, True]:
    for tb in [False, True]:
        @case(name=f"MatMul_{ta}_{tb}")
        def mat_mul(b, ta=ta, tb=tb):
            x, y = b.x((3, 2) if ta else (2, 3)), b.x((4, 3) if tb else (3, 4))
            return tf.matmul(x, y, ta, tb)

        @case(name=f"BatchMatMul_{ta}_{tb}")
        def batch_mat_mul(b, ta=ta, tb=tb):
            x, y = b.x((2, 5, 3, 2) if ta else (2, 5, 2, 3)), b.x((5, 4, 3) if tb else (5, 3, 4))
            z = raw.BatchMatMulV2(x=x, y=y, adj_x=ta, adj_y=tb)
            return [z, raw.BatchMatMulV3(x=x, y=y, Tout=tf.float64, adj_x=ta, adj_y=tb)]


@case
def bias_add(b):
    x, c = b.x([2, 3, 4]), b.x([4])
    return [raw.BiasAdd(value=x, bias=c), raw.BiasAddV1(value=x, bias=c)]


@case
def sums_of_many(b):
    x, y = b.x([2, 2]), b.x([2, 2])
    return tf.add_n([x, y, x * y, x])


@case
def clip(b):
    return raw.ClipByValue(t=b.x([7]), clip_value_min=b.x(-1.0), clip_value_max=b.x(0.5))


@case
def softmax(b):
    x = b.x([3, 4])
    return [tf.nn.softmax(x), tf.nn.log_softmax(x)]


@case
def cross_entropy(b):
    labels = b.x(b.random.dirichlet([1.0] * 4, 3))
    return tf.nn.softmax_cross_entropy_with_logits(labels, b.x([3, 4]))


@case
def sparse_cross_entropy(b):
    labels = b.feed(np.array([0, 3, 1], np.int64))
    return raw.SparseSoftmaxCrossEntropyWithLogits(features=b.x([3, 4]), labels=labels)[0]


@case
def shapes(b):
    x = b.x([2, 1, 6])
    y = tf.reshape(x, [3, 4])
    z = tf.squeeze(x, [1])
    return [y * 2.0, tf.expand_dims(z, 0) * z, tf.ensure_shape(z, [2, 6]) + 1.0]


@case(numeric=False)
def casts(b):
    x = b.x([5])
    return tf.cast(tf.cast(x, tf.float32) * 3.0, tf.float64) * x


@case(numeric=False)
def filled(b):
    x = b.x(1.5)
    return [tf.fill([2, 3], x), tf.zeros_like(x) + tf.ones_like(x) * x, tf.linspace(0.0, 1.0, 3)]


@case(numeric=False)
def stopped(b):
    x, y = b.x([3]), b.x([3])
    z = x * y
    b.stops.append(z)
    return [z * x, tf.stop_gradient(x) * y, z + z]


@case
def not_connected(b):
    x, y = b.x([3]), b.x([3])
    return x * 2.0


@case
def used_often(b):
    x = b.x([3])
    for _ in range(4):
        x = x * x * 0.5 + tf.sin(x) - x
    return [x, x * 2.0]


@case
def perceptron(b):
    x = b.feed(b.random.uniform(-1, 1, (5, 7)))
    w, c, v, d = b.x([7, 6]), b.x([6]), b.x([6, 4]), b.x([4])
    h = tf.nn.relu(tf.nn.bias_add(tf.matmul(x, w), c))
    logits = tf.matmul(h, v) + d
    labels = b.feed(np.array([0, 1, 2, 3, 0], np.int64))
    loss = raw.SparseSoftmaxCrossEntropyWithLogits(features=logits, labels=labels)[0]
    return tf.reduce_mean(loss) + 0.01 * (tf.nn.l2_loss(w) + tf.nn.l2_loss(v))


@case
def second_order(b):
    x = b.x(b.random.uniform(0.3, 0.9, (6,)))
    fs = [tf.sqrt, tf.math.rsqrt, tf.tanh, tf.sigmoid, tf.math.reciprocal, tf.nn.elu, tf.nn.selu,
          tf.nn.softplus, tf.nn.relu, tf.nn.relu6, tf.nn.leaky_relu, tf.exp, tf.math.log]
    total = tf.add_n([f(x * (1 if i % 2 else -1)) if f in (tf.nn.elu, tf.nn.selu) else f(x)
                      for i, f in enumerate(fs)])
    first = tf.gradients(total, x)[0]
    return tf.gradients(first * x, x)[0]


@case
def second_order_losses(b):
    w, labels = b.x([3, 4]), b.feed(b.random.dirichlet([1.0] * 4, 3))
    loss = tf.nn.softmax_cross_entropy_with_logits(labels, w * w)
    return tf.gradients(loss, w)[0]


@case
def incomplete_gamma_by_shape(b):
    a, x = b.x(np.array([[0.3, 2.0, 7.0], [0.9, 30.0, 200.0]])), b.x(np.array([1.5, 2.5, 9.0]))
    near = b.x(np.array([[0.1, 2.5, 6.0], [4.0, 33.0, 190.0]]))
    return [tf.math.igamma(a, x), tf.math.igammac(a, x), tf.math.igamma(a, near), tf.math.igammac(a, near)]


@case(numeric=False, tol=1e-5)
def gamma_samples(b):
    alpha = b.x(np.array([0.4, 1.5, 6.0]))
    return raw.RandomGamma(shape=[4], alpha=alpha, seed=3, seed2=5)


@case(numeric=False, tol=1e-5)
def stateless_gamma_samples(b):
    alpha, keyed = b.x(np.array([0.4, 1.5, 6.0])), b.x(np.array([[0.7], [3.0]]))
    key, counter = tf.constant([3], tf.uint64), tf.constant([4, 5], tf.uint64)
    return [raw.StatelessRandomGammaV2(shape=[4, 3], seed=[3, 5], alpha=alpha),
            raw.StatelessRandomGammaV3(shape=[2, 2, 1], key=key, counter=counter, alg=1, alpha=keyed)]


@case(numeric=False, tol=1e-5)
def cut_normal_samples(b):
    mean, deviation = b.x(np.array([0.4, 1.5, 6.0])), b.x(np.array([[0.7], [3.0]]))
    low, high = b.x(np.array(-2.0)), b.x(np.array([5.0, 6.0, 9.0]))
    return raw.StatelessParameterizedTruncatedNormal(shape=[4, 2, 3], seed=[3, 5], means=mean, stddevs=deviation,
                                                     minvals=low, maxvals=high)


@case
def printed(b):
    x = b.x([3])
    return raw.Print(input=x * x, data=[x], message="values", first_n=0)


@case
def bias_twice(b):
    x, c, y, e = b.x([2, 3]), b.x([3]), b.x([2, 3, 2, 2]), b.x([3])
    first = tf.nn.bias_add(x * x, c)
    second = raw.BiasAdd(value=y * y, bias=e, data_format="NCHW")
    dc = tf.gradients(first * first, c)[0]
    de = tf.gradients(second * second, e)[0]
    return [dc * c, de * e]
