//! A state that one thread at a time holds, with messages for that thread.

#[cfg(loom)]
use loom::sync::{
    Mutex, MutexGuard,
    atomic::{AtomicBool, AtomicUsize, Ordering, fence},
};
use std::sync::PoisonError;
#[cfg(not(loom))]
use std::sync::{
    Mutex, MutexGuard,
    atomic::{AtomicBool, AtomicUsize, Ordering, fence},
};

/// A combining lock: a state and an inbox. No thread waits for the state: a thread that cannot lock
/// it leaves a message, which the thread that holds it processes.
///
/// No message is lost if every thread follows the protocol: [`send`](Mailbox::send), then
/// [`try_lock`](Mailbox::try_lock); holding the lock, process the [`messages`](Mailbox::messages),
/// and retry if [`release`](Mailbox::release) returns true. A sender stores its message before it
/// tries to lock, and the holder reads the inbox after it has released the state; fences order
/// these two pairs, so at least one of the two threads sees the other.
///
/// ```
/// use ferroflow_sync::Mailbox;
/// let sum = Mailbox::new(0);
/// let add = |n: i32| {
///     sum.send(n);
///     while let Some(mut total) = sum.try_lock() {
///         *total += sum.messages().into_iter().sum::<i32>();
///         if !sum.release(total) {
///             break;
///         }
///     }
/// };
/// std::thread::scope(|s| (1..=4).for_each(|n| drop(s.spawn(move || add(n)))));
/// assert_eq!(sum.lock().abs(), 10);
/// ```
pub struct Mailbox<S, M> {
    /// Whether a thread holds the state; the mutex only satisfies the compiler.
    is_locked: AtomicBool,
    state: Mutex<S>,
    inbox: Mutex<Vec<M>>,
    /// Length of the inbox, changed only with its lock.
    n_inbox: AtomicUsize,
}

impl<S, M> Mailbox<S, M> {
    /// Creates an unlocked state without messages.
    pub fn new(state: S) -> Self {
        Mailbox {
            is_locked: AtomicBool::new(false),
            state: Mutex::new(state),
            inbox: Mutex::new(Vec::new()),
            n_inbox: AtomicUsize::new(0),
        }
    }

    /// Leaves a message for the thread that holds the state.
    pub fn send(&self, message: M) {
        let mut inbox = self.lock_inbox();
        inbox.push(message);
        self.n_inbox.store(inbox.len(), Ordering::SeqCst);
        drop(inbox);
        fence(Ordering::SeqCst);
    }

    /// Locks the state, unless a thread holds it, which then sees every message sent before.
    pub fn try_lock(&self) -> Option<MutexGuard<'_, S>> {
        let is_free = !self.is_locked.swap(true, Ordering::SeqCst);
        is_free.then(|| self.lock())
    }

    /// Takes the messages, oldest first.
    pub fn messages(&self) -> Vec<M> {
        if self.n_inbox.load(Ordering::SeqCst) == 0 {
            return Vec::new();
        }
        let mut inbox = self.lock_inbox();
        self.n_inbox.store(0, Ordering::SeqCst);
        std::mem::take(&mut *inbox)
    }

    /// Releases the state; returns whether senders left messages to this thread.
    pub fn release(&self, guard: MutexGuard<'_, S>) -> bool {
        drop(guard);
        self.is_locked.swap(false, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        self.n_inbox.load(Ordering::SeqCst) > 0
    }

    /// Waits for the state; for use after all work is done.
    pub fn lock(&self) -> MutexGuard<'_, S> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lock_inbox(&self) -> MutexGuard<'_, Vec<M>> {
        self.inbox.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
