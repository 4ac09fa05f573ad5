//! Shape functions, and checks of arguments that are shapes and axes, that several ops share.

use crate::broadcast::broadcast_partial;
use crate::indices::Ints;
use ferroflow_base::{Result, invalid_argument};
use ferroflow_opdef::ShapeCtx;
use ferroflow_tensor::{PartialShape, Shape};
use smallvec::SmallVec;

/// Sets every output to the shape of the input at the same position (unary ops, Identity,
/// IdentityN).
///
/// # Errors
/// None; the type is that of shape functions.
pub fn unchanged(ctx: &mut ShapeCtx) -> Result<()> {
    for i in 0..ctx.num_outputs() {
        ctx.set(i, ctx.input(i));
    }
    Ok(())
}

/// Sets the shape of each output to that of the input of its number.
///
/// # Errors
/// None; the type is that of shape functions.
pub fn each_unchanged(ctx: &mut ShapeCtx) -> Result<()> {
    for i in 0..ctx.num_outputs() {
        ctx.set(i, ctx.input(i));
    }
    Ok(())
}

/// Sets output 0 to the common shape of inputs 0 and 1.
///
/// # Errors
/// INVALID_ARGUMENT if the shapes are not compatible.
pub fn merged(ctx: &mut ShapeCtx) -> Result<()> {
    let shape = ctx.merge(&ctx.input(0), &ctx.input(1))?;
    ctx.set(0, shape);
    Ok(())
}

/// Sets output 0 to a scalar.
///
/// # Errors
/// None; the type is that of shape functions.
pub fn scalar(ctx: &mut ShapeCtx) -> Result<()> {
    ctx.set(0, PartialShape::scalar());
    Ok(())
}

/// Sets output 0 to the shape of inputs 0 and 1 broadcast together.
///
/// # Errors
/// INVALID_ARGUMENT if the shapes are not compatible.
pub fn broadcast(ctx: &mut ShapeCtx) -> Result<()> {
    let shape = broadcast_partial(&ctx.input(0), &ctx.input(1))?;
    ctx.set(0, shape);
    Ok(())
}

/// Sets output 0 to the attr `shape`.
///
/// # Errors
/// INVALID_ARGUMENT if the attr is missing.
pub fn from_shape_attr(ctx: &mut ShapeCtx) -> Result<()> {
    ctx.set(0, ctx.attrs().shape("shape")?.clone());
    Ok(())
}

/// Output 0 has the shape of input 0 reduced over the axes in input 1 (attr `keep_dims`).
///
/// # Errors
/// INVALID_ARGUMENT if an axis is out of range or named twice.
pub fn reduced(ctx: &mut ShapeCtx) -> Result<()> {
    let input = ctx.input(0);
    let keep_dims = ctx.attrs().bool("keep_dims")?;
    let shape = match (input.dims(), ctx.constant_ints(1)) {
        (Some(dims), Some(axes)) => {
            let reduced = marked(&axes, dims.len())?;
            let dims = dims.iter().zip(&reduced);
            PartialShape::of(
                dims.filter_map(|(&d, &reduced)| match (reduced, keep_dims) {
                    (false, _) => Some(d),
                    (true, true) => Some(Some(1)),
                    (true, false) => None,
                }),
            )
        }
        (Some(dims), None) if keep_dims => PartialShape::of_rank(dims.len()),
        _ => PartialShape::unknown(),
    };
    ctx.set(0, shape);
    Ok(())
}

/// Returns which of `rank` dimensions the axes name.
///
/// # Errors
/// INVALID_ARGUMENT if an axis is out of range or named twice.
pub fn marked(axes: &[i64], rank: usize) -> Result<SmallVec<[bool; 8]>> {
    let mut reduced = SmallVec::from_elem(false, rank);
    for &axis in axes {
        let at = if axis < 0 {
            axis.saturating_add(rank as i64)
        } else {
            axis
        };
        let slot = usize::try_from(at).ok().and_then(|i| reduced.get_mut(i));
        match slot {
            None => {
                return Err(invalid_argument!(
                    "Invalid reduction dimension ({axis} for input with {rank} dimension(s)"
                ));
            }
            Some(true) => {
                return Err(invalid_argument!(
                    "Invalid reduction arguments: Axes contains duplicate dimension: {at}"
                ));
            }
            Some(slot) => *slot = true,
        }
    }
    Ok(reduced)
}

/// Returns the shape `sizes`, with at most one −1, for a tensor of shape `from`.
///
/// # Errors
/// INVALID_ARGUMENT if a size is not valid, or the numbers of elements differ.
pub fn reshape_to(sizes: &[i64], from: &Shape) -> Result<Shape> {
    let n = from.num_elements();
    let mut unknown = None;
    let mut dims = Ints::from_slice(sizes);
    for (i, d) in dims.iter_mut().enumerate() {
        if *d == -1 {
            if let Some(first) = unknown.replace(i) {
                return Err(invalid_argument!(
                    "Only one input size may be -1, not both {first} and {i}"
                ));
            }
            *d = 1;
        } else if *d < 0 {
            return Err(invalid_argument!("Size {i} must be non-negative, not {d}"));
        }
    }
    let mut shape = Shape::checked(&dims)?;
    if let Some(i) = unknown {
        // With a zero size, zeros are ignored on both sides, so that the −1 follows from the other
        // dimensions.
        let left_out = usize::from(shape.contains(&0));
        let known: usize = shape.iter().filter(|&&d| d != 0).product();
        let given: usize = from
            .iter()
            .map(|&d| if d == 0 { left_out } else { d })
            .product();
        if n != 0 && !given.is_multiple_of(known) {
            return Err(invalid_argument!(
                "Input to reshape is a tensor with {n} values, but the requested shape requires a \
                 multiple of {known}"
            ));
        }
        dims[i] = (given / known) as i64;
        shape = Shape::checked(&dims)?;
    }
    if shape.num_elements() != n {
        return Err(invalid_argument!(
            "Input to reshape is a tensor with {n} values, but the requested shape has {}",
            shape.num_elements()
        ));
    }
    Ok(shape)
}

/// Checks a permutation of `rank` dimensions.
///
/// # Errors
/// INVALID_ARGUMENT if it is none.
pub fn permutation(perm: &[i64], rank: usize) -> Result<SmallVec<[usize; 8]>> {
    if perm.len() != rank {
        return Err(invalid_argument!(
            "transpose expects a vector of size {rank}. But input(1) is a vector of size {}",
            perm.len()
        ));
    }
    let mut seen = SmallVec::<[bool; 8]>::from_elem(false, rank);
    let mut out = SmallVec::<[usize; 8]>::new();
    for &p in perm {
        let p = if p < 0 { p + rank as i64 } else { p };
        let Some(at) = usize::try_from(p).ok().filter(|&p| p < rank) else {
            return Err(invalid_argument!("{p} is out of range [0 .. {rank})"));
        };
        seen[at] = true;
        out.push(at);
    }
    if let Some(missing) = seen.iter().position(|s| !s) {
        return Err(invalid_argument!(
            "{missing} is missing from {{{}}}.",
            out.iter()
                .map(usize::to_string)
                .collect::<Vec<_>>()
                .join(",")
        ));
    }
    Ok(out)
}
