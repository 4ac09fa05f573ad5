//! The features of `tf.SequenceExample` messages as tensors.

use crate::example_records::{Key, Mismatch, Records};
use crate::feature_values::Values;
use ferroflow_base::{Result, Status, invalid_argument};
use ferroflow_functors::indices::{int_scalar, int_vector, shape_of};
use ferroflow_model::proto::{Feature, Features};
use ferroflow_opdef::KernelCtx;
use ferroflow_tensor::{Bytes, DType, Shape, Tensor};
use prost::Message;
use std::collections::HashMap;

fn name(names: &[Bytes], i: usize) -> String {
    match names.get(i) {
        Some(name) => String::from_utf8_lossy(name).into_owned(),
        None => "<unknown>".to_string(),
    }
}

/// Finds the features of the context and the feature lists of these keys in messages.
///
/// # Errors
/// INVALID_ARGUMENT if a message is malformed.
pub(crate) fn found<'a>(
    ctx: &KernelCtx,
    serialized: &'a [Bytes],
    names: &[Bytes],
    keys: [&'a [Key]; 2],
) -> Result<Records<'a>> {
    Records::find(ctx.par(), serialized, keys).map_err(|i| malformed(names, i))
}

/// A message (TensorFlow: `core/example/example.proto`).
#[derive(Clone, PartialEq, Message)]
struct SequenceExample {
    #[prost(message, optional, tag = "1")]
    context: Option<Features>,
    #[prost(message, optional, tag = "2")]
    feature_lists: Option<FeatureLists>,
}

#[derive(Clone, PartialEq, Message)]
struct FeatureLists {
    #[prost(map = "string, message", tag = "1")]
    feature_list: HashMap<String, FeatureList>,
}

#[derive(Clone, PartialEq, Message)]
struct FeatureList {
    #[prost(message, repeated, tag = "1")]
    feature: Vec<Feature>,
}

/// Returns messages with all fields that occur several times merged.
///
/// # Errors
/// INVALID_ARGUMENT if any part of a message is malformed.
pub(crate) fn merged(serialized: &[Bytes], names: &[Bytes]) -> Result<Vec<Bytes>> {
    let each = serialized.iter().enumerate();
    each.map(|(i, bytes)| {
        let message = SequenceExample::decode(&bytes[..]).map_err(|_| malformed(names, i))?;
        Ok(message.encode_to_vec().into())
    })
    .collect()
}

fn malformed(names: &[Bytes], i: usize) -> Status {
    invalid_argument!(
        "Invalid protocol message input, example id: {}",
        name(names, i)
    )
}

/// Returns a scalar for one message, else a vector.
fn per_record(values: Vec<i64>, batch: bool) -> Result<Tensor> {
    match (batch, values.first()) {
        (false, first) => Ok(Tensor::scalar(first.copied().unwrap_or(0))),
        _ => Tensor::vector(&values),
    }
}

/// Returns row splits; of one message there are none, and TensorFlow returns a scalar.
fn splits_of(splits: Vec<i64>, dtype: DType, batch: bool) -> Result<Tensor> {
    match batch {
        true => int_vector(dtype, splits.into_iter()),
        false => int_scalar(dtype, 0),
    }
}

/// One feature of the context of every message.
pub(crate) struct Context {
    values: Values,
    /// The number of values of each message; `None` if it lacks the feature.
    counts: Vec<Option<usize>>,
}

impl Context {
    pub(crate) fn gather(
        records: &Records,
        key: &Key,
        dtype: DType,
        names: &[Bytes],
    ) -> Result<Context> {
        let (mut values, mut counts) = (Values::new(dtype), Vec::with_capacity(records.len()));
        for (i, feature) in records.features(key).enumerate() {
            counts.push(match feature.map(|f| values.append(f)) {
                None => None,
                Some(Ok(n)) => Some(n),
                Some(Err(Mismatch::Malformed)) => return Err(malformed(names, i)),
                Some(Err(Mismatch::Type(_))) => {
                    return Err(invalid_argument!(
                        "Name: {}, Context feature: {key}.  Data types don't match. Expected \
                         type: {dtype}",
                        name(names, i)
                    ));
                }
            });
        }
        Ok(Context { values, counts })
    }

    fn longest(&self) -> usize {
        self.counts.iter().flatten().copied().max().unwrap_or(0)
    }

    /// Returns indices, values and shape.
    pub(crate) fn sparse(self, batch: bool) -> Result<[Tensor; 3]> {
        let (longest, n) = (self.longest(), self.values.len());
        let mut indices = Vec::new();
        for (i, count) in self.counts.iter().enumerate() {
            for j in 0..count.unwrap_or(0) {
                if batch {
                    indices.push(i as i64);
                }
                indices.push(j as i64);
            }
        }
        let coordinates = 1 + usize::from(batch);
        let shape = [self.counts.len() as i64, longest as i64];
        Ok([
            Tensor::from_slice([n, coordinates], &indices)?,
            self.values.into_tensor(Shape::from([n]))?,
            Tensor::vector(&shape[usize::from(!batch)..])?,
        ])
    }

    pub(crate) fn dense(
        self,
        key: &Key,
        shape: &Shape,
        default: &Tensor,
        batch: bool,
        names: &[Bytes],
    ) -> Result<Tensor> {
        let (wanted, dtype) = (shape.num_elements(), self.values.dtype());
        let most = self.longest().max(default.num_elements());
        if most != wanted {
            return Err(invalid_argument!(
                "Inconsistent max number of elements for feature {key}: expected {wanted}, but \
                 found {most}"
            ));
        }
        let counts = self.counts;
        let mut parts = self.values.split(counts.iter().map(|c| c.unwrap_or(0)));
        let mut all = Values::new(dtype);
        for (i, count) in counts.iter().enumerate() {
            match count {
                None if default.num_elements() == 0 => {
                    return Err(invalid_argument!(
                        "Feature: {key} (data type: {dtype}) is required but could not be found."
                    ));
                }
                None => all.fill(default, (i + 1) * wanted)?,
                Some(n) if *n != wanted => {
                    return Err(invalid_argument!(
                        "Unexpected number of elements in example {}",
                        name(names, i)
                    ));
                }
                Some(_) => all.extend(std::mem::replace(&mut parts[i], Values::new(dtype))),
            }
        }
        let first = batch.then_some(counts.len());
        all.into_tensor(shape_of(first.into_iter().chain(shape.iter().copied()))?)
    }

    /// Returns values and row splits.
    pub(crate) fn ragged(self, split: DType, batch: bool) -> Result<[Tensor; 2]> {
        let mut splits = vec![0];
        let mut end = 0;
        for count in &self.counts {
            end += count.unwrap_or(0) as i64;
            splits.push(end);
        }
        let n = self.values.len();
        let values = self.values.into_tensor(Shape::from([n]))?;
        Ok([values, splits_of(splits, split, batch)?])
    }
}

/// One feature list of every message.
pub(crate) struct List {
    values: Values,
    /// The number of values of each row of each message; `None` if it lacks the list.
    rows: Vec<Option<Vec<usize>>>,
}

impl List {
    pub(crate) fn gather(
        records: &Records,
        key: &Key,
        dtype: DType,
        names: &[Bytes],
    ) -> Result<List> {
        let (mut values, mut rows) = (Values::new(dtype), Vec::with_capacity(records.len()));
        for (i, list) in records.feature_lists(key).enumerate() {
            let Some(list) = list else {
                rows.push(None);
                continue;
            };
            let mut counts = Vec::new();
            for (row, feature) in list.enumerate() {
                let n = feature.and_then(|feature| values.append(feature));
                let n = n.map_err(|e| match e {
                    Mismatch::Malformed => malformed(names, i),
                    Mismatch::Type(_) => invalid_argument!(
                        "Name: {}, Feature list: {key}, Index: {row}.  Data types don't match. \
                         Expected type: {dtype}",
                        name(names, i)
                    ),
                })?;
                counts.push(n);
            }
            rows.push(Some(counts));
        }
        Ok(List { values, rows })
    }

    fn rows_of(&self) -> impl Iterator<Item = &[usize]> {
        self.rows
            .iter()
            .map(|rows| rows.as_deref().unwrap_or_default())
    }

    /// Returns indices, values and shape.
    pub(crate) fn sparse(self, batch: bool) -> Result<[Tensor; 3]> {
        let mut indices = Vec::new();
        for (i, rows) in self.rows_of().enumerate() {
            for (row, n) in rows.iter().enumerate() {
                for j in 0..*n {
                    if batch {
                        indices.push(i as i64);
                    }
                    indices.extend([row as i64, j as i64]);
                }
            }
        }
        let most_rows = self.rows_of().map(<[usize]>::len).max().unwrap_or(0);
        let longest = self.rows_of().flatten().copied().max().unwrap_or(0);
        let shape = [self.rows.len() as i64, most_rows as i64, longest as i64];
        let (n, coordinates) = (self.values.len(), 2 + usize::from(batch));
        Ok([
            Tensor::from_slice([n, coordinates], &indices)?,
            self.values.into_tensor(Shape::from([n]))?,
            Tensor::vector(&shape[usize::from(!batch)..])?,
        ])
    }

    /// Returns values, padded to the longest list, and the number of rows of each message.
    pub(crate) fn dense(
        self,
        key: &Key,
        shape: &Shape,
        may_miss: bool,
        batch: bool,
        names: &[Bytes],
    ) -> Result<[Tensor; 2]> {
        let (row, dtype) = (shape.num_elements(), self.values.dtype());
        let totals: Vec<usize> = self.rows_of().map(|rows| rows.iter().sum()).collect();
        let most = totals.iter().copied().max().unwrap_or(0);
        let most_rows = match most.checked_rem(row) {
            Some(0) => most / row,
            None if most == 0 => self.rows_of().map(<[usize]>::len).max().unwrap_or(0),
            _ => {
                let dims = shape.iter().map(|d| format!(",{d}"));
                return Err(invalid_argument!(
                    "Feature list '{key}' has an unexpected number of values.  Total values size: \
                     {most} is not consistent with output shape: [?{}]",
                    dims.collect::<String>()
                ));
            }
        };
        let mut parts = self.values.split(totals.into_iter());
        let (mut all, mut lengths) = (Values::new(dtype), Vec::with_capacity(self.rows.len()));
        let none = Tensor::zeros(dtype, Shape::from([0]))?;
        for (i, rows) in self.rows.iter().enumerate() {
            if rows.is_none() && !may_miss {
                return Err(invalid_argument!(
                    "Name: {}, Feature list '{key}' is required but could not be found.  Did you \
                     mean to include it in feature_list_dense_missing_assumed_empty or \
                     feature_list_dense_defaults?",
                    name(names, i)
                ));
            }
            let rows = rows.as_deref().unwrap_or_default();
            if let Some((at, n)) = rows.iter().enumerate().find(|(_, n)| **n != row) {
                return Err(invalid_argument!(
                    "Name: {}, Key: {key}, Index: {at}.  Number of values != expected.  values \
                     size: {n} but output shape: {shape}",
                    name(names, i)
                ));
            }
            all.extend(std::mem::replace(&mut parts[i], Values::new(dtype)));
            all.fill(&none, (i + 1) * most)?;
            lengths.push(rows.len() as i64);
        }
        let dims = batch
            .then_some(self.rows.len())
            .into_iter()
            .chain([most_rows]);
        let out = all.into_tensor(shape_of(dims.chain(shape.iter().copied()))?)?;
        Ok([out, per_record(lengths, batch)?])
    }

    /// Returns values, row splits of messages and row splits of rows.
    pub(crate) fn ragged(self, split: DType, batch: bool) -> Result<[Tensor; 3]> {
        let (mut outer, mut inner) = (vec![0], vec![0]);
        let mut end = 0;
        for rows in self.rows_of() {
            for n in rows {
                end += *n as i64;
                inner.push(end);
            }
            outer.push(inner.len() as i64 - 1);
        }
        let n = self.values.len();
        Ok([
            self.values.into_tensor(Shape::from([n]))?,
            splits_of(outer, split, batch)?,
            int_vector(split, inner.into_iter())?,
        ])
    }
}
