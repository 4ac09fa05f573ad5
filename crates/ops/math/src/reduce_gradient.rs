//! Gradients of reductions.

use ferroflow_base::Result;
use ferroflow_opdef::{Expr, GradientCtx};
use ferroflow_tensor::DType;

/// `y`, an output of the node or its gradient, with the axes that were reduced as 1.
fn kept<'g>(g: &GradientCtx<'g>, y: Expr<'g>) -> Result<Expr<'g>> {
    if g.attrs().bool("keep_dims")? {
        return Ok(y);
    }
    let (x, axes) = (g.x(0), g.x(1));
    if let (Some(rank), Some(axes)) = (x.rank(), axes.constant_ints()) {
        let mut is_reduced = vec![false; rank];
        for axis in axes {
            let axis = if axis < 0 { axis + rank as i64 } else { axis };
            if let Some(reduced) = usize::try_from(axis)
                .ok()
                .and_then(|a| is_reduced.get_mut(a))
            {
                *reduced = true;
            }
        }
        let dims = x.shape();
        let dims: Option<Vec<i64>> = dims.dims().and_then(|dims| {
            let both = dims.iter().zip(&is_reduced);
            both.map(|(d, reduced)| {
                if *reduced {
                    Some(1)
                } else {
                    d.map(|d| d as i64)
                }
            })
            .collect()
        });
        return Ok(match dims {
            Some(dims) => y.reshape(y.ints(dims)),
            None => (0..rank)
                .filter(|&a| is_reduced[a])
                .fold(y, |y, a| y.op("ExpandDims", &[y.int(a as i32)])),
        });
    }
    let shape = x.op("Shape", &[]);
    let axes = positions(x, axes);
    let index = axes.op("ExpandDims", &[x.int(1)]);
    let ones = axes.op("OnesLike", &[]);
    Ok(y.reshape(shape.op("TensorScatterUpdate", &[index, ones])))
}

/// The axes as a vector of non-negative int32.
fn positions<'g>(x: Expr<'g>, axes: Expr<'g>) -> Expr<'g> {
    let axes = axes.cast(DType::Int32).reshape(axes.ints([-1]));
    let rank = x.op("Rank", &[]);
    (axes + rank).op("FloorMod", &[rank])
}

/// `value` repeated to the shape of the input.
fn spread<'g>(g: &GradientCtx<'g>, value: Expr<'g>) -> Expr<'g> {
    value.op("BroadcastTo", &[g.x(0).shape_of()])
}

/// Of Sum.
pub(crate) fn sum(g: &mut GradientCtx) -> Result<()> {
    let dx = spread(g, kept(g, g.dy(0))?);
    g.set(0, dx)
}

/// Of Mean.
pub(crate) fn mean(g: &mut GradientCtx) -> Result<()> {
    let (x, y, d) = (g.x(0), g.y(0), kept(g, g.dy(0))?);
    let n = match (x.shape().num_elements(), y.shape().num_elements()) {
        (Some(all), Some(left)) => d.number(all as f64 / left.max(1) as f64),
        _ => {
            let (all, left) = (x.op("Size", &[]), y.op("Size", &[]));
            all.op("FloorDiv", &[left.op("Maximum", &[left.int(1)])])
                .cast(d.dtype())
        }
    };
    let dx = spread(g, d / n);
    g.set(0, dx)
}

/// Of Max and Min: elements that are as large as the result share the gradient.
pub(crate) fn extreme(g: &mut GradientCtx) -> Result<()> {
    let (x, y, d) = (g.x(0), kept(g, g.y(0))?, kept(g, g.dy(0))?);
    let is_it = x.op("Equal", &[y]).cast(d.dtype());
    let axes = positions(x, g.x(1));
    let n = is_it.sum(axes, true);
    g.set(0, is_it / n * d)
}

/// Of Prod: each element gets the product of all others, which must not be found by division.
pub(crate) fn prod(g: &mut GradientCtx) -> Result<()> {
    let (x, axes) = (g.x(0), positions(g.x(0), g.x(1)));
    let shape = x.op("Shape", &[]);
    let all = x.int(0).op("Range", &[x.op("Rank", &[]), x.int(1)]);
    let others = all.op("ListDiff", &[axes]);
    let order = x.make("ConcatV2", &[axes, others, x.int(0)], &[]);
    let product = |axes: Expr<'_>| {
        let sizes = shape.op("GatherV2", &[shape.at(axes.output()), shape.int(0)]);
        sizes.op("Prod", &[sizes.int(0)]).output()
    };
    let sizes = [axes, others].map(|a| shape.at(product(a)));
    let turned = x.op("Transpose", &[order]);
    let turned_shape = turned.op("Shape", &[]);
    let columns = turned.reshape(x.make("Pack", &sizes, &[]));
    let scan = |reverse: bool| {
        let attrs = [("exclusive", true.into()), ("reverse", reverse.into())];
        columns.op_with("Cumprod", &[x.int(0)], &attrs)
    };
    let rest = (scan(false) * scan(true)).conj().reshape(turned_shape);
    let rest = rest.op("Transpose", &[order.op("InvertPermutation", &[])]);
    let dx = rest * kept(g, g.dy(0))?;
    g.set(0, dx.reshape(shape))
}

/// Of EuclideanNorm.
pub(crate) fn norm(g: &mut GradientCtx) -> Result<()> {
    let (x, y, d) = (g.x(0), kept(g, g.y(0))?, kept(g, g.dy(0))?);
    g.set(0, x / (y / d))
}

/// Of L2Loss.
pub(crate) fn l2_loss(g: &mut GradientCtx) -> Result<()> {
    let dx = g.x(0) * g.dy(0);
    g.set(0, dx)
}
