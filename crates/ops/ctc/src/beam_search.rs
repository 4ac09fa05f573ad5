//! Beam search over prefixes of labels (TensorFlow: `core/util/ctc/ctc_beam_search.h`; Graves,
//! "Sequence Transduction with Recurrent Neural Networks", 2012).

use crate::top_n::{Ranked, TopN};
use ferroflow_base::{Result, invalid_argument};
use ferroflow_functors::field::Real;
use std::collections::HashMap;

/// A floating-point number as a logarithm of a probability.
pub(crate) trait Logarithm: Real {
    /// Rounds to single precision.
    fn to_f32(self) -> f32;
    /// Converts from single precision.
    fn of_f32(x: f32) -> Self;
    /// Returns the logarithm of the sum of two probabilities. The correction has single precision,
    /// as in TensorFlow.
    #[inline]
    fn log_sum(self, other: Self) -> Self {
        if self == Self::LOWEST {
            return other;
        }
        if other == Self::LOWEST {
            return self;
        }
        let (high, low) = if self > other {
            (self, other)
        } else {
            (other, self)
        };
        high.add(Self::of_f32(low.sub(high).to_f32().exp().ln_1p()))
    }
}

impl Logarithm for f32 {
    fn to_f32(self) -> f32 {
        self
    }
    fn of_f32(x: f32) -> f32 {
        x
    }
}

impl Logarithm for f64 {
    fn to_f32(self) -> f32 {
        self as f32
    }
    fn of_f32(x: f32) -> f64 {
        x.into()
    }
}

/// Probabilities of a prefix: of all alignments, of those that end in a blank, in a label.
#[derive(Clone, Copy)]
struct Score<T> {
    total: T,
    blank: T,
    label: T,
}

impl<T: Logarithm> Score<T> {
    const NONE: Self = Score {
        total: T::LOWEST,
        blank: T::LOWEST,
        label: T::LOWEST,
    };
}

/// A prefix: its last label, and the entry of the labels before it.
struct Entry<T> {
    parent: Option<u32>,
    label: i32,
    old: Score<T>,
    new: Score<T>,
}

/// The best prefixes so far. The last class is the blank.
pub(crate) struct Beam<T> {
    classes: usize,
    width: usize,
    entries: Vec<Entry<T>>,
    children: HashMap<(u32, i32), u32>,
    leaves: TopN<T>,
}

impl<T: Logarithm> Beam<T> {
    /// Creates a beam that holds the empty prefix.
    pub(crate) fn new(classes: usize, width: usize) -> Self {
        let root = Entry {
            parent: None,
            label: -1,
            old: Score::NONE,
            new: Score {
                total: T::ZERO,
                blank: T::ZERO,
                label: T::LOWEST,
            },
        };
        let mut beam = Beam {
            classes,
            width,
            entries: vec![root],
            children: HashMap::new(),
            leaves: TopN::new(width),
        };
        beam.push(0);
        beam
    }

    fn entry(&self, i: u32) -> Option<&Entry<T>> {
        self.entries.get(i as usize)
    }

    /// Returns whether a prefix of this probability would be among the best.
    fn is_candidate(&mut self, total: T) -> bool {
        total > T::LOWEST
            && (self.leaves.len() < self.width
                || self
                    .leaves
                    .bottom()
                    .is_some_and(|worst| total > worst.total))
    }

    fn push(&mut self, entry: u32) {
        let Some(total) = self.entry(entry).map(|e| e.new.total) else {
            return;
        };
        self.leaves.push(Ranked { total, entry });
    }

    /// Extends the prefixes by the logits of one step.
    pub(crate) fn step(&mut self, logits: &[T]) {
        let most = logits.iter().fold(T::LOWEST, |m, &x| m.larger(x));
        let sum = logits
            .iter()
            .fold(T::ZERO, |sum, x| sum.add(x.sub(most).exp()));
        let offset = most.add(sum.ln());
        let logit = |label: i32| {
            let found = usize::try_from(label).ok().and_then(|l| logits.get(l));
            found.copied().unwrap_or(T::ZERO)
        };
        let blank = logit(self.classes as i32 - 1);
        // The best first.
        let branches = self.leaves.extract();
        let branches: Vec<u32> = branches.iter().map(|leaf| leaf.entry).collect();
        for &b in &branches {
            if let Some(entry) = self.entries.get_mut(b as usize) {
                entry.old = entry.new;
            }
        }
        for &b in &branches {
            self.renew(b, blank.sub(offset), |label| logit(label).sub(offset));
            self.push(b);
        }
        let n_labels = self.classes.saturating_sub(1);
        for &b in &branches {
            let Some((old, own)) = self.entry(b).map(|e| (e.old, e.label)) else {
                continue;
            };
            if !self.is_candidate(old.total) {
                continue;
            }
            for (label, &x) in logits.iter().enumerate().take(n_labels) {
                let label = label as i32;
                let from = if label == own { old.blank } else { old.total };
                self.extend(b, label, x.sub(offset).add(from));
            }
        }
    }

    /// Computes the probabilities of a prefix of the beam after one more step.
    fn renew(&mut self, b: u32, blank: T, logit: impl Fn(i32) -> T) {
        let Some(entry) = self.entry(b) else {
            return;
        };
        let mut new = entry.new;
        if let Some(parent) = entry.parent.and_then(|p| self.entry(p)) {
            if parent.new.total != T::LOWEST {
                let is_repeated = entry.label == parent.label;
                let from = if is_repeated {
                    parent.old.blank
                } else {
                    parent.old.total
                };
                new.label = new.label.log_sum(from);
            }
            new.label = new.label.add(logit(entry.label));
        }
        new.blank = entry.old.total.add(blank);
        new.total = new.blank.log_sum(new.label);
        if let Some(entry) = self.entries.get_mut(b as usize) {
            entry.new = new;
        }
    }

    /// Adds the prefix `b` with one more label to the beam, if it is not in it and good enough.
    fn extend(&mut self, b: u32, label: i32, total: T) {
        let known = self.children.get(&(b, label)).copied();
        if known
            .and_then(|c| self.entry(c))
            .is_some_and(|c| c.new.total != T::LOWEST)
        {
            return;
        }
        if !self.is_candidate(total) {
            if let Some(child) = known.and_then(|c| self.entries.get_mut(c as usize)) {
                (child.old, child.new) = (Score::NONE, Score::NONE);
            }
            return;
        }
        if self.leaves.len() == self.width
            && let Some(leaf) = self.leaves.bottom()
            && let Some(worst) = self.entries.get_mut(leaf.entry as usize)
        {
            leaf.total = T::LOWEST;
            worst.new = Score::NONE;
        }
        let new = Score {
            total,
            blank: T::LOWEST,
            label: total,
        };
        let child = match known {
            Some(child) => child,
            None => {
                let child = self.entries.len() as u32;
                self.entries.push(Entry {
                    parent: Some(b),
                    label,
                    old: Score::NONE,
                    new,
                });
                self.children.insert((b, label), child);
                child
            }
        };
        if let Some(entry) = self.entries.get_mut(child as usize) {
            entry.new = new;
        }
        self.push(child);
    }

    /// Returns the labels and probabilities of the `n` best prefixes.
    ///
    /// # Errors
    /// INVALID_ARGUMENT if the beam has fewer.
    pub(crate) fn top(self, n: usize, merge: bool) -> Result<Vec<(Vec<i64>, T)>> {
        if n > self.width {
            return Err(invalid_argument!(
                "requested more paths than the beam width."
            ));
        }
        if n > self.leaves.len() {
            return Err(invalid_argument!(
                "Less leaves in the beam search than requested."
            ));
        }
        let mut best = TopN::new(n);
        for &leaf in self.leaves.unsorted() {
            best.push(leaf);
        }
        let best = best.extract();
        let entries = &self.entries;
        let labels = |mut at: u32| {
            let (mut labels, mut previous) = (Vec::new(), -1);
            while let Some(entry) = entries.get(at as usize)
                && let Some(parent) = entry.parent
            {
                if !merge || entry.label != previous {
                    labels.push(i64::from(entry.label));
                }
                previous = entry.label;
                at = parent;
            }
            labels.reverse();
            labels
        };
        Ok(best
            .iter()
            .map(|leaf| (labels(leaf.entry), leaf.total))
            .collect())
    }
}
