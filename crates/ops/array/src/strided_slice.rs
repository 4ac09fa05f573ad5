//! StridedSlice, its gradient, and the ops that assign to a strided slice (TensorFlow:
//! `core/kernels/strided_slice_op.cc`).

use crate::slice::viewed;

use ferroflow_base::{Result, invalid_argument};
use ferroflow_functors::indices::{self, constant, shape_of};
use ferroflow_functors::shapes;
use ferroflow_functors::strided::Strided;
use ferroflow_functors::strided_spec::{self, Masks, Resolved};
use ferroflow_opdef::{GradientCtx, KernelBuild, KernelCtx, Op, OpKernel, ShapeCtx};
use ferroflow_resources::resource::{value_mut, variable};
use ferroflow_tensor::{DType, Shape, Tensor};
use smallvec::SmallVec;

/// The ops of this file.
pub(crate) const OPS: &[Op] = &[
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
        "shape: Index, begin: Index, end: Index, strides: Index, dy: T -> output: T | \
         T: type; Index: type {int32,int64}; begin_mask: int = 0; end_mask: int = 0; \
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
        "input: T, begin: Index, end: Index, strides: Index, value: T -> output: T | \
         T: type; Index: type {int32,int64}; begin_mask: int = 0; end_mask: int = 0; \
         ellipsis_mask: int = 0; new_axis_mask: int = 0; shrink_axis_mask: int = 0",
    )
    .shape(same_as_first)
    .kernel(strided_slice_update)
    .gradient(strided_update_gradient),
    Op::new(
        "ResourceStridedSliceAssign",
        "ref: resource, begin: Index, end: Index, strides: Index, value: T -> | T: \
         type; Index: type {int32,int64}; begin_mask: int = 0; end_mask: int = 0; \
         ellipsis_mask: int = 0; new_axis_mask: int = 0; shrink_axis_mask: int = 0 | \
         stateful",
    )
    .kernel(resource_assign)
    .not_differentiable(),
    Op::new(
        "StridedSliceAssign",
        "ref: Ref(T), begin: Index, end: Index, strides: Index, value: T -> \
         output_ref: Ref(T) | T: type; Index: type {int32,int64}; begin_mask: int = 0; \
         end_mask: int = 0; ellipsis_mask: int = 0; new_axis_mask: int = 0; \
         shrink_axis_mask: int = 0",
    ),
];

pub(crate) fn same_as_first(ctx: &mut ShapeCtx) -> Result<()> {
    shapes::unchanged(ctx)
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

/// Returns the view of a spec on a tensor of shape `shape`, and the shape of the result.
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
            // The stride of a single element is arbitrary, possibly too large to multiply.
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
    Ok(Box::new(move |ctx: &mut KernelCtx| {
        let input = ctx.input(0)?;
        let spec = resolve(ctx, 1, input.shape(), masks)?;
        let (view, shape) = view_of(input.shape(), &spec)?;
        let out = if view.is_empty() {
            ctx.alloc(input.dtype(), shape)?
        } else if view.as_range_start() == Some(0) && view.len() == input.num_elements() {
            ctx.take_input(0)?.with_shape(shape)?
        } else {
            viewed(ctx, input, &view, shape)?
        };
        ctx.set_output(0, out)
    }))
}

fn strided_slice_shape(ctx: &mut ShapeCtx) -> Result<()> {
    let masks = Masks::from_attrs(ctx.attrs())?;
    let mut spec_shape = ctx.with_rank(1, 1)?;
    for i in 2..4 {
        spec_shape = ctx.merge(&spec_shape, &ctx.with_rank(i, 1)?)?;
    }
    let (begin, end) = (constant(ctx, 1), constant(ctx, 2));
    // Without strides their signs, and so the sizes, are unknown.
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

/// Returns `value` broadcast to the shape it is assigned to.
fn stretched(ctx: &KernelCtx, value: &Tensor, shape: &Shape) -> Result<Tensor> {
    if value.shape() == shape {
        return Ok(value.clone());
    }
    let (dims, strides) = (value.shape().dims(), value.shape().strides());
    // There may be surplus leading dimensions of size one.
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
    viewed(ctx, value, &Strided::new(0, axes), shape.clone())
}

fn wrong_value(expected: &Shape, got: &Shape) -> ferroflow_base::Status {
    invalid_argument!("shape of dy was {got} instead of {expected}")
}

fn strided_slice_grad(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    let masks = Masks::from_attrs(build.attrs)?;
    let dtype = build.output(0)?;
    Ok(Box::new(move |ctx: &mut KernelCtx| {
        if ctx.shape(0)?.rank() != 1 {
            return Err(invalid_argument!(
                "shape must be 1-D, got shape.shape = {}",
                ctx.shape(0)?
            ));
        }
        let shape = Shape::checked(&indices::ints(ctx.input(0)?)?)?;
        let spec = resolve(ctx, 1, &shape, masks)?;
        let (view, dy_shape) = view_of(&shape, &spec)?;
        let dy = ctx.input(4)?;
        if dy.shape() != &dy_shape {
            return Err(wrong_value(&dy_shape, dy.shape()));
        }
        let mut out = Tensor::zeros(dtype, shape)?;
        view.scatter(dy, &mut out)?;
        ctx.set_output(0, out)
    }))
}

fn strided_slice_update(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    let masks = Masks::from_attrs(build.attrs)?;
    Ok(Box::new(move |ctx: &mut KernelCtx| {
        let spec = resolve(ctx, 1, ctx.shape(0)?, masks)?;
        let (view, shape) = view_of(ctx.shape(0)?, &spec)?;
        if view.is_empty() {
            let x = ctx.take_input(0)?;
            return ctx.set_output(0, x);
        }
        let value = stretched(ctx, ctx.input(4)?, &shape)?;
        let mut out = ctx.take_input(0)?;
        view.scatter(&value, &mut out)?;
        ctx.set_output(0, out)
    }))
}

fn resource_assign(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    let masks = Masks::from_attrs(build.attrs)?;
    let dtype = build.input(4)?;
    Ok(Box::new(move |ctx: &mut KernelCtx| {
        let var = variable(ctx, 0)?;
        let mut current = var.write();
        let target = value_mut(ctx, 0, &mut current, dtype)?;
        let spec = resolve(ctx, 1, target.shape(), masks)?;
        let (view, shape) = view_of(target.shape(), &spec)?;
        if view.is_empty() {
            return Ok(());
        }
        let value = stretched(ctx, ctx.input(4)?, &shape)?;
        view.scatter(&value, target)
    }))
}

/// Returns the attrs of the spec's masks.
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
    // StridedSliceGrad does not support 16-bit indices.
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
