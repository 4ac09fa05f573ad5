"""State that outlives a step: variables by handle and by reference, lookup tables."""

import numpy as np
import tensorflow as tf

from graphkit import case, raw, v1

NUMBERS = ["float16", "bfloat16", "float32", "float64", "int8", "int16", "int32", "int64", "uint8",
           "uint16", "uint32", "uint64", "complex64", "complex128"]
ANONYMOUS = "cd2c89b7-88b7-44c8-ad83-06c2a9158347"


def handle(dtype=tf.float32, shape=None, name="v"):
    return raw.VarHandleOp(dtype=dtype, shape=tf.TensorShape(shape), shared_name=name)


def read(h, dtype=tf.float32, **kw):
    return raw.ReadVariableOp(resource=h, dtype=dtype, **kw)


def after(op):
    return tf.control_dependencies([op])


# --- variables by handle --------------------------------------------------------------------


@case("v1")
def life_of_a_variable(b):
    x, h = b.feed(tf.float32, None), handle()
    init, value = raw.AssignVariableOp(resource=h, value=x), read(h)
    is_init = raw.VarIsInitializedOp(resource=h)
    add = raw.AssignAddVariableOp(resource=h, value=x)
    sub = raw.AssignSubVariableOp(resource=h, value=x)
    shape = raw.VariableShape(input=h, out_type=tf.int64)
    destroy = raw.DestroyResourceOp(resource=h, ignore_lookup_error=False)
    lenient = raw.DestroyResourceOp(resource=h)
    b.step(is_init)
    b.step(value, error="Could not find variable v. This could mean that the variable has been "
           "deleted. In TF1, it can also mean the variable is uninitialized. Debug info: "
           "container=localhost, status error message=")
    b.step(targets=add.name, feeds={x: [1.0]}, error="localhost")
    b.step(shape, error="localhost")
    b.step(targets=destroy.name, error="localhost")
    b.step(targets=lenient.name)
    b.step(targets=init.name, feeds={x: [1.0, 2.0]})
    b.step([value, is_init, shape])
    b.step(targets=add.name, feeds={x: [10.0, 20.0]})
    b.step(value)
    b.step(targets=sub.name, feeds={x: [0.5, 0.25]})
    b.step(value)
    b.step(targets=add.name, feeds={x: [1.0]},
           error="Cannot update variable with shape [2] using a Tensor with shape [1], shapes must "
           "be equal.")
    b.step(value)
    b.step(targets=init.name, feeds={x: [[3.0]]})
    b.step([value, shape])
    b.step(targets=destroy.name)
    b.step(is_init)
    b.step(value, error="Could not find variable v.")
    b.step(targets=init.name, feeds={x: 4.0})
    b.step([value, shape])


@case("v1")
def assignments_that_do_not_fit(b):
    x, h = b.feed(tf.float32, None), handle(shape=[2])
    free = raw.AssignVariableOp(resource=h, value=x)
    strict = raw.AssignVariableOp(resource=h, value=x, validate_shape=True)
    b.step(targets=free.name, feeds={x: [1.0, 2.0]})
    b.step(targets=strict.name, feeds={x: [1.0, 2.0, 3.0]},
           error="Trying to assign to variable with tensor with wrong shape. Expected [2] got [3]")
    b.step(read(h))
    other = handle(tf.int32, [2])
    b.step(read(other, tf.int32),
           error="Trying to read variable with wrong dtype. Expected int32 got float")


@case("v1")
def a_read_is_a_snapshot(b):
    """A value read before a change does not change."""
    h = handle(shape=[3])
    init = raw.AssignVariableOp(resource=h, value=[1.0, 2.0, 3.0])
    before = read(h)
    with after(before):
        add = raw.AssignAddVariableOp(resource=h, value=[1.0, 1.0, 1.0])
    with after(add):
        now = read(h)
        late = before * 1.0
    b.step(targets=init.name)
    b.step([before, now, late])
    b.step([before, now, late])


@case("v1")
def handles_share_by_name(b):
    one, two, none = handle(name="a"), handle(name="a"), handle(name="")
    other = handle(name="")
    b.step(targets=raw.AssignVariableOp(resource=one, value=[1.0]).name)
    b.step(read(two))
    b.step(targets=raw.AssignVariableOp(resource=none, value=[2.0]).name)
    b.step(read(other))
    in_other = raw.VarHandleOp(dtype=tf.float32, shape=None, shared_name="a", container="c")
    b.step(raw.VarIsInitializedOp(resource=in_other))
    anonymous = handle(name=ANONYMOUS)
    with after(raw.AssignVariableOp(resource=anonymous, value=[5.0])):
        value = read(anonymous)
    b.step(value)
    b.step(raw.VarIsInitializedOp(resource=anonymous))


@case("v1")
def variables_of_every_dtype(b):
    for dtype in [*NUMBERS, "bool", "string"]:
        dtype = tf.as_dtype(dtype)
        h = handle(dtype, name=dtype.name)
        start = {tf.bool: [True, False], tf.string: ["a", "b"]}.get(dtype, [3, 1])
        more = {tf.bool: [True, True], tf.string: ["c", "d"]}.get(dtype, [1, 1])
        b.step(targets=raw.AssignVariableOp(resource=h, value=tf.constant(start, dtype)).name)
        if dtype.name in NUMBERS:
            value = tf.constant(more, dtype)
            b.step(targets=raw.AssignAddVariableOp(resource=h, value=value).name)
            b.step(read(h, dtype))
            b.step(targets=raw.AssignSubVariableOp(resource=h, value=value).name)
        b.step(read(h, dtype))


@case("v1")
def gathers(b):
    i, h = b.feed(tf.int32, None), handle()
    b.step(raw.ResourceGather(resource=h, indices=i, dtype=tf.float32), {i: 0}, error="localhost")
    table = np.arange(12, dtype=np.float32).reshape(3, 2, 2)
    b.step(targets=raw.AssignVariableOp(resource=h, value=table).name)
    rows = raw.ResourceGather(resource=h, indices=i, dtype=tf.float32)
    batched = raw.ResourceGather(resource=h, indices=i, dtype=tf.float32, batch_dims=1)
    coords = raw.ResourceGatherNd(resource=h, indices=i, dtype=tf.float32)
    b.step(rows, {i: [2, 0, 2]})
    b.step(rows, {i: [[1], [0]]})
    b.step(rows, {i: 1})
    b.step(rows, {i: np.zeros((0, 2))})
    b.step(rows, {i: [0, 3]}, error="indices[1] = 3 is not in [0, 3)")
    b.step(rows, {i: [-1]}, error="indices[0] = -1 is not in [0, 3)")
    b.step(batched, {i: [[1], [0], [1]]})
    b.step(coords, {i: [[2, 1], [0, 0]]})
    b.step(coords, {i: [[1]]})
    b.step(coords, {i: [[1, 2]]}, error="indices[0] = [1, 2] does not index into param shape")
    words = handle(tf.string, name="words")
    b.step(targets=raw.AssignVariableOp(resource=words, value=["x", "y"]).name)
    b.step(raw.ResourceGather(resource=words, indices=i, dtype=tf.string), {i: [1, 1, 0]})


@case("v1")
def scatters(b):
    i, u, h = b.feed(tf.int32, None), b.feed(tf.float32, None), handle()
    init = raw.AssignVariableOp(resource=h, value=np.arange(6, dtype=np.float32).reshape(3, 2) + 1)
    value = read(h)
    for kind in ("Add", "Sub", "Mul", "Div", "Min", "Max", "Update"):
        op = getattr(raw, f"ResourceScatter{kind}")(resource=h, indices=i, updates=u)
        b.step(targets=init.name)
        b.step(targets=op.name, feeds={i: [2, 0], u: [[2, 3], [4, 0.5]]})
        b.step(value)
        b.step(targets=op.name, feeds={i: [1, 1], u: [[2, 3], [4, 5]]})
        b.step(value)
        b.step(targets=op.name, feeds={i: [0, 2], u: 2})
        b.step(value)
        b.step(targets=op.name, feeds={i: np.zeros(0), u: np.zeros((0, 2))})
        b.step(value)
        b.step(targets=op.name, feeds={i: [1, 3], u: [[1, 1], [1, 1]]},
               error="indices[1] = 3 is not in [0, 3)")
        b.step(targets=op.name, feeds={i: [1], u: [1]}, error="Must have updates.shape = "
               "indices.shape + params.shape[1:] or updates.shape = []")
    for kind in ("Add", "Sub", "Min", "Max", "Update"):
        op = getattr(raw, f"ResourceScatterNd{kind}")(ref=h, indices=i, updates=u)
        b.step(targets=init.name)
        b.step(targets=op.name, feeds={i: [[2, 0], [0, 1]], u: [2.5, -3]})
        b.step(value)
        b.step(targets=op.name, feeds={i: [[1]], u: [[0, 9]]})
        b.step(value)
        b.step(targets=op.name, feeds={i: [[3, 0]], u: [1]}, error="indices[0] = [3, 0] does not")


@case("v1")
def scatters_of_every_dtype(b):
    for dtype in NUMBERS:
        dtype = tf.as_dtype(dtype)
        h = handle(dtype, name=dtype.name)
        init = raw.AssignVariableOp(resource=h, value=tf.constant([7, 3, 5], dtype))
        kinds = ["Add", "Mul", "Div", "Update"] + ([] if dtype.is_complex else ["Min", "Max"])
        for kind in kinds:
            op = getattr(raw, f"ResourceScatter{kind}")(
                resource=h, indices=tf.constant([0, 2], tf.int64), updates=tf.constant([2, 9], dtype))
            b.step(targets=init.name)
            b.step(targets=op.name)
            b.step(read(h, dtype))
    h = handle(tf.int32, name="whole")
    b.step(targets=raw.AssignVariableOp(resource=h, value=[7, -7]).name)
    u = b.feed(tf.int32, [2])
    op = raw.ResourceScatterDiv(resource=h, indices=[0, 1], updates=u)
    b.step(targets=op.name, feeds={u: [2, 2]})
    b.step(read(h, tf.int32))
    b.step(targets=op.name, feeds={u: [2, 0]}, error="updates must not contain 0")


@case("v1", "v2")
def variables_in_loops(b):
    n, h = b.feed(tf.int32), handle(tf.int32, [])
    b.step(targets=raw.AssignVariableOp(resource=h, value=0).name)

    def body(i):
        with after(raw.AssignAddVariableOp(resource=h, value=i)):
            return tf.identity(i) + 1

    last, _ = tf.while_loop(lambda i, _: i < n, lambda i, j: (body(i), j), [0, 0])
    with after(last):
        total = read(h, tf.int32)
    b.step([last, total], {n: 4})
    b.step([last, total], {n: 1})


# --- variables by reference -----------------------------------------------------------------


@case("v1")
def references(b):
    x = b.feed(tf.float32, None)
    v = v1.Variable([1.0, 2.0], use_resource=False, name="w", dtype=tf.float32)
    y = v * 2.0
    is_init = v1.is_variable_initialized(v)
    assign, free = v1.assign(v, x), v1.assign(v, x, validate_shape=False)
    add = v1.assign_add(v, x)
    b.step(is_init)
    b.step("w:0", error="Attempting to use uninitialized value w")
    b.step(y, error="Attempting to use uninitialized value w")
    b.step(targets="w/Assign")
    b.step(["w:0", "w/read:0", y, is_init])
    b.step(add, {x: [1, 1]})
    b.step([y])
    b.step(v1.assign_sub(v, x), {x: [0.5, 0.5]})
    b.step(assign, {x: [7, 8]})
    b.step(assign, {x: [7, 8, 9]},
           error="Assign requires shapes of both tensors to match. lhs shape= [2] rhs shape= [3]")
    b.step(["w:0"])
    b.step(v1.scatter_add(v, [1], [100.0]))
    b.step(v1.scatter_update(v, [0], [-1.0]))
    b.step(v1.scatter_nd_update(v, [[1]], [3.0]))
    chain = v1.assign_add(v1.assign(v, [1.0, 1.0]), [2.0, 3.0])
    b.step(chain * 10.0)
    b.step(["w:0"])
    b.step(free, {x: [1, 2, 3]})
    b.step(["w:0", y])


@case("v1")
def references_in_order(b):
    """A read after a change sees it."""
    v = v1.Variable(1, use_resource=False, name="n")
    with after(v1.assign_add(v, 10).op):
        late = tf.identity(v._ref()) * 1
    with after(late.op):
        later = v1.assign_add(v, 100)
    b.step(targets="n/Assign")
    b.step([late, later])
    b.step(["n:0"])


@case("v1", "v2")
def references_in_loops(b):
    n = b.feed(tf.int32)
    v = v1.Variable(3, use_resource=False, name="n")
    out = tf.while_loop(lambda i, s: i < n, lambda i, s: (i + 1, s + v), [0, 0])
    b.step(targets="n/Assign")
    b.step(list(out), {n: 5})


def ref_variable(value=0.0):
    return v1.Variable(value, use_resource=False, name="v")


@case("v1")
def references_in_branches(b):
    p, q = b.feed(tf.bool, []), b.feed(tf.bool, [])
    v = ref_variable()
    with after(v1.assign(v, 1.0).op):
        r = v1.cond(p, lambda: v1.assign(v, 5.0), lambda: v1.assign_add(v, 10.0))
        nested = v1.cond(
            p, lambda: v1.cond(q, lambda: v1.assign_add(v, 2.0) * 3.0, lambda: v * 7.0),
            lambda: v1.assign_sub(v1.assign_add(v, 4.0), 1.0))
    for x in (True, False):
        b.step(r, {p: x})
        b.step(["v:0"])
        for y in (True, False):
            b.step(nested, {p: x, q: y})
            b.step(["v:0"])


@case("v1")
def references_through_merge(b):
    """A reference passes through RefSwitch, RefIdentity and RefMerge and is changed after them."""
    p = b.feed(tf.bool, [])
    v = ref_variable(3.0)
    no, yes = raw.RefSwitch(data=v._ref(), pred=p)
    yes = v1.assign_add(yes, 100.0)
    merged, which = raw.RefMerge(inputs=[no, yes])
    out = v1.assign_add(merged, 1.0)
    b.step(targets="v/Assign")
    for x in (True, False):
        b.step([out, which], {p: x})
        b.step(["v:0"])


@case("v1")
def references_changed_in_loops(b):
    n = b.feed(tf.int32, [])
    v = ref_variable()
    with after(v1.assign(v, 1.0).op):
        body = lambda i, s: (i + 1, s + v1.assign_add(v, 2.0))
        out = v1.while_loop(lambda i, s: i < n, body, [0, 0.0], parallel_iterations=1)
        odd = lambda i: v1.cond(tf.equal(i % 2, 1), lambda: v1.assign_add(v, 10.0),
                                lambda: v1.assign_sub(v, 1.0))
        mixed = v1.while_loop(lambda i, s: i < n, lambda i, s: (i + 1, s + odd(i)), [0, 0.0],
                              parallel_iterations=1)
    for count in (0, 1, 5):
        b.step(out, {n: count})
        b.step(["v:0"])
        b.step(mixed, {n: count})
        b.step(["v:0"])


# --- lookup tables --------------------------------------------------------------------------


def i64(*values):
    return tf.constant(values, tf.int64)


@case("v1")
def static_tables(b):
    k, v, d = b.feed(tf.string, None), b.feed(tf.int64, None), b.feed(tf.int64, None)
    t = raw.HashTableV2(key_dtype=tf.string, value_dtype=tf.int64, shared_name="t")
    init = raw.InitializeTableV2(table_handle=t, keys=k, values=v).name
    find = raw.LookupTableFindV2(table_handle=t, keys=k, default_value=d)
    size = raw.LookupTableSizeV2(table_handle=t)
    keys, values = raw.LookupTableExportV2(table_handle=t, Tkeys=tf.string, Tvalues=tf.int64)
    b.step(size)
    b.step(find, {k: ["a"], d: 0}, error="Table not initialized.")
    b.step(values, error="HashTable is not initialized.")
    b.step(targets=init, feeds={k: ["a", "b"], v: [1]},
           error="Keys and values must have the same size 2 vs 1")
    b.step(targets=init, feeds={k: [["a"]], v: [[1]]},
           error="Keys must be a vector, but received shape[1,1]")
    b.step(targets=init, feeds={k: ["a", "a"], v: [1, 2]},
           error="HashTable has different value for same key. Key a has 1 and trying to add value 2")
    b.step(size)
    b.step(targets=init, feeds={k: ["a", "b", "a"], v: [1, 2, 1]})
    b.step(size)
    b.step(find, {k: [["b", "x"], ["", "a"]], d: -1})
    b.step(find, {k: "b", d: -1})
    b.step(find, {k: ["b", "x"], d: [7, 8]})
    b.step(find, {k: np.zeros((0, 2), object).astype(str), d: 3})
    b.step(find, {k: ["b", "x"], d: [7, 8, 9]},
           error="Expected shape [] or [2] for default value, got [3]")
    b.step(targets=init, feeds={k: ["a", "c"], v: [1, 2]})
    b.step(targets=init, feeds={k: ["a"], v: [1]},
           error="Table was already initialized with different data.")
    b.step([tf.reduce_sum(values), tf.size(keys)])
    b.step(targets=raw.LookupTableInsertV2(table_handle=t, keys=k, values=v).name,
           feeds={k: ["z"], v: [1]},
           error="Insert not supported by InitializableLookupTable implementations")
    b.step(targets=raw.LookupTableRemoveV2(table_handle=t, keys=k).name, feeds={k: ["z"]},
           error="Remove not supported by InitializableLookupTable implementations")
    wrong = raw.LookupTableFindV2(table_handle=t, keys=i64(1), default_value=d)
    b.step(wrong, {d: 0}, error="Signature mismatch, have: resource, int64, int64->int64 expected: "
           "resource, string, int64->int64")
    other = raw.HashTableV2(key_dtype=tf.int64, value_dtype=tf.string, shared_name="t")
    b.step(raw.LookupTableSizeV2(table_handle=other),
           error="Conflicting key/value dtypes int64->string with string-int64 for table t")
    b.step(raw.LookupTableSizeV2(table_handle=handle(name="not_a_table")),
           error="Trying to access a handle's resource using the wrong type.")


@case("v1")
def mutable_tables(b):
    k, v, d = b.feed(tf.int64, None), b.feed(tf.float32, None), b.feed(tf.float32, None)
    t = raw.MutableHashTableV2(key_dtype=tf.int64, value_dtype=tf.float32, name="T")
    insert = raw.LookupTableInsertV2(table_handle=t, keys=k, values=v).name
    imported = raw.LookupTableImportV2(table_handle=t, keys=k, values=v).name
    remove = raw.LookupTableRemoveV2(table_handle=t, keys=k).name
    find = raw.LookupTableFindV2(table_handle=t, keys=k, default_value=d)
    size = raw.LookupTableSizeV2(table_handle=t)
    keys, values = raw.LookupTableExportV2(table_handle=t, Tkeys=tf.int64, Tvalues=tf.float32)
    sums = [tf.reduce_sum(keys), tf.reduce_sum(values)]
    b.step(find, {k: [1, 2], d: 0.5})
    b.step(targets=insert, feeds={k: [1, 2, 1], v: [10, 20, 30]})
    b.step([find, size], {k: [1, 2, 3], d: -1})
    b.step([find], {k: [1, 2, 3], d: [7, 8, 9]})
    b.step(sums)
    b.step(targets=insert, feeds={k: [1, 2], v: [10]}, error="Expected shape [2] for value, got [1]")
    b.step(targets=insert, feeds={k: [[5, 6], [7, 8]], v: [[1, 2], [3, 4]]})
    b.step([size, *sums])
    b.step(targets=remove, feeds={k: [1, 99, 7]})
    b.step([find, size], {k: [1, 2, 5, 6, 7, 8], d: -1})
    b.step(targets=insert, feeds={k: [1, 7], v: [100, 700]})
    b.step([find, size], {k: [1, 2, 5, 6, 7, 8], d: -1})
    b.step(targets=imported, feeds={k: [4], v: [44]})
    b.step([keys, values, size])
    b.step(targets=imported, feeds={k: np.zeros(0), v: np.zeros(0)})
    b.step([keys, values, size])
    b.step(targets=raw.DestroyResourceOp(resource=t).name)
    b.step(size)
    init = raw.InitializeTableV2(table_handle=t, keys=k, values=v).name
    b.step(targets=init, feeds={k: [1], v: [1]}, error="is not initializable")


@case("v1")
def tables_of_vectors(b):
    k, v, d = b.feed(tf.string, None), b.feed(tf.int64, None), b.feed(tf.int64, None)
    t = raw.MutableHashTableOfTensorsV2(key_dtype=tf.string, value_dtype=tf.int64, value_shape=[2],
                                        shared_name="t")
    insert = raw.LookupTableInsertV2(table_handle=t, keys=k, values=v).name
    find = raw.LookupTableFindV2(table_handle=t, keys=k, default_value=d)
    b.step(targets=insert, feeds={k: ["a", "b"], v: [[1, 2], [3, 4]]})
    b.step(find, {k: ["b", "z"], d: [7, 8]})
    b.step(find, {k: ["b", "z"], d: [[1, 2], [3, 4]]})
    b.step(find, {k: "a", d: [7, 8]})
    b.step(find, {k: ["b", "z"], d: [7, 8, 9]},
           error="Expected shape [2] or [2,2] for default value, got [3]")
    b.step(targets=insert, feeds={k: ["a", "b"], v: [[1, 2, 3], [3, 4, 5]]},
           error="Expected shape [2,2] for value, got [2,3]")
    b.step(targets=raw.LookupTableRemoveV2(table_handle=t, keys=k).name, feeds={k: ["a"]})
    b.step(list(raw.LookupTableExportV2(table_handle=t, Tkeys=tf.string, Tvalues=tf.int64)))
    bad = raw.MutableHashTableOfTensorsV2(key_dtype=tf.string, value_dtype=tf.int64,
                                          value_shape=[2, 2])
    b.step(raw.LookupTableSizeV2(table_handle=bad),
           error="Default value must be a vector, got shape [2,2]")


def dense(empty, deleted, value=tf.int64, **kw):
    return raw.MutableDenseHashTableV2(empty_key=empty, deleted_key=deleted, value_dtype=value, **kw)


@case("v1")
def dense_tables(b):
    k, v, d = b.feed(tf.int64, None), b.feed(tf.int64, None), b.feed(tf.int64, None)
    t = dense(i64(-1)[0], i64(-2)[0], initial_num_buckets=4)
    insert = raw.LookupTableInsertV2(table_handle=t, keys=k, values=v).name
    find = raw.LookupTableFindV2(table_handle=t, keys=k, default_value=d)
    remove = raw.LookupTableRemoveV2(table_handle=t, keys=k).name
    size = raw.LookupTableSizeV2(table_handle=t)
    keys, values = raw.LookupTableExportV2(table_handle=t, Tkeys=tf.int64, Tvalues=tf.int64)
    b.step(targets=insert, feeds={k: [1, 2], v: [10, 20]})
    b.step([find, size], {k: [2, 5], d: 7})
    b.step([tf.reduce_sum(keys), tf.reduce_sum(values), tf.shape(keys), tf.shape(values)])
    for bad, name in ((-1, "empty"), (-2, "deleted")):
        words = f"Using the {name}_key as a table key is not allowed"
        b.step(targets=insert, feeds={k: [bad], v: [1]}, error=words)
        b.step(find, {k: [bad], d: 1}, error=words)
        b.step(targets=remove, feeds={k: [bad]}, error=words)
    b.step(targets=insert, feeds={k: np.arange(3, 40), v: np.arange(3, 40)})
    b.step([find, size], {k: [2, 39, 40], d: 7})
    b.step(targets=remove, feeds={k: [2, 3, 100]})
    b.step([find, size], {k: [2, 3, 4], d: 7})
    other = dense(i64(-1)[0], i64(-2)[0], initial_num_buckets=4)
    moved = raw.LookupTableImportV2(table_handle=other, keys=keys, values=values).name
    b.step(targets=moved)
    b.step([raw.LookupTableFindV2(table_handle=other, keys=k, default_value=d),
            raw.LookupTableSizeV2(table_handle=other)], {k: [4, 3, 39], d: 7})
    many = dense(i64(-1)[0], i64(-2)[0], initial_num_buckets=256)
    b.step(targets=raw.LookupTableImportV2(table_handle=many, keys=keys, values=values).name)
    b.step([tf.shape(x) for x in raw.LookupTableExportV2(table_handle=many, Tkeys=tf.int64, Tvalues=tf.int64)])
    same = dense(i64(3)[0], i64(3)[0])
    b.step(raw.LookupTableSizeV2(table_handle=same), error="Empty and deleted keys cannot be equal")
    few = dense(i64(3)[0], i64(4)[0], initial_num_buckets=3)
    b.step(raw.LookupTableSizeV2(table_handle=few),
           error="Number of buckets must be at least 4 and a power of 2, got: 3")
    full = dense(i64(3)[0], i64(4)[0], max_load_factor=1.5)
    b.step(raw.LookupTableSizeV2(table_handle=full),
           error="max_load_factor must be between 0 and 1, got: 1.5")


@case("v1")
def dense_tables_by_bucket(b):
    """Where TensorFlow has keys in exports, from which it probes them after an import."""
    for dtype, value, empty, deleted in ((tf.int64, tf.int64, -1, -2), (tf.int32, tf.float32, -1, -2),
                                         (tf.string, tf.int64, "", "-")):
        k, v = b.feed(dtype, None), b.feed(value, None)
        t = dense(tf.constant(empty, dtype), tf.constant(deleted, dtype), value, initial_num_buckets=8)
        insert = raw.LookupTableInsertV2(table_handle=t, keys=k, values=v).name
        remove = raw.LookupTableRemoveV2(table_handle=t, keys=k).name
        keys, values = raw.LookupTableExportV2(table_handle=t, Tkeys=dtype, Tvalues=value)

        def of(numbers):
            return [f"key {n}" for n in numbers] if dtype == tf.string else list(numbers)

        b.step([keys, values])
        for numbers in ([9, 1, 17], [25, 33, 2, 3], [-7, 8, 16], range(100, 120), [100] * 30):
            b.step(targets=insert, feeds={k: of(numbers), v: list(range(len(numbers)))})
            b.step([keys, values])
        for numbers in ([1, 17], [105, 1000], [119]):
            b.step(targets=remove, feeds={k: of(numbers)})
            b.step(keys)
        b.step(targets=insert, feeds={k: of([41, 105]), v: [1, 2]})
        b.step(keys)
        # Keys of two dimensions are refused.
        find = raw.LookupTableFindV2(table_handle=t, keys=k, default_value=tf.cast(0, value))
        b.step(find, {k: [of([41]), of([4])]})
        for shape in ([of([1, 2])], [of([1, 2]), of([3, 4])]):
            b.step(find, {k: shape}, error="Expected key shape")
            b.step(targets=remove, feeds={k: shape}, error="Expected key shape")
    k = b.feed(tf.int64, None)
    t = dense(i64(0, 0), i64(1, 1), value_shape=[3], initial_num_buckets=4)
    b.step(targets=raw.LookupTableInsertV2(table_handle=t, keys=k, values=tf.ones([5, 3], tf.int64)).name,
           feeds={k: [[n, n * n] for n in range(2, 7)]})
    b.step(list(raw.LookupTableExportV2(table_handle=t, Tkeys=tf.int64, Tvalues=tf.int64)))


@case("v1")
def dense_tables_of_vectors(b):
    t = dense(i64(0, 0), i64(1, 1), tf.float32, value_shape=[2], initial_num_buckets=8)
    k, v = i64(1, 2, 2, 1), tf.constant([[1.0, 2.0], [3.0, 4.0]])
    k = tf.reshape(k, [2, 2])
    b.step(targets=raw.LookupTableInsertV2(table_handle=t, keys=k, values=v).name)
    b.step(raw.LookupTableFindV2(table_handle=t, keys=tf.reshape(i64(2, 1, 2, 2), [2, 2]),
                                 default_value=[0.5, 0.25]))
    words = dense(tf.constant(""), tf.constant("-"), tf.float32)
    b.step(targets=raw.LookupTableInsertV2(table_handle=words, keys=["a"], values=[2.5]).name)
    b.step(raw.LookupTableFindV2(table_handle=words, keys=["a", "b"], default_value=1.0))


@case("v1")
def tables_of_every_dtype(b):
    keys = {"int32": [1, 2], "int64": [1, 2], "string": ["1", "2"]}
    pairs = [("Hash", [("int32", "float32 float64 int32 string"),
                       ("int64", "float32 float64 int32 int64 string"),
                       ("string", "float32 float64 int32 int64 string bool")]),
             ("MutableHash", [("int32", "float32 float64 int32"),
                              ("int64", "float32 float64 int32 int64 string"),
                              ("string", "float32 float64 int32 int64 bool")])]
    for kind, of_kind in pairs:
        for key, values in of_kind:
            for value in values.split():
                kt, vt = tf.as_dtype(key), tf.as_dtype(value)
                t = getattr(raw, f"{kind}TableV2")(key_dtype=kt, value_dtype=vt)
                k = tf.constant(keys[key], kt)
                v = {"string": ["x", "y"], "bool": [True, False]}.get(value, [3, 4])
                v = tf.constant(v, vt)
                fill = raw.InitializeTableV2 if kind == "Hash" else raw.LookupTableInsertV2
                b.step(targets=fill(table_handle=t, keys=k, values=v).name)
                b.step(raw.LookupTableFindV2(table_handle=t, keys=k[::-1], default_value=v[0]))


@case("v1")
def anonymous_tables(b):
    """Every step has its own state."""
    t = raw.AnonymousMutableHashTable(key_dtype=tf.int64, value_dtype=tf.int64)
    with after(raw.LookupTableInsertV2(table_handle=t, keys=i64(1), values=i64(5))):
        found = raw.LookupTableFindV2(table_handle=t, keys=i64(1, 2), default_value=i64(0)[0])
    b.step(found)
    b.step(raw.LookupTableSizeV2(table_handle=t))
    s = raw.AnonymousHashTable(key_dtype=tf.int64, value_dtype=tf.int64)
    with after(raw.InitializeTableV2(table_handle=s, keys=i64(3), values=i64(9))):
        b.step(raw.LookupTableFindV2(table_handle=s, keys=i64(3), default_value=i64(0)[0]))
