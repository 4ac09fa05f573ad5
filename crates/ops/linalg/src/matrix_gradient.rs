//! Gradients of linear algebra.

use ferroflow_base::Result;
use ferroflow_opdef::{Expr, GradientCtx};

fn product<'g>(a: Expr<'g>, b: Expr<'g>, adj_a: bool, adj_b: bool) -> Expr<'g> {
    let attrs = [("adj_x", adj_a.into()), ("adj_y", adj_b.into())];
    a.op_with("BatchMatMulV2", &[b], &attrs)
}

fn adjoint_inverse(x: Expr) -> Expr {
    x.op_with("MatrixInverse", &[], &[("adjoint", true.into())])
}

/// One number for each matrix, with the dimensions of a matrix.
fn per_matrix(v: Expr) -> Expr {
    v.op("ExpandDims", &[v.int(-1)])
        .op("ExpandDims", &[v.int(-1)])
}

pub(crate) fn determinant(g: &mut GradientCtx) -> Result<()> {
    let dx = per_matrix(g.dy(0) * g.y(0).conj()) * adjoint_inverse(g.x(0));
    g.set(0, dx)
}

/// The sign does not change.
pub(crate) fn log_determinant(g: &mut GradientCtx) -> Result<()> {
    let dx = per_matrix(g.dy(1)) * adjoint_inverse(g.x(0));
    g.set(0, dx)
}

pub(crate) fn inverse(g: &mut GradientCtx) -> Result<()> {
    let (y, d) = (g.y(0), g.dy(0));
    let right = product(d, y, false, !g.attrs().bool("adjoint")?);
    let dx = match g.attrs().bool("adjoint")? {
        false => product(y, right, true, false),
        // The output is the inverse of the adjoint, so the gradient turns round with it.
        true => product(y, product(d, y, true, false), false, false),
    };
    g.set(0, -dx)
}

/// Of `a⁻¹ b`, by the op that solves the adjoint system.
fn solved<'g>(g: &GradientCtx<'g>, op: &str) -> Result<(Expr<'g>, Expr<'g>)> {
    let (a, y, d) = (g.x(0), g.y(0), g.dy(0));
    let adjoint = g.attrs().bool("adjoint")?;
    let mut attrs = vec![("adjoint", (!adjoint).into())];
    if op == "MatrixTriangularSolve" {
        attrs.push(g.attr("lower"));
    }
    let db = a.op_with(op, &[d], &attrs);
    let da = match adjoint {
        true => product(y, db, false, true),
        false => product(db, y, false, true),
    };
    Ok((-da, db))
}

pub(crate) fn solve(g: &mut GradientCtx) -> Result<()> {
    let (da, db) = solved(g, "MatrixSolve")?;
    g.set(0, da)?;
    g.set(1, db)
}

pub(crate) fn triangular_solve(g: &mut GradientCtx) -> Result<()> {
    let (da, db) = solved(g, "MatrixTriangularSolve")?;
    let (below, above) = match g.attrs().bool("lower")? {
        true => (-1, 0),
        false => (0, -1),
    };
    let da = da.op("MatrixBandPart", &[da.int(below), da.int(above)]);
    // Stacks of matrices are broadcast.
    let (da, db) = (da.sum_to(g.x(0)), db.sum_to(g.x(1)));
    g.set(0, da)?;
    g.set(1, db)
}

pub(crate) fn cholesky(g: &mut GradientCtx) -> Result<()> {
    let (l, d) = (g.y(0), g.dy(0));
    let middle = product(l, d, true, false);
    let diagonal = middle.op("MatrixDiagPart", &[]) * 0.5;
    let middle = middle.op("MatrixSetDiag", &[diagonal]);
    let middle = middle.op("MatrixBandPart", &[l.int(-1), l.int(0)]);
    // l⁻ᴴ middle l⁻¹, by two systems.
    let adjoint = [("adjoint", true.into())];
    let left = l.op_with("MatrixTriangularSolve", &[middle], &adjoint);
    let turned = |e: Expr<'_>| {
        let rank = e.op("Rank", &[]);
        let axes = e.int(0).op("Range", &[rank - e.int(2), e.int(1)]);
        let last = (rank - e.int(1)).op("Pack", &[rank - e.int(2)]);
        let order = e.make("ConcatV2", &[axes, last, e.int(0)], &[]);
        e.op("ConjugateTranspose", &[order]).output()
    };
    let both = l.op_with("MatrixTriangularSolve", &[left.at(turned(left))], &adjoint);
    let sum = both + both.at(turned(both));
    g.set(0, sum * 0.5)
}

pub(crate) fn cross(g: &mut GradientCtx) -> Result<()> {
    let (a, b, d) = (g.x(0), g.x(1), g.dy(0));
    g.set(0, b.op("Cross", &[d]))?;
    g.set(1, d.op("Cross", &[a]))
}
