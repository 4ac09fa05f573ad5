//! Lookup tables: maps from keys to rows of values (TensorFlow: `core/kernels/lookup_table_op.cc`).
//!
//! Keys and values are stored in two tensors in order of insertion, so that an export is a copy; an
//! index maps a key to its row. The last row fills the gap of a removed one. Dense tables know the bucket of each row.

use crate::resource::{Resource, resolve};
use crate::table_buckets::{Buckets, hash_of};
use crate::table_index::{Key, TableIndex, copy_row, move_row, rows_of};
use ferroflow_base::{
    Result, aborted, failed_precondition, invalid_argument, not_found, unimplemented_error,
};
use ferroflow_opdef::KernelCtx;
use ferroflow_tensor::{
    Bytes, DType, PartialShape, ResourceHandle, Shape, Tensor, dispatch, dispatch_items,
};
use rustc_hash::FxHashMap;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

/// The kind of a table, which determines the ops it allows.
pub enum TableKind {
    /// Initialized once, read afterwards.
    Static,
    /// Changed at any time.
    Mutable,
    /// Like `Mutable`, with two reserved keys. Exports look like hash buckets.
    Dense(DenseTableOptions),
}

/// The parameters of a dense table.
pub struct DenseTableOptions {
    /// The key of buckets that were never used.
    pub empty: Tensor,
    /// The key of buckets whose entry was removed.
    pub deleted: Tensor,
    /// Initial number of buckets.
    pub n_buckets: usize,
    /// Load factor from which the table grows.
    pub max_load: f32,
}

/// A lookup table.
pub struct Table {
    key: DType,
    value: DType,
    key_shape: Shape,
    value_shape: Shape,
    kind: TableKind,
    gone: AtomicBool,
    state: RwLock<TableState>,
}

struct TableState {
    /// Whether a static table is initialized.
    ready: bool,
    index: TableIndex,
    /// Rows in use; the tensors may have more.
    n: usize,
    keys: Tensor,
    values: Tensor,
    /// Those of a dense table.
    buckets: Buckets,
}

impl Resource for Table {
    const TYPE: &'static str = "tensorflow::lookup::LookupInterface";

    fn is_gone(&self) -> bool {
        self.gone.load(Ordering::Relaxed)
    }

    fn check_same(&self, wanted: &Table, name: &str) -> Result<()> {
        if (self.key, self.value) == (wanted.key, wanted.value) {
            return Ok(());
        }
        Err(invalid_argument!(
            "Conflicting key/value dtypes {}->{} with {}-{} for table {name}",
            wanted.key,
            wanted.value,
            self.key,
            self.value
        ))
    }
}

/// Destroys the table that a handle names; returns whether it existed.
pub fn destroy(ctx: &KernelCtx, handle: &ResourceHandle) -> bool {
    match resolve::<Table>(ctx, handle) {
        Ok(table) => !table.gone.swap(true, Ordering::Relaxed),
        Err(_) => false,
    }
}

impl Table {
    /// Creates an empty table.
    ///
    /// # Errors
    /// INVALID_ARGUMENT if the reserved keys of a dense table are equal or of another type;
    /// RESOURCE_EXHAUSTED if the tensors do not fit into memory.
    pub fn new(
        key: DType,
        value: DType,
        key_shape: Shape,
        value_shape: Shape,
        kind: TableKind,
    ) -> Result<Table> {
        let n_buckets = match &kind {
            TableKind::Dense(dense) => dense.n_buckets,
            _ => 0,
        };
        let ints = matches!(key, DType::Int32 | DType::Int64) && key_shape.is_scalar();
        let table = Table {
            key,
            value,
            state: RwLock::new(TableState {
                ready: !matches!(kind, TableKind::Static),
                index: if ints {
                    TableIndex::Ints(FxHashMap::default())
                } else {
                    TableIndex::Bytes(HashMap::default())
                },
                n: 0,
                keys: Tensor::zeros(key, rows_of(0, &key_shape))?,
                values: Tensor::zeros(value, rows_of(0, &value_shape))?,
                buckets: Buckets::new(n_buckets),
            }),
            key_shape,
            value_shape,
            kind,
            gone: AtomicBool::new(false),
        };
        if let TableKind::Dense(dense) = &table.kind {
            for (what, key) in [("Empty", &dense.empty), ("Deleted", &dense.deleted)] {
                if key.shape() != &table.key_shape || key.dtype() != table.key {
                    return Err(invalid_argument!(
                        "{what} key must have shape {} and type {}, got {} and {}",
                        table.key_shape,
                        table.key,
                        key.shape(),
                        key.dtype()
                    ));
                }
            }
            if dense.empty.same_value(&dense.deleted) {
                return Err(invalid_argument!("Empty and deleted keys cannot be equal"));
            }
        }
        Ok(table)
    }

    fn read(&self) -> RwLockReadGuard<'_, TableState> {
        self.state.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, TableState> {
        self.state.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the dtypes of keys and values.
    pub fn dtypes(&self) -> (DType, DType) {
        (self.key, self.value)
    }

    fn check_there(&self) -> Result<()> {
        match self.is_gone() {
            true => Err(not_found!("the table was destroyed")),
            false => Ok(()),
        }
    }

    /// Returns the number of keys in a tensor, and the shape of their values.
    fn extent(&self, keys: &Tensor) -> Result<(usize, Shape)> {
        let shape = keys.shape();
        let outer = shape.rank().checked_sub(self.key_shape.rank());
        let Some(outer) = outer.filter(|&o| shape[o..] == *self.key_shape) else {
            return Err(invalid_argument!(
                "Expected key shape {} at the end of the shape of keys, got {shape}",
                self.key_shape
            ));
        };
        if let (TableKind::Dense(_), [first, _, ..]) = (&self.kind, &shape[..outer])
            && shape[..outer].iter().product::<usize>() != *first
        {
            return Err(invalid_argument!(
                "Expected key shape {} got {shape}",
                rows_of(*first, &self.key_shape)
            ));
        }
        let dims = shape[..outer].iter().chain(self.value_shape.iter());
        Ok((shape[..outer].iter().product(), dims.copied().collect()))
    }

    /// Returns the number of entries.
    ///
    /// # Errors
    /// NOT_FOUND if the table was destroyed.
    pub fn size(&self) -> Result<usize> {
        self.check_there()?;
        Ok(self.read().n)
    }

    /// Returns the values of `keys`, with `default` (one for all, or one per key) for missing ones.
    ///
    /// # Errors
    /// NOT_FOUND if the table was destroyed; FAILED_PRECONDITION if a static table is not
    /// initialized; INVALID_ARGUMENT if dtypes or shapes do not fit.
    pub fn find(&self, keys: &Tensor, default: &Tensor) -> Result<Tensor> {
        self.check_there()?;
        let (n, shape) = self.extent(keys)?;
        let for_each = *default.shape() == shape;
        if !for_each && *default.shape() != self.value_shape {
            return Err(invalid_argument!(
                "Expected shape {} or {shape} for default value, got {}",
                self.value_shape,
                default.shape()
            ));
        }
        let state = self.read();
        if !state.ready {
            return Err(failed_precondition!("Table not initialized."));
        }
        self.check_keys(keys, n)?;
        let width = self.value_shape.num_elements();
        let mut out = Tensor::for_overwrite(self.value, shape)?;
        let single = *default.shape() == self.value_shape;
        let for_each = for_each && !single && matches!(self.kind, TableKind::Mutable);
        dispatch_items!(self.value, T => {
            let (values, default) = (state.values.items::<T>()?, default.items::<T>()?);
            let to = out.items_mut::<T>()?;
            let mut copy = |i: usize, row: Option<usize>| {
                let (from, row) = match row {
                    Some(row) => (values, row),
                    // Static and dense tables use the first default.
                    None => (default, if for_each { i } else { 0 }),
                };
                match width {
                    1 => to[i].clone_from(&from[row]),
                    _ => to[i * width..][..width].clone_from_slice(&from[row * width..][..width]),
                }
            };
            if !state.index.find_scalars(keys, &self.key_shape, &mut copy)? {
                for i in 0..n {
                    copy(i, state.index.get(&self.key_at(keys, i)?));
                }
            }
        });
        Ok(out)
    }

    /// Returns key number `i` of a tensor of keys.
    fn key_at(&self, keys: &Tensor, i: usize) -> Result<Key> {
        if self.key_shape.is_scalar() {
            match self.key {
                DType::Int64 => return Ok(Key::Int(keys.slice::<i64>()?[i])),
                DType::Int32 => return Ok(Key::Int(i64::from(keys.slice::<i32>()?[i]))),
                DType::String => return Ok(Key::Bytes(keys.strings()?[i].clone())),
                _ => {}
            }
        }
        let width = self.key_shape.num_elements();
        if self.key == DType::String {
            let mut bytes = Vec::new();
            for part in &keys.strings()?[i * width..(i + 1) * width] {
                bytes.extend((part.len() as u64).to_le_bytes());
                bytes.extend(&part[..]);
            }
            return Ok(Key::Bytes(bytes.into()));
        }
        let size = width * self.key.size();
        let bytes = &keys.bytes()?[i * size..(i + 1) * size];
        Ok(Key::Bytes(Bytes::copy_from_slice(bytes)))
    }

    /// Rejects the reserved keys of a dense table.
    fn check_keys(&self, keys: &Tensor, n: usize) -> Result<()> {
        let TableKind::Dense(dense) = &self.kind else {
            return Ok(());
        };
        for (name, forbidden) in [("empty", &dense.empty), ("deleted", &dense.deleted)] {
            let forbidden = self.key_at(forbidden, 0)?;
            for i in 0..n {
                if self.key_at(keys, i)?.same(&forbidden) {
                    return Err(invalid_argument!(
                        "Using the {name}_key as a table key is not allowed"
                    ));
                }
            }
        }
        Ok(())
    }

    fn check_values(&self, keys: &Tensor, values: &Tensor) -> Result<usize> {
        let (n, shape) = self.extent(keys)?;
        if *values.shape() != shape {
            return Err(invalid_argument!(
                "Expected shape {shape} for value, got {}",
                values.shape()
            ));
        }
        Ok(n)
    }

    /// Inserts values, replacing those of existing keys.
    ///
    /// # Errors
    /// NOT_FOUND if the table was destroyed; UNIMPLEMENTED for static tables; INVALID_ARGUMENT if
    /// dtypes or shapes do not fit or a key is reserved.
    pub fn insert(&self, keys: &Tensor, values: &Tensor) -> Result<()> {
        self.check_there()?;
        if let TableKind::Static = self.kind {
            return Err(unimplemented_error!(
                "Insert not supported by InitializableLookupTable implementations"
            ));
        }
        let n = self.check_values(keys, values)?;
        self.check_keys(keys, n)?;
        let state = &mut *self.write();
        let width = self.key_shape.num_elements();
        if let TableKind::Dense(dense) = &self.kind {
            let hash = |row| hash_of(&state.keys, row, width);
            // TensorFlow expects all keys to be new.
            let all = state.n + n;
            state.buckets.grow_for(all, dense.max_load, hash)?;
        }
        for i in 0..n {
            let key = self.key_at(keys, i)?;
            let new = self.put(state, key, keys, values, i)?;
            if let (TableKind::Dense(_), Some(row)) = (&self.kind, new) {
                state.buckets.place(hash_of(keys, i, width)?, row)?;
            }
        }
        Ok(())
    }

    /// Returns the row, if it is a new one.
    fn put(
        &self,
        state: &mut TableState,
        key: Key,
        keys: &Tensor,
        values: &Tensor,
        i: usize,
    ) -> Result<Option<usize>> {
        let (key_width, width) = (
            self.key_shape.num_elements(),
            self.value_shape.num_elements(),
        );
        let found = state.index.get(&key);
        let row = match found {
            Some(row) => row,
            None => {
                let row = state.n;
                self.reserve(state, row + 1)?;
                copy_row(&mut state.keys, row, keys, i, key_width)?;
                state.index.insert(key, row);
                state.n += 1;
                row
            }
        };
        copy_row(&mut state.values, row, values, i, width)?;
        Ok(Some(row).filter(|_| found.is_none()))
    }

    /// Allocates space for `n` rows.
    fn reserve(&self, state: &mut TableState, n: usize) -> Result<()> {
        let has = state.keys.shape().first().copied().unwrap_or(0);
        if n <= has {
            return Ok(());
        }
        let n = n.next_power_of_two().max(16);
        for (tensor, row) in [
            (&mut state.keys, &self.key_shape),
            (&mut state.values, &self.value_shape),
        ] {
            let mut larger = Tensor::zeros(tensor.dtype(), rows_of(n, row))?;
            dispatch_items!(tensor.dtype(), T => {
                let old = tensor.items_mut::<T>()?;
                for (to, from) in larger.items_mut::<T>()?.iter_mut().zip(old) {
                    *to = std::mem::take(from);
                }
            });
            *tensor = larger;
        }
        Ok(())
    }

    /// Removes keys; missing ones are ignored.
    ///
    /// # Errors
    /// NOT_FOUND if the table was destroyed; UNIMPLEMENTED for static tables; INVALID_ARGUMENT if
    /// dtypes or shapes do not fit or a key is reserved.
    pub fn remove(&self, keys: &Tensor) -> Result<()> {
        self.check_there()?;
        if let TableKind::Static = self.kind {
            return Err(unimplemented_error!(
                "Remove not supported by InitializableLookupTable implementations"
            ));
        }
        let (n, _) = self.extent(keys)?;
        self.check_keys(keys, n)?;
        let state = &mut *self.write();
        let is_dense = matches!(self.kind, TableKind::Dense(_));
        let width = self.key_shape.num_elements();
        for i in 0..n {
            let Some(row) = state.index.remove(&self.key_at(keys, i)?) else {
                continue;
            };
            let last = state.n - 1;
            state.n = last;
            if is_dense {
                state.buckets.remove(hash_of(keys, i, width)?, row);
            }
            if row != last {
                let moved = self.key_at(&state.keys, last)?;
                state.index.insert(moved, row);
                if is_dense {
                    let hash = hash_of(&state.keys, last, width)?;
                    state.buckets.renumber(hash, last, row);
                }
            }
            move_row(&mut state.keys, last, row, width)?;
            move_row(
                &mut state.values,
                last,
                row,
                self.value_shape.num_elements(),
            )?;
        }
        Ok(())
    }

    /// Replaces all entries.
    ///
    /// # Errors
    /// NOT_FOUND if the table was destroyed; INVALID_ARGUMENT if dtypes or shapes do not fit; for
    /// static tables, those of [`Table::initialize`].
    pub fn import(&self, keys: &Tensor, values: &Tensor) -> Result<()> {
        self.check_there()?;
        if let TableKind::Static = self.kind {
            return self.initialize(keys, values);
        }
        let n = self.check_values(keys, values)?;
        let fresh = Table::new(
            self.key,
            self.value,
            self.key_shape.clone(),
            self.value_shape.clone(),
            TableKind::Mutable,
        )?;
        let mut state = fresh.write();
        // The buckets that were exported, whatever the number of their entries.
        state.buckets = Buckets::new(n.max(1));
        for i in 0..n {
            let key = self.key_at(keys, i)?;
            // Skip exported buckets without an entry.
            if let TableKind::Dense(dense) = &self.kind
                && (key.same(&self.key_at(&dense.empty, 0)?)
                    || key.same(&self.key_at(&dense.deleted, 0)?))
            {
                continue;
            }
            if let Some(row) = self.put(&mut state, key, keys, values, i)?
                && let TableKind::Dense(_) = self.kind
            {
                state.buckets.set(i, row)?;
            }
        }
        std::mem::swap(&mut *self.write(), &mut *state);
        Ok(())
    }

    /// Returns all keys and values.
    ///
    /// # Errors
    /// NOT_FOUND if the table was destroyed; ABORTED if a static table is not initialized;
    /// RESOURCE_EXHAUSTED if the copies do not fit into memory.
    pub fn export(&self) -> Result<(Tensor, Tensor)> {
        self.check_there()?;
        let state = self.read();
        if !state.ready {
            return Err(aborted!("HashTable is not initialized."));
        }
        if let TableKind::Dense(dense) = &self.kind {
            let reserved = [&dense.empty, &dense.deleted];
            return state.buckets.export([&state.keys, &state.values], reserved);
        }
        let copy = |from: &Tensor, row: &Shape| -> Result<Tensor> {
            let mut out = Tensor::zeros(from.dtype(), rows_of(state.n, row))?;
            let used = state.n * row.num_elements();
            dispatch_items!(from.dtype(), T => {
                let to = out.items_mut::<T>()?;
                to[..used].clone_from_slice(&from.items::<T>()?[..used]);
            });
            Ok(out)
        };
        let keys = copy(&state.keys, &self.key_shape)?;
        Ok((keys, copy(&state.values, &self.value_shape)?))
    }

    /// Initializes a static table. Initializing it again is allowed with the same number of
    /// entries.
    ///
    /// # Errors
    /// NOT_FOUND if the table was destroyed; INVALID_ARGUMENT if the shapes do not fit;
    /// FAILED_PRECONDITION if a key has two values or the table was initialized with other entries.
    pub fn initialize(&self, keys: &Tensor, values: &Tensor) -> Result<()> {
        self.check_there()?;
        if keys.shape().rank() != 1 {
            return Err(invalid_argument!(
                "Keys must be a vector, but received shape{}",
                keys.shape()
            ));
        }
        if values.shape().rank() != 1 {
            return Err(invalid_argument!(
                "Values must be a vector, but received shape{}",
                values.shape()
            ));
        }
        let (n, n_values) = (keys.num_elements(), values.num_elements());
        if n != n_values {
            return Err(invalid_argument!(
                "Keys and values must have the same size {n} vs {n_values}"
            ));
        }
        let fresh = Table::new(
            self.key,
            self.value,
            Shape::scalar(),
            Shape::scalar(),
            TableKind::Static,
        )?;
        let mut made = fresh.write();
        for i in 0..n {
            let key = self.key_at(keys, i)?;
            if let Some(row) = made.index.get(&key) {
                let (has, new) = (element(&made.values, row)?, element(values, i)?);
                if has != new {
                    return Err(failed_precondition!(
                        "HashTable has different value for same key. Key {} has {has} and trying to \
                         add value {new}",
                        element(keys, i)?
                    ));
                }
            }
            self.put(&mut made, key, keys, values, i)?;
        }
        made.ready = true;
        let mut state = self.write();
        if state.ready && state.n != made.n {
            return Err(failed_precondition!(
                "Table was already initialized with different data."
            ));
        }
        if !state.ready {
            std::mem::swap(&mut *state, &mut *made);
        }
        Ok(())
    }

    /// Returns whether the table is filled by [`Table::initialize`].
    pub fn is_static(&self) -> bool {
        matches!(self.kind, TableKind::Static)
    }
}

/// Formats an element for messages.
fn element(t: &Tensor, i: usize) -> Result<String> {
    if t.dtype() == DType::String {
        return Ok(String::from_utf8_lossy(&t.strings()?[i]).into_owned());
    }
    dispatch!(t.dtype(), T in [f32, f64, i32, i64, bool] => Ok(t.slice::<T>()?[i].to_string()),
        else Ok(String::new()))
}

/// Returns the fully known shape of a value.
///
/// # Errors
/// INVALID_ARGUMENT if the shape is not fully known.
pub fn full_shape(shape: &PartialShape) -> Result<Shape> {
    shape
        .to_full()
        .ok_or_else(|| invalid_argument!("Shape {shape} is not fully defined"))
}
