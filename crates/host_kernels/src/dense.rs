//! Tensors of host programs: dense, strings, and sparse in coordinate format (COO).
//!
//! Programs write to tensors that several values share, ordered by chains. The lock of a buffer
//! makes this sound even if chains do not order it.

use super::shape::TensorShape;
use ferroflow_base::{Result, invalid_argument};
use ferroflow_host_context::{HostContext, HostDType, HostValue};
use ferroflow_tensor::{HostAllocator, HostBuffer, Tensor, memory_limit};
use std::fmt;
use std::ops::Range;
use std::sync::{Arc, PoisonError, RwLock};

/// Bytes in front of a buffer, which count as a part of it, as in TFRT.
const HEADER: usize = 64;

/// Bytes that tensors share, or a part of them.
#[derive(Clone)]
pub struct SharedBuffer {
    buffer: Arc<RwLock<Storage>>,
    range: Range<usize>,
}

/// The memory of a buffer.
enum Storage {
    Host(HostBuffer),
    /// The tensor of an op's result, until the first write; not accounted by the host's allocator.
    Tensor(Tensor),
    /// A copy of the tensor, for writing.
    Own(Vec<u8>),
}

impl Storage {
    fn bytes(&self) -> &[u8] {
        match self {
            Storage::Host(buffer) => buffer.bytes(),
            Storage::Tensor(tensor) => tensor.bytes().unwrap_or(&[]),
            Storage::Own(bytes) => bytes,
        }
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        if let Storage::Tensor(tensor) = self {
            *self = Storage::Own(tensor.bytes().unwrap_or(&[]).to_vec());
        }
        match self {
            Storage::Host(buffer) => buffer.bytes_mut(),
            Storage::Own(bytes) => bytes,
            Storage::Tensor(_) => &mut [],
        }
    }
}

impl HostValue for SharedBuffer {}

impl SharedBuffer {
    /// Allocates zeroed bytes.
    ///
    /// # Errors
    /// Those of the allocator.
    pub fn new(allocator: &Arc<dyn HostAllocator>, size: usize) -> Result<Self> {
        Self::build(allocator, size, |_| {})
    }

    /// Allocates zeroed bytes that `fill` writes.
    fn build(
        allocator: &Arc<dyn HostAllocator>,
        size: usize,
        fill: impl FnOnce(&mut [u8]),
    ) -> Result<Self> {
        let too_large = || invalid_argument!("a buffer of {size} bytes is too large");
        let end = HEADER.checked_add(size).ok_or_else(too_large)?;
        let mut buffer = HostBuffer::new(allocator, end)?;
        fill(buffer.bytes_mut().get_mut(HEADER..).unwrap_or(&mut []));
        Ok(SharedBuffer {
            buffer: Arc::new(RwLock::new(Storage::Host(buffer))),
            range: HEADER..end,
        })
    }

    /// Returns the bytes of a numeric tensor without a copy.
    pub(super) fn of_tensor(tensor: Tensor) -> Self {
        SharedBuffer {
            range: 0..tensor.byte_len(),
            buffer: Arc::new(RwLock::new(Storage::Tensor(tensor))),
        }
    }

    /// Returns the tensor with these bytes, if the buffer has one.
    pub(super) fn as_tensor(&self) -> Option<Tensor> {
        let buffer = self.buffer.read().unwrap_or_else(PoisonError::into_inner);
        match &*buffer {
            Storage::Tensor(tensor) if self.range == (0..tensor.byte_len()) => Some(tensor.clone()),
            _ => None,
        }
    }

    /// Returns a part of the bytes; `None` if it is out of range.
    pub fn slice(&self, offset: usize, size: usize) -> Option<Self> {
        let start = self.range.start.checked_add(offset)?;
        let end = start.checked_add(size).filter(|e| *e <= self.range.end)?;
        Some(SharedBuffer {
            buffer: self.buffer.clone(),
            range: start..end,
        })
    }

    /// Returns the number of bytes.
    pub fn size(&self) -> usize {
        self.range.len()
    }

    /// Reads the bytes.
    pub fn read<R>(&self, f: impl FnOnce(&[u8]) -> R) -> R {
        let buffer = self.buffer.read().unwrap_or_else(PoisonError::into_inner);
        f(buffer.bytes().get(self.range.clone()).unwrap_or(&[]))
    }

    /// Calls `f` with the bytes for writing.
    pub fn write<R>(&self, f: impl FnOnce(&mut [u8]) -> R) -> R {
        let mut buffer = self.buffer.write().unwrap_or_else(PoisonError::into_inner);
        let bytes = buffer.bytes_mut().get_mut(self.range.clone());
        f(bytes.unwrap_or(&mut []))
    }
}

/// Copies bytes up to the shorter length.
pub(super) fn copy_bytes(from: &[u8], to: &mut [u8]) {
    let n = from.len().min(to.len());
    if let (Some(from), Some(to)) = (from.get(..n), to.get_mut(..n)) {
        to.copy_from_slice(from);
    }
}

impl fmt::Display for SharedBuffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let pointer = Arc::as_ptr(&self.buffer).cast::<u8>();
        write!(f, "HostBuffer<pointer={pointer:p}, size={}>", self.size())
    }
}

/// A numeric tensor.
#[derive(Clone)]
pub struct DenseHostTensor {
    /// Type of the elements.
    pub dtype: HostDType,
    /// Shape.
    pub shape: TensorShape,
    /// Elements, row-major.
    pub buffer: SharedBuffer,
}

/// A tensor of strings.
#[derive(Clone)]
pub struct StringHostTensor {
    /// Shape.
    pub shape: TensorShape,
    /// Elements, row-major.
    pub strings: Vec<String>,
}

/// A sparse tensor: the nonzero elements with their coordinates.
#[derive(Clone)]
pub struct CooHostTensor {
    /// Type of the elements.
    pub dtype: HostDType,
    /// Shape of the whole tensor.
    pub shape: TensorShape,
    /// A row of indices for each element.
    pub indices: Vec<i64>,
    /// Whether positions are counted with the first dimension innermost, as by TFRT's conversion
    /// from dense tensors; otherwise the last one is.
    pub first_runs: bool,
    /// The elements' bytes.
    pub values: Vec<u8>,
}

/// A tensor whose elements are all equal.
#[derive(Clone)]
pub struct ScalarHostTensor {
    /// Type of the elements.
    pub dtype: HostDType,
    /// Shape.
    pub shape: TensorShape,
    /// The bytes of one element.
    pub value: Vec<u8>,
}

/// A tensor of any format.
#[derive(Clone)]
pub enum HostTensor {
    /// Numbers.
    Dense(DenseHostTensor),
    /// Strings.
    String(StringHostTensor),
    /// Sparse numbers.
    Coo(CooHostTensor),
    /// One number for all elements.
    Scalar(ScalarHostTensor),
}

impl HostValue for HostTensor {}

impl CooHostTensor {
    /// Creates a tensor with these elements at these coordinates, which must be inside the shape.
    /// The last dimension is innermost.
    ///
    /// # Errors
    /// INVALID_ARGUMENT if coordinates or elements do not fit the shape.
    pub fn new(
        dtype: HostDType,
        shape: TensorShape,
        indices: Vec<i64>,
        values: Vec<u8>,
    ) -> Result<Self> {
        let limits = shape.0.iter().cycle();
        let beyond = |(index, limit): &(&i64, &i64)| !(0..**limit).contains(*index);
        if let Some((index, limit)) = indices.iter().zip(limits).find(beyond) {
            return Err(invalid_argument!(
                "the indices have element {index}, which its dimension of size {limit} does not have"
            ));
        }
        Ok(CooHostTensor {
            dtype,
            shape,
            indices,
            first_runs: false,
            values,
        })
    }
}

impl DenseHostTensor {
    /// Creates a tensor of zeros.
    ///
    /// # Errors
    /// As for [`DenseHostTensor::build`].
    pub fn new(
        allocator: &Arc<dyn HostAllocator>,
        dtype: HostDType,
        shape: TensorShape,
    ) -> Result<Self> {
        Self::build(allocator, dtype, shape, |_| {})
    }

    /// Returns a tensor whose elements are all equal.
    ///
    /// # Errors
    /// As for [`DenseHostTensor::build`].
    pub fn filled(
        allocator: &Arc<dyn HostAllocator>,
        dtype: HostDType,
        shape: TensorShape,
        element: &[u8],
    ) -> Result<Self> {
        let tensor = Self::new(allocator, dtype, shape)?;
        if element.iter().any(|byte| *byte != 0) {
            tensor.buffer.write(|to| {
                for to in to.chunks_mut(element.len()) {
                    to.iter_mut()
                        .zip(element)
                        .for_each(|(to, from)| *to = *from);
                }
            });
        }
        Ok(tensor)
    }

    /// Returns a tensor with these elements; a single one stands for all.
    ///
    /// # Errors
    /// INVALID_ARGUMENT if the number of elements does not fit the shape; as for
    /// [`DenseHostTensor::build`].
    pub fn of_values(
        allocator: &Arc<dyn HostAllocator>,
        dtype: HostDType,
        shape: TensorShape,
        values: &[u8],
    ) -> Result<Self> {
        let size = dtype.size().unwrap_or(1);
        let whole = shape.n_elements()?.checked_mul(size);
        match values.len() {
            n if n == size => Self::filled(allocator, dtype, shape, values),
            n if Some(n) == whole => Self::from_bytes(allocator, dtype, shape, values),
            n => Err(invalid_argument!(
                "{} values do not fit shape {shape}",
                n / size
            )),
        }
    }

    /// Creates a tensor with these bytes.
    ///
    /// # Errors
    /// As for [`DenseHostTensor::build`].
    pub fn from_bytes(
        allocator: &Arc<dyn HostAllocator>,
        dtype: HostDType,
        shape: TensorShape,
        bytes: &[u8],
    ) -> Result<Self> {
        Self::build(allocator, dtype, shape, |to| {
            copy_bytes(bytes, to);
        })
    }

    /// Returns a tensor whose bytes `fill` writes; they are zero at first.
    ///
    /// # Errors
    /// INVALID_ARGUMENT for dtypes without a fixed size, and, as in TFRT, if the allocation fails.
    pub fn build(
        allocator: &Arc<dyn HostAllocator>,
        dtype: HostDType,
        shape: TensorShape,
        fill: impl FnOnce(&mut [u8]),
    ) -> Result<Self> {
        let size = dtype
            .size()
            .ok_or_else(|| invalid_argument!("no dense tensor of {dtype:?}"))?;
        let n_bytes = shape.n_elements()?.checked_mul(size);
        let n_bytes = n_bytes.filter(|n| *n <= memory_limit());
        let cannot = || invalid_argument!("Cannot allocate tensor");
        let buffer = SharedBuffer::build(allocator, n_bytes.ok_or_else(cannot)?, fill);
        Ok(DenseHostTensor {
            dtype,
            shape,
            buffer: buffer.map_err(|_| cannot())?,
        })
    }
}

impl HostTensor {
    /// Returns the dense tensor.
    ///
    /// # Errors
    /// INVALID_ARGUMENT for other formats.
    pub fn dense(&self) -> Result<&DenseHostTensor> {
        match self {
            HostTensor::Dense(tensor) => Ok(tensor),
            _ => Err(invalid_argument!("tensor is not dense")),
        }
    }

    /// Returns the tensor of equal elements.
    ///
    /// # Errors
    /// INVALID_ARGUMENT for other formats.
    pub fn scalar(&self) -> Result<&ScalarHostTensor> {
        match self {
            HostTensor::Scalar(tensor) => Ok(tensor),
            _ => Err(invalid_argument!("tensor is not one number")),
        }
    }

    /// Returns the sparse tensor.
    ///
    /// # Errors
    /// INVALID_ARGUMENT for other formats.
    pub fn coo(&self) -> Result<&CooHostTensor> {
        match self {
            HostTensor::Coo(tensor) => Ok(tensor),
            _ => Err(invalid_argument!("tensor is not sparse")),
        }
    }

    /// Returns the shape.
    pub fn shape(&self) -> &TensorShape {
        match self {
            HostTensor::Dense(t) => &t.shape,
            HostTensor::String(t) => &t.shape,
            HostTensor::Coo(t) => &t.shape,
            HostTensor::Scalar(t) => &t.shape,
        }
    }

    /// Returns the type of the elements.
    pub fn dtype(&self) -> HostDType {
        match self {
            HostTensor::Dense(t) => t.dtype,
            HostTensor::String(_) => HostDType::STRING,
            HostTensor::Coo(t) => t.dtype,
            HostTensor::Scalar(t) => t.dtype,
        }
    }
}

/// The state of TFRT that programs are written for; the states print differently.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum TfrtState {
    /// February 2021.
    #[default]
    Year2021,
    /// January 2022.
    Year2022,
}

impl TfrtState {
    /// Returns the state that the host's owner selected.
    pub(super) fn of(host: &HostContext) -> TfrtState {
        *host.shared(TfrtState::default)
    }
}

/// Formats a data type like TFRT.
pub fn dtype_name(dtype: HostDType, state: TfrtState) -> String {
    let name = dtype.name().unwrap_or("invalid");
    let name = name.trim_start_matches("!corert.");
    match (state, name) {
        (TfrtState::Year2021, "complex<f32>") => "Complex64".to_string(),
        (TfrtState::Year2021, "complex<f64>") => "Complex128".to_string(),
        (TfrtState::Year2021, name) => name
            .replace("uint", "ui")
            .replace("int", "i")
            .to_uppercase(),
        (TfrtState::Year2022, "complex<f32>") => "complex64".to_string(),
        (TfrtState::Year2022, "complex<f64>") => "complex128".to_string(),
        (TfrtState::Year2022, "string") => "str".to_string(),
        (TfrtState::Year2022, name) => name
            .replace("uint", "u")
            .replace("int", "i")
            .replace("ui", "u"),
    }
}

impl TfrtState {
    /// Returns the number of elements that are printed.
    fn max_printed(self) -> usize {
        match self {
            TfrtState::Year2021 => 32,
            TfrtState::Year2022 => 16,
        }
    }
}

/// Formats a number like TFRT.
pub(super) fn number(dtype: HostDType, bytes: &[u8], state: TfrtState) -> String {
    let mut word = [0u8; 8];
    for (to, from) in word.iter_mut().zip(bytes) {
        *to = *from;
    }
    let bits = u64::from_le_bytes(word);
    let float = super::basic::scientific;
    match dtype.name().unwrap_or("") {
        "f32" => float(f32::from_bits(bits as u32).into()),
        "f64" => float(f64::from_bits(bits)),
        "f16" if state == TfrtState::Year2022 => format!("fp16({bits})"),
        "bf16" if state == TfrtState::Year2022 => format!("bf16({bits})"),
        "f16" => "Does not support printing fp16.".to_string(),
        "bf16" => "Does not support printing bf16.".to_string(),
        "i8" => (bits as i8).to_string(),
        "i16" => (bits as i16).to_string(),
        "i32" => (bits as i32).to_string(),
        "i64" => (bits as i64).to_string(),
        "complex<f32>" | "complex<f64>" => {
            let part = match dtype.size() {
                Some(8) => HostDType::F32,
                _ => HostDType::F64,
            };
            let (re, im) = bytes.split_at(bytes.len() / 2);
            format!("({},{})", number(part, re, state), number(part, im, state))
        }
        _ => bits.to_string(),
    }
}

fn numbers(dtype: HostDType, bytes: &[u8], state: TfrtState) -> String {
    let size = dtype.size().unwrap_or(1);
    let shown = bytes.chunks(size).take(state.max_printed());
    let shown: Vec<String> = shown.map(|b| number(dtype, b, state)).collect();
    let more = if bytes.len() / size > state.max_printed() {
        ", ... "
    } else {
        ""
    };
    format!("[{}{more}]", shown.join(", "))
}

impl HostTensor {
    /// Returns the number, if the tensor is a single one.
    pub(super) fn as_i32(&self) -> Option<i32> {
        let number = |bytes: &[u8]| Some(i32::from_le_bytes(bytes.try_into().ok()?));
        match self {
            HostTensor::Dense(t) if t.dtype == HostDType::I32 => t.buffer.read(number),
            HostTensor::Scalar(t) if t.dtype == HostDType::I32 => number(&t.value),
            _ => None,
        }
    }

    /// Formats the tensor like the host's TFRT.
    pub(super) fn show(&self, host: &HostContext) -> String {
        self.text(TfrtState::of(host))
    }

    fn text(&self, state: TfrtState) -> String {
        let shape = self.shape();
        let dtype = dtype_name(self.dtype(), state);
        match self {
            HostTensor::Dense(t) => t.buffer.read(|bytes| {
                let count = bytes.len() / t.dtype.size().unwrap_or(1);
                let sum = match state == TfrtState::Year2021 && count > state.max_printed() {
                    true => format!(", md5sum = {}", md5_low(&[bytes]) as u32),
                    false => String::new(),
                };
                let values = numbers(t.dtype, bytes, state);
                format!("DenseHostTensor dtype = {dtype}, shape = {shape}{sum}, values = {values}")
            }),
            HostTensor::String(t) => {
                let shown = t.strings.iter().take(state.max_printed());
                let shown: Vec<String> = shown.map(|s| format!("\"{s}\"")).collect();
                // The later state silently omits some of 17 to 32.
                let is_long = t.strings.len() > 32;
                let sum = match state == TfrtState::Year2021 && is_long {
                    true => format!(", md5sum = {}", md5_low(&t.strings)),
                    false => String::new(),
                };
                let more = if is_long { ", ... " } else { "" };
                let values = shown.join(", ");
                format!("StringHostTensor shape = {shape}{sum}, values = [{values}{more}]")
            }
            HostTensor::Scalar(t) => {
                let value = number(t.dtype, &t.value, state);
                format!("ScalarHostTensor dtype = {dtype}, shape = {shape}, value = {value}")
            }
            HostTensor::Coo(t) => {
                let indices: Vec<String> = t.indices.iter().map(i64::to_string).collect();
                let (indices, values) = (indices.join(", "), numbers(t.dtype, &t.values, state));
                format!(
                    "CooHostTensor dtype = {dtype}, shape = {shape}, indices = [{indices}], \
                     values = {values}\n"
                )
            }
        }
    }
}

/// Returns the low 64 bits of the MD5 sum of all parts, as LLVM computes them.
fn md5_low(parts: &[impl AsRef<[u8]>]) -> u64 {
    use md5::{Digest, Md5};
    let mut sum = Md5::new();
    parts.iter().for_each(|part| sum.update(part.as_ref()));
    let digest = sum.finalize();
    let first = digest.iter().take(8).rev();
    first.fold(0, |n, b| n << 8 | u64::from(*b))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn strings(n: usize) -> HostTensor {
        HostTensor::String(StringHostTensor {
            shape: TensorShape([n as i64].as_slice().into()),
            strings: vec!["a".to_string(); n],
        })
    }

    fn bools(n: usize) -> HostTensor {
        let allocator: Arc<dyn HostAllocator> = Arc::new(ferroflow_tensor::MallocAllocator);
        let shape = TensorShape([n as i64].as_slice().into());
        HostTensor::Dense(DenseHostTensor::new(&allocator, HostDType::I1, shape).expect("fits"))
    }

    #[test]
    fn long_tensors_are_cut_short() {
        let (early, late) = (TfrtState::Year2021, TfrtState::Year2022);
        let rows = [
            (bools(2), early, "dtype = I1, shape = [2], values = [0, 0]"),
            (
                bools(33),
                early,
                "shape = [33], md5sum = 236296713, values = [0, ",
            ),
            (bools(33), late, "dtype = i1, shape = [33], values = [0, "),
            (bools(17), early, ", 0, 0]"),
            (bools(17), late, ", 0, 0, ... ]"),
            (
                strings(33),
                early,
                "shape = [33], md5sum = 17587370740493906356, values = [\"a\", ",
            ),
            (strings(33), early, ", \"a\", ... ]"),
            (strings(33), late, "shape = [33], values = [\"a\", "),
            (strings(17), late, ", \"a\", \"a\"]"),
        ];
        for (tensor, state, part) in rows {
            let text = tensor.text(state);
            assert!(text.contains(part), "{part} in {text}");
            let shown = text.matches("\"a\"").count() + text.matches("0,").count();
            assert!(shown <= state.max_printed(), "{text}");
        }
    }
}
