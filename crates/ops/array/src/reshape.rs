//! Reshape (TensorFlow: `core/kernels/reshape_op.cc`).

use crate::shape_ops::{reshape, reshape_gradient};
use ferroflow_base::{Result, Status, invalid_argument};
use ferroflow_functors::indices::{self, constant};
use ferroflow_functors::shapes::reshape_to;
use ferroflow_opdef::{Cost, Op, ShapeCtx};
use ferroflow_tensor::{PartialShape, Shape};

/// The ops of this file.
pub(crate) const OPS: &[Op] = &[Op::new(
    "Reshape",
    "tensor: T, shape: Tshape -> output: T | T: type; Tshape: type {int32,int64} = \
         int32",
)
.shape(reshape_shape)
.cost(Cost::Cheap)
.kernel(reshape)
.gradient(reshape_gradient)];

pub(crate) fn reshape_shape(ctx: &mut ShapeCtx) -> Result<()> {
    let input = ctx.input(0);
    let Some(sizes) = constant(ctx, 1) else {
        let known = ctx
            .shape_value(1)
            .map(|dims| PartialShape::of(dims.iter().copied()));
        ctx.set(
            0,
            known.unwrap_or_else(|| indices::of_vector_length(&ctx.input(1))),
        );
        return Ok(());
    };
    if let Some(full) = input.to_full() {
        let shape = reshape_to(&sizes, &full).map_err(|e| in_graph(e, &sizes, &full))?;
        ctx.set(0, (&shape).into());
        return Ok(());
    }
    let mut dims: Vec<Option<usize>> = sizes.iter().map(|&d| usize::try_from(d).ok()).collect();
    if dims.iter().all(|d| d.is_some()) {
        check_unknown(&input, &Shape::checked(&sizes)?)?;
    } else if sizes.iter().filter(|&&d| d == -1).count() > 1 {
        dims = vec![None; dims.len()];
    }
    ctx.set(0, PartialShape::of(dims));
    Ok(())
}

/// Checks that the one unknown dimension of a shape can be such that it has as many elements as another one.
fn check_unknown(from: &PartialShape, to: &Shape) -> Result<()> {
    let Some(dims) = from
        .dims()
        .filter(|d| d.iter().filter(|d| d.is_none()).count() == 1)
    else {
        return Ok(());
    };
    let known = dims
        .iter()
        .flatten()
        .try_fold(1usize, |n, d| n.checked_mul(*d));
    match known {
        Some(known) if known > 0 && !to.num_elements().is_multiple_of(known) => {
            Err(invalid_argument!(
                "Dimension size must be evenly divisible by {known} but is {}",
                to.num_elements()
            ))
        }
        _ => Ok(()),
    }
}

/// The error of a node that is added to a graph, which differs from the kernel's
/// (`core/framework/common_shape_fns.cc`).
fn in_graph(error: Status, sizes: &[i64], from: &Shape) -> Status {
    let n = from.num_elements();
    let n_unknown = sizes.iter().filter(|d| **d == -1).count();
    let known = sizes.iter().filter(|d| **d >= 0);
    let known = known.fold(1i64, |n, d| n.saturating_mul(*d));
    let dims = sizes.iter().map(|d| usize::try_from(*d).ok());
    match n_unknown {
        0 => invalid_argument!(
            "Cannot reshape a tensor with {n} elements to shape {} ({known} elements)",
            PartialShape::of(dims)
        ),
        1 => invalid_argument!("Dimension size must be evenly divisible by {known} but is {n}"),
        _ => error,
    }
}
