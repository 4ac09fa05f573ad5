//! ReduceJoin and UnsortedSegmentJoin.

use crate::packer::strings_of;
use ferroflow_base::{Result, invalid_argument, out_of_range};
use ferroflow_functors::indices::{axis_in, constant_int, int, ints, shape_of};
use ferroflow_functors::shapes;
use ferroflow_opdef::{KernelCtx, Op};
use ferroflow_tensor::{Bytes, DType, PartialShape, Shape, Tensor};

/// The ops of this file.
pub(crate) const OPS: &[Op] = &[
    Op::new(
        "ReduceJoin",
        "inputs: string, reduction_indices: int32 -> output: string | keep_dims: bool = \
         false; separator: string = ''",
    )
    .shape(shapes::reduced)
    .kernel(|build| {
        let keep_dims = build.attrs.bool("keep_dims")?;
        let separator = build.attrs.bytes("separator")?.clone();
        Ok(Box::new(move |ctx: &mut KernelCtx| {
            reduce_join(ctx, keep_dims, &separator)
        }))
    })
    .not_differentiable(),
    Op::new(
        "UnsortedSegmentJoin",
        "inputs: string, segment_ids: Tindices, num_segments: Tnumsegments -> output: \
         string | separator: string = ''; Tindices: type {int32,int64}; Tnumsegments: \
         type {int32,int64} = int32",
    )
    .shape(|ctx| {
        let segments = constant_int(ctx, 2).and_then(|n| usize::try_from(n).ok());
        let inputs = ctx.input(0);
        if let (Some(dims), Some(rank)) = (inputs.dims(), ctx.input(1).rank()) {
            let rest = dims.get(rank..).unwrap_or_default();
            let dims = std::iter::once(segments).chain(rest.iter().copied());
            ctx.set(0, PartialShape::of(dims));
        }
        Ok(())
    })
    .kernel(|build| {
        let separator = build.attrs.bytes("separator")?;
        // TensorFlow appends it as a C string.
        let end = separator.iter().position(|&b| b == 0);
        let separator = separator.slice(..end.unwrap_or(separator.len()));
        Ok(Box::new(move |ctx: &mut KernelCtx| {
            segment_join(ctx, &separator)
        }))
    }),
];

/// The places of a row-major walk over some dimensions, the last one fastest.
fn places(dims: &[(usize, usize)]) -> Vec<usize> {
    let mut places = vec![0];
    for &(size, stride) in dims {
        let next = |&place: &usize| (0..size).map(move |i| place + i * stride);
        places = places.iter().flat_map(next).collect();
    }
    places
}

fn reduce_join(ctx: &mut KernelCtx, keep_dims: bool, separator: &[u8]) -> Result<()> {
    let input = ctx.input(0)?;
    let (shape, strides) = (input.shape(), input.shape().strides());
    let rank = shape.rank();
    let mut reduced = vec![false; rank];
    let mut over = Vec::new();
    for axis in ints(ctx.input(1)?)? {
        let Some(at) = axis_in(axis, rank) else {
            return Err(out_of_range!(
                "Invalid reduction dimension {axis} for input with {rank} dimension(s)"
            ));
        };
        if std::mem::replace(&mut reduced[at], true) {
            return Err(invalid_argument!("Duplicate reduction dimension {axis}"));
        }
        over.push((shape[at], strides[at]));
    }
    // The first axis is the fastest.
    over.reverse();
    let kept: Vec<(usize, usize)> = (0..rank)
        .filter(|&d| !reduced[d])
        .map(|d| (shape[d], strides[d]))
        .collect();
    let out: Shape = (0..rank)
        .filter(|&d| keep_dims || !reduced[d])
        .map(|d| if reduced[d] { 1 } else { shape[d] })
        .collect();
    let n_out = shape_of(kept.iter().map(|&(size, _)| size))?.num_elements();
    Tensor::zeros(DType::String, Shape::from([n_out]))?;
    let strings = input.texts()?;
    // An empty output has no walk to join over, however long that would be.
    let offsets = match n_out {
        0 => Vec::new(),
        _ => places(&over),
    };
    let starts = if n_out == 0 {
        Vec::new()
    } else {
        places(&kept)
    };
    let joined = strings_of(ctx, &Shape::from([starts.len()]), |i, out| {
        out.write(|out| {
            for (n, offset) in offsets.iter().enumerate() {
                if n > 0 {
                    out.extend_from_slice(separator);
                }
                out.extend_from_slice(strings.get(starts[i] + offset));
            }
        });
    })?;
    ctx.set_output(0, joined.with_shape(out)?)
}

fn segment_join(ctx: &mut KernelCtx, separator: &[u8]) -> Result<()> {
    let (input, ids, n) = (ctx.input(0)?, ctx.input(1)?, ctx.input(2)?);
    if n.num_elements() == 0 {
        return Err(invalid_argument!("Number of segments cannot be empty."));
    }
    let Some(n_segments) = int(n).filter(|_| n.shape().is_scalar()) else {
        return Err(invalid_argument!("Number of segments must be a scalar"));
    };
    let Ok(segments) = usize::try_from(n_segments) else {
        return Err(invalid_argument!(
            "Number of segments must be non-negative but got {n_segments}"
        ));
    };
    let (rank, id_rank) = (input.shape().rank(), ids.shape().rank());
    if id_rank == 0 {
        return Err(invalid_argument!("Segment_id cannot have rank 0"));
    }
    if id_rank > rank {
        return Err(out_of_range!(
            "Invalid segment_id rank {id_rank} for input with {rank} dimension(s)"
        ));
    }
    for (i, (id, dim)) in ids.shape().iter().zip(input.shape().iter()).enumerate() {
        if id != dim {
            return Err(invalid_argument!(
                "Segment dimension is {id} while input dimension is {rank} in rank {i}"
            ));
        }
    }
    let row = &input.shape()[id_rank..];
    let shape = shape_of(std::iter::once(segments).chain(row.iter().copied()))?;
    let width: usize = row.iter().product();
    // Refuses more strings than the machine can hold.
    Tensor::zeros(DType::String, shape.clone())?;
    let mut out = vec![Vec::new(); shape.num_elements()];
    let strings = input.strings()?;
    let ids = ints(ids)?;
    if ids.iter().any(|&id| id < 0 || id >= n_segments) {
        return Err(invalid_argument!(
            "segment_ids are not allowed to exceed num_segments or to have negative values."
        ));
    }
    for (i, &id) in ids.iter().enumerate() {
        for j in 0..width {
            let to: &mut Vec<u8> = &mut out[id as usize * width + j];
            if !to.is_empty() {
                to.extend_from_slice(separator);
            }
            to.extend_from_slice(&strings[i * width + j]);
        }
    }
    let out = out.into_iter().map(Bytes::from).collect();
    ctx.set_output(0, Tensor::from_strings(shape, out)?)
}
