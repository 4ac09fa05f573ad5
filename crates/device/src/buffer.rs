//! [`Buffer`]: memory with one owner; [`Pinned`]: memory that the host reads and writes.

use crate::allocator::{Allocator, For};
use crate::backend::{Address, Span};
use crate::{Device, Stream};
use ferroflow_base::{Result, failed_precondition, internal, invalid_argument};
use smallvec::SmallVec;
use std::any::Any;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Memory that operations of streams read and write.
///
/// A buffer is the only owner of its memory; a view keeps the buffer that it is a part of. It notes the
/// streams that it is used on. Dropping it frees the memory behind everything enqueued on them.
/// Operations of different streams on one buffer are synchronized by the caller, with events.
pub struct Buffer {
    device: Device,
    span: Span,
    owner: Mutex<Owner>,
}

enum Owner {
    Chunk {
        allocator: Allocator,
        chunk: usize,
        streams: SmallVec<[Stream; 2]>,
    },
    /// A part of another buffer.
    View(Arc<Buffer>),
    /// Memory of something else that is alive.
    Other(#[expect(dead_code, reason = "kept alive")] Box<dyn Any + Send + Sync>),
    Freed,
}

impl Buffer {
    /// Allocates memory whose first use is on `stream`. Out-of-memory errors
    /// of others name `holder`.
    ///
    /// # Errors
    /// RESOURCE_EXHAUSTED if there is too little memory; the error lists the largest holders.
    pub fn new(allocator: &Allocator, stream: &Stream, len: usize, holder: &str) -> Result<Buffer> {
        if allocator.device() != stream.device() {
            return Err(invalid_argument!(
                "memory of {} cannot be allocated for a stream of {}",
                allocator.device(),
                stream.device()
            ));
        }
        let buffer = Self::allocate(allocator, len, For::Stream(stream), holder)?;
        buffer.note(stream);
        Ok(buffer)
    }

    pub(crate) fn allocate(
        allocator: &Allocator,
        len: usize,
        place: For,
        holder: &str,
    ) -> Result<Buffer> {
        let (chunk, span) = allocator.allocate(len, place, holder)?;
        Ok(Buffer {
            device: allocator.device().clone(),
            span,
            owner: Mutex::new(Owner::Chunk {
                allocator: allocator.clone(),
                chunk,
                streams: SmallVec::new(),
            }),
        })
    }

    /// A buffer over memory of `owner`.
    pub(crate) fn of_owner(device: &Device, span: Span, owner: impl Any + Send + Sync) -> Buffer {
        Buffer {
            device: device.clone(),
            span,
            owner: Mutex::new(Owner::Other(Box::new(owner))),
        }
    }

    /// Returns a part, which keeps this buffer.
    ///
    /// # Errors
    /// INVALID_ARGUMENT if it is not inside.
    pub fn view(self: &Arc<Self>, offset: usize, len: usize) -> Result<Buffer> {
        if offset
            .checked_add(len)
            .is_none_or(|end| end > self.span.len)
        {
            return Err(invalid_argument!(
                "buffer size ({}) is smaller than offset ({offset}) plus size ({len})",
                self.span.len
            ));
        }
        Ok(Buffer {
            device: self.device.clone(),
            span: Span {
                address: self.span.address.offset(offset),
                len,
            },
            owner: Mutex::new(Owner::View(self.clone())),
        })
    }

    /// Its device.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// Its raw address.
    pub fn address(&self) -> Address {
        self.span.address
    }

    /// Its number of bytes.
    pub fn len(&self) -> usize {
        self.span.len
    }

    /// Whether it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.span.len == 0
    }

    /// Frees the memory behind everything enqueued on `stream` and on the streams that used it.
    ///
    /// # Errors
    /// FAILED_PRECONDITION if it was freed, or is not the owner of its memory.
    pub fn free(&self, stream: &Stream) -> Result<()> {
        self.use_on(stream)?;
        let mut owner = self.owner();
        match &*owner {
            Owner::Chunk { .. } => {
                let freed = std::mem::replace(&mut *owner, Owner::Freed);
                drop(owner);
                self.give_back(freed);
                Ok(())
            }
            _ => Err(failed_precondition!(
                "a buffer that does not own its memory cannot be freed"
            )),
        }
    }

    fn give_back(&self, owner: Owner) {
        if let Owner::Chunk {
            allocator,
            chunk,
            streams,
        } = owner
        {
            allocator.release(chunk, self.span.len, &streams);
        }
    }

    fn owner(&self) -> MutexGuard<'_, Owner> {
        self.owner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The streams that use the memory.
    fn streams(&self) -> SmallVec<[Stream; 2]> {
        match &*self.owner() {
            Owner::Chunk { streams, .. } => streams.clone(),
            Owner::View(whole) => whole.streams(),
            Owner::Other(_) | Owner::Freed => SmallVec::new(),
        }
    }

    fn note(&self, stream: &Stream) -> bool {
        match &mut *self.owner() {
            Owner::Chunk { streams, .. } => {
                if !stream.is_captured() && !streams.contains(stream) {
                    streams.push(stream.clone());
                }
                true
            }
            Owner::View(whole) => whole.note(stream),
            Owner::Other(_) => true,
            Owner::Freed => false,
        }
    }

    /// Notes that an operation of `stream`, which is about to be enqueued, uses the buffer.
    pub(crate) fn use_on(&self, stream: &Stream) -> Result<Span> {
        let backend = self.device.backend();
        if !Arc::ptr_eq(backend, stream.device().backend()) {
            return Err(invalid_argument!(
                "a buffer of {} cannot be used on a stream of {}",
                self.device,
                stream.device()
            ));
        }
        match self.note(stream) {
            true => Ok(self.span),
            false => Err(failed_precondition!("the buffer was freed")),
        }
    }

    /// Whether all operations on it are known to be over, and none can follow.
    fn is_idle_host(&mut self) -> Result<bool> {
        let owner = self.owner.get_mut();
        let owner = owner.unwrap_or_else(PoisonError::into_inner);
        let Owner::Chunk {
            allocator, streams, ..
        } = owner
        else {
            return Ok(false);
        };
        if !allocator.is_pinned() {
            return Ok(false);
        }
        for stream in streams {
            if !stream.mark()?.is_reached()? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Reads the first `N` bytes; waits for everything enqueued on the streams that use the buffer.
    ///
    /// # Errors
    /// INVALID_ARGUMENT if the buffer is shorter; the error of an operation before.
    pub fn load<const N: usize>(self: &Arc<Self>) -> Result<[u8; N]> {
        let bytes = self.read(0, N, &Allocator::pinned(&self.device))?;
        let bytes = bytes.first_chunk::<N>();
        bytes
            .copied()
            .ok_or_else(|| internal!("fewer bytes arrived"))
    }

    /// Reads `len` bytes from byte `offset` on, by way of pinned memory of `staging`; waits for everything enqueued on the
    /// streams that use the buffer.
    ///
    /// # Errors
    /// INVALID_ARGUMENT if they are not inside; the error of an operation before.
    pub fn read(
        self: &Arc<Self>,
        offset: usize,
        len: usize,
        staging: &Allocator,
    ) -> Result<Vec<u8>> {
        if len == 0 {
            return Ok(Vec::new());
        }
        let part = self.view(offset, len)?;
        let stream = Stream::new(&self.device)?;
        for other in self.streams() {
            stream.wait(&other.mark()?)?;
        }
        // Without a call of the host: this may be in one, and those run one by one.
        let pinned = Pinned::new(staging, len)?.into_buffer();
        stream.copy(&pinned, &part)?;
        stream.synchronize()?;
        let pinned = Pinned::of_idle(pinned);
        Ok(pinned.bytes().to_vec())
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        let owner = self.owner.get_mut();
        let owner = owner.unwrap_or_else(PoisonError::into_inner);
        let owner = std::mem::replace(owner, Owner::Freed);
        self.give_back(owner);
    }
}

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let platform = self.device.backend().platform();
        write!(
            f,
            "pointer={} ({platform}), size={}",
            self.address(),
            self.len()
        )
    }
}

/// Host memory that the device reaches, and that no operation uses.
pub struct Pinned(Buffer);

impl Pinned {
    /// Allocates memory with arbitrary content; waits for streams if there is too little.
    ///
    /// # Errors
    /// RESOURCE_EXHAUSTED if there is too little memory; INVALID_ARGUMENT if the allocator is of device
    /// memory.
    pub fn new(allocator: &Allocator, len: usize) -> Result<Pinned> {
        if !allocator.is_pinned() {
            return Err(invalid_argument!(
                "pinned memory needs an allocator of pinned memory"
            ));
        }
        let buffer = Buffer::allocate(allocator, len, For::Host, "staging")?;
        Ok(Pinned(buffer))
    }

    /// Takes a buffer whose operations are over.
    ///
    /// # Errors
    /// FAILED_PRECONDITION if it is not host memory of its own, or a stream still uses it.
    pub fn of_buffer(mut buffer: Buffer) -> Result<Pinned> {
        match buffer.is_idle_host()? {
            true => Ok(Pinned(buffer)),
            false => Err(failed_precondition!(
                "the buffer is not pinned memory, or in use by a stream"
            )),
        }
    }

    /// As [`Pinned::of_buffer`], in a call that runs behind the last operation.
    pub(crate) fn of_idle(buffer: Buffer) -> Pinned {
        Pinned(buffer)
    }

    /// Returns the buffer, for operations of streams.
    pub fn into_buffer(self) -> Buffer {
        self.0
    }

    /// The bytes.
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: the buffer is initialised host memory that no operation uses; one that did would need
        // `into_buffer`.
        unsafe { std::slice::from_raw_parts(self.0.span.address.0 as *const u8, self.0.span.len) }
    }

    /// The bytes.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `bytes`, with the only reference.
        unsafe { std::slice::from_raw_parts_mut(self.0.span.address.0 as *mut u8, self.0.span.len) }
    }
}

impl AsRef<[u8]> for Pinned {
    fn as_ref(&self) -> &[u8] {
        self.bytes()
    }
}
