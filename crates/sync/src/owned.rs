//! A state that one thread at a time owns, with messages for whoever owns it.

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

/// A state and its inbox. Nobody ever waits for the state: who cannot own it leaves a message, and
/// the owner sees it.
///
/// No message is lost when every thread follows the rule: [`send`](Owned::send), then
/// [`try_own`](Owned::try_own); as the owner read the [`messages`](Owned::messages), and try again
/// when [`release`](Owned::release) says so. A sender puts its message before it tries to own,
/// and the owner looks into the inbox after it has given the state back; the fences order these two pairs, so
/// that at least one of the two sees the other.
///
/// ```
/// use ferroflow_sync::Owned;
/// let sum = Owned::new(0);
/// let add = |n: i32| {
///     sum.send(n);
///     while let Some(mut total) = sum.try_own() {
///         *total += sum.messages().into_iter().sum::<i32>();
///         if !sum.release(total) {
///             break;
///         }
///     }
/// };
/// std::thread::scope(|s| (1..=4).for_each(|n| drop(s.spawn(move || add(n)))));
/// assert_eq!(sum.lock().abs(), 10);
/// ```
pub struct Owned<S, M> {
    /// Whether somebody owns the state; its lock only keeps the compiler content.
    is_owned: AtomicBool,
    state: Mutex<S>,
    inbox: Mutex<Vec<M>>,
    /// Length of the inbox, changed only with its lock.
    n_inbox: AtomicUsize,
}

/// The state, owned; it must go back by [`Owned::release`].
pub type Owner<'a, S> = MutexGuard<'a, S>;

impl<S, M> Owned<S, M> {
    /// A state that nobody owns, without messages.
    pub fn new(state: S) -> Self {
        Owned {
            is_owned: AtomicBool::new(false),
            state: Mutex::new(state),
            inbox: Mutex::new(Vec::new()),
            n_inbox: AtomicUsize::new(0),
        }
    }

    /// Leaves a message for the owner.
    pub fn send(&self, message: M) {
        let mut inbox = self.lock_inbox();
        inbox.push(message);
        self.n_inbox.store(inbox.len(), Ordering::SeqCst);
        drop(inbox);
        fence(Ordering::SeqCst);
    }

    /// The state, unless somebody owns it, who then sees every message that was sent before.
    pub fn try_own(&self) -> Option<Owner<'_, S>> {
        let is_free = !self.is_owned.swap(true, Ordering::SeqCst);
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

    /// Gives the state back; whether messages are there that their senders left to this owner.
    pub fn release(&self, owner: Owner<'_, S>) -> bool {
        drop(owner);
        self.is_owned.swap(false, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        self.n_inbox.load(Ordering::SeqCst) > 0
    }

    /// The state, waited for: for when all is done.
    pub fn lock(&self) -> Owner<'_, S> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lock_inbox(&self) -> MutexGuard<'_, Vec<M>> {
        self.inbox.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
