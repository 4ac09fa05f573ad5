//! Values computed from the elements of tensors and kept with their memory, such as a matrix in the layout of a kernel.

use crate::Tensor;
use crate::repr::Content;
use crate::storage::Data;
use std::any::{Any, TypeId};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

/// Most values of one buffer: views of one buffer may each have their own.
const MAX_ENTRIES: usize = 4;

/// The values derived from the bytes of a buffer.
#[derive(Default)]
pub(crate) struct Derived(OnceLock<Box<Mutex<Vec<Entry>>>>);

/// The type of a value, the position of its elements in the buffer, and the caller's key.
type Key = (TypeId, usize, [usize; 2]);

struct Entry {
    key: Key,
    /// `None` after the first request.
    value: Option<Arc<dyn Any + Send + Sync>>,
}

impl Derived {
    /// Drops the values: the bytes are about to change.
    #[inline]
    pub(crate) fn clear(&mut self) {
        if self.0.get_mut().is_some() {
            self.0.take();
        }
    }

    /// Returns the value of `key`, or `None` if this is the first request; makes it at the second.
    fn get<T: Any + Send + Sync>(
        &self,
        offset: usize,
        key: [usize; 2],
        make: impl FnOnce() -> T,
    ) -> Option<Arc<T>> {
        let key = (TypeId::of::<T>(), offset, key);
        let entries = self.0.get_or_init(Box::default);
        let lock = || entries.lock().unwrap_or_else(PoisonError::into_inner);
        {
            let mut entries = lock();
            match entries.iter().find(|e| e.key == key) {
                Some(Entry { value: Some(v), .. }) => return v.clone().downcast().ok(),
                Some(_) => {}
                None if entries.len() < MAX_ENTRIES => {
                    entries.push(Entry { key, value: None });
                    return None;
                }
                None => return None,
            }
        }
        // Without the lock: others need not wait, and at worst make the value, too.
        let made = Arc::new(make());
        if let Some(entry) = lock().iter_mut().find(|e| e.key == key) {
            entry.value = Some(made.clone());
        }
        Some(made)
    }
}

impl Tensor {
    /// Returns the value that `make` computes from the elements, which is kept until they may be written or are freed.
    ///
    /// A value pays from the second use: the first request for a type and a `key` returns `None`, the second one makes
    /// the value. So do requests for scalars and other tensors without a buffer, for those in the memory of a client or a
    /// device, and for the fifth value of one buffer.
    ///
    /// ```
    /// use ferroflow_tensor::Tensor;
    /// let mut t = Tensor::vector(&[1.0f32; 100]).unwrap();
    /// let sum = |t: &Tensor| t.derived([0, 0], || t.slice::<f32>().unwrap().iter().sum::<f32>());
    /// assert_eq!(sum(&t), None);
    /// assert_eq!(sum(&t).as_deref(), Some(&100.0));
    /// t.slice_mut::<f32>().unwrap()[0] = 3.0;
    /// assert_eq!(sum(&t), None);
    /// assert_eq!(sum(&t).as_deref(), Some(&102.0));
    /// ```
    pub fn derived<T: Any + Send + Sync>(
        &self,
        key: [usize; 2],
        make: impl FnOnce() -> T,
    ) -> Option<Arc<T>> {
        let Content::Dense(dense) = self.0.content() else {
            return None;
        };
        let Data::Block(buffer) = dense.root() else {
            return None;
        };
        let offset = match &dense.data {
            Data::View { offset, .. } => *offset,
            _ => 0,
        };
        buffer.derived()?.get(offset, key, make)
    }
}
