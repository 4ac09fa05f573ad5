//! The interface of gradient functions: the node to differentiate and the gradients of its outputs.

use crate::gradient_expr::nothing;
use crate::{AttrValue, Attrs, Expr, Gradient, GradientGraph, Output};
use ferroflow_base::{Result, invalid_argument};

/// Writes the gradients of one node's inputs; see [`GradientCtx`].
pub type GradientFn = fn(&mut GradientCtx) -> Result<()>;

/// The gradient rule of an op.
#[derive(Clone, Copy, Default)]
pub enum GradientRule {
    /// There is no rule: differentiating the op is an error.
    #[default]
    Undefined,
    /// Inputs have no gradient, because outputs do not depend on them, or only in jumps.
    None,
    /// This function writes the gradient.
    Function(GradientFn),
}

/// The node to differentiate.
pub struct GradientNode<'a> {
    /// Its name.
    pub name: &'a str,
    /// Its op.
    pub op: &'a str,
    /// Its attrs.
    pub attrs: &'a Attrs,
    /// The values that it reads.
    pub inputs: &'a [Output],
    /// Its outputs.
    pub outputs: &'a [Output],
    /// For each input, whether its gradient is needed.
    pub needed: &'a [bool],
}

/// The context of a gradient function.
///
/// ```
/// use ferroflow_opdef::{GradientCtx, Op};
/// // y = tanh(x), so dx = dy * (1 - y * y).
/// const TANH: Op = Op::new("Tanh", "x: T -> y: T | T: type").gradient(|g| {
///     let (y, dy) = (g.y(0), g.dy(0));
///     g.set(0, dy * (1.0 - y * y))
/// });
/// assert_eq!(TANH.name, "Tanh");
/// ```
pub struct GradientCtx<'g> {
    graph: &'g dyn GradientGraph,
    node: GradientNode<'g>,
    arrived: Vec<Option<Gradient<Expr<'g>>>>,
    results: Vec<Option<Gradient<Expr<'g>>>>,
}

impl<'g> GradientCtx<'g> {
    /// Creates a context for `node`; `arrived` has the gradients of its outputs.
    pub fn new(
        graph: &'g dyn GradientGraph,
        node: GradientNode<'g>,
        arrived: Vec<Option<Gradient<Expr<'g>>>>,
    ) -> Self {
        let results = vec![None; node.inputs.len()];
        GradientCtx {
            graph,
            node,
            arrived,
            results,
        }
    }

    /// Returns the node's attrs.
    pub fn attrs(&self) -> &'g Attrs {
        self.node.attrs
    }

    /// Returns an attr to copy to another node; an empty list if there is none.
    pub fn attr(&self, name: &'static str) -> (&'static str, AttrValue) {
        let value = self.node.attrs.get(name).cloned();
        (name, value.unwrap_or_else(|| AttrValue::List(Vec::new())))
    }

    /// Returns the node's name.
    pub fn name(&self) -> &'g str {
        self.node.name
    }

    /// Returns the node's op.
    pub fn op_name(&self) -> &'g str {
        self.node.op
    }

    /// Returns the number of inputs.
    pub fn num_inputs(&self) -> usize {
        self.node.inputs.len()
    }

    /// Returns the number of outputs.
    pub fn num_outputs(&self) -> usize {
        self.node.outputs.len()
    }

    fn expr(&self, output: Option<&Output>, what: &str, i: usize) -> Expr<'g> {
        if output.is_none() {
            let (node, op) = (self.node.name, self.node.op);
            let error = invalid_argument!("node '{node}' ({op}) has no {what} {i}");
            self.graph.fail(error);
        }
        Expr::new(self.graph, output.copied().unwrap_or(nothing()))
    }

    /// Returns input `i`.
    pub fn x(&self, i: usize) -> Expr<'g> {
        self.expr(self.node.inputs.get(i), "input", i)
    }

    /// Returns all inputs.
    pub fn xs(&self) -> Vec<Expr<'g>> {
        (0..self.num_inputs()).map(|i| self.x(i)).collect()
    }

    /// Returns output `i`.
    pub fn y(&self, i: usize) -> Expr<'g> {
        self.expr(self.node.outputs.get(i), "output", i)
    }

    /// Returns the gradient of output `i` as a tensor; zeros if there is none.
    pub fn dy(&self, i: usize) -> Expr<'g> {
        match self.arrived.get(i).copied().flatten() {
            Some(gradient) => gradient.dense(),
            None => self.y(i).zeros_like(),
        }
    }

    /// Returns the gradient of output `i`, dense or sparse, if any.
    pub fn arrived(&self, i: usize) -> Option<Gradient<Expr<'g>>> {
        self.arrived.get(i).copied().flatten()
    }

    /// Returns whether the gradient of input `i` is needed.
    pub fn needs(&self, i: usize) -> bool {
        self.node.needed.get(i).copied().unwrap_or(false)
    }

    /// Sets the gradient of input `i`.
    ///
    /// # Errors
    /// INVALID_ARGUMENT if the node has no such input.
    pub fn set(&mut self, i: usize, gradient: Expr<'g>) -> Result<()> {
        self.set_gradient(i, Gradient::Dense(gradient))
    }

    /// Like [`GradientCtx::set`], for a gradient of either kind.
    ///
    /// # Errors
    /// INVALID_ARGUMENT if the node has no such input.
    pub fn set_gradient(&mut self, i: usize, gradient: Gradient<Expr<'g>>) -> Result<()> {
        match self.results.get_mut(i) {
            Some(slot) => {
                *slot = Some(gradient);
                Ok(())
            }
            None => Err(invalid_argument!(
                "the gradient of '{}' sets input {i}, which it does not have",
                self.node.name
            )),
        }
    }

    /// Sets the gradients of inputs 0 and 1, which were broadcast together: gradients are summed
    /// over repeated axes.
    ///
    /// # Errors
    /// INVALID_ARGUMENT if the node has no such inputs.
    pub fn set_broadcast(&mut self, dx: Option<Expr<'g>>, dy: Option<Expr<'g>>) -> Result<()> {
        let (x, y) = (self.x(0), self.x(1));
        let (a, b) = (x.shape(), y.shape());
        if let (Some(a), Some(b)) = (a.dims(), b.dims())
            && let Some(axes) = repeated(a, b)
        {
            for (i, (gradient, axes)) in [dx, dy].into_iter().zip(axes).enumerate() {
                let Some(gradient) = gradient else { continue };
                let summed = match axes.is_empty() {
                    true => gradient,
                    false => {
                        let axes = gradient.ints(axes.iter().map(|&a| a as i64));
                        gradient.sum(axes, false).reshape(self.x(i).shape_of())
                    }
                };
                self.set(i, summed)?;
            }
            return Ok(());
        }
        let shapes = [x.shape_of(), y.shape_of()];
        let axes = x.node("BroadcastGradientArgs", &shapes, &[]);
        for (i, gradient) in [dx, dy].into_iter().enumerate() {
            let (Some(gradient), Some(axes)) = (gradient, axes.get(i)) else {
                continue;
            };
            self.set(i, gradient.sum(*axes, false).reshape(shapes[i]))?;
        }
        Ok(())
    }

    /// Returns the name that all gradients of one request share.
    pub fn source(&self) -> String {
        self.graph.source()
    }

    /// Returns the gradients that were set.
    pub fn into_results(self) -> Vec<Option<Gradient<Expr<'g>>>> {
        self.results
    }
}

/// Returns the axes along which each of two shapes is repeated when they are broadcast together;
/// `None` if that depends on unknown sizes.
pub(crate) fn repeated(a: &[Option<usize>], b: &[Option<usize>]) -> Option<[Vec<usize>; 2]> {
    let rank = a.len().max(b.len());
    let size = |s: &[Option<usize>], axis: usize| match axis + s.len() < rank {
        true => Some(1),
        false => s[axis + s.len() - rank],
    };
    let mut axes = [Vec::new(), Vec::new()];
    for axis in 0..rank {
        match (size(a, axis), size(b, axis)) {
            // An axis that both lack or have as 1 is kept, unless one lacks it.
            (Some(1), Some(1)) => {
                for (s, axes) in [a, b].into_iter().zip(&mut axes) {
                    if axis + s.len() < rank {
                        axes.push(axis);
                    }
                }
            }
            (Some(1), Some(_)) => axes[0].push(axis),
            (Some(_), Some(1)) => axes[1].push(axis),
            (Some(m), Some(n)) if m == n => {}
            _ => return None,
        }
    }
    Some(axes)
}

#[cfg(test)]
mod tests {
    use super::repeated;

    #[test]
    fn axes_of_broadcasting() {
        let check = |a: &[usize], b: &[usize], want: [&[usize]; 2]| {
            let known = |s: &[usize]| s.iter().map(|&d| Some(d)).collect::<Vec<_>>();
            let got = repeated(&known(a), &known(b)).expect("known");
            assert_eq!([&got[0][..], &got[1][..]], want, "{a:?} {b:?}");
        };
        check(&[2, 3], &[2, 3], [&[], &[]]);
        check(&[2, 3], &[3], [&[], &[0]]);
        check(&[], &[4], [&[0], &[]]);
        check(&[2, 1, 5], &[3, 1], [&[1], &[0, 2]]);
        check(&[1, 1], &[1], [&[], &[0]]);
        assert!(repeated(&[None], &[Some(3)]).is_none());
    }
}
