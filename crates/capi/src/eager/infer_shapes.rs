//! `TFE_InferShapes` and lists of shapes (`tensorflow/c/c_api_experimental.h`).

use super::op::TFE_Op;
use crate::guard::{guard, guard_plain, list, shared};
use crate::{TF_Status, TF_Tensor};
use ferroflow_base::Result;
use ferroflow_tensor::{PartialShape, Tensor};
use std::ffi::c_int;

/// A shape and a dtype.
#[repr(C)]
pub struct TF_ShapeAndType {
    /// The rank; -1 if it is unknown.
    pub num_dims: c_int,
    /// Sizes; -1 where unknown.
    pub dims: *mut i64,
    /// The dtype; 0 if it is unknown.
    pub dtype: c_int,
}

/// A list of shapes.
#[repr(C)]
pub struct TF_ShapeAndTypeList {
    /// The number of shapes.
    pub num_items: c_int,
    /// The shapes.
    pub items: *mut TF_ShapeAndType,
}

const UNKNOWN: TF_ShapeAndType = TF_ShapeAndType {
    num_dims: -1,
    dims: std::ptr::null_mut(),
    dtype: 0,
};

/// The sizes as an allocation of their own; NULL if the rank is unknown.
fn allocate(dims: Option<&[i64]>) -> (c_int, *mut i64) {
    match dims {
        None => (-1, std::ptr::null_mut()),
        Some(dims) => {
            let boxed: Box<[i64]> = dims.into();
            (dims.len() as c_int, Box::into_raw(boxed).cast())
        }
    }
}

/// Frees the sizes.
///
/// # Safety
/// `allocate` made them.
unsafe fn free_dims(shape: &mut TF_ShapeAndType) {
    if !shape.dims.is_null() {
        let n = usize::try_from(shape.num_dims).unwrap_or(0);
        let dims = std::ptr::slice_from_raw_parts_mut(shape.dims, n);
        // SAFETY: as this function's.
        drop(unsafe { Box::from_raw(dims) });
    }
    shape.dims = std::ptr::null_mut();
    shape.num_dims = -1;
}

fn new_list(items: Vec<TF_ShapeAndType>) -> *mut TF_ShapeAndTypeList {
    let items = items.into_boxed_slice();
    crate::guard::handle(TF_ShapeAndTypeList {
        num_items: items.len() as c_int,
        items: Box::into_raw(items).cast(),
    })
}

/// Creates a list of unknown shapes.
#[unsafe(no_mangle)]
pub extern "C" fn TF_NewShapeAndTypeList(num_shapes: c_int) -> *mut TF_ShapeAndTypeList {
    guard_plain(std::ptr::null_mut(), || {
        let n = usize::try_from(num_shapes).unwrap_or(0);
        new_list((0..n).map(|_| UNKNOWN).collect())
    })
}

/// Changes an element of a list, if there is one.
///
/// # Safety
/// `shapes` is NULL or valid.
unsafe fn change(
    shapes: *mut TF_ShapeAndTypeList,
    index: c_int,
    change: impl FnOnce(&mut TF_ShapeAndType),
) {
    // SAFETY: as this function's.
    let items = unsafe {
        match shapes.as_ref() {
            Some(shapes) => crate::guard::list_mut(shapes.items, shapes.num_items),
            None => return,
        }
    };
    if let Some(item) = usize::try_from(index).ok().and_then(|i| items.get_mut(i)) {
        change(item);
    }
}

/// Sets a shape.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TF_ShapeAndTypeListSetShape(
    shape_list: *mut TF_ShapeAndTypeList,
    index: c_int,
    dims: *const i64,
    num_dims: c_int,
) {
    // SAFETY: the contract of the header.
    unsafe {
        change(shape_list, index, |item| {
            free_dims(item);
            (item.num_dims, item.dims) = allocate(Some(list(dims, num_dims)));
        })
    }
}

/// Makes a shape unknown.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TF_ShapeAndTypeListSetUnknownShape(
    shape_list: *mut TF_ShapeAndTypeList,
    index: c_int,
) {
    // SAFETY: the contract of the header.
    unsafe { change(shape_list, index, |item| free_dims(item)) }
}

/// Sets a dtype.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TF_ShapeAndTypeListSetDtype(
    shape_list: *mut TF_ShapeAndTypeList,
    index: c_int,
    dtype: c_int,
) {
    // SAFETY: the contract of the header.
    unsafe { change(shape_list, index, |item| item.dtype = dtype) }
}

/// Deletes a list.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TF_DeleteShapeAndTypeList(shape_list: *mut TF_ShapeAndTypeList) {
    if shape_list.is_null() {
        return;
    }
    // SAFETY: the contract of the header: `new_list` made it.
    unsafe {
        let shapes = Box::from_raw(shape_list);
        let n = usize::try_from(shapes.num_items).unwrap_or(0);
        let mut items = Box::from_raw(std::ptr::slice_from_raw_parts_mut(shapes.items, n));
        items.iter_mut().for_each(|item| free_dims(item));
    }
}

/// Deletes an array of lists and the array.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TF_DeleteShapeAndTypeListArray(
    shape_list_array: *mut *mut TF_ShapeAndTypeList,
    num_items: c_int,
) {
    if shape_list_array.is_null() {
        return;
    }
    // SAFETY: the contract of the header.
    unsafe {
        for shapes in list(shape_list_array, num_items) {
            TF_DeleteShapeAndTypeList(*shapes);
        }
        let n = usize::try_from(num_items).unwrap_or(0);
        drop(Box::from_raw(std::ptr::slice_from_raw_parts_mut(
            shape_list_array,
            n,
        )));
    }
}

/// Infers the shapes of a call's outputs from shapes, and values where they are known, of its inputs.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TFE_InferShapes(
    op: *mut TFE_Op,
    input_shapes: *mut TF_ShapeAndTypeList,
    input_tensors: *mut *mut TF_Tensor,
    _input_tensor_as_shapes: *mut TF_ShapeAndTypeList,
    _input_resource_shapes_and_types: *mut *mut TF_ShapeAndTypeList,
    output_shapes: *mut *mut TF_ShapeAndTypeList,
    _output_resource_shapes_and_types: *mut *mut *mut TF_ShapeAndTypeList,
    status: *mut TF_Status,
) {
    guard(status, (), || {
        // SAFETY: the contract of the header.
        let (op, shapes) = unsafe {
            let shapes = shared(input_shapes)?;
            (shared(op)?, list(shapes.items, shapes.num_items))
        };
        let shape = |item: &TF_ShapeAndType| {
            // SAFETY: as above.
            let dims = (item.num_dims >= 0).then(|| unsafe { list(item.dims, item.num_dims) });
            PartialShape::from_tf(dims)
        };
        let inputs: Vec<PartialShape> = shapes.iter().map(shape).collect::<Result<_>>()?;
        let mut values: Vec<Option<Tensor>> = vec![None; inputs.len()];
        // SAFETY: as above.
        let tensors = unsafe { list(input_tensors, inputs.len()) };
        for (value, tensor) in values.iter_mut().zip(tensors) {
            // SAFETY: as above.
            if let Some(tensor) = unsafe { tensor.as_ref() } {
                *value = Some(tensor.to_engine()?);
            }
        }
        let inferred = op.def.infer_shapes(&op.all_attrs()?, &inputs, &values)?;
        let item = |shape: &PartialShape| {
            let size = |dim: &Option<usize>| dim.map_or(-1, |d| d as i64);
            let dims = shape
                .dims()
                .map(|dims| dims.iter().map(size).collect::<Vec<_>>());
            let (num_dims, dims) = allocate(dims.as_deref());
            TF_ShapeAndType {
                num_dims,
                dims,
                dtype: 0,
            }
        };
        // SAFETY: as above.
        if let Some(outputs) = unsafe { output_shapes.as_mut() } {
            *outputs = new_list(inferred.iter().map(item).collect());
        }
        Ok(())
    });
}
