//! The iteration over two operands of a broadcasting op.

use crate::spread::Spread;
use ferroflow_sync::{Parallelism, par_chunks_mut};
use smallvec::SmallVec;

/// Runs shorter than this are expanded first.
const SHORT_RUN: usize = 32;

/// Rows shorter than this are repeated into a longer one first.
const SHORT: usize = 64;

/// A run of dimensions with the same broadcasting: its length and the operands' strides.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Dim {
    n: usize,
    a: usize,
    b: usize,
}

/// The iteration over two operands for an output: collapsed dimensions, outermost first. The
/// innermost has strides of 0 and 1 only.
#[derive(Debug)]
pub struct BroadcastPlan(SmallVec<[Dim; 4]>);

impl BroadcastPlan {
    /// Returns the plan of operands of shapes `a` and `b` broadcast to `out`.
    pub fn broadcast(out: &[usize], a: &[usize], b: &[usize]) -> BroadcastPlan {
        let rank = out.len();
        let at = |s: &[usize], i: usize| (i + s.len()).checked_sub(rank).map_or(1, |j| s[j]);
        BroadcastPlan::new((0..rank).map(|i| (out[i], at(a, i) == out[i], at(b, i) == out[i])))
    }

    /// Returns the plan of dimensions, outermost first: length, and whether each operand has it.
    pub fn new(dims: impl DoubleEndedIterator<Item = (usize, bool, bool)>) -> BroadcastPlan {
        let mut plan: SmallVec<[Dim; 4]> = SmallVec::new();
        let (mut a_len, mut b_len) = (1usize, 1usize);
        for (n, in_a, in_b) in dims.rev().filter(|d| d.0 != 1) {
            match plan.last_mut() {
                Some(last) if (last.a > 0) == in_a && (last.b > 0) == in_b => {
                    last.n = last.n.wrapping_mul(n)
                }
                _ => plan.push(Dim {
                    n,
                    a: if in_a { a_len } else { 0 },
                    b: if in_b { b_len } else { 0 },
                }),
            }
            a_len = a_len.wrapping_mul(if in_a { n } else { 1 });
            b_len = b_len.wrapping_mul(if in_b { n } else { 1 });
        }
        if plan.is_empty() {
            plan.push(Dim { n: 1, a: 1, b: 1 });
        }
        plan.reverse();
        BroadcastPlan(plan)
    }

    /// Calls `f(i, n, a, b)` for the inner runs of output elements `start..end`: the run's first
    /// element (counted from `start`), its length, and its position in each operand.
    fn runs(&self, start: usize, end: usize, mut f: impl FnMut(usize, usize, usize, usize)) {
        let (inner, outer) = match self.0.split_last() {
            Some((inner, outer)) if inner.n > 0 => (*inner, outer),
            _ => return,
        };
        let mut index: SmallVec<[usize; 4]> = SmallVec::from_elem(0, outer.len());
        let (mut a, mut b, mut row) = (0, 0, start / inner.n);
        for (i, d) in outer.iter().enumerate().rev() {
            index[i] = row % d.n;
            row /= d.n;
            a += index[i] * d.a;
            b += index[i] * d.b;
        }
        let (mut at, mut column) = (start, start % inner.n);
        while at < end {
            let n = (inner.n - column).min(end - at);
            f(at - start, n, a + column * inner.a, b + column * inner.b);
            at += n;
            column = 0;
            for (i, d) in outer.iter().enumerate().rev() {
                index[i] += 1;
                a += d.a;
                b += d.b;
                if index[i] < d.n {
                    break;
                }
                a -= d.n * d.a;
                b -= d.n * d.b;
                index[i] = 0;
            }
        }
    }

    /// Returns the strides of the innermost dimension: 1, or 0 for an operand that repeats one
    /// element.
    pub fn inner_strides(&self) -> (usize, usize) {
        self.0.last().map_or((1, 1), |d| (d.a, d.b))
    }

    /// Calls `f(i, a, b)` for each of the `n` output elements and its positions in the operands.
    pub fn elements(&self, n: usize, mut f: impl FnMut(usize, usize, usize)) {
        let inner = self.0[self.0.len() - 1];
        self.runs(0, n, |i, len, a, b| {
            for k in 0..len {
                f(i + k, a + k * inner.a, b + k * inner.b);
            }
        });
    }

    /// Returns whether inner runs are so short that operands should be expanded first.
    pub fn has_short_runs(&self) -> bool {
        self.0.len() > 1 && self.0[self.0.len() - 1].n < SHORT_RUN
    }

    /// Returns both operands, to be expanded.
    pub fn spreads(&self) -> [Spread; 2] {
        let dims = || self.0.iter().rev();
        [
            Spread::new(dims().map(|d| (d.n, d.a))),
            Spread::new(dims().map(|d| (d.n, d.b))),
        ]
    }

    /// Returns the length of the short row of `b` that is repeated over all of `a`, if this is such
    /// a plan.
    pub fn short_period(&self) -> Option<usize> {
        match self.0[..] {
            [
                Dim { b: 0, a: 1.., .. },
                Dim {
                    n: n @ 2..SHORT,
                    a: 1,
                    b: 1,
                },
            ] => Some(n),
            _ => None,
        }
    }

    /// Fills `out` block by block, `f(run, a, b)` for every run.
    pub fn fill<R: Send>(
        &self,
        par: &dyn Parallelism,
        block: usize,
        out: &mut [R],
        tile: usize,
        f: &(dyn Fn(&mut [R], usize, usize) + Sync),
    ) {
        par_chunks_mut(par, out, block, 1, &|i, out| {
            let (start, end) = (i * block, i * block + out.len());
            if tile == 0 {
                return self.runs(start, end, |i, n, a, b| f(&mut out[i..i + n], a, b));
            }
            let period = self.short_period().unwrap_or(1);
            let mut at = start;
            while at < end {
                let phase = at % period;
                let n = (tile - phase).min(end - at);
                f(&mut out[at - start..at - start + n], at, phase);
                at += n;
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ferroflow_sync::Inline;

    fn check(out: &[usize], a: &[usize], b: &[usize]) {
        let plan = BroadcastPlan::broadcast(out, a, b);
        let n: usize = out.iter().product();
        let position = |mut i: usize, dims: &[usize]| {
            let (mut at, mut stride) = (0, 1);
            for (k, &d) in out.iter().enumerate().rev() {
                let c = i % d;
                i /= d;
                if let Some(j) = (k + dims.len()).checked_sub(out.len()) {
                    at += if dims[j] == 1 { 0 } else { c * stride };
                    stride *= dims[j];
                }
            }
            at
        };
        let expected: Vec<_> = (0..n).map(|i| (position(i, a), position(i, b))).collect();
        let mut got = vec![(0, 0); n];
        plan.elements(n, |i, a, b| got[i] = (a, b));
        assert_eq!(got, expected, "{out:?} {a:?} {b:?}");
        let inner = plan.0[plan.0.len() - 1];
        got.fill((0, 0));
        let tile = plan.short_period().map_or(0, |p| 3 * p);
        plan.fill(&Inline, 7, &mut got, tile, &|run, a, b| {
            for (k, x) in run.iter_mut().enumerate() {
                let b = b + k * inner.b;
                *x = (a + k * inner.a, if tile > 0 { b % inner.n } else { b });
            }
        });
        // A block of 7 elements starts a new count, so `par_chunks_mut` covers every phase.
        assert_eq!(got, expected, "blocks of {out:?} {a:?} {b:?}");
    }

    #[test]
    fn plans_walk_every_element_in_order() {
        check(&[4, 5], &[4, 5], &[5]);
        check(&[4, 5], &[4, 1], &[5]);
        check(&[2, 3, 4], &[3, 1], &[2, 1, 4]);
        check(&[2, 1, 3, 4, 5], &[2, 1, 1, 4, 1], &[3, 1, 5]);
        check(&[6, 2, 3], &[6, 2, 3], &[2, 3]);
        check(&[3], &[1], &[3]);
        check(&[1, 1], &[1], &[1, 1]);
    }
}
