"""Errors of TensorFlow's kernels for tensors that do not fit."""

import numpy as np
import tensorflow as tf

from graphkit import case, raw


def ones(*shape):
    return np.ones(shape, np.float32)


@case("v1")
def products(b):
    x, y = b.feed(tf.float32, None), b.feed(tf.float32, None)
    z = raw.MatMul(a=x, b=y)
    b.step(z, {x: ones(1), y: ones(1, 1)}, error="In[0] ndims must be >= 2")
    b.step(z, {x: ones(1, 1), y: ones(1)}, error="In[1] ndims must be >= 2")
    b.step(z, {x: ones(2, 2, 2), y: ones(2, 2, 2)}, error="In[0] ndims must be >= 2")
    b.step(z, {x: ones(2, 3), y: ones(2, 3)},
           error="Matrix size-incompatible: In[0]: [2,3], In[1]: [2,3]")
    b.step(raw.MatMul(a=x, b=tf.constant(ones(2, 2))), {x: ones(2, 2, 2)},
           error="In[0] ndims must be >= 2")
    p, q = b.feed(tf.float64, None), b.feed(tf.float64, None)
    z = raw.MatMul(a=p, b=q)
    b.step(z, {p: ones(2, 2), q: ones(2, 2, 2)},
           error="In[0] and In[1] has different ndims: [2,2] vs. [2,2,2]")
    b.step(z, {p: ones(1), q: ones(1)}, error="In[0] and In[1] ndims must be == 2: 1")


@case("v1")
def pooling(b):
    x = b.feed(tf.float32, None)
    window = dict(ksize=[1, 2, 2, 1], strides=[1, 1, 1, 1], padding="VALID")
    b.step(raw.MaxPool(input=x, **window), {x: ones(4, 4)}, error="Input must be 4 or 5-dimensional")
    b.step(raw.AvgPool(value=x, **window), {x: ones(4, 4, 4)},
           error="Input must be 4 or 5-dimensional")
    b.step(raw.MaxPoolWithArgmax(input=x, **window).output, {x: ones(4, 4, 4)},
           error="tensor_in must be 4-dimensional (2)")
    b.step(raw.MaxPoolGrad(orig_input=x, orig_output=ones(1, 1, 1, 1), grad=ones(1, 1, 1, 1),
                           **window), {x: ones(4, 4)}, error="tensor_in must be 4-dimensional")
    d = b.feed(tf.float64, None)
    b.step(raw.MaxPool(input=d, **window), {d: ones(4, 4, 4)},
           error="tensor_in_shape must have 2 spatial dimensions. 3 0")


@case("v1")
def negative_sizes(b):
    shape = b.feed(tf.int32, None)
    fed = {shape: [2, -1, 3]}
    error = "Dimension -1 must be >= 0"
    b.step(raw.Fill(dims=shape, value=1.0), fed, error=error)
    b.step(raw.Empty(shape=shape, dtype=tf.float32), fed, error=error)
    b.step(raw.BroadcastTo(input=1.0, shape=shape), fed, error=error)
    b.step(raw.RandomUniform(shape=shape, dtype=tf.float32), fed, error=error)
    b.step(raw.TruncatedNormal(shape=shape, dtype=tf.float32), fed, error=error)
    b.step(raw.StatelessRandomUniform(shape=shape, seed=[1, 2]), fed, error=error)


@case("v1")
def selections(b):
    cond = b.feed(tf.bool, None)
    x, y = b.feed(tf.float32, None), b.feed(tf.float32, None)
    # The node's name is part of the message.
    z = raw.Select(condition=cond, x=x, y=y, name="choice")
    unlike = "Inputs to operation choice of type Select must have the same size and shape.  "
    b.step(z, {cond: True, x: ones(2), y: ones(3)},
           error="'then' and 'else' must have the same size.  but received: [2] vs. [3]")
    b.step(z, {cond: [True], x: ones(3), y: ones(3)}, error=unlike + "Input 0: [1] != input 1: [3]")
    b.step(z, {cond: [True] * 3, x: ones(3), y: ones(1)},
           error=unlike + "Input 0: [3] != input 2: [1]")
    b.step(z, {cond: [[True]], x: ones(1), y: ones(1)},
           error=unlike + "Input 0: [1,1] != input 1: [1]")
    b.step(z, {cond: [True, False], x: 1.0, y: 2.0},
           error="'then' must be at least a vector, but saw shape: []")
    b.step(z, {cond: [True, False], x: ones(3, 3), y: ones(3, 3)},
           error="Number of batches of 'then' must match size of 'cond', but saw: 3 vs. 2")
    b.step(z, {cond: [True], x: ones(1, 2), y: 2 * ones(1, 2)})
    b.step(z, {cond: [[True, False]], x: ones(1, 2), y: 2 * ones(1, 2)})


@case("v1")
def moves(b):
    x, i = b.feed(tf.float32, None), b.feed(tf.int32, None)
    b.step(raw.Transpose(x=x, perm=i), {x: ones(2, 2), i: [0, 0]}, error="1 is missing from {0,0}.")
    b.step(raw.Transpose(x=x, perm=[0, 0, 2]), {x: ones(2, 2, 2)}, error="1 is missing from {0,0,2}.")
    b.step(raw.Transpose(x=x, perm=i), {x: ones(2, 2), i: [1, -1]}, error="0 is missing from {1,1}.")
    b.step(raw.Transpose(x=x, perm=i), {x: ones(2, 2), i: [-3, 0]},
           error="-1 is out of range [0 .. 2)")
    b.step(raw.Transpose(x=x, perm=i), {x: [[1.0, 2.0, 3.0]], i: [-1, 0]})
    b.step(raw.Transpose(x=x, perm=[-1, 0]), {x: [[1.0, 2.0, 3.0]]})
    b.step(raw.Transpose(x=x, perm=[0]), {x: ones(2, 2)},
           error="transpose expects a vector of size 2. But input(1) is a vector of size 1")
    b.step(raw.ReverseV2(tensor=x, axis=i), {x: ones(2), i: [1]},
           error="'axis'[0] = 1 is out of valid range [0, 0")
    b.step(raw.ReverseV2(tensor=x, axis=i), {x: ones(2), i: [0, 0]},
           error="axis 0 specified more than once.")
    b.step(raw.ReverseSequence(input=x, seq_lengths=i, seq_dim=1, batch_dim=0),
           {x: ones(1, 2), i: [5]}, error="seq_lens(0) > input.dims(1)")
    b.step(raw.ReverseSequence(input=x, seq_lengths=i, seq_dim=0, batch_dim=1),
           {x: ones(2, 1), i: [1, 1]}, error="Length of seq_lengths != input.dims(1), (2 vs. 1)")
    b.step(raw.DepthToSpace(input=x, block_size=2), {x: ones(1, 1, 1, 3)},
           error="Input depth dimension 3 should be divisible by: 4")
    b.step(raw.SpaceToDepth(input=x, block_size=2), {x: ones(1, 3, 4, 1)},
           error="Image width 4 and height 3 should be divisible by block_size: 2")
    b.step(raw.SpaceToDepth(input=x, block_size=2), {x: ones(1, 1)},
           error="Input rank should be 4 instead of 2")
    b.step(raw.DepthToSpace(input=x, block_size=2), {x: ones(1, 1)},
           error="Input rank should be: 4 instead of: 2")
    b.step(raw.Bitcast(input=x, type=tf.float64), {x: ones(3)}, error="Cannot bitcast from 1 to 2")
    b.step(raw.GatherNd(params=x, indices=i, name="picked"), {x: ones(2), i: [[5]]},
           error="indices[0] = [5] does not index into param shape [2], node name: picked")
    b.step(raw.SparseToDense(sparse_indices=i, output_shape=[3], sparse_values=[1.0, 2.0],
                             default_value=0.0), {i: [[1], [0]]},
           error="indices[1] = [0] is out of order. Many sparse ops require sorted indices.\n"
                 "    Use `tf.sparse.reorder` to create a correctly ordered copy.")


@case("v1")
def texts(b):
    s, pattern = b.feed(tf.string, None), b.feed(tf.string, None)
    b.step(raw.ParseTensor(serialized=s, out_type=tf.float32), {s: "garbage"},
           error="Could not parse `serialized` as TensorProto, base64: Z2FyYmFnZQ==")
    replaced = raw.RegexReplace(input=s, pattern=pattern, rewrite="x")
    matched = raw.RegexFullMatch(input=s, pattern=pattern)
    for text, why in [("(", "missing ): ("), ("[a", "missing ]: [a"), (")", "unexpected ): )"),
                      ("b[z-a]", "invalid character class range: z-a"), ("a\\", "trailing \\"),
                      ("*", "no argument for repetition operator: *"),
                      ("*?a", "no argument for repetition operator: *?"),
                      ("ab(?P<n", "invalid named capture group: (?P<n"),
                      ("(?P<a-b>x)", "invalid named capture group: (?P<a-b>"),
                      ("a{3,1}", "invalid repetition size: {3,1}"),
                      ("(?P<n", "invalid named capture group: (?P<n"),
                      ("(?=a)", "invalid perl operator: (?="), ("\\8", "invalid escape sequence: \\8")]:
        error = f"Invalid pattern: {text}, error: {why}"
        b.step(replaced, {s: ["a"], pattern: text}, error=error)
        b.step(matched, {s: ["a"], pattern: text}, error=error)


@case("v1")
def missing_kernels(b):
    x = b.feed(tf.int8, None)
    pool = raw.MaxPool(input=raw.Bitcast(input=x, type=tf.qint8), ksize=[1, 1, 1, 1],
                       strides=[1, 1, 1, 1], padding="VALID", name="pool")
    b.step(pool, {x: np.zeros((1, 1, 1, 1), np.int8)},
           error="No OpKernel was registered to support Op 'MaxPool' used by {{node pool}} with "
                 "these attrs: [")


@case("v1")
def kernels_there_are(b):
    x = b.feed(tf.int8, None)
    pool = raw.MaxPool(input=raw.Bitcast(input=x, type=tf.qint8), ksize=[1, 1, 1, 1],
                       strides=[1, 1, 1, 1], padding="VALID", name="pool")
    for kind in ("FLOAT", "INT64", "UINT8"):
        b.step(pool, {x: np.zeros((1, 1, 1, 1), np.int8)},
               error=f"\n  device='CPU'; T in [DT_{kind}]\n")


@case("v1")
def ensured_shapes(b):
    # The message has the name of the input, which differs in a step that feeds it.
    x = b.feed(tf.float32, None)
    twice = tf.multiply(x, 2.0, name="twice")
    b.step(raw.EnsureShape(input=twice, shape=[2]), {x: ones(1)},
           error="Shape of tensor twice [1] is not compatible with expected shape [2].")
    halves = tf.split(x, 2, name="halves")
    b.step(raw.EnsureShape(input=halves[1], shape=[None, 3]), {x: ones(4)},
           error="Shape of tensor halves:1 [2] is not compatible with expected shape [?,3].")
    same = tf.identity(x, name="same")
    b.step(raw.EnsureShape(input=same, shape=[2]), {x: ones(1)},
           error="Shape of tensor same [1] is not compatible with expected shape [2].")


@case("v1")
def destroyed(b):
    def destroy(handle, name):
        return raw.DestroyResourceOp(resource=handle, ignore_lookup_error=False, name=name)

    here = raw.VarHandleOp(dtype=tf.float32, shape=[], shared_name="here")
    other = raw.VarHandleOp(dtype=tf.float32, shape=[], shared_name="here", container="box")
    queue = raw.FIFOQueueV2(component_types=[tf.float32], name="queue")
    gone, missing = destroy(here, "gone"), destroy(other, "missing")
    b.step(targets=[gone], error="Container localhost does not exist.")
    b.step(targets=[raw.AssignVariableOp(resource=here, value=1.0)])
    b.step(targets=[gone])
    b.step(targets=[gone], error="Resource localhost/here/")
    b.step(targets=[missing], error="Container box does not exist.")
    b.step(targets=[destroy(queue, "first")])
    b.step(targets=[destroy(queue, "second")])


@case("v1")
def no_folder(b):
    x = b.feed(tf.float32, ())
    path = "/no/such/folder/checkpoint"
    save = raw.SaveV2(prefix=path, tensor_names=["a"], shape_and_slices=[""], tensors=[x])
    b.step(targets=[save], feeds={x: 1.0}, error="/no/such/folder; No such file or directory")
    save = raw.SaveV2(prefix="/dev/null/checkpoint", tensor_names=["a"], shape_and_slices=[""],
                      tensors=[x])
    b.step(targets=[save], feeds={x: 1.0}, error="; Not a directory")
    save = raw.Save(filename=path, tensor_names=["a"], data=[x])
    b.step(targets=[save], feeds={x: 1.0}, error="; No such file or directory")
    write = raw.WriteFile(filename="/dev/null/file", contents="text")
    b.step(targets=[write], error="/dev/null/file; Not a directory")
    write = raw.WriteFile(filename="/proc/no/file", contents="text")
    b.step(targets=[write], error="/proc/no; No such file or directory")


@case("v1")
def functions_of_python(b):
    x = b.feed(tf.float32, ())
    error = "ValueError: Could not find callback with key=nobody in the registry."
    b.step(raw.PyFunc(input=[x], token="nobody", Tout=[tf.float32])[0], {x: 1.0}, error=error)
    b.step(raw.PyFuncStateless(input=[x], token="nobody", Tout=[tf.float32])[0], {x: 1.0},
           error=error)
