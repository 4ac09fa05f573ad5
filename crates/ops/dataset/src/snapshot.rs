//! Elements in folders: SaveDataset, LoadDataset, SnapshotDatasetV2, SnapshotDatasetReader
//! (TensorFlow: `core/kernels/data/{save,load,snapshot}_dataset_op.cc`, `core/data/snapshot_utils.cc`).
//!
//! A folder has `snapshot.metadata`, and for each run a folder with a folder of record files for each
//! shard; a record is a serialized TensorProto, and an element one record for each component.

use crate::common::{
    Input, Made, Spec, components, dataset, flag_attr, function, function_name, make, next_of,
    number, text,
};
use crate::snapshot_files::{Metadata, ShardReader, VERSION, Writers};
use crate::sources::{At, Elements};
use ferroflow_base::{Result, invalid_argument, not_found, unimplemented_error};
use ferroflow_functors::shapes;
use ferroflow_model::RecordCompression;
use ferroflow_opdef::{AttrValue, KernelBuild, KernelCtx, Op, OpKernel, StepServices};
use ferroflow_resources::dataset::{
    CapturedFunction, Components, Dataset, DatasetIterator, DatasetNode, Source, State, UNKNOWN,
    returned_dataset,
};
use ferroflow_resources::file_system::local_only;
use ferroflow_tensor::{DType, PartialShape, Tensor};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The ops of this file.
pub(crate) const OPS: &[Op] = &[
    Op::new(
        "SaveDataset",
        "input_dataset: variant, path: string, shard_func_other_args: list(Tshard_func_args) \
         -> | compression: string = ''; shard_func: func; use_shard_func: bool = true; \
         Tshard_func_args: list(type) >= 0 | stateful",
    )
    .kernel(save),
    Op::new(
        "SaveDatasetV2",
        "input_dataset: variant, path: string, shard_func_other_args: list(Tshard_func_args) \
         -> handle: variant | compression: string = ''; shard_func: func; use_shard_func: \
         bool = true; Tshard_func_args: list(type) >= 0; output_types: list(type) >= 1; \
         output_shapes: list(shape) >= 1 | stateful",
    )
    .shape(shapes::scalar)
    .kernel(save_v2),
    Op::new(
        "LoadDataset",
        "path: string, reader_func_other_args: list(Treader_func_args) -> handle: variant | \
         output_types: list(type) >= 1; output_shapes: list(shape) >= 1; compression: string \
         = ''; reader_func: func; Treader_func_args: list(type) >= 0 | stateful",
    )
    .shape(shapes::scalar)
    .kernel(load),
    Op::new(
        "SnapshotDatasetV2",
        "input_dataset: variant, path: string, reader_func_other_args: \
         list(Treader_func_args), shard_func_other_args: list(Tshard_func_args) -> handle: \
         variant | output_types: list(type) >= 1; output_shapes: list(shape) >= 1; \
         compression: string = ''; reader_prefix: string = ''; writer_prefix: string = ''; \
         hash_valid: bool = false; hash: int = 0; reader_func: func; shard_func: func; \
         Treader_func_args: list(type) >= 0; Tshard_func_args: list(type) >= 0; metadata: \
         string = ''",
    )
    .shape(shapes::scalar)
    .kernel(snapshot),
    Op::new(
        "SnapshotDatasetReader",
        "shard_dir: string, start_index: int64 -> handle: variant | output_types: list(type) \
         >= 1; output_shapes: list(shape) >= 1; compression: string = ''; version: int",
    )
    .shape(shapes::scalar)
    .kernel(reader),
    Op::new(
        "SnapshotNestedDatasetReader",
        "inputs: N*variant -> handle: variant | output_types: list(type) >= 1; output_shapes: \
         list(shape) >= 1; N: int >= 1",
    )
    .shape(shapes::scalar)
    .kernel(nested),
];

/// Returns the compression of an attr. Snappy, which `AUTO` means in TensorFlow, is not supported;
/// files that this engine chooses the compression of are not compressed.
pub(crate) fn compression(build: &KernelBuild) -> Result<RecordCompression> {
    match build.attrs.str("compression")? {
        "" | "AUTO" => Ok(RecordCompression::None),
        "GZIP" => Ok(RecordCompression::Gzip),
        "ZLIB" => Ok(RecordCompression::Zlib),
        "SNAPPY" => Err(unimplemented_error!(
            "the compression SNAPPY is not supported; use GZIP or none"
        )),
        other => Err(invalid_argument!(
            "compression must be either '', 'GZIP' or 'SNAPPY', not '{other}'."
        )),
    }
}

/// Where the elements of a dataset go.
#[derive(Clone)]
struct Target {
    folder: PathBuf,
    compression: RecordCompression,
    dtypes: Vec<DType>,
    /// Maps an element to its shard; `None` uses one shard.
    shard: Option<CapturedFunction>,
}

impl Target {
    fn shard(&self, element: &Components, services: &StepServices) -> Result<i64> {
        match &self.shard {
            Some(shard) => shard.number(element.clone(), "shard_func", services),
            None => Ok(0),
        }
    }

    fn metadata(&self, run: &str, n: u64, is_final: bool) -> Metadata {
        Metadata {
            run: run.to_string(),
            dtypes: self.dtypes.clone(),
            n_elements: n,
            is_final,
            created: 0,
        }
    }

    /// Begins a new run.
    fn begin(&self) -> Result<Writers> {
        let writers = Writers::create(&self.folder, self.compression)?;
        self.metadata(writers.run(), 0, false).write(&self.folder)?;
        Ok(writers)
    }

    fn finish(&self, writers: Writers) -> Result<()> {
        let (run, n) = (writers.run().to_string(), writers.n_elements());
        writers.finish()?;
        self.metadata(&run, n, true).write(&self.folder)
    }
}

fn target(
    build: &KernelBuild,
) -> Result<impl Fn(&KernelCtx, &Dataset) -> Result<Target> + Send + Sync + 'static> {
    let (name, compression) = (function_name(build, "shard_func")?, compression(build)?);
    let uses_function = build.attrs.bool("use_shard_func")?;
    Ok(move |ctx: &KernelCtx, dataset: &Dataset| {
        let shard = match uses_function {
            true => Some(function(ctx, &name, components(ctx, 2)?)?),
            false => None,
        };
        Ok(Target {
            folder: PathBuf::from(local_only(&text(ctx, 1, "path")?)?),
            compression,
            dtypes: dataset.dtypes.clone(),
            shard,
        })
    })
}

fn save(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    let target = target(build)?;
    Ok(Box::new(move |ctx: &mut KernelCtx| {
        let dataset = dataset(ctx, 0)?;
        let target = target(ctx, &dataset)?;
        let mut writers = target.begin()?;
        let mut iterator = dataset.iterator()?;
        while let Some(element) = iterator.next(ctx.services())? {
            ctx.services().cancel.check()?;
            let shard = target.shard(&element, ctx.services())?;
            writers.write(shard, &element)?;
        }
        target.finish(writers)
    }))
}

fn save_v2(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    let target = target(build)?;
    make(build, move |ctx, _| {
        let input = dataset(ctx, 0)?;
        let target = target(ctx, &input)?;
        Ok(Arc::new(Saved { input, target }))
    })
}

/// A dataset that is saved while it is iterated over.
struct Saved {
    input: Arc<Dataset>,
    target: Target,
}

struct SavedIterator {
    source: Arc<Saved>,
    inner: Input,
    writers: Option<Writers>,
}

impl Source for Saved {
    fn iterator(self: Arc<Self>) -> Result<Box<dyn DatasetIterator>> {
        Ok(Box::new(SavedIterator {
            inner: Some(self.input.iterator()?),
            source: self,
            writers: None,
        }))
    }

    fn cardinality(&self) -> i64 {
        self.input.cardinality()
    }

    fn inputs(&self) -> Vec<Arc<Dataset>> {
        vec![self.input.clone()]
    }
}

impl DatasetIterator for SavedIterator {
    fn next(&mut self, services: &StepServices) -> Result<Option<Components>> {
        if self.inner.is_none() {
            return Ok(None);
        }
        let target = &self.source.target;
        let writers = match &mut self.writers {
            Some(writers) => writers,
            None => self.writers.insert(target.begin()?),
        };
        let element = next_of(&mut self.inner, services)?;
        match &element {
            Some(element) => writers.write(target.shard(element, services)?, element)?,
            None => {
                if let Some(writers) = self.writers.take() {
                    target.finish(writers)?;
                }
            }
        }
        Ok(element)
    }

    fn state(&mut self, state: &mut State) -> Result<()> {
        if self.writers.is_some() {
            return Err(unimplemented_error!(
                "An iterator that is writing to '{}' cannot be saved; iterate to the end first.",
                self.source.target.folder.display()
            ));
        }
        state.input(&mut self.inner, &self.source.input)
    }
}

/// Shards of a folder as a dataset of datasets. All have nodes, so that positions in them can be saved.
fn shards(
    folder: &Path,
    metadata: &Metadata,
    compression: RecordCompression,
    spec: &Spec,
) -> Result<Arc<Dataset>> {
    let found = ShardReader::folders(&folder.join(&metadata.run));
    let name = match compression {
        RecordCompression::None => "",
        RecordCompression::Gzip => "GZIP",
        RecordCompression::Zlib => "ZLIB",
    };
    let shard = |folder: PathBuf| -> Result<Tensor> {
        let path = Tensor::string(folder.to_string_lossy().into_owned());
        let source = ShardFolder {
            folder,
            compression,
            n_components: spec.dtypes.len(),
            start: 0,
        };
        let attrs = spec
            .attrs()
            .with("compression", AttrValue::str(name))
            .with("version", AttrValue::Int(VERSION as i64));
        let node = DatasetNode {
            op: "SnapshotDatasetReader".to_string(),
            attrs,
            inputs: vec![path, Tensor::scalar(0i64)],
        };
        spec.dataset(Arc::new(source), node).tensor()
    };
    let inputs: Components = found.into_iter().map(shard).collect::<Result<_>>()?;
    let elements = inputs.iter().map(|t| vec![t.clone()]).collect();
    let types = Spec::new(vec![DType::Variant], vec![PartialShape::scalar()]);
    let node = DatasetNode {
        op: "SnapshotNestedDatasetReader".to_string(),
        attrs: types.attrs().with("N", AttrValue::Int(inputs.len() as i64)),
        inputs,
    };
    Ok(types.dataset(Arc::new(At(Elements(elements))), node))
}

/// The elements of a run, in the order that a function makes of its shards.
struct Loaded {
    folder: PathBuf,
    metadata: Metadata,
    compression: RecordCompression,
    spec: Spec,
    reader: CapturedFunction,
}

struct LoadedIterator {
    source: Arc<Loaded>,
    current: Option<(Arc<Dataset>, Box<dyn DatasetIterator>)>,
}

fn load(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    let (name, compression) = (function_name(build, "reader_func")?, compression(build)?);
    make(build, move |ctx, spec| {
        let path = text(ctx, 0, "path")?;
        let folder = PathBuf::from(local_only(&path)?);
        let metadata = Metadata::read(&folder)?;
        let metadata =
            metadata.ok_or_else(|| not_found!("Could not find metadata file [{path}]"))?;
        Ok(Arc::new(Loaded {
            folder,
            metadata,
            compression,
            spec: spec.clone(),
            reader: function(ctx, &name, components(ctx, 1)?)?,
        }))
    })
}

impl Source for Loaded {
    fn iterator(self: Arc<Self>) -> Result<Box<dyn DatasetIterator>> {
        Ok(Box::new(LoadedIterator {
            source: self,
            current: None,
        }))
    }

    fn cardinality(&self) -> i64 {
        i64::try_from(self.metadata.n_elements).unwrap_or(UNKNOWN)
    }
}

impl DatasetIterator for LoadedIterator {
    fn next(&mut self, services: &StepServices) -> Result<Option<Components>> {
        let (_, iterator) = match &mut self.current {
            Some(current) => current,
            None => {
                let Loaded {
                    folder,
                    metadata,
                    compression,
                    spec,
                    reader,
                } = &*self.source;
                let shards = shards(folder, metadata, *compression, spec)?;
                let results = reader.call(vec![shards.tensor()?], services)?;
                let dataset = returned_dataset(&results)?;
                let iterator = dataset.iterator()?;
                self.current.insert((dataset, iterator))
            }
        };
        iterator.next(services)
    }

    fn state(&mut self, state: &mut State) -> Result<()> {
        state.nested(&mut self.current)
    }
}

struct Snapshot {
    saved: Arc<Saved>,
    spec: Spec,
    reader: CapturedFunction,
}

fn snapshot(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    let compression = compression(build)?;
    let names = [
        function_name(build, "reader_func")?,
        function_name(build, "shard_func")?,
    ];
    let n_reader = build.attrs.list("Treader_func_args")?.len();
    let hash = match flag_attr(build, "hash_valid") {
        true => Some(build.attrs.int("hash")? as u64),
        false => None,
    };
    make(build, move |ctx, spec| {
        let input = dataset(ctx, 0)?;
        let (first, end) = (2 + n_reader, ctx.num_inputs());
        let reader_args = crate::common::some(ctx, 2, first)?;
        let shard_args = crate::common::some(ctx, first, end)?;
        let hash = match hash {
            Some(hash) => hash,
            None => crate::fingerprint::fingerprint(&input)?,
        };
        let folder = PathBuf::from(local_only(&text(ctx, 1, "path")?)?).join(hash.to_string());
        let target = Target {
            folder,
            compression,
            dtypes: input.dtypes.clone(),
            shard: Some(function(ctx, &names[1], shard_args)?),
        };
        Ok(Arc::new(Snapshot {
            saved: Arc::new(Saved { input, target }),
            spec: spec.clone(),
            reader: function(ctx, &names[0], reader_args)?,
        }))
    })
}

impl Source for Snapshot {
    fn iterator(self: Arc<Self>) -> Result<Box<dyn DatasetIterator>> {
        let target = &self.saved.target;
        match Metadata::read(&target.folder)?.filter(|m| m.is_final) {
            Some(metadata) => Arc::new(Loaded {
                folder: target.folder.clone(),
                metadata,
                compression: target.compression,
                spec: self.spec.clone(),
                reader: self.reader.clone(),
            })
            .iterator(),
            None => self.saved.clone().iterator(),
        }
    }

    fn cardinality(&self) -> i64 {
        self.saved.input.cardinality()
    }

    fn inputs(&self) -> Vec<Arc<Dataset>> {
        vec![self.saved.input.clone()]
    }
}

/// The elements of one shard.
struct ShardFolder {
    folder: PathBuf,
    compression: RecordCompression,
    n_components: usize,
    /// Elements to pass over.
    start: u64,
}

struct ShardIterator {
    source: Arc<ShardFolder>,
    reader: Option<ShardReader>,
    n: u64,
}

fn reader(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    let compression = compression(build)?;
    make(build, move |ctx, spec| {
        let start = number(ctx, 1, "start_index")?;
        Ok(Arc::new(ShardFolder {
            folder: PathBuf::from(local_only(&text(ctx, 0, "shard_dir")?)?),
            compression,
            n_components: spec.dtypes.len(),
            start: u64::try_from(start).unwrap_or(0),
        }))
    })
}

fn nested(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    make(build, |ctx, _| -> Made {
        let inputs = (0..ctx.num_inputs()).map(|i| Ok(vec![dataset(ctx, i)?.tensor()?]));
        Ok(Arc::new(At(Elements(inputs.collect::<Result<_>>()?))))
    })
}

impl Source for ShardFolder {
    fn iterator(self: Arc<Self>) -> Result<Box<dyn DatasetIterator>> {
        Ok(Box::new(ShardIterator {
            source: self,
            reader: None,
            n: 0,
        }))
    }
}

impl ShardIterator {
    fn read(&mut self) -> Result<Option<Components>> {
        let ShardFolder {
            folder,
            compression,
            n_components,
            ..
        } = &*self.source;
        let reader = match &mut self.reader {
            Some(reader) => reader,
            None => self
                .reader
                .insert(ShardReader::open(folder, *compression, *n_components)?),
        };
        let element = reader.next()?;
        self.n += u64::from(element.is_some());
        Ok(element)
    }
}

impl DatasetIterator for ShardIterator {
    fn next(&mut self, services: &StepServices) -> Result<Option<Components>> {
        while self.n < self.source.start {
            services.cancel.check()?;
            if self.read()?.is_none() {
                return Ok(None);
            }
        }
        self.read()
    }

    fn state(&mut self, state: &mut State) -> Result<()> {
        let mut n = self.n;
        state.uint(&mut n)?;
        if state.is_restoring() {
            (self.reader, self.n) = (None, 0);
            while self.n < n && self.read()?.is_some() {}
        }
        Ok(())
    }
}
