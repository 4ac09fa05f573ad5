//! DenseCountSparseOutput, SparseCountSparseOutput, RaggedCountSparseOutput
//! (TensorFlow: `core/kernels/count_ops.cc`).

use ferroflow_base::{Result, invalid_argument};
use ferroflow_functors::indices::ints;
use ferroflow_functors::numeric::Num;
use ferroflow_functors::ragged::rows_of_splits;
use ferroflow_functors::summarize::debug_string;
use ferroflow_opdef::{KernelBuild, KernelCtx, Op, OpKernel, ShapeCtx};
use ferroflow_tensor::{PartialShape, Tensor, dispatch};
use std::collections::BTreeMap;

/// The ops of this file.
pub(crate) const OPS: &[Op] = &[
    Op::new(
        "DenseCountSparseOutput",
        "values: T, weights: output_type -> output_indices: int64, output_values: \
         output_type, output_dense_shape: int64 | T: type {int32,int64}; minlength: int \
         >= -1 = -1; maxlength: int >= -1 = -1; binary_output: bool; output_type: type \
         {int32,int64,float,double}",
    )
    .shape(|ctx| {
        let rank = ctx.input(0).rank();
        sparse_shape(ctx, rank)
    })
    .kernel(|build| kernel(build, 1, dense)),
    Op::new(
        "SparseCountSparseOutput",
        "indices: int64, values: T, dense_shape: int64, weights: output_type -> \
         output_indices: int64, output_values: output_type, output_dense_shape: int64 | \
         T: type {int32,int64}; minlength: int >= -1 = -1; maxlength: int >= -1 = -1; \
         binary_output: bool; output_type: type {int32,int64,float,double}",
    )
    .shape(|ctx| {
        let indices = ctx.with_rank(0, 2)?;
        let rank = indices.dim(1).map(|rank| rank.min(2));
        sparse_shape(ctx, rank)
    })
    .kernel(|build| kernel(build, 3, sparse)),
    Op::new(
        "RaggedCountSparseOutput",
        "splits: int64, values: T, weights: output_type -> output_indices: int64, \
         output_values: output_type, output_dense_shape: int64 | T: type {int32,int64}; \
         minlength: int >= -1 = -1; maxlength: int >= -1 = -1; binary_output: bool; \
         output_type: type {int32,int64,float,double}",
    )
    .shape(|ctx| {
        let rank = ctx.input(1).rank().map(|_| 2);
        sparse_shape(ctx, rank)
    })
    .kernel(|build| kernel(build, 2, ragged)),
];

/// The shapes of a sparse tensor of that rank.
fn sparse_shape(ctx: &mut ShapeCtx, rank: Option<usize>) -> Result<()> {
    ctx.set(0, PartialShape::of([None, rank]));
    ctx.set(1, PartialShape::of_rank(1));
    ctx.set(2, PartialShape::of([rank]));
    Ok(())
}

struct Options {
    min_length: i64,
    max_length: i64,
    binary: bool,
}

/// The values to count.
struct Input {
    values: Vec<i64>,
    /// The row of each value, in the order of the values.
    rows: Vec<usize>,
    /// The number of rows; `None` if the output is a vector.
    n_rows: Option<usize>,
}

type Reader = fn(&KernelCtx) -> Result<Input>;

fn kernel(build: &KernelBuild, weights: usize, read: Reader) -> Result<Box<dyn OpKernel>> {
    let options = Options {
        min_length: build.attrs.int("minlength")?,
        max_length: build.attrs.int("maxlength")?,
        binary: build.attrs.bool("binary_output")?,
    };
    let dtype = build.output(1)?;
    dispatch!(dtype, W in [i32, i64, f32, f64] => {
        Ok(Box::new(move |ctx: &mut KernelCtx| {
            let input = read(ctx)?;
            count::<W>(ctx, &input, ctx.slice::<W>(weights)?.to_vec(), &options)
        }))
    }, else Err(build.unsupported(dtype)))
}

/// Checks the values and that weights, if any, have their shape.
fn checked_values(ctx: &KernelCtx, values: usize, weights: usize, name: &str) -> Result<Vec<i64>> {
    let numbers = non_negative(ctx.input(values)?)?;
    check_weights(ctx, values, weights, name)?;
    Ok(numbers)
}

fn non_negative(values: &Tensor) -> Result<Vec<i64>> {
    let numbers = ints(values)?;
    match numbers.iter().any(|&v| v < 0) {
        true => Err(invalid_argument!("Input values must all be non-negative")),
        false => Ok(numbers.to_vec()),
    }
}

fn check_weights(ctx: &KernelCtx, values: usize, weights: usize, name: &str) -> Result<()> {
    let (values, weights) = (ctx.input(values)?, ctx.input(weights)?);
    if weights.num_elements() > 0 && weights.shape() != values.shape() {
        return Err(invalid_argument!(
            "Weights and {name} must have the same shape. Weight shape: {}; {name} shape: {}",
            weights.shape(),
            values.shape()
        ));
    }
    Ok(())
}

fn dense(ctx: &KernelCtx) -> Result<Input> {
    let data = ctx.shape(0)?;
    if !matches!(data.rank(), 1 | 2) {
        return Err(invalid_argument!(
            "Input must be a 1 or 2-dimensional tensor. Got: {data}"
        ));
    }
    let values = checked_values(ctx, 0, 1, "data")?;
    let [n_rows, width] = *data.dims() else {
        return Ok(Input {
            rows: vec![0; values.len()],
            values,
            n_rows: None,
        });
    };
    if n_rows == 0 {
        return Err(invalid_argument!(
            "Invalid input: Shapes dimension cannot be 0."
        ));
    }
    let rows = (0..values.len()).map(|i| i / width.max(1)).collect();
    Ok(Input {
        values,
        rows,
        n_rows: Some(n_rows),
    })
}

fn sparse(ctx: &KernelCtx) -> Result<Input> {
    let (indices, values, shape) = (ctx.input(0)?, ctx.input(1)?, ctx.input(2)?);
    let [n, rank] = *indices.shape().dims() else {
        return Err(invalid_argument!(
            "Input indices must be a 2-dimensional tensor. Got: {}",
            indices.shape()
        ));
    };
    for (name, tensor) in [("values", values), ("shape", shape)] {
        if tensor.shape().rank() != 1 {
            return Err(invalid_argument!(
                "Input {name} must be a vector. Got: {}",
                tensor.shape()
            ));
        }
    }
    if values.num_elements() != n {
        return Err(invalid_argument!(
            "Number of values must match first dimension of indices.Got {} values, indices shape: {}",
            values.num_elements(),
            indices.shape()
        ));
    }
    if shape.num_elements() != rank {
        return Err(invalid_argument!(
            "Number of dimensions must match second dimension of indices.Got {} dimensions, indices \
             shape: {}",
            shape.num_elements(),
            indices.shape()
        ));
    }
    let (at, sizes) = (indices.slice::<i64>()?, shape.slice::<i64>()?);
    let Some(&first) = sizes.first() else {
        return Err(invalid_argument!(
            "The shape argument requires at least one element."
        ));
    };
    for (i, row) in at.chunks_exact(rank).enumerate() {
        for (j, (&x, &size)) in row.iter().zip(sizes).enumerate() {
            if x < 0 || x >= size {
                return Err(invalid_argument!(
                    "Invalid index value at {i}: dimension {j} has value {x} which is not in [0, {size}) \
                     (as given by dense shape {}",
                    debug_string(shape)
                ));
            }
        }
    }
    let values = checked_values(ctx, 1, 3, "values")?;
    let is_vector = rank == 1;
    let n_rows = if is_vector { 1 } else { first };
    let fits = usize::try_from(n_rows).ok();
    let Some(n_rows) = fits.filter(|&n| n > 0 && n < i32::MAX as usize) else {
        return Err(invalid_argument!(
            "Cannot allocate {n_rows} batches, is the dense shape too wide?"
        ));
    };
    let row = |row: &[i64]| if is_vector { 0 } else { row[0] as usize };
    Ok(Input {
        values,
        rows: at.chunks_exact(rank).map(row).collect(),
        n_rows: (!is_vector).then_some(n_rows),
    })
}

fn ragged(ctx: &KernelCtx) -> Result<Input> {
    check_weights(ctx, 1, 2, "values")?;
    let (splits, n) = (ctx.slice::<i64>(0)?, ctx.input(1)?.num_elements());
    if splits.len() < 2 {
        return Err(invalid_argument!(
            "Must provide at least 2 elements for the splits argument"
        ));
    }
    let rows = rows_of_splits(splits, n)?;
    let values = non_negative(ctx.input(1)?)?;
    Ok(Input {
        values,
        rows,
        n_rows: Some(splits.len() - 1),
    })
}

fn count<W: Num>(
    ctx: &mut KernelCtx,
    input: &Input,
    weights: Vec<W>,
    options: &Options,
) -> Result<()> {
    let mut counts: BTreeMap<(usize, i64), W> = BTreeMap::new();
    let mut largest = 0;
    for (i, (&value, &row)) in input.values.iter().zip(&input.rows).enumerate() {
        if options.max_length >= 0 && value >= options.max_length {
            continue;
        }
        largest = largest.max(value);
        let count = counts.entry((row, value)).or_insert(W::ZERO);
        *count = match options.binary {
            true => W::ONE,
            false => count.add(weights.get(i).copied().unwrap_or(W::ONE)),
        };
    }
    let width = match options.max_length {
        0.. => options.max_length,
        _ => largest.saturating_add(1).max(options.min_length),
    };
    let n = counts.len();
    let values: Vec<W> = counts.values().copied().collect();
    let (indices, shape) = match input.n_rows {
        None => {
            let indices: Vec<i64> = counts.keys().map(|&(_, value)| value).collect();
            (Tensor::from_slice([n, 1], &indices)?, vec![width])
        }
        Some(n_rows) => {
            let pairs = counts.keys().flat_map(|&(row, value)| [row as i64, value]);
            let indices: Vec<i64> = pairs.collect();
            (
                Tensor::from_slice([n, 2], &indices)?,
                vec![n_rows as i64, width],
            )
        }
    };
    ctx.set_output(0, indices)?;
    ctx.set_output(1, Tensor::vector(&values)?)?;
    ctx.set_output(2, Tensor::vector(&shape)?)
}
