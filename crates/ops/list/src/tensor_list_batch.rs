//! Ops on many elements of tensor lists: conversion from and to tensors (TensorFlow:
//! `core/kernels/list_kernels.cc`).

use crate::tensor_list::of_dtype;
use ferroflow_base::{Result, invalid_argument};
use ferroflow_functors::indices::{self, Ints};
use ferroflow_functors::sequence::{
    grow, merged, shape_from_tensor, shape_input, with_leading, without_leading,
};
use ferroflow_functors::shapes;
use ferroflow_functors::tensor_list::{TensorList, change, list_input};
use ferroflow_opdef::{Expr, GradientCtx, KernelBuild, KernelCtx, Op, OpKernel, ShapeCtx};
use ferroflow_tensor::rows::{joined, pieces, prepended, rows, split_first};
use ferroflow_tensor::{PartialShape, Shape, Tensor};

/// The ops of this file.
pub(crate) const OPS: &[Op] = &[
    Op::new(
        "TensorListStack",
        "input_handle: variant, element_shape: int32 -> tensor: element_dtype | \
         element_dtype: type; num_elements: int = -1",
    )
    .shape(|ctx| {
        let n = usize::try_from(ctx.attrs().int("num_elements")?).ok();
        let shape = with_leading(n, &shape_input(ctx, 1)?);
        ctx.set(0, shape);
        Ok(())
    })
    .kernel(stack)
    .gradient(stack_gradient),
    Op::new(
        "TensorListFromTensor",
        "tensor: element_dtype, element_shape: shape_type -> output_handle: variant | \
         element_dtype: type; shape_type: type {int32,int64}",
    )
    .shape(|ctx| {
        let tensor = ctx.with_rank_at_least(0, 1)?;
        merged(&without_leading(&tensor), &shape_input(ctx, 1)?)?;
        shapes::scalar(ctx)
    })
    .kernel(from_tensor)
    .gradient(from_tensor_gradient),
    Op::new(
        "TensorListGather",
        "input_handle: variant, indices: int32, element_shape: int32 -> values: \
         element_dtype | element_dtype: type",
    )
    .shape(|ctx| {
        let indices = ctx.with_rank(1, 1)?;
        let shape = with_leading(indices.dim(0), &shape_input(ctx, 2)?);
        ctx.set(0, shape);
        Ok(())
    })
    .kernel(gather)
    .gradient(gather_gradient),
    Op::new(
        "TensorListScatter",
        "tensor: element_dtype, indices: int32, element_shape: shape_type -> \
         output_handle: variant | element_dtype: type; shape_type: type {int32,int64}",
    )
    .shape(scatter_shape)
    .kernel(scatter)
    .gradient(scatter_gradient),
    Op::new(
        "TensorListScatterV2",
        "tensor: element_dtype, indices: int32, element_shape: shape_type, \
         num_elements: int32 -> output_handle: variant | element_dtype: type; \
         shape_type: type {int32,int64}",
    )
    .shape(scatter_shape)
    .kernel(scatter)
    .gradient(scatter_gradient),
    Op::new(
        "TensorListScatterIntoExistingList",
        "input_handle: variant, tensor: element_dtype, indices: int32 -> \
         output_handle: variant | element_dtype: type",
    )
    .shape(shapes::scalar)
    .kernel(scatter_into)
    .gradient(scatter_into_gradient),
    Op::new(
        "TensorListConcat",
        "input_handle: variant -> tensor: element_dtype, lengths: int64 | \
         element_dtype: type; element_shape: shape = unknown",
    )
    .shape(|ctx| {
        let shape = ctx.attrs().shape("element_shape")?.clone();
        concat_shape(ctx, &shape)
    })
    .kernel(concat)
    .gradient(concat_gradient),
    Op::new(
        "TensorListConcatV2",
        "input_handle: variant, element_shape: shape_type, leading_dims: int64 -> \
         tensor: element_dtype, lengths: int64 | element_dtype: type; shape_type: type \
         {int32,int64}",
    )
    .shape(|ctx| {
        let shape = shape_input(ctx, 1)?;
        concat_shape(ctx, &shape)
    })
    .kernel(concat)
    .gradient(concat_gradient),
    Op::new(
        "TensorListSplit",
        "tensor: element_dtype, element_shape: shape_type, lengths: int64 -> \
         output_handle: variant | element_dtype: type; shape_type: type {int32,int64}",
    )
    .shape(|ctx| {
        ctx.with_rank_at_least(0, 1)?;
        ctx.with_rank(2, 1)?;
        shapes::scalar(ctx)
    })
    .kernel(split)
    .gradient(split_gradient),
];

/// Stacks selected elements of a list to one tensor.
fn stacked<'a>(
    list: &TensorList,
    shape: &Shape,
    picked: impl ExactSizeIterator<Item = &'a Option<Tensor>>,
) -> Result<Tensor> {
    let n = shape.num_elements();
    let out = prepended(picked.len(), shape)?;
    let parts: Vec<_> = picked.map(|e| (e.as_ref(), n)).collect();
    joined(list.dtype, out, &parts)
}

fn stack(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    let dtype = build.attrs.dtype("element_dtype")?;
    let n = build.attrs.int("num_elements")?;
    Ok(Box::new(move |ctx: &mut KernelCtx| {
        let list = list_input(ctx, 0)?;
        list.expect_dtype(dtype)?;
        if n != -1 && list.elements.len() as i64 != n {
            return Err(invalid_argument!(
                "Operation expected a list with {n} elements but got a list with {} elements.",
                list.elements.len()
            ));
        }
        let shape = list.shape_with(ctx, 1)?;
        if list.elements.is_empty() && shape.to_full().is_none() {
            return Err(invalid_argument!(
                "Tried to stack elements of an empty list with non-fully-defined element_shape: \
                 {shape}"
            ));
        }
        let shape = TensorList::shape_of(shape, &list.elements)?;
        let Some(shape) = shape.to_full() else {
            return Err(invalid_argument!(
                "Tried to stack list which only contains uninitialized tensors and has a \
                 non-fully-defined element_shape: {shape}"
            ));
        };
        let out = stacked(list, &shape, list.elements.iter())?;
        ctx.set_output(0, out)
    }))
}

fn from_tensor(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    let dtype = build.attrs.dtype("element_dtype")?;
    Ok(Box::new(move |ctx: &mut KernelCtx| {
        let sizes = ctx.input(1)?;
        if sizes.shape().rank() > 1 {
            return Err(invalid_argument!(
                "TensorListFromTensor: element_shape must be at most rank 1 but has the shape of {}",
                sizes.shape()
            ));
        }
        let mut list = TensorList::new(dtype, shape_from_tensor(sizes)?);
        let tensor = ctx.input(0)?;
        let (_, row) = split_first(tensor.shape())?;
        fits(&list.element_shape, &row)?;
        list.elements = rows(tensor)?.into_iter().map(Some).collect();
        ctx.set_output(0, list.into_tensor()?)
    }))
}

fn fits(element_shape: &PartialShape, row: &Shape) -> Result<()> {
    if element_shape.matches(row) {
        return Ok(());
    }
    Err(invalid_argument!(
        "Specified a list with shape {element_shape} from a tensor with shape {row}"
    ))
}

fn gather(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    let dtype = build.attrs.dtype("element_dtype")?;
    Ok(Box::new(move |ctx: &mut KernelCtx| {
        let list = list_input(ctx, 0)?;
        list.expect_dtype(dtype)?;
        let wanted = indices::ints(ctx.input(1)?)?;
        let shape = list.shape_with(ctx, 2)?;
        let (picked, shape) = list.gathered(&wanted, shape)?;
        let out = stacked(list, &shape, picked.into_iter())?;
        ctx.set_output(0, out)
    }))
}

fn scatter_shape(ctx: &mut ShapeCtx) -> Result<()> {
    shape_input(ctx, 2)?;
    shapes::scalar(ctx)
}

fn scatter(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    let dtype = build.attrs.dtype("element_dtype")?;
    Ok(Box::new(move |ctx: &mut KernelCtx| {
        let sizes = ctx.input(2)?;
        if sizes.shape().rank() > 1 {
            return Err(invalid_argument!(
                "TensorListScatter: element_shape must be at most rank 1 but has the shape of {}",
                sizes.shape()
            ));
        }
        let mut list = TensorList::new(dtype, shape_from_tensor(sizes)?);
        let n = match ctx.num_inputs() {
            4 => indices::int(ctx.input(3)?)
                .filter(|_| ctx.shape(3).is_ok_and(|s| s.is_scalar()))
                .ok_or_else(|| invalid_argument!("num_elements must be a scalar"))?,
            _ => -1,
        };
        if n < -1 {
            return Err(invalid_argument!(
                "TensorListScatter expects num_elements >= -1, found: {n}"
            ));
        }
        let tensor = ctx.input(0)?;
        let (n_rows, row) = split_first(tensor.shape())?;
        fits(&list.element_shape, &row)?;
        let at = indices::ints(ctx.input(1)?)?;
        if at.len() != n_rows {
            return Err(invalid_argument!(
                "Invalid number of rows in input tensor. Expected: {} Actual: {n_rows}",
                at.len()
            ));
        }
        for &i in &at {
            if i < 0 {
                return Err(invalid_argument!(
                    "Indices in TensorListScatter must all be non-negative."
                ));
            }
            if n != -1 && i >= n {
                return Err(invalid_argument!(
                    "TensorListScatter: Trying to scatter at index {i} in list with size {n}"
                ));
            }
        }
        grow(&mut list.elements, usize::try_from(n).unwrap_or(0))?;
        place(&mut list, &at, rows(tensor)?)?;
        ctx.set_output(0, list.into_tensor()?)
    }))
}

/// Stores the items at their positions, which are not negative.
fn place(list: &mut TensorList, at: &[i64], items: Vec<Tensor>) -> Result<()> {
    let last = at.iter().max().and_then(|&i| usize::try_from(i).ok());
    if let Some(last) = last {
        grow(&mut list.elements, last.saturating_add(1))?;
    }
    for (&i, item) in at.iter().zip(items) {
        let slot = usize::try_from(i)
            .ok()
            .and_then(|i| list.elements.get_mut(i));
        if let Some(slot) = slot {
            *slot = Some(item);
        }
    }
    Ok(())
}

fn scatter_into(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    let dtype = build.attrs.dtype("element_dtype")?;
    Ok(Box::new(move |ctx: &mut KernelCtx| {
        let list = list_input(ctx, 0)?;
        if list.dtype != dtype {
            return Err(invalid_argument!(
                "Invalid data types; input tensor type: {dtype} list element_type: {}",
                list.dtype
            ));
        }
        let (tensor, at) = (ctx.input(1)?, ctx.input(2)?);
        let (n_rows, row) = split_first(tensor.shape())?;
        if at.shape().rank() != 1 {
            return Err(invalid_argument!(
                "Expected indices to be a vector, but received shape: {}",
                at.shape()
            ));
        }
        if at.num_elements() != n_rows {
            return Err(invalid_argument!(
                "Expected len(indices) == tensor.shape[0], but saw: {} vs. {n_rows}",
                at.num_elements()
            ));
        }
        fits(&list.element_shape, &row)?;
        let at = indices::ints(at)?;
        if at.iter().any(|&i| i < 0) {
            return Err(invalid_argument!(
                "Indices in TensorListScatter must all be non-negative."
            ));
        }
        let items = rows(tensor)?;
        change(ctx, 0, 0, |list| place(list, &at, items))
    }))
}

fn concat_shape(ctx: &mut ShapeCtx, element: &PartialShape) -> Result<()> {
    if element.rank().is_some() {
        let shape = with_leading(None, &without_leading(element));
        ctx.set(0, shape);
    }
    ctx.set(1, PartialShape::of([None]));
    Ok(())
}

/// Returns the length of every element of a concatenation and its shape.
fn concat_lengths(
    list: &TensorList,
    element: &PartialShape,
    leading: Option<&[i64]>,
) -> Result<(Ints, Shape)> {
    if element.rank() == Some(0) {
        return Err(invalid_argument!(
            "Concat requires elements to be at least vectors, found scalars instead."
        ));
    }
    let first = element.dim(0);
    let mut rest = without_leading(element);
    if list.elements.is_empty() && rest.to_full().is_none() {
        return Err(invalid_argument!(
            "All except the first dimension must be fully defined when concating an empty tensor \
             list. element_shape: {rest}"
        ));
    }
    let mut lengths = list
        .elements
        .iter()
        .flatten()
        .map(|t| t.shape().first().copied());
    let common = match lengths.next().flatten() {
        Some(n) if lengths.all(|m| m == Some(n)) => Some(n),
        _ => None,
    };
    for (i, t) in list.elements.iter().enumerate() {
        let Some(t) = t else { continue };
        let Some((&n, row)) = t.shape().split_first() else {
            return Err(invalid_argument!(
                "Concat saw a scalar shape at index {i} but requires at least vectors."
            ));
        };
        rest = merged(&rest, &(&Shape::from(row)).into())?;
        if let Some(first) = first
            && first != n
        {
            return Err(invalid_argument!(
                "First entry of element_shape input does not match the first dim of list element \
                 at index: {i} Expected: {first} Actual: {n}"
            ));
        }
    }
    let Some(rest) = rest.to_full() else {
        return Err(invalid_argument!(
            "Trying to concat list with only uninitialized tensors but \
             element_shape_except_first_dim is not fully defined: {rest}"
        ));
    };
    let lengths = lengths_of(list, first.or(common), leading)?;
    let total = lengths
        .iter()
        .try_fold(0usize, |sum, &n| sum.checked_add(usize::try_from(n).ok()?))
        .ok_or_else(|| invalid_argument!("leading_dims has a negative or too large entry"))?;
    Ok((lengths, prepended(total, &rest)?))
}

/// Returns the length of every element; `first` is that of elements without a tensor or an entry in `leading`.
fn lengths_of(list: &TensorList, first: Option<usize>, leading: Option<&[i64]>) -> Result<Ints> {
    let mut lengths = Ints::new();
    for (i, t) in list.elements.iter().enumerate() {
        let given = leading.and_then(|l| l.get(i)).copied();
        lengths.push(match (t, given, first, leading) {
            (Some(t), ..) => t.shape().first().map_or(0, |&n| n as i64),
            (None, Some(n), ..) => n,
            (None, None, Some(first), _) => first as i64,
            (None, None, None, None) => {
                return Err(invalid_argument!(
                    "Concating lists with uninitialized tensors is not supported in this version \
                     of TensorListConcat. Consider updating your GraphDef to run the newer version."
                ));
            }
            (None, None, None, Some(l)) => {
                return Err(invalid_argument!(
                    "List contains uninitialized tensor at index {i} but leading_dims has only {} \
                     elements.",
                    l.len()
                ));
            }
        });
    }
    Ok(lengths)
}

fn concat(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    let dtype = build.attrs.dtype("element_dtype")?;
    let attr = build.attrs.shape("element_shape").ok().cloned();
    Ok(Box::new(move |ctx: &mut KernelCtx| {
        let list = list_input(ctx, 0)?;
        if attr.as_ref().is_some_and(|s| s.rank() == Some(0)) {
            return Err(invalid_argument!("element_shape must not be empty"));
        }
        list.expect_dtype(dtype)?;
        let (element, leading) = match &attr {
            Some(shape) => (merged(shape, &list.element_shape)?, None),
            None => (
                list.shape_with(ctx, 1)?,
                Some(indices::ints(ctx.input(2)?)?),
            ),
        };
        let (lengths, shape) = concat_lengths(list, &element, leading.as_deref())?;
        let row: usize = shape.iter().skip(1).product();
        let parts: Vec<_> = list
            .elements
            .iter()
            .zip(&lengths)
            .map(|(e, &n)| (e.as_ref(), n as usize * row))
            .collect();
        let out = joined(dtype, shape, &parts)?;
        ctx.set_output(0, out)?;
        ctx.set_output(1, Tensor::vector(&lengths)?)
    }))
}

fn split(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    let dtype = build.attrs.dtype("element_dtype")?;
    Ok(Box::new(move |ctx: &mut KernelCtx| {
        let mut list = TensorList::new(dtype, shape_from_tensor(ctx.input(1)?)?);
        if list.element_shape.rank() == Some(0) {
            return Err(invalid_argument!(
                "TensorListSplit requires element_shape to be at least of rank 1, but saw: []"
            ));
        }
        let (tensor, lengths) = (ctx.input(0)?, ctx.input(2)?);
        let (n, row) = split_first(tensor.shape())?;
        if !without_leading(&list.element_shape).matches(&row) {
            return Err(invalid_argument!(
                "tensor shape {} is not compatible with element_shape {}",
                tensor.shape(),
                list.element_shape
            ));
        }
        if lengths.shape().rank() != 1 {
            return Err(invalid_argument!(
                "Expected lengths to be a vector, received shape: {}",
                lengths.shape()
            ));
        }
        let lengths = indices::ints(lengths)?;
        if let Some(bad) = lengths.iter().find(|&&l| l < 0) {
            return Err(invalid_argument!("Invalid value in lengths: {bad}"));
        }
        let pieces = pieces(&lengths)
            .ok_or_else(|| invalid_argument!("the sum of the lengths is too large"))?;
        if let Some((start, end)) = pieces.iter().find(|(_, end)| *end > n) {
            return Err(invalid_argument!(
                "Attempting to slice [{start}, {end}] from tensor with length {n}"
            ));
        }
        let used = pieces.last().map_or(0, |p| p.1);
        if used != n {
            return Err(invalid_argument!(
                "Unused values in tensor. Length of tensor: {n} Values used: {used}"
            ));
        }
        let size = row.num_elements();
        let piece = |&(start, end): &(usize, usize)| {
            let shape = prepended(end - start, &row)?;
            tensor.view(start * size, shape).map(Some)
        };
        list.elements = pieces.iter().map(piece).collect::<Result<_>>()?;
        ctx.set_output(0, list.into_tensor()?)
    }))
}

/// Returns the shape of one element of a tensor of several.
fn row_shape(t: Expr) -> Expr {
    let attrs = [("end_mask", 1i64.into())];
    let slice = [t.ints([1]), t.ints([0]), t.ints([1])];
    t.shape_of().op_with("StridedSlice", &slice, &attrs)
}

fn stack_gradient(g: &mut GradientCtx) -> Result<()> {
    let d = g.dy(0);
    g.set(0, d.op("TensorListFromTensor", &[row_shape(d)]))
}

fn from_tensor_gradient(g: &mut GradientCtx) -> Result<()> {
    let (x, d) = (g.x(0), g.dy(0));
    let dx = d.op_with("TensorListStack", &[row_shape(x)], &of_dtype(x.dtype()));
    g.set(0, dx.reshape_like(x))
}

fn gather_gradient(g: &mut GradientCtx) -> Result<()> {
    let (list, indices, d) = (g.x(0), g.x(1), g.dy(0));
    let n = list.op("TensorListLength", &[]);
    let dx = d.op("TensorListScatterV2", &[indices, row_shape(d), n]);
    g.set(0, dx)
}

fn scatter_gradient(g: &mut GradientCtx) -> Result<()> {
    let (x, indices, d) = (g.x(0), g.x(1), g.dy(0));
    let inputs = [indices, row_shape(x)];
    g.set(
        0,
        d.op_with("TensorListGather", &inputs, &of_dtype(x.dtype())),
    )
}

fn scatter_into_gradient(g: &mut GradientCtx) -> Result<()> {
    let (x, indices, d) = (g.x(1), g.x(2), g.dy(0));
    let gone = [x.zeros_like(), indices];
    g.set(0, d.op("TensorListScatterIntoExistingList", &gone))?;
    let inputs = [indices, row_shape(x)];
    g.set(
        1,
        d.op_with("TensorListGather", &inputs, &of_dtype(x.dtype())),
    )
}

fn concat_gradient(g: &mut GradientCtx) -> Result<()> {
    let (d, lengths) = (g.dy(0), g.y(1));
    // Elements differ in their first dimension.
    let rest = row_shape(d);
    let shape = d.make("ConcatV2", &[d.ints([-1]), rest, d.int(0)], &[]);
    g.set(0, d.op("TensorListSplit", &[shape, lengths]))
}

fn split_gradient(g: &mut GradientCtx) -> Result<()> {
    let (x, d) = (g.x(0), g.dy(0));
    let shape = x.make("ConcatV2", &[x.ints([-1]), row_shape(x), x.int(0)], &[]);
    let lengths = x.constant(ferroflow_tensor::Tensor::vector::<i64>(&[]));
    let dx = d.op_with(
        "TensorListConcatV2",
        &[shape, lengths],
        &of_dtype(x.dtype()),
    );
    g.set(0, dx)
}
