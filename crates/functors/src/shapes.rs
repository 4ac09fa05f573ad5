//! Shape functions that several ops share.

use crate::broadcast::broadcast_partial;
use ferroflow_base::{Result, invalid_argument};
use ferroflow_opdef::ShapeCtx;
use ferroflow_tensor::PartialShape;
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
