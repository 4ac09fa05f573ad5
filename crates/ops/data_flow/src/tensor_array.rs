//! Arrays of tensors that live for one step: TensorArrayV3 and its ops (TensorFlow:
//! `core/kernels/tensor_array_ops.cc`).

use crate::tensor_array_state::{Options, TensorArray, array_input};
use ferroflow_base::{Result, invalid_argument, unimplemented_error};
use ferroflow_functors::sequence::{merged, with_leading};
use ferroflow_functors::{indices, shapes};
use ferroflow_opdef::{Cost, Expr, GradientCtx, KernelBuild, KernelCtx, Op, OpKernel, ShapeCtx};
use ferroflow_tensor::rows::{joined, pieces, prepended, rows};
use ferroflow_tensor::{DType, PartialShape, Shape, Tensor, dispatch};
use std::sync::Arc;

/// TensorArrayV3, TensorArrayWriteV3, TensorArrayReadV3, TensorArrayGatherV3,
/// TensorArrayScatterV3, TensorArrayConcatV3, TensorArraySplitV3, TensorArraySizeV3,
/// TensorArrayGradV3, TensorArrayGradWithShape, TensorArrayCloseV3.
pub(crate) const OPS: &[Op] = &[
    Op::new(
        "TensorArrayV3",
        "size: int32 -> handle: resource, flow: float | dtype: type; element_shape: \
         shape = unknown; dynamic_size: bool = false; clear_after_read: bool = true; \
         identical_element_shapes: bool = false; tensor_array_name: string = '' | \
         stateful",
    )
    .shape(|ctx| {
        ctx.with_rank(0, 0)?;
        ctx.set(0, PartialShape::scalar());
        ctx.set(1, PartialShape::scalar());
        Ok(())
    })
    .cost(Cost::Cheap)
    .kernel(create)
    .not_differentiable(),
    Op::new(
        "TensorArrayWriteV3",
        "handle: resource, index: int32, value: T, flow_in: float -> flow_out: float | \
         T: type | stateful",
    )
    .shape(|ctx| {
        ctx.with_rank(1, 0)?;
        ctx.with_rank(3, 0)?;
        shapes::scalar(ctx)
    })
    .cost(Cost::Cheap)
    .kernel(write)
    .gradient(write_gradient),
    Op::new(
        "TensorArrayReadV3",
        "handle: resource, index: int32, flow_in: float -> value: dtype | dtype: type \
         | stateful",
    )
    .shape(|ctx| {
        ctx.with_rank(1, 0)?;
        ctx.with_rank(2, 0)?;
        ctx.set(0, ctx.handle_shape(0));
        Ok(())
    })
    .cost(Cost::Cheap)
    .kernel(read)
    .gradient(read_gradient),
    Op::new(
        "TensorArrayGatherV3",
        "handle: resource, indices: int32, flow_in: float -> value: dtype | dtype: \
         type; element_shape: shape = unknown | stateful",
    )
    .shape(gather_shape)
    .kernel(|build| gather(build, false))
    .gradient(gather_gradient),
    Op::new(
        "TensorArrayScatterV3",
        "handle: resource, indices: int32, value: T, flow_in: float -> flow_out: float \
         | T: type | stateful",
    )
    .shape(|ctx| {
        ctx.with_rank(1, 1)?;
        ctx.with_rank(3, 0)?;
        shapes::scalar(ctx)
    })
    .kernel(|build| scatter(build, false))
    .gradient(scatter_gradient),
    Op::new(
        "TensorArrayConcatV3",
        "handle: resource, flow_in: float -> value: dtype, lengths: int64 | dtype: \
         type; element_shape_except0: shape = unknown | stateful",
    )
    .shape(|ctx| {
        let shape = with_leading(None, ctx.attrs().shape("element_shape_except0")?);
        ctx.set(0, shape);
        ctx.set(1, PartialShape::of([None]));
        Ok(())
    })
    .kernel(concat)
    .gradient(concat_gradient),
    Op::new(
        "TensorArraySplitV3",
        "handle: resource, value: T, lengths: int64, flow_in: float -> flow_out: float \
         | T: type | stateful",
    )
    .shape(|ctx| {
        ctx.with_rank(3, 0)?;
        shapes::scalar(ctx)
    })
    .kernel(split)
    .gradient(split_gradient),
    Op::new(
        "TensorArraySizeV3",
        "handle: resource, flow_in: float -> size: int32 | | stateful",
    )
    .shape(shapes::scalar)
    .cost(Cost::Cheap)
    .kernel(size)
    .not_differentiable(),
    Op::new(
        "TensorArrayGradV3",
        "handle: resource, flow_in: float -> grad_handle: resource, flow_out: float | \
         source: string | stateful",
    )
    .shape(grad_shape)
    .cost(Cost::Cheap)
    .kernel(|build| gradient_array(build, false)),
    Op::new(
        "TensorArrayGradWithShape",
        "handle: resource, flow_in: float, shape_to_prepend: int32 -> grad_handle: \
         resource, flow_out: float | source: string | stateful",
    )
    .shape(grad_shape)
    .cost(Cost::Cheap)
    .kernel(|build| gradient_array(build, true)),
    Op::new("TensorArrayCloseV3", "handle: resource -> | | stateful")
        .cost(Cost::Cheap)
        .kernel(close)
        .not_differentiable(),
];

pub(crate) fn create(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    let attrs = build.attrs;
    let name = attrs.str("tensor_array_name")?;
    let options = Options {
        name: if name.is_empty() { build.node } else { name }.to_string(),
        dtype: attrs.dtype("dtype")?,
        element_shape: attrs.shape("element_shape")?.clone(),
        dynamic_size: attrs.bool("dynamic_size")?,
        clear_after_read: attrs.bool("clear_after_read")?,
        identical_element_shapes: attrs.bool("identical_element_shapes").unwrap_or(false),
    };
    let (handle_dtype, has_flow) = (build.output(0)?, build.outputs.len() > 1);
    Ok(Box::new(move |ctx: &mut KernelCtx| {
        let size = ctx.input(0)?;
        if !size.shape().is_scalar() {
            return Err(invalid_argument!(
                "TensorArray size must be scalar, but had shape: {}",
                size.shape()
            ));
        }
        let size = usize::try_from(size.to_scalar::<i32>()?)
            .map_err(|_| invalid_argument!("Size should be >= 0."))?;
        let array = Arc::new(TensorArray::new(&options, size)?);
        ctx.set_output(0, array.handle(handle_dtype)?)?;
        match has_flow {
            true => ctx.set_output(1, Tensor::scalar(0.0f32)),
            false => Ok(()),
        }
    }))
}

fn index_input(ctx: &KernelCtx) -> Result<i64> {
    let index = ctx.input(1)?;
    if !index.shape().is_scalar() {
        return Err(invalid_argument!(
            "TensorArray index must be scalar, but had shape: {}",
            index.shape()
        ));
    }
    Ok(index.to_scalar::<i32>()?.into())
}

fn pass_flow(ctx: &mut KernelCtx, i: usize) -> Result<()> {
    let flow = ctx.take_input(i)?;
    ctx.set_output(0, flow)
}

pub(crate) fn write(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    let dtype = build.input(2)?;
    Ok(Box::new(move |ctx: &mut KernelCtx| {
        let index = index_input(ctx)?;
        let value = ctx.take_input(2)?;
        let array = array_input(ctx)?;
        array.expect_dtype(dtype, "is trying to write")?;
        array.write(index, value)?;
        pass_flow(ctx, 3)
    }))
}

pub(crate) fn read(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    let dtype = build.output(0)?;
    Ok(Box::new(move |ctx: &mut KernelCtx| {
        let index = index_input(ctx)?;
        let array = array_input(ctx)?;
        array.expect_dtype(dtype, "requested")?;
        ctx.set_output(0, array.read(index)?)
    }))
}

pub(crate) fn gather_shape(ctx: &mut ShapeCtx) -> Result<()> {
    let indices = ctx.with_rank(1, 1)?;
    ctx.with_rank(2, 0)?;
    let shape = with_leading(indices.dim(0), ctx.attrs().shape("element_shape")?);
    ctx.set(0, shape);
    Ok(())
}

fn vector_input(ctx: &KernelCtx, i: usize, what: &str) -> Result<indices::Ints> {
    let t = ctx.input(i)?;
    if t.shape().rank() != 1 {
        return Err(invalid_argument!(
            "Expected {what} to be a vector, but received shape: {}",
            t.shape()
        ));
    }
    indices::ints(t)
}

pub(crate) fn gather(build: &KernelBuild, all: bool) -> Result<Box<dyn OpKernel>> {
    let dtype = build.output(0)?;
    let element_shape = build.attrs.shape("element_shape")?.clone();
    Ok(Box::new(move |ctx: &mut KernelCtx| {
        let array = array_input(ctx)?;
        let known = array.merge_element_shape(&element_shape)?;
        array.expect_dtype(dtype, "requested")?;
        let wanted = match all {
            true => (0..array.pack_size()? as i64).collect(),
            false => vector_input(ctx, 1, "indices")?,
        };
        if wanted.is_empty() {
            let Some(shape) = known.to_full() else {
                return Err(unimplemented_error!(
                    "TensorArray has size zero, but element shape {known} is not fully defined. \
                     Currently only static shapes are supported when packing zero-size TensorArrays."
                ));
            };
            let out = Tensor::zeros(dtype, prepended(0, &shape)?)?;
            return ctx.set_output(0, out);
        }
        if known.matches(&Shape::scalar())
            && let Some(out) = gathered_scalars(&array, dtype, &wanted)?
        {
            return ctx.set_output(0, out);
        }
        let values = array.read_many(wanted.iter().copied())?;
        let first = values
            .first()
            .map(Tensor::shape)
            .cloned()
            .unwrap_or_default();
        let known = array.element_shape()?;
        if !known.matches(&first) {
            return Err(invalid_argument!(
                "TensorArray was passed element_shape {known} which does not match the Tensor at \
                 index 0: {first}"
            ));
        }
        if let Some(i) = values.iter().position(|v| *v.shape() != first) {
            let other = values
                .get(i)
                .map(Tensor::shape)
                .cloned()
                .unwrap_or_default();
            return Err(invalid_argument!(
                "TensorArray has inconsistent shapes.  Index 0 has shape: {first} but index {i} \
                 has shape: {other}"
            ));
        }
        let n = first.num_elements();
        let parts: Vec<_> = values.iter().map(|v| (Some(v), n)).collect();
        let out = joined(dtype, prepended(values.len(), &first)?, &parts)?;
        ctx.set_output(0, out)
    }))
}

/// Gathers elements that are all scalars, without tensors in between.
fn gathered_scalars(array: &TensorArray, dtype: DType, at: &[i64]) -> Result<Option<Tensor>> {
    dispatch!(dtype, T in [f32, f64, i32, i64, bool] => {
        let values = array.read_scalars::<T>(at)?;
        values.map(|values| Tensor::vector(&values)).transpose()
    }, else Ok(None))
}

pub(crate) fn scatter(build: &KernelBuild, all: bool) -> Result<Box<dyn OpKernel>> {
    let input = if all { 1 } else { 2 };
    let dtype = build.input(input)?;
    Ok(Box::new(move |ctx: &mut KernelCtx| {
        let array = array_input(ctx)?;
        let n = array.len()?;
        let value = ctx.input(input)?;
        let Some((&n_rows, row)) = value.shape().split_first() else {
            return Err(invalid_argument!(
                "Input value for unpack must be at least a vector but received shape: []"
            ));
        };
        array.expect_dtype(dtype, "is trying to write")?;
        let at = match all {
            true => (0..n_rows as i64).collect(),
            false => vector_input(ctx, 1, "indices")?,
        };
        if at.len() != n_rows {
            return Err(invalid_argument!(
                "Expected len(indices) == values.shape[0], but saw: {} vs. {n_rows}",
                at.len()
            ));
        }
        array.merge_element_shape(&(&Shape::from(row)).into())?;
        let last = at.iter().copied().max().unwrap_or(-1);
        if last >= n as i64 && !array.is_dynamic() {
            return Err(invalid_argument!(
                "Max scatter index must be < array size ({last} vs. {n})"
            ));
        }
        if all {
            array.mark_size(n_rows)?;
        }
        array.write_many(at.iter().copied().zip(rows(value)?))?;
        pass_flow(ctx, input + 1)
    }))
}

pub(crate) fn concat(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    let dtype = build.output(0)?;
    let except_first = build.attrs.shape("element_shape_except0")?.clone();
    Ok(Box::new(move |ctx: &mut KernelCtx| {
        let array = array_input(ctx)?;
        array.expect_dtype(dtype, "requested")?;
        let n = array.pack_size()?;
        if n == 0 {
            let Some(shape) = except_first.to_full() else {
                return Err(unimplemented_error!(
                    "TensorArray has size zero, but element_shape_except0 {except_first} is not \
                     fully defined. Currently only static shapes are supported when concatenating \
                     zero-size TensorArrays."
                ));
            };
            let out = Tensor::zeros(dtype, prepended(0, &shape)?)?;
            ctx.set_output(0, out)?;
            return ctx.set_output(1, Tensor::vector::<i64>(&[])?);
        }
        let values = array.read_many(0..n as i64)?;
        let (lengths, shape) = concat_lengths(&values, &except_first)?;
        let parts: Vec<_> = values.iter().map(|v| (Some(v), v.num_elements())).collect();
        let out = joined(dtype, shape, &parts)?;
        ctx.set_output(0, out)?;
        ctx.set_output(1, Tensor::vector(&lengths)?)
    }))
}

/// Returns the length of every value and the shape of their concatenation.
fn concat_lengths(values: &[Tensor], except_first: &PartialShape) -> Result<(Vec<i64>, Shape)> {
    let mut rest: Option<&[usize]> = None;
    let (mut lengths, mut total) = (Vec::with_capacity(values.len()), 0usize);
    for (i, value) in values.iter().enumerate() {
        let Some((&n, row)) = value.shape().split_first() else {
            return Err(invalid_argument!(
                "Concat saw a scalar shape at index {i} but requires at least vectors.  Did you \
                 mean to call pack?"
            ));
        };
        let row_shape = Shape::from(row);
        match rest {
            None if !except_first.matches(&row_shape) => {
                return Err(invalid_argument!(
                    "TensorArray was passed element_shape_except0 {except_first} but index 0 has \
                     (excepting dimension 0) shape: {row_shape} which does not match."
                ));
            }
            None => rest = Some(row),
            Some(first) if first != row => {
                return Err(invalid_argument!(
                    "TensorArray has inconsistent shapes.  Index 0 has (excepting dimension 0) \
                     shape: {} but index {i} has (excepting dimension 0) shape: {row_shape}",
                    Shape::from(first)
                ));
            }
            Some(_) => {}
        }
        lengths.push(n as i64);
        total = total.saturating_add(n);
    }
    let rest = Shape::from(rest.unwrap_or(&[]));
    Ok((lengths, prepended(total, &rest)?))
}

pub(crate) fn split(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    let dtype = build.input(1)?;
    Ok(Box::new(move |ctx: &mut KernelCtx| {
        let array = array_input(ctx)?;
        array.expect_dtype(dtype, "is trying to write")?;
        let lengths = ctx.input(2)?;
        if lengths.shape().rank() != 1 {
            return Err(invalid_argument!(
                "Expected lengths to be a vector, received shape: {}",
                lengths.shape()
            ));
        }
        let lengths = indices::ints(lengths)?;
        let value = ctx.input(1)?;
        let Some((&n, row)) = value.shape().split_first() else {
            return Err(invalid_argument!(
                "Expected value to be at least a vector, but received shape: []"
            ));
        };
        let pieces = pieces(&lengths).filter(|p| p.last().map_or(0, |p| p.1) == n);
        let Some(pieces) = pieces else {
            return Err(invalid_argument!(
                "Expected sum of lengths to be equal to values.shape[0], but sum of lengths is {} \
                 and value's shape is: {}",
                lengths.iter().fold(0i64, |a, &b| a.saturating_add(b)),
                value.shape()
            ));
        };
        let size = array.len()?;
        if lengths.len() != size && !array.is_dynamic() {
            return Err(invalid_argument!(
                "TensorArray's size is not equal to the size of lengths ({size} vs. {}), and the \
                 TensorArray is not marked as dynamically resizeable",
                lengths.len()
            ));
        }
        // Pieces differ in the first dimension only.
        let piece_shape = with_leading(None, &(&Shape::from(row)).into());
        merged(&array.element_shape()?, &piece_shape)?;
        let row = Shape::from(row);
        let row_len = row.num_elements();
        let items = pieces
            .iter()
            .map(|&(start, end)| value.view(start * row_len, prepended(end - start, &row)?))
            .collect::<Result<Vec<_>>>()?;
        array.mark_size(items.len())?;
        write_all(&array, items)?;
        pass_flow(ctx, 3)
    }))
}

fn write_all(array: &TensorArray, items: Vec<Tensor>) -> Result<()> {
    array.write_many((0i64..).zip(items))
}

pub(crate) fn size(_: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    Ok(Box::new(|ctx: &mut KernelCtx| {
        let n = array_input(ctx)?.len()?;
        ctx.set_output(0, indices::int_scalar(DType::Int32, n as i64)?)
    }))
}

pub(crate) fn close(_: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    Ok(Box::new(|ctx: &mut KernelCtx| {
        array_input(ctx)?.close();
        Ok(())
    }))
}

fn grad_shape(ctx: &mut ShapeCtx) -> Result<()> {
    ctx.set(0, PartialShape::scalar());
    ctx.set(1, PartialShape::scalar());
    Ok(())
}

pub(crate) fn gradient_array(build: &KernelBuild, has_shape: bool) -> Result<Box<dyn OpKernel>> {
    let source = build.attrs.str("source")?.to_string();
    let dtype = build.output(0)?;
    Ok(Box::new(move |ctx: &mut KernelCtx| {
        let prepended = match has_shape {
            false => Shape::scalar(),
            true => Shape::checked(&vector_input(ctx, 2, "shape_to_prepend")?)?,
        };
        let array = array_input(ctx)?.gradient(&source, &prepended)?;
        ctx.set_output(0, array.handle(dtype)?)?;
        let flow = ctx.take_input(1)?;
        match ctx.num_outputs() {
            1 => Ok(()),
            _ => ctx.set_output(1, flow),
        }
    }))
}

/// Returns the array of gradients and its flow.
fn array_of<'g>(g: &GradientCtx<'g>, flow: Expr<'g>) -> (Expr<'g>, Expr<'g>) {
    let source = g.source();
    let attrs = [("source", source.as_str().into())];
    let op = of_version(g, "TensorArrayGrad");
    let made = flow.node(&op, &[g.x(0), flow], &attrs);
    match made[..] {
        [handle, flow] => (handle, flow),
        // Arrays of the first versions do not have a flow.
        [handle] => {
            let after = flow.node_after("Identity", &[flow], &[], &[handle]);
            (handle, after.first().copied().unwrap_or(flow.nothing()))
        }
        _ => (flow.nothing(), flow.nothing()),
    }
}

/// Returns the op of this family whose handles are like the node's.
fn of_version(g: &GradientCtx, op: &str) -> String {
    let name = g.op_name();
    let version = ["V2", "V3"].into_iter().find(|v| name.ends_with(v));
    format!("{op}{}", version.unwrap_or_default())
}

pub(crate) fn read_gradient(g: &mut GradientCtx) -> Result<()> {
    let (array, flow) = array_of(g, g.x(2));
    let flow = array.op(&of_version(g, "TensorArrayWrite"), &[g.x(1), g.dy(0), flow]);
    g.set(2, flow)
}

pub(crate) fn write_gradient(g: &mut GradientCtx) -> Result<()> {
    let d = g.dy(0);
    let (array, flow) = array_of(g, d);
    let attrs = [("dtype", g.x(2).dtype().into())];
    let dx = array.op_with(&of_version(g, "TensorArrayRead"), &[g.x(1), flow], &attrs);
    g.set(2, dx)?;
    g.set(3, d)
}

pub(crate) fn gather_gradient(g: &mut GradientCtx) -> Result<()> {
    let (array, flow) = array_of(g, g.x(2));
    let flow = array.op(
        &of_version(g, "TensorArrayScatter"),
        &[g.x(1), g.dy(0), flow],
    );
    g.set(2, flow)
}

pub(crate) fn scatter_gradient(g: &mut GradientCtx) -> Result<()> {
    let d = g.dy(0);
    let (array, flow) = array_of(g, d);
    let attrs = [("dtype", g.x(2).dtype().into())];
    let dx = array.op_with(&of_version(g, "TensorArrayGather"), &[g.x(1), flow], &attrs);
    g.set(2, dx)?;
    g.set(3, d)
}

pub(crate) fn concat_gradient(g: &mut GradientCtx) -> Result<()> {
    let (array, flow) = array_of(g, g.x(1));
    let flow = array.op(&of_version(g, "TensorArraySplit"), &[g.dy(0), g.y(1), flow]);
    g.set(1, flow)
}

pub(crate) fn split_gradient(g: &mut GradientCtx) -> Result<()> {
    let d = g.dy(0);
    let (array, flow) = array_of(g, d);
    let attrs = [("dtype", g.x(1).dtype().into())];
    let dx = array.op_with(&of_version(g, "TensorArrayConcat"), &[flow], &attrs);
    g.set(1, dx)?;
    g.set(3, d)
}
