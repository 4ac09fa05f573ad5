//! RaggedTensorToSparse (TensorFlow: `core/kernels/ragged_tensor_to_sparse_kernel.cc`).

use ferroflow_base::{Result, invalid_argument};
use ferroflow_functors::indices::{Ints, ints, shape_of};
use ferroflow_opdef::{KernelBuild, KernelCtx, Op, OpKernel};
use ferroflow_tensor::{DType, PartialShape, Shape, Tensor};

/// The ops of this file.
pub(crate) const OPS: &[Op] = &[Op::new(
    "RaggedTensorToSparse",
    "rt_nested_splits: RAGGED_RANK*Tsplits, rt_dense_values: T -> sparse_indices: int64, \
     sparse_values: T, sparse_dense_shape: int64 | RAGGED_RANK: int >= 1; T: type; \
     Tsplits: type {int32,int64} = int64",
)
.shape(|ctx| {
    let n_splits = ctx.num_inputs() - 1;
    for i in 0..n_splits {
        ctx.with_rank(i, 1)?;
    }
    let values = ctx.with_rank_at_least(n_splits, 1)?;
    let rank = values.rank().map(|rank| rank + n_splits);
    let n = values.num_elements();
    ctx.set(0, PartialShape::of([n, rank]));
    ctx.set(1, PartialShape::of([n]));
    ctx.set(2, PartialShape::of([rank]));
    Ok(())
})
.kernel(kernel)
.gradient(|g| {
    let last = g.num_inputs() - 1;
    g.set(last, g.dy(1).reshape(g.x(last).shape_of()))
})];

fn kernel(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    let n_splits = build.inputs.len().saturating_sub(1);
    Ok(Box::new(move |ctx: &mut KernelCtx| {
        to_sparse(ctx, n_splits)
    }))
}

fn mismatch() -> ferroflow_base::Status {
    invalid_argument!(
        "Final value of ragged splits must match the length the corresponding ragged values."
    )
}

fn checked_splits(ctx: &KernelCtx, n_splits: usize, n_values: Option<usize>) -> Result<Vec<Ints>> {
    let all = (0..n_splits).map(|i| ints(ctx.input(i)?));
    let all: Vec<Ints> = all.collect::<Result<_>>()?;
    let mut n_rows = None;
    for splits in &all {
        match splits.first() {
            None => return Err(invalid_argument!("ragged splits may not be empty.")),
            Some(0) => {}
            Some(_) => return Err(invalid_argument!("First value of ragged splits must be 0.")),
        }
        if let Some(pair) = splits.windows(2).find(|pair| pair[1] < pair[0]) {
            return Err(invalid_argument!(
                "Ragged splits should be non decreasing, but we got {} followed by {}",
                pair[0],
                pair[1]
            ));
        }
        if n_rows.is_some_and(|n: i64| n != splits.len() as i64 - 1) {
            return Err(mismatch());
        }
        n_rows = splits.last().copied();
    }
    match n_values {
        Some(n) if n_rows == Some(n as i64) => Ok(all),
        Some(_) => Err(mismatch()),
        None => Err(invalid_argument!(
            "rt_dense_values must have at least one dimension"
        )),
    }
}

fn to_sparse(ctx: &mut KernelCtx, n_splits: usize) -> Result<()> {
    let values = ctx.input(n_splits)?.clone();
    let all = checked_splits(ctx, n_splits, values.shape().first().copied())?;
    let row = &values.shape()[1..];
    let n = values.num_elements();
    let rank = n_splits + values.shape().rank();
    let mut indices = ctx.alloc(DType::Int64, shape_of([n, rank])?)?;
    let row_size = row.iter().product();
    // The coordinates of the rows so far, each as long as the number of splits read, and one more.
    let n_outer = all.first().map_or(0, |splits| splits.len() - 1);
    let mut prefixes: Vec<i64> = (0..n_outer as i64).collect();
    for (d, splits) in all.iter().enumerate() {
        let rows = prefixes.chunks_exact(d + 1).zip(splits.windows(2));
        prefixes = rows
            .flat_map(|(prefix, pair)| {
                let row = 0..pair[1] - pair[0];
                row.flat_map(|i| prefix.iter().copied().chain([i]))
            })
            .collect();
    }
    let to = indices.slice_mut::<i64>()?;
    let cells = to.chunks_exact_mut(rank.max(1));
    for (i, cell) in cells.enumerate() {
        let (prefix, inner) = cell.split_at_mut(n_splits + 1);
        let value = i.checked_div(row_size).unwrap_or(0);
        prefix.copy_from_slice(&prefixes[value * (n_splits + 1)..][..n_splits + 1]);
        let mut rest = i.checked_rem(row_size).unwrap_or(0);
        for (x, &size) in inner.iter_mut().zip(row).rev() {
            *x = (rest % size) as i64;
            rest /= size;
        }
    }
    let mut shape = vec![n_outer as i64];
    for splits in &all {
        let widths = splits.windows(2).map(|pair| pair[1] - pair[0]);
        shape.push(widths.max().unwrap_or(0));
    }
    shape.extend(row.iter().map(|&d| d as i64));
    ctx.set_output(0, indices)?;
    ctx.set_output(1, values.with_shape(Shape::from([n]))?)?;
    ctx.set_output(2, Tensor::vector(&shape)?)
}
