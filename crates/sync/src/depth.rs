//! Nesting depth of calls on the stack of a thread.

use std::cell::Cell;
use std::thread::LocalKey;

/// Counts a call in progress on this thread, until it returns or panics.
///
/// ```
/// use ferroflow_sync::DepthGuard;
/// use std::cell::Cell;
/// thread_local! {
///     static DEPTH: Cell<u32> = const { Cell::new(0) };
/// }
/// let outer = DepthGuard::enter(&DEPTH, 1);
/// assert!(outer.is_some() && DepthGuard::enter(&DEPTH, 1).is_none());
/// drop(outer);
/// assert_eq!(DEPTH.get(), 0);
/// ```
#[must_use]
pub struct DepthGuard {
    depth: &'static LocalKey<Cell<u32>>,
    before: u32,
    /// Whether counting restarted at zero; then the previous depth is restored. Otherwise the count
    /// is decremented, since guards of different threads of a model need not nest.
    restarted: bool,
}

impl DepthGuard {
    /// Enters a call; returns `None` if `limit` calls are nested already.
    #[inline]
    pub fn enter(depth: &'static LocalKey<Cell<u32>>, limit: u32) -> Option<DepthGuard> {
        let before = depth.get();
        (before < limit).then(|| {
            depth.set(before + 1);
            DepthGuard {
                depth,
                before,
                restarted: false,
            }
        })
    }

    /// Returns whether no other call was in progress.
    #[inline]
    pub fn is_outermost(&self) -> bool {
        self.before == 0
    }

    /// Restarts counting at zero, for a task that has the stack to itself.
    pub fn restart(depth: &'static LocalKey<Cell<u32>>) -> DepthGuard {
        DepthGuard {
            depth,
            before: depth.replace(0),
            restarted: true,
        }
    }
}

impl Drop for DepthGuard {
    #[inline]
    fn drop(&mut self) {
        self.depth.set(match self.restarted {
            true => self.before,
            false => self.depth.get().saturating_sub(1),
        });
    }
}
