//! Gradients of matrix products.

use ferroflow_base::Result;
use ferroflow_opdef::{Expr, GradientCtx};

/// Of MatMul.
pub(crate) fn mat_mul(g: &mut GradientCtx) -> Result<()> {
    let (a, b, d) = (g.x(0).conj(), g.x(1).conj(), g.dy(0));
    let turned = [
        g.attrs().bool("transpose_a")?,
        g.attrs().bool("transpose_b")?,
    ];
    let product = |x: Expr, y: Expr, turn_x: bool, turn_y: bool| {
        let attrs = [
            ("transpose_a", turn_x.into()),
            ("transpose_b", turn_y.into()),
        ];
        x.op_with("MatMul", &[y], &attrs).output()
    };
    let [da, db] = products(g, a, b, d, turned, &product);
    if let Some(da) = da {
        g.set(0, da)?;
    }
    db.map_or(Ok(()), |db| g.set(1, db))
}

/// Of the BatchMatMul family.
pub(crate) fn batch_mat_mul(g: &mut GradientCtx) -> Result<()> {
    let (x, y, d) = (g.x(0), g.x(1), g.dy(0));
    let turned = [g.attrs().bool("adj_x")?, g.attrs().bool("adj_y")?];
    let product = |a: Expr, b: Expr, adj_a: bool, adj_b: bool| {
        let attrs = [("adj_x", adj_a.into()), ("adj_y", adj_b.into())];
        a.op_with("BatchMatMulV2", &[b], &attrs).output()
    };
    let gradients = products(g, x, y, d, turned, &product);
    // The dimensions before the last two were broadcast.
    let batch = |e: Expr| {
        let shape = e.shape();
        let dims = shape.dims()?;
        Some(dims[..dims.len().checked_sub(2)?].to_vec())
    };
    if let (Some(a), Some(b)) = (batch(x), batch(y))
        && a == b
        && a.iter().all(Option::is_some)
    {
        for (i, gradient) in gradients.into_iter().enumerate() {
            gradient.map_or(Ok(()), |d| g.set(i, d))?;
        }
        return Ok(());
    }
    let shapes = [x.shape_of(), y.shape_of()];
    let leading = shapes.map(|s| {
        let attrs = [("begin_mask", 1i64.into())];
        let slice = [s, s.ints([0]), s.ints([-2]), s.ints([1])];
        s.make("StridedSlice", &slice, &attrs)
    });
    let axes = x.node("BroadcastGradientArgs", &leading, &[]);
    for (i, gradient) in gradients.into_iter().enumerate() {
        if let (Some(d), Some(axes)) = (gradient, axes.get(i)) {
            g.set(i, d.sum(*axes, false).reshape(shapes[i]))?;
        }
    }
    Ok(())
}

/// The two products that the gradient of one is made of.
fn products<'g>(
    g: &GradientCtx<'g>,
    x: Expr<'g>,
    y: Expr<'g>,
    d: Expr<'g>,
    turned: [bool; 2],
    product: &dyn Fn(Expr<'g>, Expr<'g>, bool, bool) -> ferroflow_opdef::Output,
) -> [Option<Expr<'g>>; 2] {
    let of = |a, b, turn_a, turn_b| d.at(product(a, b, turn_a, turn_b));
    let [turned_x, turned_y] = turned;
    let dx = || match turned_x {
        false => of(d, y, false, !turned_y),
        true => of(y, d, turned_y, true),
    };
    let dy = || match turned_y {
        false => of(x, d, !turned_x, false),
        true => of(d, x, true, turned_x),
    };
    [g.needs(0).then(dx), g.needs(1).then(dy)]
}
