//! Ops on elements of tensor lists: creating, resizing, reading, setting, pushing and popping
//! (TensorFlow: `core/kernels/list_kernels.cc`).

use ferroflow_base::{Result, Status, invalid_argument, out_of_range};
use ferroflow_functors::sequence::{grow, merged, shape_from_tensor, shape_input, shape_to_tensor};
use ferroflow_functors::tensor_list::{TensorList, change, change_variant, list_at, list_input};
use ferroflow_functors::{indices, shapes};
use ferroflow_opdef::{Cost, Expr, GradientCtx, KernelBuild, KernelCtx, Op, OpKernel, ShapeCtx};
use ferroflow_tensor::rows::rows;
use ferroflow_tensor::{DType, PartialShape, Shape, Tensor, Variant};

/// The ops of this file.
pub(crate) const OPS: &[Op] = &[
    Op::new(
        "EmptyTensorList",
        "element_shape: shape_type, max_num_elements: int32 -> handle: variant | \
         element_dtype: type; shape_type: type {int32,int64}",
    )
    .shape(|ctx| {
        ctx.with_rank(1, 0)?;
        shapes::scalar(ctx)
    })
    .cost(Cost::Cheap)
    .kernel(empty)
    .not_differentiable(),
    Op::new(
        "TensorListReserve",
        "element_shape: shape_type, num_elements: int32 -> handle: variant | \
         element_dtype: type; shape_type: type {int32,int64}",
    )
    .shape(|ctx| {
        shape_input(ctx, 0)?;
        ctx.with_rank(1, 0)?;
        shapes::scalar(ctx)
    })
    .cost(Cost::Cheap)
    .kernel(reserve)
    .not_differentiable(),
    Op::new(
        "TensorListElementShape",
        "input_handle: variant -> element_shape: shape_type | shape_type: type \
         {int32,int64}",
    )
    .cost(Cost::Cheap)
    .kernel(element_shape)
    .not_differentiable(),
    Op::new("TensorListLength", "input_handle: variant -> length: int32")
        .shape(shapes::scalar)
        .cost(Cost::Cheap)
        .kernel(length)
        .not_differentiable(),
    Op::new(
        "TensorListGetItem",
        "input_handle: variant, index: int32, element_shape: Tshape -> item: \
         element_dtype | element_dtype: type; Tshape: type {int32,int64} = int32",
    )
    .shape(|ctx| {
        ctx.with_rank(1, 0)?;
        let shape = shape_input(ctx, 2)?;
        ctx.set(0, shape);
        Ok(())
    })
    .cost(Cost::Cheap)
    .kernel(get_item)
    .gradient(get_item_gradient),
    Op::new(
        "TensorListSetItem",
        "input_handle: variant, index: int32, item: element_dtype -> output_handle: \
         variant | element_dtype: type; resize_if_index_out_of_bounds: bool = false",
    )
    .shape(|ctx| {
        ctx.with_rank(1, 0)?;
        shapes::scalar(ctx)
    })
    .cost(Cost::Cheap)
    .kernel(set_item)
    .gradient(set_item_gradient),
    Op::new(
        "TensorListPushBack",
        "input_handle: variant, tensor: element_dtype -> output_handle: variant | \
         element_dtype: type",
    )
    .shape(shapes::scalar)
    .cost(Cost::Cheap)
    .kernel(push_back)
    .gradient(push_back_gradient),
    Op::new(
        "TensorListPopBack",
        "input_handle: variant, element_shape: int32 -> output_handle: variant, \
         tensor: element_dtype | element_dtype: type",
    )
    .shape(|ctx| {
        let shape = shape_input(ctx, 1)?;
        ctx.set(0, PartialShape::scalar());
        ctx.set(1, shape);
        Ok(())
    })
    .cost(Cost::Cheap)
    .kernel(pop_back)
    .gradient(pop_back_gradient),
    Op::new(
        "TensorListPushBackBatch",
        "input_handles: variant, tensor: element_dtype -> output_handles: variant | \
         element_dtype: type",
    )
    .shape(push_back_batch_shape)
    .kernel(push_back_batch)
    .not_differentiable(),
    Op::new(
        "TensorListResize",
        "input_handle: variant, size: int32 -> output_handle: variant",
    )
    .shape(shapes::scalar)
    .cost(Cost::Cheap)
    .kernel(resize)
    .gradient(resize_gradient),
    Op::new(
        "TensorListConcatLists",
        "input_a: variant, input_b: variant -> output: variant | element_dtype: type",
    )
    .shape(|ctx| {
        let shape = ctx.merge(&ctx.input(0), &ctx.input(1))?;
        ctx.set(0, shape);
        Ok(())
    })
    .kernel(concat_lists)
    .not_differentiable(),
];

/// Returns the value of a scalar int32 input.
fn scalar_input(ctx: &KernelCtx, i: usize) -> Result<i64> {
    let t = ctx.input(i)?;
    indices::int(t)
        .ok_or_else(|| invalid_argument!("expected a scalar, got a tensor of shape {}", t.shape()))
}

fn empty(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    let dtype = build.attrs.dtype("element_dtype")?;
    Ok(Box::new(move |ctx: &mut KernelCtx| {
        let max = ctx.input(1)?;
        if !max.shape().is_scalar() {
            return Err(invalid_argument!(
                "max_num_elements expected to be a scalar but got shape: {}",
                max.shape()
            ));
        }
        let mut list = TensorList::new(dtype, shape_from_tensor(ctx.input(0)?)?);
        list.max_elements = usize::try_from(max.to_scalar::<i32>()?).ok();
        ctx.set_output(0, list.into_tensor()?)
    }))
}

fn reserve(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    let dtype = build.attrs.dtype("element_dtype")?;
    Ok(Box::new(move |ctx: &mut KernelCtx| {
        let n = ctx.input(1)?;
        if n.num_elements() != 1 {
            return Err(invalid_argument!(
                "The num_elements to reserve must be a tensor size 1, but got {}",
                n.shape()
            ));
        }
        let n = scalar_input(ctx, 1)?;
        let Ok(n) = usize::try_from(n) else {
            return Err(invalid_argument!(
                "The num_elements to reserve must be a non negative number, but got {n}"
            ));
        };
        let mut list = TensorList::new(dtype, shape_from_tensor(ctx.input(0)?)?);
        grow(&mut list.elements, n)?;
        ctx.set_output(0, list.into_tensor()?)
    }))
}

fn element_shape(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    let dtype = build.output(0)?;
    Ok(Box::new(move |ctx: &mut KernelCtx| {
        let shape = shape_to_tensor(&list_input(ctx, 0)?.element_shape, dtype)?;
        ctx.set_output(0, shape)
    }))
}

fn length(_: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    Ok(Box::new(|ctx: &mut KernelCtx| {
        let n = list_input(ctx, 0)?.elements.len();
        ctx.set_output(0, indices::int_scalar(DType::Int32, n as i64)?)
    }))
}

fn get_item(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    let dtype = build.attrs.dtype("element_dtype")?;
    Ok(Box::new(move |ctx: &mut KernelCtx| {
        let list = list_input(ctx, 0)?;
        list.expect_dtype(dtype)?;
        let index = scalar_input(ctx, 1)?;
        let slot = usize::try_from(index)
            .ok()
            .and_then(|i| list.elements.get(i));
        let item = match slot {
            None => return Err(outside("access", index, list)),
            Some(Some(item)) => item.clone(),
            Some(None) => {
                let mut shape = list.shape_with(ctx, 2)?;
                if shape.to_full().is_none() {
                    shape = TensorList::shape_of(shape, &list.elements)?;
                }
                zeros(dtype, &shape, || {
                    format!(
                        "element_shape is not fully defined: {shape} and no list element is set."
                    )
                })?
            }
        };
        ctx.set_output(0, item)
    }))
}

fn zeros(dtype: DType, shape: &PartialShape, why: impl Fn() -> String) -> Result<Tensor> {
    match shape.to_full() {
        Some(shape) => Tensor::zeros(dtype, shape),
        None => Err(invalid_argument!(
            "Trying to read an uninitialized tensor but {}",
            why()
        )),
    }
}

#[cold]
fn outside(what: &str, index: i64, list: &TensorList) -> Status {
    invalid_argument!(
        "Trying to {what} element {index} in a list with {} elements.",
        list.elements.len()
    )
}

fn set_item(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    let dtype = build.attrs.dtype("element_dtype")?;
    let resize = build.attrs.bool("resize_if_index_out_of_bounds")?;
    Ok(Box::new(move |ctx: &mut KernelCtx| {
        let index = scalar_input(ctx, 1)?;
        let item = ctx.take_input(2)?;
        change(ctx, 0, 0, |list| {
            list.expect_dtype(dtype)?;
            let at = usize::try_from(index)
                .ok()
                .filter(|&i| resize || i < list.elements.len())
                .ok_or_else(|| outside("modify", index, list))?;
            let shape = item.shape();
            if !list.element_shape.matches(shape) {
                return Err(invalid_argument!(
                    "Tried to set a tensor with incompatible shape at a list index. \
                     Item element shape: {shape} list shape: {}",
                    list.element_shape
                ));
            }
            grow(&mut list.elements, at + 1)?;
            if let Some(slot) = list.elements.get_mut(at) {
                *slot = Some(item);
            }
            Ok(())
        })
    }))
}

fn push_back(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    let dtype = build.attrs.dtype("element_dtype")?;
    Ok(Box::new(move |ctx: &mut KernelCtx| {
        let list = list_input(ctx, 0)?;
        let shape = ctx.shape(1)?;
        if !list.element_shape.matches(shape) {
            return Err(invalid_argument!(
                "Tried to append a tensor with incompatible shape to a list. \
                 Op element shape: {shape} list shape: {}",
                list.element_shape
            ));
        }
        list.expect_dtype(dtype)?;
        if let Some(max) = list.max_elements
            && list.elements.len() >= max
        {
            return Err(invalid_argument!(
                "Tried to push item into a full list list size: {} max_num_elements: {max}",
                list.elements.len()
            ));
        }
        let item = ctx.take_input(1)?;
        change(ctx, 0, 0, |list| {
            list.elements.push(Some(item));
            Ok(())
        })
    }))
}

fn pop_back(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    let dtype = build.attrs.dtype("element_dtype")?;
    Ok(Box::new(move |ctx: &mut KernelCtx| {
        let list = list_input(ctx, 0)?;
        list.expect_dtype(dtype)?;
        let unwritten = match list.elements.last() {
            None => return Err(invalid_argument!("Trying to pop from an empty list.")),
            Some(Some(_)) => None,
            Some(None) => {
                let shape = list.shape_with(ctx, 1)?;
                Some(zeros(dtype, &shape, || {
                    format!("element_shape is not fully defined.{shape}")
                })?)
            }
        };
        let mut popped = None;
        change(ctx, 0, 0, |list| {
            popped = list.elements.pop().flatten();
            Ok(())
        })?;
        let item = popped
            .or(unwritten)
            .ok_or_else(|| out_of_range!("Trying to pop from an empty list."))?;
        ctx.set_output(1, item)
    }))
}

fn push_back_batch_shape(ctx: &mut ShapeCtx) -> Result<()> {
    let handles = ctx.with_rank(0, 1)?;
    let tensor = ctx.with_rank_at_least(1, 1)?;
    let batch = PartialShape::of([tensor.dim(0)]);
    let shape = ctx.merge(&handles, &batch)?;
    ctx.set(0, shape);
    Ok(())
}

fn push_back_batch(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    let dtype = build.attrs.dtype("element_dtype")?;
    Ok(Box::new(move |ctx: &mut KernelCtx| {
        let (handles, input) = (ctx.input(0)?, ctx.input(1)?);
        if input.shape().is_scalar() {
            return Err(invalid_argument!(
                "Expected tensor to be at least a vector, but saw shape: []"
            ));
        }
        if handles.shape().rank() != 1 {
            return Err(invalid_argument!(
                "Expected input_handles to be a vector, but saw shape: {}",
                handles.shape()
            ));
        }
        if input.shape().first() != handles.shape().first() {
            return Err(invalid_argument!(
                "Expected tensor.shape[0] == input_handles.size, but saw {} vs. {}",
                input.shape().first().copied().unwrap_or(0),
                handles.num_elements()
            ));
        }
        let row = Shape::from(input.shape().get(1..).unwrap_or(&[]));
        for (i, variant) in handles.variants()?.iter().enumerate() {
            let list = list_at(variant, i)?;
            if !list.element_shape.matches(&row) {
                return Err(invalid_argument!(
                    "Tried to append a tensor with incompatible shape to a list at index {i}. \
                     Op element shape: {row} list shape: {}",
                    list.element_shape
                ));
            }
            if list.dtype != dtype {
                return Err(invalid_argument!(
                    "Invalid data type at index {i}; op elements {dtype} but list elements {}",
                    list.dtype
                ));
            }
        }
        let items = rows(input)?;
        let mut handles = ctx.take_input(0)?;
        let slots = handles.items_mut::<Variant>()?;
        for (i, (slot, item)) in slots.iter_mut().zip(items).enumerate() {
            change_variant(slot, i, |list| {
                list.elements.push(Some(item));
                Ok(())
            })?;
        }
        ctx.set_output(0, handles)
    }))
}

fn resize(_: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    Ok(Box::new(|ctx: &mut KernelCtx| {
        let size = scalar_input(ctx, 1)?;
        let Ok(n) = usize::try_from(size) else {
            return Err(invalid_argument!(
                "TensorListSlice expects size to be non-negative. Got: {size}"
            ));
        };
        change(ctx, 0, 0, |list| {
            list.elements.truncate(n);
            grow(&mut list.elements, n)
        })
    }))
}

fn concat_lists(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    let dtype = build.attrs.dtype("element_dtype")?;
    Ok(Box::new(move |ctx: &mut KernelCtx| {
        let (a, b) = (ctx.shape(0)?, ctx.shape(1)?);
        if a != b {
            return Err(invalid_argument!(
                "Incompatible input TensorList tensor shapes: {a} vs. {b}"
            ));
        }
        let second = ctx.input(1)?.clone();
        let second = second.variants()?;
        for (i, (a, b)) in ctx.input(0)?.variants()?.iter().zip(second).enumerate() {
            let named = |v, name| {
                list_at(v, i)
                    .map_err(|_| invalid_argument!("{name} is not a TensorList at index {i}"))
            };
            let (a, b) = (named(a, "input_a")?, named(b, "input_b")?);
            if a.dtype != dtype || b.dtype != dtype {
                return Err(invalid_argument!(
                    "Invalid data types at index {i}; op elements {dtype} but list elements {} and {}",
                    a.dtype,
                    b.dtype
                ));
            }
            if a.element_shape != b.element_shape {
                return Err(invalid_argument!(
                    "input_a and input_b TensorList element shapes are not identical at index {i}: \
                     {} vs. {}",
                    a.element_shape,
                    b.element_shape
                ));
            }
            merged(&a.element_shape, &b.element_shape)?;
        }
        let mut handles = ctx.take_input(0)?;
        let slots = handles.items_mut::<Variant>()?;
        for (i, (slot, b)) in slots.iter_mut().zip(second).enumerate() {
            let more = &list_at(b, i)?.elements;
            change_variant(slot, i, |list| {
                list.elements.extend_from_slice(more);
                Ok(())
            })?;
        }
        ctx.set_output(0, handles)
    }))
}

/// Returns an unknown shape, as a tensor.
fn any_shape(e: Expr) -> Expr {
    e.int(-1)
}

pub(crate) fn of_dtype(dtype: DType) -> [(&'static str, ferroflow_opdef::AttrValue); 1] {
    [("element_dtype", dtype.into())]
}

fn push_back_gradient(g: &mut GradientCtx) -> Result<()> {
    let (item, d) = (g.x(1), g.dy(0));
    let inputs = [d, item.op("Shape", &[])];
    let parts = d.node("TensorListPopBack", &inputs, &of_dtype(item.dtype()));
    for (i, part) in parts.into_iter().enumerate() {
        g.set(i, part)?;
    }
    Ok(())
}

fn pop_back_gradient(g: &mut GradientCtx) -> Result<()> {
    let dx = g.dy(0).op("TensorListPushBack", &[g.dy(1)]);
    g.set(0, dx)
}

fn get_item_gradient(g: &mut GradientCtx) -> Result<()> {
    let (list, index, d) = (g.x(0), g.x(1), g.dy(0));
    let n = list.op("TensorListLength", &[]);
    let empty = any_shape(d).op_with("TensorListReserve", &[n], &of_dtype(d.dtype()));
    g.set(0, empty.op("TensorListSetItem", &[index, d]))
}

fn set_item_gradient(g: &mut GradientCtx) -> Result<()> {
    let (index, item, d) = (g.x(1), g.x(2), g.dy(0));
    let gone = item.zeros_like();
    g.set(0, d.op("TensorListSetItem", &[index, gone]))?;
    let inputs = [index, item.op("Shape", &[])];
    let di = d.op_with("TensorListGetItem", &inputs, &of_dtype(item.dtype()));
    g.set(2, di)
}

fn resize_gradient(g: &mut GradientCtx) -> Result<()> {
    let n = g.x(0).op("TensorListLength", &[]);
    let dx = g.dy(0).op("TensorListResize", &[n]);
    g.set(0, dx)
}
