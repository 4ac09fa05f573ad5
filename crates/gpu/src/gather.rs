//! Rows by number.

use crate::data::MOVED;
use crate::elementwise::grid;
use crate::kernel::{GpuCtx, GpuKernel, Row, axis, int};
use ferroflow_base::{Result, invalid_argument};
use ferroflow_device::TensorArg;
use ferroflow_functors::indices;
use ferroflow_opdef::KernelBuild;
use ferroflow_tensor::{DType, Shape, Tensor};

pub(crate) const ROWS: &[Row] = &[Row::new("GatherV2", gather)
    .types(&[
        ("Tparams", MOVED),
        ("Tindices", &[DType::Int32, DType::Int64]),
    ])
    .host(&["axis"])
    .only_if(|attrs| attrs.int("batch_dims").is_ok_and(|n| n == 0))];

fn gather(_: &KernelBuild) -> Result<Box<dyn GpuKernel>> {
    Ok(Box::new(|ctx: &mut GpuCtx| {
        let (x, along) = (ctx.input(0)?, ctx.ints(2)?);
        let [along] = along[..] else {
            return Err(invalid_argument!("axis must be scalar"));
        };
        let along = axis(along, x.shape().rank())?;
        let y = gather_rows(ctx, &x, 1, along)?;
        ctx.set_output(0, y)
    }))
}

/// Returns the parts of `x` along a dimension that input `i` numbers.
///
/// # Errors
/// INVALID_ARGUMENT if a number that is with the host is outside; those of the device.
pub(crate) fn gather_rows(ctx: &GpuCtx, x: &Tensor, i: usize, along: usize) -> Result<Tensor> {
    if x.shape().rank() == 0 {
        return Err(invalid_argument!("params must be at least 1 dimensional"));
    }
    let rows = x.shape()[along];
    ctx.check(i, Box::new(move |at| check_indices(at, rows)))?;
    gather_at(ctx, x, &ctx.input(i)?, along)
}

/// As [`gather_rows`], of the numbers in `at`, which are on the device.
pub(crate) fn gather_at(ctx: &GpuCtx, x: &Tensor, at: &Tensor, along: usize) -> Result<Tensor> {
    let rows = x.shape()[along];
    let outer: usize = x.shape()[..along].iter().product();
    let inner: usize = x.shape()[along + 1..].iter().product();
    let (left, right) = (&x.shape()[..along], &x.shape()[along + 1..]);
    let shape: Shape = left
        .iter()
        .chain(at.shape().iter())
        .chain(right)
        .copied()
        .collect();
    let y = ctx.alloc(x.dtype(), shape)?;
    if y.num_elements() == 0 {
        return Ok(y);
    }
    let mut bytes = x.dtype().size();
    let mut unit = 1;
    while bytes < 16 && (inner * x.dtype().size()).is_multiple_of(bytes * 2) {
        (bytes, unit) = (bytes * 2, unit * 2);
    }
    let is_aligned = ctx.memory.span(x)?.address.0.is_multiple_of(bytes as u64);
    if !is_aligned {
        (bytes, unit) = (x.dtype().size(), 1);
    }
    let count = outer * at.num_elements() * inner / unit;
    let args = [
        TensorArg::Tensor(x),
        TensorArg::Tensor(at),
        TensorArg::Tensor(&y),
        TensorArg::I32(int(count)?),
        TensorArg::I32(int(rows)?),
        TensorArg::I32(int(at.num_elements())?),
        TensorArg::I32(int(inner / unit)?),
    ];
    let name = format!("gather_{bytes}_{}", index_suffix(at.dtype()));
    ctx.run(&name, &grid(count), &args)?;
    Ok(y)
}

/// What the names of compiled kernels call a dtype of indices.
pub(crate) fn index_suffix(dtype: DType) -> &'static str {
    match dtype {
        DType::Int64 => "i64",
        _ => "i32",
    }
}

/// # Errors
/// INVALID_ARGUMENT if an index is outside, as on CPUs.
pub(crate) fn check_indices(tensor: &Tensor, rows: usize) -> Result<()> {
    let indices = indices::ints(tensor)?;
    let is_outside = |i: &i64| usize::try_from(*i).map_or(true, |i| i >= rows);
    let Some(position) = indices.iter().position(is_outside) else {
        return Ok(());
    };
    let mut at = Vec::new();
    let mut rest = position;
    for stride in tensor.shape().strides() {
        at.push((rest / stride.max(1)).to_string());
        rest %= stride.max(1);
    }
    let at = match at.is_empty() {
        true => String::new(),
        false => format!("[{}]", at.join(",")),
    };
    Err(invalid_argument!(
        "indices{at} = {} is not in [0, {rows})",
        indices[position]
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn indices_are_checked_on_the_host() {
        let at = Tensor::from_slice([2, 2], &[0i32, 1, 2, 5]).expect("fits");
        let e = check_indices(&at, 3).expect_err("5 is outside");
        assert_eq!(e.message(), "indices[1,1] = 5 is not in [0, 3)");
        let check = |at: &[i64]| check_indices(&Tensor::vector(at).expect("fits"), 3);
        assert!(check(&[-1]).is_err());
        assert!(check(&[0, 2]).is_ok());
    }
}
