//! The buckets of a dense table, in which it is exported (TensorFlow: `MutableDenseHashTable`).
//!
//! Lookups go through the table's index. The buckets are kept because TensorFlow takes the keys of an import as its
//! buckets, and looks for them where their hashes say.

use crate::table_index::copy_row;
use ferroflow_base::{Result, hash64, hash64_combine, resource_exhausted};
use ferroflow_tensor::{DType, Shape, Tensor, memory_limit};

/// The rows of a table, by bucket.
#[derive(Default)]
pub(crate) struct Buckets {
    n: usize,
    /// A row's number plus one, or one of the constants; empty before the first insertion.
    slots: Vec<u32>,
}

/// A bucket that was never used.
const EMPTY: u32 = 0;
/// A bucket whose row was removed.
const DELETED: u32 = u32::MAX;

/// What a bucket holds.
enum Bucket {
    Empty,
    Deleted,
    Row(usize),
}

impl Buckets {
    pub(crate) fn new(n: usize) -> Buckets {
        Buckets { n, slots: vec![] }
    }

    fn get(&self, i: usize) -> Bucket {
        match self.slots.get(i) {
            None | Some(&EMPTY) => Bucket::Empty,
            Some(&DELETED) => Bucket::Deleted,
            Some(&slot) => Bucket::Row(slot as usize - 1),
        }
    }

    /// Puts a row into a bucket.
    ///
    /// # Errors
    /// RESOURCE_EXHAUSTED if there are too many buckets or rows.
    pub(crate) fn set(&mut self, i: usize, row: usize) -> Result<()> {
        let slot = u32::try_from(row + 1).ok().filter(|slot| *slot < DELETED);
        let fits = self.n <= memory_limit() / size_of::<u32>();
        let slot = slot.filter(|_| fits);
        let slot = slot.ok_or_else(|| resource_exhausted!("the table has too many buckets"))?;
        if self.slots.is_empty() {
            self.slots = vec![EMPTY; self.n];
        }
        if let Some(to) = self.slots.get_mut(i) {
            *to = slot;
        }
        Ok(())
    }

    /// Returns the buckets in which a key may be, best first.
    fn probes(&self, hash: u64) -> impl Iterator<Item = usize> + use<> {
        let n = self.n;
        let mut at = hash as usize;
        let quadratic = (1..=n).map(move |step| {
            let here = at & (n - 1);
            at = here.wrapping_add(step);
            here
        });
        // Probes reach every bucket if their number is a power of two, which imports need not have.
        let all = if n.is_power_of_two() { 0..0 } else { 0..n };
        quadratic.chain(all)
    }

    /// Puts a row, whose key is not in the table, into the first bucket that is free.
    ///
    /// # Errors
    /// Those of [`Buckets::set`].
    pub(crate) fn place(&mut self, hash: u64, row: usize) -> Result<()> {
        let is_free = |i: &usize| !matches!(self.get(*i), Bucket::Row(_));
        match self.probes(hash).find(is_free) {
            Some(i) => self.set(i, row),
            None => Err(resource_exhausted!("all buckets of the table are in use")),
        }
    }

    /// Returns the slot of a row.
    fn slot(&mut self, hash: u64, row: usize) -> Option<&mut u32> {
        let is_its = |i: &usize| matches!(self.get(*i), Bucket::Row(r) if r == row);
        let i = self.probes(hash).find(is_its);
        // Imported keys may be anywhere.
        let i = i.or_else(|| (0..self.n).find(is_its))?;
        self.slots.get_mut(i)
    }

    pub(crate) fn remove(&mut self, hash: u64, row: usize) {
        if let Some(slot) = self.slot(hash, row) {
            *slot = DELETED;
        }
    }

    /// Changes the number of a row.
    pub(crate) fn renumber(&mut self, hash: u64, row: usize, to: usize) {
        if let Some(slot) = self.slot(hash, row) {
            *slot = to as u32 + 1;
        }
    }

    /// Makes more buckets if `n` rows are more than the load factor allows; `hash` returns a row's hash.
    ///
    /// # Errors
    /// Those of [`Buckets::set`].
    pub(crate) fn grow_for(
        &mut self,
        n: usize,
        max_load: f32,
        hash: impl Fn(usize) -> Result<u64>,
    ) -> Result<()> {
        let mut wanted = self.n;
        while n as f32 > wanted as f32 * max_load {
            wanted = wanted
                .checked_mul(2)
                .ok_or_else(|| resource_exhausted!("the table has too many buckets"))?;
        }
        if wanted == self.n {
            return Ok(());
        }
        let mut larger = Buckets::new(wanted);
        for i in 0..self.slots.len() {
            if let Bucket::Row(row) = self.get(i) {
                larger.place(hash(row)?, row)?;
            }
        }
        *self = larger;
        Ok(())
    }

    /// Returns keys and values by bucket, as vectors, from those of the rows; `reserved` are the empty and the deleted
    /// key.
    ///
    /// # Errors
    /// RESOURCE_EXHAUSTED if they do not fit into memory.
    pub(crate) fn export(
        &self,
        rows: [&Tensor; 2],
        reserved: [&Tensor; 2],
    ) -> Result<(Tensor, Tensor)> {
        let width = |t: &Tensor| t.shape().iter().skip(1).product();
        let [width, value_width] = rows.map(width);
        let [mut keys, mut values] = [
            Tensor::zeros(rows[0].dtype(), Shape::from([self.n, width]))?,
            Tensor::zeros(rows[1].dtype(), Shape::from([self.n, value_width]))?,
        ];
        let [empty, deleted] = reserved;
        for i in 0..self.n {
            match self.get(i) {
                Bucket::Empty => copy_row(&mut keys, i, empty, 0, width)?,
                Bucket::Deleted => copy_row(&mut keys, i, deleted, 0, width)?,
                Bucket::Row(row) => {
                    copy_row(&mut keys, i, rows[0], row, width)?;
                    copy_row(&mut values, i, rows[1], row, value_width)?;
                }
            }
        }
        Ok((keys, values))
    }
}

/// Returns TensorFlow's hash of key number `i`, which has `width` elements.
///
/// # Errors
/// INTERNAL if the tensor is not of its type.
pub(crate) fn hash_of(keys: &Tensor, i: usize, width: usize) -> Result<u64> {
    let element = |i: usize| -> Result<u64> {
        Ok(match keys.dtype() {
            DType::Int32 => i64::from(keys.slice::<i32>()?[i]) as u64,
            DType::Int64 => keys.slice::<i64>()?[i] as u64,
            DType::String => hash64(&keys.strings()?[i]),
            dtype => hash64(&keys.bytes()?[i * dtype.size()..(i + 1) * dtype.size()]),
        })
    };
    if width == 1 {
        return element(i);
    }
    let mut hash = 0;
    for i in i * width..(i + 1) * width {
        hash = hash64_combine(hash, element(i)?);
    }
    Ok(hash)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Any number of buckets takes as many rows, and finds them again.
    #[test]
    fn all_buckets_are_used() {
        for n in [1, 3, 4, 6, 8] {
            let mut buckets = Buckets::new(n);
            for row in 0..n {
                buckets.place(5, row).unwrap();
            }
            assert!(buckets.place(5, n).is_err());
            for row in 0..n {
                buckets.renumber(5, row, row);
                buckets.remove(5, row);
            }
            assert!((0..n).all(|i| matches!(buckets.get(i), Bucket::Deleted)));
        }
    }
}
