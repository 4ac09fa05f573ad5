//! Event files for TensorBoard: scalars by step, and the graph.

use crate::atomic_file::make_folder;
use crate::proto::{Event, GraphDef, Summary, event::What, summary};
use crate::record::{RecordCompression, RecordWriter};
use ferroflow_base::Result;
use prost::Message;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

/// Writes the events of a run to a new file in a folder.
///
/// ```
/// use ferroflow_model::EventWriter;
/// let folder = std::env::temp_dir().join(format!("ferroflow-run-{}", std::process::id()));
/// let mut events = EventWriter::create(&folder)?;
/// events.scalar("loss", 0, 2.3)?;
/// events.scalars(1, &[("loss", 1.9), ("accuracy", 0.4)])?;
/// events.flush()?;
/// # std::fs::remove_dir_all(folder).unwrap();
/// # Ok::<(), ferroflow_base::Status>(())
/// ```
pub struct EventWriter {
    path: PathBuf,
    records: RecordWriter,
}

/// Seconds since 1970.
fn now() -> f64 {
    std::time::UNIX_EPOCH
        .elapsed()
        .map_or(0.0, |t| t.as_secs_f64())
}

impl EventWriter {
    /// Creates an event file in `folder`, and the folder if needed.
    ///
    /// # Errors
    /// A file system error, such as PERMISSION_DENIED.
    pub fn create(folder: &Path) -> Result<EventWriter> {
        Self::with_suffix(folder, ".v2")
    }

    /// Like [`EventWriter::create`], with a name that ends in `suffix`.
    ///
    /// # Errors
    /// A file system error, such as PERMISSION_DENIED.
    pub fn with_suffix(folder: &Path, suffix: &str) -> Result<EventWriter> {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        make_folder(folder)?;
        let (time, n) = (now(), COUNT.fetch_add(1, Ordering::Relaxed));
        let host = std::env::var("HOSTNAME").unwrap_or_default();
        let host = match host.is_empty() || host.contains(std::path::is_separator) {
            true => "localhost".to_string(),
            false => host,
        };
        // TensorBoard looks for `tfevents` in the name; the rest makes it unique.
        let id = std::process::id();
        let name = format!(
            "events.out.tfevents.{:010}.{host}.{id}.{n}{suffix}",
            time as u64
        );
        let path = folder.join(name);
        let mut writer = EventWriter {
            records: RecordWriter::create(&path, RecordCompression::None)?,
            path,
        };
        writer.event(0, What::FileVersion("brain.Event:2".into()))?;
        writer.flush()?;
        Ok(writer)
    }

    /// Returns the file's path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    fn event(&mut self, step: i64, what: What) -> Result<()> {
        self.write(&Event {
            wall_time: now(),
            step,
            what: Some(what),
        })
    }

    /// Writes an event, including its time.
    ///
    /// # Errors
    /// A file system error if the file cannot be written.
    pub fn write(&mut self, event: &Event) -> Result<()> {
        self.records.write(&event.encode_to_vec())
    }

    /// Writes a value at a step.
    ///
    /// # Errors
    /// A file system error if the file cannot be written.
    pub fn scalar(&mut self, tag: &str, step: i64, value: f32) -> Result<()> {
        self.scalars(step, &[(tag, value)])
    }

    /// Writes several values at a step.
    ///
    /// # Errors
    /// A file system error if the file cannot be written.
    pub fn scalars(&mut self, step: i64, values: &[(&str, f32)]) -> Result<()> {
        let value = |(tag, value): &(&str, f32)| summary::Value {
            tag: tag.to_string(),
            value: Some(summary::value::Value::SimpleValue(*value)),
            ..Default::default()
        };
        self.values(step, values.iter().map(value).collect())
    }

    /// Writes the output of a summary op: an encoded `Summary` message.
    ///
    /// # Errors
    /// INVALID_ARGUMENT if it is not such a message; a file system error if the file cannot be
    /// written.
    pub fn summary(&mut self, step: i64, encoded: &[u8]) -> Result<()> {
        let summary = Summary::decode(encoded)
            .map_err(|e| ferroflow_base::invalid_argument!("not a summary: {e}"))?;
        self.values(step, summary.value)
    }

    /// Writes values of any kind at a step.
    ///
    /// # Errors
    /// A file system error if the file cannot be written.
    pub fn values(&mut self, step: i64, value: Vec<summary::Value>) -> Result<()> {
        self.event(step, What::Summary(Summary { value }))
    }

    /// Writes the graph of the run.
    ///
    /// # Errors
    /// A file system error if the file cannot be written.
    pub fn graph(&mut self, step: i64, graph: &GraphDef) -> Result<()> {
        self.event(step, What::GraphDef(graph.encode_to_vec().into()))
    }

    /// Makes what was written visible to readers.
    ///
    /// # Errors
    /// A file system error if the file cannot be written.
    pub fn flush(&mut self) -> Result<()> {
        self.records.flush()
    }
}
