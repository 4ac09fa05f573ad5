"""Debug ops without URLs, the ops of clustering, and groups of collectives."""

import numpy as np

from casekit import Rand, case, empty, i64

INTS = ["int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"]


def cases():
    r = Rand("debug rows")
    inf, nan = np.inf, np.nan
    odd = np.array([[1, -2, inf, nan], [0, -inf, nan, 3.5], [-0.0, 7, 1e30, -4]], np.float32)
    for op in ("Copy", "CopyHost", "DebugIdentity"):
        for dtype in ("float", "int32", "string", "bool", "complex64"):
            yield case(op, r(dtype, (2, 3)), tensor_name="n:0")
        yield case(op, empty("float", 0, 2), tensor_name="n")
    yield case("DebugIdentityV3", odd, tensor_name="n:0", io_of_node="m", is_input=True, io_index=2)
    yield case("DebugIdentity", odd, tensor_name="a:b", fails=True)
    yield case("DebugIdentity", odd, tensor_name="a:0:1", fails=True)
    yield case("Copy", odd, tensor_name="a", debug_ops_spec=["DebugIdentity"], fails=True)
    for dtype in ("float", "double", "half", "bfloat16"):
        yield case("DebugNanCount", odd.astype(r(dtype, (1,)).dtype), tensor_name="n:0")
    for dtype in INTS:
        yield case("DebugNanCount", r(dtype, (5,)), tensor_name="n:0")
        yield case("DebugNumericSummary", r(dtype, (3, 5)), tensor_name="n:0")
    yield case("DebugNumericSummary", r("bool", (3, 5)), tensor_name="n:0")
    for dtype in ("float", "double"):
        x = odd.astype(dtype if dtype == "double" else "float32")
        yield case("DebugNumericSummary", x, tensor_name="n:0")
        yield case("DebugNumericSummary", x, lower_bound=-2.0, upper_bound=3.5, tensor_name="n:0")
        yield case("DebugNumericSummary", x, mute_if_healthy=True, tensor_name="q:3")
        yield case("DebugNumericSummary", x[:0], tensor_name="n:0")
        yield case("DebugNumericSummary", x[0, 0], tensor_name="n:0")
    for mode in (2, 3, 4, 5, 8):
        for out in ("float", "double"):
            for dtype in ("float", "double", "half", "bfloat16"):
                x = odd.astype(r(dtype, (1,)).dtype)
                yield case("DebugNumericSummaryV2", x, tensor_debug_mode=mode, tensor_id=7, output_dtype=out)
                yield case("DebugNumericSummaryV2", x[:1, :2], tensor_debug_mode=mode, tensor_id=7, output_dtype=out)
            for dtype in INTS + ["bool"]:
                yield case("DebugNumericSummaryV2", r(dtype, (2, 1, 3)), tensor_debug_mode=mode, tensor_id=9, output_dtype=out)
        yield case("DebugNumericSummaryV2", r("float", (1, 2, 3, 1, 2, 1, 2)), tensor_debug_mode=mode, tensor_id=1)
        yield case("DebugNumericSummaryV2", r("float", ()), tensor_debug_mode=mode, tensor_id=1)
        yield case("DebugNumericSummaryV2", empty("float", 0, 3), tensor_debug_mode=mode, tensor_id=1)
    yield case("DebugNumericSummaryV2", odd, tensor_debug_mode=2, tensor_id=(1 << 24) + 1, fails=True)
    yield case("DebugNumericSummaryV2", odd, tensor_debug_mode=1, tensor_id=1, fails=True)
    yield case("DebugNanCount", odd, fails=True)
    yield from clusters(r)
    yield from groups()


def scalar(n):
    return np.array(n, np.int64)


def clusters(r):
    for n, d, k in ((7, 3, 4), (20, 1, 5), (5, 2, 5), (33, 6, 1)):
        points = r("float", (n, d))
        for seed in (0, 1, 42, -5):
            for retries in (0, 1, 3, -1):
                yield case("KmeansPlusPlusInitialization", points, scalar(k), scalar(seed), scalar(retries), tol=0)
    points = r("float", (4, 2))
    yield case("KmeansPlusPlusInitialization", points, scalar(5), scalar(0), scalar(0), fails=True)
    yield case("KmeansPlusPlusInitialization", points, scalar(0), scalar(0), scalar(0), fails=True)
    yield case("KmeansPlusPlusInitialization", points[0], scalar(1), scalar(0), scalar(0), fails=True)
    yield case("KmeansPlusPlusInitialization", points[:0], scalar(1), scalar(0), scalar(0), fails=True)
    yield case("KmeansPlusPlusInitialization", points, i64(1), scalar(0), scalar(0), fails=True)
    yield case("KmeansPlusPlusInitialization", points, scalar(1), i64(0), scalar(0), fails=True)
    yield case("KmeansPlusPlusInitialization", points, scalar(1), scalar(0), i64(0), fails=True)
    for n in (1, 2, 10, 100):
        distances = np.abs(r("float", (n,)))
        for seed in (0, 3, 77):
            yield case("KMC2ChainInitialization", distances, scalar(seed))
    yield case("KMC2ChainInitialization", points, scalar(0), fails=True)
    yield case("KMC2ChainInitialization", np.array([1, 2], np.float32), i64(0), fails=True)
    yield case("KMC2ChainInitialization", points[0][:0], scalar(0), fails=True)
    for n, c, d in ((5, 4, 3), (1, 1, 1), (17, 9, 2), (3, 1100, 2)):
        x, y = r("float", (n, d)), r("float", (c, d))
        for k in (0, 1, 3, 50):
            yield case("NearestNeighbors", x, y, scalar(k), tol=1e-5)
    ties = np.array([[0, 0], [1, 1], [1, 1], [0, 0]], np.float32)
    yield case("NearestNeighbors", ties, ties, scalar(1))
    yield case("NearestNeighbors", ties, ties, scalar(4))
    yield case("NearestNeighbors", ties, ties[:, :1], scalar(1), fails=True)
    yield case("NearestNeighbors", ties[0], ties, scalar(1), fails=True)
    yield case("NearestNeighbors", ties, ties[0], scalar(1), fails=True)
    yield case("NearestNeighbors", ties, ties, i64(1), fails=True)
    yield case("NearestNeighbors", ties[:0], ties, scalar(1), fails=True)


def groups():
    def assign(groups, index, base, **how):
        return case("CollectiveAssignGroupV2", np.array(groups, np.int32), np.int32(index), np.int32(base), **how)

    for index in range(4):
        yield assign([[0, 1], [2, 3]], index, 7)
        yield assign([[3, 1, 0, 2]], index, -9)
        yield assign([[3], [1], [2], [0]], index, 2**31 - 1)
    yield assign([[0, 1], [2, 3]], 5, 1, fails=True)
    yield assign([[0, 1], [2, 4]], 3, 1, fails=True)
    yield assign([[0, 1], [2, 3]], 2, -1, fails=True)
    yield assign([0, 1], 0, 1, fails=True)
    yield assign([[0, 1]], [0], 1, fails=True)
    yield assign([[0, 1]], 0, [1], fails=True)
