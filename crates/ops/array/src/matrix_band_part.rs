//! MatrixBandPart (TensorFlow: `core/kernels/linalg/matrix_band_part_op.cc`).

use crate::matrix_diag::matrices;
use ferroflow_base::{Result, invalid_argument};
use ferroflow_functors::indices::{self};
use ferroflow_functors::shapes;
use ferroflow_functors::strided::par_rows;
use ferroflow_opdef::{GradientCtx, KernelBuild, KernelCtx, Op, OpKernel};
use ferroflow_sync::Parallelism;
use ferroflow_tensor::{Item, Tensor, dispatch_items};

/// The ops of this file.
pub(crate) const OPS: &[Op] = &[Op::new(
    "MatrixBandPart",
    "input: T, num_lower: Tindex, num_upper: Tindex -> band: T | T: type; \
         Tindex: type {int32,int64} = int64",
)
.shape(shapes::unchanged)
.kernel(band_part)
.gradient(band_part_gradient)];

fn band_part(_: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    Ok(Box::new(|ctx: &mut KernelCtx| {
        let limits = limits(ctx)?;
        let mut out = ctx.take_input(0)?;
        dispatch_items!(out.dtype(), T => clear_outside::<T>(ctx.par(), limits, &mut out))?;
        ctx.set_output(0, out)
    }))
}

/// Returns the numbers of diagonals to keep below and above the main one; all if negative.
fn limits(ctx: &KernelCtx) -> Result<[i64; 2]> {
    let limit = |i: usize, name: &str| {
        let t = ctx.input(i)?;
        indices::int(t)
            .filter(|_| t.shape().is_scalar())
            .ok_or_else(|| invalid_argument!("{name} must be scalar, got shape {}", t.shape()))
    };
    let (_, rows, cols) = matrices(ctx.shape(0)?)?;
    let mut limits = [0; 2];
    for (i, (name, of, size)) in [("num_lower", "rows", rows), ("num_upper", "columns", cols)]
        .into_iter()
        .enumerate()
    {
        let n = limit(i + 1, name)?;
        if n > size as i64 {
            return Err(invalid_argument!(
                "{name} must be negative or less or equal to number of {of} ({size}) got: {n}"
            ));
        }
        limits[i] = n;
    }
    Ok(limits)
}

fn clear_outside<T: Item>(
    par: &dyn Parallelism,
    [lower, upper]: [i64; 2],
    out: &mut Tensor,
) -> Result<()> {
    let (rows, cols) = match out.shape().dims() {
        [.., rows, cols] => (*rows, *cols),
        _ => return Ok(()),
    };
    par_rows(par, out.items_mut::<T>()?, cols, &|i, row| {
        let r = i % rows;
        let from = if lower < 0 {
            0
        } else {
            r.saturating_sub(lower as usize).min(cols)
        };
        let to = if upper < 0 {
            cols
        } else {
            r.saturating_add(upper as usize + 1).min(cols)
        };
        row[..from].fill(T::default());
        row[to..].fill(T::default());
    });
    Ok(())
}

fn band_part_gradient(g: &mut GradientCtx) -> Result<()> {
    let dx = g.dy(0).op("MatrixBandPart", &[g.x(1), g.x(2)]);
    g.set(0, dx)
}
