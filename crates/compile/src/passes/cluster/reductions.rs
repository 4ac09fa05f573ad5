//! Reductions over constant axes, with the results of the kernels: floats are added in their order.

use super::build::{Elements, Meaning};
use super::moves::axis_of;
use super::ops::one;
use super::translate::Translator;
use ferroflow_graph::Node;
use ferroflow_opdef::{ScalarBinary, ScalarType, ValueId};

/// From this number of floats on, the order in which kernels reduce rows and columns depends on the machine.
const MAX_ORDERED: usize = 16;

impl Translator<'_> {
    /// The output of a reduction; `None` if the op does something else, or the kernel's order is not known.
    pub(super) fn reduction(&mut self, node: &Node, inputs: &[&Elements]) -> Option<Vec<Meaning>> {
        let &[a, axes] = inputs else {
            return None;
        };
        let f = match node.op() {
            "Sum" | "Mean" => ScalarBinary::Add,
            "Prod" => ScalarBinary::Mul,
            "Max" => ScalarBinary::Maximum,
            "Min" => ScalarBinary::Minimum,
            "All" => ScalarBinary::LogicalAnd,
            "Any" => ScalarBinary::LogicalOr,
            "ArgMax" | "ArgMin" => return self.best(node, a, axes),
            _ => return None,
        };
        let keeps = node.attrs.bool("keep_dims").ok()?;
        let axes = self.b.ints(axes)?.into_iter();
        let axes: Vec<usize> = axes
            .map(|axis| axis_of(axis, a.dims.len()))
            .collect::<Option<_>>()?;
        let is_mean = node.op() == "Mean";
        if a.values.is_empty() || is_mean && !a.ty.is_float() {
            return None;
        }
        let is_reduced = |k: &usize| axes.contains(k);
        let n: usize = (0..a.dims.len())
            .filter(is_reduced)
            .map(|k| a.dims[k])
            .product();
        let mut values = match n {
            1 => a.values.clone(),
            _ => self.reduced(f, a, &axes)?,
        };
        if is_mean && n > 1 {
            let n = self.float(a.ty, n as f64)?;
            for value in &mut values {
                *value = self.b.binary(ScalarBinary::Div, *value, n)?;
            }
        }
        let dims = a.dims.iter().enumerate();
        let dims = dims.filter_map(|(k, d)| match (is_reduced(&k), keeps) {
            (false, _) => Some(*d),
            (true, true) => Some(1),
            (true, false) => None,
        });
        one(Elements {
            ty: a.ty,
            dims: dims.collect(),
            values,
        })
    }

    /// The reduced elements: dimensions are collapsed, then reduced one after another, innermost first.
    fn reduced(&mut self, f: ScalarBinary, a: &Elements, axes: &[usize]) -> Option<Vec<ValueId>> {
        let mut layout: Vec<(usize, bool)> = Vec::new();
        for (k, &n) in a.dims.iter().enumerate().filter(|(_, n)| **n != 1) {
            let reduced = axes.contains(&k);
            match layout.last_mut() {
                Some(last) if last.1 == reduced => last.0 *= n,
                _ => layout.push((n, reduced)),
            }
        }
        let start = match f {
            // The sum of negative zeros is zero.
            ScalarBinary::Add if a.ty.is_float() => Some(self.float(a.ty, 0.0)?),
            _ => None,
        };
        let mut values = a.values.clone();
        while let Some(k) = layout.iter().rposition(|d| d.1) {
            let (n, _) = layout.remove(k);
            let cols: usize = layout[k..].iter().map(|d| d.0).product();
            let width = if cols == 1 { n } else { cols };
            if a.ty.is_float() && width >= MAX_ORDERED {
                return None;
            }
            let mut smaller = Vec::with_capacity(values.len() / n);
            for block in values.chunks(n * cols) {
                for c in 0..cols {
                    let mut terms = block.iter().skip(c).step_by(cols).copied();
                    let first = start.or_else(|| terms.next())?;
                    let sum = terms.try_fold(first, |acc, x| self.b.binary(f, acc, x));
                    smaller.push(sum?);
                }
            }
            values = smaller;
        }
        Some(values)
    }

    /// The index of the first one of the largest or smallest elements; NaN never is.
    fn best(&mut self, node: &Node, a: &Elements, of: &Elements) -> Option<Vec<Meaning>> {
        let [axis] = self.b.ints(of)?[..] else {
            return None;
        };
        let axis = axis_of(axis, a.dims.len())?;
        let index = ScalarType::of(*node.outputs.first()?)?;
        let (beats, worst) = match node.op() {
            "ArgMax" => (ScalarBinary::Greater, f64::NEG_INFINITY),
            _ => (ScalarBinary::Less, f64::INFINITY),
        };
        if !a.ty.is_float() || a.values.is_empty() || !of.dims.is_empty() {
            return None;
        }
        let (n, cols) = (a.dims[axis], a.dims[axis + 1..].iter().product::<usize>());
        let worst = self.float(a.ty, worst)?;
        let places = (0..n).map(|i| self.b.int(index, i as i64));
        let places: Vec<ValueId> = places.collect::<Option<_>>()?;
        let mut values = Vec::new();
        for block in a.values.chunks(n * cols) {
            for c in 0..cols {
                let (mut best, mut at) = (worst, *places.first()?);
                for (x, place) in block.iter().skip(c).step_by(cols).zip(&places) {
                    let is_better = self.b.binary(beats, *x, best)?;
                    best = self.b.select(is_better, *x, best)?;
                    at = self.b.select(is_better, *place, at)?;
                }
                values.push(at);
            }
        }
        let mut dims = a.dims.clone();
        dims.remove(axis);
        one(Elements {
            ty: index,
            dims,
            values,
        })
    }
}
