//! Conversion of 16-bit floats to `f32` and back, for kernels that compute in `f32` only.

use crate::numeric::Half;
use ferroflow_base::{Result, internal};
use ferroflow_sync::{Parallelism, par_chunks_mut};
use ferroflow_tensor::{DType, Tensor, bf16, f16};

/// Elements per parallel task.
const BLOCK: usize = 16 * 1024;

/// Elements that a functor of `f32` converts at a time, on the stack.
pub const HALF_BLOCK: usize = 512;

/// Returns `t` in single precision; `t` itself if it already is.
///
/// # Errors
/// INTERNAL for other dtypes than 16-bit floats and `float`; RESOURCE_EXHAUSTED if the result
/// does not fit into memory.
pub fn widened(par: &dyn Parallelism, t: &Tensor) -> Result<Tensor> {
    match t.dtype() {
        DType::Float => Ok(t.clone()),
        DType::Half => widen::<f16>(par, t),
        DType::Bfloat16 => widen::<bf16>(par, t),
        dtype => Err(internal!("{dtype} does not widen to float")),
    }
}

/// Converts `t` from single precision to `dtype`.
///
/// # Errors
/// INTERNAL for other dtypes than 16-bit floats and `float`; RESOURCE_EXHAUSTED if the result
/// does not fit into memory.
pub fn narrowed(par: &dyn Parallelism, t: Tensor, dtype: DType) -> Result<Tensor> {
    match dtype {
        DType::Float => Ok(t),
        DType::Half => narrow::<f16>(par, &t),
        DType::Bfloat16 => narrow::<bf16>(par, &t),
        dtype => Err(internal!("float does not narrow to {dtype}")),
    }
}

fn widen<H: Half>(par: &dyn Parallelism, t: &Tensor) -> Result<Tensor> {
    widened_slice(par, t.slice::<H>()?)?.with_shape(t.shape().clone())
}

fn narrow<H: Half>(par: &dyn Parallelism, t: &Tensor) -> Result<Tensor> {
    let mut out = Tensor::for_overwrite(H::DTYPE, t.shape().clone())?;
    narrow_slice(par, t.slice()?, out.slice_mut::<H>()?);
    Ok(out)
}

/// Returns a vector of the elements in single precision.
///
/// # Errors
/// RESOURCE_EXHAUSTED if the result does not fit into memory.
pub fn widened_slice<H: Half>(par: &dyn Parallelism, x: &[H]) -> Result<Tensor> {
    let mut out = Tensor::for_overwrite(DType::Float, [x.len()].into())?;
    par_chunks_mut(par, out.slice_mut::<f32>()?, BLOCK, 1, &|i, out| {
        H::widen(&x[i * BLOCK..][..out.len()], out);
    });
    Ok(out)
}

/// Rounds elements from single precision.
pub fn narrow_slice<H: Half>(par: &dyn Parallelism, x: &[f32], out: &mut [H]) {
    par_chunks_mut(par, out, BLOCK, 1, &|i, out| {
        H::narrow_all(&x[i * BLOCK..][..out.len()], out);
    });
}

/// Converts `from` element by element, in parallel.
pub fn convert<A: Copy + Sync, B: Send>(
    par: &dyn Parallelism,
    from: &[A],
    to: &mut [B],
    f: impl Fn(A) -> B + Sync,
) {
    par_chunks_mut(par, to, BLOCK, 1, &|i, to| {
        for (o, v) in to.iter_mut().zip(&from[i * BLOCK..]) {
            *o = f(*v);
        }
    });
}

/// Returns `t`, of any real dtype, in single precision.
///
/// # Errors
/// INTERNAL for dtypes that are not real floats; RESOURCE_EXHAUSTED if the result does not fit
/// into memory.
pub fn floats(par: &dyn Parallelism, t: &Tensor) -> Result<Tensor> {
    macro_rules! convert {
        ($($dtype:ident: $ty:ty),*) => {
            match t.dtype() {
                $(DType::$dtype => {
                    let x = t.slice::<$ty>()?;
                    let mut out = Tensor::for_overwrite(DType::Float, t.shape().clone())?;
                    convert(par, x, out.slice_mut::<f32>()?, |x| x as f32);
                    Ok(out)
                })*
                _ => widened(par, t),
            }
        };
    }
    convert!(Int8: i8, Uint8: u8, Int16: i16, Uint16: u16, Int32: i32, Int64: i64, Double: f64)
}
