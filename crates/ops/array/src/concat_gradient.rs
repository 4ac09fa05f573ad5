//! Gradients of joining and splitting.

use ferroflow_base::Result;
use ferroflow_opdef::{Expr, GradientCtx};
use ferroflow_tensor::DType;

/// Of Concat, whose axis comes first, and ConcatV2, whose axis comes last.
pub(crate) fn concat(g: &mut GradientCtx) -> Result<()> {
    let mut values = g.xs();
    let first = g.op_name() == "Concat";
    let axis = if first {
        values.remove(0)
    } else {
        g.x(values.len() - 1)
    };
    if !first {
        values.pop();
    }
    let shift = usize::from(first);
    let d = g.dy(0);
    if values.len() == 1 {
        return g.set(shift, d);
    }
    let sizes: Option<Vec<i64>> = axis.constant_ints().and_then(|axis| {
        let size = |v: &Expr| {
            let shape = v.shape();
            let rank = shape.rank()? as i64;
            let axis = axis.first().copied()?;
            let axis = if axis < 0 { axis + rank } else { axis };
            Some(shape.dim(axis as isize)? as i64)
        };
        values.iter().map(size).collect()
    });
    let parts = match sizes {
        Some(sizes) => {
            let n = sizes.len() as i64;
            d.node(
                "SplitV",
                &[d, d.ints(sizes), axis.cast(DType::Int32)],
                &[("num_split", n.into())],
            )
        }
        None => {
            let shapes = d.node("ShapeN", &values, &[]);
            let mut inputs = vec![axis.cast(DType::Int32)];
            inputs.extend_from_slice(&shapes);
            let offsets = d.node("ConcatOffset", &inputs, &[]);
            let both = offsets.into_iter().zip(shapes);
            both.map(|(offset, shape)| d.op("Slice", &[offset, shape]))
                .collect()
        }
    };
    for (i, part) in parts.into_iter().enumerate() {
        g.set(i + shift, part)?;
    }
    Ok(())
}

fn joined<'g>(g: &GradientCtx<'g>, axis: Expr<'g>) -> Expr<'g> {
    let mut parts: Vec<Expr> = (0..g.num_outputs()).map(|i| g.dy(i)).collect();
    parts.push(axis);
    axis.make("ConcatV2", &parts, &[])
}

/// Of Split.
pub(crate) fn split(g: &mut GradientCtx) -> Result<()> {
    let dx = joined(g, g.x(0));
    g.set(1, dx)
}

/// Of SplitV.
pub(crate) fn split_v(g: &mut GradientCtx) -> Result<()> {
    let dx = joined(g, g.x(2));
    g.set(0, dx)
}
