//! Elements kept in memory or in a file: CacheDataset, CacheDatasetV2, AnonymousMemoryCache
//! (TensorFlow: `core/kernels/data/cache_dataset_ops.cc`).

use crate::common::{Input, dataset, make, next_of, text};
use crate::seeds::{delete, dummy, scalars, set_anonymous};
use ferroflow_base::{Code, Result, already_exists, invalid_argument, unimplemented_error};
use ferroflow_functors::shapes;
use ferroflow_model::{BundleWriter, TensorBundle, has_checkpoint};
use ferroflow_opdef::{KernelBuild, KernelCtx, Op, OpKernel, StepServices};
use ferroflow_resources::dataset::{Components, Dataset, DatasetIterator, Source, State};
use ferroflow_resources::file_system::{io_error, local_only};
use ferroflow_resources::resource::{Resource, handle, resolve};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The ops of this file.
pub(crate) const OPS: &[Op] = &[
    Op::new(
        "CacheDataset",
        "input_dataset: variant, filename: string -> handle: variant | output_types: \
         list(type) >= 1; output_shapes: list(shape) >= 1; metadata: string = ''",
    )
    .shape(shapes::scalar)
    .kernel(cache),
    Op::new(
        "CacheDatasetV2",
        "input_dataset: variant, filename: string, cache: resource -> handle: variant | \
         output_types: list(type) >= 1; output_shapes: list(shape) >= 1; metadata: string = \
         '' | stateful",
    )
    .shape(shapes::scalar)
    .kernel(cache),
    Op::new(
        "AnonymousMemoryCache",
        "-> handle: resource, deleter: variant | | stateful",
    )
    .shape(scalars)
    .kernel(anonymous),
    Op::new("DummyMemoryCache", "-> handle: resource | | stateful")
        .shape(shapes::scalar)
        .kernel(dummy),
    Op::new(
        "DeleteMemoryCache",
        "handle: resource, deleter: variant -> | | stateful",
    )
    .kernel(delete),
];

/// Elements that a file may hold.
const MAX_ELEMENTS: usize = 10_000_000;

/// The elements of a dataset, once one iterator has seen all of them.
#[derive(Default)]
struct MemoryCache(Mutex<Option<Arc<Vec<Components>>>>);

impl MemoryCache {
    fn lock(&self) -> MutexGuard<'_, Option<Arc<Vec<Components>>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn elements(&self) -> Option<Arc<Vec<Components>>> {
        self.lock().clone()
    }
}

impl Resource for MemoryCache {
    const TYPE: &'static str = "tensorflow::data::MemoryCacheManager";

    fn is_gone(&self) -> bool {
        false
    }
}

fn anonymous(_: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    Ok(Box::new(|ctx: &mut KernelCtx| {
        set_anonymous(ctx, MemoryCache::default())
    }))
}

fn cache(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    let has_handle = build.inputs.len() > 2;
    make(build, move |ctx, _| {
        let input = dataset(ctx, 0)?;
        let path = text(ctx, 1, "filename")?;
        if !path.is_empty() {
            let path = local_only(&path)?.to_string();
            return Ok(Arc::new(FileCached { input, path }));
        }
        let shared = match has_handle {
            true => match resolve::<MemoryCache>(ctx, handle(ctx, 2)?) {
                Err(e) if e.code() != Code::NotFound => return Err(e),
                found => found.ok(),
            },
            false => None,
        };
        let memory = shared.unwrap_or_default();
        Ok(Arc::new(Cached { input, memory }))
    })
}

struct Cached {
    input: Arc<Dataset>,
    memory: Arc<MemoryCache>,
}

struct CachedIterator {
    source: Arc<Cached>,
    from: From,
}

/// Where elements come from.
enum From {
    /// The input; the elements so far.
    Input(Input, Vec<Components>),
    /// The cache; the next position.
    Memory(Arc<Vec<Components>>, usize),
}

impl Source for Cached {
    fn iterator(self: Arc<Self>) -> Result<Box<dyn DatasetIterator>> {
        let from = match self.memory.elements() {
            Some(elements) => From::Memory(elements, 0),
            None => From::Input(Some(self.input.iterator()?), Vec::new()),
        };
        Ok(Box::new(CachedIterator { source: self, from }))
    }

    fn cardinality(&self) -> i64 {
        self.input.cardinality()
    }

    fn get(&self, index: u64, services: &StepServices) -> Result<Option<Components>> {
        match self.memory.elements() {
            Some(elements) => Ok(usize::try_from(index)
                .ok()
                .and_then(|i| elements.get(i).cloned())),
            None => self.input.source.get(index, services),
        }
    }

    fn inputs(&self) -> Vec<Arc<Dataset>> {
        vec![self.input.clone()]
    }
}

impl CachedIterator {
    /// Makes the elements so far the cache's.
    fn complete(&mut self) {
        if let From::Input(_, elements) = &mut self.from {
            let mut cache = self.source.memory.lock();
            if cache.is_none() {
                *cache = Some(Arc::new(std::mem::take(elements)));
            }
        }
    }
}

impl DatasetIterator for CachedIterator {
    fn next(&mut self, services: &StepServices) -> Result<Option<Components>> {
        let (input, elements) = match &mut self.from {
            From::Memory(elements, next) => {
                let element = elements.get(*next).cloned();
                *next += usize::from(element.is_some());
                return Ok(element);
            }
            From::Input(input, elements) => (input, elements),
        };
        let had_input = input.is_some();
        let element = next_of(input, services)?;
        let is_last = match &element {
            Some(element) => {
                elements.push(element.clone());
                i64::try_from(elements.len()) == Ok(self.source.input.cardinality())
            }
            None => had_input,
        };
        if is_last {
            self.complete();
        }
        Ok(element)
    }

    fn state(&mut self, state: &mut State) -> Result<()> {
        let mut is_memory = matches!(self.from, From::Memory(..));
        state.flag(&mut is_memory)?;
        if state.is_restoring() {
            self.from = match is_memory {
                true => From::Memory(Arc::default(), 0),
                false => From::Input(None, Vec::new()),
            };
        }
        match &mut self.from {
            From::Memory(elements, next) => {
                let mut all = elements.to_vec();
                state.elements(&mut all)?;
                state.size(next)?;
                *elements = Arc::new(all);
                Ok(())
            }
            From::Input(input, elements) => {
                state.elements(elements)?;
                state.input(input, &self.source.input)
            }
        }
    }
}

struct FileCached {
    input: Arc<Dataset>,
    path: String,
}

struct FileIterator {
    source: Arc<FileCached>,
    from: FromFile,
}

enum FromFile {
    Input(Input, Option<Writing>, usize),
    File(Box<TensorBundle>, usize),
}

/// A file that is being written.
struct Writing {
    bundle: BundleWriter,
    /// Removed when the file is complete, or not going to be.
    lock: LockFile,
}

struct LockFile(String);

impl Drop for LockFile {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

impl FileCached {
    /// Returns the name of a component in the file, as TensorFlow has it.
    fn key(&self, element: usize, component: usize) -> String {
        let last = self.input.dtypes.len().saturating_sub(1);
        let width = last.to_string().len();
        format!("{element:7}_{component:width$}")
    }

    fn begin(&self) -> Result<Writing> {
        let lock = format!("{}_0.lockfile", self.path);
        let file = std::fs::File::options()
            .write(true)
            .create_new(true)
            .open(&lock);
        match file {
            Ok(_) => Ok(Writing {
                lock: LockFile(lock),
                bundle: BundleWriter::create(&self.path)?,
            }),
            Err(e) if e.kind() == std::io::ErrorKind::AlreadyExists => Err(already_exists!(
                "There appears to be a concurrent caching iterator running - cache lockfile \
                 already exists ('{lock}'). If you are sure no other running TF computations are \
                 using this cache prefix, delete the lockfile and re-initialize the iterator."
            )),
            Err(e) => Err(io_error(&lock, &e)),
        }
    }
}

impl Source for FileCached {
    fn iterator(self: Arc<Self>) -> Result<Box<dyn DatasetIterator>> {
        let from = match has_checkpoint(Path::new(&self.path)) {
            true => FromFile::File(Box::new(TensorBundle::open(&self.path)?), 0),
            false => FromFile::Input(Some(self.input.iterator()?), None, 0),
        };
        Ok(Box::new(FileIterator { source: self, from }))
    }

    fn cardinality(&self) -> i64 {
        self.input.cardinality()
    }

    fn inputs(&self) -> Vec<Arc<Dataset>> {
        vec![self.input.clone()]
    }
}

impl DatasetIterator for FileIterator {
    fn next(&mut self, services: &StepServices) -> Result<Option<Components>> {
        let source = &self.source;
        match &mut self.from {
            FromFile::File(bundle, next) => {
                let component = |c| bundle.read(&source.key(*next, c));
                let element = (0..source.input.dtypes.len()).map(component);
                match element.collect::<Result<Components>>() {
                    Ok(element) => {
                        *next += 1;
                        Ok(Some(element))
                    }
                    Err(e) if e.code() == Code::NotFound => Ok(None),
                    Err(e) => Err(e),
                }
            }
            FromFile::Input(input, writing, n) => {
                if input.is_none() {
                    return Ok(None);
                }
                if writing.is_none() {
                    *writing = Some(source.begin()?);
                }
                if *n >= MAX_ELEMENTS {
                    return Err(invalid_argument!(
                        "Upstream iterator is producing more than {MAX_ELEMENTS} items, which is \
                         more than the cache limit."
                    ));
                }
                let element = next_of(input, services)?;
                match (&element, writing.as_mut()) {
                    (Some(element), Some(writing)) => {
                        for (c, t) in element.iter().enumerate() {
                            writing.bundle.add(&source.key(*n, c), t)?;
                        }
                        *n += 1;
                    }
                    _ => {
                        if let Some(Writing { bundle, lock }) = writing.take() {
                            bundle.finish()?;
                            drop(lock);
                        }
                    }
                }
                Ok(element)
            }
        }
    }

    fn state(&mut self, state: &mut State) -> Result<()> {
        let mut is_file = matches!(self.from, FromFile::File(..));
        state.flag(&mut is_file)?;
        if state.is_restoring() {
            let source = &self.source;
            self.from = match is_file {
                true => FromFile::File(Box::new(TensorBundle::open(&source.path)?), 0),
                false => FromFile::Input(Some(source.input.iterator()?), None, 0),
            };
        }
        match &mut self.from {
            FromFile::File(_, next) => state.size(next),
            FromFile::Input(input, None, _) => {
                let mut has_ended = input.is_none();
                state.flag(&mut has_ended)?;
                if has_ended {
                    *input = None;
                }
                Ok(())
            }
            FromFile::Input(..) => Err(unimplemented_error!(
                "An iterator that is writing the cache file '{}' cannot be saved; iterate to the \
                 end first.",
                self.source.path
            )),
        }
    }
}
