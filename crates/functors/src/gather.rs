//! Rows of a tensor by index, for the Gather ops and for reads of rows of resource variables
//! (TensorFlow: `core/kernels/gather_functor.h`).

use crate::indices::{self, Index, axis_in, dispatch_index, shape_of};
use crate::strided::{MIN_BLOCK, par_rows, unravel};
use ferroflow_base::{Result, Status, invalid_argument};
use ferroflow_opdef::{Attrs, KernelCtx, ShapeCtx};
use ferroflow_sync::{Parallelism, par_chunks_mut};
use ferroflow_tensor::{DType, Item, PartialShape, Shape, Tensor, dispatch_items};
use std::sync::atomic::{AtomicUsize, Ordering};

/// Returns `[1,0]` for a position in a tensor, and nothing for that in a scalar.
pub fn place(position: usize, dims: &[usize]) -> String {
    let mut coords = vec![0; dims.len()];
    unravel(position, dims, &mut coords);
    match dims {
        [] => String::new(),
        _ => indices::list(coords),
    }
}

/// Returns the error of an index out of range.
#[cold]
pub fn bad_index(position: usize, dims: &[usize], value: i64, limit: usize) -> Status {
    let at = place(position, dims);
    invalid_argument!("indices{at} = {value} is not in [0, {limit})")
}

/// The loops that copy rows along an axis, for two dtypes: only they are generic.
#[derive(Clone, Copy)]
pub struct GatherRows {
    check: fn(&Rows, &Tensor) -> Result<()>,
    copy: fn(&Rows, &dyn Parallelism, &Tensor, &Tensor, &mut Tensor) -> Result<()>,
}

impl GatherRows {
    /// Returns the loops for parameters and indices of these dtypes.
    ///
    /// # Errors
    /// INVALID_ARGUMENT if the second is not a type of indices.
    pub fn new(params: DType, indices: DType) -> Result<Self> {
        dispatch_index!(indices, I => Ok(dispatch_items!(params, T => GatherRows {
            check: Rows::check::<I>,
            copy: Rows::copy::<T, I>,
        })))
    }
}

/// Returns the rows of `params` along `axis` at `indices`.
///
/// # Errors
/// INVALID_ARGUMENT if an index is out of range or the result is too large; RESOURCE_EXHAUSTED
/// if it does not fit into memory.
pub fn gather_rows(
    loops: GatherRows,
    ctx: &KernelCtx,
    params: &Tensor,
    indices: &Tensor,
    axis: i64,
    batch_dims: i64,
) -> Result<Tensor> {
    let (shape, index_shape) = (params.shape(), indices.shape());
    let (at, n_batch) = gather_dims(axis, batch_dims, shape.rank(), index_shape.rank())?;
    if let Some(i) = (0..n_batch).find(|&i| shape[i] != index_shape[i]) {
        return Err(invalid_argument!(
            "params.shape[{i}]: {} should be equal to indices.shape[{i}]: {}",
            shape[i],
            index_shape[i]
        ));
    }
    let rows = Rows {
        limit: shape[at],
        batch: shape[..n_batch].iter().product(),
        outer: shape[n_batch..at].iter().product(),
        inner: shape[at + 1..].iter().product(),
        n: index_shape[n_batch..].iter().product(),
    };
    (loops.check)(&rows, indices)?;
    let dims = shape[..at]
        .iter()
        .chain(&index_shape[n_batch..])
        .chain(&shape[at + 1..]);
    let mut out = ctx.alloc(params.dtype(), shape_of(dims.copied())?)?;
    (loops.copy)(&rows, ctx.par(), params, indices, &mut out)?;
    Ok(out)
}

/// The sizes of a gather: `params` are `[batch, outer, limit, inner]`, the indices `[batch, n]`.
struct Rows {
    limit: usize,
    batch: usize,
    outer: usize,
    inner: usize,
    n: usize,
}

impl Rows {
    fn check<I: Index>(&self, indices: &Tensor) -> Result<()> {
        let picked = indices.slice::<I>()?;
        let inside = |i: &I| usize::try_from(i.to_i64()).is_ok_and(|i| i < self.limit);
        match picked.iter().position(|i| !inside(i)) {
            Some(bad) => Err(bad_index(
                bad,
                indices.shape(),
                picked[bad].to_i64(),
                self.limit,
            )),
            None => Ok(()),
        }
    }

    fn copy<T: Item, I: Index>(
        &self,
        par: &dyn Parallelism,
        params: &Tensor,
        indices: &Tensor,
        out: &mut Tensor,
    ) -> Result<()> {
        let (from, picked) = (params.items::<T>()?, indices.slice::<I>()?);
        let to = out.items_mut::<T>()?;
        let &Rows {
            limit,
            batch,
            outer,
            inner,
            n,
        } = self;
        if to.is_empty() {
        } else if batch * outer == 1 {
            let rows = (MIN_BLOCK / inner).max(1);
            par_chunks_mut(par, to, rows * inner, 1, &|i, chunk| {
                pick(from, &picked[i * rows..], inner, chunk);
            });
        } else {
            par_rows(par, to, n * inner, &|row, to| {
                let b = row / outer;
                let from = &from[row * limit * inner..];
                pick(from, &picked[b * n..(b + 1) * n], inner, to);
            });
        }
        Ok(())
    }
}

/// Copies the rows of `inner` elements of a table that `picked` names.
fn pick<T: Item, I: Index>(table: &[T], picked: &[I], inner: usize, to: &mut [T]) {
    if inner == 1 {
        for (o, i) in to.iter_mut().zip(picked) {
            *o = table[i.to_i64() as usize].clone();
        }
    } else {
        for (o, i) in to.chunks_mut(inner).zip(picked) {
            o.clone_from_slice(&table[i.to_i64() as usize * inner..][..inner]);
        }
    }
}

/// Returns the shape of the rows of `params` that input 1 selects.
///
/// # Errors
/// INVALID_ARGUMENT if the shapes, the axis or the batch dimensions do not fit.
pub fn gather_shape_of(
    ctx: &mut ShapeCtx,
    params: &PartialShape,
    axis: Option<i64>,
    batch_dims: i64,
) -> Result<()> {
    let indices = ctx.input(1);
    let (Some(rank), Some(index_dims)) = (params.rank(), indices.dims()) else {
        return Ok(());
    };
    let Some(axis) = axis else {
        let batch = axis_in(
            batch_dims,
            index_dims.len() + 1 - usize::from(batch_dims < 0),
        );
        if let Some(batch) = batch {
            ctx.set(
                0,
                PartialShape::of_rank(rank + index_dims.len() - 1 - batch),
            );
        }
        return Ok(());
    };
    let (at, batch) = gather_dims(axis, batch_dims, rank, index_dims.len())?;
    let params = params.dims().unwrap_or(&[]);
    let shape = params[..at]
        .iter()
        .chain(&index_dims[batch..])
        .chain(&params[at + 1..]);
    ctx.set(0, PartialShape::of(shape.copied()));
    Ok(())
}

/// Returns whether an out-of-range index is ignored.
///
/// # Errors
/// INVALID_ARGUMENT for an unknown policy.
pub fn ignores_bad_indices(attrs: &Attrs) -> Result<bool> {
    match attrs.str("bad_indices_policy")? {
        "" | "DEFAULT" | "ERROR" => Ok(false),
        "IGNORE" => Ok(true),
        other => Err(invalid_argument!(
            "Unknown bad indices handling attribute: {other}"
        )),
    }
}

/// Returns the position of a row: the innermost dimension of an index tensor holds coordinates of
/// the first dimensions of `dims`. `None` if a coordinate is out of range.
pub fn row_position<I: Index>(coords: &[I], dims: &[usize]) -> Option<usize> {
    coords.iter().zip(dims).try_fold(0usize, |at, (c, &d)| {
        let c = usize::try_from(c.to_i64()).ok().filter(|&c| c < d)?;
        Some(at * d + c)
    })
}

#[cold]
fn bad_coords(
    node: &str,
    i: usize,
    coords: &[i64],
    indices: &Shape,
    params: &Shape,
) -> ferroflow_base::Status {
    let at = place(i, &indices[..indices.rank() - 1]);
    let coords = indices::coordinates(coords.iter().copied());
    invalid_argument!(
        "indices{at} = {coords} does not index into param shape {params}, node name: {node}"
    )
}

fn too_deep(depth: usize, rank: usize) -> ferroflow_base::Status {
    invalid_argument!(
        "index innermost dimension length must be <= params rank; saw: {depth} vs. {rank}"
    )
}

/// The loop that copies rows at coordinates, for two dtypes.
#[derive(Clone, Copy)]
pub struct GatherNd(fn(&dyn Parallelism, &Tensor, &Tensor, &mut Tensor) -> Result<Option<usize>>);

impl GatherNd {
    /// Returns the loop for parameters and indices of these dtypes.
    ///
    /// # Errors
    /// INVALID_ARGUMENT if the second is not a type of indices.
    pub fn new(params: DType, indices: DType) -> Result<Self> {
        dispatch_index!(indices, I => Ok(dispatch_items!(params, T => GatherNd(copy_at::<T, I>))))
    }
}

/// Returns the rows of `params` at the leading coordinates `indices`.
///
/// # Errors
/// INVALID_ARGUMENT if an index is out of range or the shapes do not fit; RESOURCE_EXHAUSTED if
/// the result does not fit into memory.
pub fn gather_nd_rows(
    loops: GatherNd,
    ctx: &KernelCtx,
    params: &Tensor,
    indices: &Tensor,
    ignore: bool,
) -> Result<Tensor> {
    let (shape, index_shape) = (params.shape(), indices.shape());
    if shape.rank() < 1 {
        return Err(invalid_argument!("params must be at least a vector"));
    }
    let Some((&depth, outer)) = index_shape.split_last() else {
        return Err(invalid_argument!("indices must be at least a vector"));
    };
    if depth > shape.rank() {
        return Err(too_deep(depth, shape.rank()));
    }
    let out_shape = shape_of(outer.iter().chain(&shape[depth..]).copied())?;
    if params.num_elements() == 0 && outer.iter().all(|&d| d > 0) {
        return Err(invalid_argument!(
            "Requested more than 0 entries, but params is empty.  Params shape: {shape}"
        ));
    }
    let mut out = ctx.alloc(params.dtype(), out_shape)?;
    match (loops.0)(ctx.par(), params, indices, &mut out)? {
        Some(i) if !ignore => {
            let all = indices::ints(indices)?;
            let coords = &all[i * depth..(i + 1) * depth];
            Err(bad_coords(ctx.node(), i, coords, index_shape, shape))
        }
        _ => Ok(out),
    }
}

/// Rows of `depth` coordinates of the first of `dims`.
struct Coordinates<'a, I> {
    all: &'a [I],
    depth: usize,
    dims: &'a [usize],
}

impl<I: Index> Coordinates<'_, I> {
    #[inline]
    fn position(&self, i: usize) -> Option<usize> {
        match self.depth {
            1 => usize::try_from(self.all[i].to_i64())
                .ok()
                .filter(|&c| c < self.dims[0]),
            depth => row_position(&self.all[i * depth..(i + 1) * depth], self.dims),
        }
    }
}

/// Copies the rows at some coordinates; fills those out of range with zeros, and returns
/// the last of them, which TensorFlow's refusal names.
fn copy_at<T: Item, I: Index>(
    par: &dyn Parallelism,
    params: &Tensor,
    indices: &Tensor,
    out: &mut Tensor,
) -> Result<Option<usize>> {
    let depth = indices.shape().last().copied().unwrap_or(0);
    let inner: usize = params.shape()[depth..].iter().product();
    let coords = Coordinates {
        all: indices.slice::<I>()?,
        depth,
        dims: params.shape(),
    };
    if inner == 0 {
        // Parameters without elements have no rows to ask for.
        return Ok(None);
    }
    let (from, to) = (params.items::<T>()?, out.items_mut::<T>()?);
    let end_of_bad = AtomicUsize::new(0);
    let rows = (MIN_BLOCK / inner).max(1);
    par_chunks_mut(par, to, rows * inner, 1, &|block, to| {
        for (i, to) in (block * rows..).zip(to.chunks_exact_mut(inner)) {
            match coords.position(i) {
                Some(p) => to.clone_from_slice(&from[p * inner..(p + 1) * inner]),
                None => {
                    to.fill(T::default());
                    end_of_bad.fetch_max(i + 1, Ordering::Relaxed);
                }
            }
        }
    });
    Ok(end_of_bad.into_inner().checked_sub(1))
}

/// Returns the shape of coordinates in input 1 looked up in `params`.
///
/// # Errors
/// INVALID_ARGUMENT if the shapes do not fit.
pub fn gather_nd_shape_of(ctx: &mut ShapeCtx, params: &PartialShape) -> Result<()> {
    let indices = ctx.with_rank_at_least(1, 1)?;
    let (Some(dims), Some(index_dims)) = (params.dims(), indices.dims()) else {
        return Ok(());
    };
    let Some((Some(depth), outer)) = index_dims.split_last().map(|(d, o)| (*d, o)) else {
        return Ok(());
    };
    if depth > dims.len() {
        return Err(too_deep(depth, dims.len()));
    }
    ctx.set(
        0,
        PartialShape::of(outer.iter().chain(&dims[depth..]).copied()),
    );
    Ok(())
}

/// Returns the axis and the number of leading batch dimensions, checked.
fn gather_dims(
    axis: i64,
    batch_dims: i64,
    rank: usize,
    indices_rank: usize,
) -> Result<(usize, usize)> {
    if rank == 0 {
        return Err(invalid_argument!("params must be at least 1 dimensional"));
    }
    let Some(at) = axis_in(axis, rank) else {
        let least = if axis < 0 {
            axis.unsigned_abs()
        } else {
            axis as u64 + 1
        };
        return Err(invalid_argument!(
            "Shape must be at least rank {least} but is rank {rank}"
        ));
    };
    let Some(batch) = axis_in(batch_dims, indices_rank + 1 - usize::from(batch_dims < 0)) else {
        return Err(invalid_argument!(
            "Expected batch_dims in the range [{}, {indices_rank}], but got {batch_dims}",
            -(indices_rank as i64)
        ));
    };
    if batch >= rank {
        return Err(invalid_argument!(
            "batch_dims ({batch}) must be less than rank(params) ({rank})."
        ));
    }
    if at < batch {
        return Err(invalid_argument!(
            "batch_dims ({batch}) must be less than or equal to axis ({at})."
        ));
    }
    Ok((at, batch))
}
