//! Checkpoints (TensorFlow: `core/util/tensor_bundle`): an index (`PREFIX.index`), and the bytes in
//! data files (`PREFIX.data-00000-of-00001` …), which are mapped.

use crate::files;
use crate::proto::{
    BundleEntryProto, BundleHeaderProto, VariantTensorDataProto, bundle_header_proto::Endianness,
};
use crate::sstable::{self, unmask, varint};
use crate::tensor_proto::variant_from_proto;
use crate::tensor_slice::{Bounds, TensorSlice, copy_box};
use ferroflow_base::{
    Code, Result, Status, data_loss, internal, invalid_argument, not_found, unimplemented_error,
};
use ferroflow_tensor::{Bytes, DType, LazyTensor, MappedFile, Shape, Tensor};
use prost::Message;
use std::collections::BTreeMap;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

/// Newest format version that this code reads.
const VERSION: i32 = 1;

/// A checkpoint in TensorFlow's V2 format, opened for reading.
///
/// Every tensor is checked against its checksum when it is read. Large ones stay in the mapped
/// file where their alignment allows it.
pub struct TensorBundle {
    prefix: String,
    n_shards: i32,
    entries: BTreeMap<Vec<u8>, Vec<u8>>,
    shards: Mutex<BTreeMap<i32, Arc<MappedFile>>>,
}

struct Entry {
    proto: BundleEntryProto,
    dtype: DType,
    shape: Shape,
}

impl TensorBundle {
    /// Opens the checkpoint whose files begin with `prefix`.
    ///
    /// # Errors
    /// NOT_FOUND if there is no such checkpoint; DATA_LOSS if the index is damaged;
    /// INVALID_ARGUMENT if its version is not supported, UNIMPLEMENTED if its byte order is not.
    pub fn open(prefix: &str) -> Result<TensorBundle> {
        let path = PathBuf::from(format!("{prefix}.index"));
        let found = files::stat(&path);
        let refused = found.as_ref().err().and_then(files::file_system_error);
        if let Some(error) = refused.filter(|e| e.code() == Code::Unimplemented) {
            return Err(error);
        }
        if !found.is_ok_and(|info| !info.is_dir) {
            return Err(not_found!(
                "Unsuccessful TensorSliceReader constructor: Failed to find any matching files for {prefix}"
            ));
        }
        let file = files::map(&path)?;
        Self::from_index(prefix, file.as_ref())
            .map_err(|e| e.note(format!("in {}", path.display())))
    }

    fn from_index(prefix: &str, index: &[u8]) -> Result<TensorBundle> {
        let entries = sstable::read(index)?;
        let header = entries
            .get(&b""[..])
            .ok_or_else(|| data_loss!("the checkpoint has no header"))?;
        let header = BundleHeaderProto::decode(&header[..])
            .map_err(|e| data_loss!("the checkpoint's header is damaged: {e}"))?;
        if header.endianness != Endianness::Little as i32 {
            return Err(unimplemented_error!(
                "the checkpoint was written on a big-endian machine"
            ));
        }
        let min_consumer = header.version.map_or(0, |v| v.min_consumer);
        if min_consumer > VERSION {
            return Err(invalid_argument!(
                "Checkpoint min consumer version {min_consumer} above current version {VERSION}"
            ));
        }
        if header.num_shards < 0 {
            return Err(data_loss!(
                "the checkpoint's header has {} data files",
                header.num_shards
            ));
        }
        Ok(TensorBundle {
            prefix: prefix.to_string(),
            n_shards: header.num_shards,
            entries,
            shards: Mutex::default(),
        })
    }

    /// Creates a bundle whose index has one entry, over existing data files; for tests of hostile
    /// entries.
    #[doc(hidden)]
    pub fn with_entry(prefix: &str, name: &str, entry: &BundleEntryProto, n_shards: i32) -> Self {
        TensorBundle {
            prefix: prefix.to_string(),
            n_shards,
            entries: [(name.into(), entry.encode_to_vec())].into(),
            shards: Mutex::default(),
        }
    }

    /// Returns the names of all tensors, sorted.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        // Keys of slices begin with a zero byte.
        let is_name = |key: &&Vec<u8>| key.first().is_some_and(|&b| b != 0);
        let keys = self.entries.keys().filter(is_name);
        keys.filter_map(|key| std::str::from_utf8(key).ok())
    }

    /// Returns the dtype and shape of tensor `name`.
    ///
    /// # Errors
    /// NOT_FOUND if there is none; DATA_LOSS if its entry is damaged.
    pub fn dtype_and_shape(&self, name: &str) -> Result<(DType, Shape)> {
        let entry = self.entry(name, name.as_bytes())?;
        Ok((entry.dtype, entry.shape))
    }

    /// Reads tensor `name`.
    ///
    /// # Errors
    /// NOT_FOUND if there is none; DATA_LOSS if it is damaged.
    pub fn read(&self, name: &str) -> Result<Tensor> {
        let entry = self.entry(name, name.as_bytes())?;
        if entry.proto.slices.is_empty() {
            return self.value(name, &entry);
        }
        self.assemble(name, &entry, &Bounds::of(&entry.shape))
    }

    /// Reads a part of tensor `name`, which must have shape `whole`.
    ///
    /// # Errors
    /// NOT_FOUND if there is none; INVALID_ARGUMENT if its shape differs or slices are missing;
    /// DATA_LOSS if it is damaged.
    pub fn read_slice(&self, name: &str, whole: &Shape, slice: &TensorSlice) -> Result<Tensor> {
        let entry = self.entry(name, name.as_bytes())?;
        if entry.shape != *whole {
            return Err(invalid_argument!(
                "tensor_name = {name}; shape in shape_and_slice spec {whole} does not match the \
                 shape stored in checkpoint: {}",
                entry.shape
            ));
        }
        self.assemble(name, &entry, &slice.bounds(whole)?)
    }

    /// Returns the elements of a tensor inside `wanted`, from all stored parts.
    fn assemble(&self, name: &str, entry: &Entry, wanted: &Bounds) -> Result<Tensor> {
        let shape: Shape = wanted.size.iter().copied().collect();
        if entry.proto.slices.is_empty() {
            let value = self.value(name, entry)?;
            let mut out = Tensor::zeros(entry.dtype, shape)?;
            copy_box(&value, &Bounds::of(&entry.shape), &mut out, wanted, wanted)?;
            return Ok(out);
        }
        let (mut parts, mut n_found, mut n_bytes) = (Vec::new(), 0usize, 0usize);
        for slice in &entry.proto.slices {
            let slice = TensorSlice::from_proto(slice);
            let stored = slice
                .bounds(&entry.shape)
                .map_err(|e| self.damaged(name, e.message()))?;
            let Some(common) = stored.intersect(wanted) else {
                continue;
            };
            let part = self
                .entry(name, &slice.key(name))
                .map_err(|e| match e.code() {
                    Code::NotFound => self.damaged(name, &format!("its slice {slice} is missing")),
                    _ => e,
                })?;
            if part.dtype != entry.dtype || *part.shape != stored.size[..] {
                return Err(self.damaged(name, &format!("its slice {slice} has another shape")));
            }
            n_found = n_found.saturating_add(common.num_elements());
            n_bytes = n_bytes.saturating_add(self.stored(name, &part)?.1.len());
            parts.push((part, stored, common));
        }
        // Every element takes at least a byte, so allocate only as much as is stored.
        let n = wanted.num_elements();
        if n_found < n {
            return Err(invalid_argument!(
                "Does not have sufficient slices for partitioned tensor {name} to restore in \
                 slice_spec: {}",
                wanted.describe(&entry.shape)
            ));
        }
        if n_found > n {
            let all: Vec<&Bounds> = parts.iter().map(|(_, stored, _)| stored).collect();
            return Err(overlapping(&all, &entry.shape));
        }
        if n_bytes < n {
            return Err(self.damaged(name, "its slices do not hold it"));
        }
        let mut out = Tensor::zeros(entry.dtype, shape)?;
        for (part, stored, common) in parts {
            copy_box(
                &self.value(name, &part)?,
                &stored,
                &mut out,
                wanted,
                &common,
            )?;
        }
        Ok(out)
    }

    #[cold]
    fn damaged(&self, name: &str, what: &str) -> Status {
        data_loss!(
            "tensor '{name}' of checkpoint {} is damaged: {what}",
            self.prefix
        )
    }

    fn entry(&self, name: &str, key: &[u8]) -> Result<Entry> {
        let missing = || not_found!("Key {name} not found in checkpoint");
        if key.is_empty() {
            return Err(missing());
        }
        let bytes = self.entries.get(key).ok_or_else(missing)?;
        let proto =
            BundleEntryProto::decode(&bytes[..]).map_err(|e| self.damaged(name, &e.to_string()))?;
        let dtype = DType::from_number(proto.dtype)
            .ok_or_else(|| self.damaged(name, &format!("no dtype has number {}", proto.dtype)))?;
        let dims: Vec<i64> = proto
            .shape
            .iter()
            .flat_map(|s| &s.dim)
            .map(|d| d.size)
            .collect();
        let shape = Shape::checked(&dims).map_err(|e| self.damaged(name, e.message()))?;
        Ok(Entry {
            proto,
            dtype,
            shape,
        })
    }

    fn shard_path(&self, id: i32) -> PathBuf {
        data_path(&self.prefix, id, self.n_shards)
    }

    /// Returns the number of data files.
    pub(crate) fn n_shards(&self) -> i32 {
        self.n_shards
    }

    /// Returns all encoded entries except the header.
    pub(crate) fn raw_entries(
        &self,
    ) -> impl Iterator<Item = (Vec<u8>, Result<BundleEntryProto>)> + '_ {
        let entries = self.entries.iter().filter(|(key, _)| !key.is_empty());
        entries.map(|(key, bytes)| {
            let name = String::from_utf8_lossy(key);
            let entry = BundleEntryProto::decode(&bytes[..]);
            (
                key.clone(),
                entry.map_err(|e| self.damaged(&name, &e.to_string())),
            )
        })
    }

    fn shard(&self, id: i32) -> Result<Arc<MappedFile>> {
        let mut shards = self.shards.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(file) = shards.get(&id) {
            return Ok(file.clone());
        }
        let file = Arc::new(files::map(&self.shard_path(id))?);
        shards.insert(id, file.clone());
        Ok(file)
    }

    /// Returns the file and the byte range of an entry that is not sliced.
    fn stored(&self, name: &str, entry: &Entry) -> Result<(Arc<MappedFile>, Range<usize>)> {
        let id = entry.proto.shard_id;
        if !(0..self.n_shards).contains(&id) {
            let what = format!("it is in shard {id} of {}", self.n_shards);
            return Err(self.damaged(name, &what));
        }
        let file = self
            .shard(id)
            .map_err(|e| e.note(format!("for tensor '{name}'")))?;
        let (offset, size) = (entry.proto.offset, entry.proto.size);
        let range = usize::try_from(offset).ok().zip(usize::try_from(size).ok());
        let range = range.and_then(|(offset, size)| Some(offset..offset.checked_add(size)?));
        let length = (*file).as_ref().len();
        match range.filter(|r| r.end <= length) {
            Some(range) => Ok((file, range)),
            None => {
                let path = self.shard_path(id);
                let what = format!(
                    "{} has no {size} bytes at {offset}; truncated?",
                    path.display()
                );
                Err(self.damaged(name, &what))
            }
        }
    }

    /// Returns the value of an entry that is not sliced.
    fn value(&self, name: &str, entry: &Entry) -> Result<Tensor> {
        let (file, range) = self.stored(name, entry)?;
        let stored = &(*file).as_ref()[range.clone()];
        let dtype = entry.dtype;
        if dtype == DType::String {
            return self.strings(name, entry, stored);
        }
        if dtype == DType::Variant {
            return self.variants(name, entry, stored);
        }
        if !dtype.is_plain() {
            return Err(unimplemented_error!(
                "tensor '{name}' of checkpoint {} has dtype {dtype}, which cannot be restored",
                self.prefix
            ));
        }
        let expected = entry.shape.num_elements().checked_mul(dtype.size());
        if expected != Some(stored.len()) {
            let what = format!("{} bytes stored for {dtype}{}", stored.len(), entry.shape);
            return Err(self.damaged(name, &what));
        }
        self.check_sum(name, entry, crc32c::crc32c(stored))?;
        match LazyTensor::mapped(dtype, entry.shape.clone(), file.clone(), range) {
            Some(lazy) => lazy.get(),
            None => Tensor::from_bytes(dtype, entry.shape.clone(), stored),
        }
    }

    fn check_sum(&self, name: &str, entry: &Entry, computed: u32) -> Result<()> {
        let stored = unmask(entry.proto.crc32c);
        if stored == computed {
            return Ok(());
        }
        Err(data_loss!(
            "TensorBundle at {} shard {} ({} bytes): Checksum does not match: stored {stored:08x} vs. \
             calculated on the restored bytes {computed:08x}",
            self.prefix,
            entry.proto.shard_id,
            entry.proto.size
        )
        .note(format!("for tensor '{name}'")))
    }

    /// Decodes strings: all lengths, their checksum, then the strings. The entry's checksum treats
    /// the lengths as fixed-width numbers.
    fn strings(&self, name: &str, entry: &Entry, mut stored: &[u8]) -> Result<Tensor> {
        let n = entry.shape.num_elements();
        let short = || self.damaged(name, "its strings are truncated");
        // A length takes at least a byte.
        if n > stored.len() {
            return Err(short());
        }
        let mut lengths = Vec::with_capacity(n);
        let mut crc = 0;
        for _ in 0..n {
            let length = varint(&mut stored).ok_or_else(short)?;
            crc = match u32::try_from(length) {
                Ok(length) => crc32c::crc32c_append(crc, &length.to_le_bytes()),
                Err(_) => crc32c::crc32c_append(crc, &length.to_le_bytes()),
            };
            lengths.push(usize::try_from(length).map_err(|_| short())?);
        }
        let (sum, mut stored) = stored.split_first_chunk::<4>().ok_or_else(short)?;
        if unmask(u32::from_le_bytes(*sum)) != crc {
            return Err(self.damaged(
                name,
                "the lengths of its strings do not match their checksum",
            ));
        }
        crc = crc32c::crc32c_append(crc, sum);
        crc = crc32c::crc32c_append(crc, stored);
        self.check_sum(name, entry, crc)?;
        let mut values = Vec::with_capacity(n);
        for length in lengths {
            let (value, rest) = stored.split_at_checked(length).ok_or_else(short)?;
            values.push(Bytes::copy_from_slice(value));
            stored = rest;
        }
        Tensor::from_strings(entry.shape.clone(), values)
    }

    /// Decodes variants: for each, the length of its proto, the proto, and the checksum so far.
    fn variants(&self, name: &str, entry: &Entry, mut stored: &[u8]) -> Result<Tensor> {
        let n = entry.shape.num_elements();
        let short = || self.damaged(name, "its variants are truncated");
        // A variant takes at least its length and its checksum.
        if n > stored.len() {
            return Err(short());
        }
        let mut values = Vec::with_capacity(n);
        let mut crc = 0;
        for _ in 0..n {
            let length = varint(&mut stored).ok_or_else(short)?;
            let size = usize::try_from(length).map_err(|_| short())?;
            let (bytes, rest) = stored.split_at_checked(size).ok_or_else(short)?;
            let (sum, rest) = rest.split_first_chunk::<4>().ok_or_else(short)?;
            stored = rest;
            crc = crc32c::crc32c_append(crc, &length.to_le_bytes());
            crc = crc32c::crc32c_append(crc, bytes);
            if unmask(u32::from_le_bytes(*sum)) != crc {
                return Err(self.damaged(name, "a variant does not match its checksum"));
            }
            crc = crc32c::crc32c_append(crc, sum);
            let proto = VariantTensorDataProto::decode(bytes)
                .map_err(|_| self.damaged(name, "a variant cannot be parsed"))?;
            values.push(variant_from_proto(&proto));
        }
        self.check_sum(name, entry, crc)?;
        Tensor::from_variants(entry.shape.clone(), values)
    }
}

/// Returns the path of a data file.
pub(crate) fn data_path(prefix: &str, id: i32, n_shards: i32) -> PathBuf {
    PathBuf::from(format!("{prefix}.data-{id:05}-of-{n_shards:05}"))
}

/// Returns whether a checkpoint with this prefix exists.
pub fn has_checkpoint(prefix: &Path) -> bool {
    let mut index = prefix.as_os_str().to_os_string();
    index.push(".index");
    files::is_file(&index)
}

/// Returns the error of a tensor with overlapping slices.
#[cold]
fn overlapping(slices: &[&Bounds], whole: &Shape) -> Status {
    for (i, slice) in slices.iter().enumerate() {
        let before = slices.iter().take(i);
        if let Some(other) = before.into_iter().find(|b| slice.intersect(b).is_some()) {
            return internal!(
                "Overlapping slices: existing slice = {}, new slice = {}",
                other.describe(whole),
                slice.describe(whole)
            );
        }
    }
    internal!("Overlapping slices")
}
