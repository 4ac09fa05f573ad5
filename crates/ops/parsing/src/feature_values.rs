//! The values of features, from which tensors are made.

use crate::example_records::{Feature, Mismatch, floats, ints};
use ferroflow_base::Result;
use ferroflow_tensor::{Bytes, DType, Shape, Tensor};

/// Values of one of the three types that features have.
pub(crate) enum Values {
    Floats(Vec<f32>),
    Ints(Vec<i64>),
    Words(Vec<Bytes>),
}

impl Values {
    pub(crate) fn new(dtype: DType) -> Values {
        match dtype {
            DType::Float => Values::Floats(Vec::new()),
            DType::Int64 => Values::Ints(Vec::new()),
            _ => Values::Words(Vec::new()),
        }
    }

    pub(crate) fn dtype(&self) -> DType {
        match self {
            Values::Floats(_) => DType::Float,
            Values::Ints(_) => DType::Int64,
            Values::Words(_) => DType::String,
        }
    }

    pub(crate) fn len(&self) -> usize {
        match self {
            Values::Floats(v) => v.len(),
            Values::Ints(v) => v.len(),
            Values::Words(v) => v.len(),
        }
    }

    /// Appends a feature's values. Returns their number.
    pub(crate) fn append(&mut self, feature: Feature) -> std::result::Result<usize, Mismatch> {
        let before = self.len();
        let appended = match (&mut *self, feature.list?) {
            (_, None) => Some(()),
            (Values::Floats(v), Some((DType::Float, list))) => floats(list, v),
            (Values::Ints(v), Some((DType::Int64, list))) => ints(list, v),
            (Values::Words(v), Some((DType::String, list))) => feature.strings(list, v),
            (_, Some((dtype, _))) => return Err(Mismatch::Type(dtype)),
        };
        appended.ok_or(Mismatch::Malformed)?;
        Ok(self.len() - before)
    }

    /// Repeats the elements of a default, up to `n` in all.
    pub(crate) fn fill(&mut self, default: &Tensor, n: usize) -> Result<()> {
        fn more<T: Clone + Default>(values: &mut Vec<T>, from: &[T], n: usize) {
            let missing = n.saturating_sub(values.len());
            match from {
                [] => values.resize(n, T::default()),
                from => values.extend(from.iter().cycle().take(missing).cloned()),
            }
        }
        match self {
            Values::Floats(v) => more(v, default.slice()?, n),
            Values::Ints(v) => more(v, default.slice()?, n),
            Values::Words(v) => more(v, default.strings()?, n),
        }
        Ok(())
    }

    /// Appends values of the same type.
    pub(crate) fn extend(&mut self, part: Values) {
        match (self, part) {
            (Values::Floats(all), Values::Floats(part)) => all.extend(part),
            (Values::Ints(all), Values::Ints(part)) => all.extend(part),
            (Values::Words(all), Values::Words(part)) => all.extend(part),
            _ => {}
        }
    }

    /// Splits into parts of these lengths.
    pub(crate) fn split(self, lengths: impl Iterator<Item = usize>) -> Vec<Values> {
        fn parts<T>(values: Vec<T>, n: impl Iterator<Item = usize>) -> Vec<Vec<T>> {
            let mut rest = values.into_iter();
            n.map(|n| rest.by_ref().take(n).collect()).collect()
        }
        match self {
            Values::Floats(v) => parts(v, lengths).into_iter().map(Values::Floats).collect(),
            Values::Ints(v) => parts(v, lengths).into_iter().map(Values::Ints).collect(),
            Values::Words(v) => parts(v, lengths).into_iter().map(Values::Words).collect(),
        }
    }

    pub(crate) fn into_tensor(self, shape: Shape) -> Result<Tensor> {
        match self {
            Values::Floats(v) => Tensor::from_slice(shape, &v),
            Values::Ints(v) => Tensor::from_slice(shape, &v),
            Values::Words(v) => Tensor::from_strings(shape, v),
        }
    }
}
