//! [`Reclaim`]: memory of a device that its holders can do without.

use super::StreamMemory;
use crate::allocator::Allocator;
use crate::capture::is_capturing;
use crate::{Buffer, Stream};
use ferroflow_base::{Code, Result};
use std::sync::{Arc, PoisonError, Weak};

/// Holds memory of a device that it can do without, such as that of captured steps.
pub trait Reclaim: Send + Sync {
    /// Frees the memory.
    fn reclaim(&self);
}

impl StreamMemory {
    /// Lets allocations that fail free what `holder` has, as long as it lives.
    pub fn add_reclaimable(&self, holder: Weak<dyn Reclaim>) {
        let mut all = self
            .reclaimable
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        all.retain(|held| held.strong_count() > 0);
        all.push(holder);
    }

    /// Allocates memory; if there is too little, what can be reclaimed is, and it is tried once more.
    pub(super) fn buffer(
        &self,
        allocator: &Allocator,
        stream: &Stream,
        len: usize,
        holder: &str,
    ) -> Result<Buffer> {
        let made = Buffer::new(allocator, stream, len, holder);
        let is_short = matches!(&made, Err(e) if e.code() == Code::ResourceExhausted);
        // A capture in progress has memory of its own, and may fail.
        if !is_short || is_capturing() {
            return made;
        }
        let all = self
            .reclaimable
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let holders: Vec<Arc<dyn Reclaim>> = all.iter().filter_map(Weak::upgrade).collect();
        drop(all);
        if holders.is_empty() {
            return made;
        }
        holders.iter().for_each(|holder| holder.reclaim());
        Buffer::new(allocator, stream, len, holder)
    }
}
