//! The order of elements that are not to be sorted: that of TensorFlow's heap, which samplers draw from
//! (TensorFlow: `core/lib/gtl/top_n.h` over the heaps of libstdc++).

use super::rank::Key;

/// Keeps the first `len` keys that are pushed: a heap whose root comes last.
pub(super) struct Heap<'k, K>(pub(super) &'k mut Vec<K>);

impl<K: Key> Heap<'_, K> {
    /// Makes a heap of keys, one more than it will hold, and drops the last of them.
    pub(super) fn build(&mut self) {
        let len = self.0.len();
        for parent in (0..len / 2).rev() {
            self.sift(parent, len, self.0[parent]);
        }
        self.pop();
        self.0.pop();
    }

    /// Replaces the last key by `key` if that comes before it.
    pub(super) fn push(&mut self, key: K) {
        if key >= self.0[0] {
            return;
        }
        self.pop();
        let end = self.0.len() - 1;
        self.rise(end, 0, key);
    }

    /// Moves the root to the end, behind the others.
    fn pop(&mut self) {
        let end = self.0.len() - 1;
        if end > 0 {
            let value = self.0[end];
            self.0[end] = self.0[0];
            self.sift(0, end, value);
        }
    }

    /// Moves the hole at `top` down to a leaf of the first `len` keys, and puts `value` where it belongs above it.
    fn sift(&mut self, top: usize, len: usize, value: K) {
        let keys = &mut self.0[..len];
        let mut hole = top;
        while 2 * hole + 2 < len {
            let (left, right) = (2 * hole + 1, 2 * hole + 2);
            let child = if keys[right] < keys[left] {
                left
            } else {
                right
            };
            keys[hole] = keys[child];
            hole = child;
        }
        if 2 * hole + 2 == len {
            keys[hole] = keys[len - 1];
            hole = len - 1;
        }
        self.rise(hole, top, value);
    }

    /// Puts `value` into the hole or above it, not above `top`.
    fn rise(&mut self, mut hole: usize, top: usize, value: K) {
        while hole > top && self.0[(hole - 1) / 2] < value {
            self.0[hole] = self.0[(hole - 1) / 2];
            hole = (hole - 1) / 2;
        }
        self.0[hole] = value;
    }
}
