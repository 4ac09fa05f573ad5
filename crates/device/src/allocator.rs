//! [`Allocator`]: a caching allocator of device or pinned memory, in the order of streams.
//!
//! Memory that was freed on a stream can be used on the same stream at once: what is enqueued later runs
//! later. Another stream waits for an event that is recorded when the memory is freed, on each stream
//! that used it. Chunks that need no wait are preferred, then the allocator grows, then streams wait.

use crate::Device;
use crate::backend::{Address, Span};
use crate::chunks::{Chunks, GRANULE, Use};
use crate::host_stream::quiet;
use crate::stream::Stream;
use ferroflow_base::{Code, Result, Status, resource_exhausted};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The smallest region that a growing allocator adds.
const FIRST_REGION: usize = 1 << 21;
/// Regions double up to this size.
const LAST_REGION: usize = 1 << 30;
/// The same for memory of the host, which takes long to pin.
const LAST_PINNED_REGION: usize = 1 << 26;
/// Free chunks that are compared.
const MAX_CANDIDATES: usize = 8;
/// Holders that an out-of-memory error names.
const MAX_HOLDERS: usize = 5;

/// How much memory an allocator may take.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AllocatorOptions {
    /// The most bytes it takes from the device; all of the device's by default.
    pub memory_limit: Option<usize>,
    /// Whether it starts small and grows; else it takes all at its first allocation.
    pub allow_growth: bool,
    /// Whether freeing memory records an event on the stream that used it, if there are several streams;
    /// else another stream that reuses the memory waits for whatever the first one was given until then.
    /// Memory that one stream uses alone, over and over, is freed faster without.
    pub records_frees: bool,
}

impl Default for AllocatorOptions {
    fn default() -> Self {
        AllocatorOptions {
            memory_limit: None,
            allow_growth: true,
            records_frees: true,
        }
    }
}

/// The memory of an allocator.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryStats {
    /// Bytes in buffers.
    pub in_use: usize,
    /// The most bytes that were in buffers.
    pub peak: usize,
    /// Bytes taken from the device.
    pub reserved: usize,
    /// Allocations.
    pub n_allocations: u64,
    /// Waits of a stream for another one, for memory that was used there.
    pub n_waits: u64,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Device,
    Pinned,
}

/// Where an allocation is going to be used first.
#[derive(Clone, Copy)]
pub(crate) enum For<'a> {
    /// On a stream, which may wait.
    Stream(&'a Stream),
    /// On the host, which may wait.
    Host,
    /// On the host, in an operation of a stream: waiting could be forever.
    Now,
}

/// A caching allocator. Clones are the same allocator.
#[derive(Clone)]
pub struct Allocator(Arc<Inner>);

struct Inner {
    device: Device,
    kind: Kind,
    limit: usize,
    options: AllocatorOptions,
    /// Where regions come from, if not from the device.
    parent: Option<Parent>,
    state: Mutex<State>,
}

/// An allocator of which another one has its regions.
struct Parent {
    allocator: Allocator,
    /// The stream that uses the regions.
    stream: Stream,
    holder: String,
    /// The parent's chunk of each region, by address.
    chunks: Mutex<BTreeMap<Address, usize>>,
}

struct State {
    chunks: Chunks,
    regions: Vec<Span>,
    next_region: usize,
    next_use: u64,
    stats: MemoryStats,
}

impl Drop for Inner {
    fn drop(&mut self) {
        // No buffer exists: each keeps the allocator.
        let state = self.state.get_mut().unwrap_or_else(PoisonError::into_inner);
        let regions = state.take_free_regions();
        self.free(regions);
    }
}

impl Allocator {
    /// An allocator of the device's memory.
    pub fn new(device: &Device, options: &AllocatorOptions) -> Allocator {
        let all = device.info().memory;
        let limit = options.memory_limit.map_or(all, |limit| limit.min(all));
        Self::with(device, Kind::Device, limit, options.clone())
    }

    /// An allocator of host memory that the device reaches.
    pub fn pinned(device: &Device) -> Allocator {
        Self::with(
            device,
            Kind::Pinned,
            usize::MAX,
            AllocatorOptions::default(),
        )
    }

    /// An allocator whose regions are chunks of this one, and used on `stream` as a whole: what is inside may be used on
    /// another one meanwhile, such as one whose operations are captured.
    pub(crate) fn part(&self, stream: &Stream, holder: &str) -> Allocator {
        let parent = Parent {
            allocator: self.clone(),
            stream: stream.clone(),
            holder: holder.to_string(),
            chunks: Mutex::default(),
        };
        let options = AllocatorOptions {
            records_frees: false,
            ..AllocatorOptions::default()
        };
        Self::made(
            self.device(),
            self.0.kind,
            usize::MAX,
            options,
            Some(parent),
        )
    }

    fn with(device: &Device, kind: Kind, limit: usize, options: AllocatorOptions) -> Allocator {
        Self::made(device, kind, limit, options, None)
    }

    fn made(
        device: &Device,
        kind: Kind,
        limit: usize,
        options: AllocatorOptions,
        parent: Option<Parent>,
    ) -> Allocator {
        Allocator(Arc::new(Inner {
            device: device.clone(),
            kind,
            limit,
            options,
            parent,
            state: Mutex::new(State {
                // The host waits for streams: what it may have at once stays apart.
                chunks: Chunks::new(kind == Kind::Device),
                regions: Vec::new(),
                next_region: FIRST_REGION,
                next_use: 0,
                stats: MemoryStats::default(),
            }),
        }))
    }

    /// Its device.
    pub fn device(&self) -> &Device {
        &self.0.device
    }

    /// Whether its memory is the host's.
    pub fn is_pinned(&self) -> bool {
        self.0.kind == Kind::Pinned
    }

    /// What it has handed out.
    pub fn stats(&self) -> MemoryStats {
        self.state().stats
    }

    /// Returns regions without buffers to the device; waits for the streams that used them.
    pub fn clear_cache(&self) {
        let regions = self.state().take_free_regions();
        self.0.free(regions);
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Allocates `len` bytes for `holder`; returns the chunk and its memory, of which the chunk may have
    /// more.
    pub(crate) fn allocate(&self, len: usize, place: For, holder: &str) -> Result<(usize, Span)> {
        let inner = &*self.0;
        let rounded = len.max(1).checked_next_multiple_of(GRANULE);
        let Some(rounded) = rounded.filter(|r| *r <= inner.limit) else {
            return Err(inner.out_of_memory(&self.state(), len, None));
        };
        let mut cause = None;
        let may_wait = !matches!(place, For::Now);
        for attempt in 0..2 {
            let guard = quiet();
            let mut state = self.state();
            let found = inner.find(&mut state, rounded, place).or_else(|| {
                state.chunks.settle(is_over);
                state.chunks.idle_of(rounded)
            });
            if let Some(at) = found {
                return Ok(state.take(at, rounded, len, holder));
            }
            match inner.grow(&mut state, rounded) {
                Ok(Some(at)) => return Ok(state.take(at, rounded, len, holder)),
                Ok(None) => {}
                Err(e) if e.code() == Code::ResourceExhausted => cause = Some(e),
                Err(e) => return Err(e),
            }
            state.chunks.join_all();
            let used = state.chunks.free_of(rounded).next().filter(|_| may_wait);
            if let Some(at) = used {
                // What is left of the chunk keeps them, too.
                let uses = state.chunks.uses_mut(at).cloned();
                let uses = uses.unwrap_or_default();
                let taken = state.take(at, rounded, len, holder);
                drop(state);
                drop(guard);
                return self.wait(taken, uses, place);
            }
            let regions = match may_wait && attempt == 0 {
                true => state.take_free_regions(),
                false => Vec::new(),
            };
            if regions.is_empty() {
                return Err(inner.out_of_memory(&state, len, cause));
            }
            drop(state);
            drop(guard);
            inner.free(regions);
        }
        Err(inner.out_of_memory(&self.state(), len, cause))
    }

    /// Makes a stream, or the host, wait for the uses of a chunk that was taken.
    fn wait(&self, taken: (usize, Span), uses: Vec<Use>, place: For) -> Result<(usize, Span)> {
        let waited = match place {
            For::Stream(stream) => {
                let others: Vec<&Use> = uses.iter().filter(|u| u.stream != *stream).collect();
                self.state().stats.n_waits += others.len() as u64;
                let mut others = others.into_iter();
                others.try_for_each(|u| stream.wait(&u.event()?))
            }
            _ => uses.iter().try_for_each(|u| {
                let event = u.event()?;
                match event.synchronize() {
                    // Operations that failed are over, too.
                    Err(e) if event.is_reached().is_ok() => Err(e),
                    _ => Ok(()),
                }
            }),
        };
        match waited {
            Ok(()) => Ok(taken),
            Err(e) => {
                // The chunk is lost: it is unknown when it will be free.
                self.state().chunks.release(taken.0, None);
                Err(e)
            }
        }
    }

    /// Takes back a chunk that was used on `streams`.
    pub(crate) fn release(&self, chunk: usize, len: usize, streams: &[Stream]) {
        let records = self.0.options.records_frees || streams.len() > 1;
        let needs_events = records && !self.0.device.has_one_stream();
        // Under the lock: the later of two uses of a stream has the later event.
        let mut state = self.state();
        let number = state.next_use;
        state.next_use += 1;
        // A device that cannot record is lost; then its memory is, too.
        let uses = streams.iter().map(|stream| {
            let event = needs_events.then(|| stream.mark()).transpose()?;
            let stream = stream.clone();
            Ok(Use {
                stream,
                event,
                number,
            })
        });
        let uses: Result<Vec<Use>> = uses.collect();
        state.chunks.release(chunk, uses.ok());
        state.stats.in_use -= len.max(1).next_multiple_of(GRANULE).min(state.stats.in_use);
    }
}

/// Whether a use is known to be over.
fn is_over(u: &Use) -> bool {
    let reached = u.event.as_ref().map(|e| e.is_reached());
    matches!(reached, Some(Ok(true)))
}

impl State {
    fn take(&mut self, at: usize, rounded: usize, len: usize, holder: &str) -> (usize, Span) {
        let span = self.chunks.take(at, rounded, holder);
        self.stats.in_use += span.len;
        self.stats.peak = self.stats.peak.max(self.stats.in_use);
        self.stats.n_allocations += 1;
        let address = span.address;
        (at, Span { address, len })
    }

    /// Takes the regions without buffers out, with what may still use them.
    fn take_free_regions(&mut self) -> Vec<(Span, Vec<Use>)> {
        let idle = self.chunks.take_free_regions();
        self.regions
            .retain(|r| !idle.iter().any(|(span, _)| span == r));
        for (span, _) in &idle {
            self.stats.reserved -= span.len;
        }
        idle
    }
}

impl Parent {
    fn allocate(&self, len: usize) -> Result<Address> {
        let (chunk, span) =
            (self.allocator).allocate(len, For::Stream(&self.stream), &self.holder)?;
        self.chunks().insert(span.address, chunk);
        Ok(span.address)
    }

    fn release(&self, region: Span) {
        let chunk = self.chunks().remove(&region.address);
        if let Some(chunk) = chunk {
            let streams = std::slice::from_ref(&self.stream);
            self.allocator.release(chunk, region.len, streams);
        }
    }

    fn chunks(&self) -> MutexGuard<'_, BTreeMap<Address, usize>> {
        self.chunks.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inner {
    /// Finds a free chunk that can be used in `place` without waiting.
    fn find(&self, state: &mut State, len: usize, place: For) -> Option<usize> {
        if let Some(idle) = state.chunks.idle_of(len) {
            return Some(idle);
        }
        let candidates: Vec<usize> = state.chunks.free_of(len).take(MAX_CANDIDATES).collect();
        candidates.into_iter().find(|at| {
            let Some(uses) = state.chunks.uses_mut(*at) else {
                return false;
            };
            uses.retain(|u| !is_over(u));
            let mut left = uses.iter();
            left.all(|u| matches!(place, For::Stream(stream) if u.stream == *stream))
        })
    }

    /// Waits for the uses of regions, and frees them. What cannot be waited for stays allocated.
    fn free(&self, regions: Vec<(Span, Vec<Use>)>) {
        for (span, uses) in regions {
            if let Some(parent) = &self.parent {
                parent.release(span);
                continue;
            }
            let over = |u: &Use| {
                let event = u.event();
                // An error means that the operations before are over, too.
                event.is_ok_and(|e| e.synchronize().is_ok() || e.is_reached().is_err())
            };
            if uses.iter().all(over) {
                // SAFETY: the region was allocated in `grow` and is freed once, as its chunk is gone; its uses
                // are over.
                unsafe {
                    self.device
                        .backend()
                        .free(self.device.ordinal(), span.address)
                };
            }
        }
    }

    /// Adds a region of at least `len` bytes, if the limit allows; returns its chunk.
    fn grow(&self, state: &mut State, len: usize) -> Result<Option<usize>> {
        let left = self.limit.saturating_sub(state.stats.reserved) / GRANULE * GRANULE;
        if len > left {
            return Ok(None);
        }
        let wanted = match self.options.allow_growth {
            true => state.next_region.max(len).min(left),
            false => left,
        };
        let backend = self.device.backend();
        let allocate = |len| match (&self.parent, self.kind) {
            (Some(parent), _) => parent.allocate(len),
            (None, Kind::Device) => backend.allocate(self.device.ordinal(), len),
            (None, Kind::Pinned) => backend.allocate_host(self.device.ordinal(), len),
        };
        let (address, wanted) = match allocate(wanted) {
            Ok(address) => (address, wanted),
            Err(e) if e.code() == Code::ResourceExhausted && wanted > len => (allocate(len)?, len),
            Err(e) => return Err(e),
        };
        let span = Span {
            address,
            len: wanted,
        };
        let last = match self.kind {
            Kind::Device => LAST_REGION,
            Kind::Pinned => LAST_PINNED_REGION,
        };
        state.next_region = (state.next_region * 2).min(last);
        state.stats.reserved += span.len;
        state.regions.push(span);
        Ok(Some(state.chunks.add_region(span)))
    }

    #[cold]
    fn out_of_memory(&self, state: &State, len: usize, cause: Option<Status>) -> Status {
        let kind = match self.kind {
            Kind::Device => "",
            Kind::Pinned => " pinned memory of",
        };
        let holders = state.chunks.holders();
        let largest: Vec<String> = holders
            .iter()
            .take(MAX_HOLDERS)
            .map(|(name, bytes)| format!("{bytes} bytes: '{name}'"))
            .collect();
        let cause = cause.map_or(String::new(), |e| format!(" ({})", e.message()));
        resource_exhausted!(
            "OOM when allocating {len} bytes on{kind} {}: {} of {} bytes are in use, the largest free block \
             has {}{cause}. Largest holders: [{}]",
            self.device,
            state.stats.in_use,
            self.limit,
            state.chunks.largest_free(),
            largest.join(", ")
        )
    }
}
