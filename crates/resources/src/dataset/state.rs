//! The state of iterators: one function of each saves and restores it.

use super::{Components, Dataset, DatasetIterator};
use ferroflow_base::{Result, Status, invalid_argument};
use ferroflow_tensor::{Shape, Tensor, Variant};
use std::collections::VecDeque;
use std::sync::Arc;

/// A saved position: values in the order in which the iterators wrote them.
#[derive(Default)]
pub struct IteratorState(pub(super) Vec<Item>);

#[derive(Clone)]
pub(super) enum Item {
    Int(i64),
    Tensor(Tensor),
}

enum Mode<'a> {
    Save(&'a mut Vec<Item>),
    Restore(std::slice::Iter<'a, Item>),
}

/// Visits the fields of an iterator: reads them when it is saved, sets them when it is restored.
pub struct State<'a>(Mode<'a>);

fn malformed() -> Status {
    invalid_argument!(
        "The saved iterator state does not fit the iterator; restore it with the dataset it was \
         saved with."
    )
}

impl IteratorState {
    /// Saves the position of an iterator.
    ///
    /// # Errors
    /// Those of the iterator.
    pub fn save(iterator: &mut dyn DatasetIterator) -> Result<IteratorState> {
        let mut items = Vec::new();
        iterator.state(&mut State(Mode::Save(&mut items)))?;
        Ok(IteratorState(items))
    }

    /// Moves a new iterator to the saved position.
    ///
    /// # Errors
    /// INVALID_ARGUMENT if the state is not one of such an iterator.
    pub fn restore(&self, iterator: &mut dyn DatasetIterator) -> Result<()> {
        let mut state = State(Mode::Restore(self.0.iter()));
        iterator.state(&mut state)?;
        match state.0 {
            Mode::Restore(rest) if rest.len() > 0 => Err(malformed()),
            _ => Ok(()),
        }
    }
}

impl State<'_> {
    /// Returns whether fields are being set.
    pub fn is_restoring(&self) -> bool {
        matches!(self.0, Mode::Restore(_))
    }

    /// Visits a number.
    ///
    /// # Errors
    /// INVALID_ARGUMENT if the saved state has something else here.
    pub fn int(&mut self, value: &mut i64) -> Result<()> {
        match &mut self.0 {
            Mode::Save(items) => items.push(Item::Int(*value)),
            Mode::Restore(items) => match items.next() {
                Some(Item::Int(saved)) => *value = *saved,
                _ => return Err(malformed()),
            },
        }
        Ok(())
    }

    /// Visits an unsigned number.
    ///
    /// # Errors
    /// As for [`State::int`].
    pub fn uint(&mut self, value: &mut u64) -> Result<()> {
        let mut bits = *value as i64;
        self.int(&mut bits)?;
        *value = bits as u64;
        Ok(())
    }

    /// Visits a size or an index.
    ///
    /// # Errors
    /// As for [`State::int`].
    pub fn size(&mut self, value: &mut usize) -> Result<()> {
        let mut n = i64::try_from(*value).map_err(|_| malformed())?;
        self.int(&mut n)?;
        *value = usize::try_from(n).map_err(|_| malformed())?;
        Ok(())
    }

    /// Visits a flag.
    ///
    /// # Errors
    /// As for [`State::int`].
    pub fn flag(&mut self, value: &mut bool) -> Result<()> {
        let mut n = i64::from(*value);
        self.int(&mut n)?;
        *value = n != 0;
        Ok(())
    }

    /// Visits a tensor.
    ///
    /// # Errors
    /// As for [`State::int`].
    pub fn tensor(&mut self, value: &mut Tensor) -> Result<()> {
        match &mut self.0 {
            Mode::Save(items) => items.push(Item::Tensor(value.clone())),
            Mode::Restore(items) => match items.next() {
                Some(Item::Tensor(saved)) => *value = saved.clone(),
                _ => return Err(malformed()),
            },
        }
        Ok(())
    }

    /// Visits bytes.
    ///
    /// # Errors
    /// As for [`State::int`].
    pub fn bytes(&mut self, value: &mut Vec<u8>) -> Result<()> {
        let mut t = Tensor::string(value.clone());
        self.tensor(&mut t)?;
        *value = t.strings()?.first().ok_or_else(malformed)?.to_vec();
        Ok(())
    }

    /// Visits a sequence, whose parts `each` visits.
    ///
    /// # Errors
    /// Those of `each`; as for [`State::int`].
    pub fn list<T: Default>(
        &mut self,
        list: &mut Vec<T>,
        each: impl FnMut(&mut Self, &mut T) -> Result<()>,
    ) -> Result<()> {
        self.list_of(list, T::default, each)
    }

    fn list_of<T>(
        &mut self,
        list: &mut Vec<T>,
        make: impl Fn() -> T,
        mut each: impl FnMut(&mut Self, &mut T) -> Result<()>,
    ) -> Result<()> {
        let mut n = list.len();
        self.size(&mut n)?;
        if self.is_restoring() {
            list.clear();
        }
        // One at a time: a malformed count must not allocate.
        for i in 0..n {
            if self.is_restoring() {
                list.push(make());
            }
            each(self, list.get_mut(i).ok_or_else(malformed)?)?;
        }
        Ok(())
    }

    /// Visits the tensors of one element.
    ///
    /// # Errors
    /// As for [`State::int`].
    pub fn element(&mut self, element: &mut Components) -> Result<()> {
        self.list_of(element, || Tensor::scalar(0i64), State::tensor)
    }

    /// Visits elements.
    ///
    /// # Errors
    /// As for [`State::int`].
    pub fn elements(&mut self, elements: &mut Vec<Components>) -> Result<()> {
        self.list(elements, State::element)
    }

    /// Visits a queue of elements.
    ///
    /// # Errors
    /// As for [`State::int`].
    pub fn queue(&mut self, queue: &mut VecDeque<Components>) -> Result<()> {
        let mut elements: Vec<Components> = std::mem::take(queue).into();
        let visited = self.elements(&mut elements);
        *queue = elements.into();
        visited
    }

    /// Visits what may be absent.
    ///
    /// # Errors
    /// Those of `make` and `each`; as for [`State::int`].
    pub fn optional<T>(
        &mut self,
        value: &mut Option<T>,
        make: impl FnOnce() -> Result<T>,
        each: impl FnOnce(&mut Self, &mut T) -> Result<()>,
    ) -> Result<()> {
        let mut is_present = value.is_some();
        self.flag(&mut is_present)?;
        if self.is_restoring() {
            *value = match is_present {
                true => Some(make()?),
                false => None,
            };
        }
        match value {
            Some(value) => each(self, value),
            None => Ok(()),
        }
    }

    /// Visits an element that may be absent.
    ///
    /// # Errors
    /// As for [`State::int`].
    pub fn optional_element(&mut self, value: &mut Option<Components>) -> Result<()> {
        self.optional(value, || Ok(Vec::new()), State::element)
    }

    /// Visits the iterator over an input; `None` is one at its end.
    ///
    /// # Errors
    /// Those of the iterators.
    pub fn input(
        &mut self,
        iterator: &mut Option<Box<dyn DatasetIterator>>,
        dataset: &Dataset,
    ) -> Result<()> {
        self.optional(
            iterator,
            || dataset.iterator(),
            |state, iterator| iterator.state(state),
        )
    }

    /// Visits an iterator over a dataset that a function returned, or that was an element.
    ///
    /// # Errors
    /// Those of the iterators; as for [`State::int`].
    pub fn nested(
        &mut self,
        nested: &mut Option<(Arc<Dataset>, Box<dyn DatasetIterator>)>,
    ) -> Result<()> {
        let mut dataset = nested.as_ref().map(|(dataset, _)| dataset.clone());
        self.dataset(&mut dataset)?;
        if self.is_restoring() {
            *nested = match dataset {
                Some(dataset) => {
                    let iterator = dataset.iterator()?;
                    Some((dataset, iterator))
                }
                None => None,
            };
        }
        match nested {
            Some((_, iterator)) => iterator.state(self),
            None => Ok(()),
        }
    }

    /// Visits a dataset.
    ///
    /// # Errors
    /// As for [`State::int`].
    pub fn dataset(&mut self, dataset: &mut Option<Arc<Dataset>>) -> Result<()> {
        let value = dataset.take().map(|d| d as _);
        let mut t = Tensor::from_variants(Shape::scalar(), vec![Variant(value)])?;
        self.tensor(&mut t)?;
        *dataset = t.variants()?.first().and_then(Dataset::of_variant);
        Ok(())
    }
}
