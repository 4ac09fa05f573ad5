//! Scatter of slices by coordinates, which ScatterNd, TensorScatter* and ResourceScatterNd* share
//! (TensorFlow: `core/kernels/scatter_nd_op.cc`).

use crate::gather::{ignores_bad_indices, row_position};
use crate::indices;
use crate::strided::unravel;
use ferroflow_base::{Result, Status, invalid_argument};
use ferroflow_opdef::KernelBuild;
use ferroflow_tensor::{
    Bytes, Complex32, Complex64, DType, Item, PartialShape, Shape, Tensor, bf16, dispatch_items,
    f16,
};

/// The combination of an update with the element at its position.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Combine {
    /// Replaces the element.
    Assign,
    /// Adds to the element; concatenates strings.
    Add,
    /// Subtracts from the element.
    Sub,
    /// Keeps the larger of the two.
    Max,
    /// Keeps the smaller of the two.
    Min,
}

/// Applies updates (third argument) at coordinates (second) to a tensor (first).
pub type ScatterNd = Box<dyn Fn(&mut Tensor, &Tensor, &Tensor) -> Result<()> + Send + Sync>;

/// Checks that indices and updates fit a target of shape `shape`. Returns the length of a row of
/// coordinates.
fn check(indices: &Shape, updates: &Shape, shape: &Shape) -> Result<usize> {
    let Some((&depth, outer)) = indices.split_last() else {
        return Err(invalid_argument!(
            "Indices shape must have rank at least one. Found:{indices}"
        ));
    };
    if shape.num_elements() == 0 && (indices.num_elements() > 0 || updates.num_elements() > 0) {
        return Err(invalid_argument!(
            "Indices and updates specified for empty output shape: {shape}"
        ));
    }
    if updates.rank() < outer.len() || updates[..outer.len()] != *outer {
        return Err(invalid_argument!(
            "Dimensions [0,{}) of indices[shape={indices}] must match dimensions [0,{}) of \
             updates[shape={updates}]",
            outer.len(),
            outer.len()
        ));
    }
    if depth > shape.rank() || updates[outer.len()..] != shape[depth..] {
        return Err(invalid_argument!(
            "Dimensions [{depth},{}) of input[shape={shape}] must match dimensions [{},{}) of \
             updates[shape={updates}]",
            shape.rank(),
            outer.len(),
            updates.rank()
        ));
    }
    Ok(depth)
}

/// Applies `combine` to the elements of every indexed slice, in order.
fn scatter<T: Item>(
    out: &mut Tensor,
    indices: &Tensor,
    updates: &Tensor,
    ignore: bool,
    combine: impl Fn(&mut T, &T),
) -> Result<()> {
    let shape = out.shape().clone();
    let depth = check(indices.shape(), updates.shape(), &shape)?;
    let inner: usize = shape[depth..].iter().product();
    let coords = indices::ints(indices)?;
    let from = updates.items::<T>()?;
    let to = out.items_mut::<T>()?;
    let n: usize = indices.shape()[..indices.shape().rank() - 1]
        .iter()
        .product();
    for i in 0..n {
        let row = &coords[i * depth..(i + 1) * depth];
        let Some(p) = row_position(row, &shape) else {
            if ignore {
                continue;
            }
            return Err(bad_coords(i, row, indices.shape(), &shape));
        };
        let from = &from[i * inner..(i + 1) * inner];
        for (to, from) in to[p * inner..(p + 1) * inner].iter_mut().zip(from) {
            combine(to, from);
        }
    }
    Ok(())
}

#[cold]
fn bad_coords(i: usize, row: &[i64], indices: &Shape, shape: &Shape) -> Status {
    let outer = &indices[..indices.rank() - 1];
    let mut at = vec![0; outer.len()];
    unravel(i, outer, &mut at);
    let row = indices::coordinates(row.iter().copied());
    invalid_argument!(
        "indices{} = {row} does not index into shape {shape}",
        indices::list(at)
    )
}

/// Returns the scatter of updates of dtype `dtype`.
///
/// # Errors
///
/// UNIMPLEMENTED if the dtype has no such operation.
pub fn scatter_nd(build: &KernelBuild, dtype: DType, combine: Combine) -> Result<ScatterNd> {
    let ignore = ignores_bad_indices(build.attrs)?;
    if combine == Combine::Assign {
        return Ok(dispatch_items!(dtype, T => {
            Box::new(move |out, indices, updates| {
                scatter::<T>(out, indices, updates, ignore, |to, from| to.clone_from(from))
            })
        }));
    }
    // `$Item` stores the bits of a `$T`.
    macro_rules! number {
        ($T:ty, $Item:ty, $from:expr, $into:expr, $f:expr) => {{
            let f = |a: $T, b: $T| -> $T { ($f)(a, b) };
            Ok(Box::new(move |out, indices, updates| {
                scatter::<$Item>(out, indices, updates, ignore, |to, from| {
                    *to = $into(f($from(*to), $from(*from)));
                })
            }))
        }};
    }
    macro_rules! ordered {
        ($T:ty, $Item:ty, $from:expr, $into:expr, $add:expr, $sub:expr) => {
            match combine {
                Combine::Add => number!($T, $Item, $from, $into, $add),
                Combine::Sub => number!($T, $Item, $from, $into, $sub),
                Combine::Max => number!($T, $Item, $from, $into, |a, b| if a < b { b } else { a }),
                _ => number!($T, $Item, $from, $into, |a, b| if b < a { b } else { a }),
            }
        };
    }
    macro_rules! complex {
        ($T:ty, $Item:ty, $from:expr, $into:expr) => {
            match combine {
                Combine::Add => number!($T, $Item, $from, $into, |a, b| a + b),
                Combine::Sub => number!($T, $Item, $from, $into, |a, b| a - b),
                _ => Err(build.unsupported(dtype)),
            }
        };
    }
    macro_rules! integer {
        ($T:ty, $Item:ty) => {
            ordered!(
                $T,
                $Item,
                |v| v as $T,
                |v| v as $Item,
                <$T>::wrapping_add,
                <$T>::wrapping_sub
            )
        };
    }
    match dtype {
        DType::String if combine == Combine::Add => Ok(Box::new(move |out, indices, updates| {
            scatter::<Bytes>(out, indices, updates, ignore, |to, from| {
                *to = [&to[..], &from[..]].concat().into();
            })
        })),
        DType::Float => {
            ordered!(
                f32,
                u32,
                f32::from_bits,
                f32::to_bits,
                |a, b| a + b,
                |a, b| a - b
            )
        }
        DType::Double => {
            ordered!(
                f64,
                u64,
                f64::from_bits,
                f64::to_bits,
                |a, b| a + b,
                |a, b| a - b
            )
        }
        DType::Half => ordered!(
            f16,
            u16,
            f16::from_bits,
            f16::to_bits,
            |a, b| a + b,
            |a, b| a - b
        ),
        DType::Bfloat16 => {
            ordered!(
                bf16,
                u16,
                bf16::from_bits,
                bf16::to_bits,
                |a, b| a + b,
                |a, b| a - b
            )
        }
        // Like C++'s sum of bools: nonzero is true.
        DType::Bool => match combine {
            Combine::Add => number!(bool, bool, |v| v, |v| v, |a, b| a | b),
            Combine::Sub => number!(bool, bool, |v| v, |v| v, |a, b| a ^ b),
            _ => Err(build.unsupported(dtype)),
        },
        DType::Int8 => integer!(i8, u8),
        DType::Uint8 => integer!(u8, u8),
        DType::Int16 => integer!(i16, u16),
        DType::Uint16 => integer!(u16, u16),
        DType::Int32 => integer!(i32, u32),
        DType::Uint32 => integer!(u32, u32),
        DType::Int64 => integer!(i64, u64),
        DType::Uint64 => integer!(u64, u64),
        DType::Complex64 => complex!(
            Complex32,
            u64,
            |v: u64| Complex32::new(f32::from_bits(v as u32), f32::from_bits((v >> 32) as u32)),
            |v: Complex32| v.re.to_bits() as u64 | (v.im.to_bits() as u64) << 32
        ),
        DType::Complex128 => complex!(
            Complex64,
            [u64; 2],
            |v: [u64; 2]| Complex64::new(f64::from_bits(v[0]), f64::from_bits(v[1])),
            |v: Complex64| [v.re.to_bits(), v.im.to_bits()]
        ),
        dtype => Err(build.unsupported(dtype)),
    }
}

/// Checks the shapes of indices, updates and target as far as they are known.
///
/// # Errors
///
/// INVALID_ARGUMENT if they contradict each other.
pub fn check_partial(
    indices: &PartialShape,
    updates: &PartialShape,
    to: &PartialShape,
) -> Result<()> {
    let (Some(indices), Some(updates), Some(to)) =
        (indices.to_full(), updates.to_full(), to.to_full())
    else {
        return Ok(());
    };
    check(&indices, &updates, &to).map(|_| ())
}
