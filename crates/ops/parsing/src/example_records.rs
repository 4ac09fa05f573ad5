//! The features of serialized `tf.Example` and `tf.SequenceExample` messages, found in their bytes without decoding the
//! rest (TensorFlow: `core/example/{example,feature}.proto`, `core/util/example_proto_fast_parsing.cc`).
//!
//! Of map entries with the same key the last one with values counts.

use crate::wire_reader::Reader;
use ferroflow_opdef::{Attrs, KernelCtx};
use ferroflow_sync::{Parallelism, par_chunks_mut};
use ferroflow_tensor::{Bytes, DType};
use rustc_hash::FxHashMap;
use std::fmt::{self, Display, Formatter};

/// The key of a feature, which need not be text.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Key(pub(crate) Bytes);

impl Key {
    /// Returns the keys in an input.
    pub(crate) fn all_in(ctx: &KernelCtx, i: usize) -> ferroflow_base::Result<Vec<Key>> {
        Ok(ctx.input(i)?.strings()?.iter().cloned().map(Key).collect())
    }

    /// Returns the keys in an attr.
    pub(crate) fn all_of(attrs: &Attrs, name: &str) -> ferroflow_base::Result<Vec<Key>> {
        Ok(attrs.strs(name)?.into_iter().map(Key::from).collect())
    }
}

impl From<&str> for Key {
    fn from(key: &str) -> Key {
        Key(Bytes::copy_from_slice(key.as_bytes()))
    }
}

impl Display for Key {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str(&String::from_utf8_lossy(&self.0))
    }
}

/// Wire type of strings, messages and packed lists.
const DELIMITED: u32 = 2;
/// Records per task.
const TASK_RECORDS: usize = 8;

/// The fields of a message with their bytes; `None`, and then nothing, where they end early. Fields that are
/// neither messages, strings nor packed lists are skipped.
struct Fields<'a>(Reader<'a>);

impl<'a> Fields<'a> {
    #[inline]
    fn read(&mut self) -> Option<Option<(u32, &'a [u8])>> {
        let tag = self.0.tag()?;
        if tag & 7 == DELIMITED && tag >> 3 != 0 {
            let size = self.0.size()?;
            return Some(Some((tag >> 3, self.0.take(size)?)));
        }
        self.0.skip(tag, None)?;
        Some(None)
    }
}

impl<'a> Iterator for Fields<'a> {
    type Item = Option<(u32, &'a [u8])>;

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        while !self.0.is_at_end() {
            match self.read() {
                Some(None) => {}
                Some(field) => return Some(field),
                None => {
                    self.0 = Reader::new(&[]);
                    return Some(None);
                }
            }
        }
        None
    }
}

fn fields(message: &[u8]) -> Fields<'_> {
    Fields(Reader::new(message))
}

/// A `Feature` message.
#[derive(Clone, Copy)]
pub(crate) struct Feature<'a> {
    /// The dtype of the values and their list, if there is one.
    pub(crate) list: Result<Option<(DType, &'a [u8])>, Mismatch>,
    /// The record that it is part of.
    record: &'a Bytes,
}

/// Why a feature has no values of a type.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Mismatch {
    /// It has values of this type.
    Type(DType),
    /// Its bytes are not a message.
    Malformed,
}

impl<'a> Feature<'a> {
    fn new(message: &'a [u8], record: &'a Bytes) -> Feature<'a> {
        // The first list counts.
        let list = fields(message).find_map(|field| match field {
            Some((1, bytes)) => Some(Ok((DType::String, bytes))),
            Some((2, bytes)) => Some(Ok((DType::Float, bytes))),
            Some((3, bytes)) => Some(Ok((DType::Int64, bytes))),
            Some(_) => None,
            None => Some(Err(Mismatch::Malformed)),
        });
        Feature {
            list: list.transpose(),
            record,
        }
    }

    /// Returns a string of the feature. One that makes up most of its record shares its memory.
    fn string(&self, bytes: &'a [u8]) -> Bytes {
        match bytes.len() >= self.record.len() / 2 {
            true => self.record.slice_ref(bytes),
            false => Bytes::copy_from_slice(bytes),
        }
    }

    /// Appends the strings of a BytesList.
    pub(crate) fn strings(&self, list: &'a [u8], to: &mut Vec<Bytes>) -> Option<()> {
        for field in fields(list) {
            if let (1, bytes) = field? {
                to.push(self.string(bytes));
            }
        }
        Some(())
    }
}

/// Appends the values of a FloatList, packed or not.
pub(crate) fn floats(list: &[u8], to: &mut Vec<f32>) -> Option<()> {
    let mut reader = Reader::new(list);
    while !reader.is_at_end() {
        match reader.tag()? {
            0x0a => {
                let size = reader.size()?;
                let (values, rest) = reader.take(size)?.as_chunks::<4>();
                if !rest.is_empty() {
                    return None;
                }
                to.extend(values.iter().map(|v| f32::from_le_bytes(*v)));
            }
            0x0d => to.push(f32::from_bits(reader.fixed32()?)),
            tag => reader.skip(tag, None)?,
        }
    }
    Some(())
}

/// Appends the values of an Int64List, packed or not.
pub(crate) fn ints(list: &[u8], to: &mut Vec<i64>) -> Option<()> {
    let mut reader = Reader::new(list);
    while !reader.is_at_end() {
        match reader.tag()? {
            0x0a => {
                let size = reader.size()?;
                let mut packed = Reader::new(reader.take(size)?);
                while !packed.is_at_end() {
                    to.push(packed.varint()? as i64);
                }
            }
            0x08 => to.push(reader.varint()? as i64),
            tag => reader.skip(tag, None)?,
        }
    }
    Some(())
}

/// The wanted keys of a map of features.
struct Keys<'k> {
    keys: &'k [Key],
    columns: FxHashMap<&'k [u8], usize>,
}

impl<'k> Keys<'k> {
    fn new(keys: &'k [Key]) -> Keys<'k> {
        let columns = keys.iter().enumerate();
        let columns = columns.map(|(i, key)| (&key.0[..], i)).collect();
        Keys { keys, columns }
    }

    /// Writes the values of the wanted keys of a `Features` or `FeatureLists` message. `order` holds the columns of the
    /// entries of the record before, whose order most often is the same.
    fn find<'a>(
        &self,
        map: &'a [u8],
        order: &mut Vec<Option<usize>>,
        values: &mut [Option<&'a [u8]>],
    ) -> Option<()> {
        let mut position = 0;
        for field in fields(map) {
            let (1, entry) = field? else { continue };
            let (mut key, mut value): (&[u8], &[u8]) = (&[], &[]);
            for field in fields(entry) {
                match field? {
                    (1, bytes) => key = bytes,
                    (2, bytes) => value = bytes,
                    _ => {}
                }
            }
            let expected = order.get(position).copied().flatten();
            let column = expected
                .filter(|column| self.keys[*column].0 == key)
                .or_else(|| self.columns.get(key).copied());
            match order.get_mut(position) {
                Some(at) => *at = column,
                None => order.push(column),
            }
            position += 1;
            // An entry without values does not count if there is another one.
            if let Some(column) = column
                && !(value.is_empty() && values[column].is_some())
            {
                values[column] = Some(value);
            }
        }
        Some(())
    }
}

/// The wanted features of the messages of a batch.
pub(crate) struct Records<'a> {
    serialized: &'a [Bytes],
    /// The keys of both maps.
    keys: [Keys<'a>; 2],
    /// Of each record, the values of the keys of the first map, those of the second, and whether it is well-formed.
    values: Vec<Option<&'a [u8]>>,
    width: usize,
}

impl<'a> Records<'a> {
    /// Finds features by their keys: in field 1 of each message, the features of an Example or the context of a
    /// SequenceExample, and in field 2, the feature lists. The error is the first record that is malformed.
    pub(crate) fn find(
        par: &dyn Parallelism,
        serialized: &'a [Bytes],
        keys: [&'a [Key]; 2],
    ) -> Result<Records<'a>, usize> {
        let keys = keys.map(Keys::new);
        let [first, second] = &keys;
        let width = first.keys.len() + second.keys.len() + 1;
        let mut values: Vec<Option<&'a [u8]>> = vec![None; serialized.len() * width];
        par_chunks_mut(
            par,
            &mut values,
            TASK_RECORDS * width,
            1,
            &|task, values| {
                let records = &serialized[task * TASK_RECORDS..];
                let (mut order, mut list_order) = (Vec::new(), Vec::new());
                for (record, row) in records.iter().zip(values.chunks_mut(width)) {
                    let (features, lists) = row.split_at_mut(first.keys.len());
                    let mut find = || {
                        for field in fields(record) {
                            match field? {
                                (1, map) => first.find(map, &mut order, features)?,
                                (2, map) if !second.keys.is_empty() => {
                                    second.find(map, &mut list_order, lists)?;
                                }
                                _ => {}
                            }
                        }
                        Some(())
                    };
                    let is_whole = find().is_some();
                    row[width - 1] = is_whole.then_some(&[]);
                }
            },
        );
        let mut ends = values.iter().skip(width - 1).step_by(width);
        if let Some(malformed) = ends.position(Option::is_none) {
            return Err(malformed);
        }
        Ok(Records {
            serialized,
            keys,
            values,
            width,
        })
    }

    /// The number of records.
    pub(crate) fn len(&self) -> usize {
        self.serialized.len()
    }

    fn column(&self, map: usize, key: &Key) -> impl Iterator<Item = Option<&'a [u8]>> + '_ {
        let first = if map == 0 { 0 } else { self.keys[0].keys.len() };
        let column = self.keys[map].columns.get(&key.0[..]);
        let column = column.map(|column| first + column);
        let rows = self.values.chunks_exact(self.width);
        rows.map(move |row| column.and_then(|column| row[column]))
    }

    /// The feature of this key of every record, if it has one.
    pub(crate) fn features(&self, key: &Key) -> impl Iterator<Item = Option<Feature<'a>>> + '_ {
        let with_record = self.column(0, key).zip(self.serialized);
        with_record.map(|(message, record)| message.map(|message| Feature::new(message, record)))
    }

    /// The features of the feature list of this key of every record, if it has one.
    pub(crate) fn feature_lists(
        &self,
        key: &Key,
    ) -> impl Iterator<Item = Option<impl Iterator<Item = Result<Feature<'a>, Mismatch>>>> + '_
    {
        let with_record = self.column(1, key).zip(self.serialized);
        with_record.map(|(list, record)| {
            let features = fields(list?).filter_map(move |field| match field {
                Some((1, message)) => Some(Ok(Feature::new(message, record))),
                Some(_) => None,
                None => Some(Err(Mismatch::Malformed)),
            });
            Some(features)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::feature_values::Values;
    use ferroflow_model::proto::{
        BytesList, Example, Feature as Message, Features, FloatList, Int64List, feature::Kind,
    };
    use ferroflow_sync::Inline;
    use prost::Message as _;

    fn example() -> Example {
        let kinds = [
            (
                "floats",
                Some(Kind::FloatList(FloatList {
                    value: vec![1.5, -2.0],
                })),
            ),
            (
                "ints",
                Some(Kind::Int64List(Int64List {
                    value: vec![-1, 300, 1 << 40],
                })),
            ),
            (
                "words",
                Some(Kind::BytesList(BytesList {
                    value: vec![Bytes::from(vec![7; 30]), Bytes::new()],
                })),
            ),
            ("none", None),
        ];
        let feature = kinds.map(|(key, kind)| (key.to_string(), Message { kind }));
        let feature = feature.into_iter().collect();
        Example {
            features: Some(Features { feature }),
        }
    }

    /// Returns what a feature has according to a decoded message.
    fn decoded(example: &Example, key: &str) -> Option<Values> {
        let feature = example.features.as_ref()?.feature.get(key)?;
        Some(match feature.kind.as_ref()? {
            Kind::FloatList(list) => Values::Floats(list.value.clone()),
            Kind::Int64List(list) => Values::Ints(list.value.clone()),
            Kind::BytesList(list) => Values::Words(list.value.clone()),
        })
    }

    /// Compares with the decoded message; in messages that were changed, only whether all is well.
    fn check(bytes: &[u8], is_prefix: bool) {
        let keys = ["floats", "ints", "words", "none", "other"].map(Key::from);
        let serialized = [Bytes::copy_from_slice(bytes)];
        let records = Records::find(&Inline, &serialized, [&keys, &keys]);
        let message = Example::decode(bytes);
        let Ok(records) = records else {
            assert!(!is_prefix || message.is_err(), "{bytes:?}");
            return;
        };
        for key in &keys {
            let Some(Some(feature)) = records.features(key).next() else {
                continue;
            };
            let Ok(list) = feature.list else { continue };
            let mut values = Values::new(list.map_or(DType::Float, |(dtype, _)| dtype));
            let n = values.append(feature);
            if let (Ok(message), Ok(_), true) = (&message, n, is_prefix) {
                let wanted =
                    decoded(message, &key.to_string()).unwrap_or(Values::new(values.dtype()));
                let same = match (&values, &wanted) {
                    (Values::Floats(a), Values::Floats(b)) => a == b,
                    (Values::Ints(a), Values::Ints(b)) => a == b,
                    (Values::Words(a), Values::Words(b)) => a == b,
                    _ => false,
                };
                assert!(same, "{key} of {bytes:?}");
            }
        }
    }

    #[test]
    fn damaged_messages_are_errors_or_as_decoded() {
        let bytes = example().encode_to_vec();
        (0..=bytes.len()).for_each(|n| check(&bytes[..n], true));
        for i in 0..bytes.len() {
            for change in [1, 2, 4, 8, 16, 64, 0x80, 0xff] {
                let mut changed = bytes.clone();
                changed[i] ^= change;
                check(&changed, false);
            }
        }
    }

    #[test]
    fn keys_are_bytes_and_entries_without_values_do_not_count() {
        let field = |number: u8, bytes: &[u8]| {
            let head = [number << 3 | 2, bytes.len() as u8];
            head.into_iter()
                .chain(bytes.iter().copied())
                .collect::<Vec<u8>>()
        };
        let entry = |key: &[u8], ints: Option<u8>| {
            let value = ints.map(|v| field(3, &field(1, &[v]))).unwrap_or_default();
            field(1, &[field(1, key), field(2, &value)].concat())
        };
        let entries = [
            entry(b"k\xff", Some(1)),
            entry(b"k\xfe", Some(2)),
            entry(b"k\xff", None),
        ];
        let serialized = [Bytes::from(field(1, &entries.concat()))];
        let keys = [&b"k\xff"[..], b"k\xfe"].map(|key| Key(Bytes::from_static(key)));
        let records = Records::find(&Inline, &serialized, [&keys, &[]]).unwrap();
        for (key, want) in keys.iter().zip([1, 2]) {
            let feature = records.features(key).next().unwrap().unwrap();
            let mut values = Values::new(DType::Int64);
            assert_eq!(values.append(feature).unwrap(), 1);
            assert!(matches!(values, Values::Ints(v) if v == [want]));
        }
    }
}
