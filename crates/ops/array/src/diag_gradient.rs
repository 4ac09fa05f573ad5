//! Gradients of diagonals.

use ferroflow_base::Result;
use ferroflow_opdef::GradientCtx;

pub(crate) fn diag(g: &mut GradientCtx) -> Result<()> {
    let dx = g.dy(0).op("DiagPart", &[]);
    g.set(0, dx)
}

pub(crate) fn diag_part(g: &mut GradientCtx) -> Result<()> {
    let dx = g.dy(0).op("Diag", &[]);
    g.set(0, dx)
}

pub(crate) fn matrix_diag(g: &mut GradientCtx) -> Result<()> {
    let dx = g.dy(0).op("MatrixDiagPart", &[]);
    g.set(0, dx)
}

pub(crate) fn matrix_diag_v2(g: &mut GradientCtx) -> Result<()> {
    let (d, k) = (g.dy(0), g.x(1));
    g.set(0, d.op("MatrixDiagPartV2", &[k, d.number(0.0)]))
}

pub(crate) fn matrix_diag_v3(g: &mut GradientCtx) -> Result<()> {
    let (d, k) = (g.dy(0), g.x(1));
    let zero = d.number(0.0);
    g.set(
        0,
        d.op_with("MatrixDiagPartV3", &[k, zero], &[g.attr("align")]),
    )
}

pub(crate) fn matrix_diag_part(g: &mut GradientCtx) -> Result<()> {
    let dx = g.x(0).zeros_like().op("MatrixSetDiag", &[g.dy(0)]);
    g.set(0, dx)
}

pub(crate) fn matrix_diag_part_v2(g: &mut GradientCtx) -> Result<()> {
    let dx = g
        .x(0)
        .zeros_like()
        .op("MatrixSetDiagV2", &[g.dy(0), g.x(1)]);
    g.set(0, dx)
}

pub(crate) fn matrix_diag_part_v3(g: &mut GradientCtx) -> Result<()> {
    let zeros = g.x(0).zeros_like();
    let dx = zeros.op_with("MatrixSetDiagV3", &[g.dy(0), g.x(1)], &[g.attr("align")]);
    g.set(0, dx)
}

pub(crate) fn set_diag(g: &mut GradientCtx) -> Result<()> {
    let d = g.dy(0);
    g.set(0, d.op("MatrixSetDiag", &[g.x(1).zeros_like()]))?;
    g.set(1, d.op("MatrixDiagPart", &[]))
}

pub(crate) fn set_diag_v2(g: &mut GradientCtx) -> Result<()> {
    let (d, k) = (g.dy(0), g.x(2));
    g.set(0, d.op("MatrixSetDiagV2", &[g.x(1).zeros_like(), k]))?;
    g.set(1, d.op("MatrixDiagPartV2", &[k, d.number(0.0)]))
}

pub(crate) fn set_diag_v3(g: &mut GradientCtx) -> Result<()> {
    let (d, k, align) = (g.dy(0), g.x(2), [g.attr("align")]);
    g.set(
        0,
        d.op_with("MatrixSetDiagV3", &[g.x(1).zeros_like(), k], &align),
    )?;
    g.set(
        1,
        d.op_with("MatrixDiagPartV3", &[k, d.number(0.0)], &align),
    )
}

pub(crate) fn band_part(g: &mut GradientCtx) -> Result<()> {
    let dx = g.dy(0).op("MatrixBandPart", &[g.x(1), g.x(2)]);
    g.set(0, dx)
}
