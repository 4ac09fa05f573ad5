//! RaggedFillEmptyRows and RaggedFillEmptyRowsGrad.

use ferroflow_base::{Result, invalid_argument};
use ferroflow_functors::fill_empty_rows::{self, Rows};
use ferroflow_functors::indices::int;
use ferroflow_opdef::{KernelCtx, Op};
use ferroflow_tensor::{Item, PartialShape, Shape, dispatch_items};

/// The ops of this file.
pub(crate) const OPS: &[Op] = &[
    Op::new(
        "RaggedFillEmptyRows",
        "value_rowids: int64, values: T, nrows: int64, default_value: T -> \
         output_value_rowids: int64, output_values: T, empty_row_indicator: bool, \
         reverse_index_map: int64 | T: type",
    )
    .shape(|ctx| {
        let rows = ctx.with_rank(0, 1)?;
        let values = ctx.with_rank(1, 1)?;
        ctx.with_rank(2, 0)?;
        ctx.with_rank(3, 0)?;
        for i in 0..3 {
            ctx.set(i, PartialShape::of_rank(1));
        }
        let places = ctx.merge(&rows, &values)?;
        ctx.set(3, places);
        Ok(())
    })
    .kernel(|build| dispatch_items!(build.output(1)?, T => Ok(Box::new(fill::<T>))))
    .gradient(|g| fill_empty_rows::gradient(g, "RaggedFillEmptyRowsGrad")),
    fill_empty_rows::grad_op("RaggedFillEmptyRowsGrad"),
];

fn fill<T: Item>(ctx: &mut KernelCtx) -> Result<()> {
    let (rows, values) = (ctx.input(0)?, ctx.input(1)?);
    let (n_rows, default) = (ctx.input(2)?, ctx.input(3)?);
    let Some(n) = int(n_rows).filter(|_| n_rows.shape().is_scalar()) else {
        return Err(invalid_argument!(
            "nrows must be a scalar, saw: {}",
            n_rows.shape()
        ));
    };
    for (name, t) in [("value_rowids", rows), ("values", values)] {
        if t.shape().rank() != 1 {
            return Err(invalid_argument!(
                "{name} must be a vector, saw: {}",
                t.shape()
            ));
        }
    }
    if rows.num_elements() != values.num_elements() {
        return Err(invalid_argument!(
            "The length of `values` ({}) must match the first dimension of `value_rowids` ({}).",
            values.num_elements(),
            rows.num_elements()
        ));
    }
    if !default.shape().is_scalar() {
        return Err(invalid_argument!(
            "default_value must be a scalar, saw: {}",
            default.shape()
        ));
    }
    let rows = Rows {
        coordinates: rows.slice()?,
        rank: 1,
        n_rows: n,
    };
    let [rows, filled, empty, places] = fill_empty_rows::fill::<T>(ctx, &rows, values, default)?;
    let n = rows.num_elements();
    ctx.set_output(0, rows.with_shape(Shape::from([n]))?)?;
    ctx.set_output(1, filled)?;
    ctx.set_output(2, empty)?;
    ctx.set_output(3, places)
}
