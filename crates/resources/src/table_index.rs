//! The index of a table, from keys to rows, and its rows.

use ferroflow_base::Result;
use ferroflow_tensor::{Bytes, DType, Shape, Tensor, dispatch_items};
use foldhash::fast::RandomState;
use rustc_hash::FxHashMap;
use std::collections::HashMap;

pub(crate) enum TableIndex {
    Ints(FxHashMap<i64, usize>),
    /// Strings, and vector keys as the bytes of their elements. These may come from untrusted
    /// input, so their hash is seeded.
    Bytes(HashMap<Bytes, usize, RandomState>),
}

pub(crate) enum Key {
    Int(i64),
    Bytes(Bytes),
}

impl TableIndex {
    pub(crate) fn get(&self, key: &Key) -> Option<usize> {
        match (self, key) {
            (TableIndex::Ints(map), Key::Int(key)) => map.get(key).copied(),
            (TableIndex::Bytes(map), Key::Bytes(key)) => map.get(key).copied(),
            _ => None,
        }
    }

    /// Calls `found` with the number and the row, if any, of every key, if keys are scalars that are indexed as they
    /// are. Returns whether they are.
    pub(crate) fn find_scalars(
        &self,
        keys: &Tensor,
        key_shape: &Shape,
        found: &mut impl FnMut(usize, Option<usize>),
    ) -> Result<bool> {
        match (self, keys.dtype()) {
            (TableIndex::Ints(index), DType::Int64) => {
                for (i, key) in keys.slice::<i64>()?.iter().enumerate() {
                    found(i, index.get(key).copied());
                }
            }
            (TableIndex::Ints(index), DType::Int32) => {
                for (i, key) in keys.slice::<i32>()?.iter().enumerate() {
                    found(i, index.get(&i64::from(*key)).copied());
                }
            }
            (TableIndex::Bytes(index), DType::String) if key_shape.is_scalar() => {
                for (i, key) in keys.strings()?.iter().enumerate() {
                    found(i, index.get(&key[..]).copied());
                }
            }
            _ => return Ok(false),
        }
        Ok(true)
    }

    pub(crate) fn insert(&mut self, key: Key, row: usize) {
        match (self, key) {
            (TableIndex::Ints(map), Key::Int(key)) => _ = map.insert(key, row),
            (TableIndex::Bytes(map), Key::Bytes(key)) => _ = map.insert(key, row),
            _ => {}
        }
    }

    pub(crate) fn remove(&mut self, key: &Key) -> Option<usize> {
        match (self, key) {
            (TableIndex::Ints(map), Key::Int(key)) => map.remove(key),
            (TableIndex::Bytes(map), Key::Bytes(key)) => map.remove(key),
            _ => None,
        }
    }
}

impl Key {
    pub(crate) fn same(&self, other: &Key) -> bool {
        match (self, other) {
            (Key::Int(a), Key::Int(b)) => a == b,
            (Key::Bytes(a), Key::Bytes(b)) => a == b,
            _ => false,
        }
    }
}

pub(crate) fn rows_of(n: usize, row: &Shape) -> Shape {
    std::iter::once(n).chain(row.iter().copied()).collect()
}

pub(crate) fn copy_row(
    to: &mut Tensor,
    row: usize,
    from: &Tensor,
    i: usize,
    width: usize,
) -> Result<()> {
    dispatch_items!(from.dtype(), T => {
        let from = &from.items::<T>()?[i * width..(i + 1) * width];
        to.items_mut::<T>()?[row * width..(row + 1) * width].clone_from_slice(from);
    });
    Ok(())
}

/// Moves a row into the gap of a removed one, and clears it.
pub(crate) fn move_row(t: &mut Tensor, from: usize, to: usize, width: usize) -> Result<()> {
    dispatch_items!(t.dtype(), T => {
        let items = t.items_mut::<T>()?;
        for i in 0..width {
            let item = std::mem::take(&mut items[from * width + i]);
            if from != to {
                items[to * width + i] = item;
            }
        }
    });
    Ok(())
}
