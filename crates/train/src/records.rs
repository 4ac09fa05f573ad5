//! [`Records`]: examples in TFRecord files, in shuffled batches.

use super::dataset::{Batch, Batches, Examples, Random, shuffle};
use ferroflow_base::{Result, invalid_argument};
use ferroflow_graph::GraphBuilder;
use ferroflow_model::{RecordCompression, RecordReader};
use ferroflow_opdef::AttrValue;
use ferroflow_runtime::{Session, SessionOptions, registry};
use ferroflow_tensor::{Bytes, DType, PartialShape, Shape, Tensor};
use std::path::PathBuf;
use std::sync::Arc;

/// Default size of the shuffle buffer.
const BUFFER: usize = 10_000;

type Map = dyn Fn(Batch) -> Result<Batch> + Send + Sync;

/// A feature that every example has.
#[derive(Clone)]
struct Feature {
    name: String,
    dtype: DType,
    shape: PartialShape,
    default: Option<Tensor>,
}

/// `tf.train.Example` messages in TFRecord files: the selected features become batches of tensors.
///
/// Reading and parsing run in a separate thread, a little ahead of training. A shuffled pass reads
/// the files in random order and draws each example from a buffer of the next ones.
///
/// ```
/// use ferroflow_model::proto::{Example, Feature, Features, FloatList, feature::Kind};
/// use ferroflow_model::{RecordCompression, RecordWriter, encode};
/// use ferroflow_train::{Examples, Records};
/// use ferroflow_runtime::{DType, Tensor};
/// let path = std::env::temp_dir().join(format!("ferroflow-doc-{}.tfrecord", std::process::id()));
/// let mut writer = RecordWriter::create(&path, RecordCompression::None)?;
/// for i in 0..5 {
///     let list = FloatList { value: vec![i as f32, 1.0] };
///     let feature = Feature { kind: Some(Kind::FloatList(list)) };
///     let features = Features { feature: [("x".to_string(), feature)].into() };
///     writer.write(&encode(&Example { features: Some(features) }))?;
/// }
/// writer.finish()?;
///
/// let records = Records::open(&[&path])?
///     .feature("x", DType::Float, &[2])?
///     .feature_or("weight", Tensor::scalar(1f32))?;
/// assert_eq!(records.len(), 5);
/// let batches = records.batches(2, None).collect::<Result<Vec<_>, _>>()?;
/// assert_eq!(batches[0][0].1.slice::<f32>()?, [0.0, 1.0, 1.0, 1.0]);
/// assert_eq!(batches[2][1].1.slice::<f32>()?, [1.0]);
/// # std::fs::remove_file(path).unwrap();
/// # Ok::<(), ferroflow_runtime::Status>(())
/// ```
#[derive(Clone)]
pub struct Records {
    files: Vec<PathBuf>,
    compression: RecordCompression,
    n: usize,
    features: Vec<Feature>,
    buffer: usize,
    map: Option<Arc<Map>>,
}

impl Records {
    /// Opens uncompressed files, and reads them once to count and check their records.
    ///
    /// # Errors
    /// As for [`Records::compressed`].
    pub fn open(files: &[impl AsRef<std::path::Path>]) -> Result<Records> {
        Self::compressed(files, RecordCompression::None)
    }

    /// Opens files with this compression, and reads them once to count and check their records.
    ///
    /// # Errors
    /// NOT_FOUND if a file does not exist; DATA_LOSS if one is damaged; other file system errors.
    pub fn compressed(
        files: &[impl AsRef<std::path::Path>],
        compression: RecordCompression,
    ) -> Result<Records> {
        let files: Vec<PathBuf> = files.iter().map(|f| f.as_ref().to_path_buf()).collect();
        let mut n = 0;
        for file in &files {
            for record in RecordReader::open(file, compression)? {
                record?;
                n += 1;
            }
        }
        Ok(Records {
            files,
            compression,
            n,
            features: Vec::new(),
            buffer: BUFFER,
            map: None,
        })
    }

    /// Selects a feature of every example: numbers (float, int64) or strings of this shape. An
    /// example without it is an error.
    ///
    /// # Errors
    /// INVALID_ARGUMENT for other dtypes, and if the feature is already selected.
    pub fn feature(self, name: &str, dtype: DType, shape: &[usize]) -> Result<Records> {
        let shape = PartialShape::of(shape.iter().map(|d| Some(*d)));
        self.with(Feature {
            name: name.to_string(),
            dtype,
            shape,
            default: None,
        })
    }

    /// Like [`Records::feature`], with the dtype and shape of `default`, which replaces missing
    /// values.
    ///
    /// # Errors
    /// As for [`Records::feature`].
    pub fn feature_or(self, name: &str, default: Tensor) -> Result<Records> {
        self.with(Feature {
            name: name.to_string(),
            dtype: default.dtype(),
            shape: PartialShape::from(default.shape()),
            default: Some(default),
        })
    }

    fn with(mut self, feature: Feature) -> Result<Records> {
        let name = &feature.name;
        if !matches!(feature.dtype, DType::Float | DType::Int64 | DType::String) {
            return Err(invalid_argument!(
                "feature '{name}' cannot be {}: examples hold float, int64 and string values",
                feature.dtype
            ));
        }
        if self.features.iter().any(|f| f.name == *name) {
            return Err(invalid_argument!("feature '{name}' is selected twice"));
        }
        self.features.push(feature);
        Ok(self)
    }

    /// Sets the number of examples to draw from when shuffling; 10,000 by default.
    #[must_use]
    pub fn shuffle_buffer(mut self, n: usize) -> Records {
        self.buffer = n.max(1);
        self
    }

    /// Applies `f` to every batch, in the reading thread: to decode images, scale numbers, or
    /// rename features to placeholders.
    #[must_use]
    pub fn map(mut self, f: impl Fn(Batch) -> Result<Batch> + Send + Sync + 'static) -> Records {
        self.map = Some(Arc::new(f));
        self
    }

    /// Returns a session that parses batches of records.
    fn parser(&self) -> Result<Session> {
        let mut b = GraphBuilder::new(registry());
        let records = b.placeholder("records", DType::String, PartialShape::of([None]))?;
        let none = b.constant("names", Tensor::from_strings([0], Vec::new())?)?;
        let mut keys = Vec::new();
        let mut defaults = Vec::new();
        for feature in &self.features {
            let key = Tensor::string(feature.name.clone().into_bytes());
            keys.push(b.constant("key", key)?);
            let default = match &feature.default {
                Some(default) => default.clone(),
                None => Tensor::zeros(feature.dtype, Shape::from([0usize]))?,
            };
            defaults.push(b.constant("default", default)?);
        }
        let shapes = self.features.iter();
        let shapes = shapes.map(|f| AttrValue::Shape(f.shape.clone())).collect();
        b.op("ParseExample")
            .name("parsed")
            .input(records)
            .input(none)
            .inputs(&[])
            .inputs(&keys)
            .inputs(&defaults)
            .attr("sparse_types", AttrValue::List(Vec::new()))
            .attr("Nsparse", AttrValue::Int(0))
            .attr("dense_shapes", AttrValue::List(shapes))
            .build()?;
        // The cores are for training.
        let options = SessionOptions {
            threads: 1,
            ..Default::default()
        };
        Ok(Session::new(b.finish()?, options))
    }

    /// Sends all records once.
    fn read(&self, seed: Option<u64>, send: &mut dyn FnMut(Vec<u8>) -> bool) -> Result<()> {
        let mut files = self.files.clone();
        let Some(seed) = seed else {
            for file in &files {
                for record in RecordReader::open(file, self.compression)? {
                    if !send(record?) {
                        return Ok(());
                    }
                }
            }
            return Ok(());
        };
        shuffle(&mut files, seed);
        let mut random = Random(!seed);
        let mut waiting: Vec<Vec<u8>> = Vec::new();
        for file in &files {
            for record in RecordReader::open(file, self.compression)? {
                waiting.push(record?);
                if waiting.len() > self.buffer {
                    let drawn = random.below(waiting.len());
                    if !send(waiting.swap_remove(drawn)) {
                        return Ok(());
                    }
                }
            }
        }
        while !waiting.is_empty() {
            let drawn = random.below(waiting.len());
            if !send(waiting.swap_remove(drawn)) {
                return Ok(());
            }
        }
        Ok(())
    }

    fn parsed(&self, parser: &Session, records: Vec<Bytes>) -> Result<Batch> {
        let records = Tensor::from_strings([records.len()], records)?;
        let names: Vec<String> = (0..self.features.len())
            .map(|i| format!("parsed:{i}"))
            .collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let values = parser.run(&[("records:0", records)], &names, &[])?;
        let features = self.features.iter().map(|f| f.name.clone());
        let batch = features.zip(values).collect();
        match &self.map {
            Some(map) => map(batch),
            None => Ok(batch),
        }
    }
}

impl Examples for Records {
    fn len(&self) -> usize {
        self.n
    }

    fn batches(&self, size: usize, seed: Option<u64>) -> Batches {
        let (this, size) = (self.clone(), size.max(1));
        Batches::prepared(move |send| {
            let mut make = || -> Result<()> {
                if this.features.is_empty() {
                    return Err(invalid_argument!(
                        "the records have no features: name them with `feature`"
                    ));
                }
                let parser = this.parser()?;
                let (mut records, mut failed) = (Vec::with_capacity(size), None);
                let mut listens = true;
                this.read(seed, &mut |record| {
                    records.push(Bytes::from(record));
                    if records.len() == size {
                        match this.parsed(&parser, std::mem::take(&mut records)) {
                            Ok(batch) => listens = send(Ok(batch)),
                            Err(error) => failed = Some(error),
                        }
                    }
                    listens && failed.is_none()
                })?;
                if let Some(error) = failed {
                    return Err(error);
                }
                if listens && !records.is_empty() {
                    send(Ok(this.parsed(&parser, records)?));
                }
                Ok(())
            };
            if let Err(error) = make() {
                send(Err(error));
            }
        })
    }
}
