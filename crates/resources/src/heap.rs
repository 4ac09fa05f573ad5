//! A binary heap with the order of C++'s `std::push_heap` and `std::pop_heap`, which decides
//! between equal keys: TensorFlow's priority queues return them in this order.

use std::collections::VecDeque;

/// Adds an element; the smallest key comes first.
pub(crate) fn push<T>(heap: &mut VecDeque<T>, element: T, less: impl Fn(&T, &T) -> bool) {
    heap.push_back(element);
    let last = heap.len() - 1;
    rise(heap, last, 0, &less);
}

/// Moves element `at` up, as far as `top`, while its key is smaller than its parent's.
fn rise<T>(heap: &mut VecDeque<T>, mut at: usize, top: usize, less: &impl Fn(&T, &T) -> bool) {
    while at > top {
        let parent = (at - 1) / 2;
        if !less(&heap[at], &heap[parent]) {
            return;
        }
        heap.swap(at, parent);
        at = parent;
    }
}

/// Removes the first element, if any.
pub(crate) fn pop<T>(heap: &mut VecDeque<T>, less: impl Fn(&T, &T) -> bool) -> Option<T> {
    // The last element takes the first place, sinks to a leaf along the smaller children, and
    // rises again.
    let last = heap.len().checked_sub(1)?;
    heap.swap(0, last);
    let first = heap.pop_back();
    let n = heap.len();
    let mut at = 0;
    while 2 * at + 2 < n {
        let [left, right] = [2 * at + 1, 2 * at + 2];
        let next = match less(&heap[left], &heap[right]) {
            true => left,
            false => right,
        };
        heap.swap(at, next);
        at = next;
    }
    if 2 * at + 1 < n {
        heap.swap(at, 2 * at + 1);
        at = 2 * at + 1;
    }
    if n > 0 {
        rise(heap, at, 0, &less);
    }
    first
}

#[cfg(test)]
mod tests {
    use super::{pop, push};
    use std::collections::VecDeque;

    #[test]
    fn the_smallest_comes_first() {
        let mut heap = VecDeque::new();
        let numbers: Vec<u32> = (0..100).map(|i| i * 37 % 53).collect();
        numbers.iter().for_each(|&n| push(&mut heap, n, u32::lt));
        let mut sorted = numbers;
        sorted.sort_unstable();
        let popped: Vec<u32> = std::iter::from_fn(|| pop(&mut heap, u32::lt)).collect();
        assert_eq!(popped, sorted);
    }
}
