//! Heaps with the order of libstdc++'s, which decides which of equal elements are kept and where they are: TensorFlow's
//! `gtl::TopN` (`core/lib/gtl/top_n.h`) rests on them. The root is the element that no other comes behind.

/// Orders elements as a heap.
#[inline]
pub fn make_heap<T: Copy>(elements: &mut [T], precedes: impl Fn(&T, &T) -> bool + Copy) {
    for parent in (0..elements.len() / 2).rev() {
        let value = elements[parent];
        sift(elements, parent, value, precedes);
    }
}

/// Moves the root to the end, behind the others, which stay a heap.
#[inline]
pub fn pop_heap<T: Copy>(elements: &mut [T], precedes: impl Fn(&T, &T) -> bool + Copy) {
    if let [root, .., last] = elements {
        let value = *last;
        *last = *root;
        let end = elements.len() - 1;
        sift(&mut elements[..end], 0, value, precedes);
    }
}

/// Sorts a heap.
#[inline]
pub fn sort_heap<T: Copy>(elements: &mut [T], precedes: impl Fn(&T, &T) -> bool + Copy) {
    for len in (2..=elements.len()).rev() {
        pop_heap(&mut elements[..len], precedes);
    }
}

/// Replaces the root of a heap.
#[inline]
pub fn replace_root<T: Copy>(
    elements: &mut [T],
    value: T,
    precedes: impl Fn(&T, &T) -> bool + Copy,
) {
    pop_heap(elements, precedes);
    if let Some(end) = elements.len().checked_sub(1) {
        rise(elements, end, 0, value, precedes);
    }
}

/// Moves the hole at `top` down to a leaf, and puts `value` where it belongs above it.
#[inline]
fn sift<T: Copy>(
    elements: &mut [T],
    top: usize,
    value: T,
    precedes: impl Fn(&T, &T) -> bool + Copy,
) {
    let len = elements.len();
    let mut hole = top;
    while 2 * hole + 2 < len {
        let (left, right) = (2 * hole + 1, 2 * hole + 2);
        let is_left = precedes(&elements[right], &elements[left]);
        let child = if is_left { left } else { right };
        elements[hole] = elements[child];
        hole = child;
    }
    if 2 * hole + 2 == len {
        elements[hole] = elements[len - 1];
        hole = len - 1;
    }
    rise(elements, hole, top, value, precedes);
}

/// Puts `value` into the hole or above it, not above `top`.
#[inline]
fn rise<T: Copy>(
    elements: &mut [T],
    mut hole: usize,
    top: usize,
    value: T,
    precedes: impl Fn(&T, &T) -> bool,
) {
    while hole > top && precedes(&elements[(hole - 1) / 2], &value) {
        elements[hole] = elements[(hole - 1) / 2];
        hole = (hole - 1) / 2;
    }
    elements[hole] = value;
}
