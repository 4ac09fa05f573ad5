//! 16-bit floats as `f32` tensors and back, for kernels that compute in `f32` only.

use crate::numeric::Half;
use ferroflow_base::{Result, internal};
use ferroflow_sync::{Parallelism, par_chunks_mut};
use ferroflow_tensor::{DType, Tensor, bf16, f16};

const BLOCK: usize = 16 * 1024;

/// `t` in single precision: itself when it already is.
pub fn widened(par: &dyn Parallelism, t: &Tensor) -> Result<Tensor> {
    match t.dtype() {
        DType::Float => Ok(t.clone()),
        DType::Half => widen::<f16>(par, t),
        DType::Bfloat16 => widen::<bf16>(par, t),
        dtype => Err(internal!("{dtype} does not widen to float")),
    }
}

/// `t`, which is in single precision, as `dtype`.
pub fn narrowed(par: &dyn Parallelism, t: Tensor, dtype: DType) -> Result<Tensor> {
    match dtype {
        DType::Float => Ok(t),
        DType::Half => narrow::<f16>(par, &t),
        DType::Bfloat16 => narrow::<bf16>(par, &t),
        dtype => Err(internal!("float does not narrow to {dtype}")),
    }
}

fn widen<H: Half>(par: &dyn Parallelism, t: &Tensor) -> Result<Tensor> {
    let x = t.slice::<H>()?;
    let mut out = Tensor::for_overwrite(DType::Float, t.shape().clone())?;
    par_chunks_mut(par, out.slice_mut::<f32>()?, BLOCK, 1, &|i, out| {
        H::widen(&x[i * BLOCK..][..out.len()], out);
    });
    Ok(out)
}

fn narrow<H: Half>(par: &dyn Parallelism, t: &Tensor) -> Result<Tensor> {
    let x = t.slice::<f32>()?;
    let mut out = Tensor::for_overwrite(H::DTYPE, t.shape().clone())?;
    par_chunks_mut(par, out.slice_mut::<H>()?, BLOCK, 1, &|i, out| {
        H::narrow_all(&x[i * BLOCK..][..out.len()], out);
    });
    Ok(out)
}

/// `t`, of any real dtype, in single precision.
pub fn floats(par: &dyn Parallelism, t: &Tensor) -> Result<Tensor> {
    macro_rules! convert {
        ($($dtype:ident: $ty:ty),*) => {
            match t.dtype() {
                $(DType::$dtype => {
                    let x = t.slice::<$ty>()?;
                    let mut out = Tensor::for_overwrite(DType::Float, t.shape().clone())?;
                    par_chunks_mut(par, out.slice_mut::<f32>()?, BLOCK, 1, &|i, out| {
                        for (o, x) in out.iter_mut().zip(&x[i * BLOCK..]) {
                            *o = *x as f32;
                        }
                    });
                    Ok(out)
                })*
                _ => widened(par, t),
            }
        };
    }
    convert!(Int8: i8, Uint8: u8, Int16: i16, Uint16: u16, Int32: i32, Int64: i64, Double: f64)
}
