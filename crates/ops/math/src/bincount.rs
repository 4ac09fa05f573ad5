//! Bincount, DenseBincount, SparseBincount, RaggedBincount
//! (TensorFlow: `core/kernels/bincount_op.cc`).

use ferroflow_base::{Result, invalid_argument};
use ferroflow_functors::indices::{Index, constant_int, int, ints, shape_of};
use ferroflow_functors::numeric::Num;
use ferroflow_functors::ragged::rows_of_splits;
use ferroflow_functors::sparse::{check_bounds, check_parts};
use ferroflow_opdef::{KernelBuild, KernelCtx, Op, OpKernel, ShapeCtx};
use ferroflow_tensor::{DType, PartialShape, Shape, Tensor, dispatch};

/// The ops of this file.
pub(crate) const OPS: &[Op] = &[
    Op::new(
        "Bincount",
        "arr: int32, size: int32, weights: T -> bins: T | T: type \
         {int32,int64,float,double}",
    )
    .shape(|ctx| {
        let size = constant_size(ctx, 1)?;
        ctx.set(0, PartialShape::of([size]));
        Ok(())
    })
    .kernel(|build| kernel(build, 2, bincount)),
    Op::new(
        "DenseBincount",
        "input: Tidx, size: Tidx, weights: T -> output: T | Tidx: type {int32,int64}; T: \
         type {int32,int64,float,double}; binary_output: bool = false",
    )
    .shape(|ctx| {
        let size = constant_size(ctx, 1)?;
        let input = ctx.input(0);
        match input.rank() {
            None => {}
            Some(0 | 1) => ctx.set(0, PartialShape::of([size])),
            Some(2) => ctx.set(0, PartialShape::of([input.dim(0), size])),
            Some(rank) => {
                return Err(invalid_argument!(
                    "Shape must be at most rank 2 but is rank {rank}"
                ));
            }
        }
        Ok(())
    })
    .kernel(|build| kernel(build, 2, dense)),
    Op::new(
        "SparseBincount",
        "indices: int64, values: Tidx, dense_shape: int64, size: Tidx, weights: T -> \
         output: T | Tidx: type {int32,int64}; T: type {int32,int64,float,double}; \
         binary_output: bool = false",
    )
    .shape(|ctx| {
        let size = constant_size(ctx, 3)?;
        match ctx.input(2).dim(0) {
            Some(1) => ctx.set(0, PartialShape::of([size])),
            Some(_) => ctx.set(0, PartialShape::of([None, size])),
            None => {}
        }
        Ok(())
    })
    .kernel(|build| kernel(build, 4, sparse)),
    Op::new(
        "RaggedBincount",
        "splits: int64, values: Tidx, size: Tidx, weights: T -> output: T | Tidx: type \
         {int32,int64}; T: type {int32,int64,float,double}; binary_output: bool = false",
    )
    .shape(|ctx| {
        let (size, splits) = (constant_size(ctx, 2)?, ctx.input(0));
        let rows = splits.num_elements().and_then(|n| n.checked_sub(1));
        ctx.set(0, PartialShape::of([rows, size]));
        Ok(())
    })
    .kernel(|build| kernel(build, 3, ragged)),
];

/// The number of bins, if input `i` is a constant.
fn constant_size(ctx: &ShapeCtx, i: usize) -> Result<Option<usize>> {
    constant_int(ctx, i).map(checked_size).transpose()
}

fn checked_size(size: i64) -> Result<usize> {
    usize::try_from(size).map_err(|_| invalid_argument!("size ({size}) must be non-negative"))
}

/// The number of bins in input `i`.
fn size_of_bins(ctx: &KernelCtx, i: usize) -> Result<usize> {
    let size = ctx.input(i)?;
    let scalar = int(size).filter(|_| size.shape().is_scalar());
    checked_size(scalar.ok_or_else(|| {
        invalid_argument!("Shape must be rank 0 but is rank {}", size.shape().rank())
    })?)
}

/// Values to count and the shape of the counts.
struct Input {
    values: Vec<i64>,
    /// The row of each value; empty if there is one row.
    rows: Vec<usize>,
    shape: Shape,
}

/// Reads and checks the inputs.
type Reader = fn(&KernelCtx) -> Result<Input>;

fn kernel(build: &KernelBuild, weights: usize, read: Reader) -> Result<Box<dyn OpKernel>> {
    let binary = match build.attrs.get("binary_output") {
        Some(_) => build.attrs.bool("binary_output")?,
        None => false,
    };
    let dtype = build.output(0)?;
    dispatch!(dtype, T in [i32, i64, f32, f64] => {
        Ok(Box::new(move |ctx: &mut KernelCtx| {
            if weights == 2
                && !binary
                && let Some(out) = histogram::<T>(ctx)?
            {
                return ctx.set_output(0, out);
            }
            let input = read(ctx)?;
            let out = count::<T>(&input, ctx.slice(weights)?, binary)?;
            ctx.set_output(0, out)
        }))
    }, else Err(build.unsupported(dtype)))
}

/// Counts the numbers of a vector without weights, unless they are fewer than the bins or one is negative.
fn histogram<T: Num>(ctx: &KernelCtx) -> Result<Option<Tensor>> {
    let (data, size) = (ctx.input(0)?, ctx.input(1)?);
    let is_plain = data.shape().rank() == 1 && ctx.input(2)?.shape().dims() == [0];
    let n_bins = int(size).filter(|_| size.shape().is_scalar());
    let n_bins = n_bins.and_then(|size| usize::try_from(size).ok());
    let Some(n_bins) = n_bins.filter(|&n| is_plain && n <= data.num_elements()) else {
        return Ok(None);
    };
    let counts = match data.dtype() {
        DType::Int32 => counts(data.slice::<i32>()?, n_bins),
        DType::Int64 => counts(data.slice::<i64>()?, n_bins),
        _ => None,
    };
    let Some(counts) = counts else {
        return Ok(None);
    };
    let mut out = Tensor::zeros(T::DTYPE, Shape::from([n_bins]))?;
    for (to, count) in out.slice_mut::<T>()?.iter_mut().zip(counts) {
        *to = T::from_count(count.iter().sum::<u64>() as usize);
    }
    Ok(Some(out))
}

/// Tables in turn, so that equal numbers do not wait for each other.
const TABLES: usize = 4;

/// Returns the parts of each bin's count; `None` if a number is negative.
fn counts<I: Index>(values: &[I], n_bins: usize) -> Option<Vec<[u64; TABLES]>> {
    // What is beyond the bins has one of its own.
    let mut tables = vec![[0; TABLES]; n_bins + 1];
    let mut signs = 0;
    for part in values.chunks(TABLES) {
        for (i, v) in part.iter().enumerate() {
            let v = v.to_i64();
            signs |= v;
            tables[(v as u64).min(n_bins as u64) as usize][i] += 1;
        }
    }
    (signs >= 0).then_some(tables)
}

fn count<T: Num>(input: &Input, weights: &[T], binary: bool) -> Result<Tensor> {
    if !binary && !weights.is_empty() && weights.len() != input.values.len() {
        return Err(invalid_argument!(
            "Input indices and weights must have the same size."
        ));
    }
    let n_bins = input.shape.last().copied().unwrap_or(0);
    let mut out = Tensor::zeros(T::DTYPE, input.shape.clone())?;
    let bins = out.slice_mut::<T>()?;
    for (i, &value) in input.values.iter().enumerate() {
        let row = input.rows.get(i).copied().unwrap_or(0);
        let bin = usize::try_from(value).ok().filter(|&bin| bin < n_bins);
        let Some(bin) = bin.and_then(|bin| bins.get_mut(row * n_bins + bin)) else {
            continue;
        };
        *bin = match binary {
            true => T::ONE,
            false => bin.add(weights.get(i).copied().unwrap_or(T::ONE)),
        };
    }
    Ok(out)
}

fn bincount(ctx: &KernelCtx) -> Result<Input> {
    let size = size_of_bins(ctx, 1)?;
    let (arr, weights) = (ctx.input(0)?, ctx.input(2)?);
    if weights.num_elements() > 0 && weights.num_elements() != arr.num_elements() {
        return Err(invalid_argument!(
            "Input indices and weights must have the same size."
        ));
    }
    one_row(ints(arr)?.into_vec(), size)
}

fn one_row(values: Vec<i64>, size: usize) -> Result<Input> {
    if values.iter().any(|&v| v < 0) {
        return Err(invalid_argument!("Input arr must be non-negative!"));
    }
    Ok(Input {
        values,
        rows: Vec::new(),
        shape: Shape::from([size]),
    })
}

fn dense(ctx: &KernelCtx) -> Result<Input> {
    let (data, weights) = (ctx.input(0)?, ctx.input(2)?);
    let rank = data.shape().rank();
    if rank > 2 {
        return Err(invalid_argument!(
            "Shape must be at most rank 2 but is rank {rank}"
        ));
    }
    let size = ctx.input(1)?;
    if !size.shape().is_scalar() {
        return Err(invalid_argument!(
            "Shape must be rank 0 but is rank {}",
            size.shape().rank()
        ));
    }
    if weights.num_elements() > 0 && weights.shape() != data.shape() {
        return Err(invalid_argument!(
            "`weights` must be the same shape as `arr` or a length-0 `Tensor`, in which case it acts as \
             all weights equal to 1. Received {}",
            weights.shape()
        ));
    }
    let size = size_of_bins(ctx, 1)?;
    let values = ints(data)?.into_vec();
    let [n_rows, width] = *data.shape().dims() else {
        return one_row(values, size);
    };
    if let Some(value) = values.iter().rev().find(|&&v| v < 0) {
        return Err(invalid_argument!(
            "Input 'in' must be non-negative! Negative input value found: {}",
            *value as i32
        ));
    }
    Ok(Input {
        rows: (0..values.len()).map(|i| i / width.max(1)).collect(),
        values,
        shape: shape_of([n_rows, size])?,
    })
}

fn sparse(ctx: &KernelCtx) -> Result<Input> {
    let (indices, values, shape) = (ctx.input(0)?, ctx.input(1)?, ctx.input(2)?);
    let size = size_of_bins(ctx, 3)?;
    check_parts(indices, values, shape)?;
    let (at, dims) = (indices.slice::<i64>()?, shape.slice::<i64>()?);
    check_bounds(at, dims.len(), dims)?;
    let values = ints(values)?.into_vec();
    let Some(&n_rows) = dims.first() else {
        return Err(invalid_argument!(
            "Sparse shape must have at least one dimension"
        ));
    };
    if dims.len() == 1 {
        return one_row(values, size);
    }
    Ok(Input {
        values,
        rows: at
            .chunks_exact(dims.len())
            .map(|row| row[0] as usize)
            .collect(),
        shape: Shape::checked(&[n_rows, i64::try_from(size).unwrap_or(-1)])?,
    })
}

fn ragged(ctx: &KernelCtx) -> Result<Input> {
    let (splits, values) = (ctx.slice::<i64>(0)?, ctx.input(1)?);
    let size = size_of_bins(ctx, 2)?;
    let Some(n_rows) = splits.len().checked_sub(1) else {
        return Err(invalid_argument!("Splits must be non-empty"));
    };
    let rows = rows_of_splits(splits, values.num_elements())?;
    let values = ints(values)?.into_vec();
    if values.iter().any(|&v| v < 0) {
        return Err(invalid_argument!("Input must be non-negative"));
    }
    Ok(Input {
        values,
        rows,
        shape: shape_of([n_rows, size])?,
    })
}
