//! Ops that move the elements of small tensors.

use super::build::{Elements, MAX_ELEMENTS, Meaning};
use super::ops::one;
use super::translate::Translator;
use ferroflow_graph::Node;
use ferroflow_opdef::ValueId;

/// The axis that a number means; negative ones count from the end.
pub(super) fn axis_of(axis: i64, rank: usize) -> Option<usize> {
    let axis = if axis < 0 { axis + rank as i64 } else { axis };
    usize::try_from(axis).ok().filter(|a| *a < rank)
}

/// The place of an element in memory.
fn flat(dims: &[usize], index: &[usize]) -> usize {
    dims.iter().zip(index).fold(0, |at, (d, i)| at * d + i)
}

/// The index of element `i` in memory.
fn index_of(dims: &[usize], mut i: usize) -> Vec<usize> {
    let mut index = vec![0; dims.len()];
    for (at, dim) in index.iter_mut().zip(dims).rev() {
        (*at, i) = (i % dim, i / dim);
    }
    index
}

/// A tensor of these dimensions whose elements are those of `a` at other indices; `None` if it has none or too many.
fn moved(
    a: &Elements,
    dims: Vec<usize>,
    from: impl Fn(&[usize]) -> Vec<usize>,
) -> Option<Vec<Meaning>> {
    let n = dims.iter().try_fold(1usize, |n, d| n.checked_mul(*d))?;
    if n == 0 || n > MAX_ELEMENTS {
        return None;
    }
    let value = |i| {
        a.values
            .get(flat(&a.dims, &from(&index_of(&dims, i))))
            .copied()
    };
    let values: Option<Vec<ValueId>> = (0..n).map(value).collect();
    let (ty, values) = (a.ty, values?);
    one(Elements { ty, dims, values })
}

impl Translator<'_> {
    /// The outputs of a node that moves elements; `None` if its op does something else, or what it moves is not known.
    pub(super) fn moving(&mut self, node: &Node, inputs: &[&Elements]) -> Option<Vec<Meaning>> {
        match (node.op(), inputs) {
            ("ConcatV2", [parts @ .., axis]) => self.concat(parts, axis),
            ("GatherV2", [a, indices, axis]) if node.attrs.int("batch_dims").ok()? == 0 => {
                let [axis] = self.b.ints(axis)?[..] else {
                    return None;
                };
                self.gather_rows(a, indices, axis_of(axis, a.dims.len())?)
            }
            ("Slice", [a, begin, size]) => {
                let begin: Option<Vec<usize>> = self.places(begin);
                let (begin, sizes) = (begin?, self.b.ints(size)?);
                let rest = a.dims.iter().zip(&begin);
                let dims = rest.zip(&sizes).map(|((d, b), s)| match s {
                    -1 => d.checked_sub(*b),
                    s => usize::try_from(*s).ok().filter(|s| b + s <= *d),
                });
                let dims: Vec<usize> = dims.collect::<Option<_>>()?;
                (dims.len() == a.dims.len()).then_some(())?;
                moved(a, dims, |i| {
                    i.iter().zip(&begin).map(|(i, b)| i + b).collect()
                })
            }
            ("StridedSlice", [a, begin, end, strides]) => {
                self.strided(node, a, [begin, end, strides])
            }
            ("Transpose", [a, perm]) => {
                let perm = self.places(perm)?;
                let dims: Option<Vec<usize>> =
                    perm.iter().map(|p| a.dims.get(*p).copied()).collect();
                (perm.len() == a.dims.len()).then_some(())?;
                moved(a, dims?, |i| {
                    let mut from = vec![0; i.len()];
                    perm.iter().zip(i).for_each(|(p, i)| from[*p] = *i);
                    from
                })
            }
            ("Tile", [a, times]) => {
                let times = self.places(times)?;
                (times.len() == a.dims.len()).then_some(())?;
                let dims = a.dims.iter().zip(&times).map(|(d, t)| d * t).collect();
                moved(a, dims, |i| {
                    i.iter().zip(&a.dims).map(|(i, d)| i % d).collect()
                })
            }
            ("Squeeze", [a]) => {
                let axes = node.attrs.ints("squeeze_dims").ok()?;
                let axes = axes.into_iter().map(|axis| axis_of(axis, a.dims.len()));
                let axes: Vec<usize> = axes.collect::<Option<_>>()?;
                axes.iter().all(|axis| a.dims[*axis] == 1).then_some(())?;
                let dims = a.dims.iter().enumerate();
                let dims = dims.filter(|(i, d)| **d != 1 || !axes.is_empty() && !axes.contains(i));
                one(Elements {
                    dims: dims.map(|(_, d)| *d).collect(),
                    ..(*a).clone()
                })
            }
            _ => None,
        }
    }

    /// Constant numbers that are not negative.
    fn places(&self, elements: &Elements) -> Option<Vec<usize>> {
        let all = self.b.ints(elements)?.into_iter();
        all.map(|n| usize::try_from(n).ok()).collect()
    }

    fn concat(&mut self, parts: &[&Elements], axis: &Elements) -> Option<Vec<Meaning>> {
        let (first, [axis]) = (parts.first()?, &self.b.ints(axis)?[..]) else {
            return None;
        };
        let axis = axis_of(*axis, first.dims.len())?;
        let is_alike = |p: &&Elements| {
            let same = |(k, (a, b)): (usize, (&usize, &usize))| k == axis || a == b;
            p.ty == first.ty
                && p.dims.len() == first.dims.len()
                && p.dims.iter().zip(&first.dims).enumerate().all(same)
        };
        if !parts.iter().all(is_alike) {
            return None;
        }
        let outer: usize = first.dims[..axis].iter().product();
        let mut values = Vec::new();
        for i in 0..outer {
            for part in parts {
                let n = part.values.len() / outer;
                values.extend_from_slice(part.values.get(i * n..(i + 1) * n)?);
            }
        }
        let mut dims = first.dims.clone();
        dims[axis] = parts.iter().map(|p| p.dims[axis]).sum();
        let ty = first.ty;
        (1..=MAX_ELEMENTS).contains(&values.len()).then_some(())?;
        one(Elements { ty, dims, values })
    }

    /// The slices of `a` along `axis` that constant indices name.
    fn gather_rows(
        &mut self,
        a: &Elements,
        indices: &Elements,
        axis: usize,
    ) -> Option<Vec<Meaning>> {
        let at = self.places(indices)?;
        if at.iter().any(|i| *i >= a.dims[axis]) {
            return None;
        }
        let rank = indices.dims.len();
        let (before, after) = (&a.dims[..axis], &a.dims[axis + 1..]);
        let dims = [before, &indices.dims, after].concat();
        moved(a, dims, |i| {
            let of_index = flat(&indices.dims, &i[axis..axis + rank]);
            [&i[..axis], &[at[of_index]], &i[axis + rank..]].concat()
        })
    }

    /// A slice with constant bounds, without an ellipsis or new axes.
    fn strided(
        &mut self,
        node: &Node,
        a: &Elements,
        bounds: [&Elements; 3],
    ) -> Option<Vec<Meaning>> {
        let [begin, end, strides] = bounds.map(|b| self.b.ints(b));
        let (begin, end, strides) = (begin?, end?, strides?);
        let mask = |name: &str| node.attrs.int(name).ok();
        let [from_first, to_last, shrinks] =
            ["begin_mask", "end_mask", "shrink_axis_mask"].map(mask);
        let (from_first, to_last, shrinks) = (from_first?, to_last?, shrinks?);
        let others = [mask("ellipsis_mask")?, mask("new_axis_mask")?];
        let n = begin.len();
        if others != [0, 0] || n > a.dims.len() || end.len() != n || strides.len() != n {
            return None;
        }
        let is_set = |mask: i64, axis: usize| mask >> axis & 1 == 1;
        // The first index and the step of each axis, and the dimensions that stay.
        let (mut steps, mut dims) = (Vec::new(), Vec::new());
        for (axis, &dim) in a.dims.iter().enumerate() {
            let d = dim as i64;
            if axis >= n {
                steps.push((0, 1));
                dims.push(dim);
                continue;
            }
            let from_end = |i: i64| if i < 0 { i + d } else { i };
            if is_set(shrinks, axis) {
                let at = from_end(begin[axis]);
                steps.push(((0..d).contains(&at).then_some(at)?, 0));
                dims.push(1);
                continue;
            }
            let step = strides[axis];
            let (low, high) = if step > 0 { (0, d) } else { (-1, d - 1) };
            let bound = |i: i64| from_end(i).clamp(low, high);
            let (first, last) = if step > 0 { (low, high) } else { (high, low) };
            let b = if is_set(from_first, axis) {
                first
            } else {
                bound(begin[axis])
            };
            let e = if is_set(to_last, axis) {
                last
            } else {
                bound(end[axis])
            };
            let count = (e - b).checked_div(step)? + i64::from((e - b) % step != 0);
            steps.push((b, step));
            dims.push(usize::try_from(count.max(0)).ok()?);
        }
        let all = moved(a, dims.clone(), |i| {
            let at = |(i, (b, step)): (&usize, &(i64, i64))| (b + *i as i64 * step) as usize;
            i.iter().zip(&steps).map(at).collect()
        })?;
        let kept = dims.into_iter().enumerate();
        let kept = kept.filter(|(axis, _)| *axis >= n || !is_set(shrinks, *axis));
        let dims = kept.map(|(_, d)| d).collect();
        let elements = all.first()?.tensor()?.as_ref().clone();
        one(Elements { dims, ..elements })
    }
}
