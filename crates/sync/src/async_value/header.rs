//! The 16 bytes in front of every payload, and the only code that knows their layout.
//!
//! Word 0 holds the reference count and the number of the payload's type. Word 1 holds the state in
//! its two low bits and, until the value is available, the list of waiters in the others.
//!
//! Access to the payload: only the writer, until it stores an available state (release); after that
//! every reader that has seen that state (acquire), for reading; the last owner drops it.

use super::Diagnostic;
use super::memory;
use super::waiter::{self, Waiter};
use crate::atomic::{AtomicPtr, AtomicU32, Ordering, fence};
use std::alloc::Layout;
use std::any::TypeId;
use std::cell::UnsafeCell;
use std::mem::{ManuallyDrop, MaybeUninit};
use std::ptr::NonNull;

pub(super) const UNCONSTRUCTED: usize = 0;
pub(super) const CONSTRUCTED: usize = 1;
pub(super) const CONCRETE: usize = 2;
pub(super) const ERROR: usize = 3;
const STATE_BITS: usize = 3;

/// See the module text.
#[repr(C)]
pub(super) struct Header {
    refs: AtomicU32,
    info: InfoId,
    word: AtomicPtr<Waiter>,
}

/// The properties of a payload's type that type-erased code needs.
#[repr(align(8))]
pub(super) struct Info {
    type_id: fn() -> TypeId,
    pub(super) type_name: fn() -> &'static str,
    pub(super) is_indirect: bool,
    layout: Layout,
    /// Whether a concrete payload needs dropping.
    needs_drop: bool,
    /// Drops the payload of a value in this state.
    drop_payload: unsafe fn(NonNull<Header>, usize),
}

/// The distance of an [`Info`] from [`BASE`]: statics of one program image are within 2 GiB.
#[derive(Clone, Copy, PartialEq, Eq)]
struct InfoId(i32);

static BASE: u64 = 0;

impl InfoId {
    #[inline]
    fn new(info: &'static Info) -> InfoId {
        let base = (&raw const BASE).expose_provenance() as isize;
        let distance = (info as *const Info).expose_provenance() as isize - base;
        match i32::try_from(distance) {
            Ok(distance) => InfoId(distance),
            Err(_) => too_far(),
        }
    }

    #[inline]
    fn info(self) -> &'static Info {
        let base = (&raw const BASE).expose_provenance() as isize;
        let address = (base + self.0 as isize) as usize;
        // SAFETY: made in `new` from a `&'static Info` whose provenance was exposed there.
        unsafe { &*std::ptr::with_exposed_provenance::<Info>(address) }
    }
}

/// Aborts: the program is linked from images that the loader put more than 2 GiB apart.
#[cold]
fn too_far() -> ! {
    eprintln!("ferroflow-sync must be linked statically with the types it holds");
    std::process::abort()
}

/// The memory of a value: header and payload.
#[repr(C)]
struct Full<T> {
    header: Header,
    payload: UnsafeCell<MaybeUninit<Payload<T>>>,
}

#[repr(C)]
union Payload<T> {
    value: ManuallyDrop<T>,
    error: ManuallyDrop<Box<Diagnostic>>,
}

struct InfoOf<T, const INDIRECT: bool>(T);

impl<T: 'static, const INDIRECT: bool> InfoOf<T, INDIRECT> {
    const INFO: &'static Info = &Info {
        type_id: TypeId::of::<T>,
        type_name: std::any::type_name::<T>,
        is_indirect: INDIRECT,
        layout: Layout::new::<Full<T>>(),
        needs_drop: std::mem::needs_drop::<T>(),
        drop_payload: drop_payload::<T, INDIRECT>,
    };
}

unsafe fn drop_payload<T, const INDIRECT: bool>(header: NonNull<Header>, state: usize) {
    let full = header.cast::<Full<T>>();
    // SAFETY: the caller is the last owner and passes the value's actual state, which determines
    // the field of the union that was written, if any.
    unsafe {
        let payload = (*full.as_ptr()).payload.get().cast::<Payload<T>>();
        match state {
            CONSTRUCTED | CONCRETE => ManuallyDrop::drop(&mut (*payload).value),
            // An indirect value refers to its target in both available states.
            ERROR if INDIRECT => ManuallyDrop::drop(&mut (*payload).value),
            ERROR => ManuallyDrop::drop(&mut (*payload).error),
            _ => {}
        }
    }
}

#[cfg(debug_assertions)]
static LIVE: std::sync::atomic::AtomicUsize = std::sync::atomic::AtomicUsize::new(0);

/// Returns the number of live values; counted in debug builds only.
pub(super) fn live() -> Option<usize> {
    #[cfg(debug_assertions)]
    return Some(LIVE.load(std::sync::atomic::Ordering::SeqCst));
    #[cfg(not(debug_assertions))]
    None
}

#[inline]
fn split(word: *mut Waiter) -> (*mut Waiter, usize) {
    (word.map_addr(|a| a & !STATE_BITS), word.addr() & STATE_BITS)
}

#[inline]
fn join(waiters: *mut Waiter, state: usize) -> *mut Waiter {
    waiters.map_addr(|a| a | state)
}

/// An owned reference to a header; `T` is not known.
pub(super) struct Raw(NonNull<Header>);

// SAFETY: payloads are `Send + Sync` (every constructor requires it), the rest is atomic.
unsafe impl Send for Raw {}
// SAFETY: as above.
unsafe impl Sync for Raw {}

impl Raw {
    /// Creates a value with one owner in `state`, which must be the actual state of `payload`.
    #[inline]
    pub(super) fn new<T: Send + Sync + 'static, const INDIRECT: bool>(
        payload: Option<T>,
        refs: u32,
    ) -> Raw {
        const { assert!(size_of::<Header>() == 16 || cfg!(loom)) };
        let state = if payload.is_some() {
            CONCRETE
        } else {
            UNCONSTRUCTED
        };
        let raw = Raw::allocate::<T, INDIRECT>(state, refs);
        if let Some(value) = payload {
            // SAFETY: fresh memory of that type, not shared yet.
            unsafe { raw.write_value(value) };
        }
        raw
    }

    /// Creates an available value that holds an error.
    pub(super) fn new_error(error: Diagnostic) -> Raw {
        let raw = Raw::allocate::<(), false>(ERROR, 1);
        // SAFETY: fresh memory of that type, not shared yet.
        unsafe { raw.write_error::<()>(error) };
        raw
    }

    #[inline]
    fn allocate<T: 'static, const INDIRECT: bool>(state: usize, refs: u32) -> Raw {
        let full = memory::allocate(Layout::new::<Full<T>>()).cast::<Full<T>>();
        // SAFETY: fresh memory of the right layout.
        unsafe {
            (&raw mut (*full.as_ptr()).header).write(Header {
                refs: AtomicU32::new(refs),
                info: InfoId::new(InfoOf::<T, INDIRECT>::INFO),
                word: AtomicPtr::new(std::ptr::without_provenance_mut(state)),
            });
        }
        #[cfg(debug_assertions)]
        LIVE.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        Raw(full.cast())
    }

    #[inline]
    fn header(&self) -> &Header {
        // SAFETY: this reference keeps the value alive.
        unsafe { self.0.as_ref() }
    }

    #[inline]
    pub(super) fn info(&self) -> &'static Info {
        self.header().info.info()
    }

    /// Returns whether the payload's type is `T`, without following indirection.
    #[inline]
    pub(super) fn holds<T: 'static>(&self) -> bool {
        let info = self.info();
        // The constant of a type may have several addresses.
        std::ptr::eq(info, InfoOf::<T, false>::INFO)
            || ((info.type_id)() == TypeId::of::<T>() && !info.is_indirect)
    }

    /// Returns the state; the payload of an available state may be read after this.
    #[inline]
    pub(super) fn state(&self) -> usize {
        split(self.header().word.load(Ordering::Acquire)).1
    }

    #[inline]
    fn payload<T>(&self) -> *mut Payload<T> {
        // SAFETY: this reference keeps the value alive; no reference to the payload is made.
        unsafe {
            (*self.0.cast::<Full<T>>().as_ptr())
                .payload
                .get()
                .cast::<Payload<T>>()
        }
    }

    /// # Safety
    /// The payload's type is `T`, the caller is the value's writer, and nothing was written yet.
    #[inline]
    pub(super) unsafe fn write_value<T>(&self, value: T) {
        // SAFETY: as the caller promises.
        unsafe {
            (&raw mut (*self.payload::<T>()).value).write(ManuallyDrop::new(value));
        }
    }

    /// # Safety
    /// As for [`Raw::write_value`].
    #[inline]
    pub(super) unsafe fn write_error<T>(&self, error: Diagnostic) {
        // SAFETY: as the caller promises.
        unsafe {
            (&raw mut (*self.payload::<T>()).error).write(ManuallyDrop::new(Box::new(error)));
        }
    }

    /// # Safety
    /// The payload's type is `T`, and the value is concrete; or it is constructed, and the caller
    /// is its writer.
    #[inline]
    pub(super) unsafe fn value<T>(&self) -> &T {
        // SAFETY: as the caller promises.
        unsafe { &(*self.payload::<T>()).value }
    }

    /// # Safety
    /// The payload's type is `T`; the value is constructed and the caller its writer, or it is
    /// concrete and the caller its only owner.
    #[inline]
    pub(super) unsafe fn value_mut<T>(&mut self) -> &mut T {
        // SAFETY: as the caller promises.
        unsafe { &mut (*self.payload::<T>()).value }
    }

    /// # Safety
    /// The value is in the state `ERROR`, and it is not indirect.
    #[inline]
    pub(super) unsafe fn error(&self) -> &Diagnostic {
        // The error is at the start of the union whatever the other field's type, but the offset of
        // the union depends on its alignment.
        let offset = size_of::<Header>().next_multiple_of(self.info().layout.align());
        // SAFETY: an error was written there (the caller promises the state), and `Payload<T>` is
        // at the first offset behind the header that its alignment allows, which is that of the
        // whole allocation unless smaller than the header's.
        unsafe { &*self.0.as_ptr().byte_add(offset).cast::<Box<Diagnostic>>() }
    }

    /// Marks a value whose payload is written but not available yet.
    ///
    /// # Safety
    /// The caller is the writer and has just written the value.
    pub(super) unsafe fn set_constructed(&self) {
        let word = &self.header().word;
        let mut old = word.load(Ordering::Relaxed);
        loop {
            let new = join(split(old).0, CONSTRUCTED);
            match word.compare_exchange_weak(old, new, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return,
                Err(now) => old = now,
            }
        }
    }

    /// Makes the value available, drops the reference, and runs the waiters.
    ///
    /// # Safety
    /// The caller is the writer and has written what `state` stands for.
    #[inline]
    pub(super) unsafe fn set_available(self, state: usize) {
        let available = std::ptr::without_provenance_mut(state);
        let old = self.header().word.swap(available, Ordering::AcqRel);
        let (waiters, _) = split(old);
        // Before the waiters run: one of them may be the value's only owner then.
        drop(self);
        if !waiters.is_null() {
            waiter::run_all(waiters);
        }
    }

    /// Runs `f` when the value is available: now, or on the thread that makes it available.
    #[inline]
    pub(super) fn and_then<F: FnOnce() + Send + 'static>(&self, f: F) {
        if self.state() >= CONCRETE {
            f()
        } else {
            self.enqueue(f)
        }
    }

    fn enqueue<F: FnOnce() + Send + 'static>(&self, f: F) {
        let node = waiter::new(f);
        // SAFETY: this reference keeps the value alive.
        unsafe { Raw::enqueue_node(self.0, node) }
    }

    /// Like [`Raw::and_then`], for a value that is most likely not available; the closure gets the
    /// reference itself.
    pub(super) fn enqueue_owned<F: FnOnce(Raw) + Send + 'static>(self, f: F) {
        let header = self.0;
        let node = waiter::new(move || f(self));
        // SAFETY: the closure's reference keeps the value alive until the closure has run, which
        // happens only after the node is in the list, and the value is not accessed after that.
        unsafe { Raw::enqueue_node(header, node) }
    }

    /// # Safety
    /// The node is the caller's, and the value lives until the node's closure runs.
    unsafe fn enqueue_node(header: NonNull<Header>, node: *mut Waiter) {
        // SAFETY: as the caller promises.
        let word = unsafe { &(*header.as_ptr()).word };
        let mut old = word.load(Ordering::Acquire);
        loop {
            let (waiters, state) = split(old);
            // SAFETY: the node is ours until the exchange below succeeds.
            unsafe { waiter::set_next(node, waiters) };
            if state >= CONCRETE {
                // SAFETY: as above; the node still belongs to this thread.
                unsafe { waiter::set_next(node, std::ptr::null_mut()) };
                waiter::run_all(node);
                return;
            }
            let new = join(node, state);
            match word.compare_exchange_weak(old, new, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return,
                Err(now) => old = now,
            }
        }
    }

    /// Returns whether this is the only reference.
    #[inline]
    pub(super) fn is_unique(&self) -> bool {
        self.header().refs.load(Ordering::Acquire) == 1
    }

    #[cfg(test)]
    pub(super) fn refs(&self) -> u32 {
        self.header().refs.load(Ordering::Acquire)
    }

    /// Returns whether both are the same value.
    #[inline]
    pub(super) fn is_same(&self, other: &Raw) -> bool {
        self.0 == other.0
    }

    /// Adds `more` references, which the caller turns into handles with [`Raw::twin`] or drops with
    /// [`Raw::forget`].
    #[inline]
    pub(super) fn reserve(&mut self, more: u32) {
        let refs = &self.header().refs;
        // This is the only reference, and it is borrowed mutably, so the count cannot change
        // meanwhile.
        if refs.load(Ordering::Acquire) == 1 && more < u32::MAX / 2 {
            refs.store(1 + more, Ordering::Relaxed);
            return;
        }
        check_count(refs.fetch_add(more, Ordering::Relaxed));
        check_count(more);
    }

    /// Gives up references that [`Raw::reserve`] added; this one stays.
    pub(super) fn forget(&self, reserved: u32) {
        self.header().refs.fetch_sub(reserved, Ordering::Release);
    }

    /// Returns a handle for a reference that was already counted, when the value was created
    /// (`refs`) or by [`Raw::reserve`].
    ///
    /// # Safety
    /// More references are counted than handles exist.
    #[inline]
    pub(super) unsafe fn twin(&self) -> Raw {
        Raw(self.0)
    }

    fn destroy(&mut self) {
        let (waiters, state) = split(self.header().word.load(Ordering::Acquire));
        // SAFETY: the last owner; the state says what was written. The layout is that of `Full<T>`
        // for the payload's type.
        unsafe {
            let info = self.info();
            if state != CONCRETE || info.needs_drop {
                (info.drop_payload)(self.0, state);
            }
            // Loom's atomics own memory.
            #[cfg(loom)]
            std::ptr::drop_in_place(self.0.as_ptr());
            memory::free(self.0.cast(), info.layout);
        }
        #[cfg(debug_assertions)]
        LIVE.fetch_sub(1, std::sync::atomic::Ordering::Relaxed);
        if !waiters.is_null() {
            waiter::drop_all(waiters);
        }
    }
}

/// Aborts at two thousand million handles: they are being leaked, and the count must not wrap.
#[inline]
fn check_count(refs: u32) {
    if refs > u32::MAX / 2 {
        std::process::abort();
    }
}

impl Clone for Raw {
    #[inline]
    fn clone(&self) -> Self {
        check_count(self.header().refs.fetch_add(1, Ordering::Relaxed));
        Raw(self.0)
    }
}

impl Drop for Raw {
    #[inline]
    fn drop(&mut self) {
        let refs = &self.header().refs;
        // A sole owner needs no read-modify-write: no other thread can add a reference.
        if refs.load(Ordering::Acquire) != 1 {
            if refs.fetch_sub(1, Ordering::Release) != 1 {
                return;
            }
            fence(Ordering::Acquire);
        }
        self.destroy();
    }
}
