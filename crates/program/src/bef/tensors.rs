//! The tensors of a compiled model: a table with small ones, and a section with the bytes of large ones.

use super::codec::{Decoder, Encoder, corrupt};
use super::format::{Section, Writer};
use super::read::File;
use ferroflow_base::{Result, invalid_argument, unimplemented_error};
use ferroflow_tensor::{Bytes, DType, LazyTensor, MappedFile, Shape, Tensor};
use std::collections::HashMap;
use std::collections::hash_map::DefaultHasher;
use std::hash::Hasher;
use std::sync::Arc;

/// The alignment of a tensor's bytes.
const ALIGNMENT: usize = 64;
/// Tensors of at most this many bytes are in the table.
const SMALL: usize = 64;

/// An entry of the table.
pub(super) struct TensorEntry {
    pub(super) dtype: DType,
    pub(super) dims: Vec<i64>,
    pub(super) data: TensorData,
}

/// The elements of a tensor.
pub(super) enum TensorData {
    Inline(Bytes),
    /// In the section of weights, from here.
    Far(usize),
    Strings(Vec<Bytes>),
}

/// Tensors by number; equal ones have the same.
#[derive(Default)]
pub(crate) struct TensorTable {
    pub(crate) tensors: Vec<LazyTensor>,
    by_content: HashMap<u64, Vec<usize>>,
}

impl TensorTable {
    /// The number of `tensor`.
    pub(super) fn add(&mut self, tensor: &LazyTensor) -> Result<usize> {
        let dtype = tensor.dtype();
        if dtype != DType::String && !dtype.is_plain() {
            return Err(unimplemented_error!(
                "a compiled model cannot hold a constant of dtype {dtype}"
            ));
        }
        let value = tensor.get()?;
        let mut hasher = DefaultHasher::new();
        hasher.write_u32(value.dtype() as u32);
        value.shape().iter().for_each(|d| hasher.write_usize(*d));
        match value.strings() {
            Ok(strings) => strings.iter().for_each(|s| hasher.write(s)),
            Err(_) => hasher.write(value.bytes()?),
        }
        let numbers = self.by_content.entry(hasher.finish()).or_default();
        for number in numbers.iter() {
            if let Some(other) = self.tensors.get(*number)
                && other.get()?.same_value(&value)
            {
                return Ok(*number);
            }
        }
        numbers.push(self.tensors.len());
        self.tensors.push(tensor.clone());
        Ok(self.tensors.len() - 1)
    }
}

/// Writes the table of tensors behind the other sections, and then the large ones.
pub(super) fn write_tensors(
    mut file: Writer,
    tensors: &[LazyTensor],
    out: &mut dyn FnMut(&[u8]) -> Result<()>,
) -> Result<()> {
    let mut table = Vec::with_capacity(tensors.len());
    let mut far = Vec::new();
    let mut end = 0usize;
    for tensor in tensors {
        let (dtype, shape) = (tensor.dtype(), tensor.shape());
        let data = if dtype == DType::String {
            TensorData::Strings(tensor.get()?.strings()?.to_vec())
        } else if tensor.byte_len() <= SMALL {
            TensorData::Inline(Bytes::copy_from_slice(tensor.get()?.bytes()?))
        } else {
            let start = end;
            end = end
                .checked_add(tensor.byte_len())
                .and_then(|e| e.checked_next_multiple_of(ALIGNMENT))
                .ok_or_else(|| invalid_argument!("the weights are too large"))?;
            far.push(tensor);
            TensorData::Far(start)
        };
        table.push(TensorEntry {
            dtype,
            dims: shape.iter().map(|d| *d as i64).collect(),
            data,
        });
    }
    file.section(Section::Tensors, &Encoder::section(&table)?);
    file.byte(Section::Weights as u8);
    file.int(end << 1 | 1);
    file.byte(ALIGNMENT as u8);
    file.align(ALIGNMENT);
    out(&file.bytes)?;
    for tensor in far {
        let value = tensor.get()?;
        let bytes = value.bytes()?;
        out(bytes)?;
        let gap = bytes.len().next_multiple_of(ALIGNMENT) - bytes.len();
        out([0; ALIGNMENT].get(..gap).unwrap_or_default())?;
        drop(value);
        tensor.release();
    }
    Ok(())
}

/// The tensors of the file; large ones stay in `mapping`, if the file is what it maps.
pub(super) fn read_tensors(
    file: &File,
    mapping: Option<&Arc<MappedFile>>,
) -> Result<Vec<LazyTensor>> {
    let table: Vec<TensorEntry> = Decoder::section(file.section(Section::Tensors))?;
    let weights = file.section(Section::Weights);
    // The ranges of tensors are disjoint: what is copied is at most the section.
    let mut left = weights.len();
    let tensor = |entry: TensorEntry| {
        let (dtype, shape) = (entry.dtype, Shape::checked(&entry.dims)?);
        let tensor: Option<LazyTensor> = match entry.data {
            TensorData::Strings(strings) if dtype == DType::String => {
                Tensor::from_strings(shape, strings).ok().map(Into::into)
            }
            TensorData::Inline(bytes) if dtype.is_plain() => {
                Tensor::from_bytes(dtype, shape, &bytes)
                    .ok()
                    .map(Into::into)
            }
            TensorData::Far(start) if dtype.is_plain() => {
                let size = shape.num_elements().checked_mul(dtype.size());
                left = size
                    .and_then(|size| left.checked_sub(size))
                    .ok_or_else(corrupt)?;
                far_tensor(dtype, shape, weights.get(start..), mapping)
            }
            _ => None,
        };
        tensor.ok_or_else(corrupt)
    };
    table.into_iter().map(tensor).collect()
}

fn far_tensor(
    dtype: DType,
    shape: Shape,
    bytes: Option<&[u8]>,
    mapping: Option<&Arc<MappedFile>>,
) -> Option<LazyTensor> {
    let bytes = bytes?.get(..shape.num_elements().checked_mul(dtype.size())?)?;
    if let Some(mapping) = mapping
        && dtype != DType::Bool
    {
        let range = mapping.locate(bytes)?;
        return LazyTensor::mapped(dtype, shape, mapping.clone(), range);
    }
    Tensor::from_bytes(dtype, shape, bytes).ok().map(Into::into)
}
