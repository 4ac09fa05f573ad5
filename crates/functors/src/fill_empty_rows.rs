//! Rows without values get a default value (TensorFlow: `core/kernels/fill_empty_rows_functor.h`).

use crate::half_conversion::{narrowed, widened};
use crate::numeric::Num;
use ferroflow_base::{Result, invalid_argument};
use ferroflow_opdef::{GradientCtx, KernelBuild, KernelCtx, Op, OpKernel, ShapeCtx};
use ferroflow_tensor::{Complex32, Complex64, DType, Item, PartialShape, Shape, Tensor, dispatch};

/// Coordinates of values, sorted into `n_rows` rows.
pub struct Rows<'a> {
    /// The coordinates of all values.
    pub coordinates: &'a [i64],
    /// The number of coordinates of each value; the first is its row.
    pub rank: usize,
    /// The number of rows.
    pub n_rows: i64,
}

/// Returns coordinates and values with a default value in each empty row, which rows were empty, and
/// the new place of each value. The coordinates are a matrix.
///
/// # Errors
/// INVALID_ARGUMENT if a row is out of range.
pub fn fill<T: Item>(
    ctx: &KernelCtx,
    rows: &Rows,
    values: &Tensor,
    default: &Tensor,
) -> Result<[Tensor; 4]> {
    let (n, rank) = (values.num_elements(), rows.rank);
    let rows_shape = Shape::checked(&[rows.n_rows])?;
    let (n_rows, rows) = (rows_shape.num_elements(), rows.coordinates);
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
    Ok([out_at, out, empty, places])
}

/// Writes the gradients of the values and of the default value, inputs 1 and 3, with the op `grad_op`.
///
/// # Errors
/// Those of adding nodes to the graph.
pub fn gradient(g: &mut GradientCtx, grad_op: &str) -> Result<()> {
    let results = g.dy(1).node(grad_op, &[g.y(3), g.dy(1)], &[]);
    for (input, result) in [1, 3].into_iter().zip(results) {
        g.set(input, result)?;
    }
    Ok(())
}

/// The op `name` of the gradients.
pub const fn grad_op(name: &'static str) -> Op {
    Op::new(
        name,
        "reverse_index_map: int64, grad_values: T -> d_values: T, d_default_value: T | \
         T: type",
    )
    .shape(grad_shape)
    .kernel(grad)
}

fn grad_shape(ctx: &mut ShapeCtx) -> Result<()> {
    let map = ctx.with_rank(0, 1)?;
    ctx.with_rank(1, 1)?;
    ctx.set(0, map);
    ctx.set(1, PartialShape::scalar());
    Ok(())
}

/// Builds the kernel of the gradients: those of default values are summed up.
/// The kernel fails with INVALID_ARGUMENT if a place is out of range.
fn grad(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    let dtype = build.output(0)?;
    Ok(Box::new(move |ctx: &mut KernelCtx| {
        let is_half = matches!(dtype, DType::Half | DType::Bfloat16);
        let grads = match is_half {
            true => widened(ctx.par(), ctx.input(1)?)?,
            false => ctx.input(1)?.clone(),
        };
        let results = dispatch!(grads.dtype(), T in
            [f32, f64, i8, i16, i32, i64, u8, u16, u32, u64, Complex32, Complex64]
            => typed_grad::<T>(ctx, &grads)?,
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

fn typed_grad<T: Num>(ctx: &KernelCtx, grads: &Tensor) -> Result<[Tensor; 2]> {
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
