//! Windows that slide along a dimension, with padding and dilations (XLA: `window_util.cc`): shared by XlaReduceWindow,
//! XlaSelectAndScatter and the convolutions.

use ferroflow_base::{Result, invalid_argument, resource_exhausted};
use ferroflow_functors::indices::{Ints, ints};
use ferroflow_tensor::{Shape, Tensor};

/// A dimension along which a window slides.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Axis {
    /// Elements of the base, and of the window.
    pub(crate) size: usize,
    pub(crate) window: usize,
    pub(crate) stride: i64,
    pub(crate) padding: [i64; 2],
    pub(crate) base_dilation: i64,
    pub(crate) window_dilation: i64,
}

/// Elements of a base: from the first on, one of each `step`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Covered {
    pub(crate) first: usize,
    pub(crate) n: usize,
    pub(crate) step: usize,
}

impl Axis {
    /// Checks the numbers, and returns how many places the window has.
    pub(crate) fn places(&self) -> Result<usize> {
        let positive = [
            (self.window as i64, "dimension"),
            (self.stride, "stride"),
            (self.base_dilation, "base area dilation factor"),
            (self.window_dilation, "window dilation factor"),
        ];
        if let Some((_, what)) = positive.iter().find(|(n, _)| *n < 1) {
            return Err(invalid_argument!("Window has a non-positive {what}."));
        }
        let dilated = |n: usize, by: i64| match n {
            0 => 0,
            n => (n as i128 - 1) * i128::from(by) + 1,
        };
        let [low, high] = self.padding.map(i128::from);
        let base = low + dilated(self.size, self.base_dilation) + high;
        let window = dilated(self.window, self.window_dilation);
        let places = match base <= 0 || window > base {
            true => 0,
            false => (base - window) / i128::from(self.stride) + 1,
        };
        usize::try_from(places).map_err(|_| invalid_argument!("Window has {places} places."))
    }

    /// Returns the element of the base that element `w` of the window covers at `place`, if any.
    pub(crate) fn element(&self, place: usize, w: usize) -> Option<usize> {
        let at = place as i128 * i128::from(self.stride) - i128::from(self.padding[0])
            + w as i128 * i128::from(self.window_dilation);
        let dilation = i128::from(self.base_dilation);
        if at < 0 || at % dilation != 0 {
            return None;
        }
        usize::try_from(at / dilation)
            .ok()
            .filter(|&at| at < self.size)
    }

    /// Returns the elements of the base that the window covers at `place`.
    pub(crate) fn covered(&self, place: usize) -> Covered {
        let none = Covered {
            first: 0,
            n: 0,
            step: 1,
        };
        let (dilation, step) = (
            i128::from(self.base_dilation),
            i128::from(self.window_dilation),
        );
        let start = place as i128 * i128::from(self.stride) - i128::from(self.padding[0]);
        // The window's first element at or behind the start of the base, then the first that is not between elements.
        let skipped = (-start).max(0).div_euclid(step) + i128::from((-start).max(0) % step != 0);
        let (common, inverse) = gcd(step, dilation);
        if start % common != 0 {
            return none;
        }
        // `start + w * step` is a multiple of the dilation.
        let period = dilation / common;
        let solution = (-start / common % period) * inverse;
        let w = skipped + (solution - skipped).rem_euclid(period);
        let first = (start + w * step) / dilation;
        if w >= self.window as i128 || first >= self.size as i128 {
            return none;
        }
        let step = period * step / dilation;
        let in_window = (self.window as i128 - 1 - w) / period + 1;
        let in_base = (self.size as i128 - 1 - first) / step + 1;
        Covered {
            first: first as usize,
            n: in_window.min(in_base) as usize,
            step: usize::try_from(step).unwrap_or(usize::MAX),
        }
    }
}

/// Returns the greatest common divisor `d` of positive numbers, and `x` with `a * x = d` modulo `b`.
fn gcd(a: i128, b: i128) -> (i128, i128) {
    let (mut r, mut x) = ([a, b], [1, 0]);
    while r[1] != 0 {
        let q = r[0] / r[1];
        r = [r[1], r[0] - q * r[1]];
        x = [x[1], x[0] - q * x[1]];
    }
    (r[0], x[0])
}

/// Returns the numbers of a vector, one for each of `n` dimensions.
pub(crate) fn vector(t: &Tensor, n: usize, what: &str) -> Result<Ints> {
    match t.shape().dims() == [n] {
        true => ints(t),
        false => Err(invalid_argument!(
            "{what} must have a number for each of {n} dimensions, but has shape {}",
            t.shape()
        )),
    }
}

/// Returns the paddings of `n` dimensions, before and behind.
pub(crate) fn paddings(t: &Tensor, n: usize) -> Result<Vec<[i64; 2]>> {
    if t.shape().dims() != [n, 2] {
        return Err(invalid_argument!(
            "padding must have shape [{n},2], but has shape {}",
            t.shape()
        ));
    }
    let all = ints(t)?;
    Ok(all.chunks_exact(2).map(|pair| [pair[0], pair[1]]).collect())
}

/// Returns the size of a window that a number asks for.
pub(crate) fn window_size(n: i64) -> Result<usize> {
    usize::try_from(n).map_err(|_| invalid_argument!("Window has a non-positive dimension."))
}

/// Where a window slides over a tensor.
pub(crate) struct Places {
    /// Of each axis: what the window covers at each place.
    pub(crate) covered: Vec<Vec<Covered>>,
    strides: Vec<usize>,
    pub(crate) shape: Shape,
}

impl Places {
    pub(crate) fn of(axes: &[Axis], base: &Shape) -> Result<Places> {
        let sizes = axes.iter().map(|axis| Ok(axis.places()? as i64));
        let shape = Shape::checked(&sizes.collect::<Result<Ints>>()?)?;
        let used = match shape.num_elements() {
            0 => &[],
            _ => axes,
        };
        let covered = |(axis, &n): (&Axis, &usize)| {
            let mut all = Vec::new();
            all.try_reserve_exact(n).map_err(|_| {
                resource_exhausted!("a window with {n} places does not fit into memory")
            })?;
            all.extend((0..n).map(|place| axis.covered(place)));
            Ok(all)
        };
        Ok(Places {
            covered: used
                .iter()
                .zip(shape.iter())
                .map(covered)
                .collect::<Result<_>>()?,
            strides: base.strides().to_vec(),
            shape,
        })
    }

    /// Calls `f` with the position of each element that the window covers at `coords`, in order.
    pub(crate) fn visit(
        &self,
        coords: &[usize],
        f: &mut impl FnMut(usize) -> Result<()>,
    ) -> Result<()> {
        self.visit_from(0, 0, coords, f)
    }

    fn visit_from(
        &self,
        axis: usize,
        base: usize,
        coords: &[usize],
        f: &mut impl FnMut(usize) -> Result<()>,
    ) -> Result<()> {
        let Some(places) = self.covered.get(axis) else {
            return f(base);
        };
        let Covered { first, n, step } = places[coords[axis]];
        let stride = self.strides[axis];
        let is_last = axis + 1 == self.covered.len();
        for i in 0..n {
            let at = base + (first + i * step) * stride;
            match is_last {
                true => f(at)?,
                false => self.visit_from(axis + 1, at, coords, f)?,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_window_covers() {
        let numbers = [1, 2, 3, 4, 6];
        for base_dilation in numbers {
            for window_dilation in numbers {
                for (size, window, low) in [(5, 4, 0), (5, 4, 3), (3, 9, -2), (1, 2, 7), (4, 1, 1)]
                {
                    let axis = Axis {
                        size,
                        window,
                        stride: 2,
                        padding: [low, 9],
                        base_dilation,
                        window_dilation,
                    };
                    for place in 0..axis.places().unwrap() {
                        let want: Vec<usize> =
                            (0..window).filter_map(|w| axis.element(place, w)).collect();
                        let Covered { first, n, step } = axis.covered(place);
                        let got: Vec<usize> = (0..n).map(|i| first + i * step).collect();
                        assert_eq!(got, want, "{axis:?} at {place}");
                    }
                }
            }
        }
        let far = Axis {
            size: 1,
            window: 1,
            stride: 1,
            padding: [0, 1],
            base_dilation: 1 << 62,
            window_dilation: (1 << 62) - 1,
        };
        assert_eq!([0, 1].map(|place| far.covered(place).n), [1, 0]);
    }
}
