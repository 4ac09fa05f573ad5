//! The memory of host-stream devices: regions, and locks of the ranges that operations use.

use crate::backend::{Address, Span};
use ferroflow_base::{Result, invalid_argument, resource_exhausted};
use smallvec::SmallVec;
use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::collections::BTreeMap;
use std::ptr::NonNull;
use std::sync::{Arc, Condvar, Mutex, PoisonError, RwLock};

/// Alignment of regions.
const ALIGN: usize = 256;

/// Memory that was allocated at once; operations that were not run yet keep it.
pub(crate) struct Region {
    ptr: NonNull<u8>,
    layout: Layout,
    len: usize,
    /// The device that it counts for, unless it is pinned memory.
    device: Option<usize>,
}

// SAFETY: a region is plain memory; an operation that uses it holds its range in `Locks`, or owns it as the
// room's buffers do.
unsafe impl Send for Region {}
// SAFETY: as above.
unsafe impl Sync for Region {}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: allocated with this layout in `Memory::allocate`, freed once.
        unsafe { dealloc(self.ptr.as_ptr(), self.layout) };
    }
}

/// A range of a region that an operation uses.
#[derive(Clone)]
pub(crate) struct Access {
    pub(crate) span: Span,
    pub(crate) writes: bool,
    /// Keeps the memory, and the provenance of its addresses.
    region: Arc<Region>,
}

impl Access {
    /// The first byte.
    pub(crate) fn as_ptr(&self) -> *mut u8 {
        let base = self.region.ptr.as_ptr();
        let offset = self.span.address.0 as usize - base as usize;
        // SAFETY: `Memory::access` checked that the range is inside the region.
        unsafe { base.add(offset) }
    }
}

/// All memory of a backend.
pub(crate) struct Memory {
    regions: RwLock<BTreeMap<u64, Arc<Region>>>,
    /// Bytes that each device has left.
    left: Mutex<Vec<usize>>,
    locks: Locks,
}

impl Memory {
    pub(crate) fn new(n_devices: usize, bytes_each: usize) -> Memory {
        Memory {
            regions: RwLock::default(),
            left: Mutex::new(vec![bytes_each; n_devices]),
            locks: Locks::default(),
        }
    }

    /// Allocates zeroed memory of a device, or of none.
    pub(crate) fn allocate(&self, device: Option<usize>, len: usize) -> Result<Address> {
        let exhausted = |left: usize| {
            resource_exhausted!("{len} bytes do not fit into the {left} bytes that are left")
        };
        let layout = Layout::from_size_align(len.max(1), ALIGN).map_err(|_| exhausted(0))?;
        if let Some(device) = device {
            let mut left = self.left.lock().unwrap_or_else(PoisonError::into_inner);
            let left = left.get_mut(device).ok_or_else(|| exhausted(0))?;
            *left = left.checked_sub(len).ok_or_else(|| exhausted(*left))?;
        }
        // SAFETY: the layout's size is not zero.
        let Some(ptr) = NonNull::new(unsafe { alloc_zeroed(layout) }) else {
            self.give_back(device, len);
            return Err(exhausted(0));
        };
        let region = Region {
            ptr,
            layout,
            len,
            device,
        };
        // The address stands for the pointer in `Backend`; accesses derive from the region's own.
        let address = ptr.as_ptr().expose_provenance() as u64;
        let mut regions = self.regions.write().unwrap_or_else(PoisonError::into_inner);
        regions.insert(address, Arc::new(region));
        Ok(Address(address))
    }

    fn give_back(&self, device: Option<usize>, len: usize) {
        let mut left = self.left.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(left) = device.and_then(|d| left.get_mut(d)) {
            *left += len;
        }
    }

    /// The length of the region at an address.
    pub(crate) fn len_of(&self, address: Address) -> Option<usize> {
        let regions = self.regions.read().unwrap_or_else(PoisonError::into_inner);
        regions.get(&address.0).map(|region| region.len)
    }

    /// Forgets a region; its memory goes when no operation uses it any more.
    pub(crate) fn free(&self, address: Address) {
        let mut regions = self.regions.write().unwrap_or_else(PoisonError::into_inner);
        let region = regions.remove(&address.0);
        drop(regions);
        if let Some(region) = region {
            self.give_back(region.device, region.len);
        }
    }

    /// The access of an operation to a range.
    ///
    /// # Errors
    /// INVALID_ARGUMENT if the range is not in allocated memory.
    pub(crate) fn access(&self, span: Span, writes: bool) -> Result<Access> {
        let regions = self.regions.read().unwrap_or_else(PoisonError::into_inner);
        let found = regions.range(..=span.address.0).next_back();
        let inside = found.filter(|(start, region)| {
            let offset = (span.address.0 - **start) as usize;
            offset
                .checked_add(span.len)
                .is_some_and(|end| end <= region.len)
        });
        match inside {
            Some((_, region)) => Ok(Access {
                span,
                writes,
                region: region.clone(),
            }),
            None => Err(invalid_argument!(
                "an illegal memory access: {} bytes at {} are not allocated",
                span.len,
                span.address
            )),
        }
    }

    /// Runs `f` while no other operation uses the ranges, except that several may read one.
    pub(crate) fn locked<R>(&self, accesses: &[Access], f: impl FnOnce() -> R) -> R {
        let _guard = self.locks.lock(accesses);
        f()
    }
}

/// The ranges that running operations use. Streams that were not synchronized compute wrong values, as on
/// any device; these locks make sure that this is not a data race of the host.
#[derive(Default)]
struct Locks {
    held: Mutex<Vec<(Span, bool)>>,
    released: Condvar,
}

struct Guard<'a> {
    locks: &'a Locks,
    ranges: SmallVec<[(Span, bool); 4]>,
}

impl Locks {
    /// Waits for all ranges and takes them at once, so that no two operations wait for each other.
    fn lock(&self, accesses: &[Access]) -> Guard<'_> {
        let ranges: SmallVec<[(Span, bool); 4]> =
            accesses.iter().map(|a| (a.span, a.writes)).collect();
        let conflicts = |held: &mut Vec<(Span, bool)>| {
            let conflict = |(span, writes): &(Span, bool)| {
                let mut others = ranges.iter();
                others.any(|(own, own_writes)| (*writes || *own_writes) && own.overlaps(*span))
            };
            held.iter().any(conflict)
        };
        let held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        let held = self.released.wait_while(held, conflicts);
        let mut held = held.unwrap_or_else(PoisonError::into_inner);
        held.extend(ranges.iter().copied());
        drop(held);
        Guard {
            locks: self,
            ranges,
        }
    }
}

impl Drop for Guard<'_> {
    fn drop(&mut self) {
        let mut held = self
            .locks
            .held
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        for range in &self.ranges {
            if let Some(at) = held.iter().position(|h| h == range) {
                held.swap_remove(at);
            }
        }
        drop(held);
        self.locks.released.notify_all();
    }
}
