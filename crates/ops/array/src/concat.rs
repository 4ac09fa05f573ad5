//! Joining tensors and taking them apart: Concat, ConcatV2, ConcatOffset, Pack, Split, SplitV,
//! Unpack.

use crate::concat_gradient;
use ferroflow_base::{Result, invalid_argument};
use ferroflow_functors::indices::{self, Ints, axis_in, constant, constant_int, shape_of};
use ferroflow_functors::strided::{Strided, par_copy, par_rows};
use ferroflow_opdef::{Cost, GradientCtx, KernelBuild, KernelCtx, Op, OpKernel, ShapeCtx};
use ferroflow_tensor::{Item, PartialShape, Shape, Tensor, dispatch_items};
use smallvec::SmallVec;
use std::ops::Range;

/// Concat, ConcatV2, ConcatOffset, Pack, Split, SplitV, Unpack.
pub(crate) const OPS: &[Op] = &[
    Op::new("Concat", "concat_dim: int32, values: N*T -> output: T | N: int >= 2; T: type")
        .shape(|ctx| concat_shape(ctx, 0, 1..ctx.num_inputs()))
        .kernel(|b| concat(b, 0, 1..b.inputs.len()))
    .gradient(concat_gradient::concat),
    Op::new(
        "ConcatV2",
        "values: N*T, axis: Tidx -> output: T | N: int >= 2; T: type; Tidx: type {int32,int64} = int32",
    )
    .shape(|ctx| concat_shape(ctx, ctx.num_inputs() - 1, 0..ctx.num_inputs() - 1))
    .kernel(|b| concat(b, b.inputs.len() - 1, 0..b.inputs.len() - 1))
    .gradient(concat_gradient::concat),
    Op::new(
        "ConcatOffset",
        "concat_dim: int32, shape: N*shape_type -> offset: N*shape_type | N: int >= 2; \
         shape_type: type {int32,int64} = int32",
    )
    .shape(|ctx| {
        for i in 0..ctx.num_outputs() {
            // That they are vectors is the kernel's to say.
            ctx.set(i, ctx.input(i + 1));
        }
        Ok(())
    })
    .cost(Cost::Cheap)
    .kernel(concat_offset)
    .not_differentiable(),
    Op::new("Pack", "values: N*T -> output: T | N: int >= 1; T: type; axis: int = 0")
        .shape(pack_shape)
        .kernel(pack)
    .gradient(pack_gradient),
    Op::new("Split", "split_dim: int32, value: T -> output: num_split*T | num_split: int >= 1; T: type")
        .shape(split_shape)
        .kernel(split)
    .gradient(concat_gradient::split),
    Op::new(
        "SplitV",
        "value: T, size_splits: Tlen, split_dim: int32 -> output: num_split*T | \
         num_split: int >= 1; T: type; Tlen: type {int8,int32,int64} = int64",
    )
    .shape(split_v_shape)
    .kernel(split_v)
    .gradient(concat_gradient::split_v),
    Op::new("Unpack", "value: T -> output: num*T | num: int >= 0; T: type; axis: int = 0")
        .shape(unpack_shape)
        .kernel(unpack)
    .gradient(unpack_gradient),
];

/// Writes `outer` rows, each the `lens[i]` next elements of every part in turn.
fn join<T: Item>(ctx: &KernelCtx, parts: &[(&[T], usize)], outer: usize, out: &mut [T]) {
    let row: usize = parts.iter().map(|p| p.1).sum();
    if outer == 1 {
        let mut rest = out;
        for (values, n) in parts {
            let (to, tail) = std::mem::take(&mut rest).split_at_mut(*n);
            par_copy(ctx.par(), values, to);
            rest = tail;
        }
        return;
    }
    par_rows(ctx.par(), out, row, &|i, out| {
        let mut at = 0;
        for (values, n) in parts {
            let from = &values[i * n..(i + 1) * n];
            if *n == 1 {
                out[at] = from[0].clone();
            } else {
                out[at..at + n].clone_from_slice(from);
            }
            at += n;
        }
    });
}

fn concat(build: &KernelBuild, axis: usize, values: Range<usize>) -> Result<Box<dyn OpKernel>> {
    let dtype = build.output(0)?;
    Ok(
        dispatch_items!(dtype, T => Box::new(move |ctx: &mut KernelCtx| {
            concat_items::<T>(ctx, axis, values.clone())
        })),
    )
}

fn concat_items<T: Item>(ctx: &mut KernelCtx, axis: usize, values: Range<usize>) -> Result<()> {
    let Some(dim) = indices::int(ctx.input(axis)?) else {
        return Err(invalid_argument!(
            "ConcatOp : Expected concatenating dimension to be a scalar, got shape {}",
            ctx.shape(axis)?
        ));
    };
    let first = ctx.shape(values.start)?;
    let rank = first.rank();
    let Some(at) = axis_in(dim, rank) else {
        return Err(invalid_argument!(
            "ConcatOp : Expected concatenating dimensions in the range [{}, {rank}), but got {dim}",
            -(rank as i64)
        ));
    };
    let mut dims: Ints = first.iter().map(|&d| d as i64).collect();
    let mut non_empty = None;
    let mut n_non_empty = 0;
    for i in values.clone() {
        let shape = ctx.shape(i)?;
        if shape.rank() != rank {
            return Err(invalid_argument!(
                "ConcatOp : Ranks of all input tensors should match: shape[0] = {first} vs. \
                 shape[{}] = {shape}",
                i - values.start
            ));
        }
        if let Some(j) = (0..rank).find(|&j| j != at && shape[j] != first[j]) {
            return Err(invalid_argument!(
                "ConcatOp : Dimension {j} in both shapes must be equal: shape[0] = {first} vs. \
                 shape[{}] = {shape}",
                i - values.start
            ));
        }
        if i > values.start {
            dims[at] = dims[at].saturating_add(shape[at] as i64);
        }
        if shape.num_elements() > 0 {
            non_empty = Some(i);
            n_non_empty += 1;
        }
    }
    let shape = Shape::checked(&dims)?;
    if let (1, Some(i)) = (n_non_empty, non_empty) {
        let only = ctx.take_input(i)?;
        return ctx.set_output(0, only);
    }
    let outer: usize = shape[..at].iter().product();
    let inner: usize = shape[at + 1..].iter().product();
    let mut out = ctx.alloc(ctx.input(values.start)?.dtype(), shape)?;
    let parts: SmallVec<[(&[T], usize); 8]> = values
        .map(|i| Ok((ctx.input(i)?.items::<T>()?, ctx.shape(i)?[at] * inner)))
        .collect::<Result<_>>()?;
    join(ctx, &parts, outer, out.items_mut::<T>()?);
    drop(parts);
    ctx.set_output(0, out)
}

fn concat_shape(ctx: &mut ShapeCtx, axis: usize, values: Range<usize>) -> Result<()> {
    let rank = values.clone().find_map(|i| ctx.input(i).rank());
    let Some(rank) = rank else { return Ok(()) };
    if rank == 0 {
        return Err(invalid_argument!(
            "Can't concatenate scalars (use tf.stack instead) for input {}",
            values.start
        ));
    }
    let mut at = None;
    if let Some(dim) = constant_int(ctx, axis) {
        at = Some(axis_in(dim, rank).ok_or_else(|| {
            invalid_argument!(
                "ConcatOp : Expected concatenating dimensions in the range [-{rank}, {rank}), but \
                 got {dim}"
            )
        })?);
    }
    let mut out = PartialShape::of_rank(rank);
    let mut sum = Some(0usize);
    for i in values {
        let shape = ctx.with_rank(i, rank)?;
        let Some(at) = at else { continue };
        sum = sum.and_then(|s| s.checked_add(shape.dim(at as isize)?));
        let others = indices::partial(rank, |j| shape.dim(j as isize).filter(|_| j != at));
        out = ctx.merge(&out, &others)?;
    }
    if let Some(at) = at {
        out = indices::partial(rank, |j| if j == at { sum } else { out.dim(j as isize) });
    }
    ctx.set(0, out);
    Ok(())
}

fn concat_offset(_: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    Ok(Box::new(|ctx: &mut KernelCtx| {
        let Some(dim) = indices::int(ctx.input(0)?) else {
            return Err(invalid_argument!(
                "Concat dim tensor should be a scalar integer, but got shape {}",
                ctx.shape(0)?
            ));
        };
        for i in 1..ctx.num_inputs() {
            if ctx.shape(i)?.rank() != 1 {
                return Err(invalid_argument!(
                    "input {i} should be a vector, but got shape {}",
                    ctx.shape(i)?
                ));
            }
        }
        let first = indices::ints(ctx.input(1)?)?;
        let Some(at) = axis_in(dim, first.len()) else {
            let n = first.len() as i64;
            return Err(invalid_argument!(
                "Concat dim is out of range: {dim} vs. {n}"
            ));
        };
        let mut offset = 0i64;
        for i in 1..ctx.num_inputs() {
            let shape = indices::ints(ctx.input(i)?)?;
            if shape.len() != first.len() {
                return Err(invalid_argument!(
                    "input {} should contain {} elements, but got {}",
                    i - 1,
                    first.len(),
                    shape.len()
                ));
            }
            if (0..first.len()).any(|j| j != at && shape[j] != first[j]) {
                return Err(invalid_argument!(
                    "All dimensions except {at} must match. Input {} has shape {} and doesn't match \
                     input 0 with shape {}.",
                    i - 1,
                    vector(&shape),
                    vector(&first)
                ));
            }
            let dtype = ctx.input(i)?.dtype();
            let values = (0..shape.len()).map(|j| if j == at { offset } else { 0 });
            let out = indices::int_vector(dtype, values)?;
            offset = offset.wrapping_add(shape[at]);
            ctx.set_output(i - 1, out)?;
        }
        Ok(())
    }))
}

fn pack(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    let axis = build.attrs.int("axis")?;
    let dtype = build.output(0)?;
    Ok(dispatch_items!(dtype, T => Box::new(move |ctx: &mut KernelCtx| pack_items::<T>(ctx, axis))))
}

fn pack_axis(axis: i64, rank: usize) -> Result<usize> {
    axis_in(axis, rank + 1).ok_or_else(|| {
        invalid_argument!(
            "axis = {axis} not in [{}, {})",
            -(rank as i64 + 1),
            rank + 1
        )
    })
}

fn pack_items<T: Item>(ctx: &mut KernelCtx, axis: i64) -> Result<()> {
    let n = ctx.num_inputs();
    let first = ctx.shape(0)?;
    for i in 1..n {
        if ctx.shape(i)? != first {
            return Err(invalid_argument!(
                "Shapes of all inputs must match: values[0].shape = {first} != values[{i}].shape = {}",
                ctx.shape(i)?
            ));
        }
    }
    let at = pack_axis(axis, first.rank())?;
    let shape = shape_of(first[..at].iter().chain(&[n]).chain(&first[at..]).copied())?;
    if n == 1 {
        let value = ctx.take_input(0)?.with_shape(shape)?;
        return ctx.set_output(0, value);
    }
    let outer: usize = shape[..at].iter().product();
    let inner: usize = shape[at + 1..].iter().product();
    let mut out = ctx.alloc(ctx.input(0)?.dtype(), shape)?;
    let to = out.items_mut::<T>()?;
    if outer == 1 && inner == 1 {
        for (i, to) in to.iter_mut().enumerate() {
            if let [v] = ctx.input(i)?.items::<T>()? {
                *to = v.clone();
            }
        }
        return ctx.set_output(0, out);
    }
    let parts: SmallVec<[(&[T], usize); 8]> = (0..n)
        .map(|i| Ok((ctx.input(i)?.items::<T>()?, inner)))
        .collect::<Result<_>>()?;
    join(ctx, &parts, outer, to);
    drop(parts);
    ctx.set_output(0, out)
}

fn pack_shape(ctx: &mut ShapeCtx) -> Result<()> {
    let mut shape = PartialShape::unknown();
    for i in 0..ctx.num_inputs() {
        shape = ctx.merge(&shape, &ctx.input(i))?;
    }
    let Some(dims) = shape.dims() else {
        return Ok(());
    };
    let at = pack_axis(ctx.attrs().int("axis")?, dims.len())?;
    let n = Some(ctx.num_inputs());
    ctx.set(
        0,
        PartialShape::of(dims[..at].iter().chain(&[n]).chain(&dims[at..]).copied()),
    );
    Ok(())
}

/// Outputs `lens.len()` pieces of `value`, side by side along dimension `at`, each reshaped by `f`.
fn take_apart<T: Item>(
    ctx: &mut KernelCtx,
    value: &Tensor,
    at: usize,
    lens: impl Iterator<Item = usize>,
    shape_of_piece: impl Fn(usize) -> Shape,
) -> Result<()> {
    let shape = value.shape();
    let outer: usize = shape[..at].iter().product();
    let inner: usize = shape[at + 1..].iter().product();
    let row = (shape[at] * inner) as isize;
    let mut start = 0;
    for (i, len) in lens.enumerate() {
        let piece_shape = shape_of_piece(len);
        let piece = if outer == 1 {
            value.view(start, piece_shape)?
        } else {
            let mut piece = ctx.alloc(value.dtype(), piece_shape)?;
            let view = Strided::new(start as isize, [(outer, row), (len * inner, 1)]);
            view.copy_to(ctx.par(), value.items::<T>()?, piece.items_mut::<T>()?)?;
            piece
        };
        ctx.set_output(i, piece)?;
        start += len * inner;
    }
    Ok(())
}

fn with_dim(shape: &[usize], at: usize, len: usize) -> Shape {
    shape
        .iter()
        .enumerate()
        .map(|(i, &d)| if i == at { len } else { d })
        .collect()
}

fn split_axis(dim: Option<i64>, rank: usize) -> Result<usize> {
    let Some(dim) = dim else {
        return Err(invalid_argument!(
            "split_dim_tensor must have exactly one element."
        ));
    };
    axis_in(dim, rank).ok_or_else(|| {
        invalid_argument!("-input rank(-{rank}) <= split_dim < input rank ({rank}), but got {dim}")
    })
}

fn uneven(dim: usize, size: usize, n: usize) -> ferroflow_base::Status {
    invalid_argument!(
        "Number of ways to split should evenly divide the split dimension, but got split_dim {dim} \
         (size = {size}) and num_split {n}"
    )
}

fn split(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    let dtype = build.input(1)?;
    Ok(dispatch_items!(dtype, T => Box::new(|ctx: &mut KernelCtx| {
        let n = ctx.num_outputs();
        let dim = indices::int(ctx.input(0)?);
        let value = ctx.take_input(1)?;
        let at = split_axis(dim, value.shape().rank())?;
        let size = value.shape()[at];
        if !size.is_multiple_of(n) {
            return Err(uneven(at, size, n));
        }
        if n == 1 {
            return ctx.set_output(0, value);
        }
        let lens = std::iter::repeat_n(size / n, n);
        take_apart::<T>(ctx, &value, at, lens, |len| with_dim(value.shape(), at, len))
    })))
}

fn split_shape(ctx: &mut ShapeCtx) -> Result<()> {
    let n = ctx.num_outputs();
    let input = ctx.input(1);
    let Some(rank) = input.rank() else {
        return Ok(());
    };
    let out = match ctx.constant(0) {
        None => PartialShape::of_rank(rank),
        Some(dim) => {
            let at = split_axis(indices::int(dim), rank)?;
            let size = input.dim(at as isize);
            if let Some(size) = size.filter(|s| !s.is_multiple_of(n)) {
                return Err(uneven(at, size, n));
            }
            indices::partial(rank, |j| {
                if j == at {
                    size.map(|s| s / n)
                } else {
                    input.dim(j as isize)
                }
            })
        }
    };
    for i in 0..n {
        ctx.set(i, out.clone());
    }
    Ok(())
}

/// The sizes with the one −1 among them resolved, which add up to `total` where that is known.
fn split_sizes(
    sizes: &[i64],
    total: Option<usize>,
    n: usize,
) -> Result<SmallVec<[Option<usize>; 8]>> {
    if sizes.len() != n {
        return Err(invalid_argument!(
            "size_splits has to have num_split = {n} elements, but has {}",
            sizes.len()
        ));
    }
    let mut unknown = None;
    let mut sum = 0i64;
    for (i, &s) in sizes.iter().enumerate() {
        if s == -1 {
            if unknown.replace(i).is_some() {
                return Err(invalid_argument!("There can only be one -1 in the input."));
            }
        } else if s < 0 {
            return Err(invalid_argument!(
                "Split size at index {i} must be >= 0. Got: {s}"
            ));
        } else {
            sum = sum
                .checked_add(s)
                .ok_or_else(|| invalid_argument!("size_splits overflow"))?;
        }
    }
    let mut out: SmallVec<[Option<usize>; 8]> =
        sizes.iter().map(|&s| usize::try_from(s).ok()).collect();
    if let Some(total) = total {
        let rest = total as i64 - sum;
        if rest < 0 || (rest > 0 && unknown.is_none()) {
            return Err(invalid_argument!(
                "Determined shape must either match input shape along split_dim exactly if fully \
                 specified, or be less than the size of the input along split_dim if not fully \
                 specified.  Got: {sum}"
            ));
        }
        if let Some(i) = unknown {
            out[i] = Some(rest as usize);
        }
    }
    Ok(out)
}

fn split_v(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    let dtype = build.input(0)?;
    Ok(dispatch_items!(dtype, T => Box::new(|ctx: &mut KernelCtx| {
        let n = ctx.num_outputs();
        let dim = indices::int(ctx.input(2)?);
        if ctx.shape(1)?.rank() != 1 {
            return Err(invalid_argument!("size_splits needs to be one-dimensional"));
        }
        let sizes = indices::ints(ctx.input(1)?)?;
        let value = ctx.take_input(0)?;
        let at = split_axis(dim, value.shape().rank())?;
        let sizes = split_sizes(&sizes, Some(value.shape()[at]), n)?;
        if n == 1 {
            return ctx.set_output(0, value);
        }
        let lens = sizes.into_iter().flatten();
        take_apart::<T>(ctx, &value, at, lens, |len| with_dim(value.shape(), at, len))
    })))
}

fn split_v_shape(ctx: &mut ShapeCtx) -> Result<()> {
    let n = ctx.num_outputs();
    let input = ctx.input(0);
    let Some(rank) = input.rank() else {
        return Ok(());
    };
    let dim = match ctx.constant(2) {
        Some(dim) => Some(split_axis(indices::int(dim), rank)?),
        None => None,
    };
    let sizes = match (constant(ctx, 1), dim) {
        (Some(sizes), Some(at)) => Some(split_sizes(&sizes, input.dim(at as isize), n)?),
        _ => None,
    };
    for i in 0..n {
        let out = indices::partial(rank, |j| match dim {
            Some(at) if j != at => input.dim(j as isize),
            Some(_) => sizes.as_ref().and_then(|s| s[i]),
            None => None,
        });
        ctx.set(i, out);
    }
    Ok(())
}

fn unpack_axis(axis: i64, rank: usize) -> Result<usize> {
    axis_in(axis, rank)
        .ok_or_else(|| invalid_argument!("axis = {axis} not in [{}, {rank})", -(rank as i64)))
}

fn wrong_num(at: usize, n: usize, shape: impl std::fmt::Display) -> ferroflow_base::Status {
    invalid_argument!("Input shape axis {at} must equal {n}, got shape {shape}")
}

fn unpack(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    let axis = build.attrs.int("axis")?;
    let dtype = build.input(0)?;
    Ok(
        dispatch_items!(dtype, T => Box::new(move |ctx: &mut KernelCtx| {
            let n = ctx.num_outputs();
            let value = ctx.take_input(0)?;
            let shape = value.shape();
            let at = unpack_axis(axis, shape.rank())?;
            if shape[at] != n {
                return Err(wrong_num(at, n, shape));
            }
            take_apart::<T>(ctx, &value, at, std::iter::repeat_n(1, n), |_| {
                shape.iter().enumerate().filter(|(i, _)| *i != at).map(|(_, &d)| d).collect()
            })
        })),
    )
}

fn unpack_shape(ctx: &mut ShapeCtx) -> Result<()> {
    let n = ctx.num_outputs();
    let input = ctx.input(0);
    let Some(dims) = input.dims() else {
        return Ok(());
    };
    let at = unpack_axis(ctx.attrs().int("axis")?, dims.len())?;
    if dims[at].is_some_and(|d| d != n) {
        return Err(wrong_num(at, n, &input));
    }
    for i in 0..n {
        ctx.set(
            i,
            PartialShape::of(dims[..at].iter().chain(&dims[at + 1..]).copied()),
        );
    }
    Ok(())
}

fn pack_gradient(g: &mut GradientCtx) -> Result<()> {
    let d = g.dy(0);
    let n = g.num_inputs();
    let attrs = [("num", (n as i64).into()), g.attr("axis")];
    for (i, part) in d.node("Unpack", &[d], &attrs).into_iter().enumerate() {
        g.set(i, part)?;
    }
    Ok(())
}

fn unpack_gradient(g: &mut GradientCtx) -> Result<()> {
    let parts: Vec<_> = (0..g.num_outputs()).map(|i| g.dy(i)).collect();
    let dx = g.x(0).make("Pack", &parts, &[g.attr("axis")]);
    g.set(0, dx)
}

/// TensorFlow's text of a vector's values.
#[cold]
fn vector(values: &[i64]) -> String {
    let texts: Vec<String> = values.iter().map(i64::to_string).collect();
    format!("[{}]", texts.join(" "))
}
