//! Shape functions that several ops share.

use crate::broadcast::broadcast_partial;
use ferroflow_base::Result;
use ferroflow_opdef::ShapeCtx;
use ferroflow_tensor::PartialShape;

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
