//! XlaGather: windows of a tensor at places that another one holds, moved inside where they are not (TensorFlow:
//! `compiler/tf2xla/kernels/gather_scatter_ops.cc`).

use crate::windows::{Resolved, Roles, Starts};
use ferroflow_base::{Result, invalid_argument};
use ferroflow_functors::indices::{self, constant};
use ferroflow_functors::strided::par_rows;
use ferroflow_opdef::{Attrs, KernelBuild, KernelCtx, Op, OpKernel, ShapeCtx};
use ferroflow_tensor::{Item, Shape, Tensor, dispatch_items};
use prost::Message;

/// The ops of this file.
pub(crate) const OPS: &[Op] = &[Op::new(
    "XlaGather",
    "operand: T, start_indices: Tindices, slice_sizes: Tindices -> output: T | dimension_numbers: string; \
     indices_are_sorted: bool; T: type {numbertype,bool}; Tindices: type {int32,int64}",
)
.shape(gather_shape)
.kernel(gather)];

/// The roles of dimensions (XLA: `xla_data.proto`).
#[derive(Clone, PartialEq, Message)]
struct GatherDimensionNumbers {
    #[prost(int64, repeated, tag = "1")]
    offset_dims: Vec<i64>,
    #[prost(int64, repeated, tag = "2")]
    collapsed_slice_dims: Vec<i64>,
    #[prost(int64, repeated, tag = "3")]
    start_index_map: Vec<i64>,
    #[prost(int64, tag = "4")]
    index_vector_dim: i64,
    #[prost(int64, repeated, tag = "5")]
    operand_batching_dims: Vec<i64>,
    #[prost(int64, repeated, tag = "6")]
    start_indices_batching_dims: Vec<i64>,
}

fn roles(attrs: &Attrs) -> Result<Roles> {
    let bytes: &[u8] = attrs.bytes("dimension_numbers")?;
    let numbers = GatherDimensionNumbers::decode(bytes)
        .map_err(|_| invalid_argument!("Failed to parse dimension_numbers."))?;
    Ok(Roles {
        window_dims: numbers.offset_dims,
        dropped_dims: numbers.collapsed_slice_dims,
        index_map: numbers.start_index_map,
        index_vector_dim: numbers.index_vector_dim,
        operand_batch: numbers.operand_batching_dims,
        indices_batch: numbers.start_indices_batching_dims,
    })
}

/// Returns the sizes of windows, checked.
fn window_sizes(roles: &Roles, operand: &Shape, sizes: &[i64]) -> Result<Vec<usize>> {
    if sizes.len() != operand.rank() {
        return Err(invalid_argument!(
            "Gather op must have one slice size for every input dimension; got: len(slice_sizes)={}, input_shape.rank={}.",
            sizes.len(),
            operand.rank()
        ));
    }
    let whole = |(i, &size): (usize, &i64)| match usize::try_from(size) {
        Ok(size) if size <= operand[i] => Ok(size),
        _ => Err(invalid_argument!(
            "Slice size at index {i} in gather op is out of range, must be within [0, {}), got {size}.",
            operand[i] + 1
        )),
    };
    let sizes: Vec<usize> = sizes.iter().enumerate().map(whole).collect::<Result<_>>()?;
    let groups = [
        (
            &roles.dropped_dims,
            "Gather op can only collapse slice dims with",
        ),
        (
            &roles.operand_batch,
            "Gather op can only have operand_batching_dims with",
        ),
    ];
    for (dims, problem) in groups {
        for (i, &dim) in dims.iter().enumerate() {
            let size = sizes[dim as usize];
            if size > 1 {
                return Err(invalid_argument!(
                    "{problem} bound 1 or 0, but bound is {size} for index {dim} at position {i}."
                ));
            }
        }
    }
    Ok(sizes)
}

fn gather_shape(ctx: &mut ShapeCtx) -> Result<()> {
    let roles = roles(ctx.attrs())?;
    let (operand, indices) = (ctx.input(0).to_full(), ctx.input(1).to_full());
    let (Some(operand), Some(indices), Some(sizes)) = (operand, indices, constant(ctx, 2)) else {
        return Ok(());
    };
    let resolved = roles.resolve("Gather", &operand, &indices)?;
    let sizes = window_sizes(&roles, &operand, &sizes)?;
    ctx.set(0, (&resolved.outer_shape(&sizes)?).into());
    Ok(())
}

fn gather(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    let roles = roles(build.attrs)?;
    Ok(Box::new(move |ctx: &mut KernelCtx| {
        let (operand, at) = (ctx.input(0)?, ctx.input(1)?);
        let resolved = roles.resolve("Gather", operand.shape(), at.shape())?;
        let sizes = window_sizes(&roles, operand.shape(), &indices::ints(ctx.input(2)?)?)?;
        let shape = resolved.outer_shape(&sizes)?;
        if sizes.contains(&0) || shape.num_elements() == 0 {
            return ctx.set_output(0, Tensor::zeros(operand.dtype(), shape)?);
        }
        let mut out = ctx.alloc(operand.dtype(), shape)?;
        let at = indices::ints(at)?;
        dispatch_items!(out.dtype(), T => copy::<T>(ctx, &resolved, &sizes, &at, &mut out)?);
        ctx.set_output(0, out)
    }))
}

fn copy<T: Item>(
    ctx: &KernelCtx,
    resolved: &Resolved,
    sizes: &[usize],
    at: &[i64],
    out: &mut Tensor,
) -> Result<()> {
    let operand = ctx.input(0)?;
    let (shape, strides) = (operand.shape(), operand.shape().strides());
    let outer_strides = out.shape().strides();
    let from = operand.items::<T>()?;
    let runs = resolved.runs(sizes, &strides, &outer_strides);
    let starts = Starts::new(resolved, at, &outer_strides, shape, sizes);
    let place = |window: usize| starts.moved_inside(window);
    let write = |out: &mut [T], outer: usize, start: usize| {
        for &(x, y) in &runs.starts {
            let from = &from[start + x..][..runs.len];
            out[outer + y..][..runs.len].clone_from_slice(from);
        }
    };
    let n = resolved.n_windows();
    if resolved.are_rows() {
        let row = out.num_elements() / n;
        par_rows(ctx.par(), out.items_mut::<T>()?, row, &|i, row| {
            write(row, 0, place(i).1);
        });
        return Ok(());
    }
    let out = out.items_mut::<T>()?;
    for window in 0..n {
        let (outer, start) = place(window);
        write(out, outer, start);
    }
    Ok(())
}
