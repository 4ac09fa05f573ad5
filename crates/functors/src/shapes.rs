//! Shape functions that several ops share.

use crate::broadcast::broadcast_partial;
use ferroflow_base::Result;
use ferroflow_opdef::ShapeCtx;
use ferroflow_tensor::PartialShape;

/// Every output has the shape of the input in the same position (unary ops, Identity,
/// IdentityN).
pub fn unchanged(ctx: &mut ShapeCtx) -> Result<()> {
    for i in 0..ctx.num_outputs() {
        ctx.set(i, ctx.input(i));
    }
    Ok(())
}

/// Output 0 has the shape that inputs 0 and 1 share.
pub fn merged(ctx: &mut ShapeCtx) -> Result<()> {
    let shape = ctx.merge(&ctx.input(0), &ctx.input(1))?;
    ctx.set(0, shape);
    Ok(())
}

/// Output 0 is a scalar.
pub fn scalar(ctx: &mut ShapeCtx) -> Result<()> {
    ctx.set(0, PartialShape::scalar());
    Ok(())
}

/// Output 0 has the shape of inputs 0 and 1 broadcast together.
pub fn broadcast(ctx: &mut ShapeCtx) -> Result<()> {
    let shape = broadcast_partial(&ctx.input(0), &ctx.input(1))?;
    ctx.set(0, shape);
    Ok(())
}

/// Output 0 has the attr `shape`.
pub fn from_shape_attr(ctx: &mut ShapeCtx) -> Result<()> {
    ctx.set(0, ctx.attrs().shape("shape")?.clone());
    Ok(())
}
