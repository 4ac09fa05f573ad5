//! Scatter of slices by coordinates, which ScatterNd, TensorScatter* and ResourceScatterNd* share
//! (TensorFlow: `core/kernels/scatter_nd_op.cc`).

use crate::gather::{ignores_bad_indices, place, row_position};
use crate::indices;
use ferroflow_base::{Result, Status, invalid_argument};
use ferroflow_opdef::KernelBuild;
use ferroflow_tensor::{
    Bytes, Complex32, Complex64, DType, Item, PartialShape, Shape, Tensor, bf16, dispatch,
    dispatch_items, f16,
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

/// Checks the ranks of indices and updates.
///
/// # Errors
///
/// INVALID_ARGUMENT for scalars.
pub fn check_ranks(indices: &Shape, updates: &Shape) -> Result<()> {
    for (name, shape) in [("Indices", indices), ("Updates", updates)] {
        if shape.rank() == 0 {
            return Err(invalid_argument!(
                "{name} shape must have rank at least one. Found:{shape}"
            ));
        }
    }
    Ok(())
}

/// The ops whose words a refusal has.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// ScatterNd's.
    Shape,
    /// Those of TensorScatterUpdate, Add, Sub, Max, Min.
    Tensor,
}

/// Checks that indices and updates fit a target of shape `shape`.
///
/// # Errors
///
/// INVALID_ARGUMENT if they do not.
pub fn check_form(indices: &Shape, updates: &Shape, shape: &Shape, form: Form) -> Result<()> {
    check_ranks(indices, updates)?;
    let (depth, n) = (indices[indices.rank() - 1], indices.rank() - 1);
    // ScatterNd counts the numbers of its shape.
    let has_output = match form {
        Form::Shape => shape.rank() > 0,
        _ => shape.num_elements() > 0,
    };
    if !fits_empty(has_output, indices, updates) {
        return Err(invalid_argument!(
            "Indices and updates specified for empty output shape"
        ));
    }
    if updates.rank() < n || updates[..n] != indices[..n] {
        return Err(match form {
            Form::Shape => unlike_indices(n, indices, updates),
            _ => invalid_argument!(
                "Outer dimensions of indices and update must match. Indices shape: {indices}, \
                 updates shape:{updates}"
            ),
        });
    }
    let (inner, rest) = (&updates[n..], shape.get(depth..));
    if rest.is_some_and(|rest| inner == rest) {
        return Ok(());
    }
    Err(match form {
        Form::Shape => unlike_input(depth, n, shape, updates),
        _ if rest.is_none_or(|rest| rest.len() != inner.len()) => invalid_argument!(
            "Inner dimensions of output shape must match inner dimensions of updates shape. \
             Output: {shape} updates: {updates}"
        ),
        _ => invalid_argument!(
            "The inner {} dimensions of output.shape={shape} must match the inner {} dimensions \
             of updates.shape={updates}",
            shape.rank() - depth,
            inner.len()
        ),
    })
}

/// Returns whether indices and updates are both empty or both have something to update.
fn fits_empty(has_output: bool, indices: &Shape, updates: &Shape) -> bool {
    match (indices.num_elements() > 0, updates.num_elements() > 0) {
        (true, true) => has_output,
        (any_indices, any_updates) => any_indices == any_updates,
    }
}

#[cold]
fn unlike_indices(n: usize, indices: &Shape, updates: &Shape) -> Status {
    invalid_argument!(
        "Dimensions [0,{n}) of indices[shape={indices}] must match dimensions [0,{n}) of \
         updates[shape={updates}]"
    )
}

#[cold]
fn unlike_input(depth: usize, from: usize, shape: &Shape, updates: &Shape) -> Status {
    invalid_argument!(
        "Dimensions [{depth},{}) of input[shape={shape}] must match dimensions [{from},{}) of \
         updates[shape={updates}]",
        shape.rank(),
        updates.rank()
    )
}

/// Checks what every scatter checks (TensorFlow: `PrepareAndValidateInputs`). Returns the length
/// of a row of coordinates; indices that are a vector have rows of one.
fn check(indices: &Shape, updates: &Shape, shape: &Shape) -> Result<usize> {
    if shape.rank() == 0 || indices.rank() == 0 {
        return Err(invalid_argument!(
            "Output must be at least 1-D, got shape: {shape}"
        ));
    }
    if !fits_empty(shape.num_elements() > 0, indices, updates) {
        return Err(invalid_argument!(
            "Indices and updates specified for empty output.  indices shape: {indices}"
        ));
    }
    let count = updates.first().copied().unwrap_or(0);
    if count != indices[0] {
        return Err(invalid_argument!(
            "Dimensions [0,1) of indices[shape={indices}] = {} must match dimensions [0,1) of \
             updates[shape={updates}] = {count}",
            indices[0]
        ));
    }
    let (depth, outer) = match indices.rank() {
        1 => (1, &indices[..]),
        n => (indices[n - 1], &indices[..n - 1]),
    };
    let n = outer.len();
    if updates.rank() < n {
        return Err(unlike_indices(n, indices, updates));
    }
    let rest = shape.get(depth..);
    if rest.is_none_or(|rest| rest.len() != updates.rank() - n) {
        return Err(unlike_input(depth, depth, shape, updates));
    }
    if updates[..n] != *outer {
        return Err(unlike_indices(n, indices, updates));
    }
    if rest.is_none_or(|rest| updates[n..] != *rest) {
        return Err(unlike_input(depth, depth, shape, updates));
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
    let mut bad = None;
    for (i, row) in coords.chunks_exact(depth.max(1)).enumerate() {
        let Some(p) = row_position(row, &shape) else {
            bad = Some((i, row));
            continue;
        };
        let from = &from[i * inner..(i + 1) * inner];
        for (to, from) in to[p * inner..(p + 1) * inner].iter_mut().zip(from) {
            combine(to, from);
        }
    }
    match bad {
        // Like TensorFlow, of several the last.
        Some((i, row)) if !ignore => Err(bad_coords(i, row, indices.shape(), &shape)),
        _ => Ok(()),
    }
}

#[cold]
fn bad_coords(i: usize, row: &[i64], indices: &Shape, shape: &Shape) -> Status {
    let at = place(i, &indices[..indices.rank() - 1]);
    let row = indices::coordinates(row.iter().copied());
    invalid_argument!("indices{at} = {row} does not index into shape {shape}")
}

/// A number whose bits are an [`Item`] of a tensor.
trait Stored: Copy + 'static {
    type Item: Item + Copy;
    fn of(item: Self::Item) -> Self;
    fn item(self) -> Self::Item;
}

macro_rules! stored {
    ($($T:ty as $Item:ty: $of:expr, $item:expr;)*) => {$(
        impl Stored for $T {
            type Item = $Item;
            #[inline(always)]
            fn of(item: $Item) -> Self {
                $of(item)
            }
            #[inline(always)]
            fn item(self) -> $Item {
                $item(self)
            }
        }
    )*};
}
stored! {
    f32 as u32: f32::from_bits, f32::to_bits;
    f64 as u64: f64::from_bits, f64::to_bits;
    f16 as u16: f16::from_bits, f16::to_bits;
    bf16 as u16: bf16::from_bits, bf16::to_bits;
    bool as bool: |v| v, |v| v;
    i8 as u8: u8::cast_signed, i8::cast_unsigned;
    u8 as u8: |v| v, |v| v;
    i16 as u16: u16::cast_signed, i16::cast_unsigned;
    u16 as u16: |v| v, |v| v;
    i32 as u32: u32::cast_signed, i32::cast_unsigned;
    u32 as u32: |v| v, |v| v;
    i64 as u64: u64::cast_signed, i64::cast_unsigned;
    u64 as u64: |v| v, |v| v;
    Complex32 as u64:
        |v: u64| Complex32::new(f32::from_bits(v as u32), f32::from_bits((v >> 32) as u32)),
        |v: Complex32| v.re.to_bits() as u64 | (v.im.to_bits() as u64) << 32;
    Complex64 as [u64; 2]:
        |v: [u64; 2]| Complex64::new(f64::from_bits(v[0]), f64::from_bits(v[1])),
        |v: Complex64| [v.re.to_bits(), v.im.to_bits()];
}

/// The scatter of one operation of numbers.
fn number<T: Stored>(ignore: bool, f: impl Fn(T, T) -> T + Send + Sync + 'static) -> ScatterNd {
    Box::new(move |out, indices, updates| {
        scatter::<T::Item>(out, indices, updates, ignore, |to, from| {
            *to = f(T::of(*to), T::of(*from)).item();
        })
    })
}

/// The scatter of numbers without an order.
fn sums<T: Stored>(
    combine: Combine,
    ignore: bool,
    add: impl Fn(T, T) -> T + Send + Sync + 'static,
    sub: impl Fn(T, T) -> T + Send + Sync + 'static,
) -> Option<ScatterNd> {
    match combine {
        Combine::Add => Some(number(ignore, add)),
        Combine::Sub => Some(number(ignore, sub)),
        _ => None,
    }
}

/// The scatter of ordered numbers.
fn ordered<T: Stored + PartialOrd>(
    combine: Combine,
    ignore: bool,
    add: impl Fn(T, T) -> T + Send + Sync + 'static,
    sub: impl Fn(T, T) -> T + Send + Sync + 'static,
) -> Option<ScatterNd> {
    match combine {
        Combine::Max => Some(number(ignore, |a: T, b: T| if a < b { b } else { a })),
        Combine::Min => Some(number(ignore, |a: T, b: T| if b < a { b } else { a })),
        _ => sums(combine, ignore, add, sub),
    }
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
    if dtype == DType::String && combine == Combine::Add {
        return Ok(Box::new(move |out, indices, updates| {
            scatter::<Bytes>(out, indices, updates, ignore, |to, from| {
                *to = [&to[..], &from[..]].concat().into();
            })
        }));
    }
    let integers = || {
        dispatch!(dtype, T in [i8, u8, i16, u16, i32, u32, i64, u64] =>
            ordered(combine, ignore, T::wrapping_add, T::wrapping_sub),
            else None)
    };
    let found = match dtype {
        // Like C++'s sum of bools: nonzero is true.
        DType::Bool => sums::<bool>(combine, ignore, |a, b| a | b, |a, b| a ^ b),
        DType::Complex64 => sums::<Complex32>(combine, ignore, |a, b| a + b, |a, b| a - b),
        DType::Complex128 => sums::<Complex64>(combine, ignore, |a, b| a + b, |a, b| a - b),
        dtype => dispatch!(dtype, T in [f32, f64, f16, bf16] =>
            ordered::<T>(combine, ignore, |a, b| a + b, |a, b| a - b),
            else integers()),
    };
    found.ok_or_else(|| build.unsupported(dtype))
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
    check_form(&indices, &updates, &to, Form::Shape)
}
