//! Checkpoints in TensorFlow's V2 format (TensorFlow: `core/util/tensor_bundle`), written so that a
//! crash at any moment leaves either the previous checkpoint or the new one.
//!
//! The index is renamed into place last, and it determines which data files are valid. The names of
//! data files include their number, so a checkpoint that replaces one of the same prefix uses
//! another number and does not touch the files that the old index needs.

use crate::atomic_file::{
    AtomicFile, io_error, make_folder, remove_stale, sync_folder, write_file,
};
use crate::files;
use crate::proto::{
    BundleEntryProto, BundleHeaderProto, VersionDef, bundle_header_proto::Endianness,
};
use crate::sstable::{self, mask, put_varint};
use crate::tensor_bundle::{TensorBundle, data_path};
use crate::tensor_proto::{shape_to_proto, variant_to_proto};
use crate::tensor_slice::TensorSlice;
use ferroflow_base::{Result, Status, data_loss, invalid_argument, not_found, unimplemented_error};
use ferroflow_tensor::{DType, Shape, Tensor};
use prost::Message;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// Large tensors start at multiples of this, so that readers can map them.
const ALIGNMENT: usize = 64;

/// A checkpoint being written. Dropping it unfinished leaves nothing behind.
///
/// ```
/// use ferroflow_model::{BundleWriter, TensorBundle};
/// use ferroflow_tensor::Tensor;
/// let folder = std::env::temp_dir().join(format!("ferroflow-doc-{}", std::process::id()));
/// let prefix = folder.join("model.ckpt-7").display().to_string();
/// let mut writer = BundleWriter::create(&prefix)?;
/// writer.add("weights", &Tensor::vector(&[1f32, 2.0])?)?;
/// writer.finish()?;
/// assert_eq!(TensorBundle::open(&prefix)?.read("weights")?.slice::<f32>()?, [1.0, 2.0]);
/// # std::fs::remove_dir_all(folder).unwrap();
/// # Ok::<(), ferroflow_base::Status>(())
/// ```
pub struct BundleWriter {
    prefix: String,
    place: ShardRange,
    data: AtomicFile,
    offset: usize,
    entries: BTreeMap<Vec<u8>, BundleEntryProto>,
}

/// The data files of a new checkpoint: those from `first` on, of `n_shards`.
struct ShardRange {
    first: i32,
    n_shards: i32,
}

impl ShardRange {
    /// Returns a place for `n` data files that does not touch those of an existing checkpoint.
    fn for_shards(prefix: &str, n: i32) -> ShardRange {
        // An unreadable checkpoint is not worth protecting.
        let taken = TensorBundle::open(prefix).is_ok_and(|b| b.n_shards() == n);
        let first = i32::from(taken && n < i32::MAX);
        ShardRange {
            first,
            n_shards: n + first,
        }
    }
}

pub(crate) fn index_path(prefix: &str) -> PathBuf {
    PathBuf::from(format!("{prefix}.index"))
}

impl BundleWriter {
    /// Creates a checkpoint whose files begin with `prefix`.
    ///
    /// # Errors
    /// A file system error, such as PERMISSION_DENIED.
    pub fn create(prefix: &str) -> Result<BundleWriter> {
        let place = ShardRange::for_shards(prefix, 1);
        let data = AtomicFile::create(&data_path(prefix, place.first, place.n_shards))?;
        Ok(BundleWriter {
            prefix: prefix.to_string(),
            place,
            data,
            offset: 0,
            entries: BTreeMap::new(),
        })
    }

    /// Adds a tensor.
    ///
    /// # Errors
    /// INVALID_ARGUMENT if the name is empty or taken; a file system error if the data cannot be
    /// written.
    pub fn add(&mut self, name: &str, tensor: &Tensor) -> Result<()> {
        if name.is_empty() {
            return Err(invalid_argument!("a checkpointed tensor must have a name"));
        }
        self.insert(name.as_bytes().to_vec(), name, tensor)
    }

    /// Adds a part of a tensor of shape `whole`.
    ///
    /// # Errors
    /// INVALID_ARGUMENT if the name is empty or taken, or the shapes do not fit; a file system
    /// error if the data cannot be written.
    pub fn add_slice(
        &mut self,
        name: &str,
        whole: &Shape,
        slice: &TensorSlice,
        tensor: &Tensor,
    ) -> Result<()> {
        if slice.shape(whole)? != *tensor.shape() {
            return Err(invalid_argument!(
                "slice {slice} of a tensor of shape {whole} was given a tensor of shape {}",
                tensor.shape()
            ));
        }
        let key = name.as_bytes().to_vec();
        let full = self.entries.entry(key).or_insert_with(|| BundleEntryProto {
            dtype: tensor.dtype() as i32,
            shape: Some(shape_to_proto(&whole.into())),
            ..Default::default()
        });
        if full.slices.is_empty() && full.size > 0 || full.dtype != tensor.dtype() as i32 {
            return Err(invalid_argument!("Adding duplicate key: {name}"));
        }
        if full.shape != Some(shape_to_proto(&whole.into())) {
            return Err(invalid_argument!(
                "the slices of tensor {name} disagree on the shape of the whole"
            ));
        }
        full.slices.push(slice.to_proto());
        self.insert(slice.key(name), name, tensor)
    }

    fn insert(&mut self, key: Vec<u8>, name: &str, tensor: &Tensor) -> Result<()> {
        if self.entries.contains_key(&key) {
            return Err(invalid_argument!("Adding duplicate key: {name}"));
        }
        let dtype = tensor.dtype();
        let (bytes, crc) = if dtype == DType::String {
            string_bytes(tensor)?
        } else if dtype == DType::Variant {
            variant_bytes(name, tensor)?
        } else if dtype.is_plain() {
            let bytes = tensor.bytes()?;
            let padding = self.offset.next_multiple_of(ALIGNMENT) - self.offset;
            if bytes.len() >= ALIGNMENT && padding > 0 {
                self.data.write(&[0; ALIGNMENT][..padding])?;
                self.offset += padding;
            }
            self.data.write(bytes)?;
            (Vec::new(), crc32c::crc32c(bytes))
        } else {
            return Err(unsaved(name, dtype));
        };
        self.data.write(&bytes)?;
        let size = match dtype {
            DType::String | DType::Variant => bytes.len(),
            _ => tensor.byte_len(),
        };
        let entry = BundleEntryProto {
            dtype: dtype as i32,
            shape: Some(shape_to_proto(&tensor.shape().into())),
            shard_id: self.place.first,
            offset: self.offset as i64,
            size: size as i64,
            crc32c: mask(crc),
            slices: Vec::new(),
        };
        self.offset += size;
        self.entries.insert(key, entry);
        Ok(())
    }

    /// Moves the checkpoint into place.
    ///
    /// # Errors
    /// A file system error; then the previous checkpoint is unchanged.
    pub fn finish(self) -> Result<()> {
        let BundleWriter {
            prefix,
            place,
            data,
            entries,
            ..
        } = self;
        let before = files_of(&prefix);
        data.commit()?;
        if let Err(error) = write_index(&prefix, &place, entries) {
            // The index does not refer to this file.
            let _ = files::remove_file(data_path(&prefix, place.first, place.n_shards));
            return Err(error);
        }
        remove_old(&place, before);
        remove_stale(&index_path(&prefix));
        Ok(())
    }
}

/// Returns the suffix of data file names, of `n` files in all.
fn suffix(n: i32) -> String {
    format!("-of-{n:05}")
}

/// Returns the data files of an existing checkpoint. The number in the index may be wrong, so this
/// lists the folder.
pub(crate) fn files_of(prefix: &str) -> Vec<PathBuf> {
    let Ok(n) = TensorBundle::open(prefix).map(|b| b.n_shards()) else {
        return Vec::new();
    };
    let begin = format!("{prefix}.data-");
    let (Some(begin), Some(folder)) = (
        Path::new(&begin).file_name().and_then(|n| n.to_str()),
        index_path(prefix).parent().map(Path::to_path_buf),
    ) else {
        return Vec::new();
    };
    let here = match folder.as_os_str().is_empty() {
        true => Path::new("."),
        false => folder.as_path(),
    };
    let end = suffix(n);
    let mut found = Vec::new();
    for name in files::children(here).unwrap_or_default() {
        let id = name
            .strip_prefix(begin)
            .and_then(|rest| rest.strip_suffix(&end));
        if id.is_some_and(|id| id.bytes().all(|b| b.is_ascii_digit())) {
            found.push(folder.join(name));
        }
    }
    found
}

/// Removes the data files of the replaced checkpoint.
fn remove_old(place: &ShardRange, before: Vec<PathBuf>) {
    let end = suffix(place.n_shards);
    let is_new = |path: &PathBuf| {
        let name = path.file_name().and_then(|n| n.to_str());
        name.is_none_or(|n| n.ends_with(&end))
    };
    for path in before.iter().filter(|p| !is_new(p)) {
        let _ = files::remove_file(path);
    }
}

fn write_index(
    prefix: &str,
    place: &ShardRange,
    entries: BTreeMap<Vec<u8>, BundleEntryProto>,
) -> Result<()> {
    let header = BundleHeaderProto {
        num_shards: place.n_shards,
        endianness: Endianness::Little as i32,
        version: Some(VersionDef {
            producer: 1,
            ..Default::default()
        }),
    };
    let mut table: BTreeMap<Vec<u8>, Vec<u8>> = entries
        .into_iter()
        .map(|(key, entry)| (key, entry.encode_to_vec()))
        .collect();
    table.insert(Vec::new(), header.encode_to_vec());
    write_file(&index_path(prefix), &sstable::write(&table))
}

/// Encodes strings for a data file, and returns the checksum of their entry: all lengths, their
/// checksum, then the strings. Checksums treat the lengths as fixed-width numbers.
fn string_bytes(tensor: &Tensor) -> Result<(Vec<u8>, u32)> {
    let (mut out, mut crc) = (Vec::new(), 0);
    for value in tensor.strings()? {
        put_varint(&mut out, value.len() as u64);
        crc = match u32::try_from(value.len()) {
            Ok(n) => crc32c::crc32c_append(crc, &n.to_le_bytes()),
            Err(_) => crc32c::crc32c_append(crc, &(value.len() as u64).to_le_bytes()),
        };
    }
    let sum = mask(crc).to_le_bytes();
    out.extend(sum);
    crc = crc32c::crc32c_append(crc, &sum);
    for value in tensor.strings()? {
        out.extend_from_slice(value);
        crc = crc32c::crc32c_append(crc, value);
    }
    Ok((out, crc))
}

/// Encodes variants: for each, the length of its proto, the proto, and the checksum so far.
fn variant_bytes(name: &str, tensor: &Tensor) -> Result<(Vec<u8>, u32)> {
    let (mut out, mut crc) = (Vec::new(), 0);
    for value in tensor.variants()? {
        let proto = variant_to_proto(value).map_err(|_| unsaved(name, DType::Variant))?;
        let bytes = proto.encode_to_vec();
        let length = bytes.len() as u64;
        put_varint(&mut out, length);
        out.extend_from_slice(&bytes);
        crc = crc32c::crc32c_append(crc, &length.to_le_bytes());
        crc = crc32c::crc32c_append(crc, &bytes);
        let sum = mask(crc).to_le_bytes();
        out.extend(sum);
        crc = crc32c::crc32c_append(crc, &sum);
    }
    Ok((out, crc))
}

fn unsaved(name: &str, dtype: DType) -> Status {
    unimplemented_error!("tensor '{name}' has dtype {dtype}, which cannot be saved")
}

/// Merges several checkpoints into one by moving their data files. Removes folders that are empty
/// afterwards if `delete_old_dirs` is set.
///
/// # Errors
/// INVALID_ARGUMENT if there are no parts or they share a tensor; NOT_FOUND if a data file is
/// missing; DATA_LOSS if an index is damaged; other file system errors.
pub fn merge_bundles(parts: &[String], prefix: &str, delete_old_dirs: bool) -> Result<()> {
    if parts.is_empty() {
        return Err(invalid_argument!("Input checkpoint_prefixes is empty"));
    }
    let mut bundles = Vec::with_capacity(parts.len());
    for part in parts {
        bundles.push(TensorBundle::open(part)?);
    }
    let counts = bundles.iter().map(TensorBundle::n_shards);
    let n = counts.clone().try_fold(0i32, i32::checked_add);
    let n = n
        .filter(|n| *n < i32::MAX)
        .ok_or_else(|| data_loss!("the merged checkpoints have too many data files"))?;
    let place = ShardRange::for_shards(prefix, n);
    let before = files_of(prefix);
    let (entries, moves) = plan_merge(&bundles, parts, prefix, &place)?;
    if let Some(folder) = files::folder_of(Path::new(prefix)) {
        make_folder(&folder)?;
    }
    let placed = moves
        .iter()
        .try_for_each(|(from, to)| files::rename(from, to).map_err(|e| io_error(from, &e)));
    let written = placed.and_then(|()| {
        sync_folder(Path::new(prefix));
        write_index(prefix, &place, entries)
    });
    if let Err(error) = written {
        // On failure the parts are moved back.
        for (from, to) in moves
            .iter()
            .filter(|(from, to)| files::exists(to) && !files::exists(from))
        {
            let _ = files::rename(to, from);
        }
        return Err(error);
    }
    remove_old(&place, before);
    remove_stale(&index_path(prefix));
    remove_merged(parts, prefix, delete_old_dirs);
    Ok(())
}

/// Removes what is left of the parts, and folders that are empty then if `delete_old_dirs` is set.
fn remove_merged(parts: &[String], prefix: &str, delete_old_dirs: bool) {
    for part in parts {
        let index = index_path(part);
        if index != index_path(prefix) {
            let empty = files_of(part);
            let _ = files::remove_file(&index);
            for file in empty {
                let _ = files::remove_file(file);
            }
        }
        if let Some(folder) = Path::new(part).parent().filter(|_| delete_old_dirs) {
            // Removes the folder only if it is empty.
            let _ = files::remove_dir(folder);
        }
    }
}

/// The entries of an index by key, and the data files to rename: from, to.
type Merge = (BTreeMap<Vec<u8>, BundleEntryProto>, Vec<(PathBuf, PathBuf)>);

/// Returns the index of the merged checkpoint and where the data files of its parts go.
fn plan_merge(
    bundles: &[TensorBundle],
    parts: &[String],
    prefix: &str,
    place: &ShardRange,
) -> Result<Merge> {
    let mut entries: BTreeMap<Vec<u8>, BundleEntryProto> = BTreeMap::new();
    let mut moves: Vec<(PathBuf, PathBuf)> = Vec::new();
    let mut next = place.first;
    for (bundle, part) in bundles.iter().zip(parts) {
        // A shard without tensors may be missing.
        let mut shards = BTreeSet::new();
        for (key, entry) in bundle.raw_entries() {
            let mut entry = entry?;
            if !(0..bundle.n_shards()).contains(&entry.shard_id) {
                return Err(data_loss!(
                    "tensor {} of checkpoint {part} is in data file {} of {}",
                    String::from_utf8_lossy(&key),
                    entry.shard_id,
                    bundle.n_shards()
                ));
            }
            // The entry of a sliced tensor as a whole has no data.
            if entry.slices.is_empty() {
                shards.insert(entry.shard_id);
            }
            entry.shard_id += next;
            match entries.get_mut(&key) {
                None => {
                    entries.insert(key, entry);
                }
                // Slices of one tensor may be in different checkpoints.
                Some(known)
                    if !known.slices.is_empty()
                        && (known.dtype, &known.shape) == (entry.dtype, &entry.shape) =>
                {
                    known.slices.extend(entry.slices);
                }
                Some(_) => {
                    return Err(invalid_argument!(
                        "tensor {} is in more than one of the merged checkpoints",
                        String::from_utf8_lossy(&key)
                    ));
                }
            }
        }
        for i in shards {
            let from = data_path(part, i, bundle.n_shards());
            if !files::exists(&from) {
                return Err(not_found!("{}; No such file or directory", from.display()));
            }
            moves.push((from, data_path(prefix, next + i, place.n_shards)));
        }
        next += bundle.n_shards();
    }
    Ok((entries, moves))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::remove_checkpoint;
    use ferroflow_base::Code;

    /// A wrong number in the header is an error, and does not make the reader open or allocate more
    /// than there are files.
    #[test]
    fn numbers_of_data_files_are_not_believed() {
        let folder = std::env::temp_dir().join(format!("ferroflow-shards-{}", std::process::id()));
        let prefix = |name: &str| folder.join(name).display().to_string();
        let part = |name: &str, n_shards: i32, shard_id: i32| {
            let place = ShardRange { first: 0, n_shards };
            let entry = BundleEntryProto {
                dtype: DType::Float as i32,
                shape: Some(shape_to_proto(&(&Shape::scalar()).into())),
                shard_id,
                size: 4,
                ..Default::default()
            };
            let entries = BTreeMap::from([(name.as_bytes().to_vec(), entry)]);
            write_index(&prefix(name), &place, entries).expect("writable");
            prefix(name)
        };
        let check = |parts: &[String], code: Code| {
            let error = merge_bundles(parts, &prefix("merged"), false).expect_err("bad parts");
            assert_eq!(error.code(), code, "{error}");
            assert!(!index_path(&prefix("merged")).exists());
        };
        let (all, none) = (part("all", i32::MAX, 0), part("none", -1, 0));
        let (beyond, missing) = (part("beyond", 1, 7), part("missing", 2_000_000_000, 1));
        check(std::slice::from_ref(&all), Code::DataLoss);
        check(&[missing.clone(), all], Code::DataLoss);
        check(&[none], Code::DataLoss);
        check(&[beyond], Code::DataLoss);
        check(std::slice::from_ref(&missing), Code::NotFound);
        remove_checkpoint(&missing);
        assert!(!index_path(&missing).exists());
        std::fs::remove_dir_all(folder).expect("removable");
    }
}
