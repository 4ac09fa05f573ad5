"""Matrix products, einsum, factorizations."""

import numpy as np

from casekit import COMPLEX, FLOATS, NUMBERS, NUMPY, Rand, a, case, empty

PRODUCTS = FLOATS + ["int16", "int32", "int64", "uint8", "int8", "uint16", "uint32", "uint64"] + COMPLEX

# equation and the shapes of its operands
EQUATIONS = [
    ("ij,jk->ik", (2, 3), (3, 4)),
    ("ij,kj->ik", (2, 3), (4, 3)),
    ("ji,jk->ki", (3, 2), (3, 4)),
    ("abc,cd->abd", (2, 3, 4), (4, 5)),
    ("abc,cde->abde", (2, 3, 4), (4, 2, 3)),
    ("abcd,cde->abe", (2, 3, 2, 3), (2, 3, 4)),
    ("abc,dc->abd", (2, 3, 4), (5, 4)),
    ("BTNH,BSNH->BNTS", (2, 3, 2, 4), (2, 5, 2, 4)),
    ("BNTS,BSNH->BTNH", (2, 2, 3, 5), (2, 5, 2, 4)),
    ("acbe,aecd->abcd", (2, 3, 4, 5), (2, 5, 3, 2)),
    ("aecd,abcd->acbe", (2, 5, 3, 2), (2, 4, 3, 2)),
    ("abcd,aecd->acbe", (2, 4, 3, 2), (2, 5, 3, 2)),
    ("bij,bjk->bik", (2, 3, 4), (2, 4, 2)),
    ("...ij,...jk->...ik", (2, 3, 4), (2, 4, 2)),
    ("...ij,...jk->...ik", (2, 1, 3, 4), (5, 4, 2)),
    ("...ij,jk->...ik", (2, 3, 4), (4, 2)),
    ("i...,i...->...", (3, 2, 2), (3, 2, 2)),
    ("...a,...b->...ab", (2, 3), (2, 4)),
    ("i,j->ij", (3,), (4,)),
    ("i,i->", (5,), (5,)),
    ("i,i->i", (5,), (5,)),
    (",->", (), ()),
    (",i->i", (), (3,)),
    ("ij,ij->ij", (2, 3), (2, 3)),
    ("ij,ij->", (2, 3), (2, 3)),
    ("ij,kl->", (2, 3), (2, 4)),
    ("ijk,jil->kl", (2, 3, 4), (3, 2, 2)),
    ("ii,ij->j", (3, 3), (3, 2)),
    ("iij,jk->ik", (2, 2, 3), (3, 4)),
    ("abc,abd->acd", (2, 3, 4), (2, 3, 5)),
    ("bhwc,hkc->bwhk", (1, 3, 2, 4), (3, 5, 4)),
    ("ab,bc->ca", (0, 3), (3, 2)),
    ("ab,bc->ac", (2, 0), (0, 3)),
]
SINGLES = [("ij->ji", (2, 3)), ("ij->ij", (2, 3)), ("ij->i", (2, 3)), ("ij->", (2, 3)),
           ("ii->i", (3, 3)), ("ii->", (3, 3)), ("iij->ji", (2, 2, 3)), ("ijk->kij", (2, 3, 4)),
           ("...ij->...ji", (2, 2, 3)), ("...ii->...i", (2, 3, 3)), ("...->...", (2, 3)),
           ("i...->...i", (2, 3, 2)), ("i->ii", (3,)), ("abcd->cdab", (2, 1, 3, 2)), ("->", ())]


def products():
    r = Rand("MatMul")
    for flip_a in (False, True):
        for flip_b in (False, True):
            how = {"transpose_a": flip_a, "transpose_b": flip_b}
            for m, k, n in ((2, 3, 4), (1, 1, 1), (1, 7, 5), (5, 7, 1), (17, 9, 13), (0, 3, 2), (2, 0, 3),
                            (3, 2, 0)):
                left = (k, m) if flip_a else (m, k)
                right = (n, k) if flip_b else (k, n)
                yield case("MatMul", r("float", left), r("float", right), **how)
            for dtype in PRODUCTS:
                yield case("MatMul", r(dtype, (3, 3)), r(dtype, (3, 3)), **how)
    yield case("MatMul", a("float", [[np.nan, 1], [0, 2]]), a("float", [[0, 1], [np.inf, 1]]))
    yield case("MatMul", r("float", (2, 3)), r("float", (2, 3)), fails=True)
    yield case("MatMul", r("float", (2, 3, 1)), r("float", (1, 3)), fails=True)
    for op in ("BatchMatMul", "BatchMatMulV2", "BatchMatMulV3"):
        r = Rand(op)
        more = {"Tout": "float"} if op == "BatchMatMulV3" else {}
        for flip_x in (False, True):
            for flip_y in (False, True):
                left = (2, 4, 3) if flip_x else (2, 3, 4)
                right = (2, 5, 4) if flip_y else (2, 4, 5)
                yield case(op, r("float", left), r("float", right), adj_x=flip_x, adj_y=flip_y, **more)
                if not more:
                    for dtype in COMPLEX:
                        yield case(op, r(dtype, (2, 2, 2)), r(dtype, (2, 2, 2)), adj_x=flip_x, adj_y=flip_y)
        for left, right in (((2, 3), (3, 4)), ((2, 3, 2, 3), (2, 3, 3, 1)), ((0, 2, 3), (0, 3, 2)),
                            ((2, 2, 0), (2, 0, 3)), ((3, 1, 5), (3, 5, 1))):
            yield case(op, r("float", left), r("float", right), **more)
        for dtype in PRODUCTS:
            out = {"Tout": dtype} if more else {}
            yield case(op, r(dtype, (2, 2, 3)), r(dtype, (2, 3, 2)), **out)
        yield case(op, r("float", (2, 2, 3)), r("float", (2, 2, 3)), fails=True, **more)
        if op != "BatchMatMul":
            for left, right in (((2, 1, 2, 3), (4, 3, 2)), ((2, 3), (5, 3, 2)), ((1, 2, 3), (4, 3, 2)),
                                ((3, 1, 2, 2), (1, 2, 2, 1))):
                yield case(op, r("float", left), r("float", right), **more)
            yield case(op, r("float", (2, 2, 3)), r("float", (3, 3, 2)), fails=True, **more)
    yield case("BatchMatMulV3", r("int8", (2, 2, 3)), r("int8", (2, 3, 2)), Tout="int32")
    yield case("BatchMatMulV3", r("uint8", (2, 2, 3)), r("int8", (2, 3, 2)), Tout="int32")
    yield case("BatchMatMulV3", r("bfloat16", (2, 2, 3)), r("bfloat16", (2, 3, 2)), Tout="float")
    yield case("BatchMatMulV3", r("int8", (2, 2, 3)), r("bfloat16", (2, 3, 2)), Tout="bfloat16")
    yield case("BatchMatMulV3", r("bfloat16", (2, 2, 3)), r("uint8", (2, 3, 2)), Tout="bfloat16")


def einsum():
    r = Rand("Einsum")
    for equation, left, right in EQUATIONS:
        yield case("Einsum", [r("float", left), r("float", right)], equation=equation)
    for equation, shape in SINGLES:
        yield case("Einsum", [r("float", shape)], equation=equation)
    for dtype in PRODUCTS:
        yield case("Einsum", [r(dtype, (2, 3, 4)), r(dtype, (4, 2, 3))], equation="abc,cde->abde")
        yield case("Einsum", [r(dtype, (2, 3))], equation="ij->j")
    for equation, operands in (("ij,jk->ik", ((2, 3), (4, 2))), ("ij,jk->il", ((2, 3), (3, 2))),
                               ("ijk,jk->i", ((2, 3), (3, 2))), ("ii->i", ((2, 3),)),
                               ("ij,jk,kl->il", ((2, 3), (3, 2), (2, 2)))):
        yield case("Einsum", [r("float", shape) for shape in operands], equation=equation, fails=True)


def factorizations():
    r = Rand("Matrix")
    for dtype, tol in (("float", 1e-4), ("double", 1e-9), ("complex64", 1e-4), ("complex128", 1e-9)):
        for shape in ((1, 1), (3, 3), (5, 5), (2, 3, 3)):
            size = shape[-1]
            x = (r(dtype, shape) + 3 * np.eye(size)).astype(NUMPY[dtype])
            spd = (x @ np.conj(np.swapaxes(x, -1, -2)) + np.eye(size)).astype(NUMPY[dtype])
            yield case("MatrixDeterminant", x, tol=tol)
            yield case("Cholesky", spd, tol=tol)
            yield case("LogMatrixDeterminant", x, tol=tol)
            for adjoint in (False, True):
                yield case("MatrixInverse", x, adjoint=adjoint, tol=tol)
                yield case("MatrixSolve", x, r(dtype, (*shape[:-1], 2)), adjoint=adjoint, tol=tol)
                for lower in (False, True):
                    yield case("MatrixTriangularSolve", x, r(dtype, (*shape[:-1], 2)), lower=lower,
                               adjoint=adjoint, tol=tol)
    for op in ("MatrixInverse", "Cholesky", "MatrixDeterminant"):
        yield case(op, empty("float", 0, 0))
        yield case(op, empty("float", 0, 2, 2))
        yield case(op, r("float", (2, 3)), fails=True)
        yield case(op, r("float", (2,)), fails=True)
    yield case("MatrixInverse", a("float", [[1, 2], [2, 4]]), fails=True)
    yield case("Cholesky", a("float", [[[4, 2], [2, 3]], [[1, 2], [2, 1]]]))
    yield case("MatrixSolve", a("float", [[1, 2], [2, 4]]), a("float", [[1], [1]]), fails=True)
    for dtype in NUMBERS:
        yield case("Cross", r(dtype, (2, 3), 0, 4), r(dtype, (2, 3), 0, 4))
    yield case("Cross", r("float", (3,)), r("float", (3,)))
    yield case("Cross", empty("float", 0, 3), empty("float", 0, 3))
    yield case("Cross", r("float", (2, 2)), r("float", (2, 2)), fails=True)
    yield case("Cross", r("float", (2, 3)), r("float", (3,)), fails=True)
    r = Rand("MatrixInverse of half")
    for shape in ((1, 1), (3, 3), (2, 3, 3), (0, 3, 3)):
        x = (r("half", shape) + 3 * np.eye(shape[-1])).astype(np.float16)
        yield case("MatrixInverse", x, adjoint=len(shape) == 3, tol=1e-2)


def cases():
    for part in (products, einsum, factorizations):
        yield from part()
