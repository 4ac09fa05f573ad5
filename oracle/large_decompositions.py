"""Has TensorFlow decompose matrices of floats with 128 rows and more, which are computed in blocks.

Usage: python oracle/large_decompositions.py      (writes crates/ops/rows/large_decompositions.json)

Matrices would fill megabytes: inputs are made of numbers that the test makes, too, and results are kept as sketches, products
with a few vectors of plus and minus one from both sides. Of results that are only defined up to signs the sketch is of the
absolute values; vectors that belong to values close to each other are left to the test, which multiplies the factors.
"""

import json

import numpy as np

import rows
from casekit import Case
from tensorflow.python.framework import op_def_registry

SKETCH = 3


def noise(count, columns, seed):
    """Returns numbers between -0.5 and 0.5 that floats hold."""
    state, out = np.uint64(seed), np.empty(count * columns)
    with np.errstate(over="ignore"):
        for i in range(out.size):
            state = state * np.uint64(6_364_136_223_846_793_005) + np.uint64(1_442_695_040_888_963_407)
            out[i] = int(state >> np.uint64(33)) % 65_536 / 65_536 - 0.5
    return out.reshape(count, columns)


def made(kind, shape, seed):
    x = noise(*shape, seed)
    if kind == "symmetric":
        return x + x.T
    if kind == "definite":
        return x + x.T + 24 * np.eye(len(x))
    if kind == "dominant":
        return x + 4 * np.eye(len(x))
    return x


def signs(count, columns, seed):
    return np.where(noise(count, columns, seed) < 0, -1.0, 1.0)


def sketch(x):
    """Returns products of a matrix, or a vector as it is."""
    x = x.astype(np.float64)
    if x.ndim == 2:
        x = signs(SKETCH, x.shape[0], 101) @ x @ signs(x.shape[1], SKETCH, 102)
    return [float(f"{number:.9g}") for number in x.reshape(-1)]


def case(op, inputs, outputs, tol=1e-5, **attrs):
    """Returns the case of inputs (kind, shape, seed); `outputs` says what of each output is kept."""
    arrays = [made(*given).astype(np.float32) for given in inputs]
    graph, _, flat = rows.node_and_feeds(Case(op, arrays, attrs), op_def_registry.get(op))
    results, error = rows.execute(graph, flat, None)
    assert not error, error
    kept = []
    for how, x in zip(outputs, results):
        x = abs(x) if how == "absolute" else x
        kept.append({"how": how, "shape": list(x.shape), "numbers": sketch(x) if how else []})
    return {"op": op, "attrs": attrs,
            "inputs": [dict(zip(("kind", "shape", "seed"), given)) for given in inputs], "outputs": kept, "tol": tol}


def cases():
    square = [("noise", (128, 128), 1), ("noise", (150, 150), 2)]
    oblong = [("noise", (150, 130), 3), ("noise", (130, 150), 4)]
    for n in (128, 150):
        yield case("Cholesky", [("definite", (n, n), n)], ["plain"])
        yield case("SelfAdjointEigV2", [("symmetric", (n, n), n)], ["plain", ""])
        yield case("Lu", [("noise", (n, n), n)], ["plain", "plain"], tol=1e-4)
        for adjoint in (False, True):
            matrix = ("dominant", (n, n), n + 1)
            yield case("MatrixInverse", [matrix], ["plain"], adjoint=adjoint)
            for columns in (1, 3, 140):
                given = [matrix, ("noise", (n, columns), n + 2)]
                yield case("MatrixSolve", given, ["plain"], adjoint=adjoint)
                for lower in (False, True):
                    yield case("MatrixTriangularSolve", given, ["plain"], lower=lower, adjoint=adjoint)
    for given in square + oblong:
        yield case("Qr", [given], ["absolute", "absolute"], tol=1e-4)
        yield case("Svd", [given], ["plain", "", ""])
    yield case("Qr", [oblong[0]], ["", "absolute"], full_matrices=True)
    yield case("Svd", [oblong[0]], ["plain", "", ""], full_matrices=True)
    yield case("Svd", [oblong[1]], ["plain"], compute_uv=False)


def main():
    lines = [json.dumps(line, separators=(",", ":")) for line in cases()]
    (rows.ROWS / "large_decompositions.json").write_text("[\n" + ",\n".join(lines) + "\n]\n")
    print(f"{len(lines)} cases")


if __name__ == "__main__":
    main()
