//! Tensors of types that few models have as tensors of wider types, for kernels whose results are
//! the same there: those that compare, select and add.

use ferroflow_base::Result;
use ferroflow_functors::half_conversion;
use ferroflow_functors::quantized::par_map;
use ferroflow_sync::Parallelism;
use ferroflow_tensor::{DType, Element, Tensor, dispatch};
use std::borrow::Cow;

/// Runs `$body` with `$T` bound to a type that [`widened`] returns.
macro_rules! dispatch_wide {
    ($dtype:expr, $T:ident => $body:expr, else $otherwise:expr) => {
        ferroflow_tensor::dispatch!($dtype, $T in [f32, f64, i32, i64, u64] => $body, else $otherwise)
    };
}
pub(crate) use dispatch_wide;

/// Returns whether [`widened`] takes tensors of this type.
pub(crate) fn is_real(dtype: DType) -> bool {
    let floats = [DType::Float, DType::Double, DType::Half, DType::Bfloat16];
    let signed = [DType::Int8, DType::Int16, DType::Int32, DType::Int64];
    let unsigned = [DType::Uint8, DType::Uint16, DType::Uint32, DType::Uint64];
    [floats, signed, unsigned].as_flattened().contains(&dtype)
}

/// Returns a tensor of the same real numbers, of a type of [`dispatch_wide`].
pub(crate) fn widened<'a>(par: &dyn Parallelism, x: &'a Tensor) -> Result<Cow<'a, Tensor>> {
    let wide = match x.dtype() {
        DType::Half | DType::Bfloat16 => half_conversion::widened(par, x),
        DType::Uint32 => converted(par, x, |v: u32| i64::from(v)),
        dtype => dispatch!(dtype, T in [i8, i16, u8, u16] =>
            converted(par, x, |v: T| i32::from(v)),
            else return Ok(Cow::Borrowed(x))),
    };
    wide.map(Cow::Owned)
}

/// Returns a tensor of [`widened`] numbers as `dtype` again; integers keep their low bits.
pub(crate) fn narrowed(par: &dyn Parallelism, x: Tensor, dtype: DType) -> Result<Tensor> {
    match dtype {
        dtype if dtype == x.dtype() => Ok(x),
        DType::Half | DType::Bfloat16 => half_conversion::narrowed(par, x, dtype),
        DType::Uint32 => converted(par, &x, |v: i64| v as u32),
        dtype => dispatch!(dtype, T in [i8, i16, u8, u16] =>
            converted(par, &x, |v: i32| v as T),
            else Ok(x)),
    }
}

fn converted<A: Element, B: Element>(
    par: &dyn Parallelism,
    x: &Tensor,
    f: impl Fn(A) -> B + Sync,
) -> Result<Tensor> {
    let mut y = Tensor::for_overwrite(B::DTYPE, x.shape().clone())?;
    par_map(par, x.slice::<A>()?, y.slice_mut::<B>()?, f);
    Ok(y)
}
