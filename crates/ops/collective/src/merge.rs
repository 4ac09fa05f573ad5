//! How reductions merge their parts.

use ferroflow_base::{Result, internal, invalid_argument};
use ferroflow_functors::numeric::{Num, Ordered};
use ferroflow_opdef::MergeFn;
use ferroflow_tensor::{DType, Element, Tensor, bf16, dispatch, f16};
use std::sync::Arc;

/// The operation of a reduction.
#[derive(Clone, Copy)]
pub(crate) enum Merge {
    Add,
    Mul,
    Min,
    Max,
}

impl Merge {
    /// Returns the operation of this name in the attrs of TensorFlow's ops.
    pub(crate) fn of(name: &str) -> Merge {
        match name {
            "Add" => Merge::Add,
            "Mul" => Merge::Mul,
            "Min" => Merge::Min,
            _ => Merge::Max,
        }
    }
}

/// Merges the parts of all members.
pub(crate) fn reduced(
    dtype: DType,
    parts: &[&Tensor],
    merge: Merge,
    divide: bool,
) -> Result<Tensor> {
    let Some((first, rest)) = parts.split_first() else {
        return Err(internal!("a collective needs members"));
    };
    let (mut sum, merge) = ((*first).clone(), merge_fn(dtype, merge));
    for part in rest {
        merge(&mut sum, part)?;
    }
    if divide {
        divided(dtype, &mut sum, parts.len())?;
    }
    Ok(sum)
}

fn operation<T: Ordered>(merge: Merge) -> fn(T, T) -> T {
    match merge {
        Merge::Add => T::add,
        Merge::Mul => T::mul,
        Merge::Min => T::smaller,
        Merge::Max => T::larger,
    }
}

/// Returns the function that merges two parts.
pub(crate) fn merge_fn(dtype: DType, merge: Merge) -> MergeFn {
    Arc::new(move |sum: &mut Tensor, part: &Tensor| {
        let op = operation::<f32>(merge);
        match dtype {
            DType::Half => fold(sum, part, |a: f16, b: f16| {
                f16::from_f32(op(a.to_f32(), b.to_f32()))
            }),
            DType::Bfloat16 => fold(sum, part, |a: bf16, b: bf16| {
                bf16::from_f32(op(a.to_f32(), b.to_f32()))
            }),
            _ => {
                dispatch!(dtype, T in [f32, f64, i32, i64] => fold(sum, part, operation::<T>(merge)),
                else Err(invalid_argument!("{dtype} cannot be reduced")))
            }
        }
    })
}

fn fold<T: Element>(sum: &mut Tensor, part: &Tensor, op: impl Fn(T, T) -> T) -> Result<()> {
    let part = part.slice::<T>()?;
    for (a, b) in sum.slice_mut::<T>()?.iter_mut().zip(part) {
        *a = op(*a, *b);
    }
    Ok(())
}

/// Divides a sum by the number of its parts.
pub(crate) fn divided(dtype: DType, sum: &mut Tensor, n: usize) -> Result<()> {
    fn each<T: Element>(sum: &mut Tensor, f: impl Fn(T) -> T) -> Result<()> {
        sum.slice_mut::<T>()?.iter_mut().for_each(|a| *a = f(*a));
        Ok(())
    }
    match dtype {
        DType::Half => each(sum, |a: f16| f16::from_f32(a.to_f32() / n as f32)),
        DType::Bfloat16 => each(sum, |a: bf16| bf16::from_f32(a.to_f32() / n as f32)),
        _ => {
            dispatch!(dtype, T in [f32, f64, i32, i64] => each(sum, |a: T| a.div(T::from_count(n))),
            else Err(invalid_argument!("{dtype} cannot be divided")))
        }
    }
}
