//! Matrix products.

use crate::data;
use crate::epilogue::{self, Epilogue};
use crate::kernel::{GpuCtx, GpuKernel, Row};
use crate::library::tf32;
use ferroflow_base::{Result, invalid_argument};
use ferroflow_device::cuda::{Epilogue as BlasEpilogue, Gemm};
use ferroflow_device::is_capturing;
use ferroflow_functors::broadcast::broadcast_shape;
use ferroflow_functors::matmul::{check_matrices, incompatible};
use ferroflow_opdef::KernelBuild;
use ferroflow_tensor::{DType, Shape, Tensor};
use std::sync::OnceLock;

pub(crate) const ROWS: &[Row] = &[
    Row::new("MatMul", mat_mul),
    Row::new("_FusedMatMul", mat_mul),
    Row::new("_Dense", dense),
    Row::new("BatchMatMul", batch_mat_mul),
    Row::new("BatchMatMulV2", batch_mat_mul),
    Row::new("BatchMatMulV3", batch_mat_mul).types(&[
        ("Ta", crate::kernel::FLOATS),
        ("Tb", crate::kernel::FLOATS),
        ("Tout", crate::kernel::FLOATS),
    ]),
];

/// A matrix with its number of rows and columns as it is stored.
struct Side {
    tensor: Tensor,
    rows: usize,
    columns: usize,
    transpose: bool,
}

impl Side {
    fn dims(&self) -> [usize; 2] {
        match self.transpose {
            false => [self.rows, self.columns],
            true => [self.columns, self.rows],
        }
    }
}

fn mat_mul(build: &KernelBuild) -> Result<Box<dyn GpuKernel>> {
    let epilogue = Epilogue::of(build.attrs)?;
    let (transpose_x, transpose_w) = (
        build.attrs.bool("transpose_a")?,
        build.attrs.bool("transpose_b")?,
    );
    let packed = OnceLock::new();
    Ok(Box::new(move |ctx: &mut GpuCtx| {
        let (a, b) = (ctx.input(0)?, ctx.input(1)?);
        check_matrices(a.dtype(), a.shape(), b.shape())?;
        let [(m, k), (k2, n)] = [&a, &b].map(|t| (t.shape()[0], t.shape()[1]));
        let (x, w) = (
            side(a.clone(), m, k, transpose_x),
            packed_side(ctx, side(b.clone(), k2, n, transpose_w), &packed)?,
        );
        let shape = Shape::from([x.dims()[0], w.dims()[1]]);
        let y = product(ctx, &x, &w, shape, epilogue)?;
        ctx.set_output(0, y)
    }))
}

fn side(tensor: Tensor, rows: usize, columns: usize, transpose: bool) -> Side {
    Side {
        tensor,
        rows,
        columns,
        transpose,
    }
}

/// Returns input 1 as products in TF32 read it, if it is a constant: the tensor cores take only matrices whose terms of a sum
/// are next to each other.
fn packed_side(ctx: &GpuCtx, w: Side, packed: &OnceLock<Tensor>) -> Result<Side> {
    let gains = w.tensor.dtype() == DType::Float && tf32() && w.columns > 1;
    if w.transpose || !gains || !ctx.is_constant(1) {
        return Ok(w);
    }
    let transposed = match packed.get() {
        Some(packed) => packed.clone(),
        // What is captured has not been computed.
        None if is_capturing() => return Ok(w),
        None => {
            let transposed = data::transposed(ctx, &w.tensor, &[1, 0])?;
            packed.get_or_init(|| transposed).clone()
        }
    };
    Ok(side(transposed, w.columns, w.rows, true))
}

/// `_Dense`: rows of any number of dimensions times a matrix.
fn dense(build: &KernelBuild) -> Result<Box<dyn GpuKernel>> {
    let epilogue = Epilogue::of(build.attrs)?;
    let transpose_w = build.attrs.bool("transpose_w")?;
    let packed = OnceLock::new();
    Ok(Box::new(move |ctx: &mut GpuCtx| {
        let (a, b) = (ctx.input(0)?, ctx.input(1)?);
        let (Some((&k, outer)), [rows, columns]) = (a.shape().split_last(), b.shape().dims())
        else {
            return Err(invalid_argument!(
                "x must be at least a vector, and w a matrix"
            ));
        };
        let m = outer.iter().product();
        let w = packed_side(ctx, side(b.clone(), *rows, *columns, transpose_w), &packed)?;
        let shape = outer.iter().copied().chain([w.dims()[1]]).collect();
        let x = side(a.clone(), m, k, false);
        let y = product(ctx, &x, &w, shape, epilogue)?;
        ctx.set_output(0, y)
    }))
}

/// The product of two matrices with what follows, in a tensor of shape `shape`. Inputs from 2 on are the epilogue's.
fn product(ctx: &GpuCtx, x: &Side, w: &Side, shape: Shape, epilogue: Epilogue) -> Result<Tensor> {
    let ([m, k], [k2, n]) = (x.dims(), w.dims());
    if k != k2 {
        return Err(incompatible(x.tensor.shape(), w.tensor.shape()));
    }
    let bias = match epilogue.bias {
        true => Some(ctx.input(2)?),
        false => None,
    };
    let side = match epilogue.side {
        true => Some(ctx.input(2 + usize::from(epilogue.bias))?),
        false => None,
    };
    if let Some(wrong) = bias.as_ref().filter(|b| b.num_elements() != n) {
        return Err(invalid_argument!(
            "the bias must have {n} elements, not {}",
            wrong.num_elements()
        ));
    }
    let y = ctx.alloc(x.tensor.dtype(), shape)?;
    if y.num_elements() == 0 {
        return Ok(y);
    }
    let (direct, late) = epilogue::split_side(side, &y);
    let is_relu = epilogue.is_relu() && late.is_empty() && bias.is_some();
    let gemm = Gemm {
        dtype: x.tensor.dtype(),
        m,
        n,
        k,
        transpose_x: x.transpose,
        transpose_w: w.transpose,
        batch: 1,
        stride_x: 0,
        stride_w: 0,
        has_side: direct.is_some(),
        epilogue: match (&bias, is_relu) {
            (None, _) => BlasEpilogue::None,
            (Some(_), false) => BlasEpilogue::Bias,
            (Some(_), true) => BlasEpilogue::BiasRelu,
        },
        tf32: tf32(),
    };
    let tensors = [&x.tensor, &w.tensor, &y];
    multiply(ctx, &gemm, tensors, bias.as_ref(), direct.as_ref())?;
    let activation = epilogue.activation.filter(|_| !is_relu);
    epilogue::finish(ctx, &y, &late, activation)?;
    Ok(y)
}

/// Enqueues a product, or zeros if its sums have no terms.
pub(crate) fn multiply(
    ctx: &GpuCtx,
    gemm: &Gemm,
    [x, w, y]: [&Tensor; 3],
    bias: Option<&Tensor>,
    side: Option<&Tensor>,
) -> Result<()> {
    if gemm.k > 0 {
        let (x, w) = (
            data::aligned(ctx, x.clone())?,
            data::aligned(ctx, w.clone())?,
        );
        let bias = bias.map(|b| data::aligned(ctx, b.clone())).transpose()?;
        let side = side.map(|s| data::aligned(ctx, s.clone())).transpose()?;
        let blas = ctx.library.blas(ctx.memory)?;
        return blas.multiply(ctx.memory, gemm, [&x, &w, y], bias.as_ref(), side.as_ref());
    }
    data::zero(ctx, y)?;
    let relu = (gemm.epilogue == BlasEpilogue::BiasRelu).then_some(ferroflow_opdef::UnaryFn::Relu);
    let added: Vec<Tensor> = bias.into_iter().chain(side).cloned().collect();
    epilogue::finish(ctx, y, &added, relu)
}

fn batch_mat_mul(build: &KernelBuild) -> Result<Box<dyn GpuKernel>> {
    let (transpose_x, transpose_w) = (build.attrs.bool("adj_x")?, build.attrs.bool("adj_y")?);
    Ok(Box::new(move |ctx: &mut GpuCtx| {
        let (a, b) = (ctx.input(0)?, ctx.input(1)?);
        for (i, t) in [&a, &b].into_iter().enumerate() {
            if t.shape().rank() < 2 {
                return Err(invalid_argument!(
                    "In[{i}] ndims must be >= 2: {}",
                    t.shape().rank()
                ));
            }
        }
        let y = batch_product(ctx, &a, &b, transpose_x, transpose_w)?;
        ctx.set_output(0, y)
    }))
}

/// The products of matrices, whose other dimensions are broadcast together.
///
/// # Errors
/// INVALID_ARGUMENT if the shapes do not fit; those of the device.
pub(crate) fn batch_product(
    ctx: &GpuCtx,
    a: &Tensor,
    b: &Tensor,
    transpose_x: bool,
    transpose_w: bool,
) -> Result<Tensor> {
    let (outer_a, own_a) = a.shape().split_at(a.shape().rank() - 2);
    let (outer_b, own_b) = b.shape().split_at(b.shape().rank() - 2);
    let (outer_a, outer_b) = (Shape::from(outer_a), Shape::from(outer_b));
    let outer = broadcast_shape(&outer_a, &outer_b)?;
    let x = side(a.clone(), own_a[0], own_a[1], transpose_x);
    let w = side(b.clone(), own_b[0], own_b[1], transpose_w);
    let ([m, k], [k2, n]) = (x.dims(), w.dims());
    if k != k2 {
        return Err(incompatible(a.shape(), b.shape()));
    }
    let shape: Shape = outer.iter().copied().chain([m, n]).collect();
    let y = ctx.alloc(a.dtype(), shape)?;
    if y.num_elements() > 0 {
        let (x, stride_x) = batched(ctx, a, &outer_a, &outer)?;
        let (w, stride_w) = batched(ctx, b, &outer_b, &outer)?;
        let gemm = Gemm {
            dtype: a.dtype(),
            m,
            n,
            k,
            transpose_x,
            transpose_w,
            batch: outer.num_elements(),
            stride_x,
            stride_w,
            has_side: false,
            epilogue: BlasEpilogue::None,
            tf32: tf32(),
        };
        multiply(ctx, &gemm, [&x, &w, &y], None, None)?;
    }
    Ok(y)
}

/// The matrices of a product with the distance from one to the next: copied, if only some dimensions are broadcast.
fn batched(ctx: &GpuCtx, t: &Tensor, own: &Shape, outer: &Shape) -> Result<(Tensor, usize)> {
    let matrix: usize = t.shape()[own.rank()..].iter().product();
    if own.num_elements() == 1 {
        return Ok((t.clone(), 0));
    }
    if own.num_elements() == outer.num_elements() {
        return Ok((t.clone(), matrix));
    }
    let dims = outer.iter().chain(&t.shape()[own.rank()..]).copied();
    Ok((data::broadcast(ctx, t, &dims.collect())?, matrix))
}
