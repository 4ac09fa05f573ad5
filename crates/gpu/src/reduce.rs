//! Reductions over some dimensions.

use crate::elementwise::grid;
use crate::kernel::{GpuCtx, GpuKernel, Row, int, suffix};
use ferroflow_base::Result;
use ferroflow_device::{Grid, TensorArg};
use ferroflow_functors::reduce::layout;
use ferroflow_functors::shapes::marked;
use ferroflow_opdef::KernelBuild;
use ferroflow_tensor::{Shape, Tensor};

const AXES: &[&str] = &["reduction_indices"];

pub(crate) const ROWS: &[Row] = &[
    Row::new("Sum", reduce).host(AXES),
    Row::new("Mean", reduce).host(AXES),
    Row::new("Max", reduce).host(AXES),
    Row::new("Min", reduce).host(AXES),
    Row::new("Prod", reduce).host(AXES),
];

fn reduce(build: &KernelBuild) -> Result<Box<dyn GpuKernel>> {
    let keep_dims = build.attrs.bool("keep_dims")?;
    let is_mean = build.def.name == "Mean";
    let kind = match &*build.def.name {
        "Max" => "max",
        "Min" => "min",
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
        if outer * inner > 0 {
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
