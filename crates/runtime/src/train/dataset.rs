//! [`Dataset`]: rows in memory, handed out in shuffled batches.

use ferroflow_base::{Result, invalid_argument};
use ferroflow_tensor::{Shape, Tensor};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, sync_channel};

/// Batches that are prepared ahead.
const AHEAD: usize = 2;

/// Tensors with the same first dimension: row `i` of all of them is example `i`.
#[derive(Clone)]
pub struct Dataset {
    columns: Arc<Vec<(String, Tensor)>>,
    rows: usize,
}

impl Dataset {
    /// Columns by the name of the placeholder that they feed; at least one.
    pub fn new(columns: Vec<(&str, Tensor)>) -> Result<Dataset> {
        let mut rows = None;
        for (name, column) in &columns {
            let n = column.shape().dims().first().copied();
            let n = n.ok_or_else(|| invalid_argument!("column '{name}' is a scalar"))?;
            if *rows.get_or_insert(n) != n {
                return Err(invalid_argument!(
                    "column '{name}' has {n} rows, others have {}",
                    rows.unwrap_or(0)
                ));
            }
            column.bytes()?;
        }
        let rows = rows.ok_or_else(|| invalid_argument!("a dataset has at least one column"))?;
        let columns = columns.into_iter().map(|(n, t)| (n.to_string(), t));
        Ok(Dataset {
            columns: Arc::new(columns.collect()),
            rows,
        })
    }

    /// How many examples there are.
    pub fn len(&self) -> usize {
        self.rows
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.rows == 0
    }

    /// The examples at these places, as feeds.
    pub fn gather(&self, rows: &[usize]) -> Result<Vec<(String, Tensor)>> {
        self.columns
            .iter()
            .map(|(name, column)| Ok((name.clone(), pick(column, rows)?)))
            .collect()
    }

    /// All examples once, in batches of `size`, the last one smaller; shuffled by `seed` when there is
    /// one. A thread prepares batches ahead.
    pub fn batches(&self, size: usize, seed: Option<u64>) -> Batches {
        let mut order: Vec<usize> = (0..self.rows).collect();
        if let Some(seed) = seed {
            shuffle(&mut order, seed);
        }
        let (sender, receiver) = sync_channel(AHEAD);
        let data = self.clone();
        let size = size.max(1);
        // It ends with the last batch, or when nobody listens any more.
        std::thread::spawn(move || {
            for rows in order.chunks(size) {
                if sender.send(data.gather(rows)).is_err() {
                    return;
                }
            }
        });
        Batches { receiver }
    }
}

/// The batches of one pass over a dataset.
pub struct Batches {
    receiver: Receiver<Result<Vec<(String, Tensor)>>>,
}

impl Iterator for Batches {
    type Item = Result<Vec<(String, Tensor)>>;

    fn next(&mut self) -> Option<Self::Item> {
        self.receiver.recv().ok()
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
        let of_row = of_row.ok_or_else(|| invalid_argument!("there is no row {row} in {n}"))?;
        picked.extend_from_slice(of_row);
    }
    let mut shape = dims.to_vec();
    if let Some(first) = shape.first_mut() {
        *first = rows.len();
    }
    Tensor::from_bytes(column.dtype(), Shape::from(&shape[..]), &picked)
}

/// Fisher and Yates' shuffle with numbers of splitmix64.
fn shuffle(order: &mut [usize], seed: u64) {
    let mut state = seed;
    for i in (1..order.len()).rev() {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        order.swap(i, ((z ^ (z >> 31)) % (i as u64 + 1)) as usize);
    }
}
