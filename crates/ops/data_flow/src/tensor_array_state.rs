//! [`TensorArray`]: the resource of TensorArray handles (TensorFlow:
//! `core/kernels/tensor_array.h`).

use ferroflow_base::{Result, Status, invalid_argument};
use ferroflow_functors::sequence::{grow, merged};
use ferroflow_opdef::KernelCtx;
use ferroflow_resources::string_handle::{named, string_handle};
use ferroflow_tensor::{DType, Element, PartialShape, ResourceHandle, Shape, Tensor};
use rustc_hash::FxHashMap;
use std::ops::Deref;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The container in the handles of arrays.
const CONTAINER: &str = "_tensor_arrays";

/// An array of tensors that lives as long as its handle. Every element is written once.
pub struct TensorArray {
    name: String,
    dtype: DType,
    identical_element_shapes: bool,
    dynamic_size: bool,
    clear_after_read: bool,
    /// Whether several writes to an element are added up.
    adds_up: bool,
    /// The arrays of gradients, by the `source` of the request.
    gradients: Mutex<FxHashMap<String, Arc<TensorArray>>>,
    state: Mutex<ArrayState>,
}

struct ArrayState {
    closed: bool,
    element_shape: PartialShape,
    slots: Vec<Slot>,
    /// The size after a split or unpack, if any. Later writes may have made the array longer.
    marked_size: Option<usize>,
}

#[derive(Default)]
enum Slot {
    #[default]
    Unwritten,
    Written(Tensor),
    /// Read, and kept for further reads.
    Read(Tensor),
    /// Read, and cleared.
    Cleared(Shape),
    /// Never written; reads as zeros of this shape.
    Zeros(Shape),
}

/// The attrs of TensorArrayV3.
#[derive(Clone)]
pub(crate) struct Options {
    pub name: String,
    pub dtype: DType,
    pub element_shape: PartialShape,
    pub dynamic_size: bool,
    pub clear_after_read: bool,
    pub identical_element_shapes: bool,
}

impl TensorArray {
    /// Creates an array of `size` unwritten elements.
    pub(crate) fn new(options: &Options, size: usize) -> Result<Self> {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let mut slots = Vec::new();
        grow(&mut slots, size)?;
        Ok(TensorArray {
            name: format!("{}_{}", options.name, COUNT.fetch_add(1, Ordering::Relaxed)),
            dtype: options.dtype,
            identical_element_shapes: options.identical_element_shapes,
            dynamic_size: options.dynamic_size,
            clear_after_read: options.clear_after_read,
            adds_up: false,
            gradients: Mutex::default(),
            state: Mutex::new(ArrayState {
                closed: false,
                element_shape: options.element_shape.clone(),
                slots,
                marked_size: None,
            }),
        })
    }

    /// Returns the array in which gradients of this one are added up, with `prepended` before the
    /// shape of every element. Calls with the same `source` share it.
    pub(crate) fn gradient(&self, source: &str, prepended: &[usize]) -> Result<Arc<TensorArray>> {
        let mut all = self
            .gradients
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = all.get(source) {
            return Ok(known.clone());
        }
        let state = self.lock()?;
        let with_prepended =
            |shape: &Shape| -> Shape { prepended.iter().chain(shape.iter()).copied().collect() };
        let of_slot = |slot: &Slot| match slot {
            Slot::Written(t) | Slot::Read(t) => Slot::Zeros(with_prepended(t.shape())),
            Slot::Cleared(shape) | Slot::Zeros(shape) => Slot::Zeros(with_prepended(shape)),
            Slot::Unwritten => Slot::Unwritten,
        };
        let element_shape = match state.element_shape.dims() {
            Some(dims) => {
                let first = prepended.iter().map(|d| Some(*d));
                PartialShape::of(first.chain(dims.iter().copied()))
            }
            None => PartialShape::unknown(),
        };
        let array = Arc::new(TensorArray {
            name: format!("{}@{source}", self.name),
            dtype: self.dtype,
            identical_element_shapes: self.identical_element_shapes,
            dynamic_size: false,
            clear_after_read: true,
            adds_up: true,
            gradients: Mutex::default(),
            state: Mutex::new(ArrayState {
                closed: false,
                element_shape,
                slots: state.slots.iter().map(of_slot).collect(),
                marked_size: state.marked_size,
            }),
        });
        all.insert(source.to_string(), array.clone());
        Ok(array)
    }

    /// Returns a handle that keeps the array alive: a resource, or the strings of older versions.
    pub(crate) fn handle(self: Arc<Self>, dtype: DType) -> Result<Tensor> {
        if dtype == DType::String {
            let name = self.name.clone();
            return string_handle(CONTAINER, &name, self);
        }
        let handle = ResourceHandle {
            container: CONTAINER.into(),
            name: self.name.as_str().into(),
            value: Some(self),
            origin: None,
        };
        Tensor::from_resources(Shape::scalar(), vec![handle])
    }

    fn lock(&self) -> Result<MutexGuard<'_, ArrayState>> {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        match state.closed {
            false => Ok(state),
            true => Err(invalid_argument!(
                "TensorArray {} has already been closed.",
                self.name
            )),
        }
    }

    /// Returns the number of elements.
    pub(crate) fn len(&self) -> Result<usize> {
        Ok(self.lock()?.slots.len())
    }

    /// Records the size after a split or unpack of `n` elements.
    pub(crate) fn mark_size(&self, n: usize) -> Result<()> {
        let mut state = self.lock()?;
        if !self.adds_up {
            state.marked_size = Some(n);
        }
        Ok(())
    }

    /// Returns the number of elements of a concat or pack. The gradient of a split or unpack has
    /// the size of the original.
    pub(crate) fn pack_size(&self) -> Result<usize> {
        let state = self.lock()?;
        let marked = state.marked_size.filter(|_| self.adds_up);
        Ok(marked.unwrap_or(state.slots.len()))
    }

    /// Returns whether writes beyond the end extend the array.
    pub(crate) fn is_dynamic(&self) -> bool {
        self.dynamic_size
    }

    /// Returns the common shape of the elements, as far as known.
    pub(crate) fn element_shape(&self) -> Result<PartialShape> {
        Ok(self.lock()?.element_shape.clone())
    }

    /// Merges a shape into what is known of every element's shape.
    pub(crate) fn merge_element_shape(&self, shape: &PartialShape) -> Result<PartialShape> {
        let mut state = self.lock()?;
        state.element_shape = merged(&state.element_shape, shape)?;
        Ok(state.element_shape.clone())
    }

    /// Removes all elements; later uses fail.
    pub(crate) fn close(&self) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.closed = true;
        state.slots = Vec::new();
    }

    /// Checks that an op for `dtype` may use the array.
    pub(crate) fn expect_dtype(&self, dtype: DType, wants: &str) -> Result<()> {
        if dtype == self.dtype {
            return Ok(());
        }
        Err(invalid_argument!(
            "TensorArray dtype is {} but Op {wants} dtype {dtype}.",
            self.dtype
        ))
    }

    #[cold]
    fn refused(&self, index: i64, why: &str) -> Status {
        invalid_argument!(
            "TensorArray {}: Could not write to TensorArray index {index} because {why}",
            self.name
        )
    }

    /// Writes one element.
    pub(crate) fn write(&self, index: i64, value: Tensor) -> Result<()> {
        self.lock()?.write(self, index, value)
    }

    /// Writes several elements.
    pub(crate) fn write_many(&self, items: impl Iterator<Item = (i64, Tensor)>) -> Result<()> {
        let mut state = self.lock()?;
        for (index, value) in items {
            state.write(self, index, value)?;
        }
        Ok(())
    }

    /// Reads one element.
    pub(crate) fn read(&self, index: i64) -> Result<Tensor> {
        self.lock()?.read(self, index)
    }

    /// Reads several elements.
    pub(crate) fn read_many(&self, indices: impl Iterator<Item = i64>) -> Result<Vec<Tensor>> {
        let mut state = self.lock()?;
        indices.map(|i| state.read(self, i)).collect()
    }

    /// Reads several elements, all scalars that are stored in the tensors themselves. `None`, with nothing read, if some are
    /// not, or if one is read twice.
    pub(crate) fn read_scalars<T: Element>(&self, indices: &[i64]) -> Result<Option<Vec<T>>> {
        let mut state = self.lock()?;
        let value = |index: &i64| match state.slots.get(usize::try_from(*index).ok()?)? {
            Slot::Written(t) | Slot::Read(t) => t.inline_scalar(),
            _ => None,
        };
        let increase = |pair: &[i64]| pair[0] < pair[1];
        let is_once = !self.clear_after_read || indices.windows(2).all(increase);
        let Some(values) = is_once
            .then(|| indices.iter().map(value).collect())
            .flatten()
        else {
            return Ok(None);
        };
        for &index in indices {
            let slot = &mut state.slots[index as usize];
            if self.clear_after_read {
                *slot = Slot::Cleared(Shape::scalar());
            } else if let Slot::Written(value) | Slot::Read(value) = std::mem::take(slot) {
                *slot = Slot::Read(value);
            }
        }
        Ok(Some(values))
    }
}

impl ArrayState {
    fn write(&mut self, array: &TensorArray, index: i64, value: Tensor) -> Result<()> {
        let at = usize::try_from(index)
            .ok()
            .filter(|&i| array.dynamic_size || i < self.slots.len());
        let Some(at) = at else {
            return Err(invalid_argument!(
                "TensorArray {}: Tried to write to index {index} but array is not resizeable and \
                 size is: {}",
                array.name,
                self.slots.len()
            ));
        };
        if at >= self.slots.len() {
            grow(&mut self.slots, at.saturating_add(1))?;
        }
        if value.dtype() != array.dtype {
            let why = format!(
                "the value dtype is {} but TensorArray dtype is {}.",
                value.dtype(),
                array.dtype
            );
            return Err(array.refused(index, &why));
        }
        if !self.element_shape.matches(value.shape()) {
            let why = format!(
                "the value shape is {} which is incompatible with the TensorArray's inferred \
                 element shape: {} (consider setting infer_shape=False).",
                value.shape(),
                self.element_shape
            );
            return Err(array.refused(index, &why));
        }
        if array.identical_element_shapes && self.element_shape.num_elements().is_none() {
            self.element_shape = value.shape().into();
        }
        match self.slots.get_mut(at) {
            Some(slot @ (Slot::Unwritten | Slot::Zeros(_))) => {
                *slot = Slot::Written(value);
                Ok(())
            }
            Some(Slot::Written(sum)) if array.adds_up => {
                if sum.shape() != value.shape() {
                    return Err(invalid_argument!(
                        "TensorArray {}: Could not aggregate to TensorArray index {index} because \
                         the existing shape is {} but the new input shape is {}.",
                        array.name,
                        sum.shape(),
                        value.shape()
                    ));
                }
                *sum = ferroflow_functors::tensor_list::add(sum, &value)?;
                Ok(())
            }
            Some(Slot::Written(_)) => Err(array.refused(index, "it has already been written to.")),
            _ => Err(array.refused(index, "it has already been read.")),
        }
    }

    fn read(&mut self, array: &TensorArray, index: i64) -> Result<Tensor> {
        let n = self.slots.len();
        let slot = usize::try_from(index)
            .ok()
            .and_then(|i| self.slots.get_mut(i));
        let Some(slot) = slot else {
            return Err(invalid_argument!(
                "Tried to read from index {index} but array size is: {n}"
            ));
        };
        let value = match std::mem::take(slot) {
            Slot::Written(value) | Slot::Read(value) => value,
            Slot::Zeros(shape) => Tensor::zeros(array.dtype, shape)?,
            Slot::Unwritten => match self.element_shape.to_full() {
                Some(shape) => Tensor::zeros(array.dtype, shape)?,
                None => {
                    return Err(invalid_argument!(
                        "TensorArray {}: Could not read from TensorArray index {index}.  \
                         Furthermore, the element shape is not fully defined: {}.  It is possible \
                         you are working with a resizeable TensorArray and stop_gradients is not \
                         allowing the gradients to be written.  If you set the full element_shape \
                         property on the forward TensorArray, the proper all-zeros tensor will be \
                         returned instead of incurring this error.",
                        array.name,
                        self.element_shape
                    ));
                }
            },
            Slot::Cleared(shape) => {
                *slot = Slot::Cleared(shape);
                return Err(invalid_argument!(
                    "TensorArray {}: Could not read index {index} twice because it was cleared \
                     after a previous read (perhaps try setting clear_after_read = false?).",
                    array.name
                ));
            }
        };
        *slot = match array.clear_after_read {
            true => Slot::Cleared(value.shape().clone()),
            false => Slot::Read(value.clone()),
        };
        Ok(value)
    }
}

/// The array of a handle.
pub(crate) enum ArrayRef<'a> {
    /// The handle keeps it alive.
    OfHandle(&'a TensorArray),
    Named(Arc<TensorArray>),
}

impl Deref for ArrayRef<'_> {
    type Target = TensorArray;

    #[inline]
    fn deref(&self) -> &TensorArray {
        match self {
            ArrayRef::OfHandle(array) => array,
            ArrayRef::Named(array) => array,
        }
    }
}

/// Returns the array of the handle in input 0.
pub(crate) fn array_input<'a>(ctx: &'a KernelCtx) -> Result<ArrayRef<'a>> {
    let handle = ctx.input(0)?;
    if handle.dtype() == DType::String {
        return named(handle, "TensorArray").map(ArrayRef::Named);
    }
    let value = handle.resources()?.first().and_then(|h| h.value.as_ref());
    match value.and_then(|value| value.downcast_ref()) {
        Some(array) => Ok(ArrayRef::OfHandle(array)),
        None => Err(invalid_argument!(
            "Unexpected non-TensorArray resource passed to {}",
            ctx.node()
        )),
    }
}
