//! Records of files: TextLineDataset, TFRecordDataset, FixedLengthRecordDataset,
//! MatchingFilesDataset (TensorFlow: `core/kernels/data/{text_line,tf_record,…}_dataset_op.cc`).

use crate::common::{Spec, make_of, names, number, text};
use ferroflow_base::{Result, data_loss, invalid_argument, not_found};
use ferroflow_functors::shapes;
use ferroflow_model::{RecordCompression, RecordReader, open_decompressed, read_compressed};
use ferroflow_opdef::{KernelBuild, KernelCtx, Op, OpKernel, StepServices};
use ferroflow_resources::dataset::{Components, DatasetIterator, Source, State};
use ferroflow_resources::file_system::{files, glob, io_error, local_path};
use ferroflow_tensor::{Bytes, Tensor};
use std::io::{BufRead, Read};
use std::path::Path;
use std::sync::Arc;

/// The ops of this file.
pub(crate) const OPS: &[Op] = &[
    Op::new(
        "TextLineDataset",
        "filenames: string, compression_type: string, buffer_size: int64 -> handle: variant | \
         metadata: string = '' | stateful",
    )
    .shape(shapes::scalar)
    .kernel(text_lines),
    Op::new(
        "TFRecordDataset",
        "filenames: string, compression_type: string, buffer_size: int64 -> handle: variant | \
         metadata: string = '' | stateful",
    )
    .shape(shapes::scalar)
    .kernel(tf_records),
    Op::new(
        "TFRecordDatasetV2",
        "filenames: string, compression_type: string, buffer_size: int64, byte_offsets: int64 \
         -> handle: variant | metadata: string = '' | stateful",
    )
    .shape(shapes::scalar)
    .kernel(tf_records_v2),
    Op::new(
        "FixedLengthRecordDataset",
        "filenames: string, header_bytes: int64, record_bytes: int64, footer_bytes: int64, \
         buffer_size: int64 -> handle: variant | metadata: string = '' | stateful",
    )
    .shape(shapes::scalar)
    .kernel(fixed_length),
    Op::new(
        "FixedLengthRecordDatasetV2",
        "filenames: string, header_bytes: int64, record_bytes: int64, footer_bytes: int64, \
         buffer_size: int64, compression_type: string -> handle: variant | metadata: string = \
         '' | stateful",
    )
    .shape(shapes::scalar)
    .kernel(fixed_length_v2),
    Op::new(
        "MatchingFilesDataset",
        "patterns: string -> handle: variant | | stateful",
    )
    .shape(shapes::scalar)
    .kernel(matching_files),
    Op::new(
        "ExperimentalMatchingFilesDataset",
        "patterns: string -> handle: variant | | stateful",
    )
    .shape(shapes::scalar)
    .kernel(matching_files),
];

/// A way to split files into elements.
pub(crate) trait Format: Send + Sync + 'static {
    /// Opens file `i` at a position that [`Records::position`] returned.
    fn open(&self, i: usize, name: &str, position: u64) -> Result<Box<dyn Records>>;
}

/// The elements of one file.
pub(crate) trait Records: Send {
    /// Returns the next element; `None` at the end of the file.
    fn next(&mut self) -> Result<Option<Components>>;
    /// Returns the position of the next element.
    fn position(&self) -> u64;
    /// Returns whether elements may follow an error.
    fn goes_on(&self) -> bool {
        false
    }
}

/// The elements of several files, one file after another.
pub(crate) struct Files<F> {
    pub(crate) names: Vec<String>,
    pub(crate) format: F,
}

struct FilesIterator<F> {
    source: Arc<Files<F>>,
    at: usize,
    current: Option<Box<dyn Records>>,
}

impl<F: Format> Source for Files<F> {
    fn iterator(self: Arc<Self>) -> Result<Box<dyn DatasetIterator>> {
        Ok(Box::new(FilesIterator {
            source: self,
            at: 0,
            current: None,
        }))
    }
}

impl<F: Format> FilesIterator<F> {
    fn open(&self, position: u64) -> Result<Option<Box<dyn Records>>> {
        let source = &self.source;
        let name = source.names.get(self.at);
        name.map(|name| source.format.open(self.at, name, position))
            .transpose()
    }
}

impl<F: Format> DatasetIterator for FilesIterator<F> {
    fn next(&mut self, services: &StepServices) -> Result<Option<Components>> {
        loop {
            if let Some(records) = &mut self.current {
                let next = records.next();
                if matches!(next, Ok(Some(_))) || next.is_err() && records.goes_on() {
                    return next;
                }
                // Nothing follows an error in a file but the next file.
                self.current = None;
                self.at += 1;
                next?;
            }
            services.cancel.check()?;
            match self.open(0) {
                Ok(None) => return Ok(None),
                Ok(opened) => self.current = opened,
                Err(error) => {
                    self.at += 1;
                    return Err(error);
                }
            }
        }
    }

    fn state(&mut self, state: &mut State) -> Result<()> {
        state.size(&mut self.at)?;
        let mut position = self
            .current
            .as_ref()
            .map_or(0, |records| records.position());
        let mut is_open = self.current.is_some();
        state.flag(&mut is_open)?;
        state.uint(&mut position)?;
        if state.is_restoring() {
            self.current = if is_open { self.open(position)? } else { None };
        }
        Ok(())
    }
}

/// Checks the argument `buffer_size`, which this engine's buffers do not follow.
fn check_buffer_size(ctx: &KernelCtx, i: usize, remark: &str) -> Result<()> {
    match number(ctx, i, "buffer_size")? {
        n if n < 0 => Err(invalid_argument!("`buffer_size` must be >= 0{remark}")),
        _ => Ok(()),
    }
}

fn compression(ctx: &KernelCtx, i: usize) -> Result<RecordCompression> {
    match text(ctx, i, "compression_type")?.as_str() {
        "" => Ok(RecordCompression::None),
        "ZLIB" => Ok(RecordCompression::Zlib),
        "GZIP" => Ok(RecordCompression::Gzip),
        _ => Err(invalid_argument!("Unsupported compression_type.")),
    }
}

fn element(bytes: Vec<u8>) -> Components {
    vec![Tensor::string(bytes)]
}

struct TextLines(RecordCompression);

struct Lines {
    source: Box<dyn BufRead + Send>,
    path: String,
    position: u64,
}

fn text_lines(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    make_of(build, Spec::of_strings(), |ctx, _| {
        let names = names(ctx.input(0)?, "filenames")?;
        let format = TextLines(compression(ctx, 1)?);
        check_buffer_size(ctx, 2, " (0 == default)")?;
        Ok(Arc::new(Files { names, format }))
    })
}

impl Format for TextLines {
    fn open(&self, _: usize, name: &str, position: u64) -> Result<Box<dyn Records>> {
        let path = local_path(name);
        let mut source = open_decompressed(Path::new(path), self.0)?;
        let skipped = std::io::copy(&mut (&mut source).take(position), &mut std::io::sink());
        Ok(Box::new(Lines {
            source,
            path: path.to_string(),
            position: skipped.map_err(|e| io_error(path, &e))?,
        }))
    }
}

impl Records for Lines {
    fn next(&mut self) -> Result<Option<Components>> {
        let mut line = Vec::new();
        let n = self.source.read_until(b'\n', &mut line).map_err(|e| {
            use std::io::ErrorKind::{InvalidData, InvalidInput, UnexpectedEof};
            match e.kind() {
                InvalidData | InvalidInput | UnexpectedEof => data_loss!("{}: {e}", self.path),
                _ => io_error(&self.path, &e),
            }
        })?;
        if n == 0 {
            return Ok(None);
        }
        self.position += n as u64;
        if line.last() == Some(&b'\n') {
            line.pop();
        }
        if line.contains(&b'\r') {
            line.retain(|&b| b != b'\r');
        }
        Ok(Some(element(line)))
    }

    fn position(&self) -> u64 {
        self.position
    }
}

struct TfRecords {
    compression: RecordCompression,
    offsets: Vec<u64>,
}

struct TfRecordFile(RecordReader);

fn tf_record_source(ctx: &KernelCtx, offsets: Vec<u64>) -> Result<Arc<Files<TfRecords>>> {
    let names = names(ctx.input(0)?, "filenames")?;
    if !offsets.is_empty() && offsets.len() != names.len() {
        return Err(invalid_argument!(
            "The number of byte offsets ({}) does not match the number of filenames ({}).",
            offsets.len(),
            names.len()
        ));
    }
    // A name that is not known means no compression, as in TensorFlow.
    let compression = match text(ctx, 1, "compression_type")?.as_str() {
        "ZLIB" => RecordCompression::Zlib,
        "GZIP" => RecordCompression::Gzip,
        _ => RecordCompression::None,
    };
    let format = TfRecords {
        compression,
        offsets,
    };
    Ok(Arc::new(Files { names, format }))
}

fn tf_records(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    make_of(build, Spec::of_strings(), |ctx, _| {
        Ok(tf_record_source(ctx, Vec::new())?)
    })
}

fn tf_records_v2(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    make_of(build, Spec::of_strings(), |ctx, _| {
        let offsets = ctx.input(3)?.slice::<i64>()?.iter();
        let offset = |&n: &i64| {
            u64::try_from(n).map_err(|_| invalid_argument!("`byte_offsets` must be >= 0"))
        };
        let offsets = offsets.map(offset).collect::<Result<_>>()?;
        Ok(tf_record_source(ctx, offsets)?)
    })
}

impl Format for TfRecords {
    fn open(&self, i: usize, name: &str, position: u64) -> Result<Box<dyn Records>> {
        let mut reader = RecordReader::open(Path::new(local_path(name)), self.compression)?;
        let start = self.offsets.get(i).copied().unwrap_or(0);
        reader.skip_to(start.max(position))?;
        Ok(Box::new(TfRecordFile(reader)))
    }
}

impl Records for TfRecordFile {
    fn next(&mut self) -> Result<Option<Components>> {
        Ok(self.0.read()?.map(element))
    }

    fn position(&self) -> u64 {
        self.0.offset()
    }
}

struct FixedLength {
    header: u64,
    record: u64,
    footer: u64,
    compression: RecordCompression,
}

struct FixedRecords {
    source: Box<dyn Read + Send>,
    path: String,
    record: u64,
    /// Records that were read.
    n: u64,
    n_all: u64,
}

fn fixed_length(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    make_of(build, Spec::of_strings(), |ctx, _| {
        Ok(fixed_source(ctx, RecordCompression::None)?)
    })
}

fn fixed_length_v2(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    make_of(build, Spec::of_strings(), |ctx, _| {
        Ok(fixed_source(ctx, compression(ctx, 5)?)?)
    })
}

fn fixed_source(
    ctx: &KernelCtx,
    compression: RecordCompression,
) -> Result<Arc<Files<FixedLength>>> {
    let names = names(ctx.input(0)?, "filenames")?;
    let bytes = |i, name: &str, least: u64| {
        let n = u64::try_from(number(ctx, i, name)?).ok();
        n.filter(|&n| n >= least).ok_or_else(|| {
            let sign = if least == 0 { ">=" } else { ">" };
            invalid_argument!("`{name}` must be {sign} 0")
        })
    };
    let format = FixedLength {
        header: bytes(1, "header_bytes", 0)?,
        record: bytes(2, "record_bytes", 1)?,
        footer: bytes(3, "footer_bytes", 0)?,
        compression,
    };
    check_buffer_size(ctx, 4, "")?;
    Ok(Arc::new(Files { names, format }))
}

impl Format for FixedLength {
    fn open(&self, _: usize, name: &str, position: u64) -> Result<Box<dyn Records>> {
        let path = local_path(name);
        let is_plain = self.compression == RecordCompression::None;
        let (mut source, len): (Box<dyn Read + Send>, u64) = match is_plain {
            true => {
                let source = open_decompressed(Path::new(path), self.compression)?;
                let about = files::stat(path).map_err(|e| io_error(path, &e))?;
                (source, about.length)
            }
            // The length must be known for the footer.
            false => {
                let content = read_compressed(Path::new(path), self.compression)?;
                let len = content.len() as u64;
                (Box::new(std::io::Cursor::new(content)), len)
            }
        };
        let around = self.header.saturating_add(self.footer);
        let body = len.checked_sub(around);
        let Some(body) = body.filter(|body| body % self.record == 0) else {
            let length = i128::from(len) - i128::from(around);
            let problem = format!(
                "Excluding the header ({} bytes) and footer ({} bytes), input file \"{name}\" has \
                 body length {length} bytes, which is not an exact multiple of the record length \
                 ({} bytes).",
                self.header, self.footer, self.record
            );
            return match is_plain {
                true => Err(invalid_argument!("{problem}")),
                false => Err(data_loss!("{problem}")),
            };
        };
        let before = self
            .header
            .saturating_add(position.saturating_mul(self.record));
        std::io::copy(&mut (&mut source).take(before), &mut std::io::sink())
            .map_err(|e| io_error(path, &e))?;
        Ok(Box::new(FixedRecords {
            source,
            path: path.to_string(),
            record: self.record,
            n: position,
            n_all: body / self.record,
        }))
    }
}

impl Records for FixedRecords {
    fn next(&mut self) -> Result<Option<Components>> {
        if self.n >= self.n_all {
            return Ok(None);
        }
        let mut record = Vec::new();
        let read = (&mut self.source)
            .take(self.record)
            .read_to_end(&mut record);
        read.map_err(|e| io_error(&self.path, &e))?;
        if record.len() as u64 != self.record {
            return Err(data_loss!("{}: the file became shorter", self.path));
        }
        self.n += 1;
        Ok(Some(element(record)))
    }

    fn position(&self) -> u64 {
        self.n
    }
}

struct MatchingFiles(Vec<String>);

struct MatchingIterator {
    source: Arc<MatchingFiles>,
    at: usize,
    found: std::collections::VecDeque<Components>,
    has_match: bool,
}

fn matching_files(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    make_of(build, Spec::of_strings(), |ctx, _| {
        let patterns = ctx.input(0)?;
        if patterns.shape().rank() > 1 {
            return Err(invalid_argument!(
                "`patterns` must be a scalar or a vector."
            ));
        }
        Ok(Arc::new(MatchingFiles(names(patterns, "patterns")?)))
    })
}

impl Source for MatchingFiles {
    fn iterator(self: Arc<Self>) -> Result<Box<dyn DatasetIterator>> {
        Ok(Box::new(MatchingIterator {
            source: self,
            at: 0,
            found: Default::default(),
            has_match: false,
        }))
    }
}

impl DatasetIterator for MatchingIterator {
    fn next(&mut self, services: &StepServices) -> Result<Option<Components>> {
        loop {
            if let Some(element) = self.found.pop_front() {
                self.has_match = true;
                return Ok(Some(element));
            }
            services.cancel.check()?;
            let Some(pattern) = self.source.0.get(self.at) else {
                return match self.has_match {
                    true => Ok(None),
                    false => Err(not_found!("Don't find any matched files")),
                };
            };
            let mut names = glob(pattern)?;
            names.retain(|name| !files::is_dir(name));
            names.sort_unstable();
            let names = names
                .into_iter()
                .map(|name| vec![Tensor::string(Bytes::from(name))]);
            self.found = names.collect();
            self.at += 1;
        }
    }

    fn state(&mut self, state: &mut State) -> Result<()> {
        state.size(&mut self.at)?;
        state.flag(&mut self.has_match)?;
        state.queue(&mut self.found)
    }
}
