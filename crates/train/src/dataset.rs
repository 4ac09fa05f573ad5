//! [`Dataset`]: rows in memory, handed out in shuffled batches.

use ferroflow_base::{Result, internal, invalid_argument};
use ferroflow_tensor::{Shape, Tensor};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, sync_channel};
use std::thread::JoinHandle;

/// Batches prepared ahead.
const AHEAD: usize = 2;

/// A source of training data for a [`Trainer`](super::Trainer): examples in batches.
pub trait Examples {
    /// Returns the number of examples.
    fn len(&self) -> usize;

    /// Returns whether there are no examples.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns all examples once, in batches of `size`, the last one possibly smaller; shuffled by
    /// `seed` if there is one.
    fn batches(&self, size: usize, seed: Option<u64>) -> Batches;
}

impl Examples for Dataset {
    fn len(&self) -> usize {
        self.rows
    }

    fn batches(&self, size: usize, seed: Option<u64>) -> Batches {
        self.batches(size, seed)
    }
}

/// Tensors with the same first dimension: row `i` of all of them is example `i`.
#[derive(Clone)]
pub struct Dataset {
    columns: Arc<Vec<(String, Tensor)>>,
    rows: usize,
}

impl Dataset {
    /// Creates a dataset of numeric columns, named after the placeholders they feed; at least one.
    ///
    /// # Errors
    /// INVALID_ARGUMENT if there are no columns or two of one name, or a column is a scalar, not
    /// numeric, or of another length.
    pub fn new(columns: Vec<(&str, Tensor)>) -> Result<Dataset> {
        let mut rows = None;
        for (i, (name, column)) in columns.iter().enumerate() {
            if columns.iter().take(i).any(|(other, _)| other == name) {
                return Err(invalid_argument!("duplicate column '{name}'"));
            }
            let n = column.shape().dims().first().copied();
            let n = n.ok_or_else(|| invalid_argument!("column '{name}' is a scalar"))?;
            if *rows.get_or_insert(n) != n {
                return Err(invalid_argument!(
                    "column '{name}' has {n} rows, others have {}",
                    rows.unwrap_or(0)
                ));
            }
            if !column.dtype().is_plain() {
                return Err(invalid_argument!(
                    "column '{name}' is {}, but datasets hold numbers only",
                    column.dtype()
                ));
            }
        }
        let rows = rows.ok_or_else(|| invalid_argument!("a dataset has at least one column"))?;
        let columns = columns.into_iter().map(|(n, t)| (n.to_string(), t));
        Ok(Dataset {
            columns: Arc::new(columns.collect()),
            rows,
        })
    }

    /// Returns the number of examples.
    pub fn len(&self) -> usize {
        self.rows
    }

    /// Returns whether there are no examples.
    pub fn is_empty(&self) -> bool {
        self.rows == 0
    }

    /// Returns the examples `rows` as feeds.
    ///
    /// # Errors
    /// INVALID_ARGUMENT if a row does not exist.
    pub fn gather(&self, rows: &[usize]) -> Result<Vec<(String, Tensor)>> {
        self.columns
            .iter()
            .map(|(name, column)| Ok((name.clone(), pick(column, rows)?)))
            .collect()
    }

    /// Returns all examples once, in batches of `size`, the last one possibly smaller; shuffled by
    /// `seed` if there is one. A thread prepares batches ahead.
    pub fn batches(&self, size: usize, seed: Option<u64>) -> Batches {
        let mut order: Vec<usize> = (0..self.rows).collect();
        if let Some(seed) = seed {
            shuffle(&mut order, seed);
        }
        let data = self.clone();
        let size = size.max(1);
        Batches::prepared(move |send| {
            for rows in order.chunks(size) {
                if !send(data.gather(rows)) {
                    return;
                }
            }
        })
    }
}

/// A batch: tensors by the name of the placeholder they feed.
pub(super) type Batch = Vec<(String, Tensor)>;

/// The batches of one pass over a dataset.
pub struct Batches {
    receiver: Receiver<Result<Batch>>,
    /// The thread that prepares batches, until it has ended.
    maker: Option<JoinHandle<()>>,
}

impl Batches {
    /// Returns the batches that `make` sends, from a thread that runs a little ahead of the reader.
    /// Sending returns false when there is no reader any more.
    pub(super) fn prepared(
        make: impl FnOnce(&mut dyn FnMut(Result<Batch>) -> bool) + Send + 'static,
    ) -> Batches {
        let (sender, receiver) = sync_channel(AHEAD);
        let make = move || make(&mut |batch| sender.send(batch).is_ok());
        Batches {
            receiver,
            maker: Some(std::thread::spawn(make)),
        }
    }
}

impl Iterator for Batches {
    type Item = Result<Vec<(String, Tensor)>>;

    fn next(&mut self) -> Option<Self::Item> {
        if let Ok(batch) = self.receiver.recv() {
            return Some(batch);
        }
        // The end of the data, unless `make` panicked.
        let panic = self.maker.take()?.join().err()?;
        let text = panic.downcast_ref::<&str>().copied();
        let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
        Some(Err(internal!(
            "preparing batches panicked: {}",
            text.unwrap_or("unknown panic")
        )))
    }
}

fn pick(column: &Tensor, rows: &[usize]) -> Result<Tensor> {
    let dims = column.shape().dims();
    let n = dims.first().copied().unwrap_or(0);
    let bytes = column.bytes()?;
    let width = bytes.len().checked_div(n).unwrap_or(0);
    let mut picked = Vec::with_capacity(rows.len() * width);
    for &row in rows {
        let of_row = bytes.get(row * width..(row + 1) * width);
        let of_row = of_row.ok_or_else(|| invalid_argument!("row {row} is out of range 0..{n}"))?;
        picked.extend_from_slice(of_row);
    }
    let mut shape = dims.to_vec();
    if let Some(first) = shape.first_mut() {
        *first = rows.len();
    }
    Tensor::from_bytes(column.dtype(), Shape::from(&shape[..]), &picked)
}

/// The splitmix64 generator (Steele et al. 2014).
pub(super) struct Random(pub(super) u64);

impl Random {
    /// Returns a number below `n`, which is not 0.
    pub(super) fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) % n.max(1) as u64) as usize
    }
}

/// The Fisher-Yates shuffle.
pub(super) fn shuffle<T>(order: &mut [T], seed: u64) {
    let mut random = Random(seed);
    for i in (1..order.len()).rev() {
        order.swap(i, random.below(i + 1));
    }
}
