//! The order of elements that are not to be sorted: that of TensorFlow's heap, which samplers draw from
//! (TensorFlow: `core/lib/gtl/top_n.h` over the heaps of libstdc++).

use super::rank::Key;
use ferroflow_functors::heap::{make_heap, pop_heap, replace_root};

/// Keeps the first `len` keys that are pushed: a heap whose root comes last.
pub(super) struct Heap<'k, K>(pub(super) &'k mut Vec<K>);

impl<K: Key> Heap<'_, K> {
    /// Makes a heap of keys, one more than it will hold, and drops the last of them.
    #[inline]
    pub(super) fn build(&mut self) {
        make_heap(self.0, K::lt);
        pop_heap(self.0, K::lt);
        self.0.pop();
    }

    /// Replaces the last key by `key` if that comes before it.
    #[inline]
    pub(super) fn push(&mut self, key: K) {
        if key < self.0[0] {
            replace_root(self.0, key, K::lt);
        }
    }
}
