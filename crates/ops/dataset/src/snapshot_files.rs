//! The files of saved datasets: metadata, and shards of records.

use ferroflow_base::{Result, data_loss};
use ferroflow_model::proto::TensorProto;
use ferroflow_model::{
    RecordCompression, RecordReader, RecordWriter, make_folder, tensor_from_proto, tensor_to_proto,
    write_output,
};
use ferroflow_resources::dataset::Components;
use ferroflow_resources::file_system::io_error;
use ferroflow_tensor::{DType, Tensor};
use prost::Message;
use prost::encoding::{
    DecodeContext, WireType, decode_key, decode_varint, encode_varint, skip_field,
};
use std::collections::BTreeMap;
use std::hash::{BuildHasher, RandomState};
use std::path::{Path, PathBuf};

const METADATA: &str = "snapshot.metadata";
/// The version of the files' layout: records in TFRecord files.
pub(crate) const VERSION: u64 = 2;

/// What is known about a run (TensorFlow: `SnapshotMetadataRecord`).
pub(crate) struct Metadata {
    /// The folder of the run.
    pub(crate) run: String,
    pub(crate) dtypes: Vec<DType>,
    pub(crate) n_elements: u64,
    /// Whether all elements have been written.
    pub(crate) is_final: bool,
    /// Microseconds since 1970, once it has been written.
    pub(crate) created: u64,
}

impl Metadata {
    /// Reads the metadata of a folder, if it has any.
    pub(crate) fn read(folder: &Path) -> Result<Option<Metadata>> {
        let path = folder.join(METADATA);
        let content = match std::fs::read(&path) {
            Ok(content) => content,
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(e) => return Err(io_error(&path.to_string_lossy(), &e)),
        };
        let read = Metadata::decode(&content);
        let read = read.filter(|m| !m.run.contains(['/', '\\']) && !m.run.is_empty());
        read.map(Some)
            .ok_or_else(|| data_loss!("{}: the metadata is damaged", path.display()))
    }

    fn decode(mut content: &[u8]) -> Option<Metadata> {
        let mut read = Metadata {
            run: String::new(),
            dtypes: Vec::new(),
            n_elements: 0,
            is_final: false,
            created: 0,
        };
        let from = &mut content;
        while !from.is_empty() {
            let (tag, wire) = decode_key(from).ok()?;
            match (tag, wire) {
                (2, WireType::LengthDelimited) => {
                    let n = usize::try_from(decode_varint(from).ok()?).ok()?;
                    let (text, rest) = from.split_at_checked(n)?;
                    read.run = String::from_utf8(text.to_vec()).ok()?;
                    *from = rest;
                }
                (3, WireType::Varint) => read.created = decode_varint(from).ok()?,
                (6, WireType::Varint) => read.n_elements = decode_varint(from).ok()?,
                (1000, WireType::Varint) => read.is_final = decode_varint(from).ok()? != 0,
                _ => skip_field(wire, tag, from, DecodeContext::default()).ok()?,
            }
        }
        Some(read)
    }

    fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        let key = |tag: u64, wire: WireType, out: &mut Vec<u8>| {
            encode_varint(tag << 3 | wire as u64, out);
        };
        key(2, WireType::LengthDelimited, &mut out);
        encode_varint(self.run.len() as u64, &mut out);
        out.extend_from_slice(self.run.as_bytes());
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        let now = now.map_or(0, |t| u64::try_from(t.as_micros()).unwrap_or(0));
        for (tag, number) in [(3, now), (4, VERSION)] {
            key(tag, WireType::Varint, &mut out);
            encode_varint(number, &mut out);
        }
        for &dtype in &self.dtypes {
            key(5, WireType::Varint, &mut out);
            encode_varint(dtype as u64, &mut out);
        }
        for (tag, number) in [(6, self.n_elements), (1000, u64::from(self.is_final))] {
            key(tag, WireType::Varint, &mut out);
            encode_varint(number, &mut out);
        }
        out
    }

    /// Writes the metadata of a folder, in place of former ones.
    pub(crate) fn write(&self, folder: &Path) -> Result<()> {
        make_folder(folder)?;
        write_output(&folder.join(METADATA), &self.encode())
    }
}

/// The files of a run that is being written.
pub(crate) struct Writers {
    folder: PathBuf,
    run: String,
    compression: RecordCompression,
    by_shard: BTreeMap<i64, RecordWriter>,
    n: u64,
}

impl Writers {
    /// Begins a run.
    pub(crate) fn create(folder: &Path, compression: RecordCompression) -> Result<Writers> {
        let run = RandomState::new().hash_one(0u8).to_string();
        Ok(Writers::named(folder, &run, compression))
    }

    /// Begins a run of this name.
    pub(crate) fn named(folder: &Path, run: &str, compression: RecordCompression) -> Writers {
        Writers {
            folder: folder.join(run),
            run: run.to_string(),
            compression,
            by_shard: BTreeMap::new(),
            n: 0,
        }
    }

    pub(crate) fn run(&self) -> &str {
        &self.run
    }

    pub(crate) fn n_elements(&self) -> u64 {
        self.n
    }

    /// Appends an element to a shard.
    pub(crate) fn write(&mut self, shard: i64, element: &[Tensor]) -> Result<()> {
        let writer = match self.by_shard.entry(shard) {
            std::collections::btree_map::Entry::Occupied(entry) => entry.into_mut(),
            std::collections::btree_map::Entry::Vacant(entry) => {
                let folder = self.folder.join(format!("{:08}.shard", shard as u64));
                make_folder(&folder)?;
                let file = folder.join(format!("{:08}.snapshot", 0));
                entry.insert(RecordWriter::create(&file, self.compression)?)
            }
        };
        for t in element {
            writer.write(&tensor_to_proto(t)?.encode_to_vec())?;
        }
        self.n += 1;
        Ok(())
    }

    /// Completes the files.
    pub(crate) fn finish(self) -> Result<()> {
        make_folder(&self.folder)?;
        self.by_shard
            .into_values()
            .try_for_each(RecordWriter::finish)
    }
}

/// Reads the elements of one shard.
pub(crate) struct ShardReader {
    files: std::vec::IntoIter<PathBuf>,
    current: Option<RecordReader>,
    compression: RecordCompression,
    n_components: usize,
}

/// Returns the entries of a folder whose names end so, in order.
fn entries(folder: &Path, suffix: &str) -> Vec<PathBuf> {
    let found = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let paths = found.map(|entry| entry.path());
    let mut paths: Vec<PathBuf> = paths
        .filter(|path| path.to_string_lossy().ends_with(suffix))
        .collect();
    paths.sort_unstable();
    paths
}

impl ShardReader {
    /// Returns the shards of a run.
    pub(crate) fn folders(run: &Path) -> Vec<PathBuf> {
        entries(run, ".shard")
    }

    /// Opens a shard.
    pub(crate) fn open(
        folder: &Path,
        compression: RecordCompression,
        n_components: usize,
    ) -> Result<ShardReader> {
        Ok(ShardReader {
            files: entries(folder, ".snapshot").into_iter(),
            current: None,
            compression,
            n_components,
        })
    }

    /// Opens a single file.
    pub(crate) fn of_file(
        file: &Path,
        compression: RecordCompression,
        n_components: usize,
    ) -> Result<ShardReader> {
        Ok(ShardReader {
            current: Some(RecordReader::open(file, compression)?),
            files: Vec::new().into_iter(),
            compression,
            n_components,
        })
    }

    /// Returns the next element; `None` at the end.
    pub(crate) fn next(&mut self) -> Result<Option<Components>> {
        loop {
            let Some(reader) = &mut self.current else {
                let Some(file) = self.files.next() else {
                    return Ok(None);
                };
                self.current = Some(RecordReader::open(&file, self.compression)?);
                continue;
            };
            let mut element = Vec::new();
            while element.len() < self.n_components
                && let Some(record) = reader.read()?
            {
                let proto = TensorProto::decode(&record[..]);
                let proto = proto.map_err(|e| data_loss!("a saved tensor is damaged: {e}"))?;
                element.push(tensor_from_proto(&proto, None)?.get()?);
            }
            match element.len() {
                n if n == self.n_components => return Ok(Some(element)),
                0 => self.current = None,
                _ => return Err(data_loss!("a saved element lacks components")),
            }
        }
    }
}
