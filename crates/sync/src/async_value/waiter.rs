//! Waiters of a value: closures in recycled nodes, run with bounded recursion.

use crate::DepthGuard;
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::mem::MaybeUninit;

/// Closures of up to this many words need no allocation of their own.
const WORDS: usize = 3;
/// Nodes a thread keeps for reuse.
const MAX_FREE: usize = 256;
/// Maximal nesting of waiters that make values available, before they are queued. Nesting runs them
/// in TFRT's order (at once); the limit keeps long chains from overflowing the stack.
const MAX_DEPTH: u32 = 48;

/// A node of a value's list. Aligned so that an address leaves the state's bits free.
#[repr(C, align(8))]
pub(super) struct Waiter {
    next: *mut Waiter,
    /// Consumes the closure: calls it, or only drops it.
    consume: unsafe fn(*mut Waiter, Fate),
    data: MaybeUninit<[usize; WORDS]>,
}

#[derive(Clone, Copy, PartialEq)]
enum Fate {
    Run,
    Drop,
}

/// The nodes that a thread keeps for reuse.
struct FreeList(RefCell<Vec<*mut Waiter>>);

impl Drop for FreeList {
    fn drop(&mut self) {
        for node in self.0.get_mut().drain(..) {
            // SAFETY: made by `Box::into_raw` in `new`, and owned by this list.
            drop(unsafe { Box::from_raw(node) });
        }
    }
}

thread_local! {
    static FREE: FreeList = const { FreeList(RefCell::new(Vec::new())) };
    static DEPTH: Cell<u32> = const { Cell::new(0) };
    /// Lists that run once control returns to the outermost call.
    static QUEUE: RefCell<VecDeque<*mut Waiter>> = const { RefCell::new(VecDeque::new()) };
}

const fn fits<F>() -> bool {
    size_of::<F>() <= WORDS * size_of::<usize>() && align_of::<F>() <= align_of::<usize>()
}

/// Returns a node that holds `f`, in no list.
#[inline]
pub(super) fn new<F: FnOnce() + Send + 'static>(f: F) -> *mut Waiter {
    let free = FREE.try_with(|free| free.0.borrow_mut().pop());
    let node = match free {
        Ok(Some(node)) => node,
        _ => Box::into_raw(Box::new(Waiter {
            next: std::ptr::null_mut(),
            consume: consume::<F>,
            data: MaybeUninit::uninit(),
        })),
    };
    // SAFETY: the node is ours. A closure that fits is written in place, another one as its box,
    // which is what `consume::<F>` expects.
    unsafe {
        (*node).next = std::ptr::null_mut();
        (*node).consume = consume::<F>;
        let data = (&raw mut (*node).data).cast::<u8>();
        if fits::<F>() {
            data.cast::<F>().write(f);
        } else {
            data.cast::<Box<F>>().write(Box::new(f));
        }
    }
    node
}

/// # Safety
/// The node is the caller's alone.
pub(super) unsafe fn set_next(node: *mut Waiter, next: *mut Waiter) {
    // SAFETY: as the caller promises.
    unsafe { (*node).next = next };
}

unsafe fn consume<F: FnOnce()>(node: *mut Waiter, fate: Fate) {
    // SAFETY: `new` wrote an `F` (or its box) there, and the caller consumes it once. The node is
    // free for others before the closure runs.
    unsafe {
        let data = (&raw const (*node).data).cast::<u8>();
        if fits::<F>() {
            let f = data.cast::<F>().read();
            recycle(node);
            if fate == Fate::Run {
                f();
            }
        } else {
            let f = data.cast::<Box<F>>().read();
            recycle(node);
            if fate == Fate::Run {
                f();
            }
        }
    }
}

fn recycle(node: *mut Waiter) {
    let kept = FREE.try_with(|free| {
        let mut free = free.0.borrow_mut();
        let keep = free.len() < MAX_FREE;
        if keep {
            free.push(node);
        }
        keep
    });
    if !matches!(kept, Ok(true)) {
        // SAFETY: made by `Box::into_raw`, and no other list has it.
        drop(unsafe { Box::from_raw(node) });
    }
}

fn walk(mut list: *mut Waiter, fate: Fate) {
    while !list.is_null() {
        let node = list;
        // SAFETY: the list is the caller's; each node is consumed once.
        unsafe {
            list = (*node).next;
            ((*node).consume)(node, fate);
        }
    }
}

/// Runs a list that the caller owns, newest first; later if too many calls are nested already.
pub(super) fn run_all(list: *mut Waiter) {
    let Some(guard) = DepthGuard::enter(&DEPTH, MAX_DEPTH) else {
        let queued = QUEUE.try_with(|queue| queue.borrow_mut().push_back(list));
        if queued.is_err() {
            // The thread is exiting.
            walk(list, Fate::Run);
        }
        return;
    };
    walk(list, Fate::Run);
    if guard.is_outermost() {
        while let Ok(Some(list)) = QUEUE.try_with(|queue| queue.borrow_mut().pop_front()) {
            walk(list, Fate::Run);
        }
    }
}

/// Drops a list that will never run.
pub(super) fn drop_all(list: *mut Waiter) {
    walk(list, Fate::Drop);
}
