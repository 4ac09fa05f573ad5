//! [`Stream`] and [`Event`].

use crate::backend::{Address, RawEvent, RawStream, Span};
use crate::buffer::{Buffer, Pinned};
use crate::host_stream::quiet;
use crate::{Allocator, Device};
use ferroflow_base::{Result, internal, invalid_argument};
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// A sequence of operations of one device that run in order. Clones are the same stream.
#[derive(Clone)]
pub struct Stream(Arc<Inner>);

struct Inner {
    raw: RawStream,
    device: Device,
    /// Whether its operations are captured: none runs, and no event is recorded.
    is_captured: bool,
    /// Operations that were enqueued.
    n_ops: AtomicU64,
    /// The last event of [`Stream::mark`], with `n_ops` then.
    mark: Mutex<Option<(u64, Event)>>,
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.device.backend().destroy_stream(self.raw);
    }
}

/// A point of a stream. Clones are the same event.
#[derive(Clone)]
pub struct Event(Arc<EventInner>);

struct EventInner {
    raw: RawEvent,
    device: Device,
}

impl Drop for EventInner {
    fn drop(&mut self) {
        self.device.backend().destroy_event(self.raw);
    }
}

impl Stream {
    /// Creates a stream.
    ///
    /// # Errors
    /// That of the device.
    pub fn new(device: &Device) -> Result<Stream> {
        device.count_stream();
        Self::made(device, false)
    }

    /// Creates a stream whose operations are captured. Buffers do not note it.
    ///
    /// # Errors
    /// That of the device.
    pub(crate) fn captured(device: &Device) -> Result<Stream> {
        Self::made(device, true)
    }

    fn made(device: &Device, is_captured: bool) -> Result<Stream> {
        let raw = device.backend().create_stream(device.ordinal())?;
        Ok(Stream(Arc::new(Inner {
            raw,
            device: device.clone(),
            is_captured,
            n_ops: AtomicU64::new(0),
            mark: Mutex::new(None),
        })))
    }

    pub(crate) fn is_captured(&self) -> bool {
        self.0.is_captured
    }

    /// The backend's handle.
    pub fn raw(&self) -> RawStream {
        self.0.raw
    }

    /// Its device.
    pub fn device(&self) -> &Device {
        &self.0.device
    }

    /// Waits until everything enqueued so far has run.
    ///
    /// # Errors
    /// The first error of an operation since the last call.
    pub fn synchronize(&self) -> Result<()> {
        let result = self.device().backend().synchronize(self.0.raw);
        result.map_err(|e| e.note(format!("on a stream of {}", self.device())))
    }

    /// Makes later operations wait for the last record of `event`, which may be of another device of the
    /// same backend.
    ///
    /// # Errors
    /// INVALID_ARGUMENT if the event is of another backend.
    pub fn wait(&self, event: &Event) -> Result<()> {
        let backend = self.device().backend();
        if !Arc::ptr_eq(backend, event.0.device.backend()) {
            return Err(invalid_argument!(
                "a stream of {} cannot wait for an event of {}",
                self.device(),
                event.0.device
            ));
        }
        let waiting = backend.wait(self.0.raw, event.0.raw);
        self.note_op();
        waiting
    }

    /// Calls `call` on the host when everything enqueued so far has run.
    ///
    /// # Errors
    /// That of the device.
    pub fn call_host(&self, call: impl FnOnce(Result<()>) + Send + 'static) -> Result<()> {
        let backend = self.device().backend();
        let enqueued = backend.call_host(self.0.raw, Box::new(call));
        self.note_op();
        enqueued
    }

    /// Copies one buffer to another of the same length. The devices of both buffers may differ.
    ///
    /// # Errors
    /// INVALID_ARGUMENT if the lengths or the backends differ; FAILED_PRECONDITION if a buffer was freed.
    pub fn copy(&self, to: &Buffer, from: &Buffer) -> Result<()> {
        if to.len() != from.len() {
            return Err(invalid_argument!(
                "Buffer sizes don't match: {} (dst size) vs {} (src size)",
                to.len(),
                from.len()
            ));
        }
        let (into, source) = (to.use_on(self)?, from.use_on(self)?);
        if into.address == source.address {
            return Ok(());
        }
        let backend = self.device().backend();
        // SAFETY: both buffers are on this backend and note the stream, so that their memory is reused and
        // freed only behind this operation.
        let enqueued = unsafe { backend.copy(self.0.raw, into, source.address) };
        self.note_op();
        enqueued
    }

    /// Fills a buffer with a word of 1, 2 or 4 bytes, as often as it fits.
    ///
    /// # Errors
    /// INVALID_ARGUMENT for another word length; as for [`Stream::copy`].
    pub fn fill(&self, to: &Buffer, word: &[u8]) -> Result<()> {
        if !matches!(word.len(), 1 | 2 | 4) {
            return Err(invalid_argument!(
                "memory is filled with words of 1, 2 or 4 bytes, not {}",
                word.len()
            ));
        }
        let mut into = to.use_on(self)?;
        into.len -= into.len % word.len();
        // SAFETY: as in `copy`.
        let enqueued = unsafe { self.device().backend().fill(self.0.raw, into, word) };
        self.note_op();
        enqueued
    }

    /// Copies bytes of the host to a buffer, through pinned memory of `staging`.
    ///
    /// # Errors
    /// INVALID_ARGUMENT if the lengths differ; RESOURCE_EXHAUSTED if there is too little pinned memory.
    pub fn copy_from_host(&self, to: &Buffer, from: &[u8], staging: &Allocator) -> Result<()> {
        let mut pinned = Pinned::new(staging, from.len())?;
        let n = n_copiers(from.len());
        // Freed at once: the memory is not reused before the copy has run.
        if n < 2 || to.len() != from.len() {
            pinned.bytes_mut().copy_from_slice(from);
            return self.copy(to, &pinned.into_buffer());
        }
        self.copy_by_threads(to, from, pinned, n)
    }

    /// Copies bytes of the host by `n` threads; lengths are equal.
    fn copy_by_threads(
        &self,
        to: &Buffer,
        from: &[u8],
        mut pinned: Pinned,
        n: usize,
    ) -> Result<()> {
        let into = to.use_on(self)?;
        let pieces = pinned.bytes_mut().chunks_mut(PIECE);
        let mut parts: Vec<Vec<_>> = (0..n).map(|_| Vec::new()).collect();
        for (i, piece) in pieces.zip(from.chunks(PIECE)).enumerate() {
            let (offset, (pinned, from)) = (i * PIECE, piece);
            parts[i % n].push(Piece {
                offset,
                pinned,
                from,
            });
        }
        let copied = std::thread::scope(|scope| {
            let copy = |part| scope.spawn(|| self.copy_pieces(into, part));
            let threads: Vec<_> = parts.into_iter().map(copy).collect();
            let mut ends = threads.into_iter().map(|t| t.join());
            let panicked = |_| Err(internal!("a thread that copies panicked"));
            ends.try_for_each(|end| end.unwrap_or_else(panicked))
        });
        // Some pieces may be on their way, also where others failed.
        pinned.into_buffer().use_on(self)?;
        self.note_op();
        copied
    }

    /// Copies pieces of the host to pinned memory, and from there to their places in `into`.
    fn copy_pieces(&self, into: Span, pieces: Vec<Piece>) -> Result<()> {
        for Piece {
            offset,
            pinned,
            from,
        } in pieces
        {
            pinned.copy_from_slice(from);
            let place = Span {
                address: into.address.offset(offset),
                len: from.len(),
            };
            let source = Address(pinned.as_ptr().expose_provenance() as u64);
            // SAFETY: the place is inside of a buffer, and the source in pinned memory, which both note this stream and so
            // are not freed before the copy has run; the piece is not written again.
            unsafe { self.device().backend().copy(self.0.raw, place, source) }?;
        }
        Ok(())
    }

    /// Copies a buffer to pinned memory of `staging`, which `done` receives, or why it does not:
    /// RESOURCE_EXHAUSTED if there is too little pinned memory, and the errors of [`Stream::copy`].
    pub fn copy_to_host(
        &self,
        from: &Buffer,
        staging: &Allocator,
        done: impl FnOnce(Result<Pinned>) + Send + 'static,
    ) {
        let pinned = Pinned::new(staging, from.len()).map(Pinned::into_buffer);
        let copied = pinned.and_then(|to| self.copy(&to, from).map(|()| to));
        match copied {
            Ok(to) => self.call_host_always(move |ran| done(ran.map(|()| Pinned::of_idle(to)))),
            Err(e) => done(Err(e)),
        }
    }

    /// As [`Stream::call_host`]; if the device refuses the call it is called at once, with the error.
    pub(crate) fn call_host_always(&self, call: impl FnOnce(Result<()>) + Send + 'static) {
        let slot = Arc::new(Mutex::new(Some(call)));
        let take = |slot: &Mutex<Option<_>>| {
            let mut slot = slot.lock().unwrap_or_else(PoisonError::into_inner);
            slot.take()
        };
        let theirs = slot.clone();
        let enqueued = self.call_host(move |ran| {
            if let Some(call) = take(&theirs) {
                call(ran);
            }
        });
        if let Err(e) = enqueued
            && let Some(call) = take(&slot)
        {
            call(Err(e));
        }
    }

    /// Called when an operation was enqueued, so that [`Stream::mark`] makes a new event.
    pub(crate) fn note_op(&self) {
        self.0.n_ops.fetch_add(1, Ordering::AcqRel);
    }

    /// The number of operations that were enqueued.
    pub(crate) fn n_ops(&self) -> u64 {
        self.0.n_ops.load(Ordering::Acquire)
    }

    /// Returns an event for everything enqueued so far, which knows when it is reached.
    pub(crate) fn timed_mark(&self) -> Result<Event> {
        let device = self.device().clone();
        let raw = device.backend().create_timed_event(device.ordinal())?;
        let event = Event(Arc::new(EventInner { raw, device }));
        self.device().backend().record(raw, self.0.raw)?;
        Ok(event)
    }

    /// Returns an event for everything enqueued so far, the same one until something is enqueued.
    ///
    /// # Errors
    /// That of the device.
    pub fn mark(&self) -> Result<Event> {
        let _quiet = quiet();
        let mut mark = self.0.mark.lock().unwrap_or_else(PoisonError::into_inner);
        let n_ops = self.0.n_ops.load(Ordering::Acquire);
        if let Some((at, event)) = &*mark
            && *at == n_ops
        {
            return Ok(event.clone());
        }
        let event = Event::new(self.device())?;
        let backend = self.device().backend();
        backend.record(event.0.raw, self.0.raw)?;
        *mark = Some((n_ops, event.clone()));
        Ok(event)
    }
}

/// Bytes from which on several threads copy.
const LARGE: usize = 4 << 20;
/// Bytes that a thread copies at a time; the device copies them while the thread copies others.
const PIECE: usize = 1 << 20;
/// The most threads that copy: more do not read and write faster.
const MAX_COPIERS: usize = 8;

/// Bytes of the host at an offset from the first, and pinned memory for them.
struct Piece<'a> {
    offset: usize,
    pinned: &'a mut [u8],
    from: &'a [u8],
}

/// Threads that copy bytes of the host, since one is slower than the connection of a GPU.
fn n_copiers(len: usize) -> usize {
    let available = std::thread::available_parallelism().map_or(1, usize::from);
    (len / LARGE).min(available / 2).min(MAX_COPIERS)
}

impl PartialEq for Stream {
    fn eq(&self, other: &Stream) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl fmt::Debug for Stream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "stream {} of {}", self.0.raw.0, self.device())
    }
}

impl Event {
    /// Creates an event, which counts as reached until it is recorded.
    ///
    /// # Errors
    /// That of the device.
    pub fn new(device: &Device) -> Result<Event> {
        let raw = device.backend().create_event(device.ordinal())?;
        let device = device.clone();
        Ok(Event(Arc::new(EventInner { raw, device })))
    }

    /// The backend's handle.
    pub fn raw(&self) -> RawEvent {
        self.0.raw
    }

    /// Its device.
    pub fn device(&self) -> &Device {
        &self.0.device
    }

    /// Lets the event stand for everything enqueued on `stream` so far.
    ///
    /// # Errors
    /// INVALID_ARGUMENT if the stream is of another device.
    pub fn record(&self, stream: &Stream) -> Result<()> {
        if self.0.device != *stream.device() {
            return Err(invalid_argument!(
                "an event of {} cannot be recorded on a stream of {}",
                self.0.device,
                stream.device()
            ));
        }
        let recorded = self.0.device.backend().record(self.0.raw, stream.raw());
        stream.note_op();
        recorded
    }

    /// The time since an earlier event; both were reached.
    pub(crate) fn since(&self, earlier: &Event) -> Result<Duration> {
        let backend = self.0.device.backend();
        backend.elapsed(earlier.0.raw, self.0.raw)
    }

    /// Returns whether the last record was reached, without waiting.
    ///
    /// # Errors
    /// The error of an operation before the record.
    pub fn is_reached(&self) -> Result<bool> {
        self.0.device.backend().is_reached(self.0.raw)
    }

    /// Waits for the last record.
    ///
    /// # Errors
    /// The error of an operation before the record.
    pub fn synchronize(&self) -> Result<()> {
        self.0.device.backend().synchronize_event(self.0.raw)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{AllocatorOptions, HostStreams};

    #[test]
    fn threads_copy_all_bytes() {
        let device = Device::new(HostStreams::new(Default::default()), 0).unwrap();
        let stream = Stream::new(&device).unwrap();
        let allocator = Allocator::new(&device, &AllocatorOptions::default());
        let staging = Allocator::pinned(&device);
        for (len, n) in [(5 * PIECE + 77, 3), (2 * PIECE, 2), (1000, 4)] {
            let bytes: Vec<u8> = (0..len).map(|i| (i % 251) as u8).collect();
            let to = Arc::new(Buffer::new(&allocator, &stream, len, "to").unwrap());
            let pinned = Pinned::new(&staging, len).unwrap();
            stream.copy_by_threads(&to, &bytes, pinned, n).unwrap();
            assert!(to.read(0, len, &staging).unwrap() == bytes, "{len} {n}");
        }
    }
}
