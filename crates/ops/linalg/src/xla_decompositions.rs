//! XlaSelfAdjointEig and XlaSvd: the decompositions of SelfAdjointEigV2 and Svd under XLA's names (TensorFlow:
//! `compiler/tf2xla/kernels/xla_{self_adjoint_eig,svd}_op.cc`).

use crate::self_adjoint_eig::eig;
use crate::svd::svd;
use ferroflow_base::{Result, invalid_argument};
use ferroflow_functors::conversion::converted;
use ferroflow_functors::product::MatMulElement;
use ferroflow_functors::transpose::transposed;
use ferroflow_opdef::{Cost, KernelBuild, KernelCtx, Op, OpKernel};
use ferroflow_tensor::{Complex32, Complex64, DType, dispatch};

/// The ops of this file.
pub(crate) const OPS: &[Op] = &[
    Op::new(
        "XlaSelfAdjointEig",
        "a: T -> w: T, v: T | lower: bool; max_iter: int; epsilon: float; T: numbertype",
    )
    .cost(Cost::Expensive)
    .kernel(self_adjoint_eig),
    Op::new(
        "XlaSvd",
        "a: T -> s: T, u: T, v: T | max_iter: int; epsilon: float; precision_config: string; T: numbertype",
    )
    .cost(Cost::Expensive)
    .kernel(singular_values),
];

/// Converts 16-bit floats in input 0 to floats, and returns the type of the results.
fn widen(ctx: &mut KernelCtx) -> Result<DType> {
    let x = ctx.input(0)?;
    let dtype = x.dtype();
    if matches!(dtype, DType::Half | DType::Bfloat16) {
        let wide = converted(x, DType::Float)?;
        ctx.set_input(0, wide)?;
    }
    Ok(dtype)
}

/// Returns the type that elements of type `dtype` are computed in.
fn computed(dtype: DType) -> DType {
    match dtype {
        DType::Half | DType::Bfloat16 => DType::Float,
        dtype => dtype,
    }
}

fn self_adjoint_eig(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    let is_lower = build.attrs.bool("lower")?;
    let dtype = build.input(0)?;
    dispatch!(computed(dtype), T in [f32, f64, Complex32, Complex64] => Ok(Box::new(move |ctx: &mut KernelCtx| {
        let shape = ctx.shape(0)?;
        match shape.dims() {
            [.., m, n] if m == n => {}
            [.., m, n] => return Err(invalid_argument!(
                "Arguments to symmetric eigendecomposition must be square matrices: got shape ({m}, {n})."
            )),
            _ => return Err(invalid_argument!(
                "Arguments to Eigen decomposition must have rank >= 2: got shape {shape}."
            )),
        }
        let dtype = widen(ctx)?;
        if !is_lower {
            flip::<T>(ctx)?;
        }
        eig::<T>(ctx, dtype, true)
    })), else Err(invalid_argument!(
        "Type of the input matrix must be floating point or complex: got {dtype}."
    )))
}

/// Replaces input 0 by its adjoint, whose lower triangles are the upper ones.
fn flip<T: MatMulElement>(ctx: &mut KernelCtx) -> Result<()> {
    let x = ctx.take_input(0)?;
    let rank = x.shape().rank();
    let mut perm: Vec<usize> = (0..rank).collect();
    perm.swap(rank - 2, rank - 1);
    let mut x = transposed(ctx, x, &perm)?;
    if x.dtype().is_complex() {
        x.slice_mut::<T>()?
            .iter_mut()
            .for_each(|x| *x = x.conjugate());
    }
    ctx.set_input(0, x)
}

fn singular_values(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    let dtype = build.input(0)?;
    dispatch!(computed(dtype), T in [f32, f64] => Ok(Box::new(|ctx: &mut KernelCtx| {
        let dtype = widen(ctx)?;
        svd::<T>(ctx, dtype, true, true)
    })), else Err(build.unsupported(dtype)))
}
