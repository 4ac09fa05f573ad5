"""Shape arithmetic, joining and splitting, padding and rearranging."""

import numpy as np

from casekit import (ALL, NUMPY, PLAIN, Rand, a, case, empty, i32,
                     i64, s32)

EVERY = ALL + ["string"]


def shapes():
    r = Rand("Shape")
    for shape in ((), (5,), (2, 3), (0, 4), (1, 2, 3, 1)):
        x = r("float", shape)
        for out in ("int32", "int64"):
            yield case("Shape", x, out_type=out)
            yield case("Size", x, out_type=out)
            yield case("ShapeN", [x, r("float", (2,)), x], out_type=out)
        yield case("Rank", x)
    for dtype in EVERY:
        for op in ("Shape", "Size", "Rank"):
            yield case(op, r(dtype, (2, 3)))
        yield case("Reshape", r(dtype, (2, 3)), i32(3, -1))
        yield case("ExpandDims", r(dtype, (2, 3)), s32(1))
        yield case("Squeeze", r(dtype, (1, 3)))
    for shape, target in (((2, 3), [6]), ((2, 3), [-1]), ((2, 3), [3, 2]), ((), [1, 1]), ((1,), []),
                          ((0, 3), [3, 0]), ((0, 3), [0, -1, 1]), ((2, 3, 4), [4, -1]),
                          ((6,), [1, 2, 1, 3])):
        yield case("Reshape", r("float", shape), i32(*target))
        yield case("Reshape", r("float", shape), i64(*target))
    for shape, target in (((2, 3), [5]), ((2, 3), [-1, -1]), ((2, 3), [4, -1]), ((2, 3), [-2, 3]),
                          ((2, 3), [0, -1])):
        yield case("Reshape", r("float", shape), i32(*target), fails=True)
    yield case("Reshape", r("float", (2, 3)), a("int32", [[3, 2]]), fails=True)
    yield case("Reshape", r("float", (1,)), i32(*[1] * 254), fails=True)
    yield case("BroadcastTo", r("float", (1,)), i32(*[1] * 255), fails=True)
    for axis in (-3, -2, -1, 0, 1, 2):
        yield case("ExpandDims", r("float", (2, 3)), s32(axis))
        yield case("ExpandDims", r("float", (2, 3)), i64(axis))
    yield case("ExpandDims", np.float32(1), s32(0))
    yield case("ExpandDims", r("float", (2, 3)), s32(3), fails=True)
    yield case("ExpandDims", r("float", (2, 3)), s32(-4), fails=True)
    yield case("ExpandDims", r("float", (2, 3)), i32(0, 1), fails=True)
    for shape, dims in (((1, 3, 1), []), ((1, 3, 1), [0]), ((1, 3, 1), [-1]), ((1, 3, 1), [0, 2]),
                        ((1, 1), []), ((), []), ((1, 0), [0])):
        yield case("Squeeze", r("float", shape), squeeze_dims=dims)
    yield case("Squeeze", r("float", (2, 1)), squeeze_dims=[0], fails=True)
    yield case("Squeeze", r("float", (2, 1)), squeeze_dims=[2], fails=True)
    for want in ([2, 3], [-1, 3], [-1, -1], None):
        yield case("EnsureShape", r("float", (2, 3)), shape=want)
    yield case("EnsureShape", r("float", (2, 3)), shape=[2, 4], fails=True)
    yield case("EnsureShape", r("float", (2, 3)), shape=[2], fails=True)


def joining():
    r = Rand("Concat")
    for dtype in EVERY:
        parts = [r(dtype, (2, 3)), r(dtype, (2, 1))]
        yield case("ConcatV2", parts, s32(1))
        yield case("Concat", s32(-1), parts)
        yield case("Pack", [r(dtype, (2, 3)), r(dtype, (2, 3))], axis=1)
        yield case("Unpack", r(dtype, (2, 3)), num=2)
        yield case("Split", s32(1), r(dtype, (2, 4)), num_split=2)
        yield case("SplitV", r(dtype, (2, 4)), i32(1, 3), s32(1), num_split=2)
    for axis in (-3, -2, -1, 0, 1, 2):
        parts = [r("float", tuple(n if i != axis % 3 else k for i, n in enumerate((2, 3, 2))))
                 for k in (1, 0, 3)]
        yield case("ConcatV2", parts, s32(axis))
        yield case("ConcatV2", parts, np.int64(axis))
        yield case("Concat", s32(axis), parts)
    yield case("ConcatV2", [r("float", (2,)) for _ in range(11)], s32(0))
    yield case("ConcatV2", [empty("float", 0, 2), empty("float", 0, 2)], s32(1))
    for op_case in ([r("float", (2, 3)), r("float", (3, 3))], [r("float", (2, 3)), r("float", (2,))]):
        yield case("ConcatV2", op_case, s32(1), fails=True)
        yield case("Concat", s32(1), op_case, fails=True)
    yield case("ConcatV2", [r("float", (2,)), r("float", (2,))], s32(1), fails=True)
    yield case("ConcatV2", [np.float32(1), np.float32(2)], s32(0), fails=True)
    yield case("ConcatOffset", s32(1), [i32(2, 3, 4), i32(2, 0, 4), i32(2, 5, 4)])
    yield case("ConcatOffset", s32(-1), [i32(2, 3), i32(2, 7)])
    yield case("ConcatOffset", s32(0), [i32(2, 3), i32(2, 7)], fails=True)
    for axis in (-3, -1, 0, 1, 2):
        yield case("Pack", [r("float", (2, 3)) for _ in range(3)], axis=axis)
    yield case("Pack", [np.float32(1), np.float32(2)])
    yield case("Pack", [np.float32(1)])
    yield case("Pack", [empty("float", 0, 2)] * 2, axis=1)
    yield case("Pack", [r("float", (2,)), r("float", (3,))], fails=True)
    yield case("Pack", [r("float", (2,)), r("float", (2,))], axis=3, fails=True)
    for axis, num in ((-3, 2), (-1, 4), (0, 2), (1, 3), (2, 4)):
        yield case("Unpack", r("float", (2, 3, 4)), num=num, axis=axis)
    yield case("Unpack", r("float", (3,)), num=3)
    yield case("Unpack", empty("float", 2, 0), num=2)
    yield case("Unpack", r("float", (3,)), num=2, fails=True)
    for axis, num in ((0, 2), (1, 3), (2, 2), (-1, 4), (-2, 1), (1, 1)):
        yield case("Split", s32(axis), r("float", (2, 3, 4)), num_split=num)
    yield case("Split", s32(1), empty("float", 0, 4), num_split=2)
    yield case("Split", s32(1), r("float", (2, 3)), num_split=2, fails=True)
    yield case("Split", s32(2), r("float", (2, 3)), num_split=1, fails=True)
    for sizes, axis in (((2, 0, 3), 0), ((1, -1, 1), 0), ((-1, 3), 1), ((4,), 1), ((1, 1, 2), -1)):
        yield case("SplitV", r("float", (5, 4)), i32(*sizes), s32(axis), num_split=len(sizes))
        yield case("SplitV", r("float", (5, 4)), i64(*sizes), s32(axis), num_split=len(sizes))
    for sizes in ((2, 2), (-1, -1), (6, -1), (4, -2)):
        yield case("SplitV", r("float", (5, 4)), i32(*sizes), s32(0), num_split=2, fails=True)


def slicing():
    r = Rand("Slice")
    for dtype in EVERY:
        yield case("Slice", r(dtype, (3, 4)), i32(1, 1), i32(2, 2))
        yield from [strided(r(dtype, (3, 4)), [0, 3], [3, 0], [2, -1])]
    for begin, size in (((0, 0), (3, 4)), ((1, 2), (-1, -1)), ((3, 0), (0, 4)), ((2, 3), (1, 1)),
                        ((0, 4), (-1, -1))):
        yield case("Slice", r("float", (3, 4)), i32(*begin), i32(*size))
        yield case("Slice", r("float", (3, 4)), i64(*begin), i64(*size))
    yield case("Slice", np.float32(2), i32(), i32())
    yield case("Slice", r("float", (2, 3, 2, 3)), i32(1, 0, 1, 1), i32(1, 2, 1, -1))
    for begin, size in (((0, 0), (4, 4)), ((-1, 0), (1, 1)), ((2, 0), (2, 1)), ((0, 0), (-2, 1))):
        yield case("Slice", r("float", (3, 4)), i32(*begin), i32(*size), fails=True)
    yield case("Slice", r("float", (3, 4)), i32(0), i32(1), fails=True)

    x = r("float", (4, 5, 3))
    plain = [([0], [4], [1]), ([1], [3], [1]), ([0, 1], [4, 5], [2, 2]), ([-1], [-5], [-1]),
             ([0, 0, 0], [4, 5, 3], [3, 2, 2]), ([3, 4, 2], [0, 0, 0], [-1, -2, -1]),
             ([10], [-10], [-3]), ([-10], [10], [3]), ([2], [2], [1]), ([3], [1], [1]), ([], [], []),
             ([1, -2], [-1, 100], [1, 1])]
    for begin, end, step in plain:
        yield strided(x, begin, end, step)
        yield strided(x, begin, end, step, index="int64")
    for mask in range(8):
        yield strided(x, [1, 2, 1], [3, 4, 2], [1, 1, 1], begin_mask=mask)
        yield strided(x, [1, 2, 1], [3, 4, 2], [1, 1, 1], end_mask=mask)
        yield strided(x, [2, 3, 1], [0, 1, 0], [-1, -1, -1], begin_mask=mask, end_mask=mask)
        yield strided(x, [1, -2, 2], [2, 3, 3], [1, 1, 1], shrink_axis_mask=mask)
        yield strided(x, [1, 2, 1], [3, 4, 2], [1, 1, 1], new_axis_mask=mask)
        yield strided(x, [1, 0, 1], [3, 0, 2], [1, 1, 1], ellipsis_mask=2, shrink_axis_mask=mask)
    for position in (1, 2, 4):
        yield strided(x, [1, 0, 1], [2, 0, 3], [1, 1, 1], ellipsis_mask=position)
    yield strided(x, [0, 0], [0, 1], [1, 1], ellipsis_mask=1, shrink_axis_mask=2)
    yield strided(x, [0, 0, 1], [0, 0, 2], [1, 1, 1], ellipsis_mask=1, new_axis_mask=2)
    yield strided(x, [0, 0, 1, 0], [0, 0, 2, 0], [1, 1, 1, 1], new_axis_mask=9, ellipsis_mask=2)
    yield strided(x, [0, 0], [0, 0], [1, 1], new_axis_mask=3, shrink_axis_mask=1)
    yield strided(x, [1, 1, 1, 0], [2, 2, 2, 0], [1, 1, 1, 1], ellipsis_mask=8)
    yield strided(np.float32(3), [0], [0], [1], new_axis_mask=1)
    yield strided(np.float32(3), [0], [0], [1], ellipsis_mask=1)
    yield strided(empty("float", 0, 3), [0, 1], [5, 2], [1, 1])
    yield strided(r("float", (1, 131)), [0, 1], [1, 131], [1, 3])
    yield strided(r("float", (2, 2, 2, 2, 2)), [0, 1, 0, 0, 1], [2, 2, 1, 2, 0], [1, 1, 1, 1, -1])
    for begin, end, step, masks in (([0], [1], [0], {}), ([4], [5], [1], {"shrink_axis_mask": 1}),
                                    ([-5], [0], [1], {"shrink_axis_mask": 1}),
                                    ([0] * 4, [1] * 4, [1] * 4, {}),
                                    ([1], [0], [-1], {"shrink_axis_mask": 1}),
                                    ([0, 0], [0, 0], [1, 1], {"ellipsis_mask": 3})):
        yield strided(x, begin, end, step, fails=True, **masks)
    yield case("StridedSlice", x, i32(0, 0), i32(1), i32(1), fails=True)


def strided(x, begin, end, step, index="int32", fails=False, **masks):
    indices = [np.asarray(v, NUMPY[index]) for v in (begin, end, step)]
    return case("StridedSlice", x, *indices, fails=fails, **masks)


def padding():
    r = Rand("Pad")
    pads = a("int32", [[1, 2], [0, 1]])
    for dtype in EVERY:
        yield case("Pad", r(dtype, (2, 3)), pads)
        fill = np.array(b"x", object) if dtype == "string" else NUMPY[dtype](1)
        yield case("PadV2", r(dtype, (2, 3)), pads, fill)
        for mode in ("REFLECT", "SYMMETRIC"):
            yield case("MirrorPad", r(dtype, (3, 4)), a("int32", [[1, 0], [2, 2]]), mode=mode)
    for shape in ((3,), (2, 3), (2, 1, 3), (1, 2, 3, 2), (0, 2)):
        spec = [[i % 3, (i + 1) % 2] for i in range(len(shape))]
        for kind in ("int32", "int64"):
            yield case("Pad", r("float", shape), a(kind, spec))
            yield case("PadV2", r("float", shape), a(kind, spec), np.float32(-7.5))
    yield case("Pad", np.float32(1), empty("int32", 0, 2))
    yield case("Pad", r("float", (2, 2)), a("int32", [[0, 0], [0, 0]]))
    yield case("Pad", r("float", (2, 2)), a("int32", [[-1, 0], [0, 0]]), fails=True)
    yield case("Pad", r("float", (2, 2)), a("int32", [[1, 0]]), fails=True)
    yield case("Pad", r("float", (2, 2)), a("int32", [1, 0]), fails=True)
    for kind in ("int32", "int64"):
        yield case("MirrorPad", r("float", (3, 4)), a(kind, [[2, 2], [3, 3]]), mode="REFLECT")
        yield case("MirrorPad", r("float", (3, 4)), a(kind, [[3, 3], [4, 4]]), mode="SYMMETRIC")
    yield case("MirrorPad", r("float", (4,)), a("int32", [[0, 0]]), mode="REFLECT")
    yield case("MirrorPad", r("float", (2, 3, 3, 2)), a("int32", [[0, 1], [1, 1], [1, 2], [0, 0]]),
               mode="REFLECT")
    yield case("MirrorPad", r("float", (3,)), a("int32", [[3, 0]]), mode="REFLECT", fails=True)
    yield case("MirrorPad", r("float", (3,)), a("int32", [[4, 0]]), mode="SYMMETRIC", fails=True)
    yield case("MirrorPad", r("float", (3,)), a("int32", [[-1, 0]]), mode="SYMMETRIC", fails=True)


def moving():
    r = Rand("Tile")
    for dtype in EVERY:
        yield case("Tile", r(dtype, (2, 3)), i32(2, 1))
        yield case("Transpose", r(dtype, (2, 3)), i32(1, 0))
        yield case("ConjugateTranspose", r(dtype, (2, 3)), i32(1, 0))
        yield case("ReverseV2", r(dtype, (2, 3)), i32(1))
        yield case("Reverse", r(dtype, (2, 3)), a("bool", [True, False]))
        yield case("BroadcastTo", r(dtype, (2, 1)), i32(3, 2, 2))
        yield case("Roll", r(dtype, (5,)), s32(2), s32(0))
    for shape, times in (((3,), [3]), ((2, 3), [1, 1]), ((2, 3), [2, 3]), ((2, 3), [0, 2]), ((), []),
                         ((1, 2, 1), [3, 1, 2]), ((0, 2), [2, 2]), ((2, 1, 2, 1), [1, 2, 1, 3])):
        yield case("Tile", r("float", shape), i32(*times))
        yield case("Tile", r("float", shape), i64(*times))
    yield case("Tile", r("float", (2, 3)), i32(2), fails=True)
    yield case("Tile", r("float", (2, 3)), i32(2, -1), fails=True)
    for shape, perm in (((), []), ((3,), [0]), ((2, 3), [0, 1]), ((2, 3, 4), [2, 1, 0]),
                        ((2, 3, 4), [0, 2, 1]), ((2, 3, 4), [1, 0, 2]), ((2, 3, 2, 3), [0, 2, 1, 3]),
                        ((2, 3, 2, 3), [0, 3, 1, 2]), ((2, 3, 2, 3), [0, 2, 3, 1]),
                        ((2, 1, 3, 1, 2), [4, 2, 0, 1, 3]), ((0, 3), [1, 0]), ((17, 9), [1, 0]),
                        ((1, 2, 1, 2, 1, 2), [5, 0, 3, 2, 1, 4])):
        yield case("Transpose", r("float", shape), i32(*perm))
        yield case("Transpose", r("float", shape), i64(*perm))
        yield case("ConjugateTranspose", r("complex64", shape[:5] if len(shape) < 6 else shape),
                   i32(*perm))
    for perm in ([0], [0, 0], [0, 2], [-3, 0]):
        yield case("Transpose", r("float", (2, 3)), i32(*perm), fails=True)
    for axes in ([], [0], [-1], [0, 2], [0, 1, 2]):
        yield case("ReverseV2", r("float", (2, 3, 4)), i32(*axes))
        yield case("ReverseV2", r("float", (2, 3, 4)), i64(*axes))
        flags = [i in [x % 3 for x in axes] for i in range(3)]
        yield case("Reverse", r("float", (2, 3, 4)), np.array(flags, bool))
    yield case("ReverseV2", r("float", (2, 3)), i32(2), fails=True)
    yield case("ReverseV2", r("float", (2, 3)), i32(1, 1), fails=True)
    yield case("Reverse", r("float", (2, 3)), a("bool", [True]), fails=True)
    for dtype in PLAIN:
        yield case("ReverseSequence", r(dtype, (3, 4)), i32(2, 0, 4), seq_dim=1)
    for seq, batch in ((1, 0), (0, 1), (2, 0), (0, 2), (2, 1)):
        x = r("float", (3, 3, 3))
        yield case("ReverseSequence", x, i64(3, 1, 2), seq_dim=seq, batch_dim=batch)
        yield case("ReverseSequence", x, i32(0, 2, 1), seq_dim=seq, batch_dim=batch)
    yield case("ReverseSequence", r("float", (3, 4)), i32(2, 5, 1), seq_dim=1, fails=True)
    yield case("ReverseSequence", r("float", (3, 4)), i32(2, 1), seq_dim=1, fails=True)
    yield case("ReverseSequence", r("float", (3, 3)), i32(2, 1, 1), seq_dim=0, fails=True)
    for shape, to in (((), [2, 3]), ((3,), [2, 3]), ((3,), [3]), ((2, 1), [2, 3]), ((1, 1), [0, 2]),
                      ((1,), [1, 1, 5]), ((2, 1, 3), [4, 2, 5, 3]), ((), [])):
        yield case("BroadcastTo", r("float", shape), i32(*to))
        yield case("BroadcastTo", r("float", shape), i64(*to))
    yield case("BroadcastTo", r("float", (3,)), i32(2), fails=True)
    yield case("BroadcastTo", r("float", (2, 3)), i32(3), fails=True)
    for left, right in (([2, 1], [3]), ([], [2, 3]), ([1], [1]), ([5, 1, 2], [4, 1]), ([0, 1], [3])):
        for make in (i32, i64):
            yield case("BroadcastArgs", make(*left), make(*right))
            yield case("BroadcastGradientArgs", make(*left), make(*right))
    for op in ("BroadcastArgs", "BroadcastGradientArgs"):
        yield case(op, i32(2, 3), i32(2), fails=True)
    for shift, axis in ((-2, 0), (7, 1), (0, 0), (1, -1)):
        yield case("Roll", r("float", (3, 4)), s32(shift), s32(axis))
    yield case("Roll", r("float", (3, 4)), i32(1, -1), i32(0, 1))
    yield case("Roll", r("float", (3, 4)), i64(1, 2), i64(1, 1))
    yield case("Roll", empty("float", 0, 4), s32(1), s32(0))
    yield case("Roll", r("float", (3, 4)), s32(1), s32(2), fails=True)
    yield case("Roll", r("float", (3, 4)), i32(1, 2), i32(0), fails=True)


def blocks():
    r = Rand("SpaceToDepth")
    for dtype in PLAIN:
        yield case("SpaceToDepth", r(dtype, (1, 4, 2, 3)), block_size=2)
        yield case("DepthToSpace", r(dtype, (1, 2, 1, 12)), block_size=2)
        yield case("SpaceToBatchND", r(dtype, (1, 4, 4, 2)), i32(2, 2), a("int32", [[0, 0], [0, 0]]))
        yield case("BatchToSpaceND", r(dtype, (4, 2, 2, 2)), i32(2, 2), a("int32", [[0, 0], [0, 0]]))
        yield case("SpaceToBatch", r(dtype, (1, 3, 4, 2)), a("int32", [[1, 0], [0, 0]]), block_size=2)
        yield case("BatchToSpace", r(dtype, (4, 2, 2, 1)), a("int32", [[1, 0], [0, 1]]), block_size=2)
    for block in (2, 3):
        down, up = (2, 2 * block, block, 2), (2, 2, 3, block * block * 2)
        yield case("SpaceToDepth", r("float", down), block_size=block)
        yield case("DepthToSpace", r("float", up), block_size=block)
        # Channels-first has no CPU kernel; the channels of the result keep their order.
        yield case("SpaceToDepth", r("float", down), block_size=block, nchw=((0,), (0,)))
        yield case("DepthToSpace", r("float", up), block_size=block, nchw=((0,), (0,)))
    yield case("SpaceToDepth", r("float", (1, 3, 4, 1)), block_size=2, fails=True)
    yield case("DepthToSpace", r("float", (1, 1, 1, 3)), block_size=2, fails=True)
    for shape, block, pads in (((1, 4, 6, 1), [2, 3], [[0, 0], [0, 0]]),
                               ((1, 3, 5, 2), [2, 3], [[1, 0], [0, 1]]),
                               ((2, 5, 3), [2], [[0, 1]]), ((1, 2, 3, 2, 1), [2, 1, 2],
                                                          [[1, 1], [0, 0], [0, 2]])):
        for kind in ("int32", "int64"):
            block_kind = a(kind, block)
            yield case("SpaceToBatchND", r("float", shape), block_kind, a(kind, pads))
            batch = int(np.prod(block)) * 2
            yield case("BatchToSpaceND", r("float", (batch, 3, *([3] * (len(shape) - 2)))), block_kind,
                       a(kind, pads))
    yield case("SpaceToBatchND", r("float", (1, 3, 3, 1)), i32(2, 2),
               a("int32", [[0, 0], [0, 0]]), fails=True)
    yield case("BatchToSpaceND", r("float", (3, 2, 2, 1)), i32(2, 2),
               a("int32", [[0, 0], [0, 0]]), fails=True)
    yield case("BatchToSpaceND", r("float", (4, 1, 1, 1)), i32(2, 2),
               a("int32", [[2, 1], [0, 0]]), fails=True)
    for sizes, strides, rates in (((2, 2), (1, 1), (1, 1)), ((3, 2), (2, 1), (1, 1)),
                                  ((2, 2), (1, 2), (2, 2)), ((1, 1), (1, 1), (1, 1))):
        for pad in ("SAME", "VALID"):
            how = {"ksizes": [1, *sizes, 1], "strides": [1, *strides, 1], "rates": [1, *rates, 1]}
            yield case("ExtractImagePatches", r("float", (2, 5, 4, 2)), padding=pad, **how)
            yield case("ExtractImagePatches", r("int32", (1, 3, 4, 1)), padding=pad, **how)


def cases():
    for part in (shapes, joining, slicing, padding, moving, blocks):
        yield from part()
