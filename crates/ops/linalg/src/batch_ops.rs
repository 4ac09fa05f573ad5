//! The names that linear algebra had before all of it worked on batches (TensorFlow: the `Batch*` ops
//! of `core/ops/linalg_ops.cc`), and the first version of SelfAdjointEig.

use crate::lu::square_batch;
use crate::self_adjoint_eig::packed_eig;
use crate::{
    cholesky, cholesky_grad, determinant, matrix_inverse, matrix_solve, matrix_solve_ls,
    self_adjoint_eig, svd,
};
use ferroflow_base::Result;
use ferroflow_opdef::{Cost, GradientRule, KernelBuild, KernelCtx, Op, OpKernel, ShapeCtx};
use ferroflow_tensor::{PartialShape, dispatch};

/// The ops of this file.
pub(crate) const OPS: &[Op] = &[
    renamed(
        cholesky::OPS[0],
        "BatchCholesky",
        "input: T -> output: T | T: type {double,float}",
    ),
    renamed(
        cholesky_grad::OPS[0],
        "BatchCholeskyGrad",
        "l: T, grad: T -> output: T | T: type {float,double}",
    ),
    renamed(
        determinant::OPS[0],
        "BatchMatrixDeterminant",
        "input: T -> output: T | T: type {float,double,complex64,complex128}",
    ),
    renamed(
        matrix_inverse::OPS[0],
        "BatchMatrixInverse",
        "input: T -> output: T | adjoint: bool = false; T: type {double,float}",
    ),
    renamed(
        matrix_solve::OPS[0],
        "BatchMatrixSolve",
        "matrix: T, rhs: T -> output: T | adjoint: bool = false; T: type {double,float}",
    ),
    renamed(
        matrix_solve::OPS[1],
        "BatchMatrixTriangularSolve",
        "matrix: T, rhs: T -> output: T | lower: bool = true; adjoint: bool = false; T: type \
         {double,float}",
    ),
    renamed(
        matrix_solve_ls::OPS[0],
        "BatchMatrixSolveLs",
        "matrix: T, rhs: T, l2_regularizer: double -> output: T | T: type {double,float}; fast: \
         bool = true",
    ),
    renamed(
        self_adjoint_eig::OPS[0],
        "BatchSelfAdjointEigV2",
        "input: T -> e: T, v: T | compute_v: bool = true; T: type {double,float}",
    ),
    renamed(
        svd::OPS[0],
        "BatchSvd",
        "input: T -> s: T, u: T, v: T | compute_uv: bool = true; full_matrices: bool = false; T: \
         type {double,float,complex64,complex128}",
    ),
    Op::new(
        "BatchSelfAdjointEig",
        "input: T -> output: T | T: type {double,float}",
    )
    .shape(eig_shape)
    .cost(Cost::Expensive)
    .kernel(eig),
    Op::new(
        "SelfAdjointEig",
        "input: T -> output: T | T: type {double,float,half}",
    )
    .shape(eig_shape)
    .cost(Cost::Expensive)
    .kernel(eig),
];

/// Returns an op under another name; TensorFlow does not differentiate the old names.
const fn renamed(op: Op, name: &'static str, signature: &'static str) -> Op {
    Op {
        name,
        signature,
        gradient: GradientRule::Undefined,
        ..op
    }
}

/// The eigenvalues are a row above the vectors.
fn eig_shape(ctx: &mut ShapeCtx) -> Result<()> {
    let batch = square_batch(ctx, 0)?;
    let n = ctx.input(0).dim(-1).or(ctx.input(0).dim(-2));
    if let Some(batch) = batch.dims() {
        let rows = n.map(|n| n + 1);
        ctx.set(0, PartialShape::of(batch.iter().copied().chain([rows, n])));
    }
    Ok(())
}

fn eig(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    let dtype = build.input(0)?;
    dispatch!(dtype, T in [f32, f64] =>
        Ok(Box::new(|ctx: &mut KernelCtx| packed_eig::<T>(ctx))),
        else Err(build.unsupported(dtype)))
}
