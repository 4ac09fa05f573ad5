//! Distributed snapshots: ListSnapshotChunksDataset, SnapshotChunkDataset (TensorFlow:
//! `core/data/service/snapshot/{list_snapshot_chunks,snapshot_chunk}_dataset_op.cc`).
//!
//! A snapshot's folder has files of elements in `chunks`, and a file `DONE` once there will be no more of them, or `ERROR`.

use crate::common::{make, text};
use crate::snapshot::compression;
use crate::snapshot_files::ShardReader;
use ferroflow_base::{Code, Result, Status, internal};
use ferroflow_functors::shapes;
use ferroflow_model::RecordCompression;
use ferroflow_opdef::{KernelBuild, Op, OpKernel, StepServices};
use ferroflow_resources::dataset::{Components, DatasetIterator, Source, State, UNKNOWN};
use ferroflow_resources::file_system::{io_error, local_only};
use ferroflow_tensor::Tensor;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// The ops of this file.
pub(crate) const OPS: &[Op] = &[
    Op::new(
        "ListSnapshotChunksDataset",
        "snapshot_path: string -> handle: variant | output_types: list(type) >= 1; \
         output_shapes: list(shape) >= 1 | stateful",
    )
    .shape(shapes::scalar)
    .kernel(|build| {
        make(build, |ctx, _| {
            let name = text(ctx, 0, "snapshot_path")?;
            let name = local_only(&name)?.to_string();
            Ok(Arc::new(Listed { name }))
        })
    }),
    Op::new(
        "SnapshotChunkDataset",
        "chunk_file: string -> handle: variant | output_types: list(type) >= 1; output_shapes: \
         list(shape) >= 1; compression: string = ''",
    )
    .shape(shapes::scalar)
    .kernel(chunk),
];

/// The names of a snapshot's chunks.
struct Listed {
    name: String,
}

impl Listed {
    fn path(&self, name: &str) -> PathBuf {
        Path::new(&self.name).join(name)
    }

    /// Returns the names of the files, in order.
    fn chunks(&self) -> Result<Vec<String>> {
        let folder = self.path("chunks");
        let entries = match std::fs::read_dir(&folder) {
            Ok(entries) => entries,
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(e) => return Err(io_error(&folder.to_string_lossy(), &e)),
        };
        let names = entries
            .flatten()
            .map(|e| e.file_name().to_string_lossy().into_owned());
        let mut names: Vec<String> = names.filter(|name| !name.ends_with(".tmp")).collect();
        names.sort_by_cached_key(|name| (order(name), name.clone()));
        Ok(names)
    }

    /// Returns the error of a snapshot that failed, or whether it is complete.
    fn is_done(&self) -> Result<bool> {
        let path = self.path("ERROR");
        match std::fs::read_to_string(&path) {
            Ok(content) => Err(failure(&content).unwrap_or_else(|| {
                internal!(
                    "Unexpected snapshot ERROR file contains an OK status at {}.",
                    path.display()
                )
            })),
            Err(_) => Ok(self.path("DONE").exists()),
        }
    }
}

/// Returns the chunk's number in its stream, and the stream's.
fn order(name: &str) -> Option<(u64, u64)> {
    let mut parts = name.strip_prefix("chunk_")?.split('_');
    let stream = parts.next()?.parse().ok()?;
    Some((parts.next()?.parse().ok()?, stream))
}

/// Reads the text form of a `StatusProto`.
fn failure(content: &str) -> Option<Status> {
    let field = |name: &str| {
        let line = content
            .lines()
            .find_map(|line| line.trim().strip_prefix(name))?;
        Some(
            line.trim_start_matches(':')
                .trim()
                .trim_matches('"')
                .to_string(),
        )
    };
    let code = field("code")?;
    let all = (1..=16).filter_map(Code::from_number);
    let mut codes = all.filter(|c| code == c.name() || code == (*c as i32).to_string());
    let message = field("message").unwrap_or_default();
    Some(Status::new(codes.next()?, message))
}

struct ListedIterator {
    source: Arc<Listed>,
    read: Vec<String>,
    unread: std::vec::IntoIter<String>,
    is_done: bool,
}

impl Source for Listed {
    fn iterator(self: Arc<Self>) -> Result<Box<dyn DatasetIterator>> {
        Ok(Box::new(ListedIterator {
            source: self,
            read: Vec::new(),
            unread: Vec::new().into_iter(),
            is_done: false,
        }))
    }

    fn cardinality(&self) -> i64 {
        match self.path("DONE").exists() {
            true => self.chunks().map_or(UNKNOWN, |chunks| chunks.len() as i64),
            false => UNKNOWN,
        }
    }
}

impl DatasetIterator for ListedIterator {
    fn next(&mut self, services: &StepServices) -> Result<Option<Components>> {
        let mut pause = Duration::from_millis(1);
        loop {
            if let Some(name) = self.unread.next() {
                let folder = self.source.name.trim_end_matches('/');
                let path = format!("{folder}/chunks/{name}");
                self.read.push(name);
                return Ok(Some(vec![Tensor::string(path.into_bytes())]));
            }
            if self.is_done {
                return Ok(None);
            }
            // First the state: a chunk may be added in between.
            self.is_done = self.source.is_done()?;
            let mut chunks = self.source.chunks()?;
            chunks.retain(|name| !self.read.contains(name));
            if chunks.is_empty() && !self.is_done {
                services.cancel.check()?;
                std::thread::sleep(pause);
                pause = (pause * 2).min(Duration::from_secs(1));
            }
            self.unread = chunks.into_iter();
        }
    }

    fn state(&mut self, state: &mut State) -> Result<()> {
        let mut names = Tensor::string(self.read.join(",").into_bytes());
        state.tensor(&mut names)?;
        if state.is_restoring() {
            let names = String::from_utf8_lossy(&names.strings()?[0]).into_owned();
            let names = names.split(',').filter(|name| !name.is_empty());
            self.read = names.map(str::to_string).collect();
            (self.unread, self.is_done) = (Vec::new().into_iter(), false);
        }
        Ok(())
    }
}

/// The elements of a chunk.
struct Chunk {
    file: PathBuf,
    compression: RecordCompression,
    n_components: usize,
}

struct ChunkIterator {
    source: Arc<Chunk>,
    reader: ShardReader,
    n: u64,
}

fn chunk(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    let compression = compression(build)?;
    make(build, move |ctx, spec| {
        Ok(Arc::new(Chunk {
            file: PathBuf::from(local_only(&text(ctx, 0, "chunk_file")?)?),
            compression,
            n_components: spec.dtypes.len(),
        }))
    })
}

impl Chunk {
    fn open(&self) -> Result<ShardReader> {
        ShardReader::of_file(&self.file, self.compression, self.n_components)
    }
}

impl Source for Chunk {
    fn iterator(self: Arc<Self>) -> Result<Box<dyn DatasetIterator>> {
        Ok(Box::new(ChunkIterator {
            reader: self.open()?,
            source: self,
            n: 0,
        }))
    }
}

impl DatasetIterator for ChunkIterator {
    fn next(&mut self, _: &StepServices) -> Result<Option<Components>> {
        let element = self.reader.next()?;
        self.n += u64::from(element.is_some());
        Ok(element)
    }

    fn state(&mut self, state: &mut State) -> Result<()> {
        state.uint(&mut self.n)?;
        if state.is_restoring() {
            self.reader = self.source.open()?;
            let mut left = self.n;
            while left > 0 && self.reader.next()?.is_some() {
                left -= 1;
            }
        }
        Ok(())
    }
}
