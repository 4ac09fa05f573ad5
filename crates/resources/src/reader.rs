//! [`Reader`]: dequeues file names and produces the files' records (TensorFlow:
//! `core/framework/reader_base.cc`).
//!
//! Reads of one reader are served one after another, in order, since a read may have to wait for a
//! file name. Only the reading itself runs under the lock.

use crate::file_system::local_path;
use crate::queue::{DequeueMode, Queue};
use crate::resource::Resource;
use ferroflow_base::{Result, invalid_argument, unimplemented_error};
use ferroflow_model::{RecordCompression, RecordReader, read_compressed};
use ferroflow_opdef::AsyncCall;
use ferroflow_tensor::{Bytes, Tensor};
use std::collections::VecDeque;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// How a reader splits a file into records.
#[derive(Clone, PartialEq)]
pub enum ReaderFormat {
    /// The file is the record.
    Whole,
    /// The name is the record.
    Identity,
    /// A line is a record.
    Lines {
        /// Lines to skip.
        skip: usize,
    },
    /// Records of fixed length.
    Fixed {
        /// Bytes before the first record.
        header: usize,
        /// Bytes of a record.
        record: usize,
        /// Bytes after the last record.
        footer: usize,
        /// Bytes from one record to the next.
        hop: usize,
        /// Compression of the file.
        compression: RecordCompression,
    },
    /// TFRecord files.
    Records(RecordCompression),
}

impl ReaderFormat {
    fn name(&self) -> &'static str {
        match self {
            ReaderFormat::Whole => "WholeFileReader",
            ReaderFormat::Identity => "IdentityReader",
            ReaderFormat::Lines { .. } => "TextLineReader",
            ReaderFormat::Fixed { .. } => "FixedLengthRecordReader",
            ReaderFormat::Records(_) => "TFRecordReader",
        }
    }

    /// Returns whether a file has one record, after which it is done.
    fn is_single(&self) -> bool {
        matches!(self, ReaderFormat::Whole | ReaderFormat::Identity)
    }
}

/// A file that is being read.
struct WorkUnit {
    name: String,
    source: UnitContent,
}

enum UnitContent {
    Single(Vec<u8>),
    Lines {
        content: Vec<u8>,
        at: usize,
        line: usize,
    },
    Fixed {
        content: Vec<u8>,
        at: usize,
        end: usize,
        n: usize,
    },
    Records(RecordReader),
}

/// The key of a record and the record.
type Record = (String, Vec<u8>);

impl WorkUnit {
    fn open(format: &ReaderFormat, name: String) -> Result<WorkUnit> {
        let path = Path::new(local_path(&name));
        let whole = |c| read_compressed(path, c);
        let source = match format {
            ReaderFormat::Identity => UnitContent::Single(name.clone().into_bytes()),
            ReaderFormat::Whole => UnitContent::Single(whole(RecordCompression::None)?),
            ReaderFormat::Lines { skip } => {
                let content = whole(RecordCompression::None)?;
                let ends = content.iter().enumerate().filter(|(_, b)| **b == b'\n');
                let at = match skip.checked_sub(1) {
                    None => 0,
                    Some(n) => ends.map(|(i, _)| i + 1).nth(n).unwrap_or(content.len()),
                };
                UnitContent::Lines {
                    content,
                    at,
                    line: *skip,
                }
            }
            ReaderFormat::Fixed {
                header,
                footer,
                compression,
                ..
            } => {
                let content = whole(*compression)?;
                let end = content.len().saturating_sub(*footer);
                UnitContent::Fixed {
                    content,
                    at: *header,
                    end,
                    n: 0,
                }
            }
            ReaderFormat::Records(compression) => {
                UnitContent::Records(RecordReader::open(path, *compression)?)
            }
        };
        Ok(WorkUnit { name, source })
    }

    /// Returns the next record; `None` at the end.
    fn next(&mut self, format: &ReaderFormat) -> Result<Option<Record>> {
        let name = &self.name;
        Ok(match &mut self.source {
            UnitContent::Single(content) => Some((name.clone(), std::mem::take(content))),
            UnitContent::Lines { content, at, line } => {
                let Some(rest) = content.get(*at..).filter(|r| !r.is_empty()) else {
                    return Ok(None);
                };
                let n = rest.iter().position(|b| *b == b'\n');
                let text = rest.get(..n.unwrap_or(rest.len())).unwrap_or_default();
                let text = text.iter().copied().filter(|b| *b != b'\r').collect();
                *at += n.map_or(rest.len(), |n| n + 1);
                *line += 1;
                Some((format!("{name}:{line}"), text))
            }
            UnitContent::Fixed {
                content,
                at,
                end,
                n,
            } => {
                let ReaderFormat::Fixed { record, hop, .. } = format else {
                    return Ok(None);
                };
                let stop = at.checked_add(*record).filter(|stop| stop <= end);
                let Some(found) = stop.and_then(|stop| content.get(*at..stop)) else {
                    return Ok(None);
                };
                let found = (format!("{name}:{n}"), found.to_vec());
                *at = at.saturating_add(*hop);
                *n += 1;
                Some(found)
            }
            UnitContent::Records(reader) => {
                let at = reader.offset();
                reader.read()?.map(|r| (format!("{name}:{at}"), r))
            }
        })
    }
}

/// A requested read.
pub struct Job {
    /// The kernel call to complete.
    pub call: AsyncCall,
    /// Queue of file names.
    pub queue: Arc<Queue>,
    /// The maximal number of records, returned as vectors; `None` for one, returned as scalars.
    pub most: Option<usize>,
}

#[derive(Default)]
struct ReaderState {
    unit: Option<WorkUnit>,
    /// The name of the last file.
    work: String,
    started: i64,
    finished: i64,
    produced: i64,
    jobs: VecDeque<Job>,
    /// Whether a thread is serving the jobs.
    is_busy: bool,
}

/// A reader, shared by all nodes that name it.
pub struct Reader {
    format: ReaderFormat,
    name: String,
    state: Mutex<ReaderState>,
}

impl Resource for Reader {
    const TYPE: &'static str = "tensorflow::ReaderInterface";

    fn is_gone(&self) -> bool {
        false
    }

    fn check_same(&self, wanted: &Reader, name: &str) -> Result<()> {
        match self.format == wanted.format {
            true => Ok(()),
            false => Err(invalid_argument!(
                "the reader '{name}' already exists as a different {}",
                self.format.name()
            )),
        }
    }
}

/// The state of a job that waits for a file name.
enum PendingName {
    /// No name yet; the job's thread still checks for one.
    Open,
    Came(Result<Vec<Tensor>>),
    /// No name yet; the callback that delivers it continues the job.
    Left(Job),
}

impl Reader {
    /// Returns a reader of files of `format`.
    pub fn new(format: ReaderFormat, name: &str) -> Reader {
        Reader {
            format,
            name: name.to_string(),
            state: Mutex::default(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, ReaderState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the number of records produced.
    pub fn num_produced(&self) -> i64 {
        self.lock().produced
    }

    /// Returns the number of files finished.
    pub fn num_finished(&self) -> i64 {
        self.lock().finished
    }

    /// Restores the initial state.
    pub fn reset(&self) {
        let mut state = self.lock();
        state.unit = None;
        state.work.clear();
        (state.started, state.finished, state.produced) = (0, 0, 0);
    }

    /// Reads for a job, after earlier jobs.
    pub fn submit(self: &Arc<Self>, job: Job) {
        let mut state = self.lock();
        state.jobs.push_back(job);
        if std::mem::replace(&mut state.is_busy, true) {
            return;
        }
        drop(state);
        self.serve(None);
    }

    /// Serves a job that waited, with the dequeued name, then all others.
    fn serve(self: &Arc<Self>, mut waited: Option<(Job, Result<Vec<Tensor>>)>) {
        loop {
            let job = match waited.take() {
                Some((job, Ok(name))) => match self.begin(&name) {
                    Ok(()) => job,
                    Err(error) => {
                        job.call.finish(Err(error));
                        continue;
                    }
                },
                Some((job, Err(error))) => {
                    self.lock().work.clear();
                    job.call.finish(Err(error));
                    continue;
                }
                None => {
                    let mut state = self.lock();
                    match state.jobs.pop_front() {
                        Some(job) => job,
                        None => {
                            state.is_busy = false;
                            return;
                        }
                    }
                }
            };
            match self.read(job.most) {
                Ok(Some(outputs)) => job.call.finish(Ok(outputs)),
                Err(error) => job.call.finish(Err(error)),
                Ok(None) => match self.wait(job) {
                    Some(came) => waited = Some(came),
                    // The callback that delivers the name continues.
                    None => return,
                },
            }
        }
    }

    /// Dequeues a name; returns it with the job if one is available at once.
    fn wait(self: &Arc<Self>, job: Job) -> Option<(Job, Result<Vec<Tensor>>)> {
        let cell = Arc::new(Mutex::new(PendingName::Open));
        let (reader, theirs) = (self.clone(), cell.clone());
        let (queue, cancel) = (job.queue.clone(), job.call.cancel.clone());
        let done = move |result: Result<Vec<Tensor>>| {
            let mut answer = theirs.lock().unwrap_or_else(PoisonError::into_inner);
            match std::mem::replace(&mut *answer, PendingName::Open) {
                PendingName::Left(job) => {
                    drop(answer);
                    reader.serve(Some((job, result)));
                }
                _ => *answer = PendingName::Came(result),
            }
        };
        queue.take(DequeueMode::One, AsyncCall::new(Vec::new(), cancel, done));
        let mut answer = cell.lock().unwrap_or_else(PoisonError::into_inner);
        match std::mem::replace(&mut *answer, PendingName::Open) {
            PendingName::Came(result) => Some((job, result)),
            _ => {
                *answer = PendingName::Left(job);
                drop(answer);
                None
            }
        }
    }

    /// Opens the file of this name.
    fn begin(&self, name: &[Tensor]) -> Result<()> {
        let name = match name {
            [name] => name.strings()?.first(),
            _ => None,
        };
        let name = name.ok_or_else(|| {
            invalid_argument!("Expected to find a single string in the queue of a reader")
        })?;
        let unit = WorkUnit::open(&self.format, String::from_utf8_lossy(name).into_owned())?;
        let mut state = self.lock();
        state.work.clone_from(&unit.name);
        state.unit = Some(unit);
        state.started += 1;
        Ok(())
    }

    /// Returns the outputs of a read; `None` if there is no file to read from.
    fn read(&self, most: Option<usize>) -> Result<Option<Vec<Tensor>>> {
        let mut state = self.lock();
        let state = &mut *state;
        let mut found: Vec<Record> = Vec::new();
        let Some(unit) = &mut state.unit else {
            return Ok(None);
        };
        let mut is_done = self.format.is_single();
        while found.len() < most.unwrap_or(1) {
            match unit.next(&self.format)? {
                Some(record) => found.push(record),
                None => is_done = true,
            }
            if is_done {
                break;
            }
        }
        state.produced += found.len() as i64;
        if is_done {
            state.unit = None;
            state.finished += 1;
        }
        if found.is_empty() {
            return Ok(None);
        }
        let (keys, values): (Vec<Bytes>, Vec<Bytes>) = found
            .into_iter()
            .map(|(key, value)| (Bytes::from(key.into_bytes()), Bytes::from(value)))
            .unzip();
        let tensor = |all: Vec<Bytes>| match most {
            None => Tensor::from_strings([0usize; 0], all),
            Some(_) => Tensor::from_strings([all.len()], all),
        };
        Ok(Some(vec![tensor(keys)?, tensor(values)?]))
    }

    /// Returns the reader's progress as a serialized message.
    ///
    /// # Errors
    /// UNIMPLEMENTED unless a file is one record.
    pub fn serialize(&self) -> Result<Vec<u8>> {
        if !self.format.is_single() {
            return Err(unimplemented_error!("Reader SerializeState"));
        }
        let state = self.lock();
        let mut out = Vec::new();
        let counts = [state.started, state.finished, state.produced];
        for (field, count) in (1u8..).zip(counts).filter(|(_, c)| *c != 0) {
            out.push(field << 3);
            prost::encoding::encode_varint(count as u64, &mut out);
        }
        if !state.work.is_empty() {
            out.push(4 << 3 | 2);
            prost::encoding::encode_varint(state.work.len() as u64, &mut out);
            out.extend(state.work.as_bytes());
        }
        Ok(out)
    }

    /// Restores the progress from a serialized message.
    ///
    /// # Errors
    /// UNIMPLEMENTED unless a file is one record; INVALID_ARGUMENT if the message is malformed.
    pub fn restore(&self, message: &[u8]) -> Result<()> {
        if !self.format.is_single() {
            return Err(unimplemented_error!("Reader RestoreState"));
        }
        let bad = || {
            invalid_argument!(
                "Could not parse state for {} '{}': {}",
                self.format.name(),
                self.name,
                message.escape_ascii()
            )
        };
        let (mut counts, mut work, mut rest) = ([0i64; 3], String::new(), message);
        while !rest.is_empty() {
            let mut number = || prost::encoding::decode_varint(&mut rest).map_err(|_| bad());
            let (key, value) = (number()?, number()?);
            let index = usize::try_from(key >> 3).unwrap_or(0).wrapping_sub(1);
            match (key & 7, counts.get_mut(index)) {
                (0, Some(count)) => *count = value as i64,
                (0, None) => {}
                (2, _) => {
                    let n = usize::try_from(value).map_err(|_| bad())?;
                    let (text, others) = rest.split_at_checked(n).ok_or_else(bad)?;
                    work = String::from_utf8_lossy(text).into_owned();
                    rest = others;
                }
                _ => return Err(bad()),
            }
        }
        let [started, finished, produced] = counts;
        if started < 0 || finished < 0 || produced < 0 || started < finished {
            return Err(invalid_argument!(
                "Inconsistent work started vs. finished when restoring in {}: {started} vs. {finished}",
                self.name
            ));
        }
        let mut state = self.lock();
        // A file is one record, so none is half read.
        state.unit = None;
        state.work = work;
        (state.started, state.finished, state.produced) = (finished, finished, produced);
        Ok(())
    }
}
