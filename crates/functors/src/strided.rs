//! Copies of strided views to dense tensors. Transposing, slicing, reversing, broadcasting and
//! tiling are all one copy with different strides.

use ferroflow_base::{Result, internal};
use ferroflow_opdef::KernelCtx;
use ferroflow_sync::{Parallelism, par_chunks_mut};
use ferroflow_tensor::{Item, Shape, Tensor, dispatch_items};
use smallvec::SmallVec;

/// Least elements per thread when copying.
pub const MIN_BLOCK: usize = 16 * 1024;

/// Calls `f(i, row)` for every `row_len`-long row of `out`, in parallel.
#[inline]
pub fn par_rows<T: Send>(
    par: &dyn Parallelism,
    out: &mut [T],
    row_len: usize,
    f: &(impl Fn(usize, &mut [T]) + Sync),
) {
    let row_len = row_len.max(1);
    par_chunks_mut(par, out, row_len, (MIN_BLOCK / row_len).max(1), f);
}

/// Copies `src` to `out` of the same length, in parallel if it is long.
pub fn par_copy<T: Item>(par: &dyn Parallelism, src: &[T], out: &mut [T]) {
    if out.len() <= 4 * MIN_BLOCK {
        return out.clone_from_slice(src);
    }
    par_chunks_mut(par, out, 4 * MIN_BLOCK, 1, &|i, chunk| {
        let start = i * 4 * MIN_BLOCK;
        chunk.clone_from_slice(&src[start..start + chunk.len()]);
    });
}

/// Sets every element of `out`, in parallel if it is long.
fn par_fill<T: Item>(par: &dyn Parallelism, out: &mut [T], value: &T) {
    if out.len() <= 4 * MIN_BLOCK {
        return out.fill(value.clone());
    }
    par_chunks_mut(par, out, 4 * MIN_BLOCK, 1, &|_, chunk| {
        chunk.fill(value.clone())
    });
}

/// Returns a tensor of shape `shape` with the element of the scalar `value` everywhere.
///
/// # Errors
/// RESOURCE_EXHAUSTED if it does not fit into memory.
pub fn filled(ctx: &KernelCtx, value: &Tensor, shape: Shape) -> Result<Tensor> {
    let mut out = ctx.alloc(value.dtype(), shape)?;
    dispatch_items!(value.dtype(), T => {
        if let Some(value) = value.items::<T>()?.first() {
            par_fill(ctx.par(), out.items_mut::<T>()?, value);
        }
    });
    Ok(out)
}

/// Computes the coordinates of row-major position `i` in `dims`.
pub fn unravel(mut i: usize, dims: &[usize], coords: &mut [usize]) {
    for (c, &d) in coords.iter_mut().zip(dims).rev() {
        *c = i % d.max(1);
        i /= d.max(1);
    }
}

/// A view of a slice: element `(i, j, …)` is at `base + i * strides[0] + j * strides[1] + …`.
///
/// Dimensions of size 1 are dropped, and neighbors with matching strides are merged.
#[derive(Clone, Debug)]
pub struct Strided {
    base: isize,
    dims: SmallVec<[usize; 6]>,
    strides: SmallVec<[isize; 6]>,
}

impl Strided {
    /// Creates a view with these `(size, stride)` pairs, outermost first.
    pub fn new(base: isize, dims: impl IntoIterator<Item = (usize, isize)>) -> Self {
        let mut view = Strided {
            base,
            dims: SmallVec::new(),
            strides: SmallVec::new(),
        };
        for (d, s) in dims {
            if d == 1 {
                continue;
            }
            match (view.dims.last_mut(), view.strides.last_mut()) {
                (Some(last), Some(stride)) if Some(*stride) == s.checked_mul(d as isize) => {
                    *last *= d;
                    *stride = s;
                }
                _ => {
                    view.dims.push(d);
                    view.strides.push(s);
                }
            }
        }
        view
    }

    /// Returns the number of elements.
    pub fn len(&self) -> usize {
        self.dims.iter().product()
    }

    /// Returns whether there are no elements.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the start of the view if its elements are contiguous.
    pub fn as_range_start(&self) -> Option<usize> {
        match (&self.strides[..], &self.dims[..]) {
            ([], _) | ([1], _) => usize::try_from(self.base).ok(),
            _ => None,
        }
    }

    /// Returns the collapsed dimensions, `(size, stride)`, outermost first.
    pub fn collapsed(&self) -> impl Iterator<Item = (usize, isize)> {
        self.dims.iter().copied().zip(self.strides.iter().copied())
    }

    /// Checks that every element is inside a slice of `len` elements.
    fn check(&self, len: usize) -> Result<()> {
        let (mut lo, mut hi) = (self.base as i128, self.base as i128);
        for (d, s) in self.collapsed() {
            let reach = (d as i128 - 1) * s as i128;
            *if reach < 0 { &mut lo } else { &mut hi } += reach;
        }
        if lo < 0 || hi >= len as i128 {
            return Err(internal!(
                "a view over {lo}..={hi} of a tensor with {len} elements"
            ));
        }
        Ok(())
    }

    /// Copies the elements of the view of `from` to `to`, row-major: [`Strided::copy_to`] for tensors of any
    /// type, so that an op needs no code of its own for each type.
    ///
    /// # Errors
    /// INTERNAL if an element is outside `from`, or the tensors do not fit.
    pub fn gather(&self, par: &dyn Parallelism, from: &Tensor, to: &mut Tensor) -> Result<()> {
        dispatch_items!(from.dtype(), T => self.copy_to(par, from.items::<T>()?, to.items_mut::<T>()?))
    }

    /// Writes the dense `from`, row-major, to the elements of the view of `to`: [`Strided::copy_from`] for
    /// tensors of any type.
    ///
    /// # Errors
    /// INTERNAL if an element is outside `to`, or the tensors do not fit.
    pub fn scatter(&self, from: &Tensor, to: &mut Tensor) -> Result<()> {
        dispatch_items!(from.dtype(), T => self.copy_from(from.items::<T>()?, to.items_mut::<T>()?))
    }

    /// Copies the elements of the view of `src` to `out`, row-major.
    ///
    /// # Errors
    /// INTERNAL if an element is outside `src`, or `out` has another length.
    pub fn copy_to<T: Item>(&self, par: &dyn Parallelism, src: &[T], out: &mut [T]) -> Result<()> {
        if out.len() != self.len() {
            return Err(internal!(
                "{} elements for a view of {}",
                out.len(),
                self.len()
            ));
        }
        if out.is_empty() {
            return Ok(());
        }
        self.check(src.len())?;
        let Some((&n, outer)) = self.dims.split_last() else {
            out[0] = src[self.base as usize].clone();
            return Ok(());
        };
        let stride = self.strides[outer.len()];
        if stride != 1 && stride != 0 && n >= 4 {
            let unit = self.strides.iter().position(|&s| s == 1);
            if let Some(k) = unit.filter(|&k| self.dims[k] >= 4) {
                self.copy_tiled(par, src, out, k);
                return Ok(());
            }
        }
        if outer.is_empty() {
            par_chunks_mut(par, out, 2 * MIN_BLOCK, 1, &|i, chunk| {
                copy_run(
                    src,
                    self.base + (i * 2 * MIN_BLOCK) as isize * stride,
                    stride,
                    chunk,
                );
            });
            return Ok(());
        }
        if stride == 1 && n <= MAX_PIXEL {
            return self.copy_pixels(par, src, out, n);
        }
        let rows = (MIN_BLOCK / n).max(1);
        par_chunks_mut(par, out, rows * n, 1, &|i, chunk| {
            let mut walk = Walk::new(self.base, outer, &self.strides[..outer.len()], i * rows);
            for row in chunk.chunks_mut(n) {
                copy_run(src, walk.offset, stride, row);
                walk.step();
            }
        });
        Ok(())
    }

    /// Copies a view whose last dimension has `n` contiguous elements, few: the two last ones are one loop.
    fn copy_pixels<T: Item>(
        &self,
        par: &dyn Parallelism,
        src: &[T],
        out: &mut [T],
        n: usize,
    ) -> Result<()> {
        let (dims, strides) = (&self.dims, &self.strides);
        let outer = dims.len() - 2;
        let (m, stride) = (dims[outer], strides[outer]);
        let rows = (MIN_BLOCK / (n * m)).max(1);
        par_chunks_mut(par, out, rows * n * m, 1, &|i, chunk| {
            let mut walk = Walk::new(self.base, &dims[..outer], &strides[..outer], i * rows);
            for row in chunk.chunks_mut(n * m) {
                match n {
                    2 => copy_pixel_row::<T, 2>(src, walk.offset, stride, row),
                    3 => copy_pixel_row::<T, 3>(src, walk.offset, stride, row),
                    4 => copy_pixel_row::<T, 4>(src, walk.offset, stride, row),
                    _ => {
                        let mut from = walk.offset;
                        for pixel in row.chunks_exact_mut(n) {
                            copy_run(src, from, 1, pixel);
                            from += stride;
                        }
                    }
                }
                walk.step();
            }
        });
        Ok(())
    }

    /// Copies a view whose source is contiguous along dimension `k` while its output is contiguous
    /// along the last one: by tiles, so that both sides stay in the cache.
    fn copy_tiled<T: Item>(&self, par: &dyn Parallelism, src: &[T], out: &mut [T], k: usize) {
        const TILE: usize = 16;
        let last = self.dims.len() - 1;
        let (n, stride) = (self.dims[last], self.strides[last]);
        let block: usize = self.dims[k + 1..].iter().product();
        let mid = &self.dims[k + 1..last];
        let n_mid: usize = mid.iter().product();
        let lead = TILE * (MIN_BLOCK / (TILE * block)).max(1);
        par_chunks_mut(par, out, lead * block, 1, &|i, chunk| {
            let end = i * lead + chunk.len() / block;
            let mut at = i * lead;
            let mut rest = chunk;
            while at < end {
                let in_k = at % self.dims[k];
                let rows = TILE.min(self.dims[k] - in_k).min(end - at);
                let (tile, tail) = std::mem::take(&mut rest).split_at_mut(rows * block);
                rest = tail;
                let start = Walk::new(self.base, &self.dims[..=k], &self.strides[..=k], at).offset;
                let mut walk = Walk::new(start, mid, &self.strides[k + 1..last], 0);
                for m in 0..n_mid {
                    for j in (0..n).step_by(TILE) {
                        let width = TILE.min(n - j);
                        let from = walk.offset + j as isize * stride;
                        for r in 0..rows {
                            let to = r * block + m * n + j;
                            copy_run(src, from + r as isize, stride, &mut tile[to..to + width]);
                        }
                    }
                    walk.step();
                }
                at += rows;
            }
        });
    }

    /// Writes the dense `src`, row-major, to the elements of the view of `out`.
    ///
    /// # Errors
    /// INTERNAL if an element is outside `out`, or `src` has another length.
    pub fn copy_from<T: Item>(&self, src: &[T], out: &mut [T]) -> Result<()> {
        if src.len() != self.len() {
            return Err(internal!(
                "{} elements for a view of {}",
                src.len(),
                self.len()
            ));
        }
        if src.is_empty() {
            return Ok(());
        }
        self.check(out.len())?;
        let Some((&n, outer)) = self.dims.split_last() else {
            out[self.base as usize] = src[0].clone();
            return Ok(());
        };
        let stride = self.strides[outer.len()];
        let mut walk = Walk::new(self.base, outer, &self.strides[..outer.len()], 0);
        for row in src.chunks(n) {
            if stride == 1 {
                out[walk.offset as usize..][..n].clone_from_slice(row);
            } else {
                for (i, v) in row.iter().enumerate() {
                    out[(walk.offset + i as isize * stride) as usize] = v.clone();
                }
            }
            walk.step();
        }
        Ok(())
    }
}

/// The most elements of a pixel, whose neighbors are copied in one loop.
const MAX_PIXEL: usize = 8;

fn copy_pixel_row<T: Item, const N: usize>(
    src: &[T],
    mut from: isize,
    stride: isize,
    row: &mut [T],
) {
    for pixel in row.as_chunks_mut::<N>().0 {
        if let Some(found) = src[from as usize..].first_chunk::<N>() {
            pixel.clone_from(found);
        }
        from += stride;
    }
}

#[inline]
fn copy_run<T: Item>(src: &[T], from: isize, stride: isize, out: &mut [T]) {
    match stride {
        0 => out.fill(src[from as usize].clone()),
        1 => {
            let src = &src[from as usize..][..out.len()];
            if out.len() <= 8 {
                for (o, v) in out.iter_mut().zip(src) {
                    *o = v.clone();
                }
            } else {
                out.clone_from_slice(src);
            }
        }
        -1 => {
            let end = from as usize + 1;
            let back = src[end - out.len()..end].iter().rev();
            for (o, v) in out.iter_mut().zip(back) {
                *o = v.clone();
            }
        }
        s if s > 1 => {
            for (o, v) in out
                .iter_mut()
                .zip(src[from as usize..].iter().step_by(s as usize))
            {
                *o = v.clone();
            }
        }
        s => {
            let back = src[..=from as usize].iter().rev().step_by(s.unsigned_abs());
            for (o, v) in out.iter_mut().zip(back) {
                *o = v.clone();
            }
        }
    }
}

/// Iterates over the offsets of a view, row-major.
struct Walk<'a> {
    offset: isize,
    dims: &'a [usize],
    strides: &'a [isize],
    coords: SmallVec<[usize; 6]>,
}

impl<'a> Walk<'a> {
    fn new(base: isize, dims: &'a [usize], strides: &'a [isize], start: usize) -> Self {
        let mut coords = SmallVec::from_elem(0, dims.len());
        unravel(start, dims, &mut coords);
        let offset = coords
            .iter()
            .zip(strides)
            .map(|(&c, &s)| c as isize * s)
            .sum::<isize>();
        Walk {
            offset: base + offset,
            dims,
            strides,
            coords,
        }
    }

    #[inline]
    fn step(&mut self) {
        for i in (0..self.dims.len()).rev() {
            self.coords[i] += 1;
            self.offset += self.strides[i];
            if self.coords[i] < self.dims[i] {
                return;
            }
            self.offset -= self.strides[i] * self.dims[i] as isize;
            self.coords[i] = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ferroflow_sync::Inline;

    fn naive(view: &Strided, src: &[u32]) -> Vec<u32> {
        let mut out = Vec::new();
        let mut walk = Walk::new(view.base, &view.dims, &view.strides, 0);
        for _ in 0..view.len() {
            out.push(src[walk.offset as usize]);
            walk.step();
        }
        out
    }

    #[test]
    fn every_path_agrees_with_the_definition() {
        let src: Vec<u32> = (0..40_000).collect();
        let views = [
            Strided::new(0, [(37, 1), (41, 37)]),
            Strided::new(5, [(3, 1700), (17, 1), (100, 17)]),
            Strided::new(0, [(5, 7), (7, 1), (6, 35), (9, 210)]),
            Strided::new(0, [(200, 200), (100, 2)]),
            Strided::new(39_999, [(40_000, -1)]),
            Strided::new(3, [(4, 0), (5, 1), (3, 0)]),
            Strided::new(0, [(40_000, 1)]),
            Strided::new(7, [(1, 5)]),
            Strided::new(300, [(3, 1000), (90, -3), (3, 1)]),
            Strided::new(4, [(90, 7), (2, 1)]),
            Strided::new(4, [(6, 900), (30, 30), (5, 1)]),
            Strided::new(39_000, [(100, -200), (50, 4), (4, 1)]),
        ];
        for view in &views {
            let mut out = vec![0; view.len()];
            view.copy_to(&Inline, &src, &mut out).unwrap();
            assert_eq!(out, naive(view, &src), "{view:?}");
        }
        assert!(
            Strided::new(1, [(40_000, 1)])
                .copy_to(&Inline, &src, &mut vec![0; 40_000])
                .is_err()
        );
        let mut back = vec![0; 6];
        Strided::new(0, [(3, 1), (2, 3)])
            .copy_from(&[0u32, 1, 2, 3, 4, 5], &mut back)
            .unwrap();
        assert_eq!(back, [0, 2, 4, 1, 3, 5]);
    }

    #[test]
    fn even_neighbors_are_merged() {
        assert_eq!(
            Strided::new(2, [(3, 20), (1, 9), (4, 5), (5, 1)]).as_range_start(),
            Some(2)
        );
        assert_eq!(Strided::new(0, [(3, 20), (4, 1)]).as_range_start(), None);
        assert_eq!(Strided::new(4, [(1, 3)]).as_range_start(), Some(4));
    }
}
