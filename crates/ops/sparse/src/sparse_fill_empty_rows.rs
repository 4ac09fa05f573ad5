//! SparseFillEmptyRows and SparseFillEmptyRowsGrad (TensorFlow:
//! `core/kernels/sparse_fill_empty_rows_op.cc`).

use ferroflow_base::{Result, invalid_argument};
use ferroflow_functors::half_conversion::{narrowed, widened};
use ferroflow_functors::numeric::Num;
use ferroflow_opdef::{KernelBuild, KernelCtx, Op, OpKernel};
use ferroflow_tensor::{
    Complex32, Complex64, DType, Item, PartialShape, Shape, Tensor, dispatch, dispatch_items,
};

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
    .kernel(|build| dispatch_items!(build.output(1)?, T => Ok(Box::new(fill_empty_rows::<T>))))
    .gradient(|g| {
        let results = g
            .dy(1)
            .node("SparseFillEmptyRowsGrad", &[g.y(3), g.dy(1)], &[]);
        for (input, result) in [1, 3].into_iter().zip(results) {
            g.set(input, result)?;
        }
        Ok(())
    }),
    Op::new(
        "SparseFillEmptyRowsGrad",
        "reverse_index_map: int64, grad_values: T -> d_values: T, d_default_value: T | \
         T: type",
    )
    .shape(|ctx| {
        let map = ctx.with_rank(0, 1)?;
        ctx.with_rank(1, 1)?;
        ctx.set(0, map);
        ctx.set(1, PartialShape::scalar());
        Ok(())
    })
    .kernel(fill_empty_rows_grad),
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
            return Err(invalid_argument!(
                "Input to reshape is a SparseTensor with {total} dense values, but the requested \
                 shape requires a multiple of {product}. input_shape={from}"
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

fn fill_empty_rows<T: Item>(ctx: &mut KernelCtx) -> Result<()> {
    let (at, values) = (ctx.input(0)?, ctx.input(1)?);
    let (shape, default) = (ctx.input(2)?, ctx.input(3)?);
    let [n, rank] = *at.shape().dims() else {
        return Err(invalid_argument!(
            "indices must be a matrix, saw: {}",
            at.shape()
        ));
    };
    for (name, t, wanted) in [
        ("dense_shape must be a vector", shape, 1),
        ("values must be a vector", values, 1),
        ("default_value must be a scalar", default, 0),
    ] {
        if t.shape().rank() != wanted {
            return Err(invalid_argument!("{name}, saw: {}", t.shape()));
        }
    }
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
    let Some(&n_rows) = shape.slice::<i64>()?.first() else {
        return Err(invalid_argument!("Dense shape cannot be empty."));
    };
    let rows_shape = Shape::checked(&[n_rows])?;
    let (n_rows, rows) = (rows_shape.num_elements(), at.slice::<i64>()?);
    if n_rows == 0 && n > 0 {
        return Err(invalid_argument!(
            "Received SparseTensor with dense_shape[0] = 0 but indices.shape[0] = {n}"
        ));
    }
    // For each row, the position of its next value.
    let mut empty = ctx.alloc(DType::Bool, rows_shape.clone())?;
    let mut counts = ctx.alloc(DType::Int64, rows_shape)?;
    let counts = counts.slice_mut::<i64>()?;
    counts.fill(0);
    let row_of = |i: usize| rows.get(i * rank).copied().unwrap_or_default();
    for i in 0..n {
        let row = row_of(i);
        let count = usize::try_from(row).ok().and_then(|r| counts.get_mut(r));
        *count
            .ok_or_else(|| invalid_argument!("indices({i}, 0) is invalid: {row} >= {n_rows}"))? +=
            1;
    }
    let mut total = 0;
    for (is_empty, next) in empty.slice_mut::<bool>()?.iter_mut().zip(counts.iter_mut()) {
        *is_empty = *next == 0;
        let count = (*next).max(1);
        *next = total;
        total += count;
    }
    let total = total as usize;
    let mut places = ctx.alloc(DType::Int64, Shape::from([n]))?;
    let mut out_at = ctx.alloc(DType::Int64, Shape::from([total, rank]))?;
    let mut out = ctx.alloc(values.dtype(), Shape::from([total]))?;
    let filler = default.items::<T>()?.first().cloned().unwrap_or_default();
    let (to_at, to) = (out_at.slice_mut::<i64>()?, out.items_mut::<T>()?);
    for (row, (&is_empty, &next)) in empty.slice::<bool>()?.iter().zip(counts.iter()).enumerate() {
        if !is_empty {
            continue;
        }
        let next = next as usize;
        if let Some([first, rest @ ..]) = to_at.get_mut(next * rank..(next + 1) * rank) {
            *first = row as i64;
            rest.fill(0);
        }
        if let Some(to) = to.get_mut(next) {
            to.clone_from(&filler);
        }
    }
    let from = values.items::<T>()?;
    for (i, place) in places.slice_mut::<i64>()?.iter_mut().enumerate() {
        let next = &mut counts[row_of(i) as usize];
        *place = *next;
        let to_place = *next as usize;
        *next += 1;
        to_at[to_place * rank..][..rank].copy_from_slice(&rows[i * rank..][..rank]);
        to[to_place].clone_from(&from[i]);
    }
    ctx.set_output(0, out_at)?;
    ctx.set_output(1, out)?;
    ctx.set_output(2, empty)?;
    ctx.set_output(3, places)
}

/// Sums up the gradients of filled rows for the default value.
fn fill_empty_rows_grad(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    let dtype = build.output(0)?;
    Ok(Box::new(move |ctx: &mut KernelCtx| {
        let is_half = matches!(dtype, DType::Half | DType::Bfloat16);
        let grads = match is_half {
            true => widened(ctx.par(), ctx.input(1)?)?,
            false => ctx.input(1)?.clone(),
        };
        let results = dispatch!(grads.dtype(), T in
            [f32, f64, i8, i16, i32, i64, u8, u16, u32, u64, Complex32, Complex64]
            => empty_rows_grad::<T>(ctx, &grads)?,
            else return Err(invalid_argument!("gradients of type {dtype} are not supported")));
        for (i, result) in results.into_iter().enumerate() {
            let result = match is_half {
                true => narrowed(ctx.par(), result, dtype)?,
                false => result,
            };
            ctx.set_output(i, result)?;
        }
        Ok(())
    }))
}

fn empty_rows_grad<T: Num>(ctx: &KernelCtx, grads: &Tensor) -> Result<[Tensor; 2]> {
    let map = ctx.input(0)?;
    for (name, t) in [("reverse_index_map", map), ("grad_values", grads)] {
        if t.shape().rank() != 1 {
            return Err(invalid_argument!(
                "{name} must be a vector, saw: {}",
                t.shape()
            ));
        }
    }
    let values = grads.slice::<T>()?;
    let mut seen = vec![false; values.len()];
    let mut out = ctx.alloc(T::DTYPE, map.shape().clone())?;
    for (to, &from) in out.slice_mut::<T>()?.iter_mut().zip(map.slice::<i64>()?) {
        let at = usize::try_from(from).ok().filter(|&i| i < values.len());
        let Some(at) = at else {
            return Err(invalid_argument!(
                "Elements in reverse index must be in [0, {}) but got {from}",
                values.len()
            ));
        };
        *to = values[at];
        seen[at] = true;
    }
    let rest = values.iter().zip(&seen).filter(|(_, seen)| !**seen);
    let rest = rest.fold(T::ZERO, |sum, (&g, _)| sum.add(g));
    Ok([out, Tensor::scalar(rest)])
}
