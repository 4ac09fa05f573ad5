//! The product of two matrices (TensorFlow: `core/kernels/matmul_op_impl.h`).

use crate::indices::shape_of;
use crate::numeric::Num;
use ferroflow_base::{Result, invalid_argument};
use ferroflow_opdef::KernelCtx;
use ferroflow_primitives::gemm::{self, Epilogue, GemmShape, PackedB, gemm, gemm_kept};
use ferroflow_tensor::{DType, Element, Shape, Tensor};
use std::sync::Arc;

/// Checks that both inputs are matrices. TensorFlow's message depends on whether oneDNN has a
/// kernel for the dtype.
///
/// # Errors
/// INVALID_ARGUMENT if they are not.
pub fn check_matrices(dtype: DType, a: &Shape, b: &Shape) -> Result<()> {
    let (m, n) = (a.rank(), b.rank());
    if (m, n) == (2, 2) {
        return Ok(());
    }
    Err(match dtype {
        DType::Float | DType::Half | DType::Bfloat16 => {
            invalid_argument!("In[{}] ndims must be >= 2", usize::from(m == 2))
        }
        _ if m != n => invalid_argument!("In[0] and In[1] has different ndims: {a} vs. {b}"),
        _ => invalid_argument!("In[0] and In[1] ndims must be == 2: {m}"),
    })
}

/// Returns the sizes of `op(a) · op(b)`.
///
/// # Errors
/// INVALID_ARGUMENT if the matrices do not fit.
pub fn sizes(a: &Tensor, b: &Tensor, ta: bool, tb: bool) -> Result<GemmShape> {
    check_matrices(a.dtype(), a.shape(), b.shape())?;
    let (a, b) = (a.shape(), b.shape());
    let (m, k) = if ta { (a[1], a[0]) } else { (a[0], a[1]) };
    let (l, n) = if tb { (b[1], b[0]) } else { (b[0], b[1]) };
    if k != l {
        return Err(incompatible(a, b));
    }
    Ok(GemmShape::dense(m, n, k, ta, tb))
}

/// Returns the error of matrices whose inner dimensions differ.
#[cold]
pub fn incompatible(
    a: impl std::fmt::Display,
    b: impl std::fmt::Display,
) -> ferroflow_base::Status {
    invalid_argument!("Matrix size-incompatible: In[0]: {a}, In[1]: {b}")
}

/// Returns the product of two matrices whose sizes are `s`, as [`sizes`] returns them.
///
/// # Errors
/// RESOURCE_EXHAUSTED if the product does not fit into memory.
pub fn product<T: gemm::GemmElement + Num>(
    ctx: &KernelCtx,
    s: &GemmShape,
    [a, b]: [&Tensor; 2],
    ep: &Epilogue<'_, T>,
) -> Result<Tensor> {
    let mut out = ctx.alloc(T::DTYPE, shape_of([s.m, s.n])?)?;
    let to = out.slice_mut::<T>()?;
    if s.k == 0 {
        finish_zeros(to, s.n, ep);
    } else if s.is_tiny() {
        tiny(s, a.slice()?, b.slice()?, to, ep);
    } else {
        large_product(ctx, s, [a, b], to, ep)?;
    }
    Ok(out)
}

/// Writes the product of two matrices whose sizes are `s`, with any epilogue.
///
/// # Errors
/// INTERNAL if the tensors are of another type.
pub fn large_product<T: gemm::GemmElement + Element>(
    ctx: &KernelCtx,
    s: &GemmShape,
    [a, b]: [&Tensor; 2],
    to: &mut [T],
    ep: &Epilogue<'_, T>,
) -> Result<()> {
    if let Some(packed) = packed_before(ctx, s, b)? {
        gemm_kept(ctx.par(), a.slice()?, s.lda, s.m, &packed, to, s.ldc, ep);
    } else if !to.is_empty() {
        gemm(ctx.par(), s, a.slice()?, b.slice()?, to, ep);
    }
    Ok(())
}

/// Most rows of a product of which packing the right-hand matrix takes a large part.
const FEW_ROWS: usize = 64;
/// Least elements of a right-hand matrix that is kept packed.
const KEPT_ELEMENTS: usize = 8 * 1024;

/// Returns whether the right-hand matrix of a product may be packed already.
pub fn may_be_packed(s: &GemmShape) -> bool {
    let has_few_rows = (1..=FEW_ROWS).contains(&s.m) && s.n > 1;
    has_few_rows && !s.trans_a && !s.trans_b && s.k * s.n >= KEPT_ELEMENTS
}

/// Returns the right-hand matrix in the layout of the kernel, if an earlier product had the same one, as in the iterations
/// of a loop and the steps of a session whose variables do not change.
fn packed_before<T: gemm::GemmElement + Element>(
    ctx: &KernelCtx,
    s: &GemmShape,
    b: &Tensor,
) -> Result<Option<Arc<PackedB<T>>>> {
    if !may_be_packed(s) {
        return Ok(None);
    }
    let rows = b.slice::<T>()?;
    Ok(b.derived([s.k, s.n], || {
        PackedB::from_rows(ctx.par(), rows, s.n, s.k, s.n)
    }))
}

/// Writes a product over an empty dimension: zeros through the epilogue.
pub fn finish_zeros<T: gemm::GemmElement + Element>(out: &mut [T], n: usize, ep: &Epilogue<'_, T>) {
    for row in out.chunks_mut(n.max(1)) {
        match ep.bias {
            Some(bias) => row.copy_from_slice(bias),
            None => row.fill(<T as gemm::GemmElement>::ZERO),
        }
        T::apply(ep.act.as_unary(), row);
    }
}

/// Computes a product term by term, and the epilogue.
fn tiny<T: gemm::GemmElement + Num>(
    s: &GemmShape,
    a: &[T],
    b: &[T],
    to: &mut [T],
    ep: &Epilogue<'_, T>,
) {
    let (row_of_a, term_of_a) = if s.trans_a { (1, s.m) } else { (s.k, 1) };
    for (i, row) in to.chunks_mut(s.n.max(1)).enumerate() {
        let of_a = a.iter().skip(i * row_of_a).step_by(term_of_a).take(s.k);
        if s.trans_b {
            for (out, of_b) in row.iter_mut().zip(b.chunks_exact(s.k)) {
                let terms = of_a.clone().zip(of_b).map(|(x, y)| x.mul(*y));
                *out = terms.fold(<T as gemm::GemmElement>::ZERO, Num::add);
            }
        } else {
            row.fill(<T as gemm::GemmElement>::ZERO);
            for (x, of_b) in of_a.zip(b.chunks_exact(s.n)) {
                let terms = row.iter_mut().zip(of_b);
                terms.for_each(|(out, y)| *out = out.add(x.mul(*y)));
            }
        }
        if let Some(bias) = ep.bias {
            let sums = row.iter_mut().zip(bias);
            sums.for_each(|(out, bias)| *out = out.add(*bias));
        }
        T::apply(ep.act.as_unary(), row);
    }
}
