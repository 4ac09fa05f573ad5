//! SparseFillEmptyRows and SparseFillEmptyRowsGrad (TensorFlow:
//! `core/kernels/sparse_fill_empty_rows_op.cc`).

use ferroflow_base::{Result, invalid_argument};
use ferroflow_functors::fill_empty_rows::{self, Rows};
use ferroflow_functors::indices::list;
use ferroflow_opdef::{KernelCtx, Op};
use ferroflow_tensor::{Item, PartialShape, Shape, Tensor, dispatch_items};

/// The ops of this file.
pub(crate) const OPS: &[Op] = &[
    Op::new(
        "SparseFillEmptyRows",
        "indices: int64, values: T, dense_shape: int64, default_value: T -> \
         output_indices: int64, output_values: T, empty_row_indicator: bool, \
         reverse_index_map: int64 | T: type",
    )
    .shape(|ctx| {
        let at = ctx.with_rank(0, 2)?;
        let values = ctx.with_rank(1, 1)?;
        ctx.with_rank(2, 1)?;
        ctx.with_rank(3, 0)?;
        ctx.set(0, PartialShape::of([None, at.dim(1)]));
        ctx.set(1, PartialShape::of([None]));
        ctx.set(2, PartialShape::of([None]));
        ctx.set(3, values);
        Ok(())
    })
    .kernel(|build| dispatch_items!(build.output(1)?, T => Ok(Box::new(fill::<T>))))
    .gradient(|g| fill_empty_rows::gradient(g, "SparseFillEmptyRowsGrad")),
    fill_empty_rows::grad_op("SparseFillEmptyRowsGrad"),
];

/// Returns the shape `sizes`, of which one may be -1.
pub(crate) fn wanted(from: &Shape, sizes: &[i64]) -> Result<Shape> {
    let total = from.num_elements() as i64;
    let (mut product, mut unknown) = (1i64, None);
    for (d, &size) in sizes.iter().enumerate() {
        match size {
            -1 => {
                if let Some(first) = unknown.replace(d) {
                    return Err(invalid_argument!(
                        "only one output dimension may be -1, not both {first} and {d}"
                    ));
                }
            }
            0.. => product = product.saturating_mul(size),
            _ => {
                return Err(invalid_argument!(
                    "size {d} must be non-negative, not {size}"
                ));
            }
        }
    }
    let mut sizes = sizes.to_vec();
    if let Some(d) = unknown {
        if product == 0 {
            return Err(invalid_argument!(
                "reshape cannot infer the missing input size for an empty tensor unless all \
                 specified input sizes are non-zero"
            ));
        }
        if total % product != 0 {
            sizes[d] = 1;
            return Err(invalid_argument!(
                "Input to reshape is a SparseTensor with {total} dense values, but the requested \
                 shape requires a multiple of {product}. input_shape={from} output_shape={}",
                list(&sizes)
            ));
        }
        sizes[d] = total / product;
    }
    let to = Shape::checked(&sizes)?;
    if to.num_elements() as i64 != total {
        return Err(invalid_argument!(
            "Input to reshape is a tensor with {total} dense values, but the requested shape has {}. \
             input_shape={from} output_shape={to}",
            to.num_elements()
        ));
    }
    Ok(to)
}

fn check_rank(must: &str, t: &Tensor, rank: usize) -> Result<()> {
    match t.shape().rank() == rank {
        true => Ok(()),
        false => Err(invalid_argument!("{must}, saw: {}", t.shape())),
    }
}

fn fill<T: Item>(ctx: &mut KernelCtx) -> Result<()> {
    let (at, values) = (ctx.input(0)?, ctx.input(1)?);
    let (shape, default) = (ctx.input(2)?, ctx.input(3)?);
    check_rank("dense_shape must be a vector", shape, 1)?;
    check_rank("indices must be a matrix", at, 2)?;
    check_rank("values must be a vector", values, 1)?;
    let [n, rank] = [0, 1].map(|i| at.shape()[i]);
    if values.num_elements() != n {
        return Err(invalid_argument!(
            "The length of `values` ({}) must match the first dimension of `indices` ({n}).",
            values.num_elements()
        ));
    }
    if shape.num_elements() != rank {
        return Err(invalid_argument!(
            "The length of `dense_shape` ({}) must match the second dimension of `indices` ({rank}).",
            shape.num_elements()
        ));
    }
    check_rank("default_value must be a scalar", default, 0)?;
    let Some(&n_rows) = shape.slice::<i64>()?.first() else {
        return Err(invalid_argument!("Dense shape cannot be empty."));
    };
    let rows = Rows {
        coordinates: at.slice()?,
        rank,
        n_rows,
    };
    let filled = fill_empty_rows::fill::<T>(ctx, &rows, values, default)?;
    for (i, output) in filled.into_iter().enumerate() {
        ctx.set_output(i, output)?;
    }
    Ok(())
}
