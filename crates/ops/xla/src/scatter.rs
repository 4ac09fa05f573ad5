//! XlaScatter: combines windows with a tensor at places that another one holds; windows that are not all inside are left
//! out (TensorFlow: `compiler/tf2xla/kernels/gather_scatter_ops.cc`).

use crate::function::{Combined, Function, dispatch_combined};
use crate::windows::{Resolved, Roles, Starts};
use ferroflow_base::{Result, invalid_argument};
use ferroflow_functors::{indices, shapes};
use ferroflow_opdef::{KernelBuild, KernelCtx, Op, OpKernel};
use ferroflow_tensor::{Shape, Tensor};
use prost::Message;

/// The ops of this file.
pub(crate) const OPS: &[Op] = &[Op::new(
    "XlaScatter",
    "operand: T, scatter_indices: Tindices, updates: T -> output: T | update_computation: func; dimension_numbers: \
     string; indices_are_sorted: bool; T: type {numbertype,bool}; Tindices: type {int32,int64}",
)
.shape(shapes::unchanged)
.kernel(scatter)];

/// The roles of dimensions (XLA: `xla_data.proto`).
#[derive(Clone, PartialEq, Message)]
struct ScatterDimensionNumbers {
    #[prost(int64, repeated, tag = "1")]
    update_window_dims: Vec<i64>,
    #[prost(int64, repeated, tag = "2")]
    inserted_window_dims: Vec<i64>,
    #[prost(int64, repeated, tag = "3")]
    scatter_dims_to_operand_dims: Vec<i64>,
    #[prost(int64, tag = "4")]
    index_vector_dim: i64,
    #[prost(int64, repeated, tag = "5")]
    input_batching_dims: Vec<i64>,
    #[prost(int64, repeated, tag = "6")]
    scatter_indices_batching_dims: Vec<i64>,
}

fn scatter(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    let bytes: &[u8] = build.attrs.bytes("dimension_numbers")?;
    let numbers = ScatterDimensionNumbers::decode(bytes)
        .map_err(|_| invalid_argument!("Error parsing scatter dimension numbers"))?;
    let name = build.attrs.func("update_computation")?.name.clone();
    let dtype = build.input(0)?;
    let roles = Roles {
        window_dims: numbers.update_window_dims,
        dropped_dims: numbers.inserted_window_dims,
        index_map: numbers.scatter_dims_to_operand_dims,
        index_vector_dim: numbers.index_vector_dim,
        operand_batch: numbers.input_batching_dims,
        indices_batch: numbers.scatter_indices_batching_dims,
    };
    dispatch_combined!(dtype, T => Ok(Box::new(move |ctx: &mut KernelCtx| {
        let function = Function::of(ctx, &name)?;
        let resolved = roles.resolve("Scatter", ctx.shape(0)?, ctx.shape(1)?)?;
        let sizes = window_sizes(&resolved, ctx.shape(0)?, ctx.shape(2)?)?;
        let mut out = ctx.take_input(0)?;
        if ctx.input(2)?.num_elements() > 0 {
            combine::<T>(ctx, &resolved, &sizes, &function, &mut out)?;
        }
        ctx.set_output(0, out)
    })), else Err(build.unsupported(dtype)))
}

/// Returns the sizes of the windows of the updates in each of the operand's dimensions.
fn window_sizes(resolved: &Resolved, operand: &Shape, updates: &Shape) -> Result<Vec<usize>> {
    let mut sizes = vec![1; operand.rank()];
    let rank = resolved.outer_shape(&sizes)?.rank();
    if updates.rank() != rank {
        return Err(invalid_argument!(
            "Updates tensor must be of rank {rank}; got {}.",
            updates.rank()
        ));
    }
    for (&outer, &dim) in resolved.window_outer.iter().zip(&resolved.window_operand) {
        sizes[dim] = updates[outer];
        if sizes[dim] > operand[dim] {
            return Err(invalid_argument!(
                "Bounds of the window dimensions of updates must not exceed the bounds of the corresponding dimensions of \
                 operand. For dimension {outer}, updates bound is {}, operand bound is {}.",
                sizes[dim],
                operand[dim]
            ));
        }
    }
    let expected = resolved.outer_shape(&sizes)?;
    match expected == *updates {
        true => Ok(sizes),
        false => Err(invalid_argument!(
            "Bounds of the scatter dimensions of updates must be same as the bounds of the corresponding dimensions of \
             scatter indices. The updates are {updates}, not {expected}."
        )),
    }
}

/// Elements from which a row is worth a call.
const ROW: usize = 8;

fn combine<T: Combined>(
    ctx: &KernelCtx,
    resolved: &Resolved,
    sizes: &[usize],
    function: &Function,
    out: &mut Tensor,
) -> Result<()> {
    let (at, updates) = (indices::ints(ctx.input(1)?)?, ctx.input(2)?);
    let (shape, strides) = (out.shape().clone(), out.shape().strides());
    let outer_strides = updates.shape().strides();
    let runs = resolved.runs(sizes, &strides, &outer_strides);
    let (updates, out) = (updates.slice::<T>()?, out.slice_mut::<T>()?);
    let combine = function.combine::<T>();
    // A dropped dimension may have size 0.
    if (0..shape.rank()).any(|i| shape[i] < sizes[i]) {
        return Ok(());
    }
    let starts = Starts::new(resolved, &at, &outer_strides, &shape, sizes);
    let rows = function.only_op().and_then(T::known_rows);
    if let Some(rows) = rows.filter(|_| runs.len >= ROW) {
        for (outer, start) in (0..resolved.n_windows()).filter_map(|w| starts.inside(w)) {
            for &(x, y) in &runs.starts {
                rows(
                    &mut out[start + x..][..runs.len],
                    &updates[outer + y..][..runs.len],
                );
            }
        }
        return Ok(());
    }
    if let (Some(known), 1, [_]) = (combine.known(), runs.len, &runs.starts[..]) {
        for (outer, start) in (0..resolved.n_windows()).filter_map(|w| starts.inside(w)) {
            out[start] = known(out[start], updates[outer]);
        }
        return Ok(());
    }
    for (outer, start) in (0..resolved.n_windows()).filter_map(|w| starts.inside(w)) {
        for &(x, y) in &runs.starts {
            let to = &mut out[start + x..][..runs.len];
            for (to, update) in to.iter_mut().zip(&updates[outer + y..]) {
                *to = combine.apply(*to, *update)?;
            }
        }
    }
    Ok(())
}
