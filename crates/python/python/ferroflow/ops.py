"""TensorFlow's ops by name: inputs are arguments, attrs are keyword arguments.

>>> from ferroflow import ops
>>> ops.AddV2([1, 2], 10)
array([11, 12], dtype=int32)
>>> ops.TopKV2([3.0, 9.0, 5.0], 2)
TopKV2(values=array([9., 5.], dtype=float32), indices=array([1, 2], dtype=int32))
>>> ops.Cast([1.7, 2.2], DstT="int32")
array([1, 2], dtype=int32)

State lives behind handles:

>>> v = ops.VarHandleOp(dtype="float32", shape=[2])
>>> ops.AssignVariableOp(v, [1.0, 2.0])
>>> ops.AssignAddVariableOp(v, [1.0, 1.0])
>>> ops.ReadVariableOp(v, dtype="float32")
array([2., 3.], dtype=float32)

`definition` has the signature of an op:

>>> ops.Square.definition
'Op<name=Square; signature=x:T -> y:T; attr=T:type...'
"""

from ._ferroflow import Op, op_names


def __getattr__(name):
    if name.startswith("__"):
        raise AttributeError(name)
    op = Op(name)
    globals()[name] = op
    return op


def __dir__():
    return op_names()
