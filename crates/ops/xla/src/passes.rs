//! Reductions of windows along one dimension after another.

use crate::axis::{Covered, Places};
use crate::known::Windows;
use ferroflow_base::Result;
use ferroflow_sync::{Parallelism, par_chunks_mut};
use ferroflow_tensor::{Element, Tensor};

/// Elements that are computed together.
const BLOCK: usize = 4096;

/// How the windows along a dimension follow one another.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Order {
    /// Each is an element, in order.
    Same,
    /// Each continues the one before it: all start at one element.
    Forward,
    /// Each continues the one behind it: all end at one element.
    Backward,
    Any,
}

impl Order {
    /// Returns the order of windows that cover these of `n` elements; `None` if one covers none.
    pub(crate) fn of(covered: &[Covered], n: usize) -> Option<Order> {
        if covered.iter().any(|c| c.n == 0) {
            return None;
        }
        let is_same = |(i, c): (usize, &Covered)| c.n == 1 && c.first == i;
        if covered.len() == n && covered.iter().enumerate().all(is_same) {
            return Some(Order::Same);
        }
        let pairs = || covered.windows(2);
        let is_dense = covered.iter().all(|c| c.n == 1 || c.step == 1);
        let end = |c: &Covered| c.first + c.n;
        Some(match is_dense {
            true if pairs().all(|p| p[0].first == p[1].first && p[0].n <= p[1].n) => Order::Forward,
            true if pairs().all(|p| end(&p[0]) == end(&p[1]) && p[0].n >= p[1].n) => {
                Order::Backward
            }
            _ => Order::Any,
        })
    }
}

/// Returns what the windows reduce to; `None` if a window covers nothing.
pub(crate) fn reduced<T: Element>(
    par: &dyn Parallelism,
    x: &[T],
    base: &[usize],
    places: &Places,
    windows: &Windows<T>,
) -> Result<Option<Tensor>> {
    let orders: Option<Vec<Order>> = places
        .covered
        .iter()
        .zip(base)
        .map(|(covered, n)| Order::of(covered, *n))
        .collect();
    let Some(orders) = orders.filter(|o| o.len() == base.len()) else {
        return Ok(None);
    };
    let mut dims = base.to_vec();
    let mut last: Option<Tensor> = None;
    for (axis, &order) in orders.iter().enumerate() {
        if order == Order::Same {
            continue;
        }
        let covered = &places.covered[axis];
        let inner = dims[axis + 1..].iter().product();
        let n = dims[axis];
        dims[axis] = covered.len();
        let mut out = Tensor::for_overwrite(T::DTYPE, dims[..].into())?;
        let from = match &last {
            Some(t) => t.slice::<T>()?,
            None => x,
        };
        let pass = Pass {
            covered,
            order,
            n,
            inner,
            windows,
        };
        pass.run(par, from, out.slice_mut()?);
        last = Some(out);
    }
    match last {
        Some(t) => Ok(Some(t)),
        None => Tensor::from_slice(&dims[..], x).map(Some),
    }
}

/// A reduction along one dimension of `n` rows of `inner` elements.
struct Pass<'a, T> {
    covered: &'a [Covered],
    order: Order,
    n: usize,
    inner: usize,
    windows: &'a Windows<T>,
}

impl<T: Element> Pass<'_, T> {
    fn run(&self, par: &dyn Parallelism, x: &[T], out: &mut [T]) {
        let (places, inner) = (self.covered.len(), self.inner);
        let (from, to) = (self.n * inner, places * inner);
        if from == 0 || to == 0 {
            return;
        }
        if inner > 1 && self.order == Order::Any {
            // Rows do not depend on each other.
            let rows = (BLOCK / inner).max(1);
            par_chunks_mut(par, out, rows * inner, 1, &|i, out| {
                for (k, out) in out.chunks_mut(inner).enumerate() {
                    let place = i * rows + k;
                    let x = &x[place / places * from..][..from];
                    self.row(x, self.covered[place % places], out);
                }
            });
            return;
        }
        let lines = (BLOCK / to).max(1);
        par_chunks_mut(par, out, lines * to, 1, &|i, out| {
            for (k, out) in out.chunks_mut(to).enumerate() {
                let x = &x[(i * lines + k) * from..][..from];
                match (self.order, inner) {
                    (Order::Forward, 1) => (self.windows.scan)(x, self.covered, out),
                    (Order::Backward, 1) => (self.windows.scan_back)(x, self.covered, out),
                    (_, 1) => (self.windows.line)(x, self.covered, out),
                    (Order::Backward, _) => self.scan_rows_back(x, out),
                    _ => self.scan_rows(x, out),
                }
            }
        });
    }

    /// Reduces the rows that a window covers.
    fn row(&self, x: &[T], Covered { first, n, step }: Covered, out: &mut [T]) {
        let inner = self.inner;
        out.copy_from_slice(&x[first * inner..][..inner]);
        for i in 1..n {
            (self.windows.row)(out, &x[(first + i * step) * inner..][..inner]);
        }
    }

    fn scan_rows(&self, x: &[T], out: &mut [T]) {
        let inner = self.inner;
        self.row(x, self.covered[0], &mut out[..inner]);
        for (i, pair) in self.covered.windows(2).enumerate() {
            let (before, out) = out[i * inner..].split_at_mut(inner);
            let out = &mut out[..inner];
            out.copy_from_slice(before);
            for at in pair[0].first + pair[0].n..pair[1].first + pair[1].n {
                (self.windows.row)(out, &x[at * inner..][..inner]);
            }
        }
    }

    fn scan_rows_back(&self, x: &[T], out: &mut [T]) {
        let inner = self.inner;
        let end = self.covered.len() - 1;
        self.row(x, self.covered[end], &mut out[end * inner..][..inner]);
        for (i, pair) in self.covered.windows(2).enumerate().rev() {
            let (out, behind) = out[i * inner..].split_at_mut(inner);
            out.copy_from_slice(&behind[..inner]);
            for at in (pair[0].first..pair[1].first).rev() {
                (self.windows.row)(out, &x[at * inner..][..inner]);
            }
        }
    }
}
