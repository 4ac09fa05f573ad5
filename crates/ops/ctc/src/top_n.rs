//! The greatest numbers of those that were pushed. Among equal ones, which are kept and their order are as in
//! TensorFlow: `core/lib/gtl/top_n.h` over libstdc++'s heaps and its sort.

use ferroflow_functors::heap::{make_heap, pop_heap, replace_root, sort_heap};

/// A number and what it belongs to.
#[derive(Clone, Copy)]
pub(crate) struct Ranked<T> {
    pub(crate) total: T,
    pub(crate) entry: u32,
}

impl<T: PartialOrd> Ranked<T> {
    fn precedes(&self, other: &Self) -> bool {
        self.total > other.total
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Unordered,
    /// The last element is at position 0.
    BottomKnown,
    /// As many elements as there may be, in a heap whose root comes last.
    Heap,
}

/// The first `limit` elements of those that were pushed.
pub(crate) struct TopN<T> {
    elements: Vec<Ranked<T>>,
    limit: usize,
    state: State,
}

/// Ranges up to this length are sorted by insertion.
const SHORT: usize = 16;

impl<T: PartialOrd + Copy> TopN<T> {
    pub(crate) fn new(limit: usize) -> Self {
        TopN {
            elements: Vec::new(),
            limit,
            state: State::Unordered,
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.elements.len()
    }

    /// Returns the elements in the order of their places.
    pub(crate) fn unsorted(&self) -> &[Ranked<T>] {
        &self.elements
    }

    /// Adds an element; drops the last one if there are too many.
    pub(crate) fn push(&mut self, element: Ranked<T>) {
        let elements = &mut self.elements;
        if self.state == State::Heap {
            if elements.first().is_some_and(|e| element.precedes(e)) {
                replace_root(elements, element, Ranked::precedes);
            }
            return;
        }
        elements.push(element);
        let end = elements.len() - 1;
        if end == self.limit {
            make_heap(elements, Ranked::precedes);
            pop_heap(elements, Ranked::precedes);
            elements.pop();
            self.state = State::Heap;
        } else if self.state == State::BottomKnown && !element.precedes(&elements[0]) {
            elements.swap(0, end);
        }
    }

    /// Returns the last element.
    pub(crate) fn bottom(&mut self) -> Option<&mut Ranked<T>> {
        if self.state == State::Unordered {
            let mut last = 0;
            for (i, element) in self.elements.iter().enumerate() {
                if self.elements[last].precedes(element) {
                    last = i;
                }
            }
            if !self.elements.is_empty() {
                self.elements.swap(0, last);
            }
            self.state = State::BottomKnown;
        }
        self.elements.first_mut()
    }

    /// Returns the elements, sorted, and leaves none.
    pub(crate) fn extract(&mut self) -> Vec<Ranked<T>> {
        let mut elements = std::mem::take(&mut self.elements);
        match self.state {
            State::Heap => sort_heap(&mut elements, Ranked::precedes),
            _ => sort(&mut elements),
        }
        self.state = State::Unordered;
        elements
    }
}

/// Sorts as libstdc++'s `std::sort` does.
fn sort<T: PartialOrd + Copy>(elements: &mut [Ranked<T>]) {
    let depth = 2 * elements.len().checked_ilog2().unwrap_or(0);
    sort_long(elements, depth);
    for end in 1..elements.len() {
        let value = elements[end];
        let mut hole = end;
        while hole > 0 && value.precedes(&elements[hole - 1]) {
            elements[hole] = elements[hole - 1];
            hole -= 1;
        }
        elements[hole] = value;
    }
}

/// Moves elements to the ranges of at most [`SHORT`] that they belong to.
fn sort_long<T: PartialOrd + Copy>(mut elements: &mut [Ranked<T>], mut depth: u32) {
    while elements.len() > SHORT {
        if depth == 0 {
            make_heap(elements, Ranked::precedes);
            sort_heap(elements, Ranked::precedes);
            return;
        }
        depth -= 1;
        let cut = partition(elements);
        let (front, back) = elements.split_at_mut(cut);
        sort_long(back, depth);
        elements = front;
    }
}

/// Splits by the median of three elements and returns where the second part starts.
fn partition<T: PartialOrd + Copy>(elements: &mut [Ranked<T>]) -> usize {
    let end = elements.len();
    let [a, b, c] = [1, end / 2, end - 1];
    let precedes = |x: usize, y: usize| elements[x].precedes(&elements[y]);
    let median = match (precedes(a, b), precedes(b, c), precedes(a, c)) {
        (true, true, _) | (false, false, false) => b,
        (true, false, true) | (false, true, false) => c,
        _ => a,
    };
    elements.swap(0, median);
    let pivot = elements[0];
    let (mut first, mut last) = (1, end);
    loop {
        // The pivot's place stops neither loop if numbers are not ordered, so the ends do.
        while first < end && elements[first].precedes(&pivot) {
            first += 1;
        }
        last -= 1;
        while last > 0 && pivot.precedes(&elements[last]) {
            last -= 1;
        }
        if first >= last {
            return first;
        }
        elements.swap(first, last);
        first += 1;
    }
}
