//! Gradients of products of sparse CSR matrices (TensorFlow:
//! `python/ops/linalg/sparse/sparse_csr_matrix_grad.py`).

use ferroflow_base::Result;
use ferroflow_opdef::{AttrValue, Expr, GradientCtx};
use ferroflow_tensor::Tensor;

/// The gradient of a product whose factors are neither conjugated nor transposed afterwards.
pub(crate) fn with_dense_gradient(g: &mut GradientCtx) -> Result<()> {
    let on = |name: &str| g.attrs().bool(name);
    let (t_a, t_b) = (on("transpose_a")?, on("transpose_b")?);
    if on("adjoint_a")? || on("adjoint_b")? || on("transpose_output")? || on("conjugate_output")? {
        return Err(ferroflow_base::unimplemented_error!(
            "the gradient of SparseMatrixMatMul with adjoint factors or a transposed result is not \
             implemented: transpose them with ops of their own"
        ));
    }
    let (a, b, dy) = (g.x(0), g.x(1), g.dy(0).conj());
    let flag = |name: &'static str, on: bool| (name, AttrValue::Bool(on));
    let db = dy.make(
        "SparseMatrixMatMul",
        &[a, dy],
        &[flag("transpose_a", !t_a), flag("transpose_output", t_b)],
    );
    g.set(1, db.conj())?;
    // The conjugate of the product: transposes are adjoints of conjugates.
    let b = if t_a == t_b { b.conj() } else { b };
    let product = match t_a {
        false => dy.op_with("BatchMatMulV2", &[b], &[flag("adj_y", !t_b)]),
        true => {
            let flags = [flag("adj_x", t_b), flag("adj_y", true)];
            b.op_with("BatchMatMulV2", &[dy.conj()], &flags)
        }
    };
    let product = product.conj();
    let da = stored(a, product);
    g.set(0, da)
}

/// Keeps the elements of a dense matrix that a sparse one stores.
fn stored<'g>(pattern: Expr<'g>, dense: Expr<'g>) -> Expr<'g> {
    let places = pattern.make(
        "CSRSparseMatrixToSparseTensor",
        &[pattern],
        &[("type", AttrValue::Type(dense.dtype()))],
    );
    dense.make("DenseToCSRSparseMatrix", &[dense, places], &[])
}

/// The gradient of a product of two sparse matrices, of which each factor gets the elements that it
/// stores.
pub(crate) fn with_sparse_gradient(g: &mut GradientCtx) -> Result<()> {
    let on = |name: &str| g.attrs().bool(name);
    let sides = [
        (on("transpose_a")?, on("adjoint_a")?),
        (on("transpose_b")?, on("adjoint_b")?),
    ];
    let (a, b, dy, ty) = (g.x(0), g.x(1), g.dy(0), g.attr("type"));
    let flag = |name: &'static str| (name, AttrValue::Bool(true));
    let turned = |x, conjugate: bool| {
        let x: Expr = x;
        let attrs = [ty.clone(), ("conjugate", AttrValue::Bool(conjugate))];
        x.make("SparseMatrixTranspose", &[x], &attrs)
    };
    // The adjoint of a factor as it enters the product, as a matrix and how that is turned.
    let adjoint = |x, (transpose, adjoint): (bool, bool), names: [&'static str; 2]| match (
        transpose, adjoint,
    ) {
        (_, true) => (x, None),
        (true, false) => (turned(x, true), Some(flag(names[0]))),
        (false, false) => (x, Some(flag(names[1]))),
    };
    let product = |x, y, turn: Option<(&'static str, AttrValue)>| {
        let x: Expr = x;
        let attrs: Vec<_> = turn.into_iter().chain([ty.clone()]).collect();
        x.make("SparseMatrixSparseMatMul", &[x, y], &attrs)
    };
    let back = |x, (transpose, adjoint): (bool, bool)| match transpose || adjoint {
        true => turned(x, adjoint),
        false => x,
    };
    let (b_adjoint, turn) = adjoint(b, sides[1], ["transpose_b", "adjoint_b"]);
    let da = back(product(dy, b_adjoint, turn), sides[0]);
    let (a_adjoint, turn) = adjoint(a, sides[0], ["transpose_a", "adjoint_a"]);
    let db = back(product(a_adjoint, dy, turn), sides[1]);
    g.set(0, pruned(a, da, &ty))?;
    g.set(1, pruned(b, db, &ty))
}

/// Keeps the elements of a sparse matrix that another one stores; those that it lacks are zero.
fn pruned<'g>(pattern: Expr<'g>, matrix: Expr<'g>, ty: &(&'static str, AttrValue)) -> Expr<'g> {
    let parts = |x: Expr<'g>| {
        x.node(
            "CSRSparseMatrixToSparseTensor",
            &[x],
            std::slice::from_ref(ty),
        )
    };
    let (wanted, found) = (parts(pattern), parts(matrix));
    let ([places, _, shape], [at, values, _]) = (&wanted[..], &found[..]) else {
        return matrix.nothing();
    };
    // The number of each element in row-major order.
    let exclusive = [
        ("exclusive", AttrValue::Bool(true)),
        ("reverse", AttrValue::Bool(true)),
    ];
    let strides = shape.make("Cumprod", &[*shape, shape.int(0)], &exclusive);
    let number = |at: Expr<'g>| at.op("Mul", &[strides]).sum(at.int(1), false);
    let with = |x: Expr<'g>, last: Expr<'g>| x.make("ConcatV2", &[x, last, x.int(0)], &[]);
    // What the matrix lacks is found at its end, as zero.
    let end = at.constant(Tensor::vector(&[i64::MAX]));
    let numbers = with(number(*at), end);
    let values = with(
        *values,
        values
            .constant(Tensor::vector(&[0.0f32]))
            .cast(values.dtype()),
    );
    let wanted = number(*places);
    let row = |x: Expr<'g>| x.op("ExpandDims", &[x.int(0)]);
    let found = row(numbers).op("LowerBound", &[row(wanted)]);
    let found = found.reshape(found.ints([-1]));
    let take = |x: Expr<'g>| x.make("GatherV2", &[x, found, x.int(0)], &[]);
    let equal = take(numbers).op("Equal", &[wanted]);
    let kept = take(values);
    let kept = kept.where_(equal, kept.zeros_like());
    matrix.make(
        "SparseTensorToCSRSparseMatrix",
        &[*places, kept, *shape],
        &[],
    )
}
