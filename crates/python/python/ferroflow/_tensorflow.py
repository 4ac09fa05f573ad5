"""Functions and models of an installed TensorFlow."""

from ._ferroflow import Session


def from_tf(fn, *args, **kwargs):
    """Returns a function that computes what a `tf.function` or Keras model does, without TensorFlow.

    A `tf.function` without an input signature is traced with the arguments: arrays or `tf.TensorSpec`s.
    Variables become constants, so that later changes of them are not seen.
    """
    try:
        import tensorflow as tf
    except ImportError as e:
        raise ImportError("from_tf needs TensorFlow: pip install tensorflow") from e
    from tensorflow.python.framework import convert_to_constants

    concrete = _concrete(tf, fn, args, kwargs)
    frozen = convert_to_constants.convert_variables_to_constants_v2(concrete)
    inputs = [t for t in frozen.inputs if t.dtype != tf.resource]
    outputs = [t.name for t in frozen.outputs]
    session = Session(frozen.graph.as_graph_def())
    step = session.make_callable(outputs, [t.name for t in inputs])
    signature = concrete.structured_input_signature

    def run(*args, **kwargs):
        flat = _flat(tf, signature, args, kwargs, len(inputs))
        return tf.nest.pack_sequence_as(concrete.structured_outputs, step(*flat))

    run.__name__ = getattr(fn, "__name__", None) or getattr(fn, "name", "function")
    run.__doc__ = getattr(fn, "__doc__", None)
    run.session = session
    return run


def _concrete(tf, fn, args, kwargs):
    if hasattr(fn, "structured_input_signature"):
        return fn
    if hasattr(fn, "get_concrete_function"):
        return fn.get_concrete_function(*args, **kwargs)
    inputs = getattr(fn, "inputs", None)
    if inputs is not None and not args:
        def spec(t):
            return tf.TensorSpec(t.shape, t.dtype, name=t.name.split(":")[0])

        specs = [spec(t) for t in tf.nest.flatten(inputs)]
        nested = tf.nest.pack_sequence_as(getattr(fn, "_inputs_struct", inputs), specs)
        if isinstance(nested, (list, tuple)) and len(nested) == 1:
            nested = nested[0]
        call = tf.function(lambda x: fn(x, training=False))
        return call.get_concrete_function(nested)
    if callable(fn):
        return tf.function(fn).get_concrete_function(*args, **kwargs)
    raise TypeError(f"{fn!r} is not a tf.function or a Keras model")


def _flat(tf, signature, args, kwargs, n):
    """Returns the tensors of a call, in the order of the function's inputs."""
    from tensorflow.python.util import nest

    positional, named = signature
    pairs = list(zip(positional, args))
    if len(args) > len(positional):
        raise TypeError(f"the function takes {len(positional)} arguments, but got {len(args)}")
    for spec in positional[len(args) :]:
        # Positional arguments of the traced function may be given by name.
        name = getattr(spec, "name", None)
        if name not in kwargs:
            raise TypeError(f"argument '{name}' is missing")
        pairs.append((spec, kwargs.pop(name)))
    for name, spec in named.items():
        if name not in kwargs:
            raise TypeError(f"argument '{name}' is missing")
        pairs.append((spec, kwargs.pop(name)))
    if kwargs:
        raise TypeError(f"unexpected arguments: {', '.join(kwargs)}")
    flat = []
    for spec, value in pairs:
        values = nest.flatten_up_to(spec, value)
        specs = nest.flatten(spec)
        flat += [v for s, v in zip(specs, values) if isinstance(s, tf.TensorSpec)]
    if len(flat) != n:
        raise TypeError(f"the function takes {n} tensors, but got {len(flat)}")
    return flat
