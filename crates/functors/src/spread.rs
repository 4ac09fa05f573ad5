//! An operand of a broadcasting op, expanded to a part of the output.

use smallvec::SmallVec;

/// The dimensions of an output as one operand sees them: neighbors along which it is contiguous, or repeats, are one.
#[derive(Clone, Debug, PartialEq)]
pub struct Spread {
    /// Extents, and strides of the operand, innermost first; at least one. The innermost stride is 0 or 1.
    dims: SmallVec<[(usize, usize); 4]>,
}

impl Spread {
    /// Returns the operand with these extents of the output and its own strides, innermost first, 0 where it repeats.
    pub fn new(dims: impl Iterator<Item = (usize, usize)>) -> Spread {
        let mut merged: SmallVec<[(usize, usize); 4]> = SmallVec::new();
        for (extent, stride) in dims.filter(|d| d.0 != 1) {
            match merged.last_mut() {
                Some((n, inner)) if stride == *inner * *n => *n *= extent,
                _ => merged.push((extent, stride)),
            }
        }
        if merged.is_empty() {
            merged.push((1, 0));
        }
        Spread { dims: merged }
    }

    /// Returns whether the operand has all elements of the output, in the same order.
    pub fn is_whole(&self) -> bool {
        matches!(self.dims[..], [(_, 1)])
    }

    /// Returns whether the operand is one element.
    pub fn is_scalar(&self) -> bool {
        matches!(self.dims[..], [(_, 0)])
    }

    /// Writes what the operand `data` has for the elements of the output from `start` on.
    ///
    /// ```
    /// use ferroflow_functors::spread::Spread;
    /// // [2, 1] in an output of [2, 3].
    /// let column = Spread::new([(3, 0), (2, 1)].into_iter());
    /// let mut to = [0; 4];
    /// column.write(&[5, 6], 1, &mut to);
    /// assert_eq!(to, [5, 5, 6, 6]);
    /// ```
    ///
    /// # Panics
    /// If the operand has too few elements.
    pub fn write<T: Copy>(&self, data: &[T], start: usize, to: &mut [T]) {
        let panel = self.dims[0].0 * self.dims.get(1).map_or(1, |d| d.0);
        let (mut number, mut first, mut to) = (start / panel, start % panel, to);
        while !to.is_empty() {
            let (part, rest) = to.split_at_mut(to.len().min(panel - first));
            self.panel(&data[self.offset(number)..], first, part);
            (number, first, to) = (number + 1, 0, rest);
        }
    }

    /// The place in the operand where panel `number`, of the two inner dimensions, begins.
    fn offset(&self, mut number: usize) -> usize {
        let mut offset = 0;
        for (extent, stride) in self.dims.iter().skip(2) {
            offset += number % extent * stride;
            number /= extent;
        }
        offset
    }

    /// Writes elements of a panel from `first` on.
    fn panel<T: Copy>(&self, data: &[T], first: usize, to: &mut [T]) {
        let ((len, step), rows) = (self.dims[0], self.dims.get(1));
        let pitch = rows.map_or(0, |d| d.1);
        if step == 1 && pitch == 0 {
            return repeat(&data[..len], first % len, to);
        }
        let (mut row, column) = (first / len, first % len);
        let (head, to) = match column {
            0 => to.split_at_mut(0),
            _ => to.split_at_mut(to.len().min(len - column)),
        };
        if !head.is_empty() {
            let at = row * pitch + column * step;
            write_run(&data[at..], step, head);
            row += 1;
        }
        let whole = to.len() / len * len;
        let (whole, tail) = to.split_at_mut(whole);
        let n_whole = whole.len() / len;
        write_rows(
            &data[(row * pitch).min(data.len())..],
            pitch,
            step,
            len,
            whole,
        );
        if !tail.is_empty() {
            write_run(&data[(row + n_whole) * pitch..], step, tail);
        }
    }
}

/// Writes a row, from element `first` on, again and again.
fn repeat<T: Copy>(row: &[T], first: usize, to: &mut [T]) {
    let n = to.len().min(row.len());
    let (once, _) = to.split_at_mut(n);
    let before_end = n.min(row.len() - first);
    once[..before_end].copy_from_slice(&row[first..first + before_end]);
    once[before_end..].copy_from_slice(&row[..n - before_end]);
    let mut done = n;
    while done < to.len() {
        let more = done.min(to.len() - done);
        to.copy_within(..more, done);
        done += more;
    }
}

/// Writes elements, or one as often as there is room if `step` is 0.
fn write_run<T: Copy>(data: &[T], step: usize, to: &mut [T]) {
    match step {
        0 => to.fill(data[0]),
        _ => to.copy_from_slice(&data[..to.len()]),
    }
}

/// Writes rows of `len` elements, whose first ones are `pitch` apart.
fn write_rows<T: Copy>(data: &[T], pitch: usize, step: usize, len: usize, to: &mut [T]) {
    match len {
        2 => short_rows::<T, 2>(data, pitch, step, to),
        3 => short_rows::<T, 3>(data, pitch, step, to),
        4 => short_rows::<T, 4>(data, pitch, step, to),
        5 => short_rows::<T, 5>(data, pitch, step, to),
        6 => short_rows::<T, 6>(data, pitch, step, to),
        7 => short_rows::<T, 7>(data, pitch, step, to),
        8 => short_rows::<T, 8>(data, pitch, step, to),
        16 => short_rows::<T, 16>(data, pitch, step, to),
        _ => {
            for (i, to) in to.chunks_exact_mut(len).enumerate() {
                write_run(&data[i * pitch..], step, to);
            }
        }
    }
}

/// [`write_rows`] with a length that the compiler knows.
fn short_rows<T: Copy, const N: usize>(data: &[T], pitch: usize, step: usize, to: &mut [T]) {
    let (to, _) = to.as_chunks_mut::<N>();
    if step == 0 && pitch == 1 {
        for (to, x) in to.iter_mut().zip(data) {
            *to = [*x; N];
        }
        return;
    }
    for (i, to) in to.iter_mut().enumerate() {
        let data = &data[i * pitch..];
        match step {
            0 => *to = [data[0]; N],
            _ => to.copy_from_slice(&data[..N]),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Compares every part of the output with elements that are looked up one by one.
    fn check(dims: &[(usize, usize)]) {
        let n: usize = dims.iter().map(|d| d.0).product();
        let at = |mut i: usize| {
            let mut at = 0;
            for (extent, stride) in dims {
                at += i % extent * stride;
                i /= extent;
            }
            at
        };
        let size = (0..n).map(at).max().map_or(0, |m| m + 1);
        let data: Vec<usize> = (0..size).collect();
        let spread = Spread::new(dims.iter().copied());
        for start in 0..n {
            for len in [1, 2, 3, 5, 17, n]
                .into_iter()
                .filter(|len| start + len <= n)
            {
                let mut to = vec![usize::MAX; len];
                spread.write(&data, start, &mut to);
                let want: Vec<usize> = (start..start + len).map(at).collect();
                assert_eq!(to, want, "{dims:?} {start} {len}");
            }
        }
    }

    #[test]
    fn parts_are_what_positions_say() {
        check(&[(3, 1), (5, 0)]);
        check(&[(3, 1), (5, 0), (4, 3)]);
        check(&[(3, 0), (5, 1), (4, 0)]);
        check(&[(3, 0), (5, 1), (4, 5)]);
        check(&[(2, 1), (3, 0), (4, 2), (2, 0)]);
        check(&[(16, 0), (3, 1), (2, 0)]);
        check(&[(9, 0), (3, 1)]);
        check(&[(4, 1), (3, 4)]);
        check(&[(4, 1), (3, 8), (2, 0), (2, 4)]);
        check(&[(6, 0)]);
        check(&[]);
        assert!(Spread::new([(4, 1), (3, 4)].into_iter()).is_whole());
        assert!(Spread::new([(4, 0), (3, 0)].into_iter()).is_scalar());
    }
}
