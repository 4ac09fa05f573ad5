//! RaggedGather (TensorFlow: `core/kernels/ragged_gather_op.cc`).

use ferroflow_base::{Result, Status, invalid_argument, resource_exhausted};
use ferroflow_functors::gradients::part;
use ferroflow_functors::indices::{Ints, int_vector, ints};
use ferroflow_opdef::{Gradient, GradientCtx, IndexedSlices, KernelBuild, KernelCtx, Op, OpKernel};
use ferroflow_tensor::rows::prepended;
use ferroflow_tensor::{DType, Item, PartialShape, Shape, dispatch_items, memory_limit};
use std::ops::Range;

/// The ops of this file.
pub(crate) const OPS: &[Op] = &[Op::new(
    "RaggedGather",
    "params_nested_splits: PARAMS_RAGGED_RANK*Tsplits, params_dense_values: Tvalues, \
     indices: Tindices -> output_nested_splits: OUTPUT_RAGGED_RANK*Tsplits, \
     output_dense_values: Tvalues | Tvalues: type; Tindices: type {int32,int64}; \
     Tsplits: type {int32,int64} = int64; PARAMS_RAGGED_RANK: int >= 1; \
     OUTPUT_RAGGED_RANK: int >= 0",
)
.shape(|ctx| {
    let last = ctx.num_outputs() - 1;
    let n_params = ctx.num_inputs() - 2;
    let values = ctx.with_rank_at_least(n_params, 1)?;
    for i in 0..n_params {
        ctx.with_rank(i, 1)?;
    }
    for i in 0..last {
        ctx.set(i, PartialShape::of_rank(1));
    }
    if let Some([_, row @ ..]) = values.dims() {
        let dims = std::iter::once(None).chain(row.iter().copied());
        ctx.set(last, PartialShape::of(dims));
    }
    Ok(())
})
.kernel(kernel)
.gradient(gradient)];

fn kernel(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    let n_params = build.inputs.len().saturating_sub(2);
    let values = build.input(n_params)?;
    let splits = build.attrs.dtype("Tsplits")?;
    Ok(
        dispatch_items!(values, T => Box::new(move |ctx: &mut KernelCtx| {
            gather::<T>(ctx, n_params, splits)
        })),
    )
}

fn past_values() -> Status {
    invalid_argument!("Ragged splits must not point past values")
}

/// Checks the splits of all dimensions.
fn checked_splits(ctx: &KernelCtx, n_params: usize, n_values: usize) -> Result<Vec<Ints>> {
    let all = (0..n_params).map(|i| ints(ctx.input(i)?));
    let all: Vec<Ints> = all.collect::<Result<_>>()?;
    for (d, splits) in all.iter().enumerate() {
        let limit = all.get(d + 1).map_or(n_values, |below| below.len());
        let (Some(&first), Some(&last)) = (splits.first(), splits.last()) else {
            return Err(invalid_argument!("Ragged splits may not be empty"));
        };
        if first < 0 {
            return Err(invalid_argument!("Ragged splits must be non-negative"));
        }
        if last > limit as i64 {
            return Err(past_values());
        }
        if splits.windows(2).any(|pair| pair[0] > pair[1]) {
            return Err(invalid_argument!("Ragged splits must be sorted"));
        }
    }
    Ok(all)
}

/// The position of element `i` as TensorFlow writes it: `[1,2]`, or nothing for a scalar.
fn position(shape: &Shape, i: usize) -> String {
    let (mut rest, mut at) = (i, Vec::new());
    for &size in shape.iter().rev() {
        at.insert(0, (rest % size.max(1)).to_string());
        rest /= size.max(1);
    }
    match at.is_empty() {
        true => String::new(),
        false => format!("[{}]", at.join(",")),
    }
}

fn gather<T: Item>(ctx: &mut KernelCtx, n_params: usize, dtype: DType) -> Result<()> {
    let (values, indices) = (ctx.input(n_params)?, ctx.input(n_params + 1)?);
    let Some(&n_rows) = ctx.shape(0)?.first() else {
        return Err(invalid_argument!("Split tensors must not be scalars"));
    };
    let n_rows = n_rows as i64 - 1;
    let picked = ints(indices)?;
    for (i, &index) in picked.iter().enumerate() {
        if index < 0 || index >= n_rows {
            return Err(invalid_argument!(
                "indices{} = {index} is not in [0, {n_rows})",
                position(indices.shape(), i)
            ));
        }
    }
    let Some((&n_values, row)) = values.shape().split_first() else {
        return Err(invalid_argument!("params.rank must be nonzero"));
    };
    let params = checked_splits(ctx, n_params, n_values)?;
    let n_out = (indices.shape().rank() + n_params).saturating_sub(1);
    if n_out + 1 != ctx.num_outputs() {
        return Err(invalid_argument!(
            "OUTPUT_RAGGED_RANK must be {n_out} for indices of shape {}",
            indices.shape()
        ));
    }
    let Picked { splits, pieces } = pick(&params, indices.shape(), &picked)?;
    let row = Shape::from(row);
    let (size, total) = (row.num_elements(), pieces.iter().map(Range::len).sum());
    let mut out = ctx.alloc(values.dtype(), prepended(total, &row)?)?;
    let (from, mut to) = (values.items::<T>()?, out.items_mut::<T>()?);
    for piece in pieces {
        let (head, rest) = std::mem::take(&mut to).split_at_mut(piece.len() * size);
        head.clone_from_slice(&from[piece.start * size..piece.end * size]);
        to = rest;
    }
    for (i, splits) in splits.into_iter().enumerate() {
        ctx.set_output(i, int_vector(dtype, splits.into_iter())?)?;
    }
    ctx.set_output(n_out, out)
}

/// What is gathered.
struct Picked {
    /// The splits of the result.
    splits: Vec<Vec<i64>>,
    /// The ranges of values that it has.
    pieces: Vec<Range<usize>>,
}

/// Picks rows of the parameters by indices of that shape.
fn pick(params: &[Ints], shape: &Shape, picked: &[i64]) -> Result<Picked> {
    let mut out: Vec<Vec<i64>> = Vec::new();
    let mut n = 1;
    for pair in shape.windows(2) {
        n *= pair[0];
        out.push((0..=n).map(|i| (i * pair[1]) as i64).collect());
    }
    let first = out.len();
    // The rows that a scalar picks are the outermost dimension, which needs no splits.
    let is_scalar = shape.is_scalar();
    out.resize(first + params.len() - usize::from(is_scalar), vec![0]);
    let (mut pieces, mut n_splits) = (Vec::new(), 0usize);
    for &index in picked {
        let mut range = index as usize..index as usize + 1;
        for (d, splits) in params.iter().enumerate() {
            let part = splits.get(range.start..=range.end);
            let part = part.ok_or_else(past_values)?;
            let (from, to) = match part {
                [] => return Err(past_values()),
                [only] => (*only, *only),
                [from, .., to] => (*from, *to),
            };
            let at = (first + d).checked_sub(usize::from(is_scalar));
            if let Some(out) = at.and_then(|at| out.get_mut(at)) {
                n_splits += part.len();
                if n_splits > memory_limit() / size_of::<i64>() {
                    return Err(resource_exhausted!(
                        "OOM when gathering {n_splits} ragged splits"
                    ));
                }
                let base = out.last().copied().unwrap_or(0);
                out.extend(part.iter().skip(1).map(|split| base + split - from));
            }
            range = from as usize..to as usize;
        }
        if !range.is_empty() {
            pieces.push(range);
        }
    }
    Ok(Picked {
        splits: out,
        pieces,
    })
}

/// The gradient of the values: slices for those that were gathered.
fn gradient(g: &mut GradientCtx) -> Result<()> {
    let n_params = g.num_inputs() - 2;
    let (values, indices) = (g.x(n_params), g.x(n_params + 1));
    let mut splits = g.x(0);
    for i in 1..n_params {
        splits = g.x(i).op("GatherV2", &[splits, splits.int(0)]);
    }
    let flat = indices.reshape(indices.ints([-1]));
    let zero = splits.int(0);
    let starts = splits.op("GatherV2", &[flat, zero]);
    let ends = part(splits, Some(splits.int(1)), None);
    let limits = ends.op("GatherV2", &[flat, zero]);
    let attrs = [("Tsplits", splits.dtype().into())];
    let range = splits.node("RaggedRange", &[starts, limits, splits.number(1.0)], &attrs);
    let picked = range.get(1).copied().unwrap_or(splits.nothing());
    let gradient = Gradient::Slices(IndexedSlices {
        values: g.dy(g.num_outputs() - 1),
        indices: picked,
        dense_shape: values.shape_of(),
    });
    g.set_gradient(n_params, gradient)
}
