//! Lists of tensors of the device. Their handles are with the host, and most ops only pass elements on.

use crate::data::{self, join};
use crate::elementwise;
use crate::kernel::{FLOATS, GpuCtx, GpuKernel, Row};
use crate::ptx::Step;
use ferroflow_base::{Result, invalid_argument};
use ferroflow_functors::indices;
use ferroflow_functors::tensor_list::{TensorList, add_by, add_elements, list_input};
use ferroflow_opdef::{BinaryFn, KernelBuild};
use ferroflow_tensor::{DType, PartialShape, Shape, Tensor};

const ELEMENTS: &[(&str, &[DType])] = &[("element_dtype", FLOATS)];
const VARIANT: &[(&str, &[DType])] = &[("T", &[DType::Variant])];

pub(crate) const ROWS: &[Row] = &[
    Row::passes("EmptyTensorList"),
    Row::passes("TensorListReserve"),
    Row::passes("TensorListElementShape"),
    Row::passes("TensorListLength"),
    Row::passes("TensorListResize"),
    Row::passes("TensorListGetItem"),
    Row::passes("TensorListSetItem"),
    Row::passes("TensorListPushBack"),
    Row::passes("TensorListPopBack"),
    Row::passes("TensorListConcatLists"),
    Row::passes("TensorListFromTensor"),
    Row::passes("TensorListScatter"),
    Row::passes("TensorListScatterV2"),
    Row::passes("TensorListScatterIntoExistingList"),
    Row::passes("ZerosLike").types(VARIANT),
    Row::new("AddN", add_n).types(VARIANT),
    Row::new("TensorListStack", stack)
        .types(ELEMENTS)
        .host(&["element_shape"]),
    Row::new("TensorListGather", gather)
        .types(ELEMENTS)
        .host(&["indices", "element_shape"]),
];

/// Stacks elements; those that were never written are zeros.
fn stacked(
    ctx: &GpuCtx,
    dtype: DType,
    shape: &Shape,
    picked: &[&Option<Tensor>],
) -> Result<Tensor> {
    let dims = std::iter::once(picked.len()).chain(shape.iter().copied());
    let y = ctx.alloc(dtype, dims.collect::<Shape>())?;
    if picked.is_empty() {
        return Ok(y);
    }
    let part = |element: &&Option<Tensor>| match element {
        Some(t) => ctx.memory.upload(t),
        None => {
            let zeros = ctx.alloc(dtype, shape.clone())?;
            data::zero(ctx, &zeros)?;
            Ok(zeros)
        }
    };
    let parts: Vec<Tensor> = picked.iter().map(part).collect::<Result<_>>()?;
    join(ctx, &parts, 0, &y)?;
    Ok(y)
}

/// The list in input 0, which has elements of a dtype, and its element shape merged with that of input `i`.
fn list(ctx: &GpuCtx, dtype: DType, i: usize) -> Result<(TensorList, PartialShape)> {
    let list = list_input(ctx.engine(), 0)?;
    list.expect_dtype(dtype)?;
    let shape = list.shape_with(ctx.engine(), i)?;
    Ok((list.clone(), shape))
}

fn stack(build: &KernelBuild) -> Result<Box<dyn GpuKernel>> {
    let dtype = build.attrs.dtype("element_dtype")?;
    let n = build.attrs.int("num_elements")?;
    Ok(Box::new(move |ctx: &mut GpuCtx| {
        let (list, shape) = list(ctx, dtype, 1)?;
        if n != -1 && list.elements.len() as i64 != n {
            return Err(invalid_argument!(
                "Operation expected a list with {n} elements but got a list with {} elements.",
                list.elements.len()
            ));
        }
        if list.elements.is_empty() && shape.to_full().is_none() {
            return Err(invalid_argument!(
                "Tried to stack elements of an empty list with non-fully-defined element_shape: {shape}"
            ));
        }
        let shape = TensorList::shape_of(shape, &list.elements)?;
        let Some(shape) = shape.to_full() else {
            return Err(invalid_argument!(
                "Tried to stack list which only contains uninitialized tensors and has a non-fully-defined element_shape: \
                 {shape}"
            ));
        };
        let picked: Vec<&Option<Tensor>> = list.elements.iter().collect();
        let y = stacked(ctx, dtype, &shape, &picked)?;
        ctx.set_output(0, y)
    }))
}

fn gather(build: &KernelBuild) -> Result<Box<dyn GpuKernel>> {
    let dtype = build.attrs.dtype("element_dtype")?;
    Ok(Box::new(move |ctx: &mut GpuCtx| {
        let wanted = indices::ints(&ctx.host(1)?)?;
        let (list, shape) = list(ctx, dtype, 2)?;
        let (picked, shape) = list.gathered(&wanted, shape)?;
        let y = stacked(ctx, dtype, &shape, &picked)?;
        ctx.set_output(0, y)
    }))
}

/// AddN of lists, element by element.
fn add_n(_: &KernelBuild) -> Result<Box<dyn GpuKernel>> {
    Ok(Box::new(|ctx: &mut GpuCtx| {
        let add = |a: &Tensor, b: &Tensor| {
            if !a.is_on_device() && !b.is_on_device() {
                return add_elements(a, b);
            }
            let both = [ctx.memory.upload(a)?, ctx.memory.upload(b)?];
            elementwise::apply(ctx, &[Step::Binary(BinaryFn::Add, 0, 1)], &both)
        };
        let mut sum = ctx.pass(0)?;
        for i in 1..ctx.num_inputs() {
            sum = add_by(&sum, &ctx.pass(i)?, &add)?;
        }
        ctx.set_output(0, sum)
    }))
}
