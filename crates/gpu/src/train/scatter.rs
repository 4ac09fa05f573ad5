//! Rows that are added up or replaced by number.

use super::step_variables::written_variable;
use super::variables::placed;
use crate::data;
use crate::elementwise::{self, grid};
use crate::gather::{check_indices, index_suffix};
use crate::kernel::{FLOATS, GpuCtx, GpuKernel, Row, int, suffix};
use ferroflow_base::{Result, invalid_argument};
use ferroflow_device::TensorArg;
use ferroflow_functors::indices;
use ferroflow_opdef::KernelBuild;
use ferroflow_resources::resource::placed_mut;
use ferroflow_tensor::{DType, Shape, Tensor};

const INDICES: &[DType] = &[DType::Int32, DType::Int64];
const SCATTER: &[(&str, &[DType])] = &[("dtype", &[DType::Float]), ("Tindices", INDICES)];

pub(crate) const ROWS: &[Row] = &[
    Row::new("UnsortedSegmentSum", segment_sum)
        .types(&[("T", FLOATS), ("Tindices", INDICES)])
        .host(&["num_segments"]),
    Row::new("ResourceScatterAdd", scatter).types(SCATTER),
    Row::new("ResourceScatterSub", scatter).types(SCATTER),
    Row::new("ResourceScatterUpdate", scatter).types(&[("dtype", FLOATS), ("Tindices", INDICES)]),
];

fn segment_sum(_: &KernelBuild) -> Result<Box<dyn GpuKernel>> {
    Ok(Box::new(|ctx: &mut GpuCtx| {
        let (x, ids, n) = (ctx.input(0)?, ctx.pass(1)?, ctx.ints(2)?);
        let (true, [n]) = (ctx.pass(2)?.shape().is_scalar(), &n[..]) else {
            return Err(invalid_argument!("num_segments should be a scalar"));
        };
        let n = *n;
        let n = usize::try_from(n)
            .map_err(|_| invalid_argument!("Input num_segments == {n} must not be negative."))?;
        let rank = ids.shape().rank();
        if x.shape().rank() < rank || x.shape()[..rank] != ids.shape()[..] {
            return Err(invalid_argument!(
                "data.shape = {} does not start with segment_ids.shape = {}",
                x.shape(),
                ids.shape()
            ));
        }
        ctx.check(1, Box::new(move |ids| check_segments(ids, n)))?;
        let row = &x.shape()[rank..];
        let inner: usize = row.iter().product();
        let shape: Shape = std::iter::once(n).chain(row.iter().copied()).collect();
        let sums = ctx.alloc(DType::Float, shape)?;
        data::zero(ctx, &sums)?;
        let count = x.num_elements();
        if count > 0 && n > 0 {
            let ids = ctx.input(1)?;
            let args = [
                TensorArg::Tensor(&x),
                TensorArg::Tensor(&ids),
                TensorArg::Tensor(&sums),
                TensorArg::I32(int(count)?),
                TensorArg::I32(int(inner)?),
                TensorArg::I32(int(n)?),
            ];
            int(sums.num_elements())?;
            let of = suffix(x.dtype())?;
            let name = format!("segment_sum_{of}_{}", index_suffix(ids.dtype()));
            ctx.run(&name, &grid(count), &args)?;
        }
        let y = match x.dtype() {
            DType::Float => sums,
            dtype => elementwise::apply_as(ctx, &[], &[sums], dtype)?,
        };
        ctx.set_output(0, y)
    }))
}

/// # Errors
/// INVALID_ARGUMENT if there are too few segments, as on CPUs; those of negative numbers are dropped.
fn check_segments(ids: &Tensor, n: usize) -> Result<()> {
    let numbers = indices::ints(ids)?;
    let wrong = numbers
        .iter()
        .position(|i| usize::try_from(*i).is_ok_and(|i| i >= n));
    match wrong {
        None => Ok(()),
        Some(at) => Err(invalid_argument!(
            "segment_ids[{at}] = {} is out of range [0, {n})",
            numbers[at]
        )),
    }
}

/// Replaces the rows of a variable's value that `at` numbers, which is on the device; a value that others have is copied
/// first. Of rows that are numbered twice, any update may be the last.
///
/// # Errors
/// Those of the device.
pub(crate) fn scatter_rows(
    ctx: &GpuCtx,
    value: &mut Tensor,
    at: &Tensor,
    updates: &Tensor,
) -> Result<()> {
    let rows = value.shape()[0];
    let (inner, count) = sizes(value, at);
    let name = |of: &str| format!("scatter_{}_{of}", updates.dtype().size());
    enqueue(ctx, value, at, updates, &name, &[count, rows, inner], None)
}

/// The elements of a row, and of the rows that `at` numbers.
fn sizes(value: &Tensor, at: &Tensor) -> (usize, usize) {
    let inner: usize = value.shape()[1..].iter().product();
    (inner, inner * at.num_elements())
}

fn enqueue(
    ctx: &GpuCtx,
    value: &mut Tensor,
    at: &Tensor,
    updates: &Tensor,
    name: &dyn Fn(&str) -> String,
    sizes: &[usize; 3],
    factor: Option<f32>,
) -> Result<()> {
    if sizes[0] == 0 {
        return Ok(());
    }
    let name = name(index_suffix(at.dtype()));
    if !value.is_sole_owner() {
        let copy = ctx.alloc(value.dtype(), value.shape().clone())?;
        ctx.memory.copy_tensor(&copy, value)?;
        *value = copy;
    }
    let is_scalar = updates.num_elements() == 1 && sizes[0] != 1;
    let mut args = vec![
        TensorArg::Tensor(updates),
        TensorArg::Tensor(at),
        TensorArg::Tensor(value),
    ];
    for size in sizes {
        args.push(TensorArg::I32(int(*size)?));
    }
    args.push(TensorArg::I32(i32::from(is_scalar)));
    args.extend(factor.map(TensorArg::F32));
    ctx.run(&name, &grid(sizes[0]), &args)
}

fn scatter(build: &KernelBuild) -> Result<Box<dyn GpuKernel>> {
    let dtype = build.attrs.dtype("dtype")?;
    let factor = match &*build.def.name {
        "ResourceScatterAdd" => Some(1.0),
        "ResourceScatterSub" => Some(-1.0),
        _ => None,
    };
    Ok(Box::new(move |ctx: &mut GpuCtx| {
        let (indices, updates) = (ctx.pass(1)?, ctx.input(2)?);
        let var = written_variable(ctx, 0)?;
        let mut current = var.write();
        let value = placed_mut(ctx.engine(), 0, &mut current, dtype)?;
        let shape = value.shape().clone();
        let fits = shape.rank() > 0
            && updates
                .shape()
                .iter()
                .eq(indices.shape().iter().chain(&shape[1..]));
        if shape.rank() == 0 || !(fits || updates.shape().is_scalar()) {
            return Err(invalid_argument!(
                "Must have updates.shape = indices.shape + params.shape[1:] or updates.shape = [], got updates.shape {}, \
                 indices.shape {}, params.shape {shape}",
                updates.shape(),
                indices.shape()
            ));
        }
        let rows = shape[0];
        ctx.check(1, Box::new(move |at| check_indices(at, rows)))?;
        *value = placed(ctx, value)?;
        if factor.is_none() {
            return scatter_rows(ctx, value, &ctx.input(1)?, &updates);
        }
        let indices = ctx.input(1)?;
        let (inner, count) = sizes(value, &indices);
        let name = |of: &str| format!("scatter_add_{of}");
        enqueue(
            ctx,
            value,
            &indices,
            &updates,
            &name,
            &[count, rows, inner],
            factor,
        )
    }))
}
