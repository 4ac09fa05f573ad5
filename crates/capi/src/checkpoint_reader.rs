//! `TF_CheckpointReader` (`tensorflow/c/c_api_experimental.h`).

use crate::guard::{delete, guard, handle, list_mut, shared, text};
use crate::{TF_Status, TF_Tensor};
use ferroflow_base::{Result, invalid_argument, not_found};
use ferroflow_model::{SliceReader, TensorBundle, has_checkpoint};
use ferroflow_tensor::{DType, Shape, Tensor};
use std::collections::BTreeMap;
use std::ffi::{CString, c_char, c_int};
use std::path::{Path, PathBuf};

/// A checkpoint in either of TensorFlow's formats.
pub struct TF_CheckpointReader {
    file: Format,
    variables: BTreeMap<String, (CString, DType, Shape)>,
}

enum Format {
    V2(Box<TensorBundle>),
    V1(SliceReader),
}

impl TF_CheckpointReader {
    fn open(name: &str) -> Result<TF_CheckpointReader> {
        let mut variables = BTreeMap::new();
        let mut add = |name: &str, dtype, shape| {
            let text = CString::new(name).unwrap_or_default();
            variables.insert(name.to_string(), (text, dtype, shape));
        };
        let file = if has_checkpoint(Path::new(name)) {
            let bundle = TensorBundle::open(name)?;
            for name in bundle.names() {
                let (dtype, shape) = bundle.dtype_and_shape(name)?;
                add(name, dtype, shape);
            }
            Format::V2(Box::new(bundle))
        } else {
            let path = PathBuf::from(name);
            if !path.is_file() {
                return Err(not_found!(
                    "Unsuccessful TensorSliceReader constructor: Failed to find any matching files for {name}"
                ));
            }
            let reader = SliceReader::open(&[path])?;
            for name in reader.names() {
                if let Some((dtype, shape)) = reader.dtype_and_shape(name) {
                    add(name, dtype, shape);
                }
            }
            Format::V1(reader)
        };
        Ok(TF_CheckpointReader { file, variables })
    }

    fn variable(&self, name: &str) -> Result<&(CString, DType, Shape)> {
        let found = self.variables.get(name);
        found.ok_or_else(|| not_found!("Key {name} not found in checkpoint"))
    }

    fn read(&self, name: &str) -> Result<Tensor> {
        self.variable(name)?;
        match &self.file {
            Format::V2(bundle) => bundle.read(name),
            Format::V1(reader) => reader.read(name, None),
        }
    }
}

/// Opens a checkpoint: a file, or the common part of the names of several.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TF_NewCheckpointReader(
    filename: *const c_char,
    status: *mut TF_Status,
) -> *mut TF_CheckpointReader {
    guard(status, std::ptr::null_mut(), || {
        // SAFETY: the contract of the header.
        TF_CheckpointReader::open(unsafe { text(filename) }?).map(handle)
    })
}

/// Deletes a reader.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TF_DeleteCheckpointReader(reader: *mut TF_CheckpointReader) {
    // SAFETY: the contract of the header.
    unsafe { delete(reader) }
}

/// What is asked of a variable.
///
/// # Safety
/// The pointers are NULL or valid.
unsafe fn ask<T>(
    reader: *mut TF_CheckpointReader,
    name: *const c_char,
    otherwise: T,
    answer: impl FnOnce(&(CString, DType, Shape)) -> T,
) -> T {
    // SAFETY: as this function's.
    let (Ok(reader), Ok(name)) = (unsafe { shared(reader) }, unsafe { text(name) }) else {
        return otherwise;
    };
    match reader.variable(name) {
        Ok(variable) => answer(variable),
        Err(_) => otherwise,
    }
}

/// Returns whether there is a variable of this name.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TF_CheckpointReaderHasTensor(
    reader: *mut TF_CheckpointReader,
    name: *const c_char,
) -> c_int {
    // SAFETY: the contract of the header.
    unsafe { ask(reader, name, 0, |_| 1) }
}

/// Returns the dtype of a variable; 0 if there is none.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TF_CheckpointReaderGetVariableDataType(
    reader: *mut TF_CheckpointReader,
    name: *const c_char,
) -> c_int {
    // SAFETY: the contract of the header.
    unsafe { ask(reader, name, 0, |(_, dtype, _)| *dtype as c_int) }
}

/// Returns the rank of a variable; -1 if there is none.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TF_CheckpointReaderGetVariableNumDims(
    reader: *mut TF_CheckpointReader,
    name: *const c_char,
) -> c_int {
    // SAFETY: the contract of the header.
    unsafe { ask(reader, name, -1, |(_, _, shape)| shape.rank() as c_int) }
}

/// Returns the number of variables.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TF_CheckpointReaderSize(reader: *mut TF_CheckpointReader) -> c_int {
    // SAFETY: the contract of the header.
    unsafe { reader.as_ref() }.map_or(0, |reader| reader.variables.len() as c_int)
}

/// Returns the name of a variable, by its position in the order of names.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TF_CheckpointReaderGetVariable(
    reader: *mut TF_CheckpointReader,
    index: c_int,
) -> *const c_char {
    // SAFETY: the contract of the header.
    let variables = unsafe { reader.as_ref() }.map(|reader| &reader.variables);
    let index = usize::try_from(index).ok();
    let found = variables
        .zip(index)
        .and_then(|(all, i)| all.values().nth(i));
    found.map_or(std::ptr::null(), |(name, ..)| name.as_ptr())
}

/// Reads the shape of a variable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TF_CheckpointReaderGetVariableShape(
    reader: *mut TF_CheckpointReader,
    name: *const c_char,
    dims: *mut i64,
    num_dims: c_int,
    status: *mut TF_Status,
) {
    guard(status, (), || {
        // SAFETY: the contract of the header.
        let (reader, name) = unsafe { (shared(reader)?, text(name)?) };
        let (_, _, shape) = reader.variable(name)?;
        if num_dims != shape.rank() as c_int {
            return Err(invalid_argument!(
                "Expected rank is {num_dims} but actual rank is {}",
                shape.rank()
            ));
        }
        // SAFETY: as above.
        let dims = unsafe { list_mut(dims, num_dims) };
        dims.copy_from_slice(&shape.to_i64());
        Ok(())
    });
}

/// Reads a variable, which the client deletes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TF_CheckpointReaderGetTensor(
    reader: *mut TF_CheckpointReader,
    name: *const c_char,
    status: *mut TF_Status,
) -> *mut TF_Tensor {
    guard(status, std::ptr::null_mut(), || {
        // SAFETY: the contract of the header.
        let (reader, name) = unsafe { (shared(reader)?, text(name)?) };
        Ok(handle(TF_Tensor::of_engine(reader.read(name)?)?))
    })
}
