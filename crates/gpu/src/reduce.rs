//! Reductions over some dimensions.

use crate::elementwise::grid;
use crate::kernel::{GpuCtx, GpuKernel, Row, int, suffix};
use crate::rows::{SHORT, warps};
use ferroflow_base::Result;
use ferroflow_device::{Grid, TensorArg};
use ferroflow_functors::reduce::layout;
use ferroflow_functors::shapes::marked;
use ferroflow_opdef::KernelBuild;
use ferroflow_tensor::{DType, Shape, Tensor};

const AXES: &[&str] = &["reduction_indices"];

pub(crate) const ROWS: &[Row] = &[
    Row::new("Sum", reduce).host(AXES),
    Row::new("Mean", reduce).host(AXES),
    Row::new("Max", reduce).host(AXES),
    Row::new("Min", reduce).host(AXES),
    Row::new("Prod", reduce).host(AXES),
    Row::new("All", reduce).types(&[]).host(AXES),
    Row::new("Any", reduce).types(&[]).host(AXES),
];

fn reduce(build: &KernelBuild) -> Result<Box<dyn GpuKernel>> {
    let keep_dims = build.attrs.bool("keep_dims")?;
    let is_mean = build.def.name == "Mean";
    let kind = match &*build.def.name {
        "Max" | "Any" => "max",
        "Min" | "All" => "min",
        "Prod" => "prod",
        _ => "sum",
    };
    Ok(Box::new(move |ctx: &mut GpuCtx| {
        let (x, axes) = (ctx.input(0)?, ctx.ints(1)?);
        let rank = x.shape().rank();
        let reduced = marked(&axes, rank)?;
        let kept = (0..rank).filter(|d| keep_dims || !reduced[*d]);
        let shape = kept
            .map(|d| if reduced[d] { 1 } else { x.shape()[d] })
            .collect();
        let y = along(ctx, &x, &reduced, kind, is_mean)?.with_shape(shape)?;
        ctx.set_output(0, y)
    }))
}

/// Reduces one group of neighboring dimensions after the other, the last one first.
fn along(ctx: &GpuCtx, x: &Tensor, reduced: &[bool], kind: &str, is_mean: bool) -> Result<Tensor> {
    let mut dims = layout(x.shape().dims(), reduced);
    let mut value = x.clone();
    while let Some(at) = dims.iter().rposition(|(_, reduced)| *reduced) {
        let size = |part: &[(usize, bool)]| part.iter().map(|(n, _)| n).product::<usize>();
        let (outer, n, inner) = (size(&dims[..at]), dims[at].0, size(&dims[at + 1..]));
        let y = ctx.alloc(x.dtype(), Shape::from([outer * inner]))?;
        let factor = if is_mean { 1.0 / n as f32 } else { 1.0 };
        if kind == "sum" && is_long([outer, n, inner]) {
            in_parts(ctx, &value, [outer, n, inner], Sums::Plain, factor, &y)?;
        } else if inner == 1 && outer > 0 && n <= SHORT {
            let args = [
                TensorArg::Tensor(&value),
                TensorArg::Tensor(&y),
                TensorArg::I32(int(outer)?),
                TensorArg::I32(int(n)?),
                TensorArg::F32(factor),
            ];
            let name = format!("reduce_short_{kind}_{}", suffix(x.dtype())?);
            ctx.run(&name, &warps(outer), &args)?;
        } else if outer * inner > 0 {
            let grid = match inner {
                1 => Grid {
                    blocks: [outer as u32, 1, 1],
                    threads: [n.next_multiple_of(32).clamp(32, 512) as u32, 1, 1],
                    shared_bytes: 0,
                },
                _ => grid(outer * inner),
            };
            let args = [
                TensorArg::Tensor(&value),
                TensorArg::Tensor(&y),
                TensorArg::I32(int(outer)?),
                TensorArg::I32(int(n)?),
                TensorArg::I32(int(inner)?),
                TensorArg::F32(factor),
            ];
            let name = format!("reduce_{kind}_{}", suffix(x.dtype())?);
            ctx.run(&name, &grid, &args)?;
        }
        dims.remove(at);
        value = y;
    }
    Ok(value)
}

/// What is added up.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Sums {
    Plain,
    Squares,
}

/// Blocks that keep a device busy.
const BLOCKS: usize = 1024;
/// Rows that a block of columns adds up at least, and elements of a row.
const ROWS_OF_PART: usize = 32;
const ELEMENTS_OF_PART: usize = 4096;

/// In how many parts `n` rows are added up, with `columns` blocks of columns.
pub(crate) fn parts(n: usize, columns: usize) -> usize {
    let most = (BLOCKS / columns.max(1)).max(1);
    (n / ROWS_OF_PART).clamp(1, most)
}

/// Whether few threads would make long sums, if each made one.
fn is_long([outer, n, inner]: [usize; 3]) -> bool {
    let results = outer * inner;
    let fits = results > 0 && outer <= 65_535;
    fits && match inner {
        1 => n >= 2 * ELEMENTS_OF_PART && outer < BLOCKS,
        _ => n >= 2 * ROWS_OF_PART && results < 64 * BLOCKS,
    }
}

/// Adds up the middle of [outer, n, inner] to `y` in parts, then the parts, times `factor`. Squares are those of rows.
///
/// # Errors
/// RESOURCE_EXHAUSTED if the sizes are too large; those of the device.
pub(crate) fn in_parts(
    ctx: &GpuCtx,
    x: &Tensor,
    [outer, n, inner]: [usize; 3],
    what: Sums,
    factor: f32,
    y: &Tensor,
) -> Result<()> {
    let count = outer * inner;
    if count == 0 {
        return Ok(());
    }
    if n == 0 {
        return ctx.memory.fill(y, &[0]);
    }
    int(x.num_elements())?;
    let of = suffix(x.dtype())?;
    let (n_parts, blocks, threads) = match inner {
        1 => {
            let n_parts = (n / ELEMENTS_OF_PART).clamp(1, BLOCKS);
            (n_parts, [n_parts, outer, 1], [256, 1, 1])
        }
        _ => {
            let columns = inner.div_ceil(32);
            let n_parts = parts(n, columns * outer);
            (n_parts, [columns, n_parts, outer], [32, 8, 1])
        }
    };
    let sums = ctx.alloc(DType::Float, [outer * n_parts * inner])?;
    let blocks = Grid {
        blocks: blocks.map(|b| b as u32),
        threads,
        shared_bytes: 0,
    };
    let mut args = vec![
        TensorArg::Tensor(x),
        TensorArg::Tensor(&sums),
        TensorArg::I32(int(n)?),
    ];
    let name = match (inner, what) {
        (1, Sums::Plain) => format!("row_parts_sum_{of}"),
        (1, Sums::Squares) => format!("row_parts_squares_{of}"),
        _ => {
            args.push(TensorArg::I32(int(inner)?));
            format!("column_parts_sum_{of}")
        }
    };
    ctx.run(&name, &blocks, &args)?;
    let args = [
        TensorArg::Tensor(&sums),
        TensorArg::Tensor(y),
        TensorArg::I32(int(count)?),
        TensorArg::I32(int(n_parts)?),
        TensorArg::I32(int(inner)?),
        TensorArg::F32(factor),
    ];
    ctx.run(&format!("reduce_finish_{of}"), &grid(count), &args)
}
