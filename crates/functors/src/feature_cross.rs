//! Crosses of features: every combination of one feature of each column, joined or hashed
//! (TensorFlow: `core/kernels/sparse_cross_op.cc`, `ragged_cross_op.cc`).

use crate::hash::{fingerprint_cat64, fingerprint64, strong_keyed_hash};
use ferroflow_base::{Result, Status, resource_exhausted};
use ferroflow_tensor::{Bytes, DType, Shape, Tensor, memory_limit};
use std::ops::Range;

enum Values<'a> {
    Ints(&'a [i64]),
    Strings(&'a [Bytes]),
}

enum Rows {
    /// Every row has as many features.
    Dense(usize),
    /// The ends of all rows, after a 0.
    Splits(Vec<usize>),
    /// The rows that have features, in ascending order.
    Runs(Vec<(usize, Range<usize>)>),
}

/// A column of features: some for each row of the batch.
pub struct Column<'a> {
    values: Values<'a>,
    rows: Rows,
}

impl<'a> Column<'a> {
    fn new(values: &'a Tensor, rows: Rows) -> Result<Column<'a>> {
        let values = match values.dtype() {
            DType::String => Values::Strings(values.strings()?),
            _ => Values::Ints(values.slice()?),
        };
        Ok(Column { values, rows })
    }

    /// The column of a matrix.
    ///
    /// # Errors
    /// INVALID_ARGUMENT if the elements are neither int64 nor strings.
    pub fn dense(values: &'a Tensor) -> Result<Column<'a>> {
        let width = values.shape().last().copied().unwrap_or(1);
        Column::new(values, Rows::Dense(width))
    }

    /// The column of a ragged matrix, whose row `i` has the values from `splits[i]` to
    /// `splits[i + 1]`.
    ///
    /// # Errors
    /// INVALID_ARGUMENT if the elements are neither int64 nor strings.
    pub fn ragged(values: &'a Tensor, splits: Vec<usize>) -> Result<Column<'a>> {
        Column::new(values, Rows::Splits(splits))
    }

    /// The column of a sparse matrix with these coordinates, of which those that are out of order
    /// end the column, as in TensorFlow.
    ///
    /// # Errors
    /// INVALID_ARGUMENT if the elements are neither int64 nor strings.
    pub fn sparse(values: &'a Tensor, coordinates: &[i64]) -> Result<Column<'a>> {
        let mut runs: Vec<(usize, Range<usize>)> = Vec::new();
        for (i, coordinate) in coordinates.chunks_exact(2).enumerate() {
            let Ok(row) = usize::try_from(coordinate[0]) else {
                break;
            };
            match runs.last_mut() {
                Some((last, range)) if *last == row => range.end = i + 1,
                Some((last, _)) if *last > row => break,
                _ => runs.push((row, i..i + 1)),
            }
        }
        Column::new(values, Rows::Runs(runs))
    }

    /// The features of a row, as positions in the values.
    fn row(&self, row: usize) -> Range<usize> {
        match &self.rows {
            Rows::Dense(width) => row * width..(row + 1) * width,
            Rows::Splits(splits) => match splits.get(row..row + 2) {
                Some(&[from, to]) => from..to,
                _ => 0..0,
            },
            Rows::Runs(runs) => match runs.binary_search_by_key(&row, |(row, _)| *row) {
                Ok(at) => runs.get(at).map_or(0..0, |(_, range)| range.clone()),
                Err(_) => 0..0,
            },
        }
    }

    fn text_len(&self, i: usize) -> usize {
        match &self.values {
            // The longest number.
            Values::Ints(_) => 20,
            Values::Strings(strings) => strings.get(i).map_or(0, |s| s.len()),
        }
    }

    fn write(&self, i: usize, out: &mut Vec<u8>) {
        match &self.values {
            Values::Ints(ints) => {
                let text = ints.get(i).map_or_else(String::new, i64::to_string);
                out.extend_from_slice(text.as_bytes());
            }
            Values::Strings(strings) => {
                out.extend_from_slice(strings.get(i).map_or(&[], |s| &s[..]));
            }
        }
    }

    /// The fingerprint of a string, or an integer itself.
    fn fingerprint(&self, i: usize) -> u64 {
        match &self.values {
            Values::Ints(ints) => ints.get(i).map_or(0, |&v| v as u64),
            Values::Strings(strings) => strings.get(i).map_or(0, |s| fingerprint64(s)),
        }
    }

    /// The hash of SparseCrossHashed. TensorFlow reads four bytes of an integer, and leaves those of
    /// matrices as they are if the hash is not keyed.
    fn keyed_hash(&self, i: usize, key: Option<[u64; 2]>) -> u64 {
        let hash = |bytes: &[u8]| match key {
            Some(key) => strong_keyed_hash(key, bytes),
            None => fingerprint64(bytes),
        };
        match (&self.values, &self.rows, key) {
            (Values::Ints(_), Rows::Dense(_), None) => self.fingerprint(i),
            (Values::Ints(ints), ..) => {
                hash(&(ints.get(i).copied().unwrap_or(0) as u32).to_le_bytes())
            }
            (Values::Strings(strings), ..) => strings.get(i).map_or(0, |s| hash(s)),
        }
    }
}

/// What is made of a combination of features.
pub enum Crossing {
    /// Their texts with a separator between them.
    Joined(Bytes),
    /// Their fingerprints, combined from `key` on, modulo the number of buckets if that is positive.
    Hashed {
        /// The first value.
        key: u64,
        /// The number of buckets.
        n_buckets: i64,
    },
    /// Their hashes, keyed if there is a key, combined from the first on.
    Keyed {
        /// The key of the strong hash.
        key: Option<[u64; 2]>,
        /// The number of buckets.
        n_buckets: i64,
    },
}

/// The crosses of all rows.
pub struct Crosses {
    /// The rows that have crosses, with their numbers.
    pub counts: Vec<(usize, usize)>,
    /// The crosses of all rows, one after the other, the last column changing fastest.
    pub values: Tensor,
}

#[cold]
fn exhausted() -> Status {
    resource_exhausted!("OOM when crossing features: larger than the machine's memory")
}

/// Crosses the columns in each of the first `n_rows` rows.
///
/// # Errors
/// RESOURCE_EXHAUSTED if the crosses would be larger than the memory.
pub fn cross(columns: &[Column], n_rows: usize, crossing: &Crossing) -> Result<Crosses> {
    let counts = counts(columns, n_rows, crossing)?;
    let mut strings = Vec::new();
    let mut ints = Vec::new();
    for &(row, _) in &counts {
        let ranges: Vec<_> = columns.iter().map(|c| c.row(row)).collect();
        let mut at: Vec<usize> = ranges.iter().map(|r| r.start).collect();
        loop {
            match crossing {
                Crossing::Joined(separator) => strings.push(joined(columns, &at, separator)),
                Crossing::Hashed { key, n_buckets } => {
                    let hashes = columns.iter().zip(&at).map(|(c, &i)| c.fingerprint(i));
                    ints.push(bucket(hashes.fold(*key, fingerprint_cat64), *n_buckets));
                }
                Crossing::Keyed { key, n_buckets } => {
                    let hashes = columns.iter().zip(&at).map(|(c, &i)| c.keyed_hash(i, *key));
                    let hash = hashes.reduce(fingerprint_cat64).unwrap_or(0);
                    ints.push(bucket(hash, *n_buckets));
                }
            }
            if !advance(&mut at, &ranges) {
                break;
            }
        }
    }
    let values = match crossing {
        Crossing::Joined(_) => Tensor::from_strings(Shape::from([strings.len()]), strings)?,
        _ => Tensor::vector(&ints)?,
    };
    Ok(Crosses { counts, values })
}

/// Moves to the next combination; returns false after the last one.
fn advance(at: &mut [usize], ranges: &[Range<usize>]) -> bool {
    for (at, range) in at.iter_mut().zip(ranges).rev() {
        *at += 1;
        if *at < range.end {
            return true;
        }
        *at = range.start;
    }
    false
}

fn joined(columns: &[Column], at: &[usize], separator: &[u8]) -> Bytes {
    let mut out = Vec::new();
    for (n, (column, &i)) in columns.iter().zip(at).enumerate() {
        if n > 0 {
            out.extend_from_slice(separator);
        }
        column.write(i, &mut out);
    }
    out.into()
}

fn bucket(hash: u64, n_buckets: i64) -> i64 {
    let n = if n_buckets > 0 { n_buckets } else { i64::MAX };
    (hash % n as u64) as i64
}

/// Counts the crosses of the rows that have some, and checks that the memory can hold them.
fn counts(columns: &[Column], n_rows: usize, crossing: &Crossing) -> Result<Vec<(usize, usize)>> {
    let (mut counts, mut bytes) = (Vec::new(), 0u128);
    let mut visit = |row: usize| -> Result<()> {
        let sizes = columns.iter().map(|c| c.row(row).len());
        let n = sizes.clone().try_fold(1usize, |n, size| match size {
            0 => Some(0),
            _ => n.checked_mul(size),
        });
        let n = n.or_else(|| sizes.clone().any(|size| size == 0).then_some(0));
        let n = n.ok_or_else(exhausted)?;
        if n == 0 {
            return Ok(());
        }
        bytes += n as u128 * 8;
        if let Crossing::Joined(separator) = crossing {
            let separators = separator.len() * columns.len().saturating_sub(1);
            bytes += n as u128 * (size_of::<Bytes>() + separators) as u128;
            for column in columns {
                let range = column.row(row);
                let size = range.len();
                let all: usize = range.map(|i| column.text_len(i)).sum();
                bytes += all as u128 * (n / size) as u128;
            }
        }
        if bytes > memory_limit() as u128 {
            return Err(exhausted());
        }
        counts.push((row, n));
        Ok(())
    };
    let sparse = columns.iter().find_map(|c| match &c.rows {
        Rows::Runs(runs) => Some(runs),
        _ => None,
    });
    match (sparse, columns) {
        (_, []) => {}
        // Rows without features in one column have no crosses.
        (Some(runs), _) => runs
            .iter()
            .take_while(|(row, _)| *row < n_rows)
            .try_for_each(|(row, _)| visit(*row))?,
        (None, _) => (0..n_rows).try_for_each(visit)?,
    }
    Ok(counts)
}
