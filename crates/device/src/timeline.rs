//! [`Timeline`]: when the streams of a device ran what was enqueued.

use crate::capture;
use crate::stream::{Event, Stream};
use ferroflow_base::Result;
use std::fmt;
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

/// What a stream is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StreamKind {
    /// Kernels.
    Compute,
    /// Copies to the device.
    Into,
    /// Copies to the host.
    Out,
}

impl fmt::Display for StreamKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            StreamKind::Compute => "compute",
            StreamKind::Into => "host_to_device",
            StreamKind::Out => "device_to_host",
        })
    }
}

/// Operations that were enqueued together, such as the launches of a node.
#[derive(Clone, Debug)]
pub struct TimedOps {
    /// The stream that ran them.
    pub stream: StreamKind,
    /// What enqueued them: the name of a node, or of a tensor that was copied.
    pub name: String,
    /// The op of the node, or the kind of copy.
    pub op: String,
    /// When the first began, or could have.
    pub start: Instant,
    /// When the last ended.
    pub end: Instant,
}

struct Marked {
    stream: StreamKind,
    name: String,
    op: String,
    start: Event,
    end: Event,
}

/// Times what the streams of a device run, by events around it.
pub struct Timeline {
    /// An event, and when it was reached.
    origin: (Event, Instant),
    marked: Mutex<Vec<Marked>>,
}

impl Timeline {
    /// Begins when everything on a stream has run, for which it waits.
    ///
    /// # Errors
    /// UNIMPLEMENTED if events of the device have no times; those of the device.
    pub(crate) fn new(stream: &Stream) -> Result<Timeline> {
        let event = stream.timed_mark()?;
        stream.synchronize()?;
        let reached = Instant::now();
        // Tells whether there are times.
        event.since(&event)?;
        Ok(Timeline {
            origin: (event, reached),
            marked: Mutex::default(),
        })
    }

    /// Runs `enqueue`, whose operations on `stream` are timed.
    pub(crate) fn time<R>(
        &self,
        (kind, stream): (StreamKind, &Stream),
        [name, op]: [&str; 2],
        enqueue: impl FnOnce() -> R,
    ) -> R {
        if capture::is_capturing() {
            return enqueue();
        }
        let (n_ops, start) = (stream.n_ops(), stream.timed_mark());
        let result = enqueue();
        if stream.n_ops() != n_ops
            && let (Ok(start), Ok(end)) = (start, stream.timed_mark())
        {
            let mut marked = self.marked.lock().unwrap_or_else(PoisonError::into_inner);
            marked.push(Marked {
                stream: kind,
                name: name.to_string(),
                op: op.to_string(),
                start,
                end,
            });
        }
        result
    }

    /// Returns what was timed so far; waits for it.
    ///
    /// # Errors
    /// That of an operation.
    pub fn ops(&self) -> Result<Vec<TimedOps>> {
        let marked = {
            let mut marked = self.marked.lock().unwrap_or_else(PoisonError::into_inner);
            std::mem::take(&mut *marked)
        };
        let (event, reached) = &self.origin;
        let timed = marked.into_iter().map(|m| {
            m.end.synchronize()?;
            Ok(TimedOps {
                start: *reached + m.start.since(event)?,
                end: *reached + m.end.since(event)?,
                stream: m.stream,
                name: m.name,
                op: m.op,
            })
        });
        timed.collect()
    }
}
