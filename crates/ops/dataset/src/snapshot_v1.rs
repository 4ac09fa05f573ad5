//! SnapshotDataset: elements that are written in one run and read in later ones (TensorFlow:
//! `core/kernels/data/experimental/snapshot_dataset_op.cc`, the first version). The files are those of `snapshot.rs`.

use crate::common::{Input, dataset, make, next_of, text};
use crate::fingerprint::fingerprint;
use crate::seeds::{Random, seeds_or_fresh};
use crate::snapshot_files::{Metadata, ShardReader, Writers};
use ferroflow_base::{Result, invalid_argument, not_found, unimplemented_error};
use ferroflow_functors::shapes;
use ferroflow_model::RecordCompression;
use ferroflow_opdef::{KernelBuild, Op, OpKernel, StepServices};
use ferroflow_resources::dataset::{Components, Dataset, DatasetIterator, Source, State};
use ferroflow_resources::file_system::local_only;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// The ops of this file.
pub(crate) const OPS: &[Op] = &[Op::new(
    "SnapshotDataset",
    "input_dataset: variant, path: string -> handle: variant | output_types: list(type) >= 1; \
     output_shapes: list(shape) >= 1; compression: string = ''; reader_path_prefix: string = ''; \
     writer_path_prefix: string = ''; shard_size_bytes: int = 10737418240; \
     pending_snapshot_expiry_seconds: int = 86400; num_reader_threads: int = 1; \
     reader_buffer_size: int = 1; num_writer_threads: int = 1; writer_buffer_size: int = 1; \
     shuffle_on_read: bool = false; seed: int = 0; seed2: int = 0; mode: string = 'auto'; \
     snapshot_name: string = ''",
)
.shape(shapes::scalar)
.kernel(snapshot)];

/// What an iterator does.
#[derive(Clone, Copy, PartialEq)]
enum Mode {
    /// What the metadata say.
    Auto,
    Read,
    Write,
    Pass,
}

struct Snapshot {
    input: Arc<Dataset>,
    folder: PathBuf,
    options: Arc<Options>,
}

struct Options {
    mode: Mode,
    compression: RecordCompression,
    /// The run's folder, if it has a name.
    name: Option<String>,
    shard_bytes: u64,
    /// How long an unfinished snapshot counts as being written.
    expiry: Duration,
    shuffle: Option<(i64, i64)>,
}

impl Options {
    fn of(build: &KernelBuild) -> Result<Self> {
        let attrs = build.attrs;
        let compression = match attrs.str("compression")? {
            "" => RecordCompression::None,
            "GZIP" => RecordCompression::Gzip,
            "SNAPPY" => {
                return Err(unimplemented_error!(
                    "the compression SNAPPY is not supported; use GZIP or none"
                ));
            }
            _ => {
                return Err(invalid_argument!(
                    "compression must be either '', 'GZIP' or 'SNAPPY'."
                ));
            }
        };
        let expiry = match attrs.int("pending_snapshot_expiry_seconds")? {
            -1 => 86400,
            n => u64::try_from(n).unwrap_or(0),
        };
        if expiry == 0 {
            return Err(invalid_argument!(
                "pending_snapshot_expiry_seconds must be at least 1 second."
            ));
        }
        let mode = match attrs.str("mode")? {
            "auto" => Mode::Auto,
            "read" => Mode::Read,
            "write" => Mode::Write,
            "passthrough" => Mode::Pass,
            _ => {
                return Err(invalid_argument!(
                    "mode must be either 'auto', 'read', 'write', or 'passthrough'."
                ));
            }
        };
        let name = match attrs.str("snapshot_name")? {
            "" => None,
            name if name.contains(['/', '\\']) || name.starts_with('.') => {
                return Err(invalid_argument!(
                    "snapshot_name must be the name of a folder, not '{name}'"
                ));
            }
            name => Some(name.to_string()),
        };
        let seeds = (attrs.int("seed")?, attrs.int("seed2")?);
        let shuffle = attrs.bool("shuffle_on_read")?;
        Ok(Options {
            mode,
            compression,
            name,
            shard_bytes: u64::try_from(attrs.int("shard_size_bytes")?)
                .unwrap_or(10 << 30)
                .max(1),
            expiry: Duration::from_secs(expiry),
            shuffle: shuffle.then(|| seeds_or_fresh(seeds.0, seeds.1)),
        })
    }
}

fn snapshot(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    let options = Arc::new(Options::of(build)?);
    make(build, move |ctx, _| {
        let input = dataset(ctx, 0)?;
        let path = text(ctx, 1, "path")?;
        let folder = PathBuf::from(local_only(&path)?).join(fingerprint(&input)?.to_string());
        Ok(Arc::new(Snapshot {
            input,
            folder,
            options: options.clone(),
        }))
    })
}

impl Snapshot {
    /// Returns the run to read; an error or `None` if there is nothing to read.
    fn plan(&self) -> Result<(Mode, Option<Metadata>)> {
        let options = &self.options;
        let metadata = Metadata::read(&self.folder)?;
        let mode = match (options.mode, &metadata) {
            (Mode::Read, None) => return Err(not_found!("Metadata file does not exist.")),
            (Mode::Auto, None) => Mode::Write,
            (Mode::Auto, Some(found)) if found.is_final => Mode::Read,
            (Mode::Auto, Some(found)) => {
                let created = UNIX_EPOCH + Duration::from_micros(found.created);
                let age = SystemTime::now()
                    .duration_since(created)
                    .unwrap_or_default();
                if age <= options.expiry {
                    Mode::Pass
                } else {
                    Mode::Write
                }
            }
            (mode, _) => mode,
        };
        Ok((mode, metadata))
    }
}

impl Source for Snapshot {
    fn iterator(self: Arc<Self>) -> Result<Box<dyn DatasetIterator>> {
        Ok(Box::new(SnapshotIterator {
            source: self,
            work: None,
            n: 0,
        }))
    }

    fn cardinality(&self) -> i64 {
        self.input.cardinality()
    }

    fn inputs(&self) -> Vec<Arc<Dataset>> {
        vec![self.input.clone()]
    }
}

/// What an iterator has decided on.
enum Work {
    Read(Shards),
    Write {
        input: Input,
        writers: Option<Writers>,
        shard: i64,
        bytes: u64,
    },
    Pass(Input),
}

/// The shards of a run, one after the other.
struct Shards {
    folders: std::vec::IntoIter<PathBuf>,
    current: Option<ShardReader>,
}

struct SnapshotIterator {
    source: Arc<Snapshot>,
    work: Option<Work>,
    n: u64,
}

impl SnapshotIterator {
    fn begin(&self) -> Result<Work> {
        let source = &self.source;
        let (mode, metadata) = source.plan()?;
        Ok(match (mode, metadata) {
            (Mode::Read, Some(metadata)) => {
                let mut folders = ShardReader::folders(&source.folder.join(&metadata.run));
                if let Some(seeds) = source.options.shuffle {
                    let mut random = Random::new(seeds);
                    for i in (1..folders.len()).rev() {
                        folders.swap(i, random.next() as usize % (i + 1));
                    }
                }
                Work::Read(Shards {
                    folders: folders.into_iter(),
                    current: None,
                })
            }
            (Mode::Write, _) => {
                let options = &source.options;
                let writers = match &options.name {
                    Some(name) => Writers::named(&source.folder, name, options.compression),
                    None => Writers::create(&source.folder, options.compression)?,
                };
                self.note(writers.run(), 0, false)?;
                Work::Write {
                    input: Some(source.input.iterator()?),
                    writers: Some(writers),
                    shard: 0,
                    bytes: 0,
                }
            }
            _ => Work::Pass(Some(source.input.iterator()?)),
        })
    }

    /// Writes the metadata.
    fn note(&self, run: &str, n: u64, is_final: bool) -> Result<()> {
        let source = &self.source;
        let metadata = Metadata {
            run: run.to_string(),
            dtypes: source.input.dtypes.clone(),
            n_elements: n,
            is_final,
            created: 0,
        };
        metadata.write(&source.folder)
    }

    fn advance(&self, work: &mut Work, services: &StepServices) -> Result<Option<Components>> {
        let options = &self.source.options;
        match work {
            Work::Pass(input) => next_of(input, services),
            Work::Read(shards) => {
                let n = self.source.input.dtypes.len();
                shards.next(options.compression, n)
            }
            Work::Write {
                input,
                writers,
                shard,
                bytes,
            } => {
                let element = next_of(input, services)?;
                if let (Some(element), Some(writers)) = (&element, writers.as_mut()) {
                    if *bytes >= options.shard_bytes {
                        (*shard, *bytes) = (*shard + 1, 0);
                    }
                    writers.write(*shard, element)?;
                    let sizes = element
                        .iter()
                        .map(|t| t.num_elements() as u64 * t.dtype().size().max(1) as u64);
                    *bytes += sizes.sum::<u64>();
                } else if let Some(writers) = writers.take() {
                    let (run, n) = (writers.run().to_string(), writers.n_elements());
                    writers.finish()?;
                    self.note(&run, n, true)?;
                }
                Ok(element)
            }
        }
    }
}

impl Shards {
    fn next(&mut self, compression: RecordCompression, n: usize) -> Result<Option<Components>> {
        loop {
            if let Some(reader) = &mut self.current {
                match reader.next()? {
                    Some(element) => return Ok(Some(element)),
                    None => self.current = None,
                }
            }
            let Some(folder) = self.folders.next() else {
                return Ok(None);
            };
            self.current = Some(ShardReader::open(&folder, compression, n)?);
        }
    }
}

impl DatasetIterator for SnapshotIterator {
    fn next(&mut self, services: &StepServices) -> Result<Option<Components>> {
        let mut work = match self.work.take() {
            Some(work) => work,
            None => self.begin()?,
        };
        let element = self.advance(&mut work, services);
        self.work = Some(work);
        let element = element?;
        self.n += u64::from(element.is_some());
        Ok(element)
    }

    fn state(&mut self, state: &mut State) -> Result<()> {
        let folder = &self.source.folder;
        if matches!(
            &self.work,
            Some(Work::Write {
                writers: Some(_),
                ..
            })
        ) {
            return Err(unimplemented_error!(
                "An iterator that is writing to '{}' cannot be saved; iterate to the end first.",
                folder.display()
            ));
        }
        let mut is_reading = matches!(&self.work, Some(Work::Read(_)));
        let mut is_open = self.work.is_some();
        state.flag(&mut is_open)?;
        state.flag(&mut is_reading)?;
        state.uint(&mut self.n)?;
        if state.is_restoring() {
            self.work = match (is_open, is_reading) {
                (false, _) => None,
                (true, true) => Some(self.begin()?),
                (true, false) => Some(Work::Pass(Some(self.source.input.iterator()?))),
            };
        }
        match &mut self.work {
            Some(Work::Read(shards)) if state.is_restoring() => {
                let n = self.source.input.dtypes.len();
                for _ in 0..self.n {
                    shards.next(self.source.options.compression, n)?;
                }
                Ok(())
            }
            Some(Work::Pass(input) | Work::Write { input, .. }) => {
                state.input(input, &self.source.input)
            }
            _ => Ok(()),
        }
    }
}
