//! Parts of tensors by position: Slice, StridedSlice, StridedSliceGrad, TensorStridedSliceUpdate,
//! ResourceStridedSliceAssign, Reverse, ReverseV2, Roll.

use crate::strided_spec::{self, Masks, Resolved};
use ferroflow_base::{Result, invalid_argument};
use ferroflow_functors::indices::{self, axis_in, constant, shape_of};
use ferroflow_functors::shapes;
use ferroflow_functors::strided::Strided;
use ferroflow_opdef::{GradientCtx, KernelBuild, KernelCtx, Op, OpKernel, ShapeCtx};
use ferroflow_resources::resource::{value_mut, variable};
use ferroflow_tensor::{DType, Item, PartialShape, Shape, Tensor, dispatch_items};
use smallvec::SmallVec;

/// Slice, StridedSlice, StridedSliceGrad, TensorStridedSliceUpdate, ResourceStridedSliceAssign,
/// Reverse, ReverseV2, Roll.
pub(crate) const OPS: &[Op] = &[
    Op::new(
        "Slice",
        "input: T, begin: Index, size: Index -> output: T | T: type; Index: type {int32,int64}",
    )
    .shape(slice_shape)
    .kernel(slice)
    .gradient(slice_gradient),
    Op::new(
        "StridedSlice",
        "input: T, begin: Index, end: Index, strides: Index -> output: T | T: type; \
         Index: type {int16,int32,int64}; begin_mask: int = 0; end_mask: int = 0; \
         ellipsis_mask: int = 0; new_axis_mask: int = 0; shrink_axis_mask: int = 0",
    )
    .shape(strided_slice_shape)
    .kernel(strided_slice)
    .gradient(strided_slice_gradient),
    Op::new(
        "StridedSliceGrad",
        "shape: Index, begin: Index, end: Index, strides: Index, dy: T -> output: T | T: type; \
         Index: type {int32,int64}; begin_mask: int = 0; end_mask: int = 0; \
         ellipsis_mask: int = 0; new_axis_mask: int = 0; shrink_axis_mask: int = 0",
    )
    .shape(|ctx| {
        let shape = indices::shape_input(ctx, 0)?;
        ctx.set(0, shape);
        Ok(())
    })
    .kernel(strided_slice_grad)
    .gradient(strided_slice_grad_gradient),
    Op::new(
        "TensorStridedSliceUpdate",
        "input: T, begin: Index, end: Index, strides: Index, value: T -> output: T | T: type; \
         Index: type {int32,int64}; begin_mask: int = 0; end_mask: int = 0; \
         ellipsis_mask: int = 0; new_axis_mask: int = 0; shrink_axis_mask: int = 0",
    )
    .shape(same_as_first)
    .kernel(strided_slice_update)
    .gradient(strided_update_gradient),
    Op::new(
        "ResourceStridedSliceAssign",
        "ref: resource, begin: Index, end: Index, strides: Index, value: T -> | T: type; \
         Index: type {int32,int64}; begin_mask: int = 0; end_mask: int = 0; \
         ellipsis_mask: int = 0; new_axis_mask: int = 0; shrink_axis_mask: int = 0 | stateful",
    )
    .kernel(resource_assign)
    .not_differentiable(),
    Op::new(
        "Reverse",
        "tensor: T, dims: bool -> output: T | T: type {uint8,int8,uint16,int16,uint32,int32,uint64,\
         int64,bool,bfloat16,half,float,double,complex64,complex128,string}",
    )
    .shape(same_as_first)
    .kernel(reverse)
    .gradient(turned_back),
    Op::new(
        "ReverseV2",
        "tensor: T, axis: Tidx -> output: T | Tidx: type {int32,int64} = int32; T: type {uint8,int8,\
         uint16,int16,int32,uint32,int64,uint64,bool,bfloat16,half,float,double,complex64,\
         complex128,string}",
    )
    .shape(same_as_first)
    .kernel(reverse)
    .gradient(turned_back),
    Op::new(
        "Roll",
        "input: T, shift: Tshift, axis: Taxis -> output: T | T: type; Tshift: type {int32,int64}; \
         Taxis: type {int32,int64}",
    )
    .shape(same_as_first)
    .kernel(roll)
    .gradient(roll_gradient),
];

fn same_as_first(ctx: &mut ShapeCtx) -> Result<()> {
    shapes::unchanged(ctx)
}

/// The elements of `value` that `view` shows, as a tensor; shares storage where they lie side by
/// side.
fn viewed<T: Item>(
    ctx: &KernelCtx,
    value: &Tensor,
    view: &Strided,
    shape: Shape,
) -> Result<Tensor> {
    if let Some(start) = view.as_range_start() {
        return value.view(start, shape);
    }
    let mut out = ctx.alloc(value.dtype(), shape)?;
    view.copy_to(ctx.par(), value.items::<T>()?, out.items_mut::<T>()?)?;
    Ok(out)
}

fn slice(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    let dtype = build.input(0)?;
    Ok(dispatch_items!(dtype, T => Box::new(slice_items::<T>)))
}

fn slice_items<T: Item>(ctx: &mut KernelCtx) -> Result<()> {
    let (begin, size) = (ctx.input(1)?, ctx.input(2)?);
    let shape = ctx.shape(0)?;
    let rank = shape.rank();
    let is_spec = |t: &Tensor| t.shape().rank() == 1 && t.num_elements() == rank;
    if !is_spec(begin) || !is_spec(size) {
        return Err(invalid_argument!(
            "Expected begin and size arguments to be 1-D tensors of size {rank}, but got shapes {} \
             and {} instead.",
            begin.shape(),
            size.shape()
        ));
    }
    let (begin, size) = (indices::ints(begin)?, indices::ints(size)?);
    let mut out_shape = Shape::scalar();
    for (i, &d) in shape.iter().enumerate() {
        out_shape.push(slice_dim(i, begin[i], size[i], d)?);
    }
    if &out_shape == shape {
        let whole = ctx.take_input(0)?;
        return ctx.set_output(0, whole);
    }
    let strides = shape.strides();
    let base: usize = begin
        .iter()
        .zip(&strides)
        .map(|(&b, &s)| b as usize * s)
        .sum();
    let dims = out_shape
        .iter()
        .zip(&strides)
        .map(|(&d, &s)| (d, s as isize));
    let view = Strided::new(base as isize, dims);
    if view.is_empty() {
        let empty = ctx.alloc(ctx.input(0)?.dtype(), out_shape)?;
        return ctx.set_output(0, empty);
    }
    let out = viewed::<T>(ctx, ctx.input(0)?, &view, out_shape)?;
    ctx.set_output(0, out)
}

fn slice_dim(i: usize, begin: i64, size: i64, d: usize) -> Result<usize> {
    let d = d as i64;
    if begin < 0 || begin > d {
        return Err(invalid_argument!(
            "Expected begin[{i}] in [0, {d}], but got {begin}"
        ));
    }
    let rest = d - begin;
    match size {
        -1 => Ok(rest as usize),
        s if (0..=rest).contains(&s) => Ok(s as usize),
        s => Err(invalid_argument!(
            "Expected size[{i}] in [0, {rest}], but got {s}"
        )),
    }
}

fn slice_shape(ctx: &mut ShapeCtx) -> Result<()> {
    let (mut input, begin_shape) = (ctx.input(0), ctx.with_rank(1, 1)?);
    let size_shape = ctx.with_rank(2, 1)?;
    let rank = ctx.merge(&begin_shape, &size_shape)?.dim(0);
    if let Some(rank) = rank.filter(|&r| r <= 254) {
        input = ctx.with_rank(0, rank)?;
    }
    let Some(dims) = input.dims() else {
        return Ok(());
    };
    let (begin, size) = (constant(ctx, 1), constant(ctx, 2));
    let mut out = SmallVec::<[Option<usize>; 4]>::new();
    for (i, d) in dims.iter().enumerate() {
        let b = begin.as_ref().and_then(|b| b.get(i).copied());
        out.push(
            match (size.as_ref().and_then(|s| s.get(i).copied()), b, d) {
                (Some(size), Some(b), Some(d)) => Some(slice_dim(i, b, size, *d)?),
                (Some(-1), Some(0), None) => None,
                (Some(size), ..) => usize::try_from(size).ok(),
                // All of nothing is nothing.
                (None, _, Some(0)) => Some(0),
                (None, ..) => None,
            },
        );
    }
    ctx.set(0, PartialShape::of(out));
    Ok(())
}

fn resolve(ctx: &KernelCtx, first: usize, shape: &Shape, masks: Masks) -> Result<Resolved> {
    let (begin, end, strides) = (
        ctx.input(first)?,
        ctx.input(first + 1)?,
        ctx.input(first + 2)?,
    );
    if begin.shape().rank() != 1 || end.shape() != begin.shape() || strides.shape() != begin.shape()
    {
        return Err(invalid_argument!(
            "Expected begin, end, and strides to be 1D equal size tensors, but got shapes {}, {}, \
             and {} instead.",
            begin.shape(),
            end.shape(),
            strides.shape()
        ));
    }
    let dims: SmallVec<[Option<usize>; 4]> = shape.iter().map(|&d| Some(d)).collect();
    let (begin, end) = (indices::ints(begin)?, indices::ints(end)?);
    strided_spec::resolve(
        &dims,
        Some(&begin),
        Some(&end),
        &indices::ints(strides)?,
        masks,
    )
}

/// The view of a tensor of shape `shape` that a spec picks, and the shape of the result.
fn view_of(shape: &Shape, spec: &Resolved) -> Result<(Strided, Shape)> {
    let out = shape_of(spec.shape.iter().map(|d| d.unwrap_or(0)))?;
    if out.num_elements() == 0 {
        return Ok((Strided::new(0, [(0, 1)]), out));
    }
    let mut base = 0;
    let strides = shape.strides();
    let dims: SmallVec<[(usize, isize); 4]> = spec
        .spans
        .iter()
        .zip(&strides)
        .map(|(span, &s)| {
            base += span.begin as isize * s as isize;
            // A single element's stride may be anything, even too large to multiply.
            let stride = if span.len == Some(1) {
                1
            } else {
                span.stride as isize
            };
            (span.len.unwrap_or(0), stride.wrapping_mul(s as isize))
        })
        .collect();
    Ok((Strided::new(base, dims), out))
}

fn strided_slice(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    let masks = Masks::from_attrs(build.attrs)?;
    let dtype = build.input(0)?;
    Ok(
        dispatch_items!(dtype, T => Box::new(move |ctx: &mut KernelCtx| {
            let input = ctx.input(0)?;
            let spec = resolve(ctx, 1, input.shape(), masks)?;
            let (view, shape) = view_of(input.shape(), &spec)?;
            let out = if view.is_empty() {
                ctx.alloc(input.dtype(), shape)?
            } else if view.as_range_start() == Some(0) && view.len() == input.num_elements() {
                ctx.take_input(0)?.with_shape(shape)?
            } else {
                viewed::<T>(ctx, input, &view, shape)?
            };
            ctx.set_output(0, out)
        })),
    )
}

fn strided_slice_shape(ctx: &mut ShapeCtx) -> Result<()> {
    let masks = Masks::from_attrs(ctx.attrs())?;
    let mut spec_shape = ctx.with_rank(1, 1)?;
    for i in 2..4 {
        spec_shape = ctx.merge(&spec_shape, &ctx.with_rank(i, 1)?)?;
    }
    let (begin, end) = (constant(ctx, 1), constant(ctx, 2));
    // Without strides the signs, and so the sizes, are open.
    let Some(strides) = constant(ctx, 3) else {
        return Ok(());
    };
    let shape = strided_spec::infer(
        &ctx.input(0),
        begin.as_deref(),
        end.as_deref(),
        &strides,
        masks,
    )?;
    ctx.set(0, shape);
    Ok(())
}

/// `value` stretched to the shape of what it is assigned to.
fn stretched<T: Item>(ctx: &KernelCtx, value: &Tensor, shape: &Shape) -> Result<Tensor> {
    if value.shape() == shape {
        return Ok(value.clone());
    }
    let (dims, strides) = (value.shape().dims(), value.shape().strides());
    // Leading dimensions of one may be too many.
    let extra = dims.len().saturating_sub(shape.rank());
    let lead = shape.rank() - (dims.len() - extra);
    let fits = dims[..extra].iter().all(|&d| d == 1)
        && (dims[extra..].iter().zip(&shape[lead..])).all(|(&d, &to)| d == 1 || d == to);
    if !fits {
        return Err(invalid_argument!(
            "Cannot broadcast input shape {} into final shape {shape}",
            value.shape()
        ));
    }
    let axis = |i: usize| match i.checked_sub(lead).map(|j| j + extra) {
        Some(j) if dims[j] != 1 => (shape[i], strides[j] as isize),
        _ => (shape[i], 0),
    };
    let axes: SmallVec<[(usize, isize); 4]> = (0..shape.rank()).map(axis).collect();
    viewed::<T>(ctx, value, &Strided::new(0, axes), shape.clone())
}

fn wrong_value(expected: &Shape, got: &Shape) -> ferroflow_base::Status {
    invalid_argument!("shape of dy was {got} instead of {expected}")
}

fn strided_slice_grad(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    let masks = Masks::from_attrs(build.attrs)?;
    let dtype = build.output(0)?;
    Ok(
        dispatch_items!(dtype, T => Box::new(move |ctx: &mut KernelCtx| {
            if ctx.shape(0)?.rank() != 1 {
                return Err(invalid_argument!("shape must be 1-D, got shape.shape = {}", ctx.shape(0)?));
            }
            let shape = Shape::checked(&indices::ints(ctx.input(0)?)?)?;
            let spec = resolve(ctx, 1, &shape, masks)?;
            let (view, dy_shape) = view_of(&shape, &spec)?;
            let dy = ctx.input(4)?;
            if dy.shape() != &dy_shape {
                return Err(wrong_value(&dy_shape, dy.shape()));
            }
            let mut out = Tensor::zeros(dtype, shape)?;
            view.copy_from(dy.items::<T>()?, out.items_mut::<T>()?)?;
            ctx.set_output(0, out)
        })),
    )
}

fn strided_slice_update(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    let masks = Masks::from_attrs(build.attrs)?;
    let dtype = build.output(0)?;
    Ok(
        dispatch_items!(dtype, T => Box::new(move |ctx: &mut KernelCtx| {
            let spec = resolve(ctx, 1, ctx.shape(0)?, masks)?;
            let (view, shape) = view_of(ctx.shape(0)?, &spec)?;
            if view.is_empty() {
                let x = ctx.take_input(0)?;
                return ctx.set_output(0, x);
            }
            let value = stretched::<T>(ctx, ctx.input(4)?, &shape)?;
            let mut out = ctx.take_input(0)?;
            view.copy_from(value.items::<T>()?, out.items_mut::<T>()?)?;
            ctx.set_output(0, out)
        })),
    )
}

fn resource_assign(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    let masks = Masks::from_attrs(build.attrs)?;
    let dtype = build.input(4)?;
    Ok(
        dispatch_items!(dtype, T => Box::new(move |ctx: &mut KernelCtx| {
            let var = variable(ctx, 0)?;
            let mut current = var.write();
            let target = value_mut(ctx, 0, &mut current, dtype)?;
            let spec = resolve(ctx, 1, target.shape(), masks)?;
            let (view, shape) = view_of(target.shape(), &spec)?;
            if view.is_empty() {
                return Ok(());
            }
            let value = stretched::<T>(ctx, ctx.input(4)?, &shape)?;
            view.copy_from(value.items::<T>()?, target.items_mut::<T>()?)
        })),
    )
}

/// Which dimensions to reverse, from a bool per dimension or from a list of axes.
fn reversed(dims: &Tensor, rank: usize) -> Result<SmallVec<[bool; 8]>> {
    if dims.shape().rank() != 1 {
        return Err(invalid_argument!(
            "'dims' must be 1-dimension, not {}",
            dims.shape().rank()
        ));
    }
    if let Ok(flags) = dims.slice::<bool>() {
        if flags.len() != rank {
            return Err(invalid_argument!(
                "'dims' must have the same number of values as 'input' has dimensions. 'input' has \
                 {rank}'dims' has {} values",
                flags.len()
            ));
        }
        return Ok(SmallVec::from_slice(flags));
    }
    let mut flags = SmallVec::from_elem(false, rank);
    for (i, &axis) in indices::ints(dims)?.iter().enumerate() {
        let Some(at) = axis_in(axis, rank) else {
            return Err(invalid_argument!(
                "'axis'[{i}] = {axis} is out of valid range [0, {}",
                rank as i64 - 1
            ));
        };
        if std::mem::replace(&mut flags[at], true) {
            return Err(invalid_argument!("axis {at} specified more than once."));
        }
    }
    Ok(flags)
}

fn reverse(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    let dtype = build.input(0)?;
    Ok(dispatch_items!(dtype, T => Box::new(|ctx: &mut KernelCtx| {
        let input = ctx.input(0)?;
        let shape = input.shape();
        let flags = reversed(ctx.input(1)?, shape.rank())?;
        let moves = |i: usize| flags[i] && shape[i] > 1;
        if input.num_elements() == 0 || !(0..shape.rank()).any(moves) {
            let same = ctx.take_input(0)?;
            return ctx.set_output(0, same);
        }
        let mut base = 0;
        let strides = shape.strides();
        let dims: SmallVec<[(usize, isize); 8]> = (0..shape.rank())
            .map(|i| {
                let s = strides[i] as isize;
                if !moves(i) {
                    return (shape[i], s);
                }
                base += (shape[i] - 1) as isize * s;
                (shape[i], -s)
            })
            .collect();
        let mut out = ctx.alloc(input.dtype(), shape.clone())?;
        let view = Strided::new(base, dims);
        view.copy_to(ctx.par(), input.items::<T>()?, out.items_mut::<T>()?)?;
        ctx.set_output(0, out)
    })))
}

fn roll(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    let dtype = build.input(0)?;
    Ok(dispatch_items!(dtype, T => Box::new(|ctx: &mut KernelCtx| {
        let (shift, axis) = (ctx.input(1)?, ctx.input(2)?);
        let rank = ctx.shape(0)?.rank();
        if rank < 1 {
            return Err(invalid_argument!("input must be 1-D or higher"));
        }
        if shift.shape().rank() > 1 || axis.shape().rank() > 1 {
            return Err(invalid_argument!("shift and axis must be a scalar or a 1-D vector"));
        }
        if shift.shape() != axis.shape() {
            return Err(invalid_argument!("shift and axis must have the same size"));
        }
        let (shift, axis) = (indices::ints(shift)?, indices::ints(axis)?);
        let mut shifts = SmallVec::<[usize; 8]>::from_elem(0, rank);
        for (&s, &a) in shift.iter().zip(&axis) {
            let Some(at) = axis_in(a, rank) else {
                return Err(invalid_argument!("axis {a} is out of range"));
            };
            let d = ctx.shape(0)?[at].max(1) as i64;
            shifts[at] = ((shifts[at] as i64 + s.rem_euclid(d)) % d) as usize;
        }
        // One axis at a time; each moves two runs per outer row.
        let mut value = ctx.take_input(0)?;
        for (at, &shift) in shifts.iter().enumerate().filter(|(_, s)| **s > 0) {
            let inner: usize = value.shape()[at + 1..].iter().product();
            let row = value.shape()[at] * inner;
            if row == 0 {
                break;
            }
            let cut = row - shift * inner;
            let mut out = ctx.alloc(value.dtype(), value.shape().clone())?;
            let from = value.items::<T>()?;
            ferroflow_functors::strided::par_rows(ctx.par(), out.items_mut::<T>()?, row, &|i, to| {
                let from = &from[i * row..(i + 1) * row];
                let (head, tail) = to.split_at_mut(row - cut);
                head.clone_from_slice(&from[cut..]);
                tail.clone_from_slice(&from[..cut]);
            });
            value = out;
        }
        ctx.set_output(0, value)
    })))
}

fn slice_gradient(g: &mut GradientCtx) -> Result<()> {
    let (x, begin, d) = (g.x(0), g.x(1), g.dy(0));
    let (own, given) = (
        x.shape_of().cast(begin.dtype()),
        g.y(0).shape_of().cast(begin.dtype()),
    );
    let behind = own - given - begin;
    let paddings = begin.make("Pack", &[begin, behind], &[("axis", 1i64.into())]);
    g.set(0, d.op("Pad", &[paddings]))
}

/// The attrs that say what a strided slice is.
fn masks(g: &GradientCtx) -> [(&'static str, ferroflow_opdef::AttrValue); 5] {
    [
        "begin_mask",
        "end_mask",
        "ellipsis_mask",
        "new_axis_mask",
        "shrink_axis_mask",
    ]
    .map(|name| g.attr(name))
}

fn strided_slice_gradient(g: &mut GradientCtx) -> Result<()> {
    let (x, begin) = (g.x(0), g.x(1));
    // The gradient's op takes no 16-bit indices.
    let index = match begin.dtype() {
        DType::Int64 => DType::Int64,
        _ => DType::Int32,
    };
    let [begin, end, strides] = [1, 2, 3].map(|i| g.x(i).cast(index));
    let inputs = [x.shape_of().cast(index), begin, end, strides, g.dy(0)];
    let dx = x.make("StridedSliceGrad", &inputs, &masks(g));
    g.set(0, dx)
}

fn strided_slice_grad_gradient(g: &mut GradientCtx) -> Result<()> {
    let d = g.dy(0);
    let dx = d.op_with("StridedSlice", &[g.x(1), g.x(2), g.x(3)], &masks(g));
    g.set(4, dx)
}

fn strided_update_gradient(g: &mut GradientCtx) -> Result<()> {
    let d = g.dy(0);
    let (at, masks) = ([g.x(1), g.x(2), g.x(3)], masks(g));
    let value = d.op_with("StridedSlice", &at, &masks);
    let [begin, end, strides] = at;
    let zeros = g.x(4).zeros_like();
    let rest = [begin, end, strides, zeros];
    let dx = d.op_with("TensorStridedSliceUpdate", &rest, &masks);
    g.set(0, dx)?;
    g.set(4, value.sum_to(g.x(4)))
}

fn turned_back(g: &mut GradientCtx) -> Result<()> {
    let dx = g.dy(0).op(g.op_name(), &[g.x(1)]);
    g.set(0, dx)
}

fn roll_gradient(g: &mut GradientCtx) -> Result<()> {
    let dx = g.dy(0).op("Roll", &[-g.x(1), g.x(2)]);
    g.set(0, dx)
}
